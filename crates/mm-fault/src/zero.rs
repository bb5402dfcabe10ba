//! Reads of memory that was never written.

use crate::FaultOutcome;
use crate::dispatch::{E, Fault};
use mm_arch::{Entry, Level};
use mm_rmap::RmapPlatform;

impl<P: RmapPlatform> Fault<'_, '_, P> {
    /// Maps the zero page, read-only and special: it has no counts, so neither
    /// the resident set nor the reverse map hears of it (rule ANON-02).
    pub(crate) fn map_zero_page(&self, seen: E<P>) -> FaultOutcome {
        let zero = E::<P>::leaf(self.mm().platform().zero_page(), self.prot(), Level::Pte);
        if let Some(mut table) = self.lock_table() {
            let index = table.index_of(self.va);
            // It looked empty without the lock, as an entry does that is being
            // changed under the lock (rule FAULT-06).
            if table.get(index) == seen || mm_sync::mutant!("fault.zero.no_recheck") {
                if let Some(asked) = self.asks_for_missing() {
                    return asked;
                }
                table.settle_dropped();
                table.set(index, self.keeping_mark(zero.mkyoung().mkspecial(), seen));
            }
        }
        FaultOutcome::MINOR
    }
}
