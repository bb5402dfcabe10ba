//! What an entry is to reclaim, and how many of its neighbours go with it.

use super::{UnmapFlags, is_lazyfree};
use crate::E;
use crate::policy::Strategy;
use mm_arch::respect::{NOTHING, SOFT_DIRTY, WRITE};
use mm_arch::{Entry, Level};
use mm_folio::{Folio, FolioFlags};
use mm_pgtable::{PageFate, Run};
use mm_rmap::{PteHit, Visit};
use mm_vma::{Event, Observer, Platform, VmaFlags};

/// What becomes of an entry, in the order in which it is asked (rule UNMAP-13, table 8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The page is poisoned, and the entry says so from now on.
    Poison,
    /// A guest does not need the page.
    Drop,
    /// Anonymous memory that swap stands behind.
    Swap,
    /// Anonymous memory that its owner gave up.
    Lazyfree,
    /// A page that its object has.
    File,
}

impl Fate {
    pub fn of<P: Platform>(
        folio: Folio<'_, P>,
        e: E<P>,
        visit: &Visit<'_>,
        flags: UnmapFlags,
    ) -> Self {
        // Only a small folio: of a large one nobody knows which page it is, and its
        // neighbours are sound (rule UNMAP-22).
        if flags.contains(UnmapFlags::HWPOISON)
            && folio.has(FolioFlags::HWPOISON)
            && !folio.is_large()
        {
            Fate::Poison
        } else if e.is_unused() && !visit.flags.contains(VmaFlags::UFFD_WP) {
            Fate::Drop
        } else if !folio.is_anon() {
            Fate::File
        } else if folio.has(FolioFlags::SWAPBACKED) {
            Fate::Swap
        } else {
            Fate::Lazyfree
        }
    }
    /// Whether the page is still there for who asks for it by its entry's place.
    pub fn of_pages(self) -> PageFate {
        match self {
            Fate::Drop | Fate::Lazyfree => PageFate::Dropped,
            Fate::Poison | Fate::Swap | Fate::File => PageFate::Kept,
        }
    }
}

/// The entries from a present hit on that are taken in one step (rules UNMAP-07..09).
///
/// Entries that may be put back as one agree in write permission and soft-dirty, so that
/// putting them back gives none of them what only another one had. Those of files never
/// come back, and those of pages on their way to swap do so one by one.
pub(crate) fn run<'g, B: Strategy, P: Platform>(
    folio: Folio<'_, P>,
    at: &PteHit<'_, 'g, P>,
    visit: &Visit<'_>,
    flags: UnmapFlags,
    observer: &P::Observer,
) -> Run<'g> {
    let in_runs = match Fate::of(folio, at.entry, visit, flags) {
        Fate::Poison | Fate::Drop => false,
        Fate::Swap => B::SWAP,
        Fate::Lazyfree => B::LAZYFREE,
        Fate::File => B::FILE,
    };
    let tracked = visit.flags.contains(VmaFlags::UFFD_WP) && !B::UFFD_WP;
    if !in_runs || !folio.is_large() || at.entry.is_unused() || tracked {
        // A policy of runs does not go entry by entry unseen.
        if folio.is_large() && at.entry.is_unused() && B::LAZYFREE {
            observer.event(Event::UnmapSingleUnused, 1);
        } else if folio.is_large() && in_runs {
            observer.event(Event::UnmapSingleTracked, 1);
        }
        return at.table.single(at.index);
    }
    debug_assert!(at.entry.is_leaf(Level::Pte));
    if is_lazyfree(folio) {
        at.table.run::<{ WRITE | SOFT_DIRTY }>(at.index, at.entry, at.limit)
    } else {
        at.table.run::<NOTHING>(at.index, at.entry, at.limit)
    }
}
