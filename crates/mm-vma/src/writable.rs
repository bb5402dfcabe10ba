//! The one predicate that decides every upgrade to writable outside of a write
//! fault: `mprotect`, NUMA hints, wide reuse.

use crate::{Vma, VmaFlags};
use mm_arch::{Arch, Entry, Level};

impl Vma {
    /// Whether an operation that changes rights should try to make entries of
    /// this mapping writable at once, with [`can_change_writable`], instead of
    /// leaving that to write faults (rule WRITE-03).
    #[inline]
    pub fn wants_write_upgrade(&self) -> bool {
        // Of a shared mapping new entries are writable anyway, unless stores are
        // announced.
        self.flags() & (VmaFlags::WRITE | VmaFlags::SHARED) == VmaFlags::WRITE
            || self.wants_write_notify()
    }
}

/// Whether a present, read-only leaf of `vma` may become writable without a
/// write fault (rules WRITE-01, WRITE-02).
///
/// `entry` has the rights it will have, but for the write permission;
/// `page_exclusive` says that it maps an anonymous page that is marked
/// exclusive, read under the same lock as the entry. No store may be hidden
/// from whoever waits for one: soft-dirty tracking, userfaultfd, the object of a
/// shared mapping. The entry's uffd-wp bit decides by itself: a writable entry
/// with a stale bit is as wrong as one with a live bit (rule WREUSE-10).
pub fn can_change_writable<A: Arch>(
    vma: &Vma,
    entry: A::Entry,
    level: Level,
    page_exclusive: bool,
) -> bool {
    if !vma.flags().contains(VmaFlags::WRITE)
        || !entry.is_leaf(level)
        || entry.is_protnone(level)
        || entry.is_uffd_wp()
        || (vma.tracks_soft_dirty(A::HAS_SOFT_DIRTY) && !entry.is_soft_dirty())
    {
        return false;
    }
    if vma.flags().contains(VmaFlags::SHARED) {
        entry.is_dirty()
    } else {
        page_exclusive && !entry.is_special()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use mm_arch::model::ModelWord;
    use mm_arch::{Pfn, Protection, VirtAddr, VirtRange};

    type A = ModelWord<4>;
    type E = <A as Arch>::Entry;

    fn vma(flags: VmaFlags) -> Vma {
        let range = VirtRange::units(VirtAddr::new(0), 4, 12).expect("range");
        Vma::anonymous(range, flags, 12)
    }
    fn leaf() -> E {
        E::leaf(Pfn::new(7), A::prot(Protection::private_read_write()), Level::Pte)
    }
    fn can(flags: VmaFlags, e: E, exclusive: bool) -> bool {
        can_change_writable::<A>(&vma(flags), e, Level::Pte, exclusive)
    }

    /// Rules: WRITE-01, WRITE-02, WREUSE-10.
    #[test]
    fn every_exclusion_alone_says_no() {
        let rw = VmaFlags::READ | VmaFlags::WRITE;
        for row in 0..64u32 {
            let on = |bit: u32| row >> bit & 1 != 0;
            let mut flags = VmaFlags::READ;
            flags.set(VmaFlags::WRITE, on(0));
            flags.set(VmaFlags::SOFTDIRTY, on(1));
            let mut e = leaf();
            if on(2) {
                e = e.mksoft_dirty();
            }
            if on(3) {
                e = e.mkuffd_wp();
            }
            if on(4) {
                e = e.modify(A::prot(Protection::none()), Level::Pte);
            }
            let expect = on(0) && (on(1) || on(2)) && !on(3) && !on(4) && on(5);
            assert_eq!(can(flags, e, on(5)), expect, "row {row:06b}");
        }
        assert!(!can(rw | VmaFlags::SOFTDIRTY, leaf().mkspecial(), true), "the zero page");
        assert!(!can(rw | VmaFlags::SOFTDIRTY, E::NONE, true));
    }

    /// Rules: WRITE-02, WRITE-03.
    #[test]
    fn a_shared_mapping_goes_by_dirty() {
        let shared = VmaFlags::READ | VmaFlags::WRITE | VmaFlags::SHARED | VmaFlags::SOFTDIRTY;
        assert!(!can(shared, leaf(), false));
        assert!(can(shared, leaf().mkdirty(), false));
        assert!(!vma(shared).wants_write_upgrade());
        assert!(vma(VmaFlags::WRITE).wants_write_upgrade());
        assert!(!vma(VmaFlags::READ).wants_write_upgrade());
    }
}
