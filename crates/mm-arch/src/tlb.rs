//! What the algorithms ask of translation caches.

use crate::{Flush, VirtRange};

/// Identifies an address space to the flush hardware.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SpaceId(pub u64);

/// What else than leaf translations a flush must drop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FlushScope {
    /// Leaf translations only: no table of the range was unlinked.
    Leaves,
    /// Also cached upper-level entries: a table of the range was unlinked.
    Tables,
}

/// Translation caches of all CPUs, as a kernel implements them.
///
/// When a flush returns, no CPU can use a translation of the range that was
/// cached before, and (with [`FlushScope::Tables`]) none can walk through an
/// unlinked table.
///
/// # Ordering
///
/// Entries may have been changed by relaxed stores. A flush, and what records one, is a full
/// barrier behind them before it asks which CPUs have the space loaded.
///
/// # Example
///
/// A machine whose CPUs cache nothing:
///
/// ```
/// use mm_arch::{FlushScope, SpaceId, Tlb, VirtRange};
/// struct Uncached;
/// impl Tlb for Uncached {
///     fn flush_range(&self, _: SpaceId, _: VirtRange, _: FlushScope) {}
///     fn flush_space(&self, _: SpaceId) {}
///     fn defer_range(&self, _: SpaceId, _: VirtRange) {}
///     fn flush_deferred(&self) {}
/// }
/// ```
pub trait Tlb: Sync {
    /// Flushes a range of one address space on every CPU, and waits.
    fn flush_range(&self, space: SpaceId, range: VirtRange, scope: FlushScope);
    /// Flushes everything of one address space on every CPU, and waits.
    fn flush_space(&self, space: SpaceId);
    /// Records a range whose flush may wait until [`flush_deferred`](Self::flush_deferred).
    fn defer_range(&self, space: SpaceId, range: VirtRange);
    /// Flushes everything recorded by this CPU, and waits: also for another CPU that flushes it
    /// already.
    fn flush_deferred(&self);
    /// Whether it pays to put flushes of `space` off: another CPU may have translations
    /// of it, so that a flush interrupts that one, or a flush is begun when it is recorded
    /// and only its end is waited for later (rule TLBB-04).
    fn defers(&self, space: SpaceId) -> bool {
        let _ = space;
        true
    }
}

/// The [`Tlb`] together with the address space it is asked about.
pub struct SpaceTlb<'t, T: Tlb + ?Sized> {
    tlb: &'t T,
    space: SpaceId,
}

impl<T: Tlb + ?Sized> Clone for SpaceTlb<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Tlb + ?Sized> Copy for SpaceTlb<'_, T> {}

impl<'t, T: Tlb + ?Sized> SpaceTlb<'t, T> {
    /// Flushes of address space `space` through `tlb`.
    #[inline]
    pub const fn new(tlb: &'t T, space: SpaceId) -> Self {
        SpaceTlb { tlb, space }
    }
    /// The address space.
    #[inline]
    pub const fn space(&self) -> SpaceId {
        self.space
    }
    /// Flushes `range` now.
    #[inline]
    pub fn flush(&self, range: VirtRange, scope: FlushScope) {
        self.tlb.flush_range(self.space, range, scope);
    }
    /// Flushes the whole address space now.
    #[inline]
    pub fn flush_all(&self) {
        self.tlb.flush_space(self.space);
    }
    /// Records `range` for a later flush.
    #[inline]
    pub fn defer(&self, range: VirtRange) {
        self.tlb.defer_range(self.space, range);
    }
    /// An obligation without a range yet.
    #[inline]
    pub const fn obligation(&self) -> Flush<'t, T> {
        Flush::none(*self)
    }
}
