//! The worked traces and the address-space rows of the rule book.
#![cfg(not(loom))]

mod common;
use common::*;
use mm_folio::audit::Access::{ReadOnly, Writable};
use mm_folio::audit::AuditLog;
use mm_folio::*;

// What owns references or a lock is given back once, a lock by the thread that
// took it.
static_assertions::assert_not_impl_any!(FolioRef<'static, Space, Get>: Clone);
static_assertions::assert_not_impl_any!(FolioRef<'static, Space, Pin>: Clone);
static_assertions::assert_not_impl_any!(FolioLockGuard<'static, Space>: Send, Clone);

/// What a trace row states: (refs, map, slot 0, slot 1, SHARED, exclusive pages).
type Row = (i32, u32, Option<(u32, u32)>, Option<(u32, u32)>, bool, usize);

fn row(f: Folio<'_, Space>) -> Row {
    let [a, b] = f.mm_slots().map(|s| s.map(|(mm, n)| (mm.get(), n)));
    let map = f.memmap();
    let exclusive = (0..f.nr_pages()).filter(|&i| map.page_exclusive(f.page(i))).count();
    (f.refcount(), f.mapcount(), a, b, f.shared_flag(), exclusive)
}

const P: u32 = 1;
const C: u32 = 2;
const D: u32 = 3;

fn fork(f: Folio<'_, Space>, child: u32) {
    f.grab::<Get>(f.nr_pages()).expect("room").hand_over();
    f.try_dup_anon_ptes(0, nz(f.nr_pages()), mm(child), HasPinned::Never).expect("not pinned");
}
fn reusable(f: Folio<'_, Space>) -> bool {
    f.counts_locked(|c| !c.shared && i64::from(c.refs) == i64::from(c.mapcount + c.swapcache))
}

/// Rules: REUSE-07, FOLIO-03, FOLIO-34.
#[test]
fn trace_a_reuse_after_the_child_left() {
    let map = map(64);
    let f = fault(&map, 4, mm(P));
    assert_eq!(row(f), (16, 16, Some((P, 16)), None, false, 16));
    fork(f, C);
    assert_eq!(row(f), (32, 32, Some((P, 16)), Some((C, 16)), true, 0));
    assert!(f.maybe_mapped_shared() && !reusable(f));
    unmap(f, 3, 1, mm(C));
    assert_eq!(row(f), (31, 31, Some((P, 16)), Some((C, 15)), true, 0));
    f.remove_ptes(0, nz(3), mm(C));
    f.remove_ptes(4, nz(12), mm(C));
    assert_eq!(row(f), (31, 16, Some((P, 16)), None, false, 0));
    assert!(!reusable(f), "the child's references still wait for its flush");
    put(f, 15);
    assert_eq!(row(f), (16, 16, Some((P, 16)), None, false, 0));
    assert!(reusable(f));
    map.set_exclusive(f.page(5), 1);
    assert_eq!(row(f).5, 1);
    assert_eq!(log(&[ptes(f, 0, 16, mm(P), ReadOnly)]).finish(&map), []);
}

/// Rules: FOLIO-33, FOLIO-37.
#[test]
fn trace_b_an_untracked_address_space() {
    let map = map(64);
    let f = fault(&map, 4, mm(P));
    fork(f, C);
    fork(f, D);
    assert_eq!(row(f), (48, 48, Some((P, 16)), Some((C, 16)), true, 0));
    unmap(f, 0, 16, mm(C));
    assert_eq!(row(f), (32, 32, Some((P, 16)), None, true, 0));
    unmap(f, 0, 16, mm(P));
    assert_eq!(row(f), (16, 16, None, None, true, 0));
    for left in (1..16).rev() {
        assert!(f.maybe_mapped_shared() && !reusable(f));
        unmap(f, left, 1, mm(D));
    }
    assert!(!f.maybe_mapped_shared(), "one mapping left is never shared");
    unmap(f, 0, 1, mm(D));
    assert_eq!(map.alive().count(), 0);
}

/// Rules: FOLIO-25, FOLIO-26, RMAP-10, FORK-08.
#[test]
fn trace_f_pin() {
    let map = map(64);
    let f = fault(&map, 4, mm(P));
    let pin = map.try_grab::<Pin>(f.page(0), 4).expect("alive");
    assert_eq!((row(f), f.pincount()), ((20, 16, Some((P, 16)), None, false, 16), 4));
    let extra = f.grab::<Get>(16).expect("room");
    assert_eq!(f.try_dup_anon_ptes(0, nz(16), mm(C), HasPinned::Maybe), Err(MaybePinned));
    for page in 0..16 {
        assert_eq!(f.try_dup_anon_ptes(page, nz(1), mm(C), HasPinned::Maybe), Err(MaybePinned));
    }
    drop(extra);
    assert_eq!((row(f), f.pincount()), ((20, 16, Some((P, 16)), None, false, 16), 4));
    drop(pin);
    assert_eq!((row(f), f.pincount()), ((16, 16, Some((P, 16)), None, false, 16), 0));
    assert_eq!(log(&[ptes(f, 0, 16, mm(P), Writable)]).finish(&map), []);
}

/// Rules: FOLIO-02, FOLIO-15, FOLIO-16, RMAP-12, EXCL-01.
#[test]
fn trace_g_pmd() {
    let map = map(2048);
    let f = fault_pmd(&map, 9, mm(P));
    assert_eq!((row(f), f.entire_mapcount()), ((1, 1, Some((P, 1)), None, false, 1), 1));
    assert_eq!(map.stats().nr_anon_thps.get(), 512);
    f.grab::<Get>(1).expect("room").hand_over();
    f.try_dup_anon_pmd(mm(C), HasPinned::Never).expect("not pinned");
    assert_eq!((row(f), f.entire_mapcount()), ((2, 2, Some((P, 1)), Some((C, 1)), true, 0), 2));
    f.split_pmd_counts(mm(P));
    assert_eq!(
        (row(f), f.entire_mapcount()),
        ((513, 513, Some((P, 512)), Some((C, 1)), true, 0), 1)
    );
    assert_eq!(map.stats().nr_anon_mapped.get(), 512);
    unmap(f, 7, 1, mm(P));
    assert_eq!(row(f), (512, 512, Some((P, 511)), Some((C, 1)), true, 0));
    f.remove_pmd(mm(C));
    put(f, 1);
    assert_eq!(row(f), (511, 511, Some((P, 511)), None, false, 0));
    assert!(reusable(f));
    assert_eq!(map.stats().nr_anon_mapped.get(), 511);
    assert_eq!(map.stats().nr_anon_thps.get(), 0);
}

/// Rules: PSPLIT-02, EXCL-01.
#[test]
fn an_exclusive_pmd_splits_to_exclusive_pages() {
    let map = map(2048);
    let f = fault_pmd(&map, 9, mm(P));
    f.split_pmd_counts(mm(P));
    assert_eq!(row(f), (512, 512, Some((P, 512)), None, false, 512));
    assert!(!f.is_deferred(), "nothing was unmapped");
    assert_eq!(log(&[ptes(f, 0, 512, mm(P), Writable)]).finish(&map), []);
}

/// Rules: FOLIO-12, RMAP-01.
#[test]
fn new_folios_of_every_order() {
    for order in [0, 2, 4, 9] {
        let map = map(2048);
        let nr = 1u32 << order;
        let new = map.alloc(order).expect("frames");
        let f = new.folio();
        assert_eq!((f.order(), f.refcount(), f.mapcount(), f.pincount()), (order, 1, 0, 0));
        assert_eq!((f.flags(), f.mm_slots()), (FolioFlags::empty(), [None; 2]));
        assert!((0..nr).all(|i| map.folio(f.page(i)) == f && !map.page_exclusive(f.page(i))));
        drop(new);
        let f = fault(&map, order, mm(P));
        let n = nr as i32;
        let slot = (order > 0).then_some((P, nr));
        assert_eq!(row(f), (n, nr, slot, None, false, nr as usize));
        assert_eq!(f.pages_mapped(), (nr, false));
        assert_eq!(f.anon(), Some((AnonId(1), 0x1000)));
        assert_eq!(map.stats().nr_anon_mapped.get(), u64::from(nr));
        unmap(f, 0, nr, mm(P));
        assert!(f.anon().is_none() && !map.page_exclusive(f.page(0)));
    }
    let map = map(2048);
    let f = fault_pmd(&map, 9, mm(P));
    assert_eq!(row(f), (1, 1, Some((P, 1)), None, false, 1));
    assert_eq!(f.pages_mapped(), (0, true));
    assert!(map.page_exclusive(f.page(0)) && !map.page_exclusive(f.page(1)));
}

/// Adds and removes of `(mm, first, n)`; a negative `n` removes.
fn steps(f: Folio<'_, Space>, steps: &[(u32, u32, i32)]) {
    for &(id, first, n) in steps {
        if n > 0 {
            f.grab::<Get>(n as u32).expect("room").hand_over();
            f.add_anon_ptes(first, nz(n as u32), mm(id), Exclusivity::MaybeShared);
        } else {
            unmap(f, first, n.unsigned_abs(), mm(id));
        }
    }
}
/// A folio of 16 with a reference of the test's own.
fn idle(map: &FolioMap) -> FolioRef<'_, Space, Get> {
    let new = map.alloc(4).expect("frames");
    new.folio().set_anon(AnonId(1), 0);
    new
}

/// Rules: FOLIO-32, FOLIO-33, FOLIO-34, FOLIO-36, FOLIO-37. Rows: S-MM1, S-MM2, S-MM3, S-MM4,
/// S-MM5, S-MM6, S-MM7, S-MM8.
#[test]
fn address_space_rows() {
    let map = map(256);
    let (a, b, c) = (P, C, D);
    // S-MM1
    let own = idle(&map);
    let f = own.folio();
    steps(f, &[(a, 0, 16)]);
    assert!(!f.shared_flag());
    steps(f, &[(a, 0, -16)]);
    assert!(!f.shared_flag() && f.mm_slots() == [None; 2]);
    // S-MM2
    steps(f, &[(a, 0, 16), (b, 0, 16)]);
    assert!(f.shared_flag());
    steps(f, &[(b, 0, -16)]);
    assert!(!f.shared_flag());
    steps(f, &[(a, 0, -16)]);
    // S-MM3
    steps(f, &[(a, 0, 16), (b, 0, 16), (c, 0, 16), (b, 0, -16)]);
    assert!(f.shared_flag());
    steps(f, &[(c, 0, -16)]);
    assert!(!f.shared_flag());
    steps(f, &[(a, 0, -16)]);
    // S-MM4, S-MM5
    steps(f, &[(a, 0, 16), (b, 0, 16), (c, 0, 16), (a, 0, -16), (b, 0, -16)]);
    assert!(f.shared_flag() && f.maybe_mapped_shared() && f.mm_slots() == [None; 2]);
    steps(f, &[(c, 0, -15)]);
    assert!(f.shared_flag() && !f.maybe_mapped_shared());
    // S-MM7
    steps(f, &[(c, 15, -1), (a, 0, 16)]);
    assert_eq!(f.mm_slots(), [Some((mm(a), 16)), None]);
    assert!(!f.shared_flag());
    steps(f, &[(a, 0, -16)]);
    // S-MM6
    steps(f, &[(a, 0, 16), (b, 0, 16), (c, 0, 8), (b, 0, -16), (c, 8, 8)]);
    assert_eq!(f.mm_slots(), [Some((mm(a), 16)), Some((mm(c), 8))]);
    steps(f, &[(c, 0, -16)]);
    assert_eq!(f.mm_slots(), [Some((mm(a), 16)), None]);
    assert!(!f.shared_flag());
    steps(f, &[(a, 0, -16)]);
    // S-MM8
    steps(f, &[(a, 0, 1), (b, 1, 1), (a, 0, -1)]);
    assert_eq!(f.mm_slots(), [None, Some((mm(b), 1))]);
    assert!(!f.shared_flag());
}

/// Identities of all widths leave the flags alone that are beside them.
///
/// Rules: FOLIO-30.
#[test]
fn identities_disturb_no_flags() {
    let map = map(256);
    for [a, b] in [[1, MmId::MAX], [MmId::MAX, MmId::MAX - 1], [1 << 30, (1 << 30) - 1]] {
        let own = idle(&map);
        let f = own.folio();
        steps(f, &[(a, 0, 16)]);
        assert!(!f.shared_flag() && f.mm_slots() == [Some((mm(a), 16)), None]);
        steps(f, &[(b, 0, 16)]);
        assert!(f.shared_flag());
        // The first slot changes hands while the flag is set.
        steps(f, &[(3, 0, 16), (a, 0, -16), (a, 0, 8)]);
        assert!(f.shared_flag() && f.mm_slots() == [Some((mm(a), 8)), Some((mm(b), 16))]);
        assert_eq!(f.pages_mapped(), (16, false));
        steps(f, &[(3, 0, -16), (a, 0, -8)]);
        assert!(!f.shared_flag());
        steps(f, &[(b, 0, -16)]);
    }
}

/// Rules: FOLIO-13.
#[test]
fn a_small_page_is_mapped_until_its_last_mapping_goes() {
    let map = map(64);
    let f = fault(&map, 0, mm(P));
    assert_eq!((f.mapcount(), f.is_mapped(), f.maybe_mapped_shared()), (1, true, false));
    fork(f, C);
    assert_eq!((f.mapcount(), f.is_mapped(), f.maybe_mapped_shared()), (2, true, true));
    unmap(f, 0, 1, mm(P));
    assert_eq!((f.mapcount(), f.is_mapped(), f.maybe_mapped_shared()), (1, true, false));
    let own = f.grab::<Get>(1).expect("room");
    unmap(f, 0, 1, mm(C));
    assert_eq!((f.mapcount(), f.is_mapped()), (0, false));
    drop(own);
    assert_eq!(map.alive().count(), 0);
}

/// Rules: FOLIO-42.
#[test]
fn a_second_use_makes_active() {
    use FolioFlags as F;
    let map = map(64);
    let own = map.alloc(0).expect("frames");
    let f = own.folio();
    let age = || f.flags() & (F::REFERENCED | F::ACTIVE);
    for expected in [F::REFERENCED, F::ACTIVE, F::ACTIVE | F::REFERENCED, F::ACTIVE | F::REFERENCED]
    {
        f.mark_accessed();
        assert_eq!(age(), expected);
    }
    f.clear_flag(F::REFERENCED | F::ACTIVE);
    f.set_flag(F::UNEVICTABLE);
    f.mark_accessed();
    assert_eq!(age(), F::empty());
}

/// Rules: FOLIO-48.
#[test]
fn a_failed_page_is_its_parts_alone_after_a_split() {
    for (order, flagged) in [(2u32, vec![1]), (0, vec![5])] {
        let map = map(256);
        let f = fault(&map, 4, mm(P));
        f.poison(5);
        assert!(f.has(FolioFlags::HWPOISON) && f.is_poisoned(5) && !f.is_poisoned(4));
        let own = f.grab::<Get>(1).expect("room");
        unmap(f, 0, 16, mm(P));
        assert!(f.freeze(1));
        f.split_frozen(order);
        let per = 1u64 << order;
        let parts: Vec<_> = (0..16 / per).map(|i| map.folio(f.head().add(i * per))).collect();
        parts.iter().rev().for_each(|p| p.unfreeze(1));
        let bad: Vec<_> =
            (0..parts.len()).filter(|i| parts[*i].has(FolioFlags::HWPOISON)).collect();
        assert_eq!(bad, flagged);
        let page = |i: usize| parts[i / per as usize].is_poisoned((i % per as usize) as u32);
        assert!((0..16).all(|i| page(i) == (i == 5)));
        assert_eq!(AuditLog::new().finish(&map).len(), parts.len(), "one reference each");
        own.hand_over();
        parts.into_iter().for_each(|p| put(p, 1));
        assert_eq!((map.alive().count(), map.stats().bad_frees.get()), (0, 0));
        assert_eq!(map.stats().poisoned.get(), per, "nobody gets these again");
        assert_eq!(AuditLog::new().finish(&map), []);
    }
}

/// A broken contract is a panic in builds that check.
#[cfg(debug_assertions)]
mod contracts {
    use super::*;

    /// Whether `f` panics.
    fn refuses(f: impl FnOnce(&FolioMap)) -> bool {
        let map = map(2048);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&map)));
        // What was done before it is left as it is.
        std::mem::forget(map);
        caught.is_err()
    }
    fn add(f: Folio<'_, Space>, first: u32, n: u32, id: u32, marks: Exclusivity) {
        f.grab::<Get>(n).expect("room").hand_over();
        f.add_anon_ptes(first, nz(n), mm(id), marks);
    }

    /// Rules: FOLIO-38, RMAP-08.
    #[test]
    fn a_batch_lies_in_its_folio() {
        for (first, n) in [(0, 17), (1, 16), (15, 2), (16, 1)] {
            assert!(refuses(|map| unmap(fault(map, 4, mm(P)), first, n, mm(P))));
            assert!(refuses(|map| {
                add(fault(map, 4, mm(P)), first, n, C, Exclusivity::MaybeShared);
            }));
        }
        assert!(!refuses(|map| unmap(fault(map, 4, mm(P)), 1, 15, mm(P))));
        // More than there are, and by a leaf what has no leaf's size.
        assert!(refuses(|map| {
            let f = fault(map, 4, mm(P));
            f.remove_ptes(0, nz(16), mm(P));
            f.remove_ptes(0, nz(1), mm(P));
        }));
        assert!(refuses(|map| fault(map, 4, mm(P)).remove_pmd(mm(P))));
        assert!(refuses(|map| assert!(fault_pmd(map, 0, mm(P)).is_mapped())));
    }

    /// Rules: RMAP-04.
    #[test]
    fn an_exclusive_page_is_mapped_once() {
        let exclusive = Exclusivity::Exclusive;
        assert!(refuses(|map| add(fault(map, 4, mm(P)), 3, 1, C, exclusive)));
        assert!(!refuses(|map| {
            let f = fault(map, 4, mm(P));
            unmap(f, 3, 1, mm(P));
            add(f, 3, 1, P, exclusive);
        }));
        let leaf = |map: &FolioMap, marks| {
            let f = fault_pmd(map, 9, mm(P));
            f.grab::<Get>(1).expect("room").hand_over();
            f.add_anon_pmd(mm(C), marks);
        };
        assert!(refuses(|map| leaf(map, exclusive)));
        assert!(!refuses(|map| leaf(map, Exclusivity::MaybeShared)));
    }

    /// Rules: LOCK-02.
    #[test]
    fn nothing_is_locked_inside_of_the_counts_lock() {
        let (outer, rw) = (mm_sync::Mutex::<mm_sync::DefaultLock, _>::new(0), rw());
        let inside = |f: &dyn Fn(Folio<'_, Space>)| {
            refuses(|map| {
                let folio = fault(map, 4, mm(P));
                folio.counts_locked(|_| f(folio));
            })
        };
        assert!(inside(&|f| drop(f.try_lock())));
        assert!(inside(&|_| drop(outer.try_lock())));
        assert!(inside(&|_| drop(rw.try_read())));
        assert!(inside(&|_| drop(rw.try_write())));
        assert!(inside(&|f| assert_eq!(f.memmap().deferred_len(), 0)), "the queue has a lock");
        assert!(!inside(&|f| assert_eq!(f.mapcount(), 16)));
        // And none of it is held any more.
        let held = outer.lock();
        assert!(!inside(&|_| ()));
        drop(held);
    }
    fn rw() -> mm_sync::RwLock<mm_sync::DefaultRwLock, u32> {
        mm_sync::RwLock::new(0)
    }
}

/// Rules: FOLIO-21, FOLIO-22, FOLIO-23.
#[test]
fn partial_unmapping_is_noticed_once() {
    let map = map(2048);
    let stats = |o: usize| {
        let s = &map.stats().order[o];
        (s.split_deferred.get(), s.nr_anon_partially_mapped.get(), map.deferred_len())
    };
    let f = fault(&map, 4, mm(P));
    fork(f, C);
    f.remove_ptes(0, nz(16), mm(C));
    put(f, 16);
    assert_eq!(stats(4), (0, 0, 0), "every page is still mapped by the parent");
    unmap(f, 3, 1, mm(P));
    assert_eq!(stats(4), (1, 1, 1));
    unmap(f, 5, 1, mm(P));
    f.grab::<Get>(1).expect("room").hand_over();
    f.add_anon_ptes(3, nz(1), mm(P), Exclusivity::MaybeShared);
    assert_eq!(stats(4), (1, 1, 1));
    assert!(f.has(FolioFlags::PARTIALLY_MAPPED), "sticky");
    let whole = fault(&map, 4, mm(P));
    unmap(whole, 0, 16, mm(P));
    assert_eq!(stats(4), (1, 1, 1), "all at once is not partial");
    unmap(f, 0, 5, mm(P));
    unmap(f, 6, 10, mm(P));
    assert_eq!(stats(4), (1, 0, 0));
    // A PMD mapping that goes while some pages are mapped by PTEs as well.
    let thp = fault_pmd(&map, 9, mm(P));
    thp.grab::<Get>(2).expect("room").hand_over();
    thp.add_anon_ptes(0, nz(2), mm(C), Exclusivity::MaybeShared);
    assert_eq!(stats(9), (0, 0, 0));
    thp.remove_pmd(mm(P));
    put(thp, 1);
    assert_eq!(stats(9), (1, 1, 1));
    // The swap cache keeps folios off the queue.
    let cached = fault(&map, 2, mm(P));
    cached.set_flag(FolioFlags::SWAPCACHE);
    unmap(cached, 0, 1, mm(P));
    assert_eq!(stats(2), (0, 0, 1), "only the one above is queued");
}

/// Rules: FOLIO-17, FOLIO-18, FOLIO-20.
#[test]
fn statistics_by_kind() {
    let map = map(4096);
    let (file, shmem) = (map.alloc(9).expect("frames"), map.alloc(9).expect("frames"));
    file.folio().set_file(FileId(1), 0);
    shmem.folio().set_file(FileId(2), 0);
    shmem.folio().set_flag(FolioFlags::SWAPBACKED);
    let s = map.stats();
    file.folio().add_file_ptes(0, nz(1), mm(P));
    assert_eq!(s.nr_file_mapped.get(), 1);
    file.folio().grab::<Get>(1).expect("room").hand_over();
    file.folio().add_file_pmd(mm(C));
    assert_eq!((s.nr_file_mapped.get(), s.nr_file_pmdmapped.get()), (512, 512));
    shmem.folio().add_file_pmd(mm(P));
    assert_eq!((s.nr_file_mapped.get(), s.nr_shmem_pmdmapped.get()), (1024, 512));
    file.folio().remove_pmd(mm(C));
    assert_eq!((s.nr_file_mapped.get(), s.nr_file_pmdmapped.get()), (513, 0));
    assert_eq!(map.deferred_len(), 0, "files are never queued");
    file.folio().remove_ptes(0, nz(1), mm(P));
    shmem.folio().remove_pmd(mm(P));
    assert_eq!((s.nr_file_mapped.get(), s.nr_shmem_pmdmapped.get()), (0, 0));
    let _ = file.hand_over();
    let _ = shmem.hand_over();
}

/// Rules: FOLIO-14, FOLIO-36, RMAP-05.
#[test]
fn order_one_files_have_no_slots() {
    let map = map(64);
    let f = map.alloc(1).expect("frames").hand_over();
    f.set_file(FileId(1), 0);
    f.grab::<Get>(3).expect("room").hand_over();
    f.add_file_ptes(0, nz(2), mm(P));
    assert_eq!((f.mapcount(), f.maybe_mapped_shared()), (2, true));
    f.remove_ptes(1, nz(1), mm(P));
    assert_eq!((f.mapcount(), f.maybe_mapped_shared()), (1, false));
    assert_eq!(map.page_mapcount(f.page(0)) + map.page_mapcount(f.page(1)), 1);
    f.remove_ptes(0, nz(1), mm(P));
    f.clear_file();
    put(f, 4);
    assert_eq!((map.alive().count(), map.stats().bad_frees.get()), (0, 0));
}

/// Rules: FOLIO-07, FOLIO-54, FOLIO-55, EXCL-05.
#[test]
fn a_frozen_folio_splits() {
    let map = map(256);
    for order in [0u32, 2] {
        let f = fault(&map, 4, mm(P));
        f.set_flag(FolioFlags::DIRTY | FolioFlags::SWAPBACKED | FolioFlags::UPTODATE);
        let own = f.grab::<Get>(1).expect("room");
        unmap(f, 0, 16, mm(P));
        assert!(!f.freeze(2), "a stray reference would stay");
        assert_eq!(f.refcount(), 1);
        assert!(f.freeze(1));
        assert!(map.try_grab::<Get>(f.page(5), 1).is_none(), "frozen");
        f.split_frozen(order);
        let per = 1u64 << order;
        let parts: Vec<_> = (0..16 / per).map(|i| map.folio(f.head().add(i * per))).collect();
        for p in parts.iter().rev() {
            p.unfreeze(1);
        }
        for (i, p) in parts.iter().enumerate() {
            assert_eq!((p.order(), p.refcount(), p.mapcount()), (order, 1, 0));
            assert!(p.has(FolioFlags::DIRTY | FolioFlags::SWAPBACKED | FolioFlags::UPTODATE));
            assert_eq!(p.anon(), Some((AnonId(1), 0x1000 + i as u64 * per)));
            assert_eq!(map.page_exclusive(p.head()), i == 0, "only page 0 keeps its mark");
        }
        let _ = own.hand_over();
        for p in parts {
            put(p, 1);
        }
        assert_eq!((map.alive().count(), map.stats().bad_frees.get()), (0, 0));
        assert!(map.stats().order.iter().all(|o| o.nr_anon.get() == 0));
    }
}

/// Rules: FOLIO-49, PIN-03.
#[test]
fn the_zero_page_is_not_counted() {
    let map = map(2048);
    let zero = map.alloc(0).expect("frames").hand_over();
    map.set_zero_page(zero.head());
    let huge = map.alloc(9).expect("frames").hand_over();
    map.set_huge_zero(huge.head());
    assert!(map.is_zero_page(zero.head()) && !map.is_huge_zero(zero.head()));
    assert!(map.is_huge_zero(huge.page(77)) && !map.is_zero_page(huge.page(77)));
    let fast = map.try_grab::<Pin>(zero.head(), 3).expect("always");
    let mut slow = zero.grab::<Pin>(2).expect("always");
    slow.grow(5).expect("always");
    assert_eq!(zero.refcount(), 1);
    map.put_run::<Pin>(fast.into_run(0));
    drop(slow);
    assert_eq!(zero.refcount(), 1);
    // A plain reference counts, and the huge one is a normal folio.
    let get = map.try_grab::<Get>(zero.head(), 2).expect("alive");
    let pin = map.try_grab::<Pin>(huge.page(5), 2).expect("alive");
    assert_eq!((zero.refcount(), huge.refcount(), huge.pincount()), (3, 3, 2));
    drop((get, pin));
    assert_eq!((zero.refcount(), huge.refcount(), huge.pincount()), (1, 1, 0));
}

/// Rules: FOLIO-12.
#[test]
fn metadata_stays_below_forty_bytes_per_page() {
    let map = map(4096);
    assert!(map.metadata_bytes() <= 40 * 4096, "{}", map.metadata_bytes());
    assert!(map.metadata_bytes() >= 32 * 4096);
}

/// Rules: FOLIO-43, FOLIO-47.
#[test]
fn locks_and_flags_test_before_they_set() {
    let map = map(64);
    let own = map.alloc(0).expect("frames");
    let f = own.folio();
    assert!(f.set_flag(FolioFlags::REFERENCED) && !f.set_flag(FolioFlags::REFERENCED));
    assert!(f.clear_flag(FolioFlags::REFERENCED) && !f.clear_flag(FolioFlags::REFERENCED));
    let guard = f.lock();
    assert_eq!(guard.folio(), f);
    assert!(f.try_lock().is_none());
    drop(guard);
    assert!(f.try_lock().is_some());
}

/// Rules: RMAP-11, RMAP-14, RMAP-16, RMAP-17.
#[test]
fn sharing_minds_pins_and_nothing_else() {
    let map = map(64);
    let f = fault(&map, 4, mm(P));
    let get = f.grab::<Get>(1).expect("room");
    assert_eq!(f.try_share_anon_pte(2), Ok(()), "plain references do not matter");
    assert!(!map.page_exclusive(f.page(2)) && map.page_exclusive(f.page(3)));
    let pin = f.grab::<Pin>(1).expect("room");
    assert_eq!(f.try_share_anon_pte(9), Err(MaybePinned), "pins are the whole folio's");
    assert!(map.page_exclusive(f.page(9)));
    // Pages 0..3: exclusive but for 2. Only a range without any may be shared.
    let fork = |first, n, pinned| f.try_dup_anon_ptes(first, nz(n), mm(C), pinned);
    f.grab::<Get>(32).expect("room").hand_over();
    assert_eq!(fork(2, 2, HasPinned::Maybe), Err(MaybePinned));
    assert!(map.page_exclusive(f.page(3)), "nothing was changed");
    assert_eq!(fork(2, 1, HasPinned::Maybe), Ok(()));
    assert_eq!(fork(4, 2, HasPinned::Never), Ok(()));
    f.set_flag(FolioFlags::DEVICE_PRIVATE);
    assert_eq!(fork(8, 1, HasPinned::Maybe), Ok(()));
    assert_eq!(f.try_share_anon_pte(11), Ok(()));
    drop((get, pin));
}

/// Rules: ANON-05: a new folio that loses the race to be mapped was anonymous,
/// and leaves no trace in the gauges.
#[test]
fn a_folio_that_is_never_mapped_leaves_the_gauges_alone() {
    let map = map(64);
    let gauge = || map.stats().order[2].nr_anon.get();
    let new = map.alloc(2).expect("frames");
    new.folio().set_anon(AnonId(1), 0);
    assert_eq!(gauge(), 1);
    // Into another tree: still one folio.
    new.folio().set_anon(AnonId(2), 0);
    assert_eq!(gauge(), 1);
    drop(new);
    assert_eq!(gauge(), 0);
    let f = fault(&map, 2, mm(1));
    assert_eq!(gauge(), 1);
    unmap(f, 0, 4, mm(1));
    assert_eq!(gauge(), 0);
}
