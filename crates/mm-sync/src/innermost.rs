//! Locks inside of which no other lock is taken.

use core::marker::PhantomData;

/// Held as long as an innermost lock is.
///
/// In debug builds with the feature `std`, a lock of this crate that the thread takes
/// meanwhile is a panic. Elsewhere this is nothing. Under loom, whose threads share one
/// thread of the host, it cannot be told who holds what.
#[must_use = "the lock counts as held until this is dropped"]
pub struct Innermost {
    // The count is the thread's.
    _not_send: PhantomData<*const ()>,
}

#[cfg(all(debug_assertions, feature = "std", not(loom)))]
mod held {
    use core::cell::Cell;

    std::thread_local! {
        static HELD: Cell<u32> = const { Cell::new(0) };
    }
    pub fn add(n: i32) {
        HELD.with(|held| held.set(held.get().wrapping_add_signed(n)));
    }
    #[track_caller]
    pub fn assert_none() {
        assert_eq!(HELD.with(Cell::get), 0, "a lock is taken inside of an innermost one");
    }
}
#[cfg(not(all(debug_assertions, feature = "std", not(loom))))]
mod held {
    #[inline(always)]
    pub fn add(_: i32) {}
    #[inline(always)]
    pub fn assert_none() {}
}

impl Innermost {
    /// The thread has taken an innermost lock.
    ///
    /// # Panics
    ///
    /// If it holds one already, in builds that check.
    #[inline]
    #[track_caller]
    pub fn enter() -> Self {
        held::assert_none();
        held::add(1);
        Innermost { _not_send: PhantomData }
    }
    /// The thread is about to take a lock, or tries to.
    ///
    /// # Panics
    ///
    /// If it holds an innermost one, in builds that check.
    #[inline]
    #[track_caller]
    pub fn may_lock() {
        held::assert_none();
    }
}

impl Drop for Innermost {
    #[inline]
    fn drop(&mut self) {
        held::add(-1);
    }
}

impl core::fmt::Debug for Innermost {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Innermost")
    }
}
