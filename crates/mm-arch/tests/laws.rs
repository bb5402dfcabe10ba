//! The laws of a format on all model formats, over random entries and tables.
#![cfg(not(loom))]

use mm_arch::model::{ModelCont, ModelEntry, ModelPair, ModelWord, laws};
use mm_arch::{Arch, Level, Pfn};
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

    /// Rules: PTE-05, PTE-10, PTE-15, PTE-16.
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
