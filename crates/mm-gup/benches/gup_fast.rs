//! GUP-fast on bare page tables and a memory map, against the reference loops.
//!
//! `cargo bench -p mm-gup`: prints, per folio size, microseconds for 65,536
//! pages (median and spread of interleaved rounds) and ratios to the reference.
//! `examples/gup_fast_cell.rs` runs one cell once, for instruction counts.

use bed::{Bed, NR, SIZES, bed};
use mm_arch::Pfn;
use mm_folio::{Get, Pin, RefKind};
use mm_gup::FastPolicy;
use std::hint::black_box;
use std::time::Instant;

mod bed;
#[expect(dead_code, reason = "the loop over leaves is for a table of mmlab")]
#[path = "../../mmlab/src/repro/reference.rs"]
mod reference;
use reference::{Loop, Reference};

const POLICIES: [FastPolicy; 3] = [FastPolicy::Page, FastPolicy::Run, FastPolicy::Whole];

fn median(mut v: Vec<f64>) -> (f64, f64, f64) {
    v.sort_by(f64::total_cmp);
    (v[v.len() / 2], v[v.len() / 10], v[v.len() * 9 / 10])
}

fn cell<K: RefKind>(name: &str, order: u32) {
    let bed: Bed = bed(order);
    let reference = Reference::new(NR, 1 << order);
    let (mut out, mut raw) = (vec![Pfn::new(0); NR], vec![0u64; NR]);
    let mut t: [Vec<f64>; 5] = Default::default();
    for _ in 0..31 {
        for (k, policy) in POLICIES.into_iter().enumerate() {
            let s = Instant::now();
            let got = bed.gup_fast_region::<K>(policy, black_box(&mut out));
            t[k].push(s.elapsed().as_secs_f64() * 1e6);
            assert_eq!(got, NR);
            bed.back::<K>(&out);
        }
        for (k, which) in [Loop::PerPage, Loop::Run].into_iter().enumerate() {
            if which == Loop::Run && order < 3 {
                continue;
            }
            let s = Instant::now();
            let got = reference.take(which, K::PINS, black_box(&mut raw));
            t[3 + k].push(s.elapsed().as_secs_f64() * 1e6);
            assert_eq!(got, NR);
            reference.give_back();
        }
    }
    let [page, run, whole, ref_page, ref_run] =
        t.map(|v| if v.is_empty() { (0.0, 0.0, 0.0) } else { median(v) });
    let matching = if order < 3 { ref_page.0 } else { ref_run.0 };
    print!("{name:<6} {}", if K::PINS { "pin" } else { "get" });
    print!("   page {:6.1} us ({:.2} x of {:6.1})", page.0, page.0 / ref_page.0, ref_page.0);
    for (name, t) in [("run", run), ("whole", whole)] {
        print!("   {name} {:6.1} us ({:.2} x of {matching:5.1})", t.0, t.0 / matching);
        print!(" page/{name} {:4.1}", page.0 / t.0);
    }
    println!();
}

fn main() {
    for (name, order) in SIZES {
        cell::<Get>(name, order);
        cell::<Pin>(name, order);
    }
}
