//! A write fault on a PMD leaf that has to wait for the folio lock.

use crate::common::{Process, assert_clean, new_machine, pages};
use mm_arch::Level;
use mm_arch::model::ModelWord;
use mm_fault::{FaultFlags, FaultOutcome, OrderMode, ThpPolicy};
use mm_vma::{Platform, VmaFlags};

type A = ModelWord<16>;

/// Rules: PMDF-02, FOLIO-11: the waiter's reference may become the last one,
/// and a folio must not be freed while it is locked.
#[test]
fn the_folio_goes_while_a_fault_waits_for_its_lock() {
    let m = new_machine::<A>();
    let p = Process::<A>::new(&m).with_policy(ThpPolicy::new(4).with_order(4, OrderMode::Always));
    p.map(pages(16, 16), VmaFlags::READ | VmaFlags::WRITE);
    assert_eq!(p.fault(16, FaultFlags::WRITE), FaultOutcome::Done { major: false });
    // Shared once: the leaf is read-only and its page not marked any more.
    p.fork().exit();
    assert_eq!(p.entry(16).1, Level::Pmd);
    let folio = p.folio(16);
    let lock = folio.lock();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| p.fault(16, FaultFlags::WRITE));
        // The waiter holds a reference before it waits.
        while folio.refcount() != 2 {
            std::thread::yield_now();
        }
        assert!(p.discard_pmd(16), "the leaf is there");
        drop(lock);
        assert_eq!(waiter.join().expect("no panic"), FaultOutcome::Done { major: false });
    });
    assert_eq!(m.memmap().stats().bad_frees.get(), 0, "freed while locked");
    p.unmap_all();
    drop(p);
    assert_clean(&m);
}
