//! Emptying the entries of a run.
//!
//! A locked exchange costs as much for sixteen bytes as for eight, and emptying the
//! entries of a run is little else. So where the CPU that runs this can, two neighbours are
//! exchanged at once.
//!
//! Each entry is still taken by one atomic exchange: that of both is two exchanges with
//! nothing in between, which is one of the orders that two might have had. Hardware sets
//! accessed and dirty by locked updates of one entry; such an update comes before the exchange,
//! and is in the value, or behind it, and finds the entry empty. In the first case it may
//! come between the look and the exchange, which then fails and is made again.
//!
//! An entry that is not writable is marked accessed at most, and whoever takes it for good does
//! not ask for that: a load and a store will do, which wait for nothing.

use crate::paging::Expected;
use mm_arch::{Live, word};
use mm_sync::atomic::{AtomicU64, Ordering::Relaxed};
use mm_sync::mutant;

/// Whether entries are words of memory here, and not of a checker.
const PLAIN: bool = !mm_sync::MODELLED && !cfg!(miri) && size_of::<AtomicU64>() == 8;

/// Empties `cells` in ascending order, by exchange, and hands the old values to `each`.
#[inline(always)]
pub(crate) fn take_all(cells: &[AtomicU64], mut each: impl FnMut(u64)) {
    let mut rest = cells;
    if PLAIN && cells.len() > 1 && cpu::has_double_exchange() {
        // A pair starts at a multiple of its size.
        if !cells.as_ptr().addr().is_multiple_of(16) {
            each(word::take::<Live>(&cells[0]));
            rest = &cells[1..];
        }
        let (pairs, last) = rest.as_chunks::<2>();
        for pair in pairs {
            let mut old = look(pair);
            while let Err(now) = cpu::take_pair(pair, old) {
                old = now;
            }
            old.into_iter().for_each(&mut each);
        }
        rest = last;
    }
    for cell in rest {
        each(word::take::<Live>(cell));
    }
}

/// Empties `cells` in ascending order, by exchange, as long as they hold what is expected; how
/// many. `each` gets old values that are not what is expected, ignored bits included, and maybe
/// the neighbour of one.
///
/// Cells in which hardware sets nothing that must not be lost go by a load and a store each. What it sets in
/// between is lost; in an empty cell it sets nothing.
///
/// An exchange waits for everything before it, and what reads memory waits for the exchange. So
/// most are tried without a look, which the values of a run allow; once one of them failed all are
/// looked at.
#[inline(always)]
pub(crate) fn take_while(
    cells: &[AtomicU64],
    mut expected: Expected,
    mut each: impl FnMut(u64),
) -> usize {
    let mut nr = 0;
    if !may_be_updated(expected.next, &expected) {
        nr = if cells.len() < GROUP {
            store_each(cells, &mut expected, &mut each)
        } else {
            store_while(cells, &mut expected, &mut each)
        };
        if nr == cells.len() {
            return nr;
        }
    } else if PLAIN && cells.len() > 1 && cpu::has_double_exchange() {
        if !cells.as_ptr().addr().is_multiple_of(16) {
            if !take_one(&cells[0], &mut expected, &mut each) {
                return 0;
            }
            nr = 1;
        }
        let (pairs, _) = cells[nr..].as_chunks::<2>();
        let blind = take_equal(pairs, expected.next, expected.step);
        nr += 2 * blind;
        expected.next = expected.next.wrapping_add(expected.step.wrapping_mul(2 * blind as u64));
        for pair in &pairs[blind..] {
            if !take_two(pair, &mut expected, &mut each) {
                break;
            }
            nr += 2;
        }
    }
    for cell in &cells[nr..] {
        if !take_one(cell, &mut expected, &mut each) {
            break;
        }
        nr += 1;
    }
    nr
}

/// Cells that share a branch.
const GROUP: usize = 8;

/// Whether hardware may set something in `raw` that must not be lost.
#[inline(always)]
fn may_be_updated(raw: u64, expected: &Expected) -> bool {
    raw & expected.updated != 0 && !mutant!("x86.take.not_rmw")
}
/// Empties the cells at the beginning that hold what is expected and that may be emptied by stores;
/// how many.
fn store_while(cells: &[AtomicU64], expected: &mut Expected, each: &mut impl FnMut(u64)) -> usize {
    let mut nr = 0;
    let (groups, _) = cells.as_chunks::<GROUP>();
    for group in groups {
        let (mut diff, mut e) = (0, expected.next);
        for cell in group {
            diff |= cell.load(Relaxed) ^ e;
            e = e.wrapping_add(expected.step);
        }
        if diff == 0 {
            group.iter().for_each(|cell| cell.store(0, Relaxed));
            expected.next = e;
        } else {
            let stored = store_each(group, expected, each);
            if stored < group.len() {
                return nr + stored;
            }
        }
        nr += group.len();
    }
    nr + store_each(&cells[nr..], expected, each)
}
/// As [`store_while`], one by one.
#[inline(always)]
fn store_each(cells: &[AtomicU64], expected: &mut Expected, each: &mut impl FnMut(u64)) -> usize {
    for (k, cell) in cells.iter().enumerate() {
        let old = cell.load(Relaxed);
        if (old ^ expected.next) & !expected.ignore != 0 || may_be_updated(old, expected) {
            return k;
        }
        cell.store(0, Relaxed);
        if old != expected.next {
            each(old);
        }
        expected.next = old.wrapping_add(expected.step);
    }
    cells.len()
}

/// Empties pairs that hold `head`, `head + step`, …; how many there are before the first that does
/// not. The caller asked whether the CPU can.
fn take_equal(pairs: &[[AtomicU64; 2]], head: u64, step: u64) -> usize {
    let mut expected = head;
    for (k, pair) in pairs.iter().enumerate() {
        let next = expected.wrapping_add(step);
        if cpu::take_pair(pair, [expected, next]).is_err() {
            return k;
        }
        expected = next.wrapping_add(step);
    }
    pairs.len()
}
#[inline(always)]
fn take_one(cell: &AtomicU64, expected: &mut Expected, each: &mut impl FnMut(u64)) -> bool {
    if (cell.load(Relaxed) ^ expected.next) & !expected.ignore != 0 {
        return false;
    }
    let old = word::take::<Live>(cell);
    if old != expected.next {
        each(old);
    }
    expected.next = old.wrapping_add(expected.step);
    true
}
/// As [`take_one`] for two. If it does not, the first may still be as expected.
fn take_two(pair: &[AtomicU64; 2], expected: &mut Expected, each: &mut impl FnMut(u64)) -> bool {
    let mut old = look(pair);
    loop {
        let next = expected.next.wrapping_add(expected.step);
        let other = old[0] ^ expected.next | old[1] ^ next;
        if other & !expected.ignore != 0 {
            return false;
        }
        match cpu::take_pair(pair, old) {
            Ok(()) => {
                if other != 0 {
                    old.into_iter().for_each(each);
                }
                expected.next = old[1].wrapping_add(expected.step);
                return true;
            }
            Err(now) => old = now,
        }
    }
}
#[inline(always)]
fn look(pair: &[AtomicU64; 2]) -> [u64; 2] {
    pair.each_ref().map(|cell| cell.load(Relaxed))
}

#[cfg(target_arch = "x86_64")]
mod cpu {
    use core::arch::{asm, x86_64::__cpuid};
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
    use mm_sync::atomic::AtomicU64;

    /// What is known of this CPU: the same on all, and asked once, as asking takes long.
    static KNOWN: AtomicU8 = AtomicU8::new(ASK);
    const ASK: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;

    /// Whether the CPU exchanges sixteen bytes at once: all but the first of 64 bits do.
    #[inline(always)]
    pub fn has_double_exchange() -> bool {
        cfg!(target_feature = "cmpxchg16b")
            || match KNOWN.load(Relaxed) {
                ASK => ask(),
                known => known == YES,
            }
    }
    #[cold]
    fn ask() -> bool {
        const CX16: u32 = 1 << 13;
        let has = __cpuid(1).ecx & CX16 != 0;
        KNOWN.store(if has { YES } else { NO }, Relaxed);
        has
    }

    /// Empties two entries by one exchange if they hold `old`.
    ///
    /// The caller asked whether the CPU can, and the pair is aligned to its size.
    ///
    /// # Errors
    ///
    /// What they hold.
    #[inline(always)]
    pub fn take_pair(pair: &[AtomicU64; 2], mut old: [u64; 2]) -> Result<(), [u64; 2]> {
        debug_assert!(pair.as_ptr().addr().is_multiple_of(16));
        let done: u8;
        // SAFETY:
        // - The instruction exists: `take_all` and `take_while` call this only behind
        //   `has_double_exchange`. It faults on an address that is no multiple of sixteen: they
        //   have aligned it.
        // - The memory is two `AtomicU64` that live as long as the borrow, shared and
        //   writable as all atomics are. (The instruction also writes when it fails, what was
        //   there; that is no change.) Nothing else is accessed, and no stack.
        // - What it does is what Rust could do: when it succeeds, `swap(0, SeqCst)` of the
        //   first and then of the second, with no access by anybody else in between; when it
        //   fails, a load of each. So no access of a size that others do not use
        //   exists as far as the model of memory goes, and all others are of whole words.
        // - `rbx` may not be an operand and has a half of the new value: it is put back. If
        //   `zero` were `rbx` itself, both exchanges of registers would be without effect.
        unsafe {
            asm!(
                "xchg {zero}, rbx",
                "lock cmpxchg16b [rdi]",
                "sete r8b",
                "mov rbx, {zero}",
                zero = inout(reg) 0_u64 => _,
                in("rdi") pair.as_ptr(),
                in("rcx") 0_u64,
                inout("rax") old[0],
                inout("rdx") old[1],
                out("r8b") done,
                options(nostack),
            );
        }
        if done != 0 { Ok(()) } else { Err(old) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod cpu {
    use mm_sync::atomic::AtomicU64;

    pub const fn has_double_exchange() -> bool {
        false
    }
    pub fn take_pair(_: &[AtomicU64; 2], now: [u64; 2]) -> Result<(), [u64; 2]> {
        // Not called: there is no such exchange.
        Err(now)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::bits::{ACCESSED, DIRTY, PRESENT, WRITE};
    use mm_sync::atomic::Ordering::Relaxed;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[repr(align(16))]
    struct Aligned([AtomicU64; 40]);

    proptest! {
        /// Rules: BATCH-18, ACC-05, ACC-07. At once is what one after the other would be, wherever
        /// the entries begin and end.
        #[test]
        fn taking_many_is_taking_each(
            values in prop::collection::vec(any::<u64>(), 40),
            first in 0..40_usize,
            nr in 0..40_usize,
        ) {
            let nr = nr.min(40 - first);
            let cells = |_| Aligned(core::array::from_fn(|k| AtomicU64::new(values[k])));
            let [many, each] = [0, 1].map(cells);
            let (mut got, mut expected) = (Vec::new(), Vec::new());
            take_all(&many.0[first..first + nr], |old| got.push(old));
            for cell in &each.0[first..first + nr] {
                expected.push(word::take::<Live>(cell));
            }
            prop_assert_eq!(got, expected);
            for (a, b) in many.0.iter().zip(&each.0) {
                prop_assert_eq!(a.load(Relaxed), b.load(Relaxed));
            }
        }
    }

    proptest! {
        /// Rules: BATCH-01, BATCH-18, ACC-05, ACC-07. At once is what one after the other would be,
        /// wherever the entries begin, and whatever is different where; and nothing behind the end
        /// of the run has changed. By exchange, by stores, or some so and some so.
        #[test]
        fn taking_what_is_expected_is_looking_and_taking_each(
            others in prop::collection::vec((0..40_usize, prop_oneof![
                6 => Just(ACCESSED), 2 => Just(DIRTY), 2 => Just(WRITE), 1 => Just(1 << 40),
                1 => Just(PRESENT)
            ]), 0..6),
            first in 0..40_usize,
            nr in 0..=40_usize,
            down in any::<bool>(),
            writable in prop_oneof![Just(0), Just(WRITE)],
            updated in prop_oneof![Just(!0), Just(WRITE)],
        ) {
            const IGNORE: u64 = ACCESSED | DIRTY | WRITE;
            let nr = nr.min(40 - first);
            let step = if down { 0x1000_u64.wrapping_neg() } else { 0x1000 };
            let value = |k: usize| 0x5_0000_0000_u64.wrapping_add(step.wrapping_mul(k as u64)) | PRESENT | writable;
            let table = Aligned(core::array::from_fn(|k| AtomicU64::new(value(k))));
            for (k, bits) in others {
                word::store(&table.0[k], table.0[k].load(Relaxed) ^ bits);
            }
            let before: Vec<u64> = table.0.iter().map(|cell| cell.load(Relaxed)).collect();
            let head = value(first);

            let mut got = Vec::new();
            let expected = Expected { next: head, step, ignore: IGNORE, updated };
            let n = take_while(&table.0[first..first + nr], expected, |old| got.push(old));

            let run = (first..first + nr).take_while(|k| (before[*k] ^ value(*k)) & !IGNORE == 0);
            prop_assert_eq!(n, run.count());
            for (k, cell) in table.0.iter().enumerate() {
                let taken = (first..first + n).contains(&k);
                prop_assert_eq!(cell.load(Relaxed), if taken { 0 } else { before[k] });
            }
            // All that differ from the one before are handed on, and none that was not there.
            let mut last = head.wrapping_sub(step);
            let mut handed = got.iter();
            for old in &before[first..first + n] {
                if *old != last.wrapping_add(step) {
                    prop_assert!(handed.any(|got| got == old));
                }
                last = *old;
            }
            prop_assert!(got.iter().all(|got| before[first..first + n].contains(got)));
        }
    }

    /// Rules: PTE-18, ACC-05, ACC-07. A CPU marks entries that are still there, as often as it
    /// finds one: what it stored to is in what is taken, and nothing that is empty is marked.
    /// It stores to some of them only.
    #[test]
    fn no_mark_of_hardware_is_lost() {
        const ROUNDS: usize = 2000;
        let table = Aligned(core::array::from_fn(|_| AtomicU64::new(0)));
        let cells = &table.0[1..38];
        let marks: Vec<AtomicU64> = cells.iter().map(|_| AtomicU64::new(0)).collect();
        let stop = AtomicU64::new(0);
        let mut taken: Vec<u64> = cells.iter().map(|_| 0).collect();
        std::thread::scope(|s| {
            s.spawn(|| {
                while stop.load(Relaxed) == 0 {
                    for (cell, marks) in cells.iter().zip(&marks) {
                        let mark = |e| match e & (PRESENT | WRITE) {
                            0 | WRITE => None,
                            PRESENT => Some(e | ACCESSED),
                            _ => (e & DIRTY == 0).then_some(e | ACCESSED | DIRTY),
                        };
                        if word::update(cell, mark).is_ok_and(|old| old & WRITE != 0) {
                            marks.fetch_add(1, Relaxed);
                        }
                    }
                }
            });
            for round in 0..ROUNDS {
                let value = |k: usize| {
                    let writable = round % 8 < 4 || k / 10 % 2 == 1;
                    (k as u64) << 12 | PRESENT | if writable { WRITE } else { 0 }
                };
                for (k, cell) in cells.iter().enumerate() {
                    word::store(cell, value(k));
                }
                // Some rounds give it the time to mark all.
                if round % 8 < 2 {
                    while cells.iter().any(|c| c.load(Relaxed) & DIRTY == 0) {
                        std::thread::yield_now();
                    }
                }
                let mut note = |k: usize, old: u64| {
                    assert_eq!(old & !(ACCESSED | DIRTY), value(k));
                    let whole = if old & WRITE != 0 { ACCESSED | DIRTY } else { ACCESSED };
                    assert!([0, whole].contains(&(old & 0x60)), "half a mark");
                    taken[k] += u64::from(old & DIRTY != 0);
                };
                if round % 2 == 0 {
                    let mut k = 0;
                    take_all(cells, |old| {
                        note(k, old);
                        k += 1;
                    });
                } else {
                    // What is not handed on is as the one before, and as clean as the head.
                    let (ignore, mut marks) = (ACCESSED | DIRTY | WRITE, [0; 37]);
                    let next = value(0);
                    let expected = Expected { next, step: 1 << 12, ignore, updated: WRITE };
                    let mut seen = 0;
                    let n = take_while(cells, expected, |old| {
                        let k = (old >> 12) as usize;
                        let before = if seen > 0 { marks[seen - 1] } else { next & WRITE };
                        marks[seen..k].fill(before);
                        marks[k] = old & ignore;
                        seen = k + 1;
                    });
                    let before = if seen > 0 { marks[seen - 1] } else { next & WRITE };
                    marks[seen..].fill(before);
                    assert_eq!(n, cells.len());
                    for (k, marks) in marks.into_iter().enumerate() {
                        note(k, (k as u64) << 12 | PRESENT | marks);
                    }
                }
                assert!(cells.iter().all(|c| c.load(Relaxed) == 0));
            }
            stop.store(1, Relaxed);
        });
        let marks: Vec<u64> = marks.iter().map(|m| m.load(Relaxed)).collect();
        assert_eq!(marks, taken);
        assert!(marks.iter().all(|m| *m >= ROUNDS as u64 / 8));
    }
}
