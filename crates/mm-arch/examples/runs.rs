//! Lays out a table of a format with blocks and prints the runs that a batch
//! scan finds, for two modes.
//!
//! ```text
//! cargo run -p mm-arch --example runs
//! ```

use mm_arch::model::{ModelCont, NoTlb};
use mm_arch::{
    AccessKind, Arch, At, Entry, Held, Level, Pfn, Protection, SpaceId, SpaceTlb, VirtAddr, respect,
};

type Format = ModelCont<64, 16>;
type Table = <Format as Arch>::Table;

fn print_runs<const MODE: u8>(title: &str, table: &Table) {
    println!("{title}:");
    let mut index = 0;
    while index < Format::nr_entries(Level::Pte) {
        let head = Format::read::<Held>(table, index);
        if !head.is_leaf(Level::Pte) {
            index += 1;
            continue;
        }
        let max = Format::nr_entries(Level::Pte) - index;
        let run = Format::scan::<Held, MODE>(table, index, head, max);
        println!(
            "  {index:2} ..{:3}  frame {}  writable {}  any young {}  any dirty {}",
            index + run.nr,
            head.pfn(Level::Pte),
            head.is_writable(Level::Pte),
            run.any_young,
            run.any_dirty,
        );
        index += run.nr;
    }
}

fn main() {
    let table = Format::new_table();
    let tlb = SpaceTlb::new(&NoTlb, SpaceId(0));
    let at = |index: usize| At { va: VirtAddr::new((index as u64) << 12), index };
    let prot = Protection { writable_at_once: true, ..Protection::private_read_write() };

    // A folio of 48 pages: three folded blocks. Hardware stores to one page.
    let head = <Format as Arch>::Entry::leaf(Pfn::new(0x1000), Format::prot(prot), Level::Pte);
    Format::fill(&table, 0, 48, head.mkold());
    Format::mmu_mark(&table, 20, AccessKind::Write, Level::Pte);
    // One page loses its write permission: its block is unfolded for it.
    Format::wrprotect(&table, at(40), 1, &tlb);

    const MERGE: u8 = respect::MERGE_YOUNG_DIRTY;
    print_runs::<MERGE>("write ignored", &table);
    print_runs::<{ MERGE | respect::WRITE }>("write respected", &table);
}
