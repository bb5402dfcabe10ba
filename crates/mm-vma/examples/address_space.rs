//! An address space on the model machine: mappings, the mmap lock as the proof
//! that page tables stay, and an entry that is not there yet.
//!
//! `cargo run -p mm-vma --example address_space`

use mm_arch::model::ModelWord;
use mm_arch::{Entry, Level, VirtAddr, VirtRange};
use mm_pgtable::Ensured;
use mm_vma::model::{ModelConfig, ModelPlatform};
use mm_vma::{Mm, Platform, Vma, VmaFlags, can_change_writable};

type A = ModelWord<16>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = ModelPlatform::<A>::new(ModelConfig::default())?;
    let mm = Mm::new(machine.clone())?;
    let range = VirtRange::units(VirtAddr::new(0x4000), 8, 12)?;
    {
        let mut vmas = mm.write();
        vmas.change().insert(Vma::anonymous(range, VmaFlags::READ | VmaFlags::WRITE, 12))?;
        // The upper half becomes a mapping of its own, without write permission.
        vmas.change().split_at(VirtAddr::new(0x8000))?;
        if let Some(upper) = vmas.change().find_mut(VirtAddr::new(0x8000)) {
            upper.set_flags(upper.flags() - VmaFlags::WRITE);
        }
    }

    let vmas = mm.read();
    for vma in vmas.iter() {
        println!("{:?} {:?}, linear index {:#x}", vma.range(), vma.flags(), vma.pgoff());
    }

    // The guard proves that no table of this space is freed: walk with locks.
    let va = VirtAddr::new(0x5000);
    let Ensured::Table(mut table) = mm.tables().ensure_table(vmas.stay(), va)? else {
        return Err("a leaf at PMD level".into());
    };
    let vma = vmas.find(va).ok_or("no mapping")?;
    let folio = machine.memmap().alloc(0)?;
    let pfn = folio.folio().head();
    let prot = <A as mm_arch::Arch>::prot(vma.protection());
    let entry = <A as mm_arch::Arch>::Entry::leaf(pfn, prot, Level::Pte).mksoft_dirty();
    let index = table.index_of(va);
    table.fill(index, 1, entry);

    // Private memory starts read-only. Whether it may become writable without a
    // fault is one predicate for everybody.
    for exclusive in [false, true] {
        let may = can_change_writable::<A>(vma, table.get(index), Level::Pte, exclusive);
        println!("page exclusive: {exclusive:5}  may be made writable: {may}");
    }

    // The entry goes, then the flush that it owes, then the page.
    let mut owed = mm.tables().tlb().obligation();
    table.take(index, &mut owed);
    owed.now();
    drop(folio);
    println!("folios left: {}", machine.folios_in_use());
    Ok(())
}
