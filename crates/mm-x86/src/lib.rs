//! x86 page-table entry formats.
#![no_std]
