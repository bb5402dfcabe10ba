//! Audits: is the state of the machine one that may exist?
//!
//! Between two operations nothing is in flight, so everything can be recounted
//! from the page tables of all processes and compared with what records,
//! counters and caches claim. Each audit has a test that plants what it looks
//! for.
//!
//! | audit | looks for | rules |
//! |---|---|---|
//! | counts | references, map counts, pins, exclusive marks against the entries | INV-1..5, INV-7, INV-8 |
//! | counters | RSS counters against the entries | INV-6 |
//! | rights | entries that allow more than their mapping, or are in none | INV-2, INV-10 |
//! | dirt | stored pages that no entry and no folio calls dirty, and that nobody gave up | ACC-05, ACC-15, FOLIO-45 |
//! | caches | translations of freed frames and tables, or wider than the entry | INV-9 |
//! | tables | entry counts, and tables that nobody links | |
//! | trees | pages that the reverse map would not find | RMAP-27..29 |
//! | locks | folios kept in memory that no locked mapping shows | RMAP-06 |
//! | lists | folios that reclaim would not find, or that are kept from it for nothing | FOLIO-08, FOLIO-43 |
//! | objects | pages of files in the wrong place or behind the end, stores that nobody hears of | FILE-05, FILE-08 |
//! | swap | slots that entries do not account for, exclusive entries of shared slots | SWAP-02, SWPI-07 |
//! | content | words that are not what was stored ([`Shadow`]) | |
//! | leaks | frames that did not come back ([`leaks`]) | |

mod dirt;
mod shadow;
mod state;

pub use shadow::{Shadow, ShadowPin, Spot};
pub use state::{audit, leaks};

use crate::CpuViolation;
use mm_arch::{Level, Pfn, SpaceId, SwapSlot, TableFrame, VirtAddr, VirtRange};
use mm_folio::{AnonId, FileId, FolioFlags, MmId};
use mm_rmap::{GraphFault, MapcountFault};
use mm_vma::RssKind;

/// A page whose dirt was lost.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Undirtied {
    /// The clean entry that should be dirty, if it is one.
    pub at: Option<(SpaceId, VirtAddr)>,
    /// Index of the page in its folio.
    pub page: u32,
    /// Order of the folio.
    pub order: u32,
    /// Flags of the folio.
    pub flags: FolioFlags,
    /// Its tree, if it is anonymous.
    pub anon: Option<AnonId>,
    /// Its object, if it has one.
    pub file: Option<FileId>,
    /// References of the folio.
    pub refs: i32,
    /// Mappings of the folio.
    pub mapcount: u32,
    /// Its first slot, if it is in the swap cache.
    pub slot: Option<SwapSlot>,
    /// A CPU stored to the page since it was allocated or written out; if not, reclaim takes it
    /// for given up.
    pub stored: bool,
    /// The spaces that gave the page up.
    pub given_up_by: Vec<SpaceId>,
}

/// What an audit found.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditViolation {
    /// Counts of a folio.
    #[error(transparent)]
    Folio(#[from] mm_folio::audit::Violation),
    /// Translation caches.
    #[error(transparent)]
    Cpu(#[from] CpuViolation),
    /// An RSS counter disagrees with the entries.
    #[error("space {}: {kind:?} counter expected {expected}, got {got}", space.0)]
    Rss {
        /// The address space.
        space: SpaceId,
        /// The counter.
        kind: RssKind,
        /// Entries of this kind, in pages.
        expected: u64,
        /// The counter.
        got: u64,
    },
    /// An entry allows what its mapping does not.
    #[error("space {}: the {level:?} entry at {va} allows more than its mapping", space.0)]
    WiderThanMapping {
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
        /// The level.
        level: Level,
    },
    /// A page is write-protected by userfaultfd, and writable all the same, or in a
    /// mapping that is not registered for that (UFFD-06, MREMAP-01).
    #[error("space {}: the {level:?} entry at {va} is write-protected for nobody", space.0)]
    StaleProtection {
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
        /// The level.
        level: Level,
    },
    /// A swap slot has another number of entries than it says, or is being read although
    /// nothing runs.
    #[error("slot {} of device {}: entries expected {expected}, got {got}", slot.offset, slot.device)]
    SlotCount {
        /// The slot.
        slot: SwapSlot,
        /// Entries for it.
        expected: u32,
        /// What it says.
        got: u32,
    },
    /// A swap entry calls its page exclusive, but is not the only one for its slot
    /// (SWPI-07).
    #[error("space {}: the swap entry at {va} is exclusive, one of {count}", space.0)]
    ExclusiveSharedSlot {
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
        /// Entries for its slot.
        count: u32,
    },
    /// An entry is in no mapping.
    #[error("space {}: the {level:?} entry at {va} is in no mapping", space.0)]
    NoMapping {
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
        /// The level.
        level: Level,
    },
    /// A CPU stored to a page, but nothing remembers it.
    #[error("page {pfn} was stored to, but neither an entry nor its folio is dirty: {of:?}")]
    LostDirty {
        /// The page.
        pfn: Pfn,
        /// What is known of it.
        of: Box<Undirtied>,
    },
    /// A cached translation allows what the entry does not, or goes elsewhere.
    #[error("CPU {cpu} translates {va} of space {} otherwise than the tables", space.0)]
    StaleRights {
        /// The CPU.
        cpu: usize,
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
    },
    /// A table's count of entries is wrong.
    #[error("table {frame:?}: entries expected {expected}, got {got}")]
    TableEntries {
        /// The table.
        frame: TableFrame,
        /// Entries that are not empty.
        expected: u32,
        /// The descriptor.
        got: u32,
    },
    /// There are more or fewer tables than the address spaces link.
    #[error("page tables expected {expected}, got {got}")]
    Tables {
        /// Tables that are linked or deposited.
        expected: usize,
        /// Tables that are allocated.
        got: usize,
    },
    /// Walks of the reverse map see other flags than a mapping has (MIGR-03).
    #[error("space {}: the trees have other flags of the mapping at {va}", space.0)]
    TreeFlags {
        /// The address space.
        space: SpaceId,
        /// First address of the mapping.
        va: VirtAddr,
    },
    /// A folio is kept in memory that no locked mapping shows (RMAP-06).
    #[error("folio {head} is locked in memory for nobody")]
    LockedForNobody {
        /// The folio.
        head: Pfn,
    },
    /// A folio is on no list of reclaim although its flags say so, or on one although they
    /// say not, or it is kept from reclaim and on a list for that, or the other way round.
    #[error("folio {head} is not on the list of reclaim that it says")]
    Unlisted {
        /// The folio.
        head: Pfn,
    },
    /// The anonymous trees are broken.
    #[error("anonymous trees: {0:?}")]
    Tree(GraphFault),
    /// The reverse map does not lead to as many entries as map a folio.
    #[error("folio {head}: the reverse map finds {} of {} mappings", .fault.found, .fault.claimed)]
    ReverseMap {
        /// The folio.
        head: Pfn,
        /// What was found and what is claimed.
        fault: MapcountFault,
    },
    /// A word is not what was stored.
    #[error("process {process}: {va} holds {got:#x}, but {expected:#x} was stored")]
    Content {
        /// The process.
        process: u32,
        /// The address.
        va: VirtAddr,
        /// What was stored.
        expected: u64,
        /// What is there.
        got: u64,
    },
    /// A word of an object is not what was stored.
    #[error("object {}: byte {at:#x} holds {got:#x}, but {expected:#x} was stored", id.0)]
    ObjectContent {
        /// The object.
        id: FileId,
        /// The byte.
        at: u64,
        /// What was stored.
        expected: u64,
        /// What is there.
        got: u64,
    },
    /// An entry maps a page that is not the one of its object that belongs there
    /// (FILE-05, F-RACE-37).
    #[error("space {}: the {level:?} entry at {va} does not map page {index} of its object", space.0)]
    WrongPage {
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
        /// The level.
        level: Level,
        /// The page of the object that belongs there.
        index: u64,
    },
    /// An entry maps a page behind the end of its file (FILE-05, MM-075).
    #[error("space {}: the {level:?} entry at {va} maps what is behind the end", space.0)]
    BehindEnd {
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
        /// The level.
        level: Level,
    },
    /// A shared mapping lets stores through that its file should hear of, to a page
    /// that is not dirty (FILE-08).
    #[error("space {}: stores at {va} would not be announced", space.0)]
    Unannounced {
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
    },
    /// The file trees list other VMAs than there are.
    #[error("file trees: {what}: object {}, space of mm {}, {range:?}", id.0, mm.get())]
    FileTree {
        /// What is wrong.
        what: &'static str,
        /// The object.
        id: FileId,
        /// The address space.
        mm: MmId,
        /// Where.
        range: VirtRange,
    },
    /// Frames did not come back.
    #[error("free frames expected {expected}, got {got}")]
    FramesLeaked {
        /// Frames when the machine was new.
        expected: u64,
        /// Frames now.
        got: u64,
    },
    /// Pins were acquired that were not released, or more than that (rule PIN-17).
    #[error("{acquired} pins acquired, {released} released")]
    PinsLeaked {
        /// Pages pinned so far.
        acquired: u64,
        /// Pages unpinned so far.
        released: u64,
    },
}
