//! Which pages may be pinned as they are.

use crate::GupFlags;
use mm_arch::Pfn;
use mm_folio::{Folio, FolioFlags, FolioSource, FolioSpace, RefKind};
use mm_vma::Vma;

/// How many of the `n` pages from `pfn` on need no unsharing before they are
/// taken (rules GUPS-24, GUPS-25): all, for references and for writes; the
/// exclusive prefix, for read-only pins of anonymous memory.
///
/// The entries of the run were read before, with a read barrier behind the last
/// of them (rule P-RACE-31): a sharer that clears the mark before it restores a
/// read-only entry is seen here if its entry was.
///
/// `vma` is unknown to the fast path, which must then assume a copy-on-write one.
#[inline]
pub(crate) fn unshared_pages<K: RefKind, F: FolioSpace>(
    vma: Option<&Vma>,
    flags: GupFlags,
    folio: Folio<'_, F>,
    pfn: Pfn,
    n: usize,
) -> usize {
    if !K::PINS || flags.contains(GupFlags::WRITE) {
        return n;
    }
    if !folio.is_anon() {
        let must = flags.contains(GupFlags::LONGTERM) && vma.is_none_or(Vma::is_cow);
        return if must { 0 } else { n };
    }
    if mm_sync::mutant!("gup.excl.head_only") {
        return if folio.memmap().page_exclusive(pfn) { n } else { 0 };
    }
    folio.memmap().exclusive_prefix(pfn, n)
}

/// Whether a writable long-term pin of a page has to ask its mapping first: the
/// object of a file waits for stores, and a device makes none that it would hear of
/// (rule GUPF-14). Anonymous and shared memory wait for nothing.
pub(crate) fn is_of_file<F: FolioSpace>(folio: Folio<'_, F>) -> bool {
    folio.file().is_some() && !folio.has(FolioFlags::SWAPBACKED)
}

/// Lets a device reach what was just pinned, once per run; `false` if it cannot. Plain
/// references are not for devices (rules GUPS-15, GUPF-18).
#[inline(always)]
pub(crate) fn make_accessible<K: RefKind, F: FolioSpace>(folio: Folio<'_, F>) -> bool {
    !K::PINS || folio.memmap().source().make_accessible(folio.head())
}
