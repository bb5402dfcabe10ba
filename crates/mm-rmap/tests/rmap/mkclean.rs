//! Shared mappings of a file lose write permission and dirt, and say how many had one.

use crate::world::*;
use core::num::NonZeroU32;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level, WriteKind};
use mm_folio::{FileId, FolioRun, Get};
use mm_pgtable::TableSpace;
use mm_rmap::{link_vma, mkclean, unlink_vma};
use mm_vma::model::ModelObject;
use mm_vma::{Backing, BackingKind, Mm, Platform, RssKind, Vma, VmaFlags};
use std::sync::Arc;

/// Maps four pages of the object at `page`, each entry as `state` says of it: writable, dirty,
/// soft-dirty whatever it is.
fn map<A: Arch>(
    mm: &Mm<P<A>>,
    object: &Arc<ModelObject<A>>,
    page: u64,
    flags: VmaFlags,
    state: impl Fn(u64) -> (bool, bool, bool),
) {
    let p = mm.platform();
    let backing: Arc<dyn Backing> = object.clone();
    let vma = Vma::of_backing(pages::<A>(page, 4), flags, A::PAGE_SHIFT, backing, 0);
    link_vma(mm, &vma).expect("memory");
    let prot = A::prot(vma.protection());
    mm.write().change().insert(vma).expect("free");
    let vmas = mm.read();
    for k in 0..4 {
        let run = object.cache().get(k).expect("cached");
        let own = p.memmap().adopt_run::<Get>(run);
        let folio = own.hand_over();
        folio.add_file_ptes(k as u32, NonZeroU32::MIN, mm.id());
        mm.counters().add(RssKind::File, 1);
        let mut e = A::Entry::leaf(folio.page(k as u32), prot, Level::Pte).mkclean().wrprotect();
        let (writable, dirty, soft) = state(k);
        if soft {
            e = e.mksoft_dirty();
        }
        if dirty {
            e = e.mkdirty();
        }
        if writable {
            e = e.mkwrite(WriteKind::Normal);
        }
        let at = va::<A>(page + k);
        let ensured = mm.tables().ensure_table(vmas.stay(), at).expect("memory");
        let mut table = ensured.table().expect("no leaf");
        let index = table.index_of(at);
        table.set(index, e);
    }
}
fn unmap<A: Arch>(mm: &Mm<P<A>>, page: u64) {
    let p = mm.platform();
    let vmas = mm.read();
    let mut owed = mm.tables().tlb().obligation();
    for k in 0..4 {
        let mut table = mm.tables().lock_table(vmas.stay(), va::<A>(page + k)).expect("there");
        let index = table.index_of(va::<A>(page + k));
        let e = table.take(index, &mut owed);
        let folio = p.memmap().folio(e.pfn(Level::Pte));
        folio.remove_ptes(k as u32, NonZeroU32::MIN, mm.id());
        mm.counters().sub(RssKind::File, 1);
        p.memmap().put_run::<Get>(FolioRun::new(folio.head(), k as u32, 1));
    }
    owed.now();
    unlink_vma(mm, vmas.find(va::<A>(page)).expect("mapped"));
}

fn cleans<A: Arch>() {
    let p = machine_of::<A>();
    let object = ModelObject::<A>::new(&p, FileId(3), BackingKind::File, true);
    let folio = object.add(0, 2).expect("memory");
    let (mm, other) = (space(&p), space(&p));
    let shared = RW | VmaFlags::SHARED;
    // Writable and dirty, writable only, dirty only, neither.
    let states = [(true, true), (true, false), (false, true), (false, false)];
    let state = |k: u64, soft| (states[k as usize].0, states[k as usize].1, soft);
    map(&mm, &object, 0, shared, |k| state(k, false));
    map(&other, &object, 8, shared, |_| (true, true, false));
    map(&other, &object, 16, RW | VmaFlags::MAY_PRIVATE, |_| (false, false, false));
    // The first of a run is clean, and read-only; the second is dirty.
    map(&mm, &object, 24, shared, |k| state(3 - k, true));
    let private: Vec<_> = (16..20).map(|k| entry::<A>(&other, k)).collect();
    let flushes = p.tlb().flushes.get();
    {
        let own = folio.grab::<Get>(1).expect("room");
        let locked = folio.lock();
        assert_eq!(mkclean(&p, &locked), 3 + 4 + 4);
        assert!(p.tlb().flushes.get() > flushes, "no CPU stores unnoticed any more");
        assert_eq!(mkclean(&p, &locked), 0, "once more finds nothing");
        drop((locked, own));
    }
    for (mm, page) in [(&mm, 0), (&other, 8), (&mm, 24)] {
        for k in page..page + 4 {
            let e = entry::<A>(mm, k);
            assert!(e.is_leaf(Level::Pte) && !e.is_writable(Level::Pte) && !e.is_dirty(), "{e:?}");
        }
    }
    assert!((16..20).map(|k| entry::<A>(&other, k)).eq(private));
    assert_eq!(folio.mapcount(), 16);
    for (mm, page) in [(&mm, 0), (&other, 8), (&other, 16), (&mm, 24)] {
        unmap(mm, page);
    }
}

/// A CPU may store by what it cached before an entry lost its rights, as long as the flush for that is on
/// its way: dirt is taken away behind a flush, whatever the entry allows by now.
fn cleans_behind_others<A: Arch>() {
    for inaccessible in [false, true] {
        let p = machine_of::<A>();
        let object = ModelObject::<A>::new(&p, FileId(3), BackingKind::File, true);
        let folio = object.add(0, 2).expect("memory");
        let mm = space(&p);
        map(&mm, &object, 0, RW | VmaFlags::SHARED, |_| (true, true, false));
        // Somebody takes the rights away, and has not flushed yet.
        let vmas = mm.read();
        let none = A::prot(mm_arch::Protection::none());
        let mut owed = mm.tables().tlb().obligation();
        let mut table = mm.tables().lock_table(vmas.stay(), va::<A>(0)).expect("there");
        let (first, limit) = (table.get(0), table.limit(0).at_most(4));
        let run = table.run::<{ mm_arch::respect::NOTHING }>(0, first, limit);
        table.modify(run, &mut owed, |e| {
            if inaccessible { e.modify(none, Level::Pte) } else { e.wrprotect() }
        });
        drop(table);
        let flushes = p.tlb().flushes.get();
        {
            let own = folio.grab::<Get>(1).expect("room");
            let locked = folio.lock();
            assert_eq!(mkclean(&p, &locked), 4);
            assert!(p.tlb().flushes.get() > flushes, "inaccessible: {inaccessible}");
            drop((locked, own));
        }
        owed.now();
        drop(vmas);
        unmap(&mm, 0);
    }
}

/// Rules: RMAP-33, PTE-17, TLBB-08.
#[test]
fn dirt_goes_behind_a_flush() {
    cleans_behind_others::<ModelWord<16>>();
    cleans_behind_others::<ModelPair<16>>();
    cleans_behind_others::<ModelCont<16, 4>>();
    cleans_behind_others::<mm_x86::X86_64>();
    cleans_behind_others::<mm_x86::X86Pae>();
}

/// Rules: RMAP-33.
#[test]
fn shared_mappings_are_cleaned_and_counted() {
    cleans::<ModelWord<16>>();
    cleans::<ModelPair<16>>();
    cleans::<ModelCont<16, 4>>();
}
