//! The entry as a value: the same functions for 64-bit and 32-bit kernels.

use crate::bits::{
    ACCESSED, DIRTY, FRAME, FRAME_STEP, GLOBAL, NO_EXECUTE, PAGE_SIZE, PCD, PKEY, PRESENT,
    PROT_NONE, PWT, SPECIAL, TABLE, USER, WRITE,
};
use crate::layout::Layout;
use crate::prot::X86Prot;
use crate::{nonpresent, saved_dirty};
use core::marker::PhantomData;
use mm_arch::{
    AccessKind, EncodeError, Entry, Level, Pfn, SwapBits, TableFrame, TypeOffset, WriteKind,
};

/// A 64-bit entry with the software bits of `L`.
///
/// Every raw value is allowed and no operation panics on one (but see
/// [`leaf`](Entry::leaf)).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct X86Value<L: Layout>(u64, PhantomData<L>);

/// What [`modify`](Entry::modify) keeps (rules PTE-16, PTE-21). Bit 7 is PAT in a
/// small leaf and the leaf mark in a large one, bit 12 frame or PAT: both are kept
/// at every level.
const fn kept<L: Layout>() -> u64 {
    let history = ACCESSED | saved_dirty::any_dirty::<L>() | L::SOFT_DIRTY | L::UFFD_WP;
    FRAME | PWT | PCD | PAGE_SIZE | SPECIAL | history
}

/// Flags whose change in either direction a translation cache may have seen
/// (rule PTE-17). The whole frame field: it holds PAT of large leaves too.
const CACHED: u64 = FRAME | WRITE | USER | PWT | PCD | PAGE_SIZE | GLOBAL | PKEY | NO_EXECUTE;

/// Flags beside the frame and P that an entry may have where `Layout::is_bare`: memory
/// types and bits for software (rule PAE-05).
pub(crate) const BARE_ALLOWED: u64 = PWT | PCD | 0b111 << 9;

/// What of a template hardware takes: bits that it does not know are no longer in
/// an entry that it follows, and stay in one that it does not (rule PAE-04).
#[inline(always)]
const fn supported<L: Layout>(prot: X86Prot) -> u64 {
    let raw = prot.bits();
    if raw & PRESENT != 0 { raw & !L::RESERVED } else { raw }
}

/// Frame bits of a leaf of `level` (rule PTE-04).
#[inline(always)]
pub(crate) const fn frame_mask(level: Level) -> u64 {
    FRAME & !((1 << level_shift(level)) - 1)
}

#[inline(always)]
const fn level_shift(level: Level) -> u32 {
    match level {
        Level::Pte => 12,
        Level::Pmd => 21,
        // Nothing above maps memory.
        Level::Pud | Level::P4d | Level::Pgd => 30,
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
pub(crate) const fn step(raw: u64) -> u64 {
    if is_inverted(raw) { FRAME_STEP.wrapping_neg() } else { FRAME_STEP }
}

impl<L: Layout> X86Value<L> {
    /// The entry with this raw value.
    #[inline]
    pub const fn from_bits(raw: u64) -> Self {
        X86Value(raw, PhantomData)
    }
    /// The raw value.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Whether shadow-stack stores, and only they, go through (rule SHSTK-02).
    #[inline]
    pub const fn is_shadow_stack(self, level: Level) -> bool {
        L::SHSTK
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
        Self::from_bits(self.0 | bits)
    }
    #[inline(always)]
    const fn without(self, bits: u64) -> Self {
        Self::from_bits(self.0 & !bits)
    }
    /// What hardware adds for an access; `None` if it does not follow the entry
    /// (rule PTE-18).
    #[inline]
    pub(crate) fn marked(self, kind: AccessKind, level: Level) -> Option<Self> {
        if !self.permits(kind, level) {
            return None;
        }
        if L::is_bare(level) {
            return Some(self);
        }
        let stored = kind == AccessKind::Write && (level == Level::Pte || self.has(PAGE_SIZE));
        Some(self.with(ACCESSED | if stored { DIRTY } else { 0 }))
    }
    /// `self` with accessed, dirty, soft-dirty and write of `e` (rule ACC-17).
    ///
    /// A shadow-stack `e` adds its D, which is its write permission; dirty of an
    /// ordinary read-only `e` is in SavedDirty and grants nothing.
    #[inline]
    pub(crate) const fn widened(self, e: Self) -> Self {
        let added = e.0 & (ACCESSED | saved_dirty::any_dirty::<L>() | L::SOFT_DIRTY | WRITE);
        Self::from_bits(saved_dirty::restore::<L>(self.0 | added))
    }
}

impl<L: Layout> core::fmt::Debug for X86Value<L> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "X86Entry({:#x})", self.0)
    }
}

impl<L: Layout> Entry for X86Value<L> {
    type Prot = X86Prot;
    const NONE: Self = Self::from_bits(0);
    const SWAP_PFN_BITS: u32 = L::PFN_BITS;
    const SWAP_YOUNG_DIRTY: bool = true;

    #[inline(always)]
    fn from_raw(raw: u64) -> Self {
        Self::from_bits(raw)
    }
    #[inline(always)]
    fn raw(self) -> u64 {
        self.0
    }

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
        let raw = (pfn.get() << 12 & FRAME) | size | supported::<L>(prot);
        Self::from_bits(reinvert(PRESENT, raw, level))
    }
    #[inline]
    fn table(frame: TableFrame, level: Level) -> Self {
        let flags = if L::is_bare(level) { PRESENT } else { TABLE };
        Self::from_bits((frame.pfn().get() << 12 & FRAME) | flags)
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
            Level::Pud if L::PUD_LEAVES => self.0 & (PRESENT | PAGE_SIZE) == PRESENT | PAGE_SIZE,
            _ => false,
        }
    }
    #[inline]
    fn as_table(self, level: Level) -> Option<TableFrame> {
        // Rule PTE-13: anything but the table template is bad, leaves included.
        let good = if L::is_bare(level) {
            self.0 & !(FRAME | BARE_ALLOWED) == PRESENT
        } else {
            self.0 & !(FRAME | USER | ACCESSED) == TABLE & !(USER | ACCESSED)
        };
        (level != Level::Pte && good).then(|| TableFrame::new(Pfn::new((self.0 & FRAME) >> 12)))
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
        Self::from_bits(self.0.wrapping_add(step(self.0).wrapping_mul(nr)))
    }
    #[inline]
    fn is_writable(self, level: Level) -> bool {
        self.has(WRITE) || self.is_shadow_stack(level)
    }
    #[inline]
    fn permits(self, kind: AccessKind, level: Level) -> bool {
        if L::is_bare(level) {
            return self.has(PRESENT);
        }
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
        self.has(saved_dirty::any_dirty::<L>())
    }
    #[inline]
    fn is_soft_dirty(self) -> bool {
        self.has(L::SOFT_DIRTY)
    }
    #[inline]
    fn is_uffd_wp(self) -> bool {
        self.has(L::UFFD_WP)
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
        Self::from_bits(saved_dirty::save::<L>(self.0 | DIRTY | L::SOFT_DIRTY))
    }
    #[inline]
    fn mkclean(self) -> Self {
        self.without(saved_dirty::any_dirty::<L>())
    }
    #[inline]
    fn mkwrite(self, kind: WriteKind) -> Self {
        match kind {
            WriteKind::Normal => Self::from_bits(saved_dirty::restore::<L>(self.0 | WRITE)),
            WriteKind::ShadowStack => self.without(WRITE).with(DIRTY),
        }
    }
    #[inline]
    fn wrprotect(self) -> Self {
        Self::from_bits(saved_dirty::wrprotect::<L>(self.0))
    }
    #[inline]
    fn mksoft_dirty(self) -> Self {
        self.with(L::SOFT_DIRTY)
    }
    #[inline]
    fn clear_soft_dirty(self) -> Self {
        self.without(L::SOFT_DIRTY)
    }
    #[inline]
    fn mkuffd_wp(self) -> Self {
        self.with(L::UFFD_WP).wrprotect()
    }
    #[inline]
    fn clear_uffd_wp(self) -> Self {
        self.without(L::UFFD_WP)
    }
    #[inline]
    fn mkspecial(self) -> Self {
        self.with(SPECIAL)
    }
    /// For PMD leaves (rule PTE-20). A PUD without P is not present (PTE-05), and
    /// a PTE would read as a swap entry.
    #[inline]
    fn mkinvalid(self, level: Level) -> Self {
        Self::from_bits(reinvert(self.0, self.0 & !(PRESENT | PROT_NONE), level))
    }
    #[inline]
    fn modify(self, prot: X86Prot, level: Level) -> Self {
        let merged =
            reinvert(self.0, self.0 & kept::<L>() | supported::<L>(prot) & !kept::<L>(), level);
        // Rule SHSTK-05, by the *old* write permission: a shadow-stack entry
        // stays one under a read-only template.
        Self::from_bits(if self.has(WRITE) {
            saved_dirty::save::<L>(merged)
        } else {
            saved_dirty::restore::<L>(merged)
        })
    }

    #[inline]
    fn type_offset(self, level: Level) -> Option<TypeOffset> {
        (!self.is_present(level) && nonpresent::is_swap_form::<L>(self.0, level))
            .then(|| nonpresent::decode(self.0))
    }
    #[inline]
    fn from_type_offset(raw: TypeOffset, bits: SwapBits) -> Result<Self, EncodeError> {
        nonpresent::encode::<L>(raw, bits).map(Self::from_bits)
    }
    #[inline]
    fn swap_bits(self) -> SwapBits {
        nonpresent::flags::<L>(self.0)
    }
    #[inline]
    fn with_swap_bits(self, bits: SwapBits) -> Self {
        Self::from_bits(nonpresent::with_flags::<L>(self.0, bits))
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
