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

use super::decide::{self, Fate};
use super::restore::Taken;
use super::{Unmap, UnmapFlags, Unmapped, file};
use crate::policy::Strategy;
use crate::{FlushBatch, Kept};
use core::ops::ControlFlow;
use mm_arch::{Arch, Entry, Flush, Level};
use mm_folio::{FileId, FolioFlags, FolioLockGuard, UnmappedPages};
use mm_pgtable::{LockedTable, TableSpace};
use mm_rmap::{Peek, PteHit, RmapPlatform, Strict, Visit};
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
    kept: [Option<Kept>; MOST],
    /// Pages that are mapped no more.
    gone: UnmappedPages<'m, P>,
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
        let mut pages = u64::from(folio.nr_pages());
        let (mut nr_pages, mut nr) = (pages, 1);
        for next in folios.iter().take(MOST).skip(1) {
            let folio = next.folio();
            let more = u64::from(folio.nr_pages());
            let Some((_, index)) = folio.file().filter(|(id, _)| *id == object) else { break };
            let Some(from) = index.checked_sub(first).filter(|from| *from >= nr_pages) else {
                break;
            };
            if from.saturating_add(more) > 2 * (pages + more) {
                break;
            }
            pages += more;
            nr_pages = from + more;
            nr += 1;
        }
        let (folios, gone) = (&folios[..nr], UnmappedPages::new(folio.memmap()));
        Some(Group { folios, object, first, nr_pages, kept: [None; MOST], gone })
    }

    /// Unmaps the folios; their number.
    pub fn unmap<B: Strategy>(
        mut self,
        flags: UnmapFlags,
        flushes: &mut FlushBatch<'_, P>,
        ended: &mut dyn FnMut(usize, Unmapped),
    ) -> usize {
        let folios = self.folios;
        // Mapped by nobody else meanwhile: who maps a page of an object locks it.
        if folios.iter().any(|locked| locked.folio().is_mapped()) {
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
            ended(k, Unmapped::of(locked.folio(), self.kept[k]));
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
        let mut left = false;
        for (k, locked) in self.folios.iter().enumerate() {
            let folio = locked.folio();
            let mapped = folio.mapcount();
            if mapped == 0 || self.kept[k].is_some() {
                continue;
            }
            let (nr, index) = (u64::from(folio.nr_pages()), folio.file().map(|(_, index)| index));
            let part = index.and_then(|index| {
                visit.part(index.wrapping_sub(self.first), nr, P::Arch::PAGE_SHIFT)
            });
            if let Some(part) = part {
                unmap.folio = folio;
                let whole = may_go && lock && part.nr_pages == nr;
                if !whole || !self.whole::<B>(unmap, &mut held, mm, &part) {
                    leave(unmap, mm, held.take());
                    let _ = if sync {
                        unmap.in_vma::<B, Strict>(mm, &part)
                    } else {
                        unmap.in_vma::<B, Peek>(mm, &part)
                    };
                    self.kept[k] = unmap.kept.take();
                }
                lock |= folio.mapcount() < mapped;
            }
            left |= folio.is_mapped() && self.kept[k].is_none();
        }
        leave(unmap, mm, held);
        if left { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Takes the entries of the folio if one table has all of them in a row; whether it did.
    /// The table that covers the folio, if there is one, is held then.
    fn whole<'g, B: Strategy>(
        &mut self,
        unmap: &mut Unmap<'_, 'm, '_, P>,
        held: &mut Option<Held<'g, P>>,
        mm: &'g Mm<P>,
        visit: &Visit<'g>,
    ) -> bool {
        let (folio, nr) = (unmap.folio, visit.nr_pages as usize);
        let (observer, base) = (mm.platform().observer(), P::Arch::shift(Level::Pmd));
        if held.as_ref().is_none_or(|h| h.table.va_of(0) != visit.va.align_down(base)) {
            leave(unmap, mm, held.take());
            *held = mm.tables().lock_table(visit.stay, visit.va).map(|table| {
                observer.event(Event::Locks, 1);
                let owed = mm.tables().tlb().obligation();
                Held { table, owed, dirty: false, gone: 0, kind: RssKind::of(folio) }
            });
        }
        let Some(h) = held else { return false };
        let index = h.table.index_of(visit.va);
        let (entry, limit) = (h.table.get(index), h.table.limit(index).at_most(nr));
        // The page comes from the entry (rule PVMW-07): the first one, or it is no whole.
        let first = entry.is_leaf(Level::Pte) && entry.pfn(Level::Pte) == folio.head();
        if limit.get() < nr || !first || entry.is_unused() {
            return false;
        }
        debug_assert!(Fate::of(folio, entry, visit, unmap.flags) == Fate::File);
        let at = PteHit { table: &mut h.table, index, entry, page: 0, limit };
        let run = decide::run::<B, P>(folio, &at, visit, unmap.flags, observer);
        if run.nr() < nr {
            return false;
        }
        observer.event(Event::UnmapClears, 1);
        // Not a flush of what is between.
        if h.owed.range().is_some_and(|owed| owed.last().checked_add(1) != Some(visit.va)) {
            put_off(unmap, mm, h);
        }
        let taken = Taken::run(&mut h.table, run, &mut h.owed);
        // The entries were all that knew.
        if taken.entry().is_dirty() {
            h.dirty = true;
            folio.set_flag(FolioFlags::DIRTY);
        }
        let n = taken.n();
        file::leave(visit, taken);
        debug_assert_eq!(h.kind, RssKind::of(folio), "one object");
        h.gone += u64::from(n.get());
        folio.remove_ptes_told(0, n, mm.id(), &mut self.gone);
        unmap.put(mm, 0, n);
        true
    }
}

/// Puts off the flush of what was taken.
fn put_off<'g, P: RmapPlatform>(
    unmap: &mut Unmap<'_, '_, '_, P>,
    mm: &'g Mm<P>,
    h: &mut Held<'g, P>,
) {
    let owed = core::mem::replace(&mut h.owed, mm.tables().tlb().obligation());
    unmap.flush(mm, owed, core::mem::take(&mut h.dirty));
}

/// Unlocks a table behind everything that was done to it.
fn leave<P: RmapPlatform>(unmap: &mut Unmap<'_, '_, '_, P>, mm: &Mm<P>, held: Option<Held<'_, P>>) {
    let Some(Held { table, owed, dirty, gone, kind }) = held else { return };
    if mm_sync::mutant!("reclaim.together.late_record") {
        drop(table);
        unmap.flush(mm, owed, dirty);
        return mm.counters().sub(kind, gone);
    }
    unmap.flush(mm, owed, dirty);
    if gone > 0 {
        mm.counters().sub(kind, gone);
    }
    drop(table);
}
