//! Pages come back from swap: alone and in large folios, exclusive and shared, with errors.

use crate::common::*;
use mm_arch::{Arch, Entry, Level, SwapBits, SwapSlot};
use mm_fault::{
    FaultFlags, FaultOutcome, FaultSignal, OrderMode, SwapInPolicy, ThpPolicy, UserFault,
};
use mm_folio::{FolioFlags, FolioRef, Get};
use mm_rmap::model::{UnmapBy, swap_out, unmap_to_swap};
use mm_vma::{
    Event, Platform, RssKind, SlotRun, SwapSpace, VmaFlags, free_swap_cache, write_folio,
};
use std::sync::atomic::Ordering::Relaxed;

const MAJOR: FaultOutcome = FaultOutcome::Done { major: true };
const MINOR: FaultOutcome = FaultOutcome::Done { major: false };
const WRITE: FaultFlags = FaultFlags::WRITE;
const READ: FaultFlags = FaultFlags::empty();
/// Slots of the machines of these tests.
const SLOTS: u64 = 255;

fn large<A: Arch>() -> ThpPolicy {
    ThpPolicy::new(A::order(Level::Pmd)).with_order(2, OrderMode::Always)
}
/// A process with a mapping of 16 pages from 16 on.
fn process<A: Arch>(flags: VmaFlags) -> Process<A> {
    let p = Process::new(&new_machine::<A>());
    p.map(pages(16, 16), flags);
    p
}
/// The same, with a folio of four pages at 16 that hold 1 to 4.
fn with_folio<A: Arch>(flags: VmaFlags) -> Process<A> {
    let p = process::<A>(flags).with_policy(large::<A>());
    for k in 0..4 {
        p.write(16 + k, 1 + k);
    }
    assert_eq!(p.folio(16).order(), 2);
    p
}
fn out<A: Arch>(p: &Process<A>, page: u64) {
    assert!(swap_out(p.machine(), p.pfn(page), UnmapBy::Run), "page {page} stays");
}
/// All entries of the folio of `page` become swap entries; the folio stays in the cache.
fn out_to_cache<A: Arch>(p: &Process<A>, page: u64) {
    let own = p.folio(page).grab::<Get>(1).expect("room");
    let locked = own.folio().lock();
    p.machine().slots().add(&locked).expect("room");
    unmap_to_swap(p.machine(), &locked, UnmapBy::Run).expect("no pins");
    write_folio(p.machine(), &locked).expect("written");
}
fn slot<A: Arch>(p: &Process<A>, page: u64) -> SwapSlot {
    p.pte(page).swap_slot().expect("it is swapped out")
}
fn swapped<A: Arch>(p: &Process<A>) -> u64 {
    p.mm.counters().get(RssKind::Swap)
}
fn free_slots<A: Arch>(p: &Process<A>) -> u64 {
    p.machine().slots().nr_free()
}
fn bits<A: Arch>(p: &Process<A>, page: u64) -> SwapBits {
    p.pte(page).swap_bits()
}
/// The entry of a page that is swapped out gets other bits.
fn set_bits<A: Arch>(p: &Process<A>, page: u64, bits: SwapBits) {
    p.with(|vmas| {
        let mut t = p.mm.tables().lock_table(vmas.stay(), va(page)).expect("table");
        let index = t.index_of(va(page));
        let e = t.get(index).with_swap_bits(bits);
        t.set(index, e);
    });
}
fn end<A: Arch>(p: Process<A>) {
    let m = p.machine().clone();
    p.check();
    p.exit();
    assert_clean(&m);
}

on_models! {
    /// Rules: SWPI-08, SWPI-09, EXCL-03, EXCL-06, RMAP-18. Rows: S-SW1.
    fn an_exclusive_page_comes_back_exclusive<A>() {
        for flags in [READ, WRITE] {
            let p = process::<A>(RW);
            p.write(17, 5);
            out(&p, 17);
            assert_eq!((p.rss(), swapped(&p), free_slots(&p)), (0, 1, SLOTS - 1));
            assert!(bits(&p, 17).exclusive && p.machine().slots().count(slot(&p, 17)) == 1);
            assert_eq!(p.fault(17, flags), MAJOR);
            // For a read as well: the page is nobody else's.
            let e = p.pte(17);
            assert!(e.is_writable(Level::Pte) && p.is_exclusive(17));
            assert_eq!(e.is_dirty(), flags == WRITE);
            assert_eq!((p.rss(), swapped(&p), free_slots(&p)), (1, 0, SLOTS));
            assert!(!p.folio(17).has(FolioFlags::SWAPCACHE));
            let faults = p.faults();
            p.write(17, p.read(17) + 1);
            assert_eq!((p.faults() - faults, p.read(17), p.reused()), (0, 6, 0));
            end(p);
        }
    }

    /// Rules: SWPI-08, BATCH-17, SWP-02, FAULT-07. Rows: S-UF3.
    fn tracking_bits_travel<A>() {
        // A mapping whose stores are tracked, one that is not written to.
        let p = process::<A>(VmaFlags::READ | VmaFlags::WRITE);
        p.write(16, 1);
        p.write(17, 2);
        p.change(17, |e| e.wrprotect().clear_soft_dirty());
        out(&p, 16);
        out(&p, 17);
        let soft = [16, 17].map(|page| bits(&p, page).soft_dirty);
        assert_eq!(soft, [A::HAS_SOFT_DIRTY, false]);
        for page in [16, 17] {
            assert_eq!(p.fault(page, READ), MAJOR);
        }
        assert_eq!(p.pte(16).is_soft_dirty(), A::HAS_SOFT_DIRTY);
        assert!(!p.pte(17).is_soft_dirty());
        // The next store to 17 is still noticed.
        assert!(p.pte(16).is_writable(Level::Pte));
        assert_eq!(p.pte(17).is_writable(Level::Pte), !A::HAS_SOFT_DIRTY);
        p.write(17, 3);
        end(p);
        if !A::HAS_UFFD_WP {
            return;
        }
        let p = process::<A>(RW | VmaFlags::UFFD_WP);
        p.write(16, 1);
        p.change(16, |e| e.mkuffd_wp());
        out(&p, 16);
        assert!(bits(&p, 16).uffd_wp);
        let asked = FaultOutcome::UserFault { va: va(16), kind: UserFault::Wp };
        assert_eq!(p.fault(16, WRITE), asked);
        let e = p.pte(16);
        assert!(e.is_present(Level::Pte) && e.is_uffd_wp() && !e.is_writable(Level::Pte));
        p.change(16, |e| e.clear_uffd_wp());
        end(p);
    }

    /// Rules: SWPI-02, SWPI-08, SWPI-10, RMAP-02, REUSE-01, FAULT-13. Rows: S-SW2.
    fn a_shared_page_is_read_once<A>() {
        let p = process::<A>(RW);
        p.write(17, 5);
        let child = p.fork();
        out(&p, 17);
        for of in [&p, &child] {
            assert_eq!((bits(of, 17).exclusive, swapped(of)), (false, 1));
        }
        assert_eq!(p.machine().slots().count(slot(&p, 17)), 2);
        assert_eq!(p.fault(17, READ), MAJOR);
        let cached = p.pfn(17);
        assert!(p.folio(17).has(FolioFlags::SWAPCACHE) && !p.is_exclusive(17));
        assert!(!p.pte(17).is_writable(Level::Pte));
        assert_eq!(child.fault(17, READ), MINOR);
        assert_eq!((child.pfn(17), p.folio(17).mapcount()), (cached, 2));
        p.machine().anon_audit(cached);
        p.write(17, 6);
        assert_ne!(p.pfn(17), cached);
        assert_eq!((child.read(17), p.read(17)), (5, 6));
        // Nobody else is left: the cache has no need of the page.
        child.write(17, 7);
        assert_eq!((child.pfn(17), free_slots(&p)), (cached, SLOTS));
        assert!(child.folio(17).has(FolioFlags::DIRTY));
        child.check();
        child.exit();
        end(p);
    }

    /// Two places count on one slot, as those of a merged page do.
    ///
    /// Rules: SWPI-03, SWPI-07.
    fn a_page_that_belongs_elsewhere_is_copied<A>() {
        let p = process::<A>(RW);
        p.write(17, 5);
        out(&p, 17);
        set_bits(&p, 17, SwapBits { exclusive: false, ..bits(&p, 17) });
        let (e, run) = (p.pte(17), SlotRun::new(slot(&p, 17), 1));
        p.machine().slots().dup(run).expect("few");
        p.with(|vmas| {
            let mut t = p.mm.tables().lock_table(vmas.stay(), va(20)).expect("table");
            let index = t.index_of(va(20));
            t.set(index, e);
        });
        p.mm.counters().add(RssKind::Swap, 1);
        assert_eq!(p.fault(17, READ), MAJOR);
        let cached = p.pfn(17);
        p.machine().failures().fail_after(0);
        assert_eq!((p.fault(20, READ), p.pte(20)), (FaultOutcome::Oom, e));
        assert!(!p.machine().failures().disarm());
        assert_eq!(p.fault(20, READ), MINOR);
        assert!(p.pfn(20) != cached && p.is_exclusive(20) && !p.is_exclusive(17));
        assert!(p.pte(20).is_writable(Level::Pte) && p.folio(20).has(FolioFlags::DIRTY));
        for pfn in [cached, p.pfn(20)] {
            p.machine().anon_audit(pfn);
        }
        assert_eq!((swapped(&p), p.machine().slots().count(run.first)), (0, 0));
        p.write(20, 6);
        assert_eq!((p.read(17), p.read(20)), (5, 6));
        end(p);
    }

    /// Rules: SWPI-12, FAULT-13, SWAP-04.
    fn a_store_to_a_shared_page_is_one_fault<A>() {
        let p = process::<A>(RW);
        p.write(17, 5);
        let child = p.fork();
        out(&p, 17);
        assert_eq!(p.fault(17, WRITE), MAJOR);
        assert!(p.pte(17).is_writable(Level::Pte) && !p.folio(17).has(FolioFlags::SWAPCACHE));
        p.write(17, 6);
        // The cache keeps what the child has an entry for.
        assert_eq!((child.fault(17, READ), child.read(17), p.read(17)), (MINOR, 5, 6));
        child.exit();
        assert_eq!(free_slots(&p), SLOTS);
        end(p);
    }

    /// Rules: SWPI-08, SWPI-11, MODE-01.
    fn the_last_user_takes_the_page_from_the_cache<A>() {
        for (policy, reused) in [(SwapInPolicy::Direct, 0), (SwapInPolicy::Cached, 1)] {
            let mut p = process::<A>(RW);
            p.policy.swap_in = policy;
            p.machine().swap_state().asynchronous.store(true, Relaxed);
            p.write(17, 5);
            let child = p.fork();
            out(&p, 17);
            assert_eq!(child.fault(17, READ), MAJOR);
            let cached = child.pfn(17);
            child.exit();
            assert_eq!(p.fault(17, WRITE), MINOR);
            assert_eq!((p.pfn(17), p.reused(), free_slots(&p)), (cached, reused, SLOTS));
            assert!(p.is_exclusive(17) && p.pte(17).is_writable(Level::Pte));
            end(p);
        }
    }

    /// Rules: SWPI-07, SWPI-10.
    fn what_was_shared_once_is_read_alone<A>() {
        let p = with_folio::<A>(RW);
        let child = p.fork();
        out(&p, 16);
        child.exit();
        assert!(!bits(&p, 18).exclusive);
        assert_eq!(p.fault(18, READ), MAJOR);
        for page in 16..20 {
            assert!(p.is_exclusive(page) && p.pte(page).is_writable(Level::Pte));
        }
        end(p);
    }

    /// Rules: SWPI-06, SWPI-09, SWAP-05, BATCH-16.
    fn a_large_folio_comes_back_whole<A>() {
        let p = with_folio::<A>(RW);
        out(&p, 16);
        assert_eq!((p.rss(), swapped(&p), free_slots(&p)), (0, 4, SLOTS - 4));
        assert!((0..4).all(|k| slot(&p, 16 + k).offset == slot(&p, 16).offset + k));
        assert_eq!(p.fault(18, READ), MAJOR);
        assert_eq!((p.folio(16).order(), p.folio(19).mapcount()), (2, 4));
        assert_eq!((p.rss(), swapped(&p), free_slots(&p)), (4, 0, SLOTS));
        let faults = p.faults();
        for k in 0..4 {
            assert_eq!(p.read(16 + k), 1 + k);
            p.write(16 + k, 9);
        }
        assert_eq!((p.faults(), p.folio(16).refcount()), (faults, 4));
        end(p);
    }

    /// Rules: SWAP-05, ANON-07. Rows: S-SW3.
    fn what_does_not_fit_comes_back_page_by_page<A>() {
        type Spoil<A> = fn(&mut Process<A>);
        let spoils: [(&str, Spoil<A>); 6] = [
            ("a hole", |p| p.discard(17)),
            ("other bits", |p| {
                set_bits(p, 17, SwapBits { soft_dirty: false, exclusive: false, uffd_wp: false });
            }),
            ("the policy", |p| p.policy.thp = ThpPolicy::new(A::order(Level::Pmd))),
            ("userfaultfd", |p| {
                let mut vmas = p.mm.write();
                let mut change = vmas.change();
                let vma = change.find_mut(va(16)).expect("mapped");
                vma.set_flags(vma.flags() | VmaFlags::UFFD_MISSING);
            }),
            ("zeros in part", |p| {
                let of = SlotRun::new(slot(p, 19), 1);
                p.machine().slots().set_zero(of, true);
            }),
            ("no memory", |p| p.machine().failures().fail_after(0)),
        ];
        for (why, spoil) in spoils {
            let mut p = with_folio::<A>(RW);
            out(&p, 16);
            spoil(&mut p);
            assert_eq!(p.fault(16, READ), MAJOR, "{why}");
            assert_eq!((p.folio(16).order(), p.rss()), (0, 1), "{why}");
            assert_eq!(p.read(16), 1, "{why}");
            end(p);
        }
        // Slots that lie otherwise than the pages.
        let p = process::<A>(RW);
        for page in 16..20 {
            p.write(page, page);
            out(&p, page);
        }
        assert_ne!(slot(&p, 16).offset % 4, 0);
        let p = p.with_policy(large::<A>());
        for page in 16..20 {
            assert_eq!((p.fault(page, READ), p.read(page)), (MAJOR, page));
        }
        end(p);
    }

    /// Rules: SWPI-02, F-RACE-26.
    fn who_reads_past_the_cache_keeps_others_out<A>() {
        let p = with_folio::<A>(RW);
        out(&p, 16);
        let run = SlotRun::new(slot(&p, 19), 1);
        let before = p.pte(19);
        p.machine().slots().begin_read(run).expect("nobody has it");
        // Page 16 is read without the page that is being read, and that one waits.
        assert_eq!((p.fault(19, READ), p.pte(19)), (MINOR, before));
        assert_eq!((p.fault(16, READ), p.folio(16).order()), (MAJOR, 0));
        p.machine().slots().end_read(run);
        assert_eq!(p.read(19), 4);
        end(p);
    }

    /// Rules: SWPI-06, FOLIO-22, FOLIO-46.
    fn a_cached_folio_is_mapped_whole_if_all_entries_agree<A>() {
        for alike in [true, false] {
            let p = with_folio::<A>(RW);
            let head = p.pfn(16);
            out_to_cache(&p, 16);
            let queued = p.machine().memmap().stats().order[2].split_deferred.get();
            assert_eq!(queued, 0, "the cache maps it whole again");
            if !alike {
                set_bits(&p, 19, SwapBits { exclusive: false, ..bits(&p, 19) });
            }
            assert_eq!(p.fault(17, READ), MINOR);
            assert_eq!((p.pfn(17), p.rss()), (head.add(1), if alike { 4 } else { 1 }));
            assert!(p.folio(17).has(FolioFlags::SWAPCACHE));
            assert!(p.is_exclusive(17));
            // Its own mark only.
            assert_eq!(p.machine().memmap().page_exclusive(head.add(3)), alike);
            for page in 16..20 {
                assert_eq!(p.read(page), page - 15);
            }
            end(p);
        }
    }

    /// Rules: SWPI-05, ANON-05.
    fn a_device_that_fails_is_a_signal<A>() {
        let bus = FaultOutcome::Signal(FaultSignal::Bus { va: va(17) });
        for asynchronous in [false, true] {
            let p = with_folio::<A>(RW);
            out(&p, 16);
            let before = p.pte(17);
            let state = p.machine().swap_state();
            state.asynchronous.store(asynchronous, Relaxed);
            state.failures.fail_after(0);
            assert_eq!((p.fault(17, READ), p.pte(17)), (bus, before));
            assert_eq!((p.rss(), swapped(&p), free_slots(&p)), (0, 4, SLOTS - 4));
            assert_eq!(p.machine().folios_in_use(), 0);
            // It failed once.
            assert_eq!((p.fault(17, READ), p.read(17)), (MAJOR, 2));
            end(p);
        }
    }

    /// Rules: ANON-05.
    fn without_memory_nothing_changes<A>() {
        let p = process::<A>(RW);
        p.write(17, 5);
        out(&p, 17);
        let before = p.pte(17);
        p.machine().failures().fail_after(0);
        assert_eq!((p.fault(17, WRITE), p.pte(17)), (FaultOutcome::Oom, before));
        assert_eq!((p.rss(), swapped(&p)), (0, 1));
        assert_eq!((p.fault(17, WRITE), p.read(17)), (MAJOR, 5));
        end(p);
    }

    /// Rules: SWPI-07. Rows: S-SW4.
    fn a_page_under_writeback_keeps_its_content<A>() {
        for stable in [false, true] {
            let p = process::<A>(RW);
            p.write(17, 5);
            let written = p.pfn(17);
            out_to_cache(&p, 17);
            p.machine().swap_state().stable_pages.store(stable, Relaxed);
            let own: FolioRef<'_, _, Get> =
                p.machine().memmap().folio(written).grab::<Get>(1).expect("room");
            own.folio().set_flag(FolioFlags::WRITEBACK);
            assert_eq!(p.fault(17, READ), MINOR);
            assert_eq!(p.pte(17).is_writable(Level::Pte), !stable);
            p.write(17, 6);
            assert_eq!(p.pfn(17) != written, stable);
            own.folio().clear_flag(FolioFlags::WRITEBACK);
            free_swap_cache(p.machine(), own.folio());
            drop(own);
            end(p);
        }
    }

    /// Rules: SWPI-11, SWAP-03.
    fn when_a_folio_gives_up_its_slots<A>() {
        let stays = |p: &Process<A>, flags: FaultFlags| {
            out_to_cache(p, 17);
            assert_eq!(p.fault(17, flags), MINOR);
            p.folio(17).has(FolioFlags::SWAPCACHE)
        };
        let p = process::<A>(RW);
        p.write(17, 5);
        assert!(stays(&p, READ));
        p.folio(17).lock_and_free(p.machine());
        assert!(!stays(&p, WRITE), "a store by the only user");
        assert!(p.folio(17).has(FolioFlags::DIRTY));
        p.folio(17).set_flag(FolioFlags::MLOCKED);
        assert!(!stays(&p, READ), "it is locked in memory");
        p.folio(17).clear_flag(FolioFlags::MLOCKED);
        let others: Vec<_> = (0..SLOTS / 2 + 1)
            .map(|_| {
                let own = p.machine().memmap().alloc(0).expect("memory");
                own.folio().set_flag(FolioFlags::UPTODATE);
                p.machine().slots().add(&own.folio().lock()).expect("room");
                own
            })
            .collect();
        assert!(!stays(&p, READ), "swap is nearly full");
        for own in others {
            assert!(free_swap_cache(p.machine(), own.folio()));
        }
        end(p);
        let p = process::<A>(RW | VmaFlags::LOCKED);
        p.write(17, 5);
        assert!(!stays(&p, READ), "the mapping is locked");
        end(p);
    }

    /// Rules: MODE-01, SWPI-11.
    fn through_the_cache_in_any_case<A>() {
        let mut p = with_folio::<A>(RW);
        p.policy.swap_in = SwapInPolicy::Cached;
        out(&p, 16);
        assert_eq!((p.fault(18, WRITE), p.rss()), (MAJOR, 4));
        assert_eq!((p.folio(18).order(), p.folio(18).refcount()), (2, 4));
        assert!(p.is_exclusive(16) && p.pte(19).is_writable(Level::Pte));
        // A device that takes its time: the cache pays, even for an exclusive store.
        p.machine().swap_state().asynchronous.store(true, Relaxed);
        out(&p, 16);
        assert_eq!((p.fault(18, WRITE), p.rss(), swapped(&p)), (MAJOR, 1, 3));
        assert!(p.folio(18).has(FolioFlags::SWAPCACHE) && p.pte(18).is_writable(Level::Pte));
        end(p);
    }

    /// Rules: REUSE-05. Rows: S-RU15, S-RU16, S-RU17.
    fn reuse_of_a_cached_folio_asks_for_its_slots<A>() {
        for (row, reused) in [("all present", true), ("one swapped", false), ("locked", false)] {
            let p = with_folio::<A>(RW);
            out_to_cache(&p, 16);
            let head = p.machine().slots().get(p.machine().memmap(), slot(&p, 16));
            let own: FolioRef<'_, _, Get> =
                p.machine().memmap().adopt_run(head.expect("cached"));
            let folio = own.folio();
            set_bits(&p, 18, SwapBits { exclusive: false, ..bits(&p, 18) });
            for page in [16, 17, 18, 19] {
                if page != 18 || row != "one swapped" {
                    assert_eq!(p.fault(page, READ), MINOR);
                }
            }
            // As a fork and the end of the child leave it.
            p.machine().memmap().clear_exclusive(folio.head(), 4);
            for page in [16, 17, 18, 19] {
                if p.pte(page).is_present(Level::Pte) {
                    p.change(page, |e| e.wrprotect());
                }
            }
            let locked = (row == "locked").then(|| folio.lock());
            drop(own);
            p.write(16, 9);
            assert_eq!(p.pfn(16) == folio.head(), reused, "{row}");
            assert_eq!(p.reused(), u64::from(reused), "{row}");
            drop(locked);
            end(p);
        }
    }

    /// Rules: SWPI-08.
    fn a_page_of_a_read_only_mapping_stays_read_only<A>() {
        let p = process::<A>(RW);
        p.write(17, 5);
        out(&p, 17);
        p.mm.write().change().find_mut(va(17)).expect("mapped").set_flags(R);
        assert_eq!(p.fault(17, READ), MAJOR);
        assert!(!p.pte(17).is_writable(Level::Pte) && p.is_exclusive(17));
        assert_eq!(p.machine().events().get(Event::PagesSwappedIn), 1);
        end(p);
    }
}

/// What these tests ask of machines and folios.
trait Helpers<A: Arch> {
    fn anon_audit(&self, page: mm_arch::Pfn);
}
impl<A: Arch> Helpers<A> for M<A> {
    fn anon_audit(&self, page: mm_arch::Pfn) {
        use mm_rmap::RmapPlatform;
        let found = self.anon_trees().audit_folio(self.memmap().folio(page));
        assert_eq!(found, Ok(()), "relatives find the page by its tree");
    }
}
trait FreeSlots<A: Arch> {
    fn lock_and_free(&self, m: &M<A>);
}
impl<A: Arch> FreeSlots<A> for mm_folio::Folio<'_, M<A>> {
    fn lock_and_free(&self, m: &M<A>) {
        assert!(m.slots().free(&self.lock()));
    }
}
