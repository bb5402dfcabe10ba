//! Shared memory: pages of an object, whoever maps them.

use super::{CollapseError, CollapseFor, Collapsed, NEVER};
use crate::entry::E;
use crate::object::unmap_object;
use crate::policy::MapPolicy;
use crate::zap::Pages;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use mm_arch::{Arch, Entry, Level, VirtAddr};
use mm_folio::{FileId, FolioFlags, FolioLockGuard, FolioRef, Get};
use mm_pgtable::{Gather, LockedEntry, LockedTable};
use mm_rmap::RmapPlatform;
use mm_vma::{
    Backing, BackingKind, Event, Mm, Observer, PageCache, RssKind, VmaFlags, mlock_mapped,
};

/// Replaces the folios that an object has of the aligned block of `order` around page `index`
/// by one, with their content; holes become zeros, but not where userfaultfd is asked for missing
/// pages (rule COLL-01). They are unmapped everywhere before; the next access finds the new one.
/// Takes no mmap lock.
///
/// Shared memory only: the pages of a file have a store that would have to hear of it. What is in
/// swap has to be brought in before.
///
/// # Errors
///
/// If it may not be done, or not now. Pages may have been unmapped, and are found again.
pub fn collapse_object<P: RmapPlatform>(
    policy: &MapPolicy,
    object: &dyn Backing,
    cache: &PageCache<P>,
    index: u64,
    order: u32,
    on_behalf: CollapseFor,
) -> Result<Collapsed, CollapseError> {
    let platform = cache.platform();
    let at = VirtAddr::new(index << P::Arch::PAGE_SHIFT);
    if order > P::Arch::order(Level::Pmd) {
        return Err(CollapseError::NotAllowed(at));
    }
    let (first, nr) = (index >> order << order, 1u64 << order);
    let is_inside = first.checked_add(nr).is_some_and(|end| end <= object.nr_pages());
    if object.kind() != BackingKind::Shmem || !is_inside {
        return Err(CollapseError::NotAllowed(at));
    }
    let no_memory = CollapseError::NoMemory(at);
    let new = platform.memmap().alloc(order).map_err(|_| no_memory)?;
    let mut found: Vec<FolioRef<'_, P, Get>> = Vec::new();
    let mut locked: Vec<FolioLockGuard<'_, P>> = Vec::new();
    found.try_reserve_exact(nr as usize).map_err(|_| no_memory)?;
    locked.try_reserve_exact(nr as usize).map_err(|_| no_memory)?;
    let (mut next, mut missing, mut shared) = (first, nr, 0);
    while let Some((start, own)) = cache.next_from(next).filter(|(start, _)| *start < first + nr) {
        let folio = own.folio();
        if folio.order() >= order {
            return Ok(Collapsed::Already);
        }
        next = start + u64::from(folio.nr_pages());
        missing -= u64::from(folio.nr_pages());
        shared += if folio.maybe_mapped_shared() { folio.nr_pages() } else { 0 };
        let guard = folio.try_lock().ok_or(CollapseError::Held(at))?;
        if folio.file() != Some((cache.id(), start)) || !folio.has(FolioFlags::UPTODATE) {
            return Err(CollapseError::Held(at));
        }
        locked.push(guard);
        found.push(own);
    }
    if let CollapseFor::Scan(limits) = on_behalf {
        if missing > u64::from(limits.max_none) {
            return Err(CollapseError::TooManyNone(at));
        }
        if shared > limits.max_shared {
            return Err(CollapseError::TooManyShared(at));
        }
    }
    if found.is_empty() {
        return Err(CollapseError::Nothing(at));
    }
    if missing > 0 && is_asked_for(platform, cache.id(), first, nr) {
        return Err(CollapseError::TooManyNone(at));
    }
    unmap_object(policy, platform, cache.id(), first, nr, Pages::OfObject);
    let folio = new.folio();
    let to = folio.lock();
    if !object.fill_holes(first, nr, &mut || cache.gather(first, &locked, &to)) {
        return Err(CollapseError::Held(at));
    }
    drop(to);
    // Before their last references go.
    drop(locked);
    drop(found);
    platform.observer().event(Event::CollapseAlloc, u64::from(order));
    Ok(Collapsed::Now)
}

/// Whether userfaultfd hears of accesses to pages of the object that are missing.
fn is_asked_for<P: RmapPlatform>(platform: &P, id: FileId, first: u64, nr: u64) -> bool {
    let mut asked = false;
    platform.file_trees().walk_range(id, first, nr, &mut |_, visit| {
        asked |= visit.flags.contains(VmaFlags::UFFD_MISSING);
        if asked { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    asked
}

/// Maps the folio of a PMD's size that an object has for the block around `va` by a leaf, in
/// the place of a table in which nothing is left. Takes the mmap lock.
///
/// # Errors
///
/// If no mapping shows the block as a whole, the object has no such folio, or something of
/// it is mapped otherwise. Faults will do.
pub fn map_collapsed<P: RmapPlatform>(
    mm: &Mm<P>,
    cache: &PageCache<P>,
    va: VirtAddr,
) -> Result<Collapsed, CollapseError> {
    let vmas = mm.write();
    let order = P::Arch::order(Level::Pmd);
    let not_allowed = CollapseError::NotAllowed(va);
    let vma = vmas.find(va).filter(|v| !v.flags().intersects(NEVER)).ok_or(not_allowed)?;
    let block = vma
        .block(va, order)
        .filter(|_| vma.backing().is_some_and(|b| b.id() == cache.id()))
        // Of private mappings of the object the leaf could not be copied page by page.
        .filter(|_| vma.flags().contains(VmaFlags::SHARED))
        .filter(|_| !vma.flags().intersects(VmaFlags::UFFD_ANY))
        .ok_or(not_allowed)?;
    let tables = mm.tables();
    let run = cache.get(vma.linear_index(block.start())).ok_or(CollapseError::Nothing(va))?;
    let own: FolioRef<'_, P, Get> = mm.platform().memmap().adopt_run(run);
    let folio = own.folio();
    let locked = folio.try_lock().ok_or(CollapseError::Held(va))?;
    let whole = (cache.id(), vma.linear_index(block.start()));
    if folio.order() != order || folio.file() != Some(whole) {
        return Err(CollapseError::Held(va));
    }
    // Walkers of the object's tree come without the mmap lock.
    let walks = mm.platform().file_trees().exclude_walks(vma);
    let mut gather = Gather::<P, FolioRef<'_, P, Get>>::new(tables);
    match tables.lock_entry(vmas.stay(), block.start()) {
        LockedEntry::Huge(pmd) if pmd.entry().is_leaf(Level::Pmd) => return Ok(Collapsed::Already),
        LockedEntry::Huge(_) => return Err(CollapseError::Entry(va)),
        LockedEntry::Hole => {}
        LockedEntry::Table(table) if is_empty(&table) => {
            drop(table);
            let mut pmd =
                tables.lock_pmd(vmas.stay(), block.start()).ok_or(CollapseError::Nothing(va))?;
            let frame = pmd.entry().as_table(Level::Pmd).ok_or(CollapseError::Entry(va))?;
            pmd.swap(E::<P>::NONE, gather.owed());
            drop(pmd);
            // SAFETY: unlinked just now, under the mmap lock's write side.
            unsafe { gather.park_table(frame, block) };
            gather.flush();
        }
        LockedEntry::Table(_) => return Err(CollapseError::Entry(va)),
    }
    let mut pmd =
        tables.ensure_pmd(vmas.stay(), block.start()).map_err(|_| CollapseError::NoMemory(va))?;
    let mut entry =
        E::<P>::leaf(folio.head(), P::Arch::prot(vma.protection()), Level::Pmd).mkyoung();
    if vma.wants_write_notify() {
        entry = entry.wrprotect();
    }
    mm.counters().add(RssKind::of(folio), 1 << order);
    folio.add_file_pmd(mm.id());
    mlock_mapped(vma.flags(), folio, folio.nr_pages());
    own.hand_over();
    let mut fresh = tables.tlb().obligation();
    // No table is deposited: a leaf of an object is taken away, not split.
    pmd.swap(entry, &mut fresh);
    fresh.already_done();
    drop(pmd);
    drop(walks);
    drop(locked);
    Ok(Collapsed::Now)
}

fn is_empty<P: RmapPlatform>(table: &LockedTable<'_, P>) -> bool {
    (0..P::Arch::nr_entries(Level::Pte)).all(|i| table.get(i).is_none())
}
