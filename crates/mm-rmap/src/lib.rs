//! Reverse mapping: anonymous trees, walks, PMD split.
#![no_std]
