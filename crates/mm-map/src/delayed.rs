//! Mappings of dirty file pages, removed behind the flush.

use crate::entry::{FolioGather, Unmapped};
use core::num::NonZeroU32;
use mm_rmap::RmapPlatform;
use mm_vma::Mm;

/// Runs that wait at the same time.
const WAITING: usize = 16;

/// A run whose entries are gone and whose mapping is not.
struct Waiting<'m, P: RmapPlatform> {
    refs: Unmapped<'m, P>,
    first: u32,
}

/// Runs of dirty file pages whose entries were taken under the table lock. Their
/// mappings are removed after a flush, and under the same lock (rule ZAP-04):
/// whoever cleans the page finds the mapping, and waits for the lock, as long as a
/// CPU could store to the page without a new look at the entry.
pub(crate) struct Delayed<'m, P: RmapPlatform> {
    mm: &'m Mm<P>,
    runs: [Option<Waiting<'m, P>>; WAITING],
    nr: usize,
}

impl<'m, P: RmapPlatform> Delayed<'m, P> {
    pub fn new(mm: &'m Mm<P>) -> Self {
        Delayed { mm, runs: [const { None }; WAITING], nr: 0 }
    }
    /// Adds the pages from `first` on whose references are `refs`.
    pub fn push(&mut self, refs: Unmapped<'m, P>, first: u32, gather: &mut FolioGather<'m, P>) {
        if self.nr == WAITING {
            self.settle(gather);
        }
        self.runs[self.nr] = Some(Waiting { refs, first });
        self.nr += 1;
    }
    /// Flushes, removes the mappings, and parks the references.
    pub fn settle(&mut self, gather: &mut FolioGather<'m, P>) {
        if self.nr == 0 {
            return;
        }
        gather.owed().pay();
        for run in &mut self.runs[..self.nr] {
            if let Some(Waiting { refs, first }) = run.take()
                && let Some(n) = NonZeroU32::new(refs.n())
            {
                refs.folio().remove_ptes(first, n, self.mm.id());
                gather.park(refs);
            }
        }
        self.nr = 0;
    }
}
