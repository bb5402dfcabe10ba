//! The format: geometry, and table operations by way of [`mm_arch::cont`].

use crate::prot::Arm64Prot;
use crate::{Arm64Entry, Granule};
use core::marker::PhantomData;
use mm_arch::table::Words;
use mm_arch::{Arch, Level, Protection};

/// arm64 with pages of the granule `G`, on CPUs that manage accessed and dirty.
#[derive(Clone, Copy, Debug)]
pub struct Arm64<G: Granule>(PhantomData<G>);

// SAFETY: entries are stored as they are, and only `Entry::table` makes one that points to
// a table (checked by the laws of formats).
unsafe impl<G: Granule> Arch for Arm64<G> {
    type Entry = Arm64Entry<G>;
    type Table = G::Table;

    const OLD_PREFAULT: bool = true;
    const NAME: &'static str = G::NAME;
    const PAGE_SHIFT: u32 = G::PAGE_SHIFT;
    const LEVELS: &'static [Level] = G::LEVELS;
    const USER_END: u64 = 1 << G::VA_BITS;
    const CONT: usize = G::CONT_PTES;
    const WRITE_SURVIVES_MKCLEAN: bool = true;
    const HAS_SOFT_DIRTY: bool = false;
    const HAS_UFFD_WP: bool = true;
    const BROADCASTS_FLUSHES: bool = true;
    const PINCOUNT_MIN_ORDER: u32 = 1;

    #[inline(always)]
    fn shift(level: Level) -> u32 {
        G::shift(level)
    }
    #[inline(always)]
    fn nr_entries(level: Level) -> usize {
        let bits = match level {
            Level::Pgd => G::VA_BITS - G::shift(level),
            _ => G::PAGE_SHIFT - 3,
        };
        1 << bits
    }
    #[inline]
    fn prot(protection: Protection) -> Arm64Prot {
        Arm64Prot::new(protection, G::OUTPUT)
    }

    fn new_table() -> Self::Table {
        Words::empty()
    }

    mm_arch::block_operations!(Self::PTE_BLOCKS, |table| table.words());
}
