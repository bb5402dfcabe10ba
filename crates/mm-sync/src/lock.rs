//! Mutual exclusion behind a narrow trait.

use crate::Innermost;
use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// What a page-table split lock needs of a lock.
///
/// Every `lock_api::RawMutex` has it for free: parking_lot's, a kernel's own
/// spinlock. Loom locks implement it directly, because loom objects cannot be
/// made in a `const` and `RawMutex::INIT` is one.
///
/// # Safety
///
/// Between a `lock` (or successful `try_lock`) and its `unlock` no other
/// thread's `lock` returns; `unlock` happens-before the next `lock`.
pub unsafe trait RawLock: Send + Sync {
    /// What `lock` returns and `unlock` takes (`()` mostly).
    type State;
    /// A lock that nobody holds.
    fn new() -> Self;
    /// Waits for the lock.
    fn lock(&self) -> Self::State;
    /// Takes the lock if it is free.
    fn try_lock(&self) -> Option<Self::State>;
    /// Gives the lock back.
    ///
    /// # Safety
    ///
    /// This thread holds the lock, and `state` came from the call that took it.
    unsafe fn unlock(&self, state: Self::State);
}

// SAFETY: the contract of `lock_api::RawMutex` is the contract above.
#[cfg(not(loom))]
unsafe impl<R: lock_api::RawMutex + Send + Sync> RawLock for R {
    type State = R::Guard;
    #[inline]
    fn new() -> Self {
        R::INIT
    }
    #[inline]
    fn lock(&self) -> R::Guard {
        lock_api::RawMutex::lock(self)
    }
    #[inline]
    fn try_lock(&self) -> Option<R::Guard> {
        lock_api::RawMutex::try_lock(self)
    }
    #[inline]
    unsafe fn unlock(&self, state: R::Guard) {
        // SAFETY: passed on to the caller.
        unsafe { lock_api::RawMutex::unlock(self, state) }
    }
}

/// A lock that protects something stored elsewhere (a page table).
pub struct Lock<R: RawLock>(R);

/// Holds a [`Lock`]; gives it back when dropped.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct LockGuard<'a, R: RawLock> {
    lock: &'a Lock<R>,
    state: Option<R::State>,
    // A lock is given back by the thread that took it.
    _not_send: core::marker::PhantomData<*const ()>,
}

impl<R: RawLock> Lock<R> {
    /// A lock that nobody holds.
    pub fn new() -> Self {
        Lock(R::new())
    }
    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, R> {
        Innermost::may_lock();
        self.guard(self.0.lock())
    }
    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, R>> {
        Innermost::may_lock();
        self.0.try_lock().map(|s| self.guard(s))
    }
    #[inline]
    fn guard(&self, state: R::State) -> LockGuard<'_, R> {
        LockGuard { lock: self, state: Some(state), _not_send: core::marker::PhantomData }
    }
}

impl<R: RawLock> Default for Lock<R> {
    fn default() -> Self {
        Lock::new()
    }
}

impl<R: RawLock> fmt::Debug for Lock<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

impl<R: RawLock> LockGuard<'_, R> {
    /// Whether this guard holds `lock`.
    pub fn is_of(&self, lock: &Lock<R>) -> bool {
        core::ptr::eq(self.lock, lock)
    }
}

impl<R: RawLock> Drop for LockGuard<'_, R> {
    #[inline]
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            // SAFETY: `state` came from the `lock` that made this guard, which
            // is not `Send`, and it is taken only once.
            unsafe { self.lock.0.unlock(state) }
        }
    }
}

/// A value protected by a [`RawLock`].
pub struct Mutex<R: RawLock, T> {
    raw: Lock<R>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, one at a time.
unsafe impl<R: RawLock, T: Send> Sync for Mutex<R, T> {}

/// Access to the value of a [`Mutex`].
#[must_use = "the lock is given back when the guard is dropped"]
pub struct MutexGuard<'a, R: RawLock, T> {
    value: &'a UnsafeCell<T>,
    _held: LockGuard<'a, R>,
}

impl<R: RawLock, T> Mutex<R, T> {
    /// Wraps `value`.
    pub fn new(value: T) -> Self {
        Mutex { raw: Lock::new(), value: UnsafeCell::new(value) }
    }
    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, R, T> {
        MutexGuard { _held: self.raw.lock(), value: &self.value }
    }
    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, R, T>> {
        self.raw.try_lock().map(|held| MutexGuard { _held: held, value: &self.value })
    }
    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
    /// The value itself.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<R: RawLock, T: Default> Default for Mutex<R, T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<R: RawLock, T> fmt::Debug for Mutex<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<R: RawLock, T> Deref for MutexGuard<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock, so nobody else has access.
        unsafe { &*self.value.get() }
    }
}

impl<R: RawLock, T> DerefMut for MutexGuard<'_, R, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and is borrowed mutably.
        unsafe { &mut *self.value.get() }
    }
}

/// A minimal spinlock, one byte.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct Spin(core::sync::atomic::AtomicBool);

// SAFETY: Acquire on the exchange that takes the lock pairs with the Release
// store that gives it back; only one exchange from `false` succeeds.
#[cfg(not(loom))]
unsafe impl lock_api::RawMutex for Spin {
    const INIT: Self = Spin(core::sync::atomic::AtomicBool::new(false));
    type Guard = ();

    #[inline]
    fn lock(&self) {
        while lock_api::RawMutex::try_lock(self).is_none() {
            while self.0.load(core::sync::atomic::Ordering::Relaxed) {
                crate::hint::spin_loop();
            }
        }
    }
    #[inline]
    fn try_lock(&self) -> Option<()> {
        use core::sync::atomic::Ordering;
        self.0
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then_some(())
    }
    #[inline]
    unsafe fn unlock(&self, (): ()) {
        self.0.store(false, core::sync::atomic::Ordering::Release);
    }
    fn is_locked(&self) -> bool {
        self.0.load(core::sync::atomic::Ordering::Relaxed)
    }
}

// A lock is given back by the thread that took it, once.
#[cfg(not(loom))]
static_assertions::assert_not_impl_any!(LockGuard<'static, Spin>: Send, Clone);

/// A blocking lock for models: the waiter is descheduled, which costs far fewer
/// executions than spinning.
#[cfg(loom)]
pub struct LoomLock {
    mutex: loom::sync::Mutex<()>,
    held: UnsafeCell<Option<loom::sync::MutexGuard<'static, ()>>>,
}

#[cfg(loom)]
// SAFETY: `held` is accessed only by the thread that holds `mutex`.
unsafe impl Sync for LoomLock {}
#[cfg(loom)]
// SAFETY: as above; loom's threads are coroutines on one OS thread.
unsafe impl Send for LoomLock {}

#[cfg(loom)]
impl LoomLock {
    fn keep(&self, guard: loom::sync::MutexGuard<'_, ()>) {
        // SAFETY: written only while the lock is held, dropped in `unlock`
        // before `mutex` can go away, so the longer lifetime is never used.
        unsafe {
            *self.held.get() = Some(core::mem::transmute::<
                loom::sync::MutexGuard<'_, ()>,
                loom::sync::MutexGuard<'static, ()>,
            >(guard));
        }
    }
}

#[cfg(loom)]
// SAFETY: loom's mutex is one.
unsafe impl RawLock for LoomLock {
    type State = ();
    fn new() -> Self {
        LoomLock { mutex: loom::sync::Mutex::new(()), held: UnsafeCell::new(None) }
    }
    fn lock(&self) {
        self.keep(self.mutex.lock().expect("loom mutexes are not poisoned"));
    }
    fn try_lock(&self) -> Option<()> {
        self.mutex.try_lock().ok().map(|g| self.keep(g))
    }
    unsafe fn unlock(&self, (): ()) {
        // SAFETY: the caller holds the lock, so nobody else touches `held`.
        let guard = unsafe { (*self.held.get()).take() };
        drop(guard);
    }
}

/// The lock to use where nothing speaks for another one.
#[cfg(loom)]
pub type DefaultLock = LoomLock;
/// The lock to use where nothing speaks for another one.
#[cfg(all(not(loom), feature = "std"))]
pub type DefaultLock = parking_lot::RawMutex;
/// The lock to use where nothing speaks for another one.
#[cfg(all(not(loom), not(feature = "std")))]
pub type DefaultLock = Spin;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_cannot_be_taken_and_comes_back() {
        let lock = Lock::<Spin>::new();
        let held = lock.lock();
        assert!(held.is_of(&lock));
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_mutex_counts_from_many_threads() {
        extern crate std;
        let m = std::sync::Arc::new(Mutex::<DefaultLock, u32>::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..1000 {
                        *m.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*m.lock(), 4000);
    }
}
