//! Loom models of pages that leave their object while somebody faults on them, and
//! of stores that a file waits for. Faults and unmapping are the production code; the
//! object is a page cache with nothing behind it.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p mm-map --profile loom --test loom_object
//! ```
#![cfg(loom)]

use mm_arch::model::ModelWord;
use mm_arch::{Arch, Entry, Level, VirtAddr, VirtRange};
use mm_fault::{FaultFlags, FaultPolicy, ThpPolicy, handle_fault};
use mm_folio::{FileId, FolioFlags};
use mm_map::{MapPolicy, Pages, evict_range, exit, mmap_backing, unmap_object, zap_range};
use mm_pgtable::{Gather, LockedEntry, TableSpace, TablesStay};
use mm_rmap::mkclean;
use mm_rmap::model::{ModelConfig, ModelObject, ModelPlatform, machine};
use mm_sync::atomic::{AtomicU32, Ordering::Relaxed};
use mm_sync::model::{Bounds, caught, holds_with};
use mm_sync::thread::spawn;
use mm_vma::{BackingKind, Mm, Platform, VmaFlags};
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

type Object = ModelObject<A>;

/// An object of one page, which is cached from the start.
fn object(p: &P, notifies: bool) -> Arc<Object> {
    let object = Object::new(p, FileId(1), BackingKind::File, notifies);
    object.add(0, 0).expect("frames");
    object
}
/// As a truncation to nothing does it.
fn truncate(object: &Object) {
    object.set_nr_pages(0);
    unmap_object(&MAP, object.cache().platform(), FileId(1), 0, 1, Pages::All);
    evict_range(&MAP, object.cache(), 0, 1);
}

fn page(k: u64) -> VirtAddr {
    VirtAddr::new(k << 12)
}
/// The models free no tables while these are used.
fn stay<'a>() -> TablesStay<'a> {
    // SAFETY: see there.
    unsafe { TablesStay::new() }
}
/// A space that shows the object; it is not torn down if the model fails.
struct Space(Arc<Mm<P>>);
impl Drop for Space {
    fn drop(&mut self) {
        if std::thread::panicking() {
            core::mem::forget(self.0.clone());
        }
    }
}
fn setup(notifies: bool) -> (P, Arc<Object>, Space) {
    let p = machine::<A>(ModelConfig { nr_frames: 8, nr_tables: 6, ..ModelConfig::tiny() })
        .expect("machine");
    let object = object(&p, notifies);
    let mm = Mm::new(p.clone()).expect("space");
    let range = VirtRange::units(page(0), 1, 12).expect("range");
    mmap_backing(&mut mm.write(), range, SHARED, object.clone(), 0).expect("free");
    (p, object, Space(mm))
}
fn fault(mm: &Mm<P>, flags: FaultFlags) {
    let mut policy = FaultPolicy::new(ThpPolicy::new(2));
    policy.fault_around = 1;
    let _ = handle_fault(&policy, &mm.read(), page(0), flags);
}
fn entry(mm: &Mm<P>) -> E {
    match mm.tables().lock_entry(stay(), page(0)) {
        LockedEntry::Table(t) => t.get(t.index_of(page(0))),
        _ => E::NONE,
    }
}
fn race(name: &str, model: impl Fn() + Copy + Send + Sync + 'static, mutants: &[&'static str]) {
    holds_with(name, Bounds::at_most(3), model);
    for mutant in mutants {
        caught(name, mutant, model);
    }
}

/// T: size, unmap, lock, unmap, take out. F: find, lock, look, map. A page that is in
/// no object must not be mapped.
/// Rules: F-RACE-37.
#[test]
fn truncation_vs_fault() {
    race(
        "truncation_vs_fault",
        || {
            let (p, object, mm) = setup(false);
            drop(mm.0.tables().ensure_table(stay(), page(0)).expect("tables"));
            let t = {
                let object = object.clone();
                spawn(move || truncate(&object))
            };
            fault(&mm.0, FaultFlags::empty());
            t.join().expect("thread");
            assert!(object.cache().folios().is_empty());
            assert!(entry(&mm.0).is_none(), "a page that belongs to nobody is mapped");
            exit(&MAP, &mm.0);
            assert_eq!(p.folios_in_use(), 0);
        },
        &["fault.file.no_mapping_check", "map.evict.no_unmap"],
    );
}

/// W: finds the entry read-only, gives its lock back, locks the page, announces the
/// store, looks at the entry again. Z: takes the entry out. Nothing may be made of an
/// entry that is gone.
/// Rules: FILE-09.
#[test]
fn announced_store_vs_zap() {
    race(
        "announced_store_vs_zap",
        || {
            let (p, object, mm) = setup(true);
            fault(&mm.0, FaultFlags::empty());
            assert!(entry(&mm.0).is_leaf(Level::Pte) && !entry(&mm.0).is_writable(Level::Pte));
            let z = {
                let p = p.clone();
                spawn(move || unmap_object(&MAP, &p, FileId(1), 0, 1, Pages::OfObject))
            };
            fault(&mm.0, FaultFlags::WRITE);
            z.join().expect("thread");
            let e = entry(&mm.0);
            let mapped = p.memmap().alive().filter(|f| f.is_mapped()).count();
            assert_eq!(usize::from(!e.is_none()), mapped, "{e:?}");
            if !e.is_none() {
                let folio = p.memmap().folio(e.pfn(Level::Pte));
                assert!(!e.is_writable(Level::Pte) || folio.has(FolioFlags::DIRTY));
            }
            exit(&MAP, &mm.0);
            drop(object);
        },
        &["fault.shared.no_recheck"],
    );
}

/// Z: takes a dirty entry, removes the mapping. C: cleans the page, so that it can be
/// written out. Until a flush a CPU stores by what it has cached: C finds the mapping, or
/// finds it flushed.
/// Rules: ZAP-04, F-RACE-22b, RMAP-33. Cases: MM-082.
#[test]
fn zap_of_a_dirty_page_vs_cleaning() {
    race(
        "zap_of_a_dirty_page_vs_cleaning",
        || {
            let (p, object, mm) = setup(true);
            fault(&mm.0, FaultFlags::WRITE);
            let head = entry(&mm.0).pfn(Level::Pte);
            assert!(entry(&mm.0).is_dirty());
            let before = p.tlb().flushes.get();
            let unflushed = Arc::new(AtomicU32::new(1));
            let z = {
                let (mm, unflushed) = (mm.0.clone(), unflushed.clone());
                spawn(move || {
                    let vmas = mm.read();
                    let vma = vmas.find(page(0)).expect("mapped");
                    let mut gather = Gather::new(mm.tables());
                    zap_range(&MAP, &mm, vmas.stay(), vma, vma.range(), &mut gather);
                    // A flush is no step of the model: here is one before it.
                    unflushed.store(0, Relaxed);
                    gather.finish();
                })
            };
            {
                let locked = p.memmap().folio(head).lock();
                mkclean(&p, &locked);
                unflushed.load(Relaxed);
                assert!(p.tlb().flushes.get() > before, "a late store is lost");
            }
            z.join().expect("thread");
            exit(&MAP, &mm.0);
            drop(object);
            assert_eq!(p.folios_in_use(), 0);
        },
        &["map.zap.not_delayed"],
    );
}
