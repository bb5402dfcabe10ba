//! Patch series 004: unmapping of folios by reclaim.
//!
//! A region is mapped, and 80 % of its folios are unmapped as reclaim does it: locked,
//! unmapped everywhere, flushes put off to the end. They stay in memory, so that they can
//! be mapped again for the next turn; what is freed in lazily freed memory is made anew.
//! Policies take turns on one machine per folio size.
//!
//! So this is the unmapping alone. The series measured all of reclaim: lists and aging
//! before, the page cache and the allocator behind, which its change leaves as they are.
//!
//! The reference loop is one read-modify-write per entry; a second one is what the rules
//! demand. Counts come from a small machine
//! of its own, whose unmapped folios must be as many as the counts say.

mod floor;
mod region;

use crate::bed::FolioSize;
use crate::cli::say;
use crate::report::{Spread, progress, right_aligned};
use floor::Floor;
use mm_reclaim::UnmapPolicy;
use mm_sim::EventCounts;
use region::Region;
use serde_json::{Value, json};

const COUNTED_BYTES: u64 = 32 << 20;
const POLICIES: [UnmapPolicy; 4] =
    [UnmapPolicy::Page, UnmapPolicy::Lazyfree, UnmapPolicy::File, UnmapPolicy::All];
const SIZES: [FolioSize; 6] = [
    FolioSize::Small,
    FolioSize::K16,
    FolioSize::K64,
    FolioSize::M1,
    FolioSize::M2Pte,
    FolioSize::M2Pmd,
];
/// Seconds for 8 of 10 GiB, before and after, as published; the folio size was not.
const PUBLISHED_S: [f64; 2] = [1.018, 0.249];

const fn name(policy: UnmapPolicy) -> &'static str {
    match policy {
        UnmapPolicy::Page => "page",
        UnmapPolicy::Lazyfree => "lazyfree",
        UnmapPolicy::File => "file",
        UnmapPolicy::All => "all",
    }
}

/// What is reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    /// Clean pages of a file.
    File,
    /// Anonymous pages that were given up.
    Lazyfree,
    /// Anonymous pages that have a place on a swap device.
    Swap,
    /// Shared memory that userfaultfd write-protects.
    UffdWp,
}

impl Op {
    const ALL: [Op; 4] = [Op::File, Op::Lazyfree, Op::Swap, Op::UffdWp];
    const fn name(self) -> &'static str {
        match self {
            Op::File => "file",
            Op::Lazyfree => "lazyfree",
            Op::Swap => "swap",
            Op::UffdWp => "uffd-wp",
        }
    }
    /// Whether it is of an object: neighbouring folios can be unmapped together, and entries are
    /// read-only, as the file or userfaultfd is told before the first store.
    fn is_of_object(self) -> bool {
        matches!(self, Op::File | Op::UffdWp)
    }
    /// Whether unmapping takes a leaf away as a whole; others it splits.
    fn takes_leaves(self, size: FolioSize) -> bool {
        self == Op::File && size == FolioSize::M2Pmd
    }
    /// The folio sizes that there are. What userfaultfd watches has no leaves.
    fn sizes(self) -> impl Iterator<Item = FolioSize> {
        SIZES.into_iter().filter(move |s| self != Op::UffdWp || *s != FolioSize::M2Pmd)
    }
}

/// What one policy does in a region of `bytes`, counted.
fn counts(op: Op, size: FolioSize, policy: UnmapPolicy, bytes: u64) -> Result<Value, String> {
    let region = Region::<EventCounts>::new(op, size, bytes)?;
    let host = region.machine.host();
    let events = host.events().ok_or("nothing is counted")?;
    let seen = || {
        let f = host.cpus().flushes();
        [
            events.unmap_clears.get(),
            events.unmap_runs.get(),
            events.entries_unmapped.get(),
            events.pmd_split.get(),
            events.locks.get(),
            f.ranges.get() + f.spaces.get(),
            f.deferred.get(),
            events.unmap_single_unused.get()
                + events.unmap_single_tracked.get()
                + events.unmap_single_device.get()
                + events.unmap_single_full_slot.get(),
        ]
    };
    let before = seen();
    region.unmap(policy)?;
    let mut counted = seen();
    counted.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
    let [clears, runs, entries, leaves, locks, flushes, put_off, singly] = counted;
    let folios = region.chosen().count() as u64;
    let expected = if op.takes_leaves(size) { 0 } else { folios << size.order() };
    if entries != expected {
        return Err(format!("{entries} entries were unmapped, not {expected}"));
    }
    Ok(json!({
        "folios": folios,
        "entries": entries,
        "leaves": leaves,
        "clear_calls": clears,
        "rmap_removals": runs,
        "puts": runs,
        // One by one although the policy takes runs.
        "singly": singly,
        "put_off": put_off,
        "flushes": flushes,
        "locks": locks,
        "runs_per_folio": runs as f64 / folios as f64,
    }))
}

/// A line: one size, one kind of memory, all policies.
struct Line {
    size: FolioSize,
    op: Op,
    us: [Spread; POLICIES.len()],
    reference: Spread,
    floor: Spread,
    counts: Vec<Value>,
}

fn measure(op: Op, size: FolioSize, bytes: u64, rounds: usize) -> Result<Line, String> {
    let region = Region::<()>::new(op, size, bytes)?;
    let order = if op.takes_leaves(size) { 0 } else { size.order() };
    let entries = region.chosen().count() << order;
    let together = if op.is_of_object() { (512 >> order).clamp(1, region::AT_ONCE) } else { 1 };
    let loops = Floor::new(entries, 1 << order, together, op.is_of_object());
    let mut all = [const { Vec::new() }; POLICIES.len()];
    let (mut reference, mut floor) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        for (policy, us) in POLICIES.into_iter().zip(&mut all) {
            let took = region.unmap(policy)?;
            region.map()?;
            if round > 0 {
                us.push(took);
            }
        }
        let took = (loops.entries(), loops.floor());
        if round > 0 {
            reference.push(took.0);
            floor.push(took.1);
        }
    }
    let counts = POLICIES
        .into_iter()
        .map(|p| counts(op, size, p, COUNTED_BYTES))
        .collect::<Result<_, _>>()?;
    let (reference, floor) = (Spread::of(reference), Spread::of(floor));
    Ok(Line { size, op, us: all.map(Spread::of), reference, floor, counts })
}

impl Line {
    /// An object for each policy.
    fn json(&self) -> Vec<Value> {
        let before = self.us[0].median;
        let policies = POLICIES.into_iter().zip(self.us).zip(&self.counts);
        let object = |((policy, us), counts): ((UnmapPolicy, Spread), &Value)| {
            json!({
                "table": "reclaim",
                "row": self.size.name(),
                "op": self.op.name(),
                "policy": name(policy),
                "before_us": before,
                "after_us": us.median,
                "after_spread_us": [us.low, us.high],
                "ratio": before / us.median,
                "reference_us": self.reference.median,
                "floor_us": self.floor.median,
                "counts": counts,
                "published": if self.op == Op::File { json!(PUBLISHED_S) } else { json!([]) },
            })
        };
        policies.map(object).collect()
    }
}

fn print_table(lines: &[Line], bytes: u64) {
    say(format_args!(
        "Unmapping by reclaim, 80 % of {} MiB (patch series 004). Published, 8 of 10 GiB of clean file",
        bytes >> 20
    ));
    say(
        "folios with all of reclaim: 1.018 s before, 0.249 s after. Medians in µs (10th..90th percentile);",
    );
    say(
        "`/loop`: multiple of one read-modify-write per entry, same run; `/floor`: of what the rules demand,",
    );
    say(
        "that or a store per entry that is read-only (file, uffd-wp), and locked operations; `runs`: clear",
    );
    say("calls, removals of mappings and puts of references, each, per folio.");
    let row = |line: &Line| {
        let cells = POLICIES.into_iter().zip(line.us).zip(&line.counts).map(|((policy, us), c)| {
            vec![
                line.size.name().to_owned(),
                line.op.name().to_owned(),
                name(policy).to_owned(),
                us.to_string(),
                format!("{:.2}", line.us[0].median / us.median),
                format!("{:.2}", us.median / line.reference.median),
                format!("{:.2}", us.median / line.floor.median),
                format!("{:.0}", c["runs_per_folio"].as_f64().unwrap_or(f64::NAN)),
                c["locks"].to_string(),
                c["flushes"].to_string(),
            ]
        });
        cells.collect::<Vec<_>>()
    };
    let header =
        ["folio", "op", "policy", "µs", "ratio", "/loop", "/floor", "runs", "locks", "flushes"];
    say(right_aligned(&header, 3, lines.iter().flat_map(row).collect()));
}

/// Measures and prints the table.
pub fn main(rounds: usize, bytes: u64, as_json: bool) -> Result<(), String> {
    let bar = progress("reclaim", Op::ALL.map(|op| op.sizes().count() as u64).iter().sum());
    let mut lines = Vec::new();
    for op in Op::ALL {
        for size in op.sizes() {
            let line = measure(op, size, bytes, rounds)?;
            if as_json {
                line.json().iter().for_each(say);
            }
            lines.push(line);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if !as_json {
        print_table(&lines, bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the policy takes what it finds in runs.
    fn in_runs(op: Op, policy: UnmapPolicy) -> bool {
        match policy {
            UnmapPolicy::Page => false,
            UnmapPolicy::Lazyfree => op == Op::Lazyfree,
            UnmapPolicy::File => matches!(op, Op::File | Op::Lazyfree),
            UnmapPolicy::All => true,
        }
    }

    /// Tables that the chosen folios are taken from, and rows of neighbours in them, with each
    /// again that is in more than one batch of 32.
    fn shared(size: FolioSize, folios: usize) -> (u64, u64) {
        let chosen: Vec<_> = (0..).filter(|n| n % 10 < 8).take(folios).collect();
        let table = |n: usize| n << size.order() >> 9;
        let (mut tables, mut rows) = (0, 0);
        for batch in chosen.chunks(32) {
            tables += 1;
            rows += 1;
            for two in batch.windows(2) {
                let new = table(two[0]) != table(two[1]);
                tables += u64::from(new);
                rows += u64::from(new || two[0] + 1 != two[1]);
            }
        }
        (tables, rows)
    }

    /// Rules: BENCH-13, UNMAP-14, TLBB-01. Per run one clear call, one removal of mappings,
    /// one put; per folio one lock, and one more to split or take a leaf. Neighbours that go
    /// together have one lock per table, and one flush that is put off for each row of them.
    #[test]
    fn every_row_is_made_and_counted_exactly() {
        for op in Op::ALL {
            for size in op.sizes().filter(|s| *s != FolioSize::Small) {
                for policy in POLICIES {
                    let row = format!("{} {} {}", op.name(), size.name(), name(policy));
                    let c = counts(op, size, policy, 20 << 20).expect(&row);
                    let folios = c["folios"].as_u64().expect("a number");
                    assert_eq!(folios, (20 << 20 >> 12 >> size.order()) * 8 / 10, "{row}");
                    // What was given up may go without being split.
                    let whole = op == Op::Lazyfree && policy == UnmapPolicy::All;
                    let leaves = if size == FolioSize::M2Pmd && !whole { folios } else { 0 };
                    let runs = match (op.takes_leaves(size), in_runs(op, policy)) {
                        (true, _) => 0,
                        (false, true) => folios,
                        (false, false) => folios << size.order(),
                    };
                    assert_eq!(c["leaves"], leaves, "{row}");
                    assert_eq!(c["clear_calls"], runs, "{row}");
                    assert_eq!(c["rmap_removals"], runs, "{row}");
                    // One flush for all that was put off, and one to split or take a leaf.
                    let as_leaves = size == FolioSize::M2Pmd && whole;
                    let waits = runs > 0 && !as_leaves;
                    let at_once = if as_leaves { folios } else { leaves };
                    assert_eq!(c["flushes"], u64::from(waits) + at_once, "{row}");
                    let together = policy == UnmapPolicy::All && op.is_of_object();
                    let (tables, rows) = shared(size, folios as usize);
                    let put_off = if together && leaves == 0 { rows } else { runs };
                    assert_eq!(c["put_off"], if waits { put_off } else { 0 }, "{row}");
                    let watched = op == Op::UffdWp && policy == UnmapPolicy::File;
                    assert_eq!(c["singly"], if watched { runs } else { 0 }, "{row}");
                    let locks = if together && leaves == 0 { tables } else { folios + leaves };
                    assert_eq!(c["locks"], locks, "{row}");
                }
            }
        }
    }

    #[test]
    fn a_line_has_all_figures() {
        let line = measure(Op::Swap, FolioSize::K64, 20 << 20, 1).expect("measured");
        assert!(line.us.iter().all(|us| us.median > 0.0) && line.reference.median > 0.0);
        let json = line.json();
        let keys = ["table", "row", "op", "policy", "before_us", "after_us", "ratio"];
        for key in keys.into_iter().chain(["reference_us", "counts", "published"]) {
            assert!(json.iter().all(|j| !j[key].is_null()), "{key}");
        }
    }
}
