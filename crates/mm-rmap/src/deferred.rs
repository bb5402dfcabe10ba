//! Splitting folios that are not worth their size: the work of a shrinker.

use crate::RmapPlatform;
use crate::policy::Batching;
use crate::split_folio::{SplitFolio, split_anon_folio};
use mm_folio::{Folio, FolioFlags, FrameBytes, QueueReason};

/// What became of folios that waited for a split.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeferredPass {
    /// Split; what nothing mapped of them is free.
    pub split: u32,
    /// Put back: somebody used them.
    pub requeued: u32,
    /// Dropped from the queue, as they are in good use.
    pub kept: u32,
}

/// Splits up to `most` of the folios that wait for it (rules FOLIO-24, FOLIO-57): those of
/// which pages were unmapped, and those of which more than `max_none` pages hold nothing but
/// zeros. The latter, if they are in use after all, do not wait again; the
/// former do until they are split.
///
/// Locks of page tables and trees are taken; the lock of the queue is not held meanwhile.
pub fn split_deferred<P: RmapPlatform>(
    platform: &P,
    most: usize,
    max_none: u32,
    batching: Batching,
) -> DeferredPass {
    let map = platform.memmap();
    let mut done = DeferredPass::default();
    // What is put back waits for the next pass.
    for _ in 0..most.min(map.deferred_len()) {
        let Some(own) = map.deferred_pop() else { break };
        let folio = own.folio();
        let partial = folio.has(FolioFlags::PARTIALLY_MAPPED);
        if !partial && !is_underused(platform, folio, max_none) {
            done.kept += 1;
            continue;
        }
        let Some(locked) = folio.try_lock() else {
            requeue(folio, partial, &mut done);
            continue;
        };
        let split = SplitFolio { locked, own };
        let (rest, result) = split_anon_folio(platform, map, split, 0, 0, batching);
        if result.is_ok() {
            done.split += 1;
        } else {
            requeue(rest.own.folio(), partial, &mut done);
        }
        drop(rest.locked);
        drop(rest.own);
    }
    done
}

fn requeue<P: RmapPlatform>(folio: Folio<'_, P>, partial: bool, done: &mut DeferredPass) {
    if partial {
        folio.queue_deferred(QueueReason::PartiallyMapped);
        done.requeued += 1;
    } else {
        done.kept += 1;
    }
}

/// Whether more than `max_none` of the pages hold nothing but zeros. What is kept in memory
/// on purpose is not asked.
fn is_underused<P: RmapPlatform>(platform: &P, folio: Folio<'_, P>, max_none: u32) -> bool {
    let kept = FolioFlags::MLOCKED | FolioFlags::HWPOISON;
    if folio.flags().intersects(kept) || max_none >= folio.nr_pages() - 1 {
        return false;
    }
    let zeros = (0..folio.nr_pages()).filter(|i| platform.bytes().is_zero(folio.page(*i)));
    zeros.take(max_none as usize + 1).count() > max_none as usize
}
