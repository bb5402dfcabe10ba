//! Present entries of anonymous pages become swap entries.
//!
//! # The protocol
//!
//! ```text
//!   under the table lock
//!     count the entries on their slots
//!     take the entries                        a lockless pinner's second look fails …
//!     full barrier, look at the pins          … or its pin is seen here  (RMAP-19)
//!       pinned ─► the entries come back as they were, the counts go
//!     exclusive marks go, swap entries come: each says what its page was
//! ```
//!
//! A run is asked for its pins once; everything else is carried entry by entry:
//! exclusive, soft-dirty, uffd-wp. So a run is what its entries one by one would be, whether
//! it succeeds or stops in the middle (rules UNMAP-18, UNMAP-19).

use crate::RmapPlatform;
use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Flush, Live, NonPresent, SwapBits, SwapSlot};
use mm_folio::{Folio, FolioFlags};
use mm_pgtable::{LockedTable, Run, TableSpace};
use mm_vma::{Mm, RssKind, SlotRun, SwapSpace};

type E<P> = <<P as TableSpace>::Arch as Arch>::Entry;

/// Entries that are taken at a time: of a short run, and of a long one. What they were is
/// kept meanwhile.
const SHORT: usize = 16;
const LONG: usize = 512;

/// Why an entry did not become a swap entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapOutError {
    /// Its page is exclusive and may be pinned.
    MaybePinned,
    /// No more entries can be counted on its slot.
    TooManyEntries,
    /// The format has no entry for its slot.
    NoEncoding,
}

/// What became of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "mappings and references of what was replaced are the caller's to remove"]
pub struct SwappedOut {
    /// Entries, from the first on, that are swap entries now. The mappings and references
    /// that they stood for are still counted.
    pub nr: usize,
    /// Why the next one is not; it and those behind it are as they were.
    pub stopped: Option<SwapOutError>,
    /// Whether one of them was dirty.
    pub dirty: bool,
    /// Calls that took entries.
    pub clears: usize,
    /// Entries that were taken one by one, as the slot of one takes no more.
    pub singly: usize,
}

impl SwappedOut {
    fn stopped(why: SwapOutError) -> Self {
        SwappedOut { nr: 0, stopped: Some(why), dirty: false, clears: 0, singly: 0 }
    }
}

/// Replaces the entries of `run` by swap entries. They map pages of `folio`, which is locked
/// and in the swap cache, from page `page` on; its page 0 is at `first`.
///
/// The counters of the space follow. `owed` covers what was replaced: the caller pays it, or
/// records it, before it gives up the references. Dirt of the entries is the folio's
/// when this returns (rule FOLIO-45).
pub fn swap_out_ptes<P: RmapPlatform>(
    mm: &Mm<P>,
    table: &mut LockedTable<'_, P>,
    folio: Folio<'_, P>,
    first: SwapSlot,
    page: u32,
    run: Run<'_>,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> SwappedOut {
    let mut out = SwappedOut { nr: 0, stopped: None, dirty: false, clears: 0, singly: 0 };
    while out.nr < run.nr() && out.stopped.is_none() {
        let page = page + out.nr as u32;
        let at = Part {
            index: run.first() + out.nr,
            page,
            first: SlotRun::new(first, page + 1).at(page),
            n: LONG.min(run.nr() - out.nr),
        };
        let part = if at.n <= SHORT {
            swap_out_part::<P, SHORT>(mm, table, folio, at, owed)
        } else {
            swap_out_part::<P, LONG>(mm, table, folio, at, owed)
        };
        out.nr += part.nr;
        out.dirty |= part.dirty;
        out.clears += part.clears;
        out.singly += part.singly;
        out.stopped = part.stopped;
    }
    out
}

/// Part of a run: so many entries at a time.
#[derive(Clone, Copy)]
struct Part {
    index: usize,
    page: u32,
    /// The slot of that page.
    first: SwapSlot,
    n: usize,
}

/// Bits by entry of a part.
#[derive(Clone, Copy)]
struct Marks([u64; LONG / 64]);

impl Marks {
    fn set(&mut self, k: usize) {
        self.0[k / 64] |= 1 << (k % 64);
    }
    fn has(&self, k: usize) -> bool {
        self.0[k / 64] >> (k % 64) & 1 != 0
    }
    fn first(&self) -> Option<usize> {
        let (i, word) = self.0.iter().enumerate().find(|(_, word)| **word != 0)?;
        Some(i * 64 + word.trailing_zeros() as usize)
    }
}

/// Replaces the entries of a part, at most `N`, or the first of them.
fn swap_out_part<P: RmapPlatform, const N: usize>(
    mm: &Mm<P>,
    table: &mut LockedTable<'_, P>,
    folio: Folio<'_, P>,
    at: Part,
    owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
) -> SwappedOut {
    let counts = mm.platform().swap().slots();
    let Part { index, page, mut n, .. } = at;
    let slots = |n: usize| SlotRun::new(at.first, n as u32);
    let entry =
        |k: usize, bits| E::<P>::from_nonpresent(NonPresent::Swap(slots(k + 1).at(k as u32)), bits);
    if entry(n - 1, SwapBits::default()).is_err() || entry(0, SwapBits::default()).is_err() {
        return SwappedOut::stopped(SwapOutError::NoEncoding);
    }
    let in_runs = counts.dup(slots(n)).is_ok();
    if !in_runs {
        // One by one, as far as it goes.
        n = 1;
        if counts.dup(slots(1)).is_err() {
            return SwappedOut::stopped(SwapOutError::TooManyEntries);
        }
    }
    let count = NonZeroU32::new(n as u32).unwrap_or(NonZeroU32::MIN);
    let late = mm_sync::mutant!("rmap.swap_out.share_first");
    let mut shared = if late { folio.try_share_anon_ptes(page, count) } else { Ok(()) };

    let mut old = [E::<P>::NONE; N];
    table.take_each::<Live>(index, n, owed, |k, e| old[k] = e);
    // Marks of mapped pages change only under the lock of the table that maps them.
    let mut exclusive = Marks([0; LONG / 64]);
    folio.memmap().each_exclusive(folio.page(page), n, |k| exclusive.set(k));
    if !late {
        shared = folio.try_share_anon_ptes(page, count);
    }
    // Pages that are shared already need not be asked about. What has lost its mark never comes
    // back writable (race F-RACE-04).
    let back = mm_sync::mutant!("rmap.swap_out.restore_shared");
    let end = if shared.is_ok() && !back { n } else { exclusive.first().unwrap_or(n) };
    let dirty = old[..end].iter().any(|e| e.is_dirty());
    if dirty {
        folio.set_flag(FolioFlags::DIRTY);
    }
    if end < n {
        table.put_back(index + end, &old[end..n]);
        counts.put(SlotRun::new(slots(n).at(end as u32), (n - end) as u32));
    }
    for (k, old) in old.iter().enumerate().take(end) {
        let bits = SwapBits {
            exclusive: exclusive.has(k),
            soft_dirty: old.is_soft_dirty(),
            uffd_wp: old.is_uffd_wp(),
        };
        match entry(k, bits) {
            Ok(e) => table.set(index + k, e),
            Err(_) => debug_assert!(false, "the format has some of the slots only"),
        }
    }
    mm.counters().sub(RssKind::Anon, end as u64);
    mm.counters().add(RssKind::Swap, end as u64);
    let stopped = (end < n).then_some(SwapOutError::MaybePinned);
    SwappedOut { nr: end, stopped, dirty, clears: 1, singly: if in_runs { 0 } else { end } }
}
