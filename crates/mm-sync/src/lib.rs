//! Atomics, locks and epochs behind one name for core, std and loom.
#![no_std]
