//! Slots and the cache, on the model machine.

use super::*;
use crate::model::{ModelConfig, ModelPlatform};
use crate::{Platform, SwapSpace};
use mm_arch::model::ModelWord;
use mm_folio::{FolioFlags, FolioRef, FolioRun, Get};

type M = ModelPlatform<ModelWord<8>>;

fn machine(swap_slots: u32) -> M {
    M::new(ModelConfig { swap_slots, ..ModelConfig::default() }).expect("machine")
}
fn folio(m: &M, order: u32) -> FolioRef<'_, M, Get> {
    let new = m.memmap().alloc(order).expect("memory");
    new.folio().set_flag(FolioFlags::UPTODATE);
    new
}
fn added(m: &M, own: &FolioRef<'_, M, Get>) -> SwapSlot {
    m.slots().add(&own.folio().lock()).expect("room")
}
fn run(first: SwapSlot, nr: u32) -> SlotRun {
    SlotRun::new(first, nr)
}

/// Rules: SWAP-01, SWP-04, FOLIO-01, FOLIO-46.
#[test]
fn a_folio_gets_aligned_slots_in_a_row_and_is_dirty_then() {
    let m = machine(2 * CLUSTER_SLOTS);
    let (a, b, c) = (folio(&m, 0), folio(&m, 2), folio(&m, 0));
    let (at_a, at_b, at_c) = (added(&m, &a), added(&m, &b), added(&m, &c));
    // Small ones behind each other, large ones in a cluster of their own.
    assert_eq!((at_a.offset, at_c.offset), (1, 2));
    assert_eq!(at_b.offset % 4, 0);
    assert!(at_b.offset >= u64::from(CLUSTER_SLOTS));
    let f = b.folio();
    assert_eq!((f.refcount(), m.slots().slot_of(f)), (5, Some(at_b)));
    assert!(f.has(FolioFlags::SWAPCACHE | FolioFlags::DIRTY));
    let found = m.slots().get(m.memmap(), run(at_b, 4).at(3)).expect("cached");
    assert_eq!((found, f.refcount()), (FolioRun::new(f.head(), 3, 1), 6));
    m.memmap().put_run::<Get>(found);
    for own in [&a, &b, &c] {
        assert!(m.slots().free(&own.folio().lock()));
    }
    assert_eq!(m.slots().nr_free(), u64::from(2 * CLUSTER_SLOTS));
}

/// Rules: SWAP-01, RECL-04.
#[test]
fn without_room_nothing_changes() {
    let m = machine(6);
    let (large, small) = (folio(&m, 2), folio(&m, 0));
    let too_large = folio(&m, 10);
    let slots = m.slots();
    assert_eq!(slots.add(&too_large.folio().lock()), Err(SwapError::TooLarge));
    // Slots 1 to 6: four in a row that are aligned would be 4 to 7.
    assert_eq!(slots.add(&large.folio().lock()), Err(SwapError::Full));
    assert_eq!((large.folio().refcount(), slots.nr_free()), (1, 6));
    assert!(!large.folio().flags().intersects(FolioFlags::SWAPCACHE | FolioFlags::DIRTY));
    slots.close();
    assert_eq!(slots.add(&small.folio().lock()), Err(SwapError::Full));
    assert_eq!(machine(0).slots().nr_free(), 0);
}

/// A device with a page on it stays; its number is given again when it is gone.
///
/// Rules: SWAP-01.
#[test]
fn a_closed_device_goes_when_nobody_needs_it() {
    let m = machine(8);
    let (own, slots) = (folio(&m, 0), m.slots());
    let at = added(&m, &own);
    slots.close();
    assert_eq!((slots.remove_closed(), slots.slot_of(own.folio())), (false, Some(at)));
    slots.reopen();
    assert_eq!(slots.nr_free(), 7);
    slots.close();
    assert!(slots.free(&own.folio().lock()));
    assert!(slots.remove_closed());
    slots.reopen();
    // Who read of a slot before finds nothing there.
    let (stale, new) = (run(at, 1), folio(&m, 0));
    assert_eq!(slots.begin_read(stale), Err(SwapError::Busy));
    assert_eq!(slots.insert(at, &new.folio().lock()), Err(SwapError::Busy));
    assert_eq!((slots.unheld_prefix(stale), slots.count(at), slots.state(at)), (0, 0, None));
    assert!(!slots.zeros(stale).any && slots.get(m.memmap(), at).is_none());
    assert_eq!((slots.nr_free(), slots.add(&own.folio().lock())), (0, Err(SwapError::Full)));
    assert_eq!((slots.open(16), slots.nr_free()), (Ok(at.device), 16));
    assert!(added(&m, &own).offset <= 16 && slots.free(&own.folio().lock()));
}

/// Rules: SWAP-02.
#[test]
fn counts_go_up_and_down_slot_by_slot() {
    let m = machine(64);
    let own = folio(&m, 2);
    let at = added(&m, &own);
    let slots = m.slots();
    slots.dup(run(run(at, 4).at(1), 2)).expect("few");
    slots.dup(run(run(at, 4).at(2), 1)).expect("few");
    assert!(run(at, 4).iter().map(|s| slots.count(s)).eq([0, 1, 2, 0]));
    slots.put(run(run(at, 4).at(1), 2));
    assert!(run(at, 4).iter().map(|s| slots.count(s)).eq([0, 0, 1, 0]));
    // One more than can be counted: all of the run stay as they are.
    for _ in 1..SwapSlots::<mm_sync::DefaultLock>::MAX_COUNT {
        slots.dup(run(run(at, 4).at(2), 1)).expect("room");
    }
    assert_eq!(slots.dup(run(at, 4)), Err(SwapError::TooManyEntries));
    assert!(run(at, 4).iter().map(|s| slots.count(s)).eq([0, 0, u16::MAX.into(), 0]));
    for _ in 0..SwapSlots::<mm_sync::DefaultLock>::MAX_COUNT {
        slots.put(run(run(at, 4).at(2), 1));
    }
    assert!(slots.free(&own.folio().lock()));
}

/// Rules: SWAP-02.
#[test]
fn an_offset_that_no_device_has_is_no_slot_of_it() {
    let m = machine(8);
    let own = folio(&m, 0);
    let at = added(&m, &own);
    m.slots().dup(run(at, 1)).expect("counted");
    // Its low half is that of a slot; and a run that goes on behind the last one.
    m.slots().put(run(SwapSlot { offset: at.offset | 1 << 32, ..at }, 1));
    m.slots().put(run(at, u32::MAX));
    assert_eq!(m.slots().count(at), 1);
    m.slots().put(run(at, 1));
    assert!(m.slots().free(&own.folio().lock()));
    assert_eq!(m.slots().nr_free(), 8);
}

/// Rules: SWAP-03, FOLIO-45.
#[test]
fn one_count_keeps_the_whole_folio_cached() {
    let m = machine(64);
    let own = folio(&m, 2);
    let at = added(&m, &own);
    let (slots, f) = (m.slots(), own.folio());
    slots.dup(run(run(at, 4).at(3), 1)).expect("few");
    f.clear_flag(FolioFlags::DIRTY);
    assert!(!slots.free(&f.lock()) && f.refcount() == 5);
    slots.put(run(run(at, 4).at(3), 1));
    f.set_flag(FolioFlags::WRITEBACK);
    assert!(!slots.free(&f.lock()), "it is being written");
    f.clear_flag(FolioFlags::WRITEBACK);
    assert!(slots.free(&f.lock()) && !slots.free(&f.lock()));
    assert_eq!((f.refcount(), slots.nr_free()), (1, 64));
    assert!(f.has(FolioFlags::DIRTY) && !f.has(FolioFlags::SWAPCACHE));
    assert!(slots.get(m.memmap(), at).is_none());
}

/// Rules: RECL-08, FOLIO-07.
#[test]
fn a_clean_folio_that_nobody_holds_leaves_its_slots_behind() {
    let m = machine(64);
    let own = folio(&m, 1);
    let at = added(&m, &own);
    let (slots, f) = (m.slots(), own.folio());
    slots.dup(run(at, 1)).expect("few");
    assert!(!slots.evict(&f.lock()), "dirty");
    f.clear_flag(FolioFlags::DIRTY);
    let stranger = f.grab::<Get>(1).expect("room");
    assert!(!slots.evict(&f.lock()), "held");
    drop(stranger);
    assert!(slots.evict(&f.lock()));
    assert_eq!((f.refcount(), f.has(FolioFlags::SWAPCACHE)), (1, false));
    // The entry keeps its slot; the other one is free.
    assert_eq!((slots.count(at), slots.nr_free()), (1, 63));
    let again = folio(&m, 0);
    slots.insert(at, &again.folio().lock()).expect("nobody has it");
    slots.put(run(at, 1));
    assert!(slots.free(&again.folio().lock()) && slots.nr_free() == 64);
}

/// Rules: SWPI-02.
#[test]
fn a_slot_that_is_being_read_is_nobody_elses() {
    let m = machine(64);
    let own = folio(&m, 1);
    let at = added(&m, &own);
    let slots = m.slots();
    slots.dup(run(at, 2)).expect("few");
    assert_eq!(slots.begin_read(run(at, 2)), Err(SwapError::Busy), "it is cached");
    own.folio().clear_flag(FolioFlags::DIRTY);
    assert!(slots.evict(&own.folio().lock()));
    slots.begin_read(run(at, 2)).expect("nobody has it");
    assert_eq!(slots.begin_read(run(at, 1)), Err(SwapError::Busy));
    let other = folio(&m, 0);
    assert_eq!(slots.insert(at, &other.folio().lock()), Err(SwapError::Busy));
    assert_eq!(slots.unheld_prefix(run(at, 2)), 0);
    // The counts may go meanwhile; the slots stay.
    slots.put(run(at, 2));
    assert_eq!(slots.nr_free(), 62);
    slots.end_read(run(at, 2));
    assert_eq!(slots.nr_free(), 64);
    assert_eq!(slots.begin_read(run(at, 1)), Err(SwapError::Busy), "nothing counts on it");
}

/// Rules: SWAP-01.
#[test]
fn slots_come_back_and_small_folios_take_what_is_left() {
    let m = machine(2 * CLUSTER_SLOTS - 1);
    let mut kept = Vec::new();
    // Every second large folio goes again: no cluster is empty.
    for i in 0..2 * CLUSTER_SLOTS / 4 - 1 {
        let own = folio(&m, 2);
        added(&m, &own);
        if i % 2 == 0 {
            kept.push(own);
        } else {
            assert!(m.slots().free(&own.folio().lock()));
        }
    }
    while let Ok(own) = m.memmap().alloc(0) {
        own.folio().set_flag(FolioFlags::UPTODATE);
        if m.slots().add(&own.folio().lock()).is_err() {
            break;
        }
        kept.push(own);
    }
    assert_eq!(m.slots().nr_free(), 0);
    for own in &kept {
        let f = own.folio();
        assert_eq!(m.slots().slot_of(f).map(|s| s.offset % u64::from(f.nr_pages())), Some(0));
        assert!(m.slots().free(&f.lock()));
    }
    assert_eq!(m.slots().nr_free(), u64::from(2 * CLUSTER_SLOTS - 1));
    assert!(m.slots().in_use().next().is_none());
}
