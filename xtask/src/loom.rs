//! `cargo xtask loom`: the models, on the production code.
//!
//! The models are the tests in `crates/*/tests/loom_*.rs`, built with
//! `--cfg loom` and the `loom` profile in a target directory of their own
//! (`RUSTFLAGS` is part of every fingerprint: sharing one would rebuild
//! everything at each switch). Every test runs in a process of its own, so that
//! a model which does not end can be killed and named.
//!
//! The harness in `mm_sync::model` prints one line per model (`MODEL name …
//! execs=N`) and per mutant (`MUTANT model / site …`). A test that prints none
//! explored nothing and is no pass.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cmd::{self, Error};
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Options of the `loom` task.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Run only tests whose `crate::file::name` contains this; `mm-CRATE` and more builds
    /// nothing else.
    pub filter: Option<String>,
    /// No bound on preemptions but the models' own, and the ignored tests too.
    #[arg(long, conflicts_with = "preempt")]
    pub deep: bool,
    /// Most preemptions per execution [default: 2, which finds every known mutant].
    #[arg(long, value_name = "N")]
    pub preempt: Option<u32>,
    /// Seconds a model may explore before it counts as INCOMPLETE [default: 120, deep: 900].
    #[arg(long, value_name = "S")]
    pub timeout: Option<u64>,
    /// Tests at a time [default: the number of CPUs].
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
}

impl Options {
    /// What `test-all` runs: every model, at most two preemptions.
    pub fn bounded() -> Self {
        Options { filter: None, deep: false, preempt: Some(2), timeout: None, jobs: None }
    }

    fn preemptions(&self) -> Option<u32> {
        if self.deep { None } else { Some(self.preempt.unwrap_or(2)) }
    }

    fn seconds(&self) -> u64 {
        self.timeout.unwrap_or(if self.deep { 900 } else { 120 })
    }

    fn workers(&self) -> usize {
        self.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1)
    }
}

/// One test to run.
struct Test {
    exe: PathBuf,
    /// Name inside the binary.
    name: String,
    /// `crate::file::name`, for people.
    shown: String,
    dir: PathBuf,
}

/// How one test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// A model found a bad execution, or a mutant survived.
    Failed,
    /// A model stopped at its own time limit: neither proof nor bug.
    Incomplete,
    /// Killed.
    Timeout,
    /// Passed without exploring anything.
    Empty,
}

impl Verdict {
    /// `status` is `None` if the process was killed.
    fn of(status: Option<ExitStatus>, models: usize, text: &str) -> Self {
        match status {
            None => Verdict::Timeout,
            Some(s) if !s.success() && text.contains("INCOMPLETE") => Verdict::Incomplete,
            Some(s) if !s.success() => Verdict::Failed,
            Some(_) if models == 0 => Verdict::Empty,
            Some(_) => Verdict::Ok,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Incomplete => "INCOMPLETE",
            Verdict::Timeout => "TIMEOUT",
            Verdict::Empty => "EMPTY",
        }
    }
}

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    let start = Instant::now();
    let exes = build(ws, o.filter.as_deref())?;
    if exes.is_empty() && o.filter.is_none() {
        return Ok(Outcome::Skipped("no tests/loom_*.rs in the workspace".into()));
    }
    eprintln!("built {} test binaries in {:.1} s", exes.len(), start.elapsed().as_secs_f64());

    let mut tests = Vec::new();
    for exe in exes {
        tests.extend(list(exe, o)?);
    }
    if tests.is_empty() {
        return Ok(Outcome::Failed("no model matches".into()));
    }

    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    thread::scope(|s| {
        for _ in 0..o.workers().min(tests.len()) {
            s.spawn(|| {
                // A counter only: every index is handed out once, nothing else is ordered by it.
                while let Some(t) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let v = t.run(o);
                    verdicts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(v);
                }
            });
        }
    });
    let verdicts = verdicts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let passed = verdicts.iter().filter(|v| **v == Verdict::Ok).count();
    let line = format!("{passed} passed, {} failed", tests.len() - passed);
    println!("{line}");
    Ok(if passed == tests.len() { Outcome::Ok(line) } else { Outcome::Failed(line) })
}

/// A built test binary: package, test target, folder to run in, executable.
struct Binary {
    package: String,
    target: String,
    dir: PathBuf,
    exe: PathBuf,
}

/// Whether a test of a binary may have a `crate::file::name` that contains `filter`. What has
/// a dash begins in the name of a crate; anything else may be part of the name of a test.
fn may_match(package: &str, target: &str, filter: &str) -> bool {
    let shown = format!("{package}::{target}::");
    !filter.contains('-')
        || shown.contains(filter)
        || shown.char_indices().any(|(i, _)| filter.starts_with(&shown[i..]))
}

/// Builds the `loom_*` tests that `filter` leaves and returns the binaries.
fn build(ws: &Workspace, filter: Option<&str>) -> Result<Vec<Binary>, Error> {
    let mut args = vec![
        "test",
        "--quiet",
        "--no-run",
        "--profile",
        "loom",
        "--message-format=json-render-diagnostics",
    ];
    let mut any = false;
    for p in &ws.packages {
        let wanted = |t: &&str| filter.is_none_or(|f| may_match(&p.name, t, f));
        for (i, t) in p.loom_tests().filter(wanted).enumerate() {
            if i == 0 {
                args.extend(["--package", &p.name]);
            }
            args.extend(["--test", t]);
            any = true;
        }
    }
    if !any {
        return Ok(Vec::new());
    }
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg loom");
    let mut c = ws.cargo(&args);
    c.env("RUSTFLAGS", flags.trim()).env("CARGO_TARGET_DIR", ws.target.join("loom"));
    let out = cmd::output(&mut c)?;
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().filter_map(|l| artifact(&serde_json::from_str(l).ok()?)).collect())
}

/// The test binary that one message of cargo announces, if it does.
fn artifact(v: &Value) -> Option<Binary> {
    if v["reason"] != "compiler-artifact" || v["profile"]["test"] != true {
        return None;
    }
    let target = v["target"]["name"].as_str()?;
    if !target.starts_with("loom_") {
        return None;
    }
    let dir = Path::new(v["manifest_path"].as_str()?).parent()?;
    Some(Binary {
        package: dir.file_name()?.to_string_lossy().into_owned(),
        target: target.into(),
        dir: dir.into(),
        exe: v["executable"].as_str()?.into(),
    })
}

/// The tests of a binary that are asked for.
fn list(b: Binary, o: &Options) -> Result<Vec<Test>, Error> {
    let names = |more: &[&str]| -> Result<BTreeSet<String>, Error> {
        let out =
            cmd::output(Command::new(&b.exe).args(["--list", "--format", "terse"]).args(more))?;
        Ok(parse_list(&String::from_utf8_lossy(&out.stdout)))
    };
    let mut all = names(&[])?;
    if !o.deep {
        for ignored in names(&["--ignored"])? {
            all.remove(&ignored);
        }
    }
    Ok(all
        .into_iter()
        .map(|name| Test {
            shown: format!("{}::{}::{name}", b.package, b.target),
            exe: b.exe.clone(),
            dir: b.dir.clone(),
            name,
        })
        .filter(|t| o.filter.as_ref().is_none_or(|f| t.shown.contains(f.as_str())))
        .collect())
}

/// The names in the answer of `--list --format terse`.
fn parse_list(text: &str) -> BTreeSet<String> {
    text.lines().filter_map(|l| l.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The report lines of the harness in the output of a test. libtest leaves
/// `test name ... ` in front of the first one.
fn reports(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|l| l.find("MODEL ").or_else(|| l.find("MUTANT ")).map(|i| &l[i..]))
        .collect()
}

/// The sum of all `execs=N`.
fn executions(reports: &[&str]) -> u64 {
    reports
        .iter()
        .filter_map(|l| l.split("execs=").nth(1)?.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

impl Test {
    fn run(&self, o: &Options) -> Verdict {
        let start = Instant::now();
        let mut c = Command::new(&self.exe);
        c.args(["--exact", &self.name, "--nocapture", "--test-threads=1", "--include-ignored"])
            .current_dir(&self.dir)
            // The model stops itself first, to say how far it came.
            .env("MM_MAX_SECS", o.seconds().to_string())
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        match o.preemptions() {
            Some(n) => c.env("MM_PREEMPTIONS", n.to_string()),
            None => c.env_remove("MM_PREEMPTIONS"),
        };
        // A test may hold several models, each with its own limit.
        let limit = Duration::from_secs(o.seconds().saturating_mul(4).saturating_add(30));
        let (status, text, errors) = match c.spawn() {
            Ok(child) => wait(child, limit),
            Err(e) => {
                println!("FAILED     {}: {e}", self.shown);
                return Verdict::Failed;
            }
        };
        let reports = reports(&text);
        let verdict = Verdict::of(status, reports.len(), &text);
        let mut message = format!(
            "{:<10} {:<56} models={:<3} execs={:<9} {:.2} s\n",
            verdict.word(),
            self.shown,
            reports.len(),
            executions(&reports),
            start.elapsed().as_secs_f64()
        );
        if verdict != Verdict::Ok {
            for line in reports.iter().copied().chain(tail(&errors, 12)) {
                message.push_str(&format!("    {line}\n"));
            }
        }
        // One call, so that workers do not mix their lines.
        print!("{message}");
        verdict
    }
}

/// The last `n` lines that say something.
fn tail(text: &str, n: usize) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    let skip = lines.len().saturating_sub(n);
    lines.into_iter().skip(skip)
}

/// Waits for `child`, kills it after `limit` (then the status is `None`), and
/// returns what it wrote to both streams.
fn wait(mut child: Child, limit: Duration) -> (Option<ExitStatus>, String, String) {
    let start = Instant::now();
    let out = child.stdout.take().map(|r| thread::spawn(move || drain(r)));
    let err = child.stderr.take().map(|r| thread::spawn(move || drain(r)));
    let status = loop {
        match child.try_wait() {
            Ok(Some(s)) => break Some(s),
            Ok(None) if start.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            _ => {
                // Already gone is as good as killed.
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let text =
        |t: Option<thread::JoinHandle<String>>| t.and_then(|t| t.join().ok()).unwrap_or_default();
    (status, text(out), text(err))
}

fn drain(mut r: impl Read) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is still worth showing.
    let _ = r.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> Option<ExitStatus> {
        Command::new("/bin/sh").args(["-c", &format!("exit {code}")]).status().ok()
    }

    #[test]
    fn a_crate_in_the_filter_leaves_the_others_out() {
        for filter in ["mm-gup", "-gup::loom_fast", "mm-gup::loom_fast::pin"] {
            assert!(may_match("mm-gup", "loom_fast", filter));
            assert!(!may_match("mm-map", "loom_map", filter));
        }
        assert!(!may_match("mm-gup", "loom_swap", "mm-gup::loom_fast"));
        for filter in ["", "swap", "loom_fast", "loom_fast::pin"] {
            assert!(may_match("mm-map", "loom_map", filter), "{filter} may be in a name");
        }
    }
    #[test]
    fn reports_are_found_behind_libtest() {
        let text = "test get_vs_zap ... MODEL a ok bound=2 execs=12 time=1ms\n\
                    MUTANT a / gup.no_recheck caught execs=3 time=1ms\nok\n";
        let r = reports(text);
        assert_eq!(r.len(), 2);
        assert!(r[0].starts_with("MODEL a"));
        assert_eq!(executions(&r), 15);
    }

    #[test]
    fn a_test_that_explored_nothing_is_empty() {
        assert_eq!(Verdict::of(exit(0), 0, ""), Verdict::Empty);
        assert_eq!(Verdict::of(exit(0), 1, "MODEL"), Verdict::Ok);
    }

    #[test]
    fn a_bound_that_was_hit_is_not_a_pass() {
        assert_eq!(Verdict::of(exit(101), 1, "MODEL x INCOMPLETE"), Verdict::Incomplete);
        assert_eq!(Verdict::of(exit(101), 1, "MODEL x FAIL"), Verdict::Failed);
        assert_eq!(Verdict::of(None, 1, ""), Verdict::Timeout);
    }

    #[test]
    fn a_test_that_hangs_is_killed() {
        let child = Command::new("/bin/sh")
            .args(["-c", "echo before; exec sleep 30"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh");
        let (status, text, _) = wait(child, Duration::from_millis(200));
        assert_eq!(status, None);
        assert_eq!(text, "before\n");
    }

    #[test]
    fn test_lists_are_parsed() {
        let names = parse_list("a::b: test\nc: bench\n\nd: test\n");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a::b", "d"]);
    }

    #[test]
    fn only_loom_test_binaries_count() {
        let message = |name: &str, test: bool| {
            serde_json::json!({"reason": "compiler-artifact", "manifest_path": "/w/crates/mm-gup/Cargo.toml",
                "target": {"name": name}, "profile": {"test": test}, "executable": "/t/x"})
        };
        let b = artifact(&message("loom_fast", true)).expect("is one");
        assert_eq!((b.package.as_str(), b.target.as_str()), ("mm-gup", "loom_fast"));
        assert!(artifact(&message("props", true)).is_none());
        assert!(artifact(&message("loom_fast", false)).is_none());
    }

    #[test]
    fn deep_lifts_the_bound() {
        let mut o = Options::bounded();
        assert_eq!((o.preemptions(), o.seconds()), (Some(2), 120));
        o.deep = true;
        assert_eq!((o.preemptions(), o.seconds()), (None, 900));
    }
}
