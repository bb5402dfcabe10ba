//! Models of the races between faults and userfaultfd, on the production code.
#![cfg(loom)]

mod common;

use common::*;
use mm_arch::model::ModelWord;
use mm_arch::{Entry, Level};
use mm_fault::{FaultFlags, FaultOutcome, UserFault};
use mm_rmap::model::{ModelConfig, machine};
use mm_sync::model::{caught, holds};
use mm_sync::thread::spawn;
use mm_vma::VmaFlags;

type A = ModelWord<8>;

/// Rules: FAULT-07, PTE-15. Cases: MM-039.
#[test]
fn a_store_and_a_protection() {
    fn model() {
        let m =
            machine::<A>(ModelConfig { nr_frames: 24, ..ModelConfig::tiny() }).expect("machine");
        let p = Process::new(&m);
        p.map(pages(0, 8), RW | VmaFlags::UFFD_WP);
        p.write(0, 7);
        // A write fault would reuse the page.
        p.change(0, |e| e.wrprotect());
        let p = p.shared();
        let other = spawn({
            let p = p.clone();
            move || p.change(0, |e| e.mkuffd_wp())
        });
        let outcome = p.fault(0, FaultFlags::WRITE);
        other.join().expect("thread");
        let asked = FaultOutcome::UserFault { va: va(0), kind: UserFault::Wp };
        assert!(outcome == asked || outcome == FaultOutcome::Done { major: false });
        // Whoever was first: the protection holds, and nobody stores past it.
        let e = p.pte(0);
        assert!(e.is_uffd_wp() && !e.is_writable(Level::Pte), "{e:?} after {outcome:?}");
    }
    holds("a_store_and_a_protection", model);
    for mutant in ["fault.uffd.no_event", "fault.present.no_recheck"] {
        caught("a_store_and_a_protection", mutant, model);
    }
}
