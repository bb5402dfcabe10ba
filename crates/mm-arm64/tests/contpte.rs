//! Blocks in the encoding of this format: raw words, not the gathered view.
#![cfg(not(loom))]

use mm_arch::cont::{self, ContEntry};
use mm_arch::explain::Explain;
use mm_arch::model::NoTlb;
use mm_arch::table::Words;
use mm_arch::{
    AccessKind, Arch, At, Entry, Held, Level, Live, MigrationKind, NonPresent, Pfn, Pinned,
    Protection, Rights, SpaceId, SpaceTlb, SwapBits, VirtAddr, WriteKind, respect,
};
use mm_arm64::{Arm64, Arm64Entry, Granule, Granule4K, Granule16K, Granule64K, bits};

type A = Arm64<Granule4K>;
type E = Arm64Entry<Granule4K>;
const PTE: Level = Level::Pte;

fn tlb() -> SpaceTlb<'static, NoTlb> {
    SpaceTlb::new(&NoTlb, SpaceId(1))
}
fn at<G: Granule>(index: usize) -> At {
    At { va: VirtAddr::new(1 << 40).add_units(index as u64, G::PAGE_SHIFT), index }
}
fn leaf<G: Granule>(pfn: u64, writable: bool) -> Arm64Entry<G> {
    let rights = Rights::READ | Rights::WRITE;
    let prot = Protection { rights, writable_at_once: writable, pkey: 0 };
    Arm64Entry::leaf(Pfn::new(pfn), Arm64::<G>::prot(prot), PTE)
}
fn block() -> <A as Arch>::Table {
    let t = A::new_table();
    A::fill(&t, 0, 16, leaf::<Granule4K>(0x1000, true).mkold());
    t
}
fn raw(t: &<A as Arch>::Table, i: usize) -> u64 {
    A::read_upper::<Held>(t, i).bits()
}

/// Every granule folds blocks of its own size, and a scan looks at each once.
///
/// Rules: A64-01, A64-11, CONT-02, CONT-16, CONT-17, ACC-18, BATCH-06.
#[test]
fn blocks_of_every_granule() {
    fn check<G: Granule>() {
        let (n, t) = (G::CONT_PTES, Arm64::<G>::new_table());
        Arm64::<G>::fill(&t, n, 3 * n, leaf::<G>(5 * n as u64, true));
        Arm64::<G>::fill(&t, 4 * n, n - 1, leaf::<G>(8 * n as u64, true));
        let read = |i| Arm64::<G>::read::<Held>(&t, i);
        for i in n..5 * n - 1 {
            assert_eq!(read(i).is_cont(), i < 4 * n, "{i}");
            assert_eq!(read(i).pfn(PTE), Pfn::new((i + 4 * n) as u64));
            let hint = cont::hint(i, read(i), Arm64::<G>::PTE_BLOCKS);
            assert_eq!(hint, if i < 4 * n { n - i % n } else { 1 });
        }
        let scan = |i, max| Arm64::<G>::scan::<Pinned, { respect::WRITE }>(&t, i, read(i), max);
        for (i, max, nr, looks) in [
            (n, 3 * n, 3 * n, 3),
            (n + 1, 3 * n, 3 * n - 1, 3),
            (n, 5, 5, 1),
            (n + 2, n, n, 2),
            (4 * n, n, n - 1, n - 1),
        ] {
            let run = scan(i, max);
            assert_eq!((run.nr, run.looks), (nr, looks), "{max} from {i}");
        }
    }
    check::<Granule4K>();
    check::<Granule16K>();
    check::<Granule64K>();
}

/// A block is where address *and* frame are aligned and all its pages are there: of frames
/// that are one off there is none, and where both are, the whole blocks in between are.
///
/// Rules: MM-098, CONT-02, A64-11.
#[test]
fn a_block_needs_both_alignments() {
    for (first, frame, folded) in [(0, 0x8_0001, 0..0), (1, 0x8_0001, 16..64), (3, 0x8_0002, 0..0)]
    {
        let t = A::new_table();
        A::fill(&t, first, 64, leaf::<Granule4K>(frame, true));
        for i in first..first + 64 {
            let e = A::read::<Held>(&t, i);
            assert_eq!(e.pfn(PTE), Pfn::new(frame + (i - first) as u64), "{i}");
            assert_eq!(e.is_cont(), folded.contains(&i), "{i} from {first}");
        }
    }
    // Nor is there a larger leaf of such a frame.
    let prot = A::prot(Protection::private_read_write());
    assert!(A::checked_leaf(Pfn::new(0x8_0001), prot, Level::Pmd).is_err());
    assert!(A::checked_leaf(Pfn::new(0x8_0000), prot, Level::Pmd).is_ok());
}

/// Accessed is set in one word of a block; who asks for it in another must get it there,
/// in every word, and once.
///
/// Rules: MM-051, CONT-15, ACC-17.
#[test]
fn up_to_date_is_judged_word_by_word() {
    let t = block();
    assert!(A::mmu_mark(&t, 5, AccessKind::Read, PTE));
    let wanted = A::read::<Held>(&t, 3);
    assert!(wanted.is_young(), "the gathered view");
    assert_eq!(raw(&t, 3) & bits::ACCESSED, 0);
    assert!(A::set_access_flags(&t, at::<Granule4K>(3), wanted, &tlb()));
    let first = raw(&t, 0);
    for i in 0..16 {
        assert_ne!(raw(&t, i) & bits::ACCESSED, 0, "{i}");
        assert_eq!(raw(&t, i), E::from_bits(first).advance(i as u64, PTE).bits(), "{i}");
    }
    assert!(!A::set_access_flags(&t, at::<Granule4K>(3), wanted, &tlb()));

    // The same with a store that hardware noted in entry 5.
    let t = block();
    assert!(A::mmu_mark(&t, 5, AccessKind::Write, PTE));
    assert_eq!(raw(&t, 5) & bits::READ_ONLY, 0);
    let wanted = A::read::<Held>(&t, 3);
    assert!(wanted.is_dirty() && raw(&t, 3) & bits::READ_ONLY != 0);
    assert!(A::set_access_flags(&t, at::<Granule4K>(3), wanted, &tlb()));
    for i in 0..16 {
        assert_eq!(raw(&t, i) & (bits::READ_ONLY | bits::CONT), bits::CONT, "{i}");
    }
    assert!(!A::set_access_flags(&t, at::<Granule4K>(3), wanted, &tlb()));
}

/// All sixteen entries of a folio give way to migration entries before it is copied.
///
/// Rules: MM-054, CONT-18, SWP-05.
#[test]
fn a_migration_replaces_every_entry_of_a_block() {
    let t = block();
    assert!(A::mmu_mark(&t, 9, AccessKind::Write, PTE));
    let mut taken = Vec::new();
    A::take::<Live, _>(&t, at::<Granule4K>(0), 16, &tlb(), |_, e| taken.push(e));
    for (i, e) in taken.iter().enumerate() {
        let what = NonPresent::Migration {
            kind: MigrationKind::Write,
            pfn: e.pfn(PTE),
            young: e.is_young(),
            dirty: e.is_dirty(),
        };
        let moving = E::from_nonpresent(what, SwapBits::default()).expect("fits");
        A::set(&t, at::<Granule4K>(i), moving, &tlb());
    }
    for i in 0..16 {
        let what = A::read::<Pinned>(&t, i).nonpresent(PTE).expect("a migration entry");
        let NonPresent::Migration { kind: MigrationKind::Write, pfn, young, dirty } = what else {
            panic!("{what:?}");
        };
        // Wherever hardware noted the store, every entry remembers it.
        assert_eq!((pfn, young, dirty), (Pfn::new(0x1000 + i as u64), true, true));
        assert!(!A::mmu_mark(&t, i, AccessKind::Write, PTE), "a store to the old page");
    }
    // Put back, all of them, as one run.
    A::take::<Live, _>(&t, at::<Granule4K>(0), 16, &tlb(), |_, _| ());
    A::fill(&t, 0, 16, taken[0]);
    assert!((0..16).all(|i| A::read::<Held>(&t, i).is_cont() && A::read::<Held>(&t, i).is_dirty()));
}

/// Young of a block is one bit, wherever it stands; a swap entry beside it keeps its type,
/// in which that bit is.
///
/// Rules: CONT-12, CONT-19, ACC-12.
#[test]
fn aging_touches_blocks_and_no_swap_entry() {
    let t = block();
    let swap = E::from_bits(0x1_0000 | 31 << 6);
    A::set(&t, at::<Granule4K>(16), swap, &tlb());
    assert!(A::mmu_mark(&t, 3, AccessKind::Read, PTE));
    assert!(A::clear_young(&t, at::<Granule4K>(9), 1, &tlb()));
    assert!((0..16).all(|i| raw(&t, i) & bits::ACCESSED == 0));
    assert!(!A::clear_young(&t, at::<Granule4K>(9), 1, &tlb()));
    assert_eq!(raw(&t, 16), swap.bits());
}

/// What is not followed or has no folio carries no mark, whatever its caller says.
///
/// Rules: CONT-01, CONT-02, CONT-19.
#[test]
fn nothing_else_is_marked() {
    let none = E::leaf(Pfn::new(0x1000), A::prot(Protection::none()), PTE);
    let special = leaf::<Granule4K>(0x1000, true).mkspecial();
    for e in [none, special] {
        let t = A::new_table();
        A::fill(&t, 0, 32, e.with_cont(true));
        assert!((0..32).all(|i| raw(&t, i) & bits::CONT == 0), "{e:?}");
    }
    let t = A::new_table();
    A::set(&t, at::<Granule4K>(7), leaf::<Granule4K>(0x1007, true).with_cont(true), &tlb());
    assert_eq!(raw(&t, 7) & bits::CONT, 0);
    // In a swap entry the bit is part of the offset.
    let far = E::from_bits(bits::CONT | 0x1040);
    A::set(&t, at::<Granule4K>(8), far, &tlb());
    assert_eq!(raw(&t, 8), far.bits());
}

/// A block is folded entry by entry only when its last one is written, and only if all
/// are alike but for what hardware reports.
///
/// Rules: CONT-03, CONT-04.
#[test]
fn folding_looks_at_every_bit() {
    let alike = |i: usize| leaf::<Granule4K>(0x1000 + i as u64, true).mkold();
    let write = |odd: usize, other: E| {
        let t = A::new_table();
        for i in 0..16 {
            A::set(&t, at::<Granule4K>(i), if i == odd { other } else { alike(i) }, &tlb());
            assert!(i == 15 || !A::fold(&t, at::<Granule4K>(i), &tlb()), "{i} is not the last");
        }
        let folded = A::fold(&t, at::<Granule4K>(15), &tlb());
        assert!((0..16).all(|i| A::read::<Held>(&t, i).is_cont() == folded));
        // Nothing is left to fold.
        assert!(!A::fold(&t, at::<Granule4K>(15), &tlb()));
        folded
    };
    for odd in [0, 7, 15] {
        assert!(write(odd, alike(odd)));
        assert!(write(odd, alike(odd).mkyoung()), "accessed may differ");
        assert!(write(odd, alike(odd).mkdirty()), "dirty may differ");
        for bit in [0, 2, 6, 8, 11, 13, 50, 51, 53, 54, 56, 58, 60] {
            let other = E::from_bits(alike(odd).bits() ^ 1 << bit);
            assert!(!write(odd, other), "bit {bit} of entry {odd}");
        }
    }
    // In its place, but the frames are not: there is no such block.
    let t = A::new_table();
    for i in 0..16 {
        A::set(&t, at::<Granule4K>(i), leaf::<Granule4K>(0x1001 + i as u64, true), &tlb());
    }
    assert!(!A::fold(&t, at::<Granule4K>(15), &tlb()));
}

/// The protocol on PMD leaves: blocks of 32 MiB.
///
/// Rules: A64-01, CONT-05, CONT-07, CONT-11, CONT-14.
#[test]
fn blocks_of_pmd_leaves() {
    let b = A::PMD_BLOCKS;
    let t = A::new_table();
    let cells = t.words();
    let rights = Rights::READ | Rights::WRITE;
    let prot = A::prot(Protection { rights, writable_at_once: true, pkey: 0 });
    let first = E::leaf(Pfn::new(0x8_0000), prot, Level::Pmd).mkold();
    cont::fill(cells, 16, 32, first, b);
    let at = |index: usize| At { va: VirtAddr::new((index as u64) << 21), index };
    let read = |i| cont::read::<E, Held>(cells, i, b);
    assert!((16..48).all(|i| read(i).is_cont() && read(i).is_leaf(Level::Pmd)));
    assert!(A::mmu_mark(&t, 20, AccessKind::Write, Level::Pmd));
    assert!(read(31).is_dirty() && !read(32).is_dirty());
    cont::wrprotect::<E, _>(cells, at(17), 1, b, &tlb());
    for i in 16..48 {
        assert_eq!(read(i).is_cont(), i >= 32);
        assert_eq!(read(i).pfn(Level::Pmd), Pfn::new(0x8_0000 + (i as u64 - 16) * 512));
        assert_eq!((read(i).is_writable(Level::Pmd), read(i).is_dirty()), (i != 17, i < 32));
    }
    let wider = read(33).mkdirty().mkwrite(WriteKind::Normal);
    assert!(cont::set_access_flags(cells, at(33), wider, b, &tlb()));
    assert!((32..48).all(|i| read(i).is_cont() && read(i).is_dirty()));
}
