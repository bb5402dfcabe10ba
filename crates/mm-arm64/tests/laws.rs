//! The laws that every format obeys, on every granule.
#![cfg(not(loom))]

use mm_arch::explain::Explain;
use mm_arch::model::laws;
use mm_arch::{Arch, Level, Pfn};
use mm_arm64::{Arm64, Arm64Entry, Granule, Granule4K, Granule4KLpa2, Granule16K, Granule64K};
use proptest::prelude::*;

const LEVELS: [Level; 5] = [Level::Pte, Level::Pmd, Level::Pud, Level::P4d, Level::Pgd];

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn entry_laws<G: Granule>(raw: u64) {
    for level in LEVELS.iter().filter(|l| G::LEVELS.contains(l)) {
        laws::entry::<Arm64<G>>(Arm64Entry::from_bits(raw), *level);
        laws::explain::<Arm64<G>>(raw, *level);
    }
}
fn every_granule(raw: u64) {
    entry_laws::<Granule4K>(raw);
    entry_laws::<Granule4KLpa2>(raw);
    entry_laws::<Granule16K>(raw);
    entry_laws::<Granule64K>(raw);
}
fn sampled<G: Granule>(pfn: u64, seed: u16) {
    let pfn = pfn & ((1 << (G::OUTPUT.bits() - G::PAGE_SHIFT)) - 1);
    for level in Arm64::<G>::LEAF_LEVELS {
        let order = Arm64::<G>::order(*level);
        let e = laws::sample::<Arm64<G>>(Pfn::new(pfn >> order << order), seed, *level);
        laws::entry::<Arm64<G>>(e, *level);
    }
    laws::made_without_fault::<Arm64<G>>(Pfn::new(pfn), seed);
}

/// Rules: PTE-01, A64-01, ACC-23.
#[test]
fn geometry() {
    laws::geometry::<Arm64<Granule4K>>();
    laws::geometry::<Arm64<Granule4KLpa2>>();
    laws::geometry::<Arm64<Granule16K>>();
    laws::geometry::<Arm64<Granule64K>>();
}

/// Rules: SWP-01, SWP-02, SWP-04, SWP-05, SWP-06.
#[test]
fn nonpresent_kinds() {
    for level in [Level::Pte, Level::Pmd] {
        laws::nonpresent::<Arm64Entry<Granule4K>>(level);
        laws::nonpresent::<Arm64Entry<Granule4KLpa2>>(level);
        laws::nonpresent::<Arm64Entry<Granule16K>>(level);
        laws::nonpresent::<Arm64Entry<Granule64K>>(level);
    }
}

/// Every value with at most two bits set, and the complements.
///
/// Rules: A64-02, A64-04..09.
#[test]
fn values_with_few_bits() {
    for i in 0..64 {
        for j in 0..64 {
            let raw = 1 << i | 1 << j;
            for raw in [0, raw, !raw, raw | 0xfc3, raw | 0xf82, !0] {
                every_granule(raw);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(4096))]

    /// No value makes an operation panic, and each obeys the laws.
    ///
    /// Rules: A64-02..09, ACC-19, ACC-24, SWP-04.
    #[test]
    fn any_raw_value(raw: u64, mask: u64) {
        for raw in [raw, raw & mask, raw | 1, raw & !1 | 1 << 11, raw & !2 | 1] {
            every_granule(raw);
        }
    }

    #[test]
    fn sampled_leaves(pfn: u64, seed: u16) {
        sampled::<Granule4K>(pfn, seed);
        sampled::<Granule4KLpa2>(pfn, seed);
        sampled::<Granule16K>(pfn, seed);
        sampled::<Granule64K>(pfn, seed);
    }
}

fn table_laws<G: Granule>(cases: u32) {
    let picks = prop::collection::vec(any::<u32>(), 1..40);
    let case = (any::<u16>(), picks, any::<usize>(), any::<usize>());
    proptest!(config(cases), |((seed, picks, index, n) in case)| {
        laws::table::<Arm64<G>>(seed, &picks, index, n);
    });
}

/// One test per granule, so that a failure says which.
macro_rules! table_laws {
    ($($name:ident: $granule:ty, $cases:literal),* $(,)?) => {$(
        /// A batch equals the fold of its single steps, on folded blocks and plain entries.
        ///
        /// Rules: BATCH-01, BATCH-05, BATCH-06, BATCH-14, BATCH-18, ACC-05, ACC-07, ACC-11,
        /// ACC-12, ACC-17, CONT-08, CONT-17.
        #[test]
        fn $name() {
            // Without optimisation tables of 64 KiB are moved about on the stack.
            let test = std::thread::Builder::new().stack_size(16 << 20);
            let test = test.spawn(|| table_laws::<$granule>($cases)).expect("a thread");
            test.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        }
    )*};
}
table_laws! {
    tables_of_4k_pages: Granule4K, 2048,
    tables_of_4k_pages_lpa2: Granule4KLpa2, 512,
    tables_of_16k_pages: Granule16K, 256,
    tables_of_64k_pages: Granule64K, 64,
}
