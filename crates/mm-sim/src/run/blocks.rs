//! Counting what contiguous blocks did for a scenario.

use super::Runner;
use crate::events::Events;
use crate::scan::{folded_blocks, user_space};
use mm_arch::{Arch, VirtAddr};
use mm_scenario::ProcId;
use std::collections::BTreeSet;

/// What contiguous blocks did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockCounts {
    /// Blocks that were folded behind an operation and not before it.
    pub folded: u64,
    /// Entries that GUP took without a look at them (rule CONT-16).
    pub by_hint: u64,
}

impl std::ops::AddAssign for BlockCounts {
    fn add_assign(&mut self, more: Self) {
        self.folded += more.folded;
        self.by_hint += more.by_hint;
    }
}

/// Looks at the tables behind every operation.
#[derive(Debug, Default)]
pub(super) struct Watch {
    now: BTreeSet<(ProcId, VirtAddr)>,
    folded: u64,
}

impl Watch {
    /// What it came to.
    pub(super) fn counts<A: Arch, O: Events>(&self, runner: &Runner<'_, A, O>) -> BlockCounts {
        let counts = runner.host().events();
        let by_hint = counts.map_or(0, |counts| counts.entries_by_hint.get());
        BlockCounts { folded: self.folded, by_hint }
    }
    /// Looks.
    pub(super) fn look<A: Arch, O: Events>(&mut self, runner: &Runner<'_, A, O>) {
        let Some(all) = user_space::<A>() else { return };
        let before = std::mem::take(&mut self.now);
        for (id, proc) in &runner.procs {
            folded_blocks(&proc.process.mm().read(), all, |va| {
                self.now.insert((*id, va));
            });
        }
        self.folded += self.now.difference(&before).count() as u64;
    }
}
