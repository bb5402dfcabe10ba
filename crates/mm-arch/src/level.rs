//! Levels of a page table.

/// A level of the page-table tree, named for what its *entries* are.
///
/// Not every format has every level; [`Arch::LEVELS`](crate::Arch::LEVELS) lists those it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Level {
    /// Entries that map base pages.
    Pte = 0,
    /// Entries that point to PTE tables or map one table's worth of memory.
    Pmd = 1,
    /// Entries above PMD tables.
    Pud = 2,
    /// Entries above PUD tables, with five levels.
    P4d = 3,
    /// Entries of the root.
    Pgd = 4,
}
