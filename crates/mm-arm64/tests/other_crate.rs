//! The encoding against the `aarch64-paging` crate: flags, and walks of tables that the
//! other has built.
#![cfg(not(loom))]

use aarch64_paging::descriptor::{El1Attributes, PagingAttributes, PhysicalAddress};
use aarch64_paging::paging::{
    Constraints, El1And0, MemoryRegion, PageTable, RootTable, Translation, VaRange,
};
use mm_arch::cont::{self, ContEntry};
use mm_arch::table::Words;
use mm_arch::{Arch, Entry, Held, Level, Pfn, PhysAddr, Protection, Rights, TableFrame, VirtAddr};
use mm_arm64::{Arm64, Arm64Entry, Granule4K, Table4K, bits};
use std::ptr::NonNull;

type A = Arm64<Granule4K>;
type E = Arm64Entry<Granule4K>;

/// Rules: A64-02.
#[test]
fn flags_are_where_the_other_has_them() {
    for (theirs, ours) in [
        (El1Attributes::VALID, bits::VALID),
        (El1Attributes::TABLE_OR_PAGE, bits::TYPE),
        (El1Attributes::ATTRIBUTE_INDEX_7, bits::ATTR),
        (El1Attributes::USER, bits::USER),
        (El1Attributes::READ_ONLY, bits::READ_ONLY),
        (El1Attributes::INNER_SHAREABLE, bits::INNER_SHAREABLE),
        (El1Attributes::ACCESSED, bits::ACCESSED),
        (El1Attributes::NON_GLOBAL, bits::NOT_GLOBAL),
        (El1Attributes::GP, bits::GUARDED),
        (El1Attributes::DBM, bits::WRITE),
        (El1Attributes::CONTIGUOUS_OR_PROTECTED, bits::CONT),
        (El1Attributes::PXN, bits::PRIVILEGED_NO_EXECUTE),
        (El1Attributes::UXN, bits::USER_NO_EXECUTE),
        (El1Attributes::SWFLAG_0, bits::DIRTY),
        (El1Attributes::SWFLAG_1, bits::SPECIAL),
        (El1Attributes::SWFLAG_3, bits::UFFD_WP),
        (El1Attributes::PXN_TABLE, bits::TABLE_NO_EXECUTE),
    ] {
        assert_eq!(theirs.bits() as u64, ours, "{theirs:?}");
    }
}

/// What may change in place. The other lets a user's right to execute go, which rule A64-10
/// does not list, and does not count bit 63 among those of software.
///
/// Rules: A64-10.
#[test]
fn changes_in_place_are_those_of_the_other() {
    let e = E::from_bits(0x0068_0000_0000_0fc3);
    let flags = |e: E| El1Attributes::from_bits_retain(e.bits() as usize);
    let differ: Vec<u32> = (0..12)
        .chain(50..64)
        .filter(|bit| {
            let new = E::from_bits(e.bits() ^ 1 << bit);
            e.changes_in_place(new) != El1Attributes::is_bbm_safe(flags(e), flags(new))
        })
        .collect();
    assert_eq!(differ, [54, 63]);
}

/// Tables with made-up physical addresses.
struct Arena {
    tables: Vec<NonNull<Table4K>>,
    handed_out: usize,
}

/// Frame of the first table.
const FIRST: u64 = 0x4_2000;

impl Arena {
    fn new() -> Self {
        Arena { tables: Vec::new(), handed_out: 0 }
    }
    fn add(&mut self) -> TableFrame {
        self.tables.push(NonNull::from(Box::leak(Box::new(A::new_table()))));
        TableFrame::new(Pfn::new(FIRST + self.tables.len() as u64 - 1))
    }
    fn pointer(&self, pfn: u64) -> NonNull<Table4K> {
        self.tables[(pfn - FIRST) as usize]
    }
    fn table(&self, frame: TableFrame) -> &Table4K {
        // SAFETY: allocated by `add` and freed with the arena.
        unsafe { self.pointer(frame.pfn().get()).as_ref() }
    }
    /// The leaf that maps `va`, found by our walk.
    fn walk(&self, root: TableFrame, va: VirtAddr) -> Option<(Level, E)> {
        let (mut frame, mut level) = (root, A::top());
        loop {
            let e = A::read_upper::<Held>(self.table(frame), A::index(va, level));
            if e.is_leaf(level) {
                return Some((level, e));
            }
            frame = e.as_table(level)?;
            level = A::below(level)?;
        }
    }
}
impl Drop for Arena {
    fn drop(&mut self) {
        for table in &self.tables {
            // SAFETY: leaked by `add`, and nobody has a reference any more.
            drop(unsafe { Box::from_raw(table.as_ptr()) });
        }
    }
}

impl Translation<El1Attributes> for Arena {
    /// Tables that are there already are handed out first: the root of ours.
    fn allocate_table(&mut self) -> (NonNull<PageTable<El1Attributes>>, PhysicalAddress) {
        if self.handed_out == self.tables.len() {
            self.add();
        }
        let pfn = FIRST + self.handed_out as u64;
        self.handed_out += 1;
        (self.pointer(pfn).cast(), PhysicalAddress((pfn << 12) as usize))
    }
    unsafe fn deallocate_table(&mut self, _: NonNull<PageTable<El1Attributes>>) {}
    fn physical_to_virtual(&self, pa: PhysicalAddress) -> NonNull<PageTable<El1Attributes>> {
        self.pointer(pa.0 as u64 >> 12).cast()
    }
}

fn prot() -> <E as Entry>::Prot {
    let rights = Rights::READ | Rights::WRITE;
    A::prot(Protection { rights, writable_at_once: true, pkey: 0 })
}
const VA: u64 = 0x7f_8200_0000;
const PA: u64 = 0x1_0200_0000;
/// Two contiguous blocks of PMD leaves, one PMD leaf, two contiguous blocks of pages and
/// three pages.
const BYTES: u64 = (64 << 20) + (2 << 20) + 35 * 4096;

/// Every leaf of a table that the other has made is the entry that we would have made.
///
/// Rules: A64-01, A64-02, A64-11, CONT-02.
#[test]
fn we_walk_tables_of_the_other() {
    // The mark is for its caller to ask for.
    let flags =
        |mark| El1Attributes::from_bits_retain((prot().bits() & !bits::TYPE | mark) as usize);
    let mut theirs = RootTable::with_va_range(Arena::new(), 0, El1And0, VaRange::Lower);
    let mut end = 0;
    for (bytes, mark) in
        [(64 << 20, bits::CONT), (2 << 20, 0), (32 << 12, bits::CONT), (3 << 12, 0)]
    {
        let (start, pa) = ((VA + end) as usize, PhysicalAddress((PA + end) as usize));
        let range = MemoryRegion::new(start, start + bytes);
        theirs.map_range(&range, pa, flags(mark), Constraints::empty()).expect("maps");
        end += bytes as u64;
    }
    assert_eq!(end, BYTES);
    let root = TableFrame::new(Pfn::new(FIRST));
    let arena = theirs.translation();
    let mut seen = Vec::new();
    let mut offset = 0;
    while offset < BYTES {
        let va = VirtAddr::new(VA + offset);
        let (level, e) = arena.walk(root, va).expect("mapped");
        let pfn = Pfn::new((PA + offset) >> 12);
        assert_eq!(e.with_cont(false), E::leaf(pfn, prot(), level), "{va} at {level:?}");
        seen.push((level, e.is_cont()));
        offset += 1 << A::shift(level);
    }
    let mut want = vec![(Level::Pmd, true); 32];
    want.push((Level::Pmd, false));
    want.extend([(Level::Pte, true); 32]);
    want.extend([(Level::Pte, false); 3]);
    assert_eq!(seen, want);
    for va in [VA - 4096, VA + BYTES] {
        assert_eq!(arena.walk(root, VirtAddr::new(va)), None);
    }
}

/// The other finds in our tables what we mapped.
///
/// Rules: A64-01, A64-02, ACC-04.
#[test]
fn the_other_walks_our_tables() {
    let mut arena = Arena::new();
    let frames: Vec<TableFrame> = (0..4).map(|_| arena.add()).collect();
    let levels = [Level::Pgd, Level::Pud, Level::Pmd];
    for (k, level) in levels.into_iter().enumerate() {
        let index = A::index(VirtAddr::new(VA + (66 << 20)), level);
        A::swap_upper(arena.table(frames[k]), index, E::table(frames[k + 1], level));
    }
    let pmd = E::leaf(Pfn::new(PA >> 12), prot(), Level::Pmd);
    let index = A::index(VirtAddr::new(VA), Level::Pmd);
    cont::fill(arena.table(frames[2]).words(), index, 33, pmd, A::PMD_BLOCKS);
    let small = E::leaf(Pfn::new((PA + (66 << 20)) >> 12), prot(), Level::Pte);
    A::fill(arena.table(frames[3]), 0, 35, small);

    let theirs = RootTable::with_va_range(arena, 0, El1And0, VaRange::Lower);
    let range = MemoryRegion::new(VA as usize, (VA + BYTES) as usize);
    let mut seen = 0;
    theirs
        .walk_range(&range, &mut |at, entry, level| {
            let start = at.start().0 as u64;
            let level = if level == 3 { Level::Pte } else { Level::Pmd };
            assert_eq!(start & ((1 << A::shift(level)) - 1), 0);
            let want = PhysAddr::new(start - VA + PA);
            assert_eq!(entry.output_address().0 as u64, want.get());
            let e = E::from_bits((entry.output_address().0 | entry.flags().bits()) as u64);
            assert_eq!(e.with_cont(false), E::leaf(Pfn::new(want.get() >> 12), prot(), level));
            let marked = match (start - VA) >> 20 {
                0..64 => true,
                64..66 => false,
                _ => start - VA < (66 << 20) + 32 * 4096,
            };
            assert_eq!(e.is_cont(), marked, "{start:#x}");
            seen += 1;
            Ok(())
        })
        .expect("walks");
    assert_eq!(seen, 33 + 35);
}
