//! What page tables hold, entry by entry: text in the form of the dumps of real kernels.
//!
//! ```text
//! line 11 observe p0 a:0+16
//!    [0..4] PTE f0+0 attr=8000000000000867 P,W,U,A,D,SOFTDIRTY,NX
//!    [5..5] PTE nonpresent type=31 off=4
//!    [6..7] PTE 0
//!    [8..15] PTE f1..f8 attr=8000000000000867 P,W,U,A,D,SOFTDIRTY,NX
//! ```
//!
//! Which page of which folio an entry maps is told by the numbers of the observation that the
//! dump belongs to: `f1+3` is page 3 of folio 1, `f1..f8` are folios of one page. The machine tells
//! the rest.

use std::fmt;

use super::{Observe, RunState};
use crate::parse::Line;

/// The entry of one page, as the machine tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// The level it stands at, such as `PTE`.
    pub level: &'static str,
    /// What it holds.
    pub holds: EntryText,
}

/// What an entry holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryText {
    /// Nothing.
    Empty,
    /// A page.
    Leaf {
        /// The raw value without the address.
        attr: u64,
        /// Names of the bits, with commas between them.
        names: String,
    },
    /// A page that is elsewhere, or a marker.
    NonPresent {
        /// Type.
        ty: u8,
        /// Offset.
        offset: u64,
        /// Whether offsets rise along a run, as those of pages do.
        rises: bool,
        /// Names of the flags, with blanks between them.
        flags: String,
    },
}

/// Where a leaf points, by the numbers of the observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Page `index` of folio `number`, which has more than one.
    Page { number: u64, index: u64 },
    /// A folio of one page.
    Small { number: u64 },
    /// The zero page.
    Zero,
    /// The huge zero page.
    HugeZero,
    /// Nothing that is counted.
    Unknown,
}

impl Place {
    /// The place of a page, if the observation shows one there.
    fn of(observe: &Observe, target: usize, page: u64) -> Self {
        let runs = observe.t.get(target).map_or(&[][..], |t| &t.runs);
        let Some(run) = runs.iter().find(|r| (r.at..r.at + r.n).contains(&page)) else {
            return Place::Unknown;
        };
        let on = page - run.at;
        match (run.s, run.o, run.f, run.i) {
            (RunState::Zero, ..) => Place::Zero,
            (RunState::HugeZero, ..) => Place::HugeZero,
            (_, Some(0), Some(f), _) => Place::Small { number: f + on },
            (_, Some(_), Some(f), Some(i)) => Place::Page { number: f, index: i + on },
            _ => Place::Unknown,
        }
    }
    /// The place `n` pages on.
    fn after(self, n: u64) -> Self {
        match self {
            Place::Page { number, index } => Place::Page { number, index: index + n },
            Place::Small { number } => Place::Small { number: number + n },
            other => other,
        }
    }
}

/// Entries that are alike, or go on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    at: u64,
    n: u64,
    /// `None`: there is no table.
    entry: Option<(TableEntry, Place)>,
}

impl Run {
    /// Whether `next` goes on where this run ends.
    fn goes_on(&self, next: &Self) -> bool {
        let (Some((a, place)), Some((b, next_place))) = (&self.entry, &next.entry) else {
            return self.entry == next.entry;
        };
        let mut expected = a.clone();
        match &mut expected.holds {
            EntryText::Leaf { .. } if place.after(self.n) != *next_place => return false,
            EntryText::NonPresent { offset, rises: true, .. } => *offset += self.n,
            _ => {}
        }
        expected == *b
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}..{}] ", self.at, self.at + self.n - 1)?;
        let Some((entry, place)) = &self.entry else { return f.write_str("no table") };
        write!(f, "{} ", entry.level)?;
        match &entry.holds {
            EntryText::Empty => f.write_str("0"),
            EntryText::Leaf { attr, names } => {
                match place {
                    Place::Page { number, index } => write!(f, "f{number}+{index}")?,
                    Place::Small { number } if self.n == 1 => write!(f, "f{number}+0")?,
                    Place::Small { number } => write!(f, "f{number}..f{}", number + self.n - 1)?,
                    Place::Zero => f.write_str("zero")?,
                    Place::HugeZero => f.write_str("hugezero")?,
                    Place::Unknown => f.write_str("?")?,
                }
                write!(f, " attr={attr:016x} {names}")
            }
            EntryText::NonPresent { ty, offset, flags, .. } => {
                let gap = if flags.is_empty() { "" } else { " " };
                write!(f, "nonpresent type={ty} off={offset:x}{gap}{flags}")
            }
        }
    }
}

/// The entries behind one target of an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TargetTables {
    p: String,
    r: String,
    at: u64,
    n: u64,
    runs: Vec<Run>,
}

/// The entries behind an observation. Prints as the text of the module's description, one line
/// per run and without a newline at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDump {
    line: u32,
    op: &'static str,
    targets: Vec<TargetTables>,
}

impl TableDump {
    /// The entries behind what the operation at `line` observed. `entry` tells the entry of a
    /// page of a target; `None` if there is no table for it.
    #[must_use]
    pub fn new(
        line: &Line,
        observe: &Observe,
        mut entry: impl FnMut(usize, u64) -> Option<TableEntry>,
    ) -> Self {
        let targets = observe.t.iter().enumerate().map(|(target, t)| {
            let mut runs: Vec<Run> = Vec::new();
            for at in t.at..t.at + t.n {
                let entry = entry(target, at).map(|e| (e, Place::of(observe, target, at)));
                let run = Run { at, n: 1, entry };
                match runs.last_mut() {
                    Some(last) if last.goes_on(&run) => last.n += 1,
                    _ => runs.push(run),
                }
            }
            TargetTables { p: t.p.clone(), r: t.r.clone(), at: t.at, n: t.n, runs }
        });
        Self { line: line.line_no, op: line.op.name(), targets: targets.collect() }
    }
}

impl fmt::Display for TableDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (k, t) in self.targets.iter().enumerate() {
            let newline = if k == 0 { "" } else { "\n" };
            write!(f, "{newline}line {} {} {} {}:{}+{}", self.line, self.op, t.p, t.r, t.at, t.n)?;
            for run in &t.runs {
                write!(f, "\n   {run}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{
        FolioFlags, History, MappedPage, PageFact, PageKind, PageState, TargetRuns,
    };
    use crate::{Op, Scenario};

    fn leaf(attr: u64) -> Option<TableEntry> {
        let holds = EntryText::Leaf { attr, names: "P,W".into() };
        Some(TableEntry { level: "PTE", holds })
    }
    fn elsewhere(ty: u8, offset: u64, rises: bool, flags: &str) -> Option<TableEntry> {
        let holds = EntryText::NonPresent { ty, offset, rises, flags: flags.into() };
        Some(TableEntry { level: "PTE", holds })
    }

    #[test]
    fn what_goes_on_is_one_run() {
        let text = "mmap p0 a 16 anon rw private\nobserve p0 a\n";
        let scenario = Scenario::parse("t", text).unwrap();
        let line = &scenario.ops[1];
        let Op::Observe { targets } = &line.op else { panic!() };
        // Four pages of a folio, of which the last maps again; three small folios; the zero page.
        let page = |_, _, at| {
            let present = |order, head, index| {
                PageFact::new(PageState::Present(MappedPage {
                    kind: PageKind::Anon,
                    order,
                    head,
                    index,
                    mapcount: 1,
                    exclusive: true,
                }))
            };
            match at {
                0..4 => present(2, 64, at),
                4 => present(2, 64, 3),
                5..8 => present(0, 100 - at, 0),
                8 => PageFact::new(PageState::Zero),
                _ => PageFact::NONE,
            }
        };
        let observe = History::default().observe(&scenario, targets, page, |_| FolioFlags::empty());
        let dump = TableDump::new(line, &observe, |_, at| match at {
            2 => leaf(0x67),
            0..5 => leaf(0x25),
            5..9 => leaf(0x805),
            9 | 10 => Some(TableEntry { level: "PTE", holds: EntryText::Empty }),
            11 | 12 => elsewhere(0, 0x200 + at, true, "EXCL"),
            13 | 14 => elsewhere(31, 4, false, ""),
            _ => None,
        });
        let expected = "line 2 observe p0 a:0+16
   [0..1] PTE f0+0 attr=0000000000000025 P,W
   [2..2] PTE f0+2 attr=0000000000000067 P,W
   [3..3] PTE f0+3 attr=0000000000000025 P,W
   [4..4] PTE f0+3 attr=0000000000000025 P,W
   [5..7] PTE f1..f3 attr=0000000000000805 P,W
   [8..8] PTE zero attr=0000000000000805 P,W
   [9..10] PTE 0
   [11..12] PTE nonpresent type=0 off=20b EXCL
   [13..14] PTE nonpresent type=31 off=4
   [15..15] no table";
        assert_eq!(dump.to_string(), expected);
    }

    #[test]
    fn a_page_that_nothing_shows_is_unknown() {
        let observe = Observe {
            t: vec![TargetRuns { p: "p0".into(), r: "a".into(), at: 0, n: 1, runs: vec![] }],
            folios: None,
            hx: None,
        };
        let scenario = Scenario::parse("t", "mmap p0 a 1 anon rw private\nobserve p0 a\n").unwrap();
        let dump = TableDump::new(&scenario.ops[1], &observe, |_, _| leaf(1));
        assert!(dump.to_string().ends_with("[0..0] PTE ? attr=0000000000000001 P,W"));
    }
}
