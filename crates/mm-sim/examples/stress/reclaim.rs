//! Reclaim, of anybody's memory.

use crate::region::Region;
use crate::worker::Worker;
use mm_arch::Arch;
use mm_folio::{FolioRef, Get};
use mm_reclaim::{LruList, Passed, ReclaimOf, ReclaimPlatform, Shrink, shrink_folios};
use mm_sim::Host;
use mm_vma::Platform;

impl<A: Arch> Worker<'_, A> {
    /// Reclaims some pages of a process, its own or another.
    pub fn page_out(&mut self) -> Result<(), String> {
        let processes = &self.world.processes;
        let process = &processes[self.random.below(processes.len() as u64) as usize];
        let region = self.random.one_of(&Region::ALL);
        let range = region.range(self.any_pages(region, 64));
        // Mappings come and go: a hole is no fault.
        let _ = if self.random.once_in(4) {
            process.madvise_cold(range)
        } else {
            process.madvise_pageout(range)
        };
        Ok(())
    }
    /// Reclaims what has been on a list for long.
    pub fn shrink(&mut self) -> Result<(), String> {
        let host = self.host();
        let list = self.random.one_of(&[
            LruList::InactiveAnon,
            LruList::InactiveFile,
            LruList::ActiveAnon,
            LruList::ActiveFile,
        ]);
        if self.random.once_in(8) {
            // What cannot be written stays.
            host.swap().fail_write_after(Some(self.random.below(16)));
        }
        let nr = 1 + self.random.below(64);
        let mut isolated: Vec<FolioRef<'_, Host<A>, Get>> = Vec::new();
        host.lru().isolate(
            host.memmap(),
            list,
            nr,
            &mut Passed::default(),
            &mut |_| true,
            &mut |own| isolated.push(own),
        );
        let shrink = Shrink {
            policy: host.policy().unmap,
            of: ReclaimOf::Everybody,
            ignore_references: self.random.once_in(2),
            may_unmap: self.random.below(8) > 0,
        };
        let mut isolated = isolated.into_iter();
        let _ = shrink_folios(&shrink, host, || isolated.next());
        Ok(())
    }

    /// A read from swap will fail, for whoever comes by.
    pub fn fail_read(&mut self) -> Result<(), String> {
        if self.world.reads_fail {
            self.world.failures.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.host().swap().fail_read_after(Some(self.random.below(16)));
            self.done.add("reads that fail", 1);
        }
        Ok(())
    }
    /// Everything comes back from swap, which is taken away; then there is another one.
    pub fn swap_off(&mut self) -> Result<(), String> {
        let (host, world) = (self.host(), self.world);
        let Ok(_alone) = world.swap_off.try_lock() else { return Ok(()) };
        // Somebody may fork or exit meanwhile: then it stays.
        if world.with_all(|all| host.swap_off(all)).is_ok() {
            self.done.add("times swap was taken away", 1);
            host.swap().add::<A>(world.slots).map_err(|e| format!("swapon: {e}"))?;
        }
        Ok(())
    }
}
