//! Threads of the current back end, for tests, models and the simulator.

#[cfg(loom)]
pub use loom::thread::{JoinHandle, spawn, yield_now};
#[cfg(not(loom))]
pub use std::thread::{JoinHandle, spawn, yield_now};
