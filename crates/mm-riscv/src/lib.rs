//! RISC-V page-table entry formats behind [`mm_arch::Arch`].
//!
//! # What makes RISC-V different
//!
//! * **A table is told from memory by having no rights**: an entry with R, W or X maps
//!   memory at whatever level it stands.
//! * **All entries of a block are one word** (Svnapot). The lower frame bits say how large
//!   the block is; which of its pages an entry maps follows from where it stands. So a
//!   value is completed by its position when it is loaded and cut when it is stored, and
//!   no algorithm knows.
//! * **Dirty and writable are two bits**, which makes all the rest easy.
//!
//! ```text
//! 63 62 61 60 59 58    54 53             10 9 8 7 6 5 4 3 2 1 0
//! N   PBMT UF SD reserved       frame       - S D A G U X W R V
//! ```
//!
//! | format | type | levels | user addresses |
//! |---|---|---|---|
//! | `riscv-sv39` | [`Riscv<Sv39>`] | 3 | 38 bits |
//! | `riscv-sv48` | [`Riscv<Sv48>`] | 4 | 47 bits |
//! | `riscv-sv57` | [`Riscv<Sv57>`] | 5 | 56 bits |
//!
//! # What it took
//!
//! This format came last, to see what one more costs. The value (`entry`) is a bit per fact. The
//! blocks (`napot`) needed one thing that no format before did: the position of an
//! entry, which `mm_arch::cont` passes to
//! [`ContEntry::loaded`](mm_arch::cont::ContEntry::loaded). The table operations are
//! [`mm_arch::block_operations`]. Nothing above `mm-arch` was touched: every scenario with
//! 4 KiB pages ran at once.
//!
//! # Not here
//!
//! Sv32, kernel and second-stage tables, leaves of the root, CPUs that leave accessed and
//! dirty to software.
//!
//! # Example
//!
//! ```
//! use mm_arch::{Arch, Entry, Held, Level, Pfn, Protection, respect};
//! use mm_riscv::{Riscv, Sv39};
//! type A = Riscv<Sv39>;
//!
//! let prot = A::prot(Protection::private_read_write());
//! let page = <A as Arch>::Entry::leaf(Pfn::new(0x12340), prot, Level::Pte);
//! assert_eq!(page.bits(), 0x048d_0053);
//!
//! // Sixteen pages at an aligned place are a block: one word in all entries.
//! let table = A::new_table();
//! A::fill(&table, 16, 16, page);
//! let word = |i| A::read_upper::<Held>(&table, i).bits();
//! assert!((16..32).all(|i| word(i) == 0x8000_0000_048d_2053));
//! // What is read has its frame.
//! assert_eq!(A::read::<Held>(&table, 21).pfn(Level::Pte), Pfn::new(0x12345));
//! let head = A::read::<Held>(&table, 16);
//! assert_eq!(A::scan::<Held, { respect::WRITE }>(&table, 16, head, 32).nr, 16);
//! ```
#![no_std]

pub mod bits;
mod entry;
mod explain;
mod format;
mod napot;
mod nonpresent;

pub use entry::{RiscvEntry, RiscvProt};
pub use format::{Mode, Riscv, Sv39, Sv48, Sv57};
