//! Page faults: anonymous memory, files and shared memory, copy on write, reuse.
//!
//! # The problem
//!
//! A fault turns "the hardware would not" into a decision about one page: fill
//! it, copy it, let it be written in place, or refuse. Two things make that
//! hard. Other CPUs change the same entry meanwhile, with and without locks. And
//! whether a page may be written in place depends on everybody else who could
//! reach it: a wrong "yes" shows one process the stores of another, a wrong
//! "no" takes a page away from the device that is writing to it.
//!
//! ```text
//!   handle_fault ── no mapping, no right ─────────────────────────► Signal
//!        │ look without locks
//!        ├─ hole ────── PMD-sized folio allowed ─► huge            (huge)
//!        │                └─ no memory ─┐
//!        ├─ empty entry ────────────────┴─ read ─► zero page       (zero)
//!        │                                 write ► largest folio   (anon, order)
//!        │                        └─ registered for missing ► UserFault
//!        │    of a file or shared memory ─ read ─► cached pages     (around, file)
//!        │                       private store ─► a copy of its own (file)
//!        │                        shared store ─► announced, dirty  (shared)
//!        ├─ on a swap device ────────────────────► read, mapped     (swap_in)
//!        ├─ read-only ──── store, unshare
//!        │      ├─ shared mapping ────────────────► announced, dirty (shared)
//!        │      ├─ write-protected by userfaultfd ► UserFault      (uffd)
//!        │      ├─ page marked exclusive ────────► reuse           (write_protect)
//!        │      ├─ all references are mappings ──► mark, reuse     (reuse)
//!        │      └─ else ─────────────────────────► one new page    (copy, unshare)
//!        └─ else: mark accessed, dirty
//! ```
//!
//! # Protocol
//!
//! * The mmap lock's read side or the lock of the VMA is held throughout: the mapping stays and
//!   its tables stay. What looks at other mappings needs the former.
//! * **Look, prepare, lock, look again.** What to do is decided on a lockless
//!   look; memory is allocated and filled without locks; then the entry is
//!   compared under the lock. If it changed, everything is given back and the
//!   access faults again. An entry that another CPU is changing under the lock
//!   looks *empty* without it, so "empty" is asked again too, of every entry
//!   that a large folio would cover (FAULT-03, FAULT-06).
//! * **Exclusive means reuse**, without any further test (FAULT-10). Only a page
//!   without the mark is judged, and the verdict on a large folio is a token that
//!   only the comparison of all counts under their lock can make (REUSE-07).
//! * **Copying** takes the old translation away from all CPUs before the old
//!   mapping is given up, and gives the reference up last (FAULT-13).
//! * A large folio's pages share nothing but their counts: a copy is always one
//!   page, and each entry is decided by its own page's mark.
//!
//! Lock order: mmap lock (read) or VMA lock, then one table lock, then the counts lock of a
//! folio. The folio lock is only tried under a table lock. Memory is never
//! allocated under a lock.
//!
//! # Invariants
//!
//! * A writable entry of a private mapping maps an exclusive page; the mark is
//!   set before the entry is writable.
//! * An entry with the uffd-wp bit is never made writable. Whose mapping is
//!   registered asks first; elsewhere, and in the asynchronous mode, the bit goes.
//! * A fault that gives up has changed no count, counter or list; folio and table
//!   that it allocated are freed once.
//!
//! # Not here
//!
//! Placement: an entry that was made
//! inaccessible as a hint gets its rights back.
//!
//! # Example
//!
//! On the model machine: 16 entries per table, 16K folios (order 2) wherever
//! they fit.
//!
//! ```
//! use mm_arch::model::ModelWord;
//! use mm_arch::{VirtAddr, VirtRange};
//! use mm_fault::{
//!     FaultFlags, FaultOutcome, FaultPolicy, FaultSignal, OrderMode, ThpPolicy, handle_fault,
//! };
//! use mm_rmap::model::{ModelConfig, machine};
//! use mm_vma::{Mm, RssKind, Vma, VmaFlags};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mm = Mm::new(machine::<ModelWord<16>>(ModelConfig::default())?)?;
//! let range = VirtRange::new(VirtAddr::new(0x1000), 0x8000)?;
//! mm.write().change().insert(Vma::anonymous(range, VmaFlags::READ | VmaFlags::WRITE, 12))?;
//!
//! let policy = FaultPolicy::new(ThpPolicy::new(4).with_order(2, OrderMode::Always));
//! let fault = |va, flags| handle_fault(&policy, &mm.read(), VirtAddr::new(va), flags);
//! let done = FaultOutcome::Done { major: false };
//!
//! // A load maps the zero page, which nothing counts.
//! assert_eq!(fault(0x1000, FaultFlags::empty()), done);
//! assert_eq!(mm.counters().get(RssKind::Anon), 0);
//! // A store fills the aligned block of four pages around it.
//! assert_eq!(fault(0x6000, FaultFlags::WRITE), done);
//! assert_eq!(mm.counters().get(RssKind::Anon), 4);
//! // A store to the zero page gets one page: the block is not empty.
//! assert_eq!(fault(0x1000, FaultFlags::WRITE), done);
//! assert_eq!(mm.counters().get(RssKind::Anon), 5);
//! // Nothing is mapped here.
//! let segv = FaultSignal::Segv { va: VirtAddr::new(0x9000) };
//! assert_eq!(fault(0x9123, FaultFlags::WRITE), FaultOutcome::Signal(segv));
//! # std::mem::forget(mm); // unmapping is not this crate's business
//! # Ok(())
//! # }
//! ```
#![no_std]

#[cfg(test)]
extern crate std;

mod anon;
mod around;
mod copy;
mod dispatch;
mod file;
mod flags;
mod huge;
mod numa;
mod order;
mod outcome;
mod policy;
mod reuse;
mod shared;
mod shmem_policy;
mod swap_back;
mod swap_in;
mod uffd;
mod unshare;
mod write_protect;
mod zero;

pub use dispatch::{handle_fault, handle_fault_in_vma};
pub use flags::FaultFlags;
pub use order::{Defrag, OrderMode, OrderSet, ThpMode, ThpPolicy};
pub use outcome::{FaultOutcome, FaultSignal, NeedsMmapLock, UserFault};
pub use policy::{FaultPolicy, ReusePolicy, SwapInPolicy, UnshareReuse};
pub use shmem_policy::{ShmemMode, ShmemPolicy, WriteAt};
pub use swap_back::{SwapBackError, swap_back};
