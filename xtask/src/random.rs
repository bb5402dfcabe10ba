//! `cargo xtask random`: random scenarios of anonymous memory under every policy.
//!
//! Seeds are fixed, so a failure is there the next time as well. The proptest of
//! `mm-sim` does the same for a few, and shrinks what it finds.

use crate::cmd::{self, Error};
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Options of the `random` task.
#[derive(clap::Args, Debug, Default)]
pub struct Options {
    /// 10,000 scenarios instead of 500.
    #[arg(long)]
    pub deep: bool,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    pub first: u64,
}

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    let count = if o.deep { 10_000 } else { 500 };
    let mut c = ws.cargo(&["run", "--quiet", "--release", "--package", "mm-sim"]);
    c.args(["--example", "random_scenarios", "--", &count.to_string(), &o.first.to_string()]);
    let out = c.output().map_err(|e| cmd::spawn_error(&c, &e))?;
    let text = String::from_utf8_lossy(&out.stdout);
    print!("{text}");
    eprint!("{}", String::from_utf8_lossy(&out.stderr));
    let last = text.lines().last().unwrap_or_default().to_owned();
    // The count too: a program that ran nothing also exits with 0.
    Ok(if out.status.success() && last.starts_with(&format!("{count} scenarios")) {
        Outcome::Ok(last)
    } else {
        Outcome::Failed("see above".to_owned())
    })
}
