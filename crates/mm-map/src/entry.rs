//! What an entry maps, asked in one place.

use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, NonPresent};
use mm_folio::{Folio, FolioFlags, FolioRef, FolioRun, Get};
use mm_pgtable::{BatchLimit, Gather, TableSpace};
use mm_vma::{Mm, Platform, RssKind, free_swap_cache};

pub(crate) type E<P> = <<P as TableSpace>::Arch as Arch>::Entry;

/// References to unmapped pages, parked until the flush.
pub type FolioGather<'g, P> = Gather<'g, P, Unmapped<'g, P>>;

/// References of pages whose mappings were removed. Dropping it gives them back; a folio
/// that nothing maps any more leaves the swap cache before that, if nobody else can want it
/// (rule ZAP-06).
#[derive(Debug)]
#[must_use = "the references are given back when this is dropped"]
pub struct Unmapped<'g, P: Platform> {
    platform: &'g P,
    refs: FolioRef<'g, P, Get>,
}

impl<'g, P: Platform> Unmapped<'g, P> {
    /// The folio.
    pub(crate) fn folio(&self) -> Folio<'g, P> {
        self.refs.folio()
    }
    /// How many references.
    pub(crate) fn n(&self) -> u32 {
        self.refs.n()
    }
}

impl<P: Platform> Drop for Unmapped<'_, P> {
    fn drop(&mut self) {
        if self.refs.folio().has(FolioFlags::SWAPCACHE) {
            free_swap_cache(self.platform, self.refs.folio());
        }
    }
}

/// The folio that a present leaf counts for: none for the zero pages and for
/// frames without records.
#[inline]
pub(crate) fn counted_folio<'m, P: Platform>(
    mm: &'m Mm<P>,
    e: E<P>,
    level: Level,
) -> Option<Folio<'m, P>> {
    let map = mm.platform().memmap();
    let pfn = e.pfn(level);
    let none = e.is_special()
        || !map.contains(pfn)
        || map.is_zero_page(pfn)
        || (level == Level::Pmd && map.is_huge_zero(pfn));
    (!none).then(|| map.folio(pfn))
}

/// Pages of `folio` from `first` on, as the bound of a run.
#[inline]
pub(crate) fn within<P: Platform>(
    limit: BatchLimit,
    left: usize,
    folio: Folio<'_, P>,
    first: u32,
) -> BatchLimit {
    limit.at_most(left).at_most((folio.nr_pages() - first) as usize)
}

/// The references of `n` pages whose mappings were just removed, to be parked.
#[inline]
pub(crate) fn owned<'m, P: Platform>(
    mm: &'m Mm<P>,
    folio: Folio<'m, P>,
    first: u32,
    n: NonZeroU32,
) -> Unmapped<'m, P> {
    let platform = mm.platform();
    let run = FolioRun::new(folio.head(), first, n.get());
    Unmapped { platform, refs: platform.memmap().adopt_run(run) }
}

/// Whether PTEs can take the place of a PMD entry: it is a leaf, or stands for one that is
/// being moved.
pub(crate) fn splits<P: Platform>(e: E<P>) -> bool {
    e.is_leaf(Level::Pmd) || matches!(e.nonpresent(Level::Pmd), Some(NonPresent::Migration { .. }))
}

/// The folio that a PMD leaf maps, or that a migration entry in its place stands for (rule
/// MM-067).
pub(crate) fn folio_of_pmd<P: Platform>(mm: &Mm<P>, e: E<P>) -> Option<Folio<'_, P>> {
    if e.is_leaf(Level::Pmd) {
        return counted_folio(mm, e, Level::Pmd);
    }
    match e.nonpresent(Level::Pmd)? {
        NonPresent::Migration { pfn, .. } => Some(mm.platform().memmap().folio(pfn)),
        _ => None,
    }
}

/// Base pages that a PMD leaf maps.
pub(crate) fn pmd_pages<P: Platform>() -> u64 {
    1 << P::Arch::order(Level::Pmd)
}

/// Entries by what they count as, to be added to or taken off the counters of a
/// space in one step each.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Rss([u64; Rss::KINDS.len()]);

impl Rss {
    const KINDS: [RssKind; 4] = [RssKind::Anon, RssKind::File, RssKind::Shmem, RssKind::Swap];

    pub fn add(&mut self, kind: RssKind, nr: u64) {
        if let Some(n) = Self::KINDS.iter().position(|k| *k == kind) {
            self.0[n] += nr;
        }
    }
    fn each(self, mut f: impl FnMut(RssKind, u64)) {
        for (kind, nr) in Self::KINDS.into_iter().zip(self.0) {
            if nr > 0 {
                f(kind, nr);
            }
        }
    }
    pub fn add_to<P: Platform>(self, mm: &Mm<P>) {
        self.each(|kind, nr| mm.counters().add(kind, nr));
    }
    pub fn sub_from<P: Platform>(self, mm: &Mm<P>) {
        self.each(|kind, nr| mm.counters().sub(kind, nr));
    }
}
