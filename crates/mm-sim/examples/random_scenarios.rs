//! Many random scenarios of anonymous memory under every policy of reuse: the audits
//! hold after every operation, and every process sees the same under all of them. What
//! `cargo xtask random` runs.
//!
//! `cargo run --release -p mm-sim --example random_scenarios -- [COUNT [FIRST SEED]]`

#[path = "../tests/sim/random/steps.rs"]
mod steps;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;
use steps::{KINDS, NR_REGIONS, Step, policies_agree, scenario};

/// Marsaglia's, behind a mixer that makes neighbouring seeds unlike.
struct Random(u64);
impl Random {
    fn new(seed: u64) -> Self {
        let mixed = (seed.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Random((mixed ^ mixed >> 29) | 1)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
    fn step(&mut self) -> Step {
        Step {
            what: self.below(KINDS.into()) as u8,
            proc: self.below(3) as usize,
            region: self.below(NR_REGIONS as u64) as usize,
            first: self.next(),
            pages: self.next(),
            value: 1 + self.below(59_999) as u16,
        }
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let (Ok(count), Ok(first)) = (args.next().unwrap_or(Ok(5)), args.next().unwrap_or(Ok(0)))
    else {
        eprintln!("random_scenarios [COUNT [FIRST SEED]]");
        return ExitCode::from(2);
    };
    let (next, failed, operations) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for _ in 0..available_parallelism().map_or(1, |n| n.get()) {
            threads.spawn(|| {
                loop {
                    let k = next.fetch_add(1, Relaxed);
                    if k >= count {
                        return;
                    }
                    let mut random = Random::new(first + k);
                    let nr = 1 + random.below(49);
                    let steps: Vec<_> = (0..nr).map(|_| random.step()).collect();
                    let text = scenario(&steps);
                    operations.fetch_add(text.lines().count() as u64, Relaxed);
                    if let Err(e) = policies_agree(&text) {
                        failed.fetch_add(1, Relaxed);
                        println!("seed {}: {e}", first + k);
                    }
                }
            });
        }
    });
    println!(
        "{count} scenarios, {} operations, {} failed",
        operations.into_inner(),
        failed.load(Relaxed)
    );
    if failed.into_inner() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
