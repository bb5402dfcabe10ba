//! What the memory map asks of its user.

use crate::FolioFlags;
use mm_arch::Pfn;

/// There is no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("out of memory")]
pub struct AllocError;

/// How much an allocation may cost that can be done without (rule ANON-09).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effort {
    /// Only what is free.
    Free,
    /// What is free; and if there is none, somebody makes room for the next one.
    Background,
    /// Room is made at once.
    Direct,
}

/// Where bare frames come from.
pub trait FolioSource: Sync {
    /// A naturally aligned run of `1 << order` frames, of any content.
    ///
    /// What [`free`](Self::free) did with the run before happens before this
    /// returns it (a lock inside, or a releasing and an acquiring operation).
    ///
    /// # Errors
    ///
    /// If there is none. Any call may fail.
    fn alloc(&self, order: u32) -> Result<Pfn, AllocError>;
    /// The same at no more than `effort`: for large runs in whose place smaller ones do. A
    /// source that makes no room has no use for the difference.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    fn alloc_by(&self, order: u32, effort: Effort) -> Result<Pfn, AllocError> {
        let _ = effort;
        self.alloc(order)
    }
    /// Takes a run back. Called by whoever drops the last reference, possibly
    /// under table locks: it must not sleep or take them.
    fn free(&self, head: Pfn, order: u32);
    /// The folio belongs on the list that its flags say: it is new to all lists, has another
    /// size, or belongs on another list than before. Called with `LRU` set, possibly under
    /// table locks: it must not sleep or take them.
    #[inline]
    fn list(&self, head: Pfn, order: u32, flags: FolioFlags) {
        let _ = (head, order, flags);
    }
    /// The last reference of a folio is gone, its records still stand: whoever
    /// has it on a list takes it off (rule FOLIO-08).
    fn unlist(&self, head: Pfn, order: u32, flags: FolioFlags) {
        let _ = (head, order, flags);
    }
    /// Pages of the folio at `head` are about to be pinned for a device, which may be
    /// unable to reach them as they are (memory of a protected guest). Makes them reachable;
    /// `false` if that is impossible. Called once per run, with a reference held, possibly
    /// under table locks or without any lock: it must not sleep (rules GUPS-15, GUPF-18).
    #[inline]
    fn make_accessible(&self, head: Pfn) -> bool {
        let _ = head;
        true
    }
}

/// Access to the content of frames. Called with locks held, those of page tables too.
///
/// # Example
///
/// ```
/// use mm_arch::Pfn;
/// use mm_folio::FrameBytes;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// /// Frames of 4 KiB. Others store to them meanwhile, so the words are atomic.
/// struct Frames(Vec<[AtomicU64; 512]>);
///
/// impl FrameBytes for Frames {
///     fn zero(&self, pfn: Pfn, nr_pages: u64) {
///         for page in 0..nr_pages {
///             (0..512).for_each(|word| self.store(pfn.add(page), word * 8, 0));
///         }
///     }
///     fn copy(&self, dst: Pfn, src: Pfn) {
///         (0..512).for_each(|word| self.store(dst, word * 8, self.load(src, word * 8)));
///     }
///     fn is_zero(&self, pfn: Pfn) -> bool {
///         (0..512).all(|word| self.load(pfn, word * 8) == 0)
///     }
///     fn load(&self, pfn: Pfn, offset: usize) -> u64 {
///         self.0[pfn.get() as usize][offset / 8].load(Relaxed)
///     }
///     fn store(&self, pfn: Pfn, offset: usize, value: u64) {
///         self.0[pfn.get() as usize][offset / 8].store(value, Relaxed);
///     }
/// }
///
/// let frames = Frames((0..2).map(|_| [const { AtomicU64::new(0) }; 512]).collect());
/// frames.store(Pfn::new(0), 8, 7);
/// frames.copy(Pfn::new(1), Pfn::new(0));
/// assert!(frames.load(Pfn::new(1), 8) == 7 && !frames.is_zero(Pfn::new(1)));
/// ```
pub trait FrameBytes: Sync {
    /// Fills `nr_pages` frames from `pfn` on with zeros.
    fn zero(&self, pfn: Pfn, nr_pages: u64);
    /// Copies a frame. Others may write to `src` meanwhile.
    fn copy(&self, dst: Pfn, src: Pfn);
    /// Whether a frame is full of zeros.
    fn is_zero(&self, pfn: Pfn) -> bool;
    /// Reads the 64-bit word at byte `offset` of a frame, a multiple of 8.
    fn load(&self, pfn: Pfn, offset: usize) -> u64;
    /// Writes the 64-bit word at byte `offset` of a frame, a multiple of 8.
    fn store(&self, pfn: Pfn, offset: usize, value: u64);
}

/// The types a memory map is built from.
pub trait FolioSpace: Sized + Send + Sync + 'static {
    /// Where frames come from.
    type Source: FolioSource;
    /// The lock of the deferred-split queue.
    type FolioLock: mm_sync::RawLock;
}
