//! Mappings come and go: counts, statistics, exclusive marks.
//!
//! Every call here stands for entries that the caller writes or has cleared
//! under the table lock. References are the caller's: it takes them before it
//! adds mappings and drops them after it removed some (rule FOLIO-03), so that
//! there are never more mappings than references.

use crate::counts::Unmapped;
use crate::{Folio, FolioFlags, FolioSpace, MemMap, MmId, QueueReason};
use core::num::NonZeroU32;
use mm_arch::Level;
use mm_sync::atomic::Ordering::Relaxed;
use mm_sync::{fence, mutant};

/// Whether pages that get mapped belong to that mapping alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exclusivity {
    /// They do: mark them exclusive.
    Exclusive,
    /// They may be shared: leave the marks alone.
    MaybeShared,
}

/// Whether an address space ever pinned anything (rule FOLIO-28).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HasPinned {
    /// It never did: pins seen on a folio are somebody else's.
    Never,
    /// It may have.
    Maybe,
}

/// An exclusive page may be pinned and cannot be shared now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an exclusive page of the folio may be pinned")]
pub struct MaybePinned;

/// Pages that are mapped no more and that the gauges have not heard of: for whoever unmaps
/// many folios in a row. Dropping this tells them.
#[must_use = "gauges hear of the pages when this is dropped"]
pub struct UnmappedPages<'m, F: FolioSpace> {
    map: &'m MemMap<F>,
    anon: u64,
    file: u64,
}

impl<'m, F: FolioSpace> UnmappedPages<'m, F> {
    /// None so far.
    pub const fn new(map: &'m MemMap<F>) -> Self {
        UnmappedPages { map, anon: 0, file: 0 }
    }
}

impl<F: FolioSpace> Drop for UnmappedPages<'_, F> {
    fn drop(&mut self) {
        let stats = &self.map.stats;
        for (gauge, pages) in
            [(&stats.nr_anon_mapped, self.anon), (&stats.nr_file_mapped, self.file)]
        {
            if pages > 0 {
                gauge.sub(pages);
            }
        }
    }
}

impl<F: FolioSpace> core::fmt::Debug for UnmappedPages<'_, F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "UnmappedPages({} anonymous, {} of files)", self.anon, self.file)
    }
}

/// Folios that are not queued for a split when they become partially mapped (rule
/// FOLIO-22).
const NOT_QUEUED: FolioFlags =
    FolioFlags::PARTIALLY_MAPPED.union(FolioFlags::DEVICE_PRIVATE).union(FolioFlags::SWAPCACHE);

impl<'m, F: FolioSpace> Folio<'m, F> {
    #[inline]
    fn check_range(&self, first: u32, n: u32) {
        debug_assert!(
            n >= 1 && first < self.nr_pages() && n <= self.nr_pages() - first,
            "pages {first}+{n} of a folio of {}",
            self.nr_pages()
        );
    }
    fn count_mapped(&self, pages: u32) {
        if pages > 0 {
            let stats = &self.map.stats;
            let gauge = if self.is_anon() { &stats.nr_anon_mapped } else { &stats.nr_file_mapped };
            gauge.add(u64::from(pages));
        }
    }
    fn count_unmapped(&self, pages: u32) {
        if pages > 0 {
            let stats = &self.map.stats;
            let gauge = if self.is_anon() { &stats.nr_anon_mapped } else { &stats.nr_file_mapped };
            gauge.sub(u64::from(pages));
        }
    }
    /// The gauge of PMD-mapped pages of this kind of folio (rule FOLIO-20).
    fn pmd_gauge(&self) -> &'m mm_sync::stat::Counter {
        let stats = &self.map.stats;
        if self.is_anon() {
            &stats.nr_anon_thps
        } else if self.has(FolioFlags::SWAPBACKED) {
            &stats.nr_shmem_pmdmapped
        } else {
            &stats.nr_file_pmdmapped
        }
    }

    fn add_ptes(&self, first: u32, n: u32, mm: MmId) {
        self.check_range(first, n);
        let newly = if self.is_large() {
            let mut counts = self.lock_counts();
            counts.add(n, mm);
            counts.map_pages(first, n)
        } else {
            u32::from(self.head_record().mapcount.fetch_add(1, Relaxed) == 0)
        };
        self.count_mapped(newly);
    }
    fn add_pmd(&self, mm: MmId) {
        debug_assert!(self.is_large(), "a PMD maps large folios only");
        let newly = {
            let mut counts = self.lock_counts();
            counts.add(1, mm);
            counts.map_entire()
        };
        if let Some(pages) = newly {
            self.count_mapped(pages);
            self.pmd_gauge().add(u64::from(self.nr_pages()));
        }
    }

    /// A new anonymous folio that nobody else can see gets mapped: all of it by
    /// PTEs, or by one PMD entry (rule RMAP-01). The tree has been set
    /// ([`set_anon`](Self::set_anon)), and so has `SWAPBACKED` if it applies.
    pub fn add_new_anon(&self, mm: MmId, level: Level, marks: Exclusivity) {
        debug_assert!(self.is_anon() && self.mapcount() == 0);
        let marked = if level == Level::Pte {
            self.add_ptes(0, self.nr_pages(), mm);
            self.nr_pages()
        } else {
            self.add_pmd(mm);
            1
        };
        if marks == Exclusivity::Exclusive {
            self.map.set_exclusive(self.head(), marked as usize);
        }
    }

    /// PTEs of `mm` map `n` pages from `first` on of this anonymous folio
    /// (rule RMAP-03). The folio is locked, or the pages are mapped by a PMD
    /// that is being split.
    pub fn add_anon_ptes(&self, first: u32, n: NonZeroU32, mm: MmId, marks: Exclusivity) {
        debug_assert!(self.is_anon());
        self.add_ptes(first, n.get(), mm);
        if marks == Exclusivity::Exclusive {
            // An exclusive page has one mapping (rule RMAP-04).
            debug_assert!((first..first + n.get()).all(|i| self.pte_mapcount(i as usize) <= 1));
            self.map.set_exclusive(self.page(first), n.get() as usize);
        }
    }
    /// A PMD entry of `mm` maps this anonymous folio.
    pub fn add_anon_pmd(&self, mm: MmId, marks: Exclusivity) {
        debug_assert!(self.is_anon());
        self.add_pmd(mm);
        if marks == Exclusivity::Exclusive {
            debug_assert!(self.entire_mapcount() <= 1);
            self.map.set_exclusive(self.head(), 1);
        }
    }
    /// PTEs of `mm` map `n` pages from `first` on of this file folio (rule RMAP-05).
    pub fn add_file_ptes(&self, first: u32, n: NonZeroU32, mm: MmId) {
        debug_assert!(!self.is_anon());
        self.add_ptes(first, n.get(), mm);
    }
    /// A PMD entry of `mm` maps this file folio.
    pub fn add_file_pmd(&self, mm: MmId) {
        debug_assert!(!self.is_anon());
        self.add_pmd(mm);
    }

    /// PTEs of `mm` map `n` pages from `first` on no more (rule RMAP-07).
    ///
    /// Lowers counts and statistics and queues an anonymous folio that is now
    /// partially mapped for a split. Drops no reference, and leaves marks and
    /// tree as they are.
    pub fn remove_ptes(&self, first: u32, n: NonZeroU32, mm: MmId) {
        let gone = self.remove_counts(first, n.get(), mm);
        self.count_gone(gone);
    }
    /// As [`remove_ptes`](Self::remove_ptes), but the gauges hear of it with `told`.
    pub fn remove_ptes_told(
        &self,
        first: u32,
        n: NonZeroU32,
        mm: MmId,
        told: &mut UnmappedPages<'_, F>,
    ) {
        let gone = self.remove_counts(first, n.get(), mm);
        let pages = if self.is_anon() { &mut told.anon } else { &mut told.file };
        *pages += u64::from(gone.pages);
        self.queue_partial(gone);
    }
    #[inline(always)]
    fn remove_counts(&self, first: u32, n: u32, mm: MmId) -> Unmapped {
        self.check_range(first, n);
        if self.is_large() {
            let mut counts = self.lock_counts();
            counts.sub(n, mm);
            counts.unmap_pages(first, n)
        } else {
            let old = self.head_record().mapcount.fetch_sub(1, Relaxed);
            debug_assert!(old > 0, "a page unmapped that was not mapped");
            Unmapped { pages: u32::from(old == 1), partially: false }
        }
    }
    /// A PMD entry of `mm` maps the folio no more.
    pub fn remove_pmd(&self, mm: MmId) {
        let gone = {
            let mut counts = self.lock_counts();
            counts.sub(1, mm);
            counts.unmap_entire()
        };
        if let Some(gone) = gone {
            self.pmd_gauge().sub(u64::from(self.nr_pages()));
            self.count_gone(gone);
        }
    }
    fn count_gone(&self, gone: Unmapped) {
        self.count_unmapped(gone.pages);
        self.queue_partial(gone);
    }
    fn queue_partial(&self, gone: Unmapped) {
        if gone.partially && self.is_anon() && !self.flags().intersects(NOT_QUEUED) {
            self.queue_deferred(QueueReason::PartiallyMapped);
        }
    }

    /// Whether a fork must copy `n` exclusive pages instead of sharing them.
    fn fork_must_copy(&self, first: u32, n: u32, parent: HasPinned) -> bool {
        parent == HasPinned::Maybe
            && !self.has(FolioFlags::DEVICE_PRIVATE)
            && self.maybe_dma_pinned()
            && (first..first + n).any(|i| self.map.page_exclusive(self.page(i)))
    }

    /// A fork maps `n` pages from `first` on into `dst` as well: none of them is
    /// exclusive any more (rules RMAP-10..14). The caller holds the
    /// table locks and the odd fork sequence, and write-protects both sides.
    ///
    /// # Errors
    ///
    /// If the folio may be pinned and one of the pages is exclusive; nothing is
    /// changed then.
    pub fn try_dup_anon_ptes(
        &self,
        first: u32,
        n: NonZeroU32,
        dst: MmId,
        parent: HasPinned,
    ) -> Result<(), MaybePinned> {
        let n = n.get();
        debug_assert!(self.is_anon());
        self.check_range(first, n);
        // All pages are asked before the first is changed.
        let at_once = if mutant!("folio.dup.page_by_page") { 1 } else { n };
        for page in (first..first + n).step_by(at_once as usize) {
            if self.fork_must_copy(page, at_once, parent) {
                return Err(MaybePinned);
            }
            self.map.clear_exclusive(self.page(page), at_once as usize);
        }
        self.add_ptes(first, n, dst);
        Ok(())
    }
    /// As [`try_dup_anon_ptes`](Self::try_dup_anon_ptes) for a PMD entry.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_dup_anon_pmd(&self, dst: MmId, parent: HasPinned) -> Result<(), MaybePinned> {
        debug_assert!(self.is_anon());
        if self.fork_must_copy(0, 1, parent) {
            return Err(MaybePinned);
        }
        self.map.clear_exclusive(self.head(), 1);
        self.add_pmd(dst);
        Ok(())
    }

    /// Page `index` is about to be shared: by swap, migration, merging (rule
    /// RMAP-16). The page is exclusive, its entry has been cleared or
    /// invalidated, and the table lock is held. Loses the exclusive mark.
    ///
    /// # Errors
    ///
    /// If the folio may be pinned. The caller restores the entry as it was.
    pub fn try_share_anon_pte(&self, index: u32) -> Result<(), MaybePinned> {
        self.try_share_anon_ptes(index, NonZeroU32::MIN)
    }
    /// As [`try_share_anon_pte`](Self::try_share_anon_pte) for `n` pages from `first` on,
    /// exclusive or not, whose entries have all been cleared: one question for all of them.
    ///
    /// # Errors
    ///
    /// As there, if one of them is exclusive. No mark has changed then.
    pub fn try_share_anon_ptes(&self, first: u32, n: NonZeroU32) -> Result<(), MaybePinned> {
        debug_assert!(self.is_anon());
        self.check_range(first, n.get());
        let (pfn, n) = (self.page(first), n.get() as usize);
        if self.has(FolioFlags::DEVICE_PRIVATE) {
            self.map.clear_exclusive(pfn, n);
            return Ok(());
        }
        // Pairs with the full barrier behind a grab: either the pinner's second
        // look sees the cleared entry, or we see its pin (rule RMAP-19).
        fence!("share.mb", SeqCst);
        if self.maybe_dma_pinned() && !mutant!("share.no_check") {
            let mut any = false;
            self.map.each_exclusive(pfn, n, |_| any = true);
            return if any { Err(MaybePinned) } else { Ok(()) };
        }
        self.map.clear_exclusive(pfn, n);
        // Pairs with the read barrier of a pinner between the entry and the
        // mark: who sees the entry we restore sees the mark gone.
        fence!("share.wmb", Release);
        Ok(())
    }
    /// As [`try_share_anon_pte`](Self::try_share_anon_pte) for a PMD entry.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_share_anon_pmd(&self) -> Result<(), MaybePinned> {
        self.try_share_anon_pte(0)
    }

    /// Takes `n` references for mappings that the caller is about to count, of a folio
    /// that it holds or has frozen mappings of.
    ///
    /// Never fails: what was mapped and is mapped again is not held to the limit of
    /// references that grabs are held to. A count beyond it refuses every grab and is
    /// still right.
    pub fn hold_for_mappings(&self, n: NonZeroU32) {
        self.head_record().refs.fetch_add(n.get(), Relaxed);
    }

    /// The PMD entry by which `mm` maps this anonymous folio becomes PTEs (rules
    /// FOLIO-02, PSPLIT-02): one reference and one mapping per page instead of
    /// one of each. Every page is exclusive if the head was.
    ///
    /// Never fails (rule PSPLIT-01), see [`hold_for_mappings`](Self::hold_for_mappings).
    pub fn split_pmd_counts(&self, mm: MmId) {
        debug_assert!(self.is_anon() && self.entire_mapcount() > 0);
        if mutant!("folio.split_counts.whole_first") {
            self.remove_pmd(mm);
            self.map.put_units(self.head, 1);
            self.head_record().refs.fetch_add(self.nr_pages(), Relaxed);
            return self.add_ptes(0, self.nr_pages(), mm);
        }
        // References before mappings (rule FOLIO-03): for a moment there is one
        // mapping more than pages, and it has its reference, too (INV-1).
        self.head_record().refs.fetch_add(self.nr_pages(), Relaxed);
        if self.map.page_exclusive(self.head()) {
            self.map.set_exclusive(self.head(), self.nr_pages() as usize);
        }
        self.add_ptes(0, self.nr_pages(), mm);
        self.remove_pmd(mm);
        // Never the last one. Release: as every put, see there.
        self.map.put_units(self.head, 1);
    }
}
