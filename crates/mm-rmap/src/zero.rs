//! A page that holds nothing but zeros gives way to the zero page.

use crate::RmapPlatform;
use mm_arch::{Arch, Entry, Level, Pfn, SwapBits};
use mm_folio::{Folio, FolioFlags, FrameBytes};
use mm_pgtable::{LockedTable, TableSpace};
use mm_vma::{Mm, RssKind, VmaFlags, VmaRights};

type E<P> = <<P as TableSpace>::Arch as Arch>::Entry;

/// Puts the zero page in the place of the migration entry at `index`, which stands for
/// `pfn` of `folio`, if that holds zeros and the mapping may have it (rule FOLIO-56);
/// whether it did. The page counts as resident no more.
///
/// A locked mapping keeps its pages, and so does a folio that is locked in memory.
pub(crate) fn map_zero_page<P: RmapPlatform>(
    mm: &Mm<P>,
    rights: VmaRights,
    table: &mut LockedTable<'_, P>,
    index: usize,
    folio: Folio<'_, P>,
    pfn: Pfn,
    bits: SwapBits,
) -> bool {
    let platform = mm.platform();
    let stays = !folio.is_anon()
        || folio.is_large()
        || folio.flags().intersects(FolioFlags::MLOCKED | FolioFlags::HWPOISON)
        || rights.flags.intersects(VmaFlags::LOCKED | VmaFlags::SHARED);
    if stays || !platform.bytes().is_zero(pfn) {
        return false;
    }
    let prot = P::Arch::prot(rights.protection());
    let mut e = E::<P>::leaf(platform.zero_page(), prot, Level::Pte).mkspecial();
    if bits.soft_dirty {
        e = e.mksoft_dirty();
    }
    if bits.uffd_wp {
        e = e.mkuffd_wp();
    }
    table.set(index, e);
    mm.counters().sub(RssKind::Anon, 1);
    true
}
