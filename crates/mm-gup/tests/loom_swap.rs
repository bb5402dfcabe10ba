//! Models of a lockless pin against the way to swap, on the production code of both.
//!
//! | race | threads | test |
//! |---|---|---|
//! | F-RACE-03, F-RACE-04, P-RACE-04, P-RACE-17 | pin; share and replace a run | `a_pinned_page_does_not_go_to_swap` |
#![cfg(loom)]

use core::num::NonZeroU32;
use mm_arch::model::ModelWord;
use mm_arch::{Arch, Entry, Level, Pfn, VirtAddr, VirtRange, WriteKind, respect};
use mm_folio::{Exclusivity, FolioFlags, FolioRun, Get, Pin};
use mm_gup::{FastPolicy, GupFlags, Pages, fast::Walk, unpin_pages};
use mm_map::{MapPolicy, exit, mmap_anon};
use mm_pgtable::{LockedEntry, TablesStay};
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_rmap::{RmapPlatform, swap_out_ptes};
use mm_sync::model::{Bounds, caught, holds_with};
use mm_sync::thread::spawn;
use mm_vma::{Mm, Platform, RssKind, SwapSpace, VmaFlags};

type A = ModelWord<4>;
type P = ModelPlatform<A>;
type E = <A as Arch>::Entry;

const START: VirtAddr = VirtAddr::new(0);

/// No table is freed while these are used.
fn stay<'a>() -> TablesStay<'a> {
    // SAFETY: see there.
    unsafe { TablesStay::new() }
}

/// Maps a new exclusive, writable folio from page 0 on.
fn map(p: &P, mm: &Mm<P>, order: u32) -> Pfn {
    let range = VirtRange::units(START, 4, 12).expect("range");
    mmap_anon(&mut mm.write(), range, VmaFlags::READ | VmaFlags::WRITE).expect("free");
    let vmas = mm.read();
    let vma = vmas.find(START).expect("mapped");
    let anon = p.anon_trees().prepare(mm, &vmas, vma).expect("memory");
    let mut new = p.memmap().alloc(order).expect("frames");
    if order > 0 {
        new.grow((1 << order) - 1).expect("fits");
    }
    let folio = new.hand_over();
    folio.set_anon(anon, 0);
    folio.set_flag(FolioFlags::UPTODATE | FolioFlags::SWAPBACKED);
    folio.add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
    mm.counters().add(RssKind::Anon, 1 << order);
    let e = E::leaf(folio.head(), A::prot(vma.protection()), Level::Pte).mkwrite(WriteKind::Normal);
    let ensured = mm.tables().ensure_table(stay(), START).expect("memory");
    ensured.table().expect("no leaf").fill(0, 1 << order, e);
    folio.head()
}

/// One thread pins `nr` pages from page 0 on, another replaces all entries of the folio.
fn pin_and_swap_out(order: u32, nr: usize, policy: FastPolicy) {
    let config = ModelConfig { nr_frames: 8, nr_tables: 6, swap_slots: 8, ..ModelConfig::tiny() };
    let p = machine::<A>(config).expect("machine");
    let mm = Mm::new(p.clone()).expect("space");
    let head = map(&p, &mm, order);
    let own = p.memmap().folio(head).grab::<Get>(1).expect("room");
    let (folio, locked) = (own.folio(), own.folio().lock());
    let first = p.slots().add(&locked).expect("room");
    let pinner = spawn({
        let mm = mm.clone();
        move || {
            let walk = Walk {
                tables: mm.tables(),
                map: mm.platform().memmap(),
                write_protect_seq: mm.write_protect_seq(),
                observer: &(),
            };
            let mut out = [Pfn::new(0); 4];
            let pages = &mut Pages::new(&mut out[..nr]);
            let got = walk.take::<Pin>(policy, START, nr, GupFlags::WRITE, pages);
            out[..got].to_vec()
        }
    });
    let gone = {
        let LockedEntry::Table(mut table) = mm.tables().lock_entry(stay(), START) else {
            panic!("no table");
        };
        let run = table.run::<{ respect::NOTHING }>(0, table.get(0), table.limit(0));
        let mut owed = mm.tables().tlb().obligation();
        let done = swap_out_ptes(&mm, &mut table, folio, first, 0, run, &mut owed);
        owed.now();
        done.nr
    };
    if let Some(n) = NonZeroU32::new(gone as u32) {
        folio.remove_ptes(0, n, mm.id());
        p.memmap().put_run::<Get>(FolioRun::new(head, 0, n.get()));
    }
    let got = pinner.join().expect("joins");
    let both = gone > 0 && !got.is_empty();
    let alone = got.iter().all(|pfn| p.memmap().page_exclusive(*pfn));
    unpin_pages(p.memmap(), &got);
    drop(locked);
    drop(own);
    exit(&MapPolicy::default(), &mm);
    assert!(!both, "{gone} pages went to swap, {} of them pinned", got.len());
    assert!(alone, "a page was pinned to be written to, and others may read it");
    assert_eq!((p.folios_in_use(), p.slots().in_use().count()), (0, 0));
}

/// The entries are writable: the pinner looks at them twice, and not at the mark.
/// Rules: RMAP-16, RMAP-19, UNMAP-19, F-RACE-03, F-RACE-04, P-RACE-04, P-RACE-17.
#[test]
fn a_pinned_page_does_not_go_to_swap() {
    let mutants =
        ["gup.pin.mb", "share.mb", "rmap.swap_out.share_first", "rmap.swap_out.restore_shared"];
    let one = || pin_and_swap_out(0, 1, FastPolicy::Page);
    holds_with("pin vs swap-out", Bounds::at_most(3), one);
    for mutant in mutants {
        caught("pin vs swap-out", mutant, one);
    }
    let run = || pin_and_swap_out(2, 2, FastPolicy::Run);
    holds_with("pin vs swap-out, a run", Bounds::at_most(2), run);
    caught("pin vs swap-out, a run", "rmap.swap_out.share_first", run);
}
