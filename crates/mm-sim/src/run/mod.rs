//! Runs scenarios: one operation at a time, on one machine.

mod access;
mod blocks;
mod error;
mod fail_each;
mod files;
mod mapping;
mod needs;
mod observe;
mod pins;
mod tables;

use crate::audit::{Shadow, ShadowPin};
use crate::device::Object;
use crate::events::Events;
use crate::scan::stored_entry;
use crate::{
    AuditViolation, EventCounts, Host, Machine, MachineConfig, Pinned, Policy, Process,
    SwapOffError, audit, heap, leaks,
};
use mm_arch::explain::Explain;
use mm_arch::{Arch, VirtAddr, VirtRange};
use mm_fault::{OrderMode, ThpMode};
use mm_folio::MAX_ORDERS;
use mm_map::OldPlace;
use mm_scenario::observe::{
    Events as UserFaults, FaultLog, History, Note, Record, StatKey, Stats, TableDump, Vmas,
};
use mm_scenario::{
    FileId, FolioSize, Line, Op, PinId, ProcId, Range, RegionId, Scenario, Target, ThpPolicy,
    Windows,
};
use mm_vma::Platform;
use std::collections::BTreeMap;
use std::sync::Arc;
use tables::Describe;

pub use blocks::BlockCounts;
pub use error::RunError;
pub use fail_each::{Absorbed, FailEachError, Memory, fail_each};
pub use needs::Feature;
pub use observe::capabilities;

/// How a scenario is run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// The machine.
    pub machine: MachineConfig,
    /// Audit the machine after every operation, and look for leaks at the end.
    pub audit: bool,
    /// Makes the allocation after this many fail, of folios and page tables
    /// alike, counted from the first line on.
    pub fail_after: Option<u64>,
    /// The same of the heap, in a program whose allocator is [`FailingHeap`](crate::FailingHeap):
    /// what may be refused is counted, in the first process's making and in operations.
    pub fail_heap_after: Option<u64>,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            machine: MachineConfig::default(),
            audit: cfg!(debug_assertions),
            fail_after: None,
            fail_heap_after: None,
        }
    }
}

/// Runs `scenario` on a new machine and hands every record to `print` as soon as
/// it is made.
///
/// # Errors
///
/// If the format lacks what the scenario needs, the machine cannot be built, an
/// operation asks for more than the machine has, or an audit finds something. What was printed before stands.
pub fn run<A: Arch>(
    scenario: &Scenario,
    policy: &Policy,
    options: &RunOptions,
    print: &mut dyn FnMut(Record),
) -> Result<(), RunError> {
    run_counting::<A>(scenario, policy, options, print).map(|_| ())
}

/// As [`run`], and counts what contiguous blocks did.
///
/// # Errors
///
/// As [`run`].
pub fn run_counting<A: Arch>(
    scenario: &Scenario,
    policy: &Policy,
    options: &RunOptions,
    print: &mut dyn FnMut(Record),
) -> Result<BlockCounts, RunError> {
    run_machine::<A>(scenario, policy, options, None, &mut |printed| {
        if let Printed::Record(record) = printed {
            print(record);
        }
    })
    .map(|ran| ran.blocks)
}

/// As [`run`], but hands the entries behind every `observe` to `print`, and nothing else.
///
/// # Errors
///
/// As [`run`].
pub fn run_dumping<A: Explain>(
    scenario: &Scenario,
    policy: &Policy,
    options: &RunOptions,
    print: &mut dyn FnMut(TableDump),
) -> Result<(), RunError> {
    let describe = Some(tables::describe::<A> as Describe<A>);
    run_machine::<A>(scenario, policy, options, describe, &mut |printed| {
        if let Printed::Tables(dump) = printed {
            print(dump);
        }
    })
    .map(|_| ())
}

fn run_machine<A: Arch>(
    scenario: &Scenario,
    policy: &Policy,
    options: &RunOptions,
    describe: Option<Describe<A>>,
    print: &mut dyn FnMut(Printed),
) -> Result<Ran, RunError> {
    needs::check::<A>(scenario)?;
    let machine = Machine::<A>::new(options.machine, policy.clone())?;
    let mut runner = Runner::new(machine, scenario, options.audit);
    runner.describe = describe;
    runner.baseline();
    // Goldens count what the first files take.
    runner.stats = observe::counters(runner.host());
    let before = runner.host().frames().nr_asked();
    runner.host().frames().fail_after(options.fail_after);
    heap::fail_after(options.fail_heap_after);
    for line in scenario.setup() {
        runner.step(line, print)?;
    }
    if let Err(e) = runner.start(scenario.body().first().or(scenario.ops.last())) {
        runner.finish()?;
        return Err(e);
    }
    let mut blocks = blocks::Watch::default();
    for line in scenario.body() {
        runner.step(line, print)?;
        if A::CONT > 1 {
            blocks.look(&runner);
        }
    }
    let ran = Ran {
        blocks: blocks.counts(&runner),
        allocations: Allocations {
            frames: runner.host().frames().nr_asked() - before,
            heap: heap::nr_asked(),
        },
        unrefusable: heap::unrefusable(),
        failed_in: runner.failed_in,
    };
    runner.finish()?;
    Ok(ran)
}

/// What a run came to.
struct Ran {
    blocks: BlockCounts,
    /// Allocations that were asked for.
    allocations: Allocations,
    /// An allocation of the heap that a library crate makes and cannot be refused.
    unrefusable: Option<&'static str>,
    /// The line whose allocation was made to fail.
    failed_in: Option<u32>,
}

/// Allocations that can be made to fail.
struct Allocations {
    frames: u64,
    heap: u64,
}

/// What a run prints.
enum Printed {
    /// What an operation printed.
    Record(Record),
    /// The entries behind an observation.
    Tables(TableDump),
}

/// A process and what the runner keeps of it.
struct Proc<A: Arch, O: Events> {
    process: Process<A, O>,
    faults: FaultLog,
    pins: BTreeMap<PinId, Held<A, O>>,
}

/// A lasting pin or reference.
struct Held<A: Arch, O: Events> {
    pages: Pinned<A, O>,
    /// What the pages must read as; only pins are sure of it.
    shadow: Option<ShadowPin>,
}

/// What an operation came to.
enum Outcome {
    /// Nothing to print.
    Silent,
    /// A record.
    Printed(Record),
    /// A record, and the entries behind it.
    Dumped(Record, TableDump),
}

type Step = Result<Outcome, RunError>;

struct Runner<'s, A: Arch, O: Events = EventCounts> {
    // Before the machine, so that processes end first.
    procs: BTreeMap<ProcId, Proc<A, O>>,
    files: BTreeMap<FileId, Arc<dyn Object<A, O>>>,
    machine: Machine<A, O>,
    scenario: &'s Scenario,
    history: History,
    stats: BTreeMap<StatKey, i64>,
    shadow: Shadow,
    audit: bool,
    /// Describes entries, if observations are dumped.
    describe: Option<Describe<A>>,
    /// The line whose allocation was made to fail.
    failed_in: Option<u32>,
}

impl<'s, A: Arch, O: Events> Runner<'s, A, O> {
    fn new(machine: Machine<A, O>, scenario: &'s Scenario, audit: bool) -> Self {
        Runner {
            procs: BTreeMap::new(),
            files: BTreeMap::new(),
            machine,
            scenario,
            history: History::default(),
            stats: BTreeMap::new(),
            shadow: Shadow::default(),
            audit,
            describe: None,
            failed_in: None,
        }
    }
    fn host(&self) -> &Host<A, O> {
        self.machine.host()
    }

    /// The settings that the language starts from: "madvise" on top, every size
    /// off, the huge zero page on.
    fn baseline(&self) {
        self.host().set_policy(|p| {
            let off = (0..MAX_ORDERS as u32)
                .fold(p.fault.thp, |thp, order| thp.with_order(order, OrderMode::Never));
            p.fault.thp = off.with_global(ThpMode::Madvise).with_zero_page(true);
        });
    }
    /// Makes `p0`.
    fn start(&mut self, at: Option<&Line>) -> Result<(), RunError> {
        let process = heap::watched(|| self.machine.spawn()).map_err(|e| self.no_memory(at, &e))?;
        self.insert(ProcId::FIRST, process);
        Ok(())
    }
    fn insert(&mut self, id: ProcId, process: Process<A, O>) {
        let (faults, pins) = (FaultLog::default(), BTreeMap::new());
        self.procs.insert(id, Proc { process, faults, pins });
    }
    fn no_memory(&self, at: Option<&Line>, why: &dyn std::fmt::Display) -> RunError {
        RunError::NoMemory {
            file: self.scenario.name.clone(),
            line: at.map_or(0, |l| l.line_no),
            why: why.to_string(),
        }
    }

    /// Does one operation, then audits.
    fn step(&mut self, line: &Line, print: &mut dyn FnMut(Printed)) -> Result<(), RunError> {
        let pending = self.failure_is_pending();
        let outcome = heap::watched(|| self.operation(line))?;
        if pending && !self.failure_is_pending() {
            self.failed_in = Some(line.line_no);
        }
        self.machine.settle();
        self.collect_faults();
        self.history.note(&line.op);
        match outcome {
            Outcome::Silent => {}
            Outcome::Printed(record) => print(Printed::Record(record)),
            Outcome::Dumped(record, dump) => {
                print(Printed::Record(record));
                print(Printed::Tables(dump));
            }
        }
        if self.audit {
            self.check(Some(line), self.violations())?;
        }
        Ok(())
    }
    fn failure_is_pending(&self) -> bool {
        !self.host().frames().failure_is_spent() || !heap::failure_is_spent()
    }
    fn violations(&self) -> Vec<AuditViolation> {
        let pins = self.procs.values().flat_map(|p| p.pins.values().map(|h| &h.pages));
        let mut found = audit(&self.machine, self.procs.values().map(|p| &p.process), pins);
        found.extend(self.shadow.audit_objects(&self.machine));
        for (id, proc) in &self.procs {
            found.extend(self.shadow.audit(id.index() as u32, &proc.process));
            let held = proc.pins.values().filter_map(|h| Some((&h.pages, h.shadow.as_ref()?)));
            for (pages, shadow) in held {
                found.extend(pins::audit(id.index() as u32, pages, shadow));
            }
        }
        found
    }
    fn check(&self, at: Option<&Line>, found: Vec<AuditViolation>) -> Result<(), RunError> {
        if found.is_empty() {
            return Ok(());
        }
        Err(RunError::Audit {
            file: self.scenario.name.clone(),
            line: at.map_or(0, |l| l.line_no),
            op: at.map_or("the end", |l| l.op.name()),
            found,
        })
    }
    /// Processes left exit in reverse order.
    fn finish(mut self) -> Result<(), RunError> {
        while let Some((_, proc)) = self.procs.pop_last() {
            drop(proc.pins);
            proc.process.exit();
        }
        self.files.clear();
        self.machine.settle();
        if self.audit { self.check(None, leaks(&self.machine)) } else { Ok(()) }
    }

    /// Sorts the faults of each process into its log, by region.
    fn collect_faults(&mut self) {
        for proc in self.procs.values_mut() {
            let records = proc.process.take_faults();
            for fault in records.cpu {
                // Outside of every window there is nothing to name it by.
                let Some((region, page)) = region_of::<A>(self.scenario, fault.va) else {
                    continue;
                };
                if fault.major {
                    proc.faults.major(region, page);
                } else {
                    proc.faults.minor(region, page);
                }
            }
            (0..records.gup_minor).for_each(|_| proc.faults.gup_minor());
            (0..records.gup_major).for_each(|_| proc.faults.gup_major());
        }
    }

    /// The address of a page of a region.
    fn address(&self, region: RegionId, page: u64) -> VirtAddr {
        VirtAddr::new(windows::<A>().address(self.scenario.region(region), page))
    }
    /// The addresses of a range, its stride aside.
    fn span(&self, range: Range) -> Result<VirtRange, RunError> {
        VirtRange::units(self.address(range.region, range.first), range.pages, A::PAGE_SHIFT)
            .map_err(|e| RunError::Internal(e.to_string()))
    }
    fn proc(&self, id: ProcId) -> Result<&Proc<A, O>, RunError> {
        // The parser has seen to it that the process lives.
        self.procs.get(&id).ok_or_else(|| RunError::Internal(format!("no process {id:?}")))
    }
    fn proc_mut(&mut self, id: ProcId) -> Result<&mut Proc<A, O>, RunError> {
        self.procs.get_mut(&id).ok_or_else(|| RunError::Internal(format!("no process {id:?}")))
    }
    /// A record that the kernel refused.
    fn refused(&self, line: &Line, errno: &str) -> Outcome {
        Outcome::Printed(Record::refused(self.scenario, line, errno))
    }
    /// Nothing, or the refusal.
    fn done<E>(&self, line: &Line, r: Result<(), E>, errno: impl Fn(E) -> &'static str) -> Step {
        Ok(match r {
            Ok(()) => Outcome::Silent,
            Err(e) => self.refused(line, errno(e)),
        })
    }

    fn operation(&mut self, line: &Line) -> Step {
        if line.op.proc().is_some_and(|p| !self.procs.contains_key(&p)) {
            // The fork that should have made it was refused.
            return Ok(self.refused(line, "ESRCH"));
        }
        if line.op.file().is_some_and(|f| !self.files.contains_key(&f)) {
            // There was no memory to make it.
            return Ok(self.refused(line, "EBADF"));
        }
        match &line.op {
            Op::Thp { size, policy } => Ok(self.thp(*size, *policy)),
            Op::Fork { child, parent } => self.fork(line, *child, *parent),
            Op::Exit { proc } => self.exit(*proc),
            Op::Mmap { .. } => self.mmap(line),
            Op::Munmap { proc, range } => self.munmap(line, *proc, *range),
            Op::Mprotect { proc, range, prot } => self.mprotect(line, *proc, *range, *prot),
            Op::Madvise { proc, range, advice } => self.madvise(line, *proc, *range, *advice),
            Op::MremapMove { proc, range, to, to_page, dontunmap } => {
                let old = if *dontunmap { OldPlace::Keep } else { OldPlace::Unmap };
                self.mremap_move(line, *proc, *range, self.address(*to, *to_page), old)
            }
            Op::MremapResize { proc, region, pages } => {
                self.mremap_resize(line, *proc, *region, *pages)
            }
            Op::Read { proc, range, order } => self.read(line, *proc, *range, *order),
            Op::Write { proc, range, value, order } => {
                self.write(line, *proc, *range, *order, access::tag(*value))
            }
            Op::Fill { proc, range, value, order } => {
                self.write(line, *proc, *range, *order, access::fill(*value))
            }
            Op::Content { proc, range } => self.content(line, *proc, *range),
            Op::Expect { proc, range, value, fill } => {
                self.expect(line, *proc, *range, *value, *fill)
            }
            Op::Peek { proc, range } => self.peek(line, *proc, *range),
            Op::Poke { proc, range, value } => self.poke(line, *proc, *range, *value),
            Op::Pvread { proc, range } => self.pvread(line, *proc, *range),
            Op::Pvwrite { proc, range, value } => self.pvwrite(line, *proc, *range, *value),
            Op::Pin { proc, range, pin, method } => self.pin(line, *proc, *range, *pin, *method),
            Op::Unpin { proc, pin } => self.unpin(*proc, *pin),
            Op::Pinread { proc, pin } => self.pinread(line, *proc, *pin),
            Op::Pinwrite { proc, pin, value } => self.pinwrite(*proc, *pin, *value),
            Op::Note { text } => {
                Ok(Outcome::Printed(Record::new(line, Note { text: text.clone() })))
            }
            Op::Observe { targets } => self.observe(line, targets),
            Op::Uffd { proc, range, action } => self.uffd(line, *proc, *range, *action),
            Op::ClearRefs { proc } => self.clear_refs(line, *proc),
            Op::Events { proc } => self.user_faults(line, *proc),
            Op::Faults { proc } => self.faults(line, *proc),
            Op::Vmas { proc, region } => self.vmas(line, *proc, *region),
            Op::Stats => Ok(self.take_stats(line)),
            Op::Shmem { size, policy } => Ok(self.shmem(*size, *policy)),
            Op::File { file, backing, pages, fill, bulk } => {
                self.file(line, *file, *backing, *pages, *fill, *bulk)
            }
            Op::Fsync { file } => self.fsync(line, *file),
            Op::Drop { file } => self.drop_cache(*file),
            Op::Truncate { file, pages } => self.truncate(*file, *pages),
            Op::Punch { file, first_page, pages } => self.punch(*file, *first_page, *pages),
            Op::Fcontent { file } => self.fcontent(line, *file),
            Op::Dread { proc, range, file, file_page } => {
                self.dread(line, *proc, *range, *file, *file_page)
            }
            Op::Dwrite { proc, range, file, file_page } => {
                self.dwrite(line, *proc, *range, *file, *file_page)
            }
            Op::Swap { pages } => self.swap(line, *pages),
            Op::Mlock { proc, range, onfault } => self.mlock(line, *proc, *range, *onfault),
            Op::Munlock { proc, range } => self.munlock(line, *proc, *range),
            Op::Ksmscan { scans } => self.ksm_scan(line, *scans),
        }
    }

    fn thp(&self, size: FolioSize, policy: ThpPolicy) -> Outcome {
        self.host().set_policy(|p| {
            let thp = p.fault.thp;
            p.fault.thp = match size {
                FolioSize::Global => thp.with_global(match policy {
                    ThpPolicy::Always => ThpMode::Always,
                    ThpPolicy::Madvise => ThpMode::Madvise,
                    // The parser refuses "inherit" of the top knob.
                    ThpPolicy::Never | ThpPolicy::Inherit => ThpMode::Never,
                }),
                FolioSize::Order(order) => thp.with_order(
                    u32::from(order),
                    match policy {
                        ThpPolicy::Always => OrderMode::Always,
                        ThpPolicy::Madvise => OrderMode::Madvise,
                        ThpPolicy::Inherit => OrderMode::Inherit,
                        ThpPolicy::Never => OrderMode::Never,
                    },
                ),
            };
        });
        Outcome::Silent
    }

    /// A swap device, or none any more: what is swapped out comes back.
    fn swap(&self, line: &Line, pages: Option<u64>) -> Step {
        let Some(pages) = pages else {
            let processes = self.procs.values().map(|p| &p.process);
            return self.done(line, self.host().swap_off(processes), SwapOffError::errno);
        };
        self.done(line, self.host().swap().add::<A>(pages), |_| "ENOMEM")
    }

    fn observe(&mut self, line: &Line, targets: &[Target]) -> Step {
        let mut guards = BTreeMap::new();
        for target in targets {
            let Some(proc) = self.procs.get(&target.proc) else { continue };
            guards.entry(target.proc).or_insert_with(|| proc.process.mm().read());
        }
        let (scenario, host) = (self.scenario, self.machine.host());
        let page = |proc, region: RegionId, page| {
            let va = VirtAddr::new(windows::<A>().address(scenario.region(region), page));
            guards
                .get(&proc)
                .map_or(mm_scenario::observe::PageFact::NONE, |guard| observe::page_fact(guard, va))
        };
        let seen =
            self.history.observe(scenario, targets, page, |head| observe::folio_flags(host, head));
        let Some(describe) = self.describe else {
            return Ok(Outcome::Printed(Record::new(line, seen)));
        };
        let dump = TableDump::new(line, &seen, |target, page| {
            let Target { proc, range } = targets.get(target)?;
            let va = windows::<A>().address(scenario.region(range.region), page);
            let (level, e) = stored_entry(guards.get(proc)?, VirtAddr::new(va))?;
            Some(describe(level, e))
        });
        Ok(Outcome::Dumped(Record::new(line, seen), dump))
    }
    fn faults(&mut self, line: &Line, proc: ProcId) -> Step {
        let name = self.scenario.proc_name(proc);
        let faults = self.proc_mut(proc)?.faults.take(name);
        Ok(Outcome::Printed(Record::new(line, faults)))
    }
    /// The userfaultfd events, which belong to a region each: only mappings of
    /// regions are registered.
    fn user_faults(&self, line: &Line, proc: ProcId) -> Step {
        let events = self.proc(proc)?.process.take_user_faults();
        let e = events.into_iter().filter_map(|event| {
            let (region, page) = region_of::<A>(self.scenario, event.va)?;
            Some((region.to_owned(), page, observe::user_fault(event.kind)))
        });
        let (p, e) = (self.scenario.proc_name(proc).to_owned(), e.collect());
        Ok(Outcome::Printed(Record::new(line, UserFaults { p, e })))
    }
    fn vmas(&self, line: &Line, proc: ProcId, region: RegionId) -> Step {
        let r = self.scenario.region(region);
        let v = observe::vmas(&self.proc(proc)?.process.mm().read(), r);
        let (p, r) = (self.scenario.proc_name(proc).to_owned(), r.name.clone());
        Ok(Outcome::Printed(Record::new(line, Vmas { p, r, v })))
    }
    fn take_stats(&mut self, line: &Line) -> Outcome {
        let now = observe::counters(self.host());
        let before = std::mem::replace(&mut self.stats, now.clone());
        let was = |key| before.get(key).copied().unwrap_or(0);
        let deltas: Vec<_> = now.iter().map(|(key, n)| (*key, n - was(key))).collect();
        Outcome::Printed(Record::new(line, Stats::new(deltas)))
    }
}

/// Where the regions of scenarios lie on machines of this format.
fn windows<A: Arch>() -> Windows {
    Windows::below(A::USER_END).with_page_size(1 << A::PAGE_SHIFT)
}

/// The region whose window `va` is in, and the page of it.
fn region_of<A: Arch>(scenario: &Scenario, va: VirtAddr) -> Option<(&str, u64)> {
    let (window, page) = windows::<A>().locate(va.get())?;
    let (_, region) = scenario.regions().find(|(_, r)| u64::from(r.window) == window)?;
    Some((&region.name, page.checked_sub(region.at)?))
}
