//! Migration entries: mappings of a folio that stand still while it moves or changes its
//! shape.
//!
//! # Protocol
//!
//! ```text
//!   folio locked, one reference
//!      │ suspend_mappings: each entry taken and flushed, marks of exclusive pages
//!      │                   given up, a migration entry instead; one mapping and
//!      │                   one reference less per entry
//!      ▼
//!   nothing maps the folio: who still has a reference is counted, and found out
//!      │ freeze at the references that are known; move, or split; unfreeze
//!      ▼
//!   resume: each migration entry that is left becomes what it stands for
//! ```
//!
//! An access meanwhile waits by faulting again (MIGR-04), GUP by faulting too; neither
//! holds a reference for that. Whoever unmaps, forks, protects or moves the entries
//! changes the entries; `resume` looks at what is there then, and remembers nothing
//! (F-RACE-27). Which rights an entry comes back with is what the entry says and its
//! mapping allows by now. A locked mapping loses the folio and gets it again, as any: whether
//! it is locked may change meanwhile. So nothing is kept in memory that is not mapped, whatever
//! the mapping says: whoever ends a lock passes by the migration entries (RMAP-06).

use crate::merged::Wait;
use crate::policy::Batching;
use crate::zero::map_zero_page;
use crate::{Hit, MappedWalk, PteHit, RmapPlatform, Seek, Strict, Visit, Visitor, WalkEnd};
use core::num::NonZeroU32;
use core::ops::ControlFlow;
use mm_arch::{Arch, Entry, Level, Live, MigrationKind, NonPresent, Pfn, SwapBits};
use mm_folio::{AnonId, Exclusivity, FileId, Folio, FolioFlags, FolioLockGuard, FolioRun, Get};
use mm_pgtable::{LockedPmd, LockedTable, TableSpace};
use mm_vma::{Mm, Platform, RssKind, VmaRights, mlock_mapped};

type E<P> = <<P as TableSpace>::Arch as Arch>::Entry;

/// Entries taken in one step at most: what fits on a kernel's stack.
const CHUNK: usize = 64;

/// What becomes of PMD leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// They stay leaves: the folio keeps its size. Where the format has no such
    /// migration entries, it is as with [`Split`](Self::Split).
    Keep,
    /// They become PTEs: the folio is about to be split. Those of files and of shared memory
    /// are taken away; the next access finds the folio again (rule PSPLIT-01).
    Split,
}

/// Not every mapping could be suspended: a page may be pinned, or an entry is of a kind
/// that does not move. All mappings are there (MIGR-01).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a mapping of the folio stays: it may be pinned")]
pub struct MappingStays;

/// Whose pages they are: what leads to the entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Home {
    Anon(AnonId),
    File(FileId),
    /// Those of a merged page have places, in any tree.
    Merged,
}

/// Mappings that are suspended. Dropping this resumes them where they were.
///
/// # Invariants
///
/// Migration entries that name the `nr` frames from `head` on are this one's, for its
/// holder has the lock of the folio that they belonged to, and of all that it is split
/// into.
#[must_use = "mappings are resumed where they were when this is dropped"]
pub struct Suspended<'p, P: RmapPlatform> {
    platform: &'p P,
    home: Home,
    index: u64,
    head: Pfn,
    nr: u32,
    batching: Batching,
}

impl<P: RmapPlatform> core::fmt::Debug for Suspended<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Suspended({} + {})", self.head, self.nr)
    }
}

/// Replaces every mapping of a folio by a migration entry (rules MIGR-01, MIGR-02,
/// PSPLIT-03). Afterwards nothing maps it, and no CPU has a translation of it left. Entries of
/// pages that have failed say so from now on, and do not come back.
///
/// The caller holds a reference. A folio that nothing maps suspends nothing.
///
/// # Errors
///
/// If an exclusive page may be pinned, or an entry does not move. Everything is mapped
/// as before then, but that leaves may have become PTEs.
pub fn suspend_mappings<'p, P: RmapPlatform>(
    platform: &'p P,
    locked: &FolioLockGuard<'_, P>,
    leaves: Leaves,
    batching: Batching,
) -> Result<Suspended<'p, P>, MappingStays> {
    let folio = locked.folio();
    let (home, index) = match (folio.anon(), folio.file()) {
        (Some((_, index)), _) if folio.has(FolioFlags::KSM) => (Home::Merged, index),
        (Some((id, index)), _) => (Home::Anon(id), index),
        (None, Some((id, index))) => (Home::File(id), index),
        (None, None) => return Err(MappingStays),
    };
    let (head, nr) = (folio.head(), folio.nr_pages());
    let suspended = Suspended { platform, home, index, head, nr, batching };
    let mut done = Ok(());
    let mut visit = |mm: &alloc::sync::Arc<Mm<P>>, visit: Visit<'_>| {
        done = suspend_within(mm, &visit, folio, leaves, batching);
        if done.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    match home {
        Home::Anon(_) | Home::Merged => platform.anon_trees().walk(folio, &mut visit),
        Home::File(_) => platform.file_trees().walk(folio, &mut visit),
    };
    // What is still mapped is so through entries that the walk does not find, or
    // that came behind it: nothing may rely on the folio being unmapped.
    if done.is_ok() && !folio.is_mapped() { Ok(suspended) } else { Err(MappingStays) }
}

/// As [`suspend_mappings`]; `None` for a folio that nothing maps, and nothing will while it is
/// locked: one of a file may be mapped without its lock.
pub(crate) fn suspend_if_mapped<'p, P: RmapPlatform>(
    platform: &'p P,
    locked: &FolioLockGuard<'_, P>,
    leaves: Leaves,
    batching: Batching,
) -> Result<Option<Suspended<'p, P>>, MappingStays> {
    if !locked.folio().is_mapped() && locked.folio().file().is_none() {
        return Ok(None);
    }
    suspend_mappings(platform, locked, leaves, batching).map(Some)
}

fn suspend_within<P: RmapPlatform>(
    mm: &Mm<P>,
    visit: &Visit<'_>,
    folio: Folio<'_, P>,
    leaves: Leaves,
    batching: Batching,
) -> Result<(), MappingStays> {
    let mut walk = MappedWalk::<P, Strict>::new(mm, visit, folio, Seek::Mappings);
    while let Some(hit) = walk.next_hit() {
        match hit {
            Hit::Pmd(pmd) if leaves == Leaves::Keep && pmd_can_move::<P>(pmd) => {
                suspend_pmd(mm, folio, pmd)?;
            }
            // That of an object is taken away. One whose pages are pinned has become PTEs:
            // the next hits tell.
            Hit::Pmd(_) => walk.freeze_pmd(),
            Hit::Pte(at) => {
                let n = suspend_ptes(mm, folio, at, batching)?;
                walk.consumed(n);
            }
        }
    }
    Ok(())
}

/// What a migration entry says of the leaf `e` of an exclusive page, or one that is not.
fn kind_of<P: Platform>(e: E<P>, level: Level, exclusive: bool) -> MigrationKind {
    if e.is_writable(level) {
        MigrationKind::Write
    } else if exclusive {
        MigrationKind::ReadExclusive
    } else {
        MigrationKind::Read
    }
}

/// The migration entry for the leaf `e`; `None` if the format cannot hold it.
pub(crate) fn stand_in<P: Platform>(e: E<P>, level: Level, exclusive: bool) -> Option<E<P>> {
    let what = NonPresent::Migration {
        kind: kind_of::<P>(e, level, exclusive),
        pfn: e.pfn(level),
        young: e.is_young(),
        dirty: e.is_dirty(),
    };
    let bits =
        SwapBits { exclusive: false, soft_dirty: e.is_soft_dirty(), uffd_wp: e.is_uffd_wp() };
    E::<P>::from_nonpresent(what, bits).ok()
}

/// Whether the format has migration entries at PMD level.
fn pmd_can_move<P: Platform>(pmd: &LockedPmd<'_, P>) -> bool {
    let seen = pmd.entry();
    seen.is_leaf(Level::Pmd)
        && stand_in::<P>(seen, Level::Pmd, false)
            .is_some_and(|e| e.type_offset(Level::Pmd).is_some())
}

fn suspend_pmd<P: RmapPlatform>(
    mm: &Mm<P>,
    folio: Folio<'_, P>,
    pmd: &mut LockedPmd<'_, P>,
) -> Result<(), MappingStays> {
    let map = mm.platform().memmap();
    // Present for lockless readers, and in no translation cache (rule PTE-20).
    let mut owed = mm.tables().tlb().obligation();
    let old = pmd.swap(pmd.entry().mkinvalid(Level::Pmd), &mut owed);
    owed.pay();
    let exclusive = folio.is_anon() && map.page_exclusive(folio.head());
    let entry = stand_in::<P>(old, Level::Pmd, exclusive);
    let shared = !exclusive || folio.try_share_anon_pmd().is_ok();
    let mut fresh = mm.tables().tlb().obligation();
    let moved = match entry {
        Some(entry) if shared => {
            if old.is_dirty() && !mm_sync::mutant!("rmap.suspend.lose_dirt") {
                folio.set_flag(FolioFlags::DIRTY);
            }
            pmd.swap(entry, &mut fresh);
            folio.remove_pmd(mm.id());
            folio.munlock();
            map.put_run::<Get>(FolioRun::new(folio.head(), 0, 1));
            Ok(())
        }
        _ => {
            pmd.swap(old, &mut fresh);
            Err(MappingStays)
        }
    };
    // It was invalid since the flush.
    fresh.already_done();
    moved
}

/// How many entries are suspended, from the hit on.
fn suspend_ptes<P: RmapPlatform>(
    mm: &Mm<P>,
    folio: Folio<'_, P>,
    at: PteHit<'_, '_, P>,
    batching: Batching,
) -> Result<usize, MappingStays> {
    let PteHit { table, index, entry, page, limit } = at;
    let map = mm.platform().memmap();
    // Memory of a device moves otherwise.
    if !entry.is_leaf(Level::Pte) {
        return Err(MappingStays);
    }
    // A page that has failed is looked at by itself.
    let n = match batching {
        _ if folio.has(FolioFlags::HWPOISON) => 1,
        Batching::PerPage => 1,
        Batching::Batched => {
            table.run::<{ mm_arch::respect::NOTHING }>(index, entry, limit.at_most(CHUNK)).nr()
        }
    };
    let Some(count) = u32::try_from(n).ok().and_then(NonZeroU32::new) else {
        return Err(MappingStays);
    };
    let mut old = [E::<P>::NONE; CHUNK];
    let mut owed = mm.tables().tlb().obligation();
    table.take_each::<Live>(index, n, &mut owed, |k, e| old[k] = e);
    // One flush for all of them, and before anybody is asked about pins: stores until
    // here are in the page before it is copied (known fault: one slot of a block).
    owed.pay();
    let old = &old[..n];
    if folio.is_poisoned(page)
        && let Ok(poison) =
            E::<P>::from_nonpresent(NonPresent::Hwpoison(folio.page(page)), SwapBits::default())
    {
        map.clear_exclusive(folio.page(page), 1);
        mm.counters().sub(RssKind::of(folio), 1);
        table.set(index, poison);
        folio.remove_ptes(page, count, mm.id());
        folio.munlock();
        map.put_run::<Get>(FolioRun::new(folio.head(), page, 1));
        return Ok(1);
    }
    let is_exclusive =
        |k: usize| folio.is_anon() && map.page_exclusive(folio.page(page + k as u32));
    let mut new = [E::<P>::NONE; CHUNK];
    let mut any_exclusive = false;
    let encoded = old.iter().zip(&mut new).enumerate().all(|(k, (old, new))| {
        any_exclusive |= is_exclusive(k);
        stand_in::<P>(*old, Level::Pte, is_exclusive(k)).is_some_and(|e| {
            *new = e;
            true
        })
    });
    if !encoded || any_exclusive && folio.try_share_anon_ptes(page, count).is_err() {
        table.put_back(index, old);
        return Err(MappingStays);
    }
    if old.iter().any(|e| e.is_dirty()) && !mm_sync::mutant!("rmap.suspend.lose_dirt") {
        folio.set_flag(FolioFlags::DIRTY);
    }
    for (k, e) in new[..n].iter().enumerate() {
        table.set(index + k, *e);
    }
    folio.remove_ptes(page, count, mm.id());
    folio.munlock();
    // Never the last ones: the caller has a reference.
    map.put_run::<Get>(FolioRun::new(folio.head(), page, count.get()));
    Ok(n)
}

/// What is mapped instead of pages that hold nothing but zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ZeroPages {
    /// The same pages.
    Keep,
    /// The zero page, where the mapping may have it (rule FOLIO-56).
    Share,
}

impl<P: RmapPlatform> Suspended<'_, P> {
    /// The mappings are resumed, and map page by page what begins at `to`, of the same
    /// number of pages, in one folio or in several. The caller holds the locks of all of
    /// them (rule MIGR-03).
    pub fn resume_at(mut self, to: Pfn) {
        self.resume(to, ZeroPages::Keep);
        self.nr = 0;
    }
    /// As [`resume_at`](Self::resume_at), in place.
    pub(crate) fn resume_in_place(mut self, zeros: ZeroPages) {
        self.resume(self.head, zeros);
        self.nr = 0;
    }
    /// Visits whatever may have an entry that stands for the pages, which are at `to` now.
    fn walk(&self, to: Pfn, visit: &mut Visitor<'_, P>) -> WalkEnd {
        let nr = u64::from(self.nr);
        match self.home {
            Home::Anon(id) => self.platform.anon_trees().walk_range(id, self.index, nr, visit),
            Home::File(id) => self.platform.file_trees().walk_range(id, self.index, nr, visit),
            Home::Merged => self.platform.anon_trees().walk_places(to, Wait::Yes, visit),
        }
    }
    fn resume(&self, to: Pfn, zeros: ZeroPages) {
        let frames = (self.head, u64::from(self.nr));
        self.walk(to, &mut |mm, visit| {
            let mut walk = MappedWalk::<P, Strict>::over(
                mm,
                visit.stay,
                visit.va,
                visit.nr_pages,
                frames,
                Seek::Migration,
            );
            while let Some(hit) = walk.next_hit() {
                match hit {
                    Hit::Pmd(pmd) => resume_pmd(mm, &visit, pmd, to),
                    Hit::Pte(at) => {
                        let n = match self.batching {
                            Batching::PerPage => 1,
                            Batching::Batched => at.limit.get(),
                        };
                        let target = to.add(u64::from(at.page));
                        let n = resume_ptes(mm, &visit, at.table, at.index, n, target, zeros);
                        walk.consumed(n);
                    }
                }
            }
            ControlFlow::Continue(())
        });
    }
}

impl<P: RmapPlatform> Drop for Suspended<'_, P> {
    fn drop(&mut self) {
        if self.nr > 0 {
            self.resume(self.head, ZeroPages::Keep);
        }
    }
}

/// A migration entry, read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StandIn {
    kind: MigrationKind,
    pfn: Pfn,
    young: bool,
    dirty: bool,
    bits: SwapBits,
}

impl StandIn {
    fn read<En: Entry>(e: En, level: Level) -> Option<Self> {
        if e.is_leaf(level) {
            return None;
        }
        match e.nonpresent(level)? {
            NonPresent::Migration { kind, pfn, young, dirty } => {
                Some(StandIn { kind, pfn, young, dirty, bits: e.swap_bits() })
            }
            _ => None,
        }
    }
    /// The leaf that it stands for, mapping `pfn` of `folio` in a mapping with `rights`
    /// (rules MIGR-03, MM-038).
    fn leaf<P: Platform>(
        self,
        folio: Folio<'_, P>,
        pfn: Pfn,
        rights: VmaRights,
        level: Level,
    ) -> E<P> {
        let prot = P::Arch::prot(rights.protection());
        // The template of shared memory may be writable: the entry decides.
        let mut e = E::<P>::leaf(pfn, prot, level).wrprotect();
        e = if self.young { e.mkyoung() } else { e.mkold() };
        // Of a folio that was cleaned meanwhile no entry is dirty.
        if self.dirty && folio.has(FolioFlags::DIRTY) {
            e = e.mkdirty();
        }
        e = if self.bits.soft_dirty { e.mksoft_dirty() } else { e.clear_soft_dirty() };
        if self.bits.uffd_wp {
            e.mkuffd_wp()
        } else if self.kind == MigrationKind::Write || mm_sync::mutant!("rmap.resume.by_mapping") {
            e.mkwrite(rights.write_kind())
        } else {
            e
        }
    }
    fn marks(self) -> Exclusivity {
        if self.kind == MigrationKind::Read {
            Exclusivity::MaybeShared
        } else {
            Exclusivity::Exclusive
        }
    }
}

fn resume_pmd<P: RmapPlatform>(mm: &Mm<P>, visit: &Visit<'_>, pmd: &mut LockedPmd<'_, P>, to: Pfn) {
    let Some(was) = StandIn::read(pmd.entry(), Level::Pmd) else { return };
    let folio = mm.platform().memmap().folio(to);
    let e = was.leaf::<P>(folio, to, visit.rights(), Level::Pmd);
    folio.hold_for_mappings(NonZeroU32::MIN);
    if folio.is_anon() {
        folio.add_anon_pmd(mm.id(), was.marks());
    } else {
        folio.add_file_pmd(mm.id());
    }
    mlock_mapped(visit.flags, folio, folio.nr_pages());
    let mut fresh = mm.tables().tlb().obligation();
    pmd.swap(e, &mut fresh);
    fresh.already_done();
}

/// How many entries are resumed, `most` at most; the first one maps `target` then.
fn resume_ptes<P: RmapPlatform>(
    mm: &Mm<P>,
    visit: &Visit<'_>,
    table: &mut LockedTable<'_, P>,
    index: usize,
    most: usize,
    target: Pfn,
    zeros: ZeroPages,
) -> usize {
    let (map, rights) = (mm.platform().memmap(), visit.rights());
    let Some(was) = StandIn::read(table.get(index), Level::Pte) else { return 1 };
    let folio = map.folio(target);
    let page = folio.index_of(target);
    if zeros == ZeroPages::Share && map_zero_page(mm, rights, table, index, folio, target, was.bits)
    {
        return 1;
    }
    let most = most.min((folio.nr_pages() - page) as usize);
    let follows = |k: &usize| {
        let next = StandIn { pfn: was.pfn.add(*k as u64), ..was };
        StandIn::read(table.get(index + k), Level::Pte) == Some(next)
    };
    let n = 1 + (1..most).take_while(follows).count();
    let Some(count) = u32::try_from(n).ok().and_then(NonZeroU32::new) else { return 1 };
    let e = was.leaf::<P>(folio, target, rights, Level::Pte);
    folio.hold_for_mappings(count);
    if folio.is_anon() {
        folio.add_anon_ptes(page, count, mm.id(), was.marks());
    } else {
        folio.add_file_ptes(page, count, mm.id());
    }
    mlock_mapped(visit.flags, folio, count.get());
    // No CPU has a translation of what is not there.
    let mut none = mm.tables().tlb().obligation();
    table.take_each::<Live>(index, n, &mut none, |_, _| ());
    none.already_done();
    table.fill(index, n, e);
    n
}
