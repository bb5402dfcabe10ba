//! Collapse of memory that a child shares, wholly or in part.

use super::*;

/// Rules: S-CO1, S-CO2, COLL-04.
#[test]
fn a_child_keeps_what_it_inherited_of_a_collapsed_block() {
    for preset in Preset::ALL {
        for shared_before in [false, true] {
            let r = Row::new(Layout::Ptes(9), *preset);
            let early = shared_before.then(|| r.p.fork().expect("fork"));
            r.p.collapse(r.range()).expect("collapsed");
            let child = early.unwrap_or_else(|| r.p.fork().expect("fork"));
            r.sound(&[&r.p, &child], &[]);
            if shared_before {
                // The new folio is the process's alone: no fault.
                assert_eq!(writable(&r.p, r.each()).len(), 512);
                assert_eq!(exclusive(&r.p, r.each()).len(), 512);
                assert!(exclusive(&child, r.each()).is_empty());
            }
            r.write(&r.p);
            r.reads(&child, Row::OLD);
            r.reads(&r.p, Row::NEW);
            r.sound(&[&r.p, &child], &[]);
            child.exit();
            r.end();
        }
    }
}

/// Rules: S-CO3, S-CO4, COLL-04.
#[test]
fn a_block_of_which_a_child_has_one_half_is_collapsed() {
    for preset in Preset::ALL {
        for (not_inherited, inherited) in [(256, 0), (0, 256)] {
            let r = Row::new(Layout::Ptes(9), *preset);
            r.p.madvise(pages(not_inherited, 256), Advice::DontFork).expect("advice");
            let child = r.p.fork().expect("fork");
            r.p.madvise(pages(not_inherited, 256), Advice::DoFork).expect("advice");
            r.p.collapse(r.range()).expect("collapsed");
            let map = r.m.host().memmap();
            assert_eq!(map.folio(frame(&r.p, 0)).entire_mapcount(), 1);
            r.write(&r.p);
            for i in inherited..inherited + 256 {
                assert_eq!(child.load(page(i)), Ok(Row::OLD + i));
            }
            assert!(child.load(page(not_inherited)).is_err());
            r.reads(&r.p, Row::NEW);
            r.sound(&[&r.p, &child], &[]);
            child.exit();
            r.end();
        }
    }
}
