//! Splitting and joining VMAs together with their reverse-map trees.

use crate::MapError;
use mm_arch::{Arch, Level, VirtAddr, VirtRange};
use mm_rmap::{RmapPlatform, split_pmd, vma_flags_changed};
use mm_vma::{Mm, MmRead, MmWrite, Vma, VmaFlags};

/// Checks that `range` is page-aligned and in user space.
pub(crate) fn check_range<P: RmapPlatform>(
    vmas: &MmWrite<'_, P>,
    range: VirtRange,
) -> Result<(), MapError> {
    check_user_range(vmas.mm(), range)
}

/// As [`check_range`], without the write side.
pub(crate) fn check_user_range<P: RmapPlatform>(
    mm: &Mm<P>,
    range: VirtRange,
) -> Result<(), MapError> {
    let shift = P::Arch::PAGE_SHIFT;
    if !range.start().is_aligned(shift) {
        return Err(MapError::Unaligned(range.start()));
    }
    if !VirtAddr::new(range.bytes()).is_aligned(shift) {
        return Err(MapError::Unaligned(VirtAddr::new(range.bytes())));
    }
    if mm.is_user_range(range) { Ok(()) } else { Err(MapError::NotUser(range)) }
}

/// Hands what is mapped of `range` to `each`, part by part, a mapping at a time; with it comes
/// the read side of the mmap lock, taken anew for each, which it may give up.
///
/// # Errors
///
/// If the range is not page-aligned or not in user space; what `each` fails with, at once; a
/// hole, behind all mappings.
pub(crate) fn each_part<P: RmapPlatform>(
    mm: &Mm<P>,
    range: VirtRange,
    mut each: impl FnMut(MmRead<'_, P>, VirtRange) -> Result<(), MapError>,
) -> Result<(), MapError> {
    check_user_range(mm, range)?;
    let (mut next, mut hole) = (Some(range.start()), None);
    while let Some(va) = next {
        let vmas = mm.read();
        let part = vmas.next_from(va).and_then(|vma| vma.range().intersect(range)).and_then(|p| {
            let start = p.start().max(va);
            VirtRange::new(start, p.bytes_after(start)).ok()
        });
        let Some(part) = part else {
            hole = hole.or(Some(va));
            break;
        };
        if part.start() > va {
            hole = hole.or(Some(va));
        }
        each(vmas, part)?;
        next = part.start().checked_add(part.bytes()).filter(|va| range.contains(*va));
    }
    hole.map_or(Ok(()), |va| Err(MapError::Hole(va)))
}

/// Makes `va` a VMA boundary. A PMD leaf across it is split first (rule VMA-01):
/// everybody may rely on no VMA ending inside of a leaf.
pub(crate) fn split_vma<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    va: VirtAddr,
) -> Result<(), MapError> {
    let mm = vmas.mm();
    if vmas.find(va).is_none_or(|v| v.start() == va) {
        return Ok(());
    }
    // First, so that no walker finds a leaf that its VMA covers only in part.
    if !va.is_aligned(P::Arch::shift(Level::Pmd)) {
        split_pmd(mm, vmas.stay(), va);
    }
    mm_rmap::split_vma(vmas, va).map_err(|e| MapError::store(e, va)).map(drop)
}

/// Makes both ends of `range` VMA boundaries. If that fails, the VMAs are as
/// before.
pub(crate) fn split_around<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
) -> Result<(), MapError> {
    split_vma(vmas, range.start())?;
    let end = range.start().checked_add(range.bytes());
    if let Some(e) = end.and_then(|end| split_vma(vmas, end).err()) {
        merge(vmas, range);
        return Err(e);
    }
    Ok(())
}

/// Joins what continues each other in and around `range`.
pub(crate) fn merge<P: RmapPlatform>(vmas: &mut MmWrite<'_, P>, range: VirtRange) {
    mm_rmap::merge_vmas(vmas, range);
}

/// Gives the VMA at `va` other flags, and tells its trees.
pub(crate) fn give_flags<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    va: VirtAddr,
    flags: VmaFlags,
) {
    let mm = vmas.mm();
    if let Some(vma) = vmas.change().find_mut(va) {
        vma.set_flags(flags);
        vma_flags_changed(mm, vma);
    }
}

/// Gives the VMAs of `range`, which may have holes, the flags that `flags` says;
/// splits and joins as needed. `flags` applied twice says the same.
///
/// Stops at the first failure; what was changed before stays changed.
pub(crate) fn set_flags<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    flags: impl Fn(&Vma) -> VmaFlags,
) -> Result<(), MapError> {
    let mut next = Some(range.start());
    while let Some(va) = next {
        let Some((part, new, changed)) = vmas.next_from(va).and_then(|vma| {
            let part = vma.range().intersect(range)?;
            let new = flags(vma);
            Some((part, new, new != vma.flags()))
        }) else {
            break;
        };
        if changed {
            split_around(vmas, part)?;
            give_flags(vmas, part.start(), new);
            merge(vmas, part);
        }
        next = part.start().checked_add(part.bytes()).filter(|va| range.contains(*va));
    }
    Ok(())
}

/// The space around `range`, which no VMA overlaps any more, up to the nearest
/// VMAs: tables that lie inside of it belong to nobody.
pub(crate) fn gap_around<P: RmapPlatform>(vmas: &MmWrite<'_, P>, range: VirtRange) -> VirtRange {
    let below = vmas.iter().rev().find(|v| v.start() < range.start());
    let floor = below.map_or(0, |v| v.range().last().get() + 1);
    let above = vmas.next_from(range.start());
    let ceiling = above.map_or(u64::MAX, |v| v.start().get());
    VirtRange::new(VirtAddr::new(floor), ceiling - floor).unwrap_or(range)
}
