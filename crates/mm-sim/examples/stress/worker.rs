//! One thread: what it does, and what it knows of the words that are its own.

use mm_arch::{Arch, Rights, VirtAddr, VirtRange};
use mm_folio::{FolioRef, Get};
use mm_gup::GupFlags;
use mm_map::{Advice, LockWhen};
use mm_reclaim::{LruList, Passed, ReclaimOf, ReclaimPlatform, Shrink, shrink_folios};
use mm_sim::{AccessError, EventCounts, Host, Object, Pinned, Process};
use mm_vma::{Platform, VmaFlags};
use std::sync::Arc;

/// Pages of each region.
pub const PAGES: u64 = 256;
const PAGE: u64 = 4096;
const RIGHTS: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE);
/// How often an access is tried again that others were in the way of.
const PATIENCE: usize = 100_000;

type Objects<A> = [Arc<dyn Object<A, EventCounts>>];

/// Marsaglia's, behind a mixer that makes neighbouring seeds unlike.
pub struct Random(u64);
impl Random {
    pub fn new(seed: u64) -> Self {
        let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Random((mixed ^ mixed >> 29) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
    /// Some of the pages of a region: first, number.
    fn pages(&mut self, most: u64) -> (u64, u64) {
        let first = self.below(PAGES);
        (first, 1 + self.below(most.min(PAGES - first)))
    }
}

/// What is mapped where, in every process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// A file that all processes share.
    File,
    /// Shared memory of all processes.
    Shmem,
    /// Memory of its own.
    Anon,
    /// Memory of its own that it gives up now and then.
    Free,
}

impl Region {
    const ALL: [Region; 4] = [Region::File, Region::Shmem, Region::Anon, Region::Free];
    fn va(self, page: u64) -> VirtAddr {
        VirtAddr::new(0x1_0000_0000 + ((self as u64) << 24) + page * PAGE)
    }
    fn range(self, (first, nr): (u64, u64)) -> VirtRange {
        VirtRange::units(self.va(first), nr, 12).expect("inside of user space")
    }
}

/// Maps the regions of a process.
pub fn map_all<A: Arch>(process: &Process<A>, objects: &Objects<A>) -> Result<(), String> {
    for (region, object) in Region::ALL.into_iter().zip(objects) {
        let (range, shared) = (region.range((0, PAGES)), RIGHTS | VmaFlags::SHARED);
        process.mmap_object(range, shared, object.clone(), 0).map_err(|e| e.to_string())?;
    }
    for region in [Region::Anon, Region::Free] {
        let range = region.range((0, PAGES));
        process.mmap_anon(range, RIGHTS).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// What a word of the thread's own may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Word {
    value: u64,
    /// It was given up: zero is right, too.
    or_zero: bool,
}

/// A child, and what its private memory was at the fork.
struct Child<A: Arch> {
    process: Process<A>,
    anon: Vec<Word>,
    /// What the parent gives up later is the child's as before.
    free: Vec<Word>,
}

pub struct Worker<'m, A: Arch> {
    me: usize,
    processes: &'m [Process<A>],
    objects: &'m Objects<A>,
    random: Random,
    stored: u64,
    words: [Vec<Word>; Region::ALL.len()],
    held: Vec<(Region, u64, Pinned<A>)>,
    children: Vec<Child<A>>,
    /// Pages that were pinned.
    pub pins: u64,
    /// Children that were made.
    pub forks: u64,
}

impl<'m, A: Arch> Worker<'m, A> {
    pub fn new(
        me: usize,
        processes: &'m [Process<A>],
        objects: &'m Objects<A>,
        random: Random,
    ) -> Self {
        let words = Region::ALL.map(|_| vec![Word::default(); PAGES as usize]);
        let (held, children) = (Vec::new(), Vec::new());
        let (stored, pins, forks) = (0, 0, 0);
        Worker { me, processes, objects, random, stored, words, held, children, pins, forks }
    }
    fn own(&self) -> &'m Process<A> {
        &self.processes[self.me]
    }
    fn host(&self) -> &'m Host<A> {
        self.own().host()
    }
    /// Where the thread's word of a page is.
    fn offset(&self, page: u64) -> u64 {
        (page % 100 * self.processes.len() as u64 + self.me as u64) * 8
    }
    fn at(&self, region: Region, page: u64) -> VirtAddr {
        VirtAddr::new(region.va(page).get() + self.offset(page))
    }
    fn word(&mut self, region: Region, page: u64) -> &mut Word {
        &mut self.words[region as usize][page as usize]
    }
    fn value(&mut self) -> u64 {
        self.stored += 1;
        (self.me as u64 + 1) << 48 | self.stored
    }

    /// Does something.
    pub fn operate(&mut self) -> Result<(), String> {
        match self.random.below(26) {
            0..6 => self.access(Region::Anon),
            6..8 => self.access(Region::File),
            8..10 => self.access(Region::Shmem),
            10 => self.access(Region::Free),
            11 => self.give_up(),
            12 => self.pin(),
            13 => self.unpin(),
            14 => self.fork(),
            15 => self.forget_child(),
            16 => self.write_file(),
            17 => self.protect(),
            18 => self.map_anew(),
            19 => self.drop_now(),
            20 => self.keep(),
            21 | 22 => {
                self.shrink();
                Ok(())
            }
            _ => {
                self.page_out();
                Ok(())
            }
        }
    }
    /// Loads a word that is known, and stores another one, or not.
    fn access(&mut self, region: Region) -> Result<(), String> {
        let page = self.random.below(PAGES);
        self.check(region, page)?;
        if self.random.below(3) > 0 {
            let value = self.value();
            store(self.own(), self.at(region, page), value)?;
            *self.word(region, page) = Word { value, or_zero: false };
        }
        Ok(())
    }
    fn check(&mut self, region: Region, page: u64) -> Result<(), String> {
        let (process, at) = (self.own(), self.at(region, page));
        let word = self.word(region, page);
        *word = expect(process, at, *word).map_err(|e| format!("{region:?}: {e}"))?;
        Ok(())
    }
    fn give_up(&mut self) -> Result<(), String> {
        let (first, nr) = self.random.pages(32);
        let range = Region::Free.range((first, nr));
        self.own().madvise_free(range).map_err(|e| format!("MADV_FREE: {e}"))?;
        for page in first..first + nr {
            self.word(Region::Free, page).or_zero = true;
        }
        Ok(())
    }

    /// What is dropped at once reads as zero.
    fn drop_now(&mut self) -> Result<(), String> {
        let (first, nr) = self.random.pages(8);
        let range = Region::Free.range((first, nr));
        self.own().madvise(range, Advice::DontNeed).map_err(|e| format!("DONTNEED: {e}"))?;
        for page in first..first + nr {
            *self.word(Region::Free, page) = Word::default();
        }
        self.check(Region::Free, first)
    }
    /// Keeps pages in memory for a while.
    fn keep(&mut self) -> Result<(), String> {
        let (first, nr) = self.random.pages(16);
        let range = Region::Anon.range((first, nr));
        // There may be no memory for all of them.
        let _ = self.own().mlock(range, LockWhen::Now);
        self.check(Region::Anon, first)?;
        self.own().munlock(range).map_err(|e| format!("munlock: {e}"))
    }

    /// A device takes pages and writes to them.
    fn pin(&mut self) -> Result<(), String> {
        let region = Region::ALL[self.random.below(3) as usize];
        let (first, nr) = self.random.pages(20);
        // Reclaim may be in the way of every attempt: that is no fault.
        let Ok(mut pinned) = self.own().pin(region.va(first), nr as usize, GupFlags::WRITE) else {
            return Ok(());
        };
        pinned.dirty_at_end();
        self.pins += nr;
        for k in 0..nr {
            let value = self.value();
            pinned.store(k as usize, self.offset(first + k) as usize, value);
            *self.word(region, first + k) = Word { value, or_zero: false };
        }
        self.held.push((region, first, pinned));
        if self.held.len() > 4 { self.unpin() } else { Ok(()) }
    }
    /// A device and a CPU see the same, from the first to the last.
    fn unpin(&mut self) -> Result<(), String> {
        if self.held.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        let (region, first, pinned) = self.held.swap_remove(at);
        for k in 0..pinned.nr_pages() as u64 {
            let page = first + k;
            self.check(region, page)?;
            let seen = pinned.load(k as usize, self.offset(page) as usize);
            let expected = self.word(region, page).value;
            if seen != Some(expected) {
                return Err(format!(
                    "{region:?} page {page}: a pin has {seen:?}, not {expected:#x}"
                ));
            }
        }
        Ok(())
    }

    fn fork(&mut self) -> Result<(), String> {
        if self.children.len() >= 2 {
            self.forget_child()?;
        }
        let Ok(mut process) = self.own().fork() else { return Ok(()) };
        process.run_on(self.random.below(self.processes.len() as u64) as usize);
        self.forks += 1;
        let mut anon = self.words[Region::Anon as usize].clone();
        for _ in 0..8 {
            let page = self.random.below(PAGES);
            let (at, word) = (self.at(Region::Anon, page), &mut anon[page as usize]);
            expect(&process, at, *word).map_err(|e| format!("a child: {e}"))?;
            *word = Word { value: self.value(), or_zero: false };
            store(&process, at, word.value)?;
            // The parent's is another one.
            self.check(Region::Anon, page)?;
        }
        let free = self.words[Region::Free as usize].clone();
        self.children.push(Child { process, anon, free });
        Ok(())
    }
    fn forget_child(&mut self) -> Result<(), String> {
        let Some(child) = self.children.pop() else { return Ok(()) };
        for (region, words) in [(Region::Anon, &child.anon), (Region::Free, &child.free)] {
            for (page, word) in (0..PAGES).zip(words) {
                let at = self.at(region, page);
                expect(&child.process, at, *word).map_err(|e| format!("an old child: {e}"))?;
            }
        }
        Ok(())
    }

    fn write_file(&mut self) -> Result<(), String> {
        let file = &self.objects[Region::File as usize];
        file.sync().map_err(|e| format!("fsync: {e}"))?;
        file.forget_clean();
        let page = self.random.below(PAGES);
        let (got, word) =
            (file.read(page, self.offset(page) as usize), self.word(Region::File, page));
        if got != Ok(word.value) {
            return Err(format!("the file has {got:?} on page {page}, not {:#x}", word.value));
        }
        Ok(())
    }
    /// What may not be stored to is not, and what may be is.
    fn protect(&mut self) -> Result<(), String> {
        let (first, nr) = self.random.pages(32);
        let range = Region::Anon.range((first, nr));
        self.own().mprotect(range, Rights::READ).map_err(|e| format!("mprotect: {e}"))?;
        let page = first + self.random.below(nr);
        let at = self.at(Region::Anon, page);
        if store(self.own(), at, u64::MAX).is_ok() {
            return Err(format!("a store to {at}, which is read-only"));
        }
        let both = Rights::READ | Rights::WRITE;
        self.own().mprotect(range, both).map_err(|e| format!("mprotect: {e}"))
    }
    /// Memory that is mapped anew is empty.
    fn map_anew(&mut self) -> Result<(), String> {
        while !self.held.is_empty() {
            self.unpin()?;
        }
        let (first, nr) = self.random.pages(24);
        let range = Region::Anon.range((first, nr));
        self.own().munmap(range).map_err(|e| format!("munmap: {e}"))?;
        self.own().mmap_anon(range, RIGHTS).map_err(|e| format!("mmap: {e}"))?;
        for page in first..first + nr {
            *self.word(Region::Anon, page) = Word::default();
        }
        self.check(Region::Anon, first)
    }

    /// Reclaims some pages of a process, its own or another.
    fn page_out(&mut self) {
        let processes = self.processes;
        let process = &processes[self.random.below(processes.len() as u64) as usize];
        let region = Region::ALL[self.random.below(4) as usize];
        let range = region.range(self.random.pages(64));
        // Mappings come and go: a hole is no fault.
        let _ = if self.random.below(4) == 0 {
            process.madvise_cold(range)
        } else {
            process.madvise_pageout(range)
        };
    }
    /// Reclaims what has been on a list for long.
    fn shrink(&mut self) {
        let host = self.host();
        let lists = [
            LruList::InactiveAnon,
            LruList::InactiveFile,
            LruList::ActiveAnon,
            LruList::ActiveFile,
        ];
        let list = lists[self.random.below(4) as usize];
        if self.random.below(8) == 0 {
            // What cannot be written stays.
            host.swap().fail_write_after(Some(self.random.below(16)));
        }
        let nr = 1 + self.random.below(64);
        let mut isolated: Vec<FolioRef<'_, Host<A>, Get>> = Vec::new();
        host.lru().isolate(
            host.memmap(),
            list,
            nr,
            &mut Passed::default(),
            &mut |_| true,
            &mut |own| isolated.push(own),
        );
        let shrink = Shrink {
            policy: host.policy().unmap,
            of: ReclaimOf::Everybody,
            ignore_references: self.random.below(2) == 0,
            may_unmap: self.random.below(8) > 0,
        };
        let mut isolated = isolated.into_iter();
        let _ = shrink_folios(&shrink, host, || isolated.next());
    }

    /// Gives everything back but the memory.
    pub fn end(&mut self) -> Result<(), String> {
        while !self.held.is_empty() {
            self.unpin()?;
        }
        while !self.children.is_empty() {
            self.forget_child()?;
        }
        Ok(())
    }
    /// Reads every word once more, by each process that should see it.
    pub fn check_all(mut self) -> Result<Self, String> {
        for region in Region::ALL {
            for page in 0..PAGES {
                self.check(region, page)?;
                let word = *self.word(region, page);
                if let Some(object) = self.objects.get(region as usize) {
                    for process in self.processes {
                        expect(process, self.at(region, page), word)?;
                    }
                    let kept = object.peek(page, self.offset(page) as usize);
                    if kept != word.value {
                        return Err(format!(
                            "{region:?} has {kept:#x} on page {page}, not {word:?}"
                        ));
                    }
                }
            }
        }
        Ok(self)
    }
}

/// Loads a word; what is known of it now.
fn expect<A: Arch>(process: &Process<A>, at: VirtAddr, word: Word) -> Result<Word, String> {
    let got = patiently(|| process.load(at))?;
    if got == word.value {
        Ok(word)
    } else if word.or_zero && got == 0 {
        Ok(Word::default())
    } else {
        Err(format!("{at} holds {got:#x}, not {word:?}"))
    }
}
fn store<A: Arch>(process: &Process<A>, at: VirtAddr, value: u64) -> Result<(), String> {
    patiently(|| process.store(at, value))
}
/// An access that somebody else reclaims the page of again and again is made again.
fn patiently<R>(mut access: impl FnMut() -> Result<R, AccessError>) -> Result<R, String> {
    for _ in 0..PATIENCE {
        match access() {
            Ok(r) => return Ok(r),
            Err(AccessError::Stuck(_) | AccessError::NoMemory(_)) => std::thread::yield_now(),
            Err(e) => return Err(e.to_string()),
        }
    }
    Err("an access that never succeeds".to_owned())
}
