//! Advice on mappings.

use crate::MapError;
use crate::guard;
use crate::policy::MapPolicy;
use crate::vmas::{check_range, set_flags};
use crate::zap::zap_range;
use mm_arch::VirtRange;
use mm_pgtable::Gather;
use mm_rmap::RmapPlatform;
use mm_vma::{MmWrite, Vma, VmaFlags};

/// What is advised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// Large folios are wanted.
    HugePage,
    /// Large folios are refused.
    NoHugePage,
    /// Accesses will be in no order: the page tables do not tell what is used often (rule
    /// REF-02).
    Random,
    /// Each page will be used once, one after the other: the same.
    Sequential,
    /// Neither is so.
    Normal,
    /// The content is not needed any more: the next access finds zeros.
    DontNeed,
    /// The same, of locked memory as well, which stays locked (rule MADV-08).
    DontNeedLocked,
    /// A child does not inherit the mapping.
    DontFork,
    /// It does.
    DoFork,
    /// A child starts with an empty mapping.
    WipeOnFork,
    /// It inherits the content.
    KeepOnFork,
    /// Equal pages may be merged.
    Mergeable,
    /// They may not; those that are get copied by the caller (see
    /// [`next_merged`](crate::next_merged)).
    Unmergeable,
    /// Every access from now on is a signal; what was mapped is gone.
    GuardInstall,
    /// That ends.
    GuardRemove,
}

/// Applies `advice` to the mappings in `range` (rules MADV-01, MADV-08, FORK-02,
/// GUARD-01).
///
/// # Errors
///
/// If the range is not page-aligned or not in user space; at the first mapping
/// that the advice does not apply to; if there is no memory to split a VMA or for a
/// table of guards. A
/// hole is an error too, but only after the advice was applied to all mappings.
pub fn madvise<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    advice: Advice,
) -> Result<(), MapError> {
    check_range(vmas, range)?;
    let hole = vmas.first_hole(range);
    // What is below a mapping that refuses gets the advice.
    let refuses = vmas.overlapping(range).find(|v| !applies(v, advice)).map(Vma::start);
    let done = match refuses {
        Some(va) if va <= range.start() => None,
        Some(va) => VirtRange::new(range.start(), va.bytes_from(range.start())).ok(),
        None => Some(range),
    };
    if let Some(range) = done {
        match advice {
            Advice::DontNeed | Advice::DontNeedLocked => discard(policy, vmas, range),
            Advice::GuardInstall => guard::install(policy, vmas, range)?,
            Advice::GuardRemove => guard::remove(vmas, range),
            _ => set_flags(vmas, range, |vma| advised(vma.flags(), advice))?,
        }
    }
    match (refuses, hole) {
        (Some(va), _) => Err(MapError::Invalid(va.max(range.start()))),
        (None, Some(va)) => Err(MapError::Hole(va)),
        (None, None) => Ok(()),
    }
}

fn discard<P: RmapPlatform>(policy: &MapPolicy, vmas: &MmWrite<'_, P>, range: VirtRange) {
    let mut gather = Gather::new(vmas.mm().tables());
    for vma in vmas.overlapping(range) {
        zap_range(policy, vmas.mm(), vmas.stay(), vma, range, &mut gather);
    }
    gather.finish();
}

/// Whether `vma` is of a kind that the advice applies to.
fn applies(vma: &Vma, advice: Advice) -> bool {
    let special = VmaFlags::IO | VmaFlags::PFNMAP | VmaFlags::DONTEXPAND;
    let flags = vma.flags();
    match advice {
        Advice::HugePage
        | Advice::NoHugePage
        | Advice::Random
        | Advice::Sequential
        | Advice::Normal
        | Advice::DontFork
        | Advice::Mergeable
        | Advice::Unmergeable => true,
        Advice::DontNeed => !flags.intersects(VmaFlags::LOCKED | VmaFlags::PFNMAP),
        Advice::DontNeedLocked => !flags.contains(VmaFlags::PFNMAP),
        Advice::DoFork => !flags.intersects(special),
        Advice::WipeOnFork => vma.is_anonymous() && !flags.contains(VmaFlags::SHARED),
        Advice::KeepOnFork => !flags.contains(VmaFlags::DROPPABLE),
        Advice::GuardInstall => !flags.intersects(special | VmaFlags::LOCKED),
        Advice::GuardRemove => !flags.intersects(special),
    }
}

/// Mappings of which no page is merged.
const NEVER_MERGED: VmaFlags = VmaFlags::SHARED
    .union(VmaFlags::MAYSHARE)
    .union(VmaFlags::PFNMAP)
    .union(VmaFlags::IO)
    .union(VmaFlags::DONTEXPAND)
    .union(VmaFlags::DROPPABLE)
    .union(VmaFlags::SHADOW_STACK);

/// The flags of a mapping after `advice`.
fn advised(flags: VmaFlags, advice: Advice) -> VmaFlags {
    use VmaFlags as F;
    match advice {
        // Of a shadow stack quietly nothing: large folios and the dirty bit that
        // is its write permission do not go together (rule BATCH-23).
        Advice::HugePage if flags.contains(F::SHADOW_STACK) => flags,
        Advice::HugePage => (flags - F::NOHUGEPAGE) | F::HUGEPAGE,
        Advice::NoHugePage => (flags - F::HUGEPAGE) | F::NOHUGEPAGE,
        Advice::Random => (flags - F::SEQ_READ) | F::RAND_READ,
        Advice::Sequential => (flags - F::RAND_READ) | F::SEQ_READ,
        Advice::Normal => flags - F::RAND_READ - F::SEQ_READ,
        Advice::DontNeed | Advice::DontNeedLocked | Advice::GuardInstall | Advice::GuardRemove => {
            flags
        }
        // Of mappings whose pages are others' as well quietly nothing.
        Advice::Mergeable if flags.intersects(NEVER_MERGED) => flags,
        Advice::Mergeable => flags | F::MERGEABLE,
        Advice::Unmergeable => flags - F::MERGEABLE,
        Advice::DontFork => flags | F::DONTCOPY,
        Advice::DoFork => flags - F::DONTCOPY,
        Advice::WipeOnFork => flags | F::WIPEONFORK,
        Advice::KeepOnFork => flags - F::WIPEONFORK,
    }
}
