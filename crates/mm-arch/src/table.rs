//! Tables in memory: one frame of cells.

use crate::Held;
use crate::cell::Cell;
use crate::pair::Pair;
use core::fmt;
use core::ops::Deref;
use mm_sync::atomic::AtomicU64;

/// Alignment of a frame of 4 KiB.
#[derive(Clone, Copy, Debug)]
#[repr(align(4096))]
pub struct Frame4K;
/// Alignment of a frame of 16 KiB.
#[derive(Clone, Copy, Debug)]
#[repr(align(16384))]
pub struct Frame16K;
/// Alignment of a frame of 64 KiB.
#[derive(Clone, Copy, Debug)]
#[repr(align(65536))]
pub struct Frame64K;

/// A table of `N` entries, aligned as `F`, laid out as the hardware reads it.
///
/// A frame of zeros is an empty table, so a kernel may see any frame of its direct map as
/// one, and hand it out from its `TableMemory` (in `mm-pgtable`).
#[repr(C)]
pub struct Table<C, const N: usize, F>([C; N], [F; 0]);

// A checker's atomics may be larger than the words; tables of it are no frames.
const _: () = assert!(
    size_of::<AtomicU64>() != 8 || {
        size_of::<Table<AtomicU64, 512, Frame4K>>() == 4096
            && align_of::<Table<AtomicU64, 512, Frame4K>>() == 4096
            && size_of::<Table<AtomicU64, 2048, Frame16K>>() == 16384
            && size_of::<Table<AtomicU64, 8192, Frame64K>>() == 65536
    }
);

const _: () = assert!(size_of::<Pair>() != 8 || size_of::<Table<Pair, 512, Frame4K>>() == 4096);

impl<C: Cell, const N: usize, F> Table<C, N, F> {
    /// A table of empty entries.
    pub fn empty() -> Self {
        Table(core::array::from_fn(|_| C::empty()), [])
    }
}

impl<C, const N: usize, F> Deref for Table<C, N, F> {
    type Target = [C; N];
    #[inline(always)]
    fn deref(&self) -> &[C; N] {
        &self.0
    }
}

impl<C: Cell, const N: usize, F> fmt::Debug for Table<C, N, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.iter().filter(|c| c.read::<Held>() != 0).count();
        write!(f, "Table({used} of {N} entries used)")
    }
}

/// A table of words, whatever its size.
pub trait Words: fmt::Debug + Send + Sync + 'static {
    /// An empty table.
    fn empty() -> Self;
    /// The entries.
    fn words(&self) -> &[AtomicU64];
}

impl<const N: usize, F: fmt::Debug + Send + Sync + 'static> Words for Table<AtomicU64, N, F> {
    fn empty() -> Self {
        Table::empty()
    }
    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}
