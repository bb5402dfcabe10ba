//! Raw values, explained.

use mm_arch::Level;
use mm_arch::explain::{Explain, Explanation, Fault};

/// A raw value, explained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// What it means.
    pub explanation: Explanation,
    /// What no kernel would write.
    pub faults: Vec<Fault>,
}

/// Explains `raw` at `level` of the format.
pub fn decode<A: Explain>(raw: u64, level: Level) -> Decoded {
    let mut faults = Vec::new();
    A::faults(raw, level, &mut |fault| faults.push(fault));
    Decoded { explanation: A::explain(raw, level), faults }
}
