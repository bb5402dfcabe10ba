//! Changing entries in place: rights, write protection for userfaultfd, hints.
//!
//! A run is taken, changed as a value, and written back: between take and
//! write-back hardware sees an empty entry and faults, so no accessed or dirty
//! bit is lost (MPROT-02).
//!
//! An entry that may be written to from now on is made writable at once, where
//! no write fault is needed to find out that its page is exclusive (MPROT-03,
//! WRITE-01). Pages of one folio differ in that, so a run never extends over
//! pages of both kinds (BATCH-15).

use crate::MapError;
use crate::entry::{E, counted_folio, pmd_pages, splits, within};
use crate::mmap::accountable;
use crate::policy::{MapPolicy, Strategy, by_policy};
use crate::vmas::{check_range, give_flags, merge, split_around};
use mm_arch::respect::{SOFT_DIRTY, WRITE};
use mm_arch::{
    Arch, DeviceKind, Entry, Flush, FlushScope, Level, Markers, MigrationKind, NonPresent,
    Protection, Rights, SwapBits, VirtRange,
};
use mm_folio::{Folio, FolioFlags};
use mm_pgtable::{LockedEntry, LockedPmd, LockedTable, SpanKind, TableSpace, TablesStay};
use mm_rmap::{RmapPlatform, split_locked_pmd};
use mm_vma::{Event, Mm, MmWrite, Observer, Vma, VmaFlags, can_change_writable};

/// Gives the mappings in `range` other rights (rules MPROT-01..05, MPROT-09).
///
/// When it returns, no CPU has a translation left that allows more.
///
/// # Errors
///
/// If the range is not page-aligned or not in user space; at the first hole; at
/// the first mapping that may not get such rights; if there is no memory to
/// split a VMA. The mappings below the position in the error are changed.
pub fn mprotect<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    rights: Rights,
) -> Result<(), MapError> {
    check_range(vmas, range)?;
    let mm = vmas.mm();
    let mut owed = mm.tables().tlb().obligation();
    let mut next = Some(range.start());
    while let Some(va) = next {
        let vma = vmas.find(va).ok_or(MapError::Hole(va))?;
        let part = vma.range().intersect(range).ok_or(MapError::Hole(va))?;
        let part = VirtRange::new(va, part.bytes_after(va)).unwrap_or(part);
        let old = vma.flags();
        let new = with_rights(vma, rights);
        if !may_have(new) {
            return Err(MapError::Access(va));
        }
        if new != old {
            split_around(vmas, part)?;
            give_flags(vmas, va, new);
            if let Some(vma) = vmas.find(va) {
                let stay = vmas.stay();
                let change = Change::Rights;
                by_policy!(policy, change_range::<P>(mm, stay, vma, part, change, &mut owed));
            }
            merge(vmas, part);
        }
        next = part.start().checked_add(part.bytes()).filter(|va| range.contains(*va));
    }
    owed.now();
    Ok(())
}

/// The flags of `vma` with these rights. Memory that becomes writable is
/// accounted from then on; what becomes read-only before its first fault is not
/// any more.
fn with_rights(vma: &Vma, rights: Rights) -> VmaFlags {
    let mut flags = vma.flags() - VmaFlags::ACCESS;
    flags.set(VmaFlags::READ, rights.contains(Rights::READ));
    flags.set(VmaFlags::WRITE, rights.contains(Rights::WRITE));
    flags.set(VmaFlags::EXEC, rights.contains(Rights::EXEC));
    if flags.contains(VmaFlags::WRITE) {
        if accountable(flags) && !vma.flags().contains(VmaFlags::WRITE) {
            flags |= VmaFlags::ACCOUNT;
        }
    } else if vma.is_anonymous() && vma.anon().is_none() {
        flags -= VmaFlags::ACCOUNT;
    }
    flags
}

/// Whether each right is one that may be granted.
fn may_have(flags: VmaFlags) -> bool {
    [
        (VmaFlags::READ, VmaFlags::MAYREAD),
        (VmaFlags::WRITE, VmaFlags::MAYWRITE),
        (VmaFlags::EXEC, VmaFlags::MAYEXEC),
    ]
    .into_iter()
    .all(|(right, may)| !flags.contains(right) || flags.contains(may))
}

/// What becomes of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// They get the rights that their mapping has now.
    Rights,
    /// Besides, userfaultfd write-protects them (rule UFFD-04).
    Protect,
    /// Besides, that protection ends.
    Unprotect,
    /// The next store faults and is remembered (rule PTE-14); rights stay.
    Track,
    /// The next access faults and tells who uses the page (rule MPROT-06).
    Hint,
}

impl Change {
    /// A leaf after the change, but for an upgrade to writable (rule PTE-15).
    fn of<En: Entry>(self, old: En, prot: En::Prot, level: Level) -> En {
        let new = old.modify(prot, level);
        match self {
            Change::Track => old.wrprotect().clear_soft_dirty(),
            Change::Rights | Change::Hint => new,
            Change::Protect => new.mkuffd_wp(),
            Change::Unprotect => new.clear_uffd_wp(),
        }
    }
    /// The rights that entries get by it.
    fn prot<A: Arch>(self, vma: &Vma) -> <A::Entry as Entry>::Prot {
        A::prot(if self == Change::Hint { Protection::none() } else { vma.protection() })
    }
    /// Whether entries may become writable by it.
    fn upgrades(self, vma: &Vma) -> bool {
        matches!(self, Change::Rights | Change::Unprotect) && vma.wants_write_upgrade()
    }
    /// Whether entries that map nothing become markers (rule MPROT-05).
    pub(crate) fn marks(self, vma: &Vma) -> bool {
        let unpopulated = vma.flags().contains(VmaFlags::UFFD_WP_UNPOPULATED);
        // The pages of an object are there whatever the table says.
        self == Change::Protect && (unpopulated || vma.backing().is_some())
    }
}

/// Brings the entries of `range` in line with the rights that `vma` has now, and
/// with `change`. Tables are not made.
pub(crate) fn change_range<B: Strategy, P: RmapPlatform>(
    mm: &Mm<P>,
    stay: TablesStay<'_>,
    vma: &Vma,
    range: VirtRange,
    change: Change,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) {
    for span in mm.tables().spans(stay, range) {
        if span.kind != SpanKind::Hole {
            change_span::<B, P>(mm, stay, vma, span.range, change, owed);
        }
    }
}

/// Changes what one PMD entry covers.
fn change_span<B: Strategy, P: RmapPlatform>(
    mm: &Mm<P>,
    stay: TablesStay<'_>,
    vma: &Vma,
    range: VirtRange,
    change: Change,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) {
    loop {
        match mm.tables().lock_entry(stay, range.start()) {
            LockedEntry::Hole => return,
            LockedEntry::Table(table) => {
                return change_table::<B, P>(mm, table, vma, range, change, owed);
            }
            LockedEntry::Huge(pmd) if pmd.range() == Some(range) => {
                return change_pmd(mm, pmd, vma, change, owed);
            }
            LockedEntry::Huge(pmd) if splits::<P>(pmd.entry()) => split_locked_pmd(mm, pmd),
            // Non-present entries stand for whole leaves; VMAs do not cut them.
            LockedEntry::Huge(_) => return debug_assert!(false, "{range:?} cuts an entry"),
        }
    }
}

fn change_table<B: Strategy, P: RmapPlatform>(
    mm: &Mm<P>,
    mut table: LockedTable<'_, P>,
    vma: &Vma,
    range: VirtRange,
    change: Change,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) {
    let mut i = table.index_of(range.start());
    let end = i + range.nr(P::Arch::PAGE_SHIFT) as usize;
    table.settle_deferred();
    while i < end {
        let e = table.get(i);
        i += if e.is_none() {
            let n = table.none_run(i, table.limit(i).at_most(end - i));
            if change.marks(vma) {
                mark::<P>(&mut table, i, n, Markers::UFFD_WP);
            }
            n
        } else if e.is_present(Level::Pte) {
            change_present::<B, P>(mm, &mut table, vma, i, end - i, e, change, owed)
        } else {
            if let Some(new) = changed_nonpresent::<P>(e, Level::Pte, change) {
                table.set(i, new);
            }
            1
        };
    }
}

/// Puts markers into `n` entries that map nothing.
pub(crate) fn mark<P: RmapPlatform>(
    table: &mut LockedTable<'_, P>,
    i: usize,
    n: usize,
    marker: Markers,
) {
    let marker = NonPresent::Marker(marker);
    let Ok(marker) = E::<P>::from_nonpresent(marker, SwapBits::default()) else { return };
    for k in i..i + n {
        table.set(k, marker);
    }
}

/// Changes the run that starts at `i`; its length.
#[expect(clippy::too_many_arguments, reason = "a table, a position in it, and what to do there")]
fn change_present<B: Strategy, P: RmapPlatform>(
    mm: &Mm<P>,
    table: &mut LockedTable<'_, P>,
    vma: &Vma,
    i: usize,
    left: usize,
    e: E<P>,
    change: Change,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> usize {
    let prot = change.prot::<P::Arch>(vma);
    let folio = counted_folio(mm, e, Level::Pte);
    if change == Change::Hint && (folio.is_none() || e.is_protnone(Level::Pte)) {
        return 1;
    }
    // A shared mapping goes by dirty, which is merged over the run: one decision
    // (rule MPROT-03). A private one asks for marks, which only its own pages have.
    let upgrade = change.upgrades(vma) && folio.is_some();
    let by_marks = upgrade && folio.is_some_and(|f| f.is_anon());
    let mut exclusive = false;
    let run = match folio {
        Some(folio) => {
            let first = folio.index_of(e.pfn(Level::Pte));
            let limit = if B::ON {
                within(table.limit(i), left, folio, first)
            } else {
                table.limit(i).at_most(1)
            };
            // Marks change only under this lock, so the pages of the run can be
            // looked at before it is taken.
            let alike = if by_marks {
                let alike;
                (exclusive, alike) = folio.alike_exclusive(first, limit.get());
                if mm_sync::mutant!("map.protect.head_decides") { limit.get() } else { alike }
            } else {
                limit.get()
            };
            if limit.get() > 1 {
                table.run::<{ WRITE | SOFT_DIRTY }>(i, e, limit.at_most(alike))
            } else {
                table.single(i)
            }
        }
        None => table.single(i),
    };
    if change == Change::Hint {
        if !folio.is_some_and(|folio| takes_hints(vma, folio)) {
            return run.nr();
        }
        mm.platform().observer().event(Event::HintsMarked, run.nr() as u64);
    }
    let stays = change == Change::Track && is_always_stored_to(e, folio, Level::Pte);
    if stays && e.is_soft_dirty() {
        return run.nr();
    }
    table.modify(run, owed, |old| {
        if stays {
            return old.mksoft_dirty();
        }
        let new = change.of(old, prot, Level::Pte);
        if upgrade && can_change_writable::<P::Arch>(vma, new, Level::Pte, exclusive) {
            new.mkwrite(vma.write_kind())
        } else {
            new
        }
    });
    // A run folds the blocks in it; the last entry of a block, put back alone, those
    // before it.
    if let Some(folio) = folio.filter(|_| run.nr() == 1) {
        let before = folio.index_of(e.pfn(Level::Pte)) as usize + 1;
        if before >= P::Arch::CONT {
            table.fold(i);
        }
    }
    run.nr()
}

/// Whether a device may store to the page at any time. Its entry stays writable when tracking begins,
/// and says "stored to": it need not until then, if its mapping said so (rule PTE-14).
fn is_always_stored_to<P: RmapPlatform>(
    e: E<P>,
    folio: Option<Folio<'_, P>>,
    level: Level,
) -> bool {
    e.is_writable(level) && folio.is_some_and(|folio| folio.maybe_dma_pinned())
}

/// Whether it is worth knowing who uses a folio that `vma` maps: whether it could move there
/// (rule MPROT-06).
fn takes_hints<P: RmapPlatform>(vma: &Vma, folio: Folio<'_, P>) -> bool {
    if folio.flags().intersects(FolioFlags::KSM | FolioFlags::DEVICE_PRIVATE) {
        return false;
    }
    // A dirty page of a file waits for its device first.
    if !folio.is_anon() && folio.has(FolioFlags::DIRTY) && !folio.has(FolioFlags::SWAPBACKED) {
        return false;
    }
    let others = folio.maybe_dma_pinned() || folio.maybe_mapped_shared();
    !(vma.is_cow() && others)
}

/// A non-present entry after the change, if it is another one (rules MPROT-05,
/// UFFD-05). Poison and guards stay.
fn changed_nonpresent<P: RmapPlatform>(e: E<P>, level: Level, change: Change) -> Option<E<P>> {
    match e.nonpresent(level)? {
        _ if change == Change::Hint => return None,
        NonPresent::Marker(m) if change == Change::Unprotect && m.contains(Markers::UFFD_WP) => {
            let kept = m - Markers::UFFD_WP;
            return if kept.is_empty() {
                Some(E::<P>::NONE)
            } else {
                E::<P>::from_nonpresent(NonPresent::Marker(kept), e.swap_bits()).ok()
            };
        }
        NonPresent::Marker(_) | NonPresent::Hwpoison(_) => return None,
        _ => {}
    }
    // A store through what comes back writable would not be noticed, either.
    let new = without_write::<P>(e, level).unwrap_or(e);
    let mut bits = new.swap_bits();
    match change {
        Change::Rights | Change::Hint => {}
        Change::Protect => bits.uffd_wp = true,
        Change::Unprotect => bits.uffd_wp = false,
        Change::Track => bits.soft_dirty = false,
    }
    let new = if bits == new.swap_bits() { new } else { new.with_swap_bits(bits) };
    (new != e).then_some(new)
}

/// The read-only form of a non-present entry that stands for a writable one
/// (rule MPROT-05): the page comes back with what the entry says. It gets write
/// permission again by a fault, or by the mark it keeps.
fn without_write<P: RmapPlatform>(e: E<P>, level: Level) -> Option<E<P>> {
    let new = match e.nonpresent(level)? {
        NonPresent::Migration { kind: MigrationKind::Write, pfn, young, dirty } => {
            NonPresent::Migration { kind: MigrationKind::ReadExclusive, pfn, young, dirty }
        }
        NonPresent::Device { kind: DeviceKind::PrivateWrite, pfn } => {
            NonPresent::Device { kind: DeviceKind::PrivateRead, pfn }
        }
        _ => return None,
    };
    E::<P>::from_nonpresent(new, e.swap_bits()).ok()
}

/// Changes a whole PMD entry (rules MPROT-07, MPROT-09).
fn change_pmd<P: RmapPlatform>(
    mm: &Mm<P>,
    mut pmd: LockedPmd<'_, P>,
    vma: &Vma,
    change: Change,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) {
    let e = pmd.entry();
    if !e.is_leaf(Level::Pmd) {
        if let Some(new) = changed_nonpresent::<P>(e, Level::Pmd, change) {
            pmd.swap(new, owed);
        }
        return;
    }
    if change == Change::Hint {
        let folio = counted_folio(mm, e, Level::Pmd);
        if e.is_protnone(Level::Pmd) || !folio.is_some_and(|folio| takes_hints(vma, folio)) {
            return;
        }
        mm.platform().observer().event(Event::HintsMarked, pmd_pages::<P>());
    }
    // In place: never empty, or a discard that looks without the lock would
    // pass by. What hardware added comes back with the exchange. The flush that
    // is owed is that of the whole change.
    let mut scratch = mm.tables().tlb().obligation();
    let empty = mm_sync::mutant!("map.protect.hole");
    let old = pmd.swap(if empty { E::<P>::NONE } else { e.mkinvalid(Level::Pmd) }, &mut scratch);
    let stays = change == Change::Track
        && is_always_stored_to(old, counted_folio(mm, old, Level::Pmd), Level::Pmd);
    let mut new = if stays {
        old.mksoft_dirty()
    } else {
        change.of(old, change.prot::<P::Arch>(vma), Level::Pmd)
    };
    if change.upgrades(vma)
        && let Some(folio) = counted_folio(mm, old, Level::Pmd)
    {
        let exclusive = folio.is_anon() && folio.memmap().page_exclusive(folio.head());
        if can_change_writable::<P::Arch>(vma, new, Level::Pmd, exclusive) {
            new = new.mkwrite(vma.write_kind());
        }
    }
    pmd.swap(new, &mut scratch);
    scratch.already_done();
    if old.owes_flush(new, Level::Pmd)
        && let Some(range) = pmd.range()
    {
        owed.add(range, FlushScope::Leaves);
    }
}
