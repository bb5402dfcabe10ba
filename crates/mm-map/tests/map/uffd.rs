//! Userfaultfd: registration, write protection, markers, what outlives what.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry, Level, Markers, MigrationKind, NonPresent, Rights, SwapBits};
    use mm_folio::{FileId, Get};
    use mm_map::{
        Advice, MapError, OldPlace, UffdMode, WpChange, fork, madvise, mmap_backing, mprotect,
        mremap_move, munmap, uffd_register, uffd_unregister, uffd_wp, uffd_zeropage,
    };
    use mm_rmap::model::{ModelObject, UnmapBy, swap_out};
    use mm_vma::{BackingKind, Mm, Platform, RssKind, VmaFlags};

    const WP: UffdMode = UffdMode::WP;
    const MARKED: UffdMode = UffdMode::WP.union(UffdMode::WP_UNPOPULATED);

    fn register<A: Arch>(p: &Space<A>, first: u64, n: u64, mode: UffdMode) {
        uffd_register(&BATCHED, &mut p.write(), pages::<A>(first, n), mode).expect("memory");
    }
    fn wp<A: Arch>(
        policy: &mm_map::MapPolicy,
        p: &Space<A>,
        first: u64,
        n: u64,
        change: WpChange,
    ) -> Result<(), MapError> {
        uffd_wp(policy, &p.read(), pages::<A>(first, n), change)
    }
    fn protect<A: Arch>(p: &Space<A>, first: u64, n: u64) {
        wp(&BATCHED, p, first, n, WpChange::Protect).expect("registered");
    }
    fn unprotect<A: Arch>(p: &Space<A>, first: u64, n: u64) {
        wp(&BATCHED, p, first, n, WpChange::Unprotect).expect("registered");
    }
    fn is_marker<A: Arch>(e: E<A>) -> bool {
        e.nonpresent(Level::Pte) == Some(NonPresent::Marker(Markers::UFFD_WP))
    }
    fn protected<A: Arch>(p: &Space<A>, first: u64, n: u64) -> Vec<u64> {
        which::<A>(p, first, n, |e| e.is_present(Level::Pte) && e.is_uffd_wp())
    }
    fn marked<A: Arch>(p: &Space<A>, first: u64, n: u64) -> Vec<u64> {
        which::<A>(p, first, n, is_marker::<A>)
    }
    fn flags_at<A: Arch>(p: &Space<A>, page: u64) -> VmaFlags {
        p.read().find(va::<A>(page)).expect("mapped").flags()
    }

    pub fn registrations_split_and_join<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 16);
        let before = flags_at::<A>(&p, 0);
        register::<A>(&p, 4, 4, UffdMode::MISSING);
        assert_eq!(vmas::<A>(&p), [(0, 4), (4, 4), (8, 8)]);
        assert_eq!(flags_at::<A>(&p, 4), before | VmaFlags::UFFD_MISSING);
        register::<A>(&p, 8, 2, UffdMode::MISSING);
        assert_eq!(vmas::<A>(&p), [(0, 4), (4, 6), (10, 6)]);
        if A::HAS_UFFD_WP {
            let asked = WP | UffdMode::WP_ASYNC;
            register::<A>(&p, 0, 16, asked);
            let all = VmaFlags::UFFD_WP | VmaFlags::UFFD_WP_ASYNC | VmaFlags::UFFD_WP_UNPOPULATED;
            assert_eq!(vmas::<A>(&p), [(0, 16)]);
            assert_eq!(flags_at::<A>(&p, 4), before | all, "in place of what was there");
        }
        uffd_unregister(&BATCHED, &mut p.write(), pages::<A>(0, 100)).expect("holes are fine");
        assert_eq!((vmas::<A>(&p), flags_at::<A>(&p, 5)), (vec![(0, 16)], before));
        finish(&m, vec![p]);
    }

    pub fn what_cannot_be_registered<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 8);
        let ask = |first, n, mode: UffdMode| {
            let r = uffd_register(&BATCHED, &mut p.write(), pages::<A>(first, n), mode);
            r.map_err(MapError::errno)
        };
        assert_eq!(ask(0, 8, UffdMode::empty()), Err("EINVAL"));
        assert_eq!(ask(0, 8, UffdMode::WP_ASYNC), Err("EINVAL"), "a feature without a mode");
        assert_eq!(ask(8, 8, UffdMode::MISSING), Err("EINVAL"), "nothing is mapped");
        assert_eq!(ask(0, 8, WP), if A::HAS_UFFD_WP { Ok(()) } else { Err("EINVAL") });
        for (flags, errno) in [
            (VmaFlags::READ | VmaFlags::MAYREAD, "EPERM"),
            (RW | VmaFlags::MAY_PRIVATE | VmaFlags::SHARED, "EINVAL"),
            (RW | VmaFlags::MAY_PRIVATE | VmaFlags::DROPPABLE, "EINVAL"),
        ] {
            let before = flags_at::<A>(&p, 0);
            p.write().change().find_mut(va::<A>(0)).expect("mapped").set_flags(flags);
            assert_eq!(ask(0, 8, UffdMode::MISSING), Err(errno), "{flags:?}");
            assert_eq!(flags_at::<A>(&p, 0), flags);
            p.write().change().find_mut(va::<A>(0)).expect("mapped").set_flags(before);
        }
        uffd_unregister(&BATCHED, &mut p.write(), pages::<A>(0, 8)).expect("mapped");
        for change in [WpChange::Protect, WpChange::Unprotect] {
            let r = wp(&BATCHED, &p, 2, 2, change);
            assert_eq!(r, Err(MapError::NotRegistered(va::<A>(2))));
            let r = wp(&BATCHED, &p, 20, 2, change);
            assert_eq!(r.map_err(MapError::errno), Err("ENOENT"));
        }
        finish(&m, vec![p]);
    }

    pub fn a_part_of_a_folio<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            register::<A>(&p, 0, 16, WP);
            assert_eq!(writable::<A>(&p, 0, 16).len(), 16, "nothing changes by registering");
            let flushes = m.tlb_flushes();
            wp(&policy, &p, 4, 8, WpChange::Protect).expect("registered");
            assert!(m.tlb_flushes() > flushes, "stores must not miss it");
            assert_eq!(protected::<A>(&p, 0, 16), (4..12).collect::<Vec<_>>());
            assert_eq!(writable::<A>(&p, 0, 16), [0, 1, 2, 3, 12, 13, 14, 15]);
            assert_eq!(exclusive::<A>(folio).len(), 16);
            assert!((0..16).all(|page| pte::<A>(&p, page).is_dirty()), "no dirty bit is lost");
            // Pages that are shared stay read-only.
            m.memmap().clear_exclusive(folio.page(6), 2);
            wp(&policy, &p, 5, 4, WpChange::Unprotect).expect("registered");
            assert_eq!(protected::<A>(&p, 0, 16), [4, 9, 10, 11]);
            assert_eq!(writable::<A>(&p, 4, 8), [5, 8]);
            uffd_unregister(&policy, &mut p.write(), pages::<A>(0, 10)).expect("memory");
            assert_eq!(protected::<A>(&p, 0, 16), [10, 11]);
            assert_eq!(writable::<A>(&p, 4, 8), [4, 5, 8, 9], "without a fault");
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn nothing_is_marked_unless_asked_for<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, 4 * n);
        register::<A>(&p, 0, 4 * n, WP);
        map_folio(&p, 4, 0);
        protect::<A>(&p, 0, 4 * n);
        assert_eq!((protected::<A>(&p, 0, n), marked::<A>(&p, 0, n)), (vec![4], vec![]));
        let tables = m.tables_in_use();

        // Over a hole larger than a table.
        register::<A>(&p, 0, 4 * n, MARKED);
        assert_eq!(protected::<A>(&p, 0, n), [4], "the mode of protection goes on");
        protect::<A>(&p, 2, 3 * n);
        assert_eq!(m.tables_in_use(), tables + 3);
        let all: Vec<_> = (2..3 * n + 2).filter(|page| *page != 4).collect();
        assert_eq!(marked::<A>(&p, 0, 4 * n), all);
        assert_eq!(protected::<A>(&p, 0, 4 * n), [4]);
        audit(&m, &[&p]);
        unprotect::<A>(&p, 3, 2);
        assert_eq!(marked::<A>(&p, 0, 8), [2, 5, 6, 7]);
        assert_eq!(writable::<A>(&p, 0, 8), [4]);
        madvise(&BATCHED, &mut p.write(), pages::<A>(0, 6), Advice::DontNeed).expect("mapped");
        assert_eq!(marked::<A>(&p, 0, 8), [6, 7], "of anonymous memory nothing stays");
        uffd_unregister(&BATCHED, &mut p.write(), pages::<A>(0, 4 * n)).expect("memory");
        assert!((0..4 * n).all(|page| pte::<A>(&p, page).is_none()));
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn other_entries<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        let m = new_machine::<A>();
        let p = space(&m, 16);
        register::<A>(&p, 0, 16, MARKED);
        let pfn = m.zero_page();
        let of = |what| E::<A>::from_nonpresent(what, SwapBits::default()).expect("encodable");
        let moving = |kind| NonPresent::Migration { kind, pfn, young: false, dirty: false };
        let kinds = [MigrationKind::Write, MigrationKind::ReadExclusive, MigrationKind::Read];
        for (k, kind) in (0..).zip(kinds) {
            set_pte::<A>(&p, k, of(moving(kind)));
        }
        let stays = [Markers::GUARD, Markers::POISONED];
        for (k, marker) in (3..).zip(stays) {
            set_pte::<A>(&p, k, of(NonPresent::Marker(marker)));
        }
        map_zero(&p, 5);
        protect::<A>(&p, 0, 6);
        let after =
            [MigrationKind::ReadExclusive, MigrationKind::ReadExclusive, MigrationKind::Read];
        for wp in [true, false] {
            for (k, kind) in (0..).zip(after) {
                let e = pte::<A>(&p, k);
                assert_eq!(e.nonpresent(Level::Pte), Some(moving(kind)), "page {k}");
                assert_eq!(e.swap_bits().uffd_wp, wp);
            }
            for (k, marker) in (3..).zip(stays) {
                assert_eq!(pte::<A>(&p, k), of(NonPresent::Marker(marker)));
            }
            let zero = pte::<A>(&p, 5);
            assert!(zero.is_uffd_wp() == wp && !zero.is_writable(Level::Pte) && zero.is_special());
            unprotect::<A>(&p, 0, 6);
        }
        // Entries of pages that only this test says are moving.
        for k in 0..3 {
            set_pte::<A>(&p, k, E::<A>::NONE);
        }
        // Cases: MM-037. A protected zero page goes without a trace.
        protect::<A>(&p, 5, 1);
        madvise(&BATCHED, &mut p.write(), pages::<A>(5, 1), Advice::DontNeed).expect("mapped");
        assert!(pte::<A>(&p, 5).is_none());
        finish(&m, vec![p]);
    }

    pub fn leaves<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, 3 * n);
        map_pmd(&p, 0);
        map_pmd(&p, n);
        map_huge_zero(&p, 2 * n);
        register::<A>(&p, 0, 3 * n, WP);
        protect::<A>(&p, 0, n);
        let (e, level) = entry::<A>(&p, 0);
        assert!(level == Level::Pmd && e.is_uffd_wp() && !e.is_writable(level) && e.is_dirty());
        unprotect::<A>(&p, 0, n);
        let (e, level) = entry::<A>(&p, 0);
        assert!(level == Level::Pmd && !e.is_uffd_wp() && e.is_writable(level));
        protect::<A>(&p, 2 * n, n);
        let (e, level) = entry::<A>(&p, 2 * n);
        assert!(level == Level::Pmd && e.is_uffd_wp());
        unprotect::<A>(&p, 2 * n, n);
        let (e, level) = entry::<A>(&p, 2 * n);
        assert!(level == Level::Pmd && !e.is_uffd_wp() && !e.is_writable(level));

        protect::<A>(&p, n + 3, 2);
        assert_eq!(protected::<A>(&p, n, n), [n + 3, n + 4]);
        assert_eq!(writable::<A>(&p, n, n).len() as u64, n - 2);
        // One page of a protected leaf: the rest stays protected.
        protect::<A>(&p, 0, n);
        unprotect::<A>(&p, 5, 1);
        assert_eq!(
            (writable::<A>(&p, 0, n), protected::<A>(&p, 0, n).len() as u64),
            (vec![5], n - 1)
        );
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn what_forgets_the_protection<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 32);
            map_folio(&p, 0, 4);
            map_zero(&p, 16);
            register::<A>(&p, 0, 32, MARKED);
            protect::<A>(&p, 4, 4);
            protect::<A>(&p, 16, 2);
            let c = fork(&policy, &p).expect("memory");
            assert_eq!(flags_at::<A>(&c, 0) & VmaFlags::UFFD_ANY, VmaFlags::empty());
            assert_eq!((protected::<A>(&c, 0, 32), marked::<A>(&c, 0, 32)), (vec![], vec![]));
            assert_eq!(protected::<A>(&p, 0, 32), [4, 5, 6, 7, 16]);
            assert_eq!(marked::<A>(&p, 0, 32), [17]);
            // Not exclusive: read-only whether protected or not.
            wp(&policy, &p, 0, 32, WpChange::Unprotect).expect("registered");
            assert_eq!((protected::<A>(&p, 0, 32), writable::<A>(&p, 0, 32)), (vec![], vec![]));
            wp(&policy, &p, 4, 14, WpChange::Protect).expect("registered");

            // Cases: MM-043.
            mremap_move(&policy, &mut p.write(), pages::<A>(0, 32), va::<A>(100), OldPlace::Keep)
                .expect("memory");
            assert_eq!(flags_at::<A>(&p, 100) & VmaFlags::UFFD_ANY, VmaFlags::empty());
            assert_eq!((protected::<A>(&p, 100, 32), marked::<A>(&p, 100, 32)), (vec![], vec![]));
            assert!(flags_at::<A>(&p, 0).contains(VmaFlags::UFFD_WP), "the old place stays armed");
            audit(&m, &[&p, &c]);
            finish(&m, vec![p, c]);
        }
    }

    pub fn a_child_that_is_registered_stays_protected<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let n = pmd_pages::<A>();
            let p = space(&m, 3 * n);
            map_folio(&p, 0, 4);
            map_zero(&p, 16);
            map_pmd(&p, 2 * n);
            register::<A>(&p, 0, 3 * n, MARKED | UffdMode::EVENT_FORK);
            protect::<A>(&p, 4, 4);
            protect::<A>(&p, 16, 2);
            protect::<A>(&p, 2 * n, n);
            let c = fork(&policy, &p).expect("memory");
            assert_eq!(flags_at::<A>(&c, 0), flags_at::<A>(&p, 0));
            assert_eq!(protected::<A>(&c, 0, 32), [4, 5, 6, 7, 16]);
            assert_eq!(marked::<A>(&c, 0, 32), [17]);
            let (e, level) = entry::<A>(&c, 2 * n);
            assert!(level == Level::Pmd && e.is_uffd_wp() && !e.is_writable(level));
            assert_eq!(protected::<A>(&p, 0, 32), [4, 5, 6, 7, 16]);
            audit(&m, &[&p, &c]);
            finish(&m, vec![p, c]);
        }
        // It is no registration by itself.
        let p = space(&new_machine::<A>(), 16);
        let only = uffd_register(&BATCHED, &mut p.write(), pages::<A>(0, 16), UffdMode::EVENT_FORK);
        assert_eq!(only, Err(MapError::Invalid(va::<A>(0))));
        munmap(&BATCHED, &mut p.write(), pages::<A>(0, 16)).expect("memory");
    }

    pub fn a_child_that_is_registered_has_what_is_shared_clean_and_old<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p: Space<A> = Mm::new(m.clone()).expect("space");
            let o = ModelObject::new(&m, FileId(1), BackingKind::Shmem, false);
            let shared = RW | VmaFlags::MAY_PRIVATE | VmaFlags::SHARED | VmaFlags::MAYSHARE;
            mmap_backing(&mut p.write(), pages::<A>(0, 16), shared, o.clone(), 0).expect("free");
            register::<A>(&p, 0, 16, WP | UffdMode::EVENT_FORK);
            let folio = o.add(0, 2).expect("memory");
            folio.grab::<Get>(4).expect("fits").hand_over();
            folio.add_file_ptes(0, nz(4), p.id());
            p.counters().add(RssKind::of(folio), 4);
            let prot = A::prot(p.read().find(va::<A>(0)).expect("mapped").protection());
            for k in 0..4 {
                let e = E::<A>::leaf(folio.head().add(k), prot, Level::Pte);
                set_pte::<A>(&p, k, e.mkyoung().mkdirty().mkwrite(mm_arch::WriteKind::Normal));
            }
            protect::<A>(&p, 3, 2);
            let c = fork(&policy, &p).expect("memory");
            let of_child = |is: &dyn Fn(E<A>) -> bool| which::<A>(&c, 0, 16, is);
            assert_eq!(of_child(&|e| e.is_present(Level::Pte)), [0, 1, 2, 3]);
            assert_eq!(
                of_child(&|e| e.is_present(Level::Pte) && (e.is_dirty() || e.is_young())),
                []
            );
            assert_eq!((protected::<A>(&c, 0, 16), marked::<A>(&c, 0, 16)), (vec![3], vec![4]));
            assert_eq!(writable::<A>(&c, 0, 16), [0, 1, 2]);
            assert_eq!(which::<A>(&p, 0, 4, |e| e.is_dirty() && e.is_young()), [0, 1, 2, 3]);
            assert_eq!((writable::<A>(&p, 0, 16), folio.mapcount()), (vec![0, 1, 2], 8));
            drop(o);
            finish(&m, vec![p, c]);
        }
    }

    pub fn rights_and_protection_go_together<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        let (r, rw) = (Rights::READ, Rights::READ | Rights::WRITE);
        let m = new_machine::<A>();
        let p = space(&m, 16);
        map_folio(&p, 0, 4);
        register::<A>(&p, 0, 16, WP);
        protect::<A>(&p, 4, 4);
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 16), r).expect("allowed");
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 16), rw).expect("allowed");
        assert_eq!(protected::<A>(&p, 0, 16), [4, 5, 6, 7]);
        assert_eq!(writable::<A>(&p, 0, 16).len(), 12, "but for the protected ones");
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 16), r).expect("allowed");
        unprotect::<A>(&p, 0, 16);
        assert_eq!((protected::<A>(&p, 0, 16), writable::<A>(&p, 0, 16)), (vec![], vec![]));
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn zero_pages_on_request<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 8);
        let fill = |first, n| uffd_zeropage(&p.read(), pages::<A>(first, n));
        assert_eq!(fill(0, 1), Err(MapError::NotRegistered(va::<A>(0))));
        register::<A>(&p, 0, 8, UffdMode::MISSING);
        map_folio(&p, 2, 0);
        assert_eq!(fill(0, 4).map_err(MapError::errno), Err("EEXIST"));
        let is_zero = |e: E<A>| e.is_present(Level::Pte) && e.pfn(Level::Pte) == m.zero_page();
        assert_eq!(which::<A>(&p, 0, 8, is_zero), [0, 1], "what is below is done");
        let zero = pte::<A>(&p, 0);
        assert!(zero.is_special() && !zero.is_writable(Level::Pte));
        if A::HAS_UFFD_WP {
            register::<A>(&p, 0, 8, MARKED | UffdMode::MISSING);
            protect::<A>(&p, 5, 1);
            assert_eq!(fill(5, 1), Ok(()));
            assert!(is_zero(pte::<A>(&p, 5)) && pte::<A>(&p, 5).is_uffd_wp());
        }
        assert_eq!(fill(6, 4).map_err(MapError::errno), Err("ENOENT"));
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn pages_of_objects_stay_protected<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        let m = new_machine::<A>();
        let shared = RW | VmaFlags::SHARED | VmaFlags::MAYREAD | VmaFlags::MAYWRITE;
        for (kind, mode, accepted) in [
            (BackingKind::Shmem, WP, true),
            (BackingKind::File, UffdMode::MISSING, false),
            (BackingKind::File, WP, false),
        ] {
            let p: Space<A> = Mm::new(m.clone()).expect("space");
            let o = ModelObject::new(&m, FileId(1), kind, false);
            mmap_backing(&mut p.write(), pages::<A>(0, 16), shared, o.clone(), 0).expect("free");
            let registered = uffd_register(&BATCHED, &mut p.write(), pages::<A>(0, 16), mode);
            assert_eq!(registered.is_ok(), accepted, "{kind:?} {mode:?}");
            if accepted {
                // Page 0 is mapped; the object has the others, if there are any.
                let folio = o.add(0, 0).expect("memory");
                folio.grab::<Get>(1).expect("fits").hand_over();
                folio.add_file_ptes(0, nz(1), p.id());
                p.counters().add(RssKind::of(folio), 1);
                let prot = A::prot(p.read().find(va::<A>(0)).expect("mapped").protection());
                set_pte::<A>(&p, 0, E::<A>::leaf(folio.head(), prot, Level::Pte));
                protect::<A>(&p, 0, 4);
                assert_eq!(
                    (protected::<A>(&p, 0, 16), marked::<A>(&p, 0, 16)),
                    (vec![0], vec![1, 2, 3])
                );
                assert!(!pte::<A>(&p, 0).is_writable(Level::Pte));
                // The pages are still there.
                madvise(&BATCHED, &mut p.write(), pages::<A>(0, 3), Advice::DontNeed)
                    .expect("mapped");
                assert_eq!(marked::<A>(&p, 0, 16), [0, 1, 2, 3]);
                unprotect::<A>(&p, 1, 1);
                assert_eq!(marked::<A>(&p, 0, 16), [0, 2, 3]);
                munmap(&BATCHED, &mut p.write(), pages::<A>(2, 1)).expect("memory");
                uffd_unregister(&BATCHED, &mut p.write(), pages::<A>(0, 16)).expect("memory");
                assert_eq!(which::<A>(&p, 0, 16, |e| !e.is_none()), [] as [u64; 0]);
            }
            drop(o);
            finish(&m, vec![p]);
        }
    }

    /// In memory, and on swap.
    pub fn copies_that_are_discarded_stay_protected<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        for out in [false, true] {
            let m = new_machine::<A>();
            let p: Space<A> = Mm::new(m.clone()).expect("space");
            let o = ModelObject::new(&m, FileId(1), BackingKind::Shmem, false);
            let private = RW | VmaFlags::MAYREAD | VmaFlags::MAYWRITE;
            mmap_backing(&mut p.write(), pages::<A>(0, 4), private, o.clone(), 0).expect("free");
            uffd_register(&BATCHED, &mut p.write(), pages::<A>(0, 4), WP).expect("accepted");
            let head = map_folio(&p, 0, 2).head();
            protect::<A>(&p, 1, 2);
            if out {
                assert!(swap_out(&m, head, UnmapBy::Run));
            }
            madvise(&BATCHED, &mut p.write(), pages::<A>(0, 4), Advice::DontNeed).expect("mapped");
            assert_eq!(marked::<A>(&p, 0, 4), [1, 2], "on swap: {out}");
            drop(o);
            finish(&m, vec![p]);
        }
    }
}

on_all! {
    /// Rules: UFFD-04.
    registrations_split_and_join;
    /// Rules: UFFD-04.
    what_cannot_be_registered;
    /// Rules: UFFD-04, PTE-15, MPROT-02, MPROT-03, MPROT-04, WRITE-02.
    a_part_of_a_folio;
    /// Rules: UFFD-04, UFFD-05, MPROT-05. Rows: S-UF1.
    nothing_is_marked_unless_asked_for;
    /// Rules: UFFD-04, MPROT-05, ZAP-07. Cases: MM-037.
    other_entries;
    /// Rules: PMDF-01, MPROT-07, MPROT-09.
    leaves;
    /// Rules: UFFD-06, FORK-06, MREMAP-01. Rows: S-UF2. Cases: MM-043.
    what_forgets_the_protection;
    /// Rules: UFFD-06, FORK-06. Rows: S-UF2.
    a_child_that_is_registered_stays_protected;
    /// Rules: UFFD-06, FORK-03, FORK-06. Rows: S-FK3.
    a_child_that_is_registered_has_what_is_shared_clean_and_old;
    /// Rules: WRITE-01, MPROT-03.
    rights_and_protection_go_together;
    /// Rules: ANON-02.
    zero_pages_on_request;
    /// Rules: UFFD-04, UFFD-05, MPROT-05.
    pages_of_objects_stay_protected;
    /// Rules: ZAP-07, UFFD-05. Cases: MM-037.
    copies_that_are_discarded_stay_protected;
}
