//! Contiguous blocks (Svnapot) of this format; the protocol is [`mm_arch::cont`].
//!
//! All sixteen entries of a block are the same word: the frame's lower bits say how large
//! the block is. What they would be is the position of the entry, so a value is
//! completed when it is loaded, and cut when it is stored.

use crate::bits::{
    ACCESSED, DIRTY, FRAME_SHIFT, LEAF, NAPOT, NAPOT_ENTRIES, NAPOT_PLACE, NAPOT_SIZE, PROT_NONE,
    SOFT_DIRTY, VALID, WRITE,
};
use crate::{Mode, Riscv, RiscvEntry};
use mm_arch::cont::{Blocks, ContEntry};
use mm_arch::{AccessKind, Entry, Level, respect};

impl<M: Mode> Riscv<M> {
    /// Blocks of pages.
    pub const BLOCKS: Blocks = Blocks::of_pages(NAPOT_ENTRIES, 12);
}

const fn in_block(raw: u64) -> bool {
    raw & (VALID | NAPOT) == VALID | NAPOT && raw & LEAF != 0
}

impl<M: Mode> ContEntry for RiscvEntry<M> {
    #[inline(always)]
    fn loaded(raw: u64, position: usize) -> Self {
        if in_block(raw) {
            let place = (position as u64) << FRAME_SHIFT & NAPOT_PLACE;
            return Self::from_bits(raw & !NAPOT_PLACE | place);
        }
        Self::from_bits(raw)
    }
    #[inline(always)]
    fn stored(self) -> u64 {
        let raw = self.bits();
        if in_block(raw) { raw & !NAPOT_PLACE | NAPOT_SIZE } else { raw }
    }
    #[inline(always)]
    fn is_cont(self) -> bool {
        in_block(self.bits())
    }
    /// The bit means something else in an entry that is not present.
    #[inline(always)]
    fn with_cont(self, cont: bool) -> Self {
        if cont {
            self.with(NAPOT)
        } else if self.has(VALID | PROT_NONE) {
            self.without(NAPOT)
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
        self.with(e.bits() & (ACCESSED | DIRTY | SOFT_DIRTY | WRITE))
    }
    /// As hardware with Svadu does it.
    #[inline]
    fn marked(self, kind: AccessKind, level: Level) -> Option<Self> {
        let stored = if kind == AccessKind::Write { DIRTY } else { 0 };
        self.permits(kind, level).then(|| self.with(ACCESSED | stored))
    }
    #[inline(always)]
    fn stride(mode: u8) -> Option<(u64, u64)> {
        let mut ignore = ACCESSED;
        if mode & respect::DIRTY == 0 {
            ignore |= DIRTY;
        }
        if mode & respect::SOFT_DIRTY == 0 {
            ignore |= SOFT_DIRTY;
        }
        if mode & respect::WRITE == 0 {
            ignore |= WRITE;
        }
        Some((1 << FRAME_SHIFT, ignore))
    }
}
