//! Lasting pins and references.

use super::{Held, Outcome, Runner, Step};
use crate::audit::ShadowPin;
use crate::events::Events;
use crate::{AuditViolation, Pinned, RunError, Spot};
use mm_arch::{Arch, VirtAddr};
use mm_folio::{FolioRun, FrameBytes};
use mm_gup::GupFlags;
use mm_scenario::observe::{PinContent, Record, content_runs, tag_word};
use mm_scenario::{Line, PinId, PinMethod, ProcId, Range};
use mm_vma::Platform;

impl<A: Arch, O: Events> Runner<'_, A, O> {
    pub(super) fn pin(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        pin: PinId,
        method: PinMethod,
    ) -> Step {
        let mut flags = GupFlags::empty();
        flags.set(GupFlags::WRITE, method.is_write());
        flags.set(GupFlags::LONGTERM, method.is_long_term());
        let (va, nr) = (self.address(range.region, range.first), range.pages as usize);
        let process = &self.proc(proc)?.process;
        let taken =
            if method.is_pin() { process.pin(va, nr, flags) } else { process.get(va, nr, flags) };
        let pages = match taken {
            Ok(pages) => pages,
            Err(e) => return Ok(self.refused(line, e.errno())),
        };
        // A plain reference does not promise to see what the process writes.
        let shadow = if method.is_pin() { Some(self.shadow_of(proc, va, &pages)?) } else { None };
        self.proc_mut(proc)?.pins.insert(pin, Held { pages, shadow });
        Ok(Outcome::Silent)
    }
    /// The words that a pin of `pages`, from `va` on, and the process both see.
    fn shadow_of(
        &mut self,
        proc: ProcId,
        va: VirtAddr,
        pages: &Pinned<A, O>,
    ) -> Result<ShadowPin, RunError> {
        let process = &self.proc(proc)?.process;
        let map = self.machine.host().memmap();
        let held = pages.runs().iter().flat_map(FolioRun::pages);
        let spots: Vec<_> = held
            .zip(0..)
            .map(|(pfn, i)| {
                let va = va.add_units(i, A::PAGE_SHIFT);
                let spot = Spot::of(proc.index() as u32, process, va);
                let is_zero = map.is_zero_page(pfn) || map.is_huge_zero(pfn);
                // A page of a file behind a private mapping: the process's store
                // makes a copy.
                let apart = matches!(spot, Spot::Private(..)) && !map.folio(pfn).is_anon();
                (!is_zero && !apart).then(|| (spot, self.machine.host().frames().load(pfn, 0)))
            })
            .collect();
        Ok(self.shadow.pin(spots.into_iter()))
    }
    pub(super) fn unpin(&mut self, proc: ProcId, pin: PinId) -> Step {
        self.proc_mut(proc)?.pins.remove(&pin);
        Ok(Outcome::Silent)
    }
    pub(super) fn pinread(&mut self, line: &Line, proc: ProcId, pin: PinId) -> Step {
        // The parser knows the pin; if taking it was refused there is nothing to see.
        let Some(held) = self.proc(proc)?.pins.get(&pin) else {
            return Ok(self.refused(line, "EBADF"));
        };
        let pages = 0..held.pages.nr_pages() as u64;
        let words = pages.filter_map(|i| Some((i, held.pages.load(i as usize, 0)?)));
        let c = content_runs(words);
        let p = self.scenario.proc_name(proc).to_owned();
        let pin = self.scenario.pin_name(pin).to_owned();
        Ok(Outcome::Printed(Record::new(line, PinContent { p, pin, c })))
    }
    pub(super) fn pinwrite(&mut self, proc: ProcId, pin: PinId, value: u16) -> Step {
        if let Some(held) = self.proc(proc)?.pins.get(&pin) {
            for i in 0..held.pages.nr_pages() {
                let word = tag_word(value, i as u64);
                held.pages.store(i, 0, word);
                if let Some(shadow) = &held.shadow {
                    shadow.set(i, word);
                }
            }
        }
        Ok(Outcome::Silent)
    }
}

/// Whether a pin sees what the process that took it sees.
pub(super) fn audit<A: Arch, O: Events>(
    process: u32,
    pages: &Pinned<A, O>,
    shadow: &ShadowPin,
) -> Vec<AuditViolation> {
    (0..pages.nr_pages())
        .filter_map(|i| {
            let (expected, got) = (shadow.get(i)?, pages.load(i, 0)?);
            let va = VirtAddr::new((i as u64) << A::PAGE_SHIFT);
            (got != expected).then_some(AuditViolation::Content { process, va, expected, got })
        })
        .collect()
}
