//! Map counts against a recount from scratch, and runs against single pages.
#![cfg(not(loom))]

mod common;
use common::*;
use mm_folio::audit::Access::ReadOnly;
use mm_folio::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One step of a small world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Map { mm: u32, first: u32, n: u32 },
    Unmap { mm: u32, first: u32, n: u32 },
    MapEntire { mm: u32 },
    UnmapEntire { mm: u32 },
}
use Step::*;

/// Who maps what: per address space, the pages by PTE and whether by PMD.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct World {
    ptes: BTreeSet<(u32, u32)>,
    pmds: BTreeSet<u32>,
}

impl World {
    fn apply(&self, step: Step) -> Option<World> {
        let mut w = self.clone();
        let ok = match step {
            Map { mm, first, n } => (first..first + n).all(|p| w.ptes.insert((mm, p))),
            Unmap { mm, first, n } => (first..first + n).all(|p| w.ptes.remove(&(mm, p))),
            MapEntire { mm } => w.pmds.insert(mm),
            UnmapEntire { mm } => w.pmds.remove(&mm),
        };
        ok.then_some(w)
    }
    fn mappings(&self, f: Folio<'_, Space>) -> Vec<audit::Mapping> {
        let by_pte = self.ptes.iter().map(|&(id, page)| ptes(f, page, 1, mm(id), ReadOnly));
        by_pte.chain(self.pmds.iter().map(|&id| pmd(f, mm(id), ReadOnly))).collect()
    }
}

fn run(f: Folio<'_, Space>, step: Step) {
    match step {
        Map { mm: id, first, n } => {
            f.grab::<Get>(n).expect("room").hand_over();
            f.add_anon_ptes(first, nz(n), mm(id), Exclusivity::MaybeShared);
        }
        Unmap { mm: id, first, n } => unmap(f, first, n, mm(id)),
        MapEntire { mm: id } => {
            f.grab::<Get>(1).expect("room").hand_over();
            f.add_anon_pmd(mm(id), Exclusivity::MaybeShared);
        }
        UnmapEntire { mm: id } => {
            f.remove_pmd(mm(id));
            put(f, 1);
        }
    }
}

/// The slots as the rules tell them, with counts stored minus one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Slots {
    total: i32,
    slot: [(u32, i32); 2],
    shared: bool,
}
impl Slots {
    fn new() -> Self {
        Slots { total: -1, slot: [(0, -1); 2], shared: false }
    }
    fn add(&mut self, n: i32, mm: u32) {
        self.total += n;
        if self.slot[0].0 == mm {
            self.slot[0].1 += n;
        } else if self.slot[1].0 == mm {
            self.slot[1].1 += n;
        } else if self.slot[0].0 == 0 {
            self.slot[0] = (mm, n - 1);
            self.shared |= self.total + 1 != n;
        } else if self.slot[1].0 == 0 {
            self.slot[1] = (mm, n - 1);
            self.shared = true;
        }
    }
    fn sub(&mut self, n: i32, mm: u32) {
        self.total -= n;
        for slot in &mut self.slot {
            if slot.0 == mm {
                slot.1 -= n;
                if slot.1 >= 0 {
                    return;
                }
                *slot = (0, -1);
            }
        }
        if self.slot.iter().any(|s| s.1 == self.total) {
            self.shared = false;
        }
    }
    fn step(&mut self, step: Step) {
        match step {
            Map { mm, n, .. } => self.add(n as i32, mm),
            Unmap { mm, n, .. } => self.sub(n as i32, mm),
            MapEntire { mm } => self.add(1, mm),
            UnmapEntire { mm } => self.sub(1, mm),
        }
    }
    fn of(f: Folio<'_, Space>) -> Self {
        let slot = f.mm_slots().map(|s| s.map_or((0, -1), |(mm, n)| (mm.get(), n as i32 - 1)));
        Slots { total: f.mapcount() as i32 - 1, slot, shared: f.shared_flag() }
    }
}

/// Visits every reachable state of `steps` on a folio of four pages.
fn explore(steps: &[Step]) -> usize {
    let mut seen = BTreeSet::new();
    let mut queue = VecDeque::from([(World::default(), Slots::new(), Vec::new())]);
    while let Some((world, slots, path)) = queue.pop_front() {
        if !seen.insert((world.clone(), slots.clone())) {
            continue;
        }
        let map = map(9);
        let own = map.alloc(2).expect("frames");
        let f = own.folio();
        f.set_anon(AnonId(1), 0);
        for &step in &path {
            run(f, step);
        }
        assert_eq!(Slots::of(f), slots, "after {path:?}");
        let mut log = log(&world.mappings(f));
        log.hold(f.head(), 1, "the test");
        assert_eq!(log.finish(&map), [], "after {path:?}");
        for &step in steps {
            if let Some(next) = world.apply(step) {
                let (mut slots, mut path) = (slots.clone(), path.clone());
                slots.step(step);
                path.push(step);
                queue.push_back((next, slots, path));
            }
        }
        // Leave nothing behind that would be reported as a bad free.
        for m in world.mappings(f) {
            let step = match m.level {
                mm_arch::Level::Pte => Unmap { mm: m.mm.get(), first: f.index_of(m.pfn), n: 1 },
                _ => UnmapEntire { mm: m.mm.get() },
            };
            run(f, step);
        }
        assert_eq!(Slots::of(f), Slots::new(), "unmapped after {path:?}");
    }
    seen.len()
}

/// Rules: FOLIO-16, FOLIO-17, FOLIO-18, FOLIO-21, FOLIO-33, FOLIO-34.
#[test]
fn every_state_of_pages_and_pmds_counts_as_a_recount_does() {
    let steps: Vec<_> = (1..=3)
        .flat_map(|mm| {
            let pages =
                (0..2).flat_map(move |first| [Map { mm, first, n: 1 }, Unmap { mm, first, n: 1 }]);
            pages.chain([MapEntire { mm }, UnmapEntire { mm }])
        })
        .collect();
    assert!(explore(&steps) > 512);
}

/// Rules: FOLIO-16, FOLIO-17, FOLIO-18. All pages in one call, in two, and one alone.
#[test]
fn every_state_of_whole_and_partial_runs_counts_as_a_recount_does() {
    let steps: Vec<_> = (1..=2)
        .flat_map(|mm| {
            [(0, 4), (0, 2), (2, 2), (3, 1)]
                .into_iter()
                .flat_map(move |(first, n)| [Map { mm, first, n }, Unmap { mm, first, n }])
        })
        .collect();
    assert!(explore(&steps) > 32);
}

/// Rules: FOLIO-32, FOLIO-33, FOLIO-34, FOLIO-37.
#[test]
fn every_state_of_four_address_spaces_counts_as_the_rules_say() {
    let steps: Vec<_> = (1..=4)
        .flat_map(|mm| {
            [(0, 1), (1, 1), (0, 2)]
                .into_iter()
                .flat_map(move |(first, n)| [Map { mm, first, n }, Unmap { mm, first, n }])
        })
        .collect();
    assert!(explore(&steps) > 256);
}

/// Everything that the counts of a folio say.
fn picture(f: Folio<'_, Space>) -> impl PartialEq + core::fmt::Debug {
    let map = f.memmap();
    let pages: Vec<_> = (0..f.nr_pages())
        .map(|i| (map.page_mapcount(f.page(i)), map.page_exclusive(f.page(i))))
        .collect();
    let stats = map.stats();
    let slots = Slots::of(f);
    (pages, slots, f.refcount(), f.pages_mapped(), stats.nr_anon_mapped.get())
}

/// Splits a step into one step per page.
fn singles(step: Step) -> Vec<Step> {
    match step {
        Map { mm, first, n } => (0..n).map(|i| Map { mm, first: first + i, n: 1 }).collect(),
        Unmap { mm, first, n } => (0..n).map(|i| Unmap { mm, first: first + i, n: 1 }).collect(),
        whole => vec![whole],
    }
}

/// Steps of a folio of `order`; as often all pages at once as a part of them.
fn any_steps(order: u32) -> impl Strategy<Value = Vec<Step>> {
    let pages = 1u32 << order;
    let range = prop_oneof![Just((0, pages)), (0..pages, 1..=pages)];
    let step = (1u32..=4, range, 0u32..8).prop_map(move |(mm, (first, n), kind)| {
        let n = n.min(pages - first);
        match kind {
            0..=2 => Map { mm, first, n },
            3..=5 => Unmap { mm, first, n },
            6 => MapEntire { mm },
            _ => UnmapEntire { mm },
        }
    });
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// Rules: FOLIO-09, FOLIO-17, FOLIO-18, RMAP-03, RMAP-07.
    #[test]
    fn a_run_is_the_fold_of_its_pages(
        (order, tried) in (1u32..=4).prop_flat_map(|order| (Just(order), any_steps(order))),
    ) {
        let (one, other) = (map(64), map(64));
        let own = [one.alloc(order).expect("frames"), other.alloc(order).expect("frames")];
        let [batched, single] = [own[0].folio(), own[1].folio()];
        batched.set_anon(AnonId(1), 0);
        single.set_anon(AnonId(1), 0);
        let mut world = World::default();
        for step in tried {
            let Some(next) = world.apply(step) else { continue };
            world = next;
            run(batched, step);
            let mut log = log(&world.mappings(batched));
            log.hold(batched.head(), 1, "the test");
            prop_assert_eq!(log.finish(&one), [], "after {:?}", step);
            for step in singles(step) {
                run(single, step);
            }
            prop_assert_eq!(
                format!("{:?}", picture(batched)), format!("{:?}", picture(single)), "{:?}", step
            );
            // One by one, a whole unmapping looks partial on its way.
            prop_assert!(!batched.is_deferred() || single.is_deferred());
        }
        for m in world.mappings(batched) {
            for f in [batched, single] {
                run(f, match m.level {
                    mm_arch::Level::Pte => Unmap { mm: m.mm.get(), first: batched.index_of(m.pfn), n: 1 },
                    _ => UnmapEntire { mm: m.mm.get() },
                });
            }
        }
    }

    /// Rules: RMAP-10, EXCL-07.
    #[test]
    fn duplicating_a_run_is_all_or_nothing(marks in 0u16.., first in 0u32..16, n in 1u32..=16, pinned: bool) {
        let n = n.min(16 - first);
        let map = map(64);
        let f = fault(&map, 4, mm(1));
        for i in (0..16).filter(|i| marks >> i & 1 == 0) {
            map.clear_exclusive(f.page(i), 1);
        }
        let pin = pinned.then(|| f.grab::<Pin>(1).expect("room"));
        f.grab::<Get>(n).expect("room").hand_over();
        let before: Vec<_> = (0..16).map(|i| map.page_exclusive(f.page(i))).collect();
        let got = f.try_dup_anon_ptes(first, nz(n), mm(2), HasPinned::Maybe);
        let after: Vec<_> = (0..16).map(|i| map.page_exclusive(f.page(i))).collect();
        let range = first as usize..(first + n) as usize;
        let refused = pinned && before[range.clone()].contains(&true);
        prop_assert_eq!(got.is_err(), refused);
        for i in 0..16 {
            let cleared = !refused && range.contains(&i);
            prop_assert_eq!(after[i], before[i] && !cleared);
        }
        prop_assert_eq!(f.mapcount(), if refused { 16 } else { 16 + n });
        drop(pin);
    }

    /// Rules: FOLIO-09, PIN-01, PIN-13.
    #[test]
    fn references_taken_together_are_references_taken_singly(
        order in prop_oneof![Just(0u32), Just(2), Just(4)],
        tried in proptest::collection::vec((any::<bool>(), 1u32..9), 1..20),
    ) {
        let (one, other) = (map(64), map(64));
        let (a, b) = (one.alloc(order).expect("frames"), other.alloc(order).expect("frames"));
        let (mut gets, mut pins, mut raw) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (pin, n) in tried {
            if pin {
                pins.push(a.folio().grab::<Pin>(n).expect("room"));
            } else {
                gets.push(a.folio().grab::<Get>(n).expect("room"));
            }
            *raw.entry(pin).or_insert(0) += n;
            let head = b.folio().head();
            for _ in 0..n {
                let run = |pin| if pin {
                    other.try_grab::<Pin>(head, 1).expect("alive").into_run(0)
                } else {
                    other.try_grab::<Get>(head, 1).expect("alive").into_run(0)
                };
                run(pin);
            }
            prop_assert_eq!(a.folio().refcount(), b.folio().refcount());
            prop_assert_eq!(a.folio().pincount(), b.folio().pincount());
            prop_assert_eq!(a.folio().maybe_dma_pinned(), b.folio().maybe_dma_pinned());
        }
        drop((gets, pins));
        for (pin, n) in raw {
            let run = FolioRun::new(b.folio().head(), 0, n);
            if pin { other.put_run::<Pin>(run) } else { other.put_run::<Get>(run) }
        }
        prop_assert_eq!((a.folio().refcount(), b.folio().refcount()), (1, 1));
        prop_assert_eq!((a.folio().pincount(), b.folio().pincount()), (0, 0));
    }
}
