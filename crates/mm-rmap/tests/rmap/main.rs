//! Trees, walks and PMD splits on the model machine.
#![cfg(not(loom))]

mod graph;
mod migrate;
mod mkclean;
mod proofs;
mod split_folio;
mod split_pmd;
mod swap_cache;
mod walks;
mod within_vma;
mod world;
