//! Entries read out of the memory of running kernels: what they mean, and the operations
//! that lead from one step to the next.
#![cfg(not(loom))]

use mm_arch::cont::ContEntry;
use mm_arch::explain::Explain;
use mm_arch::model::NoTlb;
use mm_arch::{
    AccessKind, Arch, At, Entry, Held, Level, Live, Pfn, Pinned, Protection, Rights, SpaceId,
    SpaceTlb, VirtAddr, WriteKind,
};
use mm_arm64::{Arm64, Arm64Entry, Granule4K, bits};

type A = Arm64<Granule4K>;
type E = Arm64Entry<Granule4K>;
type Table = <A as Arch>::Table;
const PTE: Level = Level::Pte;

const NAMES: [(&str, u64); 12] = [
    ("V", bits::VALID),
    ("T", bits::TYPE),
    ("EL0", bits::USER),
    ("RO", bits::READ_ONLY),
    ("AF", bits::ACCESSED),
    ("nG", bits::NOT_GLOBAL),
    ("DBM", bits::WRITE),
    ("CONT", bits::CONT),
    ("PXN", bits::PRIVILEGED_NO_EXECUTE),
    ("UXN", bits::USER_NO_EXECUTE),
    ("SWDIRTY", bits::DIRTY),
    ("UFFD", bits::UFFD_WP),
];

/// The bits of a comma-separated list of names. All these kernels share memory between
/// CPUs, which the dumps do not name.
fn raw_of(names: &str) -> u64 {
    let bit = |name: &str| {
        let name = name.split('/').next().expect("a name");
        NAMES.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}")).1
    };
    let named = names.split(',').filter(|n| !n.is_empty()).fold(0, |raw, n| raw | bit(n));
    if named == 0 { 0 } else { named | bits::INNER_SHAREABLE }
}

/// Every word of a set of scenarios: its names, its meaning, and no fault in it.
///
/// Rules: A64-02, A64-04, A64-07, A64-08.
#[test]
fn words_of_a_real_kernel() {
    let mut nr = 0;
    for line in include_str!("data/linux-7.3.4-words.txt").lines().filter(|l| !l.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let [level, word, names] = words[..] else { panic!("{line}") };
        let level = if level == "PMD" { Level::Pmd } else { PTE };
        let raw = u64::from_str_radix(word, 16).expect("hexadecimal");
        assert_eq!(raw_of(names), raw, "{line}");
        let e = E::from_bits(raw).advance(0x5b_b300 & !0x1ff, level);
        assert!(e.is_leaf(level) && e.pfn(level) == Pfn::new(0x5b_b300 & !0x1ff), "{line}");
        assert_eq!(e.is_protnone(level), !names.starts_with("V,"), "{line}");
        assert_eq!(e.is_writable(level), names.contains("DBM"), "{line}");
        assert_eq!(e.permits(AccessKind::Write, level), names.contains("DBM"), "{line}");
        assert_eq!(e.permits(AccessKind::Read, level), names.starts_with("V,"), "{line}");
        assert_eq!(e.is_young(), names.contains("AF"), "{line}");
        assert_eq!(e.is_dirty(), names.contains("SWDIRTY"), "{line}");
        assert_eq!(e.is_uffd_wp(), names.contains("UFFD"), "{line}");
        assert_eq!(e.is_cont(), names.contains("CONT"), "{line}");
        A::faults(e.bits(), level, &mut |fault| panic!("{line}: {fault:?}"));
        nr += 1;
    }
    assert_eq!(nr, 14);
}

/// One step of a recording: its name and the sixteen entries of the folio.
struct Step {
    name: String,
    entries: Vec<u64>,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let Some(run) = line.strip_prefix("  [") else {
            steps.push(Step { name: line.into(), entries: Vec::new() });
            continue;
        };
        let (range, what) = run.split_once("] ").expect("a run");
        let (first, last) = range.split_once("..").expect("a range");
        let (pfn, names) = what.split_once(':').expect("frame and names");
        let pfn = u64::from_str_radix(pfn, 16).expect("hexadecimal");
        let nr = last.parse::<u64>().expect("last") + 1 - first.parse::<u64>().expect("first");
        let raw = raw_of(names);
        let step = steps.last_mut().expect("a name before the runs");
        step.entries.extend(
            (0..nr).map(
                |k| {
                    if raw == 0 { 0 } else { E::from_bits(raw).advance(pfn + k, PTE).bits() }
                },
            ),
        );
    }
    steps
}

fn raw(table: &Table) -> Vec<u64> {
    (0..16).map(|i| A::read_upper::<Held>(table, i).bits()).collect()
}

/// A table with these entries, by the format's own operations.
fn table(entries: &[u64]) -> Table {
    let (t, tlb) = (A::new_table(), SpaceTlb::new(&NoTlb, SpaceId(1)));
    let head = E::from_bits(entries[0]);
    if head.is_cont() {
        A::fill(&t, 0, 16, head);
    } else {
        for (i, raw) in entries.iter().enumerate() {
            A::set(&t, at(i), E::from_bits(*raw), &tlb);
        }
    }
    assert_eq!(raw(&t), entries);
    t
}
fn at(index: usize) -> At {
    At { va: VirtAddr::new(0xffff_b2a0_0000).add_units(index as u64, 12), index }
}

fn replay(text: &str) {
    let steps = steps(text);
    let step = |name: &str| {
        let step = steps.iter().find(|s| s.name == name).expect("recorded");
        assert_eq!(step.entries.len(), 16, "{name}");
        &step.entries
    };
    let tlb = SpaceTlb::new(&NoTlb, SpaceId(1));
    let rw = A::prot(Protection::private_read_write());
    let pfn = E::from_bits(step("fresh")[0]).pfn(PTE);

    // A first touch writes the folio into all sixteen entries.
    let t = A::new_table();
    let new = E::leaf(pfn, rw, PTE).mkdirty().mkwrite(WriteKind::Normal);
    A::fill(&t, 0, 16, new);
    assert_eq!(&raw(&t), step("fresh"));
    // More stores change nothing: the entries are dirty by both bits.
    for i in 0..16 {
        assert!(A::mmu_mark(&t, i, AccessKind::Write, PTE));
    }
    assert_eq!(&raw(&t), step("all-written"));
    // There is no soft-dirty to clear.
    assert_eq!(step("soft-clean"), step("all-written"));
    assert_eq!(step("soft-redirty5"), step("all-written"));

    // Fork protects the block in place.
    let t = table(step("soft-redirty5"));
    A::wrprotect(&t, at(0), 16, &tlb);
    assert_eq!(&raw(&t), step("forked"));

    // A copied page is taken out, and the block falls apart.
    let t = table(step("forked"));
    A::take::<Live, _>(&t, at(3), 1, &tlb, |_, old| assert!(old.is_dirty()));
    let copy = E::from_bits(step("cow3")[3]).pfn(PTE);
    A::set(&t, at(3), E::leaf(copy, rw, PTE).mkdirty().mkwrite(WriteKind::Normal), &tlb);
    assert_eq!(&raw(&t), step("cow3"));

    // Page 7 gets its permission back where it lies (one kernel), or a copy (the other).
    let t = table(step("cow3"));
    let reused = E::from_bits(step("reuse7")[7]);
    let old = A::read::<Held>(&t, 7);
    if reused.pfn(PTE) == old.pfn(PTE) {
        let wanted = old.mkyoung().mkdirty().mkwrite(WriteKind::Normal);
        assert!(A::set_access_flags(&t, at(7), wanted, &tlb));
    } else {
        A::take::<Live, _>(&t, at(7), 1, &tlb, |_, _| ());
        let copy = E::leaf(reused.pfn(PTE), rw, PTE);
        A::set(&t, at(7), copy.mkdirty().mkwrite(WriteKind::Normal), &tlb);
    }
    assert_eq!(&raw(&t), step("reuse7"));

    // One page zapped leaves a hole (the step before shows the other process's table).
    let t = table(step("reuse7"));
    A::take::<Live, _>(&t, at(1), 1, &tlb, |_, _| ());
    assert_eq!(&raw(&t), step("zap1"));

    // Whatever is read, with the lock or without, is what the kernel wrote.
    for name in ["fresh", "forked", "cow3", "reuse7", "mprotect-ro", "zap1"] {
        let t = table(step(name));
        for (i, raw) in step(name).iter().enumerate() {
            assert_eq!(A::read::<Held>(&t, i).bits(), *raw, "{name} {i}");
            assert_eq!(A::read::<Pinned>(&t, i).bits(), *raw, "{name} {i}");
        }
    }
}

/// Rules: A64-04, A64-05, CONT-02, CONT-07, CONT-14, CONT-15, CONT-18.
#[test]
fn a_recording_of_linux_6_12() {
    replay(include_str!("data/linux-6.12.95.txt"));
}

/// Rules: A64-04, A64-05, CONT-02, CONT-07, CONT-14, CONT-15, CONT-18.
#[test]
fn a_recording_of_linux_7_3() {
    replay(include_str!("data/linux-7.3.4.txt"));
}

/// What folds and what unfolds, step by step as a real kernel did it.
///
/// Rules: CONT-02, CONT-03, CONT-07, CONT-08, CONT-14, A64-06.
#[test]
fn what_folds_and_what_does_not() {
    let tlb = SpaceTlb::new(&NoTlb, SpaceId(1));
    let rights = |rights, now| A::prot(Protection { rights, writable_at_once: now, pkey: 0 });
    let (r, rw) = (rights(Rights::READ, false), rights(Rights::READ | Rights::WRITE, true));
    let none = rights(Rights::empty(), false);
    // As `mprotect` of `n` entries does it: take, change, write back as a run.
    let protect = |t: &Table, i: usize, n: usize, prot| {
        let mut head = E::NONE;
        A::take::<Live, _>(t, at(i), n, &tlb, |k, e| {
            if k == 0 {
                head = e;
            }
        });
        A::fill(t, i, n, head.modify(prot, PTE));
    };
    let word =
        |t: &Table, i| A::read_upper::<Held>(t, i).advance(0, PTE).bits() & !0xffff_ffff_f000;
    let all = |t: &Table, want: u64| (0..16).all(|i| word(t, i) == want);
    const PLAIN: u64 = 0x00e8_0000_0000_0f43;
    const FOLDED: u64 = 0x00f8_0000_0000_0f43;

    let t = A::new_table();
    A::fill(&t, 0, 16, E::leaf(Pfn::new(0x5b300), rw, PTE).mkdirty());
    assert!(all(&t, FOLDED));
    protect(&t, 5, 1, r);
    for i in 0..16 {
        assert_eq!(word(&t, i), if i == 5 { 0x00e0_0000_0000_0fc3 } else { PLAIN }, "{i}");
    }
    protect(&t, 5, 1, rw);
    assert!(all(&t, PLAIN), "one entry put back does not fold");
    protect(&t, 0, 16, r);
    assert!(all(&t, 0x00f0_0000_0000_0fc3));
    protect(&t, 0, 16, rw);
    assert!(all(&t, FOLDED));
    protect(&t, 0, 16, none);
    assert!(all(&t, 0x00e0_0000_0000_0f82), "nothing inaccessible folds");
    protect(&t, 0, 16, rw);
    assert!(all(&t, FOLDED));

    // Fork: the parent in place, the child's by a new write, old.
    A::wrprotect(&t, at(0), 16, &tlb);
    assert!(all(&t, 0x00f0_0000_0000_0fc3));
    let child = A::new_table();
    A::fill(&child, 0, 16, A::read::<Held>(&t, 0).mkold());
    assert!(all(&child, 0x00f0_0000_0000_0bc3));
    // Reuse page by page, the last one included, folds nothing.
    for i in 0..16 {
        let wanted = A::read::<Held>(&t, i).mkyoung().mkdirty().mkwrite(WriteKind::Normal);
        assert!(A::set_access_flags(&t, at(i), wanted, &tlb));
    }
    assert!(all(&t, PLAIN));
    // A folio at an unaligned address has no block.
    let t = A::new_table();
    A::fill(&t, 3, 16, E::leaf(Pfn::new(0x5b300), rw, PTE).mkdirty());
    assert!((3..19).all(|i| word(&t, i) == PLAIN));
}
