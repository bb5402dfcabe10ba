//! Protection templates (rule PTE-11).

use crate::bits;
use crate::layout::Layout;
use mm_arch::{Protection, Rights};

/// The bits of an entry that come from the mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct X86Prot(u64);

impl X86Prot {
    /// The template with these bits. A frame in them is dropped.
    #[inline]
    pub const fn from_bits(raw: u64) -> Self {
        X86Prot(raw & !bits::FRAME)
    }
    /// The bits.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// The template for `p`. Of a protection key the lower four bits count, and none
    /// where the format has no keys.
    ///
    /// Private writable mappings get the read-only template: write permission is
    /// added by a fault that knows whose page it is.
    pub(crate) const fn new<L: Layout>(p: Protection) -> Self {
        let key = (p.pkey as u64) << bits::PKEY_SHIFT & L::PKEY;
        if p.rights.is_empty() {
            return X86Prot(key | bits::ACCESSED | bits::PROT_NONE);
        }
        let mut raw = key | bits::PRESENT | bits::USER | bits::ACCESSED;
        if p.rights.contains(Rights::WRITE) && p.writable_at_once {
            raw |= bits::WRITE;
        }
        if !p.rights.contains(Rights::EXEC) {
            raw |= bits::NO_EXECUTE;
        }
        X86Prot(raw)
    }
}

impl core::fmt::Debug for X86Prot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "X86Prot({:#x})", self.0)
    }
}
