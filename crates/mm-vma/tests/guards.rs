//! What the guards of an address space are, and what they are not.
#![cfg(not(loom))]

use mm_arch::model::ModelWord;
use mm_arch::{VirtAddr, VirtRange};
use mm_vma::model::{ModelConfig, ModelPlatform};
use mm_vma::{Mm, MmRead, MmWrite, Vma, VmaFlags, VmaRead};
use static_assertions::assert_not_impl_any;
use std::sync::Arc;

type P = ModelPlatform<ModelWord<8>>;

// The mmap lock is given back by the thread that took it, once.
assert_not_impl_any!(MmRead<'static, P>: Send, Clone);
assert_not_impl_any!(MmWrite<'static, P>: Send, Clone);
assert_not_impl_any!(VmaRead<'static, P>: Send, Clone);

/// Rules: LOCK-01.
#[test]
fn a_writer_excludes_everybody_and_readers_do_not() {
    let machine = P::new(ModelConfig::default()).expect("memory");
    let mm = Mm::new(machine).expect("memory");
    {
        let (_one, two) = (mm.read(), mm.try_read());
        assert!(two.is_some());
    }
    let writer = mm.write();
    assert!(mm.try_read().is_none());
    drop(writer);
    assert!(mm.try_read().is_some());
}

fn pages(first: u64, n: u64) -> VirtRange {
    VirtRange::units(VirtAddr::new(first << 12), n, 12).expect("range")
}
/// Three mappings: [4, 8), [8, 12), [16, 20).
fn space() -> Arc<Mm<P>> {
    let mm = Mm::new(P::new(ModelConfig::default()).expect("memory")).expect("memory");
    for first in [4, 8, 16] {
        let vma = Vma::anonymous(pages(first, 4), VmaFlags::READ, 12);
        mm.write().change().insert(vma).expect("free");
    }
    mm
}
/// Which of the pages 0, 4, 8, 16 are in a mapping that can be locked.
fn lockable(mm: &Mm<P>) -> [bool; 4] {
    [0, 4, 8, 16].map(|page| mm.lock_vma(VirtAddr::new(page << 12)).is_some())
}

/// Rules: LOCK-01, WREUSE-02.
#[test]
fn a_writer_keeps_the_mappings_that_it_changes() {
    let mm = space();
    let all = [false, true, true, true];
    assert_eq!(lockable(&mm), all);
    let (reader, other) = (mm.read(), mm.lock_vma(VirtAddr::new(0x5000)).expect("free"));
    assert_eq!(lockable(&mm), all, "readers exclude nobody");
    assert_eq!(other.vma().range(), pages(4, 4));
    drop((reader, other));
    let writer = mm.write();
    assert_eq!(lockable(&mm), [false; 4]);
    assert!(writer.excludes(pages(0, 100)));
    drop(writer);
    // What overlaps, what touches from below and from above, and what does neither.
    for (range, expected) in [
        (pages(9, 1), [false, true, false, true]),
        (pages(5, 1), [false, false, true, true]),
        (pages(8, 2), [false, false, false, true]),
        (pages(12, 2), [false, true, false, true]),
        (pages(13, 3), [false, true, true, false]),
        (pages(13, 2), all),
    ] {
        let writer = mm.write_within(range);
        assert_eq!(lockable(&mm), expected, "{range:?}");
        assert!(writer.excludes(range) && !writer.excludes(pages(0, 100)));
        drop(writer);
        assert_eq!(lockable(&mm), all);
    }
}

/// A locked mapping stays where it is while others come and go.
#[test]
fn a_locked_mapping_does_not_move() {
    let mm = space();
    let locked = mm.lock_vma(VirtAddr::new(16 << 12)).expect("free");
    let mut writer = mm.write_within(pages(0, 2));
    let new = || Vma::anonymous(pages(0, 2), VmaFlags::READ, 12);
    for _ in 0..9 {
        writer.change().insert(new()).expect("free");
        assert_eq!(locked.vma().range(), pages(16, 4));
        writer.change().remove(pages(0, 2), |_| ());
    }
    drop(writer);
    assert!(core::ptr::eq(locked.vma(), mm.read().find(VirtAddr::new(16 << 12)).expect("there")));
}

#[test]
#[should_panic(expected = "changed while it is locked")]
fn a_locked_mapping_is_not_changed() {
    let mm = space();
    let _locked = mm.lock_vma(VirtAddr::new(16 << 12)).expect("free");
    let mut writer = mm.write_within(pages(4, 1));
    let _ = writer.change().find_mut(VirtAddr::new(16 << 12));
}

/// The tables of other mappings are none of its business.
#[test]
#[should_panic(expected = "not about these tables")]
fn the_proof_of_a_locked_mapping_ends_with_it() {
    let mm = space();
    let locked = mm.lock_vma(VirtAddr::new(4 << 12)).expect("free");
    let _ = mm.tables().lock_table(locked.stay(), VirtAddr::new(8 << 12));
}

/// Rules: PIN-12, FOLIO-29.
#[test]
fn ids_are_unique_and_a_pin_is_remembered() {
    let machine = P::new(ModelConfig::default()).expect("memory");
    let (a, b) = (Mm::new(machine.clone()).expect("memory"), Mm::new(machine).expect("memory"));
    assert_ne!(a.id(), b.id());
    assert!(!a.has_pinned());
    a.set_has_pinned();
    a.set_has_pinned();
    assert!(a.has_pinned() && !b.has_pinned());
}
