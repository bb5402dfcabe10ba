//! What is printed about a pass, as text and as JSON.

use super::GupTestArgs;
use super::pass::{Mode, Pass};
use crate::bed::{Bed, FolioSize};
use mm_sim::EventCounts;
use serde_json::{Value, json};

/// A pass and what it belongs to.
pub struct Line<'a> {
    pub args: &'a GupTestArgs,
    pub mode: Mode,
    pub bed: &'a Bed<()>,
    pub pass: &'a Pass,
    pub counts: &'a EventCounts,
    pub thread: u64,
}

impl Line<'_> {
    /// Bytes that were taken.
    fn bytes(&self) -> u64 {
        self.pass.pages.len() as u64 * 4096
    }

    pub fn json(&self) -> Value {
        let counts = self.counts;
        json!({
            "mode": self.mode.name(),
            "policy": self.args.policy.name(),
            "folio": self.args.filled_with().map(FolioSize::name),
            "bytes": self.bytes(),
            "truncated": self.bytes() != self.bed.range.bytes(),
            "pages_per_call": self.args.pages_per_call,
            "thread": self.thread,
            "get_us": self.pass.get_us,
            "put_us": self.pass.put_us,
            "counts": {
                "entries_read": counts.entries_read.get(),
                "grabs": counts.grabs.get(),
                "atomics": counts.atomics.get(),
                "locks": counts.locks.get(),
                "walks": counts.walks.get(),
                "faults": counts.gup_faults.get(),
                "fills_under_lock": counts.fills_under_lock.get(),
            },
        })
    }

    pub fn text(&self) -> Vec<String> {
        let (name, counts) = (self.mode.name(), self.counts);
        let mut lines = vec![if self.mode.is_benchmark() {
            format!(
                "{name}: get:{:.0} put:{:.0} us; {} grabs, {} atomics, {} walks, {} locks, {} faults",
                self.pass.get_us,
                self.pass.put_us,
                counts.grabs.get(),
                counts.atomics.get(),
                counts.walks.get(),
                counts.locks.get(),
                counts.gup_faults.get(),
            )
        } else {
            format!("{name}: done")
        }];
        if self.bytes() != self.bed.range.bytes() {
            lines.push(format!("truncated (size: {})", self.bytes()));
        }
        lines
    }
}
