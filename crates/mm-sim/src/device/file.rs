//! A file with a store behind its cached pages.

use super::store::Store;
use super::{Object, cached_word, evict, insert, page_words};
use crate::Host;
use crate::events::Events;
use mm_arch::{Arch, Level};
use mm_fault::{OrderSet, WriteAt};
use mm_folio::{
    AllocError, FileId, FolioFlags, FolioLockGuard, FolioRef, FolioRun, FrameBytes, Get,
};
use mm_map::{Pages, unmap_object};
use mm_rmap::mkclean;
use mm_vma::{
    Backing, BackingError, BackingKind, FoundPage, InsertError, PageCache, PageRequest, Platform,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a call on a file failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    /// The device failed.
    #[error("the device failed")]
    Io,
    /// There is no memory for a page.
    #[error("no memory for a page of the file")]
    NoMemory,
}

impl FileError {
    /// The kernel's name of the error.
    pub const fn errno(&self) -> &'static str {
        match self {
            FileError::Io => "EIO",
            FileError::NoMemory => "ENOMEM",
        }
    }
}

impl From<AllocError> for FileError {
    fn from(_: AllocError) -> Self {
        FileError::NoMemory
    }
}

impl From<BackingError> for FileError {
    fn from(e: BackingError) -> Self {
        match e {
            BackingError::NoMemory => FileError::NoMemory,
            BackingError::Io | BackingError::PastEnd => FileError::Io,
        }
    }
}

/// A file: cached pages before a store. Stores through mappings are announced, so that
/// it knows what it has to write.
pub struct File<A: Arch, O: Events> {
    cache: PageCache<Host<A, O>>,
    nr_pages: AtomicU64,
    store: Mutex<Store>,
    failing: Mutex<BTreeSet<u64>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Somebody reads the page.
struct Unread;

impl<A: Arch, O: Events> File<A, O> {
    /// A file of `nr_pages` pages, all of them holes, whose store is memory.
    ///
    /// # Errors
    ///
    /// If there is no memory to know it.
    pub fn new(host: &Host<A, O>, nr_pages: u64) -> Result<Arc<Self>, AllocError> {
        Self::over(host, Store::Memory(BTreeMap::new()), nr_pages)
    }
    /// A file whose store is a file of the host, open for reading and writing.
    ///
    /// # Errors
    ///
    /// If the host does not tell its size, or there is no memory to know it.
    pub fn of_host(host: &Host<A, O>, file: std::fs::File) -> Result<Arc<Self>, FileError> {
        let bytes = file.metadata().map_err(|_| FileError::Io)?.len();
        let nr_pages = bytes.div_ceil(1 << A::PAGE_SHIFT);
        Ok(Self::over(host, Store::Host(file), nr_pages)?)
    }
    fn over(host: &Host<A, O>, store: Store, nr_pages: u64) -> Result<Arc<Self>, AllocError> {
        host.objects().share(File {
            cache: PageCache::new(host.clone(), host.objects().next_id()),
            nr_pages: AtomicU64::new(nr_pages),
            store: Mutex::new(store),
            failing: Mutex::default(),
        })
    }
    /// Makes every read and write of page `index` by the device fail, or lets it
    /// succeed again.
    pub fn fail_io(&self, index: u64, fails: bool) {
        let mut failing = lock(&self.failing);
        if fails {
            failing.insert(index);
        } else {
            failing.remove(&index);
        }
    }
    fn host(&self) -> &Host<A, O> {
        self.cache.platform()
    }
    /// Reads a page from the device, and hands out its words.
    fn load_page(&self, index: u64, each: impl FnMut(usize, u64)) -> Result<(), FileError> {
        if lock(&self.failing).contains(&index) {
            return Err(FileError::Io);
        }
        lock(&self.store).read(index, page_words::<A>(), each)
    }
    /// Writes a page to the device.
    fn store_page(&self, index: u64, word: impl Fn(usize) -> u64) -> Result<(), FileError> {
        if lock(&self.failing).contains(&index) {
            return Err(FileError::Io);
        }
        lock(&self.store).write(index, (0..page_words::<A>()).map(word))
    }

    /// The page `index` if it is cached. While somebody reads it into the cache, the
    /// content is not there, nor may anybody write to it: it is waited for, and looked for again.
    fn get_valid(&self, index: u64) -> Option<Result<FolioRun, Unread>> {
        let run = self.cache.get(index)?;
        let own: FolioRef<'_, _, Get> = self.host().memmap().adopt_run(run);
        if own.folio().has(FolioFlags::UPTODATE) {
            // Pairs with the Release of `get_or_read`: the content is there.
            fence(Acquire);
            return Some(Ok(own.into_run(run.first)));
        }
        // It is read, or gone, when the lock is free.
        drop(own.folio().lock());
        Some(Err(Unread))
    }
    /// The page `index`, read from the store if it is not cached.
    ///
    /// It is in the cache, locked, before it is read. Read before, it could take the place
    /// of a page that was read, stored to, written out and dropped meanwhile.
    fn get_or_read(&self, index: u64) -> Result<FoundPage, BackingError> {
        loop {
            match self.get_valid(index) {
                Some(Ok(page)) => return Ok(FoundPage { page, major: false }),
                Some(Err(Unread)) => continue,
                None => {}
            }
            let new = self.host().memmap().alloc(0).map_err(|AllocError| BackingError::NoMemory)?;
            let locked = new.folio().lock();
            match self.cache.insert(index, &new) {
                Ok(()) => {}
                Err(InsertError::Exists) => continue,
                Err(InsertError::NoMemory) => return Err(BackingError::NoMemory),
                Err(InsertError::PastEnd) => return Err(BackingError::PastEnd),
            }
            let (bytes, pfn) = (self.host().bytes(), new.folio().head());
            if self.load_page(index, |w, value| bytes.store(pfn, w * 8, value)).is_err() {
                self.cache.remove(&locked);
                return Err(BackingError::Io);
            }
            // Pairs with the Acquire of `get_valid`.
            fence(Release);
            new.folio().set_flag(FolioFlags::UPTODATE);
            new.folio().enlist();
            drop(locked);
            return Ok(FoundPage { page: new.into_run(0), major: true });
        }
    }
    /// A folio for pages that are about to be overwritten, `index` the first of
    /// them; the page of it that is `index`.
    fn get_to_overwrite(&self, at: WriteAt) -> Result<FolioRun, BackingError> {
        loop {
            match self.get_valid(at.index) {
                Some(Ok(page)) => return Ok(page),
                Some(Err(Unread)) => continue,
                None => {}
            }
            let orders = at.orders(A::order(Level::Pmd)).or(OrderSet::of(0));
            let vacant = |order: &u32| self.cache.is_vacant(at.index, 1 << *order);
            let new = orders
                .descending()
                .filter(vacant)
                .find_map(|order| self.host().memmap().alloc(order).ok())
                .ok_or(BackingError::NoMemory)?;
            self.host().bytes().zero(new.folio().head(), new.folio().nr_pages().into());
            match insert(&self.cache, at.index, &new, FolioFlags::empty()) {
                Ok(()) => return Ok(new.into_run(0)),
                Err(InsertError::Exists) => {}
                Err(InsertError::NoMemory) => return Err(BackingError::NoMemory),
                Err(InsertError::PastEnd) => return Err(BackingError::PastEnd),
            }
        }
    }

    /// The `nr` pages from `first` on are empty, in the cache and, up to `end`, in the store.
    fn discard(&self, first: u64, nr: u64, end: u64, pages: Pages) {
        evict(&self.cache, first, nr, pages);
        // What a device that fails keeps is behind the end, or as good as it was.
        let _ = lock(&self.store).clear(first, end, page_words::<A>());
        // What somebody read in between is what was there before.
        evict(&self.cache, first, nr, pages);
    }

    /// Writes a dirty folio out; it stays dirty if that fails.
    fn write_out(
        &self,
        locked: &FolioLockGuard<'_, Host<A, O>>,
        first: u64,
    ) -> Result<(), FileError> {
        let folio = locked.folio();
        if mkclean(self.host(), locked) > 0 {
            folio.set_flag(FolioFlags::DIRTY);
        }
        // Behind the cleaning: a store from here on faults, and waits for the lock.
        if !folio.clear_flag(FolioFlags::DIRTY) {
            return Ok(());
        }
        for i in 0..folio.nr_pages() {
            let (index, pfn) = (first + u64::from(i), folio.page(i));
            if index >= self.nr_pages() {
                break;
            }
            let bytes = self.host().bytes();
            if let Err(e) = self.store_page(index, |w| bytes.load(pfn, w * 8)) {
                folio.set_flag(FolioFlags::DIRTY);
                return Err(e);
            }
        }
        for i in 0..folio.nr_pages() {
            self.host().frames().clear_stored(folio.page(i));
        }
        Ok(())
    }
    /// Writes out what is dirty of the `nr` pages from `first` on. Goes on behind a
    /// failure.
    fn sync_range(&self, first: u64, nr: u64) -> Result<(), FileError> {
        let end = first.saturating_add(nr);
        let (mut next, mut result) = (first, Ok(()));
        while let Some((at, own)) = self.cache.next_from(next).filter(|(at, _)| *at < end) {
            next = at + u64::from(own.folio().nr_pages());
            let locked = own.folio().lock();
            if own.folio().file() == Some((self.cache.id(), at)) {
                result = self.write_out(&locked, at).and(result);
            }
            drop(locked);
        }
        result
    }
    /// Drops the folios that have one of the `nr` pages from `first` on, written out and
    /// unmapped. One that somebody holds stays.
    fn invalidate(&self, first: u64, nr: u64) -> Result<(), FileError> {
        let end = first.saturating_add(nr);
        let mut next = first;
        while let Some((at, own)) = self.cache.next_from(next).filter(|(at, _)| *at < end) {
            let folio = own.folio();
            next = at + u64::from(folio.nr_pages());
            let locked = folio.lock();
            if folio.file() != Some((self.cache.id(), at)) {
                // It left meanwhile, or was split: what is there now?
                next = at.max(first);
                continue;
            }
            let (host, whole) = (self.host(), u64::from(folio.nr_pages()));
            unmap_object(&host.policy().map, host, self.cache.id(), at, whole, Pages::OfObject);
            self.write_out(&locked, at)?;
            self.cache.release(at);
        }
        Ok(())
    }
    /// Writes a page that is cached there, too.
    fn overwrite_cached(&self, index: u64, word: impl Fn(usize) -> u64) {
        while let Some(run) = self.cache.get(index) {
            let own: FolioRef<'_, _, Get> = self.host().memmap().adopt_run(run);
            let folio = own.folio();
            // Whoever reads it from the store is done when the lock is free.
            let _locked = folio.lock();
            let at = index.wrapping_sub(u64::from(run.first));
            if folio.file() == Some((self.cache.id(), at)) {
                let (bytes, pfn) = (self.host().bytes(), folio.page(run.first));
                (0..page_words::<A>()).for_each(|w| bytes.store(pfn, w * 8, word(w)));
                folio.set_flag(FolioFlags::DIRTY);
                return;
            }
        }
    }
}

impl<A: Arch, O: Events> Backing for File<A, O> {
    fn id(&self) -> FileId {
        self.cache.id()
    }
    fn punch(&self, first: u64, nr: u64) -> bool {
        let end = first.saturating_add(nr).min(self.nr_pages());
        self.discard(first, nr, end, Pages::OfObject);
        true
    }
    fn kind(&self) -> BackingKind {
        BackingKind::File
    }
    fn nr_pages(&self) -> u64 {
        self.nr_pages.load(Relaxed)
    }
    fn notifies_writes(&self) -> bool {
        true
    }
    fn cached(&self, index: u64) -> Option<FolioRun> {
        self.cache.get(index)
    }
    fn page(&self, request: &PageRequest<'_>) -> Result<FoundPage, BackingError> {
        if request.index >= self.nr_pages() {
            return Err(BackingError::PastEnd);
        }
        self.get_or_read(request.index)
    }
    fn read_ahead(&self, first: u64, nr: u64) {
        for index in first..first.saturating_add(nr).min(self.nr_pages()) {
            match self.get_or_read(index) {
                Ok(found) => drop(self.host().memmap().adopt_run::<Get>(found.page)),
                // What cannot be read is tried again by who wants it.
                Err(BackingError::Io | BackingError::PastEnd) => {}
                Err(BackingError::NoMemory) => break,
            }
        }
    }
    fn split(&self, own: FolioRun) -> (FolioRun, bool) {
        self.cache.split_held(own)
    }
    fn release(&self, index: u64) -> bool {
        self.cache.release(index)
    }
    fn make_writable(&self, index: u64) -> Result<(), BackingError> {
        // Room on the device is made here; one that fails says so.
        if lock(&self.failing).contains(&index) {
            return Err(BackingError::Io);
        }
        if let Some(run) = self.cache.get(index) {
            let own: FolioRef<'_, _, Get> = self.host().memmap().adopt_run(run);
            own.folio().set_flag(FolioFlags::DIRTY);
        }
        Ok(())
    }
}

impl<A: Arch, O: Events> Object<A, O> for File<A, O> {
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
            let run = self.get_to_overwrite(WriteAt { index, nr_pages: end - index })?;
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
        let run = self.get_or_read(index)?.page;
        let own: FolioRef<'_, _, Get> = self.host().memmap().adopt_run(run);
        Ok(self.host().bytes().load(own.folio().page(run.first), offset))
    }
    fn peek(&self, index: u64, offset: usize) -> u64 {
        cached_word(&self.cache, index, offset).unwrap_or_else(|| {
            let mut wanted = 0;
            let take = |w, value| wanted = if w == offset / 8 { value } else { wanted };
            // What the device does not give is nothing.
            let read = lock(&self.store).read(index, page_words::<A>(), take);
            read.map_or(0, |()| wanted)
        })
    }
    fn truncate(&self, nr_pages: u64) {
        self.nr_pages.store(nr_pages, Relaxed);
        self.discard(nr_pages, u64::MAX - nr_pages, u64::MAX, Pages::All);
    }
    fn sync(&self) -> Result<(), FileError> {
        self.sync_range(0, u64::MAX)
    }
    // What is dirty in the cache is written out before.
    fn read_direct(
        &self,
        first: u64,
        nr: u64,
        each: &mut dyn FnMut(u64, usize, u64),
    ) -> Result<(), FileError> {
        self.sync_range(first, nr)?;
        (0..nr).try_for_each(|i| self.load_page(first + i, |w, value| each(i, w, value)))
    }
    // And dropped, before a direct write, where nobody holds it. A page that is in the
    // cache behind it, held or read meanwhile, is written there as well.
    fn write_direct(
        &self,
        first: u64,
        nr: u64,
        word: &dyn Fn(u64, usize) -> u64,
    ) -> Result<(), FileError> {
        self.invalidate(first, nr)?;
        for index in first..first + nr {
            self.store_page(index, |w| word(index, w))?;
            self.nr_pages.fetch_max(index + 1, Relaxed);
            self.overwrite_cached(index, |w| word(index, w));
        }
        Ok(())
    }
    fn forget_clean(&self) {
        let mut next = 0;
        while let Some((at, own)) = self.cache.next_from(next) {
            let folio = own.folio();
            next = at + u64::from(folio.nr_pages());
            let Some(locked) = folio.try_lock() else { continue };
            let used = folio.is_mapped() || folio.refcount() > folio.nr_pages() as i32 + 1;
            if !used && !folio.has(FolioFlags::DIRTY) {
                self.cache.remove(&locked);
            }
            drop(locked);
        }
    }
}

impl<A: Arch, O: Events> std::fmt::Debug for File<A, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("id", &self.id())
            .field("nr_pages", &self.nr_pages())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, MachineConfig, Preset};
    use mm_x86::X86_64;

    /// A page that is read from the device is known, so that nobody else reads it, and puts
    /// what it read in the place of what was written meanwhile.
    #[test]
    fn a_page_is_in_the_cache_while_it_is_read() {
        let config = MachineConfig { bytes: 16 << 20, ..MachineConfig::default() };
        let machine = Machine::<X86_64>::new(config, Preset::Best.policy()).expect("machine");
        let file = File::new(machine.host(), 4).expect("memory");
        let device = lock(&file.store);
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| file.read(1, 0));
            let run = (0..10_000).find_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                file.cache.get(1)
            });
            let seen = run.map(|run| {
                let own: FolioRef<'_, _, Get> = machine.host().memmap().adopt_run(run);
                own.folio().flags() & (FolioFlags::LOCKED | FolioFlags::UPTODATE)
            });
            drop(device);
            assert_eq!(reader.join().expect("joins"), Ok(0));
            assert_eq!(seen, Some(FolioFlags::LOCKED));
        });
        // What cannot be read is not there.
        file.fail_io(2, true);
        assert_eq!(file.read(2, 0), Err(FileError::Io));
        assert!(file.cache.get(2).is_none());
        file.fail_io(2, false);
        assert_eq!(file.read(2, 0), Ok(0));
    }
}
