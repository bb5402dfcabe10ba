//! VMAs come, change and go, in the store and in all trees that list them.
//!
//! A VMA is in the tree of the object it shows from the day it is made, and in
//! anonymous trees from its first private page on. Everything here is under the mmap
//! lock's write side; of two locks of trees only one is held at a time.

use crate::RmapPlatform;
use mm_arch::{VirtAddr, VirtRange};
use mm_folio::AllocError;
use mm_vma::{Mm, MmWrite, StoreError, Vma};

/// `vma` is new, and has neither entries nor private pages.
///
/// # Errors
///
/// If there is no memory; it is in no tree then.
pub fn link_vma<P: RmapPlatform>(mm: &Mm<P>, vma: &Vma) -> Result<(), AllocError> {
    mm.platform().file_trees().link(mm, vma)
}

/// `child_vma` is a forked copy of `parent_vma`
/// (see [`AnonTrees::fork_vma`](crate::AnonTrees::fork_vma)).
///
/// # Errors
///
/// If there is no memory. Whoever removes the VMA [unlinks](unlink_vma) it only if
/// this succeeded.
///
/// # Panics
///
/// If `parent_vma` names an anonymous tree but is not linked.
pub fn fork_vma<P: RmapPlatform>(
    child: &Mm<P>,
    parent_vma: &Vma,
    child_vma: &Vma,
) -> Result<(), AllocError> {
    let platform = child.platform();
    platform.file_trees().link(child, child_vma)?;
    platform.anon_trees().fork_vma(child, parent_vma, child_vma).inspect_err(|_| {
        platform.file_trees().unlink(child, child_vma);
    })
}

/// `dst` is part of, or a moved copy of, `src` in the same space
/// (see [`AnonTrees::clone_vma`](crate::AnonTrees::clone_vma)).
///
/// # Errors
///
/// If there is no memory. `dst` is in no tree then.
///
/// # Panics
///
/// If `src` names an anonymous tree but is not linked.
pub fn clone_vma<P: RmapPlatform>(mm: &Mm<P>, src: &Vma, dst: &Vma) -> Result<(), AllocError> {
    let platform = mm.platform();
    platform.file_trees().link(mm, dst)?;
    platform.anon_trees().clone_vma(mm, src, dst).inspect_err(|_| {
        platform.file_trees().unlink(mm, dst);
    })
}

/// `vma` had the range `old`, with the same start, and has another one now.
///
/// # Panics
///
/// If no VMA is linked at that start.
pub fn vma_resized<P: RmapPlatform>(mm: &Mm<P>, old: VirtRange, vma: &Vma) {
    mm.platform().file_trees().adjusted(mm, vma);
    mm.platform().anon_trees().adjusted(mm, old, vma);
}

/// `vma` has other flags now, its range is as it was. Walks under way end first, and
/// later ones see the new flags: whoever relies on what reclaim must not do to the
/// mapping says so before it changes entries.
///
/// # Panics
///
/// If no VMA is linked at that start.
pub fn vma_flags_changed<P: RmapPlatform>(mm: &Mm<P>, vma: &Vma) {
    vma_resized(mm, vma.range(), vma);
}

/// `vma` is about to go: it leaves all trees (rule RMAP-24). Page tables under it
/// may be freed only afterwards.
///
/// # Panics
///
/// If it is not linked.
pub fn unlink_vma<P: RmapPlatform>(mm: &Mm<P>, vma: &Vma) {
    mm.platform().file_trees().unlink(mm, vma);
    mm.platform().anon_trees().unlink(mm, vma);
}

/// Makes `va` a VMA boundary; whether it was not one before.
///
/// # Errors
///
/// If `va` is not page-aligned or there is no memory; nothing changed then.
pub fn split_vma<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    va: VirtAddr,
) -> Result<bool, StoreError> {
    let mm = vmas.mm();
    let old = vmas.find(va).map(Vma::range);
    if !vmas.change().split_at(va)? {
        return Ok(false);
    }
    let (Some(old), Some(upper)) = (old, vmas.find(va)) else { return Ok(true) };
    let Some(lower) = vmas.find(old.start()) else { return Ok(true) };
    // The upper part is linked while the lower one is still listed with
    // its old range: a walk meets its pages twice rather than never.
    if clone_vma(mm, lower, upper).is_err() {
        let halves = |_: &Vma, u: &Vma| u.start() == va;
        vmas.change().merge_around(old, halves, |_, _| ());
        return Err(StoreError::NoMemory);
    }
    vma_resized(mm, old, lower);
    Ok(true)
}

/// Joins neighbours that touch `range` where their trees allow it.
pub fn merge_vmas<P: RmapPlatform>(vmas: &mut MmWrite<'_, P>, range: VirtRange) {
    let mm = vmas.mm();
    let (anon, files) = (mm.platform().anon_trees(), mm.platform().file_trees());
    vmas.change().merge_around(
        range,
        |lower, upper| anon.mergeable(lower, upper),
        |lower, upper| {
            // The lower one first: no page is without a link.
            files.adjusted(mm, lower);
            files.unlink(mm, upper);
            anon.merged(mm, lower, upper);
        },
    );
}
