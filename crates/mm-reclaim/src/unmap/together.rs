//! Neighbouring folios of one object, unmapped in one walk.
//!
//! # The protocol
//!
//! What a folio costs besides its entries is locks: that of the tree, that of the table, the
//! record of the flush, the counter of the space. Folios that are neighbours in their object are
//! so in most mappings, and share all of these:
//!
//! ```text
//!   folio locks, a reference of the caller's to each
//!     tree: every VMA that may map one of them
//!       table lock: each folio, if the table has all of it in a row     (whole)
//!         take the run; dirt to the folio; markers; map counts, references
//!       the flush made or put off, the counter of the space             (leave)
//! ```
//!
//! The flush is put off behind the last entry that was taken, before the table is unlocked (rule
//! TLBB-02): whoever finds one of them empty finds it outstanding. Until it is made the caller's
//! reference keeps each page. What is owed is never more than the entries: a gap between two
//! folios ends a record.
//!
//! A folio that the table has not in one row, or that may not go, is dealt with by itself, as if it
//! were alone; the lock is given back before.

use super::decide::Fate;
use super::{Unmap, UnmapFlags, Unmapped, file, put};
use crate::policy::Strategy;
use crate::{E, FlushBatch, Kept};
use core::num::NonZeroU32;
use core::ops::ControlFlow;
use mm_arch::respect::NOTHING;
use mm_arch::{Arch, Entry, Flush, Level, VirtAddr};
use mm_folio::{FileId, Folio, FolioFlags, FolioLockGuard, UnmappedPages};
use mm_pgtable::{LockedTable, PageFate, TableSpace};
use mm_rmap::{Peek, RmapPlatform, Strict, Visit};
use mm_vma::{Event, Mm, Observer, RssKind, VmaFlags};

/// Folios of a group at most.
const MOST: usize = 32;

/// Folios of one object in ascending order, with no more pages between them than they have.
pub(super) struct Group<'u, 'm, P: RmapPlatform> {
    folios: &'u [&'u FolioLockGuard<'m, P>],
    object: FileId,
    /// Their first page, and the number of pages up to the end of the last.
    first: u64,
    nr_pages: u64,
    /// The pages of each of them.
    pages: [Pages; MOST],
    /// Folios that may still be mapped and that nothing keeps, a bit for each. No mapping comes
    /// meanwhile: who maps a page of an object locks it.
    left: u32,
    kept: [Option<Kept>; MOST],
    /// Pages that are mapped no more.
    gone: UnmappedPages<'m, P>,
}

/// Pages of a folio of a group.
#[derive(Clone, Copy)]
struct Pages {
    /// Behind the first page of the group.
    from: u64,
    nr: NonZeroU32,
}

/// A table that is locked, and what is to be done before it is unlocked.
struct Held<'g, P: RmapPlatform> {
    table: LockedTable<'g, P>,
    owed: Flush<'g, <P as TableSpace>::Tlb>,
    dirty: bool,
    /// Pages that the space has no more, and of which kind.
    gone: u64,
    kind: RssKind,
}

impl<'u, 'm, P: RmapPlatform> Group<'u, 'm, P> {
    /// The folios at the beginning of `folios` that can be unmapped together; `None` if the
    /// first is of no object, or if each of them has to be looked at alone.
    pub fn of(folios: &'u [&'u FolioLockGuard<'m, P>], flags: UnmapFlags) -> Option<Self> {
        if flags.contains(UnmapFlags::HWPOISON) {
            return None;
        }
        let folio = folios.first()?.folio();
        let (object, first) = folio.file()?;
        let mut group = Group {
            folios,
            object,
            first,
            nr_pages: 0,
            pages: [Pages { from: 0, nr: NonZeroU32::MIN }; MOST],
            left: 0,
            kept: [None; MOST],
            gone: UnmappedPages::new(folio.memmap()),
        };
        let (mut pages, mut nr_folios) = (0, 0);
        for (k, locked) in folios.iter().enumerate().take(MOST) {
            let folio = locked.folio();
            let Some(nr) = NonZeroU32::new(folio.nr_pages()) else { break };
            let Some((_, index)) = folio.file().filter(|(id, _)| *id == object) else { break };
            let Some(from) = index.checked_sub(first).filter(|from| *from >= group.nr_pages) else {
                break;
            };
            let more = u64::from(nr.get());
            if from.saturating_add(more) > 2 * (pages + more) {
                break;
            }
            pages += more;
            group.nr_pages = from + more;
            group.pages[k] = Pages { from, nr };
            group.left |= u32::from(folio.is_mapped()) << k;
            nr_folios = k + 1;
        }
        group.folios = &folios[..nr_folios];
        Some(group)
    }

    /// Unmaps the folios; their number.
    pub fn unmap<B: Strategy>(
        mut self,
        flags: UnmapFlags,
        flushes: &mut FlushBatch<'_, P>,
        ended: &mut dyn FnMut(usize, Unmapped),
    ) -> usize {
        let folios = self.folios;
        if self.left != 0 {
            let trees = flushes.platform().file_trees();
            let folio = folios[0].folio();
            let mut unmap = Unmap { folio, slot: None, flags, flushes, kept: None };
            let (object, first, nr_pages) = (self.object, self.first, self.nr_pages);
            let visit = &mut |mm: &alloc::sync::Arc<Mm<P>>, visit: Visit<'_>| {
                self.in_vma::<B>(&mut unmap, mm, &visit)
            };
            let _ = trees.walk_range(object, first, nr_pages, visit);
        }
        for (k, locked) in folios.iter().enumerate() {
            let kept = self.kept[k];
            let asked = self.left >> k & 1 != 0 || kept.is_some();
            let end = if asked {
                Unmapped::of(locked.folio(), kept)
            } else {
                Unmapped::all(locked.folio())
            };
            ended(k, end);
        }
        folios.len()
    }

    fn in_vma<'g, B: Strategy>(
        &mut self,
        unmap: &mut Unmap<'_, 'm, '_, P>,
        mm: &'g Mm<P>,
        visit: &Visit<'g>,
    ) -> ControlFlow<()> {
        let sync = unmap.flags.contains(UnmapFlags::SYNC);
        let may_go = !visit.flags.contains(VmaFlags::LOCKED)
            || unmap.flags.contains(UnmapFlags::IGNORE_MLOCK);
        // Without a table lock at hand, nothing is locked that was not looked at before; but
        // where one folio was mapped, the next will be.
        let mut lock = sync && !mm_sync::mutant!("rmap.walk.not_strict");
        let mut held = None;
        let mut rest = self.left;
        while rest != 0 {
            let k = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let Pages { from, nr } = self.pages[k];
            let folio = self.folios[k].folio();
            let end = from + u64::from(nr.get());
            let inside = visit.index <= from && end <= visit.index + visit.nr_pages;
            let va = visit.va.add_units(from.wrapping_sub(visit.index), P::Arch::PAGE_SHIFT);
            let pages = (folio, nr);
            if may_go && lock && inside && self.whole::<B>(unmap, &mut held, mm, visit, pages, va) {
                self.left &= !(u32::from(!folio.is_mapped()) << k);
                continue;
            }
            let part = visit.part(from, u64::from(nr.get()), P::Arch::PAGE_SHIFT);
            if let Some(part) = part {
                leave(unmap, mm, held.take());
                unmap.folio = folio;
                lock |= self.alone::<B>(unmap, mm, &part, k);
            }
        }
        leave(unmap, mm, held);
        if self.left != 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Unmaps a folio as if it were alone; whether it was mapped.
    #[cold]
    fn alone<B: Strategy>(
        &mut self,
        unmap: &mut Unmap<'_, 'm, '_, P>,
        mm: &Mm<P>,
        part: &Visit<'_>,
        k: usize,
    ) -> bool {
        let folio = unmap.folio;
        let mapped = folio.mapcount();
        let _ = if unmap.flags.contains(UnmapFlags::SYNC) {
            unmap.in_vma::<B, Strict>(mm, part)
        } else {
            unmap.in_vma::<B, Peek>(mm, part)
        };
        self.kept[k] = unmap.kept.take();
        let still = folio.mapcount();
        if still == 0 || self.kept[k].is_some() {
            self.left &= !(1 << k);
        }
        still < mapped
    }

    /// Takes the entries of a folio of `nr` pages, from `va` on, if one table has all of them; those at
    /// the beginning if they are not all in a row. Whether all are gone. The table that covers
    /// the folio, if there is one, is held then.
    fn whole<'g, B: Strategy>(
        &mut self,
        unmap: &mut Unmap<'_, 'm, '_, P>,
        held: &mut Option<Held<'g, P>>,
        mm: &'g Mm<P>,
        visit: &Visit<'g>,
        (folio, nr): (Folio<'m, P>, NonZeroU32),
        va: VirtAddr,
    ) -> bool {
        const { assert!(!B::TOGETHER || B::FILE && B::UFFD_WP, "all of an object go in runs") };
        let most = nr.get() as usize;
        let (observer, base) = (mm.platform().observer(), P::Arch::shift(Level::Pmd));
        if held.as_ref().is_none_or(|h| h.table.va_of(0) != va.align_down(base)) {
            leave(unmap, mm, held.take());
            *held = mm.tables().lock_table(visit.stay, va).map(|table| {
                observer.event(Event::Locks, 1);
                let owed = mm.tables().tlb().obligation();
                Held { table, owed, dirty: false, gone: 0, kind: RssKind::of(folio) }
            });
        }
        let Some(h) = held else { return false };
        let index = h.table.index_of(va);
        let (entry, limit) = (h.table.get(index), h.table.limit(index).at_most(most));
        // The page comes from the entry (rule PVMW-07): the first one, or it is no whole.
        let first = entry.is_leaf(Level::Pte) && entry.pfn(Level::Pte) == folio.head();
        if limit.get() < most || !first || entry.is_unused() {
            return false;
        }
        debug_assert!(Fate::of(folio, entry, visit, unmap.flags) == Fate::File);
        // Not a flush of what is between.
        if h.owed.range().is_some_and(|owed| owed.last().checked_add(1) != Some(va)) {
            put_off(unmap, mm, h);
        }
        let mut dirty = entry.is_dirty();
        let other = |e: E<P>| dirty |= e.is_dirty();
        let n = h.table.take_while::<NOTHING>(index, entry, limit, &mut h.owed, other);
        observer.event(Event::UnmapClears, 1);
        // The entries were all that knew.
        if dirty {
            h.dirty = true;
            folio.set_flag(FolioFlags::DIRTY);
        }
        if let Some(marker) = file::marker::<P>(visit, entry) {
            (index..index + n).for_each(|i| h.table.set(i, marker));
        }
        debug_assert_eq!(h.kind, RssKind::of(folio), "one object");
        h.gone += n as u64;
        let Some(taken) = NonZeroU32::new(n as u32) else { return false };
        folio.remove_ptes_told(0, taken, mm.id(), &mut self.gone);
        put(mm, folio, 0, taken);
        taken == nr
    }
}

/// Puts off the flush of what was taken.
fn put_off<'g, P: RmapPlatform>(
    unmap: &mut Unmap<'_, '_, '_, P>,
    mm: &'g Mm<P>,
    h: &mut Held<'g, P>,
) {
    let owed = core::mem::replace(&mut h.owed, mm.tables().tlb().obligation());
    unmap.flush(mm, owed, PageFate::Kept, core::mem::take(&mut h.dirty));
}

/// Unlocks a table behind everything that was done to it.
fn leave<P: RmapPlatform>(unmap: &mut Unmap<'_, '_, '_, P>, mm: &Mm<P>, held: Option<Held<'_, P>>) {
    let Some(Held { table, owed, dirty, gone, kind }) = held else { return };
    if mm_sync::mutant!("reclaim.together.late_record") {
        drop(table);
        unmap.flush(mm, owed, PageFate::Kept, dirty);
        return mm.counters().sub(kind, gone);
    }
    unmap.flush(mm, owed, PageFate::Kept, dirty);
    if gone > 0 {
        mm.counters().sub(kind, gone);
    }
    drop(table);
}
