//! Holes in objects, made through their mappings.

use crate::MapError;
use crate::vmas::each_part;
use mm_arch::{Arch, VirtRange};
use mm_rmap::RmapPlatform;
use mm_vma::{Mm, VmaFlags};

/// `MADV_REMOVE`: what the mappings in `range` show of their objects becomes a hole, for
/// everybody who maps or reads it. Private copies of other mappings stay (rule ZAP-08).
///
/// Takes the mmap lock for one mapping at a time, and holds it while no hole is made: that
/// unmaps pages in every address space.
///
/// # Errors
///
/// If the range is not page-aligned or not in user space; at the first mapping that is locked
/// or of no object, that is private or may never be written to, or whose object has no holes:
/// what is below it are holes by then. A hole in the range is an error too, but only
/// behind all mappings.
pub fn madvise_remove<P: RmapPlatform>(mm: &Mm<P>, range: VirtRange) -> Result<(), MapError> {
    each_part(mm, range, |vmas, part| {
        let at = part.start();
        let Some(vma) = vmas.find(at) else { return Ok(()) };
        let flags = vma.flags();
        let Some(backing) = vma.backing().filter(|_| !flags.contains(VmaFlags::LOCKED)) else {
            return Err(MapError::Invalid(at));
        };
        if !flags.contains(VmaFlags::SHARED | VmaFlags::MAYWRITE) {
            return Err(MapError::Access(at));
        }
        let (backing, first) = (backing.clone(), vma.linear_index(at));
        drop(vmas);
        if !backing.punch(first, part.nr(P::Arch::PAGE_SHIFT)) {
            return Err(MapError::NoHoles(at));
        }
        Ok(())
    })
}
