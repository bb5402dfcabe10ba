//! Flush obligations.

use crate::{FlushScope, SpaceId, SpaceTlb, Tlb, VirtRange};

/// The duty to flush what a permission change left in translation caches.
///
/// Every operation that narrows what an entry allows returns one, or adds to
/// one. Dropping it flushes: forgetting is at worst slow. Frames and tables
/// that the entries named stay parked until it is gone.
#[must_use = "stale translations live until the obligation is met"]
pub struct Flush<'t, T: Tlb + ?Sized> {
    tlb: SpaceTlb<'t, T>,
    range: Option<VirtRange>,
    scope: FlushScope,
}

impl<'t, T: Tlb + ?Sized> Flush<'t, T> {
    /// No duty yet.
    #[inline]
    pub const fn none(tlb: SpaceTlb<'t, T>) -> Self {
        Flush { tlb, range: None, scope: FlushScope::Leaves }
    }
    /// Adds `range` to the duty.
    #[inline]
    pub fn add(&mut self, range: VirtRange, scope: FlushScope) {
        self.range = Some(self.range.map_or(range, |r| r.hull(range)));
        self.scope = self.scope.max(scope);
    }
    /// The address space that it is about.
    #[inline]
    pub const fn space(&self) -> SpaceId {
        self.tlb.space()
    }
    /// What must be flushed.
    #[inline]
    pub const fn range(&self) -> Option<VirtRange> {
        self.range
    }
    /// What else than leaf translations is to be dropped.
    #[inline]
    pub const fn scope(&self) -> FlushScope {
        self.scope
    }
    /// Whether there is nothing to flush.
    #[inline]
    pub const fn is_none(&self) -> bool {
        self.range.is_none()
    }
    /// Flushes now.
    #[inline]
    pub fn now(mut self) {
        self.pay();
    }
    /// Hands the duty to the deferred-flush record of this CPU.
    #[inline]
    pub fn later(mut self) {
        if self.scope == FlushScope::Leaves
            && let Some(range) = self.range.take()
        {
            self.tlb.defer(range);
        }
        // A table is never left to a deferred flush: dropping pays.
    }
    /// Flushes what is owed and keeps the obligation for more.
    #[inline]
    pub fn pay(&mut self) {
        if let Some(range) = self.range.take() {
            self.tlb.flush(range, self.scope);
            self.scope = FlushScope::Leaves;
        }
    }
    /// Declares that something wider already flushed the range.
    ///
    /// Only for a caller that flushed the whole address space since the last
    /// change.
    #[inline]
    pub fn already_done(mut self) {
        self.range = None;
    }
}

impl<T: Tlb + ?Sized> Drop for Flush<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.pay();
    }
}

impl<T: Tlb + ?Sized> core::fmt::Debug for Flush<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Flush").field("range", &self.range).field("scope", &self.scope).finish()
    }
}

// A duty is met once.
static_assertions::assert_not_impl_any!(Flush<'static, dyn Tlb>: Clone);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VirtAddr;
    use mm_sync::stat::Counter;

    struct Count(Counter, Counter);
    impl Tlb for Count {
        fn flush_range(&self, _: SpaceId, r: VirtRange, _: FlushScope) {
            self.0.add(r.bytes());
        }
        fn flush_space(&self, _: SpaceId) {}
        fn defer_range(&self, _: SpaceId, r: VirtRange) {
            self.1.add(r.bytes());
        }
        fn flush_deferred(&self) {}
    }
    fn page(k: u64) -> VirtRange {
        VirtRange::units(VirtAddr::new(k << 12), 1, 12).expect("range")
    }

    #[test]
    fn dropping_an_obligation_flushes_its_hull_once() {
        let tlb = Count(Counter::new(), Counter::new());
        let mut f = SpaceTlb::new(&tlb, SpaceId(1)).obligation();
        f.add(page(1), FlushScope::Leaves);
        f.add(page(3), FlushScope::Leaves);
        drop(f);
        assert_eq!(tlb.0.get(), 3 << 12);
        let f = SpaceTlb::new(&tlb, SpaceId(1)).obligation();
        assert!(f.is_none());
        drop(f);
        assert_eq!(tlb.0.get(), 3 << 12);
    }

    #[test]
    fn a_table_flush_is_never_deferred() {
        let tlb = Count(Counter::new(), Counter::new());
        let mut f = SpaceTlb::new(&tlb, SpaceId(1)).obligation();
        f.add(page(1), FlushScope::Leaves);
        f.later();
        assert_eq!((tlb.0.get(), tlb.1.get()), (0, 1 << 12));
        let mut f = SpaceTlb::new(&tlb, SpaceId(1)).obligation();
        f.add(page(1), FlushScope::Tables);
        f.later();
        assert_eq!((tlb.0.get(), tlb.1.get()), (1 << 12, 1 << 12));
    }
}
