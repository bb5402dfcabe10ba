//! Whatever goes wrong at page k of a request, on whatever path: k pages come back, and
//! not one reference is lost.

use crate::common::*;
use mm_arch::Arch;
use mm_folio::{Get, Pin, RefKind};
use mm_gup::{FaultError, Gup, GupErrorKind, Pages, Runs, Sink};
use mm_vma::{Event, Platform};

/// Pages of the request: folios of one, four, one, eight and two single pages.
const NR: usize = 16;
const FOLIOS: [(u64, u32); 6] = [(0, 0), (1, 2), (5, 0), (6, 3), (14, 0), (15, 0)];

fn space<A: Arch>() -> Space<A> {
    let s = Space::<A>::new(RW);
    for (page, order) in FOLIOS {
        s.map(page, order);
    }
    s
}

/// How a request goes wrong at a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The page is not there, and cannot be faulted in.
    Hole(FaultError),
    /// It is not there, and a fatal signal comes with the fault.
    Signal,
    /// It cannot be had without waiting.
    Wait,
    /// It must be unshared for this pin, and there is no memory.
    Unshare,
    /// The count of its folio is at the limit.
    Full,
}

const FAULTS: [Fault; 7] = [
    Fault::Hole(FaultError::NoMemory),
    Fault::Hole(FaultError::Poisoned),
    Fault::Hole(FaultError::Signal),
    Fault::Signal,
    Fault::Wait,
    Fault::Unshare,
    Fault::Full,
];

/// One request that goes wrong at page `k`; into `out`.
fn one<A: Arch, K: RefKind, S: Sink>(how: How, k: usize, fault: Fault, out: &mut S) {
    let s = space::<A>();
    let page = k as u64;
    let first_of_folio = FOLIOS.iter().rev().find(|f| f.0 <= page).expect("mapped").0 as usize;
    let (mut flags, mut stop, mut expected) = (WRITE, GupErrorKind::Fault, k);
    let mut act = Act::Fail(FaultError::Signal);
    let mut full = None;
    match fault {
        Fault::Hole(e) => {
            s.unmap(page);
            act = Act::Fail(e);
            stop = match e {
                FaultError::NoMemory => GupErrorKind::NoMemory,
                FaultError::Poisoned | FaultError::Signal => GupErrorKind::Fault,
            };
        }
        Fault::Signal => {
            s.unmap(page);
            act = Act::Retry;
            stop = GupErrorKind::Interrupted;
        }
        Fault::Wait => {
            s.unmap(page);
            act = Act::Wait;
            stop = GupErrorKind::Again;
        }
        Fault::Unshare => {
            flags = READ;
            s.share(page);
            if !K::PINS {
                expected = NR;
            }
        }
        Fault::Full => {
            let folio = s.m.memmap().folio(s.pfn(page));
            let room = i32::MAX as u32 - folio.refcount() as u32;
            full = Some(folio.grab::<Get>(room).expect("fits"));
            stop = GupErrorKind::NoMemory;
            expected = first_of_folio;
        }
    }
    let script = Script::new::<A>(&[act]);
    let kill = At::new(Event::GupFaults, 1, || {
        s.m.interrupt().set_pending(fault == Fault::Signal);
    });
    let gup = Gup::new(&s.mm, &script).with_policy(how.policy()).observed_by(&kill);
    let result = how.call::<K, A, _, _>(&gup, va::<A>(0), NR, flags, out);
    s.m.interrupt().set_pending(false);

    let wanted = match expected {
        0 if !how.is_fast() => Err(stop),
        n => Ok(n),
    };
    let context = (how, k, fault, K::PINS);
    assert_eq!(result.map_err(|e| e.kind), wanted, "{context:?}");
    assert_eq!(out.pages(), expected, "{context:?}");
    // One hold per page that came back, and no other.
    drop(full);
    for folio in s.m.memmap().alive().filter(|f| f.is_anon()) {
        let mut n = 0;
        out.each_run(s.m.memmap(), 0, |run| n += if run.head == folio.head() { run.nr } else { 0 });
        assert_eq!(s.held(folio), as_held::<A, K>(folio, n), "{context:?}");
    }
    out.give_back::<K, _>(s.m.memmap(), 0);
    s.finish();
}

on_all! {
    /// Rules: GUPF-04, GUPF-07, GUPF-18, GUPF-19, GUPS-07, GUPS-09, GUPS-15, PIN-04, PIN-17, MM-028.
    fn what_goes_wrong_at_a_page_leaves_those_before_it<A>() {
        for k in 0..NR {
            for fault in FAULTS {
                for how in How::FAST.into_iter().chain(How::SLOW) {
                    let mut room = [mm_arch::Pfn::new(0); NR];
                    one::<A, Get, _>(how, k, fault, &mut Pages::new(&mut room));
                    one::<A, Pin, _>(how, k, fault, &mut Pages::new(&mut room));
                    one::<A, Get, _>(how, k, fault, &mut Runs::new());
                    one::<A, Pin, _>(how, k, fault, &mut Runs::new());
                }
            }
        }
    }
}
