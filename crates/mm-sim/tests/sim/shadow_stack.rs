//! Shadow stacks end to end: entries as real kernels write them, and no large folio
//! on any way.

use mm_arch::{Entry, Level, VirtAddr, VirtRange};
use mm_scenario::Scenario;
use mm_sim::{
    AccessError, Machine, MachineConfig, Preset, Process, RunError, RunOptions, audit, run,
};
use mm_vma::VmaFlags;
use mm_x86::{X86_64, X86_64NoShstk, X86Pae};

const STACK: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE).union(VmaFlags::SHADOW_STACK);

fn page(k: u64) -> VirtAddr {
    VirtAddr::new(1 << 30).add_units(k, 12)
}
/// Flags of the entry of page `k`: everything but the frame.
fn flags(p: &Process<X86_64>, k: u64) -> u64 {
    let vmas = p.mm().read();
    let table = p.mm().tables().lock_table(vmas.stay(), page(k)).expect("a table");
    let e = table.get(table.index_of(page(k)));
    assert!(e.is_leaf(Level::Pte));
    e.raw() & !mm_x86::bits::FRAME
}

/// The steps of a small program under Linux 6.12 and 7.3, and the flags that were read
/// out of its tables after each.
///
/// Rules: SHSTK-01, SHSTK-04, SHSTK-06, SHSTK-09, PTE-14.
#[test]
fn entries_are_those_of_a_real_kernel() {
    let m =
        Machine::<X86_64>::new(MachineConfig::default(), Preset::Best.policy()).expect("memory");
    let p = m.spawn().expect("memory");
    let range = VirtRange::units(page(0), 2, 12).expect("range");
    p.mmap_anon(range, STACK).expect("free");
    assert_eq!(p.load(page(0)), Ok(0));
    assert_eq!(flags(&p, 0), 0x8000_0000_0000_0225, "read first: the zero page");
    for k in [0, 1] {
        p.push(page(k), 7 + k).expect("a stack");
        assert_eq!(flags(&p, k), 0x8400_0000_0000_0865, "stored to");
    }
    let child = p.fork().expect("memory");
    for k in [0, 1] {
        assert_eq!(flags(&p, k), 0x8400_0000_0000_0825, "forked");
    }
    let of_child = flags(&child, 0) | mm_x86::bits::ACCESSED;
    assert_eq!(of_child, 0x8400_0000_0000_0825, "and the child's");
    p.push(page(0), 9).expect("a stack");
    assert_eq!(flags(&p, 0), 0x8400_0000_0000_0865, "copied");
    assert_eq!((child.load(page(0)), p.load(page(0))), (Ok(7), Ok(9)));
    child.exit();
    p.push(page(1), 9).expect("a stack");
    assert_eq!(flags(&p, 1), 0x8400_0000_0000_0865, "used again");
    // Loads go through, ordinary stores do not.
    assert!(matches!(p.store(page(0), 1), Err(AccessError::Signal(_))));
    assert!(matches!(p.load(page(0)), Ok(9)));
    assert_eq!(audit(&m, [&p], []), []);
}

/// Whatever is asked for: at creation, by advice, by policy, in a child, after a move.
/// Collapse does not exist here.
///
/// Rules: BATCH-20, BATCH-23, BATCH-24, BATCH-25.
#[test]
fn no_large_folio_on_any_way() {
    let lines = "\
        thp global always\nthp 64kB always\nthp 2048kB always\n\
        mmap p0 s 1024 anon rw private shstk\n\
        mmap p0 plain 1024 anon rw private\n\
        madvise p0 s hugepage\n\
        write p0 s 1\nwrite p0 plain 2\n\
        madvise p0 s:512+512 dontfork\n\
        fork p1 p0\n\
        madvise p0 s:512+512 dofork\n\
        write p1 s:0+512 3\n\
        mremap p0 s move t\n\
        madvise p0 t hugepage\n\
        write p0 t 4\n\
        content p1 s:0+512\n\
        content p0 t\n\
        observe p0 t\nobserve p1 s:0+512\nobserve p0 plain\n";
    let scenario = Scenario::parse("shstk", lines).expect("parses");
    let machine = MachineConfig { bytes: 64 << 20, poison: true, ..MachineConfig::default() };
    let options = RunOptions { machine, audit: true, ..RunOptions::default() };
    let expected = [
        r#"{"line":16,"op":"content","p":"p1","r":"s","c":[[0,512,"3"]]}"#,
        r#"{"line":17,"op":"content","p":"p0","r":"t","c":[[0,1024,"4"]]}"#,
        r#"{"line":18,"op":"observe","t":[{"p":"p0","r":"t","at":0,"n":1024,"runs":[{"at":0,"n":1024,"s":"present","k":"anon","o":0,"f":0,"i":0,"mc":1,"x":1}]}],"folios":[{"f":0,"n":1024,"o":0,"fl":"anon lru upd swb hx"}]}"#,
        r#"{"line":19,"op":"observe","t":[{"p":"p1","r":"s","at":0,"n":512,"runs":[{"at":0,"n":512,"s":"present","k":"anon","o":0,"f":0,"i":0,"mc":1,"x":1}]}],"folios":[{"f":0,"n":512,"o":0,"fl":"anon lru upd swb hx"}]}"#,
    ];
    for preset in Preset::ALL {
        let mut got = Vec::new();
        let printed = &mut |r: mm_scenario::observe::Record| got.push(r.to_json());
        run::<X86_64>(&scenario, &preset.policy(), &options, printed).expect("runs");
        assert_eq!(got[..4], expected, "{}", preset.name());
        // Under the same policies other memory is in large folios.
        assert!(got[4].contains(r#""o":9"#), "{}", got[4]);
    }
}

/// Rules: PAE-14.
#[test]
fn formats_without_shadow_stacks_say_so() {
    let scenario = Scenario::parse("shstk", "mmap p0 s 4 anon rw private shstk\n").expect("parses");
    let lacks = |r: Result<_, RunError>| matches!(r, Err(RunError::Lacks { .. }));
    let (policy, options) = (Preset::Best.policy(), RunOptions::default());
    let printed = &mut |_| ();
    assert!(lacks(run::<X86_64NoShstk>(&scenario, &policy, &options, printed).map(|_| ())));
    assert!(lacks(run::<X86Pae>(&scenario, &policy, &options, printed).map(|_| ())));
    assert!(run::<X86_64>(&scenario, &policy, &options, printed).is_ok());
}
