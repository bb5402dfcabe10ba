//! Readers without a lock, a writer that waits for them, and a pinner that
//! notices a writer: the two protocols that lockless page walks rest on.
//!
//! `cargo run -p mm-sync --example readers`

use mm_sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use mm_sync::{DefaultLock, Lock, Quiescence, ReaderCount, SeqCount, fence_after_rmw, ord};

/// Two slots and which of them is current; the other one is being recycled.
struct Config {
    slots: [AtomicU32; 2],
    current: AtomicUsize,
    readers: ReaderCount,
    writers: Lock<DefaultLock>,
}

impl Config {
    fn read(&self) -> u32 {
        // While the guard lives nobody recycles the slot that is read below.
        let _reading = self.readers.pin();
        // Pairs with the Release of `publish`: the slot is filled.
        let slot = self.current.load(ord!("example.current", Acquire));
        self.slots[slot].load(Ordering::Relaxed)
    }

    fn publish(&self, value: u32) {
        let _writing = self.writers.lock();
        let old = self.current.load(Ordering::Relaxed);
        self.slots[1 - old].store(value, Ordering::Relaxed);
        self.current.store(1 - old, ord!("example.publish", Release));
        // Everybody who may still look at the old slot has left ...
        self.readers.synchronize();
        // ... so it can be recycled.
        self.slots[old].store(u32::MAX, Ordering::Relaxed);
    }
}

fn main() {
    let config = Config {
        slots: [AtomicU32::new(0), AtomicU32::new(u32::MAX)],
        current: AtomicUsize::new(0),
        readers: ReaderCount::new(),
        writers: Lock::new(),
    };
    let done = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut reads, mut last) = (0u32, 0);
            while !done.load(Ordering::Relaxed) {
                let seen = config.read();
                assert!(seen != u32::MAX, "read a recycled slot");
                assert!(seen >= last, "time went backwards");
                (reads, last) = (reads + 1, seen);
            }
            reads
        });
        for value in 1..=1000 {
            config.publish(value);
        }
        done.store(true, Ordering::Relaxed);
        reader.join()
    });
    match reads {
        Ok(reads) => println!("{reads} reads, 1000 writes, no recycled slot was seen"),
        Err(panic) => std::panic::resume_unwind(panic),
    }

    // A pin counts only if no fork came in between: sample, pin, barrier, compare.
    let (fork, pins) = (SeqCount::new(), AtomicU32::new(0));
    let before = fork.read_begin().expect("nobody forks yet");
    pins.fetch_add(1, Ordering::Relaxed);
    fence_after_rmw!("example.pin.mb");
    assert!(!fork.read_retry(before));
    fork.write_begin();
    println!("a fork is inside: pin must be retried = {}", fork.read_retry(before));
    fork.write_end();
}
