//! Simulated CPUs: translation caches, walk caches, the hardware walk.
//!
//! A CPU believes its caches. A load or store goes to the translation cache
//! first; on a miss the hardware walks the tables, through its cache of
//! upper-level entries, and sets accessed and dirty bits as hardware does
//! ([`Arch::mmu_mark`]). Nothing but a flush removes what is cached. So a flush
//! that the kernel forgot is a *wrong value* in a test, not a missing call.
//!
//! # Protocol
//!
//! A CPU's caches have one lock, held over a whole access: walk, and use of the
//! memory. A flush takes the lock of every CPU, as an interrupt waits for the
//! instruction that a real CPU is executing. When it returns, no access through
//! a flushed translation is under way (contract of [`Tlb`]).
//!
//! # What is modelled
//!
//! * Negative results are not cached; a translation that denies a store is
//!   dropped and walked again before the CPU faults, so that widening an entry
//!   needs no flush (rule WREUSE-15).
//! * A store through a translation that is not dirty yet walks again, to set the
//!   dirty bit in memory.
//! * A flush of leaves leaves the walk cache alone (rule: only
//!   [`FlushScope::Tables`] drops it). Real CPUs drop more; the contract
//!   promises no more.
//! * Caches never run out of room: what is stale stays, until it is flushed.

use crate::Frames;
use crate::frames::FrameUse;
use mm_arch::explain::Facts;
use mm_arch::{
    AccessKind, Arch, Entry, FlushScope, Level, Pfn, Pinned, SpaceId, TableFrame, Tlb, VirtAddr,
    VirtRange,
};
use mm_sync::stat::Counter;
use mm_sync::{DefaultLock, Mutex};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// What a CPU tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuAccess {
    /// An ordinary access.
    Plain(AccessKind),
    /// A store to a shadow stack: it goes through nothing else, and nothing else goes
    /// through a shadow stack but loads.
    ShadowStack,
}

impl CpuAccess {
    const fn stores(self) -> bool {
        matches!(self, CpuAccess::Plain(AccessKind::Write) | CpuAccess::ShadowStack)
    }
    /// What the hardware marks: an entry of a shadow stack is dirty by its encoding.
    const fn marks(self) -> AccessKind {
        match self {
            CpuAccess::Plain(kind) => kind,
            CpuAccess::ShadowStack => AccessKind::Read,
        }
    }
    pub(crate) fn goes_through<E: Entry>(self, e: E, level: Level) -> bool {
        match self {
            CpuAccess::Plain(kind) => e.permits(kind, level),
            CpuAccess::ShadowStack => Facts::of(e, level).contains(Facts::SHADOW_STACK),
        }
    }
}

/// A page fault: the hardware found no translation that allows the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// The address.
    pub va: VirtAddr,
    /// What was tried.
    pub access: CpuAccess,
}

bitflags::bitflags! {
    /// Bugs that can be planted, to see them caught.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Plant: u8 {
        /// Flushes of ranges do nothing.
        const DROP_RANGE_FLUSHES = 1;
        /// Flushes of whole address spaces do nothing.
        const DROP_SPACE_FLUSHES = 2;
        /// Flushes leave walk caches alone, though a table was unlinked.
        const KEEP_WALK_CACHES = 4;
        /// A CPU stores through a translation that it made for a load, and does not look at
        /// the entry again (rule TLBB-03).
        const STORE_UNSEEN = 8;
    }
}

/// What a CPU did that no CPU may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CpuViolation {
    /// It used, or could use, a translation to a frame that was given back
    /// (rule INV-9).
    #[error("CPU {cpu} still translates {va} of space {} to {pfn}, which was given back", space.0)]
    StaleTranslation {
        /// The CPU.
        cpu: usize,
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
        /// The frame.
        pfn: Pfn,
    },
    /// It walked, or could walk, through a table that was given back.
    #[error("CPU {cpu} still walks {va} of space {} through the freed table {pfn}", space.0)]
    StaleTable {
        /// The CPU.
        cpu: usize,
        /// The address space.
        space: SpaceId,
        /// The address.
        va: VirtAddr,
        /// The frame of the table.
        pfn: Pfn,
    },
}

/// What flushes there were.
#[derive(Debug, Default)]
pub struct FlushCounts {
    /// Flushes of ranges; all that were deferred until then are one.
    pub ranges: Counter,
    /// Bytes in them.
    pub bytes: Counter,
    /// Flushes of ranges that dropped walk caches as well.
    pub tables: Counter,
    /// Flushes of whole address spaces.
    pub spaces: Counter,
    /// Ranges whose flush was deferred.
    pub deferred: Counter,
}

#[derive(Clone, Copy, Debug)]
struct Translation {
    /// First frame of the leaf, and its generation when it was cached.
    head: Pfn,
    generation: u32,
    readable: bool,
    writable: bool,
    executable: bool,
    dirty: bool,
    shadow_stack: bool,
}

impl Translation {
    /// The kind of stores that go through.
    fn stores(&self) -> Option<CpuAccess> {
        if self.shadow_stack {
            return Some(CpuAccess::ShadowStack);
        }
        self.writable.then_some(CpuAccess::Plain(AccessKind::Write))
    }
    fn allows(&self, access: CpuAccess, unseen: bool) -> bool {
        match access {
            CpuAccess::Plain(AccessKind::Read) => self.readable,
            CpuAccess::Plain(AccessKind::Write) => self.writable && (self.dirty || unseen),
            CpuAccess::Plain(AccessKind::Exec) => self.executable,
            CpuAccess::ShadowStack => self.shadow_stack,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct CachedTable {
    frame: TableFrame,
    generation: u32,
}

/// By address space, and address in units of what an entry of the level maps.
type ByUnit<T> = BTreeMap<(SpaceId, u64), T>;

/// The caches of one CPU; index with a level.
#[derive(Debug, Default)]
struct Caches {
    leaves: [ByUnit<Translation>; 2],
    tables: [ByUnit<CachedTable>; 5],
}

/// The CPUs of a machine.
#[derive(Debug)]
pub struct Cpus<A: Arch> {
    cpus: Vec<Mutex<DefaultLock, Caches>>,
    deferred: Mutex<DefaultLock, Vec<(SpaceId, VirtRange)>>,
    /// Held by who flushes what was deferred, from before it takes that to the end.
    flushing: Mutex<DefaultLock, ()>,
    frames: Arc<Frames>,
    counts: FlushCounts,
    planted: AtomicU8,
    violations: Mutex<DefaultLock, Vec<CpuViolation>>,
    _format: PhantomData<fn() -> A>,
}

/// Levels that leaves stand at.
const LEAF_LEVELS: [Level; 2] = [Level::Pte, Level::Pmd];

impl<A: Arch> Cpus<A> {
    /// `nr` CPUs that cache nothing yet.
    pub(crate) fn new(nr: usize, frames: Arc<Frames>) -> Self {
        Cpus {
            cpus: (0..nr.max(1)).map(|_| Mutex::new(Caches::default())).collect(),
            deferred: Mutex::new(Vec::new()),
            flushing: Mutex::new(()),
            frames,
            counts: FlushCounts::default(),
            planted: AtomicU8::new(0),
            violations: Mutex::new(Vec::new()),
            _format: PhantomData,
        }
    }
    /// Number of CPUs.
    pub fn nr(&self) -> usize {
        self.cpus.len()
    }
    /// The flushes so far.
    pub fn flushes(&self) -> &FlushCounts {
        &self.counts
    }
    /// Plants bugs.
    pub fn plant(&self, bugs: Plant) {
        self.planted.store(bugs.bits(), Relaxed);
    }
    fn planted(&self, bug: Plant) -> bool {
        Plant::from_bits_truncate(self.planted.load(Relaxed)).contains(bug)
    }
    /// Translations that CPU `cpu` has cached, of all address spaces.
    pub fn nr_cached(&self, cpu: usize) -> usize {
        self.cpus[cpu].lock().leaves.iter().map(BTreeMap::len).sum()
    }

    /// One access of CPU `cpu` to the 8-byte word at `va`: `f` gets the word.
    ///
    /// `root` is the root table of the address space `space`.
    ///
    /// # Errors
    ///
    /// If the tables do not allow it.
    ///
    /// # Panics
    ///
    /// If there is no such CPU.
    pub(crate) fn access<R>(
        &self,
        cpu: usize,
        space: SpaceId,
        root: TableFrame,
        va: VirtAddr,
        access: CpuAccess,
        f: impl FnOnce(&AtomicU64) -> R,
    ) -> Result<R, PageFault> {
        let mut caches = self.cpus[cpu].lock();
        let unseen = self.planted(Plant::STORE_UNSEEN);
        let (t, level) = match caches.translation::<A>(space, va, access, unseen) {
            Some(hit) => hit,
            None => self.walk(&mut caches, cpu, space, root, va, access)?,
        };
        if t.generation != self.frames.generation(t.head) {
            self.report(CpuViolation::StaleTranslation { cpu, space, va, pfn: t.head });
        }
        let in_leaf = va.get() & ((1 << A::shift(level)) - 1);
        let pfn = t.head.add(in_leaf >> A::PAGE_SHIFT);
        if access.stores() {
            self.frames.set_stored(pfn);
        }
        let word = (va.get() & ((1 << A::PAGE_SHIFT) - 1)) as usize / 8;
        Ok(f(&self.frames.ram().words(pfn)[word]))
    }

    /// The hardware walk.
    fn walk(
        &self,
        caches: &mut Caches,
        cpu: usize,
        space: SpaceId,
        root: TableFrame,
        va: VirtAddr,
        access: CpuAccess,
    ) -> Result<(Translation, Level), PageFault> {
        let fault = PageFault { va, access };
        if va.get() >= A::USER_END {
            return Err(fault);
        }
        let (mut frame, first) =
            caches.deepest_table::<A>(space, va).map_or((root, 0), |(t, i)| {
                if t.generation != self.frames.generation(t.frame.pfn()) {
                    let pfn = t.frame.pfn();
                    self.report(CpuViolation::StaleTable { cpu, space, va, pfn });
                }
                (t.frame, i)
            });
        for level in A::LEVELS[first..].iter().copied() {
            let Some(table) = self.table(frame) else { return Err(fault) };
            let index = A::index(va, level);
            if level != Level::Pte {
                let e = A::read_upper::<Pinned>(table, index);
                if let Some(next) = e.as_table(level) {
                    frame = next;
                    let generation = self.frames.generation(next.pfn());
                    caches.tables[level as usize].insert(
                        (space, va.get() >> A::shift(level)),
                        CachedTable { frame, generation },
                    );
                    continue;
                }
            }
            let t = self.leaf(table, index, level, access).ok_or(fault)?;
            caches.leaves[level as usize].insert((space, va.get() >> A::shift(level)), t);
            return Ok((t, level));
        }
        Err(fault)
    }

    /// Marks the leaf at `index` as hardware does and reads it.
    fn leaf(
        &self,
        table: &A::Table,
        index: usize,
        level: Level,
        access: CpuAccess,
    ) -> Option<Translation> {
        let read = || {
            if level == Level::Pte {
                A::read::<Pinned>(table, index)
            } else {
                A::read_upper::<Pinned>(table, index)
            }
        };
        loop {
            let e = read();
            let allowed = e.is_leaf(level) && access.goes_through(e, level);
            if !allowed || !A::mmu_mark(table, index, access.marks(), level) {
                return None;
            }
            // The entry that was marked may have been another one: a CPU does
            // both in one step.
            let marked = read();
            if marked.is_leaf(level) && marked.pfn(level) == e.pfn(level) {
                let head = marked.pfn(level);
                return Some(Translation {
                    head,
                    generation: self.frames.generation(head),
                    readable: marked.permits(AccessKind::Read, level),
                    writable: marked.permits(AccessKind::Write, level),
                    executable: marked.permits(AccessKind::Exec, level),
                    // Cached dirty only if this walk set it in memory.
                    dirty: access.marks() == AccessKind::Write,
                    shadow_stack: CpuAccess::ShadowStack.goes_through(marked, level),
                });
            }
        }
    }

    /// The table in `frame`, unless that is no table any more.
    fn table(&self, frame: TableFrame) -> Option<&A::Table> {
        if self.frames.usage(frame.pfn()) != FrameUse::Table {
            return None;
        }
        // SAFETY: the frame holds a table. It is freed only after it was
        // unlinked and flushed; the flush waits for the lock of this CPU. With
        // a planted bug it may be freed and even reused while this reference
        // lives: frames are never unmapped, and whatever is in them is words.
        Some(unsafe { self.frames.ram().frame(frame.pfn()).cast().as_ref() })
    }
    /// One flush: each CPU is interrupted once.
    fn interrupt(&self, ranges: &[(SpaceId, VirtRange)], scope: FlushScope) {
        self.counts.ranges.add(1);
        self.counts.bytes.add(ranges.iter().map(|(_, range)| range.bytes()).sum());
        if self.planted(Plant::DROP_RANGE_FLUSHES) {
            return;
        }
        for caches in &self.cpus {
            let mut caches = caches.lock();
            for &(space, range) in ranges {
                caches.drop_leaves::<A>(space, range);
                if scope == FlushScope::Tables && !self.planted(Plant::KEEP_WALK_CACHES) {
                    caches.drop_tables::<A>(space, range);
                }
            }
        }
    }
    fn report(&self, v: CpuViolation) {
        self.violations.lock().push(v);
    }

    /// What CPUs did that they must not, and what they could do with what they
    /// have cached. Forgets the former.
    pub fn audit(&self) -> Vec<CpuViolation> {
        let mut found = std::mem::take(&mut *self.violations.lock());
        for (cpu, caches) in self.cpus.iter().enumerate() {
            let caches = caches.lock();
            let stale = |pfn, generation| self.frames.generation(pfn) != generation;
            for level in LEAF_LEVELS {
                for (&(space, unit), t) in &caches.leaves[level as usize] {
                    if stale(t.head, t.generation) {
                        let (va, pfn) = (VirtAddr::new(unit << A::shift(level)), t.head);
                        found.push(CpuViolation::StaleTranslation { cpu, space, va, pfn });
                    }
                }
            }
            for level in A::LEVELS {
                for (&(space, unit), t) in &caches.tables[*level as usize] {
                    if stale(t.frame.pfn(), t.generation) {
                        let (va, pfn) = (VirtAddr::new(unit << A::shift(*level)), t.frame.pfn());
                        found.push(CpuViolation::StaleTable { cpu, space, va, pfn });
                    }
                }
            }
        }
        found
    }
    /// Every translation that a CPU has cached, as (CPU, space, address, level,
    /// first frame, the stores that it allows). For audits.
    pub(crate) fn each_cached(
        &self,
        mut each: impl FnMut(usize, SpaceId, VirtAddr, Level, Pfn, Option<CpuAccess>),
    ) {
        for (cpu, caches) in self.cpus.iter().enumerate() {
            let caches = caches.lock();
            for level in LEAF_LEVELS {
                for (&(space, unit), t) in &caches.leaves[level as usize] {
                    let va = VirtAddr::new(unit << A::shift(level));
                    each(cpu, space, va, level, t.head, t.stores());
                }
            }
        }
    }
}

impl Caches {
    /// The cached translation of `va`, if it allows the access without a walk.
    /// One that does not is dropped.
    fn translation<A: Arch>(
        &mut self,
        space: SpaceId,
        va: VirtAddr,
        access: CpuAccess,
        unseen: bool,
    ) -> Option<(Translation, Level)> {
        for level in LEAF_LEVELS {
            let key = (space, va.get() >> A::shift(level));
            let leaves = &mut self.leaves[level as usize];
            if let Some(t) = leaves.get(&key) {
                if t.allows(access, unseen) {
                    return Some((*t, level));
                }
                leaves.remove(&key);
            }
        }
        None
    }
    /// The lowest cached table on the way to `va`, and its place in the levels.
    fn deepest_table<A: Arch>(&self, space: SpaceId, va: VirtAddr) -> Option<(CachedTable, usize)> {
        (0..A::LEVELS.len() - 1).rev().find_map(|i| {
            let level = A::LEVELS[i];
            let t = self.tables[level as usize].get(&(space, va.get() >> A::shift(level)))?;
            Some((*t, i + 1))
        })
    }
    fn drop_leaves<A: Arch>(&mut self, space: SpaceId, range: VirtRange) {
        for level in LEAF_LEVELS {
            drop_units(&mut self.leaves[level as usize], space, range, A::shift(level));
        }
    }
    fn drop_tables<A: Arch>(&mut self, space: SpaceId, range: VirtRange) {
        for level in A::LEVELS {
            drop_units(&mut self.tables[*level as usize], space, range, A::shift(*level));
        }
    }
}

fn drop_units<T>(cache: &mut ByUnit<T>, space: SpaceId, range: VirtRange, shift: u32) {
    let units = (space, range.start().get() >> shift)..=(space, range.last().get() >> shift);
    let keys: Vec<_> = cache.range(units).map(|(k, _)| *k).collect();
    for key in keys {
        cache.remove(&key);
    }
}

impl<A: Arch> Tlb for Cpus<A> {
    fn flush_range(&self, space: SpaceId, range: VirtRange, scope: FlushScope) {
        self.counts.tables.add(u64::from(scope == FlushScope::Tables));
        self.interrupt(&[(space, range)], scope);
    }
    fn flush_space(&self, space: SpaceId) {
        self.counts.spaces.add(1);
        if self.planted(Plant::DROP_SPACE_FLUSHES) {
            return;
        }
        for caches in &self.cpus {
            let mut caches = caches.lock();
            caches.leaves.iter_mut().for_each(|c| c.retain(|(s, _), _| *s != space));
            if !self.planted(Plant::KEEP_WALK_CACHES) {
                caches.tables.iter_mut().for_each(|c| c.retain(|(s, _), _| *s != space));
            }
        }
    }
    fn defer_range(&self, space: SpaceId, range: VirtRange) {
        self.counts.deferred.add(1);
        let mut deferred = self.deferred.lock();
        match deferred.last_mut() {
            // Neighbours are flushed as one.
            Some((last_space, last))
                if *last_space == space && last.last().checked_add(1) == Some(range.start()) =>
            {
                *last = last.hull(range);
            }
            _ => deferred.push((space, range)),
        }
    }
    /// With one CPU there is nobody to interrupt.
    fn defers(&self, _: SpaceId) -> bool {
        A::BROADCASTS_FLUSHES || self.cpus.len() > 1
    }
    /// Flushes what any CPU deferred: more than asked for, at once. What the caller deferred may
    /// be in the hands of somebody else, who is waited for.
    fn flush_deferred(&self) {
        let _flushing = self.flushing.lock();
        let ranges = std::mem::take(&mut *self.deferred.lock());
        if !ranges.is_empty() {
            self.interrupt(&ranges, FlushScope::Leaves);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, MachineConfig, Preset};
    use mm_x86::X86_64;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    /// Rules: TLBB-05, TLBB-06, F-RACE-15. Whoever finds the flush that it needs in the hands of
    /// somebody else waits for that one.
    #[test]
    fn a_flush_that_somebody_else_makes_is_waited_for() {
        let config = MachineConfig { bytes: 16 << 20, cpus: 2, ..MachineConfig::default() };
        let machine = Machine::<X86_64>::new(config, Preset::Best.policy()).expect("machine");
        let cpus = machine.host().cpus();
        let range = VirtRange::units(VirtAddr::new(0x1000), 1, 12).expect("a page");
        let made = AtomicBool::new(false);
        // A CPU that does not answer yet.
        let busy = cpus.cpus[1].lock();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                cpus.defer_range(SpaceId(1), range);
                cpus.flush_deferred();
            });
            while cpus.flushes().ranges.get() == 0 {
                std::thread::yield_now();
            }
            let second = threads.spawn(|| {
                cpus.flush_deferred();
                assert!(made.load(Relaxed), "a CPU may still have the translation");
            });
            std::thread::sleep(Duration::from_millis(20));
            made.store(true, Relaxed);
            drop(busy);
            second.join().expect("it waited");
        });
        assert_eq!(cpus.flushes().ranges.get(), 1, "there is nothing left for the second");
    }
}
