//! Processes: an address space, the CPU it runs on, and the faults it took.

use crate::events::{EventCounts, Events};
use crate::{CpuAccess, Host, PageFault};
use mm_arch::{AccessKind, Arch, Entry, Level, NonPresent, Tlb, VirtAddr, VirtRange};
use mm_fault::{
    FaultFlags, FaultOutcome, FaultPolicy, FaultSignal, UserFault, handle_fault,
    handle_fault_in_vma,
};
use mm_map::{Comes, MapError, WpChange};
use mm_pgtable::{LockedEntry, TableSpace};
use mm_sync::Quiescence;
use mm_vma::{Event, Mm, MmRead, Platform};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A process. Dropping it is its exit: everything is unmapped.
///
/// Pins that it took are values of their own ([`Pinned`](crate::Pinned)). Who drops a
/// process holds no quiescence guard: the exit waits for lockless walkers.
pub struct Process<A: Arch, O: Events = EventCounts> {
    mm: Arc<Mm<Host<A, O>>>,
    cpu: usize,
    faults: Mutex<FaultRecords>,
    user_faults: Mutex<Vec<UserFaultRecord>>,
}

/// The faults of a process since they were last taken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultRecords {
    /// Faults of CPUs, in order; those that ended in a signal are not counted.
    pub cpu: Vec<FaultRecord>,
    /// Faults taken for GUP from memory.
    pub gup_minor: u64,
    /// Faults taken for GUP that read from a device.
    pub gup_major: u64,
}

/// A fault by a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRecord {
    /// The address of the access.
    pub va: VirtAddr,
    /// Whether content was read from a device.
    pub major: bool,
}

/// An event of userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserFaultRecord {
    /// The page.
    pub va: VirtAddr,
    /// What it was about.
    pub kind: UserFault,
}

/// Why an access did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// It was answered with a signal.
    #[error(transparent)]
    Signal(#[from] FaultSignal),
    /// There was no memory for the page.
    #[error("no memory for the page at {0}")]
    NoMemory(VirtAddr),
    /// The fault was said to be resolved, again and again, but is not: a bug in
    /// the fault code.
    #[error("the {:?} access to {} faults for ever", .0.access, .0.va)]
    Stuck(PageFault),
}

/// Faults that one access may take before it counts as stuck. A store to an
/// untouched page can take three: table, zero page, copy. Whoever moves pages or
/// takes rights away at the same time makes it fault again, however often the scheduler
/// has it; a bug in the fault code faults for ever.
const MAX_FAULTS: usize = 1000;
/// Faults after which an access lets others go first.
const PATIENCE: usize = 4;

impl<A: Arch, O: Events> Process<A, O> {
    pub(crate) fn new(mm: Arc<Mm<Host<A, O>>>, cpu: usize) -> Self {
        Process { mm, cpu, faults: Mutex::default(), user_faults: Mutex::default() }
    }
    /// The address space, kept for somebody who works on several.
    pub(crate) fn shared_mm(&self) -> Arc<Mm<Host<A, O>>> {
        self.mm.clone()
    }
    /// The address space.
    pub fn mm(&self) -> &Mm<Host<A, O>> {
        &self.mm
    }
    /// The machine.
    pub fn host(&self) -> &Host<A, O> {
        self.mm.platform()
    }
    /// The CPU that the process runs on.
    pub fn cpu(&self) -> usize {
        self.cpu
    }
    /// Moves the process to another CPU.
    ///
    /// # Panics
    ///
    /// If there is no such CPU.
    pub fn run_on(&mut self, cpu: usize) {
        assert!(cpu < self.host().cpus().nr(), "no CPU {cpu}");
        self.cpu = cpu;
    }
    pub(crate) fn faults(&self) -> MutexGuard<'_, FaultRecords> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The faults since the last call.
    pub fn take_faults(&self) -> FaultRecords {
        std::mem::take(&mut self.faults())
    }
    /// The userfaultfd events since the last call, in order.
    pub fn take_user_faults(&self) -> Vec<UserFaultRecord> {
        std::mem::take(&mut self.user_faults.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Loads the 8-byte word at `va`, faulting as needed.
    ///
    /// # Errors
    ///
    /// If the access is not possible, or there is no memory.
    pub fn load(&self, va: VirtAddr) -> Result<u64, AccessError> {
        self.access(va, CpuAccess::Plain(AccessKind::Read), |w| w.load(Relaxed))
    }
    /// Stores to the 8-byte word at `va`, faulting as needed.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn store(&self, va: VirtAddr, value: u64) -> Result<(), AccessError> {
        self.access(va, CpuAccess::Plain(AccessKind::Write), |w| w.store(value, Relaxed))
    }
    /// Stores to the 8-byte word at `va` of a shadow stack, as a call does.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load); a signal where there is no shadow stack.
    pub fn push(&self, va: VirtAddr, value: u64) -> Result<(), AccessError> {
        self.access(va, CpuAccess::ShadowStack, |w| w.store(value, Relaxed))
    }

    fn access<R>(
        &self,
        va: VirtAddr,
        access: CpuAccess,
        f: impl FnOnce(&AtomicU64) -> R + Copy,
    ) -> Result<R, AccessError> {
        let (cpus, tables) = (self.host().cpus(), self.mm.tables());
        let mut faults = 0;
        while faults < MAX_FAULTS {
            match cpus.access(self.cpu, tables.id(), tables.root(), va, access, f) {
                Ok(r) => return Ok(r),
                Err(fault) => self.fault(fault)?,
            }
            // However long somebody moves the page, the access waits (rule MIGR-04).
            if faults < PATIENCE {
                faults += 1;
            } else {
                faults += usize::from(!self.is_moving(va));
                std::thread::yield_now();
            }
        }
        Err(AccessError::Stuck(PageFault { va, access }))
    }

    /// Whether the page is on its way elsewhere.
    fn is_moving(&self, va: VirtAddr) -> bool {
        let vmas = self.mm.read();
        let moving =
            |e: A::Entry, level| matches!(e.nonpresent(level), Some(NonPresent::Migration { .. }));
        match self.mm.tables().lock_entry(vmas.stay(), va) {
            LockedEntry::Hole => false,
            LockedEntry::Huge(pmd) => moving(pmd.entry(), Level::Pmd),
            LockedEntry::Table(table) => moving(table.get(table.index_of(va)), Level::Pte),
        }
    }

    /// Handles a page fault of this process's CPU.
    ///
    /// # Errors
    ///
    /// If it is answered with a signal, or there is no memory.
    pub fn fault(&self, fault: PageFault) -> Result<(), AccessError> {
        let policy = self.host().policy().fault;
        let flags = match fault.access {
            CpuAccess::Plain(AccessKind::Read) => FaultFlags::empty(),
            CpuAccess::Plain(AccessKind::Write) => FaultFlags::WRITE,
            CpuAccess::Plain(AccessKind::Exec) => FaultFlags::EXEC,
            CpuAccess::ShadowStack => FaultFlags::WRITE | FaultFlags::SHADOW_STACK,
        };
        let in_vma = self
            .mm
            .lock_vma(fault.va)
            .and_then(|locked| handle_fault_in_vma(&policy, &locked, fault.va, flags).ok());
        let event = if in_vma.is_some() { Event::FaultsInVma } else { Event::FaultsInMm };
        self.host().observer().event(event, 1);
        let outcome =
            in_vma.unwrap_or_else(|| self.handle_fault(&policy, &self.mm.read(), fault.va, flags));
        match outcome {
            FaultOutcome::Done { major } => {
                self.faults().cpu.push(FaultRecord { va: fault.va, major });
                Ok(())
            }
            FaultOutcome::Signal(signal) => Err(signal.into()),
            FaultOutcome::Oom => Err(AccessError::NoMemory(fault.va)),
            FaultOutcome::UserFault { .. } => Err(AccessError::Stuck(fault)),
        }
    }
    /// Handles a fault, and answers what userfaultfd is asked on the way at once, as
    /// the process's own handler thread: a write-protected page is unprotected, a
    /// missing one gets the zero page, one that an object has is mapped. However often it asks, it is one fault.
    pub(crate) fn handle_fault(
        &self,
        policy: &FaultPolicy,
        vmas: &MmRead<'_, Host<A, O>>,
        va: VirtAddr,
        flags: FaultFlags,
    ) -> FaultOutcome {
        let mut outcome = handle_fault(policy, vmas, va, flags);
        for _ in 0..MAX_FAULTS {
            let FaultOutcome::UserFault { va, kind } = outcome else { break };
            self.user_faults
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(UserFaultRecord { va, kind });
            match self.answer(vmas, va, kind) {
                // Somebody else was faster.
                Ok(()) | Err(MapError::Exists(_)) => {}
                Err(MapError::NoMemory(_)) => return FaultOutcome::Oom,
                Err(_) => return FaultOutcome::Signal(FaultSignal::Bus { va }),
            }
            outcome = handle_fault(policy, vmas, va, flags | FaultFlags::TRIED);
        }
        outcome
    }
    fn answer(
        &self,
        vmas: &MmRead<'_, Host<A, O>>,
        va: VirtAddr,
        kind: UserFault,
    ) -> Result<(), MapError> {
        let page = VirtRange::units(va, 1, A::PAGE_SHIFT).map_err(|_| MapError::Invalid(va))?;
        match kind {
            UserFault::Wp => {
                mm_map::uffd_wp(&self.host().policy().map, vmas, page, WpChange::Unprotect)
            }
            UserFault::Missing { .. } => mm_map::uffd_zeropage(vmas, page),
            UserFault::Minor { .. } => mm_map::uffd_continue(vmas, page, Comes::Plain),
        }
    }
    /// The process ends: its memory is gone when this returns.
    pub fn exit(self) {}
}

impl<A: Arch, O: Events> Drop for Process<A, O> {
    fn drop(&mut self) {
        let host = self.host().clone();
        mm_map::exit(&host.policy().map, &self.mm);
        // The root and what hangs below go without a gather; nobody may walk
        // them any more, nor a later space of the same number find them cached.
        host.cpus().flush_space(self.mm.tables().id());
        // Tables that wait for walkers hold the machine alive: let them go now.
        host.epochs().synchronize();
    }
}

impl<A: Arch, O: Events> std::fmt::Debug for Process<A, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("mm", &self.mm.id()).field("cpu", &self.cpu).finish()
    }
}
