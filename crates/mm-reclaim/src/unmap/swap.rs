//! Anonymous memory that goes to swap.
//!
//! The folio is in the swap cache, and dirty if its slots do not have what its pages have.
//! What becomes of its entries is the business of [`swap_out_ptes`]; it does not differ
//! between one entry and a run.

use super::decide;
use super::{Kept, Step, Unmap};
use crate::policy::Strategy;
use core::num::NonZeroU32;
use mm_arch::SwapSlot;
use mm_pgtable::PageFate;
use mm_rmap::{PteHit, RmapPlatform, SwapOutError, Visit, swap_out_ptes};
use mm_vma::{Event, Mm, Observer};

impl<P: RmapPlatform> Unmap<'_, '_, '_, P> {
    /// Makes swap entries of the run that starts at a hit (rule UNMAP-19). Where a page
    /// cannot go the run ends, and with it the unmapping.
    pub(super) fn swap_out<B: Strategy>(
        &mut self,
        mm: &Mm<P>,
        visit: &Visit<'_>,
        at: PteHit<'_, '_, P>,
        slot: SwapSlot,
    ) -> Step {
        let (folio, page) = (self.folio, at.page);
        let run = decide::run::<B, P>(folio, &at, visit, self.flags, mm.platform().observer());
        let mut owed = mm.tables().tlb().obligation();
        let done = swap_out_ptes(mm, at.table, folio, slot, page, run, &mut owed);
        let observer = mm.platform().observer();
        observer.event(Event::UnmapClears, done.clears as u64);
        if done.singly > 0 && B::LAZYFREE && folio.is_large() {
            observer.event(Event::UnmapSingleFullSlot, done.singly as u64);
        }
        // Also for what is back: a CPU may have what it was before.
        self.flush(mm, owed, PageFate::Kept, done.dirty);
        let gone = NonZeroU32::new(done.nr as u32).map(|n| self.finish(mm, page, n));
        match (done.stopped, gone) {
            (Some(SwapOutError::MaybePinned), _) => Step::Keep(Kept::Referenced),
            (Some(SwapOutError::TooManyEntries | SwapOutError::NoEncoding), _) | (None, None) => {
                Step::Keep(Kept::NoSwap)
            }
            (None, Some(step)) => step,
        }
    }
}
