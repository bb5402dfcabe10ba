//! Calls that reach memory of a process without its CPU: pins of devices,
//! `process_vm_readv`, `/proc/self/mem`.

use crate::events::{EventCounts, Events};
use crate::{Host, Process};
use mm_arch::{AccessKind, Arch, Pfn, VirtAddr, VirtRange};
use mm_fault::{FaultFlags, FaultOutcome, FaultSignal, handle_fault};
use mm_folio::{FolioFlags, FolioRun, FrameBytes};
use mm_gup::{
    FaultError, FaultHandler, Gup, GupError, GupFault, GupFlags, OnError, Resolved, Runs,
};
use mm_vma::{MmRead, Platform};

/// Resolves faults for GUP and counts them for the process.
struct ForGup<'a, A: Arch, O: Events>(&'a Process<A, O>);

impl<A: Arch, O: Events> FaultHandler<Host<A, O>> for ForGup<'_, A, O> {
    fn resolve<'m>(
        &self,
        vmas: MmRead<'m, Host<A, O>>,
        va: VirtAddr,
        fault: GupFault,
    ) -> Resolved<'m, Host<A, O>> {
        // GUP has checked the mapping's rights, by its own rules for FORCE.
        let mut flags = FaultFlags::FORCE;
        for (asked, flag) in [
            (GupFault::WRITE, FaultFlags::WRITE),
            (GupFault::UNSHARE, FaultFlags::UNSHARE),
            (GupFault::REMOTE, FaultFlags::REMOTE),
            (GupFault::ALLOW_RETRY, FaultFlags::ALLOW_RETRY),
            (GupFault::TRIED, FaultFlags::TRIED),
        ] {
            flags.set(flag, fault.contains(asked));
        }
        let policy = self.0.host().policy().fault;
        // Whoever must not wait does not wait for userfaultfd either.
        let outcome = if fault.contains(GupFault::NOWAIT) {
            handle_fault(&policy, &vmas, va, flags)
        } else {
            self.0.handle_fault(&policy, &vmas, va, flags)
        };
        match outcome {
            FaultOutcome::Done { major } => {
                let mut faults = self.0.faults();
                let count = if major { &mut faults.gup_major } else { &mut faults.gup_minor };
                *count += 1;
                Resolved::Done(vmas)
            }
            FaultOutcome::Signal(FaultSignal::Poisoned { .. }) => {
                Resolved::Failed(vmas, FaultError::Poisoned)
            }
            FaultOutcome::Signal(_) => Resolved::Failed(vmas, FaultError::Signal),
            FaultOutcome::Oom => Resolved::Failed(vmas, FaultError::NoMemory),
            FaultOutcome::UserFault { .. } => Resolved::WouldWait(vmas),
        }
    }
}

/// GUP as a process calls it.
type TheGup<'a, A, O> = Gup<'a, Host<A, O>, ForGup<'a, A, O>, O, Host<A, O>>;

/// Pages that something other than a CPU holds. Dropping gives them back.
pub struct Pinned<A: Arch, O: Events = EventCounts> {
    host: Host<A, O>,
    runs: Vec<FolioRun>,
    is_pin: bool,
    dirty_at_end: bool,
}

impl<A: Arch, O: Events> std::fmt::Debug for Pinned<A, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("runs", &self.runs).field("is_pin", &self.is_pin).finish()
    }
}

impl<A: Arch, O: Events> Pinned<A, O> {
    /// The pages, in the order of their addresses.
    pub fn runs(&self) -> &[FolioRun] {
        &self.runs
    }
    /// Whether these are pins, and not plain references.
    pub fn is_pin(&self) -> bool {
        self.is_pin
    }
    /// Number of pages.
    pub fn nr_pages(&self) -> usize {
        self.runs.iter().map(|r| r.nr as usize).sum()
    }
    /// Marks folios dirty when the pages are given back, as a device does that
    /// wrote to them.
    pub fn dirty_at_end(&mut self) {
        self.dirty_at_end = true;
    }
    fn page(&self, index: usize) -> Option<Pfn> {
        self.runs.iter().flat_map(FolioRun::pages).nth(index)
    }
    /// The word at byte `offset` of the page `index`, as the holder sees it.
    pub fn load(&self, index: usize, offset: usize) -> Option<u64> {
        Some(self.host.frames().load(self.page(index)?, offset))
    }
    /// Writes a word as the holder. Nothing if there is no such page.
    pub fn store(&self, index: usize, offset: usize, value: u64) {
        if let Some(pfn) = self.page(index) {
            self.host.frames().store(pfn, offset, value);
        }
    }
}

impl<A: Arch, O: Events> Drop for Pinned<A, O> {
    fn drop(&mut self) {
        let map = self.host.memmap();
        let runs = std::mem::take(&mut self.runs);
        match (self.is_pin, self.dirty_at_end) {
            (true, true) => {
                for run in runs {
                    mm_gup::unpin_run_dirty(map, run);
                }
            }
            (true, false) => mm_gup::unpin_runs(map, runs),
            (false, dirty) => {
                if dirty {
                    for run in &runs {
                        map.folio(run.head).set_flag(FolioFlags::DIRTY);
                    }
                }
                mm_gup::put_runs(map, runs);
            }
        }
    }
}

/// Why memory of a process could not be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RemoteError {
    /// GUP refused the first page.
    #[error(transparent)]
    Gup(GupError),
    /// GUP stopped after some pages; all were given back.
    #[error("only {got} of {wanted} pages")]
    Partial {
        /// Pages that it got.
        got: usize,
        /// Pages asked for.
        wanted: usize,
    },
}

impl RemoteError {
    /// The kernel's name of the error.
    pub const fn errno(&self) -> &'static str {
        match self {
            RemoteError::Gup(e) => e.errno(),
            RemoteError::Partial { .. } => "EFAULT",
        }
    }
}

impl<A: Arch, O: Events> Process<A, O> {
    /// What resolves faults for GUP on this process and counts them.
    pub fn gup_handler(&self) -> impl FaultHandler<Host<A, O>> + '_ {
        ForGup(self)
    }

    fn with_gup<T>(&self, call: impl FnOnce(&TheGup<'_, A, O>) -> T) -> T {
        let handler = ForGup(self);
        let gup = Gup::new(self.mm(), &handler)
            .with_policy(self.host().policy().gup)
            .with_migrator(self.host())
            .observed_by(self.host().observer());
        call(&gup)
    }
    /// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`.
    ///
    /// # Errors
    ///
    /// At the first page that cannot be had.
    pub fn populate(&self, range: VirtRange, access: AccessKind) -> Result<(), GupError> {
        let nr = range.nr(A::PAGE_SHIFT) as usize;
        self.with_gup(|gup| gup.populate(range.start(), nr, access))
    }
    /// What `mlock` and `MAP_POPULATE` do (rule POP-02).
    pub(crate) fn populate_mapped(
        &self,
        range: VirtRange,
        on_error: OnError,
    ) -> Result<(), GupError> {
        self.with_gup(|gup| gup.populate_mapped(range, on_error))
    }
    fn hold(
        &self,
        nr: usize,
        is_pin: bool,
        take: impl Fn(&TheGup<'_, A, O>, &mut Runs) -> Result<usize, GupError>,
    ) -> Result<Pinned<A, O>, RemoteError> {
        let mut out = Runs::new();
        let result = self.with_gup(|gup| take(gup, &mut out));
        let held =
            Pinned { host: self.host().clone(), runs: out.take(), is_pin, dirty_at_end: false };
        match result {
            Ok(got) if got == nr => Ok(held),
            Ok(got) => Err(RemoteError::Partial { got, wanted: nr }),
            Err(e) => Err(RemoteError::Gup(e)),
        }
    }

    /// Pins `nr` pages from `va` on by the fast path, as devices do; all or none.
    ///
    /// # Errors
    ///
    /// If not all of them can be pinned.
    pub fn pin(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
    ) -> Result<Pinned<A, O>, RemoteError> {
        self.hold(nr, true, |gup, out| gup.pin_fast(va, nr, flags, out))
    }
    /// Pins `nr` pages from `va` on under the mmap lock, without trying the fast path.
    ///
    /// # Errors
    ///
    /// As [`pin`](Self::pin).
    pub fn pin_slow(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
    ) -> Result<Pinned<A, O>, RemoteError> {
        self.hold(nr, true, |gup, out| gup.pin(va, nr, flags, out))
    }
    /// Takes references of `nr` pages, as [`pin`](Self::pin).
    ///
    /// # Errors
    ///
    /// If not all of them can be had.
    pub fn get(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
    ) -> Result<Pinned<A, O>, RemoteError> {
        self.hold(nr, false, |gup, out| gup.get_fast(va, nr, flags, out))
    }
    /// `process_vm_readv` of one word: a transient pin of its page.
    ///
    /// # Errors
    ///
    /// If the page cannot be pinned.
    pub fn vm_read(&self, va: VirtAddr) -> Result<u64, RemoteError> {
        let page = self.hold(1, true, |gup, out| gup.pin_remote(va, 1, GupFlags::empty(), out))?;
        Ok(page.load(0, in_page::<A>(va)).unwrap_or_default())
    }
    /// `process_vm_writev` of one word.
    ///
    /// # Errors
    ///
    /// As [`vm_read`](Self::vm_read).
    pub fn vm_write(&self, va: VirtAddr, value: u64) -> Result<(), RemoteError> {
        let mut page =
            self.hold(1, true, |gup, out| gup.pin_remote(va, 1, GupFlags::WRITE, out))?;
        page.store(0, in_page::<A>(va), value);
        page.dirty_at_end();
        Ok(())
    }
    /// Reads a word through `/proc/self/mem`: a reference, whatever the mapping
    /// allows.
    ///
    /// # Errors
    ///
    /// If the page cannot be had.
    pub fn mem_read(&self, va: VirtAddr) -> Result<u64, RemoteError> {
        let page = self.hold(1, false, |gup, out| gup.get_remote(va, 1, GupFlags::FORCE, out))?;
        Ok(page.load(0, in_page::<A>(va)).unwrap_or_default())
    }
    /// Writes a word through `/proc/self/mem`.
    ///
    /// # Errors
    ///
    /// As [`mem_read`](Self::mem_read).
    pub fn mem_write(&self, va: VirtAddr, value: u64) -> Result<(), RemoteError> {
        let flags = GupFlags::FORCE | GupFlags::WRITE;
        let mut page = self.hold(1, false, |gup, out| gup.get_remote(va, 1, flags, out))?;
        page.store(0, in_page::<A>(va), value);
        page.dirty_at_end();
        Ok(())
    }
}

fn in_page<A: Arch>(va: VirtAddr) -> usize {
    (va.get() & ((1 << A::PAGE_SHIFT) - 1)) as usize
}
