//! Lists of folios, by age.
//!
//! # The protocol
//!
//! The flag `LRU` of a folio says that it belongs on a list, and its other flags on which
//! (rule FOLIO-43). Taking the flag away is the right to isolate the folio. Whoever makes
//! a folio sets the flag and knows of no list: [`Lru::drain`] links what has the flag and is
//! not linked, as a kernel drains the batches of its CPUs. A link whose folio is gone, or
//! isolated by somebody else, is dropped when a scan comes to it.

use alloc::vec::Vec;
use core::fmt;
use mm_arch::Pfn;
use mm_folio::{AllocError, Folio, FolioFlags, FolioRef, FolioSpace, Get, MemMap};
use mm_sync::{Mutex, RawLock};

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
    const ALL: [LruList; 5] = [
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
}

#[derive(Clone, Copy)]
struct Ends {
    oldest: u32,
    youngest: u32,
}

struct Lists {
    links: Vec<Link>,
    ends: [Ends; LruList::ALL.len()],
}

impl Lists {
    fn unlink(&mut self, at: u32) {
        let Link { older, younger, list } = self.links[at as usize];
        let Some(list) = list else { return };
        match older {
            END => self.ends[list as usize].oldest = younger,
            older => self.links[older as usize].younger = younger,
        }
        match younger {
            END => self.ends[list as usize].youngest = older,
            younger => self.links[younger as usize].older = older,
        }
        self.links[at as usize] = Link { older: END, younger: END, list: None };
    }
    fn link(&mut self, at: u32, list: LruList) {
        self.unlink(at);
        let older = self.ends[list as usize].youngest;
        self.links[at as usize] = Link { older, younger: END, list: Some(list) };
        match older {
            END => self.ends[list as usize].oldest = at,
            older => self.links[older as usize].younger = at,
        }
        self.ends[list as usize].youngest = at;
    }
}

/// The lists of a machine: 12 bytes per frame, and no other memory.
pub struct Lru<L: RawLock> {
    first: Pfn,
    lists: Mutex<L, Lists>,
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
        links.resize(nr, Link { older: END, younger: END, list: None });
        let ends = [Ends { oldest: END, youngest: END }; LruList::ALL.len()];
        Ok(Lru { first, lists: Mutex::new(Lists { links, ends }) })
    }
    fn at(&self, head: Pfn) -> u32 {
        head.since(self.first) as u32
    }

    /// Links every folio that belongs on a list and is on none, as the youngest, in the
    /// order of frames.
    pub fn drain<F: FolioSpace>(&self, map: &MemMap<F>) {
        for folio in map.alive() {
            let flags = folio.flags();
            let at = self.at(folio.head());
            if !flags.contains(FolioFlags::LRU) {
                continue;
            }
            let mut lists = self.lists.lock();
            if lists.links.get(at as usize).is_some_and(|l| l.list.is_none()) {
                lists.link(at, LruList::of(flags));
            }
        }
    }
    /// Takes the oldest folios of a list off it, until they have `nr_pages` pages or the
    /// list is at its end, and hands each to `each` with one reference (rule RECL-13: it is
    /// pages that count). What turns out to belong elsewhere goes there.
    pub fn isolate<'m, F: FolioSpace>(
        &self,
        map: &'m MemMap<F>,
        list: LruList,
        nr_pages: u64,
        each: &mut dyn FnMut(FolioRef<'m, F, Get>),
    ) -> u64 {
        let mut got = 0;
        let mut lists = self.lists.lock();
        let last = lists.ends[list as usize].youngest;
        while got < nr_pages {
            let at = lists.ends[list as usize].oldest;
            if at == END {
                break;
            }
            lists.unlink(at);
            let head = self.first.add(u64::from(at));
            // A frame that is free, or a tail by now, has no folio that begins there.
            let own = map.try_grab::<Get>(head, 1).filter(|own| own.folio().head() == head);
            if let Some(own) = own {
                let folio = own.folio();
                let belongs = LruList::of(folio.flags());
                if belongs != list {
                    if folio.has(FolioFlags::LRU) {
                        lists.link(at, belongs);
                    }
                } else if folio.clear_flag(FolioFlags::LRU) {
                    got += u64::from(folio.nr_pages());
                    each(own);
                }
            }
            if at == last {
                break;
            }
        }
        got
    }
    /// Takes one folio off its list, if nobody else has (rule FOLIO-43). The caller holds a
    /// reference.
    pub fn isolate_one<F: FolioSpace>(&self, folio: Folio<'_, F>) -> bool {
        if !folio.clear_flag(FolioFlags::LRU) {
            return false;
        }
        self.lists.lock().unlink(self.at(folio.head()));
        true
    }
    /// Puts an isolated folio back as the youngest of the list that it belongs on, and gives
    /// the reference back.
    pub fn put_back<F: FolioSpace>(&self, own: FolioRef<'_, F, Get>) {
        let folio = own.folio();
        let mut lists = self.lists.lock();
        lists.link(self.at(folio.head()), LruList::of(folio.flags()));
        // Under the lock: whoever isolates it finds the link.
        folio.set_flag(FolioFlags::LRU);
        drop(lists);
        drop(own);
    }
    /// Makes a listed folio the oldest but those that are already so, and inactive (rule
    /// MADV-06).
    pub fn deactivate<F: FolioSpace>(&self, folio: Folio<'_, F>) {
        folio.clear_flag(FolioFlags::ACTIVE | FolioFlags::REFERENCED);
        if folio.has(FolioFlags::LRU) {
            let mut lists = self.lists.lock();
            lists.link(self.at(folio.head()), LruList::of(folio.flags()));
        }
    }
    /// The heads on a list, oldest first; some may be stale. For tests and dumps.
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
