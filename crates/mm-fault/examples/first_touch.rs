//! First touches and copy on write on the model machine: which folio each fault
//! allocates, and what a second address space changes.
//!
//! `cargo run -p mm-fault --example first_touch`

use mm_arch::{VirtAddr, VirtRange};
use mm_fault::{FaultFlags, FaultPolicy, OrderMode, ThpMode, ThpPolicy, handle_fault};
use mm_rmap::model::{ModelConfig, machine};
use mm_vma::{Mm, RssKind, Vma, VmaFlags};
use mm_x86::X86_64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = machine::<X86_64>(ModelConfig::default())?;
    let mm = Mm::new(machine.clone())?;
    let base = 0x10_0000;
    let range = VirtRange::units(VirtAddr::new(base), 64, 12)?;
    let flags = VmaFlags::READ | VmaFlags::WRITE | VmaFlags::HUGEPAGE;
    mm.write().change().insert(Vma::anonymous(range, flags, 12))?;

    // 16K and 64K folios where they were asked for.
    let thp = ThpPolicy::new(9)
        .with_global(ThpMode::Madvise)
        .with_order(2, OrderMode::Madvise)
        .with_order(4, OrderMode::Madvise);
    let policy = FaultPolicy::new(thp);
    let touch = |page: u64, flags| {
        let before = mm.counters().get(RssKind::Anon);
        let va = VirtAddr::new(base + page * 4096);
        let outcome = handle_fault(&policy, &mm.read(), va, flags);
        let pages = mm.counters().get(RssKind::Anon) - before;
        println!("page {page:2}: {outcome:?}, {pages} new pages");
    };
    touch(5, FaultFlags::empty()); // the zero page: nothing is allocated
    touch(5, FaultFlags::WRITE); // a page of its own
    touch(20, FaultFlags::WRITE); // the aligned block of 16 around it is empty
    touch(9, FaultFlags::WRITE); // 16 would cover page 5: four pages fit
    println!("{} folios are in use", machine.folios_in_use());
    std::mem::forget(mm); // unmapping is not this crate's business
    Ok(())
}
