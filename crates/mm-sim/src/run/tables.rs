//! Entries in the words of dumps of real kernels.

use crate::scan::E;
use mm_arch::explain::{Explain, Field};
use mm_arch::{Entry, Level, NonPresent, TypeOffset};
use mm_scenario::observe::{EntryText, TableEntry};

/// Describes an entry that stands at a level.
pub(super) type Describe<A> = fn(Level, E<A>) -> TableEntry;

/// Bits whose name in dumps is not that of the field.
const WORDS: &[(&str, &str)] = &[
    ("RW", "W"),
    ("US", "U"),
    ("PS", "PAT/PSE"),
    ("PAT", "PAT/PSE"),
    ("UFFD_WP", "UFFD"),
    ("SOFT_DIRTY", "SOFTDIRTY"),
    ("SAVED_DIRTY", "SAVEDDIRTY"),
    ("VALID", "V"),
    ("TYPE", "T"),
    ("nG", "nG/PRESENT_INVALID"),
    ("DIRTY", "SWDIRTY"),
];

/// What stands where, for a dump: a leaf without its address.
pub(super) fn describe<A: Explain>(level: Level, e: E<A>) -> TableEntry {
    let level_name = match level {
        Level::Pte => "PTE",
        Level::Pmd => "PMD",
        Level::Pud => "PUD",
        Level::P4d => "P4D",
        Level::Pgd => "PGD",
    };
    let holds = if e.is_none() {
        EntryText::Empty
    } else if let Some(TypeOffset { ty, offset }) = e.type_offset(level) {
        let marks = !matches!(e.nonpresent(level), Some(NonPresent::Marker(_)));
        EntryText::NonPresent { ty, offset, rises: marks, flags: flags(e) }
    } else {
        let raw = e.raw();
        let fields = A::fields(raw, level);
        let address =
            fields.iter().filter(|f| f.name.starts_with("PFN")).fold(0, |m, f| m | f.mask());
        EntryText::Leaf { attr: raw & !address, names: names(fields, raw) }
    };
    TableEntry { level: level_name, holds }
}

/// The names of the single bits that are set.
fn names(fields: &[Field], raw: u64) -> String {
    let set = fields.iter().filter(|f| f.width == 1 && raw & f.mask() != 0);
    let words = set.map(|f| WORDS.iter().find(|(name, _)| *name == f.name).map_or(f.name, |w| w.1));
    words.collect::<Vec<_>>().join(",")
}

/// The flags of an entry without a translation.
fn flags<En: Entry>(e: En) -> String {
    let bits = e.swap_bits();
    let flags = [(bits.exclusive, "EXCL"), (bits.uffd_wp, "UFFD"), (bits.soft_dirty, "SOFTDIRTY")];
    flags.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}
