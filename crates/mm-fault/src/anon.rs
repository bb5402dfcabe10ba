//! Missing pages of anonymous memory.

use crate::FaultOutcome;
use crate::dispatch::{E, Fault};
use mm_arch::{Arch, Entry, Level, VirtAddr};
use mm_folio::{AllocError, AnonId, Exclusivity, Folio, FolioFlags, FolioRef, FrameBytes, Get};
use mm_rmap::RmapPlatform;
use mm_vma::{Event, RssKind, VmaFlags, mlock_mapped};

impl<'m, P: RmapPlatform> Fault<'_, 'm, P> {
    /// The entry was `seen`, empty or a marker of userfaultfd, and its table is
    /// there.
    pub(crate) fn anonymous(&self, seen: E<P>) -> FaultOutcome {
        if self.access.is_write() { self.map_new_pages(seen) } else { self.map_zero_page(seen) }
    }

    /// Maps a new folio, the largest that policy, mapping and table have room
    /// for (rule ANON-03).
    fn map_new_pages(&self, seen: E<P>) -> FaultOutcome {
        let Ok(anon) = self.prepare_anon() else { return FaultOutcome::Oom };
        let Ok((mut new, start)) = self.alloc_missing() else { return FaultOutcome::Oom };
        let folio = new.folio();
        let nr = folio.nr_pages();
        self.mm().platform().bytes().zero(folio.head(), u64::from(nr));
        self.set_up(folio, anon, start);
        let entry = self.maybe_dirty(E::<P>::leaf(folio.head(), self.prot(), Level::Pte).mkyoung());
        let entry = self.keeping_mark(entry, seen);

        // From here to the end of the block nothing fails: a lost race leaves
        // counters, lists and counts as they were (rule ANON-05).
        let Some(mut table) = self.lock_table() else { return FaultOutcome::MINOR };
        let first = table.index_of(start);
        // All of them: one page may have been mapped since the peek, or an entry
        // be back that was empty while it was changed (rule FAULT-06).
        let wanted = if mm_sync::mutant!("fault.anon.check_own_only") {
            table.get(table.index_of(self.va)).is_none()
        } else if nr == 1 {
            table.get(first) == seen
        } else {
            let limit = table.limit(first).at_most(nr as usize);
            table.none_run(first, limit) == nr as usize
        };
        if !wanted && !mm_sync::mutant!("fault.anon.no_recheck") {
            return FaultOutcome::MINOR;
        }
        if let Some(asked) = self.asks_for_missing() {
            return asked;
        }
        if nr > 1 && new.grow(nr - 1).is_err() {
            return FaultOutcome::Oom;
        }
        table.settle_dropped();
        self.mm().counters().add(RssKind::Anon, u64::from(nr));
        folio.add_new_anon(self.mm().id(), Level::Pte, Exclusivity::Exclusive);
        folio.enlist();
        mlock_mapped(self.vma.flags(), folio, nr);
        // One reference per entry.
        new.hand_over();
        if nr == 1 {
            // Over a marker, maybe.
            table.set(first, entry);
        } else {
            table.fill(first, nr as usize, entry);
        }
        drop(table);
        self.event(Event::AnonFaultAlloc, u64::from(folio.order()));
        FaultOutcome::MINOR
    }

    /// A folio for the missing page, and the first address it maps; falls back
    /// order by order.
    fn alloc_missing(&self) -> Result<(FolioRef<'m, P, Get>, VirtAddr), AllocError> {
        for order in self.candidates().descending() {
            let Some(block) = self.block(order) else { continue };
            if let Ok(folio) = self.alloc_large(order) {
                return Ok((folio, block.start()));
            }
            self.event(Event::AnonFaultFallback, u64::from(order));
        }
        Ok((self.memmap().alloc(0)?, self.va))
    }

    /// The reverse-map tree for new pages of the mapping.
    pub(crate) fn prepare_anon(&self) -> Result<AnonId, AllocError> {
        if let Some(anon) = self.vma.anon() {
            return Ok(anon);
        }
        let trees = self.mm().platform().anon_trees();
        if let Some(vmas) = self.vmas {
            return trees.prepare(self.mm(), vmas, self.vma);
        }
        // The neighbours are not locked. Not waited for: who has the mmap lock may wait for
        // this VMA (rule RMAP-21).
        let Some(vmas) = self.mm().try_read() else {
            self.gave_up.set(true);
            return Err(AllocError);
        };
        trees.prepare(self.mm(), &vmas, self.vma)
    }

    /// Makes a filled folio that nobody else knows an anonymous one whose first
    /// page belongs at `start`.
    pub(crate) fn set_up(&self, folio: Folio<'_, P>, anon: AnonId, start: VirtAddr) {
        debug_assert!(start.is_aligned(<P::Arch as Arch>::PAGE_SHIFT));
        let mut flags = FolioFlags::UPTODATE;
        // What may be dropped has no other place to go to (rule FOLIO-40).
        flags.set(FolioFlags::SWAPBACKED, !self.vma.flags().contains(VmaFlags::DROPPABLE));
        folio.set_flag(flags);
        folio.set_anon(anon, self.vma.linear_index(start));
    }

    /// An entry for pages that were just allocated for a store: dirty and
    /// writable, if the mapping allows stores.
    pub(crate) fn maybe_dirty(&self, e: E<P>) -> E<P> {
        if self.vma.flags().contains(VmaFlags::WRITE) {
            // Dirty first: of a shadow-stack entry it takes the write
            // permission away (rule SHSTK-06).
            e.mkdirty().mkwrite(self.vma.write_kind())
        } else {
            e
        }
    }
}
