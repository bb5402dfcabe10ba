//! A complete machine in user space on top of the mm crates.
#![warn(missing_docs)]

mod audit;
mod cpu;
mod epochs;
mod events;
mod frames;
mod machine;
mod platform;
mod policy;
mod process;
mod ram;
mod run;
mod scan;
mod syscalls;
mod tables;

pub use audit::{AuditViolation, Shadow, ShadowPin, audit, leaks};
pub use cpu::{CpuViolation, Cpus, FlushCounts, PageFault, Plant};
pub use epochs::ThreadHandles;
pub use events::{EventCounts, Events};
pub use frames::{FrameSource, FrameUse, Frames};
pub use machine::{Machine, MachineConfig, MachineError};
pub use platform::Host;
pub use policy::{Policy, Preset};
pub use process::{AccessError, FaultRecord, FaultRecords, Process};
pub use ram::{FRAME_BYTES, POISON, Ram};
pub use run::{RunError, RunOptions, capabilities, run};
pub use syscalls::{Pinned, RemoteError};
pub use tables::FrameTables;
