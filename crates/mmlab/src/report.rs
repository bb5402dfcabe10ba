//! What measuring commands share: spreads and progress.

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
        write!(f, "{:.0} ({:.0}..{:.0})", self.median, self.low, self.high)
    }
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
        assert_eq!(s.to_string(), "6 (2..10)");
    }
}
