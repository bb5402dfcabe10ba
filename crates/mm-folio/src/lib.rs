//! The memory map: folio records, references, pins, map counts.
#![no_std]
