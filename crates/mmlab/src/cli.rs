//! Arguments, and what they have in common.

use clap::{Parser, Subcommand};
use mm_sim::Preset;
use mmlab_formats::names::one_of;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Memory management in user space: scenarios, benchmarks, tables.
#[derive(Parser, Debug)]
#[command(name = "mmlab", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Runs scenarios and prints what they observe, one line of JSON each.
    Run(crate::run::Args),
    /// Times and counts GUP over a region, as the kernel's gup_test does.
    GupTest(crate::gup_test::GupTestArgs),
    /// Explains page-table entries, and makes them.
    Pte(crate::pte::Args),
    /// Prints the tables of the patch series: before, after, published.
    Repro(crate::repro::ReproArgs),
}

/// The exit code of bad input.
pub const BAD_INPUT: u8 = 2;

/// One line about bad input, and its exit code.
pub fn bad_input(message: impl std::fmt::Display) -> ExitCode {
    eprintln!("mmlab: {message}");
    ExitCode::from(BAD_INPUT)
}

/// Prints one line to standard output. Where it cannot, the program ends with 1:
/// in silence if nobody reads on, as in `mmlab … | head -1`.
pub fn say(line: impl std::fmt::Display) {
    if let Err(e) = writeln!(std::io::stdout(), "{line}") {
        if e.kind() != ErrorKind::BrokenPipe {
            eprintln!("mmlab: standard output: {e}");
        }
        std::process::exit(1);
    }
}

/// What the argument parser has to say: help as it is, also where a command is missing, an error
/// as one line.
pub fn usage(e: &clap::Error) -> ExitCode {
    if e.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = e.print();
        return ExitCode::from(BAD_INPUT);
    }
    if !e.use_stderr() {
        // A closed pipe is no reason to fail.
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    let text = e.to_string();
    // Values that are missing or possible stand on lines of their own.
    let paragraph: Vec<_> =
        text.lines().map(str::trim).take_while(|l| !l.starts_with("Usage:")).collect();
    let line = paragraph.join(" ");
    let line = line.split("For more information").next().unwrap_or_default();
    bad_input(line.trim().trim_start_matches("error: "))
}

/// Reads the name of a policy.
///
/// # Errors
///
/// A sentence that lists the names.
pub fn policy(text: &str) -> Result<Preset, String> {
    one_of("policy", text, Preset::ALL, Preset::name)
}

/// Reads an amount of memory in bytes, with `k`, `M` or `G` behind the number.
///
/// # Errors
///
/// A sentence on what is wrong with it.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let n: u64 = digits.parse().map_err(|_| format!("{text:?} is not a number of bytes"))?;
    n.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("3M"), Ok(3 << 20));
        assert_eq!(bytes("1G"), Ok(1 << 30));
        for bad in ["", "k", "1T", "-1", "1.5G", "99999999999G", "µ"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names() {
        assert_eq!(policy("linux-6.18"), Ok(Preset::Linux618));
        let message = policy("linux").expect_err("no such policy");
        assert_eq!(message, "unknown policy \"linux\"; one of baseline, linux-6.18, series, best");
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
