//! First steps of a kernel: page tables in frames of its own, a mapping, a
//! lockless walk, and an unmapping that lets nothing go too early.
//!
//! ```text
//! cargo run -p mm-pgtable --example map_walk
//! ```

use core::ptr::NonNull;
use mm_arch::model::ModelWord;
use mm_arch::{
    Arch, Entry, FlushScope, Level, Pfn, Protection, SpaceId, TableFrame, Tlb, VirtAddr, VirtRange,
    WriteKind, respect,
};
use mm_pgtable::{
    Gather, PageTables, SpanKind, Step, TableAllocError, TableDesc, TableMemory, TableSpace,
    TablesStay,
};
use mm_sync::{DefaultLock, Mutex, ReaderCount};

/// The entry format: one word per entry and 512 entries, as on 64-bit hardware.
/// A kernel names the format of its processor here, and nothing below changes.
type A = ModelWord<512>;

/// Number of frames that may hold page tables.
const FRAMES: usize = 8;
/// Frame number of the first of them.
const BASE: Pfn = Pfn::new(0x1000);

/// The part of physical memory that page tables come from. Descriptors stand
/// beside the frames: a lock inside of a table would cost a frame of its own.
struct Arena {
    tables: Vec<<A as Arch>::Table>,
    descs: Vec<TableDesc<DefaultLock>>,
    free: Mutex<DefaultLock, Vec<TableFrame>>,
}

impl Arena {
    fn new() -> Self {
        let frames = (0..FRAMES as u64).rev().map(|i| TableFrame::new(BASE.add(i)));
        Arena {
            tables: (0..FRAMES).map(|_| A::new_table()).collect(),
            descs: (0..FRAMES).map(|_| TableDesc::new()).collect(),
            free: Mutex::new(frames.collect()),
        }
    }
    fn index(frame: TableFrame) -> usize {
        frame.pfn().since(BASE) as usize
    }
    fn in_use(&self) -> usize {
        FRAMES - self.free.lock().len()
    }
}

// SAFETY: neither vector grows or shrinks, so a frame's table and descriptor
// stay where they are; a frame is in the free list or in use, never both; and
// `alloc` empties both before it hands the frame out.
unsafe impl TableMemory<A, DefaultLock> for Arena {
    fn alloc(&self, level: Level) -> Result<TableFrame, TableAllocError> {
        let frame = self.free.lock().pop().ok_or(TableAllocError)?;
        let i = Self::index(frame);
        for entry in 0..A::nr_entries(level) {
            A::swap_upper(&self.tables[i], entry, <A as Arch>::Entry::NONE);
        }
        self.descs[i].reset();
        Ok(frame)
    }
    fn table(&self, frame: TableFrame) -> NonNull<<A as Arch>::Table> {
        NonNull::from(&self.tables[Self::index(frame)])
    }
    fn desc(&self, frame: TableFrame) -> NonNull<TableDesc<DefaultLock>> {
        NonNull::from(&self.descs[Self::index(frame)])
    }
    unsafe fn free(&self, frame: TableFrame) {
        self.free.lock().push(frame);
    }
}

/// Here a kernel sends its inter-processor interrupts.
struct Caches;

impl Tlb for Caches {
    fn flush_range(&self, space: SpaceId, range: VirtRange, scope: FlushScope) {
        println!("  flush {range:?} of space {} ({scope:?})", space.0);
    }
    fn flush_space(&self, space: SpaceId) {
        println!("  flush all of space {}", space.0);
    }
    fn defer_range(&self, space: SpaceId, range: VirtRange) {
        // Flushing at once is always allowed.
        self.flush_range(space, range, FlushScope::Leaves);
    }
    fn flush_deferred(&self) {}
}

/// Everything page tables live on.
struct Machine {
    arena: Arena,
    epochs: ReaderCount,
    caches: Caches,
}

/// The handle of it. A kernel with statics makes this an empty type.
#[derive(Clone)]
struct Kernel(&'static Machine);

// SAFETY: there is one machine, and it does not change.
unsafe impl TableSpace for Kernel {
    type Arch = A;
    type PtLock = DefaultLock;
    type Epochs = ReaderCount;
    type Tables = Arena;
    type Tlb = Caches;
    fn tables(&self) -> &Arena {
        &self.0.arena
    }
    fn epochs(&self) -> &ReaderCount {
        &self.0.epochs
    }
    fn tlb(&self) -> &Caches {
        &self.0.caches
    }
}

/// A frame that was mapped; dropping it gives the frame back.
struct Mapped(Pfn);

impl Drop for Mapped {
    fn drop(&mut self) {
        println!("  frame {} is given back", self.0);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = Machine { arena: Arena::new(), epochs: ReaderCount::new(), caches: Caches };
    let kernel = Kernel(Box::leak(Box::new(machine)));
    let tables = PageTables::new(kernel.clone(), SpaceId(1))?;
    // SAFETY: this program frees tables only below, when no locked table is in
    // use. A kernel makes this from its mmap lock.
    let stay = unsafe { TablesStay::new() };

    println!("Map four pages of one folio, across the end of a table:");
    let range = VirtRange::units(VirtAddr::new(510 << 12), 4, 12)?;
    let mut entry = <A as Arch>::Entry::leaf(
        Pfn::new(0x200),
        A::prot(Protection::private_read_write()),
        Level::Pte,
    )
    .mkwrite(WriteKind::Normal);
    let mut left = range;
    loop {
        let va = left.start();
        // An allocation failure is an error of this call, and loses nothing.
        let mut table = tables.ensure_table(stay, va)?.table().ok_or("a huge leaf is there")?;
        let index = table.index_of(va);
        // The table bounds the batch, whatever the size of the folio.
        let nr = table.limit(index).at_most(left.nr(12) as usize).get();
        table.fill(index, nr, entry);
        println!("  {nr} entries from {va} on in {:?}", table.frame());
        entry = entry.advance(nr as u64, Level::Pte);
        match VirtRange::units(va.add_units(nr as u64, 12), left.nr(12) - nr as u64, 12) {
            Ok(rest) => left = rest,
            Err(_) => break,
        }
    }
    println!("  {} of {FRAMES} frames hold tables", kernel.0.arena.in_use());

    println!("Walk to the second page without a lock:");
    let va = VirtAddr::new(511 << 12);
    {
        // The guard keeps every table on the way; no lock is taken under it.
        let guard = tables.pin();
        match guard.walk(va) {
            Step::Table(pmd, table) => {
                let index = table.index_of(va);
                let head = table.get(index);
                let run = table.run::<{ respect::WRITE }>(index, head, table.limit(index));
                println!("  {va} is frame {}, a run of {}", head.pfn(Level::Pte), run.nr());
                // What was found counts only if the way to it is unchanged.
                assert!(pmd.is_unchanged() && table.get(index) == head);
            }
            Step::Hole { .. } | Step::Leaf(_) => return Err("no table is there".into()),
        }
    }

    println!("Unmap:");
    let mut gather = Gather::new(&tables);
    for span in tables.spans(stay, range) {
        if span.kind != SpanKind::Table {
            continue;
        }
        let Some(mut table) = tables.lock_table(stay, span.range.start()) else { continue };
        let first = table.index_of(span.range.start());
        for index in first..first + span.range.nr(12) as usize {
            let old = table.take(index, gather.owed());
            gather.park(Mapped(old.pfn(Level::Pte)));
        }
        println!("  {:?} is emptied, nothing is given back yet", table.frame());
    }
    // SAFETY: no locked walker is left.
    unsafe { tables.free_empty_tables(range, &mut gather) };
    // One flush, then the frames, then (when walkers have left) the tables.
    gather.finish();
    println!("  {} of {FRAMES} frames hold tables", kernel.0.arena.in_use());
    drop(tables);
    assert_eq!(kernel.0.arena.in_use(), 0);
    Ok(())
}
