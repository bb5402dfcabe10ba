//! Atomic types and fences of the current back end.

#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};

pub use core::sync::atomic::Ordering;

/// A memory fence.
///
/// Under loom a `SeqCst` fence is made a scheduling point by a
/// read-modify-write on a dummy cell: loom alone runs the fence in the same
/// step as the access before it and never tries an interleaving between them.
#[inline(always)]
pub fn fence(order: Ordering) {
    #[cfg(not(loom))]
    core::sync::atomic::fence(order);
    #[cfg(loom)]
    {
        if order == Ordering::SeqCst {
            crate::model::touch_fence_cell();
        }
        loom::sync::atomic::fence(order);
    }
}

/// A full barrier directly *behind a read-modify-write* of this thread.
///
/// On x86 a locked instruction already is one, so only the compiler is held
/// back. Everywhere else, and under loom and Miri, it is `fence(SeqCst)`.
#[inline(always)]
pub fn fence_after_rmw() {
    #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), not(any(loom, miri))))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(any(target_arch = "x86", target_arch = "x86_64"), not(any(loom, miri)))))]
    fence(Ordering::SeqCst);
}
