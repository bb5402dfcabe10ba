//! Exclusive marks: one bit per page, in words of 64 pages.
//!
//! Set: the page belongs to one mapping of one address space, may be mapped
//! writable and pinned. Clear: maybe shared (rules EXCL-01, EXCL-02). A bitmap
//! instead of a flag per record makes the question "how many pages from here
//! are exclusive" one load per 64 pages.

use crate::{Folio, FolioSpace, MemMap};
use mm_arch::Pfn;
use mm_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Calls `f(word index, mask)` for the words that `n` bits from `bit` lie in.
#[inline]
fn each_word(bit: usize, n: usize, mut f: impl FnMut(usize, u64)) {
    let (mut bit, end) = (bit, bit + n);
    while bit < end {
        let in_word = (64 - bit % 64).min(end - bit);
        f(bit / 64, (u64::MAX >> (64 - in_word)) << (bit % 64));
        bit += in_word;
    }
}

#[inline]
fn set(words: &[AtomicU64], bit: usize, n: usize) {
    each_word(bit, n, |w, mask| {
        // Tested first: a locked operation on a word that is already right
        // would take its cache line from every reader.
        if words[w].load(Relaxed) & mask != mask {
            words[w].fetch_or(mask, Relaxed);
        }
    });
}

#[inline]
fn clear(words: &[AtomicU64], bit: usize, n: usize) {
    each_word(bit, n, |w, mask| {
        if words[w].load(Relaxed) & mask != 0 {
            words[w].fetch_and(!mask, Relaxed);
        }
    });
}

#[inline]
fn prefix(words: &[AtomicU64], bit: usize, n: usize) -> usize {
    let mut got = 0;
    while got < n {
        let at = bit + got;
        let left = 64 - at % 64;
        let ones = (words[at / 64].load(Relaxed) >> (at % 64)).trailing_ones() as usize;
        got += ones.min(left);
        if ones < left {
            break;
        }
    }
    got.min(n)
}

#[inline]
fn each(words: &[AtomicU64], bit: usize, n: usize, mut f: impl FnMut(usize)) {
    each_word(bit, n, |w, mask| {
        let mut left = words[w].load(Relaxed) & mask;
        while left != 0 {
            f(w * 64 + left.trailing_zeros() as usize - bit);
            left &= left - 1;
        }
    });
}

impl<F: FolioSpace> Folio<'_, F> {
    /// Whether page `first` is exclusive, and how many of the `n` pages from it on, all of
    /// this folio, are like it.
    pub fn alike_exclusive(&self, first: u32, n: usize) -> (bool, usize) {
        let map = self.memmap();
        let exclusive = map.exclusive_prefix(self.page(first), n);
        if exclusive > 0 {
            return (true, exclusive);
        }
        let shared = |k: &u32| !map.page_exclusive(self.page(first + k));
        (false, (0..n as u32).take_while(shared).count())
    }
}

impl<F: FolioSpace> MemMap<F> {
    /// Whether the page is marked exclusive.
    ///
    /// Meaningful for mapped anonymous pages; of a PMD-mapped folio only the
    /// head page's mark is (rule EXCL-01). A lockless reader places its own
    /// read barrier between its last look at the entries and this one
    /// (rule RMAP-19).
    #[inline]
    pub fn page_exclusive(&self, pfn: Pfn) -> bool {
        let bit = self.index(pfn);
        self.exclusive[bit / 64].load(Relaxed) >> (bit % 64) & 1 != 0
    }
    /// How many of the `n` pages from `pfn` on are exclusive before the first
    /// that is not.
    #[inline]
    pub fn exclusive_prefix(&self, pfn: Pfn, n: usize) -> usize {
        prefix(&self.exclusive, self.index(pfn), n)
    }
    /// Calls `f` with the distance from `pfn` of each exclusive page among the `n`
    /// pages from there on, in ascending order.
    #[inline]
    pub fn each_exclusive(&self, pfn: Pfn, n: usize, f: impl FnMut(usize)) {
        each(&self.exclusive, self.index(pfn), n, f);
    }
    /// Marks `n` pages exclusive. The caller has proven it, under the table lock, and
    /// makes the entries writable only afterwards, with a releasing store
    /// (rule WREUSE-08).
    #[inline]
    pub fn set_exclusive(&self, pfn: Pfn, n: usize) {
        set(&self.exclusive, self.index(pfn), n);
    }
    /// Clears the marks of `n` pages. Never of a page that may be pinned
    /// (rule EXCL-04): sharing goes through `try_dup_*` and `try_share_*`.
    #[inline]
    pub fn clear_exclusive(&self, pfn: Pfn, n: usize) {
        clear(&self.exclusive, self.index(pfn), n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Rules: EXCL-07.
    #[test]
    fn ranges_agree_with_single_bits() {
        for (start, n) in [(0, 1), (0, 64), (63, 2), (5, 130), (64, 64), (100, 92), (191, 1)] {
            let words: Vec<_> = (0..3).map(|_| AtomicU64::new(0)).collect();
            set(&words, start, n);
            let bit = |i: usize| words[i / 64].load(Relaxed) >> (i % 64) & 1 != 0;
            for i in 0..192 {
                assert_eq!(bit(i), (start..start + n).contains(&i), "bit {i} of {start}+{n}");
            }
            for from in start..start + n {
                assert_eq!(prefix(&words, from, 192 - from), start + n - from);
                assert_eq!(prefix(&words, from, 1), 1);
            }
            let mut set_bits = Vec::new();
            each(&words, start, 192 - start, |k| set_bits.push(k));
            assert_eq!(set_bits, (0..n).collect::<Vec<_>>());
            clear(&words, start + n / 2, 1);
            assert_eq!(prefix(&words, start, n), n / 2);
            let mut left = 0;
            each(&words, start, n, |_| left += 1);
            assert_eq!(left, n - 1);
        }
    }
}
