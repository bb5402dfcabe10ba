//! Rows of the rule book's table of scenarios, each on every layout of memory that it
//! can tell apart.

mod collapse;
mod cow;
mod hints;
mod memory;
mod moves;
mod reuse;
mod rights;

use crate::common::*;
use mm_arch::{Entry, Level, Pfn, Rights};
use mm_fault::{OrderMode, ThpMode};
use mm_map::{Advice, OldPlace};
use mm_pgtable::LockedEntry;
use mm_sim::{Pinned, Preset, audit, leaks};
use mm_vma::{Platform, VmaFlags};

const BOTH: Rights = Rights::READ.union(Rights::WRITE);

/// How the memory of a row came about, by the names of the rule book.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// L1: one small page.
    Page,
    /// L3: a leaf of 512 pages.
    Leaf,
    /// L5: a folio of this order, mapped by single entries.
    Ptes(u32),
    /// L6: of such a folio the first page alone.
    Single(u32),
    /// L7: the half of a leaf that stayed when the other moved away.
    Stayed,
    /// L7: the half that moved.
    Moved,
    /// L8: such a folio whose first page was shared once, with a child that is gone.
    SharedOnce(u32),
}

impl Layout {
    /// Those of the table, with folios of 4, 16, 256 and 512 pages.
    const ALL: [Layout; 15] = [
        Layout::Page,
        Layout::Leaf,
        Layout::Ptes(2),
        Layout::Ptes(4),
        Layout::Ptes(8),
        Layout::Ptes(9),
        Layout::Single(2),
        Layout::Single(4),
        Layout::Single(9),
        Layout::Stayed,
        Layout::Moved,
        Layout::SharedOnce(2),
        Layout::SharedOnce(4),
        Layout::SharedOnce(8),
        Layout::SharedOnce(9),
    ];
    const fn order(self) -> u32 {
        match self {
            Layout::Page => 0,
            Layout::Leaf | Layout::Stayed | Layout::Moved => 9,
            Layout::Ptes(order) | Layout::Single(order) | Layout::SharedOnce(order) => order,
        }
    }
}

/// Faults get folios of this order.
fn large(m: &M, order: u32) {
    m.host().set_policy(|p| {
        let thp = p.fault.thp.with_global(ThpMode::Never);
        let off = (2..=9).fold(thp, |thp, o| thp.with_order(o, OrderMode::Never));
        p.fault.thp = if order == 0 { off } else { off.with_order(order, OrderMode::Always) };
    });
}
/// Maps `n` private pages and stores `base` and more to them.
fn filled(p: &P, first: u64, n: u64, base: u64) {
    p.mmap_anon(pages(first, n), RW).expect("mmap");
    (first..first + n).for_each(|i| p.store(page(i), base + i).expect("store"));
}
/// A leaf becomes single entries, as a change of one page's rights does it.
fn split_leaf(p: &P, first: u64) {
    p.mprotect(pages(first, 1), Rights::READ).expect("mprotect");
    p.mprotect(pages(first, 1), BOTH).expect("mprotect");
}

/// A process whose pages from `first` on hold [`Row::OLD`] and more.
struct Row {
    m: M,
    p: P,
    first: u64,
    n: u64,
}

impl Row {
    const OLD: u64 = 1000;
    const NEW: u64 = 5000;

    fn new(layout: Layout, preset: Preset) -> Self {
        let m = machine_under(16, preset);
        m.host().swap().add::<A>(2048).expect("room");
        large(&m, layout.order());
        let p = m.spawn().expect("process");
        let all = 1 << layout.order();
        filled(&p, 0, all, Self::OLD);
        if layout.order() == 9 && layout != Layout::Leaf {
            split_leaf(&p, 0);
        }
        let (mut first, mut n) = (0, all);
        match layout {
            Layout::Page | Layout::Leaf | Layout::Ptes(_) => {}
            Layout::Single(_) => {
                p.madvise(pages(1, all - 1), Advice::DontNeed).expect("discard");
                n = 1;
            }
            Layout::Stayed | Layout::Moved => {
                n = all / 2;
                p.mremap_move(pages(n, n), page(1024 + n), OldPlace::Unmap).expect("move");
                if layout == Layout::Moved {
                    first = 1024 + n;
                    (first..first + n)
                        .for_each(|i| p.store(page(i), Self::OLD + i).expect("store"));
                }
            }
            Layout::SharedOnce(_) => {
                p.madvise(pages(1, all - 1), Advice::DontFork).expect("advice");
                p.fork().expect("fork").exit();
                p.madvise(pages(1, all - 1), Advice::DoFork).expect("advice");
            }
        }
        Row { m, p, first, n }
    }
    fn range(&self) -> mm_arch::VirtRange {
        pages(self.first, self.n)
    }
    fn each(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.n
    }
    /// `process` stores new values to all pages.
    fn write(&self, process: &P) {
        self.each().for_each(|i| process.store(page(i), Self::NEW + i).expect("store"));
    }
    #[track_caller]
    fn reads(&self, process: &P, base: u64) {
        self.each().for_each(|i| assert_eq!(process.load(page(i)), Ok(base + i), "page {i}"));
    }
    #[track_caller]
    fn holder_reads(&self, held: &Pinned<A>, base: u64) {
        for (k, i) in self.each().enumerate() {
            assert_eq!(held.load(k, 0), Some(base + i), "page {i} as its holder sees it");
        }
    }
    /// The frames that `process` has mapped.
    fn frames(&self, process: &P) -> Vec<Pfn> {
        self.each().map(|i| frame(process, i)).collect()
    }
    #[track_caller]
    fn sound(&self, processes: &[&P], held: &[&Pinned<A>]) {
        self.m.settle();
        let found = audit(&self.m, processes.iter().copied(), held.iter().copied());
        assert_eq!(found, []);
    }
    /// Nothing is left when the process is gone.
    fn end(self) {
        self.sound(&[&self.p], &[]);
        self.p.exit();
        self.m.settle();
        assert_eq!(leaks(&self.m), []);
    }
}

/// The frame that is mapped at page `i`.
#[track_caller]
fn frame(p: &P, i: u64) -> Pfn {
    let vmas = p.mm().read();
    match p.mm().tables().lock_entry(vmas.stay(), page(i)) {
        LockedEntry::Table(t) => t.get(t.index_of(page(i))).pfn(Level::Pte),
        LockedEntry::Huge(pmd) => pmd.entry().pfn(Level::Pmd).add(i % 512),
        LockedEntry::Hole => panic!("nothing at {i}"),
    }
}
/// Which of the pages have an entry that `what` says yes to; a leaf counts as all of them.
fn entries_that(
    p: &P,
    range: std::ops::Range<u64>,
    what: impl Fn(Pfn, <A as mm_arch::Arch>::Entry, Level) -> bool,
) -> Vec<u64> {
    let vmas = p.mm().read();
    let is = |i: &u64| match p.mm().tables().lock_entry(vmas.stay(), page(*i)) {
        LockedEntry::Table(t) => {
            let e = t.get(t.index_of(page(*i)));
            e.is_leaf(Level::Pte) && what(e.pfn(Level::Pte), e, Level::Pte)
        }
        LockedEntry::Huge(pmd) => {
            let e = pmd.entry();
            e.is_leaf(Level::Pmd) && what(e.pfn(Level::Pmd).add(i % 512), e, Level::Pmd)
        }
        LockedEntry::Hole => false,
    };
    range.filter(is).collect()
}
fn writable(p: &P, range: std::ops::Range<u64>) -> Vec<u64> {
    entries_that(p, range, |_, e, level| e.is_writable(level))
}
fn exclusive(p: &P, range: std::ops::Range<u64>) -> Vec<u64> {
    let map = p.host().memmap();
    entries_that(p, range, |pfn, _, level| {
        map.page_exclusive(if level == Level::Pmd { map.folio(pfn).head() } else { pfn })
    })
}
/// Faults by the CPU since the last call.
fn faults(p: &P) -> usize {
    p.take_faults().cpu.len()
}
