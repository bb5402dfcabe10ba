//! Everything comes back from swap.

use crate::dispatch::{E, Fault, Held};
use crate::flags::Access;
use crate::{FaultOutcome, FaultPolicy};
use core::fmt;
use mm_arch::{Entry, Markers, NonPresent, SwapBits, SwapSlot, VirtAddr, VirtRange};
use mm_folio::{FolioRef, Get};
use mm_rmap::RmapPlatform;
use mm_vma::{MmRead, RssKind, SlotRun, SwapSpace, put_swap};

/// There is no memory for a page, which stays on swap. It can be asked for again; what came
/// back stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapBackError {
    /// Where the page belongs.
    pub va: VirtAddr,
}

impl SwapBackError {
    /// The kernel's name of the error.
    pub const fn errno(self) -> &'static str {
        "ENOMEM"
    }
}

impl fmt::Display for SwapBackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory for the page at {}", self.va)
    }
}
impl core::error::Error for SwapBackError {}

/// Brings every page of anonymous memory that is on swap back, whatever its mapping allows: as
/// many faults that read would, if they were allowed to (rules SWPI-02..10). No page that
/// is shared is copied. One that the device does not give, or that has failed in memory, is
/// lost: poison takes its place, and whoever touches it gets a signal (rule SWAP-06).
///
/// Nothing keeps pages from going out again but that the devices are closed.
///
/// # Errors
///
/// At the first page that there is no memory for.
pub fn swap_back<P: RmapPlatform>(
    policy: &FaultPolicy,
    vmas: &MmRead<'_, P>,
) -> Result<(), SwapBackError> {
    for vma in vmas.iter() {
        let (mut next, end) = (Some(vma.start()), vma.range());
        while let Some((va, seen, slot)) = next.and_then(|from| next_swapped(vmas, from, end)) {
            let held = Held { mm: vmas.mm(), stay: vmas.stay(), vmas: Some(vmas), vma };
            let fault = Fault::new(policy, held, va, Access::Read, false);
            match fault.swap_in(seen, slot) {
                // There now, or somebody else is at it: looked at again.
                FaultOutcome::Done { .. } | FaultOutcome::UserFault { .. } => {}
                FaultOutcome::Oom => return Err(SwapBackError { va }),
                FaultOutcome::Signal(_) => lose(vmas, va, seen, slot),
            }
            next = Some(va);
        }
    }
    Ok(())
}

/// The entry `seen` stands for a page that cannot be had any more, and says so from now on.
fn lose<P: RmapPlatform>(vmas: &MmRead<'_, P>, va: VirtAddr, seen: E<P>, slot: SwapSlot) {
    let (mm, platform) = (vmas.mm(), vmas.mm().platform());
    // One that is in memory and has failed there is known by its frame.
    let failed = platform.swap().slots().get(platform.memmap(), slot).and_then(|run| {
        let page = run.first;
        let own: FolioRef<'_, P, Get> = platform.memmap().adopt_run(run);
        own.folio().is_poisoned(page).then(|| own.folio().page(page))
    });
    let what = failed.map_or(NonPresent::Marker(Markers::POISONED), NonPresent::Hwpoison);
    let Ok(poison) = E::<P>::from_nonpresent(what, SwapBits::default()) else {
        debug_assert!(false, "every format has poison");
        return;
    };
    let Some(mut table) = mm.tables().lock_table(vmas.stay(), va) else { return };
    let index = table.index_of(va);
    if table.get(index) != seen {
        return;
    }
    table.set(index, poison);
    drop(table);
    mm.counters().sub(RssKind::Swap, 1);
    put_swap(platform, SlotRun::new(slot, 1));
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
