//! What a fault is for, and whether its mapping allows that.

use crate::FaultSignal;
use mm_arch::VirtAddr;
use mm_vma::{Vma, VmaFlags};

bitflags::bitflags! {
    /// How an access failed.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct FaultFlags: u16 {
        /// The access is a store.
        const WRITE = 1 << 0;
        /// The access is an instruction fetch.
        const EXEC = 1 << 1;
        /// Make the page exclusive to this address space without making its
        /// entry writable, for a pin that only reads. Excludes `WRITE`.
        const UNSHARE = 1 << 2;
        /// The caller has checked what the mapping allows, as GUP does: rights
        /// are not checked again. A store into a mapping without write
        /// permission is still possible only in a copy-on-write mapping.
        const FORCE = 1 << 3;
        /// The access is to a shadow stack, as calls and returns make it.
        const SHADOW_STACK = 1 << 4;
        /// In another address space than the current one.
        const REMOTE = 1 << 5;
        /// The handler may drop the mmap lock and ask for a retry. Faults on
        /// anonymous memory never need to.
        const ALLOW_RETRY = 1 << 6;
        /// This is the retry.
        const TRIED = 1 << 7;
    }
}

/// What a sane fault wants of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// That it is there.
    Read,
    /// That it may be written.
    Write,
    /// That it is exclusive.
    Unshare,
}

impl Access {
    /// Whether a read-only entry is not good enough.
    #[inline]
    pub fn breaks_cow(self) -> bool {
        self != Access::Read
    }
    #[inline]
    pub fn is_write(self) -> bool {
        self == Access::Write
    }
}

/// Which access `flags` stand for, if they make sense and `vma` allows it
/// (rules FAULT-01, GUPS-27).
pub(crate) fn check(vma: &Vma, va: VirtAddr, flags: FaultFlags) -> Result<Access, FaultSignal> {
    let denied = Err(FaultSignal::Segv { va });
    let allows = vma.flags();
    let checked = flags.contains(FaultFlags::FORCE);
    let access = if flags.contains(FaultFlags::UNSHARE) {
        if flags.intersects(FaultFlags::WRITE | FaultFlags::EXEC) {
            return denied;
        }
        if vma.is_cow() { Access::Unshare } else { Access::Read }
    } else if flags.contains(FaultFlags::WRITE) {
        Access::Write
    } else {
        Access::Read
    };
    if access.is_write() {
        let may = allows.contains(VmaFlags::MAYWRITE);
        let forced = checked && vma.is_cow();
        if !may || !(allows.contains(VmaFlags::WRITE) || forced) {
            return denied;
        }
    }
    if checked {
        return Ok(access);
    }
    let to_shadow_stack = flags.contains(FaultFlags::SHADOW_STACK);
    let is_shadow_stack = allows.contains(VmaFlags::SHADOW_STACK);
    let right = if flags.contains(FaultFlags::EXEC) {
        allows.contains(VmaFlags::EXEC)
    } else {
        vma.is_accessible()
    };
    // Plain loads of a shadow stack are fine, plain stores are not; and nothing
    // else may be used as one (rule SHSTK-09).
    let stack = if access.is_write() {
        to_shadow_stack == is_shadow_stack
    } else {
        !to_shadow_stack || is_shadow_stack
    };
    if right && stack { Ok(access) } else { denied }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use mm_arch::VirtRange;

    fn vma(flags: VmaFlags) -> Vma {
        let range = VirtRange::units(VirtAddr::new(0), 1, 12).expect("range");
        let mut vma = Vma::anonymous(range, flags, 12);
        vma.set_flags(flags);
        vma
    }
    fn ask(vma_flags: VmaFlags, flags: FaultFlags) -> Option<Access> {
        check(&vma(vma_flags), VirtAddr::new(0), flags).ok()
    }

    /// Rules: FAULT-01, GUPS-27.
    #[test]
    fn truth_table_of_stores_and_unsharing() {
        for bits in 0..32u32 {
            let on = |bit: u32| bits >> bit & 1 != 0;
            let mut v = VmaFlags::READ;
            v.set(VmaFlags::WRITE, on(0));
            v.set(VmaFlags::MAYWRITE, on(1));
            v.set(VmaFlags::SHARED, on(2));
            let mut f = if on(3) { FaultFlags::WRITE } else { FaultFlags::UNSHARE };
            f.set(FaultFlags::FORCE, on(4));
            let cow = on(1) && !on(2);
            let expect = if on(3) {
                (on(1) && (on(0) || (on(4) && cow))).then_some(Access::Write)
            } else {
                Some(if cow { Access::Unshare } else { Access::Read })
            };
            assert_eq!(ask(v, f), expect, "row {bits:05b}");
            assert_eq!(ask(v, f | FaultFlags::WRITE | FaultFlags::UNSHARE), None);
        }
    }

    #[test]
    fn rights_are_checked_unless_the_caller_did() {
        let r = VmaFlags::READ | VmaFlags::MAY_PRIVATE;
        assert_eq!(ask(r, FaultFlags::empty()), Some(Access::Read));
        assert_eq!(ask(r, FaultFlags::EXEC), None);
        assert_eq!(ask(r | VmaFlags::EXEC, FaultFlags::EXEC), Some(Access::Read));
        assert_eq!(ask(VmaFlags::MAY_PRIVATE, FaultFlags::empty()), None);
        assert_eq!(ask(VmaFlags::MAY_PRIVATE, FaultFlags::FORCE), Some(Access::Read));
    }

    /// Rules: SHSTK-09.
    #[test]
    fn only_shadow_stack_stores_reach_a_shadow_stack() {
        let plain = VmaFlags::READ | VmaFlags::WRITE | VmaFlags::MAY_PRIVATE;
        let stack = plain | VmaFlags::SHADOW_STACK;
        let push = FaultFlags::WRITE | FaultFlags::SHADOW_STACK;
        assert_eq!(ask(stack, push), Some(Access::Write));
        assert_eq!(ask(stack, FaultFlags::WRITE), None);
        assert_eq!(ask(stack, FaultFlags::WRITE | FaultFlags::FORCE), Some(Access::Write));
        assert_eq!(ask(stack, FaultFlags::empty()), Some(Access::Read));
        assert_eq!(ask(plain, push), None);
        assert_eq!(ask(plain, FaultFlags::SHADOW_STACK), None);
    }
}
