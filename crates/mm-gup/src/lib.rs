//! `get_user_pages` and `pin_user_pages`, slow and fast, page by page or in runs.
//!
//! # The problem
//!
//! A device or another process wants the *pages* behind a range of user
//! addresses, and wants them to stay. Taking a page by page reference of a
//! folio of 512 pages costs 512 descents, 512 atomics and 512 checks that all
//! say the same. Taking them in one step is only right if none of the promises
//! made page by page is lost: that each page was mapped at its address at some
//! moment after the reference was taken, that a pinned anonymous page is
//! exclusive, that fork does not share it behind the pinner's back.
//!
//! # The fast path
//!
//! [`fast`] holds no lock: only a quiescence guard, which keeps page tables from
//! being freed. For each head page, in this order (rules GUPF-11, GUPF-16..19):
//!
//! ```text
//!   read entry ─ permitted? ─ grab head (full barrier) ─ PMD and entry unchanged?
//!      ─ large: scan the run ─ read-only: exclusive prefix ─ grab the rest in one step ─ fill
//! ```
//!
//! [`FastPolicy::Whole`] grabs the whole run at the head and gives back what the
//! scan does not find.
//!
//! The scan comes *after* the head's grab. For a large folio pins are counted
//! per folio: whoever unmaps page *k* and then asks "is this folio pinned?"
//! either cleared its entry before the scan, which then stops, or sees the pin.
//! Fork is caught by the write-protect sequence, sampled before the walk and
//! again behind the pins.
//!
//! # The slow path
//!
//! [`Gup::pin`] and [`Gup::get`] hold the mmap lock, lock a table, collect up to
//! 32 runs, unlock, and only then fill the output. What is missing is asked of a
//! [`FaultHandler`], which consumes the mmap guard and gives it back or says that
//! it was dropped.
//!
//! # References
//!
//! The output owns what it was given: [`FolioRun`](mm_folio::FolioRun)s or page numbers, to be given
//! back with [`unpin_pages`], [`unpin_runs`], [`put_pages`] or [`put_runs`].
//!
//! # Not here
//!
//! hugetlbfs and memory of devices; splitting a
//! PMD leaf on request ([`GupFlags::SPLIT_PMD`] is refused). Moving folios before a
//! long-term pin is left to a [`Migrator`].
//!
//! # Example
//!
//! See `examples/pin.rs`, which faults large folios in through the slow path, pins
//! them again by the fast one, forks, and gives everything back.
#![no_std]

extern crate alloc;

mod error;
pub mod fast;
mod fault;
mod flags;
mod gup;
mod longterm;
mod policy;
mod populate;
mod sink;
mod slow;
mod unpin;
mod unshare;

pub use error::{GupError, GupErrorKind};
pub use fault::{FaultError, FaultHandler, GupFault, Resolved};
pub use flags::GupFlags;
pub use gup::Gup;
pub use longterm::{MigrateError, Migrator};
pub use policy::{FastPolicy, GupPolicy, SlowPolicy};
pub use populate::OnError;
pub use sink::{Pages, Runs, Sink};
pub use unpin::{
    put_pages, put_runs, unpin_pages, unpin_pages_dirty, unpin_range_dirty, unpin_run_dirty,
    unpin_runs,
};
