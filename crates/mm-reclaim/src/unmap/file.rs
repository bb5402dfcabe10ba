//! Pages of files and of shared memory.

use super::restore::Taken;
use crate::E;
use mm_arch::{Entry, Markers, NonPresent, SwapBits};
use mm_rmap::Visit;
use mm_vma::{Platform, VmaFlags};

/// The pages stay in their object; their entries are empty from now on, or say that
/// userfaultfd write-protects the page: one marker for each entry that did (rule
/// UNMAP-12). Nothing can go wrong any more (rule UNMAP-14).
pub(super) fn leave<P: Platform>(visit: &Visit<'_>, taken: Taken<'_, '_, P>) {
    match marker::<P>(visit, taken.entry()) {
        Some(marker) => taken.replace(|_| marker),
        None => taken.commit(),
    }
}

/// What an entry becomes that stays behind, if one does.
#[inline]
pub(super) fn marker<P: Platform>(visit: &Visit<'_>, e: E<P>) -> Option<E<P>> {
    if !e.is_uffd_wp() || visit.anonymous || !visit.flags.contains(VmaFlags::UFFD_WP) {
        return None;
    }
    E::<P>::from_nonpresent(NonPresent::Marker(Markers::UFFD_WP), SwapBits::default()).ok()
}
