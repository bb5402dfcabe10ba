//! The slots of one device: who holds and counts on them, where there is room, and which folio has
//! which.

use super::{CLUSTER_SLOTS, SlotState, SwapError};
use crate::SlotRun;
use alloc::vec::Vec;
use mm_arch::{Pfn, SwapSlot};
use mm_folio::MAX_ORDERS;

/// What has the content of a slot besides the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holder {
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
pub(super) struct Slot {
    pub(super) holder: Holder,
    pub(super) count: u16,
    /// The page was full of zeros when it was written.
    pub(super) zero: bool,
    /// Of the first slot of a cached folio: the next one in its bucket.
    next: u32,
}

impl Slot {
    const FREE: Slot = Slot { holder: Holder::None, count: 0, zero: false, next: NO_SLOT };
    pub(super) fn is_free(&self) -> bool {
        self.count == 0 && self.holder == Holder::None
    }
    pub(super) fn state(&self, slot: SwapSlot) -> Option<SlotState> {
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
pub(super) struct Cluster {
    /// The size of the folios in it; `None` while it is empty.
    order: Option<u8>,
    pub(super) used: u32,
}

/// The slots of one device.
pub(super) struct Area {
    pub(super) slots: Vec<Slot>,
    pub(super) clusters: Vec<Cluster>,
    /// For each order the slot to look at first.
    next: [Option<u32>; MAX_ORDERS],
    /// First slots of cached folios, by a hash of the folio's frame.
    buckets: Vec<u32>,
    pub(super) free: u32,
    pub(super) open: bool,
}

impl Area {
    pub(super) fn new(nr: u32) -> Result<Self, SwapError> {
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
    pub(super) const GONE: Area = Area {
        slots: Vec::new(),
        clusters: Vec::new(),
        next: [None; MAX_ORDERS],
        buckets: Vec::new(),
        free: 0,
        open: false,
    };
    pub(super) fn is_gone(&self) -> bool {
        self.slots.is_empty()
    }
    fn end(&self) -> u32 {
        self.slots.len() as u32
    }
    /// How many slots there are; the first one is none.
    pub(super) fn nr(&self) -> u32 {
        self.end().saturating_sub(1)
    }
    pub(super) fn slot(&mut self, offset: u64) -> Option<&mut Slot> {
        usize::try_from(offset).ok().and_then(|at| self.slots.get_mut(at))
    }
    pub(super) fn run(&mut self, run: SlotRun) -> &mut [Slot] {
        let found = self.known_run(run);
        debug_assert!(found.is_some(), "{run:?} is not of the device");
        found.unwrap_or_default()
    }
    /// The slots of `run`, if there are such: somebody may have read of them before the device
    /// was taken away.
    pub(super) fn known_run(&mut self, run: SlotRun) -> Option<&mut [Slot]> {
        let first = usize::try_from(run.first.offset).ok()?;
        self.slots.get_mut(first..first.checked_add(run.nr as usize)?)
    }
    /// The slots of `run`, if entries count on all, and nobody holds one.
    pub(super) fn readable_run(&mut self, run: SlotRun) -> Option<&mut [Slot]> {
        let readable = |s: &Slot| s.holder == Holder::None && s.count > 0;
        self.known_run(run).filter(|slots| slots.iter().all(readable))
    }

    // ---- allocation

    /// `1 << order` free slots in a row, aligned (rule SWAP-01).
    pub(super) fn find(&mut self, order: u32) -> Option<u32> {
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
    pub(super) fn taken(&mut self, at: u32, order: u32) {
        let nr = 1 << order;
        let cluster = &mut self.clusters[(at / CLUSTER_SLOTS) as usize];
        cluster.order.get_or_insert(order as u8);
        cluster.used += nr;
        self.free -= nr;
        let next = at + nr;
        self.next[order as usize] = (!next.is_multiple_of(CLUSTER_SLOTS)).then_some(next);
    }
    pub(super) fn freed(&mut self, at: u32) {
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
    pub(super) fn cached_at(&self, head: Pfn) -> Option<u32> {
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
    pub(super) fn link(&mut self, at: u32, head: Pfn) {
        let bucket = self.bucket(head);
        self.slots[at as usize].next = core::mem::replace(&mut self.buckets[bucket], at);
    }
    pub(super) fn unlink(&mut self, at: u32, head: Pfn) {
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
    pub(super) fn cache(&mut self, at: u32, head: Pfn, nr: u32) {
        for i in 0..nr {
            self.slots[(at + i) as usize].holder = Holder::Cached(head.add(i.into()));
        }
        self.link(at, head);
    }
    /// Nothing has the content of these slots but the device; those that no entry
    /// counts on are free.
    pub(super) fn release(&mut self, at: u32, nr: u32) {
        for at in at..at + nr {
            self.slots[at as usize].holder = Holder::None;
            if self.slots[at as usize].count == 0 {
                self.freed(at);
            }
        }
    }
    pub(super) fn uncache(&mut self, at: u32, head: Pfn, nr: u32) {
        self.unlink(at, head);
        self.release(at, nr);
    }
}
