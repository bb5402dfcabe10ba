//! Pages merged by content: where they may be mapped.
//!
//! A merged page belongs to no tree. It is mapped wherever an equal page was found, so it
//! keeps a *place* for each: a tree, a linear index, and the address space in which it was
//! found. Address spaces forked since then are in the same tree (rule RMAP-30), and stay
//! there when that one ends: the place is nobody's then, and kept for them.
//!
//! Pages are also found by their content here. A record holds no reference: a page that
//! is freed is noticed when it is looked at, and the record forgotten.

use crate::walk::visit_links;
use crate::{AnonTrees, RmapPlatform, Visitor, WalkEnd};
use alloc::vec::Vec;
use mm_arch::Pfn;
use mm_folio::{AllocError, AnonId, Folio, FolioFlags, FolioRef, Get, MmId};

/// Where a merged page was found, and may be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergedPlace {
    /// The root of the family of the VMA.
    pub tree: AnonId,
    /// The linear index.
    pub index: u64,
    /// The address space.
    pub mm: MmId,
}

/// The same, once it is known.
struct Known {
    tree: AnonId,
    index: u64,
    /// `None` if the address space ended, but not all that were forked from it.
    mm: Option<MmId>,
}

impl From<MergedPlace> for Known {
    fn from(place: MergedPlace) -> Self {
        Known { tree: place.tree, index: place.index, mm: Some(place.mm) }
    }
}

impl Known {
    fn is_at(&self, other: &Known) -> bool {
        (self.tree, self.index) == (other.tree, other.index)
    }
}

/// Whether a walk waits for whoever changes the trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// It does.
    Yes,
    /// It gives up.
    No,
}

/// A merged page.
pub(crate) struct Merged {
    checksum: u64,
    pfn: Pfn,
    places: Vec<Known>,
}

/// All merged pages, by checksum.
pub(crate) type MergedPages = Vec<Merged>;

impl<P: RmapPlatform> AnonTrees<P> {
    /// The merged page whose content has this checksum and satisfies `same`, with a
    /// reference. Records of pages that are gone are dropped on the way.
    pub fn find_merged<'m>(
        &self,
        platform: &'m P,
        checksum: u64,
        same: impl Fn(Pfn) -> bool,
    ) -> Option<FolioRef<'m, P, Get>> {
        let mut all = self.merged.write();
        let from = all.partition_point(|m| m.checksum < checksum);
        let mut at = from;
        while all.get(at).is_some_and(|m| m.checksum == checksum) {
            let pfn = all[at].pfn;
            // The frame may be anybody's by now.
            match platform.memmap().try_grab::<Get>(pfn, 1) {
                Some(own) if own.folio().has(FolioFlags::KSM) => {
                    if same(pfn) {
                        return Some(own);
                    }
                    at += 1;
                }
                _ => {
                    all.remove(at);
                }
            }
        }
        None
    }
    /// The page `pfn` is merged from now on, and `place` maps it. Its content has this
    /// checksum, and does not change any more.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn add_merged(
        &self,
        pfn: Pfn,
        checksum: u64,
        place: MergedPlace,
    ) -> Result<(), AllocError> {
        let mut all = self.merged.write();
        // What was here before is gone.
        all.retain(|m| m.pfn != pfn);
        all.try_reserve(1).map_err(|_| AllocError)?;
        let mut places = Vec::new();
        places.try_reserve(1).map_err(|_| AllocError)?;
        places.push(Known::from(place));
        let at = all.partition_point(|m| m.checksum < checksum);
        all.insert(at, Merged { checksum, pfn, places });
        Ok(())
    }
    /// `place` is about to map the merged page `pfn`, or does so.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn add_merged_place(&self, pfn: Pfn, place: MergedPlace) -> Result<(), AllocError> {
        let mut all = self.merged.write();
        let Some(merged) = all.iter_mut().find(|m| m.pfn == pfn) else { return Err(AllocError) };
        let place = Known::from(place);
        if !merged.places.iter().any(|p| p.is_at(&place) && p.mm == place.mm) {
            merged.places.try_reserve(1).map_err(|_| AllocError)?;
            merged.places.push(place);
        }
        Ok(())
    }
    /// Forgets where an address space that ends was found, for its id may be used again. No
    /// VMA of it is linked any more. Those that were forked from it are found as before.
    pub fn forget_merged(&self, mm: MmId) {
        // Most spaces have none, and most machines.
        if self.merged.read().is_empty() {
            return;
        }
        for merged in self.merged.write().iter_mut() {
            let places = &mut merged.places;
            let mut at = 0;
            while at < places.len() {
                if places[at].mm == Some(mm) {
                    places[at].mm = None;
                }
                let place = &places[at];
                let alone = !places.iter().enumerate().any(|(i, p)| i != at && p.is_at(place));
                if place.mm.is_some() || alone && self.has_relatives(place) {
                    at += 1;
                } else {
                    places.remove(at);
                }
            }
        }
    }
    /// Whether any VMA is there.
    fn has_relatives(&self, place: &Known) -> bool {
        let (grove, tree) = self.read(place.tree);
        grove.trees.get(tree).is_some_and(|t| t.links.overlapping(place.index, 1).next().is_some())
    }
    /// Merged pages that there are records of; some may be gone.
    pub fn nr_merged(&self) -> usize {
        self.merged.read().len()
    }

    /// The merged page at `from` moves to `to` while `replace` runs, if it says that it does.
    /// Nobody looks the page up meanwhile, and takes it for gone because it is frozen.
    pub(crate) fn move_merged(&self, from: Pfn, to: Pfn, replace: impl FnOnce() -> bool) -> bool {
        let before = !mm_sync::mutant!("rmap.merged.move_unlocked");
        let locked = before.then(|| self.merged.write());
        let moved = replace();
        let mut all = locked.unwrap_or_else(|| self.merged.write());
        if moved {
            // What was at the new place before is gone.
            all.retain(|m| m.pfn != to);
            if let Some(merged) = all.iter_mut().find(|m| m.pfn == from) {
                merged.pfn = to;
            }
        }
        moved
    }

    /// Visits every VMA that may map a merged page: those in which it was found first, then
    /// those forked from them (rule RMAP-30).
    pub(crate) fn walk_merged(
        &self,
        folio: Folio<'_, P>,
        wait: Wait,
        visit: &mut Visitor<'_, P>,
    ) -> WalkEnd {
        debug_assert!(folio.has(FolioFlags::LOCKED), "a walk of a folio that is not locked");
        if !folio.is_mapped() {
            return WalkEnd::Unmapped;
        }
        self.walk_places(folio.head(), wait, visit)
    }
    /// As [`walk_merged`](Self::walk_merged), mapped or not: for entries that stand for a page
    /// that is being moved. `pfn` is where its record says that it is.
    pub(crate) fn walk_places(&self, pfn: Pfn, wait: Wait, visit: &mut Visitor<'_, P>) -> WalkEnd {
        let all = match wait {
            Wait::Yes => Some(self.merged.read()),
            Wait::No => self.merged.try_read(),
        };
        let Some(all) = all else { return WalkEnd::Contended };
        let Some(merged) = all.iter().find(|m| m.pfn == pfn) else {
            return WalkEnd::Unmapped;
        };
        for forks in [false, true] {
            for (nr, place) in merged.places.iter().enumerate() {
                let tree = match wait {
                    Wait::Yes => Some(self.read(place.tree)),
                    Wait::No => self.try_read(place.tree),
                };
                let Some((grove, tree)) = tree else { return WalkEnd::Contended };
                let Some(tree) = grove.trees.get(tree) else { continue };
                // A relative with a place of its own is visited for that one.
                let wanted = |mm: MmId| {
                    let at = |p: &Known| p.is_at(place);
                    if forks {
                        let first = merged.places.iter().position(at);
                        let own = |p: &Known| at(p) && p.mm == Some(mm);
                        first == Some(nr) && !merged.places.iter().any(own)
                    } else {
                        place.mm == Some(mm)
                    }
                };
                let member =
                    |m: u32| grove.members.get(m).map(|m| &m.place).filter(|p| wanted(p.mm_id));
                let end = visit_links(&tree.links, (place.index, 1), member, visit);
                if end == WalkEnd::Stopped {
                    return end;
                }
            }
        }
        WalkEnd::Complete
    }
}
