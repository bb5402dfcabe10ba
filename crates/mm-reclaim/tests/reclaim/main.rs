//! Reclaim on the model machine.

#[macro_use]
mod common;

mod advise;
mod batching;
mod lists;
mod referenced;
mod shrink;
mod swap;
mod unmap;
