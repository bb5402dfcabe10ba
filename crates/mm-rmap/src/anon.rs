//! Anonymous trees: which VMAs may map the folios of whom.

use crate::RmapPlatform;
use crate::grove::{Grove, Own};
use crate::merged::MergedPages;
use mm_arch::{VirtAddr, VirtRange};
use mm_folio::{AllocError, AnonId, MmId};
use mm_sync::{ReadGuard, RwLock, WriteGuard};
use mm_vma::{Mm, Platform, Vma, VmaFlags, VmaStore};

const LOCK_BITS: u32 = 4;
const NR_LOCKS: usize = 1 << LOCK_BITS;

/// The anonymous trees of a machine.
///
/// # Invariants
///
/// * A family of trees (a root, and whatever was forked from it) is protected by
///   one lock of a small set; an id says which. The lock outlives every tree:
///   a walker that waits for it needs no reference to the tree (rules
///   RMAP-25, RMAP-26).
/// * An id names a tree for as long as a VMA is linked to it, so for as long as
///   a mapped folio names it. A walker that holds the lock and sees the
///   folio mapped has the right tree; ids of empty trees are used again.
/// * A VMA is linked by address space and first address. Whoever changes a
///   VMA's range says so ([`adjusted`](Self::adjusted)) before anything else looks.
///
/// # Locking
///
/// Inside the mmap lock and the folio lock, outside of page-table locks (rule
/// LOCK-01). Memory is allocated under the lock: the allocator must not reclaim
/// anonymous memory on behalf of this thread.
pub struct AnonTrees<P: Platform> {
    groves: [RwLock<P::MmapLock, Grove<P>>; NR_LOCKS],
    /// Taken outside of the locks of the trees.
    pub(crate) merged: RwLock<P::MmapLock, MergedPages>,
}

/// Keeps walks away from the trees of one VMA while its entries move.
#[must_use = "walks go on when this is dropped"]
pub struct WalksExcluded<'t, P: Platform> {
    _grove: WriteGuard<'t, P::MmapLock, Grove<P>>,
}

impl<P: Platform> core::fmt::Debug for WalksExcluded<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("WalksExcluded")
    }
}
impl<P: Platform> core::fmt::Debug for AnonTrees<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("AnonTrees")
    }
}

/// A grove that does not change meanwhile.
pub(crate) type Reading<'t, P> = ReadGuard<'t, <P as Platform>::MmapLock, Grove<P>>;

fn lock_of(id: AnonId) -> usize {
    id.0 as usize % NR_LOCKS
}
fn slot_of(id: AnonId) -> u32 {
    id.0 >> LOCK_BITS
}
pub(crate) fn id_of(lock: usize, slot: u32) -> AnonId {
    AnonId(slot << LOCK_BITS | lock as u32)
}
/// Where the families live that a space starts.
fn home_of(mm: MmId) -> usize {
    mm.get() as usize % NR_LOCKS
}

/// Whether `upper` could be the rest of `lower` as far as their trees are
/// concerned: what `mprotect` can make equal does not count (rule RMAP-21).
fn could_be_one(lower: &Vma, upper: &Vma) -> bool {
    let changeable = VmaFlags::ACCESS | VmaFlags::SOFTDIRTY;
    lower.start().checked_add(lower.range().bytes()) == Some(upper.start())
        && lower.pgoff() + lower.nr_pages() == upper.pgoff()
        && lower.same_backing(upper)
        && changeable.contains(lower.flags() ^ upper.flags())
}

impl<P: RmapPlatform> AnonTrees<P> {
    /// No trees.
    pub fn new() -> Self {
        AnonTrees {
            groves: core::array::from_fn(|_| RwLock::new(Grove::new())),
            merged: RwLock::new(MergedPages::new()),
        }
    }
    /// The grove of a tree, and the tree's number in it.
    pub(crate) fn read(&self, id: AnonId) -> (Reading<'_, P>, u32) {
        (self.groves[lock_of(id)].read(), slot_of(id))
    }
    pub(crate) fn try_read(&self, id: AnonId) -> Option<(Reading<'_, P>, u32)> {
        Some((self.groves[lock_of(id)].try_read()?, slot_of(id)))
    }
    /// All groves, one after the other: (number of the lock, grove).
    pub(crate) fn each_grove(&self, mut f: impl FnMut(usize, &Grove<P>)) {
        for (lock, grove) in self.groves.iter().enumerate() {
            f(lock, &grove.read());
        }
    }

    /// The tree that new folios of `vma` name; made at the first call (rule RMAP-21).
    ///
    /// The caller holds the mmap lock, either side, and `vma` is in `vmas`. Of
    /// several threads that come first one links the VMA. A neighbour that
    /// `mprotect` could merge with `vma` shares its tree, unless it inherited
    /// others from a parent.
    ///
    /// # Errors
    ///
    /// If there is no memory; nothing changed then.
    pub fn prepare(&self, mm: &Mm<P>, vmas: &VmaStore, vma: &Vma) -> Result<AnonId, AllocError> {
        if let Some(id) = vma.anon() {
            return Ok(id);
        }
        // Whatever tree it will be, this lock decides the race: a neighbour
        // whose family lives elsewhere is not asked.
        let home = home_of(mm.id());
        let mut grove = self.groves[home].write();
        if let Some(id) = vma.anon()
            && !mm_sync::mutant!("rmap.prepare.no_recheck")
        {
            return Ok(id);
        }
        let singular = |v: &&Vma| v.anon().is_some_and(|id| lock_of(id) == home);
        let below = vma.start().get().checked_sub(1).and_then(|a| vmas.find(VirtAddr::new(a)));
        let above = vma.start().checked_add(vma.range().bytes()).and_then(|a| vmas.find(a));
        let neighbour =
            [above.filter(|v| could_be_one(vma, v)), below.filter(|v| could_be_one(v, vma))]
                .into_iter()
                .flatten()
                .filter(singular)
                .filter_map(|v| grove.find(mm.id(), v.start()))
                .find(|m| grove.is_singular(*m));
        let id = id_of(home, grove.add_first(mm, vma, neighbour)?);
        vma.set_anon(Some(id));
        Ok(id)
    }

    /// The member that `vma` is, and the lock it is under.
    ///
    /// # Panics
    ///
    /// If it is not linked although it names a tree: its range was changed
    /// behind the trees' back.
    fn linked(grove: &Grove<P>, mm: MmId, start: VirtAddr) -> u32 {
        match grove.find(mm, start) {
            Some(member) => member,
            None => panic!("no VMA of {mm:?} is linked at {start}"),
        }
    }
    /// As [`linked`](Self::linked), for a VMA whose address space is not at hand:
    /// the active VMAs of a tree are of one space.
    fn linked_by_tree(grove: &Grove<P>, id: AnonId, vma: &Vma) -> u32 {
        match grove.trees.get(slot_of(id)) {
            Some(tree) => Self::linked(grove, tree.owner, vma.start()),
            None => panic!("no tree {id:?}"),
        }
    }

    /// `child_vma` is a forked copy of `parent_vma`: it joins all trees of it
    /// and gets one of its own, or an old one that nobody will use again (rules
    /// RMAP-22, RMAP-23). Sets its tree; a parent without a tree has nothing to pass on.
    ///
    /// Under the mmap lock's write side of the parent.
    ///
    /// # Errors
    ///
    /// If there is no memory. `child_vma` names no tree then.
    ///
    /// # Panics
    ///
    /// If `parent_vma` names a tree but is not linked.
    pub fn fork_vma(
        &self,
        child: &Mm<P>,
        parent_vma: &Vma,
        child_vma: &Vma,
    ) -> Result<(), AllocError> {
        child_vma.set_anon(None);
        let Some(id) = parent_vma.anon() else { return Ok(()) };
        let lock = lock_of(id);
        let mut grove = self.groves[lock].write();
        let src = Self::linked_by_tree(&grove, id, parent_vma);
        let own = grove.add_copy(child, child_vma, src, Own::Child)?;
        child_vma.set_anon(Some(id_of(lock, own)));
        Ok(())
    }

    /// `dst` is part of, or a moved copy of, `src` in the same space: it joins
    /// all trees of it (rule RMAP-22). Walks visit it after `src`.
    ///
    /// Under the mmap lock's write side.
    ///
    /// # Errors
    ///
    /// If there is no memory. `dst` names no tree then.
    ///
    /// # Panics
    ///
    /// If `src` names a tree but is not linked.
    pub fn clone_vma(&self, mm: &Mm<P>, src: &Vma, dst: &Vma) -> Result<(), AllocError> {
        dst.set_anon(None);
        let Some(id) = src.anon() else { return Ok(()) };
        let mut grove = self.groves[lock_of(id)].write();
        let member = Self::linked(&grove, mm.id(), src.start());
        grove.add_copy(mm, dst, member, Own::Same)?;
        dst.set_anon(Some(id));
        Ok(())
    }

    /// `vma` had the range `old` and has another one now, and perhaps another
    /// linear index. Under the mmap lock's write side.
    ///
    /// # Panics
    ///
    /// If no VMA is linked at the start of `old`.
    pub fn adjusted(&self, mm: &Mm<P>, old: VirtRange, vma: &Vma) {
        let Some(id) = vma.anon() else { return };
        let mut grove = self.groves[lock_of(id)].write();
        let member = Self::linked(&grove, mm.id(), old.start());
        grove.relocate(member, vma);
    }

    /// The flags that walks see of `vma`; `None` if it is not linked. For audits.
    pub fn known_flags(&self, mm: &Mm<P>, vma: &Vma) -> Option<VmaFlags> {
        let (grove, _) = self.read(vma.anon()?);
        let member = grove.find(mm.id(), vma.start())?;
        grove.members.get(member).map(|m| m.place.flags)
    }

    /// `vma` is about to go: it leaves all trees (rule RMAP-24). Page tables
    /// under it may be freed only afterwards. Under the mmap lock's write side.
    ///
    /// # Panics
    ///
    /// If `vma` names a tree but is not linked.
    pub fn unlink(&self, mm: &Mm<P>, vma: &Vma) {
        let Some(id) = vma.anon() else { return };
        let mut grove = self.groves[lock_of(id)].write();
        let member = Self::linked(&grove, mm.id(), vma.start());
        grove.remove(member);
        vma.set_anon(None);
    }

    /// Whether `lower` and `upper` of one space may become one VMA as far as
    /// their trees are concerned: they are in the same ones, or one is in none and the
    /// other inherited none.
    pub fn mergeable(&self, lower: &Vma, upper: &Vma) -> bool {
        match (lower.anon(), upper.anon()) {
            (None, None) => true,
            (Some(a), Some(b)) => a == b,
            (Some(id), None) => self.is_singular(id, lower),
            (None, Some(id)) => self.is_singular(id, upper),
        }
    }
    fn is_singular(&self, id: AnonId, vma: &Vma) -> bool {
        let grove = self.groves[lock_of(id)].read();
        let member = Self::linked_by_tree(&grove, id, vma);
        grove.is_singular(member)
    }

    /// `lower` has swallowed `upper`, as [`VmaStore::merge_around`] reports it.
    /// Under the mmap lock's write side.
    ///
    /// # Panics
    ///
    /// If one of them names a tree but is not linked.
    pub fn merged(&self, mm: &Mm<P>, lower: &Vma, upper: &Vma) {
        let Some(id) = lower.anon() else { return };
        let mut grove = self.groves[lock_of(id)].write();
        let kept = match (grove.find(mm.id(), lower.start()), upper.anon()) {
            (Some(kept), None) => kept,
            (Some(kept), Some(_)) => {
                let gone = Self::linked(&grove, mm.id(), upper.start());
                grove.remove(gone);
                kept
            }
            // Only the upper one was in a tree.
            (None, _) => Self::linked(&grove, mm.id(), upper.start()),
        };
        grove.relocate(kept, lower);
    }

    /// The root of a tree: what the mapping of a folio names that may be shared
    /// with relatives (rule RMAP-02). An id that names no tree is its own root.
    pub fn root(&self, id: AnonId) -> AnonId {
        let (grove, slot) = self.read(id);
        grove.trees.get(slot).map_or(id, |t| id_of(lock_of(id), t.root))
    }
    /// Keeps every walk of `vma`'s trees waiting while the caller moves entries
    /// between VMAs that are visited in an order it does not know (rule
    /// RMAP-32). The holder calls nothing else of this type. `None` if the VMA
    /// is in no tree: no walk visits it.
    pub fn exclude_walks(&self, vma: &Vma) -> Option<WalksExcluded<'_, P>> {
        let id = vma.anon()?;
        Some(WalksExcluded { _grove: self.groves[lock_of(id)].write() })
    }
}

impl<P: RmapPlatform> Default for AnonTrees<P> {
    fn default() -> Self {
        AnonTrees::new()
    }
}
