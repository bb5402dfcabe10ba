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
#[inline(always)]
pub fn scan(cells: &[AtomicU64], head: u64, step: u64, ignore: u64) -> usize {
    let keep = !ignore;
    let differs = |cell: &AtomicU64, e| (cell.load(Ordering::Relaxed) ^ e) & keep;
    run_of::<_, 16, 32>(cells, head, step, differs, |cell, e| differs(cell, e) == 0)
}

/// Whether the cells hold `expected, expected + step, …`, by one branch.
#[inline(always)]
fn all<C>(cells: &[C], expected: u64, step: u64, differs: &impl Fn(&C, u64) -> u64) -> bool {
    let (mut diff, mut e) = (0, expected);
    for cell in cells {
        diff |= differs(cell, e);
        e = e.wrapping_add(step);
    }
    diff == 0
}

/// Number of leading cells, in whole groups of `N`, that hold `expected`, one step more
/// each; `expected` becomes what the next one should hold.
#[inline(always)]
fn groups<C, const N: usize>(
    cells: &[C],
    expected: &mut u64,
    step: u64,
    differs: &impl Fn(&C, u64) -> u64,
) -> usize {
    let mut nr = 0;
    for group in cells.chunks_exact(N) {
        if !all(group, *expected, step, differs) {
            break;
        }
        *expected = expected.wrapping_add(step.wrapping_mul(N as u64));
        nr += N;
    }
    nr
}

/// Number of leading cells that hold `head, head + step, …`, by two tests of a cell
/// against an expected value: `differs` is zero only if it is met and has no branch,
/// `is` is exact. The first is taken as given.
///
/// Cells share one branch in groups of `WIDE`, `N` and 8: their differences are OR-ed first. A
/// format that stores frames inverted passes a negative `step` (rule PTE-09).
#[inline(always)]
pub(crate) fn run_of<C, const N: usize, const WIDE: usize>(
    cells: &[C],
    head: u64,
    step: u64,
    differs: impl Fn(&C, u64) -> u64,
    is: impl Fn(&C, u64) -> bool,
) -> usize {
    let (mut nr, mut expected) = (0, head);
    // By itself, so that a run of just `N` is one branch and no loop.
    if let Some((first, rest)) = cells.split_first_chunk::<N>()
        && all(&first[1..], head.wrapping_add(step), step, &differs)
    {
        if rest.is_empty() {
            return N;
        }
        expected = head.wrapping_add(step.wrapping_mul(N as u64));
        nr = N + groups::<C, WIDE>(rest, &mut expected, step, &differs);
        if WIDE > N {
            nr += groups::<C, N>(&cells[nr..], &mut expected, step, &differs);
        }
    }
    if N > 8 && nr < cells.len() {
        // From the head on, it may be, which is read once more then. If it has changed
        // meanwhile the loop below takes it as given.
        nr += groups::<C, 8>(&cells[nr..], &mut expected, step, &differs);
    }
    if nr == 0 {
        expected = head.wrapping_add(step);
        nr = 1;
    }
    for cell in cells.iter().skip(nr) {
        if !is(cell, expected) {
            break;
        }
        expected = expected.wrapping_add(step);
        nr += 1;
    }
    nr
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
