//! `cargo xtask fail-each`: the supported scenarios with allocations failing, one in each run.
//!
//! In the profile of tests, as the scenarios themselves, and with the whole machine audited after
//! each operation.

use crate::cmd::{self, Error};
use crate::scenarios;
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Allocations of each scenario that fail, unless all do.
const SAMPLE: &str = "4";

/// Policies and entry formats of a deep run; the first is that of every other.
const RUNS: [(&str, &str); 4] = [
    ("best", "x86_64"),
    ("linux-6.18", "x86_64"),
    ("series", "arm64-4k,x86-pae"),
    ("baseline", "x86_64"),
];

/// Options of the `fail-each` task.
#[derive(clap::Args, Debug, Default)]
pub struct Options {
    /// Every allocation, under every policy, and on formats with blocks and with entries of two
    /// words.
    #[arg(long)]
    pub deep: bool,
}

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    let files = scenarios::supported(ws)?;
    let (runs, sample) = if o.deep { (&RUNS[..], "all") } else { (&RUNS[..1], SAMPLE) };
    let (mut tried, mut failed) = (0u64, Vec::new());
    for (policy, formats) in runs {
        let mut c = ws.cargo(&["run", "--quiet", "--package", "mmlab", "--", "run"]);
        c.args(&files).args(["--fail-each", sample, "--policy", policy, "--arch", formats]);
        // What a scenario needs; the more memory, the more an audit looks at.
        c.args(["--memory", "16M"]);
        let n = files.len();
        eprintln!("+ mmlab run <{n} scenarios> --fail-each {sample} --policy {policy}");
        let out = c.output().map_err(|e| cmd::spawn_error(&c, &e))?;
        let text = String::from_utf8_lossy(&out.stdout);
        print!("{text}");
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        // The counts too: a program that tried nothing also exits with 0.
        match (scenarios::tally(&text), self::tried(&text).as_slice()) {
            (Some(tally), [frames, heap])
                if out.status.success() && tally.is_whole(n) && *frames > 0 && *heap > 0 =>
            {
                tried += frames + heap;
            }
            _ => failed.push(*policy),
        }
    }
    Ok(match failed.as_slice() {
        [] => Outcome::Ok(format!("{} scenarios, {tried} allocations failed", files.len())),
        f => Outcome::Failed(format!("not stood under {}", f.join(", "))),
    })
}

/// The allocations that were made to fail, of each kind: `N of N allocations of …`.
fn tried(text: &str) -> Vec<u64> {
    let of = |line: &str| line.split_once(" allocations of ")?.0.split_once(" of ")?.0.parse().ok();
    text.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_read() {
        let text = "x: why\n12 of 90 allocations of frames made to fail, 8 refused\n\
                    3 of 4 allocations of the heap made to fail, 1 refused\n3 passed, 0 failed\n";
        assert_eq!(tried(text), [12, 3]);
        assert!(tried("3 passed, 0 failed\n").is_empty());
    }
}
