//! The contract between page-table algorithms and entry formats.
//!
//! # The problem
//!
//! An algorithm that walks page tables (GUP, fork, reclaim) should not know
//! what a page-table entry looks like. But the formats differ in more than bit
//! positions: a PAE entry is *two words* that cannot be read in one access, an
//! arm64 entry may be one sixteenth of a *contiguous block* whose accessed and
//! dirty state is spread over its neighbours, and on x86 with shadow stacks
//! the *dirty bit is the write permission*. A contract on single cells cannot
//! carry that.
//!
//! # The contract
//!
//! * [`Entry`] is a *value*: pure functions, no memory. Its facts (present,
//!   writable, dirty, frame) are decoded; algorithms compare facts, not bits.
//! * [`Arch`] is an entry format with its geometry. Its operations act on
//!   `(&Table, index, n)`, so a contiguous block sees its neighbours, and its
//!   writers take a [`Tlb`], because break-before-make flushes *inside* the
//!   operation.
//! * A read is typed by the *right* held: [`Held`] (the table's lock) or
//!   [`Pinned`] (a quiescence guard). On two-word and contiguous formats the two
//!   are different code; an algorithm that is generic over [`Right`] cannot use
//!   the wrong one.
//! * Ranges are start and length ([`VirtRange`]): nothing wraps at the top of
//!   the address space.
//!
//! ```text
//!   algorithm ──► Arch::scan::<Pinned, MODE>(&table, index, head, max) ──► Batch
//!                     │ format knows: words per entry, block size, masks
//!                     ▼
//!                 Entry (a value): present? writable? dirty? frame + n
//! ```
//!
//! # Ordering
//!
//! Single lockless reads are acquiring, publishing stores releasing; a scan is
//! relaxed with one acquire fence behind its last load. Exchanges are relaxed:
//! a caller that decides on what another thread published after clearing an
//! entry places its own full fence (rule ACC-05).
//!
//! # Not here
//!
//! Kernel mappings, stage-2 tables and hugetlb formats.
//!
//! # Example
//!
//! ```
//! # #[cfg(feature = "model")] {
//! use mm_arch::{Arch, Entry, Held, Level, Pfn, Protection, respect};
//! use mm_arch::model::ModelWord;
//! type A = ModelWord<8>;
//!
//! let table = A::new_table();
//! let prot = A::prot(Protection::private_read_write());
//! let head = <A as Arch>::Entry::leaf(Pfn::new(0x100), prot, Level::Pte);
//! A::fill(&table, 0, 4, head);
//! // Four entries map consecutive frames with equal bits.
//! let run = A::scan::<Held, { respect::WRITE }>(&table, 0, head, 8);
//! assert_eq!(run.nr, 4);
//! # }
//! ```
#![no_std]

mod addr;
mod arch;
pub mod cell;
pub mod cont;
mod entry;
pub mod explain;
mod flush;
mod level;
#[cfg(feature = "model")]
pub mod model;
mod nonpresent;
pub mod pair;
pub mod respect;
mod right;
pub mod table;
mod tlb;
pub mod word;

pub use addr::{Pfn, PhysAddr, RangeError, TableFrame, VirtAddr, VirtRange};
pub use arch::{Arch, At, Batch, Live, Liveness, Private};
pub use entry::{AccessKind, Entry, Protection, Rights, WriteKind};
pub use flush::Flush;
pub use level::Level;
pub use nonpresent::{
    DeviceKind, EncodeError, Markers, MigrationKind, NonPresent, SwapBits, SwapSlot, TypeOffset,
};
pub use right::{Held, Pinned, Right};
pub use tlb::{FlushScope, SpaceId, SpaceTlb, Tlb};
