//! A machine of x86-64 with two CPUs, and the pages that programs use on it.

use mm_arch::{VirtAddr, VirtRange};
use mm_scenario::Scenario;
use mm_sim::{Machine, MachineConfig, Preset, Process, RunOptions, run};
use mm_vma::VmaFlags;
use mm_x86::X86_64;

pub type A = X86_64;
pub type M = Machine<A>;
pub type P = Process<A>;

pub const BASE: u64 = 0x1000_0000_0000;
pub const RW: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE);

pub fn page(i: u64) -> VirtAddr {
    VirtAddr::new(BASE + i * 4096)
}
pub fn pages(first: u64, n: u64) -> VirtRange {
    VirtRange::units(page(first), n, 12).expect("range")
}
/// With so much memory, under the policies of `best`.
pub fn machine_of(mib: u64) -> M {
    machine_under(mib, Preset::Best)
}
/// With so much memory, under the policies of `preset`.
pub fn machine_under(mib: u64, preset: Preset) -> M {
    let config =
        MachineConfig { bytes: mib << 20, cpus: 2, poison: true, ..MachineConfig::default() };
    Machine::new(config, preset.policy()).expect("machine")
}

/// Runs the lines under every policy, with audits, and compares what they print.
#[track_caller]
pub fn prints(lines: &str, expected: &[&str]) {
    for preset in [Preset::Linux618, Preset::Series, Preset::Best, Preset::Baseline] {
        assert_eq!(printed_under(lines, preset), expected, "{}", preset.name());
    }
}
/// What the lines print under `linux-6.18`, with audits.
pub fn printed(lines: &str) -> Vec<String> {
    printed_under(lines, Preset::Linux618)
}
/// What the lines print under `preset`, with audits.
pub fn printed_under(lines: &str, preset: Preset) -> Vec<String> {
    let scenario = Scenario::parse("lines", lines).expect("parses");
    let machine = MachineConfig { bytes: 16 << 20, poison: true, ..MachineConfig::default() };
    let options = RunOptions { machine, audit: true, ..RunOptions::default() };
    let mut got = Vec::new();
    let printed = &mut |r: mm_scenario::observe::Record| got.push(r.to_json());
    run::<X86_64>(&scenario, &preset.policy(), &options, printed).expect("runs");
    got
}
