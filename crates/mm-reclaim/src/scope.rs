//! Whose memory is reclaimed.

use core::ops::ControlFlow;
use mm_folio::{Folio, MmId};
use mm_rmap::{MappedWalk, Peek, RmapPlatform, Seek, Visit};
use mm_vma::Mm;

/// Whose memory is reclaimed: aging looks at nobody else's entries (rule REF-02).
#[derive(Clone, Copy)]
pub enum ReclaimOf<'g> {
    /// Everybody's.
    Everybody,
    /// That of a group of address spaces: what one of them maps. Others may map it, too.
    Group(&'g dyn Fn(MmId) -> bool),
}

impl ReclaimOf<'_> {
    /// Whether it is about this space.
    pub fn includes(&self, mm: MmId) -> bool {
        match self {
            ReclaimOf::Everybody => true,
            ReclaimOf::Group(has) => has(mm),
        }
    }
}

impl core::fmt::Debug for ReclaimOf<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            ReclaimOf::Everybody => "Everybody",
            ReclaimOf::Group(_) => "Group",
        })
    }
}

/// Whether the folio is of the memory that is reclaimed. A folio that somebody has locked,
/// or whose trees are changed just now, is not asked about: there are others.
pub(crate) fn owns<P: RmapPlatform>(of: ReclaimOf<'_>, platform: &P, folio: Folio<'_, P>) -> bool {
    let ReclaimOf::Group(has) = of else { return true };
    if !folio.is_mapped() {
        return false;
    }
    let Some(locked) = folio.try_lock() else { return false };
    let folio = locked.folio();
    let mut found = false;
    let visit = &mut |mm: &alloc::sync::Arc<Mm<P>>, visit: Visit<'_>| {
        found = has(mm.id())
            && MappedWalk::<P, Peek>::new(mm, &visit, folio, Seek::Mappings).next_hit().is_some();
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    if folio.is_anon() {
        platform.anon_trees().try_walk(folio, visit);
    } else {
        platform.file_trees().try_walk(folio, visit);
    }
    found
}
