//! Flushes put off over many folios, and what waits for them.

use core::fmt;
use mm_arch::{Flush, Tlb};
use mm_folio::{FolioRef, Get};
use mm_pgtable::{PageFate, TableSpace};
use mm_vma::{Mm, Platform};

/// Folios that wait at the same time.
const WAITING: usize = 32;

/// The flushes that one pass of reclaim put off (rules TLBB-01, TLBB-05).
///
/// Unmapping hands its flushes over, and one [`flush`](Self::flush) makes them all. It
/// comes before a page is given away ([`free`](Self::free) sees to that), before
/// an unmapped folio is frozen, and, if an entry was dirty, before anybody may write the
/// page out ([`flush_dirty`](Self::flush_dirty)): until then a CPU may store to it unseen
/// (rule TLBB-06). Dropping this flushes.
pub struct FlushBatch<'p, P: Platform> {
    platform: &'p P,
    outstanding: bool,
    of_dirty: bool,
    waiting: [Option<FolioRef<'p, P, Get>>; WAITING],
    nr: usize,
}

impl<'p, P: Platform> FlushBatch<'p, P> {
    /// Nothing is outstanding.
    pub fn new(platform: &'p P) -> Self {
        let waiting = [const { None }; WAITING];
        FlushBatch { platform, outstanding: false, of_dirty: false, waiting, nr: 0 }
    }
    /// The kernel.
    pub fn platform(&self) -> &'p P {
        self.platform
    }
    /// Whether a flush is outstanding.
    pub fn is_outstanding(&self) -> bool {
        self.outstanding
    }
    /// Puts off what entries of one table are owed, which `pages` may come back to; the table is
    /// locked. `dirty` says whether one of them was.
    pub(crate) fn put_off(
        &mut self,
        mm: &Mm<P>,
        owed: Flush<'_, <P as TableSpace>::Tlb>,
        pages: PageFate,
        dirty: bool,
    ) {
        if mm.tables().put_off(owed, pages) {
            self.outstanding = true;
            self.of_dirty |= dirty;
        }
    }
    /// Makes all flushes.
    pub fn flush(&mut self) {
        if self.outstanding {
            self.platform.tlb().flush_deferred();
        }
        (self.outstanding, self.of_dirty) = (false, false);
    }
    /// Makes all flushes if a CPU may still store through an entry that is gone. Dirty
    /// entries decide, not writable ones: a CPU that has only loaded through a
    /// translation looks at the entry again before its first store (rule TLBB-03).
    pub fn flush_dirty(&mut self) {
        if self.of_dirty {
            self.flush();
        }
    }
    /// Gives a reference back behind the flush: what may be the last one of a folio
    /// that was unmapped.
    pub fn free(&mut self, own: FolioRef<'p, P, Get>) {
        if mm_sync::mutant!("reclaim.free_before_flush") {
            return drop(own);
        }
        if self.nr == WAITING {
            self.finish();
        }
        self.waiting[self.nr] = Some(own);
        self.nr += 1;
    }
    /// Flushes, and gives back what waits for that (rule RECL-10).
    pub fn finish(&mut self) {
        self.flush();
        for own in &mut self.waiting[..self.nr] {
            *own = None;
        }
        self.nr = 0;
    }
}

impl<P: Platform> Drop for FlushBatch<'_, P> {
    fn drop(&mut self) {
        self.finish();
    }
}

impl<P: Platform> fmt::Debug for FlushBatch<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlushBatch")
            .field("outstanding", &self.outstanding)
            .field("of_dirty", &self.of_dirty)
            .field("waiting", &self.nr)
            .finish_non_exhaustive()
    }
}
