//! What is known of a page, and accesses that are held against it.

use mm_arch::{Arch, VirtAddr};
use mm_fault::FaultSignal;
use mm_sim::{AccessError, Process};

/// How often an access is tried again that others were in the way of.
const PATIENCE: usize = 100_000;

/// What a thread knows of a page: its word there, and how it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Known {
    pub value: u64,
    /// It was given up: zero is right, too.
    pub or_zero: bool,
    /// Nothing is mapped.
    pub hole: bool,
    /// Userfaultfd is asked before the next store.
    pub protected: bool,
    /// Userfaultfd is asked before the next access.
    pub missing: bool,
    /// There was a store since tracking of stores began.
    pub stored: bool,
    /// No device gave it when it was touched last.
    pub lost: bool,
    /// It is a copy, whatever the file has.
    pub copied: bool,
}

impl Known {
    /// Whether the word may be `got`; what is known then.
    pub fn judge(&mut self, got: u64) -> Result<(), String> {
        if got == self.value {
            return Ok(());
        }
        if self.or_zero && got == 0 {
            // It is another page, which nobody stored to.
            *self = Known { value: 0, or_zero: false, stored: false, ..*self };
            return Ok(());
        }
        Err(format!("{got:#x}, not {self:x?}"))
    }
}

/// What came of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got<R> {
    Done(R),
    /// A signal: no device has the page, or the object has no such page.
    Bus,
    /// A signal: the mapping does not allow it, or there is none.
    Segv,
}

pub fn load<A: Arch>(process: &Process<A>, at: VirtAddr) -> Result<Got<u64>, String> {
    patiently(|| process.load(at))
}
pub fn store<A: Arch>(process: &Process<A>, at: VirtAddr, value: u64) -> Result<Got<()>, String> {
    patiently(|| process.store(at, value))
}
/// An access that somebody else reclaims the page of again and again is made again.
fn patiently<R>(mut access: impl FnMut() -> Result<R, AccessError>) -> Result<Got<R>, String> {
    for _ in 0..PATIENCE {
        match access() {
            Ok(r) => return Ok(Got::Done(r)),
            Err(AccessError::Stuck(_) | AccessError::NoMemory(_)) => std::thread::yield_now(),
            Err(AccessError::Signal(FaultSignal::Bus { .. } | FaultSignal::Poisoned { .. })) => {
                return Ok(Got::Bus);
            }
            Err(AccessError::Signal(FaultSignal::Segv { .. })) => return Ok(Got::Segv),
        }
    }
    Err("an access that never succeeds".to_owned())
}
