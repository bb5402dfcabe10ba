//! What can go wrong, and where.

use mm_arch::{VirtAddr, VirtRange};
use mm_vma::{MmError, StoreError};

/// Why a call that changes mappings failed, with the position it reached:
/// everything below that address is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapError {
    /// An address or a length is not a multiple of the page size.
    #[error("address {0} is not page aligned")]
    Unaligned(VirtAddr),
    /// The range leaves user space.
    #[error("range {0:?} is not in user space")]
    NotUser(VirtRange),
    /// Something is mapped there already.
    #[error("range {0:?} is mapped already")]
    Exists(VirtRange),
    /// The range has a hole.
    #[error("nothing is mapped at {0}")]
    Hole(VirtAddr),
    /// A move or a resize starts where nothing is mapped.
    #[error("no mapping to move at {0}")]
    BadAddress(VirtAddr),
    /// The mapping may never get a right that was asked for.
    #[error("the mapping at {0} must not get these rights")]
    Access(VirtAddr),
    /// The mapping is of a kind that the call does not apply to.
    #[error("the mapping at {0} does not support this")]
    Invalid(VirtAddr),
    /// The mapping may never be written to, which the call needs.
    #[error("the mapping at {0} can never be written to")]
    Denied(VirtAddr),
    /// The object behind the mapping has no holes.
    #[error("the object mapped at {0} has no holes")]
    NoHoles(VirtAddr),
    /// No mapping there that is registered for what is asked.
    #[error("no mapping at {0} is registered for this")]
    NotRegistered(VirtAddr),
    /// The page is shared, or somebody holds it.
    #[error("the page at {0} is in use")]
    Busy(VirtAddr),
    /// Somebody moves the page right now.
    #[error("the page at {0} is on its way elsewhere")]
    Again(VirtAddr),
    /// The hardware has lost the page.
    #[error("the page at {0} is poisoned")]
    Poisoned(VirtAddr),
    /// The mapping would show pages behind the last index that there is.
    #[error("the mapping at {0} would show pages that no index can name")]
    Overflow(VirtAddr),
    /// No memory.
    #[error("out of memory at {0}")]
    NoMemory(VirtAddr),
}

impl MapError {
    /// The kernel's name of the error.
    pub const fn errno(self) -> &'static str {
        match self {
            MapError::Unaligned(_) | MapError::NotUser(_) | MapError::Invalid(_) => "EINVAL",
            MapError::Exists(_) => "EEXIST",
            MapError::Hole(_) | MapError::NoMemory(_) => "ENOMEM",
            MapError::BadAddress(_) => "EFAULT",
            MapError::Access(_) => "EACCES",
            MapError::Denied(_) => "EPERM",
            MapError::NoHoles(_) => "EOPNOTSUPP",
            MapError::NotRegistered(_) => "ENOENT",
            MapError::Busy(_) => "EBUSY",
            MapError::Again(_) => "EAGAIN",
            MapError::Poisoned(_) => "EIO",
            MapError::Overflow(_) => "EOVERFLOW",
        }
    }

    pub(crate) fn store(e: StoreError, at: VirtAddr) -> Self {
        match e {
            StoreError::NoMemory => MapError::NoMemory(at),
            StoreError::Overlaps(range) => MapError::Exists(range),
            StoreError::Unaligned(va) => MapError::Unaligned(va),
            StoreError::NotMapped(va) => MapError::BadAddress(va),
        }
    }
}

/// Why a fork failed. The parent is as usable as before: at most some of its
/// entries have become read-only and are made writable again by a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ForkError {
    /// The child's address space could not be made.
    #[error("no address space for the child: {0}")]
    NoMm(#[from] MmError),
    /// No memory for a mapping, a table or an early copy.
    #[error("out of memory at {0}")]
    NoMemory(VirtAddr),
    /// A folio has as many references as it can have, or a swap slot as many entries.
    #[error("too many references to the page at {0}")]
    TooManyRefs(VirtAddr),
    /// An entry of a kind that cannot be shared by this crate: memory that a device
    /// holds exclusively.
    #[error("the entry at {0} cannot be copied")]
    Unsupported(VirtAddr),
}

impl ForkError {
    /// The kernel's name of the error: a fork that cannot copy is out of memory
    /// (rule FORK-10).
    pub const fn errno(self) -> &'static str {
        "ENOMEM"
    }
}
