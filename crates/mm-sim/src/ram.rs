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

/// A frame is aligned in the arena as it is by number, up to this: so that the
/// host can back a folio of that size with a huge page.
const ARENA_ALIGN: usize = 2 << 20;

/// The content of a frame that was freed and not allocated again: who reads
/// this reads memory that is no longer his.
pub const POISON: u64 = 0x6b6b_6b6b_6b6b_6b6b;

/// The memory of a machine.
///
/// # Invariants
///
/// `start` is aligned to a frame and followed by `nr_frames << frame_shift` bytes
/// inside `allocation`, which was zeroed at first and is owned by this value.
#[derive(Debug)]
pub struct Ram {
    allocation: NonNull<u8>,
    start: NonNull<u8>,
    base: Pfn,
    nr_frames: usize,
    frame_shift: u32,
}

// SAFETY: the memory is owned by the value and accessed through atomics (or as
// page tables, which are made of atomics).
unsafe impl Send for Ram {}
// SAFETY: as above.
unsafe impl Sync for Ram {}

impl Ram {
    /// `nr_frames` zeroed frames of `1 << frame_shift` bytes, numbered from `base`
    /// on; `None` if the host has no such memory, or a frame is less than a word or
    /// more than 2 MiB. The host provides it on first touch.
    pub(crate) fn new(base: Pfn, nr_frames: usize, frame_shift: u32) -> Option<Self> {
        let layout = Self::layout(nr_frames, frame_shift)?;
        // SAFETY: the layout is not empty.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let in_huge_page = (base.get() << frame_shift) as usize % ARENA_ALIGN;
        let offset = allocation.align_offset(ARENA_ALIGN) + in_huge_page;
        // SAFETY: the layout has room for frames behind any such offset.
        let start = unsafe { allocation.add(offset) };
        Some(Ram { allocation, start, base, nr_frames, frame_shift })
    }
    /// With room to align the start by hand: asked for zeroed memory of such an
    /// alignment, the host's allocator would touch all of it.
    fn layout(nr_frames: usize, frame_shift: u32) -> Option<Layout> {
        if !(3..=ARENA_ALIGN.trailing_zeros()).contains(&frame_shift) {
            return None;
        }
        let bytes = nr_frames.checked_mul(1 << frame_shift).filter(|b| *b > 0)?;
        Layout::from_size_align(bytes.checked_add(2 * ARENA_ALIGN)?, align_of::<u64>()).ok()
    }
    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> usize {
        1 << self.frame_shift
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
        unsafe { self.start.add(self.index(pfn) << self.frame_shift) }
    }
    /// The words of a frame.
    #[inline]
    pub(crate) fn words(&self, pfn: Pfn) -> &[AtomicU64] {
        // SAFETY: in bounds and aligned (see `frame`); initialised, since the
        // arena starts zeroed and only words, or tables made of words, are
        // written; shared access through atomics only.
        unsafe {
            std::slice::from_raw_parts(self.frame(pfn).cast().as_ptr(), self.frame_bytes() / 8)
        }
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
        if let Some(layout) = Self::layout(self.nr_frames, self.frame_shift) {
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
        for frame_shift in [12, 14, 16] {
            let ram = Ram::new(Pfn::new(0x1000), 4, frame_shift).expect("memory");
            let (a, b) = (Pfn::new(0x1001), Pfn::new(0x1003));
            let last = ram.frame_bytes() / 8 - 1;
            ram.words(b)[last].store(7, Relaxed);
            ram.fill(a, 1);
            assert_eq!(
                (ram.words(a)[last].load(Relaxed), ram.words(b)[last].load(Relaxed)),
                (1, 7)
            );
            assert!(ram.contains(b) && !ram.contains(Pfn::new(0x1004)));
        }
    }

    #[test]
    fn frames_are_aligned_as_their_numbers_are() {
        for (base, frame_shift) in [(0x1000, 12), (0xf_ffc1, 12), (0x3_fff0, 14), (5, 16)] {
            let ram = Ram::new(Pfn::new(base), 512, frame_shift).expect("memory");
            for pfn in (base..base + 512).step_by(37) {
                let at = ram.frame(Pfn::new(pfn)).as_ptr() as u64;
                assert_eq!(at % ARENA_ALIGN as u64, (pfn << frame_shift) % ARENA_ALIGN as u64);
            }
        }
    }

    #[test]
    fn no_frames_and_frames_that_make_no_sense_are_refused() {
        for (nr_frames, frame_shift) in [(0, 12), (4, 2), (4, 22), (usize::MAX, 12)] {
            assert!(Ram::new(Pfn::new(0), nr_frames, frame_shift).is_none());
        }
    }
}
