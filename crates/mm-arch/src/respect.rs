//! What a batch scan must not ignore (rule BATCH-02).
//!
//! A mode is a `const` parameter of [`Arch::scan`](crate::Arch::scan): the sum of
//! these bits. With none, entries may differ in write, dirty, soft-dirty and
//! accessed state. The accessed bit is always ignored.

/// Stop where dirty differs.
pub const DIRTY: u8 = 1 << 0;
/// Stop where soft-dirty differs.
pub const SOFT_DIRTY: u8 = 1 << 1;
/// Stop where writability differs.
pub const WRITE: u8 = 1 << 2;
/// Report whether any entry of the run is writable.
pub const MERGE_WRITE: u8 = 1 << 3;
/// Report whether any entry of the run is young, and whether any is dirty.
pub const MERGE_YOUNG_DIRTY: u8 = 1 << 4;
/// No restrictions and no reports.
pub const NOTHING: u8 = 0;
