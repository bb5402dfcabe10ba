//! `mmlab gup-test`: the kernel's GUP benchmark on the simulated machine (rules
//! BENCH-01..10).

mod args;
mod compat;
mod lines;
mod pass;

pub use args::GupTestArgs;

use self::lines::Line;
use self::pass::{Clock, Pass, Plan};
use crate::bed::{Bed, check_memory, memory_for};
use crate::cli::{bad_input, say};
use mm_map::Advice;
use mm_sim::EventCounts;
use mm_vma::VmaFlags;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Runs `mmlab gup-test`.
pub fn main(args: &GupTestArgs) -> ExitCode {
    let start = Instant::now();
    let emit = |line: &str| say(line);
    match run(args, &|| start.elapsed().as_secs_f64() * 1e6, &emit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => bad_input(format_args!("gup-test: {message}")),
    }
}

/// What all threads share.
struct Session<'a> {
    args: &'a GupTestArgs,
    plan: Plan,
    bed: Bed<()>,
    /// Of the first pass, and of those after it, which find no page missing.
    counts: [EventCounts; 2],
    clock: Clock<'a>,
    emit: &'a (dyn Fn(&str) + Sync),
    /// Threads that ended so far: those that passed, those that failed. Whoever
    /// prints holds it.
    ended: Mutex<[u64; 2]>,
}

/// Sets the region up and lets all threads run (rules BENCH-03, BENCH-04).
fn run(args: &GupTestArgs, clock: Clock<'_>, emit: &(dyn Fn(&str) + Sync)) -> Result<(), String> {
    let session = Session::new(args, clock, emit)?;
    if args.compat {
        compat::header(args.threads).iter().for_each(|line| emit(line));
    }
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let session = &session;
        let running: Vec<_> =
            (0..args.threads).map(|i| scope.spawn(move || session.thread(i))).collect();
        running
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    });
    if args.compat {
        let ended = session.ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        emit(&compat::totals(ended));
        return Ok(());
    }
    results.into_iter().collect()
}

impl<'a> Session<'a> {
    fn new(
        args: &'a GupTestArgs,
        clock: Clock<'a>,
        emit: &'a (dyn Fn(&str) + Sync),
    ) -> Result<Self, String> {
        let plan = args.plan()?;
        let bytes = args.mib << 20;
        let outputs = args.threads.saturating_mul(bytes / 4096 * 8);
        check_memory(memory_for(bytes).saturating_add(outputs))?;
        let advice = match (args.thp, args.no_thp) {
            (true, _) => Some(Advice::HugePage),
            (_, true) => Some(Advice::NoHugePage),
            _ => None,
        };
        let mut policy = args.policy.policy();
        if args.thp {
            policy.fault.thp = policy.fault.thp.with_global(mm_fault::ThpMode::Madvise);
        }
        let (rights, folio) = (VmaFlags::READ | VmaFlags::WRITE, args.filled_with());
        let bed = match (&args.file, args.shared) {
            (None, false) => Bed::<()>::new(bytes, folio, advice, rights, policy)?,
            (file, shared) => Bed::of_object(bytes, file.as_deref(), shared, advice, policy)?,
        };
        if folio.is_none() && !args.untouched {
            bed.touch()?;
        }
        let counts = <[EventCounts; 2]>::default();
        let ended = Mutex::default();
        let session = Session { args, plan, bed, counts, clock, emit, ended };
        session.count()?;
        Ok(session)
    }

    /// Counting must not be timed, so it is done before, in passes of its own. If the
    /// region was untouched it is afterwards.
    fn count(&self) -> Result<(), String> {
        let handler = self.bed.process.gup_handler();
        for counts in &self.counts {
            self.plan.pass(&self.bed, &handler, counts, &|| 0.0)?;
        }
        if self.args.untouched {
            let forget = self.bed.process.madvise(self.bed.range, Advice::DontNeed);
            forget.map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// A thread of the tool. In the kernel's format its failure is printed.
    fn thread(&self, thread: u64) -> Result<(), String> {
        let handler = self.bed.process.gup_handler();
        let mut result = Ok(());
        for repeat in 0..self.args.repeats() {
            match self.plan.pass(&self.bed, &handler, &(), self.clock) {
                Ok(pass) => {
                    let _one_prints = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
                    result = self.print(thread, repeat, &pass);
                }
                Err(e) => result = Err(e),
            }
            if result.is_err() {
                break;
            }
        }
        if self.args.compat {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended[usize::from(result.is_err())] += 1;
            (self.emit)(&compat::result(ended.iter().sum(), result.is_ok()));
        }
        result
    }

    fn print(&self, thread: u64, repeat: u64, pass: &Pass) -> Result<(), String> {
        if let Some((pfn, what)) = pass.looks_wrong {
            eprintln!("mmlab: gup-test: page {pfn} {what}");
        }
        let line = Line {
            args: self.args,
            mode: self.plan.mode,
            bed: &self.bed,
            pass,
            counts: &self.counts[usize::from(repeat > 0)],
            thread,
        };
        if self.args.compat {
            compat::lines(&line).iter().for_each(|line| (self.emit)(line));
            // The kernel dumps pages to its log.
            pass.dumped.iter().for_each(|line| eprintln!("{line}"));
            return Ok(());
        }
        // The kernel's tool takes an error of the first page for a region of no pages.
        if let Some(e) = pass.error {
            return Err(e.to_string());
        }
        if self.args.json {
            (self.emit)(&line.json().to_string());
        } else {
            line.text().iter().chain(&pass.dumped).for_each(|line| (self.emit)(line));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
