//! What happens to folios behind the back of those who map them.

use crate::region::Region;
use crate::worker::Worker;
use mm_arch::{Arch, Pfn};
use mm_folio::Get;
use mm_map::Advice;
use mm_vma::Platform;

impl<A: Arch> Worker<'_, A> {
    /// A frame of a folio, if one is found.
    pub fn any_frame(&mut self) -> Option<Pfn> {
        let map = self.host().memmap();
        // Frames are handed out from the first on.
        (0..64).find_map(|_| {
            let pfn = map.first().add(self.random.below(map.nr_frames() / 4));
            map.try_grab::<Get>(pfn, 1).map(|_| pfn)
        })
    }
    /// A folio goes to other frames.
    pub fn migrate(&mut self) -> Result<(), String> {
        let host = self.host();
        if let Some(pfn) = self.any_frame()
            && let Some(own) = host.memmap().try_grab::<Get>(pfn, 1)
            && host.migrate(&own).is_ok()
        {
            self.done.add("folios migrated", 1);
        }
        Ok(())
    }
    /// A folio becomes smaller ones.
    pub fn split(&mut self) -> Result<(), String> {
        let host = self.host();
        if let Some(pfn) = self.any_frame()
            && let Some(own) = host.memmap().try_grab::<Get>(pfn, 1)
        {
            let order = own.folio().order();
            if order > 0 && host.split(own, self.random.below(order.into()) as u32).is_ok() {
                self.done.add("folios split", 1);
            }
        }
        Ok(())
    }
    /// Small folios become a large one.
    pub fn collapse(&mut self) -> Result<(), String> {
        let mut process = self.own();
        let mut region = self.random.one_of(&Region::ALL);
        if self.random.once_in(2) {
            // No memory of others that userfaultfd is asked about: they count that.
            let plain = [Region::Anon, Region::Free, Region::Moving, Region::Huge];
            region = self.random.one_of(&plain);
            process = &self.world.processes[self.random.below(crate::THREADS as u64) as usize];
        }
        let order = self.random.one_of(&[2, 3, 4, 4, 9]);
        let (first, nr) = self.any_pages(region, 64);
        let range = if order == 9 { region.whole() } else { region.range((first, nr)) };
        if process.collapse_to(range, order).is_ok() {
            self.done.add("ranges collapsed", 1);
        }
        self.hear(None, false)
    }
    /// Entries are made inaccessible, to see who uses the pages.
    pub fn hint(&mut self) -> Result<(), String> {
        let process = &self.world.processes[self.random.below(crate::THREADS as u64) as usize];
        let region = self.random.one_of(&Region::ALL);
        let range = region.range(self.any_pages(region, 32));
        process.mark_hints(range).map_err(|e| format!("hints: {e}"))
    }
    /// What is on a device will be needed soon.
    pub fn read_ahead(&mut self) -> Result<(), String> {
        let process = &self.world.processes[self.random.below(crate::THREADS as u64) as usize];
        let region = self.random.one_of(&Region::ALL);
        let range = region.range(self.any_pages(region, 16));
        // Mappings come and go: a hole is no fault.
        let _ = process.madvise_willneed(range);
        Ok(())
    }
    /// Equal pages become one.
    pub fn merge(&mut self) -> Result<(), String> {
        let (host, world) = (self.host(), self.world);
        let Ok(mut ksm) = world.ksm.try_lock() else { return Ok(()) };
        let done = world.with_all(|all| host.ksm_pass(&mut ksm, all));
        let pass = done.map_err(|e| format!("KSM: {e}"))?;
        self.done.add("pages merged", pass.merged);
        Ok(())
    }
    /// Merged pages are copied, and may be merged again from now on.
    pub fn unmerge(&mut self) -> Result<(), String> {
        let (first, nr) = self.any_pages(Region::Merged, 32);
        let range = Region::Merged.range((first, nr));
        // A page that cannot be had cannot be copied.
        match self.own().madvise(range, Advice::Unmergeable) {
            Ok(()) => {}
            Err(_) if self.world.reads_fail => {}
            Err(e) => return Err(format!("MADV_UNMERGEABLE: {e}")),
        }
        self.own().madvise(range, Advice::Mergeable).map_err(|e| format!("MADV_MERGEABLE: {e}"))?;
        self.check(Region::Merged, first)
    }
}
