//! Loads and stores, by CPU and through the kernel.

use super::{Outcome, Runner, Step};
use crate::events::Events;
use crate::{AccessError, Process, RemoteError, RunError, Spot};
use mm_arch::{Arch, VirtAddr};
use mm_fault::FaultSignal;
use mm_scenario::observe::{Content, Expect, Record, Signal, content_runs, fill_word, tag_word};
use mm_scenario::{Line, ProcId, Range, TouchOrder};
use mm_vma::{Vma, VmaFlags};

/// Page and word of each touch, or the touch that failed.
type Loads = Result<Vec<(u64, u64)>, (u64, AccessError)>;

/// What `write` stores to a page.
pub(super) fn tag(value: u16) -> impl Fn(u64) -> u64 {
    move |page| tag_word(value, page)
}
/// What `fill` stores to a page.
pub(super) fn fill(value: u16) -> impl Fn(u64) -> u64 {
    move |_| fill_word(value)
}

/// What reads and writes of `/proc/self/mem` say where there is nothing to be had.
const OF_MEM_FILE: &str = "EIO";
/// What `process_vm_readv` and `process_vm_writev` say there.
const OF_VM_CALL: &str = "EFAULT";

/// A store of the kind that the mapping takes: programs know their shadow stacks.
fn store<A: Arch, O: Events>(
    process: &Process<A, O>,
    va: VirtAddr,
    word: u64,
) -> Result<(), AccessError> {
    let flags = process.mm().read().find(va).map(Vma::flags);
    if flags.is_some_and(|flags| flags.contains(VmaFlags::SHADOW_STACK)) {
        return process.push(va, word);
    }
    process.store(va, word)
}

impl<A: Arch, O: Events> Runner<'_, A, O> {
    /// What a failed touch prints.
    fn touch_failed(&self, line: &Line, range: Range, touch: u64, e: AccessError) -> Step {
        Ok(match e {
            AccessError::Signal(signal) => {
                let signal = match signal {
                    FaultSignal::Segv { .. } => Signal::Segv,
                    FaultSignal::Bus { .. } | FaultSignal::Poisoned { .. } => Signal::Bus,
                };
                let after = range.after(touch);
                Outcome::Printed(Record::signalled(self.scenario, line, signal, after))
            }
            AccessError::NoMemory(_) => self.refused(line, "ENOMEM"),
            AccessError::Stuck(_) => {
                let (file, line) = (self.scenario.name.clone(), line.line_no);
                return Err(RunError::Stuck { file, line, what: e.to_string() });
            }
        })
    }
    /// Loads by the process, in order, until one fails.
    fn loads(&self, proc: ProcId, range: Range, order: TouchOrder) -> Result<Loads, RunError> {
        let process = &self.proc(proc)?.process;
        let touches = (0..).zip(range.in_order(order));
        Ok(touches
            .map(|(touch, page)| {
                let word = process.load(self.address(range.region, page));
                word.map(|word| (page, word)).map_err(|e| (touch, e))
            })
            .collect())
    }

    pub(super) fn read(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        order: TouchOrder,
    ) -> Step {
        match self.loads(proc, range, order)? {
            Ok(_) => Ok(Outcome::Silent),
            Err((touch, e)) => self.touch_failed(line, range, touch, e),
        }
    }
    pub(super) fn write(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        order: TouchOrder,
        value: impl Fn(u64) -> u64,
    ) -> Step {
        for (touch, page) in (0..).zip(range.in_order(order)) {
            let (va, word) = (self.address(range.region, page), value(page));
            if let Err(e) = store(&self.proc(proc)?.process, va, word) {
                return self.touch_failed(line, range, touch, e);
            }
            self.stored(proc, va, word)?;
        }
        Ok(Outcome::Silent)
    }
    /// The shadow hears that the process stored a word.
    pub(super) fn stored(&mut self, proc: ProcId, va: VirtAddr, word: u64) -> Result<(), RunError> {
        let spot = Spot::of(proc.index() as u32, &self.proc(proc)?.process, va);
        self.shadow.store_at(spot, word);
        Ok(())
    }
    pub(super) fn content(&mut self, line: &Line, proc: ProcId, range: Range) -> Step {
        match self.loads(proc, range, TouchOrder::Ascending)? {
            Ok(words) => Ok(self.print_content(line, proc, range, words)),
            Err((touch, e)) => self.touch_failed(line, range, touch, e),
        }
    }
    pub(super) fn expect(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        value: u16,
        fill: bool,
    ) -> Step {
        match self.loads(proc, range, TouchOrder::Ascending)? {
            Ok(words) => {
                let p = self.scenario.proc_name(proc);
                Ok(Outcome::Printed(Record::new(line, Expect::check(p, value, fill, words))))
            }
            Err((touch, e)) => self.touch_failed(line, range, touch, e),
        }
    }
    fn print_content(
        &self,
        line: &Line,
        proc: ProcId,
        range: Range,
        words: Vec<(u64, u64)>,
    ) -> Outcome {
        let p = self.scenario.proc_name(proc).to_owned();
        let r = self.scenario.region(range.region).name.clone();
        Outcome::Printed(Record::new(line, Content { p, r, c: content_runs(words) }))
    }

    /// A call per page that reads; the first that fails ends it, whatever the reason is with
    /// `errno`.
    fn remote_reads(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        errno: &str,
        read: impl Fn(&crate::Process<A, O>, VirtAddr) -> Result<u64, RemoteError>,
    ) -> Step {
        let process = &self.proc(proc)?.process;
        let words: Result<Vec<_>, RemoteError> = range
            .iter()
            .map(|page| Ok((page, read(process, self.address(range.region, page))?)))
            .collect();
        Ok(match words {
            Ok(words) => self.print_content(line, proc, range, words),
            Err(_) => self.refused(line, errno),
        })
    }
    /// A call per page that writes, as [`remote_reads`](Self::remote_reads).
    fn remote_writes(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        value: u16,
        errno: &str,
        write: impl Fn(&crate::Process<A, O>, VirtAddr, u64) -> Result<(), RemoteError>,
    ) -> Step {
        for page in range.iter() {
            let (va, word) = (self.address(range.region, page), tag_word(value, page));
            if write(&self.proc(proc)?.process, va, word).is_err() {
                return Ok(self.refused(line, errno));
            }
            self.stored(proc, va, word)?;
        }
        Ok(Outcome::Silent)
    }
    pub(super) fn peek(&mut self, line: &Line, proc: ProcId, range: Range) -> Step {
        self.remote_reads(line, proc, range, OF_MEM_FILE, |p, va| p.mem_read(va))
    }
    pub(super) fn poke(&mut self, line: &Line, proc: ProcId, range: Range, value: u16) -> Step {
        self.remote_writes(line, proc, range, value, OF_MEM_FILE, |p, va, word| {
            p.mem_write(va, word)
        })
    }
    pub(super) fn pvread(&mut self, line: &Line, proc: ProcId, range: Range) -> Step {
        self.remote_reads(line, proc, range, OF_VM_CALL, |p, va| p.vm_read(va))
    }
    pub(super) fn pvwrite(&mut self, line: &Line, proc: ProcId, range: Range, value: u16) -> Step {
        self.remote_writes(line, proc, range, value, OF_VM_CALL, |p, va, word| p.vm_write(va, word))
    }
}
