//! Marks that entries carry wherever they go: of stores, and of userfaultfd's protection.

use crate::region::Region;
use crate::worker::Worker;
use mm_arch::{Arch, Entry, Level, NonPresent, VirtAddr};
use mm_map::WpChange;
use mm_pgtable::LockedEntry;
use mm_sim::Process;
use mm_vma::VmaFlags;

const MARKED: [Region; 2] = [Region::Marked, Region::MarkedShmem];

impl<A: Arch> Worker<'_, A> {
    /// The next store to some pages is an event, whatever becomes of them until then.
    pub fn mark(&mut self) -> Result<(), String> {
        if !A::HAS_UFFD_WP {
            return Ok(());
        }
        let region = self.random.one_of(&MARKED);
        let (first, nr) = self.any_pages(region, 24);
        let anywhere = region == Region::MarkedShmem || self.world.marks_holes;
        if !anywhere {
            (first..first + nr).try_for_each(|page| self.check(region, page))?;
        }
        let done = self.own().uffd_wp(region.range((first, nr)), WpChange::Protect);
        done.map_err(|e| format!("protection by userfaultfd: {e}"))?;
        self.done.add("pages marked", nr);
        (first..first + nr).for_each(|page| self.known(region, page).protected = true);
        Ok(())
    }
    pub fn unmark(&mut self) -> Result<(), String> {
        if !A::HAS_UFFD_WP {
            return Ok(());
        }
        let region = self.random.one_of(&MARKED);
        let (first, nr) = self.any_pages(region, 24);
        let done = self.own().uffd_wp(region.range((first, nr)), WpChange::Unprotect);
        done.map_err(|e| format!("no protection by userfaultfd: {e}"))?;
        (first..first + nr).for_each(|page| self.known(region, page).protected = false);
        self.change(region, first)
    }
    /// No mark outlives its registration.
    pub fn register_anew(&mut self) -> Result<(), String> {
        let region = self.random.one_of(&MARKED);
        let (first, nr) = self.any_pages(region, 64);
        let (range, page) = (region.range((first, nr)), first + self.random.below(nr));
        let Some(mode) = region.uffd_mode(self.world) else { return Ok(()) };
        self.own().uffd_unregister(range).map_err(|e| format!("unregistered: {e}"))?;
        (first..first + nr).for_each(|page| self.known(region, page).protected = false);
        self.change(region, page)?;
        self.own().uffd_register(range, mode).map_err(|e| format!("registered: {e}"))?;
        self.change(region, page)
    }

    /// What was stored to since stores were tracked says so; from now on they are tracked anew.
    pub fn begin_tracking(&mut self) -> Result<(), String> {
        if !A::HAS_SOFT_DIRTY {
            return Ok(());
        }
        for region in Region::PRIVATE {
            for page in 0..region.pages() {
                let known = *self.known(region, page);
                let counts = known.stored && !known.or_zero && !known.lost;
                if counts && !is_soft_dirty(self.own(), region.va(page)) {
                    return Err(format!(
                        "{region:?} page {page}: a store is forgotten: {known:x?}"
                    ));
                }
            }
        }
        self.own().clear_soft_dirty().map_err(|e| format!("clear_refs: {e}"))?;
        for region in Region::PRIVATE {
            self.all_known(region).iter_mut().for_each(|page| page.stored = false);
        }
        self.done.add("times stores were tracked", 1);
        Ok(())
    }
}

/// Whether the process is told that the page was stored to.
fn is_soft_dirty<A: Arch>(process: &Process<A>, va: VirtAddr) -> bool {
    let vmas = process.mm().read();
    if vmas.find(va).is_none_or(|vma| vma.flags().contains(VmaFlags::SOFTDIRTY)) {
        return true;
    }
    let (e, level) = match process.mm().tables().lock_entry(vmas.stay(), va) {
        LockedEntry::Hole => return false,
        LockedEntry::Huge(pmd) => (pmd.entry(), Level::Pmd),
        LockedEntry::Table(table) => (table.get(table.index_of(va)), Level::Pte),
    };
    match e.nonpresent(level) {
        // It says that the page is lost, and nothing else.
        Some(NonPresent::Marker(_)) => true,
        Some(_) => e.swap_bits().soft_dirty,
        None => e.is_soft_dirty(),
    }
}
