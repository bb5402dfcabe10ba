//! Missing pages: the zero page, single pages, large folios, PMD leaves.

use crate::common::*;
use mm_arch::{Entry, Level};
use mm_fault::{FaultFlags, FaultOutcome, FaultSignal, OrderMode, ThpMode, ThpPolicy};
use mm_folio::FolioFlags;
use mm_pgtable::TableSpace;
use mm_vma::{Event, Platform, VmaFlags};

const WRITE: FaultFlags = FaultFlags::WRITE;
const READ: FaultFlags = FaultFlags::empty();

/// All orders from 2 up to `top`, wherever they fit.
fn orders_to<A: mm_arch::Arch>(top: u32) -> ThpPolicy {
    (2..=top).fold(ThpPolicy::new(A::order(Level::Pmd)), |thp, order| {
        thp.with_order(order, OrderMode::Always)
    })
}

on_models! {
    /// Rules: ANON-02, FAULT-03. Rows: S-ZP1.
    fn a_read_maps_the_zero_page_and_a_write_replaces_it<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 8), RW);
        assert_eq!((p.read(3), p.read(4), p.faults()), (0, 0, 2));
        let e = p.pte(3);
        assert!(e.is_special() && !e.is_writable(Level::Pte) && !e.is_dirty());
        assert_eq!((p.pfn(3), p.rss(), m.folios_in_use()), (m.zero_page(), 0, 0));
        p.write(3, 7);
        assert_eq!((p.read(3), p.read(4), p.rss(), p.faults()), (7, 0, 1, 3));
        assert!(p.pte(3).is_dirty() && p.is_exclusive(3));
        // The copy of a zero page is no reuse.
        assert_eq!(p.reused(), 0);
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: ANON-03, FOLIO-02.
    fn a_write_maps_a_new_page<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 8), RW);
        p.write(5, 1);
        let folio = p.folio(5);
        assert_eq!((folio.refcount(), folio.mapcount(), p.rss(), p.faults()), (1, 1, 1, 1));
        let flags = FolioFlags::UPTODATE | FolioFlags::SWAPBACKED | FolioFlags::LRU;
        assert_eq!(folio.flags(), flags);
        let anon = p.mm.read().find(va(5)).expect("vma").anon().expect("prepared");
        assert_eq!(folio.anon(), Some((anon, 5)));
        let e = p.pte(5);
        assert!(e.is_young() && e.is_dirty() && e.is_writable(Level::Pte) && p.is_exclusive(5));
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: ANON-06. Rows: S-AN2, S-AN4.
    fn the_largest_empty_block_is_filled<A>() {
        let m = new_machine::<A>();
        // (populated, first page of the mapping, fault, order, block): section
        // 8.5 as far as a table of 16 entries goes.
        for (populated, start, page, order, block) in [
            (Some(5), 0, 8, 3, 8),
            (Some(5), 0, 0, 2, 0),
            (Some(5), 0, 4, 0, 4),
            (None, 0, 13, 3, 8),
            (None, 3, 3, 0, 3),
            (None, 3, 4, 2, 4),
        ] {
            let mut p = Process::<A>::new(&m);
            p.map(pages(start, 64 - start), RW);
            if let Some(page) = populated {
                p.write(page, 1);
            }
            p.policy.thp = orders_to::<A>(3);
            p.write(page, 2);
            let folio = p.folio(page);
            assert_eq!((folio.order(), p.pfn(block)), (order, folio.head()), "fault {page}");
            assert_eq!(folio.anon().map(|(_, index)| index), Some(block));
            let n = 1 << order;
            assert_eq!((folio.refcount(), folio.mapcount()), (n, n as u32));
            for k in 0..n as u64 {
                assert!(p.is_exclusive(block + k) && p.pte(block + k).is_writable(Level::Pte));
            }
            assert_eq!(p.rss(), n as u64 + u64::from(populated.is_some()));
            p.check();
        }
        assert_clean(&m);
    }

    /// Rules: ANON-06. Rows: S-AN3.
    fn a_failed_order_falls_back_and_is_counted<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m).with_policy(orders_to::<A>(3));
        p.map(pages(0, 32), RW);
        p.write(15, 1);
        m.failures().fail_after(0);
        p.write(0, 1);
        assert!(!m.failures().disarm());
        assert_eq!(p.folio(0).order(), 2);
        assert_eq!(m.events().get(Event::AnonFaultFallback), 3);
        assert_eq!(m.events().get(Event::AnonFaultAlloc), 3 + 2, "the first one too");
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: ANON-01, FAULT-01.
    fn what_is_not_mapped_or_not_allowed_signals<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 4), R).map(pages(4, 4), RW | VmaFlags::SHARED);
        let segv = |page| FaultOutcome::Signal(FaultSignal::Segv { va: va(page) });
        assert_eq!(p.fault(9, READ), segv(9));
        assert_eq!(p.fault(1, WRITE), segv(1));
        assert_eq!(p.fault(1, WRITE | FaultFlags::UNSHARE), segv(1));
        assert_eq!(p.fault(1, FaultFlags::EXEC), segv(1));
        assert_eq!(p.fault(5, WRITE), FaultOutcome::Signal(FaultSignal::Bus { va: va(5) }));
        assert_eq!((p.rss(), m.folios_in_use()), (0, 0));
        p.exit();
        assert_clean(&m);
    }

    /// Rules: BATCH-23, ANON-06, SHSTK-06.
    fn a_shadow_stack_gets_single_writable_pages<A>() {
        let m = new_machine::<A>();
        let thp = orders_to::<A>(A::order(Level::Pmd)).with_global(ThpMode::Always);
        let p = Process::<A>::new(&m).with_policy(thp);
        p.map(pages(0, 32), RW | VmaFlags::SHADOW_STACK | VmaFlags::HUGEPAGE);
        let push = WRITE | FaultFlags::SHADOW_STACK;
        assert_eq!(p.fault(8, push), FaultOutcome::Done { major: false });
        assert_eq!(p.folio(8).order(), 0);
        assert!(p.pte(8).is_writable(Level::Pte) && p.pte(8).is_dirty());
        // A second one finds nothing to do, and keeps the permission.
        assert_eq!(p.fault(8, push), FaultOutcome::Done { major: false });
        assert!(p.pte(8).is_writable(Level::Pte));
        p.exit();
        assert_clean(&m);
    }

    /// Rules: ANON-10, FOLIO-24. The deposited table is what a split needs.
    fn a_pmd_sized_folio<A>() {
        let m = new_machine::<A>();
        let order = A::order(Level::Pmd);
        let n = 1u64 << order;
        let thp = ThpPolicy::new(order).with_global(ThpMode::Always);
        let p = Process::<A>::new(&m).with_policy(thp);
        p.map(pages(0, 3 * n), RW);
        p.write(n + 7, 7);
        let (e, level) = p.entry(n);
        assert!(level == Level::Pmd && e.is_writable(level) && e.is_dirty());
        let folio = p.folio(n);
        assert_eq!((folio.order(), folio.refcount(), folio.mapcount()), (order, 1, 1));
        assert_eq!((folio.entire_mapcount(), p.rss()), (1, n));
        assert!(p.is_exclusive(n) && !m.memmap().page_exclusive(folio.page(1)));
        assert!(folio.is_deferred() && !folio.has(FolioFlags::PARTIALLY_MAPPED));
        mm_rmap::split_pmd(&p.mm, p.mm.read().stay(), va(n));
        assert_eq!((p.read(n + 7), folio.mapcount(), p.faults()), (7, n as u32, 1));
        // Not where the mapping does not reach.
        p.map(pages(3 * n + 1, n - 1), RW);
        p.write(3 * n + 2, 1);
        assert_eq!(p.folio(3 * n + 2).order(), 0);
        p.check();
        p.exit();
        assert_clean(&m);
    }

    /// Rules: ANON-10, ANON-11. Rows: S-ZP3.
    fn the_huge_zero_folio_is_replaced_whole_or_split<A>() {
        let m = new_machine::<A>();
        let order = A::order(Level::Pmd);
        let n = 1u64 << order;
        let thp = ThpPolicy::new(order).with_global(ThpMode::Always);
        for no_memory in [false, true] {
            let p = Process::<A>::new(&m).with_policy(thp);
            p.map(pages(0, 2 * n), RW);
            assert_eq!((p.read(1), p.read(n), p.rss()), (0, 0, 0));
            assert!(m.memmap().is_huge_zero(p.pfn(1)) && p.entry(1).0.is_special());
            let faults = p.faults();
            if no_memory {
                m.failures().fail_after(0);
            }
            p.write(1, 5);
            assert_eq!((p.read(1), p.read(2), p.read(n), p.faults()), (5, 0, 0, faults + 1));
            if no_memory {
                assert!(!m.failures().disarm());
                assert_eq!((p.folio(1).order(), p.pfn(2), p.rss()), (0, m.zero_page(), 1));
            } else {
                assert_eq!((p.folio(1).order(), p.rss()), (order, n));
            }
            p.check();
        }
        assert_clean(&m);
    }

    /// Rules: ANON-10: without a huge zero folio to map, reads get folios.
    fn a_read_without_zero_folios_gets_a_folio<A>() {
        let m = new_machine::<A>();
        let order = A::order(Level::Pmd);
        let thp = ThpPolicy::new(order).with_global(ThpMode::Always).with_zero_page(false);
        let p = Process::<A>::new(&m).with_policy(thp);
        p.map(pages(0, 1 << order), RW);
        assert_eq!((p.read(1), p.rss()), (0, 1 << order));
        p.exit();
        assert_clean(&m);
    }

    /// Rules: ANON-03, ANON-05, FAULT-12: every allocation may fail; nothing
    /// stays behind but page tables.
    fn every_failure_gives_everything_back<A>() {
        let order = A::order(Level::Pmd);
        let always = orders_to::<A>(order).with_global(ThpMode::Always);
        for thp in [ThpPolicy::new(order), orders_to::<A>(3), always, always.with_zero_page(false)] {
            for flags in [READ, WRITE] {
                let mut index = 0;
                loop {
                    let m = new_machine::<A>();
                    let p = Process::<A>::new(&m).with_policy(thp);
                    p.map(pages(0, 1 << (order + 1)), RW);
                    m.failures().fail_after(index);
                    let outcome = p.fault(3, flags);
                    let unused = m.failures().disarm();
                    if outcome == FaultOutcome::Oom {
                        assert!(!unused);
                        assert_eq!((p.rss(), m.folios_in_use()), (0, 0), "failure {index}");
                        assert!(p.entry(3).0.is_none());
                    }
                    p.check();
                    p.exit();
                    assert_clean(&m);
                    if unused {
                        break;
                    }
                    index += 1;
                }
                assert!(index >= 1, "an allocation was made to fail");
            }
        }
    }

    /// Rules: FAULT-04, FAULT-05: a fault on an entry that allows the access
    /// flushes what the CPU had, once.
    fn a_spurious_fault_flushes_the_page<A>() {
        let m = new_machine::<A>();
        let p = Process::<A>::new(&m);
        p.map(pages(0, 4), RW);
        p.write(1, 1);
        let flushes = || TableSpace::tlb(&m).flushes.get();
        let before = flushes();
        assert_eq!(p.fault(1, READ), FaultOutcome::Done { major: false });
        assert_eq!(p.fault(1, WRITE | FaultFlags::TRIED), FaultOutcome::Done { major: false });
        assert_eq!(flushes(), before);
        assert_eq!(p.fault(1, WRITE), FaultOutcome::Done { major: false });
        assert_eq!(flushes(), before + 1);
        assert_eq!((p.folio(1).refcount(), p.rss()), (1, 1));
        p.exit();
        assert_clean(&m);
    }
}

/// Section 8.5 of the rules, on a full-size table.
/// Rules: ANON-06.
#[test]
fn vectors_of_order_choice_on_x86_64() {
    type A = mm_x86::X86_64;
    let m = new_machine::<A>();
    for (populated, start, page, order, block) in [
        (Some(5), 0, 8, 3, 8),
        (Some(5), 0, 0, 2, 0),
        (Some(5), 0, 4, 0, 4),
        (None, 0, 77, 8, 0),
        (None, 3, 3, 0, 3),
        (None, 3, 4, 2, 4),
    ] {
        let mut p = Process::<A>::new(&m);
        p.map(pages(start, 1024 - start), RW);
        if let Some(page) = populated {
            p.write(page, 1);
        }
        p.policy.thp = orders_to::<A>(8);
        p.write(page, 2);
        let folio = p.folio(page);
        assert_eq!((folio.order(), p.pfn(block)), (order, folio.head()), "fault {page}");
        p.check();
    }
    assert_clean(&m);
}
