//! Reclaim on request, and the balance of the lists.

use crate::common::*;
use mm_arch::Entry;
use mm_arch::model::ModelWord;
use mm_folio::{Folio, FolioFlags, Get, MmId, Pin};
use mm_pgtable::TableSpace;
use mm_reclaim::model::drained;
use mm_reclaim::{
    Balance, LruList, ReclaimError, ReclaimOf, ReclaimPlatform, ReclaimRequest, Swappiness,
    UnmapPolicy, reclaim, shrink_lists,
};
use mm_vma::{BackingKind, Platform, RssKind, SwapSpace, VmaFlags};

type A = ModelWord<32>;

const POLICY: UnmapPolicy = UnmapPolicy::All;
const PAGE: u64 = 4096;

fn request(pages: u64, swappiness: Swappiness) -> ReclaimRequest {
    ReclaimRequest { bytes: pages * PAGE, swappiness }
}
fn of_everybody(m: &M<A>, pages: u64, swappiness: Swappiness) -> Result<u64, ReclaimError> {
    reclaim(POLICY, m, ReclaimOf::Everybody, request(pages, swappiness))
}
fn of_group(m: &M<A>, spaces: &[&Space<A>], pages: u64) -> Result<u64, ReclaimError> {
    let ids: Vec<_> = spaces.iter().map(|mm| mm.id()).collect();
    let group = |mm: MmId| ids.contains(&mm);
    reclaim(POLICY, m, ReclaimOf::Group(&group), request(pages, Swappiness::Weight(100)))
}
/// Old, dirty memory in folios of four pages.
fn fill(mm: &Space<A>, first: u64, nr: u64) {
    for page in (first..first + nr).step_by(4) {
        let folio = map_folio(mm, page, 2);
        folio.set_flag(FolioFlags::SWAPBACKED | FolioFlags::UPTODATE);
        (page..page + 4).for_each(|k| edit::<A>(mm, k, |e| e.mkold()));
        folio.enlist();
    }
}
/// Old, clean pages of a file, from page 0 of it on, mapped at `page`.
fn show_old(mm: &Space<A>, page: u64, nr: u64, o: &Object<A>) {
    show(mm, page, nr, o, 0);
    for first in (0..nr).step_by(4) {
        let folio = o.cache().get(first).map_or_else(
            || {
                let folio = o.add(first, 2).expect("memory");
                folio.enlist();
                folio
            },
            |run| {
                let own = mm.platform().memmap().adopt_run::<Get>(run);
                mm.platform().memmap().folio(own.folio().head())
            },
        );
        map_pages(mm, page + first, folio, 0, 4);
        (page + first..page + first + 4).for_each(|k| edit::<A>(mm, k, |e| e.mkold()));
    }
}
fn on(m: &M<A>, list: LruList) -> u64 {
    m.lru().nr_pages(list)
}

/// Rules: PROACT-01, S-RC16.
#[test]
fn what_is_written_is_bytes_and_swappiness() {
    let weight = Swappiness::Weight;
    let parse = |s: &str| s.parse::<ReclaimRequest>().map(|r| (r.bytes, r.swappiness));
    for (s, bytes, swappiness) in [
        ("8G", 8 << 30, weight(60)),
        ("1M swappiness=max", 1 << 20, Swappiness::AnonOnly),
        ("4096", 4096, weight(60)),
        ("12k swappiness=0", 12 << 10, weight(0)),
        (" 1m  swappiness=200 \n", 1 << 20, weight(200)),
        ("0", 0, weight(60)),
    ] {
        assert_eq!(parse(s), Ok((bytes, swappiness)), "{s}");
    }
    for s in [
        "",
        "x",
        "swappiness=1",
        "1 foo=1",
        "1 swappiness",
        "1 swappiness=",
        "1 swappiness=201",
        "1 swappiness=-1",
        "1 swappiness=Max",
        "1 swappiness=1x",
        "1X",
        "K",
        "1KK",
        "+1",
        "-1",
        "1.5M",
        "1M2",
        "1M 2M",
        "99999999999G",
        "18446744073709551616",
    ] {
        assert_eq!(parse(s), Err(ReclaimError::Invalid), "{s}");
    }
    assert_eq!(ReclaimError::Invalid.errno(), "EINVAL");
}

/// Rules: PROACT-01, PROACT-03, S-RC16.
#[test]
fn bytes_are_pages_and_more_may_go() {
    let m = machine_with_swap::<A>(255);
    let p = space(&m, 128);
    fill(&p, 0, 128);
    // Less than a page is nothing.
    let less = ReclaimRequest { bytes: PAGE - 1, swappiness: Swappiness::AnonOnly };
    assert_eq!(reclaim(POLICY, &m, ReclaimOf::Everybody, less), Ok(0));
    assert_eq!(p.counters().get(RssKind::Anon), 128);
    // One page is at least a folio, and not all there is.
    let got = of_everybody(&m, 1, Swappiness::AnonOnly).expect("there is some");
    assert!((4..=32).contains(&got), "{got}");
    assert_eq!(p.counters().get(RssKind::Anon), 128 - got);
    let more = of_everybody(&m, 64, Swappiness::AnonOnly).expect("there is some");
    assert!((64..=96).contains(&more), "{more}");
    assert_eq!(p.counters().get(RssKind::Swap), got + more);
    audit(&m, &[&p]);
    finish(&m, vec![p]);
}

/// Rules: RECL-13, PROACT-03. Where neighbours go together more are looked at behind one flush,
/// both of small folios and of large ones; no more than that goes, and the weights hold.
#[test]
fn much_is_looked_at_at_once_if_much_is_wanted() {
    let passes = [UnmapPolicy::File, UnmapPolicy::All].map(|policy| {
        let m = machine_with_swap::<A>(255);
        let o = known_object::<A>(&m, BackingKind::File);
        let p = empty_space(&m);
        show_old(&p, 0, 960, &o);
        let (of, swappiness) = (ReclaimOf::Everybody, Swappiness::Weight(0));
        let made = *m.tlb().made.lock();
        let got = shrink_lists(&Balance { policy, of, swappiness }, &m, 640);
        assert!((640..640 + 32).contains(&got), "{policy:?}: {got}");
        assert_eq!(o.cache().folios().len() as u64, (960 - got) / 4);
        let made = *m.tlb().made.lock() - made;
        finish_all(&m, vec![p], vec![o]);
        made
    });
    let [one_by_one, together] = passes;
    assert!(one_by_one >= 640 / 32 && together < one_by_one, "{passes:?}");

    let m = machine_with_swap::<A>(255);
    let o = known_object::<A>(&m, BackingKind::File);
    let p = space(&m, 240);
    fill(&p, 0, 240);
    show_old(&p, 240, 480, &o);
    let (of, swappiness) = (ReclaimOf::Everybody, Swappiness::Weight(100));
    let got = shrink_lists(&Balance { policy: POLICY, of, swappiness }, &m, 256);
    let anon = p.counters().get(RssKind::Swap);
    assert!((256..256 + 64).contains(&got), "{got}");
    assert!(anon > 32 && anon < got, "{anon} of {got}");
    finish_all(&m, vec![p], vec![o]);
}

/// Rules: PROACT-01, LRU-01.
#[test]
fn swappiness_says_what_goes() {
    // (weight, swap slots) -> whether files and whether anonymous memory may go.
    for (swappiness, slots, file, anon) in [
        (Swappiness::Weight(0), 255, true, false),
        (Swappiness::Weight(200), 255, false, true),
        (Swappiness::AnonOnly, 255, false, true),
        (Swappiness::Weight(100), 255, true, true),
        (Swappiness::Weight(100), 0, true, false),
        (Swappiness::Weight(200), 0, true, false),
        (Swappiness::AnonOnly, 0, false, false),
    ] {
        let m = machine_with_swap::<A>(slots);
        let o = known_object::<A>(&m, BackingKind::File);
        let p = space(&m, 64);
        fill(&p, 0, 64);
        show_old(&p, 64, 64, &o);
        let got = of_everybody(&m, 1000, swappiness);
        let expected = 64 * (u64::from(file) + u64::from(anon));
        assert_eq!(got, Err(ReclaimError::Exhausted(expected)), "{swappiness:?} {slots}");
        let left = |kind| p.counters().get(kind);
        assert_eq!(left(RssKind::File), if file { 0 } else { 64 }, "{swappiness:?}");
        assert_eq!(left(RssKind::Anon), if anon { 0 } else { 64 }, "{swappiness:?}");
        finish_all(&m, vec![p], vec![o]);
    }
}

/// Rules: PROACT-02, S-RC17.
#[test]
fn nothing_to_reclaim_ends_after_seventeen_attempts() {
    let m = machine_with_swap::<A>(255);
    let p = space(&m, 64);
    fill(&p, 0, 64);
    let pins: Vec<_> = (0..64)
        .step_by(4)
        .map(|k| m.memmap().folio(pte::<A>(&p, k).pfn(mm_arch::Level::Pte)))
        .map(|folio: Folio<'_, _>| folio.grab::<Pin>(1).expect("fits"))
        .collect();
    // Each attempt ends with a round that looks at everything.
    let asked = core::cell::Cell::new(0u64);
    let group = |_: MmId| {
        asked.set(asked.get() + 1);
        true
    };
    let all = request(64, Swappiness::AnonOnly);
    let one = Balance { policy: POLICY, of: ReclaimOf::Group(&group), swappiness: all.swappiness };
    assert_eq!(shrink_lists(&one, &m, 16), 0);
    let per_attempt = asked.replace(0);
    assert!(per_attempt > 0);
    let error = ReclaimError::Exhausted(0);
    assert_eq!(reclaim(POLICY, &m, ReclaimOf::Group(&group), all), Err(error));
    assert_eq!(asked.get(), 17 * per_attempt);
    assert_eq!((drained(&m), error.errno()), (1, "EAGAIN"));
    assert_eq!(p.counters().get(RssKind::Anon), 64);
    drop(pins);
    // None is missing from before.
    assert_eq!(reclaim(POLICY, &m, ReclaimOf::Group(&group), all), Ok(64));
    assert_eq!(drained(&m), 1);
    finish(&m, vec![p]);
}

/// Rules: PROACT-02.
#[test]
fn progress_does_not_refill_the_attempts() {
    let m = machine_with_swap::<A>(255);
    let p = space(&m, 64);
    fill(&p, 0, 64);
    let folios = (0..64).step_by(4).map(|k| pte::<A>(&p, k).pfn(mm_arch::Level::Pte));
    let pins: Vec<_> =
        folios.map(|pfn| m.memmap().try_grab::<Pin>(pfn, 1).expect("fits")).collect();
    let all = request(64, Swappiness::AnonOnly);
    let (asked, pins) = (core::cell::Cell::new(0u64), core::cell::RefCell::new(pins));
    let unpin_at = core::cell::Cell::new(u64::MAX);
    let group = |_: MmId| {
        asked.set(asked.get() + 1);
        if asked.get() == unpin_at.get() {
            pins.borrow_mut().pop();
        }
        true
    };
    let one = Balance { policy: POLICY, of: ReclaimOf::Group(&group), swappiness: all.swappiness };
    assert_eq!(shrink_lists(&one, &m, 16), 0);
    let per_attempt = asked.replace(0);
    // In the tenth attempt one of sixteen folios may go.
    unpin_at.set(10 * per_attempt);
    let got = reclaim(POLICY, &m, ReclaimOf::Group(&group), all);
    assert_eq!(got, Err(ReclaimError::Exhausted(4)));
    // 17 attempts that brought nothing, and one that did.
    assert!(asked.get() <= 18 * per_attempt, "{} of {per_attempt}", asked.get());
    drop(pins);
    finish(&m, vec![p]);
}

/// Rules: PROACT-02.
#[test]
fn a_quarter_is_reclaimed_at_a_time() {
    let m = machine_with_swap::<A>(255);
    let p = space(&m, 128);
    fill(&p, 0, 128);
    // A signal comes as soon as somebody looks.
    let group = |_: MmId| {
        m.interrupt().set_pending(true);
        true
    };
    let got = reclaim(POLICY, &m, ReclaimOf::Group(&group), request(128, Swappiness::AnonOnly));
    // What was begun is finished, which is less than as much again.
    assert!(matches!(got, Err(ReclaimError::Interrupted(32..64))), "{got:?}");
    finish(&m, vec![p]);
}

/// Rules: PROACT-02, S-RC18.
#[test]
fn a_signal_ends_it() {
    let m = machine_with_swap::<A>(255);
    let p = space(&m, 64);
    fill(&p, 0, 64);
    m.interrupt().set_pending(true);
    let error = of_everybody(&m, 64, Swappiness::AnonOnly).expect_err("a signal");
    assert_eq!((error, error.errno()), (ReclaimError::Interrupted(0), "EINTR"));
    assert_eq!((p.counters().get(RssKind::Anon), m.swap().slots().nr_free()), (64, 255));
    m.interrupt().set_pending(false);
    assert_eq!(of_everybody(&m, 64, Swappiness::AnonOnly), Ok(64));
    finish(&m, vec![p]);
}

/// Rules: PROACT-03.
#[test]
fn one_caller_at_a_time_reclaims_of_everybody() {
    let m = machine_with_swap::<A>(255);
    let p = space(&m, 64);
    fill(&p, 0, 64);
    let first = m.lru().whole().expect("nobody else");
    let error = of_everybody(&m, 4, Swappiness::AnonOnly).expect_err("somebody else does");
    assert_eq!((error, error.errno()), (ReclaimError::Busy, "EBUSY"));
    assert!(of_group(&m, &[&p], 4).is_ok(), "a group is not everybody");
    drop(first);
    assert!(of_everybody(&m, 4, Swappiness::AnonOnly).is_ok());
    finish(&m, vec![p]);
}

/// Rules: PROACT-02, REF-02.
#[test]
fn a_group_is_what_its_spaces_map() {
    let m = machine_with_swap::<A>(255);
    let o = known_object::<A>(&m, BackingKind::File);
    let (a, b) = (space(&m, 64), space(&m, 64));
    // In turn, so that strangers lie between.
    for first in (0..64).step_by(4) {
        fill(&a, first, 4);
        fill(&b, first, 4);
    }
    show_old(&b, 64, 16, &o);
    let (before, unmapped) = (m.lru().heads(LruList::InactiveAnon), o.add(64, 2).expect("memory"));
    unmapped.enlist();
    let b_has: Vec<_> =
        (0..64).step_by(4).map(|k| pte::<A>(&b, k).pfn(mm_arch::Level::Pte)).collect();
    assert_eq!(of_group(&m, &[&a], 64), Ok(64));
    assert_eq!((a.counters().resident(), a.counters().get(RssKind::Swap)), (0, 64));
    assert_eq!((b.counters().resident(), b.counters().get(RssKind::Swap)), (80, 0));
    // The others keep their order.
    assert_eq!(before.len(), 32);
    assert_eq!(m.lru().heads(LruList::InactiveAnon), b_has);
    assert_eq!(of_group(&m, &[&a], 4), Err(ReclaimError::Exhausted(0)));
    // Nor is a file of those who could map it.
    show(&a, 64, 16, &o, 0);
    assert_eq!(of_group(&m, &[&a], 8), Err(ReclaimError::Exhausted(0)));
    assert_eq!(b.counters().get(RssKind::File), 16);
    mm_map::munmap(&BATCHED, &mut a.write(), pages::<A>(64, 16)).expect("mapped");
    // A file that both map is of both.
    show_old(&a, 64, 8, &o);
    assert_eq!(of_group(&m, &[&a], 8), Ok(8));
    assert_eq!(b.counters().get(RssKind::File), 8);
    assert_eq!(on(&m, LruList::InactiveFile), 8 + 4);
    // Of a page that nothing maps nobody is the owner but everybody.
    assert_eq!(of_group(&m, &[&a, &b], 72), Ok(72));
    assert_eq!(o.cache().folios().len(), 1);
    assert_eq!(of_everybody(&m, 1, Swappiness::Weight(0)), Ok(4));
    assert_eq!(o.cache().folios().len(), 0);
    finish_all(&m, vec![a, b], vec![o]);
}

/// Rules: LRU-01, RECL-01, REF-02.
#[test]
fn use_in_the_group_protects_and_elsewhere_does_not() {
    let m = machine_with_swap::<A>(0);
    let o = known_object::<A>(&m, BackingKind::File);
    let (a, b) = (empty_space(&m), empty_space(&m));
    show_old(&a, 0, 8, &o);
    show_old(&b, 0, 8, &o);
    (0..8).for_each(|k| edit::<A>(&b, k, |e| e.mkyoung()));
    (0..4).for_each(|k| edit::<A>(&a, k, |e| e.mkyoung()));
    // One page: the folio that is not used goes, and the other gets its second chance.
    assert_eq!(of_group(&m, &[&a], 1), Ok(4));
    assert_eq!((a.counters().resident(), b.counters().resident()), (4, 4));
    assert!(o.cache().get(4).is_none());
    let used = m.memmap().adopt_run::<Get>(o.cache().get(0).expect("used"));
    assert!(used.folio().has(FolioFlags::REFERENCED | FolioFlags::LRU));
    assert_eq!(which::<A>(&a, 0, 4, |e| e.is_young()), []);
    assert_eq!(which::<A>(&b, 0, 4, |e| e.is_young()).len(), 4);
    drop(used);
    finish_all(&m, vec![a, b], vec![o]);
}

/// Rules: LRU-01, LRU-02.
#[test]
fn active_memory_becomes_inactive_where_there_is_too_much() {
    let m = machine_with_swap::<A>(0);
    let o = known_object::<A>(&m, BackingKind::File);
    let p = empty_space(&m);
    show_old(&p, 0, 64, &o);
    let folios: Vec<_> = (0..64u64)
        .step_by(4)
        .map(|k| m.memmap().folio(pte::<A>(&p, k).pfn(mm_arch::Level::Pte)))
        .collect();
    // Two of three parts are active.
    for folio in &folios[..11] {
        folio.set_flag(FolioFlags::ACTIVE);
        folio.relist();
    }
    assert_eq!((on(&m, LruList::InactiveFile), on(&m, LruList::ActiveFile)), (20, 44));
    // What is wanted is inactive; the oldest of the active ones make up for it.
    assert_eq!(of_everybody(&m, 4, Swappiness::Weight(0)).map(|n| n >= 4), Ok(true));
    assert!(on(&m, LruList::ActiveFile) <= 44 - 4);
    let aged = folios[0];
    assert!(!aged.has(FolioFlags::ACTIVE) && aged.has(FolioFlags::WORKINGSET | FolioFlags::LRU));
    finish_all(&m, vec![p], vec![o]);
}

/// Rules: LRU-01, RECL-01.
#[test]
fn code_that_runs_stays_active() {
    let m = machine_with_swap::<A>(0);
    let o = known_object::<A>(&m, BackingKind::File);
    let p = empty_space(&m);
    show_with(&p, 0, 8, &o, 0, SHARED | VmaFlags::EXEC | VmaFlags::MAYEXEC);
    for (k, used) in [(0, true), (4, false)] {
        let folio = o.add(k, 2).expect("memory");
        folio.set_flag(FolioFlags::ACTIVE);
        folio.enlist();
        map_pages(&p, k, folio, 0, 4);
        if !used {
            (k..k + 4).for_each(|k| edit::<A>(&p, k, |e| e.mkold()));
        }
    }
    // Both are looked at, as there is nothing inactive.
    assert_eq!(of_everybody(&m, 1, Swappiness::Weight(0)), Ok(4));
    assert_eq!(which::<A>(&p, 0, 8, |e| !e.is_none()), [0, 1, 2, 3]);
    assert_eq!((on(&m, LruList::InactiveFile), on(&m, LruList::ActiveFile)), (0, 4));
    finish_all(&m, vec![p], vec![o]);
}
