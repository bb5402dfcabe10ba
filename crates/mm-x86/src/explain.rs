//! The bits in words, and what no kernel would write.

use crate::bits::{
    ACCESSED, DIRTY, FRAME, PAGE_SIZE, PAT_LARGE, PRESENT, PROT_NONE, TABLE, USER, WRITE,
};
use crate::layout::Layout;
use crate::nonpresent::OFFSET_SHIFT;
use crate::paging::{Mode, Paging};
use crate::saved_dirty;
use crate::value::{BARE_ALLOWED, X86Value, frame_mask};
use mm_arch::explain::{Check, Explain, Fault, Field};
use mm_arch::{Arch, Entry, Level};

const P: Field = Field::new("P", 0, 1, "hardware follows the entry");
const RW: Field = Field::new("RW", 1, 1, "ordinary stores go through");
const US: Field = Field::new("US", 2, 1, "user mode may use it");
const PWT: Field = Field::new("PWT", 3, 1, "write-through memory type");
const PCD: Field = Field::new("PCD", 4, 1, "uncached memory type");
const A: Field = Field::new("A", 5, 1, "accessed");
const D: Field = Field::new("D", 6, 1, "written; without RW: a shadow stack");
const PAT: Field = Field::new("PAT", 7, 1, "third bit of the memory type");
const PS: Field = Field::new("PS", 7, 1, "maps memory");
const G: Field = Field::new("G", 8, 1, "global; without P: present but inaccessible");
const SPECIAL: Field = Field::new("SPECIAL", 9, 1, "no folio behind it");
const UFFD: Field = Field::new("UFFD_WP", 10, 1, "write-protected by userfaultfd");
const SOFT: Field = Field::new("SOFT_DIRTY", 11, 1, "written since tracking was reset");
const PFN: Field = Field::new("PFN", 12, 40, "frame; inverted without P");
const PAT_L: Field = Field::new("PAT", 12, 1, "third bit of the memory type");
const PMD_LOW: Field = Field::new("RESERVED", 13, 8, "must be zero");
const PMD_PFN: Field = Field::new("PFN", 21, 31, "frame; inverted without P");
const PUD_LOW: Field = Field::new("RESERVED", 13, 17, "must be zero");
const PUD_PFN: Field = Field::new("PFN", 30, 22, "frame; inverted without P");
const NX: Field = Field::new("NX", 63, 1, "no instruction fetches");

const AVL_MID: Field = Field::new("AVL", 52, 6, "free for software, unused");
const SAVED: Field = Field::new("SAVED_DIRTY", 58, 1, "dirty while write permission is away");
const KEY: Field = Field::new("PKEY", 59, 4, "protection key");

const LONG_PTE: &[Field] =
    &[P, RW, US, PWT, PCD, A, D, PAT, G, SPECIAL, UFFD, SOFT, PFN, AVL_MID, SAVED, KEY, NX];
const LONG_PMD: &[Field] = &[
    P, RW, US, PWT, PCD, A, D, PS, G, SPECIAL, UFFD, SOFT, PAT_L, PMD_LOW, PMD_PFN, AVL_MID, SAVED,
    KEY, NX,
];
const LONG_PUD: &[Field] = &[
    P, RW, US, PWT, PCD, A, D, PS, G, SPECIAL, UFFD, SOFT, PAT_L, PUD_LOW, PUD_PFN, AVL_MID, SAVED,
    KEY, NX,
];

const AVL_LOW: Field = Field::new("AVL", 8, 4, "free for software, unused");
const AVL_HIGH: Field = Field::new("AVL", 52, 11, "free for software, unused");
const IGNORED: Field = Field::new("IGNORED", 6, 1, "nothing; set by the kernel's template");
const NOT_PS: Field = Field::new("PS", 7, 1, "maps memory: not a table");
const NEXT: Field = Field::new("PFN", 12, 40, "frame of the next table");
const LONG_TABLE: &[Field] =
    &[P, RW, US, PWT, PCD, A, IGNORED, NOT_PS, AVL_LOW, NEXT, AVL_HIGH, NX];

const ZERO: Field = Field::new("ZERO", 0, 1, "zero: P");
const ERRATA: Field = Field::new("A/D", 5, 2, "may be set by some CPUs, means nothing");
const NOT_PRESENT: Field = Field::new("ZERO", 7, 2, "zero, or it would look present");
const OFFSET: Field = Field::new("OFFSET", 9, 50, "complement of the offset");
const TYPE: Field = Field::new("TYPE", 59, 5, "swap device, or kind of entry");
const LONG_SWAP: &[Field] = &[
    ZERO,
    Field::new("SOFT_DIRTY", 1, 1, "written since tracking was reset"),
    Field::new("UFFD_WP", 2, 1, "write-protected by userfaultfd"),
    Field::new("EXCLUSIVE", 3, 1, "the page was anonymous and exclusive"),
    Field::new("UNUSED", 4, 1, "unused"),
    ERRATA,
    NOT_PRESENT,
    OFFSET,
    TYPE,
];

const PAE_SAVED: Field = Field::new("SAVED_DIRTY", 10, 1, "dirty while write permission is away");
const PAE_AVL: Field = Field::new("AVL", 11, 1, "free for software, unused");
const PAE_RESERVED: Field = Field::new("RESERVED", 52, 11, "must be zero");
const PAE_PTE: &[Field] =
    &[P, RW, US, PWT, PCD, A, D, PAT, G, SPECIAL, PAE_SAVED, PAE_AVL, PFN, PAE_RESERVED, NX];
const PAE_PMD: &[Field] = &[
    P,
    RW,
    US,
    PWT,
    PCD,
    A,
    D,
    PS,
    G,
    SPECIAL,
    PAE_SAVED,
    PAE_AVL,
    PAT_L,
    PMD_LOW,
    PMD_PFN,
    PAE_RESERVED,
    NX,
];
const PAE_TABLE: &[Field] =
    &[P, RW, US, PWT, PCD, A, IGNORED, NOT_PS, AVL_LOW, NEXT, PAE_RESERVED, NX];
const PAE_ROOT: &[Field] = &[
    P,
    Field::new("RESERVED", 1, 2, "must be zero"),
    PWT,
    PCD,
    Field::new("RESERVED", 5, 4, "must be zero"),
    Field::new("AVL", 9, 3, "free for software, unused"),
    NEXT,
    Field::new("RESERVED", 52, 12, "must be zero"),
];
const PAE_SWAP: &[Field] = &[
    ZERO,
    Field::new("UNUSED", 1, 4, "unused"),
    ERRATA,
    Field::new("EXCLUSIVE", 7, 1, "the page was anonymous and exclusive"),
    Field::new("ZERO", 8, 1, "zero, or it would look present"),
    OFFSET,
    TYPE,
];

/// The fields of an entry, by what it is.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// Leaf of a PTE.
    pub pte: &'static [Field],
    /// Leaf of a PMD.
    pub pmd: &'static [Field],
    /// Leaf of a PUD.
    pub pud: &'static [Field],
    /// Pointer to a table.
    pub table: &'static [Field],
    /// Pointer to a table where [`Layout::is_bare`].
    pub bare: &'static [Field],
    /// No translation.
    pub nonpresent: &'static [Field],
}

pub(crate) const LONG: Fields = Fields {
    pte: LONG_PTE,
    pmd: LONG_PMD,
    pud: LONG_PUD,
    table: LONG_TABLE,
    bare: LONG_TABLE,
    nonpresent: LONG_SWAP,
};
pub(crate) const PAE: Fields = Fields {
    pte: PAE_PTE,
    pmd: PAE_PMD,
    pud: PAE_ROOT,
    table: PAE_TABLE,
    bare: PAE_ROOT,
    nonpresent: PAE_SWAP,
};

fn frame<L: Layout>(check: &mut Check<'_>, e: X86Value<L>, level: Level) {
    let beyond = e.pfn(level).get() >> L::PFN_BITS != 0;
    check.fault(beyond, FRAME, "frame beyond the memory that the kernel supports");
}

fn leaf<L: Layout>(check: &mut Check<'_>, e: X86Value<L>, level: Level) {
    let raw = check.raw();
    check.clear(L::UNUSED, "software bits that no kernel uses");
    if level != Level::Pte {
        let below = FRAME & !frame_mask(level) & !PAT_LARGE;
        check.clear(below, "reserved bits below the frame of a large leaf");
    }
    if raw & PRESENT != 0 {
        check.clear(L::RESERVED, "reserved bits: an access faults");
        check.clear(PROT_NONE, "global: no user mapping is");
        check.set(USER, "user mode may not use it: no user mapping is like that");
    } else if e.is_protnone(level) {
        check.clear(USER | WRITE, "permissions in an entry that allows nothing");
    }
    let saved = 1 << L::SAVED_DIRTY_SHIFT;
    let both = raw & WRITE != 0 && raw & saved != 0;
    check.fault(both, WRITE | saved, "SavedDirty beside RW: dirty belongs into D");
    let shadow = saved_dirty::is_shadow_stack(raw) && !e.is_shadow_stack(level);
    check.fault(shadow, DIRTY, "D without RW is a shadow stack, and there is none here");
    let protected = e.is_uffd_wp() && e.is_writable(level);
    check.fault(protected, WRITE | L::UFFD_WP, "writable though userfaultfd protects it");
    frame(check, e, level);
}

fn table<L: Layout>(check: &mut Check<'_>, e: X86Value<L>, level: Level) {
    if L::is_bare(level) {
        check.clear(!(FRAME | BARE_ALLOWED | PRESENT), "reserved: the CPU refuses such a root");
    } else {
        check.clear(!(FRAME | TABLE), "bits that no pointer to a table has");
        check.set(TABLE & !ACCESSED, "permissions that the leaf must decide on are missing");
    }
    frame(check, e, level);
}

fn nonpresent<L: Layout>(check: &mut Check<'_>, e: X86Value<L>, level: Level) {
    check.clear(ACCESSED | DIRTY, "A or D without a translation: some CPUs set them");
    if e.is_none() {
        return;
    }
    let Some(what) = e.nonpresent(level) else {
        let place = level == Level::Pte || level == Level::Pmd && L::PMD_NONPRESENT;
        let all = check.raw();
        check.fault(!place, all, "a table of this level holds no entry without a translation");
        let marks = all & (PAGE_SIZE | PROT_NONE) & !L::SWAP_EXCLUSIVE;
        check.fault(place && marks != 0, marks, "a mark of presence without P");
        let nothing = place && marks == 0 && all >> OFFSET_SHIFT == 0;
        check.fault(nothing, all, "flags of nothing");
        let unknown = e.type_offset(level).is_some();
        check.fault(unknown, OFFSET.mask(), "a marker that means nothing");
        return;
    };
    check.says(e, level, what, TYPE.mask(), OFFSET.mask(), ACCESSED | DIRTY);
}

impl<M: Mode> Explain for Paging<M> {
    const PHYS_BITS: u32 = M::Layout::PFN_BITS + Self::PAGE_SHIFT;
    const LEAF_LEVELS: &'static [Level] = if M::Layout::PUD_LEAVES {
        &[Level::Pte, Level::Pmd, Level::Pud]
    } else {
        &[Level::Pte, Level::Pmd]
    };

    fn fields(raw: u64, level: Level) -> &'static [Field] {
        let (e, fields) = (X86Value::<M::Layout>::from_bits(raw), M::Layout::FIELDS);
        match level {
            _ if M::Layout::is_bare(level) => fields.bare,
            Level::Pte if e.is_leaf(level) || e.is_none() => fields.pte,
            Level::Pmd if e.is_leaf(level) => fields.pmd,
            _ if e.is_leaf(level) => fields.pud,
            _ if e.is_present(level) || e.is_none() => fields.table,
            _ => fields.nonpresent,
        }
    }
    fn faults(raw: u64, level: Level, report: &mut dyn FnMut(Fault)) {
        let e = X86Value::<M::Layout>::from_bits(raw);
        let mut check = Check::new(raw, Self::fields(raw, level), report);
        if e.is_leaf(level) {
            leaf(&mut check, e, level);
        } else if e.is_present(level) {
            table(&mut check, e, level);
        } else {
            nonpresent(&mut check, e, level);
        }
    }
}
