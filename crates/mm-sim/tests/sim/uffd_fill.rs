//! Userfaultfd puts pages where none are, and moves them.

use crate::common::*;
use mm_arch::{Entry, Level, Markers, NonPresent, Rights};
use mm_fault::{FaultSignal, OrderMode, ShmemMode, ThpMode, UserFault};
use mm_folio::Get;
use mm_gup::GupFlags;
use mm_map::{Advice, Comes, MapError, MoveHoles, UffdMode, WpChange};
use mm_pgtable::LockedEntry;
use mm_sim::*;
use mm_vma::{Backing, Platform, RssKind, VmaFlags};
use std::sync::Arc;

const SHARED: VmaFlags = RW.union(VmaFlags::SHARED);
const MISSING: UffdMode = UffdMode::MISSING;

type E = <A as mm_arch::Arch>::Entry;

#[track_caller]
fn sound(m: &M, processes: &[&P]) {
    m.settle();
    assert_eq!(audit(m, processes.iter().copied(), []), []);
}
fn pte(p: &P, i: u64) -> E {
    let vmas = p.mm().read();
    match p.mm().tables().lock_entry(vmas.stay(), page(i)) {
        LockedEntry::Table(t) => t.get(t.index_of(page(i))),
        _ => E::NONE,
    }
}
fn anonymous(m: &M, nr: u64, mode: UffdMode) -> P {
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, nr), RW).expect("mmap");
    p.uffd_register(pages(0, nr), mode).expect("registered");
    p
}
/// An object of `nr` pages, all of them holes, and a process with a mapping of it from page
/// 0 on.
fn shared(m: &M, nr: u64, mode: UffdMode) -> (Arc<Shmem<A, EventCounts>>, P) {
    let o = Shmem::new(m.host(), ShmemKind::Mounted(ShmemMode::Never), nr).expect("memory");
    let p = m.spawn().expect("process");
    p.mmap_object(pages(0, 2 * nr), SHARED, o.clone(), 0).expect("mmap");
    p.uffd_register(pages(0, 2 * nr), mode).expect("registered");
    (o, p)
}
fn errno(r: Result<(), MapError>) -> &'static str {
    r.err().map_or("none", MapError::errno)
}
fn word(k: u64, _: usize) -> u64 {
    300 + k
}
#[track_caller]
fn ends(m: M, processes: Vec<P>) {
    sound(&m, &processes.iter().collect::<Vec<_>>());
    drop(processes);
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Rules: UFFD-02, EXCL-01, INV-6.
#[test]
fn a_copy_comes_where_nothing_is() {
    let m = machine_of(16);
    let both = MISSING | UffdMode::WP | UffdMode::WP_UNPOPULATED;
    // Protected for nobody: an event that nobody asked for.
    let p = anonymous(&m, 4, MISSING);
    assert_eq!(errno(p.uffd_copy(pages(0, 1), Comes::Protected, word)), "EINVAL");
    p.exit();
    let p = anonymous(&m, 16, both);
    p.uffd_copy(pages(0, 4), Comes::Plain, word).expect("nothing is there");
    assert_eq!(p.mm().counters().get(RssKind::Anon), 4);
    assert!(pte(&p, 1).is_dirty() && pte(&p, 1).is_writable(Level::Pte));
    assert!(m.host().memmap().page_exclusive(pte(&p, 1).pfn(Level::Pte)));
    sound(&m, &[&p]);
    // Up to what is there.
    p.store(page(6), 1).expect("zero page, then a page");
    let there = p.uffd_copy(pages(4, 4), Comes::Plain, word);
    assert_eq!(there, Err(MapError::Exists(pages(6, 1))));
    assert_eq!((p.load(page(5)), p.load(page(6)), pte(&p, 7).is_none()), (Ok(301), Ok(1), true));
    // In the place of a marker, protected or not.
    p.uffd_wp(pages(8, 4), WpChange::Protect).expect("registered");
    assert_eq!(pte(&p, 8).nonpresent(Level::Pte), Some(NonPresent::Marker(Markers::UFFD_WP)));
    p.uffd_copy(pages(8, 2), Comes::Plain, word).expect("a marker only");
    p.uffd_copy(pages(10, 2), Comes::Protected, word).expect("a marker only");
    sound(&m, &[&p]);
    p.take_user_faults();
    for i in 8..12 {
        p.store(page(i), i).expect("stored");
    }
    let asked: Vec<_> = p.take_user_faults().iter().map(|e| (e.va, e.kind)).collect();
    assert_eq!(asked, [(page(10), UserFault::Wp), (page(11), UserFault::Wp)]);
    // Where the mapping allows no stores, neither does the page.
    p.mprotect(pages(12, 4), Rights::READ).expect("mapped");
    p.uffd_copy(pages(12, 4), Comes::Plain, word).expect("nothing is there");
    assert!(!pte(&p, 13).is_writable(Level::Pte));
    assert_eq!((p.load(page(13)), p.store(page(13), 1).is_err()), (Ok(301), true));
    // Without memory, without a registration.
    m.host().frames().fail_after(Some(0));
    p.madvise(pages(0, 2), Advice::DontNeed).expect("mapped");
    assert_eq!(errno(p.uffd_copy(pages(0, 2), Comes::Plain, word)), "ENOMEM");
    m.host().frames().fail_after(None);
    p.uffd_unregister(pages(0, 16)).expect("mapped");
    assert_eq!(errno(p.uffd_copy(pages(0, 2), Comes::Plain, word)), "ENOENT");
    ends(m, vec![p]);
}

/// Rules: UFFD-01, UFFD-02.
#[test]
fn a_copy_for_a_shared_mapping_is_the_objects() {
    let m = machine_of(16);
    let (o, p) = shared(&m, 8, MISSING);
    p.uffd_copy(pages(0, 2), Comes::Plain, word).expect("a hole");
    assert_eq!((o.peek(1, 0), p.mm().counters().get(RssKind::Shmem)), (301, 2));
    assert!(pte(&p, 1).is_writable(Level::Pte));
    p.store(page(1), 5).expect("stored");
    assert_eq!(o.peek(1, 0), 5);
    o.write(3, 1, &|_, _| 9).expect("memory");
    assert_eq!(errno(p.uffd_copy(pages(2, 2), Comes::Plain, word)), "EEXIST");
    assert_eq!((p.load(page(3)), o.peek(2, 0)), (Ok(9), 300));
    assert_eq!(errno(p.uffd_copy(pages(8, 1), Comes::Plain, word)), "EFAULT", "behind the end");
    assert_eq!(errno(p.uffd_zeropage(pages(8, 1))), "EFAULT");
    p.uffd_zeropage(pages(5, 1)).expect("a hole");
    assert!(o.cached(5).is_some_and(|run| {
        drop(m.host().memmap().adopt_run::<Get>(run));
        true
    }));
    // Who touches a hole asks; what the object has needs no question.
    p.take_user_faults();
    assert_eq!((p.load(page(4)), p.store(page(6), 7), p.load(page(3))), (Ok(0), Ok(()), Ok(9)));
    let asked: Vec<_> = p.take_user_faults().iter().map(|e| (e.va, e.kind)).collect();
    let missing = |write| UserFault::Missing { write };
    assert_eq!(asked, [(page(4), missing(false)), (page(6), missing(true))]);
    assert_eq!(o.peek(6, 0), 7);
    sound(&m, &[&p]);
    // A private mapping gets its own.
    let q = m.spawn().expect("process");
    q.mmap_object(pages(0, 16), RW, o.clone(), 0).expect("mmap");
    q.uffd_register(pages(0, 16), MISSING).expect("registered");
    q.uffd_copy(pages(0, 1), Comes::Plain, word).expect("nothing is mapped");
    assert_eq!((q.load(page(0)), o.peek(0, 0)), (Ok(300), 300));
    q.store(page(0), 4).expect("stored");
    assert_eq!((q.load(page(0)), o.peek(0, 0)), (Ok(4), 300));
    assert_eq!(q.mm().counters().get(RssKind::Anon), 1);
    assert_eq!(errno(q.uffd_copy(pages(9, 1), Comes::Plain, word)), "EFAULT");
    drop(o);
    ends(m, vec![p, q]);
}

/// Rules: UFFD-03. Rows: S-UF7.
#[test]
fn what_an_alias_filled_is_shown_page_by_page() {
    let m = machine_of(16);
    let (o, p) = shared(&m, 8, UffdMode::MINOR);
    let alias = m.spawn().expect("process");
    alias.mmap_object(pages(0, 8), SHARED, o.clone(), 0).expect("mmap");
    for i in 0..6 {
        alias.store(page(i), 50 + i).expect("stored");
    }
    assert_eq!((p.load(page(0)), p.store(page(1), 1), p.load(page(0))), (Ok(50), Ok(()), Ok(50)));
    let asked: Vec<_> = p.take_user_faults().iter().map(|e| (e.va, e.kind)).collect();
    let minor = |write| UserFault::Minor { write };
    assert_eq!(asked, [(page(0), minor(false)), (page(1), minor(true))]);
    assert_eq!(alias.load(page(1)), Ok(1));
    // Before anybody asks; nothing is made, and nothing behind the end.
    let frames = m.host().frames().nr_free();
    p.uffd_continue(pages(2, 2), Comes::Plain).expect("the object has them");
    assert_eq!(p.uffd_continue(pages(3, 1), Comes::Plain), Err(MapError::Exists(pages(3, 1))));
    assert_eq!(errno(p.uffd_continue(pages(6, 1), Comes::Plain)), "EFAULT");
    assert_eq!(errno(p.uffd_continue(pages(8, 1), Comes::Plain)), "EFAULT");
    assert_eq!((frames, o.is_swapped(6)), (m.host().frames().nr_free(), false));
    assert_eq!((p.load(page(2)), p.load(page(3)), p.take_user_faults()), (Ok(52), Ok(53), vec![]));
    // A hole is made as ever.
    assert_eq!((p.load(page(7)), p.take_user_faults()), (Ok(0), vec![]));
    let private = anonymous(&m, 4, MISSING);
    assert_eq!(errno(private.uffd_continue(pages(0, 1), Comes::Plain)), "EINVAL");
    assert_eq!(errno(private.uffd_register(pages(0, 4), UffdMode::MINOR)), "EINVAL");
    sound(&m, &[&p, &alias, &private]);
    // Its frame does not come back.
    let run = o.cached(4).expect("cached");
    let own = m.host().memmap().adopt_run::<Get>(run);
    own.folio().poison(run.first);
    assert_eq!(errno(p.uffd_continue(pages(4, 1), Comes::Plain)), "EIO");
}

/// Rules: UFFD-03, UFFD-05, UFFD-06. Rows: S-UF8.
#[test]
fn whoever_touches_poison_gets_a_signal() {
    let m = machine_of(16);
    let p = anonymous(&m, 8, MISSING | UffdMode::WP | UffdMode::WP_UNPOPULATED);
    p.store(page(0), 1).expect("stored");
    p.uffd_poison(pages(1, 2)).expect("nothing is there");
    assert_eq!(p.uffd_poison(pages(0, 1)), Err(MapError::Exists(pages(0, 1))));
    assert_eq!(p.uffd_poison(pages(2, 1)), Err(MapError::Exists(pages(2, 1))));
    p.uffd_wp(pages(3, 1), WpChange::Protect).expect("registered");
    assert_eq!(errno(p.uffd_poison(pages(3, 1))), "EEXIST", "not even a marker");
    assert_eq!(errno(p.uffd_copy(pages(1, 1), Comes::Plain, word)), "EEXIST");
    let lost = |i| AccessError::Signal(FaultSignal::Poisoned { va: page(i) });
    let child = p.fork().expect("fork");
    for of in [&p, &child] {
        assert_eq!((of.load(page(1)), of.store(page(2), 1)), (Err(lost(1)), Err(lost(2))));
        assert_eq!(of.load(page(0)), Ok(1));
    }
    sound(&m, &[&p, &child]);
    p.madvise(pages(1, 1), Advice::DontNeed).expect("mapped");
    p.take_user_faults();
    assert_eq!((p.load(page(1)), p.take_user_faults().len()), (Ok(0), 1), "it can be discarded");
    let (o, q) = shared(&m, 4, MISSING);
    q.uffd_poison(pages(1, 1)).expect("nothing is there");
    assert_eq!((q.load(page(1)), q.load(page(2))), (Err(lost(1)), Ok(0)));
    assert_eq!(errno(q.uffd_poison(pages(4, 1))), "EFAULT", "behind the end");
    drop(o);
    ends(m, vec![p, child, q]);
}

/// Rules: UFFD-07, RMAP-16. Rows: S-UF9.
#[test]
fn a_page_that_is_nobody_elses_moves() {
    let m = machine_of(16);
    let p = anonymous(&m, 1024, MISSING);
    p.uffd_copy(pages(0, 4), Comes::Plain, word).expect("nothing is there");
    let pfn = pte(&p, 1).pfn(Level::Pte);
    // To another table, and within one.
    p.uffd_move(page(600), pages(0, 2), MoveHoles::Refuse).expect("moved");
    p.uffd_move(page(601), pages(3, 1), MoveHoles::Refuse).expect_err("something is there");
    p.uffd_move(page(10), pages(600, 2), MoveHoles::Refuse).expect("and back");
    p.uffd_move(page(20), pages(10, 2), MoveHoles::Refuse).expect("moved");
    assert_eq!(pte(&p, 21).pfn(Level::Pte), pfn);
    assert!(pte(&p, 21).is_writable(Level::Pte) && pte(&p, 21).is_soft_dirty());
    assert!(pte(&p, 0).is_none() && pte(&p, 10).is_none());
    assert_eq!((p.load(page(20)), p.load(page(21))), (Ok(300), Ok(301)));
    assert_eq!(p.mm().counters().get(RssKind::Anon), 4);
    sound(&m, &[&p]);
    // A hole, the zero page.
    p.take_user_faults();
    let hole = p.uffd_move(page(30), pages(20, 4), MoveHoles::Refuse);
    assert_eq!((errno(hole), p.load(page(31))), ("ENOENT", Ok(301)));
    assert_eq!(p.load(page(20)), Ok(0));
    p.uffd_move(page(40), pages(20, 12), MoveHoles::Skip).expect("moved");
    assert!(pte(&p, 40).is_special() && pte(&p, 42).is_none());
    assert_eq!((p.load(page(50)), p.load(page(51))), (Ok(300), Ok(301)));
    // What is shared, or pinned.
    let child = p.fork().expect("fork");
    assert_eq!(errno(p.uffd_move(page(60), pages(50, 1), MoveHoles::Refuse)), "EBUSY");
    drop(child);
    p.store(page(50), 8).expect("stored");
    let pin = p.pin(page(50), 1, GupFlags::WRITE).expect("pinned");
    let before = pte(&p, 50);
    assert_eq!(errno(p.uffd_move(page(60), pages(50, 1), MoveHoles::Refuse)), "EBUSY");
    assert_eq!(pte(&p, 50), before);
    m.settle();
    assert_eq!(audit(&m, [&p], [&pin]), []);
    drop(pin);
    p.uffd_move(page(60), pages(50, 1), MoveHoles::Refuse).expect("moved");
    assert_eq!(p.load(page(60)), Ok(8));
    assert_eq!(errno(p.uffd_move(page(60), pages(51, 1), MoveHoles::Refuse)), "EEXIST");
    assert_eq!(errno(p.uffd_move(page(60), pages(61, 1), MoveHoles::Refuse)), "ENOENT");
    assert_eq!(errno(p.uffd_move(page(60), pages(59, 4), MoveHoles::Skip)), "EINVAL", "overlap");
    p.mprotect(pages(900, 4), Rights::READ).expect("mapped");
    assert_eq!(errno(p.uffd_move(page(900), pages(60, 1), MoveHoles::Skip)), "EINVAL");
    ends(m, vec![p]);
}

/// Rules: UFFD-07.
#[test]
fn large_folios_and_swapped_pages_move_page_by_page() {
    let m = machine_of(16);
    m.host().swap().add::<A>(64).expect("room");
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 1024), RW).expect("mmap");
    for order in [4u32, 9] {
        m.host().set_policy(|p| {
            let thp = p.fault.thp.with_global(ThpMode::Never);
            let thp = (0..=9).fold(thp, |thp, o| thp.with_order(o, OrderMode::Never));
            p.fault.thp = thp.with_order(order, OrderMode::Always);
        });
        (0..16).for_each(|i| p.store(page(i), 70 + i).expect("stored"));
        p.uffd_register(pages(0, 1024), MISSING).expect("registered");
        p.uffd_move(page(800), pages(5, 3), MoveHoles::Refuse).expect("split and moved");
        sound(&m, &[&p]);
        assert_eq!((p.load(page(801)), p.load(page(8))), (Ok(76), Ok(78)));
        assert!(pte(&p, 5).is_none());
        p.uffd_unregister(pages(0, 1024)).expect("mapped");
        p.madvise(pages(0, 1024), Advice::DontNeed).expect("mapped");
    }
    m.host().set_policy(|p| p.fault.thp = p.fault.thp.with_order(9, OrderMode::Never));
    p.uffd_register(pages(0, 1024), MISSING).expect("registered");
    p.uffd_copy(pages(0, 4), Comes::Plain, word).expect("nothing is there");
    // On the device, and in the cache for that the device failed.
    p.madvise_pageout(pages(0, 2)).expect("mapped");
    m.host().swap().fail_write_after(Some(0));
    p.madvise_pageout(pages(2, 1)).expect("mapped");
    p.uffd_move(page(700), pages(0, 3), MoveHoles::Refuse).expect("exclusive");
    sound(&m, &[&p]);
    for k in 0..3 {
        assert_eq!(p.load(page(700 + k)), Ok(300 + k));
        sound(&m, &[&p]);
    }
    p.madvise_pageout(pages(3, 1)).expect("mapped");
    let child = p.fork().expect("fork");
    assert_eq!(errno(p.uffd_move(page(0), pages(3, 1), MoveHoles::Refuse)), "EBUSY", "shared");
    assert_eq!((p.load(page(3)), child.load(page(3))), (Ok(303), Ok(303)));
    ends(m, vec![p, child]);
}

/// Rules: UFFD-05, UFFD-06, MPROT-05. Rows: S-UF3, S-UF10.
#[test]
fn what_is_protected_stays_so_without_its_pages() {
    let m = machine_of(16);
    m.host().swap().add::<A>(64).expect("room");
    m.host().set_policy(|p| p.fault.shmem = p.fault.shmem.with_order(4, ShmemMode::Always));
    let p = m.spawn().expect("process");
    p.mmap_shared(pages(0, 16), RW).expect("mmap");
    p.mmap_anon(pages(32, 4), RW).expect("mmap");
    for i in (0..16).chain(32..36) {
        p.store(page(i), 20 + i).expect("stored");
    }
    assert!(m.host().memmap().folio(pte(&p, 3).pfn(Level::Pte)).is_large());
    let mode = UffdMode::WP | UffdMode::WP_UNPOPULATED;
    for range in [pages(0, 16), pages(32, 4)] {
        p.uffd_register(range, mode).expect("registered");
        p.uffd_wp(range, WpChange::Protect).expect("registered");
        p.madvise_pageout(range).expect("mapped");
    }
    sound(&m, &[&p]);
    let marker = Some(NonPresent::Marker(Markers::UFFD_WP));
    assert!((0..16).all(|i| pte(&p, i).nonpresent(Level::Pte) == marker), "one for each page");
    assert!((32..36).all(|i| pte(&p, i).swap_slot().is_some() && pte(&p, i).swap_bits().uffd_wp));
    // Nobody watches for a child.
    let child = p.fork().expect("fork");
    assert!((0..16).all(|i| pte(&child, i).is_none()));
    assert!((32..36).all(|i| !pte(&child, i).swap_bits().uffd_wp));
    p.take_user_faults();
    for i in (0..16).chain(32..36) {
        assert_eq!(p.load(page(i)), Ok(20 + i));
        assert!(pte(&p, i).is_uffd_wp());
        p.store(page(i), 0x900 + i).expect("stored");
    }
    let asked: Vec<_> = p.take_user_faults().iter().map(|e| (e.va, e.kind)).collect();
    assert!(asked.iter().map(|e| e.0).eq((0..16).chain(32..36).map(page)), "{asked:?}");
    assert!(asked.iter().all(|e| e.1 == UserFault::Wp));
    assert_eq!((child.load(page(9)), child.load(page(33))), (Ok(0x909), Ok(53)));
    assert_eq!(child.take_user_faults(), []);
    ends(m, vec![p, child]);
}

/// A move tells which pages are a process's own: those that one store made so differ by policy.
///
/// Rules: UFFD-07, WREUSE-01.
#[test]
fn a_page_that_was_reused_beside_another_moves() {
    let lines = "thp 64kB madvise\n\
                 mmap p0 a 16 anon rw private\n\
                 mmap p0 b 16 anon rw private\n\
                 madvise p0 a hugepage\n\
                 write p0 a 1\n\
                 fork p1 p0\n\
                 exit p1\n\
                 write p0 a:3 2\n\
                 uffd p0 b register missing\n\
                 uffd p0 a:3 move b\n\
                 uffd p0 a:4 move b to=1\n";
    let busy = r#"{"line":11,"op":"uffd","p":"p0","err":"EBUSY"}"#.to_string();
    assert_eq!(printed_under(lines, Preset::Linux618), [busy]);
    assert_eq!(printed_under(lines, Preset::Series), [] as [&str; 0]);
}
