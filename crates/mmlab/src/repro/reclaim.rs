//! Patch series 004: unmapping of folios by reclaim.
//!
//! A region is mapped, and 80 % of its folios are unmapped as reclaim does it: locked,
//! unmapped everywhere, flushes put off to the end. They stay in memory, so that they can
//! be mapped again for the next turn; what is freed in lazily freed memory is made anew.
//! Policies take turns on one machine per folio size.
//!
//! The reference loop is one read-modify-write per entry. Counts come from a small machine
//! of its own, whose unmapped folios must be as many as the counts say.

use crate::bed::{FolioSize, check_memory, memory_for};
use crate::cli::say;
use crate::report::{Spread, progress, right_aligned};
use mm_arch::{Arch, Entry, Level, VirtAddr, VirtRange};
use mm_fault::{FaultFlags, FaultOutcome, OrderMode, ShmemMode, ThpMode, ThpPolicy, handle_fault};
use mm_folio::{Folio, FolioFlags, Get};
use mm_map::{Advice, UffdMode, WpChange};
use mm_pgtable::Step;
use mm_reclaim::{FlushBatch, UnmapFlags, UnmapPolicy, Unmapped, try_to_unmap};
use mm_sim::{
    EventCounts, Events, File, Host, Machine, MachineConfig, Object, Preset, Process, Shmem,
    ShmemKind,
};
use mm_vma::{Platform, VmaFlags};
use mm_x86::X86_64;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const BASE: u64 = 0x1000_0000_0000;
const COUNTED_BYTES: u64 = 32 << 20;
/// The folios that are reclaimed, of ten.
const OF_TEN: usize = 8;
const POLICIES: [UnmapPolicy; 4] =
    [UnmapPolicy::Page, UnmapPolicy::Lazyfree, UnmapPolicy::File, UnmapPolicy::All];
const SIZES: [FolioSize; 3] = [FolioSize::Small, FolioSize::K64, FolioSize::M1];
/// Seconds for 8 of 10 GiB, before and after, as published; the folio size was not.
const PUBLISHED_S: [f64; 2] = [1.018, 0.249];
const FLAGS: UnmapFlags =
    UnmapFlags::SPLIT_PMD.union(UnmapFlags::SYNC).union(UnmapFlags::PUT_OFF_FLUSH);

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
    /// Shared memory that userfaultfd write-protects.
    UffdWp,
}

impl Op {
    const ALL: [Op; 3] = [Op::File, Op::Lazyfree, Op::UffdWp];
    const fn name(self) -> &'static str {
        match self {
            Op::File => "file",
            Op::Lazyfree => "lazyfree",
            Op::UffdWp => "uffd-wp",
        }
    }
}

/// A process with a region in folios of one size.
struct Region<O: Events> {
    // Dropped in this order: a process goes before its machine.
    process: Process<X86_64, O>,
    object: Option<Arc<dyn Object<X86_64, O>>>,
    machine: Machine<X86_64, O>,
    range: VirtRange,
    op: Op,
    order: u32,
}

impl<O: Events> Region<O> {
    fn new(op: Op, size: FolioSize, bytes: u64) -> Result<Self, String> {
        let order = size.order();
        let mut policy = Preset::Linux618.policy();
        let thp = ThpPolicy::new(9).with_global(ThpMode::Madvise).with_order(9, OrderMode::Never);
        policy.fault.thp = thp.with_order(order, OrderMode::Madvise);
        let memory = memory_for(bytes);
        check_memory(memory)?;
        let config = MachineConfig { bytes: memory, poison: false, ..MachineConfig::default() };
        let machine = Machine::<X86_64, O>::new(config, policy).map_err(|e| e.to_string())?;
        let process = machine.spawn().map_err(|e| e.to_string())?;
        let range = VirtRange::new(VirtAddr::new(BASE), bytes).map_err(|e| e.to_string())?;
        let nr = range.nr(X86_64::PAGE_SHIFT);
        let host = machine.host();
        let object: Option<Arc<dyn Object<X86_64, O>>> = match op {
            Op::File => Some(File::new(host, nr)),
            Op::UffdWp => Some(Shmem::new(host, ShmemKind::Mounted(ShmemMode::Always), nr)),
            Op::Lazyfree => None,
        };
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        match &object {
            Some(object) => {
                let per = 1u64 << order;
                for first in (0..nr).step_by(per as usize) {
                    object.write(first, per, &|_, _| 0).map_err(|e| e.to_string())?;
                }
                let shared = rights | VmaFlags::SHARED;
                process.mmap_object(range, shared, object.clone(), 0).map_err(|e| e.to_string())?;
            }
            None => {
                process.mmap_anon(range, rights).map_err(|e| e.to_string())?;
                process.madvise(range, Advice::HugePage).map_err(|e| e.to_string())?;
            }
        }
        if op == Op::UffdWp {
            process.uffd_register(range, UffdMode::WP).map_err(|e| e.to_string())?;
        }
        let region = Region { process, object, machine, range, op, order };
        region.map()?;
        if op == Op::UffdWp {
            region.process.uffd_wp(range, WpChange::Protect).map_err(|e| e.to_string())?;
        }
        region.check()?;
        Ok(region)
    }
    fn va(&self, page: usize) -> VirtAddr {
        self.range.start().add_units(page as u64, X86_64::PAGE_SHIFT)
    }
    fn nr_pages(&self) -> usize {
        self.range.nr(X86_64::PAGE_SHIFT) as usize
    }
    fn nr_folios(&self) -> usize {
        self.nr_pages() >> self.order
    }
    /// The frame that a page is mapped to.
    fn frame(&self, page: usize) -> Option<mm_arch::Pfn> {
        let (va, guard) = (self.va(page), self.process.mm().tables().pin());
        match guard.walk(va) {
            Step::Table(_, table) => {
                let e = table.pte(table.index_of(va));
                e.is_leaf(Level::Pte).then(|| e.pfn(Level::Pte))
            }
            Step::Leaf(slot) => {
                let in_leaf = page as u64 & ((1 << X86_64::order(Level::Pmd)) - 1);
                Some(slot.entry().pfn(Level::Pmd).add(in_leaf))
            }
            _ => None,
        }
    }
    /// Maps what is not mapped, page by page or as a fault pleases.
    fn map(&self) -> Result<(), String> {
        let policy = self.machine.host().policy().fault;
        let flags = if self.op == Op::Lazyfree { FaultFlags::WRITE } else { FaultFlags::empty() };
        let vmas = self.process.mm().read();
        for page in 0..self.nr_pages() {
            if self.frame(page).is_some() {
                continue;
            }
            match handle_fault(&policy, &vmas, self.va(page), flags) {
                FaultOutcome::Done { .. } => {}
                other => return Err(format!("the fault at {} ended in {other:?}", self.va(page))),
            }
        }
        drop(vmas);
        if self.op == Op::Lazyfree {
            self.process.madvise_free(self.range).map_err(|e| e.to_string())?;
        }
        // What is in the cache is clean, as behind a write to a device.
        if self.op == Op::File {
            for n in 0..self.nr_folios() {
                self.folio(n)?.clear_flag(FolioFlags::DIRTY);
            }
        }
        Ok(())
    }
    fn folio(&self, n: usize) -> Result<Folio<'_, Host<X86_64, O>>, String> {
        let pfn = self.frame(n << self.order).ok_or("a page is not mapped")?;
        Ok(self.machine.host().memmap().folio(pfn))
    }
    /// The region is what it should be: folios of one size, aligned.
    fn check(&self) -> Result<(), String> {
        let good = |n| self.folio(n).is_ok_and(|f| f.order() == self.order);
        let wrong = (0..self.nr_folios()).find(|n| !good(*n));
        wrong.map_or(Ok(()), |n| Err(format!("folio {n} is not of order {}", self.order)))
    }
    /// The folios that are reclaimed: eight of ten, all over the region.
    fn chosen(&self) -> impl Iterator<Item = usize> {
        (0..self.nr_folios()).filter(|n| n % 10 < OF_TEN)
    }

    /// Unmaps the chosen folios; microseconds.
    fn unmap(&self, policy: UnmapPolicy) -> Result<f64, String> {
        let host = self.machine.host();
        let mut folios = Vec::new();
        for n in self.chosen() {
            folios.push(self.folio(n)?.grab::<Get>(1).map_err(|e| e.to_string())?);
        }
        let mut flushes = FlushBatch::new(host);
        let start = Instant::now();
        let mut kept = 0;
        for own in &folios {
            let locked = own.folio().lock();
            kept +=
                usize::from(try_to_unmap(policy, &locked, FLAGS, &mut flushes) != Unmapped::All);
        }
        flushes.flush();
        let us = start.elapsed().as_secs_f64() * 1e6;
        if kept > 0 {
            return Err(format!("{kept} folios stayed mapped"));
        }
        drop(folios);
        Ok(us)
    }
}

/// What one policy does, counted.
fn counts(op: Op, size: FolioSize, policy: UnmapPolicy) -> Result<Value, String> {
    let region = Region::<EventCounts>::new(op, size, COUNTED_BYTES)?;
    let host = region.machine.host();
    let events = host.events().ok_or("nothing is counted")?;
    let before = (events.unmap_runs.get(), events.entries_unmapped.get(), events.pmd_split.get());
    let flushes = || {
        let f = host.cpus().flushes();
        f.ranges.get() + f.spaces.get()
    };
    let flushed = flushes();
    region.unmap(policy)?;
    let (runs, entries) =
        (events.unmap_runs.get() - before.0, events.entries_unmapped.get() - before.1);
    let folios = region.chosen().count() as u64;
    let leaves = events.pmd_split.get() - before.2;
    // A leaf of a file is taken away as a whole.
    let expected = if leaves > 0 && entries == 0 { 0 } else { folios << size.order() };
    if entries != expected {
        return Err(format!("{entries} entries were unmapped, not {expected}"));
    }
    Ok(json!({
        "folios": folios,
        "entries": entries,
        "leaves": leaves,
        "clear_calls": runs,
        "rmap_removals": runs,
        "puts": runs,
        "flushes": flushes() - flushed,
        "runs_per_folio": runs as f64 / folios as f64,
    }))
}

/// A line: one size, one kind of memory, all policies.
struct Line {
    size: FolioSize,
    op: Op,
    us: [Spread; POLICIES.len()],
    reference: Spread,
    counts: Vec<Value>,
}

fn measure(op: Op, size: FolioSize, bytes: u64, rounds: usize) -> Result<Line, String> {
    let region = Region::<()>::new(op, size, bytes)?;
    let entries = region.chosen().count() << size.order();
    let cells: Vec<AtomicU64> = (0..entries as u64).map(AtomicU64::new).collect();
    let mut all = [const { Vec::new() }; POLICIES.len()];
    let mut reference = Vec::new();
    for round in 0..=rounds {
        for (policy, us) in POLICIES.into_iter().zip(&mut all) {
            let took = region.unmap(policy)?;
            region.map()?;
            if round > 0 {
                us.push(took);
            }
        }
        let start = Instant::now();
        for cell in &cells {
            cell.swap(0, Ordering::Relaxed);
        }
        if round > 0 {
            reference.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    region.check()?;
    drop(region.object.clone());
    let counts = POLICIES.into_iter().map(|p| counts(op, size, p)).collect::<Result<_, _>>()?;
    Ok(Line { size, op, us: all.map(Spread::of), reference: Spread::of(reference), counts })
}

fn print_json(line: &Line) {
    let before = line.us[0].median;
    for ((policy, us), counts) in POLICIES.into_iter().zip(line.us).zip(&line.counts) {
        say(json!({
            "table": "reclaim",
            "row": line.size.name(),
            "op": line.op.name(),
            "policy": name(policy),
            "before_us": before,
            "after_us": us.median,
            "after_spread_us": [us.low, us.high],
            "ratio": before / us.median,
            "reference_us": line.reference.median,
            "counts": counts,
            "published": if line.op == Op::File { json!(PUBLISHED_S) } else { json!([]) },
        }));
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
        "`/loop`: multiple of one read-modify-write per entry, same run; `runs`: clear calls, removals of",
    );
    say("mappings and puts of references, each, per folio.");
    let row = |line: &Line| {
        let cells = POLICIES.into_iter().zip(line.us).zip(&line.counts).map(|((policy, us), c)| {
            vec![
                line.size.name().to_owned(),
                line.op.name().to_owned(),
                name(policy).to_owned(),
                us.to_string(),
                format!("{:.2}", line.us[0].median / us.median),
                format!("{:.2}", us.median / line.reference.median),
                format!("{:.0}", c["runs_per_folio"].as_f64().unwrap_or(f64::NAN)),
                c["flushes"].to_string(),
            ]
        });
        cells.collect::<Vec<_>>()
    };
    let header = ["folio", "op", "policy", "µs", "ratio", "/loop", "runs", "flushes"];
    say(right_aligned(&header, 3, lines.iter().flat_map(row).collect()));
}

/// Measures and prints the table.
pub fn main(rounds: usize, bytes: u64, as_json: bool) -> Result<(), String> {
    let bar = progress("reclaim", (SIZES.len() * Op::ALL.len()) as u64);
    let mut lines = Vec::new();
    for op in Op::ALL {
        for size in SIZES {
            let line = measure(op, size, bytes, rounds)?;
            if as_json {
                print_json(&line);
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
