//! Moving a folio to other frames.

use crate::RmapPlatform;
use crate::policy::Batching;
use crate::suspend::{Leaves, suspend_if_mapped};
use mm_folio::{Folio, FolioFlags, FolioRef, FrameBytes, Get, QueueReason};
use mm_vma::{PageCache, Platform, SwapSpace, free_swap_cache};

/// Why a folio was not moved. It is where it was, and mapped as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MigrationError {
    /// No memory to move it to.
    #[error("no memory to move the folio to")]
    NoMemory,
    /// Somebody holds it, writes it out, or has taken it from its file.
    #[error("the folio is in use")]
    Busy,
    /// Folios of this kind do not move.
    #[error("folios of this kind do not move")]
    Unmovable,
}

impl MigrationError {
    /// The kernel's name of the error.
    pub const fn errno(self) -> &'static str {
        match self {
            MigrationError::NoMemory => "ENOMEM",
            MigrationError::Busy => "EAGAIN",
            MigrationError::Unmovable => "EINVAL",
        }
    }
}

/// What does not move: who looks for it by its frames would not find it.
const FIXED: FolioFlags =
    FolioFlags::PRIVATE.union(FolioFlags::HWPOISON).union(FolioFlags::DEVICE_PRIVATE);

/// Moves a folio to newly allocated frames, with all of its mappings (rules MIGR-01..03,
/// P-RACE-08). `own` are the caller's references, and afterwards the last ones of the old
/// place. `cache` is the cache of the object that the folio belongs to, if it does.
///
/// One in the swap cache is there afterwards, with the same slots; a merged page keeps its
/// places, and equal pages are merged with it as before.
///
/// Accesses by CPUs wait meanwhile. Whoever else holds the folio keeps it where it is: a
/// reference that nobody has accounted for is a reference to the *frames*.
///
/// # Errors
///
/// If it cannot be moved, or not now. Everything is as before then, but that
/// PMD leaves may have become PTEs.
pub fn migrate_folio<P: RmapPlatform>(
    platform: &P,
    own: &FolioRef<'_, P, Get>,
    cache: Option<&PageCache<P>>,
    batching: Batching,
) -> Result<(), MigrationError> {
    let folio = own.folio();
    let locked = folio.lock();
    if folio.flags().intersects(FIXED) || folio.is_zero_page() || folio.is_huge_zero() {
        return Err(MigrationError::Unmovable);
    }
    let is_in = cache.is_some_and(|c| folio.file().is_some_and(|(id, _)| id == c.id()));
    let is_swap_cached = folio.has(FolioFlags::SWAPCACHE);
    if folio.has(FolioFlags::WRITEBACK) || !folio.is_anon() && !is_in && !is_swap_cached {
        return Err(MigrationError::Busy);
    }
    let new = platform.memmap().alloc(folio.order()).map_err(|_| MigrationError::NoMemory)?;
    let to = new.folio();
    let new_locked = to.lock();
    let suspended = suspend_if_mapped(platform, &locked, Leaves::Keep, batching)
        .map_err(|_| MigrationError::Busy)?;
    let moved = match cache.filter(|_| is_in) {
        Some(cache) => cache.replace(&locked, &new_locked, own.n()),
        None => {
            let copy = || copy_over(platform, folio, to);
            let replace = || {
                if is_swap_cached {
                    return platform.swap().slots().replace(&locked, &new_locked, own.n(), copy);
                }
                let frozen = folio.freeze(own.n());
                if frozen {
                    copy();
                    // Not before the copy is whole: references that come now are of a
                    // folio that nobody will use.
                    folio.unfreeze(own.n());
                }
                frozen
            };
            if folio.has(FolioFlags::KSM) {
                platform.anon_trees().move_merged(folio.head(), to.head(), replace)
            } else {
                replace()
            }
        }
    };
    if !moved {
        // The mappings come back as `suspended` goes.
        return Err(MigrationError::Busy);
    }
    if let Some(suspended) = suspended {
        suspended.resume_at(to.head());
    }
    if folio.is_deferred() {
        to.queue_deferred(QueueReason::MaybeUnderused);
    }
    if folio.has(FolioFlags::LRU) {
        to.enlist();
    }
    drop((locked, new_locked));
    // Whoever gave it up meanwhile could not lock it.
    free_swap_cache(platform, to);
    Ok(())
}

/// Gives `to` what a frozen folio holds, and is.
fn copy_over<P: Platform>(platform: &P, from: Folio<'_, P>, to: Folio<'_, P>) {
    for i in 0..from.nr_pages() {
        platform.bytes().copy(to.page(i), from.page(i));
    }
    to.set_flag(from.flags() & FolioFlags::MOVES);
    if let Some((id, index)) = from.anon() {
        to.set_anon(id, index);
    }
}
