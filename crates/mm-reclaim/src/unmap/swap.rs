//! Anonymous memory that goes to swap.

use super::Kept;
use super::restore::Taken;
use mm_folio::{Folio, FolioFlags};
use mm_vma::Platform;

/// Makes swap entries of the pages from `page` on, whose entries were just taken.
///
/// # Errors
///
/// If a page cannot go: the entries are back then. A folio without a place on a device
/// should not have come here (rule UNMAP-19).
pub(super) fn swap_out<P: Platform>(
    folio: Folio<'_, P>,
    _page: u32,
    taken: Taken<'_, '_, P>,
) -> Result<(), Kept> {
    debug_assert!(folio.has(FolioFlags::SWAPBACKED));
    // Nothing gives a folio a place on a device.
    taken.restore();
    Err(Kept::NoSwap)
}
