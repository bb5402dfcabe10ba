//! The verdict on a large folio.

use mm_arch::Pfn;
use mm_folio::{Folio, FolioFlags, Get};
use mm_pgtable::LockedTable;
use mm_vma::{Mm, Platform, SwapSpace};

/// Proof that every reference to a large anonymous folio is a mapping of one
/// address space (rule REUSE-08): no other space, no pin, no cache, no move in
/// progress.
///
/// # Invariants
///
/// * Made only by the comparison of all references with all mappings under the
///   counts lock. A page that was exclusive already makes none: its neighbours
///   may be shared (rule WREUSE-01).
/// * It borrows the lock of a table that maps the folio. While that is held the
///   mapping behind the proof cannot go away, and with the mmap lock on top no
///   fork can share the folio again.
///
/// It does not say that all pages are mapped, nor that they are all mapped in
/// this table.
#[must_use]
pub(crate) struct Exclusive<'t, 'g, 'm, P: Platform> {
    folio: Folio<'m, P>,
    table: &'t mut LockedTable<'g, P>,
}

impl<'t, 'g, 'm, P: Platform> Exclusive<'t, 'g, 'm, P> {
    /// Judges `folio`, which an entry of `table` maps into the space `mm` (rules
    /// REUSE-03..07). Needs no folio lock: each of those that it would keep out
    /// has a reference.
    pub fn judge(
        table: &'t mut LockedTable<'g, P>,
        folio: Folio<'m, P>,
        mm: &Mm<P>,
    ) -> Option<Self> {
        debug_assert!(folio.is_anon() && folio.is_large());
        // The last page: copying it frees the whole rest of the folio.
        if folio.mapcount() <= 1 {
            return None;
        }
        // Cheap rejects: the counts lock is a contended line.
        let ignore_shared = mm_sync::mutant!("fault.reuse.ignore_shared");
        if folio.shared_flag() && !ignore_shared {
            return None;
        }
        // A swap cache holds references, so the comparison refuses it: if no entry counts
        // on the slots, it has no need of the folio (rule REUSE-05).
        if folio.has(FolioFlags::SWAPCACHE) {
            mm.platform().swap().slots().free(&folio.try_lock()?);
        }
        if !counts_match(folio) {
            return None;
        }
        // The folio needs no reference of ours: the entry has one, and is locked.
        // Another would make two faults on one folio refuse each other.
        let own = mm_sync::mutant!("fault.reuse.own_reference").then(|| folio.grab::<Get>(1).ok());
        let own = own.flatten();
        let extra = i64::from(own.is_some());
        // Again, where no mapping can come or go: a mapping and its reference go
        // one after the other, and a reference taken in between makes equal what
        // is not (race F-RACE-08).
        let alone = mm_sync::mutant!("fault.reuse.no_lock")
            || folio.counts_locked(|c| {
                (!c.shared || ignore_shared)
                    && (i64::from(c.mapcount) + extra == i64::from(c.refs)
                        || mm_sync::mutant!("fault.reuse.map_only"))
            });
        if !alone {
            return None;
        }
        debug_assert!(!folio.has(FolioFlags::KSM) && folio.entire_mapcount() == 0);
        debug_assert!(folio.mapcount() <= folio.nr_pages());
        debug_assert!(folio.mm_slots().iter().flatten().any(|(id, _)| *id == mm.id()));
        Some(Exclusive { folio, table })
    }

    /// What was judged, and the table that maps it, still locked.
    pub(super) fn into_parts(self) -> (Folio<'m, P>, &'t mut LockedTable<'g, P>) {
        (self.folio, self.table)
    }
    /// Marks one page of the folio, mapped by the table, exclusive (rule
    /// REUSE-10: the folio stays in its tree, which needs its lock to change).
    pub fn mark_page(self, pfn: Pfn) {
        debug_assert!(self.folio.contains(pfn));
        self.folio.memmap().set_exclusive(pfn, 1);
    }
}

fn counts_match<P: Platform>(folio: Folio<'_, P>) -> bool {
    let mapcount = folio.mapcount();
    i64::from(folio.refcount()) == i64::from(mapcount) || mm_sync::mutant!("fault.reuse.map_only")
}
