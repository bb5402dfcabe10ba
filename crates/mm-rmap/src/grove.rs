//! The anonymous trees that share one lock: their graph, without the locking.

use crate::links::{Links, Place};
use alloc::vec::Vec;
use mm_arch::VirtAddr;
use mm_folio::{AllocError, MmId};
use mm_vma::{Mm, Platform, Vma};

/// Things by number. Numbers of removed things are used again.
pub(crate) struct Slots<T> {
    at: Vec<Option<T>>,
    // Room for every number, so that removing allocates nothing.
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub const fn new() -> Self {
        Slots { at: Vec::new(), free: Vec::new() }
    }
    /// Makes room, so that the next [`insert`](Self::insert) does not allocate.
    pub fn reserve(&mut self) -> Result<(), AllocError> {
        if self.free.is_empty() {
            if self.at.len() >= MAX_SLOTS {
                return Err(AllocError);
            }
            self.at.try_reserve(1).map_err(|_| AllocError)?;
            self.free.try_reserve(self.at.len() + 1).map_err(|_| AllocError)?;
        }
        Ok(())
    }
    pub fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.at[slot as usize] = Some(value);
                slot
            }
            None => {
                self.at.push(Some(value));
                (self.at.len() - 1) as u32
            }
        }
    }
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.at.get_mut(slot as usize)?.take();
        if value.is_some() {
            self.free.push(slot);
        }
        value
    }
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.at.get(slot as usize)?.as_ref()
    }
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.at.get_mut(slot as usize)?.as_mut()
    }
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.at.iter().enumerate().filter_map(|(i, t)| Some((i as u32, t.as_ref()?)))
    }
}

/// Numbers that an id has room for, beside the number of the lock.
const MAX_SLOTS: usize = 1 << 26;

/// A tree: the VMAs in which folios that name it may be mapped.
pub(crate) struct Tree {
    /// The tree that the family started with; itself, for that one.
    pub root: u32,
    /// The tree that this one was forked from; itself, for a root.
    pub parent: u32,
    /// Trees whose parent this is. A root counts itself (rule RMAP-20).
    pub nr_children: u32,
    /// VMAs whose new folios name this tree.
    pub nr_active: u32,
    /// The address space of the active VMAs: there is never more than one.
    pub owner: MmId,
    /// Its members.
    pub links: Links,
}

/// A VMA that is in trees.
pub(crate) struct Member<P: Platform> {
    pub place: Place<P>,
    /// The tree that its new folios name.
    pub own: u32,
    /// All trees that it is in, in the order in which it joined: the oldest first.
    pub trees: Vec<u32>,
}

/// How a new member comes by the tree that its new folios will name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    /// It is the tree of the VMA it is a copy of.
    Same,
    /// It is a tree of its own, or one that nobody needs (fork).
    Child,
}

/// Families of trees under one lock.
///
/// # Invariants
///
/// * A family (a root, and the trees forked from it) lies in one grove.
/// * A member is linked into exactly the trees it lists, and lists its own one.
/// * Members of a tree are also members of its parent, so a tree empties
///   before its parent does.
pub(crate) struct Grove<P: Platform> {
    pub trees: Slots<Tree>,
    pub members: Slots<Member<P>>,
    /// Members by address space and first address.
    by_start: Vec<u32>,
}

impl<P: Platform> Grove<P> {
    pub const fn new() -> Self {
        Grove { trees: Slots::new(), members: Slots::new(), by_start: Vec::new() }
    }
    fn position(&self, key: (MmId, VirtAddr)) -> Result<usize, usize> {
        self.by_start.binary_search_by(|m| match self.members.get(*m) {
            Some(member) => member.place.key().cmp(&key),
            None => core::cmp::Ordering::Less,
        })
    }
    /// The member of `mm` that starts at `start`.
    pub fn find(&self, mm: MmId, start: VirtAddr) -> Option<u32> {
        self.position((mm, start)).ok().map(|i| self.by_start[i])
    }
    /// Whether `member` is in one tree only: it inherited nothing.
    pub fn is_singular(&self, member: u32) -> bool {
        self.members.get(member).is_some_and(|m| m.trees.len() == 1)
    }
    fn tree_mut(&mut self, tree: u32) -> &mut Tree {
        match self.trees.get_mut(tree) {
            Some(tree) => tree,
            None => unreachable!("a member lists a tree that is gone"),
        }
    }

    fn reserve_member(&mut self) -> Result<(), AllocError> {
        self.members.reserve()?;
        self.by_start.try_reserve(1).map_err(|_| AllocError)
    }
    /// Everything was reserved.
    fn insert_member(&mut self, member: Member<P>) -> u32 {
        let key = member.place.key();
        let at = self.position(key);
        debug_assert!(at.is_err(), "a VMA of {key:?} is linked already");
        let slot = self.members.insert(member);
        let (Ok(at) | Err(at)) = at;
        self.by_start.insert(at, slot);
        slot
    }
    fn new_member(
        mm: &Mm<P>,
        vma: &Vma,
        own: u32,
        nr_trees: usize,
    ) -> Result<Member<P>, AllocError> {
        let mut trees = Vec::new();
        trees.try_reserve_exact(nr_trees).map_err(|_| AllocError)?;
        Ok(Member { place: Place::of(mm, vma), own, trees })
    }

    /// Links `vma` into the tree of `neighbour`, or into a new root
    /// (rule RMAP-21): the tree.
    pub fn add_first(
        &mut self,
        mm: &Mm<P>,
        vma: &Vma,
        neighbour: Option<u32>,
    ) -> Result<u32, AllocError> {
        self.reserve_member()?;
        let mut member = Self::new_member(mm, vma, 0, 1)?;
        let reused = neighbour.and_then(|n| self.members.get(n)).map(|n| n.own);
        let tree = match reused {
            Some(tree) => {
                self.tree_mut(tree).links.reserve()?;
                tree
            }
            None => {
                self.trees.reserve()?;
                let tree = Self::new_tree(mm.id())?;
                let slot = self.trees.insert(tree);
                let tree = self.tree_mut(slot);
                (tree.root, tree.parent, tree.nr_children) = (slot, slot, 1);
                slot
            }
        };
        member.own = tree;
        member.trees.push(tree);
        let slot = self.insert_member(member);
        self.link_member(slot, tree);
        self.tree_mut(tree).nr_active += 1;
        Ok(tree)
    }
    /// A tree with room for one link.
    fn new_tree(owner: MmId) -> Result<Tree, AllocError> {
        let mut links = Links::new();
        links.reserve()?;
        Ok(Tree { root: 0, parent: 0, nr_children: 0, nr_active: 0, owner, links })
    }
    fn link_member(&mut self, member: u32, tree: u32) {
        if let Some(link) = self.members.get(member).map(|m| m.place.link(member)) {
            self.tree_mut(tree).links.link(link);
        }
    }

    /// Links `vma` of `mm` into every tree of `src`: the tree of its new folios
    /// (rules RMAP-22, RMAP-23). All memory is allocated before anything is linked.
    pub fn add_copy(
        &mut self,
        mm: &Mm<P>,
        vma: &Vma,
        src: u32,
        own: Own,
    ) -> Result<u32, AllocError> {
        let Some(source) = self.members.get(src) else { return Err(AllocError) };
        let (parent, nr_trees) = (source.own, source.trees.len());
        // A tree without active VMAs and with at most one child will never get
        // a new folio of anybody else: a chain of forks whose parents exit
        // would otherwise grow by a tree per generation.
        let idle =
            |t: &&u32| self.trees.get(**t).is_some_and(|t| t.nr_active == 0 && t.nr_children < 2);
        let reused = match own {
            Own::Same => Some(parent),
            Own::Child => source.trees.iter().find(idle).copied(),
        };
        let root = self.trees.get(parent).map_or(parent, |t| t.root);

        self.reserve_member()?;
        let mut member = Self::new_member(mm, vma, parent, nr_trees + 1)?;
        if let Some(source) = self.members.get(src) {
            member.trees.extend_from_slice(&source.trees);
        }
        for &tree in &member.trees {
            self.tree_mut(tree).links.reserve()?;
        }
        let own = match reused {
            Some(tree) => tree,
            None => {
                self.trees.reserve()?;
                let tree = Self::new_tree(mm.id())?;
                let slot = self.trees.insert(Tree { root, parent, ..tree });
                self.tree_mut(parent).nr_children += 1;
                member.trees.push(slot);
                slot
            }
        };
        // Nothing fails from here on.
        member.own = own;
        let slot = self.insert_member(member);
        for i in 0.. {
            let Some(&tree) = self.members.get(slot).and_then(|m| m.trees.get(i)) else { break };
            self.link_member(slot, tree);
        }
        let tree = self.tree_mut(own);
        tree.nr_active += 1;
        tree.owner = mm.id();
        Ok(own)
    }

    /// Gives a member another range and linear index.
    pub fn relocate(&mut self, member: u32, vma: &Vma) {
        let Some(m) = self.members.get(member) else { return };
        let (old_key, old_pgoff) = (m.place.key(), m.place.pgoff);
        if m.place.range == vma.range() && old_pgoff == vma.pgoff() {
            if let Some(m) = self.members.get_mut(member) {
                m.place.adjust(vma);
            }
            return;
        }
        if let Ok(at) = self.position(old_key) {
            self.by_start.remove(at);
        }
        for i in 0.. {
            let Some(&tree) = self.members.get(member).and_then(|m| m.trees.get(i)) else { break };
            self.tree_mut(tree).links.unlink(old_pgoff, member);
        }
        if let Some(m) = self.members.get_mut(member) {
            m.place.adjust(vma);
            let key = m.place.key();
            let (Ok(at) | Err(at)) = self.position(key);
            // Into the room that the old position left.
            self.by_start.insert(at, member);
        }
        for i in 0.. {
            let Some(&tree) = self.members.get(member).and_then(|m| m.trees.get(i)) else { break };
            self.link_member(member, tree);
        }
    }

    /// Takes a member out of all trees; trees that are empty then are gone
    /// (rule RMAP-24).
    pub fn remove(&mut self, member: u32) {
        let Some(key) = self.members.get(member).map(|m| m.place.key()) else { return };
        if let Ok(at) = self.position(key) {
            self.by_start.remove(at);
        }
        let Some(m) = self.members.remove(member) else { return };
        self.tree_mut(m.own).nr_active -= 1;
        for &tree in &m.trees {
            self.tree_mut(tree).links.unlink(m.place.pgoff, member);
        }
        // The youngest first: a root goes last.
        for &tree in m.trees.iter().rev() {
            self.prune(tree);
        }
    }
    /// Frees a tree that nobody is in, and its parents if that was their last child.
    fn prune(&mut self, mut tree: u32) {
        while let Some(t) = self.trees.get(tree) {
            let (is_root, parent) = (t.parent == tree, t.parent);
            if !t.links.is_empty() || t.nr_children > u32::from(is_root) {
                return;
            }
            debug_assert_eq!(t.nr_active, 0, "an empty tree has active VMAs");
            self.trees.remove(tree);
            if is_root {
                return;
            }
            self.tree_mut(parent).nr_children -= 1;
            tree = parent;
        }
    }
}
