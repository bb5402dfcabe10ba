//! Unmapping a folio everywhere.
//!
//! # The protocol
//!
//! ```text
//!   folio lock, a reference of the caller's
//!     trees: every VMA that may map the folio
//!       table lock: the run of entries from here on          (decide)
//!         take it: every entry once, one token
//!         flush now, or put it off; dirt to the folio
//!         fate of the run: gone, non-present, or back        (lazyfree, file, swap)
//!         counters, map counts, references: the same n
//! ```
//!
//! A run is taken before anything about its folio is asked, since the answers change as
//! long as somebody can get at the page by the entries. So the token may have to bring it
//! back, and can (rule UNMAP-18).

mod decide;
mod file;
mod lazyfree;
mod restore;
mod swap;
mod together;

use crate::policy::{Strategy, by_policy};
use crate::{E, FlushBatch, UnmapPolicy};
use core::num::NonZeroU32;
use core::ops::ControlFlow;
use decide::Fate;
use mm_arch::{Entry, Flush, Level, NonPresent, SwapBits, SwapSlot};
use mm_folio::{Folio, FolioFlags, FolioLockGuard, FolioRun, Get};
use mm_pgtable::{LockedPmd, PageFate, TableSpace};
use mm_rmap::{Hit, Lookup, MappedWalk, Peek, PteHit, RmapPlatform, Seek, Strict, Visit, WalkEnd};
use mm_vma::{Event, Mm, Observer, Platform, RssKind, SwapSpace, VmaFlags};
use restore::Taken;

bitflags::bitflags! {
    /// How a folio is unmapped (rule UNMAP-02).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct UnmapFlags: u8 {
        /// PMD leaves are split, and their pages unmapped one by one or in runs.
        const SPLIT_PMD = 1 << 0;
        /// Memory locks do not count.
        const IGNORE_MLOCK = 1 << 1;
        /// Wait for whoever is changing an entry: what is not found is not mapped.
        /// Without it, entries that are being changed may be overlooked.
        const SYNC = 1 << 2;
        /// Entries of a poisoned page say so afterwards.
        const HWPOISON = 1 << 3;
        /// Flushes are put off until the caller makes them.
        const PUT_OFF_FLUSH = 1 << 4;
    }
}

/// What came of unmapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Unmapped {
    /// Nothing maps the folio.
    All,
    /// It is still mapped.
    Kept(Kept),
}

impl Unmapped {
    /// What came of it, if there was a reason to stop.
    fn of<P: Platform>(folio: Folio<'_, P>, kept: Option<Kept>) -> Self {
        if !folio.is_mapped() {
            return Unmapped::all(folio);
        }
        Unmapped::Kept(kept.unwrap_or(Kept::Overlooked))
    }
    /// Whoever ends the lock of a mapping passes by what is not mapped any more: it is locked for
    /// nobody (rule RMAP-06).
    #[inline]
    fn all<P: Platform>(folio: Folio<'_, P>) -> Self {
        folio.munlock();
        Unmapped::All
    }
}

/// Why a folio stays mapped. What was unmapped before stays so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// A memory lock holds it (rule UNMAP-03).
    Locked,
    /// It was given up, and has been stored to since: it is normal memory again.
    Dirty,
    /// Somebody else holds it, and may store to it.
    Referenced,
    /// A PMD leaf maps it, and was not to be split.
    Leaf,
    /// It has no place on a swap device.
    NoSwap,
    /// A mapping was not found: it came meanwhile, or an entry was being changed.
    Overlooked,
}

/// Unmaps a folio from every address space (rules UNMAP-01..19). Stops at the first
/// mapping that cannot go.
///
/// The caller holds the folio lock and a reference, and no table lock. Flushes that
/// [`UnmapFlags::PUT_OFF_FLUSH`] puts off are in `flushes`: the caller sees to them
/// before it gives the folio away, and before it unlocks a folio that has become dirty.
pub fn try_to_unmap<P: RmapPlatform>(
    policy: UnmapPolicy,
    locked: &FolioLockGuard<'_, P>,
    flags: UnmapFlags,
    flushes: &mut FlushBatch<'_, P>,
) -> Unmapped {
    let mut end = Unmapped::All;
    try_to_unmap_each(policy, &[locked], flags, flushes, |_, e| end = e);
    end
}

/// As [`try_to_unmap`] for each of `folios`, with the same end; `ended` gets the number of the
/// folio and what came of it. A mapping that cannot go stops the unmapping of its folio alone.
///
/// [`UnmapPolicy::All`] looks for neighbouring folios of one object in one walk, and takes their
/// entries under one table lock.
///
/// The caller holds the locks of all the folios and a reference to each, and no table lock.
pub fn try_to_unmap_each<P: RmapPlatform>(
    policy: UnmapPolicy,
    folios: &[&FolioLockGuard<'_, P>],
    flags: UnmapFlags,
    flushes: &mut FlushBatch<'_, P>,
    mut ended: impl FnMut(usize, Unmapped),
) {
    by_policy!(policy, each::<P>(folios, flags, flushes, &mut ended));
}

fn each<B: Strategy, P: RmapPlatform>(
    folios: &[&FolioLockGuard<'_, P>],
    flags: UnmapFlags,
    flushes: &mut FlushBatch<'_, P>,
    ended: &mut dyn FnMut(usize, Unmapped),
) {
    let mut at = 0;
    while let Some(first) = folios.get(at) {
        if B::TOGETHER
            && let Some(group) = together::Group::of(&folios[at..], flags)
        {
            at += group.unmap::<B>(flags, flushes, &mut |k, end| ended(at + k, end));
            continue;
        }
        let folio = first.folio();
        let slot = flushes.platform().swap().slots().slot_of(folio);
        let mut unmap = Unmap { folio, slot, flags, flushes, kept: None };
        walk::<B, P>(&mut unmap);
        ended(at, Unmapped::of(folio, unmap.kept));
        at += 1;
    }
}

/// One unmapping.
struct Unmap<'u, 'm, 'p, P: RmapPlatform> {
    folio: Folio<'m, P>,
    /// The slot of page 0, if the folio is in the swap cache: it is locked and stays there.
    slot: Option<SwapSlot>,
    flags: UnmapFlags,
    flushes: &'u mut FlushBatch<'p, P>,
    kept: Option<Kept>,
}

fn walk<B: Strategy, P: RmapPlatform>(unmap: &mut Unmap<'_, '_, '_, P>) {
    let (folio, platform) = (unmap.folio, unmap.flushes.platform());
    let sync = unmap.flags.contains(UnmapFlags::SYNC);
    let visit = &mut |mm: &alloc::sync::Arc<Mm<P>>, visit: Visit<'_>| {
        if sync {
            unmap.in_vma::<B, Strict>(mm, &visit)
        } else {
            unmap.in_vma::<B, Peek>(mm, &visit)
        }
    };
    let end = if folio.is_anon() {
        platform.anon_trees().walk(folio, visit)
    } else {
        platform.file_trees().walk(folio, visit)
    };
    debug_assert!(end != WalkEnd::Contended, "the walk waits");
}

/// What a step of the walk asks for.
enum Step {
    /// So many entries were dealt with.
    Done(usize),
    /// The leaf is to be split.
    Split,
    /// A reason to stop.
    Keep(Kept),
    /// The VMA maps no more of the folio.
    LastHere,
}

impl<P: RmapPlatform> Unmap<'_, '_, '_, P> {
    fn in_vma<B: Strategy, L: Lookup>(&mut self, mm: &Mm<P>, visit: &Visit<'_>) -> ControlFlow<()> {
        let mut walk = MappedWalk::<P, L>::new(mm, visit, self.folio, Seek::Mappings);
        if visit.flags.contains(VmaFlags::LOCKED) && !self.flags.contains(UnmapFlags::IGNORE_MLOCK)
        {
            return match seen_whole(self.folio, walk) {
                Seen::Nothing => ControlFlow::Continue(()),
                seen => {
                    if seen == Seen::Whole {
                        self.folio.mlock();
                    }
                    self.kept = Some(Kept::Locked);
                    ControlFlow::Break(())
                }
            };
        }
        while let Some(hit) = walk.next_hit() {
            let step = match hit {
                Hit::Pmd(pmd) if B::LEAVES && is_lazyfree(self.folio) => self.leaf(mm, visit, pmd),
                Hit::Pmd(_) if self.flags.contains(UnmapFlags::SPLIT_PMD) => Step::Split,
                Hit::Pmd(_) => Step::Keep(Kept::Leaf),
                Hit::Pte(at) => self.step::<B>(mm, visit, at),
            };
            match step {
                Step::Done(n) => walk.consumed(n),
                Step::Split => walk.split_pmd(),
                Step::LastHere => break,
                Step::Keep(why) => {
                    self.kept = Some(why);
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Unmaps a PMD leaf of pages that were given up.
    fn leaf(&mut self, mm: &Mm<P>, visit: &Visit<'_>, pmd: &mut LockedPmd<'_, P>) -> Step {
        let folio = self.folio;
        let mut owed = mm.tables().tlb().obligation();
        let done = lazyfree::discard_leaf(mm, pmd, folio, visit.flags, &mut owed);
        // Never put off: a hole has no table whose lock tells of a flush that is outstanding (rules
        // UNMAP-20, TLBB-07).
        owed.now();
        if let Err(why) = done {
            return Step::Keep(why);
        }
        let nr = folio.nr_pages();
        mm.counters().sub(RssKind::Anon, nr.into());
        folio.remove_pmd(mm.id());
        folio.memmap().put_run::<Get>(FolioRun::new(folio.head(), 0, 1));
        let observer = mm.platform().observer();
        observer.event(Event::UnmapClears, 1);
        observer.event(Event::UnmapRuns, 1);
        observer.event(Event::EntriesUnmapped, nr.into());
        Step::LastHere
    }

    /// Unmaps the run that starts at a hit.
    fn step<B: Strategy>(&mut self, mm: &Mm<P>, visit: &Visit<'_>, at: PteHit<'_, '_, P>) -> Step {
        let (folio, page) = (self.folio, at.page);
        let fate = Fate::of(folio, at.entry, visit, self.flags);
        if fate == Fate::Swap
            && let Some(slot) = self.slot
            && at.entry.is_present(Level::Pte)
        {
            return self.swap_out::<B>(mm, visit, at, slot);
        }
        let taken = if at.entry.is_present(Level::Pte) {
            let observer = mm.platform().observer();
            let run = decide::run::<B, P>(folio, &at, visit, self.flags, observer);
            observer.event(Event::UnmapClears, 1);
            let mut owed = mm.tables().tlb().obligation();
            let taken = Taken::run(at.table, run, &mut owed);
            let dirty = taken.entry().is_dirty();
            self.flush(mm, owed, fate.of_pages(), dirty);
            // The entries were all that knew.
            if dirty {
                folio.set_flag(FolioFlags::DIRTY);
            }
            taken
        } else {
            if folio.is_large() && B::LAZYFREE {
                mm.platform().observer().event(Event::UnmapSingleDevice, 1);
            }
            Taken::device(at.table, at.index, at.entry)
        };
        let n = taken.n();
        let kind = RssKind::of(folio);
        match fate {
            Fate::Swap => return Step::Keep(Kept::NoSwap),
            Fate::Poison => poison::<P>(folio, page, taken),
            Fate::Drop => taken.commit(),
            Fate::File => file::leave(visit, taken),
            Fate::Lazyfree => match lazyfree::may_discard(folio, visit.flags) {
                Ok(()) => taken.commit(),
                Err(why) => {
                    taken.restore();
                    return Step::Keep(why);
                }
            },
        }
        mm.counters().sub(kind, n.get().into());
        self.finish(mm, page, n)
    }

    /// Makes a flush that is owed, or puts it off; `dirty` says whether one of the entries
    /// was.
    #[inline]
    fn flush(
        &mut self,
        mm: &Mm<P>,
        owed: Flush<'_, <P as TableSpace>::Tlb>,
        pages: PageFate,
        dirty: bool,
    ) {
        if self.flags.contains(UnmapFlags::PUT_OFF_FLUSH) {
            self.flushes.put_off(mm, owed, pages, dirty);
        } else {
            owed.now();
        }
    }

    /// `n` entries are gone, and counted out of the space: map counts and references
    /// follow, all by `n` (rule UNMAP-14). The caller's own reference keeps the folio.
    #[inline]
    fn finish(&self, mm: &Mm<P>, page: u32, n: NonZeroU32) -> Step {
        let folio = self.folio;
        folio.remove_ptes(page, n, mm.id());
        put(mm, folio, page, n);
        // All of the folio: this VMA has no more of it (rule UNMAP-15).
        if n.get() == folio.nr_pages() { Step::LastHere } else { Step::Done(n.get() as usize) }
    }
}

/// References follow `n` mappings that are gone.
#[inline]
fn put<P: Platform>(mm: &Mm<P>, folio: Folio<'_, P>, page: u32, n: NonZeroU32) {
    folio.memmap().put_run::<Get>(FolioRun::new(folio.head(), page, n.get()));
    let observer = mm.platform().observer();
    observer.event(Event::UnmapRuns, 1);
    observer.event(Event::EntriesUnmapped, n.get().into());
}

/// Whether the owner of the pages gave them up.
pub(crate) fn is_lazyfree<P: Platform>(folio: Folio<'_, P>) -> bool {
    folio.is_anon() && !folio.has(FolioFlags::SWAPBACKED)
}

/// The entry says that the page is poisoned.
fn poison<P: Platform>(folio: Folio<'_, P>, page: u32, taken: Taken<'_, '_, P>) {
    let pfn = folio.page(page);
    match E::<P>::from_nonpresent(NonPresent::Hwpoison(pfn), SwapBits::default()) {
        Ok(poisoned) => taken.replace(|_| poisoned),
        // No room for the frame: an access finds nothing, which is no worse.
        Err(_) => taken.commit(),
    }
}

/// How much of a folio a VMA maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    Nothing,
    /// A part, or all of it but by more than one table.
    Part,
    /// All of it, by one table or one leaf.
    Whole,
}

/// How much of the folio `walk` finds (rules REF-03, UNMAP-03).
pub(crate) fn seen_whole<P: RmapPlatform, L: Lookup>(
    folio: Folio<'_, P>,
    mut walk: MappedWalk<'_, P, L>,
) -> Seen {
    let mut seen = 0;
    while let Some(hit) = walk.next_hit() {
        let n = match hit {
            Hit::Pmd(_) => return Seen::Whole,
            Hit::Pte(at) if at.entry.is_present(Level::Pte) => {
                at.table.run::<{ mm_arch::respect::NOTHING }>(at.index, at.entry, at.limit).nr()
            }
            Hit::Pte(_) => 1,
        };
        walk.consumed(n);
        seen += n as u64;
    }
    match seen {
        0 => Seen::Nothing,
        n if n == u64::from(folio.nr_pages()) && !walk.crossed_table() => Seen::Whole,
        _ => Seen::Part,
    }
}
