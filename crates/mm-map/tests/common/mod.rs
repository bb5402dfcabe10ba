//! Address spaces on the model machine, filled by hand so that no test depends
//! on the fault path, and the checks that hold after every operation.
#![allow(dead_code, reason = "the tests of mm-reclaim use a part of it")]

use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, Pfn, VirtAddr, VirtRange};
use mm_folio::{Exclusivity, Folio, FolioFlags, FolioRun, FrameBytes, Get};
use mm_map::{Batching, MapPolicy, exit, mmap_anon};
use mm_pgtable::{LockedEntry, TableMemory, TableSpace};
use mm_rmap::RmapPlatform;
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_vma::{Mm, Platform, RssKind, SwapSpace, Vma, VmaFlags};
use std::sync::Arc;

pub type M<A> = ModelPlatform<A>;
pub type Space<A> = Arc<Mm<M<A>>>;
pub type E<A> = <A as Arch>::Entry;

pub const RW: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE);
pub const PER_PAGE: MapPolicy =
    MapPolicy { batching: Batching::PerPage, suspend: Batching::PerPage };
pub const BATCHED: MapPolicy =
    MapPolicy { batching: Batching::Batched, suspend: Batching::Batched };

/// Runs a generic test on every format: `on_all!(name)` for `fn name<A: Arch>()`.
#[macro_export]
macro_rules! on_all {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            use mm_arch::model::{ModelCont, ModelPair, ModelWord};
            generic::$name::<ModelWord<32>>();
            generic::$name::<ModelPair<32>>();
            generic::$name::<ModelCont<32, 4>>();
            generic::$name::<mm_x86::X86_64>();
        }
    )*};
}

pub fn new_machine<A: Arch>() -> M<A> {
    let config = ModelConfig { huge_zero: true, nr_frames: 1 << 14, ..ModelConfig::default() };
    machine(ModelConfig { swap_slots: 255, ..config }).expect("machine")
}

/// What tests ask of a machine.
pub trait Peek {
    /// Flushes so far.
    fn tlb_flushes(&self) -> u64;
    /// Page tables in use.
    fn tables_in_use(&self) -> usize;
    /// The first word of a frame.
    fn content(&self, pfn: Pfn) -> u64;
}
impl<A: Arch> Peek for M<A> {
    fn tlb_flushes(&self) -> u64 {
        self.tlb().flushes.get()
    }
    fn tables_in_use(&self) -> usize {
        self.tables().in_use()
    }
    fn content(&self, pfn: Pfn) -> u64 {
        self.bytes().load(pfn, 0)
    }
}

/// Pages under a PMD leaf.
pub fn pmd_pages<A: Arch>() -> u64 {
    1 << A::order(Level::Pmd)
}
/// Page `page` of the test's region, which starts with a table.
pub fn va<A: Arch>(page: u64) -> VirtAddr {
    VirtAddr::new((pmd_pages::<A>() + page) << A::PAGE_SHIFT)
}
pub fn pages<A: Arch>(first: u64, n: u64) -> VirtRange {
    VirtRange::units(va::<A>(first), n, A::PAGE_SHIFT).expect("range")
}
pub fn nz(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("not zero")
}

/// An address space with one mapping of `nr` pages.
pub fn space<A: Arch>(m: &M<A>, nr: u64) -> Space<A> {
    let mm = Mm::new(m.clone()).expect("space");
    mmap_anon(&mut mm.write(), pages::<A>(0, nr), RW).expect("free");
    mm
}

fn prepared<'m, A: Arch>(mm: &'m Space<A>, page: u64, order: u32) -> Folio<'m, M<A>> {
    let vmas = mm.read();
    let vma = vmas.find(va::<A>(page)).expect("mapped");
    let m = mm.platform();
    let anon = m.anon_trees().prepare(mm, &vmas, vma).expect("memory");
    let new = m.memmap().alloc(order).expect("memory");
    let folio = new.folio();
    folio.set_anon(anon, vma.linear_index(va::<A>(page)));
    folio.set_flag(FolioFlags::UPTODATE | FolioFlags::SWAPBACKED);
    for k in 0..folio.nr_pages() {
        m.bytes().store(folio.page(k), 0, 1000 + page + u64::from(k));
    }
    new.hand_over()
}

/// Maps a new folio at `page` by entries: exclusive, dirty, writable if the
/// mapping is. Each page holds 1000 + its page number.
pub fn map_folio<A: Arch>(mm: &Space<A>, page: u64, order: u32) -> Folio<'_, M<A>> {
    let folio = prepared(mm, page, order);
    let (n, vmas) = (folio.nr_pages(), mm.read());
    if n > 1 {
        folio.grab::<Get>(n - 1).expect("fits").hand_over();
    }
    folio.add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
    mm.counters().add(RssKind::Anon, n.into());
    let e = leaf_for::<A>(vmas.find(va::<A>(page)).expect("mapped"), folio.head(), Level::Pte);
    for k in 0..n {
        let at = va::<A>(page + u64::from(k));
        let ensured = mm.tables().ensure_table(vmas.stay(), at).expect("memory");
        let mut t = ensured.table().expect("no leaf");
        let i = t.index_of(at);
        t.fill(i, 1, e.advance(k.into(), Level::Pte));
    }
    folio
}
/// Maps a new folio at `page` by a PMD leaf.
pub fn map_pmd<A: Arch>(mm: &Space<A>, page: u64) -> Folio<'_, M<A>> {
    let folio = prepared(mm, page, A::order(Level::Pmd));
    let vmas = mm.read();
    folio.add_new_anon(mm.id(), Level::Pmd, Exclusivity::Exclusive);
    mm.counters().add(RssKind::Anon, pmd_pages::<A>());
    let e = leaf_for::<A>(vmas.find(va::<A>(page)).expect("mapped"), folio.head(), Level::Pmd);
    put_pmd(mm, page, e);
    folio
}
/// Maps the huge zero folio at `page`.
pub fn map_huge_zero<A: Arch>(mm: &Space<A>, page: u64) {
    let prot = A::prot(mm.read().find(va::<A>(page)).expect("mapped").protection());
    let pfn = mm.platform().huge_zero().expect("configured");
    put_pmd(mm, page, E::<A>::leaf(pfn, prot, Level::Pmd).mkspecial());
}
fn put_pmd<A: Arch>(mm: &Space<A>, page: u64, e: E<A>) {
    let vmas = mm.read();
    let spare = mm.platform().tables().alloc(Level::Pte).expect("memory");
    let mut pmd = mm.tables().ensure_pmd(vmas.stay(), va::<A>(page)).expect("memory");
    let mut owed = mm.tables().tlb().obligation();
    assert!(pmd.swap(e, &mut owed).is_none());
    // SAFETY: allocated for this; nobody else knows the frame.
    unsafe { pmd.deposit(spare) };
    owed.already_done();
}
pub fn leaf_for<A: Arch>(vma: &Vma, pfn: Pfn, level: Level) -> E<A> {
    let e = E::<A>::leaf(pfn, A::prot(vma.protection()), level).mkdirty().mkyoung();
    if vma.flags().contains(VmaFlags::WRITE) { e.mkwrite(vma.write_kind()) } else { e }
}
/// Maps the zero page at `page`.
pub fn map_zero<A: Arch>(mm: &Space<A>, page: u64) {
    let prot = A::prot(mm.read().find(va::<A>(page)).expect("mapped").protection());
    let e = E::<A>::leaf(mm.platform().zero_page(), prot, Level::Pte).mkspecial();
    set_pte(mm, page, e);
}
/// Puts `e` into the table of `page`, in the place of whatever is there.
pub fn set_pte<A: Arch>(mm: &Space<A>, page: u64, e: E<A>) {
    let vmas = mm.read();
    let at = va::<A>(page);
    let mut t =
        mm.tables().ensure_table(vmas.stay(), at).expect("memory").table().expect("no leaf");
    let i = t.index_of(at);
    let mut owed = mm.tables().tlb().obligation();
    t.take(i, &mut owed);
    owed.already_done();
    if !e.is_none() {
        t.set(i, e);
    }
}
/// Changes the entry of `page`.
pub fn edit<A: Arch>(mm: &Space<A>, page: u64, f: impl FnOnce(E<A>) -> E<A>) {
    let e = pte::<A>(mm, page);
    set_pte(mm, page, f(e));
}
/// Unmaps one page by hand.
pub fn unmap_one<A: Arch>(mm: &Space<A>, page: u64) {
    let map = mm.platform().memmap();
    let e = pte::<A>(mm, page);
    set_pte(mm, page, E::<A>::NONE);
    let folio = map.folio(e.pfn(Level::Pte));
    let first = folio.index_of(e.pfn(Level::Pte));
    folio.remove_ptes(first, nz(1), mm.id());
    mm.counters().sub(RssKind::Anon, 1);
    map.put_run::<Get>(FolioRun::new(folio.head(), first, 1));
}

/// What maps `page`.
pub fn entry<A: Arch>(mm: &Mm<M<A>>, page: u64) -> (E<A>, Level) {
    let vmas = mm.read();
    match mm.tables().lock_entry(vmas.stay(), va::<A>(page)) {
        LockedEntry::Hole => (E::<A>::NONE, Level::Pmd),
        LockedEntry::Huge(pmd) => (pmd.entry(), Level::Pmd),
        LockedEntry::Table(t) => (t.get(t.index_of(va::<A>(page))), Level::Pte),
    }
}
pub fn pte<A: Arch>(mm: &Mm<M<A>>, page: u64) -> E<A> {
    let (e, level) = entry::<A>(mm, page);
    if level == Level::Pte { e } else { E::<A>::NONE }
}
/// The pages of `first..first + n` whose entry `is`.
pub fn which<A: Arch>(mm: &Mm<M<A>>, first: u64, n: u64, is: impl Fn(E<A>) -> bool) -> Vec<u64> {
    (first..first + n).filter(|p| is(pte::<A>(mm, *p))).collect()
}
pub fn writable<A: Arch>(mm: &Mm<M<A>>, first: u64, n: u64) -> Vec<u64> {
    which::<A>(mm, first, n, |e| e.is_present(Level::Pte) && e.is_writable(Level::Pte))
}
/// The pages of a folio that are marked exclusive.
pub fn exclusive<A: Arch>(folio: Folio<'_, M<A>>) -> Vec<u32> {
    let map = folio.memmap();
    (0..folio.nr_pages()).filter(|k| map.page_exclusive(folio.page(*k))).collect()
}
/// VMAs as (first page of the test's region, pages).
pub fn vmas<A: Arch>(mm: &Mm<M<A>>) -> Vec<(u64, u64)> {
    let base = va::<A>(0);
    mm.read().iter().map(|v| (v.start().bytes_from(base) >> A::PAGE_SHIFT, v.nr_pages())).collect()
}

/// Checks everything that must hold between operations, while nobody but the
/// mappings (and pins) holds a folio.
///
/// Rules: INV-1..3, INV-5, INV-6.
pub fn audit<A: Arch>(m: &M<A>, spaces: &[&Mm<M<A>>]) {
    let map = m.memmap();
    for folio in map.alive().filter(|f| !f.is_zero_page() && !f.is_huge_zero()) {
        m.anon_trees().audit_folio(folio).expect("as many entries as the map count says");
        let pins = folio.pincount() as i32;
        let cached = m.slots().slot_of(folio).map_or(0, |_| folio.nr_pages() as i32);
        let refs = folio.refcount() - cached;
        if folio.maybe_dma_pinned() {
            assert!(refs >= folio.mapcount() as i32 + pins, "{folio:?}");
        } else {
            assert_eq!(refs, folio.mapcount() as i32, "{folio:?}");
        }
    }
    m.anon_trees().audit(&mut |fault| panic!("{fault:?}"));
    for mm in spaces {
        let (vmas, mut anon, mut swapped) = (mm.read(), 0, 0);
        mm.tables().audit_counts(vmas.stay(), &mut |frame, counted, claimed| {
            panic!("{frame:?} has {counted} entries, not {claimed}")
        });
        for vma in vmas.iter() {
            for p in 0..vma.nr_pages() {
                let at = vma.start().add_units(p, A::PAGE_SHIFT);
                let (e, level) = match mm.tables().lock_entry(vmas.stay(), at) {
                    LockedEntry::Hole => continue,
                    LockedEntry::Huge(pmd) => (pmd.entry(), Level::Pmd),
                    LockedEntry::Table(t) => (t.get(t.index_of(at)), Level::Pte),
                };
                if let Some(slot) = e.swap_slot() {
                    let count = m.slots().count(slot);
                    assert!(count == 1 || count > 1 && !e.swap_bits().exclusive, "at {at}");
                    swapped += 1;
                }
                if !e.is_leaf(level) {
                    continue;
                }
                let pfn = e.pfn(level);
                if map.is_zero_page(pfn) || map.is_huge_zero(pfn) {
                    assert!(!e.is_writable(level), "a writable zero page at {at}");
                    continue;
                }
                anon += 1;
                let excl = map.page_exclusive(pfn);
                assert!(excl || !e.is_writable(level), "INV-2 at {at}: {e:?}");
                assert!(!excl || map.page_mapcount(pfn) == 1, "INV-3 at {at}");
                assert!(!e.is_writable(level) || vma.flags().contains(VmaFlags::WRITE));
            }
        }
        assert_eq!(mm.counters().get(RssKind::Anon), anon, "INV-6");
        assert_eq!(mm.counters().get(RssKind::Swap), swapped, "INV-6");
    }
}

/// Ends all spaces; nothing is left then.
pub fn finish<A: Arch>(m: &M<A>, spaces: Vec<Space<A>>) {
    for mm in spaces {
        exit(&MapPolicy::default(), &mm);
        assert_eq!(mm.tables().count_tables(mm.read().stay()), 1, "only the root");
    }
    assert_eq!(m.folios_in_use(), 0, "a folio leaked");
    assert_eq!(m.slots().in_use().next(), None, "a swap slot leaked");
    assert_eq!(m.tables().in_use(), 0, "a table leaked");
    assert_eq!(m.anon_trees().nr_members(), 0, "a VMA leaked");
    assert_eq!(m.anon_trees().nr_trees(), 0, "a tree leaked");
}
