//! One GUP call over pages of a bed, measured and counted: what the tables share.

use super::reference::{Loop, Reference};
use crate::bed::{Bed, FolioSize};
use mm_arch::Pfn;
use mm_folio::{Get, Pin};
use mm_gup::{Gup, GupFlags, GupPolicy, Pages, Runs, Sink, put_pages, unpin_pages};
use mm_sim::{EventCounts, Preset};
use mm_vma::{Observer, Platform};
use serde_json::json;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Calls of one thread in one measurement of several.
const TOGETHER: u32 = 8;

/// References or pins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Get,
    Pin,
}

impl Op {
    pub const fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Pin => "pin",
        }
    }
}

/// Which entry point is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    Fast,
    Slow,
}

/// What the call fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// One entry per page.
    Pages,
    /// One entry per run of a folio.
    Runs,
}

/// A call, but for the pages that it is about.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub op: Op,
    pub path: Path,
    pub policy: GupPolicy,
    pub flags: GupFlags,
    pub output: Output,
}

/// What a call fills; kept from call to call, so that none of them pays for memory.
pub struct Buffer {
    pages: Vec<Pfn>,
    runs: Runs,
}

impl Buffer {
    /// For calls that take `nr` pages.
    pub fn new(nr: usize) -> Self {
        Buffer { pages: vec![Pfn::new(0); nr], runs: Runs::new() }
    }
}

impl Request {
    /// The contestants of the fast path, by name: before, patch series, ours, and ours
    /// with runs as its output.
    pub fn fast(op: Op, flags: GupFlags) -> [(&'static str, Request); 4] {
        let with = |preset: Preset, output| {
            let policy = preset.policy().gup;
            (preset.name(), Request { op, path: Path::Fast, policy, flags, output })
        };
        let (_, runs) = with(Preset::Best, Output::Runs);
        [
            with(Preset::Linux618, Output::Pages),
            with(Preset::Series, Output::Pages),
            with(Preset::Best, Output::Pages),
            ("runs", runs),
        ]
    }

    /// Takes as many pages as `buffer` is for, from page `first` of the bed on.
    ///
    /// # Errors
    ///
    /// If it did not get them all.
    pub fn call<O: Observer>(
        &self,
        bed: &Bed<()>,
        first: usize,
        observer: &O,
        buffer: &mut Buffer,
    ) -> Result<(), String> {
        let nr = buffer.pages.len();
        let Buffer { pages, runs } = black_box(buffer);
        match self.output {
            Output::Pages => self.push_to(bed, first, nr, observer, &mut Pages::new(pages)),
            Output::Runs => self.push_to(bed, first, nr, observer, runs),
        }
    }

    fn push_to<O: Observer>(
        &self,
        bed: &Bed<()>,
        first: usize,
        nr: usize,
        observer: &O,
        out: &mut impl Sink,
    ) -> Result<(), String> {
        let gup = Gup::new(bed.process.mm(), &()).with_policy(self.policy).observed_by(observer);
        let va = bed.page_va(first);
        let got = match (self.path, self.op) {
            (Path::Fast, Op::Get) => gup.get_fast(va, nr, self.flags, out),
            (Path::Fast, Op::Pin) => gup.pin_fast(va, nr, self.flags, out),
            (Path::Slow, Op::Get) => gup.get(va, nr, self.flags, out),
            (Path::Slow, Op::Pin) => gup.pin(va, nr, self.flags, out),
        };
        let message = match got {
            Ok(got) if got == nr => return Ok(()),
            Ok(got) => format!("{} took {got} of {nr} pages", self.op.name()),
            Err(e) => e.to_string(),
        };
        let map = bed.machine.host().memmap();
        match self.op {
            Op::Get => out.give_back::<Get, _>(map, 0),
            Op::Pin => out.give_back::<Pin, _>(map, 0),
        }
        Err(message)
    }

    /// Gives back what [`call`](Self::call) took.
    pub fn give_back(&self, bed: &Bed<()>, buffer: &mut Buffer) {
        let map = bed.machine.host().memmap();
        match (self.output, self.op) {
            (Output::Pages, Op::Get) => put_pages(map, &buffer.pages),
            (Output::Pages, Op::Pin) => unpin_pages(map, &buffer.pages),
            (Output::Runs, Op::Get) => buffer.runs.give_back::<Get, _>(map, 0),
            (Output::Runs, Op::Pin) => buffer.runs.give_back::<Pin, _>(map, 0),
        }
    }

    /// Microseconds of the second of two calls: as in a benchmark that repeats itself, its
    /// caches hold what it uses, and not what the contestant before it used. What was
    /// taken is given back.
    pub fn time(&self, bed: &Bed<()>, buffer: &mut Buffer) -> Result<f64, String> {
        self.call(bed, 0, &(), buffer)?;
        self.give_back(bed, buffer);
        let start = Instant::now();
        self.call(bed, 0, &(), buffer)?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        self.give_back(bed, buffer);
        Ok(us)
    }

    /// Microseconds of a call of the slowest thread, while all the others do the same, each
    /// with a part of its own of the region. There are as many as buffers.
    ///
    /// A mean of [`TOGETHER`] calls, of which none runs alone: threads that start or end at
    /// the same moment miss each other by longer than a call takes.
    pub fn time_threads(&self, bed: &Bed<()>, buffers: &mut [Buffer]) -> Result<f64, String> {
        let (arrived, done, all) = (AtomicUsize::new(0), AtomicUsize::new(0), buffers.len());
        let one = |i: usize, buffer: &mut Buffer| {
            let first = i * buffer.pages.len();
            let mut spent = Duration::ZERO;
            // A call that failed has given back what it took.
            let take = |buffer: &mut Buffer| {
                let start = Instant::now();
                self.call(bed, first, &(), buffer)?;
                let spent = start.elapsed();
                self.give_back(bed, buffer);
                Ok(spent)
            };
            let mut result: Result<Duration, String> = take(buffer);
            // Nobody sleeps here: waking up takes longer than a call.
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < all {
                std::hint::spin_loop();
            }
            for _ in 0..TOGETHER {
                result = result.and_then(|_| take(buffer));
                spent += result.clone().unwrap_or_default();
            }
            done.fetch_add(1, Ordering::AcqRel);
            // Company for those who are not done.
            while done.load(Ordering::Acquire) < all && result.is_ok() {
                result = take(buffer);
            }
            result.map(|_| spent / TOGETHER)
        };
        let spent: Result<Vec<Duration>, String> = std::thread::scope(|scope| {
            let one = &one;
            let parts = buffers.iter_mut().enumerate();
            let running: Vec<_> =
                parts.map(|(i, buffer)| scope.spawn(move || one(i, buffer))).collect();
            running
                .into_iter()
                .map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
                .collect()
        });
        Ok(spent?.into_iter().max().map_or(0.0, |d| d.as_secs_f64() * 1e6))
    }

    /// What one call does, untimed.
    pub fn counts(&self, bed: &Bed<()>, buffer: &mut Buffer) -> Result<serde_json::Value, String> {
        let seen = EventCounts::default();
        let flushes = || {
            let f = bed.machine.host().cpus().flushes();
            f.ranges.get() + f.spaces.get()
        };
        let before = flushes();
        self.call(bed, 0, &seen, buffer)?;
        let entries = match self.output {
            Output::Pages => buffer.pages.len(),
            Output::Runs => buffer.runs.runs().len(),
        };
        self.give_back(bed, buffer);
        Ok(json!({
            "entries_read": seen.entries_read.get(),
            "grabs": seen.grabs.get(),
            "atomics": seen.atomics.get(),
            "locks": seen.locks.get(),
            "walks": seen.walks.get(),
            "flushes": flushes() - before,
            "fills_under_lock": seen.fills_under_lock.get(),
            "output_entries": entries,
        }))
    }
}

/// The reference loops of one cell, and what they fill.
pub struct Loops {
    reference: Reference,
    raw: Vec<u64>,
    op: Op,
    matching: Loop,
}

impl Loops {
    /// For `nr` pages, a power of two, in folios of `size`, or one that is larger.
    pub fn new(nr: usize, size: FolioSize, op: Op) -> Self {
        let matching = match size {
            FolioSize::Small => Loop::PerPage,
            FolioSize::M2Pmd => Loop::Leaf,
            _ => Loop::Run,
        };
        let reference = Reference::new(nr, nr.min(1 << size.order()));
        Loops { reference, raw: vec![0; nr], op, matching }
    }
    /// Microseconds of the loop that does in runs what the folios allow.
    pub fn matching(&mut self) -> Result<f64, String> {
        self.time(self.matching)
    }
    /// Microseconds of the loop over single pages.
    pub fn per_page(&mut self) -> Result<f64, String> {
        self.time(Loop::PerPage)
    }
    /// Of two times through, the second, as in [`Request::time`].
    fn time(&mut self, which: Loop) -> Result<f64, String> {
        self.reference.take(which, self.op == Op::Pin, black_box(&mut self.raw));
        self.reference.give_back();
        let start = Instant::now();
        let got = self.reference.take(which, self.op == Op::Pin, black_box(&mut self.raw));
        let us = start.elapsed().as_secs_f64() * 1e6;
        self.reference.give_back();
        if got == self.raw.len() { Ok(us) } else { Err("the reference loop stopped".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mm_gup::SlowPolicy;
    use mm_vma::VmaFlags;

    fn bed(size: FolioSize) -> Bed<()> {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        Bed::new(8 << 20, Some(size), None, rights, Preset::Linux618.policy()).expect("bed")
    }

    /// Rules: BENCH-15. 2048 pages in 4 tables; folios of 16 pages.
    #[test]
    fn contestants_differ_in_what_they_do() {
        let bed = bed(FolioSize::K64);
        let mut buffer = Buffer::new(bed.nr_pages());
        for op in [Op::Get, Op::Pin] {
            let [before, series, _, runs] = Request::fast(op, GupFlags::WRITE)
                .map(|(_, r)| r.counts(&bed, &mut buffer).expect("pages"));
            assert_eq!((&before["grabs"], &series["grabs"]), (&json!(2048), &json!(256)));
            assert_eq!((&before["locks"], &series["locks"]), (&json!(0), &json!(0)));
            assert_eq!(
                (&before["output_entries"], &runs["output_entries"]),
                (&json!(2048), &json!(128))
            );
            let slow = |slow, output| {
                let policy = GupPolicy { slow, ..GupPolicy::default() };
                let request =
                    Request { op, path: Path::Slow, policy, flags: GupFlags::WRITE, output };
                let counts = request.counts(&bed, &mut buffer).expect("pages");
                assert_eq!(counts["fills_under_lock"], 0);
                [&counts["grabs"], &counts["locks"], &counts["output_entries"]]
                    .map(|n| n.as_u64().expect("a number"))
            };
            let mut slow = slow;
            assert_eq!(slow(SlowPolicy::Page, Output::Pages), [2048, 2048, 2048]);
            assert_eq!(slow(SlowPolicy::Run, Output::Pages), [128, 128, 2048]);
            assert_eq!(slow(SlowPolicy::Table, Output::Pages), [128, 4, 2048]);
            assert_eq!(slow(SlowPolicy::Table, Output::Runs), [128, 4, 128]);
        }
    }

    #[test]
    fn everything_is_given_back() {
        let bed = bed(FolioSize::M1);
        let refs = || bed.machine.host().memmap().folio(first_page(&bed)).refcount();
        let before = refs();
        let mut buffer = Buffer::new(bed.nr_pages());
        let mut parts = [bed.nr_pages() / 2; 2].map(Buffer::new);
        for (_, request) in [Op::Get, Op::Pin].map(|op| Request::fast(op, GupFlags::WRITE)).concat()
        {
            request.time(&bed, &mut buffer).expect("pages");
            request.time_threads(&bed, &mut parts).expect("pages");
            // More than there is: what was taken until then goes back as well.
            let mut more = Buffer::new(bed.nr_pages() + 1);
            assert!(request.call(&bed, 0, &(), &mut more).is_err());
            assert_eq!(refs(), before, "{request:?}");
        }
    }

    fn first_page(bed: &Bed<()>) -> Pfn {
        let mut buffer = Buffer::new(1);
        let [(_, request), ..] = Request::fast(Op::Get, GupFlags::WRITE);
        request.call(bed, 0, &(), &mut buffer).expect("page");
        request.give_back(bed, &mut buffer);
        buffer.pages[0]
    }
}
