//! What a kernel brings for itself: entry point, exit, panic handler, a bump
//! allocator, and the memory functions that compiled code calls by name.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {main}",
    "mov edi, eax",
    "mov eax, 60", // exit
    "syscall",
    "ud2",
    main = sym main,
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, #0",
    "bl {main}",
    "mov x8, #93", // exit
    "svc #0",
    "brk #0",
    main = sym main,
);

extern "C" fn main() -> i32 {
    crate::run()
}

/// Memory is handed out once and never taken back.
struct Bump {
    heap: UnsafeCell<[u64; WORDS]>,
    used: AtomicUsize,
}

const WORDS: usize = 1 << 20;

// SAFETY: the heap is only reached through `alloc`, which hands out every byte
// at most once.
unsafe impl Sync for Bump {}

// SAFETY: `alloc` returns disjoint, aligned blocks inside the heap, or null.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.heap.get().cast::<u8>();
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let pad = (base as usize + used).wrapping_neg() & (layout.align() - 1);
            let Some(end) = used.checked_add(pad).and_then(|n| n.checked_add(layout.size())) else {
                return core::ptr::null_mut();
            };
            if end > WORDS * 8 {
                return core::ptr::null_mut();
            }
            // Relaxed: the blocks are disjoint; whoever shares one orders it.
            match self.used.compare_exchange_weak(used, end, Ordering::Relaxed, Ordering::Relaxed) {
                // SAFETY: used + pad + size <= heap size.
                Ok(_) => return unsafe { base.add(used + pad) },
                Err(now) => used = now,
            }
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static HEAP: Bump = Bump { heap: UnsafeCell::new([0; WORDS]), used: AtomicUsize::new(0) };

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // An invalid instruction: the runner sees the signal.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: does not return.
    unsafe {
        core::arch::asm!("ud2", options(noreturn))
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: does not return.
    unsafe {
        core::arch::asm!("brk #1", options(noreturn))
    }
}

/// The names that compiled code calls. Volatile accesses, so that no loop here
/// is recognised as a copy and turned into a call of itself.
mod memory {
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
        for i in 0..n {
            // SAFETY: the caller owns `n` bytes at both.
            unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) }
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
        if (to as usize).wrapping_sub(from as usize) >= n {
            // SAFETY: as for memcpy; ascending is right, `to` is not inside the source.
            return unsafe { memcpy(to, from, n) };
        }
        for i in (0..n).rev() {
            // SAFETY: the caller owns `n` bytes at both.
            unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) }
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
        for i in 0..n {
            // SAFETY: the caller owns `n` bytes. The C interface passes the byte as an int.
            unsafe { to.add(i).write_volatile(byte as u8) }
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
        for i in 0..n {
            // SAFETY: the caller owns `n` bytes at both.
            let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
            if x != y {
                return i32::from(x) - i32::from(y);
            }
        }
        0
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
        // SAFETY: same contract.
        unsafe { memcmp(a, b, n) }
    }

    // The prebuilt core refers to these; with panic = "abort" nothing calls them.
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}

    #[unsafe(no_mangle)]
    extern "C" fn _Unwind_Resume() {}
}
