//! Memory that has failed: who touches it gets a signal that says so, and nobody gets it again.

use crate::common::*;
use mm_arch::{AccessKind, Entry, Level, NonPresent, Pfn};
use mm_fault::FaultSignal;
use mm_folio::{FolioRef, Get};
use mm_gup::GupFlags;
use mm_map::{Advice, OldPlace};
use mm_pgtable::LockedEntry;
use mm_reclaim::{FlushBatch, UnmapFlags, Unmapped, try_to_unmap};
use mm_sim::*;
use mm_vma::{Backing, Platform, VmaFlags};

const SHARED: VmaFlags = RW.union(VmaFlags::SHARED);

fn lost(i: u64) -> AccessError {
    AccessError::Signal(FaultSignal::Poisoned { va: page(i) })
}
/// Everything comes back but so many frames, which have failed.
#[track_caller]
fn ends(m: M, processes: Vec<P>, failed: u64) {
    m.settle();
    assert_eq!(audit(&m, processes.iter(), []), []);
    drop(processes);
    m.settle();
    let left = leaks(&m);
    let [AuditViolation::FramesLeaked { expected, got }] = left[..] else { panic!("{left:?}") };
    assert_eq!(expected - got, failed);
}
/// What is mapped at a page.
fn entry(p: &P, i: u64) -> (bool, Option<NonPresent>, Pfn) {
    let vmas = p.mm().read();
    let LockedEntry::Table(table) = p.mm().tables().lock_entry(vmas.stay(), page(i)) else {
        panic!("no table");
    };
    let e = table.get(table.index_of(page(i)));
    let is_leaf = e.is_leaf(Level::Pte);
    let what = if is_leaf { None } else { e.nonpresent(Level::Pte) };
    (is_leaf, what, e.pfn(Level::Pte))
}
/// The machine says that the memory of a private page has failed: what maps it says so, too.
fn fails(p: &P, i: u64) -> Pfn {
    let (host, pfn) = (p.host(), entry(p, i).2);
    let own = host.memmap().folio(pfn).grab::<Get>(1).expect("room");
    let folio = own.folio();
    folio.poison(folio.index_of(pfn));
    let locked = folio.lock();
    let mut flushes = FlushBatch::new(host);
    let flags = UnmapFlags::HWPOISON | UnmapFlags::IGNORE_MLOCK;
    let done = try_to_unmap(host.policy().unmap, &locked, flags, &mut flushes);
    flushes.finish();
    assert_eq!(done, Unmapped::All);
    drop(locked);
    pfn
}

/// Rules: SWPI-01, UNMAP-13, FORK-09, GUPS-31, POP-03.
#[test]
fn whoever_touches_a_private_page_that_has_failed_is_told() {
    let m = machine_of(16);
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 8), RW).expect("mmap");
    (0..4).for_each(|i| p.store(page(i), 10 + i).expect("store"));
    let q = p.fork().expect("fork");
    let pfn = fails(&p, 1);
    let r = p.fork().expect("fork");
    for of in [&p, &q, &r] {
        assert_eq!(entry(of, 1).1, Some(NonPresent::Hwpoison(pfn)));
        assert_eq!((of.load(page(1)), of.store(page(1), 1)), (Err(lost(1)), Err(lost(1))));
        assert_eq!((of.load(page(0)), of.load(page(2))), (Ok(10), Ok(12)));
        // Who asks for it is told as much, and others that it is no page.
        let populated = of.populate(pages(1, 1), AccessKind::Read).expect_err("it is lost");
        let pinned = of.pin(page(1), 1, GupFlags::empty()).expect_err("it is lost");
        assert_eq!((populated.errno(), pinned.errno()), ("EHWPOISON", "EFAULT"));
    }
    // The entry changes no right, goes along, and is given up with its page.
    p.mprotect(pages(0, 4), mm_arch::Rights::READ).expect("mapped");
    p.mremap_move(pages(0, 4), page(16), OldPlace::Unmap).expect("room");
    assert_eq!((p.load(page(17)), p.load(page(18))), (Err(lost(17)), Ok(12)));
    q.madvise(pages(1, 1), Advice::DontNeed).expect("mapped");
    assert_eq!((q.load(page(1)), q.load(page(2))), (Ok(0), Ok(12)));
    r.munmap(pages(0, 2)).expect("mapped");
    m.settle();
    assert!(m.host().memmap().folio(pfn).refcount() == 0 && entry(&q, 1).2 != pfn);
    assert_ne!(m.host().frames().usage(pfn), FrameUse::Free, "it is handed out to nobody");
    ends(m, vec![p, q, r], 1);
}

/// What a device has too is read again, into other memory; the rest is lost.
///
/// Rules: FILE-01, FOLIO-48.
#[test]
fn a_page_of_a_file_that_has_failed_is_read_again_if_it_can() {
    let m = machine_of(16);
    let f = File::new(m.host(), 0).expect("memory");
    (0..4).for_each(|i| f.write(i, 1, &|index, _| 70 + index).expect("memory"));
    f.sync().expect("a device");
    f.write(1, 1, &|_, _| 81).expect("memory");
    let failed = [0, 1].map(|index| {
        let run = f.cached(index).expect("cached");
        let own: FolioRef<'_, _, Get> = m.host().memmap().adopt_run(run);
        own.folio().poison(run.first);
        own.folio().page(run.first)
    });
    let p = m.spawn().expect("process");
    p.mmap_object(pages(0, 4), SHARED, f.clone(), 0).expect("mmap");
    p.mmap_object(pages(8, 4), RW, f.clone(), 0).expect("mmap");
    assert_eq!((p.load(page(0)), p.load(page(1))), (Ok(70), Err(lost(1))));
    assert_eq!((p.store(page(1), 1), p.store(page(9), 1)), (Err(lost(1)), Err(lost(9))));
    assert_eq!((p.load(page(2)), p.load(page(10))), (Ok(72), Ok(72)));
    assert_ne!(entry(&p, 0).2, failed[0]);
    let errno = p.populate(pages(0, 4), AccessKind::Read).expect_err("one is lost").errno();
    assert_eq!(errno, "EHWPOISON");
    // A hole, and it is a page again.
    assert!(f.punch(1, 1));
    assert_eq!(p.load(page(1)), Ok(0));
    drop(f);
    ends(m, vec![p], 2);
}

/// Rules: UFFD-05, POP-03. Rows: S-UF8.
#[test]
fn what_userfaultfd_poisoned_is_lost_for_whoever_asks() {
    prints(
        "mmap p0 a 4 anon rw private\n\
         uffd p0 a register missing\n\
         uffd p0 a:1 poison\n\
         write p0 a 7\n\
         madvise p0 a populate_read\n\
         pin p0 a:1 x fuse-r\n\
         madvise p0 a:1 dontneed\n\
         madvise p0 a populate_read\n",
        &[
            r#"{"line":4,"op":"write","p":"p0","sig":"SIGBUS","after":1}"#,
            r#"{"line":5,"op":"madvise","p":"p0","err":"EHWPOISON"}"#,
            r#"{"line":6,"op":"pin","p":"p0","err":"EFAULT"}"#,
        ],
    );
}
