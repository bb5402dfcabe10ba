//! The mmap lock, the locks of single VMAs, and the store that both protect.
//!
//! # The protocol
//!
//! Whoever holds a VMA lock is counted at the VMA. A writer of the mmap lock first *closes* the
//! addresses that it may change, all of them or a range, under the lookup lock, and then waits
//! until nobody is counted at a VMA there. A lookup, which holds the lookup lock's shared side,
//! counts itself at no VMA of closed addresses. So nobody is counted there until the writer
//! opens the addresses again, which is the last thing it does.
//!
//! A VMA is closed if it overlaps the range *or touches it*: what is joined with a neighbour,
//! or cut off at an end of the range, is so too.
//!
//! The store itself is changed under the lookup lock by a writer that left anything open. One
//! that closed all needs none: lookups stop before they look at the store.

use crate::{StoreError, Vma, VmaStore};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use mm_arch::{VirtAddr, VirtRange};
use mm_sync::atomic::{AtomicU32, Ordering};
use mm_sync::{Live, RawRwLock, ReadGuard, RwLock, WriteGuard, hint, mutant, ord};

/// How many hold the lock of one VMA.
#[derive(Debug)]
pub(crate) struct Holders {
    nr: AtomicU32,
    /// What they rely on.
    vma: Live,
}

impl Holders {
    pub fn none() -> Self {
        Holders { nr: AtomicU32::new(0), vma: Live::new() }
    }
    /// Under the lookup lock, which orders it before the wait of a later writer.
    fn enter(&self) {
        self.nr.fetch_add(1, Ordering::Relaxed);
    }
    /// Release pairs with "vma.lock.drained": whatever was done under the lock happens before
    /// the writer's changes.
    fn leave(&self) {
        self.nr.fetch_sub(1, ord!("vma.lock.leave", Release));
    }
    /// Whether nobody does. Acquire pairs with "vma.lock.leave".
    fn is_none(&self) -> bool {
        self.nr.load(ord!("vma.lock.drained", Acquire)) == 0
    }
    /// The VMA is changed.
    ///
    /// # Panics
    ///
    /// If somebody holds its lock.
    pub fn expect_none(&self) {
        assert!(self.is_none(), "a mapping is changed while it is locked");
        self.vma.retired();
    }
    fn wait(&self) {
        while !self.is_none() && !mutant!("vma.lock.no_wait") {
            hint::spin_loop();
        }
    }
}

/// Where no VMA can be locked.
#[derive(Clone, Copy, Debug)]
enum Closed {
    Nothing,
    /// Widened by what touches it.
    Range(VirtRange),
    All,
}

impl Closed {
    /// `range`, and what touches it.
    fn around(range: VirtRange) -> Self {
        let first = range.start().get().saturating_sub(1);
        let last = range.last().get().saturating_add(1);
        VirtRange::new(VirtAddr::new(first), (last - first).saturating_add(1))
            .map_or(Closed::All, Closed::Range)
    }
    /// Whether a VMA there is closed.
    fn includes(self, vma: VirtRange) -> bool {
        match self {
            Closed::Nothing => false,
            Closed::Range(range) => range.intersect(vma).is_some(),
            Closed::All => true,
        }
    }
    /// Whether all VMAs that overlap `range` are.
    fn covers(self, range: VirtRange) -> bool {
        match self {
            Closed::Nothing => false,
            Closed::Range(closed) => closed.covers(range),
            Closed::All => true,
        }
    }
}

/// The VMAs of a space and their locks.
///
/// # Invariants
///
/// * `store` is changed only by the holder of `mmap`'s exclusive side, who closed everything or
///   holds the exclusive side of `lookup`.
/// * Nobody is counted at a VMA that is changed, dropped, or lies at closed addresses of
///   a [`Writing`].
pub(crate) struct Vmas<L: RawRwLock> {
    mmap: RwLock<L, ()>,
    lookup: RwLock<L, Closed>,
    store: UnsafeCell<VmaStore>,
    /// What lookups rely on.
    looked_at: Live,
}

// SAFETY: shared access is by either side of `mmap` or the shared side of `lookup`, exclusive
// access as the invariant says. The store is `Send` and `Sync`.
unsafe impl<L: RawRwLock> Sync for Vmas<L> {}
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<VmaStore>();
};

impl<L: RawRwLock> Vmas<L> {
    pub fn new(store: VmaStore) -> Self {
        Vmas {
            mmap: RwLock::new(()),
            lookup: RwLock::new(Closed::Nothing),
            store: UnsafeCell::new(store),
            looked_at: Live::new(),
        }
    }
    pub fn read(&self) -> Reading<'_, L> {
        Reading { vmas: self, _mmap: self.mmap.read() }
    }
    pub fn try_read(&self) -> Option<Reading<'_, L>> {
        Some(Reading { vmas: self, _mmap: self.mmap.try_read()? })
    }
    /// Exclusive: of all VMAs, or of those at `range`.
    pub fn write(&self, range: Option<VirtRange>) -> Writing<'_, L> {
        let mmap = self.mmap.write();
        let closed = range.map_or(Closed::All, Closed::around);
        if !mutant!("vma.lock.open") {
            *self.lookup.write() = closed;
        }
        let writing = Writing { vmas: self, closed, _mmap: mmap };
        match closed {
            Closed::Range(range) => writing.overlapping(range).for_each(|v| v.holders().wait()),
            _ => writing.iter().for_each(|v| v.holders().wait()),
        }
        writing
    }
    /// The VMA at `va`, if it may be locked; waits for no writer but while the store changes.
    pub fn lock(&self, va: VirtAddr) -> Option<Locked<'_>> {
        let closed = self.lookup.read();
        if matches!(*closed, Closed::All) {
            return None;
        }
        // SAFETY: the shared side of `lookup` is held, and not everything is closed, so
        // nobody changes the store.
        let store = unsafe { &*self.store.get() };
        let vma = store.find(va).filter(|v| !closed.includes(v.range()));
        self.looked_at.used();
        let vma = vma?;
        vma.holders().enter();
        Some(Locked { vma: NonNull::from(vma), _of: PhantomData, _not_send: PhantomData })
    }
}

/// A VMA that this thread is counted at.
pub(crate) struct Locked<'m> {
    vma: NonNull<Vma>,
    _of: PhantomData<&'m VmaStore>,
    _not_send: PhantomData<*const ()>,
}

impl Deref for Locked<'_> {
    type Target = Vma;
    #[inline]
    fn deref(&self) -> &Vma {
        // SAFETY: it is counted, so it is neither changed nor dropped (invariant of `Vmas`),
        // nor moved: the store keeps it in an allocation of its own.
        unsafe { self.vma.as_ref() }
    }
}
impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.holders().vma.used();
        self.holders().leave();
    }
}

/// The shared side of the mmap lock.
pub(crate) struct Reading<'m, L: RawRwLock> {
    vmas: &'m Vmas<L>,
    _mmap: ReadGuard<'m, L, ()>,
}

impl<L: RawRwLock> Deref for Reading<'_, L> {
    type Target = VmaStore;
    #[inline]
    fn deref(&self) -> &VmaStore {
        // SAFETY: the shared side of `mmap` is held, so nobody changes the store.
        unsafe { &*self.vmas.store.get() }
    }
}

/// The exclusive side of the mmap lock.
///
/// # Invariants
///
/// `closed` is what lookups see until it is dropped, and nobody is counted there.
pub(crate) struct Writing<'m, L: RawRwLock> {
    vmas: &'m Vmas<L>,
    closed: Closed,
    _mmap: WriteGuard<'m, L, ()>,
}

impl<'m, L: RawRwLock> Writing<'m, L> {
    /// Whether nobody is counted at a VMA that overlaps `range`.
    pub fn excludes(&self, range: VirtRange) -> bool {
        self.closed.covers(range)
    }
    pub fn change(&mut self) -> StoreChange<'_, L> {
        let lookup = match self.closed {
            Closed::All => None,
            _ if mutant!("vma.change.unlocked") => None,
            _ => Some(self.vmas.lookup.write()),
        };
        self.vmas.looked_at.retired();
        // SAFETY: the exclusive side of `mmap` is held and `self` borrowed mutably; lookups
        // stop at what is closed, or are excluded by `lookup`.
        let store = unsafe { &mut *self.vmas.store.get() };
        StoreChange { store, _lookup: lookup }
    }
}

impl<L: RawRwLock> Deref for Writing<'_, L> {
    type Target = VmaStore;
    #[inline]
    fn deref(&self) -> &VmaStore {
        // SAFETY: only this thread changes the store, and not while this borrow lives.
        unsafe { &*self.vmas.store.get() }
    }
}
impl<L: RawRwLock> Drop for Writing<'_, L> {
    fn drop(&mut self) {
        // A lock of a model cannot be taken again once a failure went past it.
        #[cfg(loom)]
        if mm_sync::thread::is_failing() {
            return;
        }
        *self.vmas.lookup.write() = Closed::Nothing;
    }
}

/// The store of VMAs, to change.
///
/// Never all of it at once: what is replaced could be locked.
#[must_use = "a lock may be held as long as it lives"]
pub struct StoreChange<'w, L: RawRwLock> {
    store: &'w mut VmaStore,
    _lookup: Option<WriteGuard<'w, L, Closed>>,
}

impl<'w, L: RawRwLock> StoreChange<'w, L> {
    /// See [`VmaStore::find_mut`].
    pub fn find_mut(&mut self, va: VirtAddr) -> Option<&mut Vma> {
        self.store.find_mut(va)
    }
    /// See [`VmaStore::overlapping_mut`].
    pub fn overlapping_mut(&mut self, range: VirtRange) -> impl Iterator<Item = &mut Vma> {
        self.store.overlapping_mut(range)
    }
    /// See [`VmaStore::insert`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn insert(&mut self, vma: Vma) -> Result<(), StoreError> {
        self.store.insert(vma)
    }
    /// See [`VmaStore::split_at`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn split_at(&mut self, va: VirtAddr) -> Result<bool, StoreError> {
        self.store.split_at(va)
    }
    /// See [`VmaStore::split_around`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn split_around(&mut self, range: VirtRange) -> Result<(), StoreError> {
        self.store.split_around(range)
    }
    /// See [`VmaStore::remove`].
    pub fn remove(&mut self, range: VirtRange, each: impl FnMut(Vma)) {
        self.store.remove(range, each);
    }
    /// See [`VmaStore::merge_around`].
    pub fn merge_around(
        &mut self,
        range: VirtRange,
        compatible: impl Fn(&Vma, &Vma) -> bool,
        joined: impl FnMut(&Vma, &Vma),
    ) {
        self.store.merge_around(range, compatible, joined);
    }
    /// See [`VmaStore::resize`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn resize(&mut self, start: VirtAddr, range: VirtRange) -> Result<(), StoreError> {
        self.store.resize(start, range)
    }
}
