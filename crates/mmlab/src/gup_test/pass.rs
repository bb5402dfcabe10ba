//! One pass over the region: take everything, look at it, give it back.

use crate::bed::Bed;
use mm_arch::Pfn;
use mm_gup::{
    FaultHandler, Gup, GupError, GupErrorKind, GupFlags, GupPolicy, Pages, put_pages, unpin_pages,
};
use mm_sim::Host;
use mm_vma::{Observer, Platform};
use mm_x86::X86_64;

/// What is called, by the option of the tool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    GetFast,
    Get,
    PinFast,
    Pin,
    Longterm,
    Dump { pinned: bool },
}

impl Mode {
    /// The name in the output.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::GetFast => "GUP_FAST_BENCHMARK",
            Mode::Get => "GUP_BASIC_TEST",
            Mode::PinFast => "PIN_FAST_BENCHMARK",
            Mode::Pin => "PIN_BASIC_TEST",
            Mode::Longterm => "PIN_LONGTERM_BENCHMARK",
            Mode::Dump { .. } => "DUMP_USER_PAGES_TEST",
        }
    }
    /// Whether it is repeated and its times are printed.
    pub const fn is_benchmark(self) -> bool {
        matches!(self, Mode::GetFast | Mode::PinFast | Mode::Longterm)
    }
    pub const fn pins(self) -> bool {
        matches!(self, Mode::PinFast | Mode::Pin | Mode::Longterm | Mode::Dump { pinned: true })
    }
}

impl Mode {
    /// What is wrong about a page that is held in this mode (rule BENCH-07).
    pub const fn complaint(
        self,
        looks_pinned: bool,
        longterm_pinnable: bool,
    ) -> Option<&'static str> {
        match self {
            mode if mode.pins() && !looks_pinned => Some("does not look pinned"),
            Mode::Longterm if !longterm_pinnable => Some("may not be pinned for long"),
            _ => None,
        }
    }
}

/// A page of those that are held, by its index in the region.
fn dump(bed: &Bed<()>, held: &[Pfn], index: u32) -> String {
    let Some(pfn) = held.get(index as usize) else {
        return format!("page {index}: beyond the {} pages that were taken", held.len());
    };
    let (va, folio) = (bed.page_va(index as usize), bed.machine.host().memmap().folio(*pfn));
    let pinned = if folio.maybe_dma_pinned() { ", pinned" } else { "" };
    format!("page {index} at {va}: frame {pfn}, {folio:?}{pinned}")
}

/// What a pass does.
#[derive(Clone, Debug)]
pub struct Plan {
    pub mode: Mode,
    /// `None`: flags that GUP refuses.
    pub flags: Option<GupFlags>,
    pub policy: GupPolicy,
    pub pages_per_call: usize,
    /// Pages of the region that are described while they are held.
    pub dump: Vec<u32>,
}

/// Microseconds since some moment.
pub type Clock<'a> = &'a (dyn Fn() -> f64 + Sync);

/// What a pass did.
#[derive(Debug)]
pub struct Pass {
    pub get_us: f64,
    pub put_us: f64,
    /// The pages, which were given back.
    pub pages: Vec<Pfn>,
    /// The end of the last call that got anything, as far as it was to go: what the
    /// kernel's tool reports as its size.
    pub asked: usize,
    /// Why there are no pages at all.
    pub error: Option<GupError>,
    /// The first page that does not look as it must while it is pinned, and how it looks.
    pub looks_wrong: Option<(Pfn, &'static str)>,
    /// The pages to describe, as they were while they were held.
    pub dumped: Vec<String>,
}

impl Plan {
    /// Takes all pages of the region in calls of the planned size, until one falls short,
    /// and gives them back. The clock is read four times: around the calls, and around giving
    /// back (rules BENCH-05, BENCH-07, BENCH-08).
    ///
    /// # Errors
    ///
    /// If there is no memory for the output.
    pub fn pass<O: Observer>(
        &self,
        bed: &Bed<()>,
        handler: &impl FaultHandler<Host<X86_64, ()>>,
        observer: &O,
        clock: Clock<'_>,
    ) -> Result<Pass, String> {
        let nr = bed.nr_pages();
        let mut pages = Vec::new();
        pages.try_reserve_exact(nr).map_err(|_| format!("no memory for {nr} entries"))?;
        pages.resize(nr, Pfn::new(0));
        let gup =
            Gup::new(bed.process.mm(), handler).with_policy(self.policy).observed_by(observer);
        let (mut done, mut asked, mut error) = (0, 0, None);
        let start = clock();
        while done < nr {
            let want = self.pages_per_call.min(nr - done);
            match self.call(&gup, bed, done, &mut pages[done..done + want]) {
                Ok(got) => {
                    done += got;
                    asked += if got > 0 { want } else { 0 };
                    if got < want {
                        break;
                    }
                }
                Err(e) => {
                    error = (done == 0).then_some(e);
                    break;
                }
            }
        }
        let get_us = clock() - start;
        pages.truncate(done);
        let map = bed.machine.host().memmap();
        let looks_wrong = pages.iter().find_map(|pfn| {
            let folio = map.folio(*pfn);
            let wrong = self.mode.complaint(
                map.is_zero_page(*pfn) || folio.maybe_dma_pinned(),
                folio.is_longterm_pinnable(),
            );
            Some((*pfn, wrong?))
        });
        let dumped = self.dump.iter().map(|index| dump(bed, &pages, *index)).collect();
        let start = clock();
        if self.mode.pins() {
            unpin_pages(map, &pages);
        } else {
            put_pages(map, &pages);
        }
        let put_us = clock() - start;
        Ok(Pass { get_us, put_us, pages, asked, error, looks_wrong, dumped })
    }

    fn call<O: Observer>(
        &self,
        gup: &Gup<'_, Host<X86_64, ()>, impl FaultHandler<Host<X86_64, ()>>, O>,
        bed: &Bed<()>,
        first: usize,
        out: &mut [Pfn],
    ) -> Result<usize, GupError> {
        let (va, want) = (bed.page_va(first), out.len());
        let Some(flags) = self.flags else {
            return Err(GupError { va, kind: GupErrorKind::Invalid });
        };
        let mut out = Pages::new(out);
        match self.mode {
            Mode::GetFast => gup.get_fast(va, want, flags, &mut out),
            Mode::PinFast => gup.pin_fast(va, want, flags, &mut out),
            Mode::Get | Mode::Dump { pinned: false } => gup.get(va, want, flags, &mut out),
            Mode::Pin | Mode::Longterm | Mode::Dump { pinned: true } => {
                gup.pin(va, want, flags, &mut out)
            }
        }
    }
}
