//! A write fault that reuses more than its own page.

use crate::common::*;
use mm_arch::{Arch, Entry, Level, Protection};
use mm_fault::{FaultFlags, FaultOutcome, OrderMode, ReusePolicy, ThpPolicy, UnshareReuse};
use mm_folio::{FolioFlags, Get};
use mm_pgtable::TableSpace;
use mm_rmap::RmapPlatform;
use mm_vma::{Event, Platform, VmaFlags};

const DONE: FaultOutcome = FaultOutcome::Done { major: false };
const WRITE: FaultFlags = FaultFlags::WRITE;
const WIDE: [ReusePolicy; 3] = [ReusePolicy::Block, ReusePolicy::Table, ReusePolicy::Adaptive];

/// A process with a written folio of 8 pages at page 0, alone with it after a
/// fork. All entries are clean and old: what a fault adds is seen.
fn after_fork<A: Arch>(m: &M<A>, reuse: ReusePolicy) -> Process<A> {
    let p = written(m, reuse, RW);
    p.fork().exit();
    for k in 0..8 {
        p.change(k, |e| e.mkclean().mkold());
    }
    p
}
fn written<A: Arch>(m: &M<A>, reuse: ReusePolicy, flags: VmaFlags) -> Process<A> {
    let pmd = A::order(Level::Pmd);
    let thp = ThpPolicy::new(pmd).with_order(3, OrderMode::Always);
    let mut p = Process::new(m).with_policy(thp);
    p.policy.reuse = reuse;
    p.map(pages(0, 4 << pmd), flags);
    for page in 0..8 {
        p.write(page, 100 + page);
    }
    assert_eq!(p.folio(0).order(), 3);
    p
}
impl<A: Arch> Process<A> {
    fn writable(&self) -> Vec<u64> {
        (0..8).filter(|k| self.pte(*k).is_writable(Level::Pte)).collect()
    }
    fn exclusive(&self) -> Vec<u64> {
        let leaf = |k: &u64| self.pte(*k).is_leaf(Level::Pte);
        (0..8).filter(leaf).filter(|k| self.is_exclusive(*k)).collect()
    }
    fn flushes(&self) -> u64 {
        TableSpace::tlb(self.machine()).flushes.get()
    }
    fn finish(self) {
        let m = self.machine().clone();
        self.check();
        self.exit();
        assert_clean(&m);
    }
}
fn all() -> Vec<u64> {
    (0..8).collect()
}
fn all_but(without: &[u64]) -> Vec<u64> {
    (0..8).filter(|k| !without.contains(k)).collect()
}

on_models! {
    /// Rules: WREUSE-04, WREUSE-07, WREUSE-11, WREUSE-12, WREUSE-14, WREUSE-15,
    /// WREUSE-19, WREUSE-25, REUSE-09, REUSE-10. Rows: S-RU1, S-RU4.
    fn one_fault_makes_the_whole_folio_writable<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = after_fork::<A>(&m, reuse);
            let (folio, flushes) = (p.folio(0), p.flushes());
            let before = (folio.refcount(), folio.mapcount(), folio.anon(), p.rss());
            p.write(5, 1);
            assert_eq!((p.writable(), p.exclusive()), (all(), all()), "{reuse:?}");
            assert_eq!((p.reused(), p.flushes()), (1, flushes));
            assert_eq!(m.events().get(Event::EntriesWidened), 7);
            let folio = p.folio(0);
            assert_eq!(before, (folio.refcount(), folio.mapcount(), folio.anon(), p.rss()));
            for k in 0..8 {
                // A folded block has one state.
                let marked = k == 5 || A::CONT > 1 && k / A::CONT as u64 == 5 / A::CONT as u64;
                assert_eq!((p.pte(k).is_dirty(), p.pte(k).is_young()), (marked, marked), "{k}");
            }
            let faults = p.faults();
            for k in 0..8 {
                p.write(k, k);
            }
            assert_eq!((p.faults(), p.reused()), (faults, 1));
            p.finish();
        }
    }

    /// Rules: WREUSE-06, WREUSE-07, REUSE-11. Rows: S-RU8, S-RU22, MM-009.
    fn holes_and_other_pages_are_left_alone<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = written::<A>(&m, reuse, RW);
            // Page 3 is a page of its own, page 6 is gone.
            let c = p.fork();
            p.write(3, 33);
            p.discard(6);
            c.exit();
            m.memmap().clear_exclusive(p.pfn(3), 1);
            p.change(3, |e| e.wrprotect());
            let foreign = p.pte(3);
            assert!(p.folio(0).has(FolioFlags::PARTIALLY_MAPPED));
            p.write(0, 1);
            assert_eq!((p.writable(), p.exclusive()), (all_but(&[3, 6]), all_but(&[3, 6])));
            assert_eq!((p.pte(3), p.entry(6).0.is_none()), (foreign, true));
            assert_eq!((p.read(3), p.reused()), (33, 1));
            p.finish();
        }
    }

    /// Rules: WREUSE-06. The folio is there, at a shifted index.
    fn the_same_folio_at_another_offset_is_left_alone<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = after_fork::<A>(&m, reuse);
            // Pages 4 and 5 changed places.
            let (four, five) = (p.pte(4), p.pte(5));
            p.with(|vmas| {
                let mut t = p.mm.tables().lock_table(vmas.stay(), va(0)).expect("table");
                let mut owed = p.mm.tables().tlb().obligation();
                for (k, e) in [(4, five), (5, four)] {
                    t.take(k, &mut owed);
                    t.set(k, e);
                }
            });
            p.write(0, 1);
            assert_eq!((p.writable(), p.exclusive()), (all_but(&[4, 5]), all_but(&[4, 5])));
            // Back, for the audits.
            p.with(|vmas| {
                let mut t = p.mm.tables().lock_table(vmas.stay(), va(0)).expect("table");
                let mut owed = p.mm.tables().tlb().obligation();
                for (k, e) in [(4, four), (5, five)] {
                    t.take(k, &mut owed);
                    t.set(k, e);
                }
            });
            p.finish();
        }
    }

    /// Rules: WREUSE-09, WREUSE-10, FAULT-07, MM-009. Rows: S-RU11.
    fn protection_by_uffd_stays<A>() {
        if A::HAS_UFFD_WP {
            for reuse in WIDE {
                let m = new_machine::<A>();
                let p = after_fork::<A>(&m, reuse);
                for k in [4, 5] {
                    p.change(k, |e| e.mkuffd_wp());
                }
                let (four, five) = (p.pte(4), p.pte(5));
                p.write(0, 1);
                assert_eq!((p.writable(), p.exclusive()), (all_but(&[4, 5]), all()));
                assert_eq!((p.pte(4), p.pte(5)), (four, five));
                p.write(4, 1);
                assert!(!p.pte(4).is_uffd_wp() && p.pte(5).is_uffd_wp());
                p.finish();
            }
        }
    }

    /// Rules: WREUSE-09, WREUSE-11, WRITE-01, MM-009. Rows: S-RU12.
    fn soft_dirty_tracking_sees_every_first_store<A>() {
        if A::HAS_SOFT_DIRTY {
            for reuse in WIDE {
                let m = new_machine::<A>();
                let p = written::<A>(&m, reuse, RW - VmaFlags::SOFTDIRTY);
                p.fork().exit();
                for k in 0..8 {
                    p.change(k, |e| e.mkclean().mkold().clear_soft_dirty());
                }
                // Dirty from before tracking started: no reason to skip the fault.
                p.change(2, |e| e.mkdirty().clear_soft_dirty());
                p.change(6, |e| e.mksoft_dirty());
                p.write(0, 1);
                assert_eq!((p.writable(), p.exclusive()), (vec![0, 6], all()));
                let soft: Vec<_> = (0..8).filter(|k| p.pte(*k).is_soft_dirty()).collect();
                assert_eq!(soft, [0, 6]);
                p.finish();
            }
        }
    }

    /// Rules: WREUSE-09, MM-009. Rows: S-RU13.
    fn inaccessible_entries_stay_so<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = after_fork::<A>(&m, reuse);
            p.change(7, |e| e.modify(A::prot(Protection::none()), Level::Pte));
            let hinted = p.pte(7);
            assert!(hinted.is_protnone(Level::Pte));
            p.write(0, 1);
            assert_eq!((p.writable(), p.exclusive()), (all_but(&[7]), all()));
            assert_eq!(p.pte(7), hinted);
            p.write(7, 1);
            assert!(p.pte(7).is_writable(Level::Pte));
            p.finish();
        }
    }

    /// Rules: WREUSE-18, FAULT-11. Rows: S-RU19.
    fn a_forced_store_widens_nothing<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = after_fork::<A>(&m, reuse);
            p.mm.write().change().find_mut(va(0)).expect("vma").set_flags(R | VmaFlags::MAY_PRIVATE);
            let before: Vec<_> = (1..8).map(|k| p.pte(k)).collect();
            assert_eq!(p.fault(0, WRITE | FaultFlags::FORCE), DONE);
            assert!(p.pte(0).is_dirty() && p.writable().is_empty());
            assert_eq!(p.exclusive(), [0]);
            if A::CONT == 1 {
                assert_eq!((1..8).map(|k| p.pte(k)).collect::<Vec<_>>(), before);
            }
            p.finish();
        }
    }

    /// Rules: WREUSE-09: no store of a CPU but a special one may write there.
    fn shadow_stacks_keep_their_protection<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = after_fork::<A>(&m, reuse);
            p.mm.write().change().find_mut(va(0)).expect("vma").set_flags(RW | VmaFlags::SHADOW_STACK);
            let before: Vec<_> = (0..8).map(|k| p.pte(k)).collect();
            let _ = p.fault(0, WRITE);
            if A::CONT == 1 {
                assert_eq!((1..8).map(|k| p.pte(k)).collect::<Vec<_>>(), before[1..]);
            }
            p.mm.write().change().find_mut(va(0)).expect("vma").set_flags(RW);
            p.exit();
            assert_clean(&m);
        }
    }

    /// Rules: WREUSE-01, REUSE-04, FAULT-10. Rows: S-RU9, S-RU10.
    fn an_exclusive_page_says_nothing_about_its_neighbours<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = written::<A>(&m, reuse, RW);
            let c = p.fork();
            for k in 1..8 {
                c.discard(k);
            }
            m.memmap().set_exclusive(p.pfn(1), 7);
            p.write(5, 1);
            assert_eq!((p.writable(), p.exclusive(), p.reused()), (vec![5], (1..8).collect(), 1));
            p.write(0, 7);
            assert_eq!((p.reused(), p.folio(0).order(), c.read(0)), (1, 0, 100));
            c.check();
            c.exit();
            p.finish();
        }
    }

    /// Rules: REUSE-02, REUSE-06. Rows: S-RU14.
    fn a_foreign_reference_widens_nothing<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = after_fork::<A>(&m, reuse);
            let held = p.folio(0).grab::<Get>(1).expect("reference");
            p.write(0, 1);
            assert_eq!((p.reused(), p.folio(0).order()), (0, 0));
            assert_eq!((p.writable(), p.exclusive()), (vec![0], vec![0]));
            drop(held);
            p.finish();
        }
    }

    /// Rules: WREUSE-20, FORK-03. Rows: S-RU21.
    fn a_later_fork_protects_everything_again<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = after_fork::<A>(&m, reuse);
            p.write(0, 1);
            let c = p.fork();
            assert!(p.writable().is_empty() && c.writable().is_empty());
            assert!(p.exclusive().is_empty() && c.exclusive().is_empty());
            c.write(3, 9);
            assert_eq!((p.read(3), c.read(3)), (103, 9));
            c.check();
            c.exit();
            p.finish();
        }
    }

    /// Rules: WREUSE-17.
    fn unsharing_marks_at_most_and_never_makes_writable<A>() {
        for (unshare, marked) in [(UnshareReuse::Page, vec![2]), (UnshareReuse::Table, all())] {
            let m = new_machine::<A>();
            let mut p = after_fork::<A>(&m, ReusePolicy::Table);
            p.policy.unshare = unshare;
            let before: Vec<_> = (0..8).map(|k| p.pte(k)).collect();
            assert_eq!(p.fault(2, FaultFlags::UNSHARE), DONE);
            assert_eq!((p.exclusive(), p.writable(), p.reused()), (marked, vec![], 0));
            assert_eq!((0..8).map(|k| p.pte(k)).collect::<Vec<_>>(), before);
            p.finish();
        }
    }

    /// Rules: WREUSE-03, WREUSE-04. Rows: S-RU7.
    fn the_mapping_ends_the_window<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = after_fork::<A>(&m, reuse);
            p.mm.write().change().split_at(va(5)).expect("memory");
            let flags = R | VmaFlags::MAY_PRIVATE;
            {
                let mut vmas = p.mm.write();
                vmas.change().find_mut(va(5)).expect("vma").set_flags(flags);
                let upper = vmas.find(va(5)).expect("vma").clone();
                let lower = vmas.find(va(0)).expect("vma");
                m.anon_trees().clone_vma(&p.mm, lower, &upper).expect("memory");
                m.anon_trees().adjusted(&p.mm, pages(0, 8), lower);
            }
            p.write(2, 1);
            assert_eq!((p.writable(), p.exclusive()), ((0..5).collect(), (0..5).collect()));
            core::mem::forget(p);
        }
    }

    /// Rules: WREUSE-11, WREUSE-12: dirty neighbours stay dirty, clean ones clean.
    fn neighbours_keep_their_dirty_bits<A>() {
        for reuse in WIDE {
            let m = new_machine::<A>();
            let p = after_fork::<A>(&m, reuse);
            for k in [1, 2, 6] {
                p.change(k, |e| e.mkdirty());
            }
            let dirty = |p: &Process<A>| (1..8).map(|k| p.pte(k).is_dirty()).collect::<Vec<_>>();
            let before = dirty(&p);
            p.write(0, 1);
            assert_eq!(p.writable(), all());
            let cont = A::CONT as u64;
            for k in 1..8u64 {
                let (got, had) = (p.pte(k).is_dirty(), before[k as usize - 1]);
                assert!(got == had || got && cont > 1, "page {k}");
            }
            p.finish();
        }
    }
}

/// What a policy makes writable by a store to `page` of a folio of `nr` pages at
/// page 0 of an x86-64 mapping of 1024 pages, after fork and exit.
fn on_x86(order: u32, reuse: ReusePolicy) -> (M<mm_x86::X86_64>, Process<mm_x86::X86_64>) {
    let m = mm_rmap::model::machine(mm_rmap::model::ModelConfig {
        nr_frames: 2048,
        ..mm_rmap::model::ModelConfig::default()
    })
    .expect("machine");
    let thp = ThpPolicy::new(9).with_order(order, OrderMode::Always);
    let mut p = Process::new(&m).with_policy(thp);
    p.policy.reuse = reuse;
    p.map(pages(0, 1024), RW);
    for page in 0..1 << order {
        p.write(page, 1);
    }
    p.fork().exit();
    (m, p)
}

/// Rules: WREUSE-03, WREUSE-04, WREUSE-19. Rows: S-RU1, S-RU2.
#[test]
fn faults_for_one_store_per_page() {
    let rows = [
        (4, ReusePolicy::Page, 16),
        (4, ReusePolicy::Block, 1),
        (4, ReusePolicy::Table, 1),
        (8, ReusePolicy::Page, 256),
        (8, ReusePolicy::Block, 16),
        (8, ReusePolicy::Table, 1),
    ];
    for (order, reuse, faults) in rows {
        let (m, p) = on_x86(order, reuse);
        for page in 0..1 << order {
            p.write(page, 2);
        }
        assert_eq!(p.reused(), faults, "order {order}, {reuse:?}");
        p.finish();
        drop(m);
    }
}

/// Rules: WREUSE-03. Rows: S-RU4.
#[test]
fn a_block_is_aligned_to_its_size() {
    let (_m, p) = on_x86(8, ReusePolicy::Block);
    p.write(77, 2);
    let writable: Vec<_> = (0..256).filter(|k| p.pte(*k).is_writable(Level::Pte)).collect();
    assert_eq!(writable, (64..80).collect::<Vec<_>>());
    p.finish();
}

/// The first fault in an unknown mapping takes a block; what comes then depends
/// on where the faults are.
#[test]
fn the_adaptive_policy_starts_with_a_block_and_learns() {
    let (_m, p) = on_x86(8, ReusePolicy::Adaptive);
    let writable = || (0..256).filter(|k| p.pte(*k).is_writable(Level::Pte)).count();
    p.write(77, 2);
    assert_eq!(writable(), 16);
    // Far from it: nothing speaks for more than a page. Beside that: much does.
    p.write(200, 2);
    assert_eq!(writable(), 17);
    p.write(201, 2);
    assert!(writable() > 64);
    for page in 0..256 {
        p.write(page, 3);
    }
    assert!(p.reused() <= 6, "{} faults", p.reused());
    p.finish();
}

/// Rules: WREUSE-11, WREUSE-12, FOLIO-45: dirt moves from the entry to the folio
/// and is never lost; what is stored to through a widened entry is seen there.
#[test]
fn the_adaptive_policy_watches_what_it_widens() {
    let (_m, p) = on_x86(8, ReusePolicy::Adaptive);
    for k in 70..80 {
        p.change(k, |e| e.clear_soft_dirty());
    }
    assert!(p.pte(66).is_dirty() && !p.folio(0).has(FolioFlags::DIRTY));
    p.write(77, 2);
    let dirty = || (64..80).filter(|k| p.pte(*k).is_dirty()).collect::<Vec<_>>();
    assert_eq!(dirty(), [77]);
    assert!(p.folio(0).has(FolioFlags::DIRTY) && p.pte(66).is_writable(Level::Pte));
    // Tracking is nobody's business here.
    assert!(p.pte(66).is_soft_dirty() && !p.pte(70).is_soft_dirty());
    p.write(66, 3);
    assert_eq!((dirty(), p.reused()), (vec![66, 77], 1));
    p.finish();
}

/// Rules: WREUSE-12, FOLIO-40: what is clean stays so, and a folio that nobody
/// dirtied may still be freed lazily.
#[test]
fn what_was_clean_dirties_no_folio() {
    let (_m, p) = on_x86(8, ReusePolicy::Adaptive);
    for k in 0..256 {
        p.change(k, |e| e.mkclean());
    }
    p.write(77, 2);
    assert!(!p.folio(0).has(FolioFlags::DIRTY));
    p.finish();
}

/// A window that ends what can be widened is left as it is, and so is a folio
/// that one fault can end: nobody will look.
#[test]
fn nothing_is_made_clean_where_nobody_looks() {
    for (order, first) in [(3, 0), (4, 0)] {
        let (_m, p) = on_x86(order, ReusePolicy::Adaptive);
        p.write(first, 2);
        assert!((0..1 << order).all(|k| p.pte(k).is_writable(Level::Pte) && p.pte(k).is_dirty()));
        assert!(!p.folio(0).has(FolioFlags::DIRTY));
        p.finish();
    }
}

/// Two parts of a mapping that lost their write permission at different times tell
/// nothing about each other, until a fork takes it from both.
#[test]
fn joined_mappings_are_not_watched() {
    let (_m, p) = on_x86(8, ReusePolicy::Adaptive);
    p.mm.write().change().split_at(va(128)).expect("memory");
    p.mm.write().change().merge_around(pages(128, 1), |_, _| true, |_, _| ());
    p.write(77, 2);
    assert!((64..80).all(|k| p.pte(k).is_dirty()));
    p.fork().exit();
    p.mm.write().find(va(0)).expect("vma").forked();
    p.write(7, 2);
    p.write(8, 2);
    assert!(!p.pte(9).is_dirty());
    p.finish();
}
