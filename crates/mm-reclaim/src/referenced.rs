//! Aging: who used a folio since reclaim last asked.

use crate::policy::{Strategy, by_policy};
use crate::unmap::{Seen, seen_whole};
use crate::{ReclaimOf, UnmapPolicy};
use core::ops::ControlFlow;
use mm_arch::respect::NOTHING;
use mm_arch::{Entry, Level};
use mm_folio::{Folio, FolioLockGuard};
use mm_pgtable::LockedPmd;
use mm_rmap::{Hit, MappedWalk, Peek, RmapPlatform, Seek, Visit, WalkEnd};
use mm_vma::{Event, Mm, Observer, VmaFlags};

/// What the accessed bits of a folio said; they are clear now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Referenced {
    /// So many runs of entries were used (at most one per entry), through mappings that
    /// have these flags between them.
    By {
        /// Runs with an accessed bit.
        nr: u32,
        /// Flags of their mappings.
        vmas: VmaFlags,
    },
    /// A memory lock holds all of it: it was taken off reclaim.
    Locked,
    /// Somebody changes the trees: not known, and nobody waits for it (rule REF-01).
    Contended,
}

/// Reads and clears the accessed bits of all entries that map the folio (rules
/// REF-01..11). `of` says whose: other address spaces do not count and keep their bits.
///
/// A run is cleared as one, and counts as one. A missing flush can only mis-age a page, so
/// there is none (rule REF-13).
pub fn referenced<P: RmapPlatform>(
    policy: UnmapPolicy,
    platform: &P,
    locked: &FolioLockGuard<'_, P>,
    of: ReclaimOf<'_>,
) -> Referenced {
    let folio = locked.folio();
    let mut scan =
        Scan { folio, of, left: folio.mapcount(), nr: 0, vmas: VmaFlags::empty(), locked: false };
    if scan.left == 0 {
        return Referenced::By { nr: 0, vmas: VmaFlags::empty() };
    }
    match by_policy!(policy, walk::<P>(&mut scan, platform)) {
        WalkEnd::Contended => Referenced::Contended,
        _ if scan.locked => Referenced::Locked,
        _ => Referenced::By { nr: scan.nr, vmas: scan.vmas },
    }
}

/// As [`referenced`], of a folio that somebody else may have locked: it counts as used
/// once then (rule REF-01).
pub fn referenced_unlocked<P: RmapPlatform>(
    policy: UnmapPolicy,
    platform: &P,
    folio: Folio<'_, P>,
    of: ReclaimOf<'_>,
) -> Referenced {
    match folio.try_lock() {
        Some(locked) => referenced(policy, platform, &locked, of),
        None => Referenced::By { nr: 1, vmas: VmaFlags::empty() },
    }
}

struct Scan<'m, 'o, P: RmapPlatform> {
    folio: Folio<'m, P>,
    of: ReclaimOf<'o>,
    /// Mappings that were not seen yet: with none left the walk ends (rule REF-06).
    left: u32,
    nr: u32,
    vmas: VmaFlags,
    locked: bool,
}

fn walk<B: Strategy, P: RmapPlatform>(scan: &mut Scan<'_, '_, P>, platform: &P) -> WalkEnd {
    let folio = scan.folio;
    let visit = &mut |mm: &alloc::sync::Arc<Mm<P>>, visit: Visit<'_>| scan.in_vma::<B>(mm, &visit);
    if folio.is_anon() {
        platform.anon_trees().try_walk(folio, visit)
    } else {
        platform.file_trees().try_walk(folio, visit)
    }
}

impl<P: RmapPlatform> Scan<'_, '_, P> {
    fn in_vma<B: Strategy>(&mut self, mm: &Mm<P>, visit: &Visit<'_>) -> ControlFlow<()> {
        // How such a mapping is read says nothing about later (rule REF-02).
        if visit.flags.intersects(VmaFlags::SEQ_READ | VmaFlags::RAND_READ)
            || !self.of.includes(mm.id())
        {
            return ControlFlow::Continue(());
        }
        let mut walk = MappedWalk::<P, Peek>::new(mm, visit, self.folio, Seek::Mappings);
        if visit.flags.contains(VmaFlags::LOCKED) {
            return match seen_whole(self.folio, walk) {
                Seen::Whole => {
                    self.folio.mlock();
                    self.locked = true;
                    ControlFlow::Break(())
                }
                Seen::Nothing | Seen::Part => ControlFlow::Continue(()),
            };
        }
        let (mut seen, mut young) = (0, 0);
        while let Some(hit) = walk.next_hit() {
            let n = match hit {
                Hit::Pmd(pmd) => {
                    young += u32::from(clear_young_leaf(mm, pmd));
                    self.left = self.left.saturating_sub(1);
                    break;
                }
                Hit::Pte(at) if at.entry.is_present(Level::Pte) => {
                    let limit = if B::AGING { at.limit } else { at.limit.at_most(1) };
                    let n = at.table.run::<NOTHING>(at.index, at.entry, limit).nr();
                    young += u32::from(at.table.clear_young(at.index, n));
                    mm.platform().observer().event(Event::AgingRuns, 1);
                    n
                }
                // A device does not say.
                Hit::Pte(_) => 1,
            };
            walk.consumed(n);
            self.left = self.left.saturating_sub(n as u32);
            seen += n as u32;
            if self.left == 0 || seen == self.folio.nr_pages() {
                break;
            }
        }
        if young > 0 {
            self.nr += young;
            self.vmas |= visit.flags - VmaFlags::LOCKED;
        }
        if self.left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Clears the accessed bit of a leaf; whether it was set (rule REF-08).
fn clear_young_leaf<P: RmapPlatform>(mm: &Mm<P>, pmd: &mut LockedPmd<'_, P>) -> bool {
    let seen = pmd.entry();
    if !seen.is_leaf(Level::Pmd) || !seen.is_young() {
        return false;
    }
    // In place, so that it is never empty for who looks without the lock; what hardware
    // adds comes back with the exchange. A stale accessed bit needs no flush.
    let mut owed = mm.tables().tlb().obligation();
    let old = pmd.swap(seen.mkinvalid(Level::Pmd), &mut owed);
    pmd.swap(old.mkold(), &mut owed);
    owed.already_done();
    true
}
