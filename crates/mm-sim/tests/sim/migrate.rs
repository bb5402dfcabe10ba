//! Memory that moves while processes use it.

use crate::common::*;
use mm_arch::{Entry, Level, Pfn};
use mm_fault::{OrderMode, ShmemMode, ThpMode};
use mm_folio::{FolioFlags, Get};
use mm_gup::{GupErrorKind, GupFlags};
use mm_pgtable::LockedEntry;
use mm_rmap::{Batching, Leaves, MigrationError, suspend_mappings};
use mm_sim::*;
use mm_vma::{Platform, RssKind, VmaFlags};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SHARED: VmaFlags = RW.union(VmaFlags::SHARED);

fn machine() -> M {
    machine_of(64)
}
/// Faults get folios of this order.
fn large(m: &M, order: u32) {
    m.host().set_policy(|p| {
        let thp = p.fault.thp;
        p.fault.thp = thp.with_global(ThpMode::Never).with_order(order, OrderMode::Always);
    });
}
fn pfn_at(p: &P, i: u64) -> Pfn {
    let vmas = p.mm().read();
    match p.mm().tables().lock_entry(vmas.stay(), page(i)) {
        LockedEntry::Table(t) => t.get(t.index_of(page(i))).pfn(Level::Pte),
        LockedEntry::Huge(pmd) => pmd.entry().pfn(Level::Pmd).add(i % 512),
        LockedEntry::Hole => panic!("nothing at {i}"),
    }
}
#[track_caller]
fn sound(m: &M, processes: &[&P]) {
    m.settle();
    assert_eq!(audit(m, processes.iter().copied(), []), []);
}
fn own<'m>(m: &'m M, pfn: Pfn) -> mm_folio::FolioRef<'m, Host<A>, Get> {
    m.host().memmap().folio(pfn).grab::<Get>(1).expect("room")
}
fn stuck(m: &M, pfn: Pfn) {
    m.host().memmap().folio(pfn).set_flag(FolioFlags::NO_LONGTERM);
}

/// Rules: MIGR-03, FOLIO-01, P-RACE-08.
#[test]
fn pages_of_files_move_with_their_mappings_and_their_place() {
    let m = machine();
    let file = Shmem::new(m.host(), ShmemKind::Mounted(ShmemMode::Always), 0).expect("memory");
    file.write(0, 32, &|index, _| 0xf00 + index).expect("written");
    let (p, q) = (m.spawn().expect("process"), m.spawn().expect("process"));
    p.mmap_object(pages(0, 32), SHARED, file.clone(), 0).expect("mapped");
    q.mmap_object(pages(64, 16), RW, file.clone(), 8).expect("mapped");
    for i in 0..32 {
        assert_eq!(p.load(page(i)), Ok(0xf00 + i));
    }
    p.store(page(9), 0x77).expect("stored");
    assert_eq!(q.load(page(65)), Ok(0x77));
    q.store(page(66), 0x88).expect("stored");
    let old = pfn_at(&p, 9);
    let folio = m.host().memmap().folio(old);
    assert!(folio.is_large());
    let held = own(&m, old);
    m.host().migrate(&held).expect("nobody holds it");
    assert_eq!((held.folio().refcount(), held.folio().file()), (1, None));
    drop(held);
    sound(&m, &[&p, &q]);
    assert_ne!(pfn_at(&p, 9), old);
    assert_eq!(pfn_at(&p, 9), pfn_at(&q, 65), "both follow");
    p.take_faults();
    p.store(page(9), 0x99).expect("stored");
    assert_eq!((q.load(page(65)), file.read(9, 0)), (Ok(0x99), Ok(0x99)));
    assert_eq!((p.load(page(10)), q.load(page(66))), (Ok(0xf0a), Ok(0x88)), "a private copy");
    assert_eq!(p.take_faults().cpu.len(), 0, "nothing had to be found again");
    p.exit();
    q.exit();
    drop(file);
    m.settle();
    assert_eq!(leaks(&m), []);
}

fn is_leaf(p: &P, at: u64) -> bool {
    let vmas = p.mm().read();
    match p.mm().tables().lock_entry(vmas.stay(), page(at)) {
        LockedEntry::Huge(pmd) => pmd.entry().is_leaf(Level::Pmd),
        _ => false,
    }
}
/// An object of shared memory with two folios of 2 MiB, whose pages hold 0xf00 and more.
fn huge_object(m: &M) -> std::sync::Arc<Shmem<A, EventCounts>> {
    let object = Shmem::new(m.host(), ShmemKind::Mounted(ShmemMode::Always), 0).expect("memory");
    object.write(0, 1024, &|index, _| 0xf00 + index).expect("written");
    object
}
/// A process that maps it by a leaf.
fn with_leaf(m: &M, object: &std::sync::Arc<Shmem<A, EventCounts>>) -> P {
    let p = m.spawn().expect("process");
    p.mmap_object(pages(0, 512), SHARED, object.clone(), 0).expect("mapped");
    p.store(page(5), 0xf05).expect("stored");
    assert!(is_leaf(&p, 0));
    p.take_faults();
    p
}
fn shmem_rss(p: &P) -> u64 {
    p.mm().counters().get(RssKind::Shmem)
}

/// Leaves of shared memory stand still while their folio moves, as those of private memory do.
///
/// Rules: MIGR-01, MIGR-03, MIGR-05.
#[test]
fn a_leaf_of_shared_memory_moves_as_a_leaf() {
    let m = machine();
    let object = huge_object(&m);
    let (p, q) = (with_leaf(&m, &object), m.spawn().expect("process"));
    // Another one maps some of it by PTEs.
    q.mmap_object(pages(7, 100), SHARED, object.clone(), 30).expect("mapped");
    assert_eq!(q.load(page(7)), Ok(0xf00 + 30));
    q.take_faults();
    let (old, by_ptes) = (pfn_at(&p, 0), shmem_rss(&q));
    assert!(by_ptes > 0 && pfn_at(&q, 7) == old.add(30));
    let held = own(&m, old);
    m.host().migrate(&held).expect("nobody holds it");
    drop(held);
    sound(&m, &[&p, &q]);
    let new = pfn_at(&p, 0);
    assert!(new != old && is_leaf(&p, 0) && pfn_at(&q, 7) == new.add(30));
    let folio = m.host().memmap().folio(new);
    let mapped = by_ptes as u32 + 1;
    assert_eq!(folio.counts_locked(|c| (c.mapcount, c.entire)), (mapped, 1));
    assert_eq!((shmem_rss(&p), shmem_rss(&q)), (512, by_ptes));
    p.store(page(30), 9).expect("stored");
    assert_eq!(
        (q.load(page(7)), p.load(page(511)), object.read(5, 0)),
        (Ok(9), Ok(0xf00 + 511), Ok(0xf05))
    );
    assert!(p.take_faults().cpu.is_empty() && q.take_faults().cpu.is_empty());
    assert_eq!(m.host().observer().pmd_split.get(), 0);
    p.exit();
    q.exit();
    drop(object);
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Whoever unmaps, splits, shares, moves or protects what stands for a leaf of shared memory
/// finds what a leaf would be: it is taken away where it would be taken away.
///
/// Rules: MIGR-05, MIGR-04, PSPLIT-01, ZAP-07, FORK-11, MPROT-05, MREMAP-05, INV-6.
#[test]
fn suspended_leaves_of_shared_memory_do_as_leaves_do() {
    let m = machine();
    let object = huge_object(&m);
    let all: Vec<P> = (0..5).map(|_| with_leaf(&m, &object)).collect();
    let [whole, part, read, moved, parent] = &all[..] else { panic!("five") };
    // A private mapping with a page of its own has its tables copied.
    let private = m.spawn().expect("process");
    private.mmap_object(pages(0, 1024), RW, object.clone(), 0).expect("mapped");
    private.store(page(600), 3).expect("stored");
    assert_eq!((private.load(page(5)), is_leaf(&private, 0)), (Ok(0xf05), true));
    let pfn = pfn_at(parent, 0);
    let held = own(&m, pfn);
    let locked = held.folio().lock();
    let suspended = suspend_mappings(m.host(), &locked, Leaves::Keep, Batching::Batched);
    let suspended = suspended.expect("nobody holds it");
    assert_eq!((held.folio().mapcount(), shmem_rss(parent)), (0, 512));
    whole.madvise(pages(0, 512), mm_map::Advice::DontNeed).expect("mapped");
    part.munmap(pages(100, 1)).expect("munmap");
    read.mprotect(pages(0, 512), mm_arch::Rights::READ).expect("mprotect");
    moved.mremap_move(pages(0, 512), page(1024), mm_map::OldPlace::Unmap).expect("mremap");
    let child = private.fork().expect("fork");
    let every = [whole, part, read, moved, parent, &private, &child];
    assert_eq!(every.map(shmem_rss), [0, 0, 512, 512, 512, 512, 0]);
    suspended.resume_at(pfn);
    drop((locked, held));
    sound(&m, &every);
    assert_eq!(m.host().memmap().folio(pfn).mapcount(), 4);
    assert!(is_leaf(read, 0) && is_leaf(moved, 1024) && is_leaf(&private, 0));
    assert!(read.store(page(5), 1).is_err(), "that right was taken away meanwhile");
    moved.store(page(1024 + 5), 7).expect("stored");
    for of in [whole, part, read, parent, &private, &child] {
        assert_eq!((of.load(page(5)), of.load(page(6))), (Ok(7), Ok(0xf06)));
    }
    assert!(part.load(page(100)).is_err());
    sound(&m, &every);
    child.exit();
    private.exit();
    all.into_iter().for_each(P::exit);
    drop(object);
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Rules: LT-02, LT-03, MIGR-02.
#[test]
fn a_longterm_pin_moves_what_is_in_its_way() {
    for order in [0u32, 4, 9] {
        let m = machine();
        if order > 0 {
            large(&m, order);
        }
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 1024), RW).expect("mmap");
        for i in 0..4 {
            p.store(page(512 + i), 40 + i).expect("store");
        }
        let old = pfn_at(&p, 512);
        stuck(&m, old);
        let flags = GupFlags::WRITE | GupFlags::LONGTERM;
        let pin = p.pin(page(512), 4, flags).expect("pinned elsewhere");
        let new = pfn_at(&p, 512);
        assert_ne!(new, old, "order {order}");
        assert_eq!(pin.runs()[0].head, m.host().memmap().folio(new).head());
        assert!((0..4).all(|i| pin.load(i, 0) == Some(40 + i as u64)));
        p.store(page(513), 7).expect("store");
        assert_eq!(pin.load(1, 0), Some(7));
        m.settle();
        assert_eq!(audit(&m, [&p], [&pin]), []);
        drop(pin);
        p.exit();
        m.settle();
        assert_eq!(leaks(&m), []);
    }
}

/// Rules: LT-03, MIGR-01.
#[test]
fn what_somebody_holds_refuses_a_longterm_pin() {
    let m = machine();
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 16), RW).expect("mmap");
    p.store(page(3), 5).expect("store");
    let pfn = pfn_at(&p, 3);
    stuck(&m, pfn);
    let short = p.pin(page(3), 1, GupFlags::WRITE).expect("short pins stay");
    let refused = p.pin(page(3), 1, GupFlags::WRITE | GupFlags::LONGTERM);
    match refused {
        Err(RemoteError::Gup(e)) => assert_eq!(e.kind, GupErrorKind::NoMemory),
        other => panic!("{other:?}"),
    }
    assert_eq!((pfn_at(&p, 3), p.load(page(3))), (pfn, Ok(5)));
    assert_eq!(m.host().migrate(&own(&m, pfn)), Err(MigrationError::Busy));
    drop(short);
    // Without memory neither.
    m.host().frames().fail_after(Some(0));
    assert!(p.pin(page(3), 1, GupFlags::WRITE | GupFlags::LONGTERM).is_err());
    m.host().frames().fail_after(None);
    sound(&m, &[&p]);
    let pin = p.pin(page(3), 1, GupFlags::WRITE | GupFlags::LONGTERM).expect("moved");
    assert_eq!(pin.load(0, 0), Some(5));
}

/// Rules: MIGR-04, F-RACE-27, FORK-10, ZAP-07, MPROT-05, MREMAP-01.
#[test]
fn whoever_changes_suspended_mappings_is_obeyed() {
    for batching in [Batching::PerPage, Batching::Batched] {
        let m = machine();
        large(&m, 4);
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 16), RW).expect("mmap");
        for i in 0..16 {
            p.store(page(i), 40 + i).expect("store");
        }
        let pfn = pfn_at(&p, 0);
        let held = own(&m, pfn);
        let locked = held.folio().lock();
        let suspended =
            suspend_mappings(m.host(), &locked, Leaves::Keep, batching).expect("not pinned");
        assert_eq!(p.mm().counters().get(RssKind::Anon), 16);
        // Two pages go, two get fewer rights, two move; then a child shares the rest.
        p.munmap(pages(2, 2)).expect("munmap");
        p.mprotect(pages(4, 2), mm_arch::Rights::READ).expect("mprotect");
        p.mremap_move(pages(6, 2), page(100), mm_map::OldPlace::Unmap).expect("mremap");
        let c = p.fork().expect("fork");
        assert_eq!(p.mm().counters().get(RssKind::Anon), 14);
        assert_eq!(c.mm().counters().get(RssKind::Anon), 14);
        // GUP finds nothing that it may take, and does not wait for ever.
        assert!(p.get(page(8), 1, GupFlags::NOFAULT).is_err());
        suspended.resume_at(pfn);
        drop((locked, held));
        sound(&m, &[&p, &c]);
        let folio = m.host().memmap().folio(pfn);
        assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), (28, 28));
        for (i, at) in (0..16).map(|i| (i, if matches!(i, 6 | 7) { 94 + i } else { i })) {
            if !matches!(i, 2 | 3) {
                assert_eq!((p.load(page(at)), c.load(page(at))), (Ok(40 + i), Ok(40 + i)));
            }
        }
        assert!(p.store(page(4), 1).is_err(), "that right was taken away meanwhile");
        p.store(page(101), 9).expect("store");
        assert_eq!((p.load(page(101)), c.load(page(101))), (Ok(9), Ok(47)), "and this one shared");
        sound(&m, &[&p, &c]);
        c.exit();
        p.exit();
        m.settle();
        assert_eq!(leaks(&m), []);
    }
}

/// Rules: S-DY3, S-DY4.
#[test]
fn dirt_does_not_become_a_right_by_moving() {
    for order in [2, 9] {
        let m = machine();
        large(&m, order);
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 512), RW).expect("mmap");
        p.store(page(1), 5).expect("store");
        p.mprotect(pages(0, 512), mm_arch::Rights::READ).expect("mprotect");
        let held = own(&m, pfn_at(&p, 1));
        m.host().migrate(&held).expect("free");
        drop(held);
        assert!(p.store(page(1), 6).is_err());
        assert_eq!(p.load(page(1)), Ok(5));
        sound(&m, &[&p]);
        p.exit();
    }
}

/// Rules: S-SP4, FOLIO-52..54.
#[test]
fn a_folio_of_shared_memory_splits_to_every_order() {
    for order in 0..9 {
        let m = machine();
        let file = Shmem::new(m.host(), ShmemKind::Mounted(ShmemMode::Always), 0).expect("memory");
        file.write(0, 512, &|index, _| 0xf00 + index).expect("written");
        let p = m.spawn().expect("process");
        p.mmap_object(pages(0, 512), SHARED, file.clone(), 0).expect("mapped");
        assert_eq!(p.load(page(3)), Ok(0xf03));
        let pfn = pfn_at(&p, 3);
        let held = own(&m, pfn);
        assert_eq!(m.host().split(own(&m, pfn), order).map_err(|e| e.errno()), Err("EAGAIN"));
        drop(held);
        assert_eq!(m.host().split(own(&m, pfn), 9).map_err(|e| e.errno()), Err("EINVAL"));
        assert_eq!(m.host().split(own(&m, pfn), order), Ok(()));
        let part = m.host().memmap().folio(pfn);
        assert_eq!((part.order(), part.file().map(|f| f.1)), (order, Some(3 >> order << order)));
        for i in [0, 3, 255, 511] {
            assert_eq!(p.load(page(i)), Ok(0xf00 + i));
        }
        sound(&m, &[&p]);
        p.exit();
        drop(file);
        m.settle();
        assert_eq!(leaks(&m), []);
    }
}

/// Rules: S-SP1, S-SP3, FOLIO-53.
#[test]
fn huge_folios_split_with_their_data() {
    let m = machine();
    large(&m, 9);
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 2048), RW).expect("mmap");
    for i in 0..2048 {
        p.store(page(i), 7000 + i).expect("store");
    }
    let pin = p.pin(page(700), 1, GupFlags::WRITE).expect("pinned");
    for k in 0..4 {
        let split = m.host().split(own(&m, pfn_at(&p, k * 512)), 0);
        assert_eq!(split.map_err(|e| e.errno()), if k == 1 { Err("EAGAIN") } else { Ok(()) });
    }
    for i in 0..2048 {
        assert_eq!(p.load(page(i)), Ok(7000 + i));
        let order = m.host().memmap().folio(pfn_at(&p, i)).order();
        assert_eq!(order, if i / 512 == 1 { 9 } else { 0 });
    }
    drop(pin);
    sound(&m, &[&p]);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Rules: MPROT-08, RMAP-06, POP-02.
#[test]
fn locked_memory_is_there() {
    let m = machine();
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 16), RW).expect("mmap");
    p.mprotect(pages(0, 16), mm_arch::Rights::READ).expect("mprotect");
    p.mlock(pages(0, 16), mm_map::LockWhen::Now).expect("locked");
    assert_eq!(p.mm().counters().get(RssKind::Anon), 0, "zero pages will do");
    let rw = mm_arch::Rights::READ | mm_arch::Rights::WRITE;
    p.mprotect(pages(0, 16), rw).expect("mprotect");
    p.take_faults();
    p.store(page(9), 1).expect("store");
    assert_eq!(p.take_faults().cpu.len(), 0, "no fault later");
    p.mremap_resize(pages(0, 16), 32 << 12).expect("grown");
    assert_eq!(p.mm().counters().get(RssKind::Anon), 32);
    let folio = m.host().memmap().folio(pfn_at(&p, 20));
    assert!(folio.has(FolioFlags::MLOCKED | FolioFlags::UNEVICTABLE));
    sound(&m, &[&p]);
    // What moves and what splits stays locked.
    let held = own(&m, pfn_at(&p, 20));
    m.host().migrate(&held).expect("free");
    drop(held);
    assert!(m.host().memmap().folio(pfn_at(&p, 20)).has(FolioFlags::MLOCKED));
    sound(&m, &[&p]);
    assert_eq!(p.mlock(pages(40, 1), mm_map::LockWhen::Now).map_err(|e| e.errno()), Err("ENOMEM"));
    p.munlock(pages(0, 32)).expect("unlocked");
    assert!(!m.host().memmap().folio(pfn_at(&p, 20)).has(FolioFlags::MLOCKED));
    sound(&m, &[&p]);
    p.exit();
}

/// Whoever unlocks memory finds nothing of what is on its way; it comes back as its mapping is by
/// then.
///
/// Rules: RMAP-06, MIGR-03.
#[test]
fn what_is_unlocked_on_its_way_is_not_locked_for_nobody() {
    for order in [0, 2, 9] {
        let m = machine();
        large(&m, order);
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 512), RW).expect("mmap");
        p.store(page(5), 1).expect("store");
        p.mlock(pages(0, 512), mm_map::LockWhen::Touched).expect("locked");
        let held = own(&m, pfn_at(&p, 5));
        let (folio, locked) = (held.folio(), held.folio().lock());
        assert!(folio.order() == order && folio.has(FolioFlags::MLOCKED));
        let suspended = suspend_mappings(m.host(), &locked, Leaves::Keep, Batching::Batched);
        let suspended = suspended.expect("not pinned");
        p.munlock(pages(0, 512)).expect("unlocked");
        suspended.resume_at(folio.head());
        assert!(!folio.has(FolioFlags::MLOCKED));
        drop((locked, held));
        sound(&m, &[&p]);
        p.exit();
    }
}

/// Rules: S-MG1, MIGR-04.
#[test]
fn threads_go_on_while_their_memory_moves() {
    let m = machine();
    large(&m, 2);
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 16), RW).expect("mmap");
    for i in 0..16 {
        p.store(page(i), 0).expect("store");
    }
    let (done, mut moved) = (AtomicBool::new(false), 0);
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let mut round = 0;
            while !done.load(Relaxed) {
                round += 1;
                for i in 0..16 {
                    assert_eq!(p.load(page(i)), Ok(round - 1), "page {i}");
                    p.store(page(i), round).expect("store");
                }
            }
        });
        while moved < 200 && !writer.is_finished() {
            for i in (0..16).step_by(4) {
                let held = {
                    let vmas = p.mm().read();
                    let table = p.mm().tables().lock_table(vmas.stay(), page(i)).expect("there");
                    let e = table.get(table.index_of(page(i)));
                    own(&m, e.pfn(Level::Pte))
                };
                moved += u32::from(m.host().migrate(&held).is_ok());
            }
        }
        done.store(true, Relaxed);
        writer.join().expect("no access failed");
    });
    assert!(moved >= 200);
    sound(&m, &[&p]);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// A place that a mapping has moved from and that stays may become one mapping with what
/// is behind it; that does not move again with the rest.
///
/// Rules: MREMAP-01.
#[test]
fn several_mappings_leave_empty_places_behind() {
    let m = machine();
    let p = m.spawn().expect("process");
    // Two trees, and what comes between is joined with one of them.
    for (first, word) in [(0, 10), (8, 18)] {
        p.mmap_anon(pages(first, 4), RW).expect("mmap");
        p.store(page(first), word).expect("store");
    }
    p.mmap_anon(pages(4, 4), RW).expect("mmap");
    assert_eq!(p.mm().read().iter().count(), 2);
    p.mremap_move(pages(0, 12), page(100), mm_map::OldPlace::Keep).expect("mremap");
    let words = |i| (p.load(page(i)), p.load(page(100 + i)));
    assert_eq!((words(0), words(8)), ((Ok(0), Ok(10)), (Ok(0), Ok(18))));
    sound(&m, &[&p]);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}
