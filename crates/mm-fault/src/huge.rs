//! Faults that are resolved at PMD level.

use crate::dispatch::{E, Fault, Progress};
use crate::reuse;
use crate::{FaultOutcome, UserFault};
use mm_arch::{Arch, Entry, Level, TableFrame, VirtRange};
use mm_folio::{Exclusivity, Folio, FolioRef, FrameBytes, Get, QueueReason};
use mm_pgtable::{LockedEntry, LockedPmd, PageTables, TableAllocError, TableMemory, TableSpace};
use mm_rmap::{RmapPlatform, split_locked_pmd, split_pmd};
use mm_vma::{Event, RssKind, VmaFlags, mlock_mapped};

/// A table that will be deposited with a PMD leaf, so that the leaf can be split
/// when there is no memory.
struct Spare<'p, P: TableSpace> {
    tables: &'p PageTables<P>,
    frame: TableFrame,
}

impl<'p, P: TableSpace> Spare<'p, P> {
    fn new(tables: &'p PageTables<P>) -> Result<Self, TableAllocError> {
        Ok(Spare { tables, frame: tables.space().tables().alloc(Level::Pte)? })
    }
    fn deposit(self, pmd: &mut LockedPmd<'_, P>) {
        // SAFETY: allocated for this and handed over here; `self` is forgotten.
        unsafe { pmd.deposit(self.frame) };
        core::mem::forget(self);
    }
}

impl<P: TableSpace> Drop for Spare<'_, P> {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` and never linked: `deposit` forgets it.
        unsafe { self.tables.free_unlinked(self.frame) }
    }
}

impl<'f, 'm, P: RmapPlatform> Fault<'f, 'm, P> {
    fn pmd_order() -> u32 {
        <P::Arch as Arch>::order(Level::Pmd)
    }
    /// The range of the PMD entry.
    fn pmd_range(&self) -> Option<VirtRange> {
        self.block(Self::pmd_order())
    }
    pub(crate) fn lock_huge(&self) -> Option<LockedPmd<'f, P>> {
        let tables: &'f PageTables<P> = self.tables();
        match tables.lock_entry(self.stay(), self.va) {
            LockedEntry::Huge(pmd) => Some(pmd),
            _ => None,
        }
    }

    /// Nothing is mapped around the address: fills the whole entry, if policy
    /// and mapping allow it and there is memory. `None` leaves it to single
    /// entries (rule ANON-10).
    pub(crate) fn huge_missing(&self) -> Option<FaultOutcome> {
        let order = Self::pmd_order();
        if !self.policy.thp.orders(self.vma.flags()).contains(order) {
            return None;
        }
        let block = self.pmd_range()?;
        let Ok(anon) = self.prepare_anon() else { return Some(FaultOutcome::Oom) };
        if !self.access.is_write() && self.policy.thp.zero_page {
            return self.map_huge_zero();
        }
        let Ok(new) = self.alloc_large(order) else {
            self.event(Event::AnonFaultFallback, u64::from(order));
            return None;
        };
        let Ok(spare) = Spare::new(self.tables()) else { return Some(FaultOutcome::Oom) };
        self.mm().platform().bytes().zero(new.folio().head(), 1 << order);
        self.set_up(new.folio(), anon, block.start());

        let tables: &'f PageTables<P> = self.tables();
        let Ok(mut pmd) = tables.ensure_pmd(self.stay(), self.va) else {
            return Some(FaultOutcome::Oom);
        };
        // Somebody else was here: folio and table go back.
        if !pmd.entry().is_none() && !mm_sync::mutant!("fault.huge.no_recheck") {
            return Self::taken(pmd.entry());
        }
        if let Some(asked) = self.asks_for_missing() {
            return Some(asked);
        }
        spare.deposit(&mut pmd);
        self.map_huge(pmd, new);
        Some(FaultOutcome::MINOR)
    }

    /// The entry is not empty (any more). What stands for a leaf without being one is left
    /// to who looks at its kind.
    fn taken(e: E<P>) -> Option<FaultOutcome> {
        e.nonpresent(Level::Pmd).is_none().then_some(FaultOutcome::MINOR)
    }

    /// Maps the huge zero folio: neither references nor mappings of it are
    /// counted, and the resident set does not grow.
    fn map_huge_zero(&self) -> Option<FaultOutcome> {
        let head = self.mm().platform().huge_zero()?;
        let Ok(spare) = Spare::new(self.tables()) else { return Some(FaultOutcome::Oom) };
        let tables: &'f PageTables<P> = self.tables();
        let Ok(mut pmd) = tables.ensure_pmd(self.stay(), self.va) else {
            return Some(FaultOutcome::Oom);
        };
        if !pmd.entry().is_none() {
            return Self::taken(pmd.entry());
        }
        if let Some(asked) = self.asks_for_missing() {
            return Some(asked);
        }
        spare.deposit(&mut pmd);
        let mut owed = tables.tlb().obligation();
        let zero = E::<P>::leaf(head, self.prot(), Level::Pmd).mkyoung().mkspecial();
        pmd.swap(zero, &mut owed);
        drop(pmd);
        Some(FaultOutcome::MINOR)
    }

    /// Maps a new folio by an empty entry that has its table deposited.
    fn map_huge(&self, mut pmd: LockedPmd<'f, P>, new: FolioRef<'m, P, Get>) {
        let folio = new.folio();
        let entry = E::<P>::leaf(folio.head(), self.prot(), Level::Pmd).mkyoung();
        self.mm().counters().add(RssKind::Anon, u64::from(folio.nr_pages()));
        folio.add_new_anon(self.mm().id(), Level::Pmd, Exclusivity::Exclusive);
        folio.enlist();
        mlock_mapped(self.vma.flags(), folio, folio.nr_pages());
        // The entry's reference.
        new.hand_over();
        let mut owed = self.tables().tlb().obligation();
        pmd.swap(self.maybe_dirty(entry), &mut owed);
        // It may turn out to be mostly zeros (rule FOLIO-24).
        folio.queue_deferred(QueueReason::MaybeUnderused);
        drop(pmd);
        self.event(Event::AnonFaultAlloc, u64::from(folio.order()));
    }

    /// A leaf, as it was seen without the lock (rule FAULT-02).
    pub(crate) fn huge(&self, seen: E<P>) -> Progress {
        let Some(mut pmd) = self.lock_huge() else { return Progress::LookAgain };
        if pmd.entry() != seen {
            return FaultOutcome::MINOR.into();
        }
        if seen.is_protnone(Level::Pmd) && self.vma.is_accessible() {
            return self.hinted_pmd(pmd, seen).into();
        }
        if self.access.breaks_cow() && !seen.is_writable(Level::Pmd) {
            return self.huge_write_protected(pmd, seen);
        }
        let changed = pmd.set_access_flags(self.touched(seen, Level::Pmd));
        let range = pmd.range();
        drop(pmd);
        if !changed {
            self.spurious(range);
        }
        FaultOutcome::MINOR.into()
    }

    /// Reuses the folio, or splits the entry so that the rest of the fault
    /// copies one page (rules ANON-12, PMDF-02).
    fn huge_write_protected(&self, pmd: LockedPmd<'f, P>, seen: E<P>) -> Progress {
        // The leaf stays whole: what is asked for is one page, but who answers
        // decides about how many (rule PMDF-01).
        if self.asks_before_store(seen) {
            return self.user_fault(UserFault::Wp).into();
        }
        let head = seen.pfn(Level::Pmd);
        if self.memmap().is_huge_zero(head) {
            return self.huge_zero_written(pmd, seen);
        }
        // A store that ends a write protection ends that of one page.
        let tracked = seen.is_uffd_wp() && self.access.is_write();
        let mut pmd = pmd;
        if !tracked
            && let Some(folio) = self.memmap().contains(head).then(|| self.memmap().folio(head))
            && folio.is_anon()
        {
            match self.huge_becomes_exclusive(pmd, folio, seen) {
                Claim::Changed => return FaultOutcome::MINOR.into(),
                Claim::Shared(same) => pmd = same,
                Claim::Exclusive(mut pmd) => {
                    if self.access.is_write() {
                        pmd.set_access_flags(self.maybe_mkwrite(seen.mkyoung().mkdirty()));
                    }
                    return FaultOutcome::MINOR.into();
                }
            }
        }
        split_locked_pmd(self.mm(), pmd);
        Progress::LookAgain
    }

    /// Whether the folio of a PMD leaf belongs to that leaf alone; its head is
    /// marked then.
    fn huge_becomes_exclusive(
        &self,
        pmd: LockedPmd<'f, P>,
        folio: Folio<'m, P>,
        seen: E<P>,
    ) -> Claim<'f, P> {
        let is_marked = || self.memmap().page_exclusive(folio.head());
        if is_marked() {
            return Claim::Exclusive(pmd);
        }
        let (pmd, lock) = match folio.try_lock() {
            Some(lock) => (pmd, lock),
            None => {
                // Waited for without the table lock; the reference keeps the
                // folio meanwhile.
                let Ok(own) = folio.grab::<Get>(1) else { return Claim::Shared(pmd) };
                drop(pmd);
                let lock = folio.lock();
                match self.lock_huge().filter(|pmd| pmd.entry() == seen) {
                    // The leaf is there, and so is its own reference.
                    Some(pmd) => {
                        drop(own);
                        (pmd, lock)
                    }
                    // Ours may be the last one: unlocked before it goes.
                    None => {
                        drop(lock);
                        drop(own);
                        return Claim::Changed;
                    }
                }
            }
        };
        if is_marked() {
            return Claim::Exclusive(pmd);
        }
        // The entry's own reference is the only one: no other mapping, no cache,
        // no pin.
        let alone = folio.counts_locked(|c| c.refs == 1);
        match self.vma.anon() {
            Some(anon) if alone => {
                reuse::move_to(lock.folio(), anon);
                self.memmap().set_exclusive(folio.head(), 1);
                Claim::Exclusive(pmd)
            }
            _ => Claim::Shared(pmd),
        }
    }

    /// A store into the huge zero folio: a folio of its own in its place, or
    /// the entry is split and one zero page replaced (rule ANON-11).
    fn huge_zero_written(&self, pmd: LockedPmd<'f, P>, seen: E<P>) -> Progress {
        drop(pmd);
        let order = Self::pmd_order();
        let Ok(anon) = self.prepare_anon() else { return FaultOutcome::Oom.into() };
        let small = self.vma.flags().intersects(VmaFlags::NOHUGEPAGE) || seen.is_uffd_wp();
        let new = if small { None } else { self.alloc_large(order).ok() };
        let (Some(new), Some(block)) = (new, self.pmd_range()) else {
            if !small {
                self.event(Event::AnonFaultFallback, u64::from(order));
            }
            split_pmd(self.mm(), self.stay(), self.va);
            return Progress::LookAgain;
        };
        self.mm().platform().bytes().zero(new.folio().head(), 1 << order);
        self.set_up(new.folio(), anon, block.start());
        let Some(mut pmd) = self.lock_huge().filter(|pmd| pmd.entry() == seen) else {
            return FaultOutcome::MINOR.into();
        };
        // No CPU may read zeros any more once one can write the new folio. The
        // deposited table stays. Never empty: whoever protects the range beside
        // faults would take the entry for a hole and pass by (rule MPROT-07).
        let mut owed = self.tables().tlb().obligation();
        let hole = mm_sync::mutant!("fault.huge_zero.hole");
        pmd.swap(if hole { E::<P>::NONE } else { seen.mkinvalid(Level::Pmd) }, &mut owed);
        owed.now();
        self.map_huge(pmd, new);
        FaultOutcome::MINOR.into()
    }
}

/// What became of the question whether a PMD-mapped folio is exclusive.
enum Claim<'g, P: TableSpace> {
    /// It is, and the entry is as it was.
    Exclusive(LockedPmd<'g, P>),
    /// It may not be, and the entry is as it was.
    Shared(LockedPmd<'g, P>),
    /// The entry changed while nobody looked.
    Changed,
}
