//! Entries that were made inaccessible to see who uses them.

use crate::dispatch::{E, Fault};
use mm_arch::{Entry, Level};
use mm_folio::Folio;
use mm_pgtable::{LockedPmd, LockedTable};
use mm_rmap::RmapPlatform;
use mm_vma::can_change_writable;

impl<'f, P: RmapPlatform> Fault<'f, '_, P> {
    /// Gives the entry the rights of the mapping back (rules NUMA-01, NUMA-03).
    /// Pages stay where they are: placement is not this crate's business.
    pub(crate) fn restore_hinted(&self, table: &mut LockedTable<'f, P>, seen: E<P>) {
        let exclusive = self.counted_folio(seen).is_some_and(|folio| {
            Folio::is_anon(&folio) && self.memmap().page_exclusive(seen.pfn(Level::Pte))
        });
        let page = table.single(table.index_of(self.va));
        // More permissive than before: no flush.
        let mut owed = self.tables().tlb().obligation();
        table.modify(page, &mut owed, |old| self.accessible(old, Level::Pte, exclusive));
    }

    /// The same for a PMD leaf.
    pub(crate) fn restore_hinted_pmd(&self, pmd: &mut LockedPmd<'f, P>, seen: E<P>) {
        let head = seen.pfn(Level::Pmd);
        let map = self.memmap();
        let exclusive = map.contains(head) && map.folio(head).is_anon() && map.page_exclusive(head);
        let mut owed = self.tables().tlb().obligation();
        // Hardware does not touch an inaccessible entry: what was seen is all
        // there is to keep.
        pmd.swap(self.accessible(seen, Level::Pmd, exclusive), &mut owed);
    }

    /// `old` with the rights of the mapping, decided for this entry alone.
    fn accessible(&self, old: E<P>, level: Level, exclusive: bool) -> E<P> {
        let new = old.modify(self.prot(), level).mkyoung();
        let may_write = self.vma.wants_write_upgrade()
            && can_change_writable::<P::Arch>(self.vma, new, level, exclusive);
        if may_write { new.mkwrite(self.vma.write_kind()) } else { new }
    }
}
