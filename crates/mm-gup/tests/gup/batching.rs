//! In runs as page by page: over random tables, whatever a policy takes in one
//! step is what the others take in many. And what the steps cost, exactly.

use crate::common::*;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{AccessKind, Arch, Entry, Level};
use mm_folio::{Get, Pin, RefKind};
use mm_gup::{Gup, GupFlags, Runs, Sink, unpin_runs};
use mm_vma::{Event, Platform};
use mm_x86::X86_64;
use proptest::prelude::*;

/// What becomes of a page after it was mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    None,
    Unmap,
    Protect,
    Share,
    Hint,
    Clean,
    Old,
    Zero,
}

/// What is mapped: folios from the first page on, holes of one page, changes.
#[derive(Clone, Debug)]
struct Plan {
    start: u64,
    folios: Vec<Option<u32>>,
    changes: Vec<Change>,
}

impl Plan {
    fn pages(&self) -> u64 {
        self.folios.iter().map(|f| f.map_or(1, |order| 1 << order)).sum()
    }
    fn build<A: Arch>(&self) -> Space<A> {
        let s = Space::<A>::new(RW);
        let mut page = self.start;
        for folio in &self.folios {
            match folio {
                Some(order) => page += u64::from(s.map(page, *order).nr_pages()),
                None => page += 1,
            }
        }
        for (page, change) in (self.start..self.start + self.pages()).zip(&self.changes) {
            if s.pte(page).is_none() {
                continue;
            }
            match change {
                Change::None => {}
                Change::Unmap => s.unmap(page),
                Change::Protect => s.edit(page, E::<A>::wrprotect),
                Change::Share => s.share(page),
                Change::Hint => s.hint(page),
                Change::Clean => s.edit(page, E::<A>::mkclean),
                Change::Old => s.edit(page, E::<A>::mkold),
                Change::Zero => {
                    s.unmap(page);
                    s.map_zero(page);
                }
            }
        }
        s
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        24 => Just(Change::None),
        1 => Just(Change::Unmap),
        2 => Just(Change::Protect),
        2 => Just(Change::Share),
        1 => Just(Change::Hint),
        3 => Just(Change::Clean),
        3 => Just(Change::Old),
        1 => Just(Change::Zero),
    ]
}
fn plan() -> impl Strategy<Value = Plan> {
    let folio = prop_oneof![4 => (2u32..6).prop_map(Some), 3 => Just(Some(0)), 1 => Just(None)];
    // All of the same kind at times: long read-only runs are rare by chance.
    let base = prop_oneof![3 => Just(Change::None), 1 => Just(Change::Protect)];
    (0u64..40, prop::collection::vec(folio, 1..6), prop::collection::vec(change(), 64), base)
        .prop_map(|(start, folios, mut changes, base)| {
            for change in &mut changes {
                if *change == Change::None {
                    *change = base;
                }
            }
            Plan { start, folios, changes }
        })
}

/// A request: first page counted from the plan's, pages, for writing.
type Request = (u64, usize, bool);

/// What a call did: what it gave, and what every folio holds meanwhile.
#[derive(PartialEq, Eq, Debug)]
struct Effect {
    taken: Taken,
    held: Vec<(mm_arch::Pfn, i32, u32)>,
    outstanding: u64,
}

fn effect<A: Arch, K: RefKind>(plan: &Plan, how: How, request: Request, faults: bool) -> Effect {
    let s = plan.build::<A>();
    let (first, nr, write) = request;
    let flags = if write { WRITE } else { READ };
    let taken = if faults {
        let script = Script::new::<A>(&[]);
        let gup = Gup::new(&s.mm, &script).with_policy(how.policy());
        s.call_with::<K, _, _>(&gup, how, plan.start + first, nr, flags)
    } else {
        s.call::<K>(how, plan.start + first, nr, flags)
    };
    let held = |s: &Space<A>| -> Vec<_> {
        let alive = s.m.memmap().alive();
        alive.map(|f| (f.head(), s.held(f).0, s.held(f).1)).collect()
    };
    if K::PINS {
        // Whatever is pinned is exclusive, if it is anonymous.
        for page in &taken.pages {
            let map = s.m.memmap();
            assert!(map.is_zero_page(*page) || map.page_exclusive(*page), "{page}");
        }
    }
    let effect = Effect { held: held(&s), outstanding: s.outstanding(), taken };
    // One hold per page, and no other.
    let map = s.m.memmap();
    for (head, refs, pins) in &effect.held {
        let folio = map.folio(*head);
        let own = i32::from(folio.is_zero_page() || folio.is_huge_zero());
        let pages = effect.taken.pages.iter().filter(|p| folio.contains(**p)).count() as u32;
        let expected =
            if K::PINS && folio.is_zero_page() { (0, 0) } else { as_held::<A, K>(folio, pages) };
        assert_eq!((refs - own, *pins), expected, "{folio:?}");
    }
    s.give_back::<K>(&effect.taken);
    s.finish();
    effect
}

/// How many pages the lockless path may take: from the rules, page by page.
fn oracle<A: Arch, K: RefKind>(plan: &Plan, request: Request) -> usize {
    let s = plan.build::<A>();
    let (first, nr, write) = request;
    let kind = if write { AccessKind::Write } else { AccessKind::Read };
    let ok = |page: &u64| {
        let e = s.pte(*page);
        e.is_present(Level::Pte)
            && e.permits(kind, Level::Pte)
            && !e.is_special()
            && (!K::PINS
                || e.is_writable(Level::Pte)
                || s.m.memmap().page_exclusive(e.pfn(Level::Pte)))
    };
    let n = (plan.start + first..).take(nr).take_while(ok).count();
    s.finish();
    n
}

fn agree<A: Arch, K: RefKind>(plan: &Plan, request: Request) {
    let page = effect::<A, K>(plan, How::FastPage, request, false);
    assert_eq!(page.taken.pages.len(), oracle::<A, K>(plan, request), "prefix of the rules");
    for how in [How::FastRun, How::FastWhole] {
        assert_eq!(effect::<A, K>(plan, how, request, false), page, "{how:?}");
    }
    for faults in [false, true] {
        let page = effect::<A, K>(plan, How::SlowPage, request, faults);
        assert_eq!(effect::<A, K>(plan, How::SlowRun, request, faults), page, "slow, one run");
        assert_eq!(effect::<A, K>(plan, How::SlowTable, request, faults), page, "slow, a table");
    }
}

macro_rules! batched_is_per_page {
    ($($name:ident: $a:ty;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
            $(
                /// Rules: GUPF-07, GUPF-16..18, GUPS-13, GUPS-17, GUPS-25, PIN-01, PIN-17.
                #[test]
                fn $name(plan in plan(), first in 0u64..8, nr in 1usize..72, write: bool) {
                    agree::<$a, Get>(&plan, (first, nr, write));
                    agree::<$a, Pin>(&plan, (first, nr, write));
                }
            )*
        }
    };
}
batched_is_per_page! {
    runs_are_pages_in_one_word: ModelWord<32>;
    runs_are_pages_in_two_words: ModelPair<32>;
    runs_are_pages_in_blocks: ModelCont<32, 4>;
    runs_are_pages_on_x86_64: X86_64;
}

/// Events of one call for 256 pages in folios of 16.
fn cost<A: Arch, K: RefKind>(how: How, flags: GupFlags) -> Counts {
    let s = Space::<A>::new(RW);
    for k in 0..16 {
        s.map(16 * k, 4);
    }
    let counts = Counts::default();
    let gup = Gup::new(&s.mm, &()).with_policy(how.policy()).observed_by(&counts);
    let taken = s.call_with::<K, _, _>(&gup, how, 0, 256, flags);
    assert_eq!(taken.result, Ok(256));
    s.give_back::<K>(&taken);
    s.finish();
    counts
}

/// Tables that are larger than a folio, of all formats alike.
const TABLES: u64 = 256 / 32;

/// Runs read a folded block of `block` entries in one look.
///
/// Rules: BENCH-15, GUPF-16, GUPF-18, GUPF-24, GUPS-17, GUPS-20.
#[test]
fn the_cost_of_64k_folios_is_exact() {
    fn check<A: Arch>(block: u64) {
        let looks = 256 / block;
        let tables = if per_table::<A>() == 32 { TABLES } else { 1 };
        use Event::{Atomics, EntriesRead, FillsUnderLock, Grabs, Locks, Walks};
        let of = |how, events: [Event; 5]| {
            let get = cost::<A, Get>(how, WRITE);
            let pin = cost::<A, Pin>(how, WRITE);
            assert_eq!((get.of(FillsUnderLock), pin.of(FillsUnderLock)), (0, 0));
            // A pin of a large folio counts twice.
            assert_eq!(pin.of(Atomics), 2 * get.of(Atomics));
            events.map(|e| {
                assert!(e == Atomics || get.of(e) == pin.of(e));
                get.of(e)
            })
        };
        let events = [Grabs, Atomics, EntriesRead, Locks, Walks];
        assert_eq!(of(How::FastPage, events), [256, 256, 256, 0, tables]);
        assert_eq!(of(How::FastRun, events), [16 * 2, 16 * 2, looks, 0, tables]);
        assert_eq!(of(How::FastWhole, events), [16, 16, looks, 0, tables]);
        assert_eq!(of(How::SlowPage, events), [256, 256, 256, 256, 256]);
        assert_eq!(of(How::SlowRun, events), [16, 16, looks, 16, 16]);
        assert_eq!(of(How::SlowTable, events), [16, 16, looks, tables, tables]);
    }
    check::<ModelWord<32>>(1);
    check::<ModelPair<32>>(1);
    check::<ModelCont<32, 4>>(4);
    check::<X86_64>(1);
}

/// Rules: BENCH-15, GUPF-16. The output as runs: one per folio, however often the
/// tables cut it.
#[test]
fn an_output_of_runs_has_one_entry_per_folio() {
    type A = ModelWord<8>;
    let s = Space::<A>::new(RW);
    for k in 0..2 {
        s.map(16 * k, 4);
    }
    let mut out = Runs::new();
    assert_eq!(Gup::new(&s.mm, &()).pin_fast(va::<A>(0), 32, WRITE, &mut out), Ok(32));
    assert_eq!((out.runs().len(), out.pages()), (2, 32));
    unpin_runs(s.m.memmap(), out.take());
    s.finish();
}
