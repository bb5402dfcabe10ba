//! Small runs through the crates. They are generic code: it exists in the
//! binary only because something here uses it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use mm_arch::{Arch, Entry, Level, Pfn, Protection, SpaceId, VirtAddr, WriteKind, respect};
use mm_folio::Pin;
use mm_gup::fast::Walk;
use mm_gup::{FastPolicy, GupFlags, Pages, unpin_pages};
use mm_pgtable::slab::slab_space;
use mm_pgtable::{PageTables, TablesStay};
use mm_sync::epoch::{Collector, Epoch, Handles, LocalHandle};
use mm_sync::{Quiescence, SeqCount};
use mm_vma::Platform;
use mm_vma::model::{ModelConfig, ModelPlatform};

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

// SAFETY: there is one handle.
unsafe impl Handles for OneCpu {
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

/// A folio of 16 pages in a table: found as one run, cleared as one run.
pub fn finds_a_run<A: Arch>() -> bool {
    let Ok(tables) = PageTables::new(slab_space::<A>(8), SpaceId(1)) else { return false };
    // SAFETY: one thread, and nothing below frees a table.
    let stay = unsafe { TablesStay::new() };
    let va = VirtAddr::new(0x7f_0000_0000 & (A::USER_END - 1));
    let Ok(found) = tables.ensure_table(stay, va) else { return false };
    let Some(mut table) = found.table() else { return false };
    let prot = A::prot(Protection::private_read_write());
    let head = A::Entry::leaf(Pfn::new(0x1000), prot, Level::Pte);
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
    n == 16 && first == head && table.get(0).is_none() && table.get(15).is_none()
}

/// The same folio through the lockless walk: pinned in one step, and given back.
pub fn pins_a_run<A: Arch>() -> bool {
    let Ok(machine) = ModelPlatform::<A>::new(ModelConfig::default()) else { return false };
    let Ok(tables) = PageTables::new(machine.clone(), SpaceId(1)) else { return false };
    let Ok(folio) = machine.memmap().alloc(4) else { return false };
    let folio = folio.hand_over();
    // SAFETY: one thread, and nothing below frees a table.
    let stay = unsafe { TablesStay::new() };
    let va = VirtAddr::new(0x7f_0000_0000 & (A::USER_END - 1));
    let Ok(found) = tables.ensure_table(stay, va) else { return false };
    let Some(mut table) = found.table() else { return false };
    let prot = A::prot(Protection::private_read_write());
    let head = A::Entry::leaf(folio.head(), prot, Level::Pte).mkdirty().mkwrite(WriteKind::Normal);
    table.fill(0, 16, head);
    drop(table);

    let mut pages = [Pfn::new(0); 16];
    let mut out = Pages::new(&mut pages);
    let walk = Walk {
        tables: &tables,
        map: machine.memmap(),
        write_protect_seq: &SeqCount::new(),
        observer: machine.observer(),
    };
    let got = walk.take::<Pin>(FastPolicy::Run, va, 16, GupFlags::WRITE, &mut out);
    let pinned = folio.pincount();
    let in_order = pages.iter().enumerate().all(|(i, p)| *p == folio.head().add(i as u64));
    unpin_pages(machine.memmap(), &pages);
    (got, pinned, folio.pincount()) == (16, 16, 0) && in_order
}
