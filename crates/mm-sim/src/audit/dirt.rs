//! What was stored to is dirty somewhere (dirt is conserved).
//!
//! A page of an object may be dirty in any of its entries, or in its folio. Of an anonymous page
//! every entry of a space that counts on it is dirty, or the folio is: each space may give the
//! page up for itself, and the entries that are left have to speak for the others. Where
//! a space did so, its entry may be clean, until the next store.

use super::{AuditViolation, Undirtied};
use crate::Host;
use crate::events::Events;
use mm_arch::{Arch, Pfn, SpaceId, VirtAddr};
use mm_folio::{Folio, FolioFlags, FrameBytes};
use mm_vma::{Platform, SlotState, SwapSpace};
use std::collections::BTreeSet;

/// A clean leaf of anonymous pages.
pub(super) struct CleanLeaf {
    pub space: SpaceId,
    pub va: VirtAddr,
    pub first: Pfn,
    pub pages: u64,
    /// The mapping says that its pages may be dropped at any time.
    pub droppable: bool,
}

/// What the entries say.
#[derive(Default)]
pub(super) struct Dirt {
    /// Pages of dirty leaves.
    pub dirty: BTreeSet<Pfn>,
    pub clean: Vec<CleanLeaf>,
    /// First pages of folios that a page cache has.
    pub of_objects: BTreeSet<Pfn>,
}

impl Dirt {
    /// What was lost.
    pub fn lost<A: Arch, O: Events>(&self, host: &Host<A, O>) -> Vec<AuditViolation> {
        let (map, frames) = (host.memmap(), host.frames());
        let mut found = Vec::new();
        let mut lost = |folio: Folio<'_, Host<A, O>>, pfn, at| {
            let of = Box::new(undirtied(host, folio, pfn, at));
            found.push(AuditViolation::LostDirty { pfn, of });
        };
        let is_lost = |folio: Folio<'_, Host<A, O>>, pfn| {
            frames.is_stored(pfn) && !folio.has(FolioFlags::DIRTY) && !self.dirty.contains(&pfn)
        };
        for &head in &self.of_objects {
            let folio = map.folio(head);
            for pfn in (0..folio.nr_pages()).map(|i| folio.page(i)) {
                if is_lost(folio, pfn) {
                    lost(folio, pfn, None);
                }
            }
        }
        for leaf in &self.clean {
            let folio = map.folio(leaf.first);
            if folio.has(FolioFlags::DIRTY) {
                continue;
            }
            // Reclaim drops what is clean.
            let may_go = !folio.has(FolioFlags::SWAPBACKED) && !leaf.droppable;
            for i in 0..leaf.pages {
                let pfn = leaf.first.add(i);
                let counts_on_it = may_go || frames.is_stored(pfn) && !is_in_slot(host, pfn);
                if counts_on_it && !frames.is_given_up(pfn, leaf.space) {
                    let va = leaf.va.add_units(i, A::PAGE_SHIFT);
                    lost(folio, pfn, Some((leaf.space, va)));
                }
            }
        }
        for SlotState { count, cached, .. } in host.swap().slots().in_use() {
            // Swap entries count on the slot.
            if let Some(pfn) = cached.filter(|_| count > 0)
                && is_lost(map.folio(pfn), pfn)
                && !is_in_slot(host, pfn)
            {
                lost(map.folio(pfn), pfn, None);
            }
        }
        found
    }
}

/// Whether a page of the swap cache is full of zeros and its slot is noted to be: such a one is
/// never written.
fn is_in_slot<A: Arch, O: Events>(host: &Host<A, O>, pfn: Pfn) -> bool {
    let folio = host.memmap().folio(pfn);
    let slots = host.swap().slots();
    host.frames().is_zero(pfn)
        && slots.slot_of(folio).is_some_and(|first| {
            let offset = first.offset + u64::from(folio.index_of(pfn));
            let slot = mm_arch::SwapSlot { offset, ..first };
            slots.state(slot).is_some_and(|state| state.zero)
        })
}

fn undirtied<A: Arch, O: Events>(
    host: &Host<A, O>,
    folio: Folio<'_, Host<A, O>>,
    pfn: Pfn,
    at: Option<(SpaceId, VirtAddr)>,
) -> Undirtied {
    Undirtied {
        at,
        page: folio.index_of(pfn),
        order: folio.order(),
        flags: folio.flags(),
        anon: folio.anon().map(|(id, _)| id),
        file: folio.file().map(|(id, _)| id),
        refs: folio.refcount(),
        mapcount: folio.mapcount(),
        slot: host.swap().slots().slot_of(folio),
        stored: host.frames().is_stored(pfn),
        given_up_by: host.frames().given_up_by(pfn).into_iter().collect(),
    }
}
