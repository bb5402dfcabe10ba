//! `cargo xtask rules`: which rule is checked by which test.
//!
//! Rules are defined in `docs/src/rules/*.md`. A test cites what it checks in a
//! comment that starts with `Rules:`, after `///`, `//!` or `//`:
//!
//! ```text
//! /// Rules: BATCH-21, GUPF-16..19, PAE-06/07.
//! ```
//!
//! Ranges and slashes stand for the ids in between, `row S-FK1` is the same as
//! `S-FK1`, and goldens, traces and known faults may be named in words (`golden
//! munmap_hole_64k`). A cited rule that no page defines fails the task, and so does one that any other comment mentions. `docs/src/rules/scope.md` lists the families and
//! rules that are planned or out of scope, with the reason.
//!
//! The other way round, an ordering, fence or mutant site that a page in
//! `docs/src/protocols` names (`` `gup.grab.mb` ``) must exist in the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::cmd::Error;
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Options of the `rules` task.
#[derive(clap::Args, Debug, Default)]
pub struct Options {
    /// Show only rules whose id contains this.
    pub filter: Option<String>,
    /// Show only rules that are in scope and cited by nothing.
    #[arg(long)]
    pub untested: bool,
    /// Print only the totals.
    #[arg(long)]
    pub quiet: bool,
}

impl Options {
    /// What `test-all` runs.
    pub fn quiet() -> Self {
        Options { quiet: true, ..Options::default() }
    }
}

/// Where a rule is cited: file, line, and the item below the comment.
type Citation = (PathBuf, usize, String);

/// What a citation may name without an id.
const IN_WORDS: [&str; 3] = ["golden", "trace ", "known fault "];

/// An id, or the text that stands where one should.
type Cited = Result<String, String>;

/// Runs the task.
pub fn run(ws: &Workspace, o: &Options) -> Result<Outcome, Error> {
    let dir = ws.root.join("docs/src/rules");
    let mut defined = BTreeSet::new();
    for page in files(&dir, "md")? {
        defined.extend(definitions(&read(&page)?));
    }
    if defined.is_empty() {
        return Ok(Outcome::Failed(format!("no rules in {}", dir.display())));
    }
    let families: BTreeSet<&str> =
        defined.iter().filter_map(|id| Some(id.rsplit_once('-')?.0)).collect();
    let scope = scope(&read(&dir.join("scope.md"))?);

    let mut cited: BTreeMap<String, Vec<Citation>> = BTreeMap::new();
    let mut bad = Vec::new();
    let mut sites = BTreeSet::new();
    for p in &ws.packages {
        for file in files(&p.dir, "rs")? {
            let shown = file.strip_prefix(&ws.root).unwrap_or(&file).to_owned();
            let source = read(&file)?;
            sites.extend(sites_in_code(&source));
            for (line, id) in mentions(&source, &families) {
                if known(&defined, &id).is_none() {
                    bad.push(format!("{}:{line}: no rule {id}", shown.display()));
                }
            }
            for (line, item, ids) in citations(&source) {
                for id in ids {
                    match id {
                        Ok(id) if known(&defined, &id).is_some() => {
                            let id = known(&defined, &id).unwrap_or(&id).to_owned();
                            cited.entry(id).or_default().push((shown.clone(), line, item.clone()));
                        }
                        Ok(id) => bad.push(format!("{}:{line}: no rule {id}", shown.display())),
                        Err(text) => {
                            bad.push(format!("{}:{line}: `{text}` is no rule id", shown.display()))
                        }
                    }
                }
            }
        }
    }

    for page in files(&ws.root.join("docs/src/protocols"), "md")? {
        let shown = page.strip_prefix(&ws.root).unwrap_or(&page);
        for site in sites_in_page(&read(&page)?).difference(&sites) {
            bad.push(format!("{}: no site {site} in the code", shown.display()));
        }
    }

    if !o.quiet {
        print(&defined, &cited, &scope, o);
    }
    for b in &bad {
        eprintln!("{b}");
    }
    let out = defined
        .iter()
        .filter(|id| !cited.contains_key(*id) && reason(&scope, id).is_some())
        .count();
    let line = format!(
        "{} rules: {} cited, {out} planned or out of scope, {} not cited yet",
        defined.len(),
        cited.len(),
        defined.len() - cited.len() - out
    );
    println!("{line}");
    Ok(if bad.is_empty() {
        Outcome::Ok(line)
    } else {
        Outcome::Failed(format!("{} citations of rules or sites that do not exist", bad.len()))
    })
}

fn print(
    defined: &BTreeSet<String>,
    cited: &BTreeMap<String, Vec<Citation>>,
    scope: &[(String, String)],
    o: &Options,
) {
    for id in defined.iter().filter(|id| o.filter.as_ref().is_none_or(|f| id.contains(f.as_str())))
    {
        match (cited.get(id), reason(scope, id)) {
            (Some(_), _) | (None, Some(_)) if o.untested => {}
            (Some(places), _) => {
                println!("{id}");
                for (file, line, item) in places {
                    println!("    {}:{line} {item}", file.display());
                }
            }
            (None, Some(reason)) => println!("{id}\n    ({reason})"),
            (None, None) => println!("{id}\n    (not cited)"),
        }
    }
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::file(path))
}

/// All files below `dir` with this extension, in order, without build output.
fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(d) = open.pop() {
        for entry in fs::read_dir(&d).map_err(Error::file(&d))? {
            let path = entry.map_err(Error::file(&d))?.path();
            if path.is_dir() {
                if path.file_name().is_some_and(|n| n != "target") {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether `s` looks like `BATCH-21`, `P-RACE-03`, `GUPS-11b` or `S-CW3`.
fn is_id(s: &str) -> bool {
    let Some((family, last)) = s.rsplit_once('-') else { return false };
    !family.is_empty()
        && family.starts_with(|c: char| c.is_ascii_uppercase())
        && family.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-')
        && last.contains(|c: char| c.is_ascii_digit())
        && last.chars().all(|c| c.is_ascii_alphanumeric())
}

/// The rule that `id` names: itself, or for a case of it (`F-RACE-24b`) the rule.
fn known<'a>(defined: &'a BTreeSet<String>, id: &str) -> Option<&'a str> {
    let whole = id.trim_end_matches(|c: char| c.is_ascii_lowercase());
    defined.get(id).or_else(|| defined.get(whole)).map(String::as_str)
}

/// The rules that a page defines: a bold id at the start of a line or list
/// item, an `INV-` item, the first cell of a table row, or a heading.
fn definitions(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter_map(|l| {
            let item = l.strip_prefix("- ").unwrap_or(l);
            let rest = item
                .strip_prefix("**")
                .or_else(|| l.strip_prefix("### "))
                .or_else(|| l.strip_prefix("| "))
                .or_else(|| item.starts_with("INV-").then_some(item))?;
            let id = rest.split([' ', '*', '|']).next()?;
            is_id(id).then(|| id.to_owned())
        })
        .collect()
}

/// The citations in a source file: line number, the item that follows, and
/// the ids; what is no id comes back as the text that was found instead.
fn citations(source: &str) -> Vec<(usize, String, Vec<Cited>)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    let mut i = 0;
    while i < lines.len() {
        let Some(first) = comment(lines[i]).and_then(|c| c.strip_prefix("Rules:")) else {
            i += 1;
            continue;
        };
        let start = i;
        let mut text = first.trim().to_owned();
        // A citation ends with a full stop; a line that ends with a comma goes on.
        while text.ends_with(',') {
            let Some(more) = lines.get(i + 1).and_then(|l| comment(l)) else { break };
            i += 1;
            text.push(' ');
            text.push_str(more);
        }
        i += 1;
        found.push((start + 1, item_below(&lines[i..]), expand(&text)));
    }
    found
}

/// The ids of known families that comments mention, but for the lines that
/// [`citations`] reads.
fn mentions(source: &str, families: &BTreeSet<&str>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (i, line) in source.lines().enumerate() {
        let text = comment(line).filter(|c| !c.starts_with("Rules:")).unwrap_or_default();
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
            let known = word.rsplit_once('-').is_some_and(|(f, _)| families.contains(f));
            if known && is_id(word) {
                found.push((i + 1, word.to_owned()));
            }
        }
    }
    found
}

/// The text of a comment line.
fn comment(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    Some(rest.strip_prefix(['/', '!']).unwrap_or(rest).trim())
}

/// The function, type or module that the next line of code declares.
fn item_below(lines: &[&str]) -> String {
    let code = lines
        .iter()
        .map(|l| l.trim())
        .find(|l| !l.is_empty() && !l.starts_with("//") && !l.starts_with('#'));
    let mut words = code.unwrap_or_default().split(|c: char| !(c.is_alphanumeric() || c == '_'));
    while let Some(w) = words.next() {
        if matches!(w, "fn" | "struct" | "enum" | "mod" | "trait" | "impl" | "const" | "type") {
            return words.next().unwrap_or_default().to_owned();
        }
    }
    String::new()
}

/// `A-01, B-02..04, C-05/06.` as single ids.
fn expand(text: &str) -> Vec<Cited> {
    // Free text behind explains; it cites nothing.
    let end =
        [". ", ": ", " ("].iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
    let text = text[..end].trim_end_matches(['.', ':']);
    let mut ids = Vec::new();
    for part in text.split([',', ';']).map(str::trim).filter(|p| !p.is_empty()) {
        if IN_WORDS.iter().any(|w| part.starts_with(w)) {
            continue;
        }
        let part = part.strip_prefix("rows ").or(part.strip_prefix("row ")).unwrap_or(part);
        match expand_part(part) {
            Some(more) => ids.extend(more.into_iter().map(Ok)),
            None => ids.push(Err(part.to_owned())),
        }
    }
    ids
}

fn expand_part(part: &str) -> Option<Vec<String>> {
    if let Some((from, to)) = part.split_once("..") {
        let (family, first) = from.rsplit_once('-')?;
        let to = to.trim_start_matches('=');
        let last = to.rsplit_once('-').map_or(Some(to), |(f, n)| (f == family).then_some(n))?;
        let (a, b) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        let width = first.len();
        return (is_id(from) && a <= b)
            .then(|| (a..=b).map(|n| format!("{family}-{n:0width$}")).collect());
    }
    let mut pieces = part.split('/');
    let head = pieces.next()?;
    let (family, _) = head.rsplit_once('-')?;
    let mut ids = vec![head.to_owned()];
    ids.extend(
        pieces.map(|p| if p.contains('-') { p.to_owned() } else { format!("{family}-{p}") }),
    );
    ids.iter().all(|id| is_id(id)).then_some(ids)
}

/// The sites that a source file names: the literals in `ord!("…"`, `fence!("…"`,
/// `fence_after_rmw!("…"` and `mutant!("…"`.
fn sites_in_code(source: &str) -> BTreeSet<String> {
    source
        .split("!(")
        .zip(source.split("!(").skip(1))
        .filter(|(before, _)| {
            ["ord", "fence", "fence_after_rmw", "mutant"].iter().any(|m| before.ends_with(m))
        })
        .filter_map(|(_, after)| after.trim_start().strip_prefix('"')?.split('"').next())
        .map(str::to_owned)
        .collect()
}

/// The sites that a page names: words in back quotes of the form `a.b` or `a.b_c.d`.
fn sites_in_page(page: &str) -> BTreeSet<String> {
    let is_site = |s: &&str| {
        s.contains('.')
            && s.split('.')
                .all(|w| !w.is_empty() && w.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    };
    page.split('`').skip(1).step_by(2).filter(is_site).map(str::to_owned).collect()
}

/// The rows of the table in scope.md: id or family, and the state with its reason.
fn scope(page: &str) -> Vec<(String, String)> {
    page.lines()
        .filter_map(|l| {
            let mut cells = l.strip_prefix('|')?.split('|').map(str::trim);
            let (ids, state, why) = (cells.next()?, cells.next()?, cells.next()?);
            let is_row = ids.starts_with(|c: char| c.is_ascii_uppercase())
                && matches!(state, "planned" | "out of scope");
            is_row.then(|| (ids.to_owned(), format!("{state}: {why}")))
        })
        .collect()
}

/// Why `id` needs no test yet: the first row that names it, its family
/// (`A64`, `S-UF`), or a list of such (`COLL, KSM-01`).
fn reason<'a>(scope: &'a [(String, String)], id: &str) -> Option<&'a str> {
    let of_family = |family: &str| {
        !is_id(family)
            && id.strip_prefix(family).is_some_and(|rest| {
                rest.strip_prefix('-').unwrap_or(rest).starts_with(|c: char| c.is_ascii_digit())
            })
    };
    let named = |row: &str| {
        row.split(',')
            .map(str::trim)
            .any(|r| of_family(r) || expand_part(r).is_some_and(|ids| ids.iter().any(|i| i == id)))
    };
    scope.iter().find(|(ids, _)| named(ids)).map(|(_, why)| why.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(ids: &[&str]) -> Vec<Cited> {
        ids.iter().map(|i| Ok((*i).to_owned())).collect()
    }

    #[test]
    fn all_shapes_of_a_definition() {
        let page = "**PTE-01** text\n\n**GUPF-03 (surprise)** x\n- **FOLIO-26** y\n- INV-2 z\n| S-CW3 | a | b |\n\
                    ### MM-016 Fast walk\n**Sources and tags.** no\n| ID | Setup |\nPTE-09 is only mentioned\n- **GUPS-11b** w";
        let ids: Vec<String> = definitions(page).into_iter().collect();
        assert_eq!(ids, ["FOLIO-26", "GUPF-03", "GUPS-11b", "INV-2", "MM-016", "PTE-01", "S-CW3"]);
    }

    #[test]
    fn lists_ranges_and_slashes() {
        assert_eq!(
            expand("BATCH-21, GUPF-16..18, PAE-06/07."),
            ok(&["BATCH-21", "GUPF-16", "GUPF-17", "GUPF-18", "PAE-06", "PAE-07"])
        );
        assert_eq!(expand("P-RACE-01..P-RACE-02"), ok(&["P-RACE-01", "P-RACE-02"]));
        assert_eq!(expand("MM-008/MM-009. The second half is S-CW3's."), ok(&["MM-008", "MM-009"]));
        assert_eq!(expand("row S-FK1, trace F, golden fork_64k."), ok(&["S-FK1"]));
        assert_eq!(expand("CONT-18: which blocks, and when."), ok(&["CONT-18"]));
    }

    #[test]
    fn what_is_no_id_is_reported() {
        assert_eq!(expand("the batch rules"), [Err("the batch rules".to_owned())]);
        assert_eq!(expand("A-05..02"), [Err("A-05..02".to_owned())]);
    }

    #[test]
    fn citations_have_line_and_item() {
        let source = "//! Rules: ACC-01.\n\n/// Rules: PTE-01,\n/// PTE-02.\n#[test]\nfn keeps_dirty() {}\n// Rules: PTE-03\n";
        let c = citations(source);
        assert_eq!(c.len(), 3);
        assert_eq!(c[0].0, 1);
        assert_eq!(c[1], (3, "keeps_dirty".to_owned(), ok(&["PTE-01", "PTE-02"])));
        assert_eq!(c[2], (7, String::new(), ok(&["PTE-03"])));
    }

    #[test]
    fn a_case_of_a_rule_is_the_rule() {
        let defined = BTreeSet::from(["F-RACE-24".to_owned(), "GUPS-11b".to_owned()]);
        assert_eq!(known(&defined, "F-RACE-24b"), Some("F-RACE-24"));
        assert_eq!(known(&defined, "GUPS-11b"), Some("GUPS-11b"));
        assert_eq!(known(&defined, "F-RACE-25"), None);
    }

    #[test]
    fn mentions_are_of_known_families() {
        let families = BTreeSet::from(["PTE", "P-RACE"]);
        let source =
            "/// Inverted (PTE-08, X86-64), see P-RACE-03.\n// Rules: PTE-01.\nlet s = \"PTE-99\";";
        let ids: Vec<String> = mentions(source, &families).into_iter().map(|(_, id)| id).collect();
        assert_eq!(ids, ["PTE-08", "P-RACE-03"]);
    }

    #[test]
    fn sites_are_found_on_both_sides() {
        let code = "a.load(ord!(\"word.read\", Acquire));\nfence!(\n    \"scan.rmb\",\n    Acquire\n);\n\
                    if mutant!(\"gup.no_check\") { println!(\"no.site\"); }";
        let names = |s: BTreeSet<String>| s.into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(names(sites_in_code(code)), "gup.no_check scan.rmb word.read");
        let page = "| G3 | `word.read` | see `mm_gup::fast` and `loom_*.rs`, `scan.rmb` |";
        assert_eq!(names(sites_in_page(page)), "scan.rmb word.read");
    }

    #[test]
    fn scope_by_family_and_by_id() {
        let s = scope(
            "| Rules | State | Reason |\n|---|---|---|\n| A64, CONT-09..10 | planned | mm-arm64 |\n",
        );
        assert_eq!(reason(&s, "A64-03"), Some("planned: mm-arm64"));
        assert_eq!(reason(&s, "CONT-10"), Some("planned: mm-arm64"));
        assert_eq!(reason(&s, "CONT-11"), None);
    }
}
