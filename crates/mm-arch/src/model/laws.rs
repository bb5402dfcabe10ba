//! What every format must do, as assertions: one body of checks for the model
//! formats and for those of hardware.
//!
//! A test supplies random numbers; a table is laid out from them through the
//! format's own operations, and each check compares the format with a naive
//! oracle or with a fold of single-entry operations (rule BATCH-18). The
//! functions panic where a law does not hold.

use super::NoTlb;
use crate::explain::{Explain, Meaning};
use crate::{
    AccessKind, Arch, At, Batch, DeviceKind, Entry, Held, Level, Live, Markers, MigrationKind,
    NonPresent, Pfn, Pinned, Private, Protection, Rights, SpaceId, SpaceTlb, SwapBits, SwapSlot,
    TableFrame, VirtAddr, WriteKind, respect,
};

const PTE: Level = Level::Pte;

/// First frame that [`lay_out`] maps: aligned for any folio, and with bits in
/// both words of a two-word entry.
const FIRST_PFN: u64 = 0x12_0000;

/// What an algorithm can see of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Facts {
    pfn: Pfn,
    writable: bool,
    young: bool,
    dirty: bool,
    soft_dirty: bool,
    uffd_wp: bool,
    special: bool,
    protnone: bool,
    permits: [bool; 3],
}

const KINDS: [AccessKind; 3] = [AccessKind::Read, AccessKind::Write, AccessKind::Exec];

fn facts<E: Entry>(e: E, level: Level) -> Facts {
    Facts {
        pfn: e.pfn(level),
        writable: e.is_writable(level),
        young: e.is_young(),
        dirty: e.is_dirty(),
        soft_dirty: e.is_soft_dirty(),
        uffd_wp: e.is_uffd_wp(),
        special: e.is_special(),
        protnone: e.is_protnone(level),
        permits: KINDS.map(|kind| e.permits(kind, level)),
    }
}

/// Facts that no permission change may touch (rule PTE-16).
fn history(f: Facts) -> (Pfn, bool, bool, bool, bool, bool) {
    (f.pfn, f.young, f.dirty, f.soft_dirty, f.uffd_wp, f.special)
}

fn all_swap_bits() -> impl Iterator<Item = SwapBits> {
    (0..8).map(|k| SwapBits { exclusive: k & 1 != 0, soft_dirty: k & 2 != 0, uffd_wp: k & 4 != 0 })
}

fn templates() -> [Protection; 5] {
    let of = |rights, writable_at_once| Protection { rights, writable_at_once, pkey: 0 };
    let (r, w, x) = (Rights::READ, Rights::WRITE, Rights::EXEC);
    [of(Rights::empty(), false), of(r, false), of(r | w, false), of(r | w, true), of(r | x, false)]
}

/// The laws of [`Entry`] for one value, whatever its bits.
///
/// Rules: PTE-05, PTE-08..10, PTE-15, PTE-16, PTE-20, SHSTK-04, ACC-19. Cases: MM-097.
pub fn entry<A: Arch>(e: A::Entry, level: Level) {
    let kinds = [e.is_none(), e.is_present(level), e.nonpresent(level).is_some()];
    assert!(kinds.iter().filter(|k| **k).count() <= 1, "{e:?} is {kinds:?}");
    assert!(!e.is_leaf(level) || e.is_present(level), "{e:?}");
    assert!(!(e.is_leaf(level) && e.as_table(level).is_some()), "{e:?} is leaf and table");
    assert!(level != PTE || e.as_table(level).is_none(), "{e:?}");
    if !e.is_present(level) {
        assert!(e.as_table(level).is_none() && !e.is_protnone(level), "{e:?}");
        assert!(KINDS.iter().all(|kind| !e.permits(*kind, level)), "{e:?}");
    }
    if let Some(raw) = e.type_offset(level) {
        for bits in all_swap_bits() {
            let other = e.with_swap_bits(bits);
            assert_eq!(other.type_offset(level), Some(raw), "flags leak into the offset");
        }
    }
    if e.is_leaf(level) {
        leaf::<A>(e, level);
    }
}

fn leaf<A: Arch>(e: A::Entry, level: Level) {
    let f = facts(e, level);
    let nr_pages = 1 << A::order(level);
    for n in [0, 1, 2, 16, 255].map(|n| n * nr_pages) {
        if (f.pfn.get() + n) >> A::Entry::SWAP_PFN_BITS == 0 {
            let next = e.advance(n, level);
            assert_eq!(facts(next, level), Facts { pfn: f.pfn.add(n), ..f }, "{e:?} + {n}");
            assert_eq!(next, (0..n / nr_pages).fold(e, |e, _| e.advance(nr_pages, level)));
            assert_eq!(next.advance(n.wrapping_neg(), level), e, "{next:?} - {n}");
        }
    }
    for p in templates() {
        let m = e.modify(A::prot(p), level);
        assert_eq!(history(facts(m, level)), history(f), "{e:?} modified to {p:?}");
        assert_eq!(m.permits(AccessKind::Read, level), !p.rights.is_empty(), "{m:?} {p:?}");
        if p.rights.is_empty() && m.is_present(level) {
            assert!(m.is_protnone(level), "{m:?}");
        }
        for q in templates() {
            let there_and_back = m.modify(A::prot(q), level);
            assert_eq!(history(facts(there_and_back, level)), history(f), "{e:?} {p:?} {q:?}");
        }
    }

    let wp = e.wrprotect();
    assert!(!wp.is_writable(level) && !wp.permits(AccessKind::Write, level), "{e:?}");
    assert_eq!(history(facts(wp, level)), history(f), "write-protected {e:?}");
    assert_eq!(wp.wrprotect(), wp);

    let dirty = e.mkdirty();
    assert!(dirty.is_dirty() && dirty.is_soft_dirty() == A::HAS_SOFT_DIRTY, "{dirty:?}");
    let clean = e.mkclean();
    assert!(!clean.is_dirty() && clean.is_soft_dirty() == f.soft_dirty, "{clean:?}");
    assert_eq!((dirty.pfn(level), clean.pfn(level)), (f.pfn, f.pfn));
    if A::WRITE_SURVIVES_MKCLEAN {
        assert_eq!(clean.is_writable(level), f.writable, "mkclean of {e:?}");
        assert_eq!(dirty.is_writable(level), f.writable, "mkdirty of {e:?}");
    }

    let w = e.mkwrite(WriteKind::Normal);
    assert!(w.is_writable(level), "{w:?}");
    assert_eq!(history(facts(w, level)), history(f), "{e:?} made writable");
    assert_eq!(w.permits(AccessKind::Write, level), e.permits(AccessKind::Read, level), "{w:?}");

    assert_eq!(facts(e.mkyoung(), level), Facts { young: true, ..f });
    assert_eq!(facts(e.mkold(), level), Facts { young: false, ..f });
    assert_eq!(facts(e.mksoft_dirty(), level), Facts { soft_dirty: A::HAS_SOFT_DIRTY, ..f });
    assert_eq!(facts(e.clear_soft_dirty(), level), Facts { soft_dirty: false, ..f });
    assert_eq!(facts(e.mkspecial(), level), Facts { special: true, ..f });
    let uffd = facts(wp, level);
    let uffd = Facts { uffd_wp: A::HAS_UFFD_WP, ..uffd };
    assert_eq!(facts(e.mkuffd_wp(), level), uffd);
    // The write permission does not come back with the bit (rule PTE-15).
    let cleared = e.mkuffd_wp().clear_uffd_wp();
    assert_eq!(facts(cleared, level), Facts { uffd_wp: false, ..uffd });

    if level == Level::Pmd {
        let i = e.mkinvalid(level);
        assert!(i.is_leaf(level), "{i:?}");
        // What nobody could read may look inaccessible.
        assert!(!(i.is_protnone(level) && e.permits(AccessKind::Read, level)), "{i:?}");
        assert_eq!(history(facts(i, level)), history(f), "{e:?} made invalid");
        assert_eq!(facts(i, level).permits, [false; 3], "{i:?}");
    }

    // A cache that may hold the translation must hear of what it loses.
    if e.permits(AccessKind::Read, level) {
        assert!(e.may_be_cached(false, level), "{e:?}");
        assert!(e.needs_flush(A::Entry::NONE, level), "{e:?} cleared");
        let none = e.modify(A::prot(Protection::none()), level);
        assert!(e.needs_flush(none, level), "{e:?} made inaccessible");
        assert!(none.may_be_cached(true, level) || !none.is_present(level), "{none:?}");
        if e.permits(AccessKind::Write, level) {
            assert!(e.needs_flush(wp, level), "{e:?} write-protected");
        }
        if (f.pfn.get() + nr_pages) >> A::Entry::SWAP_PFN_BITS == 0 {
            assert!(e.needs_flush(e.advance(nr_pages, level), level), "{e:?} moved");
        }
    }
}

/// Every non-present kind round-trips with every flag, is told apart from all
/// others and is neither present nor empty.
///
/// Rules: SWP-01, SWP-02, SWP-05, SWP-06.
pub fn nonpresent<E: Entry>(level: Level) {
    let each = |check: &mut dyn FnMut(NonPresent)| {
        let pfn = Pfn::new((1 << (E::SWAP_PFN_BITS - 1)) | 0x1234);
        check(NonPresent::Hwpoison(pfn));
        for device in [0, 1, NonPresent::MAX_SWAPFILES - 1] {
            check(NonPresent::Swap(SwapSlot { device, offset: 0x77 }));
        }
        for kind in [MigrationKind::Read, MigrationKind::ReadExclusive, MigrationKind::Write] {
            for k in if E::SWAP_YOUNG_DIRTY { 0..4 } else { 0..1 } {
                check(NonPresent::Migration { kind, pfn, young: k & 1 != 0, dirty: k & 2 != 0 });
            }
        }
        for kind in [DeviceKind::PrivateWrite, DeviceKind::PrivateRead, DeviceKind::Exclusive] {
            check(NonPresent::Device { kind, pfn });
        }
        for bits in 1..8 {
            check(NonPresent::Marker(Markers::from_bits_retain(bits)));
        }
    };
    each(&mut |what| {
        let plain = E::from_nonpresent(what, SwapBits::default()).expect("the format holds it");
        for bits in all_swap_bits() {
            let Ok(e) = E::from_nonpresent(what, bits) else { panic!("{what:?} {bits:?}") };
            assert_eq!(e.nonpresent(level), Some(what), "{e:?}");
            assert!(!e.is_present(level) && !e.is_none() && !e.is_leaf(level), "{e:?}");
            assert_eq!(e, plain.with_swap_bits(bits));
            assert_eq!(e.with_swap_bits(SwapBits::default()), plain, "{e:?}");
        }
        each(&mut |other| {
            let o = E::from_nonpresent(other, SwapBits::default()).expect("the format holds it");
            assert_eq!(o == plain, other == what, "{what:?} {other:?}");
        });
    });
}

/// Any value is explained: the fields part its bits, and what means nothing has a
/// fault that says why.
pub fn explain<A: Explain>(raw: u64, level: Level) {
    let x = A::explain(raw, level);
    let parts = x.fields.iter().fold(0u64, |seen, field| {
        assert_eq!(seen & field.mask(), 0, "{field:?} overlaps, {raw:#x} at {level:?}");
        seen | field.mask()
    });
    assert_eq!(parts, !0, "bits without a field, {raw:#x} at {level:?}");
    let mut nr = 0;
    A::faults(raw, level, &mut |fault| {
        assert!(fault.bits != 0 && !fault.what.is_empty(), "{fault:?} of {raw:#x} at {level:?}");
        nr += 1;
    });
    assert!(x.meaning != Meaning::Unknown || nr > 0, "{raw:#x} at {level:?} means nothing");
    assert!(x.facts.is_empty() || matches!(x.meaning, Meaning::Leaf(_)), "{x:x?}");
}

/// What the format's own operations make has no fault.
pub fn made_without_fault<A: Explain>(pfn: Pfn, seed: u16) {
    let none = |e: A::Entry, level: Level| {
        explain::<A>(e.raw(), level);
        A::faults(e.raw(), level, &mut |fault| panic!("{e:?} at {level:?}: {fault:?}"));
    };
    for level in A::LEVELS.iter().copied() {
        none(A::Entry::NONE, level);
        if level != PTE {
            none(A::Entry::table(TableFrame::new(pfn), level), level);
        }
    }
    for level in A::LEAF_LEVELS.iter().copied() {
        let pfn = Pfn::new(pfn.get() >> A::order(level) << A::order(level));
        let e = sample::<A>(pfn, seed, level);
        let inaccessible = e.modify(A::prot(Protection::none()), level);
        if !inaccessible.is_present(level) {
            // No such mappings of this size.
            continue;
        }
        none(e, level);
        none(e.wrprotect(), level);
        none(e.mkclean(), level);
        for p in templates() {
            let m = e.modify(A::prot(p), level);
            // Who changes the protection protects for userfaultfd again.
            none(if e.is_uffd_wp() { m.mkuffd_wp() } else { m }, level);
        }
        if level == Level::Pmd {
            none(e.mkinvalid(level), level);
        }
    }
    let swap = NonPresent::Swap(SwapSlot { device: 3, offset: pfn.get() });
    let kind = MigrationKind::Write;
    let moving = NonPresent::Migration { kind, pfn, young: true, dirty: seed & 1 != 0 };
    for what in [swap, moving, NonPresent::Marker(Markers::GUARD), NonPresent::Hwpoison(pfn)] {
        for bits in all_swap_bits() {
            none(A::Entry::from_nonpresent(what, bits).expect("the format holds it"), PTE);
        }
    }
}

/// Levels, shifts and indices agree with each other.
///
/// Rules: PTE-01, ACC-23.
pub fn geometry<A: Arch>() {
    assert_eq!(A::LEVELS.last(), Some(&PTE));
    assert_eq!(A::shift(PTE), A::PAGE_SHIFT);
    assert_eq!(A::top(), A::LEVELS[0]);
    for pair in A::LEVELS.windows(2) {
        assert!(pair[0] > pair[1], "levels go down");
        assert_eq!(A::below(pair[0]), Some(pair[1]));
        assert_eq!(1 << (A::shift(pair[0]) - A::shift(pair[1])), A::nr_entries(pair[1]));
    }
    assert_eq!(A::below(PTE), None);
    let last = VirtAddr::new(A::USER_END - 1);
    for level in A::LEVELS {
        let (va, shift) = (VirtAddr::new(A::USER_END / 2), A::shift(*level));
        assert_eq!(A::index(va, *level), (va.get() >> shift) as usize % A::nr_entries(*level));
        assert!(A::index(last, *level) < A::nr_entries(*level));
        assert_eq!(A::entries_left(va, *level) + A::index(va, *level), A::nr_entries(*level));
        assert_eq!(A::order(*level), shift - A::PAGE_SHIFT);
    }
}

/// A leaf of `pfn` whose facts are picked by `seed`, through the format's own
/// operations.
pub fn sample<A: Arch>(pfn: Pfn, seed: u16, level: Level) -> A::Entry {
    let on = |bit: u32| seed >> bit & 1 != 0;
    let rights = match seed & 7 {
        0 => Rights::empty(),
        1 => Rights::READ,
        2 => Rights::READ | Rights::EXEC,
        _ => Rights::READ | Rights::WRITE,
    };
    let prot = A::prot(Protection { rights, writable_at_once: on(3), pkey: 0 });
    let mut e = A::Entry::leaf(pfn, prot, level);
    e = if on(4) { e.mkyoung() } else { e.mkold() };
    if on(5) {
        e = e.mkdirty();
    }
    e = if on(6) { e.mksoft_dirty() } else { e.clear_soft_dirty() };
    if rights.contains(Rights::WRITE) {
        if on(7) {
            e = e.mkwrite(WriteKind::Normal);
        } else if on(8) && !A::WRITE_SURVIVES_MKCLEAN {
            e = e.mkwrite(WriteKind::ShadowStack);
        }
    }
    if on(9) && on(10) {
        e = e.mkuffd_wp();
    }
    if on(11) && on(12) {
        e = e.mkspecial();
    }
    e
}

/// Where the entry at `index` of the table under test stands.
fn at<A: Arch>(index: usize) -> At {
    let base = 1u64 << (A::PAGE_SHIFT + A::nr_entries(PTE).trailing_zeros());
    At { va: VirtAddr::new(base).add_units(index as u64, A::PAGE_SHIFT), index }
}

/// A table of entries that `picks` decide: segments of equal entries that map
/// consecutive frames, with one-bit differences, jumps, holes and swap entries
/// between them, written as runs or one by one, and marked by hardware here and
/// there. Equal arguments give equal tables.
pub fn lay_out<A: Arch>(seed: u16, picks: &[u32]) -> A::Table {
    let table = A::new_table();
    let tlb = SpaceTlb::new(&NoTlb, SpaceId(1));
    let size = A::nr_entries(PTE);
    let (mut index, mut pfn) = (0, FIRST_PFN);
    for pick in picks.iter().cycle() {
        let n = (*pick as usize & 0x1f).clamp(1, size - index);
        let flip = pick >> 5 & 0x1f;
        let seed = if flip < 16 { seed ^ 1 << flip } else { seed };
        match pick >> 10 & 0xf {
            0 => {}
            1 => {
                let swap = NonPresent::Swap(SwapSlot { device: 1, offset: pfn });
                let e = A::Entry::from_nonpresent(swap, SwapBits::default()).expect("fits");
                A::set(&table, at::<A>(index), e, &tlb);
            }
            kind => {
                if kind == 2 {
                    pfn += 3;
                }
                let e = sample::<A>(Pfn::new(pfn), seed, PTE);
                if pick >> 14 & 1 == 0 {
                    A::fill(&table, index, n, e);
                } else {
                    for k in 0..n {
                        A::set(&table, at::<A>(index + k), e.advance(k as u64, PTE), &tlb);
                    }
                }
                let marked = index + (pick >> 15) as usize % n;
                match pick >> 20 & 3 {
                    0 => _ = A::mmu_mark(&table, marked, AccessKind::Write, PTE),
                    1 => _ = A::mmu_mark(&table, marked, AccessKind::Read, PTE),
                    _ => {}
                }
            }
        }
        index += n;
        pfn += n as u64;
        if index == size {
            break;
        }
    }
    table
}

/// The run at `index`, entry by entry (rules BATCH-05, BATCH-06, BATCH-21).
fn oracle<A: Arch, const MODE: u8>(table: &A::Table, index: usize, max: usize) -> Batch {
    let head = A::read::<Held>(table, index);
    let mut b = Batch {
        nr: 1,
        looks: 1,
        any_writable: head.is_writable(PTE),
        any_young: head.is_young(),
        any_dirty: head.is_dirty(),
    };
    while b.nr < max {
        let e = A::read::<Held>(table, index + b.nr);
        let want = head.advance(b.nr as u64, PTE);
        let right = MODE & respect::WRITE == 0 || e.is_writable(PTE) == head.is_writable(PTE);
        if !right || e.normalise::<MODE>() != want.normalise::<MODE>() {
            break;
        }
        b.any_writable |= e.is_writable(PTE);
        b.any_young |= e.is_young();
        b.any_dirty |= e.is_dirty();
        b.nr += 1;
    }
    b
}

fn scan_mode<A: Arch, const MODE: u8>(table: &A::Table, index: usize, max: usize) {
    let head = A::read::<Held>(table, index);
    let want = oracle::<A, MODE>(table, index, max);
    for got in [
        A::scan::<Held, MODE>(table, index, head, max),
        A::scan::<Pinned, MODE>(table, index, head, max),
    ] {
        assert_eq!(got.nr, want.nr, "mode {MODE:#x} at {index} of {max} from {head:?}");
        if MODE & respect::MERGE_WRITE != 0 {
            assert_eq!(got.any_writable, want.any_writable, "mode {MODE:#x} at {index}");
        }
        if MODE & respect::MERGE_YOUNG_DIRTY != 0 {
            assert_eq!(got.any_young, want.any_young, "mode {MODE:#x} at {index}");
            assert_eq!(got.any_dirty, want.any_dirty, "mode {MODE:#x} at {index}");
        }
    }
}

/// The scan at `index` under every mode and both rights equals the naive one.
/// Nothing is asked of an entry that is not a leaf.
///
/// Rules: BATCH-01, BATCH-02, BATCH-05, BATCH-06, BATCH-14, BATCH-21, CONT-17.
pub fn scan<A: Arch>(table: &A::Table, index: usize, max: usize) {
    if !A::read::<Held>(table, index).is_leaf(PTE) {
        return;
    }
    macro_rules! modes {
        ($($respect:literal)*) => {$(
            scan_mode::<A, $respect>(table, index, max);
            scan_mode::<A, { $respect | respect::MERGE_WRITE | respect::MERGE_YOUNG_DIRTY }>(
                table, index, max,
            );
        )*};
    }
    modes!(0 1 2 3 4 5 6 7);
    scan_mode::<A, { respect::MERGE_WRITE }>(table, index, max);
    scan_mode::<A, { respect::MERGE_YOUNG_DIRTY }>(table, index, max);
}

/// Whether two entries are equal, but for accessed and dirty where a block may
/// report them for all its entries.
#[track_caller]
fn assert_same<A: Arch>(what: &str, index: usize, batched: A::Entry, single: A::Entry) {
    if A::CONT == 1 {
        assert_eq!(batched, single, "{what} at {index}");
        return;
    }
    if !single.is_leaf(PTE) {
        assert_eq!(batched, single, "{what} at {index}");
        return;
    }
    assert!(batched.is_leaf(PTE), "{what} at {index}: {batched:?} {single:?}");
    let (b, s) = (facts(batched, PTE), facts(single, PTE));
    // A block may say more, never less.
    assert!(b.dirty || !s.dirty, "{what} at {index} lost dirty");
    let merged = Facts { young: b.young, dirty: b.dirty, permits: b.permits, ..s };
    assert_eq!(b, merged, "{what} at {index}");
    assert_eq!(b.permits, s.permits, "{what} at {index}");
}

fn assert_same_table<A: Arch>(what: &str, batched: &A::Table, single: &A::Table) {
    for i in 0..A::nr_entries(PTE) {
        let (b, s) = (A::read::<Held>(batched, i), A::read::<Held>(single, i));
        assert_same::<A>(what, i, b, s);
        assert_eq!(A::read::<Pinned>(batched, i), b, "{what}: rights differ at {i}");
    }
}

/// Batched operations on `n` entries at `index` equal a fold of single ones, on
/// tables that [`lay_out`] makes of `seed` and `picks`.
///
/// Rules: BATCH-18, ACC-05, ACC-07, ACC-11, ACC-12, ACC-17, PTE-18.
pub fn operations<A: Arch>(seed: u16, picks: &[u32], index: usize, n: usize) {
    let tlb = SpaceTlb::new(&NoTlb, SpaceId(1));
    let twins = || (lay_out::<A>(seed, picks), lay_out::<A>(seed, picks));
    let range = index..index + n;

    let (batched, single) = twins();
    A::take::<Live, _>(&batched, at::<A>(index), n, &tlb, |k, e| {
        A::take::<Live, _>(&single, at::<A>(index + k), 1, &tlb, |_, f| {
            assert_same::<A>("take", index + k, e, f);
        });
    });
    assert_same_table::<A>("take", &batched, &single);
    assert!(range.clone().all(|i| A::read::<Held>(&batched, i).is_none()));

    // Putting back what was taken restores the table, and teardown empties it
    // like a live take does.
    let (before, back) = twins();
    A::take::<Private, _>(&back, at::<A>(index), n, &tlb, |k, e| {
        A::set(&back, at::<A>(index + k), e, &tlb);
    });
    assert_same_table::<A>("take and set", &back, &before);

    let all_leaves = range.clone().all(|i| A::read::<Held>(&before, i).is_leaf(PTE));
    if all_leaves {
        let (batched, single) = twins();
        A::wrprotect(&batched, at::<A>(index), n, &tlb);
        range.clone().for_each(|i| A::wrprotect(&single, at::<A>(i), 1, &tlb));
        assert_same_table::<A>("wrprotect", &batched, &single);
        for i in range.clone() {
            let (old, new) = (A::read::<Held>(&before, i), A::read::<Held>(&batched, i));
            assert!(!new.is_writable(PTE), "{new:?}");
            assert!(new.is_dirty() || !old.is_dirty(), "{old:?} lost dirty");
        }

        let (batched, single) = twins();
        let any = range.clone().any(|i| A::read::<Held>(&before, i).is_young());
        assert_eq!(A::clear_young(&batched, at::<A>(index), n, &tlb), any);
        for i in range.clone() {
            A::clear_young(&single, at::<A>(i), 1, &tlb);
            assert!(!A::read::<Held>(&batched, i).is_young());
        }
        assert_same_table::<A>("clear_young", &batched, &single);

        let (table, _) = twins();
        for i in range {
            widen::<A>(&table, i);
        }
    }
}

/// `set_access_flags` adds what is asked, keeps the rest, and says whether it did
/// anything; the hardware's marks go where they belong.
fn widen<A: Arch>(table: &A::Table, i: usize) {
    let tlb = SpaceTlb::new(&NoTlb, SpaceId(1));
    let old = A::read::<Held>(table, i);
    let young = old.mkyoung();
    let mut wanted = [young, young.mkdirty(), young];
    // A faulting store makes an entry dirty first, then writable (rule SHSTK-06);
    // never one that userfaultfd protects.
    if old.permits(AccessKind::Read, PTE) && !old.is_uffd_wp() {
        wanted[2] = young.mkdirty().mkwrite(WriteKind::Normal);
    }
    for e in wanted {
        let before = facts(A::read::<Held>(table, i), PTE);
        let changed = A::set_access_flags(table, at::<A>(i), e, &tlb);
        let after = facts(A::read::<Held>(table, i), PTE);
        assert!(changed || after == before, "{e:?}: unreported change");
        assert!(after.young && after.dirty == (before.dirty || e.is_dirty()), "{e:?}");
        assert_eq!(after.writable, before.writable || e.is_writable(PTE), "{e:?}");
        assert_eq!(after.pfn, before.pfn);
        assert_eq!((after.uffd_wp, after.special), (before.uffd_wp, before.special));
        assert!(!A::set_access_flags(table, at::<A>(i), e, &tlb), "{e:?} twice");
    }
    for kind in KINDS {
        let before = facts(A::read::<Held>(table, i), PTE);
        let followed = A::mmu_mark(table, i, kind, PTE);
        let after = facts(A::read::<Held>(table, i), PTE);
        assert_eq!(followed, before.permits[kind as usize], "{kind:?} {before:?}");
        let stored = followed && kind == AccessKind::Write;
        let want =
            Facts { young: before.young || followed, dirty: before.dirty || stored, ..before };
        assert_eq!(after, want, "{kind:?}");
    }
}

/// All table laws at one place of one random table.
pub fn table<A: Arch>(seed: u16, picks: &[u32], index: usize, n: usize) {
    let size = A::nr_entries(PTE);
    let index = index % size;
    // Half of the ranges are short enough to lie in one segment.
    let n = if n & 1 == 0 { n % 24 } else { n };
    let n = 1 + n % (size - index);
    scan::<A>(&lay_out::<A>(seed, picks), index, n);
    operations::<A>(seed, picks, index, n);
}
