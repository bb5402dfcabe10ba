//! Entries of two 32-bit words that are never accessed together (rules PAE-06..11).
//!
//! # The protocol
//!
//! The low word has the present bit and every flag that hardware or a permission
//! change touches; the high word has the rest of the frame. So:
//!
//! * a value is written high word first: present appears last (PAE-06);
//! * an entry is emptied low word first, by exchange, so that no hardware update is
//!   lost: present disappears first (PAE-07, PAE-08);
//! * flags change in the low word alone (PAE-11, PAE-16);
//! * a lockless reader loads low, high and low again until both lows agree (PAE-10).
//!
//! Equal low words prove nothing if a *present* entry is emptied and filled again
//! with the same low word in between: then every reader must have left between the
//! two ([`Arch::WORDS`](crate::Arch::WORDS)). If the value read is not present,
//! its high word means nothing.

use crate::cell::Cell;
use crate::{Liveness, Right, word};
use mm_sync::atomic::{AtomicU32, Ordering};
use mm_sync::{fence, hint, mutant, ord};

/// The two words, as little-endian hardware reads them.
#[derive(Debug)]
#[repr(C)]
pub struct Pair {
    low: AtomicU32,
    high: AtomicU32,
}

const fn low(raw: u64) -> u32 {
    raw as u32
}
const fn high(raw: u64) -> u32 {
    (raw >> 32) as u32
}
const fn join(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

impl Pair {
    /// The words as they were met, and what tells that they may belong to two values.
    #[inline(always)]
    fn try_read<R: Right>(&self) -> (u64, u32) {
        if R::LOCKED {
            let l = self.low.load(Ordering::Relaxed);
            return (join(l, self.high.load(Ordering::Relaxed)), 0);
        }
        // Rule PAE-10: low, high, low again. Acquire on both keeps the loads in
        // order and pairs with the fences of the writers.
        let l = self.low.load(ord!("pair.read.low", Acquire));
        let h = self.high.load(ord!("pair.read.high", Acquire));
        let again =
            if mutant!("pair.read.no_recheck") { l } else { self.low.load(Ordering::Relaxed) };
        (join(l, h), l ^ again)
    }
}

impl Cell for Pair {
    const WORDS: usize = 2;
    const FLAGS: u64 = 0xffff_ffff;

    fn empty() -> Self {
        Pair { low: AtomicU32::new(0), high: AtomicU32::new(0) }
    }
    #[inline(always)]
    fn read<R: Right>(&self) -> u64 {
        loop {
            let (raw, torn) = self.try_read::<R>();
            if torn == 0 {
                return raw;
            }
            hint::spin_loop();
        }
    }
    /// Rule PAE-06: the word with the present bit last.
    #[inline(always)]
    fn write(&self, raw: u64) {
        if mutant!("pair.store.low_first") {
            self.low.store(low(raw), Ordering::Relaxed);
            self.high.store(high(raw), Ordering::Release);
            return;
        }
        self.high.store(high(raw), Ordering::Relaxed);
        // Release: a reader that sees the present bit sees the high word.
        self.low.store(low(raw), ord!("pair.store.low", Release));
    }
    /// Rule PAE-07: the word with the present bit first, by exchange.
    #[inline(always)]
    fn take<L: Liveness>(&self) -> u64 {
        if mutant!("pair.take.high_first") {
            let h = self.high.swap(0, Ordering::AcqRel);
            return join(self.low.swap(0, Ordering::AcqRel), h);
        }
        // The exchange collects what hardware added; nobody else writes the
        // high word while we hold the lock.
        let l = if L::LIVE && !mutant!("pair.take.not_rmw") {
            self.low.swap(0, Ordering::Relaxed)
        } else {
            let l = self.low.load(Ordering::Relaxed);
            self.low.store(0, Ordering::Relaxed);
            l
        };
        let h = self.high.load(Ordering::Relaxed);
        // A fence, not a Release store: the next `write` writes `high` again,
        // and a reader of that must see the cleared low word too.
        fence!("pair.take.wmb", Release);
        self.high.store(0, Ordering::Relaxed);
        join(l, h)
    }
    /// Emptied before another value is written: a reader must never join words of
    /// two tables (rules PAE-09, PAE-16).
    #[inline]
    fn replace(&self, raw: u64) -> u64 {
        let old = self.take::<crate::Live>();
        if raw != 0 {
            self.write(raw);
        }
        old
    }
    /// In the low word (rule PAE-11).
    #[inline(always)]
    fn change(&self, f: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let h = self.high.load(Ordering::Relaxed);
        let mut l = self.low.load(Ordering::Relaxed);
        loop {
            let old = join(l, h);
            let Some(new) = f(old) else { return Err(old) };
            debug_assert_eq!(high(new), h, "flags live in the low word");
            if mutant!("pair.update.not_rmw") {
                self.low.store(low(new), Ordering::Relaxed);
                return Ok(old);
            }
            // Release, as `word::update`.
            let publish = ord!("pair.update.low", Release);
            match self.low.compare_exchange_weak(l, low(new), publish, Ordering::Relaxed) {
                Ok(_) => return Ok(old),
                Err(seen) => l = seen,
            }
        }
    }
    /// Where a group of entries is found torn or different, one by one from there.
    #[inline(always)]
    fn scan<R: Right>(cells: &[Self], head: u64, step: u64, ignore: u64) -> usize {
        let keep = !ignore;
        let differs = |cell: &Pair, e| {
            let (raw, torn) = cell.try_read::<R>();
            (raw ^ e) & keep | u64::from(torn)
        };
        word::run_of::<_, 8, 8>(cells, head, step, differs, |cell, e| {
            (cell.read::<R>() ^ e) & keep == 0
        })
    }
}
