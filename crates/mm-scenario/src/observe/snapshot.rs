//! `observe`: from facts per page to runs, folio numbers and `eq`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use bitflags::bitflags;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::serde_words;
use crate::op::{Op, Target, keywords};
use crate::parse::Scenario;
use crate::range::{ProcId, RegionId};

keywords! {
    /// What a present page belongs to.
    PageKind {
        /// Anonymous memory.
        Anon = "anon",
        /// The page cache or shmem.
        File = "file",
        /// KSM.
        Ksm = "ksm",
    }

    /// The state of the pages of a run.
    RunState {
        /// Nothing mapped, or no VMA.
        None = "none",
        /// A page is mapped.
        Present = "present",
        /// A swap entry.
        Swap = "swap",
        /// A PTE marker.
        Marker = "marker",
        /// The shared zero page.
        Zero = "zero",
        /// A part of the huge zero page.
        HugeZero = "hugezero",
        /// A guard.
        Guard = "guard",
    }
}
serde_words!(PageKind, RunState);

bitflags! {
    /// The flags of a folio that observations show.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct FolioFlags: u16 {
        /// Anonymous (KSM, too).
        const ANON = 1 << 0;
        /// A KSM page.
        const KSM = 1 << 1;
        /// On an LRU list.
        const LRU = 1 << 2;
        /// Active.
        const ACTIVE = 1 << 3;
        /// Referenced.
        const REFERENCED = 1 << 4;
        /// The dirty flag of the folio, not of a PTE.
        const DIRTY = 1 << 5;
        /// Up to date.
        const UPTODATE = 1 << 6;
        /// Backed by swap; absent on lazily freeable folios.
        const SWAPBACKED = 1 << 7;
        /// In the swap cache.
        const SWAPCACHE = 1 << 8;
        /// Under writeback.
        const WRITEBACK = 1 << 9;
        /// Unevictable.
        const UNEVICTABLE = 1 << 10;
        /// Mlocked.
        const MLOCKED = 1 << 11;
        /// The head page is exclusive to one process (AnonExclusive).
        const HEAD_EXCLUSIVE = 1 << 12;
    }
}

impl FolioFlags {
    /// The words of the output, in its order.
    pub const WORDS: &'static [(&'static str, Self)] = &[
        ("anon", Self::ANON),
        ("ksm", Self::KSM),
        ("lru", Self::LRU),
        ("act", Self::ACTIVE),
        ("ref", Self::REFERENCED),
        ("dirty", Self::DIRTY),
        ("upd", Self::UPTODATE),
        ("swb", Self::SWAPBACKED),
        ("swc", Self::SWAPCACHE),
        ("wb", Self::WRITEBACK),
        ("unev", Self::UNEVICTABLE),
        ("mlk", Self::MLOCKED),
        ("hx", Self::HEAD_EXCLUSIVE),
    ];

    fn from_words(text: &str) -> Option<Self> {
        text.split_ascii_whitespace().try_fold(Self::empty(), |flags, word| {
            let (_, flag) = Self::WORDS.iter().find(|(name, _)| *name == word)?;
            Some(flags | *flag)
        })
    }
}

impl fmt::Display for FolioFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = Self::WORDS.iter().filter(|(_, flag)| self.contains(*flag));
        let words: Vec<_> = words.map(|(word, _)| *word).collect();
        f.write_str(&words.join(" "))
    }
}

impl Serialize for FolioFlags {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FolioFlags {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::from_words(&text)
            .ok_or_else(|| D::Error::custom(format_args!("unknown folio flag in {text:?}")))
    }
}

/// The answer of `observe`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observe {
    /// The targets, as the operation names them.
    pub t: Vec<TargetRuns>,
    /// The folios of all targets. A runner prints them always; a derived golden may have
    /// [`hx`](Self::hx) instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folios: Option<Vec<FolioRun>>,
    /// In derived goldens: whether the head page is exclusive, for folios whose head page is
    /// mapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hx: Option<BTreeMap<u64, u8>>,
}

/// The runs of one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetRuns {
    /// Process.
    pub p: String,
    /// Region.
    pub r: String,
    /// First page.
    pub at: u64,
    /// Pages.
    pub n: u64,
    /// Runs, ascending, without gaps.
    pub runs: Vec<Run>,
}

/// Pages whose keys are equal or go on (see the language's description).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// First page.
    pub at: u64,
    /// Pages.
    pub n: u64,
    /// State.
    pub s: RunState,
    /// 1 if mapped by a PMD leaf, else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pmd: Option<u8>,
    /// 1 if write-protected by userfaultfd, else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wp: Option<u8>,
    /// Kind. This and the rest: only for present pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<PageKind>,
    /// Order of the folio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub o: Option<u8>,
    /// Number of the folio of the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f: Option<u64>,
    /// Index of the first page in its folio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub i: Option<u64>,
    /// Mapcount of each page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mc: Option<u64>,
    /// Exclusively mapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<u8>,
    /// The same physical page as in the last observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eq: Option<u8>,
}

impl Run {
    /// Whether `next` goes on where this run ends. Slots of swap entries are not looked at.
    fn goes_on(&self, next: &Self) -> bool {
        let (f, i) = match self.o {
            Some(0) => (self.f.map(|f| f + self.n), self.i),
            Some(_) => (self.f, self.i.map(|i| i + self.n)),
            None => (None, None),
        };
        let next_of_this = Self { at: self.at + self.n, n: next.n, f, i, ..self.clone() };
        next_of_this == *next
    }

    /// Takes `eq` out of runs and joins what only it kept apart.
    pub(crate) fn without_eq(runs: &[Self]) -> Vec<Self> {
        let mut joined: Vec<Self> = Vec::new();
        for run in runs {
            let run = Self { eq: None, ..run.clone() };
            match joined.last_mut() {
                // Swap runs are apart because their slots are.
                Some(last) if last.s != RunState::Swap && last.goes_on(&run) => last.n += run.n,
                _ => joined.push(run),
            }
        }
        joined
    }
}

/// `{"f":first,"n":count,"o":order,"fl":flags}`: consecutive folio numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolioRun {
    /// First number.
    pub f: u64,
    /// Folios.
    pub n: u64,
    /// Their order.
    pub o: u8,
    /// Their flags.
    pub fl: FolioFlags,
}

/// What a machine tells of one page of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFact {
    /// What is there.
    pub state: PageState,
    /// Mapped by a PMD leaf.
    pub pmd: bool,
    /// Write-protected by userfaultfd.
    pub wp: bool,
}

impl PageFact {
    /// Nothing mapped, or no VMA.
    pub const NONE: Self = Self::new(PageState::None);

    /// A page mapped by a PTE, or an entry in one, without write protection by userfaultfd.
    #[must_use]
    pub const fn new(state: PageState) -> Self {
        Self { state, pmd: false, wp: false }
    }
}

/// What is at a page of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// Nothing.
    None,
    /// A page.
    Present(MappedPage),
    /// A swap entry.
    Swap {
        /// Slot on the device; only whether slots are consecutive is shown.
        slot: u64,
    },
    /// A PTE marker.
    Marker,
    /// The shared zero page.
    Zero,
    /// A part of the huge zero page.
    HugeZero,
    /// A guard.
    Guard,
}

/// A page that a process maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedPage {
    /// What it belongs to.
    pub kind: PageKind,
    /// Order of its folio.
    pub order: u8,
    /// Frame of the folio's first page. It tells folios apart, and `head + index` pages; it is
    /// not shown.
    pub head: u64,
    /// Index of the page in its folio.
    pub index: u64,
    /// Mapcount of the page: PTEs that map it plus PMD mappings of its folio.
    pub mapcount: u64,
    /// The pagemap bit "exclusively mapped": the mapcount is 1. In a PMD mapping, that of the
    /// folio's first page.
    pub exclusive: bool,
}

impl MappedPage {
    fn frame(&self) -> u64 {
        self.head + self.index
    }
}

/// What was observed before, by process and region: makes observations and their `eq`.
///
/// A runner calls [`note`](Self::note) for every operation, and
/// [`observe`](Self::observe) for every `observe`.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Frames of the pages that were present in the last observation.
    seen: BTreeMap<(ProcId, RegionId), HashMap<u64, u64>>,
}

impl History {
    /// Notes what `op` means for the next observations, whether it succeeded or not: frames are
    /// forgotten, a child inherits.
    pub fn note(&mut self, op: &Op) {
        match *op {
            Op::Fork { child, parent } => {
                let of_parent = (parent, RegionId(0))..=(parent, RegionId(u32::MAX));
                let inherited: Vec<_> = self
                    .seen
                    .range(of_parent)
                    .map(|(&(_, region), frames)| ((child, region), frames.clone()))
                    .collect();
                self.seen.extend(inherited);
            }
            Op::Exit { proc } => self.seen.retain(|&(owner, _), _| owner != proc),
            _ if op.forgets_frames() => self.seen.clear(),
            _ => {}
        }
    }

    /// Makes an observation. `page` tells the facts of a page of a process, `flags` those of a
    /// folio, by its [`MappedPage::head`].
    #[must_use]
    pub fn observe(
        &mut self,
        scenario: &Scenario,
        targets: &[Target],
        mut page: impl FnMut(ProcId, RegionId, u64) -> PageFact,
        mut flags: impl FnMut(u64) -> FolioFlags,
    ) -> Observe {
        let mut folios = FolioNumbers::default();
        let mut now: BTreeMap<(ProcId, RegionId), HashMap<u64, u64>> = BTreeMap::new();
        let mut t = Vec::with_capacity(targets.len());
        for &Target { proc, range } in targets {
            let before = self.seen.get(&(proc, range.region));
            let frames = now.entry((proc, range.region)).or_default();
            let mut runs = RunBuilder::default();
            for at in range.iter() {
                let fact = page(proc, range.region, at);
                let mut run = Run::of(at, &fact);
                if let PageState::Present(mapped) = fact.state {
                    frames.insert(at, mapped.frame());
                    run.f = Some(folios.number(&mapped));
                    run.eq = before
                        .and_then(|frames| frames.get(&at))
                        .map(|&frame| u8::from(frame == mapped.frame()));
                }
                runs.push(run, &fact);
            }
            t.push(TargetRuns {
                p: scenario.proc_name(proc).to_owned(),
                r: scenario.region(range.region).name.clone(),
                at: range.first,
                n: range.pages,
                runs: runs.runs,
            });
        }
        self.seen.append(&mut now);
        Observe { t, folios: Some(folios.runs(&mut flags)), hx: None }
    }
}

impl Run {
    /// The run of one page, without folio number and `eq`.
    fn of(at: u64, fact: &PageFact) -> Self {
        let (s, mapped) = match fact.state {
            PageState::None => (RunState::None, None),
            PageState::Present(mapped) => (RunState::Present, Some(mapped)),
            PageState::Swap { .. } => (RunState::Swap, None),
            PageState::Marker => (RunState::Marker, None),
            PageState::Zero => (RunState::Zero, None),
            PageState::HugeZero => (RunState::HugeZero, None),
            PageState::Guard => (RunState::Guard, None),
        };
        Self {
            at,
            n: 1,
            s,
            pmd: fact.pmd.then_some(1),
            wp: fact.wp.then_some(1),
            k: mapped.map(|page| page.kind),
            o: mapped.map(|page| page.order),
            f: None,
            i: mapped.map(|page| page.index),
            mc: mapped.map(|page| page.mapcount),
            x: mapped.map(|page| u8::from(page.exclusive)),
            eq: None,
        }
    }
}

#[derive(Default)]
struct RunBuilder {
    runs: Vec<Run>,
    /// The slot after the last page's, if that was a swap entry.
    next_slot: Option<u64>,
}

impl RunBuilder {
    fn push(&mut self, run: Run, fact: &PageFact) {
        let slot = match fact.state {
            PageState::Swap { slot } => Some(slot),
            _ => None,
        };
        match self.runs.last_mut() {
            Some(last) if self.next_slot == slot && last.goes_on(&run) => last.n += run.n,
            _ => self.runs.push(run),
        }
        self.next_slot = slot.map(|slot| slot.wrapping_add(1));
    }
}

/// Numbers folios by first sight.
#[derive(Default)]
struct FolioNumbers {
    numbers: HashMap<u64, u64>,
    /// Head frame and order, by number.
    folios: Vec<(u64, u8)>,
}

impl FolioNumbers {
    fn number(&mut self, page: &MappedPage) -> u64 {
        *self.numbers.entry(page.head).or_insert_with(|| {
            self.folios.push((page.head, page.order));
            self.folios.len() as u64 - 1
        })
    }

    fn runs(&self, flags: &mut impl FnMut(u64) -> FolioFlags) -> Vec<FolioRun> {
        let mut runs: Vec<FolioRun> = Vec::new();
        for (f, &(head, order)) in (0..).zip(&self.folios) {
            let fl = flags(head);
            match runs.last_mut() {
                Some(last) if last.o == order && last.fl == fl => last.n += 1,
                _ => runs.push(FolioRun { f, n: 1, o: order, fl }),
            }
        }
        runs
    }
}
