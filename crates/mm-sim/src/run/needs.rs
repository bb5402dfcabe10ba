//! What a scenario needs of the entry format, asked before it runs.

use super::windows;
use crate::RunError;
use mm_arch::Arch;
use mm_scenario::{Op, Scenario, UffdAction, UffdMode};
use std::fmt;

/// What a format may lack without being wrong: a scenario that needs it does not
/// apply there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Feature {
    /// A write-protection bit for userfaultfd.
    UffdWp,
    /// Shadow stacks.
    ShadowStack,
    /// Pages of this many bytes.
    Pages(u64),
}

impl Feature {
    /// Whether a format has it.
    pub fn is_in<A: Arch>(self) -> bool {
        match self {
            Feature::UffdWp => A::HAS_UFFD_WP,
            Feature::ShadowStack => A::HAS_SHADOW_STACK,
            Feature::Pages(bytes) => bytes == 1 << A::PAGE_SHIFT,
        }
    }
    /// What an operation needs.
    fn of(op: &Op) -> Option<Self> {
        match op {
            Op::Uffd { action: UffdAction::Register(mode), .. } => {
                mode.contains(UffdMode::WP).then_some(Feature::UffdWp)
            }
            Op::Uffd {
                action: UffdAction::Copy { wp, .. } | UffdAction::Continue { wp }, ..
            } => wp.then_some(Feature::UffdWp),
            Op::Mmap { shstk, .. } => shstk.then_some(Feature::ShadowStack),
            _ => None,
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Feature::UffdWp => f.write_str("uffd-wp"),
            Feature::ShadowStack => f.write_str("shadow stack"),
            Feature::Pages(bytes) => write!(f, "pages of {} KiB", bytes >> 10),
        }
    }
}

/// Whether the format has what the scenario needs, and room for its regions.
pub(super) fn check<A: Arch>(scenario: &Scenario) -> Result<(), RunError> {
    let pages = (1, Some(Feature::Pages(scenario.page_size())));
    let of_lines = scenario.ops.iter().map(|line| (line.line_no, Feature::of(&line.op)));
    for (line, feature) in std::iter::once(pages).chain(of_lines) {
        if let Some(feature) = feature.filter(|f| !f.is_in::<A>()) {
            let (arch, file) = (A::NAME, scenario.name.clone());
            return Err(RunError::Lacks { feature, arch, file, line });
        }
    }
    let windows = windows::<A>();
    match scenario.regions().find(|(_, region)| !windows.hold(region, A::USER_END)) {
        None => Ok(()),
        Some((_, region)) => Err(RunError::Window {
            file: scenario.name.clone(),
            region: region.name.clone(),
            arch: A::NAME,
            bytes: windows.bytes(),
        }),
    }
}
