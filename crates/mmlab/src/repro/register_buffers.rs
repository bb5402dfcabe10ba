//! The pin share of `IORING_REGISTER_BUFFERS`, a user of patch series 002.
//!
//! A registration pins its whole buffer for long in one call. What io_uring does
//! with the pages afterwards is not simulated.

use super::line::{Against, Line, Published, Side, print};
use super::request::{Buffer, Loops, Op, Request};
use crate::bed::{Bed, FolioSize};
use crate::report::{in_turns, progress};
use mm_gup::GupFlags;
use mm_sim::Preset;
use mm_vma::VmaFlags;
use serde_json::json;

const BYTES: u64 = 1 << 30;
const TITLE: [&str; 4] = [
    "Pin share of IORING_REGISTER_BUFFERS, 1 GiB in one registration (a user of patch series 002).",
    "Published: the whole system call. Ours: its long-term pins alone; medians in µs (10th..90th percentile).",
    "`/loop`: multiple of the reference loop, same run, as in the table of GUP-fast.",
    "runs: best with folio runs as its output instead of one entry per page.",
];

/// Microseconds of the published runs: two boots before, one after.
const fn published(size: FolioSize) -> Published {
    match size {
        FolioSize::Small => Published::Us(&[7173.0, 6741.0], &[6763.0]),
        FolioSize::K64 => Published::Us(&[6179.0, 5998.0], &[1599.0]),
        FolioSize::M1 => Published::Us(&[5790.0, 5801.0], &[893.0]),
        FolioSize::K16 | FolioSize::M2Pte | FolioSize::M2Pmd => Published::Nothing,
    }
}

fn measure(bed: &Bed<()>, size: FolioSize, rounds: usize) -> Result<Vec<Line>, String> {
    let mut buffer = Buffer::new(bed.nr_pages());
    let all = Request::fast(Op::Pin, GupFlags::WRITE | GupFlags::LONGTERM);
    let mut loops = Loops::new(bed.nr_pages(), size, Op::Pin);
    let [before, series, best, runs, matching, per_page] = in_turns(rounds, |i| match i {
        4 => loops.matching(),
        5 => loops.per_page(),
        i => all[i].1.time(bed, &mut buffer),
    })?;
    let before = Side::new(&all[0], before, bed, &mut buffer)?;
    let series = Side::new(&all[1], series, bed, &mut buffer)?;
    let best = Side::new(&all[2], best, bed, &mut buffer)?;
    let runs = Side::new(&all[3], runs, bed, &mut buffer)?;
    let line = |before: &Side, after, published| Line {
        size,
        op: Op::Pin,
        before: before.clone(),
        after,
        published,
        against: Against { matching, per_page },
        more: vec![("share", json!("pin"))],
    };
    Ok(vec![
        line(&before, series, published(size)),
        line(&before, best.clone(), published(size)),
        line(&best, runs, Published::Nothing),
    ])
}

/// Measures and prints the table.
pub fn main(rounds: usize, as_json: bool) -> Result<(), String> {
    let bar = progress("register-buffers", FolioSize::ALL.len() as u64);
    let mut lines = Vec::new();
    for size in FolioSize::ALL {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        let bed = Bed::new(BYTES, Some(size), None, rights, Preset::Linux618.policy())?;
        lines.extend(measure(&bed, size, rounds)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    print("register-buffers", &TITLE, &lines, &[], as_json);
    Ok(())
}
