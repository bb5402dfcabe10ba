//! What the tests share: every body runs on all three model formats, and on a
//! deep one where the number of levels matters.

use mm_arch::model::{ModelEntry, ModelProt, ModelWord};
use mm_arch::{
    AccessKind, Arch, At, Batch, Entry, Level, Liveness, Pfn, Protection, Right, SpaceId, SpaceTlb,
    Tlb, VirtAddr, VirtRange, WriteKind,
};
use mm_pgtable::slab::{SlabSpace, slab_space};
use mm_pgtable::{LockedTable, PageTables, TablesStay};

/// Entries per table in the three formats.
pub const N: usize = 16;

/// Runs one generic body as a test on one-word, contiguous and two-word formats.
macro_rules! on_all_formats {
    ($($(#[$meta:meta])* fn $name:ident<$A:ident>() $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            use super::*;
            fn body<$A: mm_arch::Arch<Entry = mm_arch::model::ModelEntry>>() $body
            #[test]
            fn word() {
                body::<mm_arch::model::ModelWord<{ $crate::common::N }>>();
            }
            #[test]
            fn cont() {
                body::<mm_arch::model::ModelCont<{ $crate::common::N }, 4>>();
            }
            #[test]
            fn pair() {
                body::<mm_arch::model::ModelPair<{ $crate::common::N }>>();
            }
        }
    )*};
}

/// A page table tree over a slab.
pub type Tables<A> = PageTables<SlabSpace<A>>;
/// A locked table of a slab.
pub type Table<'g, A> = LockedTable<'g, SlabSpace<A>>;

/// A tree that may use `nr` tables, and the slab.
pub fn tree<A: Arch>(nr: usize) -> (SlabSpace<A>, Tables<A>) {
    let space = slab_space::<A>(nr);
    let tables = PageTables::new(space.clone(), SpaceId(1)).expect("a root");
    (space, tables)
}

/// The tests free tables only where no locked walker runs.
pub fn stay<'g>() -> TablesStay<'g> {
    // SAFETY: see above; tests that free tables say so at that place.
    unsafe { TablesStay::new() }
}

/// The address of page `nr`.
pub fn page<A: Arch>(nr: u64) -> VirtAddr {
    VirtAddr::new(0).add_units(nr, A::PAGE_SHIFT)
}

/// `n` pages from page `nr` on.
pub fn pages<A: Arch>(nr: u64, n: u64) -> VirtRange {
    VirtRange::units(page::<A>(nr), n, A::PAGE_SHIFT).expect("a range")
}

/// A clean, read-only, young leaf.
pub fn leaf<A: Arch<Entry = ModelEntry>>(pfn: u64) -> ModelEntry {
    ModelEntry::leaf(Pfn::new(pfn), A::prot(Protection::private_read_write()), Level::Pte)
}

/// A clean, writable, young leaf.
pub fn writable<A: Arch<Entry = ModelEntry>>(pfn: u64) -> ModelEntry {
    leaf::<A>(pfn).mkwrite(WriteKind::Normal)
}

/// The table that maps `va`, made if it is missing, locked.
pub fn table<A: Arch>(tables: &Tables<A>, va: VirtAddr) -> Table<'_, A> {
    tables.ensure_table(stay(), va).expect("memory").table().expect("no huge leaf")
}

/// Panics if some descriptor miscounts its table.
pub fn audit<A: Arch>(tables: &Tables<A>) {
    tables.audit_counts(stay(), &mut |frame, counted, claimed| {
        panic!("{frame:?} has {counted} entries and claims {claimed}")
    });
}

/// One-word entries in three levels of eight. The address space is all of
/// `u64`: the pages are as large as it takes.
#[derive(Clone, Copy, Debug)]
pub struct Deep;

type Base = ModelWord<8>;

// SAFETY: all is done by `Base`.
unsafe impl Arch for Deep {
    type Entry = ModelEntry;
    type Table = <Base as Arch>::Table;
    const NAME: &'static str = "deep";
    const PAGE_SHIFT: u32 = 64 - 3 * 3;
    const LEVELS: &'static [Level] = &[Level::Pud, Level::Pmd, Level::Pte];
    const USER_END: u64 = u64::MAX;
    const CONT: usize = 1;
    const WRITE_SURVIVES_MKCLEAN: bool = true;
    const HAS_SOFT_DIRTY: bool = true;
    const HAS_UFFD_WP: bool = true;
    const PINCOUNT_MIN_ORDER: u32 = 1;

    fn shift(level: Level) -> u32 {
        Self::PAGE_SHIFT + 3 * level as u32
    }
    fn nr_entries(_: Level) -> usize {
        8
    }
    fn prot(p: Protection) -> ModelProt {
        Base::prot(p)
    }
    fn new_table() -> Self::Table {
        Base::new_table()
    }
    fn read<R: Right>(t: &Self::Table, i: usize) -> ModelEntry {
        Base::read::<R>(t, i)
    }
    fn read_upper<R: Right>(t: &Self::Table, i: usize) -> ModelEntry {
        Base::read_upper::<R>(t, i)
    }
    fn scan<R: Right, const MODE: u8>(
        t: &Self::Table,
        i: usize,
        head: ModelEntry,
        max: usize,
    ) -> Batch {
        Base::scan::<R, MODE>(t, i, head, max)
    }
    fn fill(t: &Self::Table, i: usize, n: usize, e: ModelEntry) {
        Base::fill(t, i, n, e);
    }
    fn set<T: Tlb + ?Sized>(t: &Self::Table, at: At, e: ModelEntry, tlb: &SpaceTlb<'_, T>) {
        Base::set(t, at, e, tlb);
    }
    fn take<L: Liveness, T: Tlb + ?Sized>(
        t: &Self::Table,
        at: At,
        n: usize,
        tlb: &SpaceTlb<'_, T>,
        each: impl FnMut(usize, ModelEntry),
    ) {
        Base::take::<L, T>(t, at, n, tlb, each);
    }
    fn wrprotect<T: Tlb + ?Sized>(t: &Self::Table, at: At, n: usize, tlb: &SpaceTlb<'_, T>) {
        Base::wrprotect(t, at, n, tlb);
    }
    fn clear_young<T: Tlb + ?Sized>(
        t: &Self::Table,
        at: At,
        n: usize,
        tlb: &SpaceTlb<'_, T>,
    ) -> bool {
        Base::clear_young(t, at, n, tlb)
    }
    fn set_access_flags<T: Tlb + ?Sized>(
        t: &Self::Table,
        at: At,
        e: ModelEntry,
        tlb: &SpaceTlb<'_, T>,
    ) -> bool {
        Base::set_access_flags(t, at, e, tlb)
    }
    fn swap_upper(t: &Self::Table, i: usize, e: ModelEntry) -> ModelEntry {
        Base::swap_upper(t, i, e)
    }
    fn wrprotect_upper(t: &Self::Table, i: usize) {
        Base::wrprotect_upper(t, i);
    }
    fn set_access_flags_upper(t: &Self::Table, i: usize, e: ModelEntry) -> bool {
        Base::set_access_flags_upper(t, i, e)
    }
    fn mmu_mark(t: &Self::Table, i: usize, kind: AccessKind, level: Level) -> bool {
        Base::mmu_mark(t, i, kind, level)
    }
}
