//! What can go wrong, and where.

use core::fmt;
use mm_arch::VirtAddr;

/// Why GUP stopped before its first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GupErrorKind {
    /// Flags that exclude each other, or that callers may not set; populating: a
    /// mapping that does not suit.
    Invalid,
    /// The range passes the end of the address space.
    Overflow,
    /// Nothing is mapped there, or the mapping does not allow it.
    Fault,
    /// No memory, or a reference count at its limit.
    NoMemory,
    /// The page is poisoned.
    Poisoned,
    /// The mapping does not support this kind of pin.
    NotSupported,
    /// The entry maps a frame without a folio.
    NoFolio,
    /// A fatal signal is pending.
    Interrupted,
    /// The page is not there at once, and the caller does not wait for it.
    Again,
    /// A peer's memory, which was not asked for.
    Peer,
    /// The folio must move for this pin, and cannot now.
    Busy,
    /// Populating: nothing is mapped there.
    Unmapped,
}

/// GUP stopped before its first page. After the first page an error is
/// swallowed: the count of pages is returned, and the next call meets the error
/// (rule GUPS-07).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GupError {
    /// The address that failed.
    pub va: VirtAddr,
    /// Why.
    pub kind: GupErrorKind,
}

impl GupError {
    pub(crate) const fn new(va: VirtAddr, kind: GupErrorKind) -> Self {
        GupError { va, kind }
    }
    /// The kernel's name of the error.
    pub const fn errno(&self) -> &'static str {
        match self.kind {
            GupErrorKind::Invalid => "EINVAL",
            GupErrorKind::Overflow => "EOVERFLOW",
            GupErrorKind::Fault => "EFAULT",
            GupErrorKind::NoMemory => "ENOMEM",
            GupErrorKind::Poisoned => "EHWPOISON",
            GupErrorKind::NotSupported => "EOPNOTSUPP",
            GupErrorKind::NoFolio => "EEXIST",
            GupErrorKind::Interrupted => "EINTR",
            GupErrorKind::Again => "EAGAIN",
            GupErrorKind::Peer => "EREMOTEIO",
            GupErrorKind::Busy => "EBUSY",
            GupErrorKind::Unmapped => "ENOMEM",
        }
    }
}

impl fmt::Display for GupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.kind {
            GupErrorKind::Invalid => "flags exclude each other or the mapping does not suit",
            GupErrorKind::Overflow => "range passes the end of the address space",
            GupErrorKind::Fault => "not mapped, or access not allowed",
            GupErrorKind::NoMemory => "no memory, or reference count at its limit",
            GupErrorKind::Poisoned => "page is poisoned",
            GupErrorKind::NotSupported => "mapping does not support this pin",
            GupErrorKind::NoFolio => "frame without a folio",
            GupErrorKind::Interrupted => "fatal signal pending",
            GupErrorKind::Again => "fault would have to wait",
            GupErrorKind::Peer => "memory of a peer device",
            GupErrorKind::Busy => "folio cannot be moved now",
            GupErrorKind::Unmapped => "not mapped",
        };
        write!(f, "{} at {}: {why}", self.errno(), self.va)
    }
}
impl core::error::Error for GupError {}
