//! Files and shared memory: what stands behind a mapping that is not anonymous.
//!
//! # The protocol
//!
//! An object keeps its pages in a *cache*, by index; [`PageCache`](crate::PageCache)
//! is one that an implementation may use. The cache holds a reference per page
//! (rule FOLIO-01), and whoever asks for a page gets a reference of its own.
//!
//! * **A page belongs to the object for as long as its folio is locked and names
//!   it.** Whoever maps a page locks the folio and asks
//!   ([`Folio::file`](mm_folio::Folio::file)); whoever takes a page out of the cache
//!   locks it, unmaps it and clears the name (race F-RACE-37).
//! * **Stores are announced** if the object wants that: its pages are mapped
//!   read-only, and [`make_writable`](Backing::make_writable) comes before the first
//!   entry that allows one (rules FILE-07, FILE-08). Cleaning a page takes the
//!   permission away again.
//! * **Dirt is kept by entries and by the folio.** Whoever destroys a dirty entry
//!   marks the folio (FOLIO-45).

use crate::Vma;
use core::fmt::Debug;
use mm_arch::{Pfn, VirtAddr};
use mm_folio::{FileId, FolioRun};

/// What kind of object a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackingKind {
    /// A file with a store of its own.
    File,
    /// Shared memory: the cached pages are all there is, and swap is their store.
    Shmem,
}

/// The page that a fault wants.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<'r> {
    /// Its index in the object.
    pub index: u64,
    /// The mapping. Its flags and bounds say which folio sizes are welcome.
    pub vma: &'r Vma,
    /// Where the mapping shows the page.
    pub va: VirtAddr,
}

/// A page of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the reference in it is to be adopted"]
pub struct FoundPage {
    /// The page, and one reference of its folio, which is the caller's to adopt.
    pub page: FolioRun,
    /// The content had to be read from a device.
    pub major: bool,
}

/// Why an object has no page to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackingError {
    /// The index lies behind the end.
    PastEnd,
    /// The device failed.
    Io,
    /// There is no memory.
    NoMemory,
}

impl core::fmt::Display for BackingError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BackingError::PastEnd => "the page lies behind the end of the object",
            BackingError::Io => "the device failed",
            BackingError::NoMemory => "no memory for a page of the object",
        })
    }
}
impl core::error::Error for BackingError {}

/// Why a page was not put into an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstallError {
    /// It has the page already.
    Exists,
    /// The page lies behind the end of the object.
    PastEnd,
    /// There is no memory.
    NoMemory,
    /// It takes its pages from elsewhere.
    Unsupported,
}

impl core::fmt::Display for InstallError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            InstallError::Exists => "the object has the page already",
            InstallError::PastEnd => "the page lies behind the end of the object",
            InstallError::NoMemory => "no memory for a page of the object",
            InstallError::Unsupported => "the object takes no pages",
        })
    }
}
impl core::error::Error for InstallError {}

/// A file or an object of shared memory, as mappings see it.
///
/// Object-safe, so that a mapping need not know what it shows. References to
/// folios cross this boundary as a [`FolioRun`] that owns them
/// ([`adopt_run`](mm_folio::MemMap::adopt_run) makes a value of it).
///
/// A mapping keeps its object alive. When the last one goes, the object is
/// dropped under the mmap lock: that gives cached pages back, and waits for nothing.
pub trait Backing: Send + Sync + Debug {
    /// The name by which folios know the object.
    fn id(&self) -> FileId;
    /// What kind of object it is.
    fn kind(&self) -> BackingKind;
    /// Its size in pages, the last one perhaps in part.
    fn nr_pages(&self) -> u64;
    /// Whether stores are announced by [`make_writable`](Self::make_writable)
    /// (rule FILE-08).
    fn notifies_writes(&self) -> bool;
    /// The page at `index` if it is cached and valid, with a reference. Callable
    /// under page-table locks: reads nothing, waits for no folio lock.
    fn cached(&self, index: u64) -> Option<FolioRun>;
    /// The page of `request`, read or made if need be, with a reference. Called
    /// without locks but the mmap lock's read side or the lock of the VMA.
    ///
    /// A folio that comes into the cache for that is filled and says `UPTODATE` before, and is put
    /// on a list behind it ([`enlist`](mm_folio::Folio::enlist)): what is on none is not
    /// reclaimed.
    ///
    /// # Errors
    ///
    /// If there is no such page, the device fails, or there is no memory.
    fn page(&self, request: &PageRequest<'_>) -> Result<FoundPage, BackingError>;
    /// Whether the object has nothing for `index`, in memory or elsewhere: a page of it would
    /// be made. One that reads its pages misses none.
    fn is_missing(&self, index: u64) -> bool {
        let _ = index;
        false
    }
    /// Puts a new page at `index`, which is missing; `fill` gives its frame the content. It
    /// comes with a reference.
    ///
    /// # Errors
    ///
    /// If it is not missing, or there is no memory.
    fn install(&self, index: u64, fill: &mut dyn FnMut(Pfn)) -> Result<FolioRun, InstallError> {
        let _ = (index, fill);
        Err(InstallError::Unsupported)
    }
    /// Reads those of the `nr` pages from `first` on into memory that are on a device, as far
    /// as there is memory and the device gives them; makes no page. Called without locks.
    fn read_ahead(&self, first: u64, nr: u64) {
        let _ = (first, nr);
    }
    /// Moves the folio that has page `index` to swap, if that is where the object keeps what
    /// it has no frames for: it is in the swap cache and dirty then, and the object has an
    /// entry for each of its slots. Whether it did.
    ///
    /// The folio is locked by the caller, who has a reference, and mapped by nobody.
    fn move_to_swap(&self, index: u64) -> bool {
        let _ = index;
        false
    }
    /// Calls `put`, which puts a folio of the cache where some of the `nr` pages from `first` on
    /// are not cached, as long as the object has none of these elsewhere, and none can be brought
    /// back or made meanwhile but in the cache. Whether it was called and returned `true`.
    fn fill_holes(&self, first: u64, nr: u64, put: &mut dyn FnMut() -> bool) -> bool {
        let _ = (first, nr);
        put()
    }
    /// The page at `index` is about to be mapped writable. Its folio is locked by
    /// the caller and in the object; it is clean for nobody once this returns.
    ///
    /// # Errors
    ///
    /// If the object refuses: no room, or a failed device.
    fn make_writable(&self, index: u64) -> Result<(), BackingError>;
    /// Splits a folio of the object into single pages, if nobody holds it but the cache and
    /// the caller; whether it did. `own` are the caller's references, and the page that they
    /// and the lock go on with is the first of `own`; without a split they are as before.
    ///
    /// The folio is locked by the caller and mapped by nobody.
    fn split(&self, own: FolioRun) -> (FolioRun, bool) {
        (own, false)
    }
    /// Makes the `nr` pages from `first` on a hole, which reads as zeros: they leave the object
    /// and every mapping of it, but for private copies. `false` if it has no holes. Called
    /// without locks.
    fn punch(&self, first: u64, nr: u64) -> bool {
        let _ = (first, nr);
        false
    }
    /// Takes the folio that has page `index` out of the cache, if it is clean, can be read
    /// again, and nobody holds it but the cache and, once, the caller. Whether it did.
    ///
    /// The folio is locked by the caller and mapped by nobody. An object that has nowhere
    /// to read its pages from keeps them.
    fn release(&self, index: u64) -> bool {
        let _ = index;
        false
    }
}
