//! The lockless path: where it stops, and that whatever stopped it has given
//! back what it took.

use crate::common::*;
use mm_arch::{Arch, Entry, Level, NonPresent, SwapBits, VirtAddr};
use mm_folio::{FolioFlags, Get, Pin, RefKind};
use mm_gup::{
    FastPolicy, FaultError, Gup, GupErrorKind, GupFault, GupFlags, Runs, Sink, put_runs, unpin_runs,
};
use mm_map::{Advice, MapPolicy, madvise};
use mm_vma::{Event, Platform};

/// Takes `nr` pages from page 0 on with each policy; page numbers, then all is
/// given back.
fn prefixes<A: Arch, K: RefKind>(s: &Space<A>, nr: usize, flags: GupFlags) -> [usize; 3] {
    How::FAST.map(|how| {
        let taken = s.call::<K>(how, 0, nr, flags);
        for (k, pfn) in taken.pages.iter().enumerate() {
            assert_eq!(*pfn, s.pfn(k as u64), "page {k}");
        }
        s.give_back::<K>(&taken);
        taken.pages.len()
    })
}

/// A way to make page `.0` stop a walk.
type Stopper<A> = (&'static str, fn(&Space<A>, u64), bool, bool);

/// What stops, and whether it stops reads, and pins for reading.
fn stoppers<A: Arch>() -> Vec<Stopper<A>> {
    vec![
        ("hole", |s, p| s.unmap(p), true, true),
        ("inaccessible", |s, p| s.hint(p), true, true),
        ("read-only", |s, p| s.edit(p, E::<A>::wrprotect), false, false),
        ("read-only and shared", |s, p| s.share(p), false, true),
    ]
}

on_all! {
    /// Rules: GUPF-07, GUPF-11, GUPF-19.
    fn a_stop_leaves_counts_as_they_were<A>() {
        fn check<A: Arch, K: RefKind>() {
            for order in [0, 2] {
                for (name, stop, read, pin_read) in stoppers::<A>() {
                    let s = Space::<A>::new(RW);
                    let folios: Vec<_> = (0..8 >> order).map(|k| s.map(k << order, order).head()).collect();
                    stop(&s, 5);
                    let stops = if K::PINS { pin_read } else { read };
                    assert_eq!(prefixes::<A, K>(&s, 8, WRITE), [5; 3], "{name}");
                    let n = if stops { 5 } else { 8 };
                    assert_eq!(prefixes::<A, K>(&s, 8, READ), [n; 3], "{name}");
                    // At the very first page.
                    for how in How::FAST {
                        let taken = s.call::<K>(how, 5, 1, WRITE);
                        assert_eq!(taken.result, Ok(0), "{name}");
                    }
                    for head in folios {
                        let folio = s.m.memmap().folio(head);
                        assert_eq!(s.held(folio), (0, 0), "{name}");
                    }
                    s.finish();
                }
            }
        }
        check::<A, Get>();
        check::<A, Pin>();
    }

    /// An address beyond user space has the table indexes of one inside.
    ///
    /// Rules: GUPF-05.
    fn addresses_beyond_user_space_find_nothing<A>() {
        let s = Space::<A>::new(RW);
        s.map(0, 0);
        let walk = mm_gup::fast::Walk {
            tables: s.mm.tables(),
            map: s.m.memmap(),
            write_protect_seq: s.mm.write_protect_seq(),
            observer: &(),
        };
        let beyond = A::USER_END.next_power_of_two();
        let last = A::USER_END - (1 << A::PAGE_SHIFT);
        for (at, nr) in [(beyond, 1), (last, 2), (u64::MAX, 2), (0, 0)] {
            for policy in [FastPolicy::Page, FastPolicy::Run, FastPolicy::Whole] {
                let mut out = Runs::new();
                assert_eq!(walk.take::<Get>(policy, VirtAddr::new(at), nr, READ, &mut out), 0);
            }
        }
        s.finish();
    }

    /// Rules: GUPF-11, PIN-05, PIN-07, PIN-11.
    fn a_folio_that_cannot_be_grabbed_stops<A>() {
        let s = Space::<A>::new(RW);
        s.map(0, 0);
        let frozen = s.map(1, 0);
        assert!(frozen.freeze(1));
        assert_eq!(prefixes::<A, Get>(&s, 2, WRITE), [1; 3]);
        assert_eq!(prefixes::<A, Pin>(&s, 2, WRITE), [1; 3]);
        assert_eq!(frozen.refcount(), 0, "a frozen folio came to life");
        frozen.unfreeze(1);
        let full = frozen.grab::<Get>(i32::MAX as u32 - 1).expect("fits");
        assert_eq!(prefixes::<A, Get>(&s, 2, WRITE), [1; 3]);
        assert_eq!(prefixes::<A, Pin>(&s, 2, WRITE), [1; 3]);
        assert_eq!(frozen.refcount(), i32::MAX);
        drop(full);
        s.finish();
    }

    /// Rules: GUPF-12, GUPF-13.
    fn an_entry_that_changed_behind_the_grab_is_not_taken<A>() {
        for how in How::FAST {
            for order in [0, 2] {
                let s = Space::<A>::new(RW);
                let folio = s.map(0, order);
                if order == 0 {
                    s.map(1, 0);
                }
                // Only the accessed bit: raw values are compared.
                let age = || {
                    let vmas = s.mm.read();
                    let mut t = s.mm.tables().lock_table(vmas.stay(), va::<A>(0)).expect("there");
                    assert!(t.clear_young(t.index_of(va::<A>(0)), 1));
                };
                let at = At::new(Event::Grabs, 1, age);
                let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&at);
                let taken = s.call_with::<Pin, _, _>(&gup, how, 0, 2, WRITE);
                assert_eq!(taken.result, Ok(0), "{how:?}");
                assert_eq!(s.held(folio), (0, 0));
                s.finish();
            }
        }
    }

    /// Rules: GUPF-16, GUPF-20.
    fn the_run_is_scanned_behind_the_grab<A>() {
        for how in [How::FastRun, How::FastWhole] {
        let s = Space::<A>::new(RW);
        let folio = s.map(0, 3);
        let cut = || {
            let vmas = s.mm.read();
            let mut t = s.mm.tables().lock_table(vmas.stay(), va::<A>(5)).expect("there");
            let mut owed = s.mm.tables().tlb().obligation();
            let old = t.take(t.index_of(va::<A>(5)), &mut owed);
            assert!(old.is_present(Level::Pte));
        };
        let before = s.pte(5);
        let at = At::new(Event::Grabs, 1, cut);
        let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&at);
        // The head's entry must read as before in formats with blocks, too.
        let taken = s.call_with::<Pin, _, _>(&gup, how, 0, 8, WRITE);
        assert_eq!(taken.result, Ok(5), "{how:?}");
        assert_eq!(s.held(folio), (5, 5));
        s.give_back::<Pin>(&taken);
        s.set(5, before);
        s.finish();
        }
    }

    /// Rules: GUPF-16, GUPF-17, GUPF-21, GUPS-25. Patterns of marks: 1110 1111 → 3.
    fn a_run_for_reading_is_the_exclusive_prefix<A>() {
        for pattern in [0b1111_0111u32, 0b1111_1110, 0b1111_1111, 0b0111_1111, 0b0000_0001] {
            let s = Space::<A>::new(RW);
            let folio = s.map(0, 3);
            for k in 0..8 {
                s.edit(k, E::<A>::wrprotect);
                if pattern >> k & 1 == 0 {
                    s.share(k);
                }
            }
            let n = (pattern.trailing_ones() as usize).min(8);
            assert_eq!(prefixes::<A, Pin>(&s, 8, READ), [n; 3], "{pattern:b}");
            // References do not ask.
            assert_eq!(prefixes::<A, Get>(&s, 8, READ), [8; 3]);
            assert_eq!(s.held(folio), (0, 0));
            s.finish();
        }
    }

    /// Rules: GUPF-18, PIN-11, PIN-19.
    fn a_full_count_at_the_second_grab_keeps_the_head<A>() {
        let s = Space::<A>::new(RW);
        let folio = s.map(0, 3);
        let room_for_one = folio.grab::<Get>(i32::MAX as u32 - 8 - 1).expect("fits");
        let before = folio.refcount();
        for how in How::FAST {
            let taken = s.call::<Pin>(how, 2, 4, WRITE);
            assert_eq!(taken.result, Ok(1), "{how:?}");
            assert_eq!(taken.pages, [folio.page(2)]);
            assert_eq!((folio.refcount(), folio.pincount()), (i32::MAX, 1));
            s.give_back::<Pin>(&taken);
            assert_eq!((folio.refcount(), folio.pincount()), (before, 0));
        }
        drop(room_for_one);
        s.finish();
    }

    /// What a run fell short of is given back, and the next head is taken alone: a
    /// folio mapped in pieces costs as many atomics as head by head.
    ///
    /// Rules: GUPF-18, GUPF-19.
    fn what_a_run_has_not_is_given_back<A>() {
        let s = Space::<A>::new(RW);
        let folio = s.map(0, 4);
        let other = s.map(16, 2);
        for page in [3, 7] {
            s.edit(page, E::<A>::wrprotect);
        }
        let counts = Counts::default();
        let gup = Gup::new(&s.mm, &()).with_policy(How::FastWhole.policy()).observed_by(&counts);
        let taken = s.call_with::<Get, _, _>(&gup, How::FastWhole, 0, 20, READ);
        assert_eq!(taken.result, Ok(20));
        assert_eq!((s.held(folio), s.held(other)), ((16, 0), (4, 0)));
        // Pages 0 to 2: the folio, and 13 back. 3 and 7: one each. 4 to 6 and 8 to 15:
        // head and rest. After a run to the end the next folio is taken whole again.
        let cost = (counts.of(Event::Grabs), counts.of(Event::Atomics));
        if A::CONT == 1 && per_table::<A>() > 20 {
            assert_eq!(cost, (1 + 1 + 2 + 1 + 2 + 1, 2 + 1 + 2 + 1 + 2 + 1));
        }
        s.give_back::<Get>(&taken);
        s.finish();
    }

    /// Rules: GUPF-15.
    fn a_pin_for_writing_trusts_the_entry<A>() {
        let s = Space::<A>::new(RW);
        let folio = s.map(0, 2);
        // Never so in earnest: a writable page is exclusive.
        s.m.memmap().clear_exclusive(folio.head(), 4);
        assert_eq!(prefixes::<A, Pin>(&s, 4, WRITE), [4; 3]);
        s.finish();
    }

    /// Rules: GUPF-05.
    fn a_fork_takes_pins_back_and_leaves_references<A>() {
        for how in How::FAST {
            for nth in [1, 2] {
                let s = Space::<A>::new(RW);
                let folio = s.map(0, 2);
                s.map(4, 0);
                let seq = s.mm.write_protect_seq();
                let forked = At::new(Event::Grabs, nth, || {
                    seq.write_begin();
                    seq.write_end();
                });
                let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&forked);
                let taken = s.call_with::<Pin, _, _>(&gup, how, 0, 5, WRITE);
                assert_eq!(taken.result, Ok(0), "{how:?}");
                assert_eq!((s.held(folio), s.outstanding()), ((0, 0), 0));

                let forked = At::new(Event::Grabs, nth, || {
                    seq.write_begin();
                    seq.write_end();
                });
                let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&forked);
                let taken = s.call_with::<Get, _, _>(&gup, how, 0, 5, WRITE);
                assert_eq!(taken.result, Ok(5), "references need not care");
                s.give_back::<Get>(&taken);
                s.finish();
            }
        }
    }

    /// Rules: GUPF-05. Inside of a fork there is nothing to walk for.
    fn an_odd_sequence_falls_back_at_once<A>() {
        let s = Space::<A>::new(RW);
        s.map(0, 2);
        let counts = Counts::default();
        let gup = Gup::new(&s.mm, &()).observed_by(&counts);
        s.mm.write_protect_seq().write_begin();
        let taken = s.call_with::<Pin, _, _>(&gup, How::FastRun, 0, 4, WRITE);
        assert_eq!((taken.result, counts.of(Event::Walks)), (Ok(0), 0));
        let taken = s.call_with::<Get, _, _>(&gup, How::FastRun, 0, 4, WRITE);
        assert_eq!(taken.result, Ok(4));
        s.give_back::<Get>(&taken);
        s.mm.write_protect_seq().write_end();
        s.finish();
    }

    /// Rules: GUPF-02.
    fn addresses_have_limits<A>() {
        let s = Space::<A>::new(RW);
        let gup = Gup::new(&s.mm, &());
        let page = 1 << A::PAGE_SHIFT;
        let errno = |at: u64, nr: usize| {
            let fast = gup.pin_fast_only(VirtAddr::new(at), nr, WRITE, &mut Runs::new());
            let slow = gup.get(VirtAddr::new(at), nr, READ, &mut Runs::new());
            (fast.map_err(|e| e.errno()), slow.map_err(|e| e.errno()))
        };
        // Inside, with nothing mapped there.
        assert_eq!(errno(A::USER_END - page, 1), (Ok(0), Err("EFAULT")));
        assert_eq!(errno(A::USER_END - page, 2), (Err("EFAULT"), Err("EFAULT")));
        assert_eq!(errno(A::USER_END, 1), (Err("EFAULT"), Err("EFAULT")));
        let wraps = (Err("EOVERFLOW"), Err("EOVERFLOW"));
        assert_eq!(errno(u64::MAX - 3 * page, 5), wraps);
        assert_eq!(errno(0, usize::MAX), wraps);
        s.finish();
    }

    /// Rules: GUPF-02.
    fn the_start_is_rounded_down_to_its_page<A>() {
        let s = Space::<A>::new(RW);
        s.map(0, 2);
        let gup = Gup::new(&s.mm, &());
        let inside = VirtAddr::new(va::<A>(1).get() + 123);
        for slow in [false, true] {
            let mut out = Runs::new();
            let got = if slow {
                gup.get(inside, 2, READ, &mut out)
            } else {
                gup.get_fast_only(inside, 2, READ, &mut out)
            };
            assert_eq!(got, Ok(2));
            let runs = out.take();
            assert_eq!((runs.len(), runs[0].first, runs[0].nr), (1, 1, 2));
            put_runs(s.m.memmap(), runs);
        }
        s.finish();
    }

    /// Rules: GUPF-03, GUPS-01.
    fn no_pages_are_no_work<A>() {
        let s = Space::<A>::new(RW);
        let counts = Counts::default();
        let gup = Gup::new(&s.mm, &()).observed_by(&counts);
        for how in How::FAST.into_iter().chain(How::SLOW) {
            assert_eq!(s.call_with::<Pin, _, _>(&gup, how, 0, 0, WRITE).result, Ok(0));
        }
        let at = VirtAddr::new(u64::MAX);
        assert_eq!(gup.pin_fast(at, 0, WRITE, &mut Runs::new()), Ok(0));
        assert_eq!((counts.of(Event::Walks), counts.of(Event::EntriesRead)), (0, 0));
        s.finish();
    }

    /// Rules: GUPF-04.
    fn the_slow_path_goes_on_where_the_fast_one_stopped<A>() {
        let s = Space::<A>::new(RW);
        s.map(0, 2);
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script);
        let mut out = Runs::new();
        assert_eq!(gup.pin_fast(va::<A>(0), 6, WRITE, &mut out), Ok(6));
        let fault = GupFault::WRITE | GupFault::ALLOW_RETRY;
        assert_eq!(script.seen::<A>(), [(4, fault), (5, fault)]);
        assert_eq!((out.pages(), s.outstanding()), (6, 6));
        unpin_runs(s.m.memmap(), out.take());

        // Only the fast path: no faults, and fewer pages are no error.
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script);
        for how in How::FAST {
            assert_eq!(s.call_with::<Pin, _, _>(&gup, how, 8, 1, WRITE).result, Ok(0));
        }
        assert_eq!(script.seen::<A>(), []);

        // An error of the slow path shows only if the fast one had nothing.
        let script = Script::new::<A>(&[Act::Fail(FaultError::NoMemory); 2]);
        let gup = Gup::new(&s.mm, &script);
        let mut out = Runs::new();
        assert_eq!(gup.get_fast(va::<A>(4), 8, WRITE, &mut out), Ok(2));
        let error = gup.get_fast(va::<A>(6), 8, WRITE, &mut out).expect_err("fails");
        assert_eq!((error.va, error.kind), (va::<A>(6), GupErrorKind::NoMemory));
        put_runs(s.m.memmap(), out.take());
        s.finish();
    }

    /// Rules: GUPF-28, GUPS-30.
    fn force_and_nofault_change_nothing_in_the_fast_path<A>() {
        let s = Space::<A>::new(RO);
        s.map(0, 0);
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script);
        for how in How::FAST {
            let taken = s.call_with::<Pin, _, _>(&gup, how, 0, 1, WRITE | GupFlags::FORCE);
            assert_eq!(taken.result, Ok(0));
        }
        let mut out = Runs::new();
        let flags = WRITE | GupFlags::NOFAULT;
        let error = gup.pin_fast(va::<A>(0), 1, flags, &mut out).expect_err("read-only");
        assert_eq!(error.kind, GupErrorKind::Fault);
        let error = gup.pin_fast(va::<A>(7), 1, GupFlags::NOFAULT, &mut out).expect_err("hole");
        assert_eq!(error.kind, GupErrorKind::Fault);
        assert_eq!(script.seen::<A>(), []);
        s.finish();
    }

    /// Rules: GUPF-27.
    fn the_fast_path_waits_for_nobody<A>() {
        let s = Space::<A>::new(RW);
        let folio = s.map(0, 2);
        let vmas = s.mm.write();
        let table = s.mm.tables().lock_table(vmas.stay(), va::<A>(0)).expect("there");
        let locked = folio.lock();
        let taken = s.call::<Pin>(How::FastRun, 0, 4, WRITE);
        assert_eq!(taken.result, Ok(4));
        s.give_back::<Pin>(&taken);
        drop((locked, table));
        drop(vmas);
        s.finish();
    }

    /// Rules: GUPF-09.
    fn a_pmd_leaf_is_taken_in_one_step<A>() {
        fn check<A: Arch, K: RefKind>() {
            for how in How::FAST {
                let s = Space::<A>::new(RW);
                let folio = s.map_pmd(0);
                let counts = Counts::default();
                let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&counts);
                let taken = s.call_with::<K, _, _>(&gup, how, 3, 10, WRITE);
                assert_eq!(taken.result, Ok(10));
                assert_eq!(taken.pages[9], folio.page(12));
                assert_eq!(s.held(folio), as_held::<A, K>(folio, 10));
                assert_eq!((counts.of(Event::Grabs), counts.of(Event::EntriesRead)), (1, 1));
                s.give_back::<K>(&taken);
                // On into a table, and into a hole.
                let n = per_table::<A>();
                s.map(n, 1 << 1);
                let taken = s.call::<K>(how, n - 2, 9, WRITE);
                assert_eq!(taken.result, Ok(6));
                s.give_back::<K>(&taken);
                s.finish();
            }
        }
        check::<A, Get>();
        check::<A, Pin>();
    }

    /// Rules: GUPF-08, GUPF-09, EXCL-01.
    fn a_pmd_leaf_that_may_not_be_taken_is_left_alone<A>() {
        let s = Space::<A>::new(RW);
        let folio = s.map_pmd(0);
        let before = s.entry(0).0;
        let none = |kinds: &[GupFlags], get: bool| {
            for how in How::FAST {
                for flags in kinds {
                    assert_eq!(s.call::<Pin>(how, 1, 3, *flags).result, Ok(0));
                    if get {
                        assert_eq!(s.call::<Get>(how, 1, 3, *flags).result, Ok(0));
                    }
                }
            }
            assert_eq!(s.held(folio), (0, 0));
        };
        let prot = A::prot(mm_arch::Protection::none());
        s.edit_pmd(0, |e| e.modify(prot, Level::Pmd));
        none(&[READ, WRITE], true);
        s.edit_pmd(0, |_| before.wrprotect());
        none(&[WRITE], true);
        let taken = s.call::<Pin>(How::FastRun, 1, 3, READ);
        assert_eq!(taken.result, Ok(3), "the head's mark speaks for all");
        s.give_back::<Pin>(&taken);
        s.m.memmap().clear_exclusive(folio.head(), 1);
        none(&[READ], false);
        s.edit_pmd(0, |_| before.mkspecial());
        none(&[READ, WRITE], true);
        let moving = NonPresent::Migration {
            kind: mm_arch::MigrationKind::Write,
            pfn: folio.head(),
            young: false,
            dirty: false,
        };
        let moving = E::<A>::from_nonpresent(moving, SwapBits::default()).expect("fits");
        s.edit_pmd(0, |_| moving);
        none(&[READ, WRITE], true);
        s.edit_pmd(0, |_| before);
        s.finish();
    }

    /// Rules: GUPF-09, GUPF-12. The whole leaf is given back.
    fn a_pmd_leaf_that_changed_behind_the_grab_is_not_taken<A>() {
        for how in How::FAST {
            let s = Space::<A>::new(RW);
            let folio = s.map_pmd(0);
            let protect = || {
                let vmas = s.mm.read();
                let mut pmd = s.mm.tables().lock_pmd(vmas.stay(), va::<A>(0)).expect("there");
                let mut owed = s.mm.tables().tlb().obligation();
                pmd.wrprotect(&mut owed);
            };
            let at = At::new(Event::Grabs, 1, protect);
            let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&at);
            assert_eq!(s.call_with::<Pin, _, _>(&gup, how, 3, 10, WRITE).result, Ok(0));
            assert_eq!((s.held(folio), s.outstanding()), ((0, 0), 0));
            s.finish();
        }
    }

    /// Rules: GUPF-12, GUPF-30. A table that was cut off is not believed.
    fn a_pmd_entry_that_changed_behind_the_grab_is_noticed<A>() {
        for how in How::FAST {
            let s = Space::<A>::new(RW);
            let folio = s.map(0, 2);
            let saved = std::sync::Mutex::new(None);
            let cut = || {
                let vmas = s.mm.read();
                let mut pmd = s.mm.tables().lock_pmd(vmas.stay(), va::<A>(0)).expect("there");
                let mut owed = s.mm.tables().tlb().obligation();
                *saved.lock().expect("fine") = Some(pmd.swap(E::<A>::NONE, &mut owed));
                owed.already_done();
            };
            let at = At::new(Event::Grabs, 1, cut);
            let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&at);
            assert_eq!(s.call_with::<Get, _, _>(&gup, how, 0, 4, READ).result, Ok(0));
            let table = saved.lock().expect("fine").expect("was there");
            let frame = table.as_table(Level::Pmd).expect("a table");
            let vmas = s.mm.read();
            let mut pmd = s.mm.tables().lock_pmd(vmas.stay(), va::<A>(0)).expect("there");
            assert!(pmd.entry().is_none(), "the walker wrote to the entry");
            let mut owed = s.mm.tables().tlb().obligation();
            // SAFETY: cut off above, and nobody else's.
            unsafe { pmd.link(frame, &mut owed) };
            owed.already_done();
            drop(pmd);
            drop(vmas);
            assert_eq!(s.held(folio), (0, 0));
            s.finish();
        }
    }

    /// Rules: PIN-03, GUPS-28a, GUPF-11.
    fn zero_pages_are_left_to_the_slow_path<A>() {
        let s = Space::<A>::new(RW);
        s.map_zero(0);
        let huge = s.map_huge_zero(per_table::<A>());
        for how in How::FAST {
            for page in [0, per_table::<A>()] {
                assert_eq!(s.call::<Pin>(how, page, 1, READ).result, Ok(0));
                assert_eq!(s.call::<Get>(how, page, 1, READ).result, Ok(0));
            }
        }
        assert_eq!(s.held(huge), (1, 0));
        s.finish();
    }

    /// Rules: GUPF-07, GUPF-16. A folio over two tables is one run of the output.
    fn a_folio_in_two_tables_is_one_run<A>() {
        let s = Space::<A>::new(RW);
        let n = per_table::<A>();
        let folio = s.map(n - 6, 4);
        for (how, grabs) in [(How::FastRun, 4), (How::FastWhole, 2)] {
            let counts = Counts::default();
            let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&counts);
            let mut out = Runs::new();
            assert_eq!(gup.pin_fast_only(va::<A>(n - 6), 16, WRITE, &mut out), Ok(16));
            let runs = out.take();
            assert_eq!(runs, [mm_folio::FolioRun::new(folio.head(), 0, 16)]);
            assert_eq!((counts.of(Event::Walks), counts.of(Event::Grabs)), (2, grabs));
            unpin_runs(s.m.memmap(), runs);
        }
        s.finish();
    }

    /// Rules: GUPF-22, GUPS-13.
    fn a_run_may_cross_mappings_without_a_lock<A>() {
        let s = Space::<A>::new(RW);
        s.map(0, 4);
        let half = mm_arch::VirtRange::units(va::<A>(8), 8, A::PAGE_SHIFT).expect("range");
        madvise(&MapPolicy::default(), &mut s.mm.write(), half, Advice::DontFork).expect("mapped");
        assert_eq!(s.mm.read().len(), 3);
        for (how, grabs, walks) in [(How::FastRun, 2, 1), (How::FastWhole, 1, 1), (How::SlowTable, 2, 2)] {
            let counts = Counts::default();
            let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&counts);
            let taken = s.call_with::<Pin, _, _>(&gup, how, 0, 16, WRITE);
            assert_eq!(taken.result, Ok(16), "{how:?}");
            assert_eq!((counts.of(Event::Grabs), counts.of(Event::Walks)), (grabs, walks));
            s.give_back::<Pin>(&taken);
        }
        s.finish();
    }

    /// Rules: GUPF-23.
    fn small_folios_cost_the_same_with_runs<A>() {
        let s = Space::<A>::new(RW);
        for k in 0..16 {
            s.map(k, 0);
        }
        let [page, run, whole] = How::FAST.map(|how| {
            let counts = Counts::default();
            let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&counts);
            let taken = s.call_with::<Pin, _, _>(&gup, how, 0, 16, WRITE);
            s.give_back::<Pin>(&taken);
            [Event::Grabs, Event::EntriesRead, Event::Atomics, Event::Walks].map(|e| counts.of(e))
        });
        assert_eq!(page, [16, 16, 16, 1]);
        assert_eq!([run, whole], [page; 2]);
        s.finish();
    }

    /// Rules: GUPF-11, GUPF-18. Referenced, but never dirty.
    fn what_is_taken_is_marked_referenced<A>() {
        for how in How::FAST {
            let s = Space::<A>::new(RW);
            let folio = s.map(0, 2);
            let taken = s.call::<Get>(how, 1, 2, WRITE);
            assert_eq!(taken.result, Ok(2));
            assert!(folio.has(FolioFlags::REFERENCED) && !folio.has(FolioFlags::DIRTY));
            s.give_back::<Get>(&taken);
            s.finish();
        }
    }

    /// Rules: PIN-12, GUPF-02. Said before the first attempt, and not by references.
    fn a_space_knows_that_it_may_have_pins<A>() {
        for how in [How::FastRun, How::SlowTable] {
            let s = Space::<A>::new(RW);
            let _ = s.call::<Get>(how, 0, 1, WRITE);
            assert!(!s.mm.has_pinned());
            let failed = s.call::<Pin>(how, 0, 1, WRITE);
            assert!(failed.pages.is_empty() && s.mm.has_pinned(), "{how:?}");
            s.finish();
        }
    }
}

/// Rules: GUPF-29.
#[test]
fn more_pages_than_an_int_counts_can_be_asked_for() {
    let s = Space::<mm_x86::X86_64>::new(RW);
    s.map(0, 2);
    let mut out = Runs::new();
    let nr = i32::MAX as usize + 2;
    let got = Gup::new(&s.mm, &()).pin_fast_only(va::<mm_x86::X86_64>(0), nr, WRITE, &mut out);
    assert_eq!(got, Ok(4));
    unpin_runs(s.m.memmap(), out.take());
    s.finish();
}
