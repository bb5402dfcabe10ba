//! The memory map itself: allocation, freeing, and finding a page's folio.

use crate::deferred::DeferredQueue;
use crate::record::{Compound, Record};
use crate::refs::{FolioRef, Get, RefKind};
use crate::stats::MAX_ORDERS;
use crate::{AllocError, Effort, Folio, FolioFlags, FolioSource, FolioSpace, FolioStats};
use alloc::vec::Vec;
use mm_arch::Pfn;
use mm_sync::atomic::{AtomicU64, Ordering::Relaxed};
use mm_sync::{Mutex, fence, mutant, ord};

/// The records of a range of frames.
///
/// # Invariants
///
/// * The pages of a folio of order `o` are `1 << o` records, naturally aligned;
///   its head record holds the order, its tails their distance to the head.
/// * A tail's reference count is zero, and so is a free or frozen folio's.
/// * Compound words change only while the folio's count is zero and the caller
///   owns that: at allocation, at free, and in a split of a frozen folio.
pub struct MemMap<F: FolioSpace> {
    /// Frame of record 0, modulo 2^64: such that the record of an even frame
    /// starts a cache line. Records before `first` stand for no frame: their
    /// count of references is zero for ever.
    base: u64,
    first: Pfn,
    nr_frames: u64,
    records: Vec<Record>,
    pub(crate) exclusive: Vec<AtomicU64>,
    pub(crate) deferred: Mutex<F::FolioLock, DeferredQueue>,
    pub(crate) pincount_min_order: u32,
    source: F::Source,
    pub(crate) stats: FolioStats,
}

/// Bytes of a cache line: two records.
const CACHE_LINE: usize = 64;

impl<F: FolioSpace> MemMap<F> {
    /// The map of `nr_frames` frames from `first` on, all of them free.
    ///
    /// # Errors
    ///
    /// If there is no memory for the records (at most 40 bytes per frame).
    pub fn new(first: Pfn, nr_frames: u64, source: F::Source) -> Result<Self, AllocError> {
        Self::with_pincount_from(first, nr_frames, source, 1)
    }

    /// As [`new`](Self::new); folios below order `pincount_min_order` count pins by a
    /// bias on their references, as 32-bit kernels do below order 2 (rule
    /// PIN-02). At least 1: a small folio has no room for a count of pins.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_pincount_from(
        first: Pfn,
        nr_frames: u64,
        source: F::Source,
        pincount_min_order: u32,
    ) -> Result<Self, AllocError> {
        // At most three records more than frames, see `base`.
        let nr =
            usize::try_from(nr_frames).ok().and_then(|nr| nr.checked_add(3)).ok_or(AllocError)?;
        let mut records = Vec::new();
        records.try_reserve_exact(nr).map_err(|_| AllocError)?;
        records.extend((0..nr).map(|_| Record::new()));
        let half_line = u64::from(!records.as_ptr().addr().is_multiple_of(CACHE_LINE));
        let base = (first.get() & !1).wrapping_sub(half_line);
        let mut exclusive = Vec::new();
        exclusive.try_reserve_exact(nr.div_ceil(64)).map_err(|_| AllocError)?;
        exclusive.extend((0..nr.div_ceil(64)).map(|_| AtomicU64::new(0)));
        Ok(MemMap {
            base,
            first,
            nr_frames,
            records,
            exclusive,
            deferred: Mutex::new(DeferredQueue::default()),
            pincount_min_order: pincount_min_order.max(1),
            source,
            stats: FolioStats::default(),
        })
    }

    /// Where frames come from and go to.
    #[inline]
    pub fn source(&self) -> &F::Source {
        &self.source
    }
    /// The counters.
    #[inline]
    pub fn stats(&self) -> &FolioStats {
        &self.stats
    }
    /// The first frame of the map.
    #[inline]
    pub fn first(&self) -> Pfn {
        self.first
    }
    /// The number of frames of the map.
    #[inline]
    pub fn nr_frames(&self) -> u64 {
        self.nr_frames
    }
    /// Whether the map has a record of `pfn` (device memory has none).
    #[inline]
    pub fn contains(&self, pfn: Pfn) -> bool {
        pfn.since(self.first) < self.nr_frames
    }
    /// Bytes that the map itself takes.
    pub fn metadata_bytes(&self) -> usize {
        self.records.len() * size_of::<Record>() + self.exclusive.len() * size_of::<AtomicU64>()
    }

    /// Allocates a folio: one reference, no mapping, no flag (rule FOLIO-12).
    ///
    /// # Errors
    ///
    /// If the source has no naturally aligned run of `1 << order` frames in
    /// this map, or `order` is too large.
    pub fn alloc(&self, order: u32) -> Result<FolioRef<'_, F, Get>, AllocError> {
        self.adopt_frames(order, |source| source.alloc(order))
    }
    /// The same at no more than `effort`.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_by(&self, order: u32, effort: Effort) -> Result<FolioRef<'_, F, Get>, AllocError> {
        self.adopt_frames(order, |source| source.alloc_by(order, effort))
    }
    fn adopt_frames(
        &self,
        order: u32,
        take: impl FnOnce(&F::Source) -> Result<Pfn, AllocError>,
    ) -> Result<FolioRef<'_, F, Get>, AllocError> {
        if order as usize >= MAX_ORDERS {
            return Err(AllocError);
        }
        let head = take(&self.source)?;
        let last = head.add((1 << order) - 1);
        if !self.contains(head) || !self.contains(last) || !head.is_aligned(order) {
            // Not ours: give it back rather than index out of the map.
            self.source.free(head, order);
            return Err(AllocError);
        }
        let index = self.index(head);
        debug_assert_eq!(self.record(index).refs.load(Relaxed), 0, "{head} is in use");
        for i in 0..1 << order {
            // Everything else was cleared when the frame was freed.
            let rec = self.record(index + i);
            let compound = if i == 0 { Compound::head(order) } else { Compound::tail(i as u32) };
            rec.compound.store(compound.0, Relaxed);
            rec.content.retired();
        }
        // Pairs with the Acquire of a lockless grab: whoever counts itself in
        // sees the compound words above, so its recheck finds a stale page.
        self.record(index).refs.store(1, ord!("folio.alloc", Release));
        Ok(FolioRef::from_counted(self.folio_at(index), 1))
    }

    /// The folio of `pfn`, which the caller knows to be stable: it holds a
    /// reference, or the lock of a table that maps the page.
    ///
    /// # Panics
    ///
    /// If the map has no record of `pfn`.
    #[inline]
    pub fn folio(&self, pfn: Pfn) -> Folio<'_, F> {
        let index = self.index(pfn);
        self.folio_at(index - self.record(index).compound().distance())
    }

    /// Whether `pfn` is the zero page (rule FOLIO-49).
    #[inline]
    pub fn is_zero_page(&self, pfn: Pfn) -> bool {
        self.contains(pfn) && self.record(self.index(pfn)).compound().is_zero_page()
    }
    /// Whether `pfn` belongs to a huge zero folio.
    #[inline]
    pub fn is_huge_zero(&self, pfn: Pfn) -> bool {
        if !self.contains(pfn) {
            return false;
        }
        let index = self.index(pfn);
        let c = self.record(index).compound();
        self.record(index - c.distance()).compound().is_huge_zero()
    }
    /// Declares an allocated small folio to be the zero page. Pins of it are
    /// free from now on; it must never be freed.
    ///
    /// # Panics
    ///
    /// If `pfn` is not a small folio.
    pub fn set_zero_page(&self, pfn: Pfn) {
        let rec = self.record(self.index(pfn));
        assert!(rec.compound().is_small(), "the zero page is a single page");
        rec.compound.store(rec.compound().as_zero_page().0, Relaxed);
    }
    /// Declares an allocated folio to be a huge zero folio. It stays a normal
    /// folio for references and pins (rule PIN-03).
    ///
    /// # Panics
    ///
    /// If `head` is not the head of a folio.
    pub fn set_huge_zero(&self, head: Pfn) {
        let rec = self.record(self.index(head));
        assert!(!rec.compound().is_tail(), "{head} is not the head of a folio");
        rec.compound.store(rec.compound().as_huge_zero().0, Relaxed);
    }

    /// What observers call the map count of a page: its PTE mappings and the
    /// PMD mappings of its folio. A hint while mappings of the folio come and go.
    pub fn page_mapcount(&self, pfn: Pfn) -> u32 {
        let folio = self.folio(pfn);
        folio.pte_mapcount(self.index(pfn) - folio.head) + folio.entire_mapcount()
    }

    /// The folios that are alive, in frame order (for audits; racing with
    /// allocation it may miss or repeat some).
    pub fn alive(&self) -> impl Iterator<Item = Folio<'_, F>> {
        let mut next = self.index(self.first);
        let end = next + self.nr_frames as usize;
        core::iter::from_fn(move || {
            while next < end {
                let at = next;
                let rec = self.record(at);
                if rec.refs.load(Relaxed) != 0 {
                    next += 1 << rec.compound().order();
                    return Some(self.folio_at(at));
                }
                next += 1;
            }
            None
        })
    }

    /// The liveness marker of a page's content; see [`mm_sync::Live`]. An
    /// implementation of [`FrameBytes`](crate::FrameBytes) calls `used` on it
    /// after it read or wrote the page.
    #[inline]
    pub fn content(&self, pfn: Pfn) -> &mm_sync::Live {
        &self.record(self.index(pfn)).content
    }

    /// The record of `pfn`, if the map has one.
    #[inline(always)]
    pub(crate) fn lookup(&self, pfn: Pfn) -> Option<(usize, &Record)> {
        let index = self.index(pfn);
        Some((index, self.records.get(index)?))
    }
    #[inline]
    pub(crate) fn index(&self, pfn: Pfn) -> usize {
        // What does not fit is behind the last record as well.
        usize::try_from(pfn.get().wrapping_sub(self.base)).unwrap_or(usize::MAX)
    }
    #[inline]
    pub(crate) fn pfn(&self, index: usize) -> Pfn {
        Pfn::new(self.base.wrapping_add(index as u64))
    }
    #[inline]
    pub(crate) fn record(&self, index: usize) -> &Record {
        &self.records[index]
    }
    #[inline]
    pub(crate) fn records(&self, range: core::ops::Range<usize>) -> &[Record] {
        &self.records[range]
    }
    /// The folio whose head is record `head`.
    #[inline]
    pub(crate) fn folio_at(&self, head: usize) -> Folio<'_, F> {
        Folio { map: self, head, record: self.record(head) }
    }

    /// Drops `units` of the count of references.
    #[inline]
    pub(crate) fn put_units(&self, head: usize, units: u32) {
        // Release: what we did with the pages happens before their next life.
        // Pairs with the fence of whoever drops the last one.
        let old = self.record(head).refs.fetch_sub(units, ord!("folio.put", Release));
        debug_assert!(old >= units, "{units} references dropped of {old}");
        if old == units {
            fence!("folio.put.acq", Acquire);
            self.release(head);
        }
    }

    /// The last reference is gone (rules FOLIO-08, FOLIO-10, FOLIO-11).
    #[cold]
    fn release(&self, head: usize) {
        let folio = self.folio_at(head);
        // At a count of zero nobody can find the folio on the queue and win it.
        folio.unqueue_deferred();
        if !folio.fit_to_free() {
            self.stats.bad_frees.add(1);
            return;
        }
        let (order, pfn) = (folio.order(), self.pfn(head));
        let flags = folio.flags();
        self.source.unlist(pfn, order, flags);
        if folio.is_anon() && order > 0 {
            self.stats.order[order as usize].nr_anon.sub(1);
        }
        self.clear_exclusive(pfn, 1 << order);
        let mut poisoned = false;
        for i in 0..1 << order {
            let rec = self.record(head + i);
            let was =
                if flags.contains(FolioFlags::HWPOISON) { rec.compound() } else { Compound::FREE };
            poisoned |= was.is_poisoned();
            rec.clear();
            // A stale reader that counts itself in on a later folio at `head`
            // must not find this page still pointing there.
            if !mutant!("folio.free.keep_tails") {
                rec.compound.store(Compound::FREE.as_poisoned_as(was).0, Relaxed);
            }
            rec.content.retired();
        }
        if poisoned {
            self.stats.poisoned.add(1 << order);
            return;
        }
        self.source.free(pfn, order);
    }

    /// Takes over what `run` owns.
    pub fn adopt_run<K: RefKind>(&self, run: crate::FolioRun) -> FolioRef<'_, F, K> {
        FolioRef::from_counted(self.folio_at(self.index(run.head)), run.nr)
    }
}

impl<F: FolioSpace> Folio<'_, F> {
    /// The checks of rule FOLIO-11.
    fn fit_to_free(&self) -> bool {
        let tails_ok = (1..self.nr_pages() as usize).all(|i| {
            let rec = self.map.record(self.head + i);
            let compound = rec.compound();
            compound == Compound::tail(i as u32).as_poisoned_as(compound)
                && rec.refs.load(Relaxed) == 0
        });
        let pages_ok = (0..self.nr_pages() as usize)
            .all(|i| self.map.record(self.head + i).mapcount.load(Relaxed) == 0);
        tails_ok
            && pages_ok
            && self.mapcount() == 0
            && self.pincount() == 0
            && self.large_idle()
            && !self.flags().intersects(FolioFlags::BAD_AT_FREE)
    }
}

impl<F: FolioSpace> core::fmt::Debug for MemMap<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MemMap")
            .field("first", &self.first)
            .field("nr_frames", &self.nr_frames)
            .finish_non_exhaustive()
    }
}
