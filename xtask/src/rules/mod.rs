//! `cargo xtask rules`: which rule is checked by which test.
//!
//! Rules are defined in `docs/src/rules/*.md`. A test cites what it checks in a
//! comment that starts with `Rules:`, after `///` or `//`:
//!
//! ```text
//! /// Rules: BATCH-21, GUPF-16..19, PAE-06/07. Rows: S-FK1.
//! ```
//!
//! Ranges and slashes stand for the ids in between, `row S-FK1` is the same as
//! `S-FK1`, and goldens, traces and known faults may be named in words (`golden
//! munmap_hole_64k`). A cited rule that no page defines fails the task, and so does
//! one that any other comment mentions, and a citation that stands above no test.
//!
//! `docs/src/rules/scope.md` lists the families and rules that are planned or out of
//! scope, with the reason, and those that are complete: a rule of theirs that no test
//! cites and that is not out of scope fails the task.
//!
//! The other way round, an ordering, fence or mutant site that a page in
//! `docs/src/protocols` names (`` `gup.grab.mb` ``) must exist in the code.

mod ids;
mod scope;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use self::ids::{definitions, known};
use self::scope::Scope;
use self::source::{TestItems, citations, mentions, sites_in_code, sites_in_page};
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
type Place = (PathBuf, usize, String);

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
    let scope = Scope::parse(&read(&dir.join("scope.md"))?);

    let mut sources = Vec::new();
    let mut tests = TestItems::default();
    for p in &ws.packages {
        for file in files(&p.dir, "rs")? {
            let shown = file.strip_prefix(&ws.root).unwrap_or(&file).to_owned();
            let source = read(&file)?;
            tests.read(&shown, &source);
            sources.push((shown, source));
        }
    }
    let mut cited: BTreeMap<&str, Vec<Place>> = BTreeMap::new();
    let mut bad = Vec::new();
    let mut sites = BTreeSet::new();
    for (path, source) in &sources {
        sites.extend(sites_in_code(source));
        let mut complain =
            |line, what: String| bad.push(format!("{}:{line}: {what}", path.display()));
        for (line, id) in mentions(source, &families) {
            if known(&defined, &id).is_none() {
                complain(line, format!("no rule {id}"));
            }
        }
        for c in citations(path, source, &tests) {
            if !c.of_test {
                complain(c.line, "the citation stands above no test".to_owned());
                continue;
            }
            for id in c.ids {
                match id.as_deref().map(|id| known(&defined, id)) {
                    Ok(Some(rule)) => {
                        cited.entry(rule).or_default().push((path.clone(), c.line, c.item.clone()));
                    }
                    Ok(None) => complain(c.line, format!("no rule {}", id.unwrap_or_default())),
                    Err(text) => complain(c.line, format!("`{text}` is no rule id")),
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
    for fault in scope.faults(&defined, |id| cited.contains_key(id)) {
        bad.push(format!("docs/src/rules/scope.md: {fault}"));
    }

    if !o.quiet {
        print(&defined, &cited, &scope, o);
    }
    for b in &bad {
        eprintln!("{b}");
    }
    let count = |f: &dyn Fn(&str) -> bool| defined.iter().filter(|id| f(id)).count();
    let out = count(&|id| !cited.contains_key(id) && scope.reason(id).is_some());
    let line = format!(
        "{} rules: {} cited, {out} planned or out of scope, {} not cited yet; {} in complete groups",
        defined.len(),
        cited.len(),
        defined.len() - cited.len() - out,
        count(&|id| scope.is_complete(id)),
    );
    println!("{line}");
    Ok(if bad.is_empty() {
        Outcome::Ok(line)
    } else {
        Outcome::Failed(format!("{} faults in rules, citations or sites", bad.len()))
    })
}

fn print(
    defined: &BTreeSet<String>,
    cited: &BTreeMap<&str, Vec<Place>>,
    scope: &Scope,
    o: &Options,
) {
    for id in defined.iter().filter(|id| o.filter.as_ref().is_none_or(|f| id.contains(f.as_str())))
    {
        match (cited.get(id.as_str()), scope.reason(id)) {
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
