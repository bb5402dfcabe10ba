//! Freeing page tables.

use crate::{Gather, PageTables, TableMemory, TableSpace, TablesStay, View};
use mm_arch::{Arch, Entry, Level, Pinned, TableFrame, VirtAddr, VirtRange};

impl<S: TableSpace> PageTables<S> {
    /// Unlinks the tables under `range` that have no entry left, bottom up.
    ///
    /// The entry counts say which those are; nothing is scanned to find a table
    /// empty. `range` need not be aligned to tables: a table with a live entry
    /// outside of it is not empty. Nor is one that still keeps deposited tables.
    ///
    /// # Safety
    ///
    /// The caller excludes every locked walker of this space: it holds the mmap
    /// lock's exclusive side, and no VMA over a table that `range` touches is in
    /// an rmap tree. Lockless walkers may be inside.
    pub unsafe fn free_empty_tables<T>(&self, range: VirtRange, gather: &mut Gather<'_, S, T>) {
        self.free_below(self.root(), S::Arch::top(), VirtAddr::new(0), range, None, gather);
    }

    /// As [`free_empty_tables`](Self::free_empty_tables), but frees only tables
    /// that lie wholly inside `gap`. A table at its edge may be empty and still
    /// belong to a mapping beyond it, whose rmap walkers come without the mmap
    /// lock.
    ///
    /// # Safety
    ///
    /// The caller holds the mmap lock's exclusive side, and no VMA over `gap` is
    /// in an rmap tree, or locked by somebody. Lockless walkers may be inside.
    pub unsafe fn free_empty_tables_in<T>(
        &self,
        range: VirtRange,
        gap: VirtRange,
        gather: &mut Gather<'_, S, T>,
    ) {
        self.free_below(self.root(), S::Arch::top(), VirtAddr::new(0), range, Some(gap), gather);
    }

    /// Whether the table is empty afterwards. Without a `gap` every table counts
    /// as inside: no range covers all of a 64-bit address space.
    fn free_below<T>(
        &self,
        frame: TableFrame,
        level: Level,
        base: VirtAddr,
        range: VirtRange,
        gap: Option<VirtRange>,
        gather: &mut Gather<'_, S, T>,
    ) -> bool {
        // SAFETY: linked, and freed by nobody but this call (see above).
        let view: View<'_, S, Pinned> = unsafe { View::new(self.space(), frame, level, base) };
        if level == Level::Pte {
            return view.desc().entries() == 0;
        }
        let shift = S::Arch::shift(level);
        let Some(child_level) = S::Arch::below(level) else { return false };
        let first = view.index_of(range.start());
        let last = view.index_of(range.last());
        for index in first..=last {
            let Ok(span) = VirtRange::new(view.va_of(index), 1 << shift) else { continue };
            let (Some(child), Some(part)) =
                (view.get(index).as_table(level), span.intersect(range))
            else {
                continue;
            };
            let empty = self.free_below(child, child_level, span.start(), part, gap, gather);
            if empty && gap.is_none_or(|gap| gap.covers(span)) {
                let guard = view.desc().lock().lock();
                S::Arch::swap_upper(view.table(), index, <S::Arch as Arch>::Entry::NONE);
                view.desc().count(-1);
                drop(guard);
                // SAFETY: unlinked just now, by the only one who may.
                unsafe { gather.park_table(child, span) };
            }
        }
        view.desc().entries() == 0 && view.desc().first_deposit().is_none()
    }

    /// Number of tables of this space, the root and deposited ones included.
    /// For audits: exact if nothing changes the tree meanwhile.
    pub fn count_tables(&self, stay: TablesStay<'_>) -> usize {
        stay.check_all(self);
        self.count_below(self.root(), S::Arch::top())
    }
    fn count_below(&self, frame: TableFrame, level: Level) -> usize {
        // SAFETY: linked, and the caller's proof says that no table is freed.
        let view: View<'_, S, Pinned> =
            unsafe { View::new(self.space(), frame, level, VirtAddr::new(0)) };
        let mut n = 1;
        // Under the lock: a deposited table is freed as soon as it is withdrawn,
        // whoever proves that linked tables stay.
        let guard = view.desc().lock().lock();
        // SAFETY: deposited tables are allocated until they are withdrawn.
        n += view.desc().deposits(|f| unsafe { self.space().tables().desc(f).as_ref() });
        drop(guard);
        if let Some(child_level) = S::Arch::below(level) {
            for index in 0..S::Arch::nr_entries(level) {
                if let Some(child) = view.get(index).as_table(level) {
                    n += self.count_below(child, child_level);
                }
            }
        }
        n
    }

    /// Recounts the entries of every table and reports each descriptor that
    /// says otherwise, as (frame, counted, claimed). For audits.
    pub fn audit_counts(&self, stay: TablesStay<'_>, bad: &mut dyn FnMut(TableFrame, u32, u32)) {
        stay.check_all(self);
        self.audit_below(self.root(), S::Arch::top(), bad);
    }
    fn audit_below(
        &self,
        frame: TableFrame,
        level: Level,
        bad: &mut dyn FnMut(TableFrame, u32, u32),
    ) {
        // SAFETY: as in `count_below`.
        let view: View<'_, S, Pinned> =
            unsafe { View::new(self.space(), frame, level, VirtAddr::new(0)) };
        let mut n = 0;
        for index in 0..S::Arch::nr_entries(level) {
            let e = view.get(index);
            n += u32::from(!e.is_none());
            if let (Some(child), Some(child_level)) = (e.as_table(level), S::Arch::below(level)) {
                self.audit_below(child, child_level, bad);
            }
        }
        if n != view.desc().entries() {
            bad(frame, n, view.desc().entries());
        }
    }

    /// Frees a table that was never linked, or that was withdrawn.
    ///
    /// # Safety
    ///
    /// `frame` came from this space's memory and nobody can reach it.
    pub unsafe fn free_unlinked(&self, frame: TableFrame) {
        // SAFETY: passed on to the caller.
        unsafe { self.space().tables().free(frame) }
    }
}

impl<S: TableSpace> Drop for PageTables<S> {
    /// Frees all tables. The owner of an address space has unmapped everything
    /// and flushed; no walker of it is left, since walkers borrow it.
    fn drop(&mut self) {
        fn free_all<S: TableSpace>(space: &S, frame: TableFrame, level: Level) {
            // SAFETY: linked under a root that nobody else can reach any more.
            let view: View<'_, S, Pinned> =
                unsafe { View::new(space, frame, level, VirtAddr::new(0)) };
            if let Some(child_level) = S::Arch::below(level) {
                for index in 0..S::Arch::nr_entries(level) {
                    if let Some(child) = view.get(index).as_table(level) {
                        free_all(space, child, child_level);
                    }
                }
                while let Some(deposited) = view.desc().first_deposit() {
                    // SAFETY: deposited tables are allocated until withdrawn.
                    view.desc().pop_deposit(unsafe { space.tables().desc(deposited).as_ref() });
                    // SAFETY: withdrawn just now, reachable by nobody.
                    unsafe { space.tables().free(deposited) };
                }
            }
            // SAFETY: `&mut self`: no walker, no user of the space is left.
            unsafe { space.tables().free(frame) };
        }
        free_all(self.space(), self.root(), S::Arch::top());
    }
}
