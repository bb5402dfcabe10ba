//! Physical memory: an arena of frames with real bytes.
//!
//! Every word of the arena is an atomic, since simulated CPUs, devices that hold
//! pins and the kernel may all touch the same word. Page tables live in the same
//! frames: a table is a frame whose bytes are entries.
//!
//! What is known about a frame beside its bytes is one word of
//! [`Frames`](crate::frames::Frames); this file only maps frame numbers to
//! memory.

use mm_arch::Pfn;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 4096;
/// Words of a frame.
pub(crate) const FRAME_WORDS: usize = FRAME_BYTES / 8;
/// The arena is aligned like a huge page, so that the host can back it with some.
const ARENA_ALIGN: usize = 2 << 20;

/// The content of a frame that was freed and not allocated again: who reads
/// this reads memory that is no longer his.
pub const POISON: u64 = 0x6b6b_6b6b_6b6b_6b6b;

/// The memory of a machine.
///
/// # Invariants
///
/// `start` is aligned to 2 MiB and followed by `nr_frames * FRAME_BYTES` bytes
/// inside `allocation`, which was zeroed at first and is owned by this value.
#[derive(Debug)]
pub struct Ram {
    allocation: NonNull<u8>,
    start: NonNull<u8>,
    base: Pfn,
    nr_frames: usize,
}

// SAFETY: the memory is owned by the value and accessed through atomics (or as
// page tables, which are made of atomics).
unsafe impl Send for Ram {}
// SAFETY: as above.
unsafe impl Sync for Ram {}

impl Ram {
    /// `nr_frames` zeroed frames, numbered from `base` on; `None` if the host has
    /// no such memory. The host provides it on first touch.
    pub(crate) fn new(base: Pfn, nr_frames: usize) -> Option<Self> {
        let layout = Self::layout(nr_frames)?;
        // SAFETY: the layout is not empty.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let offset = allocation.align_offset(ARENA_ALIGN);
        // SAFETY: the layout has room for frames behind any such offset.
        let start = unsafe { allocation.add(offset) };
        Some(Ram { allocation, start, base, nr_frames })
    }
    /// With room to align the start by hand: asked for zeroed memory of such an
    /// alignment, the host's allocator would touch all of it.
    fn layout(nr_frames: usize) -> Option<Layout> {
        let bytes = nr_frames.checked_mul(FRAME_BYTES).filter(|b| *b > 0)?;
        Layout::from_size_align(bytes.checked_add(ARENA_ALIGN)?, align_of::<u64>()).ok()
    }
    /// Number of the first frame.
    pub fn base(&self) -> Pfn {
        self.base
    }
    /// Number of frames.
    pub fn nr_frames(&self) -> usize {
        self.nr_frames
    }
    /// Whether the machine has this frame.
    pub fn contains(&self, pfn: Pfn) -> bool {
        pfn.since(self.base) < self.nr_frames as u64
    }
    /// Position of a frame in the arena.
    ///
    /// # Panics
    ///
    /// If the machine has no such frame.
    #[inline]
    pub(crate) fn index(&self, pfn: Pfn) -> usize {
        let index = pfn.since(self.base);
        assert!(index < self.nr_frames as u64, "no frame {pfn} in this machine");
        index as usize
    }
    /// First byte of a frame. Valid as long as the machine.
    ///
    /// # Panics
    ///
    /// As [`index`](Self::index).
    #[inline]
    pub(crate) fn frame(&self, pfn: Pfn) -> NonNull<u8> {
        // SAFETY: the index is below the number of frames, so that the result
        // lies inside the allocation.
        unsafe { self.start.add(self.index(pfn) * FRAME_BYTES) }
    }
    /// The words of a frame.
    #[inline]
    pub(crate) fn words(&self, pfn: Pfn) -> &[AtomicU64; FRAME_WORDS] {
        // SAFETY: in bounds and aligned (see `frame`); initialised, since the
        // arena starts zeroed and only words, or tables made of words, are
        // written; shared access through atomics only.
        unsafe { self.frame(pfn).cast().as_ref() }
    }
    /// Fills a frame with one word.
    pub(crate) fn fill(&self, pfn: Pfn, word: u64) {
        for w in self.words(pfn) {
            w.store(word, Relaxed);
        }
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.nr_frames) {
            // SAFETY: allocated with this layout by `new`, freed once.
            unsafe { dealloc(self.allocation.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_their_own_bytes() {
        let ram = Ram::new(Pfn::new(0x1000), 4).expect("memory");
        let (a, b) = (Pfn::new(0x1001), Pfn::new(0x1003));
        ram.words(b)[511].store(7, Relaxed);
        ram.fill(a, 1);
        assert_eq!((ram.words(a)[511].load(Relaxed), ram.words(b)[511].load(Relaxed)), (1, 7));
        assert!(ram.contains(b) && !ram.contains(Pfn::new(0x1004)));
        assert!(Ram::new(Pfn::new(0), 0).is_none());
        assert_eq!(ram.frame(Pfn::new(0x1000)).as_ptr() as usize % ARENA_ALIGN, 0);
    }
}
