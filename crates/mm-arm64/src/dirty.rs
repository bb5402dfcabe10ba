//! Dirty: what hardware says with two bits and software with one (rules A64-04, A64-05).
//!
//! DBM ("stores are allowed") stays what it is; `AP[2]` ("read-only") is cleared by the
//! first store. So a page that may be written and was is `DBM=1, RO=0`. When write
//! permission goes, both change, and a software bit takes the dirt over.
//!
//! | WRITE (DBM) | READ_ONLY | DIRTY | is |
//! |---|---|---|---|
//! | 0 | 1 | 0 | clean, read-only |
//! | 0 | 1 | 1 | dirty, read-only |
//! | 1 | 1 | 0 | clean, writable |
//! | 1 | 0 | any | dirty, writable |
//!
//! `WRITE, READ_ONLY, DIRTY` is no state: a store would fault where hardware does not
//! manage dirty, and the fault handler find nothing to do (MM-050). Nor is anything
//! that has neither WRITE nor READ_ONLY: hardware would let stores through.

use crate::bits::{DIRTY, READ_ONLY, WRITE};

/// A store went through, and only `AP[2]` says so.
#[inline(always)]
pub(crate) const fn by_hardware(raw: u64) -> bool {
    raw & (WRITE | READ_ONLY) == WRITE
}

#[inline(always)]
pub(crate) const fn is_dirty(raw: u64) -> bool {
    raw & DIRTY != 0 || by_hardware(raw)
}

/// Makes the software bit say what `AP[2]` says.
#[inline(always)]
pub(crate) const fn save(raw: u64) -> u64 {
    if by_hardware(raw) { raw | DIRTY } else { raw }
}

/// With write permission and dirt: a store needs no fault.
#[inline(always)]
pub(crate) const fn restore(raw: u64) -> u64 {
    if raw & (WRITE | DIRTY) == WRITE | DIRTY { raw & !READ_ONLY } else { raw }
}

#[inline(always)]
pub(crate) const fn mkdirty(raw: u64) -> u64 {
    restore(raw | DIRTY)
}

/// The write permission stays.
#[inline(always)]
pub(crate) const fn mkclean(raw: u64) -> u64 {
    raw & !DIRTY | READ_ONLY
}

/// Allows stores. A clean page is read-only until one comes.
#[inline(always)]
pub(crate) const fn mkwrite(raw: u64) -> u64 {
    let clean = if is_dirty(raw) { 0 } else { READ_ONLY };
    restore(raw | WRITE | clean)
}

/// Takes write permission away and keeps dirty.
#[inline(always)]
pub(crate) const fn wrprotect(raw: u64) -> u64 {
    save(raw) & !WRITE | READ_ONLY
}

/// `raw` with the permission and the dirt of `more` (rule ACC-17).
#[inline(always)]
pub(crate) const fn widen(raw: u64, more: u64) -> u64 {
    let stored = by_hardware(raw) || by_hardware(more);
    let read_only = if stored { 0 } else { READ_ONLY };
    restore((raw | more & (WRITE | DIRTY)) & !READ_ONLY | read_only)
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: u64 = WRITE;
    const R: u64 = READ_ONLY;
    const D: u64 = DIRTY;

    /// All eight states, those that nothing makes included.
    ///
    /// Rules: A64-04, A64-05, MM-048.
    #[test]
    fn each_operation_on_each_state() {
        for (raw, protected, clean, dirty, writable) in [
            (0, R, R, D, W | R),
            (R, R, R, R | D, W | R),
            (D, R | D, R, D, W | D),
            (R | D, R | D, R, R | D, W | D),
            (W, R | D, W | R, W | D, W),
            (W | R, R, W | R, W | D, W | R),
            (W | D, R | D, W | R, W | D, W | D),
            (W | R | D, R | D, W | R, W | D, W | D),
        ] {
            let others = !(W | R | D);
            for rest in [0, others] {
                assert_eq!(wrprotect(raw | rest), protected | rest, "wrprotect {raw:#x}");
                assert_eq!(mkclean(raw | rest), clean | rest, "mkclean {raw:#x}");
                assert_eq!(mkdirty(raw | rest), dirty | rest, "mkdirty {raw:#x}");
                assert_eq!(mkwrite(raw | rest), writable | rest, "mkwrite {raw:#x}");
            }
            assert_eq!(is_dirty(wrprotect(raw)), is_dirty(raw), "wrprotect {raw:#x} and dirty");
            assert!(!is_dirty(mkclean(raw)) && is_dirty(mkdirty(raw)));
        }
    }

    /// Read-only survives only if both say so, and writable dirt is never read-only.
    ///
    /// Rules: ACC-17, MM-050.
    #[test]
    fn widening_adds_and_never_takes_away() {
        let states = || [0, R, D, R | D, W, W | R, W | D, W | R | D].into_iter();
        for (old, more) in states().flat_map(|old| states().map(move |more| (old, more))) {
            let new = widen(old, more);
            assert_eq!(new & W, (old | more) & W, "{old:#x} {more:#x}");
            assert!(is_dirty(new) || !is_dirty(old), "{old:#x} {more:#x} lost dirty");
            assert_ne!(new & (W | R | D), W | R | D, "{old:#x} {more:#x}: stores fault for ever");
            assert_eq!(widen(new, more), new);
        }
    }
}
