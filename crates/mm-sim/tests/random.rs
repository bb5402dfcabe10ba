//! Random scenarios: every audit holds after every operation, and no process can
//! tell one policy from another.

use mm_scenario::observe::Record;
use mm_scenario::{Mode, Scenario, first_difference};
use mm_sim::{MachineConfig, Preset, RunOptions, capabilities, run};
use mm_x86::X86_64;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fmt::Write;

/// A region of each folio size: name, pages, and what makes its folios.
const REGIONS: [(&str, u64); 3] = [("a", 48), ("h", 1024), ("s", 20)];
const PROCS: [&str; 3] = ["p0", "p1", "p2"];

/// An operation, by numbers that are reduced to what exists.
#[derive(Clone, Copy, Debug)]
struct Step {
    what: u8,
    proc: usize,
    region: usize,
    first: u64,
    pages: u64,
    value: u16,
}

fn step() -> impl Strategy<Value = Step> {
    let fields = (0u8..48, 0usize..3, 0usize..3, any::<u64>(), any::<u64>(), 1u16..60000);
    fields.prop_map(|(what, proc, region, first, pages, value)| Step {
        what,
        proc,
        region,
        first,
        pages,
        value,
    })
}

/// Writes the steps as a scenario, leaving out what could not be.
fn scenario(steps: &[Step]) -> String {
    let mut s = String::from("thp 64kB madvise\nthp 2048kB madvise\n");
    for (name, pages) in REGIONS {
        writeln!(s, "mmap p0 {name} {pages} anon rw private").expect("string");
    }
    s.push_str("madvise p0 a hugepage\nmadvise p0 h hugepage\n");
    let mut alive = BTreeSet::from([0]);
    let mut pins = BTreeSet::new();
    let mut moves = 0;
    for (k, step) in steps.iter().enumerate() {
        let Some(&p) = alive.iter().nth(step.proc % alive.len()) else { continue };
        let proc = PROCS[p];
        let (region, size) = REGIONS[step.region];
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
            18 => format!("mmap {proc} {region} {size} anon rw private"),
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
            _ => format!("observe {proc} {region}\nfaults {proc}\nvmas {proc} {region}\nstats"),
        };
        s.push_str(&line);
        s.push('\n');
    }
    for p in alive {
        let proc = PROCS[p];
        writeln!(s, "observe {proc} a {proc} h {proc} s\nfaults {proc}").expect("string");
    }
    s
}

fn printed(
    text: &str,
    preset: Preset,
    fail_after: Option<u64>,
) -> Result<Vec<String>, TestCaseError> {
    let scenario =
        Scenario::parse("random", text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
    let machine = MachineConfig { bytes: 48 << 20, poison: true, ..MachineConfig::default() };
    let options = RunOptions { machine, audit: true, fail_after };
    let mut out = Vec::new();
    run::<X86_64>(&scenario, &preset.policy(), &options, &mut |r| out.push(r.to_json()))
        .map_err(|e| TestCaseError::fail(format!("{}: {e}\n{text}", preset.name())))?;
    Ok(out)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Rules: INV-1, INV-2, INV-3, INV-5, INV-6, INV-7, INV-9, ZAP-02, FORK-05, GUPF-16.
    #[test]
    fn policies_cannot_be_told_apart(steps in prop::collection::vec(step(), 1..50)) {
        let text = scenario(&steps);
        // Page by page, a folio that goes away is partially mapped for a while,
        // and counted as such.
        let but_stats = |records: Vec<String>| -> Vec<String> {
            records.into_iter().filter(|r| !r.contains("\"op\":\"stats\"")).collect()
        };
        let full = printed(&text, Preset::Linux618, None)?;
        // Where more than the page of a fault becomes writable, faults and folios
        // differ, and what a process sees does not.
        let records = |lines: &[String]| Record::read_all(&lines.join("\n")).expect("records");
        for preset in [Preset::Series, Preset::Best] {
            let got = printed(&text, preset, None)?;
            let (a, b) = (records(&full), records(&got));
            let difference = first_difference(&a, &b, Mode::ContentOnly, &capabilities());
            prop_assert!(difference.is_none(), "{}: {:?}\n{}", preset.name(), difference, text);
        }
        let reference = but_stats(full);
        let got = but_stats(printed(&text, Preset::Baseline, None)?);
        prop_assert_eq!(&reference, &got, "baseline:\n{}", text);
    }
    /// Whatever allocation fails: an errno, and a machine that is as sound as before.
    #[test]
    fn a_failed_allocation_breaks_nothing(
        steps in prop::collection::vec(step(), 1..50),
        n in 0u64..120,
    ) {
        printed(&scenario(&steps), Preset::Best, Some(n))?;
    }
}
