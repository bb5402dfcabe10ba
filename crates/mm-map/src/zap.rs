//! Removing mappings: `munmap`, `MADV_DONTNEED`, exit.
//!
//! # The protocol
//!
//! Under the table lock: take the entries, remove their mappings from the folio,
//! lower the counters, and *park* the references (ZAP-03). They are dropped
//! behind the flush that covers the entries, never before (INV-9). One length
//! `n` goes through all of it, so the counts cannot disagree.
//!
//! A run ignores every bit that may differ between entries of one folio: what is
//! removed need not be told apart (ZAP-02, BATCH-11).
//!
//! A dirty page of a file is a special case: whoever cleans it must find the
//! mapping as long as a CPU could store through it, so there the flush comes before
//! the mapping is removed (ZAP-04).

use crate::delayed::Delayed;
use crate::entry::{
    E, FolioGather, Rss, counted_folio, folio_of_pmd, owned, pmd_pages, splits, within,
};
use crate::policy::{MapPolicy, Strategy, by_policy};
use crate::protect::mark;
use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, Live, Liveness, Markers, NonPresent, VirtRange, respect};
use mm_folio::FolioFlags;
use mm_pgtable::{BatchLimit, LockedEntry, LockedPmd, LockedTable, SpanKind, TablesStay};
use mm_rmap::{RmapPlatform, split_locked_pmd};
use mm_vma::{Mm, RssKind, SlotRun, Vma, VmaFlags, munlock_unmapped, put_swap};

/// What happens to guard markers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guards {
    /// They stay: the mapping does (rule GUARD-01).
    Keep,
    /// They go with the mapping.
    Drop,
}

/// Which pages are unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// All.
    All,
    /// Those of the object that is mapped; private copies stay (rule ZAP-08).
    OfObject,
}

/// How entries are zapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub guards: Guards,
    pub pages: Pages,
    /// Flags of the mapping.
    pub vma: VmaFlags,
    /// Pages stay write-protected by userfaultfd: their object has them still, and the
    /// mapping is registered (rule UFFD-05).
    pub keeps_wp: bool,
}

impl How {
    /// All of what `vma` maps; the mapping stays.
    pub fn discard(vma: &Vma) -> Self {
        let keeps_wp = vma.backing().is_some() && vma.flags().contains(VmaFlags::UFFD_WP);
        How { guards: Guards::Keep, pages: Pages::All, vma: vma.flags(), keeps_wp }
    }
    /// The same; the mapping goes.
    pub fn remove(vma: &Vma) -> Self {
        How { guards: Guards::Drop, keeps_wp: false, ..How::discard(vma) }
    }
}

/// Removes what `vma` maps in `range`: entries, mappings, counters. The
/// references are parked in `gather`, whose flush covers what was removed (rules
/// ZAP-01..09). A PMD leaf that `range` cuts is split first.
///
/// `stay` is of `mm`. Nothing can fail. Tables stay.
pub fn zap_range<'m, P: RmapPlatform>(
    policy: &MapPolicy,
    mm: &'m Mm<P>,
    stay: TablesStay<'_>,
    vma: &Vma,
    range: VirtRange,
    gather: &mut FolioGather<'m, P>,
) {
    by_policy!(policy, zap::<Live, P>(mm, stay, vma.range(), range, How::discard(vma), gather));
}

pub(crate) fn zap<'m, B: Strategy, L: Liveness, P: RmapPlatform>(
    mm: &'m Mm<P>,
    stay: TablesStay<'_>,
    vma: VirtRange,
    range: VirtRange,
    how: How,
    gather: &mut FolioGather<'m, P>,
) {
    let Some(range) = vma.intersect(range) else { return };
    for span in mm.tables().spans(stay, range) {
        if span.kind != SpanKind::Hole {
            zap_span::<B, L, P>(mm, stay, span.range, how, gather);
        }
    }
}

/// Zaps what one PMD entry covers.
fn zap_span<'m, B: Strategy, L: Liveness, P: RmapPlatform>(
    mm: &'m Mm<P>,
    stay: TablesStay<'_>,
    range: VirtRange,
    how: How,
    gather: &mut FolioGather<'m, P>,
) {
    loop {
        match mm.tables().lock_entry(stay, range.start()) {
            LockedEntry::Hole => return,
            LockedEntry::Table(table) => {
                return zap_table::<B, L, P>(mm, table, range, how, gather);
            }
            LockedEntry::Huge(pmd) if pmd.range() == Some(range) => {
                return zap_pmd(mm, pmd, how, gather);
            }
            // Cut by the range (rule ZAP-09).
            LockedEntry::Huge(pmd) if splits::<P>(pmd.entry()) => split_locked_pmd(mm, pmd),
            // Nothing else stands for a whole leaf.
            LockedEntry::Huge(_) => return debug_assert!(false, "{range:?} cuts an entry"),
        }
    }
}

fn zap_table<'m, B: Strategy, L: Liveness, P: RmapPlatform>(
    mm: &'m Mm<P>,
    mut table: LockedTable<'_, P>,
    range: VirtRange,
    how: How,
    gather: &mut FolioGather<'m, P>,
) {
    let mut i = table.index_of(range.start());
    let end = i + range.nr(P::Arch::PAGE_SHIFT) as usize;
    table.settle_deferred();
    let mut rss = Rss::default();
    let mut delayed = Delayed::new(mm);
    while i < end {
        let limit = table.limit(i).at_most(end - i);
        let e = table.get(i);
        i += if e.is_none() {
            table.none_run(i, limit)
        } else if e.is_present(Level::Pte) {
            let mut to = Zapped { rss: &mut rss, delayed: &mut delayed, gather };
            zap_present::<B, L, P>(mm, &mut table, i, end - i, e, how, &mut to)
        } else {
            zap_nonpresent::<B, P>(mm, &mut table, i, limit, e, how, &mut rss, gather)
        };
    }
    // Before the lock is dropped: whoever counts entries under it sees the
    // counters agree (INV-6), and whoever cleans pages under it finds the
    // mappings or finds them flushed.
    delayed.settle(gather);
    rss.sub_from(mm);
}

/// Where what was zapped goes.
struct Zapped<'z, 'm, P: RmapPlatform> {
    rss: &'z mut Rss,
    delayed: &'z mut Delayed<'m, P>,
    gather: &'z mut FolioGather<'m, P>,
}

/// Zaps the run that starts at `i`; its length.
fn zap_present<'m, B: Strategy, L: Liveness, P: RmapPlatform>(
    mm: &'m Mm<P>,
    table: &mut LockedTable<'_, P>,
    i: usize,
    left: usize,
    e: E<P>,
    how: How,
    to: &mut Zapped<'_, 'm, P>,
) -> usize {
    let folio = counted_folio(mm, e, Level::Pte);
    if how.pages == Pages::OfObject && folio.is_none_or(|f| f.is_anon()) {
        return 1;
    }
    let Some(folio) = folio else {
        table.take_each::<L>(i, 1, to.gather.owed(), |_, _| ());
        return 1;
    };
    let first = folio.index_of(e.pfn(Level::Pte));
    let run = if B::ON && folio.is_large() {
        let limit = within(table.limit(i), left, folio, first);
        table.run::<{ respect::NOTHING }>(i, e, limit)
    } else {
        table.single(i)
    };
    let n = run.count();
    let (mut dirty, mut young) = (false, false);
    table.take_each::<L>(i, run.nr(), to.gather.owed(), |_, old| {
        dirty |= old.is_dirty();
        young |= old.is_young();
    });
    // A run has the mark or has it not.
    if how.keeps_wp && e.is_uffd_wp() {
        mark::<P>(table, i, run.nr(), Markers::UFFD_WP);
    }
    to.rss.add(RssKind::of(folio), n.get().into());
    munlock_unmapped(how.vma, folio);
    if !folio.is_anon() {
        // The entries were all that knew (rules ZAP-02, FOLIO-45).
        if young {
            folio.mark_accessed();
        }
        if dirty {
            folio.set_flag(FolioFlags::DIRTY);
        }
        if dirty && L::LIVE && !mm_sync::mutant!("map.zap.not_delayed") {
            to.delayed.push(owned(mm, folio, first, n), first, to.gather);
            return run.nr();
        }
    }
    if mm_sync::mutant!("map.zap.put_first") {
        drop(owned(mm, folio, first, n));
        folio.remove_ptes(first, n, mm.id());
        return run.nr();
    }
    folio.remove_ptes(first, n, mm.id());
    // Dropping the references here instead would give the pages away while
    // other CPUs still translate to them.
    to.gather.park(owned(mm, folio, first, n));
    run.nr()
}

/// Zaps the non-present entry at `i`, or the run of swap entries that starts there; how
/// many entries (rule ZAP-07).
#[expect(clippy::too_many_arguments, reason = "a table, a position in it, and what to do there")]
fn zap_nonpresent<'m, B: Strategy, P: RmapPlatform>(
    mm: &'m Mm<P>,
    table: &mut LockedTable<'_, P>,
    i: usize,
    limit: BatchLimit,
    e: E<P>,
    how: How,
    rss: &mut Rss,
    gather: &mut FolioGather<'m, P>,
) -> usize {
    let map = mm.platform().memmap();
    match e.nonpresent(Level::Pte) {
        Some(NonPresent::Marker(m)) if m.contains(Markers::GUARD) && how.guards == Guards::Keep => {
            return 1;
        }
        Some(NonPresent::Marker(m)) if m.contains(Markers::UFFD_WP) && how.keeps_wp => return 1,
        // It may stand for a private page that is lost (rule ZAP-07).
        Some(NonPresent::Marker(m))
            if m.contains(Markers::POISONED) && how.pages == Pages::OfObject =>
        {
            return 1;
        }
        // Private pages, wherever they are now.
        Some(NonPresent::Swap(_) | NonPresent::Device { .. } | NonPresent::Hwpoison(_))
            if how.pages == Pages::OfObject =>
        {
            return 1;
        }
        Some(NonPresent::Swap(slot)) => {
            let nr = if B::ON { table.swap_run(i, e, limit).nr() } else { 1 };
            table.drop_nonpresent(i, nr);
            if how.keeps_wp && e.swap_bits().uffd_wp {
                mark::<P>(table, i, nr, Markers::UFFD_WP);
            }
            rss.add(RssKind::Swap, nr as u64);
            put_swap(mm.platform(), SlotRun::new(slot, nr as u32));
            return nr;
        }
        // The migration's own: it finds the entry gone and drops its mapping.
        Some(NonPresent::Migration { pfn, .. }) => {
            let folio = map.folio(pfn);
            if how.pages == Pages::OfObject && folio.is_anon() {
                return 1;
            }
            rss.add(RssKind::of(folio), 1);
        }
        Some(NonPresent::Device { pfn, .. }) => {
            let folio = map.folio(pfn);
            let first = folio.index_of(pfn);
            folio.remove_ptes(first, NonZeroU32::MIN, mm.id());
            rss.add(RssKind::of(folio), 1);
            gather.park(owned(mm, folio, first, NonZeroU32::MIN));
        }
        Some(NonPresent::Marker(_) | NonPresent::Hwpoison(_)) | None => {}
    }
    table.set(i, E::<P>::NONE);
    1
}

/// Zaps a whole PMD leaf (rule ZAP-09). The table that was deposited with it
/// goes too.
fn zap_pmd<'m, P: RmapPlatform>(
    mm: &'m Mm<P>,
    mut pmd: LockedPmd<'_, P>,
    how: How,
    gather: &mut FolioGather<'m, P>,
) {
    let seen = pmd.entry();
    let of_object = folio_of_pmd(mm, seen).is_some_and(|f| !f.is_anon());
    if how.pages == Pages::OfObject && !of_object {
        return;
    }
    if of_object {
        // What a leaf of an object mapped is munlocked as it goes. One leaf, and maybe dirty: taken away behind a flush of its own.
        return split_locked_pmd(mm, pmd);
    }
    let old = pmd.swap(E::<P>::NONE, gather.owed());
    if let Some(frame) = pmd.withdraw() {
        // SAFETY: deposited tables are not linked, and this one was just
        // withdrawn: nobody else knows it.
        unsafe { mm.tables().free_unlinked(frame) };
    }
    if old.is_leaf(Level::Pmd) {
        if let Some(folio) = counted_folio(mm, old, Level::Pmd) {
            folio.remove_pmd(mm.id());
            munlock_unmapped(how.vma, folio);
            mm.counters().sub(RssKind::Anon, pmd_pages::<P>());
            gather.park(owned(mm, folio, 0, NonZeroU32::MIN));
        }
    } else if matches!(old.nonpresent(Level::Pmd), Some(NonPresent::Migration { .. })) {
        mm.counters().sub(RssKind::Anon, pmd_pages::<P>());
    }
}
