//! Reference loops: the memory accesses that GUP cannot do without, and nothing else.
//!
//! Absolute times move between machines and days; every target is a multiple of
//! one of these loops, run interleaved in the same process. Nothing of the
//! crates is called and no vector instruction is written down.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const FRAME: u64 = 0x000f_ffff_ffff_f000;
const STEP: u64 = 1 << 12;
const IGNORE: u64 = 1 << 5 | 1 << 6 | 1 << 11 | 1 << 58;
const REFERENCED: u32 = 1;

/// Two page records on one cache line, as a memory map lays them out.
#[repr(C, align(64))]
struct Line {
    refs: AtomicU32,
    flags: AtomicU32,
    _rest: [u64; 5],
    pins: AtomicU64,
    _pad: u64,
}

/// Which reference loop a row of a table is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loop {
    /// One compare-exchange per page.
    PerPage,
    /// Eight entries per branch, two atomics per run, fused with the fill.
    Run,
    /// One entry per 512 pages.
    Leaf,
}

/// Entries and records of `nr` pages in folios of `folio` pages.
pub struct Reference {
    entries: Vec<AtomicU64>,
    lines: Vec<Line>,
    folio: usize,
}

impl Reference {
    /// A table that maps `nr` pages of folios of `folio` pages (a power of two
    /// that divides `nr`).
    pub fn new(nr: usize, folio: usize) -> Self {
        let entry = |i: usize| AtomicU64::new((i as u64 + 0x1000) << 12 | 0x867 | 1 << 63);
        Reference {
            entries: (0..nr).map(entry).collect(),
            // One record per page, two per line: a small folio's neighbours
            // share its line, as in a memory map.
            lines: (0..nr.div_ceil(2))
                .map(|_| Line {
                    refs: AtomicU32::new(1),
                    flags: AtomicU32::new(REFERENCED),
                    _rest: [0; 5],
                    pins: AtomicU64::new(0),
                    _pad: 0,
                })
                .collect(),
            folio,
        }
    }

    /// Runs `which` over all pages; `pins` adds the pin count's atomics.
    pub fn take(&self, which: Loop, pins: bool, out: &mut [u64]) -> usize {
        match which {
            Loop::PerPage => self.per_page(pins, out),
            Loop::Run => self.run(pins, out),
            Loop::Leaf => self.leaf(pins, out),
        }
    }

    /// Gives everything back, untimed.
    pub fn give_back(&self) {
        for line in &self.lines {
            line.refs.store(1, Ordering::Relaxed);
            line.pins.store(0, Ordering::Relaxed);
        }
    }

    fn grab(&self, page: usize, n: u32, pins: bool) -> bool {
        let line = &self.lines[(page & !(self.folio - 1)) / 2];
        let mut seen = line.refs.load(Ordering::Relaxed);
        loop {
            if seen == 0 {
                return false;
            }
            match line.refs.compare_exchange_weak(
                seen,
                seen + n,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // A small folio has its pins in the same count.
        if pins && self.folio > 1 {
            line.pins.fetch_add(u64::from(n), Ordering::Relaxed);
        }
        if line.flags.load(Ordering::Relaxed) & REFERENCED == 0 {
            line.flags.fetch_or(REFERENCED, Ordering::Relaxed);
        }
        true
    }

    fn per_page(&self, pins: bool, out: &mut [u64]) -> usize {
        for (i, cell) in self.entries.iter().enumerate() {
            let e = cell.load(Ordering::Relaxed);
            if e & 1 == 0 || !self.grab(i, 1, pins) || cell.load(Ordering::Relaxed) != e {
                return i;
            }
            out[i] = (e & FRAME) >> 12;
        }
        black_box(out).len()
    }

    fn run(&self, pins: bool, out: &mut [u64]) -> usize {
        let mut at = 0;
        while at < self.entries.len() {
            let cell = &self.entries[at];
            let head = cell.load(Ordering::Relaxed);
            if head & 1 == 0 || !self.grab(at, 1, pins) || cell.load(Ordering::Relaxed) != head {
                return at;
            }
            let nr = self.folio;
            let cells = &self.entries[at..at + nr];
            let pages = &mut out[at..at + nr];
            let (mut e, mut page) = (head, (head & FRAME) >> 12);
            let mut n = 0;
            for (cells, pages) in cells.chunks_exact(8).zip(pages.chunks_exact_mut(8)) {
                let mut diff = 0;
                for (cell, p) in cells.iter().zip(pages) {
                    diff |= (cell.load(Ordering::Relaxed) ^ e) & !IGNORE;
                    *p = page;
                    e = e.wrapping_add(STEP);
                    page += 1;
                }
                if diff != 0 {
                    return at + n;
                }
                n += 8;
            }
            let line = &self.lines[at / 2];
            line.refs.fetch_add(nr as u32 - 1, Ordering::Relaxed);
            if pins {
                line.pins.fetch_add(nr as u64 - 1, Ordering::Relaxed);
            }
            at += nr;
        }
        black_box(out).len()
    }

    fn leaf(&self, pins: bool, out: &mut [u64]) -> usize {
        let mut at = 0;
        while at < self.entries.len() {
            let cell = &self.entries[at];
            let e = cell.load(Ordering::Relaxed);
            if e & 1 == 0 || !self.grab(at, self.folio as u32, pins) {
                return at;
            }
            if cell.load(Ordering::Relaxed) != e {
                return at;
            }
            let first = (e & FRAME) >> 12;
            for (i, page) in out[at..at + self.folio].iter_mut().enumerate() {
                *page = first + i as u64;
            }
            at += self.folio;
        }
        black_box(out).len()
    }
}
