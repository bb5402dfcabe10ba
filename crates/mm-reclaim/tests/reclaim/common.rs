//! Address spaces on the model machine, as the tests of mm-map make them, and files.

#[path = "../../../mm-map/tests/common/mod.rs"]
#[macro_use]
mod spaces;
pub use spaces::*;

use mm_arch::{Arch, Entry, Level, WriteKind};
use mm_folio::{FileId, Folio, FolioFlags, FolioLockGuard, FolioRef, Get};
use mm_map::{mmap_anon, mmap_backing};
use mm_pgtable::LockedEntry;
use mm_reclaim::{FlushBatch, UnmapFlags, UnmapPolicy, Unmapped, try_to_unmap};
use mm_rmap::model::{ModelConfig, ModelObject};
use mm_vma::{BackingKind, Mm, Platform, RssKind, VmaFlags};
use std::sync::Arc;

pub type Object<A> = Arc<ModelObject<A>>;

pub const POLICIES: [UnmapPolicy; 4] =
    [UnmapPolicy::Page, UnmapPolicy::Lazyfree, UnmapPolicy::File, UnmapPolicy::All];
/// As reclaim unmaps.
pub const RECLAIM: UnmapFlags =
    UnmapFlags::SPLIT_PMD.union(UnmapFlags::SYNC).union(UnmapFlags::PUT_OFF_FLUSH);
pub const SHARED: VmaFlags = RW
    .union(VmaFlags::SHARED)
    .union(VmaFlags::MAYREAD)
    .union(VmaFlags::MAYWRITE)
    .union(VmaFlags::SOFTDIRTY);

/// A machine whose memory can be reclaimed.
pub fn reclaim_machine<A: Arch>() -> M<A> {
    machine_with_swap(0)
}
pub fn machine_with_swap<A: Arch>(swap_slots: u32) -> M<A> {
    let sizes = ModelConfig { swap_slots, nr_frames: 1 << 14, ..ModelConfig::default() };
    let config = ModelConfig { huge_zero: true, ..sizes };
    mm_reclaim::model::machine(config).expect("machine")
}
pub fn object<A: Arch>(m: &M<A>, kind: BackingKind) -> Object<A> {
    ModelObject::new(m, FileId(1), kind, kind == BackingKind::File)
}
/// An object that reclaim knows.
pub fn known_object<A: Arch>(m: &M<A>, kind: BackingKind) -> Object<A> {
    let o = object(m, kind);
    let weak: std::sync::Weak<dyn mm_vma::Backing> = Arc::<ModelObject<A>>::downgrade(&o);
    mm_reclaim::model::know(m, weak);
    o
}
pub fn empty_space<A: Arch>(m: &M<A>) -> Space<A> {
    Mm::new(m.clone()).expect("space")
}
/// Maps the `nr` pages of the object from `first` on at `page`.
pub fn show<A: Arch>(mm: &Space<A>, page: u64, nr: u64, o: &Object<A>, first: u64) {
    show_with(mm, page, nr, o, first, SHARED);
}
pub fn show_with<A: Arch>(
    mm: &Space<A>,
    page: u64,
    nr: u64,
    o: &Object<A>,
    first: u64,
    flags: VmaFlags,
) {
    mmap_backing(&mut mm.write(), pages::<A>(page, nr), flags, o.clone(), first).expect("free");
}
/// Maps `nr` pages of a folio of an object from page `first` of it on, by entries at
/// `page`: clean, young, read-only.
pub fn map_pages<A: Arch>(mm: &Space<A>, page: u64, folio: Folio<'_, M<A>>, first: u32, nr: u32) {
    folio.grab::<Get>(nr).expect("fits").hand_over();
    folio.add_file_ptes(first, nz(nr), mm.id());
    mm.counters().add(RssKind::of(folio), nr.into());
    let prot = A::prot(mm.read().find(va::<A>(page)).expect("mapped").protection());
    let e = E::<A>::leaf(folio.page(first), prot, Level::Pte).mkyoung().wrprotect();
    for k in 0..u64::from(nr) {
        set_pte::<A>(mm, page + k, e.advance(k, Level::Pte));
    }
}
/// Maps a new folio at `page` that its owner has given up: clean, old, writable.
pub fn map_lazyfree<A: Arch>(mm: &Space<A>, page: u64, order: u32) -> Folio<'_, M<A>> {
    let folio = map_folio(mm, page, order);
    folio.clear_flag(FolioFlags::SWAPBACKED);
    for k in 0..1 << order {
        edit::<A>(mm, page + k, |e| e.mkclean().mkold());
    }
    folio
}
/// Makes the entry of `page` dirty and writable, as a store does.
pub fn dirty<A: Arch>(mm: &Space<A>, page: u64) {
    edit::<A>(mm, page, |e| e.mkdirty().mkwrite(WriteKind::Normal));
}
pub fn anon_with<A: Arch>(mm: &Space<A>, page: u64, nr: u64, flags: VmaFlags) {
    mmap_anon(&mut mm.write(), pages::<A>(page, nr), flags).expect("free");
}

/// Changes the PMD leaf at page 0.
pub fn edit_leaf<A: Arch>(mm: &Space<A>, f: impl FnOnce(E<A>) -> E<A>) {
    let vmas = mm.read();
    let LockedEntry::Huge(mut pmd) = mm.tables().lock_entry(vmas.stay(), va::<A>(0)) else {
        panic!("there is no leaf");
    };
    let mut owed = mm.tables().tlb().obligation();
    let e = f(pmd.entry());
    pmd.swap(e, &mut owed);
    owed.already_done();
}

/// Holds a folio as reclaim does: a reference and the lock.
pub struct Isolated<'m, A: Arch> {
    pub locked: FolioLockGuard<'m, M<A>>,
    pub own: FolioRef<'m, M<A>, Get>,
}
impl<'m, A: Arch> Isolated<'m, A> {
    pub fn of(folio: Folio<'m, M<A>>) -> Self {
        let own = folio.grab::<Get>(1).expect("fits");
        Isolated { locked: folio.lock(), own }
    }
}
/// Unmaps a folio as reclaim does, and makes the flushes.
pub fn unmap<A: Arch>(m: &M<A>, policy: UnmapPolicy, folio: Folio<'_, M<A>>) -> Unmapped {
    unmap_with(m, policy, folio, RECLAIM)
}
pub fn unmap_with<A: Arch>(
    m: &M<A>,
    policy: UnmapPolicy,
    folio: Folio<'_, M<A>>,
    flags: UnmapFlags,
) -> Unmapped {
    let held = Isolated::of(folio);
    let mut flushes = FlushBatch::new(m);
    let end = try_to_unmap(policy, &held.locked, flags, &mut flushes);
    flushes.finish();
    end
}
/// Runs that were unmapped while `f` ran, and entries in them.
pub fn counted<A: Arch, R>(m: &M<A>, f: impl FnOnce() -> R) -> (R, u64, u64) {
    use mm_vma::Event::{EntriesUnmapped, UnmapRuns};
    let now = || (m.events().get(UnmapRuns), m.events().get(EntriesUnmapped));
    let before = now();
    let r = f();
    let after = now();
    (r, after.0 - before.0, after.1 - before.1)
}
pub fn refs_and_maps<A: Arch>(folio: Folio<'_, M<A>>) -> (i32, u32) {
    (folio.refcount(), folio.mapcount())
}
/// Ends spaces and objects; nothing is left then.
pub fn finish_all<A: Arch>(m: &M<A>, spaces: Vec<Space<A>>, objects: Vec<Object<A>>) {
    for mm in &spaces {
        mm_map::exit(&BATCHED, mm);
    }
    drop(spaces);
    drop(objects);
    assert_eq!(m.folios_in_use(), 0, "a folio leaked");
    assert_eq!(m.tables_in_use(), 0, "a table leaked");
    assert_eq!(m.memmap().stats().bad_frees.get(), 0);
}
