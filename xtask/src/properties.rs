//! `cargo xtask properties`: property tests with seeds that nobody tried.
//!
//! `test-all` runs them from one [`SEED`], so that it says the same of the same sources. Here each
//! round takes another, and prints it: N rounds are N times as many cases.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cmd::{self, Error};
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Where proptest reads what its cases follow from.
pub const SEED_VARIABLE: &str = "PROPTEST_RNG_SEED";
/// What they follow from in `test-all`.
pub const SEED: &str = "1";

/// Options of the `properties` task.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Run only tests whose `binary::module` contains this.
    pub filter: Option<String>,
    /// Rounds, each with a seed of its own and as many cases as the tests have.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub rounds: u64,
    /// The seed of the first round; one by the clock unless given.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
}

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    let mut tests = Tests::default();
    for p in &ws.packages {
        tests.look(&p.dir.join("tests"), &mut Vec::new())?;
    }
    let runs = tests.runs(o.filter.as_deref());
    if runs.is_empty() || o.rounds == 0 {
        return Ok(Outcome::Failed("nothing to run".into()));
    }
    let first = o.seed.unwrap_or_else(by_the_clock);
    let mut failed = Vec::new();
    for seed in (first..=u64::MAX).take(o.rounds as usize) {
        eprintln!("seed {seed}");
        let mut holds = true;
        for run in &runs {
            let mut c = ws.cargo(&["test", "--workspace", "--quiet", "--no-fail-fast"]);
            c.args(run).env(SEED_VARIABLE, seed.to_string());
            holds &= cmd::run_quiet(&mut c).map_err(|e| eprintln!("{e}")).is_ok();
        }
        if !holds {
            failed.push(seed);
            eprintln!("again: cargo xtask properties --rounds 1 --seed {seed}");
        }
    }
    let rounds = o.rounds;
    Ok(match failed.as_slice() {
        [] => Outcome::Ok(format!("{rounds} rounds from seed {first}")),
        f => Outcome::Failed(format!("{} of {rounds} rounds, seeds {f:?}", f.len())),
    })
}

fn by_the_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The files of integration tests that hold property tests.
#[derive(Default)]
struct Tests {
    /// Binaries that are one file.
    files: BTreeSet<String>,
    /// Modules of the others.
    modules: BTreeMap<String, BTreeSet<String>>,
}

impl Tests {
    /// Looks through a folder, which is `path` below the tests of a package.
    fn look(&mut self, dir: &Path, path: &mut Vec<String>) -> Result<(), Error> {
        // A package without tests.
        let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
        for entry in entries {
            let file = entry.map_err(Error::file(dir))?.path();
            let Some(stem) = file.file_stem().and_then(|s| s.to_str()) else { continue };
            path.push(stem.to_owned());
            if file.is_dir() {
                self.look(&file, path)?;
            } else if file.extension().is_some_and(|e| e == "rs")
                && fs::read_to_string(&file).map_err(Error::file(&file))?.contains("proptest!")
            {
                self.found(path);
            }
            path.pop();
        }
        Ok(())
    }
    fn found(&mut self, path: &[String]) {
        match path {
            [] => {}
            [binary] => drop(self.files.insert(binary.clone())),
            [binary, module @ ..] => {
                let modules = self.modules.entry(binary.clone()).or_default();
                modules.insert(format!("{}::", module.join("::")));
            }
        }
    }
    /// What `cargo test` is called with: once for all single files, once for each of the others.
    fn runs(&self, filter: Option<&str>) -> Vec<Vec<String>> {
        let wanted = |name: &str| filter.is_none_or(|f| name.contains(f));
        let test = |name: &String| ["--test".to_owned(), name.clone()];
        let files: Vec<_> = self.files.iter().filter(|f| wanted(f)).flat_map(test).collect();
        let modules = self.modules.iter().filter_map(|(binary, modules)| {
            let is_wanted = |m: &&String| wanted(&format!("{binary}::{m}"));
            let modules: Vec<_> = modules.iter().filter(is_wanted).cloned().collect();
            let names = test(binary).into_iter().chain(["--".to_owned()]);
            (!modules.is_empty()).then(|| names.chain(modules).collect())
        });
        (!files.is_empty()).then_some(files).into_iter().chain(modules).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn property_tests_are_found_where_they_lie() {
        let ws = Workspace::load().expect("loads");
        let mut tests = Tests::default();
        for p in &ws.packages {
            tests.look(&p.dir.join("tests"), &mut Vec::new()).expect("read");
        }
        assert!(tests.files.contains("laws") && tests.modules["sim"].contains("random::"));
        assert_eq!(tests.runs(Some("sim::random")), [["--test", "sim", "--", "random::"]]);
        assert_eq!(tests.runs(Some("laws")), [["--test", "laws"]]);
        assert!(tests.runs(Some("no such test")).is_empty());
    }
}
