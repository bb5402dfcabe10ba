//! Changing address spaces: mmap, munmap, fork, mprotect, mremap, madvise, mlock, exit,
//! userfaultfd.
//!
//! # The problem
//!
//! These calls rewrite many entries at once, and each of them can hurt somebody
//! who looks at the same tables without asking: hardware that sets accessed and
//! dirty bits, CPUs that go on using translations they cached, lockless pins,
//! walkers of the reverse-map trees. A page given away too early, a write bit that
//! one entry gets from its neighbour, a pinned page shared with a child: each was a
//! real bug of a kernel. And each of these calls is faster by an order of
//! magnitude if it treats the entries of a large folio as one run.
//!
//! # The picture
//!
//! ```text
//!   MmWrite (mmap lock, write side) ── VMAs: split, change, merge; trees follow
//!      │ stay()
//!      ▼
//!   spans of the range ─► lock what is there ─► table: runs of one folio
//!                                           └─► leaf: whole, or split first
//!                                │
//!             counts, marks, counters (one length n for all)
//!                                │
//!              Flush owed / Gather of references ─► flush ─► references dropped
//! ```
//!
//! | call | a run respects | what is owed |
//! |---|---|---|
//! | [`fork`] | dirty (private), soft-dirty if tracked; write bits merged | one flush of the parent before it returns |
//! | [`munmap`], [`zap_range`], [`exit`] | nothing | a flush before any reference is dropped |
//! | [`mprotect`] | write, soft-dirty, exclusive marks | a flush if the format needs one |
//! | [`uffd_wp`] | write, soft-dirty, exclusive marks | a flush if the format needs one |
//! | [`mark_hints`] | write, soft-dirty | a flush if the format needs one |
//! | [`mremap_move`] | write | a flush of the old place under both table locks |
//! | [`unmap_object`], [`evict_range`] | nothing | a flush before any reference is dropped |
//!
//! # Invariants
//!
//! * What [`MapPolicy`] says changes how many entries a step takes, never what is
//!   left afterwards (BATCH-18): property tests compare both.
//! * No VMA ends inside of a PMD leaf (VMA-01).
//! * A private writable entry maps an exclusive page, at all times (INV-2).
//! * A dirty page of a file counts as mapped until no CPU can store to it unseen.
//! * Memory is allocated without table locks, and before the step that needs it. A
//!   call that fails leaves nothing behind that the next one could trip over.
//! * Tables are freed only where no VMA is left that a walker could come by.
//!
//! Lock order: mmap lock, trees, table locks (of fork the parent's first, of a
//! move the old place first), counts of a folio.
//!
//! # Not here
//!
//! Queues of userfaultfd events and its
//! copies of pages, `MADV_FREE` and its relatives, NUMA hints.
//!
//! # Example
//!
//! ```
//! use mm_arch::model::ModelWord;
//! use mm_arch::{Rights, VirtAddr, VirtRange};
//! use mm_map::{Advice, MapPolicy, exit, fork, madvise, mmap_anon, mprotect, munmap};
//! use mm_rmap::model::{ModelConfig, machine};
//! use mm_vma::{Mm, VmaFlags};
//!
//! let machine = machine::<ModelWord<32>>(ModelConfig::default())?;
//! let policy = MapPolicy::default();
//! let parent = Mm::new(machine)?;
//! let range = VirtRange::new(VirtAddr::new(0x1_0000), 0x8000)?;
//! let tail = VirtRange::new(VirtAddr::new(0x1_6000), 0x2000)?;
//!
//! let mut vmas = parent.write();
//! mmap_anon(&mut vmas, range, VmaFlags::READ | VmaFlags::WRITE)?;
//! mprotect(&policy, &mut vmas, tail, Rights::READ)?;
//! madvise(&policy, &mut vmas, tail, Advice::DontFork)?;
//! assert_eq!(vmas.iter().count(), 2);
//! drop(vmas);
//!
//! let child = fork(&policy, &parent)?;
//! assert_eq!(child.read().iter().count(), 1);
//! munmap(&policy, &mut child.write(), range)?;
//! exit(&policy, &child);
//! exit(&policy, &parent);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]

extern crate alloc;

mod advise;
mod ahead;
mod collapse;
mod delayed;
mod entry;
mod error;
mod exit;
mod fork;
mod guard;
mod hints;
mod holes;
mod ksm;
mod mlock;
mod mmap;
mod object;
mod policy;
mod protect;
mod remap;
mod soft_dirty;
mod tables;
mod uffd;
mod uffd_fill;
mod uffd_move;
mod vmas;
mod zap;

pub use advise::{Advice, madvise};
pub use ahead::madvise_willneed;
pub use collapse::{
    CollapseError, CollapseFor, CollapseLimits, Collapsed, collapse_anon, collapse_object,
    collapse_scan, map_collapsed,
};
pub use entry::{FolioGather, Unmapped};
pub use error::{ForkError, MapError};
pub use exit::exit;
pub use fork::fork;
pub use hints::mark_hints;
pub use holes::madvise_remove;
pub use ksm::{Ksm, KsmPass, next_merged};
pub use mlock::{LockWhen, mlock, munlock};
pub use mmap::{mmap_anon, mmap_backing, munmap};
pub use object::{evict_range, split_cached, unmap_object};
pub use policy::{Batching, MapPolicy};
pub use protect::mprotect;
pub use remap::{OldPlace, mremap_move, mremap_resize};
pub use soft_dirty::clear_soft_dirty;
pub use uffd::{UffdMode, WpChange, uffd_register, uffd_unregister, uffd_wp};
pub use uffd_fill::{Comes, uffd_continue, uffd_copy, uffd_poison, uffd_zeropage};
pub use uffd_move::{MoveHoles, uffd_move};
pub use zap::{Pages, zap_range};
