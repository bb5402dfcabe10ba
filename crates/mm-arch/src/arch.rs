//! An entry format with its geometry and its table operations.

use crate::{Entry, Held, Level, Protection, Right, SpaceTlb, Tlb, VirtAddr, VirtRange};

/// Where in a table an operation starts: the entry's index, and the address it
/// maps (block formats flush inside the operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Address that the entry maps.
    pub va: VirtAddr,
    /// Index of the entry in its table.
    pub index: usize,
}

/// What a batch scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Entries in the run, at least one.
    pub nr: usize,
    /// Entries that were looked at: as many, but one for all of a folded block.
    pub looks: usize,
    /// With `MERGE_WRITE`: some entry of the run is writable.
    pub any_writable: bool,
    /// With `MERGE_YOUNG_DIRTY`: some entry of the run is young.
    pub any_young: bool,
    /// With `MERGE_YOUNG_DIRTY`: some entry of the run is dirty.
    pub any_dirty: bool,
}

mod seal {
    pub trait Sealed {}
    impl Sealed for super::Live {}
    impl Sealed for super::Private {}
}

/// The table is reachable by hardware: entries are taken by exchange, so that a
/// concurrent accessed or dirty bit is not lost.
#[derive(Clone, Copy, Debug)]
pub enum Live {}
/// Nobody else can reach the table, or nobody can use it any more (teardown of
/// an address space): plain loads and stores do.
#[derive(Clone, Copy, Debug)]
pub enum Private {}
/// How a table is updated; sealed, see [`Live`] and [`Private`].
pub trait Liveness: seal::Sealed + 'static {
    /// Whether hardware may update entries meanwhile.
    const LIVE: bool;
}
impl Liveness for Live {
    const LIVE: bool = true;
}
impl Liveness for Private {
    const LIVE: bool = false;
}

/// An entry format: geometry, reads by right, and writers.
///
/// Every writer requires the lock of the table (or that nobody else can reach
/// it); lockless readers and hardware accessed/dirty updates run concurrently to
/// all of them. None of the writers flushes on behalf of its caller: they flush
/// only where the *format* needs a flush between two of its own stores.
///
/// All operations on `n` entries stay within `index .. index + n` and panic, by
/// slice indexing, if that leaves the table.
///
/// # Safety
///
/// Walkers follow what an upper-level entry says. So an entry that is read is one that was
/// written at that index, but for accessed, dirty and write permission (a lockless reader
/// may see it empty instead); a new table is empty; and [`Entry::as_table`] is `Some` only
/// of what [`Entry::table`] made, for the same level, and gives back its frame.
pub unsafe trait Arch: Copy + core::fmt::Debug + Send + Sync + 'static {
    /// The entry, as a value.
    type Entry: Entry;
    /// A table in memory.
    type Table: Send + Sync + 'static;

    /// Name on command lines.
    const NAME: &'static str;
    /// Log2 of a base page.
    const PAGE_SHIFT: u32;
    /// Levels, root first; the last is [`Level::Pte`].
    const LEVELS: &'static [Level];
    /// First address that is no user address.
    const USER_END: u64;
    /// Entries of a contiguous block, 1 where there is no such thing.
    const CONT: usize;
    /// Memory accesses that a read of an entry takes.
    ///
    /// With more than one, a lockless reader joins words of different values if
    /// a present entry is emptied and filled again with an equal low word while
    /// it reads. So lockless readers are waited for between the two (rules
    /// PAE-10, PAE-12): by whoever does both under one lock, and otherwise by
    /// the flush, which on such machines interrupts every reader.
    const WORDS: usize = 1;
    /// Whether a CPU loads the root's entries only when it switches to the address
    /// space: it does not see a new one before a flush (rule PAE-05).
    const CACHES_ROOT: bool = false;
    /// Whether [`Entry::mkclean`] never removes a write permission (rule
    /// BATCH-24). Where it may, scans compare writability before they ignore dirty.
    const WRITE_SURVIVES_MKCLEAN: bool;
    /// Whether there are shadow stacks for user mode: mappings that take stores of a
    /// kind of their own, and no others.
    const HAS_SHADOW_STACK: bool = false;
    /// Whether hardware sets dirty at a store through a writable, clean entry.
    /// Where the store faults instead, nothing makes such entries to see who
    /// stores.
    const HARDWARE_DIRTY: bool = true;
    /// Whether entries that nobody has asked for are better old: hardware marks them at no
    /// cost when they are used, and until then nobody takes them for used (rule FILE-04).
    const OLD_PREFAULT: bool = false;
    /// Whether entries have a soft-dirty bit.
    const HAS_SOFT_DIRTY: bool;
    /// Whether entries have a uffd-wp bit.
    const HAS_UFFD_WP: bool;
    /// Whether an instruction begins a flush on all CPUs, so that nothing but its end is to
    /// be waited for: putting flushes off then always pays (rule TLBB-04). Without it a CPU
    /// interrupts the others.
    const BROADCASTS_FLUSHES: bool = false;
    /// Smallest order of a folio with a pin count of its own (rule PIN-02).
    const PINCOUNT_MIN_ORDER: u32;

    /// Log2 of the memory that an entry of `level` maps.
    fn shift(level: Level) -> u32;
    /// Entries of a table of `level`.
    fn nr_entries(level: Level) -> usize;
    /// The template for `protection`.
    fn prot(protection: Protection) -> <Self::Entry as Entry>::Prot;

    /// An empty table.
    fn new_table() -> Self::Table;

    /// Reads an entry that maps memory. Under [`Pinned`](crate::Pinned) the value
    /// is one that the entry really had; on block formats accessed and dirty
    /// are gathered over the block.
    fn read<R: Right>(table: &Self::Table, index: usize) -> Self::Entry;
    /// Reads an upper-level entry: one value, never gathered. Acquiring, so that
    /// the table behind it is seen as it was published (rule ACC-04).
    fn read_upper<R: Right>(table: &Self::Table, index: usize) -> Self::Entry;

    /// Length of the run that starts with `head` at `index` (rules BATCH-01..08):
    /// consecutive entries that map consecutive frames and are equal but for
    /// what `MODE` ignores. At least one, at most `max`; the caller's `max`
    /// keeps it inside the table and the folio. `head` is a present leaf that
    /// was read at `index`. Entries beyond `index + max` are not read.
    ///
    /// Under [`Pinned`](crate::Pinned) the caller holds a reference to the folio, taken
    /// before the scan (rule BATCH-10); an acquire fence follows the last read.
    fn scan<R: Right, const MODE: u8>(
        table: &Self::Table,
        index: usize,
        head: Self::Entry,
        max: usize,
    ) -> Batch;

    /// Writes `n` entries `e, e+1, …` over *empty* entries, or over a table that
    /// nobody else can reach (rule ACC-10). Publishing.
    fn fill(table: &Self::Table, index: usize, n: usize, e: Self::Entry);
    /// Replaces one entry whose hardware updates cannot be lost: an empty or
    /// non-present one, or one just taken.
    fn set<T: Tlb + ?Sized>(table: &Self::Table, at: At, e: Self::Entry, tlb: &SpaceTlb<'_, T>);
    /// Folds the block whose last entry is at `at`, where the format has blocks and its
    /// entries allow it; whether it did. The caller knows that the pages of the block
    /// belong to one folio (rules CONT-03, CONT-04).
    fn fold<T: Tlb + ?Sized>(_: &Self::Table, _at: At, _: &SpaceTlb<'_, T>) -> bool {
        false
    }
    /// Empties `n` entries in ascending order and hands each old value, with
    /// everything hardware added to it, to `each` (rules ACC-05, ACC-07).
    /// Relaxed: see the crate's ordering section.
    fn take<L: Liveness, T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        n: usize,
        tlb: &SpaceTlb<'_, T>,
        each: impl FnMut(usize, Self::Entry),
    );
    /// Empties the `n` present entries of a run on a live table, as [`take`](Self::take) does,
    /// and returns the first. `each` gets the first, and those that say something else than
    /// the one before, a frame further: of a run these are few.
    #[inline]
    fn take_run<T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        n: usize,
        tlb: &SpaceTlb<'_, T>,
        mut each: impl FnMut(Self::Entry),
    ) -> Self::Entry {
        let mut first = Self::Entry::NONE;
        let mut expected = first;
        Self::take::<Live, T>(table, at, n, tlb, |k, e| {
            if k == 0 {
                first = e;
            }
            if k == 0 || e != expected {
                each(e);
            }
            expected = e.advance(1, Level::Pte);
        });
        first
    }
    /// Empties the run that [`scan`](Self::scan) with `MODE` finds, on a live table under its
    /// lock, and returns its length. `each` gets the entries that say something else than the one
    /// before, a frame further, the first if it says something else than `head`; maybe others.
    ///
    /// `MODE` does not respect dirty: hardware may set it between a look and the exchange. The
    /// entries do not come back: what is in the values of accessed may be a moment old.
    #[inline]
    fn take_while<const MODE: u8, T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        head: Self::Entry,
        max: usize,
        tlb: &SpaceTlb<'_, T>,
        mut each: impl FnMut(Self::Entry),
    ) -> usize {
        let nr = Self::scan::<Held, MODE>(table, at.index, head, max).nr;
        let mut expected = head;
        Self::take::<Live, T>(table, at, nr, tlb, |_, e| {
            if e != expected {
                each(e);
            }
            expected = e.advance(1, Level::Pte);
        });
        nr
    }
    /// Write-protects `n` present entries atomically, keeping dirty (rules
    /// ACC-11, SHSTK-08).
    fn wrprotect<T: Tlb + ?Sized>(table: &Self::Table, at: At, n: usize, tlb: &SpaceTlb<'_, T>);
    /// Clears young in `n` present entries; whether any was (rule ACC-12). Block
    /// formats may clear it in a whole block.
    fn clear_young<T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        n: usize,
        tlb: &SpaceTlb<'_, T>,
    ) -> bool;
    /// Makes a present entry more permissive: accessed, dirty and write of `e`
    /// are added (rule ACC-17). Whether anything changed.
    fn set_access_flags<T: Tlb + ?Sized>(
        table: &Self::Table,
        at: At,
        e: Self::Entry,
        tlb: &SpaceTlb<'_, T>,
    ) -> bool;

    /// Replaces an upper-level entry and returns the old value, hardware
    /// updates included. Publishing.
    fn swap_upper(table: &Self::Table, index: usize, e: Self::Entry) -> Self::Entry;
    /// Write-protects a present upper-level leaf atomically.
    fn wrprotect_upper(table: &Self::Table, index: usize);
    /// Adds accessed, dirty and write of `e` to a present upper-level leaf.
    fn set_access_flags_upper(table: &Self::Table, index: usize, e: Self::Entry) -> bool;

    /// What the hardware does on a walk: sets accessed, and dirty for a store
    /// through a writable entry, if and only if the entry is valid. Returns
    /// whether it was.
    fn mmu_mark(table: &Self::Table, index: usize, kind: crate::AccessKind, level: Level) -> bool;

    /// Index of `va` in a table of `level`.
    #[inline(always)]
    fn index(va: VirtAddr, level: Level) -> usize {
        (va.get() >> Self::shift(level)) as usize & (Self::nr_entries(level) - 1)
    }
    /// Entries from `va`'s to the end of its table.
    #[inline(always)]
    fn entries_left(va: VirtAddr, level: Level) -> usize {
        Self::nr_entries(level) - Self::index(va, level)
    }
    /// The level below.
    #[inline]
    fn below(level: Level) -> Option<Level> {
        let i = Self::LEVELS.iter().position(|l| *l == level)?;
        Self::LEVELS.get(i + 1).copied()
    }
    /// The root's level.
    #[inline(always)]
    fn top() -> Level {
        Self::LEVELS[0]
    }
    /// Base pages under one entry of `level`, as an order.
    #[inline(always)]
    fn order(level: Level) -> u32 {
        Self::shift(level) - Self::PAGE_SHIFT
    }
    /// Range of `n` base pages at `at`.
    #[inline]
    fn pages_at(at: At, n: usize) -> Option<VirtRange> {
        VirtRange::units(at.va, n as u64, Self::PAGE_SHIFT).ok()
    }
}
