//! A leaf of a PUD: one GiB in one entry.

use crate::common::*;
use mm_arch::{Arch, Entry, Level, Pfn, Protection, VirtAddr, VirtRange, WriteKind};
use mm_folio::{Folio, Get, Pin, RefKind};
use mm_gup::{Gup, GupErrorKind, GupFlags, Pages, Sink, put_pages, unpin_pages};
use mm_map::{MapPolicy, exit, mmap_anon};
use mm_pgtable::TableInTheWay;
use mm_rmap::model::{ModelConfig, machine};
use mm_vma::{Event, Mm, Platform};
use mm_x86::X86_64;
use std::sync::Arc;

const PAGES: u32 = 1 << 18;
const LEAF: VirtAddr = VirtAddr::new(1 << 30);

struct Gigantic {
    m: M<X86_64>,
    mm: Arc<Mm<M<X86_64>>>,
    head: Pfn,
}

impl Gigantic {
    /// A space of 2 GiB, the first half one leaf.
    fn new() -> Self {
        let config = ModelConfig { nr_frames: 0x8_0000, ..ModelConfig::default() };
        let m = machine::<X86_64>(config).expect("machine");
        let mm = Mm::new(m.clone()).expect("space");
        let range = VirtRange::new(LEAF, 2 << 30).expect("range");
        mmap_anon(&mut mm.write(), range, RW).expect("free");
        let head = m.memmap().alloc(18).expect("memory").hand_over().head();
        let g = Gigantic { m, mm, head };
        let prot = g.mm.read().find(LEAF).expect("mapped").protection();
        g.set(leaf(head, prot)).expect("nothing there");
        g
    }
    fn folio(&self) -> Folio<'_, M<X86_64>> {
        self.m.memmap().folio(self.head)
    }
    fn set(&self, e: E<X86_64>) -> Result<E<X86_64>, TableInTheWay> {
        let vmas = self.mm.read();
        let mut owed = self.mm.tables().tlb().obligation();
        let pud = self.mm.tables().ensure_pud(vmas.stay(), LEAF).expect("memory");
        pud.expect("the format has PUDs").swap_leaf(e, &mut owed)
    }
    fn leaf(&self) -> E<X86_64> {
        let vmas = self.mm.read();
        self.mm.tables().lock_pud(vmas.stay(), LEAF).expect("there").entry()
    }
    fn page(&self, n: u64) -> VirtAddr {
        LEAF.add_units(n, 12)
    }
    /// Takes pages from page `first` on; number or error, and (references, pins) held.
    fn take<K: RefKind>(
        &self,
        how: How,
        first: u64,
        nr: usize,
        flags: GupFlags,
    ) -> (Result<usize, GupErrorKind>, (i32, u32), u64) {
        let (mut buf, counts) = (vec![Pfn::new(0); nr], Counts::default());
        let mut out = Pages::new(&mut buf);
        let gup = Gup::new(&self.mm, &()).with_policy(how.policy()).observed_by(&counts);
        let got = how.call::<K, X86_64, _, _>(&gup, self.page(first), nr, flags, &mut out);
        let held = (self.folio().refcount() - 1, self.folio().pincount());
        let pages = out.filled();
        assert_eq!(pages.len(), got.unwrap_or(0));
        assert!(pages.iter().zip(first..).all(|(p, n)| *p == self.head.add(n)));
        if K::PINS {
            unpin_pages(self.m.memmap(), pages);
        } else {
            put_pages(self.m.memmap(), pages);
        }
        assert_eq!((self.folio().refcount(), self.folio().pincount()), (1, 0));
        (got.map_err(|e| e.kind), held, counts.of(Event::Grabs))
    }
    fn finish(self) {
        self.set(E::<X86_64>::NONE).expect("a leaf");
        self.m.memmap().put_run::<Get>(mm_folio::FolioRun::new(self.head, 0, 1));
        exit(&MapPolicy::default(), &self.mm);
        assert_eq!(self.m.folios_in_use(), 0);
    }
}

/// A writable leaf.
fn leaf(head: Pfn, prot: Protection) -> E<X86_64> {
    let e = E::<X86_64>::leaf(head, X86_64::prot(prot), Level::Pud);
    e.mkdirty().mkyoung().mkwrite(WriteKind::Normal)
}

/// Rules: GUPS-11, GUPS-11a, GUPF-09: the real count, from one entry, by one grab.
#[test]
fn is_taken_in_one_step() {
    let g = Gigantic::new();
    for how in How::FAST.into_iter().chain(How::SLOW) {
        let whole = PAGES as usize;
        assert_eq!(g.take::<Get>(how, 3, 10, READ), (Ok(10), (10, 0), 1), "{how:?}");
        assert_eq!(g.take::<Pin>(how, 0, whole, WRITE), (Ok(whole), (whole as i32, PAGES), 1));
        // The mapping goes on, the leaf does not.
        let (got, held, _) = g.take::<Get>(how, u64::from(PAGES) - 2, 5, READ);
        assert_eq!((got, held), (Ok(2), (2, 0)), "{how:?}");
    }
    g.finish();
}

/// Rules: GUPS-11a, GUPS-22, GUPS-25: what may not be taken faults, and holds nothing.
#[test]
fn that_may_not_be_taken_faults() {
    let g = Gigantic::new();
    let before = g.set(g.leaf().wrprotect()).expect("a leaf");
    for how in How::FAST.into_iter().chain(How::SLOW) {
        let fault = if how.is_fast() { Ok(0) } else { Err(GupErrorKind::Fault) };
        assert_eq!(g.take::<Pin>(how, 7, 2, WRITE).0, fault, "{how:?}");
        // Not anonymous, in a private mapping: a long-term pin must not see another's page.
        assert_eq!(g.take::<Pin>(how, 7, 2, GupFlags::LONGTERM).0, fault, "{how:?}");
        assert_eq!(g.take::<Get>(how, 7, 2, READ).0, Ok(2));
    }
    g.set(before).expect("a leaf");
    g.finish();
}

/// A table is not thrown away for a leaf.
#[test]
fn does_not_replace_a_table() {
    let g = Gigantic::new();
    g.set(E::<X86_64>::NONE).expect("a leaf");
    drop(g.mm.tables().ensure_pmd(g.mm.read().stay(), LEAF).expect("memory"));
    let e = leaf(g.head, g.mm.read().find(LEAF).expect("mapped").protection());
    assert_eq!(g.set(e), Err(TableInTheWay));
    let mut pages = [Pfn::new(0); 1];
    let mut pages = Pages::new(&mut pages);
    let gup = Gup::new(&g.mm, &());
    assert!(How::SlowTable.call::<Get, X86_64, _, _>(&gup, LEAF, 1, READ, &mut pages).is_err());
    assert_eq!(pages.pages(), 0);
    g.m.memmap().put_run::<Get>(mm_folio::FolioRun::new(g.head, 0, 1));
    exit(&MapPolicy::default(), &g.mm);
    assert_eq!(g.m.folios_in_use(), 0);
}
