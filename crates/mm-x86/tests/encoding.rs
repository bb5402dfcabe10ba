//! Bits, vectors and truth tables of x86-64 entries.
#![cfg(not(loom))]

use mm_arch::explain::{AddressError, Explain};
use mm_arch::{
    AccessKind, Arch, EncodeError, Entry, Held, Level, Pfn, Protection, Rights, SwapBits,
    TableFrame, TypeOffset, VirtAddr, WriteKind,
};
use mm_x86::pkey::{self, Pkru};
use mm_x86::{LongEntry, X86_64, X86_64La57, X86_64NoShstk, X86Entry, X86Pae, X86Prot, bits};

const PTE: Level = Level::Pte;
const PMD: Level = Level::Pmd;
const PUD: Level = Level::Pud;

fn e(raw: u64) -> X86Entry {
    X86Entry::from_bits(raw)
}
fn prot(rights: Rights, writable_at_once: bool) -> X86Prot {
    X86_64::prot(Protection { rights, writable_at_once, pkey: 0 })
}
fn shared() -> X86Prot {
    prot(Rights::READ | Rights::WRITE, true)
}
fn read_only() -> X86Prot {
    prot(Rights::READ, false)
}
fn none() -> X86Prot {
    X86_64::prot(Protection::none())
}

mod geometry {
    use super::*;

    /// Rules: PTE-01.
    #[test]
    fn last_user_address_and_the_first_beyond() {
        let indices = |va| X86_64::LEVELS.iter().map(|l| X86_64::index(va, *l)).collect::<Vec<_>>();
        assert_eq!(indices(VirtAddr::new(0x7fff_ffff_efff)), [255, 511, 511, 510]);
        assert_eq!(X86_64::USER_END, 0x7fff_ffff_f000);
        // The first non-canonical address is in the kernel's half of the root.
        assert_eq!(indices(VirtAddr::new(1 << 47)), [256, 0, 0, 0]);
    }

    /// Rules: PTE-01.
    #[test]
    fn five_levels() {
        let indices =
            |va| X86_64La57::LEVELS.iter().map(|l| X86_64La57::index(va, *l)).collect::<Vec<_>>();
        assert_eq!(indices(VirtAddr::new(1 << 47)), [0, 256, 0, 0, 0]);
        assert_eq!(X86_64La57::USER_END, (1 << 56) - 4096);
        let last = VirtAddr::new(X86_64La57::USER_END - 1);
        assert_eq!(indices(last), [255, 511, 511, 511, 510]);
        assert_eq!(indices(VirtAddr::new(1 << 56)), [256, 0, 0, 0, 0]);
        // Below the root the two formats are one.
        let va = VirtAddr::new(0x7f12_3456_7000);
        for level in X86_64::LEVELS.iter().skip(1) {
            assert_eq!(X86_64La57::index(va, *level), X86_64::index(va, *level));
        }
        let frame = TableFrame::new(Pfn::new(0x777));
        let table = X86Entry::table(frame, Level::P4d);
        assert_eq!(table.as_table(Level::P4d), Some(frame));
        assert!(!e(table.bits() | bits::PAGE_SIZE).is_leaf(Level::P4d));
    }

    /// Rules: PTE-01, PAE-01.
    #[test]
    fn addresses_and_frames_that_do_not_fit_are_errors_with_both_values() {
        let end = VirtAddr::new(0x7fff_ffff_f000);
        let error = X86_64::check_address(end).expect_err("no user address");
        assert_eq!(error, AddressError { va: end, end });
        let beyond = VirtAddr::new(0xc000_1000);
        let text = X86Pae::check_address(beyond).expect_err("the kernel's").to_string();
        assert_eq!(text, "address 0xc0001000 is not below 0xc0000000, the end of user addresses");
        assert!(X86_64La57::check_address(VirtAddr::new(1 << 47)).is_ok());
        let leaf = |pfn, level| X86_64::checked_leaf(Pfn::new(pfn), read_only(), level);
        let unaligned = EncodeError::UnalignedFrame { pfn: Pfn::new(0x201), order: 9 };
        assert_eq!(leaf(0x201, PMD), Err(unaligned));
        assert_eq!(unaligned.to_string(), "frame 0x201 is not aligned to order 9");
        assert_eq!(
            leaf(0x200, PUD).map_err(|e| e.to_string()).err().as_deref(),
            Some("frame 0x200 is not aligned to order 18")
        );
        assert_eq!(leaf(0, Level::Pgd), Err(EncodeError::NoLeaf { level: Level::Pgd }));
        assert_eq!(leaf(0x200, PMD), Ok(X86Entry::leaf(Pfn::new(0x200), read_only(), PMD)));
        let wide = EncodeError::FrameTooWide { pfn: Pfn::new(1 << 24), bits: 24 };
        assert_eq!(X86Pae::checked_leaf(Pfn::new(1 << 24), read_only(), PTE), Err(wide));
        assert_eq!(
            wide.to_string(),
            "frame 0x1000000 does not fit the 24 frame bits of the format"
        );
        let no_leaf = EncodeError::NoLeaf { level: PUD };
        assert_eq!(X86Pae::checked_leaf(Pfn::new(0), read_only(), PUD), Err(no_leaf));
    }

    /// Indices and flags agree with the `x86_64` crate's.
    ///
    /// Rules: PTE-01, PTE-02.
    #[test]
    fn agrees_with_the_x86_64_crate() {
        use x86_64::structures::paging::PageTableFlags as F;
        for raw in [0, 0x1234_5678_9abc, 0x7fff_ffff_efff, 0x4000_0000, 0x20_0000 - 1] {
            let (va, theirs) = (VirtAddr::new(raw), x86_64::VirtAddr::new(raw));
            let theirs =
                [theirs.p4_index(), theirs.p3_index(), theirs.p2_index(), theirs.p1_index()];
            for (level, index) in X86_64::LEVELS.iter().zip(theirs) {
                assert_eq!(X86_64::index(va, *level), usize::from(index));
            }
        }
        for (ours, theirs) in [
            (bits::PRESENT, F::PRESENT),
            (bits::WRITE, F::WRITABLE),
            (bits::USER, F::USER_ACCESSIBLE),
            (bits::PWT, F::WRITE_THROUGH),
            (bits::PCD, F::NO_CACHE),
            (bits::ACCESSED, F::ACCESSED),
            (bits::DIRTY, F::DIRTY),
            (bits::PAGE_SIZE, F::HUGE_PAGE),
            (bits::GLOBAL, F::GLOBAL),
            (bits::SPECIAL, F::BIT_9),
            (bits::UFFD_WP, F::BIT_10),
            (bits::SOFT_DIRTY, F::BIT_11),
            (bits::SAVED_DIRTY, F::BIT_58),
            (bits::NO_EXECUTE, F::NO_EXECUTE),
        ] {
            assert_eq!(ours, theirs.bits(), "{theirs:?}");
        }
    }
}

mod facts {
    use super::*;

    type Predicate = fn(X86Entry) -> bool;

    /// Each bit, alone on top of a plain leaf, changes the facts it should and no other.
    ///
    /// Rules: PTE-02, PTE-03, PTE-10.
    #[test]
    fn bit_by_bit() {
        let base = bits::PRESENT | bits::USER | bits::WRITE;
        let facts: [(&str, Predicate, &[u32]); 10] = [
            ("present", |x| x.is_present(PTE), &[0]),
            ("writable", |x| x.is_writable(PTE), &[1]),
            ("store", |x| x.permits(AccessKind::Write, PTE), &[0, 1, 2]),
            ("fetch", |x| x.permits(AccessKind::Exec, PTE), &[0, 2, 63]),
            ("young", |x| x.is_young(), &[5]),
            ("dirty", |x| x.is_dirty(), &[6, 58]),
            ("special", |x| x.is_special(), &[9]),
            ("uffd-wp", |x| x.is_uffd_wp(), &[10]),
            ("soft-dirty", |x| x.is_soft_dirty(), &[11]),
            ("key", |x| pkey::key(x) != 0, &[59, 60, 61, 62]),
        ];
        for bit in 0..64 {
            for (name, fact, decided_by) in facts {
                let changed = fact(e(base)) != fact(e(base ^ 1 << bit));
                assert_eq!(changed, decided_by.contains(&bit), "{name}, bit {bit}");
            }
            let frame = e(base ^ 1 << bit).pfn(PTE) != e(base).pfn(PTE);
            // Without P the frame is read inverted (rule PTE-08).
            assert_eq!(frame, (12..52).contains(&bit) || bit == 0, "frame, bit {bit}");
        }
    }

    /// Rules: PTE-05, PTE-06, PTE-07.
    #[test]
    fn presence() {
        for (raw, pte, pmd, pud) in [
            (0x000, false, false, false),
            (0x060, false, false, false),
            (0x120, true, true, false),
            (0x080, false, true, false),
            (0x021, true, true, true),
            (0x121, true, true, true),
        ] {
            let present = [PTE, PMD, PUD].map(|l| e(raw).is_present(l));
            assert_eq!(present, [pte, pmd, pud], "{raw:#x}");
        }
        assert!(e(0x60).is_none() && e(0x60).nonpresent(PTE).is_none());
        assert!(!e(0x120).is_none() && !e(0x80).is_none());
        assert!(e(0x120).is_protnone(PTE) && !e(0x121).is_protnone(PTE));
        assert!(!e(0x021).is_protnone(PTE) && !e(0x120).is_protnone(PUD));
    }

    /// Rules: PTE-10.
    #[test]
    fn dirty_is_either_bit() {
        for raw in [bits::DIRTY, bits::SAVED_DIRTY, bits::DIRTY | bits::SAVED_DIRTY] {
            assert!(e(bits::PRESENT | raw).is_dirty());
        }
        assert!(!e(!(bits::DIRTY | bits::SAVED_DIRTY)).is_dirty());
    }

    /// Rules: PTE-04, MM-060.
    #[test]
    fn pat_of_a_large_leaf_is_no_frame_bit() {
        let pfn = Pfn::new(0x12345 << 9);
        let large = X86Entry::leaf(pfn, shared(), PMD);
        let pat = e(large.bits() | bits::PAT_LARGE);
        assert_eq!((large.pfn(PMD), pat.pfn(PMD)), (pfn, pfn));
        assert!(large.is_leaf(PMD) && pat.is_leaf(PMD));
        // In a small leaf the leaf mark is PAT, and that bit the frame's lowest.
        let small = X86Entry::leaf(pfn, shared(), PTE);
        let pat = e(small.bits() | bits::PAT);
        assert!(pat.is_leaf(PTE) && pat.pfn(PTE) == pfn);
        assert_eq!(e(0x1025).pfn(PTE), Pfn::new(1));
    }

    /// Every table lets everything through: what is allowed is what the leaf allows.
    ///
    /// Rules: PTE-13. Cases: MM-107.
    #[test]
    fn a_leaf_has_the_rights_that_it_says() {
        let frame = TableFrame::new(Pfn::new(0x777));
        for level in X86_64::LEVELS.iter().filter(|l| **l != PTE) {
            let rights = bits::PRESENT | bits::WRITE | bits::USER;
            let table = X86Entry::table(frame, *level).bits();
            assert_eq!(table & (rights | bits::NO_EXECUTE), rights, "{level:?}");
        }
    }

    /// Rules: PTE-13.
    #[test]
    fn tables_and_what_is_not_one() {
        let frame = TableFrame::new(Pfn::new(0x777));
        let table = X86Entry::table(frame, PMD);
        assert_eq!(table.bits(), 0x777_067);
        for level in [PMD, PUD, Level::Pgd] {
            assert_eq!(table.as_table(level), Some(frame));
            assert!(table.is_present(level) && !table.is_leaf(level));
        }
        assert_eq!(table.as_table(PTE), None);
        for ignored in [bits::USER, bits::ACCESSED] {
            assert_eq!(e(table.bits() ^ ignored).as_table(PMD), Some(frame));
        }
        let frame_or_ignored = bits::FRAME | bits::USER | bits::ACCESSED;
        for bit in (0..64).map(|b| 1u64 << b).filter(|b| b & frame_or_ignored == 0) {
            assert_eq!(e(table.bits() ^ bit).as_table(PMD), None, "bit {bit:#x}");
        }
        assert_eq!(X86Entry::NONE.as_table(PMD), None);
    }

    /// Rules: PTE-12.
    #[test]
    fn access_needs_user_and_presence_and_a_key() {
        let (read, write) = (AccessKind::Read, AccessKind::Write);
        let rw = X86Entry::leaf(Pfn::new(1), shared(), PTE);
        assert!(rw.permits(write, PTE) && !rw.permits(AccessKind::Exec, PTE));
        let kernel = e(rw.bits() & !bits::USER);
        assert!(!kernel.permits(read, PTE));
        assert!(!rw.modify(none(), PTE).permits(read, PTE));
        // An ordinary store never goes through a shadow-stack entry.
        let shstk = rw.mkwrite(WriteKind::ShadowStack);
        assert!(shstk.is_writable(PTE) && shstk.permits(read, PTE) && !shstk.permits(write, PTE));

        for k in 0..16u8 {
            let p = Protection { rights: Rights::READ, writable_at_once: false, pkey: k };
            let keyed = X86Entry::leaf(Pfn::new(1), X86_64::prot(p), PTE);
            assert_eq!(pkey::key(keyed), k);
            for (ad, wd) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                // Every other key denies what this one allows.
                let mine = (ad | wd << 1) << (2 * k);
                let pkru = Pkru(mine | !(ad | wd << 1) << (2 * k) & !(3 << (2 * k)));
                assert_eq!(pkey::permits(keyed, pkru, read), ad == 0, "key {k}");
                assert_eq!(pkey::permits(keyed, pkru, write), ad == 0 && wd == 0, "key {k}");
                assert!(pkey::permits(keyed, pkru, AccessKind::Exec));
            }
        }
    }
}

mod protections {
    use super::*;

    /// Rules: PTE-11.
    #[test]
    fn templates() {
        let (r, w, x) = (Rights::READ, Rights::WRITE, Rights::EXEC);
        for (rights, at_once, raw) in [
            (r | w, true, 0x8000_0000_0000_0027),
            (r | w, false, 0x8000_0000_0000_0025),
            (r, false, 0x8000_0000_0000_0025),
            (r, true, 0x8000_0000_0000_0025),
            (r | x, false, 0x25),
            (r | w | x, true, 0x27),
            (Rights::empty(), false, 0x120),
        ] {
            assert_eq!(prot(rights, at_once).bits(), raw, "{rights:?}");
        }
        assert!(X86Entry::leaf(Pfn::new(7), none(), PTE).is_protnone(PTE));
    }

    /// Rules: PTE-08.
    #[test]
    fn vectors_of_construction() {
        let pfn = Pfn::new(0x12345);
        for (p, raw) in [
            (shared(), 0x8000_0000_1234_5027),
            (read_only(), 0x8000_0000_1234_5025),
            (none(), 0x000f_ffff_edcb_a120),
        ] {
            let leaf = X86Entry::leaf(pfn, p, PTE);
            assert_eq!((leaf.bits(), leaf.pfn(PTE)), (raw, pfn));
        }
    }

    /// Rules: PTE-08, PTE-16, SHSTK-05.
    #[test]
    fn vectors_of_modify() {
        let rw = e(0x8000_0000_1234_5067);
        let inaccessible = rw.modify(none(), PTE);
        assert_eq!(inaccessible.bits(), 0x040f_ffff_edcb_a120);
        assert_eq!(inaccessible.pfn(PTE), Pfn::new(0x12345));
        assert_eq!(inaccessible.modify(shared(), PTE), rw);
    }

    /// Rules: PTE-09, ACC-19, MM-055.
    #[test]
    fn vectors_of_advance() {
        assert_eq!(e(0x8000_0000_1234_5027).advance(16, PTE).bits(), 0x8000_0000_1235_5027);
        let next = e(0x000f_ffff_edcb_a120).advance(16, PTE);
        assert_eq!((next.bits(), next.pfn(PTE)), (0x000f_ffff_edca_a120, Pfn::new(0x12355)));
        for (head, words) in [
            (0x000f_ffff_feff_f100, [0xfeff_f100, 0xfeff_e100, 0xfeff_d100, 0xfeff_c100u64]),
            (0x0100_0067, [0x0100_0067, 0x0100_1067, 0x0100_2067, 0x0100_3067]),
        ] {
            let t = X86_64::new_table();
            X86_64::fill(&t, 8, 4, e(head));
            for (k, low) in words.into_iter().enumerate() {
                let x = X86_64::read::<Held>(&t, 8 + k);
                assert_eq!(x, e(head).advance(k as u64, PTE));
                assert_eq!(
                    (x.bits() & 0xffff_ffff, x.pfn(PTE)),
                    (low, Pfn::new(0x1000 + k as u64))
                );
            }
        }
        // What a format that does not invert would do.
        assert_eq!(e(0x000f_ffff_edcb_a120 + 0x1000).pfn(PTE), Pfn::new(0x12344));
    }

    /// Rules: PTE-16. A template cannot reach what an entry keeps.
    #[test]
    fn modify_ignores_history_in_the_template() {
        let kept = bits::FRAME
            | bits::PWT
            | bits::PCD
            | bits::PAT
            | bits::SPECIAL
            | bits::ACCESSED
            | bits::DIRTY
            | bits::SAVED_DIRTY
            | bits::SOFT_DIRTY
            | bits::UFFD_WP;
        let plain = read_only().bits();
        let loaded = X86Prot::from_bits(plain | kept);
        for raw in [0x8000_0000_1234_5025, 0x1027, 0x1067, 0x1025 | bits::SAVED_DIRTY] {
            assert_eq!(e(raw).modify(loaded, PTE), e(raw).modify(read_only(), PTE));
            let kept_bits = e(raw | kept & !bits::DIRTY & !bits::FRAME).modify(read_only(), PTE);
            assert_eq!(kept_bits.bits() & kept & !bits::FRAME, kept & !(bits::FRAME | bits::DIRTY));
        }
    }

    /// Rules: PTE-20, PTE-21, MM-059.
    #[test]
    fn large_leaves_keep_size_and_pat() {
        for (level, order) in [(PMD, 9), (PUD, 18)] {
            let pfn = Pfn::new(3 << order);
            let rw = e(X86Entry::leaf(pfn, shared(), level).bits() | bits::PAT_LARGE);
            let none = rw.modify(none(), level);
            assert_eq!(none.pfn(level), pfn);
            // A PUD without P is not present (rule PTE-05).
            assert_eq!(none.is_present(level) && none.is_leaf(level), level == PMD);
            assert_eq!(none.as_table(level), None);
            assert_eq!(none.bits() & (bits::PAGE_SIZE | bits::PAT_LARGE), 0x1080);
            assert_eq!(none.modify(shared(), level), rw);
        }
        let pfn = Pfn::new(3 << 9);
        let rw = X86Entry::leaf(pfn, shared(), PMD);
        for x in [rw, rw.modify(none(), PMD), e(rw.bits() | bits::PAT_LARGE)] {
            let i = x.mkinvalid(PMD);
            assert!(i.is_present(PMD) && i.is_leaf(PMD) && !i.is_protnone(PMD));
            assert_eq!(i.pfn(PMD), pfn);
            assert_eq!(i.bits() & bits::PAT_LARGE, x.bits() & bits::PAT_LARGE);
            assert!(!i.permits(AccessKind::Read, PMD));
        }
    }

    /// Rules: SHSTK-07.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "would make shadow stacks")]
    fn a_template_makes_no_shadow_stack() {
        let _ =
            X86Entry::leaf(Pfn::new(1), X86Prot::from_bits(read_only().bits() | bits::DIRTY), PTE);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "does not suit")]
    fn a_large_leaf_needs_an_aligned_frame() {
        let _ = X86Entry::leaf(Pfn::new(1), shared(), PMD);
    }
}

mod saved_dirty {
    use super::*;

    fn state(text: &str) -> u64 {
        text.chars().fold(bits::PRESENT | bits::USER, |raw, c| {
            raw | match c {
                'W' => bits::WRITE,
                'D' => bits::DIRTY,
                'S' => bits::SAVED_DIRTY,
                '+' => bits::SOFT_DIRTY,
                _ => 0,
            }
        })
    }

    /// Columns: before, wrprotect, mkclean, mkdirty, mkwrite, mkwrite of a shadow
    /// stack, modified to read-only, modified to read-write. `+`: soft-dirty.
    const TABLE: [[&str; 8]; 8] = [
        ["---", "---", "---", "--S+", "W--", "-D-", "---", "W--"],
        ["--S", "--S", "---", "--S+", "WD-", "-DS", "--S", "WD-"],
        ["-D-", "--S", "---", "--S+", "WD-", "-D-", "-D-", "WD-"],
        ["W--", "---", "W--", "WD-+", "W--", "-D-", "---", "W--"],
        ["WD-", "--S", "W--", "WD-+", "WD-", "-D-", "--S", "WD-"],
        ["-DS", "--S", "---", "--S+", "WD-", "-DS", "-DS", "WD-"],
        ["W-S", "--S", "W--", "WDS+", "WD-", "-DS", "--S", "W-S"],
        ["WDS", "--S", "W--", "WDS+", "WD-", "-DS", "--S", "WDS"],
    ];

    fn replay<const SHSTK: bool>(level: Level) {
        let size = if level == PTE { 0 } else { bits::PAGE_SIZE };
        let ro = X86Prot::from_bits(state("---"));
        let rw = X86Prot::from_bits(state("W--"));
        for row in TABLE {
            let x = LongEntry::<SHSTK>::from_bits(state(row[0]) | size);
            let results = [
                x.wrprotect(),
                x.mkclean(),
                x.mkdirty(),
                x.mkwrite(WriteKind::Normal),
                x.mkwrite(WriteKind::ShadowStack),
                x.modify(ro, level),
                x.modify(rw, level),
            ];
            for (column, (got, want)) in results.iter().zip(&row[1..]).enumerate() {
                assert_eq!(got.bits(), state(want) | size, "{} column {column}", row[0]);
            }
        }
    }

    /// The shift does not depend on the CPU.
    ///
    /// Rules: SHSTK-03, SHSTK-04, SHSTK-05.
    #[test]
    fn all_eight_states() {
        for level in [PTE, PMD] {
            replay::<true>(level);
            replay::<false>(level);
        }
    }

    /// Rules: SHSTK-01, SHSTK-02, BATCH-24.
    #[test]
    fn writable_is_a_predicate_over_two_bits() {
        for row in TABLE {
            let raw = state(row[0]);
            let w = raw & bits::WRITE != 0;
            let shstk = row[0].starts_with("-D");
            assert_eq!(X86Entry::from_bits(raw).is_writable(PTE), w || shstk, "{}", row[0]);
            assert_eq!(LongEntry::<false>::from_bits(raw).is_writable(PTE), w, "{}", row[0]);
            // A PMD must be a leaf for it; there are no shadow-stack PUDs.
            assert_eq!(e(raw).is_writable(PMD), w, "{}", row[0]);
            assert_eq!(e(raw | bits::PAGE_SIZE).is_writable(PMD), w || shstk, "{}", row[0]);
            assert_eq!(e(raw | bits::PAGE_SIZE).is_writable(PUD), w, "{}", row[0]);
        }
        const { assert!(!X86_64::WRITE_SURVIVES_MKCLEAN && X86_64NoShstk::WRITE_SURVIVES_MKCLEAN) };
    }

    /// Rules: SHSTK-06, BATCH-09.
    #[test]
    fn dirty_first_then_writable() {
        let x = e(state("---"));
        let good = x.mkdirty().mkwrite(WriteKind::ShadowStack);
        assert!(good.is_writable(PTE) && good.is_dirty());
        let bad = x.mkwrite(WriteKind::ShadowStack).mkdirty();
        assert!(!bad.is_writable(PTE) && bad.is_dirty());
    }

    /// Rules: PTE-14, PTE-15.
    #[test]
    fn tracking_bits() {
        let x = e(state("WD-"));
        let wp = x.mkuffd_wp();
        assert_eq!(wp.bits(), state("--S") | bits::UFFD_WP);
        assert_eq!(wp.clear_uffd_wp().bits(), state("--S"));
        assert!(e(state("W--")).mkdirty().is_soft_dirty());
    }
}

mod non_present {
    use super::*;

    fn swap(ty: u8, offset: u64) -> X86Entry {
        X86Entry::from_type_offset(TypeOffset { ty, offset }, SwapBits::default()).expect("fits")
    }

    /// Rules: SWP-03.
    #[test]
    fn vectors() {
        for (ty, offset, raw) in [
            (0, 0, 0x07ff_ffff_ffff_fe00),
            (1, 1, 0x0fff_ffff_ffff_fc00),
            (3, 0x1000, 0x1fff_ffff_ffdf_fe00),
            (31, 1, 0xffff_ffff_ffff_fc00),
            (5, (1 << 50) - 1, 0x2800_0000_0000_0000),
        ] {
            let x = swap(ty, offset);
            assert_eq!(x.bits(), raw);
            assert_eq!(x.type_offset(PTE), Some(TypeOffset { ty, offset }));
        }
    }

    /// Rules: SWP-02, SWP-03.
    #[test]
    fn flags_have_bits_of_their_own() {
        let x = swap(3, 0x1000);
        let soft = SwapBits { soft_dirty: true, ..SwapBits::default() };
        let uffd = SwapBits { uffd_wp: true, ..SwapBits::default() };
        let exclusive = SwapBits { exclusive: true, ..SwapBits::default() };
        for (flags, bit) in [(soft, 2), (uffd, 4), (exclusive, 8)] {
            let y = x.with_swap_bits(flags);
            assert_eq!(y.bits(), x.bits() | bit);
            assert_eq!((y.swap_bits(), y.type_offset(PTE)), (flags, x.type_offset(PTE)));
        }
    }

    /// Rules: SWP-03, PTE-05, PTE-06.
    #[test]
    fn no_swap_entry_looks_present_or_empty() {
        for ty in 0..32 {
            for offset in [0, 1, 0x55_5555_5555, (1 << 50) - 2, (1 << 50) - 1] {
                if (ty, offset) == (0, (1 << 50) - 1) {
                    continue;
                }
                let all = SwapBits { exclusive: true, soft_dirty: true, uffd_wp: true };
                for x in [swap(ty, offset), swap(ty, offset).with_swap_bits(all)] {
                    assert!(!x.is_none(), "{x:?}");
                    assert!([PTE, PMD, PUD].iter().all(|l| !x.is_present(*l)), "{x:?}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let encode =
            |ty, offset| X86Entry::from_type_offset(TypeOffset { ty, offset }, SwapBits::default());
        assert_eq!(encode(32, 0), Err(EncodeError::BadType { ty: 32 }));
        let wide = EncodeError::OffsetTooWide { offset: 1 << 50, bits: 50 };
        assert_eq!(encode(0, 1 << 50), Err(wide));
        assert_eq!(encode(0, (1 << 50) - 1), Err(EncodeError::EncodesToNone));
        let flags = SwapBits { exclusive: true, ..SwapBits::default() };
        let raw = TypeOffset { ty: 0, offset: (1 << 50) - 1 };
        assert_eq!(X86Entry::from_type_offset(raw, flags), Err(EncodeError::EncodesToNone));
    }
}

mod flushes {
    use super::*;

    /// Every single-bit change, by the flags that a cache may have seen.
    ///
    /// Rules: PTE-17, ACC-24.
    #[test]
    fn single_bit_changes() {
        let either = bits::WRITE
            | bits::USER
            | bits::PWT
            | bits::PCD
            | bits::PAT
            | bits::GLOBAL
            | bits::PKEY
            | bits::NO_EXECUTE
            | bits::FRAME;
        for level in [PTE, PMD] {
            let size = if level == PTE { 0 } else { bits::PAGE_SIZE };
            for bit in (0..64).map(|b| 1u64 << b) {
                let (off, on) = (e((bits::PRESENT | size) & !bit), e(bits::PRESENT | size | bit));
                let accessed = if level == PTE { 0 } else { bits::ACCESSED };
                let cleared = bit & (either | bits::DIRTY | bits::PRESENT | accessed) != 0;
                assert_eq!(on.needs_flush(off, level), cleared, "{bit:#x} cleared at {level:?}");
                let set = bit & either != 0;
                assert_eq!(off.needs_flush(on, level), set, "{bit:#x} set at {level:?}");
            }
        }
        // Dirty that moves to SavedDirty leaves the bit a cache knows.
        let dirty = e(0x67);
        assert!(dirty.needs_flush(dirty.wrprotect(), PTE));
        let old = X86Entry::leaf(Pfn::new(5), none(), PTE);
        assert!(!old.needs_flush(X86Entry::leaf(Pfn::new(6), shared(), PTE), PTE));
    }

    /// Rules: PTE-19.
    #[test]
    fn what_a_cache_may_hold() {
        let leaf = X86Entry::leaf(Pfn::new(5), shared(), PTE);
        let inaccessible = leaf.modify(none(), PTE);
        assert!(leaf.may_be_cached(false, PTE) && leaf.may_be_cached(true, PTE));
        assert!(!inaccessible.may_be_cached(false, PTE) && inaccessible.may_be_cached(true, PTE));
        assert!(!X86Entry::NONE.may_be_cached(true, PTE));
    }
}
