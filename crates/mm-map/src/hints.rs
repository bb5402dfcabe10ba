//! Hints: entries made inaccessible, so that the next access tells who uses the page.

use crate::MapError;
use crate::policy::{MapPolicy, by_policy};
use crate::protect::{Change, change_range};
use crate::vmas::check_user_range;
use mm_arch::VirtRange;
use mm_rmap::RmapPlatform;
use mm_vma::{MmRead, Vma, VmaFlags};

/// Makes the entries of `range` inaccessible whose pages could move to whoever uses them
/// (rules MPROT-06, MPROT-07). The next access to each takes a fault that gives the rights
/// back, and may move the page.
///
/// Passed by are holes, what is inaccessible anyway, code that all share, and pages that
/// would not move: the zero page, merged ones, those that other address spaces or devices
/// use. How many entries are marked is told as [`Event::HintsMarked`](mm_vma::Event).
///
/// Goes on beside faults, on the read side of the mmap lock. When it returns, no CPU has a
/// translation left by which it could pass a hint by.
///
/// # Errors
///
/// If the range is not page-aligned or not in user space.
pub fn mark_hints<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &MmRead<'_, P>,
    range: VirtRange,
) -> Result<(), MapError> {
    let (mm, stay) = (vmas.mm(), vmas.stay());
    check_user_range(mm, range)?;
    let mut owed = mm.tables().tlb().obligation();
    for vma in vmas.overlapping(range).filter(|vma| is_asked(vma)) {
        let Some(part) = vma.range().intersect(range) else { continue };
        by_policy!(policy, change_range::<P>(mm, stay, vma, part, Change::Hint, &mut owed));
    }
    owed.now();
    Ok(())
}

fn is_asked(vma: &Vma) -> bool {
    let never = VmaFlags::PFNMAP | VmaFlags::IO | VmaFlags::SHADOW_STACK;
    let flags = vma.flags();
    // Everybody's code is in everybody's cache.
    let read_only_file = vma.backing().is_some() && !flags.contains(VmaFlags::WRITE);
    vma.is_accessible() && !flags.intersects(never) && !read_only_file
}
