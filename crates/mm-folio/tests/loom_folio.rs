//! Models of the protocols on folio records, on the production code. One test
//! per race; the mutants bring the race back.
#![cfg(loom)]

use core::num::NonZeroU32;
use mm_arch::{Level, Pfn};
use mm_folio::*;
use mm_sync::SeqCount;
use mm_sync::atomic::{AtomicU64, Ordering::*, fence};
use mm_sync::model::{caught, holds};
use mm_sync::thread::spawn;
use std::sync::Arc;

/// A bitmap of free frames.
struct Frames(AtomicU64);
impl FolioSource for Frames {
    fn alloc(&self, order: u32) -> Result<Pfn, AllocError> {
        let run = (1u64 << (1 << order)) - 1;
        let mut free = self.0.load(Relaxed);
        loop {
            let head = (0..8).step_by(1 << order).find(|&h| free >> h & run == run);
            let Some(head) = head else { return Err(AllocError) };
            match self.0.compare_exchange(free, free & !(run << head), Acquire, Relaxed) {
                Ok(_) => return Ok(Pfn::new(head)),
                Err(now) => free = now,
            }
        }
    }
    fn free(&self, head: Pfn, order: u32) {
        let run = (1u64 << (1 << order)) - 1;
        self.0.fetch_or(run << head.get(), Release);
    }
}

struct Space;
impl FolioSpace for Space {
    type Source = Frames;
    type FolioLock = mm_sync::DefaultLock;
}
type FolioMap = MemMap<Space>;

/// A map whose frames can hold one folio of order `order`.
fn map(order: u32) -> Arc<FolioMap> {
    let nr = 1u64 << order;
    let frames = Frames(AtomicU64::new((1 << nr) - 1));
    Arc::new(MemMap::new(Pfn::new(0), nr, frames).expect("memory"))
}
fn mm(id: u32) -> MmId {
    MmId::new(id).expect("in range")
}
const ONE: NonZeroU32 = NonZeroU32::MIN;

fn new_anon(map: &FolioMap, order: u32, mapped: u32) -> Folio<'_, Space> {
    let mut new = map.alloc(order).expect("frames");
    new.folio().set_anon(AnonId(1), 0);
    if mapped > 0 {
        new.grow((1 << order) - 1).expect("room");
        new.folio().add_new_anon(mm(mapped), Level::Pte, Exclusivity::Exclusive);
    }
    new.hand_over()
}
/// Uses page `page` and drops the reference. Owns it in its raw form meanwhile:
/// a mutant that panics must not run destructors on broken records.
fn use_and_put(map: &FolioMap, got: FolioRef<'_, Space, Get>, page: Pfn) {
    let run = got.into_run(0);
    map.content(page).used();
    map.put_run::<Get>(run);
}
fn put(map: &FolioMap, head: Pfn, n: u32) {
    map.put_run::<Get>(FolioRun::new(head, 0, n));
}

/// Every mutant of the list must be found in `model`, which holds without.
fn race(name: &str, model: impl Fn() + Copy + Send + Sync + 'static, mutants: &[&'static str]) {
    holds(name, model);
    for mutant in mutants {
        caught(name, mutant, model);
    }
}

/// Rules: FOLIO-05, PIN-05, PIN-07. Cases: MM-119.
#[test]
fn a_grab_races_with_the_last_put_and_a_new_life() {
    fn model() {
        let map = map(0);
        let page = new_anon(&map, 0, 0).head();
        let other = spawn({
            let map = map.clone();
            move || {
                if let Some(got) = map.try_grab::<Get>(page, 1) {
                    use_and_put(&map, got, page);
                }
            }
        });
        map.content(page).used();
        put(&map, page, 1);
        if let Ok(again) = map.alloc(0) {
            use_and_put(&map, again, page);
        }
        other.join().expect("joins");
        assert_eq!((map.alive().count(), map.stats().bad_frees.get()), (0, 0));
    }
    race(
        "put_vs_grab",
        model,
        &["folio.get.not_unless_zero", "folio.put", "folio.put.acq", "folio.alloc"],
    );
}

/// Rules: PIN-06, P-RACE-07.
#[test]
fn a_grab_races_with_a_split() {
    fn model() {
        let map = map(1);
        let folio = map.alloc(1).expect("frames").hand_over();
        let tail = folio.page(1);
        let other = spawn({
            let map = map.clone();
            move || {
                if let Some(got) = map.try_grab::<Get>(tail, 1) {
                    let run = got.into_run(0);
                    let there = map.folio(run.head).contains(tail);
                    assert!(there, "a reference on an unrelated folio");
                    map.content(tail).used();
                    map.put_run::<Get>(run);
                }
            }
        });
        if folio.freeze(1) {
            // All references are ours: so is the content.
            map.content(tail).retired();
            folio.split_frozen(0);
            map.folio(tail).unfreeze(1);
            folio.unfreeze(1);
            put(&map, tail, 1);
        }
        put(&map, folio.head(), 1);
        other.join().expect("joins");
        assert_eq!((map.alive().count(), map.stats().bad_frees.get()), (0, 0));
    }
    race(
        "split_vs_grab",
        model,
        &["folio.no_head_recheck", "folio.unfreeze", "folio.freeze", "folio.get"],
    );
}

/// Rules: PIN-06, FOLIO-10, P-RACE-07.
#[test]
fn a_grab_races_with_other_folios_in_the_same_frames() {
    fn model() {
        let map = map(1);
        let folio = map.alloc(1).expect("frames").hand_over();
        let tail = folio.page(1);
        let other = spawn({
            let map = map.clone();
            move || {
                if let Some(got) = map.try_grab::<Get>(tail, 1) {
                    let run = got.into_run(0);
                    let there = map.folio(run.head).contains(tail);
                    assert!(there, "a reference on an unrelated folio");
                    map.content(tail).used();
                    map.put_run::<Get>(run);
                }
            }
        });
        put(&map, folio.head(), 1);
        // The head's frame gets another life, the tail's stays free.
        let single = map.alloc(0).map(|new| new.into_run(0));
        other.join().expect("joins");
        if let Ok(single) = single {
            map.put_run::<Get>(single);
        }
        assert_eq!((map.alive().count(), map.stats().bad_frees.get()), (0, 0));
    }
    race("regroup_vs_grab", model, &["folio.no_head_recheck", "folio.free.keep_tails"]);
}

/// Rules: RMAP-19, FOLIO-26, FOLIO-27, F-RACE-03, P-RACE-04.
#[test]
fn a_read_only_pin_races_with_sharing() {
    fn model<const ORDER: u32>() {
        let map = map(ORDER);
        let page = new_anon(&map, ORDER, 1).head();
        let entry = Arc::new(AtomicU64::new(1));
        let pinner = spawn({
            let (map, entry) = (map.clone(), entry.clone());
            move || {
                let seen = entry.load(Acquire);
                if seen == 0 {
                    return false;
                }
                let Some(pin) = map.try_grab::<Pin>(page, 1) else { return false };
                if entry.load(Relaxed) != seen {
                    return false;
                }
                fence(Acquire);
                if !map.page_exclusive(page) {
                    return false;
                }
                let _ = pin.hand_over();
                true
            }
        });
        let old = entry.swap(0, Relaxed);
        let shared = map.folio(page).try_share_anon_pte(0).is_ok();
        // Read-only as before: the same bits.
        entry.store(old, Relaxed);
        let pinned = pinner.join().expect("joins");
        assert!(!(pinned && shared), "a pinned page was shared");
    }
    let mutants = &["gup.pin.mb", "share.mb", "share.wmb", "share.no_check"];
    race("pin_vs_share, large", model::<1>, mutants);
    race("pin_vs_share, small", model::<0>, mutants);
}

/// Rules: RMAP-10, GUPF-05. Races: F-RACE-01, F-RACE-02, P-RACE-03: fork looks at
/// pins between an odd and an even sequence; a pin of one page keeps all of the folio.
#[test]
fn a_pin_races_with_fork() {
    fn model() {
        let map = map(2);
        let head = new_anon(&map, 2, 1).head();
        let page = head.add(3);
        let seq = Arc::new(SeqCount::new());
        // Stands for "writable"; not read again, so that only the sequence tells.
        let entry = Arc::new(AtomicU64::new(1));
        let pinner = spawn({
            let (map, seq, entry) = (map.clone(), seq.clone(), entry.clone());
            move || {
                let Some(begin) = seq.read_begin() else { return false };
                if entry.load(Acquire) == 0 {
                    return false;
                }
                let Some(pin) = map.try_grab::<Pin>(page, 1) else { return false };
                let pin = pin.into_run(3);
                if seq.read_retry(begin) {
                    map.put_run::<Pin>(pin);
                    return false;
                }
                true
            }
        });
        let f = map.folio(head);
        f.grab::<Get>(4).expect("room").hand_over();
        seq.write_begin();
        let four = NonZeroU32::new(4).expect("not zero");
        let shared = f.try_dup_anon_ptes(0, four, mm(2), HasPinned::Maybe).is_ok();
        if shared {
            entry.store(0, Relaxed);
        }
        seq.write_end();
        let pinned = pinner.join().expect("joins");
        // All pages or none, and none if a pin stayed.
        let exclusive = map.exclusive_prefix(head, 4);
        assert_eq!(exclusive, if shared { 0 } else { 4 });
        assert!(!(pinned && shared), "a pinned page was shared");
    }
    race("pin_vs_fork", model, &["gup.pin.mb", "seq.write.mb", "folio.dup.page_by_page"]);
}

/// Rules: RMAP-19, GUPF-12, P-RACE-05: whoever detaches entries and then
/// looks at the references sees every grab that was not taken back.
#[test]
fn a_get_races_with_a_look_at_the_references() {
    fn model() {
        let map = map(0);
        let page = new_anon(&map, 0, 1).head();
        let entry = Arc::new(AtomicU64::new(1));
        let getter = spawn({
            let (map, entry) = (map.clone(), entry.clone());
            move || {
                if entry.load(Acquire) == 0 {
                    return false;
                }
                let Some(got) = map.try_grab::<Get>(page, 1) else { return false };
                let got = got.into_run(0);
                if entry.load(Relaxed) == 0 {
                    map.put_run::<Get>(got);
                    return false;
                }
                true
            }
        });
        entry.swap(0, Relaxed);
        fence(SeqCst);
        let unused = map.folio(page).refcount() == 1;
        let held = getter.join().expect("joins");
        assert!(!(held && unused), "a reference was overlooked");
    }
    race("get_vs_look", model, &["gup.get.mb"]);
}

/// Rules: PIN-09. What a pinner did to the page comes before what a sharer does
/// that saw no pin.
#[test]
fn unpinning_hands_the_content_over() {
    fn model<const ORDER: u32>() {
        let map = map(ORDER);
        let page = new_anon(&map, ORDER, 1).head();
        let pin = map.folio(page).grab::<Pin>(1).expect("room").into_run(0);
        let pinner = spawn({
            let map = map.clone();
            move || {
                map.content(page).used();
                map.put_run::<Pin>(pin);
            }
        });
        if map.folio(page).try_share_anon_pte(0).is_ok() {
            map.content(page).retired();
        }
        pinner.join().expect("joins");
    }
    race("unpin_vs_share, large", model::<1>, &["folio.unpin", "folio.pinned"]);
    race("unpin_vs_share, small", model::<0>, &["folio.put", "folio.pinned"]);
}

/// Rules: PIN-09, P-RACE-27.
#[test]
fn a_count_of_pins_does_not_outlive_the_folio() {
    fn model() {
        let map = map(1);
        let folio = map.alloc(1).expect("frames").hand_over();
        let head = folio.head();
        let pin = folio.grab::<Pin>(1).expect("room").into_run(0);
        let pinner = spawn({
            let map = map.clone();
            move || map.put_run::<Pin>(pin)
        });
        put(&map, head, 1);
        pinner.join().expect("joins");
        assert_eq!((map.alive().count(), map.stats().bad_frees.get()), (0, 0));
    }
    race("unpin_vs_free", model, &["folio.unpin.late"]);
}

/// Rules: FOLIO-31, FOLIO-33. Races: F-RACE-09.
#[test]
fn two_address_spaces_map_at_once() {
    fn model() {
        let map = map(2);
        let head = new_anon(&map, 2, 0).head();
        let enter = move |map: &FolioMap, page: u32| {
            let f = map.folio(head);
            f.grab::<Get>(1).expect("room").hand_over();
            f.add_anon_ptes(page, ONE, mm(page + 1), Exclusivity::MaybeShared);
        };
        let other = spawn({
            let map = map.clone();
            move || enter(&map, 1)
        });
        enter(&map, 0);
        other.join().expect("joins");
        let f = map.folio(head);
        assert_eq!((f.mapcount(), f.refcount(), f.pages_mapped()), (2, 3, (2, false)));
        let mut slots = f.mm_slots();
        slots.sort();
        assert_eq!(slots, [Some((mm(1), 1)), Some((mm(2), 1))]);
        assert!(f.maybe_mapped_shared());
    }
    race(
        "two_mappers",
        model,
        &["folio.counts.no_lock", "folio.counts.lock", "folio.counts.unlock"],
    );
}

/// Rules: REUSE-07, FOLIO-03, F-RACE-08: another table of the same
/// address space loses a mapping, and the reference that goes with it is at once
/// somebody else's.
#[test]
fn reuse_does_not_mix_counts_of_two_moments() {
    fn model() {
        let map = map(2);
        let head = new_anon(&map, 2, 1).head();
        let other = spawn({
            let map = map.clone();
            move || {
                map.folio(head).remove_ptes(3, ONE, mm(1));
                put(&map, head, 1);
                map.try_grab::<Get>(head, 1).map(|got| got.into_run(0)).is_some()
            }
        });
        let f = map.folio(head);
        // Accepted with 4 mappings, nothing has been removed and so nobody has
        // grabbed; with 3, a holder shows. If only the mappings stand still.
        f.counts_locked(|c| {
            assert!(i64::from(c.refs) >= i64::from(c.mapcount), "fewer references than mappings");
            assert_eq!(f.mapcount(), c.mapcount, "a mapping came or went under the lock");
        });
        assert!(other.join().expect("joins"));
    }
    race("reuse_vs_unmap", model, &["folio.counts.no_lock"]);
}

/// Rules: REUSE-07, FOLIO-03, F-RACE-08: another table of the same
/// address space gains a mapping while somebody holds a reference.
#[test]
fn reuse_compares_counts_that_stand_still() {
    fn model() {
        let map = map(2);
        let head = new_anon(&map, 2, 1).head();
        let f = map.folio(head);
        f.remove_ptes(3, ONE, mm(1));
        // The reference of page 3 is the foreign one from now on: 3 mappings, 4
        // references, throughout.
        let other = spawn({
            let map = map.clone();
            move || {
                let f = map.folio(head);
                f.grab::<Get>(1).expect("room").hand_over();
                f.add_anon_ptes(3, ONE, mm(1), Exclusivity::MaybeShared);
            }
        });
        let accept = f.counts_locked(|c| {
            assert_eq!(f.mapcount(), c.mapcount, "a mapping came or went under the lock");
            !c.shared && i64::from(c.refs) == i64::from(c.mapcount)
        });
        assert!(!accept, "reused a folio that somebody else holds");
        other.join().expect("joins");
    }
    race("reuse_vs_mapper", model, &["folio.counts.refs_early", "folio.counts.no_lock"]);
}

/// Rules: FOLIO-03, ZAP-03, F-RACE-05: a leaving sharer reads through a
/// stale translation until it has flushed and drops its reference.
#[test]
fn reuse_waits_for_a_leaving_sharer() {
    fn model() {
        let map = map(2);
        let head = new_anon(&map, 2, 1).head();
        let f = map.folio(head);
        f.grab::<Get>(1).expect("room").hand_over();
        f.try_dup_anon_ptes(0, ONE, mm(2), HasPinned::Never).expect("not pinned");
        let child = spawn({
            let map = map.clone();
            move || {
                map.folio(head).remove_ptes(0, ONE, mm(2));
                map.content(head).used();
                put(&map, head, 1);
            }
        });
        let accept = f.counts_locked(|c| !c.shared && i64::from(c.refs) == i64::from(c.mapcount));
        if accept {
            map.content(head).retired();
        }
        child.join().expect("joins");
    }
    race("reuse_vs_sharer", model, &["folio.counts.refs", "folio.put"]);
}

/// Rules: FOLIO-08, FOLIO-57.
#[test]
fn the_last_put_races_with_the_deferred_split_scan() {
    fn model() {
        let map = map(2);
        let folio = new_anon(&map, 2, 0);
        folio.queue_deferred(QueueReason::PartiallyMapped);
        let head = folio.head();
        let scan = spawn({
            let map = map.clone();
            move || drop(map.deferred_pop())
        });
        put(&map, head, 1);
        let again = map.alloc(2).map(|new| new.hand_over());
        if let Ok(new) = again {
            new.set_flag(FolioFlags::PARTIALLY_MAPPED);
        }
        scan.join().expect("joins");
        if let Ok(new) = again {
            let kept = new.clear_flag(FolioFlags::PARTIALLY_MAPPED);
            assert!(kept, "the scan touched a later folio");
            put(&map, head, 1);
        }
        assert_eq!((map.alive().count(), map.stats().bad_frees.get()), (0, 0));
        assert_eq!(map.deferred_len(), 0);
        assert_eq!(map.stats().order[2].nr_anon_partially_mapped.get(), 0);
    }
    race(
        "put_vs_deferred",
        model,
        &["folio.deferred.late_forget", "folio.deferred.unlink", "folio.deferred.queued"],
    );
}

/// Rules: FOLIO-47.
#[test]
fn the_folio_lock_excludes() {
    fn model() {
        let map = map(0);
        let page = new_anon(&map, 0, 0).head();
        let other = spawn({
            let map = map.clone();
            move || {
                if let Some(_held) = map.folio(page).try_lock() {
                    map.content(page).retired();
                }
            }
        });
        if let Some(_held) = map.folio(page).try_lock() {
            map.content(page).retired();
        }
        other.join().expect("joins");
    }
    race("folio_lock", model, &["folio.lock", "folio.unlock"]);
}

/// An attempt that fails leaves the lock to whoever has it: a second one fails, too.
/// Rules: FOLIO-47.
#[test]
fn a_failed_attempt_at_the_folio_lock_changes_nothing() {
    fn model() {
        let map = map(0);
        let page = new_anon(&map, 0, 0).head();
        let other = spawn({
            let map = map.clone();
            move || {
                for _ in 0..2 {
                    if let Some(_held) = map.folio(page).try_lock() {
                        assert!(map.folio(page).try_lock().is_none(), "we have it");
                    }
                }
            }
        });
        if let Some(_held) = map.folio(page).try_lock() {
            for _ in 0..2 {
                assert!(map.folio(page).has(mm_folio::FolioFlags::LOCKED), "somebody gave it up");
            }
        }
        other.join().expect("joins");
    }
    race("failed_folio_lock", model, &[]);
}

/// Rules: FOLIO-39.
#[test]
fn a_reader_never_takes_a_tree_for_a_file() {
    fn model() {
        let map = map(0);
        let page = map.alloc(0).expect("frames").hand_over().head();
        let reader = spawn({
            let map = map.clone();
            move || {
                let f = map.folio(page);
                assert_eq!(f.file(), None);
                if let Some(anon) = f.anon() {
                    assert_eq!(anon, (AnonId(9), 77));
                }
            }
        });
        map.folio(page).set_anon(AnonId(9), 77);
        reader.join().expect("joins");
    }
    race("mapping", model, &["folio.mapping", "folio.mapping.read"]);
}
