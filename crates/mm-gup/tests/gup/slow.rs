//! The path under the mmap lock: what it takes, what it asks of the fault
//! handler, and what it says when it must stop.

use crate::common::*;
use mm_arch::{Arch, Entry, Level, NonPresent, SwapBits};
use mm_folio::{FolioFlags, FolioRun, FolioSpace, Get, MemMap, Pin, RefKind};
use mm_gup::{FaultError, Gup, GupErrorKind, GupFault, GupFlags, Runs, Sink, put_runs, unpin_runs};
use mm_map::{Advice, MapPolicy, exit, fork, madvise};
use mm_pgtable::TableDesc;
use mm_sync::DefaultLock;
use mm_vma::{Event, Platform, VmaFlags};

const AGAIN: GupFault = GupFault::ALLOW_RETRY;
const STORE: GupFault = GupFault::WRITE.union(AGAIN);
const UNSHARE: GupFault = GupFault::UNSHARE.union(AGAIN);

/// One call with a script: what it gave, and the faults.
fn scripted<A: Arch, K: RefKind>(
    s: &Space<A>,
    how: How,
    page: u64,
    nr: usize,
    flags: GupFlags,
    acts: &[Act],
) -> (Taken, Vec<(u64, GupFault)>) {
    let script = Script::new::<A>(acts);
    let gup = Gup::new(&s.mm, &script).with_policy(how.policy());
    let taken = s.call_with::<K, _, _>(&gup, how, page, nr, flags);
    (taken, script.seen::<A>())
}
/// Whether one page can be had without a fault, and what is wrong if not.
fn follows<A: Arch>(s: &Space<A>, page: u64, flags: GupFlags) -> Result<usize, GupErrorKind> {
    let results = How::SLOW.map(|how| {
        let taken = s.call::<Get>(how, page, 1, flags);
        s.give_back::<Get>(&taken);
        taken.result
    });
    assert!(results.iter().all(|r| *r == results[0]), "{results:?}");
    results[0]
}

/// An output that no page-table lock may be held for.
struct Unlocked<'t> {
    descs: Vec<&'t TableDesc<DefaultLock>>,
    out: Runs,
    pushes: usize,
}
impl Sink for Unlocked<'_> {
    fn push(&mut self, run: FolioRun) {
        for desc in &self.descs {
            assert!(desc.lock().try_lock().is_some(), "filled under a page-table lock");
        }
        self.pushes += 1;
        self.out.push(run);
    }
    fn pages(&self) -> usize {
        self.out.pages()
    }
    fn each_run<F: FolioSpace>(&self, map: &MemMap<F>, from: usize, f: impl FnMut(FolioRun)) {
        self.out.each_run(map, from, f);
    }
    fn truncate(&mut self, keep: usize) {
        self.out.truncate(keep);
    }
    fn reserve(&mut self, nr: usize) -> usize {
        self.out.reserve(nr)
    }
}

on_all! {
    /// Rules: GUPS-07, GUPS-09, GUPS-13.
    fn an_error_behind_the_first_page_is_met_by_the_next_call<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            let folio = s.map(0, 4);
            s.unmap(5);
            let taken = s.call::<Pin>(how, 0, 10, WRITE);
            assert_eq!(taken.result, Ok(5), "{how:?}");
            assert_eq!(s.held(folio), (5, 5));
            s.give_back::<Pin>(&taken);
            let error = Gup::new(&s.mm, &()).pin(va::<A>(5), 5, WRITE, &mut Runs::new());
            let error = error.expect_err("a hole");
            assert_eq!((error.va, error.errno()), (va::<A>(5), "EFAULT"));
            s.finish();
        }
    }

    /// Rules: GUPS-13, GUPS-14, SWP-07.
    fn an_entry_that_is_not_present_ends_a_run<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            let folio = s.map(0, 2);
            let before = s.pte(2);
            let gone = NonPresent::Hwpoison(folio.page(2));
            s.set(2, E::<A>::from_nonpresent(gone, SwapBits::default()).expect("fits"));
            let taken = s.call::<Get>(how, 0, 4, READ);
            assert_eq!(taken.result, Ok(2));
            s.give_back::<Get>(&taken);
            assert_eq!(follows(&s, 2, READ), Err(GupErrorKind::Fault));
            s.set(2, before);
            s.finish();
        }
    }

    /// Rules: GUPS-01, GUPS-02, GUPS-03, GUPS-05, GUPS-31.
    fn a_dropped_lock_is_taken_again_for_the_page_that_faulted<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map(0, 0);
            s.map(1, 0);
            let acts = [Act::Resolve, Act::Retry, Act::Completed, Act::Resolve];
            let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 5, WRITE, &acts);
            assert_eq!(taken.result, Ok(5), "{how:?}");
            assert_eq!(seen, [(2, STORE), (3, STORE), (3, STORE | GupFault::TRIED), (4, STORE)]);
            assert_eq!(taken.pages, (0..5).map(|k| s.pfn(k)).collect::<Vec<_>>());
            assert_eq!(s.outstanding(), 5);
            s.give_back::<Pin>(&taken);
            // The lock is free.
            drop(s.mm.write());
            s.finish();
        }
    }

    /// Rules: GUPS-05, GUPS-24, GUPS-27.
    fn a_shared_page_is_unshared_once_before_it_is_pinned_for_reading<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map(0, 0);
            let old = s.pfn(0);
            let child = fork(&MapPolicy::default(), &s.mm).expect("memory");
            let (taken, seen) = scripted::<A, Get>(&s, how, 0, 1, READ, &[]);
            assert_eq!((taken.pages.as_slice(), seen.as_slice()), ([old].as_slice(), [].as_slice()));
            s.give_back::<Get>(&taken);

            let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 1, READ, &[]);
            assert_eq!(seen, [(0, UNSHARE)]);
            let new = s.pfn(0);
            assert_eq!(taken.pages, [new]);
            assert!(new != old && s.m.memmap().page_exclusive(new));
            assert!(!s.pte(0).is_writable(Level::Pte));
            s.give_back::<Pin>(&taken);
            exit(&MapPolicy::default(), &child);
            s.finish();
        }
    }

    /// Rules: GUPS-05, GUPS-17, GUPS-18, GUPS-25. Marks 1110 1111: three pages, one
    /// fault, the rest.
    fn a_run_for_reading_stops_to_unshare<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            let folio = s.map(0, 3);
            for k in 0..8 {
                s.edit(k, E::<A>::wrprotect);
            }
            s.share(3);
            let alone = s.call::<Pin>(how, 0, 8, READ);
            assert_eq!(alone.result, Ok(3), "{how:?}");
            s.give_back::<Pin>(&alone);
            let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 8, READ, &[]);
            assert_eq!((taken.result, seen.as_slice()), (Ok(8), [(3, UNSHARE)].as_slice()));
            // The folio has pins by then: the page was copied.
            assert!(!folio.contains(s.pfn(3)));
            assert!(taken.pages.iter().all(|p| s.m.memmap().page_exclusive(*p)));
            s.give_back::<Pin>(&taken);
            s.finish();
        }
    }

    /// Rules: GUPS-30, GUPS-31, FOLL-02.
    fn what_a_fault_is_for_is_said<A>() {
        let s = Space::<A>::new(RW);
        let one = |flags: GupFlags, page: u64| {
            let (taken, seen) = scripted::<A, Pin>(&s, How::SlowTable, page, 1, flags, &[]);
            s.give_back::<Pin>(&taken);
            assert_eq!(taken.result, Ok(1));
            seen.iter().map(|(_, f)| *f).collect::<Vec<_>>()
        };
        assert_eq!(one(WRITE, 0), [STORE]);
        assert_eq!(one(READ, 1), [AGAIN]);
        assert_eq!(one(WRITE | GupFlags::NOWAIT, 2), [STORE | GupFault::NOWAIT]);
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script);
        let mut out = Runs::new();
        assert_eq!(gup.get_remote(va::<A>(3), 1, READ, &mut out), Ok(1));
        assert_eq!(gup.pin_remote(va::<A>(3), 1, WRITE, &mut Runs::new()).map(|_| ()), Ok(()));
        assert_eq!(script.seen::<A>()[0], (3, AGAIN | GupFault::REMOTE));
        assert_eq!(script.seen::<A>()[1], (3, STORE | GupFault::REMOTE));
        put_runs(s.m.memmap(), out.take());
        mm_gup::unpin_pages(s.m.memmap(), &[s.pfn(3)]);
        s.finish();
    }

    /// Rules: GUPS-31.
    fn a_fault_that_fails_says_why<A>() {
        let s = Space::<A>::new(RW);
        let one = |act: Act, flags: GupFlags| {
            How::SLOW.map(|how| {
                let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 2, flags, &[act]);
                assert_eq!((taken.pages.len(), seen.len()), (0, 1));
                taken.result.expect_err("failed")
            })
        };
        use GupErrorKind::{Again, Fault, NoMemory, Poisoned};
        assert_eq!(one(Act::Fail(FaultError::NoMemory), WRITE), [NoMemory; 3]);
        assert_eq!(one(Act::Fail(FaultError::Signal), WRITE), [Fault; 3]);
        assert_eq!(one(Act::Fail(FaultError::Poisoned), WRITE), [Fault; 3]);
        let told = WRITE | GupFlags::HWPOISON;
        assert_eq!(one(Act::Fail(FaultError::Poisoned), told), [Poisoned; 3]);
        assert_eq!(one(Act::Wait, WRITE | GupFlags::NOWAIT), [Again; 3]);
        // Behind the first page nothing is said.
        let acts = [Act::Resolve, Act::Fail(FaultError::NoMemory)];
        let (taken, _) = scripted::<A, Pin>(&s, How::SlowTable, 0, 2, WRITE, &acts);
        assert_eq!(taken.result, Ok(1));
        s.give_back::<Pin>(&taken);
        s.finish();
    }

    /// Rules: GUPS-30.
    fn nofault_does_not_fault<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map(0, 0);
            let flags = READ | GupFlags::NOFAULT;
            let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 3, flags, &[]);
            assert_eq!((taken.result, seen.len()), (Ok(1), 0));
            s.give_back::<Pin>(&taken);
            // Not even to unshare.
            s.share(0);
            let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 3, flags, &[]);
            assert_eq!((taken.result, seen.len()), (Err(GupErrorKind::Fault), 0));
            s.finish();
        }
    }

    /// Rules: GUPS-02, GUPS-04.
    fn a_fatal_signal_ends_the_call<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map(0, 0);
            s.m.interrupt().set_pending(true);
            let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 2, WRITE, &[]);
            assert_eq!((taken.result, seen.len()), (Err(GupErrorKind::Interrupted), 0));
            s.m.interrupt().set_pending(false);
            // It comes while the second page is faulted in, with the lock dropped.
            let kill = At::new(Event::GupFaults, 1, || s.m.interrupt().set_pending(true));
            let script = Script::new::<A>(&[Act::Retry]);
            let gup = Gup::new(&s.mm, &script).with_policy(how.policy()).observed_by(&kill);
            let taken = s.call_with::<Pin, _, _>(&gup, how, 0, 3, WRITE);
            assert_eq!((taken.result, script.seen::<A>().len()), (Ok(1), 1));
            s.give_back::<Pin>(&taken);
            s.m.interrupt().set_pending(false);
            s.finish();
        }
    }

    /// Rules: GUPS-12.
    fn the_mapping_must_allow_it<A>() {
        use VmaFlags as V;
        let no = Err(GupErrorKind::Fault);
        let force = GupFlags::FORCE;
        // What is added to a private writable mapping, what is taken away, flags, result.
        let table = [
            (V::empty(), V::empty(), WRITE, Ok(1)),
            (V::PFNMAP, V::empty(), READ, no),
            (V::IO, V::empty(), READ | force, no),
            (V::SECRETMEM, V::empty(), READ, no),
            (V::empty(), V::empty(), GupFlags::ANON, Ok(1)),
            (V::empty(), V::WRITE, WRITE, no),
            (V::empty(), V::WRITE, READ, Ok(1)),
            (V::empty(), V::WRITE.union(V::MAYWRITE), WRITE | force, no),
            (V::SHARED, V::WRITE, WRITE | force, no),
            (V::SHADOW_STACK, V::empty(), WRITE, no),
            (V::SHADOW_STACK, V::empty(), WRITE | force, Ok(1)),
            (V::empty(), V::READ, READ, no),
            (V::empty(), V::READ, WRITE, Ok(1)),
            (V::empty(), V::READ, READ | force, Ok(1)),
            (V::empty(), V::READ.union(V::MAYREAD), READ | force, no),
        ];
        let s = Space::<A>::new(RW);
        s.map(0, 0);
        let vm = s.mm.read().find(va::<A>(0)).expect("mapped").flags();
        for (add, remove, flags, expected) in table {
            s.edit_vma(|_| (vm | add) - remove);
            assert_eq!(follows(&s, 0, flags), expected, "+{add:?} -{remove:?} {flags:?}");
        }
        s.edit_vma(|_| vm);
        s.finish();
    }

    /// Rules: GUPS-22, GUPS-23, P-RACE-22.
    fn a_forced_write_follows_only_an_exclusive_page<A>() {
        let forced = WRITE | GupFlags::FORCE;
        for how in How::SLOW {
            let s = Space::<A>::new(RO);
            let folio = s.map(0, 2);
            let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 4, forced, &[]);
            assert_eq!((taken.result, seen.len()), (Ok(4), 0));
            assert_eq!(s.held(folio), (4, 4));
            s.give_back::<Pin>(&taken);
            s.share(2);
            assert_eq!(s.call::<Get>(how, 2, 1, forced).result, Err(GupErrorKind::Fault));
            let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 4, forced, &[]);
            assert_eq!((taken.result, seen.as_slice()), (Ok(4), [(2, STORE)].as_slice()));
            assert!(s.m.memmap().page_exclusive(s.pfn(2)));
            assert!(!s.pte(2).is_writable(Level::Pte));
            s.give_back::<Pin>(&taken);
            s.finish();
            // A writable mapping gets a writable entry instead.
            let s = Space::<A>::new(RW);
            s.map(0, 0);
            s.edit(0, E::<A>::wrprotect);
            let (taken, seen) = scripted::<A, Pin>(&s, how, 0, 1, forced, &[]);
            assert_eq!((taken.result, seen.as_slice()), (Ok(1), [(0, STORE)].as_slice()));
            s.give_back::<Pin>(&taken);
            s.finish();
        }
    }

    /// Rules: GUPS-22. Trackers must hear of a forced write.
    fn a_forced_write_does_not_pass_trackers<A>() {
        let forced = WRITE | GupFlags::FORCE;
        let s = Space::<A>::new(VmaFlags::READ);
        s.edit_vma(|vm| vm - VmaFlags::SOFTDIRTY);
        s.map(0, 0);
        assert_eq!(follows(&s, 0, forced), Ok(1), "soft-dirty already");
        s.edit(0, E::<A>::clear_soft_dirty);
        let tracked = A::HAS_SOFT_DIRTY;
        assert_eq!(follows(&s, 0, forced).is_err(), tracked);
        s.edit(0, |e| e.mksoft_dirty().mkuffd_wp());
        assert_eq!(follows(&s, 0, forced), Ok(1), "nobody registered");
        s.edit_vma(|vm| vm | VmaFlags::UFFD_WP);
        assert_eq!(follows(&s, 0, forced).is_err(), A::HAS_UFFD_WP);
        s.finish();
    }

    /// Rules: GUPS-10, GUPS-14, GUPS-28a.
    fn dump_fails_where_there_is_nothing_but_zeros<A>() {
        let s = Space::<A>::new(RW);
        let n = per_table::<A>();
        s.map(0, 0);
        s.map_zero(2);
        s.map_huge_zero(2 * n);
        for how in How::SLOW {
            // A hole in a table, no table, the zero page, the huge zero folio.
            for page in [1, n, 2, 2 * n] {
                let (taken, seen) = scripted::<A, Get>(&s, how, page, 1, GupFlags::DUMP, &[]);
                let no = Err(GupErrorKind::Fault);
                assert_eq!((taken.result, seen.len()), (no, 0), "page {page}");
            }
            let taken = s.call::<Get>(how, 0, 3, GupFlags::DUMP);
            assert_eq!(taken.result, Ok(1));
            s.give_back::<Get>(&taken);
        }
        // A store to the zero page is a fault before it is a zero page.
        let (taken, seen) =
            scripted::<A, Pin>(&s, How::SlowTable, 2, 1, WRITE | GupFlags::DUMP, &[]);
        assert_eq!((taken.result, seen.as_slice()), (Ok(1), [(2, STORE)].as_slice()));
        s.give_back::<Pin>(&taken);
        s.finish();
    }

    /// Rules: PIN-03, PIN-17, GUPS-28a.
    fn the_zero_page_counts_references_and_no_pins<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map_zero(0);
            let zero = s.m.memmap().folio(s.m.zero_page());
            let before = zero.refcount();
            let got = s.call::<Get>(how, 0, 1, READ);
            assert_eq!((got.pages.as_slice(), zero.refcount()), ([zero.head()].as_slice(), before + 1));
            s.give_back::<Get>(&got);
            let pinned = s.call::<Pin>(how, 0, 1, READ);
            assert_eq!(pinned.pages, [zero.head()]);
            assert_eq!((zero.refcount(), s.outstanding()), (before, 0));
            s.give_back::<Pin>(&pinned);
            assert_eq!((zero.refcount(), s.outstanding()), (before, 0));
            // For long it is not good enough: a page of our own.
            let flags = GupFlags::LONGTERM;
            let (pinned, seen) = scripted::<A, Pin>(&s, how, 0, 1, flags, &[]);
            assert_eq!(seen, [(0, UNSHARE)]);
            assert!(pinned.pages[0] != zero.head());
            assert!(s.m.memmap().page_exclusive(pinned.pages[0]));
            assert_eq!(s.outstanding(), 1);
            s.give_back::<Pin>(&pinned);
            s.finish();
        }
    }

    /// Rules: GUPS-11a, PIN-03. A huge zero folio is a folio like others.
    fn the_huge_zero_folio_counts<A>() {
        let s = Space::<A>::new(RW);
        let zero = s.map_huge_zero(0);
        let taken = s.call::<Get>(How::SlowTable, 1, 3, READ);
        assert_eq!((taken.result, s.held(zero)), (Ok(3), (4, 0)));
        s.give_back::<Get>(&taken);
        let taken = s.call::<Pin>(How::SlowTable, 1, 3, READ);
        assert_eq!((taken.result, s.held(zero)), (Ok(3), (4, 3)));
        s.give_back::<Pin>(&taken);
        s.finish();
    }

    /// Rules: GUPS-06, GUPS-14.
    fn a_frame_without_a_folio_is_an_error<A>() {
        let s = Space::<A>::new(RW);
        s.map(0, 0);
        s.map(1, 0);
        let mapped = s.pte(1);
        s.edit(1, E::<A>::mkspecial);
        let refused = |how| {
            assert_eq!(follows(&s, 1, READ), Err(GupErrorKind::NoFolio), "{how}");
            assert_eq!(follows(&s, 1, GupFlags::DUMP), Err(GupErrorKind::Fault), "{how}");
            for slow in How::SLOW {
                let taken = s.call::<Pin>(slow, 0, 2, WRITE);
                assert_eq!(taken.result, Ok(1), "{how}");
                s.give_back::<Pin>(&taken);
            }
        };
        refused("special");
        // Not special, but beyond the memory map.
        s.set(1, s.pte(0).advance(1 << 24, Level::Pte));
        refused("unknown");
        s.set(1, mapped);
        s.finish();
    }

    /// Rules: GUPS-11, GUPS-16.
    fn the_output_is_filled_without_a_page_table_lock<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            let n = per_table::<A>();
            s.map(0, 3);
            for k in 8..16 {
                s.map(k, 0);
            }
            s.map_pmd(n);
            let vmas = s.mm.read();
            let table = s.mm.tables().lock_table(vmas.stay(), va::<A>(0)).expect("there").desc();
            let pmd = s.mm.tables().lock_pmd(vmas.stay(), va::<A>(n)).expect("there").view().desc();
            let mut out = Unlocked { descs: vec![table, pmd], out: Runs::new(), pushes: 0 };
            let counts = Counts::default();
            let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&counts);
            assert_eq!(how.call::<Pin, A, _, _>(&gup, va::<A>(0), 16, WRITE, &mut out), Ok(16));
            assert_eq!(how.call::<Pin, A, _, _>(&gup, va::<A>(n), 4, WRITE, &mut out), Ok(4));
            assert!(out.pushes >= 3);
            assert_eq!(counts.of(Event::FillsUnderLock), 0);
            unpin_runs(s.m.memmap(), out.out.take());
            drop(vmas);
            s.finish();
        }
    }

    /// Rules: GUPS-11a, GUPS-15.
    fn a_pmd_leaf_is_taken_in_one_step<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            let folio = s.map_pmd(0);
            s.edit_pmd(0, |e| e.mkclean().mkold());
            let counts = Counts::default();
            let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&counts);
            let taken = s.call_with::<Pin, _, _>(&gup, how, 3, 10, READ);
            assert_eq!((taken.result, taken.pages[9]), (Ok(10), folio.page(12)));
            assert_eq!((s.held(folio), counts.of(Event::Grabs)), ((10, 10), 1));
            s.give_back::<Pin>(&taken);
            let leaf = s.entry(0).0;
            assert!(leaf.is_young() && !leaf.is_dirty());
            let taken = s.call::<Get>(how, 0, 1, WRITE);
            s.give_back::<Get>(&taken);
            assert!(s.entry(0).0.is_dirty() && !folio.has(FolioFlags::DIRTY));
            s.finish();
        }
    }

    /// Rules: GUPS-11a, GUPS-22, GUPS-29, EXCL-01.
    fn a_pmd_leaf_that_may_not_be_taken_faults<A>() {
        let s = Space::<A>::new(RW);
        let folio = s.map_pmd(0);
        let before = s.entry(0).0;
        let fault = |flags: GupFlags| {
            let (taken, seen) = scripted::<A, Pin>(
                &s, How::SlowTable, 1, 2, flags, &[Act::Fail(FaultError::Signal)],
            );
            s.give_back::<Pin>(&taken);
            (taken.result.is_ok(), seen.first().map(|(_, f)| *f))
        };
        s.edit_pmd(0, |e| e.wrprotect());
        assert_eq!(fault(WRITE), (false, Some(STORE)));
        assert_eq!(fault(READ), (true, None));
        s.m.memmap().clear_exclusive(folio.head(), 1);
        assert_eq!(fault(READ), (false, Some(UNSHARE)));
        s.m.memmap().set_exclusive(folio.head(), 1);
        s.edit_pmd(0, |e| e.modify(A::prot(mm_arch::Protection::none()), Level::Pmd));
        assert_eq!(fault(READ), (true, None));
        assert_eq!(fault(GupFlags::HONOR_NUMA_FAULT), (false, Some(AGAIN)));
        s.edit_pmd(0, |_| before);
        let split = s.call::<Pin>(How::SlowTable, 1, 2, WRITE | GupFlags::SPLIT_PMD);
        assert_eq!(split.result, Err(GupErrorKind::NotSupported));
        s.finish();
    }

    /// Rules: GUPS-15, GUPS-19.
    fn a_write_through_clean_entries_dirties_the_folio<A>() {
        for how in How::SLOW {
            for dirty_at in [None, Some(2)] {
                let s = Space::<A>::new(RW);
                let folio = s.map(0, 2);
                for k in 0..4 {
                    let clean = dirty_at != Some(k);
                    s.edit(k, |e| if clean { e.mkclean() } else { e });
                }
                let taken = s.call::<Get>(how, 0, 4, READ);
                s.give_back::<Get>(&taken);
                assert!(folio.has(FolioFlags::REFERENCED) && !folio.has(FolioFlags::DIRTY));
                let taken = s.call::<Get>(how, 0, 4, WRITE);
                assert_eq!(taken.result, Ok(4));
                s.give_back::<Get>(&taken);
                // One dirty entry speaks for its run: page by page it does not.
                let marked = dirty_at.is_none() || how == How::SlowPage;
                assert_eq!(folio.has(FolioFlags::DIRTY), marked, "{how:?}");
                s.finish();
            }
        }
    }

    /// Rules: GUPS-29, GUPF-28.
    fn hints_are_taken_only_on_request<A>() {
        let honor = GupFlags::HONOR_NUMA_FAULT;
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map(0, 0);
            s.hint(0);
            let faults = |flags: GupFlags| {
                let act = [Act::Fail(FaultError::Signal)];
                let (taken, seen) = scripted::<A, Get>(&s, how, 0, 1, flags, &act);
                s.give_back::<Get>(&taken);
                seen.len()
            };
            assert_eq!([READ, honor, WRITE].map(faults), [0, 1, 1]);
            // Mappings that allow nothing never get such faults.
            s.edit_vma(|vm| vm - VmaFlags::ACCESS);
            let force = GupFlags::FORCE;
            assert_eq!([force, force | honor].map(faults), [0, 0]);
            assert_eq!(follows(&s, 0, honor), Err(GupErrorKind::Fault));
            s.finish();
        }
    }

    /// Rules: GUPS-32.
    fn no_stack_is_grown<A>() {
        let s = Space::<A>::new(RW | VmaFlags::GROWSDOWN);
        let script = Script::new::<A>(&[]);
        let below = mm_arch::VirtAddr::new(va::<A>(0).get() - (1 << A::PAGE_SHIFT));
        let error = Gup::new(&s.mm, &script).pin(below, 2, WRITE, &mut Runs::new());
        assert_eq!(error.expect_err("unmapped").kind, GupErrorKind::Fault);
        assert!(script.seen::<A>().is_empty());
        s.finish();
    }

    /// Rules: GUPS-13, GUPS-15, PIN-04.
    fn a_full_count_is_an_error_of_its_own<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map(0, 0);
            let folio = s.map(1, 0);
            let full = folio.grab::<Get>(i32::MAX as u32 - 1).expect("fits");
            let taken = s.call::<Get>(how, 0, 2, WRITE);
            assert_eq!(taken.result, Ok(1), "{how:?}");
            s.give_back::<Get>(&taken);
            assert_eq!(follows(&s, 1, WRITE), Err(GupErrorKind::NoMemory));
            let pin = s.call::<Pin>(how, 1, 1, WRITE);
            assert_eq!((pin.result, folio.refcount()), (Err(GupErrorKind::NoMemory), i32::MAX));
            drop(full);
            s.finish();
        }
    }

    /// A mapping that is cut in a leaf has the leaf split first: so a leaf is bounded by
    /// the request alone, and entries by the mapping, too.
    ///
    /// Rules: GUPS-11b, GUPS-13.
    fn a_leaf_lies_in_one_mapping<A>() {
        let s = Space::<A>::new(RW);
        let folio = s.map_pmd(0);
        let n = per_table::<A>();
        let taken = s.call::<Get>(How::SlowTable, 1, n as usize - 1, WRITE);
        assert_eq!((taken.result, s.entry(0).1), (Ok(n as usize - 1), Level::Pmd));
        s.give_back::<Get>(&taken);
        let half = mm_arch::VirtRange::units(va::<A>(n / 2), n / 2, A::PAGE_SHIFT);
        let (policy, half) = (MapPolicy::default(), half.expect("range"));
        madvise(&policy, &mut s.mm.write(), half, Advice::DontFork).expect("mapped");
        assert_eq!(s.entry(0).1, Level::Pte);
        let counts = Counts::default();
        let gup = Gup::new(&s.mm, &()).observed_by(&counts);
        let taken = s.call_with::<Get, _, _>(&gup, How::SlowTable, 1, n as usize - 1, WRITE);
        assert_eq!(taken.result, Ok(n as usize - 1));
        assert_eq!(counts.of(Event::Walks), 2, "one per mapping");
        assert_eq!(s.held(folio), (n as i32 - 1, 0));
        s.give_back::<Get>(&taken);
        s.finish();
    }

    /// Rules: GUPS-13, GUPS-17.
    fn more_runs_than_fit_under_one_lock_take_several<A>() {
        let s = Space::<A>::new(RW);
        let n = per_table::<A>().min(64);
        for k in 0..64 {
            s.map(k, 0);
        }
        let counts = Counts::default();
        let gup = Gup::new(&s.mm, &()).observed_by(&counts);
        let taken = s.call_with::<Pin, _, _>(&gup, How::SlowTable, 0, 64, WRITE);
        assert_eq!(taken.result, Ok(64));
        assert_eq!((counts.of(Event::Locks), counts.of(Event::Grabs)), (64 / n.min(32), 64));
        s.give_back::<Pin>(&taken);
        s.finish();
    }
}
