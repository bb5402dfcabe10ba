//! Memory that a device cannot be let at.

use crate::common::*;
use mm_folio::{Get, Pin};
use mm_gup::GupErrorKind;
use mm_vma::Platform;

on_all! {
    /// Rules: GUPS-15, GUPF-11, GUPF-18: asked once per run, for pins alone.
    fn pins_ask_once_per_run<A>() {
        for how in How::FAST.into_iter().chain(How::SLOW) {
            let s = Space::<A>::new(RW);
            s.map(0, 3);
            s.map(8, 0);
            let access = s.m.memmap().source().access();
            let taken = s.call::<Get>(how, 0, 9, READ);
            assert_eq!((taken.result, access.calls()), (Ok(9), 0), "{how:?}");
            s.give_back::<Get>(&taken);
            let taken = s.call::<Pin>(how, 0, 9, WRITE);
            let per_page = matches!(how, How::FastPage | How::SlowPage);
            assert_eq!((taken.result, access.calls()), (Ok(9), if per_page { 9 } else { 2 }));
            s.give_back::<Pin>(&taken);
            s.finish();
        }
    }

    /// Rules: GUPS-15, GUPF-18: what was refused is not held, what came before stays.
    fn a_refusal_ends_the_request<A>() {
        for how in How::FAST.into_iter().chain(How::SLOW) {
            for refused in 0..3u64 {
                let s = Space::<A>::new(RW);
                // As many runs as pages, whatever the policy.
                let folios: Vec<_> = (0..3).map(|page| s.map(page, 0)).collect();
                s.m.memmap().source().access().fail_after(refused);
                let taken = s.call::<Pin>(how, 0, 3, WRITE);
                let first = if how.is_fast() { Ok(0) } else { Err(GupErrorKind::Fault) };
                let expected = match refused {
                    0 => first,
                    // It ended one walk; the next looks again, and the refusal was for once.
                    1.. if how == How::SlowTable => Ok(3),
                    n => Ok(n as usize),
                };
                assert_eq!(taken.result, expected, "{how:?}");
                let got = taken.pages.len();
                assert!(folios.iter().skip(got).all(|f| s.held(*f).0 == 0));
                s.give_back::<Pin>(&taken);
                s.finish();
            }
            let s = Space::<A>::new(RW);
            let folio = s.map(0, 3);
            s.m.memmap().source().access().fail_after(0);
            let taken = s.call::<Pin>(how, 0, 8, WRITE);
            assert_eq!(taken.pages, []);
            assert_eq!(s.held(folio), (0, 0));
            s.finish();
        }
    }
}
