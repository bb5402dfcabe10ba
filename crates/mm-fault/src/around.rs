//! Mapping cached pages around a read fault, so that they need no fault of their own.

use crate::dispatch::{E, Fault};
use crate::file::{Extent, Mapped};
use mm_arch::{Entry, Level};
use mm_folio::{Folio, FolioFlags, FolioRef, Get};
use mm_pgtable::{Block, Ensured, LockedTable, PageTables, Window, WindowRequest};
use mm_rmap::RmapPlatform;
use mm_vma::{Backing, VmaFlags};

impl<'f, 'm, P: RmapPlatform> Fault<'f, 'm, P> {
    /// Maps what the cache has of the pages around the fault (rules FILE-02,
    /// FILE-03); whether the page of the fault was among them.
    ///
    /// Nothing is read or waited for: pages that are locked by somebody are left
    /// out. A folio that fits is mapped as a whole, beyond the window, too.
    pub(crate) fn fault_around(&self, backing: &dyn Backing) -> bool {
        let pages = self.policy.fault_around as usize;
        // Userfaultfd wants to hear of each page that comes.
        if pages < 2
            || !pages.is_power_of_two()
            || self.vma.flags().intersects(VmaFlags::UFFD_WP | VmaFlags::UFFD_MINOR)
        {
            return false;
        }
        if let Some(done) = self.leaf_from_cache(backing) {
            return done;
        }
        let window = Window::of::<P::Arch>(&WindowRequest {
            va: self.va,
            index: usize::MAX / 2,
            folio_pages: usize::MAX,
            vma: self.vma.range(),
            block: Block::Pages(pages),
        });
        let own = self.file_index();
        let first = own - window.before as u64;
        let end = (first + window.nr() as u64).min(backing.nr_pages());
        if !(first..end).any(|index| self.is_cached(backing, index)) {
            return false;
        }
        let tables: &'f PageTables<P> = self.tables();
        let Ok(Ensured::Table(mut table)) = tables.ensure_table(self.stay(), self.va) else {
            return false;
        };
        let at = table.index_of(self.va);
        let mut index = first;
        while index < end {
            let entry = at + (index - first) as usize - window.before;
            let done = self.map_cached(backing, &mut table, index, entry, (end - index) as usize);
            index += done as u64;
        }
        // Present, and not by somebody's copy: only this fault fills it under
        // the lock.
        table.get(at).is_present(Level::Pte)
    }

    /// A block that the cache has as one folio is mapped by one entry, if there is no table
    /// yet: what others left in that is mapped around.
    fn leaf_from_cache(&self, backing: &dyn Backing) -> Option<bool> {
        let (own, page) = self.cached(backing, self.file_index())?;
        let folio = own.folio();
        if !self.fits_pmd(backing, folio, page) {
            return None;
        }
        let lock = folio.try_lock()?;
        self.belongs(backing, folio, page, self.file_index()).ok()?;
        let mapped = self.map_by_pmd(own);
        drop(lock);
        Some(matches!(mapped.ok()?, Mapped::Yes))
    }

    fn cached(&self, backing: &dyn Backing, index: u64) -> Option<(FolioRef<'m, P, Get>, u32)> {
        let run = backing.cached(index)?;
        Some((self.memmap().adopt_run(run), run.first))
    }
    fn is_cached(&self, backing: &dyn Backing, index: u64) -> bool {
        self.cached(backing, index).is_some()
    }

    /// Maps what the cache has at `index` and following pages of the same folio, at
    /// most `left`, from the entry `at` on; how many pages were dealt with.
    fn map_cached(
        &self,
        backing: &dyn Backing,
        table: &mut LockedTable<'_, P>,
        index: u64,
        at: usize,
        left: usize,
    ) -> usize {
        let Some((mut own, page)) = self.cached(backing, index) else { return 1 };
        let folio = own.folio();
        let nr = left.min((folio.nr_pages() - page) as usize);
        // Not waited for: under a table lock (rule LOCK-01).
        let Some(lock) = folio.try_lock() else { return nr };
        if self.belongs(backing, folio, page, index).is_err() || folio.has(FolioFlags::HWPOISON) {
            return nr;
        }
        let extent = self.whole(table, backing, folio, page, at).unwrap_or(Extent {
            index: at,
            first: page,
            nr,
        });
        self.map_holes(table, folio, extent, &mut own);
        drop(lock);
        nr
    }

    /// Maps the pages of `extent` whose entries are empty.
    fn map_holes(
        &self,
        table: &mut LockedTable<'_, P>,
        folio: Folio<'m, P>,
        extent: Extent,
        own: &mut FolioRef<'m, P, Get>,
    ) {
        let end = extent.index + extent.nr;
        let mut i = extent.index;
        while i < end {
            let n = table.none_run(i, table.limit(i).at_most(end - i));
            if n == 0 {
                i += 1;
                continue;
            }
            let first = extent.first + (i - extent.index) as u32;
            // The count is at its limit: the page of the fault says so itself.
            if own.grow(n as u32).is_err() {
                return;
            }
            if let Some(refs) = own.split_off(n as u32) {
                refs.hand_over();
                let part = Extent { index: i, first, nr: n };
                self.map_extent(table, folio, part, E::<P>::NONE);
            }
            i += n;
        }
    }
}
