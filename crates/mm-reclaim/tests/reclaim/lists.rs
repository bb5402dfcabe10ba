//! Lists of folios.

use crate::common::*;
use mm_arch::Pfn;
use mm_arch::model::ModelWord;
use mm_folio::{Folio, FolioFlags, FolioSource, Get};
use mm_reclaim::{Lru, LruList, Passed, ReclaimPlatform};
use mm_sync::DefaultLock;
use mm_vma::{BackingKind, Platform};

type A = ModelWord<32>;

/// Isolates the oldest that are not passed over, and puts them back.
fn isolate_behind<'m>(
    m: &'m M<A>,
    list: LruList,
    nr: u64,
    passed: &mut Passed<'m, M<A>>,
    wanted: &dyn Fn(Pfn) -> bool,
) -> (u64, Vec<Pfn>) {
    let mut out = Vec::new();
    let wanted = &mut |folio: Folio<'_, M<A>>| wanted(folio.head());
    let got = m.lru().isolate(m.memmap(), list, nr, passed, wanted, &mut |own| out.push(own));
    out.iter().for_each(|own| own.folio().enlist());
    (got, out.iter().map(|own| own.folio().head()).collect())
}
fn isolate(m: &M<A>, list: LruList, nr: u64) -> (u64, Vec<Pfn>) {
    isolate_behind(m, list, nr, &mut Passed::default(), &|_| true)
}
fn listed<'o>(o: &'o Object<A>, first: u64, order: u32, extra: FolioFlags) -> Folio<'o, M<A>> {
    let folio = o.add(first, order).expect("memory");
    folio.set_flag(extra);
    folio.enlist();
    folio
}

/// Rules: LRU-01, FOLIO-43.
#[test]
fn flags_say_which_list() {
    use FolioFlags as F;
    for (flags, list) in [
        (F::empty(), LruList::InactiveFile),
        (F::ACTIVE, LruList::ActiveFile),
        (F::SWAPBACKED, LruList::InactiveAnon),
        (F::SWAPBACKED | F::ACTIVE, LruList::ActiveAnon),
        (F::SWAPBACKED | F::UNEVICTABLE, LruList::Unevictable),
        (F::MLOCKED, LruList::Unevictable),
    ] {
        assert_eq!(LruList::of(flags), list);
    }
}

/// Rules: LRU-01, RECL-13.
#[test]
fn the_oldest_come_first_and_pages_count() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    let heads: Vec<_> = (0..4).map(|k| listed(&o, k * 16, 4, FolioFlags::empty()).head()).collect();
    let active = listed(&o, 64, 4, FolioFlags::ACTIVE).head();
    assert_eq!(m.lru().heads(LruList::InactiveFile), heads);
    assert_eq!(m.lru().heads(LruList::ActiveFile), [active]);
    assert_eq!(m.lru().nr_pages(LruList::InactiveFile), 64);
    // Two folios are 32 pages; what is put back is the youngest.
    assert_eq!(isolate(&m, LruList::InactiveFile, 32), (32, heads[..2].to_vec()));
    assert_eq!(isolate(&m, LruList::InactiveFile, 1), (16, vec![heads[2]]));
    let order = [heads[3], heads[0], heads[1], heads[2]];
    assert_eq!(m.lru().heads(LruList::InactiveFile), order);
    assert_eq!(isolate(&m, LruList::InactiveFile, 1000).0, 64, "each of them once");
    finish_all(&m, vec![], vec![o]);
}

/// Rules: RECL-13.
#[test]
fn what_is_passed_over_keeps_its_place() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    let heads: Vec<_> = (0..6).map(|k| listed(&o, k * 4, 2, FolioFlags::empty()).head()).collect();
    let mut passed = Passed::default();
    let even = |head: Pfn| ((head.get() - heads[0].get()) / 4).is_multiple_of(2);
    let list = LruList::InactiveFile;
    assert_eq!(isolate_behind(&m, list, 4, &mut passed, &even), (4, vec![heads[0]]));
    assert_eq!(isolate_behind(&m, list, 4, &mut passed, &even), (4, vec![heads[2]]));
    // The next two, and those that were put back behind them.
    let all = [heads[4], heads[0], heads[2]];
    assert_eq!(isolate_behind(&m, list, 100, &mut passed, &even), (12, all.to_vec()));
    let order: Vec<_> = [1, 3, 5].map(|k| heads[k]).into_iter().chain(all).collect();
    assert_eq!(m.lru().heads(list), order);
    // The folio that was passed over last is gone: from the oldest on again.
    assert!(m.lru().isolate_one(m.memmap().folio(heads[5])));
    assert_eq!(isolate_behind(&m, list, 4, &mut passed, &|_| true), (4, vec![heads[1]]));
    drop(passed);
    finish_all(&m, vec![], vec![o]);
}

/// Rules: FOLIO-08, FOLIO-43, LRU-02.
#[test]
fn a_scan_moves_and_drops_what_does_not_belong() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    let none = FolioFlags::empty();
    let folios: Vec<_> = (0..5).map(|k| listed(&o, k * 4, 2, none)).collect();
    // Used meanwhile; isolated by somebody whose link is not gone yet; freed; split just now.
    folios[0].set_flag(FolioFlags::ACTIVE);
    folios[1].clear_flag(FolioFlags::LRU);
    let own = folios[2].grab::<Get>(1).expect("fits");
    assert!(o.cache().remove(&folios[2].lock()));
    drop(own);
    assert_eq!(m.lru().nr_pages(LruList::InactiveFile), 16);
    assert!(folios[3].freeze(4));
    assert_eq!(isolate(&m, LruList::InactiveFile, 100), (4, vec![folios[4].head()]));
    folios[3].unfreeze(4);
    assert_eq!(m.lru().heads(LruList::ActiveFile), [folios[0].head()]);
    let left = [folios[3].head(), folios[4].head()];
    assert_eq!(m.lru().heads(LruList::InactiveFile), left);
    assert_eq!(isolate(&m, LruList::InactiveFile, 100).0, 8);
    finish_all(&m, vec![], vec![o]);
}

/// Rules: FOLIO-43.
#[test]
fn a_link_that_comes_late_does_no_harm() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    let folio = listed(&o, 0, 2, FolioFlags::empty());
    assert!(m.lru().isolate_one(folio));
    // The second step of who put it on the list, behind the isolation.
    m.memmap().source().list(folio.head(), 2, folio.flags());
    assert_eq!(isolate(&m, LruList::InactiveFile, 100).0, 0);
    assert_eq!(m.lru().nr_pages(LruList::InactiveFile), 0);
    m.memmap().source().list(folio.head(), 2, folio.flags());
    folio.enlist();
    assert_eq!(isolate(&m, LruList::InactiveFile, 100).0, 4);
    finish_all(&m, vec![], vec![o]);
    assert_eq!(m.lru().nr_pages(LruList::InactiveFile), 0);
}

/// Rules: FOLIO-43.
#[test]
fn one_of_two_isolates() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    let folio = listed(&o, 0, 2, FolioFlags::empty());
    assert!(m.lru().isolate_one(folio) && !m.lru().isolate_one(folio));
    assert_eq!(isolate(&m, LruList::InactiveFile, 100).0, 0);
    finish_all(&m, vec![], vec![o]);
}

/// Rules: RMAP-06, FOLIO-40.
#[test]
fn flags_that_change_move_a_folio() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    let folio = listed(&o, 0, 2, FolioFlags::SWAPBACKED);
    let pages = || LruList::ALL.map(|list| m.lru().nr_pages(list));
    assert_eq!(pages(), [4, 0, 0, 0, 0]);
    folio.mlock();
    assert_eq!(pages(), [0, 0, 0, 0, 4]);
    folio.munlock();
    assert_eq!(pages(), [4, 0, 0, 0, 0]);
    folio.clear_flag(FolioFlags::SWAPBACKED);
    folio.relist();
    assert_eq!(pages(), [0, 0, 4, 0, 0]);
    assert!(m.lru().isolate_one(folio));
    folio.mlock();
    assert_eq!(pages(), [0; 5], "isolated: whoever has it puts it back");
    finish_all(&m, vec![], vec![o]);
}

/// Rules: FOLIO-54, LRU-01.
#[test]
fn parts_of_a_split_folio_are_where_the_whole_was() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    for is_listed in [true, false] {
        let folio = o.add(0, 2).expect("memory");
        if is_listed {
            folio.enlist();
        }
        let own = folio.grab::<Get>(1).expect("fits");
        let (own, locked, done) = o.cache().split(own, folio.lock(), 0, 0);
        assert!(done);
        drop((own, locked));
        let links = if is_listed { 4 } else { 0 };
        assert_eq!(m.lru().heads(LruList::InactiveFile).len(), links);
        assert_eq!(m.lru().nr_pages(LruList::InactiveFile), links as u64);
        for page in 0..4 {
            let run = o.cache().get(page).expect("there");
            let own = m.memmap().adopt_run::<Get>(run);
            assert!(o.cache().remove(&own.folio().lock()));
        }
    }
    finish_all(&m, vec![], vec![o]);
}

/// Not the link of a frame whose number ends with the same 32 bits.
#[test]
#[should_panic(expected = "index out of bounds")]
fn a_frame_that_the_lists_are_not_for_has_no_link() {
    let lru = Lru::<DefaultLock>::new(Pfn::new(16), 4).expect("memory");
    lru.list(Pfn::new(17 + (1 << 32)), 0, FolioFlags::LRU);
}
