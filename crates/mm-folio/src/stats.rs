//! Counters of the memory map.

use mm_sync::stat::Counter;

/// One more than the largest order a folio can have.
pub const MAX_ORDERS: usize = 21;

/// Event counters and gauges. Nothing in the protocols reads them.
#[derive(Debug, Default)]
pub struct FolioStats {
    /// Per order; index with the order.
    pub order: [OrderStats; MAX_ORDERS],
    /// Gauge: mapped anonymous pages.
    pub nr_anon_mapped: Counter,
    /// Gauge: mapped pages of files and shmem.
    pub nr_file_mapped: Counter,
    /// Gauge: anonymous pages mapped by a PMD entry.
    pub nr_anon_thps: Counter,
    /// Gauge: shmem pages mapped by a PMD entry.
    pub nr_shmem_pmdmapped: Counter,
    /// Gauge: file pages mapped by a PMD entry.
    pub nr_file_pmdmapped: Counter,
    /// Pages handed out to pinners so far (rule PIN-17). GUP counts here once
    /// per call: an atomic per grab would double the price of a small page.
    pub foll_pin_acquired: Counter,
    /// Pages that pinners gave back so far; equal to the above when nobody holds a pin.
    pub foll_pin_released: Counter,
    /// Folios that were in a bad state when their last reference went; they
    /// are kept from the allocator (rule FOLIO-11).
    pub bad_frees: Counter,
    /// Pages that are kept from the allocator because they, or others of their folio, have
    /// failed hardware (rule FOLIO-48).
    pub poisoned: Counter,
}

/// What is counted per order.
#[derive(Debug, Default)]
pub struct OrderStats {
    /// Folios found partially mapped and queued for a split.
    pub split_deferred: Counter,
    /// Gauge: partially mapped anonymous folios.
    pub nr_anon_partially_mapped: Counter,
    /// Gauge: anonymous folios.
    pub nr_anon: Counter,
}
