//! Entries that were taken and whose fate is not decided.

use crate::locked::merge;
use crate::{LockedTable, Run, TableSpace};
use mm_arch::{Arch, Entry, Flush, Level};

type E<S> = <<S as TableSpace>::Arch as Arch>::Entry;

/// A run of entries that was cleared: [`commit`](Self::commit) it or
/// [`restore`](Self::restore) it. Dropping it restores.
///
/// # Invariants
///
/// A restored entry never allows more than the entry it replaces did, and no
/// dirt is lost: if the entries of the run differed in write permission, all are
/// restored read-only; if they differed in soft-dirty, all are soft-dirty
/// (known fault: a restore gave every entry the head's write bit).
#[must_use = "dropping a cleared run maps it again"]
pub struct ClearedRun<'t, 'g, S: TableSpace> {
    table: &'t mut LockedTable<'g, S>,
    first: usize,
    nr: usize,
    entry: E<S>,
    decided: bool,
}

impl<S: TableSpace> core::fmt::Debug for ClearedRun<'_, '_, S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ClearedRun")
            .field("first", &self.first)
            .field("nr", &self.nr)
            .field("entry", &self.entry)
            .finish()
    }
}

impl<'t, 'g, S: TableSpace> ClearedRun<'t, 'g, S> {
    pub(crate) fn clear(
        table: &'t mut LockedTable<'g, S>,
        run: Run<'_>,
        owed: &mut Flush<'_, S::Tlb>,
    ) -> Self {
        let (mut young, mut dirty, mut soft, mut all_writable) = (false, false, false, true);
        let first = table.take_run(run, owed, |e| {
            young |= e.is_young();
            dirty |= e.is_dirty();
            soft |= e.is_soft_dirty();
            all_writable &= e.is_writable(Level::Pte);
        });
        let mut entry = merge(first, young, dirty);
        if !all_writable && !mm_sync::mutant!("pgtable.restore.widen") {
            entry = entry.wrprotect();
        }
        if soft {
            entry = entry.mksoft_dirty();
        }
        ClearedRun { table, first: run.first(), nr: run.nr(), entry, decided: false }
    }
    /// The first entry, with young and dirty of all merged in.
    pub fn entry(&self) -> E<S> {
        self.entry
    }
    /// Number of entries.
    pub fn nr(&self) -> usize {
        self.nr
    }
    /// The entries stay gone.
    pub fn commit(mut self) -> E<S> {
        self.decided = true;
        self.entry
    }
    /// The entries become `with(k)` by their number, which is nothing present: swap
    /// entries, markers.
    pub fn replace(mut self, mut with: impl FnMut(usize) -> E<S>) {
        self.decided = true;
        for k in 0..self.nr {
            let e = with(k);
            debug_assert!(!e.is_present(Level::Pte), "{e:?} maps a page");
            self.table.set(self.first + k, e);
        }
    }
    /// The entries come back.
    pub fn restore(self) {}
    /// The entries come back without write permission.
    pub fn restore_read_only(mut self) {
        self.entry = self.entry.wrprotect();
    }
}

impl<S: TableSpace> Drop for ClearedRun<'_, '_, S> {
    fn drop(&mut self) {
        if !self.decided {
            self.table.restore(self.first, self.nr, self.entry);
        }
    }
}
