//! Entries without a translation (rules SWP-01..05).
//!
//! ```text
//! 63 62 61                12 11 10    6 5 4 3 2 1 0
//! [ - ] [     offset       ]  0 [ type ] - - F E 0 0
//! ```
//!
//! E exclusive, F uffd-wp; there is no soft-dirty. Bit 11 is clear, or the entry would
//! look present. Type 0 with offset 0 is the empty entry: no swap device hands out
//! slot 0.

use crate::bits::{SWAP_EXCLUSIVE, SWAP_UFFD_WP};
use mm_arch::{EncodeError, SwapBits, TypeOffset};

const TYPE_SHIFT: u32 = 6;
const TYPE_MASK: u64 = 0x1f;
const OFFSET_SHIFT: u32 = 12;
pub(crate) const OFFSET_BITS: u32 = 50;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

const FLAGS: u64 = SWAP_EXCLUSIVE | SWAP_UFFD_WP;
/// Type and offset.
pub(crate) const WHAT: u64 = OFFSET_MASK << OFFSET_SHIFT | TYPE_MASK << TYPE_SHIFT;

/// Whether a raw value has the form above. Flags alone mean nothing.
#[inline(always)]
pub(crate) const fn is_swap_form(raw: u64) -> bool {
    raw & !(WHAT | FLAGS) == 0 && raw & WHAT != 0
}

#[inline]
pub(crate) const fn decode(raw: u64) -> TypeOffset {
    TypeOffset {
        ty: (raw >> TYPE_SHIFT & TYPE_MASK) as u8,
        offset: raw >> OFFSET_SHIFT & OFFSET_MASK,
    }
}

pub(crate) fn encode(what: TypeOffset, flags: SwapBits) -> Result<u64, EncodeError> {
    let TypeOffset { ty, offset } = what;
    if u64::from(ty) > TYPE_MASK {
        return Err(EncodeError::BadType { ty });
    }
    if offset > OFFSET_MASK {
        return Err(EncodeError::OffsetTooWide { offset, bits: OFFSET_BITS });
    }
    let raw = u64::from(ty) << TYPE_SHIFT | offset << OFFSET_SHIFT;
    // Checked without the flags: clearing them later must not empty the entry.
    if raw == 0 {
        return Err(EncodeError::EncodesToNone);
    }
    Ok(with_flags(raw, flags))
}

#[inline]
pub(crate) const fn flags(raw: u64) -> SwapBits {
    SwapBits {
        exclusive: raw & SWAP_EXCLUSIVE != 0,
        soft_dirty: false,
        uffd_wp: raw & SWAP_UFFD_WP != 0,
    }
}

#[inline]
pub(crate) const fn with_flags(raw: u64, b: SwapBits) -> u64 {
    let mut new = raw & !FLAGS;
    if b.exclusive {
        new |= SWAP_EXCLUSIVE;
    }
    if b.uffd_wp {
        new |= SWAP_UFFD_WP;
    }
    new
}
