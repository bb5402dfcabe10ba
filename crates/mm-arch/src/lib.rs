//! The contract between page-table algorithms and entry formats.
#![no_std]
