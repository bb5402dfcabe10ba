//! Build, test and measure tasks of this workspace.
fn main() {}
