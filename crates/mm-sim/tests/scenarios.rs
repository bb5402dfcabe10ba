//! The supported scenarios, under every policy, with audits after every operation.
//!
//! `xtask/scenarios.txt` names them.

use mm_arch::Arch;
use mm_arch::model::{ModelCont, ModelPair};
use mm_scenario::corpus::{self, Entry};
use mm_scenario::observe::Record;
use mm_scenario::{Scenario, first_difference};
use mm_sim::{MachineConfig, Preset, RunOptions, capabilities, run};
use mm_x86::{X86_64, X86_64NoShstk};

fn supported() -> Vec<Entry> {
    let names: Vec<_> = include_str!("../../../xtask/scenarios.txt")
        .lines()
        .map(|l| l.split('#').next().unwrap_or_default().trim())
        .filter(|l| !l.is_empty())
        .collect();
    let all = corpus::handed().expect("the handed scenarios");
    let entries: Vec<_> = all.into_iter().filter(|e| names.contains(&e.name.as_str())).collect();
    assert_eq!(entries.len(), names.len(), "a listed scenario is missing");
    entries
}

fn options() -> RunOptions {
    let machine = MachineConfig { bytes: 48 << 20, poison: true, ..MachineConfig::default() };
    RunOptions { machine, audit: true, fail_after: None }
}

fn all_pass<A: Arch>(preset: Preset) {
    let mut failures = Vec::new();
    for entry in supported() {
        let scenario = Scenario::parse(&entry.name, &entry.text).expect("parses");
        let (golden, mode) = preset.golden(&entry);
        let golden = Record::read_all(golden.expect("has a golden")).expect("golden");
        let mut got = Vec::new();
        let result = run::<A>(&scenario, &preset.policy(), &options(), &mut |r| got.push(r));
        let failure = match result {
            Err(e) => Some(e.to_string()),
            Ok(()) => first_difference(&golden, &got, mode, &capabilities())
                .map(|d| format!("{}: {d}", entry.name)),
        };
        failures.extend(failure);
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Rules: INV-1, INV-2, INV-3, INV-5, INV-6, INV-7, INV-8, INV-9.
#[test]
fn linux_6_18() {
    all_pass::<X86_64>(Preset::Linux618);
}
#[test]
fn series() {
    all_pass::<X86_64>(Preset::Series);
}
#[test]
fn best() {
    all_pass::<X86_64>(Preset::Best);
}
#[test]
fn baseline() {
    all_pass::<X86_64>(Preset::Baseline);
}
/// Another entry format: nothing that a process sees depends on it.
#[test]
fn without_shadow_stacks() {
    all_pass::<X86_64NoShstk>(Preset::Linux618);
}
/// Entries of two words, of which both differ (memory lies across 4 GiB), in narrow windows.
#[test]
fn two_words() {
    all_pass::<ModelPair<512>>(Preset::Linux618);
}
#[test]
fn contiguous_blocks() {
    all_pass::<ModelCont<512, 16>>(Preset::Linux618);
}
/// Whatever allocation fails: no panic, no leak, and every audit holds.
#[test]
fn a_failed_allocation_is_an_errno_and_leaks_nothing() {
    let names =
        ["fork_twice_exit_64k", "pin_w_then_fork_64k", "mremap_move_2m", "zero_then_write_2m"];
    for entry in supported().iter().filter(|e| names.contains(&e.name.as_str())) {
        let scenario = Scenario::parse(&entry.name, &entry.text).expect("parses");
        let mut refusals = 0;
        // Past the last allocation of each of them.
        for n in (0..40).chain((40..200).step_by(17)) {
            let options = RunOptions { fail_after: Some(n), ..options() };
            let result = run::<X86_64>(&scenario, &Preset::Best.policy(), &options, &mut |r| {
                refusals += u32::from(r.to_json().contains("ENOMEM"));
            });
            if let Err(e) = result {
                panic!("allocation {n} fails: {e}");
            }
        }
        assert!(refusals > 0, "{}: no allocation mattered", entry.name);
    }
}
