//! `mmlab run`: scenarios, printed or checked.
//!
//! Under `--check` a policy is held against what it claims to be:
//!
//! | policy | golden | compared |
//! |---|---|---|
//! | `linux-6.18` | mainline | everything |
//! | `series` | whole-folio reuse | everything |
//! | `best`, `baseline` | mainline | content, errors, signals, events |

use crate::cli::{self, ArchName, say};
use indicatif::{ProgressBar, ProgressStyle};
use mm_scenario::corpus::{self, CorpusError, Entry};
use mm_scenario::observe::Record;
use mm_scenario::{Scenario, first_difference};
use mm_sim::{MachineConfig, Preset, RunError, RunOptions, capabilities};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Scenarios, or folders of scenarios.
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Entry format: x86_64, x86_64-noshstk.
    #[arg(long, default_value = "x86_64", value_parser = ArchName::parse)]
    arch: ArchName,
    /// Policy: baseline, linux-6.18, series, best. Without it: best, and
    /// linux-6.18 under --check.
    #[arg(long, value_parser = cli::policy)]
    policy: Option<Preset>,
    /// Compare with the goldens; exit with 1 if a scenario differs.
    #[arg(long)]
    check: bool,
    /// Memory of the machine in bytes; k, M, G may follow the number.
    #[arg(long, default_value = "1G", value_parser = cli::bytes)]
    memory: u64,
    /// Audit the whole machine after every operation.
    #[arg(long, default_value_t = cfg!(debug_assertions))]
    audit: bool,
}

/// Runs the subcommand.
pub fn main(args: &Args) -> ExitCode {
    let entries = match load(&args.paths) {
        Ok(entries) => entries,
        Err(e) => return cli::bad_input(e),
    };
    let mut scenarios = Vec::with_capacity(entries.len());
    for entry in &entries {
        // Named by its path: an error must say which file.
        match Scenario::parse(&entry.path.display().to_string(), &entry.text) {
            Ok(scenario) => scenarios.push(scenario),
            Err(e) => return cli::bad_input(e),
        }
    }
    let machine = MachineConfig { bytes: args.memory, ..MachineConfig::default() };
    let lab = Lab {
        arch: args.arch,
        options: RunOptions { machine, audit: args.audit, ..RunOptions::default() },
    };
    if args.check {
        check(&lab, args.policy.unwrap_or(Preset::Linux618), &entries, &scenarios)
    } else {
        print(&lab, args.policy.unwrap_or_default(), &scenarios)
    }
}

/// The scenarios that `paths` name, in order.
fn load(paths: &[PathBuf]) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for path in paths {
        if path.is_dir() {
            let more = corpus::load_dir(path).map_err(shown)?;
            if more.is_empty() {
                return Err(format!("{}: no scenario in this folder", path.display()));
            }
            entries.extend(more);
        } else {
            entries.push(Entry::load(path).map_err(shown)?);
        }
    }
    Ok(entries)
}

fn shown(e: CorpusError) -> String {
    e.to_string()
}

/// What scenarios run on.
struct Lab {
    arch: ArchName,
    options: RunOptions,
}

impl Lab {
    fn run(
        &self,
        scenario: &Scenario,
        policy: Preset,
        print: &mut dyn FnMut(Record),
    ) -> Result<(), RunError> {
        let policy = policy.policy();
        match self.arch {
            ArchName::X86_64 => {
                mm_sim::run::<mm_x86::X86_64>(scenario, &policy, &self.options, print)
            }
            ArchName::X86_64NoShstk => {
                mm_sim::run::<mm_x86::X86_64NoShstk>(scenario, &policy, &self.options, print)
            }
        }
    }
}

/// Prints every record as it is made.
fn print(lab: &Lab, policy: Preset, scenarios: &[Scenario]) -> ExitCode {
    let mut failed = false;
    for scenario in scenarios {
        match lab.run(scenario, policy, &mut |record| say(record.to_json())) {
            Ok(()) => {}
            Err(e) if e.is_bad_input() => return cli::bad_input(e),
            Err(e) => {
                eprintln!("mmlab: {e}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Compares with the goldens and says what differs.
fn check(lab: &Lab, policy: Preset, entries: &[Entry], scenarios: &[Scenario]) -> ExitCode {
    let bar = progress(entries.len());
    let (mut passed, mut failed) = (0, 0);
    for (entry, scenario) in entries.iter().zip(scenarios) {
        bar.set_message(entry.name.clone());
        let verdict = check_one(lab, policy, entry, scenario);
        bar.inc(1);
        match verdict {
            Ok(()) => passed += 1,
            Err(Failure::Differs(why)) => {
                failed += 1;
                bar.suspend(|| say(format_args!("{}: {why}", entry.name)));
            }
            Err(Failure::BadInput(why)) => {
                bar.finish_and_clear();
                return cli::bad_input(why);
            }
        }
    }
    bar.finish_and_clear();
    say(format_args!("{passed} passed, {failed} failed"));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

enum Failure {
    /// The scenario failed.
    Differs(String),
    /// It could not be judged.
    BadInput(String),
}

fn check_one(lab: &Lab, policy: Preset, entry: &Entry, scenario: &Scenario) -> Result<(), Failure> {
    let (golden, mode) = policy.golden(entry);
    let Some(golden) = golden else {
        let path = golden_path(&entry.path);
        return Err(Failure::BadInput(format!("{}: no such golden file", path.display())));
    };
    let golden = Record::read_all(golden)
        .map_err(|e| Failure::BadInput(format!("{}: {e}", golden_path(&entry.path).display())))?;
    let mut got = Vec::new();
    match lab.run(scenario, policy, &mut |record| got.push(record)) {
        Ok(()) => {}
        Err(e) if e.is_bad_input() => return Err(Failure::BadInput(e.to_string())),
        Err(e) => return Err(Failure::Differs(e.to_string())),
    }
    match first_difference(&golden, &got, mode, &capabilities()) {
        None => Ok(()),
        Some(difference) => Err(Failure::Differs(difference.to_string())),
    }
}

fn golden_path(scenario: &Path) -> PathBuf {
    let name = scenario.with_extension("json");
    let dir = scenario.parent().unwrap_or(Path::new(""));
    dir.join("golden").join(name.file_name().unwrap_or_default())
}

/// A bar on a terminal; nothing in a pipe.
fn progress(len: usize) -> ProgressBar {
    if len < 2 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}
