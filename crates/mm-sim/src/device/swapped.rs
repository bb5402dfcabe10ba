//! The pages of an object that are on a swap device.

use mm_arch::SwapSlot;
use mm_vma::SlotRun;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Pages of an object by index, each of them an entry that counts on its slot, and those that
/// a device did not give back.
#[derive(Debug, Default)]
pub(crate) struct Swapped {
    places: BTreeMap<u64, Place>,
    lost: BTreeSet<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    slot: SwapSlot,
    /// The size of the folio that it went out in.
    order: u32,
}

impl Swapped {
    /// The slot of a page.
    pub fn slot(&self, index: u64) -> Option<SwapSlot> {
        self.places.get(&index).map(|place| place.slot)
    }
    /// The first page.
    pub fn first(&self) -> Option<u64> {
        self.places.keys().next().copied()
    }
    /// Whether one of the `nr` pages from `first` on is swapped out, or lost.
    pub fn any(&self, first: u64, nr: u64) -> bool {
        let range = first..first.saturating_add(nr);
        self.places.range(range.clone()).next().is_some() || self.lost.range(range).next().is_some()
    }
    /// Whether the page cannot be had any more.
    pub fn is_lost(&self, index: u64) -> bool {
        self.lost.contains(&index)
    }
    /// The pages of `range`, all swapped out, cannot be had any more; hands out the slot of
    /// each.
    pub fn lose(&mut self, range: Range<u64>, each: impl FnMut(SwapSlot)) {
        self.take(range.clone(), each);
        self.lost.extend(range);
    }
    /// The pages of a folio of `order`, its first one at `first`, are in slots from `slot`
    /// on.
    pub fn put(&mut self, first: u64, order: u32, slot: SwapSlot) {
        for (i, slot) in SlotRun::new(slot, 1 << order).iter().enumerate() {
            self.places.insert(first + i as u64, Place { slot, order });
        }
    }
    /// The pages from `first` on are in memory or gone; hands out the slot of each.
    pub fn take(&mut self, range: Range<u64>, mut each: impl FnMut(SwapSlot)) {
        self.lost.retain(|index| !range.contains(index));
        for (_, place) in self.places.extract_if(range, |_, _| true) {
            each(place.slot);
        }
    }
    /// The largest order, up to that of the folio that it went out in, in which the page at
    /// `index` can come back: its whole block is here, in a row and aligned.
    pub fn order_of(&self, index: u64) -> u32 {
        let Some(place) = self.places.get(&index) else { return 0 };
        let fits = |order: &u32| {
            let nr = 1u64 << order;
            let first = index & !(nr - 1);
            let slot = self.slot(first).filter(|slot| slot.offset.is_multiple_of(nr));
            slot.is_some_and(|slot| {
                let run = SlotRun::new(slot, nr as u32);
                run.iter().enumerate().all(|(i, slot)| self.slot(first + i as u64) == Some(slot))
            })
        };
        (0..=place.order).rev().find(fits).unwrap_or(0)
    }
    /// The slots of the pages in `range`.
    pub fn slots_of(&self, range: Range<u64>) -> Vec<SwapSlot> {
        self.places.range(range).map(|(_, place)| place.slot).collect()
    }
    /// The slots.
    pub fn slots(&self) -> impl Iterator<Item = SwapSlot> {
        self.places.values().map(|place| place.slot)
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
        swapped.put(16, 2, slot(8));
        swapped.put(20, 2, slot(12));
        assert_eq!((swapped.slot(18), swapped.slot(24)), (Some(slot(10)), None));
        // Never larger than it went out, although the slots would allow it.
        assert_eq!((swapped.order_of(18), swapped.order_of(21), swapped.order_of(24)), (2, 2, 0));
        assert!(swapped.any(0, 17) && !swapped.any(0, 16) && !swapped.any(24, u64::MAX));
        let mut gone = Vec::new();
        swapped.take(17..18, |slot| gone.push(slot));
        assert_eq!((gone, swapped.slots().count()), (vec![slot(9)], 7));
        assert_eq!((swapped.order_of(16), swapped.order_of(18)), (0, 1));
    }

    #[test]
    fn what_is_lost_is_there_until_it_is_given_up() {
        let mut swapped = Swapped::default();
        swapped.put(16, 1, slot(8));
        let mut gone = Vec::new();
        swapped.lose(16..18, |slot| gone.push(slot));
        assert_eq!((gone, swapped.slot(17), swapped.first()), (vec![slot(8), slot(9)], None, None));
        assert!(swapped.is_lost(17) && swapped.any(17, 1) && !swapped.is_lost(18));
        swapped.take(17..20, |_| panic!("no slot is left"));
        assert!(swapped.is_lost(16) && !swapped.is_lost(17) && !swapped.any(17, 9));
    }
}
