//! Loom models of tables: who may free, install, lock and write them.
//!
//! The tables are the production code with tables of two entries. Each model is
//! named after the race it excludes and has mutants that must fail it.
//!
//! Planted faults and who finds them, here and in `tests/pgtable`:
//!
//! | fault | mutant | found by |
//! |---|---|---|
//! | missing flush | `pgtable.take.no_flush` | `planted_faults_are_found`; `taking_owes_a_flush…`, `items_are_let_go…` |
//! | let go before the flush | `gather.free_before_flush` | `planted_faults_are_found`; `items_are_let_go…`, `tables_are_retired…` |
//! | early table free | `table.free_now` | `walk_against_table_free`; `a_table_is_not_freed_under_a_walker` |
//! | widened write bit | `pgtable.restore.widen` | `planted_faults_are_found`; `a_restored_run_is_never_wider` |
//! | lost dirty bit | `pgtable.modify.lose_dirty`, `*.not_rmw` | `hardware_against_…`; `a_modified_run_shares…` |
//! | entry in an unlinked table | `table.lock.no_recheck` | `lock_against_unlink_and_free` |
//! | lost table | `table.install.no_check` | `installers_against_each_other`; `racing_installers…` |
//! | entry that never existed | `table.rewrite.no_wait` | `read_against_rewrite` |
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p mm-pgtable --profile loom --test loom_tables
//! ```
#![cfg(loom)]

use mm_arch::model::{ModelEntry, ModelPair, ModelWord};
use mm_arch::{AccessKind, Arch, Entry, Level, Pfn, Protection, SpaceId, VirtAddr, VirtRange};
use mm_arch::{TableFrame, WriteKind};
use mm_pgtable::slab::{SlabSpace, slab_space};
use mm_pgtable::{Gather, LockedEntry, PageTables, Step, TableMemory, TableSpace, TablesStay};
use mm_sync::model::{Bounds, caught, holds, holds_with};
use mm_sync::{DefaultRwLock, RwLock, mutant, thread};
use std::sync::Arc;

const PTE: Level = Level::Pte;
type Word = ModelWord<2>;
type Two = ModelPair<2>;

/// Frames with a bit in the high word of two-word entries.
const OURS: u64 = 0x30_0000;
const FOREIGN: u64 = 0x70_0000;

struct Model<A: Arch> {
    space: SlabSpace<A>,
    tables: PageTables<SlabSpace<A>>,
}

impl<A: Arch<Entry = ModelEntry>> Model<A> {
    fn new(nr: usize) -> Arc<Self> {
        let space = slab_space::<A>(nr);
        let tables = PageTables::new(space.clone(), SpaceId(1)).expect("a root");
        Arc::new(Model { space, tables })
    }
    /// The table in `frame`, as hardware reaches it.
    fn raw(&self, frame: TableFrame) -> &A::Table {
        // SAFETY: the models keep the table while they use this.
        unsafe { self.space.tables().table(frame).as_ref() }
    }
}

/// The models say how tables are kept from being freed.
fn stay<'g>() -> TablesStay<'g> {
    // SAFETY: see there.
    unsafe { TablesStay::new() }
}

fn page(nr: u64) -> VirtAddr {
    VirtAddr::new(nr << 12)
}
fn pages(nr: u64, n: u64) -> VirtRange {
    VirtRange::units(page(nr), n, 12).expect("a range")
}
fn leaf<A: Arch<Entry = ModelEntry>>(pfn: u64) -> ModelEntry {
    ModelEntry::leaf(Pfn::new(pfn), A::prot(Protection::private_read_write()), PTE)
}
fn writable<A: Arch<Entry = ModelEntry>>(pfn: u64) -> ModelEntry {
    leaf::<A>(pfn).mkwrite(WriteKind::Normal)
}

// ---------------------------------------------------------------------------
// A lockless walk against the free and the reuse of its table (P-RACE-02).

fn walk_vs_free<A: Arch<Entry = ModelEntry>>() {
    let m = Model::<A>::new(2);
    let mut t = m.tables.ensure_table(stay(), page(0)).expect("memory").table().expect("a table");
    t.fill(0, 1, leaf::<A>(OURS));
    drop(t);
    let walker = {
        let m = m.clone();
        thread::spawn(move || {
            let guard = m.tables.pin();
            match guard.walk(page(0)) {
                Step::Hole { .. } => {}
                Step::Leaf(_) => panic!("no leaf was ever there"),
                Step::Table(_, view) => {
                    let e = view.get(0);
                    assert!(e.is_none() || e.pfn(PTE).get() == OURS, "read {e:?} of another use");
                }
            }
        })
    };
    let mut gather: Gather<'_, _, ()> = Gather::new(&m.tables);
    let mut t = m.tables.lock_table(stay(), page(0)).expect("the table");
    t.take(0, gather.owed());
    drop(t);
    // SAFETY: no locked walker runs.
    unsafe { m.tables.free_empty_tables(pages(0, 2), &mut gather) };
    gather.finish();
    // The frame is a table of something else now.
    let frame = m.space.tables().alloc(PTE).expect("the freed one");
    A::fill(m.raw(frame), 0, 1, leaf::<A>(FOREIGN));
    walker.join().expect("the walker");
    // SAFETY: allocated above, linked nowhere.
    unsafe { m.tables.free_unlinked(frame) };
}

/// Finds the planted fault "a table is freed early".
///
/// Rules: P-RACE-02, GUPF-06, ACC-03.
#[test]
fn walk_against_table_free() {
    holds("walk vs table free, word", walk_vs_free::<Word>);
    holds("walk vs table free, pair", walk_vs_free::<Two>);
    for mutant in [
        "table.free_now",
        "quiescence.no_wait",
        "quiescence.pin.mb",
        "quiescence.sync.mb",
        "quiescence.sync",
        "quiescence.unpin",
    ] {
        caught("walk vs table free, word", mutant, walk_vs_free::<Word>);
    }
    caught("walk vs table free, pair", "table.free_now", walk_vs_free::<Two>);
}

// ---------------------------------------------------------------------------
// A lockless walk against the publishing of a table (ACC-04, P-RACE-25).

/// The frame of the table was used before: who finds it through the parent entry
/// must not see what it held then.
fn walk_vs_install<A: Arch<Entry = ModelEntry>>() {
    let m = Model::<A>::new(2);
    let walker = {
        let m = m.clone();
        thread::spawn(move || {
            let guard = m.tables.pin();
            if let Step::Table(slot, view) = guard.walk(page(0)) {
                let e = view.get(0);
                assert!(e.is_none() || e.pfn(PTE).get() == OURS, "read {e:?} of an earlier use");
                assert!(slot.is_unchanged());
            }
        })
    };
    let frame = m.space.tables().alloc(PTE).expect("memory");
    A::fill(m.raw(frame), 0, 1, leaf::<A>(FOREIGN));
    // SAFETY: never linked.
    unsafe { m.tables.free_unlinked(frame) };
    let mut t = m.tables.ensure_table(stay(), page(0)).expect("memory").table().expect("a table");
    assert_eq!(t.frame(), frame, "the model is about reuse");
    t.fill(0, 1, leaf::<A>(OURS));
    drop(t);
    walker.join().expect("the walker");
}

/// A table that is filled before it is linked is full for whoever finds it.
fn walk_vs_full_table<A: Arch<Entry = ModelEntry>>() {
    let m = Model::<A>::new(2);
    let walker = {
        let m = m.clone();
        thread::spawn(move || {
            let guard = m.tables.pin();
            if let Step::Table(_, view) = guard.walk(page(0)) {
                for i in 0..2 {
                    assert_eq!(view.get(i).pfn(PTE).get(), OURS + i as u64, "a hole in a split");
                }
            }
        })
    };
    let frame = m.space.tables().alloc(PTE).expect("memory");
    let mut pmd = m.tables.lock_pmd(stay(), page(0)).expect("the root");
    // SAFETY: allocated for this; nobody else knows the frame.
    unsafe { pmd.fill_unlinked(frame, 2, leaf::<A>(OURS)) };
    let mut owed = m.tables.tlb().obligation();
    // SAFETY: as above, and not freed before it is unlinked.
    unsafe { pmd.link(frame, &mut owed) };
    drop(pmd);
    walker.join().expect("the walker");
}

/// Rules: ACC-03, ACC-04, P-RACE-25, MM-034.
#[test]
fn walk_against_install() {
    holds("walk vs install, word", walk_vs_install::<Word>);
    holds("walk vs install, pair", walk_vs_install::<Two>);
    holds("walk vs full table, word", walk_vs_full_table::<Word>);
    holds("walk vs full table, pair", walk_vs_full_table::<Two>);
    caught("walk vs install, word", "word.upper", walk_vs_install::<Word>);
    caught("walk vs full table, word", "word.upper", walk_vs_full_table::<Word>);
    caught("walk vs full table, word", "word.read", walk_vs_full_table::<Word>);
    caught("walk vs full table, pair", "pair.store.low", walk_vs_full_table::<Two>);
    caught("walk vs full table, pair", "pair.store.low_first", walk_vs_full_table::<Two>);
}

// ---------------------------------------------------------------------------
// Two installers of one table.

fn two_installers<A: Arch<Entry = ModelEntry>>() {
    let m = Model::<A>::new(3);
    let other = {
        let m = m.clone();
        thread::spawn(move || {
            let mut t =
                m.tables.ensure_table(stay(), page(1)).expect("memory").table().expect("a table");
            t.fill(1, 1, leaf::<A>(OURS + 1));
        })
    };
    let mut t = m.tables.ensure_table(stay(), page(0)).expect("memory").table().expect("a table");
    t.fill(0, 1, leaf::<A>(OURS));
    drop(t);
    other.join().expect("the other installer");
    let t = m.tables.lock_table(stay(), page(0)).expect("the table");
    for i in 0..2 {
        assert_eq!(t.get(i).pfn(PTE).get(), OURS + i as u64, "an entry was lost");
    }
    assert_eq!(t.desc().entries(), 2);
    drop(t);
    assert_eq!(m.space.tables.in_use(), m.tables.count_tables(stay()), "a table leaked");
}

/// Rules: ACC-04.
#[test]
fn installers_against_each_other() {
    holds("two installers, word", two_installers::<Word>);
    holds("two installers, pair", two_installers::<Two>);
    caught("two installers, word", "table.install.no_check", two_installers::<Word>);
}

// ---------------------------------------------------------------------------
// Locking a table against whoever unlinks it.

/// A table that is unlinked, but kept, by someone who also only holds a proof
/// that tables stay: the locker looks at the parent again once it has the lock.
fn lock_vs_unlink<A: Arch<Entry = ModelEntry>>() {
    let m = Model::<A>::new(3);
    drop(m.tables.ensure_table(stay(), page(0)).expect("memory"));
    let collapser = {
        let m = m.clone();
        thread::spawn(move || {
            let mut owed = m.tables.tlb().obligation();
            let mut pmd = m.tables.lock_pmd(stay(), page(0)).expect("the root");
            // The table's lock nests in the lock of its parent.
            let table = m.tables.lock_table(stay(), page(0)).expect("the table");
            if table.desc().entries() == 0 {
                let frame = table.frame();
                pmd.swap(ModelEntry::NONE, &mut owed);
                drop(table);
                // SAFETY: allocated for this; nobody else knows the frame.
                unsafe { pmd.deposit(frame) };
            }
        })
    };
    let filled = match m.tables.lock_entry(stay(), page(0)) {
        LockedEntry::Table(mut t) => {
            t.fill(0, 1, leaf::<A>(OURS));
            true
        }
        LockedEntry::Hole => false,
        LockedEntry::Huge(_) => panic!("no leaf was ever there"),
    };
    collapser.join().expect("the collapser");
    let there = m.tables.lock_table(stay(), page(0)).map(|t| t.get(0).pfn(PTE).get());
    assert_eq!(there, filled.then_some(OURS), "an entry went into an unlinked table");
}

/// A table that is unlinked and freed by a holder of the exclusive side of the
/// lock whose shared side the locker holds.
fn lock_vs_free<A: Arch<Entry = ModelEntry>>() {
    let m = Model::<A>::new(2);
    // The tree is what the lock is about; it stands beside it.
    let mmap = Arc::new(RwLock::<DefaultRwLock, ()>::new(()));
    drop(m.tables.ensure_table(stay(), page(0)).expect("memory"));
    let faulter = {
        let (m, mmap) = (m.clone(), mmap.clone());
        thread::spawn(move || {
            let mut held = Some(mmap.read());
            // SAFETY: tables are freed only with the exclusive side held.
            let stay = unsafe { TablesStay::new() };
            if mutant!("model.unlocked_early") {
                held = None;
            }
            let locked = m.tables.lock_entry(stay, page(0));
            if let LockedEntry::Table(mut t) = locked {
                t.fill(0, 1, leaf::<A>(OURS));
            }
            drop(held);
        })
    };
    {
        let _exclusive = mmap.write();
        let mut gather: Gather<'_, _, ()> = Gather::new(&m.tables);
        // SAFETY: the exclusive side is held.
        unsafe { m.tables.free_empty_tables(pages(0, 2), &mut gather) };
        gather.finish();
    }
    faulter.join().expect("the faulter");
    m.tables.audit_counts(stay(), &mut |frame, n, claimed| panic!("{frame:?}: {n}, {claimed}"));
    assert_eq!(m.space.tables.in_use(), m.tables.count_tables(stay()));
}

/// Rules: ACC-22.
#[test]
fn lock_against_unlink_and_free() {
    holds("lock vs unlink, word", lock_vs_unlink::<Word>);
    holds("lock vs unlink, pair", lock_vs_unlink::<Two>);
    caught("lock vs unlink, word", "table.lock.no_recheck", lock_vs_unlink::<Word>);
    holds("lock vs free, word", lock_vs_free::<Word>);
    holds("lock vs free, pair", lock_vs_free::<Two>);
    caught("lock vs free, word", "model.unlocked_early", lock_vs_free::<Word>);
}

// ---------------------------------------------------------------------------
// A lockless read against an entry that is taken and written back.

/// The entry comes back with an equal low word. A reader of two words sees what
/// was there or nothing, never a frame that was not mapped.
fn read_vs_rewrite<A: Arch<Entry = ModelEntry>>(change: fn(ModelEntry) -> ModelEntry) {
    let m = Model::<A>::new(2);
    let mut t = m.tables.ensure_table(stay(), page(0)).expect("memory").table().expect("a table");
    t.fill(0, 1, writable::<A>(OURS));
    drop(t);
    let reader = {
        let m = m.clone();
        thread::spawn(move || {
            let guard = m.tables.pin();
            let Step::Table(_, view) = guard.walk(page(0)) else { panic!("no table") };
            let e = view.get(0);
            assert!(e.is_none() || e.pfn(PTE).get() == OURS, "{e:?} never existed");
        })
    };
    let mut owed = m.tables.tlb().obligation();
    let mut t = m.tables.lock_table(stay(), page(0)).expect("the table");
    let run = t.single(0);
    t.modify(run, &mut owed, change);
    drop(t);
    reader.join().expect("the reader");
}

/// The same one level up: a leaf is replaced by one with an equal low word.
fn read_vs_swap<A: Arch<Entry = ModelEntry>>() {
    let m = Model::<A>::new(1);
    let huge = |pfn| {
        ModelEntry::leaf(Pfn::new(pfn), A::prot(Protection::private_read_write()), Level::Pmd)
    };
    let mut owed = m.tables.tlb().obligation();
    m.tables.lock_pmd(stay(), page(0)).expect("the root").swap(huge(OURS), &mut owed);
    let reader = {
        let m = m.clone();
        thread::spawn(move || {
            let guard = m.tables.pin();
            if let Step::Leaf(slot) = guard.walk(page(0)) {
                let pfn = slot.entry().pfn(Level::Pmd).get();
                assert!(pfn == OURS || pfn == FOREIGN, "{pfn:#x} was never mapped");
            }
        })
    };
    m.tables.lock_pmd(stay(), page(0)).expect("the root").swap(huge(FOREIGN), &mut owed);
    reader.join().expect("the reader");
}

/// A walker, a locker, and a writer that waits for readers with the lock held:
/// no one waits for ever, because nobody waits for the lock inside a guard.
fn walker_locker_writer() {
    let m = Model::<Two>::new(2);
    let mut t = m.tables.ensure_table(stay(), page(0)).expect("memory").table().expect("a table");
    t.fill(0, 1, writable::<Two>(OURS));
    drop(t);
    let reader = {
        let m = m.clone();
        thread::spawn(move || {
            let guard = m.tables.pin();
            let Step::Table(_, view) = guard.walk(page(0)) else { panic!("no table") };
            view.get(0);
            let inside = mutant!("model.lock_under_guard").then_some(guard);
            let t = m.tables.lock_table(stay(), page(0)).expect("the table");
            assert_eq!(t.get(0).pfn(PTE).get(), OURS);
            drop((t, inside));
        })
    };
    let mut owed = m.tables.tlb().obligation();
    let mut t = m.tables.lock_table(stay(), page(0)).expect("the table");
    let run = t.single(0);
    t.clear(run, &mut owed).restore();
    drop(t);
    reader.join().expect("the reader");
}

/// Rules: PAE-10, PAE-12, PAE-16, P-RACE-10, P-RACE-29.
#[test]
fn read_against_rewrite() {
    holds("read vs rewrite, word", || read_vs_rewrite::<Word>(|e| e));
    holds("read vs rewrite, pair", || read_vs_rewrite::<Two>(|e| e));
    holds("read vs swap, word", read_vs_swap::<Word>);
    holds("read vs swap, pair", read_vs_swap::<Two>);
    caught("read vs rewrite, pair", "table.rewrite.no_wait", || read_vs_rewrite::<Two>(|e| e));
    caught("read vs swap, pair", "table.rewrite.no_wait", read_vs_swap::<Two>);
    holds("walker, locker, writer", walker_locker_writer);
    caught("walker, locker, writer", "model.lock_under_guard", walker_locker_writer);
}

// ---------------------------------------------------------------------------
// Hardware sets dirty while software writes the entry.

/// How software writes the entry.
#[derive(Clone, Copy)]
enum Writer {
    Take,
    Clear,
    Protect,
    Modify,
    Age,
}

/// A store that went through is remembered: in what was taken, or in the entry.
/// And no store goes through once the entry does not allow it.
fn hardware_vs<A: Arch<Entry = ModelEntry>>(writer: Writer) {
    let m = Model::<A>::new(2);
    let mut t = m.tables.ensure_table(stay(), page(0)).expect("memory").table().expect("a table");
    t.fill(0, 1, writable::<A>(OURS));
    let frame = t.frame();
    drop(t);
    let cpu = {
        let m = m.clone();
        thread::spawn(move || A::mmu_mark(m.raw(frame), 0, AccessKind::Write, PTE))
    };
    let mut owed = m.tables.tlb().obligation();
    let mut t = m.tables.lock_table(stay(), page(0)).expect("the table");
    let mut taken = ModelEntry::NONE;
    match writer {
        Writer::Take => taken = t.take(0, &mut owed),
        Writer::Clear => {
            let run = t.single(0);
            t.clear(run, &mut owed).restore_read_only();
        }
        Writer::Protect => t.wrprotect(0, 1, &mut owed),
        Writer::Modify => {
            let run = t.single(0);
            t.modify(run, &mut owed, Entry::wrprotect);
        }
        Writer::Age => {
            t.clear_young(0, 1);
        }
    }
    assert!(matches!(writer, Writer::Age) || !owed.is_none());
    drop(t);
    owed.now();
    let stored = cpu.join().expect("the processor");
    let t = m.tables.lock_table(stay(), page(0)).expect("the table");
    let now = t.get(0);
    assert_eq!(taken.is_dirty() || now.is_dirty(), stored, "a store was forgotten or invented");
    match writer {
        Writer::Take => {
            assert!(now.is_none());
            assert_eq!(taken.pfn(PTE).get(), OURS);
        }
        Writer::Age => assert!(now.is_writable(PTE) && now.pfn(PTE).get() == OURS),
        _ => assert!(!now.is_writable(PTE) && now.pfn(PTE).get() == OURS),
    }
}

macro_rules! hardware_models {
    ($($name:ident: $writer:ident, $word:literal, $pair:literal, $also:expr;)*) => {$(
        /// Rules: P-RACE-14, P-RACE-15, P-RACE-16, ACC-05, ACC-11, ACC-12, ACC-15.
        #[test]
        fn $name() {
            let (word, pair) = (
                || hardware_vs::<Word>(Writer::$writer),
                || hardware_vs::<Two>(Writer::$writer),
            );
            holds(concat!(stringify!($name), ", word"), word);
            holds(concat!(stringify!($name), ", pair"), pair);
            caught(concat!(stringify!($name), ", word"), $word, word);
            caught(concat!(stringify!($name), ", pair"), $pair, pair);
            let also: &[&'static str] = &$also;
            for mutant in also {
                caught(concat!(stringify!($name), ", word"), mutant, word);
            }
        }
    )*};
}
hardware_models! {
    hardware_against_take: Take, "word.take.not_rmw", "pair.take.not_rmw", [];
    hardware_against_clear: Clear, "word.take.not_rmw", "pair.take.not_rmw", [];
    hardware_against_wrprotect: Protect, "word.update.not_rmw", "pair.update.not_rmw", [];
    hardware_against_modify: Modify, "word.take.not_rmw", "pair.take.not_rmw",
        ["pgtable.modify.lose_dirty"];
    hardware_against_aging: Age, "word.update.not_rmw", "pair.update.not_rmw", [];
}

// ---------------------------------------------------------------------------
// Faults planted in the obligations themselves.

/// Frame, pages and a processor that keeps using a translation until it is
/// flushed, as counts: what was parked is let go behind the flush.
fn park_behind_flush() {
    struct Frame(Arc<Model<Word>>, Arc<std::sync::atomic::AtomicBool>);
    impl Drop for Frame {
        fn drop(&mut self) {
            let flushed = self.0.space.tlb.flushes.get() > 0;
            self.1.fetch_and(flushed, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let m = Model::<Word>::new(2);
    let in_order = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let mut t = m.tables.ensure_table(stay(), page(0)).expect("memory").table().expect("a table");
    t.fill(0, 1, writable::<Word>(OURS));
    let mut gather = Gather::new(&m.tables);
    t.take(0, gather.owed());
    gather.park(Frame(m.clone(), in_order.clone()));
    drop(t);
    gather.finish();
    let in_order = in_order.load(std::sync::atomic::Ordering::Relaxed);
    assert!(in_order, "a frame was let go while a processor could use it");
}

/// A run that differed in write permission comes back read-only.
fn restored_not_wider() {
    let m = Model::<Word>::new(2);
    let mut t = m.tables.ensure_table(stay(), page(0)).expect("memory").table().expect("a table");
    t.fill(0, 1, writable::<Word>(OURS));
    t.fill(1, 1, leaf::<Word>(OURS + 1));
    let mut owed = m.tables.tlb().obligation();
    let run = t.run::<{ mm_arch::respect::NOTHING }>(0, t.get(0), t.limit(0));
    assert_eq!(run.nr(), 2);
    t.clear(run, &mut owed).restore();
    assert!(!t.get(1).is_writable(PTE), "a shared page became writable");
}

/// Rules: ZAP-03, UNMAP-18, MM-006.
#[test]
fn planted_faults_are_found() {
    holds("park behind flush", park_behind_flush);
    caught("park behind flush", "pgtable.take.no_flush", park_behind_flush);
    caught("park behind flush", "gather.free_before_flush", park_behind_flush);
    holds("restored not wider", restored_not_wider);
    caught("restored not wider", "pgtable.restore.widen", restored_not_wider);
}

// ---------------------------------------------------------------------------

/// Two walkers, and one who frees: bounded.
///
/// Rules: P-RACE-02.
#[test]
fn two_walks_against_table_free() {
    let model = || {
        let m = Model::<Word>::new(2);
        drop(m.tables.ensure_table(stay(), page(0)).expect("memory"));
        let walkers: Vec<_> = (0..2)
            .map(|_| {
                let m = m.clone();
                thread::spawn(move || {
                    let guard = m.tables.pin();
                    if let Step::Table(_, view) = guard.walk(page(0)) {
                        assert!(view.get(0).is_none());
                    }
                })
            })
            .collect();
        let mut gather: Gather<'_, _, ()> = Gather::new(&m.tables);
        // SAFETY: no locked walker runs.
        unsafe { m.tables.free_empty_tables(pages(0, 2), &mut gather) };
        gather.finish();
        for w in walkers {
            w.join().expect("a walker");
        }
    };
    holds_with("two walks vs table free", Bounds::at_most(2), model);
    caught("two walks vs table free", "table.free_now", model);
}
