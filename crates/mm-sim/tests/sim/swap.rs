//! Swap on the machine: bytes go out and come back, errors hit who reads, nothing is left.

use crate::common::*;
use core::num::NonZeroU32;
use mm_arch::{Entry, Level, NonPresent, Rights, SwapSlot, respect};
use mm_fault::{FaultSignal, OrderMode, ShmemMode, ThpMode};
use mm_folio::{FolioFlags, FolioRef, FolioRun, Get};
use mm_map::Advice;
use mm_pgtable::LockedEntry;
use mm_rmap::swap_out_ptes;
use mm_sim::*;
use mm_vma::{Backing, Platform, RssKind, SlotRun, SwapSpace, VmaFlags, write_folio};
use std::sync::Arc;

const SLOTS: u64 = 600;

fn machine() -> M {
    let m = machine_of(16);
    m.host().swap().add::<A>(SLOTS).expect("room");
    m
}
/// A process with eight pages that hold 100 and more.
fn filled(m: &M) -> P {
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 8), RW).expect("mmap");
    for i in 0..8 {
        p.store(page(i), 100 + i).expect("store");
    }
    p
}
#[track_caller]
fn sound(m: &M, processes: &[&P]) {
    m.settle();
    assert_eq!(audit(m, processes.iter().copied(), []), []);
}
/// Turns the entry of a page into a swap entry and writes its folio, of one page, out.
fn swap_out(p: &P, at: u64) -> SwapSlot {
    let (host, mm) = (p.host(), p.mm());
    let vmas = mm.read();
    let LockedEntry::Table(mut table) = mm.tables().lock_entry(vmas.stay(), page(at)) else {
        panic!("no table at page {at}");
    };
    let index = table.index_of(page(at));
    let e = table.get(index);
    let own = host.memmap().folio(e.pfn(Level::Pte)).grab::<Get>(1).expect("room");
    let folio = own.folio();
    let locked = folio.lock();
    let slot = host.swap().slots().add(&locked).expect("room");
    let run = table.run::<{ respect::NOTHING }>(index, e, table.limit(index).at_most(1));
    let mut owed = mm.tables().tlb().obligation();
    let done = swap_out_ptes(mm, &mut table, folio, slot, 0, run, &mut owed);
    assert_eq!((done.nr, done.stopped), (1, None));
    owed.now();
    folio.remove_ptes(0, NonZeroU32::MIN, mm.id());
    host.memmap().put_run::<Get>(FolioRun::new(folio.head(), 0, 1));
    drop(table);
    if write_folio(host, &locked).is_ok() {
        assert!(host.swap().slots().evict(&locked));
    }
    slot
}
fn bus(i: u64) -> AccessError {
    AccessError::Signal(FaultSignal::Bus { va: page(i) })
}
fn lost(i: u64) -> AccessError {
    AccessError::Signal(FaultSignal::Poisoned { va: page(i) })
}
fn free(m: &M) -> u64 {
    m.host().swap().slots().nr_free()
}

/// Rules: SWPI-05, SWPI-08, INV-6.
#[test]
fn bytes_go_out_and_come_back() {
    let m = machine();
    let p = filled(&m);
    let frames = m.host().frames().nr_free();
    for i in 0..6 {
        swap_out(&p, i);
        sound(&m, &[&p]);
    }
    assert_eq!((m.host().frames().nr_free(), free(&m)), (frames + 6, SLOTS - 6));
    assert_eq!(p.mm().counters().get(RssKind::Swap), 6);
    let child = p.fork().expect("fork");
    sound(&m, &[&p, &child]);
    p.store(page(0), 7).expect("store");
    p.madvise(pages(1, 1), Advice::DontNeed).expect("mapped");
    sound(&m, &[&p, &child]);
    assert_eq!((p.load(page(0)), p.load(page(1))), (Ok(7), Ok(0)));
    for i in 0..8 {
        assert_eq!(child.load(page(i)), Ok(100 + i));
        sound(&m, &[&p, &child]);
    }
    drop((p, child));
    m.settle();
    assert_eq!((leaks(&m), free(&m)), (vec![], SLOTS));
}

/// Rules: SWPI-05.
#[test]
fn a_device_that_fails_hits_its_reader_alone() {
    let m = machine();
    let p = filled(&m);
    for i in 0..4 {
        swap_out(&p, i);
    }
    m.host().swap().fail_read_after(Some(0));
    assert_eq!(p.load(page(2)), Err(bus(2)));
    sound(&m, &[&p]);
    for i in 0..4 {
        assert_eq!(p.load(page(i)), Ok(100 + i));
    }
    // What cannot be written stays in memory.
    m.host().swap().fail_write_after(Some(0));
    let slot = swap_out(&p, 5);
    assert!(m.host().swap().slots().state(slot).is_some_and(|s| s.cached.is_some()));
    sound(&m, &[&p]);
    assert_eq!(p.take_faults().cpu.iter().filter(|f| f.major).count(), 4);
    assert_eq!(p.load(page(5)), Ok(105));
    assert_eq!(p.take_faults().cpu.iter().filter(|f| f.major).count(), 0);
    sound(&m, &[&p]);
}

/// Rules: SWAP-02, SWPI-07.
#[test]
fn a_slot_with_a_wrong_count_is_reported() {
    let m = machine();
    let p = filled(&m);
    let slot = swap_out(&p, 3);
    let run = SlotRun::new(slot, 1);
    m.host().swap().slots().dup(run).expect("few");
    let found = audit(&m, [&p], []);
    assert!(found.contains(&AuditViolation::SlotCount { slot, expected: 1, got: 2 }));
    let space = p.mm().tables().id();
    let exclusive = AuditViolation::ExclusiveSharedSlot { space, va: page(3), count: 2 };
    assert!(found.contains(&exclusive), "{found:?}");
    m.host().swap().slots().put(run);
    m.host().swap().slots().begin_read(run).expect("nobody has it");
    let found = audit(&m, [&p], []);
    assert_eq!(found, [AuditViolation::SlotCount { slot, expected: 1, got: 1 }]);
    m.host().swap().slots().end_read(run);
    sound(&m, &[&p]);
}

/// An object of 16 pages that hold 200 and more.
fn object(m: &M) -> Arc<Shmem<A, EventCounts>> {
    let object = Shmem::new(m.host(), ShmemKind::Mounted(ShmemMode::Never), 0).expect("memory");
    object.write(0, 16, &|index, _| 200 + index).expect("memory");
    object
}
/// Moves the folio that has page `index` to swap; whether it is gone then.
fn object_out(m: &M, object: &Shmem<A, EventCounts>, index: u64) -> bool {
    let run = object.cached(index).expect("cached");
    let own: FolioRef<'_, _, Get> = m.host().memmap().adopt_run(run);
    let locked = own.folio().lock();
    object.move_to_swap(index)
        && write_folio(m.host(), &locked).is_ok()
        && m.host().swap().slots().evict(&locked)
}

/// Rules: SWAP-06.
#[test]
fn shared_memory_has_its_pages_on_swap() {
    let m = machine();
    let o = object(&m);
    let p = m.spawn().expect("process");
    p.mmap_object(pages(0, 16), RW | VmaFlags::SHARED, o.clone(), 0).expect("mmap");
    for index in 0..12 {
        assert!(object_out(&m, &o, index));
    }
    sound(&m, &[&p]);
    assert_eq!((free(&m), o.peek(5, 8)), (SLOTS - 12, 205));
    // What cannot be read is lost, and its slot free.
    m.host().swap().fail_read_after(Some(0));
    assert_eq!((p.load(page(2)), p.load(page(2))), (Err(bus(2)), Err(bus(2))));
    assert_eq!((o.read(2, 0), o.is_missing(2)), (Err(FileError::Io), false));
    assert_eq!(p.load(page(3)), Ok(203));
    p.store(page(3), 9).expect("store");
    sound(&m, &[&p]);
    assert_eq!((free(&m), p.take_faults().cpu.iter().filter(|f| f.major).count()), (SLOTS - 10, 1));
    o.punch(2, 1);
    assert_eq!((p.load(page(2)), o.read(2, 0)), (Ok(0), Ok(0)));
    // Holes, the end, a call, the end of the object.
    o.punch(4, 2);
    assert_eq!((p.load(page(4)), p.load(page(6)), free(&m)), (Ok(0), Ok(206), SLOTS - 7));
    o.write(7, 1, &|_, _| 1).expect("read back first");
    o.truncate(9);
    sound(&m, &[&p]);
    assert_eq!((p.load(page(8)), p.load(page(7)), free(&m)), (Ok(208), Ok(1), SLOTS - 2));
    drop((p, o));
    m.settle();
    assert_eq!((leaks(&m), free(&m)), (vec![], SLOTS));
}

#[test]
fn a_page_on_its_way_out_is_taken_back() {
    let m = machine();
    let o = object(&m);
    let p = m.spawn().expect("process");
    p.mmap_object(pages(0, 16), RW | VmaFlags::SHARED, o.clone(), 0).expect("mmap");
    m.host().swap().fail_write_after(Some(0));
    assert!(!object_out(&m, &o, 2), "it could not be written");
    sound(&m, &[&p]);
    assert_eq!(o.peek(2, 0), 202);
    p.store(page(2), 3).expect("store");
    assert_eq!((p.load(page(2)), free(&m)), (Ok(3), SLOTS));
    let run = o.cached(2).expect("cached again");
    let own: FolioRef<'_, _, Get> = m.host().memmap().adopt_run(run);
    assert!(own.folio().has(FolioFlags::DIRTY) && !own.folio().has(FolioFlags::SWAPCACHE));
    drop(own);
    sound(&m, &[&p]);
}

/// A folio of the swap cache, some of whose pages are no pages of the object any more, gives
/// the others back all the same; and so do slots beside one that was read ahead.
///
/// Rules: SWPI-03, SWAP-04, MADV-09.
#[test]
fn parts_of_a_folio_come_back_from_swap() {
    let m = machine();
    let o = Shmem::new(m.host(), ShmemKind::Mounted(ShmemMode::Always), 0).expect("memory");
    o.write(0, 4, &|index, _| 200 + index).expect("memory");
    o.write(4, 4, &|index, _| 200 + index).expect("memory");
    let p = m.spawn().expect("process");
    p.mmap_object(pages(0, 8), RW | VmaFlags::SHARED, o.clone(), 0).expect("mmap");
    let run = o.cached(0).expect("cached");
    let own: FolioRef<'_, _, Get> = m.host().memmap().adopt_run(run);
    assert_eq!(own.folio().nr_pages(), 4);
    let locked = own.folio().lock();
    assert!(o.move_to_swap(0), "it stays in the cache");
    drop((locked, own));
    assert!(object_out(&m, &o, 5), "it does not");
    o.punch(1, 1);
    assert_eq!((o.read(1, 0), p.load(page(0)), p.load(page(3))), (Ok(0), Ok(200), Ok(203)));
    sound(&m, &[&p]);
    p.store(page(2), 9).expect("store");
    assert_eq!((nr_cached(&m), free(&m)), (0, SLOTS - 4));
    p.madvise_willneed(pages(6, 1)).expect("mapped");
    assert_eq!(nr_cached(&m), 1);
    for (i, word) in (0..8).zip([200, 0, 9, 203, 204, 205, 206, 207]) {
        assert_eq!(p.load(page(i)), Ok(word));
    }
    assert_eq!((nr_cached(&m), free(&m)), (0, SLOTS));
    sound(&m, &[&p]);
    drop((p, o));
    m.settle();
    assert_eq!((leaks(&m), free(&m)), (vec![], SLOTS));
}

/// Rules: SWAP-01.
#[test]
fn without_room_nothing_goes_out() {
    let m = machine();
    let o = object(&m);
    m.host().swap().slots().close();
    assert!(!object_out(&m, &o, 0));
    assert_eq!(
        (
            o.peek(0, 0),
            o.cached(0).is_some_and(|run| {
                drop(m.host().memmap().adopt_run::<Get>(run));
                true
            })
        ),
        (200, true)
    );
    // More slots than an entry of the format can name.
    assert!(m.host().swap().add::<A>(1 << 50).is_err());
}

/// As many small pages as are reclaimed at once, up to the end of a table, and a PMD leaf right
/// behind them.
#[test]
fn a_leaf_behind_all_that_goes_at_once_goes_too() {
    let m = machine_of(16);
    m.host().swap().add::<A>(1024).expect("room");
    m.host().set_policy(|p| {
        let thp = p.fault.thp.with_global(ThpMode::Always);
        p.fault.thp = (0..9).fold(thp, |thp, order| thp.with_order(order, OrderMode::Never));
    });
    let p = m.spawn().expect("process");
    let (first, nr) = (512 - 32, 32 + 512);
    p.mmap_anon(pages(first, nr), RW).expect("mmap");
    for i in first..first + nr {
        p.store(page(i), 100 + i).expect("store");
    }
    assert_eq!(p.take_faults().cpu.len(), 32 + 1);
    p.madvise_pageout(pages(first, nr)).expect("mapped");
    assert_eq!((p.mm().counters().resident(), free(&m)), (0, 1024 - nr));
    sound(&m, &[&p]);
    for i in [first, 511, 512, 1023] {
        assert_eq!(p.load(page(i)), Ok(100 + i));
    }
}

/// Rules: SWAP-03, SWPI-02, SWPI-08, SWPI-09, SWPI-10.
#[test]
fn without_its_devices_everything_is_in_memory() {
    let m = machine();
    let (p, o) = (filled(&m), object(&m));
    p.mmap_object(pages(100, 16), RW | VmaFlags::SHARED, o.clone(), 0).expect("mmap");
    for i in 0..6 {
        swap_out(&p, i);
    }
    (0..8).for_each(|i| assert!(object_out(&m, &o, i)));
    // Shared by a child, behind a mapping that allows nothing.
    let q = p.fork().expect("fork");
    p.mprotect(pages(4, 2), Rights::empty()).expect("mapped");
    q.store(page(0), 7).expect("store");
    m.host().frames().fail_after(Some(2));
    let failed = m.host().swap_off([&p, &q]).expect_err("no memory");
    assert_eq!(failed.errno(), "ENOMEM");
    sound(&m, &[&p, &q]);
    assert!(free(&m) > 0, "it is in use as before");
    assert_eq!(m.host().swap_off([&p]), Err(SwapOffError::Busy), "the child has some");
    assert_eq!(m.host().swap_off([&p, &q]), Ok(()));
    sound(&m, &[&p, &q]);
    assert_eq!((free(&m), m.host().swap().slots().in_use().count()), (0, 0));
    for of in [&p, &q] {
        assert_eq!(of.mm().counters().get(RssKind::Swap), 0);
        of.take_faults();
    }
    p.mprotect(pages(4, 2), Rights::READ).expect("mapped");
    for i in 0..8 {
        assert_eq!(p.load(page(i)), Ok(100 + i));
        assert_eq!(q.load(page(i)), Ok(if i == 0 { 7 } else { 100 + i }));
        assert_eq!(q.load(page(100 + i)), Ok(200 + i));
    }
    let major = |of: &P| of.take_faults().cpu.iter().filter(|f| f.major).count();
    assert_eq!((major(&p), major(&q)), (0, 0));
    // A new device takes its place.
    q.exit();
    m.host().swap().add::<A>(SLOTS).expect("room");
    swap_out(&p, 7);
    assert_eq!((p.load(page(7)), free(&m)), (Ok(107), SLOTS));
    drop((p, o));
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// What could not be written stays in the cache; it moves and splits like anything else.
///
/// Rules: MIGR-03, FOLIO-46, FOLIO-54.
#[test]
fn what_is_in_the_cache_moves_and_splits() {
    let m = machine();
    m.host().set_policy(|p| {
        p.fault.thp = p.fault.thp.with_global(ThpMode::Never).with_order(2, OrderMode::Always);
    });
    let p = filled(&m);
    m.host().swap().fail_write_after(Some(0));
    p.madvise_pageout(pages(0, 8)).expect("mapped");
    let mut state = m.host().swap().slots().in_use();
    let (slot, cached) =
        state.find_map(|s| Some((s.slot, s.cached?))).expect("one could not be written");
    let own = m.host().memmap().folio(cached).grab::<Get>(1).expect("room");
    assert!(own.folio().is_large() && !own.folio().is_mapped());
    m.host().migrate(&own).expect("nobody holds it");
    drop(own);
    sound(&m, &[&p]);
    let moved = m.host().swap().slots().state(slot).and_then(|s| s.cached);
    let moved = moved.expect("cached as before");
    assert_ne!(moved, cached);
    let own = m.host().memmap().folio(moved).grab::<Get>(1).expect("room");
    m.host().split(own, 0).expect("nobody holds it");
    sound(&m, &[&p]);
    assert_eq!(m.host().memmap().folio(moved).order(), 0);
    p.madvise(pages(1, 1), Advice::DontNeed).expect("mapped");
    sound(&m, &[&p]);
    for i in 0..8 {
        assert_eq!(p.load(page(i)), Ok(if i == 1 { 0 } else { 100 + i }));
        sound(&m, &[&p]);
    }
    drop(p);
    m.settle();
    assert_eq!((leaks(&m), free(&m)), (vec![], SLOTS));
}

fn nr_cached(m: &M) -> usize {
    m.host().swap().slots().in_use().filter(|s| s.cached.is_some()).count()
}

/// Entries stay what they are; the fault finds the page in the cache. A device that fails and
/// memory that is short are the fault's business.
///
/// Rules: MADV-09, SWPI-02, INV-6.
#[test]
fn what_is_read_ahead_waits_in_the_cache() {
    let m = machine();
    let p = filled(&m);
    for i in 0..6 {
        swap_out(&p, i);
    }
    let (frames, resident) = (m.host().frames().nr_free(), p.mm().counters().resident());
    p.take_faults();
    m.host().swap().fail_read_after(Some(1));
    p.madvise_willneed(pages(0, 4)).expect("mapped");
    sound(&m, &[&p]);
    assert_eq!((nr_cached(&m), m.host().frames().nr_free()), (3, frames - 3));
    p.madvise_willneed(pages(0, 4)).expect("mapped");
    m.host().frames().fail_after(Some(0));
    p.madvise_willneed(pages(0, 8)).expect("mapped");
    sound(&m, &[&p]);
    assert_eq!((nr_cached(&m), m.host().frames().nr_free()), (4, frames - 4));
    let counters = p.mm().counters();
    assert_eq!((counters.resident(), counters.get(RssKind::Swap)), (resident, 6));
    assert!(p.take_faults().cpu.is_empty());
    // Given up, it is nowhere.
    p.madvise(pages(3, 1), Advice::DontNeed).expect("mapped");
    assert_eq!((nr_cached(&m), free(&m)), (3, SLOTS - 5));
    for i in 0..6 {
        assert_eq!(p.load(page(i)), Ok(if i == 3 { 0 } else { 100 + i }));
        sound(&m, &[&p]);
    }
    let major: Vec<_> = p.take_faults().cpu.iter().filter(|f| f.major).map(|f| f.va).collect();
    assert_eq!(major, [page(4), page(5)]);
    drop(p);
    m.settle();
    assert_eq!((leaks(&m), free(&m)), (vec![], SLOTS));
}

/// Rules: MADV-09, RECL-08.
#[test]
fn what_is_read_ahead_in_vain_goes_again() {
    let m = machine();
    let p = filled(&m);
    for i in 0..6 {
        swap_out(&p, i);
    }
    p.madvise_willneed(pages(0, 8)).expect("mapped");
    assert_eq!(nr_cached(&m), 6);
    // The two that are mapped were stored to and may stay or go.
    let got = m.host().reclaim_everywhere("24K swappiness=max").expect("there is some");
    assert!(got >= 6, "{got}");
    sound(&m, &[&p]);
    assert_eq!(nr_cached(&m), 0);
    (0..8).for_each(|i| assert_eq!(p.load(page(i)), Ok(100 + i)));
    sound(&m, &[&p]);
}

/// What an object of shared memory has in swap is read ahead, and nothing made; the fault that
/// finds it in the cache is a minor one.
///
/// Rules: MADV-09.
#[test]
fn shared_memory_is_read_ahead() {
    let m = machine();
    let (p, o) = (m.spawn().expect("process"), object(&m));
    o.truncate(24);
    p.mmap_object(pages(0, 24), RW | VmaFlags::SHARED, o.clone(), 0).expect("mmap");
    (2..10).for_each(|i| assert!(object_out(&m, &o, i)));
    let frames = m.host().frames().nr_free();
    m.host().swap().fail_read_after(Some(2));
    p.madvise_willneed(pages(4, 20)).expect("mapped");
    sound(&m, &[&p]);
    assert_eq!((nr_cached(&m), m.host().frames().nr_free()), (5, frames - 5));
    assert!(o.is_swapped(5) && o.cached(5).is_none());
    for i in 2..10 {
        assert_eq!(p.load(page(i)), Ok(200 + i));
    }
    sound(&m, &[&p]);
    assert_eq!((nr_cached(&m), free(&m), o.is_swapped(5)), (0, SLOTS, false));
    let major: Vec<_> = p.take_faults().cpu.iter().filter(|f| f.major).map(|f| f.va).collect();
    assert_eq!(major, [page(2), page(3), page(6)]);
    // With the object goes what was read for it.
    (2..10).for_each(|i| drop(o.cached(i).map(|run| m.host().memmap().adopt_run::<Get>(run))));
    p.madvise_pageout(pages(0, 16)).expect("mapped");
    p.madvise_willneed(pages(0, 4)).expect("mapped");
    assert!(nr_cached(&m) >= 4);
    drop((p, o));
    m.settle();
    assert_eq!((leaks(&m), free(&m)), (vec![], SLOTS));
}

/// A device that fails on its way out of use takes nothing along: what it does not give is
/// poisoned in every space and in objects, and the rest comes back.
///
/// Rules: SWAP-06, SWPI-01, UFFD-05, UFFD-06, INV-6.
#[test]
fn what_a_device_does_not_give_back_is_lost() {
    let m = machine();
    let (p, o) = (filled(&m), object(&m));
    p.mmap_object(pages(100, 16), RW | VmaFlags::SHARED, o.clone(), 0).expect("mmap");
    for i in 0..6 {
        swap_out(&p, i);
    }
    (0..4).for_each(|i| assert!(object_out(&m, &o, i)));
    let q = p.fork().expect("fork");
    // The second page of the one; the other reads it again, and finds it.
    m.host().swap().fail_read_after(Some(1));
    assert_eq!(m.host().swap_off([&p, &q]), Ok(()));
    sound(&m, &[&p, &q]);
    assert_eq!((free(&m), m.host().swap().slots().in_use().count()), (0, 0));
    assert_eq!([&p, &q].map(|of| of.mm().counters().get(RssKind::Swap)), [0, 0]);
    assert_eq!((p.load(page(1)), p.store(page(1), 1)), (Err(lost(1)), Err(lost(1))));
    // A child does not get what its parent has not, and the place can be given up.
    let c = p.fork().expect("fork");
    assert_eq!((c.load(page(1)), q.load(page(1))), (Err(lost(1)), Ok(101)));
    p.madvise(pages(1, 1), Advice::DontNeed).expect("mapped");
    assert_eq!((p.load(page(1)), c.load(page(1))), (Ok(0), Err(lost(1))));
    for i in (0..8).filter(|i| *i != 1) {
        assert_eq!((p.load(page(i)), q.load(page(i))), (Ok(100 + i), Ok(100 + i)));
    }
    c.exit();
    // Of an object, where all who map it look.
    m.host().swap().add::<A>(SLOTS).expect("room");
    (0..4).for_each(|i| assert!(object_out(&m, &o, i)));
    m.host().swap().fail_read_after(Some(2));
    assert_eq!(m.host().swap_off([&p, &q]), Ok(()));
    sound(&m, &[&p, &q]);
    for of in [&p, &q] {
        assert_eq!(of.load(page(102)), Err(bus(102)));
        assert_eq!((of.load(page(101)), of.load(page(103))), (Ok(201), Ok(203)));
    }
    sound(&m, &[&p, &q]);
    p.exit();
    q.exit();
    drop(o);
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// A private copy that is lost is not the file's page again because the file has a hole there; it
/// goes with the end of the file.
///
/// Rules: ZAP-07, ZAP-08, SWAP-06.
#[test]
fn a_lost_copy_is_lost_until_the_file_ends_before_it() {
    let m = machine();
    let f = File::new(m.host(), 4).expect("memory");
    let p = m.spawn().expect("process");
    p.mmap_object(pages(0, 4), RW, f.clone(), 0).expect("mmap");
    (0..3).for_each(|i| p.store(page(i), 100 + i).expect("store"));
    swap_out(&p, 1);
    swap_out(&p, 2);
    m.host().swap().fail_read_after(Some(0));
    assert_eq!(m.host().swap_off([&p]), Ok(()));
    assert!(f.punch(0, 4));
    sound(&m, &[&p]);
    assert_eq!([0, 1, 2].map(|i| p.load(page(i))), [Ok(100), Err(lost(1)), Ok(102)]);
    f.truncate(1);
    f.truncate(4);
    assert_eq!([0, 1, 2].map(|i| p.load(page(i))), [Ok(100), Ok(0), Ok(0)]);
    sound(&m, &[&p]);
    drop((p, f));
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// A page that failed in memory while its slot was read ahead is no other page's.
///
/// Rules: SWAP-06, SWPI-02.
#[test]
fn a_page_of_the_cache_that_has_failed_is_lost() {
    let m = machine();
    let p = filled(&m);
    let slot = swap_out(&p, 3);
    swap_out(&p, 4);
    p.madvise_willneed(pages(3, 1)).expect("mapped");
    let cached = m.host().swap().slots().state(slot).and_then(|s| s.cached).expect("cached");
    m.host().memmap().folio(cached).poison(0);
    assert_eq!(m.host().swap_off([&p]), Ok(()));
    m.settle();
    assert_eq!((p.load(page(3)), p.load(page(4))), (Err(lost(3)), Ok(104)));
    let vmas = p.mm().read();
    let table = p.mm().tables().lock_table(vmas.stay(), page(3)).expect("there");
    let e = table.get(table.index_of(page(3)));
    assert_eq!(e.nonpresent(Level::Pte), Some(NonPresent::Hwpoison(cached)));
    assert_eq!(p.mm().counters().get(RssKind::Swap), 0);
}
