//! Where pages go.

use alloc::vec::Vec;
use mm_arch::Pfn;
use mm_folio::{FolioRun, FolioSpace, MemMap, RefKind};

/// Receives runs of pages, and owns a reference or pin for each page from then on.
pub trait Sink {
    /// Takes over the references of `run`.
    fn push(&mut self, run: FolioRun);
    /// Takes over the reference of one page, of the folio at `head`. A loop over
    /// pages calls it: an output of pages need not know the folio.
    #[inline]
    fn push_page(&mut self, page: Pfn, head: Pfn) {
        self.push(FolioRun { head, first: page.since(head) as u32, nr: 1 });
    }
    /// Number of pages so far.
    fn pages(&self) -> usize;
    /// Calls `f` for the runs of all pages behind the first `from`.
    fn each_run<F: FolioSpace>(&self, map: &MemMap<F>, from: usize, f: impl FnMut(FolioRun));
    /// Forgets all pages behind the first `keep`.
    fn truncate(&mut self, keep: usize);
    /// Gives back the references of all pages behind the first `keep`.
    fn give_back<K: RefKind, F: FolioSpace>(&mut self, map: &MemMap<F>, keep: usize) {
        self.each_run(map, keep, |run| crate::unpin::give_back_run::<K, F>(map, run));
        self.truncate(keep);
    }
    /// Makes room for up to `nr` more pages, and says for how many there is: no
    /// `push` of that many allocates. 0 means that there is no memory.
    fn reserve(&mut self, nr: usize) -> usize;
}

/// One page number per page, as `pages[]` has one pointer.
#[derive(Debug)]
pub struct Pages<'a> {
    out: &'a mut [Pfn],
    nr: usize,
}

impl<'a> Pages<'a> {
    /// Fills `out` from its start.
    pub fn new(out: &'a mut [Pfn]) -> Self {
        Pages { out, nr: 0 }
    }
    /// What was filled.
    pub fn filled(&self) -> &[Pfn] {
        &self.out[..self.nr]
    }
}

impl Sink for Pages<'_> {
    #[inline]
    fn push(&mut self, run: FolioRun) {
        let first = run.head.add(u64::from(run.first));
        // `reserve` made sure of the room.
        if run.nr == 1 {
            self.out[self.nr] = first;
            self.nr += 1;
            return;
        }
        for (i, page) in self.out[self.nr..][..run.nr as usize].iter_mut().enumerate() {
            *page = first.add(i as u64);
        }
        self.nr += run.nr as usize;
    }
    #[inline]
    fn push_page(&mut self, page: Pfn, _: Pfn) {
        self.out[self.nr] = page;
        self.nr += 1;
    }
    fn pages(&self) -> usize {
        self.nr
    }
    fn each_run<F: FolioSpace>(&self, map: &MemMap<F>, from: usize, f: impl FnMut(FolioRun)) {
        crate::unpin::groups(map, &self.out[from..self.nr], f);
    }
    fn truncate(&mut self, keep: usize) {
        self.nr = self.nr.min(keep);
    }
    fn reserve(&mut self, nr: usize) -> usize {
        // All or nothing: a request for more than the output holds is a mistake.
        if self.out.len() - self.nr >= nr { nr } else { 0 }
    }
}

/// Runs of folios: one entry per run, whatever maps it; neighbours that continue
/// each other are merged, across tables and calls.
#[derive(Debug, Default)]
pub struct Runs {
    runs: Vec<FolioRun>,
    nr: usize,
}

impl Runs {
    /// Pages taken between two reservations.
    const STEP: usize = 16384;

    /// No runs.
    pub fn new() -> Self {
        Runs::default()
    }
    /// The runs.
    pub fn runs(&self) -> &[FolioRun] {
        &self.runs
    }
    /// Forgets the runs without giving their references back.
    pub fn take(&mut self) -> Vec<FolioRun> {
        self.nr = 0;
        core::mem::take(&mut self.runs)
    }
}

impl Sink for Runs {
    #[inline]
    fn push(&mut self, run: FolioRun) {
        self.nr += run.nr as usize;
        if let Some(last) = self.runs.last_mut()
            && last.head == run.head
            && last.first + last.nr == run.first
        {
            last.nr += run.nr;
            return;
        }
        self.runs.push(run);
    }
    fn pages(&self) -> usize {
        self.nr
    }
    fn each_run<F: FolioSpace>(&self, _: &MemMap<F>, from: usize, mut f: impl FnMut(FolioRun)) {
        let mut skip = from;
        for run in &self.runs {
            let here = skip.min(run.nr as usize) as u32;
            skip -= here as usize;
            if here < run.nr {
                f(FolioRun { head: run.head, first: run.first + here, nr: run.nr - here });
            }
        }
    }
    fn truncate(&mut self, keep: usize) {
        while self.nr > keep {
            let Some(last) = self.runs.last_mut() else { return };
            let excess = (self.nr - keep).min(last.nr as usize);
            last.nr -= excess as u32;
            self.nr -= excess;
            if last.nr == 0 {
                self.runs.pop();
            }
        }
    }
    fn reserve(&mut self, nr: usize) -> usize {
        // At worst one run per page. Bounded, so that a request of a gigabyte
        // in large folios does not reserve for single pages.
        let nr = nr.min(Self::STEP);
        if self.runs.try_reserve(nr).is_ok() { nr } else { 0 }
    }
}
