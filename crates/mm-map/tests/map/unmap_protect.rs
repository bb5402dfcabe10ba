//! Unmapping, discarding, changing rights, advice.

mod generic {
    use crate::common::*;
    use mm_arch::{
        Arch, Entry, Level, Markers, MigrationKind, NonPresent, Rights, SwapBits, VirtRange,
    };
    use mm_map::{Advice, MapError, clear_soft_dirty, fork, madvise, mmap_anon, mprotect, munmap};
    use mm_vma::{Mm, Platform, RssKind, VmaFlags};

    const R: Rights = Rights::READ;
    const RW_: Rights = Rights::READ.union(Rights::WRITE);

    pub fn a_hole_in_a_folio<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            munmap(&policy, &mut p.write(), pages::<A>(7, 1)).expect("memory");
            assert_eq!(vmas::<A>(&p), [(0, 7), (8, 8)]);
            assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), (15, 15));
            assert_eq!(p.counters().get(RssKind::Anon), 15);
            assert_eq!(m.memmap().deferred_len(), 1, "FOLIO-22");
            audit(&m, &[&p]);
            // Idempotent, also over what is not mapped at all.
            munmap(&policy, &mut p.write(), pages::<A>(4, 100)).expect("memory");
            assert_eq!(vmas::<A>(&p), [(0, 4)]);
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn entries_of_a_run_may_differ<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 16);
        let folio = map_folio(&p, 0, 4);
        for page in [1, 2, 7, 11] {
            edit::<A>(&p, page, |e| e.wrprotect().mkold());
            edit::<A>(&p, page + 1, E::<A>::mkclean);
        }
        let flushes = m.tlb_flushes();
        madvise(&BATCHED, &mut p.write(), pages::<A>(0, 16), Advice::DontNeed).expect("mapped");
        // Formats with blocks flush on their own besides.
        assert!(A::CONT > 1 || m.tlb_flushes() - flushes == 1, "one flush for all of it");
        assert_eq!(m.folios_in_use(), 0, "{folio:?}");
        assert_eq!(vmas::<A>(&p), [(0, 16)]);
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn zero_pages_and_leaves_go_too<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let n = pmd_pages::<A>();
            let p = space(&m, 3 * n);
            map_pmd(&p, 0);
            map_huge_zero(&p, n);
            map_zero(&p, 2 * n + 1);
            map_folio(&p, 2 * n + 2, 1);
            madvise(&policy, &mut p.write(), pages::<A>(0, 3 * n), Advice::DontNeed)
                .expect("mapped");
            assert_eq!(m.folios_in_use(), 0);
            assert_eq!(p.counters().resident(), 0);
            assert!((0..3 * n).all(|page| entry::<A>(&p, page).0.is_none()));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn part_of_a_leaf<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let n = pmd_pages::<A>();
            let p = space(&m, 2 * n);
            let folio = map_pmd(&p, 0);
            map_huge_zero(&p, n);
            madvise(&policy, &mut p.write(), pages::<A>(n - 4, 8), Advice::DontNeed)
                .expect("mapped");
            assert_eq!(
                folio.counts_locked(|c| (c.refs as u64, u64::from(c.mapcount), c.entire)),
                (n - 4, n - 4, 0)
            );
            assert_eq!(writable::<A>(&p, 0, n).len() as u64, n - 4, "VMA-01");
            assert_eq!(exclusive::<A>(folio).len() as u64, n);
            assert_eq!(m.content(pte::<A>(&p, 3).pfn(Level::Pte)), 1003);
            assert!(pte::<A>(&p, n + 3).is_none());
            assert!(m.memmap().is_zero_page(pte::<A>(&p, n + 4).pfn(Level::Pte)));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn guards_stay_with_the_mapping<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 8);
        map_folio(&p, 0, 0);
        let guard = NonPresent::Marker(Markers::GUARD);
        set_pte::<A>(&p, 2, E::<A>::from_nonpresent(guard, SwapBits::default()).expect("encodes"));
        madvise(&BATCHED, &mut p.write(), pages::<A>(0, 8), Advice::DontNeed).expect("mapped");
        assert_eq!(pte::<A>(&p, 2).nonpresent(Level::Pte), Some(guard));
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 8), R).expect("allowed");
        assert_eq!(pte::<A>(&p, 2).nonpresent(Level::Pte), Some(guard));
        munmap(&BATCHED, &mut p.write(), pages::<A>(0, 8)).expect("memory");
        assert_eq!(p.tables().count_tables(p.read().stay()), 1);
        finish(&m, vec![p]);
    }

    pub fn a_migrating_page_is_zapped_once<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 8);
        let folio = map_folio(&p, 0, 0);
        // As migration does: the mapping goes, the counter stays.
        let pin = folio.grab::<mm_folio::Get>(1).expect("fits");
        unmap_one::<A>(&p, 0);
        p.counters().add(RssKind::Anon, 1);
        let what = NonPresent::Migration {
            kind: MigrationKind::Write,
            pfn: folio.head(),
            young: true,
            dirty: true,
        };
        set_pte::<A>(&p, 0, E::<A>::from_nonpresent(what, SwapBits::default()).expect("encodes"));
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 8), R).expect("allowed");
        let kind = pte::<A>(&p, 0).nonpresent(Level::Pte);
        let expected = Some(MigrationKind::ReadExclusive);
        assert_eq!(
            kind.and_then(|k| match k {
                NonPresent::Migration { kind, .. } => Some(kind),
                _ => None,
            }),
            expected
        );
        munmap(&BATCHED, &mut p.write(), pages::<A>(0, 8)).expect("memory");
        assert_eq!(p.counters().resident(), 0);
        assert_eq!((folio.refcount(), folio.mapcount()), (1, 0));
        drop(pin);
        finish(&m, vec![p]);
    }

    pub fn a_table_shared_with_a_neighbour_stays<A: Arch>() {
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, 3 * n);
        for page in [0, n + 1, 2 * n] {
            map_folio(&p, page, 0);
        }
        let tables = |p: &Mm<_>| p.tables().count_tables(p.read().stay());
        let upper = tables(&p) - 3;
        // Empty, but a walker of what is left of the mapping may be in it.
        munmap(&BATCHED, &mut p.write(), pages::<A>(n, n - 1)).expect("memory");
        assert_eq!(tables(&p), upper + 3);
        munmap(&BATCHED, &mut p.write(), pages::<A>(2 * n - 1, 1)).expect("memory");
        assert_eq!(tables(&p), upper + 2, "now it is nobody's");
        audit(&m, &[&p]);
        munmap(&BATCHED, &mut p.write(), pages::<A>(0, 3 * n)).expect("memory");
        assert_eq!(tables(&p), 1);
        finish(&m, vec![p]);
    }

    pub fn read_only_and_back<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let n = pmd_pages::<A>();
            let p = space(&m, 2 * n);
            map_folio(&p, 0, 4);
            map_pmd(&p, n);
            let flushes = m.tlb_flushes();
            mprotect(&policy, &mut p.write(), pages::<A>(0, 2 * n), R).expect("allowed");
            assert!(A::CONT > 1 || m.tlb_flushes() - flushes == 1, "a downgrade is flushed, once");
            assert_eq!(writable::<A>(&p, 0, 16), []);
            assert!(!entry::<A>(&p, n).0.is_writable(Level::Pmd));
            assert!(
                which::<A>(&p, 0, 16, E::<A>::is_dirty).len() == 16
                    && entry::<A>(&p, n).0.is_dirty()
            );
            mprotect(&policy, &mut p.write(), pages::<A>(0, 2 * n), RW_).expect("allowed");
            // S-MP1, mprotect_ro_rw_2m: no fault is needed.
            assert_eq!(writable::<A>(&p, 0, 16).len(), 16);
            let (e, level) = entry::<A>(&p, n);
            assert!(level == Level::Pmd && e.is_writable(level));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn upgrades_follow_the_marks<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            mprotect(&policy, &mut p.write(), pages::<A>(0, 16), R).expect("allowed");
            // MM-008: 1,1,0,0,1,1,1,0 and again; the rest exclusive.
            for k in [2, 3, 7, 10] {
                m.memmap().clear_exclusive(folio.page(k), 1);
            }
            mprotect(&policy, &mut p.write(), pages::<A>(0, 16), RW_).expect("allowed");
            assert_eq!(writable::<A>(&p, 0, 16), [0, 1, 4, 5, 6, 8, 9, 11, 12, 13, 14, 15]);
            assert_eq!(exclusive::<A>(folio).len(), 12, "marks are no different");
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn soft_dirty_tracking_wants_its_fault<A: Arch>() {
        if !A::HAS_SOFT_DIRTY {
            return;
        }
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            map_folio(&p, 0, 4);
            {
                let mut vmas = p.write();
                let mut change = vmas.change();
                let vma = change.find_mut(va::<A>(0)).expect("mapped");
                vma.set_flags(vma.flags() - VmaFlags::SOFTDIRTY);
            }
            for page in 0..16 {
                edit::<A>(&p, page, |e| {
                    if page % 4 == 1 { e } else { e.clear_soft_dirty().wrprotect() }
                });
            }
            edit::<A>(&p, 5, |e| if A::HAS_UFFD_WP { e.mkuffd_wp() } else { e });
            mprotect(&policy, &mut p.write(), pages::<A>(0, 16), R).expect("allowed");
            mprotect(&policy, &mut p.write(), pages::<A>(0, 16), RW_).expect("allowed");
            let expected: &[u64] = if A::HAS_UFFD_WP { &[1, 9, 13] } else { &[1, 5, 9, 13] };
            assert_eq!(writable::<A>(&p, 0, 16), expected);
            assert_eq!(which::<A>(&p, 0, 16, E::<A>::is_soft_dirty), [1, 5, 9, 13], "BATCH-11");
            finish(&m, vec![p]);
        }
    }

    pub fn stores_are_tracked_through_what_is_moving<A: Arch>() {
        if !A::HAS_SOFT_DIRTY {
            return;
        }
        let m = new_machine::<A>();
        let p = space(&m, 4);
        let moving =
            |kind| NonPresent::Migration { kind, pfn: m.zero_page(), young: true, dirty: true };
        let kinds = [MigrationKind::Write, MigrationKind::ReadExclusive, MigrationKind::Read];
        for (page, kind) in (0..).zip(kinds) {
            let bits = SwapBits { soft_dirty: true, ..SwapBits::default() };
            let e = E::<A>::from_nonpresent(moving(kind), bits).expect("encodes");
            set_pte::<A>(&p, page, e);
        }
        clear_soft_dirty(&BATCHED, &mut p.write()).expect("memory");
        // It comes back read-only: the next store is noticed.
        let after =
            [MigrationKind::ReadExclusive, MigrationKind::ReadExclusive, MigrationKind::Read];
        for (page, kind) in (0..).zip(after) {
            let e = pte::<A>(&p, page);
            assert_eq!(e.nonpresent(Level::Pte), Some(moving(kind)), "page {page}");
            assert!(!e.swap_bits().soft_dirty);
            // Of a page that only this test says is moving.
            set_pte::<A>(&p, page, E::<A>::NONE);
        }
        finish(&m, vec![p]);
    }

    pub fn no_access_and_back<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 16);
        map_folio(&p, 0, 4);
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 16), Rights::empty()).expect("allowed");
        assert!((0..16).all(|page| pte::<A>(&p, page).is_protnone(Level::Pte)));
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 16), RW_).expect("allowed");
        assert_eq!(writable::<A>(&p, 0, 16).len(), 16);
        assert!((0..16).all(|page| m.content(pte::<A>(&p, page).pfn(Level::Pte)) == 1000 + page));
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn part_of_a_leaf_protected<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let n = pmd_pages::<A>();
            let p = space(&m, n);
            let folio = map_pmd(&p, 0);
            mprotect(&policy, &mut p.write(), pages::<A>(n / 2, n / 2), R).expect("allowed");
            assert_eq!(writable::<A>(&p, 0, n), (0..n / 2).collect::<Vec<_>>());
            assert_eq!(exclusive::<A>(folio).len() as u64, n);
            assert_eq!(vmas::<A>(&p), [(0, n / 2), (n / 2, n / 2)]);
            mprotect(&policy, &mut p.write(), pages::<A>(0, n), RW_).expect("allowed");
            assert_eq!(writable::<A>(&p, 0, n).len() as u64, n);
            assert_eq!(vmas::<A>(&p), [(0, n)], "and the VMAs are one again");
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn vmas_merge_as_their_trees_allow<A: Arch>() {
        // fault_vma_split.
        let m = new_machine::<A>();
        let p = space(&m, 24);
        mprotect(&BATCHED, &mut p.write(), pages::<A>(10, 4), R).expect("allowed");
        assert_eq!(vmas::<A>(&p), [(0, 10), (10, 4), (14, 10)]);
        assert!(!p.read().find(va::<A>(10)).expect("mapped").flags().contains(VmaFlags::ACCOUNT));
        map_folio(&p, 0, 0);
        map_folio(&p, 14, 0);
        map_zero(&p, 10);
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 24), RW_).expect("allowed");
        assert_eq!(
            vmas::<A>(&p),
            [(0, 14), (14, 10)],
            "the two outer ones have trees of their own"
        );
        assert!(p.read().iter().all(|v| v.flags().contains(VmaFlags::ACCOUNT)));
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn refusals<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 8);
        let mut vmas_of_p = p.write();
        let at = va::<A>;
        let odd = VirtRange::new(mm_arch::VirtAddr::new(at(0).get() + 8), 0x1000).expect("range");
        assert_eq!(munmap(&BATCHED, &mut vmas_of_p, odd), Err(MapError::Unaligned(odd.start())));
        assert_eq!(munmap(&BATCHED, &mut vmas_of_p, odd).map_err(MapError::errno), Err("EINVAL"));
        let high = VirtRange::new(mm_arch::VirtAddr::new(u64::MAX << 12), 0x1000).expect("range");
        assert_eq!(munmap(&BATCHED, &mut vmas_of_p, high), Err(MapError::NotUser(high)));
        let again = mmap_anon(&mut vmas_of_p, pages::<A>(4, 8), RW);
        assert_eq!(again.map_err(MapError::errno), Err("EEXIST"));

        // The first part is changed, the position says how far.
        munmap(&BATCHED, &mut vmas_of_p, pages::<A>(4, 1)).expect("memory");
        let e = mprotect(&BATCHED, &mut vmas_of_p, pages::<A>(0, 8), R);
        assert_eq!(e, Err(MapError::Hole(at(4))));
        assert!(!vmas_of_p.find(at(3)).expect("mapped").flags().contains(VmaFlags::WRITE));
        assert!(vmas_of_p.find(at(5)).expect("mapped").flags().contains(VmaFlags::WRITE));
        // Advice goes on behind the hole.
        let e = madvise(&BATCHED, &mut vmas_of_p, pages::<A>(0, 8), Advice::HugePage);
        assert_eq!(e, Err(MapError::Hole(at(4))));
        assert!(vmas_of_p.iter().all(|v| v.flags().contains(VmaFlags::HUGEPAGE)));

        let flags = vmas_of_p.find(at(5)).expect("mapped").flags();
        let without = flags - VmaFlags::MAYWRITE - VmaFlags::WRITE;
        vmas_of_p.change().find_mut(at(5)).expect("mapped").set_flags(without);
        let e = mprotect(&BATCHED, &mut vmas_of_p, pages::<A>(5, 3), RW_);
        assert_eq!(e.map_err(MapError::errno), Err("EACCES"));

        for (flag, advice) in [
            (VmaFlags::LOCKED, Advice::DontNeed),
            (VmaFlags::PFNMAP, Advice::DoFork),
            (VmaFlags::SHARED, Advice::WipeOnFork),
            (VmaFlags::DROPPABLE, Advice::KeepOnFork),
        ] {
            let before = vmas_of_p.find(at(5)).expect("mapped").flags();
            vmas_of_p.change().find_mut(at(5)).expect("mapped").set_flags(before | flag);
            let e = madvise(&BATCHED, &mut vmas_of_p, pages::<A>(5, 3), advice);
            assert_eq!(e, Err(MapError::Invalid(at(5))), "{advice:?}");
            vmas_of_p.change().find_mut(at(5)).expect("mapped").set_flags(before);
        }
        let flags = vmas_of_p.find(at(5)).expect("mapped").flags();
        let before = (flags - VmaFlags::HUGEPAGE) | VmaFlags::SHADOW_STACK | VmaFlags::NOHUGEPAGE;
        vmas_of_p.change().find_mut(at(5)).expect("mapped").set_flags(before);
        madvise(&BATCHED, &mut vmas_of_p, pages::<A>(5, 3), Advice::HugePage).expect("ignored");
        assert_eq!(vmas_of_p.find(at(5)).expect("mapped").flags(), before, "BATCH-23");
        drop(vmas_of_p);
        finish(&m, vec![p]);
    }

    pub fn advice_splits_leaves_and_joins_again<A: Arch>() {
        // dontfork_part_2m.
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, n);
        let folio = map_pmd(&p, 0);
        madvise(&BATCHED, &mut p.write(), pages::<A>(n / 2, n / 2), Advice::DontFork)
            .expect("mapped");
        assert_eq!(writable::<A>(&p, 0, n).len() as u64, n);
        let c = fork(&BATCHED, &p).expect("memory");
        assert_eq!(vmas::<A>(&c), [(0, n / 2)]);
        assert_eq!(exclusive::<A>(folio).len() as u64, n / 2);
        assert_eq!(writable::<A>(&p, 0, n).len() as u64, n / 2);
        madvise(&BATCHED, &mut p.write(), pages::<A>(n / 2, n / 2), Advice::DoFork)
            .expect("mapped");
        assert_eq!(vmas::<A>(&p), [(0, n)]);
        audit(&m, &[&p, &c]);
        finish(&m, vec![c, p]);
    }

    pub fn advice_on_the_order_of_accesses_is_one_of_three<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 8);
        let order = VmaFlags::RAND_READ | VmaFlags::SEQ_READ;
        for (advice, says) in [
            (Advice::Sequential, VmaFlags::SEQ_READ),
            (Advice::Random, VmaFlags::RAND_READ),
            (Advice::Sequential, VmaFlags::SEQ_READ),
            (Advice::Normal, VmaFlags::empty()),
            (Advice::Random, VmaFlags::RAND_READ),
            (Advice::Normal, VmaFlags::empty()),
        ] {
            madvise(&BATCHED, &mut p.write(), pages::<A>(2, 4), advice).expect("mapped");
            let flags = |k| p.read().find(va::<A>(k)).expect("mapped").flags() & order;
            assert_eq!(
                [flags(0), flags(2), flags(6)],
                [VmaFlags::empty(), says, VmaFlags::empty()]
            );
        }
        assert_eq!(vmas::<A>(&p), [(0, 8)], "alike again");
        finish(&m, vec![p]);
    }

    pub fn new_mappings_join_their_neighbours<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 4);
        map_folio(&p, 0, 2);
        mmap_anon(&mut p.write(), pages::<A>(8, 4), RW).expect("free");
        assert_eq!(vmas::<A>(&p), [(0, 4), (8, 4)]);
        mmap_anon(&mut p.write(), pages::<A>(4, 4), RW).expect("free");
        assert_eq!(vmas::<A>(&p), [(0, 12)]);
        mmap_anon(&mut p.write(), pages::<A>(12, 4), VmaFlags::READ).expect("free");
        assert_eq!(vmas::<A>(&p), [(0, 12), (12, 4)]);
        map_folio(&p, 9, 0);
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }
}

on_all! {
    /// Rules: ZAP-02, ZAP-03, FOLIO-22, INV-6; golden munmap_hole_64k.
    a_hole_in_a_folio;
    /// Rules: ZAP-02, BATCH-11.
    entries_of_a_run_may_differ;
    /// Rules: ZAP-09, MADV-01.
    zero_pages_and_leaves_go_too;
    /// Rules: ZAP-09, MADV-01, PSPLIT-02.
    part_of_a_leaf;
    /// Rules: GUARD-01, MPROT-05.
    guards_stay_with_the_mapping;
    /// Rules: ZAP-07, MPROT-05.
    a_migrating_page_is_zapped_once;
    /// Rules: INV-10: a table is not freed under a walker of a neighbour.
    a_table_shared_with_a_neighbour_stays;
    /// Rules: MPROT-02, MPROT-04, MPROT-07, MPROT-09; row S-MP1.
    read_only_and_back;
    /// Rules: MPROT-03, BATCH-15, EXCL-07; row S-MP6, MM-008.
    upgrades_follow_the_marks;
    /// Rules: WRITE-01, BATCH-11; row S-MP4, MM-044.
    soft_dirty_tracking_wants_its_fault;
    /// Rules: PTE-08, PTE-09, BATCH-14.
    no_access_and_back;
    /// Rules: PTE-14, MPROT-05.
    stores_are_tracked_through_what_is_moving;
    /// Rules: VMA-01, MPROT-09; golden mprotect_part_2m.
    part_of_a_leaf_protected;
    /// Rules: RMAP-21, RMAP-22; golden fault_vma_split.
    vmas_merge_as_their_trees_allow;
    /// Rules: FORK-02, MADV-08, BATCH-23.
    refusals;
    /// Rules: VMA-01; golden dontfork_part_2m.
    advice_splits_leaves_and_joins_again;
    /// Rules: VMA-01, REF-02.
    advice_on_the_order_of_accesses_is_one_of_three;
    /// Rules: RMAP-22.
    new_mappings_join_their_neighbours;
}
