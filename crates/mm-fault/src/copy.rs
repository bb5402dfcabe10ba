//! Copy on write.

use crate::FaultOutcome;
use crate::dispatch::{E, Fault};
use core::num::NonZeroU32;
use mm_arch::{Entry, Level, Pfn};
use mm_folio::{Exclusivity, Folio, FolioFlags, FolioRef, FolioRun, FrameBytes, Get};
use mm_pgtable::LockedTable;
use mm_rmap::RmapPlatform;
use mm_vma::{RssKind, free_swap_cache, mlock_mapped, munlock_unmapped};

impl<'f, 'm, P: RmapPlatform> Fault<'f, 'm, P> {
    /// Gives the mapping its own page with the content of the one that `seen`
    /// maps: `old`, or the zero page. Always a single page, however large the
    /// old folio is (rules FAULT-12..14).
    pub(crate) fn copy(
        &self,
        table: LockedTable<'f, P>,
        seen: E<P>,
        old: Option<Folio<'m, P>>,
    ) -> FaultOutcome {
        // Keeps the source while the lock is not held.
        let own = match old.map(|old| old.grab::<Get>(1)).transpose() {
            Ok(own) => own,
            // The count is at its limit.
            Err(_) => return FaultOutcome::Oom,
        };
        drop(table);

        let source = seen.pfn(Level::Pte);
        let Ok(anon) = self.prepare_anon() else { return FaultOutcome::Oom };
        let Ok(new) = self.memmap().alloc(0) else { return FaultOutcome::Oom };
        let page = new.folio().head();
        let bytes = self.mm().platform().bytes();
        match &own {
            Some(_) => bytes.copy(page, source),
            None => bytes.zero(page, 1),
        }
        self.set_up(new.folio(), anon, self.va);

        // Somebody else may have resolved the fault, or changed the page behind
        // it. Both references go when this returns.
        let Some(table) = self.lock_table() else { return FaultOutcome::MINOR };
        let unchanged = table.get(table.index_of(self.va)) == seen;
        if !unchanged && !mm_sync::mutant!("fault.copy.no_recheck") {
            return FaultOutcome::MINOR;
        }
        self.replace(table, seen, new, own, source);
        FaultOutcome::MINOR
    }

    /// Puts `new` in the place of the page at `source` (rule FAULT-13).
    fn replace(
        &self,
        mut table: LockedTable<'f, P>,
        seen: E<P>,
        new: FolioRef<'m, P, Get>,
        own: Option<FolioRef<'m, P, Get>>,
        source: Pfn,
    ) {
        let (mm, index) = (self.mm(), table.index_of(self.va));
        // No CPU may read the old page any more once its mapping is given up:
        // another address space may then find itself alone with it, and write
        // (race F-RACE-23).
        let mut owed = self.tables().tlb().obligation();
        table.take(index, &mut owed);
        if mm_sync::mutant!("fault.copy.no_flush") {
            owed.already_done();
        } else {
            owed.now();
        }

        let folio = new.folio();
        folio.add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
        folio.enlist();
        mlock_mapped(self.vma.flags(), folio, 1);
        table.set(index, self.copied_entry(folio.head(), seen));
        new.hand_over();

        match own {
            None => mm.counters().add(RssKind::Anon, 1),
            Some(mut own) => {
                let old = own.folio();
                if !old.is_anon() {
                    mm.counters().sub(RssKind::of(old), 1);
                    mm.counters().add(RssKind::Anon, 1);
                }
                let first = old.index_of(source);
                old.remove_ptes(first, NonZeroU32::MIN, mm.id());
                munlock_unmapped(self.vma.flags(), old);
                drop(table);
                let mapping = self.memmap().adopt_run(FolioRun::new(old.head(), first, 1));
                if old.has(FolioFlags::SWAPCACHE) {
                    // It may have been the last one to want it.
                    drop(mapping);
                    free_swap_cache(mm.platform(), old);
                    return;
                }
                // The mapping's reference goes with the own one, in one step.
                let merged = own.merge(mapping);
                debug_assert!(merged.is_ok(), "both are of the old folio");
            }
        }
    }
}
