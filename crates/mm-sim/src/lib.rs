//! A complete machine in user space on top of the mm crates.
//!
//! # The problem
//!
//! Memory management goes wrong between its parts: the entry was changed but a
//! CPU still uses the old one, the folio was freed but somebody still counts on
//! it. A unit test of either part passes. What is needed is a machine on which a
//! forgotten flush, a lost dirty bit or a leaked reference *does* something: real
//! bytes, CPUs that believe what they have cached, processes that fork and exit.
//!
//! This crate is that machine, and it runs the production crates, not models of
//! them: it implements [`Platform`](mm_vma::Platform) and its parts on
//! [`Host`], and calls the same functions that a kernel would.
//!
//! ```text
//!  Scenario ─ run ─► Process ── load, store ──► Cpus ── translation cache ─┐
//!                      │ mmap, fork, pin, …      │ walk (Arch::mmu_mark)   │
//!                      ▼                         ▼                         ▼
//!       mm-map  mm-fault  mm-gup  mm-rmap ◄─ page fault             Ram: words of frames
//!                      │                                                   ▲
//!                      ├──► Host: FrameTables, MemMap, AnonTrees ── Frames ┘ (buddy allocator)
//!                      └──► File, Shmem: page caches in frames ── stores: memory, host files
//! ```
//!
//! # Protocol
//!
//! 1. A [`Machine`] is built with a [`Policy`]: how faults, forks and GUP batch.
//!    [`Preset`] names the ones that matter. The entry format is a type.
//! 2. [`Machine::spawn`] makes a [`Process`]; its methods are loads and stores, and
//!    system calls. Everything may be called from several threads.
//!    Mappings of a [`File`] or of shared memory ([`Shmem`]) keep their object alive;
//!    [`Object`] is what calls on files do.
//! 3. Between operations [`Machine::settle`] completes what was left for later.
//! 4. At rest, [`audit`] recounts everything that can be recounted; at the end
//!    [`leaks`] looks for what did not come back. A [`Shadow`] is a second, naive
//!    memory that knows what every stored word must read as.
//!
//! [`run`] does all of this for a scenario of `mm-scenario`.
//!
//! # What makes a bug visible
//!
//! * Page tables live in the same frames as data. A freed frame is filled with
//!   [`POISON`], and a translation remembers how often its frame was freed.
//! * A CPU walks again only when it has to, and forgets only what is flushed. A
//!   flush waits for accesses under way on other CPUs, as an interrupt does.
//! * Frames come lowest address first, so that a run is deterministic, and the
//!   n-th allocation can be made to fail ([`Frames::fail_after`]); so can one of the heap,
//!   in a program with a [`FailingHeap`].
//! * Bugs can be planted ([`Plant`]), to see that they are caught.
//!
//! # Invariants
//!
//! At rest: the rules INV-1 to INV-9, every audit of [`audit`] empty, and every
//! frame but the kernel's own free once all processes have exited.
//!
//! # Not here
//!
//! Time: nothing is ever slow.
//!
//! # Example
//!
//! ```
//! use mm_arch::{VirtAddr, VirtRange};
//! use mm_sim::{Machine, MachineConfig, Preset, audit};
//! use mm_vma::VmaFlags;
//! use mm_x86::X86_64;
//!
//! let config = MachineConfig { bytes: 16 << 20, ..MachineConfig::default() };
//! let machine = Machine::<X86_64>::new(config, Preset::Best.policy())?;
//! let parent = machine.spawn()?;
//! let va = VirtAddr::new(0x1000_0000);
//! parent.mmap_anon(VirtRange::new(va, 0x4000)?, VmaFlags::READ | VmaFlags::WRITE)?;
//! parent.store(va, 1)?;
//! let child = parent.fork()?;
//! child.store(va, 2)?;
//! assert_eq!((parent.load(va)?, child.load(va)?), (1, 2));
//! machine.settle();
//! assert!(audit(&machine, [&parent, &child], []).is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod audit;
mod cpu;
mod device;
mod epochs;
mod events;
mod frames;
mod heap;
mod machine;
mod migrate;
mod platform;
mod policy;
mod process;
mod ram;
mod reclaim;
mod run;
mod scan;
mod syscalls;
mod tables;

pub use audit::{AuditViolation, Shadow, ShadowPin, Spot, Undirtied, audit, leaks};
pub use cpu::{CpuAccess, CpuViolation, Cpus, FlushCounts, PageFault, Plant};
pub use device::{File, FileError, Object, Shmem, ShmemKind, Swap};
pub use epochs::ThreadHandles;
pub use events::{EventCounts, Events};
pub use frames::{FrameSource, FrameUse, Frames};
pub use heap::{FailingHeap, HeapAsked};
pub use machine::{Machine, MachineConfig, MachineError};
pub use platform::Host;
pub use policy::{Policy, Preset};
pub use process::{AccessError, FaultRecord, FaultRecords, Process, UserFaultRecord};
pub use ram::{POISON, Ram};
pub use run::{
    Absorbed, BlockCounts, FailEachError, Feature, Memory, RunError, RunOptions, capabilities,
    fail_each, run, run_counting, run_dumping,
};
pub use syscalls::{MlockError, Pinned, RemoteError, SwapOffError};
pub use tables::FrameTables;
