//! The batch scan on x86-64, where writability hides in the dirty bit.
#![cfg(not(loom))]

use mm_arch::model::NoTlb;
use mm_arch::{
    AccessKind, Arch, At, Entry, FlushScope, Held, Level, Live, Pfn, Pinned, Private, Protection,
    Right, SpaceId, SpaceTlb, Tlb, VirtAddr, VirtRange, WriteKind, respect,
};
use mm_x86::{LongEntry, LongMode, X86_64, X86_64NoShstk, X86Entry, bits};

const PTE: Level = Level::Pte;
const W: u8 = respect::WRITE;
const D: u8 = respect::DIRTY;

fn at(index: usize) -> At {
    At { va: VirtAddr::new(0x1_0000_0000).add_units(index as u64, 12), index }
}
fn tlb() -> SpaceTlb<'static, NoTlb> {
    SpaceTlb::new(&NoTlb, SpaceId(1))
}
/// A table that starts with the entries `raw`.
fn table<const SHSTK: bool>(raw: &[u64]) -> <LongMode<SHSTK> as Arch>::Table {
    let t = LongMode::<SHSTK>::new_table();
    for (i, raw) in raw.iter().enumerate() {
        LongMode::<SHSTK>::set(&t, at(i), LongEntry::from_bits(*raw), &tlb());
    }
    t
}
fn run<const SHSTK: bool, const MODE: u8>(raw: &[u64]) -> usize {
    let t = table::<SHSTK>(raw);
    let head = LongEntry::from_bits(raw[0]);
    let nr = LongMode::<SHSTK>::scan::<Held, MODE>(&t, 0, head, raw.len()).nr;
    assert_eq!(LongMode::<SHSTK>::scan::<Pinned, MODE>(&t, 0, head, raw.len()).nr, nr);
    // What is found and emptied at once is the same.
    if MODE & D == 0 {
        let taken =
            LongMode::<SHSTK>::take_while::<MODE, _>(&t, at(0), head, raw.len(), &tlb(), |_| ());
        assert_eq!(taken, nr, "{raw:x?}");
        for (k, raw) in raw.iter().enumerate() {
            let left = LongMode::<SHSTK>::read::<Held>(&t, k).bits();
            assert_eq!(left, if k < nr { 0 } else { *raw });
        }
    }
    nr
}

const READ_ONLY: u64 = bits::PRESENT | bits::USER | bits::ACCESSED;
const SHADOW: u64 = READ_ONLY | bits::DIRTY;
const SAVED: u64 = READ_ONLY | bits::SAVED_DIRTY;

/// Entries with these flags for frames 0x1000, 0x1001, …
fn frames<const N: usize>(flags: [u64; N]) -> [u64; N] {
    core::array::from_fn(|k| flags[k] | (0x1000 + k as u64) << 12)
}

/// A shadow-stack entry is writable, its plain read-only neighbour is not.
///
/// Rules: MM-001, BATCH-19, BATCH-21.
#[test]
fn shadow_stack_and_read_only_do_not_batch() {
    assert_eq!(frames([SHADOW, READ_ONLY]), [0x100_0065, 0x100_1025]);
    for (flags, shstk, no_shstk) in [
        ([SHADOW, READ_ONLY], 1, 2),
        ([READ_ONLY, SHADOW], 1, 2),
        ([SHADOW, SHADOW], 2, 2),
        ([READ_ONLY, SAVED], 2, 2),
        ([SAVED, READ_ONLY], 2, 2),
        // Saved dirty beside D changes nothing about writability.
        ([SHADOW, SHADOW | bits::SAVED_DIRTY], 2, 2),
        ([SHADOW, READ_ONLY | bits::WRITE], 1, 1),
        ([READ_ONLY | bits::WRITE, SHADOW], 1, 1),
        ([READ_ONLY | bits::WRITE, READ_ONLY | bits::WRITE | bits::DIRTY], 2, 2),
    ] {
        let raw = frames(flags);
        assert_eq!(run::<true, W>(&raw), shstk, "{raw:x?}");
        assert_eq!(run::<false, W>(&raw), no_shstk, "{raw:x?} without shadow stacks");
        // Where write does not count, they are alike.
        assert_eq!(run::<true, { respect::NOTHING }>(&raw), 2, "{raw:x?}");
    }
}

/// The prefix is exact: not cut to one when a later entry differs.
///
/// Rules: BATCH-21, BATCH-22.
#[test]
fn the_prefix_before_a_change_of_writability_is_exact() {
    let raw = frames([SHADOW, SHADOW, SHADOW, READ_ONLY, READ_ONLY]);
    assert_eq!(run::<true, W>(&raw), 3);
    let raw = frames([READ_ONLY, SAVED, READ_ONLY, SHADOW, SHADOW]);
    assert_eq!(run::<true, W>(&raw), 3);
}

/// With dirty but not write, D and SavedDirty are one fact.
///
/// Rules: BATCH-05.
#[test]
fn dirty_is_compared_as_a_fact_where_write_is_ignored() {
    let rw = READ_ONLY | bits::WRITE;
    for (flags, nr) in [
        ([rw | bits::DIRTY, SAVED], 2),
        ([SAVED, rw | bits::DIRTY], 2),
        ([rw, READ_ONLY], 2),
        ([rw | bits::DIRTY, rw], 1),
        ([rw, SAVED], 1),
        ([SHADOW, SAVED], 2),
        ([SHADOW, READ_ONLY], 1),
    ] {
        assert_eq!(run::<true, D>(&frames(flags)), nr, "{flags:x?}");
        assert_eq!(run::<false, D>(&frames(flags)), nr, "{flags:x?}");
    }
}

/// Normalisation as the rules word it, on raw bits: the oracle of the sweep.
fn normalised(mode: u8, raw: u64) -> u64 {
    let mut x = raw;
    if mode & D == 0 {
        x &= !(bits::DIRTY | bits::SAVED_DIRTY);
    }
    if mode & respect::SOFT_DIRTY == 0 {
        x &= !bits::SOFT_DIRTY;
    }
    if mode & W == 0 {
        x &= !bits::WRITE;
        if x & bits::DIRTY != 0 {
            x = x & !bits::DIRTY | bits::SAVED_DIRTY;
        }
    }
    x & !bits::ACCESSED
}
fn writable<const SHSTK: bool>(raw: u64) -> bool {
    raw & bits::WRITE != 0 || SHSTK && raw & bits::DIRTY != 0
}

fn sweep<const SHSTK: bool, const MODE: u8>() {
    let history = [0, bits::DIRTY, bits::SAVED_DIRTY, bits::DIRTY | bits::SAVED_DIRTY];
    let frame = 0x1234u64;
    for base in [READ_ONLY, READ_ONLY | bits::WRITE, bits::PROT_NONE | bits::ACCESSED] {
        for head in history.map(|h| base | h) {
            let with_frame = |flags: u64, pfn: u64| {
                let field = if flags & bits::PRESENT == 0 { !pfn } else { pfn };
                flags | field << 12 & bits::FRAME
            };
            let raw_head = with_frame(head, frame);
            let next = with_frame(head, frame + 1);
            for bit in 0..65 {
                // The last round is no difference at all.
                let raw = if bit < 64 { next ^ 1 << bit } else { next };
                let same = normalised(MODE, raw) == normalised(MODE, next);
                let right = MODE & W == 0 || writable::<SHSTK>(raw) == writable::<SHSTK>(head);
                let want = if same && right { 2 } else { 1 };
                let got = run::<SHSTK, MODE>(&[raw_head, raw]);
                assert_eq!(got, want, "mode {MODE}, {raw_head:#x} then {raw:#x}, bit {bit}");
            }
        }
    }
}

/// One bit of difference, all bits, all eight modes, every dirty state of the head.
///
/// Rules: BATCH-05, BATCH-21, PTE-09.
#[test]
fn single_bit_differences() {
    macro_rules! modes {
        ($($m:literal)*) => {$( sweep::<true, $m>(); sweep::<false, $m>(); )*};
    }
    modes!(0 1 2 3 4 5 6 7);
}

/// Runs longer than the unrolled step end where they should, for every length and end.
///
/// Rules: BATCH-01, BATCH-04, BATCH-06, BATCH-07.
#[test]
fn lengths_around_the_unrolled_step() {
    fn check<R: Right>(prot: Protection) {
        let head = X86Entry::leaf(Pfn::new(0x5_0000), X86_64::prot(prot), PTE);
        for index in [0, 3, 470] {
            for nr in 1..40 {
                let t = X86_64::new_table();
                X86_64::fill(&t, index, nr, head);
                for max in 1..=42 {
                    let got = X86_64::scan::<R, W>(&t, index, head, max).nr;
                    assert_eq!(got, nr.min(max), "index {index}, {nr} entries, max {max}");
                }
            }
        }
    }
    check::<Held>(Protection::private_read_write());
    check::<Pinned>(Protection::private_read_write());
    // Inaccessible runs go down in raw value.
    check::<Held>(Protection::none());
}

/// Rules: BATCH-06. The end of the table is the end of what may be read.
#[test]
fn the_last_entry_of_a_table() {
    let t = X86_64::new_table();
    let prot = X86_64::prot(Protection::private_read_write());
    let head = X86Entry::leaf(Pfn::new(0x100), prot, PTE);
    X86_64::fill(&t, 500, 12, head);
    assert_eq!(X86_64::scan::<Held, W>(&t, 500, head, 12).nr, 12);
    let last = head.advance(11, PTE);
    assert_eq!(X86_64::scan::<Held, W>(&t, 511, last, 1).nr, 1);
}

/// Rules: BATCH-14.
#[test]
fn non_present_entries_end_a_run() {
    let p = frames([READ_ONLY; 4]);
    let swap = 0x1fff_ffff_ffdf_fe00;
    assert_eq!(run::<true, W>(&[p[0], p[1], swap, p[3]]), 2);
    assert_eq!(run::<true, W>(&[p[0], p[1], p[2], 0]), 3);
    assert_eq!(run::<true, W>(&[p[0], 0x60, p[2], p[3]]), 1);
}

/// Rules: BATCH-08.
#[test]
fn facts_are_reported_in_merge_modes_and_the_head_counts_as_its_copy() {
    const M: u8 = respect::MERGE_WRITE | respect::MERGE_YOUNG_DIRTY;
    let plain = READ_ONLY & !bits::ACCESSED;
    let raw =
        frames([plain | bits::WRITE, plain, plain | bits::ACCESSED, plain | bits::SAVED_DIRTY]);
    let t = table::<true>(&raw);
    let head = X86Entry::from_bits(raw[0]);
    let facts = |n| {
        let b = X86_64::scan::<Held, M>(&t, 0, head, n);
        (b.nr, b.any_writable, b.any_young, b.any_dirty)
    };
    assert_eq!(facts(1), (1, true, false, false));
    assert_eq!(facts(2), (2, true, false, false));
    assert_eq!(facts(3), (3, true, true, false));
    assert_eq!(facts(4), (4, true, true, true));
    // Hardware marks the head behind the copy's back: the copy counts.
    assert!(X86_64::mmu_mark(&t, 0, AccessKind::Write, PTE));
    assert_eq!(facts(2), (2, true, false, false));
    let none = X86_64::scan::<Held, { respect::NOTHING }>(&t, 0, head, 4);
    assert_eq!((none.any_writable, none.any_young, none.any_dirty), (false, false, false));
}

/// No operation leaves D without RW on an ordinary page.
///
/// Rules: SHSTK-01, SHSTK-08, ACC-11.
#[test]
fn no_operation_makes_a_shadow_stack() {
    let rw = READ_ONLY | bits::WRITE;
    let start = frames([READ_ONLY, SAVED, rw, rw | bits::DIRTY, READ_ONLY, rw]);
    let check = |t: &_, what: &str| {
        for i in 0..start.len() {
            let e = X86_64::read::<Held>(t, i);
            assert!(!e.is_shadow_stack(PTE), "{what}: {e:?} at {i}");
        }
    };
    let t = table::<true>(&start);
    for i in 0..start.len() {
        X86_64::mmu_mark(&t, i, AccessKind::Write, PTE);
    }
    check(&t, "hardware");
    X86_64::wrprotect(&t, at(0), start.len(), &tlb());
    check(&t, "wrprotect");
    for i in 0..start.len() {
        let e = X86_64::read::<Held>(&t, i);
        X86_64::set_access_flags(&t, at(i), e.mkyoung().mkdirty(), &tlb());
    }
    check(&t, "set_access_flags dirty");
    for i in 0..start.len() {
        let e = X86_64::read::<Held>(&t, i);
        X86_64::set_access_flags(&t, at(i), e.mkdirty().mkwrite(WriteKind::Normal), &tlb());
        assert!(X86_64::read::<Held>(&t, i).permits(AccessKind::Write, PTE));
    }
    check(&t, "set_access_flags write");
}

/// A shadow-stack entry stays writable when flags are added to it.
///
/// Rules: ACC-17, SHSTK-06.
#[test]
fn access_flags_of_a_shadow_stack_entry() {
    let t = table::<true>(&frames([READ_ONLY, SHADOW & !bits::ACCESSED]));
    let e = X86_64::read::<Held>(&t, 0).mkdirty().mkwrite(WriteKind::ShadowStack);
    assert!(X86_64::set_access_flags(&t, at(0), e, &tlb()));
    assert!(X86_64::read::<Held>(&t, 0).is_shadow_stack(PTE));
    let e = X86_64::read::<Held>(&t, 1).mkyoung().mkdirty();
    assert!(X86_64::set_access_flags(&t, at(1), e, &tlb()));
    let e = X86_64::read::<Held>(&t, 1);
    assert!(e.is_shadow_stack(PTE) && e.is_young() && e.is_dirty());
}

/// No operation on entries flushes by itself: there is nothing to break before
/// making, and a stale translation only makes a page look older than it is.
///
/// Rules: ACC-11, ACC-13, ACC-17.
#[test]
fn operations_never_flush() {
    struct Never;
    impl Tlb for Never {
        fn flush_range(&self, _: SpaceId, range: VirtRange, _: FlushScope) {
            panic!("flushed {range:?}");
        }
        fn flush_space(&self, _: SpaceId) {
            panic!("flushed everything");
        }
        fn defer_range(&self, _: SpaceId, range: VirtRange) {
            panic!("deferred {range:?}");
        }
        fn flush_deferred(&self) {}
    }
    let tlb = SpaceTlb::new(&Never, SpaceId(1));
    let t = table::<true>(&frames([READ_ONLY | bits::WRITE; 4]));
    assert!(X86_64::clear_young(&t, at(0), 4, &tlb));
    assert!(!X86_64::clear_young(&t, at(0), 4, &tlb));
    X86_64::wrprotect(&t, at(1), 2, &tlb);
    let e = X86_64::read::<Held>(&t, 1).mkyoung();
    assert!(X86_64::set_access_flags(&t, at(1), e, &tlb));
    X86_64::take::<Live, _>(&t, at(0), 4, &tlb, |_, _| {});
    X86_64::set(&t, at(0), e, &tlb);
}

/// Rules: ACC-05, ACC-07.
#[test]
fn taken_entries_come_with_what_hardware_added() {
    let rw = READ_ONLY | bits::WRITE;
    let raw = frames([rw; 3]);
    let t = table::<false>(&raw);
    assert!(X86_64NoShstk::mmu_mark(&t, 1, AccessKind::Write, PTE));
    let mut taken = Vec::new();
    X86_64NoShstk::take::<Live, _>(&t, at(0), 2, &tlb(), |k, e| taken.push((k, e.is_dirty())));
    X86_64NoShstk::take::<Private, _>(&t, at(2), 1, &tlb(), |_, e| taken.push((2, e.is_dirty())));
    assert_eq!(taken, [(0, false), (1, true), (2, false)]);
    assert!((0..3).all(|i| X86_64NoShstk::read::<Held>(&t, i).is_none()));
}

/// Rules: PTE-18. The hardware's walk on upper levels.
#[test]
fn walks_mark_tables_accessed_and_leaves_dirty() {
    let t = X86_64::new_table();
    let table = X86Entry::from_bits(bits::TABLE & !bits::ACCESSED & !bits::DIRTY | 0x777_000);
    X86_64::swap_upper(&t, 0, table);
    assert!(X86_64::mmu_mark(&t, 0, AccessKind::Write, Level::Pmd));
    let marked = X86_64::read_upper::<Pinned>(&t, 0);
    assert!(marked.is_young() && !marked.is_dirty());
    let prot =
        X86_64::prot(Protection { writable_at_once: true, ..Protection::private_read_write() });
    let leaf = X86Entry::leaf(Pfn::new(0x200), prot, Level::Pmd).mkold();
    assert_eq!(X86_64::swap_upper(&t, 0, leaf), marked);
    assert!(X86_64::mmu_mark(&t, 0, AccessKind::Write, Level::Pmd));
    assert!(X86_64::read_upper::<Held>(&t, 0).is_dirty());
    X86_64::wrprotect_upper(&t, 0);
    let wp = X86_64::read_upper::<Held>(&t, 0);
    assert!(wp.is_dirty() && !wp.is_writable(Level::Pmd));
    assert!(!X86_64::mmu_mark(&t, 0, AccessKind::Write, Level::Pmd));
    let again = wp.mkwrite(WriteKind::Normal);
    assert!(X86_64::set_access_flags_upper(&t, 0, again));
    assert_eq!(X86_64::read_upper::<Held>(&t, 0), again);
}
