//! The lockless walk: page tables and the memory map, nothing else.
//!
//! See the crate documentation for the order of steps and why it is sound, and
//! `docs/src/protocols/gup-fast.md` for the races and their models.

use crate::policy::{Batching, HeadThenRest, PerPage, Whole};
use crate::unshare::{is_of_file, make_accessible, unshared_pages};
use crate::{FastPolicy, GupFlags, Sink};
use mm_arch::{AccessKind, Arch, Entry, Level, Pinned, VirtAddr, VirtRange, respect};
use mm_folio::{Folio, FolioFlags, FolioRun, FolioSpace, MemMap, RefKind};
use mm_pgtable::{PageTables, Run, Slot, Step, TableSpace, View};
use mm_sync::{SeqCount, mutant};
use mm_vma::{Event, Observer};

/// What the walk works on: an address space and the memory map.
pub struct Walk<'a, S: TableSpace + FolioSpace, O: Observer> {
    /// The page tables.
    pub tables: &'a PageTables<S>,
    /// The memory map.
    pub map: &'a MemMap<S>,
    /// Odd while fork copies the space.
    pub write_protect_seq: &'a SeqCount,
    /// Who hears of events.
    pub observer: &'a O,
}

impl<S: TableSpace + FolioSpace, O: Observer> Walk<'_, S, O> {
    /// Takes up to `nr` pages from `va` on, as long as each can be taken without
    /// a lock or a fault. The result is a prefix of the range (rule GUPF-07), and
    /// nothing if the range leaves user space.
    ///
    /// Never sleeps, never faults; callable in any context that may hold a
    /// quiescence guard. For pins, everything is given back if a fork came in
    /// between (rule GUPF-05).
    ///
    /// The caller has made room in `out`, and for pins has said so in the address
    /// space before (rule PIN-12).
    pub fn take<K: RefKind>(
        &self,
        policy: FastPolicy,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> usize {
        // A table index is a few bits of the address: one beyond user space
        // would find the pages of another (rule GUPF-05).
        let range = VirtRange::units(va, nr as u64, S::Arch::PAGE_SHIFT);
        if !range.is_ok_and(|r| r.last().get() < S::Arch::USER_END) {
            return 0;
        }
        let seq = if K::PINS {
            match self.write_protect_seq.read_begin() {
                Some(seq) => Some(seq),
                None => return 0,
            }
        } else {
            None
        };
        let before = out.pages();
        let got = match (policy, flags.contains(GupFlags::WRITE)) {
            (FastPolicy::Page, false) => self.range::<K, PerPage, false>(va, nr, flags, out),
            (FastPolicy::Page, true) => self.range::<K, PerPage, true>(va, nr, flags, out),
            (FastPolicy::Run, false) => self.range::<K, HeadThenRest, false>(va, nr, flags, out),
            (FastPolicy::Run, true) => self.range::<K, HeadThenRest, true>(va, nr, flags, out),
            (FastPolicy::Whole, false) => self.range::<K, Whole, false>(va, nr, flags, out),
            (FastPolicy::Whole, true) => self.range::<K, Whole, true>(va, nr, flags, out),
        };
        if K::PINS {
            self.map.stats().foll_pin_acquired.add(got as u64);
        }
        if let Some(seq) = seq
            && got > 0
            && !mutant!("gup.seq.no_check")
            && self.write_protect_seq.read_retry(seq)
        {
            out.give_back::<K, S>(self.map, before);
            return 0;
        }
        // Once per call, and not per page: such pins are rare, files among them
        // rarer. The slow path knows the mapping.
        if K::PINS
            && flags.contains(GupFlags::WRITE | GupFlags::LONGTERM)
            && self.any_of_file(out, before)
        {
            out.give_back::<K, S>(self.map, before);
            return 0;
        }
        got
    }

    /// Whether a page behind the first `from` of `out` is of a file.
    #[cold]
    fn any_of_file(&self, out: &impl Sink, from: usize) -> bool {
        let mut any = false;
        out.each_run(self.map, from, |run| any |= is_of_file(self.map.folio(run.head)));
        any
    }

    fn range<K: RefKind, B: Batching, const WRITE: bool>(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> usize {
        let guard = self.tables.pin();
        let mut got = 0;
        while got < nr {
            let at = va.add_units(got as u64, S::Arch::PAGE_SHIFT);
            self.observer.event(Event::Walks, 1);
            let (part, want) = match guard.walk(at) {
                Step::Hole { .. } => break,
                Step::Leaf(slot) => {
                    let left =
                        (1usize << S::Arch::order(slot.level())) - leaf_index::<S>(&slot, at);
                    let want = left.min(nr - got);
                    (self.leaf::<K, WRITE>(&slot, at, want, flags, out), want)
                }
                Step::Table(pmd, ptes) => {
                    let want = S::Arch::entries_left(at, Level::Pte).min(nr - got);
                    (self.ptes::<K, B, WRITE>(&pmd, &ptes, at, want, flags, out), want)
                }
            };
            got += part;
            if part < want {
                break;
            }
        }
        drop(guard);
        got
    }

    /// The entries of one table, page by page; large folios are left to
    /// [`runs`](Self::runs). Rules GUPF-11, GUPF-16..19.
    #[inline(always)]
    fn ptes<K: RefKind, B: Batching, const WRITE: bool>(
        &self,
        pmd: &Slot<'_, S>,
        ptes: &View<'_, S, Pinned>,
        va: VirtAddr,
        want: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> usize {
        let first = ptes.index_of(va);
        // The caller stays in the table. Said again, so that no entry of the loop
        // needs to ask.
        let end = (first + want).min(S::Arch::nr_entries(Level::Pte));
        let facts = forbidden(flags);
        let mut index = first;
        while index < end {
            let head = ptes.pte(index);
            self.observer.event(Event::EntriesRead, 1);
            if !may_take::<S::Arch, WRITE>(head) {
                break;
            }
            let pfn = head.pfn(Level::Pte);
            let Some(page) = self.map.glance(pfn) else { break };
            if B::RUNS && page.is_large() {
                let reached = self.runs::<K, B, WRITE>(pmd, ptes, index, head, end, flags, out);
                index = reached.index;
                if reached.stopped {
                    break;
                }
                continue;
            }
            let early = mutant!("gup.longterm.early") && !is_forbidden(self.map.folio(pfn), facts);
            // From here on nobody can free, split or collapse the folio, or
            // share its pages, without noticing: the grab ends in a full barrier.
            let Some(refs) = page.grab::<K>(1) else { break };
            self.observer.event(Event::Grabs, 1);
            self.observer.event(Event::Atomics, if K::PINS && refs.is_large() { 2 } else { 1 });
            let folio = refs.folio();
            // As plain numbers from here on: a value that must be dropped on the
            // way out of every panic would live in memory.
            let held = refs.into_run(0);
            if !is_unchanged(pmd, ptes, index, head)
                || !early && is_forbidden(folio, facts)
                || !head.is_writable(Level::Pte)
                    && unshared_pages::<K, S>(None, flags, folio, pfn, 1) == 0
                || !make_accessible::<K, S>(folio)
            {
                self.map.put_run::<K>(held);
                break;
            }
            folio.set_flag(FolioFlags::REFERENCED);
            out.push_page(pfn, held.head);
            index += 1;
        }
        index - first
    }

    /// The runs from `index` on, where `head` was read, for as long as they are of
    /// large folios. Each one is grabbed, verified, scanned, cut to what needs no
    /// unsharing, and pushed.
    ///
    /// Out of line: small folios keep their registers.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "split off the loop for its registers only")]
    fn runs<K: RefKind, B: Batching, const WRITE: bool>(
        &self,
        pmd: &Slot<'_, S>,
        ptes: &View<'_, S, Pinned>,
        mut index: usize,
        mut head: <S::Arch as Arch>::Entry,
        end: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Reached {
        let end = end.min(S::Arch::nr_entries(Level::Pte));
        let facts = forbidden(flags);
        let mut last_was_whole = true;
        loop {
            let pfn = head.pfn(Level::Pte);
            let Some(page) = self.map.glance(pfn) else { break };
            if !page.is_large() {
                return Reached { index, stopped: false };
            }
            let early = mutant!("gup.batch.scan_first")
                .then(|| scan(ptes, index, head, page.pages_left().min(end - index)));
            let early_facts =
                mutant!("gup.longterm.early") && !is_forbidden(self.map.folio(pfn), facts);
            // A guess at what the run will have: the folio is not held yet.
            let whole = B::WHOLE && last_was_whole;
            let guess = if whole { page.pages_left().min(end - index) } else { 1 };
            let Some(mut refs) = page.grab::<K>(guess as u32) else {
                if guess == 1 {
                    break;
                }
                // At the limit of the count there may be room for the head.
                last_was_whole = false;
                continue;
            };
            self.observer.event(Event::Grabs, 1);
            let folio = refs.folio();
            if !is_unchanged(pmd, ptes, index, head) || !early_facts && is_forbidden(folio, facts) {
                break;
            }
            self.observer.event(Event::Atomics, if K::PINS { 2 } else { 1 });
            let left = (folio.nr_pages() - folio.index_of(pfn)) as usize;
            let left = left.min(end - index);
            let run = early.unwrap_or_else(|| scan(ptes, index, head, left));
            let mut n = run.nr();
            self.observer.event(Event::EntriesRead, run.looks() as u64 - 1);
            self.observer.event(Event::EntriesByHint, run.by_hint() as u64);
            if !head.is_writable(Level::Pte) {
                n = unshared_pages::<K, S>(None, flags, folio, pfn, n);
                if n == 0 {
                    break;
                }
            }
            if !make_accessible::<K, S>(folio) {
                break;
            }
            last_was_whole = n == left;
            if n < guess {
                let surplus = refs.split_off((guess - n) as u32);
                self.observer.event(Event::Atomics, if K::PINS { 2 } else { 1 });
                if mutant!("gup.whole.keep_surplus") {
                    core::mem::forget(surplus);
                }
            } else if n > guess {
                // At the limit of the count the head is kept.
                if refs.grow((n - guess) as u32).is_ok() || mutant!("gup.rest.unchecked") {
                    self.observer.event(Event::Grabs, 1);
                    self.observer.event(Event::Atomics, if K::PINS { 2 } else { 1 });
                } else {
                    n = guess;
                }
            }
            folio.set_flag(FolioFlags::REFERENCED);
            out.push(refs.into_run(folio.index_of(pfn)));
            index += n;
            if index >= end {
                return Reached { index, stopped: false };
            }
            head = ptes.pte(index);
            self.observer.event(Event::EntriesRead, 1);
            if !may_take::<S::Arch, WRITE>(head) {
                break;
            }
        }
        Reached { index, stopped: true }
    }

    /// A leaf above PTE level: all or nothing (rule GUPF-09).
    fn leaf<K: RefKind, const WRITE: bool>(
        &self,
        slot: &Slot<'_, S>,
        va: VirtAddr,
        want: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> usize {
        let kind = if WRITE { AccessKind::Write } else { AccessKind::Read };
        let (entry, level) = (slot.entry(), slot.level());
        self.observer.event(Event::EntriesRead, 1);
        if entry.is_protnone(level) || !entry.permits(kind, level) || entry.is_special() {
            return 0;
        }
        let pfn = entry.pfn(level).add(leaf_index::<S>(slot, va) as u64);
        let Some(refs) = self.map.try_grab::<K>(pfn, want as u32) else { return 0 };
        self.observer.event(Event::Grabs, 1);
        self.observer.event(Event::Atomics, if K::PINS { 2 } else { 1 });
        if !mutant!("gup.no_leaf_recheck") && !slot.is_unchanged() {
            return 0;
        }
        let folio = refs.folio();
        if is_forbidden(folio, forbidden(flags)) {
            return 0;
        }
        // A leaf that the folio does not cover is not one of ours.
        if u64::from(folio.index_of(pfn)) + want as u64 > u64::from(folio.nr_pages()) {
            return 0;
        }
        // The marks of a PMD-mapped folio are kept for its first page only; the
        // leaf is one unit of exclusivity (rule EXCL-01).
        let first = entry.pfn(level);
        if !entry.is_writable(level) && unshared_pages::<K, S>(None, flags, folio, first, 1) == 0 {
            return 0;
        }
        folio.set_flag(FolioFlags::REFERENCED);
        let run: FolioRun = refs.into_run(folio.index_of(pfn));
        out.push(run);
        want
    }
}

/// How far [`Walk::runs`] came.
struct Reached {
    /// The first entry that was not taken.
    index: usize,
    /// It cannot be: the prefix ends here.
    stopped: bool,
}

/// Whether the entry permits the access. One that is inaccessible or not present
/// permits nothing.
#[inline(always)]
fn may_take<A: Arch, const WRITE: bool>(entry: A::Entry) -> bool {
    let write = WRITE && !mutant!("gup.any_permission");
    let kind = if write { AccessKind::Write } else { AccessKind::Read };
    entry.permits(kind, Level::Pte) && !entry.is_special()
}

/// Facts of a folio that leave it to the slow path. Looked at behind the grab: whoever
/// declares a folio to be no longer pinnable for ever, and then looks for users, sees
/// the grab or is seen (rule P-RACE-23); and by then it is the folio that is mapped
/// here (rule GUPF-12).
#[inline(always)]
fn forbidden(flags: GupFlags) -> FolioFlags {
    let mut facts = flags.forbidden();
    facts.set(FolioFlags::NO_LONGTERM, flags.contains(GupFlags::LONGTERM));
    facts
}

#[inline(always)]
fn is_forbidden<S: FolioSpace>(folio: Folio<'_, S>, facts: FolioFlags) -> bool {
    folio.flags().intersects(facts)
}

/// The second look, behind the grab: it may not be the page that is mapped here
/// any more; the table may have been cut off. The PMD first (rule GUPF-12).
#[inline(always)]
fn is_unchanged<S: TableSpace>(
    pmd: &Slot<'_, S>,
    ptes: &View<'_, S, Pinned>,
    index: usize,
    entry: <S::Arch as Arch>::Entry,
) -> bool {
    (mutant!("gup.no_pmd_recheck") || pmd.is_unchanged())
        && (mutant!("gup.no_pte_recheck") || ptes.pte(index) == entry)
}

/// The run of `head` at `index`, at most `left` entries, in the table.
#[inline(always)]
fn scan<'v, S: TableSpace>(
    ptes: &View<'v, S, Pinned>,
    index: usize,
    head: <S::Arch as Arch>::Entry,
    left: usize,
) -> Run<'v> {
    let limit = ptes.limit(index).at_most(left);
    if mutant!("gup.batch.ignore_write") {
        return ptes.run::<{ respect::NOTHING }>(index, head, limit);
    }
    ptes.run::<{ respect::WRITE }>(index, head, limit)
}

fn leaf_index<S: TableSpace>(slot: &Slot<'_, S>, va: VirtAddr) -> usize {
    (va.bytes_from(slot.va()) >> S::Arch::PAGE_SHIFT) as usize
}
