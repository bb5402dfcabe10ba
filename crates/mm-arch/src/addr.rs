//! Addresses and ranges.

use core::fmt;

/// Bytes in a base page as a shift: what [`Pfn`]s count on every format with 4 KiB pages.
///
/// Formats with larger granules say so in [`Arch::PAGE_SHIFT`](crate::Arch::PAGE_SHIFT).
pub(crate) const BASE_PAGE_SHIFT: u32 = 12;

/// A user virtual address in bytes. Wider than `usize` on 32-bit hosts, so that
/// every format can be checked everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VirtAddr(u64);

/// A physical address in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PhysAddr(u64);

/// A physical page frame number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pfn(u64);

/// The frame of a page table: a [`Pfn`] that holds entries, not data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableFrame(Pfn);

impl VirtAddr {
    /// The address `bytes`.
    #[inline]
    pub const fn new(bytes: u64) -> Self {
        VirtAddr(bytes)
    }
    /// The address as a number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
    /// The address `bytes` further on, or `None` beyond the end of the address space.
    #[inline]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(a) => Some(VirtAddr(a)),
            None => None,
        }
    }
    /// The address `nr` units of `1 << shift` bytes further on, modulo the address space.
    #[inline]
    pub const fn add_units(self, nr: u64, shift: u32) -> Self {
        VirtAddr(self.0.wrapping_add(nr << shift))
    }
    /// The address rounded down to a multiple of `1 << shift`.
    #[inline]
    pub const fn align_down(self, shift: u32) -> Self {
        VirtAddr(self.0 >> shift << shift)
    }
    /// Whether the address is a multiple of `1 << shift`.
    #[inline]
    pub const fn is_aligned(self, shift: u32) -> bool {
        self.0 & ((1 << shift) - 1) == 0
    }
    /// Bytes from `base` to this address; the caller knows that `base` is not above it.
    #[inline]
    pub const fn bytes_from(self, base: VirtAddr) -> u64 {
        self.0.wrapping_sub(base.0)
    }
}

impl PhysAddr {
    /// The address `bytes`.
    #[inline]
    pub const fn new(bytes: u64) -> Self {
        PhysAddr(bytes)
    }
    /// The address as a number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Pfn {
    /// Frame number `nr`.
    #[inline]
    pub const fn new(nr: u64) -> Self {
        Pfn(nr)
    }
    /// The number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
    /// The frame `nr` frames further on.
    #[inline]
    pub const fn add(self, nr: u64) -> Self {
        Pfn(self.0.wrapping_add(nr))
    }
    /// Frames from `base` to this one; the caller knows that `base` is not above it.
    #[inline]
    pub const fn since(self, base: Pfn) -> u64 {
        self.0.wrapping_sub(base.0)
    }
    /// Whether the frame is naturally aligned for a folio of `order`.
    #[inline]
    pub const fn is_aligned(self, order: u32) -> bool {
        self.0 & ((1 << order) - 1) == 0
    }
    /// The physical address of the frame's first byte (4 KiB frames).
    #[inline]
    pub const fn phys(self) -> PhysAddr {
        PhysAddr(self.0 << BASE_PAGE_SHIFT)
    }
}

impl TableFrame {
    /// Declares that `pfn` holds a page table.
    #[inline]
    pub const fn new(pfn: Pfn) -> Self {
        TableFrame(pfn)
    }
    /// The frame number.
    #[inline]
    pub const fn pfn(self) -> Pfn {
        self.0
    }
}

macro_rules! hex_debug {
    ($($t:ident $name:literal),*) => {$(
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($name, "({:#x})"), self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )*};
}
hex_debug!(VirtAddr "VirtAddr", PhysAddr "PhysAddr", Pfn "Pfn");

impl fmt::Debug for TableFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableFrame({})", self.0)
    }
}

/// A range of virtual addresses: start and length, so that a range that ends at
/// the top of the address space needs no special case.
///
/// # Invariants
///
/// `start + bytes` does not exceed 2^64; the range is not empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct VirtRange {
    start: VirtAddr,
    bytes: u64,
}

/// Why a range could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// The length is zero.
    Empty,
    /// The range would pass the end of the 64-bit address space.
    Wraps {
        /// First address of the range.
        start: VirtAddr,
        /// Its length in bytes.
        bytes: u64,
    },
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RangeError::Empty => f.write_str("range is empty"),
            RangeError::Wraps { start, bytes } => {
                write!(
                    f,
                    "range of {bytes:#x} bytes at {start} passes the end of the address space"
                )
            }
        }
    }
}
impl core::error::Error for RangeError {}

impl VirtRange {
    /// `bytes` bytes from `start`.
    ///
    /// # Errors
    ///
    /// If the range is empty or passes the end of the address space.
    #[inline]
    pub const fn new(start: VirtAddr, bytes: u64) -> Result<Self, RangeError> {
        if bytes == 0 {
            return Err(RangeError::Empty);
        }
        // The last byte must be addressable; the end itself need not be.
        if start.0.checked_add(bytes - 1).is_none() {
            return Err(RangeError::Wraps { start, bytes });
        }
        Ok(VirtRange { start, bytes })
    }
    /// `nr` units of `1 << shift` bytes from `start`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    #[inline]
    pub const fn units(start: VirtAddr, nr: u64, shift: u32) -> Result<Self, RangeError> {
        if nr > (u64::MAX >> shift) {
            return Err(RangeError::Wraps { start, bytes: u64::MAX });
        }
        Self::new(start, nr << shift)
    }
    /// First address.
    #[inline]
    pub const fn start(self) -> VirtAddr {
        self.start
    }
    /// Length in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
    /// Last address (inclusive: it always exists).
    #[inline]
    pub const fn last(self) -> VirtAddr {
        VirtAddr(self.start.0 + (self.bytes - 1))
    }
    /// Length in units of `1 << shift` bytes.
    #[inline]
    pub const fn nr(self, shift: u32) -> u64 {
        self.bytes >> shift
    }
    /// Whether `addr` lies inside.
    #[inline]
    pub const fn contains(self, addr: VirtAddr) -> bool {
        addr.0.wrapping_sub(self.start.0) < self.bytes
    }
    /// Whether `other` lies wholly inside.
    #[inline]
    pub const fn covers(self, other: VirtRange) -> bool {
        let off = other.start.0.wrapping_sub(self.start.0);
        off < self.bytes && other.bytes <= self.bytes - off
    }
    /// The common part.
    #[inline]
    pub fn intersect(self, other: VirtRange) -> Option<VirtRange> {
        let start = self.start.max(other.start);
        let last = self.last().min(other.last());
        (start <= last).then(|| VirtRange { start, bytes: last.0 - start.0 + 1 })
    }
    /// The smallest range that covers both.
    #[inline]
    pub fn hull(self, other: VirtRange) -> VirtRange {
        let start = self.start.min(other.start);
        let last = self.last().max(other.last());
        // A hull of the whole 2^64 space has no u64 length; saturate, which
        // can only flush or visit one byte less at the very top.
        VirtRange { start, bytes: (last.0 - start.0).saturating_add(1) }
    }
    /// Bytes from `addr`, which lies inside, to the end.
    #[inline]
    pub const fn bytes_after(self, addr: VirtAddr) -> u64 {
        self.bytes - addr.0.wrapping_sub(self.start.0)
    }
}

impl fmt::Debug for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.start, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r(start: u64, bytes: u64) -> VirtRange {
        VirtRange::new(VirtAddr::new(start), bytes).expect("range")
    }

    /// Rules: ACC-23, MM-123.
    #[test]
    fn a_range_may_end_at_the_top_of_the_address_space() {
        let top = r(u64::MAX - 0xfff, 0x1000);
        assert_eq!(top.last().get(), u64::MAX);
        assert!(top.contains(VirtAddr::new(u64::MAX)));
        assert!(!top.contains(VirtAddr::new(0)));
        assert_eq!(top.bytes_after(VirtAddr::new(u64::MAX)), 1);
        assert!(VirtRange::new(VirtAddr::new(u64::MAX - 0xfff), 0x1001).is_err());
        assert!(VirtRange::new(VirtAddr::new(1), 0).is_err());
        assert!(VirtRange::units(VirtAddr::new(0), 1 << 60, 12).is_err());
    }

    #[test]
    fn set_operations() {
        let (a, b) = (r(0x1000, 0x3000), r(0x3000, 0x5000));
        assert_eq!(a.intersect(b), Some(r(0x3000, 0x1000)));
        assert_eq!(a.hull(b), r(0x1000, 0x7000));
        assert_eq!(a.intersect(r(0x4000, 1)), None);
        assert!(a.covers(r(0x1000, 0x3000)) && !a.covers(r(0x1000, 0x3001)) && !a.covers(r(0, 1)));
    }
}
