//! Random scenarios of anonymous memory, private and shared, in frames and on swap: what they are made
//! of, and what must hold of them. Shared by a test, which shrinks what it finds, and by the example
//! `random_scenarios`, which tries many.

use mm_fault::ReusePolicy;
use mm_scenario::observe::Record;
use mm_scenario::{Mode, Scenario, first_difference};
use mm_sim::{MachineConfig, Memory, Policy, Preset, RunError, RunOptions, capabilities, run};
use mm_x86::X86_64;
use std::collections::BTreeSet;
use std::fmt::Write;

/// A region of each folio size, and one of shared memory: name, pages, and whose they are.
const REGIONS: [(&str, u64, &str); 4] =
    [("a", 48, "private"), ("h", 1024, "private"), ("s", 20, "private"), ("o", 24, "shared")];
pub const NR_REGIONS: usize = REGIONS.len();
const PROCS: [&str; 3] = ["p0", "p1", "p2"];

/// An operation, by numbers that are reduced to what exists.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub what: u8,
    pub proc: usize,
    pub region: usize,
    pub first: u64,
    pub pages: u64,
    pub value: u16,
}

/// Kinds of operations.
pub const KINDS: u8 = 68;

/// Writes the steps as a scenario, leaving out what could not be.
pub fn scenario(steps: &[Step]) -> String {
    let mut s = String::from("swap 400\nthp 64kB madvise\nthp 2048kB madvise\n");
    for (name, pages, sharing) in REGIONS {
        writeln!(s, "mmap p0 {name} {pages} anon rw {sharing}").expect("string");
    }
    s.push_str("madvise p0 a hugepage\nmadvise p0 h hugepage\n");
    let mut alive = BTreeSet::from([0]);
    let mut pins = BTreeSet::new();
    let mut moves = 0;
    for (k, step) in steps.iter().enumerate() {
        let Some(&p) = alive.iter().nth(step.proc % alive.len()) else { continue };
        let proc = PROCS[p];
        let (region, size, sharing) = REGIONS[step.region];
        let first = step.first % size;
        // Short ranges mostly: they cut folios.
        let longest = if step.pages % 4 == 0 { size } else { 20 };
        let n = 1 + step.pages / 4 % longest.min(size - first);
        let range = format!("{region}:{first}+{n}");
        let value = step.value;
        let line = match step.what {
            0..=9 => format!("write {proc} {range} {value}"),
            10 => format!("read {proc} {range}"),
            11 => format!("content {proc} {range}"),
            12..=14 => {
                let Some(child) = (0..PROCS.len()).find(|c| !alive.contains(c)) else { continue };
                alive.insert(child);
                format!("fork {} {proc}", PROCS[child])
            }
            15 | 16 => {
                if alive.len() == 1 {
                    continue;
                }
                alive.remove(&p);
                pins.retain(|(owner, _)| *owner != p);
                format!("exit {proc}")
            }
            17 => format!("munmap {proc} {range}"),
            18 => format!("mmap {proc} {region} {size} anon rw {sharing}"),
            19 | 20 => format!("mprotect {proc} {range} rw"),
            21 => format!("mprotect {proc} {range} r"),
            22 => format!("mprotect {proc} {range} none"),
            23 | 24 => format!("madvise {proc} {range} dontneed"),
            25 => format!("madvise {proc} {range} dontfork"),
            26 => format!("madvise {proc} {range} dofork"),
            27 => format!("madvise {proc} {range} wipeonfork"),
            28 => format!("madvise {proc} {range} nohugepage"),
            29 => format!("madvise {proc} {range} hugepage"),
            30..=32 => {
                let method = ["uring", "fuse-r", "fuse-w", "vmsplice"][value as usize % 4];
                pins.insert((p, k));
                format!("pin {proc} {range} x{k} {method}")
            }
            33 | 34 => {
                let Some(&(owner, k)) = pins.iter().find(|(owner, _)| *owner == p) else {
                    continue;
                };
                pins.remove(&(owner, k));
                // A pipe holds the page, and not what was in it: whether a later
                // store goes to the page or to a copy is the policy's.
                let is_pipe = s.contains(&format!(" x{k} vmsplice"));
                let read = if is_pipe { "" } else { &format!("pinread {proc} x{k}\n") };
                format!("{read}unpin {proc} x{k}")
            }
            35 => format!("poke {proc} {range} {value}"),
            36 => format!("pvwrite {proc} {range} {value}"),
            37 => format!("pvread {proc} {range}"),
            38 => {
                moves += 1;
                format!("mremap {proc} {range} move m{moves} to={}", value % 600)
            }
            39 => format!("uffd {proc} {range} register wp"),
            40 => format!("uffd {proc} {region} register wp unpopulated"),
            41 => format!("uffd {proc} {range} register missing wp async"),
            42..=44 => format!("uffd {proc} {range} protect"),
            45 => format!("uffd {proc} {range} unprotect"),
            46 => format!("uffd {proc} {range} unregister\nevents {proc}"),
            // The device is small: some do not find room.
            47..=49 => format!("madvise {proc} {range} pageout"),
            50 => format!("madvise {proc} {region} collapse"),
            51 => format!("mlock {proc} {range}{}", if value % 3 == 0 { " onfault" } else { "" }),
            52 => format!("munlock {proc} {range}"),
            // Few different values, so that pages are equal.
            53 | 54 => {
                let value = 1 + value % 3;
                format!("madvise {proc} {region} mergeable\nfill {proc} {range} {value}")
            }
            55 => "ksmscan 2".to_string(),
            56 => format!("madvise {proc} {range} unmergeable"),
            57 => format!("madvise {proc} {range} willneed"),
            58 => format!("uffd {proc} {range} copy {value}"),
            59 => format!("uffd {proc} {range} zeropage"),
            60 => format!("uffd {proc} {range} poison"),
            61 => {
                let mode = ["minor missing", "minor wp", "minor"][value as usize % 3];
                format!("uffd {proc} o register {mode}")
            }
            62 => format!("uffd {proc} {range} continue"),
            // What the object has, because others made it or the process itself.
            63 => {
                let (at, wp) = (first % 20, ["", " wp"][value as usize % 2]);
                let range = format!("o:{at}+{}", 1 + n % 4);
                format!(
                    "write {proc} {range} {value}\nuffd {proc} o register minor wp\n\
                     madvise {proc} {range} dontneed\nuffd {proc} {range} continue{wp}"
                )
            }
            64..=66 => {
                let (to, room, _) = REGIONS[value as usize % 3];
                let n = n.min(room);
                let at = u64::from(value) / 3 % (room - n + 1);
                let (from, to_range) = (format!("{region}:{first}+{n}"), format!("{to}:{at}+{n}"));
                // Which pages are a process's own is the policy's, but for those stored to.
                writeln!(s, "write {proc} {from} {value}").expect("string");
                if value % 4 == 1 {
                    writeln!(s, "madvise {proc} {from} pageout").expect("string");
                }
                // Into what is empty, mostly.
                if value % 8 != 0 {
                    writeln!(s, "uffd {proc} {to} register missing wp").expect("string");
                    writeln!(s, "madvise {proc} {to_range} dontneed").expect("string");
                }
                let holes = if value % 2 == 0 { " holes" } else { "" };
                format!("uffd {proc} {from} move {to} to={at}{holes}")
            }
            _ => format!("observe {proc} {region}\nfaults {proc}\nvmas {proc} {region}\nstats"),
        };
        s.push_str(&line);
        s.push('\n');
    }
    for p in alive {
        let proc = PROCS[p];
        writeln!(s, "observe {proc} a {proc} h {proc} s {proc} o\nfaults {proc}").expect("string");
    }
    s
}

/// Every policy of reuse; the first is what the others are held against.
pub fn policies() -> [(&'static str, Policy); 5] {
    let of = |preset: Preset| (preset.name(), preset.policy());
    let mut block = Preset::Series.policy();
    block.fault.reuse = ReusePolicy::Block;
    let [page, table, adaptive, baseline] =
        [Preset::Linux618, Preset::Series, Preset::Best, Preset::Baseline].map(of);
    [page, ("blocks", block), table, adaptive, baseline]
}

/// What the scenario prints under `policy`, with every audit after every operation, and the
/// allocation after the first so many failing. Nothing, if there is not even a process then.
pub fn printed(
    text: &str,
    (name, policy): &(&str, Policy),
    fails: Option<(Memory, u64)>,
) -> Result<Vec<String>, String> {
    let scenario = Scenario::parse("random", text).map_err(|e| format!("{e}\n{text}"))?;
    let machine = MachineConfig { bytes: 48 << 20, poison: true, ..MachineConfig::default() };
    let after = |memory| fails.filter(|(of, _)| *of == memory).map(|(_, n)| n);
    let options = RunOptions {
        machine,
        audit: true,
        fail_after: after(Memory::Frames),
        fail_heap_after: after(Memory::Heap),
    };
    let mut out = Vec::new();
    match run::<X86_64>(&scenario, policy, &options, &mut |r| out.push(r.to_json())) {
        Err(RunError::NoMemory { .. }) if fails.is_some() && out.is_empty() => Ok(out),
        ran => ran.map(|()| out).map_err(|e| format!("{name}: {e}\n{text}")),
    }
}

/// Runs the scenario under every policy: whether the audits hold and no process can
/// tell one from another.
pub fn policies_agree(text: &str) -> Result<(), String> {
    let [first, others @ ..] = policies();
    let reference = printed(text, &first, None)?;
    let records =
        |lines: &[String]| Record::read_all(&lines.join("\n")).map_err(|e| format!("{e}\n{text}"));
    for policy in &others {
        let got = printed(text, policy, None)?;
        // Where more than the page of a fault becomes writable, faults and folios
        // differ, and what a process sees does not.
        let (a, b) = (records(&reference)?, records(&got)?);
        if let Some(d) = first_difference(&a, &b, Mode::ContentOnly, &capabilities()) {
            return Err(format!("{}: {d}\n{text}", policy.0));
        }
        if policy.0 != Preset::Baseline.name() {
            continue;
        }
        // Without batches all is the same. Page by page, a folio that goes away is
        // partially mapped for a while, and counted as such.
        let but_stats = |r: &&String| !r.contains("\"op\":\"stats\"");
        if !reference.iter().filter(but_stats).eq(got.iter().filter(but_stats)) {
            return Err(format!("{} prints something else\n{text}", policy.0));
        }
    }
    Ok(())
}
