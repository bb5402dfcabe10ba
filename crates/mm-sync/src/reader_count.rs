//! The smallest [`Quiescence`]: one shared count of readers.

use crate::Quiescence;
use crate::atomic::AtomicUsize;
use crate::{fence, fence_after_rmw, hint, mutant, ord};

/// Counts readers on one cache line.
///
/// For models, and for a kernel port that has nothing better yet: every pin
/// writes the shared line, and [`synchronize`](Quiescence::synchronize) also
/// waits for readers that came after it.
#[derive(Debug)]
pub struct ReaderCount(AtomicUsize);

/// A read section of a [`ReaderCount`].
#[derive(Debug)]
#[must_use = "the read section ends when the guard is dropped"]
pub struct ReaderGuard<'q>(&'q AtomicUsize);

impl ReaderCount {
    /// A domain without readers.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        ReaderCount(AtomicUsize::new(0))
    }
    /// A domain without readers.
    #[cfg(loom)]
    pub fn new() -> Self {
        ReaderCount(AtomicUsize::new(0))
    }
}

impl Default for ReaderCount {
    fn default() -> Self {
        ReaderCount::new()
    }
}

// SAFETY: a guard is counted from before its first access (full barrier behind
// the increment, paired with the full barrier in `synchronize`: store-buffering
// shape, one side sees the other) until after its last one (Release decrement,
// paired with the Acquire load that sees zero).
unsafe impl Quiescence for ReaderCount {
    type Guard<'q> = ReaderGuard<'q>;

    #[inline]
    fn pin(&self) -> ReaderGuard<'_> {
        // Acquire pairs with nothing a model could show; the barrier orders.
        self.0.fetch_add(1, crate::atomic::Ordering::Relaxed);
        // Pairs with "quiescence.sync.mb": without it the reader may read the
        // old pointer although the writer saw no reader.
        fence_after_rmw!("quiescence.pin.mb");
        ReaderGuard(&self.0)
    }

    fn retire(&self, free: impl FnOnce() + Send + 'static) {
        self.synchronize();
        free();
    }

    fn synchronize(&self) {
        // Pairs with "quiescence.pin.mb".
        fence!("quiescence.sync.mb", SeqCst);
        // Acquire pairs with the Release of the last unpin: the reader's last
        // access happens-before the free.
        while self.0.load(ord!("quiescence.sync", Acquire)) != 0 {
            if mutant!("quiescence.no_wait") {
                break;
            }
            hint::spin_loop();
        }
    }
}

impl Drop for ReaderGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with "quiescence.sync".
        self.0.fetch_sub(1, ord!("quiescence.unpin", Release));
    }
}

// A guard counts once.
static_assertions::assert_not_impl_any!(ReaderGuard<'static>: Clone);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn retire_runs_when_no_reader_is_left() {
        let domain = ReaderCount::new();
        let ran = std::sync::Arc::new(core::sync::atomic::AtomicBool::new(false));
        let r = ran.clone();
        drop(domain.pin());
        domain.retire(move || r.store(true, core::sync::atomic::Ordering::Relaxed));
        assert!(ran.load(core::sync::atomic::Ordering::Relaxed));
    }
    extern crate std;
}
