//! Harness of all loom models: counts executions, never takes an early exit
//! of loom for a pass, arms mutants, sweeps all named sites.
use crate::site::{ARMED, SEEN};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::{String, ToString};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::vec::Vec;

/// What an exploration found.
#[derive(Debug)]
pub struct Outcome {
    /// Number of executions.
    pub execs: usize,
    /// Wall time.
    pub time: Duration,
    /// The message of the execution that failed.
    pub failure: Option<String>,
    /// Whether all executions within the bound were explored.
    pub complete: bool,
}

loom::lazy_static! {
    static ref FENCE_CELL: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
}
/// Makes a `SeqCst` fence a scheduling point (see `atomic::fence`).
pub fn touch_fence_cell() {
    use core::sync::atomic::Ordering;
    if std::env::var_os("MM_PLAIN_FENCE").is_none() {
        FENCE_CELL.fetch_add(0, Ordering::Relaxed);
    }
}

/// How far a model is explored.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Preemptions per execution; `None` explores all.
    pub preemptions: Option<usize>,
    /// Executions after which the model counts as INCOMPLETE.
    pub max_execs: usize,
    /// Time after which the model counts as INCOMPLETE.
    pub max_time: Duration,
    /// Steps of one execution.
    pub max_branches: usize,
}
impl Bounds {
    /// At most `p` preemptions unless the run asks for fewer.
    pub fn at_most(p: usize) -> Self {
        let d = Bounds::default();
        Bounds { preemptions: Some(d.preemptions.map_or(p, |e| e.min(p))), ..d }
    }
}
impl Default for Bounds {
    fn default() -> Self {
        let p = std::env::var("MM_PREEMPTIONS").ok().and_then(|v| v.parse().ok());
        let t = std::env::var("MM_MAX_SECS").ok().and_then(|v| v.parse().ok()).unwrap_or(120);
        Bounds {
            preemptions: p,
            max_execs: usize::MAX,
            max_time: Duration::from_secs(t),
            max_branches: 20_000,
        }
    }
}

const STOP: &str = "mm-model: bound reached";

std::thread_local! {
    /// Whether a spawned thread runs before its spawner goes on. A plain thread
    /// local: the threads of a model are coroutines on one OS thread.
    static SPAWNED_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// Behind each `spawn`: where the two passes of [`explore`] start to differ.
pub(crate) fn spawned() {
    if SPAWNED_FIRST.get() {
        loom::thread::yield_now();
    }
}

/// Explores `f` within `b`, with whatever site is armed.
///
/// In two passes: one in which a spawner goes on, one in which the spawned
/// thread starts. loom remembers *one* last access per cell. A thread that loads a
/// cell before it stores to it (every compare-exchange loop does) hides an
/// earlier load of another thread, and "that store, then that load" is
/// never tried. Seen from the other order the load comes second, and its
/// dependence on the store is found.
pub fn explore(b: Bounds, f: impl Fn() + Send + Sync + 'static) -> Outcome {
    let f = Arc::new(f);
    let t = Instant::now();
    let mut sum = Outcome { execs: 0, time: Duration::ZERO, failure: None, complete: true };
    for spawned_first in [false, true] {
        SPAWNED_FIRST.set(spawned_first);
        let f = f.clone();
        let pass = explore_pass(b, t, sum.execs, move || f());
        SPAWNED_FIRST.set(false);
        sum = Outcome { execs: sum.execs + pass.execs, ..pass };
        if sum.failure.is_some() || !sum.complete {
            break;
        }
    }
    Outcome { time: t.elapsed(), ..sum }
}

fn explore_pass(
    b: Bounds,
    t: Instant,
    done: usize,
    f: impl Fn() + Send + Sync + 'static,
) -> Outcome {
    let n = Arc::new(AtomicUsize::new(0));
    let n2 = n.clone();
    let mut lb = loom::model::Builder::new();
    // Deliberately not LOOM_MAX_DURATION / LOOM_MAX_PERMUTATIONS: loom returns
    // *normally* when one is reached, which a test cannot tell from a proof.
    lb.max_duration = None;
    lb.max_permutations = None;
    lb.preemption_bound = b.preemptions;
    lb.max_branches = b.max_branches;
    let r = catch_unwind(AssertUnwindSafe(|| {
        lb.check(move || {
            let k = n2.fetch_add(1, Relaxed);
            if done + k >= b.max_execs || (k.is_multiple_of(1024) && t.elapsed() > b.max_time) {
                panic!("{}", STOP);
            }
            // made here, so that it happens-before every thread of the model
            FENCE_CELL.load(Relaxed);
            f()
        })
    }));
    finish(r, n.load(Relaxed), t.elapsed())
}

fn finish(r: std::thread::Result<()>, execs: usize, time: Duration) -> Outcome {
    match r {
        Ok(()) => Outcome { execs, time, failure: None, complete: true },
        Err(e) => {
            let m = e
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| e.downcast_ref::<&str>().map(|s| s.to_string()))
                .unwrap_or_else(|| "panic".to_string());
            if m.contains(STOP) {
                Outcome { execs, time, failure: None, complete: false }
            } else {
                Outcome { execs, time, failure: Some(m), complete: true }
            }
        }
    }
}

fn short(s: &str) -> String {
    s.lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .take(2)
        .collect::<Vec<_>>()
        .join(" | ")
        .chars()
        .take(110)
        .collect()
}

fn armed<R>(m: Option<&'static str>, f: impl FnOnce() -> R) -> R {
    ARMED.set(m);
    let r = f();
    ARMED.set(None);
    r
}

/// The model must hold in every explored execution.
pub fn holds<F: Fn() + Send + Sync + 'static>(name: &str, f: F) -> Outcome {
    holds_with(name, Bounds::default(), f)
}
/// As [`holds`], within `b`.
pub fn holds_with<F: Fn() + Send + Sync + 'static>(name: &str, b: Bounds, f: F) -> Outcome {
    let o = armed(None, || explore(b, f));
    std::println!(
        "MODEL {name:<38} {} bound={} execs={} time={:.2?}",
        match (&o.failure, o.complete) {
            (Some(_), _) => "FAIL",
            (_, true) => "ok",
            _ => "INCOMPLETE",
        },
        b.preemptions.map_or("none".to_string(), |p| p.to_string()),
        o.execs,
        o.time
    );
    if let Some(m) = &o.failure {
        panic!("{name}: {m}");
    }
    assert!(o.complete, "{name}: not exhausted after {} executions in {:.1?}", o.execs, o.time);
    o
}
/// The armed mutant must be found.
pub fn caught<F: Fn() + Send + Sync + 'static>(name: &str, mutant: &'static str, f: F) -> Outcome {
    caught_with(name, Bounds::default(), mutant, f)
}
/// The armed mutant must be found within `b`, whatever the run asks for.
pub fn caught_with<F: Fn() + Send + Sync + 'static>(
    name: &str,
    b: Bounds,
    mutant: &'static str,
    f: F,
) -> Outcome {
    let o = armed(Some(mutant), || explore(b, f));
    std::println!(
        "MUTANT {name} / {mutant:<26} {} execs={} time={:.2?} {}",
        if o.failure.is_some() {
            "caught"
        } else if o.complete {
            "SURVIVED"
        } else {
            "INCOMPLETE"
        },
        o.execs,
        o.time,
        o.failure.as_deref().map(short).unwrap_or_default()
    );
    assert!(o.failure.is_some(), "{name}: mutant {mutant} survived");
    o
}

/// What [`sweep_all`] found.
#[derive(Debug, Default)]
pub struct Swept {
    /// The sites in question that some model came across.
    pub met: BTreeSet<&'static str>,
    /// Those of them that no model tells from their weakened form.
    pub free: Vec<&'static str>,
}

/// Sweeps several models for the sites whose names start with one of `prefixes`: of each it
/// is enough that one model catches it.
pub fn sweep_all(models: &[(&str, fn())], prefixes: &[&str]) -> Swept {
    let (mut met, mut caught) = (BTreeSet::new(), BTreeSet::new());
    for (name, model) in models {
        let survivors = sweep(name, *model);
        SEEN.with(|seen| {
            let ours = |site: &&&str| prefixes.iter().any(|p| site.starts_with(p));
            for site in seen.borrow().keys().filter(ours) {
                met.insert(*site);
                if !survivors.contains(site) {
                    caught.insert(*site);
                }
            }
        });
    }
    let free = met.difference(&caught).copied().collect();
    Swept { met, free }
}

/// Runs the model once as is, then once per named ordering / fence / mutant the
/// run came across, weakened. Returns the survivors.
pub fn sweep<F: Fn() + Send + Sync + Clone + 'static>(name: &str, f: F) -> Vec<&'static str> {
    SEEN.with(|s| s.borrow_mut().clear());
    holds(name, f.clone());
    let sites: Vec<_> = SEEN.with(|s| s.borrow().iter().map(|(a, b)| (*a, *b)).collect());
    let mut survivors = Vec::new();
    for (s, kind) in sites {
        if kind == "Relaxed" {
            continue;
        }
        let o = armed(Some(s), || explore(Bounds::default(), f.clone()));
        std::println!(
            "  sweep {name:<24} {s:<28} {kind:<8} {} execs={} time={:.2?} {}",
            if o.failure.is_some() {
                "caught  "
            } else if o.complete {
                "survived"
            } else {
                "INCOMPL."
            },
            o.execs,
            o.time,
            o.failure.as_deref().map(short).unwrap_or_default()
        );
        if o.failure.is_none() {
            survivors.push(s);
        }
    }
    survivors
}
