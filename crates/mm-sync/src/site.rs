//! Named orderings, fences and checks (see the crate documentation).

/// Names an ordering so that a model can weaken it to `Relaxed`.
///
/// Expands to the ordering itself outside of the model checker.
#[macro_export]
macro_rules! ord {
    ($site:literal, $order:ident) => {
        $crate::site::ordering($site, $crate::atomic::Ordering::$order)
    };
}

/// A named fence that a model can leave out.
#[macro_export]
macro_rules! fence {
    ($site:literal, $order:ident) => {
        if $crate::site::keep_fence($site) {
            $crate::atomic::fence($crate::atomic::Ordering::$order)
        }
    };
}

/// A named full barrier behind a read-modify-write that a model can leave out.
#[macro_export]
macro_rules! fence_after_rmw {
    ($site:literal) => {
        if $crate::site::keep_fence($site) {
            $crate::atomic::fence_after_rmw()
        }
    };
}

/// `true` only under the model checker and only while that mutant is armed: a
/// constant `false`, removed as dead code, in every other build.
#[macro_export]
macro_rules! mutant {
    ($site:literal) => {
        $crate::site::armed($site)
    };
}

#[cfg(not(loom))]
mod imp {
    use crate::atomic::Ordering;

    /// The ordering itself.
    #[inline(always)]
    pub const fn ordering(_site: &'static str, order: Ordering) -> Ordering {
        order
    }
    /// `true`.
    #[inline(always)]
    pub const fn keep_fence(_site: &'static str) -> bool {
        true
    }
    /// `false`.
    #[inline(always)]
    pub const fn armed(_site: &'static str) -> bool {
        false
    }
}

#[cfg(loom)]
mod imp {
    use crate::atomic::Ordering;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    // Loom runs all threads of a model as coroutines on one OS thread: a plain
    // thread local is per model run, so tests may still run in parallel.
    std::thread_local! {
        /// The armed site, or several joined by `+`.
        pub static ARMED: Cell<Option<&'static str>> = const { Cell::new(None) };
        /// Every site met, and what it is.
        pub static SEEN: RefCell<BTreeMap<&'static str, &'static str>> =
            const { RefCell::new(BTreeMap::new()) };
    }

    fn see(site: &'static str, kind: &'static str) {
        SEEN.with(|m| {
            m.borrow_mut().entry(site).or_insert(kind);
        });
    }
    fn is_armed(site: &str) -> bool {
        ARMED.get().is_some_and(|a| a.split('+').any(|x| x == site))
    }
    /// `Relaxed` while the site is armed.
    pub fn ordering(site: &'static str, order: Ordering) -> Ordering {
        see(
            site,
            match order {
                Ordering::Relaxed => "Relaxed",
                Ordering::Acquire => "Acquire",
                Ordering::Release => "Release",
                Ordering::AcqRel => "AcqRel",
                _ => "SeqCst",
            },
        );
        if is_armed(site) { Ordering::Relaxed } else { order }
    }
    /// `false` while the site is armed.
    pub fn keep_fence(site: &'static str) -> bool {
        see(site, "fence");
        !is_armed(site)
    }
    /// `true` while the site is armed.
    pub fn armed(site: &'static str) -> bool {
        see(site, "mutant");
        is_armed(site)
    }
}

#[cfg(loom)]
pub use imp::{ARMED, SEEN};
pub use imp::{armed, keep_fence, ordering};
