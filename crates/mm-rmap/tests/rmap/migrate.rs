//! Mappings that are suspended come back as they were, wherever the folio is then.

use crate::world::*;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level, MigrationKind, NonPresent, Pfn, VirtAddr};
use mm_folio::{FolioFlags, FrameBytes, Get, Pin};
use mm_pgtable::{LockedEntry, TableSpace};
use mm_rmap::{
    Batching, Leaves, MigrationError, RmapPlatform, migrate_folio, split_pmd, suspend_mappings,
};
use mm_vma::{Event, Mm, Platform, RssKind};
use mm_x86::X86_64;
use proptest::prelude::*;

const BOTH: [Batching; 2] = [Batching::PerPage, Batching::Batched];

/// What an entry is made to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    writable: bool,
    exclusive: bool,
    young: bool,
    dirty: bool,
    soft_dirty: bool,
    uffd_wp: bool,
}

impl State {
    fn of(n: u8) -> Self {
        let bit = |k: u8| n >> k & 1 != 0;
        State {
            writable: bit(0) && bit(1) && !bit(5),
            exclusive: bit(1),
            young: bit(2),
            dirty: bit(3),
            soft_dirty: bit(4),
            uffd_wp: bit(5),
        }
    }
    fn kind(self) -> MigrationKind {
        match (self.writable, self.exclusive) {
            (true, _) => MigrationKind::Write,
            (false, true) => MigrationKind::ReadExclusive,
            (false, false) => MigrationKind::Read,
        }
    }
}

/// Gives the entry at `page`, a PTE or a leaf, the state.
fn set_state<A: Arch>(mm: &Mm<P<A>>, page: u64, s: State) -> A::Entry {
    let vmas = mm.read();
    let vma = vmas.find(va::<A>(page)).expect("mapped");
    let (prot, kind) = (A::prot(vma.protection()), vma.write_kind());
    let make = |old: A::Entry, level| {
        let mut e = A::Entry::leaf(old.pfn(level), prot, level).wrprotect();
        e = if s.young { e.mkyoung() } else { e.mkold() };
        if s.dirty {
            e = e.mkdirty();
        }
        e = if s.soft_dirty { e.mksoft_dirty() } else { e.clear_soft_dirty() };
        if s.uffd_wp {
            e = e.mkuffd_wp();
        }
        if s.writable { e.mkwrite(kind) } else { e }
    };
    let mut owed = mm.tables().tlb().obligation();
    let (e, pfn) = match mm.tables().lock_entry(vmas.stay(), va::<A>(page)) {
        LockedEntry::Table(mut t) => {
            let index = t.index_of(va::<A>(page));
            let old = t.take(index, &mut owed);
            let e = make(old, Level::Pte);
            t.set(index, e);
            (e, old.pfn(Level::Pte))
        }
        LockedEntry::Huge(mut pmd) => {
            let e = make(pmd.entry(), Level::Pmd);
            let old = pmd.swap(e, &mut owed);
            (e, old.pfn(Level::Pmd))
        }
        LockedEntry::Hole => panic!("nothing at {page}"),
    };
    let map = mm.platform().memmap();
    if s.exclusive {
        map.set_exclusive(pfn, 1);
    } else {
        map.clear_exclusive(pfn, 1);
    }
    e
}

/// The frame that an entry maps, and everything else that it says.
fn facts<En: Entry>(e: En, level: Level) -> (bool, bool, bool, bool, bool, bool) {
    (
        e.is_leaf(level),
        e.is_writable(level),
        e.is_young(),
        e.is_dirty(),
        e.is_soft_dirty(),
        e.is_uffd_wp(),
    )
}
/// Formats without room for young and dirty in a migration entry forget them; dirt is
/// the folio's then.
fn kept<A: Arch>(e: A::Entry, level: Level) -> (bool, bool, bool, bool, bool, bool) {
    let mut f = facts(e, level);
    if !A::Entry::SWAP_YOUNG_DIRTY {
        (f.2, f.3) = (false, false);
    }
    f
}

fn round_trip<A: Arch>(batching: Batching) {
    for n in 0..64 {
        let s = State::of(n);
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 16);
        let pfn = fault::<A>(&mm, 4, 2).expect("mapped");
        let folio = p.memmap().folio(pfn);
        for k in 0..4 {
            set_state::<A>(&mm, 4 + k, s);
        }
        let before: Vec<_> = (4..8).map(|k| entry::<A>(&mm, k)).collect();
        let own = folio.grab::<Get>(1).expect("room");
        let locked = folio.lock();

        let suspended =
            suspend_mappings(&p, &locked, Leaves::Keep, batching).expect("nothing is pinned");
        for k in 0..4 {
            let e = entry::<A>(&mm, 4 + k);
            let Some(NonPresent::Migration { kind, pfn: of, young, dirty }) =
                e.nonpresent(Level::Pte)
            else {
                panic!("{e:?} is no migration entry");
            };
            assert_eq!((kind, of), (s.kind(), pfn.add(k)), "{s:?}");
            let room = A::Entry::SWAP_YOUNG_DIRTY;
            assert_eq!((young, dirty), (s.young && room, s.dirty && room), "{s:?}");
            let b = before[0];
            let bits = e.swap_bits();
            assert_eq!((bits.soft_dirty, bits.uffd_wp), (b.is_soft_dirty(), b.is_uffd_wp()));
            assert!(!p.memmap().page_exclusive(pfn.add(k)), "{s:?}");
        }
        assert_eq!((folio.refcount(), folio.mapcount()), (1, 0), "{s:?}");
        assert_eq!(folio.has(FolioFlags::DIRTY), s.dirty, "{s:?}");
        assert_eq!(mm.counters().get(RssKind::Anon), 4, "not resident any less: {s:?}");

        suspended.resume_at(pfn);
        for k in 0..4u64 {
            let (e, b) = (entry::<A>(&mm, 4 + k), before[k as usize]);
            assert_eq!(e.pfn(Level::Pte), pfn.add(k), "{s:?}");
            assert_eq!(kept::<A>(e, Level::Pte), kept::<A>(b, Level::Pte), "{s:?}");
            assert_eq!(p.memmap().page_exclusive(pfn.add(k)), s.exclusive, "{s:?}");
        }
        assert_eq!((folio.refcount(), folio.mapcount()), (5, 4), "{s:?}");
        drop((locked, own));
        check(&p);
        exit(mm);
        assert_eq!(p.folios_in_use(), 0);
    }
}

/// Rules: MIGR-01, MIGR-03, EXCL-06, RMAP-18, MM-038.
#[test]
fn every_state_comes_back() {
    for batching in BOTH {
        round_trip::<ModelWord<16>>(batching);
        round_trip::<ModelPair<16>>(batching);
        round_trip::<ModelCont<16, 4>>(batching);
        round_trip::<X86_64>(batching);
    }
}

/// Fills `n` pages from `pfn` on with their own numbers.
fn fill<A: Arch>(p: &P<A>, pfn: Pfn, n: u64) {
    for k in 0..n {
        p.bytes().store(pfn.add(k), 0, 100 + k);
    }
}
fn frame_at<A: Arch>(mm: &Mm<P<A>>, page: u64) -> Pfn {
    entry::<A>(mm, page).pfn(Level::Pte)
}

fn moves<A: Arch>(batching: Batching) {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 16);
    let old = fault::<A>(&mm, 4, 2).expect("mapped");
    fill(&p, old, 4);
    let folio = p.memmap().folio(old);
    folio.set_flag(FolioFlags::REFERENCED | FolioFlags::SWAPBACKED | FolioFlags::NO_LONGTERM);
    let named = folio.anon();
    let child = fork::<A>(&mm);
    munmap(&child, 5, 1);
    let states = |mm: &Mm<P<A>>| -> Vec<_> {
        (4..8).map(|k| kept::<A>(entry::<A>(mm, k), Level::Pte)).collect()
    };
    let before = (states(&mm), states(&child));
    let own = folio.grab::<Get>(1).expect("room");
    // As if a mapping had been locked until now, and was not looked at since.
    folio.mlock();

    migrate_folio(&p, &own, None, batching).expect("nobody holds it");
    drop(own);

    assert_eq!((states(&mm), states(&child)), before);
    let new = frame_at::<A>(&mm, 4);
    assert_ne!(new, old);
    let folio = p.memmap().folio(new);
    for k in 0..4 {
        assert_eq!(frame_at::<A>(&mm, 4 + k), new.add(k));
        assert_eq!(p.bytes().load(new.add(k), 0), 100 + k);
        if k != 1 {
            assert_eq!(frame_at::<A>(&child, 4 + k), new.add(k));
        }
    }
    assert_eq!(folio.anon(), named);
    assert!(folio.has(FolioFlags::REFERENCED | FolioFlags::SWAPBACKED));
    assert!(!folio.has(FolioFlags::MLOCKED), "no mapping is locked");
    assert!(folio.is_longterm_pinnable(), "that was about the frames");
    assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), (7, 7));
    assert_eq!(p.folios_in_use(), 1, "the old place is free");
    check(&p);
    exit(child);
    exit(mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: MIGR-01, MIGR-03, FOLIO-45.
#[test]
fn a_folio_moves_with_all_of_its_mappings() {
    for batching in BOTH {
        moves::<ModelWord<16>>(batching);
        moves::<ModelPair<16>>(batching);
        moves::<ModelCont<16, 4>>(batching);
        moves::<X86_64>(batching);
    }
}

fn stays<A: Arch>() {
    for batching in BOTH {
        for pinned in [true, false] {
            let p = machine_of::<A>();
            let mm = space(&p);
            mmap(&mm, 0, 16);
            let pfn = fault::<A>(&mm, 4, 2).expect("mapped");
            // The first page was shared once: it is suspended before the pin is met.
            set_state::<A>(&mm, 4, State::of(0b1100));
            let before: Vec<_> =
                (4..8).map(|k| kept::<A>(entry::<A>(&mm, k), Level::Pte)).collect();
            let folio = p.memmap().folio(pfn);
            let pin = pinned.then(|| folio.grab::<Pin>(1).expect("room"));
            let get = (!pinned).then(|| folio.grab::<Get>(1).expect("room"));
            let own = folio.grab::<Get>(1).expect("room");
            let result = migrate_folio(&p, &own, None, batching);
            drop(own);
            assert_eq!(result, Err(MigrationError::Busy));
            for k in 0..4u64 {
                let e = entry::<A>(&mm, 4 + k);
                assert_eq!(e.pfn(Level::Pte), pfn.add(k));
                assert_eq!(kept::<A>(e, Level::Pte), before[k as usize]);
                assert_eq!(p.memmap().page_exclusive(pfn.add(k)), k > 0);
            }
            drop((pin, get));
            assert_eq!(folio.counts_locked(|c| (c.refs, c.mapcount)), (4, 4));
            assert_eq!(p.folios_in_use(), 1);
            check(&p);
            exit(mm);
        }
    }
}

/// Rules: MIGR-01, EXCL-04, RMAP-17, P-RACE-08.
#[test]
fn who_is_held_stays_where_it_is() {
    stays::<ModelWord<16>>();
    stays::<ModelPair<16>>();
    stays::<ModelCont<16, 4>>();
}

fn leaf_moves<A: Arch>() {
    let n = per_pmd::<A>();
    for shared in [false, true] {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 4 * n);
        let old = fault_pmd::<A>(&mm, n).expect("mapped");
        fill(&p, old, n);
        if shared {
            set_state::<A>(&mm, n, State::of(0b1100));
        }
        let before = entry::<A>(&mm, n);
        let own = p.memmap().folio(old).grab::<Get>(1).expect("room");
        own.folio().mlock();
        migrate_folio(&p, &own, None, Batching::Batched).expect("nobody holds it");
        drop(own);
        let e = entry::<A>(&mm, n);
        assert!(e.is_leaf(Level::Pmd), "{e:?}");
        let new = e.pfn(Level::Pmd);
        assert_ne!(new, old);
        assert_eq!(kept::<A>(e, Level::Pmd), kept::<A>(before, Level::Pmd));
        assert_eq!(p.memmap().page_exclusive(new), !shared);
        assert!(!p.memmap().folio(new).has(FolioFlags::MLOCKED), "no mapping is locked");
        let counts = p.memmap().folio(new).counts_locked(|c| (c.refs, c.mapcount, c.entire));
        assert_eq!(counts, (1, 1, 1));
        assert!((0..n).all(|k| p.bytes().load(new.add(k), 0) == 100 + k));
        assert_eq!(p.events().get(Event::PmdSplit), 0);
        check(&p);
        exit(mm);
        assert_eq!(p.folios_in_use(), 0);
    }
}

/// Rules: MIGR-01, MIGR-03.
#[test]
fn a_leaf_moves_as_a_leaf() {
    leaf_moves::<ModelWord<16>>();
    leaf_moves::<ModelCont<16, 4>>();
    leaf_moves::<X86_64>();
}

fn pinned_leaf<A: Arch>() {
    let n = per_pmd::<A>();
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4 * n);
    let pfn = fault_pmd::<A>(&mm, n).expect("mapped");
    let folio = p.memmap().folio(pfn);
    let pin = folio.grab::<Pin>(1).expect("room");
    let own = folio.grab::<Get>(1).expect("room");
    let locked = folio.lock();
    // To be moved it stays a leaf; to be split it becomes PTEs, all of them present.
    let kept = suspend_mappings(&p, &locked, Leaves::Keep, Batching::Batched);
    assert!(kept.is_err() && entry::<A>(&mm, n).is_leaf(Level::Pmd));
    let split = suspend_mappings(&p, &locked, Leaves::Split, Batching::Batched);
    assert!(split.is_err());
    for k in 0..n {
        let e = entry::<A>(&mm, n + k);
        assert!(e.is_leaf(Level::Pte) && e.is_writable(Level::Pte), "{e:?}");
        assert!(p.memmap().page_exclusive(pfn.add(k)));
    }
    drop((split, locked, own, pin));
    assert_eq!(folio.counts_locked(|c| (c.refs as u64, u64::from(c.mapcount))), (n, n));
    check(&p);
    exit(mm);
}

/// Rules: MIGR-02, PSPLIT-03.
#[test]
fn a_pinned_leaf_that_should_freeze_is_split_and_stays() {
    pinned_leaf::<ModelWord<16>>();
    pinned_leaf::<ModelPair<16>>();
    pinned_leaf::<X86_64>();
}

fn suspended_leaf_splits<A: Arch>() {
    let n = per_pmd::<A>();
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4 * n);
    let pfn = fault_pmd::<A>(&mm, n).expect("mapped");
    let folio = p.memmap().folio(pfn);
    let own = folio.grab::<Get>(1).expect("room");
    let locked = folio.lock();
    let suspended =
        suspend_mappings(&p, &locked, Leaves::Keep, Batching::Batched).expect("not pinned");
    let huge = entry::<A>(&mm, n);
    assert!(matches!(huge.nonpresent(Level::Pmd), Some(NonPresent::Migration { .. })));
    assert_eq!((folio.refcount(), folio.mapcount()), (1, 0));

    // Somebody makes a boundary in the middle of it.
    split_pmd(&mm, mm.read().stay(), va::<A>(n + 3));
    for k in 0..n {
        let e = entry::<A>(&mm, n + k);
        let Some(NonPresent::Migration { kind, pfn: of, .. }) = e.nonpresent(Level::Pte) else {
            panic!("{e:?}");
        };
        assert_eq!((kind, of), (MigrationKind::Write, pfn.add(k)));
    }
    assert_eq!((folio.refcount(), folio.mapcount()), (1, 0), "no count changes");

    suspended.resume_at(pfn);
    drop((locked, own));
    for k in 0..n {
        let e = entry::<A>(&mm, n + k);
        assert!(
            e.is_leaf(Level::Pte) && e.is_writable(Level::Pte) && e.pfn(Level::Pte) == pfn.add(k)
        );
        assert!(p.memmap().page_exclusive(pfn.add(k)));
    }
    check(&p);
    exit(mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: PSPLIT-04, MM-067.
#[test]
fn a_suspended_leaf_splits_into_suspended_pages() {
    suspended_leaf_splits::<ModelWord<16>>();
    suspended_leaf_splits::<ModelCont<16, 4>>();
    suspended_leaf_splits::<X86_64>();
}

/// Rules: MM-054.
#[test]
fn one_flush_covers_a_block() {
    type A = ModelCont<16, 4>;
    for (batching, flushes) in [(Batching::Batched, 1), (Batching::PerPage, 16)] {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 32);
        let pfn = fault::<A>(&mm, 16, 4).expect("mapped");
        let folio = p.memmap().folio(pfn);
        let own = folio.grab::<Get>(1).expect("room");
        let locked = folio.lock();
        let before = p.tlb().flushes.get();
        let suspended = suspend_mappings(&p, &locked, Leaves::Keep, batching).expect("not pinned");
        // Unfolding a block in pieces flushes besides.
        let made = p.tlb().flushes.get() - before;
        assert!(if flushes == 1 { made == 1 } else { made >= 16 }, "{batching:?}: {made}");
        assert!((16..32).all(|k| !entry::<A>(&mm, k).is_present(Level::Pte)));
        drop((suspended, locked, own));
        assert!((16..32).all(|k| entry::<A>(&mm, k).is_writable(Level::Pte)));
        exit(mm);
    }
}

/// Rules: MIGR-01.
#[test]
fn without_memory_nothing_moves() {
    type A = ModelWord<16>;
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 16);
    let pfn = fault::<A>(&mm, 4, 2).expect("mapped");
    let before = entry::<A>(&mm, 5);
    let own = p.memmap().folio(pfn).grab::<Get>(1).expect("room");
    p.failures().fail_after(0);
    let failed = migrate_folio(&p, &own, None, Batching::Batched);
    drop(own);
    assert_eq!(failed, Err(MigrationError::NoMemory));
    assert!(!p.failures().disarm());
    assert_eq!(entry::<A>(&mm, 5), before);
    check(&p);
    // What cannot move says so.
    p.memmap().folio(pfn).set_flag(FolioFlags::DEVICE_PRIVATE);
    let own = p.memmap().folio(pfn).grab::<Get>(1).expect("room");
    assert_eq!(migrate_folio(&p, &own, None, Batching::Batched), Err(MigrationError::Unmovable));
    drop(own);
    p.memmap().folio(pfn).clear_flag(FolioFlags::DEVICE_PRIVATE);
    p.memmap().folio(pfn).set_flag(FolioFlags::WRITEBACK);
    let own = p.memmap().folio(pfn).grab::<Get>(1).expect("room");
    assert_eq!(migrate_folio(&p, &own, None, Batching::Batched), Err(MigrationError::Busy));
    drop(own);
    p.memmap().folio(pfn).clear_flag(FolioFlags::WRITEBACK);
    assert_eq!(entry::<A>(&mm, 5), before);
    exit(mm);
    assert_eq!(p.folios_in_use(), 0);
}

/// A machine with a folio of 16 pages in the given states, the child with some of them.
fn random_world<A: Arch>(states: &[u8], forked: bool, gone: u16) -> (P<A>, Vec<Space<A>>, Pfn) {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 32);
    let pfn = fault::<A>(&mm, 16, 4).expect("mapped");
    let mut spaces = vec![mm];
    if forked {
        spaces.push(fork::<A>(&spaces[0]));
    }
    for (k, s) in states.iter().enumerate() {
        let mut s = State::of(*s);
        s.exclusive &= !forked;
        s.writable &= !forked;
        for mm in &spaces {
            set_state::<A>(mm, 16 + k as u64, s);
        }
    }
    for k in (0..16).filter(|k| gone >> k & 1 != 0) {
        munmap(spaces.last().expect("one"), 16 + k, 1);
    }
    (p, spaces, pfn)
}

/// What an entry says, whether or not it is in a folded block: what is written at once
/// is folded at once (CONT-02).
#[derive(Clone, Copy, PartialEq, Debug)]
enum Says<E> {
    Maps { pfn: Pfn, writable: bool, soft_dirty: bool, uffd_wp: bool, used: (bool, bool) },
    Other(E),
}

impl<E: Entry> Says<E> {
    fn of<A: Arch<Entry = E>>(e: E) -> Self {
        if !e.is_leaf(Level::Pte) {
            return Says::Other(e);
        }
        Says::Maps {
            pfn: e.pfn(Level::Pte),
            writable: e.is_writable(Level::Pte),
            soft_dirty: e.is_soft_dirty(),
            uffd_wp: e.is_uffd_wp(),
            // Gathered over a block, and so compared over all.
            used: if A::CONT > 1 { (false, false) } else { (e.is_young(), e.is_dirty()) },
        }
    }
}

/// Per space, what its entries say, and whether any is young, or dirty.
type Seen<A> = (Vec<Says<<A as Arch>::Entry>>, (bool, bool));
type Look<A> = (Vec<Seen<A>>, Vec<bool>, FolioFlags, (i32, u32));

fn seen<A: Arch>(mm: &Space<A>) -> Seen<A> {
    let entries: Vec<A::Entry> = (16..32).map(|k| entry::<A>(mm, k)).collect();
    let any = |f: fn(&A::Entry) -> bool| entries.iter().any(f);
    let used = (any(|e| e.is_young()), any(|e| e.is_dirty()));
    (entries.iter().map(|e| Says::of::<A>(*e)).collect(), used)
}

fn look<A: Arch>(p: &P<A>, spaces: &[Space<A>], pfn: Pfn, ok: bool) -> Look<A> {
    let folio = p.memmap().folio(pfn);
    (
        spaces.iter().map(seen::<A>).collect(),
        (0..16).map(|k| p.memmap().page_exclusive(pfn.add(k))).collect(),
        // Which of the removals is the first to leave the folio partially mapped differs
        // (rule FOLIO-22), and what was suspended before a pin was met.
        folio.flags()
            - FolioFlags::PARTIALLY_MAPPED
            - if ok { FolioFlags::empty() } else { FolioFlags::DIRTY },
        folio.counts_locked(|c| (c.refs, c.mapcount)),
    )
}

/// What is seen while the mappings are suspended, and behind that.
fn suspend_and_resume<A: Arch>(
    states: &[u8],
    forked: bool,
    gone: u16,
    pinned: bool,
    batching: Batching,
) -> (bool, Look<A>, Look<A>) {
    let (p, spaces, pfn) = random_world::<A>(states, forked, gone);
    let folio = p.memmap().folio(pfn);
    let own = folio.grab::<Get>(1).expect("room");
    let pin = pinned.then(|| folio.grab::<Pin>(1).expect("room"));
    let locked = folio.lock();
    let suspended = suspend_mappings(&p, &locked, Leaves::Keep, batching);
    let ok = suspended.is_ok();
    let during = look::<A>(&p, &spaces, pfn, ok);
    drop(suspended);
    let after = look::<A>(&p, &spaces, pfn, ok);
    drop((locked, pin, own));
    check(&p);
    for mm in spaces.into_iter().rev() {
        exit(mm);
    }
    assert_eq!(p.folios_in_use(), 0);
    (ok, during, after)
}

fn batched_is_the_fold_of_singles<A: Arch>(
    states: &[u8],
    forked: bool,
    gone: u16,
    pinned: bool,
) -> Result<(), TestCaseError> {
    let run = |b| suspend_and_resume::<A>(states, forked, gone, pinned, b);
    let (single, batched) = (run(Batching::PerPage), run(Batching::Batched));
    prop_assert_eq!(&single, &batched);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Rules: BATCH-18, MIGR-01, MIGR-03.
    #[test]
    fn a_batch_suspends_what_single_steps_do(
        states in proptest::collection::vec(0u8..64, 16),
        forked: bool,
        gone: u16,
        pinned: bool,
    ) {
        // Not all of it: a folio that nothing maps has nothing to suspend.
        let gone = gone & 0x7fff;
        batched_is_the_fold_of_singles::<ModelWord<16>>(&states, forked, gone, pinned)?;
        batched_is_the_fold_of_singles::<ModelPair<16>>(&states, forked, gone, pinned)?;
        batched_is_the_fold_of_singles::<ModelCont<16, 4>>(&states, forked, gone, pinned)?;
    }
}

/// What resumes at once is folded, where single entries are not. Random states meet four
/// equal neighbours once in a thousand runs.
///
/// Rules: BATCH-18, CONT-02.
#[test]
fn a_batch_folds_what_single_steps_leave_apart() {
    let mut states = [0; 16];
    states[..4].fill(56);
    batched_is_the_fold_of_singles::<ModelCont<16, 4>>(&states, true, 0, false).expect("equal");
}

/// Rules: PVMW-05.
#[test]
fn nothing_at_the_top_of_the_address_space_is_overlooked() {
    type A = X86_64;
    let p = machine_of::<A>();
    let mm = space(&p);
    let last = (A::USER_END >> A::PAGE_SHIFT) - 17;
    mmap(&mm, last, 16);
    let page = (last + 15) & !3;
    let pfn = fault::<A>(&mm, page - 4, 2).expect("mapped");
    let own = p.memmap().folio(pfn).grab::<Get>(1).expect("room");
    migrate_folio(&p, &own, None, Batching::Batched).expect("free");
    drop(own);
    assert_ne!(frame_at::<A>(&mm, page - 4), pfn);
    assert!(VirtAddr::new(A::USER_END) > va::<A>(page));
    assert_eq!(p.anon_trees().nr_members(), 1);
    exit(mm);
}
