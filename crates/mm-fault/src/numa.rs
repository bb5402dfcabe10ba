//! Entries that were made inaccessible to see who uses them.
//!
//! The access that meets one gives the rights back to all entries of the folio around it:
//! one access tells as much about the folio as many. If the folio lies badly it moves
//! first, and with its mappings the hints are gone. One that cannot move stays, and its
//! entries come back without write permission: while no lock was held, the page may have
//! become somebody else's as well (rule NUMA-01).

use crate::FaultOutcome;
use crate::dispatch::{E, Fault};
use mm_arch::respect::{DIRTY, SOFT_DIRTY, WRITE};
use mm_arch::{Entry, Level};
use mm_folio::{Folio, FolioFlags, Get};
use mm_pgtable::{Block, LockedPmd, LockedTable, Window, WindowRequest};
use mm_rmap::{Batching, RmapPlatform};
use mm_vma::{Event, VmaFlags, can_change_writable};

/// Whether entries that become accessible may become writable as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Upgrade {
    /// Each by what it is.
    Decide,
    /// None: a store finds out.
    No,
}

impl<'f, 'm, P: RmapPlatform> Fault<'f, 'm, P> {
    /// An access to the entry `seen` of the locked table (rules NUMA-01..03).
    pub(crate) fn hinted(&self, mut table: LockedTable<'f, P>, seen: E<P>) -> FaultOutcome {
        self.event(Event::HintFaults, 1);
        let folio = self.counted_folio(seen);
        let mut upgrade = Upgrade::Decide;
        if let Some(folio) = folio.filter(|folio| self.could_move(*folio)) {
            // Keeps the folio; one more would make it look used.
            let Ok(own) = folio.grab::<Get>(1) else { return FaultOutcome::MINOR };
            drop(table);
            if self.moves(own) {
                return FaultOutcome::MINOR;
            }
            match self.lock_table().filter(|table| table.get(table.index_of(self.va)) == seen) {
                Some(again) => table = again,
                None => return FaultOutcome::MINOR,
            }
            upgrade = Upgrade::No;
        }
        match folio {
            Some(folio) => self.restore_window(&mut table, folio, seen, upgrade),
            None => {
                let index = table.index_of(self.va);
                self.restore(&mut table, index, 1, false, upgrade);
            }
        }
        FaultOutcome::MINOR
    }

    /// The same for a leaf.
    pub(crate) fn hinted_pmd(&self, mut pmd: LockedPmd<'f, P>, seen: E<P>) -> FaultOutcome {
        self.event(Event::HintFaults, 1);
        let (head, map) = (seen.pfn(Level::Pmd), self.memmap());
        let counted = map.contains(head) && !map.is_huge_zero(head);
        let folio = counted.then(|| map.folio(head));
        let mut upgrade = Upgrade::Decide;
        if let Some(folio) = folio.filter(|folio| self.could_move(*folio)) {
            let Ok(own) = folio.grab::<Get>(1) else { return FaultOutcome::MINOR };
            drop(pmd);
            if self.moves(own) {
                return FaultOutcome::MINOR;
            }
            match self.lock_huge().filter(|pmd| pmd.entry() == seen) {
                Some(again) => pmd = again,
                None => return FaultOutcome::MINOR,
            }
            upgrade = Upgrade::No;
        }
        let exclusive = folio.is_some_and(|f| f.is_anon()) && map.page_exclusive(head);
        let mut owed = self.tables().tlb().obligation();
        // Hardware does not touch an inaccessible entry: what was seen is all
        // there is to keep.
        pmd.swap(self.accessible(seen, Level::Pmd, exclusive, upgrade), &mut owed);
        self.event(Event::HintsRestored, 1);
        FaultOutcome::MINOR
    }

    /// Whether the folio should move, and nothing speaks against it at once: it is on a
    /// list, so nobody has isolated it; a file's is not dirty, which would have to wait for
    /// the device, and not code that others run as well (rule NUMA-04).
    fn could_move(&self, folio: Folio<'m, P>) -> bool {
        let platform = self.mm().platform();
        let shared_code = self.vma.flags().contains(VmaFlags::EXEC) && folio.maybe_mapped_shared();
        let of_file = !folio.is_anon() && !folio.has(FolioFlags::SWAPBACKED);
        folio.has(FolioFlags::LRU)
            && !(of_file && (shared_code || folio.has(FolioFlags::DIRTY)))
            && platform.is_misplaced(folio)
    }
    /// Moves it, without any table lock; whether it did. `own` is given back.
    fn moves(&self, own: mm_folio::FolioRef<'m, P, Get>) -> bool {
        let nr = own.folio().nr_pages();
        let moved = self.mm().platform().move_misplaced(&own, self.policy.hints).is_ok();
        if moved {
            self.event(Event::HintsMoved, u64::from(nr));
        }
        moved
    }

    /// Gives the entries back that the table has of the folio around the fault, in the
    /// mapping (rule NUMA-02).
    fn restore_window(
        &self,
        table: &mut LockedTable<'f, P>,
        folio: Folio<'m, P>,
        seen: E<P>,
        upgrade: Upgrade,
    ) {
        let at = table.index_of(self.va);
        let window = Window::of::<P::Arch>(&WindowRequest {
            va: self.va,
            index: folio.index_of(seen.pfn(Level::Pte)) as usize,
            folio_pages: folio.nr_pages() as usize,
            vma: self.vma.range(),
            block: Block::Table,
        });
        let (mut index, end) = (at - window.before, at + window.after);
        while index < end {
            let e = table.get(index);
            // Another page of the folio than belongs there is one of its pages as well.
            let hint = e.is_present(Level::Pte) && e.is_protnone(Level::Pte);
            if !hint || self.counted_folio(e) != Some(folio) {
                index += 1;
                continue;
            }
            let first = folio.index_of(e.pfn(Level::Pte));
            let left = (end - index).min((folio.nr_pages() - first) as usize);
            let (exclusive, alike) = folio.alike_exclusive(first, left);
            let exclusive = exclusive && folio.is_anon();
            let nr = match self.policy.hints {
                Batching::PerPage => 1,
                Batching::Batched => {
                    let limit = table.limit(index).at_most(alike);
                    // Equal in all that decides, and in dirt, which stays where it is
                    // (rule NUMA-03).
                    table.run::<{ WRITE | SOFT_DIRTY | DIRTY }>(index, e, limit).nr()
                }
            };
            self.restore(table, index, nr, exclusive, upgrade);
            index += nr;
        }
    }
    /// Gives `nr` equal entries from `index` on the rights of the mapping back.
    fn restore(
        &self,
        table: &mut LockedTable<'f, P>,
        index: usize,
        nr: usize,
        exclusive: bool,
        upgrade: Upgrade,
    ) {
        let limit = table.limit(index).at_most(nr);
        let run = table.run::<{ WRITE | SOFT_DIRTY | DIRTY }>(index, table.get(index), limit);
        // More permissive than before: no flush.
        table.upgrade(run, |old| self.accessible(old, Level::Pte, exclusive, upgrade));
        self.event(Event::HintsRestored, 1);
    }

    /// `old` with the rights of the mapping.
    fn accessible(&self, old: E<P>, level: Level, exclusive: bool, upgrade: Upgrade) -> E<P> {
        let new = old.modify(self.prot(), level).mkyoung();
        let may_write = upgrade == Upgrade::Decide
            && self.vma.wants_write_upgrade()
            && can_change_writable::<P::Arch>(self.vma, new, level, exclusive);
        if may_write { new.mkwrite(self.vma.write_kind()) } else { new }
    }
}
