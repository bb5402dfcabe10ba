//! The entry formats that commands know: the one place where they are listed.

use crate::decode::{Decoded, decode};
use crate::names::one_of;
use crate::spec::{Spec, encode};
use mm_arch::Level;
use mm_arch::explain::Explain;
use mm_arm64::{Arm64, Granule4K, Granule4KLpa2, Granule16K, Granule64K};
use mm_riscv::{Riscv, Sv39, Sv48, Sv57};
use mm_scenario::Scenario;
use mm_scenario::observe::{Record, TableDump};
use mm_sim::{Absorbed, BlockCounts, FailEachError, Memory, Policy, RunError, RunOptions};

/// An entry format, and what commands do with it.
#[derive(Clone, Copy)]
pub struct Format {
    /// Its name on command lines.
    pub name: &'static str,
    /// Bytes of a page.
    pub page_size: u64,
    /// Whether entries form contiguous blocks.
    pub blocks: bool,
    /// Its levels, root first.
    pub levels: &'static [Level],
    /// Base pages under one entry of a level, as an order.
    pub order: fn(Level) -> u32,
    /// Runs a scenario on a machine of it.
    pub run: Run<Record>,
    /// As `run`, and counts what blocks did.
    pub run_counting: Run<Record, BlockCounts>,
    /// Runs a scenario with each of its allocations failing in turn.
    pub fail_each: FailEach,
    /// Runs a scenario and prints the entries behind what it observes.
    pub dump: Run<TableDump>,
    /// Explains a raw value.
    pub decode: fn(u64, Level) -> Decoded,
    /// Makes the raw value of an entry.
    pub encode: fn(&Spec, Level) -> Result<u64, String>,
}

/// Runs a scenario that prints `T`.
type Run<T, U = ()> = fn(&Scenario, &Policy, &RunOptions, &mut dyn FnMut(T)) -> Result<U, RunError>;

/// Runs a scenario again and again.
type FailEach = fn(
    &Scenario,
    &Policy,
    &RunOptions,
    Option<u64>,
) -> Result<[(Memory, Absorbed); 2], FailEachError>;

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All formats.
///
/// A static, so that this crate compiles what the functions are and no other does.
pub static FORMATS: [Format; 12] = [
    Format::of::<mm_x86::X86_64>(),
    Format::of::<mm_x86::X86_64NoShstk>(),
    Format::of::<mm_x86::X86_64La57>(),
    Format::of::<mm_x86::X86Pae>(),
    Format::of::<mm_x86::X86PaeNoNx>(),
    Format::of::<Arm64<Granule4K>>(),
    Format::of::<Arm64<Granule4KLpa2>>(),
    Format::of::<Arm64<Granule16K>>(),
    Format::of::<Arm64<Granule64K>>(),
    Format::of::<Riscv<Sv39>>(),
    Format::of::<Riscv<Sv48>>(),
    Format::of::<Riscv<Sv57>>(),
];

/// The word for every format with pages of a size that some scenario has.
const ALL: &str = "all";

impl Format {
    const fn of<A: Explain>() -> Self {
        Format {
            name: A::NAME,
            page_size: 1 << A::PAGE_SHIFT,
            blocks: A::CONT > 1,
            run: mm_sim::run::<A>,
            run_counting: mm_sim::run_counting::<A>,
            fail_each: mm_sim::fail_each::<A>,
            dump: mm_sim::run_dumping::<A>,
            levels: A::LEVELS,
            order: A::order,
            decode: decode::<A>,
            encode: encode::<A>,
        }
    }
    /// The format of a name.
    ///
    /// # Errors
    ///
    /// A sentence that lists the names.
    pub fn named(name: &str) -> Result<Self, String> {
        one_of("arch", name, &FORMATS, |f| f.name)
    }
    /// The formats of a word: one, or all of them for `all`.
    ///
    /// # Errors
    ///
    /// A sentence that lists the words.
    pub fn several(word: &str) -> Result<Vec<Self>, String> {
        if word == ALL {
            return Ok(FORMATS.to_vec());
        }
        Self::named(word).map(|f| vec![f]).map_err(|e| format!("{e}, or {ALL}"))
    }
    /// The names, for help texts.
    pub fn names() -> String {
        FORMATS.iter().map(|f| f.name).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_found() {
        for f in FORMATS {
            assert_eq!(FORMATS.iter().filter(|g| g.name == f.name).count(), 1);
            assert_eq!(Format::named(f.name).expect("found").name, f.name);
            assert_eq!(Format::several(f.name).expect("found").len(), 1);
        }
        assert_eq!(Format::several(ALL).expect("found").len(), FORMATS.len());
        let message = Format::several("vax").expect_err("no such format");
        assert_eq!(message, format!("unknown arch \"vax\"; one of {}, or all", Format::names()));
    }
}
