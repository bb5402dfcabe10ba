//! Shared machinery of formats with one 64-bit word per entry.
//!
//! A format supplies its value type; cells, exchanges and the unrolled scan are
//! the same for all of them.

use mm_sync::atomic::{AtomicU64, Ordering};
use mm_sync::{fence, mutant, ord};

/// Reads a cell by the right `R`.
#[inline(always)]
pub fn load<R: crate::Right>(cell: &AtomicU64) -> u64 {
    if R::LOCKED {
        cell.load(Ordering::Relaxed)
    } else {
        // Acquire pairs with the Release of `store`: what the entry maps is
        // seen as it was set up (rules ACC-02, P-RACE-25).
        cell.load(ord!("word.read", Acquire))
    }
}

/// Publishes a value.
#[inline(always)]
pub fn store(cell: &AtomicU64, raw: u64) {
    // Release pairs with the Acquire of `load` and with the fence of `scan`.
    cell.store(raw, ord!("word.store", Release));
}

/// Empties a cell; on a live table by exchange, so that no hardware update is lost.
#[inline(always)]
pub fn take<L: crate::Liveness>(cell: &AtomicU64) -> u64 {
    if L::LIVE && !mutant!("word.take.not_rmw") {
        cell.swap(0, Ordering::Relaxed)
    } else {
        let old = cell.load(Ordering::Relaxed);
        cell.store(0, Ordering::Relaxed);
        old
    }
}

/// Replaces the value by `f` of it, atomically, unless `f` says `None`. Returns
/// the value replaced.
#[inline(always)]
pub fn update(cell: &AtomicU64, f: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
    let mut old = cell.load(Ordering::Relaxed);
    loop {
        let Some(new) = f(old) else { return Err(old) };
        if mutant!("word.update.not_rmw") {
            cell.store(new, Ordering::Relaxed);
            return Ok(old);
        }
        // Release pairs with the Acquire of `load`: who finds the entry writable
        // finds what made it so, an exclusive mark above all (rule WREUSE-08).
        let publish = ord!("word.update", Release);
        match cell.compare_exchange_weak(old, new, publish, Ordering::Relaxed) {
            Ok(_) => return Ok(old),
            Err(seen) => old = seen,
        }
    }
}

/// Number of leading cells equal, outside of `ignore`, to `head, head + step,
/// head + 2 step, …`. The first is taken as given.
///
/// Eight loads share one branch: the differences are OR-ed first. A format that
/// stores frames inverted passes a negative `step` (rule PTE-09).
#[inline(always)]
pub fn scan(cells: &[AtomicU64], head: u64, step: u64, ignore: u64) -> usize {
    let keep = !ignore;
    let n = cells.len();
    // Whole groups from the head on, which is read once more: a run of 16 is two
    // branches. If the head has changed meanwhile the slow loop takes it as given.
    let mut expected = head;
    let mut i = 0;
    while i + 8 <= n {
        let mut diff = 0;
        let mut e = expected;
        for cell in &cells[i..i + 8] {
            diff |= (cell.load(Ordering::Relaxed) ^ e) & keep;
            e = e.wrapping_add(step);
        }
        if diff != 0 {
            break;
        }
        expected = e;
        i += 8;
    }
    if i == 0 {
        expected = head.wrapping_add(step);
        i = 1;
    }
    while i < n && (cells[i].load(Ordering::Relaxed) ^ expected) & keep == 0 {
        expected = expected.wrapping_add(step);
        i += 1;
    }
    i
}

/// The read barrier behind a lockless scan: the last entry is read before
/// anything that its value decides (rules GUPS-25, P-RACE-31).
#[inline(always)]
pub fn scan_fence<R: crate::Right>() {
    if !R::LOCKED {
        // Pairs with the Release of `store`, and with the write barrier between
        // clearing an exclusive mark and restoring the entry.
        fence!("scan.rmb", Acquire);
    }
}
