//! Page-table memory as a slab of tables on the heap: for hosts without a frame
//! arena, for tests, and for models (whose tables are not memory but cells).

use crate::{TableAllocError, TableDesc, TableMemory, TableSpace};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;
use mm_arch::{Arch, FlushScope, Level, Pfn, SpaceId, TableFrame, Tlb, VirtRange};
use mm_sync::{DefaultLock, Mutex, RawLock, ReaderCount};

struct SlabTable<A: Arch, L: RawLock> {
    table: A::Table,
    desc: TableDesc<L>,
}

/// At most a fixed number of tables, each in its own allocation.
pub struct Slab<A: Arch, L: RawLock> {
    tables: Vec<Box<SlabTable<A, L>>>,
    free: Mutex<L, Vec<u32>>,
    base: Pfn,
}

impl<A: Arch, L: RawLock> Slab<A, L> {
    /// A slab of `nr` tables, numbered from frame `base` on.
    pub fn new(nr: usize, base: Pfn) -> Self {
        Slab {
            tables: (0..nr)
                .map(|_| Box::new(SlabTable { table: A::new_table(), desc: TableDesc::new() }))
                .collect(),
            free: Mutex::new((0..nr as u32).rev().collect()),
            base,
        }
    }
    /// Number of tables in use.
    pub fn in_use(&self) -> usize {
        self.tables.len() - self.free.lock().len()
    }
    fn at(&self, frame: TableFrame) -> &SlabTable<A, L> {
        &self.tables[frame.pfn().since(self.base) as usize]
    }
}

impl<A: Arch, L: RawLock> core::fmt::Debug for Slab<A, L> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slab").field("tables", &self.tables.len()).finish()
    }
}

// SAFETY: tables and descriptors are boxed and live as long as the slab; an
// index is handed out once between `alloc` and `free`. A freed table is empty
// again: `free` requires that nobody reaches it, and empties what is left.
unsafe impl<A: Arch, L: RawLock> TableMemory<A, L> for Slab<A, L> {
    fn alloc(&self, _level: Level) -> Result<TableFrame, TableAllocError> {
        let i = self.free.lock().pop().ok_or(TableAllocError)?;
        let frame = TableFrame::new(self.base.add(u64::from(i)));
        self.at(frame).desc.live().retired();
        Ok(frame)
    }
    fn table(&self, frame: TableFrame) -> NonNull<A::Table> {
        NonNull::from(&self.at(frame).table)
    }
    fn desc(&self, frame: TableFrame) -> NonNull<TableDesc<L>> {
        NonNull::from(&self.at(frame).desc)
    }
    unsafe fn free(&self, frame: TableFrame) {
        let t = self.at(frame);
        for i in 0..A::nr_entries(Level::Pte) {
            A::swap_upper(&t.table, i, <A::Entry as mm_arch::Entry>::NONE);
        }
        t.desc.reset();
        self.free.lock().push(frame.pfn().since(self.base) as u32);
    }
}

/// Counts flushes and keeps no translations.
#[derive(Debug, Default)]
pub struct CountingTlb {
    /// Flushes of ranges and spaces.
    pub flushes: mm_sync::stat::Counter,
    /// Bytes flushed by ranges.
    pub bytes: mm_sync::stat::Counter,
    /// Ranges deferred.
    pub deferred: mm_sync::stat::Counter,
    /// Calls that made all flushes that were deferred. Who holds the lock is a CPU in the
    /// middle of an instruction, which such a call waits for.
    pub made: mm_sync::Mutex<DefaultLock, u64>,
}

impl Tlb for CountingTlb {
    fn flush_range(&self, _: SpaceId, range: VirtRange, _: FlushScope) {
        self.flushes.add(1);
        self.bytes.add(range.bytes());
    }
    fn flush_space(&self, _: SpaceId) {
        self.flushes.add(1);
    }
    fn defer_range(&self, _: SpaceId, _: VirtRange) {
        self.deferred.add(1);
    }
    fn flush_deferred(&self) {
        *self.made.lock() += 1;
    }
}

/// What a [`SlabSpace`] shares.
#[derive(Debug)]
pub struct SlabParts<A: Arch> {
    /// The tables.
    pub tables: Slab<A, DefaultLock>,
    /// The quiescence domain.
    pub epochs: ReaderCount,
    /// The flush counter.
    pub tlb: CountingTlb,
}

/// A machine that is nothing but a slab of tables.
#[derive(Debug)]
pub struct SlabSpace<A: Arch>(Arc<SlabParts<A>>);

impl<A: Arch> Clone for SlabSpace<A> {
    fn clone(&self) -> Self {
        SlabSpace(self.0.clone())
    }
}

impl<A: Arch> core::ops::Deref for SlabSpace<A> {
    type Target = SlabParts<A>;
    fn deref(&self) -> &SlabParts<A> {
        &self.0
    }
}

/// A machine with `nr` tables.
pub fn slab_space<A: Arch>(nr: usize) -> SlabSpace<A> {
    SlabSpace(Arc::new(SlabParts {
        // Frame numbers with a bit in the high word of two-word entries.
        tables: Slab::new(nr, Pfn::new(0x20_0000)),
        epochs: ReaderCount::new(),
        tlb: CountingTlb::default(),
    }))
}

// SAFETY: all clones share one machine, which does not change.
unsafe impl<A: Arch> TableSpace for SlabSpace<A> {
    type Arch = A;
    type PtLock = DefaultLock;
    type Epochs = ReaderCount;
    type Tables = Slab<A, DefaultLock>;
    type Tlb = CountingTlb;

    fn tables(&self) -> &Self::Tables {
        &self.0.tables
    }
    fn epochs(&self) -> &ReaderCount {
        &self.0.epochs
    }
    fn tlb(&self) -> &CountingTlb {
        &self.0.tlb
    }
}
