//! Folios that locked mappings keep in memory (rule RMAP-06).
//!
//! A folio is marked by whoever maps all of it into a locked mapping, and loses the mark
//! by any removal from one. That is too eager where several locked mappings show a
//! folio, or a part of it stays mapped: reclaim, which comes by every mapping, marks such a
//! folio again instead of taking it. A folio of which a locked mapping shows a part only
//! is not marked; its pages stay all the same, for reclaim asks the mapping.

use crate::VmaFlags;
use mm_folio::{Folio, FolioSpace};

/// Mappings whose pages are not kept, whatever is asked for.
pub const NEVER_LOCKED: VmaFlags = VmaFlags::IO.union(VmaFlags::PFNMAP).union(VmaFlags::DONTEXPAND);

/// `nr_pages` pages of `folio` were mapped at once by a mapping with `flags`.
#[inline]
pub fn mlock_mapped<F: FolioSpace>(flags: VmaFlags, folio: Folio<'_, F>, nr_pages: u32) {
    if flags.contains(VmaFlags::LOCKED)
        && !flags.intersects(NEVER_LOCKED)
        && nr_pages == folio.nr_pages()
    {
        folio.mlock();
    }
}
/// Pages of `folio` are mapped no more by a mapping with `flags`.
#[inline]
pub fn munlock_unmapped<F: FolioSpace>(flags: VmaFlags, folio: Folio<'_, F>) {
    if flags.contains(VmaFlags::LOCKED) {
        folio.munlock();
    }
}
