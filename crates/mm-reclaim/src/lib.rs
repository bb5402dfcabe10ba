//! Reclaim: which folios are used, and how those that are not leave every address space.
//!
//! # The problem
//!
//! A machine short of memory takes pages back from whoever maps them, behind the back of
//! programs that may use them at the same moment. CPUs go on using what they have cached,
//! a device stores to a page that no entry maps any more, somebody takes a reference
//! while the last mapping goes. Each of these has lost data in a kernel. And it happens
//! millions of times: a large folio whose entries are taken one by one pays for the
//! counts of sixteen or five hundred pages where one exchange does.
//!
//! # The picture
//!
//! ```text
//!   folio ─► referenced ─► try_to_unmap ─────────────────► nobody maps it
//!              │ trees       │ trees
//!              ▼             ▼
//!            runs of one   run ─► taken ─┬─ gone: counters, map counts, references by n
//!            folio: bits   of one        ├─ marker, swap entry, poison
//!            cleared       folio         └─ back, with no more rights than before
//!                            │
//!                          flush put off ─► FlushBatch ─► flushed ─► folios given back
//! ```
//!
//! | call | answers |
//! |---|---|
//! | [`referenced`] | who used the folio since last time; clears the accessed bits |
//! | [`mark_idle`], [`is_idle`] | whether anybody used it since one began to watch; takes nothing from reclaim |
//! | [`try_to_unmap`], [`try_to_unmap_each`] | whether all mappings are gone, or why not |
//! | [`FlushBatch`] | makes the flushes that were put off, before pages are given away |
//! | [`shrink_folios`] | takes folios through all of it, and frees those that may go |
//! | [`Lru`] | the lists that folios wait on, by age |
//! | [`shrink_lists`] | takes the oldest of them, files and anonymous memory by weight |
//! | [`reclaim`] | so many bytes of a group of processes, on request |
//! | [`madvise_free`], [`madvise_cold`], [`madvise_pageout`] | the same for what a program names |
//!
//! # Invariants
//!
//! * What [`UnmapPolicy`] says changes how many entries a step takes, never what is left:
//!   property tests compare all policies with the one that takes single entries.
//! * A run lies in one table, one VMA and one folio (UNMAP-08), and its length is one
//!   number that counters, map counts and references get alike (UNMAP-14, UNMAP-16).
//! * What comes back allows no more than before (UNMAP-18), and dirt is never lost.
//! * A page is given away behind the flush that covers its entries (TLBB-06).
//!
//! # What a kernel brings
//!
//! [`ReclaimPlatform`]: one [`Lru`] for the frames of its memory map, which its
//! [`FolioSource`](mm_folio::FolioSource) tells of folios that come and go (`list`, `unlist`), and
//! its objects by name. Anonymous folios are put on lists by whoever makes them, with valid content
//! (`UPTODATE`); those of an object by its [`Backing`](mm_vma::Backing), which has to implement
//! `release` for them to go, and `split` for a part of a large one to. When to reclaim is the
//! kernel's business.
//!
//! Lock order: folio lock, trees, table locks, counts of a folio.
//!
//! # Not here
//!
//! Swap devices, writing pages of files out. Accounting of memory by group: a group has what
//! its address spaces map. Generations of pages.
//!
//! # Example
//!
//! ```
//! use mm_arch::model::ModelWord;
//! use mm_reclaim::{FlushBatch, UnmapFlags, UnmapPolicy, Unmapped, try_to_unmap};
//! use mm_rmap::model::{ModelConfig, machine};
//! use mm_vma::Platform;
//!
//! let machine = machine::<ModelWord<8>>(ModelConfig::default())?;
//! // A folio that nothing maps: done at once.
//! let own = machine.memmap().alloc(2)?;
//! let locked = own.folio().lock();
//! let mut flushes = FlushBatch::new(&machine);
//! let end = try_to_unmap(UnmapPolicy::All, &locked, UnmapFlags::empty(), &mut flushes);
//! assert_eq!(end, Unmapped::All);
//! drop(locked);
//! flushes.free(own);
//! flushes.finish();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]

extern crate alloc;

mod advise;
mod balance;
mod flush;
mod lru;
#[cfg(feature = "model")]
pub mod model;
mod platform;
mod policy;
mod proactive;
mod referenced;
mod scope;
mod shrink;
mod split;
mod unmap;

pub use advise::{AdviceError, madvise_cold, madvise_free, madvise_pageout};
pub use balance::{Balance, shrink_lists};
pub use flush::FlushBatch;
pub use lru::{Lru, LruList, Passed};
pub use platform::ReclaimPlatform;
pub use policy::UnmapPolicy;
pub use proactive::{ReclaimError, ReclaimRequest, Swappiness, reclaim};
pub use referenced::{Referenced, is_idle, mark_idle, referenced, referenced_unlocked};
pub use scope::ReclaimOf;
pub use shrink::{Shrink, Shrunk, shrink_folios};
pub use unmap::{Kept, UnmapFlags, Unmapped, try_to_unmap, try_to_unmap_each};

use mm_arch::Arch;
use mm_pgtable::TableSpace;

/// An entry.
pub(crate) type E<P> = <<P as TableSpace>::Arch as Arch>::Entry;
