//! Lockless walks.

use crate::{PageTables, TableSpace, View};
use mm_arch::{Arch, Entry, Level, Pinned, VirtAddr};
use mm_sync::Quiescence;

/// An upper-level entry as it was read, and where.
#[derive(Debug)]
pub struct Slot<'g, S: TableSpace> {
    view: View<'g, S, Pinned>,
    index: usize,
    entry: <S::Arch as Arch>::Entry,
}

impl<S: TableSpace> Clone for Slot<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: TableSpace> Copy for Slot<'_, S> {}

impl<S: TableSpace> Slot<'_, S> {
    /// The value read.
    #[inline]
    pub fn entry(&self) -> <S::Arch as Arch>::Entry {
        self.entry
    }
    /// The level of the entry.
    #[inline]
    pub fn level(&self) -> Level {
        self.view.level()
    }
    /// The first address that the entry maps.
    #[inline]
    pub fn va(&self) -> VirtAddr {
        self.view.va_of(self.index)
    }
    /// Whether the entry still has the value read, accessed and dirty included
    /// (rule GUPF-13). Ordered behind the caller's full barrier.
    #[inline]
    pub fn is_unchanged(&self) -> bool {
        self.view.upper(self.index) == self.entry
    }
}

/// Where a lockless descent ended.
#[derive(Debug)]
pub enum Step<'g, S: TableSpace> {
    /// No table and no leaf: empty, non-present or bad.
    Hole {
        /// Level of the entry that ended the descent.
        level: Level,
    },
    /// A leaf above PTE level.
    Leaf(Slot<'g, S>),
    /// A PTE table, and the PMD value it was found by.
    Table(Slot<'g, S>, View<'g, S, Pinned>),
}

/// A quiescence guard that belongs to one address space: while it lives, no page
/// table that a walk through it passes is freed.
///
/// Made by [`PageTables::pin`], so a walk cannot be covered by the guard of
/// another domain.
#[must_use = "tables may be freed as soon as the guard is dropped"]
pub struct WalkGuard<'t, S: TableSpace> {
    tables: &'t PageTables<S>,
    _guard: <S::Epochs as Quiescence>::Guard<'t>,
}

impl<S: TableSpace> core::fmt::Debug for WalkGuard<'_, S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "WalkGuard({:?})", self.tables.id())
    }
}

impl<S: TableSpace> PageTables<S> {
    /// Enters a read section for lockless walks of this space. Nobody waits for
    /// a lock while holding one.
    #[inline]
    pub fn pin(&self) -> WalkGuard<'_, S> {
        WalkGuard { tables: self, _guard: self.space().epochs().pin() }
    }
}

impl<S: TableSpace> WalkGuard<'_, S> {
    /// Descends to `va` without locks. Each level is read once, and the child is
    /// found from the value read (rules ACC-03, GUPF-07).
    #[inline]
    pub fn walk<'g>(&'g self, va: VirtAddr) -> Step<'g, S> {
        let mut base = VirtAddr::new(0);
        let mut frame = self.tables.root();
        let mut slot = None;
        for level in S::Arch::LEVELS.iter().copied() {
            // SAFETY: `frame` was read from a table of this space under the
            // guard, which delays its free (contract of `Quiescence`); the
            // right is `Pinned`.
            let view: View<'g, S, Pinned> =
                unsafe { View::new(self.tables.space(), frame, level, base) };
            if level == Level::Pte {
                return match slot {
                    Some(slot) => Step::Table(slot, view),
                    None => Step::Hole { level },
                };
            }
            let index = view.index_of(va);
            let entry = view.upper(index);
            let here = Slot { view, index, entry };
            match entry.as_table(level) {
                Some(next) => frame = next,
                None if entry.is_leaf(level) => return Step::Leaf(here),
                None => return Step::Hole { level },
            }
            base = view.va_of(index);
            slot = Some(here);
        }
        Step::Hole { level: Level::Pte }
    }
}
