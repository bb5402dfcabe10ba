//! Files and shared memory on the machine: what processes see, what the entries are,
//! and that every audit holds after every step.

use crate::common::*;
use mm_arch::{Arch, Entry, Level, Pfn, Rights, VirtAddr, VirtRange};
use mm_fault::{FaultSignal, ShmemMode};
use mm_folio::{Folio, FolioFlags, Get};
use mm_gup::GupFlags;
use mm_map::{Advice, MapError, OldPlace};
use mm_pgtable::LockedEntry;
use mm_sim::*;
use mm_vma::{Backing, MmRead, Platform, RssKind, VmaFlags};
use std::sync::Arc;

type E = <A as Arch>::Entry;

const R: VmaFlags = VmaFlags::READ;
const SHARED: VmaFlags = RW.union(VmaFlags::SHARED);

fn machine() -> M {
    machine_of(32)
}
/// What page `index` of a file that was `written` starts with.
fn tag(index: u64) -> u64 {
    0xf00_0000 + index
}
fn written(object: &dyn Object<A, EventCounts>, n: u64) {
    object.write(0, n, &|index, word| if word == 0 { tag(index) } else { 0 }).expect("written");
    object.sync().expect("synced");
}
fn file(m: &M, n: u64) -> Arc<File<A, EventCounts>> {
    let file = File::new(m.host(), 0).expect("memory");
    for index in 0..n {
        file.write(index, 1, &|index, word| if word == 0 { tag(index) } else { 0 }).expect("room");
    }
    file.sync().expect("synced");
    file
}
fn shmem(m: &M, n: u64, mode: ShmemMode) -> Arc<Shmem<A, EventCounts>> {
    let object = Shmem::new(m.host(), ShmemKind::Mounted(mode), 0).expect("memory");
    written(&*object, n);
    object
}
fn process(m: &M) -> P {
    m.spawn().expect("process")
}
#[track_caller]
fn sound(m: &M, processes: &[&P]) {
    m.settle();
    assert_eq!(audit(m, processes.iter().copied(), []), []);
}
fn with<T>(p: &P, va: VirtAddr, f: impl FnOnce(&MmRead<'_, Host<A>>, Level, E) -> T) -> T {
    let vmas = p.mm().read();
    let (level, e) = match p.mm().tables().lock_entry(vmas.stay(), va) {
        LockedEntry::Table(t) => (Level::Pte, t.get(t.index_of(va))),
        LockedEntry::Huge(pmd) => (Level::Pmd, pmd.entry()),
        LockedEntry::Hole => (Level::Pmd, E::NONE),
    };
    f(&vmas, level, e)
}
fn entry(p: &P, va: VirtAddr) -> E {
    with(p, va, |_, _, e| e)
}
fn is_mapped(p: &P, va: VirtAddr) -> bool {
    with(p, va, |_, level, e| e.is_leaf(level))
}
fn mapped(p: &P, first: u64, n: u64) -> Vec<u64> {
    (first..first + n).filter(|i| is_mapped(p, page(*i))).collect()
}
fn folio_of(m: &M, pfn: Pfn) -> Folio<'_, Host<A>> {
    m.host().memmap().folio(pfn)
}
fn rss(p: &P) -> [u64; 3] {
    [RssKind::Anon, RssKind::File, RssKind::Shmem].map(|k| p.mm().counters().get(k))
}
fn bus(i: u64) -> Result<u64, AccessError> {
    Err(AccessError::Signal(FaultSignal::Bus { va: page(i) }))
}

mod private {
    use super::*;

    /// The copy is the process's own: neither the file nor another mapping sees it.
    /// Rules: FILE-06, FAULT-13, RMAP-05. Rows: S-FP1.
    #[test]
    fn a_store_makes_a_copy() {
        for first_touch in [false, true] {
            let m = machine();
            let (f, p) = (file(&m, 4), process(&m));
            p.mmap_object(pages(0, 4), RW, f.clone(), 0).expect("mmap");
            p.mmap_object(pages(8, 4), R | VmaFlags::SHARED, f.clone(), 0).expect("mmap");
            if first_touch {
                assert_eq!(p.load(page(1)), Ok(tag(1)));
                assert_eq!(rss(&p)[0], 0);
            }
            p.store(page(1), 7).expect("store");
            assert_eq!((p.load(page(1)), p.load(page(9))), (Ok(7), Ok(tag(1))));
            assert_eq!((f.read(1, 0), rss(&p)[0]), (Ok(tag(1)), 1));
            sound(&m, &[&p]);
            // What is discarded is the copy.
            p.madvise(pages(0, 4), Advice::DontNeed).expect("dontneed");
            assert_eq!(p.load(page(1)), Ok(tag(1)));
            sound(&m, &[&p]);
        }
    }

    /// Rules: FORK-03, FORK-04, RMAP-15.
    #[test]
    fn a_fork_copies_entries_only_of_mappings_with_private_pages() {
        let m = machine();
        let (f, p) = (file(&m, 8), process(&m));
        p.mmap_object(pages(0, 8), RW, f.clone(), 0).expect("mmap");
        p.mmap_object(pages(16, 8), RW, f, 0).expect("mmap");
        (0..8).for_each(|i| assert_eq!(p.load(page(i)), Ok(tag(i))));
        (16..24).for_each(|i| assert_eq!(p.load(page(i)), Ok(tag(i - 16))));
        p.store(page(3), 33).expect("store");
        let child = p.fork().expect("fork");
        assert_eq!(mapped(&child, 0, 8), (0..8).collect::<Vec<_>>());
        assert!(mapped(&child, 16, 8).is_empty());
        assert_eq!(rss(&child), [1, 7, 0]);
        sound(&m, &[&p, &child]);
        child.store(page(3), 34).expect("store");
        child.store(page(4), 44).expect("store");
        assert_eq!((p.load(page(3)), p.load(page(4))), (Ok(33), Ok(tag(4))));
        sound(&m, &[&p, &child]);
    }
}

mod shared {
    use super::*;

    /// Stores reach the object, whoever maps it; the first one is announced.
    /// Rules: FILE-07, FILE-08, FILE-09, FAULT-09.
    #[test]
    fn stores_are_seen_by_everybody_and_announced_once() {
        let m = machine();
        let (f, p, q) = (file(&m, 4), process(&m), process(&m));
        for space in [&p, &q] {
            space.mmap_object(pages(0, 4), SHARED, f.clone(), 0).expect("mmap");
        }
        assert_eq!(p.load(page(2)), Ok(tag(2)));
        let e = entry(&p, page(2));
        assert!(!e.is_writable(Level::Pte), "the file wants to hear of stores");
        p.take_faults();
        p.store(page(2), 5).expect("store");
        p.store(page(2), 6).expect("store");
        assert_eq!(p.take_faults().cpu.len(), 1);
        assert_eq!((q.load(page(2)), f.read(2, 0)), (Ok(6), Ok(6)));
        assert!(folio_of(&m, e.pfn(Level::Pte)).has(FolioFlags::DIRTY));
        sound(&m, &[&p, &q]);

        // Cleaning takes the permission away, everywhere.
        f.sync().expect("sync");
        assert!(!entry(&p, page(2)).is_writable(Level::Pte) && !entry(&p, page(2)).is_dirty());
        assert!(!folio_of(&m, e.pfn(Level::Pte)).has(FolioFlags::DIRTY));
        p.store(page(2), 7).expect("store");
        assert_eq!(p.take_faults().cpu.len(), 1);
        assert_eq!(q.load(page(2)), Ok(7));
        sound(&m, &[&p, &q]);
    }

    /// Rules: FILE-07.
    #[test]
    fn a_file_that_refuses_a_store_is_a_bus_error() {
        let m = machine();
        let (f, p) = (file(&m, 4), process(&m));
        p.mmap_object(pages(0, 4), SHARED, f.clone(), 0).expect("mmap");
        f.fail_io(1, true);
        assert_eq!(p.store(page(1), 1).map(|()| 0), bus(1));
        assert!(!is_mapped(&p, page(1)));
        assert_eq!(p.load(page(1)), Ok(tag(1)), "the page is cached");
        assert_eq!(p.store(page(1), 1).map(|()| 0), bus(1));
        sound(&m, &[&p]);
        f.fail_io(1, false);
        p.store(page(1), 1).expect("store");
        sound(&m, &[&p]);
    }

    /// Shared anonymous memory is an object of its own: a child has no entries, and
    /// sees everything. Rules: FORK-03.
    #[test]
    fn shared_anonymous_memory_is_shared_with_children() {
        let m = machine();
        let p = process(&m);
        p.mmap_shared(pages(0, 8), RW).expect("mmap");
        p.store(page(1), 11).expect("store");
        assert!(entry(&p, page(1)).is_writable(Level::Pte) && rss(&p) == [0, 0, 1]);
        let child = p.fork().expect("fork");
        assert!(mapped(&child, 0, 8).is_empty());
        assert_eq!(child.load(page(1)), Ok(11));
        child.store(page(5), 55).expect("store");
        assert_eq!((p.load(page(5)), p.load(page(6))), (Ok(55), Ok(0)));
        sound(&m, &[&p, &child]);
        p.exit();
        assert_eq!((child.load(page(1)), child.load(page(5))), (Ok(11), Ok(55)));
        sound(&m, &[&child]);
        child.exit();
        m.settle();
        assert_eq!(leaks(&m), [], "the object went with its last mapping");
    }

    /// Nobody but its entries knows that a page of shared memory is dirty; who takes
    /// them away tells the folio. Rules: ZAP-02, FOLIO-45.
    #[test]
    fn dirt_of_entries_goes_to_the_folio() {
        for batched in [Preset::Best, Preset::Baseline] {
            let m = machine();
            m.host().set_policy(|p| *p = batched.policy());
            m.host().set_policy(|p| {
                p.fault.shmem = p.fault.shmem.with_order(4, ShmemMode::Always);
            });
            let p = process(&m);
            p.mmap_shared(pages(0, 16), RW).expect("mmap");
            assert_eq!(p.load(page(0)), Ok(0));
            let pfn = entry(&p, page(0)).pfn(Level::Pte);
            assert_eq!((folio_of(&m, pfn).order(), mapped(&p, 0, 16).len()), (4, 16));
            assert!(!folio_of(&m, pfn).has(FolioFlags::DIRTY));
            p.store(page(6), 6).expect("store");
            p.madvise(pages(0, 16), Advice::DontNeed).expect("dontneed");
            assert!(folio_of(&m, pfn).has(FolioFlags::DIRTY), "page 6 was");
            assert_eq!(p.load(page(6)), Ok(6));
            sound(&m, &[&p]);
        }
    }

    /// Rules: MPROT-03, WRITE-02, WRITE-03.
    #[test]
    fn a_change_of_rights_lets_no_store_pass_unannounced() {
        let m = machine();
        let (f, p) = (file(&m, 4), process(&m));
        p.mmap_object(pages(0, 4), SHARED, f, 0).expect("mmap");
        assert_eq!(p.load(page(0)), Ok(tag(0)));
        p.store(page(1), 1).expect("store");
        p.mprotect(pages(0, 4), Rights::READ).expect("mprotect");
        assert!(p.store(page(1), 2).is_err());
        p.mprotect(pages(0, 4), Rights::READ | Rights::WRITE).expect("mprotect");
        assert!(!entry(&p, page(0)).is_writable(Level::Pte), "clean");
        assert!(entry(&p, page(1)).is_writable(Level::Pte), "dirty: the file knows");
        sound(&m, &[&p]);
        p.store(page(0), 3).expect("store");
        sound(&m, &[&p]);
    }
}

mod around {
    use super::*;

    /// Rules: FILE-01, FILE-02, FILE-03.
    #[test]
    fn a_read_maps_the_cached_pages_of_its_window() {
        let m = machine();
        let (f, p) = (file(&m, 64), process(&m));
        // The mapping begins in the middle of a window.
        p.mmap_object(pages(5, 59), R, f, 5).expect("mmap");
        assert_eq!(p.load(page(20)), Ok(tag(20)));
        assert_eq!(mapped(&p, 5, 59), (16..32).collect::<Vec<_>>());
        assert_eq!(p.load(page(9)), Ok(tag(9)));
        assert_eq!(mapped(&p, 5, 59), (5..32).collect::<Vec<_>>());
        assert_eq!(p.take_faults().cpu.len(), 2);
        sound(&m, &[&p]);
    }

    /// Rules: FILE-01, FILE-02.
    #[test]
    fn a_window_of_one_page_is_none() {
        let m = machine();
        m.host().set_policy(|p| p.fault.fault_around = 1);
        let (f, p) = (file(&m, 16), process(&m));
        p.mmap_object(pages(0, 16), R, f, 0).expect("mmap");
        assert_eq!(p.load(page(3)), Ok(tag(3)));
        assert_eq!(mapped(&p, 0, 16), [3]);
        sound(&m, &[&p]);
    }

    /// What is not cached is neither read nor waited for. Rules: FILE-03, LOCK-01.
    #[test]
    fn locked_and_missing_pages_are_left_out() {
        let m = machine();
        let (f, p) = (file(&m, 16), process(&m));
        f.forget_clean();
        p.mmap_object(pages(0, 16), R, f.clone(), 0).expect("mmap");
        for i in [2, 3, 4] {
            assert!(f.read(i, 0).is_ok());
        }
        let run = f.cached(3).expect("cached");
        let own = m.host().memmap().adopt_run::<mm_folio::Get>(run);
        let lock = own.folio().lock();
        assert_eq!(p.load(page(2)), Ok(tag(2)));
        assert_eq!(mapped(&p, 0, 16), [2, 4]);
        drop(lock);
        drop(own);
        p.take_faults();
        assert_eq!(p.load(page(9)), Ok(tag(9)));
        assert!(p.take_faults().cpu[0].major, "it had to be read");
        assert_eq!(mapped(&p, 0, 16), [2, 3, 4, 9]);
        sound(&m, &[&p]);
    }
}

mod large {
    use super::*;

    /// Rules: FILE-03, FILE-05, ANON-08.
    #[test]
    fn a_folio_is_mapped_as_a_whole_where_it_fits() {
        for (shift, expect_pmd) in [(0, true), (16, false)] {
            let m = machine();
            let f = shmem(&m, 512, ShmemMode::Always);
            let p = process(&m);
            p.mmap_object(pages(shift, 512), R | VmaFlags::SHARED, f, 0).expect("mmap");
            assert_eq!(p.load(page(shift + 100)), Ok(tag(100)));
            let level = with(&p, page(shift + 100), |_, level, _| level);
            assert_eq!(level == Level::Pmd, expect_pmd);
            assert!(is_mapped(&p, page(shift + 100)));
            sound(&m, &[&p]);
            // Half of it goes: a leaf of an object is taken away.
            p.munmap(pages(shift, 200)).expect("munmap");
            assert_eq!(p.load(page(shift + 300)), Ok(tag(300)));
            sound(&m, &[&p]);
        }
    }

    /// Rules: FORK-11, ZAP-09, VMA-01, FILE-06.
    #[test]
    fn a_leaf_of_an_object_is_faulted_in_again() {
        let m = machine();
        let f = shmem(&m, 512, ShmemMode::Always);
        let p = process(&m);
        p.mmap_object(pages(0, 512), RW, f.clone(), 0).expect("mmap");
        assert_eq!(p.load(page(7)), Ok(tag(7)));
        assert_eq!((rss(&p), with(&p, page(7), |_, level, _| level)), ([0, 0, 512], Level::Pmd));
        // A private store takes the leaf away, and copies one page.
        p.store(page(7), 70).expect("store");
        assert_eq!((rss(&p), f.read(7, 0)), ([1, 0, 0], Ok(tag(7))));
        let child = p.fork().expect("fork");
        assert_eq!((child.load(page(7)), child.load(page(8))), (Ok(70), Ok(tag(8))));
        sound(&m, &[&p, &child]);
    }

    /// A file of 5 pages in a folio of 16: nothing behind the end is mapped.
    /// Rules: FILE-03, FILE-05. Fault: MM-075.
    #[test]
    fn nothing_behind_the_end_is_mapped() {
        let m = machine();
        let f = File::new(m.host(), 0).expect("memory");
        written(&*f, 16);
        assert_eq!(f.cache().folios().len(), 1, "one folio");
        // As after a truncation that could not split it.
        let stranger = m.host().memmap().adopt_run::<mm_folio::Get>(f.cached(0).expect("cached"));
        f.truncate(6);
        assert_eq!(f.cache().folios().len(), 1);
        let p = process(&m);
        p.mmap_object(pages(0, 32), R, f.clone(), 0).expect("mmap");
        assert_eq!(p.load(page(2)), Ok(tag(2)));
        assert_eq!(mapped(&p, 0, 32), (0..6).collect::<Vec<_>>());
        for i in [6, 15, 16, 31] {
            assert_eq!(p.load(page(i)), bus(i));
        }
        f.truncate(3);
        assert!(mapped(&p, 0, 32).is_empty());
        assert_eq!((p.load(page(2)), p.load(page(4))), (Ok(tag(2)), bus(4)));
        assert_eq!(mapped(&p, 0, 32), [0, 1, 2]);
        drop(stranger);
        sound(&m, &[&p]);
    }
}

mod edges {
    use super::*;

    /// No index names the pages behind the largest one.
    #[test]
    fn what_no_index_can_name_is_not_mapped() {
        let m = machine();
        let (f, p) = (file(&m, 1), process(&m));
        let map = |n, first| p.mmap_object(pages(0, n), SHARED, f.clone(), first);
        for (n, first) in [(1, u64::MAX), (4, u64::MAX - 3)] {
            assert_eq!(map(n, first).map_err(|e| e.errno()), Err("EOVERFLOW"));
        }
        map(3, u64::MAX - 3).expect("the last ones");
        assert_eq!(p.load(page(2)), bus(2));
        let resized = p.mremap_resize(pages(0, 3), 4 << 12);
        assert_eq!(resized.map_err(|e| e.errno()), Err("EOVERFLOW"));
        sound(&m, &[&p]);
    }

    /// Folios are at most as large as what a PMD entry maps.
    #[test]
    fn nothing_is_collapsed_into_what_cannot_be() {
        let m = machine();
        let (f, p) = (shmem(&m, 512, ShmemMode::Never), process(&m));
        p.mmap_object(pages(0, 512), SHARED, f, 0).expect("mmap");
        p.mmap_anon(pages(512, 512), RW).expect("mmap");
        p.store(page(512), 1).expect("store");
        for first in [0, 512] {
            for order in [0, 10, 51, 52, 64, u32::MAX] {
                let done = p.collapse_to(pages(first, 512), order);
                assert_eq!(done.map_err(|e| e.errno()), Err("EINVAL"), "{order}");
            }
        }
        let top = VirtRange::units(VirtAddr::new(u64::MAX - 4095), 1, 12).expect("range");
        assert!(p.collapse(top).is_err());
        // Holes are passed by at once.
        let all = VirtRange::new(page(0), A::USER_END - page(0).get()).expect("range");
        assert_eq!(p.collapse(all).map_err(|e| e.errno()), Err("EINVAL"));
        sound(&m, &[&p]);
    }
}

mod direct {
    use super::*;

    /// What a direct write leaves in the cache, since somebody holds it, is written there as well:
    /// in a folio that reaches beyond the write, and in one that does not.
    #[test]
    fn a_write_reaches_what_stays_in_the_cache() {
        for order in [0, 4] {
            let m = machine();
            let f = File::new(m.host(), 0).expect("memory");
            let at_once = 1 << order;
            for first in (0..16).step_by(at_once as usize) {
                let word = |index, w| if w == 0 { tag(index) } else { 0 };
                f.write(first, at_once, &word).expect("room");
            }
            f.sync().expect("synced");
            let p = process(&m);
            p.mmap_object(pages(0, 16), SHARED, f.clone(), 0).expect("mmap");
            assert_eq!(p.load(page(3)), Ok(tag(3)));
            let pin = p.pin(page(3), 1, GupFlags::empty()).expect("pin");
            let write = |index, value| f.write_direct(index, 1, &|_, _| value).expect("written");
            write(0, 70);
            write(3, 73);
            assert_eq!((f.read(0, 0), p.load(page(0))), (Ok(70), Ok(70)));
            assert_eq!((p.load(page(3)), pin.load(0, 0)), (Ok(73), Some(73)));
            assert_eq!((p.load(page(1)), p.load(page(4))), (Ok(tag(1)), Ok(tag(4))));
            drop(pin);
            write(3, 83);
            assert!(f.cached(3).is_none(), "nobody holds it");
            let seen = [0, 1, 3, 4].map(|i| p.load(page(i)));
            assert_eq!(seen, [Ok(70), Ok(tag(1)), Ok(83), Ok(tag(4))]);
            sound(&m, &[&p]);
        }
    }
}

mod removal {
    use super::*;

    /// A folio that a pin keeps whole has zeros behind the new end, and the pin sees them; of a folio that
    /// went as a whole the pin sees what there was. Neither is a fault.
    #[test]
    fn pins_of_what_was_truncated() {
        let lines = "file f tmpfs:always 512 fill=3 bulk\nmmap p0 a 512 file:f rw shared\n\
            pin p0 a:300+8 x fuse-r\ntruncate f 200\npinread p0 x\n\
            file g memfd 8 fill=4\nmmap p0 b 8 file:g rw shared\n\
            pin p0 b:4+4 y fuse-r\npunch g 4+4\npinread p0 y\n";
        prints(
            lines,
            &[
                r#"{"line":5,"op":"pinread","p":"p0","pin":"x","c":[[0,8,"0"]]}"#,
                r#"{"line":10,"op":"pinread","p":"p0","pin":"y","c":[[0,1,"4@4"],[1,1,"4@5"],[2,1,"4@6"],[3,1,"4@7"]]}"#,
            ],
        );
    }

    /// Rules: ZAP-08, RMAP-27.
    #[test]
    fn truncation_takes_copies_and_a_hole_leaves_them() {
        for hole in [false, true] {
            let m = machine();
            let (f, p, q) = (shmem(&m, 8, ShmemMode::Never), process(&m), process(&m));
            p.mmap_object(pages(0, 8), SHARED, f.clone(), 0).expect("mmap");
            q.mmap_object(pages(0, 8), RW, f.clone(), 0).expect("mmap");
            q.store(page(5), 50).expect("store");
            assert_eq!((p.load(page(5)), q.load(page(6))), (Ok(tag(5)), Ok(tag(6))));
            if hole {
                f.punch(4, 4);
                assert_eq!((p.load(page(5)), q.load(page(5))), (Ok(0), Ok(50)));
                assert_eq!(q.load(page(6)), Ok(0));
            } else {
                f.truncate(4);
                assert_eq!((p.load(page(5)), q.load(page(5))), (bus(5), bus(5)));
            }
            assert_eq!((p.load(page(3)), q.load(page(3))), (Ok(tag(3)), Ok(tag(3))));
            sound(&m, &[&p, &q]);
        }
    }

    /// Somebody holds the folio that is cut: it stays whole, and its part is zero.
    /// Rules: FOLIO-52, FOLIO-53.
    #[test]
    fn a_hole_in_a_folio_that_is_held_reads_as_zero() {
        let m = machine();
        let (f, p) = (shmem(&m, 512, ShmemMode::Always), process(&m));
        p.mmap_object(pages(0, 512), SHARED, f.clone(), 0).expect("mmap");
        let pin = p.pin(page(0), 1, GupFlags::WRITE).expect("pin");
        f.punch(100, 20);
        assert_eq!(f.cache().folios().len(), 1);
        assert_eq!(
            [99, 100, 119, 120].map(|i| p.load(page(i))),
            [Ok(tag(99)), Ok(0), Ok(0), Ok(tag(120))]
        );
        assert_eq!(pin.load(0, 0), Some(tag(0)));
        drop(pin);
        sound(&m, &[&p]);
    }

    /// A moved, a cut and a grown mapping of a file are found. Rules: MREMAP-03, RMAP-32.
    #[test]
    fn a_file_follows_its_mappings() {
        let m = machine();
        let (f, p) = (file(&m, 32), process(&m));
        p.mmap_object(pages(0, 16), SHARED, f.clone(), 0).expect("mmap");
        (0..16).for_each(|i| p.store(page(i), i).expect("store"));
        p.mremap_move(pages(4, 4), page(100), OldPlace::Unmap).expect("mremap");
        p.mremap_move(pages(8, 4), page(200), OldPlace::Keep).expect("mremap");
        p.mremap_resize(pages(12, 4), 8 * 4096).expect("mremap");
        sound(&m, &[&p]);
        assert_eq!((p.load(page(101)), p.load(page(201))), (Ok(5), Ok(9)));
        assert_eq!((p.load(page(9)), p.load(page(18))), (Ok(9), Ok(tag(18))));
        f.truncate(5);
        assert_eq!((p.load(page(100)), p.load(page(101))), (Ok(4), bus(101)));
        assert_eq!((p.load(page(201)), p.load(page(9))), (bus(201), bus(9)));
        sound(&m, &[&p]);
    }
}

mod devices {
    use super::*;

    /// Rules: FILE-05.
    #[test]
    fn a_page_that_cannot_be_read_is_a_bus_error() {
        let m = machine();
        let (f, p) = (file(&m, 8), process(&m));
        f.forget_clean();
        f.fail_io(3, true);
        p.mmap_object(pages(0, 8), RW, f.clone(), 0).expect("mmap");
        assert_eq!((p.load(page(3)), p.store(page(3), 1).map(|()| 0)), (bus(3), bus(3)));
        assert_eq!((p.load(page(2)), p.load(page(4))), (Ok(tag(2)), Ok(tag(4))));
        sound(&m, &[&p]);
        f.fail_io(3, false);
        assert_eq!(p.load(page(3)), Ok(tag(3)));
        sound(&m, &[&p]);
    }

    #[test]
    fn what_cannot_be_written_stays_dirty() {
        let m = machine();
        let (f, p) = (file(&m, 4), process(&m));
        p.mmap_object(pages(0, 4), SHARED, f.clone(), 0).expect("mmap");
        (0..4).for_each(|i| p.store(page(i), i + 1).expect("store"));
        f.fail_io(1, true);
        assert_eq!(f.sync(), Err(FileError::Io));
        f.forget_clean();
        assert_eq!((f.peek(1, 0), f.peek(2, 0)), (2, 3));
        f.fail_io(1, false);
        sound(&m, &[&p]);
        assert_eq!(f.sync(), Ok(()));
        p.munmap(pages(0, 4)).expect("munmap");
        f.forget_clean();
        assert!(f.cache().folios().is_empty(), "all of it is on the device");
        (0..4).for_each(|i| assert_eq!(f.read(i, 0), Ok(i + 1)));
    }

    #[test]
    fn a_file_of_the_host_is_read_and_written() {
        let m = machine();
        let path = std::env::temp_dir().join(format!("mm-sim-files-{}", std::process::id()));
        std::fs::write(&path, [7u8; 3 * 4096 + 100]).expect("host file");
        let open = std::fs::File::options().read(true).write(true).open(&path).expect("open");
        std::fs::remove_file(&path).expect("unlink");
        let f = File::of_host(m.host(), open.try_clone().expect("handle")).expect("size");
        let p = process(&m);
        p.mmap_object(pages(0, 5), SHARED, f.clone(), 0).expect("mmap");
        let sevens = u64::from_le_bytes([7; 8]);
        assert_eq!((p.load(page(2)), p.load(page(3))), (Ok(sevens), Ok(sevens)));
        assert_eq!(p.load(VirtAddr::new(page(3).get() + 2048)), Ok(0), "behind the end");
        assert_eq!(p.load(page(4)), bus(4));
        p.store(page(1), 0x1234).expect("store");
        f.sync().expect("sync");
        let mut word = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&open, &mut word, 4096).expect("read");
        assert_eq!(u64::from_le_bytes(word), 0x1234);
        f.truncate(2);
        assert_eq!(open.metadata().expect("size").len(), 2 * 4096);
        sound(&m, &[&p]);
    }
}

mod pins {
    use super::*;

    /// A short pin for reading holds the page of the file and makes no copy of it.
    ///
    /// Rules: GUPS-28.
    #[test]
    fn a_short_pin_of_a_private_mapping_holds_the_page_of_the_file() {
        let m = machine();
        let (f, p) = (file(&m, 4), process(&m));
        p.mmap_object(pages(0, 4), RW, f.clone(), 0).expect("mmap");
        let pin = p.pin(page(0), 4, GupFlags::empty()).expect("pin");
        assert_eq!((pin.load(2, 0), rss(&p)[0]), (Some(tag(2)), 0), "not unshared");
        p.store(page(2), 22).expect("store");
        assert_eq!((p.load(page(2)), pin.load(2, 0)), (Ok(22), Some(tag(2))));
        f.write(2, 1, &|_, _| 33).expect("written");
        assert_eq!((p.load(page(2)), pin.load(2, 0)), (Ok(22), Some(33)));
        m.settle();
        assert_eq!(audit(&m, [&p], [&pin]), []);
    }

    /// Rules: GUPS-25, GUPS-28, LT-05. Rows: S-FP2.
    #[test]
    fn a_long_pin_of_a_private_mapping_sees_later_stores() {
        for fast in [false, true] {
            let m = machine();
            let (f, p) = (file(&m, 4), process(&m));
            p.mmap_object(pages(0, 4), RW, f.clone(), 0).expect("mmap");
            if fast {
                (0..4).for_each(|i| assert_eq!(p.load(page(i)), Ok(tag(i))));
            }
            let pin = p.pin(page(0), 4, GupFlags::LONGTERM).expect("pin");
            assert_eq!((pin.load(2, 0), rss(&p)[0]), (Some(tag(2)), 4), "unshared");
            p.store(page(2), 22).expect("store");
            assert_eq!((pin.load(2, 0), f.read(2, 0)), (Some(22), Ok(tag(2))));
            m.settle();
            assert_eq!(audit(&m, [&p], [&pin]), []);
        }
    }

    /// Rules: GUPF-14, GUPS-12, LT-05.
    #[test]
    fn a_file_that_is_told_of_stores_refuses_long_writable_pins() {
        let long = GupFlags::LONGTERM | GupFlags::WRITE;
        let m = machine();
        let (f, s, p) = (file(&m, 4), shmem(&m, 4, ShmemMode::Never), process(&m));
        p.mmap_object(pages(0, 4), SHARED, f, 0).expect("mmap");
        p.mmap_object(pages(8, 4), SHARED, s, 0).expect("mmap");
        // Mapped writable, as the fast path likes it.
        for i in (0..4).chain(8..12) {
            p.store(page(i), i).expect("store");
        }
        let refused = p.pin(page(0), 4, long);
        assert_eq!(refused.map(|_| ()).map_err(|e| e.errno()), Err("EFAULT"));
        for flags in [GupFlags::WRITE, GupFlags::LONGTERM] {
            assert!(p.pin(page(0), 4, flags).is_ok(), "{flags:?}");
        }
        assert!(p.pin(page(8), 4, long).is_ok(), "shared memory waits for nothing");
        sound(&m, &[&p]);
    }

    /// A device writes through a pin of a page of a file; nothing is lost.
    #[test]
    fn what_a_device_writes_to_a_file_is_written_out() {
        let m = machine();
        let (f, p) = (file(&m, 4), process(&m));
        p.mmap_object(pages(0, 4), SHARED, f.clone(), 0).expect("mmap");
        let mut pin = p.pin(page(1), 1, GupFlags::WRITE).expect("pin");
        f.sync().expect("sync");
        pin.store(0, 0, 77);
        pin.dirty_at_end();
        drop(pin);
        p.munmap(pages(0, 4)).expect("munmap");
        f.sync().expect("sync");
        f.forget_clean();
        assert!(f.cache().folios().is_empty());
        assert_eq!(f.read(1, 0), Ok(77));
    }
}

mod memory {
    use super::*;

    /// Every allocation fails once: the access says so or succeeds with less, and the
    /// content is what it was.
    /// Rules: FILE-05, FILE-06, FILE-07.
    #[test]
    fn every_allocation_may_fail() {
        let mut failed = 0;
        for n in 0.. {
            let m = machine();
            m.host().set_policy(|p| {
                p.fault.shmem = p.fault.shmem.with_order(2, ShmemMode::Always);
            });
            let (f, p) = (file(&m, 8), process(&m));
            f.forget_clean();
            m.host().frames().fail_after(Some(n));
            let mut errors = 0;
            let mut note = |ok: bool| errors += u32::from(!ok);
            note(p.mmap_object(pages(0, 8), SHARED, f.clone(), 0).is_ok());
            note(p.mmap_object(pages(512, 8), RW, f.clone(), 0).is_ok());
            note(p.mmap_shared(pages(1024, 8), RW).is_ok());
            note(p.load(page(1)).is_ok());
            note(p.store(page(2), 22).is_ok());
            note(p.load(page(513)).is_ok());
            note(p.store(page(515), 33).is_ok());
            note(p.store(page(1025), 44).is_ok());
            note(p.load(page(1030)).is_ok());
            let child = p.fork();
            note(child.is_ok());
            let spent = m.host().frames().failure_is_spent();
            m.host().frames().fail_after(None);
            assert!(errors <= 1, "one failure, {errors} errors");
            failed += errors;
            for (i, stored, other) in [(2, 22, tag(2)), (515, 33, tag(3)), (1025, 44, 0)] {
                let got = p.load(page(i)).expect("mapped");
                assert!(got == stored || got == other && errors == 1, "allocation {n}: {got:#x}");
            }
            assert_eq!(p.load(page(1)), Ok(tag(1)));
            let processes: Vec<&P> = [&p].into_iter().chain(child.as_ref().ok()).collect();
            sound(&m, &processes);
            drop(processes);
            drop((child, p, f));
            m.settle();
            assert_eq!(leaks(&m), [], "allocation {n}");
            if !spent {
                break;
            }
        }
        assert!(failed > 5, "only {failed} allocations failed visibly");
    }
}

/// A file is read as far as it goes and the device gives it; private copies do not matter.
///
/// Rules: MADV-09.
#[test]
fn pages_of_a_file_are_read_ahead() {
    let m = machine();
    let (f, p) = (file(&m, 40), process(&m));
    p.mmap_object(pages(0, 64), RW, f.clone(), 0).expect("mmap");
    p.store(page(1), 7).expect("store");
    f.forget_clean();
    f.fail_io(3, true);
    assert!(f.cached(2).is_none());
    p.madvise_willneed(pages(0, 64)).expect("mapped");
    sound(&m, &[&p]);
    let cached = |i: u64| f.cached(i).map(|run| drop(m.host().memmap().adopt_run::<Get>(run)));
    assert!((0..40).all(|i| cached(i).is_some() == (i != 3)) && cached(40).is_none());
    assert_eq!(mapped(&p, 0, 64), [1]);
    p.take_faults();
    assert_eq!((p.load(page(1)), p.load(page(2)), p.load(page(3))), (Ok(7), Ok(tag(2)), bus(3)));
    assert!(p.take_faults().cpu.iter().all(|f| !f.major));
    // Where memory ends, reading ends, and nobody hears of it.
    f.fail_io(3, false);
    f.forget_clean();
    m.host().frames().fail_after(Some(2));
    p.madvise_willneed(pages(20, 20)).expect("mapped");
    assert_eq!([20, 21, 22].map(|i| cached(i).is_some()), [true, true, false]);
    p.munmap(pages(30, 2)).expect("mapped");
    assert_eq!(p.madvise_willneed(pages(28, 8)), Err(MapError::Hole(page(30))));
    assert_eq!([28, 30, 35].map(|i| cached(i).is_some()), [true, false, true]);
    sound(&m, &[&p]);
}
