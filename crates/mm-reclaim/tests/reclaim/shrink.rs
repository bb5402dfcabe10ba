//! One pass over isolated folios.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry, Level};
    use mm_folio::{Folio, FolioFlags, FolioRef, Get, Pin};
    use mm_reclaim::{FlushBatch, ReclaimOf, ReclaimPlatform, Shrink, Shrunk, UnmapPolicy};
    use mm_reclaim::{Unmapped, shrink_folios, try_to_unmap};
    use mm_vma::{BackingKind, Event, Platform, RssKind, SwapSpace, VmaFlags};

    fn how(policy: UnmapPolicy) -> Shrink<'static> {
        let of = ReclaimOf::Everybody;
        Shrink { policy, of, ignore_references: false, may_unmap: true }
    }
    fn now(policy: UnmapPolicy) -> Shrink<'static> {
        Shrink { ignore_references: true, ..how(policy) }
    }
    /// Isolates a folio: `LRU` is clear, and there is one reference more.
    fn isolated<'m, A: Arch>(m: &'m M<A>, folio: Folio<'_, M<A>>) -> FolioRef<'m, M<A>, Get> {
        let folio = m.memmap().folio(folio.head());
        folio.enlist();
        let own = folio.grab::<Get>(1).expect("fits");
        assert!(m.lru().isolate_one(folio));
        own
    }
    fn pass<A: Arch>(m: &M<A>, shrink: &Shrink<'_>, folio: Folio<'_, M<A>>) -> Shrunk {
        let mut own = Some(isolated(m, folio));
        shrink_folios(shrink, m, || own.take())
    }
    fn cached<A: Arch>(o: &Object<A>) -> usize {
        o.cache().folios().len()
    }
    fn old<A: Arch>(mm: &Space<A>, n: u64) {
        (0..n).for_each(|k| edit::<A>(mm, k, |e| e.mkold()));
    }

    pub fn clean_files_are_freed<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let o = known_object(&m, BackingKind::File);
            let p = empty_space(&m);
            show(&p, 0, 16, &o, 0);
            let folio = o.add(0, 4).expect("memory");
            map_pages(&p, 0, folio, 0, 16);
            old::<A>(&p, 16);
            let got = pass(&m, &how(policy), folio);
            assert_eq!(got, Shrunk { scanned: 16, reclaimed: 16, ..Shrunk::default() });
            assert_eq!((cached(&o), m.folios_in_use()), (0, 0));
            assert_eq!(p.counters().resident(), 0);
            finish_all(&m, vec![p], vec![o]);
        }
    }

    pub fn each_blocker_has_its_label<A: Arch>() {
        // What a memory lock holds is counted with these, and has no age.
        let flags: [(FolioFlags, bool, bool); 5] = [
            (FolioFlags::UNEVICTABLE, true, true),
            (FolioFlags::MLOCKED, true, false),
            (FolioFlags::WRITEBACK, true, true),
            (FolioFlags::DIRTY, true, true),
            (FolioFlags::HWPOISON, false, false),
        ];
        for (flag, counts, active) in flags {
            let m = reclaim_machine::<A>();
            let o = known_object(&m, BackingKind::File);
            let folio = o.add(0, 2).expect("memory");
            folio.set_flag(flag);
            let got = pass(&m, &how(UnmapPolicy::All), folio);
            let expected = if counts {
                Shrunk { scanned: 4, activated: 4, ..Shrunk::default() }
            } else {
                Shrunk { scanned: 4, kept: 4, ..Shrunk::default() }
            };
            let immediate = if flag == FolioFlags::DIRTY { 4 } else { 0 };
            assert_eq!(got, Shrunk { immediate, ..expected }, "{flag:?}");
            assert_eq!(folio.has(FolioFlags::ACTIVE), active, "{flag:?}");
            let to_free = flag == FolioFlags::WRITEBACK || flag == FolioFlags::DIRTY;
            assert_eq!(folio.has(FolioFlags::RECLAIM), to_free, "{flag:?}");
            assert!(folio.has(FolioFlags::LRU), "it is back on a list");
            assert_eq!((cached(&o), folio.refcount()), (1, 4));
            folio.clear_flag(flag);
            finish_all(&m, vec![], vec![o]);
        }
    }

    pub fn whoever_holds_it_keeps_it<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let o = known_object(&m, BackingKind::File);
            let folio = o.add(0, 2).expect("memory");
            {
                let _locked = folio.lock();
                assert_eq!(pass(&m, &how(policy), folio).kept, 4, "locked");
            }
            let held = folio.grab::<Get>(1).expect("fits");
            assert_eq!(pass(&m, &how(policy), folio).kept, 4, "held");
            drop(held);
            let pin = folio.grab::<Pin>(1).expect("fits");
            assert_eq!(pass(&m, &how(policy), folio).activated, 4, "pinned");
            drop(pin);
            assert_eq!(cached(&o), 1);
            folio.clear_flag(FolioFlags::ACTIVE);
            assert_eq!(pass(&m, &how(policy), folio).reclaimed, 4);
            assert_eq!(cached(&o), 0);
            finish_all(&m, vec![], vec![o]);
        }
    }

    pub fn use_is_asked_for_first<A: Arch>() {
        let m = reclaim_machine::<A>();
        let o = known_object(&m, BackingKind::File);
        let p = empty_space(&m);
        show(&p, 0, 4, &o, 0);
        let folio = o.add(0, 2).expect("memory");
        map_pages(&p, 0, folio, 0, 4);
        // Used once: one more round. Used again: active.
        let policy = UnmapPolicy::All;
        assert_eq!(pass(&m, &how(policy), folio).kept, 4);
        assert!(folio.has(FolioFlags::REFERENCED) && !folio.has(FolioFlags::ACTIVE));
        edit::<A>(&p, 1, |e| e.mkyoung());
        assert_eq!(pass(&m, &how(policy), folio).activated, 4);
        assert_eq!(folio.mapcount(), 4, "nothing was unmapped");
        folio.clear_flag(FolioFlags::ACTIVE);
        // By calls only: clean, so it may go.
        assert!(folio.has(FolioFlags::REFERENCED));
        let may_not = Shrink { may_unmap: false, ..how(policy) };
        assert_eq!(pass(&m, &may_not, folio).kept, 4);
        assert_eq!(pass(&m, &how(policy), folio).reclaimed, 4);
        finish_all(&m, vec![p], vec![o]);
    }

    pub fn what_two_mappings_use_is_active_at_once<A: Arch>() {
        for both in [false, true] {
            let m = reclaim_machine::<A>();
            let o = known_object(&m, BackingKind::File);
            let spaces = vec![empty_space(&m), empty_space(&m)];
            let folio = o.add(0, 2).expect("memory");
            for mm in &spaces {
                show(mm, 0, 4, &o, 0);
                map_pages(mm, 0, folio, 0, 4);
            }
            if !both {
                old::<A>(&spaces[1], 4);
            }
            let got = pass(&m, &how(UnmapPolicy::All), folio);
            assert_eq!((got.activated, got.kept), if both { (4, 0) } else { (0, 4) });
            finish_all(&m, spaces, vec![o]);
        }
    }

    pub fn code_is_active_at_once<A: Arch>() {
        let m = reclaim_machine::<A>();
        let o = known_object(&m, BackingKind::File);
        let p = empty_space(&m);
        show_with(&p, 0, 4, &o, 0, SHARED | VmaFlags::EXEC | VmaFlags::MAYEXEC);
        let folio = o.add(0, 2).expect("memory");
        map_pages(&p, 0, folio, 0, 4);
        assert_eq!(pass(&m, &how(UnmapPolicy::All), folio).activated, 4);
        finish_all(&m, vec![p], vec![o]);
    }

    pub fn dirt_of_an_entry_is_found<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let o = known_object(&m, BackingKind::File);
            let p = empty_space(&m);
            show(&p, 0, 16, &o, 0);
            let folio = o.add(0, 4).expect("memory");
            map_pages(&p, 0, folio, 0, 16);
            dirty::<A>(&p, 9);
            let flushes = m.tlb_flushes();
            let got = pass(&m, &now(policy), folio);
            assert_eq!((got.activated, got.immediate), (16, 16), "{policy:?}");
            assert!(folio.has(FolioFlags::DIRTY | FolioFlags::RECLAIM));
            assert_eq!((cached(&o), folio.mapcount()), (1, 0));
            assert_eq!(m.tlb_flushes() - flushes, 0, "only the deferred flush");
            finish_all(&m, vec![p], vec![o]);
        }
    }

    pub fn what_was_given_up_needs_no_writing<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let p = space(&m, 32);
            let (clean, stored) = (map_lazyfree(&p, 0, 4), map_lazyfree(&p, 16, 4));
            dirty::<A>(&p, 16);
            let freed = m.events().get(Event::LazyFreed);
            let got = pass(&m, &now(policy), clean);
            assert_eq!(got.reclaimed, 16, "{policy:?}");
            assert_eq!(m.events().get(Event::LazyFreed) - freed, 16);
            let got = pass(&m, &now(policy), stored);
            assert_eq!((got.activated, got.unmap_failed), (16, 1), "{policy:?}");
            assert!(stored.has(FolioFlags::ACTIVE | FolioFlags::SWAPBACKED));
            assert_eq!(p.counters().get(RssKind::Anon), 16);
            finish(&m, vec![p]);
        }
    }

    pub fn what_was_given_up_stays_while_it_is_held<A: Arch>() {
        for policy in POLICIES {
            let m = reclaim_machine::<A>();
            let p = space(&m, 16);
            let folio = m.memmap().folio(map_lazyfree(&p, 0, 4).head());
            let held = folio.grab::<Get>(1).expect("fits");
            let mut flushes = FlushBatch::new(&m);
            let end = try_to_unmap(policy, &folio.lock(), RECLAIM, &mut flushes);
            assert_eq!(end, Unmapped::All);
            drop(flushes);
            assert_eq!(pass(&m, &now(policy), folio).kept, 16, "{policy:?}");
            assert!(folio.has(FolioFlags::LRU));
            assert_eq!((folio.refcount(), m.events().get(Event::LazyFreed)), (1, 0));
            drop(held);
            assert_eq!(m.folios_in_use(), 0);
            finish(&m, vec![p]);
        }
    }

    pub fn normal_memory_goes_to_swap<A: Arch>() {
        for policy in POLICIES {
            let m = machine_with_swap::<A>(64);
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            // Clean entries say nothing about the device, which has none of it.
            (0..16).for_each(|k| edit::<A>(&p, k, |e| e.mkclean().mkold()));
            let got = pass(&m, &how(policy), folio);
            assert_eq!((got.scanned, got.reclaimed), (16, 16), "{policy:?}");
            assert_eq!((p.counters().resident(), p.counters().get(RssKind::Swap)), (0, 16));
            assert_eq!(m.events().get(Event::PagesSwappedOut), 16);
            assert_eq!((m.folios_in_use(), m.swap().slots().nr_free()), (0, 48));
            finish(&m, vec![p]);
            assert_eq!(m.swap().slots().nr_free(), 64);
        }
    }

    pub fn without_room_a_folio_goes_page_by_page<A: Arch>() {
        for room in [0, 8] {
            let m = machine_with_swap::<A>(room);
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            let got = pass(&m, &now(UnmapPolicy::All), folio);
            let (gone, left) = (u64::from(room), 16 - u64::from(room));
            assert_eq!((got.scanned, got.reclaimed, got.activated), (16, gone, left));
            assert_eq!(p.counters().get(RssKind::Anon), left);
            assert_eq!(m.events().get(Event::SwapOutFallback), 4, "the order");
            for page in which::<A>(&p, 0, 16, |e| e.is_present(Level::Pte)) {
                let folio = m.memmap().folio(pte::<A>(&p, page).pfn(Level::Pte));
                assert!(!folio.is_large() && folio.has(FolioFlags::ACTIVE | FolioFlags::LRU));
            }
            finish(&m, vec![p]);
        }
    }

    pub fn what_is_pinned_gets_no_place<A: Arch>() {
        let m = machine_with_swap::<A>(64);
        let p = space(&m, 16);
        let folio = map_folio(&p, 0, 4);
        let pin = folio.grab::<Pin>(1).expect("fits");
        assert_eq!(pass(&m, &now(UnmapPolicy::All), folio).kept, 16);
        drop(pin);
        let held = folio.grab::<Get>(1).expect("fits");
        assert_eq!(pass(&m, &now(UnmapPolicy::All), folio).activated, 16);
        drop(held);
        assert_eq!((folio.mapcount(), m.swap().slots().nr_free()), (16, 64));
        finish(&m, vec![p]);
    }

    pub fn a_poisoned_page_leaves_the_lists<A: Arch>() {
        let m = reclaim_machine::<A>();
        let o = known_object(&m, BackingKind::File);
        let p = empty_space(&m);
        show(&p, 0, 1, &o, 0);
        let folio = o.add(0, 0).expect("memory");
        map_pages(&p, 0, folio, 0, 1);
        folio.set_flag(FolioFlags::HWPOISON);
        let got = pass(&m, &how(UnmapPolicy::All), folio);
        assert_eq!(got, Shrunk { scanned: 1, ..Shrunk::default() });
        assert!(!folio.has(FolioFlags::LRU) && !folio.is_mapped());
        assert_eq!(p.counters().resident(), 0);
        finish_all(&m, vec![p], vec![o]);
    }

    pub fn what_its_object_let_go_of_is_freed<A: Arch>() {
        let m = reclaim_machine::<A>();
        let o = known_object(&m, BackingKind::File);
        let folio = o.add(0, 2).expect("memory");
        let own = isolated(&m, folio);
        {
            let locked = folio.lock();
            assert!(o.cache().remove(&locked));
        }
        let mut own = Some(own);
        let got = shrink_folios(&how(UnmapPolicy::All), &m, || own.take());
        assert_eq!((got.reclaimed, m.folios_in_use()), (4, 0));
        finish_all(&m, vec![], vec![o]);
    }
}

on_all! {
    /// Rules: RECL-06, RECL-08, RECL-10, RECL-12.
    clean_files_are_freed;
    /// Rules: RECL-02, RECL-03, RECL-07, RECL-11.
    each_blocker_has_its_label;
    /// Rules: RECL-02, RECL-08.
    whoever_holds_it_keeps_it;
    /// Rules: RECL-01, RECL-02.
    use_is_asked_for_first;
    /// Rules: RECL-01.
    what_two_mappings_use_is_active_at_once;
    /// Rules: RECL-01.
    code_is_active_at_once;
    /// Rules: RECL-07, S-RC2, UNMAP-10.
    dirt_of_an_entry_is_found;
    /// Rules: RECL-06.
    what_was_given_up_needs_no_writing;
    /// Rules: RECL-09.
    what_was_given_up_stays_while_it_is_held;
    /// Rules: RECL-04, RECL-07.
    normal_memory_goes_to_swap;
    /// Rules: RECL-04, RECL-05, S-RC10.
    without_room_a_folio_goes_page_by_page;
    /// Rules: RECL-04, S-RC9.
    what_is_pinned_gets_no_place;
    /// Rules: RECL-02, UNMAP-22.
    a_poisoned_page_leaves_the_lists;
    /// Rules: RECL-08.
    what_its_object_let_go_of_is_freed;
}
