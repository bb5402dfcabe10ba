//! The encoding, bit by bit, against the architecture and against real kernels.
#![cfg(not(loom))]

use mm_arch::{
    AccessKind, Arch, EncodeError, Entry, Level, Markers, NonPresent, Pfn, PhysAddr, Protection,
    Rights, SwapBits, SwapSlot, TableFrame, TypeOffset, VirtAddr, WriteKind,
};
use mm_arm64::{
    Arm64, Arm64Entry, Granule, Granule4K, Granule4KLpa2, Granule16K, Granule64K, bits,
};

type A = Arm64<Granule4K>;
type E = Arm64Entry<Granule4K>;
const PTE: Level = Level::Pte;
const PMD: Level = Level::Pmd;

fn prot(rights: Rights, writable_at_once: bool) -> Protection {
    Protection { rights, writable_at_once, pkey: 0 }
}
const RW: Rights = Rights::READ.union(Rights::WRITE);
const RX: Rights = Rights::READ.union(Rights::EXEC);

/// What maps how much, and how many entries make a block.
///
/// Rules: A64-01.
#[test]
fn geometry_of_each_granule() {
    fn shifts<G: Granule>() -> Vec<u32> {
        G::LEVELS.iter().rev().map(|l| Arm64::<G>::shift(*l)).collect()
    }
    assert_eq!(shifts::<Granule4K>(), [12, 21, 30, 39]);
    assert_eq!(shifts::<Granule4KLpa2>(), [12, 21, 30, 39, 48]);
    assert_eq!(shifts::<Granule16K>(), [14, 25, 36, 47]);
    assert_eq!(shifts::<Granule64K>(), [16, 29, 42]);
    fn rest<G: Granule>() -> (usize, usize, u64, u64) {
        type F<G> = Arm64<G>;
        let bytes = |b: mm_arch::cont::Blocks| (b.nr as u64) << b.shift;
        let (ptes, pmds) = (F::<G>::PTE_BLOCKS, F::<G>::PMD_BLOCKS);
        assert_eq!(F::<G>::CONT, ptes.nr);
        assert_eq!((pmds.shift, pmds.order), (F::<G>::shift(PMD), F::<G>::order(PMD)));
        (F::<G>::nr_entries(PTE), ptes.nr, bytes(ptes), bytes(pmds))
    }
    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;
    assert_eq!(rest::<Granule4K>(), (512, 16, 64 * K, 32 * M));
    assert_eq!(rest::<Granule16K>(), (2048, 128, 2 * M, 1024 * M));
    assert_eq!(rest::<Granule64K>(), (8192, 32, 2 * M, 16 * 1024 * M));
    // Levels by the manual's formula.
    for (levels, va_bits, page_shift) in [
        (Granule4K::LEVELS, Granule4K::VA_BITS, 12),
        (Granule4KLpa2::LEVELS, Granule4KLpa2::VA_BITS, 12),
        (Granule16K::LEVELS, Granule16K::VA_BITS, 14),
        (Granule64K::LEVELS, Granule64K::VA_BITS, 16),
    ] {
        assert_eq!(levels.len() as u32, (va_bits - 4) / (page_shift - 3));
    }
    let va = VirtAddr::new(0xffff_b2a0_0000);
    assert_eq!(A::LEVELS.iter().map(|l| A::index(va, *l)).collect::<Vec<_>>(), [511, 510, 405, 0]);
}

/// One bit at a time: which predicate looks at it.
///
/// Rules: A64-02, A64-07, A64-08.
#[test]
fn each_bit_is_looked_at_by_whom_it_concerns() {
    let facts = |e: E| {
        [
            e.is_present(PTE),
            e.is_protnone(PTE),
            e.is_writable(PTE),
            e.permits(AccessKind::Read, PTE),
            e.permits(AccessKind::Write, PTE),
            e.permits(AccessKind::Exec, PTE),
            e.is_young(),
            e.is_dirty(),
            e.is_uffd_wp(),
            e.is_special(),
        ]
    };
    let names = [
        "present", "protnone", "writable", "read", "write", "exec", "young", "dirty", "uffd",
        "special",
    ];
    let base = E::from_bits(0x0068_0000_1234_0fc3);
    for bit in 0..64 {
        let other = E::from_bits(base.bits() ^ 1 << bit);
        let changed: Vec<&str> = (0..names.len())
            .filter(|i| facts(base)[*i] != facts(other)[*i])
            .map(|i| names[i])
            .collect();
        let want: &[&str] = match bit {
            // Bit 11 stays: present, for software.
            0 => &["read", "write"],
            6 => &["read", "write"],
            7 => &["dirty"],
            10 => &["young"],
            51 => &["writable", "write"],
            54 => &["exec"],
            55 => &["dirty"],
            56 => &["special"],
            58 => &["uffd"],
            _ => &[],
        };
        assert_eq!(changed, want, "bit {bit}");
        assert_eq!(base.pfn(PTE) != other.pfn(PTE), (12..48).contains(&bit), "bit {bit}");
    }
    let empty = E::from_bits(0);
    assert!(empty.is_none() && !empty.is_present(PTE));
}

/// Templates of user mappings: vector V8.
///
/// Rules: A64-02, A64-07, A64-08.
#[test]
fn templates() {
    let raw = |p| A::prot(p).bits();
    assert_eq!(raw(prot(Rights::READ, false)), 0x0060_0000_0000_0fc3);
    assert_eq!(raw(prot(RW, false)), 0x0060_0000_0000_0fc3);
    assert_eq!(raw(prot(RW, true)), 0x0068_0000_0000_0fc3);
    assert_eq!(raw(prot(RX, false)), 0x0020_0000_0000_0fc3);
    assert_eq!(raw(prot(Rights::empty(), false)), 0x0060_0000_0000_0f82);
    // With LPA2 the place of SH belongs to the address.
    let lpa2 = Arm64::<Granule4KLpa2>::prot(prot(RW, true)).bits();
    assert_eq!(lpa2, 0x0068_0000_0000_0cc3);
    let key = A::prot(Protection { pkey: 5, ..prot(RW, false) }).bits();
    assert_eq!(key, 0x5060_0000_0000_0fc3);
    // Only the right to execute: EL0 cannot read it.
    let exec = E::leaf(Pfn::new(0), A::prot(prot(Rights::EXEC, false)), PTE);
    assert!(exec.permits(AccessKind::Exec, PTE) && !exec.permits(AccessKind::Read, PTE));
}

/// A clean writable page takes a store: `AP[2]` is not a permission there.
///
/// Rules: A64-04, A64-08.
#[test]
fn a_clean_page_may_be_written() {
    let e = E::leaf(Pfn::new(1), A::prot(prot(RW, true)), PTE);
    assert!(e.permits(AccessKind::Write, PTE) && !e.is_dirty());
    assert!(e.bits() & bits::READ_ONLY != 0);
    let stored = E::from_bits(e.bits() & !bits::READ_ONLY);
    assert!(stored.is_dirty() && stored.is_writable(PTE));
    // Without dirt in the software bit: only the value of two bits says it.
    assert_eq!(stored.bits() & bits::DIRTY, 0);
}

/// The dirt of a store survives what takes the write permission away.
///
/// Rules: A64-05, MM-048.
#[test]
fn write_protection_keeps_what_hardware_said() {
    let stored = E::from_bits(bits::VALID | bits::ACCESSED | bits::WRITE);
    let protected = stored.wrprotect();
    assert_eq!(protected.bits(), bits::VALID | bits::ACCESSED | bits::READ_ONLY | bits::DIRTY);
    assert!(protected.is_dirty() && !protected.is_writable(PTE));
    let clean = protected.mkclean();
    assert_eq!(clean.bits() & (bits::DIRTY | bits::READ_ONLY), bits::READ_ONLY);
    assert_eq!(protected.mkwrite(WriteKind::Normal).bits() & bits::READ_ONLY, 0);
}

/// Dirty and writable means that a store needs no fault, also after a protection that
/// came and went.
///
/// Rules: A64-06, MM-050.
#[test]
fn a_protection_round_trip_keeps_dirt_and_permission() {
    let (none, rw) = (A::prot(prot(Rights::empty(), false)), A::prot(prot(RW, true)));
    for dirt in [0, bits::DIRTY] {
        let e = E::from_bits(rw.bits() & !bits::READ_ONLY | dirt);
        let protnone = e.modify(none, PTE);
        assert!(protnone.is_protnone(PTE) && protnone.is_dirty());
        assert_eq!(protnone.bits() & (bits::DIRTY | bits::WRITE), bits::DIRTY);
        let back = protnone.modify(rw, PTE);
        assert!(back.is_dirty() && back.is_writable(PTE));
        assert_eq!(back.bits() & bits::READ_ONLY, 0, "a store would fault for ever");
    }
    // Read-only and back: the fault of the next store makes it writable, still dirty.
    let ro = A::prot(prot(Rights::READ, false));
    let e = E::from_bits(rw.bits() & !bits::READ_ONLY).modify(ro, PTE);
    assert!(e.is_dirty() && !e.is_writable(PTE));
}

/// Rules: A64-07, A64-09, MM-059.
#[test]
fn present_without_being_valid() {
    let shared = E::leaf(Pfn::new(0x200), A::prot(prot(RW, true)), PMD);
    assert!(shared.is_leaf(PMD) && shared.bits() & bits::TYPE == 0);
    let split = shared.mkinvalid(PMD);
    assert!(split.is_leaf(PMD) && !split.is_protnone(PMD));
    assert!(!split.permits(AccessKind::Read, PMD) && split.pfn(PMD) == Pfn::new(0x200));
    let none = shared.modify(A::prot(Protection::none()), PMD);
    assert!(none.is_leaf(PMD) && none.is_protnone(PMD));
    for e in [split, none] {
        assert!(!e.may_be_cached(false, PMD) && e.may_be_cached(true, PMD), "{e:?}");
    }
    // Exactly one of nothing, a table, a leaf and an entry without a translation.
    let table = E::table(TableFrame::new(Pfn::new(0x300)), PMD);
    for e in [shared, split, none, table, E::from_bits(0x1640), E::from_bits(0x17c0), E::NONE] {
        let kinds =
            [e.is_none(), e.is_leaf(PMD), e.as_table(PMD).is_some(), e.nonpresent(PMD).is_some()];
        assert_eq!(kinds.iter().filter(|k| **k).count(), 1, "{e:?}: {kinds:?}");
    }
    assert!(shared.may_be_cached(false, PMD) && !E::from_bits(0x1040).may_be_cached(true, PTE));
    // Leaves of 1 GiB exist only with small pages.
    let pud = shared.bits();
    assert!(E::from_bits(pud).is_leaf(Level::Pud) && !E::from_bits(pud).is_leaf(Level::Pgd));
    assert!(!Arm64Entry::<Granule16K>::from_bits(pud).is_leaf(Level::Pud));
}

/// A table lets everything through but the kernel's execution, and is told from a block.
///
/// Rules: A64-02. Cases: MM-107.
#[test]
fn tables_and_blocks() {
    let frame = TableFrame::new(Pfn::new(0x4_2000));
    let t = E::table(frame, PMD);
    assert_eq!(t.bits(), 0x0800_0000_4200_0403);
    for level in [PMD, Level::Pud, Level::Pgd] {
        assert_eq!(t.as_table(level), Some(frame));
        assert!(!t.is_leaf(level));
    }
    assert_eq!(t.as_table(PTE), None);
    assert_eq!(E::from_bits(t.bits() & !bits::TYPE).as_table(PMD), None);
    let wide = TableFrame::new(Pfn::new(0xa_bcd0_1234));
    let t = Arm64Entry::<Granule64K>::table(wide, PMD);
    assert_eq!((t.as_table(PMD), t.bits() & 0xf000), (Some(wide), 0xa000));
}

/// Frames above 2^48 stand in two places, and a run crosses the border.
///
/// Rules: A64-03, ACC-19.
#[test]
fn a_frame_in_two_pieces_steps_as_one() {
    fn across<G: Granule>(want_below: u64, want_above: u64) {
        let pfn = Pfn::new((1 << (48 - G::PAGE_SHIFT)) - 1);
        let e = Arm64Entry::<G>::leaf(pfn, Arm64::<G>::prot(prot(RW, true)), PTE);
        let field = !Arm64::<G>::prot(prot(RW, true)).bits();
        assert_eq!(e.bits() & field, want_below, "{e:?}");
        let next = e.advance(1, PTE);
        assert_eq!(next.bits() & field, want_above, "{next:?}");
        assert_eq!(next.pfn(PTE), pfn.add(1));
        let far = e.advance((1 << (50 - G::PAGE_SHIFT)) + 1, PTE);
        assert_eq!(far.pfn(PTE), Pfn::new(0b101 << (48 - G::PAGE_SHIFT)));
        assert_eq!(far.bits() & !field, e.bits() & !field, "carried into the flags");
        let top = PhysAddr::new((1 << 52) - (1 << G::PAGE_SHIFT));
        let top = Arm64Entry::<G>::leaf(
            Pfn::new(top.get() >> G::PAGE_SHIFT),
            Arm64::<G>::prot(prot(RW, true)),
            PTE,
        );
        assert_eq!(top.advance(1, PTE).bits() & field, 0, "wraps inside the field");
    }
    across::<Granule64K>(0x0000_ffff_ffff_0000, 0x1000);
    across::<Granule4KLpa2>(0x0000_ffff_ffff_f000, 0x0001_0000_0000_0000);
}

/// Vector V7, and what has no encoding.
///
/// Rules: SWP-04, SWP-06.
#[test]
fn swap_entries() {
    let plain = SwapBits::default();
    let encode = |ty, offset| E::from_type_offset(TypeOffset { ty, offset }, plain).map(E::bits);
    assert_eq!(encode(1, 1), Ok(0x1040));
    assert_eq!(encode(3, 0x1000), Ok(0x100_00c0));
    assert_eq!(encode(31, 1), Ok(0x17c0));
    assert_eq!(encode(0, 0), Err(EncodeError::EncodesToNone));
    assert_eq!(encode(32, 1), Err(EncodeError::BadType { ty: 32 }));
    let wide = EncodeError::OffsetTooWide { offset: 1 << 50, bits: 50 };
    assert_eq!(encode(1, 1 << 50), Err(wide));
    assert_eq!(encode(0, (1 << 50) - 1), Ok(0x3fff_ffff_ffff_f000));
    let all = SwapBits { exclusive: true, soft_dirty: true, uffd_wp: true };
    let e = E::from_bits(0x1040).with_swap_bits(all);
    assert_eq!(e.bits(), 0x104c);
    assert_eq!(e.type_offset(PTE), Some(TypeOffset { ty: 1, offset: 1 }));
    // There is no soft-dirty bit to keep.
    assert_eq!(e.swap_bits(), SwapBits { soft_dirty: false, ..all });
    // Flags alone, reserved bits, and what looks present mean nothing.
    for raw in [4, 8, 0xc, 0x1042, 0x1050, 1 << 62 | 0x1040, 1 << 63] {
        assert!(!E::from_bits(raw).is_present(PTE));
        assert_eq!(E::from_bits(raw).nonpresent(PTE), None, "{raw:#x}");
    }
    assert!(E::from_bits(0x1840).is_present(PTE), "bit 11 is present, invalid");
    assert_eq!(E::from_bits(0x47c0).nonpresent(PTE), Some(NonPresent::Marker(Markers::GUARD)));
    assert_eq!(
        E::from_bits(0x20_0000).nonpresent(PTE),
        Some(NonPresent::Swap(SwapSlot { device: 0, offset: 0x200 }))
    );
}

/// What the next value may differ in while hardware can see the entry.
///
/// Rules: A64-10.
#[test]
fn changes_that_need_no_break() {
    let e = E::from_bits(0x0068_0000_1234_0fc3);
    for bit in 0..64 {
        let new = E::from_bits(e.bits() ^ 1 << bit);
        let want = match bit {
            0 => true,
            // From local to global the cache may hold both.
            11 => false,
            7 | 10 | 51 | 53 | 55..=58 | 63 => true,
            _ => false,
        };
        assert_eq!(e.changes_in_place(new), want, "bit {bit}");
        let global = E::from_bits(e.bits() & !bits::NOT_GLOBAL);
        assert!(global.changes_in_place(e));
    }
    let marked = E::from_bits(e.bits() | bits::CONT);
    assert!(!marked.changes_in_place(marked.mkold()));
}

/// Rules: ACC-24.
#[test]
fn what_a_cache_may_have_seen() {
    let e = E::from_bits(0x00e8_0000_1234_0f43);
    for bit in 0..64 {
        let new = E::from_bits(e.bits() ^ 1 << bit);
        assert_eq!(e.needs_flush(new, PTE), !matches!(bit, 55..=58 | 63), "bit {bit}");
        let never = E::from_bits(e.bits() & !bits::VALID);
        assert!(!never.needs_flush(new, PTE));
    }
}
