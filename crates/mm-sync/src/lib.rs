//! One name for everything that threads share: atomics, fences, locks, epochs.
//!
//! # The problem
//!
//! Lockless page-table code is only worth having if somebody checked every
//! interleaving of it. Loom can, but only of code that uses loom's atomics. If
//! the checked code is a copy, the copy is what was checked. So the production
//! code of this workspace names no atomic type itself: it names this crate, and
//! this crate switches the whole workspace between back ends:
//!
//! | build | atomics | locks | epochs |
//! |---|---|---|---|
//! | default (`no_std`) | `core` | [`Spin`], or any `lock_api` lock | [`ReaderCount`] |
//! | feature `epoch` (`alloc`) | `core` | as above | `epoch::Epoch` over crossbeam-epoch |
//! | feature `std` | `core` | `parking_lot` | `epoch::StdEpoch` |
//! | `--cfg loom` | loom | blocking loom locks | [`ReaderCount`] |
//!
//! The switch is a `cfg`, not a feature: features unify across a workspace, and
//! a kernel that depends on one crate must never compile a model checker.
//!
//! # Sites
//!
//! An ordering, fence or check that a protocol rests on has a *name*:
//! [`ord!`], [`fence!`], [`fence_after_rmw!`] and [`mutant!`]. In a production build
//! a named site is the plain ordering (and a mutant is the constant `false`).
//! Under loom a test arms one site at a time and demands that the model fails.
//! One build, all mutants; a site that no model can kill has no reason to be
//! stronger than `Relaxed`.
//!
//! # Rules that came out of running the models
//!
//! * `SeqCst` *accesses* are banned: loom treats them as `AcqRel`. Protocols use
//!   [`fence!`] with `SeqCst`.
//! * loom 0.7 does not schedule between an access and a `SeqCst` fence behind
//!   it. [`atomic::fence`] repairs that with a read-modify-write on a cell of the
//!   execution; without it real bugs pass.
//! * A write barrier is `fence(Release)` before plain stores. A release *store*
//!   is weaker: a later relaxed store of the same cell carries no edge.
//! * Under loom a contended lock must block, not spin.
//! * loom remembers one last access per cell, so a load before a store of the same
//!   thread hides orders. `model::explore` explores from both ends.
//! * A model that stopped early is not a model that passed: the harness in
//!   `model` counts executions and reports INCOMPLETE as failure.
//!
//! # Example
//!
//! ```
//! use mm_sync::{Quiescence, ReaderCount, atomic::{AtomicU32, Ordering}, ord};
//!
//! let flag = AtomicU32::new(0);
//! flag.store(1, ord!("example.publish", Release));
//! let domain = ReaderCount::new();
//! {
//!     let _reading = domain.pin();
//!     assert_eq!(flag.load(Ordering::Relaxed), 1);
//! }
//! domain.synchronize(); // every reader that could be running has left
//! ```
#![no_std]

#[cfg(feature = "epoch")]
extern crate alloc;
#[cfg(any(loom, feature = "std"))]
extern crate std;

/// Whether this is a build of models. Numbers that wrap are narrow there, so that a model
/// sees them wrap.
pub const MODELLED: bool = cfg!(loom);

pub mod atomic;
#[cfg(all(feature = "epoch", not(loom)))]
pub mod epoch;
pub mod hint;
mod innermost;
mod live;
mod lock;
#[cfg(loom)]
pub mod model;
mod quiescence;
mod reader_count;
mod rwlock;
mod seqcount;
pub mod site;
pub mod stat;
#[cfg(any(loom, feature = "std"))]
pub mod thread;

pub use innermost::Innermost;
pub use live::Live;
#[cfg(loom)]
pub use lock::LoomLock;
#[cfg(not(loom))]
pub use lock::Spin;
pub use lock::{DefaultLock, Lock, LockGuard, Mutex, MutexGuard, RawLock};
pub use quiescence::Quiescence;
pub use reader_count::{ReaderCount, ReaderGuard};
#[cfg(loom)]
pub use rwlock::LoomRwLock;
#[cfg(not(loom))]
pub use rwlock::SpinRw;
pub use rwlock::{DefaultRwLock, RawRwLock, ReadGuard, RwLock, WriteGuard};
pub use seqcount::{Seq, SeqCount};
