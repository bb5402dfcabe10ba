//! Hints of use: what is used of far memory comes near.

use crate::common::*;
use mm_arch::{Arch, Entry, Level, Pfn};
use mm_fault::{OrderMode, ShmemMode, ThpMode};
use mm_pgtable::LockedEntry;
use mm_sim::*;
use mm_vma::{Platform, VmaFlags};
use std::sync::Arc;

const SHARED: VmaFlags = RW.union(VmaFlags::SHARED);

/// 32 MiB, a quarter of it near.
fn machine() -> M {
    let config = MachineConfig {
        bytes: 32 << 20,
        near_bytes: 8 << 20,
        cpus: 2,
        poison: true,
        ..MachineConfig::default()
    };
    let m = Machine::new(config, Preset::Best.policy()).expect("machine");
    m.host().set_policy(|p| {
        let thp = p.fault.thp.with_global(ThpMode::Never);
        p.fault.thp = (0..=9).fold(thp, |thp, order| thp.with_order(order, OrderMode::Never));
    });
    m
}
fn entry_at(p: &P, i: u64) -> (Level, <A as Arch>::Entry) {
    let vmas = p.mm().read();
    match p.mm().tables().lock_entry(vmas.stay(), page(i)) {
        LockedEntry::Table(t) => (Level::Pte, t.get(t.index_of(page(i)))),
        LockedEntry::Huge(pmd) => (Level::Pmd, pmd.entry()),
        LockedEntry::Hole => panic!("nothing at {i}"),
    }
}
fn pfn_at(p: &P, i: u64) -> Pfn {
    let (level, e) = entry_at(p, i);
    e.pfn(level)
}
/// Which of the pages are in far memory.
fn far(p: &P, first: u64, n: u64) -> Vec<u64> {
    (first..first + n).filter(|i| p.host().frames().is_far(pfn_at(p, *i))).collect()
}
/// A process that leaves no near memory to others.
fn crowd(m: &M) -> P {
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(4096, 4096), RW).expect("mmap");
    let full = (4096..8192).find(|i| {
        p.store(page(*i), 1).expect("store");
        m.host().frames().is_far(pfn_at(&p, *i))
    });
    full.expect("near memory ends");
    p
}
fn moved(m: &M) -> u64 {
    m.host().observer().hints_moved.get()
}
#[track_caller]
fn sound(m: &M, processes: &[&P]) {
    m.settle();
    assert_eq!(audit(m, processes.iter().copied(), []), []);
}
fn shmem(m: &M, n: u64, mode: ShmemMode) -> Arc<Shmem<A, EventCounts>> {
    let object = Shmem::new(m.host(), ShmemKind::Mounted(mode), 0).expect("memory");
    object.write(0, n, &|index, _| 0xf00 + index).expect("room");
    object
}
fn file(m: &M, n: u64) -> Arc<File<A, EventCounts>> {
    let file = File::new(m.host(), 0).expect("memory");
    (0..n).for_each(|i| file.write(i, 1, &|index, _| 0xf00 + index).expect("room"));
    file.sync().expect("synced");
    file
}

/// Private memory, shared memory by PTEs and by a leaf, and files: whoever maps them follows.
///
/// Rules: NUMA-01, NUMA-04, MIGR-03, MIGR-05.
#[test]
fn what_is_used_of_far_memory_comes_near() {
    let m = machine();
    let other = crowd(&m);
    let (p, q) = (m.spawn().expect("process"), m.spawn().expect("process"));
    p.mmap_anon(pages(0, 8), RW).expect("mmap");
    (0..8).for_each(|i| p.store(page(i), 40 + i).expect("store"));
    let (small, huge) = (shmem(&m, 8, ShmemMode::Never), shmem(&m, 512, ShmemMode::Always));
    let f = file(&m, 8);
    p.mmap_object(pages(16, 8), SHARED, small.clone(), 0).expect("mmap");
    q.mmap_object(pages(16, 8), SHARED, small, 0).expect("mmap");
    p.mmap_object(pages(32, 8), SHARED, f.clone(), 0).expect("mmap");
    p.mmap_object(pages(512, 512), SHARED, huge, 0).expect("mmap");
    let used: Vec<u64> = (0..8).chain(16..24).chain(32..40).chain(512..520).collect();
    let reads = |p: &P, i: u64| {
        let expected = if i < 8 { 40 + i } else { 0xf00 + i % 8 };
        assert_eq!(p.load(page(i)), Ok(expected), "page {i}");
    };
    used.iter().for_each(|i| reads(&p, *i));
    (16..24).for_each(|i| reads(&q, i));
    assert_eq!((far(&p, 0, 8).len(), far(&p, 16, 8).len(), far(&p, 32, 8).len()), (8, 8, 8));
    assert!(entry_at(&p, 512).0 == Level::Pmd && far(&p, 512, 1).len() == 1);
    // As long as there is no room nothing moves.
    p.mark_hints(pages(0, 1024)).expect("range");
    used.iter().for_each(|i| reads(&p, *i));
    assert_eq!(moved(&m), 0);
    sound(&m, &[&p, &q, &other]);
    other.exit();
    m.settle();
    p.mark_hints(pages(0, 1024)).expect("range");
    // Written to between the hint and the access: that page waits for its device.
    f.write(3, 1, &|index, _| 0xf00 + index).expect("room");
    used.iter().for_each(|i| reads(&p, *i));
    assert_eq!(moved(&m), 8 + 8 + 7 + 512);
    assert_eq!((far(&p, 0, 8), far(&p, 16, 8), far(&p, 32, 8)), (vec![], vec![], vec![35]));
    assert!(entry_at(&p, 512).0 == Level::Pmd && far(&p, 512, 1).is_empty());
    assert!((16..24).all(|i| pfn_at(&q, i) == pfn_at(&p, i)));
    sound(&m, &[&p, &q]);
    p.take_faults();
    q.take_faults();
    used.iter().for_each(|i| reads(&p, *i));
    (16..24).for_each(|i| reads(&q, i));
    assert!(p.take_faults().cpu.is_empty() && q.take_faults().cpu.is_empty());
    q.store(page(17), 1).expect("store");
    assert_eq!(p.load(page(17)), Ok(1));
    sound(&m, &[&p, &q]);
    p.exit();
    q.exit();
    drop(f);
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Code that several processes run is near to one of them at most.
///
/// Rules: NUMA-04.
#[test]
fn code_that_others_run_stays() {
    let m = machine();
    let other = crowd(&m);
    let (p, q) = (m.spawn().expect("process"), m.spawn().expect("process"));
    let f = file(&m, 4);
    let code = SHARED | VmaFlags::EXEC;
    p.mmap_object(pages(0, 4), code, f.clone(), 0).expect("mmap");
    q.mmap_object(pages(0, 2), code, f, 0).expect("mmap");
    (0..4).for_each(|i| assert_eq!(p.load(page(i)), Ok(0xf00 + i)));
    (0..2).for_each(|i| assert_eq!(q.load(page(i)), Ok(0xf00 + i)));
    other.exit();
    m.settle();
    p.mark_hints(pages(0, 4)).expect("range");
    (0..4).for_each(|i| assert_eq!(p.load(page(i)), Ok(0xf00 + i)));
    assert_eq!((far(&p, 0, 4), moved(&m)), (vec![0, 1], 2));
    sound(&m, &[&p, &q]);
}
