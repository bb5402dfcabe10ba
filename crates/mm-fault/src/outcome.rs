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
    /// Userfaultfd has to be asked about the page of the access. Nothing was
    /// changed; when it has answered, make the access again.
    UserFault {
        /// The page of the access.
        va: VirtAddr,
        /// What it is asked.
        kind: UserFault,
    },
    /// There is no memory. Nothing was changed.
    Oom,
}

impl FaultOutcome {
    /// Resolved from memory.
    pub(crate) const MINOR: Self = FaultOutcome::Done { major: false };
}

/// The lock of its VMA does not suffice for a fault, which has changed nothing: it is handled again
/// with the mmap lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeedsMmapLock;

impl fmt::Display for NeedsMmapLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fault needs the mmap lock")
    }
}
impl core::error::Error for NeedsMmapLock {}

/// Why userfaultfd has to be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserFault {
    /// A store to a page that it write-protected.
    Wp,
    /// No page is there.
    Missing {
        /// Whether the access was a store.
        write: bool,
    },
    /// The object has the page, and the mapping does not show it.
    Minor {
        /// Whether the access was a store.
        write: bool,
    },
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
    /// The page has failed, or userfaultfd has said so: a bus error that tells which memory is
    /// lost (rules SWPI-01, UFFD-05).
    Poisoned {
        /// The page of the access.
        va: VirtAddr,
    },
}

impl fmt::Display for FaultSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultSignal::Segv { va } => write!(f, "access to {va} is not allowed"),
            FaultSignal::Bus { va } => write!(f, "nothing is behind {va}"),
            FaultSignal::Poisoned { va } => write!(f, "what was at {va} is lost"),
        }
    }
}
impl core::error::Error for FaultSignal {}
