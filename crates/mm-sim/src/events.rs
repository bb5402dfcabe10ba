//! Counting what the algorithms report.

use mm_folio::MAX_ORDERS;
use mm_sync::stat::Counter;
use mm_vma::{Event, Observer};

/// What a machine counts events with: [`EventCounts`], or `()` where a
/// benchmark must not pay for counting.
pub trait Events: Observer + Default + 'static {
    /// The counts, if there are any.
    fn counts(&self) -> Option<&EventCounts>;
}

impl Events for () {
    fn counts(&self) -> Option<&EventCounts> {
        None
    }
}

/// Events so far.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "each field counts the event of its name")]
pub struct EventCounts {
    pub entries_read: Counter,
    pub entries_by_hint: Counter,
    pub grabs: Counter,
    pub atomics: Counter,
    pub locks: Counter,
    pub walks: Counter,
    pub fills_under_lock: Counter,
    pub gup_faults: Counter,
    pub pages_reused: Counter,
    pub entries_widened: Counter,
    pub pmd_split: Counter,
    pub unmap_runs: Counter,
    pub entries_unmapped: Counter,
    pub unmap_clears: Counter,
    pub aging_runs: Counter,
    pub unmap_single_unused: Counter,
    pub unmap_single_tracked: Counter,
    pub unmap_single_device: Counter,
    pub unmap_single_full_slot: Counter,
    pub lazy_free: Counter,
    pub lazy_freed: Counter,
    /// By order.
    pub anon_fault_alloc: [Counter; MAX_ORDERS],
    /// By order.
    pub anon_fault_fallback: [Counter; MAX_ORDERS],
    /// By order.
    pub shmem_alloc: [Counter; MAX_ORDERS],
    /// By order.
    pub shmem_fallback: [Counter; MAX_ORDERS],
    /// By order.
    pub folio_split: [Counter; MAX_ORDERS],
    /// By order.
    pub folio_split_failed: [Counter; MAX_ORDERS],
    /// By order.
    pub folio_swapped_in: [Counter; MAX_ORDERS],
    /// By order.
    pub folio_swapped_out: [Counter; MAX_ORDERS],
    /// By order.
    pub swap_out_fallback: [Counter; MAX_ORDERS],
    pub pages_swapped_in: Counter,
    pub pages_swapped_out: Counter,
    pub zero_pages_swapped_in: Counter,
    pub zero_pages_swapped_out: Counter,
    pub collapse_alloc: [Counter; MAX_ORDERS],
    pub hints_marked: Counter,
    pub hint_faults: Counter,
    pub hints_restored: Counter,
    pub hints_moved: Counter,
    pub faults_in_vma: Counter,
    pub faults_in_mm: Counter,
}

impl Observer for EventCounts {
    fn event(&self, event: Event, nr: u64) {
        let by_order = |counters: &[Counter; MAX_ORDERS]| {
            if let Some(c) = counters.get(nr as usize) {
                c.add(1);
            }
        };
        match event {
            Event::EntriesRead => self.entries_read.add(nr),
            Event::EntriesByHint => self.entries_by_hint.add(nr),
            Event::Grabs => self.grabs.add(nr),
            Event::Atomics => self.atomics.add(nr),
            Event::Locks => self.locks.add(nr),
            Event::Walks => self.walks.add(nr),
            Event::FillsUnderLock => self.fills_under_lock.add(nr),
            Event::GupFaults => self.gup_faults.add(nr),
            Event::PagesReused => self.pages_reused.add(nr),
            Event::EntriesWidened => self.entries_widened.add(nr),
            Event::PmdSplit => self.pmd_split.add(nr),
            Event::UnmapRuns => self.unmap_runs.add(nr),
            Event::EntriesUnmapped => self.entries_unmapped.add(nr),
            Event::UnmapClears => self.unmap_clears.add(nr),
            Event::AgingRuns => self.aging_runs.add(nr),
            Event::UnmapSingleUnused => self.unmap_single_unused.add(nr),
            Event::UnmapSingleTracked => self.unmap_single_tracked.add(nr),
            Event::UnmapSingleDevice => self.unmap_single_device.add(nr),
            Event::UnmapSingleFullSlot => self.unmap_single_full_slot.add(nr),
            Event::LazyFree => self.lazy_free.add(nr),
            Event::LazyFreed => self.lazy_freed.add(nr),
            Event::AnonFaultAlloc => by_order(&self.anon_fault_alloc),
            Event::AnonFaultFallback => by_order(&self.anon_fault_fallback),
            Event::ShmemAlloc => by_order(&self.shmem_alloc),
            Event::ShmemFallback => by_order(&self.shmem_fallback),
            Event::FolioSplit => by_order(&self.folio_split),
            Event::FolioSplitFailed => by_order(&self.folio_split_failed),
            Event::FolioSwappedIn => by_order(&self.folio_swapped_in),
            Event::FolioSwappedOut => by_order(&self.folio_swapped_out),
            Event::SwapOutFallback => by_order(&self.swap_out_fallback),
            Event::PagesSwappedIn => self.pages_swapped_in.add(nr),
            Event::PagesSwappedOut => self.pages_swapped_out.add(nr),
            Event::ZeroPagesSwappedIn => self.zero_pages_swapped_in.add(nr),
            Event::ZeroPagesSwappedOut => self.zero_pages_swapped_out.add(nr),
            Event::CollapseAlloc => by_order(&self.collapse_alloc),
            Event::HintsMarked => self.hints_marked.add(nr),
            Event::HintFaults => self.hint_faults.add(nr),
            Event::HintsRestored => self.hints_restored.add(nr),
            Event::HintsMoved => self.hints_moved.add(nr),
            Event::FaultsInVma => self.faults_in_vma.add(nr),
            Event::FaultsInMm => self.faults_in_mm.add(nr),
        }
    }
}

impl Events for EventCounts {
    fn counts(&self) -> Option<&EventCounts> {
        Some(self)
    }
}
