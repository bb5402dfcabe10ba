//! The VMAs of an address space, in address order.

use crate::Vma;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use mm_arch::{VirtAddr, VirtRange};

/// Why the store refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// No memory for another VMA.
    NoMemory,
    /// The range overlaps a VMA.
    Overlaps(VirtRange),
    /// The address or length is not a multiple of the page size.
    Unaligned(VirtAddr),
    /// No VMA is there.
    NotMapped(VirtAddr),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::NoMemory => f.write_str("no memory for a VMA"),
            StoreError::Overlaps(r) => write!(f, "range overlaps the VMA {r:?}"),
            StoreError::Unaligned(a) => write!(f, "address {a} is not page aligned"),
            StoreError::NotMapped(a) => write!(f, "no VMA at {a}"),
        }
    }
}
impl core::error::Error for StoreError {}

/// VMAs sorted by address.
///
/// # Invariants
///
/// * Ranges are page-aligned, ascending and do not overlap.
/// * A VMA does not move in memory: who holds its lock refers to it.
#[derive(Debug)]
pub struct VmaStore {
    vmas: Vec<Kept>,
    page_shift: u32,
}

impl VmaStore {
    /// An empty store for pages of `1 << page_shift` bytes.
    pub const fn new(page_shift: u32) -> Self {
        VmaStore { vmas: Vec::new(), page_shift }
    }
    /// Index of the first VMA that ends behind `va`.
    #[inline]
    fn index_from(&self, va: VirtAddr) -> usize {
        self.vmas.partition_point(|v| v.range().last() < va)
    }
    /// The VMA that contains `va`.
    #[inline]
    pub fn find(&self, va: VirtAddr) -> Option<&Vma> {
        self.next_from(va).filter(|v| v.range().contains(va))
    }
    /// The VMA that contains `va`, to change.
    ///
    /// # Panics
    ///
    /// This and whatever else changes or removes VMAs, if one of them is locked: the writer
    /// did not exclude it.
    pub fn find_mut(&mut self, va: VirtAddr) -> Option<&mut Vma> {
        let i = self.index_from(va);
        self.vmas.get_mut(i).filter(|v| v.range().contains(va)).map(Kept::exclusive)
    }
    /// The first VMA that ends behind `va`.
    #[inline]
    pub fn next_from(&self, va: VirtAddr) -> Option<&Vma> {
        self.vmas.get(self.index_from(va)).map(|v| &**v)
    }
    /// All VMAs.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Vma> {
        self.vmas.iter().map(|v| &**v)
    }
    /// VMAs that overlap `range`.
    pub fn overlapping(&self, range: VirtRange) -> impl DoubleEndedIterator<Item = &Vma> {
        let (a, b) = self.span_of(range);
        self.vmas[a..b].iter().map(|v| &**v)
    }
    /// VMAs that overlap `range`, to change (not their ranges).
    pub fn overlapping_mut(&mut self, range: VirtRange) -> impl Iterator<Item = &mut Vma> {
        let (a, b) = self.span_of(range);
        self.vmas[a..b].iter_mut().map(Kept::exclusive)
    }
    fn span_of(&self, range: VirtRange) -> (usize, usize) {
        let a = self.index_from(range.start());
        let b = self.vmas.partition_point(|v| v.start() <= range.last());
        (a, b.max(a))
    }
    /// Whether VMAs cover all of `range`.
    pub fn covers(&self, range: VirtRange) -> bool {
        let covered: u64 = self
            .overlapping(range)
            .filter_map(|v| v.range().intersect(range))
            .map(VirtRange::bytes)
            .sum();
        covered == range.bytes()
    }
    /// The first address of `range` that no VMA covers.
    pub fn first_hole(&self, range: VirtRange) -> Option<VirtAddr> {
        let mut next = range.start();
        for vma in self.overlapping(range) {
            if vma.start() > next {
                return Some(next);
            }
            // `None` past the end of the address space: nothing is left to look at.
            next = vma.start().checked_add(vma.range().bytes())?;
        }
        range.contains(next).then_some(next)
    }
    /// Number of VMAs.
    pub fn len(&self) -> usize {
        self.vmas.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.vmas.is_empty()
    }
    fn check_aligned(&self, va: VirtAddr) -> Result<(), StoreError> {
        if va.is_aligned(self.page_shift) { Ok(()) } else { Err(StoreError::Unaligned(va)) }
    }
    /// Adds a VMA.
    ///
    /// # Errors
    ///
    /// If it is not page-aligned, overlaps, or there is no memory; nothing
    /// changed then.
    pub fn insert(&mut self, vma: Vma) -> Result<(), StoreError> {
        self.check_aligned(vma.start())?;
        self.check_aligned(VirtAddr::new(vma.range().bytes()))?;
        let (a, b) = self.span_of(vma.range());
        if a != b {
            return Err(StoreError::Overlaps(self.vmas[a].range()));
        }
        self.vmas.try_reserve(1).map_err(|_| StoreError::NoMemory)?;
        self.vmas.insert(a, Kept::new(vma)?);
        Ok(())
    }
    /// Makes `va` a VMA boundary; whether it was not one before.
    ///
    /// # Errors
    ///
    /// If `va` is not page-aligned or there is no memory; nothing changed then.
    pub fn split_at(&mut self, va: VirtAddr) -> Result<bool, StoreError> {
        self.check_aligned(va)?;
        self.vmas.try_reserve(1).map_err(|_| StoreError::NoMemory)?;
        let i = self.index_from(va);
        let Some((lower, upper)) = self.vmas.get(i).and_then(|v| v.parts(va)) else {
            return Ok(false);
        };
        let upper = Kept::new(upper)?;
        self.vmas[i].exclusive().set_range(lower);
        self.vmas.insert(i + 1, upper);
        Ok(true)
    }
    /// Makes both ends of `range` boundaries.
    ///
    /// # Errors
    ///
    /// As [`split_at`](Self::split_at); the first split may stay, which changes
    /// nothing that an access could see.
    pub fn split_around(&mut self, range: VirtRange) -> Result<(), StoreError> {
        self.split_at(range.start())?;
        if let Some(end) = range.start().checked_add(range.bytes()) {
            self.split_at(end)?;
        }
        Ok(())
    }
    /// Takes out all VMAs inside `range`, which was split around before, and
    /// hands them to `each`.
    pub fn remove(&mut self, range: VirtRange, mut each: impl FnMut(Vma)) {
        let (a, b) = self.span_of(range);
        for vma in self.vmas.drain(a..b) {
            debug_assert!(range.covers(vma.range()), "range was not split around");
            each(vma.take());
        }
    }
    /// Joins neighbours that meet in `range` or at an end of it and continue each other, where
    /// `compatible` says that their trees allow it; `joined` hears of each pair
    /// (the lower one as it is afterwards, and the upper one). Both touch the range, so a
    /// writer of it has excluded whoever would lock them.
    pub fn merge_around(
        &mut self,
        range: VirtRange,
        compatible: impl Fn(&Vma, &Vma) -> bool,
        mut joined: impl FnMut(&Vma, &Vma),
    ) {
        let (a, b) = self.span_of(range);
        let mut i = a.saturating_sub(1);
        let mut end = (b + 1).min(self.vmas.len());
        while i + 1 < end {
            let (lower, upper) = (&self.vmas[i], &self.vmas[i + 1]);
            let meet = upper.start() >= range.start() && lower.range().last() <= range.last();
            if meet && lower.continues_into(upper) && compatible(lower, upper) {
                let upper = self.vmas.remove(i + 1).take();
                self.vmas[i].exclusive().absorb(&upper);
                joined(&self.vmas[i], &upper);
                end -= 1;
            } else {
                i += 1;
            }
        }
    }
    /// Gives the VMA at `start` another length.
    ///
    /// # Errors
    ///
    /// If there is no VMA with that start, or the new range would overlap.
    pub fn resize(&mut self, start: VirtAddr, range: VirtRange) -> Result<(), StoreError> {
        self.check_aligned(VirtAddr::new(range.bytes()))?;
        let i = self.index_from(start);
        let next = self.vmas.get(i + 1).map(|v| v.range());
        match self.vmas.get_mut(i).filter(|v| v.start() == start && range.start() == start) {
            None => Err(StoreError::NotMapped(start)),
            Some(_) if next.is_some_and(|n| n.intersect(range).is_some()) => {
                Err(StoreError::Overlaps(range))
            }
            Some(vma) => {
                vma.exclusive().set_range(range);
                Ok(())
            }
        }
    }
}

/// One VMA, in an allocation of its own. A `Vec`: it can be refused memory, and while it moves, as
/// a `Box` must not, others may have pointers to what it holds.
///
/// # Invariants
///
/// It holds one element.
#[derive(Debug)]
struct Kept(Vec<Vma>);

impl Kept {
    fn new(vma: Vma) -> Result<Self, StoreError> {
        let mut kept = Vec::new();
        kept.try_reserve_exact(1).map_err(|_| StoreError::NoMemory)?;
        kept.push(vma);
        Ok(Kept(kept))
    }
    /// The VMA, to change: nobody holds its lock, nor takes it while the store is borrowed to
    /// change.
    fn exclusive(&mut self) -> &mut Vma {
        self.holders().expect_none();
        &mut self.0[0]
    }
    /// The VMA, out of the store.
    fn take(mut self) -> Vma {
        self.holders().expect_none();
        self.0.swap_remove(0)
    }
}

impl Deref for Kept {
    type Target = Vma;
    #[inline]
    fn deref(&self) -> &Vma {
        &self.0[0]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::VmaFlags;

    fn r(page: u64, n: u64) -> VirtRange {
        VirtRange::units(VirtAddr::new(page << 12), n, 12).expect("range")
    }
    fn vma(page: u64, n: u64) -> Vma {
        Vma::anonymous(r(page, n), VmaFlags::READ | VmaFlags::WRITE, 12)
    }
    fn ranges(s: &VmaStore) -> Vec<(u64, u64)> {
        s.iter().map(|v| (v.start().get() >> 12, v.nr_pages())).collect()
    }

    #[test]
    fn insert_finds_and_refuses_overlap() {
        let mut s = VmaStore::new(12);
        s.insert(vma(10, 4)).expect("insert");
        s.insert(vma(2, 4)).expect("insert");
        s.insert(vma(6, 4)).expect("fits exactly");
        assert_eq!(ranges(&s), [(2, 4), (6, 4), (10, 4)]);
        assert!(matches!(s.insert(vma(13, 2)), Err(StoreError::Overlaps(_))));
        assert_eq!(s.find(VirtAddr::new(9 << 12)).map(|v| v.pgoff()), Some(6));
        assert!(s.find(VirtAddr::new(1 << 12)).is_none());
        assert!(s.covers(r(2, 12)) && !s.covers(r(1, 12)));
        let odd = VirtRange::new(VirtAddr::new(0x10_0800), 0x1000).expect("range");
        assert!(matches!(
            s.insert(Vma::anonymous(odd, VmaFlags::READ, 12)),
            Err(StoreError::Unaligned(_))
        ));
    }

    #[test]
    fn split_and_merge_are_inverse() {
        let mut s = VmaStore::new(12);
        s.insert(vma(0, 16)).expect("insert");
        s.split_around(r(4, 4)).expect("split");
        assert_eq!(ranges(&s), [(0, 4), (4, 4), (8, 8)]);
        assert_eq!(s.find(VirtAddr::new(8 << 12)).map(|v| v.pgoff()), Some(8));
        let mut joins = 0;
        s.merge_around(r(4, 4), |_, _| true, |_, _| joins += 1);
        assert_eq!((ranges(&s), joins), (alloc::vec![(0, 16)], 2));
        s.split_around(r(4, 4)).expect("split");
        s.find_mut(VirtAddr::new(4 << 12)).expect("there").set_flags(VmaFlags::READ);
        s.merge_around(r(4, 4), |_, _| true, |_, _| ());
        assert_eq!(s.len(), 3, "different rights do not merge");
    }

    /// Rules: RMAP-28.
    #[test]
    fn overlap_by_linear_index() {
        let v = vma(100, 10);
        assert_eq!(v.overlap(95, 10), Some((VirtAddr::new(100 << 12), 5)));
        assert_eq!(v.overlap(105, 100), Some((VirtAddr::new(105 << 12), 5)));
        assert_eq!(v.overlap(90, 10), None);
        assert_eq!(v.overlap(u64::MAX - 3, 16), None);
    }
}
