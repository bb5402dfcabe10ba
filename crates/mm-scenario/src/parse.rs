//! From text to [`Scenario`].
//!
//! The parser resolves every name and range, so that a scenario that parses has no word left
//! that a runner could fail to understand. The first error ends it; it is one line that names
//! file, line and what was wrong.

use std::collections::HashMap;

use thiserror::Error;

use crate::op::{
    Advice, FileBacking, FolioSize, MapSource, OP_NAMES, Op, PinMethod, Prot, Sharing, ShmemPolicy,
    Target, ThpPolicy, UffdAction, UffdMode,
};
use crate::range::{
    FileId, MAX_PAGES, MAX_REGIONS, PAGE_SIZE, PinId, ProcId, Range, Region, RegionId, TouchOrder,
    WINDOW_PAGES,
};

/// The word before the page size, which is no operation: nothing happens there.
const PAGE_SIZE_WORD: &str = "pagesize";

/// Most scans of one `ksmscan`.
const MAX_SCANS: u64 = 1000;

/// A scenario, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// What errors call it: the name of its file.
    pub name: String,
    /// The operations in order.
    pub ops: Vec<Line>,
    /// The pragmas in order.
    pub pragmas: Vec<Pragma>,
    page_size: u64,
    setup: usize,
    regions: Vec<Region>,
    procs: Vec<String>,
    files: Vec<String>,
    pins: Vec<String>,
}

/// An operation and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Line in the file, from 1. Comments and empty lines count.
    pub line_no: u32,
    /// The operation.
    pub op: Op,
}

/// A line that starts with `#@`. A runner treats it as a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pragma {
    /// Line in the file, from 1.
    pub line_no: u32,
    /// The operation that it is about: the last one before it.
    pub about_line: Option<u32>,
    /// The word after `#@`, such as `seed003`.
    pub name: String,
    /// The rest of the line.
    pub text: String,
}

impl Pragma {
    /// The keys of an observation that the pragma replaces.
    ///
    /// # Errors
    /// The rest of the line is not a JSON object.
    pub fn replaced_keys(
        &self,
    ) -> Result<serde_json::Map<String, serde_json::Value>, serde_json::Error> {
        serde_json::from_str(&self.text)
    }
}

/// Why a text is not a scenario. Prints as one line, `FILE:LINE: what was wrong`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: {kind}")]
pub struct ParseError {
    /// The name given to [`Scenario::parse`].
    pub file: String,
    /// Line in the file, from 1.
    pub line: u32,
    /// What was wrong.
    pub kind: ParseErrorKind,
}

/// What was wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseErrorKind {
    /// The first word is no operation of the language.
    #[error("unknown operation {word}")]
    UnknownOp {
        /// The word, quoted.
        word: String,
    },
    /// The line ends too early.
    #[error("{op}: missing {what}")]
    Missing {
        /// The operation.
        op: &'static str,
        /// The argument.
        what: &'static str,
    },
    /// A word too many, or one that the operation does not know here.
    #[error("{op}: unexpected word {word}")]
    Unexpected {
        /// The operation.
        op: &'static str,
        /// The word, quoted.
        word: String,
    },
    /// An optional word stands twice.
    #[error("{op}: {word} given twice")]
    Twice {
        /// The operation.
        op: &'static str,
        /// The word, quoted.
        word: String,
    },
    /// Not a number where one belongs.
    #[error("{op}: bad {what} {word}: not a number")]
    BadNumber {
        /// The operation.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// The word, quoted.
        word: String,
    },
    /// A number outside its limits.
    #[error("{op}: {what} {word} out of range: {min} to {max}")]
    OutOfRange {
        /// The operation.
        op: &'static str,
        /// The argument, with its unit.
        what: &'static str,
        /// The word, quoted.
        word: String,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// A byte size that does not end at a page.
    #[error("{op}: {what} {word} is not a whole number of {page_size}-byte pages")]
    NotWholePages {
        /// The operation.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// The word, quoted.
        word: String,
        /// Bytes of a page.
        page_size: u64,
    },
    /// A word that is none of the choices.
    #[error("{op}: unknown {what} {word}, expected one of: {choices}")]
    UnknownWord {
        /// The operation.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// The word, quoted.
        word: String,
        /// The choices, separated by blanks.
        choices: String,
    },
    /// A name that does not stand for anything at this line.
    #[error("{op}: unknown {what} {word}")]
    UnknownName {
        /// The operation.
        op: &'static str,
        /// `process`, `region`, `file` or `pin`.
        what: &'static str,
        /// The name, quoted.
        word: String,
    },
    /// A word that cannot be a name: names are made of ASCII letters, digits, `_`, `-` and `.`.
    #[error("{op}: {word} cannot be a {what} name")]
    BadName {
        /// The operation.
        op: &'static str,
        /// `process`, `region`, `file` or `pin`.
        what: &'static str,
        /// The name, quoted.
        word: String,
    },
    /// A name is given to something new while the old one is still there.
    #[error("{op}: {what} {word} exists already")]
    Exists {
        /// The operation.
        op: &'static str,
        /// `process` or `file`.
        what: &'static str,
        /// The name, quoted.
        word: String,
    },
    /// Writing through a pin of a method that does not write.
    #[error("{op}: nothing is written through pin {word}, which is {method}")]
    ReadOnlyPin {
        /// The operation.
        op: &'static str,
        /// The pin, quoted.
        word: String,
        /// How it was taken.
        method: &'static str,
    },
    /// A range is not `R`, `R:a`, `R:a+n` or `R:a+n/s`.
    #[error("{op}: bad range {word}: expected R, R:a, R:a+n or R:a+n/s")]
    BadRange {
        /// The operation.
        op: &'static str,
        /// The range, quoted.
        word: String,
    },
    /// A range with a stride for an operation that takes none.
    #[error("{op}: no stride allowed, in range {word}")]
    Stride {
        /// The operation.
        op: &'static str,
        /// The range, quoted.
        word: String,
    },
    /// A region cannot start at another page than before.
    #[error("{op}: region {region} starts at page {at} of its window, not at {word}")]
    Moved {
        /// The operation.
        op: &'static str,
        /// The region, quoted.
        region: String,
        /// Where it starts.
        at: u64,
        /// The `at=` of this line.
        word: u64,
    },
    /// The page size, behind another operation.
    #[error("pagesize: only as the first operation")]
    LatePageSize,
    /// More regions than there are windows.
    #[error("{op}: more than {MAX_REGIONS} regions")]
    TooManyRegions {
        /// The operation.
        op: &'static str,
    },
}

use ParseErrorKind as Kind;

impl Scenario {
    /// Parses a scenario. `name` is what errors call it.
    ///
    /// # Errors
    /// The first line that is not an operation of the language, or names something that does
    /// not exist there.
    pub fn parse(name: &str, text: &str) -> Result<Self, ParseError> {
        Parser::new(name).run(text)
    }

    /// The set-up operations at the top, which are done before the first process is made.
    #[must_use]
    pub fn setup(&self) -> &[Line] {
        &self.ops[..self.setup]
    }

    /// Bytes of a page, on any machine that can run it.
    #[must_use]
    pub const fn page_size(&self) -> u64 {
        self.page_size
    }

    /// The operations after [`setup`](Self::setup).
    #[must_use]
    pub fn body(&self) -> &[Line] {
        &self.ops[self.setup..]
    }

    /// A region by its id.
    ///
    /// # Panics
    /// The id is of another scenario.
    #[must_use]
    pub fn region(&self, id: RegionId) -> &Region {
        &self.regions[id.index()]
    }

    /// All regions, by window.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        (0..).map(RegionId).zip(&self.regions)
    }

    /// The name of a process.
    ///
    /// # Panics
    /// The id is of another scenario.
    #[must_use]
    pub fn proc_name(&self, id: ProcId) -> &str {
        &self.procs[id.index()]
    }

    /// The name of a file.
    ///
    /// # Panics
    /// The id is of another scenario.
    #[must_use]
    pub fn file_name(&self, id: FileId) -> &str {
        &self.files[id.index()]
    }

    /// The name of a pin.
    ///
    /// # Panics
    /// The id is of another scenario.
    #[must_use]
    pub fn pin_name(&self, id: PinId) -> &str {
        &self.pins[id.index()]
    }
}

/// Quotes a word of the input: one line, printable, not too long.
fn quote(word: &str) -> String {
    const MAX_CHARS: usize = 40;
    let mut quoted = String::from("`");
    quoted.extend(word.chars().take(MAX_CHARS).flat_map(char::escape_debug));
    if word.chars().nth(MAX_CHARS).is_some() {
        quoted.push_str("...");
    }
    quoted.push('`');
    quoted
}

/// The words of a line after its operation.
struct Words<'a> {
    op: &'static str,
    page_size: u64,
    words: std::slice::Iter<'a, &'a str>,
}

impl<'a> Words<'a> {
    fn next(&mut self, what: &'static str) -> Result<&'a str, Kind> {
        self.words.next().copied().ok_or(Kind::Missing { op: self.op, what })
    }

    /// The next word, if there is one and `f` understands it.
    fn next_if<T>(&mut self, f: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let value = f(self.words.as_slice().first()?)?;
        self.words.next();
        Some(value)
    }

    /// Whether `word` comes next; it is taken then.
    fn flag(&mut self, word: &str) -> bool {
        self.next_if(|next| (next == word).then_some(())).is_some()
    }

    fn end(mut self) -> Result<(), Kind> {
        match self.words.next() {
            Some(word) => Err(self.unexpected(word)),
            None => Ok(()),
        }
    }

    fn unexpected(&self, word: &str) -> Kind {
        Kind::Unexpected { op: self.op, word: quote(word) }
    }

    fn unknown(&self, what: &'static str, word: &str, choices: String) -> Kind {
        Kind::UnknownWord { op: self.op, what, word: quote(word), choices }
    }

    fn choose<T: Copy>(
        &mut self,
        what: &'static str,
        all: &[T],
        word_of: impl Fn(T) -> &'static str,
    ) -> Result<T, Kind> {
        let word = self.next(what)?;
        all.iter().copied().find(|&value| word_of(value) == word).ok_or_else(|| {
            let choices: Vec<_> = all.iter().map(|&value| word_of(value)).collect();
            self.unknown(what, word, choices.join(" "))
        })
    }

    /// A plain decimal number within limits.
    fn number(&self, what: &'static str, word: &str, min: u64, max: u64) -> Result<u64, Kind> {
        let digits = decimal(word).ok_or_else(|| Kind::BadNumber {
            op: self.op,
            what,
            word: quote(word),
        })?;
        digits.filter(|value| (min..=max).contains(value)).ok_or_else(|| Kind::OutOfRange {
            op: self.op,
            what,
            word: quote(word),
            min,
            max,
        })
    }

    /// A COUNT: pages, or a byte size with `k`, `M` or `G`.
    fn count(&mut self, what: &'static str, min: u64, max: u64) -> Result<u64, Kind> {
        let word = self.next(what)?;
        let (digits, unit) = match word.as_bytes().last() {
            Some(b'k') => (&word[..word.len() - 1], 1 << 10),
            Some(b'M') => (&word[..word.len() - 1], 1 << 20),
            Some(b'G') => (&word[..word.len() - 1], 1 << 30),
            _ => (word, self.page_size),
        };
        let Some(number) = decimal(digits) else {
            return Err(Kind::BadNumber { op: self.op, what, word: quote(word) });
        };
        let bytes = number.and_then(|n| n.checked_mul(unit));
        if let Some(bytes) = bytes
            && !bytes.is_multiple_of(self.page_size)
        {
            let (op, page_size, word) = (self.op, self.page_size, quote(word));
            return Err(Kind::NotWholePages { op, what, word, page_size });
        }
        bytes
            .map(|bytes| bytes / self.page_size)
            .filter(|pages| (min..=max).contains(pages))
            .ok_or_else(|| Kind::OutOfRange { op: self.op, what, word: quote(word), min, max })
    }

    /// The V of a tag.
    fn value(&mut self, min: u64) -> Result<u16, Kind> {
        let word = self.next("value")?;
        let value = self.number("value", word, min, u64::from(u16::MAX))?;
        Ok(u16::try_from(value).unwrap_or(u16::MAX))
    }

    fn name(&mut self, what: &'static str) -> Result<&'a str, Kind> {
        let word = self.next(what)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if word.chars().all(plain) {
            Ok(word)
        } else {
            Err(Kind::BadName { op: self.op, what, word: quote(word) })
        }
    }

    fn prot(&mut self) -> Result<Prot, Kind> {
        let word = self.next("protection")?;
        if word == "none" {
            return Ok(Prot::empty());
        }
        let mut prot = Prot::empty();
        for letter in word.chars() {
            let right = match letter {
                'r' => Prot::READ,
                'w' => Prot::WRITE,
                'x' => Prot::EXEC,
                _ => Prot::empty(),
            };
            if right.is_empty() || prot.contains(right) {
                return Err(self.unknown("protection", word, "none or letters of rwx".into()));
            }
            prot |= right;
        }
        Ok(prot)
    }

    fn order(&mut self) -> TouchOrder {
        self.next_if(|word| (word == "rev").then_some(TouchOrder::Descending)).unwrap_or_default()
    }

    /// Reads optional words in any order until the line ends. `take` tells whether it knows the
    /// word, by its name for an option with a value.
    fn options(
        &mut self,
        mut take: impl FnMut(&Self, &str, Option<&str>) -> Result<bool, Kind>,
    ) -> Result<(), Kind> {
        let mut seen: Vec<&str> = Vec::new();
        while let Some(&word) = self.words.next() {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (word, None),
            };
            if !take(self, key, value)? {
                return Err(self.unexpected(word));
            }
            if seen.contains(&key) {
                return Err(Kind::Twice { op: self.op, word: quote(key) });
            }
            seen.push(key);
        }
        Ok(())
    }
}

/// `None`: not digits. `Some(None)`: too large for 64 bits.
fn decimal(word: &str) -> Option<Option<u64>> {
    let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| word.parse().ok())
}

struct Parser {
    scenario: Scenario,
    region_ids: HashMap<String, RegionId>,
    /// Size of each region: the largest extent given by `mmap` and `mremap ... move` since the
    /// last `mremap ... resize`.
    extents: Vec<u64>,
    live: HashMap<String, ProcId>,
    file_ids: HashMap<String, FileId>,
    pin_ids: HashMap<String, PinId>,
    /// How each process took each pin last.
    pin_methods: HashMap<(ProcId, PinId), PinMethod>,
}

impl Parser {
    fn new(name: &str) -> Self {
        Self {
            scenario: Scenario {
                name: name.to_owned(),
                ops: Vec::new(),
                pragmas: Vec::new(),
                page_size: PAGE_SIZE,
                setup: 0,
                regions: Vec::new(),
                procs: vec!["p0".to_owned()],
                files: Vec::new(),
                pins: Vec::new(),
            },
            region_ids: HashMap::new(),
            extents: Vec::new(),
            live: HashMap::from([("p0".to_owned(), ProcId::FIRST)]),
            file_ids: HashMap::new(),
            pin_ids: HashMap::new(),
            pin_methods: HashMap::new(),
        }
    }

    fn run(mut self, text: &str) -> Result<Scenario, ParseError> {
        for (line_no, line) in (1u32..).zip(text.lines()) {
            if let Some(pragma) = line.trim_start().strip_prefix("#@") {
                let (name, text) = pragma.split_once([' ', '\t']).unwrap_or((pragma, ""));
                self.scenario.pragmas.push(Pragma {
                    line_no,
                    about_line: self.scenario.ops.last().map(|line| line.line_no),
                    name: name.to_owned(),
                    text: text.trim().to_owned(),
                });
                continue;
            }
            let code = line.split_once('#').map_or(line, |(code, _)| code);
            let words: Vec<&str> =
                code.split([' ', '\t', '\r']).filter(|word| !word.is_empty()).collect();
            let Some((&word, rest)) = words.split_first() else { continue };
            let name = self.scenario.name.clone();
            let at = |kind| ParseError { file: name, line: line_no, kind };
            if word == PAGE_SIZE_WORD {
                let first = self.scenario.ops.is_empty() && self.scenario.page_size == PAGE_SIZE;
                let size =
                    page_size(rest).and_then(|n| first.then_some(n).ok_or(Kind::LatePageSize));
                self.scenario.page_size = size.map_err(at)?;
                continue;
            }
            let op = self.line(word, rest).map_err(at)?;
            if op.is_setup() && self.scenario.setup == self.scenario.ops.len() {
                self.scenario.setup += 1;
            }
            self.scenario.ops.push(Line { line_no, op });
        }
        Ok(self.scenario)
    }

    fn line(&mut self, word: &str, rest: &[&str]) -> Result<Op, Kind> {
        let op = OP_NAMES
            .iter()
            .copied()
            .find(|&name| name == word)
            .ok_or_else(|| Kind::UnknownOp { word: quote(word) })?;
        let page_size = self.scenario.page_size;
        let mut words = Words { op, page_size, words: rest.iter() };
        let parsed = self.op(&mut words)?;
        words.end()?;
        Ok(parsed)
    }

    fn op(&mut self, w: &mut Words<'_>) -> Result<Op, Kind> {
        Ok(match w.op {
            "thp" => {
                let size = folio_size(w, 2)?;
                let policy = w.choose("policy", policies(size, ThpPolicy::ALL), ThpPolicy::word)?;
                Op::Thp { size, policy }
            }
            "shmem" => {
                let size = folio_size(w, 1)?;
                let all = ShmemPolicy::ALL;
                let policy = w.choose("policy", policies(size, all), ShmemPolicy::word)?;
                Op::Shmem { size, policy }
            }
            "swap" => match w.next_if(|word| (word == "off").then_some(())) {
                Some(()) => Op::Swap { pages: None },
                None => Op::Swap { pages: Some(w.count("size in pages", 1, MAX_PAGES)?) },
            },
            "file" => self.file(w)?,
            "fork" => self.fork(w)?,
            "exit" => {
                let name = w.next("process")?;
                let proc = self.live.remove(name).ok_or_else(|| unknown(w, "process", name))?;
                Op::Exit { proc }
            }
            "mmap" => self.mmap(w)?,
            "munmap" => Op::Munmap { proc: self.proc(w)?, range: self.range(w)? },
            "mprotect" => {
                Op::Mprotect { proc: self.proc(w)?, range: self.range(w)?, prot: w.prot()? }
            }
            "mremap" => self.mremap(w)?,
            "madvise" => {
                let (proc, range) = (self.proc(w)?, self.range(w)?);
                Op::Madvise { proc, range, advice: w.choose("advice", Advice::ALL, Advice::word)? }
            }
            "mlock" => {
                let (proc, range) = (self.proc(w)?, self.range(w)?);
                let onfault = w.flag("onfault");
                Op::Mlock { proc, range, onfault }
            }
            "munlock" => Op::Munlock { proc: self.proc(w)?, range: self.range(w)? },
            "clearrefs" => Op::ClearRefs { proc: self.proc(w)? },
            "read" => Op::Read { proc: self.proc(w)?, range: self.strided(w)?, order: w.order() },
            "write" => {
                let (proc, range, value) = (self.proc(w)?, self.strided(w)?, w.value(1)?);
                Op::Write { proc, range, value, order: w.order() }
            }
            "fill" => {
                let (proc, range, value) = (self.proc(w)?, self.strided(w)?, w.value(1)?);
                Op::Fill { proc, range, value, order: w.order() }
            }
            "peek" => Op::Peek { proc: self.proc(w)?, range: self.strided(w)? },
            "poke" => Op::Poke { proc: self.proc(w)?, range: self.strided(w)?, value: w.value(1)? },
            "pvread" => Op::Pvread { proc: self.proc(w)?, range: self.strided(w)? },
            "pvwrite" => {
                Op::Pvwrite { proc: self.proc(w)?, range: self.strided(w)?, value: w.value(1)? }
            }
            "dread" => {
                let (proc, range, file) = (self.proc(w)?, self.range(w)?, self.file_ref(w)?);
                Op::Dread { proc, range, file, file_page: file_page(w)? }
            }
            "dwrite" => {
                let (proc, range, file) = (self.proc(w)?, self.range(w)?, self.file_ref(w)?);
                Op::Dwrite { proc, range, file, file_page: file_page(w)? }
            }
            "pin" => {
                let (proc, range) = (self.proc(w)?, self.range(w)?);
                let name = w.name("pin")?;
                let method = w.choose("pin method", PinMethod::ALL, PinMethod::word)?;
                let pin = self.pin_named(name);
                self.pin_methods.insert((proc, pin), method);
                Op::Pin { proc, range, pin, method }
            }
            "unpin" => Op::Unpin { proc: self.proc(w)?, pin: self.pin(w)? },
            "pinread" => Op::Pinread { proc: self.proc(w)?, pin: self.pin(w)? },
            "pinwrite" => {
                let proc = self.proc(w)?;
                Op::Pinwrite { proc, pin: self.pin_to_write(w, proc)?, value: w.value(1)? }
            }
            "uffd" => self.uffd(w)?,
            "ksmscan" => {
                let scans = match w.words.next() {
                    Some(word) => w.number("number of scans", word, 1, MAX_SCANS)?,
                    None => 3,
                };
                Op::Ksmscan { scans: u32::try_from(scans).unwrap_or(u32::MAX) }
            }
            "fsync" => Op::Fsync { file: self.file_ref(w)? },
            "drop" => Op::Drop { file: self.file_ref(w)? },
            "truncate" => Op::Truncate {
                file: self.file_ref(w)?,
                pages: w.count("size in pages", 0, MAX_PAGES)?,
            },
            "punch" => self.punch(w)?,
            "note" => {
                let words: Vec<_> = w.words.by_ref().copied().collect();
                Op::Note { text: words.join(" ") }
            }
            "observe" => {
                let mut targets = vec![Target { proc: self.proc(w)?, range: self.range(w)? }];
                while !w.words.as_slice().is_empty() {
                    targets.push(Target { proc: self.proc(w)?, range: self.range(w)? });
                }
                Op::Observe { targets }
            }
            "faults" => Op::Faults { proc: self.proc(w)? },
            "content" => Op::Content { proc: self.proc(w)?, range: self.strided(w)? },
            "expect" => {
                let (proc, range, value) = (self.proc(w)?, self.strided(w)?, w.value(0)?);
                let fill = w.flag("fill");
                Op::Expect { proc, range, value, fill }
            }
            "fcontent" => Op::Fcontent { file: self.file_ref(w)? },
            "events" => Op::Events { proc: self.proc(w)? },
            "vmas" => Op::Vmas { proc: self.proc(w)?, region: self.region(w)? },
            "stats" => Op::Stats,
            other => return Err(Kind::UnknownOp { word: quote(other) }),
        })
    }

    fn file(&mut self, w: &mut Words<'_>) -> Result<Op, Kind> {
        let name = w.name("file")?;
        if self.file_ids.contains_key(name) {
            return Err(Kind::Exists { op: w.op, what: "file", word: quote(name) });
        }
        let backing = w.choose("backing", FileBacking::ALL, FileBacking::word)?;
        let pages = w.count("size in pages", 0, MAX_PAGES)?;
        let (mut fill, mut bulk) = (None, false);
        w.options(|w, key, value| {
            match (key, value) {
                ("fill", Some(value)) => {
                    let value = w.number("fill value", value, 1, u64::from(u16::MAX))?;
                    fill = u16::try_from(value).ok();
                }
                ("bulk", None) => bulk = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let file = FileId(index(self.scenario.files.len()));
        self.scenario.files.push(name.to_owned());
        self.file_ids.insert(name.to_owned(), file);
        Ok(Op::File { file, backing, pages, fill, bulk })
    }

    fn fork(&mut self, w: &mut Words<'_>) -> Result<Op, Kind> {
        let name = w.name("process")?;
        if self.live.contains_key(name) {
            return Err(Kind::Exists { op: w.op, what: "process", word: quote(name) });
        }
        let parent = self.proc(w)?;
        let child = ProcId(index(self.scenario.procs.len()));
        self.scenario.procs.push(name.to_owned());
        self.live.insert(name.to_owned(), child);
        Ok(Op::Fork { child, parent })
    }

    fn mmap(&mut self, w: &mut Words<'_>) -> Result<Op, Kind> {
        let proc = self.proc(w)?;
        let name = w.name("region")?;
        let pages = w.count("size in pages", 1, WINDOW_PAGES)?;
        let source = w.next("anon or file:F")?;
        let anon = source == "anon";
        let file = match source.strip_prefix("file:") {
            Some(file) => Some(self.file_named(w, file)?),
            None if anon => None,
            None => return Err(w.unknown("mapping", source, "anon file:F".into())),
        };
        let prot = w.prot()?;
        let sharing = w.choose("sharing", Sharing::ALL, Sharing::word)?;
        let (mut at, mut first_page, mut noreserve, mut shstk) = (None, 0, false, false);
        let stack = anon && sharing == Sharing::Private && prot == Prot::READ | Prot::WRITE;
        w.options(|w, key, value| {
            match (key, value) {
                ("at", Some(value)) => {
                    at = Some(w.number("at", value, 0, WINDOW_PAGES - pages)?);
                }
                ("foff", Some(value)) if !anon => {
                    first_page = w.number("file page", value, 0, MAX_PAGES)?;
                }
                ("noreserve", None) if anon => noreserve = true,
                ("shstk", None) if stack => shstk = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let region = self.region_named(w, name, at)?;
        self.grow(w, region, pages)?;
        let source = file.map_or(MapSource::Anon, |file| MapSource::File { file, first_page });
        Ok(Op::Mmap { proc, region, pages, source, prot, sharing, noreserve, shstk })
    }

    fn mremap(&mut self, w: &mut Words<'_>) -> Result<Op, Kind> {
        let proc = self.proc(w)?;
        let range_word = w.next("range")?;
        match w.next("move or resize")? {
            "move" => {
                let range = self.range_of(w, range_word, Strides::Refused)?;
                let name = w.name("region")?;
                let (mut at, mut to_page, mut dontunmap) = (None, 0, false);
                w.options(|w, key, value| {
                    match (key, value) {
                        ("at", Some(value)) => {
                            at = Some(w.number("at", value, 0, WINDOW_PAGES - range.pages)?);
                        }
                        ("to", Some(value)) => {
                            to_page = w.number("to", value, 0, WINDOW_PAGES - range.pages)?;
                        }
                        ("dontunmap", None) => dontunmap = true,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                let to = self.region_named(w, name, at)?;
                self.grow(w, to, to_page + range.pages)?;
                Ok(Op::MremapMove { proc, range, to, to_page, dontunmap })
            }
            "resize" => {
                let region = self.known_region(w, range_word)?;
                let pages = w.count("size in pages", 1, WINDOW_PAGES)?;
                // A resize gives the extent anew: the goldens show it after shrinking.
                self.extents[region.index()] = 0;
                self.grow(w, region, pages)?;
                Ok(Op::MremapResize { proc, region, pages })
            }
            word => Err(w.unknown("action", word, "move resize".into())),
        }
    }

    fn uffd(&mut self, w: &mut Words<'_>) -> Result<Op, Kind> {
        let (proc, range) = (self.proc(w)?, self.range(w)?);
        let action = match w.next("action")? {
            "register" => {
                let mut mode = UffdMode::empty();
                w.options(|_, key, value| {
                    let flag = UffdMode::WORDS.iter().find(|(word, _)| *word == key);
                    match (flag, value) {
                        (Some((_, flag)), None) => mode |= *flag,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                UffdAction::Register(mode)
            }
            "protect" => UffdAction::Protect,
            "unprotect" => UffdAction::Unprotect,
            "unregister" => UffdAction::Unregister,
            "copy" => UffdAction::Copy { value: w.value(1)?, wp: w.flag("wp") },
            "zeropage" => UffdAction::ZeroPage,
            "continue" => UffdAction::Continue { wp: w.flag("wp") },
            "poison" => UffdAction::Poison,
            "move" => {
                let to = self.region(w)?;
                let (mut to_page, mut holes) = (0, false);
                w.options(|w, key, value| {
                    match (key, value) {
                        ("to", Some(value)) => {
                            to_page = w.number("to", value, 0, WINDOW_PAGES - range.pages)?;
                        }
                        ("holes", None) => holes = true,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                UffdAction::Move { to, to_page, holes }
            }
            word => {
                let choices = "register protect unprotect unregister \
                               copy zeropage continue poison move";
                return Err(w.unknown("action", word, choices.into()));
            }
        };
        Ok(Op::Uffd { proc, range, action })
    }

    fn punch(&mut self, w: &mut Words<'_>) -> Result<Op, Kind> {
        let file = self.file_ref(w)?;
        let word = w.next("range a+n")?;
        let Some((first, pages)) = word.split_once('+') else {
            return Err(Kind::BadRange { op: w.op, word: quote(word) });
        };
        let first_page = w.number("first page", first, 0, MAX_PAGES - 1)?;
        let pages = w.number("number of pages", pages, 1, MAX_PAGES - first_page)?;
        Ok(Op::Punch { file, first_page, pages })
    }

    fn proc(&self, w: &mut Words<'_>) -> Result<ProcId, Kind> {
        let name = w.next("process")?;
        self.live.get(name).copied().ok_or_else(|| unknown(w, "process", name))
    }

    fn region(&self, w: &mut Words<'_>) -> Result<RegionId, Kind> {
        let name = w.next("region")?;
        self.known_region(w, name)
    }

    fn known_region(&self, w: &Words<'_>, name: &str) -> Result<RegionId, Kind> {
        self.region_ids.get(name).copied().ok_or_else(|| unknown(w, "region", name))
    }

    /// The region that `mmap` or `mremap ... move` names; a new name gets the next window.
    fn region_named(
        &mut self,
        w: &Words<'_>,
        name: &str,
        at: Option<u64>,
    ) -> Result<RegionId, Kind> {
        if let Some(&id) = self.region_ids.get(name) {
            let here = self.scenario.regions[id.index()].at;
            return match at {
                Some(at) if at != here => {
                    Err(Kind::Moved { op: w.op, region: quote(name), at: here, word: at })
                }
                _ => Ok(id),
            };
        }
        if self.scenario.regions.len() == MAX_REGIONS {
            return Err(Kind::TooManyRegions { op: w.op });
        }
        let window = index(self.scenario.regions.len());
        let id = RegionId(window);
        self.region_ids.insert(name.to_owned(), id);
        let (name, at) = (name.to_owned(), at.unwrap_or(0));
        self.scenario.regions.push(Region { name, window, at, reach: 0 });
        self.extents.push(0);
        Ok(id)
    }

    /// Notes that the region reaches to `pages`.
    fn grow(&mut self, w: &Words<'_>, region: RegionId, pages: u64) -> Result<(), Kind> {
        let max = self.scenario.region(region).max_pages();
        if pages > max {
            return Err(Kind::OutOfRange {
                op: w.op,
                what: "end page of the region",
                word: quote(&pages.to_string()),
                min: 1,
                max,
            });
        }
        let extent = &mut self.extents[region.index()];
        *extent = pages.max(*extent);
        self.reach(region, pages);
        Ok(())
    }

    /// Notes that pages below `end` are named.
    fn reach(&mut self, region: RegionId, end: u64) {
        let reach = &mut self.scenario.regions[region.index()].reach;
        *reach = end.max(*reach);
    }

    fn range(&mut self, w: &mut Words<'_>) -> Result<Range, Kind> {
        let word = w.next("range")?;
        self.range_of(w, word, Strides::Refused)
    }

    fn strided(&mut self, w: &mut Words<'_>) -> Result<Range, Kind> {
        let word = w.next("range")?;
        self.range_of(w, word, Strides::Taken)
    }

    fn range_of(&mut self, w: &Words<'_>, word: &str, strides: Strides) -> Result<Range, Kind> {
        let (name, pages) = match word.split_once(':') {
            Some((name, pages)) => (name, Some(pages)),
            None => (word, None),
        };
        let region = self.known_region(w, name)?;
        let Some(pages) = pages else {
            let pages = self.extents[region.index()];
            return Ok(Range { region, first: 0, pages, stride: 1 });
        };
        let (pages, stride) = match pages.split_once('/') {
            Some((pages, stride)) => (pages, Some(stride)),
            None => (pages, None),
        };
        let (first, pages) = match pages.split_once('+') {
            Some((first, pages)) => (first, Some(pages)),
            None => (pages, None),
        };
        let malformed = |part: &str| decimal(part).is_none();
        if malformed(first)
            || pages.is_some_and(malformed)
            || stride.is_some_and(|stride| malformed(stride) || pages.is_none())
        {
            return Err(Kind::BadRange { op: w.op, word: quote(word) });
        }
        if stride.is_some() && strides == Strides::Refused {
            return Err(Kind::Stride { op: w.op, word: quote(word) });
        }
        let max = self.scenario.region(region).max_pages();
        let first = w.number("first page", first, 0, max - 1)?;
        let pages = w.number("number of pages", pages.unwrap_or("1"), 1, max - first)?;
        let stride = w.number("stride", stride.unwrap_or("1"), 1, WINDOW_PAGES)?;
        self.reach(region, first + pages);
        Ok(Range { region, first, pages, stride })
    }

    fn file_ref(&self, w: &mut Words<'_>) -> Result<FileId, Kind> {
        let name = w.next("file")?;
        self.file_named(w, name)
    }

    fn file_named(&self, w: &Words<'_>, name: &str) -> Result<FileId, Kind> {
        self.file_ids.get(name).copied().ok_or_else(|| unknown(w, "file", name))
    }

    fn pin(&self, w: &mut Words<'_>) -> Result<PinId, Kind> {
        let name = w.next("pin")?;
        self.pin_ids.get(name).copied().ok_or_else(|| unknown(w, "pin", name))
    }

    /// A pin that `proc`, if it took it, may write through.
    fn pin_to_write(&self, w: &mut Words<'_>, proc: ProcId) -> Result<PinId, Kind> {
        let pin = self.pin(w)?;
        match self.pin_methods.get(&(proc, pin)) {
            None | Some(PinMethod::Uring) => Ok(pin),
            Some(method) => {
                let word = quote(&self.scenario.pins[pin.index()]);
                Err(Kind::ReadOnlyPin { op: w.op, word, method: method.word() })
            }
        }
    }

    fn pin_named(&mut self, name: &str) -> PinId {
        let next = PinId(index(self.scenario.pins.len()));
        *self.pin_ids.entry(name.to_owned()).or_insert_with(|| {
            self.scenario.pins.push(name.to_owned());
            next
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Strides {
    Taken,
    Refused,
}

/// Ids count lines of one text, which is far shorter than 2^32 lines.
fn index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn unknown(w: &Words<'_>, what: &'static str, name: &str) -> Kind {
    Kind::UnknownName { op: w.op, what, word: quote(name) }
}

fn file_page(w: &mut Words<'_>) -> Result<u64, Kind> {
    let mut page = 0;
    w.options(|w, key, value| match (key, value) {
        ("foff", Some(value)) => {
            page = w.number("file page", value, 0, MAX_PAGES)?;
            Ok(true)
        }
        _ => Ok(false),
    })?;
    Ok(page)
}

/// The sizes of pages that there are.
const PAGE_SIZES: [u64; 3] = [PAGE_SIZE, 16 << 10, 64 << 10];

/// The size behind the word.
fn page_size(rest: &[&str]) -> Result<u64, Kind> {
    let mut w = Words { op: PAGE_SIZE_WORD, page_size: PAGE_SIZE, words: rest.iter() };
    let word = w.next("size")?;
    let name = |bytes: u64| format!("{}kB", bytes >> 10);
    let size = PAGE_SIZES.into_iter().find(|bytes| name(*bytes) == word).ok_or_else(|| {
        let sizes: Vec<_> = PAGE_SIZES.into_iter().map(name).collect();
        w.unknown("size", word, sizes.join(" "))
    })?;
    w.end()?;
    Ok(size)
}

/// A folio size from `min_order` up to a PMD, or the top knob.
fn folio_size(w: &mut Words<'_>, min_order: u8) -> Result<FolioSize, Kind> {
    // As many pages as a page table has entries of eight bytes.
    let pmd_order = (w.page_size.ilog2() - 3) as u8;
    let word = w.next("folio size")?;
    let name = |order: u8| format!("{}kB", w.page_size >> 10 << order);
    if word == "global" {
        return Ok(FolioSize::Global);
    }
    (min_order..=pmd_order).find(|&order| name(order) == word).map(FolioSize::Order).ok_or_else(
        || {
            let sizes: Vec<_> = (min_order..=pmd_order).map(name).collect();
            w.unknown("folio size", word, format!("global {}", sizes.join(" ")))
        },
    )
}

/// The policies of a size: `inherit` makes no sense at the top knob.
fn policies<T: Policy>(size: FolioSize, all: &'static [T]) -> &'static [T] {
    if size == FolioSize::Global { T::TOP } else { all }
}

trait Policy: Sized + 'static {
    const TOP: &'static [Self];
}

impl Policy for ThpPolicy {
    const TOP: &'static [Self] = &[Self::Always, Self::Madvise, Self::Never];
}

impl Policy for ShmemPolicy {
    const TOP: &'static [Self] = &[Self::Always, Self::WithinSize, Self::Advise, Self::Never];
}
