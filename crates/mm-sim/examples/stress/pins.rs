//! Devices that hold pages, for a while or for ever, and read or write them.

use crate::region::Region;
use crate::worker::Worker;
use mm_arch::Arch;
use mm_folio::{FolioFlags, Get};
use mm_gup::GupFlags;
use mm_sim::Pinned;
use mm_vma::Platform;

/// Pages that a device holds.
pub struct Held<A: Arch> {
    region: Region,
    first: u64,
    pinned: Pinned<A>,
    writes: bool,
    /// By page: it may be the zero page, which a store of the process puts another one in the
    /// place of. Only who reads for ever gets its own (rule GUPS-28a).
    parts: Vec<bool>,
}

impl<A: Arch> Worker<'_, A> {
    /// A device takes pages, and may write to them.
    pub fn pin(&mut self) -> Result<(), String> {
        let region = self.random.one_of(&[
            Region::File,
            Region::Shmem,
            Region::Anon,
            Region::Anon,
            Region::Marked,
            Region::Merged,
            Region::Huge,
        ]);
        let (first, nr) = self.any_pages(region, 20);
        let (writes, for_ever) = (self.random.below(3) > 0, self.random.once_in(3));
        let mut flags = GupFlags::empty();
        flags.set(GupFlags::WRITE, writes);
        flags.set(GupFlags::LONGTERM, for_ever);
        if for_ever {
            self.forbid_for_ever();
        }
        let (own, nr_pages) = (self.own(), nr as usize);
        let pinned = if self.random.once_in(3) {
            own.pin_slow(region.va(first), nr_pages, flags)
        } else {
            own.pin(region.va(first), nr_pages, flags)
        };
        self.hear(None, false)?;
        // Reclaim may be in the way of every attempt: that is no fault.
        let Ok(mut pinned) = pinned else { return Ok(()) };
        let what = if for_ever { "pages pinned for ever" } else { "pages pinned" };
        self.done.add(what, nr);
        if writes {
            pinned.dirty_at_end();
        }
        let may_part = |page| !writes && !for_ever && self.known(region, page).value == 0;
        let parts = (first..first + nr).map(may_part).collect();
        let held = Held { region, first, pinned, writes, parts };
        for page in first..first + nr {
            self.hear(Some((region, page)), writes)?;
        }
        self.write_as_device(&held, true);
        self.held.push(held);
        if self.held.len() > 4 { self.unpin() } else { Ok(()) }
    }
    fn write_as_device(&mut self, held: &Held<A>, at_pin: bool) {
        if !held.writes {
            return;
        }
        for k in 0..held.pinned.nr_pages() {
            let page = held.first + k as u64;
            let value = self.value(held.region, page);
            held.pinned.store(k, self.offset(held.region, page) as usize, value);
            // Entries tell of the stores of CPUs, and of devices when they get a page.
            let stored = self.known(held.region, page).stored;
            self.note(held.region, page, value);
            self.known(held.region, page).stored = stored || at_pin;
        }
    }
    /// Some folio, of anybody, must not be pinned for ever where it is.
    fn forbid_for_ever(&mut self) {
        if let Some(pfn) = self.any_frame()
            && let Some(own) = self.host().memmap().try_grab::<Get>(pfn, 1)
            && !own.folio().is_zero_page()
            && !own.folio().is_huge_zero()
            && !own.folio().maybe_dma_pinned()
        {
            own.folio().set_flag(FolioFlags::NO_LONGTERM);
        }
    }
    /// A device and a CPU see the same, from the first to the last.
    pub fn unpin(&mut self) -> Result<(), String> {
        if self.held.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        let held = self.held.swap_remove(at);
        self.check_held(&held)?;
        self.write_as_device(&held, false);
        self.check_held(&held)
    }
    fn check_held(&mut self, held: &Held<A>) -> Result<(), String> {
        let Held { region, first, ref pinned, ref parts, .. } = *held;
        for (k, parts) in parts.iter().enumerate() {
            let page = first + k as u64;
            self.check(region, page)?;
            let (seen, known) =
                (pinned.load(k, self.offset(region, page) as usize), *self.known(region, page));
            if seen != Some(known.value) && !parts {
                return Err(format!(
                    "{region:?} page {page}: a device has {seen:x?}, not {known:x?}"
                ));
            }
        }
        Ok(())
    }
    pub fn unpin_all(&mut self) -> Result<(), String> {
        while !self.held.is_empty() {
            self.unpin()?;
        }
        Ok(())
    }
}
