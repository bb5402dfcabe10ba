//! A large folio of which only a part is meant becomes single pages.

use crate::{FlushBatch, ReclaimPlatform, UnmapFlags, UnmapPolicy, Unmapped, try_to_unmap};
use mm_folio::{FolioLockGuard, FolioRef, Get};
use mm_rmap::{Batching, SplitFolio, split_anon_folio};
use mm_vma::{Event, Observer};

/// Splits the folio that `own` holds into single pages, if it can be locked and nobody else
/// holds it; whether it did. `own` is given back in any case. A folio of a file is
/// unmapped for that, and stays so. No table lock is held.
pub(crate) fn split_to_pages<P: ReclaimPlatform>(
    policy: UnmapPolicy,
    platform: &P,
    own: FolioRef<'_, P, Get>,
    page: u32,
) -> bool {
    let folio = own.folio();
    let Some(locked) = folio.try_lock() else { return false };
    if folio.is_anon() {
        let batching = match policy {
            UnmapPolicy::All => Batching::Batched,
            // Kernels suspend page by page (rule MIGR-01).
            _ => Batching::PerPage,
        };
        let whole = SplitFolio { locked, own };
        let map = folio.memmap();
        let (SplitFolio { locked, own }, done) =
            split_anon_folio(platform, map, whole, 0, page, batching);
        drop(locked);
        drop(own);
        return done.is_ok();
    }
    split_file(policy, platform, locked, own, page)
}

fn split_file<P: ReclaimPlatform>(
    policy: UnmapPolicy,
    platform: &P,
    locked: FolioLockGuard<'_, P>,
    own: FolioRef<'_, P, Get>,
    page: u32,
) -> bool {
    let folio = own.folio();
    let order = u64::from(folio.order());
    let failed = || {
        platform.observer().event(Event::FolioSplitFailed, order);
        false
    };
    let Some(object) = folio.file().and_then(|(id, _)| platform.object(id)) else {
        return failed();
    };
    // Before page tables are touched: whoever holds the folio now will hold it then.
    let expected = i64::from(folio.expected_refs()) + i64::from(own.n());
    if i64::from(folio.refcount()) != expected {
        return failed();
    }
    let flags = UnmapFlags::SPLIT_PMD | UnmapFlags::SYNC | UnmapFlags::IGNORE_MLOCK;
    let mut flushes = FlushBatch::new(platform);
    if try_to_unmap(policy, &locked, flags, &mut flushes) != Unmapped::All {
        return failed();
    }
    let map = folio.memmap();
    core::mem::forget(locked);
    let mut run = own.into_run(page);
    // One hold, whichever page it is of.
    run.first = page;
    let (run, done) = object.split(run);
    let own = map.adopt_run::<Get>(run);
    drop(own.folio().inherited_lock());
    drop(own);
    if !done {
        return failed();
    }
    platform.observer().event(Event::FolioSplit, order);
    true
}
