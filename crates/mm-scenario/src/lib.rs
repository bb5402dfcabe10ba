//! The scenario language: what to do to a machine, what to look at, and how to compare.
//!
//! # The problem
//!
//! Whether memory management behaves like a real kernel's is a question of thousands of small
//! facts: which faults were taken, which folio is where, how often it is mapped, what the bytes
//! are after a fork, a pin and an exit. A *scenario* asks such a question in a few lines of text:
//!
//! ```text
//! thp 64kB madvise                   # policy, before there is a process
//! mmap p0 a 32 anon rw private       # region `a`, 32 pages
//! madvise p0 a hugepage
//! write p0 a 1                       # store a tag in each page
//! faults p0                          # print: which faults did it take?
//! fork p1 p0
//! exit p1
//! write p0 a:0+16 2
//! observe p0 a                       # print: what is mapped, page by page
//! ```
//!
//! A runner does the operations in order and prints one line of JSON for each that has something
//! to say. Real kernels have answered the scenarios in `data/`; their answers are the *goldens*.
//! This crate knows the language and the answers, and no machine: anything that can do the
//! operations can be held against the goldens.
//!
//! ```text
//!  NAME.scn ──► Scenario ──► a machine ──► facts per page ──► History, FaultLog, … ──► Record
//!               parse                                         observe                    │
//!  golden/NAME.json ─────────────────────────────────────────────────────► first_difference
//!                                                                            compare
//! ```
//!
//! The whole language is described in `data/LANGUAGE.md`.
//!
//! # Protocol
//!
//! 1. [`Scenario::parse`] resolves all names and ranges. A text that parses holds nothing that a
//!    runner could fail to understand; a runner that lacks an operation names it by [`Op::name`].
//! 2. The runner does [`Scenario::setup`], makes `p0`, then does [`Scenario::body`]. For each
//!    operation it calls [`History::note`](observe::History::note), whatever came of it.
//! 3. What an operation prints is a [`Record`](observe::Record) of its line. The builders in
//!    [`observe`] join pages to runs and number folios; a machine only tells facts.
//! 4. [`first_difference`] compares records with a golden file by what the model
//!    [has](Capabilities).
//!
//! # Not here
//!
//! Nothing runs scenarios, nothing knows page tables, and the crate does not judge a policy: which
//! golden file and which [`Mode`] belong to it is the caller's decision.
//!
//! # Example
//!
//! ```
//! use mm_scenario::observe::{FaultLog, Record};
//! use mm_scenario::{Capabilities, Mode, Op, Scenario, first_difference};
//!
//! let text = "mmap p0 a 4 anon rw private\nread p0 a\nfaults p0\n";
//! let scenario = Scenario::parse("small", text)?;
//!
//! // A machine that takes a fault for every page.
//! let mut log = FaultLog::default();
//! let mut printed = Vec::new();
//! for line in scenario.body() {
//!     match &line.op {
//!         Op::Read { range, order, .. } => {
//!             let region = &scenario.region(range.region).name;
//!             range.in_order(*order).for_each(|page| log.minor(region, page));
//!         }
//!         Op::Faults { proc } => {
//!             printed.push(Record::new(line, log.take(scenario.proc_name(*proc))));
//!         }
//!         _ => {}
//!     }
//! }
//!
//! let golden = r#"{"line":3,"op":"faults","p":"p0","min":1,"maj":0,"gup_min":0,"gup_maj":0,"minat":{"a":[[0,1]]}}"#;
//! let golden = Record::read_all(golden)?;
//! let difference = first_difference(&golden, &printed, Mode::Full, &Capabilities::all());
//! assert_eq!(
//!     difference.unwrap().to_string(),
//!     "line 3: faults min: expected 1, got 4"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod compare;
pub mod corpus;
pub mod observe;
mod op;
mod parse;
mod range;

pub use compare::{Capabilities, Difference, Keeps, Mode, first_difference};
pub use op::{
    Advice, FileBacking, FolioSize, MapSource, OP_NAMES, Op, PinMethod, Prot, Sharing, ShmemPolicy,
    Target, ThpPolicy, UffdAction, UffdMode,
};
pub use parse::{Line, ParseError, ParseErrorKind, Pragma, Scenario};
pub use range::{
    FileId, MAX_PAGES, MAX_REGIONS, PAGE_SIZE, PinId, ProcId, Range, Region, RegionId, TouchOrder,
    WINDOW_PAGES, Windows,
};
