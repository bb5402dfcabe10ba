//! The mm laboratory.
fn main() {}
