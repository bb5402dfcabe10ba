//! What is left does not depend on the policy: over random tables, every policy leaves
//! what the one that takes single entries leaves.
//!
//! A run of pages that were given up and that cannot be dropped comes back as a whole,
//! while single entries before the one that made the difference are gone: then the
//! policies may differ in how much stays, but what stays is as it was.

use crate::common::*;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level, SwapSlot};
use mm_folio::{Folio, FolioFlags, Get, Pin};
use mm_map::fork;
use mm_reclaim::{ReclaimOf, Referenced, UnmapPolicy, Unmapped, referenced};
use mm_vma::{BackingKind, Platform, RssKind, SlotRun, SlotState, SwapSlots, SwapSpace, VmaFlags};
use mm_x86::X86_64;
use proptest::prelude::*;

/// A mapping of a part of the folio, and the bits of its pages.
#[derive(Clone, Debug)]
struct View {
    first: u32,
    nr: u32,
    /// Pages before the end of a table that it starts at; 0 starts with the table.
    before_end: u64,
    holes: u16,
    read_only: u16,
    dirty: u16,
    old: u16,
    not_soft: u16,
    wp: u16,
    armed: bool,
}

fn bits() -> impl Strategy<Value = u16> {
    // Sparse bits: long runs must happen.
    prop_oneof![4 => Just(0u16), 1 => any::<u16>(), 1 => (0..16u32).prop_map(|b| 1 << b)]
}
fn view() -> impl Strategy<Value = View> {
    (
        (0..16u32).prop_flat_map(|first| (Just(first), 1..=16 - first)),
        prop_oneof![2 => Just(0u64), 1 => 1..16u64],
        (bits(), bits(), bits(), bits(), bits(), bits()),
        any::<bool>(),
    )
        .prop_map(|((first, nr), before_end, b, armed)| View {
            first,
            nr,
            before_end,
            holes: b.0,
            read_only: b.1,
            dirty: b.2,
            old: b.3,
            not_soft: b.4,
            wp: b.5,
            armed,
        })
}

fn place<A: Arch>(view: &View) -> u64 {
    pmd_pages::<A>() * 2 - view.before_end
}
fn edit_page<A: Arch>(mm: &Space<A>, page: u64, k: u32, view: &View) {
    let on = |bits: u16| bits >> k & 1 != 0;
    edit::<A>(mm, page, |e| {
        let mut e = e;
        if on(view.dirty) {
            e = e.mkdirty();
        }
        if on(view.old) {
            e = e.mkold();
        }
        if on(view.not_soft) {
            e = e.clear_soft_dirty();
        }
        if on(view.read_only) {
            e = e.wrprotect();
        }
        if A::HAS_UFFD_WP && view.armed && on(view.wp) { e.mkuffd_wp() } else { e }
    });
}

/// What is left: entries of every space, counters, counts of the folio, its flags.
#[derive(Clone, PartialEq, Debug)]
struct Left {
    end: Unmapped,
    entries: Vec<Vec<(u64, u64)>>,
    resident: Vec<u64>,
    counts: (i32, u32),
    flags: FolioFlags,
}

/// Unmaps a folio of a file that spaces map as `views` say.
fn of_a_file<A: Arch>(views: &[View], policy: UnmapPolicy, kind: BackingKind) -> Left {
    let m = new_machine::<A>();
    let o = object(&m, kind);
    let folio = o.add(0, 4).expect("memory");
    let spaces: Vec<_> = views
        .iter()
        .map(|view| {
            let (mm, at) = (empty_space(&m), place::<A>(view));
            let armed = if view.armed { VmaFlags::UFFD_WP } else { VmaFlags::empty() };
            show_with(&mm, at, view.nr.into(), &o, view.first.into(), SHARED | armed);
            for k in (0..view.nr).filter(|k| view.holes >> k & 1 == 0) {
                let page = at + u64::from(k);
                map_pages(&mm, page, folio, view.first + k, 1);
                edit_page::<A>(&mm, page, k, view);
            }
            mm
        })
        .collect();
    let end = unmap(&m, policy, folio);
    let left = Left {
        end,
        entries: spaces
            .iter()
            .zip(views)
            .map(|(mm, view)| {
                let at = place::<A>(view);
                (at..at + u64::from(view.nr)).map(|p| (p, pte::<A>(mm, p).raw())).collect()
            })
            .collect(),
        resident: spaces.iter().map(|mm| mm.counters().resident()).collect(),
        counts: (folio.refcount(), folio.mapcount()),
        flags: folio.flags(),
    };
    finish_all(&m, spaces, vec![o]);
    left
}

fn files<A: Arch>(views: &[View], kind: BackingKind) -> Result<(), TestCaseError> {
    let single = of_a_file::<A>(views, UnmapPolicy::Page, kind);
    prop_assert_eq!(single.end, Unmapped::All);
    prop_assert_eq!(single.counts, (16, 0));
    for policy in POLICIES {
        prop_assert_eq!(&of_a_file::<A>(views, policy, kind), &single, "{:?}", policy);
    }
    Ok(())
}

/// Folios of one object, in ascending order.
#[derive(Clone, Debug)]
struct Neighbours {
    /// Order, and pages of the object that are missing before it.
    folios: Vec<(u32, u64)>,
    views: Vec<Window>,
    shmem: bool,
    flags: mm_reclaim::UnmapFlags,
}

/// A mapping of a part of the object.
#[derive(Clone, Debug)]
struct Window {
    first: u64,
    nr: u64,
    before_end: u64,
    /// Pages whose number is a multiple are not mapped, dirty, protected; none if zero.
    holes: u64,
    dirty: u64,
    wp: u64,
    locked: bool,
    armed: bool,
}

fn window() -> impl Strategy<Value = Window> {
    let every = || prop_oneof![3 => Just(0u64), 1 => 1..40u64];
    (
        (0..24u64, 1..80u64),
        prop_oneof![1 => Just(0u64), 1 => 1..40u64],
        (every(), every(), every()),
        (prop::bool::weighted(0.15), any::<bool>()),
    )
        .prop_map(|((first, nr), before_end, (holes, dirty, wp), (locked, armed))| Window {
            first,
            nr,
            before_end,
            holes,
            dirty,
            wp,
            locked,
            armed,
        })
}
fn neighbours() -> impl Strategy<Value = Neighbours> {
    use mm_reclaim::UnmapFlags as F;
    let gap = prop_oneof![4 => Just(0u64), 1 => 1..6u64, 1 => Just(64u64)];
    (
        prop::collection::vec((0..=4u32, gap), 1..8),
        prop::collection::vec(window(), 1..4),
        any::<bool>(),
        prop_oneof![
            3 => Just(F::SYNC | F::PUT_OFF_FLUSH),
            1 => Just(F::PUT_OFF_FLUSH),
            1 => Just(F::SYNC),
            1 => Just(F::SYNC | F::PUT_OFF_FLUSH | F::IGNORE_MLOCK),
        ],
    )
        .prop_map(|(folios, views, shmem, flags)| Neighbours { folios, views, shmem, flags })
}

/// What is left of several folios.
#[derive(Clone, PartialEq, Debug)]
struct LeftOfAll {
    ends: Vec<Unmapped>,
    entries: Vec<Vec<u64>>,
    resident: Vec<u64>,
    folios: Vec<((i32, u32), FolioFlags)>,
    mapped: u64,
}

/// Unmaps folios together, or one after the other.
fn of_neighbours<A: Arch>(n: &Neighbours, policy: UnmapPolicy, together: bool) -> LeftOfAll {
    let m = new_machine::<A>();
    let kind = if n.shmem { BackingKind::Shmem } else { BackingKind::File };
    let o = object(&m, kind);
    let mut at = 0;
    let folios: Vec<_> = n
        .folios
        .iter()
        .map(|(order, gap)| {
            let nr = 1u64 << order;
            let first = (at + gap).next_multiple_of(nr);
            at = first + nr;
            (first, o.add(first, *order).expect("memory"))
        })
        .collect();
    let every = |each: u64, page: u64| each > 0 && page.is_multiple_of(each);
    let places: Vec<_> = n.views.iter().map(|w| pmd_pages::<A>() * 2 - w.before_end).collect();
    let spaces: Vec<_> = n
        .views
        .iter()
        .zip(&places)
        .map(|(w, place)| {
            let mm = empty_space(&m);
            let mut flags = SHARED;
            flags.set(VmaFlags::UFFD_WP, w.armed);
            flags.set(VmaFlags::LOCKED, w.locked);
            show_with(&mm, *place, w.nr, &o, w.first, flags);
            for page in w.first..w.first + w.nr {
                let in_folio = |f: &&(u64, Folio<'_, M<A>>)| {
                    page.checked_sub(f.0).is_some_and(|k| k < u64::from(f.1.nr_pages()))
                };
                let Some((first, folio)) = folios.iter().find(in_folio) else { continue };
                if every(w.holes, page) {
                    continue;
                }
                let at = place + page - w.first;
                map_pages(&mm, at, *folio, (page - first) as u32, 1);
                if every(w.dirty, page) {
                    dirty::<A>(&mm, at);
                }
                if A::HAS_UFFD_WP && w.armed && every(w.wp, page) {
                    edit::<A>(&mm, at, |e| e.mkuffd_wp());
                }
            }
            mm
        })
        .collect();
    let held: Vec<_> = folios.iter().map(|(_, folio)| Isolated::of(*folio)).collect();
    let locked: Vec<_> = held.iter().map(|held| &held.locked).collect();
    let mut flushes = mm_reclaim::FlushBatch::new(&m);
    let mut ends = Vec::new();
    if together {
        mm_reclaim::try_to_unmap_each(policy, &locked, n.flags, &mut flushes, |k, end| {
            assert_eq!(k, ends.len(), "each in its turn");
            ends.push(end);
        });
    } else {
        let one = |locked: &&_| mm_reclaim::try_to_unmap(policy, locked, n.flags, &mut flushes);
        ends.extend(locked.iter().map(one));
    }
    flushes.finish();
    let left = LeftOfAll {
        ends,
        entries: (spaces.iter().zip(&places).zip(&n.views))
            .map(|((mm, at), w)| (*at..at + w.nr).map(|p| pte::<A>(mm, p).raw()).collect())
            .collect(),
        resident: spaces.iter().map(|mm| mm.counters().resident()).collect(),
        folios: folios.iter().map(|(_, f)| ((f.refcount(), f.mapcount()), f.flags())).collect(),
        mapped: m.memmap().stats().nr_file_mapped.get(),
    };
    drop(locked);
    drop(held);
    finish_all(&m, spaces, vec![o]);
    left
}
fn neighbours_alike<A: Arch>(n: &Neighbours) -> Result<(), TestCaseError> {
    let single = of_neighbours::<A>(n, UnmapPolicy::Page, false);
    for policy in POLICIES {
        prop_assert_eq!(&of_neighbours::<A>(n, policy, true), &single, "{:?}", policy);
    }
    Ok(())
}

/// A folio that was given up, in one or two spaces.
#[derive(Clone, Debug)]
struct GivenUp {
    view: View,
    forked: bool,
    held: bool,
    droppable: bool,
}

/// A page by its facts: (page, frame, writable, soft-dirty, uffd-wp).
type Fact = (u64, u64, bool, bool, bool);

fn facts<A: Arch>(mm: &Space<A>, at: u64) -> Vec<Fact> {
    (at..at + 16)
        .filter_map(|page| {
            let e = pte::<A>(mm, page);
            let leaf = e.is_leaf(Level::Pte);
            leaf.then(|| {
                let soft = e.is_soft_dirty();
                let writable = e.is_writable(Level::Pte);
                (page, e.pfn(Level::Pte).get(), writable, soft, e.is_uffd_wp())
            })
        })
        .collect()
}

/// Whether all of it went.
fn given_up<A: Arch>(g: &GivenUp, policy: UnmapPolicy) -> Result<bool, TestCaseError> {
    let m = new_machine::<A>();
    let p = empty_space(&m);
    let at = place::<A>(&g.view);
    let mut flags = RW;
    flags.set(VmaFlags::DROPPABLE, g.droppable);
    flags.set(VmaFlags::UFFD_WP, g.view.armed);
    anon_with(&p, at, 16, flags);
    let folio = m.memmap().folio(map_lazyfree(&p, at, 4).head());
    for k in 0..16 {
        edit_page::<A>(&p, at + u64::from(k), k, &g.view);
    }
    let mut spaces = vec![p];
    if g.forked {
        let child = fork(&BATCHED, &spaces[0]).expect("memory");
        spaces.push(child);
    }
    for k in (0..16).filter(|k| g.view.holes >> k & 1 != 0) {
        unmap_one::<A>(&spaces[0], at + k);
    }
    let mapped = folio.mapcount();
    let before: Vec<_> = spaces.iter().map(|mm| facts::<A>(mm, at)).collect();
    let stored = spaces.iter().any(|mm| !which::<A>(mm, at, 16, |e| e.is_dirty()).is_empty());
    let keep = folio.grab::<Get>(1).expect("fits");
    let held = g.held.then(|| folio.grab::<Get>(1).expect("fits"));
    // Reclaim's own reference, and one if somebody holds it.
    let end = {
        let mut flushes = mm_reclaim::FlushBatch::new(&m);
        mm_reclaim::try_to_unmap(policy, &folio.lock(), RECLAIM, &mut flushes)
    };
    let after: Vec<_> = spaces.iter().map(|mm| facts::<A>(mm, at)).collect();
    let mut left = 0;
    for ((mm, before), after) in spaces.iter().zip(&before).zip(&after) {
        // What stays is as it was.
        prop_assert!(after.iter().all(|f| before.contains(f)), "{before:?} became {after:?}");
        prop_assert_eq!(mm.counters().get(RssKind::Anon), after.len() as u64);
        left += after.len();
    }
    prop_assert_eq!(folio.mapcount() as usize, left);
    prop_assert_eq!(folio.refcount() as usize, left + 1 + usize::from(g.held));
    prop_assert_eq!(end == Unmapped::All, left == 0);
    if mapped > 0 {
        let dropped = !g.held && (!stored || g.droppable);
        prop_assert_eq!(end == Unmapped::All, dropped, "{:?}", end);
    }
    let normal = folio.has(FolioFlags::SWAPBACKED);
    prop_assert!(!normal || stored, "only a store makes it normal memory");
    drop((held, keep));
    for mm in &spaces {
        mm_map::exit(&BATCHED, mm);
    }
    Ok(end == Unmapped::All)
}
fn given_up_alike<A: Arch>(g: &GivenUp) -> Result<(), TestCaseError> {
    let single = given_up::<A>(g, UnmapPolicy::Page)?;
    for policy in POLICIES {
        prop_assert_eq!(given_up::<A>(g, policy)?, single, "{:?}", policy);
    }
    Ok(())
}

/// A folio on its way to swap, in one or two spaces.
#[derive(Clone, Debug)]
struct ToSwap {
    view: View,
    forked: bool,
    pinned: bool,
    /// Pages that are shared although there is one space.
    shared: u16,
    /// The page whose slot takes no more entries.
    full: Option<u32>,
}

/// A page on its way to swap: its swap entry, or the facts of what is still mapped.
type OnItsWay = (u64, Option<(SwapSlot, [bool; 3])>, Option<Fact>);

/// What is left of a folio on its way to swap.
#[derive(Clone, PartialEq, Debug)]
struct LeftOfSwap {
    end: Unmapped,
    pages: Vec<Vec<OnItsWay>>,
    counters: Vec<(u64, u64)>,
    counts: (i32, u32),
    slots: Vec<SlotState>,
    exclusive: Vec<u32>,
    dirty: bool,
}

fn on_their_way<A: Arch>(mm: &Space<A>, at: u64) -> Vec<OnItsWay> {
    let mapped = facts::<A>(mm, at);
    (at..at + 16)
        .map(|page| {
            let e = pte::<A>(mm, page);
            let bits = e.swap_bits();
            let swap = e.swap_slot().map(|s| (s, [bits.exclusive, bits.soft_dirty, bits.uffd_wp]));
            (page, swap, mapped.iter().find(|f| f.0 == page).copied())
        })
        .collect()
}

fn to_swap<A: Arch>(s: &ToSwap, policy: UnmapPolicy) -> Result<LeftOfSwap, TestCaseError> {
    let m = new_machine::<A>();
    let p = empty_space(&m);
    let at = place::<A>(&s.view);
    let mut flags = RW;
    flags.set(VmaFlags::UFFD_WP, s.view.armed);
    anon_with(&p, at, 16, flags);
    let folio = m.memmap().folio(map_folio(&p, at, 4).head());
    for k in 0..16u32 {
        edit_page::<A>(&p, at + u64::from(k), k, &s.view);
        if s.shared >> k & 1 != 0 {
            m.memmap().clear_exclusive(folio.page(k), 1);
            edit::<A>(&p, at + u64::from(k), |e| e.wrprotect());
        }
    }
    let mut spaces = vec![p];
    if s.forked {
        let child = fork(&BATCHED, &spaces[0]).expect("memory");
        spaces.push(child);
    }
    let own = folio.grab::<Get>(1).expect("fits");
    for k in (0..16).filter(|k| s.view.holes >> k & 1 != 0) {
        unmap_one::<A>(&spaces[0], at + k);
    }
    let stored = spaces.iter().any(|mm| !which::<A>(mm, at, 16, |e| e.is_dirty()).is_empty());
    let exclusive_at =
        |k: u32| s.view.holes >> k & 1 == 0 && m.memmap().page_exclusive(folio.page(k));
    let any_exclusive = (0..16).any(exclusive_at);
    let mapped = folio.mapcount();
    let locked = folio.lock();
    let first = m.slots().add(&locked).expect("room");
    folio.clear_flag(FolioFlags::DIRTY);
    let full = s.full.map(|k| SlotRun::new(SlotRun::new(first, 16).at(k), 1));
    let max = SwapSlots::<mm_sync::DefaultLock>::MAX_COUNT;
    full.iter().for_each(|full| (0..max).for_each(|_| m.slots().dup(*full).expect("room")));
    let pin = s.pinned.then(|| folio.grab::<Pin>(1).expect("fits"));
    let mut flushes = mm_reclaim::FlushBatch::new(&m);
    let end = mm_reclaim::try_to_unmap(policy, &locked, RECLAIM, &mut flushes);
    flushes.finish();
    drop(pin);
    full.iter().for_each(|full| (0..max).for_each(|_| m.slots().put(*full)));
    let left = LeftOfSwap {
        end,
        pages: spaces.iter().map(|mm| on_their_way::<A>(mm, at)).collect(),
        counters: spaces
            .iter()
            .map(|mm| (mm.counters().get(RssKind::Anon), mm.counters().get(RssKind::Swap)))
            .collect(),
        counts: (folio.refcount(), folio.mapcount()),
        slots: m.slots().in_use().collect(),
        exclusive: exclusive::<A>(folio),
        dirty: folio.has(FolioFlags::DIRTY),
    };
    let gone = !(s.pinned && any_exclusive || s.full.is_some());
    if mapped > 0 && gone {
        prop_assert_eq!(end, Unmapped::All);
        prop_assert_eq!(left.counts, (1 + 16, 0));
        prop_assert_eq!(left.dirty, stored);
        prop_assert!(left.exclusive.is_empty() || s.view.holes != 0);
        let entries: u64 = left.counters.iter().map(|c| c.1).sum();
        prop_assert_eq!(entries, left.slots.iter().map(|s| u64::from(s.count)).sum::<u64>());
        prop_assert_eq!(entries, u64::from(mapped));
    }
    drop(locked);
    for mm in &spaces {
        mm_map::exit(&BATCHED, mm);
    }
    mm_vma::free_swap_cache(&m, folio);
    drop(own);
    prop_assert_eq!((m.folios_in_use(), m.slots().in_use().count()), (0, 0));
    Ok(left)
}
fn to_swap_alike<A: Arch>(s: &ToSwap) -> Result<(), TestCaseError> {
    let single = to_swap::<A>(s, UnmapPolicy::Page)?;
    for policy in POLICIES {
        prop_assert_eq!(&to_swap::<A>(s, policy)?, &single, "{:?}", policy);
    }
    Ok(())
}

fn aging<A: Arch>(views: &[View]) -> Result<(), TestCaseError> {
    let mut results = Vec::new();
    for policy in POLICIES {
        let m = new_machine::<A>();
        let o = object(&m, BackingKind::File);
        let folio = o.add(0, 4).expect("memory");
        let spaces: Vec<_> = views
            .iter()
            .map(|view| {
                let (mm, at) = (empty_space(&m), place::<A>(view));
                show(&mm, at, view.nr.into(), &o, view.first.into());
                for k in (0..view.nr).filter(|k| view.holes >> k & 1 == 0) {
                    map_pages(&mm, at + u64::from(k), folio, view.first + k, 1);
                    edit_page::<A>(&mm, at + u64::from(k), k, view);
                }
                mm
            })
            .collect();
        let got = referenced(policy, &m, &folio.lock(), ReclaimOf::Everybody);
        let Referenced::By { nr, .. } = got else { panic!("{got:?}") };
        let entries: Vec<Vec<_>> = spaces
            .iter()
            .zip(views)
            .map(|(mm, view)| {
                let at = place::<A>(view);
                (at..at + u64::from(view.nr)).map(|p| pte::<A>(mm, p).raw()).collect()
            })
            .collect();
        finish_all(&m, spaces, vec![o]);
        results.push((nr, entries));
    }
    for other in &results[1..] {
        prop_assert_eq!(&results[0], other);
    }
    Ok(())
}

macro_rules! on_formats {
    ($f:ident($($arg:expr),*)) => {{
        $f::<ModelWord<32>>($($arg),*)?;
        $f::<ModelPair<32>>($($arg),*)?;
        $f::<ModelCont<32, 4>>($($arg),*)?;
        $f::<X86_64>($($arg),*)?;
    }};
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rules: BATCH-18, UNMAP-07, UNMAP-08, UNMAP-10, UNMAP-12, UNMAP-14..16.
    #[test]
    fn files_leave_the_same(views in prop::collection::vec(view(), 1..4), shmem in any::<bool>()) {
        let kind = if shmem { BackingKind::Shmem } else { BackingKind::File };
        on_formats!(files(&views, kind));
    }
    /// Rules: BATCH-18, UNMAP-01, UNMAP-03, UNMAP-07, UNMAP-08, UNMAP-12, UNMAP-14..16. Folios that
    /// are unmapped together end as they would alone.
    #[test]
    fn neighbours_end_as_they_would_alone(n in neighbours()) {
        on_formats!(neighbours_alike(&n));
    }
    /// Rules: BATCH-18, UNMAP-07, UNMAP-18, UNMAP-19, RMAP-16, RMAP-18, SWAP-02, EXCL-06.
    #[test]
    fn what_goes_to_swap_goes_the_same_way(
        view in view(),
        (forked, pinned) in (any::<bool>(), any::<bool>()),
        shared in bits(),
        full in prop_oneof![8 => Just(None), 1 => (0..16u32).prop_map(Some)],
    ) {
        let s = ToSwap { view, forked, pinned, shared, full };
        on_formats!(to_swap_alike(&s));
    }
    /// Rules: BATCH-18, UNMAP-08, UNMAP-09, UNMAP-17, UNMAP-18.
    #[test]
    fn what_was_given_up_goes_or_stays_as_it_was(
        view in view(),
        forked in any::<bool>(),
        held in prop::bool::weighted(0.3),
        droppable in prop::bool::weighted(0.3),
    ) {
        let g = GivenUp { view, forked, held, droppable };
        on_formats!(given_up_alike(&g));
    }
    /// Rules: BATCH-18, REF-05, REF-06, REF-11, REF-12.
    #[test]
    fn aging_leaves_the_same(views in prop::collection::vec(view(), 1..4)) {
        on_formats!(aging(&views));
    }
}
