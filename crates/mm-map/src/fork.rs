//! Copying an address space.
//!
//! # The protocol
//!
//! ```text
//!   parent's mmap lock, write side
//!     write-protect sequence odd                      a lockless pin gives up (FORK-03)
//!       for each VMA:   trees, then tables
//!         parent's table lock
//!           child's table lock
//!             references += n; try to share; write-protect n; fill n
//!     write-protect sequence even
//!     one flush of the parent                         (FORK-12)
//! ```
//!
//! The sequence is made odd *before* pins are looked at: a pinner either sees
//! the odd value, or its pin is seen here and the page is copied at once.
//!
//! Nothing is allocated under a table lock. A page that must be copied at once
//! (it may be pinned, FORK-08) makes the loop drop its locks, allocate, and start
//! again at that very entry.

use crate::ForkError;
use crate::entry::{E, Rss, counted_folio, pmd_pages, within};
use crate::exit::exit;
use crate::policy::{MapPolicy, Strategy, by_policy};
use alloc::sync::Arc;
use core::num::NonZeroU32;
use mm_arch::respect::{DIRTY, MERGE_WRITE, SOFT_DIRTY};
use mm_arch::{
    Arch, Entry, Flush, Level, Markers, MigrationKind, NonPresent, SwapSlot, VirtAddr, VirtRange,
};
use mm_folio::{Exclusivity, Folio, FolioFlags, FolioRef, FrameBytes, Get, HasPinned};
use mm_pgtable::{
    BatchLimit, LockedEntry, LockedPmd, LockedTable, Run, SpanKind, TableMemory, TableSpace,
    TablesStay,
};
use mm_rmap::{RmapPlatform, fork_vma, split_locked_pmd};
use mm_vma::{Mm, MmWrite, RssKind, SlotRun, SwapSpace, Vma, VmaFlags};

/// What a child inherits of a mapping: no locked pages, and userfaultfd only if whoever
/// handles its events asked for children.
fn inherited(flags: VmaFlags) -> VmaFlags {
    let flags = flags - VmaFlags::LOCKED - VmaFlags::LOCKONFAULT;
    if flags.contains(VmaFlags::UFFD_EVENT_FORK) { flags } else { flags - VmaFlags::UFFD_ANY }
}

/// Makes a copy of `parent`: its mappings, sharing its private pages until one
/// side stores to them (rules FORK-01..12). Takes the parent's mmap lock.
///
/// When it returns, no CPU has a translation left by which a store to the parent
/// could still be seen by the child.
///
/// # Errors
///
/// If there is no memory. The half-made child is gone again, nothing leaked; the
/// parent can go on, and fork again.
pub fn fork<P: RmapPlatform>(policy: &MapPolicy, parent: &Mm<P>) -> Result<Arc<Mm<P>>, ForkError> {
    let vmas = parent.write();
    let child = Mm::new(parent.platform().clone())?;
    let mut owed = parent.tables().tlb().obligation();
    parent.write_protect_seq().write_begin();
    let copied = copy_vmas(policy, &vmas, &child, &mut owed);
    parent.write_protect_seq().write_end();
    // Other CPUs may have stored through stale writable translations until
    // here: those stores belong before the fork. None may from here on.
    if !mm_sync::mutant!("map.fork.no_flush") {
        owed.now();
    } else {
        owed.already_done();
    }
    drop(vmas);
    match copied {
        Ok(()) => Ok(child),
        Err(e) => {
            exit(policy, &child);
            Err(e)
        }
    }
}

fn copy_vmas<P: RmapPlatform>(
    policy: &MapPolicy,
    parent_vmas: &MmWrite<'_, P>,
    child: &Mm<P>,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> Result<(), ForkError> {
    let parent = parent_vmas.mm();
    let mut child_vmas = child.write();
    // Behind the full barrier of the odd sequence.
    let pinned = if parent.has_pinned() { HasPinned::Maybe } else { HasPinned::Never };
    for parent_vma in parent_vmas.iter() {
        if parent_vma.flags().contains(VmaFlags::DONTCOPY) {
            continue;
        }
        let at = parent_vma.start();
        let mut vma = parent_vma.clone();
        vma.set_flags(inherited(parent_vma.flags()));
        vma.set_anon(None);
        child_vmas.change().insert(vma).map_err(|_| ForkError::NoMemory(at))?;
        if parent_vma.flags().contains(VmaFlags::WIPEONFORK) {
            continue;
        }
        let Some(child_vma) = child_vmas.find(at) else { continue };
        if fork_vma(child, parent_vma, child_vma).is_err() {
            // In no tree: it must not be there when the child is taken apart.
            child_vmas.change().remove(parent_vma.range(), |_| ());
            return Err(ForkError::NoMemory(at));
        }
        let Some(child_vma) = child_vmas.find(at) else { continue };
        // Nothing private, nor protected: a fault of the child finds what there is (rule
        // FORK-03).
        if parent_vma.anon().is_none() && !child_vma.flags().contains(VmaFlags::UFFD_WP) {
            continue;
        }
        let copy = Copy {
            parent,
            child,
            parent_stay: parent_vmas.stay(),
            child_stay: child_vmas.stay(),
            parent_vma,
            child_vma,
            pinned,
        };
        by_policy!(policy, copy_tables::<P>(&copy, owed))?;
        parent_vma.forked();
        child_vma.forked();
    }
    Ok(())
}

/// One VMA being copied.
struct Copy<'c, P: RmapPlatform> {
    parent: &'c Mm<P>,
    child: &'c Mm<P>,
    parent_stay: TablesStay<'c>,
    child_stay: TablesStay<'c>,
    parent_vma: &'c Vma,
    child_vma: &'c Vma,
    pinned: HasPinned,
}

impl<P: RmapPlatform> Copy<'_, P> {
    /// Whether the child's entries stay protected for userfaultfd (rule UFFD-06).
    fn keeps_wp(&self) -> bool {
        self.child_vma.flags().contains(VmaFlags::UFFD_WP)
    }
}

/// What copying an entry came to.
enum Step {
    /// This many entries are done.
    Done(usize),
    /// The page must be copied at once, and there is no page to copy to.
    NeedPage,
}

fn copy_tables<B: Strategy, P: RmapPlatform>(
    copy: &Copy<'_, P>,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> Result<(), ForkError> {
    let tables = copy.parent.tables();
    for span in tables.spans(copy.parent_stay, copy.parent_vma.range()) {
        // A leaf may turn into a table at any time, by reclaim or because its
        // page is pinned; never the other way round under the mmap lock.
        if span.kind == SpanKind::Huge && copy_pmd(copy, span.range, owed)? {
            continue;
        }
        if span.kind != SpanKind::Hole {
            copy_table::<B, P>(copy, span.range, owed)?;
        }
    }
    Ok(())
}

/// Copies the entries of one table.
fn copy_table<B: Strategy, P: RmapPlatform>(
    copy: &Copy<'_, P>,
    range: VirtRange,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> Result<(), ForkError> {
    let (parent, child) = (copy.parent, copy.child);
    let no_memory = |_| ForkError::NoMemory(range.start());
    let mut page = None;
    let mut i = P::Arch::index(range.start(), Level::Pte);
    let end = i + range.nr(P::Arch::PAGE_SHIFT) as usize;
    while i < end {
        // Without locks: the table, and the page that an early copy asked for.
        drop(child.tables().ensure_table(copy.child_stay, range.start()).map_err(no_memory)?);
        let LockedEntry::Table(mut src) =
            parent.tables().lock_entry(copy.parent_stay, range.start())
        else {
            return Ok(());
        };
        // Two table locks: the parent's first (lock order).
        let LockedEntry::Table(mut dst) = child.tables().lock_entry(copy.child_stay, range.start())
        else {
            return Ok(());
        };
        let mut rss = Rss::default();
        let stopped = loop {
            if i >= end {
                break None;
            }
            let e = src.get(i);
            let limit = src.limit(i).at_most(end - i);
            let step = if e.is_none() {
                Ok(Step::Done(src.none_run(i, limit)))
            } else if e.is_present(Level::Pte) {
                copy_present::<B, P>(
                    copy,
                    &mut src,
                    &mut dst,
                    i,
                    end - i,
                    e,
                    &mut page,
                    &mut rss,
                    owed,
                )
            } else {
                copy_nonpresent::<B, P>(copy, &mut src, &mut dst, i, limit, e, &mut rss)
            };
            match step {
                Ok(Step::Done(n)) => {
                    // Not used by the entry that it was made for: the next one
                    // gets its own (rule FORK-09).
                    page = None;
                    i += n;
                }
                Ok(Step::NeedPage) => break Some(Ok(())),
                Err(e) => break Some(Err(e)),
            }
        };
        rss.add_to(child);
        let va = src.va_of(i.min(end - 1));
        drop((dst, src));
        match stopped {
            None => {}
            Some(Err(e)) => return Err(e),
            Some(Ok(())) => {
                let new = parent.platform().memmap().alloc(0);
                page = Some(new.map_err(|_| ForkError::NoMemory(va))?);
            }
        }
    }
    Ok(())
}

/// The run to share that starts at `i`, a private mapping's (rules BATCH-11,
/// BATCH-13): the child gets the head's dirty bit for all of it, so the run stops
/// where dirty changes; the write bits are merged, so that all of it is
/// write-protected if any entry is writable.
fn run_of<'t, P: RmapPlatform>(
    vma: &Vma,
    src: &LockedTable<'t, P>,
    i: usize,
    e: E<P>,
    limit: BatchLimit,
) -> Run<'t> {
    let shared = vma.flags().contains(VmaFlags::SHARED);
    match (shared, vma.tracks_soft_dirty(P::Arch::HAS_SOFT_DIRTY)) {
        (false, false) => src.run::<{ MERGE_WRITE | DIRTY }>(i, e, limit),
        (false, true) => src.run::<{ MERGE_WRITE | DIRTY | SOFT_DIRTY }>(i, e, limit),
        (true, false) => src.run::<{ MERGE_WRITE }>(i, e, limit),
        (true, true) => src.run::<{ MERGE_WRITE | SOFT_DIRTY }>(i, e, limit),
    }
}

#[expect(clippy::too_many_arguments, reason = "two tables, a position in them, and what it makes")]
fn copy_present<'m, B: Strategy, P: RmapPlatform>(
    copy: &Copy<'m, P>,
    src: &mut LockedTable<'_, P>,
    dst: &mut LockedTable<'_, P>,
    i: usize,
    left: usize,
    e: E<P>,
    page: &mut Option<FolioRef<'m, P, Get>>,
    rss: &mut Rss,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> Result<Step, ForkError> {
    let (parent, child) = (copy.parent, copy.child);
    let Some(folio) = counted_folio(parent, e, Level::Pte) else {
        dst.fill(i, 1, child_entry(copy, e, Level::Pte));
        return Ok(Step::Done(1));
    };
    let first = folio.index_of(e.pfn(Level::Pte));
    // With a page at hand this entry is the one that wants it (rule FORK-05).
    let run = if B::ON && folio.is_large() && page.is_none() {
        run_of(copy.parent_vma, src, i, e, within(src.limit(i), left, folio, first))
    } else {
        src.single(i)
    };
    let n = run.count();
    // References before mappings (INV-1).
    let refs = folio.grab::<Get>(n.get()).map_err(|_| ForkError::TooManyRefs(src.va_of(i)))?;
    if !folio.is_anon() {
        // A page of the object behind a private mapping (rule RMAP-15).
        folio.add_file_ptes(first, n, child.id());
    } else if folio.try_dup_anon_ptes(first, n, child.id(), copy.pinned).is_err() {
        drop(refs);
        return Ok(match page.take() {
            None => Step::NeedPage,
            Some(new) => {
                copy_early(copy, dst, i, e, new);
                rss.add(RssKind::Anon, 1);
                Step::Done(1)
            }
        });
    }
    refs.hand_over();
    rss.add(RssKind::of(folio), n.get().into());
    let writable = e.is_writable(Level::Pte)
        || (B::ON && run.any_writable() && !mm_sync::mutant!("map.fork.write_of_head"));
    let mut shared = e;
    if copy.parent_vma.is_cow() && writable && !mm_sync::mutant!("map.fork.no_wrprotect") {
        src.wrprotect(i, run.nr(), owed);
        // Hardware could store until here. The child shares what it stored, and its own
        // entry is all that speaks for it once the parent gives the page up.
        let mut stored = (0..run.nr()).map(|k| src.get(i + k).is_dirty());
        if !e.is_dirty() && stored.any(|dirty| dirty) && !mm_sync::mutant!("map.fork.early_dirt") {
            shared = e.mkdirty();
        }
    }
    dst.fill(i, run.nr(), child_entry(copy, shared, Level::Pte));
    Ok(Step::Done(run.nr()))
}

/// The child's form of a leaf that both map from now on (rule FORK-06).
fn child_entry<P: RmapPlatform>(copy: &Copy<'_, P>, e: E<P>, level: Level) -> E<P> {
    let (vma, mut e) = (copy.parent_vma, e);
    if vma.is_cow() && e.is_writable(level) {
        e = e.wrprotect();
    }
    if vma.flags().contains(VmaFlags::SHARED) {
        e = e.mkclean();
    }
    if copy.keeps_wp() { e.mkold() } else { e.mkold().clear_uffd_wp() }
}

/// Gives the child its own copy of a page that may be pinned (rule FORK-08). The
/// parent's entry stays as it is: writable, exclusive, the page the device knows.
fn copy_early<P: RmapPlatform>(
    copy: &Copy<'_, P>,
    dst: &mut LockedTable<'_, P>,
    i: usize,
    e: E<P>,
    new: FolioRef<'_, P, Get>,
) {
    let (child, vma) = (copy.child, copy.child_vma);
    let folio = new.folio();
    child.platform().bytes().copy(folio.head(), e.pfn(Level::Pte));
    prepare_anon(folio, vma, dst.va_of(i));
    folio.add_new_anon(child.id(), Level::Pte, Exclusivity::Exclusive);
    folio.enlist();
    let prot = P::Arch::prot(vma.protection());
    let mut entry = E::<P>::leaf(folio.head(), prot, Level::Pte).mkdirty();
    if copy.keeps_wp() && e.is_uffd_wp() {
        entry = entry.mkuffd_wp();
    } else if vma.flags().contains(VmaFlags::WRITE) {
        entry = entry.mkwrite(vma.write_kind());
    }
    dst.fill(i, 1, entry);
    new.hand_over();
}

/// Makes a new folio an anonymous one of `vma` at `va`, with valid content.
fn prepare_anon<P: RmapPlatform>(folio: Folio<'_, P>, vma: &Vma, va: VirtAddr) {
    if let Some(anon) = vma.anon() {
        folio.set_anon(anon, vma.linear_index(va));
    }
    folio.set_flag(FolioFlags::UPTODATE);
    if !vma.flags().contains(VmaFlags::DROPPABLE) {
        folio.set_flag(FolioFlags::SWAPBACKED);
    }
}

/// A migration entry as both sides have it after a fork: not writable, not
/// exclusive (rule FORK-10).
fn shared_migration(what: NonPresent, cow: bool) -> NonPresent {
    match what {
        NonPresent::Migration { pfn, young, dirty, .. } if cow => {
            NonPresent::Migration { kind: MigrationKind::Read, pfn, young, dirty }
        }
        other => other,
    }
}

/// Copies the run of swap entries that starts at `i`: one more entry counts on each of its
/// slots, and no page is exclusive any more (rule FORK-10).
fn copy_swap<P: RmapPlatform>(
    copy: &Copy<'_, P>,
    src: &mut LockedTable<'_, P>,
    dst: &mut LockedTable<'_, P>,
    run: Run<'_>,
    e: E<P>,
    slot: SwapSlot,
    rss: &mut Rss,
) -> Result<Step, ForkError> {
    let (i, n) = (run.first(), run.nr());
    let slots = SlotRun::new(slot, run.count().get());
    let counts = copy.parent.platform().swap().slots();
    if counts.dup(slots).is_err() {
        let full = slots.iter().position(|slot| counts.is_full(slot)).unwrap_or(0);
        return Err(ForkError::TooManyRefs(src.va_of(i + full)));
    }
    let mut bits = e.swap_bits();
    if bits.exclusive && !mm_sync::mutant!("map.fork.swap_exclusive") {
        bits.exclusive = false;
        src.set_swap(i, n, e.with_swap_bits(bits));
    }
    bits.uffd_wp &= copy.keeps_wp();
    dst.set_swap(i, n, e.with_swap_bits(bits));
    rss.add(RssKind::Swap, n as u64);
    Ok(Step::Done(n))
}

/// Copies a non-present entry, or a run of swap entries (rule FORK-10).
fn copy_nonpresent<B: Strategy, P: RmapPlatform>(
    copy: &Copy<'_, P>,
    src: &mut LockedTable<'_, P>,
    dst: &mut LockedTable<'_, P>,
    i: usize,
    limit: BatchLimit,
    e: E<P>,
    rss: &mut Rss,
) -> Result<Step, ForkError> {
    use mm_arch::DeviceKind::{Exclusive, PrivateRead, PrivateWrite};
    let unsupported = Err(ForkError::Unsupported(src.va_of(i)));
    let cow = copy.parent_vma.is_cow();
    let mut bits = e.swap_bits();
    let both = match e.nonpresent(Level::Pte) {
        Some(m @ NonPresent::Migration { pfn, .. }) => {
            rss.add(RssKind::of(copy.parent.platform().memmap().folio(pfn)), 1);
            shared_migration(m, cow)
        }
        Some(NonPresent::Device { kind: kind @ (PrivateRead | PrivateWrite), pfn }) => {
            let folio = copy.parent.platform().memmap().folio(pfn);
            let refs = folio.grab::<Get>(1).map_err(|_| ForkError::TooManyRefs(src.va_of(i)))?;
            let first = folio.index_of(pfn);
            // Cannot fail: such memory is never pinned (rule RMAP-14).
            if folio
                .try_dup_anon_ptes(first, NonZeroU32::MIN, copy.child.id(), copy.pinned)
                .is_err()
            {
                return unsupported;
            }
            refs.hand_over();
            rss.add(RssKind::Anon, 1);
            NonPresent::Device { kind: if cow { PrivateRead } else { kind }, pfn }
        }
        Some(NonPresent::Marker(m)) => {
            // Poison and guards are always inherited.
            let kept = if copy.keeps_wp() { m } else { m - Markers::UFFD_WP };
            if !kept.is_empty()
                && let Ok(marker) = E::<P>::from_nonpresent(NonPresent::Marker(kept), bits)
            {
                dst.set(i, marker);
            }
            return Ok(Step::Done(1));
        }
        Some(poison @ NonPresent::Hwpoison(_)) => poison,
        Some(NonPresent::Swap(slot)) => {
            let run = if B::ON { src.swap_run(i, e, limit) } else { src.single(i) };
            return copy_swap(copy, src, dst, run, e, slot, rss);
        }
        Some(NonPresent::Device { kind: Exclusive, .. }) | None => {
            return unsupported;
        }
    };
    let Ok(entry) = E::<P>::from_nonpresent(both, bits) else { return unsupported };
    if entry != e {
        src.set(i, entry);
    }
    bits.uffd_wp &= copy.keeps_wp();
    dst.set(i, entry.with_swap_bits(bits));
    Ok(Step::Done(1))
}

/// What became of a PMD entry.
enum Leaf {
    /// The child has it, and the spare table deposited with it.
    Copied,
    /// The child finds the page by a fault.
    Left,
    /// Entries are to be copied instead.
    Split,
}

/// Copies a PMD entry (rule FORK-11). `false` if entries are to be copied instead:
/// the leaf is gone, or its page may be pinned and the leaf was split.
fn copy_pmd<P: RmapPlatform>(
    copy: &Copy<'_, P>,
    range: VirtRange,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> Result<bool, ForkError> {
    let (parent, child) = (copy.parent, copy.child);
    let va = range.start();
    let no_memory = |_| ForkError::NoMemory(va);
    // Without locks: the child's PMD table, and the table to deposit.
    drop(child.tables().ensure_pmd(copy.child_stay, va).map_err(no_memory)?);
    let spare = child.platform().tables().alloc(Level::Pte).map_err(no_memory)?;
    let copied = match parent.tables().lock_entry(copy.parent_stay, va) {
        LockedEntry::Huge(src) => match child.tables().lock_pmd(copy.child_stay, va) {
            Some(dst) => copy_locked_pmd(copy, src, dst, spare, owed),
            None => Ok(Leaf::Split),
        },
        _ => Ok(Leaf::Split),
    };
    if !matches!(copied, Ok(Leaf::Copied)) {
        // SAFETY: allocated above, and deposited only if the copy succeeded.
        unsafe { child.tables().free_unlinked(spare) };
    }
    Ok(!matches!(copied?, Leaf::Split))
}

fn copy_locked_pmd<P: RmapPlatform>(
    copy: &Copy<'_, P>,
    mut src: LockedPmd<'_, P>,
    mut dst: LockedPmd<'_, P>,
    spare: mm_arch::TableFrame,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> Result<Leaf, ForkError> {
    let (parent, child) = (copy.parent, copy.child);
    let mut e = src.entry();
    let va = src.at().va;
    let mut fresh = child.tables().tlb().obligation();
    let entry = if !e.is_leaf(Level::Pmd) {
        match e.nonpresent(Level::Pmd) {
            Some(m @ NonPresent::Migration { pfn, .. }) => {
                if !parent.platform().memmap().folio(pfn).is_anon() {
                    return Ok(Leaf::Left);
                }
                let both = shared_migration(m, copy.parent_vma.is_cow());
                let entry = E::<P>::from_nonpresent(both, e.swap_bits())
                    .map_err(|_| ForkError::Unsupported(va))?;
                src.swap(entry, owed);
                child.counters().add(RssKind::Anon, pmd_pages::<P>());
                let mut bits = e.swap_bits();
                bits.uffd_wp &= copy.keeps_wp();
                entry.with_swap_bits(bits)
            }
            _ => return Err(ForkError::Unsupported(va)),
        }
    } else {
        if let Some(folio) = counted_folio(parent, e, Level::Pmd) {
            if !folio.is_anon() {
                // The child faults it in again (rule FORK-11).
                return Ok(Leaf::Left);
            }
            let refs = folio.grab::<Get>(1).map_err(|_| ForkError::TooManyRefs(va))?;
            if folio.try_dup_anon_pmd(child.id(), copy.pinned).is_err() {
                drop((refs, dst));
                split_locked_pmd(parent, src);
                return Ok(Leaf::Split);
            }
            refs.hand_over();
            child.counters().add(RssKind::Anon, pmd_pages::<P>());
            if copy.parent_vma.is_cow() && e.is_writable(Level::Pmd) {
                src.wrprotect(owed);
                if src.entry().is_dirty() && !mm_sync::mutant!("map.fork.early_dirt") {
                    e = e.mkdirty();
                }
            }
        }
        child_entry(copy, e, Level::Pmd)
    };
    let old = dst.swap(entry, &mut fresh);
    debug_assert!(old.is_none(), "the child had something at {va} already");
    // SAFETY: allocated for this leaf; nobody else knows the frame.
    unsafe { dst.deposit(spare) };
    // The child has not run: nobody caches what was not there.
    fresh.already_done();
    Ok(Leaf::Copied)
}
