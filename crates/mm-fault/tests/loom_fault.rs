//! Models of the races of faults, on the production code. One test per race;
//! the mutants bring the race back.
#![cfg(loom)]

mod common;

use common::*;
use core::num::NonZeroU32;
use mm_arch::model::ModelWord;
use mm_arch::{Arch, Entry, Level, Protection};
use mm_fault::{FaultFlags, FaultOutcome, OrderMode, ThpMode, ThpPolicy};
use mm_folio::{AnonId, Exclusivity, FolioRun, Get};
use mm_pgtable::{Step, TableSpace};
use mm_rmap::model::{ModelConfig, machine};
use mm_sync::atomic::{AtomicU64, Ordering::Relaxed};
use mm_sync::model::{caught, holds};
use mm_sync::thread::spawn;
use mm_vma::{Platform, RssKind};
use std::sync::Arc;

type A = ModelWord<8>;
const WRITE: FaultFlags = FaultFlags::WRITE;
const DONE: FaultOutcome = FaultOutcome::Done { major: false };

fn tiny() -> M<A> {
    machine(ModelConfig { nr_frames: 24, ..ModelConfig::tiny() }).expect("machine")
}
/// A process with one mapping and, at page 7, a page and so a table.
fn process(m: &M<A>) -> Process<A> {
    let p = Process::new(m);
    p.map(pages(0, 16), RW);
    p.write(7, 77);
    p
}
/// Every mutant of the list must be found in `model`, which holds without.
fn race(name: &str, model: impl Fn() + Copy + Send + Sync + 'static, mutants: &[&'static str]) {
    holds(name, model);
    for mutant in mutants {
        caught(name, mutant, model);
    }
}

/// Rules: ANON-03, ANON-05, FAULT-06. Races: F-RACE-24.
#[test]
fn two_faults_on_one_empty_entry() {
    fn model() {
        let m = tiny();
        let p = process(&m).shared();
        let other = spawn({
            let p = p.clone();
            move || assert_eq!(p.fault(0, WRITE), DONE)
        });
        assert_eq!(p.fault(0, WRITE), DONE);
        other.join().expect("thread");
        // One page: the loser gave its own back.
        assert_eq!((m.folios_in_use(), p.rss()), (2, 2));
        assert_eq!((p.folio(0).refcount(), p.folio(0).mapcount()), (1, 1));
    }
    race("two_faults_on_one_empty_entry", model, &["fault.anon.no_recheck"]);
}

/// Rules: FAULT-12, FAULT-13. Races: F-RACE-24.
#[test]
fn two_copies_of_one_shared_page() {
    fn model() {
        let m = tiny();
        let p = process(&m);
        let c = p.fork();
        let p = p.shared();
        let other = spawn({
            let p = p.clone();
            move || assert_eq!(p.fault(7, WRITE), DONE)
        });
        assert_eq!(p.fault(7, WRITE), DONE);
        other.join().expect("thread");
        assert_eq!((m.folios_in_use(), p.rss(), c.rss()), (2, 1, 1));
        for folio in [p.folio(7), c.folio(7)] {
            assert_eq!((folio.refcount(), folio.mapcount()), (1, 1));
        }
        assert!(p.is_exclusive(7) && !c.is_exclusive(7));
    }
    race("two_copies_of_one_shared_page", model, &["fault.copy.no_recheck"]);
}

/// Rules: F-RACE-24b, FAULT-03, FAULT-06, ACC-15.
#[test]
fn a_fault_meets_an_entry_that_is_cleared_for_a_moment() {
    fn change_and_fault(flags: FaultFlags) {
        let m = tiny();
        let p = process(&m).shared();
        let other = spawn({
            let p = p.clone();
            // As a protection change does: take, modify, put back.
            move || p.change(7, |e| e.wrprotect())
        });
        assert_eq!(p.fault(7, flags), DONE);
        other.join().expect("thread");
        assert_eq!((p.read(7), p.rss(), m.folios_in_use()), (77, 1, 1));
    }
    race(
        "cleared_for_a_moment_read",
        || change_and_fault(FaultFlags::empty()),
        &["fault.zero.no_recheck"],
    );
    race("cleared_for_a_moment_write", || change_and_fault(WRITE), &["fault.anon.no_recheck"]);
}

/// Rules: ANON-03, FAULT-06. Races: F-RACE-25.
#[test]
fn a_large_fault_meets_a_small_one_in_its_range() {
    fn model() {
        let m = tiny();
        let mut large = process(&m);
        let small = large.policy;
        large.policy.thp = ThpPolicy::new(3).with_order(2, OrderMode::Always);
        let p = large.shared();
        let other = spawn({
            let p = p.clone();
            move || {
                assert_eq!(p.fault_under(&small, 2, WRITE), DONE);
            }
        });
        assert_eq!(p.fault(0, WRITE), DONE);
        other.join().expect("thread");
        // The large folio was given back, came first, or was not tried.
        let mapped = !p.entry(0).0.is_none();
        let (folios, rss) = match mapped.then(|| p.folio(0).order()) {
            None => (2, 2),
            Some(2) => (2, 5),
            Some(_) => (3, 3),
        };
        assert_eq!((m.folios_in_use(), p.rss()), (folios, rss));
    }
    race(
        "a_large_fault_meets_a_small_one",
        model,
        &["fault.anon.check_own_only", "fault.anon.no_recheck"],
    );
}

/// Rules: REUSE-01, REUSE-08, FOLIO-03, ZAP-03. Races: F-RACE-05.
#[test]
fn a_reuse_meets_a_sharer_on_its_way_out() {
    fn model() {
        let m = tiny();
        let p = process(&m);
        let c = p.fork();
        let page = p.pfn(7);
        // The content of the page, where the model checker sees accesses to it.
        let content = Arc::new(AtomicU64::new(77));
        let leaver = spawn({
            let (m, mm, content) = (m.clone(), c.mm.clone(), content.clone());
            move || {
                let vmas = mm.read();
                let mut t = mm.tables().lock_table(vmas.stay(), va(7)).expect("table");
                let mut owed = mm.tables().tlb().obligation();
                let index = t.index_of(va(7));
                t.take(index, &mut owed);
                m.memmap().folio(page).remove_ptes(0, NonZeroU32::MIN, mm.id());
                mm.counters().sub(RssKind::Anon, 1);
                // Until the flush another CPU of the child reads through the old
                // translation.
                assert_eq!(content.load(Relaxed), 77, "the child saw the parent's store");
                owed.now();
                m.memmap().put_run::<Get>(FolioRun::new(page, 0, 1));
            }
        });
        assert_eq!(p.fault(7, WRITE), DONE);
        if p.pfn(7) == page {
            content.store(78, Relaxed);
        }
        leaver.join().expect("thread");
        assert_eq!((p.rss(), m.folios_in_use()), (1, 1));
    }
    race("a_reuse_meets_a_sharer_on_its_way_out", model, &["fault.reuse.map_only"]);
}

/// Rules: F-RACE-08, REUSE-06, REUSE-07, REUSE-08.
///
/// A folio in two tables; a reference from before the fault; an unmap in the
/// other table, which makes mapping count and reference count go by the same
/// value one after the other.
#[test]
fn a_large_reuse_meets_an_unmap_in_another_table() {
    fn model() {
        let m = tiny();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 16), RW);
        // Four pages at 6..10, as after a move: two in each table.
        let mut new = m.memmap().alloc(2).expect("memory");
        new.grow(3).expect("room");
        let folio = new.folio();
        folio.set_anon(AnonId(0), 6);
        folio.add_new_anon(p.mm.id(), Level::Pte, Exclusivity::MaybeShared);
        p.mm.counters().add(RssKind::Anon, 4);
        let prot = <A as Arch>::prot(Protection::private_read_write());
        let head = E::<A>::leaf(folio.head(), prot, Level::Pte);
        for (page, n, e) in [(6, 2, head), (8, 2, head.advance(2, Level::Pte))] {
            let vmas = p.mm.read();
            let t = p.mm.tables().ensure_table(vmas.stay(), va(page)).expect("memory");
            let mut t = t.table().expect("no huge entry");
            let index = t.index_of(va(page));
            t.fill(index, n, e);
        }
        let pfn = new.hand_over().head();
        let pipe = m.memmap().folio(pfn).grab::<Get>(1).expect("reference");
        let p = p.shared();
        let other = spawn({
            let p = p.clone();
            move || p.discard(9)
        });
        assert_eq!(p.fault(6, WRITE), DONE);
        other.join().expect("thread");
        assert_ne!(p.pfn(6), pfn, "reused beside a foreign reference");
        drop(pipe);
    }
    race("a_large_reuse_meets_an_unmap", model, &["fault.reuse.no_lock"]);
}

/// Rules: FAULT-13. Races: F-RACE-23.
#[test]
fn a_copy_flushes_before_the_other_side_may_reuse() {
    fn model() {
        let m = tiny();
        let p = process(&m);
        let c = p.fork().shared();
        let page = p.pfn(7);
        let flushes = TableSpace::tlb(&m).flushes.get();
        let other = spawn({
            let (c, m) = (c.clone(), m.clone());
            move || {
                assert_eq!(c.fault(7, WRITE), DONE);
                if c.pfn(7) == page {
                    // Reused: from now on the child stores into it, so no CPU of
                    // the parent may read it.
                    assert!(TableSpace::tlb(&m).flushes.get() > flushes, "stale translation");
                }
            }
        });
        assert_eq!(p.fault(7, WRITE), DONE);
        other.join().expect("thread");
        assert_ne!(p.pfn(7), c.pfn(7));
    }
    race("a_copy_flushes_first", model, &["fault.copy.no_flush"]);
}

/// Whoever sees the copy sees it behind the flush: no CPU reads the old page any more when the
/// first store to the copy is made. Rules: FAULT-13. Cases: MM-083.
#[test]
fn a_copy_is_mapped_behind_the_flush() {
    fn model() {
        let m = tiny();
        let p = process(&m);
        let _child = p.fork();
        let p = p.shared();
        let page = p.pfn(7);
        let flushes = TableSpace::tlb(&m).flushes.get();
        let other = spawn({
            let p = p.clone();
            move || assert_eq!(p.fault(7, WRITE), DONE)
        });
        // As the walk of another CPU does.
        let seen = match p.mm.tables().pin().walk(va(7)) {
            Step::Table(_, ptes) => ptes.pte(ptes.index_of(va(7))),
            other => panic!("{other:?}"),
        };
        if seen.is_leaf(Level::Pte) && seen.pfn(Level::Pte) != page {
            assert!(TableSpace::tlb(&m).flushes.get() > flushes, "the old page is still read");
        }
        other.join().expect("thread");
    }
    race("a_copy_behind_the_flush", model, &["fault.copy.no_flush"]);
}

/// Rules: FAULT-03: what was decided on a stale value has no effect.
#[test]
fn a_write_fault_meets_an_unmap() {
    fn model() {
        let m = tiny();
        let p = process(&m).shared();
        p.change(7, |e| e.wrprotect());
        m.memmap().clear_exclusive(p.pfn(7), 1);
        let other = spawn({
            let p = p.clone();
            move || p.discard(7)
        });
        assert_eq!(p.fault(7, WRITE), DONE);
        other.join().expect("thread");
        let mapped = u64::from(!p.entry(7).0.is_none());
        assert_eq!((p.rss(), m.folios_in_use() as u64), (mapped, mapped));
    }
    race("a_write_fault_meets_an_unmap", model, &["fault.present.no_recheck"]);
}

/// Rules: F-RACE-24, ANON-10. At PMD level.
#[test]
fn two_faults_on_one_empty_pmd() {
    type Small = ModelWord<4>;
    fn model() {
        let m: M<Small> = machine(ModelConfig { nr_frames: 24, ..ModelConfig::tiny() }).expect("m");
        let thp = ThpPolicy::new(2).with_global(ThpMode::Always);
        let p = Process::<Small>::new(&m).with_policy(thp);
        p.map(pages(0, 8), RW);
        let p = p.shared();
        let other = spawn({
            let p = p.clone();
            move || assert_eq!(p.fault(0, WRITE), DONE)
        });
        assert_eq!(p.fault(1, WRITE), DONE);
        other.join().expect("thread");
        assert_eq!((m.folios_in_use(), p.rss()), (1, 4));
        // Root, and the deposited table.
        assert_eq!(TableSpace::tables(&m).in_use(), 2);
    }
    race("two_faults_on_one_empty_pmd", model, &["fault.huge.no_recheck"]);
}

/// Race F-RACE-36: who write-protects or discards the range looks without the
/// lock, beside faults, and passes by holes. Rules: MPROT-07, ANON-11.
#[test]
fn a_huge_zero_leaf_that_is_written_is_never_a_hole() {
    fn model() {
        let config = ModelConfig { nr_frames: 24, huge_zero: true, ..ModelConfig::tiny() };
        let m: M<A> = machine(config).expect("machine");
        let thp = ThpPolicy::new(3).with_global(ThpMode::Always);
        let p = Process::new(&m).with_policy(thp);
        p.map(pages(0, 8), RW);
        assert_eq!(p.fault(0, FaultFlags::empty()), DONE);
        assert_eq!((p.entry(0).1, p.rss()), (Level::Pmd, 0));
        let p = p.shared();
        let other = spawn({
            let p = p.clone();
            move || assert_eq!(p.fault(0, WRITE), DONE)
        });
        assert!(!p.entry(0).0.is_none(), "a hole where zeros are mapped");
        other.join().expect("thread");
        assert_eq!((m.folios_in_use(), p.rss()), (1, 8));
    }
    race("huge_zero_vs_lookup", model, &["fault.huge_zero.hole"]);
}
