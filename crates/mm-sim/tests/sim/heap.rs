//! What of the machine does a kernel's work, when the heap has no more.

use crate::common::*;
use mm_folio::AllocError;
use mm_map::{ForkError, Ksm, LockWhen, MapError};
use mm_sim::*;
use mm_vma::{Backing, MmError, Platform, SwapSpace, VmaFlags};
use std::sync::Arc;

const SLOTS: u64 = 64;
const SHARED: VmaFlags = RW.union(VmaFlags::SHARED);

/// A process that maps 16 pages of shared memory, which hold 200 and more.
fn shared(m: &M) -> (P, Arc<Shmem<A, EventCounts>>) {
    m.host().swap().add::<A>(SLOTS).expect("room");
    let object = Shmem::new(m.host(), ShmemKind::Memfd, 0).expect("memory");
    object.write(0, 16, &|index, _| 200 + index).expect("memory");
    let p = m.spawn().expect("process");
    p.mmap_object(pages(0, 16), SHARED, object.clone(), 0).expect("mmap");
    (0..16).for_each(|i| assert_eq!(p.load(page(i)), Ok(200 + i)));
    (p, object)
}
#[track_caller]
fn sound<'a>(m: &M, processes: impl IntoIterator<Item = &'a P>) {
    m.settle();
    assert_eq!(audit(m, processes, []), []);
}
/// Does `work` on something new, again and again, each time with another allocation of the heap
/// failing, until none is left, and hands each result to `check`; how often one failed.
#[track_caller]
fn each_failure<S, R>(
    new: impl Fn() -> S,
    work: impl Fn(&S) -> R,
    mut check: impl FnMut(&S, R, bool),
) -> u64 {
    for n in 0.. {
        let on = new();
        let (result, asked) = FailingHeap::fail_after(Some(n), || work(&on));
        assert_eq!(asked.unrefusable, None);
        check(&on, result, asked.failed);
        if !asked.failed {
            return n;
        }
    }
    0
}
/// What `work` asks of the heap.
#[track_caller]
fn asks(work: impl FnOnce()) -> u64 {
    let ((), asked) = FailingHeap::fail_after(None, work);
    assert_eq!(asked.unrefusable, None);
    asked.nr
}

/// A page that nobody could say to be on swap stays in memory.
#[test]
fn a_page_does_not_go_to_swap_without_memory_for_its_entry() {
    let new = || {
        let m = machine_of(16);
        let (p, object) = shared(&m);
        (m, p, object)
    };
    let mut stayed = 0;
    let failed = each_failure(
        new,
        |(_, p, _)| p.madvise_pageout(pages(0, 16)),
        |(m, p, object), done, failed| {
            assert_eq!(done, Ok(()));
            let is_in = (0..16).filter(|index| !object.is_swapped(*index)).count();
            assert_eq!(m.host().swap().slots().nr_free(), SLOTS - 16 + is_in as u64);
            stayed += is_in;
            assert!(failed || is_in == 0);
            sound(m, [p]);
            for i in 0..16 {
                assert_eq!(p.load(page(i)), Ok(200 + i));
            }
        },
    );
    assert!(failed > 0 && stayed > 0);
}

/// What comes back, and what is given up, needs no memory to be forgotten.
#[test]
fn what_is_on_swap_is_given_up_without_memory() {
    let m = machine_of(16);
    let (p, object) = shared(&m);
    p.madvise_pageout(pages(0, 16)).expect("mapped");
    assert_eq!(m.host().swap().slots().nr_free(), SLOTS - 16);
    assert_eq!(asks(|| object.truncate(12)), 0);
    assert_eq!(asks(|| assert!(object.punch(2, 4))), 0);
    assert_eq!(m.host().swap().slots().nr_free(), SLOTS - 8);
    sound(&m, [&p]);
    assert_eq!([1, 3, 6].map(|i| p.load(page(i))), [Ok(201), Ok(0), Ok(206)]);
}

/// What comes back has places that were made when it went; the swap cache is emptied without a
/// list of what is in it, and no device needs memory to go.
#[test]
fn swap_goes_off_without_memory_of_the_heap() {
    let m = machine_of(16);
    let (p, _object) = shared(&m);
    p.mmap_anon(pages(32, 8), RW).expect("mmap");
    (32..40).for_each(|i| p.store(page(i), i).expect("store"));
    p.madvise_pageout(pages(0, 16)).expect("mapped");
    p.madvise_pageout(pages(32, 8)).expect("mapped");
    // This one is not even written.
    assert_eq!(p.load(page(3)), Ok(203));
    m.host().swap().fail_write_after(Some(0));
    p.madvise_pageout(pages(3, 1)).expect("mapped");
    assert_eq!(m.host().swap().slots().nr_free(), SLOTS - 24);
    assert_eq!(asks(|| m.host().swap_off([&p]).expect("there are frames")), 0);
    sound(&m, [&p]);
    assert_eq!([0, 3, 15, 32, 39].map(|i| p.load(page(i))), [200, 203, 215, 32, 39].map(Ok));
}

#[test]
fn locked_memory_grows_without_a_list_of_mappings() {
    let new = || {
        let m = machine_of(16);
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 4), RW).expect("mmap");
        p.mlock(pages(0, 4), LockWhen::Now).expect("room");
        (m, p)
    };
    each_failure(
        new,
        |(_, p)| p.mremap_resize(pages(0, 4), 8 << 12),
        |(m, p), done, failed| {
            assert!(done.is_ok() || failed && done == Err(MapError::NoMemory(page(0))), "{done:?}");
            let resident = p.mm().counters().resident();
            assert!(resident == if done.is_ok() { 8 } else { 4 } || failed, "{resident}");
            sound(m, [p]);
        },
    );
    // Several mappings, one behind the other, are brought in by one call.
    let (m, p) = new();
    p.mmap_anon(pages(4, 2), RW).expect("mmap");
    p.mmap_anon(pages(6, 2), VmaFlags::READ).expect("mmap");
    p.mlock(pages(4, 4), LockWhen::Touched).expect("mapped");
    p.mprotect(pages(0, 8), mm_arch::Rights::READ | mm_arch::Rights::WRITE).expect("mapped");
    sound(&m, [&p]);
}

/// Rules: RMAP-06. A lock ends for the mappings that were come to, and for their folios.
#[test]
fn a_lock_ends_without_memory_as_far_as_it_ends() {
    let new = || {
        let m = machine_of(16);
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 16), RW).expect("mmap");
        p.mprotect(pages(8, 8), mm_arch::Rights::READ).expect("mapped");
        p.mlock(pages(0, 16), LockWhen::Now).expect("memory");
        (m, p)
    };
    // The second mapping has to be split.
    let failed = each_failure(
        new,
        |(_, p)| p.munlock(pages(0, 12)),
        |(m, p), done, failed| {
            assert_eq!(done.is_err(), failed, "{done:?}");
            // No folio is locked for nobody.
            sound(m, [p]);
        },
    );
    assert!(failed > 0);
}

#[test]
fn an_object_needs_memory_to_be_known() {
    let m = machine_of(16);
    let known = || m.host().frames().nr_free();
    let before = known();
    let shmem = each_failure(
        || (),
        |()| Shmem::new(m.host(), ShmemKind::Memfd, 4).map(drop),
        |(), made, failed| assert_eq!(made, if failed { Err(AllocError) } else { Ok(()) }),
    );
    let file = each_failure(
        || (),
        |()| File::new(m.host(), 4).map(drop),
        |(), made, failed| assert_eq!(made, if failed { Err(AllocError) } else { Ok(()) }),
    );
    assert!(shmem > 0 && file > 0);
    assert_eq!((known(), leaks(&m)), (before, vec![]));
    // Of a mapping it is an error of the call.
    let p = m.spawn().expect("process");
    let mapped = each_failure(
        || p.munmap(pages(0, 4)).expect("user memory"),
        |()| p.mmap_shared(pages(0, 4), RW),
        |(), done, failed| {
            assert_eq!(done, if failed { Err(MapError::NoMemory(page(0))) } else { Ok(()) });
            sound(&m, [&p]);
        },
    );
    assert!(mapped > shmem, "mappings need memory, too");
}

#[test]
fn a_process_needs_memory_for_its_address_space() {
    let m = machine_of(16);
    let mut why = Vec::new();
    let spawned = each_failure(
        || (),
        |()| m.spawn().map(P::exit),
        |(), made, failed| {
            assert_eq!(made.is_err(), failed);
            why.extend(made.err());
        },
    );
    assert!(spawned > 0 && why.contains(&MmError::NoMemory), "{why:?}");
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 4), RW).expect("mmap");
    p.store(page(1), 7).expect("store");
    let forked = each_failure(
        || (),
        |()| p.fork().map(|child| child.load(page(1))),
        |(), made, failed| {
            match made {
                Ok(seen) => assert_eq!((seen, failed), (Ok(7), false)),
                Err(e) => assert_eq!((ForkError::errno(e), failed), ("ENOMEM", true)),
            }
            sound(&m, [&p]);
        },
    );
    assert!(forked > spawned);
    drop(p);
    m.settle();
    assert_eq!(leaks(&m), []);
}

#[test]
fn a_scan_for_equal_pages_is_refused_what_it_cannot_remember() {
    let m = machine_of(16);
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 4), RW).expect("mmap");
    p.madvise(pages(0, 4), mm_map::Advice::Mergeable).expect("mapped");
    (0..4).for_each(|i| p.store(page(i), 7).expect("store"));
    let failed = each_failure(
        || (),
        |()| m.host().ksm_pass(&mut Ksm::new(), [&p]),
        |(), done, failed| {
            assert_eq!(done.is_err(), failed);
            sound(&m, [&p]);
        },
    );
    assert!(failed > 1, "for the list of spaces, and for pages");
}
