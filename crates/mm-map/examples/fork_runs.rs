//! Forks a space with one 64 KiB folio, page by page and in runs: the same
//! counts, in different numbers of steps.
//!
//! `cargo run -p mm-map --example fork_runs`

use mm_arch::{Arch, Entry, Level, VirtAddr, VirtRange};
use mm_folio::Exclusivity;
use mm_map::{Batching, MapPolicy, exit, fork, mmap_anon};
use mm_pgtable::TableSpace;
use mm_rmap::RmapPlatform;
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_vma::{Mm, Platform, RssKind, VmaFlags};
use mm_x86::X86_64;

type M = ModelPlatform<X86_64>;

/// What a write fault on a 64 KiB block does.
fn touch(mm: &Mm<M>, at: VirtAddr) -> Result<(), Box<dyn std::error::Error>> {
    let (m, vmas) = (mm.platform(), mm.read());
    let vma = vmas.find(at).ok_or("not mapped")?;
    let mut new = m.memmap().alloc(4)?;
    new.grow(15)?;
    let folio = new.folio();
    folio.set_anon(m.anon_trees().prepare(mm, &vmas, vma)?, vma.linear_index(at));
    folio.add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
    mm.counters().add(RssKind::Anon, 16);
    let mut table = mm.tables().ensure_table(vmas.stay(), at)?.table().ok_or("a leaf")?;
    let prot = X86_64::prot(vma.protection());
    let entry = <X86_64 as Arch>::Entry::leaf(folio.head(), prot, Level::Pte);
    let index = table.index_of(at);
    table.fill(index, 16, entry.mkdirty().mkwrite(vma.write_kind()));
    new.hand_over();
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for batching in [Batching::PerPage, Batching::Batched] {
        let policy = MapPolicy { batching, ..MapPolicy::default() };
        let m = machine::<X86_64>(ModelConfig::default())?;
        let parent = Mm::new(m.clone())?;
        let range = VirtRange::new(VirtAddr::new(0x7f00_0000_0000), 16 << 12)?;
        mmap_anon(&mut parent.write(), range, VmaFlags::READ | VmaFlags::WRITE)?;
        touch(&parent, range.start())?;
        let child = fork(&policy, &parent)?;
        for folio in m.memmap().alive().filter(|f| f.is_anon()) {
            folio.counts_locked(|c| {
                println!(
                    "{batching:?}: {} references, {} mappings, shared {}, {} flush(es)",
                    c.refs,
                    c.mapcount,
                    c.shared,
                    m.tlb().flushes.get()
                );
            });
        }
        exit(&policy, &child);
        exit(&policy, &parent);
        assert_eq!(m.folios_in_use(), 0);
    }
    Ok(())
}
