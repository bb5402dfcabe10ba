//! Where the bits are (rules PTE-02..04). What is said to be software's is so in
//! 64-bit kernels; [`Layout`](crate::Layout) says where 32-bit ones differ.

use static_assertions::const_assert_eq;

/// P: hardware follows the entry.
pub const PRESENT: u64 = 1 << 0;
/// RW: ordinary stores go through.
pub const WRITE: u64 = 1 << 1;
/// US: user mode may use the entry.
pub const USER: u64 = 1 << 2;
/// PWT: memory type.
pub const PWT: u64 = 1 << 3;
/// PCD: memory type.
pub const PCD: u64 = 1 << 4;
/// A: used by a walk since last cleared.
pub const ACCESSED: u64 = 1 << 5;
/// D: stored through; with [`WRITE`] clear also "shadow stack".
pub const DIRTY: u64 = 1 << 6;
/// PS: an upper-level entry that maps memory.
pub const PAGE_SIZE: u64 = 1 << 7;
/// PAT of a 4 KiB leaf, in the place of [`PAGE_SIZE`].
pub const PAT: u64 = 1 << 7;
/// G: global, where [`PRESENT`] is set.
pub const GLOBAL: u64 = 1 << 8;
/// Present without any access, where [`PRESENT`] is clear (rule PTE-05).
pub const PROT_NONE: u64 = 1 << 8;
/// Software: no folio is behind the entry.
pub const SPECIAL: u64 = 1 << 9;
/// Software: write-protected by userfaultfd.
pub const UFFD_WP: u64 = 1 << 10;
/// Software: written since tracking was last reset.
pub const SOFT_DIRTY: u64 = 1 << 11;
/// PAT of a large leaf: the lowest frame bit of a small one.
pub const PAT_LARGE: u64 = 1 << 12;
/// Software: dirty while write permission is away.
pub const SAVED_DIRTY: u64 = 1 << 58;
/// First of four bits of the protection key.
pub const PKEY_SHIFT: u32 = 59;
/// The protection key.
pub const PKEY: u64 = 0xf << PKEY_SHIFT;
/// NX: no instruction fetches.
pub const NO_EXECUTE: u64 = 1 << 63;

/// The frame of a 4 KiB leaf or of a table; and everything in an upper-level
/// leaf that is frame, reserved or [`PAT_LARGE`].
pub const FRAME: u64 = 0x000f_ffff_ffff_f000;
/// One frame.
pub const FRAME_STEP: u64 = 1 << 12;

/// Flags of an entry that points to a table (rule PTE-13): everything is
/// allowed, the leaf decides.
pub const TABLE: u64 = PRESENT | WRITE | USER | ACCESSED | DIRTY;

// Software bits must not be bits that hardware looks at.
const_assert_eq!((SPECIAL | UFFD_WP | SOFT_DIRTY | SAVED_DIRTY) & (FRAME | PKEY | NO_EXECUTE), 0);
const_assert_eq!(SAVED_DIRTY, 0x0400_0000_0000_0000);
