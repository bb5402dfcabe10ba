//! What measuring commands share: turns, spreads, tables and progress.

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt;

/// Median and spread of repeated measurements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub low: f64,
    /// 90th percentile.
    pub high: f64,
}

impl Spread {
    /// Of `values`, of which there is at least one.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at =
            |part: usize| values.get((values.len() - 1) * part / 10).copied().unwrap_or(f64::NAN);
        Spread { median: at(5), low: at(1), high: at(9) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 0 };
        write!(f, "{:.digits$} ({:.digits$}..{:.digits$})", self.median, self.low, self.high)
    }
}

/// Lets `N` contestants take turns, `rounds` times and once before to warm
/// everything up. `measure` measures one of them.
///
/// # Errors
///
/// The first one of `measure`.
pub fn in_turns<const N: usize>(
    rounds: usize,
    mut measure: impl FnMut(usize) -> Result<f64, String>,
) -> Result<[Spread; N], String> {
    let mut measured = [const { Vec::new() }; N];
    for round in 0..=rounds {
        for (i, values) in measured.iter_mut().enumerate() {
            let value = measure(i)?;
            if round > 0 {
                values.push(value);
            }
        }
    }
    Ok(measured.map(Spread::of))
}

/// A table whose columns from `from` on are figures.
pub fn right_aligned(header: &[&str], from: usize, rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A bar on a terminal, nothing in a pipe.
pub fn progress(what: &str, steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_made_of_measured_values() {
        let s = Spread::of((1..=11).rev().map(f64::from).collect());
        assert_eq!(s, Spread { median: 6.0, low: 2.0, high: 10.0 });
        assert_eq!(Spread::of(vec![3.0]), Spread { median: 3.0, low: 3.0, high: 3.0 });
        assert_eq!(s.to_string(), "6.00 (2.00..10.00)");
        let s = Spread { median: 1234.5, low: 99.4, high: 2000.0 };
        assert_eq!(s.to_string(), "1234 (99..2000)");
    }

    #[test]
    fn contestants_take_turns_and_the_first_round_does_not_count() {
        let mut order = Vec::new();
        let [a, b] = in_turns(3, |i| {
            order.push(i);
            Ok(order.len() as f64)
        })
        .expect("measured");
        assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!((a.median, b.median), (5.0, 6.0));
        assert_eq!(in_turns::<1>(1, |_| Err("no".to_owned())), Err("no".to_owned()));
    }
}
