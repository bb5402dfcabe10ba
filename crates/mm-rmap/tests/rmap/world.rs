//! A miniature of what faults, fork, munmap and mremap do: just enough of them
//! to give the trees something to be right about.

use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, Pfn, VirtAddr, VirtRange, WriteKind};
use mm_folio::{Exclusivity, Folio, FolioRef, FolioRun, Get, HasPinned};
use mm_pgtable::{Ensured, Gather, LockedEntry, TableMemory, TableSpace};
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_rmap::{AnonTrees, RmapPlatform, split_pmd};
use mm_vma::{Mm, Platform, RssKind, Vma, VmaFlags};
use std::sync::Arc;

pub type P<A> = ModelPlatform<A>;
pub type Space<A> = Arc<Mm<P<A>>>;

pub const RW: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE);

pub fn machine_of<A: Arch>() -> P<A> {
    machine(ModelConfig { huge_zero: true, ..ModelConfig::default() }).expect("machine")
}
pub fn va<A: Arch>(page: u64) -> VirtAddr {
    VirtAddr::new(page << A::PAGE_SHIFT)
}
pub fn pages<A: Arch>(page: u64, n: u64) -> VirtRange {
    VirtRange::units(va::<A>(page), n, A::PAGE_SHIFT).expect("range")
}
/// Pages under a PMD entry.
pub fn per_pmd<A: Arch>() -> u64 {
    1 << A::order(Level::Pmd)
}
pub fn trees<A: Arch>(p: &P<A>) -> &AnonTrees<P<A>> {
    p.anon_trees()
}
pub fn space<A: Arch>(p: &P<A>) -> Space<A> {
    Mm::new(p.clone()).expect("space")
}

/// Every fault of the graph, and every folio whose mappings a walk does not find.
pub fn check<A: Arch>(p: &P<A>) {
    let mut bad = Vec::new();
    trees(p).audit(&mut |fault| bad.push(fault));
    assert_eq!(bad, [], "the graph is wrong");
    for folio in p.memmap().alive().filter(Folio::is_anon) {
        assert_eq!(trees(p).audit_folio(folio), Ok(()), "{folio:?}");
        assert!(folio.refcount() >= folio.mapcount() as i32, "INV-1: {folio:?}");
    }
}

pub fn mmap<A: Arch>(mm: &Mm<P<A>>, page: u64, n: u64) {
    let mut vmas = mm.write();
    vmas.change().insert(Vma::anonymous(pages::<A>(page, n), RW, A::PAGE_SHIFT)).expect("free");
}

fn leaf<A: Arch>(vma: &Vma, pfn: Pfn, level: Level) -> A::Entry {
    let e = A::Entry::leaf(pfn, A::prot(vma.protection()), level);
    e.mkdirty().mkwrite(WriteKind::Normal)
}

/// A fault at `page` that maps a new folio of `order` around it, if it fits.
pub fn fault<A: Arch>(mm: &Mm<P<A>>, page: u64, order: u32) -> Option<Pfn> {
    let p = mm.platform();
    let vmas = mm.read();
    let vma = vmas.find(va::<A>(page))?;
    let anon = trees(p).prepare(mm, &vmas, vma).expect("memory");
    let n = 1u64 << order;
    let first = page & !(n - 1);
    let range = pages::<A>(first, n);
    if !vma.range().covers(range) {
        return None;
    }
    let at = range.start();
    let mut new = p.memmap().alloc(order).ok()?;
    new.grow(n as u32 - 1).expect("room");
    let Ensured::Table(mut table) = mm.tables().ensure_table(vmas.stay(), at).expect("memory")
    else {
        return None;
    };
    let index = table.index_of(at);
    if table.none_run(index, table.limit(index).at_most(n as usize)) < n as usize {
        return None;
    }
    let folio = new.folio();
    folio.set_anon(anon, vma.linear_index(at));
    folio.add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
    table.fill(index, n as usize, leaf::<A>(vma, folio.head(), Level::Pte));
    mm.counters().add(RssKind::Anon, n);
    Some(new.hand_over().head())
}

/// A fault at `page` that maps a new folio by a PMD entry.
pub fn fault_pmd<A: Arch>(mm: &Mm<P<A>>, page: u64) -> Option<Pfn> {
    let p = mm.platform();
    let vmas = mm.read();
    let vma = vmas.find(va::<A>(page))?;
    let n = per_pmd::<A>();
    let at = va::<A>(page & !(n - 1));
    if !vma.range().covers(VirtRange::units(at, n, A::PAGE_SHIFT).ok()?) {
        return None;
    }
    let anon = trees(p).prepare(mm, &vmas, vma).expect("memory");
    let new = p.memmap().alloc(A::order(Level::Pmd)).ok()?;
    let deposit = p.tables().alloc(Level::Pte).ok()?;
    let mut pmd = mm.tables().ensure_pmd(vmas.stay(), at).expect("memory");
    if !pmd.entry().is_none() {
        // SAFETY: allocated above and never linked.
        unsafe { mm.tables().free_unlinked(deposit) };
        return None;
    }
    let folio = new.folio();
    folio.set_anon(anon, vma.linear_index(at));
    folio.add_new_anon(mm.id(), Level::Pmd, Exclusivity::Exclusive);
    // SAFETY: allocated for this; nobody else knows the frame.
    unsafe { pmd.deposit(deposit) };
    let mut owed = mm.tables().tlb().obligation();
    pmd.swap(leaf::<A>(vma, folio.head(), Level::Pmd), &mut owed);
    owed.already_done();
    mm.counters().add(RssKind::Anon, n);
    Some(new.hand_over().head())
}

/// The entry at `page`.
pub fn entry<A: Arch>(mm: &Mm<P<A>>, page: u64) -> A::Entry {
    let vmas = mm.read();
    let at = va::<A>(page);
    match mm.tables().lock_entry(vmas.stay(), at) {
        LockedEntry::Table(t) => t.get(t.index_of(at)),
        LockedEntry::Huge(pmd) => pmd.entry(),
        LockedEntry::Hole => A::Entry::NONE,
    }
}

pub fn fork<A: Arch>(parent: &Mm<P<A>>) -> Space<A> {
    let p = parent.platform();
    let child = space(p);
    let vmas = parent.write();
    let mut new = child.write();
    parent.write_protect_seq().write_begin();
    for vma in vmas.iter() {
        let copy = vma.clone();
        trees(p).fork_vma(&child, vma, &copy).expect("memory");
        new.change().insert(copy).expect("free");
        for k in 0..vma.nr_pages() {
            let at = vma.start().add_units(k, A::PAGE_SHIFT);
            // Page by page: a PMD leaf is split first, as if it were pinned.
            split_pmd(parent, vmas.stay(), at);
            let Some(mut src) = parent.tables().lock_table(vmas.stay(), at) else { continue };
            let index = src.index_of(at);
            let e = src.get(index);
            if !e.is_present(Level::Pte) || e.is_special() {
                continue;
            }
            let pfn = e.pfn(Level::Pte);
            let folio = p.memmap().folio(pfn);
            folio.grab::<Get>(1).expect("room").hand_over();
            folio
                .try_dup_anon_ptes(
                    folio.index_of(pfn),
                    NonZeroU32::MIN,
                    child.id(),
                    HasPinned::Never,
                )
                .expect("not pinned");
            let mut owed = parent.tables().tlb().obligation();
            src.wrprotect(index, 1, &mut owed);
            let e = src.get(index);
            drop(src);
            let mut dst =
                child.tables().ensure_table(new.stay(), at).expect("memory").table().expect("none");
            dst.fill(index, 1, e);
            child.counters().add(RssKind::Anon, 1);
        }
    }
    parent.write_protect_seq().write_end();
    drop(new);
    child
}

/// Unmaps what is mapped in `page .. page + n`.
pub fn munmap<A: Arch>(mm: &Mm<P<A>>, page: u64, n: u64) {
    let p = mm.platform();
    let range = pages::<A>(page, n);
    let mut vmas = mm.write();
    for at in [range.start(), VirtAddr::new(range.last().get() + 1)] {
        if let Some(vma) = vmas.find(at) {
            if vma.start() != at {
                split_pmd(mm, vmas.stay(), at);
            }
            mm_rmap::split_vma(&mut vmas, at).expect("memory");
        }
    }
    let mut gather = Gather::<_, FolioRef<'_, P<A>, Get>>::new(mm.tables());
    for vma in vmas.overlapping(range) {
        for k in 0..vma.nr_pages() {
            let at = vma.start().add_units(k, A::PAGE_SHIFT);
            split_pmd(mm, vmas.stay(), at);
            let Some(mut table) = mm.tables().lock_table(vmas.stay(), at) else { continue };
            let old = table.take(table.index_of(at), gather.owed());
            if !old.is_present(Level::Pte) || old.is_special() {
                continue;
            }
            let pfn = old.pfn(Level::Pte);
            let folio = p.memmap().folio(pfn);
            folio.remove_ptes(folio.index_of(pfn), NonZeroU32::MIN, mm.id());
            mm.counters().sub(RssKind::Anon, 1);
            gather.park(p.memmap().adopt_run(FolioRun::new(folio.head(), 0, 1)));
        }
        trees(p).unlink(mm, vma);
    }
    gather.finish();
    vmas.change().remove(range, drop);
}

/// Unmaps everything.
pub fn exit<A: Arch>(mm: Space<A>) {
    munmap(&mm, 0, A::USER_END >> A::PAGE_SHIFT);
    assert_eq!(mm.counters().resident(), 0);
}

/// Moves `n` pages from `page` to `to`, both page by page; nothing is at `to`.
pub fn mremap<A: Arch>(mm: &Mm<P<A>>, page: u64, n: u64, to: u64) {
    let p = mm.platform();
    let mut vmas = mm.write();
    let (from, dest) = (pages::<A>(page, n), pages::<A>(to, n));
    if !vmas.covers(from) || vmas.overlapping(dest).count() > 0 {
        return;
    }
    for at in [from.start(), VirtAddr::new(from.last().get() + 1)] {
        if vmas.find(at).is_some() {
            split_pmd(mm, vmas.stay(), at);
            mm_rmap::split_vma(&mut vmas, at).expect("memory");
        }
    }
    let parts: Vec<_> = vmas.overlapping(from).map(Vma::range).collect();
    for part in parts {
        let old = vmas.find(part.start()).expect("there").clone();
        let start =
            dest.start().checked_add(part.start().bytes_from(from.start())).expect("inside");
        let range = VirtRange::new(start, part.bytes()).expect("range");
        let new = old.moved_to(range, old.pgoff());
        trees(p).clone_vma(mm, &old, &new).expect("memory");
        vmas.change().insert(new).expect("free");
        for k in 0..part.nr(A::PAGE_SHIFT) {
            let (src, dst) = (part.start().add_units(k, 12), start.add_units(k, 12));
            split_pmd(mm, vmas.stay(), src);
            let mut owed = mm.tables().tlb().obligation();
            let Some(mut table) = mm.tables().lock_table(vmas.stay(), src) else { continue };
            let e = table.take(table.index_of(src), &mut owed);
            drop(table);
            owed.now();
            if !e.is_none() {
                let ensured = mm.tables().ensure_table(vmas.stay(), dst).expect("memory");
                let mut table = ensured.table().expect("nothing there");
                table.fill(table.index_of(dst), 1, e.mksoft_dirty());
            }
        }
        trees(p).unlink(mm, vmas.find(part.start()).expect("there"));
        vmas.change().remove(part, drop);
        check(p);
    }
    mm_rmap::merge_vmas(&mut vmas, dest);
}
