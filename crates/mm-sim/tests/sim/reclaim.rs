//! Reclaim of groups of processes, by an amount.

use crate::common::*;
use mm_arch::{Entry, Level};
use mm_fault::{OrderMode, ThpMode};
use mm_folio::{FolioFlags, Get};
use mm_map::{Advice, LockWhen};
use mm_reclaim::{LruList, ReclaimError, ReclaimPlatform};
use mm_sim::*;
use mm_vma::{Platform, RssKind, SwapSpace};
use std::sync::Arc;

const SLOTS: u64 = 4096;

fn machine() -> M {
    let m = machine_of(32);
    m.host().swap().add::<A>(SLOTS).expect("room");
    m.host().set_policy(|p| {
        let thp = p.fault.thp.with_global(ThpMode::Madvise);
        p.fault.thp = thp.with_order(4, OrderMode::Madvise);
    });
    m
}
/// A process with `nr` pages that hold 100 and more, in folios of 64 KiB.
fn filled(m: &M, nr: u64) -> P {
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, nr), RW).expect("mmap");
    p.madvise(pages(0, nr), Advice::HugePage).expect("mapped");
    for i in 0..nr {
        p.store(page(i), 100 + i).expect("store");
    }
    p
}
fn left(p: &P) -> (u64, u64) {
    (p.mm().counters().resident(), p.mm().counters().get(RssKind::Swap))
}
#[track_caller]
fn sound(m: &M, processes: &[&P]) {
    m.settle();
    assert_eq!(audit(m, processes.iter().copied(), []), []);
}

/// Rules: PROACT-01, PROACT-02, PROACT-03, S-RC16, S-RC17.
#[test]
fn a_group_gives_memory_back_and_others_keep_theirs() {
    let m = machine();
    let (a, b, c) = (filled(&m, 256), filled(&m, 256), filled(&m, 64));
    let free = m.host().frames().nr_free();
    let got = m.host().reclaim([&a, &c], "512K").expect("there is some");
    assert!((128..=192).contains(&got), "{got}");
    assert_eq!(m.host().frames().nr_free(), free + got);
    assert_eq!(left(&a).1 + left(&c).1, got);
    assert_eq!(left(&b), (256, 0));
    sound(&m, &[&a, &b, &c]);
    for (p, nr) in [(&a, 256), (&b, 256), (&c, 64)] {
        assert!((0..nr).all(|i| p.load(page(i)) == Ok(100 + i)), "no byte is lost");
    }
    // What was just used gets a second chance, and goes when nobody uses it again.
    let all = m.host().reclaim([&a], "1M swappiness=max");
    assert_eq!((all, left(&a)), (Ok(256), (0, 256)));
    assert_eq!(m.host().reclaim([&a], "4K"), Err(ReclaimError::Exhausted(0)));
    for bad in ["x", "1 foo=1"] {
        let error = m.host().reclaim([&b], bad).expect_err(bad);
        assert_eq!(error.errno(), "EINVAL");
    }
    assert_eq!(left(&b), (256, 0));
    sound(&m, &[&a, &b, &c]);
    drop((a, b, c));
    assert_eq!((leaks(&m), m.host().swap().slots().nr_free()), (vec![], SLOTS));
}

/// Rules: PROACT-03, RECL-08.
#[test]
fn everybody_includes_pages_that_nothing_maps() {
    let m = machine();
    let file = File::new(m.host(), 64).expect("memory");
    let object: Arc<dyn Object<A, EventCounts>> = file.clone();
    object.write(0, 64, &|page, word| if word == 0 { 500 + page } else { 0 }).expect("room");
    object.sync().expect("written");
    let p = m.spawn().expect("process");
    assert_eq!(m.host().reclaim([&p], "4K"), Err(ReclaimError::Exhausted(0)));
    let cached = m.host().lru().nr_pages(LruList::InactiveFile);
    assert_eq!(cached, 64);
    assert_eq!(m.host().reclaim_everywhere("256K swappiness=0"), Ok(64));
    assert_eq!(m.host().lru().nr_pages(LruList::InactiveFile), 0);
    p.mmap_object(pages(0, 64), RW | mm_vma::VmaFlags::SHARED, object, 0).expect("free");
    assert!((0..64).all(|i| p.load(page(i)) == Ok(500 + i)));
    sound(&m, &[&p]);
}

/// Rules: UNMAP-03, S-ML1.
#[test]
fn locked_memory_stays_whoever_asks() {
    let m = machine();
    let p = filled(&m, 32);
    p.mlock(pages(0, 16), LockWhen::Now).expect("mapped");
    assert_eq!(m.host().lru().nr_pages(LruList::Unevictable), 16);
    assert_eq!(m.host().reclaim([&p], "1M"), Err(ReclaimError::Exhausted(16)));
    assert_eq!(left(&p), (16, 16));
    p.munlock(pages(0, 16)).expect("mapped");
    assert_eq!(m.host().lru().nr_pages(LruList::Unevictable), 0);
    assert_eq!(m.host().reclaim([&p], "64K"), Ok(16));
    assert!((0..32).all(|i| p.load(page(i)) == Ok(100 + i)));
    sound(&m, &[&p]);
}

/// A hole ends the call with an error; what lies around it was advised, and may be lost.
///
/// Rules: MADV-04.
#[test]
fn advice_that_met_a_hole_was_taken() {
    let m = machine();
    let p = filled(&m, 32);
    p.munmap(pages(16, 4)).expect("mapped");
    assert_eq!(p.madvise_free(pages(0, 32)).map_err(|e| e.errno()), Err("ENOMEM"));
    sound(&m, &[&p]);
    // A locked mapping ends it as well, and keeps what it has.
    let q = filled(&m, 32);
    q.mlock(pages(16, 8), LockWhen::Now).expect("mapped");
    assert_eq!(q.madvise_free(pages(0, 32)).map_err(|e| e.errno()), Err("EINVAL"));
    sound(&m, &[&p, &q]);
}

/// Reclaim has the folio in hand while its pages are given up: they are clean then, and go
/// to swap as they are.
///
/// Rules: FOLIO-41, MADV-04.
#[test]
fn what_is_given_up_while_it_is_isolated_is_not_lost_dirt() {
    let m = machine();
    let p = filled(&m, 16);
    let head = {
        let vmas = p.mm().read();
        let table = p.mm().tables().lock_table(vmas.stay(), page(0)).expect("there");
        table.get(table.index_of(page(0))).pfn(Level::Pte)
    };
    let folio = m.host().memmap().folio(head);
    let own = folio.grab::<Get>(1).expect("fits");
    assert!(m.host().lru().isolate_one(folio));
    p.madvise_free(pages(0, 16)).expect("mapped");
    assert!(folio.has(FolioFlags::SWAPBACKED) && !folio.has(FolioFlags::DIRTY));
    folio.enlist();
    drop(own);
    sound(&m, &[&p]);
    p.madvise_pageout(pages(0, 16)).expect("mapped");
    assert_eq!(left(&p), (0, 16));
    assert!((0..16).all(|i| p.load(page(i)) == Ok(100 + i)));
    sound(&m, &[&p]);
}

/// What came back from swap has no copy left there, and its entries are clean: a child counts
/// on it all the same when its parent gives it up.
///
/// Rules: MADV-04, FOLIO-45.
#[test]
fn what_a_child_shares_is_not_its_parents_to_give_up() {
    for preset in Preset::ALL {
        let m = machine_under(32, *preset);
        m.host().swap().add::<A>(SLOTS).expect("room");
        let p = filled(&m, 32);
        p.madvise_pageout(pages(0, 32)).expect("mapped");
        assert!((0..32).all(|i| p.load(page(i)) == Ok(100 + i)));
        // One page of a folio that is dirty speaks for itself alone.
        p.store(page(16), 116).expect("store");
        let child = p.fork().expect("fork");
        p.madvise_free(pages(0, 32)).expect("mapped");
        sound(&m, &[&p, &child]);
        child.munmap(pages(16, 1)).expect("mapped");
        drop(p);
        child.madvise_pageout(pages(0, 16)).expect("mapped");
        child.madvise_pageout(pages(17, 15)).expect("mapped");
        let kept = |i: &u64| child.load(page(*i)) == Ok(100 + i);
        let lost: Vec<u64> = (0..32).filter(|i| *i != 16 && !kept(i)).collect();
        assert!(lost.is_empty(), "{}: {lost:?}", preset.name());
        sound(&m, &[&child]);
    }
}
