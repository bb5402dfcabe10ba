//! State bits of a folio.

bitflags::bitflags! {
    /// State bits of a folio, kept in its head record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FolioFlags: u32 {
        /// Somebody holds the folio lock.
        const LOCKED = 1 << 0;
        /// Recently used.
        const REFERENCED = 1 << 1;
        /// The content is valid.
        const UPTODATE = 1 << 2;
        /// The content differs from its backing store (rule FOLIO-45).
        const DIRTY = 1 << 3;
        /// On a reclaim list: the only right to isolate the folio (rule FOLIO-43).
        const LRU = 1 << 4;
        /// On the active list.
        const ACTIVE = 1 << 5;
        /// Backed by swap: normal anonymous and shmem memory. Clear on
        /// anonymous memory means lazily freed or droppable (rule FOLIO-40).
        const SWAPBACKED = 1 << 6;
        /// In the swap cache, which holds one reference per page.
        const SWAPCACHE = 1 << 7;
        /// Must not be reclaimed.
        const UNEVICTABLE = 1 << 8;
        /// Mapped by a locked VMA.
        const MLOCKED = 1 << 9;
        /// Being written to its backing store.
        const WRITEBACK = 1 << 10;
        /// Some page was unmapped while others were not; sticky (rule FOLIO-23).
        const PARTIALLY_MAPPED = 1 << 11;
        /// A page merged by content: small, never exclusive (rule FOLIO-50).
        const KSM = 1 << 12;
        /// Filesystem private data is attached and holds one reference.
        const PRIVATE = 1 << 13;
        /// Was part of the working set when it was last evicted.
        const WORKINGSET = 1 << 14;
        /// Chosen for reclaim as soon as writeback ends.
        const RECLAIM = 1 << 15;
        /// Must not be pinned for long: movable or device memory (rule PIN-08).
        const NO_LONGTERM = 1 << 16;
        /// A page of the folio has failed hardware (rule FOLIO-48).
        const HWPOISON = 1 << 17;
        /// Device-private memory: cannot be pinned (rule RMAP-14).
        const DEVICE_PRIVATE = 1 << 18;
        /// Secret memory: never handed to GUP (rule GUPF-14).
        const SECRET = 1 << 19;
        /// Memory of a peer device, for who asks for it (rule PIN-04).
        const PEER = 1 << 20;
        /// Nobody has used it since somebody began to watch (rule REF-09).
        const IDLE = 1 << 21;
        /// Who watches took accessed bits away that reclaim has not seen.
        const YOUNG = 1 << 22;

        /// What must not be set when the last reference goes (rule FOLIO-11).
        const BAD_AT_FREE = Self::LOCKED.bits() | Self::WRITEBACK.bits() | Self::SWAPCACHE.bits();
        /// What the parts of a split folio inherit (rule FOLIO-54).
        const INHERITED = Self::LOCKED.bits() | Self::REFERENCED.bits() | Self::UPTODATE.bits()
            | Self::DIRTY.bits() | Self::ACTIVE.bits() | Self::SWAPBACKED.bits()
            | Self::SWAPCACHE.bits() | Self::UNEVICTABLE.bits() | Self::MLOCKED.bits()
            | Self::WORKINGSET.bits() | Self::NO_LONGTERM.bits() | Self::IDLE.bits()
            | Self::YOUNG.bits();
        /// What a folio has that another one takes the place of (migration): not what
        /// is about the frames.
        const MOVES = Self::INHERITED.bits() & !Self::LOCKED.bits() & !Self::NO_LONGTERM.bits()
            | Self::KSM.bits();
    }
}
