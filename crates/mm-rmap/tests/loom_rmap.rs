//! Loom models of the reverse map: walks, faults and splits against each other.
//!
//! Each model is named after the race it excludes and has mutants that must fail it.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p mm-rmap --profile loom --test loom_rmap
//! ```
#![cfg(loom)]

use core::num::NonZeroU32;
use core::ops::ControlFlow;
use mm_arch::model::ModelWord;
use mm_arch::{AccessKind, Arch, Entry, Level, Pfn, VirtAddr, VirtRange, WriteKind};
use mm_folio::{Exclusivity, FolioRef, FolioRun, Get};
use mm_pgtable::{Gather, LockedEntry, TableMemory, TableSpace, TablesStay};
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_rmap::{MappedWalk, RmapPlatform, Seek, Strict, split_pmd};
use mm_sync::model::{Bounds, caught, holds_with};
use mm_sync::thread;
use mm_vma::{Mm, Platform, RssKind, Vma, VmaFlags, VmaStore};
use std::sync::Arc;

type A = ModelWord<2>;
type P = ModelPlatform<A>;
type E = <A as Arch>::Entry;

const AT: VirtAddr = VirtAddr::new(0);

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

/// A space with one VMA of two pages, one PMD entry.
fn space() -> (P, Space) {
    let p = machine::<A>(ModelConfig { nr_frames: 4, nr_tables: 3, ..ModelConfig::tiny() })
        .expect("machine");
    let mm = Mm::new(p.clone()).expect("space");
    let range = VirtRange::units(AT, 2, 12).expect("range");
    let vma = Vma::anonymous(range, VmaFlags::READ | VmaFlags::WRITE, 12);
    mm.write().change().insert(vma).expect("free");
    (p, Space(mm))
}
/// The models free no tables while these run.
fn stay<'a>() -> TablesStay<'a> {
    // SAFETY: see there.
    unsafe { TablesStay::new() }
}
fn leaf(mm: &Mm<P>, pfn: Pfn, level: Level) -> E {
    let vmas = mm.read();
    let prot = vmas.find(AT).expect("there").protection();
    E::leaf(pfn, A::prot(prot), level).mkwrite(WriteKind::Normal)
}
/// Maps a new folio: a page by a PTE, or two by a PMD entry.
fn map(p: &P, mm: &Mm<P>, level: Level) -> Pfn {
    let vmas = mm.read();
    let anon = p.anon_trees().prepare(mm, &vmas, vmas.find(AT).expect("there")).expect("memory");
    drop(vmas);
    let new = p.memmap().alloc(A::order(level)).expect("frames");
    let folio = new.hand_over();
    folio.set_anon(anon, 0);
    folio.add_new_anon(mm.id(), level, Exclusivity::Exclusive);
    let e = leaf(mm, folio.head(), level);
    if level == Level::Pte {
        let ensured = mm.tables().ensure_table(stay(), AT).expect("memory");
        ensured.table().expect("a table").fill(0, 1, e);
    } else {
        let deposit = p.tables().alloc(Level::Pte).expect("tables");
        let mut pmd = mm.tables().ensure_pmd(stay(), AT).expect("memory");
        // SAFETY: allocated for this; nobody else knows the frame.
        unsafe { pmd.deposit(deposit) };
        let mut owed = mm.tables().tlb().obligation();
        pmd.swap(e, &mut owed);
    }
    mm.counters().add(RssKind::Anon, 1 << A::order(level));
    folio.head()
}
/// Takes the entries of a table and counts them out.
fn zap(p: &P, mm: &Mm<P>, n: usize) {
    let mut gather = Gather::<_, FolioRef<'_, P, Get>>::new(mm.tables());
    let mut table = mm.tables().lock_table(stay(), AT).expect("a table");
    for index in 0..n {
        let e = table.take(index, gather.owed());
        let folio = p.memmap().folio(e.pfn(Level::Pte));
        folio.remove_ptes(folio.index_of(e.pfn(Level::Pte)), NonZeroU32::MIN, mm.id());
        mm.counters().sub(RssKind::Anon, 1);
        gather.park(p.memmap().adopt_run(FolioRun::new(folio.head(), 0, 1)));
    }
    drop(table);
    gather.finish();
}
fn unlink(p: &P, mm: &Mm<P>) {
    let vmas = mm.write();
    p.anon_trees().unlink(mm, vmas.find(AT).expect("there"));
}

// ---------------------------------------------------------------------------
// A zap has taken the entry and not yet counted it out; a strict walk must not
// say "not mapped" before that (F-RACE-22).

fn walk_vs_zap() {
    let (p, mm) = space();
    let pfn = map(&p, &mm, Level::Pte);
    let held = p.memmap().folio(pfn).grab::<Get>(1).expect("room").into_run(0);
    let zapper = {
        let (p, mm) = (p.clone(), Arc::clone(&mm));
        thread::spawn(move || zap(&p, &mm, 1))
    };
    let folio = p.memmap().folio(pfn);
    {
        let _lock = folio.lock();
        let mut found = false;
        p.anon_trees().walk(folio, &mut |mm, visit| {
            let mut walk = MappedWalk::<P, Strict>::new(mm, &visit, folio, Seek::Mappings);
            found |= walk.next_hit().is_some();
            ControlFlow::Continue(())
        });
        assert!(found || !folio.is_mapped(), "overlooked");
    }
    zapper.join().expect("zapped");
    p.memmap().put_run::<Get>(held);
    unlink(&p, &mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: PVMW-06, F-RACE-22.
#[test]
fn a_strict_walk_waits_for_a_zap() {
    holds_with("strict walk vs zap", Bounds::at_most(3), walk_vs_zap);
}
/// Rules: PVMW-06.
#[test]
fn a_walk_that_only_peeks_overlooks_a_zap() {
    caught("strict walk vs zap", "rmap.walk.not_strict", walk_vs_zap);
}

// ---------------------------------------------------------------------------
// Two first faults of one VMA (RMAP-21).

fn fault_vs_fault() {
    let (p, mm) = space();
    // Not the space's own store: under the model checker readers of its lock
    // exclude each other, and here they must not.
    let mut store = VmaStore::new(12);
    let range = VirtRange::units(AT, 2, 12).expect("range");
    store.insert(Vma::anonymous(range, VmaFlags::READ, 12)).expect("free");
    let store = Arc::new(store);
    let prepare = |p: &P, mm: &Mm<P>, store: &VmaStore| {
        let vma = store.find(AT).expect("there");
        p.anon_trees().prepare(mm, store, vma).expect("memory")
    };
    let other = {
        let (p, mm, store) = (p.clone(), Arc::clone(&mm), store.clone());
        thread::spawn(move || prepare(&p, &mm, &store))
    };
    let mine = prepare(&p, &mm, &store);
    assert_eq!(other.join().expect("faulted"), mine, "two trees");
    assert_eq!(p.anon_trees().nr_members(), 1);
    p.anon_trees().unlink(&mm, store.find(AT).expect("there"));
    assert_eq!(p.anon_trees().nr_trees(), 0);
}

/// Rules: RMAP-21.
#[test]
fn two_faults_make_one_tree() {
    holds_with("fault vs fault", Bounds::at_most(3), fault_vs_fault);
}
/// Rules: RMAP-21.
#[test]
fn without_a_second_look_two_faults_make_two_trees() {
    caught("fault vs fault", "rmap.prepare.no_recheck", fault_vs_fault);
}

// ---------------------------------------------------------------------------
// Somebody looks up the entry while it is being split (PTE-20): there is no
// moment at which nothing seems to be mapped, or at which a table is half full.

fn lookup_vs_split() {
    let (p, mm) = space();
    let pfn = map(&p, &mm, Level::Pmd);
    let splitter = {
        let mm = Arc::clone(&mm);
        thread::spawn(move || split_pmd(&mm, stay(), AT))
    };
    match mm.tables().lock_entry(stay(), AT) {
        LockedEntry::Hole => panic!("a hole where two pages are mapped"),
        LockedEntry::Huge(pmd) => assert_eq!(pmd.entry().pfn(Level::Pmd), pfn),
        LockedEntry::Table(t) => {
            assert!((0..2).all(|i| t.get(i).pfn(Level::Pte) == pfn.add(i as u64)), "half full");
        }
    }
    let folio = p.memmap().folio(pfn);
    folio.counts_locked(|c| assert!(c.refs >= c.mapcount as i32, "INV-1: {c:?}"));
    splitter.join().expect("split");
    zap(&p, &mm, 2);
    unlink(&p, &mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: PSPLIT-02, PTE-20.
#[test]
fn a_leaf_under_split_is_never_a_hole() {
    holds_with("lookup vs split", Bounds::at_most(3), lookup_vs_split);
}
/// Rules: PSPLIT-02, PTE-20.
#[test]
fn a_leaf_that_is_emptied_for_the_split_is_seen_as_a_hole() {
    caught("lookup vs split", "rmap.split.hole", lookup_vs_split);
}

// ---------------------------------------------------------------------------
// The hardware writes through the leaf while it is being split: the write is
// remembered, or did not happen.

fn store_vs_split() {
    let (p, mm) = space();
    map(&p, &mm, Level::Pmd);
    let splitter = {
        let mm = Arc::clone(&mm);
        thread::spawn(move || split_pmd(&mm, stay(), AT))
    };
    // SAFETY: the root lives as long as the space. In this format it is the PMD table.
    let root = unsafe { p.tables().table(mm.tables().root()).as_ref() };
    let stored =
        read_root(root).is_leaf(Level::Pmd) && A::mmu_mark(root, 0, AccessKind::Write, Level::Pmd);
    splitter.join().expect("split");
    let e = mm.tables().lock_table(stay(), AT).expect("a table").get(0);
    // A walk that found the table went on to its entries, which is no store yet.
    let found_table = read_root(root).is_young();
    assert!(!stored || e.is_dirty() || found_table, "a lost write");
    zap(&p, &mm, 2);
    unlink(&p, &mm);
}
fn read_root(root: &<A as Arch>::Table) -> E {
    E::from_bits(root[0].load(mm_sync::atomic::Ordering::Relaxed))
}

/// Rules: PSPLIT-02, ACC-05.
#[test]
fn a_store_through_a_leaf_under_split_is_not_lost() {
    holds_with("store vs split", Bounds::at_most(3), store_vs_split);
}
/// Rules: PSPLIT-02, ACC-05.
#[test]
fn a_split_that_trusts_its_first_look_loses_a_store() {
    caught("store vs split", "rmap.split.stale", store_vs_split);
}
