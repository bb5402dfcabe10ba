//! The VMAs of one tree, by the linear indexes they cover.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use mm_arch::{VirtAddr, VirtRange};
use mm_folio::{AllocError, MmId};
use mm_vma::{Mm, Platform, Vma, VmaFlags};

/// A member of a tree, with its range of linear indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    pub first: u64,
    pub nr: u64,
    pub member: u32,
}

/// Members by linear index; equal ones in the order in which they joined, so that
/// a moved VMA is visited behind its original (rule RMAP-32).
#[derive(Debug)]
pub(crate) struct Links {
    at: Vec<Link>,
    /// No link covers more pages than this.
    longest: u64,
}

impl Links {
    pub const fn new() -> Self {
        Links { at: Vec::new(), longest: 0 }
    }
    /// Makes room for one more link.
    pub fn reserve(&mut self) -> Result<(), AllocError> {
        self.at.try_reserve(1).map_err(|_| AllocError)
    }
    pub fn as_slice(&self) -> &[Link] {
        &self.at
    }
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }
    /// The members that overlap `nr` indexes from `first` on, in order.
    pub fn overlapping(&self, first: u64, nr: u64) -> impl Iterator<Item = &Link> {
        let end = first.saturating_add(nr);
        // Whatever begins further down ends before `first`.
        let from = first.saturating_sub(self.longest);
        let start = self.at.partition_point(|l| l.first < from);
        self.at[start..]
            .iter()
            .take_while(move |l| l.first < end)
            .filter(move |l| first < l.first.saturating_add(l.nr))
    }
    /// Room for the link was reserved.
    pub fn link(&mut self, link: Link) {
        let before = mm_sync::mutant!("rmap.links.newest_first");
        let at =
            self.at.partition_point(|l| l.first < link.first || l.first == link.first && !before);
        self.at.insert(at, link);
        self.longest = self.longest.max(link.nr);
    }
    /// The link of a member becomes `link`, which begins where the old one did.
    pub fn replace(&mut self, link: Link) {
        let from = self.at.partition_point(|l| l.first < link.first);
        if let Some(old) = self.at[from..].iter_mut().find(|l| l.member == link.member) {
            *old = link;
        }
        self.longest = self.longest.max(link.nr);
    }
    /// Takes out the link of `member`, which begins at `first`.
    pub fn unlink(&mut self, first: u64, member: u32) {
        let from = self.at.partition_point(|l| l.first < first);
        if let Some(i) = self.at[from..].iter().position(|l| l.member == member) {
            self.at.remove(from + i);
        }
        if self.at.is_empty() {
            self.longest = 0;
        }
    }
}

/// Where a linked VMA is: what walks need to know of it.
pub(crate) struct Place<P: Platform> {
    /// Does not keep the space alive: a space unlinks its VMAs when it exits.
    mm: Weak<Mm<P>>,
    pub mm_id: MmId,
    pub range: VirtRange,
    pub pgoff: u64,
    pub nr_pages: u64,
    /// Whoever changes them says so.
    pub flags: VmaFlags,
    /// It shows no object: never changes.
    pub anonymous: bool,
    /// What it shows wants to hear of first stores: never changes.
    pub notifies_writes: bool,
}

impl<P: Platform> Place<P> {
    pub fn of(mm: &Mm<P>, vma: &Vma) -> Self {
        Place {
            mm: mm.downgrade(),
            mm_id: mm.id(),
            range: vma.range(),
            pgoff: vma.pgoff(),
            nr_pages: vma.nr_pages(),
            flags: vma.flags(),
            anonymous: vma.is_anonymous(),
            notifies_writes: vma.rights().notifies_writes,
        }
    }
    pub fn key(&self) -> (MmId, VirtAddr) {
        (self.mm_id, self.range.start())
    }
    pub fn link(&self, member: u32) -> Link {
        Link { first: self.pgoff, nr: self.nr_pages, member }
    }
    /// The VMA has another range or other flags, and perhaps another linear index.
    pub fn adjust(&mut self, vma: &Vma) {
        self.flags = vma.flags();
        (self.range, self.pgoff, self.nr_pages) = (vma.range(), vma.pgoff(), vma.nr_pages());
    }
    /// The address space, if it is not gone.
    pub fn space(&self) -> Option<Arc<Mm<P>>> {
        self.mm.upgrade()
    }
}
