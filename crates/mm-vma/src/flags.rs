//! What a mapping is and allows.

bitflags::bitflags! {
    /// Flags of a VMA. The `MAY` flags are what `mprotect` may grant.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct VmaFlags: u64 {
        /// Loads are allowed.
        const READ = 1 << 0;
        /// Stores are allowed.
        const WRITE = 1 << 1;
        /// Instruction fetches are allowed.
        const EXEC = 1 << 2;
        /// Stores are seen by others.
        const SHARED = 1 << 3;
        /// Loads may be allowed.
        const MAYREAD = 1 << 4;
        /// Stores may be allowed.
        const MAYWRITE = 1 << 5;
        /// Instruction fetches may be allowed.
        const MAYEXEC = 1 << 6;
        /// The mapping may be shared.
        const MAYSHARE = 1 << 7;
        /// Grows towards lower addresses on a fault below it.
        const GROWSDOWN = 1 << 8;
        /// Maps frames without folios.
        const PFNMAP = 1 << 9;
        /// Maps device memory.
        const IO = 1 << 10;
        /// Pages stay in memory.
        const LOCKED = 1 << 11;
        /// Pages stay in memory once touched.
        const LOCKONFAULT = 1 << 12;
        /// Not inherited by a child.
        const DONTCOPY = 1 << 13;
        /// Cannot grow.
        const DONTEXPAND = 1 << 14;
        /// Large folios are wanted.
        const HUGEPAGE = 1 << 15;
        /// Large folios are refused.
        const NOHUGEPAGE = 1 << 16;
        /// Equal pages may be merged.
        const MERGEABLE = 1 << 17;
        /// Missing pages go to userfaultfd.
        const UFFD_MISSING = 1 << 18;
        /// Write protection goes to userfaultfd.
        const UFFD_WP = 1 << 19;
        /// Minor faults go to userfaultfd.
        const UFFD_MINOR = 1 << 20;
        /// A child starts with an empty mapping.
        const WIPEONFORK = 1 << 21;
        /// Soft-dirty tracking starts dirty: stores need no fault of their own (PTE-14).
        const SOFTDIRTY = 1 << 22;
        /// A shadow stack.
        const SHADOW_STACK = 1 << 23;
        /// Accesses are random.
        const RAND_READ = 1 << 24;
        /// Accesses are sequential.
        const SEQ_READ = 1 << 25;
        /// Secret memory: never handed to GUP.
        const SECRETMEM = 1 << 26;
        /// Memory is accounted.
        const ACCOUNT = 1 << 27;
        /// Memory is not accounted on purpose.
        const NORESERVE = 1 << 28;
        /// Pages may be dropped even when dirty.
        const DROPPABLE = 1 << 29;
        /// With `UFFD_WP`: a store through the write protection ends it, and
        /// nobody is asked.
        const UFFD_WP_ASYNC = 1 << 30;
        /// With `UFFD_WP`: pages that are not there can be write-protected, too.
        const UFFD_WP_UNPOPULATED = 1 << 31;
        /// A child is registered for userfaultfd as well.
        const UFFD_EVENT_FORK = 1 << 32;

        /// The three access rights.
        const ACCESS = Self::READ.bits() | Self::WRITE.bits() | Self::EXEC.bits();
        /// Everything that may be granted to a private anonymous mapping.
        const MAY_PRIVATE = Self::MAYREAD.bits() | Self::MAYWRITE.bits() | Self::MAYEXEC.bits();
        /// Any userfaultfd registration, and what it asked for.
        const UFFD_ANY = Self::UFFD_MISSING.bits()
            | Self::UFFD_WP.bits()
            | Self::UFFD_MINOR.bits()
            | Self::UFFD_WP_ASYNC.bits()
            | Self::UFFD_WP_UNPOPULATED.bits()
            | Self::UFFD_EVENT_FORK.bits();
    }
}
