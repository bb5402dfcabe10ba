//! Reclaim on request.

use crate::events::Events;
use crate::{Host, Process};
use mm_arch::Arch;
use mm_reclaim::{ReclaimError, ReclaimOf, reclaim};

impl<A: Arch, O: Events> Host<A, O> {
    /// Reclaims memory that `processes` map, as a write of `request` to the file of their
    /// group does: `64M`, `1G swappiness=max`; how many pages it was.
    ///
    /// # Errors
    ///
    /// If the request makes no sense, or nothing more can be reclaimed.
    pub fn reclaim<'p>(
        &self,
        processes: impl IntoIterator<Item = &'p Process<A, O>> + Clone,
        request: &str,
    ) -> Result<u64, ReclaimError> {
        let is_of = |mm| processes.clone().into_iter().any(|p| p.mm().id() == mm);
        let of = ReclaimOf::Group(&is_of);
        reclaim(self.policy().unmap, self, of, request.parse()?)
    }
    /// As [`reclaim`](Self::reclaim), of everybody's memory, mapped or not.
    ///
    /// # Errors
    ///
    /// As there; also if somebody else does that just now.
    pub fn reclaim_everywhere(&self, request: &str) -> Result<u64, ReclaimError> {
        reclaim(self.policy().unmap, self, ReclaimOf::Everybody, request.parse()?)
    }
}
