//! The same programs on every entry format, and on several CPUs at once.

use mm_arch::cont::ContEntry;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level, VirtAddr, VirtRange};
use mm_arm64::{Arm64, Granule, Granule4K, Granule16K, Granule64K};
use mm_fault::{OrderMode, ThpMode};
use mm_gup::GupFlags;
use mm_map::Advice;
use mm_pgtable::Step;
use mm_riscv::{Riscv, Sv57};
use mm_sim::{File, Machine, MachineConfig, Object, Pinned, Preset, Process, Shadow, audit, leaks};
use mm_vma::{Platform, VmaFlags};
use mm_x86::X86_64;

/// Below the end of user space of every format here.
const BASE: u64 = 64 << 20;

fn page(i: u64) -> VirtAddr {
    VirtAddr::new(BASE + i * 4096)
}
fn pages(first: u64, n: u64) -> VirtRange {
    VirtRange::units(page(first), n, 12).expect("range")
}
fn machine<A: Arch>(preset: Preset, cpus: usize) -> Machine<A> {
    let mut policy = preset.policy();
    policy.fault.thp =
        policy.fault.thp.with_global(ThpMode::Never).with_order(4, OrderMode::Always);
    let config = MachineConfig { bytes: 32 << 20, cpus, poison: true, ..MachineConfig::default() };
    Machine::new(config, policy).expect("machine")
}
const RW: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE);

/// Stores to each page of a range, and tells the shadow.
fn fill<A: Arch>(shadow: &mut Shadow, id: u32, p: &Process<A>, first: u64, n: u64, value: u64) {
    for i in first..first + n {
        p.store(page(i), value + i).expect("store");
        shadow.store(id, page(i), value + i);
    }
}

/// Audits the machine and what each process sees.
fn check<A: Arch>(
    m: &Machine<A>,
    shadow: &Shadow,
    all: &[(u32, &Process<A>)],
    pins: &[&Pinned<A>],
) {
    m.settle();
    assert_eq!(audit(m, all.iter().map(|(_, p)| *p), pins.iter().copied()), []);
    for (id, p) in all {
        assert_eq!(shadow.audit(*id, p), []);
    }
}

fn program<A: Arch>(preset: Preset) {
    let m = machine::<A>(preset, 1);
    let mut shadow = Shadow::default();
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 64), RW).expect("mmap");
    fill(&mut shadow, 0, &p, 0, 64, 100);
    check(&m, &shadow, &[(0, &p)], &[]);
    let pin = p.pin(page(16), 8, GupFlags::WRITE | GupFlags::LONGTERM).expect("pin");
    let child = p.fork().expect("fork");
    shadow.fork(0, 1, |_| true);
    check(&m, &shadow, &[(0, &p), (1, &child)], &[&pin]);
    fill(&mut shadow, 0, &p, 8, 20, 200);
    fill(&mut shadow, 1, &child, 0, 10, 300);
    p.mprotect(pages(30, 10), mm_arch::Rights::READ).expect("mprotect");
    child.munmap(pages(20, 5)).expect("munmap");
    shadow.forget(1, pages(20, 5));
    check(&m, &shadow, &[(0, &p), (1, &child)], &[&pin]);
    // The device and the process see the same memory.
    (0..8).for_each(|i| assert_eq!(pin.load(i, 0), p.load(page(16 + i as u64)).ok()));
    drop(pin);
    p.madvise(pages(0, 20), Advice::DontNeed).expect("madvise");
    shadow.forget(0, pages(0, 20));
    check(&m, &shadow, &[(0, &p), (1, &child)], &[]);
    p.exit();
    check(&m, &shadow, &[(1, &child)], &[]);
    fill(&mut shadow, 1, &child, 30, 34, 400);
    check(&m, &shadow, &[(1, &child)], &[]);
    child.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

#[test]
fn x86_64() {
    Preset::ALL.iter().for_each(|p| program::<X86_64>(*p));
}
#[test]
fn one_word() {
    Preset::ALL.iter().for_each(|p| program::<ModelWord<512>>(*p));
}
#[test]
fn two_words() {
    Preset::ALL.iter().for_each(|p| program::<ModelPair<512>>(*p));
}
#[test]
fn contiguous_blocks() {
    Preset::ALL.iter().for_each(|p| program::<ModelCont<512, 16>>(*p));
}
#[test]
fn arm64() {
    Preset::ALL.iter().for_each(|p| program::<Arm64<Granule4K>>(*p));
}
#[test]
fn riscv() {
    Preset::ALL.iter().for_each(|p| program::<Riscv<Sv57>>(*p));
}

/// Folios at aligned addresses are folded, fork folds the child's, a store to one page
/// takes its block apart; and a pin looks at each block once. `BLOCK` pages are a block.
fn blocks<G: Granule, const BLOCK: usize>() {
    let page = |i: usize| VirtAddr::new(BASE + ((i as u64) << G::PAGE_SHIFT));
    let pages = |n| VirtRange::units(page(0), n as u64, G::PAGE_SHIFT).expect("range");
    let mut policy = Preset::Best.policy();
    policy.fault.thp = policy.fault.thp.with_order(BLOCK.trailing_zeros(), OrderMode::Always);
    let config = MachineConfig { bytes: 64 << 20, poison: true, ..MachineConfig::default() };
    let m = Machine::<Arm64<G>>::new(config, policy).expect("machine");
    let p = m.spawn().expect("process");
    let nr = 4 * BLOCK;
    p.mmap_anon(pages(nr), RW).expect("mmap");
    (0..nr).for_each(|i| p.store(page(i), i as u64).expect("store"));
    let folded = |p: &Process<Arm64<G>>| {
        let walk = p.mm().tables().pin();
        let marked = |i: &usize| match walk.walk(page(*i)) {
            Step::Table(_, ptes) => ptes.pte(ptes.index_of(page(*i))).is_cont(),
            _ => false,
        };
        (0..nr).filter(marked).count()
    };
    assert_eq!(folded(&p), nr);
    let seen = || {
        let counts = m.host().observer();
        (counts.entries_read.get(), counts.entries_by_hint.get())
    };
    let pin = p.pin(page(0), nr, GupFlags::WRITE).expect("pin");
    assert_eq!(pin.nr_pages(), nr);
    drop(pin);
    assert_eq!(seen(), (4, nr as u64 - 4), "four folios, one look at each");
    let child = p.fork().expect("fork");
    assert_eq!((folded(&p), folded(&child)), (nr, nr));
    child.store(page(BLOCK + 4), 7).expect("store");
    assert_eq!((folded(&p), folded(&child)), (nr, nr - BLOCK));
    assert_eq!(child.load(page(BLOCK + 5)), Ok(BLOCK as u64 + 5));
    m.settle();
    assert_eq!(audit(&m, [&p, &child], []), []);
    child.exit();
    // A folio is given up whole or split before, so no block is given up in part.
    p.madvise_free(pages(nr)).expect("given up");
    assert_eq!(folded(&p), nr);
    let walk = p.mm().tables().pin();
    for i in 0..nr {
        let Step::Table(_, ptes) = walk.walk(page(i)) else { panic!("no table for page {i}") };
        let e = ptes.pte(ptes.index_of(page(i)));
        assert!(!e.is_dirty() && !e.is_young(), "page {i}: {e:?}");
    }
    drop(walk);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Rules: A64-01, ACC-14, CONT-02, CONT-07, CONT-13, CONT-16, GUPF-16.
#[test]
fn blocks_are_folded_and_taken_by_hint() {
    blocks::<Granule4K, 16>();
    blocks::<Granule16K, 128>();
    blocks::<Granule64K, 32>();
}

/// CPUs fault, fork, pin and unmap at once; afterwards every audit holds.
/// Rules: INV-1, INV-5, INV-9.
#[test]
fn cpus_at_once_leave_a_sound_machine() {
    let m = machine::<X86_64>(Preset::Best, 3);
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 96), RW).expect("mmap");
    std::thread::scope(|s| {
        // Stores and checks its own pages.
        s.spawn(|| {
            for round in 0..60 {
                for i in 0..32 {
                    p.store(page(i), round << 8 | i).expect("store");
                    assert_eq!(p.load(page(i)), Ok(round << 8 | i));
                }
            }
        });
        // Forks: the child's pages are one moment of the parent's, and its own.
        s.spawn(|| {
            for _ in 0..30 {
                let mut child = p.fork().expect("fork");
                child.run_on(1);
                for i in 0..32 {
                    let seen = child.load(page(i)).expect("load");
                    assert!(seen == 0 || seen & 0xff == i, "{seen:#x} at {i}");
                    child.store(page(i), 1 << 40).expect("store");
                }
                child.exit();
            }
        });
        // Pins, drops and unmaps pages of its own.
        s.spawn(|| {
            for round in 0..60 {
                for i in 64..96 {
                    p.store(page(i), round << 8 | i).expect("store");
                }
                let pin = p.pin(page(64), 32, GupFlags::WRITE).expect("pin");
                pin.store(3, 0, round << 8 | 67);
                assert_eq!(p.load(page(67)), Ok(round << 8 | 67));
                drop(pin);
                p.madvise(pages(64, 16), Advice::DontNeed).expect("madvise");
                assert_eq!(p.load(page(70)), Ok(0));
                p.munmap(pages(80, 16)).expect("munmap");
                p.mmap_anon(pages(80, 16), RW).expect("mmap");
            }
        });
    });
    m.settle();
    assert_eq!(audit(&m, [&p], []), []);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), []);
}

/// Rules: PIN-17. However a holder gives pages back, every pin is counted out again,
/// and a plain reference is no pin.
#[test]
fn pins_given_back_are_counted() {
    let m = machine::<X86_64>(Preset::Best, 1);
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 32), RW).expect("mmap");
    let counts = || {
        let stats = m.host().memmap().stats();
        (stats.foll_pin_acquired.get(), stats.foll_pin_released.get())
    };
    drop(p.pin(page(0), 20, GupFlags::WRITE).expect("pin"));
    assert_eq!(counts(), (20, 20));
    let mut written = p.pin(page(3), 5, GupFlags::WRITE).expect("pin");
    written.dirty_at_end();
    assert_eq!(counts(), (25, 20));
    drop(written);
    assert_eq!(counts(), (25, 25));
    drop(p.get(page(0), 20, GupFlags::WRITE).expect("get"));
    assert_eq!(counts(), (25, 25));
}

/// What a read fault maps besides the page that was asked for is old where hardware marks
/// it at no cost, and young elsewhere.
///
/// Rules: FILE-04.
#[test]
fn entries_that_nobody_asked_for() {
    fn asked_for<A: Arch>() -> Vec<u64> {
        let m = machine::<A>(Preset::Linux618, 1);
        let p = m.spawn().expect("process");
        let f = File::new(m.host(), 0).expect("memory");
        (0..16).for_each(|i| f.write(i, 1, &|_, _| 7).expect("room"));
        p.mmap_object(pages(0, 16), VmaFlags::READ, f, 0).expect("mmap");
        assert_eq!(p.load(page(5)), Ok(7));
        let walk = p.mm().tables().pin();
        let young = |i: &u64| match walk.walk(page(*i)) {
            Step::Table(_, ptes) => {
                let e = ptes.get(ptes.index_of(page(*i)));
                assert!(e.is_present(Level::Pte), "mapped around the fault");
                e.is_young()
            }
            _ => panic!("no table"),
        };
        (0..16).filter(young).collect()
    }
    assert_eq!(asked_for::<X86_64>(), (0..16).collect::<Vec<_>>());
    assert_eq!(asked_for::<Arm64<Granule4K>>(), [5]);
}

/// Rules: ANON-09, ANON-06.
#[test]
fn what_a_large_folio_may_cost() {
    use mm_fault::Defrag;
    let order = |defrag, advised, fragmented| {
        let m = machine::<X86_64>(Preset::Best, 1);
        m.host().set_policy(|p| p.fault.thp.defrag = defrag);
        m.host().frames().fragmented(fragmented);
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 16), RW).expect("mmap");
        if advised {
            p.madvise(pages(0, 16), Advice::HugePage).expect("advice");
        }
        p.store(page(3), 1).expect("store");
        let first = m.host().memmap().alive().find(|f| f.is_mapped()).expect("mapped");
        first.order()
    };
    use Defrag::{Always, Defer, DeferMadvise, Madvise, Never};
    for (defrag, plain, advised) in
        [(Always, 4, 4), (Defer, 0, 0), (DeferMadvise, 0, 4), (Madvise, 0, 4), (Never, 0, 0)]
    {
        assert_eq!((order(defrag, false, false), order(defrag, true, false)), (4, 4));
        let got = (order(defrag, false, true), order(defrag, true, true));
        assert_eq!(got, (plain, advised), "{defrag:?}");
    }
}
