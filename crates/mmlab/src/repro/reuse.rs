//! Patch series 003: write faults that reuse the whole exclusive large folio.
//!
//! 256 MiB are filled, shared by a fork and left alone by the child's exit; then
//! they are stored to in the series' patterns, under each policy. The hardware
//! is a walk per store: where the entry does not permit it, the fault handler is
//! called; where it does, it marks the entry dirty. Policies take turns on one machine
//! per folio size.
//!
//! What one fault costs is measured for itself, and gives each cell its cost in a
//! model: faults times the cost of a fault, plus entries written times the cost of
//! an entry. The model has none of the noise of the stores themselves. The adaptive
//! policy is told how the two compare. As layout alone moves the time of a fault by
//! a quarter, its instructions are shown beside it: those of `cargo xtask instructions`.

use crate::bed::{Bed, FolioSize};
use crate::cli::say;
use crate::report::{Spread, progress, right_aligned};
use mm_arch::{AccessKind, Arch, Entry, Level, VirtAddr};
use mm_fault::{
    FaultFlags, FaultOutcome, FaultPolicy, OrderMode, ReusePolicy, ThpMode, ThpPolicy,
    UnshareReuse, handle_fault,
};
use mm_folio::FrameBytes;
use mm_map::Advice;
use mm_pgtable::Step;
use mm_sim::{Host, Policy, Preset};
use mm_vma::{MmRead, Platform, VmaFlags};
use mm_x86::X86_64;
use serde_json::json;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

const BYTES: u64 = 256 << 20;
const PAGE: u64 = 4096;
const PAGES_PER_TABLE: usize = 512;
const THREADS: usize = 8;
const SIZES: [FolioSize; 3] = [FolioSize::K64, FolioSize::M1, FolioSize::M2Pte];
const POLICIES: [ReusePolicy; 4] =
    [ReusePolicy::Page, ReusePolicy::Block, ReusePolicy::Table, ReusePolicy::Adaptive];

const fn name(policy: ReusePolicy) -> &'static str {
    match policy {
        ReusePolicy::Page => "page",
        ReusePolicy::Block => "block",
        ReusePolicy::Table => "table",
        ReusePolicy::Adaptive => "adaptive",
        _ => "other",
    }
}

/// Which pages are stored to, in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pattern {
    /// A word to each page.
    Seq,
    /// The same in a fixed random order.
    Random,
    /// All bytes.
    Memset,
    /// A word to each 64K.
    Per64K,
    /// A word to each 2M.
    Per2M,
    /// The random order, shared out to [`THREADS`] threads.
    Threads,
}

impl Pattern {
    const ALL: [Pattern; 6] = [
        Pattern::Seq,
        Pattern::Random,
        Pattern::Memset,
        Pattern::Per64K,
        Pattern::Per2M,
        Pattern::Threads,
    ];
    const fn name(self) -> &'static str {
        match self {
            Pattern::Seq => "seq",
            Pattern::Random => "random",
            Pattern::Memset => "memset",
            Pattern::Per64K => "per-64k",
            Pattern::Per2M => "per-2m",
            Pattern::Threads => "threads",
        }
    }
    fn pages(self, nr: usize) -> Vec<u32> {
        let all = 0..nr as u32;
        match self {
            Pattern::Seq | Pattern::Memset => all.collect(),
            Pattern::Per64K => all.step_by(16).collect(),
            Pattern::Per2M => all.step_by(PAGES_PER_TABLE).collect(),
            Pattern::Random | Pattern::Threads => shuffled(all.collect()),
        }
    }
    /// Microseconds of the published runs, both boots.
    const fn published(self, size: FolioSize, policy: ReusePolicy) -> Option<[f64; 2]> {
        use {FolioSize as F, Pattern as P, ReusePolicy as R};
        match (self, size, policy) {
            (P::Seq, F::M1 | F::M2Pte, R::Block) => Some([5700.0, 5800.0]),
            (P::Seq, F::M1, R::Table) => Some([4100.0, 4000.0]),
            (P::Seq, F::M2Pte, R::Table) => Some([3900.0, 3900.0]),
            (P::Random, F::M2Pte, R::Block) => Some([7400.0, 7500.0]),
            (P::Random, F::M2Pte, R::Table) => Some([4900.0, 5100.0]),
            (P::Memset, F::M2Pte, R::Block) => Some([40200.0, 39400.0]),
            (P::Memset, F::M2Pte, R::Table) => Some([38100.0, 37200.0]),
            (P::Threads, F::M2Pte, R::Block) => Some([900.0, 1000.0]),
            (P::Threads, F::M2Pte, R::Table) => Some([700.0, 700.0]),
            (P::Per64K, F::M2Pte, R::Block) => Some([3300.0, 3300.0]),
            (P::Per64K, F::M2Pte, R::Table) => Some([1500.0, 1600.0]),
            (P::Per2M, F::M2Pte, R::Block) => Some([100.0, 100.0]),
            (P::Per2M, F::M2Pte, R::Table) => Some([1400.0, 1400.0]),
            _ => None,
        }
    }
}

/// A fixed random order (Fisher and Yates, Marsaglia).
fn shuffled(mut pages: Vec<u32>) -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..pages.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pages.swap(i, (state % (i as u64 + 1)) as usize);
    }
    pages
}

type Guard<'m> = MmRead<'m, Host<X86_64, ()>>;

impl Bed<()> {
    fn va(&self, page: u32) -> VirtAddr {
        self.range.start().add_units(u64::from(page), X86_64::PAGE_SHIFT)
    }
    /// Back to what a fork and the child's exit leave: all entries read-only, no
    /// page marked, and nothing known about the mapping.
    fn share_and_leave(&self) -> Result<(), String> {
        drop(self.process.fork().map_err(|e| e.to_string())?);
        let vmas = self.process.mm().read();
        for vma in vmas.overlapping(self.range) {
            vma.set_fault_hint(0);
        }
        Ok(())
    }
    /// How many pages have writable entries.
    fn writable(&self) -> usize {
        let vmas = self.process.mm().read();
        let in_table = |va| {
            let table = self.process.mm().tables().lock_table(vmas.stay(), va)?;
            Some((0..PAGES_PER_TABLE).filter(|i| table.pte(*i).is_writable(Level::Pte)).count())
        };
        let tables = (0..self.nr_pages() as u32).step_by(PAGES_PER_TABLE);
        tables.filter_map(|page| in_table(self.va(page))).sum()
    }
}

/// A store by a CPU: faults until the entry permits it, and counts the faults.
/// What is written is up to `write`.
#[inline]
fn store(
    bed: &Bed<()>,
    vmas: &Guard<'_>,
    policy: &FaultPolicy,
    va: VirtAddr,
    write: impl Fn(mm_arch::Pfn),
) -> Result<usize, String> {
    let tables = bed.process.mm().tables();
    for faults in 0..8 {
        {
            let guard = tables.pin();
            if let Step::Table(_, table) = guard.walk(va) {
                let e = table.pte(table.index_of(va));
                if e.is_present(Level::Pte) && e.is_writable(Level::Pte) {
                    if !e.is_dirty() {
                        table.mark_as_hardware(table.index_of(va), AccessKind::Write);
                    }
                    write(e.pfn(Level::Pte));
                    return Ok(faults);
                }
            }
        }
        fault(vmas, policy, va, FaultFlags::WRITE)?;
    }
    Err(format!("the store to {va} faults for ever"))
}
#[inline]
fn fault(
    vmas: &Guard<'_>,
    policy: &FaultPolicy,
    va: VirtAddr,
    flags: FaultFlags,
) -> Result<(), String> {
    match handle_fault(policy, vmas, va, flags) {
        FaultOutcome::Done { .. } => Ok(()),
        other => Err(format!("the fault at {va} ended in {other:?}")),
    }
}

/// What a pattern took: microseconds, faults, entries written.
struct Taken {
    us: f64,
    faults: usize,
    entries: usize,
}

fn run(
    bed: &Bed<()>,
    pattern: Pattern,
    pages: &[u32],
    policy: &FaultPolicy,
) -> Result<Taken, String> {
    bed.share_and_leave()?;
    let bytes = bed.machine.host().bytes();
    let part = |pages: &[u32]| -> Result<usize, String> {
        let vmas = bed.process.mm().read();
        let mut faults = 0;
        for &page in pages {
            faults += match pattern {
                Pattern::Memset => store(bed, &vmas, policy, bed.va(page), |p| bytes.zero(p, 1))?,
                _ => store(bed, &vmas, policy, bed.va(page), |_| ())?,
            };
        }
        Ok(faults)
    };
    let start = Instant::now();
    let faults = if pattern == Pattern::Threads {
        let (next, failed) = (AtomicUsize::new(0), std::sync::Mutex::new(None));
        let total = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..THREADS {
                s.spawn(|| {
                    let share = pages.len().div_ceil(THREADS);
                    let first = next.fetch_add(share, Ordering::Relaxed).min(pages.len());
                    let last = (first + share).min(pages.len());
                    match part(&pages[first..last]) {
                        Ok(faults) => {
                            total.fetch_add(faults, Ordering::Relaxed);
                        }
                        Err(e) => *failed.lock().unwrap_or_else(|e| e.into_inner()) = Some(e),
                    }
                });
            }
        });
        match failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(e) => return Err(e),
            None => total.into_inner(),
        }
    } else {
        part(pages)?
    };
    let us = start.elapsed().as_secs_f64() * 1e6;
    Ok(Taken { us, faults, entries: bed.writable() })
}

/// What single faults cost, nanoseconds.
struct Costs {
    /// A fault that makes its own entry writable.
    page: Spread,
    /// A fault that makes all entries of the folio writable.
    table: Spread,
    /// A fault that marks its own page and changes no entry.
    mark_page: Spread,
    /// A fault that marks all pages of the folio and changes no entry.
    mark_table: Spread,
    /// A read-modify-write of one entry, nothing of ours called.
    rmw: Spread,
    /// Entries of a folio.
    entries: f64,
}

impl Costs {
    /// Of writing an entry: scan, mark, take and write back.
    fn entry(&self) -> f64 {
        (self.table.median - self.page.median) / (self.entries - 1.0)
    }
    /// The part of it that looks and marks.
    fn scan(&self) -> f64 {
        (self.mark_table.median - self.mark_page.median) / (self.entries - 1.0)
    }
    /// A fault without its entries.
    fn fault(&self) -> f64 {
        self.page.median - self.entry()
    }
    /// What the adaptive policy is told.
    fn entries_per_fault(&self) -> u16 {
        (self.fault() / self.entry()).clamp(1.0, 100.0) as u16
    }
    fn model_us(&self, faults: usize, entries: usize) -> f64 {
        (faults as f64 * self.fault() + entries as f64 * self.entry()) / 1000.0
    }
}

/// Average nanoseconds of a fault on each of `pages`.
fn average(
    bed: &Bed<()>,
    policy: &FaultPolicy,
    flags: FaultFlags,
    pages: impl ExactSizeIterator<Item = u32>,
) -> Result<f64, String> {
    let vmas = bed.process.mm().read();
    let nr = pages.len();
    let start = Instant::now();
    for page in pages {
        fault(&vmas, policy, bed.va(page), flags)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / nr as f64)
}

fn costs(bed: &Bed<()>, size: FolioSize, rounds: usize) -> Result<Costs, String> {
    let base = bed.machine.host().policy().fault;
    let unshare = FaultPolicy { unshare: UnshareReuse::Table, ..base };
    let heads = || (0..bed.nr_pages() as u32).step_by(1 << size.order());
    let cells: Vec<AtomicU64> = (0..bed.nr_pages() as u64).map(AtomicU64::new).collect();
    let (write, read) = (FaultFlags::WRITE, FaultFlags::UNSHARE);
    let mut all = [const { Vec::new() }; 5];
    for round in 0..=rounds {
        let mut took = [0.0; 5];
        // One fault per folio in all of them: the caches see the same tables.
        for (ns, (policy, flags)) in took.iter_mut().zip([
            (base.with_reuse(ReusePolicy::Page), write),
            (base.with_reuse(ReusePolicy::Table), write),
            (base, read),
            (unshare, read),
        ]) {
            bed.share_and_leave()?;
            *ns = average(bed, &policy, flags, heads())?;
        }
        let start = Instant::now();
        for cell in &cells {
            cell.swap(0, Ordering::Relaxed);
        }
        took[4] = start.elapsed().as_secs_f64() * 1e9 / cells.len() as f64;
        if round > 0 {
            all.iter_mut().zip(took).for_each(|(all, ns)| all.push(ns));
        }
    }
    let [page, table, mark_page, mark_table, rmw] = all.map(Spread::of);
    let entries = f64::from(1u32 << size.order());
    Ok(Costs { page, table, mark_page, mark_table, rmw, entries })
}

fn thp(order: u32) -> ThpPolicy {
    let thp = ThpPolicy::new(9).with_global(ThpMode::Madvise).with_order(9, OrderMode::Never);
    thp.with_order(order, OrderMode::Madvise)
}

/// Nanoseconds of the fault that allocates a folio of `size` and zeroes it.
fn allocation(size: FolioSize) -> Result<f64, String> {
    let mut policy: Policy = Preset::Linux618.policy();
    policy.fault.thp = thp(size.order());
    let rights = VmaFlags::READ | VmaFlags::WRITE;
    let bed = Bed::<()>::new(BYTES / 4, None, Some(Advice::HugePage), rights, policy)?;
    let policy = bed.machine.host().policy().fault;
    let heads = (0..bed.nr_pages() as u32).step_by(1 << size.order());
    average(&bed, &policy, FaultFlags::WRITE, heads)
}
/// Nanoseconds of the fault that copies a single shared page.
fn copy() -> Result<f64, String> {
    let rights = VmaFlags::READ | VmaFlags::WRITE;
    let policy = Preset::Linux618.policy();
    let bed = Bed::<()>::new(BYTES / 16, Some(FolioSize::Small), None, rights, policy)?;
    let child = bed.process.fork().map_err(|e| e.to_string())?;
    let policy = bed.machine.host().policy().fault;
    let ns = average(&bed, &policy, FaultFlags::WRITE, 0..bed.nr_pages() as u32)?;
    drop(child);
    Ok(ns)
}

/// Instructions of one fault: `kind` as in `xtask/instructions.tsv`, where they are
/// counted and kept. `None` where there is no such line.
fn instructions(kind: &str, size: FolioSize) -> Option<f64> {
    let size = size.name().trim_end_matches("-pte");
    let name = format!("reuse {kind} {size}\t");
    let line = include_str!("../../../../xtask/instructions.tsv")
        .lines()
        .find(|l| l.starts_with(&name))?;
    line.split('\t').nth(6)?.parse().ok()
}

/// One measured cell.
struct Cell {
    size: FolioSize,
    pattern: Pattern,
    policy: ReusePolicy,
    time: Spread,
    faults: usize,
    entries: usize,
    model_us: f64,
}

fn cells(
    bed: &Bed<()>,
    size: FolioSize,
    pattern: Pattern,
    costs: &Costs,
    rounds: usize,
) -> Result<Vec<Cell>, String> {
    let mut base = bed.machine.host().policy().fault;
    base.entries_per_fault = costs.entries_per_fault();
    let pages = pattern.pages(bed.nr_pages());
    let mut all = POLICIES.map(|policy| (policy, Vec::new(), Vec::new(), Vec::new()));
    for round in 0..=rounds {
        for (policy, us, faults, entries) in &mut all {
            let taken = run(bed, pattern, &pages, &base.with_reuse(*policy))?;
            if round > 0 {
                us.push(taken.us);
                faults.push(taken.faults as f64);
                entries.push(taken.entries as f64);
            }
        }
    }
    Ok(all
        .into_iter()
        .map(|(policy, us, faults, entries)| {
            // Threads race for faults: the median of those as well.
            let faults = Spread::of(faults).median as usize;
            let entries = Spread::of(entries).median as usize;
            let model_us = costs.model_us(faults, entries);
            Cell { size, pattern, policy, time: Spread::of(us), faults, entries, model_us }
        })
        .collect())
}

fn print_costs_json(size: FolioSize, costs: &Costs, allocation_ns: f64, copy_ns: f64) {
    let published = match size {
        FolioSize::M1 => json!({"widened": [5400, 5700], "allocation": [63000, 68000]}),
        FolioSize::M2Pte => json!({"widened": [10000, 10500], "allocation": [126000]}),
        _ => json!({}),
    };
    say(json!({
        "table": "reuse-costs",
        "row": size.name(),
        "reuse_ns": costs.page.median,
        "widened_ns": costs.table.median,
        "allocation_ns": allocation_ns,
        "copy_ns": copy_ns,
        "entries_per_fault": costs.entries_per_fault(),
        "instructions": {
            "reuse": instructions("page", size),
            "widened": instructions("table", size),
            "allocation": instructions("allocate", size),
            "copy": instructions("copy", FolioSize::Small),
        },
        "entry_ns": costs.entry(),
        "entry_scan_ns": costs.scan(),
        "entry_commit_ns": costs.entry() - costs.scan(),
        "fault_ns": costs.fault(),
        "reference_rmw_ns": costs.rmw.median,
        "widened_per_reference": costs.table.median
            / (costs.entries * costs.rmw.median + costs.fault()),
        "published_ns": published,
        "published_reuse_ns": 420,
        "published_copy_ns": 1500,
    }));
}

fn print_json(cell: &Cell) {
    let published = cell.pattern.published(cell.size, cell.policy);
    say(json!({
        "table": "reuse",
        "row": cell.size.name(),
        "pattern": cell.pattern.name(),
        "policy": name(cell.policy),
        "time_us": cell.time.median,
        "time_spread_us": [cell.time.low, cell.time.high],
        "faults": cell.faults,
        "entries_written": cell.entries,
        "model_cost": cell.model_us,
        "published_us": published.map_or(Vec::new(), Vec::from),
    }));
}

fn print_tables(costs: &[(FolioSize, Costs, f64)], copy_ns: f64, cells: &[Cell]) {
    say("One fault, ns, after fork and the child's exit (patch series 003). Published: reuse 420,");
    say(
        "widened 5,400-5,700 (1m) and 10,000-10,500 (2m-pte), copy 1,500. `x rmw`: multiple of one",
    );
    say("read-modify-write per entry, same run, plus the fault.");
    let kind =
        |kind, size| instructions(kind, size).map_or_else(String::new, |n| format!("{n:.0}"));
    let row = |(size, c, allocation): &(FolioSize, Costs, f64)| {
        let ratio = c.table.median / (c.entries * c.rmw.median + c.fault());
        vec![
            size.name().to_owned(),
            c.page.to_string(),
            c.table.to_string(),
            format!("{allocation:.0}"),
            format!("{copy_ns:.0}"),
            format!("{:.1}", c.scan()),
            format!("{:.1}", c.entry() - c.scan()),
            format!("{:.0}", c.fault() / c.entry()),
            format!("{ratio:.2}"),
            kind("page", *size),
            kind("table", *size),
        ]
    };
    let header = [
        "folio",
        "reuse",
        "widened",
        "allocation",
        "4K copy",
        "scan/entry",
        "commit/entry",
        "fault/entry",
        "x rmw",
        "reuse, instr.",
        "widened, instr.",
    ];
    say(right_aligned(&header, 1, costs.iter().map(row).collect()));
    say(
        "256 MiB, medians in µs (10th..90th percentile). Model: faults and entries at the costs above.",
    );
    let row = |cell: &Cell| {
        let published = cell.pattern.published(cell.size, cell.policy);
        vec![
            cell.size.name().to_owned(),
            cell.pattern.name().to_owned(),
            name(cell.policy).to_owned(),
            cell.time.to_string(),
            published.map_or_else(String::new, |[a, b]| format!("{a:.0}/{b:.0}")),
            cell.faults.to_string(),
            cell.entries.to_string(),
            format!("{:.0}", cell.model_us),
        ]
    };
    let header =
        ["folio", "pattern", "policy", "µs", "published µs", "faults", "entries", "model µs"];
    say(right_aligned(&header, 3, cells.iter().map(row).collect()));
}

/// Measures and prints the tables.
pub fn main(rounds: usize, as_json: bool) -> Result<(), String> {
    let bar = progress("reuse", (SIZES.len() * (1 + Pattern::ALL.len())) as u64);
    let copy_ns = copy()?;
    let (mut all_costs, mut all_cells) = (Vec::new(), Vec::new());
    for size in SIZES {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        let bed = Bed::new(BYTES, Some(size), None, rights, Preset::Linux618.policy())?;
        debug_assert_eq!(bed.range.bytes() % PAGE, 0);
        let costs = costs(&bed, size, rounds)?;
        let allocation_ns = allocation(size)?;
        if as_json {
            print_costs_json(size, &costs, allocation_ns, copy_ns);
        }
        bar.inc(1);
        for pattern in Pattern::ALL {
            let cells = cells(&bed, size, pattern, &costs, rounds)?;
            if as_json {
                cells.iter().for_each(print_json);
            }
            all_cells.extend(cells);
            bar.inc(1);
        }
        all_costs.push((size, costs, allocation_ns));
    }
    bar.finish_and_clear();
    if !as_json {
        print_tables(&all_costs, copy_ns, &all_cells);
    }
    Ok(())
}
