//! A run of 512 pages in folded blocks, by one look at each, against the same run entry by
//! entry.
//!
//! `cargo bench -p mm-arm64 [-- --check]`: nanoseconds per scan of a table (median of
//! interleaved rounds) and the ratio; with `--check` fails where one is over its limit.

use mm_arch::model::NoTlb;
use mm_arch::{
    Arch, At, Entry, Held, Level, Pfn, Pinned, Protection, SpaceId, SpaceTlb, VirtAddr, respect,
};
use mm_arm64::{Arm64, Granule4K};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

type A = Arm64<Granule4K>;
type Table = <A as Arch>::Table;
const NR: usize = 512;
const SCANS: u32 = 2_000;
/// The most that a scan by hint may take, in times of the one entry by entry.
const BY_HINT: f64 = 0.25;
/// The same where accessed and dirty count and no entry has them: then all are read.
const GATHERED: f64 = 1.2;

fn scan<const MODE: u8>(table: &Table) -> f64 {
    let start = Instant::now();
    for _ in 0..SCANS {
        let head = A::read::<Held>(table, 0);
        let run = A::scan::<Pinned, MODE>(black_box(table), 0, head, black_box(NR));
        assert_eq!(run.nr, NR);
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(SCANS)
}

/// A table of folded blocks, and the same entries without them.
struct Tables {
    folded: Table,
    plain: Table,
}

impl Tables {
    fn new(e: <A as Arch>::Entry) -> Self {
        let (folded, plain) = (A::new_table(), A::new_table());
        A::fill(&folded, 0, NR, e);
        let tlb = SpaceTlb::new(&NoTlb, SpaceId(1));
        for index in 0..NR {
            let at = At { va: VirtAddr::new((index as u64) << 12), index };
            A::set(&plain, at, e.advance(index as u64, Level::Pte), &tlb);
        }
        Tables { folded, plain }
    }
    /// One row of the output; whether it keeps the limit.
    fn compare<const MODE: u8>(&self, name: &str, limit: f64) -> bool {
        let (mut folded, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..101 {
            folded.push(scan::<MODE>(&self.folded));
            plain.push(scan::<MODE>(&self.plain));
        }
        let median = |v: &mut Vec<f64>| {
            v.sort_by(f64::total_cmp);
            v[v.len() / 2]
        };
        let (folded, plain) = (median(&mut folded), median(&mut plain));
        let ratio = folded / plain;
        println!("{name:<40} {folded:6.1} ns, entry by entry {plain:6.1} ns, {ratio:.2} x");
        ratio <= limit
    }
}

const ALL: u8 = respect::WRITE | respect::MERGE_YOUNG_DIRTY;

fn main() -> ExitCode {
    let prot = A::prot(Protection::private_read_write());
    let e = <A as Arch>::Entry::leaf(Pfn::new(0x1000), prot, Level::Pte);
    let (clean, stored) = (Tables::new(e.mkold()), Tables::new(e.mkyoung().mkdirty()));
    let kept = [
        stored.compare::<{ respect::WRITE }>("by hint", BY_HINT),
        stored.compare::<ALL>("by hint, young and dirty known at once", BY_HINT),
        clean.compare::<{ respect::WRITE }>("by hint, but the head's block all read", GATHERED),
        clean.compare::<ALL>("all read, neither young nor dirty", GATHERED),
    ];
    if std::env::args().any(|a| a == "--check") && kept.contains(&false) {
        eprintln!("a scan of blocks takes more than {BY_HINT} ({GATHERED} if all are read)");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
