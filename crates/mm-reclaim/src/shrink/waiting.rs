//! Folios that wait to be unmapped together.

use super::{Pass, unmap_flags};
use crate::ReclaimPlatform;
use crate::unmap::{UnmapFlags, Unmapped, try_to_unmap_each};
use mm_folio::{FolioLockGuard, FolioRef, Get};

/// As many as a pass isolates at once.
const MOST: usize = 32;

/// A folio that may be unmapped: held, and locked.
struct Locked<'p, P: ReclaimPlatform> {
    // Unlocked before it is given back.
    locked: FolioLockGuard<'p, P>,
    own: FolioRef<'p, P, Get>,
}

/// Mapped folios, to be unmapped in the same way.
pub(super) struct Waiting<'p, P: ReclaimPlatform> {
    folios: [Option<Locked<'p, P>>; MOST],
    nr: usize,
    flags: UnmapFlags,
}

impl<P: ReclaimPlatform> Waiting<'_, P> {
    pub const fn new() -> Self {
        Waiting { folios: [const { None }; MOST], nr: 0, flags: UnmapFlags::empty() }
    }
}

impl<'p, P: ReclaimPlatform> Pass<'_, '_, 'p, P> {
    /// Lets a folio wait for others.
    pub(super) fn wait(&mut self, own: FolioRef<'p, P, Get>, locked: FolioLockGuard<'p, P>) {
        let flags = unmap_flags(own.folio());
        if self.waiting.nr == MOST || self.waiting.flags != flags {
            self.unmap_waiting();
        }
        let waiting = &mut self.waiting;
        waiting.flags = flags;
        waiting.folios[waiting.nr] = Some(Locked { locked, own });
        waiting.nr += 1;
    }

    /// Unmaps what waits, and goes on with each of the folios.
    pub(super) fn unmap_waiting(&mut self) {
        let Waiting { folios, nr, flags } = core::mem::replace(&mut self.waiting, Waiting::new());
        let Some(Some(first)) = folios.first() else { return };
        // What is missing behind the last is not looked at.
        let locked = core::array::from_fn::<_, MOST, _>(|k| {
            folios[k].as_ref().map_or(&first.locked, |folio| &folio.locked)
        });
        let mut ends = [Unmapped::All; MOST];
        let (policy, flushes) = (self.shrink.policy, &mut self.flushes);
        try_to_unmap_each(policy, &locked[..nr], flags, flushes, |k, end| ends[k] = end);
        for (folio, end) in folios.into_iter().zip(ends) {
            let Some(Locked { own, locked }) = folio else { break };
            self.unmapped(own, locked, end);
        }
    }
}
