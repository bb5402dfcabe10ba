//! `MADV_FREE`, `MADV_COLD`, `MADV_PAGEOUT`.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry, Level, VirtAddr, VirtRange};
    use mm_folio::{FolioFlags, Get};
    use mm_map::{Advice, fork, madvise};
    use mm_reclaim::{AdviceError, UnmapPolicy, madvise_cold, madvise_free, madvise_pageout};
    use mm_vma::{BackingKind, Event, Platform, SwapSpace, VmaFlags};

    const NORMAL: FolioFlags = FolioFlags::SWAPBACKED.union(FolioFlags::LRU);

    fn map_normal<A: Arch>(mm: &Space<A>, page: u64, order: u32) -> mm_folio::Folio<'_, M<A>> {
        let folio = map_folio(mm, page, order);
        folio.set_flag(NORMAL | FolioFlags::DIRTY);
        folio
    }

    pub fn given_up_pages_are_clean_and_as_writable_as_before<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let p = space(&m, 32);
            let folio = map_normal(&p, 0, 4);
            for k in 4..9 {
                edit::<A>(&p, k, |e| e.wrprotect());
            }
            folio.set_flag(FolioFlags::ACTIVE | FolioFlags::REFERENCED);
            let before = m.events().get(Event::LazyFree);
            madvise_free(policy, &p.read(), pages::<A>(0, 32)).expect("mapped");
            assert!(!folio.flags().intersects(
                FolioFlags::SWAPBACKED
                    | FolioFlags::DIRTY
                    | FolioFlags::ACTIVE
                    | FolioFlags::REFERENCED
            ));
            assert_eq!(which::<A>(&p, 0, 16, |e| e.is_dirty() || e.is_young()), []);
            assert_eq!(writable::<A>(&p, 0, 16), [0, 1, 2, 3, 9, 10, 11, 12, 13, 14, 15]);
            assert_eq!(m.events().get(Event::LazyFree) - before, 16);
            assert_eq!(m.content(folio.page(3)), 1003);
            audit(&m, &[&p]);
            madvise_pageout(policy, &p.read(), pages::<A>(0, 32)).expect("mapped");
            assert_eq!(p.counters().resident(), 0);
            finish(&m, vec![p]);
        }
    }

    pub fn who_is_isolated_or_must_stay_is_not_given_up<A: Arch>() {
        let age = FolioFlags::ACTIVE | FolioFlags::REFERENCED;
        for (changed, given_up) in [
            (FolioFlags::empty(), true),
            (FolioFlags::LRU, false),
            (FolioFlags::UNEVICTABLE, false),
            (FolioFlags::MLOCKED, false),
        ] {
            let m = reclaim_machine::<A>();
            let p = space(&m, 16);
            let folio = map_normal(&p, 0, 4);
            folio.set_flag(age);
            if changed == FolioFlags::LRU {
                folio.clear_flag(changed);
            } else {
                folio.set_flag(changed);
            }
            madvise_free(UnmapPolicy::All, &p.read(), pages::<A>(0, 16)).expect("mapped");
            assert_eq!(folio.has(FolioFlags::SWAPBACKED), !given_up, "{changed:?}");
            assert_eq!(folio.has(age), !given_up, "{changed:?}");
            assert_eq!(m.events().get(Event::LazyFree), if given_up { 16 } else { 0 });
            folio.clear_flag(changed - FolioFlags::LRU);
            finish(&m, vec![p]);
        }
    }

    pub fn a_part_is_split_off<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let p = space(&m, 16);
            map_normal(&p, 0, 4);
            madvise_free(policy, &p.read(), pages::<A>(4, 4)).expect("mapped");
            let map = m.memmap();
            for k in 0..16 {
                let e = pte::<A>(&p, k);
                let folio = map.folio(e.pfn(Level::Pte));
                assert!(!folio.is_large(), "page {k}");
                let given_up = (4..8).contains(&k);
                assert_eq!(folio.has(FolioFlags::SWAPBACKED), !given_up, "page {k}");
                assert_eq!(e.is_dirty(), !given_up, "page {k}");
                assert_eq!(m.content(folio.head()), 1000 + k);
            }
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn what_others_use_stays<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let p = space(&m, 32);
            let (dirty, clean) = (map_normal(&p, 0, 2), map_normal(&p, 16, 2));
            clean.clear_flag(FolioFlags::DIRTY);
            let c = fork(&BATCHED, &p).expect("memory");
            // Partly: not even split.
            madvise_free(policy, &p.read(), pages::<A>(0, 2)).expect("mapped");
            madvise_pageout(policy, &p.read(), pages::<A>(0, 32)).expect("mapped");
            assert_eq!((dirty.order(), dirty.mapcount(), clean.mapcount()), (2, 8, 8));
            madvise_free(policy, &p.read(), pages::<A>(0, 32)).expect("mapped");
            // A clean folio that is covered is not asked whose it is.
            assert!(dirty.has(FolioFlags::SWAPBACKED) && !clean.has(FolioFlags::SWAPBACKED));
            audit(&m, &[&p, &c]);
            finish(&m, vec![p, c]);
        }
    }

    pub fn cold_pages_are_old_and_next<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let p = space(&m, 32);
            let (folio, leaf) = (map_normal(&p, 0, 4), map_normal(&p, 16, 0));
            folio.set_flag(FolioFlags::ACTIVE | FolioFlags::REFERENCED);
            madvise_cold(policy, &p.read(), pages::<A>(0, 16)).expect("mapped");
            assert_eq!(which::<A>(&p, 0, 32, |e| e.is_young()), [16]);
            assert_eq!(which::<A>(&p, 0, 32, |e| e.is_dirty()).len(), 17);
            assert!(!folio.flags().intersects(FolioFlags::ACTIVE | FolioFlags::REFERENCED));
            assert!(folio.has(FolioFlags::WORKINGSET | FolioFlags::SWAPBACKED));
            assert_eq!((folio.mapcount(), leaf.mapcount()), (16, 1));
            finish(&m, vec![p]);
        }
    }

    pub fn files_go_out_whole_or_in_part<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let o = known_object(&m, BackingKind::File);
            let (a, b) = (o.add(0, 4).expect("memory"), o.add(16, 4).expect("memory"));
            let p = empty_space(&m);
            show(&p, 0, 32, &o, 0);
            for (page, folio) in [(0, a), (16, b)] {
                folio.set_flag(FolioFlags::LRU);
                map_pages(&p, page, folio, 0, 16);
            }
            madvise_pageout(policy, &p.read(), pages::<A>(0, 24)).expect("mapped");
            // The second folio was split, and that unmapped all of it.
            assert_eq!(which::<A>(&p, 0, 32, |e| !e.is_none()), []);
            assert_eq!(p.counters().resident(), 0);
            assert!(o.cache().is_vacant(0, 16));
            assert_eq!(o.cache().folios().len(), 16, "single pages, that nothing maps");
            finish_all(&m, vec![p], vec![o]);
        }
    }

    pub fn leaves_are_advised_whole_or_split<A: Arch>() {
        for part in [false, true] {
            let m = reclaim_machine::<A>();
            let nr = pmd_pages::<A>();
            let p = space(&m, nr);
            let folio = map_pmd(&p, 0);
            folio.set_flag(NORMAL | FolioFlags::DIRTY);
            let range = if part { pages::<A>(0, 2) } else { pages::<A>(0, nr) };
            madvise_free(UnmapPolicy::Lazyfree, &p.read(), range).expect("mapped");
            if part {
                let map = m.memmap();
                let normal =
                    |k: u64| map.folio(pte::<A>(&p, k).pfn(Level::Pte)).has(FolioFlags::SWAPBACKED);
                assert!(!normal(0) && !normal(1) && normal(2) && normal(nr - 1));
            } else {
                let (e, level) = entry::<A>(&p, 0);
                assert!(level == Level::Pmd && e.is_writable(Level::Pmd) && !e.is_dirty());
                assert!(!folio.flags().intersects(FolioFlags::SWAPBACKED | FolioFlags::DIRTY));
            }
            audit(&m, &[&p]);
            madvise_pageout(UnmapPolicy::Lazyfree, &p.read(), range).expect("mapped");
            assert_eq!(p.counters().resident(), if part { nr - 2 } else { 0 });
            finish(&m, vec![p]);
        }
    }

    pub fn leaves_that_others_use_stay_as_they_are<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let nr = pmd_pages::<A>();
            let p = space(&m, nr);
            let folio = map_pmd(&p, 0);
            let age = FolioFlags::ACTIVE | FolioFlags::REFERENCED;
            folio.set_flag(NORMAL | FolioFlags::DIRTY | age);
            let c = fork(&BATCHED, &p).expect("memory");
            edit_leaf::<A>(&p, |e| e.mkyoung());
            let before = (entry::<A>(&p, 0), folio.flags());
            for advice in [madvise_cold, madvise_pageout, madvise_free] {
                for range in [pages::<A>(0, 2), pages::<A>(0, nr)] {
                    advice(policy, &p.read(), range).expect("mapped");
                    assert_eq!((entry::<A>(&p, 0), folio.flags()), before, "{policy:?}");
                }
            }
            audit(&m, &[&p, &c]);
            finish(&m, vec![p, c]);
        }
    }

    pub fn what_cannot_be_split_hides_nothing_behind_it<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let p = space(&m, 16);
            let first = map_normal(&p, 0, 4);
            madvise(&BATCHED, &mut p.write(), pages::<A>(1, 15), Advice::DontNeed).expect("mapped");
            let own = first.grab::<Get>(1).expect("fits");
            for page in 1..16 {
                map_normal(&p, page, 0);
            }
            madvise_free(policy, &p.read(), pages::<A>(0, 16)).expect("mapped");
            // Of the folio that is held nothing was meant but its first page.
            assert_eq!(which::<A>(&p, 0, 16, |e| e.is_dirty()), [0]);
            madvise_pageout(policy, &p.read(), pages::<A>(0, 16)).expect("mapped");
            assert_eq!(which::<A>(&p, 0, 16, |e| !e.is_none()), [0]);
            drop(own);
            finish(&m, vec![p]);
        }
    }

    pub fn a_leaf_that_is_given_up_has_no_place_on_swap<A: Arch>() {
        for policy in POLICIES {
            let nr = pmd_pages::<A>();
            let m = machine_with_swap::<A>(if nr > 255 { 1023 } else { 255 });
            let p = space(&m, nr);
            let folio = map_pmd(&p, 0);
            folio.set_flag(NORMAL | FolioFlags::UPTODATE);
            // Reclaim was about to write it, and something stood in the way.
            m.slots().add(&folio.lock()).expect("room");
            madvise_free(policy, &p.read(), pages::<A>(0, nr)).expect("mapped");
            // If it stayed in the cache, and clean, its slots would be taken for a copy.
            let flags = folio.flags() & (NORMAL | FolioFlags::SWAPCACHE | FolioFlags::DIRTY);
            assert_eq!((flags, m.slots().in_use().next()), (FolioFlags::LRU, None));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn refusals<A: Arch>() {
        let m = reclaim_machine::<A>();
        let o = known_object(&m, BackingKind::File);
        let p = empty_space(&m);
        anon_with(&p, 0, 4, RW);
        anon_with(&p, 4, 4, RW | VmaFlags::LOCKED);
        show(&p, 16, 4, &o, 0);
        let all = UnmapPolicy::All;
        let at = |page| AdviceError::Invalid(va::<A>(page));
        let vmas = p.read();
        assert_eq!(madvise_free(all, &vmas, pages::<A>(0, 8)), Err(at(4)));
        assert_eq!(madvise_cold(all, &vmas, pages::<A>(0, 8)), Err(at(4)));
        assert_eq!(madvise_pageout(all, &vmas, pages::<A>(0, 8)), Err(at(4)));
        assert_eq!(madvise_free(all, &vmas, pages::<A>(16, 4)), Err(at(16)));
        assert_eq!(madvise_cold(all, &vmas, pages::<A>(16, 4)), Ok(()));
        let hole = madvise_cold(all, &vmas, pages::<A>(16, 8));
        assert_eq!(hole, Err(AdviceError::Hole(va::<A>(20))));
        assert_eq!((hole.map_err(AdviceError::errno), at(1).errno()), (Err("ENOMEM"), "EINVAL"));
        let odd = VirtRange::new(VirtAddr::new(va::<A>(0).get() + 8), 4096).expect("range");
        assert!(matches!(madvise_cold(all, &vmas, odd), Err(AdviceError::Unaligned(_))));
        let end = VirtRange::units(VirtAddr::new(A::USER_END), 1, A::PAGE_SHIFT).expect("range");
        assert!(matches!(madvise_cold(all, &vmas, end), Err(AdviceError::NotUser(_))));
        drop(vmas);
        finish_all(&m, vec![p], vec![o]);
    }
}

on_all! {
    /// Rules: MADV-04, ACC-14.
    given_up_pages_are_clean_and_as_writable_as_before;
    /// Rules: FOLIO-41.
    who_is_isolated_or_must_stay_is_not_given_up;
    /// Rules: MADV-03.
    a_part_is_split_off;
    /// Rules: MADV-03, MADV-04, MADV-06.
    what_others_use_stays;
    /// Rules: MADV-06.
    cold_pages_are_old_and_next;
    /// Rules: MADV-06, RECL-08.
    files_go_out_whole_or_in_part;
    /// Rules: MADV-05.
    leaves_are_advised_whole_or_split;
    /// Rules: MADV-05, MADV-06.
    leaves_that_others_use_stay_as_they_are;
    /// Rules: MADV-03, MADV-06.
    what_cannot_be_split_hides_nothing_behind_it;
    /// Rules: MADV-04, MADV-05, FOLIO-41.
    a_leaf_that_is_given_up_has_no_place_on_swap;
    /// Rules: MADV-08.
    refusals;
}
