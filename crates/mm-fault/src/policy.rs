//! What a kernel configures about faults.

use crate::{ShmemPolicy, ThpPolicy};
use mm_rmap::Batching;

/// Everything that is configured about faults: a plain value, read by every
/// fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultPolicy {
    /// Which folio sizes anonymous memory is filled with.
    pub thp: ThpPolicy,
    /// How far a write fault goes that found its folio to be exclusive.
    pub reuse: ReusePolicy,
    /// How many entries could be written for the cost of one fault: what
    /// [`ReusePolicy::Adaptive`] weighs one against the other with. `mmlab repro
    /// reuse` measures it. Too large a number weakens what the policy promises against
    /// `Page`, too small a one how close it comes to `Table`.
    pub entries_per_fault: u16,
    /// What an unshare fault does that found its folio to be exclusive.
    pub unshare: UnshareReuse,
    /// Which folio sizes shared memory is filled with.
    pub shmem: ShmemPolicy,
    /// Pages around a read fault on a file that are mapped if they are cached: the
    /// size of the aligned window, a power of two; 1 for none (rule FILE-02).
    pub fault_around: u32,
    /// How pages come back from swap devices that are as fast as memory.
    pub swap_in: SwapInPolicy,
    /// How many entries of a folio get their rights back in one step when an access meets
    /// one that was made a hint; all of them do (rule NUMA-02).
    pub hints: Batching,
}

impl FaultPolicy {
    /// Base pages only, except where `thp` says otherwise; page-wise reuse; 16 pages
    /// around a fault on a file.
    pub const fn new(thp: ThpPolicy) -> Self {
        FaultPolicy {
            thp,
            reuse: ReusePolicy::Page,
            entries_per_fault: 10,
            unshare: UnshareReuse::Page,
            shmem: ShmemPolicy::NEVER,
            fault_around: 16,
            swap_in: SwapInPolicy::Direct,
            hints: Batching::PerPage,
        }
    }
    /// With another reach of write faults.
    #[must_use]
    pub const fn with_reuse(mut self, reuse: ReusePolicy) -> Self {
        self.reuse = reuse;
        self
    }
}

/// What is made writable when a write fault found that all references of a
/// large folio are mappings of this address space.
///
/// All but [`Page`](Self::Page) go further than the page of the fault: the pages
/// around it that the same page table maps are marked exclusive as well, and
/// their entries made writable where a change of protection would make them so.
/// They stop at the folio and at the mapping (rules WREUSE-03, WREUSE-04).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ReusePolicy {
    /// The page of the fault; each further page takes a fault of its own (rule
    /// REUSE-12).
    #[default]
    Page,
    /// The naturally aligned block of 16 pages around it.
    Block,
    /// Everything that the page table maps of the folio.
    Table,
    /// As far as the stores that were seen in the mapping make it likely to pay,
    /// and never further than they have paid for.
    Adaptive,
}

/// How pages come back from swap (rule MODE-01).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum SwapInPolicy {
    /// From a synchronous device a page that one entry counts on is read past the swap
    /// cache, in the folio size that policy and slots allow. What is shared is read into
    /// the cache, page by page. Linux 6.18.
    #[default]
    Direct,
    /// Everything is read into the swap cache, and leaves it at once if the device is
    /// synchronous. Linux 7.0.
    Cached,
}

/// What an unshare fault marks exclusive when it found that all references of a
/// large folio are mappings of this address space. It never changes an entry
/// (rule WREUSE-17).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum UnshareReuse {
    /// The page of the fault.
    #[default]
    Page,
    /// Everything that the page table maps of the folio.
    Table,
}
