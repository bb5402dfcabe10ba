//! Map counts of large folios, and which address spaces hold them.
//!
//! All of a large folio's counts change under one bit lock (rule FOLIO-31), so
//! they are plain loads and stores: one locked operation takes the lock, a
//! releasing store of the new counts word gives it back. Readers need no lock,
//! except those that compare counts with each other.
//!
//! ```text
//!   counts word (tail 1):  31 lock | 30 shared | 23 entirely mapped | 22..0 pages mapped by PTEs
//! ```
//!
//! The PTE mappings of page `i` are `whole + own[i]`: what maps or unmaps all pages in one call
//! changes `whole` alone and touches the record of no page, anything else changes the `own` of
//! its pages, which may fall below zero. Where pages that were mapped in parts are all mapped
//! once, the parts become a whole; where no page is mapped, all of it is zero. `uneven`
//! counts the pages whose `own` is not zero. Each page's count is as exact as if it were one word
//! (rules FOLIO-16, FOLIO-18).
//!
//! Two slots record which address spaces map the folio how often. A third one
//! stays untracked and leaves `SHARED` set: it is never clear wrongly, and it
//! heals when a slot explains all mappings again (rules FOLIO-33, FOLIO-34, FOLIO-37).
//! Folios of order 1 have no room for slots; they count as shared as soon as
//! they are mapped twice, and are never anonymous.

use crate::record::{Record, halves, word};
use crate::{Folio, FolioFlags, FolioSpace, MmId};
use mm_sync::atomic::AtomicU32;
use mm_sync::atomic::Ordering::Relaxed;
use mm_sync::{Innermost, hint, mutant, ord};

const LOCK: u32 = 1 << 31;
const SHARED: u32 = 1 << 30;
/// Set while the folio has PMD mappings (rule FOLIO-16).
const ENTIRELY_MAPPED: u32 = 0x80_0000;
const PAGES_MASK: u32 = ENTIRELY_MAPPED - 1;

/// The counts of a folio at one moment, under the counts lock if it is large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Counts {
    /// All mappings: one per PTE and one per PMD entry.
    pub mapcount: u32,
    /// PMD mappings.
    pub entire: u32,
    /// References.
    pub refs: i32,
    /// Whether more than one address space may map the folio, by the flag alone
    /// (small: by the map count).
    pub shared: bool,
    /// References that the swap cache explains.
    pub swapcache: u32,
}

/// Holds the counts lock of a large folio; stores what changed when dropped.
///
/// Innermost of all locks: nothing is taken inside (rule LOCK-02).
pub(crate) struct LargeCounts<'m> {
    /// The records of the folio's pages.
    pages: &'m [Record],
    state: u32,
    pub total: u32,
    pub entire: u32,
    _innermost: Innermost,
}

/// What a removal did to the pages of a folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Unmapped {
    /// Pages that are mapped no more.
    pub pages: u32,
    /// Whether others still are.
    pub partially: bool,
}

impl<'m> LargeCounts<'m> {
    #[inline]
    fn lock(pages: &'m [Record]) -> Self {
        let counts = &pages[1].flags;
        let mut state = counts.load(Relaxed);
        while !mutant!("folio.counts.no_lock") {
            // Acquire pairs with the Release of the store that unlocks.
            if state & LOCK == 0
                && counts
                    .compare_exchange_weak(
                        state,
                        state | LOCK,
                        ord!("folio.counts.lock", Acquire),
                        Relaxed,
                    )
                    .is_ok()
            {
                break;
            }
            hint::spin_loop();
            state = counts.load(Relaxed);
        }
        let [total, entire] = halves(pages[1].words[0].load(Relaxed));
        LargeCounts { pages, state, total, entire, _innermost: Innermost::enter() }
    }
    #[inline]
    fn nr_pages(&self) -> u32 {
        self.pages.len() as u32
    }
    /// The record of the slots, unless the folio is too small for them.
    #[inline]
    fn slots(&self) -> Option<&'m Record> {
        self.pages.get(2)
    }
    /// `whole` and `uneven`, unless the folio is too small for them.
    #[inline]
    fn evenness(&self) -> Option<[&'m AtomicU32; 2]> {
        match self.pages {
            [_, _, tail2, tail3, ..] => Some([&tail2.flags, &tail3.flags]),
            _ => None,
        }
    }

    pub fn shared(&self) -> bool {
        if self.slots().is_some() { self.state & SHARED != 0 } else { self.total > 1 }
    }
    pub fn entirely_mapped(&self) -> bool {
        self.state & ENTIRELY_MAPPED != 0
    }
    pub fn pages_mapped(&self) -> u32 {
        self.state & PAGES_MASK
    }

    /// Adds `n` mappings of `mm` (rules FOLIO-32, FOLIO-33).
    #[inline]
    pub fn add(&mut self, n: u32, mm: MmId) {
        self.total += n;
        let Some(slots) = self.slots() else { return };
        let mut ids = halves(slots.words[0].load(Relaxed));
        let mut counts = halves(slots.words[1].load(Relaxed));
        let slot = if let Some(own) = ids.iter().position(|&id| id == mm.get()) {
            Some(own)
        } else if let Some(free) = ids.iter().position(|&id| id == 0) {
            ids[free] = mm.get();
            // Slot 0 may be free while untracked mappings exist. With slot 1
            // being claimed, slot 0 certainly has some.
            if free == 1 || self.total != n {
                self.state |= SHARED;
            }
            Some(free)
        } else {
            None
        };
        if let Some(slot) = slot {
            counts[slot] += n;
            slots.words[0].store(word(ids), Relaxed);
            slots.words[1].store(word(counts), Relaxed);
        }
        self.check(ids, counts);
    }
    /// What holds between two changes (rule FOLIO-38).
    #[inline]
    fn check(&self, ids: [u32; 2], counts: [u32; 2]) {
        debug_assert!(
            (0..2).all(|i| (ids[i] == 0) == (counts[i] == 0)),
            "slots {ids:?} with counts {counts:?}"
        );
        debug_assert!(self.total > 0 || self.state & SHARED == 0, "shared and not mapped");
    }

    /// Takes back `n` mappings of `mm` (rule FOLIO-34).
    #[inline]
    pub fn sub(&mut self, n: u32, mm: MmId) {
        debug_assert!(self.total >= n, "{n} mappings removed of {}", self.total);
        self.total = self.total.saturating_sub(n);
        let Some(slots) = self.slots() else { return };
        let mut ids = halves(slots.words[0].load(Relaxed));
        let mut counts = halves(slots.words[1].load(Relaxed));
        if let Some(own) = ids.iter().position(|&id| id == mm.get()) {
            // Clipped: `mm` may have added mappings while it had no slot.
            counts[own] = counts[own].saturating_sub(n);
            slots.words[1].store(word(counts), Relaxed);
            if counts[own] > 0 {
                return;
            }
            ids[own] = 0;
            slots.words[0].store(word(ids), Relaxed);
        }
        if counts.contains(&self.total) {
            self.state &= !SHARED;
        }
        self.check(ids, counts);
    }

    /// One more PTE mapping of each of `n` pages from `first` on, which [`add`](Self::add)
    /// has counted; the number that were unmapped before.
    #[inline]
    pub fn map_pages(&mut self, first: u32, n: u32) -> u32 {
        let nr = self.nr_pages();
        let new = match self.evenness() {
            None => self.change_part(first, n, 1, 0).0,
            Some([whole, _]) if n == nr => {
                whole.store(whole.load(Relaxed) + 1, Relaxed);
                nr.saturating_sub(self.pages_mapped())
            }
            Some([whole, uneven]) => {
                let (new, more) = self.change_part(first, n, 1, whole.load(Relaxed).wrapping_neg());
                let now = uneven.load(Relaxed).wrapping_add(more);
                uneven.store(now, Relaxed);
                // Each page once, and none by `whole`.
                if now == nr
                    && self.total - self.entire == nr
                    && self.pages_mapped() + new == nr
                    && whole.load(Relaxed) == 0
                {
                    self.level(1);
                }
                new
            }
        };
        self.state += new;
        // A PMD mapping has already counted every page (rule FOLIO-17).
        if self.entirely_mapped() { 0 } else { new }
    }
    /// Adds `by` (one, or minus one) to the own counts of `n` pages from `first` on: how many
    /// were `edge`, and how many more are not zero.
    #[inline(always)]
    fn change_part(&self, first: u32, n: u32, by: u32, edge: u32) -> (u32, u32) {
        let (mut at_edge, mut uneven) = (0, 0u32);
        for page in &self.pages[first as usize..][..n as usize] {
            let own = page.mapcount.load(Relaxed);
            let now = own.wrapping_add(by);
            page.mapcount.store(now, Relaxed);
            at_edge += u32::from(own == edge);
            uneven = uneven.wrapping_add(u32::from(own == 0)).wrapping_sub(u32::from(now == 0));
        }
        (at_edge, uneven)
    }
    /// Every page is mapped `times` times: none has a count of its own.
    #[cold]
    fn level(&self, times: u32) {
        for page in self.pages {
            page.mapcount.store(0, Relaxed);
        }
        if let Some([whole, uneven]) = self.evenness() {
            whole.store(times, Relaxed);
            uneven.store(0, Relaxed);
        }
    }
    /// One PTE mapping less of each of `n` pages from `first` on (rules FOLIO-18, FOLIO-21).
    #[inline(always)]
    pub fn unmap_pages(&mut self, first: u32, n: u32) -> Unmapped {
        debug_assert!(
            (first..first + n).all(|i| self.mapcount_of(i as usize) > 0),
            "a page unmapped that was not mapped"
        );
        let (last, whole_left) = match self.evenness() {
            None => (self.change_part(first, n, u32::MAX, 1).0, 0),
            Some([whole, uneven]) => {
                let times = whole.load(Relaxed);
                if n == self.nr_pages() && times > 0 {
                    whole.store(times - 1, Relaxed);
                    (self.mapped_by_none(times - 1, uneven.load(Relaxed)), times - 1)
                } else {
                    let edge = 1u32.wrapping_sub(times);
                    let (last, more) = self.change_part(first, n, u32::MAX, edge);
                    uneven.store(uneven.load(Relaxed).wrapping_add(more), Relaxed);
                    (last, times)
                }
            }
        };
        self.state -= last;
        if whole_left > 0 && self.pages_mapped() == 0 {
            self.level(0);
        }
        Unmapped {
            pages: if self.entirely_mapped() { 0 } else { last },
            partially: last > 0 && self.state & (ENTIRELY_MAPPED | PAGES_MASK) != 0,
        }
    }
    /// Pages that are not mapped if all are mapped `whole` times together, and `uneven` of
    /// them have counts of their own.
    #[inline]
    fn mapped_by_none(&self, whole: u32, uneven: u32) -> u32 {
        if uneven == 0 {
            return if whole == 0 { self.nr_pages() } else { 0 };
        }
        let none = |page: &&Record| page.mapcount.load(Relaxed).wrapping_add(whole) == 0;
        self.pages.iter().filter(none).count() as u32
    }
    /// PTE mappings of page `index`.
    fn mapcount_of(&self, index: usize) -> u32 {
        let whole = self.evenness().map_or(0, |[whole, _]| whole.load(Relaxed));
        self.pages[index].mapcount.load(Relaxed).wrapping_add(whole)
    }
    /// One more PMD mapping; the number of pages that were unmapped before, if
    /// this is the first.
    pub fn map_entire(&mut self) -> Option<u32> {
        self.entire += 1;
        if self.entire > 1 {
            return None;
        }
        self.state |= ENTIRELY_MAPPED;
        Some(self.nr_pages().saturating_sub(self.pages_mapped()))
    }
    /// One PMD mapping less; what that unmapped, if it was the last.
    pub fn unmap_entire(&mut self) -> Option<Unmapped> {
        debug_assert!(self.entire > 0, "a PMD mapping removed of none");
        self.entire = self.entire.saturating_sub(1);
        if self.entire > 0 {
            return None;
        }
        self.state &= !ENTIRELY_MAPPED;
        let pages = self.nr_pages().saturating_sub(self.pages_mapped());
        Some(Unmapped { pages, partially: pages > 0 && pages < self.nr_pages() })
    }
}

impl Drop for LargeCounts<'_> {
    fn drop(&mut self) {
        let tail1 = &self.pages[1];
        tail1.words[0].store(word([self.total, self.entire]), Relaxed);
        // Release pairs with the Acquire of the next holder.
        tail1.flags.store(self.state & !LOCK, ord!("folio.counts.unlock", Release));
    }
}

impl<'m, F: FolioSpace> Folio<'m, F> {
    /// Locks the counts of a large folio.
    pub(crate) fn lock_counts(&self) -> LargeCounts<'m> {
        debug_assert!(self.is_large());
        LargeCounts::lock(self.map.records(self.head..self.head + self.nr_pages() as usize))
    }
    /// Pages of a folio of more than order 1 whose own count is not zero, as it says itself.
    pub(crate) fn uneven_pages(&self) -> u32 {
        self.tail(3).flags.load(Relaxed)
    }
    /// PTE mappings of page `index`; exact while none of the folio's come or go.
    pub(crate) fn pte_mapcount(&self, index: usize) -> u32 {
        // In this order: where parts become a whole, `own` goes first.
        let whole = if self.order() > 1 { self.tail(2).flags.load(Relaxed) } else { 0 };
        let own = self.map.record(self.head + index).mapcount.load(Relaxed);
        // Below zero only for those who look between two stores.
        whole.wrapping_add(own).cast_signed().max(0).cast_unsigned()
    }

    fn large_totals(&self) -> [u32; 2] {
        halves(self.tail(1).words[0].load(Relaxed))
    }

    /// All mappings of the folio: one per PTE, one per PMD entry (rule FOLIO-14).
    #[inline]
    pub fn mapcount(&self) -> u32 {
        if self.is_large() {
            self.large_totals()[0]
        } else {
            self.head_record().mapcount.load(Relaxed)
        }
    }
    /// PMD mappings of the folio (rule FOLIO-15).
    #[inline]
    pub fn entire_mapcount(&self) -> u32 {
        if self.is_large() { self.large_totals()[1] } else { 0 }
    }
    /// Whether anything maps the folio.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.mapcount() > 0
    }
    /// Pages mapped by PTEs, and whether PMD entries map the folio as well.
    pub fn pages_mapped(&self) -> (u32, bool) {
        if self.is_large() {
            let state = self.tail(1).flags.load(Relaxed);
            (state & PAGES_MASK, state & ENTIRELY_MAPPED != 0)
        } else {
            (u32::from(self.is_mapped()), false)
        }
    }
    /// Whether more than one address space may map the folio (rule FOLIO-36).
    /// `false` is certain for anonymous folios while mappings cannot be added.
    #[inline]
    pub fn maybe_mapped_shared(&self) -> bool {
        let mapcount = self.mapcount();
        if mapcount <= 1 || self.order() <= 1 {
            return mapcount > 1;
        }
        self.tail(1).flags.load(Relaxed) & SHARED != 0
    }
    /// The two address-space slots and their map counts: what is tracked, for
    /// audits and tests.
    pub fn mm_slots(&self) -> [Option<(MmId, u32)>; 2] {
        if self.order() <= 1 {
            return [None; 2];
        }
        let slots = self.tail(2);
        let (ids, counts) =
            (halves(slots.words[0].load(Relaxed)), halves(slots.words[1].load(Relaxed)));
        [0, 1].map(|i| MmId::new(ids[i]).map(|id| (id, counts[i])))
    }
    /// Whether the flag of a large folio says shared, whatever its map count.
    pub fn shared_flag(&self) -> bool {
        self.order() > 1 && self.tail(1).flags.load(Relaxed) & SHARED != 0
    }

    /// Whether the large fields are as at allocation (rule FOLIO-11).
    pub(crate) fn large_idle(&self) -> bool {
        !self.is_large()
            || (self.large_totals() == [0; 2]
                && self.tail(1).flags.load(Relaxed) == 0
                && self.mm_slots() == [None; 2]
                && (self.order() <= 1
                    || [2, 3].iter().all(|&i| self.tail(i).flags.load(Relaxed) == 0)))
    }

    /// References that caches and private data explain, plus the mappings
    /// (rule FOLIO-04). A hint unless the folio is locked and unmapped.
    pub fn expected_refs(&self) -> u32 {
        let flags = self.flags();
        let cache = if self.is_anon() {
            if flags.contains(FolioFlags::SWAPCACHE) { self.nr_pages() } else { 0 }
        } else {
            let cached = self.file().is_some() || flags.contains(FolioFlags::SWAPCACHE);
            (if cached { self.nr_pages() } else { 0 })
                + u32::from(flags.contains(FolioFlags::PRIVATE))
        };
        cache + self.mapcount()
    }

    /// Calls `f` with counts that may be compared with each other: of a large
    /// folio under the counts lock, where no mapping can come or go. If the
    /// references equal the mappings there, all references are mappings
    /// (rule REUSE-07).
    pub fn counts_locked<R>(&self, f: impl FnOnce(&Counts) -> R) -> R {
        let refs = || {
            // Acquire pairs with the Release of a put: what a former holder
            // read or wrote comes before what the caller decides to do.
            self.head_record().refs.load(ord!("folio.counts.refs", Acquire)) as i32
        };
        let early = if mutant!("folio.counts.refs_early") { Some(refs()) } else { None };
        let swapcache = if self.has(FolioFlags::SWAPCACHE) { self.nr_pages() } else { 0 };
        if !self.is_large() {
            let mapcount = self.mapcount();
            let refs = refs();
            let shared = mapcount > 1;
            return f(&Counts { mapcount, entire: 0, refs, shared, swapcache });
        }
        let held = self.lock_counts();
        let counts = Counts {
            mapcount: held.total,
            entire: held.entire,
            refs: early.unwrap_or_else(refs),
            shared: held.shared(),
            swapcache,
        };
        let r = f(&counts);
        drop(held);
        r
    }
}
