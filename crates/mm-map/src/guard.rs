//! Guards: pages whose every access is a signal (rule GUARD-01).
//!
//! A guard is a marker in a page table. It belongs to the mapping: it outlives what
//! discards pages, is inherited, and goes with `munmap`.

use crate::MapError;
use crate::policy::MapPolicy;
use crate::protect::mark;
use crate::zap::zap_range;
use mm_arch::{Arch, Entry, Level, Markers, NonPresent, VirtRange};
use mm_pgtable::{Ensured, Gather, LockedEntry, SpanKind};
use mm_rmap::RmapPlatform;
use mm_vma::{MmWrite, Vma};

/// Drops what is mapped in `range` and puts guards there. Stops at the first page that
/// there is no memory for; what is below has guards.
pub(crate) fn install<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &MmWrite<'_, P>,
    range: VirtRange,
) -> Result<(), MapError> {
    let mm = vmas.mm();
    for vma in vmas.overlapping(range) {
        let Some(part) = vma.range().intersect(range) else { continue };
        // A child copies the tables of faulted mappings only (rule FORK-03).
        let trees = mm.platform().anon_trees();
        trees.prepare(mm, vmas, vma).map_err(|_| MapError::NoMemory(part.start()))?;
        let mut gather = Gather::new(mm.tables());
        zap_range(policy, mm, vmas.stay(), vma, part, &mut gather);
        gather.finish();
        fill(vmas, vma, part)?;
    }
    Ok(())
}

/// Puts guards into the empty entries of `part`.
fn fill<P: RmapPlatform>(
    vmas: &MmWrite<'_, P>,
    vma: &Vma,
    part: VirtRange,
) -> Result<(), MapError> {
    debug_assert!(vma.range().intersect(part) == Some(part), "{part:?} is not of the mapping");
    let (mm, mut next) = (vmas.mm(), Some(part.start()));
    while let Some(va) = next {
        let no_memory = |_| MapError::NoMemory(va);
        // The write side of the mmap lock is held: no leaf came up meanwhile.
        let Ensured::Table(mut table) =
            mm.tables().ensure_table(vmas.stay(), va).map_err(no_memory)?
        else {
            return Err(MapError::Invalid(va));
        };
        let index = table.index_of(va);
        let left = part.bytes_after(va) >> P::Arch::PAGE_SHIFT;
        let n = P::Arch::entries_left(va, Level::Pte).min(left as usize);
        mark::<P>(&mut table, index, n, Markers::GUARD);
        next = va.checked_add((n as u64) << P::Arch::PAGE_SHIFT).filter(|va| part.contains(*va));
    }
    Ok(())
}

/// Takes the guards of `range` away: the next access finds nothing, as before the
/// first one.
pub(crate) fn remove<P: RmapPlatform>(vmas: &MmWrite<'_, P>, range: VirtRange) {
    let (tables, stay) = (vmas.mm().tables(), vmas.stay());
    for vma in vmas.overlapping(range) {
        let Some(part) = vma.range().intersect(range) else { continue };
        for span in tables.spans(stay, part) {
            if span.kind == SpanKind::Hole {
                continue;
            }
            let LockedEntry::Table(mut table) = tables.lock_entry(stay, span.range.start()) else {
                continue;
            };
            let first = table.index_of(span.range.start());
            for i in first..first + span.range.nr(P::Arch::PAGE_SHIFT) as usize {
                let e = table.get(i);
                if e.nonpresent(Level::Pte) == Some(NonPresent::Marker(Markers::GUARD)) {
                    table.set(i, crate::entry::E::<P>::NONE);
                }
            }
        }
    }
}
