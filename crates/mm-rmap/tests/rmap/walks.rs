//! Walks find every place where a folio may be mapped.

use crate::world::*;
use core::ops::ControlFlow;
use mm_arch::model::ModelWord;
use mm_arch::{Arch, Pfn};
use mm_folio::{Folio, Get, MmId};
use mm_rmap::WalkEnd;
use mm_vma::{Platform, Vma};

type A = ModelWord<16>;

/// (space, first page address, index in the folio, pages) of every visit.
fn visits<A: Arch>(p: &P<A>, folio: Folio<'_, P<A>>) -> Vec<(MmId, u64, u64, u64)> {
    let _lock = folio.lock();
    let mut all = Vec::new();
    let end = trees(p).walk(folio, &mut |mm, v| {
        assert!(v.vma.contains(v.va));
        all.push((mm.id(), v.va.get() >> A::PAGE_SHIFT, v.index, v.nr_pages));
        ControlFlow::Continue(())
    });
    assert_eq!(end, WalkEnd::Complete);
    all
}
fn folio<A: Arch>(p: &P<A>, pfn: Pfn) -> Folio<'_, P<A>> {
    p.memmap().folio(pfn)
}

/// Rules: RMAP-23.
#[test]
fn inherited_folios_are_found_in_both_new_ones_in_the_child_alone() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 16);
    let old = fault::<A>(&mm, 8, 2).expect("mapped");
    let child = fork(&mm);
    let (new, of_parent) =
        (fault::<A>(&child, 1, 0).expect("mapped"), fault::<A>(&mm, 2, 0).expect("mapped"));
    assert_eq!(visits(&p, folio(&p, old)), [(mm.id(), 8, 0, 4), (child.id(), 8, 0, 4)]);
    assert_eq!(visits(&p, folio(&p, new)), [(child.id(), 1, 0, 1)]);
    // The parent's tree has the child's VMA in it too: it may hold old pages.
    assert_eq!(visits(&p, folio(&p, of_parent)), [(mm.id(), 2, 0, 1), (child.id(), 2, 0, 1)]);
    exit(child);
    assert_eq!(visits(&p, folio(&p, old)), [(mm.id(), 8, 0, 4)]);
    exit(mm);
}

/// The tree of pages that relatives may share is the root: from there everybody is found.
/// Rules: RMAP-02.
#[test]
fn a_folio_of_the_root_is_found_from_every_relative() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4);
    fault::<A>(&mm, 0, 0).expect("mapped");
    let child = fork(&mm);
    let pfn = fault::<A>(&child, 1, 0).expect("mapped");
    let (own, index) = folio(&p, pfn).anon().expect("anonymous");
    folio(&p, pfn).set_anon(trees(&p).root(own), index);
    assert_eq!(visits(&p, folio(&p, pfn)), [(mm.id(), 1, 0, 1), (child.id(), 1, 0, 1)]);
    exit(mm);
    check(&p);
    exit(child);
}

/// A folio that straddles the start of a VMA, its end, or both.
/// Rules: RMAP-28.
#[test]
fn a_visit_is_the_part_of_the_folio_that_lies_inside() {
    for (first, end) in [(6, 16), (0, 10), (6, 10), (7, 8), (0, 16)] {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 32);
        let pfn = fault::<A>(&mm, 8, 3).expect("mapped");
        let held = folio(&p, pfn).grab::<Get>(1).expect("room");
        // The VMA moves by four: page 4 of the address space has index 8.
        mremap(&mm, 0, 32, 64);
        if first > 0 {
            munmap(&mm, 64, first + 4);
        }
        munmap(&mm, 64 + end + 4, 32 - end - 4);
        let (from, to) = ((first + 4).max(8), (end + 4).min(16));
        let expected = (mm.id(), 64 + from, from - 8, to - from);
        let got = if folio(&p, pfn).is_mapped() { visits(&p, folio(&p, pfn)) } else { vec![] };
        assert_eq!(got, if from < to { vec![expected] } else { vec![] }, "{first}..{end}");
        check(&p);
        drop(held);
        exit(mm);
    }
}

/// Both halves of a moved folio are found, the moved one behind the other.
/// Rules: S-MR4, RMAP-32, MREMAP-04.
#[test]
fn a_folio_that_was_moved_in_part_is_found_in_both_places() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 16, 16);
    let pfn = fault::<A>(&mm, 16, 4).expect("mapped");
    mremap(&mm, 24, 8, 67);
    assert_eq!(visits(&p, folio(&p, pfn)), [(mm.id(), 16, 0, 8), (mm.id(), 67, 8, 8)]);
    mremap(&mm, 16, 8, 3);
    assert_eq!(visits(&p, folio(&p, pfn)), [(mm.id(), 3, 0, 8), (mm.id(), 67, 8, 8)]);
    let child = fork(&mm);
    assert_eq!(visits(&p, folio(&p, pfn)).len(), 4);
    check(&p);
    exit(mm);
    exit(child);
}

/// While entries move, the moved VMA is visited after its original.
/// Rules: RMAP-32.
#[test]
fn a_copy_is_visited_behind_its_original_and_walks_can_be_kept_out() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 40, 4);
    let pfn = fault::<A>(&mm, 40, 2).expect("mapped");
    let mut vmas = mm.write();
    let old = vmas.find(va::<A>(40)).expect("there").clone();
    // Below the original: the order is that of joining, not of addresses.
    let new = old.moved_to(pages::<A>(8, 4), old.pgoff());
    trees(&p).clone_vma(&mm, &old, &new).expect("memory");
    assert_eq!(visits(&p, folio(&p, pfn)), [(mm.id(), 40, 0, 4), (mm.id(), 8, 0, 4)]);
    {
        let excluded = trees(&p).exclude_walks(&old).expect("has a tree");
        let _lock = folio(&p, pfn).lock();
        let end = trees(&p).try_walk(folio(&p, pfn), &mut |_, _| panic!("visited"));
        assert_eq!(end, WalkEnd::Contended);
        drop(excluded);
    }
    vmas.change().insert(new).expect("free");
    drop(vmas);
    exit(mm);
}

/// Rules: RMAP-29.
#[test]
fn a_visit_that_breaks_ends_the_walk() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4);
    let pfn = fault::<A>(&mm, 0, 0).expect("mapped");
    let children = [fork(&mm), fork(&mm)];
    let lock = folio(&p, pfn).lock();
    let mut n = 0;
    let end = trees(&p).walk(folio(&p, pfn), &mut |_, _| {
        n += 1;
        if n == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((n, end), (2, WalkEnd::Stopped));
    drop(lock);
    children.into_iter().for_each(exit);
    exit(mm);
}

/// A folio that somebody still holds outlives its tree; the id means another
/// tree by then, and the walk does not go there.
/// Rules: RMAP-26, F-RACE-29.
#[test]
fn an_unmapped_folio_is_not_looked_for_in_a_recycled_tree() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4);
    let pfn = fault::<A>(&mm, 0, 0).expect("mapped");
    let held = folio(&p, pfn).grab::<Get>(1).expect("room");
    let id = held.folio().anon().expect("anonymous").0;
    munmap(&mm, 0, 4);
    mmap(&mm, 0, 4);
    fault::<A>(&mm, 0, 0).expect("mapped");
    assert_eq!(mm.read().find(va::<A>(0)).and_then(Vma::anon), Some(id), "recycled");
    let lock = held.folio().lock();
    let end = trees(&p).walk(held.folio(), &mut |_, _| panic!("visited"));
    assert_eq!(end, WalkEnd::Unmapped);
    drop(lock);
    exit(mm);
}

/// Who takes the last VMA out of a tree waits for those who walk it.
/// Rules: RMAP-25, F-RACE-29.
#[test]
fn a_tree_stays_while_somebody_walks_it() {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4);
    let pfn = fault::<A>(&mm, 0, 0).expect("mapped");
    let held = folio(&p, pfn).grab::<Get>(1).expect("room");
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|s| {
        let lock = held.folio().lock();
        let end = trees(&p).walk(held.folio(), &mut |_, _| {
            s.spawn(|| {
                begun.store(true, SeqCst);
                munmap(&mm, 0, 4);
                done.store(true, SeqCst);
            });
            while !begun.load(SeqCst) {
                std::thread::yield_now();
            }
            // However long it is given.
            for _ in 0..1000 {
                std::thread::yield_now();
                assert!(!done.load(SeqCst), "the tree went while it was walked");
            }
            ControlFlow::Continue(())
        });
        assert_eq!(end, WalkEnd::Complete);
        drop(lock);
    });
    assert!(done.load(SeqCst));
    assert_eq!(trees(&p).nr_trees(), 0);
    drop(held);
    exit(mm);
}

/// A space that is being torn down is not visited.
/// Rules: RMAP-24.
#[test]
fn a_walk_keeps_no_space_alive() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4);
    fault::<A>(&mm, 0, 0).expect("mapped");
    let weak = mm.downgrade();
    exit(mm);
    assert!(weak.upgrade().is_none());
    assert_eq!(p.tables().in_use(), 0);
}
use mm_pgtable::TableSpace as _;
