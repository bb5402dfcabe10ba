//! Page sizes, the tables that follow from them, and how a frame is written (rules
//! A64-01, A64-03).

use core::fmt::Debug;
use core::hash::Hash;
use mm_arch::Level;
use mm_arch::table::{Frame4K, Frame16K, Frame64K, Table, Words};
use mm_sync::atomic::AtomicU64;

/// How the output address stands in an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// 48 bits in their own places.
    Bits48,
    /// 52 bits, for pages of 64 KiB: bits 51..48 in 15..12.
    Bits52Low,
    /// 52 bits, for smaller pages: bits 49..48 in their own places, bits 51..50 where SH
    /// is otherwise (LPA2).
    Bits52Lpa2,
}

impl Output {
    /// Bits of a physical address.
    pub const fn bits(self) -> u32 {
        match self {
            Output::Bits48 => 48,
            Output::Bits52Low | Output::Bits52Lpa2 => 52,
        }
    }
    /// Bits of an entry that belong to the address.
    pub(crate) const fn field(self, page_shift: u32) -> u64 {
        match self {
            Output::Bits48 => 0x0000_ffff_ffff_ffff >> page_shift << page_shift,
            Output::Bits52Low => 0x0000_ffff_ffff_f000,
            Output::Bits52Lpa2 => 0x0003_ffff_ffff_f300,
        }
    }
    /// The bits of `address`, which is that of a page, within [`field`](Self::field).
    #[inline(always)]
    pub(crate) const fn encode(self, address: u64) -> u64 {
        match self {
            Output::Bits48 => address & 0x0000_ffff_ffff_ffff,
            Output::Bits52Low => address & 0x0000_ffff_ffff_0000 | address >> 36 & 0xf000,
            Output::Bits52Lpa2 => address & 0x0003_ffff_ffff_f000 | address >> 42 & 0x300,
        }
    }
    /// The address in an entry; below the page it is anything.
    #[inline(always)]
    pub(crate) const fn decode(self, raw: u64) -> u64 {
        match self {
            Output::Bits48 => raw & 0x0000_ffff_ffff_ffff,
            Output::Bits52Low => raw & 0x0000_ffff_ffff_0000 | (raw & 0xf000) << 36,
            Output::Bits52Lpa2 => raw & 0x0003_ffff_ffff_f000 | (raw & 0x300) << 42,
        }
    }
}

/// A page size and what comes with it.
pub trait Granule: Copy + Eq + Hash + Debug + Send + Sync + 'static {
    /// Name of the format on command lines.
    const NAME: &'static str;
    /// Log2 of a page.
    const PAGE_SHIFT: u32;
    /// Bits of a user address.
    const VA_BITS: u32;
    /// Levels, root first.
    const LEVELS: &'static [Level];
    /// Entries of a contiguous block of pages.
    const CONT_PTES: usize;
    /// Entries of a contiguous block of PMD leaves.
    const CONT_PMDS: usize;
    /// How frames are written.
    const OUTPUT: Output;
    /// The highest level that can map memory.
    const HIGHEST_LEAF: Level;
    /// A table.
    type Table: Words;

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
        Self::PAGE_SHIFT + up * (Self::PAGE_SHIFT - 3)
    }
}

/// A table of 4 KiB.
pub type Table4K = Table<AtomicU64, 512, Frame4K>;
/// A table of 16 KiB.
pub type Table16K = Table<AtomicU64, 2048, Frame16K>;
/// A table of 64 KiB.
pub type Table64K = Table<AtomicU64, 8192, Frame64K>;

/// Pages of 4 KiB, blocks of 64 KiB, four levels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Granule4K;
impl Granule for Granule4K {
    const NAME: &'static str = "arm64-4k";
    const PAGE_SHIFT: u32 = 12;
    const VA_BITS: u32 = 48;
    const LEVELS: &'static [Level] = &[Level::Pgd, Level::Pud, Level::Pmd, Level::Pte];
    const CONT_PTES: usize = 16;
    const CONT_PMDS: usize = 16;
    const OUTPUT: Output = Output::Bits48;
    const HIGHEST_LEAF: Level = Level::Pud;
    type Table = Table4K;
}

/// Pages of 4 KiB with 52-bit addresses, virtual and physical (LPA2): five levels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Granule4KLpa2;
impl Granule for Granule4KLpa2 {
    const NAME: &'static str = "arm64-4k-lpa2";
    const PAGE_SHIFT: u32 = 12;
    const VA_BITS: u32 = 52;
    const LEVELS: &'static [Level] = &[Level::Pgd, Level::P4d, Level::Pud, Level::Pmd, Level::Pte];
    const CONT_PTES: usize = 16;
    const CONT_PMDS: usize = 16;
    const OUTPUT: Output = Output::Bits52Lpa2;
    const HIGHEST_LEAF: Level = Level::Pud;
    type Table = Table4K;
}

/// Pages of 16 KiB, blocks of 2 MiB, four levels; the root has two entries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Granule16K;
impl Granule for Granule16K {
    const NAME: &'static str = "arm64-16k";
    const PAGE_SHIFT: u32 = 14;
    const VA_BITS: u32 = 48;
    const LEVELS: &'static [Level] = &[Level::Pgd, Level::Pud, Level::Pmd, Level::Pte];
    const CONT_PTES: usize = 128;
    const CONT_PMDS: usize = 32;
    const OUTPUT: Output = Output::Bits48;
    const HIGHEST_LEAF: Level = Level::Pmd;
    type Table = Table16K;
}

/// Pages of 64 KiB, blocks of 2 MiB, three levels, 52-bit physical addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Granule64K;
impl Granule for Granule64K {
    const NAME: &'static str = "arm64-64k";
    const PAGE_SHIFT: u32 = 16;
    const VA_BITS: u32 = 48;
    const LEVELS: &'static [Level] = &[Level::Pgd, Level::Pmd, Level::Pte];
    const CONT_PTES: usize = 32;
    const CONT_PMDS: usize = 32;
    const OUTPUT: Output = Output::Bits52Low;
    const HIGHEST_LEAF: Level = Level::Pmd;
    type Table = Table64K;
}
