//! What a process does to mappings of its own, in place.

use crate::known::{Got, Known, load, store};
use crate::region::{RIGHTS, Region};
use crate::worker::Worker;
use mm_arch::{AccessKind, Arch, Rights};
use mm_map::{Advice, LockWhen};

impl<A: Arch> Worker<'_, A> {
    pub fn give_up(&mut self) -> Result<(), String> {
        let (first, nr) = self.any_pages(Region::Free, 32);
        let range = Region::Free.range((first, nr));
        self.own().madvise_free(range).map_err(|e| format!("MADV_FREE: {e}"))?;
        for page in first..first + nr {
            self.known(Region::Free, page).or_zero = true;
        }
        Ok(())
    }
    /// What is dropped at once reads as zero; what an object has, as before, and its marks stay.
    pub fn drop_now(&mut self) -> Result<(), String> {
        let region = self.random.one_of(&[
            Region::Free,
            Region::File,
            Region::Shmem,
            Region::MarkedShmem,
            Region::Copied,
        ]);
        let (first, nr) = self.any_pages(region, 8);
        let range = region.range((first, nr));
        self.own().madvise(range, Advice::DontNeed).map_err(|e| format!("DONTNEED: {e}"))?;
        for page in first..first + nr {
            match region {
                Region::Free => *self.known(region, page) = Known::default(),
                Region::Copied => self.known(region, page).copied = false,
                _ => {}
            }
        }
        self.check(region, first)
    }
    /// Keeps pages in memory for a while.
    pub fn keep(&mut self) -> Result<(), String> {
        let region = self.random.one_of(&[Region::Anon, Region::Shmem, Region::Huge]);
        let (first, nr) = self.any_pages(region, 16);
        let range = region.range((first, nr));
        // There may be no memory for all of them.
        let _ = self.own().mlock(range, LockWhen::Now);
        self.check(region, first)?;
        self.own().munlock(range).map_err(|e| format!("munlock: {e}"))?;
        let _ = self.own().populate(range, AccessKind::Write);
        self.check(region, first)
    }
    /// What may not be stored to is not, but by force, and what may be is.
    pub fn protect(&mut self) -> Result<(), String> {
        let region = self.random.one_of(&[
            Region::Anon,
            Region::Shmem,
            Region::File,
            Region::Marked,
            Region::MarkedShmem,
            Region::Merged,
            Region::Huge,
        ]);
        let (first, nr) = self.any_pages(region, 32);
        let (range, own) = (region.range((first, nr)), self.own());
        let rights = self.random.one_of(&[Rights::READ, Rights::empty()]);
        own.mprotect(range, rights).map_err(|e| format!("mprotect: {e}"))?;
        let page = first + self.random.below(nr);
        let at = self.at(region, page);
        if let Got::Done(()) = store(own, at, u64::MAX)? {
            return Err(format!("a store to {at}, which must not be stored to"));
        }
        if rights.is_empty()
            && let Got::Done(_) = load(own, at)?
        {
            return Err(format!("a load from {at}, which must not be read"));
        }
        if region == Region::Anon {
            let value = self.value(region, page);
            if own.mem_write(at, value).is_ok() {
                self.note(region, page, value);
            }
        }
        let both = Rights::READ | Rights::WRITE;
        own.mprotect(range, both).map_err(|e| format!("mprotect: {e}"))?;
        self.check(region, page)?;
        self.change(region, page)
    }
    /// Memory that is mapped anew is empty.
    pub fn map_anew(&mut self) -> Result<(), String> {
        self.unpin_all()?;
        let region = self.random.one_of(&[Region::Anon, Region::Huge]);
        let (first, nr) = self.any_pages(region, 24);
        let range = region.range((first, nr));
        self.own().munmap(range).map_err(|e| format!("munmap: {e}"))?;
        self.own().mmap_anon(range, RIGHTS).map_err(|e| format!("mmap: {e}"))?;
        for page in first..first + nr {
            *self.known(region, page) = Known::default();
        }
        self.check(region, first)
    }
}
