//! The memory map: folio records, references, pins, map counts.
//!
//! # The problem
//!
//! A *folio* is a naturally aligned run of `1 << order` page frames that is
//! allocated, referenced, locked and freed as one. Whoever changes a mapping
//! must know who else uses the memory behind it: how many entries map it, of
//! which address spaces; whether a device writes to it (a *pin*); whether the
//! cache still has it. And the fastest users, lockless pins, come in while all
//! of that changes, holding nothing but a frame number that they read from a
//! page table a moment ago.
//!
//! This crate is those counts, 32 bytes and one bit per page, and the protocols
//! on them. It knows nothing of page tables or VMAs; whoever maps and unmaps
//! pages calls it under the table lock.
//!
//! # The protocols
//!
//! **Finding a folio without a lock** ([`MemMap::try_grab`]): read the page's
//! compound word, add a reference unless the count is zero, read the compound
//! word again. Zero means free or frozen; a changed word means that the page
//! moved to another folio in between. Compound words change only at a count of
//! zero, and the count becomes positive by a releasing store.
//!
//! **Pin against share.** A pinner raises the count, executes a full barrier and
//! looks at the entry again. A sharer (fork, swap-out, merging) clears the entry,
//! executes a full barrier and looks at the count. At least one sees the other.
//!
//! **References and mappings.** A mapping owns one reference; references are
//! taken before mappings are counted and dropped after. So "as many references
//! as mappings", read where no mapping can come or go
//! ([`Folio::counts_locked`]), means that nobody else holds the folio.
//!
//! **Counts of a large folio** change under a bit lock in its second record and
//! are plain stores; they include which two address spaces map it how often.
//!
//! **Exclusive marks** are a bitmap with a bit per page. A batch asks for a
//! prefix of whole words.
//!
//! # Not here
//!
//! Finding the mappings of a folio (reverse-map trees), reclaim lists, hugetlb
//! folios, memory accounting.
//!
//! # Example
//!
//! ```
//! use core::num::NonZeroU32;
//! use mm_arch::{Level, Pfn};
//! use mm_folio::*;
//! use std::sync::Mutex;
//!
//! /// Frames handed out from the bottom, never reused.
//! struct Bump(Mutex<u64>);
//! impl FolioSource for Bump {
//!     fn alloc(&self, order: u32) -> Result<Pfn, AllocError> {
//!         let mut next = self.0.lock().unwrap();
//!         let head = next.next_multiple_of(1 << order);
//!         *next = head + (1 << order);
//!         if *next <= 1024 { Ok(Pfn::new(head)) } else { Err(AllocError) }
//!     }
//!     fn free(&self, _head: Pfn, _order: u32) {}
//! }
//! struct Space;
//! impl FolioSpace for Space {
//!     type Source = Bump;
//!     type FolioLock = mm_sync::DefaultLock;
//! }
//!
//! let map = MemMap::<Space>::new(Pfn::new(0), 1024, Bump(Mutex::new(16)))?;
//! let mm = MmId::new(1).unwrap();
//! // A fault maps a new 64K folio: one reference per mapping.
//! let mut new = map.alloc(4)?;
//! new.folio().set_anon(AnonId(1), 0x1000);
//! new.grow(15).unwrap();
//! new.folio().add_new_anon(mm, Level::Pte, Exclusivity::Exclusive);
//! let folio = new.hand_over();
//! // A device pins four pages of it, as GUP-fast would: by frame number.
//! let pin = map.try_grab::<Pin>(folio.page(3), 4).unwrap();
//! assert!(folio.maybe_dma_pinned());
//! assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), (20, 16));
//! drop(pin);
//! // The address space unmaps everything: mappings first, references after.
//! folio.remove_ptes(0, NonZeroU32::new(16).unwrap(), mm);
//! map.put_run::<Get>(FolioRun::new(folio.head(), 0, 16));
//! assert_eq!(map.alive().count(), 0);
//! # Ok::<(), AllocError>(())
//! ```
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
// The shorthands of the integration tests name the crate from outside.
#[cfg(test)]
extern crate self as mm_folio;

pub mod audit;
mod counts;
mod deferred;
mod exclusive;
mod flags;
mod folio;
mod memmap;
mod mm_ids;
mod record;
mod refs;
mod rmap;
mod source;
mod stats;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod testing;

pub use counts::Counts;
pub use deferred::QueueReason;
pub use flags::FolioFlags;
pub use folio::{AnonId, FileId, Folio, FolioLockGuard};
pub use memmap::MemMap;
pub use mm_ids::{MmId, MmIds};
pub use refs::{FolioRef, FolioRun, Get, Glance, GrabError, PIN_BIAS, Pin, RefKind};
pub use rmap::{Exclusivity, HasPinned, MaybePinned, UnmappedPages};
pub use source::{AllocError, Effort, FolioSource, FolioSpace, FrameBytes};
pub use stats::{FolioStats, MAX_ORDERS, OrderStats};
