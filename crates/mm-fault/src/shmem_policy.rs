//! Which folio sizes shared memory may be filled with.

use crate::OrderSet;
use mm_folio::MAX_ORDERS;
use mm_vma::VmaFlags;

/// The setting of a mount, of one folio size of shared anonymous memory, or of the
/// knob for all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ShmemMode {
    /// Wherever it fits.
    Always,
    /// What the knob for all sizes says; not a value of a mount or of that knob.
    Inherit,
    /// Where the folio lies within the size of the object.
    WithinSize,
    /// Where large folios were asked for.
    Advise,
    /// Nowhere.
    #[default]
    Never,
}

/// A `write` that makes pages of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteAt {
    /// Index of the page.
    pub index: u64,
    /// Pages that are written from there on.
    pub nr_pages: u64,
}

impl WriteAt {
    /// The orders that cover no more than what is written, aligned to their place:
    /// those of a file that has large folios.
    pub const fn orders(self, pmd_order: u32) -> OrderSet {
        let by_size = match self.nr_pages.checked_ilog2() {
            Some(order) => order,
            None => return OrderSet::EMPTY,
        };
        let by_place = if self.index == 0 { by_size } else { self.index.trailing_zeros() };
        let mut order = if by_place < by_size { by_place } else { by_size };
        if order > pmd_order {
            order = pmd_order;
        }
        OrderSet::below(order + 1).without(OrderSet::of(0))
    }
}

/// The settings of shared memory.
///
/// Shared anonymous memory has a setting per folio size; a file lives on a mount that
/// has one setting, and gets folios of the size that a PMD entry maps by faults, of
/// what fits by `write`.
///
/// # Example
///
/// ```
/// use mm_fault::{ShmemMode, ShmemPolicy};
/// use mm_vma::VmaFlags;
///
/// let shmem = ShmemPolicy::NEVER.with_order(4, ShmemMode::WithinSize);
/// let of = |index, size| {
///     shmem.anon_orders(VmaFlags::empty(), index, size).descending().collect::<Vec<_>>()
/// };
/// assert_eq!(of(16, 40), [4]);
/// assert_eq!(of(32, 40), [], "16 pages from 32 on end behind the object");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShmemPolicy {
    global: ShmemMode,
    always: OrderSet,
    within_size: OrderSet,
    advise: OrderSet,
    inherit: OrderSet,
}

impl ShmemPolicy {
    /// Base pages only.
    pub const NEVER: Self = ShmemPolicy {
        global: ShmemMode::Never,
        always: OrderSet::EMPTY,
        within_size: OrderSet::EMPTY,
        advise: OrderSet::EMPTY,
        inherit: OrderSet::EMPTY,
    };

    /// The same with another setting for all sizes that inherit, and for objects
    /// that are on no mount of their own.
    #[must_use]
    pub const fn with_global(mut self, mode: ShmemMode) -> Self {
        self.global = mode;
        self
    }
    /// The setting for all sizes.
    pub const fn global(&self) -> ShmemMode {
        self.global
    }
    /// The same with another setting of the size `order` of shared anonymous memory.
    #[must_use]
    pub const fn with_order(mut self, order: u32, mode: ShmemMode) -> Self {
        let bit = OrderSet::of(order).without(OrderSet::of(0));
        self.always = self.always.without(bit);
        self.within_size = self.within_size.without(bit);
        self.advise = self.advise.without(bit);
        self.inherit = self.inherit.without(bit);
        match mode {
            ShmemMode::Always => self.always = self.always.or(bit),
            ShmemMode::WithinSize => self.within_size = self.within_size.or(bit),
            ShmemMode::Advise => self.advise = self.advise.or(bit),
            ShmemMode::Inherit => self.inherit = self.inherit.or(bit),
            ShmemMode::Never => {}
        }
        self
    }

    /// The orders above 0 of a folio for page `index` of shared anonymous memory of
    /// `size` pages that is mapped with `flags`.
    pub fn anon_orders(&self, flags: VmaFlags, index: u64, size: u64) -> OrderSet {
        if flags.contains(VmaFlags::NOHUGEPAGE) {
            return OrderSet::EMPTY;
        }
        let within = |orders| within_size(orders, index, size);
        let mut orders = self.always.or(within(self.within_size));
        if flags.contains(VmaFlags::HUGEPAGE) {
            orders = orders.or(self.advise);
        }
        match self.global {
            ShmemMode::Always => orders.or(self.inherit),
            ShmemMode::WithinSize => orders.or(within(self.inherit)),
            ShmemMode::Advise if flags.contains(VmaFlags::HUGEPAGE) => orders.or(self.inherit),
            ShmemMode::Advise | ShmemMode::Inherit | ShmemMode::Never => orders,
        }
    }

    /// The orders above 0 of a folio for page `index` of a file of `size` pages on a
    /// mount with the setting `mode`, for a fault in a mapping with `flags`.
    pub fn mount_orders(
        mode: ShmemMode,
        pmd_order: u32,
        flags: VmaFlags,
        index: u64,
        size: u64,
    ) -> OrderSet {
        if flags.contains(VmaFlags::NOHUGEPAGE) {
            return OrderSet::EMPTY;
        }
        let pmd = OrderSet::of(pmd_order);
        let advised = if flags.contains(VmaFlags::HUGEPAGE) { pmd } else { OrderSet::EMPTY };
        match mode {
            ShmemMode::Always => pmd,
            ShmemMode::WithinSize => within_size(pmd, index, size).or(advised),
            ShmemMode::Advise => advised,
            ShmemMode::Inherit | ShmemMode::Never => OrderSet::EMPTY,
        }
    }
    /// The same for a `write`; the object has `size` pages afterwards.
    pub fn write_orders(mode: ShmemMode, pmd_order: u32, write: WriteAt, size: u64) -> OrderSet {
        let orders = write.orders(pmd_order);
        match mode {
            ShmemMode::Always => orders,
            ShmemMode::WithinSize => within_size(orders, write.index, size),
            ShmemMode::Advise | ShmemMode::Inherit | ShmemMode::Never => OrderSet::EMPTY,
        }
    }
}

/// Those of `orders` whose aligned block around page `index` ends within `size`: the
/// largest such order and all smaller ones.
fn within_size(orders: OrderSet, index: u64, size: u64) -> OrderSet {
    let ends_inside = |order: &u32| {
        (*order as usize) < MAX_ORDERS
            && index.checked_add(1).is_some_and(|next| next.next_multiple_of(1 << order) <= size)
    };
    match orders.descending().find(ends_inside) {
        Some(order) => orders.and(OrderSet::below(order + 1)),
        None => OrderSet::EMPTY,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn list(orders: OrderSet) -> Vec<u32> {
        orders.descending().collect()
    }

    #[test]
    fn a_write_gets_what_fits_size_and_place() {
        let at = |index, nr_pages| list(WriteAt { index, nr_pages }.orders(9));
        assert_eq!(at(0, 600).first(), Some(&9));
        assert_eq!(at(512, 88).first(), Some(&6));
        assert_eq!(at(576, 24).first(), Some(&4));
        assert_eq!(at(592, 8), [3, 2, 1]);
        assert_eq!(at(5, 64), []);
        assert_eq!(at(0, 1), []);
        assert_eq!(at(0, 0), []);
        assert_eq!(at(0, 1 << 20).first(), Some(&9));
    }

    #[test]
    fn truth_table_of_mounts() {
        use ShmemMode::{Advise, Always, Never, WithinSize};
        let (plain, huge) = (VmaFlags::empty(), VmaFlags::HUGEPAGE);
        let fault =
            |mode, flags, index| list(ShmemPolicy::mount_orders(mode, 9, flags, index, 600));
        for flags in [plain, huge] {
            assert_eq!(fault(Always, flags, 599), [9]);
            assert_eq!(fault(Never, flags, 0), []);
            assert_eq!(fault(WithinSize, flags, 511), [9]);
        }
        assert_eq!(fault(WithinSize, plain, 512), []);
        assert_eq!(fault(WithinSize, huge, 512), [9]);
        assert_eq!((fault(Advise, plain, 0), fault(Advise, huge, 0)), (Vec::new(), Vec::from([9])));
        assert_eq!(fault(Always, VmaFlags::NOHUGEPAGE, 0), []);
        let write = |mode, index, nr| {
            list(ShmemPolicy::write_orders(mode, 9, WriteAt { index, nr_pages: nr }, 600))
        };
        assert_eq!(write(Always, 512, 88).first(), Some(&6));
        assert_eq!(write(WithinSize, 592, 8).first(), Some(&3));
        assert_eq!((write(Advise, 0, 512), write(Never, 0, 512)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn truth_table_of_shared_anonymous_memory() {
        use ShmemMode::{Advise, Always, Inherit, Never, WithinSize};
        for global in [Always, WithinSize, Advise, Never] {
            for mode in [Always, Inherit, WithinSize, Advise, Never] {
                for huge in [false, true] {
                    for inside in [false, true] {
                        let p = ShmemPolicy::NEVER.with_global(global).with_order(4, mode);
                        let says = |m: ShmemMode| match m {
                            Always => true,
                            WithinSize => inside,
                            Advise => huge,
                            Inherit | Never => false,
                        };
                        let expect = if mode == Inherit { says(global) } else { says(mode) };
                        let mut flags = VmaFlags::empty();
                        flags.set(VmaFlags::HUGEPAGE, huge);
                        let size = if inside { 48 } else { 47 };
                        let got = !p.anon_orders(flags, 40, size).is_empty();
                        assert_eq!(got, expect, "{global:?} {mode:?} {huge} {inside}");
                    }
                }
            }
        }
    }
}
