//! Whether a runner printed what a golden file says.
//!
//! Not everything in a golden file binds a model: some values are what heuristics did, some
//! depend on bookkeeping that a model may leave out. [`Capabilities`] says what a model has, and
//! the rules of the language's description (sections 6 and 7) say what is compared then:
//!
//! * `act` and `ref` never; `lru upd wb dirty` if the model keeps them; `hx` only if the golden
//!   observation shows the first page of the folio mapped; other folio flags always.
//! * Of `vmas`, pages and `prot` always; counts and `fl` if the model keeps them.
//! * Of `stats`, the counters that the model has.
//! * Where a derived golden has a `t` without `eq`, `eq` is taken out of the other side, too, and
//!   what only it kept apart is joined. Where it has `hx` instead of `folios`, that is compared.
//! * All else exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bitflags::bitflags;
use serde_json::{Map, Value};

use crate::observe::{
    Body, FolioFlags, FolioRun, GlobalCounter, Observe, Record, Run, SizeCounter, StatKey, Stats,
    TargetRuns,
};

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything: for policies that behave like the kernel of the golden file.
    Full,
    /// What a process can see: contents, `expect`, events, errors and signals. For policies that
    /// take other faults or other folios on the way.
    ContentOnly,
}

bitflags! {
    /// Bookkeeping that a model may leave out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Keeps: u8 {
        /// The folio flag `lru`.
        const LRU = 1 << 0;
        /// The folio flag `upd`.
        const UPTODATE = 1 << 1;
        /// The folio flag `wb`.
        const WRITEBACK = 1 << 2;
        /// The folio flag `dirty`.
        const DIRTY = 1 << 3;
        /// The clean and dirty counts of `vmas`.
        const VMA_DIRTY = 1 << 4;
        /// The other counts of `vmas`.
        const VMA_COUNTS = 1 << 5;
        /// The `fl` of `vmas`.
        const VMA_FLAGS = 1 << 6;
    }
}

/// What a model has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Its bookkeeping.
    pub keeps: Keeps,
    /// Names of the counters that it has, without sizes, such as `anon_fault_alloc`.
    pub counters: BTreeSet<&'static str>,
}

impl Capabilities {
    /// Everything in the language.
    #[must_use]
    pub fn all() -> Self {
        let sized = SizeCounter::ALL.iter().map(|counter| counter.word());
        let global = GlobalCounter::ALL.iter().map(|counter| counter.word());
        Self { keeps: Keeps::all(), counters: sized.chain(global).collect() }
    }

    /// Nothing that may be left out.
    #[must_use]
    pub fn least() -> Self {
        Self { keeps: Keeps::empty(), counters: BTreeSet::new() }
    }

    fn folio_flags(&self) -> FolioFlags {
        let mut left_out = FolioFlags::ACTIVE | FolioFlags::REFERENCED;
        for (keeps, flag) in [
            (Keeps::LRU, FolioFlags::LRU),
            (Keeps::UPTODATE, FolioFlags::UPTODATE),
            (Keeps::WRITEBACK, FolioFlags::WRITEBACK),
            (Keeps::DIRTY, FolioFlags::DIRTY),
        ] {
            if !self.keeps.contains(keeps) {
                left_out |= flag;
            }
        }
        FolioFlags::all() - left_out
    }

    fn compares_vma_key(&self, key: &str) -> bool {
        match key {
            "at" | "n" | "prot" => true,
            "fl" => self.keeps.contains(Keeps::VMA_FLAGS),
            _ if key.ends_with("_Dirty") || key.ends_with("_Clean") => {
                self.keeps.contains(Keeps::VMA_DIRTY)
            }
            _ => self.keeps.contains(Keeps::VMA_COUNTS),
        }
    }
}

/// The first difference of two outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Line of the operation in the scenario.
    pub line: u32,
    /// The operation's word.
    pub op: &'static str,
    /// Where in the record, such as `t[0].runs[2].mc`; empty for the record itself.
    pub key: String,
    /// What the golden file has there, as JSON; `nothing` if there is no such key.
    pub expected: String,
    /// What the runner printed there.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, op, key, expected, got } = self;
        write!(f, "line {line}: {op}")?;
        if !key.is_empty() {
            write!(f, " {key}")?;
        }
        write!(f, ": expected {expected}, got {got}")
    }
}

/// Compares what a runner printed with a golden file. `None`: they agree.
#[must_use]
pub fn first_difference(
    golden: &[Record],
    got: &[Record],
    mode: Mode,
    capabilities: &Capabilities,
) -> Option<Difference> {
    let mut lines: BTreeMap<u32, (Vec<&Record>, Vec<&Record>)> = BTreeMap::new();
    for record in golden.iter().filter(|record| mode.compares(record)) {
        lines.entry(record.line).or_default().0.push(record);
    }
    for record in got.iter().filter(|record| mode.compares(record)) {
        lines.entry(record.line).or_default().1.push(record);
    }
    lines.values().find_map(|(golden, got)| {
        (0..golden.len().max(got.len())).find_map(|k| {
            let (golden, got) = (golden.get(k).copied(), got.get(k).copied());
            difference_of(golden, got, capabilities)
        })
    })
}

impl Mode {
    fn compares(self, record: &Record) -> bool {
        match self {
            Self::Full => true,
            Self::ContentOnly => !matches!(
                record.body,
                Body::Faults(_) | Body::Observe(_) | Body::Vmas(_) | Body::Stats(_)
            ),
        }
    }
}

/// Where two values differ: the rest of the path, and both sides.
struct Spot {
    key: String,
    expected: Option<Value>,
    got: Option<Value>,
}

impl Spot {
    fn new(key: impl Into<String>, expected: Option<Value>, got: Option<Value>) -> Self {
        Self { key: key.into(), expected, got }
    }

    /// The same spot, seen from the value that holds it at `step`.
    fn under(mut self, step: &str) -> Self {
        let dot = if self.key.is_empty() || self.key.starts_with('[') { "" } else { "." };
        self.key = format!("{step}{dot}{}", self.key);
        self
    }
}

fn difference_of(
    golden: Option<&Record>,
    got: Option<&Record>,
    capabilities: &Capabilities,
) -> Option<Difference> {
    let any = golden.or(got)?;
    let spot = match (golden, got) {
        (Some(golden), Some(got)) if golden.op == got.op => {
            match (&golden.body, &got.body) {
                (Body::Observe(expected), Body::Observe(got)) => observe_difference(
                    expected,
                    got,
                    golden.differs_by_design.as_deref(),
                    capabilities.folio_flags(),
                ),
                (Body::Stats(golden), Body::Stats(got)) => {
                    let left = |stats: &Stats| {
                        let known = |key: &StatKey| capabilities.counters.contains(key.counter());
                        let left = stats.d.iter().filter(|(key, _)| known(key));
                        json(&Stats::new(left.map(|(&key, &delta)| (key, delta))))
                    };
                    difference(&left(golden), &left(got))
                }
                (Body::Vmas(_), Body::Vmas(_)) => {
                    let left = |body: &Body| {
                        let mut body = json(body);
                        let vmas = body.get_mut("v").and_then(Value::as_array_mut);
                        for vma in vmas.into_iter().flatten().filter_map(Value::as_object_mut) {
                            vma.retain(|key, _| capabilities.compares_vma_key(key));
                        }
                        body
                    };
                    difference(&left(&golden.body), &left(&got.body))
                }
                // A refusal, a signal and an answer have few keys in common: show both whole.
                (golden, got) if kind(golden) != kind(got) => {
                    Some(Spot::new("", Some(json(golden)), Some(json(got))))
                }
                (golden, got) => difference(&json(golden), &json(got)),
            }
        }
        (golden, got) => Some(Spot::new("", golden.map(json), got.map(json))),
    }?;
    Some(Difference {
        line: any.line,
        op: any.op,
        key: spot.key,
        expected: shown(spot.expected.as_ref()),
        got: shown(spot.got.as_ref()),
    })
}

fn kind(body: &Body) -> std::mem::Discriminant<Body> {
    std::mem::discriminant(body)
}

fn json(value: &impl serde::Serialize) -> Value {
    // Every map has string keys and no type fails to serialise.
    serde_json::to_value(value).unwrap_or_default()
}

fn shown(value: Option<&Value>) -> String {
    const MAX_CHARS: usize = 200;
    let Some(value) = value else { return "nothing".to_owned() };
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn difference(expected: &Value, got: &Value) -> Option<Spot> {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => object_difference(expected, got),
        (Value::Array(expected), Value::Array(got)) => {
            (0..expected.len().max(got.len())).find_map(|k| {
                let spot = optional_difference(expected.get(k), got.get(k))?;
                Some(spot.under(&format!("[{k}]")))
            })
        }
        _ if expected == got => None,
        _ => Some(Spot::new("", Some(expected.clone()), Some(got.clone()))),
    }
}

fn object_difference(expected: &Map<String, Value>, got: &Map<String, Value>) -> Option<Spot> {
    let more = got.keys().filter(|key| !expected.contains_key(*key));
    expected.keys().chain(more).find_map(|key| {
        let spot = optional_difference(expected.get(key), got.get(key))?;
        Some(spot.under(key))
    })
}

fn optional_difference(expected: Option<&Value>, got: Option<&Value>) -> Option<Spot> {
    match (expected, got) {
        (Some(expected), Some(got)) => difference(expected, got),
        (expected, got) => Some(Spot::new("", expected.cloned(), got.cloned())),
    }
}

/// Where observations differ. A golden one that differs by design may have no `eq`.
fn observe_difference(
    golden: &Observe,
    got: &Observe,
    by_design: Option<&str>,
    compared: FolioFlags,
) -> Option<Spot> {
    let has_eq = golden.t.iter().flat_map(|target| &target.runs).any(|run| run.eq.is_some());
    let spot = if by_design.is_some() && !has_eq {
        difference(&json(&without_eq(&golden.t)), &json(&without_eq(&got.t)))
    } else {
        difference(&json(&golden.t), &json(&got.t))
    };
    if let Some(spot) = spot {
        return Some(spot.under("t"));
    }
    match (&golden.hx, &golden.folios, &got.folios) {
        (Some(golden), ..) => head_difference(golden, got),
        (None, Some(folios), Some(got)) => folio_difference(golden, folios, got, compared),
        (None, None, None) => None,
        (None, golden, got) => {
            Some(Spot::new("folios", golden.as_ref().map(json), got.as_ref().map(json)))
        }
    }
}

fn without_eq(targets: &[TargetRuns]) -> Vec<TargetRuns> {
    let without =
        |target: &TargetRuns| TargetRuns { runs: Run::without_eq(&target.runs), ..target.clone() };
    targets.iter().map(without).collect()
}

/// Each folio by itself: number, order, flags.
fn single_folios(runs: &[FolioRun]) -> impl Iterator<Item = (u64, u8, FolioFlags)> {
    runs.iter().flat_map(|run| (0..run.n).map(move |k| (run.f + k, run.o, run.fl)))
}

/// The `hx` that a derived golden has instead of folios.
fn head_difference(golden: &BTreeMap<u64, u8>, got: &Observe) -> Option<Spot> {
    let got: BTreeMap<u64, u8> = match (&got.hx, &got.folios) {
        (Some(hx), _) => hx.clone(),
        (None, folios) => single_folios(folios.as_deref().unwrap_or_default())
            .map(|(f, _, fl)| (f, u8::from(fl.contains(FolioFlags::HEAD_EXCLUSIVE))))
            .collect(),
    };
    golden.iter().find_map(|(f, hx)| {
        let got = got.get(f);
        (got != Some(hx)).then(|| Spot::new(format!("hx.{f}"), Some(json(hx)), got.map(json)))
    })
}

/// Numbers of the folios whose first page is seen mapped.
fn mapped_heads(observe: &Observe) -> BTreeSet<u64> {
    let runs = observe.t.iter().flat_map(|target| &target.runs);
    runs.filter(|run| run.i == Some(0))
        .filter_map(|run| Some((run.f?, if run.o == Some(0) { run.n } else { 1 })))
        .flat_map(|(f, n)| f..f + n)
        .collect()
}

fn folio_difference(
    golden: &Observe,
    expected: &[FolioRun],
    got: &[FolioRun],
    compared: FolioFlags,
) -> Option<Spot> {
    let heads = mapped_heads(golden);
    let mut got = single_folios(got);
    for (k, (f, order, flags)) in single_folios(expected).enumerate() {
        let here = |key: &str| format!("folios[{k}]{key}");
        let Some((got_f, got_order, got_flags)) = got.next() else {
            return Some(Spot::new(here(""), Some(json(&flags)), None));
        };
        let compared = match heads.contains(&f) {
            true => compared,
            false => compared - FolioFlags::HEAD_EXCLUSIVE,
        };
        let spot = |key, expected: Value, got: Value| {
            (expected != got).then(|| Spot::new(here(key), Some(expected), Some(got)))
        };
        let spot = spot(".f", json(&f), json(&got_f))
            .or_else(|| spot(".o", json(&order), json(&got_order)))
            .or_else(|| spot(".fl", json(&(flags & compared)), json(&(got_flags & compared))));
        if spot.is_some() {
            return spot;
        }
    }
    let (_, _, flags) = got.next()?;
    let k = single_folios(expected).count();
    Some(Spot::new(format!("folios[{k}]"), None, Some(json(&flags))))
}
