//! Facts of folios that decide whether they may be taken, and moving those that a
//! pin without end must not hold.

use crate::common::*;
use mm_arch::Arch;
use mm_folio::{FolioFlags, FolioRef, Get, Pin};
use mm_gup::{Gup, GupErrorKind, GupFlags, MigrateError, Migrator, Runs, Sink, unpin_runs};
use mm_vma::{Event, Platform};
use std::sync::Mutex;

const LONG: GupFlags = GupFlags::LONGTERM;
const STUCK: FolioFlags = FolioFlags::NO_LONGTERM;

/// What the test double does with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    /// Moves the folios.
    All,
    /// Leaves them, as if others used them.
    None,
    /// Moves all but the second, which somebody else has taken for himself.
    ButSecond,
    /// Leaves them, and a fatal signal comes.
    Kill,
    Fail(MigrateError),
}

/// Moves the folios of a test's space: maps new ones in their place.
struct Mover<'s, A: Arch> {
    space: &'s Space<A>,
    acts: Mutex<Vec<Move>>,
    /// Orders of the folios of each call.
    calls: Mutex<Vec<Vec<u32>>>,
}

impl<'s, A: Arch> Mover<'s, A> {
    fn new(space: &'s Space<A>, acts: &[Move]) -> Self {
        let acts = acts.iter().rev().copied().collect();
        Mover { space, acts: Mutex::new(acts), calls: Mutex::default() }
    }
    fn calls(&self) -> Vec<Vec<u32>> {
        self.calls.lock().expect("not poisoned").clone()
    }
}

impl<A: Arch> Migrator<M<A>> for Mover<'_, A> {
    fn migrate(&self, folios: Vec<FolioRef<'_, M<A>, Get>>) -> Result<(), MigrateError> {
        let orders = folios.iter().map(|f| f.folio().order()).collect();
        self.calls.lock().expect("not poisoned").push(orders);
        // No lock is held, and none of these is pinned: they could not move.
        drop(self.space.mm.write());
        assert!(folios.iter().all(|f| f.folio().pincount() == 0 && !f.folio().maybe_dma_pinned()));
        let act = self.acts.lock().expect("not poisoned").pop().unwrap_or(Move::All);
        match act {
            Move::None => return Ok(()),
            Move::Kill => {
                self.space.m.interrupt().set_pending(true);
                return Ok(());
            }
            Move::Fail(e) => return Err(e),
            Move::All | Move::ButSecond => {}
        }
        for (k, held) in folios.iter().enumerate() {
            if act == Move::ButSecond && k == 1 {
                continue;
            }
            let folio = held.folio();
            assert_eq!(self.space.held(folio), (1, 0), "somebody else holds it");
            let at = (0..64).find(|page| self.space.pfn(*page) == folio.head()).expect("mapped");
            let (order, nr) = (folio.order(), u64::from(folio.nr_pages()));
            (at..at + nr).for_each(|page| self.space.unmap(page));
            self.space.map(at, order);
        }
        Ok(())
    }
}

/// A small folio, a folio of four that must move, a small one that must, a small one.
fn mixed<A: Arch>() -> Space<A> {
    let s = Space::<A>::new(RW);
    s.map(0, 0);
    s.map(1, 2).set_flag(STUCK);
    s.map(5, 0).set_flag(STUCK);
    s.map(6, 0);
    s
}

on_all! {
    /// Rules: LT-01, LT-02, LT-03, LT-04, PIN-08, GUPF-24, FOLL-02.
    fn what_must_move_is_moved_before_it_is_pinned<A>() {
        for policy in How::FAST.into_iter().chain(How::SLOW).map(How::policy) {
            for fast in [false, true] {
                let s = mixed::<A>();
                let before: Vec<_> = (0..7).map(|p| s.pfn(p)).collect();
                let mover = Mover::new(&s, &[]);
                let gup = Gup::new(&s.mm, &()).with_policy(policy).with_migrator(&mover);
                let mut out = Runs::new();
                let got = if fast {
                    gup.pin_fast(va::<A>(0), 7, WRITE | LONG, &mut out)
                } else {
                    gup.pin(va::<A>(0), 7, WRITE | LONG, &mut out)
                };
                assert_eq!((got, s.outstanding()), (Ok(7), 7));
                assert_eq!(mover.calls(), [vec![2, 0]], "each folio once");
                let pages: Vec<_> = out.runs().iter().flat_map(|r| r.pages()).collect();
                assert_eq!(pages, (0..7).map(|p| s.pfn(p)).collect::<Vec<_>>());
                let moved: Vec<_> = (0..7).map(|p| s.pfn(p) != before[p as usize]).collect();
                assert_eq!(moved, [false, true, true, true, true, true, false]);
                unpin_runs(s.m.memmap(), out.take());
                s.finish();
            }
        }
    }

    /// Rules: LT-01, LT-03. Never with a part of the pages.
    fn without_a_place_to_move_to_nothing_stays_pinned<A>() {
        for how in How::SLOW {
            let s = mixed::<A>();
            let taken = s.call::<Pin>(how, 0, 7, WRITE | LONG);
            assert_eq!((taken.result, s.outstanding()), (Err(GupErrorKind::NoMemory), 0));
            for (act, kind, errno) in [
                (MigrateError::NoMemory, GupErrorKind::NoMemory, "ENOMEM"),
                (MigrateError::Busy, GupErrorKind::Busy, "EBUSY"),
            ] {
                let mover = Mover::new(&s, &[Move::Fail(act)]);
                let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).with_migrator(&mover);
                let error = gup.pin(va::<A>(0), 7, WRITE | LONG, &mut Runs::new());
                let error = error.expect_err("stuck");
                assert_eq!((error.kind, error.errno(), s.outstanding()), (kind, errno, 0));
            }
            // Without the flag nobody asks.
            let taken = s.call::<Pin>(how, 0, 7, WRITE);
            assert_eq!(taken.result, Ok(7));
            s.give_back::<Pin>(&taken);
            s.finish();
        }
    }

    /// Rules: LT-01, LT-02, GUPS-02.
    fn what_is_in_use_is_asked_for_again<A>() {
        let s = mixed::<A>();
        let mover = Mover::new(&s, &[Move::None, Move::None]);
        let gup = Gup::new(&s.mm, &()).with_migrator(&mover);
        let mut out = Runs::new();
        assert_eq!(gup.pin(va::<A>(0), 7, WRITE | LONG, &mut out), Ok(7));
        assert_eq!(mover.calls(), [vec![2, 0], vec![2, 0], vec![2, 0]]);
        unpin_runs(s.m.memmap(), out.take());
        // Nothing is in the way any more.
        assert_eq!(gup.pin(va::<A>(0), 7, WRITE | LONG, &mut out), Ok(7));
        assert_eq!(mover.calls().len(), 3);
        unpin_runs(s.m.memmap(), out.take());
        s.finish();

        let s = mixed::<A>();
        let mover = Mover::new(&s, &[Move::Kill]);
        let gup = Gup::new(&s.mm, &()).with_migrator(&mover);
        let error = gup.pin(va::<A>(0), 7, WRITE | LONG, &mut out).expect_err("killed");
        assert_eq!((error.kind, out.pages(), s.outstanding()), (GupErrorKind::Interrupted, 0, 0));
        s.m.interrupt().set_pending(false);
        s.finish();
    }

    /// What is forbidden is counted, not what could be moved: with a page left in the way there is
    /// no pin, however few of them can be had to move.
    ///
    /// Rules: LT-02, LT-03. Cases: MM-030.
    fn a_page_that_somebody_else_has_is_still_in_the_way<A>() {
        for how in How::SLOW {
            for stuck in [Move::None, Move::Fail(MigrateError::Busy)] {
                let s = Space::<A>::new(RW);
                for page in 0..3 {
                    s.map(page, 0).set_flag(STUCK);
                }
                let mover = Mover::new(&s, &[Move::ButSecond, stuck]);
                let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).with_migrator(&mover);
                let mut out = Runs::new();
                let got = gup.pin(va::<A>(0), 3, WRITE | LONG, &mut out);
                if stuck == Move::None {
                    assert_eq!((got, mover.calls()), (Ok(3), vec![vec![0; 3], vec![0], vec![0]]));
                    let may = |p: &u64| s.m.memmap().folio(s.pfn(*p)).is_longterm_pinnable();
                    assert_eq!((0..3).filter(may).count(), 3);
                    unpin_runs(s.m.memmap(), out.take());
                } else {
                    assert_eq!(got.expect_err("one is in the way").kind, GupErrorKind::Busy);
                    assert_eq!((out.pages(), mover.calls()), (0, vec![vec![0; 3], vec![0]]));
                }
                assert_eq!(s.outstanding(), 0);
                s.finish();
            }
        }
    }

    /// Rules: LT-04, PIN-05, PIN-08, GUPF-04.
    fn the_fast_path_leaves_what_must_move<A>() {
        for how in How::FAST {
            let s = mixed::<A>();
            let taken = s.call::<Pin>(how, 0, 7, WRITE | LONG);
            assert_eq!(taken.result, Ok(1), "{how:?}");
            assert_eq!(s.held(s.m.memmap().folio(s.pfn(1))), (0, 0));
            s.give_back::<Pin>(&taken);
            let taken = s.call::<Pin>(how, 1, 6, WRITE | LONG);
            assert_eq!(taken.result, Ok(0));
            // What it had stays if the rest fails.
            let gup = Gup::new(&s.mm, &()).with_policy(how.policy());
            let mut out = Runs::new();
            assert_eq!(gup.pin_fast(va::<A>(0), 7, WRITE | LONG, &mut out), Ok(1));
            unpin_runs(s.m.memmap(), out.take());
            // By a leaf.
            let n = per_table::<A>();
            s.map_pmd(n).set_flag(STUCK);
            assert_eq!(s.call::<Pin>(how, n, 3, WRITE | LONG).result, Ok(0));
            let taken = s.call::<Pin>(how, n, 3, WRITE);
            assert_eq!(taken.result, Ok(3));
            s.give_back::<Pin>(&taken);
            s.finish();
        }
    }

    /// The zero page is nobody's to move.
    ///
    /// Rules: PIN-03, PIN-08, GUPS-28a. A read-only mapping: no store breaks the sharing.
    fn the_zero_page_may_be_pinned_for_ever<A>() {
        let s = Space::<A>::new(RW);
        s.map(0, 0);
        let zero = s.m.memmap().folio(s.m.zero_page());
        zero.set_flag(STUCK);
        assert!(zero.is_longterm_pinnable());
        let folio = s.m.memmap().folio(s.pfn(0));
        assert!(folio.is_longterm_pinnable());
        folio.set_flag(STUCK);
        assert!(!folio.is_longterm_pinnable());
        folio.clear_flag(STUCK);
        zero.clear_flag(STUCK);
        s.finish();
    }

    /// Facts by flags: who is refused, on which path, and as what.
    ///
    /// Rules: GUPF-14, LT-05, PIN-04, FOLL-02.
    fn facts_of_a_folio_refuse<A>() {
        use GupErrorKind::{Fault, Peer};
        let peer = GupFlags::PCI_P2PDMA;
        let table = [
            (FolioFlags::empty(), WRITE | LONG, None),
            (FolioFlags::SECRET, READ, Some(Fault)),
            (FolioFlags::SECRET, WRITE, Some(Fault)),
            (FolioFlags::SECRET, WRITE | peer, Some(Fault)),
            (FolioFlags::PEER, WRITE, Some(Peer)),
            (FolioFlags::PEER, READ, Some(Peer)),
            (FolioFlags::PEER, WRITE | peer, None),
            (FolioFlags::PEER.union(FolioFlags::SECRET), READ, Some(Fault)),
        ];
        for (facts, flags, refused) in table {
            for how in How::FAST.into_iter().chain(How::SLOW) {
                for order in [0, 2] {
                    let s = Space::<A>::new(RW);
                    s.map(0, 0);
                    let folio = s.map(1, order);
                    folio.set_flag(facts);
                    let n = 1 + (1 << order);
                    let taken = s.call::<Pin>(how, 0, n, flags);
                    let expected = if refused.is_some() { 1 } else { n };
                    assert_eq!(taken.result, Ok(expected), "{how:?} {facts:?} {flags:?}");
                    s.give_back::<Pin>(&taken);
                    let alone = s.call::<Pin>(how, 1, 1, flags);
                    let expected = match refused {
                        None => Ok(1),
                        Some(_) if how.is_fast() => Ok(0),
                        Some(kind) => Err(kind),
                    };
                    assert_eq!(alone.result, expected, "{how:?} {facts:?} {flags:?}");
                    s.give_back::<Pin>(&alone);
                    s.finish();
                }
            }
        }
        assert_eq!(mm_gup::GupError { va: va::<A>(0), kind: Peer }.errno(), "EREMOTEIO");
    }

    /// A folio that stops being pinnable for ever between the grab and the look at it.
    ///
    /// Rules: P-RACE-23, PIN-05.
    fn a_fact_that_changes_behind_the_grab_is_seen<A>() {
        for how in How::FAST {
            for order in [0, 2] {
                let s = Space::<A>::new(RW);
                let folio = s.map(0, order);
                let isolate = At::new(Event::Grabs, 1, || {
                    folio.set_flag(STUCK);
                });
                let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&isolate);
                let taken = s.call_with::<Pin, _, _>(&gup, how, 0, 1, WRITE | LONG);
                assert_eq!((taken.result, s.held(folio)), (Ok(0), (0, 0)), "{how:?}");
                s.finish();
            }
        }
    }
}
