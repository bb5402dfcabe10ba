//! Proof that the library crates need neither std nor libc.
//!
//! Links against all of them with its own entry point, panic handler,
//! allocator and memory functions, and nothing else. If std is anywhere in the
//! graph rustc stops with a duplicate lang item; a hidden libc call is an
//! undefined symbol. `cargo xtask no-std` builds, runs and expects exit code 0.
#![no_std]
#![no_main]

extern crate alloc;

mod runtime;

use mm_arch as _;
use mm_fault as _;
use mm_folio as _;
use mm_gup as _;
use mm_map as _;
use mm_pgtable as _;
use mm_rmap as _;
use mm_sync as _;
use mm_vma as _;
use mm_x86 as _;

/// The checks, in order; the index of the first that fails is the exit code.
const CHECKS: [fn() -> bool; 1] = [allocates];

/// The program. Called once by the entry point.
fn run() -> i32 {
    match CHECKS.iter().position(|check| !check()) {
        None => 0,
        Some(i) => i32::try_from(i + 1).unwrap_or(i32::MAX),
    }
}

/// alloc works on the allocator below.
fn allocates() -> bool {
    let v: alloc::vec::Vec<u64> = (0..100).collect();
    v.iter().sum::<u64>() == 4950
}
