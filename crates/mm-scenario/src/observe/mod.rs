//! What a runner prints: one [`Record`] per line of JSON.
//!
//! The types serialise to the key order, and with the absent keys, of the language's
//! description, so that two runners can be compared byte by byte. A machine supplies facts per
//! page, fault or counter; the builders here do the joining:
//!
//! | output | facts | builder |
//! |---|---|---|
//! | `observe` | [`PageFact`] per page, [`FolioFlags`] per folio | [`History::observe`] |
//! | `faults` | one call per fault | [`FaultLog`] |
//! | `content`, `peek`, `pvread`, `pinread`, `fcontent` | `(page, word)` | [`content_runs`] |
//! | `expect` | `(page, word)` | [`Expect::check`] |
//! | `stats` | `(StatKey, delta)` | [`Stats::new`] |
//! | the entries behind `observe` | [`TableEntry`] per page | [`TableDump::new`] |

mod content;
mod faults;
mod snapshot;
mod stats;
mod tables;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

pub use self::content::{ContentRun, Expect, Tag, content_runs, fill_word, tag_word};
pub use self::faults::{FaultLog, FaultSpots, Faults};
pub use self::snapshot::{
    FolioFlags, FolioRun, History, MappedPage, Observe, PageFact, PageKind, PageState, Run,
    RunState, TargetRuns,
};
pub use self::stats::{GlobalCounter, SizeCounter, StatKey, Stats};
pub use self::tables::{EntryText, TableDump, TableEntry};

use crate::op::{OP_NAMES, keywords};
use crate::parse::{Line, Scenario};

keywords! {
    /// A signal that answered a touch.
    Signal {
        /// The address is not mapped, or not for this access.
        Segv = "SIGSEGV",
        /// The object ends before the page.
        Bus = "SIGBUS",
    }

    /// What a userfaultfd event was about.
    UffdEvent {
        /// A write to a protected page.
        Wp = "wp",
        /// A read of a missing page.
        MissingRead = "missing-r",
        /// A write to a missing page.
        MissingWrite = "missing-w",
        /// A read of a page that its object has and the process does not map.
        MinorRead = "minor-r",
        /// A write to one.
        MinorWrite = "minor-w",
    }
}

/// Serialises keyword enums as their words.
macro_rules! serde_words {
    ($($name:ty),*) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.word())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let word = String::deserialize(d)?;
                Self::from_word(&word).ok_or_else(|| {
                    serde::de::Error::custom(format_args!("unknown word {word:?}"))
                })
            }
        }
    )*};
}
pub(crate) use serde_words;
serde_words!(Signal, UffdEvent);

/// One line of a runner's output: what an operation printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Line of the operation in the scenario.
    pub line: u32,
    /// The operation's word.
    pub op: &'static str,
    /// The rest.
    #[serde(flatten)]
    pub body: Body,
    /// Set in derived goldens where the values are not those of mainline; never by a runner.
    #[serde(rename = "differs-by-design", skip_serializing_if = "Option::is_none")]
    pub differs_by_design: Option<String>,
}

/// What an operation printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Body {
    /// `faults`.
    Faults(Faults),
    /// `observe`.
    Observe(Observe),
    /// `content`, `peek`, `pvread`.
    Content(Content),
    /// `pinread`.
    PinContent(PinContent),
    /// `fcontent`.
    FileContent(FileContent),
    /// `expect`.
    Expect(Expect),
    /// `events`.
    Events(Events),
    /// `vmas`.
    Vmas(Vmas),
    /// `stats`.
    Stats(Stats),
    /// `note`.
    Note(Note),
    /// The kernel refused.
    Error(Refusal),
    /// A touch was answered with a signal.
    Signal(SignalAt),
}

/// The tags of a range of a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Process.
    pub p: String,
    /// Region.
    pub r: String,
    /// Runs, by page of the region.
    pub c: Vec<ContentRun>,
}

/// The tags seen through a pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinContent {
    /// Process.
    pub p: String,
    /// Pin.
    pub pin: String,
    /// Runs, by page of the pin.
    pub c: Vec<ContentRun>,
}

/// The tags of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileContent {
    /// File.
    pub file: String,
    /// Runs, by page of the file.
    pub c: Vec<ContentRun>,
}

/// Userfaultfd events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// Process.
    pub p: String,
    /// Region, page, event.
    pub e: Vec<(String, u64, UffdEvent)>,
}

/// The VMAs in a region's window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vmas {
    /// Process.
    pub p: String,
    /// Region.
    pub r: String,
    /// The VMAs, ascending.
    pub v: Vec<Vma>,
}

/// A VMA. Counts are in pages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the counts have the names of smaps")]
pub struct Vma {
    /// First page, from the start of the region.
    pub at: u64,
    /// Pages.
    pub n: u64,
    /// Rights as in maps, such as `rw-p`.
    pub prot: String,
    #[serde(rename = "Rss", default, skip_serializing_if = "is_zero")]
    pub rss: u64,
    #[serde(rename = "Shared_Clean", default, skip_serializing_if = "is_zero")]
    pub shared_clean: u64,
    #[serde(rename = "Shared_Dirty", default, skip_serializing_if = "is_zero")]
    pub shared_dirty: u64,
    #[serde(rename = "Private_Clean", default, skip_serializing_if = "is_zero")]
    pub private_clean: u64,
    #[serde(rename = "Private_Dirty", default, skip_serializing_if = "is_zero")]
    pub private_dirty: u64,
    #[serde(rename = "Anonymous", default, skip_serializing_if = "is_zero")]
    pub anonymous: u64,
    #[serde(rename = "KSM", default, skip_serializing_if = "is_zero")]
    pub ksm: u64,
    #[serde(rename = "LazyFree", default, skip_serializing_if = "is_zero")]
    pub lazy_free: u64,
    #[serde(rename = "AnonHugePages", default, skip_serializing_if = "is_zero")]
    pub anon_huge_pages: u64,
    #[serde(rename = "ShmemPmdMapped", default, skip_serializing_if = "is_zero")]
    pub shmem_pmd_mapped: u64,
    #[serde(rename = "FilePmdMapped", default, skip_serializing_if = "is_zero")]
    pub file_pmd_mapped: u64,
    #[serde(rename = "Swap", default, skip_serializing_if = "is_zero")]
    pub swap: u64,
    #[serde(rename = "Locked", default, skip_serializing_if = "is_zero")]
    pub locked: u64,
    /// VmFlags of smaps, such as `rd wr mr mw me ac`.
    pub fl: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The words of a `note`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// The words, joined by blanks.
    pub text: String,
}

/// The kernel refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Process; absent for operations that have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<String>,
    /// Name of the errno, such as `EINVAL`.
    pub err: String,
}

/// A touch was answered with a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalAt {
    /// Process.
    pub p: String,
    /// The signal.
    pub sig: Signal,
    /// See [`Range::after`](crate::Range::after).
    pub after: u64,
}

macro_rules! body_from {
    ($($variant:ident($body:ty)),* $(,)?) => {$(
        impl From<$body> for Body {
            fn from(body: $body) -> Self {
                Self::$variant(body)
            }
        }
    )*};
}

body_from! {
    Faults(Faults), Observe(Observe), Content(Content), PinContent(PinContent),
    FileContent(FileContent), Expect(Expect), Events(Events), Vmas(Vmas), Stats(Stats),
    Note(Note), Error(Refusal), Signal(SignalAt),
}

/// Why a line is not an observation.
#[derive(Debug, Error)]
pub enum RecordError {
    /// Not JSON, a key missing, too many, or with a value of another type.
    #[error("not an observation: {0}")]
    Json(#[from] serde_json::Error),
    /// The `op` is no operation of the language, or one that prints nothing of this form.
    #[error("not an observation: operation {0:?} prints no such line")]
    Op(String),
    /// A line of several.
    #[error("line {line}: {error}")]
    At {
        /// Line in the text, from 1.
        line: usize,
        /// What was wrong with it.
        error: Box<RecordError>,
    },
}

impl Record {
    /// What the operation at `line` printed.
    #[must_use]
    pub fn new(line: &Line, body: impl Into<Body>) -> Self {
        let body = body.into();
        Self { line: line.line_no, op: line.op.name(), body, differs_by_design: None }
    }

    /// The kernel refused the operation at `line` with the errno of this name.
    #[must_use]
    pub fn refused(scenario: &Scenario, line: &Line, errno: &str) -> Self {
        let p = line.op.proc().map(|proc| scenario.proc_name(proc).to_owned());
        Self::new(line, Refusal { p, err: errno.to_owned() })
    }

    /// A touch of the operation at `line` was answered with a signal; see
    /// [`Range::after`](crate::Range::after).
    #[must_use]
    pub fn signalled(scenario: &Scenario, line: &Line, sig: Signal, after: u64) -> Self {
        let p = line.op.proc().map_or("", |proc| scenario.proc_name(proc)).to_owned();
        Self::new(line, SignalAt { p, sig, after })
    }

    /// The record as a line of JSON, without a newline.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Every map has string keys and no type fails to serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a line of JSON.
    ///
    /// # Errors
    /// The line is not an observation of the language.
    pub fn from_json(json: &str) -> Result<Self, RecordError> {
        let mut map: Map<String, Value> = serde_json::from_str(json)?;
        let line = take(&mut map, "line")?;
        let op: String = take(&mut map, "op")?;
        let differs_by_design = match map.contains_key("differs-by-design") {
            true => Some(take(&mut map, "differs-by-design")?),
            false => None,
        };
        let Some(op) = OP_NAMES.iter().copied().find(|&name| name == op) else {
            return Err(RecordError::Op(op));
        };
        let body = if map.contains_key("err") {
            Body::Error(rest(map)?)
        } else if map.contains_key("sig") {
            Body::Signal(rest(map)?)
        } else {
            match op {
                "faults" => Body::Faults(rest(map)?),
                "observe" => Body::Observe(rest(map)?),
                "content" | "peek" | "pvread" => Body::Content(rest(map)?),
                "pinread" => Body::PinContent(rest(map)?),
                "fcontent" => Body::FileContent(rest(map)?),
                "expect" => Body::Expect(rest(map)?),
                "events" => Body::Events(rest(map)?),
                "vmas" => Body::Vmas(rest(map)?),
                "stats" => Body::Stats(rest(map)?),
                "note" => Body::Note(rest(map)?),
                _ => return Err(RecordError::Op(op.to_owned())),
            }
        };
        Ok(Self { line, op, body, differs_by_design })
    }

    /// Reads all lines of a runner's output or of a golden file.
    ///
    /// # Errors
    /// The first line that is not an observation.
    pub fn read_all(text: &str) -> Result<Vec<Self>, RecordError> {
        (1..)
            .zip(text.lines())
            .filter(|(_, json)| !json.trim().is_empty())
            .map(|(line, json)| {
                Self::from_json(json)
                    .map_err(|error| RecordError::At { line, error: Box::new(error) })
            })
            .collect()
    }
}

fn take<T: DeserializeOwned>(
    map: &mut Map<String, Value>,
    key: &'static str,
) -> Result<T, RecordError> {
    let value = map
        .shift_remove(key)
        .ok_or_else(|| <serde_json::Error as serde::de::Error>::missing_field(key))?;
    Ok(serde_json::from_value(value)?)
}

fn rest<T: DeserializeOwned>(map: Map<String, Value>) -> Result<T, RecordError> {
    Ok(serde_json::from_value(Value::Object(map))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_and_signals() {
        let text = "file f memfd 1\nmmap p0 a 4 file:f r private\nwrite p0 a 1\nfsync f\nnote a b";
        let scenario = Scenario::parse("t", text).unwrap();
        let line = |k: usize| &scenario.ops[k];
        assert_eq!(
            Record::refused(&scenario, line(1), "ENOMEM").to_json(),
            r#"{"line":2,"op":"mmap","p":"p0","err":"ENOMEM"}"#
        );
        assert_eq!(
            Record::signalled(&scenario, line(2), Signal::Segv, 3).to_json(),
            r#"{"line":3,"op":"write","p":"p0","sig":"SIGSEGV","after":3}"#
        );
        let refused = Record::refused(&scenario, line(3), "EIO");
        assert_eq!(refused.to_json(), r#"{"line":4,"op":"fsync","err":"EIO"}"#);
        assert_eq!(Record::from_json(&refused.to_json()).unwrap(), refused);
        let note = Record::new(line(4), Note { text: "a b".into() });
        assert_eq!(note.to_json(), r#"{"line":5,"op":"note","text":"a b"}"#);
        assert_eq!(Record::from_json(&note.to_json()).unwrap(), note);
    }

    #[test]
    fn vma_keys_stand_in_the_order_of_the_description() {
        let json = r#"{"at":0,"n":1,"prot":"rw-p","Rss":1,"Shared_Clean":2,"Shared_Dirty":3,"Private_Clean":4,"Private_Dirty":5,"Anonymous":6,"KSM":7,"LazyFree":8,"AnonHugePages":9,"ShmemPmdMapped":10,"FilePmdMapped":11,"Swap":12,"Locked":13,"fl":"rd"}"#;
        let vma: Vma = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&vma).unwrap(), json);
        assert_eq!(serde_json::to_string(&Vma::default()).unwrap().matches(':').count(), 4);
    }

    #[test]
    fn what_is_no_observation() {
        for (json, what) in [
            ("", "EOF"),
            ("[]", "invalid type"),
            (r#"{"op":"stats","d":{}}"#, "missing field `line`"),
            (r#"{"line":1,"d":{}}"#, "missing field `op`"),
            (r#"{"line":-1,"op":"stats","d":{}}"#, "invalid value"),
            (r#"{"line":1,"op":"stat","d":{}}"#, "operation \"stat\" prints no such line"),
            (r#"{"line":1,"op":"fork","d":{}}"#, "operation \"fork\" prints no such line"),
            (r#"{"line":1,"op":"stats","d":{},"e":1}"#, "unknown field `e`"),
            (r#"{"line":1,"op":"stats","d":{"pgfault":1}}"#, "unknown counter \"pgfault\""),
            (r#"{"line":1,"op":"fcontent","file":"f","c":[[0,1,"x"]]}"#, "bad tag \"x\""),
        ] {
            let error = Record::from_json(json).unwrap_err().to_string();
            assert!(error.contains(what), "{json}: {error}");
        }
        let error = Record::read_all("\n{}\n").unwrap_err().to_string();
        assert!(error.starts_with("line 2: "), "{error}");
    }
}
