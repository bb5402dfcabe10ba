//! A machine: memory, CPUs, and the policy its kernel runs with.

use crate::device::{Objects, Swap};
use crate::epochs::ThreadHandles;
use crate::events::{EventCounts, Events};
use crate::platform::Parts;
use crate::process::Process;
use crate::{Cpus, FrameSource, FrameTables, Frames, Host, Policy, Ram};
use mm_arch::{Arch, Level, Pfn};
use mm_folio::{AllocError, FrameBytes, Get, MAX_ORDERS, MemMap, MmIds};
use mm_reclaim::Lru;
use mm_rmap::{AnonTrees, FileTrees};
use mm_sync::Quiescence;
use mm_sync::epoch::Epoch;
use mm_vma::{Mm, MmError};
use std::sync::Arc;

/// How a machine is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineConfig {
    /// Bytes of memory, a multiple of the page size. The host provides them on
    /// first touch.
    pub bytes: u64,
    /// Number of the first frame.
    pub first_frame: Pfn,
    /// Bytes of memory that are near to all CPUs, from the first frame on; what is used of the
    /// rest is better moved there (rule NUMA-01).
    pub near_bytes: u64,
    /// Number of CPUs.
    pub cpus: usize,
    /// Fill frames that are freed, so that a use after free is seen.
    pub poison: bool,
}

impl MachineConfig {
    /// The default amount of memory: 1 GiB.
    pub const DEFAULT_BYTES: u64 = 1 << 30;
    /// The most memory a machine can have: 64 GiB.
    pub const MAX_BYTES: u64 = 64 << 30;
}

impl Default for MachineConfig {
    fn default() -> Self {
        MachineConfig {
            bytes: Self::DEFAULT_BYTES,
            // Memory lies across 4 GiB (with small pages), and even a small scenario uses
            // frames on both sides: two-word entries then differ in both words.
            first_frame: Pfn::new((1 << 20) - 64),
            near_bytes: u64::MAX,
            cpus: 1,
            poison: cfg!(debug_assertions),
        }
    }
}

/// Why a machine could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MachineError {
    /// The amount of memory makes no sense.
    #[error("memory of {bytes} bytes is not a multiple of {page} bytes between {page} and {max}")]
    Size {
        /// What was asked for.
        bytes: u64,
        /// Bytes of a page.
        page: u64,
        /// The most there can be.
        max: u64,
    },
    /// The host has no such memory.
    #[error("the host does not provide {bytes} bytes of memory")]
    Host {
        /// What was asked for.
        bytes: u64,
    },
    /// Not even the kernel's own pages fit.
    #[error("memory of {bytes} bytes is too small for the zero page")]
    TooSmall {
        /// What was asked for.
        bytes: u64,
    },
}

/// A machine. Dropping it runs what still waits for lockless walkers.
///
/// Processes hold the machine's parts alive, so they may be dropped after it;
/// but they must have exited before they are dropped, as in a kernel.
#[derive(Debug)]
pub struct Machine<A: Arch, O: Events = EventCounts> {
    host: Host<A, O>,
}

impl<A: Arch, O: Events> Machine<A, O> {
    /// Builds a machine.
    ///
    /// # Errors
    ///
    /// If the configuration makes no sense or the host lacks the memory.
    pub fn new(config: MachineConfig, policy: Policy) -> Result<Self, MachineError> {
        let MachineConfig { bytes, first_frame, near_bytes, cpus, poison } = config;
        let page = 1u64 << A::PAGE_SHIFT;
        if bytes == 0 || bytes % page != 0 || bytes > MachineConfig::MAX_BYTES {
            return Err(MachineError::Size { bytes, page, max: MachineConfig::MAX_BYTES });
        }
        let nr_frames = (bytes / page) as usize;
        let ram =
            Ram::new(first_frame, nr_frames, A::PAGE_SHIFT).ok_or(MachineError::Host { bytes })?;
        let nr_near = usize::try_from(near_bytes / page).unwrap_or(usize::MAX);
        let frames = Arc::new(Frames::new(ram, nr_near, poison));
        let too_small = |_: AllocError| MachineError::TooSmall { bytes };
        let lru =
            Lru::new(first_frame, nr_frames as u64).map_err(|_| MachineError::Host { bytes })?;
        let lru = Arc::new(lru);
        let source = FrameSource::new(frames.clone(), lru.clone());
        let memmap = MemMap::with_pincount_from(
            first_frame,
            nr_frames as u64,
            source,
            A::PINCOUNT_MIN_ORDER,
        )
        .map_err(|_| MachineError::Host { bytes })?;
        let zero_page = kernel_folio(&memmap, &frames, 0).map_err(too_small)?;
        memmap.set_zero_page(zero_page);
        // A small machine has none, as a kernel on one would refuse it.
        let pmd_order = A::order(Level::Pmd);
        let wants_huge = (pmd_order as usize) < MAX_ORDERS && nr_frames >= 4 << pmd_order;
        let huge_zero =
            wants_huge.then(|| kernel_folio(&memmap, &frames, pmd_order).ok()).flatten();
        if let Some(head) = huge_zero {
            memmap.set_huge_zero(head);
        }
        let parts = Parts {
            tables: FrameTables::new(frames.clone()),
            cpus: Cpus::new(cpus, frames.clone()),
            swap: Swap::new(frames.clone()),
            frames,
            epochs: Epoch::new(ThreadHandles::new()),
            memmap,
            mm_ids: MmIds::new(),
            anon: AnonTrees::new(),
            files: FileTrees::new(),
            objects: Objects::new(),
            lru,
            events: O::default(),
            policy: std::sync::RwLock::new(policy),
            zero_page,
            huge_zero,
        };
        Ok(Machine { host: Host(Arc::new(parts)) })
    }
    /// The platform that the algorithms are called with.
    pub fn host(&self) -> &Host<A, O> {
        &self.host
    }
    /// A process with nothing mapped, on CPU 0.
    ///
    /// # Errors
    ///
    /// If there is no memory for its root table, or no id.
    pub fn spawn(&self) -> Result<Process<A, O>, MmError> {
        Ok(Process::new(Mm::new(self.host.clone())?, 0))
    }
    /// Completes what operations left for later: deferred flushes, and frees
    /// that waited for lockless walkers. The caller holds no quiescence guard.
    pub fn settle(&self) {
        self.host.settle();
    }
}

impl<A: Arch, O: Events> Drop for Machine<A, O> {
    fn drop(&mut self) {
        // What is retired holds the parts alive; let it go.
        self.host.0.epochs.synchronize();
    }
}

/// A folio that the kernel keeps for ever, filled with zeros.
fn kernel_folio<A: Arch, O: Events>(
    memmap: &MemMap<Host<A, O>>,
    frames: &Frames,
    order: u32,
) -> Result<Pfn, AllocError> {
    let folio: mm_folio::FolioRef<'_, _, Get> = memmap.alloc(order)?;
    let head = folio.hand_over().head();
    frames.zero(head, 1 << order);
    Ok(head)
}
