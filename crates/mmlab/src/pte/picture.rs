//! A value as a page of text, with its bits in the colours of their fields.

use super::words;
use anstyle::{AnsiColor, Style};
use mm_arch::explain::Field;
use mmlab_formats::names::level as level_name;
use mmlab_formats::{Decoded, Format};
use std::fmt::Write;

/// The colours of fields, in turn.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Yellow,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::BrightCyan,
];
const FAULT: Style = AnsiColor::Red.on_default().bold();
const TITLE: Style = Style::new().bold();

fn colour(index: usize) -> Style {
    COLOURS[index % COLOURS.len()].on_default()
}

/// Everything about a value: what it means, its bits, each field, its faults.
pub fn page(format: Format, decoded: &Decoded) -> String {
    let x = &decoded.explanation;
    let mut out = String::new();
    let level = level_name(x.level);
    // Writing to a string does not fail.
    let _ = writeln!(out, "{TITLE}{:#018x}{TITLE:#}  {level} of {}", x.raw, format.name);
    let _ = writeln!(out, "  {}", words::meaning(format, x));
    let facts = words::facts(x);
    if !facts.is_empty() {
        let _ = writeln!(out, "  {}", facts.join(", "));
    }
    let mut fields: Vec<_> = x.fields.iter().collect();
    fields.sort_by_key(|f| std::cmp::Reverse(f.shift));
    let bad = decoded.faults.iter().fold(0, |bits, fault| bits | fault.bits);
    let _ = writeln!(out, "  {}", bits(&fields, x.raw, bad));
    let name_width = fields.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for (k, f) in fields.iter().enumerate() {
        let (style, value) = (colour(k), f.value(x.raw));
        let value_text = if f.width == 1 { value.to_string() } else { format!("{value:#x}") };
        let meaning = if value == 0 { "" } else { f.meaning };
        let line = format!(
            "  {:>6}  {style}{:name_width$}{style:#}  {value_text:<14}{meaning}",
            words::bits(f),
            f.name,
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    for fault in &decoded.faults {
        let _ = writeln!(out, "  {FAULT}fault{FAULT:#}  {:#x}: {}", fault.bits, fault.what);
    }
    out.truncate(out.trim_end().len());
    out
}

/// The 64 bits, highest first, a gap between fields; those of faults in red.
fn bits(fields: &[&Field], raw: u64, bad: u64) -> String {
    let mut out = String::new();
    for (k, f) in fields.iter().enumerate() {
        if k > 0 {
            out.push(' ');
        }
        for bit in (f.shift..f.shift + f.width).rev() {
            let is_bad = bad >> bit & 1 != 0;
            let style = if is_bad { FAULT } else { colour(k) };
            let _ = write!(out, "{style}{}{style:#}", raw >> bit & 1);
        }
    }
    out
}
