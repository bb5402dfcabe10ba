//! The graph of trees under mmap, fault, fork, split, merge, move and exit.

use crate::world::*;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, VirtAddr};
use mm_vma::{Platform, Vma, VmaFlags};
use proptest::prelude::*;

type A = ModelWord<16>;

fn anon<A: Arch>(mm: &Space<A>, page: u64) -> mm_folio::AnonId {
    mm.read().find(va::<A>(page)).and_then(Vma::anon).expect("has a tree")
}

/// Rules: RMAP-21.
#[test]
fn two_faults_at_once_make_one_tree() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 64);
    std::thread::scope(|s| {
        for page in 0..8 {
            let mm = &mm;
            s.spawn(move || fault::<A>(mm, page, 0));
        }
    });
    assert_eq!((trees(&p).nr_trees(), trees(&p).nr_members()), (1, 1));
    check(&p);
    exit(mm);
    assert_eq!((trees(&p).nr_trees(), p.folios_in_use()), (0, 0));
}

/// Rules: RMAP-21.
#[test]
fn a_mergeable_neighbour_shares_its_tree_unless_it_inherited_one() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 4);
    mmap(&mm, 4, 4);
    mmap(&mm, 20, 4);
    mm.write()
        .change()
        .find_mut(va::<A>(4))
        .expect("there")
        .set_flags(VmaFlags::READ | VmaFlags::MAY_PRIVATE);
    for page in [0, 4, 20] {
        fault::<A>(&mm, page, 0).expect("mapped");
    }
    assert_eq!(anon(&mm, 0), anon(&mm, 4), "they differ in rights only");
    assert_ne!(anon(&mm, 0), anon(&mm, 20), "not adjacent");

    // Families are kept by address space: one whose own would be kept with the parent's.
    let others: Vec<_> = (0..15).map(|_| space(&p)).collect();
    let child = fork(&mm);
    assert_eq!(child.id().get() % 16, mm.id().get() % 16);
    drop(others);
    mmap(&child, 24, 4);
    fault::<A>(&child, 24, 0).expect("mapped");
    assert_ne!(anon(&child, 20), anon(&child, 24), "the neighbour inherited a tree");
    check(&p);
    let vmas = child.write();
    let (lower, upper) = (vmas.find(va::<A>(20)), vmas.find(va::<A>(24)));
    assert!(!trees(&p).mergeable(lower.expect("there"), upper.expect("there")));
    drop(vmas);
    exit(child);
    check(&p);
    exit(mm);
    assert_eq!(trees(&p).nr_trees(), 0);
}

/// Rules: RMAP-23.
#[test]
fn a_child_has_a_tree_of_its_own_under_the_same_root() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 16);
    mmap(&mm, 32, 8);
    fault::<A>(&mm, 0, 0).expect("mapped");
    let child = fork(&mm);
    let (parents, childs) = (anon(&mm, 0), anon(&child, 0));
    assert_ne!(parents, childs);
    assert_eq!(trees(&p).root(childs), parents);
    assert_eq!(trees(&p).root(parents), parents);
    assert_eq!(child.read().find(va::<A>(32)).and_then(Vma::anon), None, "nothing to inherit");
    // Both orders of exit free everything, the root last.
    let grandchild = fork(&child);
    exit(mm);
    check(&p);
    assert!(trees(&p).nr_trees() >= 2);
    exit(grandchild);
    exit(child);
    assert_eq!((trees(&p).nr_trees(), trees(&p).nr_members(), p.folios_in_use()), (0, 0, 0));
}

/// Rules: RMAP-22.
#[test]
fn a_chain_of_forks_whose_parents_exit_keeps_few_trees() {
    let p = machine_of::<A>();
    let mut mm = space(&p);
    mmap(&mm, 0, 8);
    fault::<A>(&mm, 0, 0).expect("mapped");
    let mut most = 0;
    for generation in 0..100 {
        let child = fork(&mm);
        exit(std::mem::replace(&mut mm, child));
        fault::<A>(&mm, 1 + generation % 7, 0);
        check(&p);
        most = most.max(trees(&p).nr_trees());
    }
    assert!(most <= 3, "{most} trees");
    exit(mm);
    assert_eq!((trees(&p).nr_trees(), p.folios_in_use()), (0, 0));
}

/// A parent with many living children: each has a tree, and none is reused.
/// Rules: RMAP-22, RMAP-24.
#[test]
fn living_children_share_no_tree() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 8);
    fault::<A>(&mm, 0, 0).expect("mapped");
    let children: Vec<_> = (0..10).map(|_| fork(&mm)).collect();
    let mut ids: Vec<_> = children.iter().map(|c| anon(c, 0)).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 10);
    check(&p);
    exit(mm);
    children.into_iter().for_each(exit);
    assert_eq!(trees(&p).nr_trees(), 0);
}

/// Rules: RMAP-20, RMAP-22.
#[test]
fn split_and_merge_keep_the_trees() {
    let p = machine_of::<A>();
    let mm = space(&p);
    mmap(&mm, 0, 16);
    let pfn = fault::<A>(&mm, 0, 3).expect("mapped");
    let mut vmas = mm.write();
    assert!(mm_rmap::split_vma(&mut vmas, va::<A>(4)).expect("memory"));
    assert!(!mm_rmap::split_vma(&mut vmas, va::<A>(4)).expect("memory"), "a boundary already");
    assert!(mm_rmap::split_vma(&mut vmas, va::<A>(2)).expect("memory"));
    assert_eq!((vmas.len(), trees(&p).nr_members(), trees(&p).nr_trees()), (3, 3, 1));
    check(&p);
    mm_rmap::merge_vmas(&mut vmas, pages::<A>(2, 2));
    assert_eq!((vmas.len(), trees(&p).nr_members()), (1, 1));
    assert_eq!(vmas.find(VirtAddr::new(0)).map(Vma::nr_pages), Some(16));
    drop(vmas);
    check(&p);
    assert_eq!(trees(&p).count_mappings_locked(p.memmap().folio(pfn)), 8);
    exit(mm);
}

/// Rules: RMAP-20.
#[test]
fn merging_with_an_unfaulted_neighbour_takes_its_tree_along() {
    for faulted in [0, 4] {
        let p = machine_of::<A>();
        let mm = space(&p);
        mmap(&mm, 0, 4);
        mmap(&mm, 4, 4);
        fault::<A>(&mm, faulted, 0).expect("mapped");
        let mut vmas = mm.write();
        mm_rmap::merge_vmas(&mut vmas, pages::<A>(0, 4));
        assert_eq!((vmas.len(), trees(&p).nr_members()), (1, 1));
        drop(vmas);
        check(&p);
        fault::<A>(&mm, 7 - faulted, 0).expect("mapped");
        check(&p);
        exit(mm);
    }
}

trait CountLocked<A: Arch> {
    fn count_mappings_locked(&self, folio: mm_folio::Folio<'_, P<A>>) -> u32;
}
impl<A: Arch> CountLocked<A> for mm_rmap::AnonTrees<P<A>> {
    fn count_mappings_locked(&self, folio: mm_folio::Folio<'_, P<A>>) -> u32 {
        let _lock = folio.lock();
        self.count_mappings(folio)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Mmap(u64, u64),
    Fault(u64, u32),
    FaultPmd(u64),
    Fork,
    Exit,
    Munmap(u64, u64),
    Move(u64, u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0u64..200, 1u64..40).prop_map(|(a, n)| Op::Mmap(a, n)),
        6 => (0u64..240, 0u32..4).prop_map(|(a, o)| Op::Fault(a, if o == 1 { 0 } else { o })),
        1 => (0u64..240).prop_map(Op::FaultPmd),
        2 => Just(Op::Fork),
        1 => Just(Op::Exit),
        3 => (0u64..220, 1u64..20).prop_map(|(a, n)| Op::Munmap(a, n)),
        2 => (0u64..220, 1u64..12, 0u64..220).prop_map(|(a, n, b)| Op::Move(a, n, b)),
    ]
}

fn run<A: Arch>(ops: &[(usize, Op)]) {
    let p = machine_of::<A>();
    let mut spaces = vec![space::<A>(&p)];
    mmap(&spaces[0], 0, 64);
    for (who, op) in ops {
        let who = who % spaces.len();
        let mm = spaces[who].clone();
        match *op {
            Op::Mmap(a, n) => {
                if mm.read().overlapping(pages::<A>(a, n)).count() == 0 {
                    mmap(&mm, a, n);
                }
            }
            Op::Fault(a, order) => {
                fault::<A>(&mm, a, order);
            }
            Op::FaultPmd(a) => {
                fault_pmd::<A>(&mm, a);
            }
            Op::Fork if spaces.len() < 6 => spaces.push(fork(&mm)),
            Op::Exit if spaces.len() > 1 => {
                spaces.swap_remove(who);
                exit(mm);
            }
            Op::Munmap(a, n) => munmap(&mm, a, n),
            Op::Move(a, n, b) => mremap(&mm, a, n, b),
            Op::Fork | Op::Exit => {}
        }
        check(&p);
    }
    spaces.into_iter().for_each(exit);
    assert_eq!((trees(&p).nr_trees(), trees(&p).nr_members(), p.folios_in_use()), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Counts equal a recount, and a walk finds every entry, after any history.
    /// Rules: RMAP-20, RMAP-22..24, RMAP-28, INV-5.
    #[test]
    fn any_history_keeps_the_graph(ops in prop::collection::vec((0usize..8, op()), 1..60)) {
        run::<ModelWord<16>>(&ops);
        run::<ModelPair<16>>(&ops);
        run::<ModelCont<16, 4>>(&ops);
    }
}
