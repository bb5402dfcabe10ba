//! The supported scenarios, with audits after every operation.
//!
//! `xtask/scenarios.txt` names them. `cargo xtask scenarios` runs them under every policy on
//! `x86_64`, and on every format under `linux-6.18`: here are the model formats, and other
//! policies on other formats.

use mm_arch::Arch;
use mm_arch::model::{ModelCont, ModelPair};
use mm_arm64::{Arm64, Granule4K};
use mm_riscv::{Riscv, Sv48};
use mm_scenario::corpus::{self, Entry};
use mm_scenario::observe::{Body, Record};
use mm_scenario::{Mode, Scenario, first_difference};
use mm_sim::{MachineConfig, Preset, RunOptions, capabilities, fail_each, run};
use mm_x86::{X86_64, X86_64NoShstk};

fn supported() -> Vec<Entry> {
    let names: Vec<_> = include_str!("../../../../xtask/scenarios.txt")
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
    let machine = MachineConfig { bytes: 16 << 20, poison: true, ..MachineConfig::default() };
    RunOptions { machine, audit: true, ..RunOptions::default() }
}

fn all_pass<A: Arch>(preset: Preset) {
    let mut failures = Vec::new();
    for entry in supported() {
        let scenario = Scenario::parse(&entry.name, &entry.text).expect("parses");
        let (golden, mode) = preset.golden(&entry, A::CONT > 1);
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

/// Rules: INV-1, INV-2, INV-3, INV-5, INV-6, INV-7, INV-8, INV-9, FOLIO-58.
#[test]
fn linux_6_18() {
    all_pass::<X86_64>(Preset::Linux618);
}
/// Rules: WREUSE-04, WREUSE-19. What whole-folio reuse prints does not depend on the format.
#[test]
fn series_on_other_formats() {
    all_pass::<X86_64NoShstk>(Preset::Series);
    all_pass::<ModelPair<512>>(Preset::Series);
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

fn printed(entry: &Entry, preset: Preset) -> Vec<Record> {
    let scenario = Scenario::parse(&entry.name, &entry.text).expect("parses");
    let mut got = Vec::new();
    let result = run::<X86_64>(&scenario, &preset.policy(), &options(), &mut |r| got.push(r));
    result.unwrap_or_else(|e| panic!("{}: {e}", entry.name));
    got
}
/// Faults of CPUs and of GUP, by process and line.
fn faults(records: &[Record]) -> Vec<u64> {
    let each = records.iter().filter_map(|r| match &r.body {
        Body::Faults(f) => Some(f.min + f.maj + f.gup_min + f.gup_maj),
        _ => None,
    });
    each.collect()
}
/// Which present pages are mapped by one process alone, in every observation.
fn exclusive(records: &[Record]) -> Vec<(u32, String, u64, u8)> {
    let mut all = Vec::new();
    for record in records {
        let Body::Observe(observed) = &record.body else { continue };
        for target in &observed.t {
            for run in &target.runs {
                let Some(x) = run.x else { continue };
                let name = format!("{} {}", target.p, target.r);
                all.extend((run.at..run.at + run.n).map(|at| (record.line, name.clone(), at, x)));
            }
        }
    }
    all
}

/// Rules: WREUSE-14, WREUSE-19. `best` decides between reuse and copy as `linux-6.18` and
/// `series` do, and takes no more faults than the first.
#[test]
fn best_reuses_what_the_others_reuse_with_no_more_faults() {
    for entry in supported() {
        let [mainline, series, best] =
            [Preset::Linux618, Preset::Series, Preset::Best].map(|p| printed(&entry, p));
        for other in [&mainline, &series] {
            let d = first_difference(other, &best, Mode::ContentOnly, &capabilities());
            assert!(d.is_none(), "{}: {d:?}", entry.name);
            assert_eq!(exclusive(other), exclusive(&best), "{}", entry.name);
        }
        let (most, got) = (faults(&mainline), faults(&best));
        assert_eq!(most.len(), got.len());
        let more = most.iter().zip(&got).find(|(most, got)| got > most);
        assert!(more.is_none(), "{}: {most:?}, best {got:?}", entry.name);
    }
}
/// `best` takes one page first where nothing speaks for more: in the second folio of a
/// mapping, and in a folio that is larger than a block. Where there is one folio of a block
/// it takes the faults of `series`.
#[test]
fn best_differs_from_series_where_it_should() {
    let differs = [
        "child_writes_first_64k",
        "folio_two_page_tables_64k",
        "fork_after_small_copy",
        "fork_mprotect_rw_64k",
        "fork_twice_exit_64k",
        "gup_2m_pte_after_exit",
        "mremap_move_64k",
        "parent_exits_64k",
        "partial_unmap_then_fork_64k",
        "reuse_16kb",
        "reuse_2m_split_dontneed",
        "reuse_2m_split_munmap",
        "reuse_64kb",
        "reuse_one_store_2m_pte",
        "reuse_reverse_64k",
    ];
    let same = ["both_write_64k", "dio_into_shared_64k", "pin_w_then_fork_64k"];
    let entries = supported();
    for name in differs.iter().chain(&same) {
        let entry = entries.iter().find(|e| e.name == *name).expect("is supported");
        let [series, best] = [Preset::Series, Preset::Best].map(|p| faults(&printed(entry, p)));
        assert_eq!(series != best, differs.contains(name), "{name}: {series:?}, best {best:?}");
    }
}

/// Blocks of sixteen pages, folded and taken apart under every policy.
///
/// Rules: CONT-02, CONT-06, CONT-07, CONT-08.
#[test]
fn arm64_under_every_other_policy() {
    let others = Preset::ALL.iter().filter(|preset| **preset != Preset::Linux618);
    others.for_each(|preset| all_pass::<Arm64<Granule4K>>(*preset));
}
#[test]
fn riscv() {
    all_pass::<Riscv<Sv48>>(Preset::Series);
}

/// Whatever allocation fails, on whatever format: no panic, no leak, nothing lost, and every
/// audit holds. More of it is `cargo xtask fail-each`.
#[test]
fn a_failed_allocation_is_an_errno_and_leaks_nothing() {
    let entries = supported();
    for name in ["fork_twice_exit_64k", "swap_fork_64k"] {
        let entry = entries.iter().find(|e| e.name == name).expect("is supported");
        let scenario = Scenario::parse(&entry.name, &entry.text).expect("parses");
        let policy = Preset::Best.policy();
        for run in [fail_each::<X86_64>, fail_each::<Arm64<Granule4K>>] {
            let some = run(&scenario, &policy, &options(), Some(8));
            for (memory, some) in some.unwrap_or_else(|e| panic!("{e}")) {
                assert_eq!(some.tried, some.allocations.min(8));
                assert!(some.refused > 0, "{name}: {memory}: {some:?}");
            }
        }
    }
}
