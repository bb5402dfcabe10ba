//! What is known about a table beside its entries.

use mm_arch::{Pfn, TableFrame};
use mm_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use mm_sync::{Live, Lock, RawLock};

/// The descriptor of one page table: split lock, entry count, deposited tables.
///
/// # Invariants
///
/// `entries` and the deposit list change only with `lock` held (or before the
/// table is published); they are atomics so that observers may read them.
#[derive(Debug)]
pub struct TableDesc<L: RawLock> {
    lock: Lock<L>,
    entries: AtomicU32,
    // Frame number + 1 of the first deposited table; 0 for none.
    deposit: AtomicU64,
    // Frame number + 1 of the next table on the list this table is on.
    next: AtomicU64,
    live: Live,
}

impl<L: RawLock> TableDesc<L> {
    /// The descriptor of an empty table.
    pub fn new() -> Self {
        TableDesc {
            lock: Lock::new(),
            entries: AtomicU32::new(0),
            deposit: AtomicU64::new(0),
            next: AtomicU64::new(0),
            live: Live::new(),
        }
    }
    /// Puts the descriptor back into the state of [`new`](Self::new).
    ///
    /// For a [`TableMemory`](crate::TableMemory) that hands out a frame again:
    /// nobody else may reach it, and no table is deposited with it. (A tree that
    /// is dropped gives back tables that still have entries.)
    pub fn reset(&self) {
        self.entries.store(0, Ordering::Relaxed);
        self.deposit.store(0, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
    }
    /// The split lock.
    #[inline]
    pub fn lock(&self) -> &Lock<L> {
        &self.lock
    }
    /// Number of entries that are not empty.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.entries.load(Ordering::Relaxed)
    }
    /// The liveness marker of the table.
    #[inline]
    pub fn live(&self) -> &Live {
        &self.live
    }
    /// Number of deposited tables; `desc` finds the descriptor of a frame.
    pub fn deposits<'a>(&self, desc: impl Fn(TableFrame) -> &'a TableDesc<L>) -> usize
    where
        L: 'a,
    {
        let mut n = 0;
        let mut at = self.deposit.load(Ordering::Relaxed);
        while at != 0 {
            n += 1;
            at = desc(TableFrame::new(Pfn::new(at - 1))).next.load(Ordering::Relaxed);
        }
        n
    }

    // Plain read-modify-write: the lock is held.
    #[inline]
    pub(crate) fn count(&self, delta: i32) {
        let n = self.entries.load(Ordering::Relaxed);
        let new = n.wrapping_add_signed(delta);
        debug_assert!(new <= 1 << 20, "entry count went below zero");
        self.entries.store(new, Ordering::Relaxed);
    }
    pub(crate) fn push_deposit(&self, frame: TableFrame, desc: &TableDesc<L>) {
        desc.next.store(self.deposit.load(Ordering::Relaxed), Ordering::Relaxed);
        self.deposit.store(frame.pfn().get() + 1, Ordering::Relaxed);
    }
    pub(crate) fn first_deposit(&self) -> Option<TableFrame> {
        let at = self.deposit.load(Ordering::Relaxed);
        (at != 0).then(|| TableFrame::new(Pfn::new(at - 1)))
    }
    pub(crate) fn pop_deposit(&self, first: &TableDesc<L>) {
        self.deposit.store(first.next.load(Ordering::Relaxed), Ordering::Relaxed);
        first.next.store(0, Ordering::Relaxed);
    }
}

impl<L: RawLock> Default for TableDesc<L> {
    fn default() -> Self {
        TableDesc::new()
    }
}
