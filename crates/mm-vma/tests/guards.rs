//! What the guards of an address space are, and what they are not.
#![cfg(not(loom))]

use mm_arch::model::ModelWord;
use mm_vma::model::{ModelConfig, ModelPlatform};
use mm_vma::{Mm, MmRead, MmWrite};
use static_assertions::assert_not_impl_any;

type P = ModelPlatform<ModelWord<8>>;

// The mmap lock is given back by the thread that took it, once.
assert_not_impl_any!(MmRead<'static, P>: Send, Clone);
assert_not_impl_any!(MmWrite<'static, P>: Send, Clone);

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
