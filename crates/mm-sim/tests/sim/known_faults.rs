//! Known faults of real systems, as programs see them.

use crate::common::*;
use mm_arch::{Entry, Level, Pfn};
use mm_fault::FaultSignal;
use mm_folio::FolioFlags;
use mm_gup::{FaultHandler, Gup, GupFault, GupFlags, Resolved, Runs, put_runs};
use mm_map::Advice;
use mm_pgtable::{LockedEntry, TableSpace};
use mm_sim::*;
use mm_vma::{MmRead, Platform, VmaFlags};
use std::cell::Cell;

fn machine() -> M {
    machine_of(32)
}
/// A process with `n` pages of its own, of which page `i` says `100 + i`.
fn filled(m: &M, n: u64) -> P {
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, n), RW).expect("mmap");
    (0..n).for_each(|i| p.store(page(i), 100 + i).expect("store"));
    p
}
fn pfn_at(p: &P, i: u64) -> Pfn {
    let vmas = p.mm().read();
    match p.mm().tables().lock_entry(vmas.stay(), page(i)) {
        LockedEntry::Table(t) => t.get(t.index_of(page(i))).pfn(Level::Pte),
        other => panic!("{other:?}"),
    }
}
fn is_writable(p: &P, i: u64) -> bool {
    let vmas = p.mm().read();
    match p.mm().tables().lock_entry(vmas.stay(), page(i)) {
        LockedEntry::Table(t) => t.get(t.index_of(page(i))).is_writable(Level::Pte),
        other => panic!("{other:?}"),
    }
}
#[track_caller]
fn sound(m: &M, processes: &[&P]) {
    m.settle();
    assert_eq!(audit(m, processes.iter().copied(), []), []);
}
fn segv(i: u64) -> Result<u64, AccessError> {
    Err(AccessError::Signal(FaultSignal::Segv { va: page(i) }))
}

/// Who holds a page reads what its process read, whoever stores later.
///
/// Rules: REUSE-08, GUPS-24. Cases: MM-019.
#[test]
fn a_holder_keeps_the_side_of_its_process() {
    for preset in [Preset::Baseline, Preset::Linux618, Preset::Series, Preset::Best] {
        for pins in [false, true] {
            let m = machine();
            m.host().set_policy(|p| *p = preset.policy());
            let p = filled(&m, 4);
            let child = p.fork().expect("fork");
            let take = |i| {
                let flags = GupFlags::empty();
                if pins { child.pin(page(i), 1, flags) } else { child.get(page(i), 1, flags) }
            };
            let (gone, kept) = (take(0).expect("there"), take(1).expect("there"));
            child.munmap(pages(0, 1)).expect("munmap");
            p.store(page(0), 7).expect("store");
            p.store(page(1), 8).expect("store");
            assert_eq!((p.load(page(0)), p.load(page(1))), (Ok(7), Ok(8)));
            assert_eq!(gone.load(0, 0), Some(100), "{preset:?}");
            assert_eq!(kept.load(0, 0), Some(101), "{preset:?}");
            // A pin stays with its process.
            child.store(page(1), 9).expect("store");
            assert_eq!(kept.load(0, 0), Some(if pins { 9 } else { 101 }), "{preset:?}");
            drop((gone, kept));
            sound(&m, &[&p, &child]);
        }
    }
}

/// A handler that lets another thread in after each of the first faults: it discards the
/// range before GUP looks again.
struct Discarded<'p, H> {
    faults: H,
    process: &'p P,
    left: Cell<u32>,
}
impl<H: FaultHandler<Host<A>>> FaultHandler<Host<A>> for Discarded<'_, H> {
    fn resolve<'m>(
        &self,
        vmas: MmRead<'m, Host<A>>,
        va: mm_arch::VirtAddr,
        fault: GupFault,
    ) -> Resolved<'m, Host<A>> {
        assert!(fault.contains(GupFault::WRITE), "a retry wants what the first attempt wanted");
        match self.faults.resolve(vmas, va, fault) {
            Resolved::Done(vmas) if self.left.get() > 0 => {
                self.left.set(self.left.get() - 1);
                drop(vmas);
                self.process.madvise(pages(0, 1), Advice::DontNeed).expect("advice");
                Resolved::LockDropped
            }
            other => other,
        }
    }
}

/// Rules: GUPS-22, GUPS-23, GUPS-31. Cases: MM-021.
#[test]
fn a_forced_write_never_reaches_the_file() {
    for discards in 0..4 {
        let m = machine();
        let file = File::new(m.host(), 0).expect("memory");
        file.write(0, 1, &|_, _| 0xf00).expect("written");
        file.sync().expect("synced");
        let p = m.spawn().expect("process");
        p.mmap_object(pages(0, 1), VmaFlags::READ, file.clone(), 0).expect("mmap");
        assert_eq!(p.load(page(0)), Ok(0xf00));
        let handler = Discarded { faults: p.gup_handler(), process: &p, left: Cell::new(discards) };
        let mut out = Runs::new();
        let flags = GupFlags::WRITE | GupFlags::FORCE;
        let got = Gup::new(p.mm(), &handler).get_remote(page(0), 1, flags, &mut out);
        assert_eq!((got, handler.left.get()), (Ok(1), 0));
        // What is written to is a page of the process, and mapped there.
        let folio = m.host().memmap().folio(out.runs()[0].head);
        assert!(folio.is_anon() && folio.head() == pfn_at(&p, 0));
        put_runs(m.host().memmap(), out.take());
        p.mem_write(page(0), 0xbad).expect("written");
        assert_eq!((p.load(page(0)), file.read(0, 0)), (Ok(0xbad), Ok(0xf00)));
        assert!(!is_writable(&p, 0));
        sound(&m, &[&p]);
    }
}

/// Both CPUs have the shared page cached when one of them stores.
///
/// Rules: FAULT-13. Cases: MM-083, MM-112.
#[test]
fn a_copy_is_seen_by_every_cpu() {
    let m = machine();
    let mut p = filled(&m, 2);
    let child = p.fork().expect("fork");
    for cpu in [0, 1] {
        p.run_on(cpu);
        assert_eq!((p.load(page(0)), p.load(page(1))), (Ok(100), Ok(101)));
    }
    for (cpu, other, value) in [(1, 0, 1), (0, 1, 2)] {
        p.run_on(cpu);
        p.store(page(value - 1), value).expect("store");
        assert_ne!(pfn_at(&p, value - 1), pfn_at(&child, value - 1));
        assert_eq!(p.load(page(value - 1)), Ok(value));
        p.run_on(other);
        assert_eq!(p.load(page(value - 1)), Ok(value), "CPU {other}");
    }
    assert_eq!((child.load(page(0)), child.load(page(1))), (Ok(100), Ok(101)));
    sound(&m, &[&p, &child]);
}

/// A frame is given to somebody else only when no CPU can reach it any more.
///
/// Rules: ZAP-03, INV-9. Cases: MM-114.
#[test]
fn a_frame_changes_hands_behind_the_flush() {
    let m = machine();
    let p = filled(&m, 8);
    let frames: Vec<_> = (0..8).map(|i| pfn_at(&p, i)).collect();
    p.munmap(pages(0, 8)).expect("munmap");
    let mut q = m.spawn().expect("process");
    q.run_on(1);
    q.mmap_anon(pages(0, 1 << 12), RW).expect("mmap");
    let mut again = 0;
    for i in 0..1 << 12 {
        q.store(page(i), 500 + i).expect("store");
        if frames.contains(&pfn_at(&q, i)) {
            again += 1;
            for old in 0..8 {
                assert_eq!(p.load(page(old)), segv(old));
                assert_eq!(p.store(page(old), 0xbad).err(), segv(old).err());
            }
        }
        if again == 4 {
            break;
        }
    }
    // Others of them are tables of the other process.
    assert_eq!(again, 4, "the frames were never used again");
    (0..1 << 12).take_while(|i| q.load(page(*i)) != Ok(0)).for_each(|i| {
        assert_eq!(q.load(page(i)), Ok(500 + i));
    });
    sound(&m, &[&p, &q]);
}

/// A table goes with the walk caches that lead to it, wherever in it the removal began.
///
/// Rules: ZAP-03, ZAP-10, INV-9. Cases: MM-085.
#[test]
fn no_walk_goes_through_a_table_that_was_freed() {
    for (first, n) in [(0, 512), (300, 212), (300, 600), (511, 1), (0, 1)] {
        let m = machine();
        let p = m.spawn().expect("process");
        // The tables beside it stay in use.
        p.mmap_anon(pages(512, 1024), RW).expect("mmap");
        p.store(page(512 + 700), 7).expect("store");
        p.store(page(512 + 511), 8).expect("store");
        p.mmap_anon(pages(first, n.min(512 - first)), RW).expect("mmap");
        p.store(page(first), 1).expect("store");
        let freed = m.host().tables().in_use();
        p.munmap(pages(first, n)).expect("munmap");
        m.settle();
        assert_eq!(m.host().tables().in_use(), freed - 1, "{first}, {n}");
        assert_eq!(m.host().cpus().audit(), [], "{first}, {n}");
        // Its frame serves another table.
        p.mmap_anon(pages(2048, 8), RW).expect("mmap");
        p.store(page(2048), 9).expect("store");
        assert_eq!((p.load(page(first)), p.load(page(512 + 700))), (segv(first), Ok(7)));
        sound(&m, &[&p]);
    }
}

/// Rules: FORK-03, FORK-04. Cases: MM-117.
#[test]
fn shared_memory_stays_writable_after_a_fork() {
    let m = machine();
    let p = m.spawn().expect("process");
    p.mmap_shared(pages(0, 2), RW).expect("mmap");
    p.store(page(0), 1).expect("store");
    let child = p.fork().expect("fork");
    assert!(is_writable(&p, 0), "nothing was protected");
    let faults = p.take_faults().cpu.len();
    assert!(faults > 0);
    child.store(page(0), 2).expect("store");
    assert_eq!(p.load(page(0)), Ok(2));
    p.store(page(0), 3).expect("store");
    assert_eq!((child.load(page(0)), p.take_faults().cpu.len()), (Ok(3), 0));
    assert_eq!(pfn_at(&p, 0), pfn_at(&child, 0));
    let folio = m.host().memmap().folio(pfn_at(&p, 0));
    assert!(!folio.is_anon() && folio.has(FolioFlags::SWAPBACKED));
    sound(&m, &[&p, &child]);
}
