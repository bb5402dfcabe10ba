//! Pages that their owner gave up with `MADV_FREE`.
//!
//! # The protocol
//!
//! Such a page is dropped if nobody stored to it since. Stores of CPUs are in the entries,
//! which are gone by now; a device stores through a reference, and marks the folio dirty
//! before it gives that back. So, behind a full barrier:
//!
//! ```text
//!   reclaim                        pin                        its end
//!     clear the entries              take a reference           store
//!     full barrier                   full barrier               mark the folio dirty
//!     read the references            look at the entry again    give the reference back
//!     acquire                        gone: give it back
//!     read dirty
//! ```
//!
//! A pin that reclaim does not see in the references either sees the entry gone, or has
//! ended, and then its dirt is seen (rule UNMAP-17, race F-RACE-10, MM-066).

use super::Kept;
use crate::E;
use mm_arch::{Entry, Flush, Level};
use mm_folio::{Folio, FolioFlags};
use mm_pgtable::{LockedPmd, TableSpace};
use mm_sync::{fence, mutant};
use mm_vma::{Mm, Platform, VmaFlags};

/// Whether the pages whose entries were just taken may be dropped. Makes the folio normal
/// memory again if it was stored to.
///
/// # Errors
///
/// If not: the entries are to be put back.
pub(super) fn may_discard<P: Platform>(
    folio: Folio<'_, P>,
    vma_flags: VmaFlags,
) -> Result<(), Kept> {
    // Pairs with the full barrier behind a grab: the pin that is not in the count below
    // finds the entry gone.
    fence!("reclaim.lazyfree.mb", SeqCst);
    let early = mutant!("reclaim.lazyfree.dirty_first") && folio.has(FolioFlags::DIRTY);
    // The count is acquired: what a former holder marked is seen behind it. No mapping
    // comes or goes meanwhile, so equal means that all references are mappings, and the
    // one is the caller's (rule UNMAP-21).
    let others = folio.counts_locked(|c| i64::from(c.refs) - i64::from(c.mapcount) - 1);
    let dirty =
        if mutant!("reclaim.lazyfree.dirty_first") { early } else { folio.has(FolioFlags::DIRTY) };
    // Dirt first: what was stored to is needed whoever else holds it.
    if dirty && !vma_flags.contains(VmaFlags::DROPPABLE) {
        folio.set_flag(FolioFlags::SWAPBACKED);
        return Err(Kept::Dirty);
    }
    // The holder may still store. The page stays given up.
    if others != 0 { Err(Kept::Referenced) } else { Ok(()) }
}

/// Takes a PMD leaf away whose pages were given up, as one (rule UNMAP-20); `owed` covers it.
/// Mappings and references are the caller's to remove.
///
/// # Errors
///
/// If they may not be dropped: the leaf is as it was. If it is dirty it was not touched.
pub(super) fn discard_leaf<P: Platform>(
    mm: &Mm<P>,
    pmd: &mut LockedPmd<'_, P>,
    folio: Folio<'_, P>,
    vma_flags: VmaFlags,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> Result<(), Kept> {
    let seen = pmd.entry();
    if seen.is_dirty() {
        folio.set_flag(FolioFlags::DIRTY);
    }
    if folio.has(FolioFlags::DIRTY) && !vma_flags.contains(VmaFlags::DROPPABLE) {
        folio.set_flag(FolioFlags::SWAPBACKED);
        return Err(Kept::Dirty);
    }
    // Not empty: who looks without the lock must not take it for a hole, as it may come back
    // (MM-094). A store that came in between is in what the exchange returns.
    let old = pmd.swap(seen.mkinvalid(Level::Pmd), owed);
    if old.is_dirty() {
        folio.set_flag(FolioFlags::DIRTY);
    }
    let done = may_discard(folio, vma_flags);
    let mut covered = mm.tables().tlb().obligation();
    pmd.swap(if done.is_ok() { E::<P>::NONE } else { old }, &mut covered);
    covered.already_done();
    done?;
    if let Some(frame) = pmd.withdraw() {
        // SAFETY: withdrawn just now: it is not linked, and nobody else knows it.
        unsafe { mm.tables().free_unlinked(frame) };
    }
    Ok(())
}
