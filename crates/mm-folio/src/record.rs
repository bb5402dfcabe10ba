//! The record of one page, and how a folio's fields are laid over its records.
//!
//! ```text
//!            refs     flags      mapcount  compound   words[0]            words[1]
//!   head     refs     flags      page 0    order      mapping             linear index
//!   tail 1   0        counts     page 1    distance   total | entire      pins
//!   tail 2   0        whole      page 2    distance   mm id 0 | mm id 1   count 0 | count 1
//!   tail 3   0        uneven     page 3    distance   deferred: next      deferred: previous
//! ```
//!
//! The head and tail 1 share a cache line. `refs` of a tail is zero for as long
//! as it is a tail: a lockless reader with a stale idea of the folio must fail
//! on it. `counts` is the word of the counts lock, `whole` and `uneven` say how the map counts of
//! the pages are to be read (see [`crate::counts`]).

use mm_sync::Live;
use mm_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use static_assertions::const_assert;

/// What the memory map knows about one page.
///
/// Two records are one cache line; the map makes the head of a large folio (of
/// even frame number) the first of its line.
#[repr(C, align(32))]
pub(crate) struct Record {
    /// References of the folio (head); zero while free, frozen or a tail.
    pub refs: AtomicU32,
    /// Flags of the folio (head), words of its counts (tails 1 to 3).
    pub flags: AtomicU32,
    /// PTE mappings of this page; of a large folio's, those that are not in `whole`.
    pub mapcount: AtomicU32,
    /// What the page is: see [`Compound`].
    pub compound: AtomicU32,
    /// Overlaid, see the module.
    pub words: [AtomicU64; 2],
    /// The content of the page is in use (models only).
    pub content: Live,
}

/// Bytes of memory map per 4 KiB page that must not be exceeded.
const MAX_BYTES_PER_PAGE: usize = 40;
/// Whether the atomics are plain memory (a model checker's are not).
const PLAIN: bool = size_of::<AtomicU32>() == 4;
const_assert!(!PLAIN || size_of::<Record>() == 32);
// A record and a bit in the exclusive bitmap.
const_assert!(!PLAIN || size_of::<Record>() * 8 < MAX_BYTES_PER_PAGE * 8);

impl Record {
    pub fn new() -> Self {
        Record {
            refs: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            mapcount: AtomicU32::new(0),
            compound: AtomicU32::new(Compound::FREE.0),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            content: Live::new(),
        }
    }
    #[inline]
    pub fn compound(&self) -> Compound {
        Compound(self.compound.load(Relaxed))
    }
    /// Marks the page as failed.
    pub fn poison(&self) {
        self.compound.fetch_or(Compound::POISON, Relaxed);
    }
    /// Clears everything but the compound word and the count of references.
    pub fn clear(&self) {
        self.flags.store(0, Relaxed);
        self.mapcount.store(0, Relaxed);
        self.words[0].store(0, Relaxed);
        self.words[1].store(0, Relaxed);
    }
}

/// The compound word: the order of a head, or a tail's distance to its head.
///
/// A free page reads as a head of order 0 (with no references).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Compound(pub u32);

impl Compound {
    pub const FREE: Compound = Compound(0);
    const TAIL: u32 = 1 << 31;
    const ZERO: u32 = 1 << 30;
    const HUGE_ZERO: u32 = 1 << 29;
    /// The page has failed hardware. The one bit of a tail that is its own.
    const POISON: u32 = 1 << 28;
    const ORDER: u32 = 0x3f;

    #[inline]
    pub const fn head(order: u32) -> Self {
        Compound(order & Self::ORDER)
    }
    #[inline]
    pub const fn tail(distance: u32) -> Self {
        Compound(Self::TAIL | distance)
    }
    #[inline]
    pub const fn is_tail(self) -> bool {
        self.0 & Self::TAIL != 0
    }
    /// Pages back to the head; zero for a head.
    #[inline]
    pub const fn distance(self) -> usize {
        if self.is_tail() { (self.0 & !(Self::TAIL | Self::POISON)) as usize } else { 0 }
    }
    /// Meaningless for a tail.
    #[inline]
    pub const fn order(self) -> u32 {
        self.0 & Self::ORDER
    }
    /// A head of order 0, the zero page included.
    #[inline]
    pub const fn is_small(self) -> bool {
        self.0 & (Self::TAIL | Self::ORDER) == 0
    }
    #[inline]
    pub const fn is_zero_page(self) -> bool {
        self.0 & (Self::TAIL | Self::ZERO) == Self::ZERO
    }
    #[inline]
    pub const fn is_huge_zero(self) -> bool {
        self.0 & (Self::TAIL | Self::HUGE_ZERO) == Self::HUGE_ZERO
    }
    pub const fn as_zero_page(self) -> Self {
        Compound(self.0 | Self::ZERO)
    }
    pub const fn as_huge_zero(self) -> Self {
        Compound(self.0 | Self::HUGE_ZERO)
    }
    #[inline]
    pub const fn is_poisoned(self) -> bool {
        self.0 & Self::POISON != 0
    }
    /// The same page, poisoned if `from` is.
    pub const fn as_poisoned_as(self, from: Self) -> Self {
        Compound(self.0 | from.0 & Self::POISON)
    }
}

/// Splits a word into its low and high half.
#[inline]
pub(crate) const fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}
/// The reverse of [`halves`].
#[inline]
pub(crate) const fn word(halves: [u32; 2]) -> u64 {
    halves[0] as u64 | (halves[1] as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compound_words_tell_heads_from_tails() {
        for order in 0..=20 {
            let c = Compound::head(order);
            assert!(!c.is_tail() && c.order() == order && c.distance() == 0);
            assert_eq!(c.is_small(), order == 0);
        }
        for d in [1, 2, 511, (1 << 20) - 1] {
            let c = Compound::tail(d);
            assert!(c.is_tail() && c.distance() == d as usize && !c.is_small());
            assert!(!c.is_zero_page() && !c.is_huge_zero() && !c.is_poisoned());
            let bad = c.as_poisoned_as(Compound(Compound::POISON));
            assert!(bad.is_tail() && bad.is_poisoned() && bad.distance() == d as usize);
        }
        assert!(Compound::head(0).as_zero_page().is_zero_page());
        assert!(Compound::head(0).as_zero_page().is_small());
        assert!(Compound::head(9).as_huge_zero().is_huge_zero());
        assert_eq!(Compound::head(9).as_huge_zero().order(), 9);
    }

    #[test]
    fn halves_and_word_are_inverse() {
        for w in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert_eq!(word(halves(w)), w);
        }
    }
}
