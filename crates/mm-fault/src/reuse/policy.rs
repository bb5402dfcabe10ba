//! How far a fault goes under [`Adaptive`](crate::ReusePolicy::Adaptive).
//!
//! # The problem
//!
//! Going too far costs entries that nobody writes through; not far enough costs
//! faults. A fault is worth a dozen entries. Which of the two it will be is
//! known only afterwards, and mostly not even then: a store through an entry that
//! was widened is seen by nobody, and dirty and accessed bits are set already in
//! memory that was written before the fork. What can be seen are the faults, and
//! which pages around them were exclusive.
//!
//! # The policy
//!
//! * **A fault beside an exclusive page**, in one block of 16, shows that stores
//!   lie closer than that: close enough for a block to pay. It is believed for the
//!   next [`TRUST`] faults that show nothing of the kind.
//! * **The first fault in a folio** takes its block while that is believed, and in
//!   a mapping of which nothing is known; else one page.
//! * **A further fault in a folio** takes [`PART`] pages while that is believed, else
//!   one page.
//!
//! A 2M folio that is written throughout is complete after six faults or so, which
//! is within a quarter of what a single one would have cost. One that gets a store
//! here and there takes page after page.
//!
//! State is how long to go on believing: 4 bytes of the mapping.

use mm_pgtable::Block;
use mm_vma::Vma;

/// Entries of a block: a 64K folio with 4K pages.
pub(super) const BLOCK: usize = 16;
/// Pages that a further fault takes while stores lie close to each other.
const PART: usize = 128;
/// Faults for which it is believed that stores lie close to each other.
const TRUST: Trust = Trust { opened: 256, further: 8 };

/// What is known where a fault happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Around {
    /// Pages of the folio that the table and the mapping have room for.
    pub window: usize,
    /// How many of them are exclusive.
    pub marked: usize,
    /// How many of them are exclusive in the block of the fault.
    pub near: usize,
}

/// For how many faults more stores are believed to lie close to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Trust {
    /// First faults in a folio. A block for nothing costs little there, and a
    /// small folio gives no second chance.
    opened: u32,
    /// Further ones.
    further: u32,
}

impl Trust {
    const KNOWN: u32 = 1 << 31;
    /// Nothing is known: one block.
    const UNKNOWN: Self = Trust { opened: 1, further: 0 };

    fn from_hint(hint: u32) -> Self {
        if hint & Self::KNOWN == 0 {
            return Trust::UNKNOWN;
        }
        Trust { opened: hint & 0xffff, further: hint >> 16 & 0x7fff }
    }
    fn to_hint(self) -> u32 {
        Self::KNOWN | self.further << 16 | self.opened
    }

    /// Pages of the aligned block to take, and what is believed then.
    fn step(mut self, around: Around) -> (Self, usize) {
        if around.near > 0 {
            return (TRUST, PART);
        }
        let (left, pages) = match around.marked {
            0 => (self.opened, BLOCK),
            _ => (self.further, PART),
        };
        self.opened = self.opened.saturating_sub(1);
        if around.marked > 0 {
            self.further = self.further.saturating_sub(1);
        }
        (self, if left > 0 { pages } else { 1 })
    }
}

/// The block to take around a fault in `vma`; `None` for the whole window.
pub(super) fn adapt(vma: &Vma, around: Around) -> Option<Block> {
    let before = Trust::from_hint(vma.fault_hint());
    let (after, pages) = before.step(around);
    if after != before {
        vma.set_fault_hint(after.to_hint());
    }
    (pages < around.window).then_some(Block::Pages(pages))
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
        let (mut trust, mut cost) = (Trust::UNKNOWN, Cost::default());
        let mut early = BTreeSet::new();
        for &(folio, page) in &trace.stores {
            let pages = &mut exclusive[folio as usize];
            if pages[page as usize] {
                continue;
            }
            faulted((folio, page));
            let count = |pages: &[bool]| pages.iter().filter(|p| **p).count();
            let block = page as usize / BLOCK * BLOCK;
            let near = count(&pages[block..trace.n.min(block + BLOCK)]);
            let around = Around { window: trace.n, marked: count(pages), near };
            let (after, nr) = trust.step(around);
            trust = Trust::from_hint(after.to_hint());
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

    /// Worth of a fault, in entries, for which the policy was made.
    const WORTH: [f64; 3] = [10.0, 13.0, 16.0];

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
    fn no_random_trace_costs_much_more_than_three_times_and_a_table() {
        let mut state = 0x2545_f491_4f6c_dd1d;
        let mut worst = [(0.0, String::new()), (0.0, String::new()), (0.0, String::new())];
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
            for (ratio, worst) in WORTH.into_iter().zip(&mut worst) {
                let times = (cost.at(ratio) - n as f64) / cheaper(&trace, 0, ratio);
                if times > worst.0 {
                    *worst = (times, format!("{} at {ratio}: {cost:?}", trace.name));
                }
            }
        }
        // The less a fault is worth, the more a wrong guess costs.
        for (bound, (times, trace)) in [4.3, 3.6, 3.1].into_iter().zip(worst) {
            assert!(times <= bound, "{times:.2} times: {trace}");
        }
    }

    /// The worst there is: nobody stores where it would not be seen. No policy
    /// that learns from faults alone can tell this from the rows above.
    #[test]
    fn stores_that_avoid_every_widened_page_cost_ten_times_at_most() {
        for row in rows() {
            let mut seen = Vec::new();
            adaptive(&row, 0, &mut |store| seen.push(store));
            let trace = Trace { name: row.name, n: row.n, stores: seen };
            let cost = adaptive(&trace, 0, &mut |_| ());
            for ratio in WORTH {
                let times = (cost.at(ratio) - trace.n as f64) / cheaper(&trace, 0, ratio);
                assert!(times <= 10.0, "{}: {times:.2} times, {cost:?}", trace.name);
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
    fn what_is_kept_in_the_mapping_is_what_is_believed() {
        assert_eq!(Trust::from_hint(0), Trust::UNKNOWN);
        for trust in [Trust { opened: 0, further: 0 }, TRUST, Trust::UNKNOWN] {
            assert_eq!(Trust::from_hint(trust.to_hint()), trust);
        }
    }
}
