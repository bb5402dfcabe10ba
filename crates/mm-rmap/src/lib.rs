//! Reverse mapping: anonymous trees, walks, PMD split.
#![no_std]

extern crate alloc;

mod anon;
mod audit;
mod grove;
mod mapped_walk;
#[cfg(feature = "model")]
pub mod model;
mod split_pmd;
mod walk;

pub use anon::{AnonTrees, WalksExcluded};
pub use audit::{GraphFault, MapcountFault};
pub use mapped_walk::{Hit, Lookup, MappedWalk, Peek, PteHit, Seek, Strict};
pub use split_pmd::{split_locked_pmd, split_pmd};
pub use walk::{Visit, WalkEnd};

use mm_vma::Platform;

/// A kernel that keeps anonymous trees.
pub trait RmapPlatform: Platform {
    /// The trees, one set for all address spaces.
    fn anon_trees(&self) -> &AnonTrees<Self>;
}
