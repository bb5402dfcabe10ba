//! Aging.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, DeviceKind, Entry, Level, NonPresent, SwapBits, SwapSlot};
    use mm_folio::{Folio, FolioFlags, MmId};
    use mm_reclaim::{
        ReclaimOf, Referenced, UnmapPolicy, is_idle, mark_idle, referenced, referenced_unlocked,
    };
    use mm_rmap::RmapPlatform;
    use mm_vma::{BackingKind, Platform, VmaFlags};

    fn ask<A: Arch>(m: &M<A>, policy: UnmapPolicy, folio: Folio<'_, M<A>>) -> Referenced {
        referenced(policy, m, &folio.lock(), ReclaimOf::Everybody)
    }
    fn nr(r: Referenced) -> u32 {
        match r {
            Referenced::By { nr, .. } => nr,
            other => panic!("{other:?}"),
        }
    }
    fn young<A: Arch>(mm: &Space<A>, first: u64, n: u64) -> Vec<u64> {
        which::<A>(mm, first, n, |e| e.is_young())
    }
    /// Pages `first..first + n` of the mapping at 0 are old.
    fn age<A: Arch>(mm: &Space<A>, first: u64, n: u64) {
        for k in first..first + n {
            edit::<A>(mm, k, |e| e.mkold());
        }
    }

    pub fn a_run_counts_once_and_is_old_after<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            age::<A>(&p, 0, 16);
            edit::<A>(&p, 6, |e| e.mkyoung());
            let flushes = m.tlb_flushes();
            let runs = m.events().get(mm_vma::Event::AgingRuns);
            assert_eq!(nr(ask(&m, policy, folio)), 1, "{policy:?}");
            assert_eq!(young::<A>(&p, 0, 16), []);
            assert_eq!(nr(ask(&m, policy, folio)), 0);
            let batched = matches!(policy, UnmapPolicy::File | UnmapPolicy::All);
            let runs = m.events().get(mm_vma::Event::AgingRuns) - runs;
            assert_eq!(runs, if batched { 2 } else { 32 });
            if A::CONT == 1 {
                assert_eq!(m.tlb_flushes(), flushes, "aging needs no flush");
            }
            finish(&m, vec![p]);
        }
    }

    pub fn all_young_pages_of_a_run_count_once<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 16);
        let folio = map_folio(&p, 0, 4);
        assert_eq!(young::<A>(&p, 0, 16).len(), 16);
        assert_eq!(nr(ask(&m, UnmapPolicy::All, folio)), 1);
        edit::<A>(&p, 3, |e| e.mkyoung());
        edit::<A>(&p, 9, |e| e.mkyoung());
        // It is mappings that count, however many of their entries were used.
        assert_eq!(nr(ask(&m, UnmapPolicy::Page, folio)), 1);
        finish(&m, vec![p]);
    }

    pub fn the_walk_ends_with_the_last_mapping<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let o = object(&m, BackingKind::File);
            let folio = o.add(0, 2).expect("memory");
            // Five mappings, of which three map the folio; the others are not looked at.
            let spaces: Vec<_> = (0..5).map(|_| empty_space(&m)).collect();
            for (i, mm) in spaces.iter().enumerate() {
                show(mm, 0, 4, &o, 0);
                if i < 3 {
                    map_pages(mm, 0, folio, 0, 4);
                }
            }
            let held = folio.lock();
            let mut asked = 0;
            let count = core::cell::Cell::new(0);
            let group = |_: MmId| {
                count.set(count.get() + 1);
                true
            };
            asked += nr(referenced(policy, &m, &held, ReclaimOf::Group(&group)));
            assert_eq!((asked, count.get()), (3, 3), "{policy:?}");
            drop(held);
            finish_all(&m, spaces, vec![o]);
        }
    }

    pub fn who_does_not_count_keeps_its_bits<A: Arch>() {
        let m = new_machine::<A>();
        let o = object(&m, BackingKind::File);
        let folio = o.add(0, 2).expect("memory");
        let spaces: Vec<_> = (0..4).map(|_| empty_space(&m)).collect();
        let flags = [VmaFlags::SEQ_READ, VmaFlags::RAND_READ, VmaFlags::EXEC, VmaFlags::empty()];
        for (mm, extra) in spaces.iter().zip(flags) {
            show_with(mm, 0, 4, &o, 0, SHARED | extra);
            map_pages(mm, 0, folio, 0, 4);
        }
        let other = spaces[3].id();
        let group = |mm: MmId| mm != other;
        let got = referenced(UnmapPolicy::All, &m, &folio.lock(), ReclaimOf::Group(&group));
        let Referenced::By { nr: 1, vmas } = got else { panic!("{got:?}") };
        assert!(vmas.contains(VmaFlags::EXEC) && !vmas.contains(VmaFlags::SEQ_READ));
        let left: Vec<_> = spaces.iter().map(|mm| young::<A>(mm, 0, 4).len()).collect();
        assert_eq!(left, [4, 4, 0, 4]);
        finish_all(&m, spaces, vec![o]);
    }

    pub fn nobody_waits<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 16);
        let folio = map_folio(&p, 0, 2);
        {
            let _held = folio.lock();
            let got = referenced_unlocked(UnmapPolicy::All, &m, folio, ReclaimOf::Everybody);
            assert_eq!(nr(got), 1, "somebody has it locked");
            assert_eq!(young::<A>(&p, 0, 4).len(), 4);
        }
        {
            let vmas = p.read();
            let vma = vmas.find(va::<A>(0)).expect("mapped");
            let _busy = m.anon_trees().exclude_walks(vma).expect("has a tree");
            let got = referenced_unlocked(UnmapPolicy::All, &m, folio, ReclaimOf::Everybody);
            assert_eq!(got, Referenced::Contended);
        }
        assert_eq!(nr(ask(&m, UnmapPolicy::All, folio)), 1);
        mm_map::munmap(&BATCHED, &mut p.write(), pages::<A>(4, 12)).expect("memory");
        finish(&m, vec![p]);
        let own = m.memmap().alloc(2).expect("memory");
        assert_eq!(nr(ask(&m, UnmapPolicy::All, own.folio())), 0, "nothing maps it");
    }

    pub fn a_locked_mapping_takes_it_off_reclaim<A: Arch>() {
        let m = new_machine::<A>();
        let o = object(&m, BackingKind::File);
        let (whole, most) = (o.add(0, 4).expect("memory"), o.add(16, 4).expect("memory"));
        let p = empty_space(&m);
        show_with(&p, 0, 32, &o, 0, SHARED | VmaFlags::LOCKED);
        map_pages(&p, 0, whole, 0, 16);
        map_pages(&p, 16, most, 0, 15);
        assert_eq!(ask(&m, UnmapPolicy::All, whole), Referenced::Locked);
        assert_eq!(nr(ask(&m, UnmapPolicy::All, most)), 0);
        assert!(whole.has(FolioFlags::MLOCKED) && !most.has(FolioFlags::MLOCKED));
        finish_all(&m, vec![p], vec![o]);
    }

    pub fn a_leaf_counts_once<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, pmd_pages::<A>());
        let folio = map_pmd(&p, 0);
        let before = entry::<A>(&p, 0).0;
        assert!(before.is_young());
        assert_eq!(nr(ask(&m, UnmapPolicy::All, folio)), 1);
        assert_eq!(entry::<A>(&p, 0), (before.mkold(), Level::Pmd));
        assert_eq!(nr(ask(&m, UnmapPolicy::All, folio)), 0);
        finish(&m, vec![p]);
    }

    pub fn what_a_device_holds_says_nothing<A: Arch>() {
        use mm_arch::{DeviceKind, NonPresent, SwapBits, SwapSlot};
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = space(&m, 4);
            let folio = map_folio(&p, 0, 2);
            let before = pte::<A>(&p, 1);
            let of = |what| E::<A>::from_nonpresent(what, SwapBits::default()).expect("it fits");
            let device = of(NonPresent::Device { kind: DeviceKind::Exclusive, pfn: folio.page(1) });
            unmap_one::<A>(&p, 3);
            edit::<A>(&p, 1, |_| device);
            edit::<A>(&p, 3, |_| of(NonPresent::Swap(SwapSlot { device: 1, offset: 9 })));
            edit::<A>(&p, 0, |e| e.mkyoung());
            edit::<A>(&p, 2, |e| e.mkold());
            let runs = m.events().get(mm_vma::Event::AgingRuns);
            assert_eq!(nr(ask(&m, policy, folio)), 1, "{policy:?}");
            assert_eq!(pte::<A>(&p, 1).raw(), device.raw(), "{policy:?}");
            assert_eq!(which::<A>(&p, 0, 3, |e| e.is_leaf(Level::Pte) && e.is_young()), []);
            // The walk goes on behind it, and no run goes over it.
            assert_eq!(m.events().get(mm_vma::Event::AgingRuns) - runs, 2);
            edit::<A>(&p, 1, |_| before);
            edit::<A>(&p, 3, |_| E::<A>::NONE);
            finish(&m, vec![p]);
        }
    }

    pub fn a_run_of_aging_stays_in_its_table<A: Arch>() {
        let m = new_machine::<A>();
        let o = object(&m, BackingKind::File);
        let folio = o.add(0, 4).expect("memory");
        let p = empty_space(&m);
        let at = pmd_pages::<A>() - 4;
        show(&p, at, 12, &o, 0);
        map_pages(&p, at, folio, 0, 12);
        let runs = m.events().get(mm_vma::Event::AgingRuns);
        assert_eq!(nr(ask(&m, UnmapPolicy::All, folio)), 1);
        assert_eq!(m.events().get(mm_vma::Event::AgingRuns) - runs, 2);
        assert_eq!(young::<A>(&p, at, 12), []);
        finish_all(&m, vec![p], vec![o]);
    }

    pub fn what_ends_anyway_is_not_swapped_out<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 2);
            folio.set_flag(FolioFlags::SWAPBACKED);
            let c = mm_map::fork(&BATCHED, &p).expect("memory");
            p.set_ending();
            // Others have it, too.
            assert!(nr(ask(&m, policy, folio)) >= 1);
            mm_map::exit(&BATCHED, &c);
            drop(c);
            assert_eq!(ask(&m, policy, folio), Referenced::Ending);
            // What was given up goes as it is.
            folio.clear_flag(FolioFlags::SWAPBACKED);
            edit::<A>(&p, 0, |e| e.mkyoung());
            assert_eq!(nr(ask(&m, policy, folio)), 1);
            finish(&m, vec![p]);
        }
    }

    pub fn who_watches_takes_nothing_from_reclaim<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let o = object(&m, BackingKind::File);
            let folio = o.add(0, 2).expect("memory");
            let p = empty_space(&m);
            // However it is read, and locked or not: used is used.
            show_with(&p, 0, 4, &o, 0, SHARED | VmaFlags::RAND_READ | VmaFlags::LOCKED);
            let q = empty_space(&m);
            show(&q, 0, 4, &o, 0);
            map_pages(&p, 0, folio, 0, 4);
            map_pages(&q, 0, folio, 0, 4);
            mark_idle(policy, &m, &folio.lock());
            assert_eq!((young::<A>(&p, 0, 4), young::<A>(&q, 0, 4)), (vec![], vec![]));
            assert!(is_idle(policy, &m, &folio.lock()) && !folio.has(FolioFlags::MLOCKED));
            // The use before is not lost: reclaim hears of it, once.
            assert!(folio.has(FolioFlags::YOUNG));
            mm_map::munmap(&BATCHED, &mut p.write(), pages::<A>(0, 4)).expect("memory");
            assert_eq!(nr(ask(&m, policy, folio)), 1);
            assert_eq!(nr(ask(&m, policy, folio)), 0);
            assert!(is_idle(policy, &m, &folio.lock()));
            // A use that the watcher finds, and one that reclaim finds.
            edit::<A>(&q, 2, |e| e.mkyoung());
            assert!(!is_idle(policy, &m, &folio.lock()));
            assert_eq!(nr(ask(&m, policy, folio)), 1);
            mark_idle(policy, &m, &folio.lock());
            edit::<A>(&q, 2, |e| e.mkyoung());
            assert_eq!(nr(ask(&m, policy, folio)), 1);
            assert!(!is_idle(policy, &m, &folio.lock()));
            finish_all(&m, vec![p, q], vec![o]);
        }
    }

    pub fn entries_that_are_not_present_have_no_accessed_bit<A: Arch>() {
        for policy in POLICIES {
            let m = machine_with_swap::<A>(255);
            let p = space(&m, 4);
            let folio = map_folio(&p, 0, 2);
            let pfn = folio.page(1);
            let device = NonPresent::Device { kind: DeviceKind::Exclusive, pfn };
            let Ok(device) = E::<A>::from_nonpresent(device, SwapBits::default()) else { continue };
            let slot = NonPresent::Swap(SwapSlot { device: 0, offset: 1 });
            let swap = E::<A>::from_nonpresent(slot, SwapBits::default()).expect("encodes");
            let last = pte::<A>(&p, 3);
            set_pte::<A>(&p, 1, device);
            edit::<A>(&p, 2, |e| e.mkold());
            set_pte::<A>(&p, 3, swap);
            let runs = m.events().get(mm_vma::Event::AgingRuns);
            assert_eq!(nr(ask(&m, policy, folio)), 1, "{policy:?}");
            // A run ends before the device's entry, and the walk goes on behind it.
            assert_eq!(m.events().get(mm_vma::Event::AgingRuns) - runs, 2);
            assert_eq!((pte::<A>(&p, 1), pte::<A>(&p, 3)), (device, swap));
            assert!(!pte::<A>(&p, 0).is_young() && !pte::<A>(&p, 2).is_young());
            assert!(!folio.has(FolioFlags::DIRTY));
            set_pte::<A>(&p, 3, last);
            finish(&m, vec![p]);
        }
    }
}

on_all! {
    /// Rules: REF-04.
    what_ends_anyway_is_not_swapped_out;
    /// Rules: REF-09.
    who_watches_takes_nothing_from_reclaim;
    /// Rules: MM-069, REF-05.
    entries_that_are_not_present_have_no_accessed_bit;
    /// Rules: REF-05, REF-11, REF-13, ACC-12, S-RC11.
    a_run_counts_once_and_is_old_after;
    /// Rules: REF-05.
    all_young_pages_of_a_run_count_once;
    /// Rules: REF-06, S-RC12.
    the_walk_ends_with_the_last_mapping;
    /// Rules: REF-02, REF-09.
    who_does_not_count_keeps_its_bits;
    /// Rules: REF-01.
    nobody_waits;
    /// Rules: REF-03.
    a_locked_mapping_takes_it_off_reclaim;
    /// Rules: REF-08.
    a_leaf_counts_once;
    /// Rules: REF-05. Cases: MM-069.
    what_a_device_holds_says_nothing;
    /// Rules: REF-05, REF-06.
    a_run_of_aging_stays_in_its_table;
}
