//! Shared memory: files on tmpfs, memfds, shared anonymous mappings.

use super::{FileError, Object, cached_word, evict, insert, page_words};
use crate::Host;
use crate::events::Events;
use mm_arch::{Arch, Level};
use mm_fault::{OrderSet, ShmemMode, ShmemPolicy, WriteAt};
use mm_folio::{FileId, FolioFlags, FolioRef, FolioRun, FrameBytes, Get};
use mm_map::Pages;
use mm_vma::{
    Backing, BackingError, BackingKind, Event, FoundPage, InsertError, PageCache, PageRequest,
    Platform,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What decides about the folio sizes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShmemKind {
    /// A shared anonymous mapping: a setting per size.
    Anonymous,
    /// A memfd: the setting for all sizes.
    Memfd,
    /// A file on a mount with this setting.
    Mounted(ShmemMode),
}

/// An object of shared memory.
pub struct Shmem<A: Arch, O: Events> {
    cache: PageCache<Host<A, O>>,
    kind: ShmemKind,
    nr_pages: AtomicU64,
}

impl<A: Arch, O: Events> Shmem<A, O> {
    /// An object of `nr_pages` pages, all of them holes.
    pub fn new(host: &Host<A, O>, kind: ShmemKind, nr_pages: u64) -> Arc<Self> {
        let cache = PageCache::new(host.clone(), host.objects().next_id());
        let object = Arc::new(Shmem { cache, kind, nr_pages: AtomicU64::new(nr_pages) });
        let weak = Arc::downgrade(&object);
        host.objects().add(weak);
        object
    }
    fn host(&self) -> &Host<A, O> {
        self.cache.platform()
    }
    fn policy(&self) -> ShmemPolicy {
        self.host().policy().fault.shmem
    }
    fn mount(&self) -> ShmemMode {
        match self.kind {
            ShmemKind::Mounted(mode) => mode,
            ShmemKind::Memfd | ShmemKind::Anonymous => self.policy().global(),
        }
    }

    /// A zero-filled folio for the missing page `index`, in the cache: the largest
    /// of `orders` that fits into what is missing, and that there is memory for.
    fn make(&self, index: u64, orders: OrderSet) -> Result<FolioRun, InsertError> {
        let observer = self.host().observer();
        let mut wanted = orders.or(OrderSet::of(0));
        while let Some(order) = wanted.descending().next() {
            wanted = wanted.without(OrderSet::of(order));
            let (first, nr) = (index & !((1 << order) - 1), 1u64 << order);
            if order > 0 && !self.cache.is_vacant(first, nr) {
                continue;
            }
            let Ok(new) = self.host().memmap().alloc(order) else {
                observer.event(Event::ShmemFallback, u64::from(order));
                continue;
            };
            self.host().bytes().zero(new.folio().head(), nr);
            insert(&self.cache, first, &new, FolioFlags::SWAPBACKED)?;
            if order > 0 {
                observer.event(Event::ShmemAlloc, u64::from(order));
            }
            return Ok(new.into_run((index - first) as u32));
        }
        Err(InsertError::NoMemory)
    }
    /// The page `index`, made if it is missing.
    fn get_or_make(
        &self,
        index: u64,
        orders: impl Fn() -> OrderSet,
    ) -> Result<FolioRun, BackingError> {
        loop {
            if let Some(run) = self.cache.get(index) {
                return Ok(run);
            }
            match self.make(index, orders()) {
                Ok(run) => return Ok(run),
                Err(InsertError::Exists) => {}
                Err(InsertError::NoMemory) => return Err(BackingError::NoMemory),
            }
        }
    }
}

impl<A: Arch, O: Events> Backing for Shmem<A, O> {
    fn id(&self) -> FileId {
        self.cache.id()
    }
    fn kind(&self) -> BackingKind {
        BackingKind::Shmem
    }
    fn nr_pages(&self) -> u64 {
        self.nr_pages.load(Relaxed)
    }
    fn notifies_writes(&self) -> bool {
        false
    }
    fn cached(&self, index: u64) -> Option<FolioRun> {
        self.cache.get(index)
    }
    fn page(&self, request: &PageRequest<'_>) -> Result<FoundPage, BackingError> {
        let (index, size) = (request.index, self.nr_pages());
        if index >= size {
            return Err(BackingError::PastEnd);
        }
        let orders = || {
            let flags = request.vma.flags();
            match self.kind {
                // What would not fit into the mapping is not wanted.
                ShmemKind::Anonymous => self
                    .policy()
                    .anon_orders(flags, index, size)
                    .descending()
                    .filter(|order| request.vma.block(request.va, *order).is_some())
                    .map(OrderSet::of)
                    .fold(OrderSet::EMPTY, OrderSet::or),
                ShmemKind::Memfd | ShmemKind::Mounted(_) => {
                    let pmd = A::order(Level::Pmd);
                    ShmemPolicy::mount_orders(self.mount(), pmd, flags, index, size)
                }
            }
        };
        Ok(FoundPage { page: self.get_or_make(index, orders)?, major: false })
    }
    fn split(&self, own: FolioRun) -> (FolioRun, bool) {
        self.cache.split_held(own)
    }
    fn make_writable(&self, _: u64) -> Result<(), BackingError> {
        Ok(())
    }
}

impl<A: Arch, O: Events> Object<A, O> for Shmem<A, O> {
    fn cache(&self) -> &PageCache<Host<A, O>> {
        &self.cache
    }
    fn write(
        &self,
        first: u64,
        nr: u64,
        word: &dyn Fn(u64, usize) -> u64,
    ) -> Result<(), FileError> {
        let end = first + nr;
        self.nr_pages.fetch_max(end, Relaxed);
        for index in first..end {
            let orders = || {
                let at = WriteAt { index, nr_pages: end - index };
                let pmd = A::order(Level::Pmd);
                ShmemPolicy::write_orders(self.mount(), pmd, at, self.nr_pages())
            };
            let run = self.get_or_make(index, orders)?;
            let own: FolioRef<'_, _, Get> = self.host().memmap().adopt_run(run);
            let pfn = own.folio().page(run.first);
            for w in 0..page_words::<A>() {
                self.host().bytes().store(pfn, w * 8, word(index, w));
            }
            own.folio().set_flag(FolioFlags::DIRTY);
        }
        Ok(())
    }
    fn read(&self, index: u64, offset: usize) -> Result<u64, FileError> {
        Ok(self.peek(index, offset))
    }
    fn peek(&self, index: u64, offset: usize) -> u64 {
        cached_word(&self.cache, index, offset).unwrap_or(0)
    }
    fn truncate(&self, nr_pages: u64) {
        self.nr_pages.store(nr_pages, Relaxed);
        evict(&self.cache, nr_pages, u64::MAX - nr_pages, Pages::All);
    }
    fn punch(&self, first: u64, nr: u64) {
        evict(&self.cache, first, nr, Pages::OfObject);
    }
    fn sync(&self) -> Result<(), FileError> {
        // There is nowhere to write to.
        Ok(())
    }
    fn forget_clean(&self) {
        // The pages are all that there is.
    }
    // There is no device to go to directly: both go through the cache.
    fn read_direct(
        &self,
        first: u64,
        nr: u64,
        each: &mut dyn FnMut(u64, &[u64]),
    ) -> Result<(), FileError> {
        for i in 0..nr {
            let page: Vec<u64> =
                (0..page_words::<A>()).map(|w| self.peek(first + i, w * 8)).collect();
            each(i, &page);
        }
        Ok(())
    }
    fn write_direct(&self, first: u64, pages: &[Vec<u64>]) -> Result<(), FileError> {
        let word = |index: u64, w: usize| pages[(index - first) as usize][w];
        self.write(first, pages.len() as u64, &word)
    }
}

impl<A: Arch, O: Events> std::fmt::Debug for Shmem<A, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shmem")
            .field("id", &self.id())
            .field("nr_pages", &self.nr_pages())
            .finish_non_exhaustive()
    }
}
