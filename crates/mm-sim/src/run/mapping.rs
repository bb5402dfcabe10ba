//! Operations on mappings and processes.

use super::{Outcome, Runner, Step, access};
use crate::events::Events;
use crate::syscalls::given_up;
use crate::{MlockError, RunError};
use mm_arch::{AccessKind, Arch, Rights, VirtAddr, VirtRange};
use mm_map::{Comes, ForkError, Ksm, LockWhen, MapError, MoveHoles, OldPlace, WpChange};
use mm_reclaim::AdviceError;
use mm_scenario::{
    Advice, Line, MapSource, Op, ProcId, Prot, Range, RegionId, Sharing, UffdAction, UffdMode,
};
use mm_vma::VmaFlags;

impl<A: Arch, O: Events> Runner<'_, A, O> {
    pub(super) fn fork(&mut self, line: &Line, child: ProcId, parent: ProcId) -> Step {
        let of = &self.proc(parent)?.process;
        let forked = of.fork();
        let process = match forked {
            Ok(process) => process,
            Err(e) => return self.done(line, Err(e), ForkError::errno),
        };
        {
            let of = &self.procs[&parent].process;
            let vmas = of.mm().read();
            let lost = VmaFlags::DONTCOPY | VmaFlags::WIPEONFORK;
            self.shadow.fork(parent.index() as u32, child.index() as u32, |va| {
                vmas.find(va).is_some_and(|v| !v.flags().intersects(lost))
            });
        }
        self.insert(child, process);
        Ok(Outcome::Silent)
    }
    pub(super) fn exit(&mut self, proc: ProcId) -> Step {
        // Pins end with their process.
        if let Some(gone) = self.procs.remove(&proc) {
            drop(gone.pins);
            gone.process.exit();
        }
        self.shadow.exit(proc.index() as u32);
        Ok(Outcome::Silent)
    }

    pub(super) fn mmap(&mut self, line: &Line) -> Step {
        let Op::Mmap { proc, region, pages, source, prot, sharing, noreserve, shstk } = line.op
        else {
            return Ok(Outcome::Silent);
        };
        let available = self.host().frames().ram().nr_frames() as u64;
        if pages > available {
            let (file, line_no) = (self.scenario.name.clone(), line.line_no);
            return Err(RunError::TooLarge { file, line: line_no, op: "mmap", pages, available });
        }
        let mut flags = vma_rights(prot);
        flags.set(VmaFlags::NORESERVE, noreserve);
        flags.set(VmaFlags::SHARED, sharing == Sharing::Shared);
        flags.set(VmaFlags::SHADOW_STACK, shstk);
        let range = self.span(Range { region, first: 0, pages, stride: 1 })?;
        let object = match source {
            MapSource::File { file, first_page } => Some((self.object(file)?, first_page)),
            MapSource::Anon => None,
        };
        let process = &self.proc(proc)?.process;
        // A scenario's mmap is at a fixed address: what is there makes way.
        let r = process.munmap(range).and_then(|()| match object {
            Some((object, first_page)) => process.mmap_object(range, flags, object, first_page),
            None if sharing == Sharing::Shared => process.mmap_shared(range, flags),
            None => process.mmap_anon(range, flags),
        });
        if r.is_ok() {
            self.shadow.forget(proc.index() as u32, range);
        }
        self.done(line, r, MapError::errno)
    }
    pub(super) fn munmap(&mut self, line: &Line, proc: ProcId, range: Range) -> Step {
        let range = self.span(range)?;
        let r = self.proc(proc)?.process.munmap(range);
        if r.is_ok() {
            self.shadow.forget(proc.index() as u32, range);
        }
        self.done(line, r, MapError::errno)
    }
    pub(super) fn mprotect(&mut self, line: &Line, proc: ProcId, range: Range, prot: Prot) -> Step {
        let mut rights = Rights::empty();
        rights.set(Rights::READ, prot.contains(Prot::READ));
        rights.set(Rights::WRITE, prot.contains(Prot::WRITE));
        rights.set(Rights::EXEC, prot.contains(Prot::EXEC));
        let r = self.proc(proc)?.process.mprotect(self.span(range)?, rights);
        self.done(line, r, MapError::errno)
    }
    pub(super) fn madvise(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        advice: Advice,
    ) -> Step {
        let range = self.span(range)?;
        let asked = match advice {
            Advice::HugePage => mm_map::Advice::HugePage,
            Advice::NoHugePage => mm_map::Advice::NoHugePage,
            Advice::DontNeed => mm_map::Advice::DontNeed,
            Advice::DontNeedLocked => mm_map::Advice::DontNeedLocked,
            Advice::DontFork => mm_map::Advice::DontFork,
            Advice::DoFork => mm_map::Advice::DoFork,
            Advice::WipeOnFork => mm_map::Advice::WipeOnFork,
            Advice::KeepOnFork => mm_map::Advice::KeepOnFork,
            Advice::Mergeable => mm_map::Advice::Mergeable,
            Advice::Unmergeable => mm_map::Advice::Unmergeable,
            Advice::GuardInstall => mm_map::Advice::GuardInstall,
            Advice::GuardRemove => mm_map::Advice::GuardRemove,
            Advice::Random => mm_map::Advice::Random,
            Advice::Sequential => mm_map::Advice::Sequential,
            Advice::Normal => mm_map::Advice::Normal,
            Advice::PopulateRead => return self.populate(line, proc, range, AccessKind::Read),
            Advice::PopulateWrite => return self.populate(line, proc, range, AccessKind::Write),
            Advice::Remove => return self.remove(line, proc, range),
            Advice::WillNeed => {
                let r = self.proc(proc)?.process.madvise_willneed(range);
                return self.done(line, r, MapError::errno);
            }
            Advice::Collapse => {
                let r = self.proc(proc)?.process.collapse(range);
                return self.done(line, r, |e| e.errno());
            }
            Advice::Cold => {
                let r = self.proc(proc)?.process.madvise_cold(range);
                return self.done(line, r, AdviceError::errno);
            }
            Advice::PageOut => {
                let r = self.proc(proc)?.process.madvise_pageout(range);
                return self.done(line, r, AdviceError::errno);
            }
            Advice::Free => {
                let r = self.proc(proc)?.process.madvise_free(range);
                if let Some(range) = given_up(range, &r) {
                    self.shadow.give_up(proc.index() as u32, range);
                }
                return self.done(line, r, AdviceError::errno);
            }
        };
        let r = self.proc(proc)?.process.madvise(range, asked);
        let drops = [Advice::DontNeed, Advice::DontNeedLocked, Advice::GuardInstall];
        if drops.contains(&advice)
            && let Some(range) = dropped(range, &r)
        {
            self.shadow.forget(proc.index() as u32, range);
        }
        self.done(line, r, MapError::errno)
    }
    /// Holes in the objects that the range shows.
    fn remove(&mut self, line: &Line, proc: ProcId, range: VirtRange) -> Step {
        let process = &self.proc(proc)?.process;
        let r = process.madvise_remove(range);
        let mut holes = Vec::new();
        if let Some(done) = dropped(range, &r) {
            for vma in process.mm().read().overlapping(done) {
                let (Some(part), Some(object)) = (vma.range().intersect(done), vma.backing())
                else {
                    continue;
                };
                let first = vma.linear_index(part.start()) << A::PAGE_SHIFT;
                holes.push((object.id(), first..first + part.bytes()));
            }
        }
        for (object, bytes) in holes {
            self.shadow.forget_object(object, bytes);
        }
        self.done(line, r, MapError::errno)
    }
    fn populate(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: VirtRange,
        access: AccessKind,
    ) -> Step {
        let r = self.proc(proc)?.process.populate(range, access);
        self.done(line, r, |e| e.errno())
    }
    pub(super) fn mlock(&mut self, line: &Line, proc: ProcId, range: Range, onfault: bool) -> Step {
        let when = if onfault { LockWhen::Touched } else { LockWhen::Now };
        let r = self.proc(proc)?.process.mlock(self.span(range)?, when);
        self.done(line, r, MlockError::errno)
    }
    pub(super) fn munlock(&mut self, line: &Line, proc: ProcId, range: Range) -> Step {
        let r = self.proc(proc)?.process.munlock(self.span(range)?);
        self.done(line, r, MapError::errno)
    }
    /// ksmd comes to all processes in the order in which they were made.
    pub(super) fn ksm_scan(&mut self, line: &Line, scans: u32) -> Step {
        let mut ksm = Ksm::new();
        for _ in 0..scans {
            let processes = self.procs.values().map(|p| &p.process);
            if self.host().ksm_pass(&mut ksm, processes).is_err() {
                return Ok(self.refused(line, "ENOMEM"));
            }
        }
        Ok(Outcome::Silent)
    }
    pub(super) fn clear_refs(&mut self, line: &Line, proc: ProcId) -> Step {
        let r = self.proc(proc)?.process.clear_soft_dirty();
        self.done(line, r, MapError::errno)
    }
    pub(super) fn uffd(
        &mut self,
        line: &Line,
        proc: ProcId,
        pages: Range,
        action: UffdAction,
    ) -> Step {
        let range = self.span(pages)?;
        let process = &self.proc(proc)?.process;
        let r = match action {
            UffdAction::Register(asked) => {
                let mut mode = mm_map::UffdMode::empty();
                for (word, flag) in [
                    (UffdMode::WP, mm_map::UffdMode::WP),
                    (UffdMode::MISSING, mm_map::UffdMode::MISSING),
                    (UffdMode::WP_UNPOPULATED, mm_map::UffdMode::WP_UNPOPULATED),
                    (UffdMode::WP_ASYNC, mm_map::UffdMode::WP_ASYNC),
                    (UffdMode::MINOR, mm_map::UffdMode::MINOR),
                ] {
                    mode.set(flag, asked.contains(word));
                }
                process.uffd_register(range, mode)
            }
            UffdAction::Protect => process.uffd_wp(range, WpChange::Protect),
            UffdAction::Unprotect => process.uffd_wp(range, WpChange::Unprotect),
            UffdAction::Unregister => process.uffd_unregister(range),
            UffdAction::Copy { .. }
            | UffdAction::ZeroPage
            | UffdAction::Continue { .. }
            | UffdAction::Poison
            | UffdAction::Move { .. } => self.uffd_each(proc, pages, action)?,
        };
        self.done(line, r, MapError::errno)
    }
    /// What userfaultfd does page by page, up to the first one that is refused.
    fn uffd_each(
        &mut self,
        proc: ProcId,
        pages: Range,
        action: UffdAction,
    ) -> Result<Result<(), MapError>, RunError> {
        let comes = |wp| if wp { Comes::Protected } else { Comes::Plain };
        for page in pages.iter() {
            let va = self.address(pages.region, page);
            let one = self.span(Range { first: page, pages: 1, ..pages })?;
            let process = &self.proc(proc)?.process;
            let r = match action {
                UffdAction::Copy { value, wp } => {
                    let word = access::tag(value)(page);
                    let copy = |_, w| if w == 0 { word } else { 0 };
                    let r = process.uffd_copy(one, comes(wp), copy);
                    if r.is_ok() {
                        self.stored(proc, va, word)?;
                    }
                    r
                }
                UffdAction::ZeroPage => process.uffd_zeropage(one),
                UffdAction::Continue { wp } => process.uffd_continue(one, comes(wp)),
                UffdAction::Poison => process.uffd_poison(one),
                UffdAction::Move { to, to_page, holes } => {
                    let to = self.address(to, to_page + page - pages.first);
                    let holes = if holes { MoveHoles::Skip } else { MoveHoles::Refuse };
                    let r = process.uffd_move(to, one, holes);
                    if r.is_ok() {
                        self.shadow.move_to(proc.index() as u32, one, to);
                    }
                    r
                }
                // Done in one call.
                UffdAction::Register(_)
                | UffdAction::Protect
                | UffdAction::Unprotect
                | UffdAction::Unregister => Ok(()),
            };
            if r.is_err() {
                return Ok(r);
            }
        }
        Ok(Ok(()))
    }
    pub(super) fn mremap_move(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        to: VirtAddr,
        old: OldPlace,
    ) -> Step {
        let range = self.span(range)?;
        let r = self.proc(proc)?.process.mremap_move(range, to, old);
        if r.is_ok() {
            if let Ok(target) = VirtRange::new(to, range.bytes()) {
                self.shadow.forget(proc.index() as u32, target);
            }
            self.shadow.move_to(proc.index() as u32, range, to);
        }
        self.done(line, r, MapError::errno)
    }
    /// The mapping at the start of the region gets another length.
    pub(super) fn mremap_resize(
        &mut self,
        line: &Line,
        proc: ProcId,
        region: RegionId,
        pages: u64,
    ) -> Step {
        let start = self.address(region, 0);
        let process = &self.proc(proc)?.process;
        let Some(old) = process
            .mm()
            .read()
            .find(start)
            .map(|v| VirtRange::new(start, v.range().bytes_after(start)).unwrap_or(v.range()))
        else {
            return Ok(self.refused(line, MapError::BadAddress(start).errno()));
        };
        let bytes = pages << A::PAGE_SHIFT;
        let r = process.mremap_resize(old, bytes);
        if r.is_ok()
            && let Some(gone) = old.bytes().checked_sub(bytes)
            && let Ok(tail) = VirtRange::new(start.add_units(pages, A::PAGE_SHIFT), gone)
        {
            self.shadow.forget(proc.index() as u32, tail);
        }
        self.done(line, r, MapError::errno)
    }
}

/// What a call on `range` dropped: what is mapped of a range with a hole all the same, and
/// what lies below a mapping that refuses.
fn dropped(range: VirtRange, r: &Result<(), MapError>) -> Option<VirtRange> {
    match r {
        Ok(()) | Err(MapError::Hole(_)) => Some(range),
        Err(MapError::Invalid(at) | MapError::Access(at) | MapError::NoHoles(at)) => {
            VirtRange::new(range.start(), at.bytes_from(range.start())).ok()
        }
        Err(_) => None,
    }
}

fn vma_rights(prot: Prot) -> VmaFlags {
    let mut flags = VmaFlags::empty();
    flags.set(VmaFlags::READ, prot.contains(Prot::READ));
    flags.set(VmaFlags::WRITE, prot.contains(Prot::WRITE));
    flags.set(VmaFlags::EXEC, prot.contains(Prot::EXEC));
    flags
}
