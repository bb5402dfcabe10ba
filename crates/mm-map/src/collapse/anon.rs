//! Private memory.

use super::{CollapseError, CollapseFor, Collapsed, NEVER};
use crate::entry::{E, counted_folio};
use crate::policy::{MapPolicy, Strategy, by_policy};
use alloc::vec::Vec;
use core::num::NonZeroU32;

use mm_arch::{Arch, Entry, FlushScope, Level, Live, NonPresent, TableFrame, VirtAddr, VirtRange};
use mm_folio::{
    AnonId, Exclusivity, Folio, FolioFlags, FolioLockGuard, FolioRef, FolioRun, FrameBytes, Get,
    QueueReason,
};
use mm_pgtable::{LockedEntry, LockedTable};
use mm_rmap::RmapPlatform;
use mm_sync::Quiescence;
use mm_vma::{
    Event, Mm, MmWrite, Observer, RssKind, Vma, VmaFlags, VmaStore, free_swap_cache, mlock_mapped,
    munlock_unmapped,
};

/// Copies the pages of the block of `order` around `va` to a new folio and maps that in their
/// place (rules COLL-01..04). Takes the mmap lock.
///
/// # Errors
///
/// If it may not be done, or not now. Everything is mapped as before.
pub fn collapse_anon<P: RmapPlatform>(
    policy: &MapPolicy,
    mm: &Mm<P>,
    va: VirtAddr,
    order: u32,
    on_behalf: CollapseFor,
) -> Result<Collapsed, CollapseError> {
    let block = Block::<P>::around(va, order)?;
    let before = {
        let vmas = mm.read();
        let vma = block.vma(&vmas)?;
        match mm.tables().lock_entry(vmas.stay(), block.start()) {
            LockedEntry::Hole => return Err(CollapseError::Nothing(block.start())),
            LockedEntry::Huge(pmd) if pmd.entry().is_leaf(Level::Pmd) => {
                return Ok(Collapsed::Already);
            }
            LockedEntry::Huge(_) => return Err(CollapseError::Entry(block.start())),
            LockedEntry::Table(table) => block.survey(mm, vma, &table, on_behalf)?,
        }
    };
    // Without locks: it may wait (rule COLL-02).
    let no_memory = CollapseError::NoMemory(block.start());
    let mut new = mm.platform().memmap().alloc(order).map_err(|_| no_memory)?;
    let mut isolated = Vec::new();
    isolated.try_reserve_exact(block.nr()).map_err(|_| no_memory)?;
    if !block.is_pmd() {
        // One reference per entry.
        new.grow(block.nr() as u32 - 1).map_err(|_| no_memory)?;
    }
    let mut vmas = mm.write();
    by_policy!(policy, collapse_locked::<P>(&mut vmas, block, on_behalf, before, new, isolated))?;
    mm.platform().observer().event(Event::CollapseAlloc, u64::from(order));
    Ok(Collapsed::Now)
}

/// One pass over an address space: tries every block of `order` in the mappings that
/// `wanted` names. The number of blocks that were collapsed.
pub fn collapse_scan<P: RmapPlatform>(
    policy: &MapPolicy,
    mm: &Mm<P>,
    order: u32,
    limits: super::CollapseLimits,
    wanted: impl Fn(&Vma) -> bool,
) -> u64 {
    if order > P::Arch::order(Level::Pmd) {
        return 0;
    }
    let bytes = 1u64 << (P::Arch::PAGE_SHIFT + order);
    let (mut next, mut done) = (Some(VirtAddr::new(0)), 0);
    while let Some(va) = next {
        let part = {
            let vmas = mm.read();
            let Some(vma) = vmas.next_from(va) else { break };
            next = vma.start().checked_add(vma.range().bytes());
            wanted(vma).then(|| vma.range())
        };
        let Some(range) = part else { continue };
        let mut at = range.start().align_down(P::Arch::PAGE_SHIFT + order);
        while range.contains(at) || at < range.start() {
            let tried = collapse_anon(policy, mm, at, order, CollapseFor::Scan(limits));
            done += u64::from(tried == Ok(Collapsed::Now));
            match at.checked_add(bytes) {
                Some(behind) => at = behind,
                None => return done,
            }
        }
    }
    done
}

/// An aligned block of pages.
struct Block<P: RmapPlatform> {
    range: VirtRange,
    order: u32,
    _platform: core::marker::PhantomData<fn() -> P>,
}

impl<P: RmapPlatform> Clone for Block<P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P: RmapPlatform> Copy for Block<P> {}

/// What the entries of a block are.
#[derive(Clone, Copy, Default, Debug)]
struct Survey {
    none: u32,
    shared: u32,
    young: bool,
}

impl<P: RmapPlatform> Block<P> {
    fn around(va: VirtAddr, order: u32) -> Result<Self, CollapseError> {
        let shift = P::Arch::PAGE_SHIFT;
        // An anonymous folio of two pages cannot be (rule FOLIO-51).
        if order < 2 || order > P::Arch::order(Level::Pmd) {
            return Err(CollapseError::NotAllowed(va));
        }
        VirtRange::units(va.align_down(shift + order), 1 << order, shift)
            .ok()
            .map(|range| Block { range, order, _platform: core::marker::PhantomData })
            .ok_or(CollapseError::NotAllowed(va))
    }
    fn start(&self) -> VirtAddr {
        self.range.start()
    }
    fn nr(&self) -> usize {
        1 << self.order
    }
    fn is_pmd(&self) -> bool {
        self.order == P::Arch::order(Level::Pmd)
    }
    fn at(&self, k: usize) -> VirtAddr {
        self.start().add_units(k as u64, P::Arch::PAGE_SHIFT)
    }

    /// The mapping that covers the block, if it may be collapsed.
    fn vma<'v>(&self, vmas: &'v VmaStore) -> Result<&'v Vma, CollapseError> {
        vmas.find(self.start())
            .filter(|v| v.range().covers(self.range) && !v.flags().intersects(NEVER))
            // Pages that were never there have no tree to name.
            .filter(|v| v.is_anonymous() && v.anon().is_some())
            .ok_or(CollapseError::NotAllowed(self.start()))
    }

    /// Looks at the entries of the block (rule COLL-01).
    fn survey(
        &self,
        mm: &Mm<P>,
        vma: &Vma,
        table: &LockedTable<'_, P>,
        on_behalf: CollapseFor,
    ) -> Result<Survey, CollapseError> {
        let first = table.index_of(self.start());
        let mut seen = Survey::default();
        let mut swapped = None;
        for k in 0..self.nr() {
            let (e, va) = (table.get(first + k), self.at(k));
            if e.is_none() {
                seen.none += 1;
                continue;
            }
            if !e.is_leaf(Level::Pte) {
                match e.nonpresent(Level::Pte) {
                    Some(NonPresent::Swap(_)) if !e.swap_bits().uffd_wp => {
                        swapped.get_or_insert((va, 0)).1 += 1;
                        continue;
                    }
                    _ => return Err(CollapseError::Entry(va)),
                }
            }
            // A leaf has one mark for all (known fault: it got lost).
            if e.is_uffd_wp() {
                return Err(CollapseError::Entry(va));
            }
            match counted_folio(mm, e, Level::Pte) {
                None if mm.platform().memmap().is_zero_page(e.pfn(Level::Pte)) => seen.none += 1,
                Some(folio) if folio.is_anon() => {
                    let mapcount = mm.platform().memmap().page_mapcount(e.pfn(Level::Pte));
                    seen.shared += u32::from(mapcount > 1);
                    seen.young |= e.is_young() || folio.has(FolioFlags::REFERENCED);
                    explained(folio).then_some(()).ok_or(CollapseError::Held(va))?;
                }
                _ => return Err(CollapseError::Entry(va)),
            }
        }
        let max_none = match on_behalf {
            // Who waits for missing pages must go on hearing of them.
            _ if vma.flags().intersects(VmaFlags::UFFD_ANY) => 0,
            CollapseFor::Scan(limits) => limits.max_none,
            CollapseFor::Caller => u32::MAX,
        };
        if seen.none > max_none {
            return Err(CollapseError::TooManyNone(self.start()));
        }
        if let CollapseFor::Scan(limits) = on_behalf {
            let at = self.start();
            if swapped.is_some_and(|(_, n)| n > limits.max_swap) {
                return Err(CollapseError::TooManySwapped(at));
            }
            if seen.shared > limits.max_shared {
                return Err(CollapseError::TooManyShared(at));
            }
            if !seen.young {
                return Err(CollapseError::NotUsed(at));
            }
        }
        match swapped {
            Some((va, _)) => Err(CollapseError::Swapped(va)),
            None => Ok(seen),
        }
    }

    /// Locks every folio of the block. Nobody holds one but by mappings and the swap
    /// cache (rule COLL-03).
    fn isolate<'m>(
        &self,
        mm: &'m Mm<P>,
        table: &LockedTable<'_, P>,
        isolated: &mut Vec<Isolated<'m, P>>,
    ) -> Result<(), CollapseError> {
        let first = table.index_of(self.start());
        for k in 0..self.nr() {
            let e = table.get(first + k);
            let Some(folio) = leaf_folio(mm, e) else { continue };
            // Small pages are mapped once here, but for merged ones.
            let again = (folio.is_large() || folio.has(FolioFlags::KSM))
                && isolated.iter().rev().any(|i| i.locked.folio() == folio);
            if again {
                continue;
            }
            let held = CollapseError::Held(self.at(k));
            let locked = folio.try_lock().ok_or(held)?;
            if !explained(folio) {
                return Err(held);
            }
            // There was room for one per page.
            isolated.push(Isolated { locked, taken: 0 });
        }
        Ok(())
    }
}

/// A folio whose pages are copied, and how many of its mappings were removed.
struct Isolated<'m, P: RmapPlatform> {
    locked: FolioLockGuard<'m, P>,
    taken: u32,
}

fn leaf_folio<'m, P: RmapPlatform>(mm: &'m Mm<P>, e: E<P>) -> Option<Folio<'m, P>> {
    if e.is_leaf(Level::Pte) { counted_folio(mm, e, Level::Pte) } else { None }
}
/// Whether mappings and the swap cache are all that holds the folio.
fn explained<P: RmapPlatform>(folio: Folio<'_, P>) -> bool {
    if mm_sync::mutant!("map.collapse.no_refs") {
        return true;
    }
    folio.counts_locked(|c| i64::from(c.refs) == i64::from(c.mapcount) + i64::from(c.swapcache))
}

/// Under the mmap lock's write side: nobody faults in this space.
fn collapse_locked<'m, B: Strategy, P: RmapPlatform>(
    vmas: &mut MmWrite<'m, P>,
    block: Block<P>,
    on_behalf: CollapseFor,
    before: Survey,
    new: FolioRef<'m, P, Get>,
    mut isolated: Vec<Isolated<'m, P>>,
) -> Result<(), CollapseError> {
    let mm = vmas.mm();
    let vma = block.vma(vmas)?;
    let Some(anon) = vma.anon() else { return Err(CollapseError::NotAllowed(block.start())) };
    let tables = mm.tables();
    // Walkers of the trees come without the mmap lock, and keep tables that they found.
    let walks = mm.platform().anon_trees().exclude_walks(vma);
    let nothing = CollapseError::Nothing(block.start());
    let mut pmd = tables.lock_pmd(vmas.stay(), block.start()).ok_or(nothing)?;
    let frame = pmd.entry().as_table(Level::Pmd).ok_or(nothing)?;
    let mut owed = tables.tlb().obligation();
    pmd.swap(E::<P>::NONE, &mut owed);
    // Tables too: no CPU may walk what is cut off, nor have cached the way there.
    if let Some(range) = pmd.range() {
        owed.add(range, FlushScope::Tables);
    }
    owed.pay();
    drop(pmd);
    // Who walks without locks and found the table has taken its references by the time this
    // returns, or will see that the table is gone (races F-RACE-17, P-RACE-05).
    if !mm_sync::mutant!("map.collapse.no_wait") {
        mm.platform().epochs().synchronize();
    }
    // SAFETY: cut off just now, by the only one who may free tables of this space.
    let mut table = unsafe { tables.lock_detached(frame, block.start()) };
    let ready = block
        .survey(mm, vma, &table, on_behalf)
        .and_then(|seen| block.isolate(mm, &table, &mut isolated).map(|()| seen));
    let seen = match ready {
        // Never what was seen before the lock was taken: faults went on.
        Ok(_) if mm_sync::mutant!("map.collapse.stale_survey") => before,
        Ok(seen) => seen,
        Err(e) => {
            drop(table);
            drop(isolated);
            link_table(vmas, block, frame);
            drop(walks);
            return Err(e);
        }
    };
    let folio = new.folio();
    block.copy::<B>(mm, vma, &mut table, &mut isolated, folio);
    set_up(vma, folio, anon, block.start());
    mm.counters().add(RssKind::Anon, u64::from(seen.none));
    let level = if block.is_pmd() { Level::Pmd } else { Level::Pte };
    folio.add_new_anon(mm.id(), level, Exclusivity::Exclusive);
    folio.enlist();
    mlock_mapped(vma.flags(), folio, folio.nr_pages());
    let mut entry = E::<P>::leaf(folio.head(), P::Arch::prot(vma.protection()), level).mkyoung();
    // Whatever the mapping allows by now: there were stores to some page, perhaps (rule PTE-14).
    entry = entry.mkdirty();
    if vma.flags().contains(VmaFlags::WRITE) {
        entry = entry.mkwrite(vma.write_kind());
    }
    // One reference per entry.
    new.hand_over();
    if block.is_pmd() {
        drop(table);
        if let Some(mut pmd) = tables.lock_pmd(vmas.stay(), block.start()) {
            // SAFETY: cut off above, empty now, and nobody else's.
            unsafe { pmd.deposit(frame) };
            let mut fresh = tables.tlb().obligation();
            pmd.swap(entry, &mut fresh);
            fresh.already_done();
        }
        // It may turn out to be mostly zeros (rule FOLIO-24).
        folio.queue_deferred(QueueReason::MaybeUnderused);
    } else {
        let first = table.index_of(block.start());
        table.fill(first, block.nr(), entry);
        drop(table);
        link_table(vmas, block, frame);
    }
    drop(walks);
    // Unlocked first: the last reference of a locked folio must not go.
    for Isolated { locked, taken } in isolated {
        let (folio, head) = (locked.folio(), locked.folio().head());
        drop(locked);
        // It may have been kept for these mappings alone.
        if folio.has(FolioFlags::SWAPCACHE) {
            free_swap_cache(mm.platform(), folio);
        }
        mm.platform().memmap().put_run::<Get>(FolioRun::new(head, 0, taken));
    }
    Ok(())
}

/// Puts a table back that was cut off (rule COLL-03).
fn link_table<P: RmapPlatform>(vmas: &MmWrite<'_, P>, block: Block<P>, frame: TableFrame) {
    let tables = vmas.mm().tables();
    if let Some(mut pmd) = tables.lock_pmd(vmas.stay(), block.start()) {
        let mut fresh = tables.tlb().obligation();
        // SAFETY: cut off by the caller, under the same lock, and nobody else's.
        unsafe { pmd.link(frame, &mut fresh) };
        // Nobody can have cached what was not there.
        fresh.already_done();
    }
}

impl<P: RmapPlatform> Block<P> {
    /// Copies the pages to `new`, takes the entries out, and their mappings (rule COLL-04).
    fn copy<B: Strategy>(
        &self,
        mm: &Mm<P>,
        vma: &Vma,
        table: &mut LockedTable<'_, P>,
        isolated: &mut [Isolated<'_, P>],
        new: Folio<'_, P>,
    ) {
        let bytes = mm.platform().bytes();
        let start = table.index_of(self.start());
        // Cut off and flushed: no CPU has a translation of what is in here.
        let mut none = mm.tables().tlb().obligation();
        // Folios were isolated in the order in which they are met here.
        let (mut k, mut met) = (0, 0);
        while k < self.nr() {
            let (i, to) = (start + k, new.page(k as u32));
            let e = table.get(i);
            let Some(folio) = leaf_folio(mm, e) else {
                bytes.zero(to, 1);
                table.take_each::<Live>(i, 1, &mut none, |_, _| ());
                k += 1;
                continue;
            };
            let first = folio.index_of(e.pfn(Level::Pte));
            // Whatever else the entries say: one removal for all that follow each other, so that
            // a folio that goes as a whole is never partially mapped.
            let most = (folio.nr_pages() - first) as usize;
            let most = if B::ON { most.min(self.nr() - k) } else { 1 };
            let follows = |j: &usize| {
                let next = table.get(i + j);
                next.is_leaf(Level::Pte) && next.pfn(Level::Pte) == folio.page(first + *j as u32)
            };
            let nr = 1 + (1..most).take_while(follows).count();
            for j in 0..nr as u32 {
                bytes.copy(new.page(k as u32 + j), folio.page(first + j));
            }
            table.take_each::<Live>(i, nr, &mut none, |_, _| ());
            let Some(n) = NonZeroU32::new(nr as u32) else { break };
            folio.remove_ptes(first, n, mm.id());
            munlock_unmapped(vma.flags(), folio);
            let is = |own: &Isolated<'_, P>| own.locked.folio() == folio;
            let own = if isolated.get(met).is_some_and(is) {
                met += 1;
                Some(met - 1)
            } else {
                isolated[..met].iter().rposition(is)
            };
            if let Some(own) = own {
                isolated[own].taken += n.get();
            }
            k += nr;
        }
        none.already_done();
    }
}

/// Makes a filled folio that nobody else knows an anonymous one whose first page belongs
/// at `start`.
fn set_up<P: RmapPlatform>(vma: &Vma, folio: Folio<'_, P>, anon: AnonId, start: VirtAddr) {
    let mut flags = FolioFlags::UPTODATE;
    flags.set(FolioFlags::SWAPBACKED, !vma.flags().contains(VmaFlags::DROPPABLE));
    folio.set_flag(flags);
    folio.set_anon(anon, vma.linear_index(start));
}
