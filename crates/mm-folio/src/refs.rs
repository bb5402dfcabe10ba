//! References and pins as values.

use crate::record::{Compound, Record};
use crate::{Folio, FolioSpace, MemMap};
use core::fmt;
use core::marker::PhantomData;
use mm_arch::Pfn;
use mm_sync::atomic::Ordering::{Acquire, Relaxed};
use mm_sync::{fence_after_rmw, hint, mutant, ord};

/// How many references one pin of a folio without a count of pins is worth
/// (rule PIN-01).
pub const PIN_BIAS: u32 = 1024;

/// The most units one unchecked add may take: with less than a thousand
/// threads in the same window the count cannot pass from its limit to zero.
const FAST_UNITS: u32 = 1 << 21;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Get {}
    impl Sealed for super::Pin {}
}

/// What kind of hold a [`FolioRef`] is.
pub trait RefKind: sealed::Sealed + Send + Sync + 'static {
    /// Whether the holder accesses the *content* and must be seen by those who
    /// would share, move or discard it.
    const PINS: bool;
}

/// A plain reference: the record stays, the content may be shared or moved on.
#[derive(Clone, Copy, Debug)]
pub enum Get {}
/// A pin: the content stays where it is and stays that of the mapping.
#[derive(Clone, Copy, Debug)]
pub enum Pin {}

impl RefKind for Get {
    const PINS: bool = false;
}
impl RefKind for Pin {
    const PINS: bool = true;
}

/// Why a stable folio could not be grabbed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GrabError {
    /// The count of references is at its limit, or the folio is being freed.
    /// Nothing was changed (rules PIN-04, PIN-11).
    #[error("folio {head} holds {refs} references: {wanted} more do not fit")]
    Count {
        /// The folio.
        head: Pfn,
        /// Its references, as a signed number.
        refs: i32,
        /// How many references or pins were asked for.
        wanted: u32,
    },
}

impl GrabError {
    fn of<F: FolioSpace>(folio: Folio<'_, F>, refs: i32, wanted: u32) -> Self {
        GrabError::Count { head: folio.head(), refs, wanted }
    }
}

/// Consecutive pages of one folio, each of them held once: the raw form of a
/// [`FolioRef`], for lists of results. Given back with [`MemMap::put_run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FolioRun {
    /// Head of the folio.
    pub head: Pfn,
    /// Index in the folio of the first page.
    pub first: u32,
    /// Number of pages.
    pub nr: u32,
}

impl FolioRun {
    /// `nr` pages from index `first` of the folio at `head`.
    #[inline]
    pub const fn new(head: Pfn, first: u32, nr: u32) -> Self {
        FolioRun { head, first, nr }
    }
    /// The frames of the pages.
    #[inline]
    pub fn pages(&self) -> impl ExactSizeIterator<Item = Pfn> + use<> {
        let first = self.head.add(u64::from(self.first));
        (0..self.nr).map(move |i| first.add(u64::from(i)))
    }
}

/// Owns `n` references, or pins, of a folio; gives them back when dropped.
#[must_use = "the references are given back when this is dropped"]
pub struct FolioRef<'m, F: FolioSpace, K: RefKind> {
    folio: Folio<'m, F>,
    n: u32,
    // Known from the word that the grab compared: hot paths need not load it again.
    large: bool,
    _kind: PhantomData<K>,
}

impl<'m, F: FolioSpace, K: RefKind> FolioRef<'m, F, K> {
    #[inline]
    pub(crate) fn from_counted(folio: Folio<'m, F>, n: u32) -> Self {
        FolioRef { folio, n, large: folio.is_large(), _kind: PhantomData }
    }
    /// Whether the folio has more than one page; costs no load.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.large
    }
    /// The folio.
    #[inline]
    pub fn folio(&self) -> Folio<'m, F> {
        self.folio
    }
    /// How many references or pins this owns.
    #[inline]
    pub fn n(&self) -> u32 {
        self.n
    }
    /// Takes `by` more, in one step.
    ///
    /// # Errors
    ///
    /// If they do not fit; what is owned is unchanged (rule MM-028).
    #[inline]
    pub fn grow(&mut self, by: u32) -> Result<(), GrabError> {
        // Of the zero page any number of pins fits.
        let Some(n) = self.n.checked_add(by) else {
            return Err(GrabError::of(self.folio, self.folio.refcount(), by));
        };
        self.folio.add_stable::<K>(by)?;
        self.n = n;
        Ok(())
    }
    /// Takes over what `other` owns.
    ///
    /// # Errors
    ///
    /// Gives `other` back if it is of another folio, or both own more than one number says (pins
    /// of the zero page, which nothing counts).
    pub fn merge(&mut self, other: Self) -> Result<(), Self> {
        match self.n.checked_add(other.n) {
            Some(n) if other.folio == self.folio => self.n = n,
            _ => return Err(other),
        }
        core::mem::forget(other);
        Ok(())
    }
    /// Parts with `n` of them; `None` if this owns fewer.
    pub fn split_off(&mut self, n: u32) -> Option<Self> {
        self.n = self.n.checked_sub(n)?;
        Some(FolioRef::from_counted(self.folio, n))
    }
    /// The raw form: the pages from index `first` on, which are not given back
    /// by dropping anything.
    #[inline]
    pub fn into_run(self, first: u32) -> FolioRun {
        let run = FolioRun { head: self.folio.head(), first, nr: self.n };
        core::mem::forget(self);
        run
    }
    /// Hands the references over to what the caller has entered elsewhere: one
    /// per mapping, one per page of a cache (rule FOLIO-01).
    #[inline]
    pub fn hand_over(self) -> Folio<'m, F> {
        let folio = self.folio;
        core::mem::forget(self);
        folio
    }
}

impl<F: FolioSpace, K: RefKind> Drop for FolioRef<'_, F, K> {
    #[inline]
    fn drop(&mut self) {
        if self.n > 0 {
            self.folio.map.put_counted::<K>(self.folio.head, self.n);
        }
    }
}

impl<F: FolioSpace, K: RefKind> fmt::Debug for FolioRef<'_, F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if K::PINS { "pins" } else { "references" };
        write!(f, "{} {kind} of {:?}", self.n, self.folio)
    }
}

/// Adds `units` unless the count is zero, or they do not fit.
#[inline(always)]
fn add_unless_zero(head: &Record, units: u32) -> bool {
    let refs = &head.refs;
    if mutant!("folio.get.not_unless_zero") {
        refs.fetch_add(units, Acquire);
        return true;
    }
    let mut seen = refs.load(Relaxed);
    loop {
        let fits = (seen as i32) > 0 && (seen as i32).checked_add_unsigned(units).is_some();
        if !fits {
            return false;
        }
        // Acquire pairs with the Release that published the folio in its
        // present shape: alloc, unfreeze.
        let published = ord!("folio.get", Acquire);
        match refs.compare_exchange_weak(seen, seen + units, published, Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
}

/// A page as somebody without lock or reference found it: it may be freed, split
/// or reused at any time.
pub struct Glance<'m, F: FolioSpace> {
    map: &'m MemMap<F>,
    page: usize,
    record: &'m Record,
    seen: Compound,
}

impl<'m, F: FolioSpace> Glance<'m, F> {
    /// Whether it was a page of a large folio.
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        !self.seen.is_small()
    }

    /// How many pages the folio had from this one on; at least 1.
    #[inline(always)]
    pub fn pages_left(&self) -> usize {
        let distance = self.seen.distance();
        let order = if self.seen.is_tail() {
            self.map.record(self.page - distance).compound().order()
        } else {
            self.seen.order()
        };
        (1usize << order).saturating_sub(distance).max(1)
    }

    /// Takes `n` references or pins of the folio that the page belongs to by
    /// then. `None` if it is not there any more, or its count is at the limit.
    ///
    /// A full barrier stands behind the grab: whoever clears an entry and then,
    /// behind a barrier of its own, looks at the counts either sees this grab or
    /// is seen by the caller's second look at the entry (rule RMAP-19).
    ///
    /// Pins of the zero page succeed without counting anything (rule PIN-03).
    ///
    /// # Panics
    ///
    /// In debug builds, if `n` is 0.
    #[inline(always)]
    pub fn grab<K: RefKind>(self, n: u32) -> Option<FolioRef<'m, F, K>> {
        debug_assert!(n > 0);
        let Glance { map, page, record, mut seen } = self;
        let folio = loop {
            if K::PINS && seen.is_zero_page() {
                return Some(FolioRef::from_counted(Folio { map, head: page, record }, n));
            }
            let head = page - seen.distance();
            let folio = Folio { map, head, record: map.record(head) };
            // A small folio gets all units of a pin at once. What a large one
            // needs is known when it is stable.
            let units = if K::PINS && seen.is_small() { n.checked_mul(PIN_BIAS)? } else { n };
            if !add_unless_zero(folio.record, units) {
                return None;
            }
            // The page may have left that folio in between (rule PIN-06). With
            // a reference on it, it cannot leave any more.
            let now = record.compound();
            if now == seen || mutant!("folio.no_head_recheck") {
                break folio;
            }
            map.put_units(head, units);
            hint::spin_loop();
            seen = record.compound();
        };
        if K::PINS {
            if !seen.is_small() && !map.pin_stable(folio, n) {
                return None;
            }
            fence_after_rmw!("gup.pin.mb");
        } else {
            fence_after_rmw!("gup.get.mb");
        }
        Some(FolioRef { folio, n, large: !seen.is_small(), _kind: PhantomData })
    }
}

impl<F: FolioSpace> fmt::Debug for Glance<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Glance({} {:?})", self.map.pfn(self.page), self.seen)
    }
}

impl<F: FolioSpace> MemMap<F> {
    /// The page `pfn` and what it is at this moment, if the map has a record of
    /// it. Nothing is held, so nothing is sure: see [`Glance::grab`].
    #[inline(always)]
    pub fn glance(&self, pfn: Pfn) -> Option<Glance<'_, F>> {
        let (page, record) = self.lookup(pfn)?;
        Some(Glance { map: self, page, record, seen: record.compound() })
    }

    /// Takes `n` references or pins of the folio of `pfn`: see [`Glance::grab`].
    #[inline(always)]
    pub fn try_grab<K: RefKind>(&self, pfn: Pfn, n: u32) -> Option<FolioRef<'_, F, K>> {
        self.glance(pfn)?.grab(n)
    }

    /// A reference for the deferred-split scan, unless the folio is dying.
    pub(crate) fn grab_queued(&self, head: usize) -> bool {
        add_unless_zero(self.record(head), 1)
    }

    /// Turns `n` fresh references of a large folio into pins; drops them and
    /// returns `false` if that does not fit.
    #[inline]
    fn pin_stable(&self, folio: Folio<'_, F>, n: u32) -> bool {
        if folio.has_pincount() {
            folio.pins_word().fetch_add(u64::from(n), Relaxed);
            return true;
        }
        let more = n.checked_mul(PIN_BIAS - 1);
        if more.is_some_and(|more| add_unless_zero(folio.head_record(), more)) {
            return true;
        }
        self.put_units(folio.head, n);
        false
    }

    #[inline]
    fn put_counted<K: RefKind>(&self, head: usize, n: u32) {
        let folio = self.folio_at(head);
        let mut units = n;
        if K::PINS {
            if folio.is_zero_page() {
                return;
            }
            if folio.has_pincount() {
                if mutant!("folio.unpin.late") {
                    self.put_units(head, n);
                    self.record(head).content.used();
                    folio.pins_word().fetch_sub(u64::from(n), Relaxed);
                    return;
                }
                // Before the references: a count of pins never outlives the
                // folio (rule PIN-09). Release: our accesses to the pages come
                // before a sharer's that saw no pin.
                let old = folio.pins_word().fetch_sub(u64::from(n), ord!("folio.unpin", Release));
                debug_assert!(old as u32 >= n, "{n} pins dropped of {}", old as u32);
            } else {
                units = n.wrapping_mul(PIN_BIAS);
            }
        }
        self.put_units(head, units);
    }

    /// Gives back one reference or pin per page of `run`, in one step.
    #[inline]
    pub fn put_run<K: RefKind>(&self, run: FolioRun) {
        if run.nr > 0 {
            self.put_counted::<K>(self.index(run.head), run.nr);
        }
    }
}

impl<'m, F: FolioSpace> Folio<'m, F> {
    #[inline]
    pub(crate) fn pins_word(&self) -> &'m mm_sync::atomic::AtomicU64 {
        &self.tail(1).words[1]
    }
    #[inline]
    pub(crate) fn has_pincount(&self) -> bool {
        self.order() >= self.map.pincount_min_order
    }

    /// Adds `n` references or pins to a folio that is stable.
    #[inline]
    fn add_stable<K: RefKind>(&self, n: u32) -> Result<(), GrabError> {
        if K::PINS && self.is_zero_page() {
            return Ok(());
        }
        let refs = &self.head_record().refs;
        let counted = self.has_pincount();
        let error = |refs: u32| GrabError::of(*self, refs as i32, n);
        let units = if K::PINS && !counted {
            n.checked_mul(PIN_BIAS).ok_or_else(|| error(refs.load(Relaxed)))?
        } else {
            n
        };
        let fits = |c: u32| (c as i32) > 0 && (c as i32).checked_add_unsigned(units).is_some();
        if units > FAST_UNITS {
            if !add_unless_zero(self.head_record(), units) {
                return Err(error(refs.load(Relaxed)));
            }
        } else {
            let old = refs.fetch_add(units, Relaxed);
            if !fits(old) {
                // At the limit. Until this is undone others may be refused, too;
                // nobody uses the excess.
                refs.fetch_sub(units, Relaxed);
                return Err(error(old));
            }
        }
        if K::PINS && counted {
            self.pins_word().fetch_add(u64::from(n), Relaxed);
        }
        Ok(())
    }

    /// Takes `n` references or pins of this folio, which the caller knows to be
    /// stable (rule PIN-04).
    ///
    /// # Errors
    ///
    /// If the count is not positive or would pass its limit; nothing is changed.
    ///
    /// # Panics
    ///
    /// In debug builds, if `n` is 0.
    #[inline]
    pub fn grab<K: RefKind>(&self, n: u32) -> Result<FolioRef<'m, F, K>, GrabError> {
        debug_assert!(n > 0);
        self.add_stable::<K>(n)?;
        if K::PINS {
            fence_after_rmw!("gup.pin.mb");
        }
        Ok(FolioRef::from_counted(*self, n))
    }

    /// The count of references, signed as the limit checks see it.
    #[inline]
    pub fn refcount(&self) -> i32 {
        self.head_record().refs.load(Relaxed) as i32
    }
    /// The count of pins of a folio that has one; else 0.
    #[inline]
    pub fn pincount(&self) -> u32 {
        if self.has_pincount() { self.pins_word().load(Relaxed) as u32 } else { 0 }
    }
    /// Whether a page of the folio may be pinned: exact for a folio with a
    /// count of pins; for others also true with 1024 plain references or
    /// more (rules FOLIO-26, PIN-10, MM-012). Be conservative on `true`.
    ///
    /// Who decides on it executes a full barrier first.
    #[inline]
    pub fn maybe_dma_pinned(&self) -> bool {
        // Acquire pairs with the Release of giving a pin back: the pinner's
        // accesses to the pages are over.
        if self.has_pincount() {
            self.pins_word().load(ord!("folio.pinned", Acquire)) > 0
        } else {
            // Unsigned: a count that overflowed reads as pinned.
            self.head_record().refs.load(ord!("folio.pinned", Acquire)) >= PIN_BIAS
        }
    }

    /// If exactly `n` references exist, takes all of them: nobody can get a new
    /// one until [`unfreeze`](Self::unfreeze) (rule FOLIO-07).
    #[must_use]
    pub fn freeze(&self, n: u32) -> bool {
        debug_assert!(n > 0);
        if mutant!("folio.freeze.two_steps") {
            let refs = &self.head_record().refs;
            let all = refs.load(Acquire) == n;
            if all {
                refs.store(0, Relaxed);
            }
            return all;
        }
        // Acquire pairs with the Release of every put: what former holders did
        // to the folio comes before what we do to it.
        self.head_record()
            .refs
            .compare_exchange(n, 0, ord!("folio.freeze", Acquire), Relaxed)
            .is_ok()
    }
    /// Ends a freeze with `n` references, all of them the caller's to assign.
    pub fn unfreeze(&self, n: u32) {
        debug_assert!(n > 0 && self.refcount() == 0);
        // Release pairs with the Acquire of a grab: records first, count last.
        self.head_record().refs.store(n, ord!("folio.unfreeze", Release));
    }

    /// The lock of a part of a folio that was [split](Self::split_frozen) while it was
    /// locked: its parts inherited that. For the one who split it, once per part; the
    /// part that begins where the folio did is locked by the guard that the folio was.
    pub fn inherited_lock(&self) -> crate::FolioLockGuard<'m, F> {
        debug_assert!(self.has(crate::FolioFlags::LOCKED));
        crate::FolioLockGuard::held(*self)
    }
    /// Rewrites the records of this frozen, unmapped folio as folios of order
    /// `order`, all of them still frozen. The caller unfreezes each of them,
    /// this one last (rule FOLIO-55).
    ///
    /// The new folios inherit flags, tree or file, and their part of the linear
    /// index; stale exclusive marks of pages that become heads are dropped (rules
    /// FOLIO-54, EXCL-05).
    ///
    /// # Panics
    ///
    /// If the folio is not frozen, is mapped, or `order` is not smaller.
    pub fn split_frozen(&self, order: u32) {
        let (old, head) = (self.order(), self.head_record());
        assert!(order < old, "order {old} does not split to {order}");
        assert!(self.refcount() == 0 && self.mapcount() == 0, "a split needs all references");
        self.unqueue_deferred();
        let flags = self.flags() & crate::FolioFlags::INHERITED;
        let mapping = head.words[0].load(Relaxed);
        let index = head.words[1].load(Relaxed);
        if self.is_anon() {
            self.map.stats.order[old as usize].nr_anon.sub(1);
            if order > 0 {
                self.map.stats.order[order as usize].nr_anon.add(1 << (old - order));
            }
        }
        let per = 1usize << order;
        // Asked for only where there are any: records are written, not read, here.
        let poisoned = self.has(crate::FolioFlags::HWPOISON);
        let was = |i: usize| if poisoned { self.tail(i).compound() } else { Compound::FREE };
        let any_poisoned = |first: usize| (first..first + per).any(|i| was(i).is_poisoned());
        // From the end: tail 1 holds counts that `self` is read by.
        for i in (0..1usize << old).rev() {
            let rec = self.tail(i);
            let (was, any) = (was(i), i % per == 0 && any_poisoned(i));
            rec.clear();
            if i % per == 0 {
                rec.words[0].store(mapping, Relaxed);
                rec.words[1].store(index + i as u64, Relaxed);
                // Visible before the page stops being a tail: the unfreeze
                // that lets anybody in releases both.
                let mut flags = flags;
                flags.set(crate::FolioFlags::HWPOISON, any);
                rec.flags.store(flags.bits(), Relaxed);
                rec.compound.store(Compound::head(order).as_poisoned_as(was).0, Relaxed);
                if i > 0 {
                    self.map.clear_exclusive(self.map.pfn(self.head + i), 1);
                }
            } else {
                let tail = Compound::tail((i % per) as u32);
                rec.compound.store(tail.as_poisoned_as(was).0, Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::*;
    use std::vec::Vec;

    fn state(f: Folio<'_, Space>) -> (i32, u32) {
        (f.refcount(), f.pincount())
    }
    fn with_refs(f: Folio<'_, Space>, refs: i32) {
        f.head_record().refs.store(refs as u32, Relaxed);
    }

    /// Rules: PIN-01, FOLIO-25.
    #[test]
    fn what_gets_and_pins_are_worth() {
        let map = map(64);
        for (order, n, get, pin) in [
            (0u32, 1u32, (2, 0), (1 + 1024, 0)),
            (0, 3, (4, 0), (1 + 3 * 1024, 0)),
            (1, 2, (3, 0), (3, 2)),
            (4, 1, (2, 0), (2, 1)),
            (4, 16, (17, 0), (17, 16)),
        ] {
            let own = map.alloc(order).expect("frames");
            let f = own.folio();
            let last = f.page(f.nr_pages() - 1);
            let held = map.try_grab::<Get>(last, n).expect("alive");
            assert_eq!(state(f), get, "order {order}, fast");
            drop(held);
            let held = f.grab::<Get>(n).expect("room");
            assert_eq!(state(f), get, "order {order}, slow");
            drop(held);
            let held = map.try_grab::<Pin>(last, n).expect("alive");
            assert_eq!((state(f), f.maybe_dma_pinned()), (pin, true), "order {order}, fast");
            drop(held);
            let held = f.grab::<Pin>(n).expect("room");
            assert_eq!((state(f), f.maybe_dma_pinned()), (pin, true), "order {order}, slow");
            map.put_run::<Pin>(held.into_run(0));
            assert_eq!((state(f), f.maybe_dma_pinned()), ((1, 0), false));
        }
    }

    /// Rules: PIN-02.
    #[test]
    fn order_one_without_room_for_a_count_of_pins() {
        let source = Frames::new(7, 64);
        let map = MemMap::<Space>::with_pincount_from(Pfn::new(7), 64, source, 2).expect("memory");
        let own = map.alloc(1).expect("frames");
        let f = own.folio();
        let fast = map.try_grab::<Pin>(f.page(1), 2).expect("alive");
        assert_eq!((state(f), f.maybe_dma_pinned()), ((1 + 2048, 0), true));
        let slow = f.grab::<Pin>(1).expect("room");
        assert_eq!(state(f), (1 + 3 * 1024, 0));
        drop((fast, slow));
        assert_eq!(state(f), (1, 0));
        let own = map.alloc(2).expect("frames");
        let pin = map.try_grab::<Pin>(own.folio().page(3), 1).expect("alive");
        assert_eq!(state(own.folio()), (2, 1));
        drop(pin);
    }

    /// Rules: PIN-03, PIN-04.
    #[test]
    fn pins_of_the_zero_page_are_no_more_than_a_number_says() {
        let map = map(64);
        let zero = map.alloc(0).expect("frames").hand_over();
        map.set_zero_page(zero.head());
        let mut many = zero.grab::<Pin>(u32::MAX).expect("nothing is counted");
        assert!(many.grow(1).is_err());
        let more = many.merge(zero.grab::<Pin>(1).expect("nothing is counted")).expect_err("full");
        assert_eq!((many.n(), more.n(), zero.refcount()), (u32::MAX, 1, 1));
        let mut few = many.split_off(7).expect("as many");
        assert!(few.merge(more).is_ok() && few.grow(2).is_ok());
        assert_eq!((few.n(), many.n()), (10, u32::MAX - 7));
    }

    /// Rules: PIN-10, FOLIO-26, MM-012.
    #[test]
    fn maybe_pinned_is_a_threshold_or_a_count() {
        let map = map(64);
        let (small, large) = (map.alloc(0).expect("frames"), map.alloc(4).expect("frames"));
        for (refs, pinned) in [(1, false), (1023, false), (1024, true), (-1, true), (-1024, true)] {
            with_refs(small.folio(), refs);
            assert_eq!(small.folio().maybe_dma_pinned(), pinned, "{refs} references");
        }
        with_refs(small.folio(), 1);
        with_refs(large.folio(), 5000);
        assert!(!large.folio().maybe_dma_pinned());
        let pin = map.try_grab::<Pin>(large.folio().page(3), 1).expect("alive");
        assert!(large.folio().maybe_dma_pinned());
        drop(pin);
        with_refs(large.folio(), 1);
    }

    /// Rules: PIN-04, PIN-11, PIN-19, MM-028.
    #[test]
    fn nothing_is_changed_at_the_limit() {
        let map = map(64);
        let (small, large) = (map.alloc(0).expect("frames"), map.alloc(4).expect("frames"));
        for own in [&small, &large] {
            let f = own.folio();
            with_refs(f, i32::MAX - 2);
            let mut get = map.try_grab::<Get>(f.head(), 1).expect("room for two");
            get.grow(1).expect("room for one");
            assert!(get.grow(1).is_err());
            assert_eq!((get.n(), f.refcount()), (2, i32::MAX));
            assert!(map.try_grab::<Get>(f.head(), 1).is_none());
            assert!(map.try_grab::<Pin>(f.head(), 1).is_none());
            assert!(f.grab::<Pin>(1).is_err());
            assert_eq!(state(f), (i32::MAX, 0));
            drop(get);
            assert_eq!(f.refcount(), i32::MAX - 2);
            // A batch takes all of the rest or none of it.
            with_refs(f, i32::MAX - 3);
            let mut one = f.grab::<Get>(1).expect("room");
            let error = one.grow(15).expect_err("no room");
            assert_eq!(error, GrabError::Count { head: f.head(), refs: i32::MAX - 2, wanted: 15 });
            assert_eq!((one.n(), f.refcount()), (1, i32::MAX - 2));
            drop(one);
            // Free or frozen, and negative.
            for refs in [0, -5, i32::MIN] {
                with_refs(f, refs);
                assert!(map.try_grab::<Get>(f.head(), 1).is_none());
                assert!(f.grab::<Get>(1).is_err());
                assert_eq!(state(f), (refs, 0));
            }
            with_refs(f, 1);
        }
        // Numbers that would wrap when multiplied, or added.
        for n in [1 << 22, u32::MAX / 1024 + 1, u32::MAX] {
            assert!(map.try_grab::<Pin>(small.folio().head(), n).is_none(), "{n}");
            assert!(small.folio().grab::<Pin>(n).is_err(), "{n}");
        }
        assert!(small.folio().grab::<Get>(u32::MAX).is_err());
        assert_eq!((state(small.folio()), state(large.folio())), ((1, 0), (1, 0)));
        let large_order_one_pin = large.folio().grab::<Get>(1 << 22).expect("room");
        assert_eq!(large.folio().refcount(), 1 + (1 << 22));
        drop(large_order_one_pin);
    }

    /// Rules: MM-011, REUSE-07.
    #[test]
    fn one_reference_more_than_mappings_is_a_legal_state() {
        let map = map(64);
        let f = fault(&map, 4, mm(1));
        f.remove_ptes(7, nz(1), mm(1));
        assert_eq!(f.counts_locked(|c| (c.refs, c.mapcount, c.shared)), (16, 15, false));
        put(f, 1);
        assert_eq!(f.counts_locked(|c| (c.refs, c.mapcount)), (15, 15));
        unmap(f, 0, 7, mm(1));
        unmap(f, 8, 8, mm(1));
    }

    /// Rules: PIN-05, PIN-06, FOLIO-05.
    #[test]
    fn free_and_foreign_frames_cannot_be_grabbed() {
        let map = map(64);
        let own = map.alloc(2).expect("frames");
        let page = own.folio().page(3);
        drop(own);
        assert!(map.try_grab::<Get>(page, 1).is_none());
        assert!(map.try_grab::<Get>(Pfn::new(6), 1).is_none(), "below the map");
        assert!(map.try_grab::<Pin>(Pfn::new(7 + 64), 1).is_none(), "above the map");
        assert!(map.try_grab::<Pin>(Pfn::new(u64::MAX), 1).is_none());
        assert!(!map.is_zero_page(Pfn::new(0)) && !map.is_huge_zero(Pfn::new(1 << 40)));
    }

    /// Each user is one more: the frame goes with the last one, and not before.
    ///
    /// Rules: FOLIO-01, PIN-04. Cases: MM-119.
    #[test]
    fn a_second_user_counts_and_the_last_one_frees() {
        let map = map(64);
        for order in [0, 2] {
            let own = map.alloc(order).expect("frames");
            let f = own.folio();
            let second = f.grab::<Get>(1).expect("room");
            assert_eq!(f.refcount(), 2);
            drop(own);
            assert_eq!((f.refcount(), map.alive().count()), (1, 1), "one is left");
            let third = map.try_grab::<Get>(f.head(), 1).expect("alive");
            drop(second);
            assert_eq!((f.refcount(), map.alive().count()), (1, 1));
            drop(third);
            assert_eq!(map.alive().count(), 0);
            // Mappings count on, too, of one space and of another.
            let f = fault(&map, order, mm(1));
            let n = f.nr_pages();
            map.clear_exclusive(f.head(), n as usize);
            for k in 1..=3 {
                f.grab::<Get>(n).expect("room").hand_over();
                f.add_anon_ptes(0, nz(n), mm(1 + k % 2), crate::Exclusivity::MaybeShared);
                assert_eq!((f.mapcount(), f.refcount()), ((k + 1) * n, ((k + 1) * n) as i32));
            }
            for k in (1..=3).rev() {
                unmap(f, 0, n, mm(1 + k % 2));
                assert_eq!((f.mapcount(), map.alive().count()), (k * n, 1));
            }
            unmap(f, 0, n, mm(1));
            assert_eq!(map.alive().count(), 0);
        }
    }

    /// Rules: FOLIO-09, FOLIO-01.
    #[test]
    fn references_are_values() {
        let map = map(64);
        let mut own = map.alloc(2).expect("frames");
        let other = map.alloc(2).expect("frames");
        own.grow(7).expect("room");
        let three = own.split_off(3).expect("owned");
        assert_eq!((own.n(), three.n()), (5, 3));
        assert!(own.split_off(6).is_none());
        assert_eq!(own.n(), 5);
        own.merge(three).expect("the same folio");
        let other = own.merge(other).expect_err("another folio");
        drop(other);
        let f = own.folio();
        let run = own.into_run(1);
        assert_eq!(run, FolioRun::new(f.head(), 1, 8));
        assert_eq!(
            FolioRun::new(f.head(), 1, 3).pages().collect::<Vec<_>>(),
            [f.page(1), f.page(2), f.page(3)]
        );
        assert_eq!(f.refcount(), 8);
        drop(map.adopt_run::<Get>(run));
        assert_eq!(map.alive().count(), 0);
    }

    /// Rules: FOLIO-12.
    #[test]
    fn allocation_fails_without_harm() {
        let map = map(8);
        let own = map.alloc(2).expect("frames");
        assert!(map.alloc(3).is_err());
        assert!(map.alloc(63).is_err());
        assert_eq!(map.alive().count(), 1);
        drop(own);
    }
}
