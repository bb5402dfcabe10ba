//! Soft-dirty tracking and guards, by a process.

use mm_arch::model::{ModelCont, ModelPair};
use mm_arch::{Arch, Entry, Level, Rights, VirtAddr, VirtRange};
use mm_fault::{OrderMode, ThpMode};
use mm_gup::GupFlags;
use mm_map::Advice;
use mm_pgtable::LockedEntry;
use mm_sim::{AccessError, Machine, MachineConfig, Preset, Process, audit, leaks};
use mm_vma::VmaFlags;
use mm_x86::X86_64;

fn page(i: u64) -> VirtAddr {
    VirtAddr::new((64 << 20) + i * 4096)
}
fn pages(first: u64, n: u64) -> VirtRange {
    VirtRange::units(page(first), n, 12).expect("range")
}
/// A machine whose folios have 16 pages, and a process with 32 pages that it stored to.
fn filled<A: Arch>(preset: Preset) -> (Machine<A>, Process<A>) {
    let mut policy = preset.policy();
    let thp = policy.fault.thp.with_global(ThpMode::Never);
    policy.fault.thp = thp.with_order(4, OrderMode::Always);
    let config = MachineConfig { bytes: 16 << 20, poison: true, ..MachineConfig::default() };
    let m = Machine::<A>::new(config, policy).expect("machine");
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 32), VmaFlags::READ | VmaFlags::WRITE).expect("mmap");
    (0..32).for_each(|i| p.store(page(i), i).expect("store"));
    (m, p)
}
fn soft_dirty<A: Arch>(p: &Process<A>) -> Vec<u64> {
    let guard = p.mm().read();
    let is_set = |i: &u64| match p.mm().tables().lock_entry(guard.stay(), page(*i)) {
        LockedEntry::Table(t) => {
            let e = t.get(t.index_of(page(*i)));
            e.is_present(Level::Pte) && e.is_soft_dirty()
        }
        _ => false,
    };
    (0..36).filter(is_set).collect()
}
fn faults<A: Arch>(p: &Process<A>) -> usize {
    p.take_faults().cpu.len()
}
fn check<A: Arch>(m: &Machine<A>, p: Process<A>) {
    m.settle();
    assert_eq!(audit(m, [&p], []), []);
    p.exit();
    m.settle();
    assert_eq!(leaks(m), []);
}

/// Rules: S-MP4, PTE-14, WRITE-01, MM-044.
fn stores_are_remembered<A: Arch>(preset: Preset) {
    let (m, p) = filled::<A>(preset);
    assert_eq!(soft_dirty(&p).len(), 32);
    p.clear_soft_dirty().expect("memory");
    assert!(soft_dirty(&p).is_empty());
    faults(&p);
    p.store(page(5), 1).expect("store");
    assert_eq!((soft_dirty(&p), faults(&p)), (vec![5], 1));
    // No upgrade hides the next store, of any page but those that are known already.
    p.mprotect(pages(0, 32), Rights::READ).expect("mprotect");
    p.mprotect(pages(0, 32), Rights::READ | Rights::WRITE).expect("mprotect");
    assert_eq!(soft_dirty(&p), [5]);
    for i in [5, 6, 20] {
        p.store(page(i), 2).expect("store");
    }
    assert_eq!((soft_dirty(&p), faults(&p)), (vec![5, 6, 20], 2));
    assert_eq!((0..32).map(|i| p.load(page(i)).expect("load")).sum::<u64>(), 471);
    check(&m, p);
}
#[test]
fn stores_after_a_reset_are_remembered() {
    // Page by page: what reuses whole folios marks what it makes writable as stored to.
    for preset in [Preset::Baseline, Preset::Linux618] {
        stores_are_remembered::<X86_64>(preset);
        stores_are_remembered::<ModelPair<512>>(preset);
        stores_are_remembered::<ModelCont<512, 16>>(preset);
    }
}

/// A device may store to a pinned page at any time: it stays writable, and soft-dirty.
#[test]
fn pinned_pages_stay_as_they_are() {
    let (m, p) = filled::<X86_64>(Preset::Linux618);
    let pin = p.pin(page(0), 1, GupFlags::WRITE | GupFlags::LONGTERM).expect("pin");
    p.clear_soft_dirty().expect("memory");
    // The folio of the pinned page.
    assert_eq!(soft_dirty(&p), (0..16).collect::<Vec<_>>());
    drop(pin);
    p.clear_soft_dirty().expect("memory");
    assert!(soft_dirty(&p).is_empty());
    check(&m, p);
}

/// Rules: PTE-14, WRITE-01. In a mapping that says "stored to" itself entries become writable that do
/// not. What a device may store to stays writable when tracking begins anew, and says it then.
#[test]
fn pinned_pages_say_that_they_are_stored_to() {
    for preset in [Preset::Linux618, Preset::Best] {
        let (m, p) = filled::<X86_64>(preset);
        let new = pages(32, 4);
        p.mmap_anon(new, VmaFlags::READ | VmaFlags::WRITE).expect("mmap");
        // A page of its own that was never stored to.
        let pinned = p.pin(page(34), 1, GupFlags::LONGTERM).expect("mapped");
        for rights in [Rights::READ, Rights::READ | Rights::WRITE] {
            p.mprotect(new, rights).expect("mapped");
        }
        p.clear_soft_dirty().expect("memory");
        p.store(page(34), 7).expect("store");
        assert!(soft_dirty(&p).contains(&34), "it was stored to");
        drop(pinned);
        check(&m, p);
    }
}

fn is_guard<A: Arch>(p: &Process<A>, i: u64) -> bool {
    matches!(p.load(page(i)), Err(AccessError::Signal(mm_fault::FaultSignal::Segv { .. })))
}
fn guards_of<A: Arch>(p: &Process<A>) -> Vec<u64> {
    (0..32).filter(|i| is_guard(p, *i)).collect()
}

/// Rules: GUARD-01.
fn guards<A: Arch>(preset: Preset) {
    let (m, p) = filled::<A>(preset);
    p.madvise(pages(5, 2), Advice::GuardInstall).expect("install");
    assert_eq!(guards_of(&p), [5, 6]);
    // Discarding keeps them, and a child has them; munmap takes them along.
    p.madvise(pages(0, 16), Advice::DontNeed).expect("dontneed");
    let child = p.fork().expect("fork");
    child.munmap(pages(6, 1)).expect("munmap");
    child.mmap_anon(pages(6, 1), VmaFlags::READ).expect("mmap");
    assert_eq!((guards_of(&p), guards_of(&child)), (vec![5, 6], vec![5]));
    child.exit();
    p.madvise(pages(0, 32), Advice::GuardRemove).expect("remove");
    assert_eq!((guards_of(&p), p.load(page(5)), p.load(page(31))), (vec![], Ok(0), Ok(31)));
    // Over several tables, and where nothing was touched yet: a child has those too.
    let far = pages(1024, 600);
    p.mmap_anon(far, VmaFlags::READ | VmaFlags::WRITE).expect("mmap");
    p.madvise(far, Advice::GuardInstall).expect("install");
    let child = p.fork().expect("fork");
    assert!([1024, 1500, 1623].iter().all(|i| is_guard(&p, *i) && is_guard(&child, *i)));
    child.exit();
    check(&m, p);
}
#[test]
fn guards_stay_until_they_are_removed() {
    for preset in Preset::ALL {
        guards::<X86_64>(*preset);
        guards::<ModelPair<512>>(*preset);
        guards::<ModelCont<512, 16>>(*preset);
    }
}

/// Whichever allocation fails: what is below the error has guards, and nothing leaks.
#[test]
fn a_table_that_there_is_no_memory_for_is_an_error() {
    for n in 0..3 {
        let (m, p) = filled::<X86_64>(Preset::Best);
        let far = pages(1024, 1024);
        p.mmap_anon(far, VmaFlags::READ | VmaFlags::WRITE).expect("mmap");
        m.host().frames().fail_after(Some(n));
        let r = p.madvise(far, Advice::GuardInstall);
        m.host().frames().fail_after(None);
        let (first, last) = (is_guard(&p, 1024), is_guard(&p, 2047));
        assert_eq!((r.is_ok(), first, last), (n > 1, n > 0, n > 1), "{n}: {r:?}");
        check(&m, p);
    }
}
