//! Tiny formats for models and property tests: one word, two words, blocks.
//!
//! They are real formats with their own encodings and run the same algorithms as
//! the formats of hardware; only their tables are small enough for a model
//! checker. [`ModelWord`] and [`ModelCont`] keep one word per entry, [`ModelPair`]
//! two 32-bit words that are never read or written together. [`laws`] holds what
//! every format, these and those of hardware, must do.

use crate::cell::Cell;
use crate::cont::{Blocks, ContEntry};
use crate::pair::Pair;
use crate::{
    AccessKind, Arch, At, Batch, EncodeError, Entry, FlushScope, Held, Level, Liveness, Pfn,
    Protection, Right, Rights, SpaceTlb, SwapBits, TableFrame, Tlb, TypeOffset, VirtRange,
    WriteKind, respect, word,
};
use core::marker::PhantomData;
use mm_sync::atomic::AtomicU64;

pub mod laws;

const P: u64 = 1 << 0;
const W: u64 = 1 << 1;
const EXCL: u64 = 1 << 2; // of a non-present entry
const NONE_PROT: u64 = 1 << 3; // present, but no access
const SWAP: u64 = 1 << 4; // non-present and not empty; type in 5..=9
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
const LEAF: u64 = 1 << 7; // an upper entry that maps memory
const CONT: u64 = 1 << 8;
const SPECIAL: u64 = 1 << 9;
const UFFD: u64 = 1 << 10;
const SOFT: u64 = 1 << 11;
const FRAME: u64 = 0x000f_ffff_ffff_f000;
const NX: u64 = 1 << 63;
/// Everything but frame and history comes from the protection.
const FROM_PROT: u64 = P | W | NONE_PROT | NX;

/// An entry of a model format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ModelEntry(u64);

/// A protection template of a model format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelProt(u64);

impl core::fmt::Debug for ModelEntry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ModelEntry({:#x})", self.0)
    }
}

impl ModelEntry {
    /// The bit by which a guest says that it does not need the content.
    pub const UNUSED: u64 = 1 << 62;

    /// The entry with this raw value.
    pub const fn from_bits(raw: u64) -> Self {
        ModelEntry(raw)
    }
    /// The raw value.
    pub const fn bits(self) -> u64 {
        self.0
    }
    const fn with(self, bits: u64) -> Self {
        ModelEntry(self.0 | bits)
    }
    const fn without(self, bits: u64) -> Self {
        ModelEntry(self.0 & !bits)
    }
    const fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }
}

impl Entry for ModelEntry {
    type Prot = ModelProt;
    const NONE: Self = ModelEntry(0);
    const SWAP_PFN_BITS: u32 = 40;
    const SWAP_YOUNG_DIRTY: bool = true;

    #[inline]
    fn from_raw(raw: u64) -> Self {
        ModelEntry(raw)
    }
    #[inline]
    fn raw(self) -> u64 {
        self.0
    }
    #[inline]
    fn leaf(pfn: Pfn, prot: ModelProt, level: Level) -> Self {
        let leaf = if level == Level::Pte { 0 } else { LEAF };
        ModelEntry(pfn.get() << 12 | prot.0 | leaf)
    }
    #[inline]
    fn table(frame: TableFrame, _: Level) -> Self {
        ModelEntry(frame.pfn().get() << 12 | P | W)
    }
    #[inline]
    fn is_none(self) -> bool {
        self.0 & !(A | D) == 0
    }
    #[inline]
    fn is_present(self, level: Level) -> bool {
        self.has(P | NONE_PROT) || (level != Level::Pte && self.has(LEAF) && !self.has(SWAP))
    }
    #[inline]
    fn is_leaf(self, level: Level) -> bool {
        self.is_present(level) && (level == Level::Pte || self.has(LEAF))
    }
    #[inline]
    fn as_table(self, level: Level) -> Option<TableFrame> {
        (level != Level::Pte && self.has(P) && !self.has(LEAF))
            .then(|| TableFrame::new(Pfn::new((self.0 & FRAME) >> 12)))
    }
    #[inline]
    fn is_protnone(self, _: Level) -> bool {
        self.0 & (P | NONE_PROT) == NONE_PROT
    }
    #[inline]
    fn pfn(self, _: Level) -> Pfn {
        Pfn::new((self.0 & FRAME) >> 12)
    }
    #[inline]
    fn advance(self, nr: u64, _: Level) -> Self {
        ModelEntry(self.0.wrapping_add(nr << 12))
    }
    #[inline]
    fn is_writable(self, _: Level) -> bool {
        self.has(W)
    }
    #[inline]
    fn permits(self, kind: AccessKind, _: Level) -> bool {
        self.has(P)
            && match kind {
                AccessKind::Read => true,
                AccessKind::Write => self.has(W),
                AccessKind::Exec => !self.has(NX),
            }
    }
    #[inline]
    fn is_young(self) -> bool {
        self.has(A)
    }
    #[inline]
    fn is_dirty(self) -> bool {
        self.has(D)
    }
    #[inline]
    fn is_soft_dirty(self) -> bool {
        self.has(SOFT)
    }
    #[inline]
    fn is_uffd_wp(self) -> bool {
        self.has(UFFD)
    }
    #[inline]
    fn is_special(self) -> bool {
        self.has(SPECIAL)
    }
    #[inline]
    fn is_unused(self) -> bool {
        self.has(Self::UNUSED)
    }
    #[inline]
    fn mkyoung(self) -> Self {
        self.with(A)
    }
    #[inline]
    fn mkold(self) -> Self {
        self.without(A)
    }
    #[inline]
    fn mkdirty(self) -> Self {
        self.with(D | SOFT)
    }
    #[inline]
    fn mkclean(self) -> Self {
        self.without(D)
    }
    #[inline]
    fn mkwrite(self, _: WriteKind) -> Self {
        self.with(W)
    }
    #[inline]
    fn wrprotect(self) -> Self {
        self.without(W)
    }
    #[inline]
    fn mksoft_dirty(self) -> Self {
        self.with(SOFT)
    }
    #[inline]
    fn clear_soft_dirty(self) -> Self {
        self.without(SOFT)
    }
    #[inline]
    fn mkuffd_wp(self) -> Self {
        self.without(W).with(UFFD)
    }
    #[inline]
    fn clear_uffd_wp(self) -> Self {
        self.without(UFFD)
    }
    #[inline]
    fn mkspecial(self) -> Self {
        self.with(SPECIAL)
    }
    #[inline]
    fn mkinvalid(self, _: Level) -> Self {
        self.without(P | NONE_PROT)
    }
    #[inline]
    fn modify(self, prot: ModelProt, _: Level) -> Self {
        ModelEntry(self.0 & !FROM_PROT | prot.0 & FROM_PROT)
    }
    #[inline]
    fn type_offset(self, level: Level) -> Option<TypeOffset> {
        (!self.is_present(level) && self.has(SWAP))
            .then_some(TypeOffset { ty: (self.0 >> 5 & 31) as u8, offset: self.0 >> 12 })
    }
    fn from_type_offset(raw: TypeOffset, bits: SwapBits) -> Result<Self, EncodeError> {
        if raw.ty > 31 {
            return Err(EncodeError::BadType { ty: raw.ty });
        }
        if raw.offset >> 52 != 0 {
            return Err(EncodeError::OffsetTooWide { offset: raw.offset, bits: 52 });
        }
        Ok(ModelEntry(raw.offset << 12 | u64::from(raw.ty) << 5 | SWAP).with_swap_bits(bits))
    }
    fn swap_bits(self) -> SwapBits {
        SwapBits { exclusive: self.has(EXCL), soft_dirty: self.has(SOFT), uffd_wp: self.has(UFFD) }
    }
    fn with_swap_bits(self, bits: SwapBits) -> Self {
        let on = |yes, bit| if yes { bit } else { 0 };
        self.without(EXCL | SOFT | UFFD)
            .with(on(bits.exclusive, EXCL) | on(bits.soft_dirty, SOFT) | on(bits.uffd_wp, UFFD))
    }
    #[inline]
    fn may_be_cached(self, flush_pending: bool, _: Level) -> bool {
        self.has(P) || (flush_pending && self.has(NONE_PROT))
    }
    #[inline]
    fn needs_flush(self, new: Self, _: Level) -> bool {
        self.has(P)
            && (self.0 & !(A | D | SOFT | UFFD | SPECIAL)
                != new.0 & !(A | D | SOFT | UFFD | SPECIAL)
                || self.has(D) && !new.has(D))
    }
}

impl ContEntry for ModelEntry {
    #[inline]
    fn is_cont(self) -> bool {
        self.0 & (P | CONT) == P | CONT
    }
    #[inline]
    fn with_cont(self, cont: bool) -> Self {
        if cont { self.with(CONT) } else { self.without(if self.has(P) { CONT } else { 0 }) }
    }
    #[inline]
    fn is_valid(self) -> bool {
        self.has(P)
    }
    #[inline]
    fn widened(self, e: Self) -> Self {
        self.with(e.0 & (A | D | W | SOFT))
    }
    #[inline]
    fn marked(self, kind: AccessKind, level: Level) -> Option<Self> {
        marked(self.0, kind, level).map(ModelEntry)
    }
    #[inline]
    fn stride(mode: u8) -> Option<(u64, u64)> {
        Some((1 << 12, ignored(mode)))
    }
}

fn model_prot(p: Protection) -> ModelProt {
    if p.rights.is_empty() {
        return ModelProt(NONE_PROT | A);
    }
    let w = if p.rights.contains(Rights::WRITE) && p.writable_at_once { W } else { 0 };
    let nx = if p.rights.contains(Rights::EXEC) { 0 } else { NX };
    ModelProt(P | A | w | nx)
}

/// What a scan under `MODE` ignores: in these formats a fixed mask.
const fn ignored(mode: u8) -> u64 {
    let mut m = A;
    if mode & respect::DIRTY == 0 {
        m |= D;
    }
    if mode & respect::SOFT_DIRTY == 0 {
        m |= SOFT;
    }
    if mode & respect::WRITE == 0 {
        m |= W;
    }
    m
}

/// Facts of a run, over entries that the caller just compared.
fn facts(entries: impl Iterator<Item = ModelEntry>, nr: usize) -> Batch {
    let mut b = Batch { nr, looks: nr, any_writable: false, any_young: false, any_dirty: false };
    for e in entries {
        b.any_writable |= e.has(W);
        b.any_young |= e.has(A);
        b.any_dirty |= e.has(D);
    }
    b
}

/// What an MMU adds to a valid entry for an access; `None` if it does not follow it.
fn marked(raw: u64, kind: AccessKind, level: Level) -> Option<u64> {
    let e = ModelEntry(raw);
    if !e.permits(kind, level) {
        return None;
    }
    let dirty = kind == AccessKind::Write && (level == Level::Pte || e.has(LEAF));
    Some(raw | A | if dirty { D } else { 0 })
}

/// What `set_access_flags` adds: accessed, dirty and write of `e`.
fn widened(raw: u64, e: ModelEntry) -> Option<u64> {
    Some(ModelEntry(raw).widened(e).0).filter(|new| *new != raw)
}

macro_rules! model_geometry {
    ($name:expr, $cont:expr) => {
        type Entry = ModelEntry;
        const NAME: &'static str = $name;
        const PAGE_SHIFT: u32 = 12;
        const LEVELS: &'static [Level] = &[Level::Pmd, Level::Pte];
        const USER_END: u64 = 1 << (12 + 2 * N.trailing_zeros());
        const CONT: usize = $cont;
        const WRITE_SURVIVES_MKCLEAN: bool = true;
        const HAS_SOFT_DIRTY: bool = true;
        const HAS_UFFD_WP: bool = true;
        const PINCOUNT_MIN_ORDER: u32 = 1;

        #[inline]
        fn shift(level: Level) -> u32 {
            12 + (level as u32) * N.trailing_zeros()
        }
        #[inline]
        fn nr_entries(_: Level) -> usize {
            N
        }
        fn prot(p: Protection) -> ModelProt {
            model_prot(p)
        }
    };
}

macro_rules! upper {
    () => {
        fn new_table() -> Self::Table {
            core::array::from_fn(|_| Cell::empty())
        }
        #[inline]
        fn read_upper<R: Right>(t: &Self::Table, i: usize) -> ModelEntry {
            ModelEntry(t[i].read::<R>())
        }
        fn swap_upper(t: &Self::Table, i: usize, e: ModelEntry) -> ModelEntry {
            ModelEntry(t[i].replace(e.0))
        }
        fn wrprotect_upper(t: &Self::Table, i: usize) {
            let _ = t[i].change(|raw| Some(raw & !W));
        }
        fn set_access_flags_upper(t: &Self::Table, i: usize, e: ModelEntry) -> bool {
            t[i].change(|raw| widened(raw, e)).is_ok()
        }
        fn mmu_mark(t: &Self::Table, i: usize, kind: AccessKind, level: Level) -> bool {
            t[i].change(|raw| marked(raw, kind, level)).is_ok()
        }
    };
}

/// Each entry by itself in a cell `C`, tables of `N` entries (a power of two), two
/// levels.
pub struct ModelFlat<C, const N: usize>(PhantomData<fn() -> C>);

/// One word per entry.
pub type ModelWord<const N: usize = 4> = ModelFlat<AtomicU64, N>;
/// Two 32-bit words per entry.
pub type ModelPair<const N: usize = 4> = ModelFlat<Pair, N>;

impl<C, const N: usize> Clone for ModelFlat<C, N> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<C, const N: usize> Copy for ModelFlat<C, N> {}
impl<C, const N: usize> core::fmt::Debug for ModelFlat<C, N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ModelFlat")
    }
}

// SAFETY: entries are stored as they are, and only `Entry::table` makes one that points to
// a table (checked by the laws of formats).
unsafe impl<C: Cell, const N: usize> Arch for ModelFlat<C, N> {
    type Table = [C; N];
    const WORDS: usize = C::WORDS;
    model_geometry!(if C::WORDS == 1 { "model-word" } else { "model-pair" }, 1);
    upper!();

    #[inline]
    fn read<R: Right>(t: &Self::Table, i: usize) -> ModelEntry {
        ModelEntry(t[i].read::<R>())
    }
    #[inline]
    fn scan<R: Right, const MODE: u8>(
        t: &Self::Table,
        i: usize,
        head: ModelEntry,
        max: usize,
    ) -> Batch {
        let nr = C::scan::<R>(&t[i..i + max], head.0, 1 << 12, ignored(MODE));
        // The head's facts are those of the caller's copy (rule BATCH-08).
        let rest = t[i + 1..i + nr].iter().map(|c| ModelEntry(c.read::<Held>()));
        let b = facts(core::iter::once(head).chain(rest), nr);
        word::scan_fence::<R>();
        b
    }
    fn fill(t: &Self::Table, i: usize, n: usize, e: ModelEntry) {
        for (k, cell) in t[i..i + n].iter().enumerate() {
            cell.write(e.advance(k as u64, Level::Pte).0);
        }
    }
    fn set<T: Tlb + ?Sized>(t: &Self::Table, at: At, e: ModelEntry, _: &SpaceTlb<'_, T>) {
        t[at.index].write(e.0);
    }
    fn take<L: Liveness, T: Tlb + ?Sized>(
        t: &Self::Table,
        at: At,
        n: usize,
        _: &SpaceTlb<'_, T>,
        mut each: impl FnMut(usize, ModelEntry),
    ) {
        for (k, cell) in t[at.index..at.index + n].iter().enumerate() {
            each(k, ModelEntry(cell.take::<L>()));
        }
    }
    fn wrprotect<T: Tlb + ?Sized>(t: &Self::Table, at: At, n: usize, _: &SpaceTlb<'_, T>) {
        for cell in &t[at.index..at.index + n] {
            let _ = cell.change(|raw| Some(raw & !W));
        }
    }
    fn clear_young<T: Tlb + ?Sized>(
        t: &Self::Table,
        at: At,
        n: usize,
        _: &SpaceTlb<'_, T>,
    ) -> bool {
        let mut any = false;
        for cell in &t[at.index..at.index + n] {
            any |= cell.change(|raw| (raw & A != 0).then_some(raw & !A)).is_ok();
        }
        any
    }
    fn set_access_flags<T: Tlb + ?Sized>(
        t: &Self::Table,
        at: At,
        e: ModelEntry,
        _: &SpaceTlb<'_, T>,
    ) -> bool {
        t[at.index].change(|raw| widened(raw, e)).is_ok()
    }
}

/// One word per entry and contiguous blocks of `C` entries.
#[derive(Clone, Copy, Debug)]
pub struct ModelCont<const N: usize = 4, const C: usize = 2>;

impl<const N: usize, const C: usize> ModelCont<N, C> {
    /// Which entries make a block.
    pub const BLOCKS: Blocks = Blocks::of_pages(C, 12);
}

// SAFETY: entries are stored as they are, and only `Entry::table` makes one that points to
// a table (checked by the laws of formats).
unsafe impl<const N: usize, const C: usize> Arch for ModelCont<N, C> {
    type Table = [AtomicU64; N];
    model_geometry!("model-cont", C);

    fn new_table() -> Self::Table {
        core::array::from_fn(|_| Cell::empty())
    }
    crate::block_operations!(Self::BLOCKS, |table| table);
}

/// A machine without translation caches, for tests and models.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTlb;

impl Tlb for NoTlb {
    fn flush_range(&self, _: crate::SpaceId, _: VirtRange, _: FlushScope) {}
    fn flush_space(&self, _: crate::SpaceId) {}
    fn defer_range(&self, _: crate::SpaceId, _: VirtRange) {}
    fn flush_deferred(&self) {}
}
