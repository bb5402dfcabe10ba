//! The bits in words, and what no kernel would write.

use crate::bits::{
    CONT, DIRTY, INNER_SHAREABLE, NOT_GLOBAL, PRESENT_INVALID, PRIVILEGED_NO_EXECUTE, READ_ONLY,
    SPECIAL, TABLE_NO_EXECUTE, TYPE, UFFD_WP, USER, USER_NO_EXECUTE, VALID, WRITE,
};
use crate::nonpresent::WHAT;
use crate::{Arm64, Arm64Entry, Granule, Output};
use mm_arch::explain::{Check, Explain, Fault, Field};
use mm_arch::{Entry, Level};

const V: Field = Field::new("VALID", 0, 1, "hardware follows the entry");
const T: Field = Field::new("TYPE", 1, 1, "a page or a table; clear: a block");
const ATTR: Field = Field::new("ATTR", 2, 3, "memory type, other than normal");
const NS: Field = Field::new("NS", 5, 1, "non-secure; no user mapping says it");
const EL0: Field = Field::new("EL0", 6, 1, "user mode may use it");
const RO: Field = Field::new("RO", 7, 1, "read-only; with DBM: not written yet");
const SH: Field = Field::new("SH", 8, 2, "shared between CPUs");
const AF: Field = Field::new("AF", 10, 1, "accessed");
const NG: Field = Field::new("nG", 11, 1, "of one process; without VALID: present all the same");
const GP: Field = Field::new("GP", 50, 1, "guarded branches");
const DBM: Field = Field::new("DBM", 51, 1, "writable; hardware clears RO on a store");
const BLOCK: Field = Field::new("CONT", 52, 1, "one of a block that hardware may use as one");
const PXN: Field = Field::new("PXN", 53, 1, "the kernel does not execute it");
const UXN: Field = Field::new("UXN", 54, 1, "user mode does not execute it");
const SW_DIRTY: Field = Field::new("DIRTY", 55, 1, "written, for software");
const NO_FOLIO: Field = Field::new("SPECIAL", 56, 1, "no folio behind it");
const SW57: Field = Field::new("SW57", 57, 1, "free for software, unused");
const UFFD: Field = Field::new("UFFD_WP", 58, 1, "write-protected by userfaultfd");
const SW59: Field = Field::new("SW59", 59, 1, "free for software, unused");
const KEY: Field = Field::new("OVERLAY", 60, 3, "permission overlay");
const SW63: Field = Field::new("SW63", 63, 1, "free for software, unused");

/// Software bits without a meaning.
const UNUSED: u64 = 1 << 57 | 1 << 59 | 1 << 63;

const fn zero(shift: u32, width: u32) -> Field {
    Field::new("RESERVED", shift, width, "must be zero")
}
const fn frame(shift: u32, width: u32) -> Field {
    Field::new("PFN", shift, width, "frame")
}
const fn frame_high(shift: u32, width: u32) -> Field {
    Field::new("PFN_HIGH", shift, width, "highest bits of the frame")
}

macro_rules! leaf {
    ($($place:expr),*) => {
        &[
            V, T, ATTR, NS, EL0, RO, AF, NG, $($place,)* GP, DBM, BLOCK, PXN, UXN, SW_DIRTY,
            NO_FOLIO, SW57, UFFD, SW59, KEY, SW63,
        ]
    };
}
macro_rules! table {
    ($($place:expr),*) => {
        &[
            V,
            T,
            AF,
            Field::new("IGNORED", 11, 1, "nothing"),
            $($place,)*
            Field::new("IGNORED", 50, 9, "nothing"),
            Field::new("PXNT", 59, 1, "the kernel executes nothing below"),
            Field::new("UXNT", 60, 1, "user mode executes nothing below"),
            Field::new("APT", 61, 2, "permissions taken away below"),
            Field::new("NST", 63, 1, "non-secure below"),
        ]
    };
}

/// The fields of an entry, by what it is.
#[derive(Clone, Copy, Debug)]
struct Fields {
    pte: &'static [Field],
    pmd: &'static [Field],
    pud: &'static [Field],
    table: &'static [Field],
}

const LOW: Field = Field::new("IGNORED", 2, 8, "nothing");
const PAGES_4K: Fields = Fields {
    pte: leaf!(SH, frame(12, 36), zero(48, 2)),
    pmd: leaf!(SH, zero(12, 9), frame(21, 27), zero(48, 2)),
    pud: leaf!(SH, zero(12, 18), frame(30, 18), zero(48, 2)),
    table: table!(LOW, frame(12, 36), zero(48, 2)),
};
const PAGES_4K_LPA2: Fields = Fields {
    pte: leaf!(frame_high(8, 2), frame(12, 38)),
    pmd: leaf!(frame_high(8, 2), zero(12, 9), frame(21, 29)),
    pud: leaf!(frame_high(8, 2), zero(12, 18), frame(30, 20)),
    table: table!(Field::new("IGNORED", 2, 6, "nothing"), frame_high(8, 2), frame(12, 38)),
};
const PAGES_16K: Fields = Fields {
    pte: leaf!(SH, zero(12, 2), frame(14, 34), zero(48, 2)),
    pmd: leaf!(SH, zero(12, 13), frame(25, 23), zero(48, 2)),
    pud: table!(LOW, zero(12, 2), frame(14, 34), zero(48, 2)),
    table: table!(LOW, zero(12, 2), frame(14, 34), zero(48, 2)),
};
const PAGES_64K: Fields = Fields {
    pte: leaf!(SH, frame_high(12, 4), frame(16, 32), zero(48, 2)),
    pmd: leaf!(SH, frame_high(12, 4), zero(16, 13), frame(29, 19), zero(48, 2)),
    pud: table!(LOW, frame_high(12, 4), frame(16, 32), zero(48, 2)),
    table: table!(LOW, frame_high(12, 4), frame(16, 32), zero(48, 2)),
};
const SWAP: &[Field] = &[
    Field::new("ZERO", 0, 2, "zero: VALID"),
    Field::new("EXCLUSIVE", 2, 1, "the page was anonymous and exclusive"),
    Field::new("UFFD_WP", 3, 1, "write-protected by userfaultfd"),
    Field::new("UNUSED", 4, 2, "unused"),
    Field::new("SWAP_TYPE", 6, 5, "swap device, or kind of entry"),
    Field::new("ZERO", 11, 1, "zero, or it would look present"),
    Field::new("OFFSET", 12, 50, "offset"),
    Field::new("UNUSED", 62, 2, "unused"),
];

const fn fields<G: Granule>() -> &'static Fields {
    match G::OUTPUT {
        Output::Bits48 if G::PAGE_SHIFT == 12 => &PAGES_4K,
        Output::Bits48 => &PAGES_16K,
        Output::Bits52Low => &PAGES_64K,
        Output::Bits52Lpa2 => &PAGES_4K_LPA2,
    }
}

fn leaf(check: &mut Check<'_>, level: Level, shared: bool) {
    let raw = check.raw();
    check.zero("RESERVED", "reserved bits");
    check.clear(UNUSED, "software bits that no kernel uses");
    check.clear(NS.mask(), "no user mapping says what is secure");
    check.set(PRIVILEGED_NO_EXECUTE, "the kernel may execute it");
    if level == Level::Pte {
        check.set(TYPE, "a page without the type bit: hardware does not follow it");
    }
    if shared {
        check.set(INNER_SHAREABLE, "not shared: other CPUs miss its stores");
    }
    let stuck = check.has(WRITE | READ_ONLY | DIRTY);
    check.fault(stuck, READ_ONLY, "writable and dirty, and stores fault all the same");
    let open = raw & (WRITE | READ_ONLY) == 0;
    check.fault(open, WRITE | READ_ONLY, "stores go through though it is not writable");
    let protected = check.has(WRITE | UFFD_WP);
    check.fault(protected, WRITE | UFFD_WP, "writable though userfaultfd protects it");
    let special = check.has(CONT | SPECIAL);
    check.fault(special, CONT | SPECIAL, "what has no folio is never part of a block");
    if raw & VALID != 0 {
        check.set(NOT_GLOBAL, "global: no user mapping is");
        let nobody = raw & USER == 0 && raw & USER_NO_EXECUTE != 0;
        check.fault(nobody, USER, "user mode may not use it: no user mapping is like that");
    } else {
        check.clear(CONT, "part of a block that hardware does not follow");
        // A block under split keeps what it allowed.
        if level == Level::Pte || raw & (USER | USER_NO_EXECUTE) == USER_NO_EXECUTE {
            check.clear(USER | WRITE, "permissions in an entry that allows nothing");
            check.set(USER_NO_EXECUTE, "executable, in an entry that allows nothing");
        }
    }
}

fn table(check: &mut Check<'_>) {
    check.zero("RESERVED", "reserved bits");
    check.zero("IGNORED", "bits that no pointer to a table has");
    check.set(TABLE_NO_EXECUTE, "the kernel may execute what is below");
    for name in ["UXNT", "APT", "NST"] {
        check.zero(name, "takes from what the leaf must decide on");
    }
}

impl<G: Granule> Explain for Arm64<G> {
    const PHYS_BITS: u32 = G::OUTPUT.bits();
    const LEAF_LEVELS: &'static [Level] = match G::HIGHEST_LEAF {
        Level::Pud => &[Level::Pte, Level::Pmd, Level::Pud],
        _ => &[Level::Pte, Level::Pmd],
    };

    fn fields(raw: u64, level: Level) -> &'static [Field] {
        let (e, fields) = (Arm64Entry::<G>::from_bits(raw), fields::<G>());
        let leaf = e.is_leaf(level);
        match level {
            Level::Pte if leaf || e.is_none() => fields.pte,
            Level::Pmd if leaf => fields.pmd,
            Level::Pud if leaf => fields.pud,
            _ if e.is_present(level) || e.is_none() => fields.table,
            _ => SWAP,
        }
    }
    fn faults(raw: u64, level: Level, report: &mut dyn FnMut(Fault)) {
        let e = Arm64Entry::<G>::from_bits(raw);
        let mut check = Check::new(raw, Self::fields(raw, level), report);
        if e.is_leaf(level) {
            leaf(&mut check, level, !matches!(G::OUTPUT, Output::Bits52Lpa2));
        } else if e.as_table(level).is_some() {
            table(&mut check);
        } else if raw & VALID != 0 {
            check.fault(true, TYPE, "a block at a level that has none");
        } else if e.is_present(level) {
            let bits = PRESENT_INVALID | TYPE;
            check.fault(true, bits, "present, but neither followed nor a block");
        } else if !e.is_none() {
            check.nonpresent(e, level, WHAT);
        }
    }
}
