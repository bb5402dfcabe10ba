//! Formats of hardware: roots that a CPU loads once, and the end of the lower half.
use crate::common::stay;
use mm_arch::{Arch, Entry, Level, Pfn, Protection, SpaceId, VirtAddr, VirtRange};
use mm_pgtable::slab::slab_space;
use mm_pgtable::{Gather, PageTables};
use mm_x86::{X86_64, X86_64La57, X86Pae};

/// Flushes by the time the tables of `n` addresses, a gigabyte apart, are there.
fn flushes<A: Arch>(n: u64) -> (u64, u64) {
    let space = slab_space::<A>(16);
    let tables = PageTables::new(space.clone(), SpaceId(1)).expect("a root");
    for k in 0..n {
        for va in [k << 30, (k << 30) + (4 << 20)] {
            tables.ensure_table(stay(), VirtAddr::new(va)).expect("memory");
        }
    }
    (space.tlb.flushes.get(), space.tlb.bytes.get())
}

/// A CPU sees a new entry of a PAE root when it loads the root again. Lower levels,
/// and the roots of long mode, it reads when it needs them.
///
/// Rules: PAE-05.
#[test]
fn a_new_entry_of_a_root_that_is_loaded_once_is_flushed() {
    assert_eq!(flushes::<X86Pae>(3), (3, 3 << 30));
    assert_eq!(flushes::<X86_64>(3), (0, 0));
}

/// Tables are freed up to the last user address: what is mapped there stays.
fn free_all_but_the_last<A: Arch>() {
    let space = slab_space::<A>(16);
    let tables = PageTables::new(space.clone(), SpaceId(1)).expect("a root");
    let last = VirtAddr::new(A::USER_END - (1 << A::PAGE_SHIFT));
    let prot = A::prot(Protection::private_read_write());
    let e = A::Entry::leaf(Pfn::new(7), prot, Level::Pte);
    for va in [VirtAddr::new(0), VirtAddr::new(A::USER_END / 2), last] {
        tables.ensure_table(stay(), va).expect("memory");
    }
    let mut t = tables.lock_table(stay(), last).expect("just made");
    let index = t.index_of(last);
    t.fill(index, 1, e);
    drop(t);
    let all = VirtRange::new(VirtAddr::new(0), A::USER_END).expect("a range");
    let mut gather: Gather<'_, _, ()> = Gather::new(&tables);
    // SAFETY: no other walker runs.
    unsafe { tables.free_empty_tables(all, &mut gather) };
    gather.finish();
    assert_eq!(tables.count_tables(stay()), A::LEVELS.len());
    assert_eq!(tables.lock_table(stay(), last).expect("stayed").get(index), e);
}

/// Rules: MM-109, ACC-23, PTE-01.
#[test]
fn the_end_of_the_lower_half_is_no_trap() {
    free_all_but_the_last::<X86_64>();
    free_all_but_the_last::<X86_64La57>();
    free_all_but_the_last::<X86Pae>();
}
