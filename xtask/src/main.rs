//! Build, test and measure tasks of this workspace: `cargo xtask --help`.
//!
//! One file per task. A task is a function from its options to
//! [`Outcome`](step::Outcome); `test-all` is the list of them.

mod cmd;
mod fail_each;
mod fuzz;
mod instructions;
mod loom;
mod no_std;
mod properties;
mod random;
mod rules;
mod scenarios;
mod step;
mod stress;
mod test_all;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use crate::workspace::Workspace;

/// Tasks of this workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Everything that must pass before a commit lands; times each step and ends with a table.
    TestAll(test_all::Options),
    /// What continuous integration runs: test-all with every step.
    Ci,
    /// The loom models (tests/loom_*.rs), one process per test.
    Loom(loom::Options),
    /// Proves that the library crates need no std: links and runs a freestanding binary of them.
    NoStd,
    /// Replays the supported scenarios under every policy and compares with the goldens.
    Scenarios(scenarios::Options),
    /// The supported scenarios with allocations failing, one in each run.
    FailEach(fail_each::Options),
    /// Random scenarios of anonymous memory, private and shared, under every policy of reuse.
    Random(random::Options),
    /// Property tests with seeds by the clock, as many rounds as wanted.
    Properties(properties::Options),
    /// Threads that store, fork, pin and reclaim at the same time; everything is recounted at the end.
    Stress(stress::Options),
    /// Values that nobody thought of, for `mmlab pte decode`.
    Fuzz(fuzz::Options),
    /// Callgrind instruction counts of the hot paths against xtask/instructions.tsv.
    Instructions(instructions::Options),
    /// Which rule is cited by which test; fails on rules that do not exist and on gaps in complete groups.
    Rules(rules::Options),
}

fn main() -> ExitCode {
    let task = Task::parse();
    let ws = match Workspace::load() {
        Ok(ws) => ws,
        Err(e) => {
            eprintln!("xtask: {e}");
            return ExitCode::from(2);
        }
    };
    let outcome = match task {
        Task::TestAll(o) => return test_all::run(&ws, &o),
        Task::Ci => return test_all::run(&ws, &test_all::Options::default()),
        Task::Loom(o) => loom::run(&ws, &o),
        Task::NoStd => no_std::run(&ws),
        Task::Scenarios(o) => scenarios::run(&ws, &o),
        Task::FailEach(o) => fail_each::run(&ws, &o),
        Task::Random(o) => random::run(&ws, &o),
        Task::Properties(o) => properties::run(&ws, &o),
        Task::Stress(o) => stress::run(&ws, &o),
        Task::Fuzz(o) => fuzz::run(&ws, &o),
        Task::Instructions(o) => instructions::run(&ws, &o),
        Task::Rules(o) => rules::run(&ws, &o),
    };
    step::conclude(outcome)
}
