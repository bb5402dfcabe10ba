//! Tests of page tables in memory, on all model formats.
#![cfg(not(loom))]

#[macro_use]
mod common;
mod batched;
mod entries;
mod momentary;
mod tree;
mod window;
