//! Advice of programs about their own memory: `MADV_FREE`, `MADV_COLD`, `MADV_PAGEOUT`.
//!
//! A large folio is treated as a whole if the advice covers all of it; otherwise it is
//! split, and the pages that are meant are looked at again. Memory that others use too is left
//! alone: the advice is about this program's use of it.

use crate::split::split_to_pages;
use crate::{E, ReclaimOf, ReclaimPlatform, Shrink, UnmapPolicy, shrink_folios};
use mm_arch::respect::{MERGE_YOUNG_DIRTY, SOFT_DIRTY, WRITE};
use mm_arch::{Arch, Entry, Flush, FlushScope, Level, Markers, NonPresent, VirtAddr, VirtRange};
use mm_folio::{Folio, FolioFlags, FolioLockGuard, FolioRef, Get};
use mm_pgtable::{LockedEntry, LockedPmd, LockedTable, Run, SpanKind, TableSpace};
use mm_vma::{Event, MmRead, Observer, RssKind, SlotRun, SwapSpace, Vma, VmaFlags, put_swap};

/// Why advice was refused, with the position: mappings below it were advised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdviceError {
    /// An address or a length is not a multiple of the page size.
    Unaligned(VirtAddr),
    /// The range leaves user space.
    NotUser(VirtRange),
    /// Nothing is mapped there. All mappings were advised.
    Hole(VirtAddr),
    /// The mapping is of a kind that the advice does not apply to.
    Invalid(VirtAddr),
}

impl AdviceError {
    /// The kernel's name of the error.
    pub const fn errno(self) -> &'static str {
        match self {
            AdviceError::Hole(_) => "ENOMEM",
            AdviceError::Unaligned(_) | AdviceError::NotUser(_) | AdviceError::Invalid(_) => {
                "EINVAL"
            }
        }
    }
}

impl core::fmt::Display for AdviceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AdviceError::Unaligned(va) => write!(f, "address {va} is not page aligned"),
            AdviceError::NotUser(range) => write!(f, "range {range:?} is not in user space"),
            AdviceError::Hole(va) => write!(f, "nothing is mapped at {va}"),
            AdviceError::Invalid(va) => write!(f, "the mapping at {va} does not support this"),
        }
    }
}
impl core::error::Error for AdviceError {}

/// What is advised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Advice {
    Free,
    Cold,
    PageOut,
}

/// The content of anonymous pages is not needed any more, unless they are stored to again:
/// reclaim may drop them, and they read as zero then (rules MADV-02..05).
///
/// # Errors
///
/// If the range is not page-aligned or not in user space, or has a hole; at the first mapping
/// that is locked, or not of anonymous memory.
pub fn madvise_free<P: ReclaimPlatform>(
    policy: UnmapPolicy,
    vmas: &MmRead<'_, P>,
    range: VirtRange,
) -> Result<(), AdviceError> {
    advise(policy, vmas, range, Advice::Free)
}

/// The pages will not be used soon: they are the next to be reclaimed (rule MADV-06).
///
/// # Errors
///
/// If the range is not page-aligned or not in user space, or has a hole; at the first mapping
/// that is locked.
pub fn madvise_cold<P: ReclaimPlatform>(
    policy: UnmapPolicy,
    vmas: &MmRead<'_, P>,
    range: VirtRange,
) -> Result<(), AdviceError> {
    advise(policy, vmas, range, Advice::Cold)
}

/// Reclaims the pages now, in use or not (rule MADV-06).
///
/// # Errors
///
/// As [`madvise_cold`].
pub fn madvise_pageout<P: ReclaimPlatform>(
    policy: UnmapPolicy,
    vmas: &MmRead<'_, P>,
    range: VirtRange,
) -> Result<(), AdviceError> {
    advise(policy, vmas, range, Advice::PageOut)
}

/// Whether `vma` is of a kind that the advice applies to (rule MADV-08).
fn applies(vma: &Vma, advice: Advice) -> bool {
    let free_to_go = !vma.flags().intersects(VmaFlags::LOCKED | VmaFlags::PFNMAP);
    free_to_go && (advice != Advice::Free || vma.is_anonymous())
}

fn advise<P: ReclaimPlatform>(
    policy: UnmapPolicy,
    vmas: &MmRead<'_, P>,
    range: VirtRange,
    advice: Advice,
) -> Result<(), AdviceError> {
    let shift = P::Arch::PAGE_SHIFT;
    for at in [range.start(), VirtAddr::new(range.bytes())] {
        if !at.is_aligned(shift) {
            return Err(AdviceError::Unaligned(at));
        }
    }
    if !vmas.mm().is_user_range(range) {
        return Err(AdviceError::NotUser(range));
    }
    let mut pages = Advised {
        policy,
        vmas,
        advice,
        owed: vmas.mm().tables().tlb().obligation(),
        out: [const { None }; AT_ONCE],
        nr: 0,
    };
    for vma in vmas.overlapping(range) {
        let Some(part) = vma.range().intersect(range) else { continue };
        if !applies(vma, advice) {
            return Err(AdviceError::Invalid(part.start()));
        }
        for span in vmas.mm().tables().spans(vmas.stay(), part) {
            if span.kind != SpanKind::Hole {
                pages.span(span.range);
            }
        }
        pages.reclaim();
    }
    match vmas.first_hole(range) {
        Some(va) => Err(AdviceError::Hole(va)),
        None => Ok(()),
    }
}

/// Folios that are reclaimed at once.
const AT_ONCE: usize = 32;

/// One call of advice.
struct Advised<'v, 'm, P: ReclaimPlatform> {
    policy: UnmapPolicy,
    vmas: &'v MmRead<'m, P>,
    advice: Advice,
    /// Whoever cleans entries makes CPUs look at them again before a store.
    owed: Flush<'m, <P as TableSpace>::Tlb>,
    out: [Option<FolioRef<'m, P, Get>>; AT_ONCE],
    nr: usize,
}

/// Why a table was unlocked before its end.
enum Pause<'m, P: ReclaimPlatform> {
    /// Enough folios to reclaim.
    Full,
    /// A folio is to be split; it was held for that.
    Split(ToSplit<'m, P>),
}

/// A folio of which the advice covers a part.
struct ToSplit<'m, P: ReclaimPlatform> {
    own: FolioRef<'m, P, Get>,
    /// The page of it that is to be alone.
    page: u32,
    /// Pages from there on that are left alone if it cannot be split: behind them others may be
    /// mapped.
    nr: u64,
}

impl<'m, P: ReclaimPlatform> Advised<'_, 'm, P> {
    /// What one PMD entry covers.
    fn span(&mut self, range: VirtRange) {
        let mut left = Some(range);
        while let Some(rest) = left {
            let (mm, stay) = (self.vmas.mm(), self.vmas.stay());
            let (done, pause) = match mm.tables().lock_entry(stay, rest.start()) {
                LockedEntry::Hole => return,
                LockedEntry::Table(table) => self.table(table, rest),
                LockedEntry::Huge(pmd) => self.leaf(pmd, rest),
            };
            let (mut done, shift) = (done, P::Arch::PAGE_SHIFT);
            match pause {
                Some(Pause::Full) => self.reclaim(),
                Some(Pause::Split(ToSplit { own, page, nr })) => {
                    self.owed.pay();
                    if !split_to_pages(self.policy, mm.platform(), own, page) {
                        done += nr;
                    }
                }
                None => {}
            }
            let bytes = done << shift;
            left = (bytes < rest.bytes())
                .then(|| {
                    let start = rest.start().add_units(done, shift);
                    VirtRange::new(start, rest.bytes() - bytes).ok()
                })
                .flatten();
        }
    }

    /// Entries of a table, until it is to be unlocked: how many pages of `range` were dealt
    /// with, and why not all.
    fn table(
        &mut self,
        mut table: LockedTable<'_, P>,
        range: VirtRange,
    ) -> (u64, Option<Pause<'m, P>>) {
        table.settle_deferred();
        let first = table.index_of(range.start());
        let end = first + range.nr(P::Arch::PAGE_SHIFT) as usize;
        let mut i = first;
        while i < end {
            if self.nr == AT_ONCE {
                return ((i - first) as u64, Some(Pause::Full));
            }
            let e = table.get(i);
            if !e.is_present(Level::Pte) {
                if self.advice == Advice::Free {
                    self.free_nonpresent(&mut table, i, e);
                }
                i += 1;
                continue;
            }
            let Some(folio) = self.folio_of(e, Level::Pte) else {
                i += 1;
                continue;
            };
            let page = folio.index_of(e.pfn(Level::Pte));
            let limit = table.limit(i).at_most(end - i).at_most((folio.nr_pages() - page) as usize);
            let run = table.run::<MERGE_YOUNG_DIRTY>(i, e, limit);
            if run.nr() < folio.nr_pages() as usize {
                if !self.may_split(folio) {
                    i += run.nr();
                    continue;
                }
                let Ok(own) = folio.grab::<Get>(1) else {
                    i += run.nr();
                    continue;
                };
                let to_split = ToSplit { own, page, nr: run.nr() as u64 };
                return ((i - first) as u64, Some(Pause::Split(to_split)));
            }
            match self.advice {
                Advice::Free => self.free(&mut table, folio, run),
                Advice::Cold | Advice::PageOut => self.age(&mut table, folio, run),
            }
            i += run.nr();
        }
        // What comes next may be a leaf, which takes without asking for room.
        ((end - first) as u64, (self.nr == AT_ONCE).then_some(Pause::Full))
    }

    /// The folio of a present entry that the advice is about.
    fn folio_of(&self, e: E<P>, level: Level) -> Option<Folio<'m, P>> {
        let map = self.vmas.mm().platform().memmap();
        let pfn = e.pfn(level);
        let counted = !e.is_special()
            && map.contains(pfn)
            && !map.is_zero_page(pfn)
            && !map.is_huge_zero(pfn);
        let folio = counted.then(|| map.folio(pfn))?;
        (self.advice != Advice::Free || folio.is_anon()).then_some(folio)
    }
    /// Whether a folio of which only a part is meant may be split: not if others map it.
    fn may_split(&self, folio: Folio<'_, P>) -> bool {
        !folio.maybe_mapped_shared()
    }

    /// A page that is on swap, or poisoned, was given up (rule MADV-02).
    fn free_nonpresent(&self, table: &mut LockedTable<'_, P>, i: usize, e: E<P>) {
        let mm = self.vmas.mm();
        match e.nonpresent(Level::Pte) {
            Some(NonPresent::Swap(slot)) => {
                table.set(i, E::<P>::NONE);
                mm.counters().sub(RssKind::Swap, 1);
                put_swap(mm.platform(), SlotRun::new(slot, 1));
            }
            Some(NonPresent::Hwpoison(_)) => table.set(i, E::<P>::NONE),
            Some(NonPresent::Marker(m)) if m.contains(Markers::POISONED) => {
                table.set(i, E::<P>::NONE);
            }
            _ => {}
        }
    }
    /// The pages of a whole folio were given up (rule MADV-04).
    fn free(&mut self, table: &mut LockedTable<'_, P>, folio: Folio<'m, P>, run: Run<'_>) {
        if !clean_folio(self.vmas.mm().platform(), folio, folio.nr_pages()) {
            return;
        }
        let mut entries = run.first()..run.first() + run.nr();
        // Others may have it without having stored to it: it came back from swap and has no
        // copy there. A dirty entry is what speaks for them, and they got theirs from here.
        let alone = folio.mapcount() as usize == run.nr();
        if !alone && !entries.all(|i| table.get(i).is_dirty()) {
            return;
        }
        let (young, dirty) = (run.any_young(), run.any_dirty());
        if young || dirty {
            let (mut i, end) = (run.first(), run.first() + run.nr());
            while i < end {
                let limit = table.limit(i).at_most(end - i);
                // Write permissions stay as they are, entry by entry.
                let part = table.run::<{ WRITE | SOFT_DIRTY }>(i, table.get(i), limit);
                table.modify(part, &mut self.owed, |e| e.mkclean().mkold());
                i += part.nr();
            }
        }
        self.mark_lazyfree(folio);
    }
    /// Rule FOLIO-41. A folio that somebody isolated, or that must stay, is left alone.
    fn mark_lazyfree(&self, folio: Folio<'_, P>) {
        let barred = FolioFlags::SWAPCACHE | FolioFlags::UNEVICTABLE | FolioFlags::MLOCKED;
        let wanted = FolioFlags::SWAPBACKED | FolioFlags::LRU;
        if !folio.has(wanted) || folio.flags().intersects(barred) {
            return;
        }
        let gone = FolioFlags::ACTIVE | FolioFlags::REFERENCED | FolioFlags::SWAPBACKED;
        folio.clear_flag(gone);
        // They are with the pages of files, which need no place on swap (rule FOLIO-40).
        folio.relist();
        let observer = self.vmas.mm().platform().observer();
        observer.event(Event::LazyFree, folio.nr_pages().into());
    }

    /// The pages of a whole folio are to go soon, or now.
    fn age(&mut self, table: &mut LockedTable<'_, P>, folio: Folio<'m, P>, run: Run<'_>) {
        // Others use it, or somebody has isolated it.
        if folio.mapcount() as usize != run.nr() || !folio.has(FolioFlags::LRU) {
            return;
        }
        if self.advice == Advice::Cold && run.any_young() {
            table.clear_young(run.first(), run.nr());
        }
        self.age_folio(folio);
    }
    fn age_folio(&mut self, folio: Folio<'m, P>) {
        folio.clear_flag(FolioFlags::REFERENCED);
        if folio.has(FolioFlags::ACTIVE) {
            folio.set_flag(FolioFlags::WORKINGSET);
        }
        if self.advice == Advice::Cold {
            // The youngest of those that are inactive.
            folio.clear_flag(FolioFlags::ACTIVE);
            return folio.relist();
        }
        let Ok(own) = folio.grab::<Get>(1) else { return };
        if !self.vmas.mm().platform().lru().isolate_one(folio) {
            return;
        }
        if folio.has(FolioFlags::UNEVICTABLE) {
            return folio.enlist();
        }
        self.out[self.nr] = Some(own);
        self.nr += 1;
    }

    /// A PMD leaf (rules MADV-05, MADV-06).
    fn leaf(&mut self, mut pmd: LockedPmd<'_, P>, range: VirtRange) -> (u64, Option<Pause<'m, P>>) {
        let all = range.nr(P::Arch::PAGE_SHIFT);
        let e = pmd.entry();
        let folio = if e.is_leaf(Level::Pmd) { self.folio_of(e, Level::Pmd) } else { None };
        let Some(folio) = folio.filter(|f| !f.maybe_mapped_shared()) else { return (all, None) };
        if pmd.range() != Some(range) {
            let Ok(own) = folio.grab::<Get>(1) else { return (all, None) };
            let page = range.start().bytes_from(pmd.at().va) >> P::Arch::PAGE_SHIFT;
            return (0, Some(Pause::Split(ToSplit { own, page: page as u32, nr: all })));
        }
        match self.advice {
            Advice::Free => {
                let Some(locked) = folio.try_lock() else { return (all, None) };
                if !clean_locked(self.vmas.mm().platform(), &locked, 1) {
                    return (all, None);
                }
                if e.is_young() || e.is_dirty() {
                    self.renew_leaf(&mut pmd, |e| e.mkclean().mkold());
                }
                self.mark_lazyfree(folio);
            }
            Advice::Cold | Advice::PageOut => {
                if !folio.has(FolioFlags::LRU) {
                    return (all, None);
                }
                if e.is_young() && self.advice == Advice::Cold {
                    self.renew_leaf(&mut pmd, |e| e.mkold());
                }
                self.age_folio(folio);
            }
        }
        (all, (self.nr == AT_ONCE).then_some(Pause::Full))
    }
    /// Changes a leaf in place: it is never empty for who looks without the lock, and what
    /// hardware adds meanwhile comes back with the exchange.
    fn renew_leaf(&mut self, pmd: &mut LockedPmd<'_, P>, change: impl FnOnce(E<P>) -> E<P>) {
        let mut scratch = self.vmas.mm().tables().tlb().obligation();
        let old = pmd.swap(pmd.entry().mkinvalid(Level::Pmd), &mut scratch);
        let new = change(old);
        pmd.swap(new, &mut scratch);
        scratch.already_done();
        if old.owes_flush(new, Level::Pmd)
            && let Some(range) = pmd.range()
        {
            self.owed.add(range, FlushScope::Leaves);
        }
    }

    /// Reclaims what was isolated.
    fn reclaim(&mut self) {
        if self.nr == 0 {
            return;
        }
        let shrink = Shrink {
            policy: self.policy,
            of: ReclaimOf::Everybody,
            ignore_references: true,
            may_unmap: true,
        };
        let mut out = self.out[..self.nr].iter_mut();
        shrink_folios(&shrink, self.vmas.mm().platform(), || out.find_map(Option::take));
        self.nr = 0;
    }
}

/// Makes a folio clean that is this mapping's alone: `nr` mappings of `nr` pages. A folio
/// that is clean already is not asked whose it is. Whether it is clean now.
fn clean_folio<P: ReclaimPlatform>(platform: &P, folio: Folio<'_, P>, nr: u32) -> bool {
    let kept = FolioFlags::DIRTY | FolioFlags::SWAPCACHE;
    if !folio.flags().intersects(kept) {
        return true;
    }
    folio.try_lock().is_some_and(|locked| clean_locked(platform, &locked, nr))
}

/// As [`clean_folio`] of one that is locked. It leaves the swap cache: a clean one would be taken
/// for a copy of its slots, which may hold what was never this mapping's.
fn clean_locked<P: ReclaimPlatform>(platform: &P, locked: &FolioLockGuard<'_, P>, nr: u32) -> bool {
    let folio = locked.folio();
    if folio.mapcount() != nr {
        return false;
    }
    if folio.has(FolioFlags::SWAPCACHE) && !platform.swap().slots().free(locked) {
        return false;
    }
    folio.clear_flag(FolioFlags::DIRTY);
    true
}
