//! Loom models of mm-reclaim: unmapping against whoever holds, stores to, maps or changes
//! the page at the same time. Each model is named after the race it excludes, runs the
//! production steps page by page and in runs, and has mutants that must fail it.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p mm-reclaim --profile loom --test loom_reclaim
//! ```
#![cfg(loom)]

use mm_arch::model::ModelWord;
use mm_arch::respect::{SOFT_DIRTY, WRITE};
use mm_arch::{AccessKind, Arch, Entry, FlushScope, Level, Pfn, VirtAddr, VirtRange, WriteKind};
use mm_fault::{FaultFlags, FaultPolicy, ThpMode, ThpPolicy, handle_fault};
use mm_folio::{Exclusivity, FileId, FolioFlags, FolioLockGuard, FolioRef, FrameBytes, Get};
use mm_map::{Advice, MapPolicy, exit, madvise, mmap_anon, mmap_backing, zap_range};
use mm_pgtable::{Gather, LockedEntry, PageFate, Step, TableMemory, TableSpace, TablesStay};
use mm_reclaim::model::{know, machine};
use mm_reclaim::{
    FlushBatch, ReclaimOf, Shrink, Shrunk, UnmapFlags, UnmapPolicy, Unmapped, referenced,
    shrink_folios, try_to_unmap, try_to_unmap_each,
};
use mm_rmap::RmapPlatform;
use mm_rmap::model::{ModelConfig, ModelObject, ModelPlatform};
use mm_sync::model::{Bounds, caught, holds_with};
use mm_sync::thread::spawn;
use mm_vma::{Backing, BackingKind, Mm, Platform, RssKind, SwapSpace, VmaFlags};
use std::sync::Arc;

type A = ModelWord<4>;
type P = ModelPlatform<A>;
type E = <A as Arch>::Entry;

const MAP: MapPolicy =
    MapPolicy { batching: mm_map::Batching::Batched, suspend: mm_map::Batching::Batched };
const SHARED: VmaFlags = VmaFlags::READ
    .union(VmaFlags::WRITE)
    .union(VmaFlags::SHARED)
    .union(VmaFlags::MAYREAD)
    .union(VmaFlags::MAYWRITE)
    .union(VmaFlags::SOFTDIRTY);
const SYNC: UnmapFlags = UnmapFlags::SYNC;
const PUT_OFF: UnmapFlags = UnmapFlags::SYNC.union(UnmapFlags::PUT_OFF_FLUSH);

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
/// A space that is not torn down if the model fails.
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
fn new_machine() -> P {
    let sizes = ModelConfig { nr_frames: 8, nr_tables: 6, swap_slots: 8, ..ModelConfig::tiny() };
    machine::<A>(sizes).expect("machine")
}

/// A space with a folio from page 0 on that its owner has given up: clean, writable.
fn given_up(order: u32) -> (P, Space, Pfn) {
    anonymous(order, FolioFlags::empty(), |e| e.mkwrite(WriteKind::Normal))
}
/// A space with an anonymous folio from page 0 on, by entries that `made` makes of one that
/// allows nothing.
fn anonymous(order: u32, flags: FolioFlags, made: impl Fn(E) -> E) -> (P, Space, Pfn) {
    let p = new_machine();
    let mm = Mm::new(p.clone()).expect("space");
    mmap_anon(&mut mm.write(), pages(0, 4), VmaFlags::READ | VmaFlags::WRITE).expect("free");
    let vmas = mm.read();
    let vma = vmas.find(page(0)).expect("mapped");
    let anon = p.anon_trees().prepare(&mm, &vmas, vma).expect("memory");
    let mut new = p.memmap().alloc(order).expect("frames");
    if order > 0 {
        new.grow((1 << order) - 1).expect("fits");
    }
    let folio = new.hand_over();
    folio.set_anon(anon, 0);
    folio.set_flag(FolioFlags::UPTODATE | flags);
    folio.add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
    mm.counters().add(RssKind::Anon, 1 << order);
    let e = E::leaf(folio.head(), A::prot(vma.protection()), Level::Pte);
    fill(&mm, 1 << order, made(e));
    drop(vmas);
    let head = folio.head();
    (p, Space(mm), head)
}
fn fill(mm: &Mm<P>, n: usize, e: E) {
    let ensured = mm.tables().ensure_table(stay(), page(0)).expect("memory");
    ensured.table().expect("no leaf").fill(0, n, e);
}
/// A space that shows an object of one folio, mapped if `mapped` says so.
fn of_a_file(order: u32, mapped: bool) -> (P, Arc<ModelObject<A>>, Space, Pfn) {
    let p = new_machine();
    let object = ModelObject::new(&p, FileId(1), BackingKind::File, false);
    let folio = object.add(0, order).expect("frames");
    let mm = Mm::new(p.clone()).expect("space");
    mmap_backing(&mut mm.write(), pages(0, 1 << order), SHARED, object.clone(), 0).expect("free");
    if mapped {
        folio.grab::<Get>(1 << order).expect("fits").hand_over();
        let n = core::num::NonZeroU32::new(1 << order).expect("not zero");
        folio.add_file_ptes(0, n, mm.id());
        mm.counters().add(RssKind::File, 1 << order);
        let prot = A::prot(mm.read().find(page(0)).expect("mapped").protection());
        let e = E::leaf(folio.head(), prot, Level::Pte);
        fill(&mm, 1 << order, e.mkwrite(WriteKind::Normal));
    } else {
        drop(mm.tables().ensure_table(stay(), page(0)).expect("memory"));
    }
    let head = folio.head();
    (p, object, Space(mm), head)
}
/// A space that maps two small folios of a file from page 0 on.
fn two_of_a_file() -> (P, Arc<ModelObject<A>>, Space, [Pfn; 2]) {
    let p = new_machine();
    let object = ModelObject::new(&p, FileId(1), BackingKind::File, false);
    let mm = Mm::new(p.clone()).expect("space");
    mmap_backing(&mut mm.write(), pages(0, 2), SHARED, object.clone(), 0).expect("free");
    let prot = A::prot(mm.read().find(page(0)).expect("mapped").protection());
    drop(mm.tables().ensure_table(stay(), page(0)).expect("memory"));
    let heads = [0, 1].map(|k| {
        let folio = object.add(k, 0).expect("frames");
        folio.grab::<Get>(1).expect("fits").hand_over();
        folio.add_file_ptes(0, core::num::NonZeroU32::MIN, mm.id());
        mm.counters().add(RssKind::File, 1);
        let e = E::leaf(folio.head(), prot, Level::Pte);
        let mut table = mm.tables().lock_table(stay(), page(0)).expect("a table");
        table.fill(k as usize, 1, e.mkwrite(WriteKind::Normal));
        folio.head()
    });
    (p, object, Space(mm), heads)
}
fn entry(mm: &Mm<P>, k: u64) -> E {
    match mm.tables().lock_entry(stay(), page(k)) {
        LockedEntry::Table(t) => t.get(t.index_of(page(k))),
        _ => E::NONE,
    }
}
/// A device writes to page `k`, as GUP-fast and its user do it: reference, second look,
/// store, dirt, end. Whether it got the page.
fn device_write(p: &P, mm: &Mm<P>, pfn: Pfn, k: u64) -> bool {
    let Some(own) = p.memmap().try_grab::<Get>(pfn, 1) else { return false };
    let still = {
        let guard = mm.tables().pin();
        match guard.walk(page(k)) {
            Step::Table(_, view) => {
                let e = view.get(view.index_of(page(k)));
                e.is_leaf(Level::Pte) && e.pfn(Level::Pte) == pfn
            }
            _ => false,
        }
    };
    if still {
        own.folio().set_flag(FolioFlags::DIRTY);
    }
    still
}
/// Reclaim's hold on a folio.
fn isolated(p: &P, head: Pfn) -> (FolioRef<'_, P, Get>, FolioLockGuard<'_, P>) {
    let own = p.memmap().folio(head).grab::<Get>(1).expect("fits");
    let locked = own.folio().lock();
    (own, locked)
}
fn unmap(
    policy: UnmapPolicy,
    p: &P,
    locked: &FolioLockGuard<'_, P>,
    flags: UnmapFlags,
) -> Unmapped {
    let mut flushes = FlushBatch::new(p);
    let end = try_to_unmap(policy, locked, flags, &mut flushes);
    flushes.finish();
    end
}
fn race(name: &str, model: impl Fn() + Copy + Send + Sync + 'static, mutants: &[&'static str]) {
    holds_with(name, Bounds::at_most(3), model);
    for mutant in mutants {
        caught(name, mutant, model);
    }
}

fn lazyfree_discard(policy: UnmapPolicy, order: u32) {
    let (p, mm, head) = given_up(order);
    let last = (1u64 << order) - 1;
    let g = {
        let (p, mm) = (p.clone(), mm.0.clone());
        spawn(move || device_write(&p, &mm, head.add(last), last))
    };
    let (own, locked) = isolated(&p, head);
    let end = unmap(policy, &p, &locked, SYNC);
    let wrote = g.join().expect("thread");
    assert!(!wrote || end != Unmapped::All, "what a device wrote is dropped");
    let left = (0..=last).filter(|k| !entry(&mm, *k).is_none()).count();
    assert_eq!(left as u32, own.folio().mapcount());
    assert!(!wrote || !entry(&mm, last).is_none(), "the page that was written is mapped");
    drop(locked);
    drop(own);
    exit(&MAP, &mm);
    assert_eq!(p.folios_in_use(), 0);
}
/// R: takes the entry, barrier, references, dirt. G: reference, barrier, second look, store,
/// dirt, end.
/// Rules: F-RACE-10, P-RACE-09, UNMAP-17. Cases: MM-066.
#[test]
fn lazyfree_discard_vs_device_write() {
    race(
        "lazyfree discard vs device write",
        || lazyfree_discard(UnmapPolicy::Page, 0),
        &["reclaim.lazyfree.mb", "folio.counts.refs", "reclaim.lazyfree.dirty_first"],
    );
}
/// Rules: F-RACE-10, P-RACE-09, UNMAP-17. Cases: MM-066.
#[test]
fn lazyfree_discard_of_a_run_vs_device_write() {
    race(
        "lazyfree discard of a run vs device write",
        || lazyfree_discard(UnmapPolicy::All, 2),
        &["reclaim.lazyfree.mb", "reclaim.lazyfree.dirty_first"],
    );
}

fn release(policy: UnmapPolicy, order: u32) {
    let (p, object, mm, head) = of_a_file(order, true);
    let last = (1u64 << order) - 1;
    let g = {
        let (p, mm) = (p.clone(), mm.0.clone());
        spawn(move || device_write(&p, &mm, head.add(last), last))
    };
    let (own, locked) = isolated(&p, head);
    let end = unmap(policy, &p, &locked, SYNC);
    assert_eq!(end, Unmapped::All);
    let released = object.release(0);
    let wrote = g.join().expect("thread");
    assert!(!wrote || !released, "what a device wrote left the cache as clean");
    drop(locked);
    drop(own);
    exit(&MAP, &mm);
    drop(mm);
    drop(object);
    assert_eq!(p.folios_in_use(), 0);
}
/// R: takes the entries, freezes the references, dirt. G: as above, on a page of a file.
/// Rules: F-RACE-12, RECL-08.
#[test]
fn unmap_vs_pin_of_a_file() {
    race(
        "unmap vs pin of a file",
        || release(UnmapPolicy::Page, 0),
        &["vma.cache.dirty_first", "folio.freeze"],
    );
}
/// Rules: F-RACE-12, RECL-08.
#[test]
fn unmap_of_a_run_vs_pin_of_a_file() {
    race(
        "unmap of a run vs pin of a file",
        || release(UnmapPolicy::All, 2),
        &["vma.cache.dirty_first"],
    );
}

fn fault(mm: &Mm<P>) {
    let mut policy = FaultPolicy::new(ThpPolicy::new(2));
    policy.fault_around = 1;
    let _ = handle_fault(&policy, &mm.read(), page(0), FaultFlags::empty());
}
fn unmap_and_fault(policy: UnmapPolicy, order: u32) {
    let (p, object, mm, head) = of_a_file(order, false);
    let f = {
        let mm = mm.0.clone();
        spawn(move || fault(&mm))
    };
    let (own, locked) = isolated(&p, head);
    let released = unmap(policy, &p, &locked, SYNC) == Unmapped::All && object.release(0);
    drop(locked);
    f.join().expect("thread");
    assert!(!released || entry(&mm, 0).is_none(), "a page that belongs to nobody is mapped");
    drop(own);
    exit(&MAP, &mm);
    drop(mm);
    drop(object);
    assert_eq!(p.folios_in_use(), 0);
}
/// F: finds the page, locks it, looks whether it is still in its object, maps it. R: locks,
/// unmaps, takes it out of the cache. No single site is to blame: the reference of who has
/// found the page protects, and so does its second look.
/// Rules: F-RACE-37, RECL-08.
#[test]
fn unmap_vs_fault() {
    race("unmap vs fault", || unmap_and_fault(UnmapPolicy::Page, 0), &[]);
}
/// Rules: F-RACE-37, RECL-08.
#[test]
fn unmap_of_a_run_vs_fault() {
    race("unmap of a run vs fault", || unmap_and_fault(UnmapPolicy::All, 1), &[]);
}

fn deferred_flush(policy: UnmapPolicy, order: u32) {
    let (p, object, mm, head) = of_a_file(order, true);
    let m = {
        let (p, mm) = (p.clone(), mm.0.clone());
        spawn(move || {
            // As every change of rights begins.
            let table = mm.tables().lock_table(stay(), page(0)).expect("a table");
            table.settle_deferred();
            if table.get(0).is_none() {
                assert!(p.tlb().flushes.get() > 0, "nobody may rely on this empty entry yet");
            }
        })
    };
    let (own, locked) = isolated(&p, head);
    let mut flushes = FlushBatch::new(&p);
    let end = try_to_unmap(policy, &locked, PUT_OFF, &mut flushes);
    assert_eq!(end, Unmapped::All);
    m.join().expect("thread");
    drop(flushes);
    drop(locked);
    drop(own);
    exit(&MAP, &mm);
    drop(object);
}
/// R: takes entries, puts the flush off. M: the same lock, is a flush outstanding?
/// Rules: F-RACE-13, TLBB-02, TLBB-07. Cases: MM-079.
#[test]
fn deferred_flush_vs_protect() {
    race(
        "deferred flush vs protect",
        || deferred_flush(UnmapPolicy::Page, 0),
        &["pgtable.deferred.no_check", "pgtable.deferred.not_raised"],
    );
}
/// Rules: F-RACE-13, TLBB-02, TLBB-07. Cases: MM-079.
#[test]
fn deferred_flush_of_a_run_vs_protect() {
    race(
        "deferred flush of a run vs protect",
        || deferred_flush(UnmapPolicy::All, 1),
        &["pgtable.deferred.no_check", "pgtable.deferred.not_raised"],
    );
}

/// R: drops a page that was given up, puts the flush off. F: stores where it was. A CPU that still has
/// the old page must not go on by it once there is a new one.
/// Rules: F-RACE-13, TLBB-07, INV-9.
#[test]
fn lazyfree_discard_vs_fault() {
    let model = || {
        let (p, mm, head) = given_up(0);
        let f = {
            let (p, mm) = (p.clone(), mm.0.clone());
            spawn(move || {
                let mut policy = FaultPolicy::new(ThpPolicy::new(2));
                policy.fault_around = 1;
                let _ = handle_fault(&policy, &mm.read(), page(0), FaultFlags::WRITE);
                let e = entry(&mm, 0);
                if e.is_present(Level::Pte) && e.pfn(Level::Pte) != head {
                    assert!(p.tlb().flushes.get() > 0, "a CPU still has the page before");
                }
            })
        };
        let (own, locked) = isolated(&p, head);
        let mut flushes = FlushBatch::new(&p);
        let _ = try_to_unmap(UnmapPolicy::Page, &locked, PUT_OFF, &mut flushes);
        f.join().expect("thread");
        drop(flushes);
        drop(locked);
        drop(own);
        exit(&MAP, &mm);
    };
    let mutants = &["pgtable.deferred.no_check_on_fill", "pgtable.deferred.not_raised"];
    race("lazyfree discard vs fault", model, mutants);
}

/// As `deferred_flush_vs_protect`, by folios that are unmapped together: M looks at the one
/// that goes last, or first.
/// Rules: F-RACE-13, TLBB-02, TLBB-07. Cases: MM-079.
#[test]
fn deferred_flush_of_neighbours_vs_protect() {
    let model = || {
        let (p, object, mm, heads) = two_of_a_file();
        let m = {
            let (p, mm) = (p.clone(), mm.0.clone());
            spawn(move || {
                let table = mm.tables().lock_table(stay(), page(0)).expect("a table");
                table.settle_deferred();
                if (0..2).any(|k| table.get(k).is_none()) {
                    assert!(p.tlb().flushes.get() > 0, "nobody may rely on an empty entry yet");
                }
            })
        };
        let held = heads.map(|head| isolated(&p, head));
        let mut flushes = FlushBatch::new(&p);
        let locked = held.each_ref().map(|(_, locked)| locked);
        try_to_unmap_each(UnmapPolicy::All, &locked, PUT_OFF, &mut flushes, |_, end| {
            assert_eq!(end, Unmapped::All);
        });
        m.join().expect("thread");
        drop(flushes);
        for (own, locked) in held {
            drop(locked);
            drop(own);
        }
        exit(&MAP, &mm);
        drop(object);
    };
    race(
        "deferred flush of neighbours vs protect",
        model,
        &[
            "pgtable.deferred.no_check",
            "pgtable.deferred.not_raised",
            "reclaim.together.late_record",
        ],
    );
}

/// R: takes the entry, puts the flush off. Z: zaps the same range, and whoever asked for
/// it relies on the pages being out of reach.
/// Rules: F-RACE-13, ZAP-01, TLBB-07.
#[test]
fn deferred_flush_vs_zap() {
    let model = || {
        let (p, object, mm, head) = of_a_file(0, true);
        let z = {
            let (p, mm) = (p.clone(), mm.0.clone());
            spawn(move || {
                let vmas = mm.read();
                let vma = vmas.find(page(0)).expect("mapped");
                let mut gather = Gather::new(mm.tables());
                zap_range(&MAP, &mm, vmas.stay(), vma, vma.range(), &mut gather);
                gather.finish();
                assert!(p.tlb().flushes.get() > 0, "a CPU still reaches the page");
            })
        };
        let (own, locked) = isolated(&p, head);
        let mut flushes = FlushBatch::new(&p);
        // Whoever comes second finds nothing left.
        let _ = try_to_unmap(UnmapPolicy::Page, &locked, PUT_OFF, &mut flushes);
        z.join().expect("thread");
        drop(flushes);
        drop(locked);
        drop(own);
        exit(&MAP, &mm);
        drop(object);
    };
    race(
        "deferred flush vs zap",
        model,
        &["pgtable.deferred.no_check", "pgtable.deferred.not_raised"],
    );
}

/// R puts a flush off under one table lock while M flushes what was put off before, under
/// another: what R put off is still to be made.
/// Rules: F-RACE-14, TLBB-07, TLBB-08.
#[test]
fn flush_vs_another_that_is_put_off() {
    race(
        "flush vs another that is put off",
        || {
            let p = new_machine();
            let mm = Space(Mm::new(p.clone()).expect("space"));
            for k in [0, 4] {
                drop(mm.tables().ensure_table(stay(), page(k)).expect("memory"));
            }
            let put_off = |mm: &Mm<P>, k: u64| {
                let _table = mm.tables().lock_table(stay(), page(k)).expect("a table");
                let mut owed = mm.tables().tlb().obligation();
                owed.add(pages(k, 1), FlushScope::Leaves);
                assert!(mm.tables().put_off(owed, PageFate::Kept));
                mm.platform().tlb().flushes.get()
            };
            put_off(&mm, 0);
            let r = {
                let mm = mm.0.clone();
                spawn(move || put_off(&mm, 4))
            };
            mm.tables().lock_table(stay(), page(0)).expect("a table").settle_deferred();
            let before = r.join().expect("thread");
            mm.tables().lock_table(stay(), page(4)).expect("a table").settle_deferred();
            assert!(p.tlb().flushes.get() > before, "a flush that was put off is lost");
        },
        &["pgtable.deferred.plain_store"],
    );
}

fn overlooked(policy: UnmapPolicy) {
    let (p, object, mm, head) = of_a_file(1, true);
    let m = {
        let mm = mm.0.clone();
        spawn(move || {
            let mut table = mm.tables().lock_table(stay(), page(0)).expect("a table");
            let e = table.get(0);
            if e.is_present(Level::Pte) {
                let run = table.run::<{ WRITE | SOFT_DIRTY }>(0, e, table.limit(0).at_most(1));
                let mut owed = mm.tables().tlb().obligation();
                table.modify(run, &mut owed, |e| e.wrprotect());
                owed.now();
            }
        })
    };
    let (own, locked) = isolated(&p, head);
    let end = unmap(policy, &p, &locked, SYNC);
    assert_eq!(end, Unmapped::All, "a page stays mapped that nobody keeps");
    m.join().expect("thread");
    drop(locked);
    drop(own);
    exit(&MAP, &mm);
    drop(object);
}
/// M has taken an entry for a moment and puts it back changed; R comes by.
/// Rules: F-RACE-21, F-RACE-22, UNMAP-05.
#[test]
fn unmap_vs_an_entry_that_is_being_changed() {
    race(
        "unmap vs an entry that is being changed",
        || overlooked(UnmapPolicy::Page),
        &["rmap.walk.not_strict"],
    );
}
/// Rules: F-RACE-21, F-RACE-22, UNMAP-05.
#[test]
fn unmap_of_a_run_vs_an_entry_that_is_being_changed() {
    race(
        "unmap of a run vs an entry that is being changed",
        || overlooked(UnmapPolicy::All),
        &["rmap.walk.not_strict"],
    );
}

fn store_while_unmapped(policy: UnmapPolicy) {
    let (p, object, mm, head) = of_a_file(1, true);
    let frame = mm.tables().lock_table(stay(), page(0)).expect("a table").frame();
    let w = {
        let p = p.clone();
        spawn(move || {
            // SAFETY: the models free no table while hardware is running.
            let table = unsafe { p.tables().table(frame).as_ref() };
            A::mmu_mark(table, 1, AccessKind::Write, Level::Pte)
        })
    };
    let (own, locked) = isolated(&p, head);
    assert_eq!(unmap(policy, &p, &locked, SYNC), Unmapped::All);
    let stored = w.join().expect("hardware");
    assert!(!stored || own.folio().has(FolioFlags::DIRTY), "the dirt of a store is lost");
    drop(locked);
    drop(own);
    exit(&MAP, &mm);
    drop(object);
}
/// A CPU stores to the second page while the entries are taken one after the other.
/// Rules: F-RACE-34, UNMAP-10.
#[test]
fn unmap_vs_store() {
    race("unmap vs store", || store_while_unmapped(UnmapPolicy::Page), &["word.take.not_rmw"]);
}
/// Rules: F-RACE-34, UNMAP-10.
#[test]
fn unmap_of_a_run_vs_store() {
    race(
        "unmap of a run vs store",
        || store_while_unmapped(UnmapPolicy::All),
        &["word.take.not_rmw"],
    );
}

fn store_while_discarded(policy: UnmapPolicy, order: u32) {
    let (p, mm, head) = given_up(order);
    let last = (1u64 << order) - 1;
    let frame = mm.tables().lock_table(stay(), page(0)).expect("a table").frame();
    let w = {
        let p = p.clone();
        spawn(move || {
            // SAFETY: the models free no table while hardware is running.
            let table = unsafe { p.tables().table(frame).as_ref() };
            A::mmu_mark(table, last as usize, AccessKind::Write, Level::Pte)
        })
    };
    let (own, locked) = isolated(&p, head);
    let end = unmap(policy, &p, &locked, PUT_OFF);
    let stored = w.join().expect("hardware");
    assert!(!stored || end != Unmapped::All, "a page that was stored to is dropped");
    drop(locked);
    drop(own);
    exit(&MAP, &mm);
    assert_eq!(p.folios_in_use(), 0);
}
/// A CPU has the clean entry cached. Its first store looks at the entry again: it finds none
/// and faults, or the page has been stored to. That no flush was made yet does not matter.
/// Rules: F-RACE-11, TLBB-03.
#[test]
fn lazyfree_discard_vs_store() {
    race(
        "lazyfree discard vs store",
        || store_while_discarded(UnmapPolicy::Page, 0),
        &["word.take.not_rmw"],
    );
}
/// Rules: F-RACE-11, TLBB-03.
#[test]
fn lazyfree_discard_of_a_run_vs_store() {
    race(
        "lazyfree discard of a run vs store",
        || store_while_discarded(UnmapPolicy::All, 2),
        &["word.take.not_rmw"],
    );
}

/// A CPU stores to the second of two pages that are unmapped together.
/// Rules: ACC-07, FOLIO-45, UNMAP-10.
#[test]
fn unmap_of_neighbours_vs_store() {
    let model = || {
        let (p, object, mm, heads) = two_of_a_file();
        let frame = mm.tables().lock_table(stay(), page(0)).expect("a table").frame();
        let w = {
            let p = p.clone();
            spawn(move || {
                // SAFETY: the models free no table while hardware is running.
                let table = unsafe { p.tables().table(frame).as_ref() };
                A::mmu_mark(table, 1, AccessKind::Write, Level::Pte)
            })
        };
        let held = heads.map(|head| isolated(&p, head));
        let mut flushes = FlushBatch::new(&p);
        let locked = held.each_ref().map(|(_, locked)| locked);
        try_to_unmap_each(UnmapPolicy::All, &locked, PUT_OFF, &mut flushes, |_, end| {
            assert_eq!(end, Unmapped::All);
        });
        flushes.finish();
        let stored = w.join().expect("a CPU");
        let dirty = held.each_ref().map(|(own, _)| own.folio().has(FolioFlags::DIRTY));
        assert_eq!(dirty, [false, stored], "dirt is of the page that was stored to");
        for (own, locked) in held {
            drop(locked);
            drop(own);
        }
        exit(&MAP, &mm);
        drop(object);
    };
    race("unmap of neighbours vs store", model, &["word.take.not_rmw"]);
}

/// A pass over one folio, isolated by a reference.
fn shrink(policy: UnmapPolicy, p: &P, head: Pfn) -> Shrunk {
    let mut own = Some(p.memmap().folio(head).grab::<Get>(1).expect("fits"));
    let shrink =
        Shrink { policy, of: ReclaimOf::Everybody, ignore_references: true, may_unmap: true };
    shrink_folios(&shrink, p, || own.take())
}
/// An instruction of a CPU. It says whether the CPU may still use what it had cached before
/// the pass; a flush waits for its end.
fn instruction<R>(p: &P, f: impl FnOnce(bool) -> R) -> R {
    let made = p.tlb().made.lock();
    f(*made == 0 && p.tlb().flushes.get() == 0)
}

fn stale_translation(policy: UnmapPolicy, order: u32) {
    let (p, mm, head) = given_up(order);
    let u = {
        let p = p.clone();
        spawn(move || {
            instruction(&p, |cached| {
                // All but the zero page.
                let free = p.memmap().source().in_use() == 1;
                assert!(!(free && cached), "a page is free that a CPU may still use");
            });
        })
    };
    assert_eq!(shrink(policy, &p, head).reclaimed, 1 << order);
    u.join().expect("a CPU");
    exit(&MAP, &mm);
    assert_eq!(p.folios_in_use(), 0);
}
/// R: takes the entry, puts the flush off, gives the page away behind it. U: has the entry
/// cached.
/// Rules: F-RACE-16, RECL-10, TLBB-06.
#[test]
fn free_vs_stale_translation() {
    race(
        "free vs stale translation",
        || stale_translation(UnmapPolicy::Page, 0),
        &["reclaim.free_before_flush"],
    );
}
/// Rules: F-RACE-16, RECL-10, TLBB-06.
#[test]
fn free_of_a_run_vs_stale_translation() {
    race(
        "free of a run vs stale translation",
        || stale_translation(UnmapPolicy::All, 2),
        &["reclaim.free_before_flush"],
    );
}

fn stale_read(policy: UnmapPolicy, order: u32) {
    let (p, object, mm, head) = of_a_file(order, true);
    let known: Arc<dyn Backing> = object.clone();
    know(&p, Arc::downgrade(&known));
    let w = {
        let (p, known) = (p.clone(), known.clone());
        spawn(move || {
            instruction(&p, |cached| {
                // As a call that writes to the file looks for the page.
                let found = known.cached(0);
                assert!(found.is_some() || !cached, "a CPU may read what is no page of the file");
                if let Some(run) = found {
                    drop(p.memmap().adopt_run::<Get>(run));
                }
            });
        })
    };
    let _ = shrink(policy, &p, head);
    w.join().expect("a CPU");
    exit(&MAP, &mm);
    drop((mm, known, object));
    assert_eq!(p.folios_in_use(), 0);
}
/// R: takes the entry, puts the flush off, makes it, takes the page out of the file. W: writes the
/// file, and reads the page by what it has cached.
/// Rules: INV-9, RECL-08.
#[test]
fn release_vs_stale_translation() {
    race(
        "release vs stale translation",
        || stale_read(UnmapPolicy::Page, 0),
        &["reclaim.leave.no_flush"],
    );
}
/// Rules: INV-9, RECL-08.
#[test]
fn release_of_a_run_vs_stale_translation() {
    race(
        "release of a run vs stale translation",
        || stale_read(UnmapPolicy::All, 1),
        &["reclaim.leave.no_flush"],
    );
}

/// What a program finds on page 0, wherever it is.
fn content(p: &P, mm: &Mm<P>) -> u64 {
    if !entry(mm, 0).is_present(Level::Pte) {
        fault(mm);
    }
    let e = entry(mm, 0);
    assert!(e.is_present(Level::Pte), "a page that nobody finds: {e:?}");
    p.load(e.pfn(Level::Pte), 0)
}
fn late_write(policy: UnmapPolicy, order: u32) {
    let dirty = |e: E| e.mkdirty().mkwrite(WriteKind::Normal);
    let (p, mm, head) = anonymous(order, FolioFlags::SWAPBACKED, dirty);
    (0..1 << order).for_each(|k| p.store(head.add(k), 0, 1));
    let w = {
        let p = p.clone();
        spawn(move || {
            // The entry is cached as dirty: the CPU looks at nothing.
            instruction(&p, |cached| {
                if cached {
                    p.store(head, 0, 7);
                }
                cached
            })
        })
    };
    let _ = shrink(policy, &p, head);
    let stored = w.join().expect("a CPU");
    assert_eq!(content(&p, &mm), if stored { 7 } else { 1 }, "a store is lost");
    exit(&MAP, &mm);
    assert_eq!((p.folios_in_use(), p.slots().in_use().count()), (0, 0));
}
/// R: takes dirty entries, puts the flush off, makes it, reads the page for the device. W:
/// stores by what it has cached.
/// Rules: F-RACE-15, TLBB-06.
#[test]
fn page_out_vs_late_write() {
    race(
        "page-out vs late write",
        || late_write(UnmapPolicy::Page, 0),
        &["reclaim.leave.no_flush"],
    );
}
/// Rules: F-RACE-15, TLBB-06.
#[test]
fn page_out_of_a_run_vs_late_write() {
    race(
        "page-out of a run vs late write",
        || late_write(UnmapPolicy::All, 2),
        &["reclaim.leave.no_flush"],
    );
}

fn overlooked_by_a_pass(policy: UnmapPolicy) {
    let (p, object, mm, head) = of_a_file(1, true);
    let known: Arc<dyn Backing> = object.clone();
    know(&p, Arc::downgrade(&known));
    let m = {
        let mm = mm.0.clone();
        spawn(move || {
            let mut table = mm.tables().lock_table(stay(), page(0)).expect("a table");
            let e = table.get(0);
            if e.is_present(Level::Pte) {
                let run = table.run::<{ WRITE | SOFT_DIRTY }>(0, e, table.limit(0).at_most(1));
                let mut owed = mm.tables().tlb().obligation();
                table.modify(run, &mut owed, |e| e.wrprotect());
                owed.now();
            }
        })
    };
    let sum = shrink(policy, &p, head);
    m.join().expect("thread");
    assert_eq!((sum.unmap_failed, sum.reclaimed), (0, 2), "a large folio is left by one entry");
    exit(&MAP, &mm);
    drop((mm, known, object));
    assert_eq!(p.folios_in_use(), 0);
}
/// As `unmap_vs_an_entry_that_is_being_changed`, by all of a pass: it asks for a walk that
/// waits, since the folio is large.
/// Rules: F-RACE-21, RECL-06.
#[test]
fn pass_vs_an_entry_that_is_being_changed() {
    race(
        "pass vs an entry that is being changed",
        || overlooked_by_a_pass(UnmapPolicy::All),
        &["reclaim.unmap.no_sync"],
    );
}

fn reuse_while_isolated(policy: UnmapPolicy) {
    // Read-only, and no page is marked exclusive: a store asks whose the folio is.
    let (p, mm, head) = anonymous(2, FolioFlags::SWAPBACKED, |e| e.wrprotect());
    p.memmap().clear_exclusive(head, 4);
    (0..4).for_each(|k| p.store(head.add(k), 0, 1));
    let frame = mm.tables().lock_table(stay(), page(0)).expect("a table").frame();
    let own = p.memmap().folio(head).grab::<Get>(1).expect("fits");
    let w = {
        let (p, mm) = (p.clone(), mm.0.clone());
        spawn(move || {
            // SAFETY: the models free no table while hardware is running.
            let table = unsafe { p.tables().table(frame).as_ref() };
            for _ in 0..3 {
                let e = A::read::<mm_arch::Pinned>(table, 0);
                // Only this thread's faults map pages: what is marked is what was read.
                if e.is_leaf(Level::Pte) && A::mmu_mark(table, 0, AccessKind::Write, Level::Pte) {
                    p.store(e.pfn(Level::Pte), 0, 7);
                    return true;
                }
                let policy = FaultPolicy::new(ThpPolicy::new(2));
                let _ = handle_fault(&policy, &mm.read(), page(0), FaultFlags::WRITE);
            }
            false
        })
    };
    let locked = own.folio().lock();
    p.slots().add(&locked).expect("room");
    let _ = unmap(policy, &p, &locked, SYNC);
    drop(locked);
    let stored = w.join().expect("a CPU");
    assert_eq!(p.load(head, 0), 1, "who holds the page sees it change");
    assert_eq!(content(&p, &mm), if stored { 7 } else { 1 }, "a store is lost");
    drop(own);
    exit(&MAP, &mm);
    assert_eq!((p.folios_in_use(), p.slots().in_use().count()), (0, 0));
}
/// R: reference, folio lock, place in swap, unmaps. W: whose is the folio, copy or reuse.
/// Rules: F-RACE-40.
#[test]
fn isolation_vs_reuse() {
    let model = || reuse_while_isolated(UnmapPolicy::All);
    holds_with("isolation vs reuse", Bounds::at_most(2), model);
    caught("isolation vs reuse", "fault.reuse.map_only", model);
}

/// Flushes are put off until the numbers begin anew, which are two bits wide in models.
/// Rules: F-RACE-14, TLBB-02.
#[test]
fn counts_that_begin_anew() {
    race(
        "counts that begin anew",
        || {
            let p = new_machine();
            let mm = Space(Mm::new(p.clone()).expect("space"));
            for k in [0, 4] {
                drop(mm.tables().ensure_table(stay(), page(k)).expect("memory"));
            }
            let twice = |mm: &Mm<P>, k: u64| {
                for _ in 0..2 {
                    let _table = mm.tables().lock_table(stay(), page(k)).expect("a table");
                    let mut owed = mm.tables().tlb().obligation();
                    owed.add(pages(k, 1), FlushScope::Leaves);
                    assert!(mm.tables().put_off(owed, PageFate::Kept));
                }
            };
            let r = {
                let mm = mm.0.clone();
                spawn(move || twice(&mm, 4))
            };
            twice(&mm, 0);
            r.join().expect("thread");
            assert_eq!(p.tlb().flushes.get(), 0);
            mm.tables().lock_table(stay(), page(0)).expect("a table").settle_deferred();
            assert_eq!(p.tlb().flushes.get(), 1, "flushes that were put off are lost");
        },
        &["pgtable.deferred.wrap"],
    );
}

/// A: ages a leaf in place. D: discards the range, and passes by what it finds empty without the
/// lock. Once it returns, nothing is mapped any more.
/// Rules: REF-08, MPROT-07. Cases: MM-094.
#[test]
fn aging_of_a_leaf_vs_discard() {
    race(
        "aging_of_a_leaf_vs_discard",
        || {
            let p = new_machine();
            let mm = Space(Mm::new(p.clone()).expect("space"));
            mmap_anon(&mut mm.write(), pages(0, 4), VmaFlags::READ | VmaFlags::WRITE)
                .expect("free");
            let policy = FaultPolicy::new(ThpPolicy::new(2).with_global(ThpMode::Always));
            let _ = handle_fault(&policy, &mm.read(), page(0), FaultFlags::WRITE);
            let LockedEntry::Huge(pmd) = mm.tables().lock_entry(stay(), page(0)) else {
                panic!("no leaf")
            };
            let head = pmd.entry().pfn(Level::Pmd);
            drop(pmd);
            let a = {
                let p = p.clone();
                spawn(move || {
                    if let Some(own) = p.memmap().try_grab::<Get>(head, 1) {
                        referenced(UnmapPolicy::All, &p, &own.folio().lock(), ReclaimOf::Everybody);
                    }
                })
            };
            madvise(&MAP, &mut mm.write(), pages(0, 4), Advice::DontNeed).expect("advice");
            a.join().expect("thread");
            assert!(
                matches!(mm.tables().lock_entry(stay(), page(0)), LockedEntry::Hole),
                "mapped behind the discard"
            );
            exit(&MAP, &mm);
            assert_eq!(p.folios_in_use(), 0);
        },
        &["aging.leaf.hole"],
    );
}
