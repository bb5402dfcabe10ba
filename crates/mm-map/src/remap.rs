//! Moving and resizing mappings.
//!
//! # The protocol
//!
//! The new VMA joins the trees of the old one, behind it; then entries move, one
//! pair of tables at a time, under both table locks: the old place first. A
//! walker of the trees visits the old place before the new one, so it meets
//! every page at least once (RMAP-32). The flush of the old place is paid before
//! either lock is dropped: afterwards the page may be unmapped at its new place
//! and freed, and nobody would flush the old one (MREMAP-02).
//!
//! Counts of folios do not change: what moves is the same mapping (MREMAP-03).

use crate::MapError;
use crate::entry::{E, counted_folio, within};
use crate::mmap::{munmap, remove_vmas};
use crate::policy::{MapPolicy, Strategy, by_policy};
use crate::vmas::{check_range, merge, split_around};
use mm_arch::respect::WRITE;
use mm_arch::{Arch, Entry, Flush, Level, Markers, NonPresent, VirtAddr, VirtRange};
use mm_pgtable::{
    Gather, LockedEntry, LockedTable, SpanKind, TableAllocError, TableSpace, TablesStay,
};
use mm_rmap::{RmapPlatform, clone_vma, split_pmd, vma_flags_changed, vma_resized};
use mm_vma::{Mm, MmWrite, Vma, VmaFlags};

/// What becomes of the place that is moved from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldPlace {
    /// It is unmapped.
    Unmap,
    /// It stays mapped, and empty.
    Keep,
}

/// Moves the mappings in `range` to `to`, whatever is mapped there before is
/// unmapped (rules MREMAP-01..05). Pages keep their identity: the linear index of
/// a mapping that has pages moves with it.
///
/// # Errors
///
/// If a range is not page-aligned, not in user space, or they overlap; if nothing
/// is mapped at the start of `range`; if there is no memory. Then the mapping at
/// the position in the error, and what is behind it, is where it was; the target
/// is unmapped from there on.
pub fn mremap_move<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    to: VirtAddr,
    old: OldPlace,
) -> Result<(), MapError> {
    check_range(vmas, range)?;
    let target = VirtRange::new(to, range.bytes()).map_err(|_| MapError::NotUser(range))?;
    check_range(vmas, target)?;
    if range.intersect(target).is_some() {
        return Err(MapError::Invalid(to));
    }
    if vmas.find(range.start()).is_none() {
        return Err(MapError::BadAddress(range.start()));
    }
    munmap(policy, vmas, target)?;
    let mut next = Some(range.start());
    // Only what is behind `next`: the place of a part that moved may have been joined with it.
    while let Some(part) = next.and_then(|va| {
        let rest = VirtRange::new(va, range.bytes_after(va)).ok()?;
        vmas.next_from(va)?.range().intersect(rest)
    }) {
        next = part.start().checked_add(part.bytes()).filter(|va| range.contains(*va));
        let offset = part.start().bytes_from(range.start());
        let at = VirtAddr::new(to.get() + offset);
        let target = VirtRange::new(at, part.bytes()).map_err(|_| MapError::NotUser(range))?;
        move_part(policy, vmas, part, target, old)?;
    }
    Ok(())
}

/// Moves `part`, which lies in one VMA, to the free `target`.
fn move_part<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
    part: VirtRange,
    target: VirtRange,
    old: OldPlace,
) -> Result<(), MapError> {
    let mm = vmas.mm();
    let trees = mm.platform().anon_trees();
    let no_memory = MapError::NoMemory(part.start());
    split_around(vmas, part)?;
    let Some(src) = vmas.find(part.start()) else { return Err(MapError::BadAddress(part.start())) };
    // A mapping without pages is as good as a new one: it gets the index that
    // its place gives, and can merge there.
    let pgoff = match src.anon() {
        _ if !src.is_anonymous() => src.pgoff(),
        Some(_) => src.pgoff(),
        None => target.start().get() >> P::Arch::PAGE_SHIFT,
    };
    let mut dst = src.moved_to(target, pgoff);
    // Userfaultfd does not follow a move (rule MREMAP-01).
    dst.set_flags(src.flags() - VmaFlags::UFFD_ANY);
    dst.set_anon(None);
    if vmas.change().insert(dst).is_err() {
        merge(vmas, part);
        return Err(no_memory);
    }
    let linked = match (vmas.find(part.start()), vmas.find(target.start())) {
        (Some(src), Some(dst)) => clone_vma(mm, src, dst).is_ok(),
        _ => false,
    };
    if !linked || by_policy!(policy, move_entries::<P>(mm, vmas.stay(), part, target)).is_err() {
        if linked {
            // Back, in an order that walkers do not know. The tables are there.
            let walks = vmas.find(part.start()).map(|src| {
                let files = mm.platform().file_trees().exclude_walks(src);
                (files, trees.exclude_walks(src))
            });
            let back = by_policy!(policy, move_entries::<P>(mm, vmas.stay(), target, part));
            drop(walks);
            if back.is_err() {
                // Reclaim split a leaf that had moved, and there is no table
                // for its way back. Both mappings stay; no page is lost.
                return Err(no_memory);
            }
        }
        if linked {
            let mut gather = Gather::new(mm.tables());
            remove_vmas(vmas, target, &mut gather);
            gather.finish();
        } else {
            vmas.change().remove(target, |_| ());
        }
        merge(vmas, part);
        return Err(no_memory);
    }
    match old {
        OldPlace::Unmap => {
            let mut gather = Gather::new(mm.tables());
            remove_vmas(vmas, part, &mut gather);
            gather.finish();
        }
        OldPlace::Keep => {
            if let Some(src) = vmas.change().find_mut(part.start()) {
                src.set_flags(src.flags() - VmaFlags::LOCKED - VmaFlags::LOCKONFAULT);
                trees.unlink(mm, src);
                vma_flags_changed(mm, src);
            }
            merge(vmas, part);
        }
    }
    merge(vmas, target);
    Ok(())
}

/// Gives the mapping of `old`, which it must end with if it is to grow, the
/// length `bytes`, in place.
///
/// # Errors
///
/// If a range is not page-aligned or not in user space; if `old` is not within
/// one mapping; if it cannot grow where it is, the index of its last page overflows, or there
/// is no memory.
pub fn mremap_resize<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
    old: VirtRange,
    bytes: u64,
) -> Result<(), MapError> {
    let start = old.start();
    let new = VirtRange::new(start, bytes).map_err(|_| MapError::NotUser(old))?;
    check_range(vmas, old)?;
    check_range(vmas, new)?;
    let whole = vmas.find(start).map(Vma::range).ok_or(MapError::BadAddress(start))?;
    if bytes < old.bytes() {
        let tail = VirtRange::new(VirtAddr::new(start.get() + bytes), old.bytes() - bytes);
        return tail.map_or(Ok(()), |tail| munmap(policy, vmas, tail));
    }
    if !whole.covers(old) {
        return Err(MapError::BadAddress(start));
    }
    if bytes == old.bytes() {
        return Ok(());
    }
    let flags = vmas.find(start).map_or(VmaFlags::empty(), Vma::flags);
    if flags.intersects(VmaFlags::DONTEXPAND | VmaFlags::PFNMAP) {
        return Err(MapError::BadAddress(start));
    }
    if whole.last() != old.last() {
        return Err(MapError::NoMemory(start));
    }
    let grown = whole.hull(new);
    let first = vmas.find(start).map_or(0, Vma::pgoff);
    if first.checked_add(grown.nr(P::Arch::PAGE_SHIFT)).is_none() {
        return Err(MapError::Overflow(start));
    }
    // Whatever is in the way: it cannot grow here.
    vmas.change().resize(whole.start(), grown).map_err(|_| MapError::NoMemory(start))?;
    if let Some(vma) = vmas.find(start) {
        let mm = vmas.mm();
        vma_resized(mm, whole, vma);
    }
    merge(vmas, grown);
    Ok(())
}

/// Moves all entries of `from` to `to`, of the same length; makes the tables that
/// are missing there. On failure some have moved.
fn move_entries<B: Strategy, P: RmapPlatform>(
    mm: &Mm<P>,
    stay: TablesStay<'_>,
    from: VirtRange,
    to: VirtRange,
) -> Result<(), TableAllocError> {
    let tables = mm.tables();
    let pmd_bytes = 1u64 << P::Arch::shift(Level::Pmd);
    let mut done = 0;
    while let Ok(rest) =
        VirtRange::new(VirtAddr::new(from.start().get() + done), from.bytes() - done)
    {
        let span = tables.span(stay, rest);
        let dst = VirtAddr::new(to.start().get() + done);
        let mut bytes = span.range.bytes();
        if span.kind == SpanKind::Huge {
            // Whole leaves move whole (rule MREMAP-05).
            let aligned = dst.is_aligned(P::Arch::shift(Level::Pmd)) && bytes == pmd_bytes;
            if aligned {
                drop(tables.ensure_pmd(stay, dst)?);
            }
            if aligned && move_pmd(mm, stay, rest.start(), dst) {
                done += bytes;
                continue;
            }
            split_pmd(mm, stay, rest.start());
        }
        if span.kind != SpanKind::Hole {
            bytes = bytes.min(pmd_bytes - (dst.get() & (pmd_bytes - 1)));
            drop(tables.ensure_table(stay, dst)?);
            move_table::<B, P>(mm, stay, rest.start(), dst, bytes >> P::Arch::PAGE_SHIFT);
        }
        done += bytes;
    }
    Ok(())
}

/// The tables of both places, which may be one.
struct Pair<'g, P: TableSpace> {
    src: LockedTable<'g, P>,
    dst: Option<LockedTable<'g, P>>,
}

impl<'g, P: TableSpace> Pair<'g, P> {
    fn lock(
        mm: &'g mm_pgtable::PageTables<P>,
        stay: TablesStay<'g>,
        src: VirtAddr,
        dst: VirtAddr,
    ) -> Option<Self> {
        let shift = P::Arch::shift(Level::Pmd);
        let same = src.align_down(shift) == dst.align_down(shift);
        let src = mm.lock_entry(stay, src).table()?;
        let dst = if same { None } else { Some(mm.lock_entry(stay, dst).table()?) };
        Some(Pair { src, dst })
    }
    fn dst(&mut self) -> &mut LockedTable<'g, P> {
        self.dst.as_mut().unwrap_or(&mut self.src)
    }
}

/// Moves `nr` entries between two tables that exist.
fn move_table<B: Strategy, P: RmapPlatform>(
    mm: &Mm<P>,
    stay: TablesStay<'_>,
    from: VirtAddr,
    to: VirtAddr,
    nr: u64,
) {
    let tables = mm.tables();
    let Some(mut pair) = Pair::lock(tables, stay, from, to) else { return };
    pair.src.settle_deferred();
    let mut owed = tables.tlb().obligation();
    let mut i = pair.src.index_of(from);
    let mut j = P::Arch::index(to, Level::Pte);
    let end = i + nr as usize;
    while i < end {
        let e = pair.src.get(i);
        let n = if e.is_none() {
            pair.src.none_run(i, pair.src.limit(i).at_most(end - i))
        } else if e.is_present(Level::Pte) {
            move_present::<B, P>(mm, &mut pair, i, j, end - i, e, &mut owed)
        } else {
            pair.src.set(i, E::<P>::NONE);
            let moved = moved_nonpresent::<P>(e, Level::Pte);
            if !moved.is_none() {
                pair.dst().set(j, moved);
            }
            1
        };
        (i, j) = (i + n, j + n);
    }
    if mm_sync::mutant!("map.move.flush_late") {
        drop(pair);
        // Somebody else may get the lock first: what a model checker switches at.
        drop(tables.lock_entry(stay, to));
        return;
    }
    // Under both locks: see the protocol above.
    owed.pay();
    drop(pair);
}

/// Moves the run that starts at `i`; its length. Write bits are respected: the
/// whole run gets the head's (BATCH-12).
fn move_present<B: Strategy, P: RmapPlatform>(
    mm: &Mm<P>,
    pair: &mut Pair<'_, P>,
    i: usize,
    j: usize,
    left: usize,
    e: E<P>,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> usize {
    let folio = counted_folio(mm, e, Level::Pte).filter(|f| B::ON && f.is_large());
    let run = match folio {
        Some(folio) => {
            let limit = within(pair.src.limit(i), left, folio, folio.index_of(e.pfn(Level::Pte)));
            pair.src.run::<WRITE>(i, e, limit)
        }
        None => pair.src.single(i),
    };
    let n = run.nr();
    let old = pair.src.clear(run, owed).commit();
    pair.dst().fill(j, n, moved_leaf::<P>(old));
    n
}

/// A leaf at its new place: moving counts as writing for soft-dirty tracking, and
/// userfaultfd does not follow (MM-043).
fn moved_leaf<P: RmapPlatform>(e: E<P>) -> E<P> {
    e.mksoft_dirty().clear_uffd_wp()
}

/// A non-present entry at its new place; nothing is left of a marker for
/// userfaultfd alone.
fn moved_nonpresent<P: RmapPlatform>(e: E<P>, level: Level) -> E<P> {
    let mut bits = e.swap_bits();
    bits.uffd_wp = false;
    if let Some(NonPresent::Marker(m)) = e.nonpresent(level) {
        let kept = m - Markers::UFFD_WP;
        if kept.is_empty() {
            return E::<P>::NONE;
        }
        return E::<P>::from_nonpresent(NonPresent::Marker(kept), bits).unwrap_or(E::<P>::NONE);
    }
    bits.soft_dirty = P::Arch::HAS_SOFT_DIRTY;
    e.with_swap_bits(bits)
}

/// Moves a whole PMD entry between PMD tables that exist, with the table that was
/// deposited for it. `false` if it is no leaf any more.
fn move_pmd<P: RmapPlatform>(
    mm: &Mm<P>,
    stay: TablesStay<'_>,
    from: VirtAddr,
    to: VirtAddr,
) -> bool {
    let tables = mm.tables();
    let LockedEntry::Huge(mut src) = tables.lock_entry(stay, from) else { return false };
    let mut owed = tables.tlb().obligation();
    let mut new_owed = tables.tlb().obligation();
    let moved = |e: E<P>| {
        if e.is_leaf(Level::Pmd) {
            moved_leaf::<P>(e)
        } else {
            moved_nonpresent::<P>(e, Level::Pmd)
        }
    };
    let old = if src.covers(to) {
        let e = src.swap(E::<P>::NONE, &mut owed);
        // The deposited table is the PMD table's already.
        src.retarget(to);
        let old = src.swap(moved(e), &mut new_owed);
        owed.pay();
        old
    } else {
        let Some(mut dst) = tables.lock_pmd(stay, to) else { return false };
        let e = src.swap(E::<P>::NONE, &mut owed);
        if let Some(frame) = src.withdraw() {
            // SAFETY: withdrawn just now, in the same address space.
            unsafe { dst.deposit(frame) };
        }
        let old = dst.swap(moved(e), &mut new_owed);
        owed.pay();
        old
    };
    debug_assert!(old.is_none(), "something was mapped at the target {to}");
    // Nobody can cache what was not there.
    new_owed.already_done();
    true
}
