//! Faults that hold the lock of one VMA, against whoever holds the mmap lock's write side.

use super::*;
use mm_fault::{
    FaultFlags, FaultOutcome, FaultPolicy, NeedsMmapLock, ThpPolicy, handle_fault,
    handle_fault_in_vma,
};
use mm_map::{CollapseFor, Collapsed, collapse_anon, munmap};

const WRITE: FaultFlags = FaultFlags::WRITE;
const DONE: FaultOutcome = FaultOutcome::Done { major: false };

fn faults() -> FaultPolicy {
    FaultPolicy::new(ThpPolicy::new(2))
}
/// A store to page `k`, with the lock of its mapping; `None` if that is kept.
fn store_in_vma(mm: &Mm<P>, k: u64) -> Option<Result<FaultOutcome, NeedsMmapLock>> {
    let locked = mm.lock_vma(page(k))?;
    Some(handle_fault_in_vma(&faults(), &locked, page(k), WRITE))
}
/// As [`store_in_vma`], or with the mmap lock.
fn store(mm: &Mm<P>, k: u64) -> FaultOutcome {
    let in_vma = store_in_vma(mm, k).and_then(Result::ok);
    in_vma.unwrap_or_else(|| handle_fault(&faults(), &mm.read(), page(k), WRITE))
}
/// The space of the models, with page 0 and so a table and a tree.
fn used() -> (P, Space) {
    let (p, mm) = space();
    assert_eq!(store_in_vma(&mm, 0), Some(Ok(DONE)));
    (p, mm)
}
fn storer(mm: &Space, k: u64) -> mm_sync::thread::JoinHandle<Option<FaultOutcome>> {
    let mm = Space(Arc::clone(mm));
    spawn(move || store_in_vma(&mm, k).map(|done| done.expect("there is a tree")))
}
fn end(p: &P, mm: &Mm<P>) {
    exit(&POLICY, mm);
    assert_eq!(p.folios_in_use(), 0);
}
const NOT_EXCLUDED: &[&str] = &["vma.lock.no_wait", "vma.lock.open"];

fn fault_and_unmap() {
    let (p, mm) = used();
    let faulter = storer(&mm, 1);
    munmap(&POLICY, &mut mm.write_within(pages(0, 4)), pages(0, 4)).expect("memory");
    let stored = faulter.join().expect("thread");
    assert!(stored.is_none_or(|outcome| outcome == DONE));
    assert_eq!(mm.counters().get(RssKind::Anon), 0, "a page in a table that is gone");
    assert_eq!(p.folios_in_use(), 0);
    assert_eq!(mm.tables().count_tables(mm.read().stay()), 1);
    end(&p, &mm);
}

/// Rules: LOCK-01, WREUSE-02.
#[test]
fn fault_in_a_vma_vs_unmap() {
    race("fault in a VMA vs unmap", fault_and_unmap, NOT_EXCLUDED);
}

fn fault_and_protect() {
    let (p, mm) = used();
    let faulter = storer(&mm, 1);
    mprotect(&POLICY, &mut mm.write_within(pages(0, 4)), pages(0, 4), Rights::READ)
        .expect("mapped");
    let stored = faulter.join().expect("thread");
    let e = entry(&mm, 1);
    // A signal, if the new rights were seen.
    assert_eq!(!e.is_none(), stored == Some(DONE));
    assert!(e.is_none() || !e.is_writable(Level::Pte), "a store goes through");
    end(&p, &mm);
}

/// Rules: WREUSE-02, MPROT-01.
#[test]
fn fault_in_a_vma_vs_protect() {
    let mutants = &["vma.lock.no_wait", "vma.lock.open", "vma.lock.leave", "vma.lock.drained"];
    race("fault in a VMA vs protect", fault_and_protect, mutants);
}

fn fault_and_collapse() {
    let (p, mm) = used();
    let faulter = {
        let mm = Space(Arc::clone(&mm));
        spawn(move || store(&mm, 1))
    };
    let done = collapse_anon(&POLICY, &mm, page(0), 2, CollapseFor::Caller);
    assert_eq!(faulter.join().expect("thread"), DONE);
    let whole = done == Ok(Collapsed::Now);
    assert!(!entry(&mm, 1).is_none(), "the page that the fault mapped is lost");
    assert_eq!(mm.counters().get(RssKind::Anon), if whole { 4 } else { 2 });
    assert_eq!(p.folios_in_use(), if whole { 1 } else { 2 });
    end(&p, &mm);
}

/// Rules: F-RACE-18, COLL-02.
#[test]
fn fault_in_a_vma_vs_collapse() {
    race("fault in a VMA vs collapse", fault_and_collapse, NOT_EXCLUDED);
}

fn fault_and_map_elsewhere() {
    let (p, mm) = used();
    let faulter = storer(&mm, 1);
    let flags = VmaFlags::READ | VmaFlags::WRITE;
    mmap_anon(&mut mm.write_within(pages(8, 4)), pages(8, 4), flags).expect("free");
    assert_eq!(faulter.join().expect("thread"), Some(DONE), "kept by a writer elsewhere");
    assert_eq!(mm.counters().get(RssKind::Anon), 2);
    end(&p, &mm);
}

/// Rules: LOCK-01.
#[test]
fn fault_in_a_vma_vs_map_elsewhere() {
    race("fault in a VMA vs map elsewhere", fault_and_map_elsewhere, &["vma.change.unlocked"]);
}
