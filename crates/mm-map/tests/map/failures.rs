//! Every allocation of every operation fails once: nothing leaks, and what is
//! left works.

mod generic {
    use crate::common::*;
    use mm_arch::{Arch, Entry, Level, Rights};
    use mm_folio::Pin;
    use mm_map::{Advice, MapPolicy, OldPlace, fork, madvise, mprotect, mremap_move, munmap};
    use mm_vma::Platform;

    /// A space with a leaf, a pinned folio, a folio over two mappings, a zero page.
    fn busy<A: Arch>(m: &M<A>) -> Space<A> {
        let n = pmd_pages::<A>();
        let p = space(m, 3 * n);
        map_pmd(&p, 0);
        map_folio(&p, n, 3);
        map_folio(&p, n + 8, 3);
        map_zero(&p, n + 20);
        map_folio(&p, 2 * n, 0);
        p
    }
    /// Entries and marks of everything, to be compared.
    fn picture<A: Arch>(m: &M<A>, p: &Space<A>) -> Vec<(E<A>, bool)> {
        (0..3 * pmd_pages::<A>())
            .map(|page| {
                let (e, level) = entry::<A>(p, page);
                (e, e.is_leaf(level) && m.memmap().page_exclusive(e.pfn(level)))
            })
            .collect()
    }

    fn every_index<A: Arch>(mut run: impl FnMut(&M<A>, u64) -> bool) -> u64 {
        for index in 0.. {
            let m = new_machine::<A>();
            if !run(&m, index) {
                return index;
            }
            assert!(index < 500, "does not end");
        }
        unreachable!()
    }

    pub fn forks<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let n = pmd_pages::<A>();
            let failed = every_index::<A>(|m, index| {
                let p = busy::<A>(m);
                p.set_has_pinned();
                let pinned = m.memmap().folio(pte::<A>(&p, n).pfn(Level::Pte));
                let pin = pinned.grab::<Pin>(2).expect("fits");
                let before = picture::<A>(m, &p);
                let tables = m.tables_in_use();
                m.failures().fail_after(index);
                let forked = fork(&policy, &p);
                let due = m.failures().disarm();
                let failed = forked.is_err();
                assert!(failed != due, "index {index}: failed {failed}, still due {due}");
                if let Ok(c) = forked {
                    audit(m, &[&p, &c]);
                    drop(pin);
                    finish(m, vec![c, p]);
                    return false;
                }
                assert_eq!(forked.map(|_| ()).map_err(|e| e.errno()), Err("ENOMEM"));
                assert_eq!(m.tables_in_use(), tables, "S-FK9: the child's tables are gone");
                // The parent maps what it did; rights and marks only narrowed.
                for (page, ((old, was), (new, is))) in
                    before.iter().zip(picture::<A>(m, &p)).enumerate()
                {
                    assert_eq!(old.wrprotect(), new.wrprotect(), "page {page}");
                    assert!(*was || !is, "page {page} became exclusive");
                }
                audit(m, &[&p]);
                // And it can fork.
                let c = fork(&policy, &p).expect("memory now");
                audit(m, &[&p, &c]);
                drop(pin);
                finish(m, vec![c, p]);
                true
            });
            assert!(failed > 10, "only {failed} allocations");
        }
    }

    /// Neither splits nor frees anything that needs memory of the machine.
    pub fn unmapping_and_protecting<A: Arch>() {
        for policy in [PER_PAGE, BATCHED] {
            let n = pmd_pages::<A>();
            let go = |run: &dyn Fn(&MapPolicy, &Space<A>)| {
                let m = new_machine::<A>();
                let p = busy::<A>(&m);
                m.failures().fail_after(0);
                run(&policy, &p);
                assert!(m.failures().disarm(), "an allocation that may fail");
                audit(&m, &[&p]);
                finish(&m, vec![p]);
            };
            go(&|policy, p| {
                munmap(policy, &mut p.write(), pages::<A>(5, n + 7)).expect("no memory needed");
            });
            go(&|policy, p| {
                mprotect(policy, &mut p.write(), pages::<A>(5, n + 7), Rights::READ)
                    .expect("no memory needed");
            });
            go(&|policy, p| {
                madvise(policy, &mut p.write(), pages::<A>(5, n + 7), Advice::DontNeed)
                    .expect("no memory needed");
            });
        }
    }

    pub fn moves<A: Arch>() {
        let n = pmd_pages::<A>();
        for policy in [PER_PAGE, BATCHED] {
            // An aligned target, and one that splits every leaf and table.
            for to in [4 * n, 4 * n + 3] {
                let failed = every_index::<A>(|m, index| {
                    let p = busy::<A>(m);
                    let before = picture::<A>(m, &p);
                    m.failures().fail_after(index);
                    let range = pages::<A>(0, 3 * n);
                    let moved =
                        mremap_move(&policy, &mut p.write(), range, va::<A>(to), OldPlace::Unmap);
                    m.failures().disarm();
                    audit(m, &[&p]);
                    let failed = moved.is_err();
                    if failed {
                        assert_eq!(vmas::<A>(&p), [(0, 3 * n)]);
                        let now = picture::<A>(m, &p);
                        for page in 0..3 * n {
                            let frame = |(e, level): (E<A>, Level)| {
                                let below = if level == Level::Pmd { page % n } else { 0 };
                                e.is_leaf(level).then(|| e.pfn(level).add(below))
                            };
                            let old = before[page as usize];
                            let was =
                                if page < n { (old.0, Level::Pmd) } else { (old.0, Level::Pte) };
                            assert_eq!(frame(was), frame(entry::<A>(&p, page)), "page {page}");
                        }
                        assert_eq!(now.len(), before.len());
                    } else {
                        assert_eq!(vmas::<A>(&p), [(to, 3 * n)]);
                    }
                    finish(m, vec![p]);
                    failed
                });
                assert!(failed > 0);
            }
        }
    }
}

on_all! {
    /// Rules: FORK-04, FORK-08, FORK-09, INV-1, INV-6; row S-FK9.
    forks;
    /// Rules: PSPLIT-01, ZAP-09, MPROT-09.
    unmapping_and_protecting;
    /// Rules: MREMAP-03, MREMAP-05.
    moves;
}

/// Rules: FOLIO-52.
#[test]
fn a_folio_of_an_object_is_split_for_a_page_that_it_has() {
    use crate::common::{BATCHED, new_machine};
    use mm_folio::{FileId, Get};
    use mm_map::split_cached;
    use mm_rmap::model::ModelObject;
    use mm_rmap::{SplitError, SplitFolio};
    let m = new_machine::<mm_arch::model::ModelWord<16>>();
    let object = ModelObject::new(&m, FileId(1), mm_vma::BackingKind::File, false);
    let folio = object.add(0, 2).expect("memory");
    for (keep, expected) in [(4, Err(SplitError::Page { keep: 4, nr_pages: 4 })), (3, Ok(()))] {
        let own = folio.grab::<Get>(1).expect("fits");
        let whole = SplitFolio { locked: folio.lock(), own };
        let (part, done) = split_cached(&BATCHED, object.cache(), whole, 0, keep);
        assert_eq!((done, part.own.n()), (expected, 1));
        assert_eq!(part.own.folio(), part.locked.folio());
    }
    drop(object);
    assert_eq!(m.folios_in_use(), 0);
}
