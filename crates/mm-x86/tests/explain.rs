//! Raw values in words: those of real kernels, and those that no kernel would write.
#![cfg(not(loom))]

use mm_arch::explain::{Explain, Facts, Fault, Meaning};
use mm_arch::{Level, Markers, NonPresent, Pfn, SwapBits, SwapSlot, TableFrame};
use mm_x86::{X86_64, X86_64NoShstk, X86Pae, bits};

const PTE: Level = Level::Pte;
const PMD: Level = Level::Pmd;

fn faults<A: Explain>(raw: u64, level: Level) -> Vec<Fault> {
    let mut all = Vec::new();
    A::faults(raw, level, &mut |fault| all.push(fault));
    all
}
fn words(raw: u64) -> Vec<&'static str> {
    X86_64::explain(raw, PTE).facts.words().collect()
}

/// Entries of a shadow stack and of the page beside it, as Linux 6.12 and 7.3 wrote
/// them (the zero page read first, stores, soft-dirty cleared, fork, copy, reuse).
///
/// Rules: SHSTK-01, SHSTK-02, SHSTK-04, PTE-14.
#[test]
fn shadow_stacks_of_real_kernels() {
    let pushed = &["readable", "shadow stack", "accessed", "dirty", "soft-dirty"][..];
    let cleared = &["readable", "accessed", "dirty"][..];
    let forked = &["readable", "accessed", "dirty", "soft-dirty"][..];
    let plain = &["readable", "writable", "accessed", "dirty", "soft-dirty"][..];
    let zero = &["readable", "accessed", "special"][..];
    for (raw, pfn, expected) in [
        (0x8000_0000_0373_1225, 0x3731, zero),
        (0x8400_0000_02bf_1865, 0x2bf1, pushed),
        (0x8400_0000_02bf_0865, 0x2bf0, pushed),
        (0x8400_0000_02bf_1025, 0x2bf1, cleared),
        (0x8400_0000_02bf_0025, 0x2bf0, cleared),
        (0x8400_0000_02bf_1825, 0x2bf1, forked),
        (0x8400_0000_02be_9865, 0x2be9, pushed),
        (0x8000_0000_03ce_0867, 0x3ce0, plain),
        (0x8400_0000_03ce_0025, 0x3ce0, cleared),
        (0x8000_0000_0224_d225, 0x224d, zero),
        (0x8400_0000_031f_0865, 0x31f0, pushed),
        (0x8400_0000_031e_f025, 0x31ef, cleared),
        (0x8400_0000_031f_0825, 0x31f0, forked),
        (0x8400_0000_031e_7865, 0x31e7, pushed),
        (0x8000_0000_0449_0867, 0x4490, plain),
    ] {
        let x = X86_64::explain(raw, PTE);
        assert_eq!(x.meaning, Meaning::Leaf(Pfn::new(pfn)), "{raw:#x}");
        assert_eq!(words(raw), expected, "{raw:#x}");
        assert_eq!(faults::<X86_64>(raw, PTE), [], "{raw:#x}");
    }
    assert_eq!(X86_64::explain(0, PTE).meaning, Meaning::Empty);
}

/// Rules: SWP-01, SWP-03, SWP-06, PTE-07, PTE-13, PTE-20.
#[test]
fn what_values_stand_for() {
    let none = SwapBits::default();
    let swap = |device, offset| NonPresent::Swap(SwapSlot { device, offset });
    let soft = SwapBits { soft_dirty: true, ..none };
    for (raw, level, meaning) in [
        (0x777_067, PMD, Meaning::Table(TableFrame::new(Pfn::new(0x777)))),
        (0x1fff_ffff_ffdf_fe00, PTE, Meaning::NonPresent(swap(3, 0x1000), none)),
        (0x1fff_ffff_ffdf_fe02, PTE, Meaning::NonPresent(swap(3, 0x1000), soft)),
        (0xffff_ffff_ffff_f600, PTE, Meaning::NonPresent(NonPresent::Marker(Markers::GUARD), none)),
        (0x000f_ffff_edcb_a120, PTE, Meaning::Leaf(Pfn::new(0x12345))),
        (0x000f_ffff_eda0_00a4, PMD, Meaning::Leaf(Pfn::new(0x12400))),
    ] {
        assert_eq!(X86_64::explain(raw, level).meaning, meaning, "{raw:#x}");
        assert_eq!(faults::<X86_64>(raw, level), [], "{raw:#x}");
    }
    assert_eq!(words(0x000f_ffff_edcb_a120), ["inaccessible", "accessed"]);
    let split = X86_64::explain(0x000f_ffff_eda0_00a4, PMD);
    assert_eq!(split.facts, Facts::YOUNG, "under split: present, nothing goes through");
}

/// Each by the bits that show it.
///
/// Rules: PTE-05, PTE-06, SHSTK-01, PAE-03, PAE-05, PAE-13.
#[test]
fn values_that_no_kernel_writes() {
    type Check = fn(u64, Level) -> Vec<Fault>;
    let (long, plain, pae): (Check, Check, Check) =
        (faults::<X86_64>, faults::<X86_64NoShstk>, faults::<X86Pae>);
    let leaf = 0x8000_0000_1234_5025;
    for (check, raw, level, bits, what) in [
        (plain, leaf | bits::DIRTY, PTE, bits::DIRTY, "shadow stack"),
        (long, leaf & !bits::USER, PTE, bits::USER, "user mode"),
        (long, leaf | bits::GLOBAL, PTE, bits::GLOBAL, "global"),
        (long, leaf | 1 << 55, PTE, 1 << 55, "no kernel uses"),
        (long, leaf | 0x402, PTE, 0x402, "userfaultfd"),
        (long, leaf | 2 | bits::SAVED_DIRTY, PTE, 2 | bits::SAVED_DIRTY, "SavedDirty beside RW"),
        (long, 0x8000_0000_1220_20a5, PMD, 0x2000, "below the frame"),
        (long, 0x000f_ffff_edcb_a122, PTE, 2, "allows nothing"),
        (long, 0x60, PTE, 0x60, "without a translation"),
        (long, 0x80, PTE, 0x80, "mark of presence"),
        (long, 0x02, PTE, 0x02, "flags of nothing"),
        (long, 0x777_065, PMD, 2, "missing"),
        (long, 0x777_167, PMD, 0x100, "no pointer to a table"),
        (long, 0x1fff_ffff_ffdf_fe10, PTE, 0x10, "does not use"),
        (long, 0xffff_ffff_ffff_fe00, PTE, 0x07ff_ffff_ffff_fe00, "marker that means nothing"),
        (long, 0x1fff_ffff_ffdf_fe00, PMD, 0x1f << 59, "by its PTEs"),
        (long, 0x1fff_ffff_ffdf_fe00, Level::Pud, 0x1fff_ffff_ffdf_fe00, "of this level"),
        (pae, leaf | 1 << 58, PTE, 1 << 58, "reserved bits: an access faults"),
        (pae, 0x8000_0100_1234_5025, PTE, bits::FRAME, "beyond the memory"),
        (pae, 0x777_003, Level::Pud, 2, "refuses such a root"),
        (pae, 0x07ff_fff0_0000_0000, PTE, 0x07ff_ffff_ffff_fe00, "never hands out"),
    ] {
        let all = check(raw, level);
        let found = all.iter().any(|f| f.bits == bits && f.what.contains(what));
        assert!(found && all.len() == 1, "{raw:#x} at {level:?}: {all:x?}");
    }
}

/// The names of bits, and the numbers in them.
///
/// Rules: PTE-02, PTE-03.
#[test]
fn fields_have_names_and_numbers() {
    let value = |name: &str, raw, level| {
        let field = X86_64::fields(raw, level).iter().find(|f| f.name == name);
        field.unwrap_or_else(|| panic!("no {name}")).value(raw)
    };
    let leaf = 0xa800_0000_1234_5865;
    assert_eq!(value("PFN", leaf, PTE), 0x12345);
    assert_eq!(value("PKEY", leaf, PTE), 5);
    assert_eq!([value("SOFT_DIRTY", leaf, PTE), value("SAVED_DIRTY", leaf, PTE)], [1, 0]);
    assert_eq!(value("PAT", 0x1220_10a5, PMD), 1);
    assert_eq!(value("TYPE", 0x1fff_ffff_ffdf_fe00, PTE), 3);
}
