//! Small pages become a large folio.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry, Level, NonPresent, SwapBits, SwapSlot};
    use mm_folio::{FolioFlags, Get, Pin};
    use mm_map::{
        Advice, CollapseError, CollapseFor, CollapseLimits, Collapsed, MapPolicy, collapse_anon,
        collapse_scan, fork, madvise, mprotect,
    };
    use mm_rmap::{RmapPlatform, split_pmd};
    use mm_vma::{Event, Platform, RssKind, VmaFlags};

    const CALLER: CollapseFor = CollapseFor::Caller;

    fn pmd_order<A: Arch>() -> u32 {
        A::order(Level::Pmd)
    }
    fn collapse<A: Arch>(
        policy: &MapPolicy,
        mm: &Space<A>,
        order: u32,
    ) -> Result<Collapsed, CollapseError> {
        collapse_anon(policy, mm, va::<A>(0), order, CALLER)
    }
    /// All pages of a block of a PMD's size, in folios of these orders one after the other.
    fn filled<A: Arch>(mm: &Space<A>, orders: &[u32]) {
        let (mut page, mut k) = (0, 0);
        while page < pmd_pages::<A>() {
            let order = orders[k % orders.len()];
            map_folio(mm, page, order);
            (page, k) = (page + (1 << order), k + 1);
        }
    }
    fn content_is_kept<A: Arch>(m: &M<A>, mm: &Space<A>, zeros: impl Fn(u64) -> bool) {
        let (e, level) = entry::<A>(mm, 0);
        for k in 0..pmd_pages::<A>() {
            let pfn = match level {
                Level::Pmd => e.pfn(level).add(k),
                _ => pte::<A>(mm, k).pfn(Level::Pte),
            };
            assert_eq!(m.content(pfn), if zeros(k) { 0 } else { 1000 + k }, "page {k}");
        }
    }

    pub fn pages_of_all_sizes_become_one_leaf<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            for orders in [&[0][..], &[2], &[0, 0, 0, 0, 2, 3]] {
                let m = new_machine::<A>();
                let n = pmd_pages::<A>();
                let p = space(&m, n);
                filled(&p, orders);
                let (tables, flushes) = (m.tables_in_use(), m.tlb_flushes());
                assert_eq!(collapse::<A>(&policy, &p, pmd_order::<A>()), Ok(Collapsed::Now));
                let (e, level) = entry::<A>(&p, 0);
                assert!(e.is_leaf(Level::Pmd) && level == Level::Pmd);
                assert!(e.is_writable(level) && e.is_dirty() && e.is_young());
                let folio = m.memmap().folio(e.pfn(level));
                assert_eq!(folio.order(), pmd_order::<A>());
                assert!(folio.has(FolioFlags::UPTODATE | FolioFlags::SWAPBACKED));
                assert!(!folio.has(FolioFlags::DIRTY) && m.memmap().page_exclusive(folio.head()));
                let counts = folio.counts_locked(|c| (c.refs, c.mapcount, c.entire));
                assert_eq!(counts, (1, 1, 1));
                assert!(folio.is_deferred(), "FOLIO-24: it may be mostly zeros");
                content_is_kept(&m, &p, |_| false);
                assert_eq!((m.folios_in_use(), m.tables_in_use()), (1, tables));
                assert_eq!(p.counters().get(RssKind::Anon), n);
                assert!(m.tlb_flushes() > flushes);
                assert_eq!(m.events().get(Event::CollapseAlloc), u64::from(pmd_order::<A>()));
                audit(&m, &[&p]);
                // The deposited table serves a later split.
                split_pmd(&p, p.read().stay(), va::<A>(3));
                content_is_kept(&m, &p, |_| false);
                audit(&m, &[&p]);
                finish(&m, vec![p]);
            }
        }
    }

    pub fn holes_and_zero_pages_become_resident_zeros<A: Arch>() {
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, n);
        map_folio(&p, 0, 0);
        map_folio(&p, 5, 0);
        map_zero(&p, 7);
        assert_eq!(p.counters().get(RssKind::Anon), 2);
        assert_eq!(collapse::<A>(&BATCHED, &p, pmd_order::<A>()), Ok(Collapsed::Now));
        content_is_kept(&m, &p, |k| k != 0 && k != 5);
        assert_eq!(p.counters().get(RssKind::Anon), n);
        audit(&m, &[&p]);
        assert_eq!(collapse::<A>(&BATCHED, &p, pmd_order::<A>()), Ok(Collapsed::Already));
        finish(&m, vec![p]);
    }

    pub fn smaller_orders_go_into_the_table<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, pmd_pages::<A>());
            filled(&p, &[0]);
            let none = Err(CollapseError::NotAllowed(va::<A>(0)));
            for order in [0, 1, pmd_order::<A>() + 1, 52, 64, u32::MAX] {
                assert_eq!(collapse::<A>(&policy, &p, order), none);
            }
            for order in [pmd_order::<A>() + 1, u32::MAX] {
                assert_eq!(
                    collapse_scan(&policy, &p, order, CollapseLimits::default_of(4), |_| true),
                    0
                );
            }
            let tables = m.tables_in_use();
            let at = va::<A>(8);
            assert_eq!(collapse_anon(&policy, &p, at, 3, CALLER), Ok(Collapsed::Now));
            let folio = m.memmap().folio(pte::<A>(&p, 8).pfn(Level::Pte));
            assert_eq!(folio.order(), 3);
            for k in 0..8 {
                let e = pte::<A>(&p, 8 + k);
                assert_eq!(e.pfn(Level::Pte), folio.page(k as u32));
                assert!(e.is_writable(Level::Pte) && m.memmap().page_exclusive(e.pfn(Level::Pte)));
            }
            assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), (8, 8));
            assert_eq!(m.memmap().folio(pte::<A>(&p, 16).pfn(Level::Pte)).order(), 0);
            content_is_kept(&m, &p, |_| false);
            assert_eq!(m.tables_in_use(), tables, "the same table");
            audit(&m, &[&p]);
            // Order 1 and orders above a table are none of an anonymous folio.
            for order in [0, 1, pmd_order::<A>() + 1] {
                let refused = collapse_anon(&policy, &p, at, order, CALLER);
                assert_eq!(refused, Err(CollapseError::NotAllowed(at)));
            }
            finish(&m, vec![p]);
        }
    }

    pub fn others_keep_what_is_shared<A: Arch>() {
        for leaf in [false, true] {
            let m = new_machine::<A>();
            let n = pmd_pages::<A>();
            let p = space(&m, n);
            if leaf {
                map_pmd(&p, 0);
            } else {
                filled(&p, &[0]);
            }
            let c = fork(&BATCHED, &p).expect("memory");
            split_pmd(&c, c.read().stay(), va::<A>(0));
            let parent: Vec<_> = (0..n).map(|k| entry::<A>(&p, k)).collect();
            assert_eq!(collapse::<A>(&BATCHED, &c, pmd_order::<A>()), Ok(Collapsed::Now));
            assert!((0..n).map(|k| entry::<A>(&p, k)).eq(parent));
            let (mine, theirs) = (entry::<A>(&c, 0), entry::<A>(&p, 0));
            assert_ne!(mine.0.pfn(mine.1), theirs.0.pfn(theirs.1));
            assert!(mine.0.is_writable(Level::Pmd) && !theirs.0.is_writable(theirs.1));
            content_is_kept(&m, &c, |_| false);
            content_is_kept(&m, &p, |_| false);
            audit(&m, &[&p, &c]);
            finish(&m, vec![c, p]);
        }
    }

    pub fn what_is_held_refuses_and_everything_stays<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let n = pmd_pages::<A>();
            let p = space(&m, n);
            filled(&p, &[0, 0, 0, 0, 2]);
            let before: Vec<_> = (0..n).map(|k| pte::<A>(&p, k)).collect();
            let tables = m.tables_in_use();
            let refused = |page: u64| {
                let result = collapse::<A>(&policy, &p, pmd_order::<A>());
                assert_eq!(result, Err(CollapseError::Held(va::<A>(page))));
                assert_eq!(result.map_err(CollapseError::errno), Err("EAGAIN"));
                assert!((0..n).map(|k| pte::<A>(&p, k)).eq(before.iter().copied()));
                assert_eq!(m.tables_in_use(), tables);
                p.tables().audit_counts(p.read().stay(), &mut |f, a, b| panic!("{f:?} {a} {b}"));
            };
            let last = m.memmap().folio(before[n as usize - 1].pfn(Level::Pte));
            let page = (0..n).find(|k| last.contains(before[*k as usize].pfn(Level::Pte)));
            let page = page.expect("mapped");
            let pin = last.grab::<Pin>(1).expect("room");
            refused(page);
            drop(pin);
            let get = last.grab::<Get>(1).expect("room");
            refused(page);
            drop(get);
            // Found only when everything is cut off: a lock.
            let lock = last.lock();
            refused(page);
            drop(lock);
            for k in 0..n {
                let folio = m.memmap().folio(before[k as usize].pfn(Level::Pte));
                assert!(!folio.has(FolioFlags::LOCKED));
            }
            assert_eq!(collapse::<A>(&policy, &p, pmd_order::<A>()), Ok(Collapsed::Now));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn mappings_and_entries_that_cannot_be_collapsed<A: Arch>() {
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, 3 * n);
        let order = pmd_order::<A>();
        let at = |page| collapse_anon(&BATCHED, &p, va::<A>(page), order, CALLER);
        assert_eq!(at(0), Err(CollapseError::NotAllowed(va::<A>(0))), "never touched");
        map_folio(&p, 0, 0);
        assert_eq!(at(n), Err(CollapseError::Nothing(va::<A>(n))));
        assert_eq!(at(n).map_err(CollapseError::errno), Err("EINVAL"));
        assert_eq!(at(5 * n), Err(CollapseError::NotAllowed(va::<A>(5 * n))));
        // A mark of userfaultfd would be lost, or spread.
        if A::HAS_UFFD_WP {
            edit::<A>(&p, 0, E::<A>::mkuffd_wp);
            assert_eq!(at(0), Err(CollapseError::Entry(va::<A>(0))));
            edit::<A>(&p, 0, E::<A>::clear_uffd_wp);
        }
        madvise(&BATCHED, &mut p.write(), pages::<A>(3, 1), Advice::GuardInstall).expect("guard");
        assert_eq!(at(0), Err(CollapseError::Entry(va::<A>(3))));
        madvise(&BATCHED, &mut p.write(), pages::<A>(3, 1), Advice::GuardRemove).expect("guard");
        let slot = NonPresent::Swap(SwapSlot { device: 0, offset: 9 });
        set_pte::<A>(&p, 4, E::<A>::from_nonpresent(slot, SwapBits::default()).expect("encodes"));
        assert_eq!(at(0), Err(CollapseError::Swapped(va::<A>(4))));
        set_pte::<A>(&p, 4, E::<A>::NONE);
        madvise(&BATCHED, &mut p.write(), pages::<A>(0, n), Advice::NoHugePage).expect("advice");
        assert_eq!(at(0), Err(CollapseError::NotAllowed(va::<A>(0))));
        madvise(&BATCHED, &mut p.write(), pages::<A>(0, n), Advice::HugePage).expect("advice");
        // A VMA that ends inside of the block.
        mprotect(&BATCHED, &mut p.write(), pages::<A>(n - 1, 1), mm_arch::Rights::READ)
            .expect("mprotect");
        assert_eq!(at(0), Err(CollapseError::NotAllowed(va::<A>(0))));
        let rw = mm_arch::Rights::READ | mm_arch::Rights::WRITE;
        mprotect(&BATCHED, &mut p.write(), pages::<A>(n - 1, 1), rw).expect("mprotect");
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn read_only_mappings_get_read_only_leaves<A: Arch>() {
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, n);
        filled(&p, &[2]);
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, n), mm_arch::Rights::READ).expect("ok");
        assert_eq!(collapse::<A>(&BATCHED, &p, pmd_order::<A>()), Ok(Collapsed::Now));
        let leaf = entry::<A>(&p, 0).0;
        assert!(!leaf.is_writable(Level::Pmd));
        // What was stored before the mapping lost its rights is not forgotten.
        assert!(leaf.is_dirty() && leaf.is_soft_dirty() == A::HAS_SOFT_DIRTY);
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn a_scan_keeps_its_limits<A: Arch>() {
        let m = new_machine::<A>();
        let n = pmd_pages::<A>() as u32;
        let order = pmd_order::<A>();
        let p = space(&m, 4 * u64::from(n));
        // Three pages are missing, two are shared with a child, all were used.
        for k in 3..u64::from(n) {
            map_folio(&p, k, 0);
        }
        let c = fork(&BATCHED, &p).expect("memory");
        for k in 5..u64::from(n) {
            unmap_one::<A>(&c, k);
        }
        let with =
            |limits| collapse_anon(&BATCHED, &p, va::<A>(0), order, CollapseFor::Scan(limits));
        let limits = CollapseLimits { max_none: 3, max_swap: 0, max_shared: 2 };
        let at = va::<A>(0);
        assert_eq!(
            with(CollapseLimits { max_none: 2, ..limits }),
            Err(CollapseError::TooManyNone(at))
        );
        assert_eq!(
            with(CollapseLimits { max_shared: 1, ..limits }),
            Err(CollapseError::TooManyShared(at))
        );
        let slot = NonPresent::Swap(SwapSlot { device: 0, offset: 9 });
        let swapped = E::<A>::from_nonpresent(slot, SwapBits::default()).expect("encodes");
        set_pte::<A>(&p, 1, swapped);
        assert_eq!(with(limits), Err(CollapseError::TooManySwapped(at)));
        assert_eq!(
            with(CollapseLimits { max_swap: 1, ..limits }),
            Err(CollapseError::Swapped(va::<A>(1)))
        );
        set_pte::<A>(&p, 1, E::<A>::NONE);
        // Of what nobody used lately nothing is made.
        let young: Vec<_> = (3..u64::from(n)).map(|k| pte::<A>(&p, k)).collect();
        for k in 3..u64::from(n) {
            edit::<A>(&p, k, E::<A>::mkold);
        }
        assert_eq!(with(limits), Err(CollapseError::NotUsed(at)));
        edit::<A>(&p, 9, E::<A>::mkyoung);
        assert_eq!(young.len() as u32, n - 3);
        // Missing pages of a registered mapping are asked for, not made up.
        let flags = p.read().find(at).expect("mapped").flags();
        p.write().change().find_mut(at).expect("mapped").set_flags(flags | VmaFlags::UFFD_MISSING);
        assert_eq!(with(limits), Err(CollapseError::TooManyNone(at)));
        p.write().change().find_mut(at).expect("mapped").set_flags(flags);

        assert_eq!(collapse_scan(&BATCHED, &p, order, limits, |_| false), 0);
        assert_eq!(collapse_scan(&BATCHED, &p, order, limits, |_| true), 1);
        assert_eq!(collapse_scan(&BATCHED, &p, order, limits, |_| true), 0, "nothing is left");
        assert!(entry::<A>(&p, 0).0.is_leaf(Level::Pmd));
        audit(&m, &[&p, &c]);
        finish(&m, vec![c, p]);
        let default = CollapseLimits::default_of(512);
        assert_eq!((default.max_none, default.max_swap, default.max_shared), (511, 64, 256));
    }

    pub fn without_memory_everything_stays<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, pmd_pages::<A>());
        filled(&p, &[0]);
        let before = entry::<A>(&p, 3);
        m.failures().fail_after(0);
        let failed = collapse::<A>(&BATCHED, &p, pmd_order::<A>());
        assert_eq!(failed.map_err(CollapseError::errno), Err("ENOMEM"));
        assert!(!m.failures().disarm());
        assert_eq!(entry::<A>(&p, 3), before);
        audit(&m, &[&p]);
        assert_eq!(m.anon_trees().nr_members(), 1);
        finish(&m, vec![p]);
    }
}

on_all! {
    /// Rules: COLL-02, COLL-04, FOLIO-24, EXCL-03; rows S-KH1, S-KH8.
    pages_of_all_sizes_become_one_leaf;
    /// Rules: COLL-04; rows S-KH3, S-KH12.
    holes_and_zero_pages_become_resident_zeros;
    /// Rules: COLL-04, FOLIO-51; row S-KH7.
    smaller_orders_go_into_the_table;
    /// Rules: COLL-04; rows S-KH9, S-KH10.
    others_keep_what_is_shared;
    /// Rules: COLL-01, COLL-03; row S-KH13.
    what_is_held_refuses_and_everything_stays;
    /// Rules: COLL-01; row S-KH2.
    mappings_and_entries_that_cannot_be_collapsed;
    /// Rules: COLL-04, PTE-14.
    read_only_mappings_get_read_only_leaves;
    /// Rules: COLL-01; rows S-KH4, S-KH6, S-KH11.
    a_scan_keeps_its_limits;
    /// Rules: COLL-02.
    without_memory_everything_stays;
}
