//! The entry formats that [`mmlab`](https://docs.rs/mmlab) knows, and what it does with each: run a
//! scenario on a machine of it, explain a raw entry, make one.
//!
//! Everything above an entry format is generic, so this crate is a dozen copies of it. It is a crate of its
//! own to be compiled for size, while what mmlab measures is compiled for speed.
//!
//! ```
//! let format = mmlab_formats::Format::named("x86_64")?;
//! let decoded = (format.decode)(0x8000_0000_0000_0867, mm_arch::Level::Pte);
//! assert!(decoded.faults.is_empty());
//! # Ok::<(), String>(())
//! ```

mod decode;
mod format;
pub mod names;
mod spec;

pub use decode::Decoded;
pub use format::{FORMATS, Format};
pub use spec::Spec;
