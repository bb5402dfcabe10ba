//! Four-level paging: the entry as a value, and its tables.

use crate::bits::{
    ACCESSED, DIRTY, FRAME, FRAME_STEP, GLOBAL, NO_EXECUTE, PAGE_SIZE, PCD, PKEY, PRESENT,
    PROT_NONE, PWT, SAVED_DIRTY, SOFT_DIRTY, SPECIAL, TABLE, UFFD_WP, USER, WRITE,
};
use crate::prot::X86Prot;
use crate::{nonpresent, saved_dirty};
use mm_arch::{
    AccessKind, Arch, At, Batch, EncodeError, Entry, Level, Liveness, Pfn, Protection, Right,
    SpaceTlb, SwapBits, TableFrame, Tlb, TypeOffset, WriteKind, respect, word,
};
use mm_sync::atomic::{AtomicU64, Ordering};
use mm_sync::ord;

/// A 64-bit entry. `SHSTK`: whether the CPU has shadow stacks.
///
/// Every raw value is allowed and no operation panics on one (but see
/// [`leaf`](Entry::leaf)).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LongEntry<const SHSTK: bool>(u64);

/// An entry of [`X86_64`].
pub type X86Entry = LongEntry<true>;

/// What [`modify`](Entry::modify) keeps (rules PTE-16, PTE-21). Bit 7 is PAT in a
/// small leaf and the leaf mark in a large one, bit 12 frame or PAT: both are kept
/// at every level.
const KEPT: u64 =
    FRAME | PWT | PCD | PAGE_SIZE | SPECIAL | ACCESSED | DIRTY | SAVED_DIRTY | SOFT_DIRTY | UFFD_WP;

/// Flags whose change in either direction a translation cache may have seen
/// (rule PTE-17). The whole frame field: it holds PAT of large leaves too.
const CACHED: u64 = FRAME | WRITE | USER | PWT | PCD | PAGE_SIZE | GLOBAL | PKEY | NO_EXECUTE;

/// Frame bits of a leaf of `level` (rule PTE-04).
#[inline(always)]
const fn frame_mask(level: Level) -> u64 {
    FRAME & !((1 << level_shift(level)) - 1)
}

#[inline(always)]
const fn level_shift(level: Level) -> u32 {
    match level {
        Level::Pte => 12,
        Level::Pmd => 21,
        Level::Pud => 30,
        // P4D is folded into the root (rule PTE-01).
        Level::P4d | Level::Pgd => 39,
    }
}

/// Frames are stored as their complement where hardware does not follow the
/// entry; the empty entry is empty (rule PTE-08).
#[inline(always)]
const fn is_inverted(raw: u64) -> bool {
    raw != 0 && raw & PRESENT == 0
}

/// `raw` with its frame stored as its other bits demand, if it was stored as
/// those of `old` demanded.
#[inline(always)]
const fn reinvert(old: u64, raw: u64, level: Level) -> u64 {
    if is_inverted(old) != is_inverted(raw) { raw ^ frame_mask(level) } else { raw }
}

/// Added to the raw value per frame (rule PTE-09).
#[inline(always)]
const fn step(raw: u64) -> u64 {
    if is_inverted(raw) { FRAME_STEP.wrapping_neg() } else { FRAME_STEP }
}

impl<const SHSTK: bool> LongEntry<SHSTK> {
    /// The entry with this raw value.
    #[inline]
    pub const fn from_bits(raw: u64) -> Self {
        LongEntry(raw)
    }
    /// The raw value.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Whether shadow-stack stores, and only they, go through (rule SHSTK-02).
    #[inline]
    pub const fn is_shadow_stack(self, level: Level) -> bool {
        SHSTK
            && saved_dirty::is_shadow_stack(self.0)
            && match level {
                Level::Pte => true,
                Level::Pmd => self.0 & PAGE_SIZE != 0,
                // Hardware knows larger ones, but nothing makes them.
                _ => false,
            }
    }
    #[inline(always)]
    const fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }
    #[inline(always)]
    const fn with(self, bits: u64) -> Self {
        LongEntry(self.0 | bits)
    }
    #[inline(always)]
    const fn without(self, bits: u64) -> Self {
        LongEntry(self.0 & !bits)
    }
    /// What hardware adds for an access; `None` if it does not follow the entry
    /// (rule PTE-18).
    #[inline]
    fn marked(self, kind: AccessKind, level: Level) -> Option<Self> {
        if !self.permits(kind, level) {
            return None;
        }
        let stored = kind == AccessKind::Write && (level == Level::Pte || self.has(PAGE_SIZE));
        Some(self.with(ACCESSED | if stored { DIRTY } else { 0 }))
    }
    /// `self` with accessed, dirty, soft-dirty and write of `e` (rule ACC-17).
    ///
    /// A shadow-stack `e` adds its D, which is its write permission; dirty of an
    /// ordinary read-only `e` is in SavedDirty and grants nothing.
    #[inline]
    const fn widened(self, e: Self) -> Self {
        let added = e.0 & (ACCESSED | DIRTY | SAVED_DIRTY | SOFT_DIRTY | WRITE);
        LongEntry(saved_dirty::restore(self.0 | added))
    }
}

impl<const SHSTK: bool> core::fmt::Debug for LongEntry<SHSTK> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "X86Entry({:#x})", self.0)
    }
}

impl<const SHSTK: bool> Entry for LongEntry<SHSTK> {
    type Prot = X86Prot;
    const NONE: Self = LongEntry(0);
    const SWAP_PFN_BITS: u32 = nonpresent::PFN_BITS;
    const SWAP_YOUNG_DIRTY: bool = true;

    #[inline]
    fn leaf(pfn: Pfn, prot: X86Prot, level: Level) -> Self {
        debug_assert!(
            pfn.is_aligned(level_shift(level) - 12),
            "frame {pfn} does not suit a leaf of {level:?}"
        );
        // Rule SHSTK-07: shadow-stack entries come from `mkwrite` alone.
        debug_assert!(
            !saved_dirty::is_shadow_stack(prot.bits()),
            "template {prot:?} would make shadow stacks"
        );
        let size = if level == Level::Pte { 0 } else { PAGE_SIZE };
        let raw = (pfn.get() << 12 & FRAME) | size | prot.bits();
        LongEntry(reinvert(PRESENT, raw, level))
    }
    #[inline]
    fn table(frame: TableFrame, _: Level) -> Self {
        LongEntry((frame.pfn().get() << 12 & FRAME) | TABLE)
    }

    #[inline]
    fn is_none(self) -> bool {
        // Rule PTE-06: some CPUs set A and D in entries that are empty.
        self.0 & !(ACCESSED | DIRTY) == 0
    }
    #[inline]
    fn is_present(self, level: Level) -> bool {
        // Rule PTE-05: a PMD under split is present by its leaf mark alone.
        self.has(match level {
            Level::Pte => PRESENT | PROT_NONE,
            Level::Pmd => PRESENT | PROT_NONE | PAGE_SIZE,
            _ => PRESENT,
        })
    }
    #[inline]
    fn is_leaf(self, level: Level) -> bool {
        match level {
            Level::Pte => self.is_present(level),
            Level::Pmd => self.has(PAGE_SIZE),
            Level::Pud => self.0 & (PRESENT | PAGE_SIZE) == PRESENT | PAGE_SIZE,
            _ => false,
        }
    }
    #[inline]
    fn as_table(self, level: Level) -> Option<TableFrame> {
        // Rule PTE-13: anything but the table template is bad, leaves included.
        let flags = self.0 & !(FRAME | USER | ACCESSED);
        (level != Level::Pte && flags == TABLE & !(USER | ACCESSED))
            .then(|| TableFrame::new(Pfn::new((self.0 & FRAME) >> 12)))
    }
    #[inline]
    fn is_protnone(self, level: Level) -> bool {
        matches!(level, Level::Pte | Level::Pmd) && self.0 & (PRESENT | PROT_NONE) == PROT_NONE
    }
    #[inline]
    fn pfn(self, level: Level) -> Pfn {
        let mask = frame_mask(level);
        let flip = if is_inverted(self.0) { mask } else { 0 };
        Pfn::new((self.0 & mask ^ flip) >> 12)
    }
    #[inline]
    fn advance(self, nr: u64, _: Level) -> Self {
        LongEntry(self.0.wrapping_add(step(self.0).wrapping_mul(nr)))
    }
    #[inline]
    fn is_writable(self, level: Level) -> bool {
        self.has(WRITE) || self.is_shadow_stack(level)
    }
    #[inline]
    fn permits(self, kind: AccessKind, _: Level) -> bool {
        // Rule PTE-12. RW, not `is_writable`: an ordinary store never goes
        // through a shadow-stack entry.
        let (needed, forbidden) = match kind {
            AccessKind::Read => (PRESENT | USER, 0),
            AccessKind::Write => (PRESENT | USER | WRITE, 0),
            AccessKind::Exec => (PRESENT | USER, NO_EXECUTE),
        };
        self.0 & (needed | forbidden) == needed
    }

    #[inline]
    fn is_young(self) -> bool {
        self.has(ACCESSED)
    }
    #[inline]
    fn is_dirty(self) -> bool {
        self.has(saved_dirty::ANY_DIRTY)
    }
    #[inline]
    fn is_soft_dirty(self) -> bool {
        self.has(SOFT_DIRTY)
    }
    #[inline]
    fn is_uffd_wp(self) -> bool {
        self.has(UFFD_WP)
    }
    #[inline]
    fn is_special(self) -> bool {
        self.has(SPECIAL)
    }

    #[inline]
    fn mkyoung(self) -> Self {
        self.with(ACCESSED)
    }
    #[inline]
    fn mkold(self) -> Self {
        self.without(ACCESSED)
    }
    /// Sets dirty and soft-dirty. On a shadow-stack entry dirty moves to
    /// SavedDirty and *the write permission goes*: make an entry dirty first,
    /// then writable (rule SHSTK-06).
    #[inline]
    fn mkdirty(self) -> Self {
        LongEntry(saved_dirty::save(self.0 | DIRTY | SOFT_DIRTY))
    }
    #[inline]
    fn mkclean(self) -> Self {
        self.without(saved_dirty::ANY_DIRTY)
    }
    #[inline]
    fn mkwrite(self, kind: WriteKind) -> Self {
        match kind {
            WriteKind::Normal => LongEntry(saved_dirty::restore(self.0 | WRITE)),
            WriteKind::ShadowStack => self.without(WRITE).with(DIRTY),
        }
    }
    #[inline]
    fn wrprotect(self) -> Self {
        LongEntry(saved_dirty::wrprotect(self.0))
    }
    #[inline]
    fn mksoft_dirty(self) -> Self {
        self.with(SOFT_DIRTY)
    }
    #[inline]
    fn clear_soft_dirty(self) -> Self {
        self.without(SOFT_DIRTY)
    }
    #[inline]
    fn mkuffd_wp(self) -> Self {
        self.with(UFFD_WP).wrprotect()
    }
    #[inline]
    fn clear_uffd_wp(self) -> Self {
        self.without(UFFD_WP)
    }
    #[inline]
    fn mkspecial(self) -> Self {
        self.with(SPECIAL)
    }
    /// For PMD leaves (rule PTE-20). A PUD without P is not present (PTE-05), and
    /// a PTE would read as a swap entry.
    #[inline]
    fn mkinvalid(self, level: Level) -> Self {
        LongEntry(reinvert(self.0, self.0 & !(PRESENT | PROT_NONE), level))
    }
    #[inline]
    fn modify(self, prot: X86Prot, level: Level) -> Self {
        let merged = reinvert(self.0, self.0 & KEPT | prot.bits() & !KEPT, level);
        // Rule SHSTK-05, by the *old* write permission: a shadow-stack entry
        // stays one under a read-only template.
        LongEntry(if self.has(WRITE) {
            saved_dirty::save(merged)
        } else {
            saved_dirty::restore(merged)
        })
    }

    #[inline]
    fn type_offset(self, level: Level) -> Option<TypeOffset> {
        (!self.is_present(level) && nonpresent::is_swap_form(self.0))
            .then(|| nonpresent::decode(self.0))
    }
    #[inline]
    fn from_type_offset(raw: TypeOffset, bits: SwapBits) -> Result<Self, EncodeError> {
        nonpresent::encode(raw, bits).map(LongEntry)
    }
    #[inline]
    fn swap_bits(self) -> SwapBits {
        nonpresent::flags(self.0)
    }
    #[inline]
    fn with_swap_bits(self, bits: SwapBits) -> Self {
        LongEntry(nonpresent::with_flags(self.0, bits))
    }

    #[inline]
    fn may_be_cached(self, flush_pending: bool, _: Level) -> bool {
        self.has(PRESENT) || (flush_pending && self.has(PROT_NONE))
    }
    #[inline]
    fn needs_flush(self, new: Self, level: Level) -> bool {
        let cleared = self.0 & !new.0;
        let history = if level == Level::Pte { DIRTY } else { DIRTY | ACCESSED };
        self.has(PRESENT) && (cleared & (PRESENT | history) != 0 || (self.0 ^ new.0) & CACHED != 0)
    }
}

/// Entries of a table.
const ENTRIES: usize = 512;

/// A table: one 4 KiB frame, laid out as the hardware reads it.
///
/// A frame of zeros is an empty table, so a kernel may see any frame of its direct
/// map as one, and hand it out from its `TableMemory` (in `mm-pgtable`).
#[repr(C, align(4096))]
pub struct Table([AtomicU64; ENTRIES]);

// A checker's atomics are larger than a word; tables of it are no frames.
const _: () = assert!(size_of::<AtomicU64>() != 8 || size_of::<Table>() == 4096);

impl core::fmt::Debug for Table {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let used = |c: &&AtomicU64| c.load(Ordering::Relaxed) != 0;
        write!(f, "Table({} of {ENTRIES} entries used)", self.0.iter().filter(used).count())
    }
}

/// x86-64 with four levels; see the crate documentation for `SHSTK`.
#[derive(Clone, Copy, Debug)]
pub struct LongMode<const SHSTK: bool>;

/// x86-64 with four levels on a CPU with shadow stacks.
pub type X86_64 = LongMode<true>;
/// x86-64 with four levels on a CPU without shadow stacks.
pub type X86_64NoShstk = LongMode<false>;

/// Bits that a scan under `mode` does not compare, given its first entry.
///
/// Without [`respect::DIRTY`], D is ignored as history. But where writability
/// counts and the run is not writable by RW, D *is* the writability on a CPU with
/// shadow stacks: it stays, and only SavedDirty is ignored. So shadow-stack and
/// plain read-only entries part exactly where they meet, and clean and saved-dirty
/// ones do not part (rules BATCH-19, BATCH-21).
#[inline(always)]
const fn ignored(mode: u8, head: u64, shstk: bool) -> u64 {
    let mut ignore = ACCESSED;
    if mode & respect::SOFT_DIRTY == 0 {
        ignore |= SOFT_DIRTY;
    }
    if mode & respect::WRITE == 0 {
        ignore |= WRITE;
    }
    if mode & respect::DIRTY == 0 {
        ignore |= saved_dirty::ANY_DIRTY;
        if shstk && mode & respect::WRITE != 0 && head & WRITE == 0 {
            ignore &= !DIRTY;
        }
    }
    ignore
}

impl<const SHSTK: bool> LongMode<SHSTK> {
    /// The scan where dirty counts and write does not: an entry's dirty is D or
    /// SavedDirty, whichever its write permission asks for, so no mask does and
    /// every entry is normalised.
    #[inline]
    fn scan_normalised<const MODE: u8>(cells: &[AtomicU64], head: LongEntry<SHSTK>) -> usize {
        let mut expected = head.normalise::<MODE>();
        let mut nr = 1;
        for cell in cells.iter().skip(1) {
            expected = expected.advance(1, Level::Pte);
            let e = LongEntry::<SHSTK>(cell.load(Ordering::Relaxed));
            if e.normalise::<MODE>() != expected {
                break;
            }
            nr += 1;
        }
        nr
    }
}

impl<const SHSTK: bool> Arch for LongMode<SHSTK> {
    type Entry = LongEntry<SHSTK>;
    type Table = Table;

    const NAME: &'static str = if SHSTK { "x86_64" } else { "x86_64-noshstk" };
    const PAGE_SHIFT: u32 = 12;
    const LEVELS: &'static [Level] = &[Level::Pgd, Level::Pud, Level::Pmd, Level::Pte];
    // The last page below the hole is never user memory (rule PTE-01).
    const USER_END: u64 = (1 << 47) - 4096;
    const CONT: usize = 1;
    const WRITE_SURVIVES_MKCLEAN: bool = !SHSTK;
    const HAS_SOFT_DIRTY: bool = true;
    const HAS_UFFD_WP: bool = true;
    const PINCOUNT_MIN_ORDER: u32 = 1;

    #[inline(always)]
    fn shift(level: Level) -> u32 {
        level_shift(level)
    }
    #[inline(always)]
    fn nr_entries(level: Level) -> usize {
        if matches!(level, Level::P4d) { 1 } else { ENTRIES }
    }
    #[inline]
    fn prot(protection: Protection) -> X86Prot {
        X86Prot::new(protection)
    }

    fn new_table() -> Table {
        Table(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[inline(always)]
    fn read<R: Right>(table: &Table, index: usize) -> Self::Entry {
        LongEntry(word::load::<R>(&table.0[index]))
    }
    #[inline(always)]
    fn read_upper<R: Right>(table: &Table, index: usize) -> Self::Entry {
        LongEntry(word::load::<R>(&table.0[index]))
    }

    /// One mask is chosen from the head and the mode, then entries are compared
    /// raw, eight loads to a branch; see `ignored` in the source.
    #[inline(always)]
    fn scan<R: Right, const MODE: u8>(
        table: &Table,
        index: usize,
        head: Self::Entry,
        max: usize,
    ) -> Batch {
        let cells = &table.0[index..index + max];
        let nr = if MODE & (respect::DIRTY | respect::WRITE) == respect::DIRTY {
            Self::scan_normalised::<MODE>(cells, head)
        } else {
            word::scan(cells, head.0, step(head.0), ignored(MODE, head.0, SHSTK))
        };
        let mut batch = Batch { nr, any_writable: false, any_young: false, any_dirty: false };
        if MODE & (respect::MERGE_WRITE | respect::MERGE_YOUNG_DIRTY) != 0 {
            // The head's facts are those of the caller's copy (rule BATCH-08).
            let rest = cells[1..nr].iter().map(|c| LongEntry(c.load(Ordering::Relaxed)));
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
    fn fill(table: &Table, index: usize, n: usize, e: Self::Entry) {
        let step = step(e.0);
        let mut raw = e.0;
        for cell in &table.0[index..index + n] {
            word::store(cell, raw);
            raw = raw.wrapping_add(step);
        }
    }
    #[inline]
    fn set<T: Tlb + ?Sized>(table: &Table, at: At, e: Self::Entry, _: &SpaceTlb<'_, T>) {
        word::store(&table.0[at.index], e.0);
    }
    #[inline]
    fn take<L: Liveness, T: Tlb + ?Sized>(
        table: &Table,
        at: At,
        n: usize,
        _: &SpaceTlb<'_, T>,
        mut each: impl FnMut(usize, Self::Entry),
    ) {
        for (k, cell) in table.0[at.index..at.index + n].iter().enumerate() {
            each(k, LongEntry(word::take::<L>(cell)));
        }
    }
    #[inline]
    fn wrprotect<T: Tlb + ?Sized>(table: &Table, at: At, n: usize, _: &SpaceTlb<'_, T>) {
        for cell in &table.0[at.index..at.index + n] {
            wrprotect_cell(cell);
        }
    }
    #[inline]
    fn clear_young<T: Tlb + ?Sized>(table: &Table, at: At, n: usize, _: &SpaceTlb<'_, T>) -> bool {
        let mut any = false;
        for cell in &table.0[at.index..at.index + n] {
            // A stale translation only delays the next aging: no flush (rule ACC-13).
            let old = |raw: u64| (raw & ACCESSED != 0).then_some(raw & !ACCESSED);
            any |= word::update(cell, old).is_ok();
        }
        any
    }
    #[inline]
    fn set_access_flags<T: Tlb + ?Sized>(
        table: &Table,
        at: At,
        e: Self::Entry,
        _: &SpaceTlb<'_, T>,
    ) -> bool {
        widen_cell(&table.0[at.index], e)
    }

    #[inline]
    fn swap_upper(table: &Table, index: usize, e: Self::Entry) -> Self::Entry {
        // Release publishes the table behind the entry; pairs with the Acquire
        // of `read_upper` (rule ACC-04). Without it a walker meets a table that
        // is not zeroed yet.
        LongEntry(table.0[index].swap(e.0, ord!("x86.upper", Release)))
    }
    #[inline]
    fn wrprotect_upper(table: &Table, index: usize) {
        wrprotect_cell(&table.0[index]);
    }
    #[inline]
    fn set_access_flags_upper(table: &Table, index: usize, e: Self::Entry) -> bool {
        widen_cell(&table.0[index], e)
    }

    fn mmu_mark(table: &Table, index: usize, kind: AccessKind, level: Level) -> bool {
        word::update(&table.0[index], |raw| {
            LongEntry::<SHSTK>(raw).marked(kind, level).map(|e| e.0)
        })
        .is_ok()
    }
}

/// By exchange: a store that sets D between a read and a write here would either
/// be lost or make a shadow-stack entry (rule SHSTK-08).
#[inline(always)]
fn wrprotect_cell(cell: &AtomicU64) {
    let _ = word::update(cell, |raw| {
        let new = saved_dirty::wrprotect(raw);
        (new != raw).then_some(new)
    });
}

#[inline(always)]
fn widen_cell<const SHSTK: bool>(cell: &AtomicU64, e: LongEntry<SHSTK>) -> bool {
    word::update(cell, |raw| {
        let new = LongEntry::<SHSTK>(raw).widened(e).0;
        (new != raw).then_some(new)
    })
    .is_ok()
}
