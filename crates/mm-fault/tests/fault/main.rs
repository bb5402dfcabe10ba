//! Faults on the model machine.
//!
//! One binary: the crates are generic, and each binary would compile its own copy of them.
#![cfg(not(loom))]

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod anon;
mod cow;
mod folio_lock;
mod hints;
mod reuse;
mod scripts;
mod swap_in;
mod uffd;
