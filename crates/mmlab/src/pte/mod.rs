//! `mmlab pte`: page-table entries in words.
//!
//! Any value is explained, also one that no kernel would write: what is wrong about
//! it is listed as faults, and is no error of the command.

mod picture;
mod words;

use crate::cli::{self, say};
use clap::ColorChoice;
use mm_arch::Level;
use mmlab_formats::names::{level as level_name, one_of};
use mmlab_formats::{Format, Spec};
use std::process::ExitCode;

/// Arguments of `pte`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Says what raw values mean, bit by bit, and what is inconsistent about them.
    Decode(Decode),
    /// Makes the raw value of an entry.
    Encode(Encode),
}

/// Where an entry stands, and how it is shown.
#[derive(clap::Args, Debug)]
struct Common {
    /// Entry format.
    #[arg(long, value_name = "NAME", help = format!("Entry format: {}", Format::names()))]
    arch: Option<String>,
    /// Level of the table that the entry stands in: pte, pmd, pud, p4d, pgd.
    #[arg(long, default_value = "pte", value_parser = level)]
    level: Level,
    /// Print JSON, one object per value.
    #[arg(long)]
    json: bool,
}

/// Arguments of `pte decode`.
#[derive(clap::Args, Debug)]
struct Decode {
    #[command(flatten)]
    common: Common,
    /// When to use colours.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
    /// Raw values, in hexadecimal with or without 0x.
    #[arg(value_name = "VALUE", value_parser = raw)]
    values: Vec<u64>,
}

/// Arguments of `pte encode`.
#[derive(clap::Args, Debug)]
struct Encode {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    spec: Spec,
}

impl Common {
    fn format(&self) -> Result<Format, String> {
        let Some(name) = &self.arch else {
            return Err(format!("say which format with --arch: one of {}", Format::names()));
        };
        let format = Format::named(name)?;
        if format.levels.contains(&self.level) {
            return Ok(format);
        }
        let levels: Vec<_> = format.levels.iter().rev().map(|l| level_name(*l)).collect();
        let (arch, level) = (format.name, level_name(self.level));
        Err(format!("{arch} has no level {level}; one of {}", levels.join(", ")))
    }
}

/// Runs the subcommand.
pub fn main(args: &Args) -> ExitCode {
    let done = match &args.command {
        Command::Decode(args) => args.run(),
        Command::Encode(args) => args.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => cli::bad_input(e),
    }
}

impl Decode {
    fn run(&self) -> Result<(), String> {
        let format = self.common.format()?;
        if self.values.is_empty() {
            return Err("nothing to decode: give raw values, in hexadecimal".into());
        }
        for (k, raw) in self.values.iter().enumerate() {
            let decoded = (format.decode)(*raw, self.common.level);
            if self.common.json {
                say(words::json(format, &decoded));
                continue;
            }
            if k > 0 {
                say("");
            }
            let text = picture::page(format, &decoded);
            if colours(self.color) { say(text) } else { say(anstream::adapter::strip_str(&text)) }
        }
        Ok(())
    }
}

impl Encode {
    fn run(&self) -> Result<(), String> {
        let (format, level) = (self.common.format()?, self.common.level);
        let raw = (format.encode)(&self.spec, level)?;
        if self.common.json {
            say(words::json(format, &(format.decode)(raw, level)));
        } else {
            say(format_args!("{raw:#018x}"));
        }
        Ok(())
    }
}

/// Whether standard output is to be coloured.
fn colours(when: ColorChoice) -> bool {
    match when {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
        }
    }
}

fn level(word: &str) -> Result<Level, String> {
    const ALL: [Level; 5] = [Level::Pte, Level::Pmd, Level::Pud, Level::P4d, Level::Pgd];
    one_of("level", &word.to_lowercase(), &ALL, level_name)
}

/// Reads a raw value.
fn raw(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let digits = digits.replace('_', "");
    // `from_str_radix` takes a sign.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err("it is not a hexadecimal number".into());
    }
    u64::from_str_radix(&digits, 16).map_err(|_| "it has more than 64 bits".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_values() {
        for text in ["8000000012345025", "0x8000_0000_1234_5025", "0X8000000012345025"] {
            assert_eq!(raw(text), Ok(0x8000_0000_1234_5025), "{text}");
        }
        for bad in ["", "0x", "+1", "-1", "0xg", "10000000000000000", "µ", "1 2"] {
            assert!(raw(bad).is_err(), "{bad}");
        }
        assert_eq!(level("PMD"), Ok(Level::Pmd));
        assert!(level("").is_err());
    }

    /// No bit, one, one beside the lowest or the highest, all, and a spread of others.
    fn values() -> impl Iterator<Item = u64> {
        let few = (0..64).flat_map(|a| [1u64 << a, 1 << a | 1, 1 << a | 1 << 63]);
        let spread = (1..100u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17));
        [0, !0].into_iter().chain(few).chain(spread)
    }

    #[test]
    fn any_value_is_explained() {
        for format in &mmlab_formats::FORMATS {
            for level in format.levels.iter().copied() {
                for raw in values() {
                    let decoded = (format.decode)(raw, level);
                    let page = picture::page(*format, &decoded);
                    let text = anstream::adapter::strip_str(&page).to_string();
                    let picture = text.lines().find(|l| {
                        l.bytes().all(|b| matches!(b, b' ' | b'0' | b'1')) && l.len() > 64
                    });
                    let digits: String = picture.expect("a picture").split_whitespace().collect();
                    assert_eq!(u64::from_str_radix(&digits, 2), Ok(raw), "{}", format.name);
                    assert_eq!(text.matches("fault  ").count(), decoded.faults.len());
                    let json = words::json(*format, &decoded);
                    let shown = json["raw"].as_str().expect("text");
                    assert_eq!(super::raw(shown), Ok(raw));
                }
            }
        }
    }
}
