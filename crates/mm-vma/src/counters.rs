//! Resident-set counters.

use mm_folio::{Folio, FolioFlags, FolioSpace};
use mm_sync::atomic::{AtomicU64, Ordering};

/// What kind of memory an entry counts as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RssKind {
    /// Anonymous pages.
    Anon = 0,
    /// Pages of files.
    File = 1,
    /// Pages of shared memory.
    Shmem = 2,
    /// Swap entries.
    Swap = 3,
}

impl RssKind {
    /// What an entry counts as that maps a page of `folio`.
    #[inline]
    pub fn of<F: FolioSpace>(folio: Folio<'_, F>) -> Self {
        if folio.is_anon() {
            RssKind::Anon
        } else if folio.has(FolioFlags::SWAPBACKED) {
            RssKind::Shmem
        } else {
            RssKind::File
        }
    }
}

/// Entries of one address space by kind, in pages (rule INV-6).
#[derive(Debug)]
pub struct MmCounters([AtomicU64; 4]);

impl MmCounters {
    pub(crate) fn new() -> Self {
        MmCounters(core::array::from_fn(|_| AtomicU64::new(0)))
    }
    /// Adds `nr` pages.
    #[inline]
    pub fn add(&self, kind: RssKind, nr: u64) {
        self.0[kind as usize].fetch_add(nr, Ordering::Relaxed);
    }
    /// Takes `nr` pages off.
    #[inline]
    pub fn sub(&self, kind: RssKind, nr: u64) {
        let old = self.0[kind as usize].fetch_sub(nr, Ordering::Relaxed);
        debug_assert!(old >= nr, "RSS counter {kind:?} went below zero");
    }
    /// Pages of this kind.
    #[inline]
    pub fn get(&self, kind: RssKind) -> u64 {
        self.0[kind as usize].load(Ordering::Relaxed)
    }
    /// Pages in memory.
    pub fn resident(&self) -> u64 {
        self.get(RssKind::Anon) + self.get(RssKind::File) + self.get(RssKind::Shmem)
    }
}
