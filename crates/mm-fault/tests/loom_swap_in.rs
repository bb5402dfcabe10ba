//! Models of two threads that want the same page back from swap.
//!
//! | race | threads | test |
//! |---|---|---|
//! | F-RACE-26 | fault; fault | `a_page_comes_back_once` |
#![cfg(loom)]

mod common;

use common::*;
use mm_arch::model::ModelWord;
use mm_fault::{FaultFlags, FaultOutcome};
use mm_rmap::model::{ModelConfig, UnmapBy, machine, swap_out};
use mm_sync::model::{Bounds, holds_with};
use mm_sync::thread::spawn;
use mm_vma::{RssKind, SwapSpace};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

type A = ModelWord<4>;

/// A process whose page 0 holds 7.
fn process(asynchronous: bool) -> Arc<Process<A>> {
    let config = ModelConfig { nr_frames: 8, nr_tables: 6, swap_slots: 4, ..ModelConfig::tiny() };
    let m = machine::<A>(config).expect("machine");
    m.swap_state().asynchronous.store(asynchronous, Relaxed);
    let p = Process::new(&m);
    p.map(pages(0, 4), RW);
    p.write(0, 7);
    p.shared()
}
fn end(p: Arc<Process<A>>) {
    let m = p.machine().clone();
    drop(p);
    assert_eq!((m.folios_in_use(), m.slots().in_use().len()), (0, 0));
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
