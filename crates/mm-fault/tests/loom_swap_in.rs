//! Models of two threads that want the same page back from swap.
//!
//! | race | threads | test |
//! |---|---|---|
//! | F-RACE-26 | fault; fault | `a_page_comes_back_once` |
//! | F-RACE-26 | fault; fault, discard, store, swap-out to the same slot | `a_slot_that_is_used_again_is_another_page` |
//! | F-RACE-07 | store to what came back; fault of a sharer | `a_page_that_a_sharer_can_still_have_is_not_reused` |
#![cfg(loom)]

mod common;

use common::*;
use mm_arch::Entry;
use mm_arch::model::ModelWord;
use mm_fault::{FaultFlags, FaultOutcome};
use mm_folio::Get;
use mm_rmap::model::{ModelConfig, UnmapBy, machine, swap_out, unmap_to_swap};
use mm_sync::model::{Bounds, caught, holds_with};
use mm_sync::thread::spawn;
use mm_vma::{Platform, RssKind, SwapSpace, write_folio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

type A = ModelWord<4>;

/// A process whose page 0 holds 7, shared by threads.
fn process(asynchronous: bool) -> Arc<Process<A>> {
    alone(asynchronous).shared()
}
/// The same, before there are threads.
fn alone(asynchronous: bool) -> Process<A> {
    let config = ModelConfig { nr_frames: 8, nr_tables: 6, swap_slots: 4, ..ModelConfig::tiny() };
    let m = machine::<A>(config).expect("machine");
    m.swap_state().asynchronous.store(asynchronous, Relaxed);
    let p = Process::new(&m);
    p.map(pages(0, 4), RW);
    p.write(0, 7);
    p
}
fn end(p: Arc<Process<A>>) {
    let m = p.machine().clone();
    drop(p);
    assert_eq!((m.folios_in_use(), m.slots().in_use().count()), (0, 0));
}

fn both_fault(asynchronous: bool) {
    let p = process(asynchronous);
    assert!(swap_out(p.machine(), p.pfn(0), UnmapBy::Run));
    let other = spawn({
        let p = p.clone();
        move || p.fault(0, FaultFlags::empty())
    });
    for outcome in [p.fault(0, FaultFlags::WRITE), other.join().expect("joins")] {
        assert!(matches!(outcome, FaultOutcome::Done { .. }));
    }
    assert_eq!(p.read(0), 7);
    assert_eq!((p.rss(), p.mm.counters().get(RssKind::Swap)), (1, 0));
    end(p);
}

/// Rules: SWPI-02, SWPI-09, F-RACE-26.
#[test]
fn a_page_comes_back_once() {
    for asynchronous in [false, true] {
        let model = move || both_fault(asynchronous);
        holds_with("swap-in vs swap-in", Bounds::at_most(2), model);
    }
}

/// Swaps page 0 out, which stays in the cache.
fn out_to_cache(p: &Process<A>) {
    let own = p.machine().memmap().folio(p.pfn(0)).grab::<Get>(1).expect("room");
    let locked = own.folio().lock();
    p.machine().slots().add(&locked).expect("room");
    unmap_to_swap(p.machine(), &locked, UnmapBy::Run).expect("no pins");
    write_folio(p.machine(), &locked).expect("written");
}

/// One fault finds the page in the cache; meanwhile the page comes back, is given up, and another
/// one goes to the same slot: the entry looks as before.
fn slot_is_used_again() {
    let p = process(false);
    out_to_cache(&p);
    let slot = p.pte(0).swap_slot();
    let other = spawn({
        let p = p.clone();
        move || {
            p.write(0, 7);
            p.discard(0);
            p.write(0, 8);
            swap_out(p.machine(), p.pfn(0), UnmapBy::Run);
            p.pte(0).swap_slot()
        }
    });
    let outcome = p.fault(0, FaultFlags::empty());
    let again = other.join().expect("joins");
    assert!(matches!(outcome, FaultOutcome::Done { .. }));
    // The slot was free, unless the first fault kept it for a moment.
    assert!(again.is_none() || slot.is_some());
    assert_eq!(p.read(0), 8, "a page that is gone came back");
    end(p);
}

/// Rules: SWPI-02, F-RACE-26.
#[test]
fn a_slot_that_is_used_again_is_another_page() {
    holds_with("swap-in vs slot reuse", Bounds::at_most(1), slot_is_used_again);
    for mutant in ["fault.swap.no_recheck", "fault.swap.keep_unwanted"] {
        caught("swap-in vs slot reuse", mutant, slot_is_used_again);
    }
}

fn reuse_and_swap_in() {
    let p = alone(true);
    let c = p.fork().shared();
    let p = p.shared();
    assert!(swap_out(p.machine(), p.pfn(0), UnmapBy::Run));
    assert!(matches!(p.fault(0, FaultFlags::empty()), FaultOutcome::Done { .. }));
    let other = spawn({
        let c = c.clone();
        move || c.fault(0, FaultFlags::empty())
    });
    for outcome in [p.fault(0, FaultFlags::WRITE), other.join().expect("joins")] {
        assert!(matches!(outcome, FaultOutcome::Done { .. }));
    }
    p.write(0, 9);
    assert_eq!((c.read(0), p.read(0)), (7, 9), "the sharer reads what was stored");
    let m = p.machine().clone();
    drop((p, c));
    assert_eq!((m.folios_in_use(), m.slots().in_use().count()), (0, 0));
}

/// Rules: F-RACE-07, REUSE-01, SWAP-03.
#[test]
fn a_page_that_a_sharer_can_still_have_is_not_reused() {
    holds_with("reuse vs swap-in", Bounds::at_most(2), reuse_and_swap_in);
    caught("reuse vs swap-in", "fault.reuse.beside_cache", reuse_and_swap_in);
}
