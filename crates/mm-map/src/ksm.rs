//! Merging of equal pages.
//!
//! # Protocol
//!
//! A pass over all address spaces looks at every page of mappings that are mergeable. A page
//! whose content did not change since the last pass is compared with merged pages, then with
//! other pages of this pass. Of two equal ones the one becomes a *merged page*, the
//! other gives way to it:
//!
//! ```text
//!   page locked ─► entry taken, flushed ─► somebody holds the page?  put the entry back
//!                                      ─► its mark of an exclusive page given up, or it
//!                                         may be pinned: put the entry back
//!                  entry back, read-only and clean: content is final
//!   compare once more ─► the entry maps the merged page
//! ```
//!
//! A merged page is never exclusive, so a store to it copies, and so does a pin (KSM-02).

use crate::entry::{E, counted_folio};
use crate::policy::MapPolicy;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, Pfn, VirtAddr, VirtRange};
use mm_folio::{
    AllocError, Exclusivity, FolioFlags, FolioLockGuard, FolioRef, FolioRun, FrameBytes, Get,
};
use mm_pgtable::LockedEntry;
use mm_rmap::{MergedPlace, RmapPlatform, SplitFolio, split_anon_folio, split_pmd};
use mm_vma::{Mm, MmRead, Platform, Vma, VmaFlags, munlock_unmapped};

/// What a pass did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KsmPass {
    /// Pages that were looked at.
    pub scanned: u64,
    /// Pages that gave way to merged ones.
    pub merged: u64,
}

/// What is known of a page from the last pass.
#[derive(Clone, Copy)]
struct Known {
    mm: u32,
    va: VirtAddr,
    checksum: u64,
    pass: u64,
}

/// A page of this pass that is equal to none so far.
struct Candidate<P: Platform> {
    checksum: u64,
    mm: Arc<Mm<P>>,
    va: VirtAddr,
}

/// The scanner.
///
/// Merged pages stay merged without it: they are the machine's.
pub struct Ksm<P: Platform> {
    // By space and address.
    known: Vec<Known>,
    pass: u64,
    _platform: core::marker::PhantomData<fn() -> P>,
}

impl<P: Platform> core::fmt::Debug for Ksm<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ksm").field("known", &self.known.len()).field("pass", &self.pass).finish()
    }
}
impl<P: Platform> Default for Ksm<P> {
    fn default() -> Self {
        Ksm { known: Vec::new(), pass: 0, _platform: core::marker::PhantomData }
    }
}

/// A page on its way to be merged.
struct Page<'m, P: Platform> {
    mm: &'m Arc<Mm<P>>,
    va: VirtAddr,
    own: FolioRef<'m, P, Get>,
}

impl<P: RmapPlatform> Ksm<P> {
    /// A scanner that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// One pass over `spaces`, in this order. Takes their mmap locks, one after the other.
    ///
    /// # Errors
    ///
    /// If there is no memory to remember pages. What was merged stays so.
    pub fn scan(
        &mut self,
        policy: &MapPolicy,
        spaces: &[Arc<Mm<P>>],
    ) -> Result<KsmPass, AllocError> {
        self.pass += 1;
        let mut done = KsmPass::default();
        let mut candidates: Vec<Candidate<P>> = Vec::new();
        for mm in spaces {
            let vmas = mm.read();
            for vma in vmas.iter().filter(|v| v.flags().contains(VmaFlags::MERGEABLE)) {
                for k in 0..vma.nr_pages() {
                    let va = vma.start().add_units(k, P::Arch::PAGE_SHIFT);
                    let Some(own) = take(policy, &vmas, va) else { continue };
                    done.scanned += 1;
                    let page = Page { mm, va, own };
                    let merged = self.look_at(&vmas, vma, page, &mut candidates)?;
                    done.merged += u64::from(merged);
                }
            }
        }
        let pass = self.pass;
        self.known.retain(|k| k.pass == pass);
        Ok(done)
    }

    /// Whether the page was merged.
    fn look_at(
        &mut self,
        vmas: &MmRead<'_, P>,
        vma: &Vma,
        page: Page<'_, P>,
        candidates: &mut Vec<Candidate<P>>,
    ) -> Result<bool, AllocError> {
        let platform = page.mm.platform();
        let trees = platform.anon_trees();
        let Some(place) = place_of(platform, page.mm, vma, page.va) else { return Ok(false) };
        if page.own.folio().has(FolioFlags::KSM) {
            // Inherited, perhaps: it has a place of its own from now on.
            trees.add_merged_place(page.own.folio().head(), place)?;
            return Ok(false);
        }
        let pfn = page.own.folio().head();
        let checksum = checksum(platform, pfn);
        let same_as = |own: Pfn| move |other: Pfn| equal(platform, own, other);
        if let Some(merged) = trees.find_merged(platform, checksum, same_as(pfn)) {
            return give_way(vmas, vma, &page, &merged, place);
        }
        if !self.is_stable(page.mm, page.va, checksum)? {
            return Ok(false);
        }
        let from = candidates.partition_point(|c| c.checksum < checksum);
        let equal_ones = candidates[from..].iter().take_while(|c| c.checksum == checksum);
        let other = equal_ones
            .enumerate()
            .find(|(_, c)| still(c).is_some_and(|p| p != pfn && equal(platform, pfn, p)))
            .map(|(i, _)| from + i);
        let Some(at) = other else {
            candidates.try_reserve(1).map_err(|_| AllocError)?;
            candidates.insert(from, Candidate { checksum, mm: page.mm.clone(), va: page.va });
            return Ok(false);
        };
        if !become_merged(vmas, &page, checksum, place)? {
            return Ok(false);
        }
        // The other one gives way. Its space is locked for a look of its own.
        let other = candidates.remove(at);
        let merge_other = |other_vmas: &MmRead<'_, P>| -> Result<bool, AllocError> {
            let Some(vma) = other_vmas.find(other.va) else { return Ok(false) };
            if !vma.flags().contains(VmaFlags::MERGEABLE) {
                return Ok(false);
            }
            let Some(place) = place_of(platform, &other.mm, vma, other.va) else {
                return Ok(false);
            };
            let Some(own) = grab(other_vmas, other.va) else { return Ok(false) };
            let page_of_other = Page { mm: &other.mm, va: other.va, own };
            give_way(other_vmas, vma, &page_of_other, &page.own, place)
        };
        if Arc::ptr_eq(&other.mm, page.mm) {
            merge_other(vmas)
        } else {
            // Two mmap locks are never waited for at once.
            match other.mm.try_read() {
                Some(other_vmas) => merge_other(&other_vmas),
                None => Ok(false),
            }
        }
    }

    /// Whether the page has the content that it had in the last pass.
    fn is_stable(&mut self, mm: &Mm<P>, va: VirtAddr, checksum: u64) -> Result<bool, AllocError> {
        let key = (mm.id().get(), va);
        let pass = self.pass;
        match self.known.binary_search_by_key(&key, |k| (k.mm, k.va)) {
            Ok(at) => {
                let known = &mut self.known[at];
                let same = known.checksum == checksum;
                *known = Known { checksum, pass, ..*known };
                Ok(same)
            }
            Err(at) => {
                self.known.try_reserve(1).map_err(|_| AllocError)?;
                self.known.insert(at, Known { mm: key.0, va, checksum, pass });
                Ok(false)
            }
        }
    }
}

/// The merged pages that `vma` maps in `range`, from its start on: the first of them. Whoever
/// makes a mapping unmergeable has each of them copied, by a fault (rule KSM-02).
pub fn next_merged<P: RmapPlatform>(vmas: &MmRead<'_, P>, range: VirtRange) -> Option<VirtAddr> {
    let mm = vmas.mm();
    let merged = |e: E<P>| {
        let folio = e.is_leaf(Level::Pte).then(|| counted_folio(mm, e, Level::Pte))??;
        folio.has(FolioFlags::KSM).then_some(())
    };
    mm.tables().find(vmas.stay(), range, merged).map(|(va, ())| va)
}

/// What a walk of the reverse map needs to find the page again.
fn place_of<P: RmapPlatform>(
    platform: &P,
    mm: &Mm<P>,
    vma: &Vma,
    va: VirtAddr,
) -> Option<MergedPlace> {
    // The root, because relatives map the page as well.
    let tree = platform.anon_trees().root(vma.anon()?);
    Some(MergedPlace { tree, index: vma.linear_index(va), mm: mm.id() })
}

/// A sum over the words of a page, in which their order counts.
fn checksum<P: Platform>(platform: &P, pfn: Pfn) -> u64 {
    let words = (1usize << P::Arch::PAGE_SHIFT) / 8;
    (0..words).fold(0xcbf2_9ce4_8422_2325, |sum: u64, w| {
        (sum ^ platform.bytes().load(pfn, w * 8)).wrapping_mul(0x100_0000_01b3).rotate_left(29)
    })
}
fn equal<P: Platform>(platform: &P, a: Pfn, b: Pfn) -> bool {
    let words = (1usize << P::Arch::PAGE_SHIFT) / 8;
    (0..words).all(|w| platform.bytes().load(a, w * 8) == platform.bytes().load(b, w * 8))
}

/// The private page at `va` with a reference; a large folio is split first, if it can be.
fn take<'m, P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &MmRead<'m, P>,
    va: VirtAddr,
) -> Option<FolioRef<'m, P, Get>> {
    let own = grab(vmas, va)?;
    let folio = own.folio();
    if !folio.is_large() {
        return Some(own);
    }
    let platform = vmas.mm().platform();
    split_pmd(vmas.mm(), vmas.stay(), va);
    let locked = folio.try_lock()?;
    let split = SplitFolio { locked, own };
    let (rest, result) = split_anon_folio(platform, platform.memmap(), split, 0, 0, policy.suspend);
    drop(rest.locked);
    drop(rest.own);
    result.ok()?;
    grab(vmas, va)
}
/// The private page at `va`, with a reference.
fn grab<'m, P: RmapPlatform>(vmas: &MmRead<'m, P>, va: VirtAddr) -> Option<FolioRef<'m, P, Get>> {
    let mm = vmas.mm();
    let (e, level) = match mm.tables().lock_entry(vmas.stay(), va) {
        LockedEntry::Table(table) => {
            let e = table.get(table.index_of(va));
            // Under the lock: mapped, it cannot go away.
            return page_of(mm, e, Level::Pte)?.grab::<Get>(1).ok();
        }
        LockedEntry::Huge(pmd) => (pmd.entry(), Level::Pmd),
        LockedEntry::Hole => return None,
    };
    page_of(mm, e, level)?.grab::<Get>(1).ok()
}
fn page_of<'m, P: RmapPlatform>(
    mm: &'m Mm<P>,
    e: E<P>,
    level: Level,
) -> Option<mm_folio::Folio<'m, P>> {
    let folio = if e.is_leaf(level) { counted_folio(mm, e, level)? } else { return None };
    folio.is_anon().then_some(folio)
}
/// The frame that a candidate maps by now.
fn still<P: RmapPlatform>(candidate: &Candidate<P>) -> Option<Pfn> {
    let vmas = candidate.mm.try_read()?;
    let own = grab(&vmas, candidate.va)?;
    (!own.folio().is_large()).then(|| own.folio().head())
}

/// Makes the entry at the page's address read-only and clean, for good: the content of
/// a page that only it maps does not change any more (rule KSM-01). The entry then; `None` if
/// somebody holds the page, or it is not mapped there any more.
fn protect<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    page: &Page<'_, P>,
    locked: &FolioLockGuard<'_, P>,
) -> Option<E<P>> {
    let (mm, folio) = (vmas.mm(), locked.folio());
    let mut table = mm.tables().lock_table(vmas.stay(), page.va)?;
    let index = table.index_of(page.va);
    let seen = table.get(index);
    if !seen.is_leaf(Level::Pte) || seen.pfn(Level::Pte) != folio.head() {
        return None;
    }
    let mut owed = mm.tables().tlb().obligation();
    let old = table.take(index, &mut owed);
    // No CPU may store to it any more when it is asked who holds it.
    owed.pay();
    let explained = folio
        .counts_locked(|c| i64::from(c.refs) == i64::from(c.mapcount) + i64::from(c.swapcache) + 1);
    let exclusive = mm.platform().memmap().page_exclusive(folio.head());
    if !explained || exclusive && folio.try_share_anon_pte(0).is_err() {
        table.put_back(index, &[old]);
        return None;
    }
    if old.is_dirty() {
        folio.set_flag(FolioFlags::DIRTY);
    }
    let entry = old.wrprotect().mkclean().wrprotect();
    table.set(index, entry);
    Some(entry)
}

/// The page becomes a merged one, and stays where it is mapped. Whether it did.
fn become_merged<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    page: &Page<'_, P>,
    checksum: u64,
    place: MergedPlace,
) -> Result<bool, AllocError> {
    let (platform, folio) = (page.mm.platform(), page.own.folio());
    let Some(locked) = folio.try_lock() else { return Ok(false) };
    if folio.flags().intersects(FolioFlags::KSM | FolioFlags::SWAPCACHE | FolioFlags::WRITEBACK)
        || protect(vmas, page, &locked).is_none()
        || self::checksum(platform, folio.head()) != checksum
    {
        return Ok(false);
    }
    platform.anon_trees().add_merged(folio.head(), checksum, place)?;
    // Its content is nowhere else.
    folio.set_flag(FolioFlags::KSM | FolioFlags::DIRTY);
    Ok(true)
}

/// The page gives way to an equal merged one. Whether it did.
fn give_way<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    vma: &Vma,
    page: &Page<'_, P>,
    merged: &FolioRef<'_, P, Get>,
    place: MergedPlace,
) -> Result<bool, AllocError> {
    let (mm, platform) = (vmas.mm(), vmas.mm().platform());
    let (old, new) = (page.own.folio(), merged.folio());
    let Some(locked) = old.try_lock() else { return Ok(false) };
    let Some(to) = new.try_lock() else { return Ok(false) };
    if old.flags().intersects(FolioFlags::KSM | FolioFlags::SWAPCACHE | FolioFlags::WRITEBACK) {
        return Ok(false);
    }
    // What nothing maps any more, reclaim may have given up already: it is on no list, and
    // clean, for its content was on swap.
    if !new.is_mapped() {
        return Ok(false);
    }
    let Some(entry) = protect(vmas, page, &locked) else { return Ok(false) };
    // Now that neither changes any more.
    if !equal(platform, old.head(), new.head()) {
        return Ok(false);
    }
    platform.anon_trees().add_merged_place(new.head(), place)?;
    let Some(mut table) = mm.tables().lock_table(vmas.stay(), page.va) else { return Ok(false) };
    let index = table.index_of(page.va);
    let mut owed = mm.tables().tlb().obligation();
    let seen = table.take(index, &mut owed);
    if seen.mkold() != entry.mkold() {
        table.put_back(index, &[seen]);
        owed.already_done();
        return Ok(false);
    }
    owed.pay();
    let prot = P::Arch::prot(vma.protection());
    let mut e = E::<P>::leaf(new.head(), prot, Level::Pte).wrprotect();
    e = if seen.is_young() { e.mkyoung() } else { e.mkold() };
    e = if seen.is_soft_dirty() { e.mksoft_dirty() } else { e.clear_soft_dirty() };
    if seen.is_uffd_wp() {
        e = e.mkuffd_wp();
    }
    new.hold_for_mappings(NonZeroU32::MIN);
    new.add_anon_ptes(0, NonZeroU32::MIN, mm.id(), Exclusivity::MaybeShared);
    table.set(index, e);
    old.remove_ptes(0, NonZeroU32::MIN, mm.id());
    munlock_unmapped(vma.flags(), old);
    drop(table);
    drop((locked, to));
    platform.memmap().put_run::<Get>(FolioRun::new(old.head(), 0, 1));
    Ok(true)
}
