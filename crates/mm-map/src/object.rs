//! Pages of an object leave all mappings of it: truncation, holes, invalidation.
//!
//! # The protocol
//!
//! The object says first that the pages are not there any more (its size, or what its
//! caller promises). Then they are unmapped everywhere, and only then each folio is
//! locked, unmapped again, and taken out of the cache. Whoever maps a page locks it
//! and asks the object after that, so it maps the page before the second unmapping or
//! not at all (race F-RACE-37).

use crate::policy::{MapPolicy, by_policy};
use crate::zap::{Guards, How, Pages, zap};
use core::ops::ControlFlow;
use mm_arch::{Arch, Live, VirtRange};
use mm_folio::{FileId, FolioFlags, FolioLockGuard, FolioRef, FrameBytes, Get};
use mm_pgtable::Gather;
use mm_rmap::{RmapPlatform, SplitError, SplitFolio};
use mm_vma::{Event, Observer, PageCache, VmaFlags};

/// Unmaps the `nr` pages from `first` on of an object from every mapping of it; private
/// copies only if `pages` says so (rule ZAP-08). Holds no mmap lock.
pub fn unmap_object<P: RmapPlatform>(
    policy: &MapPolicy,
    platform: &P,
    id: FileId,
    first: u64,
    nr: u64,
    pages: Pages,
) {
    platform.file_trees().walk_range(id, first, nr, &mut |mm, visit| {
        if let Ok(range) = VirtRange::units(visit.va, visit.nr_pages, P::Arch::PAGE_SHIFT) {
            let mut gather = Gather::new(mm.tables());
            let keeps_wp = visit.flags.contains(VmaFlags::UFFD_WP);
            // Whoever ends the lock of a mapping passes by what is not mapped any more (rule RMAP-06).
            let vma = visit.flags | VmaFlags::LOCKED;
            let how = How { guards: Guards::Keep, pages, vma, keeps_wp };
            by_policy!(policy, zap::<Live, P>(mm, visit.stay, range, range, how, &mut gather));
            gather.finish();
        }
        ControlFlow::Continue(())
    });
}

/// Takes the `nr` pages from `first` on out of a cache, dirty or not. A folio that the
/// range cuts is split; if somebody holds it, its part of the range is filled with
/// zeros and stays.
///
/// The object has seen to it that nobody makes or maps these pages any more.
pub fn evict_range<P: RmapPlatform>(policy: &MapPolicy, cache: &PageCache<P>, first: u64, nr: u64) {
    let end = first.saturating_add(nr);
    let mut next = first;
    while let Some((at, own)) = cache.next_from(next).filter(|(at, _)| *at < end) {
        let folio = own.folio();
        let behind = at + u64::from(folio.nr_pages());
        next = behind;
        let locked = folio.lock();
        if folio.file() != Some((cache.id(), at)) {
            // It left meanwhile, or was split: what is there now?
            next = at.max(first);
            drop(locked);
            continue;
        }
        unmap_folio(policy, cache, &locked, at);
        if first <= at && behind <= end {
            cache.remove(&locked);
            drop(locked);
            continue;
        }
        let bytes = cache.platform().bytes();
        let (from, to) = (first.max(at), end.min(behind));
        bytes.zero(folio.page((from - at) as u32), to - from);
        // At both ends of the range, as far as they cut the folio.
        let order = folio.order();
        let cut = if at < first { first } else { end };
        let (own, locked, done) = split_at(cache, own, locked, (cut - at) as u32);
        if done {
            cache.platform().observer().event(Event::FolioSplit, u64::from(order));
            next = from;
        }
        drop(locked);
        drop(own);
    }
}

/// Splits a locked folio of an object into folios of `order` (rules FOLIO-52..55). It is
/// unmapped everywhere before; the next access finds its parts. What the caller holds goes
/// on with the part that has page `keep`.
///
/// # Errors
///
/// If it cannot be split, or not now, or has no page `keep`. It may be unmapped then.
pub fn split_cached<'m, P: RmapPlatform>(
    policy: &MapPolicy,
    cache: &'m PageCache<P>,
    folio: SplitFolio<'m, P>,
    order: u32,
    keep: u32,
) -> (SplitFolio<'m, P>, Result<(), SplitError>) {
    let whole = folio.own.folio();
    let (from, nr) = (whole.order(), whole.nr_pages());
    let observer = cache.platform().observer();
    let known = i64::from(nr) + i64::from(whole.mapcount()) + i64::from(folio.own.n());
    let refused = match whole.file() {
        _ if order >= from => Some(SplitError::Order { from, to: order }),
        _ if keep >= nr => Some(SplitError::Page { keep, nr_pages: nr }),
        Some((id, at)) if id == cache.id() && !whole.has(FolioFlags::WRITEBACK) => {
            if i64::from(whole.refcount()) == known {
                unmap_folio(policy, cache, &folio.locked, at);
                None
            } else {
                Some(SplitError::Held)
            }
        }
        // It has left its object, or is on its way to the store.
        _ => Some(SplitError::Busy),
    };
    if let Some(error) = refused {
        observer.event(Event::FolioSplitFailed, u64::from(from));
        return (folio, Err(error));
    }
    let SplitFolio { locked, own } = folio;
    let (own, locked, done) = cache.split(own, locked, order, keep);
    let (event, result) = match done {
        true => (Event::FolioSplit, Ok(())),
        false => (Event::FolioSplitFailed, Err(SplitError::Held)),
    };
    observer.event(event, u64::from(from));
    (SplitFolio { locked, own }, result)
}

fn unmap_folio<P: RmapPlatform>(
    policy: &MapPolicy,
    cache: &PageCache<P>,
    locked: &FolioLockGuard<'_, P>,
    at: u64,
) {
    let folio = locked.folio();
    if folio.is_mapped() && !mm_sync::mutant!("map.evict.no_unmap") {
        let nr = u64::from(folio.nr_pages());
        unmap_object(policy, cache.platform(), cache.id(), at, nr, Pages::OfObject);
    }
}

/// Splits a locked, unmapped folio down to the single page `page`, and leaves the
/// other parts as large as they can be. Whether it is split so far that a folio
/// begins at `page`.
fn split_at<'p, P: RmapPlatform>(
    cache: &'p PageCache<P>,
    mut own: FolioRef<'p, P, Get>,
    mut locked: FolioLockGuard<'p, P>,
    page: u32,
) -> (FolioRef<'p, P, Get>, FolioLockGuard<'p, P>, bool) {
    let pfn = locked.folio().page(page);
    while locked.folio().is_large() {
        let (keep, order) = (locked.folio().index_of(pfn), locked.folio().order());
        let done;
        (own, locked, done) = cache.split(own, locked, order - 1, keep);
        if !done {
            return (own, locked, false);
        }
    }
    (own, locked, true)
}
