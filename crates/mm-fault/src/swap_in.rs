//! Pages that are on a swap device.
//!
//! # The protocol
//!
//! ```text
//!   slot ── in the swap cache ────────────────► lock the folio, ask again
//!     ├─ one entry, synchronous device ───────► mark the slots, read into a folio of its own
//!     └─ else ────────────────────────────────► read into the cache
//!   table lock: the entry again ─► counts ─► mappings ─► entries
//! ```
//!
//! What the cache has may belong to another place: pages that were merged share a slot. Then
//! the fault makes a copy, which is nobody else's, and keeps the folio of the cache locked
//! besides (rule SWPI-03).
//!
//! The locked folio of the cache, or the mark, keeps the slot from being used for
//! another page for as long as the table lock is held: an entry that looks the same
//! *is* the same (race F-RACE-26).

use crate::dispatch::{E, Fault, Prot};
use crate::file::Extent;
use crate::order::OrderSet;
use crate::{FaultOutcome, FaultSignal, SwapInPolicy};
use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, SwapBits, SwapSlot, VirtAddr};
use mm_folio::{AnonId, Exclusivity, Folio, FolioFlags, FolioLockGuard, FolioRef, FrameBytes, Get};
use mm_pgtable::{LockedTable, Step};
use mm_rmap::RmapPlatform;
use mm_vma::{
    Platform, RssKind, SlotRun, SwapSpace, VmaFlags, free_swap_cache, read_cached, read_folio,
};

/// Slots that are being read past the cache.
struct Reading<'m, P: Platform> {
    platform: &'m P,
    run: SlotRun,
}

impl<P: Platform> Drop for Reading<'_, P> {
    fn drop(&mut self) {
        self.platform.swap().slots().end_read(self.run);
    }
}

/// A locked folio that has the content of the slot, if it is valid.
struct Content<'m, P: RmapPlatform> {
    own: FolioRef<'m, P, Get>,
    lock: FolioLockGuard<'m, P>,
    /// The page of it that the slot is.
    page: u32,
    major: bool,
    /// It is nobody else's: what keeps the slots meanwhile.
    alone: Option<Keeps<'m, P>>,
}

/// What keeps slots whose content is in a folio that is not in the cache. Both are given up
/// when they are dropped.
enum Keeps<'m, P: RmapPlatform> {
    /// They are marked as being read.
    Reading { _mark: Reading<'m, P> },
    /// The folio of the cache that has the content, too; the lock goes before the reference.
    Cache { _lock: FolioLockGuard<'m, P>, _own: FolioRef<'m, P, Get> },
}

/// The trees that a page of the mapping may name.
#[derive(Clone, Copy)]
struct Trees {
    own: AnonId,
    root: AnonId,
}

impl<'f, 'm, P: RmapPlatform> Fault<'f, 'm, P> {
    /// The entry `seen` says that the page is in `slot` (rules SWPI-02..12).
    pub(crate) fn swap_in(&self, seen: E<P>, slot: SwapSlot) -> FaultOutcome {
        let Ok(own) = self.prepare_anon() else { return FaultOutcome::Oom };
        let root = self.mm().platform().anon_trees().root(own);
        match self.content_of(seen, slot, own) {
            Ok(content) => self.map_content(content, seen, slot, Trees { own, root }),
            Err(outcome) => outcome,
        }
    }

    /// Finds or reads the page.
    fn content_of(
        &self,
        seen: E<P>,
        slot: SwapSlot,
        anon: AnonId,
    ) -> Result<Content<'m, P>, FaultOutcome> {
        let platform: &'m P = self.mm().platform();
        let (swap, map) = (platform.swap(), self.memmap());
        if let Some(run) = swap.slots().get(map, slot) {
            let page = run.first;
            let own: FolioRef<'m, P, Get> = map.adopt_run(run);
            let lock = own.folio().lock();
            // It may have left the cache meanwhile, and the slot be another page's.
            let first = swap.slots().slot_of(own.folio());
            let same = first.is_some_and(|first| SlotRun::new(first, page + 1).at(page) == slot);
            if !same && !mm_sync::mutant!("fault.swap.no_recheck") {
                return Err(FaultOutcome::MINOR);
            }
            return self.content_here(own, lock, page, anon);
        }
        let direct = self.policy.swap_in == SwapInPolicy::Direct
            && swap.is_synchronous(slot.device)
            && swap.slots().count(slot) == 1;
        let orders = match self.policy.swap_in {
            SwapInPolicy::Direct if !direct => OrderSet::EMPTY,
            _ if !swap.is_synchronous(slot.device) => OrderSet::EMPTY,
            _ => self.swap_in_orders(seen, slot),
        };
        let (own, page) = self.alloc_for_slots(orders)?;
        let lock = own.folio().lock();
        let folio = own.folio();
        folio.set_flag(FolioFlags::SWAPBACKED);
        folio.enlist();
        let start = SwapSlot { offset: slot.offset - u64::from(page), ..slot };
        let run = SlotRun::new(start, folio.nr_pages());
        // Somebody else reads one of the slots: what they make of it is found by
        // faulting again.
        let alone = if direct {
            swap.slots().begin_read(run).map_err(|_| FaultOutcome::MINOR)?;
            folio.set_anon(anon, self.vma.linear_index(self.va) - u64::from(page));
            Some(Keeps::Reading { _mark: Reading { platform, run } })
        } else {
            swap.slots().insert(start, &lock).map_err(|_| FaultOutcome::MINOR)?;
            None
        };
        // One that cannot be read is not valid, which is asked about later.
        let _ = match &alone {
            Some(_) => read_folio(platform, folio, run),
            None => read_cached(platform, &lock, run),
        };
        Ok(Content { own, lock, page, major: true, alone })
    }

    /// The content of a folio of the cache, or a copy where the folio cannot be mapped (rule
    /// SWPI-03).
    fn content_here(
        &self,
        own: FolioRef<'m, P, Get>,
        lock: FolioLockGuard<'m, P>,
        page: u32,
        anon: AnonId,
    ) -> Result<Content<'m, P>, FaultOutcome> {
        let folio = own.folio();
        let trees = self.mm().platform().anon_trees();
        let index = self.vma.linear_index(self.va);
        let belongs = folio.anon().is_none_or(|(id, first)| {
            first + u64::from(page) == index && trees.root(id) == trees.root(anon)
        });
        // A page that is merged may be mapped anywhere, and one that is not valid nowhere.
        let as_it_is = belongs
            || folio.is_large()
            || folio.has(FolioFlags::KSM)
            || !folio.has(FolioFlags::UPTODATE)
            || folio.has(FolioFlags::HWPOISON);
        if as_it_is {
            return Ok(Content { own, lock, page, major: false, alone: None });
        }
        let new = self.memmap().alloc(0).map_err(|_| FaultOutcome::Oom)?;
        let new_lock = new.folio().lock();
        self.mm().platform().bytes().copy(new.folio().head(), folio.page(page));
        self.set_up(new.folio(), anon, self.va);
        new.folio().set_flag(FolioFlags::DIRTY);
        new.folio().enlist();
        let alone = Some(Keeps::Cache { _lock: lock, _own: own });
        Ok(Content { own: new, lock: new_lock, page: 0, major: false, alone })
    }

    /// A folio of the largest of `orders` that there is memory for, and the page of it
    /// that the fault is about.
    fn alloc_for_slots(
        &self,
        orders: OrderSet,
    ) -> Result<(FolioRef<'m, P, Get>, u32), FaultOutcome> {
        for order in orders.descending() {
            if let Ok(new) = self.memmap().alloc(order) {
                return Ok((new, self.page_in_block(order)));
            }
        }
        self.memmap().alloc(0).map(|new| (new, 0)).map_err(|_| FaultOutcome::Oom)
    }
    fn page_in_block(&self, order: u32) -> u32 {
        ((self.va.get() >> <P::Arch as Arch>::PAGE_SHIFT) & ((1 << order) - 1)) as u32
    }

    /// The folio sizes that the page may be read in, besides a single page: those that
    /// the policy allows, up to the largest whose block is one run of slots that lie as
    /// its pages do, none of them held, and all or none full of zeros (rule SWAP-05).
    fn swap_in_orders(&self, seen: E<P>, slot: SwapSlot) -> OrderSet {
        let pmd_order = <P::Arch as Arch>::order(Level::Pmd);
        let allowed = self.policy.thp.orders(self.vma.flags()).and(OrderSet::below(pmd_order));
        if allowed.is_empty() || self.vma.flags().intersects(VmaFlags::UFFD_ANY) {
            return OrderSet::EMPTY;
        }
        let guard = self.tables().pin();
        let Step::Table(_, table) = guard.walk(self.va) else { return OrderSet::EMPTY };
        let is_one_run = |start: VirtAddr, order: u32| {
            let (page, nr) = (self.page_in_block(order), 1u32 << order);
            let (Some(offset), Some(head)) = (
                slot.offset.checked_sub(page.into()).filter(|o| o.is_multiple_of(nr.into())),
                seen.advance_swap(-i64::from(page)),
            ) else {
                return false;
            };
            let first = table.index_of(start);
            let slots = SlotRun::new(SwapSlot { offset, ..slot }, nr);
            let swap = self.mm().platform().swap().slots();
            table.get(first) == head
                && table.swap_run(first, head, table.limit(first).at_most(nr as usize)).nr()
                    == nr as usize
                && swap.unheld_prefix(slots) == nr
                && swap.zeros(slots).is_uniform()
        };
        for order in allowed.descending() {
            if let Some(block) = self.block(order)
                && is_one_run(block.start(), order)
            {
                return allowed.and(OrderSet::below(order + 1));
            }
        }
        OrderSet::EMPTY
    }

    /// Maps what was found, if the entry is still `seen`.
    fn map_content(
        &self,
        content: Content<'m, P>,
        seen: E<P>,
        slot: SwapSlot,
        trees: Trees,
    ) -> FaultOutcome {
        let Content { mut own, lock, page, major, alone } = content;
        let folio = own.folio();
        let Some(mut table) = self.lock_table() else { return self.give_up(own, lock) };
        let index = table.index_of(self.va);
        if table.get(index) != seen {
            drop(table);
            return self.give_up(own, lock);
        }
        // Not before the entry was looked at: it may be about another page by now.
        if folio.has(FolioFlags::HWPOISON) {
            drop(table);
            return FaultOutcome::Signal(FaultSignal::Poisoned { va: self.va });
        }
        if !folio.has(FolioFlags::UPTODATE) {
            drop(table);
            return FaultOutcome::Signal(FaultSignal::Bus { va: self.va });
        }
        let one = Extent { index, first: page, nr: 1 };
        let all = self.all_of(&table, folio, page, index, seen);
        // What nobody knows yet is mapped as a whole or not at all.
        let known = alone.is_none() && folio.is_anon();
        let extent = match all {
            Some(all) => all,
            None if known || !folio.is_large() => one,
            None => {
                drop(table);
                return FaultOutcome::MINOR;
            }
        };
        let (Some(n), Some(head)) = (
            NonZeroU32::new(extent.nr as u32),
            seen.advance_swap(extent.first as i64 - page as i64),
        ) else {
            return FaultOutcome::MINOR;
        };
        if n.get() > 1 && own.grow(n.get() - 1).is_err() {
            drop(table);
            return FaultOutcome::Oom;
        }
        let (mm, swap) = (self.mm(), self.mm().platform().swap());
        let first = slot.offset - u64::from(page) + u64::from(extent.first);
        let slots = SlotRun::new(SwapSlot { offset: first, ..slot }, n.get());
        debug_assert_eq!(head.swap_slot(), Some(slots.first));

        let mut exclusive = seen.swap_bits().exclusive || alone.is_some();
        if alone.is_none()
            && folio.has(FolioFlags::WRITEBACK)
            && swap.needs_stable_pages(slot.device)
        {
            exclusive = false;
        }
        // Counts go before the entries do: the folio lock or the mark keeps the slots
        // (rule SWPI-09).
        swap.slots().put(slots);
        let early = self.policy.swap_in == SwapInPolicy::Direct;
        let wants_write = self.access.is_write();
        if early && alone.is_none() && self.gives_up_slots(folio, n, wants_write) {
            swap.slots().free(&lock);
        }
        let only = i64::from(folio.refcount()) == i64::from(own.n());
        let claimed = !folio.has(FolioFlags::KSM) && (exclusive || only);
        let marks = if claimed { Exclusivity::Exclusive } else { Exclusivity::MaybeShared };

        mm.counters().sub(RssKind::Swap, n.get().into());
        mm.counters().add(RssKind::Anon, n.get().into());
        if !folio.is_anon() {
            // Relatives have entries for the same slots: they find it by the root.
            let tree = if claimed { trees.own } else { trees.root };
            folio.set_anon(tree, self.vma.linear_index(self.va) - u64::from(page));
        }
        // One reference per entry.
        own.hand_over();
        folio.add_anon_ptes(extent.first, n, mm.id(), marks);

        let entry = self.swapped_entry(folio, extent.first, head.swap_bits(), claimed);
        if extent.nr == 1 {
            table.set(extent.index, entry);
        } else {
            table.drop_nonpresent(extent.index, extent.nr);
            table.fill(extent.index, extent.nr, entry);
        }
        let pending = wants_write && !entry.is_writable(Level::Pte);
        // A synchronous device reads again as fast as a cache.
        let synchronous = swap.is_synchronous(slot.device);
        if !early && (synchronous || self.gives_up_slots(folio, n, pending)) {
            swap.slots().free(&lock);
        }
        drop(lock);
        let outcome = if pending {
            let now = table.get(index);
            self.write_protected(table, now)
        } else {
            drop(table);
            FaultOutcome::MINOR
        };
        // Not before the table lock was given up: until then somebody else could
        // compare an entry with what the slot is.
        drop(alone);
        match outcome {
            FaultOutcome::Done { .. } => FaultOutcome::Done { major },
            other => other,
        }
    }

    /// Somebody else was faster. Whoever took the last entry off the slots meanwhile could not
    /// take the locked folio out of the cache, and left that to its holder.
    fn give_up(&self, own: FolioRef<'m, P, Get>, lock: FolioLockGuard<'m, P>) -> FaultOutcome {
        drop(lock);
        if !mm_sync::mutant!("fault.swap.keep_unwanted") {
            free_swap_cache(self.mm().platform(), own.folio());
        }
        FaultOutcome::MINOR
    }

    /// All entries of a large folio, if they are swap entries for its slots, alike in
    /// everything, in this table and mapping (rule SWPI-06).
    fn all_of(
        &self,
        table: &LockedTable<'_, P>,
        folio: Folio<'_, P>,
        page: u32,
        index: usize,
        seen: E<P>,
    ) -> Option<Extent> {
        let all = self.room_for(table, folio, page, index)?;
        let head = seen.advance_swap(-i64::from(page))?;
        let limit = table.limit(all.index).at_most(all.nr);
        let whole =
            table.get(all.index) == head && table.swap_run(all.index, head, limit).nr() == all.nr;
        whole.then_some(all)
    }

    /// Whether a folio of the cache had better leave it: swap is nearly full, the memory is
    /// locked, or a store wants the folio for itself and nobody else has it (rule SWPI-11).
    /// `n` references are the fault's or the new entries'.
    fn gives_up_slots(&self, folio: Folio<'_, P>, n: NonZeroU32, store: bool) -> bool {
        let (cache, n) = (i64::from(folio.nr_pages()), i64::from(n.get()));
        self.vma.flags().contains(VmaFlags::LOCKED)
            || folio.has(FolioFlags::MLOCKED)
            || self.mm().platform().swap().slots().is_nearly_full()
            || store && !folio.has(FolioFlags::KSM) && i64::from(folio.refcount()) == n + cache
    }

    /// The entry of a page that came back (rules SWPI-08, SWPI-09).
    fn swapped_entry(&self, folio: Folio<'_, P>, page: u32, bits: SwapBits, claimed: bool) -> E<P> {
        let prot: Prot<P> = self.prot();
        let mut e = E::<P>::leaf(folio.page(page), prot, Level::Pte).mkyoung();
        if bits.soft_dirty {
            e = e.mksoft_dirty();
        }
        if bits.uffd_wp {
            e = e.mkuffd_wp();
        }
        let tracked =
            self.vma.tracks_soft_dirty(<P::Arch as Arch>::HAS_SOFT_DIRTY) && !bits.soft_dirty;
        if !claimed || bits.uffd_wp || tracked {
            return e;
        }
        if self.access.is_write() { self.maybe_dirty(e) } else { self.maybe_mkwrite(e) }
    }
}
