//! Entries without a translation (rules SWP-01, SWP-02, SWP-05).
//!
//! ```text
//! 63                13 12    8 7 6 5 4 3 2 1 0
//! [      offset       ] [ type ] F E 0 S 0 0 0 0
//! ```
//!
//! E exclusive, F uffd-wp, S soft-dirty. Bit 5 is clear, or the entry would look
//! inaccessible, and so are R, W and X, or a PMD would look like a leaf under split. The
//! layout is ours: software alone reads it.

use crate::bits::{SWAP_EXCLUSIVE, SWAP_SOFT_DIRTY, SWAP_UFFD_WP};
use mm_arch::{EncodeError, SwapBits, TypeOffset};

const TYPE_SHIFT: u32 = 8;
const TYPE_MASK: u64 = 0x1f;
const OFFSET_SHIFT: u32 = 13;
pub(crate) const OFFSET_BITS: u32 = 64 - OFFSET_SHIFT;

const FLAGS: u64 = SWAP_EXCLUSIVE | SWAP_SOFT_DIRTY | SWAP_UFFD_WP;
/// Type and offset.
pub(crate) const WHAT: u64 = !0 << TYPE_SHIFT;

/// Whether a raw value has the form above. Flags alone mean nothing.
#[inline(always)]
pub(crate) const fn is_swap_form(raw: u64) -> bool {
    raw & !(WHAT | FLAGS) == 0 && raw & WHAT != 0
}

#[inline]
pub(crate) const fn decode(raw: u64) -> TypeOffset {
    TypeOffset { ty: (raw >> TYPE_SHIFT & TYPE_MASK) as u8, offset: raw >> OFFSET_SHIFT }
}

pub(crate) fn encode(what: TypeOffset, flags: SwapBits) -> Result<u64, EncodeError> {
    let TypeOffset { ty, offset } = what;
    if u64::from(ty) > TYPE_MASK {
        return Err(EncodeError::BadType { ty });
    }
    if offset >> OFFSET_BITS != 0 {
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
        soft_dirty: raw & SWAP_SOFT_DIRTY != 0,
        uffd_wp: raw & SWAP_UFFD_WP != 0,
    }
}

#[inline]
pub(crate) const fn with_flags(raw: u64, b: SwapBits) -> u64 {
    let mut new = raw & !FLAGS;
    if b.exclusive {
        new |= SWAP_EXCLUSIVE;
    }
    if b.soft_dirty {
        new |= SWAP_SOFT_DIRTY;
    }
    if b.uffd_wp {
        new |= SWAP_UFFD_WP;
    }
    new
}
