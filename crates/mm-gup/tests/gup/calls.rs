//! Flags and entry points, outputs, and giving pages back.

use crate::common::*;
use mm_arch::{Arch, Entry, Level, Pfn};
use mm_folio::{FolioFlags, FolioRun, Get, PIN_BIAS, Pin, RefKind};
use mm_gup::{
    FaultError, FaultHandler, Gup, GupError, GupErrorKind, GupFault, GupFlags, Pages, Runs, Sink,
    put_pages, put_runs, unpin_pages, unpin_pages_dirty, unpin_run_dirty, unpin_runs,
};
use mm_vma::Platform;

/// One call of an entry point.
type Call<'c, A> = &'c dyn Fn(&Gup<'_, M<A>, Script>, &mut Runs) -> Result<usize, GupError>;

/// Every entry point of one kind.
fn all_entries<A: Arch, K: RefKind, H: FaultHandler<M<A>>>(
    gup: &Gup<'_, M<A>, H>,
    flags: GupFlags,
) -> [Result<usize, GupError>; 4] {
    let (at, out) = (va::<A>(0), &mut Runs::new());
    if K::PINS {
        [
            gup.pin_fast(at, 1, flags, out),
            gup.pin_fast_only(at, 1, flags, out),
            gup.pin(at, 1, flags, out),
            gup.pin_remote(at, 1, flags, out),
        ]
    } else {
        [
            gup.get_fast(at, 1, flags, out),
            gup.get_fast_only(at, 1, flags, out),
            gup.get(at, 1, flags, out),
            gup.get_remote(at, 1, flags, out),
        ]
    }
}

/// Rules: FOLL-01.
#[test]
fn flags_have_the_values_of_the_kernel() {
    let bits = [
        (GupFlags::WRITE, 0),
        (GupFlags::DUMP, 2),
        (GupFlags::FORCE, 3),
        (GupFlags::NOWAIT, 4),
        (GupFlags::NOFAULT, 5),
        (GupFlags::HWPOISON, 6),
        (GupFlags::ANON, 7),
        (GupFlags::LONGTERM, 8),
        (GupFlags::SPLIT_PMD, 9),
        (GupFlags::PCI_P2PDMA, 10),
        (GupFlags::INTERRUPTIBLE, 11),
        (GupFlags::HONOR_NUMA_FAULT, 12),
        (GupFlags::TOUCH, 16),
        (GupFlags::REMOTE, 18),
        (GupFlags::FAST_ONLY, 20),
        (GupFlags::MADV_POPULATE, 22),
    ];
    for (flag, bit) in bits {
        assert_eq!(flag.bits(), 1 << bit, "{flag:?}");
    }
    assert_eq!(GupFlags::all().iter().count(), bits.len());
}

on_all! {
    /// Rules: FOLL-03, FOLL-04, GUPF-01. Nothing is touched then.
    fn flags_that_make_no_sense_are_refused<A>() {
        let s = Space::<A>::new(RW);
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script);
        let refused = |r: &Result<usize, GupError>| {
            r.is_err_and(|e| e.kind == GupErrorKind::Invalid && e.errno() == "EINVAL")
        };
        let mut bad_for_get = vec![GupFlags::LONGTERM, WRITE | GupFlags::LONGTERM];
        let mut bad = vec![GupFlags::LONGTERM | GupFlags::PCI_P2PDMA];
        bad.extend(GupFlags::INTERNAL.iter());
        bad_for_get.extend(&bad);
        for flags in bad_for_get {
            let results = all_entries::<A, Get, _>(&gup, flags);
            assert!(results.iter().all(refused), "{flags:?} {results:?}");
        }
        for flags in bad {
            let results = all_entries::<A, Pin, _>(&gup, flags);
            assert!(results.iter().all(refused), "{flags:?} {results:?}");
        }
        // What only the slow paths know.
        for flags in (GupFlags::all() - GupFlags::FAST - GupFlags::INTERNAL).iter() {
            let flags = flags | GupFlags::NOFAULT;
            let [fast, fast_only, slow, remote] = all_entries::<A, Pin, _>(&gup, flags);
            assert!(refused(&fast) && refused(&fast_only), "{flags:?}");
            assert!(!refused(&slow) && !refused(&remote), "{flags:?}");
        }
        assert!(script.seen::<A>().is_empty());
        s.finish();
    }

    /// Rules: FOLL-04, FOLL-05, PIN-18. The type of the call, not a flag, says
    /// whether pages are got or pinned.
    fn entry_points_say_what_they_add<A>() {
        let s = Space::<A>::new(RW);
        let seen = |call: Call<'_, A>| {
            let script = Script::new::<A>(&[Act::Fail(FaultError::Signal)]);
            let result = call(&Gup::new(&s.mm, &script), &mut Runs::new());
            (result.is_err(), script.seen::<A>().first().map(|(_, f)| *f))
        };
        let local = Some(GupFault::ALLOW_RETRY);
        let remote = Some(GupFault::ALLOW_RETRY | GupFault::REMOTE);
        let at = va::<A>(0);
        assert_eq!(seen(&|g, o| g.get_fast(at, 1, READ, o)), (true, local));
        assert_eq!(seen(&|g, o| g.get_fast_only(at, 1, READ, o)), (false, None));
        assert_eq!(seen(&|g, o| g.get(at, 1, READ, o)), (true, local));
        assert_eq!(seen(&|g, o| g.get_remote(at, 1, READ, o)), (true, remote));
        assert_eq!(seen(&|g, o| g.pin_fast(at, 1, READ, o)), (true, local));
        assert_eq!(seen(&|g, o| g.pin_fast_only(at, 1, READ, o)), (false, None));
        assert_eq!(seen(&|g, o| g.pin(at, 1, READ, o)), (true, local));
        assert_eq!(seen(&|g, o| g.pin_remote(at, 1, READ, o)), (true, remote));
        s.finish();
    }

    /// Rules: PIN-01, PIN-02, PIN-09, PIN-10.
    fn pins_are_counted_where_there_is_room<A>() {
        for how in How::FAST.into_iter().chain(How::SLOW) {
            let s = Space::<A>::new(RW);
            let small = s.map(0, 0);
            let large = s.map(4, 2);
            let one = s.call::<Pin>(how, 0, 1, WRITE);
            assert_eq!((small.refcount(), small.pincount()), (1 + PIN_BIAS as i32, 0));
            let three = s.call::<Pin>(how, 5, 3, WRITE);
            assert_eq!((large.refcount(), large.pincount()), (4 + 3, 3));
            assert!(small.maybe_dma_pinned() && large.maybe_dma_pinned());
            s.give_back::<Pin>(&one);
            s.give_back::<Pin>(&three);
            assert!(!small.maybe_dma_pinned() && !large.maybe_dma_pinned());
            let got = s.call::<Get>(how, 0, 8, WRITE);
            assert_eq!((got.pages.len(), small.refcount()), (1, 2), "pages 1 to 3 are holes");
            s.give_back::<Get>(&got);
            s.finish();
        }
    }

    /// Rules: PIN-16, GUPF-15, GUPS-24.
    fn what_is_pinned_is_exclusive<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map(0, 3);
            for k in [1, 4, 5] {
                s.share(k);
            }
            let script = Script::new::<A>(&[]);
            let gup = Gup::new(&s.mm, &script).with_policy(how.policy());
            for flags in [READ, WRITE] {
                let taken = s.call_with::<Pin, _, _>(&gup, how, 0, 8, flags);
                assert_eq!(taken.result, Ok(8));
                assert!(taken.pages.iter().all(|p| s.m.memmap().page_exclusive(*p)));
                s.give_back::<Pin>(&taken);
            }
            s.finish();
        }
    }

    /// Rules: PIN-13, PIN-17. In any order, page by page or in runs.
    fn pins_come_back_in_any_grouping<A>() {
        let s = Space::<A>::new(RW);
        let a = s.map(0, 2);
        let b = s.map(4, 0);
        let taken = s.call::<Pin>(How::FastRun, 0, 5, WRITE);
        let p = &taken.pages;
        assert_eq!((s.outstanding(), s.held(a)), (5, (4, 4)));
        unpin_pages(s.m.memmap(), &[p[0], p[1], p[4], p[2]]);
        assert_eq!((s.outstanding(), s.held(a), s.held(b)), (1, (1, 1), (0, 0)));
        unpin_pages(s.m.memmap(), &[]);
        unpin_pages(s.m.memmap(), &p[3..4]);
        // A leaf that was pinned as a whole.
        let n = per_table::<A>();
        let huge = s.map_pmd(n);
        let taken = s.call::<Pin>(How::FastRun, n, n as usize, WRITE);
        assert_eq!((s.outstanding(), huge.pincount()), (n, n as u32));
        for page in &taken.pages {
            unpin_pages(s.m.memmap(), core::slice::from_ref(page));
        }
        assert_eq!((s.outstanding(), huge.pincount()), (0, 0));
        s.finish();
    }

    /// Rules: PIN-13, PIN-14.
    fn pages_may_come_back_dirty<A>() {
        let s = Space::<A>::new(RW);
        let folios = [s.map(0, 2), s.map(4, 0)];
        let taken = s.call::<Pin>(How::FastRun, 0, 5, WRITE);
        assert!(folios.iter().all(|f| !f.has(FolioFlags::DIRTY)));
        unpin_pages_dirty(s.m.memmap(), &taken.pages);
        assert!(folios.iter().all(|f| f.has(FolioFlags::DIRTY) && !f.has(FolioFlags::LOCKED)));
        // Dirty already: the lock is not asked for.
        let _locked = folios[0].lock();
        let mut out = Runs::new();
        let got = Gup::new(&s.mm, &()).pin_fast(va::<A>(1), 2, WRITE, &mut out);
        assert_eq!(got, Ok(2));
        for run in out.take() {
            unpin_run_dirty(s.m.memmap(), run);
        }
        drop(_locked);
        s.finish();
    }

    /// Rules: GUPF-07, GUPF-16.
    fn runs_of_the_output_are_merged_and_kept_in_order<A>() {
        let s = Space::<A>::new(RW);
        let n = per_table::<A>();
        let large = s.map(n - 8, 4);
        let small = s.map(n + 8, 0);
        let whole = FolioRun::new(large.head(), 0, 16);
        for how in How::FAST.into_iter().chain(How::SLOW) {
            let gup = Gup::new(&s.mm, &()).with_policy(how.policy());
            let mut out = Runs::new();
            let got = how.call::<Get, A, _, _>(&gup, va::<A>(n - 8), 17, WRITE, &mut out);
            assert_eq!((got, out.pages()), (Ok(17), 17), "{how:?}");
            assert_eq!(out.runs(), [whole, FolioRun::new(small.head(), 0, 1)], "{how:?}");
            // Again into the same output: a page that comes twice is no continuation.
            let got = how.call::<Get, A, _, _>(&gup, va::<A>(n + 8), 1, WRITE, &mut out);
            assert_eq!((got, out.pages(), out.runs().len()), (Ok(1), 18, 3));
            // Backwards, and only in part.
            out.give_back::<Get, _>(s.m.memmap(), 10);
            assert_eq!((out.pages(), s.held(large), s.held(small)), (10, (10, 0), (0, 0)));
            assert_eq!(out.runs(), [FolioRun::new(large.head(), 0, 10)]);
            put_runs(s.m.memmap(), out.take());
            assert_eq!((out.pages(), s.held(large)), (0, (0, 0)));
        }
        s.finish();
    }

    /// Rules: GUPS-09, GUPS-16.
    fn an_output_that_is_too_small_is_refused<A>() {
        let s = Space::<A>::new(RW);
        let folio = s.map(0, 2);
        let mut room = [Pfn::new(0); 3];
        for slow in [false, true] {
            let gup = Gup::new(&s.mm, &());
            let mut out = Pages::new(&mut room);
            let error = if slow {
                gup.get(va::<A>(0), 4, WRITE, &mut out)
            } else {
                gup.get_fast(va::<A>(0), 4, WRITE, &mut out)
            };
            assert_eq!(error.expect_err("no room").kind, GupErrorKind::NoMemory);
            assert_eq!((out.pages(), s.held(folio)), (0, (0, 0)));
        }
        // Calls append.
        let gup = Gup::new(&s.mm, &());
        let mut out = Pages::new(&mut room);
        assert_eq!(gup.get(va::<A>(2), 1, WRITE, &mut out), Ok(1));
        assert_eq!(gup.get_fast(va::<A>(0), 2, WRITE, &mut out), Ok(2));
        assert_eq!(out.filled(), [folio.page(2), folio.page(0), folio.page(1)]);
        put_pages(s.m.memmap(), out.filled());
        s.finish();
    }

    /// Rules: PIN-17. Of what was acquired, that which is not released is held.
    fn the_statistics_balance_at_every_moment<A>() {
        let s = Space::<A>::new(RW);
        for k in 0..4 {
            s.map(4 * k, [0, 2][k as usize % 2]);
        }
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script);
        let mut held: Vec<(u64, Vec<FolioRun>)> = Vec::new();
        for round in 0..12u64 {
            let mut out = Runs::new();
            let (page, nr) = (round % 5, 1 + round as usize % 9);
            let flags = if round % 3 == 0 { READ } else { WRITE };
            let got = if round % 2 == 0 {
                gup.pin_fast(va::<A>(page), nr, flags, &mut out)
            } else {
                gup.pin(va::<A>(page), nr, flags, &mut out)
            };
            assert_eq!(got, Ok(nr));
            held.push((nr as u64, out.take()));
            if round % 4 == 3 {
                let (_, runs) = held.remove(0);
                unpin_runs(s.m.memmap(), runs);
            }
            assert_eq!(s.outstanding(), held.iter().map(|(nr, _)| nr).sum::<u64>());
        }
        for (_, runs) in held {
            unpin_runs(s.m.memmap(), runs);
        }
        assert!(s.pte(0).is_present(Level::Pte));
        s.finish();
    }
}

/// Errors say what, where and why.
#[test]
fn errors_explain_themselves() {
    let s = Space::<mm_x86::X86_64>::new(RW);
    let error = Gup::new(&s.mm, &()).pin(va::<mm_x86::X86_64>(3), 1, READ, &mut Runs::new());
    let error = error.expect_err("a hole");
    let text = error.to_string();
    assert!(text.starts_with("EFAULT at ") && text.contains("0x"), "{text}");
    s.finish();
}
