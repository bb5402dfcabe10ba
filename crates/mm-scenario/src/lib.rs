//! The scenario language, observations and their comparison.
#![warn(missing_docs)]
pub mod corpus;
pub mod observe;
mod op;
mod parse;
mod range;

pub use op::*;
pub use parse::*;
pub use range::*;
