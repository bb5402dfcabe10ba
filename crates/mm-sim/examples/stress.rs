//! Reclaim under load: four threads store, load, fork, pin, change mappings and reclaim, on
//! files, shared memory, anonymous memory and memory that was given up. What `cargo xtask
//! stress` runs.
//!
//! `cargo run -p mm-sim --example stress -- [SECONDS [SEED [PLANT]]]`; PLANT is `flushes`,
//! which drops flushes of ranges: that has to be found.
//!
//! Each thread has a word of every page to itself, so it knows what each load has to give,
//! whatever the others do. Work goes in rounds with a machine each: at the end of a round all
//! words are read again, and audits recount everything twice, with the processes and when
//! they are gone. What threads do follows from the seed; how they meet does not.

#[path = "stress/worker.rs"]
mod worker;

use mm_arch::Arch;
use mm_arm64::{Arm64, Granule4K};
use mm_fault::{OrderMode, ThpMode, ThpPolicy};
use mm_sim::{
    EventCounts, File, Machine, MachineConfig, Object, Plant, Preset, Shmem, ShmemKind, audit,
    leaks,
};
use mm_vma::{Platform, SwapSpace};
use mm_x86::X86_64;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use worker::{PAGES, Random, Worker, map_all};

const THREADS: usize = 4;
/// Operations of a thread in a round.
const OPERATIONS: u64 = 1500;
/// A round that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// What threads did, over all rounds.
#[derive(Default)]
struct Sum {
    rounds: u64,
    operations: u64,
    unmapped: u64,
    swapped_out: u64,
    lazily_freed: u64,
    pins: u64,
    forks: u64,
}

/// One machine, from its start to its end.
fn round<A: Arch>(seed: u64, plant: Plant, sum: &mut Sum) -> Result<(), String> {
    let mut random = Random::new(seed);
    let presets = Preset::ALL;
    let preset = presets[random.below(presets.len() as u64) as usize];
    let mut policy = preset.policy();
    let thp = ThpPolicy::new(9).with_global(ThpMode::Never);
    policy.fault.thp = thp.with_order(2, OrderMode::Always).with_order(4, OrderMode::Always);
    let config = MachineConfig { bytes: 32 << 20, cpus: THREADS, ..MachineConfig::default() };
    let machine = Machine::<A>::new(config, policy).map_err(|e| e.to_string())?;
    let host = machine.host();
    // Less than there is to swap, now and then.
    let slots = if random.below(3) == 0 { 512 } else { 4096 };
    host.swap().add::<A>(slots).map_err(|e| e.to_string())?;
    host.swap().set_asynchronous(random.below(2) == 0);
    host.cpus().plant(plant);

    let objects: [Arc<dyn Object<A, EventCounts>>; 2] = [
        File::new(host, PAGES).expect("memory"),
        Shmem::new(host, ShmemKind::Anonymous, PAGES).expect("memory"),
    ];
    for first in (0..PAGES).step_by(16) {
        objects[0].write(first, 16, &|_, _| 0).map_err(|e| e.to_string())?;
    }
    let mut processes = Vec::new();
    for cpu in 0..THREADS {
        let mut process = machine.spawn().map_err(|e| e.to_string())?;
        process.run_on(cpu);
        map_all(&process, &objects)?;
        processes.push(process);
    }

    let named = |why| format!("{}, {}: {why}", preset.name(), std::any::type_name::<A>());
    let workers: Vec<Result<Worker<'_, A>, String>> = std::thread::scope(|threads| {
        let (processes, objects) = (&processes[..], &objects[..]);
        let started: Vec<_> = (0..THREADS)
            .map(|me| {
                let seed = random.next();
                threads.spawn(move || {
                    let mut worker = Worker::new(me, processes, objects, Random::new(seed));
                    for _ in 0..OPERATIONS {
                        worker.operate()?;
                    }
                    worker.end()?;
                    Ok(worker)
                })
            })
            .collect();
        let ended = started.into_iter().map(|t| t.join().unwrap_or(Err("a panic".to_owned())));
        ended.collect()
    });
    for worker in workers {
        let worker = worker.and_then(Worker::check_all).map_err(named)?;
        (sum.pins, sum.forks) = (sum.pins + worker.pins, sum.forks + worker.forks);
    }
    machine.settle();
    let found = audit(&machine, &processes, []);
    if !found.is_empty() {
        return Err(named(format!("audit: {found:#?}")));
    }
    let events = host.events().ok_or("nothing is counted")?;
    sum.unmapped += events.entries_unmapped.get();
    sum.swapped_out += events.pages_swapped_out.get();
    sum.lazily_freed += events.lazy_freed.get();
    sum.rounds += 1;
    sum.operations += OPERATIONS * THREADS as u64;
    drop(processes);
    drop(objects);
    // What reclaim had locked while its last entry went is in the swap cache until reclaim comes
    // by again (rule SWAP-04). It stops for want of more.
    let _ = host.reclaim_everywhere("32M");
    machine.settle();
    let (found, slots): (_, Vec<_>) = (leaks(&machine), host.swap().slots().in_use().collect());
    if found.is_empty() && slots.is_empty() {
        return Ok(());
    }
    // What is still there, and where it is kept.
    let left: Vec<_> =
        host.memmap().alive().map(|f| (f.head(), f.order(), f.flags(), f.refcount())).collect();
    Err(named(format!("leaks: {found:#?}, slots: {slots:?}, folios: {left:#?}")))
}

fn arguments() -> Option<(Duration, u64, Plant)> {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().map_or(Some(1), |a| a.parse().ok())?;
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64);
    let seed = args.next().map_or_else(|| Some(now()), |a| a.parse().ok())?;
    let plant = match args.next().as_deref() {
        None => Plant::empty(),
        Some("flushes") => Plant::DROP_RANGE_FLUSHES,
        Some(_) => return None,
    };
    Some((Duration::from_secs(seconds), seed, plant))
}

fn main() -> ExitCode {
    let Some((time, first, plant)) = arguments() else {
        eprintln!("stress [SECONDS [SEED [flushes]]]");
        return ExitCode::from(2);
    };
    println!("seed {first}");
    let (begun, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let watched = done.clone();
    // Never joined: it ends with the program, or ends it.
    std::thread::spawn(move || {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let now = watched.load(Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            if since.elapsed() > LIMIT {
                println!("the round of seed {} hangs", first.wrapping_add(seen));
                std::process::exit(3);
            }
        }
    });
    let mut sum = Sum::default();
    loop {
        let seed = first.wrapping_add(done.load(Relaxed));
        let result = if seed % 2 == 0 {
            round::<X86_64>(seed, plant, &mut sum)
        } else {
            round::<Arm64<Granule4K>>(seed, plant, &mut sum)
        };
        if let Err(why) = result {
            let seconds = begun.elapsed().as_secs();
            println!("after {seconds} s, seed {first}: the round of seed {seed} failed: {why}");
            return ExitCode::FAILURE;
        }
        done.fetch_add(1, Relaxed);
        if begun.elapsed() >= time {
            break;
        }
    }
    let Sum { rounds, operations, unmapped, swapped_out, lazily_freed, pins, forks } = sum;
    println!(
        "{rounds} rounds, {operations} operations: {unmapped} entries unmapped, {swapped_out} pages \
         swapped out, {lazily_freed} freed lazily, {pins} pins, {forks} forks"
    );
    // What reclaims nothing proves nothing.
    let idle = [unmapped, swapped_out, lazily_freed, pins, forks].contains(&0);
    if idle { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
