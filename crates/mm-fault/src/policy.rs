//! What a kernel configures about faults.

use crate::ThpPolicy;

/// Everything that is configured about faults: a plain value, read by every
/// fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultPolicy {
    /// Which folio sizes anonymous memory is filled with.
    pub thp: ThpPolicy,
    /// How far a write fault goes that found its folio to be exclusive.
    pub reuse: ReusePolicy,
}

impl FaultPolicy {
    /// Base pages only, except where `thp` says otherwise; page-wise reuse.
    pub const fn new(thp: ThpPolicy) -> Self {
        FaultPolicy { thp, reuse: ReusePolicy::Page }
    }
}

/// What is made writable when a write fault found that all references of a
/// large folio are mappings of this address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ReusePolicy {
    /// The page of the fault; each further page takes a fault of its own (rule
    /// REUSE-12).
    #[default]
    Page,
}
