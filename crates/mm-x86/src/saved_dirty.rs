//! Dirty and its double: the one place where dirty moves between D and SavedDirty.
//!
//! `RW=0, D=1` is a shadow-stack entry to hardware. An ordinary page that is
//! dirty and read-only therefore keeps D clear and SavedDirty set. Both shifts
//! look only at RW, never at what the CPU supports (rule SHSTK-03).

use crate::bits::{DIRTY, SAVED_DIRTY, SAVED_DIRTY_SHIFT, WRITE};

const DIRTY_SHIFT: u32 = DIRTY.trailing_zeros();
const WRITE_SHIFT: u32 = WRITE.trailing_zeros();

/// Without write permission: D moves to SavedDirty. With it: nothing.
#[inline(always)]
pub(crate) const fn save(raw: u64) -> u64 {
    let moved = raw >> DIRTY_SHIFT & !(raw >> WRITE_SHIFT) & 1;
    (raw | moved << SAVED_DIRTY_SHIFT) & !(moved << DIRTY_SHIFT)
}

/// With write permission: SavedDirty moves back to D. Without it: nothing.
#[inline(always)]
pub(crate) const fn restore(raw: u64) -> u64 {
    let moved = raw >> SAVED_DIRTY_SHIFT & raw >> WRITE_SHIFT & 1;
    (raw | moved << DIRTY_SHIFT) & !(moved << SAVED_DIRTY_SHIFT)
}

/// Takes write permission away and keeps dirty (rule SHSTK-04).
#[inline(always)]
pub(crate) const fn wrprotect(raw: u64) -> u64 {
    save(raw & !WRITE)
}

/// What hardware takes for a shadow-stack entry (rule SHSTK-01).
#[inline(always)]
pub(crate) const fn is_shadow_stack(raw: u64) -> bool {
    raw & (WRITE | DIRTY) == DIRTY
}

/// Either bit that remembers a store.
pub(crate) const ANY_DIRTY: u64 = DIRTY | SAVED_DIRTY;

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules: SHSTK-03.
    #[test]
    fn shifts_move_dirty_by_write_permission_alone() {
        const W: u64 = WRITE;
        const D: u64 = DIRTY;
        const S: u64 = SAVED_DIRTY;
        for (raw, saved, restored) in [
            (0, 0, 0),
            (S, S, S),
            (D, S, D),
            (D | S, S, D | S),
            (W, W, W),
            (W | D, W | D, W | D),
            (W | S, W | S, W | D),
            (W | D | S, W | D | S, W | D),
        ] {
            let others = !(W | D | S);
            for rest in [0, others] {
                assert_eq!(save(raw | rest), saved | rest, "save {raw:#x}");
                assert_eq!(restore(raw | rest), restored | rest, "restore {raw:#x}");
            }
        }
    }
}
