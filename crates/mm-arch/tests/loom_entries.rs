//! Races on single entries and blocks, on the production code of the model formats.
//!
//! Each test is named for the race it excludes; the mutants bring it back.
#![cfg(loom)]

use mm_arch::cont::ContEntry;
use mm_arch::model::{ModelCont, ModelEntry, ModelPair, ModelWord, NoTlb};
use mm_arch::{
    AccessKind, Arch, At, Entry, Held, Level, Live, Pfn, Pinned, Protection, Rights, SpaceId,
    SpaceTlb, TableFrame, VirtAddr, WriteKind, respect,
};
use mm_sync::atomic::{AtomicU32, Ordering::Relaxed, fence};
use mm_sync::model::{Bounds, caught, holds, holds_with, sweep_all};
use mm_sync::thread::spawn;
use mm_sync::{Quiescence, ReaderCount};
use std::sync::Arc;

const PTE: Level = Level::Pte;
const WRITE: AccessKind = AccessKind::Write;

fn at(index: usize) -> At {
    At { va: VirtAddr::new((index as u64) << 12), index }
}
fn tlb() -> SpaceTlb<'static, NoTlb> {
    SpaceTlb::new(&NoTlb, SpaceId(1))
}
/// A clean, old leaf.
fn leaf<A: Arch>(pfn: u64, writable: bool) -> A::Entry {
    let rights = Rights::READ | Rights::WRITE;
    let prot = A::prot(Protection { rights, writable_at_once: writable, pkey: 0 });
    A::Entry::leaf(Pfn::new(pfn), prot, PTE).mkold()
}
fn take<A: Arch>(t: &A::Table, index: usize) -> A::Entry {
    let mut taken = A::Entry::NONE;
    A::take::<Live, _>(t, at(index), 1, &tlb(), |_, e| taken = e);
    taken
}
fn set<A: Arch>(t: &A::Table, index: usize, e: A::Entry) {
    A::set(t, at(index), e, &tlb());
}
/// The table, and a second handle for the other thread.
fn shared<T>(value: T) -> (Arc<T>, Arc<T>) {
    let a = Arc::new(value);
    (a.clone(), a)
}

// ------------------------------------------------------------- any format

/// The frame's content is seen by whoever sees the entry (ACC-02, P-RACE-25).
fn publish<A: Arch>() {
    let (w, r) = shared((A::new_table(), AtomicU32::new(0)));
    let reader = spawn(move || {
        if A::read::<Pinned>(&r.0, 0).is_present(PTE) {
            assert_eq!(r.1.load(Relaxed), 1, "entry seen before its page");
        }
    });
    w.1.store(1, Relaxed);
    set::<A>(&w.0, 0, leaf::<A>(0x10_0001, true));
    reader.join().unwrap();
}

/// The table is seen as it was set up by whoever sees the upper entry (ACC-04).
fn publish_table<A: Arch>() {
    let (w, r) = shared((A::new_table(), AtomicU32::new(0)));
    let reader = spawn(move || {
        if A::read_upper::<Pinned>(&r.0, 0).is_present(Level::Pmd) {
            assert_eq!(r.1.load(Relaxed), 1, "table seen before it was zeroed");
        }
    });
    w.1.store(1, Relaxed);
    let e = A::Entry::table(TableFrame::new(Pfn::new(0x10_0001)), Level::Pmd);
    A::swap_upper(&w.0, 0, e);
    reader.join().unwrap();
}

/// What makes a page writable, an exclusive mark above all, is seen by whoever sees the
/// permission (WREUSE-08).
fn publish_write<A: Arch>() {
    let (w, r) = shared((A::new_table(), AtomicU32::new(0)));
    set::<A>(&w.0, 0, leaf::<A>(0x10_0001, false));
    let reader = spawn(move || {
        if A::read::<Pinned>(&r.0, 0).is_writable(PTE) {
            assert_eq!(r.1.load(Relaxed), 1, "writable before its page was exclusive");
        }
    });
    w.1.store(1, Relaxed);
    assert!(A::set_access_flags(&w.0, at(0), leaf::<A>(0x10_0001, true), &tlb()));
    reader.join().unwrap();
}

/// A store through the entry while it is taken: seen, or refused (ACC-05, PTE-18).
fn dirty_against_take<A: Arch>() {
    let (w, h) = shared(A::new_table());
    set::<A>(&w, 0, leaf::<A>(0x10_0001, true));
    let hardware = spawn(move || A::mmu_mark(&h, 0, WRITE, PTE));
    let old = take::<A>(&w, 0);
    let stored = hardware.join().unwrap();
    assert_eq!(stored, old.is_dirty(), "a store was lost");
    assert!(A::read::<Held>(&w, 0).is_none());
}

/// A store through the entry while it is write-protected (SHSTK-08, ACC-11).
fn dirty_against_wrprotect<A: Arch>() {
    let (w, h) = shared(A::new_table());
    set::<A>(&w, 0, leaf::<A>(0x10_0001, true));
    let hardware = spawn(move || A::mmu_mark(&h, 0, WRITE, PTE));
    A::wrprotect(&w, at(0), 1, &tlb());
    let stored = hardware.join().unwrap();
    let e = A::read::<Held>(&w, 0);
    assert!(!e.is_writable(PTE));
    assert_eq!(stored, e.is_dirty(), "a store was lost");
}

/// A store while the entry's age is cleared (ACC-12).
fn dirty_against_aging<A: Arch>() {
    let (w, h) = shared(A::new_table());
    set::<A>(&w, 0, leaf::<A>(0x10_0001, true).mkyoung());
    let hardware = spawn(move || A::mmu_mark(&h, 0, WRITE, PTE));
    assert!(A::clear_young(&w, at(0), 1, &tlb()));
    assert!(hardware.join().unwrap());
    assert!(A::read::<Held>(&w, 0).is_dirty(), "a store was lost");
}

/// A run of `nr` is pinned while its last page loses its exclusivity (P-RACE-31): the
/// pinner scans behind its pin and reads the mark behind the scan. The head may be older
/// than the pin.
fn scan_against_share<A: Arch>(nr: usize, early_head: bool) {
    let (t, pins, exclusive) = (A::new_table(), AtomicU32::new(0), AtomicU32::new(1));
    A::fill(&t, 0, nr, leaf::<A>(0x10_0000, false));
    let (w, r) = shared((t, pins, exclusive));
    let pinner = spawn(move || {
        let (t, pins, exclusive) = &*r;
        let early = early_head.then(|| A::read::<Pinned>(t, 0));
        pins.fetch_add(1, Relaxed);
        fence(core::sync::atomic::Ordering::SeqCst);
        let head = early.unwrap_or_else(|| A::read::<Pinned>(t, 0));
        if !head.is_present(PTE) {
            return false;
        }
        let run = A::scan::<Pinned, { respect::WRITE }>(t, 0, head, nr);
        run.nr == nr && exclusive.load(Relaxed) == 1
    });
    let (t, pins, exclusive) = &*w;
    let old = take::<A>(t, nr - 1);
    fence(core::sync::atomic::Ordering::SeqCst);
    let shares = pins.load(Relaxed) == 0;
    if shares {
        exclusive.store(0, Relaxed);
    }
    set::<A>(t, nr - 1, old);
    assert!(!(pinner.join().unwrap() && shares), "shared while pinned");
}

/// Rules: ACC-02, ACC-04, ACC-17, P-RACE-25, WREUSE-08.
#[test]
fn publication() {
    holds("publish write word", publish_write::<ModelWord<2>>);
    holds("publish write pair", publish_write::<ModelPair<2>>);
    caught("publish write word", "word.update", publish_write::<ModelWord<2>>);
    caught("publish write pair", "pair.update.low", publish_write::<ModelPair<2>>);
    holds("publish word", publish::<ModelWord<2>>);
    holds("publish pair", publish::<ModelPair<2>>);
    holds("publish cont", publish::<ModelCont<2, 2>>);
    caught("publish word", "word.store", publish::<ModelWord<2>>);
    caught("publish word", "word.read", publish::<ModelWord<2>>);
    caught("publish pair", "pair.store.low", publish::<ModelPair<2>>);
    caught("publish pair", "pair.read.low", publish::<ModelPair<2>>);
    holds("publish table word", publish_table::<ModelWord<2>>);
    holds("publish table pair", publish_table::<ModelPair<2>>);
    caught("publish table word", "word.upper", publish_table::<ModelWord<2>>);
    caught("publish table word", "word.read", publish_table::<ModelWord<2>>);
}

/// Rules: ACC-05, ACC-11, ACC-12, PTE-18, SHSTK-08, P-RACE-15.
#[test]
fn hardware_marks() {
    holds("dirty/take word", dirty_against_take::<ModelWord<2>>);
    holds("dirty/take pair", dirty_against_take::<ModelPair<2>>);
    holds("dirty/take cont", dirty_against_take::<ModelCont<2, 2>>);
    caught("dirty/take word", "word.take.not_rmw", dirty_against_take::<ModelWord<2>>);
    caught("dirty/take pair", "pair.take.not_rmw", dirty_against_take::<ModelPair<2>>);
    holds("dirty/wrprotect word", dirty_against_wrprotect::<ModelWord<2>>);
    holds("dirty/wrprotect pair", dirty_against_wrprotect::<ModelPair<2>>);
    caught("dirty/wrprotect word", "word.update.not_rmw", dirty_against_wrprotect::<ModelWord<2>>);
    caught("dirty/wrprotect pair", "pair.update.not_rmw", dirty_against_wrprotect::<ModelPair<2>>);
    holds("dirty/aging word", dirty_against_aging::<ModelWord<2>>);
    holds("dirty/aging pair", dirty_against_aging::<ModelPair<2>>);
    caught("dirty/aging word", "word.update.not_rmw", dirty_against_aging::<ModelWord<2>>);
}

/// Rules: P-RACE-31, P-RACE-20, BATCH-10.
#[test]
fn batched_pin_against_share() {
    let word = || scan_against_share::<ModelWord<2>>(2, false);
    let cont = || scan_against_share::<ModelCont<2, 2>>(2, false);
    holds("scan/share word", word);
    holds("scan/share pair", || scan_against_share::<ModelPair<2>>(2, false));
    holds("scan/share cont", cont);
    caught("scan/share word", "scan.rmb", word);
    // Where single reads acquire, each alone is enough.
    caught("scan/share cont", "scan.rmb+word.read", cont);
    caught("scan/share cont", "cont.take.no_unfold", cont);
}

/// A scan takes a whole block by one look at one of its entries, in the head's block and
/// in the next: whoever changes another entry empties the one looked at first.
///
/// Rules: P-RACE-20, BATCH-10, CONT-10, CONT-16.
#[test]
fn a_hint_is_a_look_behind_the_pin() {
    let next = || scan_against_share::<ModelCont<4, 2>>(4, false);
    let old_head = || scan_against_share::<ModelCont<2, 2>>(2, true);
    holds("hint/share next block", next);
    holds("hint/share old head", old_head);
    caught("hint/share next block", "cont.take.no_unfold", next);
    caught("hint/share old head", "cont.scan.trust_head", old_head);
}

// --------------------------------------------------------------- two words

type Pair = ModelPair<2>;

/// Frames whose entries differ in the high word, in both words, or not at all
/// from the low word's view.
const FIRST: u64 = 0x10_0001;
const SAME_LOW: u64 = 0x20_0001;
const BOTH_DIFFER: u64 = 0x20_0002;

fn pair_leaf(pfn: u64) -> ModelEntry {
    leaf::<Pair>(pfn, true)
}
/// A reader never joins words of two values (PAE-10).
fn assert_whole(t: &<Pair as Arch>::Table, allowed: &[u64]) {
    let e = Pair::read::<Pinned>(t, 0);
    let whole = !e.is_present(PTE) || allowed.iter().any(|p| e.mkclean().mkold() == pair_leaf(*p));
    assert!(whole, "torn {e:?}");
}

/// Rules: PAE-06.
fn pair_set() {
    let (w, r) = shared(Pair::new_table());
    let reader = spawn(move || assert_whole(&r, &[FIRST]));
    set::<Pair>(&w, 0, pair_leaf(FIRST));
    reader.join().unwrap();
}
/// Rules: PAE-07, PAE-08.
fn pair_take() {
    let (w, r) = shared(Pair::new_table());
    set::<Pair>(&w, 0, pair_leaf(FIRST));
    let reader = spawn(move || assert_whole(&r, &[FIRST]));
    assert_eq!(take::<Pair>(&w, 0), pair_leaf(FIRST));
    reader.join().unwrap();
}
fn pair_set_then_take() {
    let (w, r) = shared(Pair::new_table());
    let reader = spawn(move || assert_whole(&r, &[FIRST]));
    set::<Pair>(&w, 0, pair_leaf(FIRST));
    take::<Pair>(&w, 0);
    reader.join().unwrap();
}
/// One frame replaced by another; `wait` for readers between, as a flush does.
fn pair_change(to: u64, wait: bool) {
    let (w, r) = shared((Pair::new_table(), ReaderCount::new()));
    set::<Pair>(&w.0, 0, pair_leaf(FIRST));
    let reader = spawn(move || {
        let _reading = r.1.pin();
        assert_whole(&r.0, &[FIRST, to]);
    });
    take::<Pair>(&w.0, 0);
    if wait {
        w.1.synchronize();
    }
    set::<Pair>(&w.0, 0, pair_leaf(to));
    reader.join().unwrap();
}
/// Reader, hardware and a locker that empties the entry.
fn pair_three_threads() {
    let (w, r) = shared(Pair::new_table());
    let h = w.clone();
    set::<Pair>(&w, 0, pair_leaf(FIRST));
    let hardware = spawn(move || Pair::mmu_mark(&h, 0, WRITE, PTE));
    let reader = spawn(move || assert_whole(&r, &[FIRST]));
    let old = take::<Pair>(&w, 0);
    let stored = hardware.join().unwrap();
    reader.join().unwrap();
    assert_eq!(stored, old.is_dirty(), "a store was lost");
}

/// Rules: PAE-06, PAE-07, PAE-08, PAE-10, P-RACE-10, P-RACE-11.
#[test]
fn torn_pairs() {
    holds("pair set", pair_set);
    holds("pair take", pair_take);
    holds("pair set, take", pair_set_then_take);
    holds("pair change, low differs, no wait", || pair_change(BOTH_DIFFER, false));
    holds("pair change, same low, wait", || pair_change(SAME_LOW, true));
    holds("pair reader, hardware, take", pair_three_threads);
    caught("pair set", "pair.store.low_first", pair_set);
    caught("pair set", "pair.store.low", pair_set);
    caught("pair set", "pair.read.low", pair_set);
    caught("pair take", "pair.take.high_first", pair_take);
    caught("pair take", "pair.read.high", pair_take);
    caught("pair change", "pair.read.no_recheck", || pair_change(BOTH_DIFFER, false));
    caught("pair change", "pair.take.wmb", || pair_change(BOTH_DIFFER, false));
    caught("pair reader, hardware, take", "pair.take.not_rmw", pair_three_threads);
}

/// Not a mutant: why an entry must not be replaced by one with an equal low word
/// unless every reader has left in between.
///
/// Rules: PAE-10.
#[test]
fn equal_low_words_need_a_wait() {
    caught("pair change, same low, no wait", "none", || pair_change(SAME_LOW, false));
}

// ------------------------------------------------------------------ blocks

type Cont = ModelCont<2, 2>;
type Cont4 = ModelCont<4, 4>;

/// A folded block of frames from `pfn`, with dirty in its first cell only.
fn block<A: Arch<Entry = ModelEntry>>(pfn: u64) -> A::Table {
    let t = A::new_table();
    let prot = A::prot(Protection { writable_at_once: true, ..Protection::private_read_write() });
    A::fill(&t, 0, A::CONT, ModelEntry::leaf(Pfn::new(pfn), prot, PTE).mkold());
    assert!(A::mmu_mark(&t, 0, WRITE, PTE));
    assert!(A::read::<Held>(&t, 0).is_cont());
    t
}
/// A reader of the last entry, whose dirty is in the first: it finds one of the
/// frames with the dirt of that frame, or nothing (CONT-09, CONT-10).
fn read_last<A: Arch<Entry = ModelEntry>>(t: &A::Table, frames: &[(u64, bool)]) {
    let e = A::read::<Pinned>(t, A::CONT - 1);
    if e.is_present(PTE) {
        let seen = (e.pfn(PTE).get() - (A::CONT as u64 - 1), e.is_dirty());
        assert!(frames.contains(&seen), "mixed {e:?}");
    }
}

const OLD: u64 = 0x100;
const NEW: u64 = 0x200;

/// One entry loses its write permission, for which the block is unfolded.
fn unfold<A: Arch<Entry = ModelEntry>>(t: &A::Table) {
    A::wrprotect(t, at(A::CONT - 1), 1, &tlb());
    for i in 0..A::CONT {
        let e = A::read::<Held>(t, i);
        assert!(!e.is_cont() && e.is_dirty(), "{e:?} after unfolding");
    }
}

/// Rules: CONT-05, CONT-09.
fn read_against_unfold<A: Arch<Entry = ModelEntry>>() {
    let (w, r) = shared(block::<A>(OLD));
    let reader = spawn(move || read_last::<A>(&r, &[(OLD, true)]));
    unfold::<A>(&w);
    reader.join().unwrap();
}
/// A block gives way to another, which is clean.
///
/// Rules: CONT-09, CONT-18.
fn read_against_replace_old<A: Arch<Entry = ModelEntry>>() {
    // Dirty by software and not young, so that a reader looks at every entry.
    let t = A::new_table();
    A::fill(&t, 0, A::CONT, leaf::<A>(OLD, true).mkdirty());
    let (w, r) = shared(t);
    let reader = spawn(move || read_last::<A>(&r, &[(OLD, true), (NEW, false)]));
    A::take::<Live, _>(&w, at(0), A::CONT, &tlb(), |_, e| assert!(e.is_dirty()));
    A::fill(&w, 0, A::CONT, leaf::<A>(NEW, true));
    reader.join().unwrap();
}
/// As above, by a block that hardware marked.
///
/// Rules: CONT-09, CONT-18.
fn read_against_replace<A: Arch<Entry = ModelEntry>>() {
    let (w, r) = shared(block::<A>(OLD));
    let reader = spawn(move || read_last::<A>(&r, &[(OLD, true), (NEW, false)]));
    A::take::<Live, _>(&w, at(0), A::CONT, &tlb(), |_, e| assert!(e.is_dirty() && !e.is_cont()));
    A::fill(&w, 0, A::CONT, leaf::<A>(NEW, true));
    reader.join().unwrap();
}
/// A store through one entry while another is changed.
///
/// Rules: CONT-05, PTE-18.
fn dirty_against_unfold<A: Arch<Entry = ModelEntry>>(with_reader: bool) {
    let t = A::new_table();
    A::fill(&t, 0, A::CONT, leaf::<A>(OLD, true));
    let (w, h) = shared(t);
    let r = w.clone();
    let hardware = spawn(move || A::mmu_mark(&h, A::CONT - 1, WRITE, PTE));
    let reader =
        with_reader.then(|| spawn(move || read_last::<A>(&r, &[(OLD, true), (OLD, false)])));
    A::wrprotect(&w, at(0), 1, &tlb());
    let stored = hardware.join().unwrap();
    if let Some(reader) = reader {
        reader.join().unwrap();
    }
    let dirty = (0..A::CONT).any(|i| A::read::<Held>(&w, i).is_dirty());
    assert_eq!(stored, dirty, "a store was lost");
}
/// One entry of a block is taken: the others stay, without the mark (CONT-07).
fn read_against_take_one<A: Arch<Entry = ModelEntry>>() {
    let (w, r) = shared(block::<A>(OLD));
    let reader = spawn(move || read_last::<A>(&r, &[(OLD, true)]));
    let old = take::<A>(&w, 0);
    assert!(old.is_dirty() && !old.is_cont());
    let rest = ModelEntry::from_bits(A::read_upper::<Held>(&w, A::CONT - 1).bits());
    assert!(!rest.is_cont(), "half a block is marked");
    reader.join().unwrap();
}
/// A whole block is write-protected in place; a reader waits for the last entry.
///
/// Rules: CONT-14.
fn read_against_wrprotect<A: Arch<Entry = ModelEntry>>() {
    let (w, r) = shared(block::<A>(OLD));
    let reader = spawn(move || {
        read_last::<A>(&r, &[(OLD, true)]);
    });
    A::wrprotect(&w, at(0), A::CONT, &tlb());
    assert!(A::read::<Held>(&w, 0).is_cont());
    reader.join().unwrap();
}
/// The fault that a racing hardware mark answers: flags are added to a block.
///
/// Rules: CONT-15.
fn access_flags_against_dirty<A: Arch<Entry = ModelEntry>>() {
    let t = A::new_table();
    A::fill(&t, 0, A::CONT, leaf::<A>(OLD, true));
    let (w, h) = shared(t);
    let hardware = spawn(move || A::mmu_mark(&h, 1, WRITE, PTE));
    let e = A::read::<Held>(&w, 0).mkyoung().mkwrite(WriteKind::Normal);
    assert!(A::set_access_flags(&w, at(0), e, &tlb()));
    assert!(hardware.join().unwrap());
    let e = A::read::<Held>(&w, 0);
    assert!(e.is_cont() && e.is_dirty() && e.is_young(), "{e:?}");
}

/// A clean block of writable frames gives way to the same frames, read-only or without the
/// mark: the reader finds the dirt of the one that its target was of.
///
/// Rules: CONT-09, CONT-10.
fn read_against_same_frames<A: Arch<Entry = ModelEntry>>(folds: bool) {
    let (w, r) = shared(block::<A>(OLD));
    let reader = spawn(move || {
        let e = A::read::<Pinned>(&r, A::CONT - 1);
        let old = e.is_cont() && e.is_writable(PTE);
        assert!(!e.is_present(PTE) || e.is_dirty() == old, "mixed {e:?}");
    });
    A::take::<Live, _>(&w, at(0), A::CONT, &tlb(), |_, _| ());
    let new = leaf::<A>(OLD, !folds);
    if folds {
        A::fill(&w, 0, A::CONT, new);
    } else {
        (0..A::CONT).for_each(|i| A::fill(&w, i, 1, new.advance(i as u64, PTE)));
    }
    reader.join().unwrap();
}
/// Plain entries become a block while one of them is read and another stored through.
///
/// Rules: CONT-03, CONT-05, CONT-06, CONT-09, PTE-18.
fn read_and_dirty_against_fold<A: Arch<Entry = ModelEntry>>(with_reader: bool) {
    let t = A::new_table();
    (0..A::CONT).for_each(|i| A::fill(&t, i, 1, leaf::<A>(OLD + i as u64, true)));
    let (w, h) = shared(t);
    let r = w.clone();
    let hardware = spawn(move || A::mmu_mark(&h, 0, WRITE, PTE));
    let reader =
        with_reader.then(|| spawn(move || read_last::<A>(&r, &[(OLD, false), (OLD, true)])));
    assert!(A::fold(&w, at(A::CONT - 1), &tlb()));
    // A store that met the empty entry in between faults, waits for the lock, and tries
    // again.
    let stored = hardware.join().unwrap() || A::mmu_mark(&w, 0, WRITE, PTE);
    assert!(stored);
    if let Some(reader) = reader {
        reader.join().unwrap();
    }
    for i in 0..A::CONT {
        let e = A::read::<Held>(&w, i);
        assert!(e.is_cont() && e.is_dirty(), "{e:?} after folding");
    }
}
/// A store while a block's age is cleared, and a reader of it.
///
/// Rules: CONT-12, ACC-12.
fn dirty_against_block_aging<A: Arch<Entry = ModelEntry>>() {
    let t = A::new_table();
    A::fill(&t, 0, A::CONT, leaf::<A>(OLD, true).mkyoung());
    let (w, h) = shared(t);
    let hardware = spawn(move || A::mmu_mark(&h, A::CONT - 1, WRITE, PTE));
    assert!(A::clear_young(&w, at(0), 1, &tlb()));
    assert!(hardware.join().unwrap());
    assert!(A::read::<Held>(&w, 0).is_dirty(), "a store was lost");
}
/// Part of a block loses its write permission. The hardware may use any entry of a block
/// for a store to page 0: none may go through afterwards.
///
/// Rules: CONT-08, CONT-14, A64-11.
fn store_against_partial_wrprotect<A: Arch<Entry = ModelEntry>>() {
    let store = |t: &A::Table, by: usize| {
        let whole = ModelEntry::from_bits(A::read_upper::<Held>(t, 0).bits()).is_cont();
        A::mmu_mark(t, if whole { by } else { 0 }, WRITE, PTE)
    };
    let (w, h) = shared(block::<A>(OLD));
    let hardware = spawn(move || store(&h, A::CONT - 1));
    A::wrprotect(&w, at(0), 1, &tlb());
    hardware.join().unwrap();
    assert!((0..A::CONT).all(|by| !store(&w, by)), "a store to a protected page");
}
/// A permission for one entry takes the block apart under a reader.
///
/// Rules: CONT-07, CONT-15.
fn read_against_access_flags<A: Arch<Entry = ModelEntry>>(writes: bool) {
    let t = A::new_table();
    A::fill(&t, 0, A::CONT, leaf::<A>(OLD, !writes));
    let (w, r) = shared(t);
    let reader = spawn(move || {
        let e = A::read::<Pinned>(&r, A::CONT - 1);
        assert!(!e.is_present(PTE) || e.pfn(PTE).get() == OLD + A::CONT as u64 - 1);
        assert!(!e.is_present(PTE) || e.is_writable(PTE) != writes, "{e:?}");
    });
    let e = A::read::<Held>(&w, 0).mkyoung().mkdirty().mkwrite(WriteKind::Normal);
    assert!(A::set_access_flags(&w, at(0), e, &tlb()));
    assert_eq!(A::read::<Held>(&w, 1).is_cont(), !writes);
    reader.join().unwrap();
}

/// Rules: CONT-03, CONT-05, CONT-06, CONT-08, CONT-09, CONT-12, CONT-14, CONT-15, A64-11,
/// P-RACE-12, P-RACE-13, P-RACE-14.
#[test]
fn every_writer_of_blocks() {
    let (plain, folded) =
        (|| read_against_same_frames::<Cont>(false), || read_against_same_frames::<Cont>(true));
    holds("cont2 read/same frames, plain", plain);
    holds("cont2 read/same frames, folded", folded);
    caught("cont2 read/same frames, plain", "cont.read.any_mark", plain);
    caught("cont2 read/same frames, folded", "cont.read.frame_only", folded);
    let old = read_against_replace_old::<Cont>;
    holds("cont2 read/replace old", old);
    caught("cont2 read/replace old", "cont.read.keep_gathered", old);
    let fold = || read_and_dirty_against_fold::<Cont>(false);
    holds("cont2 dirty/fold", fold);
    caught("cont2 dirty/fold", "cont.convert.no_break", fold);
    caught("cont2 dirty/fold", "cont.convert.lose_young_dirty", fold);
    holds("cont2 dirty/aging", dirty_against_block_aging::<Cont>);
    caught("cont2 dirty/aging", "word.update.not_rmw", dirty_against_block_aging::<Cont>);
    let protect = store_against_partial_wrprotect::<Cont>;
    holds("cont2 store/partial wrprotect", protect);
    caught("cont2 store/partial wrprotect", "cont.wrprotect.no_unfold", protect);
    holds("cont2 read/flags", || read_against_access_flags::<Cont>(false));
    holds("cont2 read/flags, write", || read_against_access_flags::<Cont>(true));
}

/// Rules: CONT-05, CONT-07, CONT-09, CONT-10, CONT-14, CONT-15, P-RACE-12, P-RACE-14.
#[test]
fn blocks_of_two() {
    holds("cont2 read/unfold", read_against_unfold::<Cont>);
    holds("cont2 read/replace", read_against_replace::<Cont>);
    holds("cont2 dirty/unfold", || dirty_against_unfold::<Cont>(false));
    holds("cont2 read/take one", read_against_take_one::<Cont>);
    holds("cont2 read/wrprotect", read_against_wrprotect::<Cont>);
    holds("cont2 access flags/dirty", access_flags_against_dirty::<Cont>);
    caught("cont2 read/replace", "cont.read.no_check", read_against_replace::<Cont>);
    caught("cont2 read/unfold", "cont.read.no_gather", read_against_unfold::<Cont>);
    caught("cont2 read/unfold", "cont.convert.lose_young_dirty", read_against_unfold::<Cont>);
    caught("cont2 dirty/unfold", "cont.convert.no_break", || dirty_against_unfold::<Cont>(false));
    caught("cont2 read/take one", "cont.take.no_unfold", read_against_take_one::<Cont>);
    caught("cont2 flags/dirty", "word.update.not_rmw", access_flags_against_dirty::<Cont>);
}

/// Rules: CONT-09, CONT-10, P-RACE-12.
#[test]
fn blocks_of_four() {
    holds("cont4 read/unfold", read_against_unfold::<Cont4>);
    holds("cont4 read/replace", read_against_replace::<Cont4>);
    caught("cont4 read/replace", "cont.read.no_check", read_against_replace::<Cont4>);
}

/// Rules: CONT-05, CONT-09, P-RACE-14.
#[test]
fn a_block_with_three_threads() {
    holds_with("cont2 read, dirty, unfold", Bounds::at_most(3), || {
        dirty_against_unfold::<Cont>(true);
    });
    holds_with("cont2 read, dirty, fold", Bounds::at_most(2), || {
        read_and_dirty_against_fold::<Cont>(true);
    });
}

/// Every named site of the operations on blocks, of their getter above all, is caught by one of
/// these models. Formats whose entries of a block are one word (Svnapot) run the same code.
///
/// Rules: CONT-05, CONT-09, CONT-10, CONT-16, P-RACE-12, P-RACE-13, P-RACE-14, P-RACE-20.
#[test]
fn every_site_of_blocks_is_needed() {
    let models: [(&str, fn()); 16] = [
        ("cont2 publish", publish::<Cont>),
        ("cont2 publish write", publish_write::<Cont>),
        ("cont2 publish table", publish_table::<Cont>),
        ("cont2 dirty/take", dirty_against_take::<Cont>),
        ("cont2 dirty/wrprotect", dirty_against_wrprotect::<Cont>),
        ("cont2 scan/share", || scan_against_share::<Cont>(2, false)),
        ("cont2 hint/share old head", || scan_against_share::<Cont>(2, true)),
        ("cont2 read/unfold", read_against_unfold::<Cont>),
        ("cont2 read/replace", read_against_replace::<Cont>),
        ("cont2 read/replace old", read_against_replace_old::<Cont>),
        ("cont2 read/same frames, plain", || read_against_same_frames::<Cont>(false)),
        ("cont2 read/same frames, folded", || read_against_same_frames::<Cont>(true)),
        ("cont2 read/take one", read_against_take_one::<Cont>),
        ("cont2 dirty/fold", || read_and_dirty_against_fold::<Cont>(false)),
        ("cont2 flags/dirty", access_flags_against_dirty::<Cont>),
        ("cont2 store/partial wrprotect", store_against_partial_wrprotect::<Cont>),
    ];
    let swept = sweep_all(&models, &["cont.", "word.", "scan."]);
    assert!(swept.free.is_empty(), "nothing finds {:?}", swept.free);
    assert!(swept.met.len() >= 15, "{:?}", swept.met);
}
