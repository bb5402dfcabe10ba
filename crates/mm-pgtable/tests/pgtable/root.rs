//! Roots that a CPU loads once.
use crate::common::stay;
use mm_arch::{Arch, SpaceId, VirtAddr};
use mm_pgtable::PageTables;
use mm_pgtable::slab::slab_space;
use mm_x86::{X86_64, X86Pae};

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
