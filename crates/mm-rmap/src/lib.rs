//! Reverse mapping: from a folio to every entry that maps it.
//!
//! # The problem
//!
//! Page tables lead from an address to a frame. Reclaim, migration and the
//! splitting of large folios need the way back: *all* entries that map a folio,
//! in whichever address spaces, while those fork, unmap and move their memory.
//! A list of entries per page would be exact and far too dear. Instead a folio
//! names a *tree*, and a tree lists VMAs in which the folio *may* be mapped; the
//! linear index says where in each of them to look.
//!
//! ```text
//!   folio ──names──► tree C ──parent──► tree P ──parent──► root R
//!     │ index          │ links            │ links            │ links
//!     ▼                ▼                  ▼                  ▼
//!   VMA of the child ──┴──────────────────┴──────────────────┤   its new folios name C
//!   VMA of the parent ────────────────────┴──────────────────┤   its new folios name P
//! ```
//!
//! # Protocol
//!
//! * The first anonymous fault of a VMA gives it a tree ([`AnonTrees::prepare`],
//!   RMAP-21). A fork puts the child's VMA into every tree of the parent's, and
//!   gives it one of its own (RMAP-22, RMAP-23): the child's new folios are
//!   looked for in the child alone. A tree that nobody needs is reused, so that
//!   a chain of forks does not grow without end.
//! * Whoever splits, moves, resizes or removes a VMA says so *before* it frees
//!   tables under it; a [walk](AnonTrees::walk) holds the lock of the trees, so
//!   that in a [`Visit`] the tables stay.
//! * A walk looks at the folio's map count *after* it has the lock. If the folio
//!   is mapped, the VMA that maps it is linked, and the id that the folio names
//!   means the right tree. That replaces a count of references on trees.
//! * Within a VMA, [`MappedWalk`] finds the entries: it steps over holes, crosses
//!   tables, and waits, in its [`Strict`] form, for whoever has taken an entry
//!   and not yet counted it out.
//!
//! # Files
//!
//! A page of a file or of shared memory names its object, and [`FileTrees`] lists the
//! VMAs that show an object. [`mkclean`] uses them to be told of the next store;
//! truncation, to unmap a range of an object without a folio at hand.
//!
//! # PMD split
//!
//! [`split_pmd`] turns a PMD leaf of anonymous memory into a table of PTEs in place. It
//! cannot fail, since the table was deposited with the leaf, and it can be done under
//! the lock of the trees alone, since the leaf says all that the PTEs need to know. A
//! leaf of a file is taken away: the next fault finds the page again.
//!
//! # Merged pages
//!
//! A page merged by content belongs to no tree: it keeps a list of [places](MergedPlace).
//!
//! # Migration and the splitting of folios
//!
//! [`suspend_mappings`] replaces every mapping of a folio by a migration entry, which says
//! what it stands for. Nobody can get at the folio through a page table then, and whoever
//! still holds it is counted. [`migrate_folio`] gives it other frames;
//! [`split_anon_folio`] makes several folios of it, where it is. Then the entries become
//! mappings again.
//!
//! # Swap
//!
//! [`swap_out_ptes`] turns entries into swap entries, as a run: who unmaps a folio of the
//! swap cache calls it.
//!
//! # Locks
//!
//! ```text
//!   mmap lock
//!     folio lock
//!       lock of a file's tree    (a small fixed set, by object)
//!       lock of the trees        (a small fixed set, by family)
//!         PMD table lock, PTE table lock
//!           counts lock of a folio
//! ```
//!
//! # Example
//!
//! ```
//! use mm_arch::model::ModelWord;
//! use mm_arch::{VirtAddr, VirtRange};
//! use mm_rmap::RmapPlatform;
//! use mm_rmap::model::{ModelConfig, machine};
//! use mm_vma::{Mm, Vma, VmaFlags};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let machine = machine::<ModelWord<8>>(ModelConfig::default())?;
//! let trees = machine.anon_trees();
//! let (parent, child) = (Mm::new(machine.clone())?, Mm::new(machine.clone())?);
//! let range = VirtRange::new(VirtAddr::new(0x1000), 0x4000).unwrap();
//! parent.write().change().insert(Vma::anonymous(range, VmaFlags::READ | VmaFlags::WRITE, 12))?;
//!
//! // The first fault makes a tree, a fork makes another one below it.
//! let vmas = parent.read();
//! let vma = vmas.find(range.start()).unwrap();
//! let root = trees.prepare(&parent, &vmas, vma)?;
//! let copy = vma.clone();
//! trees.fork_vma(&child, vma, &copy)?;
//! let own = copy.anon().unwrap();
//! assert_ne!(own, root);
//! assert_eq!(trees.root(own), root);
//!
//! // Exit takes the VMAs out again; the last one takes the trees along.
//! trees.unlink(&parent, vma);
//! assert_eq!(trees.nr_trees(), 2);
//! trees.unlink(&child, &copy);
//! assert_eq!(trees.nr_trees(), 0);
//! # Ok(())
//! # }
//! ```
#![no_std]

extern crate alloc;

mod anon;
mod audit;
mod deferred;
mod file;
mod grove;
mod links;
mod mapped_walk;
mod merged;
mod migrate;
mod mkclean;
#[cfg(feature = "model")]
pub mod model;
mod policy;
mod split_folio;
mod split_pmd;
mod suspend;
mod swap_out;
mod vmas;
mod walk;
mod zero;

pub use anon::{AnonTrees, WalksExcluded};
pub use audit::{GraphFault, MapcountFault};
pub use deferred::{DeferredPass, split_deferred};
pub use file::{FileTrees, FileWalksExcluded};
pub use mapped_walk::{Hit, Lookup, MappedWalk, Peek, PteHit, Seek, Strict};
pub use merged::MergedPlace;
pub use migrate::{MigrationError, migrate_folio};
pub use mkclean::mkclean;
pub use policy::Batching;
pub use split_folio::{SplitError, SplitFolio, split_anon_folio};
pub use split_pmd::{split_locked_pmd, split_pmd};
pub use suspend::{Leaves, MappingStays, Suspended, suspend_mappings};
pub use swap_out::{SwapOutError, SwappedOut, swap_out_ptes};
pub use vmas::{
    clone_vma, fork_vma, link_vma, merge_vmas, split_vma, unlink_vma, vma_flags_changed,
    vma_resized,
};
pub use walk::{Visit, Visitor, WalkEnd};

use mm_folio::{Folio, FolioRef, Get};
use mm_vma::Platform;

/// A kernel that keeps trees: one set for all address spaces.
pub trait RmapPlatform: Platform {
    /// The trees of anonymous memory.
    fn anon_trees(&self) -> &AnonTrees<Self>;
    /// The trees of files and shared memory.
    fn file_trees(&self) -> &FileTrees<Self>;
    /// Whether `folio` should move to memory nearer to the CPU that is running, which has
    /// just used it and will get the memory (rule NUMA-01). Where memory belongs is the
    /// kernel's business: without an opinion, everything lies well.
    fn is_misplaced(&self, folio: Folio<'_, Self>) -> bool {
        let _ = folio;
        false
    }
    /// Moves a folio that lies badly; `own` are all references that the caller has. No table
    /// is locked. A folio of an object moves where the kernel says what cache it is in: see
    /// [`migrate_folio`], which without one moves private memory only.
    ///
    /// # Errors
    ///
    /// As there.
    fn move_misplaced(
        &self,
        own: &FolioRef<'_, Self, Get>,
        batching: Batching,
    ) -> Result<(), MigrationError> {
        migrate_folio(self, own, None, batching)
    }
}
