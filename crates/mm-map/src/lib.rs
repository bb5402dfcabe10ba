//! fork, zap, munmap, mprotect, madvise.
#![no_std]

extern crate alloc;

mod advise;
mod entry;
mod error;
mod exit;
mod fork;
mod mmap;
mod policy;
mod protect;
mod remap;
mod tables;
mod vmas;
mod zap;

pub use advise::{Advice, madvise};
pub use entry::FolioGather;
pub use error::{ForkError, MapError};
pub use exit::exit;
pub use fork::fork;
pub use mmap::{mmap_anon, munmap};
pub use policy::{Batching, MapPolicy};
pub use protect::mprotect;
pub use remap::{OldPlace, mremap_move, mremap_resize};
pub use zap::zap_range;
