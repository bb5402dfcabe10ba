//! Contiguous blocks: `n` aligned entries that hardware may use as one.
//!
//! One implementation for every format that has such blocks. A format says in
//! [`ContEntry`] how the mark looks and in [`Blocks`] how many entries of which level
//! make a block; its [`Arch`](crate::Arch) operations are calls of the functions here.
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
//!   to it, and starts again, forgetting what it gathered, otherwise;
//! * a scan takes a block by *one* load: whoever changes any entry of a block
//!   empties the loaded one first. If the scan saw it still folded, then the change,
//!   and the look at the folio's pins behind it, come after the reader's pin
//!   (CONT-10, CONT-16, P-RACE-20).

use crate::{
    AccessKind, At, Batch, Entry, FlushScope, Held, Level, Liveness, Right, SpaceTlb, Tlb,
    VirtRange, respect, word,
};
use mm_sync::atomic::{AtomicU64, Ordering};
use mm_sync::{hint, mutant};

/// An entry that can be part of a folded block.
pub trait ContEntry: Entry {
    /// The value of a word that stands at `position` in its block. Formats that write
    /// the same word into all entries of a block need the position.
    #[inline(always)]
    fn loaded(raw: u64, _position: usize) -> Self {
        Self::from_raw(raw)
    }
    /// The word to store.
    #[inline(always)]
    fn stored(self) -> u64 {
        self.raw()
    }
    /// Valid and part of a folded block (rule CONT-19: the mark implies valid).
    fn is_cont(self) -> bool;
    /// With or without the mark.
    #[must_use]
    fn with_cont(self, cont: bool) -> Self;
    /// Whether hardware may follow the entry.
    fn is_valid(self) -> bool;
    /// `self` with accessed, dirty and write of `e` (rule ACC-17).
    #[must_use]
    fn widened(self, e: Self) -> Self;
    /// What hardware adds for an access; `None` if it does not follow the entry.
    fn marked(self, kind: AccessKind, level: Level) -> Option<Self>;
    /// For a scan under `mode` over entries without the mark: what is added to the raw
    /// word per frame, and the bits to ignore. `None` where no mask does and each entry
    /// is normalised.
    fn stride(mode: u8) -> Option<(u64, u64)>;
}

/// Which entries make a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Entries of a block, a power of two.
    pub nr: usize,
    /// Level of the entries.
    pub level: Level,
    /// Log2 of the memory that one entry maps.
    pub shift: u32,
    /// Base pages that one entry maps, as an order.
    pub order: u32,
}

impl Blocks {
    /// Blocks of `nr` base pages.
    pub const fn of_pages(nr: usize, page_shift: u32) -> Self {
        Blocks { nr, level: Level::Pte, shift: page_shift, order: 0 }
    }
    #[inline(always)]
    const fn position(self, i: usize) -> usize {
        i & (self.nr - 1)
    }
    #[inline(always)]
    const fn base(self, i: usize) -> usize {
        i & !(self.nr - 1)
    }
    #[inline(always)]
    fn load<E: ContEntry, R: Right>(self, cells: &[AtomicU64], i: usize) -> E {
        E::loaded(word::load::<R>(&cells[i]), self.position(i))
    }
    /// The entry `n` places further on.
    #[inline(always)]
    fn step<E: Entry>(self, e: E, n: usize) -> E {
        e.advance((n as u64) << self.order, self.level)
    }
    /// The entry `n` places before.
    #[inline(always)]
    fn back<E: Entry>(self, e: E, n: usize) -> E {
        e.advance(((n as u64) << self.order).wrapping_neg(), self.level)
    }
}

/// How entries of a block are compared: in everything but accessed and dirty.
const EXACT: u8 = respect::WRITE | respect::SOFT_DIRTY;

/// What must be equal in a block: everything but accessed and dirty.
#[inline(always)]
fn key<E: ContEntry>(e: E) -> E {
    e.mkclean().mkold()
}

/// What hardware may report in any entry of a block.
#[derive(Clone, Copy, Default)]
struct History {
    young: bool,
    dirty: bool,
}

impl History {
    #[inline(always)]
    fn add<E: Entry>(&mut self, e: E) {
        self.young |= e.is_young();
        self.dirty |= e.is_dirty();
    }
    /// Whether no entry can tell more.
    #[inline(always)]
    fn is_full(self) -> bool {
        self.young && self.dirty
    }
    /// `e` with it. Dirt ends up in one form, whichever entry of a block is asked.
    #[inline(always)]
    fn put_into<E: ContEntry>(self, e: E) -> E {
        let mut e = e;
        if self.dirty {
            // Not `mkdirty`: gathering must not invent soft-dirty.
            let soft = e.is_soft_dirty();
            e = e.mkdirty();
            if !soft {
                e = e.clear_soft_dirty();
            }
        }
        if self.young { e.mkyoung() } else { e }
    }
}

/// `into` with accessed and dirty of `from`.
#[inline(always)]
fn gather<E: ContEntry>(into: E, from: E) -> E {
    let mut history = History::default();
    history.add(from);
    history.put_into(into)
}

/// Zero if `x` is `want`, but for accessed and dirty: what a lockless reader asks of an
/// entry, in frame, bits and mark, before it believes what that tells.
#[inline(always)]
fn differs<E: ContEntry>(x: E, want: E) -> u64 {
    if mutant!("cont.read.no_check") {
        return 0;
    }
    if mutant!("cont.read.frame_only") && x.is_valid() {
        return x.pfn(Level::Pte).get() ^ want.pfn(Level::Pte).get();
    }
    let x = if mutant!("cont.read.any_mark") && x.is_valid() { x.with_cont(true) } else { x };
    match E::stride(EXACT) {
        Some((_, ignore)) => (x.raw() ^ want.raw()) & !ignore,
        None => u64::from(key(x) != key(want)),
    }
}

/// Reads entry `i`, with the accessed and dirty state of its block. Looks no further if it
/// says both itself.
#[inline]
pub fn read<E: ContEntry, R: Right>(cells: &[AtomicU64], i: usize, b: Blocks) -> E {
    let mut kept = History::default();
    loop {
        let e: E = b.load::<E, R>(cells, i);
        if !e.is_cont() {
            return e;
        }
        let mut history = History::default();
        if mutant!("cont.read.keep_gathered") {
            history = kept;
        }
        history.add(e);
        if history.is_full() || gather_block::<E, R>(cells, i, e, b, &mut history) {
            return history.put_into(e);
        }
        kept = history;
        hint::spin_loop();
    }
}

/// Adds what the block of entry `i`, read as `e`, tells; false if an entry of it was met
/// that does not belong to the block that `e` was in.
#[inline(always)]
fn gather_block<E: ContEntry, R: Right>(
    cells: &[AtomicU64],
    i: usize,
    e: E,
    b: Blocks,
    history: &mut History,
) -> bool {
    let mut want = b.back(e, b.position(i));
    let mut diff = 0;
    for (k, cell) in cells[b.base(i)..][..b.nr].iter().enumerate() {
        let x = E::loaded(word::load::<R>(cell), k);
        // With the lock held the block cannot change under us.
        if !R::LOCKED {
            diff |= differs(x, want);
            want = match E::stride(EXACT) {
                Some((step, _)) => E::from_raw(want.raw().wrapping_add(step << b.order)),
                None => b.step(want, 1),
            };
        }
        if !mutant!("cont.read.no_gather") {
            history.add(x);
        }
    }
    diff == 0
}

/// Entries from `i` to the end of its block, 1 if it is not folded (CONT-16).
#[inline(always)]
pub fn hint<E: ContEntry>(i: usize, e: E, b: Blocks) -> usize {
    if e.is_cont() { b.nr - b.position(i) } else { 1 }
}

/// Folds or unfolds the block of the entry at `at` (CONT-05).
fn convert<E: ContEntry, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    b: Blocks,
    fold: bool,
    tlb: &SpaceTlb<'_, T>,
) {
    let base = b.base(at.index);
    let block = &cells[base..base + b.nr];
    let first = key(b.load::<E, Held>(cells, base)).with_cont(fold);
    let mut history = first;
    for (k, cell) in block.iter().enumerate() {
        let old = if mutant!("cont.convert.no_break") {
            cell.load(Ordering::Relaxed)
        } else {
            word::take::<crate::Live>(cell)
        };
        if !mutant!("cont.convert.lose_young_dirty") {
            history = gather(history, E::loaded(old, k));
        }
    }
    let start = at.va.align_down(b.shift + b.nr.trailing_zeros());
    if let Ok(range) = VirtRange::units(start, b.nr as u64, b.shift) {
        tlb.flush(range, FlushScope::Leaves);
    }
    for (k, cell) in block.iter().enumerate() {
        word::store(cell, b.step(history, k).stored());
    }
}

/// Unfolds the blocks that `n` entries at `at` cover only in part (CONT-08).
pub fn unfold_partial<E: ContEntry, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    n: usize,
    b: Blocks,
    tlb: &SpaceTlb<'_, T>,
) {
    let is_folded = |i: usize| b.load::<E, Held>(cells, i).is_cont();
    let last = at.index + n - 1;
    if (b.position(at.index) != 0 || n < b.nr) && is_folded(at.index) {
        convert::<E, T>(cells, at, b, false, tlb);
    }
    if b.position(last + 1) != 0 && is_folded(last) {
        let at = At { va: at.va.add_units((n - 1) as u64, b.shift), index: last };
        convert::<E, T>(cells, at, b, false, tlb);
    }
}

/// Folds the block whose last entry is at `at`, if all its entries allow it (CONT-03,
/// CONT-04); whether it did. Anywhere else in a block it does nothing: a block that is
/// written entry by entry is looked at once.
///
/// The caller knows that the pages of the block belong to one folio.
pub fn fold<E: ContEntry, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    b: Blocks,
    tlb: &SpaceTlb<'_, T>,
) -> bool {
    if b.position(at.index + 1) != 0 {
        return false;
    }
    let base = b.base(at.index);
    let first: E = b.load::<E, Held>(cells, base);
    let order = b.order + b.nr.trailing_zeros();
    let folds = first.is_valid()
        && !first.is_cont()
        && !first.is_special()
        && first.pfn(b.level).is_aligned(order)
        && (1..b.nr).all(|k| key(b.load::<E, Held>(cells, base + k)) == b.step(key(first), k));
    if folds {
        convert::<E, T>(cells, at, b, true, tlb);
    }
    folds
}

/// Writes `n` entries over empty ones; whole aligned blocks are folded (CONT-02).
pub fn fill<E: ContEntry>(cells: &[AtomicU64], i: usize, n: usize, e: E, b: Blocks) {
    let e = e.with_cont(false);
    // What hardware does not follow, or has no folio, stays plain.
    let folds = e.is_valid() && !e.is_special();
    let frame = (e.pfn(b.level).get() >> b.order) as usize;
    let aligned = folds && b.position(i) == b.position(frame);
    for (k, cell) in cells[i..i + n].iter().enumerate() {
        let base = b.base(i + k);
        let whole = aligned && base >= i && base + b.nr <= i + n;
        word::store(cell, b.step(e, k).with_cont(whole).stored());
    }
}

/// Replaces one entry; its block is unfolded (CONT-02, CONT-07).
pub fn set<E: ContEntry, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    e: E,
    b: Blocks,
    tlb: &SpaceTlb<'_, T>,
) {
    unfold_partial::<E, T>(cells, at, 1, b, tlb);
    word::store(&cells[at.index], e.with_cont(false).stored());
}

/// Empties `n` entries (CONT-18).
pub fn take<E: ContEntry, L: Liveness, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    n: usize,
    b: Blocks,
    tlb: &SpaceTlb<'_, T>,
    mut each: impl FnMut(usize, E),
) {
    if !mutant!("cont.take.no_unfold") {
        unfold_partial::<E, T>(cells, at, n, b, tlb);
    }
    let take = |i: usize| E::loaded(word::take::<L>(&cells[i]), b.position(i));
    let mut k = 0;
    while k < n {
        let e = take(at.index + k);
        if e.is_cont() && k + b.nr <= n {
            // A whole block: accessed and dirty may be in any entry, so every
            // entry handed out carries those of the block.
            let mut history = e;
            for j in 1..b.nr {
                history = gather(history, take(at.index + k + j));
            }
            for j in 0..b.nr {
                each(k + j, b.step(history.with_cont(false), j));
            }
            k += b.nr;
        } else {
            each(k, e.with_cont(false));
            k += 1;
        }
    }
}

/// Changes one entry in place, atomically against the hardware; whether it changed.
#[inline]
fn change<E: ContEntry>(
    cells: &[AtomicU64],
    i: usize,
    b: Blocks,
    f: impl Fn(E) -> Option<E>,
) -> bool {
    let position = b.position(i);
    word::update(&cells[i], |raw| {
        f(E::loaded(raw, position)).map(E::stored).filter(|new| *new != raw)
    })
    .is_ok()
}

/// Write-protects `n` present entries, whole blocks in place (CONT-14).
pub fn wrprotect<E: ContEntry, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    n: usize,
    b: Blocks,
    tlb: &SpaceTlb<'_, T>,
) {
    if !mutant!("cont.wrprotect.no_unfold") {
        unfold_partial::<E, T>(cells, at, n, b, tlb);
    }
    for i in at.index..at.index + n {
        change(cells, i, b, |e: E| Some(e.wrprotect()));
    }
}

/// Clears young in `n` present entries and in the rest of the blocks at both ends: age
/// is kept per folio and a block lies in one, so none is unfolded for it (CONT-12).
pub fn clear_young<E: ContEntry>(cells: &[AtomicU64], i: usize, n: usize, b: Blocks) -> bool {
    let folded = |i: usize| b.load::<E, Held>(cells, i).is_cont();
    let last = i + n - 1;
    let first = if folded(i) { b.base(i) } else { i };
    let end = if folded(last) { b.base(last) + b.nr } else { last + 1 };
    let mut any = false;
    for i in first..end {
        any |= change(cells, i, b, |e: E| e.is_young().then(|| e.mkold()));
    }
    any
}

/// Makes an entry more permissive; whether anything changed (CONT-15).
///
/// Accessed and dirty go to the whole block. They are compared with each cell: a
/// gathered view would hide a stale one from walkers, and fault forever. A write
/// permission that the block does not have unfolds it.
pub fn set_access_flags<E: ContEntry, T: Tlb + ?Sized>(
    cells: &[AtomicU64],
    at: At,
    e: E,
    b: Blocks,
    tlb: &SpaceTlb<'_, T>,
) -> bool {
    let old: E = b.load::<E, Held>(cells, at.index);
    let mut range = at.index..at.index + 1;
    if old.is_cont() {
        if e.is_writable(b.level) && !old.is_writable(b.level) {
            unfold_partial::<E, T>(cells, at, 1, b, tlb);
        } else {
            let base = b.base(at.index);
            range = base..base + b.nr;
        }
    }
    let mut changed = false;
    for i in range {
        changed |= change(cells, i, b, |old: E| Some(old.widened(e)));
    }
    changed
}

/// What the hardware does for an access through entry `i`: in any case to this entry,
/// which is one of those that it may choose (A64-11).
pub fn mmu_mark<E: ContEntry>(
    cells: &[AtomicU64],
    i: usize,
    kind: AccessKind,
    level: Level,
    b: Blocks,
) -> bool {
    let position = b.position(i);
    word::update(&cells[i], |raw| E::loaded(raw, position).marked(kind, level).map(E::stored))
        .is_ok()
}

/// Length of the run at `i` (BATCH-06).
#[inline]
pub fn scan<E: ContEntry, R: Right, const MODE: u8>(
    cells: &[AtomicU64],
    i: usize,
    head: E,
    max: usize,
    b: Blocks,
) -> Batch {
    let cell: E = b.load::<E, R>(cells, i);
    // The copy the caller holds may have lost the mark; take it from memory,
    // but only a block that is still the head's. The mark is compared like any
    // other bit, so a run is all blocks or all plain (CONT-17).
    let cell = if mutant!("cont.scan.trust_head") { head } else { cell };
    let folded = cell.is_cont() && key(cell).with_cont(false) == key(head).with_cont(false);
    let head = head.with_cont(folded);
    let batch = if folded {
        scan_blocks::<E, R, MODE>(cells, i, head, max, b)
    } else {
        scan_plain::<E, MODE>(cells, i, head, max, b)
    };
    word::scan_fence::<R>();
    batch
}

/// The facts of `e`, added to those of a run.
#[inline(always)]
fn merge<E: Entry, const MODE: u8>(batch: &mut Batch, e: E, level: Level) {
    batch.any_writable |= MODE & respect::MERGE_WRITE != 0 && e.is_writable(level);
    batch.any_young |= MODE & respect::MERGE_YOUNG_DIRTY != 0 && e.is_young();
    batch.any_dirty |= MODE & respect::MERGE_YOUNG_DIRTY != 0 && e.is_dirty();
}

const EMPTY: Batch =
    Batch { nr: 1, looks: 1, any_writable: false, any_young: false, any_dirty: false };

/// One load per block. Its others are read only where dirty counts, or as long as accessed
/// and dirty of the run are not known.
#[inline(always)]
fn scan_blocks<E: ContEntry, R: Right, const MODE: u8>(
    cells: &[AtomicU64],
    i: usize,
    head: E,
    max: usize,
    b: Blocks,
) -> Batch {
    let mut batch = EMPTY;
    merge::<E, MODE>(&mut batch, head, b.level);
    let mut nr = hint(i, head, b);
    if let Some((step, ignore)) = E::stride(MODE)
        && MODE & (respect::DIRTY | respect::MERGE_YOUNG_DIRTY | respect::MERGE_WRITE) == 0
    {
        // The mark is compared like any other bit.
        let mut expected = b.step(head, nr).stored();
        for cell in cells[i..][..max].iter().skip(nr).step_by(b.nr) {
            if (word::load::<R>(cell) ^ expected) & !ignore != 0 {
                break;
            }
            expected = expected.wrapping_add(step << b.order << b.nr.trailing_zeros());
            batch.looks += 1;
            nr += b.nr;
        }
    } else {
        let mut expected = b.step(head.normalise::<MODE>(), nr);
        while nr < max {
            let known = batch.any_young && batch.any_dirty;
            let counts = MODE & respect::MERGE_YOUNG_DIRTY != 0 && !known;
            let e: E = if MODE & respect::DIRTY != 0 || counts {
                read::<E, R>(cells, i + nr, b)
            } else {
                b.load::<E, R>(cells, i + nr)
            };
            if !e.is_cont() || e.normalise::<MODE>() != expected {
                break;
            }
            merge::<E, MODE>(&mut batch, e, b.level);
            expected = b.step(expected, b.nr);
            batch.looks += 1;
            nr += b.nr;
        }
    }
    batch.nr = nr.min(max);
    batch
}

#[inline(always)]
fn scan_plain<E: ContEntry, const MODE: u8>(
    cells: &[AtomicU64],
    i: usize,
    head: E,
    max: usize,
    b: Blocks,
) -> Batch {
    let mut batch = EMPTY;
    let load = |k: usize| E::loaded(cells[i + k].load(Ordering::Relaxed), b.position(i + k));
    batch.nr = match E::stride(MODE) {
        Some((step, ignore)) => word::scan(&cells[i..i + max], head.stored(), step, ignore),
        None => {
            let expected = head.normalise::<MODE>();
            let same = |k: &usize| load(*k).normalise::<MODE>() == b.step(expected, *k);
            1 + (1..max).take_while(same).count()
        }
    };
    batch.looks = batch.nr;
    if MODE & (respect::MERGE_WRITE | respect::MERGE_YOUNG_DIRTY) != 0 {
        // The head's facts are those of the caller's copy (rule BATCH-08).
        merge::<E, MODE>(&mut batch, head, b.level);
        (1..batch.nr).for_each(|k| merge::<E, MODE>(&mut batch, load(k), b.level));
    }
    batch
}

/// Changes an upper-level leaf in place, atomically; whether it changed.
pub fn change_upper<E: Entry>(cell: &AtomicU64, f: impl Fn(E) -> E) -> bool {
    word::update(cell, |raw| Some(f(E::from_raw(raw)).raw()).filter(|new| *new != raw)).is_ok()
}

/// The table operations of [`Arch`](crate::Arch), for a format with blocks: `$blocks` says
/// which, `$words` are the words of `$table`.
///
/// Leaves the geometry and `new_table` to the format.
#[macro_export]
macro_rules! block_operations {
    ($blocks:expr, |$table:ident| $words:expr) => {
        #[inline(always)]
        fn read<R: $crate::Right>($table: &Self::Table, index: usize) -> Self::Entry {
            $crate::cont::read::<Self::Entry, R>($words, index, $blocks)
        }
        #[inline(always)]
        fn read_upper<R: $crate::Right>($table: &Self::Table, index: usize) -> Self::Entry {
            $crate::Entry::from_raw($crate::word::load::<R>(&$words[index]))
        }
        #[inline(always)]
        fn scan<R: $crate::Right, const MODE: u8>(
            $table: &Self::Table,
            index: usize,
            head: Self::Entry,
            max: usize,
        ) -> $crate::Batch {
            $crate::cont::scan::<Self::Entry, R, MODE>($words, index, head, max, $blocks)
        }
        #[inline]
        fn fill($table: &Self::Table, index: usize, n: usize, e: Self::Entry) {
            $crate::cont::fill::<Self::Entry>($words, index, n, e, $blocks);
        }
        #[inline]
        fn set<T: $crate::Tlb + ?Sized>(
            $table: &Self::Table,
            at: $crate::At,
            e: Self::Entry,
            tlb: &$crate::SpaceTlb<'_, T>,
        ) {
            $crate::cont::set::<Self::Entry, T>($words, at, e, $blocks, tlb);
        }
        #[inline]
        fn fold<T: $crate::Tlb + ?Sized>(
            $table: &Self::Table,
            at: $crate::At,
            tlb: &$crate::SpaceTlb<'_, T>,
        ) -> bool {
            $crate::cont::fold::<Self::Entry, T>($words, at, $blocks, tlb)
        }
        #[inline]
        fn take<L: $crate::Liveness, T: $crate::Tlb + ?Sized>(
            $table: &Self::Table,
            at: $crate::At,
            n: usize,
            tlb: &$crate::SpaceTlb<'_, T>,
            each: impl FnMut(usize, Self::Entry),
        ) {
            $crate::cont::take::<Self::Entry, L, T>($words, at, n, $blocks, tlb, each);
        }
        #[inline]
        fn wrprotect<T: $crate::Tlb + ?Sized>(
            $table: &Self::Table,
            at: $crate::At,
            n: usize,
            tlb: &$crate::SpaceTlb<'_, T>,
        ) {
            $crate::cont::wrprotect::<Self::Entry, T>($words, at, n, $blocks, tlb);
        }
        #[inline]
        fn clear_young<T: $crate::Tlb + ?Sized>(
            $table: &Self::Table,
            at: $crate::At,
            n: usize,
            _: &$crate::SpaceTlb<'_, T>,
        ) -> bool {
            $crate::cont::clear_young::<Self::Entry>($words, at.index, n, $blocks)
        }
        #[inline]
        fn set_access_flags<T: $crate::Tlb + ?Sized>(
            $table: &Self::Table,
            at: $crate::At,
            e: Self::Entry,
            tlb: &$crate::SpaceTlb<'_, T>,
        ) -> bool {
            $crate::cont::set_access_flags::<Self::Entry, T>($words, at, e, $blocks, tlb)
        }
        #[inline]
        fn swap_upper($table: &Self::Table, index: usize, e: Self::Entry) -> Self::Entry {
            let raw = $crate::Entry::raw(e);
            $crate::Entry::from_raw($crate::cell::Cell::replace(&$words[index], raw))
        }
        #[inline]
        fn wrprotect_upper($table: &Self::Table, index: usize) {
            $crate::cont::change_upper::<Self::Entry>(&$words[index], $crate::Entry::wrprotect);
        }
        #[inline]
        fn set_access_flags_upper($table: &Self::Table, index: usize, e: Self::Entry) -> bool {
            $crate::cont::change_upper::<Self::Entry>(&$words[index], |old| {
                $crate::cont::ContEntry::widened(old, e)
            })
        }
        fn mmu_mark(
            $table: &Self::Table,
            index: usize,
            kind: $crate::AccessKind,
            level: $crate::Level,
        ) -> bool {
            $crate::cont::mmu_mark::<Self::Entry>($words, index, kind, level, $blocks)
        }
    };
}
