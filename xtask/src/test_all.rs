//! `cargo xtask test-all`: everything that must pass before a commit lands.
//!
//! Exact operation counts (atomics, locks, entries read, flushes per call) are
//! ordinary tests of the crates; instruction counts are a step here, because
//! they need valgrind.

use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::cmd::{self, Error};
use crate::properties::{SEED, SEED_VARIABLE};
use crate::step::{Outcome, Report};
use crate::workspace::Workspace;
use crate::{fail_each, instructions, loom, no_std, rules, scenarios, stress};

/// Longest that an example may run.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(120);

/// Options of the `test-all` task.
#[derive(clap::Args, Debug, Default)]
pub struct Options {
    /// Run only these steps.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Leave these steps out; the table says so.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    pub skip: Vec<String>,
}

type Step = fn(&Workspace) -> Result<Outcome, Error>;

/// The steps in order: what fails fast comes first.
const STEPS: [(&str, Step); 14] = [
    ("fmt", fmt),
    ("rules", |ws| rules::run(ws, &rules::Options::quiet())),
    ("deny", deny),
    ("clippy", clippy),
    ("docs", docs),
    ("tests", tests),
    ("alone", alone),
    ("examples", examples),
    ("no-std", no_std::run),
    ("loom", |ws| loom::run(ws, &loom::Options::bounded())),
    ("scenarios", |ws| scenarios::run(ws, &scenarios::Options::default())),
    ("fail-each", |ws| fail_each::run(ws, &fail_each::Options::default())),
    ("stress", |ws| stress::run(ws, &stress::Options::default())),
    ("instructions", |ws| instructions::run(ws, &instructions::Options::default())),
];

/// Runs the steps, prints the table, fails if any step failed.
pub fn run(ws: &Workspace, o: &Options) -> ExitCode {
    if let Some(unknown) = o.only.iter().chain(&o.skip).find(|s| STEPS.iter().all(|(n, _)| n != s))
    {
        let names: Vec<&str> = STEPS.iter().map(|(n, _)| *n).collect();
        eprintln!("xtask: no step `{unknown}`; the steps are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let mut report = Report::default();
    for (name, step) in STEPS {
        if !o.only.is_empty() && !o.only.iter().any(|s| s == name) {
            continue;
        }
        if o.skip.iter().any(|s| s == name) {
            report.step(name, || Ok(Outcome::Skipped("left out by --skip".into())));
        } else {
            report.step(name, || step(ws));
        }
    }
    println!("\n{report}");
    if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn ok() -> Result<Outcome, Error> {
    Ok(Outcome::Ok(String::new()))
}

fn fmt(ws: &Workspace) -> Result<Outcome, Error> {
    cmd::run(&mut ws.cargo(&["fmt", "--all", "--check"]))?;
    // Not a member of the workspace.
    cmd::run(&mut ws.cargo(&[
        "fmt",
        "--check",
        "--manifest-path",
        "xtask/nostd-proof/Cargo.toml",
    ]))?;
    ok()
}

/// Licences, sources and banned crates of the dependencies.
fn deny(ws: &Workspace) -> Result<Outcome, Error> {
    if !cmd::present("cargo-deny") {
        return Ok(Outcome::Skipped("cargo-deny is not installed".into()));
    }
    // Advisories would need the network.
    cmd::run(&mut ws.cargo(&["deny", "--offline", "check", "bans", "licenses", "sources"]))?;
    ok()
}

fn clippy(ws: &Workspace) -> Result<Outcome, Error> {
    cmd::run(&mut ws.cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))?;
    ok()
}

/// Documentation of all crates, without a link that leads nowhere.
fn docs(ws: &Workspace) -> Result<Outcome, Error> {
    let mut c = ws.cargo(&["doc", "--workspace", "--no-deps", "--quiet", "--keep-going"]);
    cmd::run(c.env("RUSTDOCFLAGS", "-D warnings"))?;
    ok()
}

/// Unit, integration and documentation tests. Property tests run the same cases every time.
fn tests(ws: &Workspace) -> Result<Outcome, Error> {
    if !cmd::present("cargo-nextest") {
        let mut c = ws.cargo(&["test", "--workspace", "--quiet", "--no-fail-fast"]);
        cmd::run(c.env(SEED_VARIABLE, SEED))?;
        return Ok(Outcome::Ok(format!("cargo test, seed {SEED}")));
    }
    let mut c =
        ws.cargo(&["nextest", "run", "--workspace", "--no-fail-fast", "--status-level", "fail"]);
    let units = cmd::run(c.env(SEED_VARIABLE, SEED));
    // Both are wanted even if the first fails.
    let examples = cmd::run(&mut ws.cargo(&["test", "--workspace", "--doc", "--quiet"]));
    units.and(examples)?;
    Ok(Outcome::Ok(format!("cargo nextest with seed {SEED}, cargo test --doc")))
}

/// Every library crate as somebody gets it who takes only this one, without its
/// default features. One target directory for all: crates below are built once.
///
/// The unit tests are run; integration tests switch features on by their
/// dev-dependencies and are the `tests` step's. Crates that need std have no
/// features to do without: the workspace build is all there is of them.
fn alone(ws: &Workspace) -> Result<Outcome, Error> {
    let mut failed = Vec::new();
    let mut n = 0;
    for p in ws.libraries().filter(|p| p.is_no_std()) {
        n += 1;
        let build = ["build", "--quiet", "--no-default-features", "--package", &p.name];
        let test = ["test", "--quiet", "--no-default-features", "--lib", "--package", &p.name];
        // Built first and without dev-dependencies: they may switch on what the crate lacks.
        let both =
            cmd::run(&mut ws.cargo(&build)).and_then(|()| cmd::run_quiet(&mut ws.cargo(&test)));
        if let Err(e) = both {
            eprintln!("{e}");
            failed.push(p.name.as_str());
        }
    }
    Ok(match (n, failed.as_slice()) {
        (0, _) => Outcome::Failed("no library crate was found".into()),
        (n, []) => Outcome::Ok(format!("{n} crates")),
        (_, f) => Outcome::Failed(format!("not alone: {}", f.join(", "))),
    })
}

/// Builds every example and runs it without arguments.
fn examples(ws: &Workspace) -> Result<Outcome, Error> {
    let mut failed = Vec::new();
    let mut n = 0;
    for p in &ws.packages {
        for (name, features) in &p.examples {
            let features = features.join(",");
            let mut args = vec!["--package", &p.name, "--example", name];
            if !features.is_empty() {
                args.extend(["--features", &features]);
            }
            n += 1;
            let ran = cmd::run(ws.cargo(&["build", "--quiet"]).args(&args)).and_then(|()| {
                let mut c = ws.cargo(&["run", "--quiet"]);
                c.args(&args).stdout(Stdio::null());
                run_limited(&mut c, EXAMPLE_LIMIT)
            });
            if let Err(e) = ran {
                eprintln!("{e}");
                failed.push(format!("{}/{name}", p.name));
            }
        }
    }
    Ok(match (n, failed.as_slice()) {
        (0, _) => Outcome::Skipped("no examples".into()),
        (n, []) => Outcome::Ok(format!("{n} examples")),
        (_, f) => Outcome::Failed(f.join(", ")),
    })
}

/// Like [`cmd::run`], but kills what runs longer than `limit`.
fn run_limited(c: &mut std::process::Command, limit: Duration) -> Result<(), Error> {
    let start = Instant::now();
    let failed = |c: &_, status: String| Error::Failed { command: cmd::show(c), status };
    let mut child = c.spawn().map_err(|e| cmd::spawn_error(c, &e))?;
    loop {
        match child.try_wait() {
            Ok(Some(s)) if s.success() => return Ok(()),
            Ok(Some(s)) => return Err(failed(c, s.to_string())),
            Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(10)),
            _ => {
                // Already gone is as good as killed.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(c, format!("killed after {} s", limit.as_secs())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_names_are_unique() {
        let mut names: Vec<&str> = STEPS.iter().map(|(n, _)| *n).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let mut c = std::process::Command::new("/bin/sleep");
        let e = run_limited(c.arg("30"), Duration::from_millis(50)).unwrap_err();
        assert!(e.to_string().contains("killed"), "{e}");
    }
}
