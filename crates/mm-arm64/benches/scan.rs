//! A run of 512 pages in folded blocks, by one look at each, against the same run entry by
//! entry.
//!
//! `cargo bench -p mm-arm64`: nanoseconds per scan of a table (median of interleaved
//! rounds) and the ratio.

use mm_arch::model::NoTlb;
use mm_arch::{
    Arch, At, Entry, Held, Level, Pfn, Pinned, Protection, SpaceId, SpaceTlb, VirtAddr, respect,
};
use mm_arm64::{Arm64, Granule4K};
use std::hint::black_box;
use std::time::Instant;

type A = Arm64<Granule4K>;
type Table = <A as Arch>::Table;
const NR: usize = 512;
const SCANS: u32 = 2_000;

fn scan<const MODE: u8>(table: &Table) -> f64 {
    let start = Instant::now();
    for _ in 0..SCANS {
        let head = A::read::<Held>(table, 0);
        let run = A::scan::<Pinned, MODE>(black_box(table), 0, head, black_box(NR));
        assert_eq!(run.nr, NR);
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(SCANS)
}

fn compare<const MODE: u8>(name: &str, folded: &Table, plain: &Table) {
    let (mut hint, mut each) = (Vec::new(), Vec::new());
    for _ in 0..101 {
        hint.push(scan::<MODE>(folded));
        each.push(scan::<MODE>(plain));
    }
    let median = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let (hint, each) = (median(&mut hint), median(&mut each));
    println!(
        "{name:<24} by hint {hint:6.1} ns, entry by entry {each:6.1} ns, {:.2} x",
        hint / each
    );
}

fn main() {
    let (folded, plain) = (A::new_table(), A::new_table());
    let e = <A as Arch>::Entry::leaf(
        Pfn::new(0x1000),
        A::prot(Protection::private_read_write()),
        Level::Pte,
    );
    A::fill(&folded, 0, NR, e);
    let tlb = SpaceTlb::new(&NoTlb, SpaceId(1));
    for index in 0..NR {
        let at = At { va: VirtAddr::new((index as u64) << 12), index };
        A::set(&plain, at, e.advance(index as u64, Level::Pte), &tlb);
    }
    compare::<{ respect::WRITE }>("write", &folded, &plain);
    compare::<{ respect::WRITE | respect::MERGE_YOUNG_DIRTY }>(
        "write, young and dirty",
        &folded,
        &plain,
    );
}
