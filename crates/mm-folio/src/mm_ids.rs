//! Identities of address spaces.

use crate::AllocError;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use mm_sync::{Mutex, RawLock};

/// The identity of an address space, in `1..2^31`: what a large folio records
/// of those that map it (rule FOLIO-29).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MmId(NonZeroU32);

impl MmId {
    /// The largest identity.
    pub const MAX: u32 = (1 << 31) - 1;

    /// Identity `id`, if it is in range.
    #[inline]
    pub const fn new(id: u32) -> Option<Self> {
        if id > Self::MAX {
            return None;
        }
        match NonZeroU32::new(id) {
            Some(id) => Some(MmId(id)),
            None => None,
        }
    }
    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// Hands out identities that are unique while they live.
pub struct MmIds<L: RawLock> {
    inner: Mutex<L, Inner>,
}

struct Inner {
    /// The lowest number never handed out.
    fresh: u32,
    /// Numbers handed back; its capacity covers every number handed out.
    free: Vec<u32>,
}

impl<L: RawLock> MmIds<L> {
    /// Nothing handed out.
    pub fn new() -> Self {
        MmIds { inner: Mutex::new(Inner { fresh: 1, free: Vec::new() }) }
    }
    /// An identity that nobody else has.
    ///
    /// # Errors
    ///
    /// If all are taken, or there is no memory to remember that this one is.
    pub fn alloc(&self) -> Result<MmId, AllocError> {
        let mut inner = self.inner.lock();
        if let Some(id) = inner.free.pop() {
            return MmId::new(id).ok_or(AllocError);
        }
        let id = MmId::new(inner.fresh).ok_or(AllocError)?;
        // Room to give every live one back: freeing never allocates.
        let all = inner.fresh as usize;
        if inner.free.capacity() < all {
            inner.free.try_reserve(all).map_err(|_| AllocError)?;
        }
        inner.fresh += 1;
        Ok(id)
    }
    /// Gives `id` back.
    ///
    /// The address space maps nothing any more: a new owner of the number
    /// would inherit what is left, and a shared folio would look exclusive.
    pub fn free(&self, id: MmId) {
        let mut inner = self.inner.lock();
        debug_assert!(id.get() < inner.fresh && !inner.free.contains(&id.get()));
        inner.free.push(id.get());
    }
}

impl<L: RawLock> Default for MmIds<L> {
    fn default() -> Self {
        MmIds::new()
    }
}

impl<L: RawLock> core::fmt::Debug for MmIds<L> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("MmIds")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mm_sync::DefaultLock;

    /// Rules: FOLIO-29.
    #[test]
    fn identities_are_unique_and_recycled_only_after_they_are_freed() {
        let ids = MmIds::<DefaultLock>::new();
        let mut live: Vec<_> = (0..100).map(|_| ids.alloc().expect("id")).collect();
        let freed = live.swap_remove(17);
        ids.free(freed);
        assert!(!live.contains(&freed));
        assert_eq!(ids.alloc(), Ok(freed));
        live.push(freed);
        live.sort();
        live.dedup();
        assert_eq!(live.len(), 100);
    }

    /// Rules: FOLIO-29.
    #[test]
    fn the_range_is_31_bits_without_zero() {
        assert_eq!(MmId::new(0), None);
        assert_eq!(MmId::new(1 << 31), None);
        assert_eq!(MmId::new(MmId::MAX).map(MmId::get), Some(MmId::MAX));
    }
}
