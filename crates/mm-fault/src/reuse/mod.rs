//! When a page that may be shared turns out not to be.
//!
//! Sharing ends silently: the other address space unmaps or exits, and nobody
//! tells the one that stays. Its next store finds a read-only entry and asks
//! here whether anybody else is left. A wrong "no" shows one process the
//! stores of another; a wrong "yes" only costs a copy.
//!
//! Every holder of a page has a reference, and a mapping has one each. So the
//! question is whether there are references that are no mappings of this
//! address space: a pin, a cache, a walker, a page on its way out of another
//! address space that a CPU there may still reach (race F-RACE-05: mappings are
//! given up before the flush, references behind it).
//!
//! The answer on a large folio holds for all of its pages, and each of them would
//! otherwise take a fault of its own to ask the same. How far one fault goes is
//! the policy's; what it may do to an entry that did not fault is the same for
//! all policies (`window`).

mod policy;
mod verdict;
mod window;

pub(crate) use verdict::Exclusive;
pub(crate) use window::{Change, Place, Widening};

use mm_folio::{AnonId, Folio, FolioFlags, FolioSpace};
use mm_vma::{Platform, SwapSpace};

/// Proves that a small anonymous folio, mapped by the entry whose lock is held,
/// belongs to that entry alone, and marks it; whether that worked (rule
/// REUSE-01). A page of the swap cache leaves it for that, if no entry counts on its slot.
///
/// On success the folio moves to `anon`, the tree of the mapping: no other
/// mapping can come any more, so walks need not visit the others.
pub(crate) fn claim_small<P: Platform>(
    platform: &P,
    folio: Folio<'_, P>,
    anon: Option<AnonId>,
) -> bool {
    let Some(anon) = anon else { return false };
    // Cheap rejects, before the lock is touched.
    let by_map = mm_sync::mutant!("fault.reuse.map_only");
    let cached = i32::from(folio.has(FolioFlags::SWAPCACHE));
    if folio.has(FolioFlags::KSM) || (folio.refcount() > 1 + cached && !by_map) {
        return false;
    }
    // Never waited for under a table lock. Whoever has it may be about to move
    // or share the page.
    let Some(lock) = folio.try_lock() else { return false };
    let folio = lock.folio();
    // Before the references are counted: an entry that is left counts as a user.
    let beside_cache = mm_sync::mutant!("fault.reuse.beside_cache");
    if !beside_cache {
        platform.swap().slots().free(&lock);
    }
    let most = if beside_cache { 1 + cached } else { 1 };
    let alone = folio.counts_locked(|c| if by_map { c.mapcount == 1 } else { c.refs <= most });
    if !alone || folio.has(FolioFlags::KSM) {
        return false;
    }
    move_to(folio, anon);
    folio.memmap().set_exclusive(folio.head(), 1);
    true
}

/// Moves a locked folio that is exclusive to a mapping to that mapping's tree.
pub(crate) fn move_to<P: FolioSpace>(folio: Folio<'_, P>, anon: AnonId) {
    if let Some((old, index)) = folio.anon()
        && old != anon
    {
        folio.set_anon(anon, index);
    }
}
