//! `cargo xtask scenarios`: the supported scenarios under every policy, and on every entry format
//! with their page size, with the whole machine audited after each operation; and those for other
//! page sizes on the formats that have them.
//!
//! In the profile of tests, which has built all formats already and checks more.
//!
//! `xtask/scenarios.txt` names them, one per line. A scenario enters the list
//! when every operation in it is built, and never leaves it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cmd::{self, Error};
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Every preset of `mmlab run --policy`, and the entry formats it runs on. What a policy does
/// differently, it does above the formats.
const POLICIES: [(&str, &str); 4] =
    [("linux-6.18", "all"), ("series", "x86_64"), ("best", "x86_64"), ("baseline", "x86_64")];

/// Names the supported scenarios.
const LIST: &str = "xtask/scenarios.txt";

/// The folder of scenarios for other page sizes, and the formats that have those.
const OTHER_PAGES: (&str, &str) = ("crates/mm-scenario/data/pages", "arm64-16k,arm64-64k");

/// Options of the `scenarios` task.
#[derive(clap::Args, Debug, Default)]
pub struct Options {
    /// Only this policy.
    #[arg(long)]
    pub policy: Option<String>,
    /// On these entry formats.
    #[arg(long)]
    pub arch: Option<String>,
}

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    let files = supported(ws)?;
    if let Some(missing) = files.iter().find(|f| !f.is_file()) {
        return Ok(Outcome::Failed(format!("{} is listed but not there", missing.display())));
    }
    if files.is_empty() {
        return Ok(Outcome::Failed(format!("{LIST} lists nothing")));
    }

    let mut failed = Vec::new();
    let chosen = |(policy, _): &(&str, &str)| o.policy.as_deref().is_none_or(|q| q == *policy);
    let mut total = Tally::default();
    let others = scenarios_in(&ws.root.join(OTHER_PAGES.0))?;
    for (policy, formats) in POLICIES.into_iter().filter(chosen) {
        let formats = o.arch.as_deref().unwrap_or(formats);
        let others = o.arch.is_none().then_some((&others, OTHER_PAGES.1));
        for (files, formats) in std::iter::once((&files, formats)).chain(others) {
            let t = check(ws, files, formats, policy)?;
            match t {
                Some(t) => total += t,
                None => failed.push(policy),
            }
        }
    }
    Ok(match failed.as_slice() {
        [] if total.judged() == 0 => {
            let names: Vec<_> = POLICIES.iter().map(|(policy, _)| *policy).collect();
            Outcome::Failed(format!("unknown policy; one of {}", names.join(", ")))
        }
        [] => Outcome::Ok(format!(
            "{} scenarios passed on {} policies and formats, {} n/a",
            files.len() + others.len(),
            total.judged() / files.len(),
            total.not_applicable
        )),
        f => Outcome::Failed(format!("differs under {}", f.join(", "))),
    })
}

/// The scenarios that are listed.
pub fn supported(ws: &Workspace) -> Result<Vec<PathBuf>, Error> {
    let list = ws.root.join(LIST);
    let names = parse(&fs::read_to_string(&list).map_err(Error::file(&list))?);
    let data = ws.root.join("crates/mm-scenario/data");
    Ok(names.iter().map(|n| data.join(format!("{n}.scn"))).collect())
}

/// The scenarios of a folder.
fn scenarios_in(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for file in fs::read_dir(dir).map_err(Error::file(dir))? {
        files.push(file.map_err(Error::file(dir))?.path());
    }
    files.retain(|f| f.extension().is_some_and(|e| e == "scn"));
    files.sort();
    Ok(files)
}

/// Runs `files` and says what they came to, if none failed.
fn check(
    ws: &Workspace,
    files: &[PathBuf],
    formats: &str,
    policy: &str,
) -> Result<Option<Tally>, Error> {
    let mut c = ws.cargo(&["run", "--quiet", "--package", "mmlab", "--", "run"]);
    // The observations are for people; the verdicts come on both streams.
    c.args(files).args(["--arch", formats, "--policy", policy, "--check", "--audit"]);
    // What a scenario needs; the more memory, the more an audit looks at.
    c.args(["--memory", "16M"]);
    let n = files.len();
    eprintln!("+ mmlab run <{n} scenarios> --arch {formats} --policy {policy} --check --audit");
    let out = c.output().map_err(|e| cmd::spawn_error(&c, &e))?;
    let text = String::from_utf8_lossy(&out.stdout);
    for line in text.lines().filter(|l| !l.starts_with('{')) {
        println!("{line}");
    }
    eprint!("{}", String::from_utf8_lossy(&out.stderr));
    // The count too: a program that checked nothing also exits with 0.
    Ok(tally(&text).filter(|t| out.status.success() && t.is_whole(n)))
}

/// How many scenarios came to what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    passed: usize,
    failed: usize,
    not_applicable: usize,
}

impl Tally {
    fn judged(self) -> usize {
        self.passed + self.failed + self.not_applicable
    }
    /// Whether each of `n` scenarios passed, or does not apply, on one format or several.
    pub fn is_whole(self, n: usize) -> bool {
        self.failed == 0 && self.passed > 0 && self.judged().is_multiple_of(n)
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.not_applicable += other.not_applicable;
    }
}

/// The closing line of `--check`: `N passed, N failed`, and `N n/a` if there are any.
pub fn tally(text: &str) -> Option<Tally> {
    let counts = |line: &str| {
        let (passed, rest) = line.split_once(" passed, ")?;
        let (failed, rest) = rest.split_once(" failed")?;
        let not_applicable = match rest {
            "" => "0",
            rest => rest.strip_prefix(", ")?.strip_suffix(" n/a")?,
        };
        Some(Tally {
            passed: passed.parse().ok()?,
            failed: failed.parse().ok()?,
            not_applicable: not_applicable.parse().ok()?,
        })
    };
    text.lines().rev().find_map(counts)
}

/// Names, one per line; `#` starts a comment.
fn parse(text: &str) -> Vec<String> {
    text.lines()
        .map(|l| l.split('#').next().unwrap_or_default().trim())
        .filter(|l| !l.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_blanks_are_no_names() {
        assert_eq!(parse("# head\n\nfault_64kb # first\n  fork_2m\n"), ["fault_64kb", "fork_2m"]);
    }

    #[test]
    fn the_closing_line_is_read() {
        let counts = |passed, failed, not_applicable| Tally { passed, failed, not_applicable };
        assert_eq!(tally("{\"line\":1}\n12 passed, 3 failed\n"), Some(counts(12, 3, 0)));
        assert_eq!(tally("n/a: x: a b\n12 passed, 3 failed, 2 n/a\n"), Some(counts(12, 3, 2)));
        assert_eq!(tally("{\"line\":1}\n"), None);
        assert!(counts(10, 0, 2).is_whole(6) && counts(6, 0, 0).is_whole(6));
        for partial in [counts(7, 0, 0), counts(11, 1, 0), counts(0, 0, 6), counts(0, 0, 0)] {
            assert!(!partial.is_whole(6), "{partial:?}");
        }
    }

    #[test]
    fn the_list_is_sorted_and_without_doubles() {
        let text = include_str!("../scenarios.txt");
        let names = parse(text);
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(names, sorted);
    }
}
