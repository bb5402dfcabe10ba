//! Passes over memory whose place is swap.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry};
    use mm_folio::{Folio, FolioFlags, Get, Pin};
    use mm_map::{Advice, madvise};
    use mm_pgtable::TableSpace;
    use mm_reclaim::{
        Kept, ReclaimOf, ReclaimPlatform, Shrink, Shrunk, UnmapPolicy, Unmapped, madvise_free,
        shrink_folios,
    };
    use mm_rmap::model::{ModelConfig, UnmapBy, unmap_to_swap};
    use mm_vma::{Event, Platform, RssKind, SlotRun, SwapSpace, read_folio};

    fn machine<A: Arch>(swap_slots: u32) -> M<A> {
        let config = ModelConfig { swap_slots, nr_frames: 1 << 10, ..ModelConfig::default() };
        mm_reclaim::model::machine(config).expect("machine")
    }
    fn pass<A: Arch>(m: &M<A>, policy: UnmapPolicy, folio: Folio<'_, M<A>>) -> Shrunk {
        let of = ReclaimOf::Everybody;
        let shrink = Shrink { policy, of, ignore_references: true, may_unmap: true };
        let folio = m.memmap().folio(folio.head());
        folio.enlist();
        let mut own = Some(folio.grab::<Get>(1).expect("fits"));
        assert!(m.lru().isolate_one(folio));
        shrink_folios(&shrink, m, || own.take())
    }
    fn ents<A: Arch>(mm: &Space<A>) -> u64 {
        mm.counters().get(RssKind::Swap)
    }
    /// What is on the device for a page.
    fn written<A: Arch>(m: &M<A>, mm: &Space<A>, page: u64) -> u64 {
        let slot = pte::<A>(mm, page).swap_slot().expect("swapped out");
        let new = m.memmap().alloc(0).expect("memory");
        read_folio(m, new.folio(), SlotRun::new(slot, 1)).expect("no error");
        m.content(new.folio().head())
    }

    pub fn a_folio_goes_out_whole<A: Arch>() {
        for policy in POLICIES {
            let m = machine::<A>(255);
            let p = space::<A>(&m, 32);
            let folio = map_folio(&p, 16, 4);
            let (got, runs, entries) = counted(&m, || pass(&m, policy, folio));
            assert_eq!(got, Shrunk { scanned: 16, reclaimed: 16, ..Shrunk::default() });
            let one = policy == UnmapPolicy::All;
            assert_eq!((runs, entries), (if one { 1 } else { 16 }, 16));
            assert_eq!((ents(&p), p.counters().resident(), m.folios_in_use()), (16, 0, 0));
            assert!((16..32).all(|page| written(&m, &p, page) == 1000 + page));
            assert_eq!(m.events().get(Event::PagesSwappedOut), 16);
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn one_flush_comes_before_all_writes<A: Arch>() {
        for policy in POLICIES {
            let m = machine::<A>(255);
            let p = space::<A>(&m, 64);
            // One is pinned, and stays.
            let folios = [0, 16, 32, 48];
            let mut owns: Vec<_> = folios
                .map(|page| {
                    let folio = map_folio(&p, page, 4);
                    folio.enlist();
                    let own = folio.grab::<Get>(1).expect("fits");
                    assert!(m.lru().isolate_one(folio));
                    Some(m.memmap().folio(own.hand_over().head()))
                })
                .into();
            let stays = owns[2].expect("there");
            m.swap().slots().add(&stays.lock()).expect("room");
            let pin = stays.grab::<Pin>(1).expect("fits");
            let tlb = m.tlb();
            let before = *tlb.made.lock();
            let of = ReclaimOf::Everybody;
            let shrink = Shrink { policy, of, ignore_references: true, may_unmap: true };
            let got = shrink_folios(&shrink, &m, || {
                owns.iter_mut().find_map(Option::take).map(|folio| {
                    m.memmap().adopt_run::<Get>(mm_folio::FolioRun::new(folio.head(), 0, 1))
                })
            });
            assert_eq!((got.reclaimed, got.activated), (48, 16), "{policy:?}");
            let made = *tlb.made.lock() - before;
            // Kernels write one after the other, each behind a flush of its own.
            let one = policy == UnmapPolicy::All;
            assert!(if one { made == 1 } else { made >= 3 }, "{policy:?}: {made}");
            assert_eq!((ents(&p), p.counters().get(RssKind::Anon)), (48, 16));
            let mut gone = (0..64).filter(|page| page / 16 != 2);
            assert!(gone.all(|page| written(&m, &p, page) == 1000 + page));
            drop(pin);
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn without_room_it_goes_in_pieces<A: Arch>() {
        for policy in POLICIES {
            for room in [0, 10] {
                let m = machine::<A>(room);
                let p = space::<A>(&m, 32);
                let folio = map_folio(&p, 16, 4);
                let got = pass(&m, policy, folio);
                let (reclaimed, activated) = (room.into(), 16 - u64::from(room));
                let expected = Shrunk { scanned: 16, reclaimed, activated, ..Shrunk::default() };
                assert_eq!(got, expected);
                assert_eq!(m.events().get(Event::SwapOutFallback), 4, "one of order 4");
                assert_eq!((ents(&p), m.folios_in_use() as u64), (reclaimed, activated));
                for page in (16..32).skip(room as usize) {
                    let folio = m.memmap().folio(pte::<A>(&p, page).pfn(mm_arch::Level::Pte));
                    assert!(!folio.is_large());
                    assert!(folio.has(FolioFlags::ACTIVE | FolioFlags::LRU | FolioFlags::DIRTY));
                }
                audit(&m, &[&p]);
                finish(&m, vec![p]);
            }
        }
    }

    pub fn what_is_held_stays_where_it_is<A: Arch>() {
        let m = machine::<A>(255);
        let p = space::<A>(&m, 32);
        let folio = map_folio(&p, 16, 4);
        let pin = folio.grab::<Pin>(1).expect("fits");
        assert_eq!(pass(&m, UnmapPolicy::All, folio).kept, 16, "pinned");
        drop(pin);
        let held = folio.grab::<Get>(1).expect("fits");
        assert_eq!(pass(&m, UnmapPolicy::All, folio).activated, 16, "held");
        drop(held);
        assert_eq!((ents(&p), m.slots().nr_free()), (0, 255));
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }

    pub fn what_cannot_be_written_stays_in_memory<A: Arch>() {
        let m = machine::<A>(255);
        let p = space::<A>(&m, 32);
        let folio = map_folio(&p, 16, 4);
        m.swap_state().failures.fail_after(3);
        assert_eq!(pass(&m, UnmapPolicy::All, folio).activated, 16);
        assert!(folio.has(FolioFlags::DIRTY | FolioFlags::SWAPCACHE | FolioFlags::LRU));
        assert_eq!((ents(&p), m.folios_in_use()), (16, 1));
        // It failed once.
        assert_eq!(pass(&m, UnmapPolicy::All, folio).reclaimed, 16);
        assert!((16..32).all(|page| written(&m, &p, page) == 1000 + page));
        finish(&m, vec![p]);
    }

    pub fn scarce_slots_are_given_up<A: Arch>() {
        for (slots, locked) in [(255, false), (24, false), (255, true)] {
            let m = machine::<A>(slots);
            let p = space::<A>(&m, 32);
            let folio = map_folio(&p, 16, 3);
            let others = map_folio(&p, 0, 3);
            let kept = others.grab::<Get>(1).expect("fits");
            for f in [folio, others] {
                m.slots().add(&f.lock()).expect("room");
            }
            let pin = folio.grab::<Pin>(1).expect("fits");
            if locked {
                folio.mlock();
            }
            assert_eq!(pass(&m, UnmapPolicy::All, folio).activated, 8);
            assert_eq!(folio.has(FolioFlags::SWAPCACHE), slots == 255 && !locked);
            assert_eq!(folio.has(FolioFlags::ACTIVE), !locked);
            folio.munlock();
            drop((pin, kept));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    /// Whoever takes the last entries off the slots finds the folio locked.
    pub fn what_nobody_wants_is_not_written<A: Arch>() {
        let m = machine::<A>(255);
        let p = space::<A>(&m, 32);
        let folio = m.memmap().folio(map_folio(&p, 16, 4).head());
        let locked = folio.lock();
        m.slots().add(&locked).expect("room");
        unmap_to_swap(&m, &locked, UnmapBy::Run).expect("no pins");
        mm_map::exit(&BATCHED, &p);
        drop((locked, p));
        assert_eq!((m.folios_in_use(), m.slots().in_use().count()), (1, 16));
        assert_eq!(pass(&m, UnmapPolicy::All, folio).reclaimed, 16);
        assert_eq!((m.folios_in_use(), m.slots().in_use().count()), (0, 0));
        assert_eq!(m.events().get(Event::PagesSwappedOut), 0);
    }

    pub fn soft_dirty_bits_go_along<A: Arch>() {
        for policy in POLICIES {
            let m = machine::<A>(255);
            let p = space::<A>(&m, 32);
            let folio = map_folio(&p, 16, 4);
            let soft = |page: u64| page.is_multiple_of(3);
            (16..32).for_each(|page| {
                edit::<A>(&p, page, |e| {
                    if soft(page) { e.mksoft_dirty() } else { e.clear_soft_dirty() }
                });
            });
            assert_eq!(pass(&m, policy, folio).reclaimed, 16, "{policy:?}");
            let told = which::<A>(&p, 16, 16, |e| e.swap_bits().soft_dirty);
            let expected = (16..32).filter(|page| A::HAS_SOFT_DIRTY && soft(*page));
            assert_eq!(told, expected.collect::<Vec<_>>());
            finish(&m, vec![p]);
        }
    }

    pub fn what_is_held_is_not_written<A: Arch>() {
        for policy in POLICIES {
            let m = machine::<A>(255);
            let p = space::<A>(&m, 32);
            let folio = m.memmap().folio(map_folio(&p, 16, 4).head());
            let locked = folio.lock();
            m.slots().add(&locked).expect("room");
            unmap_to_swap(&m, &locked, UnmapBy::Run).expect("no pins");
            drop(locked);
            let held = folio.grab::<Get>(1).expect("fits");
            assert_eq!(pass(&m, policy, folio).kept, 16, "{policy:?}");
            assert!(folio.has(FolioFlags::DIRTY | FolioFlags::SWAPCACHE | FolioFlags::LRU));
            assert_eq!(m.events().get(Event::PagesSwappedOut), 0);
            drop(held);
            assert_eq!(pass(&m, policy, folio).reclaimed, 16);
            assert_eq!(m.events().get(Event::PagesSwappedOut), 16);
            finish(&m, vec![p]);
        }
    }

    pub fn pages_that_nothing_maps_are_not_written<A: Arch>() {
        for policy in POLICIES {
            let m = machine::<A>(255);
            let p = space::<A>(&m, 32);
            let folio = map_folio(&p, 16, 4);
            madvise(&BATCHED, &mut p.write(), pages::<A>(20, 3), Advice::DontNeed).expect("mapped");
            assert!(folio.has(FolioFlags::PARTIALLY_MAPPED));
            assert_eq!(pass(&m, policy, folio).reclaimed, 13, "{policy:?}");
            let events = [Event::FolioSplit, Event::PagesSwappedOut, Event::SwapOutFallback];
            assert_eq!(events.map(|e| m.events().get(e)), [4, 13, 0]);
            assert_eq!((ents(&p), m.slots().nr_free(), m.folios_in_use()), (13, 255 - 13, 0));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    /// Of a folio that is pinned go those pages that others may have, up to the first that is the
    /// mapping's alone.
    pub fn a_run_ends_at_a_page_that_may_be_pinned<A: Arch>() {
        for policy in POLICIES {
            let m = machine::<A>(255);
            let p = space::<A>(&m, 32);
            let folio = map_folio(&p, 16, 4);
            folio.try_share_anon_ptes(0, nz(6)).expect("not pinned");
            let pin = folio.grab::<Pin>(1).expect("fits");
            m.slots().add(&folio.lock()).expect("room");
            let end = unmap(&m, policy, folio);
            assert_eq!(end, Unmapped::Kept(Kept::Referenced), "{policy:?}");
            assert_eq!(
                which::<A>(&p, 16, 16, |e| e.swap_slot().is_some()),
                [16, 17, 18, 19, 20, 21]
            );
            assert_eq!((ents(&p), p.counters().get(RssKind::Anon), folio.mapcount()), (6, 10, 10));
            drop(pin);
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn what_was_given_up_frees_its_slots<A: Arch>() {
        let m = machine::<A>(255);
        let p = space::<A>(&m, 32);
        let folio = map_folio(&p, 16, 4);
        assert_eq!(pass(&m, UnmapPolicy::All, folio).reclaimed, 16);
        madvise_free(UnmapPolicy::All, &p.read(), pages::<A>(20, 4)).expect("mapped");
        assert_eq!((ents(&p), m.slots().nr_free()), (12, 255 - 12));
        assert!((20..24).all(|page| pte::<A>(&p, page).is_none()));
        audit(&m, &[&p]);
        finish(&m, vec![p]);
    }
}

on_all! {
    /// Rules: RECL-04, RECL-08, RECL-12, UNMAP-19, SWAP-01.
    a_folio_goes_out_whole;
    /// Rules: TLBB-05, TLBB-06, RECL-10.
    one_flush_comes_before_all_writes;
    /// Rules: RECL-04, RECL-05, SWAP-01. Rows: S-RC10.
    without_room_it_goes_in_pieces;
    /// Rules: RECL-04, RMAP-17. Rows: S-RC9.
    what_is_held_stays_where_it_is;
    /// Rules: RECL-07.
    what_cannot_be_written_stays_in_memory;
    /// Rules: RECL-11.
    scarce_slots_are_given_up;
    /// Rules: SWAP-03, SWAP-04.
    what_nobody_wants_is_not_written;
    /// Rules: UNMAP-19.
    soft_dirty_bits_go_along;
    /// Rules: RECL-07.
    what_is_held_is_not_written;
    /// Rules: RECL-04, RECL-05.
    pages_that_nothing_maps_are_not_written;
    /// Rules: RMAP-16, UNMAP-19.
    a_run_ends_at_a_page_that_may_be_pinned;
    /// Rules: MADV-02.
    what_was_given_up_frees_its_slots;
}
