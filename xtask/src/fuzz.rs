//! `cargo xtask fuzz`: `mmlab pte decode` over values that nobody thought of.
//!
//! A fuzzer that the pinned toolchain has all parts of: it changes values of a corpus, gives
//! them to the command in batches, and keeps what it answers in a new way (another kind of
//! entry, a fault that no such entry had). Any value must be explained: the command ends well, says
//! one JSON object per value, and its fields are the 64 bits of the value, each once.
//!
//! `xtask/corpus/pte.txt` is the corpus, a line per value: format, level, value.
//! `--keep` adds what was new.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::cmd::{self, Error};
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Levels by name; a format has some of them.
const LEVELS: [&str; 5] = ["pte", "pmd", "pud", "p4d", "pgd"];
/// Values per call of the command.
const BATCH: usize = 256;

/// Options of the `fuzz` task.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Batches per format and level.
    #[arg(long, default_value_t = 20)]
    pub rounds: u32,
    /// What the changes start from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Add values that were answered in a new way to the corpus.
    #[arg(long)]
    pub keep: bool,
}

/// Where an entry stands: format and level.
type Place = (String, String);

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    cmd::run(&mut ws.cargo(&["build", "--quiet", "--release", "--package", "mmlab"]))?;
    let mmlab = ws.target.join("release/mmlab");
    let file = ws.root.join("xtask/corpus/pte.txt");
    let text = fs::read_to_string(&file).map_err(Error::file(&file))?;
    let mut corpus =
        parse(&text).map_err(|line| Error::Input(format!("{}: {line}", file.display())))?;
    let places = places(&mmlab)?;
    let mut random = Random(o.seed);
    let (mut answers, mut tried) = (BTreeSet::new(), 0);
    let mut new = String::new();
    for round in 0..=o.rounds {
        for place in &places {
            let known = corpus.entry(place.clone()).or_default();
            // First the corpus itself, so that only what it lacks is new.
            let values: Vec<u64> = if round == 0 {
                known.clone()
            } else {
                (0..BATCH).map(|_| random.change(known)).collect()
            };
            for chunk in values.chunks(BATCH) {
                match ask(&mmlab, place, chunk)? {
                    Ok(said) => {
                        tried += chunk.len();
                        for (value, answer) in chunk.iter().zip(said) {
                            let before = answers.len();
                            answers.extend(answer.into_iter().map(|a| (place.clone(), a)));
                            if answers.len() > before && round > 0 {
                                known.push(*value);
                                _ = writeln!(new, "{} {} {value:016x}", place.0, place.1);
                            }
                        }
                    }
                    Err(why) => return Ok(Outcome::Failed(why)),
                }
            }
        }
    }
    if o.keep {
        fs::write(&file, text + &new).map_err(Error::file(&file))?;
    }
    let line = format!(
        "{tried} values, {} formats and levels, {} kinds of answers, {} of them not in the corpus",
        places.len(),
        answers.len(),
        new.lines().count()
    );
    println!("{line}");
    Ok(Outcome::Ok(line))
}

/// The values of a corpus; the first line that is none.
fn parse(text: &str) -> Result<BTreeMap<Place, Vec<u64>>, String> {
    let mut corpus: BTreeMap<Place, Vec<u64>> = BTreeMap::new();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let words: Vec<_> = line.split(' ').collect();
        let [arch, level, value] = words[..] else { return Err(line.to_owned()) };
        let value = u64::from_str_radix(value, 16).map_err(|_| line.to_owned())?;
        corpus.entry((arch.to_owned(), level.to_owned())).or_default().push(value);
    }
    Ok(corpus)
}

fn decode(mmlab: &PathBuf, (arch, level): &Place, values: &[u64]) -> Command {
    let mut c = Command::new(mmlab);
    c.args(["pte", "decode", "--json", "--arch", arch, "--level", level]);
    c.args(values.iter().map(|v| format!("{v:x}")));
    c
}

/// All formats with their levels, as the command itself tells them.
fn places(mmlab: &PathBuf) -> Result<Vec<Place>, Error> {
    let mut c = Command::new(mmlab);
    c.args(["pte", "decode"]);
    let out = c.output().map_err(|e| cmd::spawn_error(&c, &e))?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let names = said.trim().split_once("one of ").map(|(_, names)| names.to_owned());
    let names = names.ok_or_else(|| Error::Input(format!("mmlab lists no formats: {said}")))?;
    let mut places = Vec::new();
    for place in names.split(", ").flat_map(|n| LEVELS.map(|l| (n.to_owned(), l.to_owned()))) {
        let mut c = decode(mmlab, &place, &[0]);
        if c.output().map_err(|e| cmd::spawn_error(&c, &e))?.status.success() {
            places.push(place);
        }
    }
    Ok(places)
}

/// What may be new about an answer: the kind of entry, alone and with each of its faults.
type Answer = Vec<String>;

/// How the command answers each of `values`; or why that is no answer.
fn ask(
    mmlab: &PathBuf,
    place: &Place,
    values: &[u64],
) -> Result<Result<Vec<Answer>, String>, Error> {
    let mut c = decode(mmlab, place, values);
    let out = c.output().map_err(|e| cmd::spawn_error(&c, &e))?;
    let said = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<_> = said.lines().collect();
    // What was printed before an end stands, so the next value is the one.
    let wrong = |i: usize, why: &str| {
        let value = values.get(i).map_or("the end".into(), |v| format!("{v:#018x}"));
        Ok(Err(format!("{} {} {value}: {why}", place.0, place.1)))
    };
    if !out.status.success() || lines.len() != values.len() {
        return wrong(
            lines.len(),
            &format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr)),
        );
    }
    let mut answers = Vec::new();
    for (i, (line, value)) in lines.into_iter().zip(values).enumerate() {
        match serde_json::from_str(line).map_err(|e| e.to_string()).and_then(|v| answer(&v, *value))
        {
            Ok(answer) => answers.push(answer),
            Err(why) => return wrong(i, &why),
        }
    }
    Ok(Ok(answers))
}

/// An answer, if it is one for `value`.
fn answer(said: &Value, value: u64) -> Result<Answer, String> {
    let number = |v: &Value| {
        let text = v.as_str().and_then(|s| s.strip_prefix("0x"));
        text.and_then(|s| u64::from_str_radix(s, 16).ok()).ok_or_else(|| format!("no number: {v}"))
    };
    if number(&said["raw"])? != value {
        return Err(format!("explained as {}", said["raw"]));
    }
    let (mut covered, mut again) = (0u64, 0u64);
    for field in said["fields"].as_array().ok_or("no fields")? {
        let part = |name: &str| field[name].as_u64().ok_or_else(|| format!("no {name}: {field}"));
        let (shift, width) = (part("shift")?, part("width")?);
        let mask = if width < 64 { ((1 << width) - 1) << shift } else { !0 };
        if width == 0 || covered & mask != 0 {
            return Err(format!("bits told twice: {field}"));
        }
        covered |= mask;
        again |= number(&field["value"])? << shift;
    }
    if covered != !0 || again != value {
        return Err(format!("fields of {covered:#x} that make {again:#x}"));
    }
    let kind = said["meaning"]["kind"].as_str().ok_or("no kind")?;
    let mut answer = vec![kind.to_owned()];
    for fault in said["faults"].as_array().ok_or("no faults")? {
        answer.push(format!("{kind}; {}", fault["what"].as_str().ok_or("no words for a fault")?));
    }
    Ok(answer)
}

/// Numbers that look random and are the same each time (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
    /// A value of the corpus with some bits changed, or any other.
    fn change(&mut self, known: &[u64]) -> u64 {
        let pick = self.next();
        let Some(&start) = known.get(pick as usize % known.len().max(1)) else { return pick };
        match pick >> 60 {
            0 => self.next(),
            1 => !start,
            2 => start & self.next(),
            3 => start | self.next() & self.next() & self.next(),
            n => (0..n / 3).fold(start, |v, _| v ^ 1 << (self.next() & 63)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_is_read() {
        let corpus =
            parse("# text\n\na pte 00ff\na pte 1\nb pmd 8000000000000000\n").expect("reads");
        let of = |a: &str, l: &str| corpus[&(a.to_owned(), l.to_owned())].clone();
        assert_eq!((of("a", "pte"), of("b", "pmd")), (vec![0xff, 1], vec![1 << 63]));
        for bad in ["a pte", "a pte xyz", "a pte 1 2"] {
            assert_eq!(parse(bad), Err(bad.to_owned()));
        }
        assert!(parse(include_str!("../corpus/pte.txt")).is_ok_and(|c| c.len() > 20));
    }

    #[test]
    fn wrong_answers_are_seen() {
        let good = r#"{"raw":"0x5","meaning":{"kind":"leaf"},"fields":[{"shift":0,"width":60,"value":"0x5"},{"shift":60,"width":4,"value":"0x0"}],"faults":[{"what":"f"}]}"#;
        let of = |text: &str, value| answer(&serde_json::from_str(text).expect("JSON"), value);
        assert_eq!(of(good, 5), Ok(vec!["leaf".to_owned(), "leaf; f".to_owned()]));
        assert!(of(good, 4).is_err());
        for (from, to) in
            [("60,\"v", "59,\"v"), ("\"shift\":60", "\"shift\":59"), ("0x0", "0x1"), ("kind", "x")]
        {
            assert!(of(&good.replace(from, to), 5).is_err(), "{to}");
        }
    }
}
