//! Folios of the swap cache move and split, and their slots go with them.

use crate::world::*;
use mm_arch::model::ModelWord;
use mm_arch::{Entry, Level, SwapSlot};
use mm_folio::{FolioFlags, FolioRef, FrameBytes, Get};
use mm_rmap::model::{ModelConfig, machine};
use mm_rmap::{Batching, MigrationError, SplitError, SplitFolio, migrate_folio, split_anon_folio};
use mm_vma::{Platform, SlotRun, SwapSpace};

type A = ModelWord<16>;

/// A mapped folio of four pages that hold 100 and more, its own space, and its first slot.
fn cached(p: &P<A>) -> (Space<A>, FolioRef<'_, P<A>, Get>, SwapSlot) {
    let mm = space(p);
    mmap(&mm, 0, 16);
    let pfn = fault::<A>(&mm, 4, 2).expect("mapped");
    let own = p.memmap().folio(pfn).grab::<Get>(1).expect("room");
    own.folio().set_flag(FolioFlags::UPTODATE | FolioFlags::SWAPBACKED);
    (0..4).for_each(|k| p.bytes().store(pfn.add(k), 0, 100 + k));
    let slot = p.slots().add(&own.folio().lock()).expect("room");
    (mm, own, slot)
}
fn machine_with_swap() -> P<A> {
    machine(ModelConfig { swap_slots: 64, ..ModelConfig::default() }).expect("machine")
}
fn at(slot: SwapSlot, i: u32) -> SwapSlot {
    SlotRun::new(slot, i + 1).at(i)
}

/// Rules: MIGR-01, MIGR-03, FOLIO-46, P-RACE-08.
#[test]
fn a_folio_moves_with_its_slots() {
    for batching in [Batching::PerPage, Batching::Batched] {
        for is_mapped in [true, false] {
            let p = machine_with_swap();
            let (mm, own, slot) = cached(&p);
            p.slots().dup(SlotRun::new(at(slot, 1), 2)).expect("few");
            if !is_mapped {
                munmap(&mm, 4, 4);
            }
            let (old, anon) = (own.folio(), own.folio().anon());
            migrate_folio(&p, &own, None, batching).expect("nobody holds it");
            assert_eq!((old.refcount(), old.has(FolioFlags::SWAPCACHE)), (1, false));
            assert_eq!(p.slots().slot_of(old), None);
            for k in 0..4 {
                let found = p.slots().get(p.memmap(), at(slot, k)).expect("cached");
                let held: FolioRef<'_, _, Get> = p.memmap().adopt_run(found);
                let (new, page) = (held.folio(), held.folio().page(found.first));
                assert_eq!((found.first, new.anon(), new == old), (k, anon, false));
                assert_eq!(p.slots().slot_of(new), Some(slot));
                assert_eq!(p.bytes().load(page, 0), 100 + u64::from(k));
                let mapped = if is_mapped { 4 } else { 0 };
                assert_eq!((new.refcount(), new.mapcount()), (4 + 1 + mapped, mapped as u32));
                assert!(new.has(FolioFlags::SWAPCACHE | FolioFlags::DIRTY));
                if is_mapped {
                    assert_eq!(entry::<A>(&mm, 4 + u64::from(k)).pfn(Level::Pte), page);
                }
            }
            assert_eq!(p.slots().count(at(slot, 1)), 1, "entries count as before");
            drop(own);
            check(&p);
            p.slots().put(SlotRun::new(at(slot, 1), 2));
            exit(mm);
            let left: FolioRef<'_, _, Get> =
                p.memmap().adopt_run(p.slots().get(p.memmap(), slot).expect("cached"));
            assert!(p.slots().free(&left.folio().lock()));
            drop(left);
            assert_eq!((p.folios_in_use(), p.slots().nr_free()), (0, 64));
        }
    }
}

/// Rules: MIGR-01, FOLIO-07.
#[test]
fn one_that_somebody_holds_stays() {
    let p = machine_with_swap();
    let (mm, own, slot) = cached(&p);
    let before: Vec<_> = (4..8).map(|k| entry::<A>(&mm, k)).collect();
    let found = p.slots().get(p.memmap(), at(slot, 3)).expect("cached");
    let stranger: FolioRef<'_, _, Get> = p.memmap().adopt_run(found);
    assert_eq!(migrate_folio(&p, &own, None, Batching::Batched), Err(MigrationError::Busy));
    let folio = own.folio();
    let locked = folio.lock();
    let whole = SplitFolio { locked, own };
    let (whole, result) = split_anon_folio(&p, p.memmap(), whole, 0, 0, Batching::Batched);
    assert_eq!((result, folio.order()), (Err(SplitError::Held), 2));
    drop(whole.locked);
    drop((stranger, whole.own));
    assert_eq!((4..8).map(|k| entry::<A>(&mm, k)).collect::<Vec<_>>(), before);
    assert_eq!((p.slots().slot_of(folio), folio.refcount()), (Some(slot), 4 + 4));
    check(&p);
    assert!(p.slots().free(&folio.lock()));
    exit(mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: FOLIO-46, FOLIO-52, FOLIO-53, FOLIO-54, FOLIO-55, SWAP-03, SWAP-04.
#[test]
fn the_parts_of_a_folio_keep_its_slots() {
    for is_mapped in [true, false] {
        let p = machine_with_swap();
        let (mm, own, slot) = cached(&p);
        // Nobody wants the last page but who maps it.
        p.slots().dup(SlotRun::new(slot, 3)).expect("few");
        if !is_mapped {
            munmap(&mm, 4, 4);
        }
        let folio = own.folio();
        let whole = SplitFolio { locked: folio.lock(), own };
        let (whole, result) = split_anon_folio(&p, p.memmap(), whole, 1, 0, Batching::Batched);
        assert_eq!(result, Err(SplitError::Order { from: 2, to: 1 }));
        let (part, result) = split_anon_folio(&p, p.memmap(), whole, 0, 1, Batching::Batched);
        assert_eq!(result, Ok(()));
        assert_eq!(part.own.folio().head(), folio.head().add(1));
        drop(part.locked);
        drop(part.own);
        for k in 0..4 {
            let page = folio.head().add(k.into());
            let state = p.slots().state(at(slot, k));
            if k == 3 && !is_mapped {
                assert_eq!(state, None, "its slot and its frame are free");
                continue;
            }
            assert_eq!(state.and_then(|s| s.cached), Some(page));
            let part = p.memmap().folio(page);
            assert_eq!((part.order(), p.slots().slot_of(part)), (0, Some(at(slot, k))));
            let mapped = i32::from(is_mapped);
            assert_eq!((part.refcount(), part.mapcount()), (1 + mapped, mapped as u32));
            assert!(part.has(FolioFlags::SWAPCACHE | FolioFlags::DIRTY));
            assert_eq!(p.bytes().load(page, 0), 100 + u64::from(k));
        }
        check(&p);
        p.slots().put(SlotRun::new(slot, 3));
        exit(mm);
        for state in p.slots().in_use() {
            let found = p.slots().get(p.memmap(), state.slot).expect("cached");
            let left: FolioRef<'_, _, Get> = p.memmap().adopt_run(found);
            assert!(p.slots().free(&left.folio().lock()), "each by itself");
        }
        assert_eq!((p.folios_in_use(), p.slots().nr_free()), (0, 64));
    }
}
