//! The mapped walk: every entry of a folio in one VMA, once, in order.

use crate::world::*;
use core::num::NonZeroU32;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level, MigrationKind, NonPresent, Pfn, SwapBits, respect};
use mm_folio::{Exclusivity, FolioRef, FolioRun, Get};
use mm_pgtable::{Gather, TablesStay};
use mm_rmap::{Hit, Lookup, MappedWalk, Peek, RmapPlatform, Seek, Strict};
use mm_vma::{Mm, Platform, RssKind};
use mm_x86::X86_64;

type A = ModelWord<16>;

/// Maps a new folio of `order` at any page, across tables if need be.
fn map_across<A: Arch>(mm: &Mm<P<A>>, page: u64, order: u32) -> Pfn {
    let p = mm.platform();
    let vmas = mm.read();
    let vma = vmas.find(va::<A>(page)).expect("a VMA");
    let anon = trees(p).prepare(mm, &vmas, vma).expect("memory");
    let mut new = p.memmap().alloc(order).expect("frames");
    let n = 1u64 << order;
    new.grow(n as u32 - 1).expect("room");
    let head = new.folio().head();
    new.folio().set_anon(anon, vma.linear_index(va::<A>(page)));
    new.folio().add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
    for k in 0..n {
        let e = A::Entry::leaf(head.add(k), A::prot(vma.protection()), Level::Pte);
        let at = va::<A>(page + k);
        let ensured = mm.tables().ensure_table(vmas.stay(), at).expect("memory");
        let mut table = ensured.table().expect("no leaf");
        table.fill(table.index_of(at), 1, e);
    }
    mm.counters().add(RssKind::Anon, n);
    new.hand_over().head()
}

fn stay<'a>() -> TablesStay<'a> {
    // SAFETY: nothing in these tests frees tables while a walk is under way.
    unsafe { TablesStay::new() }
}
fn walk<A: Arch, L: Lookup>(
    mm: &Mm<P<A>>,
    page: u64,
    n: u64,
    frames: (Pfn, u64),
) -> MappedWalk<'_, P<A>, L> {
    MappedWalk::over(mm, stay(), va::<A>(page), n, frames, Seek::Mappings)
}
/// (page of the address space, page of the folio) of every hit.
fn hits<A: Arch, L: Lookup>(walk: &mut MappedWalk<'_, P<A>, L>) -> Vec<(u64, u32)>
where
    P<A>: RmapPlatform,
{
    let mut all = Vec::new();
    while let Some(hit) = walk.next_hit() {
        let page = match hit {
            Hit::Pmd(_) => u32::MAX,
            Hit::Pte(at) => at.page,
        };
        all.push((walk.va().get() >> A::PAGE_SHIFT, page));
    }
    all
}

/// A folio of 16 pages whose first is the fourth entry from the end of a table.
/// Rules: PVMW-08, PVMW-09.
#[test]
fn a_walk_crosses_tables_entry_by_entry_and_run_by_run() {
    let p = machine_of::<X86_64>();
    let mm = space(&p);
    mmap(&mm, 0, 2048);
    let pfn = map_across::<X86_64>(&mm, 508, 4);
    let expected: Vec<_> = (0..16).map(|k| (508 + k, k as u32)).collect();

    let mut w = walk::<_, Strict>(&mm, 508, 16, (pfn, 16));
    for &(page, index) in &expected {
        let Some(Hit::Pte(at)) = w.next_hit() else { panic!("page {page} not found") };
        assert_eq!((at.index as u64, at.page), (page % 512, index));
        assert_eq!((w.va(), w.crossed_table()), (va::<X86_64>(page), page >= 512));
    }
    assert!(w.next_hit().is_none() && w.next_hit().is_none(), "the end stays the end");
    drop(w);
    assert_eq!(hits(&mut walk::<_, Peek>(&mm, 508, 16, (pfn, 16))), expected);

    let mut w = walk::<_, Strict>(&mm, 508, 16, (pfn, 16));
    let mut runs = Vec::new();
    while let Some(hit) = w.next_hit() {
        let Hit::Pte(at) = hit else { panic!("a PMD entry") };
        let n = at.table.run::<{ respect::WRITE }>(at.index, at.entry, at.limit).nr();
        w.consumed(n);
        runs.push((w.va().get() >> 12, n));
    }
    drop(w);
    assert_eq!(runs, [(508, 4), (512, 12)]);
    check(&p);
    exit(mm);
}

/// Upper levels that are missing are stepped over at their own size.
/// Rules: PVMW-03.
#[test]
fn holes_are_stepped_over() {
    let p = machine_of::<X86_64>();
    let mm = space(&p);
    let total = 3 << 18;
    mmap(&mm, 0, total);
    for page in [5, (1 << 18) + 511, total - 1] {
        let pfn = map_across::<X86_64>(&mm, page, 0);
        assert_eq!(hits(&mut walk::<_, Strict>(&mm, 0, total, (pfn, 1))), [(page, 0)]);
        assert_eq!(hits(&mut walk::<_, Peek>(&mm, 0, total, (pfn, 1))), [(page, 0)]);
    }
    // The last pages of the address space: the walk ends, it does not wrap.
    let top = (X86_64::USER_END >> 12) - 3;
    assert_eq!(hits(&mut walk::<_, Strict>(&mm, top, 3, (Pfn::new(1), 1))), []);
    exit_pages(&mm, &[5, (1 << 18) + 511, total - 1]);
    munmap(&mm, 0, 8);
}
/// Unmaps single pages of a mapping too large for the miniature `munmap`.
fn exit_pages(mm: &Mm<P<X86_64>>, pages: &[u64]) {
    let p = mm.platform();
    let mut vmas = mm.write();
    let mut gather = Gather::<_, FolioRef<'_, P<X86_64>, Get>>::new(mm.tables());
    for &page in pages {
        let at = va::<X86_64>(page);
        let mut table = mm.tables().lock_table(vmas.stay(), at).expect("there");
        let e = table.take(table.index_of(at), gather.owed());
        let folio = p.memmap().folio(e.pfn(Level::Pte));
        folio.remove_ptes(0, NonZeroU32::MIN, mm.id());
        mm.counters().sub(RssKind::Anon, 1);
        gather.park(p.memmap().adopt_run(FolioRun::new(folio.head(), 0, 1)));
    }
    gather.finish();
    trees(p).unlink(mm, vmas.find(va::<X86_64>(0)).expect("there"));
    let all = vmas.find(va::<X86_64>(0)).expect("there").range();
    vmas.change().remove(all, drop);
}

/// The page comes from the frame, wherever it is mapped.
/// Rules: PVMW-07.
#[test]
fn a_shifted_mapping_is_found() {
    fn shifted<A: Arch>() {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 64);
        let pfn = map_across::<A>(&mm, 13, 3);
        // From page 2 of the folio on, and over memory that maps something else.
        map_across::<A>(&mm, 24, 3);
        let expected: Vec<_> = (0..6).map(|k| (13 + 2 + k, 2 + k as u32)).collect();
        assert_eq!(hits(&mut walk::<A, Strict>(&mm, 15, 40, (pfn, 8))), expected);
        assert_eq!(hits(&mut walk::<A, Peek>(&mm, 15, 40, (pfn, 8))), expected);
        assert_eq!(hits(&mut walk::<A, Strict>(&mm, 15, 40, (pfn.add(3), 2))), [(16, 0), (17, 1)]);
        exit(mm);
    }
    shifted::<ModelWord<16>>();
    shifted::<ModelPair<16>>();
    shifted::<ModelCont<16, 4>>();
}

/// A leaf that a first look saw and that was split by the time of the lock: the walk goes on
/// with the entries.
///
/// Rules: PVMW-04, PVMW-10.
#[test]
fn a_leaf_that_is_split_under_the_walk_is_found_page_by_page() {
    let p = machine_of::<A>();
    let mm = space(&p);
    let n = per_pmd::<A>();
    mmap(&mm, 0, 4 * n);
    let pfn = fault_pmd::<A>(&mm, n).expect("mapped");
    // One leaf at first.
    let hits = |split: bool| {
        let mut walk =
            MappedWalk::<P<A>, Strict>::over(&mm, stay(), va::<A>(n), n, (pfn, n), Seek::Mappings);
        let (mut leaves, mut ptes) = (0, 0);
        loop {
            match walk.next_hit() {
                None => return (leaves, ptes),
                Some(Hit::Pte(_)) => ptes += 1,
                Some(Hit::Pmd(_)) => {
                    leaves += 1;
                    if split {
                        walk.split_pmd();
                    }
                }
            }
        }
    };
    assert_eq!(hits(false), (1, 0));
    assert_eq!(hits(true), (1, n));
    assert_eq!(hits(true), (0, n), "it is a table now");
    // A leaf of other frames ends the walk; so does one that stands for them.
    let mut walk = MappedWalk::<P<A>, Strict>::over(
        &mm,
        stay(),
        va::<A>(n),
        n,
        (pfn.add(n), n),
        Seek::Mappings,
    );
    assert!(walk.next_hit().is_none());
    drop(walk);
    exit(mm);
}

/// Rules: PVMW-01, PVMW-02, PVMW-11.
#[test]
fn a_pmd_entry_is_hit_once_and_its_lock_given_back() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 64);
    let n = per_pmd::<A>();
    let pfn = fault_pmd::<A>(&mm, n).expect("mapped");
    for seek in [pfn, pfn.add(n - 1)] {
        let mut w = walk::<A, Strict>(&mm, n, n, (seek, 1));
        assert!(matches!(w.next_hit(), Some(Hit::Pmd(_))));
        assert!(w.next_hit().is_none());
        drop(mm.tables().lock_pmd(stay(), va::<A>(n)).expect("not held any more"));
    }
    // Another folio's frames, and an early end.
    assert!(walk::<A, Strict>(&mm, n, n, (pfn.add(n), 4)).next_hit().is_none());
    drop({
        let mut w = walk::<A, Strict>(&mm, n, n, (pfn, n));
        assert!(w.next_hit().is_some());
        w
    });
    drop(mm.tables().lock_pmd(stay(), va::<A>(n)).expect("not held any more"));
    exit(mm);
}

/// Rules: PVMW-10.
#[test]
fn after_a_split_under_the_walk_every_entry_is_hit_once() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 64);
    let n = per_pmd::<A>();
    let pfn = fault_pmd::<A>(&mm, n).expect("mapped");
    // From the middle of the leaf: a VMA may begin there.
    let mut w = walk::<A, Strict>(&mm, n + 3, n - 3, (pfn, n));
    assert!(matches!(w.next_hit(), Some(Hit::Pmd(_))));
    w.split_pmd();
    let expected: Vec<_> = (3..n).map(|k| (n + k, k as u32)).collect();
    assert_eq!(hits(&mut w), expected);
    drop(w);
    check(&p);
    exit(mm);
}

/// A peek takes no lock where there is nothing to find; a strict walk does.
/// Rules: PVMW-06, F-RACE-22.
#[test]
fn a_peek_does_not_wait_for_a_table_without_candidates() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 64);
    let pfn = map_across::<A>(&mm, 0, 0);
    let at = va::<A>(0);
    // A zap between taking the entry and counting it out.
    let mut table = mm.tables().lock_table(stay(), at).expect("there");
    let mut owed = mm.tables().tlb().obligation();
    let e = table.take(0, &mut owed);
    assert!(walk::<A, Peek>(&mm, 0, 16, (pfn, 1)).next_hit().is_none(), "and did not wait");
    std::thread::scope(|s| {
        let strict = s.spawn(|| {
            let found = walk::<A, Strict>(&mm, 0, 16, (pfn, 1)).next_hit().is_some();
            (found, p.memmap().folio(pfn).is_mapped())
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        table.set(0, e);
        drop(table);
        assert_eq!(strict.join().expect("joined"), (true, true));
    });
    owed.now();
    exit(mm);
}

/// Rules: PVMW-06, PVMW-07.
#[test]
fn migration_entries_are_hits_of_a_migration_walk_only() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 64);
    let pfn = map_across::<A>(&mm, 4, 3);
    let mut owed = mm.tables().tlb().obligation();
    for page in [5, 6] {
        let mut table = mm.tables().lock_table(stay(), va::<A>(page)).expect("there");
        let e = table.take(page as usize, &mut owed);
        let moving = NonPresent::Migration {
            kind: MigrationKind::Read,
            pfn: e.pfn(Level::Pte),
            young: false,
            dirty: false,
        };
        let entry = <A as Arch>::Entry::from_nonpresent(moving, SwapBits::default());
        table.set(page as usize, entry.expect("encodes"));
    }
    let mut w =
        MappedWalk::<P<A>, Strict>::over(&mm, stay(), va::<A>(4), 8, (pfn, 8), Seek::Migration);
    assert_eq!(hits(&mut w), [(5, 1), (6, 2)]);
    drop(w);
    let present: Vec<_> = [4, 7, 8, 9, 10, 11].map(|p| (p, p as u32 - 4)).to_vec();
    assert_eq!(hits(&mut walk::<A, Strict>(&mm, 4, 8, (pfn, 8))), present);
    assert_eq!(hits(&mut walk::<A, Peek>(&mm, 4, 8, (pfn, 8))), present);
    // Back again, so that the pages can be unmapped.
    for page in [5, 6] {
        let mut table = mm.tables().lock_table(stay(), va::<A>(page)).expect("there");
        let index = page as usize;
        table.take(index, &mut owed);
        let e = table.get(4).advance(page - 4, Level::Pte);
        table.set(index, e);
    }
    owed.now();
    exit(mm);
}
