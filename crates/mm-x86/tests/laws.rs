//! The laws that every format obeys, on x86-64 with and without shadow stacks.
#![cfg(not(loom))]

use mm_arch::model::laws;
use mm_arch::{Arch, Level, Pfn};
use mm_x86::{LongEntry, LongMode, X86_64, X86_64NoShstk, X86Entry};
use proptest::prelude::*;

const LEAF_LEVELS: [Level; 3] = [Level::Pte, Level::Pmd, Level::Pud];

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Rules: PTE-01, ACC-23.
#[test]
fn geometry() {
    laws::geometry::<X86_64>();
}

/// Rules: SWP-01, SWP-02, SWP-05, SWP-06.
#[test]
fn nonpresent_kinds() {
    laws::nonpresent::<X86Entry>(Level::Pte);
    laws::nonpresent::<X86Entry>(Level::Pmd);
}

fn entry_laws<const SHSTK: bool>(raw: u64) {
    for level in [Level::Pte, Level::Pmd, Level::Pud, Level::Pgd] {
        laws::entry::<LongMode<SHSTK>>(LongEntry::from_bits(raw), level);
    }
}

/// Every value with at most two bits set, and the complements.
///
/// Rules: PTE-05, PTE-08, PTE-10, PTE-16.
#[test]
fn values_with_few_bits() {
    for i in 0..64 {
        for j in 0..64 {
            let raw = 1 << i | 1 << j;
            for raw in [0, raw, !raw, raw | 0x27, !0] {
                entry_laws::<true>(raw);
                entry_laws::<false>(raw);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(4096))]

    /// No value makes an operation panic, and each obeys the laws.
    ///
    /// Rules: PTE-05, PTE-08..10, PTE-15, PTE-16, PTE-19, PTE-20, SHSTK-04.
    #[test]
    fn any_raw_value(raw: u64, mask: u64) {
        for raw in [raw, raw & mask, raw | 1, raw & !1 | 1 << 8, raw | 1 << 7] {
            entry_laws::<true>(raw);
            entry_laws::<false>(raw);
        }
    }

    #[test]
    fn sampled_leaves(pfn in 0..1u64 << 40, seed: u16) {
        for level in LEAF_LEVELS {
            let pfn = Pfn::new(pfn >> X86_64::order(level) << X86_64::order(level));
            laws::entry::<X86_64>(laws::sample::<X86_64>(pfn, seed, level), level);
            laws::entry::<X86_64NoShstk>(laws::sample::<X86_64NoShstk>(pfn, seed, level), level);
        }
    }

    /// Rules: BATCH-01, BATCH-05, BATCH-06, BATCH-14, BATCH-18, BATCH-21, ACC-05, ACC-11,
    /// ACC-12, ACC-17, PTE-18.
    #[test]
    fn tables(
        seed: u16,
        picks in prop::collection::vec(any::<u32>(), 1..40),
        index: usize,
        n: usize,
    ) {
        laws::table::<X86_64>(seed, &picks, index, n);
        laws::table::<X86_64NoShstk>(seed, &picks, index, n);
    }
}
