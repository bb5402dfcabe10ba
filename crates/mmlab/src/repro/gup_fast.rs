//! Patch series 002: GUP-fast on PTE-mapped large folios.
//!
//! One call over 256 MiB (65,536 pages), for writing. Before, after, and the
//! reference loops take turns (A B C A B C …) on one machine per folio size, so
//! that whatever else this computer does hits all of them. Counts come from a
//! second, untimed pass.

use super::reference::{Loop, Reference};
use crate::bed::{Bed, FolioSize};
use crate::cli::say;
use crate::report::{Spread, progress};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use mm_arch::Pfn;
use mm_gup::{Gup, GupFlags, GupPolicy, Pages, put_pages, unpin_pages};
use mm_sim::{EventCounts, Preset};
use mm_vma::{Observer, Platform, VmaFlags};
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

const BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Get,
    Pin,
}

impl Op {
    const fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Pin => "pin",
        }
    }
}

/// Microseconds of the published runs: two boots before, one after.
const fn published(size: FolioSize, op: Op) -> ([f64; 2], [f64; 1]) {
    match (size, op) {
        (FolioSize::Small, Op::Get) => ([849.0, 789.0], [783.0]),
        (FolioSize::K64, Op::Get) => ([812.0, 811.0], [126.0]),
        (FolioSize::M1, Op::Get) => ([799.0, 774.0], [59.0]),
        (FolioSize::M2Pte, Op::Get) => ([803.0, 786.0], [57.0]),
        (FolioSize::M2Pmd, Op::Get) => ([42.0, 40.0], [40.0]),
        (FolioSize::Small, Op::Pin) => ([1174.0, 1138.0], [1094.0]),
        (FolioSize::K64, Op::Pin) => ([1215.0, 1113.0], [188.0]),
        (FolioSize::M1, Op::Pin) => ([1185.0, 1077.0], [64.0]),
        (FolioSize::M2Pte, Op::Pin) => ([1159.0, 1120.0], [58.0]),
        (FolioSize::M2Pmd, Op::Pin) => ([46.0, 41.0], [42.0]),
    }
}

/// One measured cell of the table.
struct Cell {
    size: FolioSize,
    op: Op,
    before: Spread,
    afters: [(Preset, Spread, serde_json::Value); 2],
    before_counts: serde_json::Value,
    reference: Spread,
    per_page: Spread,
}

const BEFORE: Preset = Preset::Linux618;

/// Takes all pages once; microseconds.
fn take<O: Observer>(
    bed: &Bed<()>,
    policy: GupPolicy,
    op: Op,
    observer: &O,
    out: &mut [Pfn],
) -> Result<f64, String> {
    let gup = Gup::new(bed.process.mm(), &()).with_policy(policy).observed_by(observer);
    let nr = bed.nr_pages();
    let start = Instant::now();
    let mut pages = Pages::new(black_box(&mut *out));
    let got = match op {
        Op::Get => gup.get_fast(bed.range.start(), nr, GupFlags::WRITE, &mut pages),
        Op::Pin => gup.pin_fast(bed.range.start(), nr, GupFlags::WRITE, &mut pages),
    };
    let us = start.elapsed().as_secs_f64() * 1e6;
    let got = got.map_err(|e| e.to_string())?;
    let map = bed.machine.host().memmap();
    match op {
        Op::Get => put_pages(map, &out[..got]),
        Op::Pin => unpin_pages(map, &out[..got]),
    }
    if got == nr { Ok(us) } else { Err(format!("{} took {got} of {nr} pages", op.name())) }
}

fn counts(
    bed: &Bed<()>,
    policy: GupPolicy,
    op: Op,
    out: &mut [Pfn],
) -> Result<serde_json::Value, String> {
    let seen = EventCounts::default();
    let flushes = || {
        let f = bed.machine.host().cpus().flushes();
        f.ranges.get() + f.spaces.get()
    };
    let before = flushes();
    take(bed, policy, op, &seen, out)?;
    Ok(json!({
        "entries_read": seen.entries_read.get(),
        "grabs": seen.grabs.get(),
        "atomics": seen.atomics.get(),
        "locks": seen.locks.get(),
        "walks": seen.walks.get(),
        "flushes": flushes() - before,
        "fills_under_lock": seen.fills_under_lock.get(),
    }))
}

fn measure(bed: &Bed<()>, size: FolioSize, op: Op, rounds: usize) -> Result<Cell, String> {
    let nr = bed.nr_pages();
    let reference = Reference::new(nr, 1 << size.order());
    let which = match size {
        FolioSize::Small => Loop::PerPage,
        FolioSize::M2Pmd => Loop::Leaf,
        _ => Loop::Run,
    };
    let (mut out, mut raw) = (vec![Pfn::new(0); nr], vec![0u64; nr]);
    let presets = [BEFORE, Preset::Series, Preset::Best];
    let mut times = [const { Vec::new() }; 3];
    let (mut reference_us, mut per_page_us) = (Vec::new(), Vec::new());
    let loop_once = |which, raw: &mut [u64]| {
        let start = Instant::now();
        let got = reference.take(which, op == Op::Pin, black_box(raw));
        let us = start.elapsed().as_secs_f64() * 1e6;
        reference.give_back();
        if got == nr { Ok(us) } else { Err("the reference loop stopped".to_owned()) }
    };
    for round in 0..=rounds {
        for (preset, times) in presets.iter().zip(&mut times) {
            let us = take(bed, preset.policy().gup, op, &(), &mut out)?;
            // The first round warms everything up.
            if round > 0 {
                times.push(us);
            }
        }
        let (matching, per_page) =
            (loop_once(which, &mut raw)?, loop_once(Loop::PerPage, &mut raw)?);
        if round > 0 {
            reference_us.push(matching);
            per_page_us.push(per_page);
        }
    }
    let [before, series, best] = times.map(Spread::of);
    let policy = |p: Preset| p.policy().gup;
    Ok(Cell {
        size,
        op,
        before,
        before_counts: counts(bed, policy(BEFORE), op, &mut out)?,
        afters: [
            (Preset::Series, series, counts(bed, policy(Preset::Series), op, &mut out)?),
            (Preset::Best, best, counts(bed, policy(Preset::Best), op, &mut out)?),
        ],
        reference: Spread::of(reference_us),
        per_page: Spread::of(per_page_us),
    })
}

fn print_json(cell: &Cell) {
    let (published_before, published_after) = published(cell.size, cell.op);
    let smallest = published_before[0].min(published_before[1]);
    for (after, spread, counts) in &cell.afters {
        let line = json!({
            "table": "gup-fast",
            "row": cell.size.name(),
            "op": cell.op.name(),
            "before": BEFORE.name(),
            "after": after.name(),
            "before_us": cell.before.median,
            "after_us": spread.median,
            "ratio": cell.before.median / spread.median,
            "published_before": published_before,
            "published_after": published_after,
            "published_ratio": smallest / published_after[0],
            "reference_us": cell.reference.median,
            "reference_per_page_us": cell.per_page.median,
            "before_spread_us": [cell.before.low, cell.before.high],
            "after_spread_us": [spread.low, spread.high],
            "counts_before": cell.before_counts,
            "counts_after": counts,
        });
        say(line);
    }
}

fn print_table(cells: &[Cell]) {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header([
        "folio",
        "op",
        "after is",
        "before us",
        "after us",
        "ratio",
        "published us",
        "ratio",
        "before/loop",
        "after/loop",
        "grabs",
        "atomics",
    ]);
    for cell in cells {
        let (published_before, published_after) = published(cell.size, cell.op);
        let smallest = published_before[0].min(published_before[1]);
        for (after, spread, counts) in &cell.afters {
            let change = |key: &str| format!("{} → {}", cell.before_counts[key], counts[key]);
            table.add_row([
                cell.size.name().to_owned(),
                cell.op.name().to_owned(),
                after.name().to_owned(),
                cell.before.to_string(),
                spread.to_string(),
                format!("{:.1}", cell.before.median / spread.median),
                format!(
                    "{:.0}/{:.0} → {:.0}",
                    published_before[0], published_before[1], published_after[0]
                ),
                format!("{:.1}", smallest / published_after[0]),
                format!("{:.2}", cell.before.median / cell.before_loop().median),
                format!("{:.2}", spread.median / cell.reference.median),
                change("grabs"),
                change("atomics"),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    say(format_args!(
        "GUP-fast, 256 MiB in one call, for writing (patch series 002). Before: {}.",
        BEFORE.name()
    ));
    say(
        "Medians in µs (10th..90th percentile); `/loop`: multiple of the reference loop, same run:",
    );
    say(
        "one atomic per page for `before`, two per run for `after` (4k: one per page; 2m-pmd: one per leaf).",
    );
    say(table);
}

impl Cell {
    /// The loop that the per-page side is measured by: a leaf is one step there, too.
    fn before_loop(&self) -> &Spread {
        if self.size == FolioSize::M2Pmd { &self.reference } else { &self.per_page }
    }
}

/// Measures and prints the table.
pub fn main(rounds: usize, as_json: bool) -> Result<(), String> {
    let bar = progress("gup-fast", FolioSize::ALL.len() as u64 * 2);
    let mut cells = Vec::new();
    for size in FolioSize::ALL {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        let bed = Bed::new(BYTES, Some(size), None, rights, BEFORE.policy())?;
        for op in [Op::Get, Op::Pin] {
            let cell = measure(&bed, size, op, rounds)?;
            if as_json {
                print_json(&cell);
            }
            cells.push(cell);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if !as_json {
        print_table(&cells);
    }
    Ok(())
}
