//! `cargo xtask stress`: reclaim under load.
//!
//! The example `stress` of mm-sim, with the assertions of a debug build. Further, short runs
//! have a bug each and must fail: a stress that finds nothing in a machine that is broken
//! proves nothing.

use std::process::Output;
use std::time::UNIX_EPOCH;

use crate::cmd::{self, Error};
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Seconds of a run, of one with `--deep`, and the most that a planted bug may go unseen.
const SECONDS: [u32; 3] = [20, 600, 20];

/// Bugs that have to be found, each by itself.
const PLANTED: [&str; 6] = ["flushes", "words", "marks", "stores", "references", "slots"];

/// Options of the `stress` task.
#[derive(clap::Args, Debug, Default)]
pub struct Options {
    /// Ten minutes instead of twenty seconds.
    #[arg(long)]
    pub deep: bool,
    /// The first seed; one by the clock unless given.
    #[arg(long)]
    pub seed: Option<u64>,
}

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    let [short, deep, planted] = SECONDS.map(|s| s.to_string());
    let seed = o.seed.map(|s| s.to_string());
    let seconds = if o.deep { &deep } else { &short };
    let now = || UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64).to_string();
    let begin = seed.clone().unwrap_or_else(now);
    let out = stress(ws, &[seconds, &begin])?;
    let text = String::from_utf8_lossy(&out.stdout);
    print!("{text}");
    eprint!("{}", String::from_utf8_lossy(&out.stderr));
    if !out.status.success() {
        // What an audit found follows in lines of its own.
        let failed = text.lines().find(|l| l.contains("failed")).or(text.lines().last());
        return Ok(Outcome::Failed(failed.unwrap_or("no output").to_owned()));
    }
    let first = seed.as_deref().unwrap_or("1");
    for bug in PLANTED {
        let broken = stress(ws, &[&planted, first, bug])?;
        // Found, and not refused for its name.
        if !String::from_utf8_lossy(&broken.stdout).contains("failed") {
            return Ok(Outcome::Failed(format!("{bug} are lost, and nothing is found")));
        }
    }
    Ok(Outcome::Ok(text.lines().last().unwrap_or_default().to_owned()))
}

fn stress(ws: &Workspace, args: &[&str]) -> Result<Output, Error> {
    let mut c = ws.cargo(&["run", "--quiet", "--package", "mm-sim", "--example", "stress", "--"]);
    c.args(args);
    c.output().map_err(|e| cmd::spawn_error(&c, &e))
}
