//! A store, or an unshare, met a read-only entry.

use crate::dispatch::{E, Fault};
use crate::reuse::{self, Change, Exclusive, Place, Widening};
use crate::{FaultOutcome, ReusePolicy, UnshareReuse, UserFault};
use mm_arch::{Entry, FlushScope, Level};
use mm_folio::Folio;
use mm_pgtable::LockedTable;
use mm_rmap::RmapPlatform;
use mm_vma::{Event, VmaFlags};

impl<'f, 'm, P: RmapPlatform> Fault<'f, 'm, P> {
    /// Decides between reuse and copy (rules FAULT-07..11). `table` is locked
    /// and its entry is `e`.
    pub(crate) fn write_protected(&self, mut table: LockedTable<'f, P>, e: E<P>) -> FaultOutcome {
        if self.asks_before_store(e) {
            return self.user_fault(UserFault::Wp);
        }
        let e = self.drop_uffd_wp(&mut table, e);
        if self.vma.flags().contains(VmaFlags::SHARED) {
            return self.shared_write_protected(table, e);
        }
        let folio = self.counted_folio(e);
        if let Some(folio) = folio
            && folio.is_anon()
            && self.becomes_exclusive(&mut table, folio, e)
        {
            // An unshared page stays read-only.
            if self.access.is_write() {
                self.reuse(table, e);
            }
            return FaultOutcome::MINOR;
        }
        // A CPU may still have a translation from before a write protection,
        // whose flush is on its way, and store by it into what is copied (rule
        // FAULT-08, race F-RACE-28).
        if self.vma.flags().contains(VmaFlags::UFFD_WP)
            && let Some(page) = self.page()
        {
            self.tables().tlb().flush(page, FlushScope::Leaves);
        }
        self.copy(table, e, folio)
    }

    /// A store through a write protection that nobody waits for: the
    /// asynchronous mode, or a mapping that is not registered. The store ends it
    /// (rule FAULT-07). Unsharing leaves it alone.
    fn drop_uffd_wp(&self, table: &mut LockedTable<'f, P>, e: E<P>) -> E<P> {
        if !self.access.is_write() || !e.is_uffd_wp() {
            return e;
        }
        let index = table.index_of(self.va);
        let page = table.single(index);
        // Nothing becomes less permissive: no flush.
        let mut owed = self.tables().tlb().obligation();
        table.modify(page, &mut owed, |old| old.clear_uffd_wp());
        table.get(index)
    }

    /// Whether the page of `e` is exclusive to this mapping, or can be proven
    /// to be; it is marked then (rule FAULT-10).
    fn becomes_exclusive(
        &self,
        table: &mut LockedTable<'f, P>,
        folio: Folio<'m, P>,
        e: E<P>,
    ) -> bool {
        let pfn = e.pfn(Level::Pte);
        // Without any further question: such a page may be pinned, and a copy
        // would take it away from the pin.
        if self.memmap().page_exclusive(pfn) {
            return true;
        }
        if !folio.is_large() {
            return reuse::claim_small(self.mm().platform(), folio, self.vma.anon());
        }
        let Some(verdict) = Exclusive::judge(table, folio, self.mm()) else { return false };
        // Only here: a page that was exclusive already says nothing about its
        // neighbours (rule WREUSE-01).
        match self.reach() {
            None => verdict.mark_page(pfn),
            Some(how) => {
                let place = Place { vma: self.vma, va: self.va, pfn };
                let widened = verdict.widen(&place, how);
                self.event(Event::EntriesWidened, widened);
            }
        }
        true
    }

    /// How far a verdict is used beyond the page of the fault, and what for.
    fn reach(&self) -> Option<Widening> {
        let worth = self.policy.entries_per_fault;
        if !self.access.is_write() {
            let table = self.policy.unshare == UnshareReuse::Table;
            let reach = ReusePolicy::Table;
            return table.then_some(Widening { reach, worth, change: Change::MarkOnly });
        }
        // A forced store says nothing about the mapping (rule WREUSE-18).
        let reach = self.policy.reuse;
        let wide = reach != ReusePolicy::Page && self.vma.flags().contains(VmaFlags::WRITE);
        wide.then_some(Widening { reach, worth, change: Change::Writable })
    }

    /// Lets the store through in place (rule FAULT-11).
    pub(crate) fn reuse(&self, mut table: LockedTable<'f, P>, e: E<P>) {
        let index = table.index_of(self.va);
        // Releasing: who finds the entry writable finds the page marked
        // exclusive (rule WREUSE-08).
        table.set_access_flags(index, self.maybe_mkwrite(e.mkyoung().mkdirty()));
        drop(table);
        self.event(Event::PagesReused, 1);
    }
}
