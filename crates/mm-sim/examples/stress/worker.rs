//! One thread: what it knows of its memory, and what it does next.

use crate::children::Child;
use crate::known::{Got, Known, load, store};
use crate::pins::Held;
use crate::random::Random;
use crate::region::{CUT, Region};
use crate::world::{Tally, World};
use mm_arch::{Arch, VirtAddr};
use mm_fault::UserFault;
use mm_sim::{EventCounts, Host, Object, Process};
use std::sync::Arc;

pub struct Worker<'w, A: Arch> {
    pub me: usize,
    pub world: &'w World<A>,
    pub random: Random,
    pub done: Tally,
    pub held: Vec<Held<A>>,
    pub children: Vec<Child<A>>,
    /// How many pages the objects have that the thread cuts.
    pub sizes: [u64; Region::CUT.len()],
    /// The device of its file fails for some pages.
    pub device_fails: bool,
    known: [Vec<Known>; Region::ALL.len()],
    values: u64,
}

/// An operation, and how often it comes.
type Operation<'w, A> = (u64, fn(&mut Worker<'w, A>) -> Result<(), String>);

impl<'w, A: Arch> Worker<'w, A> {
    const OPERATIONS: &'w [Operation<'w, A>] = &[
        (60, Self::access),
        (12, Self::pin),
        (12, Self::unpin),
        (10, Self::fork),
        (10, Self::forget_child),
        // Of the mapping.
        (8, Self::give_up),
        (8, Self::drop_now),
        (8, Self::keep),
        (8, Self::protect),
        (8, Self::map_anew),
        (6, Self::fill_hole),
        (4, Self::make_hole),
        (4, Self::begin_tracking),
        // Userfaultfd.
        (12, Self::mark),
        (4, Self::unmark),
        (3, Self::register_anew),
        (8, Self::fill),
        (6, Self::empty),
        // Objects.
        (8, Self::write_file),
        (6, Self::cut),
        (6, Self::punch),
        (6, Self::write_object),
        (4, Self::fail_device),
        (10, Self::look_at_others),
        // Others' pages.
        (30, Self::page_out),
        (24, Self::shrink),
        (4, Self::read_ahead),
        (2, Self::fail_read),
        (4, Self::do_wrong),
        // Pages get other frames, or other places.
        (12, Self::move_mapping),
        (8, Self::move_pages),
        (8, Self::collapse),
        (6, Self::merge),
        (3, Self::unmerge),
        (12, Self::migrate),
        (8, Self::split),
        (4, Self::hint),
        (1, Self::swap_off),
    ];

    pub fn new(me: usize, world: &'w World<A>, random: Random) -> Self {
        let mut known = Region::ALL.map(|r| vec![Known::default(); r.pages() as usize]);
        known[Region::Filled as usize].iter_mut().for_each(|page| page.missing = true);
        Worker {
            me,
            world,
            random,
            done: Tally::default(),
            held: Vec::new(),
            children: Vec::new(),
            sizes: [CUT; Region::CUT.len()],
            device_fails: false,
            known,
            values: 0,
        }
    }
    pub fn own(&self) -> &'w Process<A> {
        &self.world.processes[self.me]
    }
    pub fn host(&self) -> &'w Host<A> {
        self.own().host()
    }
    pub fn object(&self, region: Region) -> Option<&'w Arc<dyn Object<A, EventCounts>>> {
        self.world.object(region, self.me)
    }
    /// Where the word of thread `of` is in a page. Those that move take it along, and equal pages
    /// have theirs in one place.
    pub fn offset_of(region: Region, page: u64, of: usize) -> u64 {
        let (page, of) = match region {
            Region::Moving | Region::Filled => (0, of),
            // The same in all mappings of an object.
            Region::CutFile | Region::CutShmem | Region::Copied => (page % CUT, of),
            Region::Merged => (page, 0),
            _ => (page, of),
        };
        (page % 100 * crate::THREADS as u64 + of as u64) * 8
    }
    pub fn offset(&self, region: Region, page: u64) -> u64 {
        Self::offset_of(region, page, self.me)
    }
    pub fn at(&self, region: Region, page: u64) -> VirtAddr {
        VirtAddr::new(region.va(page).get() + self.offset(region, page))
    }
    pub fn known(&mut self, region: Region, page: u64) -> &mut Known {
        &mut self.known[region as usize][page as usize]
    }
    pub fn all_known(&mut self, region: Region) -> &mut Vec<Known> {
        &mut self.known[region as usize]
    }
    /// A word that no other page ever has, but for those that shall be equal.
    pub fn value(&mut self, region: Region, page: u64) -> u64 {
        if region == Region::Merged {
            return self.random.below(3);
        }
        self.values += 1;
        self.values | Self::tag(region, page, self.me)
    }
    /// What all words of thread `of` on a page have in common, above 32 bits.
    pub fn tag(region: Region, page: u64, of: usize) -> u64 {
        page << 32 | (region as u64) << 48 | (of as u64 + 1) << 56
    }
    /// Any page of `region` that is the thread's own.
    pub fn any_page(&mut self, region: Region) -> u64 {
        match region {
            Region::CutFile | Region::CutShmem => self.me as u64 * CUT + self.random.below(CUT),
            _ => self.random.below(region.pages()),
        }
    }
    pub fn any_pages(&mut self, region: Region, most: u64) -> (u64, u64) {
        self.random.pages(region.pages(), most)
    }

    /// Does something.
    pub fn operate(&mut self) -> Result<(), String> {
        let all = Self::OPERATIONS.iter().map(|(weight, _)| *weight).sum();
        let mut at = self.random.below(all);
        for (weight, operation) in Self::OPERATIONS {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return operation(self),
            }
        }
        Ok(())
    }
    /// Loads a word that is known, and stores another one, or not.
    fn access(&mut self) -> Result<(), String> {
        let region = self.random.one_of(&Region::ALL);
        let page = self.any_page(region);
        self.check(region, page)?;
        if self.random.below(3) > 0 { self.change(region, page) } else { Ok(()) }
    }

    /// Loads the thread's word of a page.
    pub fn check(&mut self, region: Region, page: u64) -> Result<(), String> {
        let at = self.at(region, page);
        let got = load(self.own(), at)?;
        self.judge(region, page, got).map_err(|e| format!("{region:?} page {page}: {e}"))?;
        self.hear(matches!(got, Got::Done(_)).then_some((region, page)), false)
    }
    /// Stores another one.
    pub fn change(&mut self, region: Region, page: u64) -> Result<(), String> {
        if region == Region::CutShmem && self.is_behind_end(region, page) {
            return self.check(region, page);
        }
        let (at, value) = (self.at(region, page), self.value(region, page));
        let got = match store(self.own(), at, value)? {
            Got::Done(()) => {
                self.note(region, page, value);
                Got::Done(value)
            }
            Got::Bus => Got::Bus,
            Got::Segv => Got::Segv,
        };
        self.judge(region, page, got).map_err(|e| format!("{region:?} page {page}: {e}"))?;
        self.hear(matches!(got, Got::Done(_)).then_some((region, page)), true)
    }
    /// The page was stored to, by a CPU or a device.
    pub fn note(&mut self, region: Region, page: u64, value: u64) {
        let known = self.known(region, page);
        *known = Known { value, or_zero: false, stored: true, lost: false, copied: true, ..*known };
    }
    /// Whether that is what an access may come to.
    fn judge(&mut self, region: Region, page: u64, got: Got<u64>) -> Result<(), String> {
        if Region::CUT.contains(&region) || region == Region::Copied {
            return self.judge_cut(region, page, got);
        }
        let reads_fail = self.world.reads_fail;
        let known = self.known(region, page);
        match got {
            Got::Segv if known.hole => Ok(()),
            Got::Segv => Err(format!("a signal, not {known:x?}")),
            _ if known.hole => Err(format!("{got:x?}, where nothing is mapped")),
            Got::Done(got) => {
                known.lost = false;
                known.judge(got)
            }
            Got::Bus if reads_fail => self.lose(region, page),
            Got::Bus => Err(format!("it is lost, not {known:x?}")),
        }
    }
    /// No device gives the page.
    pub fn lose(&mut self, region: Region, page: u64) -> Result<(), String> {
        let before = std::mem::replace(&mut self.known(region, page).lost, true);
        // One merged page may be many.
        if before || region == Region::Merged { Ok(()) } else { self.world.lose() }
    }

    /// What userfaultfd was asked is what it had to be asked, and all of it: `touched` was
    /// loaded or stored to.
    pub fn hear(&mut self, touched: Option<(Region, u64)>, stored: bool) -> Result<(), String> {
        for asked in self.own().take_user_faults() {
            let known = Region::at(asked.va).map(|(region, page)| self.known(region, page));
            let expected = match (asked.kind, known) {
                (UserFault::Wp, Some(known)) => std::mem::take(&mut known.protected),
                (UserFault::Missing { .. }, Some(known)) => std::mem::take(&mut known.missing),
                _ => false,
            };
            if !expected {
                return Err(format!("userfaultfd is asked for nothing: {asked:?}"));
            }
        }
        let Some((region, page)) = touched else { return Ok(()) };
        let known = *self.known(region, page);
        if known.missing || stored && known.protected {
            return Err(format!("{region:?} page {page}: userfaultfd was not asked: {known:x?}"));
        }
        Ok(())
    }

    /// Gives everything back but the memory, and looks at all marks.
    pub fn end(&mut self) -> Result<(), String> {
        self.unpin_all()?;
        while !self.children.is_empty() {
            self.forget_child()?;
        }
        self.begin_tracking()?;
        for region in [Region::Marked, Region::MarkedShmem, Region::Filled] {
            for page in 0..region.pages() {
                self.change(region, page)?;
            }
        }
        self.let_device_work()
    }
    /// Reads every word once more, by each process that should see it.
    pub fn check_all(&mut self) -> Result<(), String> {
        for region in Region::ALL {
            let cut = Region::CUT.contains(&region);
            let pages = if cut {
                let first = self.me as u64 * CUT;
                first..first + CUT
            } else {
                0..region.pages()
            };
            for page in pages {
                self.check(region, page)?;
                if Region::SHARED.contains(&region) {
                    self.check_shared(region, page)?;
                }
            }
        }
        Ok(())
    }
    /// All processes see the word, and the object has it.
    fn check_shared(&mut self, region: Region, page: u64) -> Result<(), String> {
        let (at, known) = (self.at(region, page), *self.known(region, page));
        for process in &self.world.processes {
            let got = load(process, at)?;
            if got != Got::Done(known.value) && !known.lost {
                return Err(format!(
                    "{region:?} page {page}: somebody has {got:x?}, not {known:x?}"
                ));
            }
        }
        let Some(object) = self.object(region).filter(|_| !known.lost) else { return Ok(()) };
        let kept = object.peek(page, self.offset(region, page) as usize);
        if kept != known.value {
            return Err(format!(
                "{region:?} page {page}: the object has {kept:#x}, not {known:x?}"
            ));
        }
        Ok(())
    }
}
