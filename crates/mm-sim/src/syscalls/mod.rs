//! What processes ask of the kernel, one file per family.

mod gup;
mod mapping;

pub use gup::{Pinned, RemoteError};
pub use mapping::MlockError;
