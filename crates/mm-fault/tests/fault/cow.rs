//! Copy, reuse, unshare: who gets which page after a fork.

use crate::common::*;
use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, Markers, MigrationKind, NonPresent, Protection, SwapBits};
use mm_fault::{FaultFlags, FaultOutcome, FaultPolicy, FaultSignal, OrderMode, ThpMode, ThpPolicy};
use mm_folio::{FileId, Folio, FolioFlags, Get, Pin};
use mm_pgtable::TableSpace;
use mm_vma::{Mm, Platform, RssKind, Vma, VmaFlags};

const DONE: FaultOutcome = FaultOutcome::Done { major: false };
const WRITE: FaultFlags = FaultFlags::WRITE;
const UNSHARE: FaultFlags = FaultFlags::UNSHARE;

/// A process with a written folio of `1 << order` pages at page 0.
pub fn filled<A: Arch>(m: &M<A>, order: u32) -> Process<A> {
    let pmd = A::order(Level::Pmd);
    let thp = ThpPolicy::new(pmd).with_order(order, OrderMode::Always);
    let p = Process::new(m).with_policy(thp);
    p.map(pages(0, 4 << pmd), RW);
    for page in 0..1 << order {
        p.write(page, 100 + page);
    }
    assert_eq!(p.folio(0).order(), order);
    p
}
fn refs<A: Arch>(folio: Folio<'_, M<A>>) -> (i32, u32) {
    (folio.refcount(), folio.mapcount())
}

on_models! {
    /// Rules: FAULT-12, FAULT-13, REUSE-01, EXCL-03. Rows: S-CW1.
    fn each_side_of_a_fork_sees_its_own_stores<A>() {
        for order in [0, 3] {
            let m = new_machine::<A>();
            let p = filled::<A>(&m, order);
            let n = 1 << order;
            let c = p.fork();
            for page in 0..n {
                p.write(page, 200 + page);
            }
            for page in 0..n {
                assert_eq!((p.read(page), c.read(page)), (200 + page, 100 + page));
                assert!(p.is_exclusive(page) && !c.is_exclusive(page));
                assert_ne!(p.pfn(page), c.pfn(page));
            }
            assert_eq!((p.rss(), c.rss(), p.reused()), (n, n, 0));
            p.check();
            c.check();
            // The child is alone with the old folio: reuse, but for the last page
            // of a large one (REUSE-03 asks for two mappings).
            for page in 0..n {
                c.write(page, 300 + page);
                assert_eq!((p.read(page), c.read(page)), (200 + page, 300 + page));
            }
            assert_eq!(p.reused(), n);
            c.check();
            c.exit();
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: REUSE-12, REUSE-10, FAULT-11. Rows: S-RU1, S-RU4.
    fn reuse_after_the_child_left_is_page_by_page<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 3);
        let tree = p.folio(0).anon();
        p.fork().exit();
        assert_eq!(refs::<A>(p.folio(0)), (8, 8));
        assert!((0..8).all(|k| !p.is_exclusive(k) && !p.pte(k).is_writable(Level::Pte)));
        p.change(6, |e| e.mkclean().mkold());
        let before = p.pte(6);
        p.write(5, 1);
        for k in 0..8 {
            let hit = k == 5;
            assert_eq!((p.is_exclusive(k), p.pte(k).is_writable(Level::Pte)), (hit, hit));
        }
        assert_eq!(p.pte(6), before, "neighbours are left alone");
        assert_eq!((p.reused(), p.folio(0).anon()), (1, tree));
        for k in 0..8 {
            p.write(k, k);
        }
        assert_eq!((p.reused(), m.folios_in_use(), p.faults()), (8, 1, 9));
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: REUSE-03, FOLIO-08. Rows: S-CW15.
    fn the_last_page_of_a_folio_is_copied_and_frees_it<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 3);
        p.fork().exit();
        for k in 1..8 {
            p.discard(k);
        }
        let old = p.folio(0).head();
        p.write(0, 9);
        assert_eq!((p.folio(0).order(), p.rss(), p.reused()), (0, 1, 0));
        assert!(p.pfn(0) != old || m.folios_in_use() == 1);
        assert_eq!(m.folios_in_use(), 1);
        p.exit();
        assert_clean(&m);
    }

    /// Rules: REUSE-11, FOLIO-21. Rows: S-RU8, S-RU22.
    fn a_partially_mapped_folio_is_reused<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 3);
        p.fork().exit();
        p.discard(3);
        let c = p.fork();
        p.write(4, 44);
        c.exit();
        assert!(p.folio(0).has(FolioFlags::PARTIALLY_MAPPED));
        assert_eq!(refs::<A>(p.folio(0)), (6, 6));
        p.write(0, 1);
        assert_eq!((p.reused(), p.read(4)), (1, 44));
        assert!(p.entry(3).0.is_none());
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: FAULT-10, FAULT-14, WREUSE-01. Rows: S-RU9, S-RU10.
    fn exclusive_pages_are_reused_beside_shared_ones<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 3);
        // As after a fork that inherited page 0 alone: the rest is exclusive.
        let c = p.fork();
        for k in 1..8 {
            c.discard(k);
        }
        m.memmap().set_exclusive(p.pfn(1), 7);
        let old = p.folio(0).head();
        assert_eq!(refs::<A>(p.folio(0)), (9, 9));
        p.write(5, 1);
        assert_eq!((p.reused(), p.pfn(5)), (1, old.add(5)));
        assert!(!p.is_exclusive(0) && !p.pte(0).is_writable(Level::Pte));
        // One small page; the rest keeps its folio.
        p.write(0, 7);
        assert_eq!((p.reused(), p.folio(0).order(), c.read(0)), (1, 0, 100));
        assert_eq!(refs::<A>(p.folio(1)), (8, 8));
        p.check();
        c.check();
        c.exit();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: FAULT-10, FAULT-11, PIN-16.
    fn a_pinned_exclusive_page_is_never_copied<A>() {
        for order in [0, 3] {
            let m = new_machine::<A>();
            let p = filled::<A>(&m, order);
            let pin = p.folio(0).grab::<Pin>(3).expect("pin");
            let pfn = p.pfn(0);
            p.change(0, |e| e.wrprotect());
            p.write(0, 5);
            assert_eq!((p.pfn(0), m.memmap().page_exclusive(pfn)), (pfn, true));
            assert_eq!(p.reused(), 1);
            drop(pin);
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: REUSE-01, REUSE-06. Rows: S-CW3, S-RU14.
    fn a_foreign_reference_makes_a_copy<A>() {
        for order in [0, 3] {
            let m = new_machine::<A>();
            let p = filled::<A>(&m, order);
            p.fork().exit();
            let pipe = p.folio(0).grab::<Get>(1).expect("reference");
            let old = p.pfn(0);
            p.write(0, 5);
            assert_ne!(p.pfn(0), old);
            assert_eq!((m.load_word(old), p.reused()), (100, 0));
            let n = (1 << order) - 1;
            assert_eq!(refs::<A>(pipe.folio()), (n + 1, n as u32));
            drop(pipe);
            p.check();
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: REUSE-01: the decision table of section 8.3, small folios.
    fn what_keeps_a_small_page_from_reuse<A>() {
        for (row, expect) in [("nothing", 1), ("locked", 0), ("ksm", 0), ("swapcache", 0)] {
            let m = new_machine::<A>();
            let p = filled::<A>(&m, 0);
            p.fork().exit();
            let folio = p.folio(0);
            let mut held = None;
            let mut cache = None;
            match row {
                "locked" => held = folio.try_lock(),
                "ksm" => {
                    folio.set_flag(FolioFlags::KSM);
                }
                "swapcache" => {
                    folio.set_flag(FolioFlags::SWAPCACHE);
                    cache = folio.grab::<Get>(1).ok();
                }
                _ => {}
            }
            let tree = folio.anon();
            assert_eq!(p.fault(0, WRITE), DONE, "{row}");
            assert_eq!(p.reused(), expect, "{row}");
            assert!(p.is_exclusive(0) && p.pte(0).is_writable(Level::Pte), "{row}");
            assert_eq!((p.folio(0) == folio, tree == p.folio(0).anon()), (expect == 1, true));
            drop(held);
            if cache.is_some() {
                folio.clear_flag(FolioFlags::SWAPCACHE);
            }
            drop(cache);
            p.check();
            p.exit();
            // A real holder of the lock has a reference, which would decide
            // already. Without one the folio dies locked and is kept aside.
            if row != "locked" {
                assert_clean(&m);
            }
        }
    }

    /// Rules: REUSE-01: what the child is alone with moves to the child's tree.
    fn a_small_page_moves_to_the_tree_of_who_reuses_it<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 0);
        let c = p.fork();
        p.write(0, 1);
        let own = c.mm.read().find(va(0)).and_then(Vma::anon);
        assert_ne!(c.folio(0).anon().map(|(id, _)| id), own);
        c.write(0, 2);
        assert_eq!(c.folio(0).anon(), own.map(|id| (id, 0)));
        c.exit();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: FAULT-01, FAULT-11, FAULT-13. Rows: S-RU19.
    fn a_forced_store_leaves_a_dirty_read_only_entry<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 3);
        p.fork().exit();
        p.mm.write().change().find_mut(va(0)).expect("vma").set_flags(R | VmaFlags::MAY_PRIVATE);
        for k in 0..8 {
            p.change(k, |e| e.mkclean());
        }
        assert!(matches!(p.fault(0, WRITE), FaultOutcome::Signal(FaultSignal::Segv { .. })));
        assert_eq!(p.fault(0, WRITE | FaultFlags::FORCE), DONE);
        let e = p.pte(0);
        assert!(e.is_dirty() && !e.is_writable(Level::Pte) && p.is_exclusive(0));
        let busy = p.folio(1).grab::<Get>(1).expect("reference");
        assert_eq!(p.fault(1, WRITE | FaultFlags::FORCE), DONE);
        assert_eq!(p.folio(1).order(), 0);
        let e = p.pte(1);
        assert!(e.is_dirty() && !e.is_writable(Level::Pte) && p.is_exclusive(1));
        assert!(!p.pte(2).is_dirty());
        drop(busy);
        p.exit();
        assert_clean(&m);
    }

    /// Rules: GUPS-27, FAULT-10, FAULT-13.
    fn unsharing_copies_or_marks_but_never_makes_writable<A>() {
        for order in [0, 3] {
            let m = new_machine::<A>();
            let p = filled::<A>(&m, order);
            let c = p.fork();
            p.change(0, |e| e.clear_soft_dirty().mkuffd_wp());
            let old = p.pte(0);
            assert_eq!(p.fault(0, UNSHARE), DONE);
            let e = p.pte(0);
            assert!(p.is_exclusive(0) && !e.is_writable(Level::Pte) && !e.is_dirty());
            assert_eq!((e.is_uffd_wp(), e.is_soft_dirty()), (old.is_uffd_wp(), false));
            assert_eq!((p.read(0), c.read(0), p.pfn(0) == c.pfn(0)), (100, 100, false));
            // The child is alone now with a small page, and one page of a large one.
            let alone = order == 0;
            let pfn = c.pfn(0);
            assert_eq!(c.fault(0, UNSHARE), DONE);
            assert_eq!(c.pfn(0) == pfn, alone);
            assert!(c.is_exclusive(0) && !c.pte(0).is_writable(Level::Pte));
            // Exclusive: nothing to do.
            let e = c.pte(0);
            assert_eq!(c.fault(0, UNSHARE), DONE);
            assert_eq!((c.pte(0), p.reused()), (e, 0));
            c.check();
            p.check();
            c.exit();
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: FAULT-04, FAULT-13, S-ZP2.
    fn unsharing_writable_and_zero_pages<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 0);
        p.change(0, |e| e.mkold());
        let pfn = p.pfn(0);
        assert_eq!(p.fault(0, UNSHARE), DONE);
        assert!(p.pte(0).is_writable(Level::Pte) && p.pte(0).is_young() && p.pfn(0) == pfn);
        // A hole takes two steps: zero page, then a page of its own.
        assert_eq!(p.fault(1, UNSHARE), DONE);
        assert_eq!(p.pfn(1), m.zero_page());
        assert_eq!(p.fault(1, UNSHARE), DONE);
        assert!(p.is_exclusive(1) && !p.pte(1).is_writable(Level::Pte) && !p.pte(1).is_dirty());
        assert_eq!((p.read(1), p.rss()), (0, 2));
        let pfn = p.pfn(1);
        p.write(1, 6);
        assert_eq!((p.pfn(1), p.reused()), (pfn, 1));
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: FAULT-07, WREUSE-10.
    fn a_store_through_a_uffd_protection_removes_it_first<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 0);
        if A::HAS_UFFD_WP {
            p.change(0, |e| e.mkuffd_wp());
            p.write(0, 9);
            assert!(!p.pte(0).is_uffd_wp() && p.pte(0).is_writable(Level::Pte));
            assert_eq!(p.reused(), 1);
            let c = p.fork();
            p.change(0, |e| e.mkuffd_wp());
            p.write(0, 10);
            assert!(!p.pte(0).is_uffd_wp());
            assert_eq!((p.read(0), c.read(0), p.reused()), (10, 9, 1));
            p.check();
        }
        p.exit();
        assert_clean(&m);
    }

    /// Rules: FAULT-12, FAULT-13, ANON-05: whichever allocation fails, nothing
    /// changed.
    fn a_copy_without_memory_changes_nothing<A>() {
        for order in [0, 3] {
            let m = new_machine::<A>();
            let p = filled::<A>(&m, order);
            let c = p.fork();
            assert_eq!(p.fault(1 << order, FaultFlags::empty()), DONE);
            let counts = refs::<A>(p.folio(0));
            for page in [0, 1 << order] {
                let e = p.pte(page);
                m.failures().fail_after(0);
                assert_eq!(p.fault(page, WRITE), FaultOutcome::Oom);
                assert!(!m.failures().disarm());
                assert_eq!((refs::<A>(p.folio(0)), p.pte(page)), (counts, e));
                assert_eq!((p.rss(), m.folios_in_use()), (1 << order, 1));
            }
            p.check();
            c.exit();
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: FAULT-13, WREUSE-15: a copy flushes its page, a reuse nothing.
    fn flushes_are_exact<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 0);
        let c = p.fork();
        let tlb = TableSpace::tlb(&m);
        let (flushes, bytes) = (tlb.flushes.get(), tlb.bytes.get());
        assert_eq!(p.fault(0, WRITE), DONE);
        assert_eq!((tlb.flushes.get(), tlb.bytes.get()), (flushes + 1, bytes + 4096));
        assert_eq!(c.fault(0, WRITE), DONE);
        assert_eq!((tlb.flushes.get(), p.reused()), (flushes + 1, 1));
        c.exit();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: FAULT-13: the copy of a file page is anonymous memory.
    fn a_copy_of_a_file_page_moves_between_counters<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 4), RW);
        let cache = m.memmap().alloc(0).expect("memory");
        let folio = cache.folio();
        folio.set_file(FileId(1), 0);
        m.store_word(folio.head(), 77);
        map_by_hand(&p.mm, folio, A::prot(Protection::private_read_write()));
        assert_eq!((p.read(0), p.mm.counters().get(RssKind::File)), (77, 1));
        p.write(0, 78);
        assert_eq!((p.mm.counters().get(RssKind::File), p.rss()), (0, 1));
        assert_eq!((refs::<A>(folio), m.load_word(folio.head())), ((1, 0), 77));
        folio.clear_file();
        drop(cache);
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: NUMA-01, NUMA-03, WRITE-01.
    fn an_entry_hinted_inaccessible_gets_its_rights_back<A>() {
        let m = new_machine::<A>();
        let p = filled::<A>(&m, 0);
        p.write(1, 1);
        let c = p.fork();
        p.write(0, 2);
        let none = A::prot(Protection::none());
        for page in [0, 1] {
            p.change(page, |e| e.wrprotect().modify(none, Level::Pte));
            assert!(p.pte(page).is_protnone(Level::Pte));
        }
        assert_eq!((p.read(0), p.read(1)), (2, 1));
        assert!(p.pte(0).is_writable(Level::Pte) && !p.pte(1).is_writable(Level::Pte));
        assert!(p.pte(0).is_dirty(), "dirty is kept");
        p.check();
        c.exit();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: SWPI-01, GUARD-01.
    fn entries_that_are_not_present<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 8), RW);
        p.read(7);
        let moving = NonPresent::Migration {
            kind: MigrationKind::Read,
            pfn: m.zero_page(),
            young: false,
            dirty: false,
        };
        let va0 = va(0);
        let lost = FaultOutcome::Signal(FaultSignal::Poisoned { va: va0 });
        for (what, expect) in [
            (moving, DONE),
            (NonPresent::Marker(Markers::GUARD), FaultOutcome::Signal(FaultSignal::Segv { va: va0 })),
            (NonPresent::Marker(Markers::POISONED), lost),
            (NonPresent::Hwpoison(m.zero_page()), lost),
        ] {
            let e = E::<A>::from_nonpresent(what, SwapBits::default()).expect("encodable");
            set_pte(&p.mm, 0, e);
            assert_eq!(p.fault(0, WRITE), expect, "{what:?}");
            assert_eq!(p.pte(0), e);
            set_pte(&p.mm, 0, E::<A>::NONE);
        }
        p.exit();
        assert_clean(&m);
    }

    /// Rules: ANON-12, PMDF-02, FAULT-14. Trace G.
    fn a_shared_pmd_leaf_is_split_and_one_page_copied<A>() {
        let m = new_machine::<A>();
        let (p, n) = filled_pmd::<A>(&m);
        let c = p.fork();
        let folio = p.folio(0);
        assert_eq!((refs::<A>(folio), p.is_exclusive(0)), ((2, 2), false));
        let faults = p.faults();
        p.write(7, 1);
        assert_eq!(p.faults(), faults + 1, "split and copy are one fault");
        assert_eq!((p.folio(7).order(), c.read(7), p.read(6)), (0, 7, 6));
        assert_eq!(refs::<A>(folio), (n as i32, n as u32));
        assert!(folio.maybe_mapped_shared());
        p.check();
        c.check();
        c.exit();
        assert_eq!(refs::<A>(folio), (n as i32 - 1, n as u32 - 1));
        p.write(8, 1);
        assert_eq!((p.folio(8), p.reused()), (folio, 1));
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: ANON-12, FAULT-10.
    fn a_pmd_leaf_that_is_alone_is_reused_whole<A>() {
        let m = new_machine::<A>();
        let (p, n) = filled_pmd::<A>(&m);
        p.fork().exit();
        let folio = p.folio(0);
        assert_eq!(refs::<A>(folio), (1, 1));
        assert_eq!(p.fault(3, UNSHARE), DONE);
        let (e, level) = p.entry(3);
        assert!(level == Level::Pmd && !e.is_writable(level) && p.is_exclusive(0));
        p.write(5, 50);
        let (e, level) = p.entry(5);
        assert!(level == Level::Pmd && e.is_writable(level));
        assert_eq!((p.read(5), p.rss(), refs::<A>(folio)), (50, n, (1, 1)));
        p.check();
        // A reference that is no mapping, or the lock held elsewhere, splits.
        let c = p.fork();
        c.exit();
        let pipe = p.folio(0).grab::<Get>(1).expect("reference");
        p.write(5, 51);
        assert_eq!((p.entry(5).1, p.folio(5).order()), (Level::Pte, 0));
        assert_eq!(m.load_word(pipe.folio().page(5)), 50);
        drop(pipe);
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: PMDF-01.
    fn a_store_through_a_uffd_protected_leaf_is_about_one_page<A>() {
        let m = new_machine::<A>();
        let (p, _) = filled_pmd::<A>(&m);
        if A::HAS_UFFD_WP {
            swap_pmd(&p.mm, |e| e.mkuffd_wp());
            p.write(3, 1);
            assert!(p.pte(3).is_writable(Level::Pte) && !p.pte(3).is_uffd_wp());
            assert!(p.pte(4).is_uffd_wp() && !p.pte(4).is_writable(Level::Pte));
            assert!(p.is_exclusive(4));
            p.check();
        }
        p.exit();
        assert_clean(&m);
    }

    /// Rules: FAULT-02.
    fn each_state_of_a_pmd_entry<A>() {
        let none = A::prot(Protection::none());
        let m = new_machine::<A>();
        let (p, n) = filled_pmd::<A>(&m);
        let huge = p.policy;
        let now = || p.entry(3);
        // Old, for a read: young. Then nothing is wrong with it: a store flushes.
        swap_pmd(&p.mm, |e| e.mkold());
        assert_eq!(p.fault(3, FaultFlags::empty()), DONE);
        assert!(now().0.is_young() && now().1 == Level::Pmd);
        let flushes = m.tlb().flushes.get();
        assert_eq!(p.fault(3, WRITE), DONE);
        assert_eq!(m.tlb().flushes.get(), flushes + 1);
        // Read-only and exclusive: unshared as it is, writable for a store.
        swap_pmd(&p.mm, |e| e.wrprotect());
        assert_eq!(p.fault(3, UNSHARE), DONE);
        assert!(!now().0.is_writable(Level::Pmd));
        assert_eq!(p.fault(3, WRITE), DONE);
        assert!(now().0.is_writable(Level::Pmd) && now().1 == Level::Pmd);
        // Inaccessible.
        swap_pmd(&p.mm, |e| e.modify(none, Level::Pmd));
        assert_eq!(p.fault(3, FaultFlags::empty()), DONE);
        assert!(!now().0.is_protnone(Level::Pmd));
        // On its way, or with a device: not touched.
        let kept = now().0;
        let pfn = kept.pfn(Level::Pmd);
        let kind = MigrationKind::Write;
        let moving = NonPresent::Migration { kind, pfn, young: false, dirty: false };
        let away = NonPresent::Device { kind: mm_arch::DeviceKind::PrivateWrite, pfn };
        let bus = FaultOutcome::Signal(FaultSignal::Bus { va: va(3) });
        for (what, expected) in [(moving, DONE), (away, bus)] {
            let Ok(e) = E::<A>::from_nonpresent(what, SwapBits::default()) else { continue };
            if e.nonpresent(Level::Pmd) != Some(what) {
                continue;
            }
            swap_pmd(&p.mm, |_| e);
            for flags in [FaultFlags::empty(), WRITE] {
                assert_eq!((p.fault(3, flags), now()), (expected, (e, Level::Pmd)));
            }
            swap_pmd(&p.mm, |_| kept);
        }
        // Empty: a leaf, or an entry where the policy has no leaf.
        assert!(p.discard_pmd(0));
        let small = FaultPolicy { thp: ThpPolicy::new(A::order(Level::Pmd)), ..huge };
        assert_eq!(p.fault_under(&small, 3, WRITE), DONE);
        assert_eq!((now().1, p.rss()), (Level::Pte, 1));
        assert_eq!(p.fault_under(&huge, n + 3, WRITE), DONE);
        assert_eq!((p.entry(n + 3).1, p.rss()), (Level::Pmd, 1 + n));
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: RMAP-09, REUSE-01, REUSE-10.
    fn a_reused_folio_moves_to_the_tree_of_its_mapping_if_it_is_small<A>() {
        for order in [0, 3] {
            let m = new_machine::<A>();
            let p = filled::<A>(&m, order);
            let c = p.fork();
            p.exit();
            let tree = c.folio(0).anon().expect("anonymous");
            let own = c.mm.read().find(va(0)).and_then(|v| v.anon()).expect("forked");
            assert_ne!(tree.0, own);
            let folio = c.folio(0);
            c.write(0, 1);
            assert_eq!(c.folio(0), folio, "reused");
            let expected = if order == 0 { own } else { tree.0 };
            assert_eq!(folio.anon(), Some((expected, tree.1)));
            c.check();
            c.exit();
            assert_clean(&m);
        }
    }

    /// Rules: NUMA-01: a leaf that was made inaccessible as a hint.
    fn a_hinted_pmd_leaf_gets_its_rights_back<A>() {
        let m = new_machine::<A>();
        let (p, _) = filled_pmd::<A>(&m);
        let none = A::prot(Protection::none());
        swap_pmd(&p.mm, |e| e.wrprotect().modify(none, Level::Pmd));
        assert_eq!(p.read(3), 3);
        let (e, level) = p.entry(3);
        assert!(level == Level::Pmd && e.is_writable(level) && e.is_dirty());
        p.check();
        p.exit();
        assert_clean(&m);
    }
}

/// A process with a written PMD leaf at page 0; page `k` holds `k`.
pub fn filled_pmd<A: Arch>(m: &M<A>) -> (Process<A>, u64) {
    let order = A::order(Level::Pmd);
    let p = Process::new(m).with_policy(ThpPolicy::new(order).with_global(ThpMode::Always));
    p.map(pages(0, 2 << order), RW);
    for k in 0..1 << order {
        p.write(k, k);
    }
    assert_eq!((p.entry(0).1, p.faults()), (Level::Pmd, 1));
    (p, 1 << order)
}

fn map_by_hand<A: Arch>(mm: &Mm<M<A>>, folio: Folio<'_, M<A>>, prot: <E<A> as Entry>::Prot) {
    let vmas = mm.read();
    let mut t = mm.tables().ensure_table(vmas.stay(), va(0)).expect("memory").table().expect("pte");
    folio.grab::<Get>(1).expect("reference").hand_over();
    folio.add_file_ptes(0, NonZeroU32::MIN, mm.id());
    mm.counters().add(RssKind::File, 1);
    t.fill(0, 1, E::<A>::leaf(folio.head(), prot, Level::Pte).mkyoung());
}
fn set_pte<A: Arch>(mm: &Mm<M<A>>, page: u64, e: E<A>) {
    let vmas = mm.read();
    let mut t = mm.tables().lock_table(vmas.stay(), va(page)).expect("table");
    let index = t.index_of(va(page));
    if e.is_none() {
        let mut owed = mm.tables().tlb().obligation();
        t.take(index, &mut owed);
    } else {
        t.set(index, e);
    }
}
fn swap_pmd<A: Arch>(mm: &Mm<M<A>>, change: impl FnOnce(E<A>) -> E<A>) {
    let vmas = mm.read();
    let mut pmd = mm.tables().lock_pmd(vmas.stay(), va(0)).expect("table");
    let mut owed = mm.tables().tlb().obligation();
    let new = change(pmd.entry());
    pmd.swap(new, &mut owed);
}

/// Words of frames.
trait Words {
    fn load_word(&self, pfn: mm_arch::Pfn) -> u64;
    fn store_word(&self, pfn: mm_arch::Pfn, value: u64);
}
impl<A: Arch> Words for M<A> {
    fn load_word(&self, pfn: mm_arch::Pfn) -> u64 {
        mm_folio::FrameBytes::load(self, pfn, 0)
    }
    fn store_word(&self, pfn: mm_arch::Pfn, value: u64) {
        mm_folio::FrameBytes::store(self, pfn, 0, value);
    }
}
