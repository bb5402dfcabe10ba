//! Userfaultfd end to end: what scenarios see of it, under every policy.

use crate::common::prints;

/// Rules: FAULT-07, UFFD-04. Whoever writes for the process is asked about, too;
/// a pin that only reads is not.
#[test]
fn pins_of_protected_pages() {
    prints(
        "mmap p0 a 16 anon rw private\n\
         write p0 a 1\n\
         uffd p0 a register wp\n\
         uffd p0 a protect\n\
         faults p0\n\
         pin p0 a:0+4 r fuse-r\n\
         pvread p0 a:0\n\
         events p0\n\
         faults p0\n\
         pin p0 a:4+2 w uring\n\
         pvwrite p0 a:8 5\n\
         poke p0 a:9 6\n\
         events p0\n\
         faults p0\n\
         pinwrite p0 w 3\n\
         content p0 a:4+6\n",
        &[
            r#"{"line":5,"op":"faults","p":"p0","min":16,"maj":0,"gup_min":0,"gup_maj":0,"minat":{"a":[[0,16]]}}"#,
            r#"{"line":7,"op":"pvread","p":"p0","r":"a","c":[[0,1,"1"]]}"#,
            r#"{"line":8,"op":"events","p":"p0","e":[]}"#,
            r#"{"line":9,"op":"faults","p":"p0","min":0,"maj":0,"gup_min":0,"gup_maj":0,"minat":{}}"#,
            r#"{"line":13,"op":"events","p":"p0","e":[["a",4,"wp"],["a",5,"wp"],["a",8,"wp"],["a",9,"wp"]]}"#,
            r#"{"line":14,"op":"faults","p":"p0","min":0,"maj":0,"gup_min":4,"gup_maj":0,"minat":{}}"#,
            r#"{"line":16,"op":"content","p":"p0","r":"a","c":[[4,1,"3@0"],[5,1,"3@1"],[6,2,"1"],[8,1,"5"],[9,1,"6"]]}"#,
        ],
    );
}

/// Rules: UFFD-01, UFFD-04.
#[test]
fn missing_pages() {
    prints(
        "mmap p0 a 8 anon rw private\n\
         uffd p0 a:0+2 protect\n\
         uffd p0 a register missing\n\
         uffd p0 a:0+2 protect\n\
         read p0 a:0\n\
         write p0 a:1 7\n\
         pvwrite p0 a:2 9\n\
         events p0\n\
         faults p0\n\
         madvise p0 a:1 dontneed\n\
         read p0 a:0+2\n\
         uffd p0 a unregister\n\
         write p0 a:3 5\n\
         events p0\n\
         content p0 a:0+4\n",
        &[
            r#"{"line":2,"op":"uffd","p":"p0","err":"ENOENT"}"#,
            r#"{"line":4,"op":"uffd","p":"p0","err":"ENOENT"}"#,
            r#"{"line":8,"op":"events","p":"p0","e":[["a",0,"missing-r"],["a",1,"missing-w"],["a",2,"missing-w"]]}"#,
            r#"{"line":9,"op":"faults","p":"p0","min":2,"maj":0,"gup_min":1,"gup_maj":0,"minat":{"a":[[0,2]]}}"#,
            r#"{"line":14,"op":"events","p":"p0","e":[["a",1,"missing-r"]]}"#,
            r#"{"line":15,"op":"content","p":"p0","r":"a","c":[[0,2,"0"],[2,1,"9"],[3,1,"5"]]}"#,
        ],
    );
}

/// Rules: FAULT-07, MPROT-05, ANON-04, UFFD-05.
#[test]
fn protection_of_pages_that_are_not_there() {
    prints(
        "mmap p0 a 8 anon rw private\n\
         write p0 a:0 1\n\
         uffd p0 a register wp async\n\
         uffd p0 a:0+4 protect\n\
         observe p0 a:0+6\n\
         faults p0\n\
         read p0 a:2\n\
         write p0 a:0+2 5\n\
         observe p0 a:0+6\n\
         events p0\n\
         faults p0\n\
         uffd p0 a register wp unpopulated\n\
         write p0 a:2+2 6\n\
         events p0\n\
         faults p0\n\
         content p0 a:0+6\n",
        &[
            r#"{"line":5,"op":"observe","t":[{"p":"p0","r":"a","at":0,"n":6,"runs":[{"at":0,"n":1,"s":"present","wp":1,"k":"anon","o":0,"f":0,"i":0,"mc":1,"x":1},{"at":1,"n":3,"s":"marker","wp":1},{"at":4,"n":2,"s":"none"}]}],"folios":[{"f":0,"n":1,"o":0,"fl":"anon lru upd swb hx"}]}"#,
            r#"{"line":6,"op":"faults","p":"p0","min":1,"maj":0,"gup_min":0,"gup_maj":0,"minat":{"a":[[0,1]]}}"#,
            r#"{"line":9,"op":"observe","t":[{"p":"p0","r":"a","at":0,"n":6,"runs":[{"at":0,"n":1,"s":"present","k":"anon","o":0,"f":0,"i":0,"mc":1,"x":1,"eq":1},{"at":1,"n":1,"s":"present","k":"anon","o":0,"f":1,"i":0,"mc":1,"x":1},{"at":2,"n":1,"s":"zero","wp":1},{"at":3,"n":1,"s":"marker","wp":1},{"at":4,"n":2,"s":"none"}]}],"folios":[{"f":0,"n":2,"o":0,"fl":"anon lru upd swb hx"}]}"#,
            r#"{"line":10,"op":"events","p":"p0","e":[]}"#,
            // A page comes protected in the place of its marker; the store to it
            // then is a fault of its own.
            r#"{"line":11,"op":"faults","p":"p0","min":4,"maj":0,"gup_min":0,"gup_maj":0,"minat":{"a":[[2,1],[0,2],[1,1]]}}"#,
            r#"{"line":14,"op":"events","p":"p0","e":[["a",2,"wp"],["a",3,"wp"]]}"#,
            r#"{"line":15,"op":"faults","p":"p0","min":3,"maj":0,"gup_min":0,"gup_maj":0,"minat":{"a":[[2,2],[3,1]]}}"#,
            r#"{"line":16,"op":"content","p":"p0","r":"a","c":[[0,2,"5"],[2,2,"6"],[4,2,"0"]]}"#,
        ],
    );
}

/// Rules: UFFD-01, ANON-04. A page that is missing and protected is asked about
/// twice.
#[test]
fn a_missing_page_that_is_protected() {
    prints(
        "mmap p0 a 4 anon rw private\n\
         uffd p0 a register missing wp unpopulated\n\
         uffd p0 a:1 protect\n\
         write p0 a:0+2 4\n\
         events p0\n\
         content p0 a:0+2\n",
        &[
            r#"{"line":5,"op":"events","p":"p0","e":[["a",0,"missing-w"],["a",1,"missing-w"],["a",1,"wp"]]}"#,
            r#"{"line":6,"op":"content","p":"p0","r":"a","c":[[0,2,"4"]]}"#,
        ],
    );
}

/// Rules: UFFD-06, MREMAP-01. Cases: MM-043. Neither the child nor the new place of
/// a move asks anybody.
#[test]
fn what_is_not_watched_any_more() {
    prints(
        "thp 2048kB madvise\n\
         mmap p0 h 512 anon rw private\n\
         madvise p0 h hugepage\n\
         write p0 h 1\n\
         uffd p0 h register wp\n\
         uffd p0 h protect\n\
         fork p1 p0\n\
         write p1 h:5 2\n\
         events p1\n\
         mremap p0 h move n\n\
         write p0 n:6 3\n\
         events p0\n\
         content p0 n:4+3\n\
         content p1 h:4+3\n",
        &[
            r#"{"line":9,"op":"events","p":"p1","e":[]}"#,
            r#"{"line":12,"op":"events","p":"p0","e":[]}"#,
            r#"{"line":13,"op":"content","p":"p0","r":"n","c":[[4,2,"1"],[6,1,"3"]]}"#,
            r#"{"line":14,"op":"content","p":"p1","r":"h","c":[[4,1,"1"],[5,1,"2"],[6,1,"1"]]}"#,
        ],
    );
}

/// What a child has of protected pages that were copied for it, by its fork or by its pin.
mod copies {
    use crate::common::*;
    use mm_arch::{Entry, Level};
    use mm_gup::GupFlags;
    use mm_map::{UffdMode, WpChange};
    use mm_pgtable::LockedEntry;
    use mm_sim::{Preset, audit};

    fn protected(p: &P) -> Vec<u64> {
        let vmas = p.mm().read();
        let is = |i: &u64| match p.mm().tables().lock_entry(vmas.stay(), page(*i)) {
            LockedEntry::Table(t) => {
                let e = t.get(t.index_of(page(*i)));
                assert!(e.is_present(Level::Pte) && !(e.is_uffd_wp() && e.is_writable(Level::Pte)));
                e.is_uffd_wp()
            }
            _ => panic!("no table"),
        };
        (0..8).filter(is).collect()
    }
    /// A process of which pages 2 and 3 of 8 are protected.
    fn process(m: &M, fork: UffdMode) -> P {
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 8), RW).expect("mmap");
        (0..8).for_each(|i| p.store(page(i), 100 + i).expect("store"));
        p.uffd_register(pages(0, 8), UffdMode::WP | fork).expect("register");
        p.uffd_wp(pages(2, 2), WpChange::Protect).expect("registered");
        p
    }

    /// Rules: S-UF4, S-UF6, UFFD-06, FORK-08, FAULT-07, FAULT-13.
    #[test]
    fn keep_the_protection_if_the_child_is_registered() {
        for preset in Preset::ALL {
            for (fork, expected) in
                [(UffdMode::EVENT_FORK, vec![2, 3]), (UffdMode::empty(), vec![])]
            {
                let m = machine_under(16, *preset);
                // Pinned before the fork, which copies the page.
                let p = process(&m, fork);
                let pin = p.pin(page(0), 8, GupFlags::LONGTERM).expect("pin");
                let child = p.fork().expect("fork");
                assert_eq!((protected(&p), protected(&child)), (vec![2, 3], expected.clone()));
                m.settle();
                assert_eq!(audit(&m, [&p, &child], [&pin]), []);
                drop((child, pin, p));

                // Pinned by the child, which copies the page then.
                let p = process(&m, fork);
                let child = p.fork().expect("fork");
                let pin = child.pin(page(0), 8, GupFlags::LONGTERM).expect("pin");
                assert_eq!((protected(&p), protected(&child)), (vec![2, 3], expected));
                assert_eq!(child.take_user_faults(), [], "nobody is asked");
                assert_eq!(pin.load(3, 0), Some(103));
                m.settle();
                assert_eq!(audit(&m, [&p, &child], [&pin]), []);
            }
        }
    }
}
