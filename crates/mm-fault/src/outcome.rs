//! How a fault ends.

use core::fmt;
use mm_arch::VirtAddr;

/// How a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the access has not happened yet"]
pub enum FaultOutcome {
    /// Resolved, or changed by somebody else meanwhile: make the access again.
    /// It may fault again.
    Done {
        /// Whether the content had to be read from a device.
        major: bool,
    },
    /// The access is not possible.
    Signal(FaultSignal),
    /// There is no memory. Nothing was changed.
    Oom,
}

impl FaultOutcome {
    /// Resolved from memory.
    pub(crate) const MINOR: Self = FaultOutcome::Done { major: false };
}

/// Why an access is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultSignal {
    /// No mapping at the address, or it does not allow the access.
    Segv {
        /// The page of the access.
        va: VirtAddr,
    },
    /// A mapping, but nothing that it could map.
    Bus {
        /// The page of the access.
        va: VirtAddr,
    },
}

impl fmt::Display for FaultSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultSignal::Segv { va } => write!(f, "access to {va} is not allowed"),
            FaultSignal::Bus { va } => write!(f, "nothing is behind {va}"),
        }
    }
}
impl core::error::Error for FaultSignal {}
