//! A PMD leaf becomes PTEs that allow, remember and count the same.

use crate::world::*;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{AccessKind, Arch, Entry, Level, Protection, WriteKind};
use mm_folio::{Exclusivity, FolioFlags, Get};
use mm_pgtable::{TableMemory, TableSpace};
use mm_rmap::split_pmd;
use mm_vma::{Event, Mm, Platform, RssKind};
use mm_x86::X86_64;

#[derive(Clone, Copy, Debug)]
struct State {
    writable: bool,
    young: bool,
    dirty: bool,
    soft_dirty: bool,
    uffd_wp: bool,
    exclusive: bool,
    inaccessible: bool,
}

fn states() -> impl Iterator<Item = State> {
    (0..128u32).map(|n| State {
        writable: n & 1 != 0 && n & 16 == 0,
        young: n & 2 != 0,
        dirty: n & 4 != 0,
        soft_dirty: n & 8 != 0,
        uffd_wp: n & 16 != 0,
        exclusive: n & 32 != 0,
        inaccessible: n & 64 != 0,
    })
}

/// Gives the leaf at `page` the state.
fn set_leaf<A: Arch>(mm: &Mm<P<A>>, page: u64, s: State) -> A::Entry {
    let vmas = mm.read();
    let mut pmd = mm.tables().lock_pmd(vmas.stay(), va::<A>(page)).expect("there");
    let head = pmd.entry().pfn(Level::Pmd);
    let protection =
        if s.inaccessible { Protection::none() } else { Protection::private_read_write() };
    let mut e = A::Entry::leaf(head, A::prot(protection), Level::Pmd);
    e = if s.young { e.mkyoung() } else { e.mkold() };
    if s.dirty {
        e = e.mkdirty();
    }
    e = if s.soft_dirty { e.mksoft_dirty() } else { e.clear_soft_dirty() };
    if s.writable {
        e = e.mkwrite(WriteKind::Normal);
    }
    if s.uffd_wp {
        e = e.mkuffd_wp();
    }
    let map = mm.platform().memmap();
    if !s.exclusive {
        map.clear_exclusive(head, 1);
    }
    let mut owed = mm.tables().tlb().obligation();
    pmd.swap(e, &mut owed);
    e
}

fn every_state<A: Arch>() {
    for s in states() {
        let p = machine_of::<A>();
        let mm = space(&p);
        let n = per_pmd::<A>();
        mmap(&mm, 0, 4 * n);
        let pfn = fault_pmd::<A>(&mm, n).expect("mapped");
        let folio = p.memmap().folio(pfn);
        let leaf = set_leaf::<A>(&mm, n, s);
        let tables = p.tables().in_use();
        let flushes = p.tlb().flushes.get();

        split_pmd(&mm, mm.read().stay(), va::<A>(n + n / 2));

        for k in 0..n {
            let e = entry::<A>(&mm, n + k);
            let at = format!("{s:?} page {k}: {e:?}");
            assert!(e.is_leaf(Level::Pte), "{at}");
            assert_eq!(e.pfn(Level::Pte), pfn.add(k), "{at}");
            assert_eq!(e.is_writable(Level::Pte), leaf.is_writable(Level::Pmd), "{at}");
            for kind in [AccessKind::Read, AccessKind::Write, AccessKind::Exec] {
                assert_eq!(e.permits(kind, Level::Pte), leaf.permits(kind, Level::Pmd), "{at}");
            }
            assert_eq!(e.is_protnone(Level::Pte), s.inaccessible, "{at}");
            assert_eq!((e.is_young(), e.is_dirty()), (s.young, s.dirty), "{at}");
            assert_eq!(e.is_soft_dirty(), s.soft_dirty, "{at}");
            assert_eq!(e.is_uffd_wp(), s.uffd_wp, "{at}");
            assert_eq!(p.memmap().page_exclusive(pfn.add(k)), s.exclusive, "{at}");
            assert_eq!(p.memmap().page_mapcount(pfn.add(k)), 1, "{at}");
        }
        assert_eq!(folio.has(FolioFlags::DIRTY), s.dirty, "PSPLIT-05: {s:?}");
        let counts = folio.counts_locked(|c| (c.refs as u64, u64::from(c.mapcount), c.entire));
        assert_eq!(counts, (n, n, 0), "{s:?}");
        assert!(!folio.is_deferred(), "nothing was unmapped: {s:?}");
        assert_eq!(mm.counters().get(RssKind::Anon), n);
        assert_eq!(p.tables().in_use(), tables, "the deposited table is the table");
        assert_eq!(p.events().get(Event::PmdSplit), 1);
        if !s.inaccessible {
            assert!(p.tlb().flushes.get() > flushes, "the leaf may be cached: {s:?}");
        }
        check(&p);
        // Once more changes nothing.
        split_pmd(&mm, mm.read().stay(), va::<A>(n));
        assert_eq!(p.events().get(Event::PmdSplit), 1);
        exit(mm);
        assert_eq!(p.folios_in_use(), 0);
    }
}

/// Rules: PSPLIT-01, PSPLIT-02, PSPLIT-05, EXCL-01, MM-063.
#[test]
fn every_state_survives_on_the_model_formats() {
    every_state::<ModelWord<16>>();
    every_state::<ModelPair<16>>();
    every_state::<ModelCont<16, 4>>();
}

/// Rules: PSPLIT-01, PSPLIT-02, PSPLIT-05, EXCL-01.
#[test]
fn every_state_survives_on_x86_64() {
    every_state::<X86_64>();
}

/// A leaf that only shadow-stack stores may write stays one.
/// Rules: PSPLIT-02, SHSTK-06.
#[test]
fn a_shadow_stack_leaf_becomes_shadow_stack_entries() {
    let p = machine_of::<X86_64>();
    let mm = space(&p);
    mmap(&mm, 0, 1024);
    let pfn = fault_pmd::<X86_64>(&mm, 512).expect("mapped");
    {
        let vmas = mm.read();
        let mut pmd = mm.tables().lock_pmd(vmas.stay(), va::<X86_64>(512)).expect("there");
        let e = <X86_64 as Arch>::Entry::leaf(
            pfn,
            X86_64::prot(Protection::private_read_write()),
            Level::Pmd,
        );
        let mut owed = mm.tables().tlb().obligation();
        pmd.swap(e.mkwrite(WriteKind::ShadowStack), &mut owed);
    }
    split_pmd(&mm, mm.read().stay(), va::<X86_64>(512));
    for page in [512, 700, 1023] {
        let e = entry::<X86_64>(&mm, page);
        assert!(e.is_writable(Level::Pte) && !e.permits(AccessKind::Write, Level::Pte), "{e:?}");
    }
    exit(mm);
}

/// Another space keeps its PMD mapping, and somebody holds a reference.
/// Rules: PSPLIT-02, FOLIO-02, INV-1.
#[test]
fn a_split_in_one_space_leaves_the_other_alone() {
    type A = ModelWord<16>;
    let p = machine_of::<A>();
    let mm = space(&p);
    let n = per_pmd::<A>();
    mmap(&mm, 0, n);
    let pfn = fault_pmd::<A>(&mm, 0).expect("mapped");
    let folio = p.memmap().folio(pfn);
    let held = folio.grab::<Get>(1).expect("room");

    let other = space(&p);
    {
        let copy = mm.read().find(va::<A>(0)).expect("there").clone();
        trees(&p)
            .fork_vma(&other, mm.read().find(va::<A>(0)).expect("there"), &copy)
            .expect("memory");
        let mut vmas = other.write();
        vmas.change().insert(copy).expect("free");
        folio.grab::<Get>(1).expect("room").hand_over();
        p.memmap().clear_exclusive(pfn, 1);
        folio.add_anon_pmd(other.id(), Exclusivity::MaybeShared);
        let deposit = p.tables().alloc(Level::Pte).expect("tables");
        let mut pmd = other.tables().ensure_pmd(vmas.stay(), va::<A>(0)).expect("memory");
        // SAFETY: allocated for this; nobody else knows the frame.
        unsafe { pmd.deposit(deposit) };
        let mut owed = other.tables().tlb().obligation();
        let e =
            <A as Arch>::Entry::leaf(pfn, A::prot(Protection::private_read_write()), Level::Pmd);
        pmd.swap(e, &mut owed);
        other.counters().add(RssKind::Anon, n);
    }
    split_pmd(&mm, mm.read().stay(), va::<A>(0));
    let counts = folio.counts_locked(|c| (c.refs as u64, u64::from(c.mapcount), c.entire));
    assert_eq!(counts, (n + 2, n + 1, 1));
    assert!(folio.maybe_mapped_shared());
    assert!(!p.memmap().page_exclusive(pfn.add(1)));
    check(&p);
    exit(mm);
    assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), (2, 1));
    exit(other);
    drop(held);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: PSPLIT-04, ANON-11.
#[test]
fn the_huge_zero_folio_becomes_entries_of_the_zero_page() {
    fn zero<A: Arch>(uffd_wp: bool) {
        let p = machine_of::<A>();
        let mm = space(&p);
        let n = per_pmd::<A>();
        mmap(&mm, 0, n);
        let huge = p.huge_zero().expect("asked for");
        let refs = p.memmap().folio(huge).refcount();
        {
            let vmas = mm.read();
            let deposit = p.tables().alloc(Level::Pte).expect("tables");
            let mut pmd = mm.tables().ensure_pmd(vmas.stay(), va::<A>(0)).expect("memory");
            // SAFETY: allocated for this; nobody else knows the frame.
            unsafe { pmd.deposit(deposit) };
            let e = A::Entry::leaf(huge, A::prot(Protection::private_read_write()), Level::Pmd);
            let mut owed = mm.tables().tlb().obligation();
            pmd.swap(if uffd_wp { e.mkuffd_wp() } else { e }, &mut owed);
        }
        split_pmd(&mm, mm.read().stay(), va::<A>(n - 1));
        for page in 0..n {
            let e = entry::<A>(&mm, page);
            assert!(e.is_leaf(Level::Pte) && e.is_special() && !e.is_writable(Level::Pte));
            assert_eq!((e.pfn(Level::Pte), e.is_uffd_wp()), (p.zero_page(), uffd_wp));
        }
        assert_eq!(p.memmap().folio(huge).refcount(), refs);
        assert_eq!((mm.counters().resident(), p.events().get(Event::PmdSplit)), (0, 1));
        let mut wrong = Vec::new();
        mm.tables().audit_counts(mm.read().stay(), &mut |f, n, m| wrong.push((f, n, m)));
        assert_eq!(wrong, []);
        exit(mm);
    }
    for uffd_wp in [false, true] {
        zero::<ModelWord<16>>(uffd_wp);
        zero::<ModelPair<16>>(uffd_wp);
        zero::<ModelCont<16, 4>>(uffd_wp);
        zero::<X86_64>(uffd_wp);
    }
}

/// Rules: PSPLIT-01.
#[test]
fn holes_and_tables_are_left_alone() {
    type A = ModelWord<16>;
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 32);
    split_pmd(&mm, mm.read().stay(), va::<A>(0));
    fault::<A>(&mm, 3, 0).expect("mapped");
    let before = entry::<A>(&mm, 3);
    split_pmd(&mm, mm.read().stay(), va::<A>(3));
    assert_eq!((entry::<A>(&mm, 3), p.events().get(Event::PmdSplit)), (before, 0));
    exit(mm);
}
