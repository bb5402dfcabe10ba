//! A memory map and page tables on the heap, nothing else: what the fast path
//! needs and all that is measured.

use mm_arch::{Arch, Entry, Level, Pfn, Protection, SpaceId, VirtAddr, WriteKind};
use mm_folio::{AllocError, AnonId, Exclusivity, FolioSource, FolioSpace, MemMap, RefKind};
use mm_gup::{FastPolicy, GupFlags, Pages, fast::Walk, put_pages, unpin_pages};
use mm_pgtable::slab::{SlabSpace, slab_space};
use mm_pgtable::{PageTables, TableSpace, TablesStay};
use mm_sync::SeqCount;
use mm_sync::stat::Counter;

/// Pages of the region: 256 MiB.
pub const NR: usize = 65_536;
type A = mm_x86::X86_64;

/// Folio sizes by name and order; all mapped page by page.
pub const SIZES: [(&str, u32); 5] = [("4k", 0), ("16k", 2), ("64k", 4), ("1m", 8), ("2m-pte", 9)];

struct Bump(Counter);
impl FolioSource for Bump {
    fn alloc(&self, order: u32) -> Result<Pfn, AllocError> {
        let at = self.0.get();
        self.0.add(1 << order);
        Ok(Pfn::new(0x1000 + at))
    }
    fn free(&self, _: Pfn, _: u32) {}
}

#[derive(Clone)]
struct Space(SlabSpace<A>);
// SAFETY: as for `SlabSpace`.
unsafe impl TableSpace for Space {
    type Arch = A;
    type PtLock = <SlabSpace<A> as TableSpace>::PtLock;
    type Epochs = <SlabSpace<A> as TableSpace>::Epochs;
    type Tables = <SlabSpace<A> as TableSpace>::Tables;
    type Tlb = <SlabSpace<A> as TableSpace>::Tlb;
    fn tables(&self) -> &Self::Tables {
        self.0.tables()
    }
    fn epochs(&self) -> &Self::Epochs {
        self.0.epochs()
    }
    fn tlb(&self) -> &Self::Tlb {
        self.0.tlb()
    }
}
impl FolioSpace for Space {
    type Source = Bump;
    type FolioLock = mm_sync::Spin;
}

/// One address space and its memory.
pub struct Bed {
    tables: PageTables<Space>,
    map: MemMap<Space>,
    seq: SeqCount,
}

const BASE: u64 = 1 << 30;

/// A region of `NR` pages in folios of `order`.
pub fn bed(order: u32) -> Bed {
    let map = MemMap::new(Pfn::new(0x1000), NR as u64, Bump(Counter::new())).expect("memory map");
    let tables = PageTables::new(Space(slab_space(140)), SpaceId(1)).expect("root");
    let mm = mm_folio::MmIds::<mm_sync::Spin>::new().alloc().expect("id");
    // SAFETY: nothing else runs.
    let stay = unsafe { TablesStay::new() };
    let prot = A::prot(Protection::private_read_write());
    for folio in 0..NR >> order {
        let mut refs = map.alloc(order).expect("folio");
        let at = VirtAddr::new(BASE).add_units((folio as u64) << order, 12);
        if order > 0 {
            refs.grow((1 << order) - 1).expect("fits");
        }
        let f = refs.hand_over();
        f.set_flag(mm_folio::FolioFlags::REFERENCED);
        f.set_anon(AnonId(0), (folio as u64) << order);
        f.add_new_anon(mm, Level::Pte, Exclusivity::Exclusive);
        let e = <A as Arch>::Entry::leaf(f.head(), prot, Level::Pte)
            .mkyoung()
            .mkdirty()
            .mkwrite(WriteKind::Normal);
        let mut t = tables.ensure_table(stay, at).expect("table").table().expect("no leaf");
        let i = t.index_of(at);
        t.fill(i, 1 << order, e);
    }
    Bed { tables, map, seq: SeqCount::new() }
}

impl Bed {
    /// Takes all pages for writing. Out of line and alone of its name: the
    /// region that instructions are counted in.
    #[inline(never)]
    pub fn gup_fast_region<K: RefKind>(&self, policy: FastPolicy, out: &mut [Pfn]) -> usize {
        let walk = Walk {
            tables: &self.tables,
            map: &self.map,
            write_protect_seq: &self.seq,
            observer: &(),
        };
        let mut pages = Pages::new(out);
        walk.take::<K>(policy, VirtAddr::new(BASE), NR, GupFlags::WRITE, &mut pages)
    }
    /// Gives them back.
    pub fn back<K: RefKind>(&self, out: &[Pfn]) {
        if K::PINS { unpin_pages(&self.map, out) } else { put_pages(&self.map, out) }
    }
}
