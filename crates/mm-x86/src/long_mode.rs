//! Long mode: four and five levels of 64-bit entries.

use crate::double;
use crate::layout::Long;
use crate::paging::{ENTRIES, Expected, Mode, Paging};
use crate::value::X86Value;
use mm_arch::Level;
use mm_sync::atomic::AtomicU64;

/// An entry of long mode. `SHSTK`: whether the CPU has shadow stacks.
pub type LongEntry<const SHSTK: bool> = X86Value<Long<SHSTK>>;
/// An entry of [`X86_64`] and [`X86_64La57`].
pub type X86Entry = LongEntry<true>;

/// Long mode. `LA57`: five levels.
#[derive(Clone, Copy, Debug)]
pub struct LongPaging<const SHSTK: bool, const LA57: bool>;

/// The format of long mode; see [`LongPaging`].
pub type LongMode<const SHSTK: bool, const LA57: bool = false> = Paging<LongPaging<SHSTK, LA57>>;
/// x86-64 with four levels on a CPU with shadow stacks.
pub type X86_64 = LongMode<true>;
/// x86-64 with four levels on a CPU without shadow stacks.
pub type X86_64NoShstk = LongMode<false>;
/// x86-64 with five levels on a CPU with shadow stacks.
pub type X86_64La57 = LongMode<true, true>;

impl<const SHSTK: bool, const LA57: bool> Mode for LongPaging<SHSTK, LA57> {
    type Layout = Long<SHSTK>;
    type Cell = AtomicU64;

    const NAME: &'static str = match (SHSTK, LA57) {
        (true, false) => "x86_64",
        (false, false) => "x86_64-noshstk",
        (true, true) => "x86_64-la57",
        (false, true) => "x86_64-la57-noshstk",
    };
    const LEVELS: &'static [Level] = if LA57 {
        &[Level::Pgd, Level::P4d, Level::Pud, Level::Pmd, Level::Pte]
    } else {
        &[Level::Pgd, Level::Pud, Level::Pmd, Level::Pte]
    };
    // The last page below the hole is never user memory (rule PTE-01).
    const USER_END: u64 = (1 << if LA57 { 56 } else { 47 }) - 4096;
    const CACHES_ROOT: bool = false;
    const PINCOUNT_MIN_ORDER: u32 = 1;

    #[inline(always)]
    fn shift(level: Level) -> u32 {
        match level {
            Level::Pte => 12,
            Level::Pmd => 21,
            Level::Pud => 30,
            Level::Pgd if LA57 => 48,
            Level::P4d | Level::Pgd => 39,
        }
    }
    #[inline(always)]
    fn nr_entries(level: Level) -> usize {
        if !LA57 && matches!(level, Level::P4d) { 1 } else { ENTRIES }
    }
    #[inline(always)]
    fn take_live(cells: &[AtomicU64], each: impl FnMut(u64)) {
        double::take_all(cells, each);
    }
    #[inline(always)]
    fn take_live_while(cells: &[AtomicU64], expected: Expected, each: impl FnMut(u64)) -> usize {
        double::take_while(cells, expected, each)
    }
}
