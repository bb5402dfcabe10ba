//! Finding the entries that map a folio within one VMA.

use crate::split_pmd::{freeze_locked_pmd, split_locked_pmd};
use crate::{RmapPlatform, Visit};
use core::marker::PhantomData;
use mm_arch::{Arch, Entry, Level, NonPresent, Pfn, VirtAddr, VirtRange};
use mm_folio::Folio;
use mm_pgtable::{BatchLimit, LockedEntry, LockedPmd, LockedTable, SpanKind, Step, TablesStay};
use mm_vma::{Event, Mm, Observer, Platform};

mod seal {
    pub trait Sealed {}
    impl Sealed for super::Strict {}
    impl Sealed for super::Peek {}
}

/// Locks a table before it looks, and waits for whoever has taken an entry and
/// not yet counted it out: what such a walk does not find is not mapped.
#[derive(Clone, Copy, Debug)]
pub enum Strict {}
/// Looks first and locks what seems to be worth it: an entry that is being
/// changed may be overlooked.
#[derive(Clone, Copy, Debug)]
pub enum Peek {}
/// How a [`MappedWalk`] looks; sealed, see [`Strict`] and [`Peek`].
pub trait Lookup: seal::Sealed {
    /// Whether every table is locked before it is read (rules PVMW-05, PVMW-06).
    const STRICT: bool;
}
impl Lookup for Strict {
    const STRICT: bool = true;
}
impl Lookup for Peek {
    const STRICT: bool = false;
}

/// Which entries a [`MappedWalk`] looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// Those that map the folio, device memory included.
    Mappings,
    /// Those that stand for it while it is moved.
    Migration,
}

/// An entry that was found, its table locked until the walk goes on.
#[derive(Debug)]
pub enum Hit<'w, 'g, P: Platform> {
    /// A PMD entry.
    Pmd(&'w mut LockedPmd<'g, P>),
    /// An entry of a PTE table.
    Pte(PteHit<'w, 'g, P>),
}

/// A PTE that maps a page of the folio.
#[derive(Debug)]
pub struct PteHit<'w, 'g, P: Platform> {
    /// The table, locked.
    pub table: &'w mut LockedTable<'g, P>,
    /// The entry's index in it.
    pub index: usize,
    /// The entry's value.
    pub entry: <P::Arch as Arch>::Entry,
    /// The page of the folio that the entry maps. It comes from the entry, not
    /// from the address (rule PVMW-07).
    pub page: u32,
    /// The most entries from here on that belong to this walk, table and folio.
    pub limit: BatchLimit,
}

enum Place<'g, P: Platform> {
    Nowhere,
    Pmd(LockedPmd<'g, P>),
    /// The table that covers `next`, or the entry before it.
    Table(LockedTable<'g, P>),
}

/// The entries that map a folio within one VMA, in ascending order.
///
/// A lending iterator: a hit borrows the walk, whose lock is held until it goes
/// on or is dropped (rules PVMW-01, PVMW-11). A caller that dealt with a run of
/// `k` entries says so with [`consumed`](Self::consumed).
///
/// ```
/// # use mm_rmap::{Hit, MappedWalk, RmapPlatform, Seek, Strict, Visit};
/// # use mm_arch::respect;
/// # fn nr_mapped<P: RmapPlatform>(mm: &mm_vma::Mm<P>, visit: Visit<'_>, folio: mm_folio::Folio<'_, P>) -> usize {
/// let mut walk = MappedWalk::<P, Strict>::new(mm, &visit, folio, Seek::Mappings);
/// let mut nr = 0;
/// while let Some(hit) = walk.next_hit() {
///     match hit {
///         Hit::Pmd(_) => nr += 1,
///         Hit::Pte(at) => {
///             let n = at.table.run::<{ respect::NOTHING }>(at.index, at.entry, at.limit).nr();
///             walk.consumed(n);
///             nr += n;
///         }
///     }
/// }
/// # nr
/// # }
/// ```
pub struct MappedWalk<'g, P: Platform, L: Lookup = Strict> {
    mm: &'g Mm<P>,
    stay: TablesStay<'g>,
    head: Pfn,
    nr_pages: u64,
    seek: Seek,
    place: Place<'g, P>,
    /// The next address to look at, and the number of pages from there on.
    next: VirtAddr,
    left: u64,
    /// Where the last hit was, for a restart.
    hit: (VirtAddr, u64),
    crossed: bool,
    _lookup: PhantomData<L>,
}

impl<P: Platform, L: Lookup> core::fmt::Debug for MappedWalk<'_, P, L> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MappedWalk")
            .field("head", &self.head)
            .field("next", &self.next)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl<'g, P: RmapPlatform, L: Lookup> MappedWalk<'g, P, L> {
    /// A walk over the part of the VMA that `visit` says, in `mm`.
    pub fn new(mm: &'g Mm<P>, visit: &Visit<'g>, folio: Folio<'_, P>, seek: Seek) -> Self {
        Self::over(
            mm,
            visit.stay,
            visit.va,
            visit.nr_pages,
            (folio.head(), u64::from(folio.nr_pages())),
            seek,
        )
    }
    /// A walk over `nr` pages from `va` on, for entries that map one of
    /// the `frames` (first, number).
    pub fn over(
        mm: &'g Mm<P>,
        stay: TablesStay<'g>,
        va: VirtAddr,
        nr: u64,
        frames: (Pfn, u64),
        seek: Seek,
    ) -> Self {
        MappedWalk {
            mm,
            stay,
            head: frames.0,
            nr_pages: frames.1,
            seek,
            place: Place::Nowhere,
            next: va,
            left: nr,
            hit: (va, nr),
            crossed: false,
            _lookup: PhantomData,
        }
    }
    /// Address of the last hit.
    pub fn va(&self) -> VirtAddr {
        self.hit.0
    }
    /// Whether the walk has gone from one table to the next since it began
    /// (rule PVMW-08).
    pub fn crossed_table(&self) -> bool {
        self.crossed
    }

    fn skip(&mut self, nr: u64) {
        let nr = nr.min(self.left);
        self.next = self.next.add_units(nr, P::Arch::PAGE_SHIFT);
        self.left -= nr;
    }
    /// The caller has dealt with `k` entries, the last hit being the first of
    /// them. Entries that it emptied need not be counted (rule PVMW-09).
    pub fn consumed(&mut self, k: usize) {
        self.skip((k as u64).saturating_sub(1));
    }
    /// Gives the lock back and looks at the address of the last hit again: after
    /// the caller changed the shape of the tables (rule PVMW-10).
    pub fn restart(&mut self) {
        self.place = Place::Nowhere;
        (self.next, self.left) = self.hit;
    }
    /// Splits the PMD leaf that was just hit, and goes on with its PTEs.
    pub fn split_pmd(&mut self) {
        if let Place::Pmd(locked) = core::mem::replace(&mut self.place, Place::Nowhere) {
            split_locked_pmd(self.mm, locked);
            self.restart();
        }
    }
    /// As [`split_pmd`](Self::split_pmd); the PTEs of anonymous memory are migration entries,
    /// unless a page may be pinned.
    pub(crate) fn freeze_pmd(&mut self) {
        if let Place::Pmd(locked) = core::mem::replace(&mut self.place, Place::Nowhere) {
            freeze_locked_pmd(self.mm, locked);
            self.restart();
        }
    }

    /// The page of the folio that a PTE is about, if it is a hit.
    fn page_of(&self, e: <P::Arch as Arch>::Entry) -> Option<u32> {
        let pfn = self.frame_of(e, Level::Pte)?;
        let page = pfn.since(self.head);
        (page < self.nr_pages).then_some(page as u32)
    }
    fn frame_of(&self, e: <P::Arch as Arch>::Entry, level: Level) -> Option<Pfn> {
        let leaf = e.is_leaf(level);
        match (self.seek, if leaf { None } else { e.nonpresent(level) }) {
            (Seek::Mappings, _) if leaf => Some(e.pfn(level)),
            (Seek::Mappings, Some(NonPresent::Device { pfn, .. }))
            | (Seek::Migration, Some(NonPresent::Migration { pfn, .. })) => Some(pfn),
            _ => None,
        }
    }
    /// Whether the entry may be a hit, by a value that was read without a lock.
    fn is_candidate(&self, e: <P::Arch as Arch>::Entry) -> bool {
        !e.is_none() && self.frame_of(e, Level::Pte).is_some()
    }
    fn pmd_matches(&self, e: <P::Arch as Arch>::Entry) -> bool {
        let under = 1u64 << P::Arch::order(Level::Pmd);
        self.frame_of(e, Level::Pmd)
            .is_some_and(|pfn| pfn.since(self.head) < self.nr_pages || self.head.since(pfn) < under)
    }

    /// The next entry that maps the folio; `None` at the end, with no lock held.
    pub fn next_hit(&mut self) -> Option<Hit<'_, 'g, P>> {
        // At most one PMD entry maps a folio in one VMA (rule PVMW-02).
        if let Place::Pmd(_) = self.place {
            self.place = Place::Nowhere;
            self.left = 0;
        }
        loop {
            if self.left == 0 {
                self.place = Place::Nowhere;
                return None;
            }
            let found = match &self.place {
                Place::Table(table) => self.next_in_table(table),
                _ => {
                    self.descend();
                    if let Place::Pmd(_) = self.place {
                        break;
                    }
                    continue;
                }
            };
            match found {
                Ok((skipped, ..)) => {
                    self.skip(skipped);
                    break;
                }
                Err(skipped) => {
                    // The end of this table: the next address has another one.
                    self.skip(skipped);
                    self.place = Place::Nowhere;
                    self.crossed |= self.left > 0;
                }
            }
        }
        let (va, left) = (self.next, self.left);
        self.hit = (va, left);
        if let Place::Table(_) = self.place {
            self.skip(1);
        }
        let (head, nr_pages) = (self.head, self.nr_pages);
        match &mut self.place {
            Place::Pmd(locked) => Some(Hit::Pmd(locked)),
            Place::Table(table) => {
                let index = table.index_of(va);
                let entry = table.get(index);
                let page = match entry.nonpresent(Level::Pte) {
                    Some(NonPresent::Device { pfn, .. } | NonPresent::Migration { pfn, .. }) => pfn,
                    _ => entry.pfn(Level::Pte),
                }
                .since(head);
                let limit = table
                    .limit(index)
                    .at_most(usize::try_from(left).unwrap_or(usize::MAX))
                    .at_most((nr_pages - page) as usize);
                Some(Hit::Pte(PteHit { table, index, entry, page: page as u32, limit }))
            }
            Place::Nowhere => None,
        }
    }

    /// Entries of the locked table: the number to skip to the next hit, or the
    /// number that are left without one.
    fn next_in_table(&self, table: &LockedTable<'g, P>) -> Result<(u64, u32), u64> {
        let covered = table.va_of(0);
        let shift = P::Arch::shift(Level::Pmd);
        if covered != self.next.align_down(shift) {
            return Err(0);
        }
        let first = table.index_of(self.next);
        let nr = (P::Arch::nr_entries(Level::Pte) - first) as u64;
        let nr = nr.min(self.left);
        (0..nr).find_map(|k| Some((k, self.page_of(table.get(first + k as usize))?))).ok_or(nr)
    }

    /// Finds and locks what covers `next`, or skips what certainly maps nothing.
    fn descend(&mut self) {
        // Only of a hole it matters how far it goes.
        if L::STRICT && !mm_sync::mutant!("rmap.walk.not_strict") && self.lock_here() {
            return;
        }
        let tables = self.mm.tables();
        let range = VirtRange::units(self.next, self.left, P::Arch::PAGE_SHIFT);
        let Ok(range) = range else {
            // A VMA never passes the end of the address space.
            self.left = 0;
            return;
        };
        let span = tables.span(self.stay, range);
        let pages = span.range.nr(P::Arch::PAGE_SHIFT);
        match span.kind {
            SpanKind::Hole => {
                if L::STRICT
                    && self.nr_pages >= 1 << P::Arch::order(Level::Pmd)
                    && let Some(locked) = tables.lock_pmd(self.stay, self.next)
                {
                    self.count_lock();
                    if !locked.entry().is_none() {
                        // Somebody was between taking the leaf and counting it out,
                        // or is back: look again (rule PVMW-05).
                        return;
                    }
                }
                self.skip(pages);
            }
            SpanKind::Table if !L::STRICT || mm_sync::mutant!("rmap.walk.not_strict") => {
                let skipped = self.peek(pages);
                self.skip(skipped);
                if skipped == pages {
                    self.crossed |= self.left > 0;
                } else {
                    // Gone meanwhile: the next round skips it.
                    let _ = self.lock_here();
                }
            }
            // As above.
            SpanKind::Huge | SpanKind::Table => {
                let _ = self.lock_here();
            }
        }
    }
    /// How many of the next `pages` entries are certainly no hit, by a look
    /// without a lock (rule PVMW-06).
    fn peek(&self, pages: u64) -> u64 {
        let guard = self.mm.tables().pin();
        match guard.walk(self.next) {
            Step::Table(_, view) => {
                let first = view.index_of(self.next);
                (0..pages)
                    .find(|k| self.is_candidate(view.get(first + *k as usize)))
                    .unwrap_or(pages)
            }
            // It has just changed: the lock will tell.
            _ => 0,
        }
    }
    fn count_lock(&self) {
        self.mm.platform().observer().event(Event::Locks, 1);
    }
    /// Locks what covers `next`; whether there is anything.
    fn lock_here(&mut self) -> bool {
        match self.mm.tables().lock_entry(self.stay, self.next) {
            LockedEntry::Table(table) => {
                self.count_lock();
                self.place = Place::Table(table);
                true
            }
            LockedEntry::Huge(locked) => {
                self.count_lock();
                // The value is the one under the lock (rule PVMW-04).
                if self.pmd_matches(locked.entry()) {
                    self.place = Place::Pmd(locked);
                } else {
                    self.left = 0;
                }
                true
            }
            LockedEntry::Hole => false,
        }
    }
}
