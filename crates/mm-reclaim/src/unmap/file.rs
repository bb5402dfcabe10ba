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
    if !taken.entry().is_uffd_wp() || visit.anonymous || !visit.flags.contains(VmaFlags::UFFD_WP) {
        return taken.commit();
    }
    match E::<P>::from_nonpresent(NonPresent::Marker(Markers::UFFD_WP), SwapBits::default()) {
        Ok(marker) => taken.replace(|_| marker),
        Err(_) => taken.commit(),
    }
}
