//! Pages merged by content.

use crate::common::*;
use mm_arch::{Entry, Level, Pfn, Rights};
use mm_fault::{OrderMode, ThpMode};
use mm_folio::{FolioFlags, Get};
use mm_gup::GupFlags;
use mm_map::{Advice, Ksm, KsmPass};
use mm_pgtable::LockedEntry;
use mm_rmap::{MigrationError, RmapPlatform};
use mm_sim::*;
use mm_vma::{Platform, SwapSpace, write_folio};

fn machine() -> M {
    machine_of(32)
}
/// A process with `n` mergeable pages of the same content.
fn filled(m: &M, n: u64) -> P {
    filled_with(m, n, 7)
}
fn filled_with(m: &M, n: u64, content: u64) -> P {
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, n), RW).expect("mmap");
    for i in 0..n {
        p.store(page(i), content).expect("store");
    }
    p.madvise(pages(0, n), Advice::Mergeable).expect("mergeable");
    p
}
fn entry(p: &P, i: u64) -> <A as mm_arch::Arch>::Entry {
    let vmas = p.mm().read();
    match p.mm().tables().lock_entry(vmas.stay(), page(i)) {
        LockedEntry::Table(t) => t.get(t.index_of(page(i))),
        _ => <A as mm_arch::Arch>::Entry::NONE,
    }
}
fn pfn_at(p: &P, i: u64) -> Pfn {
    entry(p, i).pfn(Level::Pte)
}
fn merged(m: &M, p: &P, n: u64) -> Vec<u64> {
    let is = |i: &u64| {
        let e = entry(p, *i);
        e.is_leaf(Level::Pte) && m.host().memmap().folio(e.pfn(Level::Pte)).has(FolioFlags::KSM)
    };
    (0..n).filter(is).collect()
}
fn passes(m: &M, ksm: &mut Ksm<Host<A>>, processes: &[&P], n: usize) -> KsmPass {
    let mut last = KsmPass::default();
    for _ in 0..n {
        last = m.host().ksm_pass(ksm, processes.iter().copied()).expect("memory");
    }
    last
}
#[track_caller]
fn sound(m: &M, processes: &[&P]) {
    m.settle();
    assert_eq!(audit(m, processes.iter().copied(), []), []);
}

/// Mappings of a merged page that the reverse map finds.
fn found(m: &M, merged: Pfn) -> u32 {
    let folio = m.host().memmap().folio(merged);
    let _locked = folio.lock();
    m.host().anon_trees().count_mappings(folio)
}

/// Rules: KSM-01, KSM-02, FOLIO-50, INV-4, S-KS1, EXCL-04.
#[test]
fn equal_pages_become_one_and_a_store_copies() {
    let m = machine();
    let p = filled(&m, 8);
    let mut ksm = Ksm::new();
    assert_eq!(passes(&m, &mut ksm, &[&p], 1), KsmPass { scanned: 8, merged: 0 });
    assert_eq!(merged(&m, &p, 8), [0u64; 0], "content that was seen once may change");
    passes(&m, &mut ksm, &[&p], 1);
    assert_eq!(merged(&m, &p, 8), (0..8).collect::<Vec<_>>());
    let one = pfn_at(&p, 0);
    let folio = m.host().memmap().folio(one);
    assert!((0..8).all(|i| pfn_at(&p, i) == one && !entry(&p, i).is_writable(Level::Pte)));
    assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), (8, 8));
    assert!(!m.host().memmap().page_exclusive(one) && folio.has(FolioFlags::DIRTY));
    sound(&m, &[&p]);
    p.store(page(2), 8).expect("store");
    assert_ne!(pfn_at(&p, 2), one);
    for i in 0..8 {
        assert_eq!(p.load(page(i)), Ok(if i == 2 { 8 } else { 7 }));
    }
    // The last one is copied as well: nobody gets a merged page for himself.
    for i in (0..8).filter(|i| *i != 2) {
        p.store(page(i), 9 + i).expect("store");
    }
    assert_eq!(merged(&m, &p, 8), [0u64; 0]);
    sound(&m, &[&p]);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// A merged page that nothing maps may be one that reclaim has given up: it is on no list, and
/// clean. Nobody gives way to it.
///
/// Rules: KSM-02, RECL-08, ACC-15.
#[test]
fn what_reclaim_gave_up_is_merged_with_nothing() {
    let m = machine();
    m.host().swap().add::<A>(64).expect("memory");
    let p = filled(&m, 2);
    let mut ksm = Ksm::new();
    passes(&m, &mut ksm, &[&p], 2);
    let one = m.host().memmap().folio(pfn_at(&p, 0)).grab::<Get>(1).expect("room");
    // It ends for want of more: the page that is held stays in the cache.
    assert!(m.host().reclaim_everywhere("1M").is_err());
    assert!(!one.folio().is_mapped() && one.folio().has(FolioFlags::SWAPCACHE));
    let locked = one.folio().lock();
    write_folio(m.host(), &locked).expect("a device that works");
    assert!(m.host().swap().slots().evict(&locked), "nobody else has it");
    drop(locked);
    let q = filled(&m, 2);
    passes(&m, &mut ksm, &[&p, &q], 1);
    assert!(!one.folio().is_mapped());
    drop(one);
    passes(&m, &mut ksm, &[&p, &q], 3);
    assert_eq!(merged(&m, &q, 2), [0, 1]);
    for i in 0..2 {
        assert_eq!((p.load(page(i)), q.load(page(i))), (Ok(7), Ok(7)));
    }
    sound(&m, &[&p, &q]);
}

/// Rules: KSM-01, RMAP-16.
#[test]
fn a_page_that_somebody_holds_is_not_merged() {
    let m = machine();
    let p = filled(&m, 4);
    let pin = p.pin(page(1), 1, GupFlags::WRITE).expect("pinned");
    let get = p.get(page(2), 1, GupFlags::empty()).expect("held");
    let mut ksm = Ksm::new();
    passes(&m, &mut ksm, &[&p], 3);
    assert_eq!(merged(&m, &p, 4), [0, 3]);
    assert!(entry(&p, 1).is_writable(Level::Pte), "put back as it was");
    pin.store(0, 0, 5);
    assert_eq!(p.load(page(1)), Ok(5));
    m.settle();
    assert_eq!(audit(&m, [&p], [&pin, &get]), []);
    pin.store(0, 0, 7);
    drop((pin, get));
    passes(&m, &mut ksm, &[&p], 3);
    assert_eq!(merged(&m, &p, 4), [0, 1, 2, 3]);
    sound(&m, &[&p]);
}

/// Rules: KSM-02, GUPF-03, S-KS3.
#[test]
fn a_pin_of_a_merged_page_gets_a_copy_that_sees_stores() {
    let m = machine();
    let p = filled(&m, 4);
    passes(&m, &mut Ksm::new(), &[&p], 2);
    let pin = p.pin(page(1), 1, GupFlags::LONGTERM).expect("pinned");
    assert_eq!(merged(&m, &p, 4), [0, 2, 3]);
    p.store(page(1), 5).expect("store");
    assert_eq!((pin.load(0, 0), p.load(page(0))), (Some(5), Ok(7)));
    m.settle();
    assert_eq!(audit(&m, [&p], [&pin]), []);
}

/// Rules: RMAP-27, RMAP-30, S-KS4.
#[test]
fn the_reverse_map_finds_all_mappings_of_a_merged_page() {
    let m = machine();
    let p = filled(&m, 3);
    let mut ksm = Ksm::new();
    passes(&m, &mut ksm, &[&p], 2);
    let one = pfn_at(&p, 0);
    assert_eq!(found(&m, one), 3);
    // Forked since, found through their parent's places; then with places of their own.
    let c = p.fork().expect("fork");
    assert_eq!(found(&m, one), 6);
    passes(&m, &mut ksm, &[&p, &c], 1);
    assert_eq!(found(&m, one), 6);
    sound(&m, &[&p, &c]);
    // A page that others merge with, and one that moves.
    let q = filled(&m, 2);
    passes(&m, &mut ksm, &[&p, &c, &q], 3);
    assert_eq!(pfn_at(&q, 1), one);
    assert_eq!(found(&m, one), 8);
    p.mremap_move(pages(1, 1), page(100), mm_map::OldPlace::Unmap).expect("mremap");
    assert_eq!(found(&m, one), 8);
    p.exit();
    assert_eq!(found(&m, one), 5);
    sound(&m, &[&c, &q]);
    c.exit();
    q.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
    // The frame may be anybody's by now; its record says so.
    let p = filled(&m, 2);
    passes(&m, &mut Ksm::new(), &[&p], 2);
    assert_eq!(merged(&m, &p, 2), [0, 1]);
    assert_eq!(m.host().anon_trees().nr_merged(), 1);
    sound(&m, &[&p]);
}

/// Rules: RMAP-27, RMAP-30.
#[test]
fn a_merged_page_is_found_when_those_it_was_found_in_are_gone() {
    let m = machine();
    let p = filled(&m, 3);
    let mut ksm = Ksm::new();
    passes(&m, &mut ksm, &[&p], 2);
    let one = pfn_at(&p, 0);
    // Forked, and no pass since: the child has no places.
    let c = p.fork().expect("fork");
    p.exit();
    assert_eq!(found(&m, one), 3);
    let d = c.fork().expect("fork");
    assert_eq!(found(&m, one), 6);
    // A pass gives places to the one; that of the other is not visited twice for it.
    passes(&m, &mut ksm, &[&c], 1);
    assert_eq!(found(&m, one), 6);
    c.exit();
    assert_eq!(found(&m, one), 3);
    // Whoever gets the id of the first one is none of them.
    let q = filled(&m, 1);
    assert_eq!(found(&m, one), 3);
    sound(&m, &[&d, &q]);
    d.exit();
    q.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// What is remembered of a merged page that is gone does not become another one's that moves
/// to its frame.
///
/// Rules: MIGR-03, RMAP-30.
#[test]
fn a_merged_page_moves_to_where_another_one_was() {
    for [gone, moved] in [[7, 9], [9, 7]] {
        let m = machine();
        let mut ksm = Ksm::new();
        let q = filled_with(&m, 3, gone);
        passes(&m, &mut ksm, &[&q], 2);
        let frame = pfn_at(&q, 0);
        assert_eq!(merged(&m, &q, 3), [0, 1, 2]);
        let p = filled_with(&m, 3, moved);
        passes(&m, &mut ksm, &[&p], 2);
        q.exit();
        m.settle();
        // No other frame is handed out than that one.
        let all = std::iter::from_fn(|| m.host().memmap().alloc(0).ok()).collect::<Vec<_>>();
        let (there, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|own| own.folio().head() == frame);
        drop(there);
        let own = m.host().memmap().folio(pfn_at(&p, 0)).grab::<Get>(1).expect("room");
        m.host().migrate(&own).expect("nobody holds it");
        drop((own, others));
        assert_eq!((pfn_at(&p, 0), merged(&m, &p, 3)), (frame, vec![0, 1, 2]));
        assert_eq!((found(&m, frame), m.host().anon_trees().nr_merged()), (3, 1));
        sound(&m, &[&p]);
    }
}

/// Rules: MIGR-01, MIGR-03, RMAP-27, RMAP-30, KSM-02, FOLIO-50.
#[test]
fn a_merged_page_moves_with_all_of_its_mappings() {
    let m = machine();
    let p = filled(&m, 3);
    let mut ksm = Ksm::new();
    passes(&m, &mut ksm, &[&p], 2);
    // Forked since; the reverse map finds it through its parent's places.
    let c = p.fork().expect("fork");
    let old = pfn_at(&p, 0);
    let own = m.host().memmap().folio(old).grab::<Get>(1).expect("room");
    m.host().migrate(&own).expect("nobody holds it");
    assert_eq!(own.folio().counts_locked(|c| (c.refs, c.mapcount)), (1, 0));
    drop(own);
    sound(&m, &[&p, &c]);
    let new = pfn_at(&p, 0);
    assert_ne!(new, old);
    for of in [&p, &c] {
        assert_eq!(merged(&m, of, 3), [0, 1, 2]);
        let maps = |i: u64| pfn_at(of, i) == new && !entry(of, i).is_writable(Level::Pte);
        assert!((0..3).all(maps));
    }
    let folio = m.host().memmap().folio(new);
    assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), (6, 6));
    assert!(folio.has(FolioFlags::DIRTY | FolioFlags::LRU) && found(&m, new) == 6);
    // It is found by its content where it is now, also by those that come later.
    let q = filled(&m, 2);
    passes(&m, &mut ksm, &[&p, &c, &q], 2);
    assert_eq!((pfn_at(&q, 1), found(&m, new)), (new, 8));
    assert_eq!(m.host().anon_trees().nr_merged(), 1);
    c.store(page(1), 8).expect("store");
    assert_eq!((c.load(page(1)), p.load(page(1)), q.load(page(1))), (Ok(8), Ok(7), Ok(7)));
    sound(&m, &[&p, &c, &q]);
    // Again, when the first of its spaces is gone.
    p.exit();
    let own = m.host().memmap().folio(new).grab::<Get>(1).expect("room");
    m.host().migrate(&own).expect("nobody holds it");
    drop(own);
    assert_ne!(pfn_at(&c, 0), new);
    assert_eq!((found(&m, pfn_at(&c, 0)), pfn_at(&q, 0)), (4, pfn_at(&c, 0)));
    sound(&m, &[&c, &q]);
    c.exit();
    q.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Rules: MIGR-01, MIGR-03.
#[test]
fn a_merged_page_that_somebody_holds_stays() {
    let m = machine();
    let p = filled(&m, 4);
    let mut ksm = Ksm::new();
    passes(&m, &mut ksm, &[&p], 2);
    let one = pfn_at(&p, 0);
    let get = p.get(page(2), 1, GupFlags::empty()).expect("held");
    let own = m.host().memmap().folio(one).grab::<Get>(1).expect("room");
    assert_eq!(m.host().migrate(&own), Err(MigrationError::Busy));
    drop(own);
    assert!((0..4).all(|i| pfn_at(&p, i) == one));
    m.settle();
    assert_eq!(audit(&m, [&p], [&get]), []);
    assert_eq!((found(&m, one), m.host().anon_trees().nr_merged()), (4, 1));
    drop(get);
    // Where it could not go to swap it is in the swap cache, and mapped by nobody.
    m.host().swap().add::<A>(16).expect("room");
    m.host().swap().fail_write_after(Some(0));
    m.host().reclaim([&p], "16K swappiness=max").ok();
    let slot = m.host().swap().slots().in_use().next().expect("one").slot;
    let cached = || m.host().swap().slots().state(slot).and_then(|s| s.cached).expect("cached");
    assert_eq!(cached(), one);
    let own = m.host().memmap().folio(one).grab::<Get>(1).expect("room");
    assert!(!own.folio().is_mapped());
    m.host().migrate(&own).expect("nobody holds it");
    drop(own);
    assert_ne!(cached(), one);
    (0..4).for_each(|i| assert_eq!(p.load(page(i)), Ok(7)));
    assert_eq!((merged(&m, &p, 4).len(), found(&m, pfn_at(&p, 0))), (4, 4));
    sound(&m, &[&p]);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Rules: KSM-02, S-KS2.
#[test]
fn unmerging_passes_holes_and_obeys_no_rights() {
    let m = machine();
    let p = filled(&m, 12);
    passes(&m, &mut Ksm::new(), &[&p], 2);
    assert_eq!(merged(&m, &p, 12).len(), 12);
    p.munmap(pages(3, 2)).expect("munmap");
    p.mprotect(pages(6, 2), Rights::empty()).expect("mprotect");
    p.uffd_register(pages(9, 2), mm_map::UffdMode::WP).expect("registered");
    p.uffd_wp(pages(9, 2), mm_map::WpChange::Protect).expect("protected");
    let hole = p.madvise(pages(0, 12), Advice::Unmergeable);
    assert_eq!(hole.map_err(|e| e.errno()), Err("ENOMEM"), "and everything else is done");
    assert_eq!(merged(&m, &p, 12), [0u64; 0]);
    sound(&m, &[&p]);
    p.mprotect(pages(6, 2), Rights::READ).expect("mprotect");
    for i in (0..12).filter(|i| !matches!(i, 3 | 4)) {
        assert_eq!(p.load(page(i)), Ok(7), "page {i}");
    }
    passes(&m, &mut Ksm::new(), &[&p], 3);
    assert_eq!(merged(&m, &p, 12), [0u64; 0], "not mergeable any more");
}

/// Rules: KSM-01, FOLIO-56.
#[test]
fn pages_of_large_folios_are_merged_when_the_folio_is_split() {
    let m = machine();
    m.host().set_policy(|p| {
        let thp = p.fault.thp;
        p.fault.thp = thp.with_global(ThpMode::Never).with_order(2, OrderMode::Always);
    });
    let p = filled(&m, 8);
    assert!(m.host().memmap().folio(pfn_at(&p, 0)).is_large());
    passes(&m, &mut Ksm::new(), &[&p], 2);
    assert_eq!(merged(&m, &p, 8).len(), 8);
    sound(&m, &[&p]);
    // Content that changes from pass to pass is left alone.
    let q = filled(&m, 4);
    let mut ksm = Ksm::new();
    for round in 0..4 {
        for i in 0..4 {
            q.store(page(i), 100 + round).expect("store");
        }
        passes(&m, &mut ksm, &[&q], 1);
        assert_eq!(merged(&m, &q, 4), [0u64; 0]);
    }
    q.exit();
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}
