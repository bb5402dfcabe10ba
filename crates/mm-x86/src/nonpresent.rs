//! Entries without a translation (rules SWP-01..05).
//!
//! ```text
//! 63    59 58                          9 8 7 6 5 4 3 2 1 0
//! [ type ] [ complement of the offset  ] 0 0 - - - E F S 0
//! ```
//!
//! E exclusive, F uffd-wp, S soft-dirty. Bits 8 and 7 are clear, or the entry
//! would look present; bits 6 and 5 are unused, as some CPUs set them in entries
//! that they should not touch. The offset is complemented for the same reason as
//! the frame of an inaccessible mapping.
//!
//! A 32-bit kernel has 26 bits of offset, no F and no S, and E in bit 7: there a PMD
//! never holds such an entry (rule PAE-13). The low word of one may be zero.

use crate::bits::{PAGE_SIZE, PRESENT, PROT_NONE};
use crate::layout::Layout;
use mm_arch::{EncodeError, Level, SwapBits, TypeOffset};

const TYPE_SHIFT: u32 = 59;
pub(crate) const OFFSET_SHIFT: u32 = 9;
const OFFSET_MASK: u64 = (1 << (TYPE_SHIFT - OFFSET_SHIFT)) - 1;

const fn flags_of<L: Layout>() -> u64 {
    L::SWAP_EXCLUSIVE | L::SWAP_UFFD_WP | L::SWAP_SOFT_DIRTY
}

/// Whether a raw value has the form above. The one type and offset that
/// [`encode`] refuses do not: flags alone mean nothing.
#[inline(always)]
pub(crate) const fn is_swap_form<L: Layout>(raw: u64, level: Level) -> bool {
    let looks_present = (PRESENT | PROT_NONE | PAGE_SIZE) & !L::SWAP_EXCLUSIVE;
    (matches!(level, Level::Pte) || L::PMD_NONPRESENT && matches!(level, Level::Pmd))
        && raw & looks_present == 0
        && raw >> OFFSET_SHIFT != 0
}

#[inline]
pub(crate) const fn decode(raw: u64) -> TypeOffset {
    TypeOffset { ty: (raw >> TYPE_SHIFT) as u8, offset: !raw >> OFFSET_SHIFT & OFFSET_MASK }
}

pub(crate) fn encode<L: Layout>(what: TypeOffset, flags: SwapBits) -> Result<u64, EncodeError> {
    let TypeOffset { ty, offset } = what;
    if ty >> 5 != 0 {
        return Err(EncodeError::BadType { ty });
    }
    if offset >> L::SWAP_OFFSET_BITS != 0 {
        return Err(EncodeError::OffsetTooWide { offset, bits: L::SWAP_OFFSET_BITS });
    }
    let raw = u64::from(ty) << TYPE_SHIFT | (!offset & OFFSET_MASK) << OFFSET_SHIFT;
    // Checked without the flags: clearing them later must not empty the entry.
    if raw == 0 {
        return Err(EncodeError::EncodesToNone);
    }
    Ok(with_flags::<L>(raw, flags))
}

#[inline]
pub(crate) const fn flags<L: Layout>(raw: u64) -> SwapBits {
    SwapBits {
        exclusive: raw & L::SWAP_EXCLUSIVE != 0,
        soft_dirty: raw & L::SWAP_SOFT_DIRTY != 0,
        uffd_wp: raw & L::SWAP_UFFD_WP != 0,
    }
}

/// Flags that the format lacks are dropped.
#[inline]
pub(crate) const fn with_flags<L: Layout>(raw: u64, b: SwapBits) -> u64 {
    let mut new = raw & !flags_of::<L>();
    if b.exclusive {
        new |= L::SWAP_EXCLUSIVE;
    }
    if b.soft_dirty {
        new |= L::SWAP_SOFT_DIRTY;
    }
    if b.uffd_wp {
        new |= L::SWAP_UFFD_WP;
    }
    new
}
