//! Contiguous blocks: `n` aligned entries that hardware may use as one.
//!
//! # The protocol
//!
//! All entries of a *folded* block are valid, carry the contiguous mark, map
//! consecutive frames from an aligned one and are equal but for accessed and
//! dirty, which hardware may report in any of them. So:
//!
//! * a reader gathers accessed and dirty over the block (CONT-09, CONT-11);
//! * changing one entry first *unfolds* the block: take all entries, flush (break
//!   before make), write them back without the mark and with the gathered state
//!   (CONT-05, CONT-08);
//! * an operation on whole blocks works in place and keeps the mark;
//! * a lockless reader accepts a block only if every entry it looked at belongs
//!   to it, and starts again, forgetting what it gathered, otherwise.

use crate::{At, Entry, FlushScope, Held, Level, Liveness, Right, SpaceTlb, Tlb, VirtRange, word};
use mm_sync::atomic::{AtomicU64, Ordering};
use mm_sync::{hint, mutant};

/// An entry whose raw word can carry the contiguous mark.
pub trait ContEntry: Entry {
    /// Valid and part of a folded block (rule CONT-19: the mark implies valid).
    fn is_cont(self) -> bool;
    /// With or without the mark.
    #[must_use]
    fn with_cont(self, cont: bool) -> Self;
    /// Whether hardware may follow the entry.
    fn is_valid(self) -> bool;
    /// Added per frame in the raw word.
    const STEP: u64;
}

const PTE: Level = Level::Pte;

/// What must be equal in a block: everything but accessed and dirty.
#[inline(always)]
fn key<E: ContEntry>(e: E) -> E {
    e.mkclean().mkold()
}

#[inline(always)]
fn gather<E: ContEntry>(into: E, from: E) -> E {
    let mut e = into;
    if from.is_dirty() {
        // Not `mkdirty`: gathering must not invent soft-dirty.
        let soft = e.is_soft_dirty();
        e = e.mkdirty();
        if !soft {
            e = e.clear_soft_dirty();
        }
    }
    if from.is_young() { e.mkyoung() } else { e }
}

/// Reads entry `i`, with the accessed and dirty state of its block.
#[inline]
pub fn read<E: ContEntry, R: Right>(cells: &[AtomicU64], i: usize, cont: usize) -> E {
    'again: loop {
        let e = E::from_raw(word::load::<R>(&cells[i]));
        if !e.is_cont() {
            return e;
        }
        let base = i & !(cont - 1);
        let want = key(e).raw().wrapping_sub(E::STEP.wrapping_mul((i - base) as u64));
        let mut out = e;
        for (k, cell) in cells[base..base + cont].iter().enumerate() {
            let x = E::from_raw(word::load::<R>(cell));
            // With the lock held the block cannot change under us.
            if !R::LOCKED
                && !mutant!("cont.read.no_check")
                && key(x).raw() != want.wrapping_add(E::STEP.wrapping_mul(k as u64))
            {
                hint::spin_loop();
                continue 'again;
            }
            if !mutant!("cont.read.no_gather") {
                out = gather(out, x);
            }
        }
        return out;
    }
}

/// Entries from `i` to the end of its block, 1 if it is not folded (CONT-16).
#[inline(always)]
pub fn hint<E: ContEntry>(i: usize, e: E, cont: usize) -> usize {
    if e.is_cont() { cont - (i & (cont - 1)) } else { 1 }
}

/// Folds or unfolds the block that starts at `base` (CONT-05).
fn convert<E: ContEntry, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    cont: usize,
    fold: bool,
    page_shift: u32,
    tlb: &SpaceTlb<'_, T>,
) {
    let base = at.index & !(cont - 1);
    let block = &cells[base..base + cont];
    let first = key(E::from_raw(block[0].load(Ordering::Relaxed))).with_cont(fold);
    let mut history = first;
    for cell in block {
        let old = if mutant!("cont.convert.no_break") {
            cell.load(Ordering::Relaxed)
        } else {
            word::take::<crate::Live>(cell)
        };
        if !mutant!("cont.convert.lose_young_dirty") {
            history = gather(history, E::from_raw(old));
        }
    }
    let start = at.va.align_down(page_shift + cont.trailing_zeros());
    if let Ok(range) = VirtRange::units(start, cont as u64, page_shift) {
        tlb.flush(range, FlushScope::Leaves);
    }
    for (k, cell) in block.iter().enumerate() {
        word::store(cell, history.advance(k as u64, PTE).raw());
    }
}

/// Unfolds the blocks that `n` entries at `at` cover only in part (CONT-08).
pub fn unfold_partial<E: ContEntry, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    n: usize,
    cont: usize,
    page_shift: u32,
    tlb: &SpaceTlb<'_, T>,
) {
    let is_folded = |i: usize| E::from_raw(cells[i].load(Ordering::Relaxed)).is_cont();
    let last = at.index + n - 1;
    if (at.index & (cont - 1) != 0 || n < cont) && is_folded(at.index) {
        convert::<E, T>(cells, at, cont, false, page_shift, tlb);
    }
    if (last + 1) & (cont - 1) != 0 && is_folded(last) {
        let at = At { va: at.va.add_units((n - 1) as u64, page_shift), index: last };
        convert::<E, T>(cells, at, cont, false, page_shift, tlb);
    }
}

/// Writes `n` entries over empty ones; whole aligned blocks are folded (CONT-02).
///
/// `folds` is whether the entry may be folded at all (valid, user, not special).
pub fn fill<E: ContEntry>(cells: &[AtomicU64], i: usize, n: usize, e: E, cont: usize) {
    let folds = e.is_valid() && !e.is_special();
    let pfn_index = e.pfn(PTE).get() as usize & (cont - 1);
    let aligned = (i & (cont - 1)) == pfn_index;
    for k in 0..n {
        let base = (i + k) & !(cont - 1);
        let whole = folds && aligned && base >= i && base + cont <= i + n;
        let x = e.with_cont(false).advance(k as u64, PTE).with_cont(whole);
        word::store(&cells[i + k], x.raw());
    }
}

/// Empties `n` entries (CONT-18).
pub fn take<E: ContEntry, L: Liveness, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    n: usize,
    cont: usize,
    page_shift: u32,
    tlb: &SpaceTlb<'_, T>,
    mut each: impl FnMut(usize, E),
) {
    if !mutant!("cont.take.no_unfold") {
        unfold_partial::<E, T>(cells, at, n, cont, page_shift, tlb);
    }
    let mut k = 0;
    while k < n {
        let e = E::from_raw(word::take::<L>(&cells[at.index + k]));
        if e.is_cont() && k + cont <= n {
            // A whole block: accessed and dirty may be in any entry, so every
            // entry handed out carries those of the block.
            let mut history = e;
            for j in 1..cont {
                history = gather(history, E::from_raw(word::take::<L>(&cells[at.index + k + j])));
            }
            for j in 0..cont {
                each(k + j, history.with_cont(false).advance(j as u64, PTE));
            }
            k += cont;
        } else {
            each(k, e.with_cont(false));
            k += 1;
        }
    }
}

/// Length of the run at `i` (BATCH-06): a folded block is one load.
pub fn scan<E: ContEntry, R: Right, const MODE: u8>(
    cells: &[AtomicU64],
    i: usize,
    head: E,
    max: usize,
    cont: usize,
) -> crate::Batch {
    let mut batch = crate::Batch {
        nr: 1,
        any_writable: head.is_writable(PTE),
        any_young: head.is_young(),
        any_dirty: head.is_dirty(),
    };
    let head_cell = E::from_raw(word::load::<Held>(&cells[i]));
    // The copy the caller holds may have lost the mark; take it from memory,
    // but only a block that is still the head's.
    let folded = head_cell.is_cont();
    let mut nr = if key(head_cell).with_cont(false) == key(head).with_cont(false) {
        hint(i, head_cell, cont)
    } else {
        1
    };
    while nr < max {
        let e: E = read::<E, R>(cells, i + nr, cont);
        let want = head.advance(nr as u64, PTE);
        // The mark is compared like any other bit (CONT-17).
        if e.is_cont() != folded
            || e.with_cont(false).normalise::<MODE>() != want.with_cont(false).normalise::<MODE>()
        {
            break;
        }
        batch.any_writable |= e.is_writable(PTE);
        batch.any_young |= e.is_young();
        batch.any_dirty |= e.is_dirty();
        nr += hint(i + nr, e, cont);
    }
    batch.nr = nr.min(max);
    word::scan_fence::<R>();
    batch
}
