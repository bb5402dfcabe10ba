//! The format: geometry, and table operations by way of [`mm_arch::cont`].

use crate::granule::Cells;
use crate::prot::Arm64Prot;
use crate::{Arm64Entry, Granule};
use core::marker::PhantomData;
use mm_arch::cell::Cell;
use mm_arch::cont::{self, ContEntry};
use mm_arch::{
    AccessKind, Arch, At, Batch, Entry, Level, Liveness, Protection, Right, SpaceTlb, Tlb,
};

/// arm64 with pages of the granule `G`, on CPUs that manage accessed and dirty.
#[derive(Clone, Copy, Debug)]
pub struct Arm64<G: Granule>(PhantomData<G>);

impl<G: Granule> Arch for Arm64<G> {
    type Entry = Arm64Entry<G>;
    type Table = G::Table;

    const NAME: &'static str = G::NAME;
    const PAGE_SHIFT: u32 = G::PAGE_SHIFT;
    const LEVELS: &'static [Level] = G::LEVELS;
    const USER_END: u64 = 1 << G::VA_BITS;
    const CONT: usize = G::CONT_PTES;
    const WRITE_SURVIVES_MKCLEAN: bool = true;
    const HAS_SOFT_DIRTY: bool = false;
    const HAS_UFFD_WP: bool = true;
    const PINCOUNT_MIN_ORDER: u32 = 1;

    #[inline(always)]
    fn shift(level: Level) -> u32 {
        G::shift(level)
    }
    #[inline(always)]
    fn nr_entries(level: Level) -> usize {
        let bits = match level {
            Level::Pgd => G::VA_BITS - G::shift(level),
            _ => G::PAGE_SHIFT - 3,
        };
        1 << bits
    }
    #[inline]
    fn prot(protection: Protection) -> Arm64Prot {
        Arm64Prot::new(protection, G::OUTPUT)
    }

    fn new_table() -> Self::Table {
        Cells::empty()
    }

    #[inline(always)]
    fn read<R: Right>(table: &Self::Table, index: usize) -> Self::Entry {
        cont::read::<_, R>(table.cells(), index, Self::PTE_BLOCKS)
    }
    #[inline(always)]
    fn read_upper<R: Right>(table: &Self::Table, index: usize) -> Self::Entry {
        Arm64Entry::from_bits(table.cells()[index].read::<R>())
    }
    #[inline(always)]
    fn scan<R: Right, const MODE: u8>(
        table: &Self::Table,
        index: usize,
        head: Self::Entry,
        max: usize,
    ) -> Batch {
        cont::scan::<_, R, MODE>(table.cells(), index, head, max, Self::PTE_BLOCKS)
    }

    #[inline]
    fn fill(table: &Self::Table, index: usize, n: usize, e: Self::Entry) {
        cont::fill(table.cells(), index, n, e, Self::PTE_BLOCKS);
    }
    #[inline]
    fn set<T: Tlb + ?Sized>(table: &Self::Table, at: At, e: Self::Entry, tlb: &SpaceTlb<'_, T>) {
        cont::set(table.cells(), at, e, Self::PTE_BLOCKS, tlb);
    }
    #[inline]
    fn take<L: Liveness, T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        n: usize,
        tlb: &SpaceTlb<'_, T>,
        each: impl FnMut(usize, Self::Entry),
    ) {
        cont::take::<_, L, T>(table.cells(), at, n, Self::PTE_BLOCKS, tlb, each);
    }
    #[inline]
    fn wrprotect<T: Tlb + ?Sized>(table: &Self::Table, at: At, n: usize, tlb: &SpaceTlb<'_, T>) {
        cont::wrprotect::<Self::Entry, T>(table.cells(), at, n, Self::PTE_BLOCKS, tlb);
    }
    #[inline]
    fn clear_young<T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        n: usize,
        _: &SpaceTlb<'_, T>,
    ) -> bool {
        cont::clear_young::<Self::Entry>(table.cells(), at.index, n, Self::PTE_BLOCKS)
    }
    #[inline]
    fn set_access_flags<T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        e: Self::Entry,
        tlb: &SpaceTlb<'_, T>,
    ) -> bool {
        cont::set_access_flags(table.cells(), at, e, Self::PTE_BLOCKS, tlb)
    }

    #[inline]
    fn swap_upper(table: &Self::Table, index: usize, e: Self::Entry) -> Self::Entry {
        Arm64Entry::from_bits(table.cells()[index].replace(e.bits()))
    }
    #[inline]
    fn wrprotect_upper(table: &Self::Table, index: usize) {
        let _ = table.cells()[index].change(|raw| {
            Some(Self::Entry::from_bits(raw).wrprotect().bits()).filter(|new| *new != raw)
        });
    }
    #[inline]
    fn set_access_flags_upper(table: &Self::Table, index: usize, e: Self::Entry) -> bool {
        let wider =
            |raw| Some(Self::Entry::from_bits(raw).widened(e).bits()).filter(|new| *new != raw);
        table.cells()[index].change(wider).is_ok()
    }

    fn mmu_mark(table: &Self::Table, index: usize, kind: AccessKind, level: Level) -> bool {
        cont::mmu_mark::<Self::Entry>(table.cells(), index, kind, level, Self::PTE_BLOCKS)
    }
}
