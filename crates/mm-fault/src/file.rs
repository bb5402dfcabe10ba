//! Missing pages of mappings of files and of shared memory.
//!
//! A page is found or made by its object, locked, and asked whether it still
//! belongs to the object: truncation takes pages away under the same lock (race
//! F-RACE-37). Only then it is mapped, as a whole folio where that fits.

use crate::FaultOutcome;
use crate::FaultSignal;
use crate::dispatch::{E, Fault};
use crate::flags::Access;
use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, Pfn};
use mm_folio::{Exclusivity, Folio, FolioFlags, FolioLockGuard, FolioRef, FrameBytes, Get};
use mm_pgtable::{Ensured, LockedTable, PageTables};
use mm_rmap::RmapPlatform;
use mm_vma::{Backing, BackingError, BackingKind, PageRequest, RssKind, VmaFlags, mlock_mapped};

/// A page of the object, with a reference.
pub(crate) struct Found<'m, P: RmapPlatform> {
    pub own: FolioRef<'m, P, Get>,
    /// The page of the folio.
    pub page: u32,
    pub major: bool,
}

/// Consecutive entries of a table that may map consecutive pages of a folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// The first entry.
    pub index: usize,
    /// The first page.
    pub first: u32,
    pub nr: usize,
}

/// What mapping a page came to.
pub(crate) enum Mapped {
    /// It is mapped.
    Yes,
    /// Somebody else changed the entry: the access is made again.
    Changed,
    /// There is no memory for a table.
    NoMemory,
}

impl<'f, 'm, P: RmapPlatform> Fault<'f, 'm, P> {
    /// The entry was `seen`, empty or a marker of userfaultfd.
    pub(crate) fn backed(&self, backing: &dyn Backing, seen: E<P>) -> FaultOutcome {
        match self.access {
            Access::Write if self.vma.flags().contains(VmaFlags::SHARED) => {
                self.shared_fault(backing, seen)
            }
            Access::Write => self.cow_fault(backing, seen),
            Access::Read | Access::Unshare => self.read_fault(backing, seen),
        }
    }

    /// Index of the page of the fault in the object.
    pub(crate) fn file_index(&self) -> u64 {
        self.vma.linear_index(self.va)
    }

    /// The page of the fault, read or made if need be.
    pub(crate) fn find_page(&self, backing: &dyn Backing) -> Result<Found<'m, P>, FaultOutcome> {
        if let Some(asked) = self.asks_of_object(backing) {
            return Err(asked);
        }
        let request = PageRequest { index: self.file_index(), vma: self.vma, va: self.va };
        match backing.page(&request) {
            Ok(found) => {
                let page = found.page.first;
                Ok(Found { own: self.memmap().adopt_run(found.page), page, major: found.major })
            }
            Err(e) => Err(self.no_page(e)),
        }
    }
    pub(crate) fn no_page(&self, why: BackingError) -> FaultOutcome {
        match why {
            BackingError::PastEnd | BackingError::Io => {
                FaultOutcome::Signal(FaultSignal::Bus { va: self.va })
            }
            BackingError::NoMemory => FaultOutcome::Oom,
        }
    }
    /// Locks a page that was found. It may have left the object meanwhile: then
    /// the access is made again, and finds what is there now. One that has failed is
    /// dropped, if it can be read again into other memory, and lost otherwise.
    pub(crate) fn lock_page(
        &self,
        backing: &dyn Backing,
        found: &Found<'m, P>,
    ) -> Result<FolioLockGuard<'m, P>, FaultOutcome> {
        let lock = found.own.folio().lock();
        if mm_sync::mutant!("fault.file.no_mapping_check") {
            return Ok(lock);
        }
        self.belongs(backing, lock.folio(), found.page, self.file_index())?;
        if lock.folio().is_poisoned(found.page) {
            let again = !lock.folio().is_mapped() && backing.release(self.file_index());
            let lost = FaultOutcome::Signal(FaultSignal::Poisoned { va: self.va });
            return Err(if again { FaultOutcome::MINOR } else { lost });
        }
        Ok(lock)
    }
    /// Whether a locked folio is in the object, and its page `page` is the one at
    /// `index`, before the end.
    pub(crate) fn belongs(
        &self,
        backing: &dyn Backing,
        folio: Folio<'_, P>,
        page: u32,
        index: u64,
    ) -> Result<(), FaultOutcome> {
        if folio.file() != index.checked_sub(u64::from(page)).map(|first| (backing.id(), first)) {
            return Err(FaultOutcome::MINOR);
        }
        if index >= backing.nr_pages() {
            return Err(self.no_page(BackingError::PastEnd));
        }
        Ok(())
    }

    /// Rule FILE-01.
    fn read_fault(&self, backing: &dyn Backing, seen: E<P>) -> FaultOutcome {
        if seen.is_none() && self.fault_around(backing) {
            return FaultOutcome::MINOR;
        }
        let found = match self.find_page(backing) {
            Ok(found) => found,
            Err(outcome) => return outcome,
        };
        let lock = match self.lock_page(backing, &found) {
            Ok(lock) => lock,
            Err(outcome) => return outcome,
        };
        let major = found.major;
        let mapped = self.map_page(backing, found, seen);
        drop(lock);
        match mapped {
            Mapped::Yes => FaultOutcome::Done { major },
            Mapped::Changed => FaultOutcome::MINOR,
            Mapped::NoMemory => FaultOutcome::Oom,
        }
    }

    /// A store to a private mapping: a copy of the page, which nobody else has
    /// (rule FILE-06).
    fn cow_fault(&self, backing: &dyn Backing, seen: E<P>) -> FaultOutcome {
        let Ok(anon) = self.prepare_anon() else { return FaultOutcome::Oom };
        let Ok(new) = self.memmap().alloc(0) else { return FaultOutcome::Oom };
        let found = match self.find_page(backing) {
            Ok(found) => found,
            Err(outcome) => return outcome,
        };
        let lock = match self.lock_page(backing, &found) {
            Ok(lock) => lock,
            Err(outcome) => return outcome,
        };
        let copy = new.folio();
        let source = lock.folio().page(found.page);
        self.mm().platform().bytes().copy(copy.head(), source);
        self.set_up(copy, anon, self.va);
        let entry = self.maybe_dirty(E::<P>::leaf(copy.head(), self.prot(), Level::Pte).mkyoung());
        let tables: &'f PageTables<P> = self.tables();
        let mut table = match tables.ensure_table(self.stay(), self.va) {
            Ok(Ensured::Table(table)) => table,
            // Somebody mapped the whole block: the copy is made of that.
            Ok(Ensured::Huge(_)) => return FaultOutcome::MINOR,
            Err(_) => return FaultOutcome::Oom,
        };
        let index = table.index_of(self.va);
        if table.get(index) != seen {
            return FaultOutcome::MINOR;
        }
        table.settle_dropped();
        self.mm().counters().add(RssKind::Anon, 1);
        copy.add_new_anon(self.mm().id(), Level::Pte, Exclusivity::Exclusive);
        copy.enlist();
        mlock_mapped(self.vma.flags(), copy, 1);
        new.hand_over();
        table.set(index, self.keeping_mark(entry, seen));
        drop(table);
        let major = found.major;
        drop(lock);
        FaultOutcome::Done { major }
    }

    /// Maps a found page, whose folio is locked and in the object: by a PMD entry
    /// or all of the folio where that fits, the one page otherwise (rule FILE-05).
    pub(crate) fn map_page(
        &self,
        backing: &dyn Backing,
        found: Found<'m, P>,
        seen: E<P>,
    ) -> Mapped {
        let Found { mut own, page, .. } = found;
        let folio = own.folio();
        if seen.is_none() && self.fits_pmd(backing, folio, page) {
            match self.map_by_pmd(own) {
                Ok(mapped) => return mapped,
                Err(again) => own = again,
            }
        }
        let tables: &'f PageTables<P> = self.tables();
        let mut table = match tables.ensure_table(self.stay(), self.va) {
            Ok(Ensured::Table(table)) => table,
            Ok(Ensured::Huge(_)) => return Mapped::Changed,
            Err(_) => return Mapped::NoMemory,
        };
        let index = table.index_of(self.va);
        if table.get(index) != seen {
            return Mapped::Changed;
        }
        let extent = self
            .whole(&table, backing, folio, page, index)
            .filter(|x| table.none_run(x.index, table.limit(x.index).at_most(x.nr)) == x.nr)
            .unwrap_or(Extent { index, first: page, nr: 1 });
        let more = extent.nr as u32 - 1;
        if more > 0 && own.grow(more).is_err() {
            return Mapped::NoMemory;
        }
        own.hand_over();
        self.map_extent(&mut table, folio, extent, seen);
        Mapped::Yes
    }

    /// Writes entries for the pages of `extent`, whose references are taken: counts
    /// first.
    pub(crate) fn map_extent(
        &self,
        table: &mut LockedTable<'_, P>,
        folio: Folio<'_, P>,
        extent: Extent,
        seen: E<P>,
    ) {
        let Some(n) = NonZeroU32::new(extent.nr as u32) else { return };
        // Memory that was given up may have been here, a copy of a page of the object.
        table.settle_dropped();
        self.mm().counters().add(RssKind::of(folio), u64::from(n.get()));
        folio.add_file_ptes(extent.first, n, self.mm().id());
        mlock_mapped(self.vma.flags(), folio, n.get());
        let mut entry = self.file_entry(folio, folio.page(extent.first), Level::Pte);
        let at = table.index_of(self.va);
        let asked = (extent.index..extent.index + extent.nr).contains(&at);
        if !asked && P::Arch::OLD_PREFAULT {
            entry = entry.mkold();
        }
        if seen.is_none() {
            table.fill(extent.index, extent.nr, entry);
        } else {
            table.set(extent.index, self.keeping_mark(entry, seen));
        }
    }

    /// The entry of a page of the object (rule FILE-04).
    fn file_entry(&self, folio: Folio<'_, P>, pfn: Pfn, level: Level) -> E<P> {
        let entry = E::<P>::leaf(pfn, self.prot(), level).mkyoung();
        if self.access.is_write() {
            self.maybe_dirty(entry)
        } else if entry.is_writable(level) && folio.has(FolioFlags::DIRTY) {
            // No store of this mapping needs to be noticed any more.
            entry.mkdirty().mkwrite(self.vma.write_kind())
        } else {
            entry
        }
    }

    /// Whether all of a folio, whose page 0 is the one at `first` of the object, may
    /// be mapped as far as the object is concerned: nothing behind the end, but for
    /// shared memory, and nothing that userfaultfd watches page by page (rule
    /// FILE-05).
    fn may_map_all(&self, backing: &dyn Backing, folio: Folio<'_, P>, first: u64) -> bool {
        let end = first.saturating_add(folio.nr_pages().into());
        !self.vma.flags().intersects(VmaFlags::UFFD_ANY)
            && (backing.kind() == BackingKind::Shmem || end <= backing.nr_pages())
    }
    /// The entries that map all of `folio` if the one at `index` maps `page`: if
    /// object, mapping and table have room for them.
    pub(crate) fn whole(
        &self,
        table: &LockedTable<'_, P>,
        backing: &dyn Backing,
        folio: Folio<'_, P>,
        page: u32,
        index: usize,
    ) -> Option<Extent> {
        let all = self.room_for(table, folio, page, index)?;
        let first = self.vma.linear_index(table.va_of(all.index));
        self.may_map_all(backing, folio, first).then_some(all)
    }
    /// The entries that map all of a large `folio` if the one at `index` maps `page`: if
    /// mapping and table have room for them.
    pub(crate) fn room_for(
        &self,
        table: &LockedTable<'_, P>,
        folio: Folio<'_, P>,
        page: u32,
        index: usize,
    ) -> Option<Extent> {
        let nr = folio.nr_pages() as usize;
        let first = index.checked_sub(page as usize)?;
        if nr == 1 || first + nr > <P::Arch as Arch>::nr_entries(Level::Pte) {
            return None;
        }
        let range = table.range_of(first, nr)?;
        self.vma.range().covers(range).then_some(Extent { index: first, first: 0, nr })
    }
    /// Whether a PMD entry may map the folio at the place of the fault.
    pub(crate) fn fits_pmd(&self, backing: &dyn Backing, folio: Folio<'_, P>, page: u32) -> bool {
        let order = <P::Arch as Arch>::order(Level::Pmd);
        let offset = (self.va.get() >> <P::Arch as Arch>::PAGE_SHIFT) & ((1 << order) - 1);
        folio.order() == order
            && u64::from(page) == offset
            && self.vma.block(self.va, order).is_some()
            && !self.vma.flags().contains(VmaFlags::NOHUGEPAGE)
            && self.may_map_all(backing, folio, self.file_index() - offset)
    }
    /// Maps a whole folio by an empty PMD entry. The reference comes back if the
    /// entry is not empty: there is a table.
    pub(crate) fn map_by_pmd(
        &self,
        own: FolioRef<'m, P, Get>,
    ) -> Result<Mapped, FolioRef<'m, P, Get>> {
        let tables: &'f PageTables<P> = self.tables();
        let Ok(mut pmd) = tables.ensure_pmd(self.stay(), self.va) else {
            return Ok(Mapped::NoMemory);
        };
        let old = pmd.entry();
        if !old.is_none() {
            let is_table = old.as_table(Level::Pmd).is_some();
            return if is_table { Err(own) } else { Ok(Mapped::Changed) };
        }
        let folio = own.hand_over();
        self.mm().counters().add(RssKind::of(folio), u64::from(folio.nr_pages()));
        folio.add_file_pmd(self.mm().id());
        mlock_mapped(self.vma.flags(), folio, folio.nr_pages());
        // No table is deposited: a leaf of an object is taken away, not split.
        let mut owed = tables.tlb().obligation();
        pmd.swap(self.file_entry(folio, folio.head(), Level::Pmd), &mut owed);
        Ok(Mapped::Yes)
    }
}
