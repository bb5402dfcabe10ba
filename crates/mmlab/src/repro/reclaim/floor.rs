//! Reference loops: what unmapping cannot do without, and nothing else.
//!
//! `entries` is one read-modify-write per entry. `floor` is what the rules demand, however fast the
//! rest is. Entries are taken by a read-modify-write each, or by a load and a store if they are
//! read-only, as a CPU marks those accessed at most (rule PTE-18). Besides, for each folio the
//! folio lock (taken and given back), the lock of the counts, its counts, and the references; for each group of folios that are unmapped
//! together the tree's lock shared (taken and given back), the table's lock, the flush that is put off,
//! the counter of the space. That is nine locked operations for a folio alone, and four for one of
//! many. Nothing of the crates is called.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// The records of two pages, as in a memory map. Those of a folio's counts are its first.
#[repr(C, align(64))]
#[derive(Default)]
struct Records {
    refs: AtomicU32,
    flags: AtomicU32,
    _first: [u32; 6],
    counts: AtomicU32,
    total: AtomicU32,
    whole: AtomicU32,
    _second: [u32; 5],
}

/// One line each, as what threads share should be.
#[repr(C, align(64))]
#[derive(Default)]
struct Word(AtomicU64);

/// Entries and records of `nr` pages in folios of `folio` pages.
pub(super) struct Floor {
    entries: Vec<AtomicU64>,
    records: Vec<Records>,
    tables: Vec<Word>,
    tree: Word,
    put_off: Word,
    rss: Word,
    folio: usize,
    together: usize,
    read_only: bool,
}

fn microseconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64() * 1e6
}
/// Takes a lock that nobody holds.
fn lock(word: &AtomicU64, add: u64) {
    let seen = word.load(Ordering::Relaxed);
    let _ =
        black_box(word.compare_exchange(seen, seen + add, Ordering::Acquire, Ordering::Relaxed));
}

impl Floor {
    /// `together` folios, of one table, share what is not each folio's own. `read_only`: so are the
    /// entries.
    pub fn new(nr: usize, folio: usize, together: usize, read_only: bool) -> Self {
        Floor {
            entries: (0..nr as u64).map(AtomicU64::new).collect(),
            records: (0..nr.div_ceil(2)).map(|_| Records::default()).collect(),
            tables: (0..nr.div_ceil(512)).map(|_| Word::default()).collect(),
            tree: Word::default(),
            put_off: Word::default(),
            rss: Word::default(),
            folio,
            together,
            read_only,
        }
    }
    /// One read-modify-write per entry; microseconds.
    pub fn entries(&self) -> f64 {
        microseconds(|| {
            for cell in &self.entries {
                black_box(cell.swap(0, Ordering::Relaxed));
            }
        })
    }
    /// All of it; microseconds.
    pub fn floor(&self) -> f64 {
        for records in &self.records {
            records.refs.store(2, Ordering::Relaxed);
            records.total.store(self.folio as u32, Ordering::Relaxed);
            records.whole.store(1, Ordering::Relaxed);
        }
        microseconds(|| {
            let pages = self.folio * self.together;
            for (k, cells) in self.entries.chunks(pages).enumerate() {
                self.unmap(k * pages, cells);
            }
        })
    }
    /// Folios of one table.
    fn unmap(&self, first: usize, cells: &[AtomicU64]) {
        let table = &self.tables[first / 512].0;
        for k in (0..cells.len()).step_by(self.folio) {
            self.records[(first + k) / 2].flags.fetch_or(1, Ordering::Acquire);
        }
        lock(&self.tree.0, 1);
        lock(table, 1);
        for (k, cells) in cells.chunks(self.folio).enumerate() {
            self.unmap_folio(first + k * self.folio, cells);
        }
        lock(&self.put_off.0, 1);
        self.rss.0.fetch_sub(cells.len() as u64, Ordering::Relaxed);
        table.store(0, Ordering::Release);
        self.tree.0.fetch_sub(1, Ordering::Release);
        for k in (0..cells.len()).step_by(self.folio) {
            self.records[(first + k) / 2].flags.fetch_and(!1, Ordering::Release);
        }
    }
    fn unmap_folio(&self, first: usize, cells: &[AtomicU64]) {
        let head = &self.records[first / 2];
        for cell in cells {
            if self.read_only {
                black_box(cell.load(Ordering::Relaxed));
                cell.store(0, Ordering::Relaxed);
            } else {
                black_box(cell.swap(0, Ordering::Relaxed));
            }
        }
        let state = head.counts.load(Ordering::Relaxed);
        let _ =
            head.counts.compare_exchange(state, state | 1, Ordering::Acquire, Ordering::Relaxed);
        let less = |count: &AtomicU32, by: u32| {
            count.store(count.load(Ordering::Relaxed).wrapping_sub(by), Ordering::Relaxed);
        };
        less(&head.total, cells.len() as u32);
        less(&head.whole, 1);
        head.counts.store(state, Ordering::Release);
        head.refs.fetch_sub(1, Ordering::Release);
    }
}
