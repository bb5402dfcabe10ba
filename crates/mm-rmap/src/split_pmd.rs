//! A PMD leaf becomes a table of PTEs.

use crate::RmapPlatform;
use crate::suspend::stand_in;
use mm_arch::{
    AccessKind, Arch, Entry, Level, NonPresent, Pfn, Protection, Rights, TableFrame, VirtAddr,
    WriteKind,
};
use mm_folio::{Folio, FolioFlags, FolioRun, Get};
use mm_pgtable::{LockedEntry, LockedPmd, TablesStay};
use mm_vma::{Event, Mm, Observer, Platform, RssKind};

type E<P> = <<P as mm_pgtable::TableSpace>::Arch as Arch>::Entry;

/// Splits the PMD leaf that maps `va`, if there is one: afterwards PTEs map the
/// same pages with the same rights (rules PSPLIT-01..05). Never fails: the table was
/// deposited when the leaf was made. A leaf of a file or of shared memory is taken
/// away instead, and nothing is mapped there (ZAP-09, VMA-01).
///
/// Nothing that an access could see changes, nor do the resident-set counters.
/// The folio gets a reference and a mapping per page, and every page is
/// exclusive if the head was. A leaf of the huge zero folio becomes entries of the
/// zero page that keep uffd-wp. A migration entry becomes one per page, or goes.
///
/// # Panics
///
/// If a leaf of anonymous memory has no deposited table.
pub fn split_pmd<P: RmapPlatform>(mm: &Mm<P>, stay: TablesStay<'_>, va: VirtAddr) {
    if let LockedEntry::Huge(locked) = mm.tables().lock_entry(stay, va) {
        split_locked_pmd(mm, locked);
    }
}

/// As [`split_pmd`], of a leaf that is locked already; gives the lock back.
///
/// # Panics
///
/// If a leaf of anonymous memory has no deposited table.
pub fn split_locked_pmd<P: RmapPlatform>(mm: &Mm<P>, locked: LockedPmd<'_, P>) {
    split(mm, locked, Becomes::Leaves);
}

/// As [`split_locked_pmd`]; what becomes of a leaf of anonymous memory are migration
/// entries, unless its page is exclusive and may be pinned (rule PSPLIT-03). The folio is
/// locked, and the caller has a reference.
pub(crate) fn freeze_locked_pmd<P: RmapPlatform>(mm: &Mm<P>, locked: LockedPmd<'_, P>) {
    split(mm, locked, Becomes::MigrationEntries);
}

/// What stands in the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Becomes {
    Leaves,
    MigrationEntries,
}

fn split<P: RmapPlatform>(mm: &Mm<P>, mut locked: LockedPmd<'_, P>, becomes: Becomes) {
    let seen = locked.entry();
    if !seen.is_leaf(Level::Pmd) {
        return split_migration(mm, locked);
    }
    let platform = mm.platform();
    if platform.memmap().contains(seen.pfn(Level::Pmd))
        && !platform.memmap().is_huge_zero(seen.pfn(Level::Pmd))
        && !platform.memmap().folio(seen.pfn(Level::Pmd)).is_anon()
    {
        return take_file_pmd(mm, locked);
    }
    let nr = P::Arch::nr_entries(Level::Pte);
    let Some(frame) = locked.withdraw() else {
        panic!("the PMD leaf at {} has no deposited table", locked.at().va)
    };
    // Hardware must not use the leaf any more, nor set bits in it, while the
    // PTEs are made from it; lockless readers must still see something there,
    // not a hole (rules PTE-20, PSPLIT-02).
    let mut owed = mm.tables().tlb().obligation();
    let invalid =
        if mm_sync::mutant!("rmap.split.hole") { E::<P>::NONE } else { seen.mkinvalid(Level::Pmd) };
    let mut old = locked.swap(invalid, &mut owed);
    owed.pay();
    if mm_sync::mutant!("rmap.split.stale") {
        old = seen;
    }

    let head = old.pfn(Level::Pmd);
    if platform.memmap().is_huge_zero(head) {
        let pte = zero_pte::<P>(old, platform.zero_page());
        for index in 0..nr {
            // SAFETY: withdrawn above, and linked only below.
            unsafe { locked.set_unlinked(frame, index, pte) };
        }
    } else {
        let folio = platform.memmap().folio(head);
        if old.is_dirty() {
            folio.set_flag(FolioFlags::DIRTY);
        }
        let suspended = becomes == Becomes::MigrationEntries
            && suspend_parts(mm, &mut locked, frame, folio, pte_of::<P>(old));
        if !suspended {
            // References, mappings and marks of the pages first, the mapping of the
            // whole last: at no time does the folio look unmapped, or has it fewer
            // references than mappings.
            folio.split_pmd_counts(mm.id());
            // SAFETY: withdrawn above, and linked only below.
            unsafe { locked.fill_unlinked(frame, nr, pte_of::<P>(old)) };
        }
    }
    // Publishing: who finds the table finds its entries. The invalid leaf is in
    // no translation cache, so nothing more is owed.
    let mut owed = mm.tables().tlb().obligation();
    // SAFETY: withdrawn above, and nobody else's.
    unsafe { locked.link(frame, &mut owed) };
    owed.already_done();
    drop(locked);
    platform.observer().event(Event::PmdSplit, 1);
}

/// Fills the table of a leaf, of which `first` would be the first PTE, with migration
/// entries, and unmaps the folio. `false`, and nothing, if a page may be pinned or the
/// format has no such entries.
fn suspend_parts<P: RmapPlatform>(
    mm: &Mm<P>,
    locked: &mut LockedPmd<'_, P>,
    frame: TableFrame,
    folio: Folio<'_, P>,
    first: E<P>,
) -> bool {
    let map = mm.platform().memmap();
    let exclusive = map.page_exclusive(folio.head());
    let nr = P::Arch::nr_entries(Level::Pte);
    let entry =
        |i: usize| stand_in::<P>(first.advance(i as u64, Level::Pte), Level::Pte, exclusive);
    // The last one has the widest frame.
    if entry(nr - 1).is_none() || exclusive && folio.try_share_anon_pmd().is_err() {
        return false;
    }
    for i in 0..nr {
        let Some(e) = entry(i) else { break };
        // SAFETY: as above: withdrawn, and linked later.
        unsafe { locked.set_unlinked(frame, i, e) };
    }
    folio.remove_pmd(mm.id());
    // Whoever resumes it asks the mapping, which may be another one by then (rule RMAP-06).
    folio.munlock();
    map.put_run::<Get>(FolioRun::new(folio.head(), 0, 1));
    true
}

/// A migration entry of a whole folio becomes one per page (rules PSPLIT-04, MM-067). No
/// count changes: nothing is mapped. That of a file or of shared memory goes, as its leaf
/// would have.
fn split_migration<P: RmapPlatform>(mm: &Mm<P>, mut locked: LockedPmd<'_, P>) {
    let seen = locked.entry();
    let Some(NonPresent::Migration { kind, pfn, young, dirty }) = seen.nonpresent(Level::Pmd)
    else {
        return;
    };
    let folio = mm.platform().memmap().folio(pfn);
    if !folio.is_anon() {
        // Whoever moves the folio finds no entry to resume.
        let mut owed = mm.tables().tlb().obligation();
        locked.swap(E::<P>::NONE, &mut owed);
        owed.already_done();
        mm.counters().sub(RssKind::of(folio), 1 << P::Arch::order(Level::Pmd));
        drop(locked);
        mm.platform().observer().event(Event::PmdSplit, 1);
        return;
    }
    let nr = P::Arch::nr_entries(Level::Pte);
    let Some(frame) = locked.withdraw() else {
        panic!("the migration entry at {} has no deposited table", locked.at().va)
    };
    for i in 0..nr {
        let pfn = pfn.add(i as u64);
        let part = NonPresent::Migration { kind, pfn, young, dirty };
        if let Ok(e) = E::<P>::from_nonpresent(part, seen.swap_bits()) {
            // SAFETY: withdrawn above, and linked only below.
            unsafe { locked.set_unlinked(frame, i, e) };
        }
    }
    let mut owed = mm.tables().tlb().obligation();
    // SAFETY: withdrawn above, and nobody else's.
    unsafe { locked.link(frame, &mut owed) };
    owed.already_done();
    drop(locked);
    mm.platform().observer().event(Event::PmdSplit, 1);
}

/// Takes a leaf of a file or of shared memory away: whoever accesses its pages finds
/// them again by a fault.
fn take_file_pmd<P: RmapPlatform>(mm: &Mm<P>, mut locked: LockedPmd<'_, P>) {
    let map = mm.platform().memmap();
    let mut owed = mm.tables().tlb().obligation();
    let old = locked.swap(E::<P>::NONE, &mut owed);
    // While it still counts as mapped: who cleans the page waits for the lock, and
    // must not write it out before the last store has reached it.
    owed.pay();
    let folio = map.folio(old.pfn(Level::Pmd));
    if old.is_dirty() {
        folio.set_flag(FolioFlags::DIRTY);
    }
    if old.is_young() {
        folio.set_flag(FolioFlags::REFERENCED);
    }
    let kind = RssKind::of(folio);
    folio.remove_pmd(mm.id());
    // Too eager if the mapping is not locked, or another one is (rule RMAP-06).
    folio.munlock();
    mm.counters().sub(kind, 1 << P::Arch::order(Level::Pmd));
    drop(locked);
    mm.platform().observer().event(Event::PmdSplit, 1);
    map.put_run::<Get>(FolioRun::new(folio.head(), 0, 1));
}

/// The template of the PTEs under a leaf: the rights of the leaf itself, which
/// knows them as well as the VMA does, and cannot be outrun by `mprotect`.
fn template<P: Platform>(leaf: E<P>) -> Protection {
    if leaf.is_protnone(Level::Pmd) {
        return Protection::none();
    }
    let mut rights = Rights::READ | Rights::WRITE;
    rights.set(Rights::EXEC, leaf.permits(AccessKind::Exec, Level::Pmd));
    // Write permission is added below, where the leaf has it.
    Protection { rights, writable_at_once: false, pkey: 0 }
}

/// The first of the PTEs that map what `leaf` maps.
fn pte_of<P: Platform>(leaf: E<P>) -> E<P> {
    let prot = P::Arch::prot(template::<P>(leaf));
    let mut pte = E::<P>::leaf(leaf.pfn(Level::Pmd), prot, Level::Pte);
    pte = if leaf.is_young() { pte.mkyoung() } else { pte.mkold() };
    // Dirty before writable, and soft-dirty on its own (rule SHSTK-06).
    if leaf.is_dirty() {
        pte = pte.mkdirty();
    }
    pte = if leaf.is_soft_dirty() { pte.mksoft_dirty() } else { pte.clear_soft_dirty() };
    if leaf.is_writable(Level::Pmd) {
        let normal = leaf.permits(AccessKind::Write, Level::Pmd) || leaf.is_protnone(Level::Pmd);
        pte = pte.mkwrite(if normal { WriteKind::Normal } else { WriteKind::ShadowStack });
    }
    if leaf.is_uffd_wp() { pte.mkuffd_wp() } else { pte }
}

/// The PTE of the zero page that stands for a part of the huge zero folio.
fn zero_pte<P: Platform>(leaf: E<P>, zero: Pfn) -> E<P> {
    let prot = P::Arch::prot(template::<P>(leaf));
    let pte = E::<P>::leaf(zero, prot, Level::Pte).mkspecial();
    if leaf.is_uffd_wp() { pte.mkuffd_wp() } else { pte }
}
