//! The window function and the limits of runs.
use crate::common::{Deep, page, stay, table, tree};
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, VirtAddr, VirtRange, respect};
use mm_pgtable::{Block, Window, WindowRequest};
use proptest::prelude::*;

/// Tables of 512 entries and pages of 4 KiB, as the vectors assume.
type Big = ModelWord<512>;

fn range(first: u64, end: u64) -> VirtRange {
    VirtRange::units(page::<Big>(first), end - first, 12).expect("a range")
}

fn window(a: u64, index: usize, folio_pages: usize, vma: (u64, u64), block: Block) -> (u64, u64) {
    let vma = range(vma.0, vma.1);
    let w =
        Window::of::<Big>(&WindowRequest { va: page::<Big>(a), index, folio_pages, vma, block });
    assert_eq!(w.nr(), w.before + w.after);
    (a - w.before as u64, a + w.after as u64)
}

/// Rules: WREUSE-03, WREUSE-04.
#[test]
fn reuse_windows_are_those_of_the_table_of_vectors() {
    // Fault page, index in the folio, pages of the folio, mapping, v1, v2.
    let vectors = [
        (77, 77, 512, (0, 1024), (64, 80), (0, 512)),
        (100, 0, 512, (0, 1024), (100, 112), (100, 512)),
        (520, 420, 512, (0, 1024), (512, 528), (512, 612)),
        (44, 12, 16, (40, 1024), (40, 48), (40, 48)),
        (510, 2, 16, (0, 1024), (508, 512), (508, 512)),
        (512, 4, 16, (0, 1024), (512, 524), (512, 524)),
        (9, 1, 4, (0, 1024), (8, 12), (8, 12)),
        (129, 129, 256, (0, 130), (128, 130), (0, 130)),
        (511, 511, 512, (511, 512), (511, 512), (511, 512)),
        (0, 0, 16, (0, 1), (0, 1), (0, 1)),
    ];
    for (a, index, pages, vma, v1, v2) in vectors {
        assert_eq!(window(a, index, pages, vma, Block::Pages(16)), v1, "v1 of page {a}");
        assert_eq!(window(a, index, pages, vma, Block::Table), v2, "v2 of page {a}");
    }
}

/// Rules: UNMAP-07, UNMAP-08.
#[test]
fn unmap_limits_are_those_of_the_table_of_vectors() {
    // Index in the table, index in the folio, pages of the folio, pages to the
    // end of the mapping, most entries of a batch.
    for (at, index, pages, to_end, max) in [
        (0, 0, 16, 100, 16),
        (508, 0, 16, 100, 4),
        (0, 4, 16, 100, 12),
        (0, 0, 16, 5, 5),
        (511, 3, 16, 100, 1),
        (200, 0, 512, 512, 312),
    ] {
        let (first, end) = window(at, index, pages, (0, at + to_end), Block::Table);
        assert_eq!(end - at, max, "batch at slot {at}");
        assert!(first <= at);
    }
}

/// The last page of a mapping that ends at 2^64: every sum would wrap.
///
/// Rules: WREUSE-05, ACC-23.
#[test]
fn nothing_wraps_at_the_top_of_the_address_space() {
    let top = u64::MAX - 0xfff;
    for block in [Block::Table, Block::Pages(16)] {
        for back in 0..20u64 {
            let vma = VirtRange::units(VirtAddr::new(top - (19 << 12)), 20, 12).expect("a range");
            let va = VirtAddr::new(top - (back << 12));
            // A folio whose last page is far behind the top.
            let w =
                Window::of::<Big>(&WindowRequest { va, index: 500, folio_pages: 600, vma, block });
            assert_eq!(
                w.after as u64,
                (back + 1).min(if block == Block::Table { 512 } else { 16 - (15 - back % 16) })
            );
            assert!(vma.contains(VirtAddr::new(va.get() - ((w.before as u64) << 12))));
            let last = va.checked_add(((w.after as u64) << 12) - 1).expect("below the top");
            assert!(vma.contains(last));
        }
    }
    // The same on a format whose tables span all of the address space.
    let all = VirtRange::new(VirtAddr::new(0), u64::MAX).expect("a range");
    let va = page::<Deep>(511);
    let w = Window::of::<Deep>(&WindowRequest {
        va,
        index: 7,
        folio_pages: 16,
        vma: all,
        block: Block::Table,
    });
    // The range is one byte short of the top, so its last page does not count.
    assert_eq!((w.before, w.after), (7, 1));
}

fn check<A: Arch>(
    first_page: u64,
    vma_pages: u64,
    at: u64,
    index: usize,
    folio_pages: usize,
    block: Block,
) {
    let shift = A::PAGE_SHIFT;
    let vma = VirtRange::units(page::<A>(first_page), vma_pages, shift).expect("a range");
    let a = first_page + at;
    let n = A::nr_entries(mm_arch::Level::Pte) as u64;
    let w = Window::of::<A>(&WindowRequest { va: page::<A>(a), index, folio_pages, vma, block });
    let (lo, hi) = (a - w.before as u64, a + (w.after as u64 - 1));
    assert!(w.after >= 1, "the window holds the address");
    assert!(w.before <= index && index + w.after <= folio_pages, "inside the folio");
    assert!(lo >= first_page && hi < first_page + vma_pages, "inside the mapping");
    assert_eq!(lo / n, hi / n, "inside one table");
    if let Block::Pages(b) = block {
        assert_eq!(lo / b as u64, hi / b as u64, "inside one block");
    }
    // And as wide as that: one more entry on either side leaves a bound.
    let block_of = |p: u64| match block {
        Block::Table => p / n,
        Block::Pages(b) => p / (b as u64).min(n),
    };
    assert!(
        w.before == index || lo == first_page || block_of(lo - 1) != block_of(a),
        "too few before"
    );
    assert!(
        index + w.after == folio_pages
            || hi + 1 == first_page + vma_pages
            || block_of(hi + 1) != block_of(a),
        "too few after"
    );
}

proptest! {
    /// Rules: WREUSE-03, WREUSE-04, WREUSE-05, UNMAP-07.
    #[test]
    fn a_window_is_the_widest_inside_folio_mapping_block_and_table(
        vma_pages in 1u64..2000,
        seed in any::<u64>(),
        folio_pages in 1usize..600,
        at_top in any::<bool>(),
        block in prop_oneof![Just(Block::Table), (0u32..11).prop_map(|k| Block::Pages(1 << k))],
    ) {
        let at = seed % vma_pages;
        let index = (seed >> 32) as usize % folio_pages;
        // The last page of the address space has number 2^52 - 1.
        let first = if at_top { (1 << 52) - vma_pages } else { seed % 4096 };
        check::<Big>(first, vma_pages, at, index, folio_pages, block);
        check::<ModelWord<16>>(first, vma_pages, at, index, folio_pages, block);
    }
}

fn folio_across_two_tables<A: Arch<Entry = mm_arch::model::ModelEntry>>() {
    let (_space, tables) = tree::<A>(4);
    // Sixteen pages from slot 508 on; behind the folio more frames of the next
    // folio, which continue it.
    let head = crate::common::leaf::<A>(0x1000);
    table(&tables, page::<A>(508)).fill(508, 4, head);
    let next = head.with_frames(4);
    table(&tables, page::<A>(512)).fill(0, 20, next);

    let first = table(&tables, page::<A>(508));
    let e = first.get(508);
    // A caller that knows only the folio asks for sixteen.
    let run = first.run::<{ respect::WRITE }>(508, e, first.limit(508).at_most(16));
    assert_eq!((run.first(), run.nr()), (508, 4));
    drop(first);
    let second = table(&tables, page::<A>(512));
    let e = second.get(0);
    let run = second.run::<{ respect::WRITE }>(0, e, second.limit(0).at_most(16 - 4));
    assert_eq!((run.first(), run.nr()), (0, 12), "the next folio is not part of the run");
    // A limit of another index does not lead out of the table.
    let wide = second.limit(0);
    drop(second);
    let first = table(&tables, page::<A>(508));
    let e = first.get(508);
    assert_eq!(first.run::<{ respect::NOTHING }>(508, e, wide).nr(), 4);
    assert_eq!(first.none_run(500, wide), 8);
}

trait WithFrames {
    fn with_frames(self, n: u64) -> Self;
}
impl<E: mm_arch::Entry> WithFrames for E {
    fn with_frames(self, n: u64) -> Self {
        self.advance(n, mm_arch::Level::Pte)
    }
}

/// Rules: MM-004, UNMAP-08, INV-10, BATCH-03.
#[test]
fn a_run_does_not_leave_its_table() {
    folio_across_two_tables::<Big>();
    folio_across_two_tables::<ModelCont<512, 16>>();
    folio_across_two_tables::<ModelPair<512>>();
}

/// Shadow stacks are in small folios: a run of their entries is a fault of the caller, in
/// builds that look.
///
/// Rules: BATCH-23, BATCH-24.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "a run of shadow-stack entries"))]
fn no_run_of_a_shadow_stack() {
    use mm_arch::{Arch, Entry, Level, Pfn, Protection, WriteKind};
    use mm_x86::X86_64;
    let (_space, tables) = tree::<X86_64>(4);
    let first = tables.ensure_table(stay(), page::<X86_64>(0)).expect("memory");
    let mut t = first.table().expect("a table");
    let prot = X86_64::prot(Protection::private_read_write());
    let plain = <X86_64 as Arch>::Entry::leaf(Pfn::new(0x1000), prot, Level::Pte);
    let stack = plain.mkwrite(WriteKind::ShadowStack);
    t.set(0, stack);
    t.set(1, plain.advance(1, Level::Pte));
    assert_eq!(t.run::<{ respect::WRITE }>(0, stack, t.limit(0).at_most(1)).nr(), 1);
    assert_eq!(t.run::<{ respect::WRITE }>(1, t.get(1), t.limit(1)).nr(), 1);
    // Without assertions the scan is right all the same.
    assert_eq!(t.run::<{ respect::WRITE }>(0, stack, t.limit(0)).nr(), 1);
}

#[test]
fn bounds_only_lower_a_limit() {
    let (_space, tables) = tree::<Big>(4);
    let t = tables.ensure_table(stay(), page::<Big>(0)).expect("memory").table().expect("a table");
    let limit = t.limit(500);
    assert_eq!(limit.get(), 12);
    assert_eq!(limit.at_most(100).get(), 12);
    assert_eq!(limit.at_most(usize::MAX).get(), 12);
    assert_eq!(limit.at_most(5).at_most(7).get(), 5);
    assert_eq!(limit.at_most(0).get(), 1, "the head is held already");
    assert_eq!(t.single(3).nr(), 1);
    let run = t.single(3).prefix(0);
    assert_eq!((run.first(), run.nr(), run.count().get()), (3, 1, 1));
}

proptest! {
    /// Random leaves with gaps: a run stays inside the table and the limit, and
    /// all its entries map consecutive frames.
    ///
    /// Rules: INV-10, BATCH-01, BATCH-05.
    #[test]
    fn runs_stay_inside_table_and_limit(
        slots in prop::collection::vec(0u8..6, crate::common::N),
        index in 0usize..crate::common::N,
        most in 0usize..40,
    ) {
        fn on<A: Arch<Entry = mm_arch::model::ModelEntry>>(slots: &[u8], index: usize, most: usize) {
            use mm_arch::{Entry, Level};
            let (_space, tables) = tree::<A>(3);
            let mut t = table(&tables, page::<A>(0));
            for (i, s) in slots.iter().enumerate() {
                if *s > 0 {
                    // Mostly the frame that continues the run.
                    let e = crate::common::leaf::<A>(0x1000 + i as u64 + u64::from(*s / 5));
                    t.fill(i, 1, e);
                }
            }
            let head = t.get(index);
            if head.is_none() {
                return;
            }
            let limit = t.limit(index).at_most(most);
            let run = t.run::<{ respect::WRITE }>(index, head, limit);
            assert!(run.nr() <= limit.get() && index + run.nr() <= crate::common::N);
            for k in 0..run.nr() {
                assert_eq!(t.get(index + k).pfn(Level::Pte).get(), head.pfn(Level::Pte).get() + k as u64);
            }
            // And it does not end early.
            if run.nr() < limit.get() {
                let e = t.get(index + run.nr());
                assert!(e.is_none() || e.pfn(Level::Pte) != head.pfn(Level::Pte).add(run.nr() as u64));
            }
        }
        on::<ModelWord<{ crate::common::N }>>(&slots, index, most);
        on::<ModelCont<{ crate::common::N }, 4>>(&slots, index, most);
        on::<ModelPair<{ crate::common::N }>>(&slots, index, most);
    }
}
