//! Reading the page tables of a process without changing anything.

use crate::Host;
use crate::events::Events;
use mm_arch::{Arch, Entry, Level, VirtAddr, VirtRange, respect};
use mm_pgtable::{LockedEntry, SpanKind};
use mm_vma::MmRead;

/// The entry type of a machine.
pub(crate) type E<A> = <A as Arch>::Entry;

/// Calls `each` for every entry under `range` that is not empty: first address,
/// level, value. Tables are locked one at a time; `each` takes no lock of the
/// machine's kernel.
pub(crate) fn entries<A: Arch, O: Events>(
    vmas: &MmRead<'_, Host<A, O>>,
    range: VirtRange,
    mut each: impl FnMut(VirtAddr, Level, E<A>),
) {
    let (tables, stay) = (vmas.mm().tables(), vmas.stay());
    for span in tables.spans(stay, range) {
        if span.kind == SpanKind::Hole {
            continue;
        }
        match tables.lock_entry(stay, span.range.start()) {
            LockedEntry::Hole => {}
            LockedEntry::Huge(pmd) => each(pmd.at().va, Level::Pmd, pmd.entry()),
            LockedEntry::Table(table) => {
                let first = table.index_of(span.range.start());
                let nr = span.range.nr(A::PAGE_SHIFT) as usize;
                for i in first..(first + nr).min(A::nr_entries(Level::Pte)) {
                    let e = table.get(i);
                    if !e.is_none() {
                        each(table.va_of(i), Level::Pte, e);
                    }
                }
            }
        }
    }
}

/// The entry that maps `va`, and its level; `None` if there is none.
pub(crate) fn entry<A: Arch, O: Events>(
    vmas: &MmRead<'_, Host<A, O>>,
    va: VirtAddr,
) -> Option<(Level, E<A>)> {
    match vmas.mm().tables().lock_entry(vmas.stay(), va) {
        LockedEntry::Hole => None,
        LockedEntry::Huge(pmd) => Some((Level::Pmd, pmd.entry())),
        LockedEntry::Table(table) => {
            let e = table.get(table.index_of(va));
            (!e.is_none()).then_some((Level::Pte, e))
        }
    }
}

/// The entry for `va` as it is stored, and its level, empty or not; `None` if there is
/// no table for it.
pub(crate) fn stored_entry<A: Arch, O: Events>(
    vmas: &MmRead<'_, Host<A, O>>,
    va: VirtAddr,
) -> Option<(Level, E<A>)> {
    match vmas.mm().tables().lock_entry(vmas.stay(), va) {
        LockedEntry::Hole => None,
        LockedEntry::Huge(pmd) => Some((Level::Pmd, pmd.entry())),
        LockedEntry::Table(table) => Some((Level::Pte, table.stored(table.index_of(va)))),
    }
}

/// Calls `each` for the first address of every folded block under `range`: of every
/// whole block that a scan takes by one look.
pub(crate) fn folded_blocks<A: Arch, O: Events>(
    vmas: &MmRead<'_, Host<A, O>>,
    range: VirtRange,
    mut each: impl FnMut(VirtAddr),
) {
    let (tables, stay) = (vmas.mm().tables(), vmas.stay());
    for span in tables.spans(stay, range) {
        let LockedEntry::Table(table) = tables.lock_entry(stay, span.range.start()) else {
            continue;
        };
        for i in (0..A::nr_entries(Level::Pte)).step_by(A::CONT) {
            let head = table.get(i);
            if head.is_present(Level::Pte) {
                let limit = table.limit(i).at_most(A::CONT);
                let run = table.run::<{ respect::WRITE }>(i, head, limit);
                if run.by_hint() == A::CONT - 1 {
                    each(table.va_of(i));
                }
            }
        }
    }
}

/// All of user space.
pub(crate) fn user_space<A: Arch>() -> Option<VirtRange> {
    VirtRange::new(VirtAddr::new(0), A::USER_END).ok()
}

/// The frame of the page at `va` behind a present leaf that covers it.
pub(crate) fn page_of<A: Arch>(va: VirtAddr, level: Level, e: E<A>) -> mm_arch::Pfn {
    let in_leaf = va.get() & ((1 << A::shift(level)) - 1);
    e.pfn(level).add(in_leaf >> A::PAGE_SHIFT)
}

/// The platform behind a guard.
pub(crate) fn host<'m, A: Arch, O: Events>(vmas: &MmRead<'m, Host<A, O>>) -> &'m Host<A, O> {
    vmas.mm().tables().space()
}
