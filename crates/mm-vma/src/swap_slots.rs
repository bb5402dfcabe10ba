//! The slots of swap devices: who counts on them, and the folios that have their
//! content.

use crate::SlotRun;
use alloc::vec::Vec;
use core::fmt;
use mm_arch::{Pfn, SwapSlot};
use mm_folio::{Folio, FolioFlags, FolioLockGuard, FolioRun, FolioSpace, Get, MAX_ORDERS, MemMap};
use mm_sync::{Mutex, RawLock};

/// Slots of a cluster, the unit that folios of one size share. No folio gets more.
pub const CLUSTER_SLOTS: u32 = 512;

/// Why there is no slot, or not one more entry for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapError {
    /// No device has so many slots in a row.
    Full,
    /// More slots in a row than there can be: the folio is to be split.
    TooLarge,
    /// As many entries as can be counted.
    TooManyEntries,
    /// The slot is cached or being read already.
    Busy,
    /// There is no memory.
    NoMemory,
    /// There is no such device, or one too many.
    NoDevice,
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SwapError::Full => "no free swap slots in a row",
            SwapError::TooLarge => "the folio is larger than a cluster of slots",
            SwapError::TooManyEntries => "too many entries for one swap slot",
            SwapError::Busy => "the swap slot is in use",
            SwapError::NoMemory => "no memory for swap slots",
            SwapError::NoDevice => "no such swap device",
        })
    }
}
impl core::error::Error for SwapError {}

/// What has the content of a slot besides the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// Nothing.
    None,
    /// This page of a folio of the swap cache.
    Cached(Pfn),
    /// Somebody reads it into a page of their own, who wants it alone.
    Reading,
    /// The slot cannot be used.
    Reserved,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    holder: Holder,
    count: u16,
    /// The page was full of zeros when it was written.
    zero: bool,
    /// Of the first slot of a cached folio: the next one in its bucket.
    next: u32,
}

impl Slot {
    const FREE: Slot = Slot { holder: Holder::None, count: 0, zero: false, next: NO_SLOT };
    fn is_free(&self) -> bool {
        self.count == 0 && self.holder == Holder::None
    }
    fn state(&self, slot: SwapSlot) -> Option<SlotState> {
        let cached = match self.holder {
            Holder::Reserved => return None,
            Holder::Cached(page) => Some(page),
            Holder::None | Holder::Reading => None,
        };
        let (count, reading) = (self.count.into(), self.holder == Holder::Reading);
        (!self.is_free()).then_some(SlotState { slot, count, cached, reading, zero: self.zero })
    }
}

/// The end of a bucket. Slot 0 is never used (rule SWP-04).
const NO_SLOT: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Cluster {
    /// The size of the folios in it; `None` while it is empty.
    order: Option<u8>,
    used: u32,
}

/// The slots of one device.
struct Area {
    slots: Vec<Slot>,
    clusters: Vec<Cluster>,
    /// For each order the slot to look at first.
    next: [Option<u32>; MAX_ORDERS],
    /// First slots of cached folios, by a hash of the folio's frame.
    buckets: Vec<u32>,
    free: u32,
    open: bool,
}

impl Area {
    fn new(nr: u32) -> Result<Self, SwapError> {
        fn filled<T: Clone>(value: T, nr: usize) -> Result<Vec<T>, SwapError> {
            let mut all = Vec::new();
            all.try_reserve_exact(nr).map_err(|_| SwapError::NoMemory)?;
            all.resize(nr, value);
            Ok(all)
        }
        // The first one is no slot.
        let end = nr.checked_add(1).ok_or(SwapError::NoMemory)? as usize;
        let mut slots = filled(Slot::FREE, end)?;
        slots[0].holder = Holder::Reserved;
        Ok(Area {
            slots,
            clusters: filled(
                Cluster { order: None, used: 0 },
                end.div_ceil(CLUSTER_SLOTS as usize),
            )?,
            next: [None; MAX_ORDERS],
            buckets: filled(NO_SLOT, end.next_power_of_two())?,
            free: nr,
            open: true,
        })
    }
    /// What is left of a device that is gone: no slots, and no memory for any.
    const GONE: Area = Area {
        slots: Vec::new(),
        clusters: Vec::new(),
        next: [None; MAX_ORDERS],
        buckets: Vec::new(),
        free: 0,
        open: false,
    };
    fn is_gone(&self) -> bool {
        self.slots.is_empty()
    }
    fn end(&self) -> u32 {
        self.slots.len() as u32
    }
    /// How many slots there are; the first one is none.
    fn nr(&self) -> u32 {
        self.end().saturating_sub(1)
    }
    fn slot(&mut self, offset: u64) -> Option<&mut Slot> {
        usize::try_from(offset).ok().and_then(|at| self.slots.get_mut(at))
    }
    fn run(&mut self, run: SlotRun) -> &mut [Slot] {
        let found = self.known_run(run);
        debug_assert!(found.is_some(), "{run:?} is not of the device");
        found.unwrap_or_default()
    }
    /// The slots of `run`, if there are such: somebody may have read of them before the device
    /// was taken away.
    fn known_run(&mut self, run: SlotRun) -> Option<&mut [Slot]> {
        let first = usize::try_from(run.first.offset).ok()?;
        self.slots.get_mut(first..first.checked_add(run.nr as usize)?)
    }
    /// The slots of `run`, if entries count on all, and nobody holds one.
    fn readable_run(&mut self, run: SlotRun) -> Option<&mut [Slot]> {
        let readable = |s: &Slot| s.holder == Holder::None && s.count > 0;
        self.known_run(run).filter(|slots| slots.iter().all(readable))
    }

    // ---- allocation

    /// `1 << order` free slots in a row, aligned (rule SWAP-01).
    fn find(&mut self, order: u32) -> Option<u32> {
        let nr = 1u32 << order;
        if !self.open || self.free < nr {
            return None;
        }
        if let Some(at) = self.next[order as usize].and_then(|from| self.scan(from, nr)) {
            return Some(at);
        }
        // A cluster for this size alone; then what is left in those of this size;
        // and a single page takes what others left.
        let fits: [&dyn Fn(&Cluster) -> bool; 3] =
            [&|c| c.order.is_none(), &|c| c.order == Some(order as u8), &|_| order == 0];
        fits.iter().find_map(|fits| {
            let all = self.clusters.iter().enumerate();
            all.filter(|(_, c)| fits(c) && c.used < CLUSTER_SLOTS)
                .find_map(|(i, _)| self.scan(i as u32 * CLUSTER_SLOTS, nr))
        })
    }
    /// Free slots in the cluster of `from`, from there on.
    fn scan(&self, from: u32, nr: u32) -> Option<u32> {
        let end = ((from / CLUSTER_SLOTS + 1) * CLUSTER_SLOTS).min(self.end());
        (from.next_multiple_of(nr)..end)
            .step_by(nr as usize)
            .take_while(|at| at + nr <= end)
            .find(|at| self.slots[*at as usize..(at + nr) as usize].iter().all(Slot::is_free))
    }
    fn taken(&mut self, at: u32, order: u32) {
        let nr = 1 << order;
        let cluster = &mut self.clusters[(at / CLUSTER_SLOTS) as usize];
        cluster.order.get_or_insert(order as u8);
        cluster.used += nr;
        self.free -= nr;
        let next = at + nr;
        self.next[order as usize] = (!next.is_multiple_of(CLUSTER_SLOTS)).then_some(next);
    }
    fn freed(&mut self, at: u32) {
        self.slots[at as usize].zero = false;
        let cluster = &mut self.clusters[(at / CLUSTER_SLOTS) as usize];
        cluster.used -= 1;
        if cluster.used == 0 {
            cluster.order = None;
            for next in &mut self.next {
                next.take_if(|next| *next / CLUSTER_SLOTS == at / CLUSTER_SLOTS);
            }
        }
        self.free += 1;
    }

    // ---- the cache

    fn bucket(&self, head: Pfn) -> usize {
        // Frames of folios differ in their low bits last: mix them down.
        let hash = head.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize & (self.buckets.len() - 1)
    }
    fn cached_at(&self, head: Pfn) -> Option<u32> {
        if self.is_gone() {
            return None;
        }
        let mut at = self.buckets[self.bucket(head)];
        while at != NO_SLOT {
            if self.slots[at as usize].holder == Holder::Cached(head) {
                return Some(at);
            }
            at = self.slots[at as usize].next;
        }
        None
    }
    fn link(&mut self, at: u32, head: Pfn) {
        let bucket = self.bucket(head);
        self.slots[at as usize].next = core::mem::replace(&mut self.buckets[bucket], at);
    }
    fn unlink(&mut self, at: u32, head: Pfn) {
        let bucket = self.bucket(head);
        let behind = core::mem::replace(&mut self.slots[at as usize].next, NO_SLOT);
        let (mut before, mut next) = (NO_SLOT, self.buckets[bucket]);
        while next != at && next != NO_SLOT {
            (before, next) = (next, self.slots[next as usize].next);
        }
        debug_assert_eq!(next, at, "the folio at {head} is not in its bucket");
        match before {
            NO_SLOT => self.buckets[bucket] = behind,
            _ => self.slots[before as usize].next = behind,
        }
    }
    fn cache(&mut self, at: u32, head: Pfn, nr: u32) {
        for i in 0..nr {
            self.slots[(at + i) as usize].holder = Holder::Cached(head.add(i.into()));
        }
        self.link(at, head);
    }
    /// Nothing has the content of these slots but the device; those that no entry
    /// counts on are free.
    fn release(&mut self, at: u32, nr: u32) {
        for at in at..at + nr {
            self.slots[at as usize].holder = Holder::None;
            if self.slots[at as usize].count == 0 {
                self.freed(at);
            }
        }
    }
    fn uncache(&mut self, at: u32, head: Pfn, nr: u32) {
        self.unlink(at, head);
        self.release(at, nr);
    }
}

/// What is known of zeros in a run of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeros {
    /// All pages were full of zeros.
    pub full: bool,
    /// Some were.
    pub any: bool,
}

impl Zeros {
    /// Whether all were, or none.
    pub const fn is_uniform(self) -> bool {
        self.full || !self.any
    }
}

/// A slot, for those who look at swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotState {
    /// The slot.
    pub slot: SwapSlot,
    /// Entries that count on it.
    pub count: u32,
    /// The page of the swap cache that has its content.
    pub cached: Option<Pfn>,
    /// Somebody reads it into a page of their own.
    pub reading: bool,
    /// Its page was full of zeros when it was written.
    pub zero: bool,
}

/// The slots of all swap devices, and the swap cache.
///
/// # Invariants
///
/// * A slot is free exactly if nothing counts on it and nothing holds it.
/// * The cache owns a reference per page of each folio in it (rule FOLIO-01). The
///   slots of a folio are consecutive, and the first is aligned to its size (rule
///   FOLIO-46).
/// * [`FolioFlags::SWAPCACHE`] says that a folio is in the cache; it changes under the
///   folio lock.
pub struct SwapSlots<L: RawLock>(Mutex<L, Vec<Area>>);

impl<L: RawLock> SwapSlots<L> {
    /// The most entries that can count on a slot (rule SWAP-02).
    pub const MAX_COUNT: u32 = u16::MAX as u32;

    /// No device.
    pub fn new() -> Self {
        SwapSlots(Mutex::new(Vec::new()))
    }
    fn with<R>(&self, slot: SwapSlot, f: impl FnOnce(&mut Area) -> R) -> Option<R> {
        self.0.lock().get_mut(usize::from(slot.device)).map(f)
    }

    /// A new device with room for `nr` pages; its number.
    ///
    /// # Errors
    ///
    /// If there is no memory, or no number left.
    pub fn open(&self, nr: u32) -> Result<u8, SwapError> {
        let area = Area::new(nr)?;
        let mut areas = self.0.lock();
        if let Some(gone) = areas.iter().position(Area::is_gone) {
            areas[gone] = area;
            return Ok(gone as u8);
        }
        if areas.len() >= usize::from(mm_arch::NonPresent::MAX_SWAPFILES) {
            return Err(SwapError::NoDevice);
        }
        areas.try_reserve(1).map_err(|_| SwapError::NoMemory)?;
        areas.push(area);
        Ok(areas.len() as u8 - 1)
    }
    /// From now on nothing is put on any device; what is there can be read.
    pub fn close(&self) {
        for area in self.0.lock().iter_mut() {
            area.open = false;
        }
    }
    /// Pages go to the devices again that were closed and are not gone.
    pub fn reopen(&self) {
        for area in self.0.lock().iter_mut().filter(|a| !a.is_gone()) {
            area.open = true;
        }
    }
    /// Closed devices of which no slot is in use are gone, and their numbers may be given
    /// again. Whether none is left.
    pub fn remove_closed(&self) -> bool {
        let mut areas = self.0.lock();
        for area in areas.iter_mut().filter(|a| !a.open && a.free == a.nr()) {
            *area = Area::GONE;
        }
        areas.iter().all(Area::is_gone)
    }
    /// Slots that can be taken.
    pub fn nr_free(&self) -> u64 {
        self.0.lock().iter().filter(|a| a.open).map(|a| u64::from(a.free)).sum()
    }
    /// Whether more than half of all slots are in use: what is cached is better freed
    /// (rule SWPI-11).
    pub fn is_nearly_full(&self) -> bool {
        let areas = self.0.lock();
        let all: u64 = areas.iter().map(|a| u64::from(a.nr())).sum();
        let free: u64 = areas.iter().map(|a| u64::from(a.free)).sum();
        free * 2 < all
    }
    /// All slots in use, in order. Each is looked up when its turn comes: others may change
    /// meanwhile.
    pub fn in_use(&self) -> impl Iterator<Item = SlotState> + '_ {
        let mut next = Some(SwapSlot { device: 0, offset: 0 });
        core::iter::from_fn(move || {
            let found = self.next_in_use(next?);
            next = found.map(|s| SwapSlot { offset: s.slot.offset + 1, ..s.slot });
            found
        })
    }
    /// The first slot in use from `from` on.
    fn next_in_use(&self, from: SwapSlot) -> Option<SlotState> {
        let areas = self.0.lock();
        let behind = areas.iter().enumerate().skip(from.device.into());
        behind.into_iter().find_map(|(device, area)| {
            let device = device as u8;
            let mut offset = if device == from.device { from.offset } else { 0 };
            while let Some(slot) = area.slots.get(offset as usize) {
                let cluster = offset / u64::from(CLUSTER_SLOTS);
                if area.clusters[cluster as usize].used == 0 {
                    offset = (cluster + 1) * u64::from(CLUSTER_SLOTS);
                    continue;
                }
                let found = slot.state(SwapSlot { device, offset });
                if found.is_some() {
                    return found;
                }
                offset += 1;
            }
            None
        })
    }
    /// A slot that is in use.
    pub fn state(&self, slot: SwapSlot) -> Option<SlotState> {
        self.with(slot, |area| area.slot(slot.offset)?.state(slot)).flatten()
    }

    // ---- counts

    /// Entries that count on a slot.
    pub fn count(&self, slot: SwapSlot) -> u32 {
        self.with(slot, |a| a.slot(slot.offset).map_or(0, |s| s.count.into())).unwrap_or(0)
    }
    /// Whether no more entries can count on a slot.
    pub fn is_full(&self, slot: SwapSlot) -> bool {
        self.count(slot) == Self::MAX_COUNT
    }
    /// One more entry counts on each slot of `run` (rule SWAP-02).
    ///
    /// # Errors
    ///
    /// If one of them has as many as can be counted; nothing is changed then.
    pub fn dup(&self, run: SlotRun) -> Result<(), SwapError> {
        self.with(run.first, |area| {
            let slots = area.run(run);
            if slots.iter().any(|s| s.count == u16::MAX) {
                return Err(SwapError::TooManyEntries);
            }
            for slot in slots {
                debug_assert!(!slot.is_free(), "an entry for a free slot");
                slot.count += 1;
            }
            Ok(())
        })
        .unwrap_or(Err(SwapError::NoDevice))
    }
    /// One entry less counts on each slot of `run`. What nobody counts on and nothing
    /// holds is free; see [`put_swap`](crate::put_swap) for what the cache holds. Nothing happens
    /// if there are no such slots.
    pub fn put(&self, run: SlotRun) {
        self.with(run.first, |area| {
            if area.known_run(run).is_none() {
                return;
            }
            let first = run.first.offset as u32;
            for at in first..first + run.nr {
                let slot = &mut area.slots[at as usize];
                debug_assert!(slot.count > 0, "nothing counts on slot {at}");
                // Not free twice.
                let Some(count) = slot.count.checked_sub(1) else { continue };
                slot.count = count;
                if slot.is_free() {
                    area.freed(at);
                }
            }
        });
    }

    // ---- the cache

    /// Slots for a locked, valid folio, in a row; it is in the cache then, and dirty:
    /// its content is not in the slots yet (rules SWAP-01, RECL-04).
    ///
    /// # Errors
    ///
    /// If there is no room. The folio is as it was.
    pub fn add<F: FolioSpace>(
        &self,
        locked: &FolioLockGuard<'_, F>,
    ) -> Result<SwapSlot, SwapError> {
        let folio = locked.folio();
        debug_assert!(folio.has(FolioFlags::UPTODATE) && !folio.has(FolioFlags::SWAPCACHE));
        let (order, nr) = (folio.order(), folio.nr_pages());
        if nr > CLUSTER_SLOTS {
            return Err(SwapError::TooLarge);
        }
        let refs = folio.grab::<Get>(nr).map_err(|_| SwapError::TooManyEntries)?;
        let mut areas = self.0.lock();
        let found = areas.iter_mut().enumerate().find_map(|(i, a)| Some((i, a.find(order)?, a)));
        let Some((device, at, area)) = found else {
            drop(areas);
            return Err(SwapError::Full);
        };
        area.taken(at, order);
        area.cache(at, folio.head(), nr);
        refs.hand_over();
        folio.set_flag(FolioFlags::SWAPCACHE | FolioFlags::DIRTY);
        Ok(SwapSlot { device: device as u8, offset: at.into() })
    }
    /// Puts a new, locked folio into the cache, to be filled with what the slots from
    /// `first` on have. Entries count on them.
    ///
    /// # Errors
    ///
    /// If a slot is cached or being read, or nothing counts on it any more; the folio is
    /// as it was.
    pub fn insert<F: FolioSpace>(
        &self,
        first: SwapSlot,
        locked: &FolioLockGuard<'_, F>,
    ) -> Result<(), SwapError> {
        let folio = locked.folio();
        let nr = folio.nr_pages();
        let refs = folio.grab::<Get>(nr).map_err(|_| SwapError::TooManyEntries)?;
        let inserted = self.with(first, |area| {
            if area.readable_run(SlotRun::new(first, nr)).is_none() {
                return false;
            }
            area.cache(first.offset as u32, folio.head(), nr);
            true
        });
        if inserted != Some(true) {
            return Err(SwapError::Busy);
        }
        refs.hand_over();
        folio.set_flag(FolioFlags::SWAPCACHE);
        Ok(())
    }
    /// The cached page of a slot, with a reference.
    pub fn get<F: FolioSpace>(&self, map: &MemMap<F>, slot: SwapSlot) -> Option<FolioRun> {
        self.with(slot, |area| {
            let Holder::Cached(page) = area.slot(slot.offset)?.holder else { return None };
            let folio = map.folio(page);
            Some(folio.grab::<Get>(1).ok()?.into_run(folio.index_of(page)))
        })
        .flatten()
    }
    /// The slot of page 0 of a folio, if it is in the cache; page i is i slots further
    /// (rule FOLIO-46). Stable while the folio is locked.
    pub fn slot_of<F: FolioSpace>(&self, folio: Folio<'_, F>) -> Option<SwapSlot> {
        if !folio.has(FolioFlags::SWAPCACHE) {
            return None;
        }
        let areas = self.0.lock();
        areas.iter().enumerate().find_map(|(device, area)| {
            let at = area.cached_at(folio.head())?;
            Some(SwapSlot { device: device as u8, offset: at.into() })
        })
    }
    /// Takes a locked folio out of the cache, if no entry counts on any of its slots and
    /// it is not being written (rule SWAP-03). Whether it left: then its slots are free,
    /// it is dirty, and the references of the cache are gone.
    pub fn free<F: FolioSpace>(&self, locked: &FolioLockGuard<'_, F>) -> bool {
        let folio = locked.folio();
        if folio.has(FolioFlags::WRITEBACK) {
            return false;
        }
        let Some(slot) = self.slot_of(folio) else { return false };
        let (head, nr) = (folio.head(), folio.nr_pages());
        let left = self.with(slot, |area| {
            let unused = area.run(SlotRun::new(slot, nr)).iter().all(|s| s.count == 0);
            if unused {
                area.uncache(slot.offset as u32, head, nr);
            }
            unused
        });
        if left != Some(true) {
            return false;
        }
        // The slots had its only clean copy.
        folio.set_flag(FolioFlags::DIRTY);
        folio.clear_flag(FolioFlags::SWAPCACHE);
        folio.memmap().put_run::<Get>(FolioRun::new(head, 0, nr));
        true
    }
    /// Takes a locked, clean folio that nothing maps out of the cache, so that the
    /// device alone has its content: if the only references are the cache's and one of
    /// the caller's (rule RECL-08). Whether it left; the caller's reference stays.
    pub fn evict<F: FolioSpace>(&self, locked: &FolioLockGuard<'_, F>) -> bool {
        let folio = locked.folio();
        let Some(slot) = self.slot_of(folio) else { return false };
        let nr = folio.nr_pages();
        self.with(slot, |area| {
            // References first, dirt second: who got a reference may make it dirty
            // (race F-RACE-12).
            if !folio.freeze(nr + 1) {
                return false;
            }
            if folio.has(FolioFlags::DIRTY) {
                folio.unfreeze(nr + 1);
                return false;
            }
            area.uncache(slot.offset as u32, folio.head(), nr);
            folio.clear_flag(FolioFlags::SWAPCACHE);
            folio.unfreeze(1);
            true
        }) == Some(true)
    }
    /// Puts `new` in the place of a locked folio that nothing maps, with the same slots
    /// (rules MIGR-01, P-RACE-08). Of the old one only the caller's `own` references are
    /// left. `false` if somebody else holds it, or it is not in the cache: it is as it was
    /// then.
    ///
    /// `copy` gives `new` the content and what is known of the old one. It runs while nobody
    /// can get a reference, under the lock of the slots: a lookup waits rather than find
    /// nothing.
    pub fn replace<F: FolioSpace>(
        &self,
        old: &FolioLockGuard<'_, F>,
        new: &FolioLockGuard<'_, F>,
        own: u32,
        copy: impl FnOnce(),
    ) -> bool {
        let (old, new) = (old.folio(), new.folio());
        let nr = old.nr_pages();
        debug_assert_eq!(nr, new.nr_pages());
        let Some(slot) = self.slot_of(old) else { return false };
        let Ok(refs) = new.grab::<Get>(nr) else { return false };
        let replaced = self.with(slot, |area| {
            if old.is_mapped() || !old.freeze(nr + own) {
                return false;
            }
            copy();
            let at = slot.offset as u32;
            area.unlink(at, old.head());
            area.cache(at, new.head(), nr);
            new.set_flag(FolioFlags::SWAPCACHE);
            old.clear_flag(FolioFlags::SWAPCACHE);
            old.unfreeze(own);
            true
        });
        if replaced == Some(true) {
            refs.hand_over();
        }
        replaced == Some(true)
    }
    /// The pages of a frozen folio, whose first slot is `first`, are folios of their own from
    /// now on: each is found by its own slot (rule FOLIO-54).
    pub fn split_frozen<F: FolioSpace>(&self, first: SwapSlot, frozen: Folio<'_, F>, nr: u32) {
        debug_assert_eq!(frozen.refcount(), 0);
        let head = frozen.head();
        self.with(first, |area| {
            let at = first.offset as u32;
            (1..nr).for_each(|i| area.link(at + i, head.add(i.into())));
        });
    }

    // ---- reading past the cache

    /// Marks the slots of `run` as being read into pages that do not enter the cache.
    /// Until [`end_read`](Self::end_read) nobody else reads or caches them.
    ///
    /// # Errors
    ///
    /// If one is cached or being read, or nothing counts on it any more.
    pub fn begin_read(&self, run: SlotRun) -> Result<(), SwapError> {
        self.with(run.first, |area| {
            let slots = area.readable_run(run).ok_or(SwapError::Busy)?;
            slots.iter_mut().for_each(|s| s.holder = Holder::Reading);
            Ok(())
        })
        .unwrap_or(Err(SwapError::NoDevice))
    }
    /// Ends what [`begin_read`](Self::begin_read) began with the same run.
    ///
    /// # Panics
    ///
    /// In debug builds, if one of the slots is not being read. Else nothing is done then.
    pub fn end_read(&self, run: SlotRun) {
        self.with(run.first, |area| {
            let slots = area.known_run(run).unwrap_or_default();
            let read = !slots.is_empty() && slots.iter().all(|s| s.holder == Holder::Reading);
            debug_assert!(read, "{run:?} is not being read");
            if read {
                area.release(run.first.offset as u32, run.nr);
            }
        });
    }
    /// How many slots from the first of `run` on nothing holds.
    pub fn unheld_prefix(&self, run: SlotRun) -> u32 {
        self.with(run.first, |area| {
            let slots = area.known_run(run).unwrap_or_default();
            slots.iter().take_while(|s| s.holder == Holder::None).count() as u32
        })
        .unwrap_or(0)
    }

    // ---- pages full of zeros

    /// Whether the pages of `run` were full of zeros when they were written.
    pub fn zeros(&self, run: SlotRun) -> Zeros {
        self.with(run.first, |area| {
            let slots = area.known_run(run)?;
            Some(Zeros { full: slots.iter().all(|s| s.zero), any: slots.iter().any(|s| s.zero) })
        })
        .flatten()
        .unwrap_or(Zeros { full: false, any: false })
    }
    /// Notes that the pages of `run` are full of zeros, or are not.
    pub fn set_zero(&self, run: SlotRun, zero: bool) {
        self.with(run.first, |area| area.run(run).iter_mut().for_each(|s| s.zero = zero));
    }
}

impl<L: RawLock> Default for SwapSlots<L> {
    fn default() -> Self {
        SwapSlots::new()
    }
}
impl<L: RawLock> fmt::Debug for SwapSlots<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwapSlots").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::model::{ModelConfig, ModelPlatform};
    use crate::{Platform, SwapSpace};
    use mm_arch::model::ModelWord;
    use mm_folio::FolioRef;

    type M = ModelPlatform<ModelWord<8>>;

    fn machine(swap_slots: u32) -> M {
        M::new(ModelConfig { swap_slots, ..ModelConfig::default() }).expect("machine")
    }
    fn folio(m: &M, order: u32) -> FolioRef<'_, M, Get> {
        let new = m.memmap().alloc(order).expect("memory");
        new.folio().set_flag(FolioFlags::UPTODATE);
        new
    }
    fn added(m: &M, own: &FolioRef<'_, M, Get>) -> SwapSlot {
        m.slots().add(&own.folio().lock()).expect("room")
    }
    fn run(first: SwapSlot, nr: u32) -> SlotRun {
        SlotRun::new(first, nr)
    }

    /// Rules: SWAP-01, SWP-04, FOLIO-01, FOLIO-46.
    #[test]
    fn a_folio_gets_aligned_slots_in_a_row_and_is_dirty_then() {
        let m = machine(2 * CLUSTER_SLOTS);
        let (a, b, c) = (folio(&m, 0), folio(&m, 2), folio(&m, 0));
        let (at_a, at_b, at_c) = (added(&m, &a), added(&m, &b), added(&m, &c));
        // Small ones behind each other, large ones in a cluster of their own.
        assert_eq!((at_a.offset, at_c.offset), (1, 2));
        assert_eq!(at_b.offset % 4, 0);
        assert!(at_b.offset >= u64::from(CLUSTER_SLOTS));
        let f = b.folio();
        assert_eq!((f.refcount(), m.slots().slot_of(f)), (5, Some(at_b)));
        assert!(f.has(FolioFlags::SWAPCACHE | FolioFlags::DIRTY));
        let found = m.slots().get(m.memmap(), run(at_b, 4).at(3)).expect("cached");
        assert_eq!((found, f.refcount()), (FolioRun::new(f.head(), 3, 1), 6));
        m.memmap().put_run::<Get>(found);
        for own in [&a, &b, &c] {
            assert!(m.slots().free(&own.folio().lock()));
        }
        assert_eq!(m.slots().nr_free(), u64::from(2 * CLUSTER_SLOTS));
    }

    /// Rules: SWAP-01, RECL-04.
    #[test]
    fn without_room_nothing_changes() {
        let m = machine(6);
        let (large, small) = (folio(&m, 2), folio(&m, 0));
        let too_large = folio(&m, 10);
        let slots = m.slots();
        assert_eq!(slots.add(&too_large.folio().lock()), Err(SwapError::TooLarge));
        // Slots 1 to 6: four in a row that are aligned would be 4 to 7.
        assert_eq!(slots.add(&large.folio().lock()), Err(SwapError::Full));
        assert_eq!((large.folio().refcount(), slots.nr_free()), (1, 6));
        assert!(!large.folio().flags().intersects(FolioFlags::SWAPCACHE | FolioFlags::DIRTY));
        slots.close();
        assert_eq!(slots.add(&small.folio().lock()), Err(SwapError::Full));
        assert_eq!(machine(0).slots().nr_free(), 0);
    }

    /// A device with a page on it stays; its number is given again when it is gone.
    ///
    /// Rules: SWAP-01.
    #[test]
    fn a_closed_device_goes_when_nobody_needs_it() {
        let m = machine(8);
        let (own, slots) = (folio(&m, 0), m.slots());
        let at = added(&m, &own);
        slots.close();
        assert_eq!((slots.remove_closed(), slots.slot_of(own.folio())), (false, Some(at)));
        slots.reopen();
        assert_eq!(slots.nr_free(), 7);
        slots.close();
        assert!(slots.free(&own.folio().lock()));
        assert!(slots.remove_closed());
        slots.reopen();
        // Who read of a slot before finds nothing there.
        let (stale, new) = (run(at, 1), folio(&m, 0));
        assert_eq!(slots.begin_read(stale), Err(SwapError::Busy));
        assert_eq!(slots.insert(at, &new.folio().lock()), Err(SwapError::Busy));
        assert_eq!((slots.unheld_prefix(stale), slots.count(at), slots.state(at)), (0, 0, None));
        assert!(!slots.zeros(stale).any && slots.get(m.memmap(), at).is_none());
        assert_eq!((slots.nr_free(), slots.add(&own.folio().lock())), (0, Err(SwapError::Full)));
        assert_eq!((slots.open(16), slots.nr_free()), (Ok(at.device), 16));
        assert!(added(&m, &own).offset <= 16 && slots.free(&own.folio().lock()));
    }

    /// Rules: SWAP-02.
    #[test]
    fn counts_go_up_and_down_slot_by_slot() {
        let m = machine(64);
        let own = folio(&m, 2);
        let at = added(&m, &own);
        let slots = m.slots();
        slots.dup(run(run(at, 4).at(1), 2)).expect("few");
        slots.dup(run(run(at, 4).at(2), 1)).expect("few");
        assert!(run(at, 4).iter().map(|s| slots.count(s)).eq([0, 1, 2, 0]));
        slots.put(run(run(at, 4).at(1), 2));
        assert!(run(at, 4).iter().map(|s| slots.count(s)).eq([0, 0, 1, 0]));
        // One more than can be counted: all of the run stay as they are.
        for _ in 1..SwapSlots::<mm_sync::DefaultLock>::MAX_COUNT {
            slots.dup(run(run(at, 4).at(2), 1)).expect("room");
        }
        assert_eq!(slots.dup(run(at, 4)), Err(SwapError::TooManyEntries));
        assert!(run(at, 4).iter().map(|s| slots.count(s)).eq([0, 0, u16::MAX.into(), 0]));
        for _ in 0..SwapSlots::<mm_sync::DefaultLock>::MAX_COUNT {
            slots.put(run(run(at, 4).at(2), 1));
        }
        assert!(slots.free(&own.folio().lock()));
    }

    /// Rules: SWAP-02.
    #[test]
    fn an_offset_that_no_device_has_is_no_slot_of_it() {
        let m = machine(8);
        let own = folio(&m, 0);
        let at = added(&m, &own);
        m.slots().dup(run(at, 1)).expect("counted");
        // Its low half is that of a slot; and a run that goes on behind the last one.
        m.slots().put(run(SwapSlot { offset: at.offset | 1 << 32, ..at }, 1));
        m.slots().put(run(at, u32::MAX));
        assert_eq!(m.slots().count(at), 1);
        m.slots().put(run(at, 1));
        assert!(m.slots().free(&own.folio().lock()));
        assert_eq!(m.slots().nr_free(), 8);
    }

    /// Rules: SWAP-03, FOLIO-45.
    #[test]
    fn one_count_keeps_the_whole_folio_cached() {
        let m = machine(64);
        let own = folio(&m, 2);
        let at = added(&m, &own);
        let (slots, f) = (m.slots(), own.folio());
        slots.dup(run(run(at, 4).at(3), 1)).expect("few");
        f.clear_flag(FolioFlags::DIRTY);
        assert!(!slots.free(&f.lock()) && f.refcount() == 5);
        slots.put(run(run(at, 4).at(3), 1));
        f.set_flag(FolioFlags::WRITEBACK);
        assert!(!slots.free(&f.lock()), "it is being written");
        f.clear_flag(FolioFlags::WRITEBACK);
        assert!(slots.free(&f.lock()) && !slots.free(&f.lock()));
        assert_eq!((f.refcount(), slots.nr_free()), (1, 64));
        assert!(f.has(FolioFlags::DIRTY) && !f.has(FolioFlags::SWAPCACHE));
        assert!(slots.get(m.memmap(), at).is_none());
    }

    /// Rules: RECL-08, FOLIO-07.
    #[test]
    fn a_clean_folio_that_nobody_holds_leaves_its_slots_behind() {
        let m = machine(64);
        let own = folio(&m, 1);
        let at = added(&m, &own);
        let (slots, f) = (m.slots(), own.folio());
        slots.dup(run(at, 1)).expect("few");
        assert!(!slots.evict(&f.lock()), "dirty");
        f.clear_flag(FolioFlags::DIRTY);
        let stranger = f.grab::<Get>(1).expect("room");
        assert!(!slots.evict(&f.lock()), "held");
        drop(stranger);
        assert!(slots.evict(&f.lock()));
        assert_eq!((f.refcount(), f.has(FolioFlags::SWAPCACHE)), (1, false));
        // The entry keeps its slot; the other one is free.
        assert_eq!((slots.count(at), slots.nr_free()), (1, 63));
        let again = folio(&m, 0);
        slots.insert(at, &again.folio().lock()).expect("nobody has it");
        slots.put(run(at, 1));
        assert!(slots.free(&again.folio().lock()) && slots.nr_free() == 64);
    }

    /// Rules: SWPI-02.
    #[test]
    fn a_slot_that_is_being_read_is_nobody_elses() {
        let m = machine(64);
        let own = folio(&m, 1);
        let at = added(&m, &own);
        let slots = m.slots();
        slots.dup(run(at, 2)).expect("few");
        assert_eq!(slots.begin_read(run(at, 2)), Err(SwapError::Busy), "it is cached");
        own.folio().clear_flag(FolioFlags::DIRTY);
        assert!(slots.evict(&own.folio().lock()));
        slots.begin_read(run(at, 2)).expect("nobody has it");
        assert_eq!(slots.begin_read(run(at, 1)), Err(SwapError::Busy));
        let other = folio(&m, 0);
        assert_eq!(slots.insert(at, &other.folio().lock()), Err(SwapError::Busy));
        assert_eq!(slots.unheld_prefix(run(at, 2)), 0);
        // The counts may go meanwhile; the slots stay.
        slots.put(run(at, 2));
        assert_eq!(slots.nr_free(), 62);
        slots.end_read(run(at, 2));
        assert_eq!(slots.nr_free(), 64);
        assert_eq!(slots.begin_read(run(at, 1)), Err(SwapError::Busy), "nothing counts on it");
    }

    /// Rules: SWAP-01.
    #[test]
    fn slots_come_back_and_small_folios_take_what_is_left() {
        let m = machine(2 * CLUSTER_SLOTS - 1);
        let mut kept = Vec::new();
        // Every second large folio goes again: no cluster is empty.
        for i in 0..2 * CLUSTER_SLOTS / 4 - 1 {
            let own = folio(&m, 2);
            added(&m, &own);
            if i % 2 == 0 {
                kept.push(own);
            } else {
                assert!(m.slots().free(&own.folio().lock()));
            }
        }
        while let Ok(own) = m.memmap().alloc(0) {
            own.folio().set_flag(FolioFlags::UPTODATE);
            if m.slots().add(&own.folio().lock()).is_err() {
                break;
            }
            kept.push(own);
        }
        assert_eq!(m.slots().nr_free(), 0);
        for own in &kept {
            let f = own.folio();
            assert_eq!(m.slots().slot_of(f).map(|s| s.offset % u64::from(f.nr_pages())), Some(0));
            assert!(m.slots().free(&f.lock()));
        }
        assert_eq!(m.slots().nr_free(), u64::from(2 * CLUSTER_SLOTS - 1));
        assert!(m.slots().in_use().next().is_none());
    }
}
