//! Every allocation of the trees may fail, and leaves nothing half done.
#![cfg(not(loom))]

use mm_arch::model::ModelWord;
use mm_arch::{VirtAddr, VirtRange};
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_rmap::{AnonTrees, RmapPlatform};
use mm_vma::{Mm, StoreError, Vma, VmaFlags};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

type A = ModelWord<16>;
type P = ModelPlatform<A>;

thread_local! {
    /// Allocations of this thread until one fails.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

struct Failing;

impl Failing {
    fn fails() -> bool {
        LEFT.try_with(|left| match left.get() {
            Some(0) => true,
            Some(n) => {
                left.set(Some(n - 1));
                false
            }
            None => false,
        })
        .unwrap_or(false)
    }
}

// SAFETY: every call that does not fail is the system allocator's.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on to the caller.
        if Self::fails() { core::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Self::fails() {
            return core::ptr::null_mut();
        }
        // SAFETY: passed on to the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Calls `f` with the `n`th allocation failing, and all after it.
fn failing<T>(n: u32, f: impl FnOnce() -> T) -> T {
    LEFT.set(Some(n));
    let result = f();
    LEFT.set(None);
    result
}

fn check(p: &P, nr_trees: usize, nr_members: usize) {
    p.anon_trees().audit(&mut |fault| panic!("{fault:?}"));
    assert_eq!((p.anon_trees().nr_trees(), p.anon_trees().nr_members()), (nr_trees, nr_members));
}
fn vma(page: u64, n: u64) -> Vma {
    let range = VirtRange::units(VirtAddr::new(page << 12), n, 12).expect("range");
    Vma::anonymous(range, VmaFlags::READ | VmaFlags::WRITE, 12)
}
fn setup() -> (P, Arc<Mm<P>>) {
    let p = machine::<A>(ModelConfig::default()).expect("machine");
    let mm = Mm::new(p.clone()).expect("space");
    mm.write().change().insert(vma(0, 16)).expect("free");
    (p, mm)
}
fn trees(p: &P) -> &AnonTrees<P> {
    p.anon_trees()
}

/// Tries `f` with each allocation failing in turn, until it needs no more.
/// It must fail at least once, or this tests nothing.
fn each_failure(mut f: impl FnMut(u32) -> bool) {
    let n = (0..64).find(|n| f(*n)).expect("ends");
    assert!(n > 0, "nothing was allocated");
}

/// Rules: RMAP-21.
#[test]
fn a_first_fault_without_memory_can_be_tried_again() {
    each_failure(|n| {
        let (p, mm) = setup();
        let vmas = mm.read();
        let vma = vmas.find(VirtAddr::new(0)).expect("there");
        let done = failing(n, || trees(&p).prepare(&mm, &vmas, vma)).is_ok();
        assert_eq!(vma.anon().is_some(), done);
        check(&p, usize::from(done), usize::from(done));
        trees(&p).prepare(&mm, &vmas, vma).expect("memory");
        trees(&p).unlink(&mm, vma);
        check(&p, 0, 0);
        done
    });
}

/// Rules: RMAP-22, RMAP-23.
#[test]
fn a_fork_without_memory_links_nothing() {
    each_failure(|n| {
        let (p, mm) = setup();
        let vmas = mm.write();
        let vma = vmas.find(VirtAddr::new(0)).expect("there");
        trees(&p).prepare(&mm, &vmas, vma).expect("memory");
        let child = Mm::new(p.clone()).expect("space");
        let copy = vma.clone();
        let done = failing(n, || trees(&p).fork_vma(&child, vma, &copy)).is_ok();
        assert_eq!(copy.anon().is_some(), done);
        check(&p, 1 + usize::from(done), 1 + usize::from(done));
        if !done {
            trees(&p).fork_vma(&child, vma, &copy).expect("memory");
        }
        trees(&p).unlink(&child, &copy);
        trees(&p).unlink(&mm, vma);
        check(&p, 0, 0);
        done
    });
}

/// Rules: RMAP-22.
#[test]
fn a_split_without_memory_is_undone() {
    each_failure(|n| {
        let (p, mm) = setup();
        let mut vmas = mm.write();
        let at = VirtAddr::new(5 << 12);
        trees(&p).prepare(&mm, &vmas, vmas.find(at).expect("there")).expect("memory");
        let done = match failing(n, || mm_rmap::split_vma(&mut vmas, at)) {
            Ok(split) => split,
            Err(e) => {
                assert_eq!(e, StoreError::NoMemory);
                false
            }
        };
        let parts = 1 + usize::from(done);
        assert_eq!(vmas.len(), parts);
        check(&p, 1, parts);
        for vma in vmas.iter() {
            trees(&p).unlink(&mm, vma);
        }
        check(&p, 0, 0);
        done
    });
}

/// Of two splits the second one has no memory: the first is undone, and mappings that do not
/// touch the range stay as they are, whatever could be joined there.
///
/// Rules: RMAP-22, LOCK-01.
#[test]
fn a_split_that_is_undone_joins_no_mapping_that_is_locked() {
    let mut undone = 0;
    each_failure(|n| {
        let (p, mm) = setup();
        // It continues the other one, behind the range.
        mm.write().change().insert(vma(16, 4)).expect("free");
        let page = |k: u64| VirtAddr::new(k << 12);
        let within = VirtRange::units(page(5), 3, 12).expect("range");
        let locked = {
            let mut vmas = mm.write_within(within);
            let locked = mm.lock_vma(page(18)).expect("it does not touch the range");
            let first = failing(n, || mm_rmap::split_vma(&mut vmas, page(5)).is_ok());
            let second = first && failing(0, || mm_rmap::split_vma(&mut vmas, page(8)).is_ok());
            assert!(!second, "there was no memory");
            undone += u32::from(first);
            mm_rmap::merge_vmas(&mut vmas, within);
            assert_eq!(locked.vma().nr_pages(), 4);
            assert_eq!(vmas.iter().map(|v| v.nr_pages()).collect::<Vec<_>>(), [16, 4]);
            first
        };
        check(&p, 0, 0);
        locked
    });
    assert_eq!(undone, 1, "no split was undone");
}

/// Rules: RMAP-22, LOCK-01.
#[test]
fn who_ends_without_memory_keeps_no_mapping() {
    each_failure(|n| {
        let (p, mm) = setup();
        let page = |k: u64| VirtAddr::new(k << 12);
        mm.write().change().insert(vma(20, 4)).expect("free");
        let at = page(5);
        {
            let vmas = mm.read();
            trees(&p).prepare(&mm, &vmas, vmas.find(at).expect("there")).expect("memory");
        }
        let within = VirtRange::units(at, 3, 12).expect("range");
        let mut vmas = mm.write_within(within);
        let ends = |vmas: &mut _| {
            mm_rmap::split_vma(vmas, at).and_then(|_| mm_rmap::split_vma(vmas, page(8)))
        };
        let done = failing(n, || ends(&mut vmas)).is_ok();
        // The mapping that it may change is kept as long as it is at it; the other is not.
        assert!(mm.lock_vma(at).is_none() && mm.lock_vma(page(20)).is_some());
        mm_rmap::merge_vmas(&mut vmas, within);
        drop(vmas);
        for k in [0, 5, 15, 20] {
            assert_eq!(
                mm.lock_vma(page(k)).expect("nobody keeps it").vma().nr_pages(),
                if k < 20 { 16 } else { 4 }
            );
        }
        check(&p, 1, 1);
        for vma in mm.write().iter() {
            trees(&p).unlink(&mm, vma);
        }
        check(&p, 0, 0);
        done
    });
}
