//! Tables in memory: the same operations for every x86 mode.

use crate::bits::{ACCESSED, DIRTY, FRAME_STEP, WRITE};
use crate::layout::Layout;
use crate::prot::X86Prot;
use crate::saved_dirty;
use crate::value::{X86Value, step};
use core::fmt;
use core::marker::PhantomData;
use mm_arch::cell::Cell;
use mm_arch::table::Frame4K;
use mm_arch::{
    AccessKind, Arch, At, Batch, Entry, Held, Level, Live, Liveness, Protection, Right, SpaceTlb,
    Tlb, respect, word,
};

/// A mode of the MMU: where its levels are, what its entries are made of.
pub trait Mode: Copy + fmt::Debug + Send + Sync + 'static {
    /// Its bits.
    type Layout: Layout;
    /// The memory of one entry.
    type Cell: Cell;

    /// Name on command lines.
    const NAME: &'static str;
    /// Levels, root first.
    const LEVELS: &'static [Level];
    /// First address that is no user address.
    const USER_END: u64;
    /// Whether the root's entries are loaded with the root (rule PAE-05).
    const CACHES_ROOT: bool;
    /// Smallest order of a folio with a pin count of its own (rule PIN-02).
    const PINCOUNT_MIN_ORDER: u32;

    /// Log2 of the memory that an entry of `level` maps. A level that the mode lacks
    /// is folded into the one below.
    fn shift(level: Level) -> u32;
    /// Entries of a table of `level`.
    fn nr_entries(level: Level) -> usize;
    /// Empties cells of a live table in ascending order, as [`Cell::take`] does, and hands the
    /// old values to `each`.
    #[inline(always)]
    fn take_live(cells: &[Self::Cell], mut each: impl FnMut(u64)) {
        for cell in cells {
            each(cell.take::<Live>());
        }
    }
    /// Empties cells of a live table in ascending order, as [`Cell::take`] does but for what
    /// [`Expected`] allows, while they hold what is expected; how many. `each` gets the old values
    /// that are not a step from the one before, the first if it is not the one expected, and
    /// maybe the neighbour of one.
    #[inline(always)]
    fn take_live_while(
        cells: &[Self::Cell],
        mut expected: Expected,
        mut each: impl FnMut(u64),
    ) -> usize {
        let mut next = |cell: &&Self::Cell| {
            if (cell.read::<Held>() ^ expected.next) & !expected.ignore != 0 {
                return false;
            }
            let old = cell.take::<Live>();
            if old != expected.next {
                each(old);
            }
            expected.next = old.wrapping_add(expected.step);
            true
        };
        cells.iter().take_while(|cell| next(cell)).count()
    }
}

/// What cells hold that are emptied one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The next one, if it is a step from the one before.
    pub next: u64,
    /// One step.
    pub step: u64,
    /// Bits in which they may differ: hardware may set them in cells that are still there, and
    /// others only.
    pub ignore: u64,
    /// Bits of which a cell has one if hardware may set in it what must not be lost.
    pub updated: u64,
}

/// Entries of a table.
pub(crate) const ENTRIES: usize = 512;

/// A table of cells `C`: one frame.
pub type Table<C> = mm_arch::table::Table<C, ENTRIES, Frame4K>;

/// The entry format of mode `M`.
#[derive(Clone, Copy, Debug)]
pub struct Paging<M: Mode>(PhantomData<M>);

/// Bits that a scan under `mode` does not compare, given its first entry.
///
/// Without [`respect::DIRTY`], D is ignored as history. But where writability
/// counts and the run is not writable by RW, D *is* the writability on a CPU with
/// shadow stacks: it stays, and only SavedDirty is ignored. So shadow-stack and
/// plain read-only entries part exactly where they meet, and clean and saved-dirty
/// ones do not part (rules BATCH-19, BATCH-21).
#[inline(always)]
const fn ignored<L: Layout>(mode: u8, head: u64) -> u64 {
    let mut ignore = ACCESSED;
    if mode & respect::SOFT_DIRTY == 0 {
        ignore |= L::SOFT_DIRTY;
    }
    if mode & respect::WRITE == 0 {
        ignore |= WRITE;
    }
    if mode & respect::DIRTY == 0 {
        ignore |= saved_dirty::any_dirty::<L>();
        if L::SHSTK && mode & respect::WRITE != 0 && head & WRITE == 0 {
            ignore &= !DIRTY;
        }
    }
    ignore
}

impl<M: Mode> Paging<M> {
    /// The scan where dirty counts and write does not: an entry's dirty is D or
    /// SavedDirty, whichever its write permission asks for, so no mask does and
    /// every entry is normalised.
    #[inline]
    fn scan_normalised<R: Right, const MODE: u8>(
        cells: &[M::Cell],
        head: X86Value<M::Layout>,
    ) -> usize {
        let mut expected = head.normalise::<MODE>();
        let mut nr = 1;
        for cell in cells.iter().skip(1) {
            expected = expected.advance(1, Level::Pte);
            let e = X86Value::<M::Layout>::from_bits(cell.read::<R>());
            if e.normalise::<MODE>() != expected {
                break;
            }
            nr += 1;
        }
        nr
    }
}

// SAFETY: entries are stored as they are, and only `Entry::table` makes one that points to
// a table (checked by the laws of formats).
unsafe impl<M: Mode> Arch for Paging<M> {
    type Entry = X86Value<M::Layout>;
    type Table = Table<M::Cell>;

    const NAME: &'static str = M::NAME;
    const PAGE_SHIFT: u32 = 12;
    const LEVELS: &'static [Level] = M::LEVELS;
    const USER_END: u64 = M::USER_END;
    const CONT: usize = 1;
    const WORDS: usize = M::Cell::WORDS;
    const CACHES_ROOT: bool = M::CACHES_ROOT;
    const WRITE_SURVIVES_MKCLEAN: bool = !M::Layout::SHSTK;
    const HAS_SHADOW_STACK: bool = M::Layout::SHSTK;
    const HAS_SOFT_DIRTY: bool = M::Layout::SOFT_DIRTY != 0;
    const HAS_UFFD_WP: bool = M::Layout::UFFD_WP != 0;
    const PINCOUNT_MIN_ORDER: u32 = M::PINCOUNT_MIN_ORDER;

    #[inline(always)]
    fn shift(level: Level) -> u32 {
        M::shift(level)
    }
    #[inline(always)]
    fn nr_entries(level: Level) -> usize {
        M::nr_entries(level)
    }
    #[inline]
    fn prot(protection: Protection) -> X86Prot {
        X86Prot::new::<M::Layout>(protection)
    }

    fn new_table() -> Self::Table {
        Table::empty()
    }

    #[inline(always)]
    fn read<R: Right>(table: &Self::Table, index: usize) -> Self::Entry {
        X86Value::from_bits(table[index].read::<R>())
    }
    #[inline(always)]
    fn read_upper<R: Right>(table: &Self::Table, index: usize) -> Self::Entry {
        X86Value::from_bits(table[index].read::<R>())
    }

    /// One mask is chosen from the head and the mode, then entries are compared
    /// raw, eight loads to a branch; see `ignored` in the source.
    #[inline(always)]
    fn scan<R: Right, const MODE: u8>(
        table: &Self::Table,
        index: usize,
        head: Self::Entry,
        max: usize,
    ) -> Batch {
        let cells = &table[index..][..max];
        let nr = if MODE & (respect::DIRTY | respect::WRITE) == respect::DIRTY {
            Self::scan_normalised::<R, MODE>(cells, head)
        } else {
            let ignore = ignored::<M::Layout>(MODE, head.bits());
            // Two loops, each with a step that the compiler knows.
            if step(head.bits()) == FRAME_STEP {
                M::Cell::scan::<R>(cells, head.bits(), FRAME_STEP, ignore)
            } else {
                M::Cell::scan::<R>(cells, head.bits(), FRAME_STEP.wrapping_neg(), ignore)
            }
        };
        let mut batch =
            Batch { nr, looks: nr, any_writable: false, any_young: false, any_dirty: false };
        if MODE & (respect::MERGE_WRITE | respect::MERGE_YOUNG_DIRTY) != 0 {
            // The head's facts are those of the caller's copy (rule BATCH-08).
            let rest = cells[1..nr].iter().map(|c| Self::Entry::from_bits(c.read::<Held>()));
            for e in core::iter::once(head).chain(rest) {
                batch.any_writable |= MODE & respect::MERGE_WRITE != 0 && e.is_writable(Level::Pte);
                batch.any_young |= MODE & respect::MERGE_YOUNG_DIRTY != 0 && e.is_young();
                batch.any_dirty |= MODE & respect::MERGE_YOUNG_DIRTY != 0 && e.is_dirty();
            }
        }
        word::scan_fence::<R>();
        batch
    }

    #[inline]
    fn fill(table: &Self::Table, index: usize, n: usize, e: Self::Entry) {
        let step = step(e.bits());
        let mut raw = e.bits();
        for cell in &table[index..index + n] {
            cell.write(raw);
            raw = raw.wrapping_add(step);
        }
    }
    #[inline]
    fn set<T: Tlb + ?Sized>(table: &Self::Table, at: At, e: Self::Entry, _: &SpaceTlb<'_, T>) {
        table[at.index].write(e.bits());
    }
    #[inline]
    fn take<L: Liveness, T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        n: usize,
        _: &SpaceTlb<'_, T>,
        mut each: impl FnMut(usize, Self::Entry),
    ) {
        let cells = &table[at.index..at.index + n];
        if L::LIVE {
            let mut k = 0;
            return M::take_live(cells, |raw| {
                each(k, X86Value::from_bits(raw));
                k += 1;
            });
        }
        for (k, cell) in cells.iter().enumerate() {
            each(k, X86Value::from_bits(cell.take::<L>()));
        }
    }
    #[inline]
    fn take_run<T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        n: usize,
        _: &SpaceTlb<'_, T>,
        mut each: impl FnMut(Self::Entry),
    ) -> Self::Entry {
        let cells = &table[at.index..at.index + n];
        if let [cell] = cells {
            let only = X86Value::from_bits(cell.take::<Live>());
            each(only);
            return only;
        }
        // What hardware still adds to it is handed on as a difference.
        let first = X86Value::from_bits(cells[0].read::<Held>());
        each(first);
        let (raw, other) = (first.bits(), |raw| each(X86Value::from_bits(raw)));
        // They may come back, as young as they were.
        let expected = Expected { next: raw, step: step(raw), ignore: !0, updated: !0 };
        M::take_live_while(cells, expected, other);
        first
    }
    /// Each entry is compared and emptied in one step, where hardware may mark it dirty: a CPU
    /// with shadow stacks does that to no entry that is not writable, others may when
    /// write permission has just been taken away (rule PTE-18).
    #[inline(always)]
    fn take_while<const MODE: u8, T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        head: Self::Entry,
        max: usize,
        _: &SpaceTlb<'_, T>,
        mut each: impl FnMut(Self::Entry),
    ) -> usize {
        let (raw, cells) = (head.bits(), &table[at.index..][..max]);
        let ignore = ignored::<M::Layout>(MODE, raw);
        let updated = if M::Layout::SHSTK { WRITE } else { !0 };
        let expected = Expected { next: raw, step: step(raw), ignore, updated };
        M::take_live_while(cells, expected, |raw| each(X86Value::from_bits(raw)))
    }
    #[inline]
    fn wrprotect<T: Tlb + ?Sized>(table: &Self::Table, at: At, n: usize, _: &SpaceTlb<'_, T>) {
        for cell in &table[at.index..at.index + n] {
            wrprotect_cell::<M>(cell);
        }
    }
    #[inline]
    fn clear_young<T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        n: usize,
        _: &SpaceTlb<'_, T>,
    ) -> bool {
        let mut any = false;
        for cell in &table[at.index..at.index + n] {
            // A stale translation only delays the next aging: no flush (rule ACC-13).
            let old = |raw: u64| (raw & ACCESSED != 0).then_some(raw & !ACCESSED);
            any |= cell.change(old).is_ok();
        }
        any
    }
    #[inline]
    fn set_access_flags<T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        e: Self::Entry,
        _: &SpaceTlb<'_, T>,
    ) -> bool {
        widen_cell::<M>(&table[at.index], e)
    }

    #[inline]
    fn swap_upper(table: &Self::Table, index: usize, e: Self::Entry) -> Self::Entry {
        X86Value::from_bits(table[index].replace(e.bits()))
    }
    #[inline]
    fn wrprotect_upper(table: &Self::Table, index: usize) {
        wrprotect_cell::<M>(&table[index]);
    }
    #[inline]
    fn set_access_flags_upper(table: &Self::Table, index: usize, e: Self::Entry) -> bool {
        widen_cell::<M>(&table[index], e)
    }

    fn mmu_mark(table: &Self::Table, index: usize, kind: AccessKind, level: Level) -> bool {
        table[index]
            .change(|raw| Self::Entry::from_bits(raw).marked(kind, level).map(|e| e.bits()))
            .is_ok()
    }
}

/// By exchange: a store that sets D between a read and a write here would either
/// be lost or make a shadow-stack entry (rule SHSTK-08).
#[inline(always)]
fn wrprotect_cell<M: Mode>(cell: &M::Cell) {
    let _ = cell.change(|raw| {
        let new = saved_dirty::wrprotect::<M::Layout>(raw);
        (new != raw).then_some(new)
    });
}

#[inline(always)]
fn widen_cell<M: Mode>(cell: &M::Cell, e: X86Value<M::Layout>) -> bool {
    cell.change(|raw| {
        let new = X86Value::<M::Layout>::from_bits(raw).widened(e).bits();
        (new != raw).then_some(new)
    })
    .is_ok()
}
