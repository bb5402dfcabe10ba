//! Taking swap devices out of use.

use crate::events::Events;
use crate::{FileError, Host, Process};
use mm_arch::Arch;
use mm_fault::{SwapBackError, swap_back};
use mm_folio::{FolioRef, Get};
use mm_vma::{Platform, SwapSpace};

/// Why swap devices stay in use, as they were. What came back stays in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SwapOffError {
    /// A page of a process cannot be had.
    #[error(transparent)]
    Process(#[from] SwapBackError),
    /// A page of an object cannot be had.
    #[error(transparent)]
    Object(#[from] FileError),
    /// Somebody uses a slot who is none of the processes.
    #[error("a page on swap is somebody else's")]
    Busy,
}

impl SwapOffError {
    /// The kernel's name of the error.
    pub const fn errno(self) -> &'static str {
        match self {
            SwapOffError::Process(e) => e.errno(),
            SwapOffError::Object(e) => e.errno(),
            SwapOffError::Busy => "EBUSY",
        }
    }
}

impl<A: Arch, O: Events> Host<A, O> {
    /// `swapoff` of all devices: everything on them comes back into memory. `processes` are
    /// all that live. What a device does not give is lost: who touches it gets a signal.
    ///
    /// # Errors
    ///
    /// If something cannot come back: the devices stay in use then.
    pub fn swap_off<'p>(
        &self,
        processes: impl IntoIterator<Item = &'p Process<A, O>>,
    ) -> Result<(), SwapOffError> {
        self.swap().slots().close();
        let done = self.bring_all_back(processes);
        if done.is_err() {
            self.swap().slots().reopen();
        }
        done
    }
    fn bring_all_back<'p>(
        &self,
        processes: impl IntoIterator<Item = &'p Process<A, O>>,
    ) -> Result<(), SwapOffError> {
        let policy = self.policy().fault;
        for process in processes {
            swap_back(&policy, &process.mm().read())?;
        }
        for object in self.objects().alive() {
            object.swap_back(0..u64::MAX)?;
        }
        // What is in memory only keeps its slots.
        for state in self.swap().slots().in_use() {
            if let Some(run) = self.swap().slots().get(self.memmap(), state.slot) {
                let own: FolioRef<'_, _, Get> = self.memmap().adopt_run(run);
                let locked = own.folio().lock();
                self.swap().slots().free(&locked);
                drop(locked);
            }
        }
        if self.swap().remove_closed() { Ok(()) } else { Err(SwapOffError::Busy) }
    }
}
