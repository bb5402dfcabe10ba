//! A swap device in memory, with real bytes.

use crate::Frames;
use mm_arch::{Arch, Entry, NonPresent, Pfn, SwapBits, SwapSlot};
use mm_folio::FrameBytes;
use mm_sync::DefaultLock;
use mm_vma::{SlotState, SwapError, SwapIoError, SwapSlots, SwapSpace};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is written, by slot.
type Pages = BTreeMap<SwapSlot, Box<[u64]>>;

/// The swap devices of a machine. Without one nothing can be swapped.
#[derive(Debug)]
pub struct Swap {
    slots: SwapSlots<DefaultLock>,
    frames: Arc<Frames>,
    written: Mutex<Pages>,
    asynchronous: AtomicBool,
    stable_pages: AtomicBool,
    fail_reads: FailAt,
    fail_writes: FailAt,
}

/// The call that fails, counted from when it was said; `u64::MAX` for none.
#[derive(Debug)]
struct FailAt(AtomicU64);

impl FailAt {
    fn set(&self, after: Option<u64>) {
        self.0.store(after.unwrap_or(u64::MAX), Relaxed);
    }
    fn fails(&self) -> bool {
        let step = |n: u64| (n != u64::MAX).then(|| n.checked_sub(1).unwrap_or(u64::MAX));
        self.0.fetch_update(Relaxed, Relaxed, step) == Ok(0)
    }
}

impl Swap {
    pub(crate) fn new(frames: Arc<Frames>) -> Self {
        Swap {
            slots: SwapSlots::new(),
            frames,
            written: Mutex::default(),
            asynchronous: AtomicBool::new(false),
            stable_pages: AtomicBool::new(false),
            fail_reads: FailAt(AtomicU64::new(u64::MAX)),
            fail_writes: FailAt(AtomicU64::new(u64::MAX)),
        }
    }
    /// A new device with room for `nr_pages` pages.
    ///
    /// # Errors
    ///
    /// If entries of the format cannot name all of its slots, or there is no memory.
    pub fn add<A: Arch>(&self, nr_pages: u64) -> Result<(), SwapError> {
        let nr = u32::try_from(nr_pages).map_err(|_| SwapError::NoMemory)?;
        let last = SwapSlot { device: 0, offset: nr_pages };
        A::Entry::from_nonpresent(NonPresent::Swap(last), SwapBits::default())
            .map_err(|_| SwapError::TooLarge)?;
        self.slots.open(nr).map(|_| ())
    }
    /// Closed devices are gone, if nobody needs what is on them; whether all are.
    pub(crate) fn remove_closed(&self) -> bool {
        let all = self.slots.remove_closed();
        self.written().retain(|slot, _| self.slots.state(*slot).is_some());
        all
    }
    /// Whether the devices take their time, so that a swap cache pays.
    pub fn set_asynchronous(&self, yes: bool) {
        self.asynchronous.store(yes, Relaxed);
    }
    /// Whether pages must not change while they are written.
    pub fn set_stable_pages(&self, yes: bool) {
        self.stable_pages.store(yes, Relaxed);
    }
    /// Makes the read after the next `n` fail, once.
    pub fn fail_read_after(&self, n: Option<u64>) {
        self.fail_reads.set(n);
    }
    /// Makes the write after the next `n` fail, once.
    pub fn fail_write_after(&self, n: Option<u64>) {
        self.fail_writes.set(n);
    }
    /// The word at byte `offset` of the page that is in `slot`, wherever its content is.
    pub(crate) fn peek(&self, slot: SwapSlot, offset: usize) -> u64 {
        match self.slots.state(slot) {
            Some(SlotState { cached: Some(page), .. }) => self.frames.load(page, offset),
            Some(SlotState { zero: false, .. }) => {
                self.written().get(&slot).map_or(0, |data| data[offset / 8])
            }
            Some(SlotState { zero: true, .. }) | None => 0,
        }
    }
    fn written(&self) -> MutexGuard<'_, Pages> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SwapSpace for Swap {
    type Lock = DefaultLock;

    fn slots(&self) -> &SwapSlots<DefaultLock> {
        &self.slots
    }
    fn read(&self, slot: SwapSlot, page: Pfn) -> Result<(), SwapIoError> {
        let written = self.written();
        let Some(data) = written.get(&slot).filter(|_| !self.fail_reads.fails()) else {
            return Err(SwapIoError { slot });
        };
        for (to, from) in self.frames.ram().words(page).iter().zip(data) {
            to.store(*from, Relaxed);
        }
        Ok(())
    }
    fn write(&self, slot: SwapSlot, page: Pfn) -> Result<(), SwapIoError> {
        if self.fail_writes.fails() {
            return Err(SwapIoError { slot });
        }
        let data = self.frames.ram().words(page).iter().map(|w| w.load(Relaxed)).collect();
        self.frames.clear_stored(page);
        self.written().insert(slot, data);
        Ok(())
    }
    fn is_synchronous(&self, _: u8) -> bool {
        !self.asynchronous.load(Relaxed)
    }
    fn needs_stable_pages(&self, _: u8) -> bool {
        self.stable_pages.load(Relaxed)
    }
}
