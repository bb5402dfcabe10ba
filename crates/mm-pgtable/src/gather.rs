//! What was unmapped, parked until nobody can reach it.

use crate::{PageTables, TableMemory, TableSpace};
use mm_arch::{Flush, FlushScope, TableFrame, VirtRange};
use mm_sync::Quiescence;

/// Items parked before a gather flushes on its own.
const PARKED: usize = 32;
/// Tables parked before a gather flushes on its own.
const TABLES: usize = 16;

/// Collects what an unmapping operation took out of the tables: a flush
/// obligation, items of type `T` (references to folios, given back by dropping
/// them), and unlinked page tables.
///
/// Nothing parked is let go before the flush that covers it: items are dropped
/// behind the flush, tables are retired to the quiescence domain behind it
/// (rules ZAP-03, ZAP-05; contract: frames and tables stay parked until the
/// flush is acknowledged). No allocation: a full gather flushes.
pub struct Gather<'g, S: TableSpace, T> {
    tables: &'g PageTables<S>,
    owed: Flush<'g, S::Tlb>,
    items: [Option<T>; PARKED],
    nr_items: usize,
    unlinked: [Option<TableFrame>; TABLES],
    nr_unlinked: usize,
}

impl<S: TableSpace, T> core::fmt::Debug for Gather<'_, S, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gather")
            .field("owed", &self.owed)
            .field("items", &self.nr_items)
            .field("tables", &self.nr_unlinked)
            .finish()
    }
}

impl<'g, S: TableSpace, T> Gather<'g, S, T> {
    /// An empty gather of `tables`.
    pub fn new(tables: &'g PageTables<S>) -> Self {
        Gather {
            tables,
            owed: tables.tlb().obligation(),
            items: [const { None }; PARKED],
            nr_items: 0,
            unlinked: [None; TABLES],
            nr_unlinked: 0,
        }
    }
    /// The flush obligation, for operations that add to it.
    pub fn owed(&mut self) -> &mut Flush<'g, S::Tlb> {
        &mut self.owed
    }
    /// Parks an item whose translations are covered by the obligation so far.
    pub fn park(&mut self, item: T) {
        if self.nr_items == PARKED {
            self.flush();
        }
        self.items[self.nr_items] = Some(item);
        self.nr_items += 1;
    }
    /// Parks a table that was just unlinked and that covered `range`. It is freed.
    ///
    /// # Safety
    ///
    /// `frame` holds a table of the gather's space, which the caller unlinked, and which
    /// nobody links, deposits or frees any more.
    pub unsafe fn park_table(&mut self, frame: TableFrame, range: VirtRange) {
        if self.nr_unlinked == TABLES {
            self.flush();
        }
        self.owed.add(range, FlushScope::Tables);
        self.unlinked[self.nr_unlinked] = Some(frame);
        self.nr_unlinked += 1;
    }
    /// Pays the flush, then lets everything parked go.
    ///
    /// The caller may hold page-table locks (a full gather calls it from
    /// [`park`](Self::park)) but no quiescence guard.
    pub fn flush(&mut self) {
        if mm_sync::mutant!("gather.free_before_flush") {
            self.let_go();
        }
        self.owed.pay();
        self.let_go();
    }
    fn let_go(&mut self) {
        for item in &mut self.items[..self.nr_items] {
            *item = None;
        }
        self.nr_items = 0;
        for frame in &mut self.unlinked[..self.nr_unlinked] {
            if let Some(frame) = frame.take() {
                retire(self.tables.space(), frame);
            }
        }
        self.nr_unlinked = 0;
    }
    /// Flushes and ends.
    pub fn finish(self) {}
}

impl<S: TableSpace, T> Drop for Gather<'_, S, T> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Frees an unlinked, flushed table once every lockless walker has left.
pub(crate) fn retire<S: TableSpace>(space: &S, frame: TableFrame) {
    let free = {
        let space = space.clone();
        move || {
            // SAFETY: every table that reaches `retire` came from this memory
            // and is still allocated.
            unsafe { space.tables().desc(frame).as_ref() }.live().retired();
            // SAFETY: unlinked and flushed by the caller; the quiescence domain
            // says that no walker is left.
            unsafe { space.tables().free(frame) }
        }
    };
    if mm_sync::mutant!("table.free_now") {
        return free();
    }
    space.epochs().retire(free);
}
