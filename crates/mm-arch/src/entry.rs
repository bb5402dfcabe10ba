//! The decoded view of a page-table entry, and its laws.

use crate::{EncodeError, Level, NonPresent, Pfn, SwapBits, SwapSlot, TableFrame, TypeOffset};
use core::fmt::Debug;

bitflags::bitflags! {
    /// What a mapping allows.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct Rights: u8 {
        /// Loads.
        const READ = 1;
        /// Stores.
        const WRITE = 2;
        /// Instruction fetches.
        const EXEC = 4;
    }
}

/// What kind of access is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
}

/// What a format's protection template is made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protection {
    /// What the mapping allows.
    pub rights: Rights,
    /// Whether a store may go through without a fault of its own: shared
    /// mappings that need no write notification. Private writable mappings
    /// start read-only (copy on write).
    pub writable_at_once: bool,
    /// Protection key, 0 where the format has none.
    pub pkey: u8,
}

impl Protection {
    /// A private mapping that allows loads and stores.
    pub const fn private_read_write() -> Self {
        Protection { rights: Rights::READ.union(Rights::WRITE), writable_at_once: false, pkey: 0 }
    }
    /// A mapping that allows nothing.
    pub const fn none() -> Self {
        Protection { rights: Rights::empty(), writable_at_once: false, pkey: 0 }
    }
}

/// How a writable entry of a mapping is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteKind {
    /// Ordinary stores.
    Normal,
    /// Shadow-stack stores only.
    ShadowStack,
}

/// A page-table entry as a value: pure functions, no memory behind it.
///
/// Methods that depend on where the entry stands take its [`Level`]; the value
/// is a constant at nearly every call, so nothing is decided at run time.
///
/// # Laws
///
/// For every present leaf `e`, tested for each format over all its bits:
///
/// * `e.advance(n).pfn() == e.pfn() + n`, and no other fact changes; also for
///   formats that store frames inverted (rules PTE-08, PTE-09).
/// * `e.modify(p)` keeps frame, young, dirty, special, soft-dirty and uffd-wp
///   (PTE-16).
/// * `e.wrprotect()` is not writable and keeps dirty (SHSTK-04).
/// * at most one of [`is_none`](Self::is_none), [`is_present`](Self::is_present) and
///   [`nonpresent`](Self::nonpresent)` != None` holds.
pub trait Entry: Copy + Eq + Debug + Send + Sync + 'static {
    /// A protection template: the bits of an entry that come from the mapping.
    type Prot: Copy + Eq + Debug + Send + Sync + 'static;

    /// The empty entry.
    const NONE: Self;
    /// Width of the frame number in a migration entry.
    const SWAP_PFN_BITS: u32;
    /// Whether a migration entry has room for young and dirty.
    const SWAP_YOUNG_DIRTY: bool;

    /// The entry with this raw value: any value is one.
    fn from_raw(raw: u64) -> Self;
    /// The raw value.
    fn raw(self) -> u64;

    /// A leaf that maps `pfn`.
    ///
    /// # Panics
    ///
    /// In debug builds, if the frame is not aligned for the level.
    fn leaf(pfn: Pfn, prot: Self::Prot, level: Level) -> Self;
    /// An entry that points to a table.
    fn table(frame: TableFrame, level: Level) -> Self;

    /// Nothing is mapped and nothing is remembered.
    fn is_none(self) -> bool;
    /// The entry maps memory or points to a table, in the software sense: an
    /// inaccessible (PROT_NONE) mapping is present.
    fn is_present(self, level: Level) -> bool;
    /// The entry is present and maps memory.
    fn is_leaf(self, level: Level) -> bool;
    /// The table a present non-leaf points to; `None` if it is not one, or bad.
    fn as_table(self, level: Level) -> Option<TableFrame>;
    /// The entry is present but no access is allowed: a PROT_NONE mapping or a
    /// NUMA hint.
    fn is_protnone(self, level: Level) -> bool;
    /// The frame of a present leaf.
    fn pfn(self, level: Level) -> Pfn;
    /// The same leaf `nr` frames further on, or back: `nr` wraps.
    fn advance(self, nr: u64, level: Level) -> Self;
    /// Whether a store of some kind goes through: decided by the format's own
    /// predicate, not by one bit.
    fn is_writable(self, level: Level) -> bool;
    /// Whether a user access of this kind goes through (protection keys aside).
    fn permits(self, kind: AccessKind, level: Level) -> bool;

    /// Accessed since the bit was last cleared.
    fn is_young(self) -> bool;
    /// Written, by any of the bits that remember it.
    fn is_dirty(self) -> bool;
    /// Written since tracking was last reset; `false` where the format has no such bit.
    fn is_soft_dirty(self) -> bool;
    /// Write-protected by userfaultfd; `false` where the format has no such bit.
    fn is_uffd_wp(self) -> bool;
    /// Maps something without a folio to count (the zero page).
    fn is_special(self) -> bool;
    /// The guest whose memory this is has said that it does not need the content any
    /// more (rule UNMAP-13); `false` where the format has no such hint.
    fn is_unused(self) -> bool {
        false
    }

    /// Sets young.
    #[must_use]
    fn mkyoung(self) -> Self;
    /// Clears young.
    #[must_use]
    fn mkold(self) -> Self;
    /// Sets dirty and soft-dirty.
    #[must_use]
    fn mkdirty(self) -> Self;
    /// Clears every bit that remembers a write but soft-dirty. May remove the
    /// write permission of a shadow-stack entry.
    #[must_use]
    fn mkclean(self) -> Self;
    /// Makes the entry writable, for stores of this kind.
    #[must_use]
    fn mkwrite(self, kind: WriteKind) -> Self;
    /// Removes the write permission and keeps dirty.
    #[must_use]
    fn wrprotect(self) -> Self;
    /// Sets soft-dirty where the format has it.
    #[must_use]
    fn mksoft_dirty(self) -> Self;
    /// Clears soft-dirty.
    #[must_use]
    fn clear_soft_dirty(self) -> Self;
    /// Sets uffd-wp and removes the write permission.
    #[must_use]
    fn mkuffd_wp(self) -> Self;
    /// Clears uffd-wp; never restores the write permission.
    #[must_use]
    fn clear_uffd_wp(self) -> Self;
    /// Marks the entry special.
    #[must_use]
    fn mkspecial(self) -> Self;
    /// A present leaf that hardware no longer follows (a PMD under split).
    #[must_use]
    fn mkinvalid(self, level: Level) -> Self;
    /// Takes everything but frame and history from `prot`.
    #[must_use]
    fn modify(self, prot: Self::Prot, level: Level) -> Self;

    /// The common form of a non-present, non-empty entry.
    fn type_offset(self, level: Level) -> Option<TypeOffset>;
    /// An entry from the common form.
    ///
    /// # Errors
    ///
    /// If the format cannot hold it.
    fn from_type_offset(raw: TypeOffset, bits: SwapBits) -> Result<Self, EncodeError>;
    /// The flags of a non-present entry.
    fn swap_bits(self) -> SwapBits;
    /// The same non-present entry with other flags.
    #[must_use]
    fn with_swap_bits(self, bits: SwapBits) -> Self;

    /// Whether a CPU could hold a translation of this old value (rule PTE-19).
    fn may_be_cached(self, flush_pending: bool, level: Level) -> bool;
    /// Whether changing `self` to `new` needs a flush (rules PTE-17, ACC-24).
    fn needs_flush(self, new: Self, level: Level) -> bool;
    /// Whether changing the leaf `self` to `new` needs a flush, where one of others may be on its
    /// way: a CPU may have a translation from before this entry lost rights. So what takes a page or
    /// its dirt away is flushed whatever the entry allows by now (rules RMAP-33, TLBB-08).
    #[inline]
    fn owes_flush(self, new: Self, level: Level) -> bool {
        let same = || new.is_leaf(level) && new.pfn(level) == self.pfn(level);
        let gone = || !same() || self.is_dirty() && !new.is_dirty();
        self.needs_flush(new, level) || self.may_be_cached(true, level) && gone()
    }

    /// The meaning of a non-present, non-empty entry.
    #[inline]
    fn nonpresent(self, level: Level) -> Option<NonPresent> {
        NonPresent::decode(self.type_offset(level)?, Self::SWAP_PFN_BITS, Self::SWAP_YOUNG_DIRTY)
    }
    /// An entry that means `what`.
    ///
    /// # Errors
    ///
    /// If the format cannot hold it.
    #[inline]
    fn from_nonpresent(what: NonPresent, bits: SwapBits) -> Result<Self, EncodeError> {
        Self::from_type_offset(what.encode(Self::SWAP_PFN_BITS, Self::SWAP_YOUNG_DIRTY)?, bits)
    }
    /// The slot of a swap entry of a PTE table; `None` for everything else.
    #[inline]
    fn swap_slot(self) -> Option<SwapSlot> {
        match self.nonpresent(Level::Pte)? {
            NonPresent::Swap(slot) => Some(slot),
            _ => None,
        }
    }
    /// The swap entry for the slot `by` places further on, with the same flags (rule
    /// BATCH-17). `None` if this is none, or the format has no such slot.
    #[inline]
    fn advance_swap(self, by: i64) -> Option<Self> {
        let SwapSlot { device, offset } = self.swap_slot()?;
        let offset = offset.checked_add_signed(by)?;
        let slot = NonPresent::Swap(SwapSlot { device, offset });
        Self::from_nonpresent(slot, self.swap_bits()).ok()
    }
    /// What is left for a batch scan to compare under `MODE` (rule BATCH-05).
    #[inline]
    #[must_use]
    fn normalise<const MODE: u8>(self) -> Self {
        use crate::respect::{DIRTY, SOFT_DIRTY, WRITE};
        let mut e = self;
        if MODE & DIRTY == 0 {
            e = e.mkclean();
        }
        if MODE & SOFT_DIRTY == 0 {
            e = e.clear_soft_dirty();
        }
        if MODE & WRITE == 0 {
            e = e.wrprotect();
        }
        e.mkold()
    }
}
