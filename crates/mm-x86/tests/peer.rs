//! Tables that the `x86_64` crate walks after we built them, and the other way round.
#![cfg(not(loom))]

use mm_arch::model::NoTlb;
use mm_arch::{
    AccessKind, Arch, At, Entry, Held, Level, Pfn, Protection, SpaceId, SpaceTlb, TableFrame,
    VirtAddr,
};
use mm_x86::{X86_64, X86Entry};
use x86_64::structures::paging::mapper::TranslateResult;
use x86_64::structures::paging::page_table::PageTableEntry;
use x86_64::structures::paging::{
    FrameAllocator, MappedPageTable, Mapper, Page, PageSize, PageTable, PageTableFlags as F,
    PhysFrame, Size1GiB, Size2MiB, Size4KiB, Translate, mapper::PageTableFrameMapping,
};

type OurTable = <X86_64 as Arch>::Table;

/// Tables in memory: frame `k` is the `k`th.
struct Ram(Vec<Box<OurTable>>);

impl Ram {
    fn new(nr: usize) -> Self {
        Ram((0..nr).map(|_| Box::new(X86_64::new_table())).collect())
    }
    fn table(&self, frame: TableFrame) -> &OurTable {
        &self.0[frame.pfn().get() as usize]
    }
    /// The root as theirs.
    #[expect(clippy::mut_from_ref, reason = "the cells of the table are atomics")]
    fn root(&self) -> &mut PageTable {
        // SAFETY: 512 words in a frame of its own, as theirs; each test uses either
        // view at a time.
        unsafe { &mut *self.frame_to_pointer(PhysFrame::containing_address(at(0))) }
    }
}

// SAFETY: the pointer is to a table that lives as long as `self`, laid out as theirs.
unsafe impl PageTableFrameMapping for &Ram {
    fn frame_to_pointer(&self, frame: PhysFrame) -> *mut PageTable {
        (**self).frame_to_pointer(frame)
    }
}
impl Ram {
    fn frame_to_pointer(&self, frame: PhysFrame) -> *mut PageTable {
        let pfn = Pfn::new(frame.start_address().as_u64() >> 12);
        std::ptr::from_ref(self.table(TableFrame::new(pfn))).cast_mut().cast()
    }
}
fn at(phys: u64) -> x86_64::PhysAddr {
    x86_64::PhysAddr::new(phys)
}

const VA: VirtAddr = VirtAddr::new(0x7f12_3456_7000);
const LARGE: VirtAddr = VirtAddr::new(0x7f12_4000_0000);
const HUGE: VirtAddr = VirtAddr::new(0x7f13_0000_0000 & !0x3fff_ffff);

/// Puts `e` at `level` for `va`, over tables that are made in the order of `next`.
fn map(ram: &Ram, next: &mut u64, va: VirtAddr, level: Level, e: X86Entry) {
    let mut frame = TableFrame::new(Pfn::new(0));
    for l in X86_64::LEVELS {
        let (table, index) = (ram.table(frame), X86_64::index(va, *l));
        if *l == level {
            X86_64::set(table, At { va, index }, e, &SpaceTlb::new(&NoTlb, SpaceId(1)));
            return;
        }
        let there = X86_64::read_upper::<Held>(table, index);
        frame = there.as_table(*l).unwrap_or_else(|| {
            let new = TableFrame::new(Pfn::new(*next));
            *next += 1;
            X86_64::swap_upper(table, index, X86Entry::table(new, *l));
            new
        });
    }
}

/// Rules: PTE-01, PTE-02, PTE-04, PTE-11, PTE-13.
#[test]
fn they_walk_what_we_built() {
    let ram = Ram::new(10);
    let prot =
        X86_64::prot(Protection { writable_at_once: true, ..Protection::private_read_write() });
    let leaf = |pfn, level| X86Entry::leaf(Pfn::new(pfn), prot, level);
    let mut next = 1;
    map(&ram, &mut next, VA, Level::Pte, leaf(0x12_3456, Level::Pte).mkdirty());
    map(&ram, &mut next, LARGE, Level::Pmd, leaf(0x777 << 9, Level::Pmd).wrprotect());
    map(&ram, &mut next, HUGE, Level::Pud, leaf(0x9 << 18, Level::Pud));
    // SAFETY: the tables are a tree whose frames `ram` maps.
    let theirs = unsafe { MappedPageTable::new(ram.root(), &ram) };
    let plain = F::PRESENT | F::USER_ACCESSIBLE | F::ACCESSED | F::NO_EXECUTE;
    for (va, offset, start, flags) in [
        (VA, 0x123, 0x12_3456 << 12, plain | F::WRITABLE | F::DIRTY | F::BIT_11),
        (LARGE, 0x12_3456, 0x777 << 21, plain | F::HUGE_PAGE),
        (HUGE, 0x1234_5678, 0x9 << 30, plain | F::WRITABLE | F::HUGE_PAGE),
    ] {
        match theirs.translate(x86_64::VirtAddr::new(va.get() + offset)) {
            TranslateResult::Mapped { frame, offset: o, flags: f } => {
                assert_eq!((frame.start_address().as_u64(), o), (start, offset), "{va}");
                assert_eq!(f, flags, "{va}");
            }
            other => panic!("{va}: {other:?}"),
        }
    }
    let hole = theirs.translate(x86_64::VirtAddr::new(VA.get() + 4096));
    assert!(matches!(hole, TranslateResult::NotMapped), "{hole:?}");
}

struct Bump(u64);
// SAFETY: each frame once.
unsafe impl FrameAllocator<Size4KiB> for Bump {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        self.0 += 1;
        Some(PhysFrame::containing_address(at(self.0 << 12)))
    }
}

/// Rules: PTE-01, PTE-02, PTE-04, PTE-10, PTE-13.
#[test]
fn we_walk_what_they_built() {
    let ram = Ram::new(12);
    // SAFETY: an empty root whose frames `ram` maps.
    let mut theirs = unsafe { MappedPageTable::new(ram.root(), &ram) };
    let parents = F::PRESENT | F::WRITABLE | F::USER_ACCESSIBLE | F::ACCESSED | F::DIRTY;
    fn add<S: PageSize + std::fmt::Debug>(
        mapper: &mut impl Mapper<S>,
        frames: &mut Bump,
        va: VirtAddr,
        phys: u64,
        flags: F,
        parents: F,
    ) {
        let page = Page::<S>::containing_address(x86_64::VirtAddr::new(va.get()));
        let frame = PhysFrame::containing_address(at(phys));
        // SAFETY: nothing is accessed through the mapping.
        let done = unsafe { mapper.map_to_with_table_flags(page, frame, flags, parents, frames) };
        done.expect("mapped").ignore();
    }
    let mut frames = Bump(0);
    let rw = F::PRESENT | F::USER_ACCESSIBLE | F::WRITABLE;
    add::<Size4KiB>(&mut theirs, &mut frames, VA, 0x12_3456 << 12, rw | F::DIRTY, parents);
    let ro = F::PRESENT | F::USER_ACCESSIBLE | F::ACCESSED | F::NO_EXECUTE;
    add::<Size2MiB>(&mut theirs, &mut frames, LARGE, 0x777 << 21, ro, parents);
    add::<Size1GiB>(&mut theirs, &mut frames, HUGE, 0x9 << 30, rw | F::BIT_9, parents);
    let find = |va: VirtAddr| {
        let mut frame = TableFrame::new(Pfn::new(0));
        for level in X86_64::LEVELS {
            let e = X86_64::read_upper::<Held>(ram.table(frame), X86_64::index(va, *level));
            match e.as_table(*level) {
                Some(next) => frame = next,
                None => return (*level, e),
            }
        }
        panic!("no end");
    };
    let (level, e) = find(VA);
    assert_eq!((level, e.pfn(level)), (Level::Pte, Pfn::new(0x12_3456)));
    assert!(e.permits(AccessKind::Write, level) && e.permits(AccessKind::Exec, level));
    assert!(e.is_dirty() && !e.is_young() && !e.is_special());
    let (level, e) = find(LARGE);
    assert_eq!((level, e.pfn(level)), (Level::Pmd, Pfn::new(0x777 << 9)));
    assert!(e.is_leaf(level) && e.is_young() && !e.is_writable(level));
    assert!(e.permits(AccessKind::Read, level) && !e.permits(AccessKind::Exec, level));
    let (level, e) = find(HUGE);
    assert_eq!((level, e.pfn(level)), (Level::Pud, Pfn::new(0x9 << 18)));
    assert!(e.is_leaf(level) && e.is_special() && e.is_writable(level));
    let (level, e) = find(VirtAddr::new(VA.get() + 4096));
    assert!(level == Level::Pte && e.is_none());
}

/// An entry of theirs and one of ours are the same word.
///
/// Rules: PTE-02, PTE-04.
#[test]
fn entries_are_the_same_words() {
    for bit in 0..64 {
        let flags = F::from_bits_truncate(1 << bit);
        let mut theirs = PageTableEntry::new();
        theirs.set_addr(at(0x12_3456 << 12), flags | F::PRESENT);
        let ours = X86Entry::from_bits(0x1_2345_6001 | flags.bits());
        assert_eq!(ours.pfn(Level::Pte).get(), theirs.addr().as_u64() >> 12);
        assert_eq!(ours.is_dirty(), theirs.flags().intersects(F::DIRTY | F::BIT_58), "{bit}");
        assert_eq!(ours.is_young(), theirs.flags().contains(F::ACCESSED), "{bit}");
    }
}
