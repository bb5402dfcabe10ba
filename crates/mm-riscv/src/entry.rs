//! The entry as a value.

use crate::bits::{
    ACCESSED, DIRTY, EXEC, FRAME, FRAME_BITS, FRAME_SHIFT, GLOBAL, LEAF, MEMORY_TYPE, NAPOT,
    PROT_NONE, READ, SOFT_DIRTY, SPECIAL, UFFD_WP, USER, VALID, WRITE,
};
use crate::{Mode, nonpresent};
use core::marker::PhantomData;
use mm_arch::{
    AccessKind, EncodeError, Entry, Level, Pfn, Protection, Rights, SwapBits, TableFrame,
    TypeOffset, WriteKind,
};

/// An entry of the mode `M`.
///
/// Every raw value is allowed and no operation panics on one (but see
/// [`leaf`](Entry::leaf)).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RiscvEntry<M: Mode>(u64, PhantomData<M>);

/// The bits of an entry that come from the mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RiscvProt(u64);

impl RiscvProt {
    /// The bits.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// The template for `p`; there are no protection keys.
    ///
    /// Private writable mappings get the read-only template: write permission is added by
    /// a fault that knows whose page it is.
    pub(crate) const fn new(p: Protection) -> Self {
        // Hardware gives no meaning to W without R, so who may write may read. An
        // inaccessible entry keeps R: a PMD that is made invalid is told by it.
        if p.rights.is_empty() {
            return RiscvProt(PROT_NONE | READ | ACCESSED);
        }
        let mut raw = VALID | USER | ACCESSED;
        if p.rights.intersects(Rights::READ.union(Rights::WRITE)) {
            raw |= READ;
        }
        if p.rights.contains(Rights::WRITE) && p.writable_at_once {
            raw |= WRITE;
        }
        if p.rights.contains(Rights::EXEC) {
            raw |= EXEC;
        }
        RiscvProt(raw)
    }
}

impl core::fmt::Debug for RiscvProt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RiscvProt({:#x})", self.0)
    }
}

/// What [`modify`](Entry::modify) takes from the template.
const FROM_PROT: u64 = VALID | READ | WRITE | EXEC | USER | GLOBAL;

/// Flags whose change in either direction a translation cache may have seen.
const CACHED: u64 = FRAME | LEAF | USER | GLOBAL | MEMORY_TYPE | NAPOT;

impl<M: Mode> RiscvEntry<M> {
    /// The entry with this raw value.
    #[inline]
    pub const fn from_bits(raw: u64) -> Self {
        RiscvEntry(raw, PhantomData)
    }
    /// The raw value. In one of a block the frame is that of the entry, not what the
    /// tables hold.
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
        (self.0 & FRAME) >> FRAME_SHIFT
    }
    #[inline(always)]
    const fn with_frame(self, frame: u64) -> Self {
        Self::from_bits(self.0 & !FRAME | frame << FRAME_SHIFT & FRAME)
    }
}

impl<M: Mode> core::fmt::Debug for RiscvEntry<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RiscvEntry({:#x})", self.0)
    }
}

impl<M: Mode> Entry for RiscvEntry<M> {
    type Prot = RiscvProt;
    const NONE: Self = Self::from_bits(0);
    const SWAP_PFN_BITS: u32 = FRAME_BITS;
    const SWAP_YOUNG_DIRTY: bool = FRAME_BITS + 2 <= nonpresent::OFFSET_BITS;

    #[inline(always)]
    fn from_raw(raw: u64) -> Self {
        Self::from_bits(raw)
    }
    #[inline(always)]
    fn raw(self) -> u64 {
        self.0
    }
    #[inline]
    fn leaf(pfn: Pfn, prot: RiscvProt, level: Level) -> Self {
        debug_assert!(
            pfn.is_aligned(M::shift(level) - 12),
            "frame {pfn} does not suit a leaf of {level:?}"
        );
        Self::from_bits(prot.bits()).with_frame(pfn.get())
    }
    #[inline]
    fn table(frame: TableFrame, _: Level) -> Self {
        Self::from_bits(VALID).with_frame(frame.pfn().get())
    }

    #[inline]
    fn is_none(self) -> bool {
        self.0 == 0
    }
    #[inline]
    fn is_present(self, level: Level) -> bool {
        // A PMD under split is told by its rights, as the valid bit is away.
        self.has(VALID)
            || level <= M::HIGHEST_LEAF
                && self.has(if level == Level::Pmd { PROT_NONE | LEAF } else { PROT_NONE })
    }
    #[inline]
    fn is_leaf(self, level: Level) -> bool {
        self.is_present(level) && level <= M::HIGHEST_LEAF && (!self.has(VALID) || self.has(LEAF))
    }
    #[inline]
    fn as_table(self, level: Level) -> Option<TableFrame> {
        (level != Level::Pte && self.0 & (VALID | LEAF) == VALID)
            .then(|| TableFrame::new(Pfn::new(self.frame())))
    }
    #[inline]
    fn is_protnone(self, level: Level) -> bool {
        self.is_leaf(level) && self.0 & (VALID | PROT_NONE) == PROT_NONE
    }
    #[inline]
    fn pfn(self, level: Level) -> Pfn {
        let order = M::shift(level) - 12;
        Pfn::new(self.frame() >> order << order)
    }
    #[inline]
    fn advance(self, nr: u64, _: Level) -> Self {
        self.with_frame(self.frame().wrapping_add(nr))
    }
    #[inline]
    fn is_writable(self, _: Level) -> bool {
        self.has(WRITE)
    }
    #[inline]
    fn permits(self, kind: AccessKind, level: Level) -> bool {
        let needed = match kind {
            AccessKind::Read => VALID | USER | READ,
            AccessKind::Write => VALID | USER | READ | WRITE,
            AccessKind::Exec => VALID | USER | EXEC,
        };
        self.is_leaf(level) && self.0 & needed == needed
    }

    #[inline]
    fn is_young(self) -> bool {
        self.has(ACCESSED)
    }
    #[inline]
    fn is_dirty(self) -> bool {
        self.has(DIRTY)
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
    #[inline]
    fn mkdirty(self) -> Self {
        self.with(DIRTY | SOFT_DIRTY)
    }
    #[inline]
    fn mkclean(self) -> Self {
        self.without(DIRTY)
    }
    /// There are no shadow stacks that tables know of: an ordinary writable entry.
    #[inline]
    fn mkwrite(self, _: WriteKind) -> Self {
        self.with(WRITE)
    }
    #[inline]
    fn wrprotect(self) -> Self {
        self.without(WRITE)
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
    /// For PMD leaves.
    #[inline]
    fn mkinvalid(self, _: Level) -> Self {
        let told = if self.has(LEAF) { 0 } else { READ };
        self.without(VALID | PROT_NONE).with(told)
    }
    #[inline]
    fn modify(self, prot: RiscvProt, _: Level) -> Self {
        Self::from_bits(self.0 & !FROM_PROT | prot.bits() & FROM_PROT)
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
        self.has(VALID) || (flush_pending && self.has(PROT_NONE))
    }
    #[inline]
    fn needs_flush(self, new: Self, _: Level) -> bool {
        let cleared = self.0 & !new.0 & (VALID | DIRTY);
        self.has(VALID) && (cleared != 0 || (self.0 ^ new.0) & CACHED != 0)
    }
}
