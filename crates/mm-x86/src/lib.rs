//! x86 page-table entry formats behind [`mm_arch::Arch`].
//!
//! # What makes x86 different
//!
//! * **The dirty bit can be a write permission.** With shadow stacks, hardware
//!   reads `RW=0, D=1` as "writable by shadow-stack stores". So software never
//!   leaves that pair on an ordinary page: when write permission goes, dirty
//!   moves to a software bit, *SavedDirty*, and back (rules SHSTK-01..05, the
//!   private module `saved_dirty`). It follows that "may a store go through" is
//!   a predicate over two bits, and that ignoring dirty in a comparison can
//!   ignore writability (rule BATCH-19): a scan keeps D in the comparison where
//!   it decides writability.
//! * **Frames of non-present entries are stored inverted**, so that no
//!   speculative access reaches a cacheable address through them (rules PTE-08,
//!   SWP-03). Going one frame further then *subtracts* from the raw value.
//! * **An inaccessible mapping is present**: `P=0, G=1` (rule PTE-05).
//!
//! * **32-bit CPUs read an entry in two halves** (PAE): a protocol between the two
//!   words, which [`mm_arch::pair`] holds, keeps readers from joining halves of two
//!   values. Everything that changes in place is in the low word, SavedDirty too; the
//!   four entries of the root have no permissions (rules PAE-02, PAE-05, PAE-11).
//!
//! | format | type | entry |
//! |---|---|---|
//! | 4 levels, shadow stacks | [`X86_64`] | [`X86Entry`] |
//! | 4 levels, CPU without shadow stacks | [`X86_64NoShstk`] | [`LongEntry<false>`] |
//! | 5 levels, shadow stacks | [`X86_64La57`] | [`X86Entry`] |
//! | 3 levels of two words (PAE) | [`X86Pae`] | [`PaeEntry`] |
//! | the same without NX | [`X86PaeNoNx`] | [`X86Value<Pae<false>>`](X86Value) |
//!
//! An entry is an [`X86Value`] over a [`Layout`], the place of the software bits; a
//! format is a [`Paging`] over a [`Mode`], the levels and the memory of an entry. Both
//! have one body of code for all rows of the table.
//!
//! Whether the CPU has shadow stacks is a parameter of the *type*: no code path
//! asks at run time. Only the predicate "is this a shadow-stack entry" depends on
//! it. The SavedDirty shift is done on both, as an entry must mean the same
//! after a feature was found to be missing (rule SHSTK-03).
//!
//! # Not here
//!
//! Kernel mappings, the encryption bit, memory types other than those an entry
//! already carries (they survive every operation).
//!
//! # Example
//!
//! ```
//! use mm_arch::{Arch, Entry, Level, Pfn, Protection, WriteKind};
//! use mm_x86::{X86_64, X86Entry};
//!
//! let ro = X86_64::prot(Protection::private_read_write());
//! let e = X86Entry::leaf(Pfn::new(0x12345), ro, Level::Pte);
//! assert_eq!(e.bits(), 0x8000_0000_1234_5025);
//!
//! // A written page that loses write permission stays dirty, but not in the
//! // bit that hardware would take for a shadow stack.
//! let written = e.mkdirty().mkwrite(WriteKind::Normal);
//! let shared = written.wrprotect();
//! assert!(shared.is_dirty() && !shared.is_writable(Level::Pte));
//! ```
#![no_std]

pub mod bits;
mod double;
mod explain;
mod layout;
mod long_mode;
mod nonpresent;
mod pae;
mod paging;
pub mod pkey;
mod prot;
mod saved_dirty;
mod value;

pub use explain::Fields;
pub use layout::{Layout, Long, Pae};
pub use long_mode::{LongEntry, LongMode, LongPaging, X86_64, X86_64La57, X86_64NoShstk, X86Entry};
pub use pae::{PaeEntry, PaePaging, X86Pae, X86PaeNoNx};
pub use paging::{Expected, Mode, Paging, Table};
pub use prot::X86Prot;
pub use value::X86Value;
