//! Making pages present without taking them, and callers that want one page.

use crate::slow::Found;
use crate::{FaultHandler, Gup, GupError, GupErrorKind, GupFlags, Migrator, Pages, Runs};
use mm_arch::{AccessKind, Arch, Pfn, VirtAddr, VirtRange};
use mm_folio::Get;
use mm_vma::{Interrupt, Observer, Platform, Vma, VmaFlags};

/// What populating a range does with a mapping that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnError {
    /// It ends there, as for `mlock`.
    Stop,
    /// It goes on behind the mapping, as for `MAP_POPULATE`.
    NextMapping,
}

impl<P: Platform, H: FaultHandler<P>, O: Observer, G: Migrator<P>> Gup<'_, P, H, O, G> {
    /// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`: makes `nr` pages from `va` on
    /// present, and writable for stores (rule POP-03).
    ///
    /// # Errors
    ///
    /// At the first page that cannot be had: `ENOMEM` where nothing is mapped,
    /// `EINVAL` where the mapping does not suit, `EHWPOISON`, `EFAULT`, `EINTR`.
    pub fn populate(&self, va: VirtAddr, nr: usize, access: AccessKind) -> Result<(), GupError> {
        let mut flags = GupFlags::HWPOISON | GupFlags::MADV_POPULATE;
        flags.set(GupFlags::WRITE, access == AccessKind::Write);
        self.make_present(va, nr, flags)
    }

    /// Makes present what `range` maps, as the rights of each mapping ask: what
    /// `mlock` and `MAP_POPULATE` do (rules POP-01, POP-02). Private writable
    /// memory is made writable at once. Mappings that wait for a touch, and such as
    /// GUP takes nothing of, are passed by.
    ///
    /// # Errors
    ///
    /// The first page that cannot be had, unless `on_error` passes it by.
    pub fn populate_mapped(&self, range: VirtRange, on_error: OnError) -> Result<(), GupError> {
        let mut rest = Some(range);
        while let Some(range) = rest {
            let Some((part, flags)) = self.next_part(range) else { return Ok(()) };
            let done = flags.and_then(|flags| match flags {
                Some(flags) => {
                    let nr = part.nr(P::Arch::PAGE_SHIFT) as usize;
                    self.make_present(part.start(), nr, flags)
                }
                None => Ok(()),
            });
            if on_error == OnError::Stop {
                done?;
            }
            let left = range.last().get() - part.last().get();
            let behind = part.start().add_units(part.nr(P::Arch::PAGE_SHIFT), P::Arch::PAGE_SHIFT);
            rest = VirtRange::new(behind, left).ok();
        }
        Ok(())
    }

    /// The first part of `range` that is mapped, and how to populate it; not at all
    /// if there are no flags.
    fn next_part(
        &self,
        range: VirtRange,
    ) -> Option<(VirtRange, Result<Option<GupFlags>, GupError>)> {
        let vmas = self.mm.read();
        let vma = vmas.overlapping(range).next()?;
        let part = vma.range().intersect(range)?;
        Some((part, populate_flags(vma).map_err(|kind| GupError::new(part.start(), kind))))
    }

    fn make_present(&self, va: VirtAddr, nr: usize, flags: GupFlags) -> Result<(), GupError> {
        if nr == 0 {
            return Ok(());
        }
        let va = self.prepare::<Get>(va, nr)?;
        let request = self.request(flags | GupFlags::TOUCH, Found::Counted);
        let mut done = 0;
        while done < nr {
            let at = va.add_units(done as u64, P::Arch::PAGE_SHIFT);
            // Nothing is pushed.
            done += request.take::<Get>(at, nr - done, &mut Runs::new())?;
        }
        Ok(())
    }

    /// Resolves one fault at `va` on behalf of somebody who cannot take it (rule
    /// POP-05): not GUP, so the mapping must allow the access. Whether the mmap lock
    /// was dropped meanwhile, and mappings may have changed.
    ///
    /// # Errors
    ///
    /// If the mapping or the fault code refuses, or a fatal signal is pending.
    pub fn fault_in(&self, va: VirtAddr, access: AccessKind) -> Result<bool, GupError> {
        let needed = match access {
            AccessKind::Read => VmaFlags::READ,
            AccessKind::Write => VmaFlags::WRITE,
            AccessKind::Exec => VmaFlags::EXEC,
        };
        let mut flags = GupFlags::HWPOISON;
        flags.set(GupFlags::WRITE, access == AccessKind::Write);
        let request = self.request(flags, Found::Counted);
        let (mut vmas, mut unlocked) = (self.mm.read(), false);
        loop {
            let error = |kind| GupError::new(va, kind);
            let allowed = vmas.find(va).is_some_and(|vma| vma.flags().contains(needed));
            if !allowed {
                return Err(error(GupErrorKind::Fault));
            }
            match request.fault_in(vmas, va, false, unlocked).map_err(error)? {
                Some(_) => return Ok(unlocked),
                None if self.mm.platform().interrupt().is_fatal_signal_pending() => {
                    return Err(error(GupErrorKind::Interrupted));
                }
                None => (vmas, unlocked) = (self.mm.read(), true),
            }
        }
    }

    /// A reference of the page at `va`, for a dump: `None` where there is nothing but
    /// zeros, and wherever else it cannot be had (rule POP-06).
    pub fn dump_page(&self, va: VirtAddr) -> Option<Pfn> {
        let mut page = [Pfn::new(0)];
        let mut out = Pages::new(&mut page);
        let flags = GupFlags::FORCE | GupFlags::DUMP;
        match self.slow::<Get>(va, 1, flags, &mut out) {
            Ok(_) => out.filled().first().copied(),
            Err(_) => None,
        }
    }
}

/// Rule POP-01.
fn populate_flags(vma: &Vma) -> Result<Option<GupFlags>, GupErrorKind> {
    let vm = vma.flags();
    if vm.intersects(VmaFlags::LOCKONFAULT | VmaFlags::IO | VmaFlags::PFNMAP) {
        return Ok(None);
    }
    if !vma.is_accessible() || !vm.contains(VmaFlags::MAYREAD) {
        return Err(GupErrorKind::Fault);
    }
    // Breaking the sharing at once saves a second fault. Of a shared mapping it
    // would only dirty what may never be stored to.
    let private_write = vm & (VmaFlags::WRITE | VmaFlags::SHARED) == VmaFlags::WRITE;
    Ok(Some(if private_write { GupFlags::WRITE } else { GupFlags::FORCE }))
}
