//! Making pages present without taking them; single pages for dumps and for those who
//! cannot take a fault.

use crate::common::*;
use mm_arch::{AccessKind, Arch, Entry, Level, Pfn, VirtRange};
use mm_folio::Get;
use mm_gup::{FaultError, Gup, GupErrorKind, GupFault, OnError, Runs, put_pages};
use mm_map::{MapPolicy, munmap};
use mm_vma::{Event, Platform, VmaFlags};

const AGAIN: GupFault = GupFault::ALLOW_RETRY;
const STORE: GupFault = GupFault::WRITE.union(AGAIN);

fn range<A: Arch>(page: u64, nr: u64) -> VirtRange {
    VirtRange::units(va::<A>(page), nr, A::PAGE_SHIFT).expect("range")
}

on_all! {
    /// Rules: POP-03, POP-04, GUPS-15. Pages are there, and nobody holds them.
    fn advised_pages_are_there_and_not_held<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map(2, 2);
            let (script, counts) = (Script::new::<A>(&[]), Counts::default());
            let gup = Gup::new(&s.mm, &script).with_policy(how.policy()).observed_by(&counts);
            assert_eq!(gup.populate(va::<A>(0), 8, AccessKind::Read), Ok(()));
            assert_eq!(script.seen::<A>(), [0, 1, 6, 7].map(|page| (page, AGAIN)));
            assert_eq!(gup.populate(va::<A>(0), 8, AccessKind::Write), Ok(()));
            assert_eq!(script.seen::<A>()[4..], [0, 1, 6, 7].map(|page| (page, STORE)));
            assert!((0..8).all(|page| s.pte(page).is_writable(Level::Pte)));
            assert_eq!((counts.of(Event::Grabs), counts.of(Event::Atomics)), (0, 0), "{how:?}");
            assert!(!s.mm.has_pinned());
            s.finish();
        }
    }

    /// Rules: POP-03, FOLL-02.
    fn advice_names_its_errors<A>() {
        let s = Space::<A>::new(RW);
        s.map(0, 0);
        let errno = |page: u64, nr: usize, access: AccessKind, act: Act| {
            // Met behind a present page, it is met again by the next look.
            let script = Script::new::<A>(&[act; 2]);
            let result = Gup::new(&s.mm, &script).populate(va::<A>(page), nr, access);
            result.map_err(|e| (e.va, e.errno()))
        };
        let beyond = 12.min(A::nr_entries(Level::Pmd) as u64 - 2) * per_table::<A>();
        let (read, write) = (AccessKind::Read, AccessKind::Write);
        // The first page is present; the error is of the second, and not swallowed.
        let second = |errno| Err((va::<A>(1), errno));
        assert_eq!(errno(0, 2, read, Act::Fail(FaultError::Poisoned)), second("EHWPOISON"));
        assert_eq!(errno(0, 2, read, Act::Fail(FaultError::Signal)), second("EFAULT"));
        assert_eq!(errno(0, 2, read, Act::Fail(FaultError::NoMemory)), second("ENOMEM"));
        assert_eq!(errno(beyond, 1, read, Act::Resolve), Err((va::<A>(beyond), "ENOMEM")));
        let across = errno(beyond - 1, 2, read, Act::Resolve);
        assert_eq!(across, Err((va::<A>(beyond), "ENOMEM")));
        assert_eq!(errno(0, 0, read, Act::Resolve), Ok(()));
        s.m.interrupt().set_pending(true);
        assert_eq!(errno(0, 1, read, Act::Resolve), Err((va::<A>(0), "EINTR")));
        s.m.interrupt().set_pending(false);
        s.edit_vma(|vm| vm - VmaFlags::WRITE);
        assert_eq!(errno(0, 1, write, Act::Resolve), Err((va::<A>(0), "EINVAL")));
        s.edit_vma(|vm| vm | VmaFlags::PFNMAP);
        assert_eq!(errno(0, 1, read, Act::Resolve), Err((va::<A>(0), "EINVAL")));
        s.edit_vma(|vm| (vm | VmaFlags::WRITE) - VmaFlags::PFNMAP);
        s.finish();
    }

    /// Rules: POP-01. What kind of fault each kind of mapping takes.
    fn rights_say_how_a_mapping_is_populated<A>() {
        use VmaFlags as V;
        let table = [
            (V::empty(), V::empty(), Ok(Some(STORE))),
            (V::empty(), V::WRITE, Ok(Some(AGAIN))),
            (V::SHARED.union(V::MAYSHARE), V::empty(), Ok(Some(AGAIN))),
            (V::EXEC, V::READ.union(V::WRITE), Ok(Some(AGAIN))),
            (V::LOCKED.union(V::LOCKONFAULT), V::empty(), Ok(None)),
            (V::PFNMAP, V::empty(), Ok(None)),
            (V::IO, V::empty(), Ok(None)),
            (V::empty(), V::ACCESS, Err("EFAULT")),
            (V::empty(), V::MAYREAD, Err("EFAULT")),
        ];
        for (add, remove, expected) in table {
            let s = Space::<A>::new(RW);
            let vm = s.mm.read().find(va::<A>(0)).expect("mapped").flags();
            s.edit_vma(|_| (vm | add) - remove);
            // The kind of the fault is looked at, no fault is taken.
            let script = Script::new::<A>(&[Act::Fail(FaultError::Signal)]);
            let gup = Gup::new(&s.mm, &script);
            let result = gup.populate_mapped(range::<A>(3, 1), OnError::Stop);
            let seen = script.seen::<A>();
            match expected {
                Ok(Some(fault)) => assert_eq!(seen, [(3, fault)], "+{add:?} -{remove:?}"),
                Ok(None) => assert_eq!((result, seen.len()), (Ok(()), 0), "+{add:?}"),
                Err(errno) => {
                    let error = result.expect_err("refused");
                    assert_eq!((error.errno(), error.va, seen.len()), (errno, va::<A>(3), 0));
                }
            }
            s.edit_vma(|_| vm);
            s.finish();
        }
    }

    /// Rules: POP-02. Holes are passed by; mappings that fail on request.
    fn populating_goes_from_mapping_to_mapping<A>() {
        let s = Space::<A>::new(RW);
        let policy = MapPolicy::default();
        munmap(&policy, &mut s.mm.write(), range::<A>(2, 2)).expect("fine");
        // Pages 0 and 1; a hole; the rest.
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script);
        assert_eq!(gup.populate_mapped(range::<A>(0, 6), OnError::Stop), Ok(()));
        assert_eq!(script.seen::<A>(), [0, 1, 4, 5].map(|page| (page, STORE)));
        // The first mapping fails.
        s.edit_vma(|vm| vm - VmaFlags::MAYREAD);
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script);
        let error = gup.populate_mapped(range::<A>(0, 8), OnError::Stop).expect_err("refused");
        assert_eq!((error.va, error.errno()), (va::<A>(0), "EFAULT"));
        assert_eq!(script.seen::<A>(), []);
        assert_eq!(gup.populate_mapped(range::<A>(0, 8), OnError::NextMapping), Ok(()));
        assert_eq!(script.seen::<A>(), [6, 7].map(|page| (page, STORE)));
        s.finish();
    }

    /// Rules: POP-04, GUPS-06.
    fn frames_without_a_folio_count_as_present<A>() {
        for how in How::SLOW {
            let s = Space::<A>::new(RW);
            s.map(0, 0);
            let device = E::<A>::leaf(
                Pfn::new(s.m.memmap().first().get() + s.m.memmap().nr_frames()),
                A::prot(mm_arch::Protection::private_read_write()),
                Level::Pte,
            );
            s.set(1, device.mkspecial());
            let script = Script::new::<A>(&[]);
            let gup = Gup::new(&s.mm, &script).with_policy(how.policy());
            assert_eq!(gup.populate(va::<A>(0), 3, AccessKind::Read), Ok(()));
            assert_eq!(script.seen::<A>(), [(2, AGAIN)]);
            let mut out = Runs::new();
            let error = gup.get(va::<A>(1), 1, READ, &mut out).expect_err("no folio");
            assert_eq!((error.kind, error.errno()), (GupErrorKind::NoFolio, "EEXIST"));
            let taken = s.call_with::<Get, _, _>(&gup, how, 0, 3, READ);
            assert_eq!(taken.result, Ok(1));
            s.give_back::<Get>(&taken);
            s.set(1, E::<A>::NONE);
            s.finish();
        }
    }

    /// Rules: POP-05.
    fn one_fault_on_behalf_of_somebody_else<A>() {
        let s = Space::<A>::new(RW);
        let call = |acts: &[Act], page: u64, access: AccessKind| {
            let script = Script::new::<A>(acts);
            let result = Gup::new(&s.mm, &script).fault_in(va::<A>(page), access);
            (result.map_err(|e| e.errno()), script.seen::<A>())
        };
        let (read, write) = (AccessKind::Read, AccessKind::Write);
        assert_eq!(call(&[], 0, read), (Ok(false), vec![(0, AGAIN)]));
        assert_eq!(call(&[], 0, write), (Ok(false), vec![(0, STORE)]));
        let again = vec![(1, STORE), (1, STORE | GupFault::TRIED)];
        assert_eq!(call(&[Act::Retry], 1, write), (Ok(true), again), "the lock was dropped");
        let failed = call(&[Act::Fail(FaultError::NoMemory)], 2, write);
        assert_eq!(failed.0, Err("ENOMEM"));
        // The mapping must allow the access; nothing is forced.
        assert_eq!(call(&[], 2, AccessKind::Exec), (Err("EFAULT"), vec![]));
        s.edit_vma(|vm| vm - VmaFlags::WRITE);
        assert_eq!(call(&[], 2, write), (Err("EFAULT"), vec![]));
        s.m.interrupt().set_pending(true);
        assert_eq!(call(&[Act::Retry], 2, read).0, Err("EINTR"));
        s.m.interrupt().set_pending(false);
        s.finish();
    }

    /// Rules: POP-06.
    fn a_dump_gets_what_is_there<A>() {
        let s = Space::<A>::new(RW);
        let folio = s.map(0, 2);
        s.map_zero(6);
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script);
        // A hole, the zero page, nothing mapped at all.
        let unmapped = mm_arch::VirtAddr::new(0);
        for at in [va::<A>(5), va::<A>(6), unmapped] {
            assert_eq!(gup.dump_page(at), None);
        }
        // Whatever the mapping allows.
        s.edit_vma(|vm| vm - VmaFlags::ACCESS);
        let page = gup.dump_page(va::<A>(1));
        assert_eq!((page, s.held(folio)), (Some(folio.page(1)), (1, 0)));
        put_pages(s.m.memmap(), page.as_slice());
        assert_eq!(script.seen::<A>(), [], "a dump faults nothing in");
        s.finish();
    }
}
