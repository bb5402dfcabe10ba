//! Hints end to end: one fault for what a table has of a folio, and content that stays.

use super::*;
use mm_arch::VirtRange;

/// Rules: NUMA-01, NUMA-02, MPROT-06.
#[test]
fn one_access_to_each_folio_takes_a_fault() {
    for preset in Preset::ALL {
        for layout in Layout::ALL {
            let r = Row::new(layout, *preset);
            let frames = r.frames(&r.p);
            let counts = r.m.host().observer();
            let was = (writable(&r.p, r.each()), counts.hints_marked.get());
            r.p.mark_hints(r.range()).expect("user space");
            assert_eq!(counts.hints_marked.get() - was.1, r.n);
            r.sound(&[&r.p], &[]);
            r.p.take_faults();
            // The half that moved lies in one table, as everything does.
            r.reads(&r.p, Row::OLD);
            assert_eq!(faults(&r.p), 1, "{layout:?}");
            assert_eq!((r.frames(&r.p), writable(&r.p, r.each())), (frames, was.0));
            // Only what was shared once takes a fault for the store.
            r.write(&r.p);
            let once = matches!(layout, Layout::SharedOnce(_));
            assert_eq!(faults(&r.p), usize::from(once), "{layout:?}");
            r.reads(&r.p, Row::NEW);
            r.end();
        }
    }
}

/// Rules: MPROT-06, NUMA-01.
#[test]
fn what_a_child_shares_is_not_marked() {
    for preset in Preset::ALL {
        let r = Row::new(Layout::Ptes(4), *preset);
        let child = r.p.fork().expect("fork");
        r.p.mark_hints(r.range()).expect("user space");
        assert_eq!(r.m.host().observer().hints_marked.get(), 0);
        child.exit();
        r.m.settle();
        r.p.mark_hints(r.range()).expect("user space");
        assert_eq!(r.m.host().observer().hints_marked.get(), 16);
        // A pin finds out as an access does; a child inherits what is inaccessible.
        let child = r.p.fork().expect("fork");
        let pin = child.pin(page(3), 1, mm_gup::GupFlags::empty()).expect("pin");
        r.sound(&[&r.p, &child], &[&pin]);
        r.reads(&child, Row::OLD);
        r.write(&r.p);
        r.reads(&child, Row::OLD);
        drop(pin);
        child.exit();
        r.end();
        let odd = VirtRange::new(page(0), 100).expect("range");
        let m = machine_under(16, *preset);
        assert!(m.spawn().expect("process").mark_hints(odd).is_err());
    }
}
