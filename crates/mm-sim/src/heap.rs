//! A heap whose allocations can be made to fail.
//!
//! A program that has [`FailingHeap`] as its global allocator tries with
//! [`fail_each`](crate::fail_each) what the crates do when the heap has no more. What is done inside
//! [`watched`] is looked at, on the thread that does it: who asks is found by walking the
//! stack, and is the innermost function that is not the standard library's.
//!
//! * Who calls `try_reserve` hears of a failure. These are counted, and one of them fails.
//! * A library crate that cannot be refused would end the program, and so would what does a
//!   kernel's work in this one: system calls, the caches of objects. It gets its memory, and the
//!   place is kept.
//! * What hardware, a scenario or another dependency takes in this way is the host's.
//!
//! Not seen: what other threads do, and, in a program without line tables, anything.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

/// The system's heap, some of whose allocations fail.
///
/// ```
/// #[global_allocator]
/// static HEAP: mm_sim::FailingHeap = mm_sim::FailingHeap;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FailingHeap;

/// What a piece of work asked of the heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapAsked {
    /// Allocations that could be refused.
    pub nr: u64,
    /// Whether one of them was.
    pub failed: bool,
    /// File and line of one that could not.
    pub unrefusable: Option<&'static str>,
}

impl FailingHeap {
    /// Does `f`, and makes the allocation after the first `n` in it fail; `None`: none fails. What
    /// `f` asks of other threads is not seen.
    pub fn fail_after<R>(n: Option<u64>, f: impl FnOnce() -> R) -> (R, HeapAsked) {
        fail_after(Some(n.unwrap_or(u64::MAX)));
        let done = watched(f);
        let failed = n.is_some() && failure_is_spent();
        let asked = HeapAsked { nr: nr_asked(), failed, unrefusable: unrefusable() };
        fail_after(None);
        (done, asked)
    }
}

// SAFETY: the system's allocator, or no memory, which every caller must expect.
unsafe impl GlobalAlloc for FailingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        if fails() { null_mut() } else { unsafe { System.alloc(layout) } }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        if fails() { null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if new_size > layout.size() && fails() {
            return null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// What a thread counts. Needs no drop, so that it is there whenever something is allocated.
struct Watch {
    /// Whether anything is watched at all.
    wanted: Cell<bool>,
    /// Whether it is now.
    on: Cell<bool>,
    /// Allocations that succeed before one fails; `u64::MAX`: none fails.
    left: Cell<u64>,
    nr_asked: Cell<u64>,
    /// A library crate that cannot be refused.
    unrefusable: Cell<Option<&'static str>>,
}

thread_local! {
    static WATCH: Watch = const {
        Watch {
            wanted: Cell::new(false),
            on: Cell::new(false),
            left: Cell::new(u64::MAX),
            nr_asked: Cell::new(0),
            unrefusable: Cell::new(None),
        }
    };
}

/// Starts to count on this thread, and makes the allocation after the next `n` fail; none, if `n` is
/// `u64::MAX`. `None` watches nothing.
pub(crate) fn fail_after(n: Option<u64>) {
    WATCH.with(|w| {
        w.wanted.set(n.is_some());
        w.left.set(n.unwrap_or(u64::MAX));
        w.nr_asked.set(0);
        w.unrefusable.set(None);
    });
}
/// Whether an injected failure has happened, or none was asked for.
pub(crate) fn failure_is_spent() -> bool {
    WATCH.with(|w| w.left.get() == u64::MAX)
}
/// Allocations that could be refused, since [`fail_after`].
pub(crate) fn nr_asked() -> u64 {
    WATCH.with(|w| w.nr_asked.get())
}
/// A place in a library crate that cannot be refused, if one was met since [`fail_after`].
pub(crate) fn unrefusable() -> Option<&'static str> {
    WATCH.with(|w| w.unrefusable.get())
}

/// Does `f`, and watches what it allocates.
pub(crate) fn watched<R>(f: impl FnOnce() -> R) -> R {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            WATCH.with(|w| w.on.set(false));
        }
    }
    let _off = Off;
    WATCH.with(|w| w.on.set(w.wanted.get()));
    f()
}

fn fails() -> bool {
    WATCH.try_with(Watch::ask).unwrap_or(false)
}

impl Watch {
    /// Somebody allocates: whether that fails.
    fn ask(&self) -> bool {
        // Looking around allocates as well.
        if !self.on.replace(false) {
            return false;
        }
        let fails = match asker() {
            Asker::MayBeRefused => {
                self.nr_asked.set(self.nr_asked.get() + 1);
                match self.left.get() {
                    u64::MAX => false,
                    0 => {
                        self.left.set(u64::MAX);
                        // The rest of this run is not counted.
                        self.wanted.set(false);
                        return true;
                    }
                    n => {
                        self.left.set(n - 1);
                        false
                    }
                }
            }
            Asker::Unrefusable(place) => {
                self.unrefusable.set(Some(place));
                false
            }
            Asker::Host => false,
        };
        self.on.set(true);
        fails
    }
}

/// Who allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asker {
    MayBeRefused,
    Unrefusable(&'static str),
    Host,
}

/// What an address of code is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Code {
    /// An allocation that says whether it succeeded.
    tries: bool,
    /// Whose it is, unless it only hands on.
    place: Option<Place>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Library(&'static str),
    Host,
}

/// Addresses that have been looked up.
static KNOWN: Mutex<BTreeMap<usize, Code>> = Mutex::new(BTreeMap::new());

fn asker() -> Asker {
    let mut all = Code::default();
    backtrace::trace(|frame| {
        let code = code(frame);
        all.tries |= code.tries;
        all.place = code.place;
        all.place.is_none()
    });
    match all {
        Code { tries: true, .. } => Asker::MayBeRefused,
        Code { place: Some(Place::Library(place)), .. } => Asker::Unrefusable(place),
        Code { .. } => Asker::Host,
    }
}

fn code(frame: &backtrace::Frame) -> Code {
    let ip = frame.ip() as usize;
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = known().get(&ip) {
        return *code;
    }
    let mut code = Code::default();
    // Innermost first: what was inlined, then the function itself.
    backtrace::resolve_frame(frame, |symbol| {
        if code.place.is_some() {
            return;
        }
        let name = symbol.name().map(|n| n.to_string()).unwrap_or_default();
        let line = symbol.lineno().unwrap_or(0);
        let Some(file) = symbol.filename().and_then(Path::to_str) else { return };
        code.place = place(&name, file, line);
        code.tries |= code.place.is_none() && name.contains("try_reserve");
    });
    known().insert(ip, code);
    code
}

/// What stands for no kernel, and files that stable Rust knows no refusal for: these have what
/// they ask for.
const HOST: [&str; 6] = [
    "mm-sim/",
    "mm-scenario/",
    "mmlab/",
    "mmlab-formats/",
    "mm-vma/src/shared.rs",
    "mm-sync/src/epoch.rs",
];
/// The parts of the machine that do what a kernel does.
const KERNEL: [&str; 8] = [
    "mm-sim/src/device/file.rs",
    "mm-sim/src/device/mod.rs",
    "mm-sim/src/device/shmem.rs",
    "mm-sim/src/device/swapped.rs",
    "mm-sim/src/migrate.rs",
    "mm-sim/src/platform.rs",
    "mm-sim/src/reclaim.rs",
    "mm-sim/src/syscalls/",
];

/// Whose a function is; `None` for what hands on: the standard library, and how the heap is reached.
fn place(name: &str, file: &str, line: u32) -> Option<Place> {
    let hands_on = file.starts_with("/rustc/")
        || file.contains("/rustlib/")
        || file.contains("/backtrace-")
        || file.ends_with("mm-sim/src/heap.rs")
        || name.contains("__rust");
    if hands_on {
        return None;
    }
    let Some((_, within)) = file.rsplit_once("/crates/") else { return Some(Place::Host) };
    let is_of = |part: &&str| within.starts_with(*part);
    if HOST.iter().any(is_of) && !KERNEL.iter().any(is_of) {
        return Some(Place::Host);
    }
    Some(Place::Library(String::leak(format!("{within}:{line}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_told_apart_by_their_files() {
        let of = |name: &'static str, file: &str| place(name, file, 7);
        let std = "/rustc/1/library/alloc/src/raw_vec/mod.rs";
        assert_eq!(of("<alloc::raw_vec::RawVec<mm_vma::Vma>>::try_reserve", std), None);
        assert_eq!(of("__rustc::__rust_alloc", "/src/crates/mmlab/src/main.rs"), None);
        let store = "/src/crates/mm-vma/src/store.rs";
        assert_eq!(of("insert", store), Some(Place::Library("mm-vma/src/store.rs:7")));
        for host in ["mm-sim/src/cpu.rs", "mm-sim/src/device/store.rs", "mm-vma/src/shared.rs"] {
            assert_eq!(of("new", &format!("/src/crates/{host}")), Some(Place::Host));
        }
        let shmem = "/src/crates/mm-sim/src/device/shmem.rs";
        assert_eq!(of("new", shmem), Some(Place::Library("mm-sim/src/device/shmem.rs:7")));
        let bag = "/registry/src/index/crossbeam-epoch-0.9.1/src/internal.rs";
        assert_eq!(of("push_bag", bag), Some(Place::Host));
    }
}
