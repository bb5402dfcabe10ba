//! Which faults a process took, and where.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where faults were taken: per region, in the order of the faults, `[page, len]` for `len`
/// faults at rising pages. Regions stand in the order of their first fault.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultSpots(Vec<(String, Vec<(u64, u64)>)>);

impl FaultSpots {
    /// Adds a fault.
    pub fn push(&mut self, region: &str, page: u64) {
        let at = self.0.iter().position(|(name, _)| name == region).unwrap_or_else(|| {
            self.0.push((region.to_owned(), Vec::new()));
            self.0.len() - 1
        });
        let spots = &mut self.0[at].1;
        match spots.last_mut() {
            Some((first, len)) if *first + *len == page => *len += 1,
            _ => spots.push((page, 1)),
        }
    }

    /// Whether there were none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for FaultSpots {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().map(|(region, spots)| (region, spots)))
    }
}

impl<'de> Deserialize<'de> for FaultSpots {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Spots;

        impl<'de> Visitor<'de> for Spots {
            type Value = FaultSpots;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("fault spots by region")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FaultSpots, A::Error> {
                let mut regions = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    regions.push(entry);
                }
                Ok(FaultSpots(regions))
            }
        }

        d.deserialize_map(Spots)
    }
}

/// The answer of `faults`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// Process.
    pub p: String,
    /// Minor faults of the CPU.
    pub min: u64,
    /// Major faults of the CPU.
    pub maj: u64,
    /// Minor faults taken by GUP.
    pub gup_min: u64,
    /// Major faults taken by GUP.
    pub gup_maj: u64,
    /// Where the minor faults of the CPU were.
    pub minat: FaultSpots,
    /// Where the major faults of the CPU were; absent without any.
    #[serde(default, skip_serializing_if = "FaultSpots::is_empty")]
    pub majat: FaultSpots,
}

/// Counts the faults of one process between two `faults`.
#[derive(Debug, Clone, Default)]
pub struct FaultLog {
    minor: u64,
    major: u64,
    gup_minor: u64,
    gup_major: u64,
    minor_at: FaultSpots,
    major_at: FaultSpots,
}

impl FaultLog {
    /// A minor fault by the CPU. Faults outside of regions and accesses that end in a signal do
    /// not count.
    pub fn minor(&mut self, region: &str, page: u64) {
        self.minor += 1;
        self.minor_at.push(region, page);
    }

    /// A major fault by the CPU.
    pub fn major(&mut self, region: &str, page: u64) {
        self.major += 1;
        self.major_at.push(region, page);
    }

    /// A minor fault without CPU registers.
    pub fn gup_minor(&mut self) {
        self.gup_minor += 1;
    }

    /// A major fault without CPU registers.
    pub fn gup_major(&mut self) {
        self.gup_major += 1;
    }

    /// What `faults` prints for process `p`; the log starts anew.
    #[must_use]
    pub fn take(&mut self, p: impl Into<String>) -> Faults {
        let Self { minor, major, gup_minor, gup_major, minor_at, major_at } = std::mem::take(self);
        Faults {
            p: p.into(),
            min: minor,
            maj: major,
            gup_min: gup_minor,
            gup_maj: gup_major,
            minat: minor_at,
            majat: major_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spots_keep_the_order_of_the_faults() {
        let mut log = FaultLog::default();
        for (region, page) in [("b", 4), ("a", 9), ("b", 5), ("b", 5), ("a", 8)] {
            log.minor(region, page);
        }
        log.gup_minor();
        let json = serde_json::to_string(&log.take("p0")).unwrap();
        assert_eq!(
            json,
            r#"{"p":"p0","min":5,"maj":0,"gup_min":1,"gup_maj":0,"minat":{"b":[[4,2],[5,1]],"a":[[9,1],[8,1]]}}"#
        );
        assert_eq!(log.take("p0").min, 0);
    }
}
