//! One address space.

use crate::shared::try_arc_cyclic;
use crate::vma_lock::{Locked, Reading, StoreChange, Vmas, Writing};
use crate::{MmCounters, Platform, Vma, VmaStore};
use alloc::sync::{Arc, Weak};
use core::fmt;
use core::ops::Deref;
use mm_arch::{Arch, SpaceId, VirtAddr, VirtRange};
use mm_folio::{AllocError, MmId};
use mm_pgtable::{PageTables, TableAllocError, TablesStay};
use mm_sync::SeqCount;
use mm_sync::atomic::{AtomicBool, Ordering};

/// Why an address space could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MmError {
    /// No id is free.
    NoId,
    /// No memory for it, or its root table.
    NoMemory,
}

impl fmt::Display for MmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MmError::NoId => "no id for another address space",
            MmError::NoMemory => "no memory for an address space",
        })
    }
}
impl core::error::Error for MmError {}
impl From<TableAllocError> for MmError {
    fn from(_: TableAllocError) -> Self {
        MmError::NoMemory
    }
}
impl From<AllocError> for MmError {
    fn from(_: AllocError) -> Self {
        MmError::NoId
    }
}

/// An address space.
///
/// # Invariants
///
/// * Page tables are freed only by a holder of the mmap lock's write side, and only such as
///   cover no VMA that it did not exclude the holders of locks from.
/// * The id is not reused before the last mapping of this space is gone
///   (known race: a new owner of the id would look like the old one).
pub struct Mm<P: Platform> {
    tables: PageTables<P>,
    vmas: Vmas<P::MmapLock>,
    counters: MmCounters,
    id: MmId,
    /// Odd while fork copies this space.
    write_protect_seq: SeqCount,
    has_pinned: AtomicBool,
    is_ending: AtomicBool,
    me: Weak<Mm<P>>,
}

impl<P: Platform> Mm<P> {
    /// An empty address space.
    ///
    /// # Errors
    ///
    /// If there is no id or no memory.
    pub fn new(platform: P) -> Result<Arc<Self>, MmError> {
        let id = platform.mm_ids().alloc()?;
        let tables = PageTables::new(platform.clone(), SpaceId(u64::from(id.get())));
        let made = tables.map_err(MmError::from).and_then(|tables| {
            let made = try_arc_cyclic(|me| Mm {
                tables,
                vmas: Vmas::new(VmaStore::new(<P::Arch as Arch>::PAGE_SHIFT)),
                counters: MmCounters::new(),
                id,
                write_protect_seq: SeqCount::new(),
                has_pinned: AtomicBool::new(false),
                is_ending: AtomicBool::new(false),
                me: me.clone(),
            });
            made.map_err(|_| MmError::NoMemory)
        });
        made.inspect_err(|_| platform.mm_ids().free(id))
    }
    /// The kernel.
    #[inline]
    pub fn platform(&self) -> &P {
        self.tables.space()
    }
    /// The page tables.
    #[inline]
    pub fn tables(&self) -> &PageTables<P> {
        &self.tables
    }
    /// The id that folios know this space by.
    #[inline]
    pub fn id(&self) -> MmId {
        self.id
    }
    /// The resident-set counters.
    #[inline]
    pub fn counters(&self) -> &MmCounters {
        &self.counters
    }
    /// Odd while fork copies this space (rules FORK-03, GUPF-05).
    #[inline]
    pub fn write_protect_seq(&self) -> &SeqCount {
        &self.write_protect_seq
    }
    /// A reference to this space that does not keep it alive.
    pub fn downgrade(&self) -> Weak<Mm<P>> {
        self.me.clone()
    }
    /// Takes the mmap lock's read side.
    #[inline]
    pub fn read(&self) -> MmRead<'_, P> {
        MmRead { mm: self, vmas: self.vmas.read() }
    }
    /// Takes the mmap lock's read side if that needs no waiting.
    pub fn try_read(&self) -> Option<MmRead<'_, P>> {
        Some(MmRead { mm: self, vmas: self.vmas.try_read()? })
    }
    /// Takes the mmap lock's write side; nobody holds the lock of a VMA then.
    #[inline]
    pub fn write(&self) -> MmWrite<'_, P> {
        MmWrite { mm: self, vmas: self.vmas.write(None) }
    }
    /// Takes the mmap lock's write side, for an operation that changes no VMA but such as
    /// overlap or touch `range`, and nothing that is mapped by others: nobody holds the
    /// lock of one of these then. The others can be locked meanwhile.
    #[inline]
    pub fn write_within(&self, range: VirtRange) -> MmWrite<'_, P> {
        MmWrite { mm: self, vmas: self.vmas.write(Some(range)) }
    }
    /// Locks the VMA at `va`, without the mmap lock. `None` if there is none, or a writer of
    /// the mmap lock keeps it: the mmap lock's read side tells.
    ///
    /// Who holds it waits for no mmap lock of this space: its writer may wait for the VMA.
    #[inline]
    pub fn lock_vma(&self, va: VirtAddr) -> Option<VmaRead<'_, P>> {
        Some(VmaRead { mm: self, vma: self.vmas.lock(va)? })
    }
    /// Whether the memory of this space is about to be given back.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }
    /// Nobody uses this space any more, or its memory is taken because there is none: what it
    /// alone has is not worth swapping out (rule REF-04). A hint, so relaxed.
    pub fn set_ending(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }
    /// Whether a pin was ever attempted in this space.
    #[inline]
    pub fn has_pinned(&self) -> bool {
        self.has_pinned.load(Ordering::Relaxed)
    }
    /// Says that a pin is about to be attempted (rule PIN-12). Test first: the
    /// flag is sticky and the line is shared.
    ///
    /// Relaxed is enough: the pinner's full barrier behind its pin orders the
    /// flag before its second look at the sequence count, and the forker's
    /// fence behind its odd value orders its look at the flag (P-RACE-30).
    #[inline]
    pub fn set_has_pinned(&self) {
        if !self.has_pinned() && !mm_sync::mutant!("mm.has_pinned.late") {
            self.has_pinned.store(true, Ordering::Relaxed);
        }
    }
    /// Whether `range` lies in user space.
    pub fn is_user_range(&self, range: VirtRange) -> bool {
        range.last() < VirtAddr::new(<P::Arch as Arch>::USER_END)
    }
}

impl<P: Platform> fmt::Debug for Mm<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mm")
            .field("id", &self.id)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl<P: Platform> Drop for Mm<P> {
    fn drop(&mut self) {
        debug_assert_eq!(self.counters.resident(), 0, "a dead space has resident pages");
        if !mm_sync::mutant!("map.exit.id_first") {
            self.platform().mm_ids().free(self.id);
        }
    }
}

/// The read side of an mmap lock.
///
/// What it proves: VMAs do not change and no page table of the space is freed.
/// What it does not: that entries stay; other threads fault and unmap.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct MmRead<'m, P: Platform> {
    mm: &'m Mm<P>,
    vmas: Reading<'m, P::MmapLock>,
}

/// The write side of an mmap lock: nobody else changes mappings or frees tables. Nobody
/// faults but who holds the lock of a VMA that it does not [exclude](Self::excludes).
#[must_use = "the lock is given back when the guard is dropped"]
pub struct MmWrite<'m, P: Platform> {
    mm: &'m Mm<P>,
    vmas: Writing<'m, P::MmapLock>,
}

/// The lock of one VMA.
///
/// What it proves: this VMA does not change, and no page table that covers a page of it is
/// freed. What it does not: anything about other VMAs, or that entries stay.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct VmaRead<'m, P: Platform> {
    mm: &'m Mm<P>,
    vma: Locked<'m>,
}

impl<'m, P: Platform> VmaRead<'m, P> {
    /// The address space.
    #[inline]
    pub fn mm(&self) -> &'m Mm<P> {
        self.mm
    }
    /// The VMA.
    #[inline]
    pub fn vma(&self) -> &Vma {
        &self.vma
    }
    /// The proof that the page tables of the VMA stay while this guard lives.
    #[inline]
    pub fn stay(&self) -> TablesStay<'_> {
        // SAFETY: whoever frees tables has excluded the VMAs that they cover (invariant of
        // `Mm`), and cannot exclude this one while it is locked.
        unsafe { TablesStay::of_range(self.mm.tables(), self.vma.range()) }
    }
}

impl<'m, P: Platform> MmRead<'m, P> {
    /// The address space.
    #[inline]
    pub fn mm(&self) -> &'m Mm<P> {
        self.mm
    }
    /// The proof that page tables stay while this guard lives.
    #[inline]
    pub fn stay(&self) -> TablesStay<'_> {
        // SAFETY: tables are freed only under the write side (invariant of
        // `Mm`), which this guard excludes while it is borrowed.
        unsafe { TablesStay::of(self.mm.tables()) }
    }
}

impl<'m, P: Platform> MmWrite<'m, P> {
    /// The address space.
    #[inline]
    pub fn mm(&self) -> &'m Mm<P> {
        self.mm
    }
    /// The VMAs, to change. Locks may be held while the result lives: it is used for one
    /// change, or a few.
    #[inline]
    pub fn change(&mut self) -> StoreChange<'_, P::MmapLock> {
        self.vmas.change()
    }
    /// Whether nobody holds the lock of a VMA that overlaps `range`.
    pub fn excludes(&self, range: VirtRange) -> bool {
        self.vmas.excludes(range)
    }
    /// The proof that page tables stay, but for those this thread frees.
    #[inline]
    pub fn stay(&self) -> TablesStay<'_> {
        // SAFETY: only this thread could free tables; the one function that
        // does, `free_empty_tables`, is unsafe and asks that no walker of this
        // thread is in the middle of a table.
        unsafe { TablesStay::of(self.mm.tables()) }
    }
}

impl<P: Platform> Deref for MmRead<'_, P> {
    type Target = VmaStore;
    #[inline]
    fn deref(&self) -> &VmaStore {
        &self.vmas
    }
}
impl<P: Platform> Deref for MmWrite<'_, P> {
    type Target = VmaStore;
    #[inline]
    fn deref(&self) -> &VmaStore {
        &self.vmas
    }
}
impl<P: Platform> fmt::Debug for MmRead<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MmRead({:?})", self.mm.id)
    }
}
impl<P: Platform> fmt::Debug for MmWrite<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MmWrite({:?})", self.mm.id)
    }
}
impl<P: Platform> fmt::Debug for VmaRead<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VmaRead({:?}, {:?})", self.mm.id, self.vma.range())
    }
}
