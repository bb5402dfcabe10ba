//! Lists of folios, by age.
//!
//! # The protocol
//!
//! The flag `LRU` of a folio says that it is on a list, and its other flags on which (rule
//! FOLIO-43). Taking the flag away is the right to isolate the folio. Whoever makes a
//! folio knows of no list: it calls [`enlist`](mm_folio::Folio::enlist), which sets the flag
//! and then tells the [`FolioSource`](mm_folio::FolioSource), and a kernel's source links
//! it here. The source takes the link away when the folio is freed, so a link is of a folio
//! that is alive, or dies or is split just now and cannot be grabbed.
//!
//! ```text
//!   enlist              isolate                        free
//!     LRU := 1            oldest link: grab              references are 0: no grab
//!     lock: link          LRU 1 -> 0: mine               lock: unlink
//!                         lock: unlink
//! ```
//!
//! Somebody may isolate a folio between the two steps of `enlist`; the link that comes late
//! goes when a scan comes to it, or with the next that the folio gets. Flags change without
//! the lists: a folio that belongs elsewhere goes there when a scan comes to it.
//!
//! Every step takes the same time however much memory there is. The lock is innermost, and no
//! reference is given back under it: it may be the last one.

use alloc::vec::Vec;
use core::fmt;
use mm_arch::Pfn;
use mm_folio::{AllocError, Folio, FolioFlags, FolioRef, FolioSpace, Get, MemMap};
use mm_sync::{Mutex, MutexGuard, RawLock, mutant};

/// A list (rule LRU-01).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LruList {
    /// Anonymous and shared memory that may go.
    InactiveAnon,
    /// Anonymous and shared memory in use.
    ActiveAnon,
    /// Pages of files, and memory that was given up, that may go.
    InactiveFile,
    /// Pages of files in use.
    ActiveFile,
    /// What must stay.
    Unevictable,
}

impl LruList {
    /// All of them.
    pub const ALL: [LruList; 5] = [
        LruList::InactiveAnon,
        LruList::ActiveAnon,
        LruList::InactiveFile,
        LruList::ActiveFile,
        LruList::Unevictable,
    ];

    /// The list that a folio with these flags belongs on.
    pub const fn of(flags: FolioFlags) -> Self {
        let active = flags.contains(FolioFlags::ACTIVE);
        if flags.intersects(FolioFlags::UNEVICTABLE.union(FolioFlags::MLOCKED)) {
            LruList::Unevictable
        } else if flags.contains(FolioFlags::SWAPBACKED) {
            if active { LruList::ActiveAnon } else { LruList::InactiveAnon }
        } else if active {
            LruList::ActiveFile
        } else {
            LruList::InactiveFile
        }
    }
}

/// No frame.
const END: u32 = u32::MAX;

/// The link of a frame that heads a folio.
#[derive(Clone, Copy)]
struct Link {
    older: u32,
    younger: u32,
    list: Option<LruList>,
    /// The folio's when it was linked.
    order: u8,
}

const UNLINKED: Link = Link { older: END, younger: END, list: None, order: 0 };

/// One list: its ends, and how much is on it.
#[derive(Clone, Copy)]
struct Ends {
    oldest: u32,
    youngest: u32,
    folios: u64,
    pages: u64,
}

struct Lists {
    links: Vec<Link>,
    ends: [Ends; LruList::ALL.len()],
}

impl Lists {
    fn unlink(&mut self, at: u32) {
        let Link { older, younger, list, order } = self.links[at as usize];
        let Some(list) = list else { return };
        let ends = &mut self.ends[list as usize];
        ends.folios -= 1;
        ends.pages -= 1 << order;
        match older {
            END => ends.oldest = younger,
            older => self.links[older as usize].younger = younger,
        }
        match younger {
            END => ends.youngest = older,
            younger => self.links[younger as usize].older = older,
        }
        self.links[at as usize] = UNLINKED;
    }
    /// Makes a folio the youngest of a list, wherever it was.
    fn link(&mut self, at: u32, order: u32, list: LruList) {
        self.unlink(at);
        let ends = &mut self.ends[list as usize];
        ends.folios += 1;
        ends.pages += 1 << order;
        let older = core::mem::replace(&mut ends.youngest, at);
        match older {
            END => ends.oldest = at,
            older => self.links[older as usize].younger = at,
        }
        self.links[at as usize] =
            Link { older, younger: END, list: Some(list), order: order as u8 };
    }
    /// The oldest on a list but those up to `passed`, which is on it.
    fn after(&self, list: LruList, passed: Option<u32>) -> u32 {
        let link = passed.map(|at| self.links[at as usize]).filter(|link| link.list == Some(list));
        link.map_or(self.ends[list as usize].oldest, |link| link.younger)
    }
}

/// How far a scan of one list has come: to the folio that it passed over last. Folios that
/// were passed over stay where they are.
pub struct Passed<'m, F: FolioSpace>(Option<FolioRef<'m, F, Get>>);

impl<F: FolioSpace> Default for Passed<'_, F> {
    /// None: a scan begins with the oldest.
    fn default() -> Self {
        Passed(None)
    }
}
impl<F: FolioSpace> fmt::Debug for Passed<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Passed").field(&self.0.as_ref().map(FolioRef::folio)).finish()
    }
}

/// The lists of a machine: 12 bytes per frame, and no other memory.
pub struct Lru<L: RawLock> {
    first: Pfn,
    lists: Mutex<L, Lists>,
    whole: Mutex<L, ()>,
}

impl<L: RawLock> Lru<L> {
    /// Empty lists for `nr_frames` frames from `first` on.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new(first: Pfn, nr_frames: u64) -> Result<Self, AllocError> {
        let nr = u32::try_from(nr_frames).map_err(|_| AllocError)? as usize;
        let mut links = Vec::new();
        links.try_reserve_exact(nr).map_err(|_| AllocError)?;
        links.resize(nr, UNLINKED);
        let ends = [Ends { oldest: END, youngest: END, folios: 0, pages: 0 }; LruList::ALL.len()];
        Ok(Lru { first, lists: Mutex::new(Lists { links, ends }), whole: Mutex::new(()) })
    }
    /// The place of a link; of a frame that has none it is behind the last one.
    fn at(&self, head: Pfn) -> u32 {
        u32::try_from(head.since(self.first)).unwrap_or(END)
    }

    /// Links a folio as the youngest of the list that `flags` say: for
    /// [`FolioSource::list`](mm_folio::FolioSource::list).
    ///
    /// # Panics
    ///
    /// If the lists are not for this frame.
    pub fn list(&self, head: Pfn, order: u32, flags: FolioFlags) {
        self.lists.lock().link(self.at(head), order, LruList::of(flags));
    }
    /// Takes a folio that dies off its list, if it is on one: for
    /// [`FolioSource::unlist`](mm_folio::FolioSource::unlist).
    ///
    /// # Panics
    ///
    /// If the lists are not for this frame.
    pub fn unlist(&self, head: Pfn) {
        if !mutant!("lru.free.keeps_link") {
            self.lists.lock().unlink(self.at(head));
        }
    }
    /// The right to reclaim everybody's memory on request, if nobody has it (rule
    /// PROACT-03). A kernel that does so by itself may keep it for as long.
    pub fn whole(&self) -> Option<MutexGuard<'_, L, ()>> {
        self.whole.try_lock()
    }
    /// Pages on a list.
    pub fn nr_pages(&self, list: LruList) -> u64 {
        self.lists.lock().ends[list as usize].pages
    }

    /// Takes the oldest folios of a list off it that are `wanted` and not passed over yet,
    /// until they have `nr_pages` pages or each folio was looked at once, and hands each to
    /// `each` with one reference (rule RECL-13: it is pages that count). What turns out to
    /// belong elsewhere goes there.
    ///
    /// Neither is called under a lock of the lists.
    pub fn isolate<'m, F: FolioSpace>(
        &self,
        map: &'m MemMap<F>,
        list: LruList,
        nr_pages: u64,
        passed: &mut Passed<'m, F>,
        wanted: &mut dyn FnMut(Folio<'m, F>) -> bool,
        each: &mut dyn FnMut(FolioRef<'m, F, Get>),
    ) -> u64 {
        let (mut got, mut left) = (0, self.lists.lock().ends[list as usize].folios);
        while got < nr_pages && left > 0 {
            let Some((own, belongs)) = self.oldest(map, list, passed) else { break };
            left -= 1;
            let folio = own.folio();
            if !belongs {
                continue;
            }
            if !wanted(folio) {
                *passed = Passed(Some(own));
            } else if self.isolate_one(folio) {
                got += u64::from(folio.nr_pages());
                each(own);
            }
        }
        got
    }
    /// The oldest folio of a list but those that were passed over and those that cannot be
    /// grabbed, and whether it belongs there; if not, it is not there any more.
    fn oldest<'m, F: FolioSpace>(
        &self,
        map: &'m MemMap<F>,
        list: LruList,
        passed: &Passed<'m, F>,
    ) -> Option<(FolioRef<'m, F, Get>, bool)> {
        let mut lists = self.lists.lock();
        let mut at = lists.after(list, passed.0.as_ref().map(|own| self.at(own.folio().head())));
        loop {
            if at == END {
                return None;
            }
            let head = self.first.add(u64::from(at));
            // One that dies has its link taken away; one that is split keeps it.
            let Some(own) = map.try_grab::<Get>(head, 1) else {
                at = lists.links[at as usize].younger;
                continue;
            };
            let (folio, flags) = (own.folio(), own.folio().flags());
            debug_assert_eq!(folio.head(), head, "a link is of the head of a folio");
            let belongs = LruList::of(flags);
            if !flags.contains(FolioFlags::LRU) && !mutant!("lru.scan.keeps_late_link") {
                lists.unlink(at);
            } else if belongs != list {
                lists.link(at, folio.order(), belongs);
            } else {
                return Some((own, true));
            }
            return Some((own, false));
        }
    }
    /// Takes one folio off its list, if nobody else has (rule FOLIO-43). The caller holds a
    /// reference.
    pub fn isolate_one<F: FolioSpace>(&self, folio: Folio<'_, F>) -> bool {
        if mutant!("lru.isolate.blind") {
            folio.clear_flag(FolioFlags::LRU);
        } else if !folio.clear_flag(FolioFlags::LRU) {
            return false;
        }
        self.lists.lock().unlink(self.at(folio.head()));
        true
    }
    /// The heads on a list, oldest first. For audits and tests.
    pub fn heads(&self, list: LruList) -> Vec<Pfn> {
        let lists = self.lists.lock();
        let (mut at, mut heads) = (lists.ends[list as usize].oldest, Vec::new());
        while at != END {
            heads.push(self.first.add(u64::from(at)));
            at = lists.links[at as usize].younger;
        }
        heads
    }
}

impl<L: RawLock> fmt::Debug for Lru<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lru").field("first", &self.first).finish_non_exhaustive()
    }
}
