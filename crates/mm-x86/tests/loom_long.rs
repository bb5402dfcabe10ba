//! Races on entries of one word: hardware against whoever takes a run for good, on the production
//! format.
//!
//! | race | test |
//! |---|---|
//! | P-RACE-14: a store is lost | `stores_survive_what_is_taken_for_good` |
//!
//! That an entry stays empty is not asked here: the checker does not know that nothing comes between
//! what an exchange reads and what it writes, and lets a mark follow a store that it came before. Threads
//! try it in the tests of `double`.
#![cfg(loom)]

use mm_arch::model::NoTlb;
use mm_arch::{
    AccessKind, Arch, At, Entry, Held, Level, Pfn, Protection, Rights, SpaceId, SpaceTlb, VirtAddr,
    respect, word,
};
use mm_sync::model::{Bounds, caught, holds_with};
use mm_sync::thread::spawn;
use mm_x86::{X86_64, X86_64NoShstk, bits};
use std::sync::Arc;

const PTE: Level = Level::Pte;

/// Two pages of a run are taken for good, the first read-only and the second not, or the other way
/// round, while a CPU stores to the one that it may store to, and loads from the other.
fn mark_vs_take<A: Arch>(writable_first: bool) {
    let t = Arc::new(A::new_table());
    let leaf = |k: u64, writable_at_once| {
        let rights = Rights::READ | Rights::WRITE;
        let prot = A::prot(Protection { rights, writable_at_once, pkey: 0 });
        A::Entry::leaf(Pfn::new(0x1000 + k), prot, PTE).mkold()
    };
    A::fill(&t, 0, 1, leaf(0, writable_first));
    A::fill(&t, 1, 1, leaf(1, !writable_first));
    let (writable, other) = if writable_first { (0, 1) } else { (1, 0) };
    let hardware = {
        let t = t.clone();
        spawn(move || {
            A::mmu_mark(&t, other, AccessKind::Read, PTE);
            A::mmu_mark(&t, writable, AccessKind::Write, PTE)
        })
    };
    let dirty = take::<A>(&t, 2);
    assert_eq!(dirty, hardware.join().unwrap(), "a store is lost, or made up");
}
/// Takes a run of `n` for good; whether one of them was dirty.
fn take<A: Arch>(t: &A::Table, n: usize) -> bool {
    let (at, tlb) = (At { va: VirtAddr::new(0), index: 0 }, SpaceTlb::new(&NoTlb, SpaceId(1)));
    let head = A::read::<Held>(t, 0);
    let mut dirty = head.is_dirty();
    let each = |e: A::Entry| dirty |= e.is_dirty();
    assert_eq!(A::take_while::<{ respect::NOTHING }, _>(t, at, head, n, &tlb, each), n);
    dirty
}

/// An older CPU finds a page writable that is read-only by now, and marks it dirty while it is taken
/// for good.
fn late_mark_vs_take() {
    let t = Arc::new(X86_64NoShstk::new_table());
    let prot = X86_64NoShstk::prot(Protection::private_read_write());
    X86_64NoShstk::fill(&t, 0, 1, Entry::leaf(Pfn::new(0x1000), prot, PTE));
    let hardware = {
        let t = t.clone();
        let mark = |e| (e & bits::PRESENT != 0).then_some(e | bits::ACCESSED | bits::DIRTY);
        spawn(move || word::update(&t[0], mark).is_ok())
    };
    let dirty = take::<X86_64NoShstk>(&t, 1);
    assert_eq!(dirty, hardware.join().unwrap(), "a store is lost, or made up");
}

/// Rules: PTE-18, ACC-05, P-RACE-14, F-RACE-34.
#[test]
fn stores_survive_what_is_taken_for_good() {
    let models: [(&str, fn()); 3] = [
        ("long mark/take, writable first", || mark_vs_take::<X86_64>(true)),
        ("long mark/take, writable last", || mark_vs_take::<X86_64>(false)),
        ("long late mark/take, no shadow stacks", late_mark_vs_take),
    ];
    for (name, model) in models {
        holds_with(name, Bounds::at_most(3), model);
        caught(name, "x86.take.not_rmw", model);
    }
}
