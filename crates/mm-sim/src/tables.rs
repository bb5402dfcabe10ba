//! Page tables in frames.

use crate::Frames;
use mm_arch::{Arch, Level, TableFrame};
use mm_pgtable::{TableAllocError, TableDesc, TableMemory};
use mm_sync::DefaultLock;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Descriptor of a page table of a machine.
type Desc = TableDesc<DefaultLock>;

/// Memory for page tables: the frames of the machine, with a descriptor beside
/// each.
///
/// # Invariants
///
/// Table and descriptor of a frame are initialised while the frame is used for
/// a table, that is between [`alloc`](TableMemory::alloc) and
/// [`free`](TableMemory::free).
pub struct FrameTables<A: Arch> {
    frames: Arc<Frames>,
    descs: NonNull<[MaybeUninit<Desc>]>,
    in_use: AtomicUsize,
    _tables: std::marker::PhantomData<fn() -> A>,
}

// SAFETY: the descriptors are owned by the value; what is behind the pointers is
// `Sync`.
unsafe impl<A: Arch> Send for FrameTables<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for FrameTables<A> {}

impl<A: Arch> std::fmt::Debug for FrameTables<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameTables").field("in_use", &self.in_use).finish_non_exhaustive()
    }
}

impl<A: Arch> FrameTables<A> {
    const FITS: () = assert!(
        size_of::<A::Table>() <= 1 << A::PAGE_SHIFT && align_of::<A::Table>() <= 1 << A::PAGE_SHIFT,
        "a table is one frame"
    );

    /// Tables in `frames`.
    pub(crate) fn new(frames: Arc<Frames>) -> Self {
        let () = Self::FITS;
        let descs = Box::new_uninit_slice(frames.ram().nr_frames());
        FrameTables {
            // SAFETY: a box is not null.
            descs: unsafe { NonNull::new_unchecked(Box::into_raw(descs)) },
            frames,
            in_use: AtomicUsize::new(0),
            _tables: std::marker::PhantomData,
        }
    }
    /// Tables in use.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }
    fn desc_ptr(&self, frame: TableFrame) -> NonNull<Desc> {
        let index = self.frames.ram().index(frame.pfn());
        // SAFETY: the index is below the number of frames, and there is a
        // descriptor for each.
        unsafe { self.descs.cast::<Desc>().add(index) }
    }
}

impl<A: Arch> Drop for FrameTables<A> {
    fn drop(&mut self) {
        // SAFETY: made from a box by `new`. Descriptors need no drop: a lock
        // word and numbers.
        drop(unsafe { Box::from_raw(self.descs.as_ptr()) });
    }
}

// SAFETY: frame and descriptor belong to the frame number alone and live as long
// as the value; a frame number is handed out once between `alloc` and `free`;
// `alloc` writes an empty table and a new descriptor.
unsafe impl<A: Arch> TableMemory<A, DefaultLock> for FrameTables<A> {
    fn alloc(&self, _level: Level) -> Result<TableFrame, TableAllocError> {
        let frame = TableFrame::new(self.frames.take_table().map_err(|_| TableAllocError)?);
        self.in_use.fetch_add(1, Relaxed);
        // SAFETY: the frame was handed out just now, so nobody else has it; it is
        // large enough (`FITS`) and aligned like a page, as tables are at most.
        unsafe {
            self.table(frame).write(A::new_table());
            self.desc_ptr(frame).write(TableDesc::new());
        }
        Ok(frame)
    }
    #[inline]
    fn table(&self, frame: TableFrame) -> NonNull<A::Table> {
        self.frames.ram().frame(frame.pfn()).cast()
    }
    #[inline]
    fn desc(&self, frame: TableFrame) -> NonNull<Desc> {
        self.desc_ptr(frame)
    }
    unsafe fn free(&self, frame: TableFrame) {
        self.in_use.fetch_sub(1, Relaxed);
        self.frames.give_table(frame.pfn());
    }
}
