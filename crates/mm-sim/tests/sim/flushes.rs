//! When reclaim flushes: put off to be made as one, and before it would be too late.

use crate::common::*;
use mm_arch::Arch;
use mm_arm64::{Arm64, Granule4K};
use mm_folio::{FolioFlags, Get};
use mm_reclaim::{FlushBatch, UnmapFlags, UnmapPolicy, Unmapped, try_to_unmap};
use mm_sim::*;
use mm_vma::Platform;

const FLAGS: UnmapFlags = UnmapFlags::SYNC.union(UnmapFlags::PUT_OFF_FLUSH);

fn machine_with<F: Arch>(cpus: usize) -> Machine<F> {
    let config = MachineConfig { bytes: 16 << 20, cpus, poison: true, ..MachineConfig::default() };
    Machine::new(config, Preset::Best.policy()).expect("machine")
}
/// A process with eight pages that it gave up.
fn given_up<F: Arch>(m: &Machine<F>) -> Process<F> {
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 8), RW).expect("mmap");
    (0..8).for_each(|i| p.store(page(i), 100 + i).expect("store"));
    p.madvise_free(pages(0, 8)).expect("mapped");
    // Cached, and clean.
    assert!((0..8).all(|i| p.load(page(i)) == Ok(100 + i)));
    p
}
/// The first frame of each folio that maps one of the eight pages.
fn heads<F: Arch>(m: &Machine<F>) -> Vec<mm_arch::Pfn> {
    let map = m.host().memmap();
    let given_up = map.alive().filter(|f| f.is_anon() && !f.has(FolioFlags::SWAPBACKED));
    given_up.map(|f| f.head()).collect()
}
/// Unmaps what was given up as reclaim does; (flushes before the one that ends it, flushes
/// with it, ranges put off).
fn unmap_all<F: Arch>(m: &Machine<F>) -> (u64, u64, u64) {
    let host = m.host();
    let flushes = || host.cpus().flushes().ranges.get();
    let (before, deferred) = (flushes(), host.cpus().flushes().deferred.get());
    let mut batch = FlushBatch::new(host);
    for head in heads(m) {
        let folio = host.memmap().folio(head);
        let own = folio.grab::<Get>(1).expect("fits");
        let end = try_to_unmap(UnmapPolicy::All, &folio.lock(), FLAGS, &mut batch);
        assert_eq!(end, Unmapped::All);
        batch.free(own);
    }
    let early = flushes() - before;
    batch.finish();
    (early, flushes() - before, host.cpus().flushes().deferred.get() - deferred)
}

/// Rules: TLBB-04, TLBB-05.
#[test]
fn flushes_are_put_off_where_somebody_gains() {
    // One CPU: nobody is interrupted, each run is flushed at once.
    let m = machine_with::<A>(1);
    let p = given_up(&m);
    let folios = heads(&m).len() as u64;
    assert_eq!((folios, unmap_all(&m)), (8, (8, 8, 0)));
    drop(p);
    // Two: one flush for all.
    let m = machine_with::<A>(2);
    let p = given_up(&m);
    assert_eq!(unmap_all(&m), (0, 1, 8));
    drop(p);
    // Where an instruction reaches all CPUs it is always begun early.
    let m = machine_with::<Arm64<Granule4K>>(1);
    let p = given_up(&m);
    assert_eq!(unmap_all(&m), (0, 1, 8));
    drop(p);
}

/// Rules: TLBB-03.
#[test]
fn a_clean_translation_is_no_way_to_store() {
    for planted in [false, true] {
        let m = machine_with::<A>(2);
        let mut p = given_up(&m);
        p.run_on(1);
        // The CPU may store by what it has cached; the entry is clean.
        assert_eq!(p.load(page(3)), Ok(103));
        if planted {
            m.host().cpus().plant(Plant::STORE_UNSEEN);
        }
        let mut batch = FlushBatch::new(m.host());
        for head in heads(&m) {
            let folio = m.host().memmap().folio(head);
            let own = folio.grab::<Get>(1).expect("fits");
            let end = try_to_unmap(UnmapPolicy::All, &folio.lock(), FLAGS, &mut batch);
            assert_eq!(end, Unmapped::All, "nobody has stored");
            batch.free(own);
        }
        // Between the unmapping and the flush.
        p.store(page(3), 7).expect("mapped");
        batch.finish();
        // On hardware that keeps the promise the store found the empty entry.
        assert_eq!(p.load(page(3)), Ok(if planted { 0 } else { 7 }));
        m.settle();
        assert_eq!(audit(&m, [&p], []), []);
    }
}

/// Rules: TLBB-07, INV-9. Memory that was given up comes anew before the flush that was put off: no CPU
/// goes on by what it had cached, be it a new page that comes or the zero page.
#[test]
fn what_comes_for_a_dropped_page_is_seen_by_all() {
    for stored in [false, true] {
        let m = machine_with::<A>(3);
        let mut p = given_up(&m);
        p.run_on(1);
        assert_eq!(p.load(page(3)), Ok(103));
        let mut batch = FlushBatch::new(m.host());
        for head in heads(&m) {
            let folio = m.host().memmap().folio(head);
            let own = folio.grab::<Get>(1).expect("fits");
            let end = try_to_unmap(UnmapPolicy::All, &folio.lock(), FLAGS, &mut batch);
            assert_eq!(end, Unmapped::All);
            batch.free(own);
        }
        // As long as nobody sees what comes, the old page is as good.
        assert_eq!(p.load(page(3)), Ok(103));
        p.run_on(2);
        if stored {
            p.store(page(3), 7).expect("mapped");
        }
        let comes = p.load(page(3));
        p.run_on(1);
        let expected = Ok(if stored { 7 } else { 0 });
        assert_eq!((comes, p.load(page(3))), (expected, expected));
        batch.finish();
        m.settle();
        assert_eq!(audit(&m, [&p], []), []);
    }
}

/// Rules: TLBB-06.
#[test]
fn without_its_flush_a_page_is_given_away_too_early() {
    for planted in [false, true] {
        let m = machine_with::<A>(2);
        let mut p = given_up(&m);
        p.run_on(1);
        assert_eq!(p.load(page(3)), Ok(103));
        if planted {
            m.host().cpus().plant(Plant::DROP_RANGE_FLUSHES);
        }
        unmap_all(&m);
        m.settle();
        let found = audit(&m, [&p], []);
        let stale = |v: &AuditViolation| {
            matches!(v, AuditViolation::Cpu(CpuViolation::StaleTranslation { .. }))
        };
        assert_eq!(found.iter().any(stale), planted, "{found:?}");
        m.host().cpus().plant(Plant::empty());
    }
}
