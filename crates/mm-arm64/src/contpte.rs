//! Contiguous blocks of this format; the protocol is [`mm_arch::cont`].

use crate::bits::{CONT, DIRTY, PRESENT_INVALID, READ_ONLY, TYPE, VALID, WRITE};
use crate::{Arm64, Arm64Entry, Granule, Output, dirty};
use mm_arch::cont::{Blocks, ContEntry};
use mm_arch::{AccessKind, Entry, Level, respect};

use crate::bits::ACCESSED;

impl<G: Granule> Arm64<G> {
    /// Blocks of pages.
    pub const PTE_BLOCKS: Blocks = Blocks::of_pages(G::CONT_PTES, G::PAGE_SHIFT);
    /// Blocks of PMD leaves. The [`Arch`](mm_arch::Arch) operations make none, since no
    /// folio is that large; for mappings that are, call [`mm_arch::cont`] with these.
    pub const PMD_BLOCKS: Blocks = Blocks {
        nr: G::CONT_PMDS,
        level: Level::Pmd,
        shift: 2 * G::PAGE_SHIFT - 3,
        order: G::PAGE_SHIFT - 3,
    };
}

impl<G: Granule> ContEntry for Arm64Entry<G> {
    #[inline(always)]
    fn is_cont(self) -> bool {
        self.bits() & (VALID | CONT) == VALID | CONT
    }
    /// The bit means something else in an entry that is not present.
    #[inline(always)]
    fn with_cont(self, cont: bool) -> Self {
        if cont {
            self.with(CONT)
        } else if self.has(VALID | PRESENT_INVALID) {
            self.without(CONT)
        } else {
            self
        }
    }
    #[inline(always)]
    fn is_valid(self) -> bool {
        self.has(VALID)
    }
    #[inline]
    fn widened(self, e: Self) -> Self {
        let raw = dirty::widen(self.bits(), e.bits());
        Self::from_bits(raw | e.bits() & ACCESSED)
    }
    /// Accessed; and for a store through a leaf, `AP[2]` is cleared.
    #[inline]
    fn marked(self, kind: AccessKind, level: Level) -> Option<Self> {
        if !self.permits(kind, level) {
            return None;
        }
        let leaf = level == Level::Pte || !self.has(TYPE);
        let stored = kind == AccessKind::Write && leaf;
        Some(self.with(ACCESSED).without(if stored { READ_ONLY } else { 0 }))
    }
    #[inline(always)]
    fn stride(mode: u8) -> Option<(u64, u64)> {
        // An address in two pieces is not stepped by addition; and an entry whose dirt
        // counts and whose write permission does not moves the dirt (see `wrprotect`).
        let plain = matches!(G::OUTPUT, Output::Bits48);
        let moves = mode & (respect::DIRTY | respect::WRITE) == respect::DIRTY;
        if !plain || moves {
            return None;
        }
        let mut ignore = ACCESSED;
        if mode & respect::DIRTY == 0 {
            ignore |= READ_ONLY | DIRTY;
        }
        if mode & respect::WRITE == 0 {
            ignore |= READ_ONLY | WRITE;
        }
        Some((1 << G::PAGE_SHIFT, ignore))
    }
}
