//! An operation on a run equals the fold of the same operation on single
//! entries, over random tables.
use crate::common::{N, Table, Tables, audit, leaf, page, table, tree};
use mm_arch::model::{ModelCont, ModelEntry, ModelPair, ModelWord};
use mm_arch::{
    AccessKind, Arch, Entry, Flush, Level, Live, NonPresent, SwapBits, SwapSlot, VirtRange,
    WriteKind, respect,
};
use mm_pgtable::slab::{CountingTlb, SlabSpace};
use mm_pgtable::{Run, TableMemory, TableSpace};
use proptest::prelude::*;

const PTE: Level = Level::Pte;

/// What a slot of a random table holds.
#[derive(Clone, Copy, Debug)]
enum Slot {
    None,
    Swap,
    /// Frame that continues the run of its slot, or one off; and its bits.
    Leaf {
        shifted: bool,
        write: bool,
        dirty: bool,
        soft: bool,
        young: bool,
    },
}

fn slot() -> impl Strategy<Value = Slot> {
    let bits = any::<[bool; 4]>();
    let leaf = |shifted, [write, dirty, soft, young]: [bool; 4]| Slot::Leaf {
        shifted,
        write,
        dirty,
        soft,
        young,
    };
    prop_oneof![
        1 => Just(Slot::None),
        1 => Just(Slot::Swap),
        1 => bits.prop_map(move |b| leaf(true, b)),
        12 => bits.prop_map(move |b| leaf(false, b)),
        // Uniform stretches, so that contiguous blocks fold.
        12 => Just(leaf(false, [true, false, false, true])),
    ]
}

fn entry<A: Arch<Entry = ModelEntry>>(i: usize, slot: Slot) -> ModelEntry {
    match slot {
        Slot::None => ModelEntry::NONE,
        Slot::Swap => {
            let what = NonPresent::Swap(SwapSlot { device: 0, offset: i as u64 });
            ModelEntry::from_nonpresent(what, SwapBits::default()).expect("encodes")
        }
        Slot::Leaf { shifted, write, dirty, soft, young } => {
            let mut e = leaf::<A>(0x100 + i as u64 + if shifted { 0x40 } else { 0 }).mkold();
            if dirty {
                e = e.mkdirty().clear_soft_dirty();
            }
            if write {
                e = e.mkwrite(WriteKind::Normal);
            }
            if soft {
                e = e.mksoft_dirty();
            }
            if young { e.mkyoung() } else { e }
        }
    }
}

/// Fills the table: stretches of equal entries are written at once, which on a
/// contiguous format folds whole blocks. Then hardware marks some of them.
fn build<A: Arch<Entry = ModelEntry>>(
    space: &SlabSpace<A>,
    tables: &Tables<A>,
    slots: &[Slot],
    marks: &[(usize, bool)],
) {
    let mut t = table(tables, page::<A>(0));
    let mut i = 0;
    while i < N {
        let e = entry::<A>(i, slots[i]);
        let mut n = 1;
        while e.is_present(PTE)
            && i + n < N
            && entry::<A>(i + n, slots[i + n]) == e.advance(n as u64, PTE)
        {
            n += 1;
        }
        if !e.is_none() {
            t.fill(i, n, e);
        }
        i += n;
    }
    // SAFETY: the table is linked and nobody frees it.
    let raw = unsafe { space.tables().table(t.frame()).as_ref() };
    for (i, store) in marks {
        let kind = if *store { AccessKind::Write } else { AccessKind::Read };
        A::mmu_mark(raw, *i, kind, PTE);
    }
}

/// What two ways of doing the same are compared by.
#[derive(Debug)]
struct Outcome {
    /// All entries, as the ordinary view reads them. The contiguous mark is not
    /// a fact of an entry: one way may keep it and the other give it up.
    entries: Vec<ModelEntry>,
    count: u32,
    owed: Option<VirtRange>,
    /// What the operation itself said.
    said: Said,
}

/// Where the operation worked, what it took, what it answered.
#[derive(Debug, PartialEq, Default)]
struct Said {
    first: usize,
    nr: usize,
    old: Vec<ModelEntry>,
    any: bool,
}

/// Builds the table and runs `f` on it.
fn outcome<A: Arch<Entry = ModelEntry>>(
    slots: &[Slot],
    marks: &[(usize, bool)],
    f: impl for<'g> FnOnce(&mut Table<'g, A>, &mut Flush<'_, CountingTlb>) -> Said,
) -> Outcome {
    use mm_arch::cont::ContEntry;
    let (space, tables) = tree::<A>(3);
    build(&space, &tables, slots, marks);
    let mut owed = tables.tlb().obligation();
    let mut t = table(&tables, page::<A>(0));
    let said = f(&mut t, &mut owed);
    let entries = (0..N).map(|i| t.get(i).with_cont(false)).collect();
    let outcome = Outcome { entries, count: t.desc().entries(), owed: owed.range(), said };
    drop(t);
    audit(&tables);
    outcome
}

/// The batch may owe more than the singles together, never less.
fn same(batch: &Outcome, singles: &Outcome) {
    assert_eq!(batch.entries, singles.entries);
    assert_eq!((batch.count, &batch.said), (singles.count, &singles.said));
    assert_eq!(batch.owed.is_some(), singles.owed.is_some());
    if let (Some(b), Some(s)) = (batch.owed, singles.owed) {
        assert!(b.covers(s), "{b:?} does not cover {s:?}");
    }
}

/// The run at `index`, if a leaf is there.
fn run_at<'g, A: Arch<Entry = ModelEntry>, const MODE: u8>(
    t: &Table<'g, A>,
    index: usize,
    most: usize,
) -> Option<Run<'g>> {
    let head = t.get(index);
    head.is_present(PTE).then(|| t.run::<MODE>(index, head, t.limit(index).at_most(most)))
}

type Input<'a> = (&'a [Slot], &'a [(usize, bool)], usize, usize);

/// Rules: ACC-11, BATCH-01.
fn wrprotect<A: Arch<Entry = ModelEntry>>((slots, marks, index, most): Input<'_>) {
    let go = |one_by_one: bool| {
        outcome::<A>(slots, marks, |t, owed| {
            let Some(run) = run_at::<A, { respect::NOTHING }>(t, index, most) else {
                return Said::default();
            };
            if one_by_one {
                (0..run.nr()).for_each(|k| t.wrprotect(index + k, 1, owed));
            } else {
                t.wrprotect(index, run.nr(), owed);
            }
            Said { first: index, nr: run.nr(), ..Said::default() }
        })
    };
    same(&go(false), &go(true));
}

/// Rules: ACC-07, ACC-09.
fn take<A: Arch<Entry = ModelEntry>>((slots, marks, index, most): Input<'_>) {
    let go = |one_by_one: bool| {
        outcome::<A>(slots, marks, |t, owed| {
            let nr = most.min(N - index);
            let mut old = vec![];
            if one_by_one {
                (0..nr).for_each(|k| old.push(t.take(index + k, owed)));
            } else {
                t.take_each::<Live>(index, nr, owed, |k, e| {
                    assert_eq!(k, old.len(), "in ascending order");
                    old.push(e);
                });
            }
            Said { first: index, nr, old, any: false }
        })
    };
    same(&go(false), &go(true));
}

/// A batch commits to the merged first entry, singles to their own: the batch is
/// compared with what the singles took, merged.
///
/// Rules: ACC-07, ACC-08.
fn clear<A: Arch<Entry = ModelEntry>>((slots, marks, index, most): Input<'_>) {
    let go = |one_by_one: bool| {
        outcome::<A>(slots, marks, |t, owed| {
            const MODE: u8 = respect::WRITE | respect::SOFT_DIRTY;
            let Some(run) = run_at::<A, MODE>(t, index, most) else { return Said::default() };
            let merged = if one_by_one {
                let old: Vec<_> = (0..run.nr())
                    .map(|k| {
                        let one = t.single(index + k);
                        t.clear(one, owed).commit()
                    })
                    .collect();
                merge(&old)
            } else {
                t.clear(run, owed).commit()
            };
            Said { first: index, nr: run.nr(), old: vec![merged], any: false }
        })
    };
    same(&go(false), &go(true));
}

/// What is found and emptied at once is what a scan finds, and says whether one was dirty.
///
/// Rules: ACC-07, BATCH-01.
fn take_while<A: Arch<Entry = ModelEntry>>((slots, marks, index, most): Input<'_>) {
    let go = |one_by_one: bool| {
        outcome::<A>(slots, marks, |t, owed| {
            const MODE: u8 = respect::NOTHING;
            let Some(run) = run_at::<A, MODE>(t, index, most) else { return Said::default() };
            let (head, limit) = (t.get(index), t.limit(index).at_most(most));
            let mut any = head.is_dirty();
            let nr = if one_by_one {
                (0..run.nr()).for_each(|k| any |= t.take(index + k, owed).is_dirty());
                run.nr()
            } else {
                t.take_while::<MODE>(index, head, limit, owed, |e| any |= e.is_dirty())
            };
            Said { first: index, nr, any, ..Said::default() }
        })
    };
    same(&go(false), &go(true));
}

/// The first of `old` with young and dirty of all.
fn merge(old: &[ModelEntry]) -> ModelEntry {
    let mut e = old[0];
    let soft = e.is_soft_dirty();
    if old.iter().any(|x| x.is_dirty()) {
        e = e.mkdirty();
        if !soft {
            e = e.clear_soft_dirty();
        }
    }
    if old.iter().any(|x| x.is_young()) { e.mkyoung() } else { e }
}

/// All entries of a modified run share young and dirty of all (ACC-16), which is
/// the one difference to the singles: their result is compared with that spread
/// over the run.
///
/// Rules: ACC-15, ACC-16.
fn modify<A: Arch<Entry = ModelEntry>>(
    (slots, marks, index, most): Input<'_>,
    change: fn(ModelEntry) -> ModelEntry,
) {
    let go = |one_by_one: bool| {
        outcome::<A>(slots, marks, |t, owed| {
            const MODE: u8 = respect::WRITE | respect::SOFT_DIRTY;
            let Some(run) = run_at::<A, MODE>(t, index, most) else { return Said::default() };
            if one_by_one {
                for k in 0..run.nr() {
                    let one = t.single(index + k);
                    t.modify(one, owed, change);
                }
            } else {
                t.modify(run, owed, change);
            }
            Said { first: index, nr: run.nr(), ..Said::default() }
        })
    };
    let (batch, mut singles) = (go(false), go(true));
    let Said { first, nr, .. } = singles.said;
    if nr > 0 {
        let all = &mut singles.entries[first..first + nr];
        let merged = merge(all);
        for e in all.iter_mut() {
            *e = merge(&[*e, merged]);
        }
    }
    same(&batch, &singles);
}

/// A contiguous format clears young in whole blocks either way (CONT-12).
///
/// Rules: ACC-12, CONT-12.
fn clear_young<A: Arch<Entry = ModelEntry>>((slots, marks, index, most): Input<'_>) {
    let go = |one_by_one: bool| {
        outcome::<A>(slots, marks, |t, _| {
            let Some(run) = run_at::<A, { respect::NOTHING }>(t, index, most) else {
                return Said::default();
            };
            let any = if one_by_one {
                (0..run.nr()).fold(false, |any, k| t.clear_young(index + k, 1) | any)
            } else {
                t.clear_young(index, run.nr())
            };
            Said { first: index, nr: run.nr(), any, ..Said::default() }
        })
    };
    same(&go(false), &go(true));
}

/// Rules: ACC-10, CONT-02.
fn fill<A: Arch<Entry = ModelEntry>>((slots, marks, index, most): Input<'_>) {
    let go = |one_by_one: bool| {
        outcome::<A>(slots, marks, |t, owed| {
            let nr = most.min(N - index);
            t.take_each::<Live>(index, nr, owed, |_, _| ());
            let e = leaf::<A>(0x300 + index as u64);
            if one_by_one {
                (0..nr).for_each(|k| t.fill(index + k, 1, e.advance(k as u64, PTE)));
            } else {
                t.fill(index, nr, e);
            }
            Said { first: index, nr, ..Said::default() }
        })
    };
    same(&go(false), &go(true));
}

fn all_operations<A: Arch<Entry = ModelEntry>>(input: Input<'_>) {
    wrprotect::<A>(input);
    take::<A>(input);
    clear::<A>(input);
    take_while::<A>(input);
    modify::<A>(input, Entry::wrprotect);
    modify::<A>(input, Entry::mkold);
    modify::<A>(input, Entry::mkclean);
    modify::<A>(input, |e| e.mkwrite(WriteKind::Normal));
    clear_young::<A>(input);
    fill::<A>(input);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// On a contiguous format accessed and dirty of a folded block are read as
    /// those of each of its entries, before and after either way; nothing else
    /// differs between the formats.
    ///
    /// Rules: ACC-07, ACC-09, ACC-11, ACC-12, ACC-16, BATCH-01, CONT-08.
    #[test]
    fn a_batch_equals_its_entries_one_by_one(
        slots in prop::collection::vec(slot(), N),
        marks in prop::collection::vec((0..N, any::<bool>()), 0..4),
        uniform in prop::option::weighted(0.5, any::<bool>()),
        index in 0..N,
        most in 1..=N,
    ) {
        let mut slots = slots;
        // Half of the tables have one long stretch of equal entries.
        if let Some(write) = uniform {
            slots[..12].fill(Slot::Leaf { shifted: false, write, dirty: false, soft: false, young: false });
        }
        let input = (&slots[..], &marks[..], index, most);
        all_operations::<ModelWord<N>>(input);
        all_operations::<ModelCont<N, 4>>(input);
        all_operations::<ModelPair<N>>(input);
    }
}
