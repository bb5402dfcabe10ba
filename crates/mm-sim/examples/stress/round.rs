//! One machine, from its start to its end.

use crate::THREADS;
use crate::planted::Planted;
use crate::random::Random;
use crate::worker::Worker;
use crate::world::{Tally, World};
use mm_arch::Arch;
use mm_fault::{OrderMode, ThpMode, ThpPolicy};
use mm_sim::{Machine, MachineConfig, Plant, Preset, audit, leaks};
use mm_vma::{Platform, SwapSpace};
use std::error::Error;

/// Operations of a thread in a round.
const OPERATIONS: u64 = 1500;
const BYTES: u64 = 128 << 20;

/// A machine with a policy by the seed, and the name of that.
fn machine<A: Arch>(random: &mut Random) -> Result<(Machine<A>, &'static str), Box<dyn Error>> {
    let preset = random.one_of(Preset::ALL);
    let mut policy = preset.policy();
    let mut thp = ThpPolicy::new(9).with_global(ThpMode::Never);
    thp = thp.with_order(2, OrderMode::Always).with_order(4, OrderMode::Always);
    if random.once_in(2) {
        thp = thp.with_order(9, OrderMode::Always);
    }
    policy.fault.thp = thp;
    // What is used of the rest moves, where hints tell.
    let near_bytes = if random.once_in(2) { BYTES / 16 } else { u64::MAX };
    let config =
        MachineConfig { bytes: BYTES, cpus: THREADS, near_bytes, ..MachineConfig::default() };
    let machine = Machine::new(config, policy)?;
    machine.host().swap().set_asynchronous(random.once_in(2));
    Ok((machine, preset.name()))
}

/// Adds what was done to `sum`.
pub fn round<A: Arch>(seed: u64, planted: Option<Planted>, sum: &mut Tally) -> Result<(), String> {
    let mut random = Random::new(seed);
    let (machine, name) = machine::<A>(&mut random).map_err(|e| e.to_string())?;
    let named = |why: String| format!("{name}, {}: {why}", A::NAME);
    let world = World::new(&machine, &mut random, planted);
    let world = world.map_err(|e| named(e.to_string()))?;
    if planted == Some(Planted::Flushes) {
        machine.host().cpus().plant(Plant::DROP_RANGE_FLUSHES);
    }
    work(&world, &mut random, sum).map_err(named)?;
    machine.settle();
    let found = audit(&machine, &world.processes, []);
    if !found.is_empty() {
        return Err(named(format!("audit: {found:#?}")));
    }
    if let Some(events) = machine.host().events() {
        sum.add("entries unmapped", events.entries_unmapped.get());
        sum.add("pages swapped out", events.pages_swapped_out.get());
        sum.add("pages freed lazily", events.lazy_freed.get());
        sum.add("used pages moved near", events.hints_moved.get());
        sum.add("faults with the lock of one mapping", events.faults_in_vma.get());
        sum.add("faults with the lock of all", events.faults_in_mm.get());
    }
    sum.add("rounds", 1);
    sum.add("operations", OPERATIONS * THREADS as u64);
    drop(world);
    left(&machine).map_err(named)
}

/// Four threads work, and then each looks at everything once more.
fn work<A: Arch>(world: &World<A>, random: &mut Random, sum: &mut Tally) -> Result<(), String> {
    let workers: Vec<Result<Worker<'_, A>, String>> = std::thread::scope(|threads| {
        let started: Vec<_> = (0..THREADS)
            .map(|me| {
                let random = Random::new(random.next());
                threads.spawn(move || {
                    let mut worker = Worker::new(me, world, random);
                    (0..OPERATIONS).try_for_each(|_| worker.operate())?;
                    worker.end()?;
                    Ok(worker)
                })
            })
            .collect();
        let ended = started.into_iter().map(|t| t.join().unwrap_or(Err("a panic".to_owned())));
        ended.collect()
    });
    for worker in workers {
        let mut worker = worker?;
        worker.check_all()?;
        sum.merge(&worker.done);
    }
    Ok(())
}

/// Nothing is left of the processes and objects.
fn left<A: Arch>(machine: &Machine<A>) -> Result<(), String> {
    let host = machine.host();
    // What reclaim had locked while its last entry went is in the swap cache until reclaim comes
    // by again (rule SWAP-04). It stops for want of more.
    let _ = host.reclaim_everywhere("128M");
    machine.settle();
    let (found, slots): (_, Vec<_>) = (leaks(machine), host.swap().slots().in_use().collect());
    if found.is_empty() && slots.is_empty() {
        return Ok(());
    }
    // What is still there, and where it is kept.
    let left: Vec<_> =
        host.memmap().alive().map(|f| (f.head(), f.order(), f.flags(), f.refcount())).collect();
    Err(format!("leaks: {found:#?}, slots: {slots:?}, folios: {left:#?}"))
}
