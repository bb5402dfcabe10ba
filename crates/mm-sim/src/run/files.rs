//! Operations on files.

use super::{Outcome, Runner, Step};
use crate::device::{File, FileError, Object, Shmem, ShmemKind, page_words};
use crate::events::Events;
use crate::{Pinned, RunError};
use mm_arch::{Arch, VirtRange};
use mm_fault::ShmemMode;
use mm_gup::GupFlags;
use mm_scenario::observe::{FileContent, Record, content_runs, tag_word};
use mm_scenario::{FileBacking, FileId, FolioSize, Line, ProcId, Range, ShmemPolicy};
use std::sync::Arc;

/// A setting of the language.
fn mode(policy: ShmemPolicy) -> ShmemMode {
    match policy {
        ShmemPolicy::Always => ShmemMode::Always,
        ShmemPolicy::Inherit => ShmemMode::Inherit,
        ShmemPolicy::WithinSize => ShmemMode::WithinSize,
        ShmemPolicy::Advise => ShmemMode::Advise,
        ShmemPolicy::Never => ShmemMode::Never,
    }
}

impl<A: Arch, O: Events> Runner<'_, A, O> {
    pub(super) fn shmem(&self, size: FolioSize, policy: ShmemPolicy) -> Outcome {
        self.host().set_policy(|p| {
            p.fault.shmem = match size {
                FolioSize::Global => p.fault.shmem.with_global(mode(policy)),
                FolioSize::Order(order) => p.fault.shmem.with_order(u32::from(order), mode(policy)),
            };
        });
        Outcome::Silent
    }

    pub(super) fn object(&self, file: FileId) -> Result<Arc<dyn Object<A, O>>, RunError> {
        // The parser has seen to it that the file was made.
        let object = self.files.get(&file).cloned();
        object.ok_or_else(|| RunError::Internal(format!("no file {file:?}")))
    }
    fn file_done(&self, line: &Line, r: Result<(), FileError>) -> Step {
        self.done(line, r, |e| e.errno())
    }

    /// Makes a file, by a `write` for each page or by one for all.
    pub(super) fn file(
        &mut self,
        line: &Line,
        file: FileId,
        backing: FileBacking,
        pages: u64,
        fill: Option<u16>,
        bulk: bool,
    ) -> Step {
        let available = self.host().frames().ram().nr_frames() as u64;
        if pages > available {
            let (file, line_no) = (self.scenario.name.clone(), line.line_no);
            return Err(RunError::TooLarge { file, line: line_no, op: "file", pages, available });
        }
        let object = match self.new_object(backing, pages) {
            Ok(object) => object,
            Err(e) => return Ok(self.refused(line, e.errno())),
        };
        let mut written = Ok(());
        if let Some(value) = fill {
            let word = |page, w| if w == 0 { tag_word(value, page) } else { 0 };
            let at_once = if bulk { pages } else { 1 };
            written = (0..pages).step_by(at_once.max(1) as usize).try_for_each(|first| {
                object.write(first, at_once, &word)?;
                for page in first..first + at_once {
                    let spot = crate::Spot::Object(object.id(), page << A::PAGE_SHIFT);
                    self.shadow.store_at(spot, tag_word(value, page));
                }
                Ok(())
            });
        }
        let synced = written.and_then(|()| object.sync());
        self.files.insert(file, object);
        self.file_done(line, synced)
    }
    fn new_object(
        &self,
        backing: FileBacking,
        pages: u64,
    ) -> Result<Arc<dyn Object<A, O>>, FileError> {
        let kind = match backing {
            FileBacking::Memfd => ShmemKind::Memfd,
            FileBacking::TmpfsAlways => ShmemKind::Mounted(ShmemMode::Always),
            FileBacking::TmpfsWithinSize => ShmemKind::Mounted(ShmemMode::WithinSize),
            FileBacking::TmpfsAdvise => ShmemKind::Mounted(ShmemMode::Advise),
            FileBacking::TmpfsNever => ShmemKind::Mounted(ShmemMode::Never),
            FileBacking::Ext4 => return Ok(File::new(self.host(), pages)?),
        };
        Ok(Shmem::new(self.host(), kind, pages)?)
    }
    pub(super) fn fsync(&self, line: &Line, file: FileId) -> Step {
        self.file_done(line, self.object(file)?.sync())
    }
    pub(super) fn drop_cache(&self, file: FileId) -> Step {
        self.object(file)?.forget_clean();
        Ok(Outcome::Silent)
    }
    pub(super) fn truncate(&mut self, file: FileId, pages: u64) -> Step {
        let object = self.object(file)?;
        object.truncate(pages);
        self.shadow.forget_object(object.id(), pages << A::PAGE_SHIFT..u64::MAX);
        // Private copies of what is gone went, too (rule ZAP-08).
        for (id, proc) in &self.procs {
            for vma in proc.process.mm().read().iter() {
                let shows = vma.backing().is_some_and(|b| b.id() == object.id());
                let gone = vma.overlap(pages, u64::MAX - pages).filter(|_| shows);
                if let Some((va, nr)) = gone
                    && let Ok(range) = VirtRange::units(va, nr, A::PAGE_SHIFT)
                {
                    self.shadow.forget(id.index() as u32, range);
                }
            }
        }
        Ok(Outcome::Silent)
    }
    pub(super) fn punch(&mut self, file: FileId, first: u64, pages: u64) -> Step {
        let object = self.object(file)?;
        // Every object of a machine has holes.
        object.punch(first, pages);
        let bytes = first << A::PAGE_SHIFT..(first + pages) << A::PAGE_SHIFT;
        self.shadow.forget_object(object.id(), bytes);
        Ok(Outcome::Silent)
    }
    pub(super) fn fcontent(&self, line: &Line, file: FileId) -> Step {
        let object = self.object(file)?;
        let words: Result<Vec<_>, FileError> =
            (0..object.nr_pages()).map(|page| Ok((page, object.read(page, 0)?))).collect();
        match words {
            Ok(words) => {
                let file = self.scenario.file_name(file).to_owned();
                let c = content_runs(words);
                Ok(Outcome::Printed(Record::new(line, FileContent { file, c })))
            }
            Err(e) => Ok(self.refused(line, e.errno())),
        }
    }

    /// A transient pin of the range, as direct I/O takes it.
    fn pin_for_io(
        &self,
        proc: ProcId,
        range: Range,
        flags: GupFlags,
    ) -> Result<Result<Pinned<A, O>, &'static str>, RunError> {
        let va = self.address(range.region, range.first);
        let pinned = self.proc(proc)?.process.pin(va, range.pages as usize, flags);
        Ok(pinned.map_err(|e| e.errno()))
    }
    /// A direct read into the range.
    pub(super) fn dread(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        file: FileId,
        file_page: u64,
    ) -> Step {
        let object = self.object(file)?;
        let mut pinned = match self.pin_for_io(proc, range, GupFlags::WRITE)? {
            Ok(pinned) => pinned,
            Err(errno) => return Ok(self.refused(line, errno)),
        };
        pinned.dirty_at_end();
        let read = object.read_direct(file_page, range.pages, &mut |i, w, word| {
            pinned.store(i as usize, w * 8, word);
        });
        for (i, page) in (0..).zip(range.iter()) {
            if let Some(word) = pinned.load(i, 0) {
                self.stored(proc, self.address(range.region, page), word)?;
            }
        }
        self.file_done(line, read)
    }
    /// A direct write from the range.
    pub(super) fn dwrite(
        &mut self,
        line: &Line,
        proc: ProcId,
        range: Range,
        file: FileId,
        file_page: u64,
    ) -> Step {
        let object = self.object(file)?;
        let pinned = match self.pin_for_io(proc, range, GupFlags::empty())? {
            Ok(pinned) => pinned,
            Err(errno) => return Ok(self.refused(line, errno)),
        };
        let pages: Vec<Vec<u64>> = (0..pinned.nr_pages())
            .map(|i| (0..page_words::<A>()).filter_map(|w| pinned.load(i, w * 8)).collect())
            .collect();
        let word = |page: u64, w: usize| pages[(page - file_page) as usize][w];
        let written = object.write_direct(file_page, pages.len() as u64, &word);
        if written.is_ok() {
            for (page, words) in (file_page..).zip(&pages) {
                let spot = crate::Spot::Object(object.id(), page << A::PAGE_SHIFT);
                self.shadow.store_at(spot, words.first().copied().unwrap_or(0));
            }
        }
        self.file_done(line, written)
    }
}
