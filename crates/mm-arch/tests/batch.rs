//! The batch scan, one body of tests on every model format.
#![cfg(not(loom))]

use mm_arch::model::{ModelCont, ModelEntry, ModelPair, ModelWord, NoTlb, laws};
use mm_arch::{
    AccessKind, Arch, At, Batch, Entry, Held, Level, NonPresent, Pfn, Pinned, Protection, SpaceId,
    SpaceTlb, SwapBits, SwapSlot, VirtAddr, WriteKind, respect,
};

const PTE: Level = Level::Pte;
const NOTHING: u8 = respect::NOTHING;

fn at(index: usize) -> At {
    At { va: VirtAddr::new(0x10_0000).add_units(index as u64, 12), index }
}
fn set<A: Arch>(t: &A::Table, index: usize, e: A::Entry) {
    A::set(t, at(index), e, &SpaceTlb::new(&NoTlb, SpaceId(1)));
}
fn leaf<A: Arch>(pfn: u64) -> A::Entry {
    let prot = A::prot(Protection { writable_at_once: true, ..Protection::private_read_write() });
    A::Entry::leaf(Pfn::new(pfn), prot, PTE)
}
/// Both rights must find the same.
fn scan<A: Arch, const MODE: u8>(t: &A::Table, index: usize, max: usize) -> Batch {
    let head = A::read::<Held>(t, index);
    let held = A::scan::<Held, MODE>(t, index, head, max);
    assert_eq!(A::scan::<Pinned, MODE>(t, index, head, max), held);
    held
}

/// Every format's tests in a module of its name.
macro_rules! on_formats {
    ($($module:ident: $arch:ty),* ; $tests:tt) => {$(
        mod $module {
            type A = $arch;
            on_formats!(@tests $tests);
        }
    )*};
    (@tests { $($(#[$doc:meta])* $test:ident),* $(,)? }) => {$(
        $(#[$doc])*
        #[test]
        fn $test() {
            super::$test::<A>();
        }
    )*};
}
on_formats! {
    one_word: mm_arch::model::ModelWord<64>,
    two_words: mm_arch::model::ModelPair<64>,
    blocks_of_16: mm_arch::model::ModelCont<64, 16>,
    blocks_of_4: mm_arch::model::ModelCont<64, 4>; {
        /// Rules: BATCH-01, BATCH-06.
        lengths,
        /// Rules: BATCH-04, BATCH-06.
        the_clamp_holds_at_every_limit,
        /// Rules: BATCH-01.
        frames_must_be_consecutive,
        /// Rules: BATCH-05.
        single_bit_differences,
        /// Rules: BATCH-14.
        non_present_entries_end_a_run,
        /// Rules: BATCH-01, PTE-07.
        inaccessible_runs_batch,
        /// Rules: BATCH-02, BATCH-08.
        facts_of_a_run,
        /// Rules: BATCH-07.
        nothing_beyond_the_limit_is_looked_at,
        /// Rules: BATCH-13.
        dirty_patterns,
    }
}

fn lengths<A: Arch>() {
    for index in [0, 1, 5, 16, 31] {
        for nr in 1..=32 {
            let t = A::new_table();
            // Frames aligned like the index, so that whole blocks fold.
            A::fill(&t, index, nr, leaf::<A>(0x1000 + index as u64));
            let max = A::nr_entries(PTE) - index;
            assert_eq!(
                first_stretch::<A>(index, nr),
                scan::<A, NOTHING>(&t, index, max).nr,
                "{index}+{nr}"
            );
        }
    }
}

/// Entries from `index` of a run up to `index + nr` that are all in folded blocks
/// or all in none (rule CONT-17).
fn first_stretch<A: Arch>(index: usize, nr: usize) -> usize {
    let end = index + nr;
    let up = |i: usize| i.next_multiple_of(A::CONT);
    let down = |i: usize| i / A::CONT * A::CONT;
    if A::CONT == 1 || up(index) >= down(end) {
        nr
    } else if index == up(index) {
        down(end) - index
    } else {
        up(index) - index
    }
}

fn the_clamp_holds_at_every_limit<A: Arch>() {
    let t = A::new_table();
    A::fill(&t, 0, 64, leaf::<A>(0x1000));
    for index in 0..64 {
        for max in 1..=64 - index {
            assert_eq!(scan::<A, { respect::WRITE }>(&t, index, max).nr, max, "{index} of {max}");
        }
    }
}

fn frames_must_be_consecutive<A: Arch>() {
    for next in [0x1000, 0x1002, 0x0fff, 0x2001] {
        let t = A::new_table();
        set::<A>(&t, 0, leaf::<A>(0x1000));
        set::<A>(&t, 1, leaf::<A>(next));
        assert_eq!(scan::<A, NOTHING>(&t, 0, 2).nr, 1, "{next:#x}");
    }
}

/// The bits of a model entry that a scan may ignore, and the mode that respects them.
const IGNORABLE: [(u32, u8); 4] =
    [(1, respect::WRITE), (5, 0), (6, respect::DIRTY), (11, respect::SOFT_DIRTY)];

fn single_bit_differences<A: Arch<Entry = ModelEntry>>() {
    fn mode<A: Arch<Entry = ModelEntry>, const MODE: u8>() {
        for bit in 0..64 {
            // The mark of a block is not for callers to set (rule CONT-01).
            if bit == 8 {
                continue;
            }
            let t = A::new_table();
            let head = leaf::<A>(0x1000);
            set::<A>(&t, 0, head);
            let e = ModelEntry::from_bits(head.advance(1, PTE).bits() ^ 1 << bit);
            set::<A>(&t, 1, e);
            let ignorable = IGNORABLE.iter().find(|(b, _)| *b == bit);
            let ignored = ignorable.is_some_and(|(b, m)| *b == 5 || MODE & m == 0);
            let want = if ignored { 2 } else { 1 };
            assert_eq!(scan::<A, MODE>(&t, 0, 2).nr, want, "mode {MODE}, bit {bit}");
        }
    }
    macro_rules! modes {
        ($($m:literal)*) => {$( mode::<A, $m>(); )*};
    }
    modes!(0 1 2 3 4 5 6 7);
}

fn non_present_entries_end_a_run<A: Arch>() {
    let swap = NonPresent::Swap(SwapSlot { device: 0, offset: 0x1002 });
    let swap = A::Entry::from_nonpresent(swap, SwapBits::default()).expect("fits");
    for (hole, e) in [(2, A::Entry::NONE), (2, swap), (1, swap), (3, A::Entry::NONE)] {
        let t = A::new_table();
        for k in 0..4 {
            let present = leaf::<A>(0x1000 + k as u64);
            set::<A>(&t, k, if k == hole { e } else { present });
        }
        assert_eq!(scan::<A, NOTHING>(&t, 0, 4).nr, hole, "{e:?} at {hole}");
    }
}

fn inaccessible_runs_batch<A: Arch>() {
    let t = A::new_table();
    A::fill(&t, 0, 32, A::Entry::leaf(Pfn::new(0x1000), A::prot(Protection::none()), PTE));
    assert_eq!(scan::<A, NOTHING>(&t, 0, 32).nr, 32);
    assert_eq!(scan::<A, NOTHING>(&t, 3, 4).nr, 4);
}

fn facts_of_a_run<A: Arch>() {
    const MERGE: u8 = respect::MERGE_WRITE | respect::MERGE_YOUNG_DIRTY;
    let old = leaf::<A>(0x1000).mkold();
    let facts = |writable: usize, young: usize, dirty: usize| {
        let t = A::new_table();
        for k in 0..6 {
            let mut e = old.advance(k as u64, PTE).wrprotect();
            if k == writable {
                e = e.mkwrite(WriteKind::Normal);
            }
            if k == young {
                e = e.mkyoung();
            }
            if k == dirty {
                e = e.mkdirty().clear_soft_dirty();
            }
            set::<A>(&t, k, e.clear_soft_dirty());
        }
        let b = scan::<A, MERGE>(&t, 0, 4);
        assert_eq!(b.nr, 4);
        (b.any_writable, b.any_young, b.any_dirty)
    };
    assert_eq!(facts(9, 9, 9), (false, false, false));
    for k in [0, 1, 3] {
        assert_eq!(facts(k, 9, 9), (true, false, false));
        assert_eq!(facts(9, k, 9), (false, true, false));
        assert_eq!(facts(9, 9, k), (false, false, true));
    }
    // Beyond the limit nothing counts.
    assert_eq!(facts(4, 5, 4), (false, false, false));
}

fn nothing_beyond_the_limit_is_looked_at<A: Arch>() {
    let t = A::new_table();
    // The last entries of a table: a read behind them would panic.
    A::fill(&t, 60, 4, leaf::<A>(0x100c));
    assert_eq!(scan::<A, NOTHING>(&t, 62, 2).nr, 2);
    assert_eq!(scan::<A, NOTHING>(&t, 63, 1).nr, 1);
    // An entry behind the limit has no influence, whatever it is.
    for e in [A::Entry::NONE, leaf::<A>(0x7), leaf::<A>(0x1003)] {
        let t = A::new_table();
        for k in 0..3 {
            set::<A>(&t, k, leaf::<A>(0x1000 + k as u64));
        }
        set::<A>(&t, 3, e);
        assert_eq!(scan::<A, NOTHING>(&t, 0, 3).nr, 3, "{e:?} behind the limit");
    }
}

fn dirty_patterns<A: Arch>() {
    let t = A::new_table();
    let clean = leaf::<A>(0x1000).mkclean().clear_soft_dirty();
    for k in 0..4 {
        let e = clean.advance(k, PTE);
        set::<A>(&t, k as usize, if k < 2 { e.mkdirty().clear_soft_dirty() } else { e });
    }
    assert_eq!(scan::<A, { respect::DIRTY }>(&t, 0, 4).nr, 2);
    assert_eq!(scan::<A, { respect::DIRTY }>(&t, 2, 2).nr, 2);
    assert_eq!(scan::<A, NOTHING>(&t, 0, 4).nr, 4);
}

/// A store by hardware in any entry of a folded block dirties the run as a whole.
///
/// Rules: BATCH-08, CONT-11.
#[test]
fn a_block_batches_as_one_whatever_hardware_marked() {
    type A = ModelCont<64, 16>;
    for marked in 0..16 {
        let t = A::new_table();
        A::fill(&t, 0, 32, leaf::<A>(0x1000).mkclean().mkold());
        assert!(A::mmu_mark(&t, marked, AccessKind::Write, PTE));
        assert_eq!(scan::<A, { respect::DIRTY }>(&t, 0, 32).nr, 16);
        let b = scan::<A, { respect::MERGE_YOUNG_DIRTY }>(&t, 0, 32);
        assert_eq!((b.nr, b.any_young, b.any_dirty), (32, true, true));
    }
}

/// The three formats agree on every table that none of them folds.
///
/// Rules: BATCH-01, BATCH-18.
#[test]
fn formats_agree() {
    fn lengths<A: Arch>(picks: &[u32]) -> Vec<usize> {
        // Segments shorter than a block, written one by one.
        let picks: Vec<u32> = picks.iter().map(|p| p & !0x10 | 1 << 14).collect();
        let t = laws::lay_out::<A>(0x2b, &picks);
        (0..64)
            .filter(|i| A::read::<Held>(&t, *i).is_leaf(PTE))
            .map(|i| scan::<A, { respect::WRITE }>(&t, i, 64 - i).nr)
            .collect()
    }
    for seed in 1..200u32 {
        let picks: Vec<u32> =
            (1..12).map(|k| seed.wrapping_mul(0x9e37_79b9).rotate_left(k)).collect();
        let word = lengths::<ModelWord<64>>(&picks);
        assert_eq!(lengths::<ModelPair<64>>(&picks), word);
        assert_eq!(lengths::<ModelCont<64, 16>>(&picks), word);
    }
}
