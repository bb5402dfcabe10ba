//! What page tables need of a machine.

use crate::TableDesc;
use core::fmt;
use core::ptr::NonNull;
use mm_arch::{Arch, Level, TableFrame, Tlb};
use mm_sync::{Quiescence, RawLock};

/// No frame for a page table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableAllocError;

impl fmt::Display for TableAllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no memory for a page table")
    }
}
impl core::error::Error for TableAllocError {}

/// Memory for page tables: frames, the tables in them, and a descriptor each.
///
/// The descriptor is apart from the table: a lock inside a page-sized, page-aligned
/// table would double its size.
///
/// # Safety
///
/// * Between `alloc` and `free` of a frame, `table` and `desc` return pointers
///   that are valid for shared access, always the same ones, and belong to no
///   other frame.
/// * `alloc` returns an empty table and a descriptor in the state of
///   [`TableDesc::new`].
pub unsafe trait TableMemory<A: Arch, L: RawLock>: Send + Sync {
    /// A frame with an empty table of `level`.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    fn alloc(&self, level: Level) -> Result<TableFrame, TableAllocError>;
    /// The table in `frame`.
    fn table(&self, frame: TableFrame) -> NonNull<A::Table>;
    /// The descriptor of `frame`.
    fn desc(&self, frame: TableFrame) -> NonNull<TableDesc<L>>;
    /// Gives a frame back.
    ///
    /// # Safety
    ///
    /// `frame` came from `alloc`, is unreachable for walkers and hardware, and
    /// is not used again.
    unsafe fn free(&self, frame: TableFrame);
}

/// A handle to the machine that page tables live on.
///
/// It is cloned into closures that free tables later, so it is a cheap handle
/// (an `Arc`, a `&'static`, or nothing at all in a kernel with statics).
///
/// # Safety
///
/// Each method gives the same thing at every call, on the handle and on its clones: tables
/// are freed to the memory they came from, behind the guards of the domain that walks hold.
pub unsafe trait TableSpace: Clone + Send + Sync + 'static {
    /// The entry format.
    type Arch: Arch;
    /// The split lock.
    type PtLock: RawLock;
    /// What delays frees until lockless walkers have left.
    type Epochs: Quiescence;
    /// Memory for tables.
    type Tables: TableMemory<Self::Arch, Self::PtLock>;
    /// Translation caches.
    type Tlb: Tlb;

    /// The memory.
    fn tables(&self) -> &Self::Tables;
    /// The quiescence domain.
    fn epochs(&self) -> &Self::Epochs;
    /// The translation caches.
    fn tlb(&self) -> &Self::Tlb;
}
