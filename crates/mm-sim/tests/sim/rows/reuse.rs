//! Reuse of folios that a child shared for a while.

use super::*;
use mm_fault::ReusePolicy;
use mm_folio::{FolioFlags, Get};

/// A row whose folio a child shared, under this policy of reuse.
fn shared_once(layout: Layout, reuse: ReusePolicy) -> Row {
    let r = Row::new(layout, Preset::Linux618);
    r.m.host().set_policy(|p| p.fault.reuse = reuse);
    r.p.fork().expect("fork").exit();
    r.m.settle();
    r.p.take_faults();
    r
}
fn reused(r: &Row) -> u64 {
    r.m.host().observer().pages_reused.get()
}

/// Rules: S-RU3, WREUSE-03, WREUSE-04, WREUSE-14.
#[test]
fn faults_for_a_folio_of_a_whole_table() {
    for (reuse, expected) in
        [(ReusePolicy::Page, 512), (ReusePolicy::Block, 32), (ReusePolicy::Table, 1)]
    {
        let r = shared_once(Layout::Ptes(9), reuse);
        let (before, counted) = (r.frames(&r.p), reused(&r));
        r.write(&r.p);
        assert_eq!((faults(&r.p), reused(&r) - counted), (expected, expected as u64));
        assert_eq!(r.frames(&r.p), before, "nothing is copied");
        r.reads(&r.p, Row::NEW);
        r.end();
    }
}

/// Rules: S-RU5, S-RU6, WREUSE-04, MREMAP-04, INV-10.
#[test]
fn a_window_ends_with_its_table_and_its_mapping() {
    // The folio lies across two tables.
    let r = shared_once(Layout::Ptes(9), ReusePolicy::Table);
    r.p.mremap_move(pages(0, 512), page(1024 + 100), OldPlace::Unmap).expect("move");
    let before: Vec<_> = (1124..1636).map(|i| frame(&r.p, i)).collect();
    r.p.store(page(1130), 7).expect("store");
    assert_eq!(writable(&r.p, 1124..1636), (1124..1536).collect::<Vec<_>>());
    assert_eq!(exclusive(&r.p, 1124..1636), (1124..1536).collect::<Vec<_>>());
    r.sound(&[&r.p], &[]);
    (1124..1636).for_each(|i| r.p.store(page(i), i).expect("store"));
    assert_eq!(faults(&r.p), 2);
    assert_eq!((1124..1636).map(|i| frame(&r.p, i)).collect::<Vec<_>>(), before);
    r.end();

    // Its halves are two mappings.
    let r = shared_once(Layout::Stayed, ReusePolicy::Table);
    let (stayed, moved) = (0..256, 1024 + 256..1024 + 512);
    let frames = || stayed.clone().chain(moved.clone()).map(|i| frame(&r.p, i)).collect::<Vec<_>>();
    let before = frames();
    r.p.store(page(1300), 7).expect("store");
    assert_eq!(writable(&r.p, moved.clone()).len(), 256);
    assert!(writable(&r.p, stayed.clone()).is_empty());
    r.sound(&[&r.p], &[]);
    stayed.clone().chain(moved.clone()).for_each(|i| r.p.store(page(i), i).expect("store"));
    assert_eq!((faults(&r.p), frames()), (2, before));
    r.end();
}

/// A batch that waits on another CPU is one more reference, whatever it is for.
///
/// Rules: S-RU18, REUSE-02.
#[test]
fn a_page_that_somebody_holds_for_a_while_is_copied_and_then_reused() {
    for waits in [true, false] {
        let r = shared_once(Layout::Page, ReusePolicy::Page);
        let before = frame(&r.p, 0);
        let batch = r.m.host().memmap().folio(before).grab::<Get>(1).expect("room");
        let batch = waits.then_some(batch);
        r.write(&r.p);
        assert_eq!(frame(&r.p, 0) != before, waits);
        drop(batch);
        r.reads(&r.p, Row::NEW);
        r.end();
    }
}

/// Rules: S-RU20, WREUSE-12, UNMAP-17, FOLIO-40.
#[test]
fn one_store_keeps_a_folio_that_was_given_up() {
    let r = Row::new(Layout::Ptes(4), Preset::Linux618);
    r.m.host().set_policy(|p| p.fault.reuse = ReusePolicy::Table);
    r.p.madvise_free(r.range()).expect("given up");
    r.p.fork().expect("fork").exit();
    r.m.settle();
    r.p.store(page(0), Row::NEW).expect("store");
    assert_eq!(writable(&r.p, r.each()).len(), 16);
    assert_eq!(entries_that(&r.p, r.each(), |_, e, _| e.is_dirty()), [0]);
    let before = r.frames(&r.p);
    let folio = r.m.host().memmap().folio(before[0]);
    assert!(!folio.has(FolioFlags::SWAPBACKED));
    r.p.madvise_pageout(r.range()).expect("advice");
    assert_eq!(r.frames(&r.p), before, "it stays");
    assert!(folio.has(FolioFlags::SWAPBACKED));
    assert_eq!(r.p.load(page(0)), Ok(Row::NEW));
    (1..16).for_each(|i| assert_eq!(r.p.load(page(i)), Ok(Row::OLD + i)));
    r.end();
}
