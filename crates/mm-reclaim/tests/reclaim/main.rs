//! Reclaim on the model machine.

#[macro_use]
mod common;

mod advise;
mod batching;
mod counts;
mod lists;
mod proactive;
mod referenced;
mod shrink;
mod swap;
mod unmap;
