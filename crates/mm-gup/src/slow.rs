//! The slow path: under the mmap lock, with faults.

use crate::unshare::{make_accessible, unshared_pages};
use crate::{
    FaultError, FaultHandler, GupError, GupErrorKind, GupFault, GupFlags, Resolved, Sink,
    SlowPolicy,
};
use mm_arch::{Arch, Entry, Level, Pfn, VirtAddr, VirtRange, respect};
use mm_folio::{Folio, FolioFlags, FolioRun, MemMap, RefKind};
use mm_pgtable::{LockedEntry, LockedPmd, LockedTable};
use mm_vma::{Event, Interrupt, Mm, MmRead, Observer, Platform, Vma, VmaFlags};

/// Runs collected under one lock.
const RUNS: usize = 32;

type E<P> = <<P as mm_pgtable::TableSpace>::Arch as Arch>::Entry;

/// Runs whose references are held but which no output owns yet. Giving them
/// back on drop is what makes an early return safe.
struct RunBuf<'m, P: Platform, K: RefKind> {
    map: &'m MemMap<P>,
    /// Of the call, not of the walk: a walk for one page must not pay for filling it.
    runs: &'m mut [FolioRun; RUNS],
    nr: usize,
    pages: usize,
    _kind: core::marker::PhantomData<K>,
}

impl<'m, P: Platform, K: RefKind> RunBuf<'m, P, K> {
    fn new(map: &'m MemMap<P>, runs: &'m mut [FolioRun; RUNS]) -> Self {
        RunBuf { map, runs, nr: 0, pages: 0, _kind: core::marker::PhantomData }
    }
    fn push(&mut self, run: FolioRun) {
        self.runs[self.nr] = run;
        self.count(run.nr as usize);
    }
    /// A run of `n` pages that nothing is held of.
    fn count(&mut self, n: usize) {
        self.nr += 1;
        self.pages += n;
    }
    fn held(&self) -> impl Iterator<Item = &FolioRun> {
        self.runs[..self.nr].iter().filter(|run| run.nr > 0)
    }
    /// Hands everything to `out`; number of pages.
    fn fill(mut self, out: &mut impl Sink) -> usize {
        let mut counted = 0;
        for run in self.held() {
            counted += crate::unpin::counted(self.map, run);
            out.push(*run);
        }
        if K::PINS {
            self.map.stats().foll_pin_acquired.add(counted);
        }
        self.nr = 0;
        self.pages
    }
}

impl<P: Platform, K: RefKind> Drop for RunBuf<'_, P, K> {
    fn drop(&mut self) {
        for run in self.held() {
            self.map.put_run::<K>(*run);
        }
    }
}

/// What a look at the page tables found (rule GUPS-09).
enum Followed {
    /// This many pages were taken.
    Pages(usize),
    /// Nothing that may be taken: fault.
    NotMapped,
    /// Maybe shared, and must not be: fault to unshare.
    MustUnshare,
    /// Final.
    Error(GupErrorKind),
}

/// What is done with pages that may be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// They are held and handed out.
    Held,
    /// They are counted: the caller only wants them to be there (rule POP-04).
    Counted,
}

/// One request.
pub(crate) struct Slow<'a, P: Platform, H, O> {
    pub mm: &'a Mm<P>,
    pub handler: &'a H,
    pub observer: &'a O,
    pub policy: SlowPolicy,
    pub flags: GupFlags,
    pub found: Found,
}

impl<'a, P: Platform, H: FaultHandler<P>, O: Observer> Slow<'a, P, H, O> {
    /// Takes up to `nr` pages from `va` on, faulting in what is missing. An
    /// error after the first page ends the request with the pages so far (rule
    /// GUPS-07).
    pub fn take<K: RefKind>(
        &self,
        va: VirtAddr,
        nr: usize,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        let mut guard = Some(self.mm.read());
        let mut done = 0;
        let mut tried = false;
        let mut runs = [FolioRun { head: Pfn::new(0), first: 0, nr: 0 }; RUNS];
        while done < nr {
            let at = va.add_units(done as u64, P::Arch::PAGE_SHIFT);
            match self.step::<K>(&mut guard, &mut runs, at, nr - done, tried, out) {
                Ok(0) => tried = guard.is_none(),
                Ok(n) => {
                    done += n;
                    tried = false;
                }
                Err(_) if done > 0 => return Ok(done),
                Err(kind) => return Err(GupError::new(at, kind)),
            }
        }
        Ok(done)
    }

    /// One look, or one fault. Without a guard the lock was dropped, and is
    /// taken again here (rule GUPS-02).
    fn step<K: RefKind>(
        &self,
        guard: &mut Option<MmRead<'a, P>>,
        runs: &mut [FolioRun; RUNS],
        at: VirtAddr,
        want: usize,
        tried: bool,
        out: &mut impl Sink,
    ) -> Result<usize, GupErrorKind> {
        if self.mm.platform().interrupt().is_fatal_signal_pending() {
            return Err(GupErrorKind::Interrupted);
        }
        let vmas = guard.take().unwrap_or_else(|| self.mm.read());
        let followed = {
            // No stack is grown on behalf of GUP (rule GUPS-32).
            let vma = vmas.find(at).ok_or(self.mapping_error(GupErrorKind::Unmapped))?;
            check_vma(vma, self.flags).map_err(|_| self.mapping_error(GupErrorKind::Invalid))?;
            let left = vma.range().bytes_after(at) >> P::Arch::PAGE_SHIFT;
            let want = want.min(usize::try_from(left).unwrap_or(usize::MAX));
            self.follow::<K>(&vmas, vma, runs, at, want, out)
        };
        let unshare = match followed {
            Followed::Pages(n) => {
                *guard = Some(vmas);
                return Ok(n);
            }
            Followed::Error(kind) => return Err(kind),
            Followed::NotMapped => false,
            Followed::MustUnshare => true,
        };
        *guard = self.fault_in(vmas, at, unshare, tried)?;
        Ok(0)
    }

    /// What a mapping that is not there, or does not suit, is called (rule POP-03).
    fn mapping_error(&self, of_madvise: GupErrorKind) -> GupErrorKind {
        if self.flags.contains(GupFlags::MADV_POPULATE) { of_madvise } else { GupErrorKind::Fault }
    }

    /// Rules GUPS-30, GUPS-31.
    pub(crate) fn fault_in(
        &self,
        vmas: MmRead<'a, P>,
        at: VirtAddr,
        unshare: bool,
        tried: bool,
    ) -> Result<Option<MmRead<'a, P>>, GupErrorKind> {
        if self.flags.contains(GupFlags::NOFAULT) {
            return Err(GupErrorKind::Fault);
        }
        let mut fault = GupFault::ALLOW_RETRY;
        fault.set(GupFault::WRITE, self.flags.contains(GupFlags::WRITE) && !unshare);
        fault.set(GupFault::UNSHARE, unshare);
        fault.set(GupFault::REMOTE, self.flags.contains(GupFlags::REMOTE));
        fault.set(GupFault::TRIED, tried);
        fault.set(GupFault::NOWAIT, self.flags.contains(GupFlags::NOWAIT));
        self.observer.event(Event::GupFaults, 1);
        match self.handler.resolve(vmas, at, fault) {
            Resolved::Done(vmas) => Ok(Some(vmas)),
            Resolved::LockDropped => Ok(None),
            Resolved::WouldWait(_) => Err(GupErrorKind::Again),
            Resolved::Failed(_, e) => Err(match e {
                FaultError::NoMemory => GupErrorKind::NoMemory,
                FaultError::Poisoned if self.flags.contains(GupFlags::HWPOISON) => {
                    GupErrorKind::Poisoned
                }
                FaultError::Poisoned | FaultError::Signal => GupErrorKind::Fault,
            }),
        }
    }

    fn follow<K: RefKind>(
        &self,
        vmas: &MmRead<'a, P>,
        vma: &Vma,
        runs: &mut [FolioRun; RUNS],
        at: VirtAddr,
        want: usize,
        out: &mut impl Sink,
    ) -> Followed {
        let mut buf = RunBuf::<P, K>::new(self.mm.platform().memmap(), runs);
        self.observer.event(Event::Walks, 1);
        let stopped = match self.mm.tables().lock_entry(vmas.stay(), at) {
            LockedEntry::Hole => self.pud::<K>(vmas, vma, at, want, &mut buf),
            LockedEntry::Huge(mut pmd) => {
                self.observer.event(Event::Locks, 1);
                self.huge::<K>(&mut pmd, vma, at, want, &mut buf)
            }
            LockedEntry::Table(table) => {
                self.observer.event(Event::Locks, 1);
                self.table::<K>(&table, vma, at, want, &mut buf)
            }
        };
        // The locks are gone: now the output is filled (rules GUPS-11, GUPS-16).
        match buf.pages {
            0 => stopped,
            _ => Followed::Pages(buf.fill(out)),
        }
    }

    /// A leaf of a PUD, or a hole (rules GUPS-10, GUPS-11, GUPS-11a).
    fn pud<K: RefKind>(
        &self,
        vmas: &MmRead<'a, P>,
        vma: &Vma,
        at: VirtAddr,
        want: usize,
        buf: &mut RunBuf<'_, P, K>,
    ) -> Followed {
        let Some(pud) = self.mm.tables().lock_pud(vmas.stay(), at) else { return self.hole(vma) };
        let entry = pud.entry();
        if !entry.is_leaf(Level::Pud) {
            return self.hole(vma);
        }
        self.observer.event(Event::Locks, 1);
        self.observer.event(Event::EntriesRead, 1);
        let offset = at.bytes_from(pud.at().va) >> P::Arch::PAGE_SHIFT;
        let page = entry.pfn(Level::Pud).add(offset);
        let map = self.mm.platform().memmap();
        if !map.contains(page) {
            return self.no_folio(buf).map_or_else(|stop| stop, |()| Followed::Pages(1));
        }
        let folio = map.folio(page);
        let writable = entry.is_writable(Level::Pud);
        if self.flags.contains(GupFlags::WRITE) && !writable {
            let exclusive = map.page_exclusive(page);
            if !self.may_force_write(vma, entry, exclusive) {
                return Followed::NotMapped;
            }
        }
        // Nothing collapses or maps such leaves piece by piece: each page speaks for itself.
        if !writable && unshared_pages::<K, P>(Some(vma), self.flags, folio, page, 1) == 0 {
            return Followed::MustUnshare;
        }
        let left = (1usize << P::Arch::order(Level::Pud)) - offset as usize;
        let in_folio = (folio.nr_pages() - folio.index_of(page)) as usize;
        let n = left.min(in_folio).min(want);
        self.grab::<K>(folio, page, n, buf).map_or_else(|stop| stop, |()| Followed::Pages(n))
    }

    fn hole(&self, vma: &Vma) -> Followed {
        // A hole in anonymous memory would be zero-filled.
        if self.flags.contains(GupFlags::DUMP) && vma.is_anonymous() {
            Followed::Error(GupErrorKind::Fault)
        } else {
            Followed::NotMapped
        }
    }

    /// Collects runs of one table (rules GUPS-13..17).
    fn table<K: RefKind>(
        &self,
        table: &LockedTable<'_, P>,
        vma: &Vma,
        at: VirtAddr,
        want: usize,
        buf: &mut RunBuf<'_, P, K>,
    ) -> Followed {
        let (max_runs, batch) = match self.policy {
            SlowPolicy::Page => (1, false),
            SlowPolicy::Run => (1, true),
            SlowPolicy::Table => (RUNS, true),
        };
        let first = table.index_of(at);
        let want = want.min(table.limit(first).get());
        while buf.pages < want && buf.nr < max_runs {
            let index = first + buf.pages;
            if let Some(stop) = self.page::<K>(table, vma, index, want - buf.pages, batch, buf) {
                return stop;
            }
        }
        Followed::Pages(buf.pages)
    }

    /// Takes the run at `index`, or says what is in the way.
    fn page<K: RefKind>(
        &self,
        table: &LockedTable<'_, P>,
        vma: &Vma,
        index: usize,
        want: usize,
        batch: bool,
        buf: &mut RunBuf<'_, P, K>,
    ) -> Option<Followed> {
        let entry = table.pte(index);
        self.observer.event(Event::EntriesRead, 1);
        if entry.is_none() {
            return Some(self.hole(vma));
        }
        if !entry.is_present(Level::Pte)
            || entry.is_protnone(Level::Pte) && !self.may_follow_protnone(vma)
        {
            return Some(Followed::NotMapped);
        }
        let map = self.mm.platform().memmap();
        let pfn = entry.pfn(Level::Pte);
        let zero = entry.is_special() && map.is_zero_page(pfn);
        let writable = entry.is_writable(Level::Pte);
        let write = self.flags.contains(GupFlags::WRITE);
        let has_folio = zero || !entry.is_special() && map.contains(pfn);
        if write && !writable {
            let exclusive = has_folio && !zero && map.page_exclusive(pfn);
            if !self.may_force_write(vma, entry, exclusive) {
                return Some(Followed::NotMapped);
            }
        }
        if zero && self.flags.contains(GupFlags::DUMP) {
            return Some(Followed::Error(GupErrorKind::Fault));
        }
        if !has_folio {
            return self.no_folio(buf).err();
        }
        let folio = map.folio(pfn);
        let (mut n, mut dirty) = (1, entry.is_dirty());
        // A forced write is decided page by page.
        if batch && folio.is_large() && (writable || !write) {
            let limit = table
                .limit(index)
                .at_most(want)
                .at_most((folio.nr_pages() - folio.index_of(pfn)) as usize);
            let run =
                table.run::<{ respect::WRITE | respect::MERGE_YOUNG_DIRTY }>(index, entry, limit);
            n = run.nr();
            dirty |= run.any_dirty();
            self.observer.event(Event::EntriesRead, run.looks() as u64 - 1);
            self.observer.event(Event::EntriesByHint, run.by_hint() as u64);
        }
        if !writable {
            n = unshared_pages::<K, P>(Some(vma), self.flags, folio, pfn, n);
            if n == 0 {
                return Some(Followed::MustUnshare);
            }
        }
        if let Err(e) = self.grab::<K>(folio, pfn, n, buf) {
            return Some(e);
        }
        self.touch(folio, dirty);
        None
    }

    fn grab<K: RefKind>(
        &self,
        folio: Folio<'_, P>,
        pfn: Pfn,
        n: usize,
        buf: &mut RunBuf<'_, P, K>,
    ) -> Result<(), Followed> {
        let facts = folio.flags() & self.flags.forbidden();
        if !facts.is_empty() {
            let peer = facts == FolioFlags::PEER;
            let kind = if peer { GupErrorKind::Peer } else { GupErrorKind::Fault };
            return Err(Followed::Error(kind));
        }
        if self.found == Found::Counted {
            buf.count(n);
            return Ok(());
        }
        let refs =
            folio.grab::<K>(n as u32).map_err(|_| Followed::Error(GupErrorKind::NoMemory))?;
        self.observer.event(Event::Grabs, 1);
        let atomics = if K::PINS && folio.is_large() { 2 } else { 1 };
        self.observer.event(Event::Atomics, atomics);
        // Dropping the references gives them back.
        if !make_accessible::<K, P>(folio) {
            return Err(Followed::Error(GupErrorKind::Fault));
        }
        buf.push(refs.into_run(folio.index_of(pfn)));
        Ok(())
    }

    /// Rule GUPS-15.
    fn touch(&self, folio: Folio<'_, P>, dirty: bool) {
        if !self.flags.contains(GupFlags::TOUCH) {
            return;
        }
        if self.flags.contains(GupFlags::WRITE) && !dirty {
            folio.set_flag(FolioFlags::DIRTY);
        }
        folio.mark_accessed();
    }

    /// A leaf above PTE level keeps the note itself (rule GUPS-11a).
    fn touch_leaf(&self, pmd: &mut LockedPmd<'_, P>) {
        if !self.flags.contains(GupFlags::TOUCH) {
            return;
        }
        let e = pmd.entry().mkyoung();
        let write = self.flags.contains(GupFlags::WRITE);
        pmd.set_access_flags(if write { e.mkdirty() } else { e });
    }

    /// A PMD leaf (rule GUPS-11a).
    fn huge<K: RefKind>(
        &self,
        pmd: &mut LockedPmd<'_, P>,
        vma: &Vma,
        at: VirtAddr,
        want: usize,
        buf: &mut RunBuf<'_, P, K>,
    ) -> Followed {
        let entry = pmd.entry();
        self.observer.event(Event::EntriesRead, 1);
        if !entry.is_leaf(Level::Pmd)
            || entry.is_protnone(Level::Pmd) && !self.may_follow_protnone(vma)
        {
            return Followed::NotMapped;
        }
        if self.flags.contains(GupFlags::SPLIT_PMD) {
            return Followed::Error(GupErrorKind::NotSupported);
        }
        let map = self.mm.platform().memmap();
        let head = entry.pfn(Level::Pmd);
        if !map.contains(head) {
            return self.no_folio(buf).map_or_else(|stop| stop, |()| Followed::Pages(1));
        }
        let folio = map.folio(head);
        let huge_zero = map.is_huge_zero(head);
        let writable = entry.is_writable(Level::Pmd);
        if self.flags.contains(GupFlags::WRITE) && !writable {
            let exclusive = !huge_zero && map.page_exclusive(head);
            if !self.may_force_write(vma, entry, exclusive) {
                return Followed::NotMapped;
            }
        }
        if huge_zero && self.flags.contains(GupFlags::DUMP) {
            return Followed::Error(GupErrorKind::Fault);
        }
        // The leaf is one unit of exclusivity: its first page speaks for all.
        if !writable && unshared_pages::<K, P>(Some(vma), self.flags, folio, head, 1) == 0 {
            return Followed::MustUnshare;
        }
        let leaf = VirtRange::new(pmd.at().va, 1 << P::Arch::shift(Level::Pmd));
        debug_assert!(
            leaf.is_ok_and(|leaf| vma.range().covers(leaf)),
            "the leaf of {at} leaves its mapping (rule GUPS-11b)"
        );
        let offset = at.bytes_from(pmd.at().va) >> P::Arch::PAGE_SHIFT;
        let left = (1usize << P::Arch::order(Level::Pmd)) - offset as usize;
        // Every policy takes what is left of a leaf in one step: so does mainline.
        let n = left.min(want);
        match self.grab::<K>(folio, head.add(offset), n, buf) {
            Ok(()) => {
                self.touch_leaf(pmd);
                Followed::Pages(n)
            }
            Err(stop) => stop,
        }
    }

    /// The entry maps a frame that the memory map does not know: one page, for
    /// whoever counts (rules GUPS-06, GUPS-14).
    fn no_folio<K: RefKind>(&self, buf: &mut RunBuf<'_, P, K>) -> Result<(), Followed> {
        if self.flags.contains(GupFlags::DUMP) {
            return Err(Followed::Error(GupErrorKind::Fault));
        }
        if self.found == Found::Held {
            return Err(Followed::Error(GupErrorKind::NoFolio));
        }
        buf.count(1);
        Ok(())
    }

    /// Rule GUPS-29.
    fn may_follow_protnone(&self, vma: &Vma) -> bool {
        !self.flags.contains(GupFlags::HONOR_NUMA_FAULT) || !vma.is_accessible()
    }

    /// Whether a forced write may follow a read-only entry: only to a page that
    /// is exclusive *now* (rules GUPS-22, P-RACE-22).
    fn may_force_write(&self, vma: &Vma, entry: E<P>, exclusive: bool) -> bool {
        let vm = vma.flags();
        let forced = self.flags.contains(GupFlags::FORCE)
            && !vm.intersects(VmaFlags::SHARED | VmaFlags::MAYSHARE | VmaFlags::WRITE)
            && vm.contains(VmaFlags::MAYWRITE);
        let tracked = vma.tracks_soft_dirty(P::Arch::HAS_SOFT_DIRTY) && !entry.is_soft_dirty();
        let watched = vm.contains(VmaFlags::UFFD_WP) && entry.is_uffd_wp();
        forced && exclusive && !tracked && !watched
    }
}

/// Whether the mapping allows the request at all (rules GUPS-12, LT-05).
fn check_vma(vma: &Vma, flags: GupFlags) -> Result<(), GupErrorKind> {
    let vm = vma.flags();
    if vm.intersects(VmaFlags::IO | VmaFlags::PFNMAP | VmaFlags::SECRETMEM)
        || flags.contains(GupFlags::ANON) && !vma.is_anonymous()
    {
        return Err(GupErrorKind::Fault);
    }
    // A file that is told of stores would not hear of the device's.
    let unannounced = vm.contains(VmaFlags::SHARED | VmaFlags::WRITE)
        && vma.backing().is_some_and(|b| b.notifies_writes());
    if unannounced && flags.contains(GupFlags::WRITE | GupFlags::LONGTERM) {
        return Err(GupErrorKind::Fault);
    }
    let force = flags.contains(GupFlags::FORCE);
    let allowed = if flags.contains(GupFlags::WRITE) {
        let plain = vm.contains(VmaFlags::WRITE) && !vm.contains(VmaFlags::SHADOW_STACK);
        plain || force && vma.is_cow()
    } else {
        vm.contains(VmaFlags::READ) || force && vm.contains(VmaFlags::MAYREAD)
    };
    if allowed { Ok(()) } else { Err(GupErrorKind::Fault) }
}
