//! When a fault is userfaultfd's to answer.

use crate::common::*;
use mm_arch::{Arch, Entry, Level, Markers, NonPresent, SwapBits};
use mm_fault::{FaultFlags, FaultOutcome, OrderMode, ThpMode, ThpPolicy, UserFault};
use mm_pgtable::TableSpace;
use mm_vma::{Platform, VmaFlags};

const DONE: FaultOutcome = FaultOutcome::Done { major: false };
const READ: FaultFlags = FaultFlags::empty();
const WRITE: FaultFlags = FaultFlags::WRITE;
const UNSHARE: FaultFlags = FaultFlags::UNSHARE;
const SYNC: VmaFlags = RW.union(VmaFlags::UFFD_WP);
const ASYNC: VmaFlags = SYNC.union(VmaFlags::UFFD_WP_ASYNC);
const MISSING: VmaFlags = RW.union(VmaFlags::UFFD_MISSING);

fn asked(page: u64, kind: UserFault) -> FaultOutcome {
    FaultOutcome::UserFault { va: va(page), kind }
}
fn missing(page: u64, write: bool) -> FaultOutcome {
    asked(page, UserFault::Missing { write })
}
/// Puts a write-protection marker where nothing is mapped; its table exists.
fn mark<A: Arch>(p: &Process<A>, page: u64) {
    let marker = NonPresent::Marker(Markers::UFFD_WP);
    let e = E::<A>::from_nonpresent(marker, SwapBits::default()).expect("encodable");
    p.with(|vmas| {
        let mut t = p.mm.tables().lock_table(vmas.stay(), va(page)).expect("table");
        let index = t.index_of(va(page));
        t.set(index, e);
    });
}

on_models! {
    /// Rules: FAULT-07. Cases: MM-039.
    fn a_store_to_a_protected_page_asks_and_changes_nothing<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 8), SYNC);
        p.write(0, 7);
        if A::HAS_UFFD_WP {
            p.change(0, |e| e.mkuffd_wp());
            let (before, reused) = (p.pte(0), p.reused());
            for _ in 0..2 {
                assert_eq!(p.fault(0, WRITE), asked(0, UserFault::Wp));
                assert_eq!((p.pte(0), p.reused()), (before, reused));
            }
            // Not a store of the process.
            assert_eq!((p.fault(0, READ), p.fault(0, UNSHARE)), (DONE, DONE));
            assert!(p.pte(0).is_uffd_wp() && !p.pte(0).is_writable(Level::Pte));
            p.check();
            // Answered.
            p.change(0, |e| e.clear_uffd_wp());
            assert_eq!(p.fault(0, WRITE), DONE);
            assert!(p.pte(0).is_writable(Level::Pte));
        }
        p.exit();
        assert_clean(&m);
    }

    /// Rules: FAULT-07, WREUSE-10. Cases: MM-039.
    fn an_asynchronous_protection_just_ends<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 8), ASYNC);
        p.write(0, 7);
        if A::HAS_UFFD_WP {
            p.change(0, |e| e.mkuffd_wp());
            assert_eq!(p.fault(0, WRITE), DONE);
            assert!(!p.pte(0).is_uffd_wp() && p.pte(0).is_writable(Level::Pte));
        }
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: UFFD-01.
    fn a_missing_page_is_asked_for_and_nothing_is_kept<A>() {
        let m = new_machine::<A>();
        let pmd = A::order(Level::Pmd);
        for (thp, zero) in [
            (ThpPolicy::new(pmd), true),
            (ThpPolicy::new(pmd).with_order(2, OrderMode::Always), true),
            (ThpPolicy::new(pmd).with_global(ThpMode::Always), true),
            (ThpPolicy::new(pmd).with_global(ThpMode::Always), false),
        ] {
            let p = Process::<A>::new(&m).with_policy(thp.with_zero_page(zero));
            p.map(pages(0, 2 << pmd), MISSING);
            for page in [1, (1 << pmd) + 3] {
                assert_eq!(p.fault(page, READ), missing(page, false));
                assert_eq!(p.fault(page, UNSHARE), missing(page, false));
                assert_eq!(p.fault(page, WRITE), missing(page, true));
                assert!(p.entry(page).0.is_none() || p.entry(page).1 == Level::Pmd);
                assert!(p.pte(page).is_none());
            }
            assert_eq!((p.rss(), m.folios_in_use()), (0, 0), "{thp:?}");
            p.exit();
        }
        assert_clean(&m);
    }

    /// Rules: ANON-06.
    fn watched_mappings_get_single_pages<A>() {
        let m = new_machine::<A>();
        let thp = ThpPolicy::new(A::order(Level::Pmd)).with_order(2, OrderMode::Always);
        for (flags, order) in [(RW, 2), (SYNC, 0), (ASYNC, 0)] {
            let p = Process::<A>::new(&m).with_policy(thp);
            p.map(pages(0, 8), flags);
            p.write(5, 1);
            assert_eq!(p.folio(5).order(), order);
            p.exit();
        }
        assert_clean(&m);
    }

    /// Rules: ANON-04, UFFD-05. Rows: S-UF5.
    fn a_marker_protects_what_comes_in_its_place<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 8), SYNC);
        p.write(7, 7);
        if A::HAS_UFFD_WP {
            mark(&p, 0);
            mark(&p, 1);
            assert_eq!(p.fault(0, READ), DONE);
            let zero = p.pte(0);
            assert!(zero.pfn(Level::Pte) == m.zero_page() && zero.is_uffd_wp());
            assert_eq!(p.fault(0, WRITE), asked(0, UserFault::Wp));

            assert_eq!(p.fault(1, WRITE), DONE);
            let e = p.pte(1);
            assert!(e.is_uffd_wp() && e.is_dirty() && !e.is_writable(Level::Pte));
            assert!(p.is_exclusive(1));
            assert_eq!(p.fault(1, WRITE), asked(1, UserFault::Wp));
            assert_eq!(p.rss(), 2);
            p.check();
        }
        p.exit();
        assert_clean(&m);
    }

    /// Rules: UFFD-05: no endless retry.
    fn a_marker_that_was_left_over_is_nothing<A>() {
        let m = new_machine::<A>();
        let thp = ThpPolicy::new(A::order(Level::Pmd)).with_order(2, OrderMode::Always);
        let p = Process::<A>::new(&m).with_policy(thp);
        p.map(pages(0, 8), RW);
        p.write(7, 7);
        mark(&p, 0);
        mark(&p, 2);
        assert_eq!(p.fault(0, WRITE), DONE);
        let e = p.pte(0);
        assert!(e.is_writable(Level::Pte) && !e.is_uffd_wp());
        // The marker next to it is in the way of a large folio.
        assert_eq!(p.folio(0).order(), 0);
        assert_eq!(p.fault(2, READ), DONE);
        assert!(p.pte(2).pfn(Level::Pte) == m.zero_page() && !p.pte(2).is_uffd_wp());
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: PMDF-01.
    fn a_protected_leaf_stays_whole_until_it_is_answered<A>() {
        for flags in [SYNC, ASYNC] {
            let m = new_machine::<A>();
            let order = A::order(Level::Pmd);
            let p = Process::new(&m).with_policy(ThpPolicy::new(order).with_global(ThpMode::Always));
            p.map(pages(0, 2 << order), flags);
            p.write(0, 1);
            assert_eq!(p.entry(0).1, Level::Pmd, "this size is not refused");
            if A::HAS_UFFD_WP {
                protect_pmd::<A>(&p);
                let before = p.entry(0);
                assert_eq!(p.fault(3, UNSHARE), DONE);
                assert_eq!(p.entry(0), before);
                if flags == SYNC {
                    assert_eq!(p.fault(3, WRITE), asked(3, UserFault::Wp));
                    assert_eq!(p.entry(0), before);
                } else {
                    assert_eq!(p.fault(3, WRITE), DONE);
                    assert!(p.pte(3).is_writable(Level::Pte) && !p.pte(3).is_uffd_wp());
                    assert!(p.pte(4).is_uffd_wp() && !p.pte(4).is_writable(Level::Pte));
                }
                p.check();
            }
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: FAULT-08. Races: F-RACE-28.
    fn what_is_copied_is_not_stored_to_any_more<A>() {
        let flushes = [RW, SYNC].map(|flags| {
            let m = new_machine::<A>();
            let p = Process::<A>::new(&m);
            p.map(pages(0, 8), flags);
            p.write(0, 7);
            let c = p.fork();
            let before = m.tlb().flushes.get();
            p.write(0, 8);
            let flushes = m.tlb().flushes.get() - before;
            assert_eq!((p.read(0), c.read(0)), (8, 7));
            c.exit();
            p.exit();
            assert_clean(&m);
            flushes
        });
        assert_eq!(flushes[1], flushes[0] + 1, "once more, before the copy");
    }
}

fn protect_pmd<A: Arch>(p: &Process<A>) {
    p.with(|vmas| {
        let mut pmd = p.mm.tables().lock_pmd(vmas.stay(), va(0)).expect("table");
        let mut owed = p.mm.tables().tlb().obligation();
        let new = pmd.entry().mkuffd_wp();
        pmd.swap(new, &mut owed);
    });
}
