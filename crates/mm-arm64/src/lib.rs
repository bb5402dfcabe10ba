//! arm64 page-table entry formats behind [`mm_arch::Arch`].
//!
//! # What makes arm64 different
//!
//! * **An entry can be a sixteenth of something.** Sixteen aligned entries (128 or 32 with
//!   larger pages) that map consecutive frames with equal bits may carry a *contiguous*
//!   mark. The translation cache then holds the whole block in one place, and hardware
//!   reports accessed and dirty in any of the entries. So a read gathers over the block, a
//!   change of one entry first takes the block apart, with a flush between breaking and
//!   making (rules CONT-05..09), and a scan knows sixteen entries from one load. Nobody
//!   above this crate sees the mark: writing a whole aligned block makes it, changing a
//!   part of one removes it.
//! * **Dirty is a permission that hardware gives itself.** A page that may be written has
//!   DBM set; "read-only" beside it only means that nobody has yet. See the private
//!   module `dirty` (rules A64-04..06).
//! * **Pages have three sizes**, and the rest of the geometry follows ([`Granule`]). With
//!   52-bit addresses the frame is in two pieces, so that going one frame further is no
//!   addition to the raw value ([`Output`], rule A64-03).
//! * **An inaccessible mapping is present**: VALID clear, bit 11 set, no right for EL0; and
//!   so is a block leaf under split, which keeps EL0's right (rule A64-07).
//!
//! ```text
//! 63 62  60 59 58 57 56 55 54 53 52 51 50 49   48 47        12 11 10 9  8 7 6 5 4  2 1 0
//!  - overlay -  UF -  SP DI UX PX CO DB GP (52-bit)  address   nG AF  SH RO EL0 - attr T V
//! ```
//!
//! | format | type | pages | blocks | leaves above |
//! |---|---|---|---|---|
//! | `arm64-4k` | [`Arm64<Granule4K>`] | 4 KiB | 64 KiB | 2 MiB, 1 GiB |
//! | `arm64-4k-lpa2` | [`Arm64<Granule4KLpa2>`] | 4 KiB | 64 KiB | 2 MiB, 1 GiB |
//! | `arm64-16k` | [`Arm64<Granule16K>`] | 16 KiB | 2 MiB | 32 MiB |
//! | `arm64-64k` | [`Arm64<Granule64K>`] | 64 KiB | 2 MiB | 512 MiB |
//!
//! # Not here
//!
//! Kernel and second-stage tables, 128-bit descriptors, guarded control stacks and the
//! other meanings that permission indirection gives to the bits, CPUs that leave accessed
//! and dirty to software (the values serve them too; the operation that models hardware
//! does not).
//!
//! # Example
//!
//! ```
//! use mm_arch::{Arch, Entry, Held, Level, Pfn, Protection, WriteKind, respect};
//! use mm_arm64::{Arm64, Granule4K};
//! type A = Arm64<Granule4K>;
//!
//! // A store makes a clean page dirty by clearing one bit; taking the write permission
//! // away keeps the dirt in another.
//! let prot = A::prot(Protection::private_read_write());
//! let page = <A as Arch>::Entry::leaf(Pfn::new(0x12340), prot, Level::Pte);
//! assert_eq!(page.bits(), 0x0060_0000_1234_0fc3);
//! let written = page.mkwrite(WriteKind::Normal).mkdirty();
//! assert_eq!(written.bits(), 0x00e8_0000_1234_0f43);
//! assert!(written.wrprotect().is_dirty());
//!
//! // Thirty-two pages at an aligned place are two folded blocks, and a run by two loads.
//! let table = A::new_table();
//! A::fill(&table, 16, 32, written);
//! let head = A::read::<Held>(&table, 16);
//! assert_eq!(head.bits(), 0x00f8_0000_1234_0f43);
//! assert_eq!(A::scan::<Held, { respect::WRITE }>(&table, 16, head, 32).nr, 32);
//! ```
#![no_std]

pub mod bits;
mod contpte;
mod dirty;
mod entry;
mod explain;
mod format;
mod granule;
mod nonpresent;
mod prot;

pub use entry::Arm64Entry;
pub use format::Arm64;
pub use granule::{
    Granule, Granule4K, Granule4KLpa2, Granule16K, Granule64K, Output, Table4K, Table16K, Table64K,
};
pub use prot::Arm64Prot;
