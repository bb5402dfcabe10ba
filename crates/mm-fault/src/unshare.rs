//! What distinguishes a copy that is made for a reader.
//!
//! A pin that only reads still must see later stores of its process, so the
//! page has to be exclusive before it is pinned (rule GUPS-27). The process has
//! not stored anything yet: its entry stays as it was, but for the frame.

use crate::dispatch::{E, Fault};
use crate::flags::Access;
use mm_arch::{Entry, Level, Pfn};
use mm_rmap::RmapPlatform;

impl<P: RmapPlatform> Fault<'_, '_, P> {
    /// The entry for a copy at `pfn` of the page that `old` maps (rule FAULT-13).
    pub(crate) fn copied_entry(&self, pfn: Pfn, old: E<P>) -> E<P> {
        let new = E::<P>::leaf(pfn, self.prot(), Level::Pte).mkyoung();
        if self.access != Access::Unshare {
            // A forced store leaves a dirty entry that is not writable.
            return self.maybe_mkwrite(new.mkdirty());
        }
        let new = if old.is_soft_dirty() { new.mksoft_dirty() } else { new };
        if old.is_uffd_wp() { new.mkuffd_wp() } else { new }
    }
}
