//! What the harness must find although loom alone does not.
#![cfg(loom)]

use mm_sync::atomic::{AtomicU32, Ordering::Relaxed};
use mm_sync::model::{Bounds, explore};
use mm_sync::thread::spawn;
use std::sync::Arc;

/// The other thread's load of the cell hides ours from its store.
#[test]
fn a_load_before_a_store_of_the_same_thread_hides_no_order() {
    let outcome = explore(Bounds::default(), || {
        let cell = Arc::new(AtomicU32::new(0));
        let other = spawn({
            let cell = cell.clone();
            move || {
                let seen = cell.load(Relaxed);
                cell.compare_exchange(seen, seen + 1, Relaxed, Relaxed).expect("alone");
            }
        });
        assert_eq!(cell.load(Relaxed), 0, "found");
        other.join().expect("joins");
    });
    println!("MODEL load_before_store                caught execs={}", outcome.execs);
    assert!(outcome.failure.is_some_and(|m| m.contains("found")));
}
