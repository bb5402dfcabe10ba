//! `mmlab run`: scenarios, printed or checked.
//!
//! Under `--check` a policy is held against what it claims to be:
//!
//! | policy | golden | compared |
//! |---|---|---|
//! | `linux-6.18` | mainline | everything |
//! | `series` | whole-folio reuse | everything |
//! | `best`, `baseline` | mainline | content, errors, signals, events |

use crate::cli::{self, say};
use indicatif::{ProgressBar, ProgressStyle};
use mm_scenario::corpus::{self, CorpusError, Entry};
use mm_scenario::observe::Record;
use mm_scenario::{Scenario, first_difference};
use mm_sim::{
    Absorbed, BlockCounts, FailEachError, Feature, MachineConfig, Memory, Preset, RunError,
    RunOptions, capabilities,
};
use mmlab_formats::Format;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Scenarios, or folders of scenarios.
    #[arg(value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Entry formats, or "all" for all with pages of a size that a scenario has.
    #[arg(
        long,
        value_name = "NAME",
        num_args = 1..,
        value_delimiter = ',',
        default_value = "x86_64",
        help = format!("Entry formats: {}; or \"all\" for all with pages of a size that a scenario has", Format::names()),
    )]
    arch: Vec<String>,
    /// Policy: baseline, linux-6.18, series, best. Without it: best, and
    /// linux-6.18 under --check.
    #[arg(long, value_parser = cli::policy)]
    policy: Option<Preset>,
    /// Compare with the goldens; exit with 1 if a scenario differs. One that needs
    /// what a format lacks is n/a there.
    #[arg(long)]
    check: bool,
    /// Print the page-table entries behind every observation, and nothing else.
    #[arg(long, conflicts_with = "check")]
    dump_tables: bool,
    /// Make allocations of each scenario fail, one in each run: all, or a number of them.
    /// Exit with 1 if the machine does not stand one.
    #[arg(
        long,
        value_name = "NUMBER|all",
        num_args = 0..=1,
        default_missing_value = "all",
        value_parser = Sample::parse,
        conflicts_with_all = ["check", "dump_tables"],
    )]
    fail_each: Option<Sample>,
    /// Memory of the machine in bytes; k, M, G may follow the number.
    #[arg(long, default_value = "1G", value_parser = cli::bytes)]
    memory: u64,
    /// Audit the whole machine after every operation.
    #[arg(long, default_value_t = cfg!(debug_assertions))]
    audit: bool,
    /// Scenarios at a time under --check and --fail-each [default: the number of CPUs].
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

/// The allocations of a scenario that are made to fail.
#[derive(Clone, Copy, Debug)]
struct Sample(Option<u64>);

impl Sample {
    fn parse(word: &str) -> Result<Self, String> {
        match word {
            "all" => Ok(Sample(None)),
            word => {
                word.parse().map(|n| Sample(Some(n))).map_err(|_| "a number, or \"all\"".into())
            }
        }
    }
}

impl Args {
    /// The formats, and the paths.
    ///
    /// `--arch` takes every word up to the next option, so that
    /// `--arch x86_64 x86-pae` means what it says; a path among them is one.
    fn resolve(&self) -> Result<(Vec<Format>, Vec<&Path>), String> {
        let mut formats: Vec<Format> = Vec::new();
        let mut paths: Vec<&Path> = self.paths.iter().map(PathBuf::as_path).collect();
        for word in &self.arch {
            match Format::several(word) {
                Ok(more) => {
                    for f in more {
                        if formats.iter().all(|g| g.name != f.name) {
                            formats.push(f);
                        }
                    }
                }
                Err(_) if !formats.is_empty() && Path::new(word).exists() => {
                    paths.push(Path::new(word));
                }
                Err(e) => return Err(e),
            }
        }
        if paths.is_empty() {
            return Err("nothing to run: name a scenario or a folder, FILE|DIR".into());
        }
        Ok((formats, paths))
    }
}

/// Runs the subcommand.
pub fn main(args: &Args) -> ExitCode {
    let (mut formats, paths) = match args.resolve() {
        Ok(found) => found,
        Err(e) => return cli::bad_input(e),
    };
    let entries = match load(&paths) {
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
    formats.retain(|f| {
        args.arch.iter().any(|word| word == f.name)
            || scenarios.iter().any(|s| s.page_size() == f.page_size)
    });
    let machine = MachineConfig { bytes: args.memory, ..MachineConfig::default() };
    let options = RunOptions { machine, audit: args.audit, ..RunOptions::default() };
    let jobs = args.jobs.map_or(0, NonZeroUsize::get);
    let lab = Lab { formats, options, dump: args.dump_tables, jobs };
    if let Some(sample) = args.fail_each {
        fail_each(&lab, args.policy.unwrap_or_default(), sample, &scenarios)
    } else if args.check {
        check(&lab, args.policy.unwrap_or(Preset::Linux618), &entries, &scenarios)
    } else {
        print(&lab, args.policy.unwrap_or_default(), &scenarios)
    }
}

/// The scenarios that `paths` name, in order.
fn load(paths: &[&Path]) -> Result<Vec<Entry>, String> {
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
    formats: Vec<Format>,
    options: RunOptions,
    /// Print entries instead of records.
    dump: bool,
    /// Scenarios at a time; 0 is one per CPU.
    jobs: usize,
}

/// Stack of a thread that runs scenarios: what a program's first thread has.
const STACK: usize = 8 << 20;

impl Lab {
    /// What `judge` says of each scenario, by its index, on each format: several at a time, in order.
    fn judge<V: Send>(
        &self,
        scenarios: &[Scenario],
        judge: impl Fn(Format, usize) -> V + Sync,
    ) -> Result<Vec<(Format, usize, V)>, String> {
        let each: Vec<_> =
            self.formats.iter().flat_map(|f| (0..scenarios.len()).map(|i| (*f, i))).collect();
        // No more threads than there is to do.
        let jobs = self.jobs.min(each.len());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs).stack_size(STACK).build();
        let pool = pool.map_err(|e| format!("threads of --jobs: {e}"))?;
        let bar = progress(each.len());
        let one = |(format, i): (Format, usize)| {
            bar.set_message(format!("{} {}", format.name, scenarios[i].name));
            let verdict = judge(format, i);
            bar.inc(1);
            (format, i, verdict)
        };
        let verdicts = pool.install(|| each.into_par_iter().map(one).collect());
        bar.finish_and_clear();
        Ok(verdicts)
    }
}

/// Prints every record as it is made. With several formats, each one's begin with
/// a line that names it.
fn print(lab: &Lab, policy: Preset, scenarios: &[Scenario]) -> ExitCode {
    let mut failed = false;
    for format in &lab.formats {
        if lab.formats.len() > 1 {
            say(serde_json::json!({ "arch": format.name }));
        }
        for scenario in scenarios {
            let (policy, options) = (policy.policy(), &lab.options);
            let done = if lab.dump {
                (format.dump)(scenario, &policy, options, &mut |dump| say(dump))
            } else {
                (format.run)(scenario, &policy, options, &mut |record| say(record.to_json()))
            };
            match done {
                Ok(()) => {}
                Err(e) if e.is_bad_input() => return cli::bad_input(e),
                Err(e) => {
                    eprintln!("mmlab: {e}");
                    failed = true;
                }
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Compares with the goldens and says what differs.
fn check(lab: &Lab, policy: Preset, entries: &[Entry], scenarios: &[Scenario]) -> ExitCode {
    let verdicts = lab.judge(scenarios, |format, i| {
        check_one(format, &lab.options, policy, &entries[i], &scenarios[i])
    });
    let verdicts = match verdicts {
        Ok(verdicts) => verdicts,
        Err(e) => return cli::bad_input(e),
    };
    let (mut passed, mut failed) = (0, 0);
    let mut not_applicable: BTreeMap<(Feature, &str), Vec<&str>> = BTreeMap::new();
    let mut blocks: BTreeMap<&str, BlockCounts> = BTreeMap::new();
    for (format, i, verdict) in verdicts {
        let name = &entries[i].name;
        match verdict {
            Ok(counts) => {
                passed += 1;
                *blocks.entry(format.name).or_default() += counts;
            }
            Err(Failure::Lacks(feature)) => {
                not_applicable.entry((feature, format.name)).or_default().push(name);
            }
            Err(Failure::Differs(why)) => {
                failed += 1;
                // Nobody asked for a format where there is only one.
                let on = if lab.formats.len() > 1 { format.name } else { "" };
                let gap = if on.is_empty() { "" } else { " " };
                say(format_args!("{on}{gap}{name}: {why}"));
            }
            Err(Failure::BadInput(why)) => return cli::bad_input(why),
        }
    }
    for ((feature, format), names) in &not_applicable {
        say(format_args!("n/a: {format} has no {feature}: {}", names.join(" ")));
    }
    for (format, counts) in blocks {
        let BlockCounts { folded, by_hint } = counts;
        if folded > 0 {
            say(format_args!("{format}: {folded} blocks folded, {by_hint} entries taken by hint"));
        }
    }
    let n: usize = not_applicable.values().map(Vec::len).sum();
    let not_applicable = if n == 0 { String::new() } else { format!(", {n} n/a") };
    say(format_args!("{passed} passed, {failed} failed{not_applicable}"));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Makes allocations fail and says which scenarios do not stand it.
fn fail_each(lab: &Lab, policy: Preset, sample: Sample, scenarios: &[Scenario]) -> ExitCode {
    let verdicts = lab.judge(scenarios, |format, i| {
        (format.fail_each)(&scenarios[i], &policy.policy(), &lab.options, sample.0)
    });
    let verdicts = match verdicts {
        Ok(verdicts) => verdicts,
        Err(e) => return cli::bad_input(e),
    };
    let (mut passed, mut failed, mut not_applicable) = (0, 0, 0);
    let mut all: BTreeMap<Memory, Absorbed> = BTreeMap::new();
    for (format, _, result) in verdicts {
        match result {
            Ok(absorbed) => {
                passed += 1;
                absorbed.into_iter().for_each(|(memory, a)| *all.entry(memory).or_default() += a);
            }
            Err(FailEachError::Run(RunError::Lacks { .. })) => not_applicable += 1,
            Err(FailEachError::Run(e)) if e.is_bad_input() => return cli::bad_input(e),
            Err(e) => {
                failed += 1;
                say(format_args!("{}: {e}", format.name));
            }
        }
    }
    for (memory, Absorbed { allocations, tried, refused }) in all {
        let of = format_args!("{allocations} allocations of {memory}");
        say(format_args!("{tried} of {of} made to fail, {refused} refused"));
    }
    let not_applicable =
        if not_applicable == 0 { String::new() } else { format!(", {not_applicable} n/a") };
    say(format_args!("{passed} passed, {failed} failed{not_applicable}"));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

enum Failure {
    /// The scenario failed.
    Differs(String),
    /// The format lacks what it needs.
    Lacks(Feature),
    /// It could not be judged.
    BadInput(String),
}

fn check_one(
    format: Format,
    options: &RunOptions,
    policy: Preset,
    entry: &Entry,
    scenario: &Scenario,
) -> Result<BlockCounts, Failure> {
    let (golden, mode) = policy.golden(entry, format.blocks);
    let Some(golden) = golden else {
        let path = golden_path(&entry.path);
        return Err(Failure::BadInput(format!("{}: no such golden file", path.display())));
    };
    let golden = Record::read_all(golden)
        .map_err(|e| Failure::BadInput(format!("{}: {e}", golden_path(&entry.path).display())))?;
    let mut got = Vec::new();
    let run = format.run_counting;
    let counts = match run(scenario, &policy.policy(), options, &mut |record| got.push(record)) {
        Ok(counts) => counts,
        Err(RunError::Lacks { feature, .. }) => return Err(Failure::Lacks(feature)),
        Err(e) if e.is_bad_input() => return Err(Failure::BadInput(e.to_string())),
        Err(e) => return Err(Failure::Differs(e.to_string())),
    };
    match first_difference(&golden, &got, mode, &capabilities()) {
        None => Ok(counts),
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
