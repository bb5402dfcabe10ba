//! Loom models of mm-map: its steps against hardware and against whoever takes a
//! table lock without the mmap lock. Each model is named after the race it
//! excludes and has mutants that must fail it.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p mm-map --profile loom --test loom_map
//! ```
//!
//! Faults with the lock of one mapping are in `loom_map/vma_lock.rs`.
#![cfg(loom)]

#[path = "loom_map/vma_lock.rs"]
mod vma_lock;

use core::ops::ControlFlow;
use mm_arch::model::ModelWord;
use mm_arch::{AccessKind, Arch, Entry, Level, Pfn, Rights, VirtAddr, VirtRange, WriteKind};
use mm_folio::{Exclusivity, FolioRun, Get};
use mm_map::{
    MapPolicy, OldPlace, exit, fork, mark_hints, mmap_anon, mprotect, mremap_move, zap_range,
};
use mm_pgtable::{Gather, LockedEntry, TableMemory, TableSpace, TablesStay};
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_rmap::{MappedWalk, RmapPlatform, Seek, Strict};
use mm_sync::model::{Bounds, caught, holds_with};
use mm_sync::thread::spawn;
use mm_vma::{Mm, MmRead, Platform, RssKind, VmaFlags};
use std::sync::Arc;

type A = ModelWord<4>;
type P = ModelPlatform<A>;
type E = <A as Arch>::Entry;

const POLICY: MapPolicy =
    MapPolicy { batching: mm_map::Batching::Batched, suspend: mm_map::Batching::Batched };

/// The space of a model. One that failed is not torn down: what it has mapped
/// would make dropping it fail as well.
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

fn page(k: u64) -> VirtAddr {
    VirtAddr::new(k << 12)
}
fn pages(first: u64, n: u64) -> VirtRange {
    VirtRange::units(page(first), n, 12).expect("range")
}
/// The models free no tables while these are used.
fn stay<'a>() -> TablesStay<'a> {
    // SAFETY: see there.
    unsafe { TablesStay::new() }
}

/// A space with a mapping of four pages, all of its first table.
fn space() -> (P, Space) {
    let p = machine::<A>(ModelConfig { nr_frames: 8, nr_tables: 6, ..ModelConfig::tiny() })
        .expect("machine");
    let mm = Mm::new(p.clone()).expect("space");
    mmap_anon(&mut mm.write(), pages(0, 4), VmaFlags::READ | VmaFlags::WRITE).expect("free");
    (p, Space(mm))
}
/// Maps a new folio from page 0 on, by entries or by a leaf: clean, writable.
fn map(p: &P, mm: &Mm<P>, order: u32, level: Level) -> Pfn {
    let vmas = mm.read();
    let vma = vmas.find(page(0)).expect("mapped");
    let anon = p.anon_trees().prepare(mm, &vmas, vma).expect("memory");
    let mut new = p.memmap().alloc(order).expect("frames");
    if level == Level::Pte && order > 0 {
        new.grow((1 << order) - 1).expect("fits");
    }
    let folio = new.hand_over();
    folio.set_anon(anon, 0);
    folio.add_new_anon(mm.id(), level, Exclusivity::Exclusive);
    mm.counters().add(RssKind::Anon, 1 << order);
    let e = E::leaf(folio.head(), A::prot(vma.protection()), level).mkwrite(WriteKind::Normal);
    if level == Level::Pte {
        let ensured = mm.tables().ensure_table(stay(), page(0)).expect("memory");
        ensured.table().expect("no leaf").fill(0, 1 << order, e);
    } else {
        let spare = p.tables().alloc(Level::Pte).expect("tables");
        let mut pmd = mm.tables().ensure_pmd(stay(), page(0)).expect("memory");
        let mut owed = mm.tables().tlb().obligation();
        pmd.swap(e, &mut owed);
        // SAFETY: allocated for this; nobody else knows the frame.
        unsafe { pmd.deposit(spare) };
        owed.already_done();
    }
    folio.head()
}
fn entry(mm: &Mm<P>, k: u64) -> E {
    match mm.tables().lock_entry(stay(), page(k)) {
        LockedEntry::Hole => E::NONE,
        LockedEntry::Huge(pmd) => pmd.entry(),
        LockedEntry::Table(t) => t.get(t.index_of(page(k))),
    }
}
/// A CPU that stores to page 0: whether the store went through.
fn hardware_store(p: &P, mm: &Mm<P>) -> mm_sync::thread::JoinHandle<bool> {
    let (frame, level) = match mm.tables().lock_entry(stay(), page(0)) {
        LockedEntry::Table(t) => (t.frame(), Level::Pte),
        LockedEntry::Huge(pmd) => (pmd.view().frame(), Level::Pmd),
        LockedEntry::Hole => panic!("nothing is mapped"),
    };
    let p = p.clone();
    spawn(move || {
        // SAFETY: the models free no table while hardware is running.
        let table = unsafe { p.tables().table(frame).as_ref() };
        A::mmu_mark(table, 0, AccessKind::Write, level)
    })
}
fn race(name: &str, model: impl Fn() + Copy + Send + Sync + 'static, mutants: &[&'static str]) {
    holds_with(name, Bounds::at_most(3), model);
    for mutant in mutants {
        caught(name, mutant, model);
    }
}

// A store through a still writable entry while fork write-protects it: it
// belongs before the fork, and its dirt stays, and is the child's as well: the parent may give
// the page up.

fn fork_and_store(level: Level) {
    let (p, mm) = space();
    map(&p, &mm, if level == Level::Pte { 0 } else { A::order(Level::Pmd) }, level);
    let store = hardware_store(&p, &mm);
    let child = Space(fork(&POLICY, &mm).expect("memory"));
    let stored = store.join().expect("hardware");
    let e = entry(&mm, 0);
    assert!(!e.is_writable(level) && !entry(&child, 0).is_writable(level));
    assert!(e.is_dirty() || !stored, "the dirt of a store is lost");
    assert!(entry(&child, 0).is_dirty() || !stored, "the child's dirt is lost");
    assert!(!p.memmap().page_exclusive(e.pfn(level)));
    exit(&POLICY, &child);
    exit(&POLICY, &mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: FORK-06, ACC-11.
#[test]
fn fork_vs_hardware_store() {
    race(
        "fork vs store",
        || fork_and_store(Level::Pte),
        &["word.update.not_rmw", "map.fork.no_wrprotect", "map.fork.early_dirt"],
    );
}
/// Rules: FORK-11, ACC-11.
#[test]
fn fork_of_a_leaf_vs_hardware_store() {
    race(
        "fork of a leaf vs store",
        || fork_and_store(Level::Pmd),
        &["word.update.not_rmw", "map.fork.early_dirt"],
    );
}

// The write bit of a run is that of any of its entries, and the parent is
// flushed before fork returns: nothing races, but the mutants must be found.

fn fork_of_a_mixed_run() {
    let (p, mm) = space();
    map(&p, &mm, 2, Level::Pte);
    {
        let mut table = mm.tables().lock_table(stay(), page(0)).expect("table");
        let mut owed = mm.tables().tlb().obligation();
        table.wrprotect(0, 1, &mut owed);
        owed.already_done();
    }
    let flushes = p.tlb().flushes.get();
    let child = Space(fork(&POLICY, &mm).expect("memory"));
    assert_eq!(p.tlb().flushes.get() - flushes, 1, "stale writable translations");
    assert!((0..4).all(|k| !entry(&mm, k).is_writable(Level::Pte)), "INV-2");
    exit(&POLICY, &child);
    exit(&POLICY, &mm);
}

/// Rules: FORK-05, FORK-12.
#[test]
fn fork_write_protects_and_flushes_a_mixed_run() {
    race(
        "fork of a mixed run",
        fork_of_a_mixed_run,
        &["map.fork.write_of_head", "map.fork.no_flush"],
    );
}

// A store while the rights change: it faults, or its dirt is in what is written
// back.

fn protect_and_store(level: Level) {
    let (p, mm) = space();
    let order = if level == Level::Pte { 1 } else { A::order(Level::Pmd) };
    map(&p, &mm, order, level);
    let store = hardware_store(&p, &mm);
    mprotect(&POLICY, &mut mm.write(), pages(0, 4), Rights::READ).expect("allowed");
    let stored = store.join().expect("hardware");
    let e = entry(&mm, 0);
    assert!(e.is_leaf(level) && !e.is_writable(level));
    assert!(e.is_dirty() || !stored, "the dirt of a store is lost");
    exit(&POLICY, &mm);
}

/// Rules: MPROT-02, ACC-15, P-RACE-16; MM-046.
#[test]
fn protect_vs_hardware_store() {
    race(
        "protect vs store",
        || protect_and_store(Level::Pte),
        &["word.take.not_rmw", "pgtable.modify.lose_dirty"],
    );
}
/// Rules: MPROT-07, MPROT-09, P-RACE-16.
#[test]
fn protect_of_a_leaf_vs_hardware_store() {
    race("protect of a leaf vs store", || protect_and_store(Level::Pmd), &[]);
}

// Only the pages that are exclusive become writable (MM-008).

fn protect_with_mixed_marks() {
    let (p, mm) = space();
    let head = map(&p, &mm, 2, Level::Pte);
    mprotect(&POLICY, &mut mm.write(), pages(0, 4), Rights::READ).expect("allowed");
    p.memmap().clear_exclusive(head.add(2), 1);
    let rw = Rights::READ | Rights::WRITE;
    mprotect(&POLICY, &mut mm.write(), pages(0, 4), rw).expect("allowed");
    let writable = [0, 1, 2, 3].map(|k| entry(&mm, k).is_writable(Level::Pte));
    assert_eq!(writable, [true, true, false, true]);
    exit(&POLICY, &mm);
}

/// Rules: MPROT-03, BATCH-15; MM-008.
#[test]
fn protect_asks_each_page_for_its_mark() {
    race("protect with mixed marks", protect_with_mixed_marks, &["map.protect.head_decides"]);
}

// A zap in one thread and a fault in another, on the same entries: whoever gets
// the lock second sees all of what the first did; and at no time are there fewer
// references than mappings.

fn zap_and_fault() {
    let (p, mm) = space();
    let head = map(&p, &mm, 2, Level::Pte);
    let held = p.memmap().folio(head).grab::<Get>(1).expect("fits").into_run(0);
    let zapper = {
        let mm = Arc::clone(&mm);
        spawn(move || {
            let vmas = mm.read();
            let vma = vmas.find(page(0)).expect("mapped");
            let mut gather = Gather::new(mm.tables());
            zap_range(&POLICY, &mm, vmas.stay(), vma, pages(0, 2), &mut gather);
            gather.finish();
        })
    };
    // The question that a write fault asks.
    let folio = p.memmap().folio(head);
    folio.counts_locked(|c| {
        assert!(c.refs > c.mapcount as i32, "fewer references than mappings: {c:?}");
    });
    // The step of a fault on an empty entry.
    let faulted = {
        let mut table = mm.tables().lock_table(stay(), page(0)).expect("table");
        let empty = table.get(0).is_none();
        let rss = mm.counters().get(RssKind::Anon);
        assert_eq!(rss, if empty { 2 } else { 4 }, "INV-6 under the lock");
        if empty {
            let new = p.memmap().alloc(0).expect("frames");
            let (anon, _) = folio.anon().expect("anonymous");
            new.folio().set_anon(anon, 0);
            new.folio().add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
            mm.counters().add(RssKind::Anon, 1);
            let vmas = mm.read();
            let prot = A::prot(vmas.find(page(0)).expect("mapped").protection());
            table.fill(0, 1, E::leaf(new.hand_over().head(), prot, Level::Pte));
        }
        empty
    };
    zapper.join().expect("zapped");
    // What was mapped before the zap is gone, what came behind it stays.
    assert_eq!(entry(&mm, 0).is_none(), !faulted);
    assert!(entry(&mm, 1).is_none());
    assert_eq!(mm.counters().get(RssKind::Anon), 2 + u64::from(faulted));
    assert_eq!((folio.refcount(), folio.mapcount()), (3, 2));
    p.memmap().put_run::<Get>(FolioRun::new(held.head, held.first, held.nr));
    exit(&POLICY, &mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: ZAP-03, INV-1, INV-6.
#[test]
fn zap_vs_fault() {
    race("zap vs fault", zap_and_fault, &["map.zap.put_first"]);
}

// A move, and somebody who unmaps the page at its new place (reclaim, which
// comes by the trees): the old place was flushed before the new one could be
// locked.

fn move_and_unmap() {
    let (p, mm) = space();
    map(&p, &mm, 0, Level::Pte);
    drop(mm.tables().ensure_table(stay(), page(8)).expect("memory"));
    let before = p.tlb().flushes.get();
    let unmapper = {
        let (p, mm) = (p.clone(), Arc::clone(&mm));
        spawn(move || {
            let table = mm.tables().lock_table(stay(), page(8)).expect("table");
            let moved = !table.get(0).is_none();
            assert!(!moved || p.tlb().flushes.get() > before, "the old translation lives");
        })
    };
    mremap_move(&POLICY, &mut mm.write(), pages(0, 4), page(8), OldPlace::Keep).expect("memory");
    unmapper.join().expect("thread");
    assert!(entry(&mm, 8).is_writable(Level::Pte));
    exit(&POLICY, &mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: MREMAP-02; MM-078.
#[test]
fn move_vs_unmap_at_the_new_place() {
    race("move vs unmap", move_and_unmap, &["map.move.flush_late"]);
}

// A discard looks for leaves without a lock: one that is empty while it becomes a hint
// would be passed by, and the page survive.

/// The read side of the mmap lock, for two threads at once: the lock of the models lets
/// one in at a time.
struct Inside(MmRead<'static, P>);
// SAFETY: the models use it to look at mappings, which a guard of their own would allow as
// well; the thread that took it drops it.
unsafe impl Send for Inside {}
// SAFETY: as above.
unsafe impl Sync for Inside {}

impl Inside {
    /// # Safety
    ///
    /// It is dropped before the space.
    unsafe fn new(mm: &Mm<P>) -> Arc<Self> {
        // SAFETY: the caller sees to the lifetime.
        Arc::new(Inside(unsafe {
            core::mem::transmute::<MmRead<'_, P>, MmRead<'static, P>>(mm.read())
        }))
    }
}

fn hint_and_discard() {
    let (p, mm) = space();
    map(&p, &mm, A::order(Level::Pmd), Level::Pmd);
    // SAFETY: dropped below, before the space is.
    let inside = unsafe { Inside::new(&mm) };
    let marker = {
        let inside = Arc::clone(&inside);
        spawn(move || mark_hints(&POLICY, &inside.0, pages(0, 4)).expect("user space"))
    };
    {
        let vmas = &inside.0;
        let vma = vmas.find(page(0)).expect("mapped");
        let mut gather = Gather::new(mm.tables());
        zap_range(&POLICY, &mm, vmas.stay(), vma, pages(0, 4), &mut gather);
        gather.finish();
    }
    marker.join().expect("marked");
    drop(inside);
    assert!(entry(&mm, 0).is_none(), "the page survives");
    assert_eq!(mm.counters().get(RssKind::Anon), 0);
    exit(&POLICY, &mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: F-RACE-36, MPROT-07.
#[test]
fn hint_of_a_leaf_vs_discard() {
    race("hint of a leaf vs discard", hint_and_discard, &["map.protect.hole"]);
}

// A move, and a walk of the trees: a page is found at its old place or at its new one, since
// the new one is visited later.

fn move_and_walk() {
    let (p, mm) = space();
    let head = map(&p, &mm, 0, Level::Pte);
    drop(mm.tables().ensure_table(stay(), page(8)).expect("memory"));
    let own = p.memmap().folio(head).grab::<Get>(1).expect("room");
    let mover = {
        let mm = Arc::clone(&mm);
        spawn(move || {
            let mut vmas = mm.write();
            mremap_move(&POLICY, &mut vmas, pages(0, 4), page(8), OldPlace::Keep).expect("memory");
        })
    };
    let locked = own.folio().lock();
    let mut found = false;
    p.anon_trees().walk(own.folio(), &mut |mm, visit| {
        let mut walk = MappedWalk::<P, Strict>::new(mm, &visit, own.folio(), Seek::Mappings);
        found |= walk.next_hit().is_some();
        ControlFlow::Continue(())
    });
    drop(locked);
    mover.join().expect("thread");
    drop(own);
    exit(&POLICY, &mm);
    assert!(found, "neither at the old place nor at the new one");
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: F-RACE-31, RMAP-32.
#[test]
fn move_vs_walk() {
    race("move vs walk", move_and_walk, &["rmap.links.newest_first"]);
}

// A space ends, and another one is made: as long as the first maps a folio, its name is not
// given again, or the folio would look like the new one's alone.

fn exit_and_fork() {
    let (p, mm) = space();
    let head = map(&p, &mm, 2, Level::Pte);
    let sharer = Space(fork(&POLICY, &mm).expect("memory"));
    let other = {
        let (p, sharer) = (p.clone(), Space(Arc::clone(&sharer)));
        spawn(move || {
            let new = Space(fork(&POLICY, &sharer).expect("memory"));
            exit(&POLICY, &sharer);
            // More mappings than the new space has, so somebody else has some.
            let looks_alone = p.memmap().folio(head).counts_locked(|c| c.mapcount > 4 && !c.shared);
            exit(&POLICY, &new);
            looks_alone
        })
    };
    exit(&POLICY, &mm);
    let looks_alone = other.join().expect("thread");
    assert!(!looks_alone, "a folio of two spaces looks like that of one");
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: FOLIO-29. Races: F-RACE-39.
#[test]
fn exit_vs_fork_of_a_sharer() {
    holds_with("exit vs fork of a sharer", Bounds::at_most(1), exit_and_fork);
    caught("exit vs fork of a sharer", "map.exit.id_first", exit_and_fork);
}
