//! The tree of page tables of one address space, walked with locks.

use crate::deferred::Generations;
use crate::{LockedPmd, LockedPud, LockedTable, TableAllocError, TableMemory, TableSpace, View};
use core::marker::PhantomData;
use mm_arch::{
    Arch, Entry, FlushScope, Held, Level, Pinned, SpaceId, SpaceTlb, TableFrame, VirtAddr,
    VirtRange,
};
use mm_sync::Quiescence;

/// Proof that no page table of the address space is freed during `'g`.
///
/// Held by whoever holds the mmap lock (either side), or the lock or the rmap lock of a
/// VMA that spans the walk: tables are freed only by a holder of the mmap lock's
/// exclusive side who excludes the former, after the VMA left the rmap trees. Locks may be waited for
/// with this proof, unlike with a quiescence guard.
///
/// A proof of [`of`](Self::of) knows what it is about: using it with other
/// tables, or with addresses outside of its range, panics. So safe code cannot
/// lock tables of one space with the mmap lock of another.
#[derive(Clone, Copy, Debug)]
pub struct TablesStay<'g> {
    // The `PageTables` that it is about; null: whoever made it answers for that.
    tables: *const (),
    first: VirtAddr,
    last: VirtAddr,
    _during: PhantomData<(&'g (), *const ())>,
}

impl<'g> TablesStay<'g> {
    /// Claims the proof for whatever it will be used with.
    ///
    /// # Safety
    ///
    /// During `'g` no table of the space that the proof is used with is freed.
    #[inline]
    pub const unsafe fn new() -> Self {
        TablesStay {
            tables: core::ptr::null(),
            first: VirtAddr::new(0),
            last: VirtAddr::new(u64::MAX),
            _during: PhantomData,
        }
    }
    /// Claims the proof for `tables`.
    ///
    /// # Safety
    ///
    /// During `'g` no table of `tables` is freed.
    #[inline]
    pub const unsafe fn of<S: TableSpace>(tables: &'g PageTables<S>) -> Self {
        TablesStay {
            tables: core::ptr::from_ref(tables).cast(),
            first: VirtAddr::new(0),
            last: VirtAddr::new(u64::MAX),
            _during: PhantomData,
        }
    }
    /// Claims the proof for the tables of `tables` that cover addresses of `range`.
    ///
    /// # Safety
    ///
    /// During `'g` none of them is freed.
    #[inline]
    pub const unsafe fn of_range<S: TableSpace>(
        tables: &'g PageTables<S>,
        range: VirtRange,
    ) -> Self {
        // SAFETY: passed on to the caller; narrowed to what it vouches for.
        let all = unsafe { Self::of(tables) };
        TablesStay { first: range.start(), last: range.last(), ..all }
    }
    #[inline]
    fn check<S: TableSpace>(self, tables: &PageTables<S>, first: VirtAddr, last: VirtAddr) {
        assert!(
            (self.tables.is_null()
                || core::ptr::eq(self.tables, core::ptr::from_ref(tables).cast()))
                && self.first <= first
                && last <= self.last,
            "this proof is not about these tables"
        );
    }
    /// Panics unless this is a proof for all of `tables`.
    #[inline]
    pub(crate) fn check_all<S: TableSpace>(self, tables: &PageTables<S>) {
        self.check(tables, VirtAddr::new(0), VirtAddr::new(u64::MAX));
    }
}

/// Page tables of one address space.
///
/// # Invariants
///
/// Every table reachable from the root came from `S::Tables` and is freed only
/// after it was unlinked, flushed and retired. Leaves stand at PMD level or below, but for
/// those that were put in through [`LockedPud`].
#[derive(Debug)]
pub struct PageTables<S: TableSpace> {
    space: S,
    id: SpaceId,
    root: TableFrame,
    deferred: Generations,
}

/// A stretch of an address range under one upper-level entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stretch.
    pub range: VirtRange,
    /// What is there.
    pub kind: SpanKind,
}

/// What covers a [`Span`]; a hint until the table is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Nothing.
    Hole,
    /// A leaf or a non-present entry at PMD level.
    Huge,
    /// A PTE table.
    Table,
}

/// The entry that was found and locked for an address.
#[derive(Debug)]
pub enum LockedEntry<'g, S: TableSpace> {
    /// Nothing down to (and including) PMD level.
    Hole,
    /// A leaf or a non-present entry at PMD level, its table locked.
    Huge(LockedPmd<'g, S>),
    /// A PTE table, locked.
    Table(LockedTable<'g, S>),
}

impl<'g, S: TableSpace> LockedEntry<'g, S> {
    /// The PTE table, if that is what was found.
    pub fn table(self) -> Option<LockedTable<'g, S>> {
        match self {
            LockedEntry::Table(t) => Some(t),
            _ => None,
        }
    }
}

/// What [`PageTables::ensure_table`] found or made.
#[derive(Debug)]
pub enum Ensured<'g, S: TableSpace> {
    /// A PTE table, locked.
    Table(LockedTable<'g, S>),
    /// A leaf or a non-present entry at PMD level stands in the way.
    Huge(LockedPmd<'g, S>),
}

impl<'g, S: TableSpace> Ensured<'g, S> {
    /// The PTE table, if that is what was found.
    pub fn table(self) -> Option<LockedTable<'g, S>> {
        match self {
            Ensured::Table(t) => Some(t),
            Ensured::Huge(_) => None,
        }
    }
}

impl<S: TableSpace> PageTables<S> {
    /// An empty address space.
    ///
    /// # Errors
    ///
    /// If there is no memory for the root.
    pub fn new(space: S, id: SpaceId) -> Result<Self, TableAllocError> {
        let root = space.tables().alloc(S::Arch::top())?;
        Ok(PageTables { space, id, root, deferred: Generations::new() })
    }
    /// The machine.
    #[inline]
    pub fn space(&self) -> &S {
        &self.space
    }
    /// The root table.
    #[inline]
    pub fn root(&self) -> TableFrame {
        self.root
    }
    /// What translation caches know this space by.
    #[inline]
    pub fn id(&self) -> SpaceId {
        self.id
    }
    /// Flushes of this space.
    #[inline]
    pub fn tlb(&self) -> SpaceTlb<'_, S::Tlb> {
        SpaceTlb::new(self.space.tlb(), self.id)
    }

    /// Flushes that were put off.
    pub(crate) fn deferred(&self) -> &Generations {
        &self.deferred
    }

    /// Waits until no lockless reader is left that is in the tree now.
    pub(crate) fn let_readers_leave(&self) {
        if !mm_sync::mutant!("table.rewrite.no_wait") {
            self.space.epochs().synchronize();
        }
    }

    /// The view of the PMD table that covers `va`.
    fn pmd_view<'g>(
        &'g self,
        stay: TablesStay<'g>,
        va: VirtAddr,
    ) -> Result<View<'g, S, Pinned>, Level> {
        self.view_at(stay, va, Level::Pmd)
    }
    /// The view of the table of `target`, above PTE level, that covers `va`, or the level of
    /// the entry that names no table.
    #[inline(always)]
    fn view_at<'g>(
        &'g self,
        stay: TablesStay<'g>,
        va: VirtAddr,
        target: Level,
    ) -> Result<View<'g, S, Pinned>, Level> {
        stay.check(self, va, va);
        let mut frame = self.root;
        let mut base = VirtAddr::new(0);
        for level in S::Arch::LEVELS.iter().copied() {
            // SAFETY: `frame` is linked in the tree and the caller's proof says
            // that no table is freed; upper entries are read by the lockless
            // protocol, so `Pinned` is the right that is used.
            let view: View<'g, S, Pinned> = unsafe { View::new(&self.space, frame, level, base) };
            if level == target {
                return Ok(view);
            }
            let index = view.index_of(va);
            base = view.va_of(index);
            frame = view.get(index).as_table(level).ok_or(level)?;
        }
        Err(Level::Pte)
    }

    /// The entry at `index` of a PMD table, empty only if nothing is there.
    ///
    /// A format of several words per entry empties an entry for a moment when it
    /// is replaced, under its lock. Who unmaps or protects a range must not take
    /// that for a hole and pass by.
    fn settled(&self, pmd: View<'_, S, Pinned>, index: usize) -> <S::Arch as Arch>::Entry {
        let entry = pmd.get(index);
        // Not "is empty": of an entry that is being emptied the high word may be left.
        if S::Arch::WORDS > 1 && !entry.is_present(Level::Pmd) {
            let _guard = pmd.desc().lock().lock();
            return pmd.get(index);
        }
        entry
    }

    /// Locks the PMD table that covers `va`; `None` if there is none.
    pub fn lock_pmd<'g>(&'g self, stay: TablesStay<'g>, va: VirtAddr) -> Option<LockedPmd<'g, S>> {
        let view = self.pmd_view(stay, va).ok()?;
        Some(self.locked_pmd(view, va))
    }
    fn locked_pmd<'g>(&'g self, view: View<'g, S, Pinned>, va: VirtAddr) -> LockedPmd<'g, S> {
        let guard = view.desc().lock().lock();
        // SAFETY: same table, still there; its lock is held by `guard`.
        let held =
            unsafe { View::<S, Held>::new(&self.space, view.frame(), view.level(), view.va_of(0)) };
        LockedPmd::new(self, held, guard, view.index_of(va))
    }

    /// Locks the PUD table that covers `va`; `None` if there is none, or the format has no
    /// such level.
    pub fn lock_pud<'g>(&'g self, stay: TablesStay<'g>, va: VirtAddr) -> Option<LockedPud<'g, S>> {
        let view = self.view_at(stay, va, Level::Pud).ok()?;
        Some(LockedPud::new(self.locked_pmd(view, va)))
    }
    /// Locks the PUD table that covers `va`, making what is missing above it; `None` if the
    /// format has no such level.
    ///
    /// # Errors
    ///
    /// If there is no memory; tables made on the way stay and are used later.
    pub fn ensure_pud<'g>(
        &'g self,
        stay: TablesStay<'g>,
        va: VirtAddr,
    ) -> Result<Option<LockedPud<'g, S>>, TableAllocError> {
        if !S::Arch::LEVELS.contains(&Level::Pud) {
            return Ok(None);
        }
        loop {
            match self.view_at(stay, va, Level::Pud) {
                Ok(view) => return Ok(Some(LockedPud::new(self.locked_pmd(view, va)))),
                Err(level) => self.install_at(stay, va, level)?,
            }
        }
    }

    /// Locks the PTE table that `frame` in the PMD entry at `index` named, if
    /// the entry still names it (rule ACC-22).
    fn lock_named<'g>(
        &'g self,
        pmd: View<'g, S, Pinned>,
        index: usize,
        frame: TableFrame,
    ) -> Option<LockedTable<'g, S>> {
        // SAFETY: the frame was linked and no table is freed while the proof
        // behind `pmd` lives; before the lock is held only the descriptor is used.
        let pinned: View<'g, S, Pinned> =
            unsafe { View::new(&self.space, frame, Level::Pte, pmd.va_of(index)) };
        let guard = pinned.desc().lock().lock();
        // Without the second look, entries go into a table that was unlinked
        // while this thread waited, and are lost.
        if pmd.get(index).as_table(Level::Pmd) != Some(frame)
            && !mm_sync::mutant!("table.lock.no_recheck")
        {
            return None;
        }
        // SAFETY: same table; its lock is held by `guard`.
        let view =
            unsafe { View::<S, Held>::new(&self.space, frame, Level::Pte, pmd.va_of(index)) };
        Some(LockedTable::new(self, view, guard))
    }

    /// Finds and locks what maps `va`.
    pub fn lock_entry<'g>(&'g self, stay: TablesStay<'g>, va: VirtAddr) -> LockedEntry<'g, S> {
        let Ok(pmd) = self.pmd_view(stay, va) else { return LockedEntry::Hole };
        let index = pmd.index_of(va);
        loop {
            let entry = self.settled(pmd, index);
            if entry.is_none() {
                return LockedEntry::Hole;
            }
            match entry.as_table(Level::Pmd) {
                Some(frame) => {
                    if let Some(table) = self.lock_named(pmd, index, frame) {
                        return LockedEntry::Table(table);
                    }
                }
                None => {
                    let locked = self.locked_pmd(pmd, va);
                    if !locked.entry().is_none() && locked.entry().as_table(Level::Pmd).is_none() {
                        return LockedEntry::Huge(locked);
                    }
                }
            }
            mm_sync::hint::spin_loop();
        }
    }

    /// Locks the PTE table that covers `va`; `None` if there is none.
    pub fn lock_table<'g>(
        &'g self,
        stay: TablesStay<'g>,
        va: VirtAddr,
    ) -> Option<LockedTable<'g, S>> {
        self.lock_entry(stay, va).table()
    }

    /// Locks the PMD table that covers `va`, making what is missing above it.
    ///
    /// # Errors
    ///
    /// If there is no memory; tables made on the way stay and are used later.
    pub fn ensure_pmd<'g>(
        &'g self,
        stay: TablesStay<'g>,
        va: VirtAddr,
    ) -> Result<LockedPmd<'g, S>, TableAllocError> {
        loop {
            match self.pmd_view(stay, va) {
                Ok(view) => return Ok(self.locked_pmd(view, va)),
                Err(level) => self.install_at(stay, va, level)?,
            }
        }
    }

    /// Locks the PTE table in `frame`, which was linked at `va` and is not any more: for
    /// whoever took the link away, and puts it back or gives the table another use.
    ///
    /// # Safety
    ///
    /// The caller took the table out of this tree, at `va`, and is the only one who may
    /// link, deposit or free it. No lockless walker is left that found it there.
    pub unsafe fn lock_detached<'g>(
        &'g self,
        frame: TableFrame,
        va: VirtAddr,
    ) -> LockedTable<'g, S> {
        let base = va.align_down(S::Arch::shift(Level::Pmd));
        // SAFETY: not freed before the caller says so; before the lock is held only the
        // descriptor is used.
        let pinned: View<'g, S, Pinned> =
            unsafe { View::new(&self.space, frame, Level::Pte, base) };
        let guard = pinned.desc().lock().lock();
        // SAFETY: same table; its lock is held by `guard`.
        let view = unsafe { View::<S, Held>::new(&self.space, frame, Level::Pte, base) };
        LockedTable::new(self, view, guard)
    }

    /// Locks the PTE table that covers `va`, making what is missing.
    ///
    /// # Errors
    ///
    /// If there is no memory; tables made on the way stay and are used later.
    pub fn ensure_table<'g>(
        &'g self,
        stay: TablesStay<'g>,
        va: VirtAddr,
    ) -> Result<Ensured<'g, S>, TableAllocError> {
        loop {
            match self.lock_entry(stay, va) {
                LockedEntry::Table(t) => return Ok(Ensured::Table(t)),
                LockedEntry::Huge(p) => return Ok(Ensured::Huge(p)),
                LockedEntry::Hole => match self.pmd_view(stay, va) {
                    Ok(_) => self.install_at(stay, va, Level::Pmd)?,
                    Err(level) => self.install_at(stay, va, level)?,
                },
            }
        }
    }

    /// Puts a new table under the empty entry of `level` that covers `va`.
    fn install_at<'g>(
        &'g self,
        stay: TablesStay<'g>,
        va: VirtAddr,
        level: Level,
    ) -> Result<(), TableAllocError> {
        stay.check(self, va, va);
        let child_level = S::Arch::below(level).ok_or(TableAllocError)?;
        // Allocated without locks: it may wait, or fail.
        let child = self.space.tables().alloc(child_level)?;
        let mut frame = self.root;
        let mut base = VirtAddr::new(0);
        for l in S::Arch::LEVELS.iter().copied() {
            // SAFETY: as in `pmd_view`.
            let view: View<'g, S, Pinned> = unsafe { View::new(&self.space, frame, l, base) };
            let index = view.index_of(va);
            if l == level {
                let guard = view.desc().lock().lock();
                let there = view.get(index);
                if there.is_none() || mm_sync::mutant!("table.install.no_check") {
                    // Releasing: a reader that finds the entry finds an empty
                    // table behind it (rule ACC-04).
                    S::Arch::swap_upper(
                        view.table(),
                        index,
                        <S::Arch as Arch>::Entry::table(child, level),
                    );
                    view.desc().count(1);
                    drop(guard);
                    if S::Arch::CACHES_ROOT && level == S::Arch::top() {
                        self.reload_root(va, level);
                    }
                    return Ok(());
                }
                drop(guard);
                // A leaf above PMD level, or a bad entry: retrying would not end.
                if level != Level::Pmd && there.as_table(level).is_none() {
                    // SAFETY: allocated above and never linked.
                    unsafe { self.space.tables().free(child) };
                    return Err(TableAllocError);
                }
                break;
            }
            base = view.va_of(index);
            match view.get(index).as_table(l) {
                Some(next) => frame = next,
                None => break,
            }
        }
        // Somebody else was first.
        // SAFETY: allocated above and never linked.
        unsafe { self.space.tables().free(child) };
        Ok(())
    }

    /// Has every CPU see the new root entry of `va` (rule PAE-05).
    fn reload_root(&self, va: VirtAddr, level: Level) {
        let shift = S::Arch::shift(level);
        if let Ok(range) = VirtRange::units(va.align_down(shift), 1, shift) {
            self.tlb().flush(range, FlushScope::Tables);
        }
    }

    /// The stretch of `range` that starts at its first address and lies under
    /// one entry. A hole extends to the end of the entry that is missing. May wait
    /// for the lock of a PMD table.
    pub fn span(&self, stay: TablesStay<'_>, range: VirtRange) -> Span {
        let va = range.start();
        let (level, kind) = match self.pmd_view(stay, va) {
            Err(level) => (level, SpanKind::Hole),
            Ok(pmd) => {
                let e = self.settled(pmd, pmd.index_of(va));
                let kind = if e.is_none() {
                    SpanKind::Hole
                } else if e.as_table(Level::Pmd).is_some() {
                    SpanKind::Table
                } else {
                    SpanKind::Huge
                };
                (Level::Pmd, kind)
            }
        };
        let size = 1u64 << S::Arch::shift(level);
        let to_boundary = size - (va.get() & (size - 1));
        let bytes = to_boundary.min(range.bytes());
        Span { range: VirtRange::new(va, bytes).unwrap_or(range), kind }
    }

    /// The spans of `range`, in order.
    pub fn spans<'g>(
        &'g self,
        stay: TablesStay<'g>,
        range: VirtRange,
    ) -> impl Iterator<Item = Span> + use<'g, S> {
        let mut rest = Some(range);
        core::iter::from_fn(move || {
            let range = rest?;
            let span = self.span(stay, range);
            rest = range
                .start()
                .checked_add(span.range.bytes())
                .and_then(|s| VirtRange::new(s, range.bytes() - span.range.bytes()).ok());
            Some(span)
        })
    }

    /// The first entry in a PTE table of `range` that `what` makes something of, with its
    /// address. Looks at each table under its lock.
    pub fn find<'g, T>(
        &'g self,
        stay: TablesStay<'g>,
        range: VirtRange,
        mut what: impl FnMut(<S::Arch as Arch>::Entry) -> Option<T>,
    ) -> Option<(VirtAddr, T)> {
        for span in self.spans(stay, range) {
            if span.kind != SpanKind::Table {
                continue;
            }
            let Some(table) = self.lock_table(stay, span.range.start()) else { continue };
            let first = table.index_of(span.range.start());
            let end = first + span.range.nr(S::Arch::PAGE_SHIFT) as usize;
            for i in first..end {
                if let Some(found) = what(table.get(i)) {
                    return Some((table.va_of(i), found));
                }
            }
        }
        None
    }
}
