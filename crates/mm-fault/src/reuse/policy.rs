//! How far a fault goes under [`Adaptive`](crate::ReusePolicy::Adaptive).
//!
//! # The problem
//!
//! Going too far costs entries that nobody writes through; not far enough costs
//! faults. A fault is worth [`RATIO`] entries. Which of the two it will be is
//! known only afterwards, and mostly not even then: a store through an entry that
//! was widened is seen by nobody, and dirty and accessed bits are set already in
//! memory that was written before the fork. What can be seen are the faults, and
//! how much of the folio was exclusive at each of them.
//!
//! # The policy
//!
//! * **The first fault in a folio** says nothing about it; its neighbours are
//!   judged by the folios before it. At first, and for [`TRUST`] folios after one
//!   that was opened with a single page and then faulted again, it takes a block.
//!   Else it takes one page: such folios get one store each.
//! * **A further fault in a folio** missed the part that is exclusive. If stores
//!   are spread evenly, those that hit that part were not seen, and the fault
//!   stands for `n / (n - marked)` stores, of which each may cost twice its worth
//!   in entries. So the folio is complete after about `n / (4 * RATIO)` faults.
//! * **A folio that faults though half of it is exclusive** is likely to be
//!   written throughout, and so are [`GRANT`] folios after it: their first fault
//!   takes everything. The one behind them is opened small again, to see whether
//!   that is still so.
//!
//! State is what is left of the two promises: 4 bytes of the mapping.

use mm_pgtable::Block;
use mm_vma::Vma;

/// Entries of a block: a 64K folio with 4K pages.
pub(super) const BLOCK: usize = 16;
/// Entries that one fault is worth.
const RATIO: usize = 48;
/// Folios opened with a block after one was found to be hit twice.
const TRUST: u32 = 256;
/// Folios taken as a whole after one that was.
const GRANT: u32 = 2;

/// What the faults of a mapping taught, as it is kept there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Learned {
    /// How many folios more are opened with a block.
    blocks: u32,
    /// How many folios more are opened as a whole.
    whole: u32,
}

impl Learned {
    const KNOWN: u32 = 1 << 31;
    /// Nothing is known: one block.
    const UNKNOWN: Self = Learned { blocks: 1, whole: 0 };

    fn from_hint(hint: u32) -> Self {
        if hint & Self::KNOWN == 0 {
            return Learned::UNKNOWN;
        }
        Learned { blocks: hint & 0xffff, whole: hint >> 16 & 0x7fff }
    }
    fn to_hint(self) -> u32 {
        Self::KNOWN | self.whole << 16 | self.blocks
    }

    /// Pages of the aligned block to take around a fault in a window of `n`
    /// pages, of which `marked` are exclusive, and what is known then.
    fn step(mut self, n: usize, marked: usize) -> (Self, usize) {
        if marked == 0 {
            let pages = if self.whole > 0 {
                self.whole -= 1;
                n.next_power_of_two()
            } else if self.blocks > 0 {
                self.blocks -= 1;
                BLOCK
            } else {
                1
            };
            return (self, pages);
        }
        if marked < BLOCK {
            self.blocks = TRUST;
        }
        if n > BLOCK && 2 * marked >= n {
            self.whole = GRANT;
        }
        let left = n.saturating_sub(marked).max(1);
        (self, (2 * RATIO * n / left).next_power_of_two())
    }
}

/// The block to take around a fault in `vma`, in a window of `n` pages of which
/// `marked` are exclusive; `None` for the whole window.
pub(super) fn adapt(vma: &Vma, n: usize, marked: usize) -> Option<Block> {
    let before = Learned::from_hint(vma.fault_hint());
    let (after, pages) = before.step(n, marked);
    if after != before {
        vma.set_fault_hint(after.to_hint());
    }
    (pages < n).then_some(Block::Pages(pages))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    /// Stores, as (folio, page), to folios of `n` pages.
    struct Trace {
        name: String,
        n: usize,
        stores: Vec<(u32, u32)>,
    }

    /// Faults and entries written.
    #[derive(Clone, Copy, Default, Debug)]
    struct Cost {
        faults: usize,
        entries: usize,
    }
    impl Cost {
        fn at(self, ratio: f64) -> f64 {
            self.faults as f64 * ratio + self.entries as f64
        }
    }

    fn random(state: &mut u64, below: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) % below
    }
    fn shuffle(stores: &mut [(u32, u32)], state: &mut u64) {
        for i in (1..stores.len()).rev() {
            stores.swap(i, random(state, i as u64 + 1) as usize);
        }
    }

    /// What the policy costs; `faulted` hears of the stores that fault.
    /// The first `skip` folios that are touched are not counted.
    fn adaptive(trace: &Trace, skip: usize, faulted: &mut dyn FnMut((u32, u32))) -> Cost {
        let folios = 1 + trace.stores.iter().map(|s| s.0).max().unwrap_or(0) as usize;
        let mut exclusive = std::vec![std::vec![false; trace.n]; folios];
        let (mut learned, mut cost) = (Learned::UNKNOWN, Cost::default());
        let mut early = BTreeSet::new();
        for &(folio, page) in &trace.stores {
            let pages = &mut exclusive[folio as usize];
            if pages[page as usize] {
                continue;
            }
            faulted((folio, page));
            let marked = pages.iter().filter(|p| **p).count();
            let (after, nr) = learned.step(trace.n, marked);
            learned = Learned::from_hint(after.to_hint());
            let nr = nr.min(trace.n);
            let first = page as usize / nr * nr;
            let new = pages[first..first + nr].iter_mut().filter(|p| !**p);
            let written = new.map(|p| *p = true).count();
            if early.len() < skip {
                early.insert(folio);
            }
            if !early.contains(&folio) {
                cost.faults += 1;
                cost.entries += written;
            }
        }
        cost
    }
    /// The cheaper of page by page and whole tables, without the first `skip` folios.
    fn cheaper(trace: &Trace, skip: usize, ratio: f64) -> f64 {
        let mut early = Vec::new();
        for (folio, _) in &trace.stores {
            if early.len() < skip && !early.contains(folio) {
                early.push(*folio);
            }
        }
        let counted = || trace.stores.iter().filter(|s| !early.contains(&s.0));
        let pages = counted().collect::<BTreeSet<_>>().len();
        let folios = counted().map(|s| s.0).collect::<BTreeSet<_>>().len();
        let page = Cost { faults: pages, entries: pages };
        let table = Cost { faults: folios, entries: folios * trace.n };
        page.at(ratio).min(table.at(ratio))
    }

    /// 256 MiB, written in the patterns of the patch series.
    fn rows() -> Vec<Trace> {
        let mut rows = Vec::new();
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for n in [16, 256, 512] {
            let all: Vec<_> = (0..65536u32).map(|i| (i / n, i % n)).collect();
            let mut random = all.clone();
            shuffle(&mut random, &mut state);
            let every = |k| all.iter().copied().step_by(k).collect();
            for (name, stores) in
                [("seq", all.clone()), ("random", random), ("64k", every(16)), ("2m", every(512))]
            {
                rows.push(Trace { name: format!("{name}, {n} pages"), n: n as usize, stores });
            }
        }
        rows
    }

    /// Worth of a fault, in entries, for which the policy keeps its promises.
    const WORTH: [f64; 2] = [48.0, 50.0];

    /// The promise on ordinary patterns: close to the better fixed policy,
    /// whichever that is, on every row of at least 128 folios.
    #[test]
    fn no_row_costs_much_more_than_the_better_fixed_policy() {
        for row in rows() {
            let cost = adaptive(&row, 8, &mut |_| ());
            for ratio in WORTH {
                let times = cost.at(ratio) / cheaper(&row, 8, ratio);
                assert!(times <= 1.25, "{}: {times:.3} times, {cost:?}, at {ratio}", row.name);
            }
        }
    }

    /// Stores that do not depend on the windows: some number of pages of each
    /// folio, drawn at random, folio by folio or in any order.
    #[test]
    fn no_random_trace_costs_more_than_three_times_and_a_table() {
        let mut state = 0x2545_f491_4f6c_dd1d;
        let mut worst = (0.0, String::new());
        for round in 0..600u32 {
            let n = [16, 32, 64, 128, 256, 512][random(&mut state, 6) as usize];
            let few = 1 + random(&mut state, 6) as usize;
            let most = 1 << random(&mut state, 10);
            let many = 1 + random(&mut state, most) as usize;
            let share = random(&mut state, 101);
            let mut stores = Vec::new();
            for folio in 0..200 {
                let k = if random(&mut state, 100) < share { many } else { few };
                for _ in 0..k {
                    stores.push((folio, random(&mut state, n) as u32));
                }
            }
            if round % 2 == 0 {
                shuffle(&mut stores, &mut state);
            }
            let name = format!("{n} pages, {few} or {many} of {share} in 100, round {round}");
            let trace = Trace { name, n: n as usize, stores };
            let cost = adaptive(&trace, 0, &mut |_| ());
            for ratio in WORTH {
                let times = (cost.at(ratio) - n as f64) / cheaper(&trace, 0, ratio);
                if times > worst.0 {
                    worst = (times, format!("{} at {ratio}: {cost:?}", trace.name));
                }
            }
        }
        assert!(worst.0 <= 3.0, "{:.2} times: {}", worst.0, worst.1);
    }

    /// The worst there is: nobody stores where it would not be seen. No policy
    /// that learns from faults alone can tell this from the rows above.
    #[test]
    fn stores_that_avoid_every_widened_page_cost_seven_times_at_most() {
        for row in rows() {
            let mut seen = Vec::new();
            adaptive(&row, 0, &mut |store| seen.push(store));
            let trace = Trace { name: row.name, n: row.n, stores: seen };
            let cost = adaptive(&trace, 0, &mut |_| ());
            for ratio in WORTH {
                let times = (cost.at(ratio) - trace.n as f64) / cheaper(&trace, 0, ratio);
                assert!(times <= 7.0, "{}: {times:.2} times, {cost:?}", trace.name);
            }
        }
    }

    /// A dense rewrite of 256 MiB.
    #[test]
    fn a_dense_rewrite_takes_few_faults() {
        for row in rows().iter().filter(|r| r.name.starts_with("seq")) {
            let cost = adaptive(row, 0, &mut |_| ());
            let least = [(16, 9), (256, 32), (512, 64)];
            let (_, times) = least.into_iter().find(|l| l.0 == row.n).expect("a row");
            assert!(65536 / cost.faults >= times, "{}: {cost:?}", row.name);
        }
    }

    #[test]
    fn what_is_kept_in_the_mapping_is_what_was_learned() {
        assert_eq!(Learned::from_hint(0), Learned::UNKNOWN);
        for (blocks, whole) in [(0, 0), (TRUST, 0), (0, GRANT), (TRUST, GRANT)] {
            let learned = Learned { blocks, whole };
            assert_eq!(Learned::from_hint(learned.to_hint()), learned);
        }
    }
}
