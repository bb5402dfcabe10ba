//! A merged page that moves.
//!
//! | race | threads | test |
//! |---|---|---|
//! | P-RACE-08 | get; migrate | `a_merged_page_that_is_held_does_not_move` |
//! | KSM-02 | store that copies; migrate | `a_merged_page_is_copied_before_or_after_it_moves` |
//! | KSM-01 | look for an equal page; migrate | `a_merged_page_is_found_while_it_moves` |

use super::*;
use mm_folio::FolioFlags;
use mm_gup::put_pages;
use mm_rmap::{MergedPlace, RmapPlatform};

/// What says that the page holds 7.
const CHECKSUM: u64 = 7;

/// A space and one forked from it, which map a merged page, found in the first one.
fn merged() -> (P, Space, Space) {
    let (p, mm) = space(small());
    let child = Space(fork(&MapPolicy::default(), &mm).expect("memory"));
    let pfn = entry(&mm, 0).1;
    let vmas = mm.read();
    let vma = vmas.find(page(0)).expect("mapped");
    let tree = p.anon_trees().root(vma.anon().expect("has pages"));
    let place = MergedPlace { tree, index: vma.linear_index(page(0)), mm: mm.id() };
    p.anon_trees().add_merged(pfn, CHECKSUM, place).expect("memory");
    p.memmap().folio(pfn).set_flag(FolioFlags::KSM | FolioFlags::DIRTY);
    drop(vmas);
    (p, mm, child)
}

/// Rules: P-RACE-08, MIGR-01, RMAP-30.
#[test]
fn a_merged_page_that_is_held_does_not_move() {
    fn model() {
        let (p, mm, child) = merged();
        let own = own(&p, &mm);
        let old = own.folio().head();
        // A pin would want the page for itself; a reference does not.
        let getter = spawn({
            let mm = child.clone();
            move || {
                let mut page_of = [Pfn::new(0)];
                let mut out = Pages::new(&mut page_of);
                let flags = GupFlags::empty();
                let got = Gup::new(&mm, &()).get_fast_only(page(0), 1, flags, &mut out);
                got.is_ok_and(|got| got == 1).then_some(page_of[0])
            }
        });
        let moved = migrate_folio(&p, &own, None, BATCHED).is_ok();
        drop(own);
        let held = getter.join().expect("joins");
        let new = entry(&mm, 0).1;
        let sound = (moved == (new != old), held.is_none_or(|got| got == new));
        let same = entry(&child, 0).1 == new;
        let content = p.bytes().load(new, 0);
        put_pages(p.memmap(), held.as_slice());
        finish(&p, &[&child, &mm], None);
        assert_eq!((sound, same, content), ((true, true), true, 7), "a page that moved is held");
    }
    race("get vs migrate merged", model, &["gup.no_pte_recheck"]);
}

/// Rules: KSM-02, MIGR-03, MIGR-04.
#[test]
fn a_merged_page_is_copied_before_or_after_it_moves() {
    fn model() {
        let (p, mm, child) = merged();
        let own = own(&p, &mm);
        let writer = spawn({
            let mm = child.clone();
            move || store(&mm, 0, small())
        });
        let _ = migrate_folio(&p, &own, None, BATCHED);
        drop(own);
        writer.join().expect("joins");
        // Where it met an entry that stood for the page, the access is made again.
        if !entry(&child, 0).0.is_writable(Level::Pte) {
            store(&child, 0, small());
        }
        let (parents, childs) = (entry(&mm, 0), entry(&child, 0));
        let apart = parents.1 != childs.1 && childs.0.is_writable(Level::Pte);
        let merged = p.memmap().folio(parents.1);
        let is_merged = merged.has(FolioFlags::KSM) && !parents.0.is_writable(Level::Pte);
        let counts = merged.counts_locked(|c| (c.refs, c.mapcount));
        let content = [parents.1, childs.1].map(|pfn| p.bytes().load(pfn, 0));
        finish(&p, &[&child, &mm], None);
        assert_eq!((apart, is_merged), (true, true), "one stores to what the other reads");
        assert_eq!((counts, content), ((1, 1), [7, 7]));
    }
    race("copy vs migrate merged", model, &["rmap.resume.by_mapping"]);
}

/// Rules: KSM-01, MIGR-03.
#[test]
fn a_merged_page_is_found_while_it_moves() {
    fn model() {
        let (p, mm, child) = merged();
        let own = own(&p, &mm);
        let looker = spawn({
            let p = p.clone();
            move || {
                let found = p.anon_trees().find_merged(&p, CHECKSUM, |_| true);
                found.map(|found| found.folio().head())
            }
        });
        let _ = migrate_folio(&p, &own, None, BATCHED);
        drop(own);
        let found = looker.join().expect("joins");
        let known = p.anon_trees().nr_merged();
        let mapped = [&mm, &child].map(|mm| entry(mm, 0).0.is_leaf(Level::Pte));
        if mapped == [true; 2] {
            finish(&p, &[&child, &mm], None);
        }
        assert_eq!((found.is_some(), known, mapped), (true, 1, [true; 2]), "taken for gone");
    }
    race("look-up vs migrate merged", model, &["rmap.merged.move_unlocked"]);
}
