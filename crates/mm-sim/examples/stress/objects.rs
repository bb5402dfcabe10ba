//! Files and shared memory that are written, cut and punched, on devices that fail.

use crate::known::{Got, load};
use crate::region::{CUT, Region};
use crate::worker::Worker;
use mm_arch::{Arch, VirtAddr};

impl<A: Arch> Worker<'_, A> {
    /// Of all objects of the thread: the region, and the first of its pages that are its own.
    fn first_of(&self, region: Region) -> u64 {
        if region == Region::Copied { 0 } else { self.me as u64 * CUT }
    }
    fn size_of(&mut self, region: Region) -> &mut u64 {
        &mut self.sizes[usize::from(region == Region::CutShmem)]
    }
    /// Whether the object has got too small for the page.
    pub fn is_behind_end(&mut self, region: Region, page: u64) -> bool {
        page - self.first_of(region) >= *self.size_of(region)
    }
    fn cut_region(&mut self) -> Region {
        self.random.one_of(&Region::CUT)
    }

    /// What an access to an object that is cut may come to.
    pub fn judge_cut(&mut self, region: Region, page: u64, got: Got<u64>) -> Result<(), String> {
        let index = page - self.first_of(region);
        let own = *self.known(region, page);
        let shown = if region == Region::Copied && !own.copied {
            let first = self.first_of(Region::CutFile);
            *self.known(Region::CutFile, first + index)
        } else {
            own
        };
        // Pages of files are not on swap, but copies of them are.
        let may_be_lost = self.world.reads_fail && (region != Region::CutFile);
        match got {
            Got::Bus if index >= *self.size_of(region) || self.device_fails => Ok(()),
            Got::Bus if may_be_lost => self.lose(region, page),
            Got::Bus | Got::Segv => Err(format!("{got:x?}, not {shown:x?}")),
            // A large folio of shared memory that somebody holds is not cut, and is mapped with
            // what is behind the end (rule FILE-05): nobody stored there.
            Got::Done(0) if region == Region::CutShmem && index >= *self.size_of(region) => Ok(()),
            Got::Done(_) if index >= *self.size_of(region) => {
                Err(format!("{got:x?} behind the end"))
            }
            Got::Done(got) => {
                self.known(region, page).lost = false;
                { shown }.judge(got)
            }
        }
    }
    /// The pages of an object, from the index `first` on, are empty. Those behind the end took
    /// private copies along.
    fn forget_pages(&mut self, region: Region, first: u64, nr: u64, copies: bool) {
        let at = self.first_of(region);
        for index in first..first + nr {
            let known = self.known(region, at + index);
            (known.value, known.lost) = (0, false);
            if region == Region::CutFile && copies {
                self.known(Region::Copied, index).copied = false;
            }
        }
    }

    /// The object gets another size; what is cut off is gone for ever.
    pub fn cut(&mut self) -> Result<(), String> {
        let region = self.cut_region();
        let (old, new) = (*self.size_of(region), self.random.below(CUT + 1));
        let Some(object) = self.object(region) else { return Ok(()) };
        object.truncate(new);
        *self.size_of(region) = new;
        if new < old {
            self.forget_pages(region, new, old - new, true);
            self.done.add("pages cut off", old - new);
        }
        let page = self.first_of(region) + self.random.below(CUT);
        self.check(region, page)?;
        self.change(region, page)
    }
    pub fn punch(&mut self) -> Result<(), String> {
        let region = self.cut_region();
        let (first, nr) = self.random.pages(CUT, 16);
        let at = self.first_of(region);
        let range = region.range((at + first, nr));
        self.own().madvise_remove(range).map_err(|e| format!("MADV_REMOVE: {e}"))?;
        self.forget_pages(region, first, nr, false);
        self.done.add("pages punched", nr);
        self.check(region, at + first)
    }
    /// Writes pages without a mapping.
    pub fn write_object(&mut self) -> Result<(), String> {
        let region = self.cut_region();
        let size = *self.size_of(region);
        let Some(object) = self.object(region).filter(|_| size > 0) else { return Ok(()) };
        let (first, nr) = self.random.pages(size, 16);
        let at = self.first_of(region);
        let values: Vec<_> = (0..nr).map(|k| self.value(region, at + first + k)).collect();
        let offsets: Vec<_> = (0..nr).map(|k| self.offset(region, at + first + k)).collect();
        let word = |index: u64, w: usize| {
            let k = (index - first) as usize;
            if offsets[k] == w as u64 * 8 { values[k] } else { 0 }
        };
        match object.write(first, nr, &word) {
            Ok(()) => {}
            // Up to a page that is lost.
            Err(_) if self.world.reads_fail => return self.cut_all(region),
            Err(e) => return Err(format!("write: {e}")),
        }
        for (k, value) in (0..nr).zip(values) {
            let known = self.known(region, at + first + k);
            (known.value, known.lost) = (value, false);
        }
        self.check(region, at + first)
    }
    fn cut_all(&mut self, region: Region) -> Result<(), String> {
        let Some(object) = self.object(region) else { return Ok(()) };
        object.truncate(0);
        *self.size_of(region) = 0;
        self.forget_pages(region, 0, CUT, true);
        Ok(())
    }

    /// What is in the file is what was stored, although its clean pages are dropped.
    pub fn write_file(&mut self) -> Result<(), String> {
        let Some(file) = self.object(Region::File) else { return Ok(()) };
        file.sync().map_err(|e| format!("fsync: {e}"))?;
        file.forget_clean();
        let page = self.random.below(Region::File.pages());
        let (got, known) = (
            file.read(page, self.offset(Region::File, page) as usize),
            *self.known(Region::File, page),
        );
        if got != Ok(known.value) {
            return Err(format!("the file has {got:x?} on page {page}, not {known:x?}"));
        }
        Ok(())
    }
    /// The device of the thread's file fails for some pages, or works again.
    pub fn fail_device(&mut self) -> Result<(), String> {
        if self.device_fails {
            return self.let_device_work();
        }
        self.device_fails = true;
        for _ in 0..8 {
            let index = self.random.below(CUT);
            self.world.files[self.me].fail_io(index, true);
        }
        Ok(())
    }
    /// Nothing was lost meanwhile.
    pub fn let_device_work(&mut self) -> Result<(), String> {
        self.device_fails = false;
        (0..CUT).for_each(|index| self.world.files[self.me].fail_io(index, false));
        let first = self.first_of(Region::CutFile);
        (first..first + CUT).try_for_each(|page| self.check(Region::CutFile, page))
    }

    /// What another thread has on a page, or had once: nothing else.
    pub fn look_at_others(&mut self) -> Result<(), String> {
        let (region, of) = (self.cut_region(), self.random.below(crate::THREADS as u64) as usize);
        let page = of as u64 * CUT + self.random.below(CUT);
        let at = VirtAddr::new(region.va(page).get() + Self::offset_of(region, page, of));
        let Got::Done(got) = load(self.own(), at)? else { return Ok(()) };
        if got == 0 || got >> 32 == Self::tag(region, page, of) >> 32 {
            return Ok(());
        }
        Err(format!("{region:?} page {page} has {got:#x}, which its owner never stored there"))
    }
}
