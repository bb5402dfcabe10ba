//! Moves of mappings.

use super::*;
use mm_arch::{Arch, VirtAddr, VirtRange};
use mm_map::MapError;

fn process(preset: Preset) -> (M, P) {
    let m = machine_under(64, preset);
    let p = m.spawn().expect("process");
    (m, p)
}
fn end(m: &M, p: P) {
    m.settle();
    assert_eq!(audit(m, [&p], []), []);
    p.exit();
    m.settle();
    assert_eq!(leaks(m), []);
}

/// Rules: S-MR1, MREMAP-01.
#[test]
fn a_move_that_makes_no_sense_changes_nothing() {
    let (m, p) = process(Preset::Best);
    filled(&p, 0, 16, 100);
    let range = pages(0, 16);
    let bytes = |first: u64, n| VirtRange::new(VirtAddr::new(first), n).expect("range");
    for (from, to) in [
        (range, page(0)),
        (range, page(8)),
        (pages(4, 8), page(0)),
        (range, VirtAddr::new(page(64).get() + 512)),
        (range, VirtAddr::new(A::USER_END - 4096)),
        (bytes(page(0).get() + 8, 4096), page(64)),
        (bytes(page(0).get(), 4096 * 2 + 512), page(64)),
    ] {
        let moved = p.mremap_move(from, to, OldPlace::Unmap);
        assert_eq!(moved.map_err(MapError::errno), Err("EINVAL"), "{from:?} to {to}");
    }
    let unmapped = p.mremap_move(pages(32, 4), page(64), OldPlace::Unmap);
    assert_eq!(unmapped.map_err(MapError::errno), Err("EFAULT"));
    (0..16).for_each(|i| assert_eq!(p.load(page(i)), Ok(100 + i)));
    end(&m, p);
}

/// Sparse data of a range moves from every alignment to every other one, and what lies
/// right below the new place stays.
///
/// Rules: S-MR2, MREMAP-01, MREMAP-05.
#[test]
fn data_moves_between_all_alignments() {
    const MIB: u64 = 256;
    const GIB: u64 = 1024 * MIB;
    // Pages that the start is a multiple of, and the sizes that are moved.
    let cases = [
        (1, 1, 2),
        (1, 1, 2 * MIB + 3),
        (MIB, MIB, 2 * MIB),
        (1, MIB, 3 * MIB),
        (MIB, 1, 3 * MIB),
        (2 * MIB, 2 * MIB, 2 * MIB),
        (2 * MIB, 1, 4 * MIB),
        (1, 2 * MIB, 4 * MIB),
        (2 * MIB, 2 * MIB, 40 * MIB),
        (GIB, GIB, GIB),
        (GIB, GIB, 2 * GIB),
        (2 * MIB, GIB, GIB),
    ];
    for preset in [Preset::Baseline, Preset::Best] {
        for (from, to, size) in cases {
            let (m, p) = process(preset);
            // Aligned to this and to no more.
            let (old, new) = (4 * GIB + from, 16 * GIB + to);
            p.mmap_anon(pages(old, size), RW).expect("mmap");
            let stride = (size / 128).max(1);
            let touched = || (0..size).step_by(stride as usize).chain([size - 1]);
            touched().for_each(|k| p.store(page(old + k), 500 + k).expect("store"));
            filled(&p, new - 10, 10, 900);
            p.mremap_move(pages(old, size), page(new), OldPlace::Unmap).expect("move");
            touched().for_each(|k| assert_eq!(p.load(page(new + k)), Ok(500 + k)));
            (new - 10..new).for_each(|i| assert_eq!(p.load(page(i)), Ok(900 + i)));
            assert!(p.load(page(old)).is_err() && p.load(page(old + size - 1)).is_err());
            end(&m, p);
        }
    }
}

/// Rules: S-MR3, MREMAP-01, MREMAP-03.
#[test]
fn the_old_place_of_a_move_that_keeps_it_is_empty() {
    for preset in Preset::ALL {
        for layout in [Layout::Page, Layout::Leaf, Layout::Ptes(4), Layout::Ptes(9)] {
            let r = Row::new(layout, *preset);
            let before = r.frames(&r.p);
            r.p.mremap_move(r.range(), page(2048), OldPlace::Keep).expect("move");
            let there: Vec<_> = r.each().map(|i| frame(&r.p, 2048 + i)).collect();
            assert_eq!(there, before);
            for i in r.each() {
                assert_eq!(r.p.load(page(i)), Ok(0));
                assert_eq!(r.p.load(page(2048 + i)), Ok(Row::OLD + i));
            }
            r.end();
        }
    }
}
