//! Our page tables against those of real kernels, word for word.
//!
//! `data/tables` of mm-scenario holds what a kernel had in its tables at every `observe`
//! of a scenario. What differs is listed in `differences.tsv` there, line by line and with
//! a reason; nothing else is passed over.

use mm_arm64::{Arm64, Granule4K};
use mm_scenario::Scenario;
use mm_scenario::corpus;
use mm_scenario::observe::TableDump;
use mm_sim::{MachineConfig, Policy, Preset, RunError, RunOptions, run_dumping};
use mm_x86::X86_64;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Run = fn(&Scenario, &Policy, &RunOptions, &mut dyn FnMut(TableDump)) -> Result<(), RunError>;

/// How the dumps of a machine are named, and the format of that machine.
const MACHINES: &[(&str, Run)] =
    &[("amd64", run_dumping::<X86_64>), ("arm64", run_dumping::<Arm64<Granule4K>>)];

fn tables() -> PathBuf {
    Path::new(corpus::handed_dir()).join("tables")
}
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
/// A scenario of its own, or one with a golden.
fn scenario(name: &str) -> Scenario {
    let file = format!("{name}.scn");
    let own = tables().join(&file);
    let path = if own.exists() { own } else { Path::new(corpus::handed_dir()).join(file) };
    Scenario::parse(name, &read(&path)).expect("parses")
}

/// The lines under each heading, of which there is one of a kind.
fn blocks(dump: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut blocks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut heading = "";
    for line in dump.lines() {
        if line.starts_with("line ") {
            heading = line;
            assert!(blocks.insert(heading, Vec::new()).is_none(), "{heading} twice");
        } else {
            blocks.get_mut(heading).expect("a heading first").push(line);
        }
    }
    blocks
}

/// Dump, heading, sign, line: as a row of the table of differences begins.
type Row = (String, String, String);

fn differences(name: &str, expected: &str, got: &str) -> BTreeSet<Row> {
    let (expected, got) = (blocks(expected), blocks(got));
    let mut rows = BTreeSet::new();
    let headings: BTreeSet<_> = expected.keys().chain(got.keys()).collect();
    for heading in headings {
        let none = Vec::new();
        let (e, g) = (expected.get(heading).unwrap_or(&none), got.get(heading).unwrap_or(&none));
        let mut add = |sign: &str, of: &[&str], other: &[&str]| {
            for line in of.iter().filter(|l| !other.contains(l)) {
                rows.insert((name.to_owned(), (*heading).to_owned(), format!("{sign} {line}")));
            }
        };
        add("-", e, g);
        add("+", g, e);
        // The same lines in another order, or twice.
        assert!(e == g || e.iter().any(|l| !g.contains(l)) || g.iter().any(|l| !e.contains(l)));
    }
    rows
}

fn listed() -> BTreeSet<Row> {
    let text = read(&tables().join("differences.tsv"));
    let rows = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
    rows.map(|row| {
        let columns: Vec<_> = row.split('\t').collect();
        let [dump, heading, line, reason] = columns[..] else { panic!("4 columns: {row}") };
        assert!(!reason.is_empty(), "{row}");
        (dump.to_owned(), heading.to_owned(), line.to_owned())
    })
    .collect()
}

/// Rules: ACC-08, PTE-03, PTE-14, PTE-15, PTE-16, SHSTK-04, SHSTK-05, FORK-05, SWP-06, GUARD-01.
#[test]
fn equal_those_of_a_real_kernel() {
    let machine = MachineConfig { bytes: 64 << 20, poison: true, ..MachineConfig::default() };
    let options = RunOptions { machine, audit: true, ..RunOptions::default() };
    let (mut compared, mut found) = (0, BTreeSet::new());
    let mut files: Vec<_> =
        fs::read_dir(tables()).expect("folder").map(|f| f.expect("file").path()).collect();
    files.sort();
    for file in files {
        let Some(stem) = file.file_name().and_then(|f| f.to_str()?.strip_suffix(".txt")) else {
            continue;
        };
        let (name, machine) = stem.split_once('.').expect("NAME.MACHINE.txt");
        let Some((_, run)) = MACHINES.iter().find(|(m, _)| *m == machine) else { continue };
        let mut got = String::new();
        let print = &mut |dump: TableDump| got += &format!("{dump}\n");
        run(&scenario(name), &Preset::Linux618.policy(), &options, print).expect("runs");
        found.extend(differences(stem, &read(&file), &got));
        compared += 1;
    }
    assert_eq!(compared, 43);
    let listed = listed();
    let show = |rows: Vec<&Row>| {
        rows.iter().map(|r| format!("{}\t{}\t{}", r.0, r.1, r.2)).collect::<Vec<_>>().join("\n")
    };
    let new = show(found.difference(&listed).collect());
    assert!(new.is_empty(), "differences without a reason:\n{new}");
    let gone = show(listed.difference(&found).collect());
    assert!(gone.is_empty(), "listed, but there are none:\n{gone}");
}

/// The comparison would see a bit, a page, a run and an observation.
#[test]
fn a_difference_is_seen() {
    let a = "line 1 observe p0 a:0+2\n   [0..1] PTE f0+0 attr=1 P\nline 2 observe p0 a:0+2\n   [0..1] PTE 0\n";
    assert!(differences("n", a, a).is_empty());
    for (from, to, n) in [
        ("attr=1 P", "attr=3 P,W", 2),
        ("f0+0", "f0+1", 2),
        ("[0..1] PTE f0+0 attr=1 P", "[0..0] PTE f0+0 attr=1 P\n   [1..1] PTE f0+1 attr=1 P", 3),
        ("line 2 observe p0 a:0+2\n   [0..1] PTE 0\n", "", 1),
    ] {
        assert_eq!(differences("n", a, &a.replacen(from, to, 1)).len(), n, "{from}");
    }
}
