//! One verdict, many entries.
//!
//! A verdict speaks of the whole folio. The entries around the one that faulted
//! get what a change of protection would give them: those of pages that are
//! known to be exclusive become writable, unless somebody waits for the first
//! store to them. They keep everything else. Nothing was written to them, so
//! nothing becomes dirty or young.
//!
//! The adaptive policy makes them clean where it wants to see who stores: what was
//! dirty by its entry is dirty by its folio then (rule FOLIO-45), and everybody who
//! asks asks both.
//!
//! Marks are set before entries become writable: whoever finds such an entry
//! without the lock, and pins its page, finds the mark (race F-RACE-32). A run is
//! taken and put back, so for a moment it looks empty without the lock, and a
//! fault on a neighbour that saw nothing looks again under it (race F-RACE-33).

use super::Exclusive;
use super::policy::{self, Around, Reach};
use crate::ReusePolicy;
use crate::dispatch::E;
use core::ops::Range;
use mm_arch::respect::{DIRTY, SOFT_DIRTY, WRITE};
use mm_arch::{Arch, Entry, Level, Pfn, VirtAddr};
use mm_folio::{Folio, FolioFlags};
use mm_pgtable::{Block, LockedTable, Window, WindowRequest};
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

/// How far a verdict is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Widening {
    /// The policy.
    pub reach: ReusePolicy,
    /// Entries that a fault is worth.
    pub worth: u16,
    /// What happens to the entries around that of the fault.
    pub change: Change,
}

impl<P: Platform> Exclusive<'_, '_, '_, P> {
    /// Uses the verdict for the pages around `place` as well (rules WREUSE-03 to
    /// WREUSE-16). The entry of the fault itself is left to the caller; it may
    /// be writable already.
    ///
    /// Entries only become more permissive: nothing is flushed (rule WREUSE-15).
    /// Answers how many others than that of the fault became writable.
    pub fn widen(self, place: &Place<'_>, how: Widening) -> u64 {
        let Place { vma, va, pfn } = *place;
        let (folio, table) = self.into_parts();
        let at = table.index_of(va);
        let window = |block| {
            let w = Window::of::<P::Arch>(&WindowRequest {
                va,
                index: folio.index_of(pfn) as usize,
                folio_pages: folio.nr_pages() as usize,
                vma: vma.range(),
                block,
            });
            at - w.before..at + w.after
        };
        let (part, watch) = match how.reach {
            // The caller has no need of a window.
            ReusePolicy::Page => (at..at + 1, false),
            ReusePolicy::Block => (window(Block::Pages(policy::BLOCK)), false),
            ReusePolicy::Table => (window(Block::Table), false),
            ReusePolicy::Adaptive => {
                let all = window(Block::Table);
                let around = look_around(folio, table, place, all.clone(), how.worth);
                let reach = policy::adapt(vma, how.worth, around);
                let writable = |i| table.get(i).is_writable(Level::Pte);
                let part = policy::part_of(all, at, reach, P::Arch::CONT, writable);
                // Behind the last window nobody looks.
                (part, around.stored.is_some() && reach != Reach::Rest)
            }
        };

        let map = folio.memmap();
        let shadow_stack = vma.flags().contains(VmaFlags::SHADOW_STACK);
        let (mut index, mut widened) = (part.start, 0);
        while index < part.end {
            let page = maps(folio, pfn, at, index);
            let e = table.get(index);
            // By the page and not by the folio: the same folio may be mapped
            // here with another offset (rule WREUSE-06).
            if !is_page(e, page) {
                index += 1;
                continue;
            }
            // Equal in all that decides; dirty as well, so that joining a run
            // dirties none of its entries (rule WREUSE-12).
            let limit = table.limit(index).at_most(part.end - index);
            let run = table.run::<{ WRITE | SOFT_DIRTY | DIRTY }>(index, e, limit);
            let nr = run.nr();
            let late = mm_sync::mutant!("fault.reuse.mark_late");
            if !late {
                map.set_exclusive(page, nr);
            }
            // Decided before the run is taken (rule WREUSE-11).
            if how.change == Change::Writable
                && !shadow_stack
                && !e.is_writable(Level::Pte)
                && can_change_writable::<P::Arch>(vma, e, Level::Pte, true)
            {
                // Releasing: the marks are seen by who sees the entries.
                let writable = |old: E<P>| old.mkwrite(vma.write_kind());
                if watch {
                    // What was dirty before must not be lost, and what is dirty
                    // from now on is to be seen.
                    let keep_dirt = || {
                        folio.set_flag(FolioFlags::DIRTY);
                    };
                    table.upgrade_clean(run, keep_dirt, writable);
                } else {
                    table.upgrade(run, writable);
                }
                if late {
                    map.set_exclusive(page, nr);
                }
                widened += nr - usize::from((index..index + nr).contains(&at));
            }
            index += nr;
        }
        widened as u64
    }
}

/// The page of the folio that belongs at `index`, if `pfn` is at `at`.
fn maps<P: Platform>(folio: Folio<'_, P>, pfn: Pfn, at: usize, index: usize) -> Pfn {
    folio.page(folio.index_of(pfn) + index as u32 - at as u32)
}
fn is_page<En: Entry>(e: En, page: Pfn) -> bool {
    e.is_present(Level::Pte) && !e.is_special() && e.pfn(Level::Pte) == page
}

/// What the adaptive policy wants to know about the entries of `all`.
fn look_around<P: Platform>(
    folio: Folio<'_, P>,
    table: &LockedTable<'_, P>,
    place: &Place<'_>,
    all: Range<usize>,
    worth: u16,
) -> Around {
    let Place { vma, va, pfn } = *place;
    let at = table.index_of(va);
    // A folio that one fault can finish is not watched; nor is one where parts
    // of the mapping may be dirty from before a fork that others went through.
    let is_watched = P::Arch::HARDWARE_DIRTY
        && folio.nr_pages() as usize > policy::BLOCK
        && !vma.joined_since_fork();
    let exceptions = vma.flags().contains(VmaFlags::UFFD_WP)
        || vma.tracks_soft_dirty(P::Arch::HAS_SOFT_DIRTY)
        || folio.mapcount() < folio.nr_pages();
    let (group, map) = (P::Arch::CONT, folio.memmap());
    let block = |index: usize| index / policy::BLOCK;
    let first = maps(folio, pfn, at, all.start);
    let mut around = Around {
        possible: all.len(),
        stored: is_watched.then_some(0),
        faults_per_stored: group.min(2),
        ..Around::default()
    };
    // Every writable page is marked (rule INV-2), and marks are found by words. Where
    // no two are in one block they may tell all there is to know.
    let (mut nr, mut crowded, mut last) = (0, false, Some(block(at)));
    map.each_exclusive(first, all.len(), |k| {
        let this = Some(block(all.start + k));
        nr += 1;
        crowded |= this == Some(block(at)) || this == last;
        last = this;
    });
    if is_watched && !exceptions && !crowded {
        let most = Around { writable: nr, stored: Some(nr), ..around };
        if policy::takes_page(vma, worth, most) {
            return most;
        }
    }

    let (mut stored, mut last_stored, mut last_group) = (0, None, None);
    map.each_exclusive(first, all.len(), |k| {
        let index = all.start + k;
        let e = table.get(index);
        if !is_page(e, first.add(k as u64)) || !e.is_writable(Level::Pte) {
            return;
        }
        around.writable += 1;
        around.near |= block(index) == block(at);
        // Entries of a group may share a dirty bit.
        if is_watched && e.is_dirty() && last_group != Some(index / group) {
            last_group = Some(index / group);
            stored += 1;
            around.close |= last_stored == Some(block(index));
            last_stored = Some(block(index));
        }
    });
    around.stored = is_watched.then_some(stored);
    if exceptions {
        let may = |e: E<P>| {
            e.is_writable(Level::Pte) || can_change_writable::<P::Arch>(vma, e, Level::Pte, true)
        };
        let page = |i: &usize| is_page(table.get(*i), maps(folio, pfn, at, *i));
        around.possible = all.filter(page).filter(|i| may(table.get(*i))).count();
    }
    around
}
