//! The machine as the algorithms see it: the handle that implements the traits
//! of a kernel.

use crate::device::{Objects, Swap};
use crate::epochs::ThreadHandles;
use crate::events::{EventCounts, Events};
use crate::{Cpus, FrameSource, FrameTables, Frames, Policy};
use mm_arch::{Arch, Pfn, Tlb};
use mm_folio::{FileId, Folio, FolioRef, FolioSpace, Get, MemMap, MmIds};
use mm_pgtable::TableSpace;
use mm_reclaim::{Lru, ReclaimPlatform};
use mm_rmap::{AnonTrees, Batching, FileTrees, MigrationError, RmapPlatform};
use mm_sync::epoch::Epoch;
use mm_sync::{DefaultLock, DefaultRwLock, Quiescence};
use mm_vma::{Backing, Platform};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// What the address spaces of a machine share.
pub(crate) struct Parts<A: Arch, O: Events> {
    pub frames: Arc<Frames>,
    pub tables: FrameTables<A>,
    pub cpus: Cpus<A>,
    pub epochs: Epoch<ThreadHandles>,
    pub memmap: MemMap<Host<A, O>>,
    pub mm_ids: MmIds<DefaultLock>,
    pub anon: AnonTrees<Host<A, O>>,
    pub files: FileTrees<Host<A, O>>,
    pub objects: Objects<A, O>,
    pub swap: Swap,
    pub lru: Arc<Lru<DefaultLock>>,
    pub events: O,
    pub policy: RwLock<Policy>,
    pub zero_page: Pfn,
    pub huge_zero: Option<Pfn>,
}

/// A cheap handle to a machine: the platform that the algorithms are built on.
pub struct Host<A: Arch, O: Events = EventCounts>(pub(crate) Arc<Parts<A, O>>);

impl<A: Arch, O: Events> Host<A, O> {
    /// The frames.
    pub fn frames(&self) -> &Frames {
        &self.0.frames
    }
    /// The CPUs.
    pub fn cpus(&self) -> &Cpus<A> {
        &self.0.cpus
    }
    /// The files and objects of shared memory.
    pub(crate) fn objects(&self) -> &Objects<A, O> {
        &self.0.objects
    }
    /// The event counts; `None` if events are not counted.
    pub fn events(&self) -> Option<&EventCounts> {
        self.0.events.counts()
    }
    /// The policy that operations run with from now on.
    pub fn policy(&self) -> Policy {
        self.0.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// Changes the policy.
    pub fn set_policy(&self, change: impl FnOnce(&mut Policy)) {
        change(&mut self.0.policy.write().unwrap_or_else(PoisonError::into_inner));
    }
    /// See [`Machine::settle`](crate::Machine::settle).
    pub(crate) fn settle(&self) {
        self.0.cpus.flush_deferred();
        self.0.epochs.synchronize();
    }
}

impl<A: Arch, O: Events> Clone for Host<A, O> {
    fn clone(&self) -> Self {
        Host(self.0.clone())
    }
}
impl<A: Arch, O: Events> fmt::Debug for Host<A, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", A::NAME)
    }
}

// SAFETY: all clones share one machine, which does not change.
unsafe impl<A: Arch, O: Events> TableSpace for Host<A, O> {
    type Arch = A;
    type PtLock = DefaultLock;
    type Epochs = Epoch<ThreadHandles>;
    type Tables = FrameTables<A>;
    type Tlb = Cpus<A>;

    #[inline]
    fn tables(&self) -> &FrameTables<A> {
        &self.0.tables
    }
    #[inline]
    fn epochs(&self) -> &Epoch<ThreadHandles> {
        &self.0.epochs
    }
    #[inline]
    fn tlb(&self) -> &Cpus<A> {
        &self.0.cpus
    }
}

impl<A: Arch, O: Events> FolioSpace for Host<A, O> {
    type Source = FrameSource;
    type FolioLock = DefaultLock;
}

impl<A: Arch, O: Events> Platform for Host<A, O> {
    type MmapLock = DefaultRwLock;
    type Bytes = Frames;
    type Observer = O;
    type Interrupt = ();
    type Swap = Swap;

    #[inline]
    fn memmap(&self) -> &MemMap<Self> {
        &self.0.memmap
    }
    #[inline]
    fn bytes(&self) -> &Frames {
        &self.0.frames
    }
    #[inline]
    fn observer(&self) -> &O {
        &self.0.events
    }
    #[inline]
    fn interrupt(&self) -> &() {
        &()
    }
    #[inline]
    fn swap(&self) -> &Swap {
        &self.0.swap
    }
    #[inline]
    fn mm_ids(&self) -> &MmIds<DefaultLock> {
        &self.0.mm_ids
    }
    #[inline]
    fn zero_page(&self) -> Pfn {
        self.0.zero_page
    }
    #[inline]
    fn huge_zero(&self) -> Option<Pfn> {
        self.0.huge_zero
    }
}

impl<A: Arch, O: Events> ReclaimPlatform for Host<A, O> {
    #[inline]
    fn lru(&self) -> &Lru<DefaultLock> {
        &self.0.lru
    }
    fn object(&self, id: FileId) -> Option<Arc<dyn Backing>> {
        let found = self.0.objects.find(id)?;
        Some(found)
    }
}

impl<A: Arch, O: Events> RmapPlatform for Host<A, O> {
    #[inline]
    fn anon_trees(&self) -> &AnonTrees<Self> {
        &self.0.anon
    }
    #[inline]
    fn file_trees(&self) -> &FileTrees<Self> {
        &self.0.files
    }
    /// Far memory is no place for what is used, as long as there is room elsewhere.
    fn is_misplaced(&self, folio: Folio<'_, Self>) -> bool {
        self.frames().is_far(folio.head()) && self.frames().has_near(folio.order())
    }
    fn move_misplaced(
        &self,
        own: &FolioRef<'_, Self, Get>,
        batching: Batching,
    ) -> Result<(), MigrationError> {
        self.migrate_by(own, batching)
    }
}
