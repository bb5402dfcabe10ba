//! Threads of the current back end, for tests, models and the simulator.

#[cfg(loom)]
pub use loom::thread::{JoinHandle, yield_now};
#[cfg(not(loom))]
pub use std::thread::{JoinHandle, spawn, yield_now};

/// Spawns a thread of the model; see `model::explore` for who runs first.
#[cfg(loom)]
#[track_caller]
pub fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    let handle = loom::thread::spawn(f);
    crate::model::spawned();
    handle
}

/// Whether this thread is on its way out of a failure.
pub fn is_failing() -> bool {
    std::thread::panicking()
}
