//! Adding and removing mappings.

use crate::MapError;
use crate::entry::FolioGather;
use crate::policy::{MapPolicy, by_policy};
use crate::tables::free_tables;
use crate::vmas::{check_range, merge, split_around};
use crate::zap::{How, zap};
use alloc::sync::Arc;
use mm_arch::{Arch, Live, VirtRange};
use mm_pgtable::Gather;
use mm_rmap::{RmapPlatform, link_vma, unlink_vma};
use mm_vma::{Backing, MmWrite, Vma, VmaFlags};

/// Maps anonymous private memory at `range`, which is free; joins it with
/// neighbours that it continues.
///
/// A new mapping starts soft-dirty: what was mapped at its addresses before is
/// history (rule PTE-14). It is accounted if it may be written to.
///
/// # Errors
///
/// If the range is not page-aligned, not in user space, or not free, or there is
/// no memory; nothing changed then.
pub fn mmap_anon<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    flags: VmaFlags,
) -> Result<(), MapError> {
    check_range(vmas, range)?;
    let mut flags = flags | VmaFlags::SOFTDIRTY;
    if flags.contains(VmaFlags::SHADOW_STACK) {
        // Where dirty is the write permission a run would mix up pages that may be
        // written with others (rules BATCH-23, BATCH-25). Forks and moves inherit it.
        flags = (flags - VmaFlags::HUGEPAGE) | VmaFlags::NOHUGEPAGE;
    }
    if accountable(flags) {
        flags |= VmaFlags::ACCOUNT;
    }
    let vma = Vma::anonymous(range, flags, P::Arch::PAGE_SHIFT);
    vmas.change().insert(vma).map_err(|e| MapError::store(e, range.start()))?;
    merge(vmas, range);
    Ok(())
}

/// Maps `backing` from page `first_page` of it on at `range`, which is free; joins
/// the mapping with neighbours that it continues. `flags` says whether it is
/// `SHARED`. Every right may be granted later, except by a file that must not be
/// written to: the caller takes `MAYWRITE` off.
///
/// # Errors
///
/// If the range is not page-aligned, not in user space, or not free, the index of its last
/// page overflows, or there is no memory; nothing changed then.
pub fn mmap_backing<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    flags: VmaFlags,
    backing: Arc<dyn Backing>,
    first_page: u64,
) -> Result<(), MapError> {
    check_range(vmas, range)?;
    if first_page.checked_add(range.nr(P::Arch::PAGE_SHIFT)).is_none() {
        return Err(MapError::Overflow(range.start()));
    }
    let mut flags = flags | VmaFlags::SOFTDIRTY;
    if accountable(flags) {
        flags |= VmaFlags::ACCOUNT;
    }
    let vma = Vma::of_backing(range, flags, P::Arch::PAGE_SHIFT, backing, first_page);
    vmas.change().insert(vma).map_err(|e| MapError::store(e, range.start()))?;
    let mm = vmas.mm();
    let linked = vmas.find(range.start()).is_some_and(|vma| link_vma(mm, vma).is_ok());
    if !linked {
        vmas.change().remove(range, |_| ());
        return Err(MapError::NoMemory(range.start()));
    }
    merge(vmas, range);
    Ok(())
}

/// Whether memory of such a mapping is accounted: private, writable, not exempt.
pub(crate) fn accountable(flags: VmaFlags) -> bool {
    flags & (VmaFlags::WRITE | VmaFlags::SHARED | VmaFlags::NORESERVE) == VmaFlags::WRITE
}

/// Removes all mappings in `range`, which may have holes.
///
/// VMAs are split at its ends, and so is a PMD leaf that an end cuts (VMA-01).
///
/// # Errors
///
/// If the range is not page-aligned or not in user space, or there is no memory
/// to split a VMA; nothing is unmapped then.
pub fn munmap<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
) -> Result<(), MapError> {
    check_range(vmas, range)?;
    if vmas.overlapping(range).next().is_none() {
        return Ok(());
    }
    split_around(vmas, range)?;
    let mm = vmas.mm();
    let mut gather = Gather::new(mm.tables());
    for vma in vmas.overlapping(range) {
        let stay = vmas.stay();
        by_policy!(
            policy,
            zap::<Live, P>(mm, stay, vma.range(), range, How::remove(vma), &mut gather)
        );
    }
    remove_vmas(vmas, range, &mut gather);
    gather.finish();
    Ok(())
}

/// Removes the VMAs of `range`, whose entries are gone, and the tables that
/// belong to nobody afterwards.
pub(crate) fn remove_vmas<'m, P: RmapPlatform>(
    vmas: &mut MmWrite<'m, P>,
    range: VirtRange,
    gather: &mut FolioGather<'m, P>,
) {
    let mm = vmas.mm();
    for vma in vmas.overlapping(range) {
        unlink_vma(mm, vma);
    }
    vmas.change().remove(range, |_| ());
    free_tables(vmas, range, gather);
}
