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

use crate::entry::{E, FolioGather, counted_folio, owned, pmd_pages, within};
use crate::policy::{MapPolicy, Strategy, by_policy};
use mm_arch::{Arch, Entry, Level, Live, Liveness, Markers, NonPresent, VirtRange, respect};
use mm_pgtable::{LockedEntry, LockedPmd, LockedTable, SpanKind, TablesStay};
use mm_rmap::{RmapPlatform, split_locked_pmd};
use mm_vma::{Mm, RssKind, Vma};

/// What happens to guard markers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guards {
    /// They stay: the mapping does (rule GUARD-01).
    Keep,
    /// They go with the mapping.
    Drop,
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
    by_policy!(policy, zap::<Live, P>(mm, stay, vma, range, Guards::Keep, gather));
}

pub(crate) fn zap<'m, B: Strategy, L: Liveness, P: RmapPlatform>(
    mm: &'m Mm<P>,
    stay: TablesStay<'_>,
    vma: &Vma,
    range: VirtRange,
    guards: Guards,
    gather: &mut FolioGather<'m, P>,
) {
    let Some(range) = vma.range().intersect(range) else { return };
    for span in mm.tables().spans(stay, range) {
        if span.kind != SpanKind::Hole {
            zap_span::<B, L, P>(mm, stay, span.range, guards, gather);
        }
    }
}

/// Zaps what one PMD entry covers.
fn zap_span<'m, B: Strategy, L: Liveness, P: RmapPlatform>(
    mm: &'m Mm<P>,
    stay: TablesStay<'_>,
    range: VirtRange,
    guards: Guards,
    gather: &mut FolioGather<'m, P>,
) {
    loop {
        match mm.tables().lock_entry(stay, range.start()) {
            LockedEntry::Hole => return,
            LockedEntry::Table(table) => {
                return zap_table::<B, L, P>(mm, table, range, guards, gather);
            }
            LockedEntry::Huge(pmd) if pmd.range() == Some(range) => {
                return zap_pmd(mm, pmd, gather);
            }
            // Cut by the range (rule ZAP-09).
            LockedEntry::Huge(pmd) if pmd.entry().is_leaf(Level::Pmd) => split_locked_pmd(mm, pmd),
            // Non-present entries stand for whole leaves; VMAs do not cut them.
            LockedEntry::Huge(_) => return debug_assert!(false, "{range:?} cuts an entry"),
        }
    }
}

fn zap_table<'m, B: Strategy, L: Liveness, P: RmapPlatform>(
    mm: &'m Mm<P>,
    mut table: LockedTable<'_, P>,
    range: VirtRange,
    guards: Guards,
    gather: &mut FolioGather<'m, P>,
) {
    let mut i = table.index_of(range.start());
    let end = i + range.nr(P::Arch::PAGE_SHIFT) as usize;
    let mut anon = 0;
    while i < end {
        let limit = table.limit(i).at_most(end - i);
        let e = table.get(i);
        i += if e.is_none() {
            table.none_run(i, limit)
        } else if e.is_present(Level::Pte) {
            zap_present::<B, L, P>(mm, &mut table, i, end - i, e, &mut anon, gather)
        } else {
            zap_nonpresent(mm, &mut table, i, e, guards, &mut anon, gather);
            1
        };
    }
    // Before the lock is dropped: whoever counts entries under it sees the
    // counters agree (INV-6).
    if anon > 0 {
        mm.counters().sub(RssKind::Anon, anon);
    }
}

/// Zaps the run that starts at `i`; its length.
fn zap_present<'m, B: Strategy, L: Liveness, P: RmapPlatform>(
    mm: &'m Mm<P>,
    table: &mut LockedTable<'_, P>,
    i: usize,
    left: usize,
    e: E<P>,
    anon: &mut u64,
    gather: &mut FolioGather<'m, P>,
) -> usize {
    let Some(folio) = counted_folio(mm, e, Level::Pte) else {
        table.take_each::<L>(i, 1, gather.owed(), |_, _| ());
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
    table.take_each::<L>(i, run.nr(), gather.owed(), |_, _| ());
    if mm_sync::mutant!("map.zap.put_first") {
        drop(owned(mm, folio, first, n));
        folio.remove_ptes(first, n, mm.id());
        *anon += u64::from(n.get());
        return run.nr();
    }
    folio.remove_ptes(first, n, mm.id());
    *anon += u64::from(n.get());
    // Dropping the references here instead would give the pages away while
    // other CPUs still translate to them.
    gather.park(owned(mm, folio, first, n));
    run.nr()
}

/// Zaps a non-present entry (rule ZAP-07).
fn zap_nonpresent<'m, P: RmapPlatform>(
    mm: &'m Mm<P>,
    table: &mut LockedTable<'_, P>,
    i: usize,
    e: E<P>,
    guards: Guards,
    anon: &mut u64,
    gather: &mut FolioGather<'m, P>,
) {
    match e.nonpresent(Level::Pte) {
        Some(NonPresent::Marker(m)) if m.contains(Markers::GUARD) && guards == Guards::Keep => {
            return;
        }
        Some(NonPresent::Swap(_)) => mm.counters().sub(RssKind::Swap, 1),
        // The migration's own: it finds the entry gone and drops its mapping.
        Some(NonPresent::Migration { .. }) => *anon += 1,
        Some(NonPresent::Device { pfn, .. }) => {
            let folio = mm.platform().memmap().folio(pfn);
            let first = folio.index_of(pfn);
            folio.remove_ptes(first, core::num::NonZeroU32::MIN, mm.id());
            *anon += 1;
            gather.park(owned(mm, folio, first, core::num::NonZeroU32::MIN));
        }
        Some(NonPresent::Marker(_) | NonPresent::Hwpoison(_)) | None => {}
    }
    table.set(i, E::<P>::NONE);
}

/// Zaps a whole PMD leaf (rule ZAP-09). The table that was deposited with it
/// goes too.
fn zap_pmd<'m, P: RmapPlatform>(
    mm: &'m Mm<P>,
    mut pmd: LockedPmd<'_, P>,
    gather: &mut FolioGather<'m, P>,
) {
    let old = pmd.swap(E::<P>::NONE, gather.owed());
    if let Some(frame) = pmd.withdraw() {
        // SAFETY: deposited tables are not linked, and this one was just
        // withdrawn: nobody else knows it.
        unsafe { mm.tables().free_unlinked(frame) };
    }
    if old.is_leaf(Level::Pmd) {
        if let Some(folio) = counted_folio(mm, old, Level::Pmd) {
            folio.remove_pmd(mm.id());
            mm.counters().sub(RssKind::Anon, pmd_pages::<P>());
            gather.park(owned(mm, folio, 0, core::num::NonZeroU32::MIN));
        }
    } else if matches!(old.nonpresent(Level::Pmd), Some(NonPresent::Migration { .. })) {
        mm.counters().sub(RssKind::Anon, pmd_pages::<P>());
    }
}
