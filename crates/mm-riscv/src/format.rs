//! The format: modes, geometry, and table operations by way of [`mm_arch::cont`].

use crate::bits::NAPOT_ENTRIES;
use crate::{RiscvEntry, RiscvProt};
use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;
use mm_arch::table::{Frame4K, Table, Words};
use mm_arch::{Arch, Level, Protection};
use mm_sync::atomic::AtomicU64;

/// How many levels there are.
pub trait Mode: Copy + Eq + Hash + Debug + Send + Sync + 'static {
    /// Name of the format on command lines.
    const NAME: &'static str;
    /// Levels, root first.
    const LEVELS: &'static [Level];
    /// The highest level whose leaves are used.
    const HIGHEST_LEAF: Level;

    /// Log2 of what an entry of `level` maps.
    #[inline(always)]
    fn shift(level: Level) -> u32 {
        let up = match level {
            Level::Pte => 0,
            Level::Pmd => 1,
            Level::Pud => 2,
            Level::P4d => 3,
            Level::Pgd => Self::LEVELS.len() as u32 - 1,
        };
        12 + 9 * up
    }
}

/// Three levels, 39-bit addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sv39;
impl Mode for Sv39 {
    const NAME: &'static str = "riscv-sv39";
    const LEVELS: &'static [Level] = &[Level::Pgd, Level::Pmd, Level::Pte];
    const HIGHEST_LEAF: Level = Level::Pmd;
}

/// Four levels, 48-bit addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sv48;
impl Mode for Sv48 {
    const NAME: &'static str = "riscv-sv48";
    const LEVELS: &'static [Level] = &[Level::Pgd, Level::Pud, Level::Pmd, Level::Pte];
    const HIGHEST_LEAF: Level = Level::Pud;
}

/// Five levels, 57-bit addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sv57;
impl Mode for Sv57 {
    const NAME: &'static str = "riscv-sv57";
    const LEVELS: &'static [Level] = &[Level::Pgd, Level::P4d, Level::Pud, Level::Pmd, Level::Pte];
    const HIGHEST_LEAF: Level = Level::Pud;
}

/// RISC-V in the mode `M`, on CPUs with Svadu, Svnapot, Svpbmt and Svrsw60t59b.
#[derive(Clone, Copy, Debug)]
pub struct Riscv<M: Mode>(PhantomData<M>);

// SAFETY: entries are stored as they are, and only `Entry::table` makes one that points to
// a table (checked by the laws of formats).
unsafe impl<M: Mode> Arch for Riscv<M> {
    type Entry = RiscvEntry<M>;
    type Table = Table<AtomicU64, 512, Frame4K>;

    const NAME: &'static str = M::NAME;
    const PAGE_SHIFT: u32 = 12;
    const LEVELS: &'static [Level] = M::LEVELS;
    // The lower half; the upper one is the kernel's.
    const USER_END: u64 = 1 << (9 * M::LEVELS.len() + 11);
    const CONT: usize = NAPOT_ENTRIES;
    const WRITE_SURVIVES_MKCLEAN: bool = true;
    const HAS_SOFT_DIRTY: bool = true;
    const HAS_UFFD_WP: bool = true;
    const PINCOUNT_MIN_ORDER: u32 = 1;

    #[inline(always)]
    fn shift(level: Level) -> u32 {
        M::shift(level)
    }
    #[inline(always)]
    fn nr_entries(_: Level) -> usize {
        512
    }
    #[inline]
    fn prot(protection: Protection) -> RiscvProt {
        RiscvProt::new(protection)
    }

    fn new_table() -> Self::Table {
        Words::empty()
    }

    mm_arch::block_operations!(Self::BLOCKS, |table| table.words());
}
