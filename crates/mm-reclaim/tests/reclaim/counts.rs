//! What unmapping of a run costs: under the policy of runs one of each, or a count that says
//! why not.

use crate::common::*;
use mm_arch::{DeviceKind, Entry, Level, NonPresent, SwapBits, WriteKind};
use mm_folio::{Folio, FolioFlags};
use mm_reclaim::{Kept, UnmapPolicy, Unmapped};
use mm_vma::{BackingKind, Event, Platform, SlotRun, SwapSlots, SwapSpace, VmaFlags};
use mm_x86::X86_64;

type A = X86_64;

const SINGLE: [Event; 4] = [
    Event::UnmapSingleUnused,
    Event::UnmapSingleTracked,
    Event::UnmapSingleDevice,
    Event::UnmapSingleFullSlot,
];

/// What unmapping `folio` counts: calls that clear, removals and puts, entries, and entries
/// that went one by one, by reason.
fn cost(
    m: &M<A>,
    policy: UnmapPolicy,
    folio: Folio<'_, M<A>>,
) -> (Unmapped, [u64; 3], [u64; SINGLE.len()]) {
    let runs = [Event::UnmapClears, Event::UnmapRuns, Event::EntriesUnmapped];
    let (runs_now, single_now) =
        (|| runs.map(|e| m.events().get(e)), || SINGLE.map(|e| m.events().get(e)));
    let (runs, single) = (runs_now(), single_now());
    let end = unmap(m, policy, folio);
    let (runs_now, single_now) = (runs_now(), single_now());
    let since = |now: u64, then: u64| now - then;
    (
        end,
        std::array::from_fn(|i| since(runs_now[i], runs[i])),
        std::array::from_fn(|i| since(single_now[i], single[i])),
    )
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Memory {
    File,
    Lazyfree,
    /// Anonymous memory on its way to swap.
    Swap,
    /// The same, write-protected by userfaultfd.
    SwapTracked,
    /// Shared memory that userfaultfd write-protects.
    Tracked,
}

/// One folio of this memory, mapped by one space.
fn mapped(memory: Memory, order: u32) -> (M<A>, Space<A>, Option<Object<A>>, mm_arch::Pfn) {
    let m = machine_with_swap::<A>(2048);
    let (p, nr) = (empty_space(&m), 1u64 << order);
    let tracked = matches!(memory, Memory::SwapTracked | Memory::Tracked);
    let extra = if tracked { VmaFlags::UFFD_WP } else { VmaFlags::empty() };
    let (object, head) = match memory {
        Memory::File | Memory::Tracked => {
            let kind = if tracked { BackingKind::Shmem } else { BackingKind::File };
            let o = object(&m, kind);
            let head = {
                let folio = o.add(0, order).expect("memory");
                show_with(&p, 0, nr, &o, 0, SHARED | extra);
                map_pages(&p, 0, folio, 0, nr as u32);
                folio.head()
            };
            (Some(o), head)
        }
        Memory::Lazyfree => {
            anon_with(&p, 0, nr, RW);
            (None, map_lazyfree(&p, 0, order).head())
        }
        Memory::Swap | Memory::SwapTracked => {
            anon_with(&p, 0, nr, RW | extra);
            let folio = map_folio(&p, 0, order);
            folio.set_flag(FolioFlags::SWAPBACKED);
            // Entries differ, as they do.
            edit::<A>(&p, 1, |e| e.mkold());
            edit::<A>(&p, 2, |e| e.mkclean().clear_soft_dirty());
            m.slots().add(&folio.lock()).expect("room");
            (None, folio.head())
        }
    };
    if tracked {
        (0..nr).for_each(|k| edit::<A>(&p, k, |e| e.wrprotect().mkuffd_wp()));
    }
    (m, p, object, head)
}
fn end(m: M<A>, p: Space<A>, object: Option<Object<A>>, head: mm_arch::Pfn) {
    mm_map::exit(&BATCHED, &p);
    drop(p);
    let folio = m.memmap().folio(head);
    if folio.has(FolioFlags::SWAPCACHE) {
        mm_vma::free_swap_cache(&m, folio);
    }
    finish_all(&m, vec![], object.into_iter().collect());
}

/// Rules: UNMAP-07, UNMAP-12, UNMAP-14, UNMAP-19, BATCH-18.
#[test]
fn a_run_is_one_of_each_and_nothing_goes_singly() {
    for order in [4, 8] {
        for memory in
            [Memory::File, Memory::Lazyfree, Memory::Swap, Memory::SwapTracked, Memory::Tracked]
        {
            let nr = 1 << order;
            for (policy, in_runs) in [
                (UnmapPolicy::Page, false),
                (UnmapPolicy::Lazyfree, memory == Memory::Lazyfree),
                (UnmapPolicy::File, matches!(memory, Memory::File | Memory::Lazyfree)),
                (UnmapPolicy::All, true),
            ] {
                let (m, p, object, head) = mapped(memory, order);
                let folio = m.memmap().folio(head);
                let (unmapped, runs, single) = cost(&m, policy, folio);
                assert_eq!(unmapped, Unmapped::All);
                let expected = if in_runs { [1, 1, nr] } else { [nr, nr, nr] };
                assert_eq!(runs, expected, "{memory:?} {order} {policy:?}");
                // Where a policy of runs makes an exception it says so.
                let tracked = policy == UnmapPolicy::File && memory == Memory::Tracked;
                let expected = [0, if tracked { nr } else { 0 }, 0, 0];
                assert_eq!(single, expected, "{memory:?} {order} {policy:?}");
                end(m, p, object, head);
            }
        }
    }
}

/// Rules: UNMAP-06, UNMAP-19.
#[test]
fn what_goes_singly_is_counted_by_reason() {
    let (m, p, object, head) = mapped(Memory::Lazyfree, 4);
    let folio = m.memmap().folio(head);
    let device = NonPresent::Device { kind: DeviceKind::Exclusive, pfn: folio.page(12) };
    let device = E::<A>::from_nonpresent(device, SwapBits::default()).expect("encodes");
    set_pte::<A>(&p, 12, device);
    let (unmapped, runs, single) = cost(&m, UnmapPolicy::All, folio);
    assert_eq!((unmapped, runs, single), (Unmapped::All, [2, 3, 16], [0, 0, 1, 0]));
    end(m, p, object, head);

    // The slot of page 5 takes no more entries: those before it go, one by one.
    let (m, p, object, head) = mapped(Memory::Swap, 4);
    let folio = m.memmap().folio(head);
    let first = m.slots().slot_of(folio).expect("in the cache");
    let full = SlotRun::new(SlotRun::new(first, 16).at(5), 1);
    let max = SwapSlots::<mm_sync::DefaultLock>::MAX_COUNT;
    (0..max).for_each(|_| m.slots().dup(full).expect("room"));
    let (unmapped, runs, single) = cost(&m, UnmapPolicy::All, folio);
    assert_eq!(unmapped, Unmapped::Kept(Kept::NoSwap));
    assert_eq!((runs, single), ([5, 1, 5], [0, 0, 0, 5]));
    (0..max).for_each(|_| m.slots().put(full));
    end(m, p, object, head);
}

/// Rules: UNMAP-25, UNMAP-09, SHSTK-02.
#[test]
fn a_shadow_stack_and_read_only_entries_are_no_run() {
    let (m, p, object, head) = mapped(Memory::Lazyfree, 4);
    let folio = m.memmap().folio(head);
    // Nobody may write by any of them as to memory; with the dirty bit ignored they look the
    // same.
    (0..16).for_each(|k| edit::<A>(&p, k, |e| e.wrprotect()));
    edit::<A>(&p, 15, |e| e.mkwrite(WriteKind::ShadowStack));
    let last = pte::<A>(&p, 15);
    let (unmapped, runs, single) = cost(&m, UnmapPolicy::All, folio);
    assert_eq!((unmapped, runs), (Unmapped::Kept(Kept::Dirty), [2, 1, 15]));
    assert_eq!(single, [0; 4]);
    assert_eq!(which::<A>(&p, 0, 16, |e| e.is_leaf(Level::Pte)), [15]);
    assert_eq!((pte::<A>(&p, 15), last.is_writable(Level::Pte)), (last, true));
    end(m, p, object, head);
}
