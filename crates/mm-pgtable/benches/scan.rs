//! What finding a run costs, per format, against a loop of the memory accesses
//! that it cannot do without.
//!
//! `cargo bench -p mm-pgtable [-- --check]`: prints nanoseconds per entry (median
//! of interleaved rounds) and the ratio to the reference; with `--check` fails
//! where a ratio is over its limit.

use mm_arch::{Arch, Entry, Held, Level, Pfn, Pinned, Protection, Right, respect};
use mm_x86::{X86_64, X86_64La57, X86Pae};
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Tables of 512 entries that a round goes through.
const TABLES: usize = 64;
const ENTRIES: usize = 512;
const ROUNDS: usize = 61;
/// The most that a scan may take, in times of its reference.
const LIMIT: f64 = 1.2;

fn head<A: Arch>() -> A::Entry {
    let prot = A::prot(Protection::private_read_write());
    A::Entry::leaf(Pfn::new(0x1000), prot, Level::Pte).mkdirty()
}

/// Runs of `len` entries in tables of format `A`.
struct Ours<A: Arch> {
    tables: Vec<A::Table>,
    len: usize,
}

impl<A: Arch> Ours<A> {
    fn new(len: usize) -> Self {
        let table = |_| {
            let t = A::new_table();
            A::fill(&t, 0, ENTRIES, head::<A>());
            t
        };
        Ours { tables: (0..TABLES).map(table).collect(), len }
    }
    #[inline(never)]
    fn scan<R: Right>(&self) -> usize {
        let mut found = 0;
        for table in black_box(&self.tables) {
            let mut at = 0;
            while at < ENTRIES {
                let head = A::read::<R>(table, at);
                if !head.is_present(Level::Pte) {
                    return found;
                }
                found += A::scan::<R, { respect::WRITE }>(table, at, head, self.len).nr;
                at += self.len;
            }
        }
        found
    }
}

/// What a scan must at least do: eight masked comparisons to a branch.
trait Reference {
    fn new(len: usize) -> Self;
    fn scan(&self) -> usize;
}

const STEP: u64 = 1 << 12;

/// One load per entry.
struct Words(Vec<[AtomicU64; ENTRIES]>, usize);

impl Reference for Words {
    fn new(len: usize) -> Self {
        let head = head::<X86_64>().raw();
        let table = |_| std::array::from_fn(|i| AtomicU64::new(head + i as u64 * STEP));
        Words((0..TABLES).map(table).collect(), len)
    }
    #[inline(never)]
    fn scan(&self) -> usize {
        const IGNORE: u64 = 1 << 5 | 1 << 6 | 1 << 11 | 1 << 58;
        let mut found = 0;
        for table in black_box(&self.0) {
            for run in table.chunks_exact(self.1) {
                let mut e = run[0].load(Relaxed);
                if e & 1 == 0 {
                    return found;
                }
                for group in run.chunks_exact(8) {
                    let mut diff = 0;
                    for cell in group {
                        diff |= (cell.load(Relaxed) ^ e) & !IGNORE;
                        e = e.wrapping_add(STEP);
                    }
                    if diff != 0 {
                        break;
                    }
                    found += 8;
                }
            }
        }
        found
    }
}

/// Low, high and low again per entry.
struct Pairs(Vec<[[AtomicU32; 2]; ENTRIES]>, usize);

impl Reference for Pairs {
    fn new(len: usize) -> Self {
        let head = head::<X86Pae>().raw();
        let table = |_| {
            std::array::from_fn(|i| {
                let raw = head + i as u64 * STEP;
                [AtomicU32::new(raw as u32), AtomicU32::new((raw >> 32) as u32)]
            })
        };
        Pairs((0..TABLES).map(table).collect(), len)
    }
    #[inline(never)]
    fn scan(&self) -> usize {
        const IGNORE: u64 = 1 << 5 | 1 << 6 | 1 << 10;
        let read = |cell: &[AtomicU32; 2]| {
            let (l, h) = (cell[0].load(Relaxed), cell[1].load(Relaxed));
            (u64::from(h) << 32 | u64::from(l), l ^ cell[0].load(Relaxed))
        };
        let mut found = 0;
        for table in black_box(&self.0) {
            for run in table.chunks_exact(self.1) {
                let mut e = read(&run[0]).0;
                if e & 1 == 0 {
                    return found;
                }
                for group in run.chunks_exact(8) {
                    let mut diff = 0;
                    for cell in group {
                        let (raw, torn) = read(cell);
                        diff |= (raw ^ e) & !IGNORE | u64::from(torn);
                        e = e.wrapping_add(STEP);
                    }
                    if diff != 0 {
                        break;
                    }
                    found += 8;
                }
            }
        }
        found
    }
}

/// Nanoseconds per entry of one call.
fn time(scan: impl Fn() -> usize) -> f64 {
    let start = Instant::now();
    let found = scan();
    let ns = start.elapsed().as_secs_f64() * 1e9;
    assert_eq!(found, TABLES * ENTRIES);
    ns / found as f64
}
fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

/// One row of the table; whether it keeps the limit.
fn row<A: Arch, W: Reference>(len: usize) -> bool {
    let (ours, reference) = (Ours::<A>::new(len), W::new(len));
    let mut t: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        t[0].push(time(|| ours.scan::<Pinned>()));
        t[1].push(time(|| ours.scan::<Held>()));
        t[2].push(time(|| reference.scan()));
    }
    let [pinned, held, least] = t.map(median);
    let ratio = pinned / least;
    println!(
        "{:<14} run of {len:<4} lockless {pinned:.3} ns ({ratio:.2} x of {least:.3})   locked {held:.3} ns ({:.2} x)",
        A::NAME,
        held / least,
    );
    ratio <= LIMIT
}

fn main() -> ExitCode {
    let mut kept = true;
    for len in [16, 64, 512] {
        kept &= row::<X86_64, Words>(len);
        kept &= row::<X86_64La57, Words>(len);
        kept &= row::<X86Pae, Pairs>(len);
    }
    if std::env::args().any(|a| a == "--check") && !kept {
        eprintln!("a lockless scan takes more than {LIMIT} times its reference");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
