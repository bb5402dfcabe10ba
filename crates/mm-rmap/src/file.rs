//! File trees: which VMAs show a file or an object of shared memory.

use crate::grove::Slots;
use crate::links::{Link, Links, Place};
use crate::walk::visit_links;
use crate::{RmapPlatform, Visitor, WalkEnd};
use alloc::vec::Vec;
use mm_arch::VirtAddr;
use mm_folio::{AllocError, FileId, Folio, FolioFlags, MmId};
use mm_sync::{RwLock, WriteGuard};
use mm_vma::{Mm, Platform, Vma, VmaFlags};

const NR_LOCKS: usize = 16;

/// The trees of files, one per object that is mapped.
///
/// Unlike anonymous trees they need no family: a folio names its object, and a VMA
/// that shows the object is linked from the day it is made. Private mappings are
/// linked too; their copies are anonymous and found by the other trees.
///
/// # Invariants
///
/// * A VMA of an object is linked from before its first entry until after its
///   last, and until page tables under it may be freed.
/// * Links say where their VMA is. Whoever changes its range says so.
///
/// # Locking
///
/// Inside the mmap lock and the folio lock, outside of anonymous trees and page-table
/// locks (rule LOCK-01). A walk holds the lock of its object's tree.
pub struct FileTrees<P: Platform> {
    shelves: [RwLock<P::MmapLock, Shelf<P>>; NR_LOCKS],
}

/// Keeps walks away from the tree of one object while entries of it move.
#[must_use = "walks go on when this is dropped"]
pub struct FileWalksExcluded<'t, P: Platform> {
    _shelf: WriteGuard<'t, P::MmapLock, Shelf<P>>,
}

impl<P: Platform> core::fmt::Debug for FileWalksExcluded<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FileWalksExcluded")
    }
}

/// The trees under one lock.
struct Shelf<P: Platform> {
    /// Sorted by object. Without links there is no tree.
    trees: Vec<(FileId, Links)>,
    members: Slots<Place<P>>,
}

impl<P: Platform> Shelf<P> {
    const fn new() -> Self {
        Shelf { trees: Vec::new(), members: Slots::new() }
    }
    fn position(&self, id: FileId) -> Result<usize, usize> {
        self.trees.binary_search_by_key(&id, |t| t.0)
    }
    fn links(&self, id: FileId) -> Option<&Links> {
        self.position(id).ok().map(|at| &self.trees[at].1)
    }
    /// The member that starts at `start`, where it shows page `pgoff`.
    fn find(&self, id: FileId, mm: MmId, start: VirtAddr, pgoff: u64) -> Option<u32> {
        let at_start = |l: &&Link| {
            l.first == pgoff && self.members.get(l.member).is_some_and(|m| m.key() == (mm, start))
        };
        self.links(id)?.overlapping(pgoff, 1).find(at_start).map(|l| l.member)
    }
    fn add(&mut self, id: FileId, place: Place<P>) -> Result<(), AllocError> {
        self.members.reserve()?;
        let at = match self.position(id) {
            Ok(at) => at,
            Err(at) => {
                self.trees.try_reserve(1).map_err(|_| AllocError)?;
                let mut links = Links::new();
                links.reserve()?;
                self.trees.insert(at, (id, links));
                at
            }
        };
        self.trees[at].1.reserve()?;
        let link = place.link(0);
        let member = self.members.insert(place);
        self.trees[at].1.link(Link { member, ..link });
        Ok(())
    }
    fn remove(&mut self, id: FileId, member: u32) {
        let (Ok(at), Some(place)) = (self.position(id), self.members.remove(member)) else {
            return;
        };
        self.trees[at].1.unlink(place.pgoff, member);
        if self.trees[at].1.is_empty() {
            self.trees.remove(at);
        }
    }
}

impl<P: RmapPlatform> FileTrees<P> {
    /// No trees.
    pub fn new() -> Self {
        FileTrees { shelves: core::array::from_fn(|_| RwLock::new(Shelf::new())) }
    }
    fn shelf(&self, id: FileId) -> &RwLock<P::MmapLock, Shelf<P>> {
        &self.shelves[id.0 as usize % NR_LOCKS]
    }

    /// Links a VMA that shows an object; nothing to do for one that does not. Under
    /// the mmap lock's write side, before the VMA has entries.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub(crate) fn link(&self, mm: &Mm<P>, vma: &Vma) -> Result<(), AllocError> {
        let Some(id) = vma.backing().map(|b| b.id()) else { return Ok(()) };
        self.shelf(id).write().add(id, Place::of(mm, vma))
    }
    /// `vma` ends elsewhere than when it was linked.
    ///
    /// # Panics
    ///
    /// If it shows an object but is not linked.
    pub(crate) fn adjusted(&self, mm: &Mm<P>, vma: &Vma) {
        let Some(id) = vma.backing().map(|b| b.id()) else { return };
        let mut shelf = self.shelf(id).write();
        let member = Self::linked(&shelf, id, mm, vma);
        let Ok(at) = shelf.position(id) else { return };
        let Shelf { trees, members } = &mut *shelf;
        if let Some(place) = members.get_mut(member) {
            place.adjust(vma);
            // Into the room that the old link left.
            trees[at].1.replace(place.link(member));
        }
    }
    /// `vma` is about to go (see [`AnonTrees::unlink`](crate::AnonTrees::unlink)).
    ///
    /// # Panics
    ///
    /// If it shows an object but is not linked.
    pub(crate) fn unlink(&self, mm: &Mm<P>, vma: &Vma) {
        let Some(id) = vma.backing().map(|b| b.id()) else { return };
        let mut shelf = self.shelf(id).write();
        let member = Self::linked(&shelf, id, mm, vma);
        shelf.remove(id, member);
    }
    fn linked(shelf: &Shelf<P>, id: FileId, mm: &Mm<P>, vma: &Vma) -> u32 {
        match shelf.find(id, mm.id(), vma.start(), vma.pgoff()) {
            Some(member) => member,
            None => panic!("no VMA of {:?} is linked at {}", mm.id(), vma.start()),
        }
    }

    /// The flags that walks see of `vma`; `None` if it is not linked. For audits.
    pub fn known_flags(&self, mm: &Mm<P>, vma: &Vma) -> Option<VmaFlags> {
        let id = vma.backing().map(|b| b.id())?;
        let shelf = self.shelf(id).read();
        let member = shelf.find(id, mm.id(), vma.start(), vma.pgoff())?;
        shelf.members.get(member).map(|place| place.flags)
    }

    /// Keeps every walk of the object that `vma` shows waiting (see
    /// [`AnonTrees::exclude_walks`](crate::AnonTrees::exclude_walks), which comes
    /// after this). `None` if it shows none.
    pub fn exclude_walks(&self, vma: &Vma) -> Option<FileWalksExcluded<'_, P>> {
        let id = vma.backing().map(|b| b.id())?;
        Some(FileWalksExcluded { _shelf: self.shelf(id).write() })
    }

    /// Visits every VMA that may map pages of a folio of a file or of shared
    /// memory, and waits for its tree if need be (rules RMAP-27..29).
    ///
    /// The folio is locked, so that it stays in its object, and the caller holds a
    /// reference. A folio without an object has no mappings left to visit.
    pub fn walk(&self, folio: Folio<'_, P>, visit: &mut Visitor<'_, P>) -> WalkEnd {
        let Some((id, index)) = folio.file() else { return WalkEnd::Unmapped };
        let shelf = self.shelf(id).read();
        Self::visit_mapped(&shelf, id, index, folio, visit)
    }
    /// As [`walk`](Self::walk), but gives up if it had to wait.
    pub fn try_walk(&self, folio: Folio<'_, P>, visit: &mut Visitor<'_, P>) -> WalkEnd {
        let Some((id, index)) = folio.file() else { return WalkEnd::Unmapped };
        let Some(shelf) = self.shelf(id).try_read() else { return WalkEnd::Contended };
        Self::visit_mapped(&shelf, id, index, folio, visit)
    }
    fn visit_mapped(
        shelf: &Shelf<P>,
        id: FileId,
        index: u64,
        folio: Folio<'_, P>,
        visit: &mut Visitor<'_, P>,
    ) -> WalkEnd {
        debug_assert!(folio.has(FolioFlags::LOCKED), "a walk of a folio that is not locked");
        if !folio.is_mapped() {
            return WalkEnd::Unmapped;
        }
        Self::visit(shelf, id, (index, u64::from(folio.nr_pages())), visit)
    }
    /// Visits every VMA that shows one of the `nr` pages from `first` on, mapped or
    /// not: for truncation, which needs no folio.
    pub fn walk_range(
        &self,
        id: FileId,
        first: u64,
        nr: u64,
        visit: &mut Visitor<'_, P>,
    ) -> WalkEnd {
        Self::visit(&self.shelf(id).read(), id, (first, nr), visit)
    }
    fn visit(
        shelf: &Shelf<P>,
        id: FileId,
        pages: (u64, u64),
        visit: &mut Visitor<'_, P>,
    ) -> WalkEnd {
        match shelf.links(id) {
            Some(links) => visit_links(links, pages, |m| shelf.members.get(m), visit),
            None => WalkEnd::Complete,
        }
    }

    /// Every link of every tree. Nothing may change meanwhile.
    pub(crate) fn each_link(&self, each: &mut dyn FnMut(FileId, &Link, &Place<P>)) {
        for shelf in &self.shelves {
            let shelf = shelf.read();
            for (id, links) in &shelf.trees {
                for link in links.as_slice() {
                    if let Some(place) = shelf.members.get(link.member) {
                        each(*id, link, place);
                    }
                }
            }
        }
    }
}

impl<P: RmapPlatform> Default for FileTrees<P> {
    fn default() -> Self {
        FileTrees::new()
    }
}

impl<P: Platform> core::fmt::Debug for FileTrees<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FileTrees")
    }
}
