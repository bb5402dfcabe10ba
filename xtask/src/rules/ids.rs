//! Rule ids: their shape, where pages define them, and lists of them.

use std::collections::BTreeSet;

/// An id, or the text that stands where one should.
pub type Cited = Result<String, String>;

/// What a citation may name without an id.
const IN_WORDS: [&str; 3] = ["golden", "trace ", "known fault "];

/// What the further sentences of a citation may list.
const MORE: [&str; 3] = ["Rows: ", "Cases: ", "Races: "];

/// Whether `s` looks like `BATCH-21`, `P-RACE-03`, `GUPS-11b` or `S-CW3`.
pub fn is_id(s: &str) -> bool {
    let Some((family, last)) = s.rsplit_once('-') else { return false };
    !family.is_empty()
        && family.starts_with(|c: char| c.is_ascii_uppercase())
        && family.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-')
        && last.contains(|c: char| c.is_ascii_digit())
        && last.chars().all(|c| c.is_ascii_alphanumeric())
}

/// The rule that `id` names: itself, or for a case of it (`F-RACE-24b`) the rule.
pub fn known<'a>(defined: &'a BTreeSet<String>, id: &str) -> Option<&'a str> {
    let whole = id.trim_end_matches(|c: char| c.is_ascii_lowercase());
    defined.get(id).or_else(|| defined.get(whole)).map(String::as_str)
}

/// The rules that a page defines: a bold id at the start of a line or list
/// item, an `INV-` item, the first cell of a table row, or a heading.
pub fn definitions(page: &str) -> BTreeSet<String> {
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

/// `A-01, B-02..04, C-05/06. Rows: S-FK1.` as single ids.
pub fn expand(text: &str) -> Vec<Cited> {
    let lists = text.split(". ").enumerate().filter_map(|(i, sentence)| match i {
        0 => Some(sentence),
        // Other sentences explain; they cite nothing.
        _ => MORE.iter().find_map(|head| sentence.trim_start().strip_prefix(head)),
    });
    lists.flat_map(expand_list).collect()
}

fn expand_list(text: &str) -> Vec<Cited> {
    // So does what stands behind a colon or in brackets.
    let end = [": ", " ("].iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
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

/// One item of a list: an id, a range `A-02..04`, or `A-02/03`.
pub fn expand_part(part: &str) -> Option<Vec<String>> {
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
    fn further_sentences_may_list() {
        assert_eq!(
            expand("ANON-06. Rows: S-AN2, S-AN4. Cases: MM-039. That is all."),
            ok(&["ANON-06", "S-AN2", "S-AN4", "MM-039"])
        );
        assert_eq!(expand("PMDF-02, FAULT-14. Trace G."), ok(&["PMDF-02", "FAULT-14"]));
        assert_eq!(
            expand("ANON-06. Rows: all"),
            [ok(&["ANON-06"]), vec![Err("all".into())]].concat()
        );
    }

    #[test]
    fn what_is_no_id_is_reported() {
        assert_eq!(expand("the batch rules"), [Err("the batch rules".to_owned())]);
        assert_eq!(expand("A-05..02"), [Err("A-05..02".to_owned())]);
    }

    #[test]
    fn a_case_of_a_rule_is_the_rule() {
        let defined = BTreeSet::from(["F-RACE-24".to_owned(), "GUPS-11b".to_owned()]);
        assert_eq!(known(&defined, "F-RACE-24b"), Some("F-RACE-24"));
        assert_eq!(known(&defined, "GUPS-11b"), Some("GUPS-11b"));
        assert_eq!(known(&defined, "F-RACE-25"), None);
    }
}
