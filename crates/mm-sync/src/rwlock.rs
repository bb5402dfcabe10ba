//! Shared and exclusive locking behind a narrow trait.

use crate::Innermost;
use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// What an mmap lock or a reverse-map lock needs of a lock.
///
/// Every `lock_api::RawRwLock` has it for free.
///
/// # Safety
///
/// While the exclusive side is held nobody else holds either side; each
/// release happens-before the next conflicting acquisition.
pub unsafe trait RawRwLock: Send + Sync {
    /// What the shared side returns and takes back.
    type Shared;
    /// What the exclusive side returns and takes back.
    type Exclusive;
    /// A lock that nobody holds.
    fn new() -> Self;
    /// Waits for the shared side.
    fn lock_shared(&self) -> Self::Shared;
    /// Takes the shared side if that needs no waiting.
    fn try_lock_shared(&self) -> Option<Self::Shared>;
    /// Waits for the exclusive side.
    fn lock_exclusive(&self) -> Self::Exclusive;
    /// Takes the exclusive side if that needs no waiting.
    fn try_lock_exclusive(&self) -> Option<Self::Exclusive>;
    /// Gives the shared side back.
    ///
    /// # Safety
    ///
    /// This thread holds it, and `state` came from the call that took it.
    unsafe fn unlock_shared(&self, state: Self::Shared);
    /// Gives the exclusive side back.
    ///
    /// # Safety
    ///
    /// This thread holds it, and `state` came from the call that took it.
    unsafe fn unlock_exclusive(&self, state: Self::Exclusive);
}

// SAFETY: the contract of `lock_api::RawRwLock` is the contract above.
#[cfg(not(loom))]
unsafe impl<R: lock_api::RawRwLock + Send + Sync> RawRwLock for R {
    type Shared = R::SharedGuard;
    type Exclusive = R::ExclusiveGuard;
    #[inline]
    fn new() -> Self {
        R::INIT
    }
    #[inline]
    fn lock_shared(&self) -> R::SharedGuard {
        lock_api::RawRwLock::lock_shared(self)
    }
    #[inline]
    fn try_lock_shared(&self) -> Option<R::SharedGuard> {
        lock_api::RawRwLock::try_lock_shared(self)
    }
    #[inline]
    fn lock_exclusive(&self) -> R::ExclusiveGuard {
        lock_api::RawRwLock::lock_exclusive(self)
    }
    #[inline]
    fn try_lock_exclusive(&self) -> Option<R::ExclusiveGuard> {
        lock_api::RawRwLock::try_lock_exclusive(self)
    }
    #[inline]
    unsafe fn unlock_shared(&self, state: R::SharedGuard) {
        // SAFETY: passed on to the caller.
        unsafe { lock_api::RawRwLock::unlock_shared(self, state) }
    }
    #[inline]
    unsafe fn unlock_exclusive(&self, state: R::ExclusiveGuard) {
        // SAFETY: passed on to the caller.
        unsafe { lock_api::RawRwLock::unlock_exclusive(self, state) }
    }
}

/// A value protected by a [`RawRwLock`].
pub struct RwLock<R: RawRwLock, T> {
    raw: R,
    value: UnsafeCell<T>,
}

// SAFETY: shared guards hand out `&T` on many threads (needs `T: Sync`), the
// exclusive guard `&mut T` on any thread (needs `T: Send`).
unsafe impl<R: RawRwLock, T: Send + Sync> Sync for RwLock<R, T> {}

/// Shared access to the value of an [`RwLock`].
#[must_use = "the lock is given back when the guard is dropped"]
pub struct ReadGuard<'a, R: RawRwLock, T> {
    lock: &'a RwLock<R, T>,
    state: Option<R::Shared>,
    _not_send: core::marker::PhantomData<*const ()>,
}

/// Exclusive access to the value of an [`RwLock`].
#[must_use = "the lock is given back when the guard is dropped"]
pub struct WriteGuard<'a, R: RawRwLock, T> {
    lock: &'a RwLock<R, T>,
    state: Option<R::Exclusive>,
    _not_send: core::marker::PhantomData<*const ()>,
}

impl<R: RawRwLock, T> RwLock<R, T> {
    /// Wraps `value`.
    pub fn new(value: T) -> Self {
        RwLock { raw: R::new(), value: UnsafeCell::new(value) }
    }
    /// Waits for shared access.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, R, T> {
        Innermost::may_lock();
        ReadGuard {
            state: Some(self.raw.lock_shared()),
            lock: self,
            _not_send: core::marker::PhantomData,
        }
    }
    /// Shared access if that needs no waiting.
    #[inline]
    pub fn try_read(&self) -> Option<ReadGuard<'_, R, T>> {
        Innermost::may_lock();
        let state = self.raw.try_lock_shared()?;
        Some(ReadGuard { state: Some(state), lock: self, _not_send: core::marker::PhantomData })
    }
    /// Waits for exclusive access.
    #[inline]
    pub fn write(&self) -> WriteGuard<'_, R, T> {
        Innermost::may_lock();
        WriteGuard {
            state: Some(self.raw.lock_exclusive()),
            lock: self,
            _not_send: core::marker::PhantomData,
        }
    }
    /// Exclusive access if that needs no waiting.
    #[inline]
    pub fn try_write(&self) -> Option<WriteGuard<'_, R, T>> {
        Innermost::may_lock();
        let state = self.raw.try_lock_exclusive()?;
        Some(WriteGuard { state: Some(state), lock: self, _not_send: core::marker::PhantomData })
    }
    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<R: RawRwLock, T: Default> Default for RwLock<R, T> {
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<R: RawRwLock, T> fmt::Debug for RwLock<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock")
    }
}

impl<R: RawRwLock, T> Deref for ReadGuard<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the shared side is held, so nobody has `&mut T`.
        unsafe { &*self.lock.value.get() }
    }
}
impl<R: RawRwLock, T> Deref for WriteGuard<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the exclusive side is held.
        unsafe { &*self.lock.value.get() }
    }
}
impl<R: RawRwLock, T> DerefMut for WriteGuard<'_, R, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the exclusive side is held and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}
impl<R: RawRwLock, T> Drop for ReadGuard<'_, R, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            // SAFETY: taken by the `read` that made this guard, given back once.
            unsafe { self.lock.raw.unlock_shared(state) }
        }
    }
}
impl<R: RawRwLock, T> Drop for WriteGuard<'_, R, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            // SAFETY: taken by the `write` that made this guard, given back once.
            unsafe { self.lock.raw.unlock_exclusive(state) }
        }
    }
}

/// A minimal reader-writer spinlock: the count of readers, or all ones.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct SpinRw(core::sync::atomic::AtomicU32);

#[cfg(not(loom))]
const WRITER: u32 = u32::MAX;

// SAFETY: the word is `WRITER` only between a successful exchange from zero and
// the store that gives it back; readers count only while it is not. Acquire on
// taking pairs with Release on giving back.
#[cfg(not(loom))]
unsafe impl lock_api::RawRwLock for SpinRw {
    const INIT: Self = SpinRw(core::sync::atomic::AtomicU32::new(0));
    type SharedGuard = ();
    type ExclusiveGuard = ();

    fn lock_shared(&self) {
        while lock_api::RawRwLock::try_lock_shared(self).is_none() {
            crate::hint::spin_loop();
        }
    }
    fn try_lock_shared(&self) -> Option<()> {
        use core::sync::atomic::Ordering;
        let mut n = self.0.load(Ordering::Relaxed);
        loop {
            // One below the mark is refused too: it would read as a writer.
            if n >= WRITER - 1 {
                return None;
            }
            match self.0.compare_exchange_weak(n, n + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(()),
                Err(seen) => n = seen,
            }
        }
    }
    unsafe fn unlock_shared(&self, (): ()) {
        self.0.fetch_sub(1, core::sync::atomic::Ordering::Release);
    }
    fn lock_exclusive(&self) {
        while lock_api::RawRwLock::try_lock_exclusive(self).is_none() {
            crate::hint::spin_loop();
        }
    }
    fn try_lock_exclusive(&self) -> Option<()> {
        use core::sync::atomic::Ordering;
        self.0
            .compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then_some(())
    }
    unsafe fn unlock_exclusive(&self, (): ()) {
        self.0.store(0, core::sync::atomic::Ordering::Release);
    }
    fn is_locked(&self) -> bool {
        self.0.load(core::sync::atomic::Ordering::Relaxed) != 0
    }
    fn is_locked_exclusive(&self) -> bool {
        self.0.load(core::sync::atomic::Ordering::Relaxed) == WRITER
    }
}

/// A blocking reader-writer lock for models. Readers exclude each other: a
/// mutex explores fewer executions, and no protocol here rests on two readers
/// being inside at once.
#[cfg(loom)]
pub struct LoomRwLock(crate::LoomLock);

#[cfg(loom)]
// SAFETY: stronger than asked for, see the type.
unsafe impl RawRwLock for LoomRwLock {
    type Shared = ();
    type Exclusive = ();
    fn new() -> Self {
        LoomRwLock(crate::RawLock::new())
    }
    fn lock_shared(&self) {
        crate::RawLock::lock(&self.0);
    }
    fn try_lock_shared(&self) -> Option<()> {
        crate::RawLock::try_lock(&self.0)
    }
    fn lock_exclusive(&self) {
        crate::RawLock::lock(&self.0);
    }
    fn try_lock_exclusive(&self) -> Option<()> {
        crate::RawLock::try_lock(&self.0)
    }
    unsafe fn unlock_shared(&self, state: ()) {
        // SAFETY: passed on to the caller.
        unsafe { crate::RawLock::unlock(&self.0, state) }
    }
    unsafe fn unlock_exclusive(&self, state: ()) {
        // SAFETY: passed on to the caller.
        unsafe { crate::RawLock::unlock(&self.0, state) }
    }
}

/// The reader-writer lock to use where nothing speaks for another one.
#[cfg(loom)]
pub type DefaultRwLock = LoomRwLock;
/// The reader-writer lock to use where nothing speaks for another one.
#[cfg(all(not(loom), feature = "std"))]
pub type DefaultRwLock = parking_lot::RawRwLock;
/// The reader-writer lock to use where nothing speaks for another one.
#[cfg(all(not(loom), not(feature = "std")))]
pub type DefaultRwLock = SpinRw;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn excludes<R: RawRwLock>() {
        let lock = RwLock::<R, u32>::new(1);
        {
            let (a, b) = (lock.read(), lock.read());
            assert_eq!(*a + *b, 2);
            assert!(lock.try_write().is_none());
        }
        *lock.write() += 1;
        {
            let _w = lock.write();
            assert!(lock.try_read().is_none());
            assert!(lock.try_write().is_none());
        }
        assert_eq!(*lock.read(), 2);
    }

    #[test]
    fn a_writer_excludes_everybody() {
        excludes::<SpinRw>();
        excludes::<DefaultRwLock>();
    }
}
