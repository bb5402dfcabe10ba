//! Entries made inaccessible to see who uses their pages.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry, Level, Rights};
    use mm_folio::{FileId, FolioFlags, Get, Pin};
    use mm_map::{MapError, exit, fork, mark_hints, mmap_backing, mprotect};
    use mm_rmap::model::ModelObject;
    use mm_vma::{BackingKind, Event, Mm, Platform, RssKind, VmaFlags};

    fn mark<A: Arch>(p: &Space<A>, first: u64, n: u64) {
        mark_hints(&BATCHED, &p.read(), pages::<A>(first, n)).expect("user space");
    }
    fn hints<A: Arch>(p: &Space<A>, first: u64, n: u64) -> Vec<u64> {
        which::<A>(p, first, n, |e| e.is_present(Level::Pte) && e.is_protnone(Level::Pte))
    }
    fn marked<A: Arch>(m: &M<A>) -> u64 {
        m.events().get(Event::HintsMarked)
    }

    pub fn what_could_move_is_marked_and_nothing_else<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let m = new_machine::<A>();
            let p = space(&m, 32);
            // Pages 0..8 shared with a child, 8..12 pinned, 12..16 merged, 16 the zero page.
            for page in [0, 4] {
                map_folio(&p, page, 2);
            }
            let c = fork(&policy, &p).expect("memory");
            let pin = map_folio(&p, 8, 2).grab::<Pin>(1).expect("room");
            for page in 12..16 {
                map_folio(&p, page, 0).set_flag(FolioFlags::KSM);
            }
            map_zero(&p, 16);
            map_folio(&p, 20, 2);
            map_folio(&p, 28, 0);
            let before = m.tlb_flushes();
            mark_hints(&policy, &p.read(), pages::<A>(0, 32)).expect("user space");
            assert_eq!((hints::<A>(&p, 0, 32), marked(&m)), (vec![20, 21, 22, 23, 28], 5));
            assert!(m.tlb_flushes() > before, "nobody passes a hint by");
            assert!((20..24).all(|k| pte::<A>(&p, k).is_dirty() && !pte::<A>(&p, k).is_none()));
            // What is a hint stays one, and is not told again.
            mark_hints(&policy, &p.read(), pages::<A>(0, 32)).expect("user space");
            assert_eq!((hints::<A>(&p, 0, 32).len(), marked(&m)), (5, 5));
            drop(pin);
            for page in 12..16 {
                m.memmap().folio(pte::<A>(&p, page).pfn(Level::Pte)).clear_flag(FolioFlags::KSM);
            }
            exit(&policy, &c);
            drop(c);
            // Alone again: what was shared could move now.
            mark_hints(&policy, &p.read(), pages::<A>(0, 8)).expect("user space");
            assert_eq!(hints::<A>(&p, 0, 8).len(), 8);
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn mappings_are_asked_or_passed_by<A: Arch>() {
        let m = new_machine::<A>();
        let p: Space<A> = Mm::new(m.clone()).expect("space");
        let file = ModelObject::new(&m, FileId(1), BackingKind::File, false);
        let shmem = ModelObject::new(&m, FileId(2), BackingKind::Shmem, false);
        let shared = RW | VmaFlags::MAY_PRIVATE | VmaFlags::SHARED | VmaFlags::MAYSHARE;
        let code = VmaFlags::READ | VmaFlags::EXEC | VmaFlags::MAY_PRIVATE;
        for (at, flags, object) in
            [(0, shared, &file), (16, code, &file), (32, shared, &shmem), (48, shared, &file)]
        {
            mmap_backing(&mut p.write(), pages::<A>(at, 4), flags, object.clone(), at)
                .expect("free");
            let folio = object.add(at, 2).expect("memory");
            folio.grab::<Get>(4).expect("fits").hand_over();
            folio.add_file_ptes(0, nz(4), p.id());
            p.counters().add(RssKind::of(folio), 4);
            if at == 48 {
                folio.set_flag(FolioFlags::DIRTY);
            }
            let prot = A::prot(p.read().find(va::<A>(at)).expect("mapped").protection());
            for k in 0..4 {
                set_pte::<A>(&p, at + k, E::<A>::leaf(folio.head().add(k), prot, Level::Pte));
            }
        }
        mark::<A>(&p, 0, 64);
        // Not code, and not what waits for its device; shared memory is always dirty.
        let expected: Vec<_> = (0..4).chain(32..36).collect();
        assert_eq!(hints::<A>(&p, 0, 64), expected);
        mprotect(&BATCHED, &mut p.write(), pages::<A>(32, 4), Rights::empty()).expect("allowed");
        mprotect(&BATCHED, &mut p.write(), pages::<A>(0, 4), Rights::READ).expect("allowed");
        assert_eq!(hints::<A>(&p, 0, 4), [] as [u64; 0], "rights are given anew");
        let told = marked(&m);
        mark::<A>(&p, 32, 4);
        assert_eq!(marked(&m), told, "inaccessible anyway");
        let odd = mark_hints(
            &BATCHED,
            &p.read(),
            mm_arch::VirtRange::new(va::<A>(0), 100).expect("range"),
        );
        assert_eq!(odd.map_err(MapError::errno), Err("EINVAL"));
        drop((file, shmem));
        finish(&m, vec![p]);
    }

    pub fn leaves_are_marked_whole_or_split<A: Arch>() {
        let m = new_machine::<A>();
        let n = pmd_pages::<A>();
        let p = space(&m, 3 * n);
        map_pmd(&p, 0);
        map_pmd(&p, n);
        map_huge_zero(&p, 2 * n);
        mark::<A>(&p, 0, n);
        mark::<A>(&p, 2 * n, n);
        let (e, level) = entry::<A>(&p, 0);
        assert!(level == Level::Pmd && e.is_protnone(level) && e.is_dirty());
        let (e, level) = entry::<A>(&p, 2 * n);
        assert!(level == Level::Pmd && !e.is_protnone(level), "the zero page moves nowhere");
        assert_eq!(marked(&m), n);
        // Twice tells nothing new; a part of a leaf is a part of its entries.
        mark::<A>(&p, 0, n);
        mark::<A>(&p, n + 3, 2);
        assert_eq!((marked(&m), hints::<A>(&p, n, n)), (n + 2, vec![n + 3, n + 4]));
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }
}

on_all! {
    /// Rules: MPROT-06, BATCH-18.
    what_could_move_is_marked_and_nothing_else;
    /// Rules: MPROT-06.
    mappings_are_asked_or_passed_by;
    /// Rules: MPROT-06, MPROT-07.
    leaves_are_marked_whole_or_split;
}
