//! Tables whose lock is held.

use crate::{BatchLimit, ClearedRun, PageTables, Run, TableMemory, TableSpace, View};
use core::ops::Deref;
use mm_arch::{
    Arch, At, Entry, Flush, FlushScope, Held, Level, Live, Liveness, TableFrame, VirtAddr,
    VirtRange, respect,
};
use mm_sync::LockGuard;

type E<S> = <<S as TableSpace>::Arch as Arch>::Entry;

/// A PTE table with its lock held: reads through [`View`], and every write.
///
/// Whoever writes holds no quiescence guard: on formats of several words per
/// entry a write may wait for readers (see [`Arch::WORDS`]).
pub struct LockedTable<'g, S: TableSpace> {
    tables: &'g PageTables<S>,
    view: View<'g, S, Held>,
    // Entries were taken under this lock (kept only with several words each).
    took: bool,
    _guard: LockGuard<'g, S::PtLock>,
}

impl<'g, S: TableSpace> Deref for LockedTable<'g, S> {
    type Target = View<'g, S, Held>;
    #[inline]
    fn deref(&self) -> &View<'g, S, Held> {
        &self.view
    }
}

impl<S: TableSpace> core::fmt::Debug for LockedTable<'_, S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("LockedTable").field(&self.view).finish()
    }
}

impl<'g, S: TableSpace> LockedTable<'g, S> {
    pub(crate) fn new(
        tables: &'g PageTables<S>,
        view: View<'g, S, Held>,
        guard: LockGuard<'g, S::PtLock>,
    ) -> Self {
        LockedTable { tables, view, took: false, _guard: guard }
    }
    /// The address space.
    #[inline]
    pub fn tables(&self) -> &'g PageTables<S> {
        self.tables
    }
    /// The entry at `index`: as [`View::get`], without asking for the level.
    #[inline(always)]
    pub fn get(&self, index: usize) -> E<S> {
        self.view.pte(index)
    }
    /// Index of `va`'s entry.
    #[inline(always)]
    pub fn index_of(&self, va: VirtAddr) -> usize {
        S::Arch::index(va, Level::Pte)
    }
    /// The most entries that a run starting at `index` may have in this table.
    #[inline(always)]
    pub fn limit(&self, index: usize) -> BatchLimit {
        BatchLimit::new(S::Arch::nr_entries(Level::Pte) - index)
    }
    /// The address that the entry at `index` maps.
    #[inline(always)]
    pub fn va_of(&self, index: usize) -> VirtAddr {
        self.view.base().add_units(index as u64, S::Arch::PAGE_SHIFT)
    }
    #[inline(always)]
    fn at(&self, index: usize) -> At {
        At { va: self.va_of(index), index }
    }
    /// The range of `n` entries at `index`.
    pub fn range_of(&self, index: usize, n: usize) -> Option<VirtRange> {
        VirtRange::units(self.va_of(index), n as u64, S::Arch::PAGE_SHIFT).ok()
    }

    /// Writes `e, e+1, …` over `n` *empty* entries (rule ACC-10).
    ///
    /// # Panics
    ///
    /// If that leaves the table; in debug builds if an entry is not empty, or
    /// `e` is.
    pub fn fill(&mut self, index: usize, n: usize, e: E<S>) {
        debug_assert!(!e.is_none(), "nothing to fill with");
        debug_assert!(
            (index..index + n).all(|i| self.get(i).is_none()),
            "fill over entries that are not empty"
        );
        self.let_readers_leave();
        S::Arch::fill(self.view.table(), index, n, e);
        self.view.desc().count(n as i32);
    }
    /// Waits for readers that may have read a word of an entry taken under this
    /// lock, before another value is written there (rules PAE-10, PAE-12). They
    /// leave, because nobody waits for a lock while holding a guard.
    fn let_readers_leave(&mut self) {
        if S::Arch::WORDS > 1 && core::mem::take(&mut self.took) {
            self.tables.let_readers_leave();
        }
    }
    /// Replaces one entry that hardware does not update: empty, non-present or
    /// just taken.
    pub fn set(&mut self, index: usize, e: E<S>) {
        let old = self.get(index);
        debug_assert!(
            !old.is_present(Level::Pte) || old.pfn(Level::Pte) == e.pfn(Level::Pte),
            "a present entry is taken before it maps another frame"
        );
        self.let_readers_leave();
        S::Arch::set(self.view.table(), self.at(index), e, &self.tables.tlb());
        self.view.desc().count(i32::from(!e.is_none()) - i32::from(!old.is_none()));
    }
    /// Writes swap entries for consecutive slots, `e` the first of them, over `n` entries
    /// that hardware does not update (rule BATCH-17).
    ///
    /// # Panics
    ///
    /// If that leaves the table; in debug builds if the format has no such slots.
    pub fn set_swap(&mut self, index: usize, n: usize, e: E<S>) {
        for k in 0..n {
            match e.advance_swap(k as i64) {
                Some(e) => self.set(index + k, e),
                None => debug_assert!(false, "{e:?} has no successor {k}"),
            }
        }
    }
    /// Empties `n` entries that are not present.
    ///
    /// # Panics
    ///
    /// If that leaves the table.
    pub fn drop_nonpresent(&mut self, index: usize, n: usize) {
        for i in index..index + n {
            debug_assert!(!self.get(i).is_present(Level::Pte));
            self.set(i, E::<S>::NONE);
        }
    }
    /// Folds the block that ends at `index`, where the format has blocks and the entries
    /// allow it (rules CONT-03, CONT-04); whether it did. The caller knows that the pages
    /// of the block belong to one folio.
    pub fn fold(&mut self, index: usize) -> bool {
        S::Arch::fold(self.view.table(), self.at(index), &self.tables.tlb())
    }
    /// Takes one entry; `owed` grows if a CPU may hold the old value.
    pub fn take(&mut self, index: usize, owed: &mut Flush<'_, S::Tlb>) -> E<S> {
        let mut old = E::<S>::NONE;
        self.take_each::<Live>(index, 1, owed, |_, e| old = e);
        old
    }
    /// Takes `n` entries in ascending order and hands the old values to `each`,
    /// which gets the offset from `index`.
    pub fn take_each<L: Liveness>(
        &mut self,
        index: usize,
        n: usize,
        owed: &mut Flush<'_, S::Tlb>,
        mut each: impl FnMut(usize, E<S>),
    ) {
        if n == 0 {
            return;
        }
        let (mut gone, mut cached) = (0, false);
        S::Arch::take::<L, S::Tlb>(
            self.view.table(),
            self.at(index),
            n,
            &self.tables.tlb(),
            |k, e| {
                gone += i32::from(!e.is_none());
                cached |= e.may_be_cached(true, Level::Pte);
                each(k, e);
            },
        );
        self.took |= S::Arch::WORDS > 1 && gone > 0;
        self.view.desc().count(-gone);
        self.owe(cached && !mm_sync::mutant!("pgtable.take.no_flush"), index, n, owed);
    }
    /// Takes the present entries of `run`; the first of them. `each` gets the first, and
    /// those that say something else than the one before: of a run these are few.
    pub(crate) fn take_run(
        &mut self,
        run: Run<'_>,
        owed: &mut Flush<'_, S::Tlb>,
        mut each: impl FnMut(E<S>),
    ) -> E<S> {
        let (index, n) = (run.first(), run.nr());
        let (at, tlb, mut cached) = (self.at(index), self.tables.tlb(), false);
        let first = S::Arch::take_run(self.view.table(), at, n, &tlb, |e| {
            debug_assert!(e.is_present(Level::Pte), "a run of {e:?}");
            cached |= e.may_be_cached(true, Level::Pte);
            each(e);
        });
        self.took |= S::Arch::WORDS > 1;
        self.view.desc().count(-(n as i32));
        self.owe(cached && !mm_sync::mutant!("pgtable.take.no_flush"), index, n, owed);
        first
    }
    /// Takes the run that starts with `head`, the value at `index`: what
    /// [`run`](View::run) finds, found and emptied at once; how many entries it has. They stay
    /// gone, so an accessed bit that hardware sets just now may be missing. `each` gets those that
    /// say something else than the one before, the first if it has changed meanwhile.
    #[inline]
    pub fn take_while<const MODE: u8>(
        &mut self,
        index: usize,
        head: E<S>,
        limit: BatchLimit,
        owed: &mut Flush<'_, S::Tlb>,
        mut each: impl FnMut(E<S>),
    ) -> usize {
        const { assert!(MODE & respect::DIRTY == 0, "hardware may end the run meanwhile") };
        debug_assert!(head.is_leaf(Level::Pte), "a run of {head:?}");
        let max = limit.get().min(S::Arch::nr_entries(Level::Pte) - index);
        let (at, tlb) = (self.at(index), self.tables.tlb());
        let mut cached = head.may_be_cached(true, Level::Pte);
        let n = S::Arch::take_while::<MODE, S::Tlb>(self.view.table(), at, head, max, &tlb, |e| {
            cached |= e.may_be_cached(true, Level::Pte);
            each(e);
        });
        self.took |= S::Arch::WORDS > 1;
        self.view.desc().live().used();
        self.view.desc().count(-(n as i32));
        self.owe(cached && !mm_sync::mutant!("pgtable.take.no_flush"), index, n, owed);
        n
    }
    fn owe(&self, yes: bool, index: usize, n: usize, owed: &mut Flush<'_, S::Tlb>) {
        debug_assert_eq!(owed.space(), self.tables.id(), "an obligation of another space");
        if yes && let Some(range) = self.range_of(index, n) {
            owed.add(range, FlushScope::Leaves);
        }
    }
    /// Takes the entries of `run`, to be committed or restored.
    pub fn clear<'t>(
        &'t mut self,
        run: Run<'_>,
        owed: &mut Flush<'_, S::Tlb>,
    ) -> ClearedRun<'t, 'g, S> {
        ClearedRun::clear(self, run, owed)
    }
    /// Write-protects `n` present entries, keeping dirty (rule ACC-11).
    pub fn wrprotect(&mut self, index: usize, n: usize, owed: &mut Flush<'_, S::Tlb>) {
        if n == 0 {
            return;
        }
        S::Arch::wrprotect(self.view.table(), self.at(index), n, &self.tables.tlb());
        self.owe(true, index, n, owed);
    }
    /// Clears young in `n` present entries; whether any was. Never flushes: a
    /// stale accessed bit can only mis-age a page (rule REF-13).
    pub fn clear_young(&mut self, index: usize, n: usize) -> bool {
        n > 0 && S::Arch::clear_young(self.view.table(), self.at(index), n, &self.tables.tlb())
    }
    /// Makes a present entry more permissive: adds accessed, dirty and write of
    /// `e`. Whether anything changed. Needs no flush (rule WREUSE-15).
    pub fn set_access_flags(&mut self, index: usize, e: E<S>) -> bool {
        S::Arch::set_access_flags(self.view.table(), self.at(index), e, &self.tables.tlb())
    }
    /// Writes entries that were taken under this lock back as they were, `old` from `index`
    /// on; stretches that map consecutive frames with equal flags in one step each.
    pub fn put_back(&mut self, index: usize, old: &[E<S>]) {
        let mut k = 0;
        while let Some(&first) = old.get(k) {
            let follows = |(i, e): &(usize, &E<S>)| {
                first.is_leaf(Level::Pte) && **e == first.advance(*i as u64 + 1, Level::Pte)
            };
            let n = 1 + old[k + 1..].iter().enumerate().take_while(follows).count();
            self.restore(index + k, n, first);
            k += n;
        }
    }
    /// Rewrites the entries of `run` through `change`, which sees the first
    /// entry with young and dirty of all merged in, and answers for the first
    /// entry; the others follow it frame by frame (rules ACC-15, ACC-16).
    ///
    /// The run was scanned with `WRITE | SOFT_DIRTY` respected, so that only
    /// young and dirty are smeared. Between take and write-back hardware and
    /// lockless readers see empty entries. An empty answer leaves the run empty.
    pub fn modify(
        &mut self,
        run: Run<'_>,
        owed: &mut Flush<'_, S::Tlb>,
        change: impl FnOnce(E<S>) -> E<S>,
    ) {
        let (old, new) = self.rewrite(run, change);
        self.owe(old.owes_flush(new, Level::Pte), run.first(), run.nr(), owed);
    }
    /// As [`modify`](Self::modify), for a change of present entries that only permits
    /// more: it owes no flush. A CPU with an old translation faults and finds the new
    /// entry (rules WREUSE-15, FAULT-05).
    ///
    /// # Panics
    ///
    /// If `change` does: then the entries are gone.
    pub fn upgrade(&mut self, run: Run<'_>, change: impl FnOnce(E<S>) -> E<S>) {
        let (old, new) = self.rewrite_present(run, change);
        debug_assert!(
            old.pfn(Level::Pte) == new.pfn(Level::Pte)
                && (new.is_writable(Level::Pte) || !old.is_writable(Level::Pte))
                && (new.is_dirty() || !old.is_dirty()),
            "{old:?} became {new:?}"
        );
    }
    /// As [`upgrade`](Self::upgrade), and makes the entries clean, so that they show
    /// whether a store comes. `keep_dirt` is called if one was dirty, before the
    /// entries are back: dirt moves, it is never lost (rule FOLIO-45).
    ///
    /// It owes no flush either: no CPU stores by a translation of a read-only
    /// entry, so the first store looks at the new one and marks it.
    pub fn upgrade_clean(
        &mut self,
        run: Run<'_>,
        keep_dirt: impl FnOnce(),
        change: impl FnOnce(E<S>) -> E<S>,
    ) {
        let (old, new) = self.rewrite_present(run, |old| {
            if old.is_dirty() && !mm_sync::mutant!("pgtable.upgrade.lose_dirt") {
                keep_dirt();
            }
            change(old.mkclean())
        });
        debug_assert!(
            old.pfn(Level::Pte) == new.pfn(Level::Pte)
                && !old.is_writable(Level::Pte)
                && new.is_writable(Level::Pte),
            "{old:?} became {new:?}"
        );
    }
    /// Takes a run and writes it back changed; the first entry before and after.
    fn rewrite(&mut self, run: Run<'_>, change: impl FnOnce(E<S>) -> E<S>) -> (E<S>, E<S>) {
        let mut scratch = self.tables.tlb().obligation();
        let mut old = self.take_merged(run, &mut scratch);
        if mm_sync::mutant!("pgtable.modify.lose_dirty") {
            old = old.mkclean();
        }
        let new = change(old);
        // The flush is owed only if the *change* needs one. A change that
        // panicked leaves the run empty, and `scratch` flushes it.
        scratch.already_done();
        self.restore(run.first(), run.nr(), new);
        (old, new)
    }
    /// As `rewrite`, for a change after which all entries are still there and that
    /// no CPU needs to hear of: nothing is counted and nothing is owed.
    fn rewrite_present(&mut self, run: Run<'_>, change: impl FnOnce(E<S>) -> E<S>) -> (E<S>, E<S>) {
        let (mut young, mut dirty) = (false, false);
        let (at, tlb) = (self.at(run.first()), self.tables.tlb());
        let first = S::Arch::take_run(self.view.table(), at, run.nr(), &tlb, |e| {
            debug_assert!(e.is_present(Level::Pte));
            young |= e.is_young();
            dirty |= e.is_dirty();
        });
        self.took |= S::Arch::WORDS > 1;
        let old = merge(first, young, dirty);
        let new = change(old);
        self.let_readers_leave();
        S::Arch::fill(self.view.table(), run.first(), run.nr(), new);
        (old, new)
    }
    /// Takes a run; the first entry with young and dirty of all merged in.
    pub(crate) fn take_merged(&mut self, run: Run<'_>, owed: &mut Flush<'_, S::Tlb>) -> E<S> {
        let mut first = E::<S>::NONE;
        let (mut young, mut dirty) = (false, false);
        self.take_each::<Live>(run.first(), run.nr(), owed, |k, e| {
            if k == 0 {
                first = e;
            }
            young |= e.is_young();
            dirty |= e.is_dirty();
        });
        merge(first, young, dirty)
    }
    /// Writes `e, e+1, …` over entries that were taken under this lock.
    pub(crate) fn restore(&mut self, index: usize, n: usize, e: E<S>) {
        // The empty entry has no successors: frame by frame it would become
        // something else.
        if e.is_none() {
            return;
        }
        self.let_readers_leave();
        S::Arch::fill(self.view.table(), index, n, e);
        self.view.desc().count(n as i32);
    }
}

/// `e` with young and dirty added. Merging dirty must not turn a shadow-stack
/// entry into a read-only one, nor invent soft-dirty (rules ACC-08, SHSTK-06).
pub(crate) fn merge<En: Entry>(e: En, young: bool, dirty: bool) -> En {
    let mut e = e;
    if dirty && !e.is_dirty() {
        let soft = e.is_soft_dirty();
        e = e.mkdirty();
        if !soft {
            e = e.clear_soft_dirty();
        }
    }
    if young { e.mkyoung() } else { e }
}

/// A PMD table with its lock held, and the entry of one address in it.
pub struct LockedPmd<'g, S: TableSpace> {
    tables: &'g PageTables<S>,
    view: View<'g, S, Held>,
    _guard: LockGuard<'g, S::PtLock>,
    index: usize,
    // As in `LockedTable`.
    took: bool,
}

impl<S: TableSpace> core::fmt::Debug for LockedPmd<'_, S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LockedPmd").field("view", &self.view).field("index", &self.index).finish()
    }
}

impl<'g, S: TableSpace> LockedPmd<'g, S> {
    pub(crate) fn new(
        tables: &'g PageTables<S>,
        view: View<'g, S, Held>,
        guard: LockGuard<'g, S::PtLock>,
        index: usize,
    ) -> Self {
        LockedPmd { tables, view, _guard: guard, index, took: false }
    }
    /// The address space.
    #[inline]
    pub fn tables(&self) -> &'g PageTables<S> {
        self.tables
    }
    /// The table.
    #[inline]
    pub fn view(&self) -> &View<'g, S, Held> {
        &self.view
    }
    /// The entry.
    #[inline]
    pub fn entry(&self) -> E<S> {
        self.view.get(self.index)
    }
    /// Index and first address of the entry.
    #[inline]
    pub fn at(&self) -> At {
        self.view.at(self.index)
    }
    /// The range that the entry maps.
    pub fn range(&self) -> Option<VirtRange> {
        VirtRange::new(self.at().va, 1 << S::Arch::shift(self.view.level())).ok()
    }
    /// Whether `va` is mapped through an entry of the same, locked, table.
    pub fn covers(&self, va: VirtAddr) -> bool {
        let bytes = (S::Arch::nr_entries(Level::Pmd) as u64) << S::Arch::shift(Level::Pmd);
        va.get().wrapping_sub(self.view.va_of(0).get()) < bytes
    }
    /// Goes on with the entry of `va`, which the table [`covers`](Self::covers).
    pub fn retarget(&mut self, va: VirtAddr) {
        debug_assert!(self.covers(va), "{va} is in another table");
        self.index = self.view.index_of(va);
    }
    /// Replaces the entry by exchange and returns the old one; `owed` grows if
    /// a CPU may hold it. On formats of several words per entry readers see an
    /// empty one in between, and are waited for.
    ///
    /// # Panics
    ///
    /// If `e` points to a table, which every walker would follow: see
    /// [`link`](Self::link).
    pub fn swap(&mut self, e: E<S>, owed: &mut Flush<'_, S::Tlb>) -> E<S> {
        assert!(
            e.as_table(self.view.level()).is_none(),
            "{e:?} is not for `swap`: it links a table"
        );
        self.exchange(e, owed)
    }
    /// Links the table in `frame`, as [`swap`](Self::swap) replaces the entry.
    ///
    /// # Safety
    ///
    /// `frame` holds a table of the level below, from this space's memory. Nothing else
    /// links it, it is not deposited, and it is not freed while it is linked.
    pub unsafe fn link(&mut self, frame: TableFrame, owed: &mut Flush<'_, S::Tlb>) -> E<S> {
        self.exchange(E::<S>::table(frame, self.view.level()), owed)
    }
    fn exchange(&mut self, e: E<S>, owed: &mut Flush<'_, S::Tlb>) -> E<S> {
        debug_assert_eq!(owed.space(), self.tables.id(), "an obligation of another space");
        let (table, index) = (self.view.table(), self.index);
        let old = if S::Arch::WORDS > 1 && !e.is_none() {
            // Lockless readers see nothing for a moment, and no mixture.
            let old = S::Arch::swap_upper(table, index, E::<S>::NONE);
            if core::mem::take(&mut self.took) || !old.is_none() {
                self.tables.let_readers_leave();
            }
            S::Arch::swap_upper(table, index, e);
            old
        } else {
            S::Arch::swap_upper(table, index, e)
        };
        self.took |= S::Arch::WORDS > 1 && e.is_none() && !old.is_none();
        self.view.desc().count(i32::from(!e.is_none()) - i32::from(!old.is_none()));
        let level = self.view.level();
        let was_table = old.as_table(level).is_some();
        if (was_table || old.is_leaf(level) && old.owes_flush(e, level))
            && let Some(range) = self.range()
        {
            owed.add(range, if was_table { FlushScope::Tables } else { FlushScope::Leaves });
        }
        old
    }
    /// Write-protects a present leaf atomically.
    pub fn wrprotect(&mut self, owed: &mut Flush<'_, S::Tlb>) {
        S::Arch::wrprotect_upper(self.view.table(), self.index);
        if let Some(range) = self.range() {
            owed.add(range, FlushScope::Leaves);
        }
    }
    /// Adds accessed, dirty and write of `e` to a present leaf.
    pub fn set_access_flags(&mut self, e: E<S>) -> bool {
        S::Arch::set_access_flags_upper(self.view.table(), self.index, e)
    }
    /// Keeps an empty, unlinked PTE table for the day this leaf is split.
    ///
    /// # Safety
    ///
    /// `frame` came from this space's memory, is not freed, and is the caller's
    /// alone: neither linked nor deposited.
    pub unsafe fn deposit(&mut self, frame: TableFrame) {
        // SAFETY: allocated and nobody else's (caller).
        let desc = unsafe { self.tables.space().tables().desc(frame).as_ref() };
        self.view.desc().push_deposit(frame, desc);
    }
    /// Takes a deposited table back.
    pub fn withdraw(&mut self) -> Option<TableFrame> {
        let frame = self.view.desc().first_deposit()?;
        // SAFETY: a deposited frame is unlinked and not freed before it is
        // withdrawn.
        let desc = unsafe { self.tables.space().tables().desc(frame).as_ref() };
        self.view.desc().pop_deposit(desc);
        Some(frame)
    }
    /// Fills an unlinked table with `n` entries from `e` on, before it is linked.
    ///
    /// # Panics
    ///
    /// If `n` exceeds the table.
    ///
    /// # Safety
    ///
    /// As for [`deposit`](Self::deposit).
    pub unsafe fn fill_unlinked(&mut self, frame: TableFrame, n: usize, e: E<S>) {
        // SAFETY: allocated and nobody else's (caller).
        let (table, desc) = unsafe {
            let t = self.tables.space().tables();
            (t.table(frame).as_ref(), t.desc(frame).as_ref())
        };
        S::Arch::fill(table, 0, n, e);
        desc.count(n as i32);
    }
    /// Writes one empty entry of an unlinked table, before it is linked: where
    /// the entries are not a run (all of them the zero page).
    ///
    /// # Panics
    ///
    /// If `index` exceeds the table.
    ///
    /// # Safety
    ///
    /// As for [`deposit`](Self::deposit).
    pub unsafe fn set_unlinked(&mut self, frame: TableFrame, index: usize, e: E<S>) {
        // SAFETY: allocated and nobody else's (caller).
        let (table, desc) = unsafe {
            let t = self.tables.space().tables();
            (t.table(frame).as_ref(), t.desc(frame).as_ref())
        };
        S::Arch::fill(table, index, 1, e);
        desc.count(1);
    }
}

/// A PUD table with its lock held, and the entry of one address in it.
///
/// For leaves at that level. Whoever made one takes it away again: nothing of this crate
/// makes, splits or clears them, and [`lock_entry`](PageTables::lock_entry) passes over
/// them as over a hole.
#[derive(Debug)]
pub struct LockedPud<'g, S: TableSpace>(LockedPmd<'g, S>);

impl<'g, S: TableSpace> LockedPud<'g, S> {
    /// `locked` is about an entry of a PUD table.
    pub(crate) fn new(locked: LockedPmd<'g, S>) -> Self {
        debug_assert_eq!(locked.view.level(), Level::Pud);
        LockedPud(locked)
    }
    /// The entry.
    #[inline]
    pub fn entry(&self) -> E<S> {
        self.0.entry()
    }
    /// Index and first address of the entry.
    #[inline]
    pub fn at(&self) -> At {
        self.0.at()
    }
    /// Puts a leaf in the place of an empty entry or of another leaf, or takes one away, by
    /// exchange; returns the old entry. `owed` grows if a CPU may hold it.
    ///
    /// # Errors
    ///
    /// If there is a table: then nothing is changed.
    ///
    /// # Panics
    ///
    /// If `e` points to a table.
    pub fn swap_leaf(
        &mut self,
        e: E<S>,
        owed: &mut Flush<'_, S::Tlb>,
    ) -> Result<E<S>, TableInTheWay> {
        if self.entry().as_table(Level::Pud).is_some() {
            return Err(TableInTheWay);
        }
        Ok(self.0.swap(e, owed))
    }
}

/// A table stands where a leaf was to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableInTheWay;
