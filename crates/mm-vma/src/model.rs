//! A small machine in memory, for tests and models of the crates above.
//!
//! Everything that an algorithm asks of a kernel, and nothing else: tables from
//! a slab, frames from a first-fit list, a few words of content per frame,
//! counted flushes and events, and allocation failures on demand. It runs any
//! entry format, and under a model checker.
//!
//! Crates between this one and a test may keep state of their own in the
//! machine: see [`ModelConfig::extension`].

mod object;

pub use object::ModelObject;

use crate::{Event, Interrupt, Observer, Platform, SwapIoError, SwapSlots, SwapSpace};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ptr::NonNull;
// Counting and content take part in no protocol: a model checker need not
// explore them.
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use mm_arch::{Arch, Level, Pfn, SwapSlot, TableFrame};
use mm_folio::{AllocError, FolioFlags, FolioSource, FolioSpace, FrameBytes, MemMap, MmIds};
use mm_pgtable::slab::{CountingTlb, Slab};
use mm_pgtable::{TableAllocError, TableDesc, TableMemory, TableSpace};
use mm_sync::stat::Counter;
use mm_sync::{DefaultLock, DefaultRwLock, Mutex, ReaderCount};

/// The first frame of a model machine; aligned for every order of a PMD leaf.
pub const FIRST_FRAME: Pfn = Pfn::new(0x1_0000);
/// Table frames are numbered from here on.
const FIRST_TABLE: Pfn = Pfn::new(0x20_0000);

/// The size of a model machine.
#[derive(Debug)]
pub struct ModelConfig {
    /// Frames for folios.
    pub nr_frames: u64,
    /// Page tables.
    pub nr_tables: usize,
    /// 64-bit words of content kept per frame; offsets beyond wrap around.
    pub words_per_frame: usize,
    /// Whether there is a huge zero folio.
    pub huge_zero: bool,
    /// Pages that fit onto the swap device; 0 for no device.
    pub swap_slots: u32,
    /// Who keeps the folios on lists; `()` does not.
    pub lists: Arc<dyn ModelLists>,
    /// State of a crate above, found again with [`ModelPlatform::extension`].
    pub extension: Box<dyn Any + Send + Sync>,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            nr_frames: 4096,
            nr_tables: 128,
            words_per_frame: 4,
            huge_zero: false,
            swap_slots: 0,
            lists: Arc::new(()),
            extension: Box::new(()),
        }
    }
}

impl ModelConfig {
    /// A machine as small as a model checker likes it.
    pub fn tiny() -> Self {
        ModelConfig { nr_frames: 32, nr_tables: 8, words_per_frame: 1, ..Self::default() }
    }
}

/// Makes the allocation of a given index fail.
#[derive(Debug)]
pub struct FailureInjector {
    calls: AtomicU64,
    fail_at: AtomicU64,
}

impl Default for FailureInjector {
    fn default() -> Self {
        FailureInjector { calls: AtomicU64::new(0), fail_at: AtomicU64::new(u64::MAX) }
    }
}

impl FailureInjector {
    /// Lets the allocation fail that comes after `index` further ones, once.
    pub fn fail_after(&self, index: u64) {
        self.calls.store(0, Relaxed);
        self.fail_at.store(index, Relaxed);
    }
    /// Lets nothing fail any more; whether a failure was still due.
    pub fn disarm(&self) -> bool {
        self.fail_at.swap(u64::MAX, Relaxed) >= self.calls.load(Relaxed)
    }
    /// Calls since the last [`fail_after`](Self::fail_after), or ever.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }
    fn fails(&self) -> bool {
        self.calls.fetch_add(1, Relaxed) == self.fail_at.load(Relaxed)
    }
}

/// How the swap device behaves.
#[derive(Debug, Default)]
pub struct ModelSwapState {
    /// It reads and writes in its own time, so that a cache pays.
    pub asynchronous: AtomicBool,
    /// Pages must not change while they are written.
    pub stable_pages: AtomicBool,
    /// Which reads and writes fail; they count as one kind of call.
    pub failures: FailureInjector,
}

/// Events by kind.
#[derive(Debug)]
pub struct EventCounts([Counter; 40]);

impl Default for EventCounts {
    fn default() -> Self {
        EventCounts([const { Counter::new() }; 40])
    }
}

impl EventCounts {
    /// How many events of this kind there were; of events about a number, the sum.
    pub fn get(&self, event: Event) -> u64 {
        self.0[event as usize].get()
    }
}
impl Observer for EventCounts {
    fn event(&self, event: Event, nr: u64) {
        self.0[event as usize].add(nr);
    }
}

/// A fatal signal, pending or not as a test says.
#[derive(Debug, Default)]
pub struct ModelSignal(AtomicBool);

impl ModelSignal {
    /// Makes the signal pending, or takes it back.
    pub fn set_pending(&self, pending: bool) {
        self.0.store(pending, Relaxed);
    }
}
impl Interrupt for ModelSignal {
    fn is_fatal_signal_pending(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Who keeps the folios of a model machine on lists. `()` does not.
pub trait ModelLists: Send + Sync + core::fmt::Debug {
    /// As [`FolioSource::list`].
    fn list(&self, head: Pfn, order: u32, flags: FolioFlags) {
        let _ = (head, order, flags);
    }
    /// As [`FolioSource::unlist`].
    fn unlist(&self, head: Pfn) {
        let _ = head;
    }
}
impl ModelLists for () {}

/// Frames, handed out first fit.
#[derive(Debug)]
pub struct ModelFrames {
    used: Mutex<DefaultLock, Vec<bool>>,
    failures: Arc<FailureInjector>,
    access: FailureInjector,
    lists: Arc<dyn ModelLists>,
}

impl ModelFrames {
    /// Number of frames in use.
    pub fn in_use(&self) -> usize {
        self.used.lock().iter().filter(|u| **u).count()
    }
    /// Which calls find memory that no device can be let at.
    pub fn access(&self) -> &FailureInjector {
        &self.access
    }
}

impl FolioSource for ModelFrames {
    fn alloc(&self, order: u32) -> Result<Pfn, AllocError> {
        if self.failures.fails() {
            return Err(AllocError);
        }
        let mut used = self.used.lock();
        let n = 1usize.checked_shl(order).ok_or(AllocError)?;
        let first = (FIRST_FRAME.get().wrapping_neg() & (n as u64 - 1)) as usize;
        let at = (first..used.len())
            .step_by(n)
            .find(|&i| used.get(i..i + n).is_some_and(|run| run.iter().all(|u| !u)))
            .ok_or(AllocError)?;
        used[at..at + n].fill(true);
        Ok(FIRST_FRAME.add(at as u64))
    }
    fn free(&self, head: Pfn, order: u32) {
        let at = head.since(FIRST_FRAME) as usize;
        self.used.lock()[at..at + (1 << order)].fill(false);
    }
    fn list(&self, head: Pfn, order: u32, flags: FolioFlags) {
        self.lists.list(head, order, flags);
    }
    fn unlist(&self, head: Pfn, _order: u32, _flags: FolioFlags) {
        self.lists.unlist(head);
    }
    fn make_accessible(&self, _head: Pfn) -> bool {
        !self.access.fails()
    }
}

/// Page tables of a slab, with failures on demand.
#[derive(Debug)]
pub struct ModelTables<A: Arch> {
    slab: Slab<A, DefaultLock>,
    failures: Arc<FailureInjector>,
}

impl<A: Arch> ModelTables<A> {
    /// Number of tables in use.
    pub fn in_use(&self) -> usize {
        self.slab.in_use()
    }
}

// SAFETY: every call but a refused `alloc` is the slab's.
unsafe impl<A: Arch> TableMemory<A, DefaultLock> for ModelTables<A> {
    fn alloc(&self, level: Level) -> Result<TableFrame, TableAllocError> {
        if self.failures.fails() {
            return Err(TableAllocError);
        }
        self.slab.alloc(level)
    }
    fn table(&self, frame: TableFrame) -> NonNull<A::Table> {
        self.slab.table(frame)
    }
    fn desc(&self, frame: TableFrame) -> NonNull<TableDesc<DefaultLock>> {
        self.slab.desc(frame)
    }
    unsafe fn free(&self, frame: TableFrame) {
        // SAFETY: passed on to the caller.
        unsafe { self.slab.free(frame) }
    }
}

struct Parts<A: Arch> {
    tables: ModelTables<A>,
    epochs: ReaderCount,
    tlb: CountingTlb,
    memmap: MemMap<ModelPlatform<A>>,
    content: Vec<AtomicU64>,
    slots: SwapSlots<DefaultLock>,
    swapped: Vec<AtomicU64>,
    swap: ModelSwapState,
    words_per_frame: usize,
    events: EventCounts,
    ids: MmIds<DefaultLock>,
    signal: ModelSignal,
    failures: Arc<FailureInjector>,
    zero_page: Pfn,
    huge_zero: Option<Pfn>,
    extension: Box<dyn Any + Send + Sync>,
}

/// A handle to a model machine.
pub struct ModelPlatform<A: Arch>(Arc<Parts<A>>);

impl<A: Arch> Clone for ModelPlatform<A> {
    fn clone(&self) -> Self {
        ModelPlatform(self.0.clone())
    }
}

impl<A: Arch> core::fmt::Debug for ModelPlatform<A> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ModelPlatform({})", A::NAME)
    }
}

impl<A: Arch> ModelPlatform<A> {
    /// A machine.
    ///
    /// # Errors
    ///
    /// If it is too small for its zero folios.
    pub fn new(config: ModelConfig) -> Result<Self, AllocError> {
        let failures = Arc::new(FailureInjector::default());
        let frames = usize::try_from(config.nr_frames).map_err(|_| AllocError)?;
        let source = ModelFrames {
            used: Mutex::new(alloc::vec![false; frames]),
            failures: failures.clone(),
            access: FailureInjector::default(),
            lists: config.lists,
        };
        let memmap = MemMap::<Self>::with_pincount_from(
            FIRST_FRAME,
            config.nr_frames,
            source,
            A::PINCOUNT_MIN_ORDER,
        )?;
        let zero_page = memmap.alloc(0)?.hand_over().head();
        memmap.set_zero_page(zero_page);
        let huge_zero = if config.huge_zero {
            let head = memmap.alloc(A::order(Level::Pmd))?.hand_over().head();
            memmap.set_huge_zero(head);
            Some(head)
        } else {
            None
        };
        let words = config.words_per_frame.max(1);
        let slots = SwapSlots::new();
        if config.swap_slots > 0 {
            slots.open(config.swap_slots).map_err(|_| AllocError)?;
        }
        let swapped = (config.swap_slots as usize + 1) * words;
        Ok(ModelPlatform(Arc::new(Parts {
            tables: ModelTables {
                slab: Slab::new(config.nr_tables, FIRST_TABLE),
                failures: failures.clone(),
            },
            epochs: ReaderCount::new(),
            tlb: CountingTlb::default(),
            memmap,
            content: (0..frames * words).map(|_| AtomicU64::new(0)).collect(),
            slots,
            swapped: (0..swapped).map(|_| AtomicU64::new(0)).collect(),
            swap: ModelSwapState::default(),
            words_per_frame: words,
            events: EventCounts::default(),
            ids: MmIds::new(),
            signal: ModelSignal::default(),
            failures,
            zero_page,
            huge_zero,
            extension: config.extension,
        })))
    }
    /// Decides which allocation fails: of folios and of tables.
    pub fn failures(&self) -> &FailureInjector {
        &self.0.failures
    }
    /// How the swap device behaves.
    pub fn swap_state(&self) -> &ModelSwapState {
        &self.0.swap
    }
    /// The counted events.
    pub fn events(&self) -> &EventCounts {
        &self.0.events
    }
    /// Folios that are alive beside the zero folios: what a leak leaves.
    pub fn folios_in_use(&self) -> usize {
        self.0.memmap.alive().filter(|f| !f.is_zero_page() && !f.is_huge_zero()).count()
    }
    /// What the crate above keeps in the machine.
    ///
    /// # Panics
    ///
    /// If the machine was made with another extension.
    pub fn extension<T: 'static>(&self) -> &T {
        match self.0.extension.downcast_ref() {
            Some(ext) => ext,
            None => panic!("this machine has no {}", core::any::type_name::<T>()),
        }
    }
    fn word(&self, pfn: Pfn, offset: usize) -> &AtomicU64 {
        let words = self.0.words_per_frame;
        &self.0.content[pfn.since(FIRST_FRAME) as usize * words + offset / 8 % words]
    }
    /// Where the words of a slot are, unless this call fails.
    fn swapped(&self, slot: SwapSlot) -> Result<&[AtomicU64], SwapIoError> {
        let (at, words) = (slot.offset as usize, self.0.words_per_frame);
        if self.0.swap.failures.fails() {
            return Err(SwapIoError { slot });
        }
        self.0.swapped.get(at * words..(at + 1) * words).ok_or(SwapIoError { slot })
    }
}

// SAFETY: all clones share one machine, which does not change.
unsafe impl<A: Arch> TableSpace for ModelPlatform<A> {
    type Arch = A;
    type PtLock = DefaultLock;
    type Epochs = ReaderCount;
    type Tables = ModelTables<A>;
    type Tlb = CountingTlb;

    fn tables(&self) -> &ModelTables<A> {
        &self.0.tables
    }
    fn epochs(&self) -> &ReaderCount {
        &self.0.epochs
    }
    fn tlb(&self) -> &CountingTlb {
        &self.0.tlb
    }
}

impl<A: Arch> FolioSpace for ModelPlatform<A> {
    type Source = ModelFrames;
    type FolioLock = DefaultLock;
}

impl<A: Arch> FrameBytes for ModelPlatform<A> {
    fn zero(&self, pfn: Pfn, nr_pages: u64) {
        for k in 0..nr_pages {
            for w in 0..self.0.words_per_frame {
                self.store(pfn.add(k), w * 8, 0);
            }
        }
    }
    fn copy(&self, dst: Pfn, src: Pfn) {
        for w in 0..self.0.words_per_frame {
            self.store(dst, w * 8, self.load(src, w * 8));
        }
    }
    fn is_zero(&self, pfn: Pfn) -> bool {
        (0..self.0.words_per_frame).all(|w| self.load(pfn, w * 8) == 0)
    }
    fn load(&self, pfn: Pfn, offset: usize) -> u64 {
        let value = self.word(pfn, offset).load(Relaxed);
        self.0.memmap.content(pfn).used();
        value
    }
    fn store(&self, pfn: Pfn, offset: usize, value: u64) {
        self.word(pfn, offset).store(value, Relaxed);
        self.0.memmap.content(pfn).used();
    }
}

impl<A: Arch> SwapSpace for ModelPlatform<A> {
    type Lock = DefaultLock;

    fn slots(&self) -> &SwapSlots<DefaultLock> {
        &self.0.slots
    }
    fn read(&self, slot: SwapSlot, page: Pfn) -> Result<(), SwapIoError> {
        for (i, word) in self.swapped(slot)?.iter().enumerate() {
            self.store(page, i * 8, word.load(Relaxed));
        }
        Ok(())
    }
    fn write(&self, slot: SwapSlot, page: Pfn) -> Result<(), SwapIoError> {
        for (i, word) in self.swapped(slot)?.iter().enumerate() {
            word.store(self.load(page, i * 8), Relaxed);
        }
        Ok(())
    }
    fn is_synchronous(&self, _: u8) -> bool {
        !self.0.swap.asynchronous.load(Relaxed)
    }
    fn needs_stable_pages(&self, _: u8) -> bool {
        self.0.swap.stable_pages.load(Relaxed)
    }
}

impl<A: Arch> Platform for ModelPlatform<A> {
    type MmapLock = DefaultRwLock;
    type Bytes = Self;
    type Observer = EventCounts;
    type Interrupt = ModelSignal;
    type Swap = Self;

    fn memmap(&self) -> &MemMap<Self> {
        &self.0.memmap
    }
    fn bytes(&self) -> &Self {
        self
    }
    fn observer(&self) -> &EventCounts {
        &self.0.events
    }
    fn interrupt(&self) -> &ModelSignal {
        &self.0.signal
    }
    fn swap(&self) -> &Self {
        self
    }
    fn mm_ids(&self) -> &MmIds<DefaultLock> {
        &self.0.ids
    }
    fn zero_page(&self) -> Pfn {
        self.0.zero_page
    }
    fn huge_zero(&self) -> Option<Pfn> {
        self.0.huge_zero
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Mm;
    use mm_arch::VirtAddr;
    use mm_arch::model::ModelWord;

    type M = ModelPlatform<ModelWord<8>>;

    #[test]
    fn the_chosen_allocation_fails_once() {
        let m = M::new(ModelConfig::default()).expect("machine");
        m.failures().fail_after(1);
        let a = m.memmap().alloc(0).expect("first");
        assert!(m.memmap().alloc(0).is_err(), "second");
        drop((a, m.memmap().alloc(3).expect("third")));
        assert!(!m.failures().disarm(), "it was used up");
        assert_eq!(m.folios_in_use(), 0);
    }

    #[test]
    fn an_address_space_of_its_own_comes_and_goes() {
        let m = M::new(ModelConfig { huge_zero: true, ..ModelConfig::default() }).expect("machine");
        let mm = Mm::new(m.clone()).expect("space");
        assert!(mm.tables().ensure_table(mm.read().stay(), VirtAddr::new(0)).is_ok());
        drop(mm);
        assert_eq!(m.tables().in_use(), 0);
        assert!(m.memmap().is_huge_zero(m.huge_zero().expect("asked for")));
        m.store(m.zero_page(), 0, 7);
        m.copy(FIRST_FRAME.add(9), m.zero_page());
        assert_eq!(m.load(FIRST_FRAME.add(9), 0), 7);
    }
}
