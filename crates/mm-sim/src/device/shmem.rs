//! Shared memory: files on tmpfs, memfds, shared anonymous mappings.
//!
//! A page is in the cache, on a swap device, or a hole. It goes to swap by its entry there
//! first and leaves the cache then; it comes back the other way round. So whoever does
//! not find it in the cache and then not on swap either may make it. What a device does not
//! give back is lost, until a hole is made there: who wants it gets an error.

use super::swapped::Swapped;
use super::{FileError, Object, cached_word, evict, insert, page_words};
use crate::Host;
use crate::events::Events;
use mm_arch::{Arch, Level, Pfn, SwapSlot};
use mm_fault::{OrderSet, ShmemMode, ShmemPolicy, WriteAt};
use mm_folio::{AllocError, FileId, FolioFlags, FolioRef, FolioRun, FrameBytes, Get};
use mm_map::Pages;
use mm_vma::{
    Backing, BackingError, BackingKind, Event, FoundPage, InsertError, InstallError, PageCache,
    PageRequest, Platform, SlotRun, SwapSpace, put_swap, read_ahead, read_folio,
};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    swapped: Mutex<Swapped>,
}

/// Why a page could not be brought in.
enum Missed {
    /// Somebody else changed where it is.
    Changed,
    /// It cannot be.
    Failed(BackingError),
}

impl From<InsertError> for Missed {
    fn from(e: InsertError) -> Self {
        match e {
            InsertError::Exists => Missed::Changed,
            InsertError::NoMemory => Missed::Failed(BackingError::NoMemory),
            InsertError::PastEnd => Missed::Failed(BackingError::PastEnd),
        }
    }
}

impl<A: Arch, O: Events> Shmem<A, O> {
    /// An object of `nr_pages` pages, all of them holes.
    ///
    /// # Errors
    ///
    /// If there is no memory to know it.
    pub fn new(host: &Host<A, O>, kind: ShmemKind, nr_pages: u64) -> Result<Arc<Self>, AllocError> {
        let cache = PageCache::new(host.clone(), host.objects().next_id());
        let (nr_pages, swapped) = (AtomicU64::new(nr_pages), Mutex::default());
        host.objects().share(Shmem { cache, kind, nr_pages, swapped })
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
    fn make(&self, index: u64, orders: OrderSet) -> Result<FolioRun, Missed> {
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
            let swapped = self.swapped();
            // Whoever cuts the object evicts what came before, under the same lock.
            if index >= self.nr_pages() {
                return Err(Missed::Failed(BackingError::PastEnd));
            }
            if swapped.any(first, nr) {
                if order == 0 {
                    return Err(Missed::Changed);
                }
                continue;
            }
            insert(&self.cache, first, &new, FolioFlags::SWAPBACKED)?;
            if order > 0 {
                observer.event(Event::ShmemAlloc, u64::from(order));
            }
            return Ok(new.into_run((index - first) as u32));
        }
        Err(Missed::Failed(BackingError::NoMemory))
    }
    fn swapped(&self) -> MutexGuard<'_, Swapped> {
        self.swapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Brings the page `index` back from `slot`, with its neighbours if they went out with
    /// it.
    fn swap_in(&self, index: u64, slot: SwapSlot) -> Result<FoundPage, Missed> {
        let host = self.host();
        let slots = host.swap().slots();
        if let Some(run) = slots.get(host.memmap(), slot) {
            let own: FolioRef<'_, _, Get> = host.memmap().adopt_run(run);
            let locked = own.folio().lock();
            // The device may have failed, or is not asked yet.
            let first = slots.slot_of(own.folio()).ok_or(Missed::Changed)?;
            let whole = self.take_back(index - u64::from(run.first), first, &own);
            let page = match whole {
                Err(Missed::Changed) if own.is_large() => self.copy_back(index, slot, &own, run)?,
                done => done.map(|()| own.into_run(run.first))?,
            };
            slots.free(&locked);
            return Ok(FoundPage { page, major: false });
        }
        // Not with neighbours that somebody reads already.
        let order = self.swapped().order_of(index);
        let together = |order: &u32| {
            let (page, nr) = (index & ((1 << order) - 1), 1 << order);
            let first = SwapSlot { offset: slot.offset - page, ..slot };
            slots.unheld_prefix(SlotRun::new(first, nr)) == nr
        };
        let order = (1..=order).rev().find(together).unwrap_or(0);
        let new = host.memmap().alloc(order).or_else(|_| host.memmap().alloc(0));
        let new = new.map_err(|_| Missed::Failed(BackingError::NoMemory))?;
        let nr = new.folio().nr_pages();
        let page = (index % u64::from(nr)) as u32;
        let run = SlotRun::new(SwapSlot { offset: slot.offset - u64::from(page), ..slot }, nr);
        slots.begin_read(run).map_err(|_| Missed::Changed)?;
        let first = index - u64::from(page);
        let back = match read_folio(host, new.folio(), run) {
            Ok(()) => self.take_back(first, run.first, &new),
            Err(_) => Err(self.lose(first, run)),
        };
        slots.end_read(run);
        back.map(|()| FoundPage { page: new.into_run(page), major: true })
    }
    /// Brings one page of a folio of the swap cache back, `page` in `own`, by a copy: others of the
    /// folio are no pages of the object any more. The caller has locked the folio.
    fn copy_back(
        &self,
        index: u64,
        slot: SwapSlot,
        own: &FolioRef<'_, Host<A, O>, Get>,
        page: FolioRun,
    ) -> Result<FolioRun, Missed> {
        let host = self.host();
        let new = host.memmap().alloc(0).map_err(|_| Missed::Failed(BackingError::NoMemory))?;
        host.bytes().copy(new.folio().head(), own.folio().page(page.first));
        self.take_back(index, slot, &new)?;
        Ok(new.into_run(0))
    }
    /// The pages from `first` on, in the slots of `run`, cannot be read: nobody gets them from
    /// now on, and the slots are free (rule SWAP-06). Whoever calls keeps the slots.
    fn lose(&self, first: u64, run: SlotRun) -> Missed {
        let mut swapped = self.swapped();
        let same = |(index, slot)| swapped.slot(index) == Some(slot);
        if !(first..).zip(run.iter()).all(same) {
            return Missed::Changed;
        }
        let slots = self.host().swap().slots();
        let put = |slot| slots.put(SlotRun::new(slot, 1));
        swapped.lose(first..first + u64::from(run.nr), put);
        Missed::Failed(BackingError::Io)
    }
    /// Puts a folio with the content of the slots from `from` on into the cache, if they are
    /// those of the pages from `first` on, and gives them up. Whoever calls has kept the slots
    /// from being used for other pages; they may have been before.
    fn take_back(
        &self,
        first: u64,
        from: SwapSlot,
        own: &FolioRef<'_, Host<A, O>, Get>,
    ) -> Result<(), Missed> {
        let nr = own.folio().nr_pages();
        let mut swapped = self.swapped();
        let same = |(index, slot)| swapped.slot(index) == Some(slot);
        if !(first..).zip(SlotRun::new(from, nr).iter()).all(same) {
            return Err(Missed::Changed);
        }
        // The slots had the only copy.
        insert(&self.cache, first, own, FolioFlags::SWAPBACKED | FolioFlags::DIRTY)?;
        let slots = self.host().swap().slots();
        swapped.take(first..first + u64::from(nr), |slot| slots.put(SlotRun::new(slot, 1)));
        Ok(())
    }
    /// The pages from `range` on are no pages of the object any more, wherever they are.
    fn discard(&self, range: Range<u64>, pages: Pages) {
        // What is in swap is gone then, and what is not stays in the cache, where it is found.
        self.swapped().discards += 1;
        self.discard_swapped(range.clone());
        evict(&self.cache, range.start, range.end - range.start, pages);
        self.swapped().discards -= 1;
    }
    fn discard_swapped(&self, range: Range<u64>) {
        // One at a time: the lock is not held when what the swap cache has is given up.
        let one = || self.swapped().take_last(range.clone());
        std::iter::from_fn(one).for_each(|slot| put_swap(self.host(), SlotRun::new(slot, 1)));
    }
    /// The page `index`, made if it is missing.
    fn get_or_make(
        &self,
        index: u64,
        orders: impl Fn() -> OrderSet,
    ) -> Result<FoundPage, BackingError> {
        loop {
            if let Some(page) = self.cache.get(index) {
                return Ok(FoundPage { page, major: false });
            }
            let (slot, lost) = {
                let swapped = self.swapped();
                (swapped.slot(index), swapped.is_lost(index))
            };
            if lost {
                return Err(BackingError::Io);
            }
            let found = match slot {
                Some(slot) => self.swap_in(index, slot),
                None => self.make(index, orders()).map(|page| FoundPage { page, major: false }),
            };
            match found {
                Ok(found) => return Ok(found),
                Err(Missed::Changed) => {}
                Err(Missed::Failed(why)) => return Err(why),
            }
        }
    }
}

impl<A: Arch, O: Events> Backing for Shmem<A, O> {
    fn id(&self) -> FileId {
        self.cache.id()
    }
    fn punch(&self, first: u64, nr: u64) -> bool {
        self.discard(first..first.saturating_add(nr), Pages::OfObject);
        true
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
        self.get_or_make(index, orders)
    }
    fn is_missing(&self, index: u64) -> bool {
        // In this order: a page leaves the cache for swap behind its entry there.
        self.cache.is_vacant(index, 1) && !self.swapped().any(index, 1)
    }
    fn install(&self, index: u64, fill: &mut dyn FnMut(Pfn)) -> Result<FolioRun, InstallError> {
        if index >= self.nr_pages() {
            return Err(InstallError::PastEnd);
        }
        let new = self.host().memmap().alloc(0).map_err(|_| InstallError::NoMemory)?;
        fill(new.folio().head());
        let swapped = self.swapped();
        if index >= self.nr_pages() {
            return Err(InstallError::PastEnd);
        }
        if swapped.any(index, 1) {
            return Err(InstallError::Exists);
        }
        insert(&self.cache, index, &new, FolioFlags::SWAPBACKED | FolioFlags::DIRTY)?;
        Ok(new.into_run(0))
    }
    fn read_ahead(&self, first: u64, nr: u64) {
        let (mut next, end) = (first, first.saturating_add(nr));
        let find = |next| self.swapped().first_from(next);
        while let Some((index, slot)) = find(next).filter(|(index, _)| *index < end) {
            if read_ahead(self.host(), slot).is_err() {
                break;
            }
            next = index + 1;
        }
    }
    fn move_to_swap(&self, index: u64) -> bool {
        let (host, slots) = (self.host(), self.host().swap().slots());
        let Some(run) = self.cache.get(index) else { return false };
        let own: FolioRef<'_, _, Get> = host.memmap().adopt_run(run);
        let folio = own.folio();
        let Some((_, first)) = folio.file() else { return false };
        // The caller's lock.
        let locked = ManuallyDrop::new(folio.inherited_lock());
        let Ok(slot) = slots.add(&locked) else { return false };
        let run = SlotRun::new(slot, folio.nr_pages());
        if slots.dup(run).is_err() {
            slots.free(&locked);
            return false;
        }
        let put = {
            let mut swapped = self.swapped();
            swapped.discards == 0 && swapped.put(first, folio.order(), slot).is_ok()
        };
        if !put {
            slots.put(run);
            slots.free(&locked);
            return false;
        }
        self.cache.remove(&locked)
    }
    fn split(&self, own: FolioRun) -> (FolioRun, bool) {
        self.cache.split_held(own)
    }
    fn fill_holes(&self, first: u64, nr: u64, put: &mut dyn FnMut() -> bool) -> bool {
        let swapped = self.swapped();
        first.saturating_add(nr) <= self.nr_pages() && !swapped.any(first, nr) && put()
    }
    fn make_writable(&self, _: u64) -> Result<(), BackingError> {
        Ok(())
    }
}

impl<A: Arch, O: Events> Object<A, O> for Shmem<A, O> {
    fn cache(&self) -> &PageCache<Host<A, O>> {
        &self.cache
    }
    fn each_swap_slot(&self, each: &mut dyn FnMut(SwapSlot)) {
        self.swapped().slots().for_each(each);
    }
    fn is_swapped(&self, index: u64) -> bool {
        self.swapped().slot(index).is_some()
    }
    fn swap_back(&self, range: Range<u64>) -> Result<(), FileError> {
        loop {
            let first = self.swapped().first_from(range.start);
            let Some((index, _)) = first.filter(|(index, _)| range.contains(index)) else {
                return Ok(());
            };
            match self.get_or_make(index, || OrderSet::EMPTY) {
                Ok(found) => drop(self.host().memmap().adopt_run::<Get>(found.page)),
                // Who touches it will hear of it, or it was cut off meanwhile.
                Err(BackingError::Io | BackingError::PastEnd) => {}
                Err(e) => return Err(e.into()),
            }
        }
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
            let run = self.get_or_make(index, orders)?.page;
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
        if self.swapped().is_lost(index) {
            return Err(FileError::Io);
        }
        Ok(self.peek(index, offset))
    }
    fn peek(&self, index: u64, offset: usize) -> u64 {
        let cached = cached_word(&self.cache, index, offset);
        let swapped = || self.swapped().slot(index).map(|s| self.host().swap().peek(s, offset));
        cached.or_else(swapped).unwrap_or(0)
    }
    fn truncate(&self, nr_pages: u64) {
        self.nr_pages.store(nr_pages, Relaxed);
        self.discard(nr_pages..u64::MAX, Pages::All);
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
        each: &mut dyn FnMut(u64, usize, u64),
    ) -> Result<(), FileError> {
        for i in 0..nr {
            (0..page_words::<A>()).for_each(|w| each(i, w, self.peek(first + i, w * 8)));
        }
        Ok(())
    }
    fn write_direct(
        &self,
        first: u64,
        nr: u64,
        word: &dyn Fn(u64, usize) -> u64,
    ) -> Result<(), FileError> {
        self.write(first, nr, word)
    }
}

impl<A: Arch, O: Events> Drop for Shmem<A, O> {
    fn drop(&mut self) {
        self.discard_swapped(0..u64::MAX);
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
