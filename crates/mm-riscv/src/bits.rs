//! Where the bits are, and how frames and blocks are written.

use static_assertions::const_assert_eq;

/// V: hardware follows the entry.
pub const VALID: u64 = 1 << 0;
/// R: loads go through.
pub const READ: u64 = 1 << 1;
/// W: stores go through.
pub const WRITE: u64 = 1 << 2;
/// X: instruction fetches go through.
pub const EXEC: u64 = 1 << 3;
/// U: user mode may use the entry.
pub const USER: u64 = 1 << 4;
/// G: global, where [`VALID`] is set.
pub const GLOBAL: u64 = 1 << 5;
/// Present without any access, where [`VALID`] is clear.
pub const PROT_NONE: u64 = 1 << 5;
/// A: used by a walk since last cleared.
pub const ACCESSED: u64 = 1 << 6;
/// D: stored through.
pub const DIRTY: u64 = 1 << 7;
/// Software: no folio is behind the entry.
pub const SPECIAL: u64 = 1 << 8;
/// Software: free.
pub const UNUSED: u64 = 1 << 9;
/// Software (Svrsw60t59b): written since tracking was last reset.
pub const SOFT_DIRTY: u64 = 1 << 59;
/// Software (Svrsw60t59b): write-protected by userfaultfd.
pub const UFFD_WP: u64 = 1 << 60;
/// Must be zero.
pub const RESERVED: u64 = 0x1f << 54;
/// PBMT (Svpbmt): a memory type other than that of the place.
pub const MEMORY_TYPE: u64 = 3 << 61;
/// N (Svnapot): one of a block of entries that hardware may use as one.
pub const NAPOT: u64 = 1 << 63;

/// An entry with one of these maps memory, one with none points to a table.
pub const LEAF: u64 = READ | WRITE | EXEC;

/// Where the frame starts.
pub const FRAME_SHIFT: u32 = 10;
/// Bits of a frame number.
pub const FRAME_BITS: u32 = 44;
/// The frame.
pub const FRAME: u64 = ((1 << FRAME_BITS) - 1) << FRAME_SHIFT;

/// Entries of a block.
pub const NAPOT_ENTRIES: usize = 16;
/// The lower bits of the frame in every entry of a block: they say its size, and the
/// position of the entry stands for what they would be.
pub const NAPOT_SIZE: u64 = 8 << FRAME_SHIFT;
/// Where [`NAPOT_SIZE`] is.
pub const NAPOT_PLACE: u64 = 0xf << FRAME_SHIFT;

/// Non-present: soft-dirty.
pub const SWAP_SOFT_DIRTY: u64 = 1 << 4;
/// Non-present: the page was anonymous and exclusive.
pub const SWAP_EXCLUSIVE: u64 = 1 << 6;
/// Non-present: userfaultfd write protection.
pub const SWAP_UFFD_WP: u64 = 1 << 7;

const_assert_eq!(FRAME | RESERVED | SOFT_DIRTY | UFFD_WP | MEMORY_TYPE | NAPOT | 0x3ff, !0);
