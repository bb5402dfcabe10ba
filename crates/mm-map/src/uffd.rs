//! Userfaultfd on anonymous and shared memory: registration and write protection.
//!
//! # The protocol
//!
//! A registration is a matter of mappings, so it takes the mmap lock's write
//! side; protecting and filling pages happens beside faults, on the read side,
//! as whoever handles the events does it all the time.
//!
//! The protection of a page is a bit of its entry, which takes the write
//! permission away (rule PTE-15), or a marker where there is no page (rule
//! MPROT-05). Neither outlives the registration: unmapping, moving and forking drop both
//! (rules UFFD-05, UFFD-06, MREMAP-01), unless a child is registered as well
//! ([`UffdMode::EVENT_FORK`]); and so does [`uffd_unregister`] with what is left.
//! Discarding drops them of anonymous memory, whose pages are gone; those of an object are
//! still there, and stay protected. A bit outside of a registered mapping is
//! therefore stale wherever it is found, and nobody waits for its event.
//!
//! A protected page is not writable; one whose protection ends is made writable at
//! once where no fault is needed to find out that it is exclusive. A page that the
//! process shares with a child stays read-only and takes an ordinary write fault.

use crate::MapError;
use crate::policy::{MapPolicy, by_policy};
use crate::protect::{Change, change_range};
use crate::vmas::{check_range, check_user_range, give_flags, merge, split_around};
use mm_arch::{Arch, Level, VirtRange};
use mm_pgtable::{SpanKind, TablesStay};
use mm_rmap::{RmapPlatform, split_pmd};
use mm_vma::{BackingKind, Mm, MmRead, MmWrite, Vma, VmaFlags};

bitflags::bitflags! {
    /// What a registration asks for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct UffdMode: u8 {
        /// Events of accesses to pages that are not there.
        const MISSING = 1 << 0;
        /// Events of stores to protected pages.
        const WP = 1 << 1;
        /// With `WP`: pages that are not there can be protected, too.
        const WP_UNPOPULATED = 1 << 2;
        /// With `WP`: a store ends the protection without an event. Includes
        /// `WP_UNPOPULATED`.
        const WP_ASYNC = 1 << 3;
        /// Children are registered as well: whoever handles the events hears of each fork
        /// and handles theirs (rule UFFD-06). By itself it asks for nothing.
        const EVENT_FORK = 1 << 4;
        /// Events of accesses to pages that an object has and that are not mapped.
        const MINOR = 1 << 5;
    }
}

impl UffdMode {
    fn flags(self) -> VmaFlags {
        let mut flags = VmaFlags::empty();
        flags.set(VmaFlags::UFFD_MISSING, self.contains(Self::MISSING));
        flags.set(VmaFlags::UFFD_MINOR, self.contains(Self::MINOR));
        if self.contains(Self::WP) {
            let unpopulated = self.intersects(Self::WP_UNPOPULATED | Self::WP_ASYNC);
            flags |= VmaFlags::UFFD_WP;
            flags.set(VmaFlags::UFFD_WP_UNPOPULATED, unpopulated);
            flags.set(VmaFlags::UFFD_WP_ASYNC, self.contains(Self::WP_ASYNC));
        }
        if !flags.is_empty() {
            flags.set(VmaFlags::UFFD_EVENT_FORK, self.contains(Self::EVENT_FORK));
        }
        flags
    }
}

/// What happens to the write protection of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WpChange {
    /// Stores to them become events.
    Protect,
    /// They do not any more.
    Unprotect,
}

/// Registers the mappings in `range`, which may have holes, in place of what they
/// were registered for before. Entries stay as they are, but a mapping that was
/// registered for write protection and is not any more loses it.
///
/// # Errors
///
/// If the range is not page-aligned or not in user space, or has no mapping; if
/// the mode asks for nothing, or for what the entry format does not have; if a
/// mapping is of a kind that cannot be registered, or may never be written to:
/// nothing is registered then. If there is no memory to split a VMA: what is below
/// the position in the error is registered.
pub fn uffd_register<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    mode: UffdMode,
) -> Result<(), MapError> {
    check_range(vmas, range)?;
    let new = mode.flags();
    let unknown = new.contains(VmaFlags::UFFD_WP) && !P::Arch::HAS_UFFD_WP;
    if new.is_empty() || unknown || vmas.overlapping(range).next().is_none() {
        return Err(MapError::Invalid(range.start()));
    }
    for vma in vmas.overlapping(range) {
        let refused = vma.backing().is_none() && mode.contains(UffdMode::MINOR);
        if !can_register(vma) || refused {
            return Err(MapError::Invalid(vma.start()));
        }
        if !vma.flags().contains(VmaFlags::MAYWRITE) {
            return Err(MapError::Denied(vma.start()));
        }
    }
    set_registration(policy, vmas, range, new)
}

/// Ends the registration of the mappings in `range`, which may have holes, and
/// the write protection of their pages.
///
/// # Errors
///
/// As [`uffd_register`].
pub fn uffd_unregister<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
) -> Result<(), MapError> {
    check_range(vmas, range)?;
    if vmas.overlapping(range).next().is_none() {
        return Err(MapError::Invalid(range.start()));
    }
    if let Some(vma) = vmas.overlapping(range).find(|vma| !can_register(vma)) {
        return Err(MapError::Invalid(vma.start()));
    }
    set_registration(policy, vmas, range, VmaFlags::empty())
}

fn can_register(vma: &Vma) -> bool {
    let never = VmaFlags::DROPPABLE | VmaFlags::PFNMAP | VmaFlags::IO;
    let kind = match vma.backing() {
        Some(backing) => backing.kind() == BackingKind::Shmem,
        None => !vma.flags().contains(VmaFlags::SHARED),
    };
    kind && !vma.flags().intersects(never)
}

fn set_registration<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &mut MmWrite<'_, P>,
    range: VirtRange,
    new: VmaFlags,
) -> Result<(), MapError> {
    let mm = vmas.mm();
    let mut owed = mm.tables().tlb().obligation();
    let mut next = Some(range.start());
    while let Some(part) =
        next.and_then(|va| vmas.next_from(va)).and_then(|vma| vma.range().intersect(range))
    {
        next = part.start().checked_add(part.bytes()).filter(|va| range.contains(*va));
        let old = vmas.find(part.start()).map_or(VmaFlags::empty(), Vma::flags);
        let flags = (old - VmaFlags::UFFD_ANY) | new;
        if flags == old {
            continue;
        }
        split_around(vmas, part)?;
        give_flags(vmas, part.start(), flags);
        if (old - flags).contains(VmaFlags::UFFD_WP)
            && let Some(vma) = vmas.find(part.start())
        {
            let (stay, change) = (vmas.stay(), Change::Unprotect);
            by_policy!(policy, change_range::<P>(mm, stay, vma, part, change, &mut owed));
        }
        merge(vmas, part);
    }
    owed.now();
    Ok(())
}

/// Write-protects the pages of `range`, or ends that (rules UFFD-04, MPROT-02..05,
/// PMDF-01). The range may have holes. A PMD leaf that it cuts is split first.
///
/// Pages that are not there are protected where the mapping was registered with
/// [`UffdMode::WP_UNPOPULATED`], and passed by elsewhere.
///
/// When it returns, no CPU has a translation left by which a store could miss the
/// protection.
///
/// # Errors
///
/// If the range is not page-aligned or not in user space, or has no mapping; at
/// the first mapping that is not registered for write protection; if there is no
/// memory for a table of markers. The pages below the position in the error are
/// changed.
pub fn uffd_wp<P: RmapPlatform>(
    policy: &MapPolicy,
    vmas: &MmRead<'_, P>,
    range: VirtRange,
    change: WpChange,
) -> Result<(), MapError> {
    let (mm, stay) = (vmas.mm(), vmas.stay());
    check_user_range(mm, range)?;
    if vmas.overlapping(range).next().is_none() {
        return Err(MapError::NotRegistered(range.start()));
    }
    let change = match change {
        WpChange::Protect => Change::Protect,
        WpChange::Unprotect => Change::Unprotect,
    };
    // Dropped on an error, it flushes as well.
    let mut owed = mm.tables().tlb().obligation();
    for vma in vmas.overlapping(range) {
        let Some(part) = vma.range().intersect(range) else { continue };
        if !vma.flags().contains(VmaFlags::UFFD_WP) {
            return Err(MapError::NotRegistered(part.start()));
        }
        if change.marks(vma) {
            if vma.backing().is_some() {
                drop_leaves(mm, stay, part);
            }
            make_tables(mm, stay, part)?;
        }
        by_policy!(policy, change_range::<P>(mm, stay, vma, part, change, &mut owed));
    }
    owed.now();
    Ok(())
}

/// Takes leaves of an object away, whose pages are protected one by one (rule MPROT-09);
/// none comes back in a mapping that is registered.
fn drop_leaves<P: RmapPlatform>(mm: &Mm<P>, stay: TablesStay<'_>, range: VirtRange) {
    for span in mm.tables().spans(stay, range) {
        if span.kind == SpanKind::Huge {
            split_pmd(mm, stay, span.range.start());
        }
    }
}

/// Makes the PTE tables that are missing in `range`. A leaf may appear instead of
/// one meanwhile, by a fault; neither goes away under the mmap lock.
fn make_tables<P: RmapPlatform>(
    mm: &Mm<P>,
    stay: TablesStay<'_>,
    range: VirtRange,
) -> Result<(), MapError> {
    let mut next = Some(range.start());
    while let Some(va) = next {
        let rest = VirtRange::new(va, range.bytes_after(va)).unwrap_or(range);
        // A hole may be larger than a table: one at a time.
        if mm.tables().span(stay, rest).kind == SpanKind::Hole {
            drop(mm.tables().ensure_table(stay, va).map_err(|_| MapError::NoMemory(va))?);
        }
        let shift = P::Arch::shift(Level::Pmd);
        next = va.align_down(shift).checked_add(1 << shift).filter(|va| range.contains(*va));
    }
    Ok(())
}
