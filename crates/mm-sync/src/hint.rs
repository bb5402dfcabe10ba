//! The spin hint of the current back end.

/// Tells the processor (or the model checker) that this thread waits for
/// another one. A retry loop without it does not terminate under loom.
#[inline(always)]
pub fn spin_loop() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::hint::spin_loop();
}
