//! A folio of an object that moves with the PMD leaf that maps it: the leaf becomes a migration
//! entry, and comes back.
//!
//! | race | threads | test |
//! |---|---|---|
//! | P-RACE-08 | pin; migrate | `a_pinned_leaf_of_an_object_does_not_move` |
//! | MIGR-05 | announced store; migrate | `a_store_is_announced_beside_a_leaf_that_moves` |
//! | MIGR-05 | load; migrate | `what_was_stored_through_a_leaf_that_moves_is_not_forgotten` |

use super::*;
use mm_folio::{FileId, FolioFlags};
use mm_map::mmap_backing;
use mm_rmap::model::ModelObject;
use mm_vma::BackingKind;

type Object = ModelObject<A>;

const SHARED: VmaFlags = VmaFlags::READ
    .union(VmaFlags::WRITE)
    .union(VmaFlags::SHARED)
    .union(VmaFlags::MAYREAD)
    .union(VmaFlags::MAYWRITE);

/// A space that shows an object of one folio by a PMD leaf; its page 0 holds 7.
fn shown(kind: BackingKind, notifies: bool) -> (P, Space, Arc<Object>) {
    let (p, mm) = empty();
    let object = Object::new(&p, FileId(1), kind, notifies);
    let head = object.add(0, 2).expect("frames").head();
    p.bytes().store(head, 0, 7);
    let range = VirtRange::units(page(0), 4, 12).expect("range");
    mmap_backing(&mut mm.write(), range, SHARED, object.clone(), 0).expect("free");
    load(&mm, 0);
    assert!(entry(&mm, 0).0.is_leaf(Level::Pmd));
    (p, mm, object)
}
/// Ends the space and the object; nothing is left then.
fn end(p: &P, mm: &Space, object: Arc<Object>, pinned: Option<Pfn>) {
    unpin_pages(p.memmap(), pinned.as_slice());
    exit(&MapPolicy::default(), mm);
    drop(object);
    assert_eq!(p.folios_in_use(), 0);
}

/// Rules: P-RACE-08, MIGR-05.
#[test]
fn a_pinned_leaf_of_an_object_does_not_move() {
    fn model() {
        let (p, mm, object) = shown(BackingKind::Shmem, false);
        let own = own(&p, &mm);
        let old = own.folio().head();
        let pin = pinner(&mm, 1);
        let moved = migrate_folio(&p, &own, Some(object.cache()), BATCHED).is_ok();
        drop(own);
        let pinned = pin.join().expect("joins");
        let (e, new) = entry(&mm, 0);
        let sound = (moved == (new != old), pinned.is_none_or(|got| got == new.add(1)));
        let (is_leaf, content) = (e.is_leaf(Level::Pmd), p.bytes().load(new, 0));
        end(&p, &mm, object, pinned);
        assert_eq!(
            (sound, is_leaf, content),
            ((true, true), true, 7),
            "a pin of a page that moved"
        );
    }
    race("pin vs migrate leaf", model, &["gup.no_leaf_recheck", "folio.freeze.two_steps"]);
}

/// Rules: MIGR-05, FILE-08.
#[test]
fn a_store_is_announced_beside_a_leaf_that_moves() {
    fn model() {
        let (p, mm, object) = shown(BackingKind::File, true);
        let own = own(&p, &mm);
        let writer = spawn({
            let mm = mm.clone();
            move || store(&mm, 0, small())
        });
        let _ = migrate_folio(&p, &own, Some(object.cache()), BATCHED);
        drop(own);
        writer.join().expect("joins");
        let (e, pfn) = entry(&mm, 0);
        let level = if e.is_leaf(Level::Pmd) { Level::Pmd } else { Level::Pte };
        let announced = p.memmap().folio(pfn).has(FolioFlags::DIRTY);
        let content = p.bytes().load(pfn, 0);
        let writable = e.is_writable(level);
        end(&p, &mm, object, None);
        assert_eq!((announced || !writable, content), (true, 7), "a store that nobody announced");
    }
    race("announced store vs migrate leaf", model, &["rmap.resume.by_mapping"]);
}

/// Rules: MIGR-03, MIGR-05, FOLIO-45.
#[test]
fn what_was_stored_through_a_leaf_that_moves_is_not_forgotten() {
    fn model() {
        let (p, mm, object) = shown(BackingKind::File, false);
        store(&mm, 0, small());
        assert!(entry(&mm, 0).0.is_dirty());
        let own = own(&p, &mm);
        let loader = spawn({
            let mm = mm.clone();
            move || load(&mm, 0)
        });
        // The fault may hold the folio, and keep it where it is.
        let _ = migrate_folio(&p, &own, Some(object.cache()), BATCHED);
        drop(own);
        loader.join().expect("joins");
        let (e, pfn) = entry(&mm, 0);
        let dirty = e.is_dirty() || p.memmap().folio(pfn).has(FolioFlags::DIRTY);
        let (is_leaf, content) = (e.is_leaf(Level::Pmd), p.bytes().load(pfn, 0));
        end(&p, &mm, object, None);
        assert!(dirty, "a store that is never written out");
        assert_eq!((is_leaf, content), (true, 7));
    }
    race("load vs migrate leaf", model, &["rmap.suspend.lose_dirt"]);
}
