//! An anonymous folio becomes smaller ones, where it is.

use crate::RmapPlatform;
use crate::policy::Batching;
use crate::suspend::{Leaves, ZeroPages, suspend_if_mapped};
use mm_folio::{FolioFlags, FolioLockGuard, FolioRef, FolioRun, Get, MemMap};
use mm_vma::{Event, Observer, SwapSpace, free_swap_cache};

/// Why a folio was not split. It is as it was, and mapped as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SplitError {
    /// It has no parts of this order: asking again is of no use.
    #[error("a folio of order {from} does not split to order {to}")]
    Order {
        /// The order of the folio.
        from: u32,
        /// The order that was asked for.
        to: u32,
    },
    /// It has no page by this number, which a part was to be kept for.
    #[error("a folio of {nr_pages} pages has no page {keep}")]
    Page {
        /// The number.
        keep: u32,
        /// How many pages it has.
        nr_pages: u32,
    },
    /// It is in a state in which it must not change its shape.
    #[error("the folio is being written out, or has left its file")]
    Busy,
    /// Somebody holds it.
    #[error("somebody holds the folio")]
    Held,
    /// No memory for the places of the parts.
    #[error("no memory to split the folio")]
    NoMemory,
}

impl SplitError {
    /// The kernel's name of the error.
    pub const fn errno(self) -> &'static str {
        match self {
            SplitError::Order { .. } | SplitError::Page { .. } => "EINVAL",
            SplitError::Busy => "EBUSY",
            SplitError::Held => "EAGAIN",
            SplitError::NoMemory => "ENOMEM",
        }
    }
}

/// A locked folio, and references of it.
#[derive(Debug)]
pub struct SplitFolio<'m, P: RmapPlatform> {
    /// The lock. Dropped before the references.
    pub locked: FolioLockGuard<'m, P>,
    /// The references.
    pub own: FolioRef<'m, P, Get>,
}

/// Splits a locked anonymous folio into folios of `order` (rules FOLIO-51..56). What the
/// caller holds of it goes on with the part that has page `keep`.
///
/// Pages that nothing maps are freed as their folio is let go. Pages that hold nothing but
/// zeros become the zero page where their mapping may have it, if `order` is 0.
///
/// The parts of a folio of the swap cache are in the cache, each with its slot.
///
/// # Errors
///
/// If it cannot be split, or not now, or has no page `keep`. Everything is as before then, but that
/// PMD leaves may have become PTEs.
pub fn split_anon_folio<'m, P: RmapPlatform>(
    platform: &P,
    map: &'m MemMap<P>,
    folio: SplitFolio<'m, P>,
    order: u32,
    keep: u32,
    batching: Batching,
) -> (SplitFolio<'m, P>, Result<(), SplitError>) {
    let from = folio.own.folio().order();
    let split = try_split(platform, map, folio, order, keep, batching);
    let event = match split.1 {
        Ok(()) => Event::FolioSplit,
        Err(_) => Event::FolioSplitFailed,
    };
    platform.observer().event(event, u64::from(from));
    split
}

fn try_split<'m, P: RmapPlatform>(
    platform: &P,
    map: &'m MemMap<P>,
    split: SplitFolio<'m, P>,
    order: u32,
    keep: u32,
    batching: Batching,
) -> (SplitFolio<'m, P>, Result<(), SplitError>) {
    let folio = split.own.folio();
    let (from, nr, own) = (folio.order(), folio.nr_pages(), split.own.n());
    // An anonymous folio of two pages has no room for its place in the queue.
    if order >= from || order == 1 || folio.is_huge_zero() {
        return (split, Err(SplitError::Order { from, to: order }));
    }
    if keep >= nr {
        return (split, Err(SplitError::Page { keep, nr_pages: nr }));
    }
    let slots = platform.swap().slots();
    let cached_at = slots.slot_of(folio);
    // One that was read and that nobody has mapped yet belongs to nothing that could find
    // its parts.
    if folio.has(FolioFlags::WRITEBACK) || cached_at.is_some() && !folio.is_anon() {
        return (split, Err(SplitError::Busy));
    }
    // What is in the swap cache becomes single pages, or stays (rule FOLIO-52).
    if cached_at.is_some() && order > 0 {
        return (split, Err(SplitError::Order { from, to: order }));
    }
    // References of the cache, one for each page.
    let cached = if cached_at.is_some() { 1 } else { 0 };
    // Before page tables are touched: whoever holds the folio now will hold it then.
    let expected = i64::from(folio.mapcount()) + i64::from(own + cached * nr);
    if i64::from(folio.refcount()) != expected {
        return (split, Err(SplitError::Held));
    }
    let Ok(suspended) = suspend_if_mapped(platform, &split.locked, Leaves::Split, batching) else {
        return (split, Err(SplitError::Held));
    };
    if !folio.freeze(own + cached * nr) {
        return (split, Err(SplitError::Held));
    }
    let listed = folio.has(FolioFlags::LRU);
    folio.split_frozen(order);
    if let Some(first) = cached_at {
        slots.split_frozen(first, folio, nr);
    }
    let (per, kept) = (1u32 << order, keep >> order << order);
    // From the end: the one by which others may still find the whole comes last
    // (rule FOLIO-55).
    for page in (0..nr).step_by(per as usize).rev() {
        let part = map.folio(folio.page(page));
        if listed {
            part.enlist();
        }
        part.unfreeze(cached + if page == kept { own } else { 1 });
    }
    // All parts are locked, so that nobody walks them before their mappings are back.
    if let Some(suspended) = suspended {
        let zeros = if order == 0 { ZeroPages::Share } else { ZeroPages::Keep };
        suspended.resume_in_place(zeros);
    }
    // What the caller held is the kept part's; the others are let go.
    let SplitFolio { locked, own: whole } = split;
    whole.hand_over();
    core::mem::forget(locked);
    for page in (0..nr).step_by(per as usize).filter(|page| *page != kept) {
        let part = map.folio(folio.page(page));
        drop(part.inherited_lock());
        let own: FolioRef<'m, P, Get> = map.adopt_run(FolioRun::new(part.head(), 0, 1));
        // Nobody may be left who wants it.
        free_swap_cache(platform, own.folio());
    }
    let part = map.folio(folio.page(kept));
    let own = map.adopt_run(FolioRun::new(part.head(), 0, own));
    (SplitFolio { locked: part.inherited_lock(), own }, Ok(()))
}
