//! One cell of the fast path's benchmark, run once: what `cargo xtask
//! instructions` counts. The argument is OP-SIZE-POLICY: `get-4k-page`,
//! `pin-64k-run`, `get-2m-whole`, …

use bed::{NR, SIZES, bed};
use mm_arch::Pfn;
use mm_folio::{Get, Pin};
use mm_gup::FastPolicy;
use std::process::ExitCode;

#[path = "../benches/bed.rs"]
mod bed;

fn once(cell: &str) -> Option<usize> {
    let mut words = cell.split('-');
    let (op, size, policy) = (words.next()?, words.next()?, words.next_back()?);
    let order = SIZES.iter().find(|s| s.0.starts_with(size))?.1;
    let policy = match policy {
        "page" => FastPolicy::Page,
        "run" => FastPolicy::Run,
        "whole" => FastPolicy::Whole,
        _ => return None,
    };
    let bed = bed(order);
    let mut out = vec![Pfn::new(0); NR];
    let got = match op {
        "get" => bed.gup_fast_region::<Get>(policy, &mut out),
        "pin" => bed.gup_fast_region::<Pin>(policy, &mut out),
        _ => return None,
    };
    match op {
        "pin" => bed.back::<Pin>(&out[..got]),
        _ => bed.back::<Get>(&out[..got]),
    }
    Some(got)
}

fn main() -> ExitCode {
    let cell = std::env::args().nth(1).unwrap_or_else(|| "get-64k-run".to_owned());
    match once(&cell) {
        Some(got) => {
            println!("{cell}: {got} pages");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("no cell `{cell}`: OP-SIZE-POLICY, as in pin-64k-run");
            ExitCode::from(2)
        }
    }
}
