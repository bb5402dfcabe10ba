//! From an address to the code that resolves it: mapping, PMD level, PTE level.

use crate::flags::{Access, check};
use crate::{FaultFlags, FaultOutcome, FaultPolicy, FaultSignal, NeedsMmapLock};
use core::cell::Cell;
use mm_arch::{Arch, Entry, FlushScope, Level, Markers, NonPresent, VirtAddr, VirtRange};
use mm_folio::{Folio, MemMap};
use mm_pgtable::{Ensured, LockedTable, PageTables, Step, TableSpace, TablesStay};
use mm_rmap::RmapPlatform;
use mm_vma::{Event, Mm, MmRead, Observer, Vma, VmaFlags, VmaRead, VmaStore};

pub(crate) type E<P> = <<P as TableSpace>::Arch as Arch>::Entry;
pub(crate) type Prot<P> = <E<P> as Entry>::Prot;

/// Resolves the fault at `va`.
///
/// `vmas` is held throughout: mappings do not change and no table goes away.
/// Entries may: whoever decides on an entry has looked at it under its lock.
///
/// [`FaultOutcome::Done`] means that the access may be made again. It can fault
/// again: somebody else changed the entry, or the access needs more than one
/// step (a zero page that is then written).
///
/// # Errors
///
/// As outcomes: a signal, with the address, or no memory. Counts, counters and
/// entries are then as they were; page tables that were made on the way stay.
pub fn handle_fault<P: RmapPlatform>(
    policy: &FaultPolicy,
    vmas: &MmRead<'_, P>,
    va: VirtAddr,
    flags: FaultFlags,
) -> FaultOutcome {
    let va = va.align_down(<P::Arch as Arch>::PAGE_SHIFT);
    let Some(vma) = vmas.find(va) else {
        return FaultOutcome::Signal(FaultSignal::Segv { va });
    };
    let held = Held { mm: vmas.mm(), stay: vmas.stay(), vmas: Some(vmas), vma };
    handle(policy, held, va, flags).0
}

/// As [`handle_fault`], with the lock of one VMA, for which no writer of the mmap lock that
/// has to do with other VMAs only is waited for.
///
/// The mmap lock is taken as well, if that needs no waiting, by the first private page of a
/// mapping, which looks at its neighbours (rule RMAP-21).
///
/// # Errors
///
/// If the lock does not suffice: the address is not of the VMA, userfaultfd may have to be
/// asked, or the mmap lock was needed and not to be had. Nothing was changed.
pub fn handle_fault_in_vma<P: RmapPlatform>(
    policy: &FaultPolicy,
    locked: &VmaRead<'_, P>,
    va: VirtAddr,
    flags: FaultFlags,
) -> Result<FaultOutcome, NeedsMmapLock> {
    let va = va.align_down(<P::Arch as Arch>::PAGE_SHIFT);
    let vma = locked.vma();
    let asks = VmaFlags::UFFD_MISSING | VmaFlags::UFFD_WP | VmaFlags::UFFD_MINOR;
    if !vma.range().contains(va) || vma.flags().intersects(asks) {
        return Err(NeedsMmapLock);
    }
    let held = Held { mm: locked.mm(), stay: locked.stay(), vmas: None, vma };
    match handle(policy, held, va, flags) {
        (_, true) => Err(NeedsMmapLock),
        (outcome, false) => Ok(outcome),
    }
}

/// What the lock that a fault holds gives it.
pub(crate) struct Held<'f, 'm: 'f, P: RmapPlatform> {
    pub mm: &'m Mm<P>,
    pub stay: TablesStay<'f>,
    /// All of them; `None` with the lock of `vma` only.
    pub vmas: Option<&'f VmaStore>,
    pub vma: &'f Vma,
}

/// The outcome, and whether the fault gave up since it needs the mmap lock.
fn handle<P: RmapPlatform>(
    policy: &FaultPolicy,
    held: Held<'_, '_, P>,
    va: VirtAddr,
    flags: FaultFlags,
) -> (FaultOutcome, bool) {
    let vma = held.vma;
    let access = match check(vma, va, flags) {
        Ok(access) => access,
        Err(signal) => return (FaultOutcome::Signal(signal), false),
    };
    // Shared memory without an object to keep its pages (rule ANON-01).
    if vma.flags().contains(VmaFlags::SHARED) && vma.is_anonymous() {
        return (FaultOutcome::Signal(FaultSignal::Bus { va }), false);
    }
    let retried = flags.contains(FaultFlags::TRIED);
    let fault = Fault::new(policy, held, va, access, retried);
    let outcome = fault.resolve();
    (outcome, fault.gave_up.get())
}

/// One fault, sane and allowed.
pub(crate) struct Fault<'f, 'm: 'f, P: RmapPlatform> {
    pub policy: &'f FaultPolicy,
    mm: &'m Mm<P>,
    stay: TablesStay<'f>,
    /// All VMAs of the space; `None` with the lock of `vma` only.
    pub vmas: Option<&'f VmaStore>,
    pub vma: &'f Vma,
    /// First address of the page.
    pub va: VirtAddr,
    pub access: Access,
    pub retried: bool,
    /// Whether it ends, as if there were no memory, because it needs the mmap lock.
    pub gave_up: Cell<bool>,
}

/// What a part of the work came to.
pub(crate) enum Progress {
    /// The fault is over.
    Over(FaultOutcome),
    /// The tables look different now: look again, within this fault.
    LookAgain,
}

impl From<FaultOutcome> for Progress {
    fn from(outcome: FaultOutcome) -> Self {
        Progress::Over(outcome)
    }
}

/// What a look without locks found.
enum Seen<E> {
    /// No table and no leaf.
    Hole,
    /// A leaf at PMD level.
    Huge(E),
    /// An entry of a PTE table.
    Pte(E),
}

impl<'f, 'm, P: RmapPlatform> Fault<'f, 'm, P> {
    pub fn new(
        policy: &'f FaultPolicy,
        held: Held<'f, 'm, P>,
        va: VirtAddr,
        access: Access,
        retried: bool,
    ) -> Self {
        let Held { mm, stay, vmas, vma } = held;
        Fault { policy, mm, stay, vmas, vma, va, access, retried, gave_up: Cell::new(false) }
    }
    #[inline]
    pub fn mm(&self) -> &'m Mm<P> {
        self.mm
    }
    #[inline]
    pub fn tables(&self) -> &'m PageTables<P> {
        self.mm().tables()
    }
    #[inline]
    pub fn memmap(&self) -> &'m MemMap<P> {
        self.mm().platform().memmap()
    }
    #[inline]
    pub fn stay(&self) -> TablesStay<'f> {
        self.stay
    }
    #[inline]
    pub fn event(&self, event: Event, nr: u64) {
        self.mm().platform().observer().event(event, nr);
    }
    #[inline]
    pub fn prot(&self) -> Prot<P> {
        P::Arch::prot(self.vma.protection())
    }
    /// The page of the fault, as a range to flush.
    pub fn page(&self) -> Option<VirtRange> {
        VirtRange::units(self.va, 1, <P::Arch as Arch>::PAGE_SHIFT).ok()
    }
    /// Locks the PTE table of the fault; `None` if there is none (any more).
    #[inline]
    pub fn lock_table(&self) -> Option<LockedTable<'f, P>> {
        let tables: &'f PageTables<P> = self.tables();
        tables.lock_table(self.stay(), self.va)
    }
    /// The folio that a present entry maps, if it is one with counts: not the
    /// zero page, and not a frame without a record. Stable while the entry's
    /// lock is held.
    #[inline]
    pub fn counted_folio(&self, e: E<P>) -> Option<Folio<'m, P>> {
        let pfn = e.pfn(Level::Pte);
        let map = self.memmap();
        if e.is_special() || !map.contains(pfn) || map.is_zero_page(pfn) {
            return None;
        }
        Some(map.folio(pfn))
    }
    /// `e` as the access leaves it: young, and dirty after a store. A writable
    /// entry stays writable whatever its format keeps dirty in (rule SHSTK-06).
    #[inline]
    pub fn touched(&self, e: E<P>, level: Level) -> E<P> {
        if !self.access.is_write() {
            return e.mkyoung();
        }
        let new = e.mkyoung().mkdirty();
        if e.is_writable(level) { new.mkwrite(self.vma.write_kind()) } else { new }
    }
    /// `e` writable, if the mapping allows stores (rule FAULT-11).
    #[inline]
    pub fn maybe_mkwrite(&self, e: E<P>) -> E<P> {
        if self.vma.flags().contains(VmaFlags::WRITE) {
            e.mkwrite(self.vma.write_kind())
        } else {
            e
        }
    }

    fn resolve(&self) -> FaultOutcome {
        loop {
            let progress = match self.look() {
                Seen::Hole => self.hole(),
                Seen::Huge(e) => self.huge(e),
                Seen::Pte(e) if e.is_none() => self.missing(e).into(),
                Seen::Pte(e) if e.is_present(Level::Pte) => self.present(e),
                Seen::Pte(e) => self.nonpresent(e),
            };
            if let Progress::Over(outcome) = progress {
                return outcome;
            }
        }
    }

    /// Looks without locks (rules FAULT-02, FAULT-03).
    #[inline]
    fn look(&self) -> Seen<E<P>> {
        let guard = self.tables().pin();
        match guard.walk(self.va) {
            Step::Hole { .. } => Seen::Hole,
            Step::Leaf(slot) => Seen::Huge(slot.entry()),
            Step::Table(_, table) => Seen::Pte(table.get(table.index_of(self.va))),
        }
    }

    /// Nothing is mapped: the entry was `seen`, empty or a marker.
    pub fn missing(&self, seen: E<P>) -> FaultOutcome {
        match self.vma.backing() {
            Some(backing) => self.backed(&**backing, seen),
            None => self.anonymous(seen),
        }
    }

    fn hole(&self) -> Progress {
        // What an object has may need no table.
        if !self.vma.is_anonymous() {
            return self.missing(E::<P>::NONE).into();
        }
        if let Some(outcome) = self.huge_missing() {
            return outcome.into();
        }
        // The table first: its failure leaves nothing to undo (rule ANON-01).
        match self.tables().ensure_table(self.stay(), self.va) {
            Ok(Ensured::Table(table)) => drop(table),
            Ok(Ensured::Huge(pmd)) => {
                let e = pmd.entry();
                drop(pmd);
                return match e.nonpresent(Level::Pmd) {
                    // A leaf that appeared meanwhile is dealt with at once.
                    None => Progress::LookAgain,
                    // It is being moved: the access waits by faulting again.
                    Some(NonPresent::Migration { .. }) => FaultOutcome::MINOR.into(),
                    // Of a kind that nobody in this workspace makes.
                    Some(_) => FaultOutcome::Signal(FaultSignal::Bus { va: self.va }).into(),
                };
            }
            Err(_) => return FaultOutcome::Oom.into(),
        }
        self.anonymous(E::<P>::NONE).into()
    }

    /// A present entry, as it was seen without the lock (rules FAULT-03, FAULT-04).
    fn present(&self, seen: E<P>) -> Progress {
        let Some(mut table) = self.lock_table() else { return Progress::LookAgain };
        let index = table.index_of(self.va);
        if table.get(index) != seen && !mm_sync::mutant!("fault.present.no_recheck") {
            return FaultOutcome::MINOR.into();
        }
        if seen.is_protnone(Level::Pte) && self.vma.is_accessible() {
            return self.hinted(table, seen).into();
        }
        if self.access.breaks_cow() && !seen.is_writable(Level::Pte) {
            return self.write_protected(table, seen).into();
        }
        let changed = table.set_access_flags(index, self.touched(seen, Level::Pte));
        drop(table);
        if !changed {
            self.spurious(self.page());
        }
        FaultOutcome::MINOR.into()
    }

    /// Nothing was wrong with the entry: a CPU used a translation from before
    /// it became more permissive (rule FAULT-05).
    pub fn spurious(&self, range: Option<VirtRange>) {
        if let Some(range) = range
            && self.access.is_write()
            && !self.retried
        {
            self.tables().tlb().flush(range, FlushScope::Leaves);
        }
    }

    /// An entry that is neither empty nor present.
    fn nonpresent(&self, e: E<P>) -> Progress {
        let va = self.va;
        let outcome = match e.nonpresent(Level::Pte) {
            Some(NonPresent::Marker(Markers::UFFD_WP)) => return self.marked(e),
            Some(NonPresent::Swap(slot)) => self.swap_in(e, slot),
            // Whoever moves the page puts an entry back; the access waits by
            // faulting again.
            Some(NonPresent::Migration { .. }) => FaultOutcome::MINOR,
            Some(NonPresent::Marker(m)) if m.contains(Markers::GUARD) => {
                FaultOutcome::Signal(FaultSignal::Segv { va })
            }
            Some(NonPresent::Marker(m)) if m.contains(Markers::POISONED) => {
                FaultOutcome::Signal(FaultSignal::Poisoned { va })
            }
            Some(NonPresent::Hwpoison(_)) => FaultOutcome::Signal(FaultSignal::Poisoned { va }),
            // Of a kind that nobody in this workspace makes.
            _ => FaultOutcome::Signal(FaultSignal::Bus { va }),
        };
        outcome.into()
    }
}
