//! Proof that the library crates need neither std nor libc.
//!
//! Links against all of them with its own entry point, panic handler,
//! allocator and memory functions, and nothing else. If std is anywhere in the
//! graph rustc stops with a duplicate lang item; a hidden libc call is an
//! undefined symbol. `cargo xtask no-std` builds, runs and expects exit code 0.
#![no_std]
#![no_main]

extern crate alloc;

mod checks;
mod runtime;

use mm_arm64::{Arm64, Granule4K};
use mm_riscv::{Riscv, Sv39};
use mm_x86::X86_64;

// Those that no check uses yet.
use mm_fault as _;
use mm_map as _;
use mm_reclaim as _;
use mm_rmap as _;

/// The checks in order; the number of the first that fails is the exit code.
const CHECKS: [fn() -> bool; 7] = [
    checks::allocates,
    checks::frees_by_epoch,
    checks::finds_a_run::<X86_64>,
    checks::pins_a_run::<X86_64>,
    checks::finds_a_run::<Arm64<Granule4K>>,
    checks::pins_a_run::<Arm64<Granule4K>>,
    checks::finds_a_run::<Riscv<Sv39>>,
];

/// The program. Called once by the entry point.
fn run() -> i32 {
    match CHECKS.iter().position(|check| !check()) {
        None => 0,
        Some(i) => i32::try_from(i + 1).unwrap_or(i32::MAX),
    }
}
