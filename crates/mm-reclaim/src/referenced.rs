//! Aging: who used a folio since reclaim last asked.

use crate::policy::{Strategy, by_policy};
use crate::unmap::{Seen, seen_whole};
use crate::{ReclaimOf, UnmapPolicy};
use core::ops::ControlFlow;
use mm_arch::respect::NOTHING;
use mm_arch::{Arch, Entry, Level};
use mm_folio::{Folio, FolioFlags, FolioLockGuard};
use mm_pgtable::LockedPmd;
use mm_rmap::{Hit, MappedWalk, Peek, RmapPlatform, Seek, Visit, WalkEnd};
use mm_vma::{Event, Mm, Observer, VmaFlags};

/// What the accessed bits of a folio said; they are clear now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Referenced {
    /// It was used through so many mappings, which have these flags between them.
    By {
        /// Mappings with an accessed bit.
        nr: u32,
        /// Flags of their mappings.
        vmas: VmaFlags,
    },
    /// A memory lock holds all of it: it was taken off reclaim.
    Locked,
    /// Somebody changes the trees: not known, and nobody waits for it (rule REF-01).
    Contended,
    /// Only somebody has it whose memory is about to be given back (rule REF-04).
    Ending,
}

/// Reads and clears the accessed bits of all entries that map the folio (rules
/// REF-01..11). `of` says whose: other address spaces do not count and keep their bits.
///
/// A run is cleared as one, and a mapping counts once. A missing flush can only mis-age a page, so
/// there is none (rule REF-13).
pub fn referenced<P: RmapPlatform>(
    policy: UnmapPolicy,
    platform: &P,
    locked: &FolioLockGuard<'_, P>,
    of: ReclaimOf<'_>,
) -> Referenced {
    let folio = locked.folio();
    if !folio.is_mapped() {
        return Referenced::By { nr: 0, vmas: VmaFlags::empty() };
    }
    let mut scan = Scan::new(folio, of, Purpose::Reclaim);
    let end = by_policy!(policy, walk::<P>(&mut scan, platform));
    let Scan { nr, vmas, stopped, .. } = scan;
    if nr > 0 {
        folio.clear_flag(FolioFlags::IDLE);
    }
    match stopped {
        Some(why) => why,
        None if end == WalkEnd::Contended => Referenced::Contended,
        // What somebody else took the bits of counts as well (rule REF-09).
        None => Referenced::By { nr: nr + u32::from(folio.clear_flag(FolioFlags::YOUNG)), vmas },
    }
}

/// Begins to watch a folio: it is idle until somebody uses it. Its accessed bits are clear
/// then; what they said is kept for reclaim (rule REF-09).
pub fn mark_idle<P: RmapPlatform>(
    policy: UnmapPolicy,
    platform: &P,
    locked: &FolioLockGuard<'_, P>,
) {
    watch(policy, platform, locked);
    locked.folio().set_flag(FolioFlags::IDLE);
}

/// Whether nobody has used the folio since [`mark_idle`].
pub fn is_idle<P: RmapPlatform>(
    policy: UnmapPolicy,
    platform: &P,
    locked: &FolioLockGuard<'_, P>,
) -> bool {
    let folio = locked.folio();
    if folio.has(FolioFlags::IDLE) {
        watch(policy, platform, locked);
    }
    folio.has(FolioFlags::IDLE)
}

/// Takes the accessed bits of a folio, and keeps what they say in its flags.
fn watch<P: RmapPlatform>(policy: UnmapPolicy, platform: &P, locked: &FolioLockGuard<'_, P>) {
    let folio = locked.folio();
    let mut scan = Scan::new(folio, ReclaimOf::Everybody, Purpose::Watch);
    by_policy!(policy, walk::<P>(&mut scan, platform));
    if scan.nr > 0 {
        folio.clear_flag(FolioFlags::IDLE);
        folio.set_flag(FolioFlags::YOUNG);
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

/// What accessed bits are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// Which memory may go.
    Reclaim,
    /// Whether it was used, by whomever and however.
    Watch,
}

struct Scan<'m, 'o, P: RmapPlatform> {
    folio: Folio<'m, P>,
    of: ReclaimOf<'o>,
    purpose: Purpose,
    /// Mappings that were not seen yet: with none left the walk ends (rule REF-06).
    left: u32,
    nr: u32,
    vmas: VmaFlags,
    /// Why there is no answer.
    stopped: Option<Referenced>,
}

impl<'m, 'o, P: RmapPlatform> Scan<'m, 'o, P> {
    fn new(folio: Folio<'m, P>, of: ReclaimOf<'o>, purpose: Purpose) -> Self {
        let (left, vmas) = (folio.mapcount(), VmaFlags::empty());
        Scan { folio, of, purpose, left, nr: 0, vmas, stopped: None }
    }
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
    /// How the walk goes on behind a mapping that reclaim does not ask; `None` if it does.
    fn not_asked(&mut self, mm: &Mm<P>, visit: &Visit<'_>) -> Option<ControlFlow<()>> {
        let folio = self.folio;
        // How such a mapping is read says nothing about later (rule REF-02).
        if visit.flags.intersects(VmaFlags::SEQ_READ | VmaFlags::RAND_READ)
            || !self.of.includes(mm.id())
        {
            return Some(ControlFlow::Continue(()));
        }
        if visit.flags.contains(VmaFlags::LOCKED) {
            let walk = MappedWalk::<P, Peek>::new(mm, visit, folio, Seek::Mappings);
            if seen_whole(folio, walk) != Seen::Whole {
                return Some(ControlFlow::Continue(()));
            }
            folio.mlock();
            self.stopped = Some(Referenced::Locked);
            return Some(ControlFlow::Break(()));
        }
        if mm.is_ending()
            && folio.is_anon()
            && folio.has(FolioFlags::SWAPBACKED)
            && !folio.maybe_mapped_shared()
        {
            self.stopped = Some(Referenced::Ending);
            return Some(ControlFlow::Break(()));
        }
        None
    }
    fn in_vma<B: Strategy>(&mut self, mm: &Mm<P>, visit: &Visit<'_>) -> ControlFlow<()> {
        if self.purpose == Purpose::Reclaim
            && let Some(end) = self.not_asked(mm, visit)
        {
            return end;
        }
        let mut walk = MappedWalk::<P, Peek>::new(mm, visit, self.folio, Seek::Mappings);
        let (mut seen, mut young) = (0, false);
        while let Some(hit) = walk.next_hit() {
            let n = match hit {
                Hit::Pmd(pmd) => {
                    young |= clear_young_leaf(mm, pmd);
                    self.left = self.left.saturating_sub(1);
                    break;
                }
                Hit::Pte(at) if at.entry.is_present(Level::Pte) => {
                    let limit = if B::AGING { at.limit } else { at.limit.at_most(1) };
                    let n = at.table.run::<NOTHING>(at.index, at.entry, limit).nr();
                    young |= at.table.clear_young(at.index, n);
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
        if young {
            self.nr += 1;
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
    let meanwhile = if mm_sync::mutant!("aging.leaf.hole") {
        <P::Arch as Arch>::Entry::NONE
    } else {
        seen.mkinvalid(Level::Pmd)
    };
    let old = pmd.swap(meanwhile, &mut owed);
    pmd.swap(old.mkold(), &mut owed);
    owed.already_done();
    true
}
