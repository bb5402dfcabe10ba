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

use crate::bits::{PAGE_SIZE, PRESENT, PROT_NONE, SWAP_EXCLUSIVE, SWAP_SOFT_DIRTY, SWAP_UFFD_WP};
use mm_arch::{EncodeError, SwapBits, TypeOffset};

const TYPE_SHIFT: u32 = 59;
const OFFSET_SHIFT: u32 = 9;
const OFFSET_BITS: u32 = TYPE_SHIFT - OFFSET_SHIFT;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// Frame bits of a migration entry; young and dirty have room behind them.
pub(crate) const PFN_BITS: u32 = 40;
const _: () = assert!(PFN_BITS + 2 <= OFFSET_BITS);

const FLAGS: u64 = SWAP_EXCLUSIVE | SWAP_UFFD_WP | SWAP_SOFT_DIRTY;

/// Whether a raw value has the form above. The one type and offset that
/// [`encode`] refuses do not: flags alone mean nothing.
#[inline(always)]
pub(crate) const fn is_swap_form(raw: u64) -> bool {
    raw & (PRESENT | PROT_NONE | PAGE_SIZE) == 0 && raw >> OFFSET_SHIFT != 0
}

#[inline]
pub(crate) const fn decode(raw: u64) -> TypeOffset {
    TypeOffset { ty: (raw >> TYPE_SHIFT) as u8, offset: !raw >> OFFSET_SHIFT & OFFSET_MASK }
}

pub(crate) fn encode(what: TypeOffset, flags: SwapBits) -> Result<u64, EncodeError> {
    let TypeOffset { ty, offset } = what;
    if ty >> 5 != 0 {
        return Err(EncodeError::BadType { ty });
    }
    if offset > OFFSET_MASK {
        return Err(EncodeError::OffsetTooWide { offset, bits: OFFSET_BITS });
    }
    let raw = u64::from(ty) << TYPE_SHIFT | (!offset & OFFSET_MASK) << OFFSET_SHIFT;
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
