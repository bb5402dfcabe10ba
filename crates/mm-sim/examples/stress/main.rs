//! Reclaim under load: four threads store, load, fork, pin, change mappings and reclaim, on
//! files, shared memory and anonymous memory of all kinds. What `cargo xtask stress` runs.
//!
//! `cargo run -p mm-sim --example stress -- [SECONDS [SEED [PLANT]]]`; PLANT is a bug of
//! [`Planted`], which has to be found.
//!
//! Each thread has a word of every page to itself, so it knows what each load has to give,
//! whatever the others do, and so it knows of the marks of its pages: those of stores, and what
//! userfaultfd has to be asked about. Work goes in rounds with a machine each: at the end of
//! a round all words are read again, and audits recount everything twice, with the processes and
//! when they are gone. What threads do follows from the seed; how they meet does not.
//!
//! ```text
//!  round ─ world ─ worker ─┬─ children, pins, advice, moves, marks, filled, objects   its own
//!                 known ───┘  reclaim, folios                                         anybody's
//! ```

mod advice;
mod children;
mod filled;
mod folios;
mod known;
mod marks;
mod moves;
mod objects;
mod pins;
mod planted;
mod random;
mod reclaim;
mod region;
mod round;
mod worker;
mod world;

use mm_arm64::{Arm64, Granule4K};
use mm_x86::X86_64;
use planted::Planted;
use round::round;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use world::Tally;

const THREADS: usize = 4;
/// How many formats take turns.
const FORMATS: u64 = 2;
/// Rounds in which everything must have been done.
const ENOUGH: u64 = 16;
/// A round that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// What reclaims nothing, or forks nothing, proves nothing.
const MUST: [&str; 18] = [
    "entries unmapped",
    "pages swapped out",
    "pages freed lazily",
    "pages pinned",
    "pages pinned for ever",
    "forks",
    "pages filled",
    "pages marked",
    "times stores were tracked",
    "pages cut off",
    "pages punched",
    "pages moved by mremap",
    "pages moved by userfaultfd",
    "pages merged",
    "folios migrated",
    "folios split",
    "ranges collapsed",
    "times swap was taken away",
];

struct Arguments {
    time: Duration,
    first: u64,
    planted: Option<Planted>,
}

fn arguments() -> Option<Arguments> {
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args.next().map_or(Some(1), |a| a.parse().ok())?;
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64);
    let first = args.next().map_or_else(|| Some(now()), |a| a.parse().ok())?;
    let planted = match args.next() {
        Some(name) => Some(Planted::from_name(&name)?),
        None => None,
    };
    Some(Arguments { time: Duration::from_secs(seconds), first, planted })
}

/// Ends the program when no round ends any more.
fn watch(done: Arc<AtomicU64>, first: u64) {
    // Never joined: it ends with the program, or ends it.
    std::thread::spawn(move || {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let now = done.load(Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            if since.elapsed() > LIMIT {
                println!("the round of seed {} hangs", first.wrapping_add(seen));
                std::process::exit(3);
            }
        }
    });
}

fn main() -> ExitCode {
    let Some(Arguments { time, first, planted }) = arguments() else {
        eprintln!("stress [SECONDS [SEED [{}]]]", Planted::names());
        return ExitCode::from(2);
    };
    println!("seed {first}");
    let (begun, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    watch(done.clone(), first);
    let mut sum = Tally::default();
    loop {
        let seed = first.wrapping_add(done.load(Relaxed));
        let result = if seed % FORMATS == 0 {
            round::<X86_64>(seed, planted, &mut sum)
        } else {
            round::<Arm64<Granule4K>>(seed, planted, &mut sum)
        };
        if let Err(why) = result {
            let seconds = begun.elapsed().as_secs();
            println!("after {seconds} s, seed {first}: the round of seed {seed} failed: {why}");
            return ExitCode::FAILURE;
        }
        let rounds = done.fetch_add(1, Relaxed) + 1;
        // Not every format can do everything.
        if rounds < FORMATS || begun.elapsed() < time {
            continue;
        }
        // Where a round takes long there were few.
        let idle: Vec<_> = MUST.iter().filter(|what| sum.get(what) == 0).collect();
        if idle.is_empty() {
            println!("{sum}");
            return ExitCode::SUCCESS;
        }
        if rounds >= ENOUGH {
            println!("{sum}");
            println!("failed: none of {idle:?}");
            return ExitCode::FAILURE;
        }
    }
}
