//! What a mapping allows, apart from where it is.

use crate::VmaFlags;
use mm_arch::{Protection, Rights, WriteKind};

/// The part of a [`Vma`](crate::Vma) that says which accesses go through: what those
/// know of it who come to an entry by another way than its address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmaRights {
    /// The flags.
    pub flags: VmaFlags,
    /// What the mapping shows wants to hear of first stores.
    pub notifies_writes: bool,
}

impl VmaRights {
    /// See [`Vma::wants_write_notify`](crate::Vma::wants_write_notify).
    pub fn wants_write_notify(&self) -> bool {
        self.flags.contains(VmaFlags::SHARED | VmaFlags::WRITE)
            && (self.notifies_writes
                || self.flags.contains(VmaFlags::UFFD_WP)
                || !self.flags.contains(VmaFlags::SOFTDIRTY))
    }
    /// See [`Vma::protection`](crate::Vma::protection).
    pub fn protection(&self) -> Protection {
        let mut rights = Rights::empty();
        rights.set(Rights::READ, self.flags.intersects(VmaFlags::READ | VmaFlags::WRITE));
        rights.set(Rights::WRITE, self.flags.contains(VmaFlags::WRITE));
        rights.set(Rights::EXEC, self.flags.contains(VmaFlags::EXEC));
        Protection {
            rights,
            writable_at_once: self.flags.contains(VmaFlags::SHARED | VmaFlags::WRITE)
                && !self.wants_write_notify(),
            pkey: 0,
        }
    }
    /// See [`Vma::write_kind`](crate::Vma::write_kind).
    #[inline]
    pub fn write_kind(&self) -> WriteKind {
        if self.flags.contains(VmaFlags::SHADOW_STACK) {
            WriteKind::ShadowStack
        } else {
            WriteKind::Normal
        }
    }
}
