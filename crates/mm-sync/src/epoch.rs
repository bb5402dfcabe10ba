//! crossbeam-epoch as a [`Quiescence`].
//!
//! Needs only `alloc`: a user without std makes a [`Collector`] and registers
//! one [`LocalHandle`] per CPU. An epoch alone only delays frees; the
//! [`synchronize`](Quiescence::synchronize) here also makes a writer wait, which
//! formats with two-word entries need.

use crate::Quiescence;
use crate::atomic::Ordering;
use alloc::sync::Arc;
use core::sync::atomic::AtomicBool;
pub use crossbeam_epoch::{Collector, Guard, LocalHandle};

/// Where the handle of this CPU, or thread, is found.
///
/// # Safety
///
/// All handles are of one collector: a guard of another one keeps nothing from being freed.
pub unsafe trait Handles: Send + Sync {
    /// Calls `f` with the handle of this CPU (a kernel: per-CPU data with
    /// preemption off; std: a thread local).
    fn with<T>(&self, f: impl FnOnce(&LocalHandle) -> T) -> T;
}

/// An epoch domain over `H`'s handles, all of one collector.
#[derive(Debug)]
pub struct Epoch<H>(H);

impl<H: Handles> Epoch<H> {
    /// A domain; all handles that `handles` yields belong to one collector.
    pub const fn new(handles: H) -> Self {
        Epoch(handles)
    }
    /// The handles.
    pub const fn handles(&self) -> &H {
        &self.0
    }
}

/// Retires one flag behind everything retired before, and advances the epoch
/// until it has run.
fn drain(pin: impl Fn() -> Guard, wait: impl Fn()) {
    let done = Arc::new(AtomicBool::new(false));
    let flag = done.clone();
    let guard = pin();
    guard.defer(move || flag.store(true, Ordering::Release));
    guard.flush();
    drop(guard);
    // Acquire pairs with the Release above: the epoch has moved past every
    // guard that existed when we were called.
    while !done.load(Ordering::Acquire) {
        pin().flush();
        wait();
    }
}

// SAFETY: a deferred function runs only after every guard that was pinned when
// it was deferred is gone; crossbeam-epoch orders both ends.
unsafe impl<H: Handles> Quiescence for Epoch<H> {
    type Guard<'q>
        = Guard
    where
        Self: 'q;
    #[inline]
    fn pin(&self) -> Guard {
        self.0.with(LocalHandle::pin)
    }
    fn retire(&self, free: impl FnOnce() + Send + 'static) {
        let guard = self.pin();
        guard.defer(free);
        guard.flush();
    }
    fn synchronize(&self) {
        drain(|| self.pin(), crate::hint::spin_loop);
    }
}

/// The default collector of crossbeam-epoch, with a handle per thread.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug, Default)]
pub struct StdEpoch;

#[cfg(feature = "std")]
// SAFETY: as for `Epoch`.
unsafe impl Quiescence for StdEpoch {
    type Guard<'q> = Guard;
    #[inline]
    fn pin(&self) -> Guard {
        crossbeam_epoch::pin()
    }
    fn retire(&self, free: impl FnOnce() + Send + 'static) {
        let guard = crossbeam_epoch::pin();
        guard.defer(free);
        guard.flush();
    }
    fn synchronize(&self) {
        drain(crossbeam_epoch::pin, std::thread::yield_now);
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    #[test]
    fn synchronize_waits_for_a_guard() {
        let left = AtomicBool::new(false);
        let pinned = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let guard = StdEpoch.pin();
                pinned.store(true, Ordering::Release);
                std::thread::sleep(std::time::Duration::from_millis(30));
                left.store(true, Ordering::Release);
                drop(guard);
            });
            while !pinned.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            StdEpoch.synchronize();
            assert!(left.load(Ordering::Acquire), "a reader was still inside");
        });
    }

    #[test]
    fn retired_closures_run() {
        let n = Arc::new(AtomicUsize::new(0));
        for _ in 0..10 {
            let n = n.clone();
            StdEpoch.retire(move || {
                n.fetch_add(1, Ordering::Relaxed);
            });
        }
        for _ in 0..1000 {
            StdEpoch.synchronize();
            if n.load(Ordering::Relaxed) == 10 {
                return;
            }
        }
        panic!("{} of 10 ran", n.load(Ordering::Relaxed));
    }
}
