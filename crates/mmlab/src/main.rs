//! `mmlab`: the command line of the mm crates.
//!
//! Each subcommand is a module with its arguments and a function that runs it;
//! this file only tells them apart.

mod bed;
mod cli;
mod gup_test;
mod pte;
mod report;
mod repro;
mod run;

use clap::Parser;
use std::process::ExitCode;

/// For `run --fail-each`.
#[global_allocator]
static HEAP: mm_sim::FailingHeap = mm_sim::FailingHeap;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return cli::usage(&e),
    };
    match cli.command {
        cli::Command::Run(args) => run::main(&args),
        cli::Command::GupTest(args) => gup_test::main(&args),
        cli::Command::Pte(args) => pte::main(&args),
        cli::Command::Repro(args) => repro::main(&args),
    }
}
