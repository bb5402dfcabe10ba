//! What the caller of GUP asks for.

use mm_folio::FolioFlags;

bitflags::bitflags! {
    /// `FOLL_*` flags, with the kernel's values (rule FOLL-01). Whether pages are
    /// got or pinned is the type of the output, not a flag.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct GupFlags: u32 {
        /// The pages will be written to.
        const WRITE = 1 << 0;
        /// Fail instead of faulting holes and zero pages in.
        const DUMP = 1 << 2;
        /// Ignore the mapping's rights: for writes only in private mappings.
        const FORCE = 1 << 3;
        /// Start a fault, but do not wait for it.
        const NOWAIT = 1 << 4;
        /// Do not fault.
        const NOFAULT = 1 << 5;
        /// Report poisoned pages as such.
        const HWPOISON = 1 << 6;
        /// Only anonymous memory.
        const ANON = 1 << 7;
        /// The pin has no bound in time.
        const LONGTERM = 1 << 8;
        /// Split a huge PMD first. Not supported here: whoever wants that splits it
        /// (the reverse map knows how) and asks again.
        const SPLIT_PMD = 1 << 9;
        /// Peer-to-peer pages are welcome.
        const PCI_P2PDMA = 1 << 10;
        /// Give up on any signal, not only a fatal one, where the platform tells them
        /// apart (it does not: see [`Interrupt`](mm_vma::Interrupt)).
        const INTERRUPTIBLE = 1 << 11;
        /// Take NUMA hint faults.
        const HONOR_NUMA_FAULT = 1 << 12;
        /// Mark pages accessed, and dirty for writes. Set by entry points.
        const TOUCH = 1 << 16;
        /// Not the caller's own address space.
        const REMOTE = 1 << 18;
        /// Only the fast path.
        const FAST_ONLY = 1 << 20;
        /// Errors of mappings are those of `madvise`.
        const MADV_POPULATE = 1 << 22;
    }
}

impl GupFlags {
    /// Flags that only entry points of this crate set (rule FOLL-03).
    pub const INTERNAL: GupFlags = GupFlags::TOUCH
        .union(GupFlags::REMOTE)
        .union(GupFlags::FAST_ONLY)
        .union(GupFlags::MADV_POPULATE);
    /// Flags that the fast entry points accept (rule GUPF-01).
    pub const FAST: GupFlags = GupFlags::WRITE
        .union(GupFlags::LONGTERM)
        .union(GupFlags::FORCE)
        .union(GupFlags::NOFAULT)
        .union(GupFlags::PCI_P2PDMA)
        .union(GupFlags::HONOR_NUMA_FAULT);

    /// Facts of a folio that forbid to take it, whatever maps it (rules GUPF-14,
    /// LT-05, PIN-04): secret memory, a peer's memory that was not asked for.
    #[inline]
    pub(crate) fn forbidden(self) -> FolioFlags {
        let mut facts = FolioFlags::SECRET;
        facts.set(FolioFlags::PEER, !self.contains(GupFlags::PCI_P2PDMA));
        facts
    }
}
