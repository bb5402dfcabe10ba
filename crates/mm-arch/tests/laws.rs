//! The laws of a format on all model formats, over random entries and tables.
#![cfg(not(loom))]

use mm_arch::model::{ModelCont, ModelEntry, ModelPair, ModelWord, NoTlb, laws};
use mm_arch::{Arch, At, Entry, Held, Level, Pfn, Pinned, SpaceId, SpaceTlb, VirtAddr, respect};
use proptest::prelude::*;

/// Rules: PTE-01, ACC-23.
#[test]
fn geometry() {
    laws::geometry::<ModelWord<64>>();
    laws::geometry::<ModelPair<4>>();
    laws::geometry::<ModelCont<64, 16>>();
}

/// Rules: SWP-01, SWP-02, SWP-05, SWP-06.
#[test]
fn nonpresent_kinds() {
    laws::nonpresent::<ModelEntry>(Level::Pte);
    laws::nonpresent::<ModelEntry>(Level::Pmd);
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// The bit that makes a non-present model entry a swap entry.
const SWAP: u64 = 1 << 4;

proptest! {
    #![proptest_config(config(2048))]

    /// Rules: PTE-05, PTE-10, PTE-15, PTE-16, ACC-19, ACC-24.
    #[test]
    fn any_raw_value_obeys_the_entry_laws(raw: u64, mask: u64) {
        for raw in [raw, raw & mask, raw & !SWAP, raw & !SWAP | 1] {
            // No operation makes an entry that is present and swap.
            let raw = if raw & 9 != 0 { raw & !SWAP } else { raw };
            for level in [Level::Pte, Level::Pmd] {
                laws::entry::<ModelWord<64>>(ModelEntry::from_bits(raw), level);
            }
        }
    }

    #[test]
    fn sampled_leaves_obey_the_entry_laws(pfn in 0..1u64 << 40, seed: u16) {
        let e = laws::sample::<ModelWord<64>>(Pfn::new(pfn), seed, Level::Pte);
        laws::entry::<ModelWord<64>>(e, Level::Pte);
    }
}

/// Entries that differ only in the word without the present bit are two entries.
///
/// Rules: ACC-20.
#[test]
fn two_word_entries_are_compared_whole() {
    type A = ModelPair<4>;
    let tlb = SpaceTlb::new(&NoTlb, SpaceId(1));
    let at = |index| At { va: VirtAddr::new((index as u64) << 12), index };
    let e = laws::sample::<A>(Pfn::new(0x10_0001), 0x1b, Level::Pte);
    let same_low = laws::sample::<A>(Pfn::new(0x20_0001), 0x1b, Level::Pte);
    assert_eq!(e.bits() as u32, same_low.bits() as u32);
    let t = A::new_table();
    A::set(&t, at(0), e, &tlb);
    A::set(&t, at(1), same_low, &tlb);
    assert_ne!(A::read::<Held>(&t, 0), A::read::<Pinned>(&t, 1));
    assert_eq!(A::scan::<Pinned, { respect::NOTHING }>(&t, 0, e.advance(0, Level::Pte), 2).nr, 1);
}

fn table_laws<A: Arch>() {
    let picks = prop::collection::vec(any::<u32>(), 1..16);
    let case = (any::<u16>(), picks, any::<usize>(), any::<usize>());
    proptest!(config(1024), |((seed, picks, index, n) in case)| {
        laws::table::<A>(seed, &picks, index, n);
    });
}

/// One test per format, so that a failure says which.
macro_rules! table_laws {
    ($($name:ident: $arch:ty),* $(,)?) => {$(
        /// Rules: BATCH-01, BATCH-05, BATCH-06, BATCH-18, ACC-05, ACC-11, ACC-12, ACC-17.
        #[test]
        fn $name() {
            table_laws::<$arch>();
        }
    )*};
}
table_laws! {
    one_word: ModelWord<64>,
    one_word_tiny: ModelWord<8>,
    two_words: ModelPair<64>,
    two_words_tiny: ModelPair<4>,
    blocks_of_16: ModelCont<64, 16>,
    blocks_of_4: ModelCont<64, 4>,
    blocks_of_2_tiny: ModelCont<4, 2>,
}
