//! The slots of swap devices: who counts on them, and the folios that have their
//! content.

mod area;
mod cache;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::SlotRun;
use alloc::vec::Vec;
use area::{Area, Holder};
use core::fmt;
use mm_arch::{Pfn, SwapSlot};
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
/// * [`FolioFlags::SWAPCACHE`](mm_folio::FolioFlags::SWAPCACHE) says that a folio is in the cache; it changes under the
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
