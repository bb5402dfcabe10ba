//! Pins without a bound in time: not of memory that must stay movable.

use crate::{FaultHandler, Gup, GupError, GupErrorKind, GupFlags, Sink};
use alloc::vec::Vec;
use mm_arch::VirtAddr;
use mm_folio::{FolioRef, Get, RefKind};
use mm_vma::{Observer, Platform};

/// Why folios were not moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MigrateError {
    /// No memory to move them to, or they cannot be moved at all.
    NoMemory,
    /// Device memory that is in use.
    Busy,
}

/// Moves folios to memory that a pin may hold for ever (rules LT-02, LT-03).
///
/// # Example
///
/// ```
/// use mm_folio::{FolioRef, Get};
/// use mm_gup::{MigrateError, Migrator};
/// use mm_vma::Platform;
///
/// /// Moves folios by a function, which says whether it did.
/// struct Each<F>(F);
///
/// impl<P: Platform, F: Fn(FolioRef<'_, P, Get>) -> bool> Migrator<P> for Each<F> {
///     fn migrate(&self, folios: Vec<FolioRef<'_, P, Get>>) -> Result<(), MigrateError> {
///         // One that stays is asked for again, as long as others go.
///         let moved = folios.into_iter().filter_map(|own| (self.0)(own).then_some(())).count();
///         if moved > 0 { Ok(()) } else { Err(MigrateError::NoMemory) }
///     }
/// }
/// ```
pub trait Migrator<P: Platform> {
    /// Moves `folios` and leaves the page tables so that a walk or a fault finds the new
    /// places. A reference of each is handed over; GUP holds no other and no lock.
    ///
    /// A folio that somebody else uses may be left where it is: the caller pins
    /// again, and asks again for what is still in the way.
    ///
    /// # Errors
    ///
    /// If a folio will not move however often the caller asks.
    fn migrate(&self, folios: Vec<FolioRef<'_, P, Get>>) -> Result<(), MigrateError>;
}

/// Moves nothing: such pins fail.
impl<P: Platform> Migrator<P> for () {
    fn migrate(&self, _: Vec<FolioRef<'_, P, Get>>) -> Result<(), MigrateError> {
        Err(MigrateError::NoMemory)
    }
}

impl<P: Platform, H: FaultHandler<P>, O: Observer, G: Migrator<P>> Gup<'_, P, H, O, G> {
    /// Runs `take` until all that it pins may be pinned for ever, if the flags ask
    /// for that. Either all of its pages are kept or, on an error of moving, none
    /// (rules LT-01..03).
    pub(crate) fn long_term<K: RefKind, S: Sink>(
        &self,
        va: VirtAddr,
        flags: GupFlags,
        out: &mut S,
        take: impl Fn(&mut S) -> Result<usize, GupError>,
    ) -> Result<usize, GupError> {
        let (map, before) = (self.mm.platform().memmap(), out.pages());
        loop {
            let got = take(out)?;
            if !flags.contains(GupFlags::LONGTERM) {
                return Ok(got);
            }
            let Ok(folios) = self.in_the_way(out, before) else {
                out.give_back::<K, P>(map, before);
                return Err(GupError::new(va, GupErrorKind::NoMemory));
            };
            if folios.is_empty() {
                return Ok(got);
            }
            // Our own pins would keep them where they are.
            out.give_back::<K, P>(map, before);
            self.migrator.migrate(folios).map_err(|e| {
                let kind = match e {
                    MigrateError::NoMemory => GupErrorKind::NoMemory,
                    MigrateError::Busy => GupErrorKind::Busy,
                };
                GupError::new(va, kind)
            })?;
        }
    }

    /// References of the folios behind page `from` of `out` that must move first, each
    /// of them once for all its neighbours.
    fn in_the_way(
        &self,
        out: &impl Sink,
        from: usize,
    ) -> Result<Vec<FolioRef<'_, P, Get>>, NoRoom> {
        let map = self.mm.platform().memmap();
        let (mut folios, mut last, mut full) = (Vec::new(), None, false);
        out.each_run(map, from, |run| {
            let folio = map.folio(run.head);
            if folio.is_longterm_pinnable() || last == Some(run.head) || full {
                return;
            }
            last = Some(run.head);
            // What does not fit waits for the next pass: only the first must.
            match (folios.try_reserve(1), folio.grab::<Get>(1)) {
                (Ok(()), Ok(refs)) => folios.push(refs),
                _ => full = true,
            }
        });
        if full && folios.is_empty() { Err(NoRoom) } else { Ok(folios) }
    }
}

/// Not even one folio could be noted.
struct NoRoom;
