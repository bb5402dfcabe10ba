//! One mapping.

use crate::vma_lock::Holders;
use crate::{Backing, VmaFlags, VmaRights};
use alloc::sync::Arc;
use mm_arch::{Protection, VirtAddr, VirtRange, WriteKind};
use mm_folio::AnonId;
use mm_sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

/// A mapping: a range of pages with equal rights.
///
/// # Invariants
///
/// The range is page-aligned. `anon` goes from none to one id under the mmap
/// lock's read side (the first anonymous fault), and changes otherwise only
/// under the write side. Nothing else but what faults learn changes while somebody
/// holds the mmap lock's read side or the lock of this VMA.
#[derive(Debug)]
pub struct Vma {
    range: VirtRange,
    flags: VmaFlags,
    // Linear index of the first page (rule RMAP-28).
    pgoff: u64,
    page_shift: u32,
    // What the mapping shows; its own memory without one.
    backing: Option<Arc<dyn Backing>>,
    // AnonId + 1, 0 for none.
    anon: AtomicU32,
    // What the fault code learned here; 0 for nothing. A hint: any value is
    // right, and racing writers may lose each other's.
    fault_hint: AtomicU32,
    // What faults saved here and may spend.
    fault_credit: AtomicU16,
    // Whether it grew by another mapping since it was last copied by a fork.
    joined: AtomicBool,
    holders: Holders,
}

/// The learned state goes along but for the credit, which is not there twice.
impl Clone for Vma {
    fn clone(&self) -> Self {
        Vma {
            range: self.range,
            flags: self.flags,
            pgoff: self.pgoff,
            page_shift: self.page_shift,
            backing: self.backing.clone(),
            anon: AtomicU32::new(self.anon.load(Ordering::Relaxed)),
            fault_hint: AtomicU32::new(self.fault_hint()),
            fault_credit: AtomicU16::new(0),
            joined: AtomicBool::new(self.joined_since_fork()),
            holders: Holders::none(),
        }
    }
}

impl Vma {
    /// A private anonymous mapping; `flags` without the `MAY` flags grants all
    /// of them.
    pub fn anonymous(range: VirtRange, flags: VmaFlags, page_shift: u32) -> Self {
        Vma {
            range,
            flags: flags | VmaFlags::MAY_PRIVATE,
            pgoff: range.start().get() >> page_shift,
            page_shift,
            backing: None,
            anon: AtomicU32::new(0),
            fault_hint: AtomicU32::new(0),
            fault_credit: AtomicU16::new(0),
            joined: AtomicBool::new(false),
            holders: Holders::none(),
        }
    }
    /// A mapping of `backing` from page `first_page` of it on. `flags` says whether
    /// it is shared, and which rights may be granted later.
    pub fn of_backing(
        range: VirtRange,
        flags: VmaFlags,
        page_shift: u32,
        backing: Arc<dyn Backing>,
        first_page: u64,
    ) -> Self {
        Vma {
            flags,
            pgoff: first_page,
            backing: Some(backing),
            ..Vma::anonymous(range, flags, page_shift)
        }
    }
    /// The addresses.
    #[inline]
    pub fn range(&self) -> VirtRange {
        self.range
    }
    /// First address.
    #[inline]
    pub fn start(&self) -> VirtAddr {
        self.range.start()
    }
    /// Number of pages.
    #[inline]
    pub fn nr_pages(&self) -> u64 {
        self.range.nr(self.page_shift)
    }
    /// The flags.
    #[inline]
    pub fn flags(&self) -> VmaFlags {
        self.flags
    }
    /// Replaces the flags.
    pub fn set_flags(&mut self, flags: VmaFlags) {
        self.flags = flags;
    }
    /// Linear index of the first page.
    #[inline]
    pub fn pgoff(&self) -> u64 {
        self.pgoff
    }
    /// Linear index of the page at `va`, which lies inside.
    #[inline]
    pub fn linear_index(&self, va: VirtAddr) -> u64 {
        self.pgoff + (va.bytes_from(self.start()) >> self.page_shift)
    }
    /// Where the page with linear index `index` is mapped, if it is inside.
    pub fn address_of(&self, index: u64) -> Option<VirtAddr> {
        let nr = index.checked_sub(self.pgoff)?;
        (nr < self.nr_pages()).then(|| self.start().add_units(nr, self.page_shift))
    }
    /// The part of `n` pages from linear index `index` on that lies inside:
    /// address of its first page, and number of pages (rule RMAP-28).
    pub fn overlap(&self, index: u64, n: u64) -> Option<(VirtAddr, u64)> {
        let first = index.max(self.pgoff);
        let end = index.saturating_add(n).min(self.pgoff.saturating_add(self.nr_pages()));
        (first < end)
            .then(|| (self.start().add_units(first - self.pgoff, self.page_shift), end - first))
    }
    /// Private and possibly writable: stores copy (rule "COW mapping").
    #[inline]
    pub fn is_cow(&self) -> bool {
        self.flags & (VmaFlags::SHARED | VmaFlags::MAYWRITE) == VmaFlags::MAYWRITE
    }
    /// Not a mapping of a file or of shared memory.
    #[inline]
    pub fn is_anonymous(&self) -> bool {
        self.backing.is_none()
    }
    /// The file or object that the mapping shows.
    #[inline]
    pub fn backing(&self) -> Option<&Arc<dyn Backing>> {
        self.backing.as_ref()
    }
    /// Whether both show the same object, or none.
    pub fn same_backing(&self, other: &Vma) -> bool {
        self.backing.as_ref().map(|b| b.id()) == other.backing.as_ref().map(|b| b.id())
    }
    /// Whether a first store through the mapping must fault even where stores are
    /// allowed: somebody wants to hear of it (rule FILE-08).
    #[inline]
    pub fn wants_write_notify(&self) -> bool {
        self.rights().wants_write_notify()
    }
    /// What the mapping allows, apart from where it is.
    #[inline]
    pub fn rights(&self) -> VmaRights {
        VmaRights {
            flags: self.flags,
            notifies_writes: self.backing.as_ref().is_some_and(|b| b.notifies_writes()),
        }
    }
    /// The aligned block of `order` around `va`, if a folio of that size in the
    /// object could be mapped as a whole there: the mapping covers the block, and
    /// shows the object at the same alignment (rules ANON-06, ANON-08).
    pub fn block(&self, va: VirtAddr, order: u32) -> Option<VirtRange> {
        let start = va.align_down(self.page_shift + order);
        let block = VirtRange::units(start, 1 << order, self.page_shift).ok()?;
        let first = (self.start().get() >> self.page_shift).wrapping_sub(self.pgoff);
        let aligned = self.is_anonymous() || first & ((1 << order) - 1) == 0;
        (aligned && self.range.covers(block)).then_some(block)
    }
    /// Any access at all is allowed.
    #[inline]
    pub fn is_accessible(&self) -> bool {
        self.flags.intersects(VmaFlags::ACCESS)
    }
    /// The protection that entries of this mapping start with. Private writable
    /// mappings start read-only, and shared ones while stores are announced (rules
    /// PTE-11, FILE-08).
    #[inline]
    pub fn protection(&self) -> Protection {
        self.rights().protection()
    }
    /// Which kind of store a writable entry of this mapping allows.
    #[inline]
    pub fn write_kind(&self) -> WriteKind {
        self.rights().write_kind()
    }
    /// Whether soft-dirty tracking wants a fault for each first store: the
    /// format tracks, and the mapping does not start dirty (rule PTE-14).
    #[inline]
    pub fn tracks_soft_dirty(&self, format_has_it: bool) -> bool {
        format_has_it && !self.flags.contains(VmaFlags::SOFTDIRTY)
    }
    /// The reverse-map tree that new anonymous folios of this mapping belong to.
    #[inline]
    pub fn anon(&self) -> Option<AnonId> {
        match self.anon.load(Ordering::Acquire) {
            0 => None,
            n => Some(AnonId(n - 1)),
        }
    }
    /// Sets the tree. Release: who finds the id finds the tree set up.
    #[inline]
    pub fn set_anon(&self, anon: Option<AnonId>) {
        self.anon.store(anon.map_or(0, |a| a.0 + 1), Ordering::Release);
    }
    /// What faults in this mapping learned about how it is used, in a form that
    /// only they know; 0 for nothing. Parts of a split mapping and moved or
    /// copied mappings start with it, a merged one keeps the lower part's.
    #[inline]
    pub fn fault_hint(&self) -> u32 {
        self.fault_hint.load(Ordering::Relaxed)
    }
    /// Replaces [`fault_hint`](Self::fault_hint), under either side of the mmap
    /// lock or the lock of this VMA. Concurrent faults may overwrite each other's.
    #[inline]
    pub fn set_fault_hint(&self, hint: u32) {
        self.fault_hint.store(hint, Ordering::Relaxed);
    }
    /// What faults in this mapping saved and have not spent, in a unit that only
    /// they know. Every copy of the mapping starts without.
    #[inline]
    pub fn fault_credit(&self) -> u16 {
        self.fault_credit.load(Ordering::Relaxed)
    }
    /// Saves `n`, as far as no more than `most` are saved then.
    #[inline]
    pub fn save_fault_credit(&self, n: u16, most: u16) {
        let add = |had: u16| (had < most).then(|| had.saturating_add(n).min(most));
        let _ = self.fault_credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
    /// Spends `n`; `false`, and nothing, if that is not there: concurrent faults
    /// do not spend the same.
    #[must_use]
    #[inline]
    pub fn spend_fault_credit(&self, n: u16) -> bool {
        if mm_sync::mutant!("vma.credit.not_rmw") {
            let had = self.fault_credit();
            self.fault_credit.store(had.saturating_sub(n), Ordering::Relaxed);
            return had >= n;
        }
        let sub = |had: u16| had.checked_sub(n);
        self.fault_credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sub).is_ok()
    }
    /// Whether another mapping was joined to this one since a fork last took
    /// the write permission from all of its private pages: its parts may have lost
    /// theirs at different times.
    #[inline]
    pub fn joined_since_fork(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }
    /// A fork took the write permission from all private pages. Under the write
    /// side of the mmap lock.
    pub fn forked(&self) {
        self.joined.store(false, Ordering::Relaxed);
    }
    /// The same mapping elsewhere: the linear index stays (a move keeps the
    /// identity of its pages).
    #[must_use]
    pub fn moved_to(&self, range: VirtRange, pgoff: u64) -> Self {
        Vma { range, pgoff, ..self.clone() }
    }
    /// The mapping cut at `va`, strictly inside: the range of the lower part, and the
    /// upper part.
    pub(crate) fn parts(&self, va: VirtAddr) -> Option<(VirtRange, Self)> {
        if !self.range.contains(va) || va == self.start() {
            return None;
        }
        let lower = VirtRange::new(self.start(), va.bytes_from(self.start())).ok()?;
        let upper = VirtRange::new(va, self.range.bytes() - lower.bytes()).ok()?;
        Some((lower, self.moved_to(upper, self.linear_index(va))))
    }
    /// Who holds the lock of this VMA.
    pub(crate) fn holders(&self) -> &Holders {
        &self.holders
    }
    /// Whether `next` continues this mapping: adjacent, same rights, same
    /// linear indexes. The trees are the caller's business.
    pub fn continues_into(&self, next: &Vma) -> bool {
        self.start().checked_add(self.range.bytes()) == Some(next.start())
            && self.flags == next.flags
            && self.same_backing(next)
            && self.pgoff + self.nr_pages() == next.pgoff
    }
    pub(crate) fn absorb(&mut self, next: &Vma) {
        self.range = self.range.hull(next.range);
        // A part that has never faulted has nothing that could differ.
        if self.anon().is_some() && next.anon().is_some() {
            self.joined.store(true, Ordering::Relaxed);
        } else if self.anon().is_none() {
            self.set_anon(next.anon());
            self.joined.store(next.joined_since_fork(), Ordering::Relaxed);
        }
    }
    /// Makes the mapping end after `bytes`, or grow to that.
    pub(crate) fn set_range(&mut self, range: VirtRange) {
        self.range = range;
    }
}
