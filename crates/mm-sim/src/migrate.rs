//! Moving memory out of the way, splitting and merging it.

use crate::events::Events;
use crate::{Host, Process};
use mm_arch::Arch;
use mm_folio::{AllocError, FolioRef, Get};
use mm_gup::{MigrateError, Migrator};
use mm_map::{Ksm, KsmPass, split_cached};
use mm_rmap::{Batching, MigrationError, SplitError, SplitFolio, migrate_folio, split_anon_folio};
use mm_vma::Platform;

/// How often a folio is asked to move that somebody else uses for the moment.
const TRIES: u32 = 10;

impl<A: Arch, O: Events> Host<A, O> {
    /// Moves a folio to other frames, with all of its mappings; `own` are all references
    /// that the caller has of it, and the last ones of its old place afterwards.
    ///
    /// # Errors
    ///
    /// If it cannot be moved, or somebody else holds it.
    pub fn migrate(&self, own: &FolioRef<'_, Self, Get>) -> Result<(), MigrationError> {
        self.migrate_by(own, self.policy().map.suspend)
    }
    pub(crate) fn migrate_by(
        &self,
        own: &FolioRef<'_, Self, Get>,
        batching: Batching,
    ) -> Result<(), MigrationError> {
        let object = own.folio().file().and_then(|(id, _)| self.objects().find(id));
        let cache = object.as_deref().map(|o| o.cache());
        migrate_folio(self, own, cache, batching)
    }
}

impl<A: Arch, O: Events> Host<A, O> {
    /// Splits a folio into folios of `order`, as the interface for tests does; `own` are all
    /// references that the caller has of it.
    ///
    /// # Errors
    ///
    /// If it cannot be split, or somebody else holds it.
    pub fn split(&self, own: FolioRef<'_, Self, Get>, order: u32) -> Result<(), SplitError> {
        let policy = self.policy().map;
        let folio = own.folio();
        let locked = folio.lock();
        let object = folio.file().and_then(|(id, _)| self.objects().find(id));
        let map = self.memmap();
        // Only for as long as this call: the references are of this map.
        let split = SplitFolio { locked, own };
        let (rest, result) = match &object {
            Some(object) => split_cached(&policy, object.cache(), split, order, 0),
            None => split_anon_folio(self, map, split, order, 0, policy.suspend),
        };
        drop(rest.locked);
        drop(rest.own);
        result
    }
}

impl<A: Arch, O: Events> Host<A, O> {
    /// One pass of a scanner for equal pages over `processes`, in this order.
    ///
    /// # Errors
    ///
    /// If there is no memory to remember pages.
    pub fn ksm_pass<'p>(
        &self,
        ksm: &mut Ksm<Self>,
        processes: impl IntoIterator<Item = &'p Process<A, O>>,
    ) -> Result<KsmPass, AllocError> {
        let mut spaces = Vec::new();
        for process in processes {
            spaces.try_reserve(1).map_err(|_| AllocError)?;
            spaces.push(process.shared_mm());
        }
        ksm.scan(&self.policy().map, &spaces)
    }
}

impl<A: Arch, O: Events> Migrator<Host<A, O>> for Host<A, O> {
    fn migrate(&self, folios: Vec<FolioRef<'_, Self, Get>>) -> Result<(), MigrateError> {
        for own in &folios {
            let mut tries = 0;
            while let Err(e) = Host::migrate(self, own) {
                tries += 1;
                // Somebody keeps it: a pin of it will not be short.
                if e != MigrationError::Busy || tries == TRIES {
                    return Err(MigrateError::NoMemory);
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}
