//! The bits in words, and what no kernel would write.

use crate::bits::{
    EXEC, GLOBAL, LEAF, NAPOT, NAPOT_PLACE, NAPOT_SIZE, PROT_NONE, READ, SPECIAL, UFFD_WP, UNUSED,
    USER, VALID, WRITE,
};
use crate::nonpresent::WHAT;
use crate::{Mode, Riscv, RiscvEntry};
use mm_arch::explain::{Check, Explain, Fault, Field};
use mm_arch::{Entry, Level};

const V: Field = Field::new("V", 0, 1, "hardware follows the entry");
const R: Field = Field::new("R", 1, 1, "loads go through");
const W: Field = Field::new("W", 2, 1, "stores go through");
const X: Field = Field::new("X", 3, 1, "instruction fetches go through");
const U: Field = Field::new("U", 4, 1, "user mode may use it");
const G: Field = Field::new("G", 5, 1, "global; without V: present but inaccessible");
const A: Field = Field::new("A", 6, 1, "accessed");
const D: Field = Field::new("D", 7, 1, "written");
const NO_FOLIO: Field = Field::new("SPECIAL", 8, 1, "no folio behind it");
const RSW: Field = Field::new("RSW", 9, 1, "free for software, unused");
const HIGH: Field = Field::new("RESERVED", 54, 5, "must be zero");
const SOFT: Field = Field::new("SOFT_DIRTY", 59, 1, "written since tracking was reset");
const UFFD: Field = Field::new("UFFD_WP", 60, 1, "write-protected by userfaultfd");
const PBMT: Field = Field::new("PBMT", 61, 2, "memory type other than that of the place");
const N: Field = Field::new("N", 63, 1, "one of a block that hardware may use as one");

const fn zero(shift: u32, width: u32) -> Field {
    Field::new("RESERVED", shift, width, "must be zero")
}
const fn frame(shift: u32, width: u32) -> Field {
    Field::new("PFN", shift, width, "frame")
}

macro_rules! leaf {
    ($($place:expr),*) => {
        &[V, R, W, X, U, G, A, D, NO_FOLIO, RSW, $($place,)* HIGH, SOFT, UFFD, PBMT, N]
    };
}
const PTE: &[Field] = leaf!(frame(10, 44));
const BLOCK: &[Field] = leaf!(Field::new("NAPOT", 10, 4, "size of the block"), frame(14, 40));
const PMD: &[Field] = leaf!(zero(10, 9), frame(19, 35));
const PUD: &[Field] = leaf!(zero(10, 18), frame(28, 26));
const TABLE: &[Field] = &[
    V,
    Field::new("RWX", 1, 3, "maps memory: not a table"),
    zero(4, 4),
    Field::new("RSW", 8, 2, "free for software, unused"),
    frame(10, 44),
    zero(54, 10),
];
const SWAP: &[Field] = &[
    Field::new("ZERO", 0, 4, "zero, or it would look present"),
    Field::new("SOFT_DIRTY", 4, 1, "written since tracking was reset"),
    Field::new("ZERO", 5, 1, "zero, or it would look inaccessible"),
    Field::new("EXCLUSIVE", 6, 1, "the page was anonymous and exclusive"),
    Field::new("UFFD_WP", 7, 1, "write-protected by userfaultfd"),
    Field::new("SWAP_TYPE", 8, 5, "swap device, or kind of entry"),
    Field::new("OFFSET", 13, 51, "offset"),
];

fn leaf(check: &mut Check<'_>, level: Level) {
    let raw = check.raw();
    check.zero("RESERVED", "reserved bits: an access faults");
    check.clear(UNUSED, "a software bit that no kernel uses");
    let odd = raw & WRITE != 0 && raw & READ == 0;
    check.fault(odd, WRITE, "writable and not readable: reserved");
    let protected = raw & WRITE != 0 && raw & UFFD_WP != 0;
    check.fault(protected, WRITE | UFFD_WP, "writable though userfaultfd protects it");
    if raw & NAPOT != 0 {
        check.fault(level != Level::Pte, NAPOT, "blocks are of pages only");
        check.fault(raw & VALID == 0, NAPOT, "part of a block that hardware does not follow");
        check.clear(SPECIAL, "what has no folio is never part of a block");
        let size = level == Level::Pte && raw & NAPOT_PLACE != NAPOT_SIZE;
        check.fault(size, NAPOT_PLACE, "no block is of this size");
    }
    if raw & VALID != 0 {
        check.clear(GLOBAL, "global: no user mapping is");
        check.set(USER, "user mode may not use it: no user mapping is like that");
    } else if raw & PROT_NONE != 0 {
        check.clear(WRITE | EXEC | USER, "permissions in an entry that allows nothing");
        check.set(READ, "nothing tells that it is present once it is split");
    }
}

impl<M: Mode> Explain for Riscv<M> {
    const PHYS_BITS: u32 = 56;
    const LEAF_LEVELS: &'static [Level] = match M::HIGHEST_LEAF {
        Level::Pud => &[Level::Pte, Level::Pmd, Level::Pud],
        _ => &[Level::Pte, Level::Pmd],
    };

    fn fields(raw: u64, level: Level) -> &'static [Field] {
        let e = RiscvEntry::<M>::from_bits(raw);
        match level {
            Level::Pte if e.is_leaf(level) && raw & NAPOT != 0 => BLOCK,
            Level::Pte if e.is_present(level) || e.is_none() => PTE,
            Level::Pmd if e.is_leaf(level) => PMD,
            _ if e.is_leaf(level) => PUD,
            _ if e.is_present(level) || e.is_none() => TABLE,
            _ => SWAP,
        }
    }
    fn faults(raw: u64, level: Level, report: &mut dyn FnMut(Fault)) {
        let e = RiscvEntry::<M>::from_bits(raw);
        let mut check = Check::new(raw, Self::fields(raw, level), report);
        if e.is_leaf(level) {
            leaf(&mut check, level);
        } else if e.as_table(level).is_some() {
            check.zero("RESERVED", "reserved bits: a walk faults");
            check.zero("RSW", "software bits that no kernel uses");
        } else if level == Level::Pte && raw & VALID != 0 {
            check.fault(true, LEAF, "a pointer to a table below the last level");
        } else if raw & VALID != 0 {
            check.fault(true, raw & LEAF, "memory at a level that maps none");
        } else if !e.is_none() {
            check.nonpresent(e, level, WHAT);
        }
    }
}
