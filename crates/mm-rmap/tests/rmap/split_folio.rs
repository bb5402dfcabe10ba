//! A folio becomes several, and every page is still where it was.

use crate::world::*;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level, NonPresent, Pfn};
use mm_folio::{FolioFlags, FrameBytes, Get, Pin, QueueReason};
use mm_pgtable::TableSpace;
use mm_rmap::{Batching, DeferredPass, SplitError, SplitFolio, split_anon_folio, split_deferred};
use mm_vma::{Event, Mm, Platform, RssKind};
use mm_x86::X86_64;

const BOTH: [Batching; 2] = [Batching::PerPage, Batching::Batched];

/// Splits the folio of `pfn` and lets it go; what `keep` names is what is kept meanwhile.
fn split<A: Arch>(
    p: &P<A>,
    pfn: Pfn,
    order: u32,
    keep: u32,
    batching: Batching,
) -> Result<(), SplitError> {
    let folio = p.memmap().folio(pfn);
    let own = folio.grab::<Get>(1).expect("room");
    let locked = folio.lock();
    let (got, result) =
        split_anon_folio(p, p.memmap(), SplitFolio { locked, own }, order, keep, batching);
    let part = got.own.folio();
    assert!(part == got.locked.folio() && part.has(FolioFlags::LOCKED));
    assert!(result.is_err() || part.contains(folio.page(keep)));
    drop(got);
    result
}
fn fill<A: Arch>(p: &P<A>, pfn: Pfn, n: u64) {
    for k in 0..n {
        p.bytes().store(pfn.add(k), 0, 100 + k);
    }
}
fn frame_at<A: Arch>(mm: &Mm<P<A>>, page: u64) -> Pfn {
    entry::<A>(mm, page).pfn(Level::Pte)
}

fn parts<A: Arch>(batching: Batching) {
    for (order, keep) in [(0, 0), (0, 9), (2, 0), (2, 13), (3, 8)] {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 32);
        let pfn = fault::<A>(&mm, 16, 4).expect("mapped");
        fill(&p, pfn, 16);
        let folio = p.memmap().folio(pfn);
        let flags = FolioFlags::DIRTY | FolioFlags::SWAPBACKED | FolioFlags::LRU;
        folio.set_flag(flags);
        // As if a mapping had been locked until now, and was not looked at since.
        folio.mlock();
        let (anon, index) = folio.anon().expect("anonymous");
        let child = fork::<A>(&mm);
        munmap(&child, 18, 1);
        let before: Vec<_> = (16..32).map(|k| entry::<A>(&mm, k)).collect();

        split(&p, pfn, order, keep, batching).expect("nobody holds it");

        for k in 0..16u64 {
            // In place, with the same rights and tracking bits.
            let (e, b) = (entry::<A>(&mm, 16 + k), before[k as usize]);
            assert_eq!((e.pfn(Level::Pte), e.is_writable(Level::Pte)), (pfn.add(k), false));
            assert_eq!(e.is_soft_dirty(), b.is_soft_dirty());
            if A::Entry::SWAP_YOUNG_DIRTY {
                assert_eq!((e.is_young(), e.is_dirty()), (b.is_young(), b.is_dirty()));
            }
            let part = p.memmap().folio(pfn.add(k));
            assert_eq!((part.order(), part.index_of(pfn.add(k))), (order, k as u32 % (1 << order)));
            assert_eq!(part.anon(), Some((anon, index + (k >> order << order))));
            assert!(part.has(flags) && !part.has(FolioFlags::LOCKED));
            assert!(!part.has(FolioFlags::MLOCKED), "no mapping is locked");
            let mapped = if k == 2 { 1 } else { 2 };
            assert_eq!(p.memmap().page_mapcount(pfn.add(k)), mapped);
            assert!(!p.memmap().page_exclusive(pfn.add(k)), "shared with the child");
            assert_eq!(p.bytes().load(pfn.add(k), 0), 100 + k);
        }
        assert_eq!(p.memmap().deferred_len(), 0, "it is not partially mapped any more");
        assert_eq!(p.events().get(Event::FolioSplit), 4);
        check(&p);
        exit(child);
        exit(mm);
        assert_eq!(p.folios_in_use(), 0);
    }
}

/// Rules: FOLIO-53..56, S-SP1.
#[test]
fn parts_are_mapped_as_the_whole_was() {
    for batching in BOTH {
        parts::<ModelWord<16>>(batching);
        parts::<ModelPair<16>>(batching);
        parts::<ModelCont<16, 4>>(batching);
        parts::<X86_64>(batching);
    }
}

fn leaf<A: Arch>() {
    let n = per_pmd::<A>();
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4 * n);
    let pfn = fault_pmd::<A>(&mm, n).expect("mapped");
    fill(&p, pfn, n);
    // As if the mapping had been locked until the folio was unmapped for the split.
    p.memmap().folio(pfn).mlock();
    split(&p, pfn, 0, 0, Batching::PerPage).expect("nobody holds it");
    for k in 0..n {
        assert!(!p.memmap().folio(pfn.add(k)).has(FolioFlags::MLOCKED), "no mapping is locked");
        let e = entry::<A>(&mm, n + k);
        assert!(e.is_writable(Level::Pte) && e.is_dirty() && e.pfn(Level::Pte) == pfn.add(k));
        let part = p.memmap().folio(pfn.add(k));
        assert_eq!((part.order(), part.refcount(), part.mapcount()), (0, 1, 1));
        assert!(p.memmap().page_exclusive(pfn.add(k)), "as its head was");
    }
    let stats = &p.memmap().stats().order[A::order(Level::Pmd) as usize];
    assert_eq!(stats.split_deferred.get(), 0, "a PMD-mapped one is unmapped at once");
    check(&p);
    exit(mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: FOLIO-53, FOLIO-22, PSPLIT-03, RMAP-06, S-SP1.
#[test]
fn a_folio_that_a_leaf_maps_splits() {
    leaf::<ModelWord<16>>();
    leaf::<ModelPair<16>>();
    leaf::<ModelCont<16, 4>>();
}

/// Rules: FOLIO-53, S-SP3, RMAP-17.
#[test]
fn a_folio_that_somebody_holds_is_left_alone() {
    type A = ModelWord<16>;
    for (pinned, batching) in [(true, BOTH[0]), (true, BOTH[1]), (false, BOTH[1])] {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 32);
        let pfn = fault::<A>(&mm, 16, 4).expect("mapped");
        let folio = p.memmap().folio(pfn);
        let before: Vec<_> = (16..32).map(|k| entry::<A>(&mm, k)).collect();
        let pin = pinned.then(|| folio.grab::<Pin>(3).expect("room"));
        let get = (!pinned).then(|| folio.grab::<Get>(1).expect("room"));
        let flushes = p.tlb().flushes.get();
        let failed = split(&p, pfn, 0, 0, batching);
        assert_eq!(failed.map_err(SplitError::errno), Err("EAGAIN"));
        assert!((16..32).map(|k| entry::<A>(&mm, k)).eq(before));
        assert!((0..16).all(|k| p.memmap().page_exclusive(pfn.add(k))));
        assert_eq!((folio.order(), p.events().get(Event::FolioSplitFailed)), (4, 4));
        assert_eq!(p.tlb().flushes.get(), flushes, "found out before the tables were touched");
        drop((pin, get));
        split(&p, pfn, 0, 0, batching).expect("nobody holds it");
        check(&p);
        exit(mm);
    }
}

/// Rules: FOLIO-51, FOLIO-52.
#[test]
fn what_does_not_split_says_why() {
    type A = ModelWord<16>;
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 32);
    let pfn = fault::<A>(&mm, 16, 4).expect("mapped");
    let folio = p.memmap().folio(pfn);
    for order in [1, 4, 5] {
        let failed = split(&p, pfn, order, 0, Batching::Batched);
        assert_eq!(failed, Err(SplitError::Order { from: 4, to: order }));
        assert_eq!(failed.map_err(SplitError::errno), Err("EINVAL"));
    }
    for keep in [16, u32::MAX] {
        let failed = split(&p, pfn, 2, keep, Batching::Batched);
        assert_eq!(failed, Err(SplitError::Page { keep, nr_pages: 16 }));
        assert_eq!(failed.map_err(SplitError::errno), Err("EINVAL"));
    }
    folio.set_flag(FolioFlags::WRITEBACK);
    let failed = split(&p, pfn, 0, 0, Batching::Batched);
    assert_eq!(failed.map_err(SplitError::errno), Err("EBUSY"));
    folio.clear_flag(FolioFlags::WRITEBACK);
    let zero = p.huge_zero().expect("there is one");
    assert!(matches!(split(&p, zero, 0, 0, Batching::Batched), Err(SplitError::Order { .. })));
    assert!((16..32).all(|k| entry::<A>(&mm, k).is_writable(Level::Pte)));
    check(&p);
    exit(mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: FOLIO-56, FOLIO-08, EXCL-05, S-SP5.
#[test]
fn zeros_become_the_zero_page_and_unmapped_pages_go() {
    type A = ModelWord<16>;
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 32);
    let pfn = fault::<A>(&mm, 16, 4).expect("mapped");
    fill(&p, pfn, 16);
    for k in [2, 3] {
        p.bytes().zero(pfn.add(k), 1);
    }
    munmap(&mm, 20, 1);
    assert_eq!(p.memmap().deferred_len(), 1);
    assert!(p.memmap().page_exclusive(pfn.add(4)), "a mark that nobody needs any more");
    split(&p, pfn, 0, 0, Batching::Batched).expect("nobody holds it");
    assert_eq!(p.memmap().deferred_len(), 0);
    for k in 0..16u64 {
        let e = entry::<A>(&mm, 16 + k);
        match k {
            2 | 3 => {
                assert!(e.is_special() && !e.is_writable(Level::Pte), "{e:?}");
                assert_eq!(e.pfn(Level::Pte), p.zero_page());
            }
            4 => assert!(e.is_none()),
            _ => assert_eq!(e.pfn(Level::Pte), pfn.add(k)),
        }
    }
    assert_eq!(mm.counters().get(RssKind::Anon), 13);
    assert_eq!(p.folios_in_use(), 13);
    check(&p);
    exit(mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: FOLIO-57, FOLIO-22, FOLIO-23, F-RACE-30.
#[test]
fn folios_that_wait_for_a_split_get_one() {
    type A = ModelWord<16>;
    for batching in BOTH {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 64);
        let pfns = [0, 16, 32].map(|page| fault::<A>(&mm, page, 4).expect("mapped"));
        for (page, pfn) in [0, 16, 32].into_iter().zip(pfns) {
            fill(&p, pfn, 16);
            munmap(&mm, page + 3, 1);
        }
        assert_eq!(p.memmap().deferred_len(), 3);
        // One is locked, one is held, one can be split.
        let lock = p.memmap().folio(pfns[0]).lock();
        let held = p.memmap().folio(pfns[1]).grab::<Get>(1).expect("room");
        let pass = split_deferred(&p, 8, 16, batching);
        assert_eq!(pass, DeferredPass { split: 1, requeued: 2, kept: 0 });
        assert_eq!(p.memmap().deferred_len(), 2);
        assert_eq!(p.memmap().folio(pfns[2]).order(), 0);
        let stats = &p.memmap().stats().order[4];
        assert_eq!(stats.nr_anon_partially_mapped.get(), 2);
        drop((lock, held));
        // One goes away by itself.
        munmap(&mm, 0, 16);
        let pass = split_deferred(&p, 8, 16, batching);
        assert_eq!(pass, DeferredPass { split: 1, requeued: 0, kept: 0 });
        assert_eq!((p.memmap().deferred_len(), p.folios_in_use()), (0, 30));
        check(&p);
        exit(mm);
        assert_eq!(p.folios_in_use(), 0);
    }
}

/// Rules: FOLIO-24, FOLIO-56, S-SP5.
#[test]
fn mostly_empty_folios_are_split_and_busy_ones_are_not() {
    type A = ModelWord<16>;
    let n = per_pmd::<A>();
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 8 * n);
    let pfns: Vec<_> = (0..3).map(|k| fault_pmd::<A>(&mm, k * n).expect("mapped")).collect();
    for pfn in &pfns {
        p.memmap().folio(*pfn).queue_deferred(QueueReason::MaybeUnderused);
        p.bytes().zero(*pfn, n);
    }
    // One page of the first is in use, all of the second; the third is locked in memory.
    p.bytes().store(pfns[0].add(5), 0, 1);
    fill(&p, pfns[1], n);
    p.memmap().folio(pfns[2]).mlock();
    let pass = split_deferred(&p, 8, 4, Batching::Batched);
    assert_eq!(pass, DeferredPass { split: 1, requeued: 0, kept: 2 });
    assert_eq!(p.memmap().deferred_len(), 0, "those are not asked again");
    assert_eq!(mm.counters().get(RssKind::Anon), 2 * n + 1);
    assert_eq!(frame_at::<A>(&mm, 5), pfns[0].add(5));
    assert!((0..n).filter(|k| *k != 5).all(|k| entry::<A>(&mm, k).is_special()));
    assert!(entry::<A>(&mm, n).is_leaf(Level::Pmd) && entry::<A>(&mm, 2 * n).is_leaf(Level::Pmd));
    assert_eq!(p.folios_in_use(), 3);
    p.memmap().folio(pfns[2]).munlock();
    check(&p);
    exit(mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: S-TS1, FOLIO-08.
#[test]
fn a_loop_that_leaves_one_page_of_each_folio_stays_bounded() {
    type A = ModelWord<16>;
    let n = per_pmd::<A>();
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4 * n);
    for round in 0..100 {
        let Some(pfn) = fault::<A>(&mm, n, 4) else { panic!("memory ran out in round {round}") };
        fill(&p, pfn, n);
        munmap(&mm, n, n - 1);
        mmap(&mm, n, n - 1);
        assert!(p.memmap().deferred_len() <= 1);
        split_deferred(&p, 1, 4, Batching::PerPage);
        assert_eq!((p.memmap().deferred_len(), p.folios_in_use()), (0, 1), "round {round}");
        munmap(&mm, 2 * n - 1, 1);
        mmap(&mm, 2 * n - 1, 1);
        mm_rmap::merge_vmas(&mut mm.write(), pages::<A>(0, 4 * n));
    }
    check(&p);
    exit(mm);
}

/// Rules: S-SP2, MREMAP-04.
#[test]
fn a_page_that_was_moved_elsewhere_is_found() {
    type A = ModelWord<16>;
    for batching in BOTH {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 32);
        let pfn = fault::<A>(&mm, 16, 4).expect("mapped");
        fill(&p, pfn, 16);
        mremap(&mm, 21, 1, 70);
        split(&p, pfn, 0, 5, batching).expect("nobody holds it");
        assert_eq!(frame_at::<A>(&mm, 70), pfn.add(5));
        assert!((0..16).all(|k| p.memmap().folio(pfn.add(k)).order() == 0));
        assert!((0..16).all(|k| p.memmap().page_mapcount(pfn.add(k)) == 1));
        check(&p);
        exit(mm);
        assert_eq!(p.folios_in_use(), 0);
    }
}

/// Rules: MIGR-01, FOLIO-48.
#[test]
fn a_page_that_has_failed_is_not_mapped_again() {
    type A = ModelWord<16>;
    for batching in BOTH {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 32);
        let pfn = fault::<A>(&mm, 16, 4).expect("mapped");
        fill(&p, pfn, 16);
        p.memmap().folio(pfn).poison(5);
        split(&p, pfn, 0, 0, batching).expect("nobody holds it");
        assert_eq!(mm.counters().get(RssKind::Anon), 15);
        for k in 0..16 {
            let e = entry::<A>(&mm, 16 + k);
            if k == 5 {
                assert_eq!(e.nonpresent(Level::Pte), Some(NonPresent::Hwpoison(pfn.add(5))));
            } else {
                assert_eq!(e.pfn(Level::Pte), pfn.add(k));
                assert!(e.is_writable(Level::Pte) && p.memmap().page_exclusive(pfn.add(k)));
            }
        }
        check(&p);
        exit(mm);
    }
}
