//! The tables of the patch series, before and after.

mod dio;
mod gup_fast;
mod gup_slow;
mod line;
mod reclaim;
pub mod reference;
mod register_buffers;
mod request;
mod reuse;

use clap::{Args, ValueEnum};
use std::process::ExitCode;

/// A table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Table {
    /// Patch series 002: GUP-fast over 256 MiB, five folio sizes, get and pin.
    GupFast,
    /// Patch series 000 and 001: long-term pins by slow GUP, a table each.
    GupSlow,
    /// Patch series 003: write faults after fork and exit, four reuse policies.
    Reuse,
    /// Patch series 004: unmapping by reclaim, four policies, files, lazily freed memory and
    /// what userfaultfd write-protects.
    Reclaim,
    /// The pin share of O_DIRECT reads, blocks of 64 KiB and 1 MiB.
    Dio,
    /// The pin share of one registration of 1 GiB with io_uring.
    RegisterBuffers,
}

/// What is reclaimed is made anew in each round.
const RECLAIM_ROUNDS: usize = 5;

/// Arguments of `mmlab repro`.
#[derive(Args, Debug)]
pub struct ReproArgs {
    /// Which tables; all by default.
    tables: Vec<Table>,
    /// One JSON object per line and cell instead of tables.
    #[arg(long)]
    json: bool,
    /// Interleaved rounds per cell.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
    /// MiB of the region of `reclaim`.
    #[arg(long, default_value_t = 1024, value_name = "MIB", value_parser = clap::value_parser!(u64).range(32..=32768))]
    size: u64,
}

/// Runs `mmlab repro`.
pub fn main(args: &ReproArgs) -> ExitCode {
    let tables = match args.tables.as_slice() {
        [] => Table::value_variants(),
        named => named,
    };
    for table in tables {
        let (rounds, json) = (args.rounds as usize, args.json);
        let done = match table {
            Table::GupFast => gup_fast::main(rounds, json),
            Table::GupSlow => gup_slow::main(rounds, json),
            Table::Reuse => reuse::main(rounds, json),
            Table::Reclaim => {
                reclaim::main(rounds.min(RECLAIM_ROUNDS), args.size << 20 >> 21 << 21, json)
            }
            Table::Dio => dio::main(rounds, json),
            Table::RegisterBuffers => register_buffers::main(rounds, json),
        };
        if let Err(message) = done {
            return crate::cli::bad_input(format_args!("repro: {message}"));
        }
    }
    ExitCode::SUCCESS
}
