//! The frame allocator, and what is known about each frame.
//!
//! Frames come from a buddy allocator: naturally aligned, lowest address first
//! within the smallest block that fits, so that a run of a scenario is
//! deterministic. Of memory that is near and far, near frames come first. The n-th allocation
//! from now can be made to fail.
//!
//! Each frame has a word that says what it is used for, how often it was given
//! back (its *generation*), and whether somebody stored to it. Beside it is noted which
//! address spaces gave the content up (`MADV_FREE`): it may be lost as far as they are
//! concerned, until the next store. A translation
//! cache remembers the generation: a later access through it to a frame that
//! was given back in between is a missing flush (rule INV-9).

use crate::Ram;
use crate::ram::POISON;
use buddy_system_allocator::FrameAllocator;
use mm_arch::{Pfn, SpaceId};
use mm_folio::{AllocError, Effort, FolioFlags, FolioSource, FrameBytes, MAX_ORDERS};
use mm_reclaim::Lru;
use mm_sync::{DefaultLock, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// What a frame is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameUse {
    /// Nothing.
    Free,
    /// Part of a folio.
    Folio,
    /// A page table.
    Table,
}

// The word of a frame: use in two bits, one bit for "stored to", one for "given up by
// somebody", generation.
const USE: u32 = 3;
const FOLIO: u32 = 1;
const TABLE: u32 = 2;
const STORED: u32 = 1 << 2;
const GIVEN_UP: u32 = 1 << 3;
const GENERATION: u32 = 1 << 4;

/// The frames of a machine.
#[derive(Debug)]
pub struct Frames {
    ram: Ram,
    /// The first frame of far memory.
    far: Pfn,
    words: Vec<AtomicU32>,
    /// The address spaces that gave a frame up, of those with the bit for it.
    given_up: Mutex<DefaultLock, BTreeMap<Pfn, BTreeSet<SpaceId>>>,
    buddy: Mutex<DefaultLock, Buddy>,
    /// Allocations that succeed before one fails; `u64::MAX`: none fails.
    fail_after: AtomicU64,
    nr_asked: AtomicU64,
    nr_free: AtomicU64,
    poison: AtomicBool,
    fragmented: AtomicBool,
}

/// Near memory, which is handed out first, and far memory.
struct Buddy {
    near: FrameAllocator<MAX_ORDERS>,
    far: FrameAllocator<MAX_ORDERS>,
}

impl Buddy {
    fn alloc(&mut self, nr: usize) -> Option<usize> {
        self.near.alloc(nr).or_else(|| self.far.alloc(nr))
    }
}

impl std::fmt::Debug for Buddy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Buddy")
    }
}

impl Frames {
    /// All frames of `ram`, free; those behind the first `nr_near` are far.
    pub(crate) fn new(ram: Ram, nr_near: usize, poison: bool) -> Self {
        let (first, nr) = (ram.base().get() as usize, ram.nr_frames());
        let far = first + nr_near.min(nr);
        let mut buddy = Buddy { near: FrameAllocator::new(), far: FrameAllocator::new() };
        buddy.near.add_frame(first, far);
        buddy.far.add_frame(far, first + nr);
        Frames {
            far: Pfn::new(far as u64),
            words: (0..nr).map(|_| AtomicU32::new(0)).collect(),
            given_up: Mutex::new(BTreeMap::new()),
            buddy: Mutex::new(buddy),
            fail_after: AtomicU64::new(u64::MAX),
            nr_asked: AtomicU64::new(0),
            nr_free: AtomicU64::new(nr as u64),
            poison: AtomicBool::new(poison),
            fragmented: AtomicBool::new(false),
            ram,
        }
    }
    /// The bytes.
    pub fn ram(&self) -> &Ram {
        &self.ram
    }
    /// Frames that are free.
    pub fn nr_free(&self) -> u64 {
        self.nr_free.load(Relaxed)
    }
    /// Allocations that were asked for so far, whatever came of them.
    pub fn nr_asked(&self) -> u64 {
        self.nr_asked.load(Relaxed)
    }
    /// Makes the allocation after the next `n` fail, of folios and page tables
    /// alike; `None`: none fails.
    pub fn fail_after(&self, n: Option<u64>) {
        self.fail_after.store(n.unwrap_or(u64::MAX), Relaxed);
    }
    /// Whether an injected failure has happened, or none was asked for.
    pub fn failure_is_spent(&self) -> bool {
        self.fail_after.load(Relaxed) == u64::MAX
    }
    /// Makes large folios something that room has to be made for: who asks for free memory
    /// gets single pages.
    pub fn fragmented(&self, yes: bool) {
        self.fragmented.store(yes, Relaxed);
    }
    /// Fills frames with [`POISON`] when they are given back.
    pub fn poison_freed(&self, yes: bool) {
        self.poison.store(yes, Relaxed);
    }

    fn word(&self, pfn: Pfn) -> &AtomicU32 {
        &self.words[self.ram.index(pfn)]
    }
    /// What a frame is used for.
    pub fn usage(&self, pfn: Pfn) -> FrameUse {
        match self.word(pfn).load(Relaxed) & USE {
            FOLIO => FrameUse::Folio,
            TABLE => FrameUse::Table,
            _ => FrameUse::Free,
        }
    }
    /// How often a frame was given back.
    pub fn generation(&self, pfn: Pfn) -> u32 {
        self.word(pfn).load(Relaxed) / GENERATION
    }
    /// A CPU stored to the frame.
    pub(crate) fn set_stored(&self, pfn: Pfn) {
        let word = self.word(pfn);
        if word.load(Relaxed) & (STORED | GIVEN_UP) != STORED {
            self.want_again(pfn);
            word.fetch_or(STORED, Relaxed);
        }
    }
    /// Whether a CPU stored to the frame since it was allocated, or written out.
    pub fn is_stored(&self, pfn: Pfn) -> bool {
        self.word(pfn).load(Relaxed) & STORED != 0
    }

    /// What was stored to the frame is somewhere else as well by now.
    pub(crate) fn clear_stored(&self, pfn: Pfn) {
        self.word(pfn).fetch_and(!STORED, Relaxed);
    }

    /// An address space does not need what the frame holds, until it is stored to again.
    pub(crate) fn give_up(&self, pfn: Pfn, space: SpaceId) {
        let mut given_up = self.given_up.lock();
        given_up.entry(pfn).or_default().insert(space);
        self.word(pfn).fetch_or(GIVEN_UP, Relaxed);
    }
    /// Whether an address space gave up what the frame holds.
    pub fn is_given_up(&self, pfn: Pfn, space: SpaceId) -> bool {
        self.given_up_by(pfn).contains(&space)
    }
    /// The address spaces that gave up what the frame holds.
    pub fn given_up_by(&self, pfn: Pfn) -> BTreeSet<SpaceId> {
        if self.word(pfn).load(Relaxed) & GIVEN_UP == 0 {
            return BTreeSet::new();
        }
        self.given_up.lock().get(&pfn).cloned().unwrap_or_default()
    }
    /// What `parent` gave up, `child` does not need either: it got it from there.
    pub(crate) fn inherit_given_up(&self, parent: SpaceId, child: SpaceId) {
        for spaces in self.given_up.lock().values_mut() {
            if spaces.contains(&parent) {
                spaces.insert(child);
            }
        }
    }
    /// Everybody needs what the frame holds from now on.
    fn want_again(&self, pfn: Pfn) {
        let word = self.word(pfn);
        if word.load(Relaxed) & GIVEN_UP != 0 {
            let mut given_up = self.given_up.lock();
            given_up.remove(&pfn);
            word.fetch_and(!GIVEN_UP, Relaxed);
        }
    }

    fn take(&self, order: u32, used_for: u32) -> Result<Pfn, AllocError> {
        if order as usize >= MAX_ORDERS || self.fails() {
            return Err(AllocError);
        }
        let head = self.buddy.lock().alloc(1 << order).ok_or(AllocError)?;
        let head = Pfn::new(head as u64);
        self.nr_free.fetch_sub(1 << order, Relaxed);
        for i in 0..1 << order {
            let word = self.word(head.add(i));
            debug_assert_eq!(word.load(Relaxed) & USE, 0, "{head} was handed out twice");
            word.fetch_or(used_for, Relaxed);
        }
        Ok(head)
    }
    fn fails(&self) -> bool {
        self.nr_asked.fetch_add(1, Relaxed);
        let step = |n: u64| (n != u64::MAX).then(|| n.checked_sub(1).unwrap_or(u64::MAX));
        self.fail_after.fetch_update(Relaxed, Relaxed, step) == Ok(0)
    }
    fn give(&self, head: Pfn, order: u32) {
        for i in 0..1 << order {
            let pfn = head.add(i);
            let word = self.word(pfn);
            debug_assert_ne!(word.load(Relaxed) & USE, 0, "{pfn} was given back twice");
            self.want_again(pfn);
            let old = word.load(Relaxed);
            word.store((old & !(USE | STORED)).wrapping_add(GENERATION), Relaxed);
            if self.poison.load(Relaxed) {
                self.ram.fill(pfn, POISON);
            }
        }
        self.nr_free.fetch_add(1 << order, Relaxed);
        let mut buddy = self.buddy.lock();
        let part = if self.is_far(head) { &mut buddy.far } else { &mut buddy.near };
        part.dealloc(head.get() as usize, 1 << order);
    }
    /// Whether a frame is in far memory.
    pub fn is_far(&self, pfn: Pfn) -> bool {
        pfn >= self.far
    }
    /// Whether near memory has room for a folio of `order`.
    pub(crate) fn has_near(&self, order: u32) -> bool {
        let mut buddy = self.buddy.lock();
        let found = buddy.near.alloc(1 << order);
        if let Some(head) = found {
            buddy.near.dealloc(head, 1 << order);
        }
        found.is_some()
    }
    /// A frame for a page table, of any content.
    pub(crate) fn take_table(&self) -> Result<Pfn, AllocError> {
        self.take(0, TABLE)
    }
    /// The frame of a page table comes back.
    pub(crate) fn give_table(&self, pfn: Pfn) {
        self.give(pfn, 0);
    }
}

impl FrameBytes for Frames {
    fn zero(&self, pfn: Pfn, nr_pages: u64) {
        for i in 0..nr_pages {
            self.ram.fill(pfn.add(i), 0);
        }
    }
    fn copy(&self, dst: Pfn, src: Pfn) {
        for (d, s) in self.ram.words(dst).iter().zip(self.ram.words(src)) {
            d.store(s.load(Relaxed), Relaxed);
        }
        // A page that moves is as much wanted as before.
        for space in self.given_up_by(src) {
            self.give_up(dst, space);
        }
    }
    fn is_zero(&self, pfn: Pfn) -> bool {
        self.ram.words(pfn).iter().all(|w| w.load(Relaxed) == 0)
    }
    fn load(&self, pfn: Pfn, offset: usize) -> u64 {
        self.ram.words(pfn)[offset / 8].load(Relaxed)
    }
    fn store(&self, pfn: Pfn, offset: usize, value: u64) {
        self.ram.words(pfn)[offset / 8].store(value, Relaxed);
    }
}

/// The frames as the memory map sees them, and the lists that folios in them are on.
#[derive(Clone, Debug)]
pub struct FrameSource {
    frames: Arc<Frames>,
    lru: Arc<Lru<DefaultLock>>,
}

impl FrameSource {
    pub(crate) fn new(frames: Arc<Frames>, lru: Arc<Lru<DefaultLock>>) -> Self {
        FrameSource { frames, lru }
    }
}

impl FolioSource for FrameSource {
    fn alloc(&self, order: u32) -> Result<Pfn, AllocError> {
        self.frames.take(order, FOLIO)
    }
    fn alloc_by(&self, order: u32, effort: Effort) -> Result<Pfn, AllocError> {
        if order > 0 && effort < Effort::Direct && self.frames.fragmented.load(Relaxed) {
            return Err(AllocError);
        }
        self.alloc(order)
    }
    fn free(&self, head: Pfn, order: u32) {
        self.frames.give(head, order);
    }
    fn list(&self, head: Pfn, order: u32, flags: FolioFlags) {
        self.lru.list(head, order, flags);
    }
    fn unlist(&self, head: Pfn, _order: u32, _flags: FolioFlags) {
        self.lru.unlist(head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> FrameSource {
        let ram = Ram::new(Pfn::new(0x1_0000), 1024, 12).expect("memory");
        let lru = Lru::new(Pfn::new(0x1_0000), 1024).expect("memory");
        FrameSource::new(Arc::new(Frames::new(ram, 1024, true)), Arc::new(lru))
    }

    #[test]
    fn runs_are_aligned_and_come_back() {
        let f = frames();
        let a = f.alloc(0).expect("one");
        let b = f.alloc(4).expect("sixteen");
        assert_eq!((a.get(), b.get() % 16), (0x1_0000, 0));
        assert_eq!(f.frames.usage(b.add(15)), FrameUse::Folio);
        assert_eq!(f.frames.nr_free(), 1024 - 17);
        f.frames.set_stored(b);
        f.free(b, 4);
        assert_eq!(f.frames.usage(b), FrameUse::Free);
        assert_eq!((f.frames.generation(b), f.frames.is_stored(b)), (1, false));
        assert_eq!(f.frames.ram().words(b)[0].load(Relaxed), POISON);
        f.free(a, 0);
        assert_eq!(f.alloc(9).map(Pfn::get), Ok(0x1_0000), "buddies were merged");
        assert!(f.alloc(20).is_err() && f.alloc(21).is_err());
    }

    #[test]
    fn the_nth_allocation_fails_once() {
        let f = frames();
        f.frames.fail_after(Some(1));
        assert!(f.alloc(0).is_ok() && !f.frames.failure_is_spent());
        assert!(f.frames.take_table().is_err() && f.frames.failure_is_spent());
        assert!(f.alloc(0).is_ok());
    }
}
