//! Runs of entries, and what bounds them.

use core::marker::PhantomData;
use core::num::{NonZeroU32, NonZeroUsize};

/// The most entries a run may have: the minimum of table end, caller end, VMA
/// end and folio end.
///
/// Starts from [`View::limit`](crate::View::limit), which knows the table; each
/// further bound can only lower it (known fault: a bound taken from the folio
/// alone reads past the table).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimit(NonZeroUsize);

impl BatchLimit {
    #[inline(always)]
    pub(crate) fn new(n: usize) -> Self {
        BatchLimit(NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN))
    }
    /// Lowers the limit to `n` entries. A run has at least one entry, so a
    /// bound of zero counts as one: the caller already holds the head.
    #[inline(always)]
    #[must_use]
    pub fn at_most(self, n: usize) -> Self {
        Self::new(n.min(self.get()))
    }
    /// The number of entries.
    #[inline]
    pub const fn get(self) -> usize {
        self.0.get()
    }
}

/// Consecutive entries of one table that map consecutive pages of one folio.
///
/// # Invariants
///
/// `first + nr` does not exceed the table; built only by a table view. What it
/// says of the entries holds while the lock (or guard) lasts under which it was
/// scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Run<'v> {
    first: u32,
    nr: NonZeroU32,
    looks: u32,
    any_writable: bool,
    any_young: bool,
    any_dirty: bool,
    _view: PhantomData<&'v ()>,
}

impl Run<'_> {
    #[inline]
    pub(crate) fn new(first: usize, b: mm_arch::Batch) -> Self {
        Run {
            first: first as u32,
            nr: NonZeroU32::new(b.nr as u32).unwrap_or(NonZeroU32::MIN),
            looks: b.looks as u32,
            any_writable: b.any_writable,
            any_young: b.any_young,
            any_dirty: b.any_dirty,
            _view: PhantomData,
        }
    }
    /// Index of the first entry.
    #[inline]
    pub const fn first(&self) -> usize {
        self.first as usize
    }
    /// Number of entries.
    #[inline]
    pub const fn nr(&self) -> usize {
        self.nr.get() as usize
    }
    /// Number of entries, not zero.
    #[inline]
    pub const fn count(&self) -> NonZeroU32 {
        self.nr
    }
    /// Entries that were looked at to find the run: of a folded block it is one.
    #[inline]
    pub const fn looks(&self) -> usize {
        self.looks as usize
    }
    /// Number of entries that were not looked at: the look at another one of their
    /// folded block was a look at them.
    #[inline]
    pub const fn by_hint(&self) -> usize {
        self.nr().saturating_sub(self.looks())
    }
    /// With `MERGE_WRITE`: whether some entry is writable.
    #[inline]
    pub const fn any_writable(&self) -> bool {
        self.any_writable
    }
    /// With `MERGE_YOUNG_DIRTY`: whether some entry is young.
    #[inline]
    pub const fn any_young(&self) -> bool {
        self.any_young
    }
    /// With `MERGE_YOUNG_DIRTY`: whether some entry is dirty.
    #[inline]
    pub const fn any_dirty(&self) -> bool {
        self.any_dirty
    }
    /// The first `n` entries of the run (at least one).
    #[inline]
    pub fn prefix(mut self, n: usize) -> Self {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        let n = NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        self.nr = self.nr.min(n);
        self
    }
}
