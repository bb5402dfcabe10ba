//! Rights, and what says that a page was stored to.

use super::*;
use mm_fault::FaultSignal;
use mm_map::{Comes, UffdMode};
use mm_sim::{AccessError, File};

const READ: VmaFlags = VmaFlags::READ;

fn segv(i: u64) -> Result<(), AccessError> {
    Err(AccessError::Signal(FaultSignal::Segv { va: page(i) }))
}

/// A file is told of the first store to a clean page; what is dirty is known already.
///
/// Rules: S-MP3, MPROT-03, WRITE-02.
#[test]
fn clean_pages_of_a_file_do_not_become_writable() {
    for preset in Preset::ALL {
        let m = machine_under(16, *preset);
        let p = m.spawn().expect("process");
        let f = File::new(m.host(), 8).expect("memory");
        p.mmap_object(pages(0, 8), RW | VmaFlags::SHARED, f.clone(), 0).expect("mmap");
        (0..8).for_each(|i| assert_eq!(p.load(page(i)), Ok(0)));
        (2..5).for_each(|i| p.store(page(i), i).expect("store"));
        p.mprotect(pages(0, 8), Rights::READ).expect("mprotect");
        assert!(writable(&p, 0..8).is_empty());
        p.mprotect(pages(0, 8), BOTH).expect("mprotect");
        assert_eq!(writable(&p, 0..8), [2, 3, 4]);
        p.take_faults();
        (0..8).for_each(|i| p.store(page(i), i).expect("store"));
        assert_eq!(faults(&p), 5);
        m.settle();
        assert_eq!(audit(&m, [&p], []), []);
    }
}

/// Rules: S-MP5, PTE-14.
#[test]
fn a_new_mapping_counts_as_stored_to() {
    let m = machine_under(16, Preset::Linux618);
    let p = m.spawn().expect("process");
    let tracked = || p.mm().read().find(page(0)).expect("mapped").flags();
    filled(&p, 0, 4, 100);
    p.clear_soft_dirty().expect("memory");
    assert!(!tracked().contains(VmaFlags::SOFTDIRTY));
    p.munmap(pages(0, 4)).expect("munmap");
    p.mmap_anon(pages(0, 4), RW).expect("mmap");
    assert!(tracked().contains(VmaFlags::SOFTDIRTY), "nobody has looked at it yet");
    p.clear_soft_dirty().expect("memory");
    assert!(!tracked().contains(VmaFlags::SOFTDIRTY));
}

/// Rules: S-PO1, S-PO2, S-PO3, S-PO4, MADV-07, POP-03.
#[test]
fn populating_asks_for_rights_and_finds_holes() {
    use mm_arch::AccessKind::{Read, Write};
    let m = machine_under(16, Preset::Linux618);
    let p = m.spawn().expect("process");
    let populate = |first, n, how| p.populate(pages(first, n), how).map_err(|e| e.errno());
    p.mmap_anon(pages(0, 8), READ).expect("mmap");
    assert_eq!((populate(0, 8, Read), populate(0, 8, Write)), (Ok(()), Err("EINVAL")));
    p.mmap_anon(pages(16, 8), VmaFlags::WRITE).expect("mmap");
    assert_eq!((populate(16, 8, Read), populate(16, 8, Write)), (Err("EINVAL"), Ok(())));
    p.mmap_anon(pages(32, 4), RW).expect("mmap");
    p.mmap_anon(pages(38, 4), RW).expect("mmap");
    for (first, n) in [(32, 10), (32, 6), (36, 6)] {
        for how in [Read, Write] {
            assert_eq!(populate(first, n, how), Err("ENOMEM"), "{first}+{n}");
        }
    }
    let soft_dirty = || entries_that(&p, 38..42, |_, e, _| e.is_soft_dirty());
    assert_eq!(soft_dirty().len(), 0, "a hole below them stops it");
    assert_eq!(populate(38, 4, Write), Ok(()));
    p.clear_soft_dirty().expect("memory");
    assert_eq!((populate(38, 4, Read), soft_dirty().len()), (Ok(()), 0));
    assert_eq!((populate(38, 4, Write), soft_dirty().len()), (Ok(()), 4));
    // What a child shares is copied for the store.
    let child = p.fork().expect("fork");
    assert_eq!(populate(38, 4, Write), Ok(()));
    assert_eq!(writable(&p, 38..42).len(), 4);
    assert!((38..42).all(|i| frame(&p, i) != frame(&child, i)));
    assert_eq!(entries_that(&p, 38..42, |_, e, _| e.is_dirty()).len(), 4);
    m.settle();
    assert_eq!(audit(&m, [&p, &child], []), []);
}

/// Rules: S-DY1, S-DY2, FAULT-11.
#[test]
fn a_forced_write_makes_nothing_writable() {
    for preset in Preset::ALL {
        for layout in [Layout::Page, Layout::Ptes(4), Layout::Ptes(9), Layout::Leaf] {
            let r = Row::new(layout, *preset);
            let last = r.n - 1;
            r.p.mprotect(r.range(), Rights::READ).expect("mprotect");
            r.p.mem_write(page(last), 77).expect("forced");
            assert_eq!(r.p.store(page(last), 1), segv(last));
            assert_eq!((r.p.load(page(last)), writable(&r.p, r.each())), (Ok(77), vec![]));
            assert!(!entries_that(&r.p, last..last + 1, |_, e, _| e.is_dirty()).is_empty());
            r.end();
        }
        // Memory that never was writable, and is not there yet.
        let m = machine_under(16, *preset);
        large(&m, 9);
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 512), READ).expect("mmap");
        p.mem_write(page(3), 77).expect("forced");
        assert_eq!((p.store(page(3), 1), p.store(page(4), 1)), (segv(3), segv(4)));
        assert_eq!((p.load(page(3)), p.load(page(4))), (Ok(77), Ok(0)));
        m.settle();
        assert_eq!(audit(&m, [&p], []), []);
    }
}

/// Rules: S-DY5, PSPLIT-02, WRITE-01.
#[test]
fn a_leaf_that_is_split_stays_read_only() {
    for preset in Preset::ALL {
        let r = Row::new(Layout::Leaf, *preset);
        r.p.mprotect(r.range(), Rights::READ).expect("mprotect");
        r.p.mprotect(pages(511, 1), BOTH).expect("mprotect");
        assert_eq!(writable(&r.p, r.each()), [511]);
        let dirty = entries_that(&r.p, r.each(), |_, e, _| e.is_dirty());
        assert_eq!(dirty.len(), 512, "as the leaf was");
        assert_eq!(r.p.store(page(0), 1), segv(0));
        r.p.store(page(511), Row::OLD + 511).expect("store");
        r.reads(&r.p, Row::OLD);
        r.end();
    }
}

/// What userfaultfd copies there, the process may read.
///
/// Rules: S-DY6, UFFD-02.
#[test]
fn a_copy_into_read_only_memory_is_read_only() {
    for preset in Preset::ALL {
        let m = machine_under(16, *preset);
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 4), READ).expect("mmap");
        p.uffd_register(pages(0, 4), UffdMode::MISSING).expect("registered");
        p.uffd_copy(pages(0, 2), Comes::Plain, |k, _| 70 + k).expect("copied");
        for i in 0..2 {
            assert_eq!((p.store(page(i), 1), p.load(page(i))), (segv(i), Ok(70 + i)));
        }
        m.settle();
        assert_eq!(audit(&m, [&p], []), []);
    }
}
