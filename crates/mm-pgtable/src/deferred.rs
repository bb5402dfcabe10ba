//! Flushes that were put off, and those who cannot wait for them.
//!
//! # The protocol
//!
//! Reclaim empties entries and flushes later, once for many. Until then an empty entry
//! does not mean that no CPU uses the page (known fault MM-079). Whoever relies on that,
//! because it unmaps, moves or changes rights, looks under the table's lock whether a
//! flush of the address space is outstanding, and flushes all of it.
//!
//! ```text
//!   reclaim, under the table's lock      unmap, protect, move, under the same lock
//!     take entries                         pending != flushed ?
//!     hand the flush to the CPU              flush the whole address space
//!     pending += 1                           flushed := pending, if nobody raised it
//! ```
//!
//! The entries are taken before `pending` is raised, both under the lock: whoever finds
//! an entry empty finds the count raised. What somebody records in another table while
//! the flush goes on is not lost: the count then differs from what was read before, and
//! `flushed` stays behind.
//!
//! A fault that finds an empty entry relies on less. If the page is still where it was, in
//! an object, it is mapped once more, and what CPUs have cached is as good. But memory that
//! its owner gave up comes back as another page: a CPU that goes on by the old translation would
//! not see what is stored to the new one. So reclaim says what it drops (`PageFate::Dropped`), and
//! whoever fills an entry makes that flush first, and no other.

use crate::{LockedTable, PageTables, TableSpace};
use core::fmt;
use mm_arch::{Flush, FlushScope, Tlb};
use mm_sync::atomic::{AtomicU32, Ordering::Relaxed};
use mm_sync::mutant;

/// How often flushes of an address space were put off, and up to which of them all were
/// made since: two numbers of `BITS` bits in one word (rule TLBB-01), and whether one of
/// those since was of pages that are dropped.
///
/// # Invariants
///
/// The two differ whenever a flush may be outstanding.
pub(crate) struct Generations<const BITS: u32 = WIDTH>(AtomicU32);

/// What becomes of pages whose entries were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageFate {
    /// Who wants one of them finds it: in its object or on swap, by what the entry says now.
    Kept,
    /// Nobody has them any more: another page comes in their place.
    Dropped,
}

/// Bits of each number.
const WIDTH: u32 = if mm_sync::MODELLED { 2 } else { 15 };

impl<const BITS: u32> Generations<BITS> {
    const MASK: u32 = (1 << BITS) - 1;
    /// The second number starts above the first, with a bit in between that a carry of
    /// the first may run into.
    const SHIFT: u32 = BITS + 1;
    /// A flush that may be outstanding is of pages that are dropped.
    const DROPPED: u32 = 1 << 31;

    pub fn new() -> Self {
        const { assert!(BITS > 1 && BITS < 16) };
        Generations(AtomicU32::new(0))
    }
    const fn pending(word: u32) -> u32 {
        word & Self::MASK
    }
    const fn flushed(word: u32) -> u32 {
        word >> Self::SHIFT & Self::MASK
    }
    const fn pack(pending: u32, flushed: u32) -> u32 {
        pending | flushed << Self::SHIFT
    }
    /// A flush of `pages` was put off (rule TLBB-02).
    ///
    /// Relaxed: the lock under which the entries were taken orders this before whoever
    /// finds them empty. Under other locks nothing is promised.
    pub fn raise(&self, pages: PageFate) {
        let dropped = if pages == PageFate::Dropped { Self::DROPPED } else { 0 };
        let mut word = self.0.load(Relaxed);
        loop {
            // Long before the number wraps it starts anew, as one that is outstanding.
            let anew = Self::pending(word) > Self::MASK / 2 && !mutant!("pgtable.deferred.wrap");
            let new = if anew {
                Self::pack(1, 0)
            } else {
                Self::pack((Self::pending(word) + 1) & Self::MASK, Self::flushed(word))
            };
            let new = new | word & Self::DROPPED | dropped;
            match self.0.compare_exchange_weak(word, new, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
    /// Whether a flush of pages that are dropped may be outstanding.
    #[inline]
    pub fn of_dropped(&self) -> bool {
        self.0.load(Relaxed) & Self::DROPPED != 0
    }
    /// Calls `flush` if one may be outstanding; whether it did (rule TLBB-07).
    pub fn settle(&self, flush: impl FnOnce()) -> bool {
        let word = self.0.load(Relaxed);
        let pending = Self::pending(word);
        if pending == Self::flushed(word) {
            return false;
        }
        flush();
        let done = Self::pack(pending, pending);
        if mutant!("pgtable.deferred.plain_store") {
            let now = Self::pending(self.0.load(Relaxed));
            self.0.store(Self::pack(now, now), Relaxed);
            return true;
        }
        // A count that was raised meanwhile stays ahead.
        let _ = self.0.compare_exchange(word, done, Relaxed, Relaxed);
        true
    }
}

impl<const BITS: u32> fmt::Debug for Generations<BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.0.load(Relaxed);
        write!(f, "{} put off, {} flushed", Self::pending(word), Self::flushed(word))
    }
}

impl<S: TableSpace> PageTables<S> {
    /// Puts the flush off that entries of one table are owed, until
    /// [`Tlb::flush_deferred`]; whether it was. It is paid at once if it is of tables,
    /// or if the machine would not gain by waiting (rule TLBB-04).
    ///
    /// The caller took the entries under the table's lock and still holds it. Nothing
    /// that they name is given away, or counts as clean, before the deferred flush. `pages` says
    /// whether they come back.
    #[must_use = "whoever put a flush off has to make it"]
    pub fn put_off(&self, owed: Flush<'_, S::Tlb>, pages: PageFate) -> bool {
        if owed.is_none() {
            return false;
        }
        if owed.scope() == FlushScope::Tables || !self.space().tlb().defers(self.id()) {
            owed.now();
            return false;
        }
        owed.later();
        if !mutant!("pgtable.deferred.not_raised") {
            self.deferred().raise(pages);
        }
        true
    }
}

impl<S: TableSpace> LockedTable<'_, S> {
    /// Makes the flushes that were put off for this address space, if there may be any.
    /// Whoever relies on what entries of this table say, and on no CPU knowing more,
    /// calls this first: to unmap, to move, to change rights (rule TLBB-07).
    pub fn settle_deferred(&self) {
        let tables = self.tables();
        if !mutant!("pgtable.deferred.no_check") {
            tables.deferred().settle(|| tables.tlb().flush_all());
        }
    }
    /// As [`settle_deferred`](Self::settle_deferred), if pages were dropped whose entries were in
    /// this address space. Whoever maps a page where this table has nothing calls this first: no CPU
    /// may have the page that was there.
    #[inline]
    pub fn settle_dropped(&self) {
        if self.tables().deferred().of_dropped() && !mutant!("pgtable.deferred.no_check_on_fill") {
            self.settle_deferred();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Wide = Generations<15>;
    type Tiny = Generations<2>;

    fn numbers<const BITS: u32>(g: &Generations<BITS>) -> (u32, u32) {
        let word = g.0.load(Relaxed);
        (Generations::<BITS>::pending(word), Generations::<BITS>::flushed(word))
    }

    /// Rules: TLBB-01.
    #[test]
    fn the_numbers_share_no_bits() {
        for pending in [0, 1, 0x3fff, 0x7fff] {
            for flushed in [0, 1, 0x4000, 0x7fff] {
                let word = Wide::pack(pending, flushed);
                assert_eq!((Wide::pending(word), Wide::flushed(word)), (pending, flushed));
            }
        }
        assert_eq!(Wide::pack(1, 1), 1 | 1 << 16);
    }

    /// Rules: TLBB-05, TLBB-07.
    #[test]
    fn one_flush_settles_all_that_were_put_off() {
        let g = Wide::new();
        assert!(!g.settle(|| panic!("nothing was put off")));
        g.raise(PageFate::Kept);
        g.raise(PageFate::Kept);
        assert!(g.settle(|| ()));
        assert!(!g.settle(|| panic!("all were made")));
    }

    /// Rules: TLBB-07, F-RACE-14.
    #[test]
    fn what_is_put_off_during_a_flush_stays_outstanding() {
        let g = Wide::new();
        g.raise(PageFate::Kept);
        assert!(g.settle(|| g.raise(PageFate::Kept)));
        assert!(g.settle(|| ()), "the second one is still to be made");
        assert!(!g.settle(|| panic!("now all were made")));
    }

    /// Rules: TLBB-07, F-RACE-14.
    #[test]
    fn who_fills_waits_for_what_is_dropped() {
        let g = Tiny::new();
        for _ in 0..20 {
            g.raise(PageFate::Kept);
            assert!(!g.of_dropped());
            g.raise(PageFate::Dropped);
            g.raise(PageFate::Kept);
            assert!(g.of_dropped());
            // Another one while the flush goes on.
            assert!(g.settle(|| g.raise(PageFate::Kept)));
            assert!(g.of_dropped() && g.settle(|| ()));
            assert!(!g.of_dropped());
        }
        // Also where the numbers start anew.
        g.raise(PageFate::Dropped);
        for _ in 0..20 {
            g.raise(PageFate::Kept);
            assert!(g.of_dropped());
        }
    }

    /// Rules: TLBB-02, F-RACE-14.
    #[test]
    fn a_count_that_starts_anew_is_outstanding() {
        let g = Tiny::new();
        for _ in 0..20 {
            g.raise(PageFate::Kept);
            assert_ne!(numbers(&g).0, numbers(&g).1);
        }
        for _ in 0..20 {
            assert!(g.settle(|| ()));
            g.raise(PageFate::Kept);
            assert_ne!(numbers(&g).0, numbers(&g).1);
        }
    }
}
