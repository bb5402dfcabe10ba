//! Giving pages back. All of it panics for a frame that is not of the map, and in debug builds
//! where more is given back than there is.

use alloc::vec::Vec;
use mm_arch::Pfn;
use mm_folio::{FolioFlags, FolioRun, FolioSpace, Get, MemMap, Pin, RefKind};

/// Calls `f` for each group of consecutive entries of `pages` that belong to one
/// folio (rule PIN-13): head, index of the first, number of entries.
#[inline]
pub(crate) fn groups<F: FolioSpace>(map: &MemMap<F>, pages: &[Pfn], mut f: impl FnMut(FolioRun)) {
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

/// Gives back pins, and says so to the statistics: `nr` pages, the zero page
/// not counted (rules PIN-03, PIN-17).
fn released<F: FolioSpace>(map: &MemMap<F>, nr: u64) {
    map.stats().foll_pin_released.add(nr);
}

/// The pages of `run` that the pin statistics count.
pub(crate) fn counted<F: FolioSpace>(map: &MemMap<F>, run: &FolioRun) -> u64 {
    if map.is_zero_page(run.head) { 0 } else { u64::from(run.nr) }
}

pub(crate) fn give_back_run<K: RefKind, F: FolioSpace>(map: &MemMap<F>, run: FolioRun) {
    if K::PINS {
        released(map, counted(map, &run));
    }
    map.put_run::<K>(run);
}

/// Gives back one pin per entry, in one step per run of one folio.
pub fn unpin_pages<F: FolioSpace>(map: &MemMap<F>, pages: &[Pfn]) {
    let mut nr = 0;
    groups(map, pages, |run| {
        nr += counted(map, &run);
        map.put_run::<Pin>(run);
    });
    released(map, nr);
}

/// As [`unpin_pages`], and marks each folio dirty first.
pub fn unpin_pages_dirty<F: FolioSpace>(map: &MemMap<F>, pages: &[Pfn]) {
    groups(map, pages, |run| unpin_run_dirty(map, run));
}

/// Gives back one pin of each of the `nr` pages from `first` on, which are
/// consecutive frames of one or more folios, and marks the folios dirty first.
pub fn unpin_range_dirty<F: FolioSpace>(map: &MemMap<F>, first: Pfn, nr: u64) {
    let mut done = 0;
    while done < nr {
        let pfn = first.add(done);
        let folio = map.folio(pfn);
        let index = folio.index_of(pfn);
        let n = u64::from(folio.nr_pages() - index).min(nr - done);
        unpin_run_dirty(map, FolioRun { head: folio.head(), first: index, nr: n as u32 });
        done += n;
    }
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
        give_back_run::<Pin, F>(map, run);
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
    give_back_run::<Pin, F>(map, run);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use mm_arch::model::ModelWord;
    use mm_vma::Platform;
    use mm_vma::model::{ModelConfig, ModelPlatform};

    /// Rules: PIN-13. Consecutive entries of one folio are one put, whatever their order.
    #[test]
    fn entries_of_one_folio_are_grouped() {
        let m = ModelPlatform::<ModelWord<8>>::new(ModelConfig::default()).expect("machine");
        let map = m.memmap();
        let (a, b) = (map.alloc(2).expect("memory"), map.alloc(0).expect("memory"));
        let (a, b) = (a.folio(), b.folio());
        let puts = |pages: &[Pfn]| {
            let mut runs = Vec::new();
            groups(map, pages, |run| runs.push((run.head, run.nr)));
            runs
        };
        let pages = [a.page(0), a.page(1), b.head(), a.page(2)];
        assert_eq!(puts(&pages), [(a.head(), 2), (b.head(), 1), (a.head(), 1)]);
        assert_eq!(puts(&[a.page(3), a.page(3), a.page(0)]), [(a.head(), 3)]);
        assert_eq!(puts(&[]), []);
    }
}
