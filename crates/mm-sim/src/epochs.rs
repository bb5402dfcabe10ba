//! The quiescence domain of a machine: crossbeam-epoch with a collector of its
//! own and a handle per thread.
//!
//! A machine shares no collector with others, so that its frees do not depend on
//! what other machines of the process do.

use mm_sync::epoch::{Collector, Handles, LocalHandle};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};

/// Handles of one machine's collector, one per thread.
#[derive(Debug)]
pub struct ThreadHandles {
    collector: Collector,
    /// Tells the machine apart from others that this thread works on.
    machine: Arc<()>,
}

type Registered = Vec<(Weak<()>, Rc<LocalHandle>)>;

thread_local! {
    static REGISTERED: RefCell<Registered> = const { RefCell::new(Vec::new()) };
}

impl ThreadHandles {
    pub(crate) fn new() -> Self {
        ThreadHandles { collector: Collector::new(), machine: Arc::new(()) }
    }
    fn handle(&self) -> Rc<LocalHandle> {
        let me = Arc::as_ptr(&self.machine);
        let known = REGISTERED.with_borrow(|all| {
            all.iter().find(|(m, _)| std::ptr::eq(m.as_ptr(), me)).map(|(_, h)| h.clone())
        });
        known.unwrap_or_else(|| {
            let handle = Rc::new(self.collector.register());
            let gone: Registered = REGISTERED.with_borrow_mut(|all| {
                let (alive, gone) =
                    std::mem::take(all).into_iter().partition(|(m, _)| m.strong_count() > 0);
                *all = alive;
                all.push((Arc::downgrade(&self.machine), handle.clone()));
                gone
            });
            // Outside of the borrow: the last handle of a collector runs what
            // is still deferred.
            drop(gone);
            handle
        })
    }
}

// SAFETY: `handle` registers with the one collector of the machine, and finds handles by
// machine.
unsafe impl Handles for ThreadHandles {
    fn with<T>(&self, f: impl FnOnce(&LocalHandle) -> T) -> T {
        f(&self.handle())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mm_sync::Quiescence;
    use mm_sync::epoch::Epoch;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn what_is_retired_runs_before_synchronize_returns() {
        let epochs = Epoch::new(ThreadHandles::new());
        let other = Epoch::new(ThreadHandles::new());
        let _elsewhere = other.pin();
        let ran = Arc::new(AtomicU32::new(0));
        for n in 1..=100 {
            let r = ran.clone();
            epochs.retire(move || {
                r.fetch_add(1, Relaxed);
            });
            epochs.synchronize();
            assert_eq!(ran.load(Relaxed), n);
        }
    }
}
