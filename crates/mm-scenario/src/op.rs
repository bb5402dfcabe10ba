//! The operations of the language, as data.

use bitflags::bitflags;

use crate::range::{FileId, PinId, ProcId, Range, RegionId, TouchOrder};

/// A keyword set of the language: an enum, its words, and the list for error messages.
macro_rules! keywords {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
        }

        impl $name {
            /// Every value, in the order of the language's description.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word in the language.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// The value that `word` stands for.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    )*};
}
pub(crate) use keywords;

keywords! {
    /// The policy of a folio size of anonymous memory, or of the top knob.
    ThpPolicy {
        /// In every VMA.
        Always = "always",
        /// Only after `madvise hugepage`.
        Madvise = "madvise",
        /// What the top knob says. Not a value of the top knob.
        Inherit = "inherit",
        /// Not at all.
        Never = "never",
    }

    /// The policy of a folio size of shmem, or of `shmem_enabled`.
    ShmemPolicy {
        /// In every object.
        Always = "always",
        /// What `shmem_enabled` says. Not a value of `shmem_enabled`.
        Inherit = "inherit",
        /// Only folios that lie within the object's size.
        WithinSize = "within_size",
        /// Only after `madvise hugepage`.
        Advise = "advise",
        /// Not at all.
        Never = "never",
    }

    /// What a file lives on.
    FileBacking {
        /// A memfd.
        Memfd = "memfd",
        /// tmpfs mounted with `huge=always`.
        TmpfsAlways = "tmpfs:always",
        /// tmpfs mounted with `huge=within_size`.
        TmpfsWithinSize = "tmpfs:within_size",
        /// tmpfs mounted with `huge=advise`.
        TmpfsAdvise = "tmpfs:advise",
        /// tmpfs mounted with `huge=never`.
        TmpfsNever = "tmpfs:never",
        /// ext4.
        Ext4 = "ext4",
    }

    /// Whether stores to a mapping reach its object.
    Sharing {
        /// They go to copies of the process.
        Private = "private",
        /// They go to the object.
        Shared = "shared",
    }

    /// The advice of `madvise`.
    Advice {
        /// `MADV_DONTNEED`.
        DontNeed = "dontneed",
        /// `MADV_DONTNEED_LOCKED`.
        DontNeedLocked = "dontneed_locked",
        /// `MADV_FREE`.
        Free = "free",
        /// `MADV_COLD`.
        Cold = "cold",
        /// `MADV_PAGEOUT`.
        PageOut = "pageout",
        /// `MADV_REMOVE`.
        Remove = "remove",
        /// `MADV_DONTFORK`.
        DontFork = "dontfork",
        /// `MADV_DOFORK`.
        DoFork = "dofork",
        /// `MADV_WIPEONFORK`.
        WipeOnFork = "wipeonfork",
        /// `MADV_KEEPONFORK`.
        KeepOnFork = "keeponfork",
        /// `MADV_HUGEPAGE`.
        HugePage = "hugepage",
        /// `MADV_NOHUGEPAGE`.
        NoHugePage = "nohugepage",
        /// `MADV_MERGEABLE`.
        Mergeable = "mergeable",
        /// `MADV_UNMERGEABLE`.
        Unmergeable = "unmergeable",
        /// `MADV_POPULATE_READ`.
        PopulateRead = "populate_read",
        /// `MADV_POPULATE_WRITE`.
        PopulateWrite = "populate_write",
        /// `MADV_COLLAPSE`.
        Collapse = "collapse",
        /// `MADV_GUARD_INSTALL`.
        GuardInstall = "guard_install",
        /// `MADV_GUARD_REMOVE`.
        GuardRemove = "guard_remove",
        /// `MADV_RANDOM`.
        Random = "random",
        /// `MADV_SEQUENTIAL`.
        Sequential = "sequential",
        /// `MADV_NORMAL`.
        Normal = "normal",
        /// `MADV_WILLNEED`.
        WillNeed = "willneed",
    }

    /// The kernel path through which a lasting reference is taken.
    PinMethod {
        /// An io_uring registered buffer: a writable, long-term pin.
        Uring = "uring",
        /// A held-back write to a FUSE file: a read-only pin, not long-term.
        FuseRead = "fuse-r",
        /// A held-back read from a FUSE file: a writable pin, not long-term.
        FuseWrite = "fuse-w",
        /// vmsplice into a pipe: a read-only reference, not a pin.
        Vmsplice = "vmsplice",
    }
}

impl PinMethod {
    /// Whether the method asks for write access.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Uring | Self::FuseWrite)
    }

    /// Whether the method takes a pin (`FOLL_PIN`) and not a plain reference (`FOLL_GET`).
    #[must_use]
    pub const fn is_pin(self) -> bool {
        !matches!(self, Self::Vmsplice)
    }

    /// Whether the pin is long-term (`FOLL_LONGTERM`).
    #[must_use]
    pub const fn is_long_term(self) -> bool {
        matches!(self, Self::Uring)
    }
}

/// The size that a THP or shmem policy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FolioSize {
    /// The top knob (`global`).
    Global,
    /// Folios of two to this power of pages.
    Order(u8),
}

bitflags! {
    /// The rights of a mapping. Empty is `none`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Prot: u8 {
        /// `r`
        const READ = 1;
        /// `w`
        const WRITE = 2;
        /// `x`
        const EXEC = 4;
    }

    /// What a userfaultfd registration asks for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct UffdMode: u8 {
        /// `wp`: events on write protection.
        const WP = 1;
        /// `missing`: events on missing pages.
        const MISSING = 2;
        /// `unpopulated`: pages that are not there can be protected, too.
        const WP_UNPOPULATED = 4;
        /// `async`: protection is lifted without an event.
        const WP_ASYNC = 8;
        /// `minor`: events on pages of shared memory that are there and not mapped.
        const MINOR = 16;
    }
}

impl UffdMode {
    /// The words of the language, in the order of its description.
    pub const WORDS: &'static [(&'static str, Self)] = &[
        ("wp", Self::WP),
        ("missing", Self::MISSING),
        ("unpopulated", Self::WP_UNPOPULATED),
        ("async", Self::WP_ASYNC),
        ("minor", Self::MINOR),
    ];
}

/// What a userfaultfd operation does to its range. `wp`: pages come write-protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are the arguments of the action, in its words")]
pub enum UffdAction {
    /// Registers the range.
    Register(UffdMode),
    /// Sets write protection.
    Protect,
    /// Lifts write protection.
    Unprotect,
    /// Ends the registration.
    Unregister,
    /// `copy`: new pages that hold the tag.
    Copy { value: u16, wp: bool },
    /// `zeropage`: zeros.
    ZeroPage,
    /// `continue`: what the object has.
    Continue { wp: bool },
    /// `poison`: whoever touches it gets a signal.
    Poison,
    /// `move`: the pages go to page `to_page` of region `to`; with `holes` where there are any.
    Move { to: RegionId, to_page: u64, holes: bool },
}

/// What a mapping shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapSource {
    /// Anonymous memory, or with [`Sharing::Shared`] a shmem object of its own.
    Anon,
    /// A file from this page on.
    File {
        /// The file.
        file: FileId,
        /// Page of the file at page 0 of the region.
        first_page: u64,
    },
}

/// One range of a process, as `observe` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The process.
    pub proc: ProcId,
    /// The pages; never with a stride.
    pub range: Range,
}

/// An operation. All names are resolved and all numbers are within the language's limits.
///
/// Counts are in pages of [`PAGE_SIZE`](crate::PAGE_SIZE) bytes. Values are the `V` of a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are the arguments of the operation, in its words")]
pub enum Op {
    /// `thp`: policy of a folio size of anonymous memory.
    Thp { size: FolioSize, policy: ThpPolicy },
    /// `shmem`: policy of a folio size of shmem.
    Shmem { size: FolioSize, policy: ShmemPolicy },
    /// `swap`: a swap device of this size; `None` is `swap off`.
    Swap { pages: Option<u64> },
    /// `file`: makes a file, a hole without `fill`; `bulk`: one write for the whole file.
    File { file: FileId, backing: FileBacking, pages: u64, fill: Option<u16>, bulk: bool },
    /// `fork`.
    Fork { child: ProcId, parent: ProcId },
    /// `exit`.
    Exit { proc: ProcId },
    /// `mmap`; `shstk`: a shadow stack, to which every store of its process is one of the
    /// kind that shadow stacks take.
    Mmap {
        proc: ProcId,
        region: RegionId,
        pages: u64,
        source: MapSource,
        prot: Prot,
        sharing: Sharing,
        noreserve: bool,
        shstk: bool,
    },
    /// `munmap`.
    Munmap { proc: ProcId, range: Range },
    /// `mprotect`.
    Mprotect { proc: ProcId, range: Range, prot: Prot },
    /// `mremap ... move`: to page `to_page` of region `to`.
    MremapMove { proc: ProcId, range: Range, to: RegionId, to_page: u64, dontunmap: bool },
    /// `mremap ... resize`: in place, to this many pages.
    MremapResize { proc: ProcId, region: RegionId, pages: u64 },
    /// `madvise`.
    Madvise { proc: ProcId, range: Range, advice: Advice },
    /// `mlock`.
    Mlock { proc: ProcId, range: Range, onfault: bool },
    /// `munlock`.
    Munlock { proc: ProcId, range: Range },
    /// `clearrefs`: forgets which pages were stored to (soft-dirty).
    ClearRefs { proc: ProcId },
    /// `read`: an 8-byte load of each page.
    Read { proc: ProcId, range: Range, order: TouchOrder },
    /// `write`: an 8-byte store of the tag to each page.
    Write { proc: ProcId, range: Range, value: u16, order: TouchOrder },
    /// `fill`: an 8-byte store of the fill tag to each page.
    Fill { proc: ProcId, range: Range, value: u16, order: TouchOrder },
    /// `peek`: forced read through a reference, a call per page. Prints content.
    Peek { proc: ProcId, range: Range },
    /// `poke`: forced write through a reference, a call per page.
    Poke { proc: ProcId, range: Range, value: u16 },
    /// `pvread`: read through a transient pin, a call per page. Prints content.
    Pvread { proc: ProcId, range: Range },
    /// `pvwrite`: write through a transient pin, a call per page.
    Pvwrite { proc: ProcId, range: Range, value: u16 },
    /// `dread`: one direct read of the file, from page `file_page`, into the range.
    Dread { proc: ProcId, range: Range, file: FileId, file_page: u64 },
    /// `dwrite`: one direct write of the range to the file, at page `file_page`.
    Dwrite { proc: ProcId, range: Range, file: FileId, file_page: u64 },
    /// `pin`: takes a lasting reference.
    Pin { proc: ProcId, range: Range, pin: PinId, method: PinMethod },
    /// `unpin`: drops it.
    Unpin { proc: ProcId, pin: PinId },
    /// `pinread`: prints the tags seen through the pin.
    Pinread { proc: ProcId, pin: PinId },
    /// `pinwrite`: writes tags through the pin.
    Pinwrite { proc: ProcId, pin: PinId, value: u16 },
    /// `uffd`.
    Uffd { proc: ProcId, range: Range, action: UffdAction },
    /// `ksmscan`: this many full scans.
    Ksmscan { scans: u32 },
    /// `fsync`.
    Fsync { file: FileId },
    /// `drop`: `fadvise(DONTNEED)` of all of the file.
    Drop { file: FileId },
    /// `truncate`.
    Truncate { file: FileId, pages: u64 },
    /// `punch`: makes a hole.
    Punch { file: FileId, first_page: u64, pages: u64 },
    /// `note`: prints its words.
    Note { text: String },
    /// `observe`: a snapshot.
    Observe { targets: Vec<Target> },
    /// `faults`: what the process's operations took since its last `faults`.
    Faults { proc: ProcId },
    /// `content`: the tags seen by loads of the process.
    Content { proc: ProcId, range: Range },
    /// `expect`: whether each page holds its tag (or with `fill` the fill tag); 0 means zero.
    Expect { proc: ProcId, range: Range, value: u16, fill: bool },
    /// `fcontent`: the tags of a file, not through a mapping.
    Fcontent { file: FileId },
    /// `events`: userfaultfd events since the last `events`.
    Events { proc: ProcId },
    /// `vmas`: the VMAs in the region's window.
    Vmas { proc: ProcId, region: RegionId },
    /// `stats`: changes of the counters since the last `stats`.
    Stats,
}

/// The operation words of the language, in the order of its description.
pub const OP_NAMES: &[&str] = &[
    "thp",
    "shmem",
    "swap",
    "file",
    "fork",
    "exit",
    "mmap",
    "munmap",
    "mprotect",
    "mremap",
    "madvise",
    "mlock",
    "munlock",
    "clearrefs",
    "read",
    "write",
    "fill",
    "peek",
    "poke",
    "pvread",
    "pvwrite",
    "dread",
    "dwrite",
    "pin",
    "unpin",
    "pinread",
    "pinwrite",
    "uffd",
    "ksmscan",
    "fsync",
    "drop",
    "truncate",
    "punch",
    "note",
    "observe",
    "faults",
    "content",
    "expect",
    "fcontent",
    "events",
    "vmas",
    "stats",
];

impl Op {
    /// The word of the operation, as it stands in the scenario and in what a runner prints.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Thp { .. } => "thp",
            Self::Shmem { .. } => "shmem",
            Self::Swap { .. } => "swap",
            Self::File { .. } => "file",
            Self::Fork { .. } => "fork",
            Self::Exit { .. } => "exit",
            Self::Mmap { .. } => "mmap",
            Self::Munmap { .. } => "munmap",
            Self::Mprotect { .. } => "mprotect",
            Self::MremapMove { .. } | Self::MremapResize { .. } => "mremap",
            Self::Madvise { .. } => "madvise",
            Self::Mlock { .. } => "mlock",
            Self::Munlock { .. } => "munlock",
            Self::ClearRefs { .. } => "clearrefs",
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Fill { .. } => "fill",
            Self::Peek { .. } => "peek",
            Self::Poke { .. } => "poke",
            Self::Pvread { .. } => "pvread",
            Self::Pvwrite { .. } => "pvwrite",
            Self::Dread { .. } => "dread",
            Self::Dwrite { .. } => "dwrite",
            Self::Pin { .. } => "pin",
            Self::Unpin { .. } => "unpin",
            Self::Pinread { .. } => "pinread",
            Self::Pinwrite { .. } => "pinwrite",
            Self::Uffd { .. } => "uffd",
            Self::Ksmscan { .. } => "ksmscan",
            Self::Fsync { .. } => "fsync",
            Self::Drop { .. } => "drop",
            Self::Truncate { .. } => "truncate",
            Self::Punch { .. } => "punch",
            Self::Note { .. } => "note",
            Self::Observe { .. } => "observe",
            Self::Faults { .. } => "faults",
            Self::Content { .. } => "content",
            Self::Expect { .. } => "expect",
            Self::Fcontent { .. } => "fcontent",
            Self::Events { .. } => "events",
            Self::Vmas { .. } => "vmas",
            Self::Stats => "stats",
        }
    }

    /// The process that does the operation: the `p` of what it prints. `None` where there is no
    /// or more than one.
    #[must_use]
    pub const fn proc(&self) -> Option<ProcId> {
        match *self {
            Self::Thp { .. }
            | Self::Shmem { .. }
            | Self::Swap { .. }
            | Self::File { .. }
            | Self::Ksmscan { .. }
            | Self::Fsync { .. }
            | Self::Drop { .. }
            | Self::Truncate { .. }
            | Self::Punch { .. }
            | Self::Note { .. }
            | Self::Observe { .. }
            | Self::Fcontent { .. }
            | Self::Stats => None,
            Self::Fork { parent: proc, .. }
            | Self::Exit { proc }
            | Self::Mmap { proc, .. }
            | Self::Munmap { proc, .. }
            | Self::Mprotect { proc, .. }
            | Self::MremapMove { proc, .. }
            | Self::MremapResize { proc, .. }
            | Self::Madvise { proc, .. }
            | Self::Mlock { proc, .. }
            | Self::Munlock { proc, .. }
            | Self::ClearRefs { proc }
            | Self::Read { proc, .. }
            | Self::Write { proc, .. }
            | Self::Fill { proc, .. }
            | Self::Peek { proc, .. }
            | Self::Poke { proc, .. }
            | Self::Pvread { proc, .. }
            | Self::Pvwrite { proc, .. }
            | Self::Dread { proc, .. }
            | Self::Dwrite { proc, .. }
            | Self::Pin { proc, .. }
            | Self::Unpin { proc, .. }
            | Self::Pinread { proc, .. }
            | Self::Pinwrite { proc, .. }
            | Self::Uffd { proc, .. }
            | Self::Faults { proc }
            | Self::Content { proc, .. }
            | Self::Expect { proc, .. }
            | Self::Events { proc }
            | Self::Vmas { proc, .. } => Some(proc),
        }
    }

    /// The file that the operation is on, made before.
    #[must_use]
    pub const fn file(&self) -> Option<FileId> {
        match *self {
            Self::Fsync { file }
            | Self::Drop { file }
            | Self::Truncate { file, .. }
            | Self::Punch { file, .. }
            | Self::Fcontent { file }
            | Self::Dread { file, .. }
            | Self::Dwrite { file, .. }
            | Self::Mmap { source: MapSource::File { file, .. }, .. } => Some(file),
            _ => None,
        }
    }

    /// Whether the operation is one of policy and set-up. A run of these at the top of a file is
    /// done before the first process is made.
    #[must_use]
    pub const fn is_setup(&self) -> bool {
        matches!(
            self,
            Self::Thp { .. } | Self::Shmem { .. } | Self::Swap { .. } | Self::File { .. }
        )
    }

    /// Whether `eq` is absent from the next observation after this operation, by any process:
    /// pages may have been freed, so a frame number no longer tells a page. Of `mremap` it is
    /// `move` that forgets; the goldens keep `eq` over a `resize`.
    #[must_use]
    pub const fn forgets_frames(&self) -> bool {
        match self {
            Self::Munmap { .. }
            | Self::MremapMove { .. }
            | Self::Truncate { .. }
            | Self::Punch { .. }
            | Self::Drop { .. }
            | Self::Ksmscan { .. } => true,
            Self::Madvise { advice, .. } => matches!(
                advice,
                Advice::DontNeed
                    | Advice::DontNeedLocked
                    | Advice::Free
                    | Advice::PageOut
                    | Advice::Remove
                    | Advice::GuardInstall
            ),
            _ => false,
        }
    }
}
