//! Collapse on a machine with CPUs that cache.

use crate::common::*;
use mm_arch::{Entry, Level};
use mm_fault::ShmemMode;
use mm_map::{CollapseError, UffdMode};
use mm_pgtable::LockedEntry;
use mm_sim::*;
use mm_vma::{Backing, Platform, RssKind, VmaFlags};

fn machine() -> M {
    machine_of(64)
}
fn filled(m: &M, n: u64) -> P {
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, n), RW).expect("mmap");
    for i in 0..n {
        p.store(page(i), 40 + i).expect("store");
    }
    p
}
/// The order of the folio that page `i` belongs to.
fn order_at(m: &M, p: &P, i: u64) -> u32 {
    let vmas = p.mm().read();
    let pfn = match p.mm().tables().lock_entry(vmas.stay(), page(i)) {
        LockedEntry::Table(t) => t.get(t.index_of(page(i))).pfn(Level::Pte),
        LockedEntry::Huge(pmd) => pmd.entry().pfn(Level::Pmd),
        LockedEntry::Hole => panic!("nothing at {i}"),
    };
    m.host().memmap().folio(pfn).order()
}

/// Rules: MM-087, COLL-02, INV-9.
#[test]
fn no_cpu_goes_on_by_a_table_that_was_cut_off() {
    for dropped in [false, true] {
        let m = machine();
        let mut p = filled(&m, 512);
        // Both CPUs know the way.
        p.run_on(1);
        for i in (0..512).step_by(64) {
            assert_eq!(p.load(page(i)), Ok(40 + i));
        }
        if dropped {
            m.host().cpus().plant(Plant::DROP_RANGE_FLUSHES);
        }
        p.collapse(pages(0, 512)).expect("collapsed");
        m.settle();
        assert_eq!(audit(&m, [&p], []).is_empty(), !dropped);
        if dropped {
            continue;
        }
        for cpu in [1, 0] {
            p.run_on(cpu);
            for i in 0..512 {
                assert_eq!(p.load(page(i)), Ok(40 + i));
            }
            p.store(page(7), 47).expect("store");
        }
        m.settle();
        assert_eq!(audit(&m, [&p], []), []);
        p.exit();
        m.settle();
        assert_eq!(leaks(&m), []);
    }
}

/// Rules: COLL-01, S-KH1.
#[test]
fn every_whole_block_of_a_range_is_collapsed() {
    let m = machine();
    let p = filled(&m, 4 * 512);
    p.collapse(pages(100, 3 * 512)).expect("two whole blocks");
    let huge = |i: u64| order_at(&m, &p, i);
    assert_eq!([0, 512, 1024, 1536].map(huge), [0, 9, 9, 0]);
    p.collapse_to(pages(0, 64), 4).expect("four of 64K");
    assert_eq!([0, 16, 48, 64].map(huge), [4, 4, 4, 0]);
    for i in 0..4 * 512 {
        assert_eq!(p.load(page(i)), Ok(40 + i));
    }
    let none = p.collapse(pages(1, 511));
    assert_eq!(none, Err(CollapseError::NotAllowed(page(1))));
    m.settle();
    assert_eq!(audit(&m, [&p], []), []);
    p.exit();
}

/// Whoever waits for missing pages goes on hearing of them, even if the owner asks for large
/// folios.
///
/// Rules: COLL-01, UFFD-01.
#[test]
fn what_userfaultfd_is_asked_for_is_not_filled() {
    let m = machine();
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 512), RW).expect("mmap");
    p.uffd_register(pages(0, 512), UffdMode::MISSING).expect("registered");
    for i in (0..512).filter(|i| *i != 7) {
        p.store(page(i), 1).expect("store");
    }
    p.take_user_faults();
    assert!(matches!(p.collapse(pages(0, 512)), Err(CollapseError::TooManyNone(_))));
    p.collapse_to(pages(8, 8), 3).expect("all of it is there");
    assert_eq!(p.load(page(7)), Ok(0));
    assert_eq!(p.take_user_faults().len(), 1);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Rules: COLL-01, COLL-04, S-KH5.
#[test]
fn pages_in_swap_are_brought_in_first() {
    let m = machine();
    m.host().swap().add::<A>(4096).expect("memory");
    let p = filled(&m, 512);
    p.madvise_pageout(pages(3, 1)).expect("paged out");
    p.madvise_pageout(pages(200, 20)).expect("paged out");
    assert_eq!(p.mm().counters().get(RssKind::Swap), 21);
    p.collapse(pages(0, 512)).expect("collapsed");
    assert_eq!(order_at(&m, &p, 0), 9);
    assert_eq!(p.mm().counters().get(RssKind::Swap), 0);
    for i in 0..512 {
        assert_eq!(p.load(page(i)), Ok(40 + i));
    }
    m.settle();
    assert_eq!(audit(&m, [&p], []), []);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// What an object has in swap is no hole, and a hole that userfaultfd is asked for stays one.
///
/// Rules: COLL-01, COLL-04, UFFD-01.
#[test]
fn objects_are_collapsed_with_what_they_have_in_swap() {
    let m = machine();
    m.host().swap().add::<A>(4096).expect("memory");
    let o = Shmem::new(m.host(), ShmemKind::Mounted(ShmemMode::Never), 0).expect("memory");
    o.write(0, 14, &|index, _| 0xf00 + index).expect("written");
    o.truncate(32);
    let p = m.spawn().expect("process");
    p.mmap_object(pages(0, 32), RW | VmaFlags::SHARED, o.clone(), 0).expect("mapped");
    (0..14).for_each(|i| assert_eq!(p.load(page(i)), Ok(0xf00 + i)));
    p.madvise_pageout(pages(3, 2)).expect("mapped");
    assert!(o.is_swapped(3) && o.is_swapped(4));
    p.uffd_register(pages(0, 8), UffdMode::MISSING).expect("registered");
    p.collapse_to(pages(0, 8), 3).expect("nothing of it is missing");
    p.madvise_pageout(pages(9, 1)).expect("mapped");
    m.host().swap().fail_read_after(Some(0));
    assert!(p.collapse_to(pages(8, 8), 3).is_err(), "a page cannot be had");
    assert_eq!(o.read(9, 0), Err(FileError::Io));
    o.punch(9, 1);
    p.uffd_register(pages(16, 1), UffdMode::MISSING).expect("registered");
    o.write(17, 7, &|index, _| 0xf00 + index).expect("written");
    assert!(matches!(p.collapse_to(pages(16, 8), 3), Err(CollapseError::TooManyNone(_))));
    assert!(o.is_missing(16));
    p.collapse_to(pages(8, 8), 3).expect("holes are no matter here");
    let words: Vec<_> = (0..16).map(|i| p.load(page(i)).expect("a page")).collect();
    let expected = |i: u64| if i == 9 || i > 13 { 0 } else { 0xf00 + i };
    assert_eq!(words, (0..16).map(expected).collect::<Vec<_>>());
    assert_eq!((order_at(&m, &p, 0), order_at(&m, &p, 8)), (3, 3));
    m.settle();
    assert_eq!(audit(&m, [&p], []), []);
    drop((p, o));
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Rules: COLL-04, S-KH9.
#[test]
fn shared_memory_is_collapsed_in_its_object() {
    let m = machine();
    let file = Shmem::new(m.host(), ShmemKind::Mounted(ShmemMode::Never), 0).expect("memory");
    file.write(0, 300, &|index, _| 0xf00 + index).expect("written");
    file.truncate(512);
    let (p, q) = (m.spawn().expect("process"), m.spawn().expect("process"));
    p.mmap_object(pages(0, 512), RW | VmaFlags::SHARED, file.clone(), 0).expect("mapped");
    q.mmap_object(pages(1, 256), RW | VmaFlags::SHARED, file.clone(), 0).expect("mapped");
    for i in 0..256 {
        assert_eq!((p.load(page(i)), q.load(page(1 + i))), (Ok(0xf00 + i), Ok(0xf00 + i)));
    }
    q.store(page(5), 99).expect("store");
    // A pin keeps the page where it is.
    let pin = p.pin(page(9), 1, mm_gup::GupFlags::WRITE).expect("pinned");
    assert_eq!(p.collapse(pages(0, 512)).map_err(|e| e.errno()), Err("EAGAIN"));
    m.settle();
    assert_eq!(audit(&m, [&p, &q], [&pin]), []);
    drop(pin);
    p.collapse(pages(0, 512)).expect("collapsed");
    assert_eq!(order_at(&m, &p, 0), 9);
    assert_eq!(p.mm().counters().get(RssKind::Shmem), 512, "mapped by a leaf");
    for i in 0..512 {
        let expected = match i {
            4 => 99,
            0..300 => 0xf00 + i,
            _ => 0,
        };
        assert_eq!((p.load(page(i)), file.peek(i, 0)), (Ok(expected), expected), "page {i}");
        if i < 256 {
            assert_eq!(q.load(page(1 + i)), Ok(expected));
        }
    }
    m.settle();
    assert_eq!(audit(&m, [&p, &q], []), []);
    p.exit();
    q.exit();
    drop(file);
    m.settle();
    assert_eq!(leaks(&m), []);
}
