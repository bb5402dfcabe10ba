//! Moving memory out of the way.

use crate::Host;
use crate::events::Events;
use mm_arch::Arch;
use mm_folio::{FolioRef, Get};
use mm_gup::{MigrateError, Migrator};
use mm_rmap::{MigrationError, migrate_folio};
use mm_vma::Backing;

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
        let object = own.folio().file().and_then(|(id, _)| {
            self.objects().alive().into_iter().find(|o| Backing::id(&**o) == id)
        });
        let cache = object.as_deref().map(|o| o.cache());
        migrate_folio(self, own, cache, self.policy().map.suspend)
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
