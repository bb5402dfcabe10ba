//! Small runs through the crates. They are generic code: it exists in the
//! binary only because something here uses it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use mm_arch::{Arch, Entry, Level, Pfn, Protection, SpaceId, VirtAddr, respect};
use mm_pgtable::slab::slab_space;
use mm_pgtable::{PageTables, TablesStay};
use mm_sync::Quiescence;
use mm_sync::epoch::{Collector, Epoch, Handles, LocalHandle};
use mm_x86::{X86_64, X86Entry};

/// alloc works on the allocator of the runtime.
pub fn allocates() -> bool {
    let v: alloc::vec::Vec<u64> = (0..100).collect();
    v.iter().sum::<u64>() == 4950
}

/// What a kernel would keep per CPU, with preemption off around `with`.
struct OneCpu(LocalHandle);

// SAFETY: this program has one thread.
unsafe impl Send for OneCpu {}
// SAFETY: as above.
unsafe impl Sync for OneCpu {}

impl Handles for OneCpu {
    fn with<T>(&self, f: impl FnOnce(&LocalHandle) -> T) -> T {
        f(&self.0)
    }
}

/// An epoch domain without std: what is retired inside a section is freed after it.
pub fn frees_by_epoch() -> bool {
    let epochs = Epoch::new(OneCpu(Collector::new().register()));
    let freed = Arc::new(AtomicU32::new(0));
    let section = epochs.pin();
    let count = freed.clone();
    epochs.retire(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let early = freed.load(Ordering::Relaxed);
    drop(section);
    epochs.synchronize();
    (early, freed.load(Ordering::Relaxed)) == (0, 1)
}

/// A folio of 16 pages in an x86-64 table: found as one run, cleared as one run.
pub fn finds_a_run() -> bool {
    let Ok(tables) = PageTables::new(slab_space::<X86_64>(8), SpaceId(1)) else { return false };
    // SAFETY: one thread, and nothing below frees a table.
    let stay = unsafe { TablesStay::new() };
    let va = VirtAddr::new(0x7f00_0000_0000);
    let Ok(found) = tables.ensure_table(stay, va) else { return false };
    let Some(mut table) = found.table() else { return false };
    let head = X86Entry::leaf(
        Pfn::new(0x1000),
        X86_64::prot(Protection::private_read_write()),
        Level::Pte,
    );
    table.fill(0, 16, head);
    let limit = table.limit(0).at_most(64);
    let run = table.run::<{ respect::WRITE }>(0, head, limit);
    if run.nr() != 16 {
        return false;
    }
    let mut owed = tables.tlb().obligation();
    let cleared = table.clear(run, &mut owed);
    let n = cleared.nr();
    let first = cleared.commit();
    owed.now();
    n == 16 && first == head && table.get(0) == X86Entry::NONE && table.get(15) == X86Entry::NONE
}
