//! What the threads of a round share.

use crate::THREADS;
use crate::planted::Planted;
use crate::random::Random;
use crate::region::{CUT, Region, map_all};
use mm_arch::Arch;
use mm_map::Ksm;
use mm_sim::{EventCounts, File, Host, Machine, Object, Process, Shmem, ShmemKind};
use mm_vma::Platform;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often things were done.
#[derive(Default)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub fn add(&mut self, what: &'static str, nr: u64) {
        *self.0.entry(what).or_default() += nr;
    }
    pub fn merge(&mut self, other: &Tally) {
        other.0.iter().for_each(|(what, nr)| self.add(what, *nr));
    }
    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<_> = self.0.iter().map(|(what, nr)| format!("{nr} {what}")).collect();
        f.write_str(&parts.join(", "))
    }
}

pub struct World<A: Arch> {
    /// What goes wrong on purpose.
    pub planted: Option<Planted>,
    pub processes: Vec<Process<A>>,
    /// Those that live, for who has to know all processes.
    children: Mutex<Vec<Arc<Process<A>>>>,
    shared: [Arc<dyn Object<A, EventCounts>>; 3],
    /// Files and shared memory that one thread each cuts.
    pub files: Vec<Arc<File<A, EventCounts>>>,
    cut: Vec<[Arc<dyn Object<A, EventCounts>>; 2]>,
    pub ksm: Mutex<Ksm<Host<A>>>,
    /// One at a time takes swap away.
    pub swap_off: Mutex<()>,
    /// Pages that fit on swap.
    pub slots: u64,
    /// Whether the write protection of pages that are not there is noted.
    pub marks_holes: bool,
    /// Whether reads from swap fail now and then: a page is lost then, or cannot be had now.
    pub reads_fail: bool,
    /// Reads from swap that were told to fail.
    pub failures: AtomicU64,
    /// Pages that cannot be had.
    pub lost: AtomicU64,
}

impl<A: Arch> World<A> {
    /// On a new machine, with processes that have everything mapped.
    pub fn new(
        machine: &Machine<A>,
        random: &mut Random,
        planted: Option<Planted>,
    ) -> Result<Self, Box<dyn Error>> {
        let host = machine.host();
        let file = File::new(host, Region::File.pages())?;
        for first in (0..Region::File.pages()).step_by(16) {
            file.write(first, 16, &|_, _| 0)?;
        }
        let shmem = |region: Region| Shmem::new(host, ShmemKind::Anonymous, region.pages());
        let (mut files, mut cut) = (Vec::new(), Vec::new());
        for _ in 0..THREADS {
            let (file, shmem) = (File::new(host, CUT)?, Shmem::new(host, ShmemKind::Memfd, CUT)?);
            files.push(file.clone());
            cut.push([file as Arc<dyn Object<A, EventCounts>>, shmem]);
        }
        let mut world = World {
            planted,
            processes: Vec::new(),
            children: Mutex::default(),
            shared: [file, shmem(Region::Shmem)?, shmem(Region::MarkedShmem)?],
            cut,
            files,
            ksm: Mutex::default(),
            swap_off: Mutex::default(),
            // Less than there is to swap, now and then.
            slots: if random.once_in(3) { 512 } else { 16384 },
            marks_holes: random.once_in(2),
            reads_fail: random.once_in(4),
            failures: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        host.swap().add::<A>(world.slots)?;
        for me in 0..THREADS {
            let mut process = machine.spawn()?;
            process.run_on(me);
            map_all(&process, me, &world)?;
            world.processes.push(process);
        }
        Ok(world)
    }
    /// The object that a region shows, of thread `owner` if each has one.
    pub fn object(&self, region: Region, owner: usize) -> Option<&Arc<dyn Object<A, EventCounts>>> {
        match region {
            Region::CutFile | Region::Copied => Some(&self.cut[owner][0]),
            Region::CutShmem => Some(&self.cut[owner][1]),
            _ => self.shared.get(Region::SHARED.iter().position(|r| *r == region)?),
        }
    }
    fn children(&self) -> MutexGuard<'_, Vec<Arc<Process<A>>>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub fn add_child(&self, child: &Arc<Process<A>>) {
        self.children().push(child.clone());
    }
    pub fn remove_child(&self, child: &Arc<Process<A>>) {
        self.children().retain(|c| !Arc::ptr_eq(c, child));
    }
    /// Calls `f` with all processes that live, as far as is known.
    pub fn with_all<R>(&self, f: impl FnOnce(&mut dyn Iterator<Item = &Process<A>>) -> R) -> R {
        let children = self.children().clone();
        f(&mut self.processes.iter().chain(children.iter().map(|c| &**c)))
    }
    /// One more page cannot be had. A read that fails loses one folio of 16 pages at most, and
    /// each thread may hear of it.
    pub fn lose(&self) -> Result<(), String> {
        let (lost, failed) = (1 + self.lost.fetch_add(1, Relaxed), self.failures.load(Relaxed));
        if lost > failed * 16 * THREADS as u64 {
            return Err(format!("{lost} pages are lost by {failed} reads that failed"));
        }
        Ok(())
    }
}
