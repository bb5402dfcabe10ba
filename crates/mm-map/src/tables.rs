//! Freeing tables behind an unmap.

use crate::entry::FolioGather;
use crate::vmas::gap_around;
use mm_arch::VirtRange;
use mm_rmap::RmapPlatform;
use mm_vma::MmWrite;

/// Frees the empty tables under `range`, from which all VMAs were unlinked and
/// removed. A table that also covers another VMA stays, empty or not: a walker of
/// that VMA's trees may be on its way to it.
pub(crate) fn free_tables<'m, P: RmapPlatform>(
    vmas: &mut MmWrite<'m, P>,
    range: VirtRange,
    gather: &mut FolioGather<'m, P>,
) {
    let gap = gap_around(vmas, range);
    debug_assert!(vmas.excludes(range), "somebody may walk under {range:?}");
    // SAFETY: `vmas` is the mmap lock's write side, no VMA is in `gap`, so nobody holds the lock
    // of one there, and no table is locked by this thread.
    unsafe { vmas.mm().tables().free_empty_tables_in(range, gap, gather) };
}
