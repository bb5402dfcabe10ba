//! Taking dirt and write permission away from whoever maps a page, so that the next
//! store is noticed.

use crate::{Hit, MappedWalk, RmapPlatform, Seek, Strict};
use core::ops::ControlFlow;
use mm_arch::respect::{MERGE_YOUNG_DIRTY, SOFT_DIRTY, WRITE};
use mm_arch::{Arch, Entry, FlushScope, Level};
use mm_folio::FolioLockGuard;
use mm_pgtable::LockedPmd;
use mm_vma::{Mm, Platform, VmaFlags};

/// Entries that stay as writable as they are, and of which one may be dirty.
const MODE: u8 = WRITE | SOFT_DIRTY | MERGE_YOUNG_DIRTY;

/// Makes all entries by which shared mappings map the folio read-only and clean; how many
/// entries it rewrote for that, 0 if all were so (rule RMAP-33). When it returns, no CPU has a
/// translation left by which a store would not be noticed, and what was stored until then is in
/// the page: the caller may write it out.
///
/// If the result is not zero, the folio was dirty whatever its flag says.
pub fn mkclean<P: RmapPlatform>(platform: &P, locked: &FolioLockGuard<'_, P>) -> u64 {
    let folio = locked.folio();
    let mut changed = 0;
    platform.file_trees().walk(folio, &mut |mm, visit| {
        // A private mapping has clean read-only entries of the page only.
        if !visit.flags.contains(VmaFlags::SHARED) {
            return ControlFlow::Continue(());
        }
        let mut walk = MappedWalk::<P, Strict>::new(mm, &visit, folio, Seek::Mappings);
        while let Some(hit) = walk.next_hit() {
            let done = match hit {
                Hit::Pmd(pmd) => {
                    changed += u64::from(clean_pmd(mm, pmd));
                    1
                }
                Hit::Pte(at) => {
                    let run = at.table.run::<MODE>(at.index, at.entry, at.limit);
                    let n = run.nr();
                    if is_clean::<P>(at.entry, Level::Pte) && !run.any_dirty() {
                        n
                    } else {
                        let mut owed = mm.tables().tlb().obligation();
                        at.table.modify(run, &mut owed, |old| old.wrprotect().mkclean());
                        // Under the lock: a fault that found the entry read-only
                        // may make it writable again at once.
                        owed.pay();
                        changed += n as u64;
                        n
                    }
                }
            };
            walk.consumed(done);
        }
        ControlFlow::Continue(())
    });
    changed
}

fn is_clean<P: Platform>(e: <P::Arch as Arch>::Entry, level: Level) -> bool {
    !e.is_dirty() && !e.is_writable(level)
}

/// Whether the leaf was dirty or writable.
fn clean_pmd<P: RmapPlatform>(mm: &Mm<P>, pmd: &mut LockedPmd<'_, P>) -> bool {
    let seen = pmd.entry();
    if !seen.is_leaf(Level::Pmd) || is_clean::<P>(seen, Level::Pmd) {
        return false;
    }
    // In place: never empty for who looks without the lock.
    let mut owed = mm.tables().tlb().obligation();
    let old = pmd.swap(seen.mkinvalid(Level::Pmd), &mut owed);
    // Whatever it allowed: a CPU may have what it was before.
    if let Some(range) = pmd.range() {
        owed.add(range, FlushScope::Leaves);
    }
    owed.pay();
    let mut fresh = mm.tables().tlb().obligation();
    pmd.swap(old.wrprotect().mkclean(), &mut fresh);
    fresh.already_done();
    true
}
