//! The pages of an object that are on a swap device.

use mm_arch::SwapSlot;
use mm_folio::AllocError;
use mm_vma::SlotRun;
use std::ops::Range;

/// Pages of an object by index, each of them an entry that counts on its slot, and those that
/// a device did not give back.
///
/// Memory is needed for pages that go out only: what takes them back, or gives them up,
/// cannot fail.
#[derive(Debug, Default)]
pub(crate) struct Swapped {
    // By index.
    pages: Vec<(u64, Place)>,
    /// Pages do not go out while somebody gives some of the object up: they would come back
    /// behind whoever looks for them in the cache.
    pub discards: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Slot {
        slot: SwapSlot,
        /// The size of the folio that it went out in.
        order: u32,
    },
    /// Nowhere.
    Lost,
}

impl Place {
    fn slot(self) -> Option<SwapSlot> {
        match self {
            Place::Slot { slot, .. } => Some(slot),
            Place::Lost => None,
        }
    }
}

impl Swapped {
    /// Where the pages of `range` are.
    fn positions(&self, range: Range<u64>) -> Range<usize> {
        let at = |index| self.pages.partition_point(|(i, _)| *i < index);
        at(range.start)..at(range.end)
    }
    fn place(&self, index: u64) -> Option<Place> {
        let at = self.pages.binary_search_by_key(&index, |(i, _)| *i).ok()?;
        Some(self.pages[at].1)
    }
    /// The slot of a page.
    pub fn slot(&self, index: u64) -> Option<SwapSlot> {
        self.place(index)?.slot()
    }
    /// The first page from `index` on that has a slot, and its slot.
    pub fn first_from(&self, index: u64) -> Option<(u64, SwapSlot)> {
        let behind = &self.pages[self.positions(0..index).end..];
        behind.iter().find_map(|(i, place)| Some((*i, place.slot()?)))
    }
    /// Whether one of the `nr` pages from `first` on is swapped out, or lost.
    pub fn any(&self, first: u64, nr: u64) -> bool {
        !self.positions(first..first.saturating_add(nr)).is_empty()
    }
    /// Whether the page cannot be had any more.
    pub fn is_lost(&self, index: u64) -> bool {
        self.place(index) == Some(Place::Lost)
    }
    /// The pages of `range`, all swapped out, cannot be had any more; hands out the slot of
    /// each.
    pub fn lose(&mut self, range: Range<u64>, each: impl FnMut(SwapSlot)) {
        let at = self.positions(range);
        let places = self.pages[at].iter_mut();
        places.filter_map(|(_, place)| std::mem::replace(place, Place::Lost).slot()).for_each(each);
    }
    /// The pages of a folio of `order`, its first one at `first`, none of which is here, are in
    /// slots from `slot` on.
    ///
    /// # Errors
    ///
    /// If there is no memory; nothing is changed then.
    pub fn put(&mut self, first: u64, order: u32, slot: SwapSlot) -> Result<(), AllocError> {
        let run = SlotRun::new(slot, 1 << order);
        self.pages.try_reserve(run.nr as usize).map_err(|_| AllocError)?;
        let at = self.positions(0..first).end;
        let places = run.iter().map(|slot| Place::Slot { slot, order });
        self.pages.splice(at..at, (first..).zip(places));
        Ok(())
    }
    /// The pages of `range` are in memory or gone; hands out the slot of each.
    pub fn take(&mut self, range: Range<u64>, each: impl FnMut(SwapSlot)) {
        let at = self.positions(range);
        self.pages.drain(at).filter_map(|(_, place)| place.slot()).for_each(each);
    }
    /// As [`take`](Self::take), of pages from the end of `range` down to one that has a slot.
    pub fn take_last(&mut self, range: Range<u64>) -> Option<SwapSlot> {
        let at = self.positions(range);
        let last = self.pages[at.clone()].iter().rposition(|(_, place)| place.slot().is_some());
        let first = at.start + last.unwrap_or(0);
        self.pages.drain(first..at.end).next()?.1.slot()
    }
    /// The largest order, up to that of the folio that it went out in, in which the page at
    /// `index` can come back: its whole block is here, in a row and aligned.
    pub fn order_of(&self, index: u64) -> u32 {
        let Some(Place::Slot { order, .. }) = self.place(index) else { return 0 };
        let fits = |order: &u32| {
            let nr = 1u64 << order;
            let first = index & !(nr - 1);
            let slot = self.slot(first).filter(|slot| slot.offset.is_multiple_of(nr));
            slot.is_some_and(|slot| {
                let run = SlotRun::new(slot, nr as u32);
                run.iter().enumerate().all(|(i, slot)| self.slot(first + i as u64) == Some(slot))
            })
        };
        (0..=order).rev().find(fits).unwrap_or(0)
    }
    /// The slots.
    pub fn slots(&self) -> impl Iterator<Item = SwapSlot> {
        self.pages.iter().filter_map(|(_, place)| place.slot())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(offset: u64) -> SwapSlot {
        SwapSlot { device: 0, offset }
    }

    #[test]
    fn a_folio_comes_back_as_large_as_it_is_still_there() {
        let mut swapped = Swapped::default();
        swapped.put(20, 2, slot(12)).expect("memory");
        swapped.put(16, 2, slot(8)).expect("memory");
        assert_eq!((swapped.slot(18), swapped.slot(24)), (Some(slot(10)), None));
        // Never larger than it went out, although the slots would allow it.
        assert_eq!((swapped.order_of(18), swapped.order_of(21), swapped.order_of(24)), (2, 2, 0));
        assert!(swapped.any(0, 17) && !swapped.any(0, 16) && !swapped.any(24, u64::MAX));
        let mut gone = Vec::new();
        swapped.take(17..18, |slot| gone.push(slot));
        assert_eq!((gone, swapped.slots().count()), (vec![slot(9)], 7));
        assert_eq!((swapped.order_of(16), swapped.order_of(18)), (0, 1));
        assert_eq!(swapped.first_from(17), Some((18, slot(10))));
    }

    #[test]
    fn what_is_lost_is_there_until_it_is_given_up() {
        let mut swapped = Swapped::default();
        swapped.put(16, 1, slot(8)).expect("memory");
        let mut gone = Vec::new();
        swapped.lose(16..18, |slot| gone.push(slot));
        assert_eq!((gone, swapped.slot(17)), (vec![slot(8), slot(9)], None));
        assert_eq!(swapped.first_from(0), None);
        assert!(swapped.is_lost(17) && swapped.any(17, 1) && !swapped.is_lost(18));
        swapped.take(17..20, |_| panic!("no slot is left"));
        assert!(swapped.is_lost(16) && !swapped.is_lost(17) && !swapped.any(17, 9));
    }

    #[test]
    fn the_last_ones_go_first() {
        let mut swapped = Swapped::default();
        swapped.put(16, 2, slot(8)).expect("memory");
        swapped.lose(18..19, |_| ());
        assert_eq!(swapped.take_last(17..19), Some(slot(9)));
        assert!(!swapped.any(17, 2) && swapped.any(19, 1));
        assert_eq!((swapped.take_last(17..19), swapped.take_last(0..99)), (None, Some(slot(11))));
        swapped.lose(16..17, |_| ());
        assert_eq!((swapped.take_last(0..99), swapped.any(0, 99)), (None, false));
    }
}
