//! Changes of the kernel's counters.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::op::keywords;

keywords! {
    /// A counter that there is for each folio size, in the order of the output.
    SizeCounter {
        /// Faults that got an anonymous folio of the size.
        AnonFaultAlloc = "anon_fault_alloc",
        /// Faults that fell back to a smaller one.
        AnonFaultFallback = "anon_fault_fallback",
        /// Folios swapped in whole.
        SwapIn = "swpin",
        /// Folios swapped out whole.
        SwapOut = "swpout",
        /// Folios that were split to be swapped out.
        SwapOutFallback = "swpout_fallback",
        /// Shmem folios allocated.
        ShmemAlloc = "shmem_alloc",
        /// Shmem allocations that fell back to a smaller size.
        ShmemFallback = "shmem_fallback",
        /// Folios split.
        Split = "split",
        /// Splits that failed.
        SplitFailed = "split_failed",
        /// Folios put on the list of deferred splits.
        SplitDeferred = "split_deferred",
        /// Partially mapped anonymous folios; a gauge, so its change can be negative.
        NrAnonPartiallyMapped = "nr_anon_partially_mapped",
    }

    /// A counter without a size, in the order of the output.
    GlobalCounter {
        /// Pages read from swap.
        PagesSwappedIn = "pswpin",
        /// Pages written to swap.
        PagesSwappedOut = "pswpout",
        /// Pages made lazily freeable.
        LazyFree = "pglazyfree",
        /// Lazily freeable pages freed.
        LazyFreed = "pglazyfreed",
        /// PMD-sized folios allocated by collapse.
        CollapseAlloc = "thp_collapse_alloc",
        /// PMD-sized folios split.
        SplitPage = "thp_split_page",
        /// PMD-sized folios put on the list of deferred splits.
        DeferredSplitPage = "thp_deferred_split_page",
        /// PMD mappings split.
        SplitPmd = "thp_split_pmd",
        /// PMD-sized folios swapped out whole.
        ThpSwapOut = "thp_swpout",
        /// PMD-sized folios that were split to be swapped out.
        ThpSwapOutFallback = "thp_swpout_fallback",
        /// Zero pages swapped in without I/O.
        SwapInZero = "swpin_zero",
        /// Zero pages swapped out without I/O.
        SwapOutZero = "swpout_zero",
        /// Copies of KSM pages at swap-in.
        KsmSwapInCopy = "ksm_swpin_copy",
        /// Copies of KSM pages at a write.
        CowKsm = "cow_ksm",
    }
}

/// A counter. The order is that of the output: sizes ascending, then those without a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StatKey {
    /// `SIZE.COUNTER` of folios of two to this power of 4 KiB.
    Size(u8, SizeCounter),
    /// A counter without a size.
    Global(GlobalCounter),
}

impl StatKey {
    /// The name of the counter without its size.
    #[must_use]
    pub const fn counter(self) -> &'static str {
        match self {
            Self::Size(_, counter) => counter.word(),
            Self::Global(counter) => counter.word(),
        }
    }

    /// Reads a key of the output.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name.split_once("kB.") {
            Some((size, counter)) => {
                let kib: u32 = size.parse().ok()?;
                let order = (kib.is_power_of_two() && kib >= 4).then(|| kib.ilog2() - 2)?;
                Some(Self::Size(u8::try_from(order).ok()?, SizeCounter::from_word(counter)?))
            }
            None => GlobalCounter::from_word(name).map(Self::Global),
        }
    }
}

impl fmt::Display for StatKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(order, counter) => write!(f, "{}kB.{counter}", 4u64 << order),
            Self::Global(counter) => write!(f, "{counter}"),
        }
    }
}

impl Serialize for StatKey {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StatKey {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = String::deserialize(d)?;
        Self::from_name(&name)
            .ok_or_else(|| D::Error::custom(format_args!("unknown counter {name:?}")))
    }
}

/// The answer of `stats`: changes that are not zero.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stats {
    /// The changes, in the order of the output.
    pub d: BTreeMap<StatKey, i64>,
}

impl Stats {
    /// Sums changes up and leaves out what did not change.
    #[must_use]
    pub fn new(deltas: impl IntoIterator<Item = (StatKey, i64)>) -> Self {
        let mut d = BTreeMap::new();
        for (key, delta) in deltas {
            *d.entry(key).or_insert(0) += delta;
        }
        d.retain(|_, delta| *delta != 0);
        Self { d }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_ordered_and_not_zero() {
        let partial = StatKey::Size(4, SizeCounter::NrAnonPartiallyMapped);
        let stats = Stats::new([
            (StatKey::Global(GlobalCounter::SplitPmd), 1),
            (partial, -1),
            (StatKey::Size(4, SizeCounter::Split), 0),
            (StatKey::Size(2, SizeCounter::Split), 2),
        ]);
        let json = serde_json::to_string(&stats).unwrap();
        assert_eq!(
            json,
            r#"{"d":{"16kB.split":2,"64kB.nr_anon_partially_mapped":-1,"thp_split_pmd":1}}"#
        );
        assert_eq!(serde_json::from_str::<Stats>(&json).unwrap(), stats);
    }

    #[test]
    fn keys_are_read_back() {
        for name in ["2048kB.swpin", "8kB.shmem_alloc", "cow_ksm"] {
            assert_eq!(StatKey::from_name(name).unwrap().to_string(), name);
        }
        for name in ["3kB.swpin", "kB.swpin", "16kB.pswpin", "swpin", ""] {
            assert_eq!(StatKey::from_name(name), None, "{name}");
        }
    }
}
