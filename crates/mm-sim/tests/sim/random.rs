//! Random scenarios: every audit holds after every operation, and no process can
//! tell one policy from another.

#[path = "random/steps.rs"]
mod steps;

use mm_sim::{Memory, Preset};
use proptest::prelude::*;
use steps::{KINDS, NR_REGIONS, Step, policies_agree, printed, scenario};

fn step() -> impl Strategy<Value = Step> {
    let fields = (0..KINDS, 0usize..3, 0..NR_REGIONS, any::<u64>(), any::<u64>(), 1u16..60000);
    fields.prop_map(|(what, proc, region, first, pages, value)| Step {
        what,
        proc,
        region,
        first,
        pages,
        value,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Rules: INV-1, INV-2, INV-3, INV-4, INV-5, INV-6, INV-7, INV-9, ZAP-02, FORK-05, GUPF-16,
    /// SWAP-02.
    #[test]
    fn policies_cannot_be_told_apart(steps in prop::collection::vec(step(), 1..50)) {
        policies_agree(&scenario(&steps)).map_err(TestCaseError::fail)?;
    }
    /// Whatever allocation fails: an errno, and a machine that is as sound as before.
    #[test]
    fn a_failed_allocation_breaks_nothing(
        steps in prop::collection::vec(step(), 1..50),
        n in 0u64..120,
        memory in prop_oneof![Just(Memory::Frames), Just(Memory::Heap)],
    ) {
        let best = (Preset::Best.name(), Preset::Best.policy());
        printed(&scenario(&steps), &best, Some((memory, n))).map_err(TestCaseError::fail)?;
    }
}

/// The very first allocation is the first process's: the run ends there, and all comes back.
#[test]
fn without_memory_for_a_first_process_nothing_is_left() {
    let step = Step { what: 0, proc: 0, region: 0, first: 0, pages: 0, value: 1 };
    let best = (Preset::Best.name(), Preset::Best.policy());
    let text = scenario(&[step]);
    assert_eq!(printed(&text, &best, Some((Memory::Frames, 0))), Ok(Vec::new()));
    let all = printed(&text, &best, None).expect("runs");
    let refused = printed(&text, &best, Some((Memory::Frames, 1)));
    assert_eq!(refused.map(|out| out.len()), Ok(all.len() + 1));
}

/// What a call drops is what lies below a mapping that refuses: who holds the pages of the
/// rest sees what is stored to them.
///
/// Rules: MADV-01.
#[test]
fn a_pin_goes_on_where_dontneed_was_refused() {
    let text = "\
mmap p0 a 48 anon rw private
fill p0 a:0+20 7
pin p0 a:1+17 x1 fuse-w
mlock p0 a:13+7
madvise p0 a:12+2 dontneed
write p0 a:0+18 34658
observe p0 a
";
    policies_agree(text).expect("no difference");
}
