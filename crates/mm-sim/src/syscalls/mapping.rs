//! Calls that change mappings.

use crate::device::page_words;
use crate::events::Events;
use crate::scan::{entries, page_of};
use crate::{Object, Process, Shmem, ShmemKind};
use mm_arch::{Arch, Entry, Level, NonPresent, Rights, VirtAddr, VirtRange};
use mm_fault::{FaultFlags, FaultOutcome};
use mm_folio::{FolioFlags, FrameBytes};
use mm_gup::{GupError, GupErrorKind, OnError};
use mm_map::{
    Advice, CollapseError, CollapseFor, Collapsed, Comes, ForkError, LockWhen, MapError, MoveHoles,
    OldPlace, UffdMode, WpChange, collapse_anon, collapse_object, map_collapsed, next_merged,
};
use mm_reclaim::AdviceError;
use mm_vma::{Platform, Vma, VmaFlags};
use std::sync::Arc;

/// Why memory could not be locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MlockError {
    /// The range cannot be locked.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It is locked, but a page of it is not there.
    #[error(transparent)]
    Populate(#[from] GupError),
}

impl MlockError {
    /// The kernel's name of the error.
    pub fn errno(self) -> &'static str {
        match self {
            MlockError::Map(e) => e.errno(),
            // A fault that fails here is memory that is not there, and memory that cannot be
            // had now may be had later.
            MlockError::Populate(e) => match e.kind {
                GupErrorKind::Fault => "ENOMEM",
                GupErrorKind::NoMemory => "EAGAIN",
                _ => e.errno(),
            },
        }
    }
}

/// What the advice about `range` to give it up came to: all but holes, or what lies below a mapping that
/// refuses.
pub(crate) fn given_up(range: VirtRange, r: &Result<(), AdviceError>) -> Option<VirtRange> {
    match r {
        Ok(()) | Err(AdviceError::Hole(_)) => Some(range),
        Err(AdviceError::Invalid(at)) => {
            VirtRange::new(range.start(), at.bytes_from(range.start())).ok()
        }
        Err(AdviceError::Unaligned(_) | AdviceError::NotUser(_)) => None,
    }
}

impl<A: Arch, O: Events> Process<A, O> {
    /// `mmap` of private anonymous memory at a fixed address.
    ///
    /// # Errors
    ///
    /// If the range makes no sense, is mapped, or there is no memory.
    pub fn mmap_anon(&self, range: VirtRange, flags: VmaFlags) -> Result<(), MapError> {
        mm_map::mmap_anon(&mut self.mm().write_within(range), range, flags)
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
        mm_map::mmap_backing(&mut self.mm().write_within(range), range, flags, object, first_page)
    }
    /// `mmap` of shared anonymous memory at a fixed address: an object of its own,
    /// which children share.
    ///
    /// # Errors
    ///
    /// As [`mmap_anon`](Self::mmap_anon).
    pub fn mmap_shared(&self, range: VirtRange, flags: VmaFlags) -> Result<(), MapError> {
        let nr_pages = range.nr(A::PAGE_SHIFT);
        let object = Shmem::new(self.host(), ShmemKind::Anonymous, nr_pages)
            .map_err(|_| MapError::NoMemory(range.start()))?;
        self.mmap_object(range, flags | VmaFlags::SHARED, object, 0)
    }
    /// `munmap`.
    ///
    /// # Errors
    ///
    /// If the range makes no sense or there is no memory to split a mapping.
    pub fn munmap(&self, range: VirtRange) -> Result<(), MapError> {
        mm_map::munmap(&self.host().policy().map, &mut self.mm().write_within(range), range)
    }
    /// `mprotect`. Locked private memory that becomes writable is populated (rule
    /// MPROT-08).
    ///
    /// # Errors
    ///
    /// If the range has a hole or a mapping must not have the rights.
    pub fn mprotect(&self, range: VirtRange, rights: Rights) -> Result<(), MapError> {
        mm_map::mprotect(
            &self.host().policy().map,
            &mut self.mm().write_within(range),
            range,
            rights,
        )?;
        if rights.contains(Rights::WRITE) {
            self.populate_locked(range);
        }
        Ok(())
    }
    /// `mlock`, or `mlock2` for what is touched later.
    ///
    /// # Errors
    ///
    /// If the range makes no sense or has a hole, or a page cannot be had; what could be
    /// locked is.
    pub fn mlock(&self, range: VirtRange, when: LockWhen) -> Result<(), MlockError> {
        mm_map::mlock(&mut self.mm().write(), range, when)?;
        Ok(self.populate_mapped(range, OnError::Stop)?)
    }
    /// Copies every merged page in `range` (rule KSM-02).
    fn unmerge(&self, range: VirtRange) -> Result<(), MapError> {
        let policy = self.host().policy().fault;
        let vmas = self.mm().read();
        while let Some(va) = next_merged(&vmas, range) {
            // Whatever the mapping allows.
            let flags = FaultFlags::UNSHARE | FaultFlags::FORCE;
            if !matches!(self.handle_fault(&policy, &vmas, va, flags), FaultOutcome::Done { .. }) {
                return Err(MapError::NoMemory(va));
            }
        }
        Ok(())
    }
    /// `MADV_COLLAPSE`: every aligned block of a PMD's size in `range` becomes one folio.
    /// Pages in swap are brought in.
    ///
    /// # Errors
    ///
    /// If there is no such block in a mapping; the last block that could not be collapsed.
    pub fn collapse(&self, range: VirtRange) -> Result<(), CollapseError> {
        self.collapse_to(range, A::order(Level::Pmd))
    }
    /// As [`collapse`](Self::collapse), into folios of `order`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn collapse_to(&self, range: VirtRange, order: u32) -> Result<(), CollapseError> {
        let none = Err(CollapseError::NotAllowed(range.start()));
        // A page is as large as it is.
        if order == 0 || order > A::order(Level::Pmd) {
            return none;
        }
        let shift = A::PAGE_SHIFT + order;
        let (mut result, mut tried) = (Ok(()), false);
        let mut next = range.start().get().checked_next_multiple_of(1 << shift).map(VirtAddr::new);
        // A block at a time; what is left of the range at its end is none.
        while let Some(at) = next
            && let Some(block) = VirtRange::units(at, 1, shift).ok().filter(|b| range.covers(*b))
        {
            tried = true;
            let mapped = self.mm().read().next_from(at).map(|vma| vma.start());
            if mapped.is_some_and(|start| start <= block.last()) {
                if let Err(e) = self.collapse_block(at, order) {
                    result = Err(e);
                }
                next = at.checked_add(block.bytes());
            } else {
                // On to the next mapping: a hole may be wide.
                result = Err(CollapseError::NotAllowed(at));
                next = mapped.map(|start| start.align_down(shift));
            }
        }
        if tried { result } else { none }
    }
    fn collapse_block(&self, va: VirtAddr, order: u32) -> Result<Collapsed, CollapseError> {
        let (policy, caller) = (self.host().policy().map, CollapseFor::Caller);
        let shown = {
            let vmas = self.mm().read();
            let vma = vmas.find(va).ok_or(CollapseError::NotAllowed(va))?;
            vma.backing().map(|b| (b.id(), vma.linear_index(va)))
        };
        if let Some((id, index)) = shown {
            let object = self.host().objects().find(id).ok_or(CollapseError::NotAllowed(va))?;
            let first = index >> order << order;
            // What is not had back is in the way.
            let _ = object.swap_back(first..first + (1 << order));
            collapse_object(&policy, &*object, object.cache(), index, order, caller)?;
            // Mapped by faults where that does not go.
            if order == A::order(Level::Pmd) {
                let _ = map_collapsed(self.mm(), object.cache(), va);
            }
            return Ok(Collapsed::Now);
        }
        loop {
            match collapse_anon(&policy, self.mm(), va, order, caller) {
                // Each page once at most, so this ends.
                Err(CollapseError::Swapped(page)) => {
                    let fault = self.host().policy().fault;
                    let vmas = self.mm().read();
                    match self.handle_fault(&fault, &vmas, page, FaultFlags::empty()) {
                        FaultOutcome::Done { .. } => {}
                        FaultOutcome::Oom => return Err(CollapseError::NoMemory(page)),
                        _ => return Err(CollapseError::Held(page)),
                    }
                }
                done => return done,
            }
        }
    }
    /// `munlock`.
    ///
    /// # Errors
    ///
    /// If the range makes no sense or has a hole.
    pub fn munlock(&self, range: VirtRange) -> Result<(), MapError> {
        mm_map::munlock(&mut self.mm().write(), range)
    }
    /// Brings locked mappings in `range` into memory, as far as that goes.
    fn populate_locked(&self, range: VirtRange) {
        let mut rest = Some(range);
        let locked_in = |rest| {
            let vmas = self.mm().read();
            let is_locked = |v: &&Vma| v.flags().contains(VmaFlags::LOCKED);
            vmas.overlapping(rest).find(is_locked).and_then(|v| v.range().intersect(rest))
        };
        while let Some(part) = rest.and_then(locked_in) {
            // What cannot be had now is had when it is touched.
            let _ = self.populate_mapped(part, OnError::NextMapping);
            let behind = part.last().checked_add(1);
            rest = behind.and_then(|va| VirtRange::new(va, range.bytes_after(va)).ok());
        }
    }
    /// `madvise`.
    ///
    /// # Errors
    ///
    /// If the range has a hole or a mapping does not support the advice.
    pub fn madvise(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        let policy = self.host().policy().map;
        let done = mm_map::madvise(&policy, &mut self.mm().write_within(range), range, advice);
        if advice == Advice::Unmergeable && matches!(done, Ok(()) | Err(MapError::Hole(_))) {
            self.unmerge(range)?;
        }
        done
    }
    /// `madvise` with `MADV_REMOVE`.
    ///
    /// # Errors
    ///
    /// If the range has a hole, or a mapping shows no object that it may make a hole in.
    pub fn madvise_remove(&self, range: VirtRange) -> Result<(), MapError> {
        mm_map::madvise_remove(self.mm(), range)
    }
    /// `madvise` with `MADV_WILLNEED`.
    ///
    /// # Errors
    ///
    /// If the range makes no sense or has a hole.
    pub fn madvise_willneed(&self, range: VirtRange) -> Result<(), MapError> {
        mm_map::madvise_willneed(self.mm(), range)
    }
    /// Makes the entries of a range inaccessible, to see who uses its pages.
    ///
    /// # Errors
    ///
    /// If the range makes no sense.
    pub fn mark_hints(&self, range: VirtRange) -> Result<(), MapError> {
        mm_map::mark_hints(&self.host().policy().map, &self.mm().read(), range)
    }
    /// `madvise` with `MADV_FREE`.
    ///
    /// # Errors
    ///
    /// If the range has a hole or a mapping does not support the advice.
    pub fn madvise_free(&self, range: VirtRange) -> Result<(), AdviceError> {
        let vmas = self.mm().read();
        let done = mm_reclaim::madvise_free(self.host().policy().unmap, &vmas, range);
        let Some(range) = given_up(range, &done) else { return done };
        // What was stored until now may be lost, and that is what was asked for. Where an
        // entry is still dirty, or the folio is, nothing came of it.
        let (map, frames) = (self.host().memmap(), self.host().frames());
        let space = self.mm().tables().id();
        entries(&vmas, range, |va, level, e| {
            let (first, dirty) = match e.nonpresent(level) {
                // Somebody splits or moves the folio just now.
                Some(NonPresent::Migration { pfn, dirty, .. }) => (pfn, dirty),
                _ if e.is_leaf(level) => (page_of::<A>(va, level, e), e.is_dirty()),
                _ => return,
            };
            if dirty || !map.contains(first) {
                return;
            }
            let folio = map.folio(first);
            if folio.is_anon() && !folio.has(FolioFlags::DIRTY) {
                let pages = (0..1 << A::order(level))
                    .map(|i| (va.add_units(i, A::PAGE_SHIFT), first.add(i)));
                let within = pages.filter(|(va, _)| range.contains(*va));
                within.for_each(|(_, pfn)| frames.give_up(pfn, space));
            }
        });
        done
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
        mm_map::mremap_resize(&self.host().policy().map, &mut self.mm().write(), range, bytes)?;
        if let Some(more) = bytes.checked_sub(range.bytes())
            && let Ok(new) = VirtRange::new(VirtAddr::new(range.last().get() + 1), more)
        {
            self.populate_locked(new);
        }
        Ok(())
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
    /// `UFFDIO_COPY`: new pages where none are; `word` says what word (second argument) of a
    /// page of the range (first) is.
    ///
    /// # Errors
    ///
    /// At the first page that is there, or in no registered mapping; if there is no memory.
    pub fn uffd_copy(
        &self,
        range: VirtRange,
        comes: Comes,
        word: impl Fn(u64, usize) -> u64,
    ) -> Result<(), MapError> {
        let bytes = self.host().bytes();
        let fill = |k, pfn| {
            (0..page_words::<A>()).for_each(|w| bytes.store(pfn, w * 8, word(k, w)));
        };
        mm_map::uffd_copy(&self.mm().read(), range, comes, fill)
    }
    /// `UFFDIO_ZEROPAGE`.
    ///
    /// # Errors
    ///
    /// As [`uffd_copy`](Self::uffd_copy).
    pub fn uffd_zeropage(&self, range: VirtRange) -> Result<(), MapError> {
        mm_map::uffd_zeropage(&self.mm().read(), range)
    }
    /// `UFFDIO_CONTINUE`: maps what the object has.
    ///
    /// # Errors
    ///
    /// As [`uffd_copy`](Self::uffd_copy), and at the first page that it has not.
    pub fn uffd_continue(&self, range: VirtRange, comes: Comes) -> Result<(), MapError> {
        mm_map::uffd_continue(&self.mm().read(), range, comes)
    }
    /// `UFFDIO_POISON`: whoever touches the pages gets a signal.
    ///
    /// # Errors
    ///
    /// As [`uffd_copy`](Self::uffd_copy).
    pub fn uffd_poison(&self, range: VirtRange) -> Result<(), MapError> {
        mm_map::uffd_poison(&self.mm().read(), range)
    }
    /// `UFFDIO_MOVE`: the pages of `from` are at `to` then.
    ///
    /// # Errors
    ///
    /// If the ranges do not suit; at the first page that cannot move.
    pub fn uffd_move(
        &self,
        to: VirtAddr,
        from: VirtRange,
        holes: MoveHoles,
    ) -> Result<(), MapError> {
        mm_map::uffd_move(&self.mm().read(), to, from, holes)
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
        let (own, new) = (self.mm().tables().id(), child.tables().id());
        self.host().frames().inherit_given_up(own, new);
        Ok(Process::new(child, self.cpu()))
    }
}
