//! Bits, vectors and words of PAE entries.
#![cfg(not(loom))]

use mm_arch::model::NoTlb;
use mm_arch::{
    AccessKind, Arch, At, EncodeError, Entry, Held, Level, Live, NonPresent, Pfn, Pinned,
    Protection, Rights, SpaceId, SpaceTlb, SwapBits, SwapSlot, TableFrame, TypeOffset, VirtAddr,
    WriteKind, respect,
};
use mm_x86::{LongEntry, PaeEntry, X86Pae, X86PaeNoNx, X86Prot, X86Value, bits};

const PTE: Level = Level::Pte;
const PMD: Level = Level::Pmd;
const PUD: Level = Level::Pud;
/// Where a 32-bit kernel keeps SavedDirty: in the low word.
const SAVED_DIRTY: u64 = 1 << 10;
/// The bits of the high word.
const HIGH: u64 = 0xffff_ffff << 32;

fn e(raw: u64) -> PaeEntry {
    PaeEntry::from_bits(raw)
}
fn at(index: usize) -> At {
    At { va: VirtAddr::new(0x1000_0000).add_units(index as u64, 12), index }
}
fn tlb() -> SpaceTlb<'static, NoTlb> {
    SpaceTlb::new(&NoTlb, SpaceId(1))
}
fn prot(rights: Rights, writable_at_once: bool) -> X86Prot {
    X86Pae::prot(Protection { rights, writable_at_once, pkey: 0 })
}
fn shared() -> X86Prot {
    prot(Rights::READ | Rights::WRITE, true)
}
fn read_only() -> X86Prot {
    prot(Rights::READ, false)
}

/// Rules: PAE-01.
#[test]
fn last_user_page() {
    let va = VirtAddr::new(0xbfff_f000);
    assert_eq!([PUD, PMD, PTE].map(|l| X86Pae::index(va, l)), [2, 511, 511]);
    assert_eq!(X86Pae::USER_END, 0xc000_0000);
    assert_eq!([PUD, PMD, PTE].map(X86Pae::nr_entries), [4, 512, 512]);
}

/// Setters of flags keep away from the high word, but for NX.
///
/// Rules: PAE-02, PAE-11, PTE-03.
#[test]
fn flags_live_in_the_low_word() {
    for pfn in [1, 0x10_0001, 0xff_ffff] {
        for p in [shared(), read_only()] {
            let x = PaeEntry::leaf(Pfn::new(pfn), p, PTE);
            let dirty = x.mkdirty();
            let made = [
                x.mkyoung(),
                x.mkold(),
                dirty,
                dirty.mkclean(),
                dirty.wrprotect(),
                dirty.mkwrite(WriteKind::Normal),
                x.mksoft_dirty(),
                x.mkuffd_wp(),
                x.mkspecial(),
            ];
            for y in made {
                assert_eq!(y.bits() & HIGH, x.bits() & HIGH, "{x:?} became {y:?}");
            }
            let exec = x.modify(prot(Rights::READ | Rights::EXEC, false), PTE);
            assert_eq!((exec.bits() ^ x.bits()) & HIGH, bits::NO_EXECUTE);
        }
    }
    let dirty = e(0x1067).wrprotect();
    assert_eq!(dirty.bits(), 0x1025 | SAVED_DIRTY);
}

/// The state table of SavedDirty, by the bits of 32-bit kernels: the shift is done
/// on every CPU.
///
/// Rules: SHSTK-03, SHSTK-04, SHSTK-05, PTE-03.
#[test]
fn saved_dirty_moves_as_on_64_bits() {
    let (p, w, d) = (bits::PRESENT | bits::USER, bits::WRITE, bits::DIRTY);
    let narrow = |wide: u64| {
        let saved = if wide & bits::SAVED_DIRTY == 0 { 0 } else { SAVED_DIRTY };
        wide & !(bits::SAVED_DIRTY | bits::SOFT_DIRTY) | saved
    };
    let (ro, rw) = (X86Prot::from_bits(p), X86Prot::from_bits(p | w));
    for state in 0..8 {
        let on = |bit: u32, flag| if state >> bit & 1 != 0 { flag } else { 0 };
        let wide =
            LongEntry::<false>::from_bits(p | on(0, w) | on(1, d) | on(2, bits::SAVED_DIRTY));
        let x = e(narrow(wide.bits()));
        for level in [PTE, PMD] {
            let pairs = [
                (x.wrprotect(), wide.wrprotect()),
                (x.mkclean(), wide.mkclean()),
                (x.mkdirty(), wide.mkdirty()),
                (x.mkwrite(WriteKind::Normal), wide.mkwrite(WriteKind::Normal)),
                (x.modify(ro, level), wide.modify(ro, level)),
                (x.modify(rw, level), wide.modify(rw, level)),
            ];
            for (column, (ours, theirs)) in pairs.into_iter().enumerate() {
                assert_eq!(ours.bits(), narrow(theirs.bits()), "state {state} column {column}");
            }
        }
        assert_eq!(x.is_writable(PTE), state & 1 != 0, "no user shadow stacks");
    }
}

/// Rules: PAE-03, PTE-08.
#[test]
fn frames_of_inaccessible_mappings_set_all_high_bits() {
    let none = PaeEntry::leaf(Pfn::new(1), X86Pae::prot(Protection::none()), PTE);
    assert_eq!(none.bits(), 0x000f_ffff_ffff_e120);
    assert_eq!((none.pfn(PTE), none.advance(3, PTE).pfn(PTE)), (Pfn::new(1), Pfn::new(4)));
    // Beyond 4 GiB the frame is in both words.
    let x = PaeEntry::leaf(Pfn::new(0x12_3456), shared(), PTE);
    assert_eq!(x.bits(), 0x8000_0001_2345_6027);
    assert_eq!(x.modify(X86Pae::prot(Protection::none()), PTE).modify(shared(), PTE), x);
}

/// Rules: PAE-04.
#[test]
fn bits_that_the_cpu_lacks_are_left_out_of_what_it_follows() {
    let p = X86PaeNoNx::prot(Protection::private_read_write());
    let x = <X86PaeNoNx as Arch>::Entry::leaf(Pfn::new(0x345), p, PTE);
    assert_eq!(x.bits(), 0x0034_5025);
    assert!(x.permits(AccessKind::Exec, PTE), "nothing can forbid it");
    assert_eq!(x.modify(p, PTE), x);
    assert_eq!(PaeEntry::leaf(Pfn::new(0x345), p, PTE).bits(), 0x8000_0000_0034_5025);
    // A type has the same bit: it stays.
    let raw = TypeOffset { ty: 31, offset: 1 };
    let swap = <X86PaeNoNx as Arch>::Entry::from_type_offset(raw, SwapBits::default());
    assert_eq!(swap.expect("fits").bits(), 0xffff_ffff_ffff_fc00);
    // Keys do not exist.
    let keyed = X86Pae::prot(Protection { pkey: 5, ..Protection::private_read_write() });
    assert_eq!(keyed, X86Pae::prot(Protection::private_read_write()));
}

/// Rules: PAE-05, PTE-13.
#[test]
fn the_root_has_no_permissions() {
    let frame = TableFrame::new(Pfn::new(0x77_7777));
    let root = PaeEntry::table(frame, PUD);
    assert_eq!(root.bits(), 0x7_7777_7001);
    assert_eq!(PaeEntry::table(frame, PMD).bits(), 0x7_7777_7067);
    assert_eq!(root.as_table(PUD), Some(frame));
    assert!(root.permits(AccessKind::Write, PUD), "what is below decides");
    for bit in 0..64u64 {
        let other = e(root.bits() ^ 1 << bit);
        let allowed = [3, 4, 9, 10, 11].contains(&bit) || (12..52).contains(&bit);
        assert_eq!(other.as_table(PUD).is_some(), allowed, "bit {bit}");
        assert!(!other.is_leaf(PUD), "bit {bit}");
    }
    // Hardware marks nothing there.
    let t = X86Pae::new_table();
    X86Pae::swap_upper(&t, 2, root);
    assert!(X86Pae::mmu_mark(&t, 2, AccessKind::Write, PUD));
    assert_eq!(X86Pae::read_upper::<Pinned>(&t, 2), root);
    assert!(!X86Pae::mmu_mark(&t, 1, AccessKind::Read, PUD));
}

/// Rules: PAE-13, SWP-02, SWP-05.
#[test]
fn swap_vectors() {
    let swap =
        |ty, offset| PaeEntry::from_type_offset(TypeOffset { ty, offset }, SwapBits::default());
    for (ty, offset, high, low) in [
        (0, 0, 0x07ff_ffff, 0xffff_fe00),
        (1, 1, 0x0fff_ffff, 0xffff_fc00),
        (3, 0x1000, 0x1fff_ffff, 0xffdf_fe00),
        (31, 1, 0xffff_ffff, 0xffff_fc00),
        // The low word alone looks empty.
        (5, (1 << 26) - 1, 0x2fff_fff8, 0u64),
    ] {
        let x = swap(ty, offset).expect("fits");
        assert_eq!(x.bits(), high << 32 | low, "({ty}, {offset:#x})");
        assert!(!x.is_none() && !x.is_present(PTE), "{x:?}");
        assert_eq!(x.type_offset(PTE), Some(TypeOffset { ty, offset }));
    }
    for ty in 0..32 {
        for offset in [0, 1, 0x7f_ffff, 0xff_ffff, (1 << 26) - 1] {
            let exclusive = SwapBits { exclusive: true, ..SwapBits::default() };
            let x = swap(ty, offset).expect("fits");
            let y = x.with_swap_bits(exclusive);
            assert_eq!((y.bits() ^ x.bits(), y.swap_bits()), (1 << 7, exclusive));
            assert_eq!(y.type_offset(PTE), Some(TypeOffset { ty, offset }));
            assert!(!y.is_present(PTE) && !y.is_none());
        }
    }
    let wide = EncodeError::OffsetTooWide { offset: 1 << 26, bits: 26 };
    assert_eq!(swap(0, 1 << 26), Err(wide));
    // Flags that a 32-bit kernel has no place for are dropped.
    let all = SwapBits { exclusive: true, soft_dirty: true, uffd_wp: true };
    let slot = NonPresent::Swap(SwapSlot { device: 2, offset: 9 });
    let x = PaeEntry::from_nonpresent(slot, all).expect("fits");
    assert_eq!(x.swap_bits(), SwapBits { exclusive: true, ..SwapBits::default() });
    assert_eq!(PaeEntry::SWAP_PFN_BITS, 24);
}

/// What 64-bit kernels have and 32-bit ones lack.
///
/// Rules: PAE-14, PAE-15, PIN-02.
#[test]
fn what_is_missing() {
    const { assert!(!X86Pae::HAS_SOFT_DIRTY && !X86Pae::HAS_UFFD_WP) };
    const { assert!(X86Pae::WRITE_SURVIVES_MKCLEAN && X86Pae::PINCOUNT_MIN_ORDER == 2) };
    let x = PaeEntry::leaf(Pfn::new(7), read_only(), PTE);
    assert_eq!(x.mkdirty().bits(), x.bits() | SAVED_DIRTY);
    assert_eq!((x.mksoft_dirty(), x.mkuffd_wp()), (x, x));
    // Its bit is SavedDirty here: no reader may take it for uffd-wp.
    assert!(!e(x.bits() | SAVED_DIRTY).is_uffd_wp());
    // A PMD holds no migration entry: the bit of "exclusive" is the leaf's mark.
    let raw = TypeOffset { ty: 25, offset: 7 };
    let moving = PaeEntry::from_type_offset(raw, SwapBits::default()).expect("fits");
    assert_eq!((moving.type_offset(PTE), moving.type_offset(PMD)), (Some(raw), None));
}

/// A change of NX alone is in the high word: all 64 bits are compared.
///
/// Rules: PTE-17.
#[test]
fn a_change_of_nx_alone_is_flushed() {
    let x = PaeEntry::leaf(Pfn::new(7), shared(), PTE);
    assert!(x.needs_flush(e(x.bits() ^ bits::NO_EXECUTE), PTE));
    assert!(!x.needs_flush(e(x.bits() | SAVED_DIRTY), PTE));
}

/// Rules: ACC-20, BATCH-14.
#[test]
fn entries_that_differ_in_the_high_word_alone_part() {
    let t = X86Pae::new_table();
    let x = PaeEntry::leaf(Pfn::new(0x10_0001), read_only(), PTE);
    for i in 0..20 {
        let pfn = if i < 11 { 0x10_0001 } else { 0x20_0001 };
        X86Pae::set(&t, at(i), PaeEntry::leaf(Pfn::new(pfn + i as u64), read_only(), PTE), &tlb());
    }
    assert_eq!(X86Pae::scan::<Pinned, { respect::WRITE }>(&t, 0, x, 20).nr, 11);
    assert_eq!(X86Pae::scan::<Held, { respect::NOTHING }>(&t, 0, x, 20).nr, 11);

    // An old one that is emptied with the others is handed on.
    X86Pae::set(&t, at(5), X86Pae::read::<Held>(&t, 5).mkold(), &tlb());
    let mut others = vec![];
    let other = |e: PaeEntry| others.push(e.pfn(PTE).get() - 0x10_0001);
    let taken = X86Pae::take_while::<{ respect::NOTHING }, _>(&t, at(0), x, 20, &tlb(), other);
    assert_eq!((taken, others), (11, vec![5, 6]));
    assert!((0..20).all(|i| X86Pae::read::<Held>(&t, i).is_none() == (i < 11)));
}

/// Rules: PAE-08, PAE-11, PAE-16, ACC-05, ACC-11, ACC-12, ACC-17.
#[test]
fn operations_keep_the_high_word() {
    let t = X86Pae::new_table();
    let x = PaeEntry::leaf(Pfn::new(0xab_cdef), shared(), PTE);
    X86Pae::fill(&t, 0, 4, x);
    assert!(X86Pae::mmu_mark(&t, 1, AccessKind::Write, PTE));
    X86Pae::wrprotect(&t, at(0), 4, &tlb());
    assert!(X86Pae::clear_young(&t, at(0), 4, &tlb()));
    let widened = X86Pae::read::<Held>(&t, 2).mkyoung().mkdirty().mkwrite(WriteKind::Normal);
    assert!(X86Pae::set_access_flags(&t, at(2), widened, &tlb()));
    let mut dirty = Vec::new();
    X86Pae::take::<Live, _>(&t, at(0), 4, &tlb(), |k, old| {
        assert_eq!(old.pfn(PTE), Pfn::new(0xab_cdef + k as u64));
        assert_eq!(old.bits() & HIGH, x.advance(k as u64, PTE).bits() & HIGH);
        dirty.push(old.is_dirty());
    });
    assert_eq!(dirty, [false, true, true, false]);
    assert!((0..4).all(|i| X86Pae::read::<Held>(&t, i) == X86Value::NONE));
}
