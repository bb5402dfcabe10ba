//! Tracking of stores by soft-dirty bits, begun anew.

use crate::MapError;
use crate::policy::{MapPolicy, by_policy};
use crate::protect::{Change, change_range};
use crate::vmas::set_flags;
use mm_arch::{Arch, VirtAddr, VirtRange};
use mm_rmap::RmapPlatform;
use mm_vma::{MmWrite, VmaFlags};

/// Forgets which pages were stored to: from now on the next store to each page of
/// the address space sets its soft-dirty bit again, and faults to do so (rule
/// PTE-14). Pages that may be pinned and are writable stay so, and say "stored to": a device may
/// store to them at any time without a fault.
///
/// Nothing happens where the format has no such bit. When it returns, no CPU has a
/// translation left by which a store could be missed.
///
/// # Errors
///
/// If there is no memory; tracking has begun for some mappings then, all of whose
/// entries still say "stored to".
pub fn clear_soft_dirty<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
) -> Result<(), MapError> {
    let user_space = VirtRange::new(VirtAddr::new(0), P::Arch::USER_END);
    let Ok(all) = user_space else { return Ok(()) };
    if !P::Arch::HAS_SOFT_DIRTY {
        return Ok(());
    }
    // Before the entries: an upgrade to writable asks the mapping first.
    set_flags(vmas, all, |vma| vma.flags() - VmaFlags::SOFTDIRTY)?;
    let (mm, stay) = (vmas.mm(), vmas.stay());
    let mut owed = mm.tables().tlb().obligation();
    for vma in vmas.overlapping(all) {
        let (part, change) = (vma.range(), Change::Track);
        by_policy!(policy, change_range::<P>(mm, stay, vma, part, change, &mut owed));
    }
    owed.now();
    Ok(())
}
