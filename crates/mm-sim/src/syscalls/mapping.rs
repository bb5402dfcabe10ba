//! Calls that change mappings.

use crate::events::Events;
use crate::scan::{entries, page_of};
use crate::{Object, Process, Shmem, ShmemKind};
use mm_arch::{Arch, Entry, Rights, VirtAddr, VirtRange};
use mm_folio::FolioFlags;
use mm_map::{Advice, ForkError, MapError, OldPlace, UffdMode, WpChange};
use mm_reclaim::AdviceError;
use mm_vma::{Platform, VmaFlags};
use std::sync::Arc;

const SWAPBACKED_OR_DIRTY: FolioFlags = FolioFlags::SWAPBACKED.union(FolioFlags::DIRTY);

impl<A: Arch, O: Events> Process<A, O> {
    /// `mmap` of private anonymous memory at a fixed address.
    ///
    /// # Errors
    ///
    /// If the range makes no sense, is mapped, or there is no memory.
    pub fn mmap_anon(&self, range: VirtRange, flags: VmaFlags) -> Result<(), MapError> {
        mm_map::mmap_anon(&mut self.mm().write(), range, flags)
    }
    /// `mmap` of a file or of shared memory from page `first_page` of it on, at a
    /// fixed address. `flags` says whether it is `SHARED`.
    ///
    /// # Errors
    ///
    /// As [`mmap_anon`](Self::mmap_anon).
    pub fn mmap_object(
        &self,
        range: VirtRange,
        flags: VmaFlags,
        object: Arc<dyn Object<A, O>>,
        first_page: u64,
    ) -> Result<(), MapError> {
        let mut flags = flags | VmaFlags::MAY_PRIVATE;
        flags.set(VmaFlags::MAYSHARE, flags.contains(VmaFlags::SHARED));
        mm_map::mmap_backing(&mut self.mm().write(), range, flags, object, first_page)
    }
    /// `mmap` of shared anonymous memory at a fixed address: an object of its own,
    /// which children share.
    ///
    /// # Errors
    ///
    /// As [`mmap_anon`](Self::mmap_anon).
    pub fn mmap_shared(&self, range: VirtRange, flags: VmaFlags) -> Result<(), MapError> {
        let nr_pages = range.nr(A::PAGE_SHIFT);
        let object = Shmem::new(self.host(), ShmemKind::Anonymous, nr_pages);
        self.mmap_object(range, flags | VmaFlags::SHARED, object, 0)
    }
    /// `munmap`.
    ///
    /// # Errors
    ///
    /// If the range makes no sense or there is no memory to split a mapping.
    pub fn munmap(&self, range: VirtRange) -> Result<(), MapError> {
        mm_map::munmap(&self.host().policy().map, &mut self.mm().write(), range)
    }
    /// `mprotect`.
    ///
    /// # Errors
    ///
    /// If the range has a hole or a mapping must not have the rights.
    pub fn mprotect(&self, range: VirtRange, rights: Rights) -> Result<(), MapError> {
        mm_map::mprotect(&self.host().policy().map, &mut self.mm().write(), range, rights)
    }
    /// `madvise`.
    ///
    /// # Errors
    ///
    /// If the range has a hole or a mapping does not support the advice.
    pub fn madvise(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        mm_map::madvise(&self.host().policy().map, &mut self.mm().write(), range, advice)
    }
    /// `madvise` with `MADV_FREE`.
    ///
    /// # Errors
    ///
    /// If the range has a hole or a mapping does not support the advice.
    pub fn madvise_free(&self, range: VirtRange) -> Result<(), AdviceError> {
        let vmas = self.mm().read();
        mm_reclaim::madvise_free(self.host().policy().unmap, &vmas, range)?;
        // What was stored until now may be lost, and that is what was asked for.
        let (map, frames) = (self.host().memmap(), self.host().frames());
        entries(&vmas, range, |va, level, e| {
            let pfn = page_of::<A>(va, level, e);
            if e.is_leaf(level) && map.contains(pfn) && !e.is_dirty() {
                let folio = map.folio(pfn);
                if folio.is_anon() && !folio.flags().intersects(SWAPBACKED_OR_DIRTY) {
                    (0..1 << A::order(level)).for_each(|i| frames.clear_stored(pfn.add(i)));
                }
            }
        });
        Ok(())
    }
    /// `madvise` with `MADV_COLD`.
    ///
    /// # Errors
    ///
    /// As [`madvise_free`](Self::madvise_free).
    pub fn madvise_cold(&self, range: VirtRange) -> Result<(), AdviceError> {
        mm_reclaim::madvise_cold(self.host().policy().unmap, &self.mm().read(), range)
    }
    /// `madvise` with `MADV_PAGEOUT`.
    ///
    /// # Errors
    ///
    /// As [`madvise_free`](Self::madvise_free).
    pub fn madvise_pageout(&self, range: VirtRange) -> Result<(), AdviceError> {
        mm_reclaim::madvise_pageout(self.host().policy().unmap, &self.mm().read(), range)
    }
    /// `mremap` to another, fixed address.
    ///
    /// # Errors
    ///
    /// If the ranges make no sense, nothing is mapped, or there is no memory.
    pub fn mremap_move(
        &self,
        range: VirtRange,
        to: VirtAddr,
        old: OldPlace,
    ) -> Result<(), MapError> {
        mm_map::mremap_move(&self.host().policy().map, &mut self.mm().write(), range, to, old)
    }
    /// `mremap` in place, to `bytes` bytes.
    ///
    /// # Errors
    ///
    /// If the range makes no sense or cannot grow where it is.
    pub fn mremap_resize(&self, range: VirtRange, bytes: u64) -> Result<(), MapError> {
        mm_map::mremap_resize(&self.host().policy().map, &mut self.mm().write(), range, bytes)
    }
    /// Registers a range with the userfaultfd of the process.
    ///
    /// # Errors
    ///
    /// If the range makes no sense, or a mapping cannot be registered so.
    pub fn uffd_register(&self, range: VirtRange, mode: UffdMode) -> Result<(), MapError> {
        mm_map::uffd_register(&self.host().policy().map, &mut self.mm().write(), range, mode)
    }
    /// Ends the registration of a range.
    ///
    /// # Errors
    ///
    /// If the range makes no sense or there is no memory to split a mapping.
    pub fn uffd_unregister(&self, range: VirtRange) -> Result<(), MapError> {
        mm_map::uffd_unregister(&self.host().policy().map, &mut self.mm().write(), range)
    }
    /// Write-protects pages through userfaultfd, or ends that.
    ///
    /// # Errors
    ///
    /// If the range makes no sense or is not registered for it.
    pub fn uffd_wp(&self, range: VirtRange, change: WpChange) -> Result<(), MapError> {
        mm_map::uffd_wp(&self.host().policy().map, &self.mm().read(), range, change)
    }
    /// Forgets which pages were stored to, as a write of 4 to `clear_refs` does.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn clear_soft_dirty(&self) -> Result<(), MapError> {
        mm_map::clear_soft_dirty(&self.host().policy().map, &mut self.mm().write())
    }
    /// `fork`: the child runs on the same CPU and has taken no fault.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn fork(&self) -> Result<Self, ForkError> {
        let child = mm_map::fork(&self.host().policy().map, self.mm())?;
        Ok(Process::new(child, self.cpu()))
    }
}
