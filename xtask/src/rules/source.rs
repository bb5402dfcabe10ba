//! What source files say about rules: citations, mentions, sites; and which
//! items are tests.

use std::collections::BTreeSet;
use std::path::Path;

use super::ids::{Cited, expand, is_id};

/// A comment that starts with `Rules:`.
#[derive(Debug, PartialEq)]
pub struct Citation {
    /// Its line, from 1.
    pub line: usize,
    /// The name of the item below.
    pub item: String,
    /// The ids; what is no id comes as the text that was found instead.
    pub ids: Vec<Cited>,
    /// Whether the item below is a test or part of one.
    pub of_test: bool,
}

/// What makes an item a test, read from all files before citations are judged.
#[derive(Debug, Default)]
pub struct TestItems {
    /// Macros that expand to functions with `#[test]`.
    macros: BTreeSet<String>,
    /// Words of test code, but for those that a `fn` declares and methods.
    words: BTreeSet<String>,
}

impl TestItems {
    /// Learns what `source` declares and, if it is test code, what it uses.
    pub fn read(&mut self, path: &Path, source: &str) {
        let lines: Vec<&str> = source.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let Some(name) = line.trim_start().strip_prefix("macro_rules! ") else { continue };
            let ends = |l: &&&str| indent(l) > indent(line) || l.trim().is_empty();
            if lines[i + 1..].iter().take_while(ends).any(|l| l.contains("#[test]")) {
                self.macros.insert(word(name).to_owned());
            }
        }
        for line in lines.iter().skip(test_code(path, &lines)) {
            let code = line.split("//").next().unwrap_or_default();
            let mut before = ' ';
            let mut declares = false;
            for w in code.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_')) {
                let name = word(w);
                if !name.is_empty() && !declares && before != '.' {
                    self.words.insert(name.to_owned());
                }
                declares = name == "fn" || declares && name.is_empty();
                before = w.chars().last().unwrap_or(' ');
            }
        }
    }

    /// Whether the item whose first line of code is `lines[at]` is a test or a
    /// part of one: a function with `#[test]`, what stands in a macro that makes
    /// tests, an assertion of the compiler, a law of formats, or a function of test code that
    /// other test code names.
    fn is_test(&self, path: &Path, lines: &[&str], attributes: &[&str], at: usize) -> bool {
        let Some(code) = lines.get(at).map(|l| l.trim()) else { return false };
        if attributes.iter().any(|a| a.starts_with("#[ignore")) {
            return false;
        }
        if code.starts_with("const _:") {
            return true;
        }
        let is_fn = declared(code).is_some_and(|(kind, _)| kind == "fn");
        if is_fn && attributes.contains(&"#[test]") {
            return true;
        }
        if code.starts_with(|c: char| c.is_alphabetic()) && self.in_macro(lines, at) {
            return true;
        }
        let law = path.file_name().is_some_and(|n| n == "laws.rs");
        is_fn
            && (law || at >= test_code(path, lines))
            && declared(code).is_some_and(|(_, name)| self.words.contains(name))
    }

    /// Whether a line stands in the call of a macro that makes tests.
    fn in_macro(&self, lines: &[&str], at: usize) -> bool {
        let mut inner = indent(lines[at]);
        for line in lines[..at].iter().rev().filter(|l| !l.trim().is_empty()) {
            if indent(line) < inner {
                inner = indent(line);
                if line.trim().split_once("! {").is_some_and(|(m, _)| self.macros.contains(m)) {
                    return true;
                }
            }
        }
        false
    }
}

/// The line from which on a file is test code.
fn test_code(path: &Path, lines: &[&str]) -> usize {
    if path.components().any(|c| c.as_os_str() == "tests") {
        return 0;
    }
    let is_module = |pair: &[&str]| {
        let cfg = pair[0].starts_with("#[cfg(test)]") || pair[0].starts_with("#[cfg(all(test,");
        cfg && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    lines.windows(2).position(is_module).unwrap_or(lines.len())
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The name that `text` starts with.
fn word(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

/// The citations in a source file.
pub fn citations(path: &Path, source: &str, tests: &TestItems) -> Vec<Citation> {
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
        // Down to the item; nothing but comments and attributes may stand between.
        let between = |l: &&&str| l.trim().starts_with("//") || l.trim().starts_with('#');
        let at = i + lines[i..].iter().take_while(between).count();
        let attributes: Vec<&str> =
            lines[i..at].iter().map(|l| l.trim()).filter(|l| l.starts_with('#')).collect();
        let inner = lines[start].trim_start().starts_with("//!");
        let item = lines.get(at).map_or("", |l| name_of(l.trim()));
        let of_test = !inner && tests.is_test(path, &lines, &attributes, at);
        found.push(Citation {
            line: start + 1,
            item: item.to_owned(),
            ids: expand(&text),
            of_test,
        });
    }
    found
}

/// The ids of known families that comments mention, but for the lines that
/// [`citations`] reads.
pub fn mentions(source: &str, families: &BTreeSet<&str>) -> Vec<(usize, String)> {
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

/// The keyword and the name that a line of code declares.
fn declared(code: &str) -> Option<(&str, &str)> {
    let mut words = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let kinds = ["fn", "struct", "enum", "mod", "trait", "impl", "const", "type"];
    let kind = words.find(|w| kinds.contains(w))?;
    Some((kind, words.next()?))
}

/// What an item is called: the name that it declares, or in a list of tests the word.
fn name_of(code: &str) -> &str {
    declared(code).map_or_else(|| word(code), |(_, name)| name)
}

/// The sites that a source file names: the literals in `ord!("…"`, `fence!("…"`,
/// `fence_after_rmw!("…"` and `mutant!("…"`.
pub fn sites_in_code(source: &str) -> BTreeSet<String> {
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
pub fn sites_in_page(page: &str) -> BTreeSet<String> {
    let is_site = |s: &&str| {
        s.contains('.')
            && s.split('.')
                .all(|w| !w.is_empty() && w.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    };
    page.split('`').skip(1).step_by(2).filter(is_site).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line, item, and whether it is a test.
    fn cited(path: &str, source: &str) -> Vec<(usize, String, bool)> {
        let mut tests = TestItems::default();
        tests.read(Path::new(path), source);
        citations(Path::new(path), source, &tests)
            .into_iter()
            .map(|c| (c.line, c.item, c.of_test))
            .collect()
    }

    #[test]
    fn citations_have_line_item_and_ids() {
        let source = "/// Rules: PTE-01,\n/// PTE-02.\n#[test]\nfn keeps_dirty() {}\n";
        let path = Path::new("tests/a.rs");
        let ids = vec![Ok("PTE-01".to_owned()), Ok("PTE-02".to_owned())];
        assert_eq!(
            citations(path, source, &TestItems::default()),
            [Citation { line: 1, item: "keeps_dirty".to_owned(), ids, of_test: true }]
        );
    }

    #[test]
    fn tests_and_their_parts() {
        let source = "\
macro_rules! on_all {
    ($($name:ident;)*) => {$(
        #[test]
        fn $name() { generic::$name() }
    )*};
}
on_all! {
    // Rules: PTE-01.
    in_a_list;
    /// Rules: PTE-02.
    /// More words.
    fn as_a_body<A>() {
        body();
    }
}
/// Rules: PTE-03.
fn model() {}
#[test]
fn race() {
    holds(\"race\", model);
}
// Rules: PTE-04.
const _: () = assert!(SIZE == 8);
";
        let found = cited("tests/a.rs", source);
        let names: Vec<_> = found.iter().map(|(_, item, _)| item.as_str()).collect();
        assert_eq!(names, ["in_a_list", "as_a_body", "model", "_"]);
        assert!(found.iter().all(|(.., of_test)| *of_test), "{found:?}");
    }

    #[test]
    fn what_is_no_test() {
        for source in [
            // Above nothing, above an empty line, in a module's documentation.
            "// Rules: PTE-01.\n",
            "// Rules: PTE-01.\n\n#[test]\nfn t() {}\n",
            "//! Rules: PTE-01.\n#[test]\nfn t() {}\n",
            "mod tests {\n    #[test]\n    fn t() {}\n    // Rules: PTE-01.\n}\n",
            // Never called, never run, no function.
            "/// Rules: PTE-01.\nfn helper() {}\n",
            "/// Rules: PTE-01.\n#[test]\n#[ignore = \"slow\"]\nfn t() {}\n",
            "/// Rules: PTE-01.\nstruct S;\n#[test]\nfn t() { S }\n",
            // In a macro that makes no tests.
            "names! {\n    /// Rules: PTE-01.\n    one;\n}\n",
        ] {
            let found = cited("tests/a.rs", source);
            assert!(matches!(found[..], [(.., false)]), "{source}: {found:?}");
        }
        // Production code, whatever tests call.
        let source = "/// Rules: PTE-01.\npub fn f() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() { f() }\n}\n";
        assert_eq!(cited("src/a.rs", source), [(1, "f".to_owned(), false)]);
    }

    #[test]
    fn laws_are_tests_of_all_formats() {
        let law = "/// Rules: PTE-01.\npub fn entry() {}\n";
        let mut tests = TestItems::default();
        let judge =
            |tests: &TestItems| citations(Path::new("src/model/laws.rs"), law, tests)[0].of_test;
        assert!(!judge(&tests));
        tests.read(Path::new("tests/laws.rs"), "#[test]\nfn t() {\n    laws::entry();\n}\n");
        assert!(judge(&tests));
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
}
