//! Entries of a locked table: taken, put back, changed, gathered; counted.
use crate::common::{N, audit, leaf, page, pages, stay, table, tree, writable};
use mm_arch::model::{ModelCont, ModelEntry, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level, NonPresent, Pfn, Private, SwapBits, SwapSlot, respect};
use mm_pgtable::Gather;
use proptest::prelude::*;
use std::cell::Cell;

const PTE: Level = Level::Pte;

fn swap(offset: u64) -> ModelEntry {
    let slot = SwapSlot { device: 1, offset };
    ModelEntry::from_nonpresent(NonPresent::Swap(slot), SwapBits::default()).expect("encodes")
}

on_all_formats! {
    /// Finds the planted fault "a missing flush": what was taken is owed.
    ///
    /// Rules: ACC-06, PTE-19.
    fn taking_owes_a_flush_only_if_a_cpu_may_hold_the_entry<A>() {
        let (space, tables) = tree::<A>(3);
        let mut t = table(&tables, page::<A>(0));
        t.set(1, swap(5));
        let mut owed = tables.tlb().obligation();
        assert_eq!(t.take(1, &mut owed), swap(5));
        assert!(t.take(2, &mut owed).is_none());
        assert!(owed.is_none(), "nobody caches an entry that maps nothing");
        t.fill(4, 3, leaf::<A>(0x40));
        t.take(5, &mut owed);
        assert_eq!(owed.range(), Some(pages::<A>(5, 1)));
        let mut seen = vec![];
        t.take_each::<Private>(3, 5, &mut owed, |k, e| seen.push((k, e.is_none())));
        assert_eq!(seen, [(0, true), (1, false), (2, true), (3, false), (4, true)]);
        assert_eq!(owed.range(), Some(pages::<A>(3, 5)));
        assert_eq!(t.desc().entries(), 0);
        let before = space.tlb.flushes.get();
        drop(owed);
        assert_eq!(space.tlb.flushes.get(), before + 1, "a forgotten obligation is paid");
    }

    fn nothing_happens_to_no_entries<A>() {
        let (space, tables) = tree::<A>(3);
        let mut t = table(&tables, page::<A>(0));
        t.fill(0, 4, leaf::<A>(0x40));
        let mut owed = tables.tlb().obligation();
        t.take_each::<Private>(0, 0, &mut owed, |_, _| panic!("no entry"));
        t.wrprotect(N, 0, &mut owed);
        assert!(!t.clear_young(0, 0));
        assert!(owed.is_none() && space.tlb.flushes.get() == 0);
        assert_eq!(t.desc().entries(), 4);
    }

    #[doc = "Rules: ACC-11, ACC-12, ACC-17, REF-13, WREUSE-15."]
    fn protecting_owes_a_flush_and_aging_and_widening_do_not<A>() {
        let (_space, tables) = tree::<A>(3);
        let mut t = table(&tables, page::<A>(0));
        t.fill(0, 4, writable::<A>(0x40).mkdirty());
        let mut owed = tables.tlb().obligation();
        assert!(t.clear_young(0, 4));
        assert!(!t.clear_young(0, 4), "cleared already");
        assert!(owed.is_none());
        t.wrprotect(0, 4, &mut owed);
        assert_eq!(owed.range(), Some(pages::<A>(0, 4)));
        for i in 0..4 {
            assert!(!t.get(i).is_writable(PTE) && t.get(i).is_dirty(), "dirty is kept");
        }
        owed.now();
        assert!(t.set_access_flags(2, writable::<A>(0x42)));
        assert!(!t.set_access_flags(2, writable::<A>(0x42)), "nothing to add");
        assert!(t.get(2).is_writable(PTE) && t.get(2).is_young());
        assert!(!t.get(1).is_writable(PTE) && !t.get(3).is_writable(PTE));
        assert_eq!(t.desc().entries(), 4);
    }

    #[doc = "Rules: ACC-07, UNMAP-18."]
    fn a_cleared_run_is_gone_or_back<A>() {
        let (_space, tables) = tree::<A>(3);
        let mut t = table(&tables, page::<A>(0));
        // Only one in the middle is dirty, another one is young.
        t.fill(0, 8, writable::<A>(0x40).mkold());
        t.set_access_flags(3, writable::<A>(0x43).mkold().mkdirty().clear_soft_dirty());
        t.set_access_flags(5, leaf::<A>(0x45).mkyoung());
        let mut owed = tables.tlb().obligation();
        let head = t.get(0);
        let run = t.run::<{ respect::WRITE | respect::SOFT_DIRTY }>(0, head, t.limit(0).at_most(8));
        assert_eq!(run.nr(), 8);

        let cleared = t.clear(run, &mut owed);
        assert_eq!(cleared.nr(), 8);
        assert!(cleared.entry().is_dirty() && cleared.entry().is_young());
        assert!(!cleared.entry().is_soft_dirty(), "merging dirt invents no soft-dirty");
        cleared.restore();
        assert_eq!(t.desc().entries(), 8);
        for i in 0..8 {
            let e = t.get(i);
            assert_eq!(e.pfn(PTE), Pfn::new(0x40 + i as u64));
            assert!(e.is_dirty() && e.is_young() && e.is_writable(PTE));
        }
        assert_eq!(owed.range(), Some(pages::<A>(0, 8)), "restored entries were cached too");

        drop(t.clear(run, &mut owed));
        assert_eq!(t.get(7).pfn(PTE), Pfn::new(0x47), "forgetting restores");
        t.clear(run, &mut owed).restore_read_only();
        assert!(t.get(0).is_dirty() && !t.get(0).is_writable(PTE) && !t.get(7).is_writable(PTE));
        let e = t.clear(run, &mut owed).commit();
        assert!(e.is_dirty());
        assert_eq!((t.desc().entries(), t.none_run(0, t.limit(0))), (0, N));
        drop(t);
        audit(&tables);
    }

    #[doc = "Half of a folio is shared with a child and read-only, half is not; the"]
    #[doc = "run was scanned without respect for write. Rules: MM-006, UNMAP-18."]
    fn a_restored_run_is_never_wider<A>() {
        let (_space, tables) = tree::<A>(3);
        let mut t = table(&tables, page::<A>(0));
        t.fill(0, 8, writable::<A>(0x40));
        t.fill(8, 8, leaf::<A>(0x48).mksoft_dirty());
        let head = t.get(0).mkdirty();
        t.set_access_flags(0, head);
        let mut owed = tables.tlb().obligation();
        let run = t.run::<{ respect::NOTHING }>(0, t.get(0), t.limit(0));
        assert_eq!(run.nr(), 16);
        t.clear(run, &mut owed).restore();
        for i in 0..16 {
            let e = t.get(i);
            assert!(!e.is_writable(PTE), "entry {i} became writable");
            assert!(e.is_dirty() && e.is_soft_dirty(), "entry {i} lost dirt");
        }
        // Scanned with respect, it is two runs and nothing is flattened.
        t.take_each::<Private>(0, 16, &mut owed, |_, _| ());
        t.fill(0, 8, writable::<A>(0x40));
        t.fill(8, 8, leaf::<A>(0x48).mksoft_dirty());
        let run = t.run::<{ respect::WRITE | respect::SOFT_DIRTY }>(0, t.get(0), t.limit(0));
        assert_eq!(run.nr(), 8);
        t.clear(run, &mut owed).restore();
        assert!(t.get(7).is_writable(PTE) && !t.get(7).is_soft_dirty());
        assert!(!t.get(8).is_writable(PTE) && t.get(8).is_soft_dirty());
    }

    #[doc = "Rules: ACC-15, ACC-16, ACC-24."]
    fn a_modified_run_shares_its_dirt_and_owes_only_for_its_change<A>() {
        let (space, tables) = tree::<A>(3);
        let mut t = table(&tables, page::<A>(0));
        t.fill(0, 16, writable::<A>(0x40).mkold());
        t.set_access_flags(9, writable::<A>(0x49).mkold().mkdirty().clear_soft_dirty());
        let run = t.run::<{ respect::WRITE | respect::SOFT_DIRTY }>(0, t.get(0), t.limit(0));
        assert_eq!(run.nr(), 16);
        // A change that takes nothing away owes nothing.
        let mut owed = tables.tlb().obligation();
        let before = space.tlb.flushes.get();
        t.modify(run, &mut owed, |e| {
            assert!(e.is_dirty(), "the change sees the merged entry");
            e.mkyoung()
        });
        assert!(owed.is_none());
        assert_eq!(space.tlb.flushes.get(), before);
        // A change that narrows owes the whole run.
        t.modify(run, &mut owed, Entry::wrprotect);
        assert_eq!(owed.range(), Some(pages::<A>(0, 16)));
        for i in 0..16 {
            let e = t.get(i);
            assert_eq!(e.pfn(PTE), Pfn::new(0x40 + i as u64));
            assert!(e.is_dirty() && e.is_young() && !e.is_writable(PTE) && !e.is_soft_dirty());
        }
        assert_eq!(t.desc().entries(), 16);
        owed.now();
        // Part of it is replaced by swap entries that follow each other.
        let mut owed = tables.tlb().obligation();
        t.modify(run.prefix(3), &mut owed, |_| swap(100));
        assert_eq!(t.get(2), swap(102));
        assert_eq!((t.desc().entries(), owed.range()), (16, Some(pages::<A>(0, 3))));
        // And part by nothing.
        let run = t.run::<{ respect::WRITE }>(4, t.get(4), t.limit(4).at_most(4));
        t.modify(run, &mut owed, |_| A::Entry::NONE);
        assert_eq!((t.none_run(4, t.limit(4)), t.desc().entries()), (4, 12));
        assert_eq!(owed.range(), Some(pages::<A>(0, 8)));
        drop(t);
        audit(&tables);
    }

    #[doc = "A change that panics leaves nothing behind in a cache."]
    fn a_modify_that_panics_flushes<A>() {
        let (space, tables) = tree::<A>(3);
        let mut t = table(&tables, page::<A>(0));
        t.fill(0, 2, leaf::<A>(0x40));
        let before = space.tlb.flushes.get();
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let run = t.run::<{ respect::WRITE }>(0, t.get(0), t.limit(0).at_most(2));
            let mut owed = tables.tlb().obligation();
            t.modify(run, &mut owed, |_| std::panic::panic_any("changed my mind"));
        }));
        assert!(panics.is_err());
        assert!(space.tlb.flushes.get() > before);
        drop(t);
        audit(&tables);
    }

    #[doc = "Finds the planted faults \"a missing flush\" and \"let go before the"]
    #[doc = "flush\": an item knows the number of flushes when it was parked."]
    #[doc = "Rules: ZAP-03, ZAP-05, F-RACE-05."]
    fn items_are_let_go_behind_the_flush<A>() {
        let (space, tables) = tree::<A>(8);
        let (dropped, in_order) = (Cell::new(0), Cell::new(true));
        let flushes = || space.tlb.flushes.get();
        struct Item<'a>(&'a dyn Fn() -> u64, u64, &'a Cell<usize>, &'a Cell<bool>);
        impl Drop for Item<'_> {
            fn drop(&mut self) {
                // Not an assertion: a panic while the gather is dropped aborts.
                self.3.set(self.3.get() && (self.0)() > self.1);
                self.2.set(self.2.get() + 1);
            }
        }
        const ITEMS: usize = 4 * N;
        for first in 0..4 {
            table(&tables, page::<A>((first * N) as u64)).fill(0, N, leaf::<A>(0x40));
        }
        let mut gather = Gather::new(&tables);
        for k in 0..ITEMS {
            let mut t = table(&tables, page::<A>(k as u64));
            let index = t.index_of(page::<A>(k as u64));
            t.take(index, gather.owed());
            gather.park(Item(&flushes, flushes(), &dropped, &in_order));
        }
        assert!(dropped.get() > 0 && dropped.get() < ITEMS, "a full gather flushes on its own");
        gather.flush();
        assert_eq!(dropped.get(), ITEMS);
        let now = flushes();
        gather.flush();
        gather.finish();
        assert_eq!(flushes(), now, "nothing more is owed");
        // Dropping is as good as finishing.
        let mut t = table(&tables, page::<A>(0));
        t.fill(0, 1, leaf::<A>(0x40));
        let mut gather = Gather::new(&tables);
        t.take(0, gather.owed());
        gather.park(Item(&flushes, flushes(), &dropped, &in_order));
        drop(gather);
        assert_eq!(dropped.get(), ITEMS + 1);
        assert!(in_order.get(), "an item was let go while a CPU could use it");
    }
}

/// One step of the random history.
#[derive(Clone, Debug)]
enum Op {
    Fill(usize, usize, u64),
    Swap(usize, u64),
    Take(usize, usize),
    Protect(usize),
    Clear(usize, usize, bool),
    Modify(usize, usize, bool),
    FreeEmpty(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let (i, n) = (0..4 * N, 1..N);
    prop_oneof![
        4 => (i.clone(), n.clone(), 0u64..64).prop_map(|(i, n, p)| Op::Fill(i, n, p)),
        1 => (i.clone(), 0u64..64).prop_map(|(i, o)| Op::Swap(i, o)),
        3 => (i.clone(), n.clone()).prop_map(|(i, n)| Op::Take(i, n)),
        1 => i.clone().prop_map(Op::Protect),
        1 => (i.clone(), n.clone(), any::<bool>()).prop_map(|(i, n, c)| Op::Clear(i, n, c)),
        1 => (i.clone(), n.clone(), any::<bool>()).prop_map(|(i, n, c)| Op::Modify(i, n, c)),
        1 => (i, n).prop_map(|(i, n)| Op::FreeEmpty(i, n)),
    ]
}

fn history<A: Arch<Entry = ModelEntry>>(ops: &[Op]) {
    let (space, tables) = tree::<A>(5);
    // What should be mapped.
    let mut mirror = [false; 4 * N];
    let mut owed = tables.tlb().obligation();
    for op in ops {
        if let Op::FreeEmpty(i, n) = *op {
            let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
            let range = pages::<A>(i as u64, n as u64);
            // SAFETY: nobody else uses the tree.
            unsafe { tables.free_empty_tables(range, &mut gather) };
            continue;
        }
        let (Op::Fill(i, ..)
        | Op::Swap(i, ..)
        | Op::Take(i, ..)
        | Op::Protect(i)
        | Op::Clear(i, ..)
        | Op::Modify(i, ..)
        | Op::FreeEmpty(i, ..)) = *op;
        let mut t = table(&tables, page::<A>(i as u64));
        let (base, at) = (i - i % N, i % N);
        let head = t.get(at);
        match *op {
            Op::Fill(_, n, pfn) => {
                let n = t.none_run(at, t.limit(at).at_most(n)).min(n);
                if n > 0 {
                    t.fill(at, n, writable::<A>(0x100 + pfn));
                    mirror[base + at..base + at + n].fill(true);
                }
            }
            Op::Swap(_, offset) if !head.is_present(PTE) => {
                t.set(at, if offset == 0 { ModelEntry::NONE } else { swap(offset) });
                mirror[i] = offset != 0;
            }
            Op::Take(_, n) => {
                let n = n.min(N - at);
                t.take_each::<Private>(at, n, &mut owed, |_, _| ());
                mirror[i..i + n].fill(false);
            }
            Op::Protect(_) if head.is_present(PTE) => t.wrprotect(at, 1, &mut owed),
            Op::Clear(_, n, commit) if head.is_present(PTE) => {
                let run = t.run::<{ respect::NOTHING }>(at, head, t.limit(at).at_most(n));
                let cleared = t.clear(run, &mut owed);
                if commit {
                    cleared.commit();
                    mirror[i..i + run.nr()].fill(false);
                }
            }
            Op::Modify(_, n, gone) if head.is_present(PTE) => {
                let run = t.run::<{ respect::WRITE }>(at, head, t.limit(at).at_most(n));
                t.modify(run, &mut owed, |e| if gone { ModelEntry::NONE } else { e.wrprotect() });
                if gone {
                    mirror[i..i + run.nr()].fill(false);
                }
            }
            _ => {}
        }
        drop(t);
        audit(&tables);
    }
    for (i, mapped) in mirror.iter().enumerate() {
        let e = tables.lock_table(stay(), page::<A>(i as u64)).map(|t| t.get(i % N));
        assert_eq!(e.is_some_and(|e| !e.is_none()), *mapped, "page {i}");
    }
    assert_eq!(space.tables.in_use(), tables.count_tables(stay()));
    drop(owed);
    drop(tables);
    assert_eq!(space.tables.in_use(), 0, "the tree left tables behind");
}

proptest! {
    /// Entry counts are those of a recount after every step of a random history,
    /// no entry is lost by freeing tables, and nothing is left at the end.
    ///
    /// Rules: ZAP-10.
    #[test]
    fn counts_are_those_of_a_recount(ops in prop::collection::vec(op(), 1..40)) {
        history::<ModelWord<N>>(&ops);
        history::<ModelCont<N, 4>>(&ops);
        history::<ModelPair<N>>(&ops);
    }
}
