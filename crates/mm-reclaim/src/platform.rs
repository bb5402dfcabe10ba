//! What reclaim asks of a kernel.

use crate::Lru;
use alloc::sync::Arc;
use mm_folio::FileId;
use mm_rmap::RmapPlatform;
use mm_vma::Backing;

/// A kernel whose memory can be reclaimed.
pub trait ReclaimPlatform: RmapPlatform {
    /// The lists of its folios: what its [`FolioSource`](mm_folio::FolioSource) hears of
    /// lists goes there.
    fn lru(&self) -> &Lru<Self::FolioLock>;
    /// The object of this name, if it is alive.
    fn object(&self, id: FileId) -> Option<Arc<dyn Backing>>;
    /// Folios that CPUs hold in batches, on their way to the lists, get there: they have
    /// references as long as they are in a batch. Those of a kernel without such batches are
    /// there.
    fn drain_batches(&self) {}
}
