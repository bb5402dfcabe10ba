//! How much of which list is looked at, and what moves from active to inactive.
//!
//! # The picture
//!
//! ```text
//!   new ──► inactive ──► not used, and unmapped ──► freed
//!              │  ▲
//!        used  │  │  the active list has more than its share:
//!       twice  ▼  │  its oldest
//!            active
//! ```
//!
//! The same for memory that swap stands behind and for pages of files; how much of either is
//! looked at, [`Swappiness`] says. A small part of the lists first, and all of them only
//! if that does not bring enough: each round looks at twice as much as the one before.

use crate::lru::Passed;
use crate::scope::owns;
use crate::{
    LruList, ReclaimOf, ReclaimPlatform, Referenced, Shrink, Swappiness, UnmapPolicy,
    referenced_unlocked, shrink_folios,
};
use mm_arch::Arch;
use mm_folio::{FolioFlags, FolioRef, Get};
use mm_vma::{SwapSpace, VmaFlags};

/// Rounds that look at parts of the lists before the one that looks at all.
const ROUNDS: u32 = 12;
/// Pages that are isolated at once (rule RECL-13); folios at most, where it may be more pages.
const AT_ONCE: u64 = 32;
/// Pages that are isolated at once at most, where neighbours are unmapped together: as many as
/// one table often maps.
const MORE_AT_ONCE: u64 = 512;
/// The part of what is wanted that is taken from one list at once: so the weights hold.
const PART: u64 = 8;
const GIB: u64 = 1 << 30;

/// What memory is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Balance<'g> {
    /// Which entries are handled as runs.
    pub policy: UnmapPolicy,
    /// Whose memory.
    pub of: ReclaimOf<'g>,
    /// Which kinds of it.
    pub swappiness: Swappiness,
}

/// The two lists of a kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    inactive: LruList,
    active: LruList,
}

const ANON: Kind = Kind { inactive: LruList::InactiveAnon, active: LruList::ActiveAnon };
const FILE: Kind = Kind { inactive: LruList::InactiveFile, active: LruList::ActiveFile };

impl Balance<'_> {
    /// Pages to isolate at once if so many more are wanted.
    fn step(&self, wanted: u64) -> u64 {
        match self.policy {
            UnmapPolicy::All => (wanted / PART).clamp(AT_ONCE, MORE_AT_ONCE),
            _ => AT_ONCE,
        }
    }
}

/// Reclaims about `nr_pages` pages of memory that is least used; how many it were. May be
/// more: what was begun is finished.
pub fn shrink_lists<P: ReclaimPlatform>(balance: &Balance<'_>, platform: &P, nr_pages: u64) -> u64 {
    let mut reclaimed = 0;
    let mut scans = [ANON, FILE].map(|kind| Scan::new(balance, platform, kind));
    for round in (0..=ROUNDS).rev() {
        let mut left = scans.each_ref().map(|scan| scan.share(round));
        while reclaimed < nr_pages && left.iter().any(|left| *left > 0) {
            let step = balance.step(nr_pages - reclaimed);
            for (scan, left) in scans.iter_mut().zip(&mut left) {
                let nr = step.min(*left);
                if nr == 0 {
                    continue;
                }
                scan.age(nr);
                let Looked { looked_at, at_end, got } = scan.reclaim(nr);
                reclaimed += got;
                // At its end: not again in this round.
                *left = if at_end { 0 } else { *left - looked_at.min(nr) };
            }
        }
        if reclaimed >= nr_pages {
            break;
        }
    }
    reclaimed
}

/// The lists of one kind of memory. What was passed over in one round is not looked at in
/// the next: what was looked at and stays is behind it.
struct Scan<'b, 'g, 'p, P: ReclaimPlatform> {
    balance: &'b Balance<'g>,
    platform: &'p P,
    kind: Kind,
    inactive: Passed<'p, P>,
    active: Passed<'p, P>,
}

/// What came of a look at a list, in pages.
struct Looked {
    looked_at: u64,
    /// There were no more.
    at_end: bool,
    /// Pages that are gone.
    got: u64,
}

impl<'b, 'g, 'p, P: ReclaimPlatform> Scan<'b, 'g, 'p, P> {
    fn new(balance: &'b Balance<'g>, platform: &'p P, kind: Kind) -> Self {
        let (inactive, active) = (Passed::default(), Passed::default());
        Scan { balance, platform, kind, inactive, active }
    }
    /// Pages that a round looks at: all in the last one, half of it in the one before.
    fn share(&self, round: u32) -> u64 {
        let swap = self.platform.swap().slots().nr_free() > 0;
        let weight = match (self.balance.swappiness, self.kind) {
            (Swappiness::AnonOnly, kind) => {
                if kind == ANON && swap {
                    200
                } else {
                    0
                }
            }
            // Nowhere to go: only files.
            (_, ANON) if !swap => 0,
            (_, FILE) if !swap => 200,
            (Swappiness::Weight(anon), ANON) => u64::from(anon.min(200)),
            (Swappiness::Weight(anon), _) => 200 - u64::from(anon.min(200)),
        };
        // In the last round nothing that may go is left out.
        let weight = if round == 0 && weight > 0 { 200 } else { weight };
        let lru = self.platform.lru();
        let all = lru.nr_pages(self.kind.inactive) + lru.nr_pages(self.kind.active);
        (all >> round) * weight / 200
    }
    /// Moves the oldest `nr` pages from active to inactive, if there are too few of the
    /// latter.
    fn age(&mut self, nr: u64) {
        let lru = self.platform.lru();
        let (inactive, active) = (lru.nr_pages(self.kind.inactive), lru.nr_pages(self.kind.active));
        if !inactive_is_low(inactive, active, P::Arch::PAGE_SHIFT) {
            return;
        }
        let (of, platform, policy) = (self.balance.of, self.platform, self.balance.policy);
        lru.isolate(
            platform.memmap(),
            self.kind.active,
            nr,
            &mut self.active,
            &mut |folio| owns(of, platform, folio),
            &mut |own| {
                let folio = own.folio();
                let code = match referenced_unlocked(policy, platform, folio, of) {
                    Referenced::By { nr, vmas } => {
                        nr > 0
                            && vmas.contains(VmaFlags::EXEC)
                            && !folio.has(FolioFlags::SWAPBACKED)
                    }
                    Referenced::Locked | Referenced::Contended | Referenced::Ending => false,
                };
                // Code that runs stays active; anything else shows its use from here.
                if !code {
                    folio.clear_flag(FolioFlags::ACTIVE);
                    folio.set_flag(FolioFlags::WORKINGSET);
                }
                folio.enlist();
            },
        );
    }
    /// Reclaims of the oldest `nr` inactive pages, or the oldest folios of them.
    fn reclaim(&mut self, nr: u64) -> Looked {
        let (of, platform) = (self.balance.of, self.platform);
        let mut out = [const { None::<FolioRef<'p, P, Get>> }; AT_ONCE as usize];
        let (mut n, mut looked_at, mut at_end) = (0, 0, false);
        while (n as u64) < AT_ONCE && looked_at < nr && !at_end {
            // At least a page each: never more than there are places.
            let some = (AT_ONCE - n as u64).min(nr - looked_at);
            let got = platform.lru().isolate(
                platform.memmap(),
                self.kind.inactive,
                some,
                &mut self.inactive,
                &mut |folio| owns(of, platform, folio),
                &mut |own| {
                    out[n] = Some(own);
                    n += 1;
                },
            );
            looked_at += got;
            at_end = got < some;
        }
        let shrink =
            Shrink { policy: self.balance.policy, of, ignore_references: false, may_unmap: true };
        let mut out = out[..n].iter_mut();
        let shrunk = shrink_folios(&shrink, platform, || out.find_map(Option::take));
        Looked { looked_at, at_end, got: shrunk.reclaimed }
    }
}

/// Whether so few pages are inactive that a program which uses one again may come too
/// late: of much memory a smaller part is enough.
fn inactive_is_low(inactive: u64, active: u64, page_shift: u32) -> bool {
    let gib = ((inactive + active) << page_shift) / GIB;
    let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
    inactive * ratio < active
}

#[cfg(test)]
mod tests {
    use super::inactive_is_low;

    /// Rules: LRU-01.
    #[test]
    fn of_much_memory_less_is_inactive() {
        assert!(!inactive_is_low(8, 8, 12) && inactive_is_low(7, 8, 12));
        let gib = 1 << 18;
        // Of ten, one part in eleven.
        assert!(!inactive_is_low(gib, 9 * gib, 12) && inactive_is_low(gib - 1, 10 * gib, 12));
        assert!(!inactive_is_low(0, 0, 12));
    }
}
