//! Userfaultfd moves pages within an address space (rule UFFD-07).
//!
//! A page that moves is nobody else's: exclusive, not pinned, and not about to be: its entry
//! is taken and flushed before anybody is asked about pins, as when it is shared. It is
//! repointed to its new place under its own lock, so no walk looks for it meanwhile.

use crate::MapError;
use crate::entry::{E, counted_folio};
use crate::vmas::check_user_range;
use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, NonPresent, SwapSlot, VirtAddr, VirtRange};
use mm_folio::{AnonId, FolioFlags, FolioRef, Get};
use mm_pgtable::{Ensured, LockedTable, SpanKind};
use mm_rmap::{Batching, RmapPlatform, SplitFolio, split_anon_folio, split_pmd};
use mm_vma::{MmRead, SwapSpace, Vma, VmaFlags};

/// What a move does where nothing is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveHoles {
    /// It ends there.
    Refuse,
    /// It goes on behind.
    Skip,
}

/// Moves the pages of `from` to the places from `to` on, where nothing is.
///
/// # Errors
///
/// If a range is not page-aligned or not in user space, or they overlap; if one of them is not
/// within one mapping of private anonymous memory, the mappings differ in their rights,
/// allow no stores, or the one of `to` is not registered. At the first page that is there
/// already; at a hole, if those are refused; at a page that others share or hold; if
/// there is no memory. The pages before the position in the error, which is one of `from`,
/// have moved.
pub fn uffd_move<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    to: VirtAddr,
    from: VirtRange,
    holes: MoveHoles,
) -> Result<(), MapError> {
    let start = from.start();
    let target = VirtRange::new(to, from.bytes()).map_err(|_| MapError::Invalid(start))?;
    check_user_range(vmas.mm(), from)?;
    check_user_range(vmas.mm(), target)?;
    if from.intersect(target).is_some() {
        return Err(MapError::Invalid(start));
    }
    let (Some(src), Some(dst)) = (vmas.find(start), vmas.find(to)) else {
        return Err(MapError::NotRegistered(start));
    };
    if !src.range().covers(from) || !dst.range().covers(target) || !suits(src, dst) {
        return Err(MapError::Invalid(start));
    }
    let anon = match dst.anon() {
        Some(anon) => anon,
        None => {
            let trees = vmas.mm().platform().anon_trees();
            let prepared = trees.prepare(vmas.mm(), vmas, dst);
            prepared.map_err(|_| MapError::NoMemory(start))?
        }
    };
    for k in 0..from.nr(P::Arch::PAGE_SHIFT) {
        let at = |va: VirtAddr| va.add_units(k, P::Arch::PAGE_SHIFT);
        let page = Page { vmas, dst, anon, from: at(start), to: at(to) };
        while page.move_one(holes)? == Moved::LookAgain {}
    }
    Ok(())
}

/// Whether pages may go from one mapping to the other.
fn suits(src: &Vma, dst: &Vma) -> bool {
    let own = |v: &Vma| v.is_anonymous() && !v.flags().contains(VmaFlags::SHARED);
    let same = VmaFlags::READ | VmaFlags::WRITE | VmaFlags::EXEC | VmaFlags::LOCKED;
    own(src)
        && own(dst)
        && src.flags() & same == dst.flags() & same
        && src.flags().contains(VmaFlags::WRITE)
        && dst.flags().intersects(VmaFlags::UFFD_ANY)
}

#[derive(PartialEq, Eq)]
enum Moved {
    /// It is there, or there was nothing.
    Done,
    /// Something changed on the way.
    LookAgain,
}

/// One page that moves.
struct Page<'v, 'm, P: RmapPlatform> {
    vmas: &'v MmRead<'m, P>,
    dst: &'v Vma,
    anon: AnonId,
    from: VirtAddr,
    to: VirtAddr,
}

/// The tables of both places, which may be one.
struct Both<'g, P: RmapPlatform> {
    src: LockedTable<'g, P>,
    dst: Option<LockedTable<'g, P>>,
}

impl<'g, P: RmapPlatform> Both<'g, P> {
    fn dst(&mut self) -> &mut LockedTable<'g, P> {
        self.dst.as_mut().unwrap_or(&mut self.src)
    }
}

impl<'m, P: RmapPlatform> Page<'_, 'm, P> {
    fn busy(&self) -> MapError {
        MapError::Busy(self.from)
    }
    /// Locks both tables, the one of the lower address first: two moves may go opposite ways.
    fn lock_both(&self) -> Option<Both<'_, P>> {
        let (tables, stay) = (self.vmas.mm().tables(), self.vmas.stay());
        let shift = P::Arch::shift(Level::Pmd);
        if self.from.align_down(shift) == self.to.align_down(shift) {
            return Some(Both { src: tables.lock_table(stay, self.from)?, dst: None });
        }
        if self.from < self.to {
            let src = tables.lock_table(stay, self.from)?;
            return Some(Both { src, dst: Some(tables.lock_table(stay, self.to)?) });
        }
        let dst = tables.lock_table(stay, self.to)?;
        Some(Both { src: tables.lock_table(stay, self.from)?, dst: Some(dst) })
    }

    fn move_one(&self, holes: MoveHoles) -> Result<Moved, MapError> {
        let (mm, stay) = (self.vmas.mm(), self.vmas.stay());
        let page = VirtRange::units(self.from, 1, P::Arch::PAGE_SHIFT);
        let page = page.map_err(|_| MapError::Invalid(self.from))?;
        match mm.tables().ensure_table(stay, self.to) {
            Ok(Ensured::Table(table)) => drop(table),
            Ok(Ensured::Huge(_)) => return Err(MapError::Exists(page)),
            Err(_) => return Err(MapError::NoMemory(self.from)),
        }
        if mm.tables().span(stay, page).kind == SpanKind::Huge {
            split_pmd(mm, stay, self.from);
        }
        let seen = match mm.tables().lock_table(stay, self.from) {
            Some(table) => {
                // No CPU may know more of a hole, or of what was at the other place.
                table.settle_deferred();
                table.get(table.index_of(self.from))
            }
            None => E::<P>::NONE,
        };
        if seen.is_none() {
            return match holes {
                MoveHoles::Skip => Ok(Moved::Done),
                MoveHoles::Refuse => Err(MapError::NotRegistered(self.from)),
            };
        }
        if seen.is_leaf(Level::Pte) {
            return match counted_folio(mm, seen, Level::Pte) {
                Some(folio) => match mm.platform().memmap().try_grab(folio.head(), 1) {
                    Some(own) => self.move_page(own, seen),
                    None => Ok(Moved::LookAgain),
                },
                None if seen.is_special() => self.carry(seen, |e| e),
                None => Err(MapError::BadAddress(self.from)),
            };
        }
        match seen.nonpresent(Level::Pte) {
            Some(NonPresent::Swap(slot)) => self.move_swapped(slot, seen),
            // Whoever moves it puts something back.
            Some(NonPresent::Migration { .. }) => Err(MapError::Again(self.from)),
            _ => Err(MapError::BadAddress(self.from)),
        }
    }

    /// Moves an entry that nothing else is to be done for: `new` of it comes to the other place.
    fn carry(&self, seen: E<P>, new: impl FnOnce(E<P>) -> E<P>) -> Result<Moved, MapError> {
        let Some(mut both) = self.lock_both() else { return Ok(Moved::LookAgain) };
        let (i, j) = self.indices(&mut both)?;
        if both.src.get(i) != seen {
            return Ok(Moved::LookAgain);
        }
        let mut owed = self.vmas.mm().tables().tlb().obligation();
        let e = both.src.take(i, &mut owed);
        owed.pay();
        both.dst().set(j, new(e));
        Ok(Moved::Done)
    }
    /// Both entries, of which the second must be empty.
    fn indices(&self, both: &mut Both<'_, P>) -> Result<(usize, usize), MapError> {
        let i = both.src.index_of(self.from);
        let dst = both.dst();
        let j = dst.index_of(self.to);
        if dst.get(j).is_none() {
            // Nobody may read what was there a moment ago (rule TLBB-07).
            dst.settle_deferred();
            return Ok((i, j));
        }
        let there = VirtRange::units(self.to, 1, P::Arch::PAGE_SHIFT);
        Err(there.map_or(MapError::Invalid(self.from), MapError::Exists))
    }

    fn move_page(&self, own: FolioRef<'m, P, Get>, seen: E<P>) -> Result<Moved, MapError> {
        let (mm, map) = (self.vmas.mm(), self.vmas.mm().platform().memmap());
        let (folio, pfn) = (own.folio(), seen.pfn(Level::Pte));
        let locked = folio.lock();
        if folio.is_large() {
            let (page, whole) = (folio.index_of(pfn), SplitFolio { locked, own });
            if !folio.is_anon() || !map.page_exclusive(pfn) {
                return Err(self.busy());
            }
            let (part, split) =
                split_anon_folio(mm.platform(), map, whole, 0, page, Batching::PerPage);
            drop(part.locked);
            drop(part.own);
            return split.map(|()| Moved::LookAgain).map_err(|_| self.busy());
        }
        let Some(mut both) = self.lock_both() else { return Ok(Moved::LookAgain) };
        let (i, j) = self.indices(&mut both)?;
        if both.src.get(i) != seen {
            return Ok(Moved::LookAgain);
        }
        if !folio.is_anon() || folio.has(FolioFlags::KSM) || !map.page_exclusive(pfn) {
            return Err(self.busy());
        }
        let mut owed = mm.tables().tlb().obligation();
        let old = both.src.take(i, &mut owed);
        owed.pay();
        if folio.try_share_anon_ptes(0, NonZeroU32::MIN).is_err() {
            both.src.put_back(i, &[old]);
            return Err(self.busy());
        }
        // Nobody pins what nothing maps: it is as exclusive as before.
        map.set_exclusive(pfn, 1);
        folio.set_anon(self.anon, self.dst.linear_index(self.to));
        let e = E::<P>::leaf(pfn, P::Arch::prot(self.dst.protection()), Level::Pte).mksoft_dirty();
        let e = if old.is_dirty() { e.mkdirty() } else { e };
        let e = if old.is_young() { e.mkyoung() } else { e };
        both.dst().set(j, e.mkwrite(self.dst.write_kind()));
        drop(both);
        drop(locked);
        Ok(Moved::Done)
    }

    fn move_swapped(&self, slot: SwapSlot, seen: E<P>) -> Result<Moved, MapError> {
        let platform = self.vmas.mm().platform();
        if !seen.swap_bits().exclusive {
            return Err(self.busy());
        }
        let moved = |e: E<P>| {
            let mut bits = e.swap_bits();
            (bits.uffd_wp, bits.soft_dirty) = (false, P::Arch::HAS_SOFT_DIRTY);
            e.with_swap_bits(bits)
        };
        let Some(run) = platform.swap().slots().get(platform.memmap(), slot) else {
            return self.carry(seen, moved);
        };
        // What the cache has of it belongs to the new place as well.
        let own: FolioRef<'_, P, Get> = platform.memmap().adopt_run(run);
        let folio = own.folio();
        let locked = folio.lock();
        if folio.is_large() {
            return Err(self.busy());
        }
        if platform.swap().slots().slot_of(folio) != Some(slot) {
            return Ok(Moved::LookAgain);
        }
        let done = self.carry(seen, moved)?;
        if done == Moved::Done && folio.is_anon() {
            folio.set_anon(self.anon, self.dst.linear_index(self.to));
        }
        drop(locked);
        Ok(done)
    }
}
