//! The one function that says which entries around an address belong together.

use mm_arch::{Arch, Level, VirtAddr, VirtRange};

/// How far a window may reach around the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// The whole page table.
    Table,
    /// The naturally aligned block of this many pages (a power of two).
    Pages(usize),
}

/// What a window is asked for.
#[derive(Clone, Copy, Debug)]
pub struct WindowRequest {
    /// The address in question, inside `vma`.
    pub va: VirtAddr,
    /// Index of its page in the folio.
    pub index: usize,
    /// Pages of the folio.
    pub folio_pages: usize,
    /// The mapping.
    pub vma: VirtRange,
    /// How far to reach.
    pub block: Block,
}

/// The entries before and after an address that may map the same folio: inside
/// the folio, the mapping, and the block or table (rules WREUSE-03..05, UNMAP-07).
///
/// # Invariants
///
/// `1 <= after`, and `[va - before, va + after)` lies inside all four bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Entries before the address.
    pub before: usize,
    /// Entries from the address on, itself included.
    pub after: usize,
}

impl Window {
    /// The window of `request`. Differences only, no sums: nothing wraps at the
    /// top of the address space.
    pub fn of<A: Arch>(request: &WindowRequest) -> Self {
        let WindowRequest { va, index, folio_pages, vma, block } = *request;
        let shift = A::PAGE_SHIFT;
        let in_table = A::index(va, Level::Pte);
        let (block_before, block_after) = match block {
            Block::Table => (in_table, A::nr_entries(Level::Pte) - in_table),
            Block::Pages(n) => {
                let at = (va.get() >> shift) as usize & (n - 1);
                // A block larger than a table is cut by the table.
                (at.min(in_table), (n - at).min(A::nr_entries(Level::Pte) - in_table))
            }
        };
        let vma_before = clamp(va.bytes_from(vma.start()) >> shift);
        let vma_after = clamp(vma.bytes_after(va.align_down(shift)) >> shift);
        Window {
            before: index.min(block_before).min(vma_before),
            after: (folio_pages - index).min(block_after).min(vma_after).max(1),
        }
    }
    /// Number of entries.
    pub const fn nr(&self) -> usize {
        self.before + self.after
    }
}

fn clamp(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
