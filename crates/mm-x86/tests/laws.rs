//! The laws that every format obeys, on all formats of x86.
#![cfg(not(loom))]

use mm_arch::explain::Explain;
use mm_arch::model::laws;
use mm_arch::{Level, Pfn};
use mm_x86::{
    LongPaging, Mode, PaeEntry, PaePaging, Paging, X86_64, X86_64La57, X86_64NoShstk, X86Entry,
    X86Pae, X86PaeNoNx, X86Value,
};
use proptest::prelude::*;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Rules: PTE-01, ACC-23.
#[test]
fn geometry() {
    laws::geometry::<X86_64>();
    laws::geometry::<X86_64La57>();
    laws::geometry::<X86Pae>();
}

/// Rules: SWP-01, SWP-02, SWP-05, SWP-06.
#[test]
fn nonpresent_kinds() {
    laws::nonpresent::<X86Entry>(Level::Pte);
    laws::nonpresent::<X86Entry>(Level::Pmd);
    // No PMD of a 32-bit kernel holds one.
    laws::nonpresent::<PaeEntry>(Level::Pte);
}

/// The entry laws of every format for one value at every level.
fn entry_laws(raw: u64) {
    fn check<M: Mode>(raw: u64) {
        for level in M::LEVELS {
            laws::entry::<Paging<M>>(X86Value::from_bits(raw), *level);
            laws::explain::<Paging<M>>(raw, *level);
        }
    }
    check::<LongPaging<true, false>>(raw);
    check::<LongPaging<false, false>>(raw);
    check::<LongPaging<true, true>>(raw);
    check::<PaePaging<true>>(raw);
    check::<PaePaging<false>>(raw);
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
                entry_laws(raw);
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
            entry_laws(raw);
        }
    }

    #[test]
    fn sampled_leaves(pfn in 0..1u64 << 40, seed: u16) {
        fn check<A: Explain>(pfn: u64, seed: u16) {
            for level in A::LEAF_LEVELS {
                let pfn = Pfn::new(pfn >> A::order(*level) << A::order(*level));
                laws::entry::<A>(laws::sample::<A>(pfn, seed, *level), *level);
            }
            laws::made_without_fault::<A>(Pfn::new(pfn), seed);
        }
        check::<X86_64>(pfn, seed);
        check::<X86_64NoShstk>(pfn, seed);
        check::<X86Pae>(pfn & 0xff_ffff, seed);
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
        laws::table::<X86Pae>(seed, &picks, index, n);
        laws::table::<X86PaeNoNx>(seed, &picks, index, n);
    }
}
