//! Every handed scenario parses, and every golden line is what this crate's types say.

use std::collections::BTreeMap;

use mm_scenario::corpus::{self, Entry};
use mm_scenario::observe::{
    Body, FolioFlags, History, MappedPage, Observe, PageFact, PageState, Record, Run, RunState,
};
use mm_scenario::{Op, ProcId, RegionId, Scenario, Target};

fn entries() -> Vec<Entry> {
    corpus::handed().expect("the handed scenarios are in the repository")
}

/// All golden texts, with the name of their file.
fn goldens() -> Vec<(String, String)> {
    let mut goldens = Vec::new();
    for entry in entries() {
        goldens.push((format!("{}.json", entry.name), entry.golden.expect("each has a golden")));
        if let Some(seed003) = entry.seed003 {
            goldens.push((format!("{}.seed003.json", entry.name), seed003));
        }
    }
    goldens
}

#[test]
fn every_scenario_parses() {
    let entries = entries();
    assert_eq!(entries.len(), 130);
    for entry in &entries {
        Scenario::parse(&entry.name, &entry.text).unwrap();
        assert!(entry.manifest.is_some(), "{} is in the manifest", entry.name);
    }
    assert_eq!(entries.iter().filter(|entry| entry.seed003.is_some()).count(), 26);
    assert_eq!(entries.iter().filter(|entry| entry.is_model()).count(), 71);
}

#[test]
fn every_golden_line_is_read_and_written_back() {
    let mut lines = 0;
    for (name, text) in goldens() {
        for json in text.lines() {
            let record = Record::from_json(json).unwrap_or_else(|e| panic!("{name}: {e}: {json}"));
            assert_eq!(record.to_json(), json, "{name}");
            lines += 1;
        }
    }
    assert!(lines > 1000, "only {lines} lines");
}

type PageAt = (ProcId, RegionId, u64);

/// Frame numbers that are made up. A folio that nothing ties to an earlier observation gets a
/// new block; when a later one shows that two blocks are one folio, `moved` tells where the
/// younger begins, and the scenario is gone through again.
struct Frames {
    moved: BTreeMap<u64, u64>,
    blocks: u64,
    last_seen: BTreeMap<PageAt, u64>,
}

impl Frames {
    const BLOCK: u64 = 1 << 10;

    fn new_block(&mut self) -> u64 {
        self.blocks += 1;
        self.moved.get(&self.blocks).copied().unwrap_or(self.blocks * Self::BLOCK)
    }

    /// Notes that the folios at two heads are one.
    fn unite(&mut self, a: u64, b: u64) {
        let (old, young) = (a.min(b), a.max(b));
        let offset = young % Self::BLOCK;
        assert!(self.moved.insert(young / Self::BLOCK, old - offset).is_none());
    }
}

/// Facts that an observation of a golden file can have been made of.
#[derive(Default)]
struct Facts {
    pages: BTreeMap<PageAt, PageFact>,
    flags: BTreeMap<u64, FolioFlags>,
}

impl Facts {
    /// `None` if a folio turned out to be at two places; `frames` has then learnt better.
    fn of(
        scenario: &Scenario,
        targets: &[Target],
        golden: &Observe,
        frames: &mut Frames,
    ) -> Option<Self> {
        let mut pages = Vec::new();
        for (&Target { proc, range }, target) in targets.iter().zip(&golden.t) {
            assert_eq!(target.p, scenario.proc_name(proc));
            assert_eq!(target.r, scenario.region(range.region).name);
            let span = (target.at, target.n);
            assert_eq!(span, (range.first, range.pages), "{}", scenario.name);
            for run in &target.runs {
                pages.extend((0..run.n).map(|k| ((proc, range.region, run.at + k), run, k)));
            }
        }
        let folio_and_index = |run: &Run, k: u64| match run.o? {
            0 => Some((run.f? + k, run.i?)),
            _ => Some((run.f?, run.i? + k)),
        };

        // Where the folio was: told by any page that is equal to one that was seen before.
        let mut heads: BTreeMap<u64, u64> = BTreeMap::new();
        for (at, run, k) in &pages {
            if run.eq == Some(1) {
                let (f, i) = folio_and_index(run, *k).unwrap();
                let head = frames.last_seen[at] - i;
                let known = *heads.entry(f).or_insert(head);
                if known != head {
                    frames.unite(known, head);
                    return None;
                }
            }
        }
        let mut facts = Self::default();
        let mut slot = 0;
        for &(at, run, k) in &pages {
            let state = match run.s {
                RunState::None => PageState::None,
                RunState::Marker => PageState::Marker,
                RunState::Zero => PageState::Zero,
                RunState::HugeZero => PageState::HugeZero,
                RunState::Guard => PageState::Guard,
                RunState::Swap => {
                    slot += if k == 0 { 2 } else { 1 };
                    PageState::Swap { slot }
                }
                RunState::Present => {
                    let (f, index) = folio_and_index(run, k).unwrap();
                    let head = *heads.entry(f).or_insert_with(|| frames.new_block());
                    frames.last_seen.insert(at, head + index);
                    PageState::Present(MappedPage {
                        kind: run.k.unwrap(),
                        order: run.o.unwrap(),
                        head,
                        index,
                        mapcount: run.mc.unwrap(),
                        exclusive: run.x == Some(1),
                    })
                }
            };
            let fact = PageFact { state, pmd: run.pmd == Some(1), wp: run.wp == Some(1) };
            facts.pages.insert(at, fact);
        }
        for run in golden.folios.iter().flatten() {
            for f in run.f..run.f + run.n {
                facts.flags.insert(heads[&f], run.fl);
            }
        }
        Some(facts)
    }
}

/// Makes the observations of a golden file again. `None`: to be tried again.
fn make_again(
    scenario: &Scenario,
    golden: &BTreeMap<u32, Record>,
    frames: &mut Frames,
) -> Option<u32> {
    let mut history = History::default();
    let mut observations = 0;
    for line in &scenario.ops {
        history.note(&line.op);
        match &line.op {
            &Op::Fork { child, parent } => {
                let of_parent = frames.last_seen.iter().filter(|((proc, ..), _)| *proc == parent);
                let inherited: Vec<_> = of_parent
                    .map(|(&(_, region, page), &frame)| ((child, region, page), frame))
                    .collect();
                frames.last_seen.extend(inherited);
            }
            Op::Observe { targets } => {
                let golden = &golden[&line.line_no];
                let Body::Observe(observe) = &golden.body else { panic!("{golden:?}") };
                let facts = Facts::of(scenario, targets, observe, frames)?;
                let made = history.observe(
                    scenario,
                    targets,
                    |proc, region, page| facts.pages[&(proc, region, page)],
                    |head| facts.flags[&head],
                );
                let made = Record::new(line, made).to_json();
                assert_eq!(made, golden.to_json(), "{}:{}", scenario.name, line.line_no);
                observations += 1;
            }
            _ => {}
        }
    }
    Some(observations)
}

/// Takes every golden observation apart into facts per page and has the builder make it again:
/// folio numbers, runs, `eq`, folio runs. Which pages have an `eq` is the history's own doing.
#[test]
fn observations_are_made_again_from_facts_per_page() {
    let mut observations = 0;
    for entry in entries() {
        let scenario = Scenario::parse(&entry.name, &entry.text).unwrap();
        let golden = Record::read_all(&entry.golden.unwrap()).unwrap();
        let golden = golden.into_iter().map(|record| (record.line, record)).collect();
        let mut moved = BTreeMap::new();
        observations += loop {
            let mut frames = Frames { moved, blocks: 0, last_seen: BTreeMap::new() };
            if let Some(made) = make_again(&scenario, &golden, &mut frames) {
                break made;
            }
            moved = frames.moved;
        };
    }
    assert!(observations > 300, "only {observations} observations");
}

/// The pragmas turn the mainline golden into the derived one.
#[test]
fn pragmas_give_the_derived_goldens() {
    let mut pragmas = 0;
    for entry in entries() {
        let scenario = Scenario::parse(&entry.name, &entry.text).unwrap();
        for pragma in scenario.pragmas.iter().filter(|pragma| pragma.name == "seed003") {
            pragmas += 1;
            let line = pragma.about_line.unwrap();
            let of_line = |text: &str| {
                let text = text
                    .lines()
                    .map(|json| serde_json::from_str::<serde_json::Map<_, _>>(json).unwrap());
                text.into_iter().find(|record| record["line"] == line).unwrap()
            };
            let mut record = of_line(entry.golden.as_ref().unwrap());
            for (key, value) in pragma.replaced_keys().unwrap() {
                record.insert(key, value);
            }
            record.insert("differs-by-design".into(), "seed003".into());
            let derived = of_line(entry.seed003.as_ref().expect("pragmas have a derived golden"));
            assert_eq!(record, derived, "{} line {line}", entry.name);
        }
    }
    assert_eq!(pragmas, 5);
}

/// Joining the pages of a golden content run again gives the run.
#[test]
fn content_is_made_again_from_words() {
    use mm_scenario::observe::{Tag, content_runs, fill_word, tag_word};
    let mut lines = 0;
    for (name, text) in goldens() {
        for record in Record::read_all(&text).unwrap() {
            let runs = match &record.body {
                Body::Content(content) => &content.c,
                Body::PinContent(content) => &content.c,
                Body::FileContent(content) => &content.c,
                _ => continue,
            };
            lines += 1;
            let value = |v: u64| u16::try_from(v).unwrap();
            let words = runs.iter().flat_map(|run| {
                (run.0..run.0 + run.1).map(move |page| {
                    let word = match run.2 {
                        Tag::Zero => 0,
                        Tag::Own(v) => tag_word(value(v), page),
                        Tag::Other { value: v, index } => tag_word(value(v), index),
                        Tag::Fill(v) => fill_word(value(v)),
                    };
                    (page, word)
                })
            });
            assert_eq!(&content_runs(words), runs, "{name} line {}", record.line);
        }
    }
    assert!(lines > 100, "only {lines} lines");
}
