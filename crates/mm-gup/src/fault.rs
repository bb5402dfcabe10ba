//! What GUP asks of the fault code.

use mm_arch::VirtAddr;
use mm_vma::{MmRead, Platform};

bitflags::bitflags! {
    /// What kind of fault GUP needs resolved (rule GUPS-30).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct GupFault: u32 {
        /// For a store.
        const WRITE = 1;
        /// Make the page exclusive to this address space, without making the
        /// entry writable. Excludes `WRITE`.
        const UNSHARE = 2;
        /// In another address space than the caller's.
        const REMOTE = 4;
        /// The handler may drop the mmap lock and ask for a retry.
        const ALLOW_RETRY = 8;
        /// This is the retry.
        const TRIED = 16;
        /// With `ALLOW_RETRY`: do not wait, and keep the lock.
        const NOWAIT = 32;
    }
}

/// Why a fault could not be resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultError {
    /// No memory.
    NoMemory,
    /// The page is poisoned.
    Poisoned,
    /// No mapping, no right, or beyond the end of a file.
    Signal,
}

/// What became of the fault and of the mmap guard (rule GUPS-31).
#[derive(Debug)]
#[must_use]
pub enum Resolved<'m, P: Platform> {
    /// Resolved; look again.
    Done(MmRead<'m, P>),
    /// The handler dropped the lock; take it again and look again.
    LockDropped,
    /// Not resolved without waiting, and `NOWAIT` was given.
    WouldWait(MmRead<'m, P>),
    /// Not resolved.
    Failed(MmRead<'m, P>, FaultError),
}

/// Resolves one fault. Implemented by whoever has the fault code. Called with no lock held but
/// the read side of the mmap lock, which `vmas` is. What goes back is that guard and no other:
/// GUP panics when it walks with a guard of another space.
///
/// # Example
///
/// ```
/// use mm_arch::VirtAddr;
/// use mm_gup::{FaultError, FaultHandler, GupFault, Resolved};
/// use mm_vma::{MmRead, Platform};
///
/// /// Has loads resolved by a function, and refuses stores.
/// struct ReadOnly<F>(F);
///
/// impl<P: Platform, F: Fn(&MmRead<'_, P>, VirtAddr) -> bool> FaultHandler<P> for ReadOnly<F> {
///     fn resolve<'m>(
///         &self,
///         vmas: MmRead<'m, P>,
///         va: VirtAddr,
///         fault: GupFault,
///     ) -> Resolved<'m, P> {
///         if !fault.contains(GupFault::WRITE) && (self.0)(&vmas, va) {
///             Resolved::Done(vmas)
///         } else {
///             Resolved::Failed(vmas, FaultError::Signal)
///         }
///     }
/// }
/// ```
pub trait FaultHandler<P: Platform> {
    /// Resolves the fault at `va`; consumes the guard.
    fn resolve<'m>(&self, vmas: MmRead<'m, P>, va: VirtAddr, fault: GupFault) -> Resolved<'m, P>;
}

/// Resolves nothing.
impl<P: Platform> FaultHandler<P> for () {
    fn resolve<'m>(&self, vmas: MmRead<'m, P>, _: VirtAddr, _: GupFault) -> Resolved<'m, P> {
        Resolved::Failed(vmas, FaultError::Signal)
    }
}
