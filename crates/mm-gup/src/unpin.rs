//! Giving pages back.

use alloc::vec::Vec;
use mm_arch::Pfn;
use mm_folio::{FolioFlags, FolioRun, FolioSpace, Get, MemMap, Pin, RefKind};

/// Calls `f` for each group of consecutive entries of `pages` that belong to one
/// folio (rule PIN-13): head, index of the first, number of entries.
#[inline]
fn groups<F: FolioSpace>(map: &MemMap<F>, pages: &[Pfn], mut f: impl FnMut(FolioRun)) {
    let mut rest = pages;
    while let Some(&pfn) = rest.first() {
        // Every entry owns a reference, so the folio is stable.
        let folio = map.folio(pfn);
        let (head, nr_pages) = (folio.head(), u64::from(folio.nr_pages()));
        let n = 1 + rest[1..].iter().take_while(|p| p.since(head) < nr_pages).count();
        f(FolioRun { head, first: folio.index_of(pfn), nr: n as u32 });
        rest = &rest[n..];
    }
}

pub(crate) fn give_back_pages<K: RefKind, F: FolioSpace>(map: &MemMap<F>, pages: &[Pfn]) {
    groups(map, pages, |run| map.put_run::<K>(run));
}

/// Gives back one pin per entry, in one step per run of one folio.
pub fn unpin_pages<F: FolioSpace>(map: &MemMap<F>, pages: &[Pfn]) {
    give_back_pages::<Pin, F>(map, pages);
}

/// As [`unpin_pages`], and marks each folio dirty first.
pub fn unpin_pages_dirty<F: FolioSpace>(map: &MemMap<F>, pages: &[Pfn]) {
    groups(map, pages, |run| unpin_run_dirty(map, run));
}

/// Gives back one reference per entry, page by page, as its users do.
pub fn put_pages<F: FolioSpace>(map: &MemMap<F>, pages: &[Pfn]) {
    for pfn in pages {
        let folio = map.folio(*pfn);
        map.put_run::<Get>(FolioRun { head: folio.head(), first: folio.index_of(*pfn), nr: 1 });
    }
}

/// Gives back the pins of `runs`.
pub fn unpin_runs<F: FolioSpace>(map: &MemMap<F>, runs: Vec<FolioRun>) {
    for run in runs {
        map.put_run::<Pin>(run);
    }
}

/// Gives back the references of `runs`.
pub fn put_runs<F: FolioSpace>(map: &MemMap<F>, runs: Vec<FolioRun>) {
    for run in runs {
        map.put_run::<Get>(run);
    }
}

/// Marks the folio of `run` dirty, under its lock if it is not dirty already
/// (rule PIN-14), and gives the pins back.
pub fn unpin_run_dirty<F: FolioSpace>(map: &MemMap<F>, run: FolioRun) {
    let folio = map.folio(run.head);
    if !folio.has(FolioFlags::DIRTY) {
        let locked = folio.lock();
        folio.set_flag(FolioFlags::DIRTY);
        drop(locked);
    }
    map.put_run::<Pin>(run);
}
