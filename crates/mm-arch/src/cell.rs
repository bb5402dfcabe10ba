//! Memory of entries: what a format builds its tables from.

use crate::{Liveness, Right, word};
use mm_sync::atomic::AtomicU64;
use mm_sync::ord;

/// The memory of one entry of 64 bits, in one word or in two.
///
/// A format that keeps each entry by itself (no contiguous blocks) works on any
/// cell: a single word, or a [`Pair`](crate::pair::Pair) that is never accessed
/// as one.
pub trait Cell: Send + Sync + 'static {
    /// Memory accesses that a read takes; see [`Arch::WORDS`](crate::Arch::WORDS).
    const WORDS: usize;
    /// Bits that [`change`](Self::change) may change.
    const FLAGS: u64;

    /// An empty entry.
    fn empty() -> Self;
    /// Reads by the right `R`; lockless reads are acquiring.
    fn read<R: Right>(&self) -> u64;
    /// Publishes a value over one that no reader may take for a part of it.
    fn write(&self, raw: u64);
    /// Empties the entry; on a live table no hardware update is lost.
    fn take<L: Liveness>(&self) -> u64;
    /// Replaces an upper-level entry and returns the old value. Publishing.
    fn replace(&self, raw: u64) -> u64;
    /// Replaces the value by `f` of it, atomically, unless `f` says `None`; then
    /// the value is the error. `f` changes no bit outside of [`FLAGS`](Self::FLAGS).
    ///
    /// # Errors
    ///
    /// The value that `f` left alone.
    fn change(&self, f: impl Fn(u64) -> Option<u64>) -> Result<u64, u64>;
    /// Number of leading cells equal, outside of `ignore`, to `head, head + step,
    /// …`. The first is taken as given.
    fn scan<R: Right>(cells: &[Self], head: u64, step: u64, ignore: u64) -> usize
    where
        Self: Sized;
}

impl Cell for AtomicU64 {
    const WORDS: usize = 1;
    const FLAGS: u64 = !0;

    fn empty() -> Self {
        AtomicU64::new(0)
    }
    #[inline(always)]
    fn read<R: Right>(&self) -> u64 {
        word::load::<R>(self)
    }
    #[inline(always)]
    fn write(&self, raw: u64) {
        word::store(self, raw);
    }
    #[inline(always)]
    fn take<L: Liveness>(&self) -> u64 {
        word::take::<L>(self)
    }
    #[inline(always)]
    fn replace(&self, raw: u64) -> u64 {
        // Release publishes the table behind the entry; pairs with the Acquire of
        // `read` (rule ACC-04). Without it a walker meets a table that is not
        // zeroed yet.
        self.swap(raw, ord!("word.upper", Release))
    }
    #[inline(always)]
    fn change(&self, f: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        word::update(self, f)
    }
    #[inline(always)]
    fn scan<R: Right>(cells: &[Self], head: u64, step: u64, ignore: u64) -> usize {
        word::scan(cells, head, step, ignore)
    }
}
