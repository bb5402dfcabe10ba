//! Trees, walks and PMD splits on the model machine.
#![cfg(not(loom))]

mod graph;
mod proofs;
mod split_pmd;
mod walks;
mod within_vma;
mod world;
