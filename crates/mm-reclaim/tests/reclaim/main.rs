//! Reclaim on the model machine.

#[macro_use]
mod common;

mod batching;
mod referenced;
mod unmap;
