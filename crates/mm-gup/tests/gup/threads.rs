//! Real threads on one address space: faults, changes of the mappings, forks,
//! pins and walks of the trees, all at once and at random. Nothing is lost,
//! nothing is left, and nobody waits for ever.

use core::ops::ControlFlow;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Level, Rights, VirtAddr, VirtRange, respect};
use mm_fault::{
    FaultFlags, FaultOutcome, FaultPolicy, OrderMode, ThpMode, ThpPolicy, handle_fault,
};
use mm_gup::{
    FaultError, FaultHandler, Gup, GupFault, GupFlags, GupPolicy, Resolved, Runs, put_runs,
    unpin_runs,
};
use mm_map::{
    Advice, Batching, MapPolicy, OldPlace, exit, fork, madvise, mmap_anon, mprotect, mremap_move,
    munmap,
};
use mm_pgtable::TableSpace;
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_rmap::{Hit, MappedWalk, RmapPlatform, Seek, Strict};
use mm_vma::{Mm, MmRead, Platform, VmaFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

type M<A> = ModelPlatform<A>;

const RW: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE).union(VmaFlags::SOFTDIRTY);

/// Changes of the mappings per test.
const CHANGES: u32 = 2000;

/// A small generator of random numbers (xorshift).
struct Random(u64);
impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

/// Resolves faults on behalf of GUP.
struct Faults(FaultPolicy);
impl<A: Arch> FaultHandler<M<A>> for Faults {
    fn resolve<'m>(
        &self,
        vmas: MmRead<'m, M<A>>,
        va: VirtAddr,
        fault: GupFault,
    ) -> Resolved<'m, M<A>> {
        let mut flags = FaultFlags::FORCE;
        flags.set(FaultFlags::WRITE, fault.contains(GupFault::WRITE));
        flags.set(FaultFlags::UNSHARE, fault.contains(GupFault::UNSHARE));
        match handle_fault(&self.0, &vmas, va, flags) {
            FaultOutcome::Done { .. } => Resolved::Done(vmas),
            FaultOutcome::Oom => Resolved::Failed(vmas, FaultError::NoMemory),
            _ => Resolved::Failed(vmas, FaultError::Signal),
        }
    }
}

/// Sets the flag when it goes.
struct SetOnDrop<'a>(&'a AtomicBool);
impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

struct World<A: Arch> {
    m: M<A>,
    mm: Arc<Mm<M<A>>>,
    done: AtomicBool,
}

impl<A: Arch> World<A> {
    fn per_table() -> u64 {
        1 << A::order(Level::Pmd)
    }
    /// Two places of two tables each; mappings move between them.
    fn nr_pages() -> u64 {
        4 * Self::per_table()
    }
    fn va(page: u64) -> VirtAddr {
        VirtAddr::new((Self::per_table() + page) << A::PAGE_SHIFT)
    }
    fn range(page: u64, n: u64) -> VirtRange {
        VirtRange::units(Self::va(page), n, A::PAGE_SHIFT).expect("range")
    }
    /// A random range of the world.
    fn some_range(r: &mut Random) -> VirtRange {
        let first = r.below(Self::nr_pages());
        let n = match r.below(4) {
            0 => 1,
            1 => 1 + r.below(20),
            _ => 1 + r.below(Self::nr_pages()),
        };
        Self::range(first, n.min(Self::nr_pages() - first))
    }
    fn faults(r: &mut Random) -> FaultPolicy {
        let pmd = A::order(Level::Pmd);
        let mut thp = ThpPolicy::new(pmd).with_zero_page(r.below(2) == 0);
        if r.below(3) > 0 {
            thp = thp.with_global(ThpMode::Always);
        }
        for order in 2..pmd {
            if r.below(2) == 0 {
                thp = thp.with_order(order, OrderMode::Always);
            }
        }
        FaultPolicy::new(thp)
    }
    fn batching(r: &mut Random) -> MapPolicy {
        let batching = if r.below(2) == 0 { Batching::PerPage } else { Batching::Batched };
        MapPolicy { batching, suspend: batching }
    }

    fn fault(&self, mm: &Mm<M<A>>, r: &mut Random) {
        let write = if r.below(2) == 0 { FaultFlags::WRITE } else { FaultFlags::empty() };
        let vmas = mm.read();
        let _ = handle_fault(&Self::faults(r), &vmas, Self::va(r.below(Self::nr_pages())), write);
    }

    /// One change of the mappings. Errors (a hole, a place in use) are answers.
    fn change(&self, r: &mut Random) {
        let policy = Self::batching(r);
        let range = Self::some_range(r);
        let half = Self::nr_pages() / 2;
        let mut vmas = self.mm.write();
        match r.below(8) {
            0 => drop(munmap(&policy, &mut vmas, range)),
            1 | 2 => {
                for page in 0..Self::nr_pages() {
                    // What is mapped stays.
                    let _ = mmap_anon(&mut vmas, Self::range(page, 1), RW);
                }
            }
            3 => drop(mprotect(&policy, &mut vmas, range, Rights::READ)),
            4 => drop(mprotect(&policy, &mut vmas, range, Rights::READ | Rights::WRITE)),
            5 => drop(madvise(&policy, &mut vmas, range, Advice::DontNeed)),
            6 => {
                let (from, to) = if r.below(2) == 0 { (0, half) } else { (half, 0) };
                let (skip, n) =
                    if r.below(2) == 0 { (0, half) } else { (r.below(half / 2), half / 2) };
                let old = if r.below(2) == 0 { OldPlace::Unmap } else { OldPlace::Keep };
                let from = Self::range(from + skip, n);
                let _ = mremap_move(&policy, &mut vmas, from, Self::va(to + r.below(2)), old);
            }
            _ => {
                drop(vmas);
                if let Ok(child) = fork(&policy, &self.mm) {
                    for _ in 0..r.below(6) {
                        self.fault(&child, r);
                    }
                    exit(&policy, &child);
                }
            }
        }
    }

    /// Takes pages and gives them back.
    fn take(&self, r: &mut Random) {
        let handler = Faults(Self::faults(r));
        let policies = [GupPolicy::PER_PAGE, GupPolicy::BATCHED, GupPolicy::BEST];
        let policy = policies[r.below(3) as usize];
        let gup = Gup::new(&self.mm, &handler).with_policy(policy);
        let range = Self::some_range(r);
        let (va, nr) = (range.start(), range.nr(A::PAGE_SHIFT) as usize);
        let flags = match r.below(3) {
            0 => GupFlags::WRITE,
            1 => GupFlags::LONGTERM,
            _ => GupFlags::empty(),
        };
        let mut out = Runs::new();
        if r.below(2) == 0 {
            let got = gup.pin_fast(va, nr, flags, &mut out).unwrap_or(0);
            assert_eq!(got, out.runs().iter().map(|run| run.nr as usize).sum());
            for run in out.runs() {
                let folio = self.m.memmap().folio(run.head);
                assert!(folio.is_zero_page() || folio.maybe_dma_pinned(), "{folio:?}");
            }
            unpin_runs(self.m.memmap(), out.take());
        } else {
            let got = gup.get_fast(va, nr, flags - GupFlags::LONGTERM, &mut out).unwrap_or(0);
            assert_eq!(got, out.runs().iter().map(|run| run.nr as usize).sum());
            put_runs(self.m.memmap(), out.take());
        }
    }

    /// Finds everything that maps a page, as reclaim does; splits a leaf at times.
    fn walk(&self, r: &mut Random) {
        let gup = Gup::new(&self.mm, &());
        let mut out = Runs::new();
        let va = Self::va(r.below(Self::nr_pages()));
        if gup.get_fast_only(va, 1, GupFlags::empty(), &mut out) != Ok(1) {
            return;
        }
        let map = self.m.memmap();
        let folio = map.folio(out.runs()[0].head);
        if folio.is_anon() {
            let lock = folio.lock();
            let _ = self.m.anon_trees().walk(folio, &mut |mm, visit| {
                let mut walk = MappedWalk::<_, Strict>::new(mm, &visit, folio, Seek::Mappings);
                let mut pages = 0;
                while let Some(hit) = walk.next_hit() {
                    match hit {
                        Hit::Pmd(_) if r.below(4) == 0 => walk.split_pmd(),
                        Hit::Pmd(_) => pages += folio.nr_pages() as usize,
                        Hit::Pte(at) => {
                            let run =
                                at.table.run::<{ respect::NOTHING }>(at.index, at.entry, at.limit);
                            walk.consumed(run.nr());
                            pages += run.nr();
                        }
                    }
                }
                assert!(pages <= folio.nr_pages() as usize, "a page was found twice");
                ControlFlow::Continue(())
            });
            folio.counts_locked(|c| {
                assert!(i64::from(c.refs) > i64::from(c.mapcount), "INV-1 and our own: {c:?}");
            });
            drop(lock);
        }
        put_runs(map, out.take());
    }
}

fn all_at_once<A: Arch>(seed: u64) {
    let config = ModelConfig { huge_zero: true, nr_frames: 1 << 13, ..ModelConfig::default() };
    let m: M<A> = machine(config).expect("machine");
    let mm = Mm::new(m.clone()).expect("space");
    let world = World { m: m.clone(), mm, done: AtomicBool::new(false) };
    let whole = World::<A>::range(0, World::<A>::nr_pages());
    mmap_anon(&mut world.mm.write(), whole, RW).expect("free");
    let random = |n: u64| Random((seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let until_done = |mut r: Random, step: &dyn Fn(&World<A>, &mut Random)| {
        while !world.done.load(Relaxed) {
            step(&world, &mut r);
            // The one that changes mappings waits for all others.
            thread::yield_now();
        }
    };
    thread::scope(|s| {
        s.spawn(|| until_done(random(0), &|w, r| w.fault(&w.mm, r)));
        s.spawn(|| until_done(random(1), &|w, r| w.fault(&w.mm, r)));
        s.spawn(|| until_done(random(2), &World::take));
        s.spawn(|| until_done(random(3), &World::walk));
        // Also when it panics: the others would never end.
        let _done = SetOnDrop(&world.done);
        let mut r = random(4);
        for _ in 0..CHANGES {
            world.change(&mut r);
            thread::yield_now();
        }
    });
    exit(&MapPolicy::default(), &world.mm);
    drop(world);
    assert_eq!((m.folios_in_use(), m.memmap().stats().bad_frees.get()), (0, 0), "leaked");
    assert_eq!(TableSpace::tables(&m).in_use(), 0, "tables leaked");
    let stats = m.memmap().stats();
    assert_eq!(stats.foll_pin_acquired.get(), stats.foll_pin_released.get());
    let gauges = [&stats.nr_anon_mapped, &stats.nr_file_mapped, &stats.nr_anon_thps];
    assert!(gauges.iter().all(|g| g.get() == 0), "a gauge drifted: {stats:?}");
    for (order, s) in stats.order.iter().enumerate() {
        let left = (s.nr_anon.get(), s.nr_anon_partially_mapped.get());
        assert_eq!(left, (0, 0), "gauges of order {order}");
    }
    m.anon_trees().audit(&mut |fault| panic!("the trees: {fault:?}"));
}

/// Rules: FOLIO-03, ZAP-03, ZAP-05, PIN-17, RMAP-24, MM-012.
#[test]
fn on_one_word() {
    all_at_once::<ModelWord<32>>(11);
}
/// As above.
#[test]
fn on_two_words() {
    all_at_once::<ModelPair<32>>(22);
}
/// As above.
#[test]
fn on_blocks() {
    all_at_once::<ModelCont<32, 4>>(33);
}
/// As above.
#[test]
fn on_x86_64() {
    all_at_once::<mm_x86::X86_64>(44);
}
