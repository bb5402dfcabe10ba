//! The laws that every format obeys, on all modes.
#![cfg(not(loom))]

use mm_arch::explain::Explain;
use mm_arch::model::laws;
use mm_arch::{Arch, Level, Pfn};
use mm_riscv::{Mode, Riscv, RiscvEntry, Sv39, Sv48, Sv57};
use proptest::prelude::*;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Rules: PTE-01, ACC-23.
#[test]
fn geometry() {
    laws::geometry::<Riscv<Sv39>>();
    laws::geometry::<Riscv<Sv48>>();
    laws::geometry::<Riscv<Sv57>>();
    assert_eq!(Riscv::<Sv39>::USER_END, 1 << 38);
    assert_eq!(Riscv::<Sv57>::USER_END, 1 << 56);
}

/// Rules: SWP-01, SWP-02, SWP-05, SWP-06.
#[test]
fn nonpresent_kinds() {
    for level in [Level::Pte, Level::Pmd] {
        laws::nonpresent::<RiscvEntry<Sv39>>(level);
    }
}

fn every_mode(raw: u64) {
    fn check<M: Mode>(raw: u64) {
        for level in M::LEVELS {
            laws::entry::<Riscv<M>>(RiscvEntry::from_bits(raw), *level);
            laws::explain::<Riscv<M>>(raw, *level);
        }
    }
    check::<Sv39>(raw);
    check::<Sv48>(raw);
    check::<Sv57>(raw);
}

/// Every value with at most two bits set, and the complements.
#[test]
fn values_with_few_bits() {
    for i in 0..64 {
        for j in 0..64 {
            let raw = 1 << i | 1 << j;
            for raw in [0, raw, !raw, raw | 0x17, raw | 0x22, !0] {
                every_mode(raw);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(4096))]

    /// No value makes an operation panic, and each obeys the laws.
    #[test]
    fn any_raw_value(raw: u64, mask: u64) {
        for raw in [raw, raw & mask, raw | 1, raw & !1 | 1 << 5, raw & !0xe | 1] {
            every_mode(raw);
        }
    }

    #[test]
    fn sampled_leaves(pfn in 0..1u64 << 44, seed: u16) {
        fn check<M: Mode>(pfn: u64, seed: u16) {
            for level in Riscv::<M>::LEAF_LEVELS {
                let order = Riscv::<M>::order(*level);
                let e = laws::sample::<Riscv<M>>(Pfn::new(pfn >> order << order), seed, *level);
                laws::entry::<Riscv<M>>(e, *level);
            }
            laws::made_without_fault::<Riscv<M>>(Pfn::new(pfn), seed);
        }
        check::<Sv39>(pfn, seed);
        check::<Sv48>(pfn, seed);
        check::<Sv57>(pfn, seed);
    }

    /// A batch equals the fold of its single steps, on blocks and plain entries.
    ///
    /// Rules: BATCH-01, BATCH-05, BATCH-06, BATCH-14, BATCH-18, ACC-05, ACC-07, ACC-11,
    /// ACC-12, ACC-17, CONT-08, CONT-17.
    #[test]
    fn tables(
        seed: u16,
        picks in prop::collection::vec(any::<u32>(), 1..40),
        index: usize,
        n: usize,
    ) {
        laws::table::<Riscv<Sv39>>(seed, &picks, index, n);
    }
}
