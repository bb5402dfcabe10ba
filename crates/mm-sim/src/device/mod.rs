//! What stands behind mappings: files and objects of shared memory, with real bytes.
//!
//! Both keep their pages in a page cache in frames of the machine. A [`File`] has a
//! store besides, in memory or a file of the host, and hears of stores through
//! mappings; what a [`Shmem`] has is its cached pages.
//!
//! A machine knows its objects for audits only: they live as long as somebody has a
//! handle, a mapping included.

mod file;
mod shmem;
mod store;
mod swap;
mod swapped;

pub use file::{File, FileError};
pub use shmem::{Shmem, ShmemKind};
pub use swap::Swap;

use crate::Host;
use crate::events::Events;
use mm_arch::{Arch, SwapSlot};
use mm_folio::{AllocError, FileId, FolioFlags, FolioRef, FrameBytes, Get};
use mm_map::{Pages, evict_range, unmap_object};
use mm_vma::{Backing, InsertError, PageCache, Platform, try_arc};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What calls on files do, whatever is behind them.
pub trait Object<A: Arch, O: Events>: Backing {
    /// The cached pages.
    fn cache(&self) -> &PageCache<Host<A, O>>;
    /// One `write`: `nr` pages from `first` on, where `word` says what word (second
    /// argument) of a page (first) becomes. Grows the object.
    ///
    /// # Errors
    ///
    /// If a page has to be read and cannot, or there is no memory.
    fn write(&self, first: u64, nr: u64, word: &dyn Fn(u64, usize) -> u64)
    -> Result<(), FileError>;
    /// The swap slots that its pages count on.
    fn each_swap_slot(&self, _each: &mut dyn FnMut(SwapSlot)) {}
    /// Whether page `index` is on swap.
    fn is_swapped(&self, _index: u64) -> bool {
        false
    }
    /// Brings the pages in `range` back from swap, but for those that no device gives.
    ///
    /// # Errors
    ///
    /// At the first that there is no memory for.
    fn swap_back(&self, _range: Range<u64>) -> Result<(), FileError> {
        Ok(())
    }
    /// The word at byte `offset` of page `index`, as `pread` sees it.
    ///
    /// # Errors
    ///
    /// If the page has to be read and cannot.
    fn read(&self, index: u64, offset: usize) -> Result<u64, FileError>;
    /// The same without reading anything into the cache, for audits.
    fn peek(&self, index: u64, offset: usize) -> u64;
    /// Gives the object another size, in pages.
    fn truncate(&self, nr_pages: u64);
    /// Writes out what is dirty.
    ///
    /// # Errors
    ///
    /// If the device fails; what was not written stays dirty.
    fn sync(&self) -> Result<(), FileError>;
    /// Drops cached pages that are clean and that nobody uses.
    fn forget_clean(&self);
    /// One direct read: `nr` pages from `first` on, each word handed to `each` with the
    /// number of its page from `first` on, and its own in the page.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn read_direct(
        &self,
        first: u64,
        nr: u64,
        each: &mut dyn FnMut(u64, usize, u64),
    ) -> Result<(), FileError>;
    /// One direct write of `nr` pages at page `first`; what it writes, as in
    /// [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// If the device fails, or there is no memory.
    fn write_direct(
        &self,
        first: u64,
        nr: u64,
        word: &dyn Fn(u64, usize) -> u64,
    ) -> Result<(), FileError>;
}

/// An object that may be gone.
type Known<A, O> = (FileId, Weak<dyn Object<A, O>>);

/// The objects of a machine.
pub(crate) struct Objects<A: Arch, O: Events> {
    next: AtomicU64,
    /// By name.
    all: Mutex<Vec<Known<A, O>>>,
}

impl<A: Arch, O: Events> Objects<A, O> {
    pub fn new() -> Self {
        Objects { next: AtomicU64::new(1), all: Mutex::default() }
    }
    fn next_id(&self) -> FileId {
        FileId(self.next.fetch_add(1, Relaxed) as u32)
    }
    /// Shares a new object, and knows it.
    fn share<T: Object<A, O> + 'static>(&self, object: T) -> Result<Arc<T>, AllocError> {
        let object = try_arc(object)?;
        let weak = Arc::downgrade(&object);
        let mut all = self.all();
        all.retain(|(_, o)| o.strong_count() > 0);
        all.try_reserve(1).map_err(|_| AllocError)?;
        let at = all.partition_point(|(id, _)| *id < object.id());
        all.insert(at, (object.id(), weak));
        Ok(object)
    }
    fn all(&self) -> MutexGuard<'_, Vec<Known<A, O>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The object of a name, if it is alive.
    pub fn find(&self, id: FileId) -> Option<Arc<dyn Object<A, O>>> {
        self.from(id).filter(|(found, _)| *found == id).map(|(_, object)| object)
    }
    /// Those that are alive, by name. Each is looked up when its turn comes.
    pub fn alive(&self) -> impl Iterator<Item = Arc<dyn Object<A, O>>> + '_ {
        let mut next = Some(FileId(0));
        std::iter::from_fn(move || {
            let (id, object) = self.from(next?)?;
            next = id.0.checked_add(1).map(FileId);
            Some(object)
        })
    }
    /// The first one that is alive from a name on.
    fn from(&self, first: FileId) -> Option<(FileId, Arc<dyn Object<A, O>>)> {
        let all = self.all();
        let behind = &all[all.partition_point(|(id, _)| *id < first)..];
        behind.iter().find_map(|(id, object)| Some((*id, object.upgrade()?)))
    }
}

/// Words of a page.
pub(crate) const fn page_words<A: Arch>() -> usize {
    (1 << A::PAGE_SHIFT) / 8
}

/// Puts a new folio with valid content into a cache.
fn insert<A: Arch, O: Events>(
    cache: &PageCache<Host<A, O>>,
    first: u64,
    new: &FolioRef<'_, Host<A, O>, Get>,
    flags: FolioFlags,
) -> Result<(), InsertError> {
    new.folio().set_flag(flags | FolioFlags::UPTODATE);
    new.folio().enlist();
    cache.insert(first, new)
}

/// The pages from `first` on leave all mappings, private copies as well where `pages`
/// says so, and the cache.
fn evict<A: Arch, O: Events>(cache: &PageCache<Host<A, O>>, first: u64, nr: u64, pages: Pages) {
    let (host, policy) = (cache.platform(), cache.platform().policy().map);
    unmap_object(&policy, host, cache.id(), first, nr, pages);
    evict_range(&policy, cache, first, nr);
    // A fault that found a page before may have made a private copy of it.
    unmap_object(&policy, host, cache.id(), first, nr, pages);
}

/// The word at byte `offset` of a cached page.
fn cached_word<A: Arch, O: Events>(
    cache: &PageCache<Host<A, O>>,
    index: u64,
    offset: usize,
) -> Option<u64> {
    let run = cache.get(index)?;
    let host = cache.platform();
    let own: FolioRef<'_, _, Get> = host.memmap().adopt_run(run);
    Some(host.bytes().load(own.folio().page(run.first), offset))
}
