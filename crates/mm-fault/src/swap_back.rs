//! Everything comes back from swap.

use crate::dispatch::{E, Fault};
use crate::flags::Access;
use crate::{FaultOutcome, FaultPolicy};
use core::fmt;
use mm_arch::{Entry, SwapSlot, VirtAddr, VirtRange};
use mm_rmap::RmapPlatform;
use mm_vma::MmRead;

/// Why a page stays on swap. It can be asked for again; what came back stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapBackError {
    /// There is no memory for it.
    NoMemory(VirtAddr),
    /// The device does not give it.
    Io(VirtAddr),
}

impl SwapBackError {
    /// The kernel's name of the error.
    pub const fn errno(self) -> &'static str {
        match self {
            SwapBackError::NoMemory(_) => "ENOMEM",
            SwapBackError::Io(_) => "EIO",
        }
    }
}

impl fmt::Display for SwapBackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapBackError::NoMemory(va) => write!(f, "no memory for the page at {va}"),
            SwapBackError::Io(va) => write!(f, "the page at {va} cannot be read"),
        }
    }
}
impl core::error::Error for SwapBackError {}

/// Brings every page of anonymous memory that is on swap back, whatever its mapping allows: as
/// many faults that read would, if they were allowed to (rules SWPI-02..10). No page that
/// is shared is copied.
///
/// Nothing keeps pages from going out again but that the devices are closed.
///
/// # Errors
///
/// At the first page that cannot be had.
pub fn swap_back<P: RmapPlatform>(
    policy: &FaultPolicy,
    vmas: &MmRead<'_, P>,
) -> Result<(), SwapBackError> {
    for vma in vmas.iter() {
        let (mut next, end) = (Some(vma.start()), vma.range());
        while let Some((va, seen, slot)) = next.and_then(|from| next_swapped(vmas, from, end)) {
            let fault = Fault { policy, vmas, vma, va, access: Access::Read, retried: false };
            match fault.swap_in(seen, slot) {
                // There now, or somebody else is at it: looked at again.
                FaultOutcome::Done { .. } | FaultOutcome::UserFault { .. } => {}
                FaultOutcome::Oom => return Err(SwapBackError::NoMemory(va)),
                FaultOutcome::Signal(_) => return Err(SwapBackError::Io(va)),
            }
            next = Some(va);
        }
    }
    Ok(())
}

/// The first swap entry of `range` at `from` or behind it.
fn next_swapped<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    from: VirtAddr,
    range: VirtRange,
) -> Option<(VirtAddr, E<P>, SwapSlot)> {
    let rest = VirtRange::new(from, range.bytes_after(from)).ok()?;
    let swapped = |e: E<P>| Some((e, e.swap_slot()?));
    let (va, (e, slot)) = vmas.mm().tables().find(vmas.stay(), rest, swapped)?;
    Some((va, e, slot))
}
