//! One verdict, many entries.
//!
//! A verdict speaks of the whole folio. The entries around the one that faulted
//! get what a change of protection would give them: those of pages that are
//! known to be exclusive become writable, unless somebody waits for the first
//! store to them. They keep everything else. Nothing was written to them, so
//! nothing becomes dirty or young.
//!
//! Marks are set before entries become writable: whoever finds such an entry
//! without the lock, and pins its page, finds the mark (race F-RACE-32). A run is
//! taken and put back, so for a moment it looks empty without the lock, and a
//! fault on a neighbour that saw nothing looks again under it (race F-RACE-33).

use super::{Exclusive, policy};
use crate::ReusePolicy;
use mm_arch::respect::{DIRTY, SOFT_DIRTY, WRITE};
use mm_arch::{Entry, Level, Pfn, VirtAddr};
use mm_pgtable::{Block, Window, WindowRequest};
use mm_vma::{Platform, Vma, VmaFlags, can_change_writable};

/// Where the fault was.
pub(crate) struct Place<'v> {
    pub vma: &'v Vma,
    /// First address of the page.
    pub va: VirtAddr,
    /// The page, which the verdict's table maps there.
    pub pfn: Pfn,
}

/// What happens to entries around the one that faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Their pages are marked; the entries stay (rule WREUSE-17).
    MarkOnly,
    /// They become writable as well, where they may.
    Writable,
}

impl<P: Platform> Exclusive<'_, '_, '_, P> {
    /// Uses the verdict for the pages around `place` as well (rules WREUSE-03 to
    /// WREUSE-16). The entry of the fault itself is left to the caller; it may
    /// be writable already.
    ///
    /// Entries only become more permissive: nothing is flushed (rule WREUSE-15).
    /// Answers how many others than that of the fault became writable.
    pub fn widen(self, place: &Place<'_>, reach: ReusePolicy, change: Change) -> u64 {
        let Place { vma, va, pfn } = *place;
        let (folio, table) = self.into_parts();
        let map = folio.memmap();
        let window = |block| {
            Window::of::<P::Arch>(&WindowRequest {
                va,
                index: folio.index_of(pfn) as usize,
                folio_pages: folio.nr_pages() as usize,
                vma: vma.range(),
                block,
            })
        };
        let first_of = |w: &Window| folio.page(folio.index_of(pfn) - w.before as u32);
        let window = match reach {
            // The caller has no need of a window.
            ReusePolicy::Page => Window { before: 0, after: 1 },
            ReusePolicy::Block => window(Block::Pages(policy::BLOCK)),
            ReusePolicy::Table => window(Block::Table),
            ReusePolicy::Adaptive => {
                let all = window(Block::Table);
                let marked = |w: &Window| map.exclusive_count(first_of(w), w.nr());
                let near = marked(&window(Block::Pages(policy::BLOCK)));
                let around = policy::Around { window: all.nr(), marked: marked(&all), near };
                policy::adapt(vma, around).map_or(all, window)
            }
        };

        let (first_pfn, first) = (first_of(&window), table.index_of(va) - window.before);
        let shadow_stack = vma.flags().contains(VmaFlags::SHADOW_STACK);
        let (mut k, mut widened) = (0, 0);
        while k < window.nr() {
            let (index, page) = (first + k, first_pfn.add(k as u64));
            let e = table.get(index);
            // By the page and not by the folio: the same folio may be mapped
            // here with another offset (rule WREUSE-06).
            if !e.is_present(Level::Pte) || e.is_special() || e.pfn(Level::Pte) != page {
                k += 1;
                continue;
            }
            // Equal in all that decides; dirty as well, so that joining a run
            // dirties none of its entries (rule WREUSE-12).
            let limit = table.limit(index).at_most(window.nr() - k);
            let run = table.run::<{ WRITE | SOFT_DIRTY | DIRTY }>(index, e, limit);
            let nr = run.nr();
            let late = mm_sync::mutant!("fault.reuse.mark_late");
            if !late {
                map.set_exclusive(page, nr);
            }
            // Decided before the run is taken (rule WREUSE-11).
            if change == Change::Writable
                && !shadow_stack
                && !e.is_writable(Level::Pte)
                && can_change_writable::<P::Arch>(vma, e, Level::Pte, true)
            {
                // Releasing: the marks are seen by who sees the entries.
                table.upgrade(run, |old| old.mkwrite(vma.write_kind()));
                if late {
                    map.set_exclusive(page, nr);
                }
                widened += nr - usize::from((k..k + nr).contains(&window.before));
            }
            k += nr;
        }
        widened as u64
    }
}
