//! A table seen by the right of [`Held`](mm_arch::Held) or [`Pinned`].

use crate::{BatchLimit, Run, TableDesc, TableSpace};
use core::marker::PhantomData;
use mm_arch::{AccessKind, Arch, At, Entry, Level, Pinned, Right, TableFrame, VirtAddr};

/// A page table, readable by the right `R`, for as long as `'g`.
///
/// # Invariants
///
/// The table is not freed during `'g`, and `R` tells what excludes writers. Not
/// `Send`: both kinds of right belong to a thread. A view by lock is not `Copy`,
/// so that it cannot outlive the lock it was lent by.
pub struct View<'g, S: TableSpace, R: Right> {
    table: &'g <S::Arch as Arch>::Table,
    desc: &'g TableDesc<S::PtLock>,
    frame: TableFrame,
    level: Level,
    base: VirtAddr,
    _right: PhantomData<(R, *const ())>,
}

impl<S: TableSpace> Clone for View<'_, S, Pinned> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: TableSpace> Copy for View<'_, S, Pinned> {}

impl<'g, S: TableSpace, R: Right> View<'g, S, R> {
    /// A view of the table in `frame`, whose first entry maps `base`.
    ///
    /// # Safety
    ///
    /// `frame` holds a table of `level`, it is not freed during `'g`, and the
    /// caller has the right `R` during `'g`.
    #[inline]
    pub(crate) unsafe fn new(space: &S, frame: TableFrame, level: Level, base: VirtAddr) -> Self {
        use crate::TableMemory;
        // SAFETY: the pointers are valid until `free` (contract of
        // `TableMemory`), which does not happen during `'g` (caller).
        let (table, desc) =
            unsafe { (space.tables().table(frame).as_ref(), space.tables().desc(frame).as_ref()) };
        View { table, desc, frame, level, base, _right: PhantomData }
    }
    /// The entry at `index`.
    #[inline(always)]
    pub fn get(&self, index: usize) -> <S::Arch as Arch>::Entry {
        let e = if self.level == Level::Pte {
            S::Arch::read::<R>(self.table, index)
        } else {
            S::Arch::read_upper::<R>(self.table, index)
        };
        self.desc.live().used();
        e
    }
    /// The entry at `index` of a PTE table: as [`get`](Self::get), without
    /// asking for the level.
    #[inline(always)]
    pub fn pte(&self, index: usize) -> <S::Arch as Arch>::Entry {
        debug_assert_eq!(self.level, Level::Pte);
        let e = S::Arch::read::<R>(self.table, index);
        self.desc.live().used();
        e
    }
    /// The entry at `index` of an upper-level table, as [`get`](Self::get).
    #[inline(always)]
    pub fn upper(&self, index: usize) -> <S::Arch as Arch>::Entry {
        debug_assert_ne!(self.level, Level::Pte);
        let e = S::Arch::read_upper::<R>(self.table, index);
        self.desc.live().used();
        e
    }
    /// The entry at `index` as it is stored: what [`get`](Self::get) says, without what
    /// a block format gathers from its neighbours. For those who look at tables.
    pub fn stored(&self, index: usize) -> <S::Arch as Arch>::Entry {
        let e = S::Arch::read_upper::<R>(self.table, index);
        self.desc.live().used();
        e
    }
    /// The most entries that a run starting at `index` may have in this table.
    #[inline(always)]
    pub fn limit(&self, index: usize) -> BatchLimit {
        BatchLimit::new(S::Arch::nr_entries(self.level) - index)
    }
    /// The run that starts with `head`, the value read at `index`
    /// (see [`Arch::scan`]).
    #[inline(always)]
    pub fn run<const MODE: u8>(
        &self,
        index: usize,
        head: <S::Arch as Arch>::Entry,
        limit: BatchLimit,
    ) -> Run<'g> {
        // The limit may come from another index: clamp to this table.
        let max = limit.get().min(S::Arch::nr_entries(self.level) - index);
        // Rules BATCH-23, BATCH-24: shadow stacks have no large folios, so nobody looks for
        // a run of what loses its write permission with its dirt. Scans would stop there.
        debug_assert!(
            S::Arch::WRITE_SURVIVES_MKCLEAN
                || max == 1
                || !head.is_writable(self.level)
                || head.mkclean().is_writable(self.level),
            "a run of shadow-stack entries: {head:?}"
        );
        let batch = S::Arch::scan::<R, MODE>(self.table, index, head, max);
        self.desc.live().used();
        Run::new(index, batch)
    }
    /// The run of swap entries that starts with `head`, the value at `index`:
    /// consecutive slots with the same flags (rule BATCH-16). An entry that is no swap
    /// entry is a run by itself.
    pub fn swap_run(
        &self,
        index: usize,
        head: <S::Arch as Arch>::Entry,
        limit: BatchLimit,
    ) -> Run<'g> {
        let max = limit.get().min(S::Arch::nr_entries(self.level) - index);
        let follows = |k: &usize| head.advance_swap(*k as i64) == Some(self.get(index + k));
        self.run_of(index, 1 + (1..max).take_while(follows).count())
    }
    /// A run of one entry.
    #[inline]
    pub fn single(&self, index: usize) -> Run<'g> {
        self.run_of(index, 1)
    }
    #[inline]
    fn run_of(&self, index: usize, nr: usize) -> Run<'g> {
        Run::new(
            index,
            mm_arch::Batch {
                nr,
                looks: nr,
                any_writable: false,
                any_young: false,
                any_dirty: false,
            },
        )
    }
    /// Number of empty entries from `index` on, at most `limit`.
    pub fn none_run(&self, index: usize, limit: BatchLimit) -> usize {
        let max = limit.get().min(S::Arch::nr_entries(self.level) - index);
        (index..index + max).take_while(|i| self.get(*i).is_none()).count()
    }
    /// Index of `va`'s entry.
    #[inline(always)]
    pub fn index_of(&self, va: VirtAddr) -> usize {
        S::Arch::index(va, self.level)
    }
    /// Index and address of an entry, for operations of the format.
    #[inline]
    pub fn at(&self, index: usize) -> At {
        At { va: self.va_of(index), index }
    }
    /// The address that the entry at `index` maps.
    #[inline]
    pub fn va_of(&self, index: usize) -> VirtAddr {
        self.base.add_units(index as u64, S::Arch::shift(self.level))
    }
    /// Does what the hardware does when an access goes through the entry at `index`
    /// (see [`Arch::mmu_mark`]): for programs that are their own hardware.
    #[inline]
    pub fn mark_as_hardware(&self, index: usize, kind: AccessKind) -> bool {
        S::Arch::mmu_mark(self.table, index, kind, self.level)
    }
    /// The address that the first entry maps.
    #[inline]
    pub(crate) fn base(&self) -> VirtAddr {
        self.base
    }
    /// The level of the entries.
    #[inline]
    pub fn level(&self) -> Level {
        self.level
    }
    /// The frame of the table.
    #[inline]
    pub fn frame(&self) -> TableFrame {
        self.frame
    }
    /// The descriptor.
    #[inline]
    pub fn desc(&self) -> &'g TableDesc<S::PtLock> {
        self.desc
    }
    #[inline]
    pub(crate) fn table(&self) -> &'g <S::Arch as Arch>::Table {
        self.table
    }
}

impl<S: TableSpace, R: Right> core::fmt::Debug for View<'_, S, R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("View")
            .field("frame", &self.frame)
            .field("level", &self.level)
            .field("base", &self.base)
            .finish()
    }
}
