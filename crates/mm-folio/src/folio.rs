//! A handle on a folio: identity, flags, mapping, the folio lock.

use crate::record::{Compound, Record};
use crate::{FolioFlags, FolioSource, FolioSpace, MemMap};
use core::fmt;
use core::marker::PhantomData;
use mm_arch::Pfn;
use mm_sync::atomic::Ordering::Relaxed;
use mm_sync::{Innermost, hint, mutant, ord};

/// A tree of anonymous mappings, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AnonId(pub u32);

/// A file or shmem object, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

/// The tag bits of the mapping word; the number is in its high half.
const ANON: u64 = 1;
const FILE: u64 = 2;

/// A folio that the holder knows to be stable: it has a reference, or the lock
/// of a table that maps the folio. The handle itself owns nothing.
pub struct Folio<'m, F: FolioSpace> {
    pub(crate) map: &'m MemMap<F>,
    pub(crate) head: usize,
    /// The record of the head: looked up once.
    pub(crate) record: &'m Record,
}

impl<F: FolioSpace> Clone for Folio<'_, F> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<F: FolioSpace> Copy for Folio<'_, F> {}
impl<F: FolioSpace> PartialEq for Folio<'_, F> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.map, other.map) && self.head == other.head
    }
}
impl<F: FolioSpace> Eq for Folio<'_, F> {}

impl<'m, F: FolioSpace> Folio<'m, F> {
    #[inline]
    pub(crate) fn head_record(&self) -> &'m Record {
        self.record
    }
    #[inline]
    pub(crate) fn tail(&self, i: usize) -> &'m Record {
        self.map.record(self.head + i)
    }
    #[inline]
    pub(crate) fn compound(&self) -> Compound {
        self.head_record().compound()
    }

    /// The map that the folio is in.
    #[inline]
    pub fn memmap(&self) -> &'m MemMap<F> {
        self.map
    }
    /// Its first frame.
    #[inline]
    pub fn head(&self) -> Pfn {
        self.map.pfn(self.head)
    }
    /// Binary logarithm of its number of pages.
    #[inline]
    pub fn order(&self) -> u32 {
        self.compound().order()
    }
    /// Its number of pages.
    #[inline]
    pub fn nr_pages(&self) -> u32 {
        1 << self.order()
    }
    /// Whether it has more than one page.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.order() > 0
    }
    /// Whether `pfn` is one of its pages.
    #[inline]
    pub fn contains(&self, pfn: Pfn) -> bool {
        pfn.since(self.head()) < u64::from(self.nr_pages())
    }
    /// The index of `pfn` within the folio; the caller knows that it is inside.
    #[inline]
    pub fn index_of(&self, pfn: Pfn) -> u32 {
        pfn.since(self.head()) as u32
    }
    /// The frame of page `index`.
    #[inline]
    pub fn page(&self, index: u32) -> Pfn {
        self.head().add(u64::from(index))
    }
    /// Whether this is the zero page.
    #[inline]
    pub fn is_zero_page(&self) -> bool {
        self.compound().is_zero_page()
    }
    /// Whether this is a huge zero folio.
    #[inline]
    pub fn is_huge_zero(&self) -> bool {
        self.compound().is_huge_zero()
    }

    // ---- flags

    /// All flags at once.
    #[inline]
    pub fn flags(&self) -> FolioFlags {
        FolioFlags::from_bits_truncate(self.head_record().flags.load(Relaxed))
    }
    /// Whether all of `flags` are set.
    #[inline]
    pub fn has(&self, flags: FolioFlags) -> bool {
        self.flags().contains(flags)
    }
    /// Sets flags; `true` if one was clear before. Tests first: setting what is
    /// already set costs a load, not the cache line.
    #[inline]
    pub fn set_flag(&self, flags: FolioFlags) -> bool {
        if self.has(flags) {
            return false;
        }
        let old = self.head_record().flags.fetch_or(flags.bits(), Relaxed);
        old & flags.bits() != flags.bits()
    }
    /// Clears flags; `true` if one was set before. Tests first.
    #[inline]
    pub fn clear_flag(&self, flags: FolioFlags) -> bool {
        if !self.flags().intersects(flags) {
            return false;
        }
        let old = self.head_record().flags.fetch_and(!flags.bits(), Relaxed);
        old & flags.bits() != 0
    }

    /// Puts the folio on the list of reclaim that its flags say: anybody may isolate it from
    /// now on (rule FOLIO-43).
    pub fn enlist(&self) {
        // The flag first: whoever finds the folio on a list finds it set.
        self.set_flag(FolioFlags::LRU);
        self.list(self.flags());
    }
    /// The folio belongs on another list since its flags changed, if it is on any.
    pub fn relist(&self) {
        let flags = self.flags();
        if flags.contains(FolioFlags::LRU) {
            self.list(flags);
        }
    }
    /// Two may list it at once, and the one that comes last may have looked at the flags first.
    /// So each looks again: no scan would find a folio among those that must stay. Relaxed is
    /// enough, for who listed it before changed the flags before, and the lists have a lock.
    fn list(&self, mut flags: FolioFlags) {
        let stays = FolioFlags::MLOCKED | FolioFlags::UNEVICTABLE;
        loop {
            self.map.source().list(self.head(), self.order(), flags);
            let now = self.flags();
            let same = (now ^ flags).intersection(stays).is_empty();
            if same || !now.contains(FolioFlags::LRU) || mutant!("folio.list.by_first_look") {
                return;
            }
            flags = now;
        }
    }
    /// Keeps the folio in memory: a locked mapping shows all of it (rule RMAP-06).
    pub fn mlock(&self) {
        if self.set_flag(FolioFlags::MLOCKED | FolioFlags::UNEVICTABLE) {
            self.relist();
        }
    }
    /// Ends that.
    pub fn munlock(&self) {
        if self.clear_flag(FolioFlags::MLOCKED | FolioFlags::UNEVICTABLE) {
            self.relist();
        }
    }

    /// Page `index` has failed hardware. The folio is flagged as well, which a split decides
    /// anew for each part; the frames are never handed out again (rule FOLIO-48). The
    /// caller holds a reference.
    ///
    /// # Panics
    ///
    /// If the folio has no such page.
    pub fn poison(&self, index: u32) {
        assert!(index < self.nr_pages(), "page {index} of {}", self.nr_pages());
        self.tail(index as usize).poison();
        self.set_flag(FolioFlags::HWPOISON);
    }
    /// Whether page `index` has failed hardware.
    pub fn is_poisoned(&self, index: u32) -> bool {
        index < self.nr_pages() && self.tail(index as usize).compound().is_poisoned()
    }

    /// The folio was used (rule FOLIO-42): the first time it is noted, the second time makes
    /// it active. What is not evicted has no age.
    pub fn mark_accessed(&self) {
        if self.has(FolioFlags::UNEVICTABLE) || self.set_flag(FolioFlags::REFERENCED) {
            return;
        }
        if self.set_flag(FolioFlags::ACTIVE) {
            self.clear_flag(FolioFlags::REFERENCED);
        }
    }

    /// Whether a pin may hold the folio without a bound in time (rule PIN-08).
    /// Whoever hands out the memory says so by [`FolioFlags::NO_LONGTERM`]. The zero
    /// page is nobody's to move.
    #[inline]
    pub fn is_longterm_pinnable(&self) -> bool {
        self.is_zero_page() || !self.has(FolioFlags::NO_LONGTERM)
    }

    // ---- mapping

    fn set_mapping(&self, word: u64, index: u64) {
        let rec = self.head_record();
        rec.words[1].store(index, Relaxed);
        // Number and kind in one store: a lockless reader must never take an
        // anonymous tree for a file (rule FOLIO-39). Release pairs with the
        // Acquire of `mapping`, so that the index belongs to it.
        rec.words[0].store(word, ord!("folio.mapping", Release));
    }
    fn mapping(&self, tag: u64) -> Option<(u32, u64)> {
        let rec = self.head_record();
        let word = rec.words[0].load(ord!("folio.mapping.read", Acquire));
        (word & tag != 0).then(|| ((word >> 32) as u32, rec.words[1].load(Relaxed)))
    }
    /// Makes the folio anonymous: it belongs to `anon`, page 0 at the linear
    /// index `index`. Also moves it to another tree. The folio is new, or locked.
    pub fn set_anon(&self, anon: AnonId, index: u64) {
        // Here, not when it is mapped: a folio that loses the race to be mapped
        // is anonymous when it is freed.
        if self.is_large() && !self.is_anon() {
            self.map.stats.order[self.order() as usize].nr_anon.add(1);
        }
        self.set_mapping(u64::from(anon.0) << 32 | ANON, index);
    }
    /// Puts the folio into `file`, page 0 at page `index` of it. The folio is
    /// locked.
    pub fn set_file(&self, file: FileId, index: u64) {
        self.set_mapping(u64::from(file.0) << 32 | FILE, index);
    }
    /// The folio leaves its file (truncation). The folio is locked.
    pub fn clear_file(&self) {
        debug_assert!(!self.is_anon(), "an anonymous folio stays one until it is freed");
        self.head_record().words[0].store(0, Relaxed);
    }
    /// Whether the folio is anonymous. Stays so until it is freed (rule FOLIO-10).
    #[inline]
    pub fn is_anon(&self) -> bool {
        self.head_record().words[0].load(Relaxed) & ANON != 0
    }
    /// The tree of an anonymous folio, and the linear index of its page 0.
    pub fn anon(&self) -> Option<(AnonId, u64)> {
        self.mapping(ANON).map(|(id, index)| (AnonId(id), index))
    }
    /// The file of the folio, and the index in it of page 0.
    pub fn file(&self) -> Option<(FileId, u64)> {
        self.mapping(FILE).map(|(id, index)| (FileId(id), index))
    }

    // ---- lock

    /// Takes the folio lock if it is free.
    pub fn try_lock(&self) -> Option<FolioLockGuard<'m, F>> {
        Innermost::may_lock();
        let flags = &self.head_record().flags;
        let locked = FolioFlags::LOCKED.bits();
        if flags.load(Relaxed) & locked != 0 {
            return None;
        }
        // Acquire pairs with the Release of the guard's drop.
        let old = flags.fetch_or(locked, ord!("folio.lock", Acquire));
        // Made only if the lock is ours: a guard that is dropped unlocks.
        (old & locked == 0).then(|| FolioLockGuard::held(*self))
    }
    /// Waits for the folio lock. The caller holds a reference and neither a
    /// table lock nor a quiescence guard (rule LOCK-01).
    pub fn lock(&self) -> FolioLockGuard<'m, F> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            hint::spin_loop();
        }
    }
}

impl<F: FolioSpace> fmt::Debug for Folio<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folio")
            .field("head", &self.head())
            .field("order", &self.order())
            .field("refs", &self.refcount())
            .field("mapcount", &self.mapcount())
            .field("flags", &self.flags())
            .finish()
    }
}

/// Holds the folio lock.
#[must_use = "the folio is unlocked when the guard is dropped"]
pub struct FolioLockGuard<'m, F: FolioSpace> {
    folio: Folio<'m, F>,
    _not_send: PhantomData<*const ()>,
}

impl<'m, F: FolioSpace> FolioLockGuard<'m, F> {
    /// The guard of a lock that is held and has none.
    pub(crate) fn held(folio: Folio<'m, F>) -> Self {
        FolioLockGuard { folio, _not_send: PhantomData }
    }
    /// The locked folio.
    #[inline]
    pub fn folio(&self) -> Folio<'m, F> {
        self.folio
    }
}

impl<F: FolioSpace> Drop for FolioLockGuard<'_, F> {
    #[inline]
    fn drop(&mut self) {
        let flags = &self.folio.head_record().flags;
        flags.fetch_and(!FolioFlags::LOCKED.bits(), ord!("folio.unlock", Release));
    }
}

impl<F: FolioSpace> fmt::Debug for FolioLockGuard<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FolioLockGuard({:?})", self.folio)
    }
}
