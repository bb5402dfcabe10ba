//! Page tables in memory: typed views, runs, the batch scan, gathering and freeing.
//!
//! # The problem
//!
//! The same tables are read by walkers that hold a lock, by walkers that hold
//! nothing but a promise that the table will not be freed, and by the hardware.
//! Mixing up what each may do is the classic source of page-table bugs: an entry
//! read torn, a scan that runs out of its table, a table freed under a walker, a
//! flush forgotten. This crate makes each of them a type.
//!
//! ```text
//!   TablesStay ──┐                                    (mmap or rmap lock: no table of the
//!                ▼                                     space is freed)
//!   PageTables ─ lock_table ─► LockedTable ─ deref ─► View<Held>   ─ run ─► Run
//!       │                         │ clear ► ClearedRun ► commit / restore
//!       └─ walk(guard) ─► Step ─► View<Pinned> ─ run ─► Run       (quiescence guard)
//! ```
//!
//! # Protocol
//!
//! * **Install**: a table is zeroed, then published by a releasing store of its
//!   parent entry under the parent's lock, only if that is still empty (ACC-04).
//! * **Lock**: the parent entry is read, the table's lock taken, the parent read
//!   again; a change means retry (ACC-22).
//! * **Lockless**: every level is read once and the child found from the *value*
//!   read (ACC-03). The walker rechecks the PMD and the entry after it has its
//!   reference.
//! * **Free**: unlink under the parent's lock, flush with walk caches, then
//!   retire to the quiescence domain (contract: nobody waits for a lock while
//!   holding a guard).
//!
//! # Invariants
//!
//! * A [`Run`] lies inside one table, one caller range, one VMA and one folio: it
//!   is built only by [`View::run`] from a [`BatchLimit`].
//! * A [`TableDesc`] counts the non-empty entries of its table; whoever changes
//!   entries through [`LockedTable`] keeps the count.
//! * What narrows an entry adds to a [`Flush`](mm_arch::Flush); what that entry
//!   named stays parked in a [`Gather`] until the flush is done.
//! * Addresses are below [`Arch::USER_END`](mm_arch::Arch::USER_END); callers see to
//!   that. An index is a few bits of an address, and nothing here looks at the
//!   bits above: an address beyond would find the entry of another one.
//!
//! # Not here
//!
//! Folios and VMAs: a batch limit reaches this crate as a number.
//!
//! # Example
//!
//! ```
//! use mm_arch::model::ModelWord;
//! use mm_arch::{Arch, Entry, Level, Pfn, Protection, SpaceId, VirtAddr, respect};
//! use mm_pgtable::slab::{SlabSpace, slab_space};
//! use mm_pgtable::{PageTables, TablesStay};
//!
//! type A = ModelWord<8>;
//! # fn main() -> Result<(), mm_pgtable::TableAllocError> {
//! let space: SlabSpace<A> = slab_space(16);
//! let tables = PageTables::new(space, SpaceId(1))?;
//! // SAFETY: nothing else runs, so no table is freed meanwhile.
//! let stay = unsafe { TablesStay::new() };
//! let va = VirtAddr::new(0);
//! let e = <A as Arch>::Entry::leaf(Pfn::new(64), A::prot(Protection::private_read_write()), Level::Pte);
//! let mut table = tables.ensure_table(stay, va)?.table().expect("no huge leaf here");
//! table.fill(0, 4, e);
//! let limit = table.limit(0).at_most(8);
//! assert_eq!(table.run::<{ respect::WRITE }>(0, e, limit).nr(), 4);
//! # Ok(())
//! # }
//! ```
#![no_std]

extern crate alloc;

mod clear;
mod deferred;
mod desc;
mod free;
mod gather;
mod locked;
mod memory;
mod run;
pub mod slab;
mod tables;
mod view;
mod walk;
mod window;

pub use clear::ClearedRun;
pub use deferred::PageFate;
pub use desc::TableDesc;
pub use gather::Gather;
pub use locked::{LockedPmd, LockedPud, LockedTable, TableInTheWay};
pub use memory::{TableAllocError, TableMemory, TableSpace};
pub use run::{BatchLimit, Run};
pub use tables::{Ensured, LockedEntry, PageTables, Span, SpanKind, TablesStay};
pub use view::View;
pub use walk::{Slot, Step, WalkGuard};
pub use window::{Block, Window, WindowRequest};
