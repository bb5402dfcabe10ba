//! Reading ahead what will be needed.

use crate::MapError;
use crate::vmas::each_part;
use mm_arch::{Arch, Entry, VirtRange};
use mm_rmap::RmapPlatform;
use mm_vma::{Mm, read_ahead};

/// `MADV_WILLNEED`: what the mappings in `range` have on devices is read into memory, mapped
/// by nobody yet. Of anonymous memory that is what its entries say is in swap, which goes
/// into the swap cache; of an object its pages, whatever private copies there are (rule
/// MADV-09).
///
/// Where a kernel asks for the pages and goes on, they are there when this returns. Takes the
/// mmap lock for one mapping at a time, and holds it while no object reads.
///
/// # Errors
///
/// If the range is not page-aligned or not in user space; a hole in it, but only behind all
/// mappings. A page that cannot be had is none: the fault that wants it will tell.
pub fn madvise_willneed<P: RmapPlatform>(mm: &Mm<P>, range: VirtRange) -> Result<(), MapError> {
    each_part(mm, range, |vmas, part| {
        let Some(vma) = vmas.find(part.start()) else { return Ok(()) };
        if let Some(backing) = vma.backing() {
            let (backing, first) = (backing.clone(), vma.linear_index(part.start()));
            drop(vmas);
            backing.read_ahead(first, part.nr(P::Arch::PAGE_SHIFT));
            return Ok(());
        }
        let mut rest = Some(part);
        while let Some(range) = rest {
            let found = mm.tables().find(vmas.stay(), range, |e| e.swap_slot());
            let Some((va, slot)) = found else { break };
            if read_ahead(mm.platform(), slot).is_err() {
                break;
            }
            let next = va.add_units(1, P::Arch::PAGE_SHIFT);
            rest = VirtRange::new(next, part.bytes_after(next)).ok();
        }
        Ok(())
    })
}
