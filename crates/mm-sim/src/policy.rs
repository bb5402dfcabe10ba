//! Policy presets: how the algorithms of a machine batch.

use mm_fault::{FaultPolicy, ReusePolicy, ThpPolicy};
use mm_gup::GupPolicy;
use mm_map::{Batching, MapPolicy};
use mm_reclaim::UnmapPolicy;
use mm_scenario::Mode;
use mm_scenario::corpus::Entry;

/// Order of the folios that start with the top knob's setting, as in a kernel
/// that was just booted. A scenario sets every size itself.
const PMD_ORDER: u32 = 9;

/// A preset, by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Preset {
    /// Nothing batched anywhere.
    Baseline,
    /// What that kernel does: fork, zap and protect batched; GUP and write-fault
    /// reuse per page.
    Linux618,
    /// The patch series on top of it: GUP in runs, write-fault reuse of what a
    /// page table maps of the folio.
    Series,
    /// The fastest of everything here.
    #[default]
    Best,
}

impl Preset {
    /// All presets.
    pub const ALL: &'static [Preset] =
        &[Preset::Baseline, Preset::Linux618, Preset::Series, Preset::Best];

    /// The name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Preset::Baseline => "baseline",
            Preset::Linux618 => "linux-6.18",
            Preset::Series => "series",
            Preset::Best => "best",
        }
    }
    /// The preset of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Preset::ALL.iter().copied().find(|p| p.name() == name)
    }
    /// Its value.
    pub fn policy(self) -> Policy {
        let (batching, gup, reuse) = match self {
            Preset::Baseline => (Batching::PerPage, GupPolicy::PER_PAGE, ReusePolicy::Page),
            Preset::Linux618 => (Batching::Batched, GupPolicy::PER_PAGE, ReusePolicy::Page),
            Preset::Series => (Batching::Batched, GupPolicy::BATCHED, ReusePolicy::Table),
            Preset::Best => (Batching::Batched, GupPolicy::BEST, ReusePolicy::Adaptive),
        };
        // Kernels suspend page by page (rule MIGR-01).
        let suspend = if self == Preset::Best { Batching::Batched } else { Batching::PerPage };
        let unmap = match self {
            Preset::Baseline => UnmapPolicy::Page,
            Preset::Linux618 => UnmapPolicy::Lazyfree,
            Preset::Series => UnmapPolicy::File,
            Preset::Best => UnmapPolicy::All,
        };
        Policy {
            unmap,
            map: MapPolicy { batching, suspend },
            gup,
            fault: FaultPolicy {
                hints: suspend,
                ..FaultPolicy::new(ThpPolicy::new(PMD_ORDER)).with_reuse(reuse)
            },
        }
    }
    /// Whether a write fault after a fork makes the whole folio writable again.
    fn reuses_whole_folios(self) -> bool {
        self.policy().fault.reuse != ReusePolicy::Page
    }
    /// What runs of `scenario` under this preset are held against, and how: the
    /// text of the golden file, if there is one.
    ///
    /// The derived goldens are what whole-folio reuse prints; for random scenarios with
    /// swap nobody has derived them. A series without it prints what mainline does.
    /// One page at a time, pages that were given up go until one is found that was stored
    /// to: their content has a golden of its own. Not where the format has `blocks`, which
    /// say of all their pages that there was a store.
    pub fn golden(self, scenario: &Entry, blocks: bool) -> (Option<&str>, Mode) {
        let mainline = scenario.golden.as_deref();
        match self {
            Preset::Linux618 => (mainline, Mode::Full),
            Preset::Series if self.reuses_whole_folios() => match &scenario.seed003 {
                Some(derived) => (Some(derived), Mode::Full),
                None if scenario.name.starts_with("random_swap_") => (mainline, Mode::ContentOnly),
                None => (mainline, Mode::Full),
            },
            Preset::Series => (mainline, Mode::Full),
            Preset::Best => (mainline, Mode::ContentOnly),
            Preset::Baseline if blocks => (mainline, Mode::ContentOnly),
            Preset::Baseline => (scenario.page.as_deref().or(mainline), Mode::ContentOnly),
        }
    }
}

/// The policies of all algorithms.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Fork, zap, protect, move.
    pub map: MapPolicy,
    /// Reclaim.
    pub unmap: UnmapPolicy,
    /// GUP.
    pub gup: GupPolicy,
    /// Faults: folio sizes, reuse.
    pub fault: FaultPolicy,
}
