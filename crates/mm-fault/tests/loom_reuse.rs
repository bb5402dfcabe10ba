//! Models of a write fault that widens its verdict, on the production code. One
//! test per race; the mutants bring the race back.
//!
//! | race | threads | test |
//! |---|---|---|
//! | F-RACE-32 | wide reuse; lockless pin of a neighbour | `a_wide_reuse_meets_a_pin` |
//! | F-RACE-32 | wide reuse; reference that is no pin | `a_wide_reuse_meets_a_reference` |
//! | F-RACE-33 | two faults in one table | `two_faults_in_one_table` |
//! | WREUSE-24 | two faults in two tables of one folio | `two_faults_in_two_tables` |
//! | F-RACE-05 | wide reuse; a sharer unmaps | `a_wide_reuse_meets_a_sharer_on_its_way_out` |
//! | WREUSE-20 | wide reuse; fork | `a_wide_reuse_meets_a_fork` |
//! | WREUSE-13 | wide reuse; stores and loads by hardware | `a_wide_reuse_meets_hardware` |
//! | FOLIO-45 | wide reuse that makes clean; somebody asks for dirt | `watched_pages_stay_dirty` |
//! | | two faults, one credit | `credit_is_spent_once` |
#![cfg(loom)]

mod common;

use common::*;
use core::num::NonZeroU32;
use mm_arch::model::ModelWord;
use mm_arch::{AccessKind, Arch, Entry, Level, Protection};
use mm_fault::{FaultFlags, FaultOutcome, ReusePolicy};
use mm_folio::{AnonId, Exclusivity, FolioFlags, FolioRun, Get, Pin};
use mm_pgtable::{LockedTable, Step, TableMemory, TableSpace};
use mm_rmap::model::{ModelConfig, machine};
use mm_sync::atomic::{AtomicU64, Ordering::*};
use mm_sync::fence;
use mm_sync::model::{Bounds, caught, holds_with};
use mm_sync::thread::spawn;
use mm_vma::{Platform, RssKind, Vma};
use std::sync::Arc;

type A = ModelWord<8>;
const WRITE: FaultFlags = FaultFlags::WRITE;
const DONE: FaultOutcome = FaultOutcome::Done { major: false };

/// A process with a folio of `1 << order` pages from page `first` on, alone with
/// it: no mark, nothing writable.
fn alone(first: u64, order: u32) -> (M<A>, Process<A>) {
    // Room for the folio at a place that suits it, behind the zero page.
    let config =
        ModelConfig { nr_frames: 24.max(2 << order), nr_tables: 12, ..ModelConfig::tiny() };
    let m = machine::<A>(config).expect("machine");
    let mut p = Process::<A>::new(&m);
    p.policy.reuse = ReusePolicy::Table;
    p.map(pages(0, 32), RW);
    let nr = 1 << order;
    let mut new = m.memmap().alloc(order).expect("memory");
    new.grow(nr - 1).expect("room");
    let folio = new.folio();
    folio.set_anon(AnonId(0), first);
    folio.add_new_anon(p.mm.id(), Level::Pte, Exclusivity::MaybeShared);
    p.mm.counters().add(RssKind::Anon, u64::from(nr));
    let prot = A::prot(Protection::private_read_write());
    for k in 0..nr {
        let vmas = p.mm.read();
        let t = p.mm.tables().ensure_table(vmas.stay(), va(first + u64::from(k)));
        let mut t = t.expect("memory").table().expect("no huge entry");
        let index = t.index_of(va(first + u64::from(k)));
        t.fill(index, 1, E::<A>::leaf(folio.page(k), prot, Level::Pte));
    }
    new.hand_over();
    (m, p)
}
fn writable(p: &Process<A>, page: u64) -> bool {
    p.pte(page).is_writable(Level::Pte)
}
/// Every mutant of the list must be found in `model`, which holds without.
fn race(name: &str, model: impl Fn() + Copy + Send + Sync + 'static, mutants: &[&'static str]) {
    holds_with(name, Bounds::at_most(2), model);
    for mutant in mutants {
        caught(name, mutant, model);
    }
}

/// Rules: WREUSE-08, GUPF-15, REUSE-08. Races: F-RACE-32.
#[test]
fn a_wide_reuse_meets_a_pin() {
    fn model() {
        let (m, p) = alone(0, 2);
        let p = p.shared();
        let pinner = spawn({
            let (m, p) = (m.clone(), p.clone());
            move || {
                // The lockless walk, for writing, to the neighbour.
                let guard = p.mm.tables().pin();
                let Step::Table(_, table) = guard.walk(va(1)) else { panic!("no table") };
                let index = table.index_of(va(1));
                let e = table.get(index);
                if !e.is_present(Level::Pte) || !e.is_writable(Level::Pte) {
                    return;
                }
                let map = m.memmap();
                let pin = map.folio(e.pfn(Level::Pte)).grab::<Pin>(1).expect("pin");
                fence!("gup.pin.mb", SeqCst);
                if table.get(index) == e {
                    fence!("scan.rmb", Acquire);
                    assert!(map.page_exclusive(e.pfn(Level::Pte)), "a pin of a shared page");
                }
                drop(pin);
            }
        });
        assert_eq!(p.fault(0, WRITE), DONE);
        pinner.join().expect("thread");
        // The pin comes only behind the verdict.
        assert!(writable(&p, 0) && writable(&p, 1));
        assert_eq!((p.reused(), m.folios_in_use()), (1, 1));
    }
    race("a_wide_reuse_meets_a_pin", model, &["fault.reuse.mark_late"]);
}

/// Rules: REUSE-06, REUSE-07, F-RACE-06, F-RACE-32. A reference that came before the
/// verdict keeps it from widening.
#[test]
fn a_wide_reuse_meets_a_reference() {
    fn model() {
        let (m, p) = alone(0, 2);
        let pfn = p.pfn(0);
        let p = p.shared();
        // A page that was shared when somebody looked, and who copies from it.
        m.memmap().folio(pfn).grab::<Get>(1).expect("reference").hand_over();
        let content = Arc::new(AtomicU64::new(77));
        let reader = spawn({
            let (m, content) = (m.clone(), content.clone());
            move || {
                assert_eq!(content.load(Relaxed), 77, "the pipe saw a later store");
                m.memmap().put_run::<Get>(FolioRun::new(pfn, 0, 1));
            }
        });
        assert_eq!(p.fault(0, WRITE), DONE);
        if writable(&p, 1) {
            content.store(78, Relaxed);
        }
        reader.join().expect("thread");
        assert!(writable(&p, 0));
    }
    race("a_wide_reuse_meets_a_reference", model, &["fault.reuse.map_only"]);
}

/// Rules: WREUSE-16, WREUSE-24, FAULT-03, FAULT-06. Races: F-RACE-33.
///
/// The second fault sees the entry read-only, empty for a moment, or writable.
#[test]
fn two_faults_in_one_table() {
    fn model() {
        let (m, p) = alone(0, 2);
        let p = p.shared();
        let other = spawn({
            let p = p.clone();
            move || assert_eq!(p.fault(1, WRITE), DONE)
        });
        assert_eq!(p.fault(0, WRITE), DONE);
        other.join().expect("thread");
        assert!(writable(&p, 0) && writable(&p, 1) && p.is_exclusive(0) && p.is_exclusive(1));
        assert_eq!((p.reused(), m.folios_in_use(), p.rss()), (1, 1, 4));
    }
    race("two_faults_in_one_table", model, &["fault.present.no_recheck", "fault.anon.no_recheck"]);
}

/// Rules: F-RACE-33. With a load: an empty look must not become a zero page.
#[test]
fn a_load_meets_a_wide_reuse() {
    fn model() {
        let (m, p) = alone(0, 2);
        let p = p.shared();
        let pfn = p.pfn(1);
        let other = spawn({
            let p = p.clone();
            move || assert_eq!(p.fault(1, FaultFlags::empty()), DONE)
        });
        assert_eq!(p.fault(0, WRITE), DONE);
        other.join().expect("thread");
        assert_eq!((p.pfn(1), m.folios_in_use(), p.rss()), (pfn, 1, 4));
    }
    race("a_load_meets_a_wide_reuse", model, &["fault.zero.no_recheck"]);
}

/// Rules: WREUSE-24, WREUSE-04: each widens in its own table; neither counts
/// against the other.
#[test]
fn two_faults_in_two_tables() {
    fn model() {
        let (m, p) = alone(6, 2);
        let p = p.shared();
        let other = spawn({
            let p = p.clone();
            move || assert_eq!(p.fault(8, WRITE), DONE)
        });
        assert_eq!(p.fault(7, WRITE), DONE);
        assert!(writable(&p, 6) && writable(&p, 7));
        other.join().expect("thread");
        assert!((6..10).all(|k| writable(&p, k) && p.is_exclusive(k)));
        assert_eq!((p.reused(), m.folios_in_use(), p.rss()), (2, 1, 4));
    }
    race("two_faults_in_two_tables", model, &["fault.reuse.own_reference"]);
}

/// Rules: REUSE-08, FOLIO-03, ZAP-03, F-RACE-05. For the neighbours.
#[test]
fn a_wide_reuse_meets_a_sharer_on_its_way_out() {
    fn model() {
        let (m, p) = alone(0, 2);
        let c = p.fork();
        let head = p.pfn(0);
        // The content of page 1, where the model checker sees accesses to it.
        let content = Arc::new(AtomicU64::new(77));
        let p = p.shared();
        let leaver = spawn({
            let (m, mm, content) = (m.clone(), c.mm.clone(), content.clone());
            move || {
                let vmas = mm.read();
                let mut t = mm.tables().lock_table(vmas.stay(), va(0)).expect("table");
                let mut owed = mm.tables().tlb().obligation();
                t.take_each::<mm_arch::Live>(0, 4, &mut owed, |_, _| ());
                m.memmap().folio(head).remove_ptes(0, NonZeroU32::MIN.saturating_add(3), mm.id());
                mm.counters().sub(RssKind::Anon, 4);
                // Until the flush another CPU of the child reads through the old
                // translation.
                assert_eq!(content.load(Relaxed), 77, "the child saw the parent's store");
                owed.now();
                m.memmap().put_run::<Get>(FolioRun::new(head, 0, 4));
            }
        });
        assert_eq!(p.fault(0, WRITE), DONE);
        if writable(&p, 1) {
            content.store(78, Relaxed);
        }
        leaver.join().expect("thread");
        assert_eq!(p.rss(), 4);
    }
    race("a_wide_reuse_meets_a_sharer", model, &["fault.reuse.map_only"]);
}

/// Rules: WREUSE-02, WREUSE-20, FORK-03. The mmap lock keeps the two apart; what
/// is checked is that either order leaves nothing writable that is shared.
#[test]
fn a_wide_reuse_meets_a_fork() {
    fn model() {
        let (_m, p) = alone(0, 2);
        let p = Arc::new(p);
        let other = spawn({
            let p = p.clone();
            move || assert_eq!(p.fault(0, WRITE), DONE)
        });
        let c = p.fork();
        other.join().expect("thread");
        for k in 0..4 {
            let shared = p.pfn(k) == c.pfn(k);
            assert!(!writable(&c, k) && !(shared && (writable(&p, k) || p.is_exclusive(k))));
        }
        assert!(p.pfn(1) == c.pfn(1));
    }
    race("a_wide_reuse_meets_a_fork", model, &["fault.reuse.ignore_shared"]);
}

/// Rules: WREUSE-11, WREUSE-13, ACC-15: what hardware marks while the run is
/// taken and put back, and behind it, stays.
#[test]
fn a_wide_reuse_meets_hardware() {
    fn model() {
        let (m, p) = alone(0, 2);
        let p = p.shared();
        let frame =
            p.with(|vmas| p.mm.tables().lock_table(vmas.stay(), va(0)).expect("table").frame());
        let cpu = spawn({
            let m = m.clone();
            move || {
                // SAFETY: the model frees no table while hardware is running.
                let table = unsafe { TableSpace::tables(&m).table(frame).as_ref() };
                let loaded = A::mmu_mark(table, 1, AccessKind::Read, Level::Pte);
                let stored = A::read::<mm_arch::Pinned>(table, 0).is_writable(Level::Pte)
                    && A::mmu_mark(table, 0, AccessKind::Write, Level::Pte);
                (loaded, stored)
            }
        });
        assert_eq!(p.fault(0, WRITE), DONE);
        let (loaded, _) = cpu.join().expect("thread");
        assert!(p.pte(1).is_young() || !loaded, "an accessed bit was lost");
        assert!(p.pte(0).is_dirty() && p.pte(0).is_young());
        assert!(!p.pte(1).is_dirty() && writable(&p, 1));
    }
    race("a_wide_reuse_meets_hardware", model, &["word.take.not_rmw"]);
}

/// Rules: FOLIO-45, WREUSE-12: who asks under the lock finds the dirt in the entry or
/// in the folio, and a store behind the reuse marks the entry.
#[test]
fn watched_pages_stay_dirty() {
    fn model() {
        let (m, mut p) = alone(0, 5);
        p.policy.reuse = ReusePolicy::Adaptive;
        p.change(1, |e| e.mkdirty());
        let p = p.shared();
        let asker = spawn({
            let (m, p) = (m.clone(), p.clone());
            move || {
                p.with(|vmas| {
                    let t = p.mm.tables().lock_table(vmas.stay(), va(1)).expect("table");
                    let e = t.get(t.index_of(va(1)));
                    let folio = m.memmap().folio(e.pfn(Level::Pte));
                    assert!(e.is_dirty() || folio.has(FolioFlags::DIRTY), "dirt was lost");
                    writable_by_hardware(&t)
                })
            }
        });
        assert_eq!(p.fault(0, WRITE), DONE);
        let stored = asker.join().expect("thread");
        assert!(writable(&p, 1) && p.pte(1).is_dirty() == stored);
    }
    race("watched_pages_stay_dirty", model, &["pgtable.upgrade.lose_dirt"]);
}
/// A store by a CPU to page 1, if the entry permits it.
fn writable_by_hardware(t: &LockedTable<'_, M<A>>) -> bool {
    let index = t.index_of(va(1));
    t.get(index).is_writable(Level::Pte) && t.mark_as_hardware(index, AccessKind::Write)
}

/// Two faults find the same credit; one of them gets it.
#[test]
fn credit_is_spent_once() {
    fn model() {
        let vma = Arc::new(Vma::anonymous(pages(0, 32), RW, 12));
        vma.save_fault_credit(100, 100);
        let other = spawn({
            let vma = vma.clone();
            move || vma.spend_fault_credit(60)
        });
        let mine = vma.spend_fault_credit(60);
        assert!(mine ^ other.join().expect("thread"), "spent twice, or not at all");
        assert_eq!(vma.fault_credit(), 40);
    }
    race("credit_is_spent_once", model, &["vma.credit.not_rmw"]);
}
