//! Batched means the same as page by page: over random tables, both policies
//! leave the same entries, counts and marks behind.
//!
//! What may differ is the accessed and dirty state within a run that an
//! operation rewrites (BATCH-18): merged, never lost.

use crate::common::*;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level, Markers, NonPresent, Rights, SwapSlot};
use mm_folio::Pin;
use mm_map::{
    Advice, MapPolicy, OldPlace, UffdMode, WpChange, fork, madvise, mark_hints, mprotect,
    mremap_move, munmap, uffd_register, uffd_unregister, uffd_wp,
};
use mm_rmap::model::{UnmapBy, swap_out};
use mm_vma::{Event, Platform, RssKind, SwapSpace, VmaFlags};
use mm_x86::X86_64;
use proptest::prelude::*;

/// One folio of the table, and what happened to its pages since.
#[derive(Clone, Debug)]
struct Piece {
    order: u32,
    /// Bits per page.
    holes: u16,
    shared: u16,
    read_only: u16,
    clean: u16,
    old: u16,
    not_soft: u16,
    wp: u16,
    pins: u32,
    /// Instead of a folio of order 0.
    zero: bool,
    /// Swapped out, as far as pins let it.
    swapped: bool,
}

fn piece() -> impl Strategy<Value = Piece> {
    // Sparse bits: long runs must happen.
    let bits =
        || prop_oneof![3 => Just(0u16), 1 => any::<u16>(), 1 => (0..16u32).prop_map(|b| 1 << b)];
    (
        0..5u32,
        (bits(), bits(), bits(), bits(), bits(), bits(), bits()),
        prop_oneof![3 => Just(0u32), 1 => 1..3u32],
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(order, b, pins, zero, swapped)| Piece {
            order,
            holes: b.0,
            shared: b.1,
            read_only: b.2,
            clean: b.3,
            old: b.4,
            not_soft: b.5,
            wp: b.6,
            pins,
            zero,
            swapped,
        })
}

#[derive(Clone, Debug)]
struct Table {
    /// First page, not always aligned with a table.
    offset: u64,
    pieces: Vec<Piece>,
    track_soft_dirty: bool,
    has_pinned: bool,
}

fn table() -> impl Strategy<Value = Table> {
    (0..3u64, prop::collection::vec(piece(), 1..6), any::<bool>(), any::<bool>()).prop_map(
        |(o, pieces, track_soft_dirty, has_pinned)| Table {
            offset: o * 16,
            pieces,
            track_soft_dirty,
            has_pinned,
        },
    )
}

/// Pages of a test's region.
const NR: u64 = 128;

/// Builds the table; the pins that it takes are returned.
fn build<A: Arch>(t: &Table, by: UnmapBy) -> (M<A>, Space<A>, Vec<mm_folio::FolioRun>) {
    let m = new_machine::<A>();
    let p = space(&m, NR);
    let mut pins = Vec::new();
    let mut at = t.offset;
    for piece in &t.pieces {
        if piece.zero {
            map_zero(&p, at);
            at += 1;
            continue;
        }
        let n = 1u64 << piece.order;
        at = at.next_multiple_of(n);
        let folio = map_folio(&p, at, piece.order);
        for k in 0..n {
            let on = |bits: u16| bits >> k & 1 != 0;
            if on(piece.shared) {
                m.memmap().clear_exclusive(folio.page(k as u32), 1);
            }
            edit::<A>(&p, at + k, |e| {
                let mut e = e;
                if on(piece.clean) {
                    e = e.mkclean();
                }
                if on(piece.old) {
                    e = e.mkold();
                }
                if on(piece.not_soft) {
                    e = e.clear_soft_dirty();
                }
                if on(piece.read_only) || on(piece.shared) {
                    e = e.wrprotect();
                }
                if A::HAS_UFFD_WP && on(piece.wp) { e.mkuffd_wp() } else { e }
            });
        }
        if piece.pins > 0 {
            pins.push(folio.grab::<Pin>(piece.pins).expect("fits").into_run(0));
        }
        for k in 0..n {
            if piece.holes >> k & 1 != 0 {
                unmap_one::<A>(&p, at + k);
            }
        }
        if piece.swapped && folio.is_mapped() {
            swap_out(&m, folio.head(), by);
        }
        at += n;
    }
    if t.has_pinned {
        p.set_has_pinned();
    }
    if t.track_soft_dirty {
        let mut vmas = p.write();
        for vma in vmas.change().overlapping_mut(pages::<A>(0, NR)) {
            vma.set_flags(vma.flags() - VmaFlags::SOFTDIRTY);
        }
    }
    (m, p, pins)
}

/// What a page looks like; history is left out where it may be merged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum History {
    Exact,
    Merged,
}

/// A mapped page by its facts: a block format may have folded it or not.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    page: u64,
    pfn: u64,
    access: [bool; 3],
    special: bool,
    wp: bool,
    soft: bool,
    swap: Option<(SwapSlot, bool)>,
    young_dirty: Option<[bool; 2]>,
}

impl Seen {
    fn nothing(page: u64) -> Self {
        let access = [false; 3];
        let (special, wp, soft) = (false, false, false);
        Seen { page, pfn: 0, access, special, wp, soft, swap: None, young_dirty: None }
    }
}

fn seen<A: Arch>(p: &Space<A>, first: u64, soft: bool, history: History) -> Vec<Seen> {
    (first..first + NR)
        .filter_map(|page| {
            let (e, level) = entry::<A>(p, page);
            let marker = e.nonpresent(level) == Some(NonPresent::Marker(Markers::UFFD_WP));
            if let Some(slot) = e.swap_slot() {
                let bits = e.swap_bits();
                let swap = Some((slot, bits.exclusive));
                let (wp, soft) = (bits.uffd_wp, bits.soft_dirty);
                return Some(Seen { wp, soft, swap, ..Seen::nothing(page) });
            }
            assert!(e.is_none() || marker || e.is_leaf(level), "{e:?}");
            if marker {
                return Some(Seen { wp: true, ..Seen::nothing(page) });
            }
            e.is_leaf(level).then(|| Seen {
                page,
                pfn: e.pfn(level).get(),
                access: [e.is_protnone(level), e.is_writable(level), level == Level::Pte],
                special: e.is_special(),
                wp: e.is_uffd_wp(),
                soft: soft && e.is_soft_dirty(),
                swap: None,
                young_dirty: (history == History::Exact).then(|| [e.is_young(), e.is_dirty()]),
            })
        })
        .collect()
}
/// Counts and marks of all folios.
fn counts<A: Arch>(m: &M<A>) -> Vec<(u64, u32, i32, u32, Vec<u32>)> {
    m.memmap()
        .alive()
        .map(|f| (f.head().get(), f.order(), f.refcount(), f.mapcount(), exclusive::<A>(f)))
        .collect()
}
fn any_dirty<A: Arch>(p: &Space<A>, first: u64) -> Vec<u64> {
    let mut frames: Vec<_> = (first..first + NR)
        .filter(|page| {
            let e = pte::<A>(p, *page);
            e.is_present(Level::Pte) && e.is_dirty()
        })
        .map(|page| p.platform().memmap().folio(pte::<A>(p, page).pfn(Level::Pte)).head().get())
        .collect();
    frames.dedup();
    frames
}

struct Result_<A: Arch> {
    m: M<A>,
    spaces: Vec<Space<A>>,
    pins: Vec<mm_folio::FolioRun>,
}
impl<A: Arch> Result_<A> {
    fn end(self) {
        for run in self.pins {
            self.m.memmap().put_run::<Pin>(run);
        }
        finish(&self.m, self.spaces);
    }
}

/// Runs `op` under both policies on equal machines.
fn both<A: Arch>(
    t: &Table,
    op: impl Fn(&MapPolicy, &Space<A>) -> Option<Space<A>>,
) -> [Result_<A>; 2] {
    [PER_PAGE, BATCHED].map(|policy| {
        let by = if policy == BATCHED { UnmapBy::Run } else { UnmapBy::Page };
        let (m, p, pins) = build::<A>(t, by);
        let other = op(&policy, &p);
        let spaces: Vec<_> = [Some(p), other].into_iter().flatten().collect();
        let refs: Vec<_> = spaces.iter().map(|s| &**s).collect();
        audit(&m, &refs);
        Result_ { m, spaces, pins }
    })
}

fn same<A: Arch>(
    [a, b]: &[Result_<A>; 2],
    first: u64,
    soft: bool,
    history: History,
) -> Result<(), TestCaseError> {
    for (x, y) in a.spaces.iter().zip(&b.spaces) {
        let see = |s| seen::<A>(s, first, soft, history);
        // A block format reports accessed and dirty for the whole block.
        prop_assert_eq!(see(x), see(y));
        prop_assert_eq!(any_dirty::<A>(x, first), any_dirty::<A>(y, first));
        for kind in [RssKind::Anon, RssKind::Swap] {
            prop_assert_eq!(x.counters().get(kind), y.counters().get(kind));
        }
        prop_assert_eq!(vmas::<A>(x), vmas::<A>(y));
    }
    prop_assert_eq!(counts::<A>(&a.m), counts::<A>(&b.m));
    prop_assert!(a.m.slots().in_use().eq(b.m.slots().in_use()));
    Ok(())
}

/// Blocks fold and unfold at other moments, which spreads accessed and dirty.
fn exact<A: Arch>() -> History {
    if A::CONT > 1 { History::Merged } else { History::Exact }
}

fn forks<A: Arch>(t: &Table) -> Result<(), TestCaseError> {
    let r = both::<A>(t, |policy, p| Some(fork(policy, p).expect("memory")));
    let same = same(&r, 0, t.track_soft_dirty, exact::<A>());
    r.into_iter().for_each(Result_::end);
    same
}
fn zaps<A: Arch>(t: &Table, first: u64, n: u64) -> Result<(), TestCaseError> {
    let r = both::<A>(t, |policy, p| {
        munmap(policy, &mut p.write(), pages::<A>(first, n)).expect("memory");
        madvise(policy, &mut p.write(), pages::<A>(0, first.max(1)), Advice::DontNeed)
            .or_else(|e| if first == 0 { Ok(()) } else { Err(e) })
            .expect("mapped");
        None
    });
    let same = same(&r, 0, true, exact::<A>());
    r.into_iter().for_each(Result_::end);
    same
}
fn protects<A: Arch>(t: &Table, first: u64, n: u64, none: bool) -> Result<(), TestCaseError> {
    let r = both::<A>(t, |policy, p| {
        let less = if none { Rights::empty() } else { Rights::READ };
        mprotect(policy, &mut p.write(), pages::<A>(first, n), less).expect("allowed");
        let rw = Rights::READ | Rights::WRITE;
        mprotect(policy, &mut p.write(), pages::<A>(first, n / 2 + 1), rw).expect("allowed");
        None
    });
    let same = same(&r, 0, true, History::Merged);
    r.into_iter().for_each(Result_::end);
    same
}
fn uffd_protects<A: Arch>(t: &Table, first: u64, n: u64, mark: bool) -> Result<(), TestCaseError> {
    let r = both::<A>(t, |policy, p| {
        let mut mode = UffdMode::WP;
        mode.set(UffdMode::WP_UNPOPULATED, mark);
        uffd_register(policy, &mut p.write(), pages::<A>(0, NR), mode).expect("memory");
        let part = pages::<A>(first, n);
        uffd_wp(policy, &p.read(), part, WpChange::Protect).expect("registered");
        let part = pages::<A>(first, n / 2 + 1);
        uffd_wp(policy, &p.read(), part, WpChange::Unprotect).expect("registered");
        let part = pages::<A>(first / 2, n / 3 + 1);
        uffd_unregister(policy, &mut p.write(), part).expect("memory");
        None
    });
    let same = same(&r, 0, true, History::Merged);
    let tail = (first + n / 2 + 1)..(first + n);
    let wrong = r.iter().find_map(|x| wrong_protection(&x.spaces[0], tail.clone(), mark));
    r.into_iter().for_each(Result_::end);
    prop_assert_eq!(wrong, None);
    same
}
/// A page that is protected and should not be, or the reverse: of `tail` all pages
/// are that are in a registered mapping.
fn wrong_protection<A: Arch>(
    p: &Space<A>,
    tail: core::ops::Range<u64>,
    mark: bool,
) -> Option<(u64, &'static str)> {
    let vmas = p.read();
    let armed =
        |page| vmas.find(va::<A>(page)).is_some_and(|v| v.flags().contains(VmaFlags::UFFD_WP));
    (0..NR).find_map(|page| {
        let e = pte::<A>(p, page);
        let is_swap = e.swap_slot().is_some();
        let is_wp = e.is_present(Level::Pte) && e.is_uffd_wp() || is_swap && e.swap_bits().uffd_wp;
        let is_marker = e.nonpresent(Level::Pte).is_some() && !is_swap;
        let wanted = tail.contains(&page) && armed(page) && (mark || !e.is_none());
        let wrong = if is_wp && !is_swap && e.is_writable(Level::Pte) {
            "writable and protected"
        } else if (is_wp || is_marker) && !armed(page) {
            "protected outside of a registered mapping"
        } else if wanted && !is_wp && !is_marker {
            "not protected"
        } else {
            return None;
        };
        Some((page, wrong))
    })
}
fn hints<A: Arch>(t: &Table, first: u64, n: u64) -> Result<(), TestCaseError> {
    let r = both::<A>(t, |policy, p| {
        mark_hints(policy, &p.read(), pages::<A>(first, n)).expect("user space");
        mark_hints(policy, &p.read(), pages::<A>(first / 2, n / 3 + 1)).expect("user space");
        None
    });
    let same = same(&r, 0, true, History::Merged);
    let told = [&r[0].m, &r[1].m].map(|m| m.events().get(Event::HintsMarked));
    r.into_iter().for_each(Result_::end);
    prop_assert_eq!(told[0], told[1]);
    same
}
fn moves<A: Arch>(t: &Table, first: u64, n: u64, to: u64) -> Result<(), TestCaseError> {
    let r = both::<A>(t, |policy, p| {
        let to = va::<A>(256 + to);
        mremap_move(policy, &mut p.write(), pages::<A>(first, n), to, OldPlace::Unmap)
            .expect("memory");
        None
    });
    let old = same(&r, 0, true, History::Merged);
    let new = same(&r, 256, true, History::Merged);
    r.into_iter().for_each(Result_::end);
    old.and(new)
}

fn part() -> impl Strategy<Value = (u64, u64)> {
    (0..100u64).prop_flat_map(|first| (Just(first), 1..=NR - first))
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
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rules: BATCH-16, BATCH-17, BATCH-18, FORK-04..10, RMAP-10.
    #[test]
    fn forked(t in table()) {
        on_formats!(forks(&t));
    }
    /// Rules: BATCH-16, BATCH-18, ZAP-02, ZAP-03, ZAP-06, ZAP-07.
    #[test]
    fn zapped(t in table(), (first, n) in part()) {
        on_formats!(zaps(&t, first, n));
    }
    /// Rules: BATCH-15, BATCH-18, MPROT-01..03.
    #[test]
    fn protected(t in table(), (first, n) in part(), none in any::<bool>()) {
        on_formats!(protects(&t, first, n, none));
    }
    /// Rules: BATCH-15, BATCH-18, UFFD-04, PTE-15, MPROT-05. Cases: MM-039.
    #[test]
    fn write_protected(t in table(), (first, n) in part(), mark in any::<bool>()) {
        on_formats!(uffd_protects(&t, first, n, mark));
    }
    /// Rules: BATCH-15, BATCH-18, MPROT-06.
    #[test]
    fn hinted(t in table(), (first, n) in part()) {
        on_formats!(hints(&t, first, n));
    }
    /// Rules: BATCH-12, BATCH-18, MREMAP-01, MREMAP-03.
    #[test]
    fn moved(t in table(), (first, n) in part(), to in 0..40u64) {
        on_formats!(moves(&t, first, n, to));
    }
}
