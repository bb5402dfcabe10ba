//! Patch series 000 and 001: slow GUP on PTE-mapped large folios.
//!
//! `pin_user_pages` with `FOLL_LONGTERM`, one call over 256 MiB (65,536 pages), for
//! writing: page by page, one run per walk (000), up to 32 runs under one lock
//! (001). All take turns on one machine per folio size.

use super::line::{Against, Line, Published, Side, print};
use super::request::{Buffer, Loops, Op, Output, Path, Request};
use crate::bed::{Bed, FolioSize};
use crate::report::{in_turns, progress};
use mm_gup::{GupFlags, GupPolicy, SlowPolicy};
use mm_sim::Preset;
use mm_vma::VmaFlags;
use serde_json::{Value, json};

const BYTES: u64 = 256 << 20;
const TITLES: [&[&str]; 2] = [
    &[
        "Slow GUP, 256 MiB in one call, long-term pins for writing; one run per walk (patch series 000).",
        "Medians in µs (10th..90th percentile); `/loop`: multiple of the reference loop, same run.",
    ],
    &[
        "The same, up to 32 runs under one lock (patch series 001).",
        "runs: table with folio runs as its output instead of one entry per page.",
    ],
];

/// Microseconds of the published runs of patch series 000.
const fn published_run(size: FolioSize) -> Published {
    match size {
        FolioSize::Small => Published::Us(&[3010.0], &[3042.0]),
        FolioSize::K64 => Published::Us(&[3140.0], &[412.0]),
        FolioSize::M2Pmd => Published::Us(&[78.0], &[76.0]),
        FolioSize::K16 | FolioSize::M1 | FolioSize::M2Pte => Published::Nothing,
    }
}
/// Microseconds of the published runs of patch series 001.
const fn published_table(size: FolioSize) -> Published {
    match size {
        FolioSize::Small => Published::Us(&[2721.0], &[1198.0]),
        FolioSize::K64 => Published::Us(&[2929.0], &[201.0]),
        FolioSize::M2Pmd => Published::Us(&[73.0], &[69.0]),
        FolioSize::K16 | FolioSize::M1 | FolioSize::M2Pte => Published::Nothing,
    }
}

/// The lines of both tables.
fn measure(bed: &Bed<()>, size: FolioSize, rounds: usize) -> Result<[Vec<Line>; 2], String> {
    let op = Op::Pin;
    let mut buffer = Buffer::new(bed.nr_pages());
    let mut loops = Loops::new(bed.nr_pages(), size, op);
    let with = |name, slow, output| {
        let policy = GupPolicy { slow, ..GupPolicy::default() };
        let flags = GupFlags::WRITE | GupFlags::LONGTERM;
        (name, Request { op, path: Path::Slow, policy, flags, output })
    };
    let all = [
        with("page", SlowPolicy::Page, Output::Pages),
        with("run", SlowPolicy::Run, Output::Pages),
        with("table", SlowPolicy::Table, Output::Pages),
        with("runs", SlowPolicy::Table, Output::Runs),
    ];
    let [page, run, table, runs, matching, per_page] = in_turns(rounds, |i| match i {
        4 => loops.matching(),
        5 => loops.per_page(),
        i => all[i].1.time(bed, &mut buffer),
    })?;
    let page = Side::new(&all[0], page, bed, &mut buffer)?;
    let run = Side::new(&all[1], run, bed, &mut buffer)?;
    let table = Side::new(&all[2], table, bed, &mut buffer)?;
    let runs = Side::new(&all[3], runs, bed, &mut buffer)?;
    let line = |series: &str, before: &Side, after, published, output: &str| Line {
        size,
        op,
        before: before.clone(),
        after,
        published,
        against: Against { matching, per_page },
        more: vec![("series", Value::from(series)), ("output", json!(output))],
    };
    Ok([
        vec![line("000", &page, run, published_run(size), "pages")],
        vec![
            line("001", &page, table.clone(), published_table(size), "pages"),
            line("001", &table, runs, Published::Nothing, "runs"),
        ],
    ])
}

/// Measures and prints the tables.
pub fn main(rounds: usize, as_json: bool) -> Result<(), String> {
    let bar = progress("gup-slow", FolioSize::ALL.len() as u64);
    let mut tables = [Vec::new(), Vec::new()];
    for size in FolioSize::ALL {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        let bed = Bed::new(BYTES, Some(size), None, rights, Preset::Linux618.policy())?;
        for (table, lines) in tables.iter_mut().zip(measure(&bed, size, rounds)?) {
            table.extend(lines);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    for (lines, title) in tables.iter().zip(TITLES) {
        print("gup-slow", title, lines, &[], as_json);
    }
    Ok(())
}
