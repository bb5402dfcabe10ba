//! What a task answers, and the table that `test-all` closes with.

use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cmd::Error;

/// How a task ended. A task that could not run says so as [`Outcome::Skipped`]
/// and never as a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Ran and holds; the note is for the table and may be empty.
    Ok(String),
    /// Ran and does not hold.
    Failed(String),
    /// Did not run, for this reason.
    Skipped(String),
}

impl Outcome {
    /// The word in the table.
    pub fn verdict(&self) -> &'static str {
        match self {
            Outcome::Ok(_) => "ok",
            Outcome::Failed(_) => "FAILED",
            Outcome::Skipped(_) => "skipped",
        }
    }

    fn note(&self) -> &str {
        match self {
            Outcome::Ok(s) | Outcome::Failed(s) | Outcome::Skipped(s) => s,
        }
    }
}

impl From<Result<Outcome, Error>> for Outcome {
    fn from(r: Result<Outcome, Error>) -> Self {
        r.unwrap_or_else(|e| Outcome::Failed(e.to_string()))
    }
}

/// Prints how a task that was called alone ended and turns it into an exit code.
/// A skip is an error here: the caller asked for exactly this task.
pub fn conclude(outcome: Result<Outcome, Error>) -> ExitCode {
    match Outcome::from(outcome) {
        Outcome::Ok(_) => ExitCode::SUCCESS,
        Outcome::Failed(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
        Outcome::Skipped(why) => {
            eprintln!("xtask: skipped: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The steps run so far.
#[derive(Default)]
pub struct Report {
    rows: Vec<(&'static str, Outcome, Duration)>,
}

impl Report {
    /// Runs one step, prints its verdict and time, remembers both.
    pub fn step(&mut self, name: &'static str, f: impl FnOnce() -> Result<Outcome, Error>) {
        eprintln!("\n=== {name}");
        let start = Instant::now();
        let outcome = Outcome::from(f());
        let took = start.elapsed();
        eprintln!(
            "=== {name}: {} in {:.1} s {}",
            outcome.verdict(),
            took.as_secs_f64(),
            outcome.note()
        );
        self.rows.push((name, outcome, took));
    }

    /// Whether no step failed and at least one passed.
    pub fn holds(&self) -> bool {
        self.count("FAILED") == 0 && self.count("ok") > 0
    }

    fn count(&self, verdict: &str) -> usize {
        self.rows.iter().filter(|(_, o, _)| o.verdict() == verdict).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|(n, _, _)| n.len()).max().unwrap_or(0);
        let mut total = Duration::ZERO;
        for (name, outcome, took) in &self.rows {
            total += *took;
            let line = format!(
                "{name:<width$}  {:<7}  {:>7.1} s  {}",
                outcome.verdict(),
                took.as_secs_f64(),
                outcome.note().lines().next().unwrap_or_default(),
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        write!(
            f,
            "{} ok, {} failed, {} skipped in {:.1} s",
            self.count("ok"),
            self.count("FAILED"),
            self.count("skipped"),
            total.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[Outcome]) -> Report {
        let mut r = Report::default();
        for o in outcomes {
            r.rows.push(("s", o.clone(), Duration::from_millis(100)));
        }
        r
    }

    #[test]
    fn one_failure_fails_the_whole() {
        assert!(report(&[Outcome::Ok(String::new()), Outcome::Skipped("x".into())]).holds());
        assert!(!report(&[Outcome::Ok(String::new()), Outcome::Failed("x".into())]).holds());
    }

    #[test]
    fn nothing_run_is_no_pass() {
        assert!(!report(&[]).holds());
        assert!(!report(&[Outcome::Skipped("x".into())]).holds());
    }

    #[test]
    fn table_names_reason_and_counts() {
        let r = report(&[Outcome::Ok(String::new()), Outcome::Skipped("no valgrind".into())]);
        let text = r.to_string();
        assert!(text.contains("skipped      0.1 s  no valgrind"), "{text}");
        assert!(text.ends_with("1 ok, 0 failed, 1 skipped in 0.2 s"), "{text}");
    }
}
