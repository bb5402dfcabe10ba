//! Swap: where anonymous and shared memory goes when its frames are wanted.
//!
//! # The protocol
//!
//! A *slot* is room for one page. [`SwapSlots`] knows who uses it: a number of
//! entries (page tables, objects of shared memory), and the *swap cache*, which holds
//! the folio that has the same content.
//!
//! ```text
//!   swap-out   add ───► entries replaced: dup ───► write ───► evict
//!              cached           counted                       counted
//!   swap-in    insert, read ──► entries replaced: put ───► free
//!              cached           not counted                 free
//! ```
//!
//! * **A slot is free when no entry counts on it and no folio is in its cache.** So
//!   whoever holds the locked folio of a slot, or has marked it as being read, may
//!   drop counts and still knows what it is (race F-RACE-26).
//! * **A folio is in the cache while it is locked and says so.** Whoever found one
//!   locks it and asks [`slot_of`](SwapSlots::slot_of) again (rule SWPI-02).
//! * The last copy of a page is never thrown away: a folio that leaves its slots for
//!   good is dirty (rule FOLIO-45).
//!
//! The lock of the slots is innermost: all of this may be called under page-table
//! locks and folio locks.

use crate::{Event, Observer, Platform, SwapSlots};
use core::fmt;
use mm_arch::{Pfn, SwapSlot};
use mm_folio::{AllocError, Folio, FolioFlags, FolioLockGuard, FolioRef, FrameBytes, Get};
use mm_sync::RawLock;

/// Consecutive slots of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRun {
    /// The first one.
    pub first: SwapSlot,
    /// How many.
    pub nr: u32,
}

impl SlotRun {
    /// `nr` slots from `first` on.
    pub const fn new(first: SwapSlot, nr: u32) -> Self {
        SlotRun { first, nr }
    }
    /// The slot `i` places behind the first.
    pub const fn at(&self, i: u32) -> SwapSlot {
        SwapSlot { device: self.first.device, offset: self.first.offset + i as u64 }
    }
    /// The slots, in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = SwapSlot> {
        (0..self.nr).map(move |i| self.at(i))
    }
}

/// A page could not be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapIoError {
    /// Its slot.
    pub slot: SwapSlot,
}

impl fmt::Display for SwapIoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} of swap device {} failed", self.slot.offset, self.slot.device)
    }
}
impl core::error::Error for SwapIoError {}

/// The swap devices of a machine: its slots, and how pages get there and back. Pages are read
/// and written without page-table locks, but with the folio locked.
///
/// # Example
///
/// A machine without swap:
///
/// ```
/// use mm_arch::{Pfn, SwapSlot};
/// use mm_sync::DefaultLock;
/// use mm_vma::{SwapIoError, SwapSlots, SwapSpace};
/// struct NoSwap(SwapSlots<DefaultLock>);
/// impl SwapSpace for NoSwap {
///     type Lock = DefaultLock;
///     fn slots(&self) -> &SwapSlots<DefaultLock> {
///         &self.0
///     }
///     fn read(&self, slot: SwapSlot, _: Pfn) -> Result<(), SwapIoError> {
///         Err(SwapIoError { slot })
///     }
///     fn write(&self, slot: SwapSlot, _: Pfn) -> Result<(), SwapIoError> {
///         Err(SwapIoError { slot })
///     }
///     fn is_synchronous(&self, _: u8) -> bool {
///         true
///     }
///     fn needs_stable_pages(&self, _: u8) -> bool {
///         false
///     }
/// }
/// assert_eq!(NoSwap(SwapSlots::new()).slots().nr_free(), 0);
/// ```
pub trait SwapSpace: Send + Sync {
    /// The lock of the slots.
    type Lock: RawLock;
    /// Who uses which slot.
    fn slots(&self) -> &SwapSlots<Self::Lock>;
    /// Reads a slot into a frame that nobody else uses.
    ///
    /// # Errors
    ///
    /// If the device fails. The frame has any content then.
    fn read(&self, slot: SwapSlot, page: Pfn) -> Result<(), SwapIoError>;
    /// Writes a frame to a slot.
    ///
    /// # Errors
    ///
    /// If the device fails. The slot has any content then.
    fn write(&self, slot: SwapSlot, page: Pfn) -> Result<(), SwapIoError>;
    /// Whether a read costs no more than a copy, so that nothing is read ahead and
    /// nothing needs to be cached.
    fn is_synchronous(&self, device: u8) -> bool;
    /// Whether a page must not change while it is written (rule SWPI-07).
    fn needs_stable_pages(&self, device: u8) -> bool;
}

/// Reads a new, locked folio from the slots of `run`, one per page; the folio is valid
/// then. Slots of pages full of zeros are not read: they must be all or none of the
/// run (rule SWAP-05).
///
/// # Errors
///
/// If the device fails. The folio stays invalid.
pub fn read_folio<P: Platform>(
    platform: &P,
    folio: Folio<'_, P>,
    run: SlotRun,
) -> Result<(), SwapIoError> {
    debug_assert_eq!(run.nr, folio.nr_pages());
    let (swap, observer) = (platform.swap(), platform.observer());
    let zeros = swap.slots().zeros(run);
    if zeros.full {
        platform.bytes().zero(folio.head(), run.nr.into());
        observer.event(Event::ZeroPagesSwappedIn, run.nr.into());
    } else {
        if !zeros.is_uniform() {
            return Err(SwapIoError { slot: run.first });
        }
        for (i, slot) in run.iter().enumerate() {
            swap.read(slot, folio.page(i as u32))?;
        }
        observer.event(Event::PagesSwappedIn, run.nr.into());
        observer.event(Event::FolioSwappedIn, folio.order().into());
    }
    folio.set_flag(FolioFlags::UPTODATE);
    Ok(())
}

/// Reads a locked folio that was just put into the swap cache from its slots; it leaves the
/// cache again if that fails, and whoever wants it next tries again.
///
/// # Errors
///
/// As [`read_folio`].
pub fn read_cached<P: Platform>(
    platform: &P,
    locked: &FolioLockGuard<'_, P>,
    run: SlotRun,
) -> Result<(), SwapIoError> {
    read_folio(platform, locked.folio(), run).inspect_err(|_| {
        platform.swap().slots().evict(locked);
    })
}

/// Reads the page of a slot into the swap cache, where a fault will find it; nothing maps it
/// yet. Nothing happens if the cache has it, somebody reads it, or no entry counts on the
/// slot, and nothing is left of it if the device fails (rule MADV-09).
///
/// # Errors
///
/// If there is no memory.
pub fn read_ahead<P: Platform>(platform: &P, slot: SwapSlot) -> Result<(), AllocError> {
    let slots = platform.swap().slots();
    if !slots.state(slot).is_some_and(|s| s.count > 0 && s.cached.is_none() && !s.reading) {
        return Ok(());
    }
    let own = platform.memmap().alloc(0)?;
    let locked = own.folio().lock();
    own.folio().set_flag(FolioFlags::SWAPBACKED);
    // Somebody else may have been faster.
    if slots.insert(slot, &locked).is_ok()
        && read_cached(platform, &locked, SlotRun::new(slot, 1)).is_ok()
    {
        own.folio().enlist();
    }
    drop(locked);
    // Nobody may want it any more, and who left it could not lock it.
    free_swap_cache(platform, own.folio());
    Ok(())
}

/// Writes a locked folio of the swap cache to its slots. It is clean then, unless
/// somebody stores to it meanwhile. One that is full of zeros is only noted down.
///
/// # Errors
///
/// If the device fails. The folio is dirty again, and stays in memory.
///
/// # Panics
///
/// In debug builds, if the folio is not in the swap cache.
pub fn write_folio<P: Platform>(
    platform: &P,
    locked: &FolioLockGuard<'_, P>,
) -> Result<(), SwapIoError> {
    let (folio, swap, observer) = (locked.folio(), platform.swap(), platform.observer());
    let Some(first) = swap.slots().slot_of(folio) else {
        debug_assert!(false, "{folio:?} has no slots to be written to");
        return Ok(());
    };
    let run = SlotRun::new(first, folio.nr_pages());
    // Clean first: a store that comes later makes it dirty again.
    folio.clear_flag(FolioFlags::DIRTY);
    let is_zero = (0..run.nr).all(|i| platform.bytes().is_zero(folio.page(i)));
    swap.slots().set_zero(run, is_zero);
    if is_zero {
        observer.event(Event::ZeroPagesSwappedOut, run.nr.into());
        return Ok(());
    }
    folio.set_flag(FolioFlags::WRITEBACK);
    let written =
        run.iter().enumerate().try_for_each(|(i, slot)| swap.write(slot, folio.page(i as u32)));
    if written.is_err() {
        folio.set_flag(FolioFlags::DIRTY);
    } else {
        observer.event(Event::PagesSwappedOut, run.nr.into());
        observer.event(Event::FolioSwappedOut, folio.order().into());
    }
    folio.clear_flag(FolioFlags::WRITEBACK);
    written
}

/// Takes a folio that nothing maps out of the swap cache, if no entry counts on its
/// slots and it can be locked at once (rule SWAP-04). Whether it left. The caller holds a
/// reference.
pub fn free_swap_cache<P: Platform>(platform: &P, folio: Folio<'_, P>) -> bool {
    if !folio.has(FolioFlags::SWAPCACHE) || folio.is_mapped() {
        return false;
    }
    folio.try_lock().is_some_and(|locked| platform.swap().slots().free(&locked))
}

/// Entries that counted on the slots of `run` are gone, one for each. What the swap
/// cache keeps of them goes too, if nobody can want it any more (rule ZAP-07).
pub fn put_swap<P: Platform>(platform: &P, run: SlotRun) {
    let slots = platform.swap().slots();
    slots.put(run);
    let mut i = 0;
    while i < run.nr {
        let slot = run.at(i);
        i += 1;
        if slots.count(slot) > 0 {
            continue;
        }
        let Some(cached) = slots.get(platform.memmap(), slot) else { continue };
        let behind = cached.first + 1;
        let own: FolioRef<'_, P, Get> = platform.memmap().adopt_run(cached);
        free_swap_cache(platform, own.folio());
        // The other pages of the folio were asked about as well.
        i += own.folio().nr_pages() - behind;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::model::{ModelConfig, ModelPlatform};
    use alloc::vec::Vec;
    use core::num::NonZeroU32;
    use core::sync::atomic::Ordering::Relaxed;
    use mm_arch::model::ModelWord;
    use mm_folio::{AnonId, MmId};

    type M = ModelPlatform<ModelWord<8>>;

    fn machine() -> M {
        M::new(ModelConfig { swap_slots: 64, ..ModelConfig::default() }).expect("machine")
    }
    /// A folio with `words` as the content of its pages, in the swap cache; an entry counts
    /// on each slot.
    fn cached<'m>(m: &'m M, words: &[u64]) -> (FolioRef<'m, M, Get>, SlotRun) {
        let own = m.memmap().alloc(words.len().ilog2()).expect("memory");
        own.folio().set_flag(FolioFlags::UPTODATE);
        m.zero(own.folio().head(), words.len() as u64);
        for (i, word) in words.iter().enumerate() {
            m.store(own.folio().page(i as u32), 8, *word);
        }
        let first = m.slots().add(&own.folio().lock()).expect("room");
        let run = SlotRun::new(first, words.len() as u32);
        m.slots().dup(run).expect("few");
        (own, run)
    }
    fn read_back(m: &M, run: SlotRun) -> Result<Vec<u64>, SwapIoError> {
        let own = m.memmap().alloc(run.nr.ilog2()).expect("memory");
        let folio = own.folio();
        for i in 0..run.nr {
            m.store(folio.page(i), 8, 99);
        }
        let read = read_folio(m, folio, run);
        assert_eq!(folio.has(FolioFlags::UPTODATE), read.is_ok());
        read.map(|()| (0..run.nr).map(|i| m.load(folio.page(i), 8)).collect())
    }

    #[test]
    fn pages_go_and_come_back() {
        let m = machine();
        let (own, run) = cached(&m, &[7, 0, 5, 0]);
        write_folio(&m, &own.folio().lock()).expect("written");
        assert!(!own.folio().flags().intersects(FolioFlags::DIRTY | FolioFlags::WRITEBACK));
        assert!(m.slots().evict(&own.folio().lock()));
        drop(own);
        assert_eq!(read_back(&m, run), Ok([7, 0, 5, 0].into()));
        let events = m.events();
        assert_eq!(events.get(Event::PagesSwappedOut), 4);
        assert_eq!(events.get(Event::PagesSwappedIn), 4);
        put_swap(&m, run);
        assert_eq!((m.slots().nr_free(), m.folios_in_use()), (64, 0));
    }

    /// Rules: SWAP-05.
    #[test]
    fn pages_full_of_zeros_need_no_device() {
        let m = machine();
        let (own, run) = cached(&m, &[0, 0]);
        m.swap_state().failures.fail_after(0);
        write_folio(&m, &own.folio().lock()).expect("nothing to write");
        assert!(!own.folio().has(FolioFlags::DIRTY));
        assert_eq!(read_back(&m, run), Ok([0, 0].into()));
        assert!(m.swap_state().failures.disarm(), "the device was not asked");
        // A run of both kinds is read by nobody.
        m.slots().set_zero(SlotRun::new(run.at(1), 1), false);
        assert!(!m.slots().zeros(run).is_uniform());
        assert_eq!(read_back(&m, run), Err(SwapIoError { slot: run.first }));
        // What is written later has content again.
        m.store(own.folio().page(0), 8, 3);
        m.slots().set_zero(run, true);
        write_folio(&m, &own.folio().lock()).expect("written");
        assert_eq!(read_back(&m, run), Ok([3, 0].into()));
        put_swap(&m, run);
    }

    #[test]
    fn what_could_not_be_written_stays_dirty_in_memory() {
        let m = machine();
        let (own, run) = cached(&m, &[1, 2]);
        m.swap_state().failures.fail_after(1);
        let failed = write_folio(&m, &own.folio().lock());
        assert_eq!(failed, Err(SwapIoError { slot: run.at(1) }));
        assert!(own.folio().has(FolioFlags::DIRTY | FolioFlags::SWAPCACHE));
        assert!(!own.folio().has(FolioFlags::WRITEBACK));
        assert!(!m.slots().evict(&own.folio().lock()));
        write_folio(&m, &own.folio().lock()).expect("it failed once");
        m.swap_state().failures.fail_after(0);
        assert_eq!(read_back(&m, run), Err(SwapIoError { slot: run.first }));
        assert_eq!(read_back(&m, run), Ok([1, 2].into()));
        put_swap(&m, run);
    }

    /// Rules: SWAP-04, ZAP-07.
    #[test]
    fn the_last_entry_takes_the_cached_folio_along() {
        let m = machine();
        let mm = MmId::new(1).expect("an id");
        let (own, run) = cached(&m, &[1, 2, 3, 4]);
        let folio = own.folio();
        folio.set_anon(AnonId(1), 0);
        put_swap(&m, SlotRun::new(run.first, 3));
        assert!(!free_swap_cache(&m, folio), "an entry counts on page 3");
        let locked = folio.lock();
        put_swap(&m, SlotRun::new(run.at(3), 1));
        assert!(!free_swap_cache(&m, folio), "somebody has it locked");
        drop(locked);
        folio.grab::<Get>(1).expect("room").hand_over();
        folio.add_anon_ptes(0, NonZeroU32::MIN, mm, mm_folio::Exclusivity::MaybeShared);
        assert!(!free_swap_cache(&m, folio), "it is mapped");
        folio.remove_ptes(0, NonZeroU32::MIN, mm);
        m.memmap().put_run::<Get>(mm_folio::FolioRun::new(folio.head(), 0, 1));
        assert!(free_swap_cache(&m, folio) && !free_swap_cache(&m, folio));
        drop(own);
        assert_eq!((m.slots().nr_free(), m.folios_in_use()), (64, 0));
        let (own, run) = cached(&m, &[1, 2]);
        drop(own);
        put_swap(&m, run);
        assert_eq!((m.slots().nr_free(), m.folios_in_use()), (64, 0));
        m.swap_state().asynchronous.store(true, Relaxed);
        assert!(!m.is_synchronous(0));
    }
}
