//! A sequence count that makes lockless readers retry.

use crate::atomic::{AtomicU32, Ordering};
use crate::{fence, ord};

/// A sequence count: odd while a writer is inside.
///
/// Used by fork against lockless pins (rules GUPF-05, P-RACE-03): the forker
/// makes it odd *before* it looks at pin counts, the pinner samples it before
/// its walk and again after it holds its pins. Writers exclude each other by a
/// lock of their own.
///
/// The begin side needs a full fence, not a write barrier: it must not read pin
/// counts before its odd value is visible (store buffering).
#[derive(Debug)]
pub struct SeqCount(AtomicU32);

/// A sampled even value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seq(u32);

impl SeqCount {
    /// An even count.
    pub fn new() -> Self {
        SeqCount(AtomicU32::new(0))
    }

    /// Samples the count; `None` while a writer is inside.
    #[inline]
    pub fn read_begin(&self) -> Option<Seq> {
        // Acquire pairs with the Release of `write_end`: a reader that starts
        // after a writer sees what that writer did.
        let seq = self.0.load(ord!("seq.begin", Acquire));
        (seq & 1 == 0).then_some(Seq(seq))
    }

    /// Whether a writer came in since `seq` was sampled.
    ///
    /// The caller has executed a full barrier since the accesses that must be
    /// covered (a pin has one); the fence here keeps the load behind them.
    #[inline]
    pub fn read_retry(&self, seq: Seq) -> bool {
        fence!("seq.retry.rmb", Acquire);
        self.0.load(Ordering::Relaxed) != seq.0
    }

    /// Makes the count odd. The caller excludes other writers.
    #[inline]
    pub fn write_begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        // Pairs with the full barrier behind a pin: either the pinner sees the
        // odd value, or we see its pin.
        fence!("seq.write.mb", SeqCst);
    }

    /// Makes the count even again.
    #[inline]
    pub fn write_end(&self) {
        // Release pairs with the Acquire of `read_begin`.
        self.0.fetch_add(1, ord!("seq.write.end", Release));
    }

    /// Whether a writer is inside (for assertions).
    #[inline]
    pub fn is_odd(&self) -> bool {
        self.0.load(Ordering::Relaxed) & 1 == 1
    }
}

impl Default for SeqCount {
    fn default() -> Self {
        SeqCount::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Rules: GUPF-05.
    #[test]
    fn a_reader_sees_odd_and_changed_values() {
        let seq = SeqCount::new();
        let before = seq.read_begin().expect("even");
        assert!(!seq.read_retry(before));
        seq.write_begin();
        assert!(seq.is_odd());
        assert_eq!(seq.read_begin(), None);
        assert!(seq.read_retry(before));
        seq.write_end();
        assert!(seq.read_retry(before));
        assert!(seq.read_begin().is_some_and(|s| s != before));
    }
}
