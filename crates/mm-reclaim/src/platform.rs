//! What reclaim asks of a kernel.

use crate::Lru;
use alloc::sync::Arc;
use mm_folio::FileId;
use mm_rmap::RmapPlatform;
use mm_vma::Backing;

/// A kernel whose memory can be reclaimed.
pub trait ReclaimPlatform: RmapPlatform {
    /// The lists of its folios.
    fn lru(&self) -> &Lru<Self::FolioLock>;
    /// The object of this name, if it is alive.
    fn object(&self, id: FileId) -> Option<Arc<dyn Backing>>;
}
