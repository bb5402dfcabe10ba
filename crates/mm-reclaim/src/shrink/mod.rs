//! One pass over folios that nobody else has on a list.
//!
//! # The protocol
//!
//! Each folio is locked, asked whether it is in use, unmapped, and given back to where
//! its content is kept. Whatever stands in the way ends it with a label: back to its list, or
//! to the active one. What goes is given away behind one flush for many (rule RECL-10).
//!
//! Mapped pages of objects wait, locked, for others, so that neighbours are unmapped in one walk.
//! With [`UnmapPolicy::All`] anonymous memory waits as well: one flush comes before all the writes
//! to swap, as it covers all that was unmapped before (rules TLBB-05, TLBB-06).
//! Each folio lock is tried for: a pass that holds some waits for none.
//!
//! ```text
//!   lock ─► evictable? ─► written out? ─► used? ─► place in swap ─► unmap ─► pinned?
//!     ─► dirty? ─► leaves its object, if nobody else holds it and it is clean ─► freed
//! ```

mod swap;
mod waiting;

use crate::unmap::{UnmapFlags, Unmapped, is_lazyfree, try_to_unmap};
use crate::{FlushBatch, Kept, ReclaimOf, ReclaimPlatform, Referenced, UnmapPolicy, referenced};
use mm_folio::{Folio, FolioFlags, FolioLockGuard, FolioRef, Get};
use mm_vma::{Event, Observer, VmaFlags};
use waiting::Waiting;

/// What a pass may do.
#[derive(Clone, Copy, Debug)]
pub struct Shrink<'g> {
    /// Which entries are handled as runs.
    pub policy: UnmapPolicy,
    /// Whose memory it is about.
    pub of: ReclaimOf<'g>,
    /// Folios that are in use go, too (`MADV_PAGEOUT`).
    pub ignore_references: bool,
    /// Folios may be unmapped; otherwise only those that nothing maps go.
    pub may_unmap: bool,
}

/// What a pass came to, in pages (rule RECL-12).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shrunk {
    /// Looked at.
    pub scanned: u64,
    /// Freed.
    pub reclaimed: u64,
    /// In use, and active from now on.
    pub activated: u64,
    /// Left for the next pass.
    pub kept: u64,
    /// Dirty pages of files: their writer is to free them as soon as they are clean.
    pub immediate: u64,
    /// Not unmapped, in folios.
    pub unmap_failed: u64,
}

/// Where a folio goes from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Freed,
    /// Nobody is to use it again.
    Dropped,
    /// It is to be split, and its pages to be looked at one by one.
    Split,
    Activate,
    Keep,
}

/// Reclaims the folios that `next` hands out one after the other, each with the one
/// reference by which it was isolated (its `LRU` flag is clear), and puts back what stays
/// (rules RECL-01..12). Flushes are made when it returns.
pub fn shrink_folios<'p, P: ReclaimPlatform>(
    shrink: &Shrink<'_>,
    platform: &'p P,
    mut next: impl FnMut() -> Option<FolioRef<'p, P, Get>>,
) -> Shrunk {
    let mut pass = Pass {
        shrink,
        platform,
        flushes: FlushBatch::new(platform),
        waiting: Waiting::new(),
        sum: Shrunk::default(),
    };
    while let Some(own) = next() {
        pass.folio(own);
    }
    pass.unmap_waiting();
    pass.flushes.finish();
    pass.sum
}

struct Pass<'s, 'g, 'p, P: ReclaimPlatform> {
    shrink: &'s Shrink<'g>,
    platform: &'p P,
    flushes: FlushBatch<'p, P>,
    waiting: Waiting<'p, P>,
    sum: Shrunk,
}

impl<'p, P: ReclaimPlatform> Pass<'_, '_, 'p, P> {
    fn folio(&mut self, own: FolioRef<'p, P, Get>) {
        let folio = own.folio();
        let nr = u64::from(folio.nr_pages());
        self.sum.scanned += nr;
        let Some(locked) = folio.try_lock() else { return self.end(own, Verdict::Keep) };
        match self.before_unmapping(&locked) {
            Err(verdict) => self.unlock(own, locked, verdict),
            Ok(()) if !folio.is_mapped() => self.behind_unmapping(own, locked),
            Ok(()) if self.may_wait(folio) => self.wait(own, locked),
            Ok(()) => {
                let flags = unmap_flags(folio);
                let end = try_to_unmap(self.shrink.policy, &locked, flags, &mut self.flushes);
                self.unmapped(own, locked, end);
            }
        }
    }
    /// Whether a folio waits for others to be unmapped with: pages of objects, and whatever else
    /// there is where it need not be one by one.
    fn may_wait(&self, folio: Folio<'p, P>) -> bool {
        self.shrink.policy == UnmapPolicy::All || folio.file().is_some()
    }
    /// Goes on with a folio that was to be unmapped (rule RECL-06).
    fn unmapped(
        &mut self,
        own: FolioRef<'p, P, Get>,
        locked: FolioLockGuard<'p, P>,
        end: Unmapped,
    ) {
        match end {
            Unmapped::All => self.behind_unmapping(own, locked),
            Unmapped::Kept(why) => {
                // The next pass may find it unmapped, and does not know of this flush.
                self.flushes.flush();
                self.sum.unmap_failed += u64::from(why != Kept::Locked);
                self.unlock(own, locked, Verdict::Activate);
            }
        }
    }
    /// Goes on with a folio that nothing maps.
    fn behind_unmapping(&mut self, own: FolioRef<'p, P, Get>, locked: FolioLockGuard<'p, P>) {
        // From here on another page may come in its place, in the object or from swap: no CPU may go on by
        // what it has cached (INV-9), nor store to what is written (rule TLBB-06, race F-RACE-15). Those
        // that were unmapped together share the flush. Before another page comes for one that was given up,
        // the fault makes it.
        if !is_lazyfree(own.folio()) && !mm_sync::mutant!("reclaim.leave.no_flush") {
            self.flushes.flush();
        }
        let verdict = self.leave(&locked);
        self.unlock(own, locked, verdict);
    }
    /// The verdict on a folio that is still locked.
    fn unlock(
        &mut self,
        own: FolioRef<'p, P, Get>,
        locked: FolioLockGuard<'p, P>,
        verdict: Verdict,
    ) {
        if verdict == Verdict::Split {
            return match self.split(locked, own) {
                Ok(()) => (),
                Err(own) => self.end(own, Verdict::Activate),
            };
        }
        if verdict == Verdict::Activate {
            self.give_place_up(&locked);
        }
        // Until it is unlocked nobody writes it out; a CPU may not store to it
        // unseen after that (rule TLBB-06, race F-RACE-15).
        if own.folio().has(FolioFlags::DIRTY) {
            self.flushes.flush_dirty();
        }
        drop(locked);
        self.end(own, verdict);
    }

    /// Where the folio goes, and what is counted for it.
    fn end(&mut self, own: FolioRef<'p, P, Get>, verdict: Verdict) {
        let folio = own.folio();
        let nr = u64::from(folio.nr_pages());
        match verdict {
            Verdict::Freed => {
                self.sum.reclaimed += nr;
                return self.flushes.free(own);
            }
            Verdict::Dropped => return self.flushes.free(own),
            Verdict::Activate => {
                self.sum.activated += nr;
                // What a memory lock holds is nobody's to age (rule RECL-11).
                if !folio.has(FolioFlags::MLOCKED) {
                    folio.set_flag(FolioFlags::ACTIVE);
                }
            }
            Verdict::Keep | Verdict::Split => self.sum.kept += nr,
        }
        folio.enlist();
    }

    /// Whether a folio may be unmapped. The order of these questions, and of those of
    /// [`leave`](Self::leave) behind them, is that of rule RECL-02.
    fn before_unmapping(&mut self, locked: &FolioLockGuard<'p, P>) -> Result<(), Verdict> {
        let folio = locked.folio();
        if folio.has(FolioFlags::HWPOISON) {
            return Err(self.poisoned(locked));
        }
        if folio.flags().intersects(FolioFlags::UNEVICTABLE | FolioFlags::MLOCKED) {
            return Err(Verdict::Activate);
        }
        if !self.shrink.may_unmap && folio.is_mapped() {
            return Err(Verdict::Keep);
        }
        if folio.has(FolioFlags::WRITEBACK) {
            // Whoever ends it is to free it; nobody waits here (rule RECL-03).
            folio.set_flag(FolioFlags::RECLAIM);
            return Err(Verdict::Activate);
        }
        if !self.shrink.ignore_references
            && let Some(verdict) = self.in_use(locked)
        {
            return Err(verdict);
        }
        let swapbacked = folio.is_anon() && folio.has(FolioFlags::SWAPBACKED);
        if swapbacked && !folio.has(FolioFlags::SWAPCACHE) { self.place(locked) } else { Ok(()) }
    }

    /// Where a folio goes that nothing maps.
    fn leave(&mut self, locked: &FolioLockGuard<'p, P>) -> Verdict {
        let folio = locked.folio();
        // Behind the unmapping: a pin that comes later finds no entry.
        if folio.maybe_dma_pinned() {
            return Verdict::Activate;
        }
        if is_lazyfree(folio) {
            return self.free_lazily(folio);
        }
        if folio.has(FolioFlags::SWAPCACHE) || self.moved_to_swap(folio) {
            return self.write_and_evict(locked);
        }
        if folio.has(FolioFlags::DIRTY) {
            return self.dirty(folio);
        }
        self.release(folio)
    }

    /// A poisoned page leaves its mappings and the lists if it is small.
    fn poisoned(&mut self, locked: &FolioLockGuard<'p, P>) -> Verdict {
        let folio = locked.folio();
        if folio.is_large() {
            return Verdict::Keep;
        }
        let flags = UnmapFlags::IGNORE_MLOCK | UnmapFlags::HWPOISON | UnmapFlags::PUT_OFF_FLUSH;
        let _ = try_to_unmap(self.shrink.policy, locked, flags, &mut self.flushes);
        Verdict::Dropped
    }

    /// What the accessed bits say, if the folio is to stay (rule RECL-01).
    fn in_use(&self, locked: &FolioLockGuard<'p, P>) -> Option<Verdict> {
        let folio = locked.folio();
        let (shrink, platform) = (self.shrink, self.platform);
        match referenced(shrink.policy, platform, locked, shrink.of) {
            Referenced::Locked => Some(Verdict::Activate),
            Referenced::Contended | Referenced::Ending => Some(Verdict::Keep),
            Referenced::By { nr: 0, .. } => {
                // Used by calls only: one more round, unless nothing needs to be written.
                let used = folio.clear_flag(FolioFlags::REFERENCED);
                let file = !folio.has(FolioFlags::SWAPBACKED);
                (used && file && folio.has(FolioFlags::DIRTY)).then_some(Verdict::Keep)
            }
            Referenced::By { nr, vmas } => {
                let again = !folio.set_flag(FolioFlags::REFERENCED);
                let code = vmas.contains(VmaFlags::EXEC) && !folio.has(FolioFlags::SWAPBACKED);
                Some(if again || nr > 1 || code { Verdict::Activate } else { Verdict::Keep })
            }
        }
    }

    /// A folio that its owner gave up, and that nothing maps any more: gone, if nobody else
    /// holds it (rule RECL-09).
    fn free_lazily(&self, folio: Folio<'p, P>) -> Verdict {
        if !is_last(folio) {
            return Verdict::Keep;
        }
        self.platform.observer().event(Event::LazyFreed, folio.nr_pages().into());
        Verdict::Freed
    }

    /// A page of a file is left to who writes files out (rule RECL-07); shared memory has
    /// nowhere to go without swap.
    fn dirty(&mut self, folio: Folio<'p, P>) -> Verdict {
        if folio.has(FolioFlags::SWAPBACKED) {
            return Verdict::Keep;
        }
        folio.set_flag(FolioFlags::RECLAIM);
        self.sum.immediate += u64::from(folio.nr_pages());
        Verdict::Activate
    }

    /// A clean page leaves its object, if nobody else holds it (rule RECL-08).
    fn release(&mut self, folio: Folio<'p, P>) -> Verdict {
        let Some((id, index)) = folio.file() else {
            // It left its object, or its last mapping, meanwhile.
            return if is_last(folio) { Verdict::Freed } else { Verdict::Keep };
        };
        match self.platform.object(id) {
            Some(object) if object.release(index) => Verdict::Freed,
            _ => Verdict::Keep,
        }
    }
}

/// Whether the caller's reference is the only one.
fn is_last<P: ReclaimPlatform>(folio: Folio<'_, P>) -> bool {
    let last = folio.freeze(1);
    if last {
        folio.unfreeze(1);
    }
    last
}

/// How a pass unmaps a folio (rule RECL-06).
fn unmap_flags<P: ReclaimPlatform>(folio: Folio<'_, P>) -> UnmapFlags {
    // Of a smaller folio no leaf is found.
    let mut flags = UnmapFlags::PUT_OFF_FLUSH | UnmapFlags::SPLIT_PMD;
    // An entry that somebody is changing must not be overlooked: the folio would stay
    // mapped by that one alone (race F-RACE-21).
    let sync = folio.is_large() && !mm_sync::mutant!("reclaim.unmap.no_sync");
    flags.set(UnmapFlags::SYNC, sync);
    flags
}
