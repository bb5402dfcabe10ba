//! Rows on memory that is dropped, or pinned for long.

use super::*;
use mm_fault::ShmemMode;
use mm_gup::GupFlags;
use mm_sim::{File, Object, Shmem, ShmemKind};
use std::sync::Arc;

/// Rules: S-DR1.
#[test]
fn droppable_memory_is_dropped_with_what_was_stored() {
    for preset in Preset::ALL {
        let m = machine_of(16);
        m.host().set_policy(|p| *p = preset.policy());
        let p = m.spawn().expect("process");
        p.mmap_anon(pages(0, 8), RW | VmaFlags::DROPPABLE).expect("mmap");
        (0..8).for_each(|i| p.store(page(i), 100 + i).expect("store"));
        let held = p.get(page(3), 1, GupFlags::empty()).expect("mapped");
        p.madvise_pageout(pages(0, 8)).expect("mapped");
        // Who holds a page keeps it, for as long.
        assert_eq!(p.mm().counters().resident(), 1);
        assert_eq!(p.load(page(3)), Ok(103));
        drop(held);
        p.madvise_pageout(pages(0, 8)).expect("mapped");
        assert_eq!(p.mm().counters().resident(), 0);
        assert!((0..8).all(|i| p.load(page(i)) == Ok(0)));
        m.settle();
        assert_eq!(audit(&m, [&p], []), []);
        drop(p);
        assert_eq!(leaks(&m), []);
    }
}

/// Rules: S-LT1, S-LT2, S-LT3.
#[test]
fn what_is_pinned_for_long_is_not_written_back_by_a_filesystem() {
    let m = machine_of(16);
    let host = m.host();
    let long = GupFlags::LONGTERM;
    let file: Arc<dyn Object<A, _>> = File::new(host, 8).expect("memory");
    let mounted = ShmemKind::Mounted(ShmemMode::Never);
    let shmem: Arc<dyn Object<A, _>> = Shmem::new(host, mounted, 8).expect("memory");
    for (object, shared, stores, loads) in [
        (&file, false, Ok(()), Ok(())),
        (&shmem, false, Ok(()), Ok(())),
        (&file, true, Err("EFAULT"), Ok(())),
        (&shmem, true, Ok(()), Ok(())),
    ] {
        for slow in [false, true] {
            let p = m.spawn().expect("process");
            let flags = if shared { RW | VmaFlags::SHARED } else { RW };
            p.mmap_object(pages(0, 4), flags, object.clone(), 0).expect("free");
            if !slow {
                // The lockless way finds entries, writable where they may be.
                (0..4).for_each(|i| p.store(page(i), 100 + i).expect("store"));
            }
            let pin = |flags| {
                let pinned =
                    if slow { p.pin_slow(page(0), 4, flags) } else { p.pin(page(0), 4, flags) };
                pinned.map(drop).map_err(|e| e.errno())
            };
            assert_eq!(pin(long | GupFlags::WRITE), stores, "shared {shared}, slow {slow}");
            assert_eq!(pin(long), loads, "shared {shared}, slow {slow}");
            // Not for long: as anybody.
            assert_eq!(pin(GupFlags::WRITE), Ok(()));
            m.settle();
            assert_eq!(audit(&m, [&p], []), []);
        }
    }
}
