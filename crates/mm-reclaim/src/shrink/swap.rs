//! Folios on their way to a swap device: anonymous ones, whose entries say where they are,
//! and those of shared memory, whose object does.

use super::{Pass, Verdict, is_last};
use crate::{ReclaimPlatform, UnmapPolicy};
use mm_folio::{Folio, FolioFlags, FolioLockGuard, FolioRef, Get};
use mm_rmap::{Batching, SplitFolio, split_anon_folio};
use mm_vma::{Event, Observer, SwapError, SwapSpace, write_folio};

impl<'p, P: ReclaimPlatform> Pass<'_, '_, 'p, P> {
    /// A place on a device for a folio that has none (rule RECL-04). It is dirty then,
    /// whatever its entries say: nothing of it is on the device.
    pub(super) fn place(&mut self, locked: &FolioLockGuard<'p, P>) -> Result<(), Verdict> {
        let folio = locked.folio();
        if folio.maybe_dma_pinned() {
            return Err(Verdict::Keep);
        }
        if folio.is_large() {
            let held = i64::from(folio.refcount()) != i64::from(folio.mapcount()) + 1;
            if held {
                return Err(Verdict::Activate);
            }
            // Pages that nothing maps are not worth writing.
            if folio.has(FolioFlags::PARTIALLY_MAPPED) {
                return Err(Verdict::Split);
            }
        }
        match self.platform.swap().slots().add(locked) {
            Ok(_) => Ok(()),
            Err(SwapError::Full | SwapError::TooLarge) if folio.is_large() => {
                let observer = self.platform.observer();
                observer.event(Event::SwapOutFallback, folio.order().into());
                Err(Verdict::Split)
            }
            Err(_) => Err(Verdict::Activate),
        }
    }

    /// Whether shared memory that nothing maps is in the swap cache now.
    pub(super) fn moved_to_swap(&self, folio: Folio<'p, P>) -> bool {
        let Some((id, index)) = folio.file() else { return false };
        folio.has(FolioFlags::SWAPBACKED | FolioFlags::DIRTY)
            && self.platform.object(id).is_some_and(|object| object.move_to_swap(index))
    }

    /// Writes an unmapped folio of the swap cache and gives it up (rules RECL-07,
    /// RECL-08).
    pub(super) fn write_and_evict(&mut self, locked: &FolioLockGuard<'p, P>) -> Verdict {
        let folio = locked.folio();
        // Nobody wants it any more: whoever took the last entry off its slots found it locked,
        // and left it (rules SWAP-03, SWAP-04).
        if self.platform.swap().slots().free(locked) {
            return if is_last(folio) { Verdict::Freed } else { Verdict::Keep };
        }
        if folio.has(FolioFlags::DIRTY) {
            // Who holds it may store to it behind the write.
            if folio.refcount() != folio.nr_pages() as i32 + 1 {
                return Verdict::Keep;
            }
            if write_folio(self.platform, locked).is_err() {
                return Verdict::Activate;
            }
        }
        if self.platform.swap().slots().evict(locked) { Verdict::Freed } else { Verdict::Keep }
    }

    /// A folio that stays does not keep its place if places are wanted, or if it can never
    /// go (rule RECL-11).
    pub(super) fn give_place_up(&self, locked: &FolioLockGuard<'p, P>) {
        let (folio, slots) = (locked.folio(), self.platform.swap().slots());
        if folio.has(FolioFlags::SWAPCACHE)
            && (folio.has(FolioFlags::MLOCKED) || slots.is_nearly_full())
        {
            slots.free(locked);
        }
    }

    /// Splits a folio and goes on with its pages, one by one (rule RECL-05). Whether it did;
    /// otherwise the folio is as it was.
    pub(super) fn split(
        &mut self,
        locked: FolioLockGuard<'p, P>,
        own: FolioRef<'p, P, Get>,
    ) -> Result<(), FolioRef<'p, P, Get>> {
        let (folio, map) = (own.folio(), own.folio().memmap());
        let pages = folio.nr_pages();
        let batching = match self.shrink.policy {
            UnmapPolicy::All => Batching::Batched,
            // Kernels suspend page by page (rule MIGR-01).
            _ => Batching::PerPage,
        };
        let head = folio.head();
        let whole = SplitFolio { locked, own };
        let (SplitFolio { locked, own }, done) =
            split_anon_folio(self.platform, map, whole, 0, 0, batching);
        drop(locked);
        if done.is_err() {
            return Err(own);
        }
        // They are looked at one by one: not twice.
        self.sum.scanned -= u64::from(pages);
        self.folio(own);
        for page in 1..pages {
            // Isolated with the whole; one that nothing mapped is gone.
            if let Some(own) = map.try_grab::<Get>(head.add(page.into()), 1)
                && is_page_of_ours(own.folio())
            {
                self.folio(own);
            }
        }
        Ok(())
    }
}

/// Whether a page is still what the split made of it, and on no list.
fn is_page_of_ours<P: ReclaimPlatform>(folio: Folio<'_, P>) -> bool {
    folio.is_anon() && !folio.is_large() && !folio.has(FolioFlags::LRU)
}
