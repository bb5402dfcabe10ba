//! Dirty and its double: the one place where dirty moves between D and SavedDirty.
//!
//! `RW=0, D=1` is a shadow-stack entry to hardware. An ordinary page that is
//! dirty and read-only therefore keeps D clear and SavedDirty set. Both shifts
//! look only at RW, never at what the CPU supports (rule SHSTK-03).

use crate::bits::{DIRTY, WRITE};
use crate::layout::Layout;

const DIRTY_SHIFT: u32 = DIRTY.trailing_zeros();
const WRITE_SHIFT: u32 = WRITE.trailing_zeros();

/// Without write permission: D moves to SavedDirty. With it: nothing.
#[inline(always)]
pub(crate) const fn save<L: Layout>(raw: u64) -> u64 {
    let moved = raw >> DIRTY_SHIFT & !(raw >> WRITE_SHIFT) & 1;
    (raw | moved << L::SAVED_DIRTY_SHIFT) & !(moved << DIRTY_SHIFT)
}

/// With write permission: SavedDirty moves back to D. Without it: nothing.
#[inline(always)]
pub(crate) const fn restore<L: Layout>(raw: u64) -> u64 {
    let moved = raw >> L::SAVED_DIRTY_SHIFT & raw >> WRITE_SHIFT & 1;
    (raw | moved << DIRTY_SHIFT) & !(moved << L::SAVED_DIRTY_SHIFT)
}

/// Takes write permission away and keeps dirty (rule SHSTK-04).
#[inline(always)]
pub(crate) const fn wrprotect<L: Layout>(raw: u64) -> u64 {
    save::<L>(raw & !WRITE)
}

/// What hardware takes for a shadow-stack entry (rule SHSTK-01).
#[inline(always)]
pub(crate) const fn is_shadow_stack(raw: u64) -> bool {
    raw & (WRITE | DIRTY) == DIRTY
}

/// Either bit that remembers a store.
#[inline(always)]
pub(crate) const fn any_dirty<L: Layout>() -> u64 {
    DIRTY | 1 << L::SAVED_DIRTY_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Long, Pae};

    fn shifts<L: Layout>() {
        const W: u64 = WRITE;
        const D: u64 = DIRTY;
        let s = 1 << L::SAVED_DIRTY_SHIFT;
        for (raw, saved, restored) in [
            (0, 0, 0),
            (s, s, s),
            (D, s, D),
            (D | s, s, D | s),
            (W, W, W),
            (W | D, W | D, W | D),
            (W | s, W | s, W | D),
            (W | D | s, W | D | s, W | D),
        ] {
            let others = !(W | D | s);
            for rest in [0, others] {
                assert_eq!(save::<L>(raw | rest), saved | rest, "save {raw:#x}");
                assert_eq!(restore::<L>(raw | rest), restored | rest, "restore {raw:#x}");
            }
        }
    }

    /// Rules: SHSTK-03.
    #[test]
    fn shifts_move_dirty_by_write_permission_alone() {
        shifts::<Long<true>>();
        shifts::<Long<false>>();
        shifts::<Pae<true>>();
    }
}
