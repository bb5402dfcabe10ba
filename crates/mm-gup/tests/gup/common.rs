//! Address spaces on the model machine, filled by hand so that every entry is as
//! a test wants it, a fault handler that follows a script, and the checks that
//! hold after every call.

use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, Pfn, VirtAddr, VirtRange};
use mm_fault::{FaultFlags, FaultOutcome, FaultPolicy, ThpPolicy, handle_fault};
use mm_folio::{Exclusivity, Folio, FolioFlags, FolioRun, Get, RefKind};
use mm_gup::{
    FaultError, FaultHandler, Gup, GupError, GupErrorKind, GupFault, GupFlags, GupPolicy, Pages,
    Resolved, Sink,
};
use mm_map::{MapPolicy, exit, mmap_anon};
use mm_pgtable::{LockedEntry, TableMemory, TableSpace};
use mm_rmap::RmapPlatform;
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_vma::{Event, Mm, MmRead, Observer, Platform, RssKind, VmaFlags};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

pub type M<A> = ModelPlatform<A>;
pub type E<A> = <A as Arch>::Entry;

pub const RW: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE).union(VmaFlags::SOFTDIRTY);
pub const RO: VmaFlags = VmaFlags::READ.union(VmaFlags::SOFTDIRTY);
pub const READ: GupFlags = GupFlags::empty();
pub const WRITE: GupFlags = GupFlags::WRITE;

/// Runs a generic test on every format.
#[macro_export]
macro_rules! on_all {
    ($($(#[$doc:meta])* fn $name:ident<$a:ident>() $body:block)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            fn body<$a: mm_arch::Arch>() $body
            body::<mm_arch::model::ModelWord<32>>();
            body::<mm_arch::model::ModelPair<32>>();
            body::<mm_arch::model::ModelCont<32, 4>>();
            body::<mm_x86::X86_64>();
        }
    )*};
}

/// Pages under a PMD leaf.
pub fn per_table<A: Arch>() -> u64 {
    1 << A::order(Level::Pmd)
}
/// Page `page` of the test's region, which starts with a table.
pub fn va<A: Arch>(page: u64) -> VirtAddr {
    VirtAddr::new((per_table::<A>() + page) << A::PAGE_SHIFT)
}
pub fn nz(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("not zero")
}

/// An address space with one mapping.
pub struct Space<A: Arch> {
    pub m: M<A>,
    pub mm: Arc<Mm<M<A>>>,
}

impl<A: Arch> Space<A> {
    /// A machine, and a space that maps a few tables' worth of pages.
    pub fn new(flags: VmaFlags) -> Self {
        let config = ModelConfig { huge_zero: true, nr_frames: 1 << 12, ..ModelConfig::default() };
        Self::on(machine(config).expect("machine"), flags)
    }
    pub fn on(m: M<A>, flags: VmaFlags) -> Self {
        let mm = Mm::new(m.clone()).expect("space");
        let tables = 12.min(A::nr_entries(Level::Pmd) as u64 - 2);
        let range = VirtRange::units(va::<A>(0), tables * per_table::<A>(), A::PAGE_SHIFT);
        mmap_anon(&mut mm.write(), range.expect("range"), flags).expect("free");
        Space { m, mm }
    }
    pub fn edit_vma(&self, edit: impl FnOnce(VmaFlags) -> VmaFlags) {
        let mut vmas = self.mm.write();
        let mut change = vmas.change();
        let vma = change.find_mut(va::<A>(0)).expect("mapped");
        vma.set_flags(edit(vma.flags()));
    }

    fn new_folio(&self, page: u64, order: u32) -> Folio<'_, M<A>> {
        let vmas = self.mm.read();
        let vma = vmas.find(va::<A>(page)).expect("mapped");
        let anon = self.m.anon_trees().prepare(&self.mm, &vmas, vma).expect("memory");
        let new = self.m.memmap().alloc(order).expect("memory");
        new.folio().set_anon(anon, vma.linear_index(va::<A>(page)));
        new.folio().set_flag(FolioFlags::UPTODATE | FolioFlags::SWAPBACKED);
        new.hand_over()
    }
    fn leaf(&self, pfn: Pfn, level: Level) -> E<A> {
        let vmas = self.mm.read();
        let vma = vmas.find(va::<A>(0)).expect("mapped");
        let e = E::<A>::leaf(pfn, A::prot(vma.protection()), level).mkdirty().mkyoung();
        if vma.flags().contains(VmaFlags::WRITE) { e.mkwrite(vma.write_kind()) } else { e }
    }
    /// Maps a new folio at `page` by entries: exclusive, dirty, writable if the
    /// mapping is.
    pub fn map(&self, page: u64, order: u32) -> Folio<'_, M<A>> {
        let folio = self.new_folio(page, order);
        let n = folio.nr_pages();
        if n > 1 {
            folio.grab::<Get>(n - 1).expect("fits").hand_over();
        }
        folio.add_new_anon(self.mm.id(), Level::Pte, Exclusivity::Exclusive);
        self.mm.counters().add(RssKind::Anon, n.into());
        let e = self.leaf(folio.head(), Level::Pte);
        let mut done = 0;
        while done < n {
            let at = va::<A>(page + u64::from(done));
            let vmas = self.mm.read();
            let ensured = self.mm.tables().ensure_table(vmas.stay(), at).expect("memory");
            let mut t = ensured.table().expect("no leaf");
            let i = t.index_of(at);
            let here = t.limit(i).get().min((n - done) as usize);
            t.fill(i, here, e.advance(done.into(), Level::Pte));
            done += here as u32;
        }
        folio
    }
    /// Maps a new folio at `page` by a PMD leaf.
    pub fn map_pmd(&self, page: u64) -> Folio<'_, M<A>> {
        let folio = self.new_folio(page, A::order(Level::Pmd));
        folio.add_new_anon(self.mm.id(), Level::Pmd, Exclusivity::Exclusive);
        self.mm.counters().add(RssKind::Anon, per_table::<A>());
        self.set_pmd(page, self.leaf(folio.head(), Level::Pmd));
        folio
    }
    /// Maps the huge zero folio at `page`.
    pub fn map_huge_zero(&self, page: u64) -> Folio<'_, M<A>> {
        let head = self.m.huge_zero().expect("configured");
        let e = self.leaf(head, Level::Pmd).wrprotect().mkclean().mkspecial();
        self.set_pmd(page, e);
        self.m.memmap().folio(head)
    }
    fn set_pmd(&self, page: u64, e: E<A>) {
        let vmas = self.mm.read();
        let spare = TableSpace::tables(&self.m).alloc(Level::Pte).expect("memory");
        let mut pmd = self.mm.tables().ensure_pmd(vmas.stay(), va::<A>(page)).expect("memory");
        let mut owed = self.mm.tables().tlb().obligation();
        assert!(pmd.swap(e, &mut owed).is_none());
        // SAFETY: allocated for this; nobody else knows the frame.
        unsafe { pmd.deposit(spare) };
        owed.already_done();
    }
    /// Changes a PMD leaf.
    pub fn edit_pmd(&self, page: u64, edit: impl FnOnce(E<A>) -> E<A>) {
        let vmas = self.mm.read();
        let mut pmd = self.mm.tables().lock_pmd(vmas.stay(), va::<A>(page)).expect("there");
        let mut owed = self.mm.tables().tlb().obligation();
        let e = pmd.entry();
        pmd.swap(edit(e), &mut owed);
    }
    /// Maps the zero page at `page`.
    pub fn map_zero(&self, page: u64) {
        let e = self.leaf(self.m.zero_page(), Level::Pte).wrprotect().mkclean();
        self.set(page, e.mkspecial());
    }
    /// Puts `e` at `page`, in the place of whatever is there.
    pub fn set(&self, page: u64, e: E<A>) {
        let vmas = self.mm.read();
        let at = va::<A>(page);
        let ensured = self.mm.tables().ensure_table(vmas.stay(), at).expect("memory");
        let mut t = ensured.table().expect("no leaf");
        let i = t.index_of(at);
        let mut owed = self.mm.tables().tlb().obligation();
        t.take(i, &mut owed);
        owed.already_done();
        if !e.is_none() {
            t.set(i, e);
        }
    }
    /// What maps `page`.
    pub fn entry(&self, page: u64) -> (E<A>, Level) {
        let vmas = self.mm.read();
        match self.mm.tables().lock_entry(vmas.stay(), va::<A>(page)) {
            LockedEntry::Hole => (E::<A>::NONE, Level::Pmd),
            LockedEntry::Huge(pmd) => (pmd.entry(), Level::Pmd),
            LockedEntry::Table(t) => (t.get(t.index_of(va::<A>(page))), Level::Pte),
        }
    }
    pub fn pte(&self, page: u64) -> E<A> {
        let (e, level) = self.entry(page);
        if level == Level::Pte { e } else { E::<A>::NONE }
    }
    /// Changes the entry of `page`.
    pub fn edit(&self, page: u64, f: impl FnOnce(E<A>) -> E<A>) {
        self.set(page, f(self.pte(page)));
    }
    /// Makes the entry inaccessible, as a NUMA hint is.
    pub fn hint(&self, page: u64) {
        self.edit(page, |e| e.modify(A::prot(mm_arch::Protection::none()), Level::Pte));
    }
    /// Unmaps one page.
    pub fn unmap(&self, page: u64) {
        let e = self.pte(page);
        self.set(page, E::<A>::NONE);
        let folio = self.m.memmap().folio(e.pfn(Level::Pte));
        let first = folio.index_of(e.pfn(Level::Pte));
        folio.remove_ptes(first, nz(1), self.mm.id());
        self.mm.counters().sub(RssKind::Anon, 1);
        self.m.memmap().put_run::<Get>(FolioRun::new(folio.head(), first, 1));
    }
    pub fn pfn(&self, page: u64) -> Pfn {
        self.pte(page).pfn(Level::Pte)
    }
    /// Takes the exclusive mark of the page and the write permission of its entry.
    pub fn share(&self, page: u64) {
        self.edit(page, E::<A>::wrprotect);
        self.m.memmap().clear_exclusive(self.pfn(page), 1);
    }

    /// References and pins of `folio` that no mapping explains; pins are told
    /// apart only where the folio counts them.
    pub fn held(&self, folio: Folio<'_, M<A>>) -> (i32, u32) {
        (folio.refcount() - folio.mapcount() as i32, folio.pincount())
    }
    /// Pins that the statistics say are outstanding (rule PIN-17).
    pub fn outstanding(&self) -> u64 {
        let stats = self.m.memmap().stats();
        stats.foll_pin_acquired.get() - stats.foll_pin_released.get()
    }
    /// Ends the space; nothing is left then, and nothing was held.
    pub fn finish(self) {
        assert_eq!(self.outstanding(), 0, "pins acquired and not released");
        for folio in self.m.memmap().alive() {
            let own = i32::from(folio.is_zero_page() || folio.is_huge_zero());
            assert_eq!(self.held(folio), (own, 0), "{folio:?}");
        }
        exit(&MapPolicy::default(), &self.mm);
        assert_eq!(self.m.folios_in_use(), 0, "a folio leaked");
        assert_eq!(self.m.memmap().stats().bad_frees.get(), 0);
    }

    /// Takes pages by one entry point; what came out.
    pub fn call<K: RefKind>(&self, how: How, page: u64, nr: usize, flags: GupFlags) -> Taken {
        self.call_with::<K, _, _>(
            &Gup::new(&self.mm, &()).with_policy(how.policy()),
            how,
            page,
            nr,
            flags,
        )
    }
    pub fn call_with<K: RefKind, H: FaultHandler<M<A>>, O: Observer>(
        &self,
        gup: &Gup<'_, M<A>, H, O>,
        how: How,
        page: u64,
        nr: usize,
        flags: GupFlags,
    ) -> Taken {
        let mut out = vec![Pfn::new(0); nr];
        let mut pages = Pages::new(&mut out);
        let at = va::<A>(page);
        let result = how.call::<K, A, H, O>(gup, at, nr, flags, &mut pages);
        assert_eq!(result.unwrap_or(0), pages.pages(), "the output disagrees with the count");
        let filled = pages.filled().to_vec();
        Taken { result: result.map_err(|e| e.kind), pages: filled }
    }
    /// Gives back what a call took.
    pub fn give_back<K: RefKind>(&self, taken: &Taken) {
        if K::PINS {
            mm_gup::unpin_pages(self.m.memmap(), &taken.pages);
        } else {
            mm_gup::put_pages(self.m.memmap(), &taken.pages);
        }
    }
}

impl<A: Arch> Drop for Space<A> {
    fn drop(&mut self) {
        // After a failed check: its message counts, not what is left mapped.
        if std::thread::panicking() {
            core::mem::forget(self.mm.clone());
        }
    }
}

/// What a call gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    pub result: Result<usize, GupErrorKind>,
    pub pages: Vec<Pfn>,
}

/// A path and how it batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    FastPage,
    FastRun,
    FastWhole,
    SlowPage,
    SlowRun,
    SlowTable,
}

impl How {
    pub const FAST: [How; 3] = [How::FastPage, How::FastRun, How::FastWhole];
    pub const SLOW: [How; 3] = [How::SlowPage, How::SlowRun, How::SlowTable];

    pub fn policy(self) -> GupPolicy {
        use mm_gup::{FastPolicy, SlowPolicy};
        let mut p = GupPolicy::PER_PAGE;
        match self {
            How::FastPage | How::SlowPage => {}
            How::FastRun => p.fast = FastPolicy::Run,
            How::FastWhole => p.fast = FastPolicy::Whole,
            How::SlowRun => p.slow = SlowPolicy::Run,
            How::SlowTable => p.slow = SlowPolicy::Table,
        }
        p
    }
    pub fn is_fast(self) -> bool {
        Self::FAST.contains(&self)
    }
    pub fn call<K: RefKind, A: Arch, H: FaultHandler<M<A>>, O: Observer>(
        self,
        gup: &Gup<'_, M<A>, H, O>,
        at: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        match (self.is_fast(), K::PINS) {
            (true, true) => gup.pin_fast_only(at, nr, flags, out),
            (true, false) => gup.get_fast_only(at, nr, flags, out),
            (false, true) => gup.pin(at, nr, flags, out),
            (false, false) => gup.get(at, nr, flags, out),
        }
    }
}

/// What a scripted handler does with one fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Resolves it.
    Resolve,
    /// Resolves nothing and drops the lock.
    Retry,
    /// Resolves it and drops the lock.
    Completed,
    /// Would have to wait.
    Wait,
    Fail(FaultError),
}

/// Handles faults as scripted, then resolves whatever comes.
pub struct Script {
    acts: Mutex<VecDeque<Act>>,
    seen: Mutex<Vec<(VirtAddr, GupFault)>>,
    policy: FaultPolicy,
}

impl Script {
    pub fn new<A: Arch>(acts: &[Act]) -> Self {
        Script {
            acts: Mutex::new(acts.iter().copied().collect()),
            seen: Mutex::default(),
            policy: FaultPolicy::new(ThpPolicy::new(A::order(Level::Pmd))),
        }
    }
    /// The faults so far: page of the test's region, and kind.
    pub fn seen<A: Arch>(&self) -> Vec<(u64, GupFault)> {
        let seen = self.seen.lock().expect("not poisoned");
        seen.iter().map(|(at, f)| (at.bytes_from(va::<A>(0)) >> A::PAGE_SHIFT, *f)).collect()
    }
}

impl<A: Arch> FaultHandler<M<A>> for Script {
    fn resolve<'m>(
        &self,
        vmas: MmRead<'m, M<A>>,
        va: VirtAddr,
        fault: GupFault,
    ) -> Resolved<'m, M<A>> {
        self.seen.lock().expect("not poisoned").push((va, fault));
        let act = self.acts.lock().expect("not poisoned").pop_front().unwrap_or(Act::Resolve);
        match act {
            Act::Retry => {
                let mm = vmas.mm();
                drop(vmas);
                // Nobody else holds it either.
                drop(mm.write());
                return Resolved::LockDropped;
            }
            Act::Wait => return Resolved::WouldWait(vmas),
            Act::Fail(e) => return Resolved::Failed(vmas, e),
            Act::Resolve | Act::Completed => {}
        }
        let mut flags = FaultFlags::FORCE;
        flags.set(FaultFlags::WRITE, fault.contains(GupFault::WRITE));
        flags.set(FaultFlags::UNSHARE, fault.contains(GupFault::UNSHARE));
        match handle_fault(&self.policy, &vmas, va, flags) {
            FaultOutcome::Done { .. } if act == Act::Completed => Resolved::LockDropped,
            FaultOutcome::Done { .. } => Resolved::Done(vmas),

            FaultOutcome::Oom => Resolved::Failed(vmas, FaultError::NoMemory),
            FaultOutcome::UserFault { .. } => Resolved::WouldWait(vmas),
            _ => Resolved::Failed(vmas, FaultError::Signal),
        }
    }
}

/// Counts events.
#[derive(Default)]
pub struct Counts([AtomicU64; 16]);
impl Counts {
    pub fn of(&self, event: Event) -> u64 {
        self.0[event as usize].load(Relaxed)
    }
}
impl Observer for Counts {
    fn event(&self, event: Event, nr: u64) {
        self.0[event as usize].fetch_add(nr, Relaxed);
    }
}

/// Does something at the `n`-th event of a kind: between two steps of a walk.
pub struct At<F> {
    event: Event,
    left: AtomicU64,
    act: F,
}
impl<F: Fn() + Send + Sync> At<F> {
    /// `act` at event `n` of this kind, counted from 1.
    pub fn new(event: Event, n: u64, act: F) -> Self {
        At { event, left: AtomicU64::new(n), act }
    }
}
impl<F: Fn() + Send + Sync> Observer for At<F> {
    fn event(&self, event: Event, _: u64) {
        if event == self.event && self.left.fetch_sub(1, Relaxed) == 1 {
            (self.act)();
        }
    }
}

/// A folio's share of pins, as `held` shows it for `n` pins.
pub fn as_held<A: Arch, K: RefKind>(folio: Folio<'_, M<A>>, n: u32) -> (i32, u32) {
    if !K::PINS {
        (n as i32, 0)
    } else if folio.order() >= A::PINCOUNT_MIN_ORDER {
        (n as i32, n)
    } else {
        ((n * mm_folio::PIN_BIAS) as i32, 0)
    }
}
