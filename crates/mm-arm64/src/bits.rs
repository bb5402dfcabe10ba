//! Where the bits are (rule A64-02).

use static_assertions::const_assert_eq;

/// Hardware follows the entry.
pub const VALID: u64 = 1 << 0;
/// A page, or a table; clear in a block, which is a leaf of a level above.
pub const TYPE: u64 = 1 << 1;
/// First of three bits that pick a memory type.
pub const ATTR_SHIFT: u32 = 2;
/// The memory type.
pub const ATTR: u64 = 7 << ATTR_SHIFT;
/// `AP[1]`: EL0 may use the entry.
pub const USER: u64 = 1 << 6;
/// `AP[2]`: no stores. In an entry with [`WRITE`] set: not stored through yet.
pub const READ_ONLY: u64 = 1 << 7;
/// SH: shared by the inner domain. With LPA2 two bits of the address.
pub const INNER_SHAREABLE: u64 = 3 << 8;
/// AF: used by a walk since last cleared.
pub const ACCESSED: u64 = 1 << 10;
/// nG: belongs to one address space, where [`VALID`] is set.
pub const NOT_GLOBAL: u64 = 1 << 11;
/// Present although hardware does not follow it, where [`VALID`] is clear (rule A64-07).
pub const PRESENT_INVALID: u64 = 1 << 11;
/// GP: a page of guarded branches.
pub const GUARDED: u64 = 1 << 50;
/// DBM: stores are allowed; hardware clears [`READ_ONLY`] on the first.
pub const WRITE: u64 = 1 << 51;
/// One of a block of entries that hardware may use as one.
pub const CONT: u64 = 1 << 52;
/// PXN: the kernel does not execute this.
pub const PRIVILEGED_NO_EXECUTE: u64 = 1 << 53;
/// UXN: EL0 does not execute this.
pub const USER_NO_EXECUTE: u64 = 1 << 54;
/// Software: written, while [`READ_ONLY`] does not say so.
pub const DIRTY: u64 = 1 << 55;
/// Software: no folio is behind the entry.
pub const SPECIAL: u64 = 1 << 56;
/// Software: write-protected by userfaultfd.
pub const UFFD_WP: u64 = 1 << 58;
/// In a table entry, PXNTable: the kernel executes nothing below.
pub const TABLE_NO_EXECUTE: u64 = 1 << 59;
/// First of three bits that pick a permission overlay.
pub const OVERLAY_SHIFT: u32 = 60;
/// The permission overlay.
pub const OVERLAY: u64 = 7 << OVERLAY_SHIFT;
/// Bits that hardware does not look at in a leaf.
pub const SOFTWARE: u64 = 0xf << 55 | 1 << 63;

/// Non-present: the page was anonymous and exclusive.
pub const SWAP_EXCLUSIVE: u64 = 1 << 2;
/// Non-present: userfaultfd write protection.
pub const SWAP_UFFD_WP: u64 = 1 << 3;

const_assert_eq!((DIRTY | SPECIAL | UFFD_WP) & !SOFTWARE, 0);
const_assert_eq!(OVERLAY & SOFTWARE, 0);
