//! Races on PAE entries: lockless getters and scans against every writer and the
//! hardware, on the production format.
//!
//! The protocol of two words is `mm_arch::pair`, whose own models are in `mm-arch`; here
//! it runs under the operations of the real format, where dirty moves to SavedDirty
//! in the word that is exchanged. One test per race; mutants bring the race back.
//!
//! | race | test |
//! |---|---|
//! | P-RACE-10, P-RACE-11: words of two values are joined | `getters_never_join_two_values` |
//! | P-RACE-15: a store is lost, or makes a shadow stack | `hardware_marks_survive` |
//! | P-RACE-29: an upper entry is torn | `upper_entries_are_whole` |
//! | BATCH-10: a run holds a torn entry | `scans_take_whole_entries` |
#![cfg(loom)]

use mm_arch::model::NoTlb;
use mm_arch::{
    AccessKind, Arch, At, Entry, Held, Level, Live, Pfn, Pinned, Protection, Rights, SpaceId,
    SpaceTlb, TableFrame, VirtAddr, WriteKind, respect,
};
use mm_sync::atomic::{AtomicU32, Ordering::Relaxed};
use mm_sync::model::{Bounds, caught, holds_with, sweep_all};
use mm_sync::thread::spawn;
use mm_sync::{Quiescence, ReaderCount};
use mm_x86::{PaeEntry, X86Pae};
use std::sync::Arc;

const PTE: Level = Level::Pte;
const WRITE: AccessKind = AccessKind::Write;
type Table = <X86Pae as Arch>::Table;

/// Frames that differ in the high word alone, and in both.
const FIRST: u64 = 0x10_0001;
const SAME_LOW: u64 = 0x20_0001;
const OTHER: u64 = 0x20_0002;

fn at(index: usize) -> At {
    At { va: VirtAddr::new((index as u64) << 12), index }
}
fn tlb() -> SpaceTlb<'static, NoTlb> {
    SpaceTlb::new(&NoTlb, SpaceId(1))
}
/// A clean, old leaf.
fn leaf(pfn: u64, writable_at_once: bool) -> PaeEntry {
    let rights = Rights::READ | Rights::WRITE;
    let prot = X86Pae::prot(Protection { rights, writable_at_once, pkey: 0 });
    PaeEntry::leaf(Pfn::new(pfn), prot, PTE).mkold()
}
fn set(t: &Table, index: usize, e: PaeEntry) {
    X86Pae::set(t, at(index), e, &tlb());
}
fn take(t: &Table, index: usize) -> PaeEntry {
    let mut taken = PaeEntry::NONE;
    X86Pae::take::<Live, _>(t, at(index), 1, &tlb(), |_, e| taken = e);
    taken
}
/// An empty table. Out of line: the threads of a model have little stack.
#[inline(never)]
fn table() -> Arc<Table> {
    Arc::new(X86Pae::new_table())
}
/// A table with a writable leaf of [`FIRST`], and a second handle for another thread.
fn mapped() -> (Arc<Table>, Arc<Table>) {
    let t = table();
    set(&t, 0, leaf(FIRST, true));
    (t.clone(), t)
}
/// A lockless reader of entry 0 meets one of the frames, or no present entry.
fn meets(t: &Table, frames: &[u64]) {
    let e = X86Pae::read::<Pinned>(t, 0);
    if e.is_present(PTE) {
        assert!(frames.contains(&e.pfn(PTE).get()), "torn {e:?}");
        assert!(!e.permits(AccessKind::Exec, PTE), "NX is in the other word: {e:?}");
    }
}

fn get_vs_set() {
    let t = table();
    let r = t.clone();
    let reader = spawn(move || meets(&r, &[FIRST]));
    set(&t, 0, leaf(FIRST, true));
    reader.join().unwrap();
}
fn get_vs_take() {
    let (t, r) = mapped();
    let reader = spawn(move || meets(&r, &[FIRST]));
    assert_eq!(take(&t, 0), leaf(FIRST, true));
    reader.join().unwrap();
}
/// Another frame with another low word may follow at once.
fn get_vs_change() {
    let (t, r) = mapped();
    let reader = spawn(move || meets(&r, &[FIRST, OTHER]));
    take(&t, 0);
    set(&t, 0, leaf(OTHER, true));
    reader.join().unwrap();
}
/// One with an equal low word follows when every reader has left.
fn get_vs_same_low() {
    let t = Arc::new((table(), ReaderCount::new()));
    set(&t.0, 0, leaf(FIRST, true));
    let r = t.clone();
    let reader = spawn(move || {
        let _reading = r.1.pin();
        meets(&r.0, &[FIRST, SAME_LOW]);
    });
    take(&t.0, 0);
    if !mm_sync::mutant!("model.no_wait") {
        t.1.synchronize();
    }
    set(&t.0, 0, leaf(SAME_LOW, true));
    reader.join().unwrap();
}
/// Flags change in one word, while hardware changes them too.
fn get_vs_flags() {
    let (t, r) = mapped();
    let h = t.clone();
    let reader = spawn(move || meets(&r, &[FIRST]));
    let hardware = spawn(move || X86Pae::mmu_mark(&h, 0, WRITE, PTE));
    X86Pae::wrprotect(&t, at(0), 1, &tlb());
    X86Pae::clear_young(&t, at(0), 1, &tlb());
    reader.join().unwrap();
    hardware.join().unwrap();
    assert_eq!(X86Pae::read::<Held>(&t, 0).pfn(PTE), Pfn::new(FIRST));
}
/// Who finds the entry writable finds what made it so (rule WREUSE-08).
fn get_vs_widen() {
    let t = Arc::new((table(), AtomicU32::new(0)));
    set(&t.0, 0, leaf(FIRST, false));
    let r = t.clone();
    let reader = spawn(move || {
        let e = X86Pae::read::<Pinned>(&r.0, 0);
        assert!(!e.is_writable(PTE) || r.1.load(Relaxed) == 1, "writable, but not exclusive");
    });
    t.1.store(1, Relaxed);
    let e = leaf(FIRST, false).mkdirty().mkwrite(WriteKind::Normal);
    assert!(X86Pae::set_access_flags(&t.0, at(0), e, &tlb()));
    reader.join().unwrap();
}

/// Rules: PAE-06, PAE-07, PAE-08, PAE-10, PAE-11, PAE-16, ACC-02, P-RACE-10, P-RACE-11, MM-056.
#[test]
fn getters_never_join_two_values() {
    holds("pae get/set", get_vs_set);
    holds("pae get/take", get_vs_take);
    holds("pae get/change", get_vs_change);
    holds("pae get/same low", get_vs_same_low);
    holds("pae get/flags", get_vs_flags);
    holds("pae get/widen", get_vs_widen);
    caught("pae get/set", "pair.store.low_first", get_vs_set);
    caught("pae get/take", "pair.take.high_first", get_vs_take);
    caught("pae get/change", "pair.read.no_recheck", get_vs_change);
    caught("pae get/same low", "model.no_wait", get_vs_same_low);
    caught("pae get/widen", "pair.update.low", get_vs_widen);
}

/// Not a mutant: why the plain read takes the lock for granted. Without it two loads
/// meet words of two values.
///
/// Rules: ACC-01, BATCH-10.
#[test]
fn plain_reads_need_the_lock() {
    caught("pae plain read", "none", || {
        let (t, r) = mapped();
        let reader = spawn(move || {
            let e = X86Pae::read::<Held>(&r, 0);
            let pfn = e.pfn(PTE).get();
            assert!(!e.is_present(PTE) || pfn == FIRST || pfn == OTHER, "torn {e:?}");
        });
        take(&t, 0);
        set(&t, 0, leaf(OTHER, true));
        reader.join().unwrap();
    });
}

/// Taken while hardware stores through it: the store is in the old value.
fn mark_vs_take() {
    let (t, h) = mapped();
    let hardware = spawn(move || X86Pae::mmu_mark(&h, 0, WRITE, PTE));
    let old = take(&t, 0);
    assert_eq!(hardware.join().unwrap(), old.is_dirty(), "a store was lost");
    assert!(X86Pae::read::<Held>(&t, 0).is_none());
}
/// Write-protected while hardware stores through it: dirty is in SavedDirty.
fn mark_vs_wrprotect() {
    let (t, h) = mapped();
    let hardware = spawn(move || X86Pae::mmu_mark(&h, 0, WRITE, PTE));
    X86Pae::wrprotect(&t, at(0), 1, &tlb());
    let (stored, e) = (hardware.join().unwrap(), X86Pae::read::<Held>(&t, 0));
    assert_eq!(stored, e.is_dirty(), "a store was lost");
    assert_eq!(e.bits() & (mm_x86::bits::WRITE | mm_x86::bits::DIRTY), 0, "a shadow stack");
}
fn mark_vs_aging() {
    let (t, h) = mapped();
    X86Pae::mmu_mark(&t, 0, AccessKind::Read, PTE);
    let hardware = spawn(move || X86Pae::mmu_mark(&h, 0, WRITE, PTE));
    assert!(X86Pae::clear_young(&t, at(0), 1, &tlb()));
    assert!(hardware.join().unwrap());
    assert!(X86Pae::read::<Held>(&t, 0).is_dirty(), "a store was lost");
}

/// Rules: PAE-08, PAE-11, PTE-18, SHSTK-08, ACC-05, ACC-11, ACC-12, P-RACE-15.
#[test]
fn hardware_marks_survive() {
    holds("pae mark/take", mark_vs_take);
    holds("pae mark/wrprotect", mark_vs_wrprotect);
    holds("pae mark/aging", mark_vs_aging);
    caught("pae mark/take", "pair.take.not_rmw", mark_vs_take);
    caught("pae mark/wrprotect", "pair.update.not_rmw", mark_vs_wrprotect);
    caught("pae mark/aging", "pair.update.not_rmw", mark_vs_aging);
}

/// A table gives way to none (detached), and a new one is published with its content.
fn upper_vs_install() {
    let t = Arc::new((table(), AtomicU32::new(0)));
    let r = t.clone();
    let reader = spawn(move || {
        let e = X86Pae::read_upper::<Pinned>(&r.0, 0);
        if let Some(frame) = e.as_table(Level::Pmd) {
            assert_eq!(frame.pfn(), Pfn::new(FIRST), "torn {e:?}");
            assert_eq!(r.1.load(Relaxed), 1, "table seen before it was zeroed");
        }
    });
    t.1.store(1, Relaxed);
    X86Pae::swap_upper(&t.0, 0, PaeEntry::table(TableFrame::new(Pfn::new(FIRST)), Level::Pmd));
    reader.join().unwrap();
}
fn upper_vs_detach() {
    let t = table();
    let table = PaeEntry::table(TableFrame::new(Pfn::new(FIRST)), Level::Pmd);
    X86Pae::swap_upper(&t, 0, table);
    let r = t.clone();
    let reader = spawn(move || {
        let e = X86Pae::read_upper::<Pinned>(&r, 0);
        assert!(e == table || !e.is_present(Level::Pmd), "torn {e:?}");
    });
    assert_eq!(X86Pae::swap_upper(&t, 0, PaeEntry::NONE), table);
    reader.join().unwrap();
}

/// Rules: PAE-09, PAE-10, ACC-03, ACC-04, P-RACE-25, P-RACE-29.
#[test]
fn upper_entries_are_whole() {
    holds("pae upper/install", upper_vs_install);
    holds("pae upper/detach", upper_vs_detach);
    caught("pae upper/install", "pair.store.low", upper_vs_install);
    caught("pae upper/install", "pair.store.low_first", upper_vs_install);
    caught("pae upper/detach", "pair.take.high_first", upper_vs_detach);
}

/// A run of `n`, the second entry of which is taken and maps another page: the run
/// ends before it, or was there.
fn scan_vs_change(n: usize) {
    let t = table();
    X86Pae::fill(&t, 0, n, leaf(FIRST, false));
    let r = t.clone();
    let reader = spawn(move || {
        let head = X86Pae::read::<Pinned>(&r, 0);
        let nr = X86Pae::scan::<Pinned, { respect::WRITE }>(&r, 0, head, n).nr;
        assert!(nr == 1 || nr == n, "{nr} of {n}");
    });
    take(&t, 1);
    set(&t, 1, leaf(OTHER + 8, false));
    reader.join().unwrap();
}
/// The page that would continue the run is never mapped, but its words are, in two
/// values that follow each other: a scan that joins them finds a run.
fn scan_vs_halves(n: usize) {
    let t = table();
    X86Pae::fill(&t, 0, n, leaf(FIRST, false));
    set(&t, 1, PaeEntry::NONE);
    // The right low word with a wrong high one, then the right high word.
    let (first, second) = (leaf(0x30_0002, false), leaf(0x10_0003, false));
    set(&t, 1, first);
    let r = t.clone();
    let reader = spawn(move || {
        let head = X86Pae::read::<Pinned>(&r, 0);
        let nr = X86Pae::scan::<Pinned, { respect::WRITE }>(&r, 0, head, n).nr;
        assert_eq!(nr, 1, "an entry that never existed is part of a run");
    });
    take(&t, 1);
    set(&t, 1, second);
    reader.join().unwrap();
}

/// Sixteen pages above 4 GiB, the eighth of which is replaced by one below.
fn scan_vs_replace() {
    let t = table();
    X86Pae::fill(&t, 0, 16, leaf(0x12_3450, false));
    let r = t.clone();
    let reader = spawn(move || {
        let head = X86Pae::read::<Pinned>(&r, 0);
        let nr = X86Pae::scan::<Pinned, { respect::WRITE }>(&r, 0, head, 16).nr;
        assert!(nr == 16 || nr == 7, "{nr} of 16");
    });
    take(&t, 7);
    set(&t, 7, leaf(0x777, false));
    reader.join().unwrap();
}

/// One by one (two entries), and in groups (eight).
///
/// Rules: BATCH-10, BATCH-14, PAE-10, P-RACE-10, MM-003.
#[test]
fn scans_take_whole_entries() {
    holds("pae scan/change, 2", || scan_vs_change(2));
    holds("pae scan/halves, 2", || scan_vs_halves(2));
    holds_with("pae scan/halves, 8", Bounds::at_most(2), || scan_vs_halves(8));
    holds_with("pae scan/replace, 16", Bounds::at_most(2), scan_vs_replace);
    caught("pae scan/halves, 2", "pair.read.no_recheck", || scan_vs_halves(2));
    caught("pae scan/halves, 8", "pair.read.no_recheck", || scan_vs_halves(8));
}

/// Every ordering of the two-word protocol is caught by a model when it is weakened.
///
/// Rules: PAE-06, PAE-07, PAE-10.
#[test]
fn every_site_is_needed() {
    let models: [(&str, fn()); 7] = [
        ("pae get/set", get_vs_set),
        ("pae get/take", get_vs_take),
        ("pae get/change", get_vs_change),
        ("pae get/widen", get_vs_widen),
        ("pae mark/take", mark_vs_take),
        ("pae mark/wrprotect", mark_vs_wrprotect),
        ("pae upper/install", upper_vs_install),
    ];
    let swept = sweep_all(&models, &["pair."]);
    assert!(swept.free.is_empty(), "nothing finds {:?}", swept.free);
    assert!(swept.met.len() >= 5, "{:?}", swept.met);
}

fn holds(name: &str, model: impl Fn() + Copy + Send + Sync + 'static) {
    holds_with(name, Bounds::at_most(3), model);
}
