//! Entries that were made inaccessible to see who uses them.

use crate::common::*;
use crate::cow::{filled, filled_pmd};
use mm_arch::{Arch, Entry, Level, Protection};
use mm_fault::{FaultFlags, FaultOutcome};
use mm_folio::{FolioFlags, Get, Pin};
use mm_pgtable::LockedEntry;
use mm_rmap::Batching;
use mm_rmap::model::set_misplaced;
use mm_vma::{Event, Platform};
use proptest::prelude::*;

const READ: FaultFlags = FaultFlags::empty();
const DONE: FaultOutcome = FaultOutcome::Done { major: false };
const HOW: [Batching; 2] = [Batching::PerPage, Batching::Batched];

/// A process with a folio of eight pages, all of whose entries are hints.
fn hinted<A: Arch>(m: &M<A>, how: Batching) -> Process<A> {
    let mut p = filled::<A>(m, 3);
    p.policy.hints = how;
    (0..8).for_each(|k| hint(&p, k));
    p
}
fn hint<A: Arch>(p: &Process<A>, k: u64) {
    p.change(k, |e| e.modify(A::prot(Protection::none()), Level::Pte));
}
fn no_hint<A: Arch>(e: E<A>) -> E<A> {
    e.modify(A::prot(Protection::private_read_write()), Level::Pte)
}
fn hints<A: Arch>(p: &Process<A>) -> Vec<u64> {
    (0..8).filter(|k| p.pte(*k).is_protnone(Level::Pte)).collect()
}
fn writable<A: Arch>(p: &Process<A>) -> Vec<u64> {
    (0..8).filter(|k| p.pte(*k).is_writable(Level::Pte)).collect()
}
fn counts<A: Arch>(m: &M<A>) -> [u64; 3] {
    [Event::HintFaults, Event::HintsRestored, Event::HintsMoved].map(|e| m.events().get(e))
}

on_models! {
    /// Rules: NUMA-01, NUMA-02, NUMA-03.
    fn one_access_restores_the_folio_each_entry_by_itself<A>() {
        for how in HOW {
            let m = new_machine::<A>();
            let p = hinted::<A>(&m, how);
            let (map, head) = (m.memmap(), p.folio(0).head());
            for shared in [2, 3, 6] {
                map.clear_exclusive(head.add(shared), 1);
            }
            p.change(5, |e| e.mkclean());
            let dirt = |p: &Process<A>| (0..8).map(|k| p.pte(k).is_dirty()).collect::<Vec<_>>();
            let dirty = dirt(&p);
            p.discard(7);
            assert_eq!(p.fault(4, READ), DONE);
            assert_eq!((hints(&p), writable(&p)), (vec![], vec![0, 1, 4, 5]));
            assert!((0..7).all(|k| p.pte(k).is_young()));
            assert_eq!(dirt(&p)[..7], dirty[..7], "each as it was");
            // Runs of equal marks and equal dirt: 0-1, 2-3, 4, 5, 6.
            let steps = if how == Batching::Batched { 5 } else { 7 };
            assert_eq!(counts(&m), [1, steps, 0]);
            for shared in [2, 3, 6] {
                map.set_exclusive(head.add(shared), 1);
            }
            p.check();
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: NUMA-02, INV-10.
    fn what_is_no_hint_of_the_folio_is_passed_by<A>() {
        for how in HOW {
            let m = new_machine::<A>();
            let p = hinted::<A>(&m, how);
            // Page 2 has another folio by now, and page 5 is accessible.
            let other = p.folio(2).grab::<Get>(1).expect("room");
            m.memmap().clear_exclusive(p.pfn(2), 1);
            p.change(2, no_hint::<A>);
            p.write(2, 9);
            hint(&p, 2);
            drop(other);
            p.change(5, no_hint::<A>);
            let kept = p.pte(5);
            assert_eq!(p.fault(6, READ), DONE);
            assert_eq!((hints(&p), p.pte(5)), (vec![2], kept));
            assert_eq!(p.fault(2, READ), DONE);
            assert!(hints(&p).is_empty());
            p.check();
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: NUMA-01, MIGR-01. Rows: S-NU1.
    fn a_folio_that_lies_badly_moves<A>() {
        for how in HOW {
            let m = new_machine::<A>();
            let p = hinted::<A>(&m, how);
            let head = p.folio(0).head();
            set_misplaced(&m, Some(head));
            assert_eq!(p.fault(4, READ), DONE);
            assert_ne!(p.folio(0).head(), head);
            assert_eq!((hints(&p), counts(&m)), (vec![], [1, 0, 8]));
            assert!((0..8).all(|k| p.read(k) == 100 + k && p.is_exclusive(k)));
            p.check();
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: NUMA-01, NUMA-02. Rows: S-NU1.
    fn a_folio_that_cannot_move_comes_back_read_only<A>() {
        // Somebody pinned it, it is of a kind that stays, there is no memory, or somebody
        // has isolated it: then nothing was unlocked, and each entry decides.
        for (reason, expected) in [(0, vec![]), (1, vec![]), (2, vec![]), (3, (0..8).collect())] {
            for how in HOW {
                let m = new_machine::<A>();
                let p = hinted::<A>(&m, how);
                let folio = p.folio(0);
                set_misplaced(&m, Some(folio.head()));
                let pin = (reason == 0).then(|| folio.grab::<Pin>(1).expect("room"));
                match reason {
                    1 => assert!(folio.set_flag(FolioFlags::WRITEBACK)),
                    2 => m.failures().fail_after(0),
                    3 => assert!(folio.clear_flag(FolioFlags::LRU)),
                    _ => {}
                }
                assert_eq!(p.fault(4, READ), DONE);
                assert_eq!((p.folio(0), hints(&p), counts(&m)[2]), (folio, vec![], 0));
                assert_eq!(writable(&p), expected, "{reason}: it may be shared by now");
                folio.clear_flag(FolioFlags::WRITEBACK);
                set_misplaced(&m, None);
                p.write(4, 7);
                assert_eq!((p.folio(4), p.read(4)), (folio, 7), "still exclusive");
                drop(pin);
                p.check();
                p.exit();
                assert_clean(&m);
            }
        }
    }

    /// Rules: NUMA-01, FAULT-02.
    fn a_leaf_comes_back_or_moves<A>() {
        for moves in [false, true] {
            let m = new_machine::<A>();
            let (p, nr) = filled_pmd::<A>(&m);
            let head = p.folio(0).head();
            p.with(|vmas| {
                let entry = p.mm.tables().lock_entry(vmas.stay(), va(0));
                let LockedEntry::Huge(mut pmd) = entry else { panic!("no leaf") };
                let mut owed = p.mm.tables().tlb().obligation();
                let none = pmd.entry().modify(A::prot(Protection::none()), Level::Pmd);
                pmd.swap(none, &mut owed);
            });
            set_misplaced(&m, moves.then_some(head));
            assert_eq!(p.fault(3, READ), DONE);
            let (e, level) = p.entry(0);
            assert!(level == Level::Pmd && !e.is_protnone(level) && e.is_dirty());
            assert_eq!((e.is_young(), p.folio(0).head() != head), (true, moves));
            assert_eq!(counts(&m), [1, u64::from(!moves), if moves { nr } else { 0 }]);
            assert_eq!(p.read(3), 3);
            p.write(3, 7);
            assert_eq!(p.read(3), 7);
            p.check();
            p.exit();
            assert_clean(&m);
        }
    }
}

/// What a table may have of a folio of eight pages, in bits.
#[derive(Clone, Debug)]
struct Bits {
    hint: u8,
    shared: u8,
    clean: u8,
    not_soft: u8,
    wp: u8,
    holes: u8,
}

fn bits() -> impl Strategy<Value = Bits> {
    let byte =
        || prop_oneof![2 => Just(0u8), 1 => any::<u8>(), 1 => (0..8u32).prop_map(|b| 1 << b)];
    let hint = prop_oneof![Just(0xffu8), any::<u8>()];
    (hint, byte(), byte(), byte(), byte(), byte()).prop_map(
        |(hint, shared, clean, not_soft, wp, holes)| {
            let holes = holes & !1;
            Bits { hint, shared, clean, not_soft, wp, holes }
        },
    )
}
/// What the entries say after an access to page 0.
fn left_by<A: Arch>(bits: &Bits, how: Batching) -> Vec<[bool; 7]> {
    let m = new_machine::<A>();
    let p = hinted::<A>(&m, how);
    let on = |bits: u8, k: u64| bits >> k & 1 != 0;
    let map = m.memmap();
    for k in 0..8 {
        if on(bits.shared, k) {
            map.clear_exclusive(p.pfn(k), 1);
        }
        p.change(k, |mut e| {
            if !on(bits.hint | 1, k) {
                e = no_hint::<A>(e);
            }
            if on(bits.clean, k) {
                e = e.mkclean();
            }
            if on(bits.not_soft, k) {
                e = e.clear_soft_dirty();
            }
            if A::HAS_UFFD_WP && on(bits.wp, k) { e.mkuffd_wp() } else { e }
        });
    }
    (0..8).filter(|k| on(bits.holes, *k)).for_each(|k| p.discard(k));
    assert_eq!(p.fault(0, READ), DONE);
    let left = (0..8).map(|k| {
        let e = p.pte(k);
        [
            e.is_present(Level::Pte),
            e.is_protnone(Level::Pte),
            e.is_writable(Level::Pte),
            e.is_young(),
            e.is_dirty(),
            e.is_soft_dirty(),
            e.is_uffd_wp(),
        ]
    });
    let left = left.collect();
    p.exit();
    assert_clean(&m);
    left
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Rules: NUMA-02, NUMA-03, BATCH-18.
    #[test]
    fn in_runs_is_the_fold_of_entries(bits in bits()) {
        let [a, b] = HOW.map(|how| left_by::<mm_arch::model::ModelWord<16>>(&bits, how));
        prop_assert_eq!(a, b);
        let [a, b] = HOW.map(|how| left_by::<mm_arch::model::ModelPair<16>>(&bits, how));
        prop_assert_eq!(a, b);
        let [a, b] = HOW.map(|how| left_by::<mm_arch::model::ModelCont<16, 4>>(&bits, how));
        prop_assert_eq!(a, b);
        let [a, b] = HOW.map(|how| left_by::<mm_x86::X86_64>(&bits, how));
        prop_assert_eq!(a, b);
    }
}
