//! Liveness markers for objects that can be freed.

/// A zero-sized "is this object alive" marker.
///
/// A production build compiles it away. Under loom it is a tracked cell, so a
/// use that does not happen-before the retirement is reported as a causality
/// violation even when no value that was read was wrong: loom does not explore
/// load buffering, and this is what finds such bugs instead.
pub struct Live {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
}

// SAFETY: outside of loom there is no data at all; under loom the checker
// itself reports unsynchronised accesses, which is the purpose of the type.
unsafe impl Sync for Live {}
// SAFETY: as above.
unsafe impl Send for Live {}

impl Live {
    /// A marker of a live object.
    #[cfg(not(loom))]
    #[inline(always)]
    pub const fn new() -> Self {
        Live {}
    }
    /// A marker of a live object.
    #[cfg(loom)]
    pub fn new() -> Self {
        Live { cell: loom::cell::UnsafeCell::new(()) }
    }
    /// The object is used. Call it *after* the read that it stands for.
    #[inline(always)]
    #[cfg_attr(loom, track_caller)]
    pub fn used(&self) {
        #[cfg(loom)]
        self.cell.with(|_| ());
    }
    /// The object is given back, or given a new life: no use may be concurrent.
    #[inline(always)]
    #[cfg_attr(loom, track_caller)]
    pub fn retired(&self) {
        #[cfg(loom)]
        self.cell.with_mut(|_| ());
    }
}

impl Default for Live {
    fn default() -> Self {
        Live::new()
    }
}

impl core::fmt::Debug for Live {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Live")
    }
}
