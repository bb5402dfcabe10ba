//! The entry points.

use crate::fast::Walk;
use crate::slow::{Found, Slow};
use crate::{FaultHandler, GupError, GupErrorKind, GupFlags, GupPolicy, Migrator, Sink};
use mm_arch::{Arch, VirtAddr, VirtRange};
use mm_folio::{Get, Pin, RefKind};
use mm_vma::{Mm, Observer, Platform};

/// GUP on one address space.
///
/// The `get` calls take references, the `pin` calls pins (rule PIN-18): references
/// for users of the page's record, pins for users of its bytes. The output owns
/// what it receives.
pub struct Gup<'a, P: Platform, H, O = (), G = ()> {
    pub(crate) mm: &'a Mm<P>,
    pub(crate) handler: &'a H,
    observer: &'a O,
    pub(crate) migrator: &'a G,
    policy: GupPolicy,
}

impl<P: Platform, H, O, G> core::fmt::Debug for Gup<'_, P, H, O, G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gup").field("mm", self.mm).field("policy", &self.policy).finish()
    }
}

impl<'a, P: Platform, H: FaultHandler<P>> Gup<'a, P, H, ()> {
    /// GUP on `mm`, with faults resolved by `handler`, everything in runs.
    pub fn new(mm: &'a Mm<P>, handler: &'a H) -> Self {
        Gup { mm, handler, observer: &(), migrator: &(), policy: GupPolicy::default() }
    }
}

impl<'a, P: Platform, H: FaultHandler<P>, O: Observer, G: Migrator<P>> Gup<'a, P, H, O, G> {
    /// The same with another policy.
    #[must_use]
    pub fn with_policy(self, policy: GupPolicy) -> Self {
        Gup { policy, ..self }
    }
    /// The same, heard by `observer`.
    #[must_use]
    pub fn observed_by<N: Observer>(self, observer: &'a N) -> Gup<'a, P, H, N, G> {
        let Gup { mm, handler, migrator, policy, .. } = self;
        Gup { mm, handler, observer, migrator, policy }
    }
    /// The same; folios that a long-term pin must not hold are moved by `migrator`.
    #[must_use]
    pub fn with_migrator<N: Migrator<P>>(self, migrator: &'a N) -> Gup<'a, P, H, O, N> {
        let Gup { mm, handler, observer, policy, .. } = self;
        Gup { mm, handler, observer, migrator, policy }
    }

    /// Pins up to `nr` pages from `va` on: lockless as far as that goes, then by
    /// the slow path. Returns how many pages were pushed to `out`, always a
    /// prefix of the range; less than `nr` only after an error.
    ///
    /// # Errors
    ///
    /// If not even the first page could be pinned.
    pub fn pin_fast(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        self.fast::<Pin>(va, nr, flags, out, true)
    }
    /// Takes references of up to `nr` pages, as [`pin_fast`](Self::pin_fast).
    ///
    /// # Errors
    ///
    /// If not even the first page could be had.
    pub fn get_fast(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        self.fast::<Get>(va, nr, flags, out, true)
    }
    /// Only the lockless part of [`pin_fast`](Self::pin_fast): fewer pages, even
    /// none, are no error.
    ///
    /// # Errors
    ///
    /// If the flags or the range make no sense.
    pub fn pin_fast_only(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        self.fast::<Pin>(va, nr, flags, out, false)
    }
    /// Only the lockless part of [`get_fast`](Self::get_fast).
    ///
    /// # Errors
    ///
    /// If the flags or the range make no sense.
    pub fn get_fast_only(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        self.fast::<Get>(va, nr, flags, out, false)
    }
    /// Pins up to `nr` pages under the mmap lock, which it takes itself and may
    /// drop for faults.
    ///
    /// # Errors
    ///
    /// If not even the first page could be pinned.
    pub fn pin(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        self.locked::<Pin>(va, nr, flags, GupFlags::TOUCH, out)
    }
    /// Takes references of up to `nr` pages, as [`pin`](Self::pin).
    ///
    /// # Errors
    ///
    /// If not even the first page could be had.
    pub fn get(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        self.locked::<Get>(va, nr, flags, GupFlags::TOUCH, out)
    }
    /// As [`get`](Self::get) for an address space that is not the caller's.
    ///
    /// # Errors
    ///
    /// If not even the first page could be had.
    pub fn get_remote(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        self.locked::<Get>(va, nr, flags, GupFlags::TOUCH | GupFlags::REMOTE, out)
    }
    /// As [`pin`](Self::pin) for an address space that is not the caller's.
    ///
    /// # Errors
    ///
    /// If not even the first page could be pinned.
    pub fn pin_remote(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        self.locked::<Pin>(va, nr, flags, GupFlags::TOUCH | GupFlags::REMOTE, out)
    }

    /// An entry point of the slow path, which adds `internal` to the caller's flags.
    fn locked<K: RefKind>(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        internal: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        check_flags::<K>(va, flags)?;
        self.slow::<K>(va, nr, flags | internal, out)
    }

    fn fast<K: RefKind>(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
        may_fall_back: bool,
    ) -> Result<usize, GupError> {
        if !GupFlags::FAST.contains(flags) {
            return Err(GupError::new(va, GupErrorKind::Invalid));
        }
        check_flags::<K>(va, flags)?;
        if nr == 0 {
            return Ok(0);
        }
        let va = self.prepare::<K>(va, nr)?;
        let walk = Walk {
            tables: self.mm.tables(),
            map: self.mm.platform().memmap(),
            write_protect_seq: self.mm.write_protect_seq(),
            observer: self.observer,
        };
        let got = in_rooms(va, nr, P::Arch::PAGE_SHIFT, out, |at, nr, out| {
            Ok(walk.take::<K>(self.policy.fast, at, nr, flags, out))
        })?;
        if got == nr || !may_fall_back {
            return Ok(got);
        }
        let rest = va.add_units(got as u64, P::Arch::PAGE_SHIFT);
        match self.slow::<K>(rest, nr - got, flags | GupFlags::TOUCH, out) {
            Ok(more) => Ok(got + more),
            Err(_) if got > 0 => Ok(got),
            Err(e) => Err(e),
        }
    }

    /// Checks the range and says that pins are coming (rules GUPF-02, PIN-12).
    pub(crate) fn prepare<K: RefKind>(
        &self,
        va: VirtAddr,
        nr: usize,
    ) -> Result<VirtAddr, GupError> {
        let va = va.align_down(P::Arch::PAGE_SHIFT);
        let range = VirtRange::units(va, nr as u64, P::Arch::PAGE_SHIFT)
            .map_err(|_| GupError::new(va, GupErrorKind::Overflow))?;
        if !self.mm.is_user_range(range) {
            return Err(GupError::new(va, GupErrorKind::Fault));
        }
        if K::PINS {
            self.mm.set_has_pinned();
        }
        Ok(va)
    }

    pub(crate) fn slow<K: RefKind>(
        &self,
        va: VirtAddr,
        nr: usize,
        flags: GupFlags,
        out: &mut impl Sink,
    ) -> Result<usize, GupError> {
        if nr == 0 {
            return Ok(0);
        }
        let va = self.prepare::<K>(va, nr)?;
        let request = self.request(flags, Found::Held);
        self.long_term::<K, _>(va, flags, out, |out| {
            in_rooms(va, nr, P::Arch::PAGE_SHIFT, out, |at, nr, out| request.take::<K>(at, nr, out))
        })
    }

    pub(crate) fn request(&self, flags: GupFlags, found: Found) -> Slow<'a, P, H, O> {
        let Gup { mm, handler, observer, policy, .. } = *self;
        Slow { mm, handler, observer, policy: policy.slow, flags, found }
    }
}

/// Takes pages in as many steps as the output makes room for: nothing is
/// allocated while pages are held but not handed over. Stops at the first step
/// that falls short; an error after the first page is left to the next call
/// (rule GUPS-07).
fn in_rooms<S: Sink>(
    va: VirtAddr,
    nr: usize,
    page_shift: u32,
    out: &mut S,
    mut take: impl FnMut(VirtAddr, usize, &mut S) -> Result<usize, GupError>,
) -> Result<usize, GupError> {
    let mut done = 0;
    while done < nr {
        let at = va.add_units(done as u64, page_shift);
        let step = match out.reserve(nr - done) {
            0 => Err(GupError::new(at, GupErrorKind::NoMemory)),
            room => take(at, room, out).map(|got| (got, got < room)),
        };
        match step {
            Ok((got, short)) => {
                done += got;
                if short {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Rule FOLL-03. Got and pinned exclude each other by type; a missing output
/// cannot be expressed.
fn check_flags<K: RefKind>(va: VirtAddr, flags: GupFlags) -> Result<(), GupError> {
    let bad = flags.intersects(GupFlags::INTERNAL)
        || flags.contains(GupFlags::LONGTERM) && !K::PINS
        || flags.contains(GupFlags::LONGTERM | GupFlags::PCI_P2PDMA);
    if bad { Err(GupError::new(va, GupErrorKind::Invalid)) } else { Ok(()) }
}
