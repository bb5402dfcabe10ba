//! `mlock` and `munlock`.

use crate::MapError;
use crate::entry::{counted_folio, within};
use crate::vmas::{check_range, set_flags};
use mm_arch::{Arch, Entry, Level, VirtRange, respect};
use mm_pgtable::{LockedEntry, LockedTable, SpanKind};
use mm_rmap::RmapPlatform;
use mm_vma::{MmWrite, NEVER_LOCKED, Vma, VmaFlags, mlock_mapped};

/// When the pages of a locked mapping come into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockWhen {
    /// At once: the caller populates the range behind this call (rule POP-02).
    Now,
    /// When they are touched.
    Touched,
}

/// Keeps the pages of `range` in memory, those that are there and those that will be.
///
/// Of a folio that the mapping shows only in part nothing is marked; its pages are
/// kept by the mapping (rule RMAP-06). Mappings of devices are passed by.
///
/// # Errors
///
/// If the range is not page-aligned or not in user space; at the first hole; if there is no
/// memory to split a mapping. What lies below is locked.
pub fn mlock<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    when: LockWhen,
) -> Result<(), MapError> {
    let mut wanted = VmaFlags::LOCKED;
    wanted.set(VmaFlags::LOCKONFAULT, when == LockWhen::Touched);
    change(vmas, range, wanted)
}
/// Ends what [`mlock`] did.
///
/// # Errors
///
/// As [`mlock`].
pub fn munlock<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
) -> Result<(), MapError> {
    change(vmas, range, VmaFlags::empty())
}

fn change<P: RmapPlatform>(
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    wanted: VmaFlags,
) -> Result<(), MapError> {
    check_range(vmas, range)?;
    let hole = vmas.first_hole(range);
    let below = match hole {
        Some(va) if va <= range.start() => return Err(MapError::Hole(va)),
        Some(va) => VirtRange::new(range.start(), va.bytes_from(range.start())).unwrap_or(range),
        None => range,
    };
    let of_lock = VmaFlags::LOCKED | VmaFlags::LOCKONFAULT;
    // The flags first: whoever maps a page from here on acts by them.
    let set = set_flags(vmas, below, |vma| match vma.flags() {
        flags if flags.intersects(NEVER_LOCKED) => flags - of_lock,
        flags => (flags - of_lock) | wanted,
    });
    // Also those of mappings that it came to before there was no memory.
    for vma in vmas.overlapping(below) {
        if let Some(part) = vma.range().intersect(below) {
            mark_present(vmas, vma, part);
        }
    }
    set?;
    hole.map_or(Ok(()), |va| Err(MapError::Hole(va)))
}

/// Brings the folios that `vma` maps in `range` in line with its flags.
fn mark_present<P: RmapPlatform>(vmas: &MmWrite<'_, P>, vma: &Vma, range: VirtRange) {
    let mm = vmas.mm();
    for span in mm.tables().spans(vmas.stay(), range) {
        if span.kind == SpanKind::Hole {
            continue;
        }
        match mm.tables().lock_entry(vmas.stay(), span.range.start()) {
            LockedEntry::Hole => {}
            LockedEntry::Huge(pmd) => {
                let e = pmd.entry();
                if e.is_leaf(Level::Pmd)
                    && let Some(folio) = counted_folio(mm, e, Level::Pmd)
                {
                    if vma.flags().contains(VmaFlags::LOCKED) {
                        mlock_mapped(vma.flags(), folio, folio.nr_pages());
                    } else {
                        folio.munlock();
                    }
                }
            }
            LockedEntry::Table(table) => mark_table(vmas, vma, &table, span.range),
        }
    }
}

fn mark_table<P: RmapPlatform>(
    vmas: &MmWrite<'_, P>,
    vma: &Vma,
    table: &LockedTable<'_, P>,
    range: VirtRange,
) {
    let mm = vmas.mm();
    let mut i = table.index_of(range.start());
    let end = i + range.nr(P::Arch::PAGE_SHIFT) as usize;
    while i < end {
        let e = table.get(i);
        let folio = if e.is_leaf(Level::Pte) { counted_folio(mm, e, Level::Pte) } else { None };
        let Some(folio) = folio else {
            i += 1;
            continue;
        };
        let first = folio.index_of(e.pfn(Level::Pte));
        let limit = within(table.limit(i), end - i, folio, first);
        let n = table.run::<{ respect::NOTHING }>(i, e, limit).nr();
        if vma.flags().contains(VmaFlags::LOCKED) {
            mlock_mapped(vma.flags(), folio, n as u32);
        } else {
            folio.munlock();
        }
        i += n;
    }
}
