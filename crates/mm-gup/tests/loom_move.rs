//! Models of pages that move, split and are collapsed while somebody uses them: whole
//! operations of production code on an address space of one table.
//!
//! | race | threads | test |
//! |---|---|---|
//! | P-RACE-08 | pin; migrate | `a_pinned_page_does_not_move` |
//! | F-RACE-27 | fork; migrate | `a_fork_is_obeyed_by_a_migration` |
//! | F-RACE-08 | fault and reuse; migrate | `a_reused_page_moves_before_or_after` |
//! | F-RACE-19, P-RACE-07 | pin; split a folio | `a_pin_of_a_folio_under_split_is_of_the_right_one` |
//! | P-RACE-06 | pin; split a leaf and its folio | `a_pin_through_a_leaf_under_split_is_of_the_right_one` |
//! | MM-024 | fault; split a leaf of the same folio | `a_leaf_under_split_counts_for_whoever_would_reuse_it` |
//! | F-RACE-17, P-RACE-05 | pin; collapse | `a_pinned_page_is_not_collapsed_away` |
//! | F-RACE-18 | fault; collapse | `a_fault_is_not_lost_in_a_table_that_was_cut_off` |
//! | EXCL-06 | swap-in; fork | `a_page_that_comes_back_beside_a_fork_is_shared` |
//!
//! Pages that were merged are in `loom_move/merged.rs`, those of objects in `loom_move/object.rs`.
#![cfg(loom)]

#[path = "loom_move/merged.rs"]
mod merged;
#[path = "loom_move/object.rs"]
mod object;

use mm_arch::model::ModelWord;
use mm_arch::{Entry, Level, Pfn, VirtAddr, VirtRange};
use mm_fault::{
    FaultFlags, FaultOutcome, FaultPolicy, OrderMode, ThpMode, ThpPolicy, handle_fault,
};
use mm_folio::{FolioRef, FrameBytes, Get};
use mm_gup::{Gup, GupFlags, Pages, unpin_pages};
use mm_map::{CollapseFor, Collapsed, MapPolicy, collapse_anon, exit, fork, mmap_anon};
use mm_pgtable::LockedEntry;
use mm_rmap::model::{ModelConfig, ModelPlatform, UnmapBy, machine, swap_out};
use mm_rmap::{Batching, SplitFolio, migrate_folio, split_anon_folio, split_pmd};
use mm_sync::model::{Bounds, caught, caught_with, holds_with};
use mm_sync::thread::{JoinHandle, spawn};
use mm_vma::{Mm, Platform, RssKind, SwapSpace, VmaFlags};
use std::sync::Arc;

type A = ModelWord<4>;
type P = ModelPlatform<A>;

/// The space of a model. One that failed is not torn down: what it has mapped
/// would make dropping it fail as well.
#[derive(Clone)]
struct Space(Arc<Mm<P>>);

impl Drop for Space {
    fn drop(&mut self) {
        if std::thread::panicking() {
            core::mem::forget(self.0.clone());
        }
    }
}
impl core::ops::Deref for Space {
    type Target = Arc<Mm<P>>;
    fn deref(&self) -> &Arc<Mm<P>> {
        &self.0
    }
}

const BATCHED: Batching = Batching::Batched;

fn page(k: u64) -> VirtAddr {
    VirtAddr::new(k << 12)
}
/// A space with nothing in it.
fn empty() -> (P, Space) {
    let config = ModelConfig { nr_frames: 16, nr_tables: 6, swap_slots: 4, ..ModelConfig::tiny() };
    let p = machine::<A>(config).expect("machine");
    let mm = Space(Mm::new(p.clone()).expect("space"));
    (p, mm)
}
/// A space with a mapping of four pages, of which the first one holds 7.
fn space(thp: ThpPolicy) -> (P, Space) {
    let (p, mm) = empty();
    let range = VirtRange::units(page(0), 4, 12).expect("range");
    mmap_anon(&mut mm.write(), range, VmaFlags::READ | VmaFlags::WRITE).expect("free");
    store(&mm, 0, thp);
    p.bytes().store(entry(&mm, 0).1, 0, 7);
    (p, mm)
}
fn small() -> ThpPolicy {
    ThpPolicy::new(2)
}
fn huge() -> ThpPolicy {
    ThpPolicy::new(2).with_global(ThpMode::Never).with_order(2, OrderMode::Always)
}
/// A fault for a store.
fn store(mm: &Mm<P>, k: u64, thp: ThpPolicy) {
    let outcome = handle_fault(&FaultPolicy::new(thp), &mm.read(), page(k), FaultFlags::WRITE);
    assert_eq!(outcome, FaultOutcome::Done { major: false });
}
/// A fault for a load, of a page that may be on swap.
fn load(mm: &Mm<P>, k: u64) {
    let policy = FaultPolicy::new(small());
    let outcome = handle_fault(&policy, &mm.read(), page(k), FaultFlags::empty());
    assert!(matches!(outcome, FaultOutcome::Done { .. }));
}
/// What maps page `k`, and the frame.
fn entry(mm: &Mm<P>, k: u64) -> (<A as mm_arch::Arch>::Entry, Pfn) {
    let vmas = mm.read();
    match mm.tables().lock_entry(vmas.stay(), page(k)) {
        LockedEntry::Hole => panic!("nothing at {k}"),
        LockedEntry::Huge(pmd) => (pmd.entry(), pmd.entry().pfn(Level::Pmd).add(k)),
        LockedEntry::Table(t) => {
            let e = t.get(t.index_of(page(k)));
            (e, e.pfn(Level::Pte))
        }
    }
}
/// Somebody who pins page `k` without locks.
fn pinner(mm: &Space, k: u64) -> JoinHandle<Option<Pfn>> {
    let mm = mm.clone();
    spawn(move || pin(&mm, k))
}
fn pin(mm: &Space, k: u64) -> Option<Pfn> {
    let mut page_of = [Pfn::new(0)];
    let mut out = Pages::new(&mut page_of);
    let got = Gup::new(mm, &()).pin_fast_only(page(k), 1, GupFlags::WRITE, &mut out);
    got.is_ok_and(|got| got == 1).then_some(page_of[0])
}
fn own<'m>(p: &'m P, mm: &Mm<P>) -> FolioRef<'m, P, Get> {
    p.memmap().folio(entry(mm, 0).1).grab::<Get>(1).expect("room")
}
/// Gives the pin back, if there is one, and ends the space; nothing is left then.
fn finish(p: &P, spaces: &[&Space], pinned: Option<Pfn>) {
    unpin_pages(p.memmap(), pinned.as_slice());
    for mm in spaces {
        exit(&MapPolicy::default(), mm);
    }
    // Last, when no destructor has anything to complain of.
    assert_eq!(p.folios_in_use(), 0);
}
fn race(name: &str, model: impl Fn() + Copy + Send + Sync + 'static, mutants: &[&'static str]) {
    holds_with(name, Bounds::at_most(2), model);
    for mutant in mutants {
        caught(name, mutant, model);
    }
}

/// Rules: P-RACE-08, MIGR-01, FOLIO-07.
#[test]
fn a_pinned_page_does_not_move() {
    fn model() {
        let (p, mm) = space(small());
        let own = own(&p, &mm);
        let old = own.folio().head();
        let pin = pinner(&mm, 0);
        let moved = migrate_folio(&p, &own, None, BATCHED).is_ok();
        drop(own);
        let pinned = pin.join().expect("joins");
        let new = entry(&mm, 0).1;
        let sound = (moved == (new != old), pinned.is_none_or(|got| got == new));
        let content = p.bytes().load(new, 0);
        finish(&p, &[&mm], pinned);
        assert_eq!((sound, content), ((true, true), 7), "a pin of a page that moved");
    }
    race("pin vs migrate", model, &["gup.no_pte_recheck", "folio.freeze.two_steps"]);
}

/// Rules: F-RACE-27, MIGR-03, FORK-10.
#[test]
fn a_fork_is_obeyed_by_a_migration() {
    fn model() {
        let (p, mm) = space(small());
        let own = own(&p, &mm);
        let forker = spawn({
            let mm = mm.clone();
            move || Space(fork(&MapPolicy::default(), &mm).expect("memory"))
        });
        let _ = migrate_folio(&p, &own, None, BATCHED);
        drop(own);
        let child = forker.join().expect("joins");
        let (parents, childs) = (entry(&mm, 0), entry(&child, 0));
        let shared = parents.1 == childs.1;
        let writable = [parents, childs].map(|e| e.0.is_writable(Level::Pte));
        let exclusive = p.memmap().page_exclusive(parents.1);
        finish(&p, &[&child, &mm], None);
        assert!(shared, "both have the page, wherever it is");
        assert_eq!((writable, exclusive), ([false; 2], false), "a shared page is writable");
    }
    race("fork vs migrate", model, &["rmap.resume.by_mapping"]);
}

/// Rules: F-RACE-08, REUSE-02, MIGR-04.
#[test]
fn a_reused_page_moves_before_or_after() {
    fn model() {
        let (p, mm) = space(small());
        // The page was shared once: the next store must find out that it is not now.
        let child = Space(fork(&MapPolicy::default(), &mm).expect("memory"));
        exit(&MapPolicy::default(), &child);
        drop(child);
        let own = own(&p, &mm);
        let writer = spawn({
            let mm = mm.clone();
            move || store(&mm, 0, small())
        });
        let _ = migrate_folio(&p, &own, None, BATCHED);
        drop(own);
        writer.join().expect("joins");
        let (e, pfn) = entry(&mm, 0);
        let folio = p.memmap().folio(pfn);
        let counts = folio.counts_locked(|c| (c.refs, c.mapcount));
        let sound = !e.is_writable(Level::Pte) || p.memmap().page_exclusive(pfn);
        let (content, folios) = (p.bytes().load(pfn, 0), p.folios_in_use());
        finish(&p, &[&mm], None);
        assert_eq!((counts, sound, content, folios), ((1, 1), true, 7, 1));
    }
    race("reuse vs migrate", model, &["rmap.resume.by_mapping"]);
}

/// Splits the folio of page 0 and lets it go, while somebody pins page `k`.
fn split_and_pin(leaf: bool, k: u64) {
    let (p, mm) = space(huge());
    if !leaf {
        split_pmd(&mm, mm.read().stay(), page(0));
    }
    // The pin is what goes on in the middle of the split: the thread that was there first.
    let splitter = spawn({
        let (p, mm) = (p.clone(), mm.clone());
        move || {
            let own = own(&p, &mm);
            let whole = SplitFolio { locked: own.folio().lock(), own };
            let (rest, split) = split_anon_folio(&p, p.memmap(), whole, 0, 0, BATCHED);
            drop(rest.locked);
            drop(rest.own);
            split
        }
    });
    let pinned = pin(&mm, k);
    let split = splitter.join().expect("joins");
    let pfn = entry(&mm, k).1;
    // The pin is of the folio that the page belongs to by now.
    let folio = p.memmap().folio(pfn);
    let counted = folio.maybe_dma_pinned() == pinned.is_some();
    let sound = (pinned.is_none_or(|got| got == pfn), counted);
    let whole = folio.is_large();
    finish(&p, &[&mm], pinned);
    assert_eq!(sound, (true, true), "a pin of another folio");
    assert_eq!(whole, split.is_err());
}

/// Rules: F-RACE-19, P-RACE-07, FOLIO-53, FOLIO-55.
#[test]
fn a_pin_of_a_folio_under_split_is_of_the_right_one() {
    let (name, model) = ("pin vs folio split", || split_and_pin(false, 1));
    race(name, model, &["folio.freeze.two_steps"]);
    // Both threads are interrupted in the middle, and one of them again.
    let b = Bounds { preemptions: Some(3), ..Bounds::default() };
    caught_with(name, b, "gup.no_pte_recheck", model);
}

/// Rules: P-RACE-06, PSPLIT-03.
#[test]
fn a_pin_through_a_leaf_under_split_is_of_the_right_one() {
    let mutants = &["folio.freeze.two_steps"];
    race("pin vs leaf split", || split_and_pin(true, 1), mutants);
}

/// Rules: MM-024, PSPLIT-02.
#[test]
fn a_leaf_under_split_counts_for_whoever_would_reuse_it() {
    fn model() {
        let (p, mm) = space(huge());
        let child = Space(fork(&MapPolicy::default(), &mm).expect("memory"));
        let writer = spawn({
            let mm = mm.clone();
            move || store(&mm, 0, huge())
        });
        split_pmd(&child, child.read().stay(), page(0));
        writer.join().expect("joins");
        let (parents, childs) = (entry(&mm, 0), entry(&child, 0));
        let level = if parents.0.is_leaf(Level::Pmd) { Level::Pmd } else { Level::Pte };
        let sound = !parents.0.is_writable(level) || parents.1 != childs.1;
        finish(&p, &[&child, &mm], None);
        assert!(sound, "the child reads what the parent stores");
    }
    holds_with("huge reuse vs leaf split", Bounds::at_most(1), model);
    caught("huge reuse vs leaf split", "folio.split_counts.whole_first", model);
}

/// Rules: F-RACE-17, P-RACE-05, COLL-02, COLL-03, MM-016.
#[test]
fn a_pinned_page_is_not_collapsed_away() {
    fn model() {
        let (p, mm) = space(small());
        let old = entry(&mm, 0).1;
        let pin = pinner(&mm, 0);
        let done = collapse_anon(&MapPolicy::default(), &mm, page(0), 2, CollapseFor::Caller);
        let pinned = pin.join().expect("joins");
        let new = entry(&mm, 0).1;
        let sound = (done.is_ok() == (new != old), pinned.is_none_or(|got| got == new));
        let content = p.bytes().load(new, 0);
        finish(&p, &[&mm], pinned);
        assert_eq!(
            (sound, content),
            ((true, true), 7),
            "a pin of a page that is not used: {done:?}"
        );
    }
    // The wait and the second look at the PMD stand in for each other here.
    let mutants = &["map.collapse.no_refs", "map.collapse.no_wait+gup.no_pmd_recheck"];
    race("pin vs collapse", model, mutants);
}

/// Rules: F-RACE-18, COLL-02.
#[test]
fn a_fault_is_not_lost_in_a_table_that_was_cut_off() {
    fn model() {
        let (p, mm) = space(small());
        let writer = spawn({
            let mm = mm.clone();
            move || store(&mm, 1, small())
        });
        let done = collapse_anon(&MapPolicy::default(), &mm, page(0), 2, CollapseFor::Caller);
        writer.join().expect("joins");
        let (e, pfn) = entry(&mm, 1);
        let whole = p.memmap().folio(pfn).is_large();
        let (mapped, folios) = (!e.is_none(), p.folios_in_use());
        let counted = mm.counters().get(RssKind::Anon);
        assert_eq!(counted, if whole { 4 } else { 2 }, "a page is counted twice");
        finish(&p, &[&mm], None);
        assert!(mapped, "the page that the fault mapped is lost");
        assert_eq!(whole, done == Ok(Collapsed::Now));
        assert_eq!(folios, if whole { 1 } else { 2 });
    }
    race("fault vs collapse", model, &["map.collapse.stale_survey"]);
}

/// Rules: EXCL-06, FORK-10, SWPI-07.
#[test]
fn a_page_that_comes_back_beside_a_fork_is_shared() {
    fn model() {
        let (p, mm) = space(small());
        assert!(swap_out(&p, entry(&mm, 0).1, UnmapBy::Run));
        let faulter = spawn({
            let mm = mm.clone();
            move || load(&mm, 0)
        });
        let child = Space(fork(&MapPolicy::default(), &mm).expect("memory"));
        faulter.join().expect("joins");
        load(&child, 0);
        let (parents, childs) = (entry(&mm, 0), entry(&child, 0));
        let writable = [parents, childs].iter().any(|e| e.0.is_writable(Level::Pte));
        finish(&p, &[&child, &mm], None);
        assert!(parents.1 != childs.1 || !writable, "one reads what the other stores");
        assert_eq!(p.slots().in_use().count(), 0);
    }
    race("swap-in vs fork", model, &["map.fork.swap_exclusive"]);
}
