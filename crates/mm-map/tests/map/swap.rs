//! Fork, unmapping, moves and protection of what is swapped out.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry, Level, NonPresent, Rights, SwapBits, SwapSlot};
    use mm_folio::{FolioFlags, FolioRef, Get, Pin};
    use mm_map::{
        Advice, ForkError, MapPolicy, OldPlace, exit, fork, madvise, mprotect, mremap_move, munmap,
    };
    use mm_rmap::SwapOutError;
    use mm_rmap::model::{UnmapBy, swap_out, unmap_to_swap};
    use mm_vma::{Platform, RssKind, SlotRun, SwapSlots, SwapSpace};

    const POLICIES: [MapPolicy; 2] = [PER_PAGE, BATCHED];

    /// A space of 32 pages with a folio of 16 at 16, swapped out.
    fn swapped<A: Arch>() -> (M<A>, Space<A>) {
        let m = new_machine::<A>();
        let p = space::<A>(&m, 32);
        let head = map_folio(&p, 16, 4).head();
        assert!(swap_out(&m, head, UnmapBy::Run));
        audit(&m, &[&p]);
        (m, p)
    }
    fn slot<A: Arch>(mm: &Space<A>, page: u64) -> SwapSlot {
        pte::<A>(mm, page).swap_slot().expect("swapped out")
    }
    fn ents<A: Arch>(mm: &Space<A>) -> u64 {
        mm.counters().get(RssKind::Swap)
    }

    pub fn a_fork_shares_slots<A: Arch>() {
        for policy in POLICIES {
            let (m, p) = swapped::<A>();
            // What the child does not inherit, and what it does.
            let bits = SwapBits {
                exclusive: true,
                soft_dirty: A::HAS_SOFT_DIRTY,
                uffd_wp: A::HAS_UFFD_WP,
            };
            edit::<A>(&p, 20, |e| e.with_swap_bits(bits));
            let child = fork(&policy, &p).expect("memory");
            for page in 16..32 {
                assert_eq!(
                    (slot(&p, page), m.slots().count(slot(&p, page))),
                    (slot(&child, page), 2)
                );
                let (of_p, of_child) =
                    (pte::<A>(&p, page).swap_bits(), pte::<A>(&child, page).swap_bits());
                assert!(!of_p.exclusive && !of_child.exclusive && !of_child.uffd_wp);
                if page == 20 {
                    assert_eq!(of_p, SwapBits { exclusive: false, ..bits });
                    assert_eq!(of_child.soft_dirty, A::HAS_SOFT_DIRTY);
                }
            }
            assert_eq!((ents(&p), ents(&child)), (16, 16));
            audit(&m, &[&p, &child]);
            finish(&m, vec![child, p]);
        }
    }

    pub fn a_slot_with_too_many_entries_fails_the_fork<A: Arch>() {
        for policy in POLICIES {
            let (m, p) = swapped::<A>();
            let last = SlotRun::new(slot(&p, 31), 1);
            let max = SwapSlots::<mm_sync::DefaultLock>::MAX_COUNT;
            for _ in 1..max {
                m.slots().dup(last).expect("room");
            }
            assert_eq!(fork(&policy, &p).err(), Some(ForkError::TooManyRefs(va::<A>(31))));
            for _ in 1..max {
                m.slots().put(last);
            }
            for page in 16..32 {
                assert_eq!(m.slots().count(slot(&p, page)), 1, "page {page}");
            }
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn unmapping_gives_slots_back<A: Arch>() {
        for policy in POLICIES {
            let (m, p) = swapped::<A>();
            let free = m.slots().nr_free();
            munmap(&policy, &mut p.write(), pages::<A>(18, 3)).expect("memory");
            assert_eq!((ents(&p), m.slots().nr_free()), (13, free + 3));
            madvise(&policy, &mut p.write(), pages::<A>(30, 2), Advice::DontNeed).expect("mapped");
            assert_eq!((ents(&p), m.slots().nr_free()), (11, free + 5));
            audit(&m, &[&p]);
            exit(&policy, &p);
            assert_eq!((ents(&p), m.slots().in_use().count()), (0, 0));
            finish(&m, vec![p]);
        }
    }

    pub fn the_cache_goes_with_the_last_entry_or_mapping<A: Arch>() {
        for policy in POLICIES {
            let m = new_machine::<A>();
            let p = space::<A>(&m, 32);
            // Entries only: the folio stays in the cache, and then goes.
            let cached = |page: u64| {
                let own: FolioRef<'_, _, Get> =
                    map_folio(&p, page, 2).grab::<Get>(1).expect("room");
                let locked = own.folio().lock();
                m.slots().add(&locked).expect("room");
                locked.folio().head()
            };
            let a = cached(0);
            let own = m.memmap().folio(a).grab::<Get>(1).expect("room");
            unmap_to_swap(&m, &own.folio().lock(), UnmapBy::Run).expect("no pins");
            drop(own);
            assert_eq!(m.folios_in_use(), 1);
            munmap(&policy, &mut p.write(), pages::<A>(0, 3)).expect("memory");
            assert_eq!(m.folios_in_use(), 1, "an entry is left");
            munmap(&policy, &mut p.write(), pages::<A>(3, 1)).expect("memory");
            assert_eq!((m.folios_in_use(), m.slots().in_use().count()), (0, 0));
            // Mappings only.
            cached(8);
            munmap(&policy, &mut p.write(), pages::<A>(8, 4)).expect("memory");
            assert_eq!((m.folios_in_use(), m.slots().in_use().count()), (0, 0));
            finish(&m, vec![p]);
        }
    }

    pub fn a_move_takes_entries_along<A: Arch>() {
        for policy in POLICIES {
            let (m, p) = swapped::<A>();
            let before: Vec<_> = (16..32).map(|page| slot(&p, page)).collect();
            mremap_move(&policy, &mut p.write(), pages::<A>(16, 16), va::<A>(100), OldPlace::Unmap)
                .expect("memory");
            let after: Vec<_> = (100..116).map(|page| slot(&p, page)).collect();
            assert_eq!((before, ents(&p)), (after, 16));
            for page in 100..116 {
                let bits = pte::<A>(&p, page).swap_bits();
                assert!(bits.exclusive && bits.soft_dirty == A::HAS_SOFT_DIRTY);
            }
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn protection_leaves_swap_entries_alone<A: Arch>() {
        let (m, p) = swapped::<A>();
        let before: Vec<_> = (16..32).map(|page| pte::<A>(&p, page)).collect();
        mprotect(&BATCHED, &mut p.write(), pages::<A>(10, 22), Rights::READ).expect("allowed");
        let after: Vec<_> = (16..32).map(|page| pte::<A>(&p, page)).collect();
        assert!(before == after);
        finish(&m, vec![p]);
    }

    pub fn a_refused_swap_out_changes_nothing_behind<A: Arch>() {
        for by in [UnmapBy::Page, UnmapBy::Run] {
            let m = new_machine::<A>();
            let p = space::<A>(&m, 32);
            let folio = map_folio(&p, 16, 4);
            // Pages 0 to 4 are shared already, and some read-only: they may go.
            m.memmap().clear_exclusive(folio.head(), 5);
            for page in 16..21 {
                edit::<A>(&p, page, |e| e.wrprotect());
            }
            edit::<A>(&p, 25, |e| e.wrprotect().mkclean());
            edit::<A>(&p, 26, |e| e.clear_soft_dirty());
            let before: Vec<_> = (16..32).map(|page| pte::<A>(&p, page)).collect();
            let pin = folio.grab::<Pin>(1).expect("room");
            let own = folio.grab::<Get>(1).expect("room");
            let locked = own.folio().lock();
            let first = m.slots().add(&locked).expect("room");
            assert_eq!(unmap_to_swap(&m, &locked, by), Err(SwapOutError::MaybePinned));
            for page in 16..21 {
                assert!(
                    !pte::<A>(&p, page).swap_bits().exclusive
                        && slot(&p, page).offset >= first.offset
                );
            }
            for (k, old) in before.iter().enumerate().skip(5) {
                let e = pte::<A>(&p, 16 + k as u64);
                let facts =
                    |e: E<A>| (e.pfn(Level::Pte), e.is_writable(Level::Pte), e.is_soft_dirty());
                assert_eq!(facts(e), facts(*old), "page {k}");
                assert!(e.is_dirty() == old.is_dirty() || A::CONT > 1);
                assert_eq!(m.slots().count(SlotRun::new(first, 16).at(k as u32)), 0);
            }
            assert_eq!(exclusive::<A>(folio), (5..16).collect::<Vec<_>>());
            assert_eq!((ents(&p), p.counters().get(RssKind::Anon)), (5, 11));
            drop((pin, locked, own));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
    }

    pub fn a_swap_out_stops_where_no_entry_can_be_counted<A: Arch>() {
        let mut seen = Vec::new();
        for by in [UnmapBy::Page, UnmapBy::Run] {
            let m = new_machine::<A>();
            let p = space::<A>(&m, 32);
            let own = map_folio(&p, 16, 4).grab::<Get>(1).expect("room");
            let locked = own.folio().lock();
            let first = m.slots().add(&locked).expect("room");
            let full = SlotRun::new(SlotRun::new(first, 16).at(7), 1);
            let max = SwapSlots::<mm_sync::DefaultLock>::MAX_COUNT;
            (0..max).for_each(|_| m.slots().dup(full).expect("room"));
            assert_eq!(unmap_to_swap(&m, &locked, by), Err(SwapOutError::TooManyEntries));
            (0..max).for_each(|_| m.slots().put(full));
            seen.push((ents(&p), exclusive::<A>(own.folio())));
            assert!(own.folio().has(FolioFlags::DIRTY));
            drop((locked, own));
            audit(&m, &[&p]);
            finish(&m, vec![p]);
        }
        assert_eq!(seen[0], (7, (7..16).collect()));
        assert_eq!(seen[0], seen[1]);
    }

    pub fn runs_of_swap_entries<A: Arch>() {
        let m = new_machine::<A>();
        let p = space::<A>(&m, 32);
        let entry = |offset, bits| {
            let slot = SwapSlot { device: 0, offset };
            E::<A>::from_nonpresent(NonPresent::Swap(slot), bits).expect("encodes")
        };
        let none = SwapBits::default();
        let flags = [
            (true, SwapBits { exclusive: true, ..none }),
            (A::HAS_SOFT_DIRTY, SwapBits { soft_dirty: true, ..none }),
            (A::HAS_UFFD_WP, SwapBits { uffd_wp: true, ..none }),
        ];
        let other_device = NonPresent::Swap(SwapSlot { device: 1, offset: 45 });
        let mut odd = vec![entry(46, none), entry(44, none), E::<A>::NONE];
        odd.push(E::<A>::from_nonpresent(other_device, none).expect("encodes"));
        odd.extend(flags.iter().filter(|f| f.0).map(|f| entry(45, f.1)));
        for other in odd {
            for k in 0..10 {
                set_pte::<A>(&p, k, entry(40 + k, none));
            }
            set_pte::<A>(&p, 5, other);
            {
                let vmas = p.read();
                let t = p.tables().lock_table(vmas.stay(), va::<A>(0)).expect("table");
                let run = |i: usize, n| t.swap_run(i, t.get(i), t.limit(i).at_most(n)).nr();
                assert_eq!(
                    (run(0, 99), run(0, 3), run(6, 99), run(9, 99)),
                    (5, 3, 4, 1),
                    "{other:?}"
                );
            }
            let e = entry(40, none);
            assert_eq!(e.advance_swap(3).and_then(|e| e.advance_swap(-3)), Some(e));
            assert_eq!(e.advance_swap(3), Some(entry(43, none)));
            assert_eq!((e.advance_swap(-41), E::<A>::NONE.advance_swap(1)), (None, None));
            for k in 0..10 {
                set_pte::<A>(&p, k, E::<A>::NONE);
            }
        }
        finish(&m, vec![p]);
    }
}

on_all! {
    /// Rules: FORK-10, SWAP-02, EXCL-04, SWP-02. Rows: S-FK7.
    a_fork_shares_slots;
    /// Rules: SWAP-02, FORK-10.
    a_slot_with_too_many_entries_fails_the_fork;
    /// Rules: ZAP-07, MADV-01, INV-6.
    unmapping_gives_slots_back;
    /// Rules: ZAP-06, ZAP-07, SWAP-04.
    the_cache_goes_with_the_last_entry_or_mapping;
    /// Rules: MREMAP-01, MREMAP-03.
    a_move_takes_entries_along;
    /// Rules: MPROT-05.
    protection_leaves_swap_entries_alone;
    /// Rules: UNMAP-18, UNMAP-19, RMAP-16, RMAP-17.
    a_refused_swap_out_changes_nothing_behind;
    /// Rules: UNMAP-19, SWAP-02.
    a_swap_out_stops_where_no_entry_can_be_counted;
    /// Rules: BATCH-16, BATCH-17.
    runs_of_swap_entries;
}
