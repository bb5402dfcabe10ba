//! Copy-on-write: who sees whose stores, on every layout, in memory and swapped out.

use super::*;
use mm_gup::GupFlags;

const LONG: GupFlags = GupFlags::LONGTERM;

/// Runs `row` on every layout under two policies that reuse differently, once as it lies
/// and once swapped out before.
fn on_layouts(row: impl Fn(Row, Layout, bool)) {
    for preset in [Preset::Linux618, Preset::Best] {
        for layout in Layout::ALL {
            for swapped in [false, true] {
                let r = Row::new(layout, preset);
                if swapped {
                    r.p.madvise_pageout(r.range()).expect("paged out");
                    assert!(entries_that(&r.p, r.each(), |_, _, _| true).is_empty());
                }
                r.p.take_faults();
                row(r, layout, swapped);
            }
        }
    }
}
/// Read-only and back: pages that are shared must not become writable by it.
fn toggle(r: &Row) {
    r.p.mprotect(r.range(), Rights::READ).expect("mprotect");
    r.p.mprotect(r.range(), BOTH).expect("mprotect");
}
fn get(r: &Row, process: &P) -> Pinned<A> {
    process.get(page(r.first), r.n as usize, GupFlags::empty()).expect("reference")
}

/// Rules: S-CW1, S-CW2, S-CW16, MPROT-03.
#[test]
fn a_child_keeps_what_it_inherited() {
    for toggled in [false, true] {
        on_layouts(|r, _, _| {
            let child = r.p.fork().expect("fork");
            if toggled {
                toggle(&r);
            }
            r.write(&r.p);
            r.reads(&child, Row::OLD);
            r.reads(&r.p, Row::NEW);
            r.sound(&[&r.p, &child], &[]);
            child.exit();
            r.end();
        });
    }
}

/// Rules: S-CW3, S-CW4, REUSE-06.
#[test]
fn a_reference_of_a_child_that_left_keeps_the_old_data() {
    for toggled in [false, true] {
        on_layouts(|r, _, _| {
            let child = r.p.fork().expect("fork");
            let held = get(&r, &child);
            child.munmap(r.range()).expect("munmap");
            if toggled {
                toggle(&r);
            }
            let before: Vec<_> = held.runs().iter().flat_map(|run| run.pages()).collect();
            r.write(&r.p);
            r.holder_reads(&held, Row::OLD);
            let copied = r.frames(&r.p).iter().zip(&before).all(|(now, before)| now != before);
            assert!(copied, "somebody still looks at the page");
            r.sound(&[&r.p, &child], &[&held]);
            drop(held);
            child.exit();
            r.end();
        });
    }
}

/// Rules: S-CW5, S-CW6.
#[test]
fn a_reference_of_a_parent_that_left_keeps_the_old_data() {
    for before_the_fork in [true, false] {
        on_layouts(|r, _, _| {
            let early = before_the_fork.then(|| get(&r, &r.p));
            let child = r.p.fork().expect("fork");
            let held = early.unwrap_or_else(|| get(&r, &r.p));
            r.p.munmap(r.range()).expect("munmap");
            r.write(&child);
            r.holder_reads(&held, Row::OLD);
            r.reads(&child, Row::NEW);
            r.sound(&[&r.p, &child], &[&held]);
            drop(held);
            child.exit();
            r.end();
        });
    }
}

/// Rules: S-CW7, FAULT-10, WRITE-01.
#[test]
fn a_pinned_page_that_was_made_read_only_is_reused() {
    on_layouts(|r, _, _| {
        let pin = r.p.pin(page(r.first), r.n as usize, LONG | GupFlags::WRITE).expect("pin");
        let before = r.frames(&r.p);
        r.p.mprotect(r.range(), Rights::READ).expect("mprotect");
        r.p.clear_soft_dirty().expect("memory");
        r.p.mprotect(r.range(), BOTH).expect("mprotect");
        assert!(writable(&r.p, r.each()).is_empty(), "the next store is to be noticed");
        r.write(&r.p);
        r.holder_reads(&pin, Row::NEW);
        assert_eq!(r.frames(&r.p), before);
        r.sound(&[&r.p], &[&pin]);
        drop(pin);
        r.end();
    });
}

/// Rules: S-CW8, FORK-08, PIN-12.
#[test]
fn a_pinned_page_is_copied_for_the_child_at_fork() {
    on_layouts(|r, _, _| {
        let pin = r.p.pin(page(r.first), r.n as usize, LONG | GupFlags::WRITE).expect("pin");
        let before = r.frames(&r.p);
        let child = r.p.fork().expect("fork");
        r.write(&r.p);
        r.holder_reads(&pin, Row::NEW);
        r.reads(&child, Row::OLD);
        assert_eq!(r.frames(&r.p), before);
        r.sound(&[&r.p, &child], &[&pin]);
        drop(pin);
        child.exit();
        r.end();
    });
}

/// A long pin for reading, by the slow path or by the fast one.
fn pin_to_read(r: &Row, fast: bool) -> Pinned<A> {
    let nr = r.n as usize;
    let pinned =
        if fast { r.p.pin(page(r.first), nr, LONG) } else { r.p.pin_slow(page(r.first), nr, LONG) };
    pinned.expect("pin")
}

/// Rules: S-CW9, S-CW10, GUPF-17, GUPS-28.
#[test]
fn a_pin_of_a_shared_page_unshares_it_first() {
    for fast in [false, true] {
        on_layouts(|r, _, _| {
            let child = r.p.fork().expect("fork");
            let pin = pin_to_read(&r, fast);
            assert!(r.p.take_faults().gup_minor > 0, "shared pages need a fault");
            r.write(&r.p);
            r.holder_reads(&pin, Row::NEW);
            r.reads(&child, Row::OLD);
            r.sound(&[&r.p, &child], &[&pin]);
            drop(pin);
            child.exit();
            r.end();
        });
    }
}

/// Rules: S-CW11, S-CW12, REUSE-12, FAULT-10.
#[test]
fn a_pin_after_the_child_left_unshares_in_place() {
    for fast in [false, true] {
        on_layouts(|r, layout, swapped| {
            let before = (!swapped).then(|| frame(&r.p, r.first));
            r.p.fork().expect("fork").exit();
            let pin = pin_to_read(&r, fast);
            // The first page: its pin then makes those behind it look used.
            let stays = matches!(layout, Layout::Page | Layout::Ptes(_));
            if let Some(before) = before.filter(|_| stays) {
                assert_eq!(frame(&r.p, r.first), before, "{layout:?}");
            }
            r.write(&r.p);
            r.holder_reads(&pin, Row::NEW);
            r.sound(&[&r.p], &[&pin]);
            drop(pin);
            r.end();
        });
    }
}

/// Rules: S-CW13, S-CW14, GUPF-17, EXCL-02.
#[test]
fn a_pin_of_an_exclusive_page_that_is_read_only_copies_nothing() {
    for fast in [false, true] {
        on_layouts(|r, layout, swapped| {
            r.p.mprotect(r.range(), Rights::READ).expect("mprotect");
            let mixed = matches!(layout, Layout::SharedOnce(_));
            let before = (!swapped && !mixed).then(|| r.frames(&r.p));
            r.p.take_faults();
            let pin = pin_to_read(&r, fast);
            if let Some(before) = before {
                assert_eq!((r.frames(&r.p), r.p.take_faults().gup_minor), (before, 0));
            }
            let pinned = r.frames(&r.p);
            r.p.mprotect(r.range(), BOTH).expect("mprotect");
            r.write(&r.p);
            r.holder_reads(&pin, Row::NEW);
            assert_eq!(r.frames(&r.p), pinned);
            r.sound(&[&r.p], &[&pin]);
            drop(pin);
            r.end();
        });
    }
}
