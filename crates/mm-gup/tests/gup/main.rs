//! GUP on the model machine.
//!
//! One binary: the crates are generic, and each binary would compile its own copy of them.
#![cfg(not(loom))]

#[macro_use]
mod common;
mod accessible;
mod batching;
mod calls;
mod fast;
mod gigantic;
mod injection;
mod longterm;
mod populate;
mod slow;
mod threads;
