//! The traits a kernel implements, bundled.

use crate::SwapSpace;
use mm_arch::Pfn;
use mm_folio::{FolioSpace, FrameBytes, MemMap, MmIds};
use mm_pgtable::TableSpace;
use mm_sync::RawRwLock;

/// What happened, for counting. No algorithm depends on it being seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Page-table entries read by a scan or a loop over pages.
    EntriesRead,
    /// Entries of a scan that were not read: folded blocks vouch for them.
    EntriesByHint,
    /// Grabs: calls that took references or pins.
    Grabs,
    /// Atomic read-modify-writes on folio records.
    Atomics,
    /// Page-table locks taken.
    Locks,
    /// Descents from the root.
    Walks,
    /// Pages written to an output while a page-table lock was held.
    FillsUnderLock,
    /// Faults taken on behalf of GUP.
    GupFaults,
    /// Write faults that reused the page in place (rule FAULT-11).
    PagesReused,
    /// Entries that such a fault made writable besides its own (rule WREUSE-14:
    /// they are no faults).
    EntriesWidened,
    /// Anonymous folios allocated by a fault; the number is the order.
    AnonFaultAlloc,
    /// Orders that a fault could not allocate; the number is the order.
    AnonFaultFallback,
    /// PMD leaves split into entries, or taken away.
    PmdSplit,
    /// Large folios of shared memory allocated; the number is the order.
    ShmemAlloc,
    /// Orders that shared memory could not allocate; the number is the order.
    ShmemFallback,
    /// Large folios split; the number is the order.
    FolioSplit,
    /// Runs that reclaim unmapped: each is one removal of mappings and one put of
    /// references.
    UnmapRuns,
    /// Entries in them; a PMD leaf counts as its pages.
    EntriesUnmapped,
    /// Calls in which reclaim took entries out of a table: one per run, but for runs of more
    /// than 512 entries on their way to swap.
    UnmapClears,
    /// Runs whose accessed bits reclaim cleared.
    AgingRuns,
    /// Entries of large folios that reclaim unmapped one by one although its policy is to do
    /// so in runs, as a guest does not need the page.
    UnmapSingleUnused,
    /// The same, as userfaultfd write-protects pages of the mapping.
    UnmapSingleTracked,
    /// The same, as a device has the page: such entries do not agree with others.
    UnmapSingleDevice,
    /// The same, as the slot of a page in the run takes no more entries.
    UnmapSingleFullSlot,
    /// Large folios that could not be split; the number is the order.
    FolioSplitFailed,
    /// Folios read from swap; the number is the order.
    FolioSwappedIn,
    /// Folios written to swap; the number is the order.
    FolioSwappedOut,
    /// Folios that were split because swap had no room for them in one piece; the
    /// number is the order.
    SwapOutFallback,
    /// Pages read from swap.
    PagesSwappedIn,
    /// Pages written to swap.
    PagesSwappedOut,
    /// Pages full of zeros that needed not be read from swap.
    ZeroPagesSwappedIn,
    /// Pages full of zeros that were not written to swap.
    ZeroPagesSwappedOut,
    /// Pages that their owner gave up (`MADV_FREE`).
    LazyFree,
    /// Pages of these that were freed without being written.
    LazyFreed,
    /// Folios that pages were collapsed into; the number is the order.
    CollapseAlloc,
    /// Entries made inaccessible to see who uses their pages; a leaf counts as its pages.
    HintsMarked,
    /// Accesses that met one of these.
    HintFaults,
    /// Entries made accessible again by such an access, in one step each; a leaf is one.
    HintsRestored,
    /// Pages moved nearer to such an access.
    HintsMoved,
    /// Faults that the lock of one mapping sufficed for.
    FaultsInVma,
    /// Faults that took the mmap lock: the lock of the mapping was not to be had, or did not
    /// suffice.
    FaultsInMm,
}

/// Hears of events. `()` hears nothing and costs nothing.
///
/// Called with locks held, those of page tables too: it takes none that others hold while they
/// take these, and asks nothing of the space that the event is about.
///
/// # Example
///
/// ```
/// use mm_vma::{Event, Observer};
/// #[derive(Default)]
/// struct Walks(mm_sync::stat::Counter);
/// impl Observer for Walks {
///     fn event(&self, event: Event, nr: u64) {
///         if event == Event::Walks {
///             self.0.add(nr);
///         }
///     }
/// }
/// let w = Walks::default();
/// w.event(Event::Walks, 2);
/// assert_eq!(w.0.get(), 2);
/// ```
pub trait Observer: Send + Sync {
    /// `nr` events, or an event about the number `nr`.
    fn event(&self, event: Event, nr: u64);
}

impl Observer for () {
    #[inline(always)]
    fn event(&self, _: Event, _: u64) {}
}

/// Whether the current task should give up. `()` never does. Called without page-table locks.
///
/// # Example
///
/// ```
/// use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
/// use mm_vma::Interrupt;
/// struct Task {
///     killed: AtomicBool,
/// }
/// impl Interrupt for Task {
///     fn is_fatal_signal_pending(&self) -> bool {
///         self.killed.load(Relaxed)
///     }
/// }
/// let task = Task { killed: AtomicBool::new(true) };
/// assert!(task.is_signal_pending(), "a fatal signal is one");
/// ```
pub trait Interrupt: Send + Sync {
    /// A fatal signal is pending.
    fn is_fatal_signal_pending(&self) -> bool;
    /// Any signal is pending.
    fn is_signal_pending(&self) -> bool {
        self.is_fatal_signal_pending()
    }
}

impl Interrupt for () {
    #[inline(always)]
    fn is_fatal_signal_pending(&self) -> bool {
        false
    }
}

/// A kernel, as the algorithms see it: a cheap handle to everything that all
/// address spaces of a machine share.
pub trait Platform: TableSpace + FolioSpace {
    /// The lock over a VMA store.
    type MmapLock: RawRwLock;
    /// Access to the bytes of frames.
    type Bytes: FrameBytes;
    /// Who hears of events.
    type Observer: Observer;
    /// Who knows about signals.
    type Interrupt: Interrupt;
    /// Swap.
    type Swap: SwapSpace;

    /// The memory map.
    fn memmap(&self) -> &MemMap<Self>;
    /// The bytes of frames.
    fn bytes(&self) -> &Self::Bytes;
    /// Who hears of events.
    fn observer(&self) -> &Self::Observer;
    /// Who knows about signals.
    fn interrupt(&self) -> &Self::Interrupt;
    /// Swap.
    fn swap(&self) -> &Self::Swap;
    /// Ids of address spaces.
    fn mm_ids(&self) -> &MmIds<Self::PtLock>;
    /// The shared zero page.
    fn zero_page(&self) -> Pfn;
    /// Head of the shared huge zero folio, if the machine has one.
    fn huge_zero(&self) -> Option<Pfn>;
}
