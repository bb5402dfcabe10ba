//! Locked mappings keep their pages.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Level};
    use mm_folio::FolioFlags;
    use mm_map::{LockWhen, MapError, fork, mlock, munlock, munmap};
    use mm_vma::{Platform, VmaFlags};

    fn is_locked<A: Arch>(folio: mm_folio::Folio<'_, M<A>>) -> bool {
        let both = FolioFlags::MLOCKED | FolioFlags::UNEVICTABLE;
        assert!(folio.has(both) || !folio.flags().intersects(both));
        folio.has(both)
    }
    fn flags<A: Arch>(p: &Space<A>, page: u64) -> VmaFlags {
        p.read().find(va::<A>(page)).expect("mapped").flags()
    }

    pub fn whole_folios_are_marked_and_parts_are_not<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 32);
        let (small, whole, part) = (map_folio(&p, 0, 0), map_folio(&p, 4, 2), map_folio(&p, 8, 3));
        mlock(&mut p.write(), pages::<A>(0, 12), LockWhen::Now).expect("mapped");
        assert_eq!(vmas::<A>(&p), [(0, 12), (12, 20)]);
        assert!(flags::<A>(&p, 0).contains(VmaFlags::LOCKED));
        assert!(!flags::<A>(&p, 12).contains(VmaFlags::LOCKED));
        assert_eq!([small, whole, part].map(is_locked::<A>), [true, true, false]);
        // The rest of it: a mapping of its own as long as the flags differ.
        mlock(&mut p.write(), pages::<A>(12, 4), LockWhen::Touched).expect("mapped");
        assert!(flags::<A>(&p, 12).contains(VmaFlags::LOCKED | VmaFlags::LOCKONFAULT));
        assert!(!is_locked::<A>(part), "shown by two mappings");
        mlock(&mut p.write(), pages::<A>(0, 16), LockWhen::Now).expect("mapped");
        assert_eq!(vmas::<A>(&p), [(0, 16), (16, 16)]);
        assert!(is_locked::<A>(part));
        munlock(&mut p.write(), pages::<A>(6, 1)).expect("mapped");
        assert_eq!([small, whole, part].map(is_locked::<A>), [true, false, true], "too eager");
        munlock(&mut p.write(), pages::<A>(0, 32)).expect("mapped");
        assert_eq!([small, whole, part].map(is_locked::<A>), [false; 3]);
        assert_eq!(vmas::<A>(&p), [(0, 32)]);
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn a_removal_from_a_locked_mapping_ends_it<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            mlock(&mut p.write(), pages::<A>(0, 16), LockWhen::Now).expect("mapped");
            let c = fork(&policy, &p).expect("memory");
            assert!(!flags::<A>(&c, 0).contains(VmaFlags::LOCKED), "FORK-01");
            munmap(&policy, &mut c.write(), pages::<A>(0, 16)).expect("mapped");
            assert!(is_locked::<A>(folio), "that mapping did not keep it");
            munmap(&policy, &mut p.write(), pages::<A>(3, 1)).expect("mapped");
            assert!(!is_locked::<A>(folio));
            audit(&m, &[&p, &c]);
            finish(&m, vec![c, p]);
        }
    }

    pub fn leaves_are_marked_whole_and_split_at_a_boundary<A: Arch>() {
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, 2 * n);
        let folio = map_pmd(&p, 0);
        mlock(&mut p.write(), pages::<A>(0, n), LockWhen::Now).expect("mapped");
        assert!(is_locked::<A>(folio) && entry::<A>(&p, 0).1 == Level::Pmd);
        munlock(&mut p.write(), pages::<A>(0, n)).expect("mapped");
        assert!(!is_locked::<A>(folio));
        mlock(&mut p.write(), pages::<A>(0, 1), LockWhen::Now).expect("mapped");
        assert!(!is_locked::<A>(folio) && entry::<A>(&p, 0).1 == Level::Pte, "VMA-01");
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn holes_stop_it_and_devices_are_passed_by<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 32);
        let folio = map_folio(&p, 0, 0);
        munmap(&BATCHED, &mut p.write(), pages::<A>(8, 4)).expect("mapped");
        let hole = MapError::Hole(va::<A>(8));
        assert_eq!(mlock(&mut p.write(), pages::<A>(0, 16), LockWhen::Now), Err(hole));
        assert_eq!(hole.errno(), "ENOMEM");
        assert!(is_locked::<A>(folio), "what lies below is locked");
        assert!(!flags::<A>(&p, 12).contains(VmaFlags::LOCKED));
        let start = MapError::Hole(va::<A>(9));
        assert_eq!(munlock(&mut p.write(), pages::<A>(9, 8)), Err(start));
        let odd = mm_arch::VirtRange::new(mm_arch::VirtAddr::new(1), 4096).expect("range");
        assert!(matches!(munlock(&mut p.write(), odd), Err(MapError::Unaligned(_))));
        let device = flags::<A>(&p, 12) | VmaFlags::PFNMAP;
        p.write().change().find_mut(va::<A>(12)).expect("mapped").set_flags(device);
        mlock(&mut p.write(), pages::<A>(12, 4), LockWhen::Now).expect("passed by");
        assert!(!flags::<A>(&p, 12).contains(VmaFlags::LOCKED));
        // A failed split of a mapping leaves it as it was.
        assert_eq!(m.memmap().page_mapcount(folio.head()), 1);
        finish(&m, vec![p]);
    }
}

on_all! {
    /// Rules: RMAP-06; row S-ML2.
    whole_folios_are_marked_and_parts_are_not;
    /// Rules: RMAP-06, FORK-01.
    a_removal_from_a_locked_mapping_ends_it;
    /// Rules: RMAP-06, VMA-01.
    leaves_are_marked_whole_and_split_at_a_boundary;
    /// Rules: RMAP-06.
    holes_stop_it_and_devices_are_passed_by;
}
