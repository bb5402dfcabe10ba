//! A process on the model machine: a CPU that faults, and fork and exit made
//! step by step from the crates below, so that no test depends on the code
//! that will do it in earnest.
#![allow(dead_code, reason = "each test file uses its part")]

use core::num::NonZeroU32;
use mm_arch::{AccessKind, Arch, Entry, Level, Pfn, VirtAddr, VirtRange};
use mm_fault::{FaultFlags, FaultOutcome, FaultPolicy, ThpPolicy, handle_fault};
use mm_folio::{Folio, FolioRun, FrameBytes, Get, HasPinned};
use mm_pgtable::{LockedEntry, TableMemory, TableSpace};
use mm_rmap::RmapPlatform;
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_vma::{
    Event, Mm, MmRead, Platform, RssKind, SlotRun, SwapSpace, Vma, VmaFlags, free_swap_cache,
    put_swap,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub type M<A> = ModelPlatform<A>;
pub type E<A> = <A as Arch>::Entry;

pub const RW: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE).union(VmaFlags::SOFTDIRTY);
pub const R: VmaFlags = VmaFlags::READ.union(VmaFlags::SOFTDIRTY);

pub fn va(page: u64) -> VirtAddr {
    VirtAddr::new(page << 12)
}
pub fn pages(first: u64, n: u64) -> VirtRange {
    VirtRange::units(va(first), n, 12).expect("range")
}

pub fn new_machine<A: Arch>() -> M<A> {
    machine(ModelConfig { huge_zero: true, swap_slots: 255, ..ModelConfig::default() })
        .expect("machine")
}

/// An address space and the CPU that runs in it.
pub struct Process<A: Arch> {
    pub mm: Arc<Mm<M<A>>>,
    pub policy: FaultPolicy,
    faults: AtomicU64,
    inside: Option<Inside<A>>,
}

/// The read side of the mmap lock, held for all threads of a model: the model
/// checker's lock lets one reader in at a time.
struct Inside<A: Arch>(MmRead<'static, M<A>>);
// SAFETY: threads only borrow the guard, for what a guard of their own would
// say as well; the thread that took it drops it.
unsafe impl<A: Arch> Send for Inside<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for Inside<A> {}

impl<A: Arch> Process<A> {
    pub fn new(m: &M<A>) -> Self {
        let policy = FaultPolicy::new(ThpPolicy::new(A::order(Level::Pmd)));
        let mm = Mm::new(m.clone()).expect("space");
        Process { mm, policy, faults: AtomicU64::new(0), inside: None }
    }
    pub fn with_policy(mut self, thp: ThpPolicy) -> Self {
        self.policy.thp = thp;
        self
    }
    /// Lets several threads of a model in at once.
    pub fn shared(mut self) -> Arc<Self> {
        let guard = self.mm.read();
        // SAFETY: `self` owns the space, and `drop` drops the guard first.
        let guard =
            unsafe { core::mem::transmute::<MmRead<'_, M<A>>, MmRead<'static, M<A>>>(guard) };
        self.inside = Some(Inside(guard));
        Arc::new(self)
    }
    /// Calls `f` with the read side of the mmap lock.
    pub fn with<R>(&self, f: impl FnOnce(&MmRead<'_, M<A>>) -> R) -> R {
        match &self.inside {
            Some(inside) => f(&inside.0),
            None => f(&self.mm.read()),
        }
    }
    pub fn machine(&self) -> &M<A> {
        self.mm.platform()
    }
    pub fn map(&self, range: VirtRange, flags: VmaFlags) -> &Self {
        self.mm.write().change().insert(Vma::anonymous(range, flags, 12)).expect("free");
        self
    }
    pub fn fault(&self, page: u64, flags: FaultFlags) -> FaultOutcome {
        self.faults.fetch_add(1, Relaxed);
        self.fault_under(&self.policy, page, flags)
    }
    pub fn fault_under(&self, policy: &FaultPolicy, page: u64, flags: FaultFlags) -> FaultOutcome {
        self.with(|vmas| handle_fault(policy, vmas, va(page), flags))
    }
    /// What maps the page: an entry of a PTE table or of a PMD table.
    pub fn entry(&self, page: u64) -> (E<A>, Level) {
        self.with(|vmas| match self.mm.tables().lock_entry(vmas.stay(), va(page)) {
            LockedEntry::Hole => (E::<A>::NONE, Level::Pmd),
            LockedEntry::Huge(pmd) => (pmd.entry(), Level::Pmd),
            LockedEntry::Table(t) => (t.get(t.index_of(va(page))), Level::Pte),
        })
    }
    pub fn pte(&self, page: u64) -> E<A> {
        let (e, level) = self.entry(page);
        if level == Level::Pte { e } else { E::<A>::NONE }
    }
    pub fn pfn(&self, page: u64) -> Pfn {
        let (e, level) = self.entry(page);
        assert!(e.is_leaf(level), "page {page} is not mapped: {e:?}");
        let below = page % (1 << A::order(Level::Pmd));
        if level == Level::Pte { e.pfn(level) } else { e.pfn(level).add(below) }
    }
    pub fn folio(&self, page: u64) -> Folio<'_, M<A>> {
        self.machine().memmap().folio(self.pfn(page))
    }
    pub fn is_exclusive(&self, page: u64) -> bool {
        self.machine().memmap().page_exclusive(self.pfn(page))
    }
    /// Faults that the CPU took.
    pub fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }
    pub fn rss(&self) -> u64 {
        self.mm.counters().get(RssKind::Anon)
    }
    pub fn reused(&self) -> u64 {
        self.machine().events().get(Event::PagesReused)
    }
    /// Changes a PTE under its lock.
    pub fn change(&self, page: u64, change: impl FnOnce(E<A>) -> E<A>) {
        self.with(|vmas| {
            let mut t = self.mm.tables().lock_table(vmas.stay(), va(page)).expect("table");
            let run = t.single(t.index_of(va(page)));
            let mut owed = self.mm.tables().tlb().obligation();
            t.modify(run, &mut owed, change);
        });
    }

    /// A CPU's access: marks the entry dirty if that permits a store, else faults.
    fn access(&self, page: u64, kind: AccessKind) -> Pfn {
        for _ in 0..8 {
            let (e, level) = self.entry(page);
            if e.is_present(level) && e.permits(kind, level) {
                if kind == AccessKind::Write && level == Level::Pte {
                    self.mark_stored(page);
                }
                return self.pfn(page);
            }
            let flags = match kind {
                AccessKind::Write => FaultFlags::WRITE,
                _ => FaultFlags::empty(),
            };
            let outcome = self.fault(page, flags);
            assert!(matches!(outcome, FaultOutcome::Done { .. }), "{outcome:?}");
        }
        panic!("the access to page {page} faults for ever");
    }
    fn mark_stored(&self, page: u64) {
        self.with(|vmas| {
            let t = self.mm.tables().lock_table(vmas.stay(), va(page)).expect("table");
            assert!(t.mark_as_hardware(t.index_of(va(page)), AccessKind::Write));
        });
    }
    pub fn read(&self, page: u64) -> u64 {
        let pfn = self.access(page, AccessKind::Read);
        self.machine().load(pfn, 0)
    }
    pub fn write(&self, page: u64, value: u64) {
        let pfn = self.access(page, AccessKind::Write);
        self.machine().store(pfn, 0, value);
    }

    /// Fork, page by page.
    pub fn fork(&self) -> Process<A> {
        let m = self.machine();
        let mut child = Process::new(m);
        child.policy = self.policy;
        let vmas = self.mm.write();
        let mut child_vmas = child.mm.write();
        let parent = if self.mm.has_pinned() { HasPinned::Maybe } else { HasPinned::Never };
        let mut owed = self.mm.tables().tlb().obligation();
        for vma in vmas.iter() {
            let copy = vma.clone();
            m.anon_trees().fork_vma(&child.mm, vma, &copy).expect("memory");
            child_vmas.change().insert(copy).expect("free");
            let mut page = vma.start().get() >> 12;
            let end = page + vma.nr_pages();
            while page < end {
                page += self.copy_entry(&vmas, &child, &child_vmas, page, parent, &mut owed);
            }
        }
        owed.now();
        drop(child_vmas);
        child
    }
    fn copy_entry(
        &self,
        vmas: &mm_vma::MmWrite<'_, M<A>>,
        child: &Process<A>,
        child_vmas: &mm_vma::MmWrite<'_, M<A>>,
        page: u64,
        parent: HasPinned,
        owed: &mut mm_arch::Flush<'_, <M<A> as TableSpace>::Tlb>,
    ) -> u64 {
        let m = self.machine();
        match self.mm.tables().lock_entry(vmas.stay(), va(page)) {
            LockedEntry::Hole => 1,
            LockedEntry::Huge(mut pmd) => {
                let nr = 1 << A::order(Level::Pmd);
                let e = pmd.entry();
                let mut to =
                    child.mm.tables().ensure_pmd(child_vmas.stay(), va(page)).expect("pmd");
                // SAFETY: allocated for this; nobody else knows the frame.
                unsafe { to.deposit(TableSpace::tables(m).alloc(Level::Pte).expect("table")) };
                if !m.memmap().is_huge_zero(e.pfn(Level::Pmd)) {
                    let folio = m.memmap().folio(e.pfn(Level::Pmd));
                    folio.grab::<Get>(1).expect("reference").hand_over();
                    folio.try_dup_anon_pmd(child.mm.id(), parent).expect("not pinned");
                    child.mm.counters().add(RssKind::Anon, nr);
                }
                pmd.wrprotect(owed);
                let mut none = child.mm.tables().tlb().obligation();
                to.swap(e.wrprotect().mkold(), &mut none);
                nr
            }
            LockedEntry::Table(mut t) => {
                let index = t.index_of(va(page));
                let e = t.get(index);
                if e.is_none() {
                    return 1;
                }
                let to = child.mm.tables().ensure_table(child_vmas.stay(), va(page));
                let mut to = to.expect("memory").table().expect("no huge entry");
                if !m.memmap().is_zero_page(e.pfn(Level::Pte)) {
                    let folio = m.memmap().folio(e.pfn(Level::Pte));
                    folio.grab::<Get>(1).expect("reference").hand_over();
                    let first = folio.index_of(e.pfn(Level::Pte));
                    let dup =
                        folio.try_dup_anon_ptes(first, NonZeroU32::MIN, child.mm.id(), parent);
                    dup.expect("not pinned");
                    child.mm.counters().add(RssKind::Anon, 1);
                }
                t.wrprotect(index, 1, owed);
                to.set(index, e.wrprotect().mkold());
                1
            }
        }
    }

    /// Unmaps one page, which no PMD leaf maps.
    pub fn discard(&self, page: u64) {
        self.with(|vmas| self.discard_with(vmas, page));
    }
    fn discard_with(&self, vmas: &MmRead<'_, M<A>>, page: u64) {
        let Some(mut t) = self.mm.tables().lock_table(vmas.stay(), va(page)) else { return };
        let mut owed = self.mm.tables().tlb().obligation();
        let index = t.index_of(va(page));
        let old = t.take(index, &mut owed);
        if let Some(slot) = old.swap_slot() {
            self.mm.counters().sub(RssKind::Swap, 1);
            return put_swap(self.machine(), SlotRun::new(slot, 1));
        }
        if !old.is_present(Level::Pte) || self.machine().memmap().is_zero_page(old.pfn(Level::Pte))
        {
            return;
        }
        let folio = self.machine().memmap().folio(old.pfn(Level::Pte));
        let first = folio.index_of(old.pfn(Level::Pte));
        folio.remove_ptes(first, NonZeroU32::MIN, self.mm.id());
        self.mm.counters().sub(RssKind::Anon, 1);
        owed.now();
        drop(t);
        free_swap_cache(self.machine(), folio);
        self.machine().memmap().put_run::<Get>(FolioRun::new(folio.head(), first, 1));
    }
    /// Unmaps the PMD leaf at `page`; whether there is one.
    pub fn discard_pmd(&self, page: u64) -> bool {
        let vmas = self.mm.read();
        let m = self.machine();
        let LockedEntry::Huge(mut pmd) = self.mm.tables().lock_entry(vmas.stay(), va(page)) else {
            return false;
        };
        let mut owed = self.mm.tables().tlb().obligation();
        let old = pmd.swap(E::<A>::NONE, &mut owed);
        let spare = pmd.withdraw().expect("every PMD leaf has a deposited table");
        drop(pmd);
        owed.now();
        // SAFETY: withdrawn, so nobody can reach it.
        unsafe { self.mm.tables().free_unlinked(spare) };
        if !m.memmap().is_huge_zero(old.pfn(Level::Pmd)) {
            let folio = m.memmap().folio(old.pfn(Level::Pmd));
            folio.remove_pmd(self.mm.id());
            self.mm.counters().sub(RssKind::Anon, u64::from(folio.nr_pages()));
            m.memmap().put_run::<Get>(FolioRun::new(folio.head(), 0, 1));
        }
        true
    }
    /// Unmaps everything.
    pub fn unmap_all(&self) {
        let ranges: Vec<_> = self.mm.read().iter().map(Vma::range).collect();
        for range in ranges {
            for k in 0..range.nr(12) {
                let page = (range.start().get() >> 12) + k;
                if !self.discard_pmd(page) {
                    self.discard(page);
                }
            }
            let mut vmas = self.mm.write();
            let trees = self.machine().anon_trees();
            vmas.change().remove(range, |vma| trees.unlink(&self.mm, &vma));
        }
    }
    pub fn exit(self) {}

    /// The global invariants INV-1 to INV-3 and INV-6, for this address space.
    pub fn check(&self) {
        let map = self.machine().memmap();
        let mut resident = 0;
        let vmas: Vec<_> = self.mm.read().iter().map(Vma::range).collect();
        for range in vmas {
            let mut k = 0;
            while k < range.nr(12) {
                let page = (range.start().get() >> 12) + k;
                let (e, level) = self.entry(page);
                k += 1;
                if !e.is_leaf(level) || self.counts_nothing(e, level) {
                    assert!(!e.is_leaf(level) || !e.is_writable(level), "zero page writable");
                    continue;
                }
                let folio = map.folio(e.pfn(level));
                let shared = i64::from(folio.refcount()) >= i64::from(folio.mapcount());
                assert!(shared, "INV-1: {folio:?}");
                if let Some((_, first)) = folio.anon() {
                    let index = first + u64::from(folio.index_of(e.pfn(level)));
                    // The mappings of these tests start at their own index.
                    let aligned = page & !((1 << A::order(level)) - 1);
                    assert_eq!(index, aligned, "linear index of page {page}");
                }
                if e.is_writable(level) {
                    assert!(map.page_exclusive(e.pfn(level)), "INV-2: page {page}");
                    assert!(!e.is_uffd_wp());
                }
                if map.page_exclusive(e.pfn(level)) && level == Level::Pte {
                    assert_eq!(map.page_mapcount(e.pfn(level)), 1, "INV-3: page {page}");
                }
                resident += if level == Level::Pte { 1 } else { u64::from(folio.nr_pages()) };
                if level == Level::Pmd {
                    k += (1 << A::order(Level::Pmd)) - 1;
                }
            }
        }
        assert_eq!(self.rss(), resident, "INV-6");
        self.mm.tables().audit_counts(self.mm.write().stay(), &mut |frame, counted, claimed| {
            panic!("table {frame:?} has {counted} entries, says {claimed}")
        });
    }
    fn counts_nothing(&self, e: E<A>, level: Level) -> bool {
        let map = self.machine().memmap();
        map.is_zero_page(e.pfn(level)) || map.is_huge_zero(e.pfn(level))
    }
}

impl<A: Arch> Drop for Process<A> {
    fn drop(&mut self) {
        self.inside = None;
        if std::thread::panicking() {
            // Its destructor would complain about what a failed test left.
            core::mem::forget(self.mm.clone());
        } else {
            self.unmap_all();
        }
    }
}

/// Nothing is left of all processes of the machine.
pub fn assert_clean<A: Arch>(m: &M<A>) {
    assert_eq!(m.folios_in_use(), 0, "folios leaked: {:?}", m.memmap().alive().collect::<Vec<_>>());
    assert_eq!(TableSpace::tables(m).in_use(), 0, "tables leaked");
    assert_eq!(m.memmap().stats().bad_frees.get(), 0);
    assert_eq!(m.slots().in_use().next(), None, "swap slots leaked");
}

/// The test on every model format.
#[macro_export]
macro_rules! on_models {
    ($($(#[$doc:meta])* fn $name:ident<$a:ident>() $body:block)*) => {$(
        mod $name {
            use super::*;
            fn body<$a: mm_arch::Arch>() $body
            $(#[$doc])*
            #[test]
            fn word() { body::<mm_arch::model::ModelWord<16>>() }
            $(#[$doc])*
            #[test]
            fn pair() { body::<mm_arch::model::ModelPair<16>>() }
            $(#[$doc])*
            #[test]
            fn cont() { body::<mm_arch::model::ModelCont<16, 4>>() }
            $(#[$doc])*
            #[test]
            fn x86_64() { body::<mm_x86::X86_64>() }
        }
    )*};
}
