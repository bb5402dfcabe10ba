//! What a lockless walker needs of RCU, interrupts-off sections or epochs.

/// Delays frees, and writers, until lockless readers have left.
///
/// A reader holds a guard from [`pin`](Self::pin) while it follows pointers it
/// read from shared memory. A writer first makes an object unreachable and then
/// hands it to [`retire`](Self::retire), or waits with
/// [`synchronize`](Self::synchronize).
///
/// # The rule that keeps it from deadlocking
///
/// **Nobody waits for a lock while holding a guard.** Only so may
/// `synchronize` be called with a lock held, as formats with two-word entries
/// do before they replace an entry by one with an equal low word.
///
/// # Safety
///
/// Every access made under a guard that existed when `retire` or `synchronize`
/// was called happens-before the closure runs, or `synchronize` returns; and
/// every access before that call happens-before whatever a *later* guard reads.
pub unsafe trait Quiescence: Sync {
    /// A read section. Not `Send` where sections belong to a CPU.
    type Guard<'q>
    where
        Self: 'q;

    /// Enters a read section; sections nest.
    fn pin(&self) -> Self::Guard<'_>;

    /// Runs `free` at some time after every guard that exists now is gone.
    ///
    /// The object that `free` gives back must already be unreachable for later
    /// guards. `free` may run at once, on this thread or on another one.
    fn retire(&self, free: impl FnOnce() + Send + 'static);

    /// Waits until every guard that exists now is gone.
    ///
    /// The caller holds no guard of this domain (it would wait for itself).
    fn synchronize(&self);
}
