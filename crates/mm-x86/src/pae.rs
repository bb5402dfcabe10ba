//! PAE: three levels of 64-bit entries on 32-bit CPUs.
//!
//! Memory is accessed in words of 32 bits, so an entry is a [`Pair`]: two words with
//! a protocol between them, which [`mm_arch::pair`] holds. Everything that changes
//! in place is in the low word (rules PAE-02, PAE-11).
//!
//! The root has four entries. Hardware loads all of them when the root is loaded, and
//! refuses to if one has a permission bit: they are *bare* (rule PAE-05).

use crate::layout::Pae;
use crate::paging::{ENTRIES, Mode, Paging};
use crate::value::X86Value;
use mm_arch::Level;
use mm_arch::pair::Pair;

/// An entry of [`X86Pae`].
pub type PaeEntry = X86Value<Pae<true>>;

/// PAE. `NX`: whether the CPU can refuse instruction fetches (rule PAE-04).
#[derive(Clone, Copy, Debug)]
pub struct PaePaging<const NX: bool>;

/// 32-bit x86 with PAE.
pub type X86Pae = Paging<PaePaging<true>>;
/// 32-bit x86 with PAE on a CPU that executes whatever it can read.
pub type X86PaeNoNx = Paging<PaePaging<false>>;

impl<const NX: bool> Mode for PaePaging<NX> {
    type Layout = Pae<NX>;
    type Cell = Pair;

    const NAME: &'static str = if NX { "x86-pae" } else { "x86-pae-nonx" };
    const LEVELS: &'static [Level] = &[Level::Pud, Level::Pmd, Level::Pte];
    // The kernel has the last of the four gigabytes.
    const USER_END: u64 = 0xc000_0000;
    const CACHES_ROOT: bool = true;
    // Two pages have no room for a pin count (rule PAE-15).
    const PINCOUNT_MIN_ORDER: u32 = 2;

    #[inline(always)]
    fn shift(level: Level) -> u32 {
        match level {
            Level::Pte => 12,
            Level::Pmd => 21,
            Level::Pud | Level::P4d | Level::Pgd => 30,
        }
    }
    #[inline(always)]
    fn nr_entries(level: Level) -> usize {
        match level {
            Level::Pte | Level::Pmd => ENTRIES,
            Level::Pud => 4,
            Level::P4d | Level::Pgd => 1,
        }
    }
}
