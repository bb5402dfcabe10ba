//! A complete machine in user space on top of the mm crates.
