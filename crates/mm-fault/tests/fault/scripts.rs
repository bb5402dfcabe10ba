//! Random scripts of a few processes against the simplest possible memory: a
//! copy of everything per process.

use crate::common::*;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level};
use mm_fault::{FaultFlags, FaultOutcome, OrderMode, ReusePolicy, ThpMode, ThpPolicy};
use mm_folio::Get;
use mm_rmap::split_pmd;
use mm_vma::Platform;
use proptest::prelude::*;

const REUSE: [ReusePolicy; 4] =
    [ReusePolicy::Page, ReusePolicy::Block, ReusePolicy::Table, ReusePolicy::Adaptive];

/// Pages of the mapping: two tables of the models.
const PAGES: u64 = 32;

#[derive(Clone, Copy, Debug)]
enum Op {
    Read,
    Write,
    Unshare,
    /// Somebody takes a reference and keeps it to the end.
    Get,
    Discard,
    WriteProtect,
    Fork,
    Exit,
}

fn ops() -> impl Strategy<Value = Vec<(Op, usize, u64)>> {
    let op = prop_oneof![
        3 => Just(Op::Read),
        8 => Just(Op::Write),
        3 => Just(Op::Unshare),
        1 => Just(Op::Get),
        2 => Just(Op::Discard),
        1 => Just(Op::WriteProtect),
        2 => Just(Op::Fork),
        2 => Just(Op::Exit),
    ];
    // Few pages, so that they meet.
    prop::collection::vec((op, 0..4usize, prop_oneof![0..6u64, 0..PAGES]), 1..60)
}
fn policies() -> impl Strategy<Value = (bool, bool, bool)> {
    (any::<bool>(), any::<bool>(), any::<bool>())
}

struct Both<A: Arch> {
    process: Process<A>,
    memory: Vec<u64>,
}

fn run<A: Arch>(
    script: &[(Op, usize, u64)],
    (small, huge, zero): (bool, bool, bool),
    reuse: ReusePolicy,
) {
    let m = new_machine::<A>();
    let mut thp = ThpPolicy::new(A::order(Level::Pmd)).with_zero_page(zero);
    if small {
        thp = thp.with_order(2, OrderMode::Always).with_order(3, OrderMode::Always);
    }
    if huge {
        thp = thp.with_global(ThpMode::Always);
    }
    let mut process = Process::<A>::new(&m).with_policy(thp);
    process.policy.reuse = reuse;
    process.map(pages(0, PAGES), RW);
    let mut all = vec![Both { process, memory: vec![0; PAGES as usize] }];
    let mut held = Vec::new();
    for (step, &(op, who, page)) in script.iter().enumerate() {
        let at = who % all.len();
        let value = 1 + step as u64;
        let Both { process: p, memory } = &mut all[at];
        match op {
            Op::Read => assert_eq!(p.read(page), memory[page as usize]),
            Op::Write => {
                p.write(page, value);
                memory[page as usize] = value;
            }
            Op::Unshare => {
                let done = FaultOutcome::Done { major: false };
                // A hole or zero page takes one step more.
                while !p.entry(page).0.is_leaf(p.entry(page).1) || !p.is_exclusive_mapping(page) {
                    assert_eq!(p.fault(page, FaultFlags::UNSHARE), done);
                }
                assert_eq!(p.read(page), memory[page as usize]);
            }
            Op::Get => {
                let (e, level) = p.entry(page);
                if e.is_leaf(level) && !e.is_special() {
                    held.push(p.pfn(page));
                    p.folio(page).grab::<Get>(1).expect("reference").hand_over();
                }
            }
            Op::Discard => {
                p.with(|vmas| split_pmd(&p.mm, vmas.stay(), va(page)));
                p.discard(page);
                memory[page as usize] = 0;
            }
            Op::WriteProtect => {
                if p.pte(page).is_present(Level::Pte) {
                    p.change(page, |e| e.wrprotect());
                }
            }
            Op::Fork if all.len() < 3 => {
                let child = all[at].process.fork();
                let memory = all[at].memory.clone();
                all.push(Both { process: child, memory });
            }
            Op::Exit if all.len() > 1 => {
                all.swap_remove(at).process.exit();
            }
            Op::Fork | Op::Exit => {}
        }
        all.iter().for_each(|b| b.process.check());
    }
    for Both { process, memory } in &all {
        for page in 0..PAGES {
            assert_eq!(process.read(page), memory[page as usize], "page {page}");
        }
    }
    drop(all);
    for pfn in held {
        let folio = m.memmap().folio(pfn);
        m.memmap().put_run::<Get>(mm_folio::FolioRun::new(folio.head(), 0, 1));
    }
    assert_clean(&m);
}

impl<A: Arch> Process<A> {
    /// Whether the mark that counts for the page's mapping is set: of a PMD leaf
    /// it is the head's (rule EXCL-01).
    fn is_exclusive_mapping(&self, page: u64) -> bool {
        let (e, level) = self.entry(page);
        self.machine().memmap().page_exclusive(e.pfn(level))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Rules: INV-1, INV-2, INV-3, INV-6, EXCL-02, FAULT-10, REUSE-08, ANON-12, WREUSE-01,
    /// WREUSE-07.
    #[test]
    fn memory_is_as_if_everything_were_copied(script in ops(), policy in policies()) {
        for reuse in REUSE {
            run::<ModelWord<16>>(&script, policy, reuse);
            run::<ModelPair<16>>(&script, policy, reuse);
            run::<ModelCont<16, 4>>(&script, policy, reuse);
        }
    }
}
