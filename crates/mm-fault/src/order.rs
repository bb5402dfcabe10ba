//! Which folio sizes an anonymous fault may use.

use crate::dispatch::Fault;
use core::fmt;
use mm_arch::{Arch, Level, VirtAddr, VirtRange};
use mm_folio::{AllocError, Effort, FolioRef, Get, MAX_ORDERS};
use mm_pgtable::Step;
use mm_rmap::RmapPlatform;
use mm_vma::VmaFlags;

/// A set of folio orders.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct OrderSet(u32);

impl OrderSet {
    /// No order.
    pub const EMPTY: Self = OrderSet(0);
    /// The orders that large anonymous folios may have: 2 and up. One of order 1
    /// has no room for what its mappings are tracked with.
    pub const LARGE_ANON: Self = OrderSet((1 << MAX_ORDERS) - (1 << 2));

    /// The set of `order` alone, empty if no folio has that order.
    pub const fn of(order: u32) -> Self {
        if (order as usize) < MAX_ORDERS { OrderSet(1 << order) } else { Self::EMPTY }
    }
    /// The orders below `order`.
    pub const fn below(order: u32) -> Self {
        if (order as usize) < MAX_ORDERS {
            OrderSet((1 << order) - 1)
        } else {
            OrderSet((1 << MAX_ORDERS) - 1)
        }
    }
    /// Whether `order` is in the set.
    pub const fn contains(self, order: u32) -> bool {
        self.0 & Self::of(order).0 != 0
    }
    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// What is in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        OrderSet(self.0 & other.0)
    }
    /// What is in either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        OrderSet(self.0 | other.0)
    }
    /// What is in this set but not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        OrderSet(self.0 & !other.0)
    }
    /// The orders, highest first.
    pub fn descending(self) -> impl Iterator<Item = u32> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let order = rest.checked_ilog2()?;
            rest &= !(1 << order);
            Some(order)
        })
    }
}

impl fmt::Debug for OrderSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.descending()).finish()
    }
}

/// The machine-wide setting of large folios.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ThpMode {
    /// Wherever they fit.
    Always,
    /// Where they were asked for.
    Madvise,
    /// Nowhere.
    #[default]
    Never,
}

/// What a large folio may cost whose memory is not free (rule ANON-09).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Defrag {
    /// Room is made at once.
    Always,
    /// Room is made in the background, for the next one.
    Defer,
    /// At once where large folios were asked for, in the background elsewhere.
    DeferMadvise,
    /// At once where large folios were asked for, not at all elsewhere.
    #[default]
    Madvise,
    /// Only free memory is used.
    Never,
}

/// The setting of one folio size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OrderMode {
    /// Wherever it fits.
    Always,
    /// Where large folios were asked for.
    Madvise,
    /// What the machine-wide setting says.
    Inherit,
    /// Nowhere.
    #[default]
    Never,
}

/// Which folio sizes anonymous memory may be filled with (rule ANON-07).
///
/// # Example
///
/// ```
/// use mm_fault::{OrderMode, ThpMode, ThpPolicy};
/// use mm_vma::VmaFlags;
///
/// // 64K folios everywhere; 2M folios where they were asked for.
/// let thp = ThpPolicy::new(9).with_global(ThpMode::Madvise).with_order(4, OrderMode::Always);
/// let of = |flags| thp.orders(flags).descending().collect::<Vec<_>>();
/// assert_eq!(of(VmaFlags::empty()), [4]);
/// assert_eq!(of(VmaFlags::HUGEPAGE), [9, 4]);
/// assert_eq!(of(VmaFlags::NOHUGEPAGE), []);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThpPolicy {
    global: ThpMode,
    always: OrderSet,
    madvise: OrderSet,
    inherit: OrderSet,
    /// Whether read faults may map the huge zero folio.
    pub zero_page: bool,
    /// What a large folio may cost.
    pub defrag: Defrag,
}

impl ThpPolicy {
    /// The settings a machine starts with: the size that a PMD entry maps
    /// inherits, all others and the machine-wide setting are "never".
    pub const fn new(pmd_order: u32) -> Self {
        ThpPolicy {
            global: ThpMode::Never,
            always: OrderSet::EMPTY,
            madvise: OrderSet::EMPTY,
            inherit: OrderSet::of(pmd_order).and(OrderSet::LARGE_ANON),
            zero_page: true,
            defrag: Defrag::Madvise,
        }
    }
    /// The same with another machine-wide setting.
    #[must_use]
    pub const fn with_global(mut self, mode: ThpMode) -> Self {
        self.global = mode;
        self
    }
    /// The same with another setting of the size `order`. Orders that no large
    /// anonymous folio can have are never used.
    #[must_use]
    pub const fn with_order(mut self, order: u32, mode: OrderMode) -> Self {
        let bit = OrderSet::of(order).and(OrderSet::LARGE_ANON);
        self.always = self.always.without(bit);
        self.madvise = self.madvise.without(bit);
        self.inherit = self.inherit.without(bit);
        match mode {
            OrderMode::Always => self.always = self.always.or(bit),
            OrderMode::Madvise => self.madvise = self.madvise.or(bit),
            OrderMode::Inherit => self.inherit = self.inherit.or(bit),
            OrderMode::Never => {}
        }
        self
    }
    /// The same with or without huge zero folios for read faults.
    #[must_use]
    pub const fn with_zero_page(mut self, yes: bool) -> Self {
        self.zero_page = yes;
        self
    }
    /// What a large folio of a mapping with `flags` may cost (rule ANON-09).
    pub const fn effort(&self, flags: VmaFlags) -> Effort {
        match (self.defrag, flags.contains(VmaFlags::HUGEPAGE)) {
            (Defrag::Always, _) | (Defrag::DeferMadvise | Defrag::Madvise, true) => Effort::Direct,
            (Defrag::Defer, _) | (Defrag::DeferMadvise, false) => Effort::Background,
            (Defrag::Madvise, false) | (Defrag::Never, _) => Effort::Free,
        }
    }
    /// The orders above 0 that a mapping with `flags` may use.
    ///
    /// None in a shadow stack, whatever was asked for (rules BATCH-23, BATCH-25):
    /// there the dirty bit is the write permission, and a scan over a large
    /// folio would mistake one for the other.
    pub const fn orders(&self, flags: VmaFlags) -> OrderSet {
        if flags.intersects(VmaFlags::NOHUGEPAGE.union(VmaFlags::SHADOW_STACK)) {
            return OrderSet::EMPTY;
        }
        let advised = flags.contains(VmaFlags::HUGEPAGE);
        let mut orders = self.always;
        if advised {
            orders = orders.or(self.madvise);
        }
        let inherits = match self.global {
            ThpMode::Always => true,
            ThpMode::Madvise => advised,
            ThpMode::Never => false,
        };
        if inherits { orders.or(self.inherit) } else { orders }
    }
}

impl<'m, P: RmapPlatform> Fault<'_, 'm, P> {
    /// The naturally aligned block of `order` around the fault, if the mapping
    /// covers it.
    pub(crate) fn block(&self, order: u32) -> Option<VirtRange> {
        self.vma.block(self.va, order)
    }

    /// A large folio for the mapping, for no more than it may cost.
    pub(crate) fn alloc_large(&self, order: u32) -> Result<FolioRef<'m, P, Get>, AllocError> {
        self.memmap().alloc_by(order, self.policy.thp.effort(self.vma.flags()))
    }

    /// The orders to try for a missing page, within one PTE table (rule
    /// ANON-06): those the policy allows, up to the highest whose block lies in
    /// the mapping and is empty. Empty if only a single page will do.
    ///
    /// A peek without the lock; whoever installs looks again.
    pub(crate) fn candidates(&self) -> OrderSet {
        let pmd_order = <P::Arch as Arch>::order(Level::Pmd);
        let allowed = self.policy.thp.orders(self.vma.flags()).and(OrderSet::below(pmd_order));
        if allowed.is_empty() || self.vma.flags().intersects(VmaFlags::UFFD_ANY) {
            return OrderSet::EMPTY;
        }
        let guard = self.tables().pin();
        let Step::Table(_, table) = guard.walk(self.va) else {
            return OrderSet::EMPTY;
        };
        let is_empty = |start: VirtAddr, nr: usize| {
            let first = table.index_of(start);
            table.none_run(first, table.limit(first).at_most(nr)) == nr
        };
        for order in allowed.descending() {
            if let Some(block) = self.block(order)
                && is_empty(block.start(), 1 << order)
            {
                return allowed.and(OrderSet::below(order + 1));
            }
        }
        OrderSet::EMPTY
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn allows(global: ThpMode, mode: OrderMode, flags: VmaFlags) -> bool {
        let thp = ThpPolicy::new(9).with_global(global).with_order(4, mode);
        thp.orders(flags).contains(4)
    }

    /// Rules: ANON-07. Rows: S-AN1.
    #[test]
    fn truth_table_of_the_policy() {
        use OrderMode::{Always as A, Inherit as I, Madvise as M, Never as N};
        let none = VmaFlags::empty();
        let (huge, no) = (VmaFlags::HUGEPAGE, VmaFlags::NOHUGEPAGE);
        for global in [ThpMode::Always, ThpMode::Madvise, ThpMode::Never] {
            for mode in [A, M, I, N] {
                let plain = mode == A || (mode == I && global == ThpMode::Always);
                let advised = plain || mode == M || (mode == I && global == ThpMode::Madvise);
                assert_eq!(allows(global, mode, none), plain, "{global:?} {mode:?}");
                assert_eq!(allows(global, mode, huge), advised, "{global:?} {mode:?}");
                assert!(!allows(global, mode, no) && !allows(global, mode, huge | no));
            }
        }
        let start = ThpPolicy::new(9);
        assert!(start.orders(huge).is_empty());
        let madvise = start.with_global(ThpMode::Madvise);
        assert_eq!(madvise.orders(huge), OrderSet::of(9));
    }

    /// Rules: ANON-09.
    #[test]
    fn effort_by_setting_and_advice() {
        for (defrag, plain, advised) in [
            (Defrag::Always, Effort::Direct, Effort::Direct),
            (Defrag::Defer, Effort::Background, Effort::Background),
            (Defrag::DeferMadvise, Effort::Background, Effort::Direct),
            (Defrag::Madvise, Effort::Free, Effort::Direct),
            (Defrag::Never, Effort::Free, Effort::Free),
        ] {
            let thp = ThpPolicy { defrag, ..ThpPolicy::new(9) };
            assert_eq!(thp.effort(VmaFlags::empty()), plain, "{defrag:?}");
            assert_eq!(thp.effort(VmaFlags::HUGEPAGE), advised, "{defrag:?}");
        }
    }

    /// Rules: BATCH-23, BATCH-25.
    #[test]
    fn a_shadow_stack_gets_single_pages() {
        let thp = (0..MAX_ORDERS as u32)
            .fold(ThpPolicy::new(9).with_global(ThpMode::Always), |thp, order| {
                thp.with_order(order, OrderMode::Always)
            });
        assert_eq!(thp.orders(VmaFlags::empty()), OrderSet::LARGE_ANON);
        assert!(thp.orders(VmaFlags::SHADOW_STACK | VmaFlags::HUGEPAGE).is_empty());
    }

    /// Rules: FOLIO-51.
    #[test]
    fn orders_without_room_for_tracking_are_refused() {
        let thp =
            ThpPolicy::new(1).with_order(0, OrderMode::Always).with_order(1, OrderMode::Always);
        assert!(thp.with_global(ThpMode::Always).orders(VmaFlags::HUGEPAGE).is_empty());
        assert!(OrderSet::of(40).is_empty() && OrderSet::below(40).contains(20));
        let set = OrderSet::of(2).or(OrderSet::of(9)).or(OrderSet::of(4));
        assert!(set.descending().eq([9, 4, 2]));
    }
}
