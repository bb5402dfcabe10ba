//! Forks.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry, Level, MigrationKind, NonPresent, Rights, SwapBits};
    use mm_folio::Pin;
    use mm_map::{Advice, exit, fork, madvise, mprotect, munmap};
    use mm_rmap::RmapPlatform;
    use mm_vma::{Mm, Platform, RssKind, VmaFlags};

    pub fn all_of_a_run_is_write_protected<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            for page in (0..16).step_by(2) {
                edit::<A>(&p, page, E::<A>::wrprotect);
            }
            let flushes = m.tlb_flushes();
            let c = fork(&policy, &p).expect("memory");
            assert_eq!(m.tlb_flushes() - flushes, 1, "one flush of the parent (FORK-12)");
            assert_eq!(writable::<A>(&p, 0, 16), []);
            assert_eq!(writable::<A>(&c, 0, 16), []);
            assert_eq!(exclusive::<A>(folio), []);
            assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount, c.shared)), (32, 32, true));
            assert_eq!(c.counters().get(RssKind::Anon), 16);
            audit(&m, &[&p, &c]);
            finish(&m, vec![c, p]);
        }
    }

    pub fn the_child_keeps_dirt_and_starts_old<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            map_folio(&p, 0, 4);
            for page in 8..16 {
                edit::<A>(&p, page, E::<A>::mkclean);
            }
            if A::HAS_UFFD_WP {
                edit::<A>(&p, 3, E::<A>::mkuffd_wp);
            }
            let c = fork(&policy, &p).expect("memory");
            let of_child = |is: fn(E<A>) -> bool| which::<A>(&c, 0, 16, is);
            assert_eq!(of_child(E::<A>::is_dirty), (0..8).collect::<Vec<_>>());
            assert_eq!(of_child(E::<A>::is_young), []);
            assert_eq!(of_child(E::<A>::is_uffd_wp), []);
            assert_eq!(pte::<A>(&p, 3).is_uffd_wp(), A::HAS_UFFD_WP, "the parent keeps it");
            finish(&m, vec![c, p]);
        }
    }

    pub fn pinned_pages_are_copied_at_once<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            p.set_has_pinned();
            let mut pin = folio.grab::<Pin>(4).expect("fits");
            let before = folio.counts_locked(|c| (c.refs, c.mapcount));
            let c = fork(&policy, &p).expect("memory");
            // Trace F: the folio is as it was, the parent as writable as it was.
            assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), before);
            assert_eq!(exclusive::<A>(folio).len(), 16);
            assert_eq!(writable::<A>(&p, 0, 16).len(), 16);
            // The child has copies of its own, ready to be stored to.
            assert_eq!(writable::<A>(&c, 0, 16).len(), 16);
            for page in 0..16 {
                let (mine, theirs) = (pte::<A>(&p, page), pte::<A>(&c, page));
                assert_ne!(mine.pfn(Level::Pte), theirs.pfn(Level::Pte));
                assert_eq!(m.content(theirs.pfn(Level::Pte)), 1000 + page);
                assert!(theirs.is_dirty() && m.memmap().page_exclusive(theirs.pfn(Level::Pte)));
                assert_eq!(m.memmap().folio(theirs.pfn(Level::Pte)).order(), 0);
            }
            audit(&m, &[&p, &c]);
            drop(pin.split_off(4));
            drop(pin);
            finish(&m, vec![c, p]);
        }
    }

    pub fn only_exclusive_pages_of_a_pinned_folio_are_copied<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            p.set_has_pinned();
            // Pages 0..8 are shared with a first child; the pin came later.
            madvise(&policy, &mut p.write(), pages::<A>(8, 8), Advice::DontFork).expect("mapped");
            let c = fork(&policy, &p).expect("memory");
            madvise(&policy, &mut p.write(), pages::<A>(8, 8), Advice::DoFork).expect("mapped");
            let pin = folio.grab::<Pin>(1).expect("fits");
            let d = fork(&policy, &p).expect("memory");
            let same = |page: u64| {
                pte::<A>(&p, page).pfn(Level::Pte) == pte::<A>(&d, page).pfn(Level::Pte)
            };
            assert!((0..8).all(same), "RMAP-11: what is shared already may be shared again");
            assert!(!(8..16).any(same));
            assert_eq!(writable::<A>(&p, 0, 16), (8..16).collect::<Vec<_>>());
            audit(&m, &[&p, &c, &d]);
            drop(pin);
            finish(&m, vec![c, d, p]);
        }
    }

    pub fn pins_of_others_do_not_count<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 16);
        let folio = map_folio(&p, 0, 4);
        let pin = folio.grab::<Pin>(1).expect("fits");
        // FOLIO-28: this space never pinned.
        let c = fork(&BATCHED, &p).expect("memory");
        assert_eq!(folio.mapcount(), 32);
        drop(pin);
        finish(&m, vec![c, p]);
    }

    pub fn leaves_are_shared_whole<A: Arch>() {
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, 2 * n);
        let folio = map_pmd(&p, 0);
        map_huge_zero(&p, n);
        let c = fork(&BATCHED, &p).expect("memory");
        // Trace G.
        assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount, c.entire)), (2, 2, 2));
        assert_eq!(exclusive::<A>(folio), []);
        for mm in [&p, &c] {
            let (e, level) = entry::<A>(mm, 0);
            assert!(level == Level::Pmd && !e.is_writable(level) && e.is_dirty());
            let (zero, level) = entry::<A>(mm, n);
            assert!(level == Level::Pmd && m.memmap().is_huge_zero(zero.pfn(level)));
            assert_eq!(mm.counters().get(RssKind::Anon), n);
        }
        assert!(!entry::<A>(&c, 0).0.is_young());
        // The parent's leaf is split by a partial unmap: the child's is not.
        munmap(&BATCHED, &mut p.write(), pages::<A>(0, 1)).expect("memory");
        assert_eq!(entry::<A>(&p, 1).1, Level::Pte);
        assert_eq!(
            folio.counts_locked(|c| (c.refs, c.mapcount, c.entire)),
            (n as i32, n as u32, 1)
        );
        audit(&m, &[&p, &c]);
        exit(&BATCHED, &c);
        assert_eq!(folio.counts_locked(|c| (c.refs, c.entire, c.shared)), (n as i32 - 1, 0, false));
        finish(&m, vec![c, p]);
    }

    pub fn a_pinned_leaf_is_split_and_copied<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let n = pmd_pages::<A>();
            let p = space(&m, n);
            let folio = map_pmd(&p, 0);
            p.set_has_pinned();
            let pin = folio.grab::<Pin>(1).expect("fits");
            let c = fork(&policy, &p).expect("memory");
            assert_eq!(entry::<A>(&p, 0).1, Level::Pte);
            assert_eq!(writable::<A>(&p, 0, n).len() as u64, n);
            assert_eq!(exclusive::<A>(folio).len() as u64, n);
            assert_eq!(folio.mapcount() as u64, n);
            assert_eq!(writable::<A>(&c, 0, n).len() as u64, n);
            assert_eq!(m.content(pte::<A>(&c, 5).pfn(Level::Pte)), 1005);
            audit(&m, &[&p, &c]);
            drop(pin);
            finish(&m, vec![c, p]);
        }
    }

    pub fn advice_says_what_is_inherited<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 24);
        let folios = [0, 8, 16].map(|page| map_folio(&p, page, 3));
        let flags = VmaFlags::LOCKED | VmaFlags::UFFD_WP;
        let mut vmas_of_p = p.write();
        madvise(&BATCHED, &mut vmas_of_p, pages::<A>(0, 8), Advice::DontFork).expect("mapped");
        madvise(&BATCHED, &mut vmas_of_p, pages::<A>(8, 8), Advice::WipeOnFork).expect("mapped");
        let mut change = vmas_of_p.change();
        let third = change.find_mut(va::<A>(16)).expect("mapped");
        third.set_flags(third.flags() | flags);
        drop(change);
        drop(vmas_of_p);
        let c = fork(&BATCHED, &p).expect("memory");
        assert_eq!(vmas::<A>(&c), [(8, 8), (16, 8)]);
        {
            let vmas = c.read();
            let wiped = vmas.find(va::<A>(8)).expect("inherited");
            assert!(wiped.anon().is_none(), "no tree until the first fault");
            let third = vmas.find(va::<A>(16)).expect("inherited");
            assert!(!third.flags().intersects(flags));
        }
        assert!(entry::<A>(&c, 8).0.is_none());
        assert_eq!(folios.map(|f| f.mapcount()), [8, 8, 16]);
        assert_eq!(folios.map(|f| exclusive::<A>(f).len()), [8, 8, 0]);
        audit(&m, &[&p, &c]);
        finish(&m, vec![c, p]);
    }

    pub fn what_was_never_faulted_is_not_copied<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 8);
        map_zero(&p, 3);
        let c = fork(&BATCHED, &p).expect("memory");
        assert_eq!(c.tables().count_tables(c.read().stay()), 1, "FORK-03: no tables");
        map_folio(&p, 0, 0);
        let d = fork(&BATCHED, &p).expect("memory");
        assert_eq!(pte::<A>(&d, 3).pfn(Level::Pte), m.zero_page());
        assert_eq!(d.counters().get(RssKind::Anon), 1);
        audit(&m, &[&p, &c, &d]);
        finish(&m, vec![d, c, p]);
    }

    pub fn migration_entries_become_readable<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 4);
        map_folio(&p, 0, 0);
        let pfn = pte::<A>(&p, 0).pfn(Level::Pte);
        for (page, kind) in [(1, MigrationKind::Write), (2, MigrationKind::ReadExclusive)] {
            let what = NonPresent::Migration { kind, pfn, young: false, dirty: false };
            let bits = SwapBits { uffd_wp: A::HAS_UFFD_WP, ..SwapBits::default() };
            set_pte::<A>(&p, page, E::<A>::from_nonpresent(what, bits).expect("encodes"));
            p.counters().add(RssKind::Anon, 1);
        }
        let c = fork(&BATCHED, &p).expect("memory");
        for page in [1, 2] {
            for (mm, wp) in [(&p, A::HAS_UFFD_WP), (&c, false)] {
                let e = pte::<A>(mm, page);
                assert!(matches!(
                    e.nonpresent(Level::Pte),
                    Some(NonPresent::Migration { kind: MigrationKind::Read, .. })
                ));
                assert_eq!(e.swap_bits().uffd_wp, wp);
            }
        }
        assert_eq!(c.counters().get(RssKind::Anon), 3);
        finish(&m, vec![c, p]);
    }

    pub fn chains_of_forks_end_clean<A: Arch>() {
        let m = new_machine::<A>();
        let mut chain = vec![space(&m, 8)];
        map_folio(&chain[0], 0, 3);
        for k in 0..6 {
            let next = fork(&BATCHED, &chain[k]).expect("memory");
            chain.push(next);
        }
        let refs: Vec<&Mm<_>> = chain.iter().map(|mm| &**mm).collect();
        audit(&m, &refs);
        assert_eq!(m.memmap().alive().filter(|f| f.mapcount() == 56).count(), 1);
        assert!(m.anon_trees().nr_trees() <= 7);
        chain.swap(1, 5);
        finish(&m, chain);
    }

    pub fn the_parent_can_be_protected_before_and_after<A: Arch>() {
        // fork_mprotect_rw_64k: what is shared stays read-only however often
        // the rights change.
        let m = new_machine::<A>();
        let p = space(&m, 16);
        map_folio(&p, 0, 4);
        let c = fork(&BATCHED, &p).expect("memory");
        for rights in [Rights::READ, Rights::READ | Rights::WRITE] {
            mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 16), rights).expect("allowed");
        }
        assert_eq!(writable::<A>(&p, 0, 16), []);
        audit(&m, &[&p, &c]);
        finish(&m, vec![c, p]);
    }
}

on_all! {
    /// Rules: FORK-05, FORK-12, RMAP-13, INV-2; row S-FK1, known fault "write-protect
    /// decided from the first entry".
    all_of_a_run_is_write_protected;
    /// Rules: FORK-06, FORK-07, BATCH-13; row S-FK2.
    the_child_keeps_dirt_and_starts_old;
    /// Rules: FORK-08, RMAP-10; row S-FK4, trace F, MM-025.
    pinned_pages_are_copied_at_once;
    /// Rules: RMAP-11, FORK-09.
    only_exclusive_pages_of_a_pinned_folio_are_copied;
    /// Rules: FOLIO-28.
    pins_of_others_do_not_count;
    /// Rules: FORK-11, VMA-01; trace G.
    leaves_are_shared_whole;
    /// Rules: FORK-11; row S-FK5.
    a_pinned_leaf_is_split_and_copied;
    /// Rules: FORK-01, FORK-02; row S-FK6.
    advice_says_what_is_inherited;
    /// Rules: FORK-03.
    what_was_never_faulted_is_not_copied;
    /// Rules: FORK-10; row S-FK8.
    migration_entries_become_readable;
    /// Rules: RMAP-22, RMAP-23.
    chains_of_forks_end_clean;
    /// Rules: WRITE-02; row S-MP2.
    the_parent_can_be_protected_before_and_after;
}
