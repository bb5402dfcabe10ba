//! The proof that tables stay is about the tables that it was made for: safe
//! code cannot keep tables of one space from being freed and walk another's.

use crate::world::*;
use core::ops::ControlFlow;
use core::panic::AssertUnwindSafe;
use mm_arch::Arch;
use mm_arch::model::ModelWord;
use mm_vma::Platform;
use std::panic::catch_unwind;

type A = ModelWord<16>;

fn two_spaces() -> (P<A>, Space<A>, Space<A>) {
    let p = machine_of::<A>();
    let (one, other) = (space(&p), space(&p));
    mmap::<A>(&one, 0, 4);
    mmap::<A>(&other, 0, 4);
    (p, one, other)
}

#[test]
fn a_proof_is_good_for_its_own_space() {
    let (_, one, _) = two_spaces();
    assert!(one.tables().lock_table(one.read().stay(), va::<A>(0)).is_none());
    assert!(one.tables().ensure_table(one.write().stay(), va::<A>(0)).is_ok());
    assert_eq!(one.tables().count_tables(one.read().stay()), A::LEVELS.len());
}

#[test]
#[should_panic(expected = "not about these tables")]
fn the_read_side_of_another_space_proves_nothing() {
    let (_, one, other) = two_spaces();
    let _ = one.tables().lock_table(other.read().stay(), va::<A>(0));
}

#[test]
#[should_panic(expected = "not about these tables")]
fn the_write_side_of_another_space_proves_nothing() {
    let (_, one, other) = two_spaces();
    let _ = one.tables().ensure_table(other.write().stay(), va::<A>(0));
}

#[test]
#[should_panic(expected = "not about these tables")]
fn nor_does_it_when_tables_are_counted() {
    let (_, one, other) = two_spaces();
    let _ = one.tables().count_tables(other.read().stay());
}

/// What a visit proves ends with the VMA: the tables behind it may be freed
/// under the mmap lock, which a walk does not hold.
#[test]
fn a_visit_proves_nothing_outside_of_its_vma() {
    let (p, one, _) = two_spaces();
    let pfn = fault::<A>(&one, 1, 0).expect("fits");
    let folio = p.memmap().folio(pfn);
    let lock = folio.lock();
    let mut seen = Vec::new();
    let _ = trees(&p).walk(folio, &mut |mm, visit| {
        for page in [3, 4, per_pmd::<A>()] {
            let look = || mm.tables().lock_table(visit.stay, va::<A>(page)).is_some();
            seen.push(catch_unwind(AssertUnwindSafe(look)).ok());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(seen, [Some(true), None, None]);
    drop(lock);
    munmap::<A>(&one, 0, 4);
}
