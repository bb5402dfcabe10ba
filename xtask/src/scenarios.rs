//! `cargo xtask scenarios`: the supported scenarios under every policy.
//!
//! `xtask/scenarios.txt` names them, one per line. A scenario enters the list
//! when every operation in it is built, and never leaves it.

use std::fs;
use std::path::PathBuf;

use crate::cmd::{self, Error};
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Every preset of `mmlab run --policy`.
const POLICIES: [&str; 4] = ["linux-6.18", "series", "best", "baseline"];

/// Options of the `scenarios` task.
#[derive(clap::Args, Debug, Default)]
pub struct Options {
    /// Only this policy.
    #[arg(long)]
    pub policy: Option<String>,
}

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    let list = ws.root.join("xtask/scenarios.txt");
    let names = parse(&fs::read_to_string(&list).map_err(Error::file(&list))?);
    let files: Vec<PathBuf> = names
        .iter()
        .map(|n| ws.root.join("crates/mm-scenario/data").join(format!("{n}.scn")))
        .collect();
    if let Some(missing) = files.iter().find(|f| !f.is_file()) {
        return Ok(Outcome::Failed(format!("{} is listed but not there", missing.display())));
    }
    if files.is_empty() {
        return Ok(Outcome::Failed(format!("{} lists nothing", list.display())));
    }

    let mut failed = Vec::new();
    let policies = POLICIES.iter().copied().filter(|p| o.policy.as_deref().is_none_or(|q| q == *p));
    let mut ran = 0;
    for policy in policies {
        let mut c = ws.cargo(&["run", "--quiet", "--release", "--package", "mmlab", "--", "run"]);
        // The observations are for people; the verdicts come on both streams.
        c.args(&files).args(["--policy", policy, "--check"]);
        eprintln!("+ mmlab run <{} scenarios> --policy {policy} --check", files.len());
        ran += 1;
        let out = c.output().map_err(|e| cmd::spawn_error(&c, &e))?;
        let text = String::from_utf8_lossy(&out.stdout);
        for line in text.lines().filter(|l| !l.starts_with('{')) {
            println!("{line}");
        }
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        // The count too: a program that checked nothing also exits with 0.
        if !out.status.success() || tally(&text) != Some((files.len(), 0)) {
            failed.push(policy);
        }
    }
    Ok(match (ran, failed.as_slice()) {
        (0, _) => Outcome::Failed(format!("unknown policy; one of {}", POLICIES.join(", "))),
        (n, []) => Outcome::Ok(format!("{} scenarios x {n} policies", files.len())),
        (_, f) => Outcome::Failed(format!("differs under {}", f.join(", "))),
    })
}

/// The closing line of `--check`, `N passed, N failed`.
fn tally(text: &str) -> Option<(usize, usize)> {
    text.lines().rev().find_map(|l| {
        let (passed, failed) = l.split_once(" passed, ")?;
        Some((passed.trim().parse().ok()?, failed.strip_suffix(" failed")?.parse().ok()?))
    })
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
        assert_eq!(tally("{\"line\":1}\n12 passed, 3 failed\n"), Some((12, 3)));
        assert_eq!(tally("{\"line\":1}\n"), None);
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
