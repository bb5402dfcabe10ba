//! The tables of the patch series, before and after.

mod gup_fast;
pub mod reference;
mod reuse;

use clap::{Args, ValueEnum};
use std::process::ExitCode;

/// A table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Table {
    /// Patch series 002: GUP-fast over 256 MiB, five folio sizes, get and pin.
    GupFast,
    /// Patch series 003: write faults after fork and exit, four reuse policies.
    Reuse,
}

/// Arguments of `mmlab repro`.
#[derive(Args, Debug)]
pub struct ReproArgs {
    /// Which table; all of them by default.
    table: Option<Table>,
    /// One JSON object per line and cell instead of tables.
    #[arg(long)]
    json: bool,
    /// Interleaved rounds per cell.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
}

/// Runs `mmlab repro`.
pub fn main(args: &ReproArgs) -> ExitCode {
    let tables = match &args.table {
        Some(table) => std::slice::from_ref(table),
        None => Table::value_variants(),
    };
    for table in tables {
        let done = match table {
            Table::GupFast => gup_fast::main(args.rounds as usize, args.json),
            Table::Reuse => reuse::main(args.rounds as usize, args.json),
        };
        if let Err(message) = done {
            eprintln!("mmlab: repro: {message}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
