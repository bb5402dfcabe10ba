//! Moving and resizing.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry, Level, Markers, NonPresent, SwapBits};
    use mm_map::{MapError, OldPlace, fork, mremap_move, mremap_resize};
    use mm_rmap::RmapPlatform;
    use mm_vma::{Platform, RssKind, VmaFlags};

    /// Where tests move to: two tables further on.
    fn far<A: Arch>() -> u64 {
        3 * pmd_pages::<A>()
    }

    pub fn entries_keep_all_but_their_place<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 20);
            let folio = map_folio(&p, 0, 4);
            map_zero(&p, 17);
            let guard = NonPresent::Marker(Markers::GUARD);
            let guard = E::<A>::from_nonpresent(guard, SwapBits::default()).expect("encodes");
            set_pte::<A>(&p, 18, guard);
            m.memmap().clear_exclusive(folio.page(3), 1);
            edit::<A>(&p, 3, E::<A>::wrprotect);
            edit::<A>(&p, 5, |e| if A::HAS_UFFD_WP { e.mkuffd_wp() } else { e.wrprotect() });
            for page in 0..16 {
                edit::<A>(&p, page, E::<A>::clear_soft_dirty);
            }
            let before = folio.counts_locked(|c| (c.refs, c.mapcount));
            let to = far::<A>() + 7;
            mremap_move(&policy, &mut p.write(), pages::<A>(0, 20), va::<A>(to), OldPlace::Unmap)
                .expect("memory");
            assert_eq!(vmas::<A>(&p), [(to, 20)]);
            assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), before);
            assert_eq!(exclusive::<A>(folio).len(), 15);
            let all_but = |out: &[u64]| {
                (to..to + 16).filter(|p| !out.contains(&(p - to))).collect::<Vec<_>>()
            };
            assert_eq!(writable::<A>(&p, to, 16), all_but(&[3, 5]), "BATCH-12");
            assert_eq!(which::<A>(&p, to, 16, E::<A>::is_uffd_wp), [], "MM-043");
            if A::HAS_SOFT_DIRTY {
                assert_eq!(which::<A>(&p, to, 16, E::<A>::is_soft_dirty).len(), 16);
            }
            for page in 0..16 {
                assert_eq!(m.content(pte::<A>(&p, to + page).pfn(Level::Pte)), 1000 + page);
                assert!(entry::<A>(&p, page).0.is_none());
            }
            assert_eq!(pte::<A>(&p, to + 17).pfn(Level::Pte), m.zero_page());
            assert!(matches!(
                pte::<A>(&p, to + 18).nonpresent(Level::Pte),
                Some(NonPresent::Marker(Markers::GUARD))
            ));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn within_one_table<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 8);
            map_folio(&p, 0, 3);
            mremap_move(&policy, &mut p.write(), pages::<A>(0, 8), va::<A>(12), OldPlace::Unmap)
                .expect("memory");
            assert_eq!(vmas::<A>(&p), [(12, 8)]);
            assert_eq!(writable::<A>(&p, 12, 8).len(), 8);
            audit(&m, &[&p]);
            // Part of it further on; what is there goes.
            mremap_move(&policy, &mut p.write(), pages::<A>(16, 4), va::<A>(10), OldPlace::Unmap)
                .expect("memory");
            assert_eq!(vmas::<A>(&p), [(10, 4), (14, 2)]);
            assert_eq!(p.counters().get(RssKind::Anon), 6);
            assert_eq!(m.content(pte::<A>(&p, 10).pfn(Level::Pte)), 1004);
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn across_table_edges<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let n = pmd_pages::<A>();
            let p = space(&m, 2 * n);
            map_folio(&p, n - 8, 3);
            map_folio(&p, n, 4);
            let to = far::<A>() + n - 5;
            mremap_move(
                &policy,
                &mut p.write(),
                pages::<A>(n - 8, 24),
                va::<A>(to),
                OldPlace::Unmap,
            )
            .expect("memory");
            assert_eq!(vmas::<A>(&p), [(0, n - 8), (n + 16, n - 16), (to, 24)]);
            for k in 0..24 {
                assert_eq!(m.content(pte::<A>(&p, to + k).pfn(Level::Pte)), 1000 + n - 8 + k);
            }
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn leaves_move_whole<A: Arch>() {
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, 2 * n);
        let folio = map_pmd(&p, 0);
        map_huge_zero(&p, n);
        let to = far::<A>();
        mremap_move(&BATCHED, &mut p.write(), pages::<A>(0, 2 * n), va::<A>(to), OldPlace::Unmap)
            .expect("memory");
        let (e, level) = entry::<A>(&p, to);
        assert!(level == Level::Pmd && e.is_writable(level) && e.pfn(level) == folio.head());
        assert_eq!(entry::<A>(&p, to + n).1, Level::Pmd);
        assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount, c.entire)), (1, 1, 1));
        audit(&m, &[&p]);
        // The deposited tables came along: a split works.
        mremap_move(&BATCHED, &mut p.write(), pages::<A>(to, 2 * n), va::<A>(1), OldPlace::Unmap)
            .expect("memory");
        assert_eq!((entry::<A>(&p, 1).1, entry::<A>(&p, n + 1).1), (Level::Pte, Level::Pte));
        assert_eq!(writable::<A>(&p, 0, 2 * n), (1..n + 1).collect::<Vec<_>>());
        assert_eq!(exclusive::<A>(folio).len() as u64, n);
        assert!(m.memmap().is_zero_page(pte::<A>(&p, n + 1).pfn(Level::Pte)));
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn the_old_place_may_stay<A: Arch>() {
        // mremap_dontunmap.
        let m = new_machine::<A>();
        let p = space(&m, 16);
        map_folio(&p, 0, 4);
        let to = far::<A>();
        mremap_move(&BATCHED, &mut p.write(), pages::<A>(0, 16), va::<A>(to), OldPlace::Keep)
            .expect("memory");
        assert_eq!(vmas::<A>(&p), [(0, 16), (to, 16)]);
        assert!(p.read().find(va::<A>(0)).expect("mapped").anon().is_none());
        assert_eq!(which::<A>(&p, 0, 16, |e| !e.is_none()), []);
        assert_eq!(writable::<A>(&p, to, 16).len(), 16);
        map_folio(&p, 3, 0);
        audit(&m, &[&p]);
        // Part of a mapping: what stays is one mapping again.
        mremap_move(
            &BATCHED,
            &mut p.write(),
            pages::<A>(to + 4, 4),
            va::<A>(2 * to),
            OldPlace::Keep,
        )
        .expect("memory");
        assert_eq!(vmas::<A>(&p), [(0, 16), (to, 16), (2 * to, 4)]);
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn relatives_still_find_what_moved<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 16);
        let folio = map_folio(&p, 0, 4);
        let c = fork(&BATCHED, &p).expect("memory");
        mremap_move(
            &BATCHED,
            &mut p.write(),
            pages::<A>(4, 8),
            va::<A>(far::<A>()),
            OldPlace::Unmap,
        )
        .expect("memory");
        mremap_move(
            &BATCHED,
            &mut c.write(),
            pages::<A>(0, 16),
            va::<A>(far::<A>()),
            OldPlace::Unmap,
        )
        .expect("memory");
        assert_eq!(folio.mapcount(), 32);
        // Walks count 32 entries in three VMAs of two spaces.
        audit(&m, &[&p, &c]);
        let d = fork(&BATCHED, &c).expect("memory");
        audit(&m, &[&p, &c, &d]);
        finish(&m, vec![c, p, d]);
    }

    pub fn unfaulted_mappings_take_the_index_of_their_new_place<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 8);
        mm_map::mmap_anon(&mut p.write(), pages::<A>(far::<A>(), 8), RW).expect("free");
        map_folio(&p, far::<A>(), 0);
        mremap_move(
            &BATCHED,
            &mut p.write(),
            pages::<A>(0, 8),
            va::<A>(far::<A>() + 8),
            OldPlace::Unmap,
        )
        .expect("memory");
        assert_eq!(vmas::<A>(&p), [(far::<A>(), 16)]);
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn shrink_and_grow<A: Arch>() {
        // mremap_shrink_grow.
        let m = new_machine::<A>();
        let p = space(&m, 32);
        map_folio(&p, 0, 4);
        let second = map_folio(&p, 16, 4);
        let resize = |old: u64, new: u64| {
            let bytes = new << A::PAGE_SHIFT;
            mremap_resize(&BATCHED, &mut p.write(), pages::<A>(0, old), bytes)
        };
        resize(32, 24).expect("memory");
        assert_eq!(second.counts_locked(|c| (c.refs, c.mapcount)), (8, 8));
        assert_eq!(vmas::<A>(&p), [(0, 24)]);
        resize(24, 48).expect("room");
        assert_eq!(vmas::<A>(&p), [(0, 48)]);
        map_folio(&p, 40, 2);
        audit(&m, &[&p]);
        // In the way.
        mm_map::mmap_anon(&mut p.write(), pages::<A>(50, 2), VmaFlags::READ).expect("free");
        assert_eq!(resize(48, 51).map_err(MapError::errno), Err("ENOMEM"));
        assert_eq!(resize(20, 24).map_err(MapError::errno), Err("ENOMEM"), "not at its end");
        assert_eq!(resize(60, 64).map_err(MapError::errno), Err("EFAULT"));
        resize(48, 50).expect("room");
        assert_eq!(vmas::<A>(&p), [(0, 50), (50, 2)]);
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn refusals<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 8);
        let go = |from: u64, n: u64, to: u64| {
            mremap_move(&BATCHED, &mut p.write(), pages::<A>(from, n), va::<A>(to), OldPlace::Unmap)
                .map_err(MapError::errno)
        };
        assert_eq!(go(0, 8, 4), Err("EINVAL"));
        assert_eq!(go(20, 4, 40), Err("EFAULT"));
        assert_eq!(vmas::<A>(&p), [(0, 8)]);
        finish(&m, vec![p]);
        assert_eq!(m.anon_trees().nr_trees(), 0);
    }
}

on_all! {
    /// Rules: MREMAP-01, MREMAP-03, BATCH-11, BATCH-12; MM-043.
    entries_keep_all_but_their_place;
    /// Rules: MREMAP-01.
    within_one_table;
    /// Rules: MREMAP-01, INV-10.
    across_table_edges;
    /// Rules: MREMAP-05; goldens mremap_move_2m and mremap_move_2m_unaligned.
    leaves_move_whole;
    /// Rules: MREMAP-03; golden mremap_dontunmap.
    the_old_place_may_stay;
    /// Rules: RMAP-22, RMAP-32, PVMW-07.
    relatives_still_find_what_moved;
    /// Rules: RMAP-28.
    unfaulted_mappings_take_the_index_of_their_new_place;
    /// Rules: FOLIO-22; golden mremap_shrink_grow.
    shrink_and_grow;
    /// Errors as the kernel has them.
    refusals;
}
