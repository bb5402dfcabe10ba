//! The pages of one object, by index.

use crate::{InstallError, Platform};
use alloc::vec::Vec;
use core::fmt;
use mm_arch::Pfn;
use mm_folio::{FileId, Folio, FolioFlags, FolioLockGuard, FolioRef, FolioRun, FrameBytes, Get};
use mm_sync::Mutex;

/// A folio in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slot {
    first: u64,
    nr: u64,
    head: Pfn,
}

/// Why a folio was not taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertError {
    /// A page of its range is cached already.
    Exists,
    /// No memory for its place, or too many references.
    NoMemory,
    /// It would reach past the last index that there is.
    PastEnd,
}

impl From<InsertError> for InstallError {
    fn from(e: InsertError) -> Self {
        match e {
            InsertError::Exists => InstallError::Exists,
            InsertError::NoMemory => InstallError::NoMemory,
            InsertError::PastEnd => InstallError::PastEnd,
        }
    }
}

/// The folios of one object, by page index. A kernel's [`Backing`](crate::Backing) may
/// build on it.
///
/// # Invariants
///
/// * The cache owns a reference per page of each folio in it (rule FOLIO-01), so a
///   lookup under its lock finds a live folio and needs no speculation.
/// * A folio in it names the object and its index ([`Folio::file`]). It comes
///   in before anybody else knows it and leaves locked.
///
/// # Locking
///
/// The lock is innermost: lookups may be made under page-table locks.
pub struct PageCache<P: Platform> {
    platform: P,
    id: FileId,
    slots: Mutex<P::PtLock, Vec<Slot>>,
}

impl<P: Platform> PageCache<P> {
    /// An empty cache of the object `id`.
    pub fn new(platform: P, id: FileId) -> Self {
        PageCache { platform, id, slots: Mutex::new(Vec::new()) }
    }
    /// The object.
    pub fn id(&self) -> FileId {
        self.id
    }
    /// The kernel.
    pub fn platform(&self) -> &P {
        &self.platform
    }
    /// The page at `index`, with a reference.
    pub fn get(&self, index: u64) -> Option<FolioRun> {
        let slots = self.slots.lock();
        let slot = slots.get(position(&slots, index)).filter(|s| s.first <= index)?;
        let own = self.platform.memmap().folio(slot.head).grab::<Get>(1).ok()?;
        Some(own.into_run((index - slot.first) as u32))
    }
    /// The first folio that has a page at `index` or behind it: the index of its
    /// first page, and a reference.
    pub fn next_from(&self, index: u64) -> Option<(u64, FolioRef<'_, P, Get>)> {
        let slots = self.slots.lock();
        let slot = slots.get(position(&slots, index))?;
        let own = self.platform.memmap().folio(slot.head).grab::<Get>(1).ok()?;
        Some((slot.first, own))
    }
    /// Whether no page of the `nr` from `first` on is cached.
    pub fn is_vacant(&self, first: u64, nr: u64) -> bool {
        let slots = self.slots.lock();
        is_vacant(&slots, first, nr)
    }
    /// Takes a new, filled folio in, its page 0 at `first`. The caller, who is the
    /// only one to know it, keeps its reference.
    ///
    /// # Errors
    ///
    /// If there is a page already, or no index for its last page, or no memory; the folio is as
    /// it was then.
    pub fn insert(&self, first: u64, new: &FolioRef<'_, P, Get>) -> Result<(), InsertError> {
        let folio = new.folio();
        let nr = folio.nr_pages();
        if first.checked_add(u64::from(nr - 1)).is_none() {
            return Err(InsertError::PastEnd);
        }
        let mut slots = self.slots.lock();
        if !is_vacant(&slots, first, u64::from(nr)) {
            return Err(InsertError::Exists);
        }
        slots.try_reserve(1).map_err(|_| InsertError::NoMemory)?;
        let refs = folio.grab::<Get>(nr).map_err(|_| InsertError::NoMemory)?;
        folio.set_file(self.id, first);
        let at = position(&slots, first);
        slots.insert(at, Slot { first, nr: u64::from(nr), head: folio.head() });
        refs.hand_over();
        Ok(())
    }
    /// Takes a locked folio that nothing maps out; the references of the cache go.
    /// Whether it was in.
    pub fn remove(&self, locked: &FolioLockGuard<'_, P>) -> bool {
        let folio = locked.folio();
        let Some((id, first)) = folio.file() else { return false };
        if id != self.id {
            return false;
        }
        {
            let mut slots = self.slots.lock();
            let at = position(&slots, first);
            if slots.get(at).is_none_or(|s| s.head != folio.head()) {
                return false;
            }
            slots.remove(at);
        }
        folio.clear_file();
        self.let_go(folio);
        true
    }
    /// Takes the clean, locked folio that has page `index` out, if nobody holds it but the
    /// cache and, once, the caller; whether it did (rule RECL-08).
    ///
    /// All references are taken before dirty is asked for: whoever stored to the page
    /// through a reference marked it before that reference went (race F-RACE-12).
    pub fn release(&self, index: u64) -> bool {
        let folio = {
            let mut slots = self.slots.lock();
            let at = position(&slots, index);
            let Some(slot) = slots.get(at).filter(|s| s.first <= index) else { return false };
            let folio = self.platform.memmap().folio(slot.head);
            debug_assert!(folio.has(FolioFlags::LOCKED), "{folio:?} is not the caller's");
            let busy = FolioFlags::DIRTY | FolioFlags::WRITEBACK;
            let early = mm_sync::mutant!("vma.cache.dirty_first") && folio.flags().intersects(busy);
            let nr = folio.nr_pages();
            if folio.is_mapped() || !folio.freeze(nr + 1) {
                return false;
            }
            let dirty =
                folio.flags().intersects(busy) && !mm_sync::mutant!("vma.cache.dirty_first");
            if dirty || early {
                folio.unfreeze(nr + 1);
                return false;
            }
            slots.remove(at);
            folio.clear_file();
            folio
        };
        folio.unfreeze(1);
        true
    }
    /// Splits a locked folio that nothing maps into folios of `order` (rules
    /// FOLIO-52..55). `own` and `locked` are the caller's, and go on with the part that
    /// has page `keep`; the others are unlocked. `false` if somebody else holds the folio,
    /// it is being written out, has no such page, or is not in: it is as it was then.
    pub fn split<'p>(
        &'p self,
        own: FolioRef<'p, P, Get>,
        locked: FolioLockGuard<'p, P>,
        order: u32,
        keep: u32,
    ) -> (FolioRef<'p, P, Get>, FolioLockGuard<'p, P>, bool) {
        let folio = locked.folio();
        let nr = folio.nr_pages();
        let mut slots = self.slots.lock();
        let first = folio.file().map_or(u64::MAX, |f| f.1);
        let at = position(&slots, first);
        let is_in = slots.get(at).is_some_and(|s| s.head == folio.head());
        let splits = is_in
            && order < folio.order()
            && keep < nr
            && folio.mapcount() == 0
            && !folio.has(FolioFlags::WRITEBACK)
            && slots.try_reserve((nr >> order) as usize).is_ok()
            && folio.freeze(nr + own.n());
        if !splits {
            drop(slots);
            return (own, locked, false);
        }
        // All parts are where the whole was: on the list or off it.
        let listed = folio.has(FolioFlags::LRU);
        folio.split_frozen(order);
        let (per, kept) = (1u32 << order, keep >> order << order);
        slots[at].nr = u64::from(per);
        // The head last: who finds the folio by an old slot must not get it while another
        // part could be meant.
        for page in (0..nr).step_by(per as usize).rev() {
            let part = self.platform.memmap().folio(folio.page(page));
            if listed {
                part.enlist();
            }
            if page > 0 {
                let first = first + u64::from(page);
                slots.insert(at + 1, Slot { first, nr: u64::from(per), head: part.head() });
            }
            if page != kept {
                // Nobody can see it: no lock is given up, but made free before it can be
                // asked for.
                part.clear_flag(FolioFlags::LOCKED);
            }
            // The references of the cache, and the caller's.
            part.unfreeze(per + if page == kept { own.n() } else { 0 });
        }
        drop(slots);
        if kept == 0 {
            return (own, locked, true);
        }
        // What `own` and `locked` stood for is the kept part's now.
        let n = own.n();
        own.into_run(0);
        core::mem::forget(locked);
        let part = self.platform.memmap().folio(folio.page(kept));
        let own = self.platform.memmap().adopt_run(FolioRun::new(part.head(), 0, n));
        (own, part.inherited_lock(), true)
    }
    /// As [`split`](Self::split) into single pages, for a caller that does not know the
    /// cache's types: see [`Backing::split`](crate::Backing::split).
    pub fn split_held(&self, own: FolioRun) -> (FolioRun, bool) {
        let keep = own.first;
        let own = self.platform.memmap().adopt_run::<Get>(own);
        // The caller's lock.
        let locked = own.folio().inherited_lock();
        let (own, locked, done) = self.split(own, locked, 0, keep);
        core::mem::forget(locked);
        (own.into_run(if done { 0 } else { keep }), done)
    }
    /// Puts `new` in the place of a locked folio that nothing maps, with its content and
    /// what is known of it (rule P-RACE-08). Of the old one only the caller's `own`
    /// references are left. `false` if somebody else holds it, or it is not in: it is as
    /// it was then.
    ///
    /// The content is copied while nobody can get a reference, under the lock of
    /// the cache: a lookup waits rather than find nothing.
    pub fn replace(
        &self,
        old: &FolioLockGuard<'_, P>,
        new: &FolioLockGuard<'_, P>,
        own: u32,
    ) -> bool {
        let (old, new) = (old.folio(), new.folio());
        let nr = old.nr_pages();
        debug_assert_eq!(nr, new.nr_pages());
        let mut slots = self.slots.lock();
        let Some((_, first)) = old.file() else { return false };
        let at = position(&slots, first);
        let Some(slot) = slots.get_mut(at).filter(|s| s.head == old.head()) else { return false };
        let Ok(refs) = new.grab::<Get>(nr) else { return false };
        if !old.freeze(nr + own) {
            return false;
        }
        for i in 0..nr {
            self.platform.bytes().copy(new.page(i), old.page(i));
        }
        new.set_flag(old.flags() & FolioFlags::MOVES);
        new.set_file(self.id, first);
        slot.head = new.head();
        refs.hand_over();
        old.clear_file();
        old.unfreeze(own);
        true
    }
    /// Puts `new`, whose first page belongs at `first`, in the place of all folios that lie
    /// where its pages belong: the locked ones `old`, which nothing maps. It gets their
    /// content, and zeros where there is a hole. Of the old ones one reference each is
    /// left, the caller's. `false` if somebody else holds one of them, or other ones are
    /// there: everything is as it was then.
    ///
    /// Content is copied under the lock of the cache, as in [`replace`](Self::replace).
    pub fn gather(
        &self,
        first: u64,
        old: &[FolioLockGuard<'_, P>],
        new: &FolioLockGuard<'_, P>,
    ) -> bool {
        let new = new.folio();
        let nr = u64::from(new.nr_pages());
        let mut slots = self.slots.lock();
        let at = position(&slots, first);
        let there = slots[at..].iter().take_while(|s| s.first < first + nr);
        let expected = old.iter().map(|o| o.folio());
        let same = there.clone().map(|s| s.head).eq(expected.map(|f| f.head()));
        let (from, count) = (slots.get(at).map(|s| s.first), there.count());
        if !same || from.is_none_or(|from| from < first) {
            return false;
        }
        let Ok(refs) = new.grab::<Get>(new.nr_pages()) else { return false };
        let frozen = old.iter().take_while(|o| {
            let folio = o.folio();
            folio.mapcount() == 0
                && !folio.has(FolioFlags::WRITEBACK)
                && folio.freeze(folio.nr_pages() + 1)
        });
        let frozen = frozen.count();
        if frozen < old.len() {
            for folio in old[..frozen].iter().map(|o| o.folio()) {
                folio.unfreeze(folio.nr_pages() + 1);
            }
            return false;
        }
        let bytes = self.platform.bytes();
        let mut page = 0;
        let mut flags = FolioFlags::empty();
        for (slot, folio) in slots[at..at + count].iter().zip(old.iter().map(|o| o.folio())) {
            let offset = (slot.first - first) as u32;
            bytes.zero(new.page(page), u64::from(offset - page));
            for i in 0..folio.nr_pages() {
                bytes.copy(new.page(offset + i), folio.page(i));
            }
            page = offset + folio.nr_pages();
            flags |= folio.flags() & FolioFlags::MOVES;
        }
        bytes.zero(new.page(page), nr - u64::from(page));
        new.set_flag(flags);
        new.set_file(self.id, first);
        new.enlist();
        slots[at] = Slot { first, nr, head: new.head() };
        slots.drain(at + 1..at + count);
        refs.hand_over();
        for folio in old.iter().map(|o| o.folio()) {
            folio.clear_file();
            folio.unfreeze(1);
        }
        true
    }
    /// Gives back what the cache owned of a folio that is not in it any more.
    fn let_go(&self, folio: Folio<'_, P>) {
        let run = FolioRun::new(folio.head(), 0, folio.nr_pages());
        self.platform.memmap().put_run::<Get>(run);
    }
    /// The folios: index of the first page, and head. For audits; they may be
    /// gone when this returns.
    pub fn folios(&self) -> Vec<(u64, Pfn)> {
        self.slots.lock().iter().map(|s| (s.first, s.head)).collect()
    }
}

/// Position of the first slot that ends behind `index`.
fn position(slots: &[Slot], index: u64) -> usize {
    slots.partition_point(|s| s.first + (s.nr - 1) < index)
}
fn is_vacant(slots: &[Slot], first: u64, nr: u64) -> bool {
    slots.get(position(slots, first)).is_none_or(|s| s.first >= first.saturating_add(nr))
}

impl<P: Platform> Drop for PageCache<P> {
    fn drop(&mut self) {
        let slots = core::mem::take(&mut *self.slots.lock());
        for slot in slots {
            let folio = self.platform.memmap().folio(slot.head);
            // Nothing maps the object any more; who still holds the folio (a
            // pin) sees that it belongs to nobody.
            folio.clear_file();
            self.let_go(folio);
        }
    }
}

impl<P: Platform> fmt::Debug for PageCache<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCache").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::model::{ModelConfig, ModelPlatform};
    use mm_arch::model::ModelWord;

    type M = ModelPlatform<ModelWord<8>>;

    fn cache() -> PageCache<M> {
        PageCache::new(M::new(ModelConfig::default()).expect("machine"), FileId(3))
    }
    fn add(cache: &PageCache<M>, first: u64, order: u32) -> Result<Pfn, InsertError> {
        let new = cache.platform().memmap().alloc(order).expect("memory");
        cache.insert(first, &new).map(|()| new.folio().head())
    }

    /// Rules: FOLIO-01.
    #[test]
    fn a_cache_holds_a_reference_per_page() {
        let cache = cache();
        let head = add(&cache, 8, 2).expect("vacant");
        let map = cache.platform().memmap();
        assert_eq!(map.folio(head).refcount(), 4);
        assert_eq!(map.folio(head).file(), Some((FileId(3), 8)));
        let found = cache.get(10).expect("cached");
        assert_eq!((found, map.folio(head).refcount()), (FolioRun::new(head, 2, 1), 5));
        map.put_run::<Get>(found);
        assert!(cache.get(7).is_none() && cache.get(12).is_none());
        assert_eq!(add(&cache, 11, 0), Err(InsertError::Exists));
        // The last index is one, and there is none behind it.
        assert_eq!(add(&cache, u64::MAX - 1, 2), Err(InsertError::PastEnd));
        assert!(add(&cache, u64::MAX - 1, 1).is_ok() && cache.get(u64::MAX - 2).is_none());
        assert!(cache.is_vacant(4, 4) && !cache.is_vacant(4, 5) && cache.is_vacant(12, 100));
        drop(cache.platform().clone());
        let machine = cache.platform().clone();
        drop(cache);
        assert_eq!(machine.folios_in_use(), 0);
    }

    /// Rules: FOLIO-52, FOLIO-54, FOLIO-55.
    #[test]
    fn halves_keep_their_place_and_references() {
        for keep in [0, 5] {
            let cache = cache();
            let head = add(&cache, 16, 3).expect("vacant");
            let map = cache.platform().memmap();
            map.folio(head).set_flag(FolioFlags::DIRTY | FolioFlags::UPTODATE);
            let (_, own) = cache.next_from(16).expect("cached");
            let locked = own.folio().lock();
            let stranger = own.folio().grab::<Get>(1).expect("room");
            let (own, locked, done) = cache.split(own, locked, 2, keep);
            assert!(!done, "somebody holds it");
            drop(stranger);
            let (own, locked, done) = cache.split(own, locked, 2, 8);
            assert!(!done, "it has eight pages");
            let (own, locked, done) = cache.split(own, locked, 2, keep);
            assert!(done && locked.folio().contains(head.add(keep.into())));
            assert!(cache.folios().iter().map(|f| f.0).eq([16, 20]));
            for (first, pfn) in cache.folios() {
                let half = map.folio(pfn);
                let kept = half == locked.folio();
                assert_eq!(half.refcount(), 4 + i32::from(kept));
                assert_eq!(half.file(), Some((FileId(3), first)));
                assert_eq!(half.has(FolioFlags::LOCKED), kept);
                assert!(half.has(FolioFlags::DIRTY | FolioFlags::UPTODATE));
            }
            drop(locked);
            drop(own);
        }
    }

    #[test]
    fn folios_are_found_in_order_and_leave_locked() {
        let cache = cache();
        for first in [20, 0, 4] {
            add(&cache, first, 1).expect("vacant");
        }
        assert!(cache.folios().iter().map(|f| f.0).eq([0, 4, 20]));
        let (first, own) = cache.next_from(2).expect("more");
        assert_eq!(first, 4);
        let folio = own.folio();
        let lock = folio.lock();
        assert!(cache.remove(&lock) && !cache.remove(&lock));
        drop(lock);
        assert_eq!((folio.refcount(), folio.file()), (1, None));
        drop(own);
        assert_eq!(cache.platform().folios_in_use(), 2);
        assert_eq!(cache.next_from(2).map(|n| n.0), Some(20));
    }
}
