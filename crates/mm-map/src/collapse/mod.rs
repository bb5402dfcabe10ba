//! Small pages become one large folio: `MADV_COLLAPSE`, and the scan of a background thread.
//!
//! # Protocol
//!
//! Nothing of this happens in place. The pages of a block are *copied* to a new folio,
//! so others who map them keep them, and nobody has to prove that they are alone (COLL-04).
//!
//! ```text
//!   look          mmap lock, read side; table lock       is it worth it, is it allowed?
//!   allocate      no locks
//!   look again    mmap lock, write side: no faults       the same mapping, the same answer?
//!   cut off       walks excluded; PMD lock               PMD emptied, tables flushed
//!   wait          no table lock                          lockless walkers leave
//!   isolate       table lock                             each folio locked, its references
//!                                                        all explained: nobody holds it
//!   copy, map     table lock, then PMD lock              the new folio by a leaf, or by PTEs
//! ```
//!
//! The wait is what makes *isolate* right (races F-RACE-17, P-RACE-05): a lockless pin that
//! found the table has taken its reference, and is seen, or looks at the PMD again and
//! lets go. What is refused after that puts the very same table back.
//!
//! A block of the size of a PMD ends up under a leaf, its old table deposited with it.
//! A smaller one goes into the table, which is linked again.
//!
//! Shared memory is collapsed in its object: see [`collapse_object`].

mod anon;
mod object;

pub use anon::{collapse_anon, collapse_scan};
pub use object::{collapse_object, map_collapsed};

use mm_arch::VirtAddr;
use mm_vma::VmaFlags;

/// What a scan in the background does not do, and a caller who asks for it does
/// (rule COLL-01). Numbers are of pages of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollapseLimits {
    /// Pages that are not there, or are the zero page.
    pub max_none: u32,
    /// Pages that are in swap.
    pub max_swap: u32,
    /// Pages that more than one mapping shows.
    pub max_shared: u32,
}

impl CollapseLimits {
    /// What kernels start with, for blocks of `nr` pages.
    pub const fn default_of(nr: u32) -> Self {
        CollapseLimits { max_none: nr - 1, max_swap: nr / 8, max_shared: nr / 2 }
    }
}

/// On whose behalf pages are collapsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollapseFor {
    /// Somebody asked for it: no limits.
    Caller,
    /// A scan: within limits, and only what was used lately.
    Scan(CollapseLimits),
}

/// What came of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collapsed {
    /// It is one folio now.
    Now,
    /// It was one.
    Already,
}

/// Why a block was not collapsed. Everything is mapped as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollapseError {
    /// No mapping covers the block, or it is of a kind that is not collapsed.
    #[error("the mapping at {0} is not collapsed")]
    NotAllowed(VirtAddr),
    /// Nothing of it was ever there.
    #[error("nothing is mapped at {0}")]
    Nothing(VirtAddr),
    /// More pages than the limit are not there.
    #[error("the block at {0} has too many pages that are not there")]
    TooManyNone(VirtAddr),
    /// More pages than the limit are in swap.
    #[error("the block at {0} has too many pages in swap")]
    TooManySwapped(VirtAddr),
    /// More pages than the limit are shared.
    #[error("the block at {0} has too many shared pages")]
    TooManyShared(VirtAddr),
    /// A page is in swap: bring it in, and ask again.
    #[error("the page at {0} is in swap")]
    Swapped(VirtAddr),
    /// An entry says something that a leaf could not say: a mark of userfaultfd, a guard,
    /// a page that is being moved.
    #[error("the entry at {0} cannot become a part of a leaf")]
    Entry(VirtAddr),
    /// No page was used lately.
    #[error("no page at {0} was used lately")]
    NotUsed(VirtAddr),
    /// Somebody holds or locks a page.
    #[error("somebody holds the page at {0}")]
    Held(VirtAddr),
    /// No memory.
    #[error("no memory to collapse the block at {0}")]
    NoMemory(VirtAddr),
}

impl CollapseError {
    /// The kernel's name of the error.
    pub const fn errno(self) -> &'static str {
        match self {
            CollapseError::NoMemory(_) => "ENOMEM",
            CollapseError::Held(_) => "EAGAIN",
            _ => "EINVAL",
        }
    }
}

/// Mappings of these kinds are never collapsed.
const NEVER: VmaFlags = VmaFlags::IO
    .union(VmaFlags::PFNMAP)
    .union(VmaFlags::DONTEXPAND)
    .union(VmaFlags::NOHUGEPAGE)
    .union(VmaFlags::SHADOW_STACK)
    .union(VmaFlags::SECRETMEM);
