//! Stores to shared mappings: the object is told before the first one, and the page
//! is dirty behind it.

use crate::FaultOutcome;
use crate::dispatch::{E, Fault};
use crate::file::{Found, Mapped};
use mm_arch::{Entry, Level};
use mm_folio::{FolioFlags, Get};
use mm_pgtable::LockedTable;
use mm_rmap::RmapPlatform;
use mm_vma::Backing;

impl<'f, 'm, P: RmapPlatform> Fault<'f, 'm, P> {
    /// A store to a page that is not mapped (rule FILE-07).
    pub(crate) fn shared_fault(&self, backing: &dyn Backing, seen: E<P>) -> FaultOutcome {
        let found = match self.find_page(backing) {
            Ok(found) => found,
            Err(outcome) => return outcome,
        };
        let lock = match self.lock_page(backing, &found) {
            Ok(lock) => lock,
            Err(outcome) => return outcome,
        };
        let folio = lock.folio();
        if let Err(outcome) = self.announce(backing) {
            return outcome;
        }
        let major = found.major;
        let mapped = self.map_page(backing, found, seen);
        // The lock keeps the folio in the object, and the object keeps the folio.
        if matches!(mapped, Mapped::Yes) {
            folio.set_flag(FolioFlags::DIRTY);
        }
        drop(lock);
        match mapped {
            Mapped::Yes => FaultOutcome::Done { major },
            Mapped::Changed => FaultOutcome::MINOR,
            Mapped::NoMemory => FaultOutcome::Oom,
        }
    }

    /// Tells the object of the store, if it wants to hear (rule FILE-08). The folio
    /// is locked, so that nobody cleans the page before it is mapped writable.
    fn announce(&self, backing: &dyn Backing) -> Result<(), FaultOutcome> {
        if !backing.notifies_writes() {
            return Ok(());
        }
        backing.make_writable(self.file_index()).map_err(|e| self.no_page(e))
    }

    /// A store met the read-only entry `seen` of a shared mapping, in the locked
    /// `table` (rules FAULT-09, FILE-09).
    pub(crate) fn shared_write_protected(
        &self,
        table: LockedTable<'f, P>,
        seen: E<P>,
    ) -> FaultOutcome {
        let (Some(backing), Some(folio)) = (self.vma.backing(), self.counted_folio(seen)) else {
            // No page that could be dirty.
            self.reuse(table, seen);
            return FaultOutcome::MINOR;
        };
        let Ok(own) = folio.grab::<Get>(1) else { return FaultOutcome::Oom };
        drop(table);
        let found = Found { own, page: folio.index_of(seen.pfn(Level::Pte)), major: false };
        let lock = match self.lock_page(&**backing, &found) {
            Ok(lock) => lock,
            Err(outcome) => return outcome,
        };
        if let Err(outcome) = self.announce(&**backing) {
            return outcome;
        }
        if let Some(table) = self.lock_table() {
            // It may have been unmapped, or made writable by somebody else.
            let unchanged = table.get(table.index_of(self.va)) == seen;
            if unchanged || mm_sync::mutant!("fault.shared.no_recheck") {
                self.reuse(table, seen);
                lock.folio().set_flag(FolioFlags::DIRTY);
            }
        }
        // Ours may be the last reference: unlocked before it goes.
        drop(lock);
        drop(found);
        FaultOutcome::MINOR
    }
}
