//! Contiguous blocks: when they are folded, unfolded, kept, and flushed.
#![cfg(not(loom))]

use mm_arch::cont::ContEntry;
use mm_arch::model::{ModelCont, ModelEntry};
use mm_arch::{
    AccessKind, Arch, At, Entry, FlushScope, Held, Level, Live, Pfn, Pinned, Private, Protection,
    Rights, SpaceId, SpaceTlb, Tlb, VirtAddr, VirtRange, WriteKind, respect,
};
use std::sync::Mutex;

type A = ModelCont<64, 16>;
type Table = <A as Arch>::Table;
const PTE: Level = Level::Pte;
const BASE: u64 = 0x10_0000;
/// The contiguous mark in a raw model entry.
const MARK: u64 = 1 << 8;

/// Records what is flushed.
#[derive(Default)]
struct Flushes(Mutex<Vec<VirtRange>>);

impl Flushes {
    fn tlb(&self) -> SpaceTlb<'_, Flushes> {
        SpaceTlb::new(self, SpaceId(1))
    }
    /// Ranges flushed since the last call, as first index and entries.
    fn seen(&self) -> Vec<(u64, u64)> {
        let ranges = std::mem::take(&mut *self.0.lock().expect("not poisoned"));
        ranges.iter().map(|r| ((r.start().get() - BASE) >> 12, r.nr(12))).collect()
    }
}
impl Tlb for Flushes {
    fn flush_range(&self, _: SpaceId, range: VirtRange, scope: FlushScope) {
        assert_eq!(scope, FlushScope::Leaves);
        self.0.lock().expect("not poisoned").push(range);
    }
    fn flush_space(&self, _: SpaceId) {
        panic!("entries never need the whole space flushed");
    }
    fn defer_range(&self, _: SpaceId, _: VirtRange) {
        panic!("break before make does not wait");
    }
    fn flush_deferred(&self) {}
}

fn at(index: usize) -> At {
    At { va: VirtAddr::new(BASE).add_units(index as u64, 12), index }
}
fn leaf(pfn: u64, writable: bool) -> ModelEntry {
    let rights = Rights::READ | Rights::WRITE;
    let prot = A::prot(Protection { rights, writable_at_once: writable, pkey: 0 });
    ModelEntry::leaf(Pfn::new(pfn), prot, PTE).mkold()
}
fn raw(t: &Table, index: usize) -> ModelEntry {
    // An upper-level read is never gathered: the cell itself.
    A::read_upper::<Held>(t, index)
}
fn folded(t: &Table) -> Vec<usize> {
    (0..4).filter(|b| (0..16).all(|i| raw(t, b * 16 + i).is_cont())).collect()
}
/// CONT implies valid, and a block is marked as a whole or not at all (CONT-19).
fn check(t: &Table) {
    for b in 0..4 {
        let marked = (0..16).filter(|i| raw(t, b * 16 + i).is_cont()).count();
        assert!(marked == 0 || marked == 16, "block {b} has {marked} marks");
        if marked == 16 {
            let first = raw(t, b * 16).mkclean().mkold();
            assert!(first.pfn(PTE).is_aligned(4));
            for i in 0..16 {
                let e = raw(t, b * 16 + i).mkclean().mkold();
                assert_eq!(e, first.advance(i as u64, PTE), "block {b}, entry {i}");
            }
        }
    }
}
/// Four folded blocks.
fn full() -> Table {
    let t = A::new_table();
    A::fill(&t, 0, 64, leaf(0x1000, true));
    assert_eq!(folded(&t), [0, 1, 2, 3]);
    t
}

/// Rules: CONT-02.
#[test]
fn only_aligned_whole_blocks_fold() {
    for (index, nr, pfn, want) in [
        (5, 37, 0x1005, vec![1]),
        (5, 37, 0x1006, vec![]),
        (0, 16, 0x1000, vec![0]),
        (0, 15, 0x1000, vec![]),
        (1, 16, 0x1001, vec![]),
        (16, 48, 0x1000, vec![1, 2, 3]),
        (16, 48, 0x1008, vec![]),
    ] {
        let t = A::new_table();
        A::fill(&t, index, nr, leaf(pfn, true));
        assert_eq!(folded(&t), want, "{nr} from {index}, frame {pfn:#x}");
        check(&t);
        for k in 0..nr {
            assert_eq!(A::read::<Held>(&t, index + k).pfn(PTE), Pfn::new(pfn + k as u64));
        }
    }
}

/// Rules: CONT-02. Entries that hardware does not follow, or without a folio, stay plain.
#[test]
fn inaccessible_and_special_entries_never_fold() {
    let none = ModelEntry::leaf(Pfn::new(0x1000), A::prot(Protection::none()), PTE);
    for e in [none, leaf(0x1000, true).mkspecial()] {
        let t = A::new_table();
        A::fill(&t, 0, 64, e);
        // Not even the bit: helpers that look at it alone would widen.
        assert!((0..64).all(|i| raw(&t, i).bits() & MARK == 0));
    }
}

/// The mark is private to the format: a caller's copy that carries it is stripped.
///
/// Rules: CONT-01.
#[test]
fn a_mark_in_a_value_is_not_stored() {
    let t = full();
    let marked = A::read::<Held>(&t, 3);
    assert!(marked.is_cont());
    let flushes = Flushes::default();
    let empty = A::new_table();
    A::set(&empty, at(3), marked, &flushes.tlb());
    A::fill(&empty, 20, 5, marked);
    assert!((0..64).all(|i| !raw(&empty, i).is_cont()));
}

/// Rules: CONT-07, CONT-08, CONT-14, CONT-18: which blocks are unfolded, and flushed
/// between break and make, by an operation on part of the table.
#[test]
fn partly_covered_blocks_unfold_and_whole_ones_stay() {
    for (index, n, unfolded) in [
        (16, 16, vec![]),
        (0, 64, vec![]),
        (16, 20, vec![2]),
        (10, 22, vec![0]),
        (20, 4, vec![1]),
        (5, 40, vec![0, 2]),
        (31, 2, vec![1, 2]),
        (63, 1, vec![3]),
    ] {
        let flushes = Flushes::default();
        let t = full();
        A::wrprotect(&t, at(index), n, &flushes.tlb());
        check(&t);
        let kept: Vec<usize> = (0..4).filter(|b| !unfolded.contains(b)).collect();
        assert_eq!(folded(&t), kept, "wrprotect {index}+{n}");
        let want: Vec<(u64, u64)> = unfolded.iter().map(|b| (*b as u64 * 16, 16)).collect();
        assert_eq!(flushes.seen(), want, "wrprotect {index}+{n}");
        for i in 0..64 {
            let inside = (index..index + n).contains(&i);
            assert_eq!(A::read::<Held>(&t, i).is_writable(PTE), !inside, "{i}");
        }

        let t = full();
        A::take::<Live, _>(&t, at(index), n, &flushes.tlb(), |k, e| {
            assert!(!e.is_cont());
            assert_eq!(e.pfn(PTE), Pfn::new(0x1000 + (index + k) as u64));
        });
        check(&t);
        assert_eq!(flushes.seen(), want, "take {index}+{n}");
        for i in 0..64 {
            assert_eq!(raw(&t, i).is_none(), (index..index + n).contains(&i), "{i}");
        }
    }
}

/// Rules: CONT-07.
#[test]
fn one_entry_unfolds_its_block() {
    type Operation = fn(&Table, &SpaceTlb<'_, Flushes>);
    let operations: [(&str, Operation); 4] = [
        ("set", |t, tlb| A::set(t, at(5), leaf(0x7777, false), tlb)),
        ("take", |t, tlb| A::take::<Live, _>(t, at(5), 1, tlb, |_, _| {})),
        ("teardown", |t, tlb| A::take::<Private, _>(t, at(5), 1, tlb, |_, _| {})),
        ("wrprotect", |t, tlb| A::wrprotect(t, at(5), 1, tlb)),
    ];
    for (name, operation) in operations {
        let (t, flushes) = (full(), Flushes::default());
        operation(&t, &flushes.tlb());
        check(&t);
        assert_eq!(flushes.seen(), [(0, 16)], "{name}");
        assert_eq!(folded(&t), [1, 2, 3], "{name}");
        for i in (0..16).filter(|i| *i != 5) {
            assert_eq!(raw(&t, i), leaf(0x1000 + i as u64, true), "{name}, entry {i}");
        }
    }
}

/// What hardware marked anywhere in a block is in every entry afterwards.
///
/// Rules: ACC-01, ACC-02, CONT-05, CONT-09, CONT-11.
#[test]
fn accessed_and_dirty_are_those_of_the_block() {
    for marked in [0, 7, 15] {
        let (t, flushes) = (full(), Flushes::default());
        assert!(A::mmu_mark(&t, 16 + marked, AccessKind::Write, PTE));
        for i in 0..64 {
            let in_block = (16..32).contains(&i);
            for e in [A::read::<Held>(&t, i), A::read::<Pinned>(&t, i)] {
                assert_eq!((e.is_young(), e.is_dirty()), (in_block, in_block), "{i}");
                // Gathering invents nothing else.
                assert!(!e.is_soft_dirty());
                assert_eq!(e.pfn(PTE), Pfn::new(0x1000 + i as u64));
            }
        }
        A::wrprotect(&t, at(20), 1, &flushes.tlb());
        for i in 16..32 {
            assert!(raw(&t, i).is_dirty() && raw(&t, i).is_young(), "{i}");
        }
        // A whole block hands out its history with every entry.
        let t = full();
        assert!(A::mmu_mark(&t, 16 + marked, AccessKind::Write, PTE));
        A::take::<Live, _>(&t, at(0), 64, &flushes.tlb(), |k, e| {
            assert_eq!(e.is_dirty(), (16..32).contains(&k), "{k}");
        });
    }
}

/// Age is kept per block, and no block is unfolded for it.
///
/// Rules: CONT-12.
#[test]
fn clearing_young_acts_on_whole_blocks() {
    let (t, flushes) = (full(), Flushes::default());
    assert!(A::mmu_mark(&t, 3, AccessKind::Read, PTE));
    assert!(A::mmu_mark(&t, 35, AccessKind::Read, PTE));
    assert!(A::clear_young(&t, at(9), 1, &flushes.tlb()));
    assert!((0..16).all(|i| !raw(&t, i).is_young()));
    assert!(raw(&t, 35).is_young(), "another block is none of its business");
    assert!(!A::clear_young(&t, at(9), 1, &flushes.tlb()));
    // Both ends of a range widen.
    assert!(A::clear_young(&t, at(20), 13, &flushes.tlb()));
    assert!(!raw(&t, 35).is_young());
    assert_eq!((folded(&t), flushes.seen()), (vec![0, 1, 2, 3], vec![]));
}

/// Plain entries do not widen onto neighbours that are no block.
///
/// Rules: CONT-12, CONT-19.
#[test]
fn clearing_young_of_a_plain_entry_touches_it_alone() {
    let (t, flushes) = (A::new_table(), Flushes::default());
    for i in 0..16 {
        A::set(&t, at(i), leaf(0x1000 + i as u64, true).mkyoung(), &flushes.tlb());
    }
    assert!(A::clear_young(&t, at(9), 2, &flushes.tlb()));
    for i in 0..16 {
        assert_eq!(raw(&t, i).is_young(), !(9..11).contains(&i), "{i}");
    }
}

/// A sibling that is young already must not hide that this entry is not.
///
/// Rules: CONT-15.
#[test]
fn access_flags_compare_cells_not_the_gathered_view() {
    let (t, flushes) = (full(), Flushes::default());
    assert!(A::mmu_mark(&t, 2, AccessKind::Read, PTE));
    let wanted = A::read::<Held>(&t, 9);
    assert!(wanted.is_young() && !raw(&t, 9).is_young());
    assert!(A::set_access_flags(&t, at(9), wanted, &flushes.tlb()));
    assert!((0..16).all(|i| raw(&t, i).is_young()));
    assert!(!A::set_access_flags(&t, at(9), wanted, &flushes.tlb()));
    assert_eq!(folded(&t), [0, 1, 2, 3]);
    assert!(flushes.seen().is_empty());
}

/// Rules: CONT-07, CONT-15.
#[test]
fn a_write_permission_for_one_entry_unfolds() {
    let (t, flushes) = (A::new_table(), Flushes::default());
    A::fill(&t, 0, 16, leaf(0x1000, false));
    assert_eq!(folded(&t), [0]);
    let e = A::read::<Held>(&t, 4).mkyoung().mkdirty().mkwrite(WriteKind::Normal);
    assert!(A::set_access_flags(&t, at(4), e, &flushes.tlb()));
    check(&t);
    assert_eq!((folded(&t), flushes.seen()), (vec![], vec![(0, 16)]));
    for i in 0..16 {
        assert_eq!((raw(&t, i).is_writable(PTE), raw(&t, i).is_dirty()), (i == 4, i == 4), "{i}");
    }
}

/// Rules: CONT-16, CONT-17, ACC-18, BATCH-06.
#[test]
fn a_run_counts_a_block_from_where_it_enters_it() {
    let t = full();
    let read = |i| A::read::<Held>(&t, i);
    for i in 0..64 {
        let hint = mm_arch::cont::hint(i, read(i), A::BLOCKS);
        assert_eq!(hint, 16 - i % 16);
        assert_eq!(A::scan::<Held, { respect::WRITE }>(&t, i, read(i), 64 - i).nr, 64 - i);
        assert_eq!(A::scan::<Pinned, { respect::WRITE }>(&t, i, read(i), 1).nr, 1);
    }
    assert_eq!(mm_arch::cont::hint(3, leaf(0x1003, true), A::BLOCKS), 1);
}

/// A run goes on neither from a block into plain entries nor the other way.
///
/// Rules: CONT-17.
#[test]
fn a_run_does_not_cross_into_plain_entries() {
    let (t, flushes) = (full(), Flushes::default());
    for i in 16..32 {
        A::set(&t, at(i), leaf(0x1000 + i as u64, true), &flushes.tlb());
    }
    assert_eq!(folded(&t), [0, 2, 3]);
    let scan =
        |i, max| A::scan::<Held, { respect::NOTHING }>(&t, i, A::read::<Held>(&t, i), max).nr;
    assert_eq!(scan(0, 64), 16);
    assert_eq!(scan(4, 60), 12);
    assert_eq!(scan(16, 48), 16);
    assert_eq!(scan(20, 5), 5);
    assert_eq!(scan(32, 32), 32);
    // The copy that a caller holds may have lost the mark.
    let copy = A::read::<Held>(&t, 0).with_cont(false);
    assert_eq!(A::scan::<Held, { respect::NOTHING }>(&t, 0, copy, 64).nr, 16);
}

/// A head that is no longer what the table holds counts for itself alone: nothing
/// is inferred from the block that replaced it.
///
/// Rules: BATCH-10, CONT-10.
#[test]
fn a_stale_head_is_a_run_of_one() {
    let t = full();
    let stale = leaf(0x5000, true);
    assert_eq!(A::scan::<Pinned, { respect::WRITE }>(&t, 0, stale, 16).nr, 1);
}
