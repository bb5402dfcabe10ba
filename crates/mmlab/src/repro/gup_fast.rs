//! Patch series 002: GUP-fast on PTE-mapped large folios.
//!
//! One call over 256 MiB (65,536 pages), for writing. Before, after, and the
//! reference loops take turns (A B C A B C …) on one machine per folio size, so
//! that whatever else this computer does hits all of them. In its turn each goes twice,
//! and the second time counts. Counts come from another, untimed pass.

use super::line::{Against, Line, Published, Side, print};
use super::request::{Buffer, Loops, Op, Request};
use crate::bed::{Bed, FolioSize};
use crate::report::{in_turns, progress};
use mm_gup::GupFlags;
use mm_sim::Preset;
use mm_vma::VmaFlags;
use serde_json::json;

const BYTES: u64 = 256 << 20;
const THREADS: usize = 2;
const TITLE: [&str; 5] = [
    "GUP-fast, 256 MiB in one call, for writing (patch series 002).",
    "Medians in µs (10th..90th percentile); `/loop`: multiple of the reference loop, same run:",
    "one atomic per page for `before`, two per run for `after` (4k: one per page; 2m-pmd: one per leaf).",
    "runs: best with folio runs as its output instead of one entry per page; 2 threads: best, each",
    "with half of the region.",
];

/// Microseconds of the published runs: two boots before, one after.
const fn published(size: FolioSize, op: Op) -> Published {
    match (size, op) {
        (FolioSize::Small, Op::Get) => Published::Us(&[849.0, 789.0], &[783.0]),
        (FolioSize::K64, Op::Get) => Published::Us(&[812.0, 811.0], &[126.0]),
        (FolioSize::M1, Op::Get) => Published::Us(&[799.0, 774.0], &[59.0]),
        (FolioSize::M2Pte, Op::Get) => Published::Us(&[803.0, 786.0], &[57.0]),
        (FolioSize::M2Pmd, Op::Get) => Published::Us(&[42.0, 40.0], &[40.0]),
        (FolioSize::Small, Op::Pin) => Published::Us(&[1174.0, 1138.0], &[1094.0]),
        (FolioSize::K64, Op::Pin) => Published::Us(&[1215.0, 1113.0], &[188.0]),
        (FolioSize::M1, Op::Pin) => Published::Us(&[1185.0, 1077.0], &[64.0]),
        (FolioSize::M2Pte, Op::Pin) => Published::Us(&[1159.0, 1120.0], &[58.0]),
        (FolioSize::M2Pmd, Op::Pin) => Published::Us(&[46.0, 41.0], &[42.0]),
        (FolioSize::K16, _) => Published::Nothing,
    }
}

fn measure(bed: &Bed<()>, size: FolioSize, op: Op, rounds: usize) -> Result<Vec<Line>, String> {
    let mut buffer = Buffer::new(bed.nr_pages());
    let mut parts = [bed.nr_pages() / THREADS; THREADS].map(Buffer::new);
    let mut loops = Loops::new(bed.nr_pages(), size, op);
    let all = Request::fast(op, GupFlags::WRITE);
    let [before, series, pages, runs, threads, matching, per_page] =
        in_turns(rounds, |i| match i {
            4 => all[2].1.time_threads(bed, &mut parts),
            5 => loops.matching(),
            6 => loops.per_page(),
            i => all[i].1.time(bed, &mut buffer),
        })?;
    let before = Side::new(&all[0], before, bed, &mut buffer)?;
    let series = Side::new(&all[1], series, bed, &mut buffer)?;
    let pages = Side::new(&all[2], pages, bed, &mut buffer)?;
    let runs = Side::new(&all[3], runs, bed, &mut buffer)?;
    let threads = Side { name: "2 threads", us: threads, counts: pages.counts.clone() };
    let line = |before: &Side, after: Side, published, output| Line {
        size,
        op,
        before: before.clone(),
        after,
        published,
        against: Against { matching, per_page },
        more: vec![("output", json!(output))],
    };
    Ok(vec![
        line(&before, series, published(size, op), "pages"),
        line(&before, pages.clone(), published(size, op), "pages"),
        line(&pages, runs, Published::Nothing, "runs"),
        line(&pages, threads, Published::Nothing, "pages"),
    ])
}

/// Measures and prints the table.
pub fn main(rounds: usize, as_json: bool) -> Result<(), String> {
    let bar = progress("gup-fast", FolioSize::ALL.len() as u64 * 2);
    let mut lines = Vec::new();
    for size in FolioSize::ALL {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        let bed = Bed::new(BYTES, Some(size), None, rights, Preset::Linux618.policy())?;
        for op in [Op::Get, Op::Pin] {
            lines.extend(measure(&bed, size, op, rounds)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    print("gup-fast", &TITLE, &lines, &[], as_json);
    Ok(())
}
