//! Runs a scenario again and again, each time with another allocation that fails.

use super::{Printed, RunError, RunOptions, capabilities, run_machine};
use crate::Policy;
use mm_arch::Arch;
use mm_scenario::observe::{Body, Record};
use mm_scenario::{Advice, Difference, Mode, Op, Scenario, first_difference};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is allocated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Memory {
    /// Folios and page tables.
    Frames,
    /// Everything that is kept about them, from the heap.
    Heap,
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Memory::Frames => "frames",
            Memory::Heap => "the heap",
        })
    }
}

/// What became of the failures of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Absorbed {
    /// Allocations that the scenario asks for.
    pub allocations: u64,
    /// Of these, how many were made to fail, each in a run of its own.
    pub tried: u64,
    /// How many of these a process heard of. The others were made up for: by a smaller folio, by
    /// another try, or by work that was left undone.
    pub refused: u64,
}

impl std::ops::AddAssign for Absorbed {
    fn add_assign(&mut self, more: Self) {
        self.allocations += more.allocations;
        self.tried += more.tried;
        self.refused += more.refused;
    }
}

/// Why a scenario does not stand a failed allocation.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum FailEachError {
    /// It does not even run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A library crate takes from the heap what cannot be refused.
    #[error("{file}: {place} cannot be refused what it allocates")]
    Unrefusable {
        /// The scenario.
        file: String,
        /// File and line.
        place: &'static str,
    },
    /// The machine is in a state that must not exist, or something never came back.
    #[error("with allocation {index} of {memory} failing: {why}")]
    Broken {
        /// What failed.
        memory: Memory,
        /// Allocations before the one that failed.
        index: u64,
        /// What was found.
        why: RunError,
    },
    /// The machine panicked.
    #[error("{file}: with allocation {index} of {memory} failing: a panic")]
    Panicked {
        /// The scenario.
        file: String,
        /// What failed.
        memory: Memory,
        /// Allocations before the one that failed.
        index: u64,
    },
    /// A process sees what a failed allocation does not explain.
    #[error(
        "{file}: with allocation {index} of {memory} failing, in line {failed_in}: {difference}"
    )]
    Seen {
        /// The scenario.
        file: String,
        /// What failed.
        memory: Memory,
        /// Allocations before the one that failed.
        index: u64,
        /// The line whose allocation failed; 0 for none.
        failed_in: u32,
        /// What is not as it would have been.
        difference: Box<Difference>,
    },
}

/// Runs `scenario` once, then with allocations of it failing, one in each run: of each kind all, or
/// about `sample` of them, which lie over all of the scenario. Every run is audited, whatever
/// `options` say. The heap is tried where the program's allocator is a
/// [`FailingHeap`](crate::FailingHeap).
///
/// The line whose allocation fails must print that there was no memory, in the words that the
/// kernel has for it there, or what it prints otherwise, and so must all lines before it; all
/// lines after it, too, unless that one was refused. The content that is there must be
/// what was stored, and nothing may be left when all processes have exited.
///
/// # Errors
///
/// If one of this does not hold, or the run panics; if a library crate takes from the heap what
/// cannot be refused.
pub fn fail_each<A: Arch>(
    scenario: &Scenario,
    policy: &Policy,
    options: &RunOptions,
    sample: Option<u64>,
) -> Result<[(Memory, Absorbed); 2], FailEachError> {
    let run = |fail_after, fail_heap_after| {
        let options = RunOptions { audit: true, fail_after, fail_heap_after, ..*options };
        let mut records = Vec::new();
        let ran = run_machine::<A>(scenario, policy, &options, None, &mut |printed| {
            if let Printed::Record(record) = printed {
                records.push(record);
            }
        });
        ran.map(|ran| (ran, records))
    };
    let (ran, clean) = run(None, Some(u64::MAX))?;
    if let Some(place) = ran.unrefusable {
        return Err(FailEachError::Unrefusable { file: scenario.name.clone(), place });
    }
    let frames = (Memory::Frames, ran.allocations.frames);
    let mut all = [frames, (Memory::Heap, ran.allocations.heap)]
        .map(|(memory, allocations)| (memory, Absorbed { allocations, ..Absorbed::default() }));
    for (memory, absorbed) in &mut all {
        let memory = *memory;
        for index in sampled(absorbed.allocations, sample) {
            absorbed.tried += 1;
            let failing = || match memory {
                Memory::Frames => run(Some(index), None),
                Memory::Heap => run(None, Some(index)),
            };
            let (ran, records) = match catch_unwind(AssertUnwindSafe(failing)) {
                Ok(Ok(ran)) => ran,
                // There is not even a first process.
                Ok(Err(RunError::NoMemory { .. })) => {
                    absorbed.refused += 1;
                    continue;
                }
                Ok(Err(why)) => return Err(FailEachError::Broken { memory, index, why }),
                Err(_) => {
                    let file = scenario.name.clone();
                    return Err(FailEachError::Panicked { file, memory, index });
                }
            };
            match judge(scenario, &clean, &records, ran.failed_in) {
                Ok(true) => {}
                Ok(false) => absorbed.refused += 1,
                Err(d) => {
                    let (file, difference) = (scenario.name.clone(), Box::new(d));
                    let failed_in = ran.failed_in.unwrap_or(0);
                    return Err(FailEachError::Seen { file, memory, index, failed_in, difference });
                }
            }
        }
    }
    Ok(all)
}

/// Whether a run whose allocation failed in `failed_in` printed what it would have printed
/// anyway, or was refused; or what neither explains.
fn judge(
    scenario: &Scenario,
    clean: &[Record],
    got: &[Record],
    failed_in: Option<u32>,
) -> Result<bool, Difference> {
    // Which pages that were given up are still there depends on the folios that they are in.
    let is_free = |op: &Op| matches!(op, Op::Madvise { advice: Advice::Free, .. });
    let given_up = scenario.ops.iter().find(|l| is_free(&l.op)).map(|l| l.line_no);
    // A folio of shared memory that lies across the new end and cannot be split shows zeros behind
    // it, where there would be a signal (rule FILE-05).
    let is_cut = |op: &Op| matches!(op, Op::Truncate { .. });
    let cut = scenario.ops.iter().find(|l| failed_in == Some(l.line_no) && is_cut(&l.op));
    let last = match (cut, given_up) {
        (Some(line), _) => line.line_no,
        (None, Some(line)) => line.max(failed_in.unwrap_or(0)),
        (None, None) => u32::MAX,
    };
    let until = |records: &[Record]| -> Vec<Record> {
        records.iter().filter(|r| r.line <= last).cloned().collect()
    };
    let (clean, got) = (until(clean), until(got));
    match first_difference(&clean, &got, Mode::ContentOnly, &capabilities()) {
        None => Ok(true),
        Some(d) if failed_in == Some(d.line) && is_refused(scenario, &got, d.line) => Ok(false),
        Some(d) => Err(d),
    }
}

/// The indices that are tried of `nr`: all, or `sample` in equal distances.
fn sampled(nr: u64, sample: Option<u64>) -> impl Iterator<Item = u64> {
    let tried = sample.map_or(nr, |sample| sample.min(nr));
    (0..tried).map(move |i| i * nr / tried)
}

/// Whether the last record of `line` says that there was no memory.
fn is_refused(scenario: &Scenario, records: &[Record], line: u32) -> bool {
    let op = scenario.ops.iter().find(|l| l.line_no == line).map(|l| &l.op);
    let record = records.iter().rfind(|r| r.line == line).map(|r| &r.body);
    let (Some(op), Some(Body::Error(refusal))) = (op, record) else { return false };
    errnos(op).contains(&refusal.err.as_str())
}

/// The kernel's names for want of memory in the middle of an operation.
fn errnos(op: &Op) -> &'static [&'static str] {
    match op {
        // In its mappings, and in its pages.
        Op::Mlock { .. } => &["ENOMEM", "EAGAIN"],
        // What cannot be had of another process cannot be had, whatever the reason.
        Op::Pvread { .. } | Op::Pvwrite { .. } => &["EFAULT"],
        Op::Peek { .. } | Op::Poke { .. } => &["EIO"],
        // At the first page, and behind it.
        Op::Pin { .. } | Op::Dread { .. } | Op::Dwrite { .. } => &["ENOMEM", "EFAULT"],
        _ => &["ENOMEM"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "mmap p0 a 4 anon rw private\nwrite p0 a 1\ncontent p0 a\n\
                        madvise p0 a free\ncontent p0 a\n";

    /// What there is to see of a run that printed `got` besides what the scenario does.
    fn judged(failed_in: u32, got: &[&str]) -> Result<bool, u32> {
        let scenario = Scenario::parse("judged", TEXT).expect("parses");
        let read = |lines: &[&str]| Record::read_all(&lines.join("\n")).expect("records");
        let content = r#"{"line":3,"op":"content","p":"p0","r":"a","c":[[0,4,"1"]]}"#;
        let clean = read(&[content, &content.replace(":3", ":5")]);
        judge(&scenario, &clean, &read(got), Some(failed_in)).map_err(|d| d.line)
    }

    #[test]
    fn a_failure_explains_a_refusal_of_its_line_and_nothing_else() {
        let content = r#"{"line":3,"op":"content","p":"p0","r":"a","c":[[0,4,"1"]]}"#;
        let zeros = content.replace(r#""1""#, r#""0""#);
        let refused = r#"{"line":2,"op":"write","p":"p0","err":"ENOMEM"}"#;
        assert_eq!(judged(2, &[content]), Ok(true));
        assert_eq!(judged(2, &[refused, &zeros]), Ok(false));
        assert_eq!(judged(2, &[&zeros]), Err(3), "lost without a word");
        assert_eq!(judged(1, &[refused, content]), Err(2), "refused without a reason");
        assert_eq!(judged(2, &[&refused.replace("ENOMEM", "EFAULT"), content]), Err(2));
        // What was given up may be gone.
        assert_eq!(judged(2, &[content, &zeros.replace(":3", ":5")]), Ok(true));
    }

    #[test]
    fn a_sample_lies_over_all() {
        let of = |nr, sample| sampled(nr, sample).collect::<Vec<_>>();
        assert_eq!(of(4, None), [0, 1, 2, 3]);
        assert_eq!(of(100, Some(4)), [0, 25, 50, 75]);
        assert_eq!(of(3, Some(8)), [0, 1, 2]);
        assert!(of(0, Some(8)).is_empty() && of(0, None).is_empty());
    }
}
