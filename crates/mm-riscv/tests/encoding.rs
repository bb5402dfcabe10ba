//! The encoding, against the privileged architecture.
#![cfg(not(loom))]

use mm_arch::cont::ContEntry;
use mm_arch::model::NoTlb;
use mm_arch::{
    AccessKind, Arch, At, Entry, Held, Level, Pfn, Pinned, Protection, Rights, SpaceId, SpaceTlb,
    TableFrame, VirtAddr,
};
use mm_riscv::{Riscv, RiscvEntry, Sv39, Sv48, Sv57, bits};

type A = Riscv<Sv39>;
type E = RiscvEntry<Sv39>;
const PTE: Level = Level::Pte;

fn prot(rights: Rights, writable_at_once: bool) -> <E as Entry>::Prot {
    A::prot(Protection { rights, writable_at_once, pkey: 0 })
}
const RW: Rights = Rights::READ.union(Rights::WRITE);

#[test]
fn geometry() {
    let shifts = |levels: &[Level], shift: fn(Level) -> u32| {
        levels.iter().map(|l| shift(*l)).collect::<Vec<_>>()
    };
    assert_eq!(shifts(A::LEVELS, A::shift), [30, 21, 12]);
    assert_eq!(shifts(Riscv::<Sv48>::LEVELS, Riscv::<Sv48>::shift), [39, 30, 21, 12]);
    assert_eq!(shifts(Riscv::<Sv57>::LEVELS, Riscv::<Sv57>::shift), [48, 39, 30, 21, 12]);
}

#[test]
fn templates() {
    let raw = |rights, now| prot(rights, now).bits();
    assert_eq!(raw(Rights::READ, false), 0x53);
    assert_eq!(raw(RW, false), 0x53);
    assert_eq!(raw(RW, true), 0x57);
    assert_eq!(raw(Rights::READ | Rights::EXEC, false), 0x5b);
    assert_eq!(raw(Rights::EXEC, false), 0x59);
    // W without R is reserved.
    assert_eq!(raw(Rights::WRITE, true), 0x57);
    assert_eq!(raw(Rights::empty(), false), 0x62);
}

#[test]
fn memory_has_rights_and_tables_have_none() {
    let e = E::leaf(Pfn::new(0x200), prot(RW, true), Level::Pmd);
    assert_eq!(e.bits(), 0x0008_0057);
    assert!(e.is_leaf(Level::Pmd) && e.as_table(Level::Pmd).is_none());
    let t = E::table(TableFrame::new(Pfn::new(0x200)), Level::Pmd);
    assert_eq!(t.bits(), 0x0008_0001);
    assert!(!t.is_leaf(Level::Pmd) && t.as_table(Level::Pmd).is_some());
    // At the last level it is nothing.
    assert!(t.is_present(PTE) && t.as_table(PTE).is_none());
    let split = e.mkinvalid(Level::Pmd);
    assert!(split.is_leaf(Level::Pmd) && !split.is_protnone(Level::Pmd));
    assert!(!split.permits(AccessKind::Read, Level::Pmd));
    let none = e.modify(prot(Rights::empty(), false), Level::Pmd);
    assert!(none.is_protnone(Level::Pmd) && none.mkinvalid(Level::Pmd).is_leaf(Level::Pmd));
}

/// The sixteen words of a block are equal, and each value has its own frame.
///
/// Rules: CONT-02, CONT-09, CONT-11, CONT-16.
#[test]
fn a_block_is_one_word() {
    let t = A::new_table();
    A::fill(&t, 16, 20, E::leaf(Pfn::new(0x3_0010), prot(RW, true), PTE).mkold());
    let word = |i: usize| A::read_upper::<Held>(&t, i).bits();
    for i in 16..32 {
        assert_eq!(word(i), bits::NAPOT | 0x3_0018 << 10 | 0x17, "{i}");
        for e in [A::read::<Held>(&t, i), A::read::<Pinned>(&t, i)] {
            assert_eq!((e.pfn(PTE), e.is_cont()), (Pfn::new(0x3_0000 + i as u64), true));
        }
        let e: E = A::read::<Held>(&t, i);
        assert_eq!(mm_arch::cont::hint(i, e, A::BLOCKS), 32 - i);
    }
    assert!((32..36).all(|i| word(i) == (0x3_0000 + i as u64) << 10 | 0x17));
    // A store through one is dirt of all.
    assert!(A::mmu_mark(&t, 27, AccessKind::Write, PTE));
    assert_eq!(word(27), bits::NAPOT | 0x3_0018 << 10 | 0xd7);
    assert!(A::read::<Pinned>(&t, 17).is_dirty() && !A::read::<Held>(&t, 33).is_dirty());
    // A change of one takes the block apart, with every frame in its place again.
    let at = At { va: VirtAddr::new(20 << 12), index: 20 };
    A::wrprotect(&t, at, 1, &SpaceTlb::new(&NoTlb, SpaceId(1)));
    for i in 16..32 {
        let flags = if i == 20 { 0xd3 } else { 0xd7 };
        assert_eq!(word(i), (0x3_0000 + i as u64) << 10 | flags, "{i}");
    }
}

/// Svadu: hardware marks accessed and dirty, where it lets the access through. Svpbmt: a
/// memory type stays what it is.
#[test]
fn hardware_marks_and_memory_types() {
    let t = A::new_table();
    let typed = E::from_bits(E::leaf(Pfn::new(7), prot(RW, true), PTE).mkold().bits() | 1 << 61);
    A::fill(&t, 0, 1, typed);
    A::fill(&t, 1, 1, typed.wrprotect());
    let word = |i: usize| A::read_upper::<Held>(&t, i).bits();
    let added = |i: usize, kind| {
        let before = word(i);
        assert_eq!(A::mmu_mark(&t, i, kind, PTE), before != word(i));
        word(i) ^ before
    };
    assert_eq!(added(1, AccessKind::Write), 0, "a store is refused");
    assert_eq!(added(1, AccessKind::Read), bits::ACCESSED);
    assert_eq!(added(0, AccessKind::Exec), 0);
    assert_eq!(added(0, AccessKind::Write), bits::ACCESSED | bits::DIRTY);
    let none = E::from_bits(word(0)).modify(prot(Rights::empty(), false), PTE);
    for e in [none, none.modify(prot(RW, false), PTE), typed.advance(3, PTE)] {
        assert_eq!(e.bits() & bits::MEMORY_TYPE, 1 << 61, "{e:?}");
    }
}

/// A block of a size that does not exist is no block, and is told so.
#[test]
fn reserved_encodings_have_faults() {
    use mm_arch::explain::Explain;
    let faults = |raw: u64, level| {
        let mut all = Vec::new();
        A::faults(raw, level, &mut |f| all.push(f.what));
        all
    };
    assert_eq!(faults(bits::NAPOT | 8 << 10 | 0x57, PTE), <[&str; 0]>::default());
    assert_eq!(faults(bits::NAPOT | 4 << 10 | 0x57, PTE), ["no block is of this size"]);
    assert_eq!(faults(0x55, PTE), ["writable and not readable: reserved"]);
    assert_eq!(faults(0x11, Level::Pmd), ["reserved bits: a walk faults"]);
    assert_eq!(faults(0x01, PTE), ["a pointer to a table below the last level"]);
}
