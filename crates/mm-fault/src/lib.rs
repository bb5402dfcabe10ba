//! Page faults: anonymous memory, copy-on-write, reuse.
#![no_std]
