//! Tables in a tree: made, found, locked, walked and freed.
use crate::common::{Deep, N, audit, leaf, page, pages, stay, table, tree};
use mm_arch::{
    Arch, Entry, FlushScope, Level, Pfn, Protection, SpaceId, TableFrame, Tlb, VirtAddr, VirtRange,
};
use mm_pgtable::slab::{Slab, slab_space};
use mm_pgtable::{
    Ensured, Gather, LockedEntry, PageTables, SpanKind, Step, TableAllocError, TableSpace,
};
use mm_sync::{DefaultLock, ReaderCount};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// A leaf of PMD level.
fn huge<A: Arch>(pfn: u64) -> A::Entry {
    A::Entry::leaf(Pfn::new(pfn), A::prot(Protection::private_read_write()), Level::Pmd)
}

/// Makes the PMD entry of `va` that huge leaf.
fn map_huge<A: Arch>(tables: &crate::common::Tables<A>, va: VirtAddr, pfn: u64) {
    let mut owed = tables.tlb().obligation();
    let old = tables.ensure_pmd(stay(), va).expect("memory").swap(huge::<A>(pfn), &mut owed);
    assert!(old.is_none());
    assert!(owed.is_none(), "nothing was cached");
}

on_all_formats! {
    #[doc = "Rules: ACC-04."]
    fn a_missing_table_is_made_once_and_found_again<A>() {
        let (space, tables) = tree::<A>(3);
        assert_eq!((space.tables.in_use(), tables.count_tables(stay())), (1, 1));
        assert!(tables.lock_table(stay(), page::<A>(0)).is_none());
        let frame = table(&tables, page::<A>(0)).frame();
        assert_eq!(space.tables.in_use(), 2);
        let again = table(&tables, page::<A>(N as u64 - 1));
        assert_eq!((again.frame(), again.va_of(0)), (frame, page::<A>(0)));
        drop(again);
        let other = table(&tables, page::<A>(N as u64));
        assert_ne!(other.frame(), frame);
        assert_eq!(other.va_of(1), page::<A>(N as u64 + 1));
        assert_eq!(other.index_of(page::<A>(N as u64 + 3)), 3);
        drop(other);
        assert_eq!((space.tables.in_use(), tables.count_tables(stay())), (3, 3));
        audit(&tables);
    }

    /// An empty entry above stands for empty entries below; a leaf for its parts.
    ///
    /// Rules: ACC-04, MM-100.
    fn a_new_table_maps_what_its_entry_mapped<A>() {
        let (_, tables) = tree::<A>(2);
        let mut t = table(&tables, page::<A>(5));
        t.fill(5, 1, leaf::<A>(0x42));
        for i in 0..N {
            assert_eq!(t.stored(i).raw() != 0, i == 5, "entry {i}");
        }
        drop(t);
        audit(&tables);
    }

    /// Entries of missing tables and above the last level are none; the end of the range is one.
    fn the_first_entry_that_is_wanted_is_found<A>() {
        let (_, tables) = tree::<A>(3);
        let n = N as u64;
        let all = pages::<A>(0, 4 * n);
        let leaf_at = |range| tables.find(stay(), range, |e: A::Entry| e.is_leaf(Level::Pte).then_some(()));
        assert_eq!(leaf_at(all), None);
        map_huge::<A>(&tables, page::<A>(n), 0x400);
        table(&tables, page::<A>(2 * n)).fill(3, 1, leaf::<A>(0x42));
        table(&tables, page::<A>(2 * n)).fill(5, 1, leaf::<A>(0x43));
        assert_eq!(leaf_at(all), Some((page::<A>(2 * n + 3), ())));
        assert_eq!(leaf_at(pages::<A>(2 * n + 4, n)), Some((page::<A>(2 * n + 5), ())));
        assert_eq!(leaf_at(pages::<A>(0, 2 * n + 3)), None);
        assert_eq!(leaf_at(pages::<A>(2 * n + 4, 1)), None);
    }

    /// What is reported with an item is the place of the item, not that of the next.
    ///
    /// Rules: ACC-23, MM-115.
    fn an_item_is_reported_at_its_own_place<A>() {
        let n = N as u64;
        let (_, tables) = tree::<A>(4);
        table(&tables, page::<A>(n + 5)).fill(5, 1, leaf::<A>(0x55));
        map_huge::<A>(&tables, page::<A>(3 * n), 0x100);
        let mut found = Vec::new();
        for span in tables.spans(stay(), pages::<A>(0, 4 * n)) {
            match tables.lock_entry(stay(), span.range.start()) {
                LockedEntry::Hole => {}
                LockedEntry::Huge(pmd) => {
                    assert_eq!(pmd.range(), Some(span.range));
                    found.push(span.range);
                }
                LockedEntry::Table(t) => {
                    let there = (0..N).filter(|i| !t.get(*i).is_none());
                    found.extend(there.map(|i| {
                        VirtRange::units(t.va_of(i), 1, A::PAGE_SHIFT).expect("a range")
                    }));
                }
            }
        }
        assert_eq!(found, [pages::<A>(n + 5, 1), pages::<A>(3 * n, n)]);
        assert_eq!(tables.spans(stay(), pages::<A>(4 * n, n)).next().map(|s| s.kind), Some(SpanKind::Hole));
    }

    fn without_memory_nothing_is_lost<A>() {
        let space = slab_space::<A>(0);
        assert_eq!(PageTables::new(space.clone(), SpaceId(1)).err(), Some(TableAllocError));
        let (space, tables) = tree::<A>(2);
        drop(table(&tables, page::<A>(0)));
        let fails = tables.ensure_table(stay(), page::<A>(N as u64)).err();
        assert_eq!(fails, Some(TableAllocError));
        assert_eq!((space.tables.in_use(), tables.count_tables(stay())), (2, 2));
        assert!(tables.lock_table(stay(), page::<A>(N as u64)).is_none());
        // What is there stays usable.
        table(&tables, page::<A>(0)).fill(3, 2, leaf::<A>(0x40));
        audit(&tables);
        drop(tables);
        assert_eq!(space.tables.in_use(), 0);
    }

    /// Walkers would follow it.
    fn a_pointer_to_a_table_is_not_swapped_in<A>() {
        let (_, tables) = tree::<A>(3);
        let mut pmd = tables.ensure_pmd(stay(), page::<A>(0)).expect("memory");
        let mut owed = tables.tlb().obligation();
        let pointer = A::Entry::table(TableFrame::new(Pfn::new(0x77)), Level::Pmd);
        let swapped = catch_unwind(AssertUnwindSafe(|| pmd.swap(pointer, &mut owed)));
        assert!(swapped.is_err() && pmd.entry().is_none());
    }

    /// The flush would go to the wrong one.
    fn an_obligation_of_another_space_is_refused<A>() {
        let (space, tables) = tree::<A>(4);
        let other = PageTables::new(space, SpaceId(99)).expect("memory");
        let mut t = table(&tables, page::<A>(0));
        t.fill(0, 1, leaf::<A>(0x42).mkyoung());
        let mut owed = other.tlb().obligation();
        let taken = catch_unwind(AssertUnwindSafe(|| t.take(0, &mut owed)));
        assert_eq!(taken.is_err(), cfg!(debug_assertions));
    }

    fn a_huge_leaf_is_found_and_stands_in_the_way<A>() {
        let (space, tables) = tree::<A>(3);
        assert!(matches!(tables.lock_entry(stay(), page::<A>(0)), LockedEntry::Hole));
        map_huge::<A>(&tables, page::<A>(N as u64), 0x100);
        let va = page::<A>(N as u64 + 5);
        let LockedEntry::Huge(pmd) = tables.lock_entry(stay(), va) else { panic!("no leaf") };
        assert_eq!(pmd.entry().pfn(Level::Pmd), Pfn::new(0x100));
        assert_eq!(pmd.range(), Some(pages::<A>(N as u64, N as u64)));
        assert_eq!((pmd.at().va, pmd.at().index), (page::<A>(N as u64), 1));
        drop(pmd);
        assert!(matches!(tables.ensure_table(stay(), va), Ok(Ensured::Huge(_))));
        assert_eq!(space.tables.in_use(), 1);
        audit(&tables);
    }

    #[doc = "A table in use is not split off by a second look (ACC-22), a huge leaf"]
    #[doc = "is split into its deposited table. Rules: ACC-10, ACC-22."]
    fn a_leaf_is_split_with_the_table_it_deposited<A>() {
        let (space, tables) = tree::<A>(4);
        let va = page::<A>(0);
        map_huge::<A>(&tables, va, 0x100);
        let frames: Vec<_> = (0..2)
            .map(|_| {
                use mm_pgtable::TableMemory;
                space.tables().alloc(Level::Pte).expect("memory")
            })
            .collect();
        let mut pmd = tables.lock_pmd(stay(), va).expect("the root");
        // SAFETY: allocated for this; nobody else knows the frames.
        frames.iter().for_each(|f| unsafe { pmd.deposit(*f) });
        drop(pmd);
        assert_eq!(tables.count_tables(stay()), 3, "deposited tables count");
        let mut pmd = tables.lock_pmd(stay(), va).expect("the root");
        let frame = pmd.withdraw().expect("a table");
        assert_eq!(frame, frames[1], "last in, first out");
        // SAFETY: allocated for this; nobody else knows the frame.
        unsafe { pmd.fill_unlinked(frame, N, leaf::<A>(0x100)) };
        let mut owed = tables.tlb().obligation();
        // SAFETY: as above, and not freed before it is unlinked.
        let old = unsafe { pmd.link(frame, &mut owed) };
        assert!(old.is_leaf(Level::Pmd));
        assert!(!owed.is_none(), "the leaf may be cached");
        drop(pmd);
        owed.now();
        assert_eq!(space.tlb.flushes.get(), 1);
        assert_eq!(space.tlb.bytes.get(), pages::<A>(0, N as u64).bytes());
        let t = table(&tables, va);
        assert_eq!(t.desc().entries(), N as u32);
        assert_eq!(t.get(5).pfn(Level::Pte), Pfn::new(0x105));
        drop(t);
        audit(&tables);
        // The other deposit is still there, and goes with the tree.
        let mut pmd = tables.lock_pmd(stay(), va).expect("the root");
        assert_eq!(pmd.withdraw(), Some(frames[0]));
        assert_eq!(pmd.withdraw(), None);
        // SAFETY: allocated for this; nobody else knows the frame.
        unsafe { pmd.deposit(frames[0]) };
        drop(pmd);
        drop(tables);
        assert_eq!(space.tables.in_use(), 0);
    }

    #[doc = "Rules: ZAP-10, ACC-06."]
    fn only_empty_tables_are_freed<A>() {
        let n = N as u64;
        let (space, tables) = tree::<A>(8);
        // Table 0 gets an entry and loses it, 1 keeps one, 2 is empty, 3 is
        // missing, 4 is a huge leaf, 5 is empty and outside of the range.
        for k in [0, 1, 2, 5] {
            drop(table(&tables, page::<A>(k * n)));
        }
        map_huge::<A>(&tables, page::<A>(4 * n), 0x100);
        table(&tables, page::<A>(n)).fill(N - 1, 1, leaf::<A>(7));
        let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
        let mut t = table(&tables, page::<A>(0));
        t.fill(0, 1, leaf::<A>(9));
        t.take(0, gather.owed());
        drop(t);
        // Not aligned to tables at either end, and the entry of table 1 lies
        // behind what the range covers of it.
        let range = pages::<A>(3, 4 * n);
        // SAFETY: nobody else uses the tree.
        unsafe { tables.free_empty_tables(range, &mut gather) };
        assert_eq!(space.tables.in_use(), 5, "tables are only parked");
        gather.finish();
        assert_eq!((space.tables.in_use(), tables.count_tables(stay())), (3, 3));
        let kinds: Vec<_> = tables.spans(stay(), pages::<A>(0, 6 * n)).map(|s| s.kind).collect();
        use SpanKind::{Hole, Huge, Table};
        assert_eq!(kinds, [Hole, Table, Hole, Hole, Huge, Table]);
        audit(&tables);
        // A freed place can be mapped again, on a table that is empty again.
        let t = table(&tables, page::<A>(0));
        assert_eq!(t.none_run(0, t.limit(0)), N);
        drop(t);
        // A range inside of a table with an entry outside of it keeps it.
        let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
        // SAFETY: as above.
        unsafe { tables.free_empty_tables(pages::<A>(n, 2), &mut gather) };
        drop(gather);
        assert!(tables.lock_table(stay(), page::<A>(n)).is_some());
    }

    #[doc = "The flush that lets a table go drops cached upper levels too."]
    #[doc = "Rules: ZAP-03."]
    fn a_freed_table_is_flushed_with_walk_caches<A>() {
        let (space, tables) = tree::<A>(3);
        drop(table(&tables, page::<A>(0)));
        let before = space.tlb.flushes.get();
        let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
        // SAFETY: nobody else uses the tree.
        unsafe { tables.free_empty_tables(pages::<A>(0, 1), &mut gather) };
        let owed = format!("{gather:?}");
        assert!(owed.contains("Tables"), "{owed}");
        gather.finish();
        assert_eq!(space.tlb.flushes.get(), before + 1);
        // The whole table, though the range was one page.
        assert_eq!(space.tlb.bytes.get(), pages::<A>(0, N as u64).bytes());
    }

    #[doc = "Rules: MM-033, GUPF-07."]
    fn a_walk_ends_where_a_locked_walk_does<A>() {
        let n = N as u64;
        let (_, tables) = tree::<A>(4);
        table(&tables, page::<A>(n)).fill(2, 1, leaf::<A>(0x40));
        map_huge::<A>(&tables, page::<A>(2 * n), 0x100);
        let guard = tables.pin();
        assert!(matches!(guard.walk(page::<A>(0)), Step::Hole { level: Level::Pmd }));
        let Step::Table(slot, view) = guard.walk(page::<A>(n + 2)) else {
            panic!("no table")
        };
        assert_eq!((slot.level(), slot.va()), (Level::Pmd, page::<A>(n)));
        assert_eq!(view.get(view.index_of(page::<A>(n + 2))), leaf::<A>(0x40));
        assert_eq!(slot.entry().as_table(Level::Pmd), Some(view.frame()));
        assert!(slot.is_unchanged());
        let Step::Leaf(slot) = guard.walk(page::<A>(2 * n + 1)) else { panic!("no leaf") };
        assert_eq!(slot.entry(), huge::<A>(0x100));
        drop(guard);
        // Young of the leaf is part of the value that is compared.
        let mut owed = tables.tlb().obligation();
        let mut pmd = tables.lock_pmd(stay(), page::<A>(2 * n)).expect("the root");
        let guard = tables.pin();
        let Step::Leaf(slot) = guard.walk(page::<A>(2 * n)) else { panic!("no leaf") };
        assert!(pmd.set_access_flags(huge::<A>(0x100).mkdirty()));
        assert!(!slot.is_unchanged());
        // Who replaces an entry may have to wait for readers.
        drop(guard);
        // A leaf that hardware does not follow is present still.
        pmd.swap(huge::<A>(0x100).mkinvalid(Level::Pmd), &mut owed);
        let guard = tables.pin();
        assert!(matches!(guard.walk(page::<A>(2 * n)), Step::Leaf(_)));
        drop(guard);
        pmd.swap(A::Entry::NONE, &mut owed);
        let guard = tables.pin();
        assert!(matches!(guard.walk(page::<A>(2 * n)), Step::Hole { level: Level::Pmd }));
        drop((pmd, guard));
        assert!(!owed.is_none());
        owed.now();
        audit(&tables);
    }

    #[doc = "Four threads ask for the same and for neighbouring tables, with"]
    #[doc = "memory for no more than those. Rules: ACC-04, ACC-22."]
    fn racing_installers_agree_and_leak_nothing<A>() {
        for _ in 0..50 {
            // Up to four losers hold a table each for a moment.
            let (space, tables) = tree::<A>(3 + 4);
            std::thread::scope(|s| {
                for k in 0..4usize {
                    let tables = &tables;
                    s.spawn(move || {
                        for t in 0..2 {
                            let va = page::<A>(((t + k) % 2 * N) as u64);
                            table(tables, va).fill(k, 1, leaf::<A>(0x40 + k as u64));
                        }
                    });
                }
            });
            assert_eq!((space.tables.in_use(), tables.count_tables(stay())), (3, 3));
            for t in 0..2 {
                let t = table(&tables, page::<A>(t * N as u64));
                assert_eq!(t.desc().entries(), 4);
                for k in 0..4 {
                    assert_eq!(t.get(k).pfn(Level::Pte), Pfn::new(0x40 + k as u64));
                }
            }
            audit(&tables);
        }
    }
}

/// Every level may fail; what was made on the way stays and is used later.
#[test]
fn allocation_fails_at_every_level_without_a_loss() {
    for nr in 1..=2 {
        let (space, tables) = tree::<Deep>(nr);
        for _ in 0..3 {
            assert!(tables.ensure_table(stay(), page::<Deep>(77)).is_err());
            assert_eq!(space.tables.in_use(), nr);
            assert_eq!(tables.count_tables(stay()), nr);
            audit(&tables);
        }
        assert_eq!(tables.ensure_pmd(stay(), page::<Deep>(77)).is_ok(), nr == 2);
        assert_eq!(tables.lock_pmd(stay(), page::<Deep>(77)).is_some(), nr == 2);
        drop(tables);
        assert_eq!(space.tables.in_use(), 0);
    }
    let (space, tables) = tree::<Deep>(3);
    assert!(tables.ensure_table(stay(), page::<Deep>(77)).is_ok());
    assert!(tables.ensure_table(stay(), page::<Deep>(78)).is_ok());
    assert_eq!(space.tables.in_use(), 3);
}

/// Emptied middle levels go with the tables below them, bottom up.
///
/// A tree that goes gives back every table of every level, and each of them once.
///
/// Rules: ACC-04. Cases: MM-102.
#[test]
fn a_tree_gives_all_of_its_tables_back() {
    // Root; two PMD tables; three PTE tables, one of them with a deposited one.
    let (space, tables) = tree::<Deep>(7);
    for p in [3, 70, 77] {
        table(&tables, page::<Deep>(p)).fill((p % 8) as usize, 1, leaf::<Deep>(p));
    }
    map_huge::<Deep>(&tables, page::<Deep>(0x50), 0x100);
    use mm_pgtable::TableMemory;
    let frame = space.tables().alloc(Level::Pte).expect("memory");
    let mut pmd = tables.lock_pmd(stay(), page::<Deep>(0x50)).expect("there");
    // SAFETY: allocated for this; nobody else knows the frame.
    unsafe { pmd.deposit(frame) };
    drop(pmd);
    assert_eq!((space.tables.in_use(), tables.count_tables(stay())), (7, 7));
    drop(tables);
    assert_eq!(space.tables.in_use(), 0);
    // Each of them can be had once.
    let mut frames: Vec<_> =
        (0..7).map(|_| space.tables().alloc(Level::Pte).expect("memory")).collect();
    frames.sort_by_key(|f| f.pfn());
    frames.dedup();
    assert_eq!(frames.len(), 7);
    assert!(space.tables().alloc(Level::Pte).is_err());
}

/// Rules: ZAP-10.
#[test]
fn empty_middle_levels_are_freed_too() {
    let (space, tables) = tree::<Deep>(8);
    for p in [0, 8, 64] {
        drop(table(&tables, page::<Deep>(p)));
    }
    assert_eq!(space.tables.in_use(), 1 + 2 + 3);
    table(&tables, page::<Deep>(8)).fill(0, 1, leaf::<Deep>(5));
    let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
    let all = VirtRange::new(VirtAddr::new(0), u64::MAX).expect("a range");
    // SAFETY: nobody else uses the tree.
    unsafe { tables.free_empty_tables(all, &mut gather) };
    gather.finish();
    assert_eq!(space.tables.in_use(), 3, "root and the two tables over page 8");
    audit(&tables);
}

/// A table at the edge of a gap may belong to the mapping beyond it.
///
/// Rules: ACC-23, ZAP-10.
#[test]
fn only_tables_inside_of_the_gap_are_freed() {
    let (space, tables) = tree::<Deep>(8);
    for p in [488, 496, 504] {
        drop(table(&tables, page::<Deep>(p)));
    }
    assert_eq!(space.tables.in_use(), 2 + 3);
    let free = |range, gap| {
        let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
        // SAFETY: nobody else uses the tree.
        unsafe { tables.free_empty_tables_in(range, gap, &mut gather) };
        drop(gather);
        space.tables.in_use()
    };
    let range = pages::<Deep>(488, 24);
    assert_eq!(free(range, pages::<Deep>(489, 15)), 4, "one lies inside");
    assert_eq!(free(range, pages::<Deep>(490, 22)), 3, "the last one of the address space");
    assert_eq!(free(range, pages::<Deep>(448, 64)), 1, "the rest, and what is above it");
}

/// A table that keeps a deposit is not empty, or the deposit would be lost.
#[test]
fn a_table_with_a_deposit_is_not_freed() {
    use mm_pgtable::TableMemory;
    let (space, tables) = tree::<Deep>(4);
    let frame = space.tables().alloc(Level::Pte).expect("memory");
    // SAFETY: allocated for this; nobody else knows the frame.
    unsafe { tables.ensure_pmd(stay(), page::<Deep>(0)).expect("memory").deposit(frame) };
    let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
    // SAFETY: nobody else uses the tree.
    unsafe { tables.free_empty_tables(pages::<Deep>(0, 64), &mut gather) };
    gather.finish();
    assert_eq!((space.tables.in_use(), tables.count_tables(stay())), (3, 3));
    drop(tables);
    assert_eq!(space.tables.in_use(), 0);
}

/// Rules: ACC-23.
#[test]
fn spans_end_at_the_top_of_the_address_space() {
    let (_space, tables) = tree::<Deep>(8);
    // The last PTE table of the address space, and a huge leaf before it.
    drop(table(&tables, page::<Deep>(511)));
    map_huge::<Deep>(&tables, page::<Deep>(496), 0x100);
    let range = |first: u64, n: u64| pages::<Deep>(first, n);
    let spans: Vec<_> = tables.spans(stay(), range(441, 512 - 441)).collect();
    let seen: Vec<_> = spans.iter().map(|s| (s.range, s.kind)).collect();
    use SpanKind::{Hole, Huge, Table};
    assert_eq!(
        seen,
        [
            // A missing PMD table is one hole, cut by the range.
            (range(441, 7), Hole),
            (range(448, 8), Hole),
            (range(456, 8), Hole),
            (range(464, 8), Hole),
            (range(472, 8), Hole),
            (range(480, 8), Hole),
            (range(488, 8), Hole),
            (range(496, 8), Huge),
            (range(504, 8), Table),
        ]
    );
    assert_eq!(spans[8].range.last(), VirtAddr::new(u64::MAX));
    // Part of a span, and a range that ends inside.
    let part: Vec<_> = tables.spans(stay(), range(498, 8)).map(|s| (s.range, s.kind)).collect();
    assert_eq!(part, [(range(498, 6), Huge), (range(504, 2), Table)]);
    let byte = VirtRange::new(VirtAddr::new(u64::MAX), 1).expect("a range");
    let last: Vec<_> = tables.spans(stay(), byte).collect();
    assert_eq!((last.len(), last[0].range, last[0].kind), (1, byte, Table));
}

/// A walk reports the level that ended it; levels that the format lacks are not
/// in its list and never seen.
///
/// Rules: MM-033, GUPF-07.
#[test]
fn a_hole_names_the_level_it_was_found_at() {
    let (_, tables) = tree::<Deep>(8);
    let guard = tables.pin();
    assert!(matches!(guard.walk(page::<Deep>(0)), Step::Hole { level: Level::Pud }));
    drop(guard);
    drop(table(&tables, page::<Deep>(0)));
    let guard = tables.pin();
    assert!(matches!(guard.walk(page::<Deep>(8)), Step::Hole { level: Level::Pmd }));
    assert!(matches!(guard.walk(page::<Deep>(64)), Step::Hole { level: Level::Pud }));
    for p in [0, 7] {
        let Step::Table(slot, view) = guard.walk(page::<Deep>(p)) else { panic!("no table") };
        assert_eq!((slot.va(), view.level()), (page::<Deep>(0), Level::Pte));
        assert_eq!(view.frame(), table(&tables, page::<Deep>(p)).frame());
    }
}

/// A machine whose flushes and frees are written down in order.
#[derive(Clone)]
struct Diary(Arc<Parts>);
struct Parts {
    tables: Slab<Deep, DefaultLock>,
    epochs: ReaderCount,
    log: Log,
}
#[derive(Default)]
struct Log(Mutex<Vec<(FlushScope, VirtRange, usize)>>);

impl Tlb for Parts {
    fn flush_range(&self, space: SpaceId, range: VirtRange, scope: FlushScope) {
        assert_eq!(space, SpaceId(9));
        let in_use = self.tables.in_use();
        self.log.0.lock().expect("not poisoned").push((scope, range, in_use));
    }
    fn flush_space(&self, _: SpaceId) {}
    fn defer_range(&self, _: SpaceId, _: VirtRange) {}
    fn flush_deferred(&self) {}
}
// SAFETY: all clones share the parts, which do not change.
unsafe impl TableSpace for Diary {
    type Arch = Deep;
    type PtLock = DefaultLock;
    type Epochs = ReaderCount;
    type Tables = Slab<Deep, DefaultLock>;
    type Tlb = Parts;
    fn tables(&self) -> &Self::Tables {
        &self.0.tables
    }
    fn epochs(&self) -> &ReaderCount {
        &self.0.epochs
    }
    fn tlb(&self) -> &Parts {
        &self.0
    }
}

/// Finds the planted fault "a table is freed before its flush": no table is
/// missing yet when a flush is asked for, and the flush names its whole range.
///
/// Rules: ZAP-03, ZAP-05. Cases: MM-085.
#[test]
fn tables_are_retired_behind_the_flush_that_covers_them() {
    let space = Diary(Arc::new(Parts {
        tables: Slab::new(80, Pfn::new(1)),
        epochs: ReaderCount::new(),
        log: Log::default(),
    }));
    let tables = PageTables::new(space.clone(), SpaceId(9)).expect("a root");
    for k in 0..64 {
        drop(tables.ensure_table(stay(), page::<Deep>(8 * k)).expect("memory"));
    }
    let all = space.0.tables.in_use();
    assert_eq!(all, 1 + 8 + 64);
    let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
    // SAFETY: nobody else uses the tree.
    unsafe { tables.free_empty_tables(pages::<Deep>(8, 504), &mut gather) };
    gather.finish();
    assert_eq!(space.0.tables.in_use(), 3, "the first table and those above it");
    let log = space.0.log.0.lock().expect("not poisoned");
    // Sixteen tables fit, so more than one flush was needed.
    let (mut left, mut covered) = (all, 8);
    for (scope, range, in_use) in log.iter() {
        assert_eq!(*scope, FlushScope::Tables);
        assert_eq!(*in_use, left, "a table was freed before this flush");
        left = left.saturating_sub(16);
        assert!(range.start() <= page::<Deep>(covered));
        covered = range.last().get() / page::<Deep>(1).get() + 1;
    }
    assert_eq!((log.len(), covered), (5, 512));
}

/// A walker that sits in the tree keeps a table that is being freed from going
/// back to the allocator.
///
/// Rules: P-RACE-02.
#[test]
fn a_table_is_not_freed_under_a_walker() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (space, tables) = tree::<Deep>(3);
    drop(table(&tables, page::<Deep>(0)));
    let freed = AtomicBool::new(false);
    std::thread::scope(|s| {
        let guard = tables.pin();
        let Step::Table(_, view) = guard.walk(page::<Deep>(0)) else { panic!("no table") };
        s.spawn(|| {
            let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
            // SAFETY: no locked walker runs.
            unsafe { tables.free_empty_tables(pages::<Deep>(0, 8), &mut gather) };
            gather.finish();
            freed.store(true, Ordering::Release);
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!freed.load(Ordering::Acquire));
        assert!(view.get(0).is_none());
        assert!(space.tables.in_use() > 1);
        drop(guard);
    });
    assert!(freed.load(Ordering::Acquire));
    assert_eq!(space.tables.in_use(), 1);
}
