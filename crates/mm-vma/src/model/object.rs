//! An object of a model machine.

use super::ModelPlatform;
use crate::{
    Backing, BackingError, BackingKind, FoundPage, InstallError, PageCache, PageRequest, Platform,
};
use alloc::sync::Arc;
use mm_arch::{Arch, Pfn};
use mm_folio::{AllocError, FileId, Folio, FolioFlags, FolioRun, Get};
use mm_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A file, or an object of shared memory, with nothing behind its cached pages: what is
/// not cached is not there.
#[derive(Debug)]
pub struct ModelObject<A: Arch> {
    cache: PageCache<ModelPlatform<A>>,
    nr_pages: AtomicU64,
    kind: BackingKind,
    notifies: bool,
    lets_go: AtomicBool,
}

impl<A: Arch> ModelObject<A> {
    /// An object without pages. `notifies` says whether stores are announced to it.
    pub fn new(p: &ModelPlatform<A>, id: FileId, kind: BackingKind, notifies: bool) -> Arc<Self> {
        let cache = PageCache::new(p.clone(), id);
        let lets_go = AtomicBool::new(kind == BackingKind::File);
        Arc::new(ModelObject { cache, nr_pages: AtomicU64::new(0), kind, notifies, lets_go })
    }
    /// Puts a new folio into the cache, its first page at index `first`.
    ///
    /// # Errors
    ///
    /// If there is no memory, or a page of it is there already.
    pub fn add(&self, first: u64, order: u32) -> Result<Folio<'_, ModelPlatform<A>>, AllocError> {
        let new = self.cache.platform().memmap().alloc(order)?;
        let folio = new.folio();
        folio.set_flag(FolioFlags::UPTODATE);
        if self.kind == BackingKind::Shmem {
            folio.set_flag(FolioFlags::SWAPBACKED | FolioFlags::DIRTY);
        }
        self.cache.insert(first, &new).map_err(|_| AllocError)?;
        self.nr_pages.fetch_max(first + (1 << order), Relaxed);
        Ok(folio)
    }
    /// The cached pages.
    pub fn cache(&self) -> &PageCache<ModelPlatform<A>> {
        &self.cache
    }
    /// Lets go of clean pages when asked to; otherwise it keeps all.
    pub fn let_go(&self, yes: bool) {
        self.lets_go.store(yes, Relaxed);
    }
    /// Gives the object another size; its pages stay where they are.
    pub fn set_nr_pages(&self, nr: u64) {
        self.nr_pages.store(nr, Relaxed);
    }
}

impl<A: Arch> Backing for ModelObject<A> {
    fn id(&self) -> FileId {
        self.cache.id()
    }
    fn kind(&self) -> BackingKind {
        self.kind
    }
    fn nr_pages(&self) -> u64 {
        self.nr_pages.load(Relaxed)
    }
    fn notifies_writes(&self) -> bool {
        self.notifies
    }
    fn cached(&self, index: u64) -> Option<FolioRun> {
        self.cache.get(index)
    }
    fn page(&self, request: &PageRequest<'_>) -> Result<FoundPage, BackingError> {
        let page = self.cache.get(request.index).ok_or(BackingError::PastEnd)?;
        Ok(FoundPage { page, major: false })
    }
    fn is_missing(&self, index: u64) -> bool {
        self.cache.is_vacant(index, 1)
    }
    fn install(&self, index: u64, fill: &mut dyn FnMut(Pfn)) -> Result<FolioRun, InstallError> {
        if index >= self.nr_pages() {
            return Err(InstallError::PastEnd);
        }
        let new = self.cache.platform().memmap().alloc(0);
        let new = new.map_err(|_| InstallError::NoMemory)?;
        fill(new.folio().head());
        new.folio().set_flag(FolioFlags::UPTODATE | FolioFlags::SWAPBACKED | FolioFlags::DIRTY);
        self.cache.insert(index, &new)?;
        Ok(new.into_run(0))
    }
    fn make_writable(&self, index: u64) -> Result<(), BackingError> {
        if let Some(run) = self.cache.get(index) {
            let own = self.cache.platform().memmap().adopt_run::<Get>(run);
            own.folio().set_flag(FolioFlags::DIRTY);
        }
        Ok(())
    }
    fn split(&self, own: FolioRun) -> (FolioRun, bool) {
        self.cache.split_held(own)
    }
    fn release(&self, index: u64) -> bool {
        self.lets_go.load(Relaxed) && self.cache.release(index)
    }
}
