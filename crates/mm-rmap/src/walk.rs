//! Walks over everything that may map a folio.

use crate::grove::Grove;
use crate::links::{Links, Place};
use crate::merged::Wait;
use crate::{AnonTrees, RmapPlatform};
use alloc::sync::Arc;
use core::ops::ControlFlow;
use mm_arch::{Arch, VirtAddr, VirtRange};
use mm_folio::{AnonId, Folio, FolioFlags};
use mm_pgtable::TablesStay;
use mm_vma::{Mm, Platform, VmaFlags, VmaRights};

/// A part of a VMA in which pages of the folio, or of a range of an object, may be
/// mapped (rule RMAP-28).
#[derive(Clone, Copy, Debug)]
pub struct Visit<'w> {
    /// The whole VMA.
    pub vma: VirtRange,
    /// Where page [`index`](Self::index) of the folio, or of the range that is
    /// walked, belongs.
    pub va: VirtAddr,
    /// The first page that lies inside the VMA.
    pub index: u64,
    /// Number of pages that lie inside; at least one.
    pub nr_pages: u64,
    /// The flags of the VMA. Whoever changes them waits for the walk first, so they
    /// are right for as long as the visit lasts.
    pub flags: VmaFlags,
    /// The VMA shows no object.
    pub anonymous: bool,
    /// What the VMA shows wants to hear of first stores.
    pub notifies_writes: bool,
    /// No table of the space that covers the VMA is freed during the visit: the
    /// VMA leaves the trees first, and the walk holds their lock.
    pub stay: TablesStay<'w>,
}

impl Visit<'_> {
    /// What the VMA allows.
    pub fn rights(&self) -> VmaRights {
        VmaRights { flags: self.flags, notifies_writes: self.notifies_writes }
    }
    /// The part of the visit that is about the `nr` pages from page `first` on of the range
    /// that is walked, as if these were walked alone. `None` if the VMA has none of them.
    /// `page_shift` is that of the space.
    pub fn part(&self, first: u64, nr: u64, page_shift: u32) -> Option<Self> {
        let from = first.max(self.index);
        let end = first.saturating_add(nr).min(self.index + self.nr_pages);
        let nr_pages = end.checked_sub(from).filter(|nr| *nr > 0)?;
        let va = self.va.add_units(from - self.index, page_shift);
        Some(Visit { va, index: from - first, nr_pages, ..*self })
    }
}

/// How a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkEnd {
    /// Every VMA was visited.
    Complete,
    /// A visit broke the walk off (rule RMAP-29).
    Stopped,
    /// Nothing maps the folio, or it is not of the kind that the trees are about.
    Unmapped,
    /// Somebody changes the trees, and the caller did not want to wait.
    Contended,
}

/// What a walk calls for each VMA; `Break` ends it.
pub type Visitor<'v, P> = dyn FnMut(&Arc<Mm<P>>, Visit<'_>) -> ControlFlow<()> + 'v;

impl<P: RmapPlatform> AnonTrees<P> {
    /// Visits every VMA that may map pages of an anonymous folio, and waits for
    /// the trees if need be (rules RMAP-26..29).
    ///
    /// The folio is locked, so that its tree cannot change, and the caller holds a
    /// reference. Visits may take page-table locks, and wait for none of the mmap
    /// locks. A VMA whose address space is being torn down is skipped.
    pub fn walk(&self, folio: Folio<'_, P>, visit: &mut Visitor<'_, P>) -> WalkEnd {
        let Some((id, index)) = folio.anon() else { return WalkEnd::Unmapped };
        if folio.has(FolioFlags::KSM) {
            return self.walk_merged(folio, Wait::Yes, visit);
        }
        let (grove, tree) = self.read(id);
        Self::visit_all(&grove, tree, folio, index, visit)
    }

    /// As [`walk`](Self::walk), but gives up if it had to wait: reclaim has
    /// other folios.
    pub fn try_walk(&self, folio: Folio<'_, P>, visit: &mut Visitor<'_, P>) -> WalkEnd {
        let Some((id, index)) = folio.anon() else { return WalkEnd::Unmapped };
        if folio.has(FolioFlags::KSM) {
            return self.walk_merged(folio, Wait::No, visit);
        }
        let Some((grove, tree)) = self.try_read(id) else { return WalkEnd::Contended };
        Self::visit_all(&grove, tree, folio, index, visit)
    }

    /// Visits every VMA in which one of the `nr` pages from linear index `first` on may
    /// be, mapped or not, if they belong to the tree `id`: for entries that stand for a
    /// page that is being moved. A tree that is gone has none left.
    pub fn walk_range(
        &self,
        id: AnonId,
        first: u64,
        nr: u64,
        visit: &mut Visitor<'_, P>,
    ) -> WalkEnd {
        let (grove, tree) = self.read(id);
        let Some(tree) = grove.trees.get(tree) else { return WalkEnd::Unmapped };
        visit_links(&tree.links, (first, nr), |m| Some(&grove.members.get(m)?.place), visit)
    }

    fn visit_all(
        grove: &Grove<P>,
        tree: u32,
        folio: Folio<'_, P>,
        index: u64,
        visit: &mut Visitor<'_, P>,
    ) -> WalkEnd {
        debug_assert!(folio.has(FolioFlags::LOCKED), "a walk of a folio that is not locked");
        // Under the lock and still mapped: the VMA that maps it is linked, so
        // the id names the tree that the folio means. An unmapped folio may
        // name a tree that is gone, or a new one.
        if !folio.is_mapped() {
            return WalkEnd::Unmapped;
        }
        let Some(tree) = grove.trees.get(tree) else { return WalkEnd::Unmapped };
        let pages = (index, u64::from(folio.nr_pages()));
        visit_links(&tree.links, pages, |m| Some(&grove.members.get(m)?.place), visit)
    }
}

/// Visits the VMAs of `links` that overlap `pages` (first linear index, number).
///
/// The caller holds the lock that a VMA of `links` has to leave them by before
/// page tables under it are freed.
pub(crate) fn visit_links<'l, P: Platform>(
    links: &Links,
    pages: (u64, u64),
    place: impl Fn(u32) -> Option<&'l Place<P>>,
    visit: &mut Visitor<'_, P>,
) -> WalkEnd {
    let (index, nr_pages) = pages;
    for link in links.overlapping(index, nr_pages) {
        let Some(place) = place(link.member) else { continue };
        let Some(mm) = place.space() else { continue };
        // Where the pages begin below the VMA, the VMA's first page is the
        // first to look at.
        let first = index.max(link.first);
        let end = index.saturating_add(nr_pages).min(link.first.saturating_add(link.nr));
        let visited = Visit {
            vma: place.range,
            va: place.range.start().add_units(first - link.first, P::Arch::PAGE_SHIFT),
            index: first - index,
            nr_pages: end - first,
            flags: place.flags,
            anonymous: place.anonymous,
            notifies_writes: place.notifies_writes,
            // SAFETY: tables under a VMA are freed only after it left the
            // links, for which the lock that the caller holds is taken
            // exclusively. Of other tables this says nothing.
            stay: unsafe { TablesStay::of_range(mm.tables(), place.range) },
        };
        if visit(&mm, visited).is_break() {
            return WalkEnd::Stopped;
        }
    }
    WalkEnd::Complete
}
