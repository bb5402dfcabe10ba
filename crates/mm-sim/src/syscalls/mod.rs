//! What processes ask of the kernel, one file per family.

mod gup;
mod mapping;
mod swap;

pub use gup::{Pinned, RemoteError};
pub use mapping::MlockError;
pub(crate) use mapping::given_up;
pub use swap::SwapOffError;
