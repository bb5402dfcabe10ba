//! The entry as a value.

use crate::bits::{
    ACCESSED, ATTR, CONT, GUARDED, NOT_GLOBAL, OVERLAY, PRESENT_INVALID, PRIVILEGED_NO_EXECUTE,
    READ_ONLY, SOFTWARE, SPECIAL, TABLE_NO_EXECUTE, TYPE, UFFD_WP, USER, USER_NO_EXECUTE, VALID,
    WRITE,
};
use crate::prot::Arm64Prot;
use crate::{Granule, dirty, nonpresent};
use core::marker::PhantomData;
use mm_arch::{
    AccessKind, EncodeError, Entry, Level, Pfn, SwapBits, TableFrame, TypeOffset, WriteKind,
};

/// An entry of the granule `G`.
///
/// Every raw value is allowed and no operation panics on one (but see
/// [`leaf`](Entry::leaf)).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arm64Entry<G: Granule>(u64, PhantomData<G>);

/// What [`modify`](Entry::modify) takes from the template (rule A64-06).
const FROM_PROT: u64 = VALID
    | ATTR
    | USER
    | READ_ONLY
    | NOT_GLOBAL
    | GUARDED
    | WRITE
    | PRIVILEGED_NO_EXECUTE
    | USER_NO_EXECUTE
    | OVERLAY;

/// What may change in a valid entry without a flush before the new value is written: the
/// frame, the block and the memory type may not (rule A64-10).
const CHANGES_IN_PLACE: u64 =
    PRIVILEGED_NO_EXECUTE | READ_ONLY | WRITE | NOT_GLOBAL | ACCESSED | SOFTWARE;

impl<G: Granule> Arm64Entry<G> {
    /// The entry with this raw value.
    #[inline]
    pub const fn from_bits(raw: u64) -> Self {
        Arm64Entry(raw, PhantomData)
    }
    /// The raw value.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    pub(crate) const fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }
    #[inline(always)]
    pub(crate) const fn with(self, bits: u64) -> Self {
        Self::from_bits(self.0 | bits)
    }
    #[inline(always)]
    pub(crate) const fn without(self, bits: u64) -> Self {
        Self::from_bits(self.0 & !bits)
    }
    #[inline(always)]
    const fn frame(self) -> u64 {
        G::OUTPUT.decode(self.0) >> G::PAGE_SHIFT
    }
    #[inline(always)]
    const fn with_frame(self, frame: u64) -> Self {
        let field = G::OUTPUT.field(G::PAGE_SHIFT);
        Self::from_bits(self.0 & !field | G::OUTPUT.encode(frame << G::PAGE_SHIFT))
    }
    /// Hardware does not follow the entry, but it is not empty (rule A64-07).
    #[inline(always)]
    const fn is_present_invalid(self) -> bool {
        self.0 & (VALID | PRESENT_INVALID) == PRESENT_INVALID
    }
    /// Whether hardware may be given `new` in the place of this entry without break
    /// before make (rule A64-10).
    #[inline]
    pub const fn changes_in_place(self, new: Self) -> bool {
        if self.0 & VALID == 0 || new.0 & VALID == 0 {
            return true;
        }
        let less_global = self.0 & !new.0 & NOT_GLOBAL != 0;
        (self.0 ^ new.0) & !CHANGES_IN_PLACE == 0 && (self.0 | new.0) & CONT == 0 && !less_global
    }
}

impl<G: Granule> core::fmt::Debug for Arm64Entry<G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Arm64Entry({:#x})", self.0)
    }
}

impl<G: Granule> Entry for Arm64Entry<G> {
    type Prot = Arm64Prot;
    const NONE: Self = Self::from_bits(0);
    const SWAP_PFN_BITS: u32 = G::OUTPUT.bits() - G::PAGE_SHIFT;
    const SWAP_YOUNG_DIRTY: bool = Self::SWAP_PFN_BITS + 2 <= nonpresent::OFFSET_BITS;

    #[inline(always)]
    fn from_raw(raw: u64) -> Self {
        Self::from_bits(raw)
    }
    #[inline(always)]
    fn raw(self) -> u64 {
        self.0
    }
    #[inline]
    fn leaf(pfn: Pfn, prot: Arm64Prot, level: Level) -> Self {
        debug_assert!(
            pfn.is_aligned(G::shift(level) - G::PAGE_SHIFT),
            "frame {pfn} does not suit a leaf of {level:?}"
        );
        // A leaf above the last level is a block.
        let not = if level == Level::Pte { 0 } else { TYPE };
        Self::from_bits(prot.bits() & !not).with_frame(pfn.get())
    }
    /// The kernel executes nothing that user tables map.
    #[inline]
    fn table(frame: TableFrame, _: Level) -> Self {
        Self::from_bits(VALID | TYPE | ACCESSED | TABLE_NO_EXECUTE).with_frame(frame.pfn().get())
    }

    #[inline]
    fn is_none(self) -> bool {
        self.0 == 0
    }
    #[inline]
    fn is_present(self, level: Level) -> bool {
        self.has(VALID) || (level <= G::HIGHEST_LEAF && self.is_present_invalid())
    }
    #[inline]
    fn is_leaf(self, level: Level) -> bool {
        self.is_present(level)
            && (level == Level::Pte || level <= G::HIGHEST_LEAF && !self.has(TYPE))
    }
    #[inline]
    fn as_table(self, level: Level) -> Option<TableFrame> {
        (level != Level::Pte && self.0 & (VALID | TYPE) == VALID | TYPE)
            .then(|| TableFrame::new(Pfn::new(self.frame())))
    }
    #[inline]
    fn is_protnone(self, level: Level) -> bool {
        // A leaf under split is invalid too, but keeps the user's right.
        self.is_leaf(level)
            && self.is_present_invalid()
            && !self.has(USER)
            && self.has(USER_NO_EXECUTE)
    }
    #[inline]
    fn pfn(self, level: Level) -> Pfn {
        let order = G::shift(level) - G::PAGE_SHIFT;
        Pfn::new(self.frame() >> order << order)
    }
    #[inline]
    fn advance(self, nr: u64, _: Level) -> Self {
        // Through the frame: where the address is in two pieces, no plain addition
        // carries from one to the other (rule A64-03).
        self.with_frame(self.frame().wrapping_add(nr))
    }
    #[inline]
    fn is_writable(self, _: Level) -> bool {
        self.has(WRITE)
    }
    #[inline]
    fn permits(self, kind: AccessKind, _: Level) -> bool {
        // Rule A64-08. DBM, not AP[2]: a store to a clean page goes through.
        let (needed, forbidden) = match kind {
            AccessKind::Read => (VALID | USER, 0),
            AccessKind::Write => (VALID | USER | WRITE, 0),
            AccessKind::Exec => (VALID, USER_NO_EXECUTE),
        };
        self.0 & (needed | forbidden) == needed
    }

    #[inline]
    fn is_young(self) -> bool {
        self.has(ACCESSED)
    }
    #[inline]
    fn is_dirty(self) -> bool {
        dirty::is_dirty(self.0)
    }
    #[inline]
    fn is_soft_dirty(self) -> bool {
        false
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
    #[inline]
    fn mkdirty(self) -> Self {
        Self::from_bits(dirty::mkdirty(self.0))
    }
    #[inline]
    fn mkclean(self) -> Self {
        Self::from_bits(dirty::mkclean(self.0))
    }
    /// Shadow stacks of this architecture take their meaning from a register that is
    /// not modelled: such an entry is an ordinary writable one.
    #[inline]
    fn mkwrite(self, _: WriteKind) -> Self {
        Self::from_bits(dirty::mkwrite(self.0))
    }
    #[inline]
    fn wrprotect(self) -> Self {
        Self::from_bits(dirty::wrprotect(self.0))
    }
    #[inline]
    fn mksoft_dirty(self) -> Self {
        self
    }
    #[inline]
    fn clear_soft_dirty(self) -> Self {
        self
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
    #[inline]
    fn mkinvalid(self, _: Level) -> Self {
        self.with(PRESENT_INVALID).without(VALID)
    }
    #[inline]
    fn modify(self, prot: Arm64Prot, _: Level) -> Self {
        // Rule A64-06: the dirt is in the software bit while AP[2] comes from the
        // template, and back in AP[2] if the result may be stored through.
        let saved = dirty::save(self.0);
        Self::from_bits(dirty::restore(saved & !FROM_PROT | prot.bits() & FROM_PROT))
    }

    #[inline]
    fn type_offset(self, level: Level) -> Option<TypeOffset> {
        (!self.is_present(level) && nonpresent::is_swap_form(self.0))
            .then(|| nonpresent::decode(self.0))
    }
    #[inline]
    fn from_type_offset(raw: TypeOffset, bits: SwapBits) -> Result<Self, EncodeError> {
        nonpresent::encode(raw, bits).map(Self::from_bits)
    }
    #[inline]
    fn swap_bits(self) -> SwapBits {
        nonpresent::flags(self.0)
    }
    #[inline]
    fn with_swap_bits(self, bits: SwapBits) -> Self {
        Self::from_bits(nonpresent::with_flags(self.0, bits))
    }

    #[inline]
    fn may_be_cached(self, flush_pending: bool, _: Level) -> bool {
        self.has(VALID) || (flush_pending && self.is_present_invalid())
    }
    /// Everything that hardware looks at, accessed and the contiguous mark included.
    #[inline]
    fn needs_flush(self, new: Self, _: Level) -> bool {
        self.has(VALID) && (self.0 ^ new.0) & !SOFTWARE != 0
    }
}
