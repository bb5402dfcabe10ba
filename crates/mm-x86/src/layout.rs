//! What differs between the bits of 64-bit and of 32-bit kernels.

use crate::bits;
use crate::explain::{self, Fields};
use core::fmt::Debug;
use core::hash::Hash;
use mm_arch::Level;

mod seal {
    pub trait Sealed {}
    impl<const SHSTK: bool> Sealed for super::Long<SHSTK> {}
    impl<const NX: bool> Sealed for super::Pae<NX> {}
}

/// Where a kernel keeps its own bits, and which features it has. Sealed: [`Long`]
/// and [`Pae`].
pub trait Layout:
    seal::Sealed + Copy + Eq + Hash + Debug + Default + Send + Sync + 'static
{
    /// Whether the CPU has shadow stacks for user mode.
    const SHSTK: bool;
    /// Where dirty goes while write permission is away (rule PTE-03).
    const SAVED_DIRTY_SHIFT: u32;
    /// The soft-dirty bit, or nothing.
    const SOFT_DIRTY: u64;
    /// The uffd-wp bit, or nothing.
    const UFFD_WP: u64;
    /// The protection key, or nothing.
    const PKEY: u64;
    /// Bits that must be zero in an entry that hardware follows.
    const RESERVED: u64;
    /// Bits of a leaf that are free for software and that no kernel uses.
    const UNUSED: u64;
    /// Whether entries of a PUD may map memory.
    const PUD_LEAVES: bool;
    /// Whether a PMD may hold a non-present entry.
    const PMD_NONPRESENT: bool;
    /// Width of a frame number in a migration entry, and of frames of real memory.
    const PFN_BITS: u32;
    /// Width of the offset of a swap entry.
    const SWAP_OFFSET_BITS: u32;
    /// Non-present: the page was anonymous and exclusive.
    const SWAP_EXCLUSIVE: u64;
    /// Non-present: userfaultfd write protection, or nothing.
    const SWAP_UFFD_WP: u64;
    /// Non-present: soft-dirty, or nothing.
    const SWAP_SOFT_DIRTY: u64;
    /// Where the bits are, for people.
    const FIELDS: Fields;

    /// Whether entries of `level` have no permissions and no history (rule PAE-05).
    fn is_bare(level: Level) -> bool;
}

/// Entries of a 64-bit kernel. `SHSTK`: whether the CPU has shadow stacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Long<const SHSTK: bool>;

impl<const SHSTK: bool> Layout for Long<SHSTK> {
    const SHSTK: bool = SHSTK;
    const SAVED_DIRTY_SHIFT: u32 = 58;
    const SOFT_DIRTY: u64 = bits::SOFT_DIRTY;
    const UFFD_WP: u64 = bits::UFFD_WP;
    const PKEY: u64 = bits::PKEY;
    const RESERVED: u64 = 0;
    const UNUSED: u64 = 0x3f << 52;
    const PUD_LEAVES: bool = true;
    const PMD_NONPRESENT: bool = true;
    const PFN_BITS: u32 = 40;
    const SWAP_OFFSET_BITS: u32 = 50;
    const SWAP_EXCLUSIVE: u64 = 1 << 3;
    const SWAP_UFFD_WP: u64 = 1 << 2;
    const SWAP_SOFT_DIRTY: u64 = 1 << 1;
    const FIELDS: Fields = explain::LONG;

    #[inline(always)]
    fn is_bare(_: Level) -> bool {
        false
    }
}

/// Entries of a 32-bit kernel. `NX`: whether the CPU can refuse instruction fetches.
///
/// Every flag but NX is in the low word, so that a permission change never touches
/// the high one (rules PAE-02, PAE-11). There is no soft-dirty, no uffd-wp, no
/// protection key (rule PAE-14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pae<const NX: bool>;

impl<const NX: bool> Layout for Pae<NX> {
    const SHSTK: bool = false;
    // The place that uffd-wp has on 64 bits.
    const SAVED_DIRTY_SHIFT: u32 = 10;
    const SOFT_DIRTY: u64 = 0;
    const UFFD_WP: u64 = 0;
    const PKEY: u64 = 0;
    const RESERVED: u64 = 0x7ff0_0000_0000_0000 | if NX { 0 } else { bits::NO_EXECUTE };
    const UNUSED: u64 = 1 << 11;
    const PUD_LEAVES: bool = false;
    const PMD_NONPRESENT: bool = false;
    // 64 GiB; young and dirty of a migration entry just fit behind (rule SWP-05).
    const PFN_BITS: u32 = 24;
    const SWAP_OFFSET_BITS: u32 = 26;
    // A PMD never holds one, so the leaf mark is free (rule PAE-13).
    const SWAP_EXCLUSIVE: u64 = 1 << 7;
    const SWAP_UFFD_WP: u64 = 0;
    const SWAP_SOFT_DIRTY: u64 = 0;
    const FIELDS: Fields = explain::PAE;

    #[inline(always)]
    fn is_bare(level: Level) -> bool {
        level >= Level::Pud
    }
}

// What a 32-bit permission change touches is in the word it exchanges.
const _: () = assert!(Pae::<true>::SAVED_DIRTY_SHIFT < 32);
// Young and dirty have room behind the frame of a migration entry.
const _: () = assert!(Long::<true>::PFN_BITS + 2 <= Long::<true>::SWAP_OFFSET_BITS);
const _: () = assert!(Pae::<true>::PFN_BITS + 2 == Pae::<true>::SWAP_OFFSET_BITS);
