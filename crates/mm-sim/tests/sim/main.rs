//! Programs and scenarios on the machine.
//!
//! One binary: the crates are generic, and each binary would compile its own copy of them.
#![cfg(not(loom))]

#[global_allocator]
static HEAP: mm_sim::FailingHeap = mm_sim::FailingHeap;

mod advice;
mod collapse;
mod common;
mod files;
mod flushes;
mod formats;
mod heap;
mod hints;
mod known_faults;
mod ksm;
mod migrate;
mod planted;
mod poison;
mod random;
mod reclaim;
mod rows;
mod scenarios;
mod shadow_stack;
mod swap;
mod tables;
mod tracking;
mod uffd;
mod uffd_fill;
