//! Protection templates.

use crate::bits::{
    ACCESSED, INNER_SHAREABLE, NOT_GLOBAL, OVERLAY, OVERLAY_SHIFT, PRESENT_INVALID,
    PRIVILEGED_NO_EXECUTE, READ_ONLY, TYPE, USER, USER_NO_EXECUTE, VALID, WRITE,
};
use crate::granule::Output;
use mm_arch::{Protection, Rights};

/// The bits of an entry that come from the mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arm64Prot(u64);

impl Arm64Prot {
    /// The template with these bits.
    #[inline]
    pub const fn from_bits(raw: u64) -> Self {
        Arm64Prot(raw)
    }
    /// The bits.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// The template for `p`. Of a protection key the lower three bits count: they are the
    /// overlay.
    ///
    /// Every template is clean, so "read-only" is set in all; one whose stores go through
    /// at once has DBM beside it. Private writable mappings get it from a fault that
    /// knows whose page it is.
    pub(crate) const fn new(p: Protection, output: Output) -> Self {
        // With LPA2 the translation regime says how memory is shared, not the entry.
        let shared = if matches!(output, Output::Bits52Lpa2) { 0 } else { INNER_SHAREABLE };
        let key = (p.pkey as u64) << OVERLAY_SHIFT & OVERLAY;
        let base = TYPE | READ_ONLY | shared | ACCESSED | PRIVILEGED_NO_EXECUTE | key;
        if p.rights.is_empty() {
            return Arm64Prot(base | PRESENT_INVALID | USER_NO_EXECUTE);
        }
        let mut raw = base | VALID | NOT_GLOBAL;
        if p.rights.intersects(Rights::READ.union(Rights::WRITE)) {
            raw |= USER;
        }
        if p.rights.contains(Rights::WRITE) && p.writable_at_once {
            raw |= WRITE;
        }
        if !p.rights.contains(Rights::EXEC) {
            raw |= USER_NO_EXECUTE;
        }
        Arm64Prot(raw)
    }
}

impl core::fmt::Debug for Arm64Prot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Arm64Prot({:#x})", self.0)
    }
}
