//! A line of a table: two ways to do the same, and what was published about it.

use super::request::{Buffer, Op, Request};
use crate::bed::{Bed, FolioSize};
use crate::cli::say;
use crate::report::{Spread, right_aligned};
use serde_json::{Value, json};

/// One of the two ways.
#[derive(Clone)]
pub struct Side {
    pub name: &'static str,
    pub us: Spread,
    pub counts: Value,
}

impl Side {
    /// Of a request that took `us` to fill `buffer`; it is counted here.
    ///
    /// # Errors
    ///
    /// That of the request.
    pub fn new(
        (name, request): &(&'static str, Request),
        us: Spread,
        bed: &Bed<()>,
        buffer: &mut Buffer,
    ) -> Result<Self, String> {
        Ok(Side { name, us, counts: request.counts(bed, buffer)? })
    }
}

/// Published figures: those before, those after, and what they are in.
#[derive(Clone, Copy)]
pub enum Published {
    /// Microseconds.
    Us(&'static [f64], &'static [f64]),
    /// 10⁹ bytes per second.
    Rate(&'static [f64], &'static [f64]),
    Nothing,
}

impl Published {
    /// How much better it got, from the better figure before.
    pub fn ratio(self) -> Option<f64> {
        match self {
            Published::Us(before, after) => Some(min(before) / min(after)),
            Published::Rate(before, after) => Some(max(after) / max(before)),
            Published::Nothing => None,
        }
    }
    fn figures(self) -> (&'static [f64], &'static [f64]) {
        match self {
            Published::Us(before, after) | Published::Rate(before, after) => (before, after),
            Published::Nothing => (&[], &[]),
        }
    }
    fn unit(self) -> &'static str {
        match self {
            Published::Us(..) => "us",
            Published::Rate(..) => "GB/s",
            Published::Nothing => "",
        }
    }
    fn cell(self) -> String {
        let list = |f: &[f64]| f.iter().map(f64::to_string).collect::<Vec<_>>().join("/");
        match self.figures() {
            ([], []) => String::new(),
            (before, after) => format!("{} → {}", list(before), list(after)),
        }
    }
}

fn min(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::INFINITY, f64::min)
}
fn max(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(0.0, f64::max)
}

/// The reference loops of the same run.
#[derive(Clone, Copy)]
pub struct Against {
    /// The loop that does in runs what the folios allow.
    pub matching: Spread,
    /// The loop over single pages.
    pub per_page: Spread,
}

/// A line.
#[derive(Clone)]
pub struct Line {
    pub size: FolioSize,
    pub op: Op,
    pub before: Side,
    pub after: Side,
    pub published: Published,
    pub against: Against,
    /// What only this table has: its keys and values in JSON.
    pub more: Vec<(&'static str, Value)>,
}

impl Line {
    fn ratio(&self) -> f64 {
        self.before.us.median / self.after.us.median
    }

    /// As JSON, for the table of this name.
    fn json(&self, table: &str) -> Value {
        let (published_before, published_after) = self.published.figures();
        let mut line = json!({
            "table": table,
            "row": self.size.name(),
            "op": self.op.name(),
            "before": self.before.name,
            "after": self.after.name,
            "before_us": self.before.us.median,
            "after_us": self.after.us.median,
            "ratio": self.ratio(),
            "published_before": published_before,
            "published_after": published_after,
            "published_unit": self.published.unit(),
            "published_ratio": self.published.ratio(),
            "before_spread_us": [self.before.us.low, self.before.us.high],
            "after_spread_us": [self.after.us.low, self.after.us.high],
            "counts_before": self.before.counts,
            "counts_after": self.after.counts,
            "reference_us": self.against.matching.median,
            "reference_per_page_us": self.against.per_page.median,
        });
        for (key, value) in &self.more {
            line[*key] = value.clone();
        }
        line
    }

    /// The multiple of the reference loop that each side took. A leaf is one step
    /// to the per-page side, too.
    fn multiples(&self) -> [String; 2] {
        let a = &self.against;
        let before = if self.size == FolioSize::M2Pmd { a.matching } else { a.per_page };
        let multiple = |side: &Side, of: Spread| format!("{:.2}", side.us.median / of.median);
        [multiple(&self.before, before), multiple(&self.after, a.matching)]
    }

    fn cells(&self, more: &[&str]) -> Vec<String> {
        let change = |key: &str| {
            let (before, after) = (&self.before.counts[key], &self.after.counts[key]);
            if before == after { before.to_string() } else { format!("{before} → {after}") }
        };
        let published_ratio =
            self.published.ratio().map_or_else(String::new, |r| format!("{r:.1}"));
        let mut cells = vec![
            self.size.name().to_owned(),
            self.op.name().to_owned(),
            format!("{} → {}", self.before.name, self.after.name),
            self.before.us.to_string(),
            self.after.us.to_string(),
            format!("{:.1}", self.ratio()),
            self.published.cell(),
            published_ratio,
        ];
        cells.extend(self.multiples());
        cells.extend(["grabs", "atomics", "locks"].map(change));
        let value = |key: &&str| self.more.iter().find(|(k, _)| k == key).map(|(_, v)| v);
        cells.extend(more.iter().map(|key| match value(key) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(n)) => format!("{:.2}", n.as_f64().unwrap_or(f64::NAN)),
            _ => String::new(),
        }));
        cells
    }
}

/// Prints lines as JSON, or as one table below `title`. `more` are the keys of
/// [`Line::more`] that become columns, with their headers.
pub fn print(table: &str, title: &[&str], lines: &[Line], more: &[(&str, &str)], as_json: bool) {
    if as_json {
        lines.iter().for_each(|line| say(line.json(table)));
        return;
    }
    title.iter().for_each(say);
    let mut header = vec![
        "folio",
        "op",
        "before → after",
        "before us",
        "after us",
        "ratio",
        "published",
        "ratio",
    ];
    header.extend(["before/loop", "after/loop", "grabs", "atomics", "locks"]);
    header.extend(more.iter().map(|(_, header)| header));
    let keys: Vec<&str> = more.iter().map(|(key, _)| *key).collect();
    say(right_aligned(&header, 3, lines.iter().map(|line| line.cells(&keys)).collect()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        let side = |name, us, grabs: u64| Side {
            name,
            us: Spread { median: us, low: us - 1.0, high: us + 1.0 },
            counts: json!({"grabs": grabs, "atomics": 7, "locks": 0}),
        };
        let of = |us| Spread { median: us, low: us, high: us };
        Line {
            size: FolioSize::K64,
            op: Op::Pin,
            before: side("a", 100.0, 16),
            after: side("b", 20.0, 2),
            published: Published::Us(&[50.0, 40.0], &[10.0]),
            against: Against { matching: of(10.0), per_page: of(80.0) },
            more: vec![("block", json!("1m"))],
        }
    }

    #[test]
    fn figures_of_a_line() {
        let j = line().json("t");
        assert_eq!(
            (&j["table"], &j["row"], &j["block"]),
            (&json!("t"), &json!("64k"), &json!("1m"))
        );
        assert_eq!((&j["reference_us"], &j["reference_per_page_us"]), (&json!(10.0), &json!(80.0)));
        assert_eq!((&j["ratio"], &j["published_ratio"]), (&json!(5.0), &json!(4.0)));
        let cells = line().cells(&["block"]);
        assert_eq!(
            cells[2..].join(" | "),
            "a → b | 100 (99..101) | 20 (19..21) | 5.0 | 50/40 → 10 | 4.0 | 1.25 | 2.00 | 16 → 2 | 7 | 0 | 1m"
        );
        // A leaf is one step for both sides.
        let leaf = Line { size: FolioSize::M2Pmd, ..line() };
        assert_eq!(leaf.multiples(), ["10.00", "2.00"]);
    }

    #[test]
    fn more_bytes_per_second_are_better() {
        assert_eq!(Published::Rate(&[2.0, 4.0], &[8.0]).ratio(), Some(2.0));
        assert_eq!(Published::Nothing.ratio(), None);
    }
}
