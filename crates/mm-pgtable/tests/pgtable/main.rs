//! Tests of page tables in memory, on all model formats.
#![cfg(not(loom))]

use mm_arch::model::ModelWord;
use mm_arch::{Held, Pinned};
use mm_pgtable::slab::SlabSpace;
use mm_pgtable::{ClearedRun, LockedPmd, LockedTable, TablesStay, View, WalkGuard};
use static_assertions::assert_not_impl_any;

// Rights belong to a thread, and what must be decided or given back is one.
type S = SlabSpace<ModelWord<8>>;
assert_not_impl_any!(View<'static, S, Held>: Send, Clone);
assert_not_impl_any!(View<'static, S, Pinned>: Send);
assert_not_impl_any!(LockedTable<'static, S>: Send, Clone);
assert_not_impl_any!(LockedPmd<'static, S>: Send, Clone);
assert_not_impl_any!(ClearedRun<'static, 'static, S>: Send, Clone);
assert_not_impl_any!(TablesStay<'static>: Send);
assert_not_impl_any!(WalkGuard<'static, S>: Clone);

#[macro_use]
mod common;
mod batched;
mod entries;
mod momentary;
mod root;
mod tree;
mod window;
