//! Observations: facts of pages, folios and mappings, read without changing
//! anything.

use crate::events::Events;
use crate::scan::{E, entries, entry, host, page_of};
use crate::{EventCounts, Host};
use mm_arch::{Arch, Entry, Level, Markers, NonPresent, Pfn, VirtAddr, VirtRange};
use mm_fault::UserFault;
use mm_folio::FolioFlags;
use mm_scenario::observe::{
    FolioFlags as Shown, GlobalCounter, MappedPage, PageFact, PageKind, PageState, SizeCounter,
    StatKey, UffdEvent, Vma as ShownVma,
};
use mm_scenario::{Capabilities, Keeps, Region};
use mm_vma::{MmRead, Platform, RssKind, Vma, VmaFlags};
use std::collections::{BTreeMap, BTreeSet};

/// What this model keeps of what goldens show.
pub fn capabilities() -> Capabilities {
    let mut has = Capabilities::least();
    has.keeps = Keeps::LRU
        | Keeps::UPTODATE
        | Keeps::DIRTY
        | Keeps::VMA_DIRTY
        | Keeps::VMA_COUNTS
        | Keeps::VMA_FLAGS;
    has.counters.extend(SIZED.map(SizeCounter::word));
    has.counters.extend(GLOBAL.map(GlobalCounter::word));
    has
}

const SIZED: [SizeCounter; 11] = [
    SizeCounter::AnonFaultAlloc,
    SizeCounter::AnonFaultFallback,
    SizeCounter::ShmemAlloc,
    SizeCounter::ShmemFallback,
    SizeCounter::Split,
    SizeCounter::SplitFailed,
    SizeCounter::SplitDeferred,
    SizeCounter::NrAnonPartiallyMapped,
    SizeCounter::SwapIn,
    SizeCounter::SwapOut,
    SizeCounter::SwapOutFallback,
];
const GLOBAL: [GlobalCounter; 12] = [
    GlobalCounter::CollapseAlloc,
    GlobalCounter::SplitPage,
    GlobalCounter::SplitPmd,
    GlobalCounter::DeferredSplitPage,
    GlobalCounter::PagesSwappedIn,
    GlobalCounter::PagesSwappedOut,
    GlobalCounter::ThpSwapOut,
    GlobalCounter::ThpSwapOutFallback,
    GlobalCounter::SwapInZero,
    GlobalCounter::SwapOutZero,
    GlobalCounter::LazyFree,
    GlobalCounter::LazyFreed,
];

/// A userfaultfd event, as it is shown.
pub(super) fn user_fault(kind: UserFault) -> UffdEvent {
    match kind {
        UserFault::Wp => UffdEvent::Wp,
        UserFault::Missing { write: false } => UffdEvent::MissingRead,
        UserFault::Missing { write: true } => UffdEvent::MissingWrite,
        UserFault::Minor { write: false } => UffdEvent::MinorRead,
        UserFault::Minor { write: true } => UffdEvent::MinorWrite,
    }
}

/// The counters as they stand.
pub(super) fn counters<A: Arch, O: Events>(machine: &Host<A, O>) -> BTreeMap<StatKey, i64> {
    let none = EventCounts::default();
    let events = machine.events().unwrap_or(&none);
    let folios = machine.memmap().stats();
    let mut all = BTreeMap::new();
    let as_count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    // Sizes are told in bytes, by the order of small pages.
    let small = (A::PAGE_SHIFT - 12) as usize;
    for order in 1..=A::order(Level::Pmd) as usize {
        let sized = [
            events.anon_fault_alloc[order].get(),
            events.anon_fault_fallback[order].get(),
            events.shmem_alloc[order].get(),
            events.shmem_fallback[order].get(),
            events.folio_split[order].get(),
            events.folio_split_failed[order].get(),
            folios.order[order].split_deferred.get(),
            folios.order[order].nr_anon_partially_mapped.get(),
            events.folio_swapped_in[order].get(),
            events.folio_swapped_out[order].get(),
            events.swap_out_fallback[order].get(),
        ];
        for (counter, value) in SIZED.into_iter().zip(sized) {
            all.insert(StatKey::Size((order + small) as u8, counter), as_count(value));
        }
    }
    let pmd = A::order(Level::Pmd) as usize;
    let global = [
        events.collapse_alloc[pmd].get(),
        events.folio_split[pmd].get(),
        events.pmd_split.get(),
        folios.order[pmd].split_deferred.get(),
        events.pages_swapped_in.get(),
        events.pages_swapped_out.get(),
        events.folio_swapped_out[pmd].get(),
        events.swap_out_fallback[pmd].get(),
        events.zero_pages_swapped_in.get(),
        events.zero_pages_swapped_out.get(),
        events.lazy_free.get(),
        events.lazy_freed.get(),
    ];
    for (counter, value) in GLOBAL.into_iter().zip(global) {
        all.insert(StatKey::Global(counter), as_count(value));
    }
    all
}

/// What is at the page `va` of an address space.
pub(super) fn page_fact<A: Arch, O: Events>(
    vmas: &MmRead<'_, Host<A, O>>,
    va: VirtAddr,
) -> PageFact {
    let Some((level, e)) = entry(vmas, va) else { return PageFact::NONE };
    let (state, wp) = if e.is_leaf(level) {
        (present(host(vmas), va, level, e), e.is_uffd_wp())
    } else {
        let marked = e.swap_bits().uffd_wp;
        match e.nonpresent(level) {
            Some(NonPresent::Swap(slot)) => (PageState::Swap { slot: slot.offset }, marked),
            Some(NonPresent::Marker(m)) if m.contains(Markers::GUARD) => (PageState::Guard, false),
            Some(NonPresent::Marker(m)) => (PageState::Marker, m.contains(Markers::UFFD_WP)),
            // A page on its way elsewhere: nothing is in flight between operations.
            _ => (PageState::None, false),
        }
    };
    PageFact { state, pmd: level == Level::Pmd && state != PageState::None, wp }
}

fn present<A: Arch, O: Events>(
    machine: &Host<A, O>,
    va: VirtAddr,
    level: Level,
    e: E<A>,
) -> PageState {
    let (map, pfn) = (machine.memmap(), page_of::<A>(va, level, e));
    if map.is_zero_page(pfn) {
        return PageState::Zero;
    }
    if map.is_huge_zero(pfn) {
        return PageState::HugeZero;
    }
    if e.is_special() || !map.contains(pfn) {
        return PageState::None;
    }
    let folio = map.folio(pfn);
    let kind = if folio.has(FolioFlags::KSM) {
        PageKind::Ksm
    } else if folio.is_anon() {
        PageKind::Anon
    } else {
        PageKind::File
    };
    // Of a PMD leaf the kernel looks at the first page alone.
    let asked = if level == Level::Pmd { folio.head() } else { pfn };
    PageState::Present(MappedPage {
        kind,
        order: folio.order() as u8,
        head: folio.head().get(),
        index: u64::from(folio.index_of(pfn)),
        mapcount: u64::from(map.page_mapcount(pfn)),
        exclusive: map.page_mapcount(asked) == 1,
    })
}

/// The flags of the folio at `head`.
pub(super) fn folio_flags<A: Arch, O: Events>(machine: &Host<A, O>, head: u64) -> Shown {
    let map = machine.memmap();
    let folio = map.folio(Pfn::new(head));
    let has = folio.flags();
    let mut shown = Shown::empty();
    for (flag, as_shown) in [
        (FolioFlags::KSM, Shown::KSM),
        (FolioFlags::LRU, Shown::LRU),
        (FolioFlags::ACTIVE, Shown::ACTIVE),
        (FolioFlags::REFERENCED, Shown::REFERENCED),
        (FolioFlags::DIRTY, Shown::DIRTY),
        (FolioFlags::UPTODATE, Shown::UPTODATE),
        (FolioFlags::SWAPBACKED, Shown::SWAPBACKED),
        (FolioFlags::SWAPCACHE, Shown::SWAPCACHE),
        (FolioFlags::WRITEBACK, Shown::WRITEBACK),
        (FolioFlags::UNEVICTABLE, Shown::UNEVICTABLE),
        (FolioFlags::MLOCKED, Shown::MLOCKED),
    ] {
        shown.set(as_shown, has.contains(flag));
    }
    shown.set(Shown::ANON, folio.is_anon());
    shown.set(Shown::HEAD_EXCLUSIVE, folio.is_anon() && map.page_exclusive(folio.head()));
    shown
}

/// The VMAs in the window of `region`, with their counts.
pub(super) fn vmas<A: Arch, O: Events>(
    guard: &MmRead<'_, Host<A, O>>,
    region: &Region,
) -> Vec<ShownVma> {
    let windows = super::windows::<A>();
    let start = VirtAddr::new(windows.start(region));
    let Ok(window) = VirtRange::new(start, windows.bytes()) else { return Vec::new() };
    guard
        .overlapping(window)
        .map(|vma| {
            let at = vma.start().get().saturating_sub(windows.address(region, 0)) >> A::PAGE_SHIFT;
            let mut shown = ShownVma {
                at,
                n: vma.nr_pages(),
                prot: rights(vma),
                fl: flag_words(vma.flags()),
                ..ShownVma::default()
            };
            let mut there = BTreeSet::new();
            entries(guard, vma.range(), |va, level, e| {
                count(host(guard), vma, va, level, e, &mut shown);
                let pages = 1u64 << A::order(level);
                there.extend((0..pages).map(|i| vma.linear_index(va) + i));
            });
            shown.swap += swapped_of_object(host(guard), vma, &there);
            shown
        })
        .collect()
}

/// Pages of the object of a mapping that are on swap: all of them, but that a private mapping
/// that can be stored to may have its own instead, and counts those that it has not.
fn swapped_of_object<A: Arch, O: Events>(
    machine: &Host<A, O>,
    vma: &Vma,
    there: &BTreeSet<u64>,
) -> u64 {
    let object = vma.backing().and_then(|b| machine.objects().find(b.id()));
    let Some(object) = object else { return 0 };
    let copies = vma.flags() & (VmaFlags::SHARED | VmaFlags::WRITE) == VmaFlags::WRITE;
    let pages = vma.pgoff()..vma.pgoff() + vma.nr_pages();
    pages.filter(|i| object.is_swapped(*i) && !(copies && there.contains(i))).count() as u64
}

/// Adds what one entry counts for.
fn count<A: Arch, O: Events>(
    machine: &Host<A, O>,
    vma: &Vma,
    va: VirtAddr,
    level: Level,
    e: E<A>,
    shown: &mut ShownVma,
) {
    let pages = 1u64 << A::order(level);
    if let Some(NonPresent::Swap(_)) = e.nonpresent(level) {
        shown.swap += pages;
    }
    if !e.is_leaf(level) {
        return;
    }
    let (map, first) = (machine.memmap(), page_of::<A>(va, level, e));
    let uncounted = map.is_zero_page(first) || map.is_huge_zero(first) || e.is_special();
    if uncounted || !map.contains(first) {
        return;
    }
    let folio = map.folio(first);
    let dirty = e.is_dirty() || folio.has(FolioFlags::DIRTY);
    for pfn in (0..pages).map(|i| first.add(i)) {
        let kind = match (map.page_mapcount(pfn) > 1, dirty) {
            (true, true) => &mut shown.shared_dirty,
            (true, false) => &mut shown.shared_clean,
            (false, true) => &mut shown.private_dirty,
            (false, false) => &mut shown.private_clean,
        };
        *kind += 1;
    }
    shown.rss += pages;
    if folio.is_anon() {
        shown.anonymous += pages;
        if level == Level::Pmd {
            shown.anon_huge_pages += pages;
        }
        if !folio.has(FolioFlags::SWAPBACKED) && !dirty {
            shown.lazy_free += pages;
        }
    }
    if level == Level::Pmd && !folio.is_anon() {
        match RssKind::of(folio) {
            RssKind::Shmem => shown.shmem_pmd_mapped += pages,
            _ => shown.file_pmd_mapped += pages,
        }
    }
    if folio.has(FolioFlags::KSM) {
        shown.ksm += pages;
    }
    if vma.flags().contains(VmaFlags::LOCKED) {
        shown.locked += pages;
    }
}

/// The rights as `/proc/PID/maps` shows them.
fn rights(vma: &Vma) -> String {
    let has = |flag| vma.flags().contains(flag);
    let letter = |flag, letter| if has(flag) { letter } else { '-' };
    [
        letter(VmaFlags::READ, 'r'),
        letter(VmaFlags::WRITE, 'w'),
        letter(VmaFlags::EXEC, 'x'),
        if has(VmaFlags::MAYSHARE) { 's' } else { 'p' },
    ]
    .iter()
    .collect()
}

/// `VmFlags` of smaps, in the kernel's order. Soft-dirty is left out, as in the
/// goldens.
fn flag_words(flags: VmaFlags) -> String {
    const WORDS: &[(VmaFlags, &str)] = &[
        (VmaFlags::READ, "rd"),
        (VmaFlags::WRITE, "wr"),
        (VmaFlags::EXEC, "ex"),
        (VmaFlags::SHARED, "sh"),
        (VmaFlags::MAYREAD, "mr"),
        (VmaFlags::MAYWRITE, "mw"),
        (VmaFlags::MAYEXEC, "me"),
        (VmaFlags::MAYSHARE, "ms"),
        (VmaFlags::GROWSDOWN, "gd"),
        (VmaFlags::UFFD_MISSING, "um"),
        (VmaFlags::PFNMAP, "pf"),
        (VmaFlags::UFFD_WP, "uw"),
        (VmaFlags::LOCKED, "lo"),
        (VmaFlags::IO, "io"),
        (VmaFlags::SEQ_READ, "sr"),
        (VmaFlags::RAND_READ, "rr"),
        (VmaFlags::DONTCOPY, "dc"),
        (VmaFlags::DONTEXPAND, "de"),
        (VmaFlags::LOCKONFAULT, "lf"),
        (VmaFlags::ACCOUNT, "ac"),
        (VmaFlags::NORESERVE, "nr"),
        (VmaFlags::WIPEONFORK, "wf"),
        (VmaFlags::HUGEPAGE, "hg"),
        (VmaFlags::NOHUGEPAGE, "nh"),
        (VmaFlags::MERGEABLE, "mg"),
        (VmaFlags::UFFD_MINOR, "ui"),
        (VmaFlags::SHADOW_STACK, "ss"),
        (VmaFlags::DROPPABLE, "dp"),
    ];
    let words: Vec<_> =
        WORDS.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, word)| *word).collect();
    words.join(" ")
}
