//! `docs/src/rules/scope.md`: what no test cites on purpose, and which groups
//! are complete.

use std::collections::BTreeSet;

use super::ids::{expand_part, is_id};

/// Why no test cites a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Planned,
    OutOfScope,
}

/// The tables of the page.
#[derive(Debug)]
pub struct Scope {
    /// The first cell of a row, its state, and state and reason as one text.
    rows: Vec<(String, State, String)>,
    /// The first cells of the table below the heading `Complete`.
    complete: Vec<String>,
}

impl Scope {
    /// Reads the page.
    pub fn parse(page: &str) -> Self {
        let mut scope = Scope { rows: Vec::new(), complete: Vec::new() };
        let mut heading = "";
        for line in page.lines() {
            if let Some(text) = line.strip_prefix("## ") {
                heading = text.trim();
            }
            let Some(row) = line.strip_prefix('|') else { continue };
            let mut cells = row.split('|').map(str::trim);
            let ids = cells.next().unwrap_or_default();
            // Neither the header nor the line below it.
            if ids == "Rules" || !ids.starts_with(|c: char| c.is_ascii_uppercase()) {
                continue;
            }
            if heading == "Complete" {
                scope.complete.push(ids.to_owned());
                continue;
            }
            let state = match cells.next() {
                Some("planned") => State::Planned,
                Some("out of scope") => State::OutOfScope,
                _ => continue,
            };
            let why = cells.next().unwrap_or_default();
            let text = match state {
                State::Planned => format!("planned: {why}"),
                State::OutOfScope => format!("out of scope: {why}"),
            };
            scope.rows.push((ids.to_owned(), state, text));
        }
        scope
    }

    /// Why `id` needs no test: the first row that names it, its family
    /// (`A64`, `S-UF`), or a list of such (`COLL, KSM-01`).
    pub fn reason(&self, id: &str) -> Option<&str> {
        self.rows.iter().find(|(ids, ..)| names(ids, id)).map(|(.., text)| text.as_str())
    }

    /// Whether a test of `id` may not be missing.
    pub fn is_complete(&self, id: &str) -> bool {
        self.complete.iter().any(|ids| names(ids, id))
    }

    /// What is wrong with the page: rules of complete groups that neither a
    /// test cites nor a row puts out of scope, rules that are complete and planned at
    /// once, rows without a reason or without a rule.
    pub fn faults(&self, defined: &BTreeSet<String>, cited: impl Fn(&str) -> bool) -> Vec<String> {
        let mut faults = Vec::new();
        for id in defined.iter().filter(|id| self.is_complete(id)) {
            let in_rows = |state| self.rows.iter().any(|(ids, s, _)| *s == state && names(ids, id));
            if in_rows(State::Planned) {
                faults.push(format!("{id} is planned, but its group is declared complete"));
            } else if !cited(id) && !in_rows(State::OutOfScope) {
                faults.push(format!("{id}: no test cites it, but its group is declared complete"));
            }
        }
        for (ids, _, text) in &self.rows {
            if text.ends_with(": ") {
                faults.push(format!("{ids}: the row gives no reason"));
            }
        }
        for part in
            self.rows.iter().map(|(ids, ..)| ids).chain(&self.complete).flat_map(|r| parts(r))
        {
            if !defined.iter().any(|id| names(part, id)) {
                faults.push(format!("{part}: the row names no rule"));
            }
        }
        faults
    }
}

fn parts(row: &str) -> impl Iterator<Item = &str> {
    row.split(',').map(str::trim)
}

/// Whether the first cell of a row names `id` or its family.
fn names(row: &str, id: &str) -> bool {
    let of_family = |family: &str| {
        !is_id(family)
            && id.strip_prefix(family).is_some_and(|rest| {
                rest.strip_prefix('-').unwrap_or(rest).starts_with(|c: char| c.is_ascii_digit())
            })
    };
    parts(row)
        .any(|r| of_family(r) || expand_part(r).is_some_and(|ids| ids.iter().any(|i| i == id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Scope\n\n## Complete\n\n| Rules | Tests |\n|---|---|\n| PIN-01..02, S-UF | mm-gup |\n\n\
        ## Others\n\n| Rules | State | Reason |\n|---|---|---|\n| A64, CONT-09..10 | planned | mm-arm64 |\n\
        | PIN-02 | out of scope | history |\n";

    fn faults(page: &str, cited: &[&str]) -> Vec<String> {
        let defined = ["A64-01", "CONT-09", "CONT-10", "PIN-01", "PIN-02", "PIN-03", "S-UF1"]
            .map(String::from);
        Scope::parse(page).faults(&BTreeSet::from(defined), |id| cited.contains(&id))
    }

    #[test]
    fn rows_name_families_and_ids() {
        let s = Scope::parse(PAGE);
        assert_eq!(s.reason("A64-03"), Some("planned: mm-arm64"));
        assert_eq!(s.reason("CONT-10"), Some("planned: mm-arm64"));
        assert_eq!(s.reason("CONT-11"), None);
        assert_eq!(s.reason("PIN-02"), Some("out of scope: history"));
        assert!(s.is_complete("PIN-01") && s.is_complete("S-UF7"));
        assert!(!s.is_complete("PIN-03") && !s.is_complete("S-U7"));
    }

    #[test]
    fn a_complete_group_is_cited_or_out_of_scope() {
        assert_eq!(faults(PAGE, &["PIN-01", "S-UF1"]), [""; 0]);
        let missing = "no test cites it, but its group is declared complete";
        assert_eq!(
            faults(PAGE, &["PIN-02", "PIN-03"]),
            [format!("PIN-01: {missing}"), format!("S-UF1: {missing}")]
        );
    }

    #[test]
    fn nothing_is_complete_and_planned() {
        let page = format!("{PAGE}| PIN | planned | moving |\n");
        let planned = "is planned, but its group is declared complete";
        assert_eq!(
            faults(&page, &["PIN-01", "PIN-02", "S-UF1"]),
            [format!("PIN-01 {planned}"), format!("PIN-02 {planned}")]
        );
    }

    #[test]
    fn rows_have_a_reason_and_a_rule() {
        let page =
            format!("{PAGE}| PIN-03 | out of scope |\n| PIM, A64-77 | planned | typing errors |\n");
        assert_eq!(
            faults(&page, &["PIN-01", "S-UF1"]),
            [
                "PIN-03: the row gives no reason",
                "PIM: the row names no rule",
                "A64-77: the row names no rule"
            ]
        );
    }
}
