//! Checks that the trees, and what walks find through them, are as they must be.
//!
//! For tests and simulators: nothing may change meanwhile.

use crate::anon::id_of;
use crate::{AnonTrees, FileTrees, Hit, MappedWalk, RmapPlatform, Seek, Strict, Visitor, WalkEnd};
use core::ops::ControlFlow;
use mm_arch::VirtRange;
use mm_folio::{AnonId, FileId, Folio, MmId};

/// What is wrong with the trees (rule RMAP-20).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GraphFault {
    /// A tree claims another number of children than there are.
    Children {
        /// The tree.
        tree: AnonId,
        /// Counted.
        counted: u32,
        /// Claimed.
        claimed: u32,
    },
    /// A tree claims another number of active VMAs than there are.
    Active {
        /// The tree.
        tree: AnonId,
        /// Counted.
        counted: u32,
        /// Claimed.
        claimed: u32,
    },
    /// An active VMA of a tree is of another space than its other ones.
    Owner(AnonId),
    /// Links are not in order, or do not say what their member says.
    Links(AnonId),
    /// A tree's parent or root is gone, or of another family.
    Family(AnonId),
    /// A tree without VMAs and children was not freed.
    Empty(AnonId),
    /// A VMA is not in the tree that its new folios name.
    OwnTree(AnonId),
    /// A VMA is in a tree but not in the tree's parent.
    Inheritance(AnonId),
}

/// What the map count of a folio says, and what was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapcountFault {
    /// Entries found by a walk.
    pub found: u32,
    /// The folio's map count.
    pub claimed: u32,
}

impl<P: RmapPlatform> AnonTrees<P> {
    /// Number of trees.
    pub fn nr_trees(&self) -> usize {
        let mut n = 0;
        self.each_grove(|_, g| n += g.trees.iter().count());
        n
    }
    /// Number of VMAs that are in trees.
    pub fn nr_members(&self) -> usize {
        let mut n = 0;
        self.each_grove(|_, g| n += g.members.iter().count());
        n
    }

    /// Recounts the graph and reports every fault.
    pub fn audit(&self, bad: &mut dyn FnMut(GraphFault)) {
        self.each_grove(|lock, grove| {
            for (slot, tree) in grove.trees.iter() {
                let id = id_of(lock, slot);
                let children = grove.trees.iter().filter(|(_, t)| t.parent == slot).count() as u32;
                if children != tree.nr_children {
                    bad(GraphFault::Children {
                        tree: id,
                        counted: children,
                        claimed: tree.nr_children,
                    });
                }
                let active = || grove.members.iter().filter(|(_, m)| m.own == slot);
                let counted = active().count() as u32;
                if counted != tree.nr_active {
                    bad(GraphFault::Active { tree: id, counted, claimed: tree.nr_active });
                }
                if active().any(|(_, m)| m.place.mm_id != tree.owner) {
                    bad(GraphFault::Owner(id));
                }
                let links = tree.links.as_slice();
                let ordered = links.is_sorted_by_key(|l| l.first);
                let true_links = links.iter().all(|l| {
                    grove.members.get(l.member).is_some_and(|m| {
                        m.place.pgoff == l.first
                            && m.place.nr_pages == l.nr
                            && m.trees.contains(&slot)
                    })
                });
                let listed = grove.members.iter().filter(|(_, m)| m.trees.contains(&slot)).count();
                if !ordered || !true_links || listed != links.len() {
                    bad(GraphFault::Links(id));
                }
                let family = |t: u32| grove.trees.get(t).is_some_and(|t| t.root == tree.root);
                let is_root = tree.root == slot;
                if !family(tree.parent) || !family(tree.root) || is_root != (tree.parent == slot) {
                    bad(GraphFault::Family(id));
                }
                if tree.links.is_empty() && tree.nr_children <= u32::from(is_root) {
                    bad(GraphFault::Empty(id));
                }
            }
            for (_, m) in grove.members.iter() {
                if !m.trees.contains(&m.own) {
                    bad(GraphFault::OwnTree(id_of(lock, m.own)));
                }
                for &tree in &m.trees {
                    let parent = grove.trees.get(tree).map(|t| t.parent);
                    if !parent.is_some_and(|p| m.trees.contains(&p)) {
                        bad(GraphFault::Inheritance(id_of(lock, tree)));
                    }
                }
            }
        });
    }

    /// Counts the entries that map an anonymous folio, through the trees (rule
    /// INV-5). The folio is locked.
    pub fn count_mappings(&self, folio: Folio<'_, P>) -> u32 {
        count_hits(folio, |visit| self.walk(folio, visit))
    }
    /// Whether as many entries map the folio as its map count says (rule INV-5). Takes
    /// the folio lock if it is free; a locked folio must be locked by the caller.
    ///
    /// # Errors
    ///
    /// If not.
    pub fn audit_folio(&self, folio: Folio<'_, P>) -> Result<(), MapcountFault> {
        let _locked = folio.try_lock();
        compare(self.count_mappings(folio), folio)
    }
}

impl<P: RmapPlatform> FileTrees<P> {
    /// Every linked VMA: object, address space, range, index of the first page in
    /// the object.
    pub fn members(&self, each: &mut dyn FnMut(FileId, MmId, VirtRange, u64)) {
        self.each_link(&mut |id, link, place| {
            debug_assert_eq!(place.link(link.member), *link);
            each(id, place.mm_id, place.range, place.pgoff);
        });
    }
    /// As [`AnonTrees::audit_folio`], for a page of a file or of shared memory.
    ///
    /// # Errors
    ///
    /// If another number of entries map the folio than its map count says.
    pub fn audit_folio(&self, folio: Folio<'_, P>) -> Result<(), MapcountFault> {
        let _locked = folio.try_lock();
        compare(count_hits(folio, |visit| self.walk(folio, visit)), folio)
    }
}

/// Counts the entries that `walk` leads to.
fn count_hits<P: RmapPlatform>(
    folio: Folio<'_, P>,
    walk: impl FnOnce(&mut Visitor<'_, P>) -> WalkEnd,
) -> u32 {
    let mut found = 0;
    walk(&mut |mm, visit| {
        let mut walk = MappedWalk::<P, Strict>::new(mm, &visit, folio, Seek::Mappings);
        while let Some(hit) = walk.next_hit() {
            found += match hit {
                Hit::Pmd(_) | Hit::Pte(_) => 1,
            };
        }
        ControlFlow::Continue(())
    });
    found
}
fn compare<P: RmapPlatform>(found: u32, folio: Folio<'_, P>) -> Result<(), MapcountFault> {
    let claimed = folio.mapcount();
    if found == claimed { Ok(()) } else { Err(MapcountFault { found, claimed }) }
}
