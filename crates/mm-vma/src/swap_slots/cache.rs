//! The swap cache: folios that have what slots have, or will have.

use super::area::Holder;
use super::{CLUSTER_SLOTS, SwapError, SwapSlots};
use crate::SlotRun;
use mm_arch::SwapSlot;
use mm_folio::{Folio, FolioFlags, FolioLockGuard, FolioRun, FolioSpace, Get, MemMap};
use mm_sync::RawLock;

impl<L: RawLock> SwapSlots<L> {
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
}
