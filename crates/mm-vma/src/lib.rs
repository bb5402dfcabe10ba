//! VMAs, address spaces, and the traits a kernel implements.
//!
//! # The problem
//!
//! The algorithms above this crate (GUP, faults, fork, unmapping) need three
//! things from a kernel: which mappings exist and what they allow, a lock that
//! keeps that stable, and services (memory, frames, flushes, events). This
//! crate is where those meet: [`Mm`] is one address space, [`Platform`] is the
//! kernel, and a guard of the mmap lock is the proof that page tables stay.
//!
//! ```text
//!   Platform = TableSpace (tables, epochs, TLBs) + FolioSpace (memory map) + bytes, events
//!       │
//!      Mm ── mmap lock ── VmaStore ── Vma, Vma, …
//!       ├─ PageTables        (split locks; lockless walkers)
//!       ├─ MmCounters        (RSS by kind)
//!       └─ write-protect sequence, has-pinned flag, MM id
//! ```
//!
//! # Protocol
//!
//! * Faults and GUP hold the read side, everything that changes VMAs the write
//!   side. Page tables are freed only under the write side, after the VMAs
//!   left the reverse-map trees, so either side is a
//!   [`TablesStay`] proof: see [`MmRead::stay`].
//! * A fault may lock its VMA alone ([`Mm::lock_vma`]). A writer has excluded whoever holds the
//!   lock of any VMA ([`Mm::write`]), or of those that it changes ([`Mm::write_within`]).
//! * An address space that ever pinned says so *before* its first pin attempt
//!   and for ever ([`Mm::set_has_pinned`], rule PIN-12): fork looks at pin
//!   counts only then.
//! * Fork makes the write-protect sequence odd for its whole copy (rule FORK-03).
//! * A mapping of a file or of shared memory names its object, a [`Backing`].
//!
//! * A swap entry counts on its slot: see [`SwapSpace`] and [`SwapSlots`].
//!
//! # Example
//!
//! ```
//! use mm_arch::{VirtAddr, VirtRange};
//! use mm_vma::{Vma, VmaFlags, VmaStore};
//!
//! let mut store = VmaStore::new(12);
//! let range = VirtRange::new(VirtAddr::new(0x1000), 0x4000).unwrap();
//! store.insert(Vma::anonymous(range, VmaFlags::READ | VmaFlags::WRITE, 12)).unwrap();
//! store.split_at(VirtAddr::new(0x3000)).unwrap();
//! assert_eq!(store.iter().count(), 2);
//! assert!(store.find(VirtAddr::new(0x5000)).is_none());
//! ```
#![no_std]

extern crate alloc;

mod backing;
mod counters;
mod flags;
mod mlock;
mod mm;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod page_cache;
mod platform;
mod rights;
mod shared;
mod store;
mod swap;
mod swap_slots;
mod vma;
mod vma_lock;
mod writable;

pub use backing::{Backing, BackingError, BackingKind, FoundPage, InstallError, PageRequest};
pub use counters::{MmCounters, RssKind};
pub use flags::VmaFlags;
pub use mlock::{NEVER_LOCKED, mlock_mapped, munlock_unmapped};
pub use mm::{Mm, MmError, MmRead, MmWrite, VmaRead};
pub use mm_pgtable::TablesStay;
pub use page_cache::{InsertError, PageCache};
pub use platform::{Event, Interrupt, Observer, Platform};
pub use rights::VmaRights;
pub use shared::try_arc;
pub use store::{StoreError, VmaStore};
pub use swap::{
    SlotRun, SwapIoError, SwapSpace, free_swap_cache, put_swap, read_ahead, read_cached,
    read_folio, write_folio,
};
pub use swap_slots::{CLUSTER_SLOTS, SlotState, SwapError, SwapSlots, Zeros};
pub use vma::Vma;
pub use vma_lock::StoreChange;
pub use writable::can_change_writable;
