//! Changes of address spaces on the model machine.
//!
//! One binary: the crates are generic, and each binary would compile its own copy of them.
#![cfg(not(loom))]

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod batching;
mod collapse;
mod failures;
mod fork;
mod hints;
mod mlock;
mod remap;
mod swap;
mod uffd;
mod unmap_protect;
mod vma_lock;
