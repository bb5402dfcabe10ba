//! Emptying entries two by two.
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

use mm_arch::{Live, word};
use mm_sync::atomic::AtomicU64;

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
            for old in cpu::take_pair(pair) {
                each(old);
            }
        }
        rest = last;
    }
    for cell in rest {
        each(word::take::<Live>(cell));
    }
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

    /// Empties two entries by one exchange; the old values.
    ///
    /// The caller asked whether the CPU can, and the pair is aligned to its size.
    #[inline(always)]
    pub fn take_pair(pair: &[AtomicU64; 2]) -> [u64; 2] {
        debug_assert!(pair.as_ptr().addr().is_multiple_of(16));
        let mut old = [pair[0].load(Relaxed), pair[1].load(Relaxed)];
        loop {
            let done: u8;
            // SAFETY:
            // - The instruction exists: `take_all` calls this only behind `has_double_exchange`.
            //   It faults on an address that is no multiple of sixteen: `take_all` has aligned
            //   it.
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
            if done != 0 {
                return old;
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod cpu {
    use mm_arch::{Live, word};
    use mm_sync::atomic::AtomicU64;

    pub const fn has_double_exchange() -> bool {
        false
    }
    pub fn take_pair(pair: &[AtomicU64; 2]) -> [u64; 2] {
        pair.each_ref().map(word::take::<Live>)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::bits::{ACCESSED, DIRTY, PRESENT};
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

    /// Rules: ACC-05, ACC-07. A CPU marks entries that are still there, as often as it
    /// finds one: what it marked is in what is taken, and nothing that is empty is marked.
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
                        let clean = |e| e & PRESENT != 0 && e & DIRTY == 0;
                        let mark = |e| clean(e).then_some(e | ACCESSED | DIRTY);
                        if word::update(cell, mark).is_ok() {
                            marks.fetch_add(1, Relaxed);
                        }
                    }
                }
            });
            for round in 0..ROUNDS {
                for (k, cell) in cells.iter().enumerate() {
                    word::store(cell, (k as u64) << 12 | PRESENT);
                }
                // Some rounds give it the time to mark all.
                if round % 8 == 0 {
                    while cells.iter().any(|c| c.load(Relaxed) & DIRTY == 0) {
                        std::thread::yield_now();
                    }
                }
                let mut k = 0;
                take_all(cells, |old| {
                    assert_eq!(old & !(ACCESSED | DIRTY), (k as u64) << 12 | PRESENT);
                    assert!(matches!(old & (ACCESSED | DIRTY), 0 | 0x60), "half a mark");
                    taken[k] += u64::from(old & DIRTY != 0);
                    k += 1;
                });
                assert!(cells.iter().all(|c| c.load(Relaxed) == 0));
            }
            stop.store(1, Relaxed);
        });
        let marks: Vec<u64> = marks.iter().map(|m| m.load(Relaxed)).collect();
        assert_eq!(marks, taken);
        assert!(marks.iter().all(|m| *m >= ROUNDS as u64 / 8));
    }
}
