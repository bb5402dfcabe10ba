//! Unmapping of single folios: what goes, what stays, and what is counted.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, DeviceKind, Entry, Level, Markers, NonPresent, SwapBits, VirtRange};
    use mm_fault::{FaultPolicy, ThpPolicy, handle_fault};
    use mm_folio::{FileId, FolioFlags, Get, Pin};
    use mm_map::{
        Advice, Comes, UffdMode, fork, madvise, mprotect, mremap_move, uffd_copy, uffd_move,
        uffd_register, uffd_zeropage,
    };
    use mm_pgtable::TableSpace;
    use mm_reclaim::{
        FlushBatch, Kept, UnmapFlags, UnmapPolicy, Unmapped, madvise_free, try_to_unmap,
    };
    use mm_vma::{BackingKind, Event, Platform, RssKind, SwapSpace, VmaFlags};

    fn is_marker<A: Arch>(e: E<A>) -> bool {
        e.nonpresent(Level::Pte) == Some(NonPresent::Marker(Markers::UFFD_WP))
    }

    pub fn a_file_folio_goes_in_one_run_per_space<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let o = object(&m, BackingKind::File);
            let folio = o.add(0, 4).expect("memory");
            let spaces = vec![empty_space(&m), empty_space(&m)];
            for mm in &spaces {
                show(mm, 0, 16, &o, 0);
                map_pages(mm, 0, folio, 0, 16);
            }
            assert_eq!(refs_and_maps::<A>(folio), (16 + 32, 32));
            let (end, runs, entries) = counted(&m, || unmap(&m, policy, folio));
            assert_eq!(end, Unmapped::All);
            let batched = matches!(policy, UnmapPolicy::File | UnmapPolicy::All);
            assert_eq!((runs, entries), (if batched { 2 } else { 32 }, 32), "{policy:?}");
            assert_eq!(refs_and_maps::<A>(folio), (16, 0));
            for mm in &spaces {
                assert_eq!(mm.counters().resident(), 0);
                assert_eq!(which::<A>(mm, 0, 16, |e| !e.is_none()), []);
            }
            assert!(!folio.has(FolioFlags::DIRTY));
            finish_all(&m, spaces, vec![o]);
        }
    }

    pub fn a_run_ends_with_its_table<A: Arch>() {
        for policy in [UnmapPolicy::Lazyfree, UnmapPolicy::All] {
            let m = new_machine::<A>();
            let p = space(&m, 2 * pmd_pages::<A>());
            let folio = map_lazyfree(&p, 0, 4);
            // As a move that is not aligned leaves it: four pages before the table's end.
            let to = 2 * pmd_pages::<A>() + pmd_pages::<A>() - 4;
            mremap_move(
                &BATCHED,
                &mut p.write(),
                pages::<A>(0, 16),
                va::<A>(to),
                mm_map::OldPlace::Unmap,
            )
            .expect("memory");
            // What is behind the folio in the next table is not touched.
            let guard =
                E::<A>::from_nonpresent(NonPresent::Marker(Markers::GUARD), SwapBits::default())
                    .expect("encodes");
            anon_with(&p, to + 16, 1, RW);
            set_pte::<A>(&p, to + 16, guard);
            let (end, runs, entries) = counted(&m, || unmap(&m, policy, folio));
            assert_eq!((end, runs, entries), (Unmapped::All, 2, 16));
            assert_eq!(pte::<A>(&p, to + 16), guard);
            assert_eq!(p.counters().resident(), 0);
            finish(&m, vec![p]);
        }
    }

    pub fn a_run_ends_with_its_mapping<A: Arch>() {
        let m = new_machine::<A>();
        let o = object(&m, BackingKind::File);
        let folio = o.add(0, 4).expect("memory");
        let p = empty_space(&m);
        // Pages 3..8 in one mapping, and beside it, in the same table, 9..12 in another.
        show(&p, 3, 5, &o, 3);
        map_pages(&p, 3, folio, 3, 5);
        show_with(&p, 8, 4, &o, 8, SHARED | VmaFlags::RAND_READ);
        map_pages(&p, 9, folio, 9, 3);
        let (end, runs, entries) = counted(&m, || unmap(&m, UnmapPolicy::All, folio));
        assert_eq!((end, runs, entries), (Unmapped::All, 2, 8));
        assert_eq!(refs_and_maps::<A>(folio), (16, 0));
        finish_all(&m, vec![p], vec![o]);
    }

    pub fn counters_by_n_and_marks_one_by_one<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let o = object(&m, BackingKind::File);
            let folio = o.add(0, 4).expect("memory");
            let (a, b) = (empty_space(&m), empty_space(&m));
            show(&a, 0, 16, &o, 0);
            map_pages(&a, 0, folio, 0, 16);
            dirty::<A>(&a, 7);
            show_with(&b, 0, 16, &o, 0, SHARED | VmaFlags::UFFD_WP);
            map_pages(&b, 3, folio, 3, 7);
            if A::HAS_UFFD_WP {
                edit::<A>(&b, 4, |e| e.mkuffd_wp());
                edit::<A>(&b, 5, |e| e.mkuffd_wp());
            }
            let flushes = m.tlb_flushes();
            let held = Isolated::of(folio);
            let mut batch = FlushBatch::new(&m);
            let (end, runs, entries) =
                counted(&m, || try_to_unmap(policy, &held.locked, RECLAIM, &mut batch));
            assert_eq!((end, entries), (Unmapped::All, 23));
            assert_eq!(m.tlb_flushes(), flushes, "none before it is needed");
            assert!(batch.is_outstanding());
            assert!(folio.has(FolioFlags::DIRTY), "the dirt of page 7");
            assert_eq!(a.counters().resident(), 0);
            assert_eq!(b.counters().resident(), 0);
            let expected_runs = match policy {
                UnmapPolicy::Page | UnmapPolicy::Lazyfree => 23,
                UnmapPolicy::File => 1 + 7,
                // The marked pages are not like the others.
                UnmapPolicy::All if A::HAS_UFFD_WP => 1 + 3,
                UnmapPolicy::All => 1 + 1,
            };
            assert_eq!(runs, expected_runs, "{policy:?}");
            let marked: &[u64] = if A::HAS_UFFD_WP { &[4, 5] } else { &[] };
            assert_eq!(which::<A>(&b, 0, 16, |e| !e.is_none()), marked);
            assert_eq!(which::<A>(&b, 0, 16, is_marker::<A>), marked);
            assert_eq!(which::<A>(&a, 0, 16, |e| !e.is_none()), []);
            drop((batch, held));
            finish_all(&m, vec![a, b], vec![o]);
        }
    }

    pub fn every_marked_entry_of_a_run_leaves_a_marker<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        for policy in POLICIES {
            let m = new_machine::<A>();
            let o = object(&m, BackingKind::Shmem);
            let folio = o.add(0, 4).expect("memory");
            let p = empty_space(&m);
            show_with(&p, 0, 16, &o, 0, SHARED | VmaFlags::UFFD_WP);
            map_pages(&p, 0, folio, 0, 16);
            for k in 0..16 {
                edit::<A>(&p, k, |e| e.mkuffd_wp());
            }
            assert_eq!(p.counters().get(RssKind::Shmem), 16);
            let (end, runs, _) = counted(&m, || unmap(&m, policy, folio));
            assert_eq!(end, Unmapped::All);
            // Series 004 takes single entries there; ours takes the run.
            assert_eq!(runs, if policy == UnmapPolicy::All { 1 } else { 16 }, "{policy:?}");
            assert_eq!(which::<A>(&p, 0, 16, is_marker::<A>).len(), 16);
            assert_eq!(p.counters().resident(), 0);
            finish_all(&m, vec![p], vec![o]);
        }
    }

    pub fn pages_given_up_are_dropped<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_lazyfree(&p, 0, 4);
            // Only page 5 is writable, and page 9 is young: three runs.
            for k in (0..16).filter(|k| *k != 5) {
                edit::<A>(&p, k, |e| e.wrprotect());
            }
            edit::<A>(&p, 9, |e| e.mkyoung());
            let (end, runs, entries) = counted(&m, || unmap(&m, policy, folio));
            assert_eq!((end, entries), (Unmapped::All, 16));
            assert_eq!(runs, if policy == UnmapPolicy::Page { 16 } else { 3 }, "{policy:?}");
            assert_eq!(p.counters().resident(), 0);
            finish(&m, vec![p]);
        }
    }

    pub fn a_store_keeps_what_was_given_up<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_lazyfree(&p, 0, 4);
            dirty::<A>(&p, 0);
            edit::<A>(&p, 12, |e| e.wrprotect());
            let before: Vec<_> = (0..16).map(|k| pte::<A>(&p, k)).collect();
            let end = unmap(&m, policy, folio);
            assert_eq!(end, Unmapped::Kept(Kept::Dirty), "{policy:?}");
            assert!(folio.has(FolioFlags::DIRTY | FolioFlags::SWAPBACKED));
            assert_eq!(refs_and_maps::<A>(folio), (16, 16));
            assert_eq!(p.counters().get(RssKind::Anon), 16);
            for (k, old) in before.iter().enumerate() {
                let new = pte::<A>(&p, k as u64);
                assert_eq!(new.pfn(Level::Pte), old.pfn(Level::Pte));
                assert_eq!(new.is_writable(Level::Pte), old.is_writable(Level::Pte), "page {k}");
                assert_eq!(new.is_soft_dirty(), old.is_soft_dirty(), "page {k}");
            }
            assert!(pte::<A>(&p, 0).is_dirty());
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn a_reference_keeps_what_was_given_up<A: Arch>() {
        for policy in POLICIES {
            for pinned in [false, true] {
                let m = new_machine::<A>();
                let p = space(&m, 16);
                let folio = map_lazyfree(&p, 0, 4);
                let held = (!pinned).then(|| folio.grab::<Get>(1).expect("fits"));
                let pin = pinned.then(|| folio.grab::<Pin>(1).expect("fits"));
                let end = unmap(&m, policy, folio);
                assert_eq!(end, Unmapped::Kept(Kept::Referenced), "{policy:?}");
                // It stays given up: who holds it has not stored yet.
                assert!(!folio.flags().intersects(FolioFlags::SWAPBACKED | FolioFlags::DIRTY));
                assert_eq!(folio.mapcount(), 16);
                assert_eq!(writable::<A>(&p, 0, 16).len(), 16);
                drop((held, pin));
                assert_eq!(unmap(&m, policy, folio), Unmapped::All);
                finish(&m, vec![p]);
            }
        }
    }

    pub fn what_comes_back_is_no_wider<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_lazyfree(&p, 0, 4);
            // The lower half was not inherited: it stays writable and exclusive.
            madvise(&BATCHED, &mut p.write(), pages::<A>(0, 8), Advice::DontFork).expect("mapped");
            let c = fork(&BATCHED, &p).expect("memory");
            madvise(&BATCHED, &mut p.write(), pages::<A>(0, 8), Advice::DoFork).expect("mapped");
            assert_eq!(writable::<A>(&p, 0, 16), [0, 1, 2, 3, 4, 5, 6, 7]);
            dirty::<A>(&p, 0);
            assert_eq!(unmap(&m, policy, folio), Unmapped::Kept(Kept::Dirty));
            assert_eq!(writable::<A>(&p, 0, 16), [0, 1, 2, 3, 4, 5, 6, 7], "{policy:?}");
            assert_eq!(writable::<A>(&c, 0, 16), []);
            audit(&m, &[&p, &c]);
            finish(&m, vec![p, c]);
        }
    }

    pub fn droppable_memory_goes_dirty_or_not<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = empty_space(&m);
            anon_with(&p, 0, 16, RW | VmaFlags::DROPPABLE);
            let folio = map_lazyfree(&p, 0, 4);
            dirty::<A>(&p, 3);
            let held = folio.grab::<Get>(1).expect("fits");
            assert_eq!(unmap(&m, policy, folio), Unmapped::Kept(Kept::Referenced));
            drop(held);
            assert_eq!(unmap(&m, policy, folio), Unmapped::All);
            finish(&m, vec![p]);
        }
    }

    pub fn a_device_entry_after_a_run_counts_as_one<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = empty_space(&m);
            anon_with(&p, 0, 16, RW | VmaFlags::DROPPABLE);
            let folio = map_lazyfree(&p, 0, 4);
            let device = NonPresent::Device { kind: DeviceKind::Exclusive, pfn: folio.page(12) };
            let Ok(device) = E::<A>::from_nonpresent(device, SwapBits::default()) else { continue };
            set_pte::<A>(&p, 12, device);
            let (end, runs, entries) = counted(&m, || unmap(&m, policy, folio));
            assert_eq!((end, entries), (Unmapped::All, 16));
            assert_eq!(runs, if policy == UnmapPolicy::Page { 16 } else { 3 });
            assert_eq!(p.counters().resident(), 0);
            finish(&m, vec![p]);
        }
    }

    pub fn a_device_entry_comes_back_as_it_was<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 16);
        let folio = map_lazyfree(&p, 0, 0);
        let device = NonPresent::Device { kind: DeviceKind::Exclusive, pfn: folio.head() };
        let device = E::<A>::from_nonpresent(device, SwapBits::default()).expect("encodes");
        set_pte::<A>(&p, 0, device);
        let _held = folio.grab::<Get>(1).expect("fits");
        assert_eq!(unmap(&m, UnmapPolicy::All, folio), Unmapped::Kept(Kept::Referenced));
        assert_eq!(pte::<A>(&p, 0), device);
        assert_eq!(folio.mapcount(), 1);
        drop(_held);
        finish(&m, vec![p]);
    }

    pub fn locked_memory_stays<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let o = object(&m, BackingKind::File);
            let (whole, half) = (o.add(0, 4).expect("memory"), o.add(16, 4).expect("memory"));
            let p = empty_space(&m);
            show_with(&p, 0, 16, &o, 0, SHARED | VmaFlags::LOCKED);
            map_pages(&p, 0, whole, 0, 16);
            show_with(&p, 16, 8, &o, 16, SHARED | VmaFlags::LOCKED);
            map_pages(&p, 16, half, 0, 8);
            for folio in [whole, half] {
                assert_eq!(unmap(&m, policy, folio), Unmapped::Kept(Kept::Locked));
            }
            assert!(whole.has(FolioFlags::MLOCKED));
            assert!(!half.has(FolioFlags::MLOCKED), "half of it only");
            assert_eq!((whole.mapcount(), half.mapcount()), (16, 8));
            let ignoring = RECLAIM | UnmapFlags::IGNORE_MLOCK;
            assert_eq!(unmap_with(&m, policy, half, ignoring), Unmapped::All);
            finish_all(&m, vec![p], vec![o]);
        }
    }

    pub fn a_locked_folio_in_two_tables_is_not_taken_off_reclaim<A: Arch>() {
        let m = new_machine::<A>();
        let o = object(&m, BackingKind::File);
        let folio = o.add(0, 4).expect("memory");
        let p = empty_space(&m);
        let at = pmd_pages::<A>() - 4;
        show_with(&p, at, 16, &o, 0, SHARED | VmaFlags::LOCKED);
        map_pages(&p, at, folio, 0, 16);
        assert_eq!(unmap(&m, UnmapPolicy::All, folio), Unmapped::Kept(Kept::Locked));
        assert!(!folio.has(FolioFlags::MLOCKED));
        finish_all(&m, vec![p], vec![o]);
    }

    pub fn what_nobody_maps_is_locked_for_nobody<A: Arch>() {
        let m = new_machine::<A>();
        let (o, p) = (object(&m, BackingKind::File), empty_space(&m));
        let folio = o.add(0, 4).expect("memory");
        show(&p, 0, 16, &o, 0);
        let locked_until_now = || {
            map_pages(&p, 0, folio, 0, 16);
            folio.mlock();
        };
        for policy in POLICIES {
            locked_until_now();
            assert_eq!(unmap(&m, policy, folio), Unmapped::All);
            assert!(!folio.has(FolioFlags::MLOCKED), "{policy:?}");
        }
        locked_until_now();
        mm_map::unmap_object(&BATCHED, &m, FileId(1), 0, 16, mm_map::Pages::OfObject);
        assert!(!folio.has(FolioFlags::MLOCKED));
        finish_all(&m, vec![p], vec![o]);
    }

    pub fn poison_is_said_of_small_folios<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 32);
        let small = map_lazyfree(&p, 0, 0);
        let large = map_lazyfree(&p, 4, 2);
        let pfn = small.head();
        for folio in [small, large] {
            folio.set_flag(FolioFlags::HWPOISON);
        }
        let with = RECLAIM | UnmapFlags::HWPOISON;
        assert_eq!(unmap_with(&m, UnmapPolicy::All, small, with), Unmapped::All);
        let poisoned = pte::<A>(&p, 0).nonpresent(Level::Pte);
        assert_eq!(poisoned, Some(NonPresent::Hwpoison(pfn)));
        assert_eq!(unmap_with(&m, UnmapPolicy::All, large, with), Unmapped::All);
        assert_eq!(which::<A>(&p, 4, 4, |e| !e.is_none()), []);
        assert_eq!(p.counters().resident(), 0);
        // Without the flag the page is like any other.
        let other = map_lazyfree(&p, 8, 0);
        other.set_flag(FolioFlags::HWPOISON);
        assert_eq!(unmap(&m, UnmapPolicy::All, other), Unmapped::All);
        assert!(pte::<A>(&p, 8).is_none());
        finish(&m, vec![p]);
    }

    pub fn leaves_are_split_or_refused<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = space(&m, 2 * pmd_pages::<A>());
            let folio = map_pmd(&p, 0);
            folio.clear_flag(FolioFlags::SWAPBACKED);
            let mut owed = p.tables().tlb().obligation();
            let vmas = p.read();
            let mut pmd = p.tables().lock_pmd(vmas.stay(), va::<A>(0)).expect("table");
            let e = pmd.entry();
            pmd.swap(e.mkclean().mkold(), &mut owed);
            owed.already_done();
            drop(pmd);
            drop(vmas);
            let without = RECLAIM - UnmapFlags::SPLIT_PMD;
            if policy == UnmapPolicy::All {
                // As it is, and so without the flag.
                assert_eq!(unmap_with(&m, policy, folio, without), Unmapped::All);
                finish(&m, vec![p]);
                continue;
            }
            assert_eq!(unmap_with(&m, policy, folio, without), Unmapped::Kept(Kept::Leaf));
            assert_eq!(folio.entire_mapcount(), 1);
            let (end, runs, entries) = counted(&m, || unmap(&m, policy, folio));
            assert_eq!((end, entries), (Unmapped::All, pmd_pages::<A>()));
            assert_eq!(runs, if policy == UnmapPolicy::Page { pmd_pages::<A>() } else { 1 });
            assert_eq!(p.counters().resident(), 0);
            finish(&m, vec![p]);
        }
    }

    pub fn the_walk_stops_where_it_may_not_go_on<A: Arch>() {
        let m = new_machine::<A>();
        let o = object(&m, BackingKind::File);
        let folio = o.add(0, 2).expect("memory");
        let spaces: Vec<_> = (0..3).map(|_| empty_space(&m)).collect();
        for (i, mm) in spaces.iter().enumerate() {
            let locked = if i == 1 { VmaFlags::LOCKED } else { VmaFlags::empty() };
            show_with(mm, 0, 4, &o, 0, SHARED | locked);
            map_pages(mm, 0, folio, 0, 4);
        }
        assert_eq!(unmap(&m, UnmapPolicy::All, folio), Unmapped::Kept(Kept::Locked));
        let mapped: Vec<_> = spaces.iter().map(|mm| mm.counters().resident()).collect();
        assert_eq!(mapped, [0, 4, 4]);
        finish_all(&m, spaces, vec![o]);
    }

    pub fn normal_memory_needs_a_place_to_go<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = space(&m, 16);
            let folio = map_folio(&p, 0, 4);
            let before: Vec<_> = (0..16).map(|k| pte::<A>(&p, k)).collect();
            assert_eq!(unmap(&m, policy, folio), Unmapped::Kept(Kept::NoSwap));
            for (k, old) in before.iter().enumerate() {
                assert_eq!(pte::<A>(&p, k as u64).pfn(Level::Pte), old.pfn(Level::Pte));
                assert!(pte::<A>(&p, k as u64).is_writable(Level::Pte));
            }
            assert_eq!(exclusive::<A>(folio).len(), 16);
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn whoever_cannot_wait_makes_the_flush<A: Arch>() {
        type Op<A> = fn(&Space<A>, VirtRange);
        let ops: [(&str, Op<A>); 8] = [
            ("protect", |p, r| {
                mprotect(&BATCHED, &mut p.write(), r, mm_arch::Rights::READ).expect("ok")
            }),
            ("unmap", |p, r| mm_map::munmap(&BATCHED, &mut p.write(), r).expect("ok")),
            ("discard", |p, r| madvise(&BATCHED, &mut p.write(), r, Advice::DontNeed).expect("ok")),
            ("free", |p, r| madvise_free(UnmapPolicy::All, &p.read(), r).expect("ok")),
            ("move", |p, r| {
                let to = va::<A>(4 * pmd_pages::<A>());
                let old = mm_map::OldPlace::Unmap;
                mremap_move(&BATCHED, &mut p.write(), r, to, old).expect("ok");
            }),
            ("move pages", |p, r| {
                let holes = mm_map::MoveHoles::Skip;
                uffd_move(&p.read(), va::<A>(64), r, holes).expect("only holes");
            }),
            ("copy", |p, r| uffd_copy(&p.read(), r, Comes::Plain, |_, _| ()).expect("empty")),
            ("zero", |p, r| uffd_zeropage(&p.read(), r).expect("empty")),
        ];
        for (name, op) in ops {
            let flushes = [false, true].map(|put_off| {
                let m = new_machine::<A>();
                let p = space(&m, 16);
                for start in [0, 64] {
                    let r = pages::<A>(start, 16);
                    if start > 0 {
                        anon_with(&p, start, 16, RW);
                    }
                    uffd_register(&BATCHED, &mut p.write(), r, UffdMode::MISSING).expect("ok");
                }
                let flushes = {
                    let held = Isolated::of(map_lazyfree(&p, 0, 4));
                    let mut batch = FlushBatch::new(&m);
                    if put_off {
                        let end = try_to_unmap(UnmapPolicy::All, &held.locked, RECLAIM, &mut batch);
                        assert_eq!(end, Unmapped::All);
                    } else {
                        let all = pages::<A>(0, 16);
                        madvise(&BATCHED, &mut p.write(), all, Advice::DontNeed).expect("ok");
                    }
                    let before = m.tlb_flushes();
                    // All entries are empty: there is nothing else to flush.
                    op(&p, pages::<A>(0, 16));
                    let flushes = m.tlb_flushes() - before;
                    let Isolated { locked, own } = held;
                    drop(locked);
                    batch.free(own);
                    flushes
                };
                finish(&m, vec![p]);
                flushes
            });
            // Once, however many pages or tables there are.
            assert_eq!(flushes[1], flushes[0] + 1, "{name}");
        }
    }

    /// Of a copy of a file's page; the page of the file comes, or another copy.
    pub fn what_comes_for_a_dropped_page_waits_for_its_flush<A: Arch>(
        unused: impl Fn(E<A>) -> E<A>,
    ) {
        use mm_fault::FaultFlags;
        for flags in [FaultFlags::empty(), FaultFlags::WRITE] {
            let m = new_machine::<A>();
            let (o, p) = (object(&m, BackingKind::File), empty_space(&m));
            o.add(0, 0).expect("memory");
            show_with(&p, 0, 1, &o, 0, RW | VmaFlags::MAYREAD | VmaFlags::MAYWRITE);
            let fault = |flags| {
                let mut policy = FaultPolicy::new(ThpPolicy::new(2));
                policy.fault_around = 1;
                let _ = handle_fault(&policy, &p.read(), va::<A>(0), flags);
                pte::<A>(&p, 0).pfn(Level::Pte)
            };
            let copy = m.memmap().folio(fault(FaultFlags::WRITE));
            assert!(copy.is_anon());
            edit::<A>(&p, 0, &unused);
            let held = Isolated::of(copy);
            let mut batch = FlushBatch::new(&m);
            let end = try_to_unmap(UnmapPolicy::All, &held.locked, RECLAIM, &mut batch);
            assert_eq!(end, Unmapped::All);
            let before = m.tlb_flushes();
            assert_ne!(fault(flags), copy.head());
            assert_eq!(m.tlb_flushes(), before + 1, "a CPU may have the page before");
            let Isolated { locked, own } = held;
            drop(locked);
            batch.free(own);
            drop(batch);
            finish_all(&m, vec![p], vec![o]);
        }
    }

    pub fn an_entry_that_a_guest_does_not_need_goes<A: Arch>(unused: impl Fn(E<A>) -> E<A>) {
        for armed in [false, true] {
            let m = new_machine::<A>();
            let p = empty_space(&m);
            let flags = if armed { RW | VmaFlags::UFFD_WP } else { RW };
            anon_with(&p, 0, 16, flags);
            let folio = map_folio(&p, 0, 0);
            edit::<A>(&p, 0, &unused);
            let end = unmap(&m, UnmapPolicy::All, folio);
            // Somebody waits for stores to this page: it is not dropped.
            let kept = Unmapped::Kept(Kept::NoSwap);
            assert_eq!(end, if armed { kept } else { Unmapped::All });
            assert_eq!(p.counters().resident(), u64::from(armed));
            finish(&m, vec![p]);
        }
        // Of a large folio such entries go one by one, and that is counted.
        let m = new_machine::<A>();
        let p = empty_space(&m);
        anon_with(&p, 0, 16, RW);
        let folio = map_lazyfree(&p, 0, 4);
        (4..7).for_each(|k| edit::<A>(&p, k, &unused));
        let (end, runs, entries) = counted(&m, || unmap(&m, UnmapPolicy::All, folio));
        assert_eq!((end, runs, entries), (Unmapped::All, 2 + 3, 16));
        assert_eq!(m.events().get(Event::UnmapSingleUnused), 3);
        finish(&m, vec![p]);
        // So it is of a folio of a file.
        let m = new_machine::<A>();
        let (o, p) = (object(&m, BackingKind::File), empty_space(&m));
        show(&p, 0, 16, &o, 0);
        let folio = o.add(0, 4).expect("memory");
        map_pages(&p, 0, folio, 0, 16);
        [0, 7].into_iter().for_each(|k| edit::<A>(&p, k, &unused));
        let (end, runs, entries) = counted(&m, || unmap(&m, UnmapPolicy::All, folio));
        assert_eq!((end, runs, entries), (Unmapped::All, 2 + 2, 16));
        assert_eq!(m.events().get(Event::UnmapSingleUnused), 2);
        finish_all(&m, vec![p], vec![o]);
    }

    pub fn dirt_of_a_group_is_flushed_before_it_is_written<A: Arch>() {
        for (policy, stored) in POLICIES.into_iter().flat_map(|p| [(p, false), (p, true)]) {
            let m = new_machine::<A>();
            let (o, p) = (object(&m, BackingKind::File), empty_space(&m));
            show(&p, 0, 12, &o, 0);
            let folios = [0, 4, 8].map(|first| {
                let folio = o.add(first, 2).expect("memory");
                map_pages(&p, first, folio, 0, 4);
                folio
            });
            if stored {
                dirty::<A>(&p, 6);
            }
            let owns = folios.map(|folio| folio.grab::<Get>(1).expect("fits"));
            let locked = folios.map(|folio| folio.lock());
            let mut flushes = FlushBatch::new(&m);
            let all = locked.each_ref();
            mm_reclaim::try_to_unmap_each(policy, &all, RECLAIM, &mut flushes, |_, end| {
                assert_eq!(end, Unmapped::All);
            });
            assert_eq!(folios.map(|f| f.has(FolioFlags::DIRTY)), [false, stored, false]);
            assert!(flushes.is_outstanding());
            flushes.flush_dirty();
            assert_eq!(flushes.is_outstanding(), !stored, "{policy:?}");
            drop((locked, owns, flushes));
            finish_all(&m, vec![p], vec![o]);
        }
    }

    pub fn a_leaf_that_was_given_up_goes_as_one<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let nr = pmd_pages::<A>();
            let p = space(&m, nr);
            let folio = map_pmd(&p, 0);
            folio.clear_flag(FolioFlags::SWAPBACKED | FolioFlags::DIRTY);
            edit_leaf::<A>(&p, |e| e.mkclean().mkold());
            let split = m.events().get(Event::PmdSplit);
            let (end, runs, entries) = counted(&m, || unmap(&m, policy, folio));
            assert_eq!((end, entries), (Unmapped::All, nr), "{policy:?}");
            let split = m.events().get(Event::PmdSplit) - split;
            let expected = match policy {
                UnmapPolicy::Page => (nr, 1),
                UnmapPolicy::Lazyfree | UnmapPolicy::File => (1, 1),
                UnmapPolicy::All => (1, 0),
            };
            assert_eq!((runs, split), expected, "{policy:?}");
            assert_eq!((p.counters().resident(), m.folios_in_use()), (0, 0));
            finish(&m, vec![p]);
        }
    }

    pub fn a_leaf_waits_for_no_flush<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, pmd_pages::<A>());
        {
            let folio = map_pmd(&p, 0);
            folio.clear_flag(FolioFlags::SWAPBACKED);
            edit_leaf::<A>(&p, |e| e.mkclean());
            let held = Isolated::of(folio);
            let before = m.tlb_flushes();
            let mut batch = FlushBatch::new(&m);
            let end = try_to_unmap(UnmapPolicy::All, &held.locked, RECLAIM, &mut batch);
            assert_eq!(end, Unmapped::All);
            // What is left is a hole: whoever unmaps it or maps something else there finds no table
            // by which to learn that a CPU still has the leaf.
            assert!(m.tlb_flushes() > before && !batch.is_outstanding());
            let Isolated { locked, own } = held;
            drop(locked);
            batch.free(own);
        }
        finish(&m, vec![p]);
    }

    pub fn a_leaf_that_is_needed_stays_as_it_was<A: Arch>() {
        let policy = UnmapPolicy::All;
        let m = new_machine::<A>();
        let nr = pmd_pages::<A>();
        let p = space(&m, nr);
        let folio = map_pmd(&p, 0);
        let give_up = || {
            folio.clear_flag(FolioFlags::SWAPBACKED | FolioFlags::DIRTY);
            edit_leaf::<A>(&p, |e| e.mkclean());
        };
        // Somebody holds it: still given up.
        give_up();
        let before = entry::<A>(&p, 0);
        let held = folio.grab::<Get>(1).expect("fits");
        assert_eq!(unmap(&m, policy, folio), Unmapped::Kept(Kept::Referenced));
        assert!(!folio.flags().intersects(FolioFlags::SWAPBACKED | FolioFlags::DIRTY));
        assert_eq!(entry::<A>(&p, 0), before);
        drop(held);
        // The folio was stored to by whoever held it; then by the leaf.
        folio.set_flag(FolioFlags::DIRTY);
        assert_eq!(unmap(&m, policy, folio), Unmapped::Kept(Kept::Dirty));
        assert!(folio.has(FolioFlags::SWAPBACKED));
        assert_eq!(entry::<A>(&p, 0), before);
        give_up();
        edit_leaf::<A>(&p, |e| e.mkdirty());
        let (dirty, flushes) = (entry::<A>(&p, 0), m.tlb_flushes());
        assert_eq!(unmap(&m, policy, folio), Unmapped::Kept(Kept::Dirty));
        assert!(folio.has(FolioFlags::SWAPBACKED | FolioFlags::DIRTY));
        assert_eq!((entry::<A>(&p, 0), m.tlb_flushes()), (dirty, flushes), "not touched");
        assert_eq!((folio.refcount(), folio.mapcount()), (1, 1));
        assert_eq!(p.counters().get(RssKind::Anon), nr);
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn a_dirty_leaf_of_droppable_memory_goes<A: Arch>() {
        let m = new_machine::<A>();
        let nr = pmd_pages::<A>();
        let p = empty_space(&m);
        anon_with(&p, 0, nr, RW | VmaFlags::DROPPABLE);
        let folio = map_pmd(&p, 0);
        folio.clear_flag(FolioFlags::SWAPBACKED);
        edit_leaf::<A>(&p, |e| e.mkdirty());
        assert_eq!(unmap(&m, UnmapPolicy::All, folio), Unmapped::All);
        assert_eq!((p.counters().resident(), m.folios_in_use()), (0, 0));
        finish(&m, vec![p]);
    }

    pub fn no_marker_is_left_where_unmapping_failed<A: Arch>() {
        if !A::HAS_UFFD_WP {
            return;
        }
        for policy in POLICIES {
            // A private copy in a mapping of a file that userfaultfd watches, pinned or not.
            for pinned in [true, false] {
                let m = machine_with_swap::<A>(255);
                let o = object(&m, BackingKind::File);
                let p = empty_space(&m);
                show_with(&p, 0, 16, &o, 0, RW | VmaFlags::UFFD_WP);
                let folio = map_folio(&p, 0, 4);
                folio.set_flag(FolioFlags::SWAPBACKED);
                (0..16).for_each(|k| edit::<A>(&p, k, |e| e.wrprotect().mkuffd_wp()));
                let before: Vec<_> = (0..16).map(|k| pte::<A>(&p, k)).collect();
                m.slots().add(&folio.lock()).expect("room");
                let pin = pinned.then(|| folio.grab::<Pin>(1).expect("fits"));
                let end = unmap(&m, policy, folio);
                let after: Vec<_> = (0..16).map(|k| pte::<A>(&p, k)).collect();
                if pinned {
                    assert_eq!(end, Unmapped::Kept(Kept::Referenced), "{policy:?}");
                    let says = |e: &E<A>| (e.pfn(Level::Pte), e.is_uffd_wp(), e.is_dirty());
                    let as_before = after.iter().map(says).eq(before.iter().map(says));
                    assert!(as_before, "{before:?} became {after:?}");
                    assert!(!after.iter().any(|e| e.is_writable(Level::Pte)));
                } else {
                    // Swap entries that are write-protected, and no markers.
                    assert_eq!(end, Unmapped::All, "{policy:?}");
                    let swapped = |e: &E<A>| e.swap_slot().is_some() && e.swap_bits().uffd_wp;
                    assert!(after.iter().all(swapped), "{policy:?}");
                    mm_vma::free_swap_cache(&m, folio);
                }
                drop(pin);
                mm_map::exit(&BATCHED, &p);
                mm_vma::free_swap_cache(&m, folio);
                drop(p);
                finish_all(&m, vec![], vec![o]);
            }
        }
    }

    pub fn a_locked_mapping_leaves_no_reference_behind<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = empty_space(&m);
            anon_with(&p, 0, 16, RW | VmaFlags::LOCKED);
            let folio = m.memmap().folio(map_lazyfree(&p, 0, 4).head());
            let own = folio.grab::<Get>(1).expect("fits");
            let mut flushes = FlushBatch::new(&m);
            let ignoring = RECLAIM | UnmapFlags::IGNORE_MLOCK;
            let end = try_to_unmap(policy, &folio.lock(), ignoring, &mut flushes);
            assert_eq!((end, folio.refcount()), (Unmapped::All, 1), "{policy:?}");
            // Freed in the same pass.
            flushes.free(own);
            flushes.finish();
            assert_eq!(m.folios_in_use(), 0);
            finish(&m, vec![p]);
        }
    }

    pub fn a_page_is_given_away_behind_its_flush<A: Arch>() {
        let m = new_machine::<A>();
        let p = space(&m, 64);
        let tlb = m.tlb();
        let batches = *tlb.made.lock();
        let mut flushes = FlushBatch::new(&m);
        for k in 0..40 {
            let folio = m.memmap().folio(map_lazyfree(&p, k, 0).head());
            let own = folio.grab::<Get>(1).expect("fits");
            let end = try_to_unmap(UnmapPolicy::All, &folio.lock(), RECLAIM, &mut flushes);
            assert_eq!(end, Unmapped::All);
            flushes.free(own);
            // Nothing is free before a flush was made, and one is made for many.
            let made = *tlb.made.lock() - batches;
            let waiting = m.folios_in_use() as u64;
            assert_eq!((made, waiting), if k < 32 { (0, k + 1) } else { (1, k - 31) });
        }
        // A clean entry needs none before its page is written; a dirty one does.
        flushes.flush_dirty();
        assert!(flushes.is_outstanding());
        let folio = m.memmap().folio(map_lazyfree(&p, 50, 0).head());
        folio.set_flag(FolioFlags::SWAPBACKED);
        dirty::<A>(&p, 50);
        let end = try_to_unmap(UnmapPolicy::All, &folio.lock(), RECLAIM, &mut flushes);
        assert_eq!(end, Unmapped::Kept(Kept::NoSwap), "it has no slot");
        flushes.flush_dirty();
        assert!(!flushes.is_outstanding());
        assert_eq!(*tlb.made.lock() - batches, 2);
        flushes.finish();
        assert_eq!(*tlb.made.lock() - batches, 2, "no flush twice");
        drop(flushes);
        finish(&m, vec![p]);
    }
}

on_all! {
    /// Rules: UNMAP-04, UNMAP-20.
    a_leaf_that_was_given_up_goes_as_one;
    /// Rules: UNMAP-04, UNMAP-20.
    a_leaf_that_is_needed_stays_as_it_was;
    /// Rules: UNMAP-20, TLBB-07. Cases: MM-079.
    a_leaf_waits_for_no_flush;
    /// Rules: UNMAP-20, S-DR1.
    a_dirty_leaf_of_droppable_memory_goes;
    /// Rules: UNMAP-12, UNMAP-23.
    no_marker_is_left_where_unmapping_failed;
    /// Rules: UNMAP-02, UNMAP-24.
    a_locked_mapping_leaves_no_reference_behind;
    /// Rules: TLBB-05, TLBB-06, RECL-10.
    a_page_is_given_away_behind_its_flush;
    /// Rules: TLBB-06.
    dirt_of_a_group_is_flushed_before_it_is_written;
    /// Rules: UNMAP-14, UNMAP-15, S-RC1.
    a_file_folio_goes_in_one_run_per_space;
    /// Rules: UNMAP-07, UNMAP-08, S-RC3. Cases: MM-004.
    a_run_ends_with_its_table;
    /// Rules: UNMAP-07, S-RC4.
    a_run_ends_with_its_mapping;
    /// Rules: UNMAP-10, UNMAP-11, UNMAP-14, S-RC15. Cases: MM-036.
    counters_by_n_and_marks_one_by_one;
    /// Rules: UNMAP-12, S-UF10.
    every_marked_entry_of_a_run_leaves_a_marker;
    /// Rules: UNMAP-09, UNMAP-17, UNMAP-21, S-RC5.
    pages_given_up_are_dropped;
    /// Rules: UNMAP-17, UNMAP-18, S-RC6.
    a_store_keeps_what_was_given_up;
    /// Rules: UNMAP-17, S-RC7.
    a_reference_keeps_what_was_given_up;
    /// Rules: UNMAP-18, S-RC8. Cases: MM-006.
    what_comes_back_is_no_wider;
    /// Rules: UNMAP-17, S-DR1.
    droppable_memory_goes_dirty_or_not;
    /// Rules: UNMAP-06, UNMAP-16, S-RC14, F-RACE-35.
    a_device_entry_after_a_run_counts_as_one;
    /// Rules: UNMAP-06.
    a_device_entry_comes_back_as_it_was;
    /// Rules: UNMAP-02, UNMAP-03, S-ML1, S-ML2.
    locked_memory_stays;
    /// Rules: UNMAP-03.
    a_locked_folio_in_two_tables_is_not_taken_off_reclaim;
    /// Rules: RMAP-06.
    what_nobody_maps_is_locked_for_nobody;
    /// Rules: UNMAP-02, UNMAP-13, UNMAP-22.
    poison_is_said_of_small_folios;
    /// Rules: UNMAP-02, UNMAP-04.
    leaves_are_split_or_refused;
    /// Rules: UNMAP-01.
    the_walk_stops_where_it_may_not_go_on;
    /// Rules: UNMAP-19.
    normal_memory_needs_a_place_to_go;
    /// Rules: TLBB-07, S-RC13. Cases: MM-079.
    whoever_cannot_wait_makes_the_flush;
}

/// Rules: TLBB-07, UNMAP-13.
#[test]
fn what_comes_for_a_dropped_page_waits_for_its_flush() {
    use mm_arch::model::{ModelEntry, ModelWord};
    generic::what_comes_for_a_dropped_page_waits_for_its_flush::<ModelWord<32>>(|e| {
        ModelEntry::from_bits(e.bits() | ModelEntry::UNUSED)
    });
}

/// Rules: UNMAP-13.
#[test]
fn an_entry_that_a_guest_does_not_need_goes() {
    use mm_arch::model::{ModelEntry, ModelWord};
    generic::an_entry_that_a_guest_does_not_need_goes::<ModelWord<32>>(|e| {
        ModelEntry::from_bits(e.bits() | ModelEntry::UNUSED)
    });
}
