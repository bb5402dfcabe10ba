//! Faults with the lock of one mapping, while somebody works on another one.

use crate::common::*;
use mm_arch::{Entry, Rights, VirtRange};
use mm_fault::{
    FaultFlags, FaultOutcome, FaultPolicy, FaultSignal, NeedsMmapLock, ThpPolicy,
    handle_fault_in_vma,
};
use mm_map::{Advice, MapError, madvise, mmap_anon, mprotect, munmap};
use mm_vma::{MmWrite, RssKind, VmaFlags};
use proptest::prelude::*;

type A = mm_arch::model::ModelWord<32>;
const DONE: Result<FaultOutcome, NeedsMmapLock> = Ok(FaultOutcome::Done { major: false });

/// A fault for a store to `page`, with the lock of its mapping; `None` if that is kept.
fn store(mm: &Space<A>, page: u64) -> Option<Result<FaultOutcome, NeedsMmapLock>> {
    let at = va::<A>(page);
    let locked = mm.lock_vma(at)?;
    let policy = FaultPolicy::new(ThpPolicy::new(4));
    Some(handle_fault_in_vma(&policy, &locked, at, FaultFlags::WRITE))
}
/// Two mappings, of pages 0 to 7 and 16 to 23.
fn two(m: &M<A>) -> Space<A> {
    let mm = space::<A>(m, 8);
    mmap_anon(&mut mm.write(), pages::<A>(16, 8), RW).expect("free");
    mm
}
fn end(m: &M<A>, mm: &Space<A>) {
    mm_map::exit(&BATCHED, mm);
    assert_eq!((m.folios_in_use(), mm.counters().get(RssKind::Anon)), (0, 0));
}

/// Rules: RMAP-21, WREUSE-02.
#[test]
fn a_first_page_needs_the_neighbours() {
    let m = new_machine::<A>();
    let mm = two(&m);
    {
        // Somebody works elsewhere: the mapping can be locked, its neighbours not be looked at.
        let writer = mm.write_within(pages::<A>(32, 8));
        assert_eq!(store(&mm, 0), Some(Err(NeedsMmapLock)));
        let vma = writer.find(va::<A>(0)).expect("mapped");
        assert_eq!((vma.anon(), m.folios_in_use()), (None, 0), "nothing was changed");
    }
    assert_eq!(store(&mm, 0), Some(DONE));
    // Not so the second one.
    let writer = mm.write_within(pages::<A>(32, 8));
    assert_eq!(store(&mm, 1), Some(DONE));
    assert_eq!(mm.counters().get(RssKind::Anon), 2);
    drop(writer);
    end(&m, &mm);
}

/// Rules: RMAP-21.
#[test]
fn neighbours_share_a_tree_whoever_is_first() {
    let m = new_machine::<A>();
    let mm = space::<A>(&m, 8);
    mprotect(
        &BATCHED,
        &mut mm.write(),
        pages::<A>(4, 4),
        Rights::READ | Rights::WRITE | Rights::EXEC,
    )
    .expect("mapped");
    assert_eq!([0, 4].map(|page| store(&mm, page)), [Some(DONE); 2]);
    let trees = [0, 4].map(|page| mm.read().find(va::<A>(page)).expect("mapped").anon());
    assert!(trees[0].is_some() && trees[0] == trees[1]);
    end(&m, &mm);
}

/// Rules: WREUSE-02, F-RACE-18.
#[test]
fn who_changes_the_mapping_keeps_faults_out() {
    let m = new_machine::<A>();
    let mm = two(&m);
    assert_eq!([0, 16].map(|page| store(&mm, page)), [Some(DONE); 2]);
    // Fork, collapse, moves.
    let writer = mm.write();
    assert_eq!([0, 16].map(|page| store(&mm, page)), [None; 2]);
    drop(writer);
    let part = pages::<A>(0, 4);
    let mut writer = mm.write_within(part);
    mprotect(&BATCHED, &mut writer, part, Rights::READ).expect("mapped");
    assert_eq!([0, 7, 16].map(|page| store(&mm, page)), [None, None, Some(DONE)]);
    drop(writer);
    let segv = FaultOutcome::Signal(FaultSignal::Segv { va: va::<A>(0) });
    assert_eq!([0, 7].map(|page| store(&mm, page)), [Some(Ok(segv)), Some(DONE)]);
    let mut writer = mm.write_within(pages::<A>(0, 8));
    munmap(&BATCHED, &mut writer, pages::<A>(0, 8)).expect("memory");
    assert_eq!([0, 17].map(|page| store(&mm, page)), [None, Some(DONE)]);
    drop(writer);
    assert_eq!(store(&mm, 0), None);
    end(&m, &mm);
}

/// Rules: UFFD-01.
#[test]
fn userfaultfd_is_asked_with_the_mmap_lock() {
    let m = new_machine::<A>();
    let mm = two(&m);
    assert_eq!(store(&mm, 0), Some(DONE));
    let flags = mm.read().find(va::<A>(0)).expect("mapped").flags();
    let registered = flags | VmaFlags::UFFD_MISSING;
    mm.write().change().find_mut(va::<A>(0)).expect("mapped").set_flags(registered);
    assert_eq!(store(&mm, 1), Some(Err(NeedsMmapLock)));
    mm.write().change().find_mut(va::<A>(0)).expect("mapped").set_flags(flags);
    end(&m, &mm);
}

/// Something that changes mappings.
#[derive(Clone, Copy, Debug)]
enum Change {
    Map { exec: bool },
    Unmap,
    Protect { write: bool },
    Discard,
}

impl Change {
    fn make(self, vmas: &mut MmWrite<'_, M<A>>, range: VirtRange) -> Result<(), MapError> {
        match self {
            Change::Map { exec } => {
                mmap_anon(vmas, range, if exec { RW | VmaFlags::EXEC } else { RW })
            }
            Change::Unmap => munmap(&BATCHED, vmas, range),
            Change::Protect { write } => {
                let rights = if write { Rights::READ | Rights::WRITE } else { Rights::READ };
                mprotect(&BATCHED, vmas, range, rights)
            }
            Change::Discard => madvise(&BATCHED, vmas, range, Advice::DontNeed),
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<(Change, u64, u64, u64)>> {
    let change = prop_oneof![
        any::<bool>().prop_map(|exec| Change::Map { exec }),
        Just(Change::Unmap),
        any::<bool>().prop_map(|write| Change::Protect { write }),
        Just(Change::Discard),
    ];
    prop::collection::vec((change, 0..70u64, 1..12u64, 0..80u64), 1..24)
}

/// What is mapped, with which rights, and what is there.
#[derive(PartialEq, Debug)]
struct All {
    mapped: Vec<(VirtRange, VmaFlags)>,
    there: Vec<u64>,
    writable: Vec<u64>,
    tables: usize,
}

impl All {
    fn of(mm: &Space<A>) -> Self {
        All {
            mapped: mm.read().iter().map(|v| (v.range(), v.flags())).collect(),
            there: which::<A>(mm, 0, 96, |e| !e.is_none()),
            writable: writable::<A>(mm, 0, 96),
            tables: mm.tables().count_tables(mm.read().stay()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Who excludes only those that it has to comes to the same as who excludes all, and nobody
    /// is kept out behind it.
    ///
    /// Rules: LOCK-01, WREUSE-02.
    #[test]
    fn a_writer_of_a_range_does_what_one_of_all_does(changes in changes()) {
        let machines = [false, true].map(|within| (within, new_machine::<A>()));
        let spaces = [0, 1].map(|k| space::<A>(&machines[k].1, 40));
        for (change, first, nr, touched) in changes {
            let range = pages::<A>(first, nr);
            let done = [0, 1].map(|k| {
                let mm = &spaces[k];
                let mut vmas = if machines[k].0 { mm.write_within(range) } else { mm.write() };
                change.make(&mut vmas, range)
            });
            prop_assert_eq!(done[0], done[1]);
            let stored = [0, 1].map(|k| store(&spaces[k], touched));
            prop_assert_eq!(stored[0], stored[1]);
            let is_mapped = spaces[0].read().find(va::<A>(touched)).is_some();
            prop_assert_eq!(stored[0].is_some(), is_mapped, "a mapping is kept");
            prop_assert_eq!(All::of(&spaces[0]), All::of(&spaces[1]));
        }
        for (mm, (_, m)) in spaces.iter().zip(&machines) {
            audit(m, &[mm]);
            end(m, mm);
        }
    }
}
