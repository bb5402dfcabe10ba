//! When a fault is userfaultfd's to answer, and what it keeps of a protection.

use crate::dispatch::{E, Fault, Progress};
use crate::{FaultOutcome, UserFault};
use mm_arch::Entry;
use mm_folio::Get;
use mm_rmap::RmapPlatform;
use mm_vma::{Backing, VmaFlags};

impl<P: RmapPlatform> Fault<'_, '_, P> {
    pub(crate) fn user_fault(&self, kind: UserFault) -> FaultOutcome {
        FaultOutcome::UserFault { va: self.va, kind }
    }

    /// What to say if nothing is mapped at the address, under the lock of the
    /// entry (rule UFFD-01): an event before that look could be about a page that
    /// is there.
    pub(crate) fn asks_for_missing(&self) -> Option<FaultOutcome> {
        let registered = self.vma.flags().contains(VmaFlags::UFFD_MISSING);
        registered.then(|| self.user_fault(UserFault::Missing { write: self.access.is_write() }))
    }

    /// What to say of the page of the fault before the object is asked for it: it may have
    /// none, or one that somebody else is to see first (rules UFFD-01, UFFD-03). Pages on
    /// swap come back without a word.
    pub(crate) fn asks_of_object(&self, backing: &dyn Backing) -> Option<FaultOutcome> {
        let flags = self.vma.flags() & (VmaFlags::UFFD_MISSING | VmaFlags::UFFD_MINOR);
        let index = self.file_index();
        if flags.is_empty() || index >= backing.nr_pages() {
            return None;
        }
        let write = self.access.is_write();
        if backing.is_missing(index) {
            let asked = self.user_fault(UserFault::Missing { write });
            return flags.contains(VmaFlags::UFFD_MISSING).then_some(asked);
        }
        let run = backing.cached(index)?;
        drop(self.memmap().adopt_run::<Get>(run));
        let asked = self.user_fault(UserFault::Minor { write });
        flags.contains(VmaFlags::UFFD_MINOR).then_some(asked)
    }

    /// Whether a store that met the read-only leaf `e` has to wait for an answer
    /// (rules FAULT-07, PMDF-01).
    pub(crate) fn asks_before_store(&self, e: E<P>) -> bool {
        let registered = VmaFlags::UFFD_WP | VmaFlags::UFFD_WP_ASYNC;
        self.access.is_write()
            && e.is_uffd_wp()
            && self.vma.flags() & registered == VmaFlags::UFFD_WP
            && !mm_sync::mutant!("fault.uffd.no_event")
    }

    /// `new` in the place of `seen`: write-protected if that was a marker which
    /// says so (rule ANON-04). The store that this fault is for then faults again.
    pub(crate) fn keeping_mark(&self, new: E<P>, seen: E<P>) -> E<P> {
        if seen.is_none() { new } else { new.mkuffd_wp() }
    }

    /// A write-protection marker: a missing page that comes protected; nothing at
    /// all if the mapping is not registered any more (rule UFFD-05).
    pub(crate) fn marked(&self, seen: E<P>) -> Progress {
        if self.vma.flags().contains(VmaFlags::UFFD_WP) {
            return self.missing(seen).into();
        }
        if let Some(mut table) = self.lock_table() {
            let index = table.index_of(self.va);
            if table.get(index) == seen {
                table.set(index, E::<P>::NONE);
            }
        }
        Progress::LookAgain
    }
}
