//! A large folio of a file, mapped by one address space, is unmapped page by page and in
//! one run.

use core::num::NonZeroU32;
use mm_arch::model::ModelWord;
use mm_arch::{Arch, Entry, Level, VirtAddr, VirtRange};
use mm_folio::{FileId, Get};
use mm_map::{MapPolicy, exit, mmap_backing};
use mm_reclaim::{FlushBatch, UnmapFlags, UnmapPolicy, Unmapped, try_to_unmap};
use mm_rmap::model::{ModelConfig, ModelObject, machine};
use mm_vma::{BackingKind, Event, Mm, RssKind, VmaFlags};

type A = ModelWord<32>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for policy in [UnmapPolicy::Page, UnmapPolicy::File] {
        let machine = machine::<A>(ModelConfig::default())?;
        let object = ModelObject::new(&machine, FileId(1), BackingKind::File, false);
        let folio = object.add(0, 4)?;
        let mm = Mm::new(machine.clone())?;
        let range = VirtRange::new(VirtAddr::new(0x2_0000), 16 << 12)?;
        mmap_backing(&mut mm.write(), range, VmaFlags::READ | VmaFlags::SHARED, object.clone(), 0)?;

        // As a fault does it: references, mappings, counters, entries.
        folio.grab::<Get>(16)?.hand_over();
        folio.add_file_ptes(0, NonZeroU32::MIN.saturating_add(15), mm.id());
        mm.counters().add(RssKind::File, 16);
        let vmas = mm.read();
        let prot = A::prot(vmas.find(range.start()).ok_or("mapped")?.protection());
        let mut table =
            mm.tables().ensure_table(vmas.stay(), range.start())?.table().ok_or("no leaf")?;
        let first = table.index_of(range.start());
        table.fill(first, 16, <A as Arch>::Entry::leaf(folio.head(), prot, Level::Pte));
        drop(table);
        drop(vmas);

        let own = folio.grab::<Get>(1)?;
        let mut flushes = FlushBatch::new(&machine);
        let flags = UnmapFlags::SYNC | UnmapFlags::PUT_OFF_FLUSH;
        let end = try_to_unmap(policy, &folio.lock(), flags, &mut flushes);
        assert_eq!((end, mm.counters().resident()), (Unmapped::All, 0));
        flushes.free(own);
        drop(flushes);
        println!("{policy:?}: {} runs", machine.events().get(Event::UnmapRuns));
        exit(&MapPolicy::default(), &mm);
    }
    Ok(())
}
