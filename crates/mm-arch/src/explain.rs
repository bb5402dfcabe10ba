//! What a raw value means, in words: for people who look at page tables.
//!
//! Unlike the algorithms, which trust the tables they wrote, this takes *any*
//! value: one that no kernel would write is explained too, and what is wrong
//! about it is listed.

use crate::{
    AccessKind, Arch, EncodeError, Entry, Level, NonPresent, Pfn, SwapBits, TableFrame, VirtAddr,
};
use core::fmt;

/// Adjacent bits of a raw value that mean one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Short name, as the architecture's manual or the kernel has it.
    pub name: &'static str,
    /// Lowest bit.
    pub shift: u32,
    /// Number of bits.
    pub width: u32,
    /// What the bits say if they are not zero.
    pub meaning: &'static str,
}

impl Field {
    /// The field `name` of `width` bits from bit `shift`.
    pub const fn new(name: &'static str, shift: u32, width: u32, meaning: &'static str) -> Self {
        Field { name, shift, width, meaning }
    }
    /// The bits of the field in a raw value.
    pub const fn mask(self) -> u64 {
        (!0 >> (64 - self.width)) << self.shift
    }
    /// The number in the field.
    pub const fn value(self, raw: u64) -> u64 {
        (raw & self.mask()) >> self.shift
    }
}

/// Something about a value that no kernel would write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The bits that show it.
    pub bits: u64,
    /// What is wrong, as a phrase.
    pub what: &'static str,
}

/// Looks at one value, and reports what is wrong with it.
pub struct Check<'a> {
    raw: u64,
    fields: &'static [Field],
    report: &'a mut dyn FnMut(Fault),
}

impl<'a> Check<'a> {
    /// Of the value `raw`, which consists of `fields`.
    pub fn new(raw: u64, fields: &'static [Field], report: &'a mut dyn FnMut(Fault)) -> Self {
        Check { raw, fields, report }
    }
    /// The value.
    pub fn raw(&self) -> u64 {
        self.raw
    }
    /// Whether all of `bits` are set.
    pub fn has(&self, bits: u64) -> bool {
        self.raw & bits == bits
    }
    /// Reports `bits` if `yes`.
    pub fn fault(&mut self, yes: bool, bits: u64, what: &'static str) {
        if yes {
            (self.report)(Fault { bits, what });
        }
    }
    /// None of `bits` may be set.
    pub fn clear(&mut self, bits: u64, what: &'static str) {
        self.fault(self.raw & bits != 0, self.raw & bits, what);
    }
    /// All of `bits` must be set.
    pub fn set(&mut self, bits: u64, what: &'static str) {
        self.fault(!self.raw & bits != 0, !self.raw & bits, what);
    }
    /// The fields of this name must be zero.
    pub fn zero(&mut self, name: &str, what: &'static str) {
        let mask = self.fields.iter().filter(|f| f.name == name).fold(0, |m, f| m | f.mask());
        self.clear(mask, what);
    }
    /// `e` without a translation says `what`, in `kind` and `offset` of its bits: its level must
    /// have that, and the format write it so, but for bits that are `ignored`.
    pub fn says<E: Entry>(
        &mut self,
        e: E,
        level: Level,
        what: NonPresent,
        kind: u64,
        offset: u64,
        ignored: u64,
    ) {
        let migrates = matches!(what, NonPresent::Migration { .. } | NonPresent::Device { .. });
        let misplaced = level == Level::Pmd && !migrates;
        self.fault(misplaced, kind, "a PMD is swapped or marked by its PTEs only");
        match E::from_nonpresent(what, e.swap_bits()) {
            Ok(made) => {
                let other = (made.raw() ^ self.raw) & !ignored;
                self.fault(other != 0, other, "bits that this kind of entry does not use");
            }
            Err(_) => self.fault(true, offset, "an offset that the kernel never hands out"),
        }
    }
    /// An entry without a translation where PTEs and PMDs are alike, and `kind` of its bits
    /// say what it is: what [`says`](Self::says) reports, and what says nothing.
    pub fn nonpresent<E: Entry>(&mut self, e: E, level: Level, kind: u64) {
        let (raw, place) = (self.raw, matches!(level, Level::Pte | Level::Pmd));
        self.fault(!place, raw, "a table of this level holds no entry without a translation");
        if let Some(what) = e.nonpresent(level) {
            return self.says(e, level, what, raw & kind, raw & kind, 0);
        }
        self.fault(place && raw & kind == 0, raw, "flags of nothing");
        for name in ["ZERO", "UNUSED"] {
            self.zero(name, "bits that an entry without a translation does not use");
        }
        let unknown = e.type_offset(level).is_some();
        self.fault(unknown, raw & kind, "a marker that means nothing");
    }
}

impl fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Check({:#x})", self.raw)
    }
}

/// What a value stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Nothing is mapped and nothing remembered.
    Empty,
    /// Memory.
    Leaf(Pfn),
    /// The next level.
    Table(TableFrame),
    /// A page that is elsewhere, or a marker.
    NonPresent(NonPresent, SwapBits),
    /// Nothing that the format knows; the faults say why.
    Unknown,
}

bitflags::bitflags! {
    /// Facts of a present leaf.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Facts: u16 {
        /// Loads go through.
        const READ = 1 << 0;
        /// Ordinary stores go through.
        const WRITE = 1 << 1;
        /// Instruction fetches go through.
        const EXEC = 1 << 2;
        /// Only shadow-stack stores go through.
        const SHADOW_STACK = 1 << 3;
        /// No access goes through though the mapping is present.
        const PROT_NONE = 1 << 4;
        /// Accessed.
        const YOUNG = 1 << 5;
        /// Written.
        const DIRTY = 1 << 6;
        /// Written since tracking was last reset.
        const SOFT_DIRTY = 1 << 7;
        /// Write-protected by userfaultfd.
        const UFFD_WP = 1 << 8;
        /// No folio behind it.
        const SPECIAL = 1 << 9;
    }
}

impl Facts {
    const WORDS: [(Facts, &'static str); 10] = [
        (Facts::READ, "readable"),
        (Facts::WRITE, "writable"),
        (Facts::EXEC, "executable"),
        (Facts::SHADOW_STACK, "shadow stack"),
        (Facts::PROT_NONE, "inaccessible"),
        (Facts::YOUNG, "accessed"),
        (Facts::DIRTY, "dirty"),
        (Facts::SOFT_DIRTY, "soft-dirty"),
        (Facts::UFFD_WP, "uffd-wp"),
        (Facts::SPECIAL, "special"),
    ];

    /// The facts of a present leaf; none of anything else.
    pub fn of<E: Entry>(e: E, level: Level) -> Self {
        if !e.is_leaf(level) {
            return Facts::empty();
        }
        let (read, write) =
            (e.permits(AccessKind::Read, level), e.permits(AccessKind::Write, level));
        let mut facts = Facts::empty();
        facts.set(Facts::READ, read);
        facts.set(Facts::WRITE, write);
        facts.set(Facts::EXEC, e.permits(AccessKind::Exec, level));
        facts.set(Facts::SHADOW_STACK, read && !write && e.is_writable(level));
        facts.set(Facts::PROT_NONE, e.is_protnone(level));
        facts.set(Facts::YOUNG, e.is_young());
        facts.set(Facts::DIRTY, e.is_dirty());
        facts.set(Facts::SOFT_DIRTY, e.is_soft_dirty());
        facts.set(Facts::UFFD_WP, e.is_uffd_wp());
        facts.set(Facts::SPECIAL, e.is_special());
        facts
    }
    /// The facts as words, in a fixed order.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Self::WORDS.iter().filter(move |(f, _)| self.contains(*f)).map(|(_, word)| *word)
    }
}

/// A raw value, explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The value.
    pub raw: u64,
    /// Where it would stand.
    pub level: Level,
    /// What it stands for.
    pub meaning: Meaning,
    /// What a leaf allows and remembers; empty for anything else.
    pub facts: Facts,
    /// Where its bits are: every one of the 64 is in exactly one field.
    pub fields: &'static [Field],
}

/// An address that is no user address of the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressError {
    /// The address.
    pub va: VirtAddr,
    /// First address that is none.
    pub end: VirtAddr,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address {} is not below {}, the end of user addresses", self.va, self.end)
    }
}
impl core::error::Error for AddressError {}

/// A format that can say what its bits mean.
///
/// # Laws
///
/// Checked for each format by `model::laws::explain`, for any value at any level:
/// nothing panics; the fields part the 64 bits; and what the format's own
/// operations make has no faults.
pub trait Explain: Arch {
    /// Width of the physical addresses that an entry can hold.
    const PHYS_BITS: u32;
    /// Levels whose entries may map memory.
    const LEAF_LEVELS: &'static [Level];

    /// Where the bits of `raw` are, by what it is at `level`.
    fn fields(raw: u64, level: Level) -> &'static [Field];
    /// Tells `report` of everything about `raw` that no kernel would write.
    fn faults(raw: u64, level: Level, report: &mut dyn FnMut(Fault));

    /// What `raw` means at `level`.
    fn explain(raw: u64, level: Level) -> Explanation {
        let e = Self::Entry::from_raw(raw);
        let meaning = if e.is_none() {
            Meaning::Empty
        } else if e.is_leaf(level) {
            Meaning::Leaf(e.pfn(level))
        } else if let Some(frame) = e.as_table(level) {
            Meaning::Table(frame)
        } else if let Some(what) = e.nonpresent(level) {
            Meaning::NonPresent(what, e.swap_bits())
        } else {
            Meaning::Unknown
        };
        let (facts, fields) = (Facts::of(e, level), Self::fields(raw, level));
        Explanation { raw, level, meaning, facts, fields }
    }
    /// A leaf of `pfn` at `level`, if there is such a thing.
    ///
    /// # Errors
    ///
    /// If the level has no leaves, or the frame is not aligned for it or too large.
    fn checked_leaf(
        pfn: Pfn,
        prot: <Self::Entry as Entry>::Prot,
        level: Level,
    ) -> Result<Self::Entry, EncodeError> {
        let (order, bits) = (Self::order(level), Self::PHYS_BITS - Self::PAGE_SHIFT);
        if !Self::LEAF_LEVELS.contains(&level) {
            return Err(EncodeError::NoLeaf { level });
        }
        if !pfn.is_aligned(order) {
            return Err(EncodeError::UnalignedFrame { pfn, order });
        }
        if pfn.get() >> bits != 0 {
            return Err(EncodeError::FrameTooWide { pfn, bits });
        }
        Ok(Self::Entry::leaf(pfn, prot, level))
    }
    /// Whether `va` is a user address.
    ///
    /// # Errors
    ///
    /// If it is not.
    fn check_address(va: VirtAddr) -> Result<VirtAddr, AddressError> {
        let end = VirtAddr::new(Self::USER_END);
        if va < end { Ok(va) } else { Err(AddressError { va, end }) }
    }
}
