//! What becomes of a contiguous block: folded by a write of all its entries, taken apart
//! by a change of one, and read by hint.
//!
//! ```text
//! cargo run -p mm-arm64 --example blocks
//! ```

use mm_arch::model::NoTlb;
use mm_arch::{
    AccessKind, Arch, At, Entry, Held, Level, Live, Pfn, Protection, Rights, SpaceId, SpaceTlb,
    VirtAddr, respect,
};
use mm_arm64::{Arm64, Granule4K, bits};

type A = Arm64<Granule4K>;
type Table = <A as Arch>::Table;

/// The entries as runs of equal flags over consecutive frames.
fn show(what: &str, table: &Table) {
    println!("{what}");
    let raw = |i| A::read_upper::<Held>(table, i);
    let mut first = 0;
    while first < 32 {
        let next = |i: &usize| raw(*i) == raw(first).advance((*i - first) as u64, Level::Pte);
        let end = (first + 1..32).take_while(next).last().unwrap_or(first);
        let e = raw(first);
        let flags: Vec<&str> = [
            (bits::VALID, "valid"),
            (bits::WRITE, "write"),
            (bits::READ_ONLY, "read-only"),
            (bits::ACCESSED, "accessed"),
            (bits::DIRTY, "dirty"),
            (bits::CONT, "contiguous"),
        ]
        .iter()
        .filter(|(bit, _)| e.bits() & bit != 0)
        .map(|(_, name)| *name)
        .collect();
        println!("  {first:2}..={end:2}  frame {}  {}", e.pfn(Level::Pte), flags.join(" "));
        first = end + 1;
    }
}

fn main() {
    let table = A::new_table();
    let tlb = SpaceTlb::new(&NoTlb, SpaceId(1));
    let at = |index: usize| At { va: VirtAddr::new((index as u64) << 12), index };

    let rights = Rights::READ | Rights::WRITE;
    let prot = A::prot(Protection { rights, writable_at_once: true, pkey: 0 });
    let page = <A as Arch>::Entry::leaf(Pfn::new(0x1000), prot, Level::Pte).mkold();
    A::fill(&table, 0, 32, page);
    show("32 pages at an aligned place", &table);

    A::mmu_mark(&table, 9, AccessKind::Write, Level::Pte);
    show("hardware reports a store to page 9", &table);
    println!("  so page 0 reads as dirty: {}", A::read::<Held>(&table, 0).is_dirty());

    A::wrprotect(&table, at(3), 1, &tlb);
    show("page 3 loses its write permission", &table);

    A::take::<Live, _>(&table, at(0), 16, &tlb, |_, _| {});
    A::fill(&table, 0, 16, page);
    show("the first sixteen are mapped again", &table);
    let head = A::read::<Held>(&table, 0);
    let run = A::scan::<Held, { respect::WRITE }>(&table, 0, head, 32);
    println!("a run of {} pages, two loads", run.nr);
}
