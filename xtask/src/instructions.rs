//! `cargo xtask instructions`: how many instructions the hot paths take.
//!
//! `xtask/instructions.tsv` has one line per hot path: which example to run,
//! which function in it is the region, for how many units of work (pages) it
//! runs, and how many instructions one unit took when the line was written.
//! Valgrind counts only inside the region, callees included, so start-up and
//! set-up do not blur the figure, and the machine's load does not move it.
//!
//! A region is a function marked `#[inline(never)]`; give it a name that no
//! other function contains. More than the tolerance above the figure fails,
//! and so does a region that was never entered. Less is an improvement that
//! `--bless` writes down.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use crate::cmd::{self, Error};
use crate::step::Outcome;
use crate::workspace::Workspace;

const TABLE: &str = "xtask/instructions.tsv";

/// Options of the `instructions` task.
#[derive(clap::Args, Debug, Default)]
pub struct Options {
    /// Run only entries whose name contains this.
    pub filter: Option<String>,
    /// Write the measured figures into the table.
    #[arg(long)]
    pub bless: bool,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    name: String,
    package: String,
    example: String,
    args: Vec<String>,
    region: String,
    units: u64,
    /// Instructions per unit.
    expected: f64,
    tolerance_percent: f64,
}

impl Entry {
    fn parse(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
        let [name, package, example, args, region, units, expected, tolerance] = fields[..] else {
            return Err(format!("{} fields instead of 8", fields.len()));
        };
        let number = |what: &str, s: &str| match s.parse::<f64>() {
            Ok(x) if x.is_finite() && x >= 0.0 => Ok(x),
            _ => Err(format!("{what} `{s}` is not a number")),
        };
        let units = units.parse().ok().filter(|&u| u > 0);
        Ok(Entry {
            name: name.into(),
            package: package.into(),
            example: example.into(),
            args: if args == "-" {
                Vec::new()
            } else {
                args.split_whitespace().map(str::to_owned).collect()
            },
            region: region.into(),
            units: units.ok_or_else(|| format!("units of `{name}` must be a number above 0"))?,
            expected: number("expected", expected)?,
            tolerance_percent: number("tolerance", tolerance)?,
        })
    }

    /// How `total` instructions in the region compare with the line.
    fn judge(&self, total: u64) -> (f64, Verdict) {
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
        let per_unit = total as f64 / self.units as f64;
        let slack = self.expected * self.tolerance_percent / 100.0;
        let verdict = if total == 0 {
            Verdict::NotEntered
        } else if per_unit > self.expected + slack {
            Verdict::Worse
        } else if per_unit < self.expected - slack {
            Verdict::Better
        } else {
            Verdict::Same
        };
        (per_unit, verdict)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Same,
    Better,
    Worse,
    NotEntered,
}

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    let path = ws.root.join(TABLE);
    let text = fs::read_to_string(&path).map_err(Error::file(&path))?;
    let entries = parse(&text)?;
    let entries: Vec<&Entry> = entries
        .iter()
        .filter(|e| o.filter.as_ref().is_none_or(|f| e.name.contains(f.as_str())))
        .collect();
    if entries.is_empty() {
        return Ok(Outcome::Skipped(format!("no entry in {TABLE}")));
    }
    if !cmd::present("valgrind") {
        return Ok(Outcome::Skipped(
            "valgrind is not installed; no instruction was counted".into(),
        ));
    }
    let examples: BTreeSet<_> = entries.iter().map(|e| (&e.package, &e.example)).collect();
    for (package, example) in examples {
        let features = features(ws, package, example);
        let mut c = ws.cargo(&[
            "build",
            "--quiet",
            "--release",
            "--package",
            package,
            "--example",
            example,
        ]);
        if !features.is_empty() {
            c.args(["--features", &features]);
        }
        cmd::run(&mut c)?;
    }

    let mut bad = Vec::new();
    let mut blessed = text.clone();
    println!("{:<32} {:>12} {:>12}  per unit", "hot path", "expected", "measured");
    for e in &entries {
        let total = count(ws, e)?;
        let (per_unit, verdict) = e.judge(total);
        let word = match verdict {
            Verdict::Same => "ok",
            Verdict::Better if o.bless => "written to the table",
            Verdict::Better => "ok, better than the table",
            Verdict::Worse if o.bless => "written to the table",
            Verdict::Worse => "FAILED",
            Verdict::NotEntered => "FAILED: region never entered",
        };
        println!("{:<32} {:>12.2} {:>12.2}  {word}", e.name, e.expected, per_unit);
        if verdict == Verdict::NotEntered || (verdict == Verdict::Worse && !o.bless) {
            bad.push(e.name.as_str());
        }
        if o.bless && verdict != Verdict::NotEntered {
            blessed = bless(&blessed, &e.name, per_unit);
        }
    }
    if o.bless {
        fs::write(&path, blessed).map_err(Error::file(&path))?;
    }
    Ok(if bad.is_empty() {
        Outcome::Ok(format!("{} hot paths", entries.len()))
    } else {
        Outcome::Failed(format!("more instructions than the table allows: {}", bad.join(", ")))
    })
}

/// The entries of the table; `#` starts a comment line.
fn parse(text: &str) -> Result<Vec<Entry>, Error> {
    text.lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'))
        .map(|(i, l)| Entry::parse(l).map_err(|e| Error::Input(format!("{TABLE}:{}: {e}", i + 1))))
        .collect()
}

/// The table with another figure in the line of `name`.
fn bless(text: &str, name: &str, per_unit: f64) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut fields: Vec<&str> = line.split('\t').collect();
        let figure = format!("{per_unit:.2}");
        if !line.starts_with('#') && fields.len() == 8 && fields[0].trim() == name {
            fields[6] = &figure;
        }
        out.push_str(&fields.join("\t"));
        out.push('\n');
    }
    out
}

/// The features that an example asks for, comma-separated.
fn features(ws: &Workspace, package: &str, example: &str) -> String {
    let p = ws.packages.iter().find(|p| p.name == package);
    let e = p.and_then(|p| p.examples.iter().find(|(n, _)| n == example));
    e.map(|(_, f)| f.join(",")).unwrap_or_default()
}

/// Instructions executed inside the region of `e`.
fn count(ws: &Workspace, e: &Entry) -> Result<u64, Error> {
    let out = ws.target.join(format!("callgrind.{}.out", e.name.replace(['/', ' '], "_")));
    let mut c = Command::new("valgrind");
    c.args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=*{}*", e.region))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(ws.target.join("release/examples").join(&e.example))
        .args(&e.args)
        .current_dir(&ws.root)
        .stdout(Stdio::null());
    cmd::output(&mut c)?;
    let text = fs::read_to_string(&out).map_err(Error::file(&out))?;
    totals(&text).ok_or_else(|| Error::Input(format!("{}: no totals line", out.display())))
}

/// The sum that callgrind writes at the end of its file.
fn totals(text: &str) -> Option<u64> {
    text.lines()
        .rev()
        .find_map(|l| l.strip_prefix("totals:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "get/64k\tmm-gup\thot\t--folio 64k\thot_get\t1000\t4.00\t5";

    #[test]
    fn a_line_is_an_entry() {
        let e = Entry::parse(LINE).expect("parses");
        assert_eq!(e.args, ["--folio", "64k"]);
        assert_eq!((e.units, e.region.as_str()), (1000, "hot_get"));
    }

    #[test]
    fn bad_lines_name_line_and_reason() {
        let text = format!("# head\n{LINE}\nx\ty\n");
        let e = parse(&text).unwrap_err().to_string();
        assert!(e.contains("instructions.tsv:3") && e.contains("2 fields instead of 8"), "{e}");
        let e = parse(&LINE.replace("1000", "0")).unwrap_err().to_string();
        assert!(e.contains("must be a number above 0"), "{e}");
        assert!(parse(&LINE.replace("4.00", "NaN")).is_err());
    }

    #[test]
    fn verdicts() {
        let e = Entry::parse(LINE).expect("parses");
        assert_eq!(e.judge(4200).1, Verdict::Same);
        assert_eq!(e.judge(4201).1, Verdict::Worse);
        assert_eq!(e.judge(3799).1, Verdict::Better);
        assert_eq!(e.judge(0).1, Verdict::NotEntered);
    }

    #[test]
    fn bless_touches_one_figure() {
        let text = format!("# get/64k\n{LINE}\n{}\n", LINE.replace("get/64k", "pin/64k"));
        let new = bless(&text, "get/64k", 3.5);
        assert_eq!(new, text.replacen("\t4.00", "\t3.50", 1));
    }

    #[test]
    fn totals_are_read() {
        assert_eq!(totals("events: Ir\nfn=(1) x\n1 5\ntotals: 1234\n"), Some(1234));
        assert_eq!(totals("events: Ir\n"), None);
    }

    #[test]
    fn the_table_parses() {
        parse(include_str!("../instructions.tsv")).expect("parses");
    }
}
