//! Entries of several words that are empty for a moment while they change.
use crate::common::{N, page, pages, stay};
use mm_arch::model::ModelPair;
use mm_arch::{Arch, Entry, Level, Pfn, Protection, SpaceId};
use mm_pgtable::slab::{CountingTlb, Slab};
use mm_pgtable::{LockedEntry, PageTables, SpanKind, TableSpace};
use mm_sync::{DefaultLock, Quiescence, ReaderCount, ReaderGuard};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

type A = ModelPair<N>;

/// A domain in which waiting for readers takes a while.
#[derive(Default)]
struct Slow {
    readers: ReaderCount,
    /// Called when somebody waits for readers.
    wait: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}
// SAFETY: what `ReaderCount` promises; waiting longer breaks no promise.
unsafe impl Quiescence for Slow {
    type Guard<'q> = ReaderGuard<'q>;
    fn pin(&self) -> ReaderGuard<'_> {
        self.readers.pin()
    }
    fn retire(&self, free: impl FnOnce() + Send + 'static) {
        self.readers.retire(free);
    }
    fn synchronize(&self) {
        let wait = self.wait.lock().expect("not poisoned").take();
        if let Some(wait) = wait {
            wait();
        }
        self.readers.synchronize();
    }
}

#[derive(Clone)]
struct Space(Arc<Parts>);
struct Parts {
    tables: Slab<A, DefaultLock>,
    epochs: Slow,
    tlb: CountingTlb,
}
// SAFETY: all clones share the parts, which do not change.
unsafe impl TableSpace for Space {
    type Arch = A;
    type PtLock = DefaultLock;
    type Epochs = Slow;
    type Tables = Slab<A, DefaultLock>;
    type Tlb = CountingTlb;
    fn tables(&self) -> &Self::Tables {
        &self.0.tables
    }
    fn epochs(&self) -> &Slow {
        &self.0.epochs
    }
    fn tlb(&self) -> &CountingTlb {
        &self.0.tlb
    }
}

/// Whoever unmaps or protects a range passes by holes. A leaf that changes is
/// none, although a two-word entry is empty for as long as readers are waited for.
///
/// Rules: PAE-09, PTE-20.
#[test]
fn a_leaf_that_changes_is_not_passed_by() {
    let space = Space(Arc::new(Parts {
        tables: Slab::new(4, Pfn::new(1)),
        epochs: Slow::default(),
        tlb: CountingTlb::default(),
    }));
    let tables = PageTables::new(space.clone(), SpaceId(1)).expect("a root");
    let prot = A::prot(Protection::private_read_write());
    let leaf = <A as Arch>::Entry::leaf(Pfn::new(0x100), prot, Level::Pmd);
    let mut owed = tables.tlb().obligation();
    tables.ensure_pmd(stay(), page::<A>(0)).expect("memory").swap(leaf, &mut owed);

    let (emptied, (answer, answered)) = (Arc::new(Barrier::new(2)), mpsc::channel());
    let reached = emptied.clone();
    // The writer is in the middle of its change: the other thread looks now. It
    // may find out, or wait; in the latter case the change goes on.
    *space.0.epochs.wait.lock().expect("not poisoned") = Some(Box::new(move || {
        reached.wait();
        std::thread::sleep(Duration::from_millis(50));
    }));
    std::thread::scope(|s| {
        s.spawn(|| {
            emptied.wait();
            let span = tables.span(stay(), pages::<A>(0, N as u64)).kind;
            let huge = matches!(tables.lock_entry(stay(), page::<A>(0)), LockedEntry::Huge(_));
            answer.send((span, huge)).expect("somebody listens");
        });
        let mut pmd = tables.lock_pmd(stay(), page::<A>(0)).expect("the root");
        let old = pmd.swap(leaf.mkinvalid(Level::Pmd), &mut owed);
        assert_eq!(old, leaf);
        drop(pmd);
    });
    assert_eq!(answered.recv(), Ok((SpanKind::Huge, true)), "a hole where pages are mapped");
}
